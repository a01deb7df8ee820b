"""Keys and values of a batch whose rows share beginnings, kept without copies.

A shared beginning (`Prefix`) is kept once; what a row has of its own has a place in one table
(`Table`). Prefixes that are decoded together are put side by side (`Stack`), so that one product
serves them all. Kept in the precision that the model computes in.

No attention here (`attending.py`) and no sampling (`engine.py`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


_STEP = 32  # tokens by which rows get more room
_MOST_STACKS = 8


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
    copy. Buffers: per layer (places, key-value heads, `length` tokens, head dim). `length` stays
    near what rows need: products over whole buffers are quicker than over a part of each row.
    """

    def __init__(self, layers: int) -> None:
        self.rows: list[Row] = []
        self.active = 0
        self.length = 0
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

    def reserve(self, tokens: int) -> None:
        """Have room for rows of `tokens` tokens, and not for more than twice as many."""
        needed = max([tokens, *(row.cached for row in self.rows)])
        needed += -needed % _STEP
        if not needed <= self.length <= 2 * needed:
            self.length = needed

    def room(
        self, buffers: list[torch.Tensor | None], layer: int, like: torch.Tensor
    ) -> torch.Tensor:
        """The layer's buffer, (places, heads, `length`, dim), with a place for each row."""
        old, places = buffers[layer], len(self.rows)
        if old is not None and old.shape[0] >= places and old.shape[2] == self.length:
            return old
        if old is not None:
            places = max(places, old.shape[0])
        new = like.new_zeros((places, like.shape[1], self.length, like.shape[3]))
        if old is not None:
            kept = min(old.shape[2], self.length)
            new[: old.shape[0], :, :kept] = old[:, :, :kept]
        buffers[layer] = new
        return new


class Stack:
    """Shared beginnings side by side, padded to the longest.

    keys, values: per layer (beginnings, key-value heads, length, head dim). hidden: to be added to
    scores, minus infinity on padding, (beginnings, 1, length); None where nothing is padding.
    """

    def __init__(self, prefixes: Sequence[Prefix]) -> None:
        # Kept alive: another prefix must not get the identity of one that is gone.
        self.prefixes = tuple(prefixes)
        self.places = {id(prefix): n for n, prefix in enumerate(prefixes)}
        layers = range(len(prefixes[0].keys))
        self.keys = [_side_by_side([p.keys[n] for p in prefixes]) for n in layers]
        self.values = [_side_by_side([p.values[n] for p in prefixes]) for n in layers]
        self.hidden = _padding([len(p.ids) for p in prefixes], self.keys[0])


class Stacks:
    """The stacks that rows at work need: new beginnings get stacks of their own.

    All are made anew when most of what they hold has gone, or when they are many.
    """

    def __init__(self) -> None:
        self._stacks: list[Stack] = []

    def over(self, rows: Sequence[Row]) -> list[Stack]:
        """Stacks that hold the beginning of each row."""
        members: dict[int, int] = {}
        for row in rows:
            members[id(row.prefix)] = members.get(id(row.prefix), 0) + 1
        used: dict[int, Prefix] = {id(r.prefix): r.prefix for r in rows if r.prefix.ids}
        held = {key for stack in self._stacks for key in stack.places}
        new = _alike([p for key, p in used.items() if key not in held], members)
        if len(held | used.keys()) > 2 * len(used) or len(self._stacks) + len(new) > _MOST_STACKS:
            self._stacks, new = [], _alike(list(used.values()), members)
        self._stacks += [Stack(part) for part in new]
        return self._stacks


def _alike(prefixes: list[Prefix], members: dict[int, int]) -> list[list[Prefix]]:
    """Prefixes of like length and number of rows together: at most half of a product is padding."""
    parts: list[list[Prefix]] = []
    for prefix in sorted(prefixes, key=lambda p: (len(p.ids), members[id(p)])):
        if parts:
            part = [*parts[-1], prefix]
            needed = sum(len(p.ids) * members[id(p)] for p in part)
            if len(part) * len(prefix.ids) * max(members[id(p)] for p in part) <= 2 * needed:
                parts[-1] = part
                continue
        parts.append([prefix])
    return parts


def _side_by_side(tensors: list[torch.Tensor]) -> torch.Tensor:
    """(heads, length, dim) each, as one with zeros where one is shorter."""
    if len(tensors) == 1:
        return tensors[0][None]
    length = max(t.shape[1] for t in tensors)
    heads, _, dim = tensors[0].shape
    found = tensors[0].new_zeros((len(tensors), heads, length, dim))
    for target, tensor in zip(found, tensors, strict=True):
        target[:, : tensor.shape[1]] = tensor
    return found


def _padding(lengths: list[int], like: torch.Tensor) -> torch.Tensor | None:
    import torch

    if min(lengths) == max(lengths):
        return None
    seen = torch.tensor(lengths, device=like.device)[:, None]
    beyond = (torch.arange(max(lengths), device=like.device)[None] >= seen)[:, None]
    return like.new_zeros(beyond.shape).masked_fill_(beyond, float("-inf"))
