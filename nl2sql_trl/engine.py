"""A policy over a transformers model that computes a shared prompt once and keeps its caches.

Contexts that begin alike (the members of a group, all questions on one schema) share one copy of
the keys and values of their common prefix. Each row keeps the rest of its context between turns,
so a later turn computes the tool's tokens and the new ones only. Rows join and leave the batch at
any decode step; each has its own token limit. The caches are in `kvcache.py`, the attention in
`attending.py`.

A row's draws depend on the seed, its key and its position alone, not on what else is in the
batch. Models: the Llama family without sliding windows (`supports`); others go through
`generate.py`. One device; no collectives.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

from nl2sql_trl.attending import ATTENTION, PrefixView, RowsView, register
from nl2sql_trl.kvcache import Prefix, Row, Stack, Stacks, Table
from nl2sql_trl.packedlinear import packed
from nl2sql_trl.prompts import Codec
from nl2sql_trl.records import Sample
from nl2sql_trl.sampling import Sampling, draw

_FAMILIES = {"llama", "qwen2", "qwen3"}
_MIN_PREFIX = 32
_LONG = 128  # a new row's tokens, above which they are a beginning of its own: as wide as it is
_PREFILL = 2048  # tokens computed at once for several rows, padding included


def supports(model: Any) -> bool:
    """Whether the shared-prefix attention holds for this model's architecture."""
    config = model.config
    sliding = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    return config.model_type in _FAMILIES and not sliding


class TransformersPolicy:
    """Samples from `model` with shared prefixes. Not thread-safe.

    `max_rows` rows are decoded together; more wait their turn. With `autocast` the forward runs
    under bf16 autocast, the weights cast once a session (`packedlinear.py`).
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
        register()

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Eval mode, our attention and empty caches; all as it was when the session ends."""
        import torch

        config, was_training = self.model.config, self.model.training
        before = config._attn_implementation
        self._queue: dict[int, tuple[tuple[int, ...], int]] = {}
        self._order: list[int] = []  # queued keys without a row, neighbours begin alike
        self._sorted = True
        self._prefixes: dict[tuple[int, ...], Prefix] = {}
        self._table, self._stacks = Table(config.num_hidden_layers), Stacks()
        self.model.eval()
        config._attn_implementation = ATTENTION
        # Not inference_mode: autocast keeps its cast weights for ordinary tensors only.
        cast = torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self.autocast)
        try:
            with torch.no_grad(), cast, packed(self.model, autocast=self.autocast):
                yield
        finally:
            config._attn_implementation = before
            self.model.train(was_training)
            del self._queue, self._order, self._prefixes, self._table, self._stacks

    def submit(self, key: int, ids: Sequence[int], max_tokens: int) -> None:
        """Queue a context; one that continues the key's earlier context keeps its cache."""
        if max_tokens < 1:
            raise ValueError(f"a turn needs at least one token, not {max_tokens}")
        self._queue[key] = (tuple(ids), max_tokens)
        if all(row.key != key for row in self._table.rows):
            self._order.append(key)
            self._sorted = False

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
        for key in self._group(self._room()):
            ids, limit = self._queue.pop(key)
            rng = random.Random(f"{self.seed}:{key}")
            row = Row(key, self._prefix_of(ids), list(ids), rng, limit)
            table.add(row)
            rows.append(row)
        used = {id(row.prefix) for row in table.rows}
        self._prefixes = {ids: p for ids, p in self._prefixes.items() if id(p) in used}
        # Rows of like length together: little is computed on padding. Then by prefix: its part
        # of attention is one product.
        rows.sort(key=lambda r: (len(r.pending) // 16, id(r.prefix)))
        first = table.active
        for row in rows:
            table.activate(row)
        done: list[tuple[int, Sample]] = []
        # From the back: rows that end at once leave the table's active part without gaps.
        for start, stop in reversed(_chunks([len(row.pending) for row in rows])):
            done += self._extend(first + start, first + stop)
        return done

    def _room(self) -> int:
        """How many new rows to take: few at a time would cost as much as many."""
        room = self.max_rows - len(self._table.rows)
        return room if room >= self.max_rows // 8 or not self._table.rows else 0

    def _group(self, room: int) -> list[int]:
        """Up to `room` queued keys; prefixes that are shared among them are put in place."""
        if not self._sorted:
            # From the back of it keys are taken; neighbours share the longest beginnings.
            self._order.sort(key=lambda key: self._queue[key][0], reverse=True)
            self._sorted = True
        order = [self._order.pop() for _ in range(min(room, len(self._order)))]
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
            self._prefixes.setdefault(ids, Prefix(ids))

    def _prefix_of(self, ids: tuple[int, ...]) -> Prefix:
        """The longest known prefix that leaves at least one token, computed if need be.

        Where it leaves many, more than it has, all but the last are a prefix of their own: rows are
        computed and kept as wide as the widest of them.
        """
        best = Prefix(())
        for known in list(self._prefixes):
            shared = min(common_length(known, ids), len(ids) - 1)
            if shared >= _MIN_PREFIX and shared > len(best.ids):
                best = self._cut(self._prefixes[known], shared)
        if len(ids) - len(best.ids) > max(_LONG, len(best.ids)):
            own = Prefix(ids[:-1])
            self._prefixes[own.ids] = own
            self._prefill(own)
            return own
        return best

    def _cut(self, prefix: Prefix, length: int) -> Prefix:
        if not prefix.keys:
            self._prefill(prefix)
        if length == len(prefix.ids):
            return prefix
        ids = prefix.ids[:length]
        if ids not in self._prefixes:
            keys = [k[:, :length].contiguous() for k in prefix.keys]
            values = [v[:, :length].contiguous() for v in prefix.values]
            self._prefixes[ids] = Prefix(ids, keys, values)
        return self._prefixes[ids]

    def _prefill(self, prefix: Prefix) -> None:
        import torch

        ids = torch.tensor([prefix.ids], device=self._device)
        positions = torch.arange(ids.shape[1], device=self._device)[None]
        self._decoder(ids, position_ids=positions, use_cache=False, shared=PrefixView(prefix))

    def _extend(self, start: int, stop: int) -> list[tuple[int, Sample]]:
        """Run the pending tokens of rows start to stop, draw one each; returns those that ended."""
        import torch

        rows, device = self._table.rows[start:stop], self._device
        pending = [r.pending for r in rows]
        width = max(map(len, pending))
        ids = torch.tensor([p + [0] * (width - len(p)) for p in pending], device=device)
        if width == 1:
            stacks = self._stacks.over(rows)
        else:  # products are large enough as they are
            stacks = [Stack([p]) for p in {id(r.prefix): r.prefix for r in rows}.values() if p.ids]
        view = RowsView(self._table, start, rows, width, stacks, device)
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


def _chunks(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of rows that are computed at once, as (first, one after the last)."""
    found: list[tuple[int, int]] = []
    start = 0
    for at in range(1, len(lengths) + 1):
        if at == len(lengths) or max(lengths[start : at + 1]) * (at + 1 - start) > _PREFILL:
            found.append((start, at))
            start = at
    return found


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning of two sequences."""
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    return next(i for i in range(limit) if a[i] != b[i])
