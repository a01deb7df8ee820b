"""Sampling with shared prefixes is plain sampling: same ids, same log-probabilities.

The models are random, so a wrong attention or position shows at once; stop tokens are many, so
rows end at different steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import chat_tokenizer, random_model

from nl2sql_trl.engine import TransformersPolicy, _chunks, common_length, supports
from nl2sql_trl.generate import GeneratePolicy
from nl2sql_trl.kvcache import Prefix, Row, Stacks, Table
from nl2sql_trl.packedlinear import packed
from nl2sql_trl.records import Sample
from nl2sql_trl.sampling import Sampling, draw

KINDS = ["llama", "qwen2", "qwen3"]
GREEDY = Sampling(0.0)
Policy = TransformersPolicy | GeneratePolicy


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest) -> Any:
    return random_model(request.param).eval()


@pytest.fixture(scope="module")
def qwen() -> Any:
    return random_model("qwen2").eval()


def codec(stops: Sequence[int] = range(3, 500, 23)) -> Any:
    """What a policy needs of a codec, with many stop tokens: random models stop by chance."""
    tokenizer = chat_tokenizer()
    return SimpleNamespace(
        tokenizer=tokenizer, stop_ids=frozenset([tokenizer.eos_token_id, *stops])
    )


def text(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(10, len(chat_tokenizer())) for _ in range(length)]


Job = tuple[Sequence[int], int]
Next = Callable[[int, int, list[int]], Job | None]


def run(
    policy: Policy, jobs: Mapping[int, Job], go_on: Next | None = None
) -> dict[int, list[Sample]]:
    """Every turn's sample of each key; `go_on(key, turn, ids so far)` gives the next turn."""
    done: dict[int, list[Sample]] = {key: [] for key in jobs}
    contexts = {key: list(ids) for key, (ids, _) in jobs.items()}
    with policy.session():
        for key, (ids, limit) in jobs.items():
            policy.submit(key, ids, limit)
        running = len(jobs)
        while running:
            for key, sample in policy.step():
                done[key].append(sample)
                contexts[key] += sample.ids
                following = go_on(key, len(done[key]), contexts[key]) if go_on else None
                if following:
                    contexts[key] = list(following[0])
                    policy.submit(key, *following)
                else:
                    policy.release(key)
                    running -= 1
    return done


