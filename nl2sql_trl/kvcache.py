"""Keys and values of a batch whose rows share beginnings, and the attention over them.

A shared beginning (`Prefix`) is kept once; what a row has of its own has a place in one table
(`Table`). Attention is split in two parts, over the shared prefix and over the row's own tokens,
and merged by their log-sum-exp (the partial-softmax identity of Milakov and Gimelshein 2018; the
split by prefix as in Juravsky et al. 2024, "Hydragen"). It is exact up to rounding.

transformers calls `attention` under the name ATTENTION; the view that says which rows are at work
comes in through the model call as `shared`. What is sampled, and when, is `engine.py`'s.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ATTENTION = "nl2sql_shared_prefix"


@dataclass(slots=True)
class Prefix:
    """Keys and values of a shared beginning: per layer (key-value heads, length, head dim)."""

    ids: tuple[int, ...]
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)


@dataclass(slots=True)
class Row:
    """A context on its way: the shared beginning, and what it has of its own."""

    key: int
    prefix: Prefix
    ids: list[int]  # context so far, sampled tokens included
    rng: random.Random
    limit: int
    cached: int = 0  # how many of its own tokens (after the prefix) have keys and values
    new_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def pending(self) -> list[int]:
        """Tokens that have no keys and values yet."""
        return self.ids[len(self.prefix.ids) + self.cached :]


class Table:
    """The rows and the keys and values of their own tokens, active rows first.

    A row's place in `rows` is its place in the buffers, so any run of rows is read without a
    copy. Buffers: per layer (places, key-value heads, tokens, head dim), fp32.
    """

    def __init__(self, layers: int) -> None:
        self.rows: list[Row] = []
        self.active = 0
        self.keys: list[torch.Tensor | None] = [None] * layers
        self.values: list[torch.Tensor | None] = [None] * layers

    def idle(self) -> list[Row]:
        """Rows that wait for their next turn."""
        return self.rows[self.active :]

    def add(self, row: Row) -> None:
        """Put a new, idle row at the end."""
        self.rows.append(row)

    def activate(self, row: Row) -> None:
        """Move an idle row to the end of the active ones."""
        self._swap(self._place(row), self.active)
        self.active += 1

    def deactivate(self, row: Row) -> None:
        """Move an active row to the front of the idle ones."""
        self.active -= 1
        self._swap(self._place(row), self.active)

    def remove(self, key: int) -> None:
        """Take an idle row out."""
        place = next(n for n in range(self.active, len(self.rows)) if self.rows[n].key == key)
        self._swap(place, len(self.rows) - 1)
        self.rows.pop()

    def _place(self, row: Row) -> int:
        return next(n for n, r in enumerate(self.rows) if r is row)

    def _swap(self, a: int, b: int) -> None:
        if a == b:
            return
        rows = self.rows
        rows[a], rows[b] = rows[b], rows[a]
        tokens = max(rows[a].cached, rows[b].cached)
        for buffer in (*self.keys, *self.values):
            if buffer is not None and tokens and max(a, b) < buffer.shape[0]:
                held = buffer[a, :, :tokens].clone()
                buffer[a, :, :tokens] = buffer[b, :, :tokens]
                buffer[b, :, :tokens] = held

    def room(
        self, buffers: list[torch.Tensor | None], layer: int, like: torch.Tensor, tokens: int
    ) -> torch.Tensor:
        """The layer's buffer, grown to hold all rows and `tokens` tokens."""
        import torch

        old, places = buffers[layer], len(self.rows)
        if old is not None and old.shape[0] >= places and old.shape[2] >= tokens:
            return old
        length = max(64, tokens)
        if old is not None:
            places = max(places, old.shape[0])
            length = old.shape[2] if tokens <= old.shape[2] else tokens + tokens // 2
        new = like.new_zeros((places, like.shape[1], length, like.shape[3]), dtype=torch.float32)
        if old is not None:
            new[: old.shape[0], :, : old.shape[2]] = old
        buffers[layer] = new
        return new


