"""The shared forward is TRL's own: same loss, scores and gradients, only cheaper.

Both run in fp32 on copies of one random model. "Own" is TRL's fused forward, "shared" is ours put
on top of it, as the trainers do.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from fakes import random_model
from trl.trainer.utils import add_fused_lm_head

from nl2sql_trl import sharing
from nl2sql_trl.sharing import share_prefixes

KINDS = ["llama", "qwen2", "qwen3"]
PAD = 0
Tensor = torch.Tensor


@dataclass(frozen=True)
class Batch:
    ids: Tensor
    attention: Tensor
    labels: Tensor


def text(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(10, 300) for _ in range(length)]


def grpo(rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    """Prompts padded on the left, completions on the right: every completion token is scored."""
    wide, long = max(len(p) for p, _ in rows), max(len(c) for _, c in rows)
    ids = [[PAD] * (wide - len(p)) + [*p, *c] + [PAD] * (long - len(c)) for p, c in rows]
    seen = [
        [0] * (wide - len(p)) + [1] * (len(p) + len(c)) + [0] * (long - len(c)) for p, c in rows
    ]
    attention = torch.tensor(seen)
    labels = torch.tensor(ids).masked_fill(attention == 0, -100)
    labels[:, :wide] = -100
    return Batch(torch.tensor(ids), attention, labels)


def sft(rows: Sequence[Sequence[tuple[Sequence[int], bool]]]) -> Batch:
    """Rows of spans, padded on the right; a span is scored or not (the prompt, tool tokens)."""
    length = max(sum(len(span) for span, _ in row) for row in rows)
    ids, labels, seen = [], [], []
    for row in rows:
        tokens = [i for span, _ in row for i in span]
        marks = [i if scored else -100 for span, scored in row for i in span]
        left = length - len(tokens)
        ids.append(tokens + [PAD] * left)
        labels.append(marks + [-100] * left)
        seen.append([1] * len(tokens) + [0] * left)
    return Batch(torch.tensor(ids), torch.tensor(seen), torch.tensor(labels))


SCHEMA, OTHER = text(50, 1), text(41, 2)


def batches() -> dict[str, Batch]:
    a, b = SCHEMA + text(12, 3), SCHEMA + text(5, 4)
    chat = [(SCHEMA + text(9, 5), False), (text(6, 6), True), (text(8, 7), False)]
    return {
        "one group": grpo([(a, text(n, n)) for n in (7, 1, 12, 7)]),
        "two groups of one schema": grpo([(p, text(n, n)) for p in (a, b) for n in (3, 9)]),
        "mixed groups and loners": grpo(
            [(a, text(5, 8)), (OTHER, text(9, 9)), (a, text(2, 10)), (text(3, 11), text(4, 12)),
             (OTHER, text(1, 13)), (text(60, 14), text(11, 15))]
        ),
        "a row alone": grpo([(a, text(9, 16))]),
        "no prefix long enough": grpo([(text(10, 17), text(4, n)) for n in range(3)]),
        "the same completion twice": grpo([(a, text(6, 18))] * 3),
        "a completion that begins another": grpo([(a, text(9, 19)[:n]) for n in (9, 4, 1)]),
        "prompts of one token": grpo([([77], text(4, n)) for n in range(3)]),
        "tool tokens": sft([[*chat, (text(n, n), True)] for n in (4, 9, 1)]),
        "tool tokens, one row ends on them": sft([chat, [*chat, (text(5, 20), True)], chat]),
        "schemas": sft(
            [[(SCHEMA + text(n, n), False), (text(2 * n, 21), True)] for n in (3, 8, 5)]
            + [[(OTHER + text(n, n), False), (text(6, 22), True)] for n in (2, 7)]
        ),
        "a prompt scored too": sft([[(SCHEMA, True), (text(n, n), True)] for n in (3, 8)]),
        "one row without labels": sft(
            [[(a, False), (text(5, 23), False)], [(a, False), (text(6, 24), True)]]
        ),
        "all rows without labels": sft([[(a, False)], [(a, False), (text(6, 25), False)]]),
    }  # fmt: skip


BATCHES = batches()


def pair(
    kind: str = "qwen2",
    temperature: float = 1.0,
    entropy_grad: bool = False,
    outputs: tuple[str, ...] = ("log_probs", "entropy", "is_top1"),
) -> tuple[Any, Any]:
    """Two equal models: with TRL's forward, and with ours on top."""
    own = random_model(kind)
    shared = copy.deepcopy(own)
    for model in (own, shared):
        add_fused_lm_head(model, temperature=temperature, outputs=outputs)
    assert not share_prefixes(
        shared, gradient_checkpointing=False, temperature=temperature, entropy_grad=entropy_grad
    )
    return own, shared


def scores(model: Any, batch: Batch) -> Any:
    return model(
        input_ids=batch.ids,
        attention_mask=batch.attention,
        labels=batch.labels,
        fused_lm_head=True,
        use_cache=False,
    )


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def weighted(found: Any, entropy: float = 0.0) -> Tensor:
    """A loss as GRPO's: each row and token with a weight of its own, of either sign."""
    shape = found.log_probs.shape
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    loss = (found.log_probs * weights).sum()
    return loss + entropy * (found.entropy * weights.flip(0)).sum() if entropy else loss