def plain(model: Any, ids: Sequence[int], limit: int, stops: frozenset[int]) -> tuple[int, ...]:
    """Greedy ids of transformers' own generate, one row at a time."""
    with torch.no_grad():
        out = model.generate(
            torch.tensor([list(ids)]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=limit,
            eos_token_id=sorted(stops),
            pad_token_id=0,
        )
    return tuple(out[0, len(ids) :].tolist())


def logprobs(model: Any, ids: Sequence[int], new: Sequence[int]) -> torch.Tensor:
    """Log-probabilities of `new` after `ids` by one plain forward."""
    with torch.no_grad():
        logits = model(torch.tensor([[*ids, *new]])).logits[0, len(ids) - 1 : -1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(new)[:, None])[:, 0]


def shared_and_not() -> dict[int, Job]:
    """Groups with one prompt, groups with one schema, loners, and very short contexts."""
    schema, other = text(60, 1), text(45, 2)
    jobs: dict[int, Job] = {}
    for ids, limit in [
        *[(schema + text(20, 3), 14)] * 3,
        (schema + text(20, 3) + text(5, 4), 9),
        (schema + text(31, 5), 20),
        (schema + text(7, 6), 1),
        (schema, 12),
        *[(other + text(9, 7), 16)] * 2,
        (other[:40] + text(30, 8), 11),
        (text(80, 9), 8),
        (text(3, 10), 13),
        (text(1, 11), 5),
        (text(50, 12), 40),
    ]:
        jobs[len(jobs)] = (ids, limit)
    return jobs


# Greedy ids


def test_greedy_ids_are_those_of_plain_generation(model: Any) -> None:
    policy = TransformersPolicy(model, codec(), GREEDY)
    jobs = shared_and_not()
    done = run(policy, jobs)
    for key, (ids, limit) in jobs.items():
        assert done[key][0].ids == plain(model, ids, limit, policy.codec.stop_ids)
    assert len({len(samples[0].ids) for samples in done.values()}) > 3


@pytest.mark.parametrize("rows", [1, 2, 5, 64])
def test_greedy_ids_are_the_same_however_many_rows_go_at_once(qwen: Any, rows: int) -> None:
    jobs = shared_and_not()
    some = run(TransformersPolicy(qwen, codec(), GREEDY, max_rows=rows), jobs)
    for key, (ids, limit) in jobs.items():
        assert some[key][0].ids == plain(qwen, ids, limit, codec().stop_ids)


def test_many_more_rows_than_fit_are_all_served(qwen: Any) -> None:
    base = text(50, 1)
    jobs = {key: (base + text(1 + key % 13, key), 1 + key % 7) for key in range(150)}
    policy = TransformersPolicy(qwen, codec(), GREEDY, max_rows=40)
    done = run(policy, jobs)
    for key in range(0, 150, 11):
        assert done[key][0].ids == plain(qwen, *jobs[key], policy.codec.stop_ids)
    assert all(len(done[key][0].ids) <= limit for key, (_, limit) in jobs.items())


def test_beginnings_that_no_row_uses_any_more_are_dropped(qwen: Any) -> None:
    policy = TransformersPolicy(qwen, codec(), GREEDY, max_rows=4)
    with policy.session():
        for schema in range(5):
            base = text(50, schema)
            for key in range(4):
                policy.submit(key, base + text(5, key), 2)
            while policy._table.active or policy._queue:
                for key, _ in policy.step():
                    policy.release(key)
            assert [ids[:50] for ids in policy._prefixes] == [tuple(base)]


def test_at_most_half_of_a_product_over_beginnings_is_padding() -> None:
    lengths, rows = [40, 41, 300, 310, 900, 905, 910], [1, 60, 8, 8, 2, 7, 8]
    prefixes = [
        Prefix(tuple(range(n)), [torch.rand(2, n, 4)], [torch.rand(2, n, 4)]) for n in lengths
    ]
    table = [
        Row(0, prefix, [], random.Random(), 1)
        for prefix, n in zip(prefixes, rows, strict=True)
        for _ in range(n)
    ]
    stacks = Stacks()
    found = stacks.over(table)
    places = {place: n for n, stack in enumerate(found) for place in stack.places}
    assert len(places) == len(prefixes)
    assert places[id(prefixes[2])] == places[id(prefixes[3])]
    for n, stack in enumerate(found):
        here = [m for m, p in enumerate(prefixes) if places[id(p)] == n]
        area = len(here) * max(lengths[m] for m in here) * max(rows[m] for m in here)
        assert area <= 2 * sum(lengths[m] * rows[m] for m in here)
        for m in here:
            kept = stack.keys[0][stack.places[id(prefixes[m])], :, : lengths[m]]
            assert kept.equal(prefixes[m].keys[0])
    # They stay while most are needed: a row that ends costs no copy.
    assert stacks.over([row for row in table if row.prefix is not prefixes[0]]) is found
    assert stacks.over(table[:1]) is not found


def test_a_new_beginning_is_never_taken_for_one_that_is_gone() -> None:
    stacks = Stacks()
    for _ in range(50):
        # Each is freed before the next is made, which may then lie at the same address.
        prefix = Prefix((1, 2, 3), [torch.rand(2, 3, 4)], [torch.rand(2, 3, 4)])
        found = stacks.over([Row(0, prefix, [], random.Random(), 1)])
        [stack] = [s for s in found if id(prefix) in s.places]
        assert stack.keys[0][stack.places[id(prefix)]][:, :3].equal(prefix.keys[0])
        del prefix, stack, found


def test_a_new_beginning_costs_no_copy_of_those_that_are_there() -> None:
    rows = [
        Row(n, Prefix((n,), [torch.rand(2, 1, 4)], [torch.rand(2, 1, 4)]), [], random.Random(), 1)
        for n in range(40)
    ]
    stacks = Stacks()
    [first] = list(stacks.over(rows[:20]))
    for n in range(21, 24):
        found = stacks.over(rows[:n])
        assert found[0] is first
        assert {place for stack in found for place in stack.places} == {
            id(row.prefix) for row in rows[:n]
        }
    for n in range(24, 41):  # but there are never many
        assert len(stacks.over(rows[:n])) <= 8


def test_a_long_prompt_that_shares_nothing_widens_no_other_row(qwen: Any) -> None:
    base = text(50, 1)
    jobs = {key: (base + text(4, key), 5) for key in range(20)}
    jobs[20], jobs[21] = (text(400, 20), 5), (text(150, 21), 5)
    policy = TransformersPolicy(qwen, codec(()), GREEDY)
    with policy.session():
        for key, (ids, limit) in jobs.items():
            policy.submit(key, ids, limit)
        policy.step()
        assert policy._table.length == 32
    done = run(policy, jobs)
    for key in (0, 20, 21):
        assert done[key][0].ids == plain(qwen, *jobs[key], policy.codec.stop_ids)


def test_long_questions_still_share_a_longer_schema(qwen: Any) -> None:
    base = text(200, 1)
    policy = TransformersPolicy(qwen, codec(()), GREEDY)
    with policy.session():
        for key in range(4):
            policy.submit(key, base + text(150, 10 + key), 3)
        policy.step()
        assert [len(ids) for ids in policy._prefixes] == [200]


def test_rows_computed_at_once_are_few_where_they_are_wide() -> None:
    lengths = [1] * 100 + [100] * 30 + [2000, 5000]
    found = _chunks(lengths)
    assert [n for start, stop in found for n in range(start, stop)] == list(range(len(lengths)))
    for start, stop in found:
        assert stop - start == 1 or (stop - start) * max(lengths[start:stop]) <= 2048
    assert len(found) <= 6
    assert _chunks([]) == []


def test_places_are_filled_several_at_a_time(qwen: Any) -> None:
    jobs = {key: (text(10, key), 1 + key % 9) for key in range(120)}
    policy = TransformersPolicy(qwen, codec(()), GREEDY, max_rows=32)
    taken: list[int] = []
    group = policy._group
    policy._group = lambda room: taken.append(len(found := group(room))) or found  # type: ignore
    done = run(policy, jobs)
    assert all(len(done[key][0].ids) <= limit for key, (_, limit) in jobs.items())
    assert all(n >= 4 for n in [n for n in taken if n][:-1])


def forced(key: int, turn: int, ids: list[int]) -> Job | None:
    """Up to three turns, each after tool tokens of another length."""
    if turn > key % 3:
        return None
    return ids + text(1 + 9 * key % 37, 100 + key), 3 + key % 8


@pytest.mark.parametrize("rows", [3, 64])
def test_later_turns_go_on_from_the_cache_as_if_prefilled_anew(model: Any, rows: int) -> None:
    policy = TransformersPolicy(model, codec(), GREEDY, max_rows=rows)
    jobs = shared_and_not()
    done = run(policy, jobs, forced)
    assert {len(samples) for samples in done.values()} == {1, 2, 3}
    for key, (ids, limit) in jobs.items():
        context: Sequence[int] = ids
        for turn, sample in enumerate(done[key], start=1):
            assert sample.ids == plain(model, context, limit, policy.codec.stop_ids)
            following = forced(key, turn, [*context, *sample.ids])
            context, limit = following or (context, limit)


def test_a_second_session_starts_from_nothing(qwen: Any) -> None:
    policy = TransformersPolicy(qwen, codec(), GREEDY)
    jobs = {0: (text(40, 1), 6), 1: (text(40, 1), 6)}
    first = run(policy, jobs)
    other = run(policy, {0: (text(9, 2), 6)})
    assert run(policy, jobs) == first
    assert other[0][0].ids == plain(qwen, text(9, 2), 6, policy.codec.stop_ids)


def test_new_weights_are_used_by_the_next_session() -> None:
    model = random_model("llama").eval()
    policy = TransformersPolicy(model, codec(()), GREEDY)
    jobs = {0: (text(40, 1), 12), 1: (text(40, 1), 12)}
    before = run(policy, jobs)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    after = run(policy, jobs)
    assert after != before
    assert after[0][0].ids == plain(model, *jobs[0], policy.codec.stop_ids)


# Log-probabilities


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_those_of_a_plain_forward(model: Any, temperature: float) -> None:
    policy = TransformersPolicy(model, codec(), Sampling(temperature))
    jobs = shared_and_not()
    done = run(policy, jobs, forced)
    for key, (ids, limit) in jobs.items():
        context: Sequence[int] = ids
        for turn, sample in enumerate(done[key], start=1):
            expected = logprobs(model, context, sample.ids)
            torch.testing.assert_close(
                torch.tensor(sample.logprobs), expected, rtol=1e-4, atol=2e-4
            )
            following = forced(key, turn, [*context, *sample.ids])
            context, limit = following or (context, limit)


def test_under_bf16_autocast_logprobs_stay_near_those_in_fp32(qwen: Any) -> None:
    policy = TransformersPolicy(qwen, codec(), Sampling(), autocast=True)
    jobs = shared_and_not()
    for key, (sample,) in run(policy, jobs).items():
        expected = logprobs(qwen, jobs[key][0], sample.ids)
        assert (torch.tensor(sample.logprobs) - expected).abs().mean() < 0.1


# Draws


@pytest.mark.parametrize(("dtype", "autocast"), [("float32", True), ("bfloat16", False)])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_layers_give_what_the_layer_gives_in_bf16(
    dtype: str, autocast: bool, bias: bool
) -> None:
    layer = torch.nn.Linear(128, 192, bias=bias, dtype=getattr(torch, dtype))
    x = torch.randn(3, 7, 128)
    weight, shift = layer.weight.bfloat16(), layer.bias.bfloat16() if bias else None
    with torch.no_grad(), packed(torch.nn.Sequential(layer), autocast=autocast):
        found = layer(x)
    expected = torch.nn.functional.linear(x.bfloat16(), weight, shift)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=1.6e-2, atol=1e-2)


