"""Runs what rows of a training batch have in common once: forward and backward, exactly.

A group's members begin with the same prompt, and questions on one database with the same schema.
`share_prefixes(model)` replaces the forward that TRL's trainers call for per-token
log-probabilities (`fused_lm_head=True`): rows are grouped by their common beginning, that
beginning and what each row has of its own are packed into one sequence without padding
(`packing.py`), which runs once. Gradients flow back through the shared keys and values, and only
scored tokens go through the vocabulary's projection. Loss and gradients are those of the plain
forward up to rounding.

Where it does not hold (gradient checkpointing, which would lose the layout, or an architecture
that `engine.supports` does not know) the forward is left as it was and the caller is told why.

This module touches no trainer: it knows only the model's forward and the fields of its outputs.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nl2sql_trl.engine import common_length, supports
from nl2sql_trl.packing import PACKED, pack, register

if TYPE_CHECKING:
    from torch import Tensor

_MIN_PREFIX = 32
_HEAD_TOKENS = 4096  # tokens projected on the vocabulary at once


@dataclass(slots=True)
class TokenScores:
    """What TRL reads of a fused forward. All are (rows, length - 1) but for the loss.

    log_probs: of each next-token label, 0 where there is none. label_mask: where there is one.
    """

    loss: Tensor
    log_probs: Tensor
    entropy: Tensor
    is_top1: Tensor
    label_mask: Tensor


def share_prefixes(
    model: Any,
    *,
    gradient_checkpointing: bool,
    temperature: float = 1.0,
    entropy_grad: bool = False,
) -> str:
    """Make `model`'s fused forward share prefixes. Returns "" or why it was left as it was.

    Call it after the trainer's own patch of `forward` (that is: after the trainer was made).
    `model` is the base model inside any PEFT wrapper. temperature divides the logits.
    entropy_grad: whether the loss uses the entropy.
    """
    if gradient_checkpointing:
        return "gradient checkpointing loses the layout: set gradient_checkpointing to false"
    if not supports(model):
        return f"not known to hold for model type {model.config.model_type!r}"
    inner = model.forward
    register()

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        ours = {"input_ids", "attention_mask", "labels", "fused_lm_head"}
        names = {k for k, v in kwargs.items() if v is not None and k != "use_cache"}
        if args or not kwargs.get("fused_lm_head") or names != ours:
            return inner(*args, **kwargs)
        ids, labels = kwargs["input_ids"], kwargs["labels"]
        groups = _plan(ids, kwargs["attention_mask"], labels)
        return _forward(self, groups, ids, labels, temperature, entropy_grad)

    model.forward = types.MethodType(forward, model)
    return ""


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that begin with the same `shared` tokens; `spans` are their unpadded places."""

    rows: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    shared: int


def _plan(input_ids: Any, attention_mask: Any, labels: Any) -> list[_Group]:
    """Group the rows of a padded batch by common beginning, alone where nothing is shared."""
    rows = []
    for n, mask in enumerate(attention_mask):
        valid = mask.nonzero()[:, 0]
        start, stop = int(valid[0]), int(valid[-1]) + 1
        scored = (labels[n, start + 1 :] != -100).nonzero()[:, 0] + start + 1
        # The token before the first scored one must be the row's own: its state is projected.
        first = int(scored[0]) - start if len(scored) else stop - start
        rows.append((input_ids[n, start:stop].tolist(), n, (start, stop), max(0, first - 1)))
    rows.sort(key=lambda row: row[0])
    groups: list[_Group] = []
    alone: list[tuple[int, tuple[int, int]]] = []
    at = 0
    while at < len(rows):
        ids, n, span, most = rows[at]
        members, spans, end = [n], [span], at + 1
        while end < len(rows):
            other, m, other_span, other_most = rows[end]
            shared = min(most, other_most, common_length(ids, other))
            if shared < max(_MIN_PREFIX, most // 2):
                break
            members.append(m)
            spans.append(other_span)
            most, end = shared, end + 1
        if end - at == 1:
            alone.append((n, span))
        else:
            groups.append(_Group(tuple(members), tuple(spans), most))
        at = end
    if alone:
        rows_alone, spans_alone = zip(*alone, strict=True)
        groups.append(_Group(rows_alone, spans_alone, 0))
    return groups


def _forward(
    model: Any,
    groups: Sequence[_Group],
    ids: Tensor,
    labels: Tensor,
    temperature: float,
    entropy_grad: bool,
) -> TokenScores:
    """Scores of the whole batch, put together from its groups."""
    import torch

    mask = labels[:, 1:] != -100
    hidden, starts = _hidden(model, groups, ids)
    picks, places = [], []
    for group, own_starts in zip(groups, starts, strict=True):
        for row, (start, stop), own in zip(group.rows, group.spans, own_starts, strict=True):
            first = start + group.shared
            columns = mask[row, first : stop - 1].nonzero()[:, 0]
            picks.append(columns + own)
            places.append(torch.stack([torch.full_like(columns, row), columns + first]))
    at = torch.cat(places, 1)
    targets = labels[at[0], at[1] + 1]
    head = model.get_output_embeddings()
    scores = _score(head, hidden[torch.cat(picks)], targets, temperature, entropy_grad)
    blank = scores[0].new_zeros(mask.shape)
    log_probs, entropy, top1 = (blank.index_put((at[0], at[1]), s.to(blank)) for s in scores)
    loss = -log_probs.sum() / mask.sum().clamp(min=1)
    return TokenScores(loss, log_probs, entropy, top1, mask)


def _score(
    head: Any, states: Tensor, targets: Tensor, temperature: float, entropy_grad: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability, entropy (nats) and whether the target is the likeliest, of each state.

    More tokens than fit at once go in chunks that are computed again in the backward pass.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    def chunk(states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = head(states).float() / temperature
        total = logits.logsumexp(-1)
        chosen = logits.gather(1, targets[:, None])[:, 0] - total
        with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
            weights = (logits - total[:, None]).exp()
            entropy = total - (weights * logits).sum(-1)
        return chosen, entropy, logits.detach().argmax(-1) == targets

    if len(states) <= _HEAD_TOKENS:
        return chunk(states, targets)
    parts = [
        checkpoint(chunk, s, t, use_reentrant=False)
        for s, t in zip(states.split(_HEAD_TOKENS), targets.split(_HEAD_TOKENS), strict=True)
    ]
    log_probs, entropies, top1 = (torch.cat(p) for p in zip(*parts, strict=True))
    return log_probs, entropies, top1


def _hidden(model: Any, groups: Sequence[_Group], ids: Tensor) -> tuple[Tensor, list[list[int]]]:
    """Last hidden states of the packed batch, (tokens, size), and where each row's own start."""
    packed, starts = pack(
        [
            (
                ids[group.rows[0], group.spans[0][0] :][: group.shared],
                [
                    ids[row, start + group.shared : stop]
                    for row, (start, stop) in zip(group.rows, group.spans, strict=True)
                ],
            )
            for group in groups
        ]
    )
    before = model.config._attn_implementation
    model.config._attn_implementation = PACKED
    try:
        out = model.base_model(
            input_ids=packed.ids,
            position_ids=packed.positions,
            use_cache=False,
            packed=packed.spans,
        )
    finally:
        model.config._attn_implementation = before
    return out.last_hidden_state[0], starts
