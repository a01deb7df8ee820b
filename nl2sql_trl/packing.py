"""Training attention over rows packed end to end, with beginnings that several rows share.

A packed batch is one sequence: a shared beginning, the tokens that each of its rows has of its
own, the next beginning, and so on. No token is padding and none is there twice. Each span attends
to itself, causally, and to the whole of its beginning; gradients of the beginning's keys and
values are the sum over its rows.

On a CPU the attention is written out: torch's fused one is slow there in bf16. Its backward pass
computes the weights again (as in Dao et al. 2022, "FlashAttention", section 3.1), so nothing of
their size is kept. Elsewhere it is torch's, span by span.

transformers calls `attention` under the name PACKED; the layout comes in through the model call as
`packed`. What is packed together is `sharing.py`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

PACKED = "nl2sql_packed"
_BLOCK = 128
_softmax_backward = torch.ops.aten._softmax_backward_data


class Span(NamedTuple):
    """A run of tokens from `start` to `stop`, after the beginning from `begin` to `end`."""

    start: int
    stop: int
    begin: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Packed:
    """One sequence: token ids and positions, both (1, tokens), and the spans that tile it."""

    ids: Tensor
    positions: Tensor
    spans: tuple[Span, ...]


def pack(groups: Sequence[tuple[Tensor, Sequence[Tensor]]]) -> tuple[Packed, list[list[int]]]:
    """Groups of (beginning, own tokens of each row), all ids 1-D; a beginning may be empty.

    Also returns where each row's own tokens start, group by group.
    """
    parts: list[Tensor] = []
    positions: list[Tensor] = []
    spans: list[Span] = []
    starts: list[list[int]] = []
    at = 0
    for beginning, rows in groups:
        begin, shared = at, len(beginning)
        if shared:
            spans += _blocks(at, at + shared, beginning.device)
            parts.append(beginning)
            positions.append(torch.arange(shared, device=beginning.device))
            at += shared
        starts.append([])
        for own in rows:
            if shared:
                spans.append(Span(at, at + len(own), begin, begin + shared))
            else:
                spans += _blocks(at, at + len(own), own.device)
            parts.append(own)
            positions.append(torch.arange(shared, shared + len(own), device=own.device))
            starts[-1].append(at)
            at += len(own)
    return Packed(torch.cat(parts)[None], torch.cat(positions)[None], tuple(spans)), starts


def _blocks(start: int, stop: int, device: torch.device) -> list[Span]:
    """Tokens that see all earlier ones, as spans.

    On a CPU in blocks: their scores stay in its caches, and few that no token sees are computed.
    """
    size = _BLOCK if device.type == "cpu" else stop - start
    return [Span(at, min(at + size, stop), start, at) for at in range(start, stop, size)]


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: object,
    scaling: float,
    packed: tuple[Span, ...],
    **_: object,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls. Query (1, heads, tokens, head dim)."""
    # Under autocast the rotation leaves queries and keys in fp32: scaled there, rounded once.
    query, key = (query * scaling).to(value.dtype), key.to(value.dtype)
    if query.device.type == "cpu":
        out = _Attention.apply(query[0], key[0], value[0], packed)
    else:
        out = _fused(query, key, value, packed)[0]
    return out.transpose(0, 1)[None], None


def _fused(q: Tensor, k: Tensor, v: Tensor, spans: Sequence[Span]) -> Tensor:
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.functional import scaled_dot_product_attention

    outs = []
    for start, stop, begin, end in spans:
        keys, values = (
            torch.cat((x[:, :, begin:end], x[:, :, start:stop]), 2) if end > begin
            else x[:, :, start:stop]
            for x in (k, v)
        )  # fmt: skip
        mask = causal_lower_right(stop - start, keys.shape[2])
        outs.append(
            scaled_dot_product_attention(
                q[:, :, start:stop], keys, values, mask, scale=1.0, enable_gqa=True
            )
        )
    return torch.cat(outs, 2)


class _Attention(torch.autograd.Function):
    """Softmax attention of every span. q (heads, tokens, dim); k and v (key-value heads, ...).

    q comes scaled. The query heads of one key-value head are stacked, so keys and values are not
    repeated.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, spans: Sequence[Span]) -> Tensor:
        out = torch.empty_like(q)
        with torch.autocast("cpu", enabled=False):
            for span in spans:
                weights = _weights(_stacked(q, span, len(k)), _seen(k, span), span)
                _put(out, span, torch.bmm(weights, _seen(v, span)))
        ctx.save_for_backward(q, k, v)
        ctx.spans = spans
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        d_q = torch.empty_like(q)
        # Many rows add to one beginning: the sums are kept in fp32.
        d_k, d_v = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (k, v))
        d_out = d_out.to(v.dtype)
        for span in ctx.spans:
            keys, queries = _seen(k, span), _stacked(q, span, len(k))
            above = _stacked(d_out, span, len(k))
            weights = _weights(queries, keys, span)
            _add(d_v, span, torch.bmm(weights.transpose(1, 2), above))
            d_weights = torch.bmm(above, _seen(v, span).transpose(1, 2))
            d_scores = _softmax_backward(d_weights, weights, -1, weights.dtype)
            _put(d_q, span, torch.bmm(d_scores, keys))
            _add(d_k, span, torch.bmm(d_scores.transpose(1, 2), queries))
        return d_q, d_k.to(k.dtype), d_v.to(v.dtype), None


def _seen(x: Tensor, span: Span) -> Tensor:
    """What a span attends to, of keys or values: its beginning and itself."""
    if span.end == span.start:
        return x[:, span.begin : span.stop]
    own = x[:, span.start : span.stop]
    return torch.cat((x[:, span.begin : span.end], own), 1) if span.end > span.begin else own


def _stacked(x: Tensor, span: Span, kv: int) -> Tensor:
    """A span of (heads, tokens, dim) as (key-value heads, heads of each x own tokens, dim)."""
    return x[:, span.start : span.stop].reshape(kv, -1, x.shape[-1])


def _put(target: Tensor, span: Span, stacked: Tensor) -> None:
    heads, _, dim = target.shape
    target[:, span.start : span.stop] = stacked.view(heads, -1, dim)


def _add(target: Tensor, span: Span, both: Tensor) -> None:
    shared = span.end - span.begin
    target[:, span.start : span.stop] += both[:, shared:]
    if shared:
        target[:, span.begin : span.end] += both[:, :shared]


def _weights(queries: Tensor, keys: Tensor, span: Span) -> Tensor:
    """Softmax of the scores, 0 where a token would see a later one of its span."""
    width = span.stop - span.start
    scores = torch.bmm(queries, keys.transpose(1, 2))
    own = scores.view(len(scores), -1, width, scores.shape[-1])[..., -width:]
    own += _later(width, scores.dtype)
    return scores.softmax(-1)


@lru_cache(maxsize=64)
def _later(width: int, dtype: torch.dtype) -> Tensor:
    return torch.full((width, width), float("-inf"), dtype=dtype).triu_(1)


def register() -> None:
    """Make `attention` known to transformers under the name PACKED."""
    from transformers import AttentionInterface

    AttentionInterface.register(PACKED, attention)
