"""What is measured: one job is one side's run of one case, in one precision.

No torch here: the command that lists jobs and starts their processes stays light.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Side = Literal["ours", "trl"]
Precision = Literal["autocast", "bf16", "fp32"]

# autocast: fp32 weights under bf16 autocast, as the recipes and TRL's default have it. bf16: bf16
# weights. A whole step is measured as recipes run it.
PARTS: dict[str, tuple[Precision, ...]] = {
    "rollout": ("autocast", "bf16", "fp32"),
    "update": ("autocast", "fp32"),
    "step": ("autocast",),
    "evaluate": ("autocast", "fp32"),
    "sft": ("autocast", "fp32"),
    "growth": ("autocast",),
}


# The points of the growth table: prompt lengths, group sizes, turns.
LENGTHS, GROUPS, TURNS = (260, 600, 1000, 1500, 2000), (2, 4, 8, 16), (1, 2, 3, 4)
# `tiny` has room for 1,024 tokens.
QUICK = ((300, 500), (2, 4), (1, 2))
# In a micro-batch of TRL's: what about 12 GiB hold.
MOST_TOKENS = 5000


@dataclass(frozen=True, slots=True)
class Job:
    """One measurement.

    prompts: how many; each is run `group` times, in `turns` turns of about `tokens` tokens each
    (tool tokens among them). prompt_tokens: prompts of about this length are chosen, or made to
    have it with `exact`. micro: rows of a micro-batch. rows: of evaluation and warm start.
    gradients: the file that gets the gradients of the update. quick: growth stays small.
    """

    part: str
    side: Side
    precision: Precision
    model: str = "smollm2-135m"
    data: str = "pocket"
    device: str = "cpu"
    prompts: int = 4
    group: int = 8
    turns: int = 2
    tokens: int = 50
    prompt_tokens: int = 600
    exact: bool = False
    quick: bool = False
    micro: int = 8
    rows: int = 96
    seed: int = 0
    gradients: str | None = None

    @property
    def warm_up(self) -> Job:
        """The same on little, so that what happens once in a process isn't measured."""
        return replace(self, prompts=1, group=2, turns=1, tokens=1, micro=2, rows=2, gradients=None)


@dataclass(frozen=True, slots=True)
class Process:
    """Jobs that run one after the other in a process of their own, and where that is shown."""

    name: str
    jobs: tuple[Job, ...]


def processes(part: str, base: Job, precisions: Sequence[str], folder: str) -> Iterator[Process]:
    """One round of a part: both sides in turn. `folder` is for the gradients of a first round."""
    for precision in PARTS[part]:
        if precision not in precisions:
            continue
        job = replace(base, part=part, precision=precision)
        saved = folder and part in ("update", "sft")
        for side in ("trl", "ours"):
            jobs: tuple[Job, ...] = (replace(job, side=side),)
            if part == "growth":
                jobs = tuple(growth(jobs[0]))
            if saved:
                jobs = (replace(jobs[0], gradients=f"{folder}/{part}-{precision}-{side}"),)
            yield Process(f"{part}, {precision}, {side}", jobs)
        if saved and part == "update":
            # How far two runs of TRL itself are from each other.
            half = replace(job, side="trl", micro=job.micro // 2)
            half = replace(half, gradients=f"{folder}/{part}-{precision}-half")
            yield Process(f"{part}, {precision}, trl in half micro-batches", (half,))


def growth(job: Job) -> list[Job]:
    """The points of the growth table: one number changes, the others stay at those of `job`."""
    job = replace(job, prompts=1, exact=True)
    lengths, groups, turns = QUICK if job.quick else (LENGTHS, GROUPS, TURNS)
    points = [replace(job, prompt_tokens=n) for n in lengths]
    points += [replace(job, group=n) for n in groups]
    points += [replace(job, turns=n) for n in turns]
    return [replace(p, micro=_fitting(p)) for p in dict.fromkeys(points)]


def _fitting(job: Job) -> int:
    """The whole group, or as much of it as TRL's update has memory for."""
    micro = job.group
    while job.side == "trl" and micro > 1 and micro * job.prompt_tokens > MOST_TOKENS:
        micro //= 2
    return micro