@pytest.mark.parametrize("biased", [(), ("q_proj",), ("q_proj", "k_proj", "v_proj")])
def test_layers_that_read_the_same_input_give_what_each_gives_alone(biased: Sequence[str]) -> None:
    names = ("q_proj", "k_proj", "v_proj")
    parent = torch.nn.Module()
    for name, size in zip(names, (128, 64, 64), strict=True):
        parent.add_module(name, torch.nn.Linear(128, size, bias=name in biased))
    inputs = [torch.randn(3, 128) for _ in range(3)]
    with torch.no_grad():
        for x, order in zip(inputs, (names, names[::-1], names[1:]), strict=True):
            with packed(parent, autocast=True):
                found = {name: getattr(parent, name)(x) for name in order}
            for name, values in found.items():
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    expected = getattr(parent, name)(x)
                torch.testing.assert_close(values, expected, rtol=1.6e-2, atol=1e-2)


def test_layers_are_left_alone_in_fp32_and_are_their_own_again_after_a_failure() -> None:
    layer = torch.nn.Linear(128, 128)
    x = torch.randn(2, 128)
    expected = layer(x)
    with packed(layer, autocast=False):
        assert layer(x).equal(expected)
    with pytest.raises(RuntimeError, match="broken"), packed(layer, autocast=True):
        raise RuntimeError("broken")
    assert layer(x).equal(expected)


