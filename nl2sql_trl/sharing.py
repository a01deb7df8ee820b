"""Runs what rows of a training batch have in common once: forward and backward, exactly.

A group's members begin with the same prompt, and questions on one database with the same schema.
`share_prefixes(model)` replaces the forward that TRL's trainers call for per-token
log-probabilities (`fused_lm_head=True`): rows are grouped by their common beginning, that
beginning runs once with its keys and values kept in the graph, and each row runs only what is
its own on top of them. Gradients flow back through the shared keys and values, so loss and
gradients are those of the plain forward up to rounding.

Where it does not hold (gradient checkpointing, which keeps no cache, or an architecture that
`engine.supports` does not know) the forward is left as it was and the caller is told why.

This module touches no trainer: it knows only the model's forward and its outputs' fields.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nl2sql_trl.engine import common_length, supports

_MIN_PREFIX = 32


def share_prefixes(model: Any, gradient_checkpointing: bool) -> str:
    """Make `model`'s fused forward share prefixes. Returns "" or why it was left as it was.

    Call it after the trainer's own patch of `forward` (that is: after the trainer was made).
    `model` is the base model inside any PEFT wrapper.
    """
    if gradient_checkpointing:
        return "gradient checkpointing keeps no cache: set gradient_checkpointing to false"
    if not supports(model):
        return f"not known to hold for model type {model.config.model_type!r}"
    inner = model.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        shareable = {"input_ids", "attention_mask", "labels", "fused_lm_head"}
        names = {k for k, v in kwargs.items() if v is not None and k != "use_cache"}
        if args or not kwargs.get("fused_lm_head") or names != shareable:
            return inner(*args, **kwargs)
        groups = _plan(kwargs["input_ids"], kwargs["attention_mask"], kwargs["labels"])
        if all(len(g.rows) == 1 for g in groups):
            return inner(*args, **kwargs)
        return _forward(self, inner, groups, kwargs["input_ids"], kwargs["labels"])

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
        scored = (labels[n] != -100).nonzero()[:, 0]
        # The token before the first scored one must be the row's own: its state is projected.
        first = int(scored[0]) - start if len(scored) else stop - start
        rows.append((input_ids[n, start:stop].tolist(), n, (start, stop), max(0, first - 1)))
    rows.sort(key=lambda row: row[0])
    groups: list[_Group] = []
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
        groups.append(_Group(tuple(members), tuple(spans), most if len(members) > 1 else 0))
        at = end
    return groups


def _forward(model: Any, inner: Any, groups: Sequence[_Group], ids: Any, labels: Any) -> Any:
    """The fused outputs of the whole batch, put together from those of its groups."""
    import torch

    fields: dict[str, Any] = {}
    output = None
    for group in groups:
        output = _group_forward(model, inner, group, ids, labels)
        for name, value in output.items():
            if name == "loss" or value is None:
                continue
            if name not in fields:
                fields[name] = value.new_zeros((ids.shape[0], ids.shape[1] - 1))
            columns = []
            for part, n, (start, stop) in zip(value, group.rows, group.spans, strict=True):
                first = start + group.shared
                own = part[: stop - first - 1]
                columns.append((n, first, own))
            fields[name] = _place(fields[name], columns)
    mask = labels[:, 1:] != -100
    fields["label_mask"] = mask
    fields["loss"] = -fields["log_probs"].sum() / mask.sum().clamp(min=1)
    whole = copy.copy(output)
    assert whole is not None
    for name, value in fields.items():
        setattr(whole, name, value)
    assert isinstance(whole.log_probs, torch.Tensor)
    return whole


def _place(target: Any, columns: Sequence[tuple[int, int, Any]]) -> Any:
    """`target` with each piece written at its row and column, in the graph."""
    target = target.clone() if target.requires_grad else target
    for n, first, piece in columns:
        target[n, first : first + len(piece)] = piece
    return target


def _group_forward(model: Any, inner: Any, group: _Group, ids: Any, labels: Any) -> Any:
    """Fused outputs of one group's own tokens, (rows, own length), on the shared prefix."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    own, targets = [], []
    for n, (start, stop) in zip(group.rows, group.spans, strict=True):
        first = start + group.shared
        own.append(ids[n, first:stop])
        targets.append(torch.cat([labels[n, first + 1 : stop], labels.new_full((1,), -100)]))
    own_ids = pad_sequence(own, batch_first=True)
    shift_labels = pad_sequence(targets, batch_first=True, padding_value=-100)
    if not group.shared:
        return inner(input_ids=own_ids, shift_labels=shift_labels, fused_lm_head=True)
    start = group.spans[0][0]
    prefix = ids[group.rows[0], start : start + group.shared][None]
    cache = model.base_model(input_ids=prefix, use_cache=True).past_key_values
    cache.batch_repeat_interleave(len(group.rows))
    positions = torch.arange(group.shared, group.shared + own_ids.shape[1], device=ids.device)
    # Padding is on the right: causality hides it, so no mask is needed.
    return inner(
        input_ids=own_ids,
        position_ids=positions[None],
        past_key_values=cache,
        shift_labels=shift_labels,
        fused_lm_head=True,
    )
