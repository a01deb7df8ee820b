"""A policy over a transformers model that computes a shared prompt once and keeps its caches.

Contexts that begin alike (the members of a group, all questions on one schema) share one copy of
the keys and values of their common prefix. Each row has a slot for the rest of its context, kept
between turns, so a later turn computes the tool's tokens and the new ones only. Rows join and
leave the batch at any decode step; each has its own token limit.

Attention is split in two parts, over the shared prefix and over the row's own tokens, and merged
by their log-sum-exp (the partial-softmax identity of Milakov and Gimelshein 2018; the split by
prefix as in Juravsky et al. 2024, "Hydragen"). It is exact up to rounding.

A row's draws depend on the seed, its key and its position alone, not on what else is in the
batch. Models: the Llama family without sliding windows (`supports`); others go through
`generate.py`. One device; no collectives.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nl2sql_trl.prompts import Codec
from nl2sql_trl.records import Sample

if TYPE_CHECKING:
    import torch

_ATTENTION = "nl2sql_shared_prefix"
_FAMILIES = {"llama", "qwen2", "qwen3"}
_MIN_PREFIX = 32


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. temperature 0 is greedy; top_p 1 and top_k 0 mean no cut."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0 or self.min_p < 0:
            raise ValueError(f"sampling parameters out of range: {self}")


def supports(model: Any) -> bool:
    """Whether the shared-prefix attention holds for this model's architecture."""
    config = model.config
    sliding = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    return config.model_type in _FAMILIES and not sliding


@dataclass(slots=True)
class _Prefix:
    """Keys and values of a shared beginning: per layer (key-value heads, length, head dim)."""

    ids: tuple[int, ...]
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)


@dataclass(slots=True)
class _Row:
    key: int
    prefix: _Prefix
    ids: list[int]  # context so far, sampled tokens included
    rng: random.Random
    limit: int
    cached: int = 0  # how many of its own tokens (after the prefix) have keys and values
    new_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def pending(self) -> list[int]:
        return self.ids[len(self.prefix.ids) + self.cached :]