def test_lora_adapters_take_part_in_packed_layers() -> None:
    from peft import LoraConfig, get_peft_model

    base = random_model("llama", hidden_size=128, intermediate_size=128)
    lora = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    model = get_peft_model(base, lora).eval()
    ids = torch.tensor([text(20, 1)])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(ids).logits.float()
        with packed(model, autocast=True):
            found = model(ids).logits.float()
        with model.disable_adapter():
            without = model(ids).logits.float()
    assert (found - expected).abs().max() < 0.2 * (without - expected).abs().max()


def test_rows_draw_from_the_models_distribution(qwen: Any) -> None:
    ids, count = text(40, 3), 3000
    policy = TransformersPolicy(qwen, codec(), Sampling(), max_rows=512)
    done = run(policy, dict.fromkeys(range(count), (ids, 1)))
    seen = torch.bincount(
        torch.tensor([samples[0].ids[0] for samples in done.values()]), minlength=qwen.vocab_size
    )
    with torch.no_grad():
        expected = qwen(torch.tensor([ids])).logits[0, -1].softmax(-1) * count
    often = expected >= 5
    seen, expected = (
        torch.cat([x[often].double(), x[~often].double().sum()[None]]) for x in (seen, expected)
    )
    freedom = len(seen) - 1
    chi_square = ((seen - expected) ** 2 / expected).sum()
    assert freedom > 20
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


