"""Keeps the rollouts of an evaluation as they end, so that one that was stopped goes on.

What the model sampled is written down, a line a trajectory, and nothing else: when the same
evaluation starts again the tool loop runs as it did, with these turns in the model's place, and
the tool answers anew. So nothing that is derived can be out of date.

A file of another evaluation (other weights, prompts, sampling or limits) is not used. Training
does not need this: it resumes from checkpoints.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql_trl.policy import Policy
from nl2sql_trl.records import Sample, Trajectory
from nl2sql_trl.runs import append_jsonl, read_jsonl, write_jsonl

if TYPE_CHECKING:
    import torch

_VALUES = 64  # of each parameter that the digest looks at: one step of training changes them


class Kept:
    """The finished rollouts of one pass, in `path`; a row is known by its position.

    `of` says what they are rollouts of: what `path` holds of anything else is dropped.
    """

    def __init__(self, path: Path, of: Mapping[str, Any]) -> None:
        self.path = path
        head = {"of": hashlib.sha256(json.dumps(of, default=str).encode()).hexdigest()}
        try:
            lines = read_jsonl(path)
        except ValueError:  # damaged: not worth more than a new start
            lines = []
        #: turns of the rows that ended before
        self.samples: dict[int, list[Sample]] = {}
        if lines[:1] == [head]:
            for line in lines[1:]:
                self.samples[line["row"]] = [
                    Sample(tuple(ids), tuple(logprobs)) for ids, logprobs in line["turns"]
                ]
        # Anew and whole: a line that was cut must not run into the next.
        write_jsonl(path, [head, *(_line(row, turns) for row, turns in self.samples.items())])

    def add(self, row: int, trajectory: Trajectory) -> None:
        """Write down a trajectory that ended."""
        if row not in self.samples:
            append_jsonl(self.path, [_line(row, [t.sample for t in trajectory.model_turns])])

    def over(self, policy: Policy) -> Replay:
        """The policy, with these rows' turns played instead of sampled."""
        return Replay(policy, self.samples)

    def drop(self) -> None:
        """The pass is whole and stored elsewhere."""
        self.path.unlink(missing_ok=True)


def _line(row: int, turns: Sequence[Sample]) -> dict[str, Any]:
    return {"row": row, "turns": [[turn.ids, turn.logprobs] for turn in turns]}


class Replay:
    """A policy that plays the turns of some rows and leaves the others to `policy`."""

    def __init__(self, policy: Policy, samples: Mapping[int, Sequence[Sample]]) -> None:
        self._policy, self._samples, self.codec = policy, samples, policy.codec

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """The policy's own; every row starts from its first turn."""
        self._left = {row: list(turns) for row, turns in self._samples.items()}
        self._ready: list[tuple[int, Sample]] = []
        self._asked: set[int] = set()
        with self._policy.session():
            yield

    def submit(self, key: int, ids: Sequence[int], max_tokens: int) -> None:
        """Play the row's next turn, or ask the policy where none is kept."""
        if self._left.get(key):
            self._ready.append((key, self._left[key].pop(0)))
        else:
            self._asked.add(key)
            self._policy.submit(key, ids, max_tokens)

    def step(self) -> list[tuple[int, Sample]]:
        """What is played comes first."""
        ready, self._ready = self._ready, []
        return ready or self._policy.step()

    def release(self, key: int) -> None:
        """The policy hears of the rows that it was asked for."""
        if key in self._asked:
            self._policy.release(key)


def weights_digest(model: torch.nn.Module) -> str:
    """A digest of some values of every parameter: tells one training's weights from another's."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        values = parameter.detach().flatten()[:_VALUES].float().cpu()
        digest.update(f"{name} {tuple(parameter.shape)}".encode() + values.numpy().tobytes())
    return digest.hexdigest()