class TransformersPolicy:
    """Samples from `model` with shared prefixes. Not thread-safe.

    `max_rows` rows are decoded together; more wait their turn. With `autocast` the forward runs
    under bf16 autocast, the weights cast once a session.
    """

    def __init__(
        self,
        model: Any,
        codec: Codec,
        sampling: Sampling | None = None,
        *,
        seed: int = 0,
        max_rows: int = 64,
        autocast: bool = False,
    ) -> None:
        self.model, self.codec = model, codec
        self.sampling = sampling or Sampling()
        self.seed, self.max_rows, self.autocast = seed, max_rows, autocast
        self._decoder, self._head = model.get_decoder(), model.get_output_embeddings()
        self._device = next(model.parameters()).device
        _register()

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Eval mode, our attention and empty caches; all as it was when the session ends."""
        import torch

        config, was_training = self.model.config, self.model.training
        before = config._attn_implementation
        self._queue: dict[int, tuple[tuple[int, ...], int]] = {}
        self._prefixes: dict[tuple[int, ...], _Prefix] = {}
        self._table = _Table(config.num_hidden_layers)
        self.model.eval()
        config._attn_implementation = _ATTENTION
        # Not inference_mode: autocast keeps its cast weights for ordinary tensors only.
        cast = torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self.autocast)
        try:
            with torch.no_grad(), cast:
                yield
        finally:
            config._attn_implementation = before
            self.model.train(was_training)
            del self._queue, self._prefixes, self._table

    def submit(self, key: int, ids: Sequence[int], max_tokens: int) -> None:
        """Queue a context; one that continues the key's earlier context keeps its cache."""
        if max_tokens < 1:
            raise ValueError(f"a turn needs at least one token, not {max_tokens}")
        self._queue[key] = (tuple(ids), max_tokens)

    def release(self, key: int) -> None:
        """Free the row's place in the table."""
        self._table.remove(key)

    def step(self) -> list[tuple[int, Sample]]:
        """Admit what is queued, then decode until some rows end (or 16 tokens were drawn)."""
        done = self._admit()
        enough = max(1, self._table.active // 8)
        for _ in range(16):
            if not self._table.active or len(done) >= enough:
                break
            done += self._extend(0, self._table.active)
        return done

    def _admit(self) -> list[tuple[int, Sample]]:
        """Give queued contexts a row: continuations first, then new ones by shared prefix."""
        table, rows = self._table, []
        for row in [r for r in table.idle() if r.key in self._queue]:
            ids, limit = self._queue.pop(row.key)
            if list(ids[: len(row.ids)]) != row.ids:
                raise ValueError(f"the context of {row.key} does not continue its earlier one")
            row.ids, row.limit, row.new_ids, row.logprobs = list(ids), limit, [], []
            rows.append(row)
        for key in self._group(self.max_rows - len(table.rows)):
            ids, limit = self._queue.pop(key)
            rng = random.Random(f"{self.seed}:{key}")
            row = _Row(key, self._prefix_of(ids), list(ids), rng, limit)
            table.add(row)
            rows.append(row)
        # Rows of like length together: little is computed on padding. Then by prefix: its part
        # of attention is one product.
        rows.sort(key=lambda r: (len(r.pending) // 16, id(r.prefix)))
        first = table.active
        for row in rows:
            table.activate(row)
        done: list[tuple[int, Sample]] = []
        # From the back: rows that end at once leave the table's active part without gaps.
        for start in range(first + (len(rows) - 1) // 32 * 32, first - 1, -32):
            done += self._extend(start, min(start + 32, first + len(rows)))
        return done

    def _group(self, room: int) -> list[int]:
        """Up to `room` queued keys; prefixes that are shared among them are put in place."""
        order = sorted(self._queue, key=lambda k: self._queue[k][0])[: max(0, room)]
        # Neighbours in sorted order share the longest beginnings.
        start = 0
        while start < len(order):
            first = self._queue[order[start]][0]
            common, end = len(first) - 1, start + 1
            while end < len(order):
                shared = common_length(first, self._queue[order[end]][0])
                if shared < max(_MIN_PREFIX, common // 2):
                    break
                common, end = min(common, shared), end + 1
            if end - start > 1 and common >= _MIN_PREFIX:
                self._plan(first[:common])
            start = end
        return sorted(order)

    def _plan(self, ids: tuple[int, ...]) -> None:
        if not any(known[: len(ids)] == ids for known in self._prefixes):
            self._prefixes.setdefault(ids, _Prefix(ids))

    def _prefix_of(self, ids: tuple[int, ...]) -> _Prefix:
        """The longest known prefix that leaves at least one token, computed if need be."""
        best = _Prefix(())
        for known in list(self._prefixes):
            shared = min(common_length(known, ids), len(ids) - 1)
            if shared >= _MIN_PREFIX and shared > len(best.ids):
                best = self._cut(self._prefixes[known], shared)
        return best

    def _cut(self, prefix: _Prefix, length: int) -> _Prefix:
        if not prefix.keys:
            self._prefill(prefix)
        if length == len(prefix.ids):
            return prefix
        ids = prefix.ids[:length]
        if ids not in self._prefixes:
            keys = [k[:, :length] for k in prefix.keys]
            values = [v[:, :length] for v in prefix.values]
            self._prefixes[ids] = _Prefix(ids, keys, values)
        return self._prefixes[ids]

    def _prefill(self, prefix: _Prefix) -> None:
        import torch

        ids = torch.tensor([prefix.ids], device=self._device)
        positions = torch.arange(ids.shape[1], device=self._device)[None]
        self._decoder(ids, position_ids=positions, use_cache=False, shared=_PrefixView(prefix))

    def _extend(self, start: int, stop: int) -> list[tuple[int, Sample]]:
        """Run the pending tokens of rows start to stop, draw one each; returns those that ended."""
        import torch

        rows, device = self._table.rows[start:stop], self._device
        pending = [r.pending for r in rows]
        width = max(map(len, pending))
        ids = torch.tensor([p + [0] * (width - len(p)) for p in pending], device=device)
        view = _RowsView(self._table, start, rows, width, device)
        starts = torch.tensor([len(r.prefix.ids) + r.cached for r in rows], device=device)
        positions = starts[:, None] + torch.arange(width, device=device)
        hidden = self._decoder(ids, position_ids=positions, use_cache=False, shared=view)[0]
        last = torch.tensor([len(p) - 1 for p in pending], device=device)
        logits = self._head(hidden[torch.arange(len(rows), device=device), last]).float()
        drawn, logprobs = draw(logits, self.sampling, [r.rng.random() for r in rows])
        done = []
        for row, tokens, token, logprob in zip(rows, pending, drawn, logprobs, strict=True):
            row.cached += len(tokens)
            row.ids.append(token)
            row.new_ids.append(token)
            row.logprobs.append(logprob)
        # Only now may rows change places: each one's token is counted as cached.
        for row, token in zip(rows, drawn, strict=True):
            if token in self.codec.stop_ids or len(row.new_ids) == row.limit:
                self._table.deactivate(row)
                done.append((row.key, Sample(tuple(row.new_ids), tuple(row.logprobs))))
        return done


def draw(
    logits: torch.Tensor, sampling: Sampling, uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """One token a row by inverting the cumulative distribution at `uniforms` (each in [0, 1)).

    `logits`: (rows, vocabulary), fp32. Returns ids and their natural log-probabilities under
    the distribution that was drawn from (greedy: under the model's own).
    """
    import torch

    if sampling.temperature == 0:
        ids = logits.argmax(-1)
    else:
        logits = _cut_tail(logits / sampling.temperature, sampling)
        cumulative = logits.softmax(-1).double().cumsum(-1)
        points = torch.tensor(uniforms, device=logits.device, dtype=torch.double)[:, None]
        ids = torch.searchsorted(cumulative, points * cumulative[:, -1:], right=True)[:, 0]
        ids = ids.clamp_max(logits.shape[-1] - 1)
    chosen = logits.gather(1, ids[:, None])[:, 0]
    return ids.tolist(), (chosen - logits.logsumexp(-1)).tolist()


def _cut_tail(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Apply top-k, top-p and min-p, in the order that transformers applies them."""
    if sampling.top_k:
        kept = logits.topk(min(sampling.top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kept, float("-inf"))
    if sampling.top_p < 1:
        ranked, order = logits.sort(-1)
        drop = ranked.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        drop[:, -1] = False
        logits = logits.masked_fill(drop.scatter(1, order, drop), float("-inf"))
    if sampling.min_p:
        probabilities = logits.softmax(-1)
        least = probabilities.amax(-1, keepdim=True) * sampling.min_p
        logits = logits.masked_fill(probabilities < least, float("-inf"))
    return logits


class _Table:
    """The rows and the keys and values of their own tokens, active rows first.

    A row's place in `rows` is its place in the buffers, so any run of rows is read without a
    copy. Buffers: per layer (places, key-value heads, tokens, head dim), fp32.
    """

    def __init__(self, layers: int) -> None:
        self.rows: list[_Row] = []
        self.active = 0
        self.keys: list[torch.Tensor | None] = [None] * layers
        self.values: list[torch.Tensor | None] = [None] * layers

    def idle(self) -> list[_Row]:
        return self.rows[self.active :]

    def add(self, row: _Row) -> None:
        self.rows.append(row)

    def activate(self, row: _Row) -> None:
        self._swap(self._place(row), self.active)
        self.active += 1

    def deactivate(self, row: _Row) -> None:
        self.active -= 1
        self._swap(self._place(row), self.active)

    def remove(self, key: int) -> None:
        """Take an idle row out."""
        place = next(n for n in range(self.active, len(self.rows)) if self.rows[n].key == key)
        self._swap(place, len(self.rows) - 1)
        self.rows.pop()

    def _place(self, row: _Row) -> int:
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


class _PrefixView:
    """Attention while a prefix is computed: causal, and its keys and values are kept."""

    def __init__(self, prefix: _Prefix) -> None:
        self.prefix = prefix

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        from torch.nn.functional import scaled_dot_product_attention

        k, v = k.float(), v.float()
        self.prefix.keys.append(k[0])
        self.prefix.values.append(v[0])
        return scaled_dot_product_attention(
            q.float(), k, v, is_causal=True, scale=scale, enable_gqa=True
        )


class _RowsView:
    """Attention of rows' new tokens over their shared prefix and their own earlier tokens."""

    def __init__(
        self, table: _Table, start: int, rows: list[_Row], width: int, device: torch.device
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
        for prefix, at in self.parts:
            part = q[at].permute(1, 0, 2, 3, 4).reshape(kv, -1, dim)
            scores = part @ prefix.keys[layer].transpose(1, 2)
            p_top, p_total, p_out = (
                x.view(kv, len(at), -1, x.shape[-1]).transpose(0, 1)
                for x in _partial(scores, prefix.values[layer])
            )
            new_top = top[at].maximum(p_top)
            ours, theirs = (top[at] - new_top).exp_(), (p_top - new_top).exp_()
            out[at] = out[at] * ours + p_out * theirs
            total[at] = total[at] * ours + p_total * theirs
        return (out / total).view(batch, heads, width, dim)


def _partial(
    scores: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Maximum, sum of exponentials and unnormalised output of one part of a softmax."""
    top = scores.amax(-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    return top, weights.sum(-1, keepdim=True), weights @ values


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    scaling: float,
    shared: _PrefixView | _RowsView,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls; `shared` came in through the model call."""
    import torch

    with torch.autocast(query.device.type, enabled=False):
        out = shared.attend(module.layer_idx, query, key, value, scaling)
    return out.transpose(1, 2).to(query.dtype), None


def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(_ATTENTION, _attention)


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning of two sequences."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    return next(i for i in range(limit) if a[i] != b[i])