CUTS = [
    Sampling(),
    Sampling(0.5),
    Sampling(1.7),
    Sampling(top_k=1),
    Sampling(top_k=3),
    Sampling(top_k=10_000),
    Sampling(top_p=0.6),
    Sampling(top_p=0.01),
    Sampling(top_p=0.999),
    Sampling(min_p=0.2),
    Sampling(min_p=1.0),
    Sampling(0.7, 0.9, 6, 0.05),
    Sampling(1.3, 0.5, 4, 0.3),
]


@pytest.mark.parametrize("sampling", CUTS, ids=str)
@pytest.mark.parametrize("size", [24, 256, 700])
def test_draws_are_those_of_transformers_own_cuts(sampling: Sampling, size: int) -> None:
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(5, size, generator=torch.Generator().manual_seed(3)) * 2
    cut = logits / sampling.temperature
    if sampling.top_k:
        cut = TopKLogitsWarper(sampling.top_k)(None, cut)
    if sampling.top_p < 1:
        cut = TopPLogitsWarper(sampling.top_p)(None, cut)
    if sampling.min_p:
        cut = MinPLogitsWarper(sampling.min_p)(None, cut)
    expected = cut.log_softmax(-1)
    # Evenly spread uniforms: each id is drawn its share of times, to one.
    count = 2000
    seen = torch.zeros(5, size)
    for n in range(count):
        ids, values = draw(logits, sampling, [(n + 0.5) / count] * 5)
        for row, (token, value) in enumerate(zip(ids, values, strict=True)):
            seen[row, token] += 1
            if n % 100 == 0:
                assert value == pytest.approx(float(expected[row, token]), abs=1e-5)
    assert (seen - count * expected.exp()).abs().max() <= 1.01
    assert (seen[expected == float("-inf")] == 0).all()


@pytest.mark.parametrize("uniform", [0.0, 1e-300, 0.25, 0.5, 0.75, 1 - 2**-53])
@pytest.mark.parametrize("kept", [[4], [0, 8], [255, 256], [3, 600], [511, 512, 513, 699], [699]])
def test_a_token_without_probability_is_never_drawn(uniform: float, kept: list[int]) -> None:
    logits = torch.full((1, 9 if kept[-1] < 9 else 700), float("-inf"))
    logits[0, kept] = 2.0
    ids, values = draw(logits, Sampling(), [uniform])
    assert ids == [kept[min(int(uniform * len(kept)), len(kept) - 1)]]
    assert values == pytest.approx([float(-torch.tensor(len(kept)).log())])


