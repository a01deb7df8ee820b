"""Attention of a batch whose rows share beginnings: each beginning's part is computed for all.

Attention is split in two parts, over the shared beginning and over the row's own tokens, and
merged by their log-sum-exp (the partial-softmax identity of Milakov and Gimelshein 2018; the
split by prefix as in Juravsky et al. 2024, "Hydragen"). It is exact up to rounding: each part is in
the precision that the model computes in, the merging in fp32.

transformers calls `attention` under the name ATTENTION; the view that says which rows are at work
comes in through the model call as `shared`. Keys and values are kept by `kvcache.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nl2sql_trl.kvcache import Prefix, Row, Stack, Table

if TYPE_CHECKING:
    import torch

ATTENTION = "nl2sql_shared_prefix"
_BLOCK = 64  # queries of a prefix at once: their scores stay in a core's cache


class PrefixView:
    """Attention while a prefix is computed: causal, and its keys and values are kept."""

    def __init__(self, prefix: Prefix) -> None:
        self.prefix = prefix

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Output (rows, heads, width, dim) of one layer; its new keys and values are kept."""
        import torch

        # Copies: they may be parts of larger products.
        self.prefix.keys.append(k[0].contiguous())
        self.prefix.values.append(v[0].contiguous())
        if q.device.type != "cpu":
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=1.0, enable_gqa=True
            )
        (_, heads, tokens, dim), kv = q.shape, k.shape[1]
        out = q.new_empty((heads, tokens, dim))
        for start in range(0, tokens, _BLOCK):
            stop = min(start + _BLOCK, tokens)
            scores = torch.bmm(
                q[0, :, start:stop].reshape(kv, -1, dim), k[0, :, :stop].transpose(1, 2)
            )
            own = scores.view(kv, -1, stop - start, stop)[..., start:]
            later = torch.ones(own.shape[-2:], dtype=torch.bool).triu_(1)
            own.masked_fill_(later, float("-inf"))
            found = torch.bmm(scores.softmax(-1), v[0, :, :stop])
            out[:, start:stop] = found.view(heads, -1, dim)
        return out[None]


class RowsView:
    """Attention of rows' new tokens over their shared beginning and their own earlier tokens."""

    def __init__(
        self,
        table: Table,
        start: int,
        rows: Sequence[Row],
        width: int,
        stacks: Sequence[Stack],
        device: torch.device,
    ) -> None:
        import torch

        self.table, self.places = table, slice(start, start + len(rows))
        self.order = torch.arange(len(rows), device=device)[:, None]
        past = torch.tensor([r.cached for r in rows], device=device)
        table.reserve(int(past.max()) + width)
        self.positions = past[:, None] + torch.arange(width, device=device)
        seen = torch.arange(table.length, device=device)[None, None] <= self.positions[:, :, None]
        # Added to scores: (rows, 1, 1, width, length). Filling by a mask is slower.
        self.hidden = torch.where(seen[:, None, None], 0.0, float("-inf"))
        # A stack's queries: for each of its beginnings the rows on it, as many for each.
        self.parts: list[tuple[Stack, torch.Tensor]] = []
        found: dict[int, int] = {}  # where a row is among the outputs of all stacks
        total = 0
        for stack in stacks:
            members: list[list[int]] = [[] for _ in stack.places]
            for n, row in enumerate(rows):
                if id(row.prefix) in stack.places:
                    members[stack.places[id(row.prefix)]].append(n)
            most = max(map(len, members))
            if most:
                for g, numbers in enumerate(members):
                    found |= {n: total + g * most + i for i, n in enumerate(numbers)}
                filled = [numbers + [0] * (most - len(numbers)) for numbers in members]
                self.parts.append((stack, torch.tensor(filled, device=device)))
                total += len(members) * most
        self.alone = len(found) < len(rows)
        self.found = torch.tensor([found.get(n, total) for n in range(len(rows))], device=device)

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Output (rows, heads, width, dim) of one layer; its new keys and values are kept."""
        import torch

        own = []
        for buffers, new in ((self.table.keys, k), (self.table.values, v)):
            rows = self.table.room(buffers, layer, new)[self.places]
            rows[self.order, :, self.positions] = new.transpose(1, 2)
            own.append(rows.flatten(0, 1))
        keys, values = own
        batch, heads, width, dim = q.shape
        kv = k.shape[1]
        q = q.reshape(batch, kv, -1, dim)
        scores = torch.bmm(q.flatten(0, 1), keys.transpose(1, 2))
        self.hidden = self.hidden.to(scores.dtype)
        scores.view(batch, kv, -1, width, keys.shape[1]).add_(self.hidden)
        out, total = _partial(scores, values)
        if self.parts:
            shared = [self._shared(layer, q, stack, at) for stack, at in self.parts]
            if self.alone:
                nothing = q.new_zeros((1, *q.shape[1:3], dim + 1), dtype=torch.float32)
                nothing[..., -1] = float("-inf")
                shared.append(nothing)
            both = shared[0] if len(shared) == 1 else torch.cat(shared)
            both = both.index_select(0, self.found).flatten(0, 1)
            out = torch.lerp(both[..., :-1], out, (total - both[..., -1:]).sigmoid_())
        return out.view(batch, heads, width, dim)

    @staticmethod
    def _shared(layer: int, q: torch.Tensor, stack: Stack, at: torch.Tensor) -> torch.Tensor:
        """A stack's part: (beginnings x rows on each, kv heads, queries, dim and log-sum-exp)."""
        import torch

        keys, values = stack.keys[layer], stack.values[layer]
        beginnings, kv, length, dim = keys.shape
        queries = q.index_select(0, at.flatten()).view(beginnings, -1, kv, q.shape[2], dim)
        queries = queries.transpose(1, 2).reshape(beginnings * kv, -1, dim)
        scores = torch.bmm(queries, keys.flatten(0, 1).transpose(1, 2))
        if stack.hidden is not None:
            scores.view(beginnings, -1, length).add_(stack.hidden)
        out = torch.cat(_partial(scores, values.flatten(0, 1)), -1)
        out = out.view(beginnings, kv, -1, q.shape[2], dim + 1)
        return out.transpose(1, 2).reshape(-1, kv, q.shape[2], dim + 1)


def _partial(scores: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp, in fp32, of one part of a softmax."""
    import torch

    weights = scores.softmax(-1)
    # The largest weight is exp(largest score - log-sum-exp).
    # In fp32 the search for it is several times as fast as in bf16, the conversion included.
    top, share = (x.float().amax(-1, keepdim=True) for x in (scores, weights))
    return torch.bmm(weights, values).float(), top - share.log()


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

    # Under autocast the rotation of queries and keys leaves them in fp32.
    kept = value.dtype
    with torch.autocast(query.device.type, enabled=False):
        query = (query * scaling).to(kept)
        out = shared.attend(module.layer_idx, query, key.to(kept), value)
    return out.transpose(1, 2).to(kept), None


def register() -> None:
    """Make `attention` known to transformers under the name ATTENTION."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attention)