def assert_same_gradients(own: dict[str, Tensor], shared: dict[str, Tensor]) -> None:
    assert own.keys() == shared.keys()
    for name, gradient in own.items():
        if not gradient.any():
            assert not shared[name].any(), name
            continue
        cosine = torch.cosine_similarity(gradient.flatten(), shared[name].flatten(), dim=0)
        assert cosine > 0.99999, name
        assert shared[name].norm() == pytest.approx(float(gradient.norm()), rel=1e-3), name


def assert_same_scores(own: Any, shared: Any) -> None:
    torch.testing.assert_close(shared.log_probs, own.log_probs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(shared.entropy, own.entropy, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(shared.loss, own.loss, rtol=1e-5, atol=1e-5)
    assert torch.equal(shared.label_mask, own.label_mask)
    assert torch.equal(shared.is_top1.bool(), own.is_top1.bool())


# Equality with TRL's forward


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BATCHES)
def test_scores_and_every_gradient_are_those_of_trls_forward(kind: str, name: str) -> None:
    batch = BATCHES[name]
    own, shared = pair(kind)
    theirs, ours = scores(own, batch), scores(shared, batch)
    assert_same_scores(theirs, ours)
    assert_same_gradients(gradients(own, weighted(theirs)), gradients(shared, weighted(ours)))


@pytest.mark.parametrize("name", ["two groups of one schema", "tool tokens", "schemas"])
def test_the_mean_loss_of_sft_has_the_same_gradients(name: str) -> None:
    own, shared = pair()
    theirs, ours = scores(own, BATCHES[name]), scores(shared, BATCHES[name])
    assert_same_gradients(gradients(own, theirs.loss), gradients(shared, ours.loss))


@pytest.mark.parametrize("temperature", [0.3, 1.7])
def test_a_temperature_divides_the_logits_as_trls_does(temperature: float) -> None:
    batch = BATCHES["mixed groups and loners"]
    own, shared = pair(temperature=temperature)
    theirs, ours = scores(own, batch), scores(shared, batch)
    assert_same_scores(theirs, ours)
    assert_same_gradients(gradients(own, weighted(theirs)), gradients(shared, weighted(ours)))


@pytest.mark.parametrize("name", ["mixed groups and loners", "tool tokens"])
def test_an_entropy_bonus_has_the_same_gradients(name: str) -> None:
    own, shared = pair(entropy_grad=True, temperature=1.3)
    theirs, ours = scores(own, BATCHES[name]), scores(shared, BATCHES[name])
    assert_same_gradients(
        gradients(own, weighted(theirs, 0.5)), gradients(shared, weighted(ours, 0.5))
    )


def test_without_an_entropy_bonus_the_entropy_carries_no_gradient() -> None:
    _, shared = pair()
    assert not scores(shared, BATCHES["one group"]).entropy.requires_grad


@pytest.mark.parametrize("tokens", [1, 7, 16])
def test_more_tokens_than_fit_at_once_are_scored_in_pieces(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "_HEAD_TOKENS", tokens)
    batch = BATCHES["mixed groups and loners"]
    own, shared = pair(entropy_grad=True)
    theirs, ours = scores(own, batch), scores(shared, batch)
    assert_same_scores(theirs, ours)
    assert_same_gradients(
        gradients(own, weighted(theirs, 0.5)), gradients(shared, weighted(ours, 0.5))
    )


@pytest.mark.parametrize("padding", [1, 8])
def test_columns_of_padding_alone_change_nothing(padding: int) -> None:
    batch = BATCHES["two groups of one schema"]
    _, shared = pair()
    wider = Batch(
        *(
            torch.nn.functional.pad(x, (padding, padding), value=fill)
            for x, fill in ((batch.ids, PAD), (batch.attention, 0), (batch.labels, -100))
        )
    )
    narrow, wide = scores(shared, batch), scores(shared, wider)
    inner = wide.log_probs[:, padding:-padding]
    torch.testing.assert_close(inner, narrow.log_probs, rtol=1e-5, atol=1e-5)
    assert wide.log_probs.count_nonzero() == inner.count_nonzero()


def test_the_order_of_the_rows_does_not_matter() -> None:
    batch = BATCHES["mixed groups and loners"]
    _, shared = pair()
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    moved = scores(shared, Batch(batch.ids[order], batch.attention[order], batch.labels[order]))
    straight = scores(shared, batch)
    torch.testing.assert_close(moved.log_probs, straight.log_probs[order], rtol=1e-4, atol=1e-4)


def test_lora_adapters_get_the_same_gradients() -> None:
    from peft import LoraConfig, get_peft_model

    own, shared = random_model(), random_model()
    wrapped = []
    for model in (own, shared):
        torch.manual_seed(7)
        # Not the usual start, where half of the gradients are zero.
        config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
        wrapped.append(get_peft_model(model, config))
        add_fused_lm_head(wrapped[-1].get_base_model(), outputs=("log_probs", "entropy", "is_top1"))
    assert not share_prefixes(wrapped[1].get_base_model(), gradient_checkpointing=False)
    for name in ("mixed groups and loners", "tool tokens"):
        theirs, ours = (scores(model, BATCHES[name]) for model in wrapped)
        assert_same_scores(theirs, ours)
        found = [gradients(m, weighted(s)) for m, s in zip(wrapped, (theirs, ours), strict=True)]
        assert all("lora_" in parameter for parameter in found[0])
        assert_same_gradients(*found)


# What is shared, and where nothing is


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("one group", 61 + 4 + 7 + 1 + 12 + 7),  # the prompt but for its last token, once
        ("two groups of one schema", 50 + 2 * (12 + 5) + 2 * (3 + 9)),
        ("schemas", None),
    ],
)
def test_a_common_beginning_runs_once(name: str, tokens: int | None) -> None:
    batch = BATCHES[name]
    _, shared = pair()
    seen: list[int] = []
    shared.model.embed_tokens.register_forward_hook(
        lambda _, args, __: seen.append(args[0].numel())
    )
    scores(shared, batch)
    assert sum(seen) < batch.ids.numel() * 0.8
    assert tokens is None or sum(seen) == tokens