def test_greedy_takes_the_likeliest_and_says_the_models_own_logprob() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, 5.0, 0.0]])
    ids, values = draw(logits, Sampling(0.0, top_k=1), [0.9, 0.9])
    assert ids == [1, 0]
    assert values == pytest.approx([float(logits[n].log_softmax(-1)[i]) for n, i in enumerate(ids)])


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -0.1}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_k": -1}, {"min_p": -0.1}],
    ids=str,
)
def test_sampling_parameters_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        Sampling(**wrong)


def test_what_a_row_draws_does_not_depend_on_what_else_is_in_the_batch(qwen: Any) -> None:
    jobs = shared_and_not()

    def drawn(policy: TransformersPolicy, chosen: Mapping[int, Job]) -> dict[int, list[Any]]:
        return {k: [s.ids for s in samples] for k, samples in run(policy, chosen, forced).items()}

    together = drawn(TransformersPolicy(qwen, codec(), seed=5), jobs)
    narrow = drawn(TransformersPolicy(qwen, codec(), seed=5, max_rows=2), jobs)
    assert narrow == together
    for key in jobs:
        alone = drawn(TransformersPolicy(qwen, codec(), seed=5), {key: jobs[key]})
        assert alone[key] == together[key]


def test_members_of_a_group_draw_each_their_own_and_another_seed_others(qwen: Any) -> None:
    jobs = {key: (text(40, 3), 10) for key in range(6)}
    one = run(TransformersPolicy(qwen, codec(), seed=1), jobs)
    again = run(TransformersPolicy(qwen, codec(), seed=1), jobs)
    other = run(TransformersPolicy(qwen, codec(), seed=2), jobs)
    assert len({samples[0].ids for samples in one.values()}) == 6
    assert one == again
    assert one != other


# What is not allowed, and what is left behind


def test_a_context_that_does_not_continue_its_earlier_one_is_refused(qwen: Any) -> None:
    policy = TransformersPolicy(qwen, codec(), GREEDY)
    with policy.session():
        policy.submit(7, text(40, 1), 2)
        while not policy.step():
            pass
        policy.submit(7, text(60, 2), 2)
        with pytest.raises(ValueError, match="context of 7 does not continue"):
            policy.step()


def test_a_turn_without_tokens_is_refused(qwen: Any) -> None:
    policy = TransformersPolicy(qwen, codec(), GREEDY)
    with policy.session(), pytest.raises(ValueError, match="at least one token"):
        policy.submit(0, text(5, 1), 0)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_session_leaves_the_model_as_it_was_also_when_it_fails(
    training: bool, fails: bool
) -> None:
    model = random_model("qwen3")
    model.train(training)
    before = model.config._attn_implementation
    grad = torch.is_grad_enabled()
    policy = TransformersPolicy(model, codec(), GREEDY)
    try:
        with policy.session():
            assert not model.training
            policy.submit(0, text(40, 1), 3)
            policy.step()
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert fails
    assert model.config._attn_implementation == before
    assert model.training is training
    assert torch.is_grad_enabled() == grad
    assert run(policy, {0: (text(40, 1), 3)})


@pytest.mark.parametrize(
    ("kind", "changes", "known"),
    [
        ("llama", {}, True),
        ("qwen2", {}, True),
        ("qwen3", {}, True),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, False),
        ("mistral", {}, False),
    ],
)
def test_only_architectures_known_to_work_are_taken(
    kind: str, changes: dict[str, Any], known: bool
) -> None:
    assert supports(random_model(kind, **changes)) is known


