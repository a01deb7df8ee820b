"""Both sides sample the same tokens: hooks on the sampling, none on what leads up to it.

Each side computes its logits and draws from them as it always does; what was drawn is then
replaced. In transformers' `generate` that is a logits processor, in our engine the function that
draws. TRL's loop and ours see the same texts, so they take the same turns and run the same SQL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from transformers import LogitsProcessor

from benchmarks.cases import Cast
from nl2sql_trl import engine
from nl2sql_trl.engine import TransformersPolicy
from nl2sql_trl.generate import GeneratePolicy
from nl2sql_trl.policy import ScriptedPolicy
from nl2sql_trl.records import Sample
from nl2sql_trl.sampling import Sampling, draw


class ForcedProcessor(LogitsProcessor):
    """Leaves one token a row: the next of `rows`, then whatever ended it (padding follows)."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self._drawn = 0

    def start(self, rows: list[list[int]]) -> None:
        """The tokens of the next call of `generate`, by row of its batch."""
        self.rows, self._drawn = rows, 0

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> Any:
        """Scores (rows, vocabulary) of which only the forced token's is left."""
        ids = [row[min(self._drawn, len(row) - 1)] for row in self.rows]
        self._drawn += 1
        at = torch.tensor(ids, device=scores.device)[:, None]
        return torch.full_like(scores, float("-inf")).scatter(1, at, 0.0)


def force_generate(model: Any) -> ForcedProcessor:
    """Give every `model.generate` a forced processor; returned, to be told what to force."""
    processor, generate = ForcedProcessor(), model.generate

    def forced(*args: Any, **kwargs: Any) -> Any:
        return generate(*args, logits_processor=[processor], **kwargs)

    model.generate = forced
    return processor


class ForcedEngine(TransformersPolicy):
    """Our engine, whose draws are the cast's tokens. Log-probabilities are the model's."""

    def __init__(self, cast: Cast, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cast = cast
        self._tokens: dict[int, Iterator[int]] = {}

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """With the engine's random numbers and its draw replaced."""
        before = engine.random, engine.draw

        def row_random(seed: str) -> Any:
            tokens = self._tokens[int(seed.rpartition(":")[2])]
            return SimpleNamespace(random=lambda: next(tokens))

        engine.random, engine.draw = SimpleNamespace(Random=row_random), forced_draw
        try:
            with super().session():
                yield
        finally:
            engine.random, engine.draw = before

    def submit(self, key: int, ids: Sequence[int], max_tokens: int) -> None:
        """A new key becomes its prompt's next member."""
        if key not in self._tokens:
            turns = self._cast.member(ids)
            self._tokens[key] = iter([token for turn in turns for token in turn])
        super().submit(key, ids, max_tokens)


def forced_draw(
    logits: torch.Tensor, sampling: Sampling, forced: Sequence[int]
) -> tuple[list[int], list[float]]:
    """Draws as the engine does, then takes the forced ids and their log-probabilities instead."""
    draw(logits, sampling, [0.5] * len(forced))
    at = torch.tensor(forced, device=logits.device)[:, None]
    scaled = logits / (sampling.temperature or 1.0)
    logprobs = scaled.gather(1, at)[:, 0] - scaled.logsumexp(-1)
    return list(forced), logprobs.tolist()


class ForcedGenerate(GeneratePolicy):
    """Plain `generate` in batches, with the cast's tokens."""

    def __init__(self, cast: Cast, model: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, *args, **kwargs)
        self._cast = cast
        self._processor = force_generate(model)
        self._turns: dict[int, Iterator[list[int]]] = {}
        self._next: list[list[int]] = []

    def submit(self, key: int, ids: Sequence[int], max_tokens: int) -> None:
        """A new key becomes its prompt's next member; an old one plays its next turn."""
        if key not in self._turns:
            self._turns[key] = iter(self._cast.member(ids))
        self._next.append(next(self._turns[key]))
        super().submit(key, ids, max_tokens)

    def step(self) -> list[tuple[int, Sample]]:
        """Generate for one batch."""
        batch, self._next = self._next[: self.batch], self._next[self.batch :]
        self._processor.start(batch)
        return super().step()


class Played(ScriptedPolicy):
    """The cast's tokens without any model: for an update whose rollouts cost nothing."""

    def __init__(self, cast: Cast, codec: Any) -> None:
        super().__init__([], codec)
        self._cast = cast
        self._rows: dict[int, Iterator[list[int]]] = {}

    def submit(self, key: int, ids: Sequence[int], max_tokens: int) -> None:
        """A new key becomes its prompt's next member."""
        if key not in self._rows:
            self._rows[key] = iter(self._cast.member(ids))
        super().submit(key, ids, max_tokens)

    def step(self) -> list[tuple[int, Sample]]:
        """The next turn of every queued row."""
        queue, self._queue = self._queue, []
        turns = [(key, next(self._rows[key])) for key, _ in queue]
        return [(key, Sample(tuple(ids), (0.0,) * len(ids))) for key, ids in turns]