def test_gradient_checkpointing_leaves_trls_forward_and_says_so() -> None:
    model = random_model()
    add_fused_lm_head(model)
    before = model.forward
    assert "gradient_checkpointing" in share_prefixes(model, gradient_checkpointing=True)
    assert model.forward == before


def test_an_unknown_architecture_keeps_trls_forward_and_says_so() -> None:
    model = random_model("mistral")
    add_fused_lm_head(model)
    before = model.forward
    assert "mistral" in share_prefixes(model, gradient_checkpointing=False)
    assert model.forward == before


def test_an_ordinary_forward_is_left_alone() -> None:
    own, shared = pair()
    batch = BATCHES["one group"]
    for arguments in ({}, {"labels": batch.labels}):
        theirs, ours = (
            m(input_ids=batch.ids, attention_mask=batch.attention, **arguments)
            for m in (own, shared)
        )
        torch.testing.assert_close(theirs.logits, ours.logits)
    context = batch.ids[:1, :20]
    greedy = [
        m.generate(context, attention_mask=torch.ones_like(context), max_new_tokens=5,
                   do_sample=False) for m in (own, shared)
    ]  # fmt: skip
    assert torch.equal(*greedy)


def test_a_fused_call_with_more_than_we_know_goes_to_trl() -> None:
    own, shared = pair()
    batch = BATCHES["one group"]
    count = torch.tensor(7)
    theirs, ours = (
        m(
            input_ids=batch.ids,
            attention_mask=batch.attention,
            labels=batch.labels,
            fused_lm_head=True,
            num_items_in_batch=count,
        )
        for m in (own, shared)
    )
    torch.testing.assert_close(theirs.loss, ours.loss)
    assert type(theirs) is type(ours)


# Unsampled tokens get no gradient


@pytest.mark.parametrize("name", ["tool tokens", "tool tokens, one row ends on them", "one group"])
def test_only_states_that_predict_a_scored_token_get_a_gradient(name: str) -> None:
    batch = BATCHES[name]
    _, shared = pair()
    outputs: list[Tensor] = []

    def keep(_module: Any, _args: Any, out: Tensor) -> None:
        out.retain_grad()
        outputs.append(out)

    shared.model.norm.register_forward_hook(keep)
    weighted(scores(shared, batch)).backward()
    hit = sum(int(o.grad.abs().sum(-1).count_nonzero()) for o in outputs if o.grad is not None)
    assert hit == int((batch.labels[:, 1:] != -100).sum())


def test_scores_of_tokens_without_a_label_are_zero() -> None:
    for batch in BATCHES.values():
        _, shared = pair()
        found = scores(shared, batch)
        masked = batch.labels[:, 1:] == -100
        assert not found.log_probs[masked].any()
        assert not found.entropy[masked].any()
        assert not found.is_top1[masked].any()


def test_masked_tokens_at_the_end_of_a_row_change_nothing_whatever_they_are() -> None:
    chat = [(SCHEMA, False), (text(6, 6), True)]
    found = []
    for seed in (1, 2):
        batch = sft([[*chat, (text(9, seed), False)], [(SCHEMA, False), (text(7, 9), True)]])
        _, shared = pair()
        loss = scores(shared, batch).loss
        found.append((float(loss.detach()), gradients(shared, loss)))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-6)
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(gradient, found[1][1][name], rtol=1e-4, atol=1e-5)


def test_a_row_without_labels_adds_nothing() -> None:
    with_row = BATCHES["one row without labels"]
    without = Batch(with_row.ids[1:], with_row.attention[1:], with_row.labels[1:])
    _, shared = pair()
    both = [gradients(shared, scores(shared, batch).loss) for batch in (with_row, without)]
    assert_same_gradients(*both)