@pytest.mark.parametrize(
    ("a", "b", "length"),
    [
        ((), (), 0),
        ((1,), (), 0),
        ((1, 2), (1, 2, 3), 2),
        ((1, 2, 3), (1, 9, 3), 1),
        ((1,), (2,), 0),
    ],
)
def test_the_common_beginning_of_two_sequences(
    a: Sequence[int], b: Sequence[int], length: int
) -> None:
    assert common_length(a, b) == common_length(b, a) == length


# The policy for everything else


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_generate_gives_the_same_greedy_ids_within_each_rows_limit(model: Any, batch: int) -> None:
    policy = GeneratePolicy(model, codec(), GREEDY, batch=batch)
    jobs = shared_and_not()
    for key, (sample,) in run(policy, jobs).items():
        assert sample.ids == plain(model, *jobs[key], policy.codec.stop_ids)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generate_gives_the_logprobs_of_a_plain_forward(qwen: Any, temperature: float) -> None:
    jobs = shared_and_not()
    policy = GeneratePolicy(qwen, codec(), Sampling(temperature))
    for key, (sample,) in run(policy, jobs).items():
        expected = logprobs(qwen, jobs[key][0], sample.ids)
        torch.testing.assert_close(torch.tensor(sample.logprobs), expected, rtol=1e-4, atol=2e-4)


def test_a_models_own_generation_config_changes_nothing_that_is_sampled() -> None:
    jobs = {0: (text(30, 1), 24), 1: (text(12, 2), 24)}
    model = random_model("qwen2").eval()
    expected = run(GeneratePolicy(model, codec(), GREEDY), jobs)
    own = {"repetition_penalty": 3.0, "no_repeat_ngram_size": 1, "suppress_tokens": [5, 6, 7]}
    model.generation_config.update(**own)
    assert run(GeneratePolicy(model, codec(), GREEDY), jobs) == expected
    assert {name: getattr(model.generation_config, name) for name in own} == own


def test_generate_leaves_the_global_generator_and_the_mode_alone() -> None:
    model = random_model("qwen2").train()
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    first = run(GeneratePolicy(model, codec(), Sampling(), seed=1), {0: (text(9, 1), 8)})
    assert torch.equal(torch.rand(3), expected)
    assert model.training
    assert first == run(GeneratePolicy(model, codec(), Sampling(), seed=1), {0: (text(9, 1), 8)})


def test_rows_of_a_session_that_goes_on_do_not_repeat_the_draws_of_an_earlier_one() -> None:
    model, prompt = random_model("qwen2"), text(9, 1)
    first, later = (
        run(GeneratePolicy(model, codec(), Sampling(), seed=1), dict.fromkeys(keys, (prompt, 12)))
        for keys in (range(4), range(4, 8))
    )
    drawn = [samples[0].ids for found in (first, later) for samples in found.values()]
    assert len(set(drawn)) == len(drawn)


def test_generate_serves_an_architecture_that_the_engine_does_not_know() -> None:
    model = random_model("mistral").eval()
    policy = GeneratePolicy(model, codec(), GREEDY)
    jobs = {0: (text(30, 1), 6), 1: (text(12, 2), 9)}
    for key, (sample,) in run(policy, jobs).items():
        assert sample.ids == plain(model, *jobs[key], policy.codec.stop_ids)


def test_a_table_gives_room_back_but_keeps_what_idle_rows_have() -> None:
    table, new = Table(1), torch.randn(1, 2, 1, 4)
    for key, cached in ((0, 3), (1, 40), (2, 500)):
        table.add(Row(key, Prefix(()), [], random.Random(0), 1, cached=cached))
    lengths = []
    for tokens in (510, 1):
        table.reserve(tokens)
        buffer = table.room(table.keys, 0, new)
        lengths.append(buffer.shape[2])
        if tokens == 510:
            kept = torch.randn_like(buffer)
            buffer.copy_(kept)
            table.remove(2)
    assert lengths == [512, 64]
    assert table.room(table.keys, 0, new)[:2].equal(kept[:2, :, :64])