class PrefixView:
    """Attention while a prefix is computed: causal, and its keys and values are kept."""

    def __init__(self, prefix: Prefix) -> None:
        self.prefix = prefix

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Output (rows, heads, width, dim) of one layer; its new keys and values are kept."""
        from torch.nn.functional import scaled_dot_product_attention

        k, v = k.float(), v.float()
        self.prefix.keys.append(k[0])
        self.prefix.values.append(v[0])
        return scaled_dot_product_attention(
            q.float(), k, v, is_causal=True, scale=scale, enable_gqa=True
        )


class RowsView:
    """Attention of rows' new tokens over their shared prefix and their own earlier tokens."""

    def __init__(
        self, table: Table, start: int, rows: list[Row], width: int, device: torch.device
    ) -> None:
        import torch

        self.table, self.places = table, slice(start, start + len(rows))
        self.order = torch.arange(len(rows), device=device)[:, None]
        past = torch.tensor([r.cached for r in rows], device=device)
        self.length = int(past.max()) + width
        self.positions = past[:, None] + torch.arange(width, device=device)
        seen = torch.arange(self.length, device=device)[None, None] <= self.positions[:, :, None]
        self.hidden = ~seen[:, None, None]  # (rows, 1, 1, width, length)
        members: dict[int, list[int]] = {}
        for n, row in enumerate(rows):
            members.setdefault(id(row.prefix), []).append(n)
        self.parts = [
            (rows[at[0]].prefix, torch.tensor(at, device=device))
            for at in members.values()
            if rows[at[0]].prefix.ids
        ]

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Output (rows, heads, width, dim) of one layer; its new keys and values are kept."""
        import torch

        own = []
        for buffers, new in ((self.table.keys, k), (self.table.values, v)):
            rows = self.table.room(buffers, layer, new, self.length)[self.places]
            rows[self.order, :, self.positions] = new.transpose(1, 2).float()
            own.append(rows[:, :, : self.length])
        keys, values = own
        batch, heads, width, dim = q.shape
        kv = k.shape[1]
        q = (q.float() * scale).view(batch, kv, -1, width, dim)
        scores = q.flatten(2, 3) @ keys.transpose(2, 3)
        scores = scores.view(batch, kv, -1, width, self.length).masked_fill_(
            self.hidden, float("-inf")
        )
        top, total, out = _partial(scores.flatten(2, 3), values)
        if self.parts:
            # Each prefix is one product for all rows on it; then all rows are merged at once.
            p_top, p_total = torch.full_like(top, float("-inf")), torch.zeros_like(total)
            p_out = torch.zeros_like(out)
            for prefix, at in self.parts:
                part = q[at].transpose(0, 1).reshape(kv, -1, dim)
                found = _partial(part @ prefix.keys[layer].transpose(1, 2), prefix.values[layer])
                for target, x in zip((p_top, p_total, p_out), found, strict=True):
                    target[at] = x.view(kv, len(at), -1, x.shape[-1]).transpose(0, 1)
            new_top = top.maximum(p_top)
            ours, theirs = (top - new_top).exp_(), (p_top - new_top).exp_()
            out = out.mul_(ours).add_(p_out.mul_(theirs))
            total = total.mul_(ours).add_(p_total.mul_(theirs))
        return (out / total).view(batch, heads, width, dim)


def _partial(
    scores: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Maximum, sum of exponentials and unnormalised output of one part of a softmax."""
    top = scores.amax(-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    return top, weights.sum(-1, keepdim=True), weights @ values


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    scaling: float,
    shared: PrefixView | RowsView,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls; `shared` came in through the model call."""
    import torch

    with torch.autocast(query.device.type, enabled=False):
        out = shared.attend(module.layer_idx, query, key, value, scaling)
    return out.transpose(1, 2).to(query.dtype), None


def register() -> None:
    """Make `attention` known to transformers under the name ATTENTION."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attention)
