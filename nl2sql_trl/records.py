"""The records that flow through the project, one way:

    Example -> Prompt -> Trajectory (turns, stop, answer) -> Verdict -> reward -> report

All are frozen. What TRL wants of a rollout (completion ids, mask, log-probabilities) is derived
from a trajectory's turns, so the mask cannot disagree with the tokens.

This module holds data only: it runs no SQL, renders no text and imports nothing of the project.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

SqlValue = None | int | float | str | bytes
Row = tuple[SqlValue, ...]

Outcome = Literal["ok", "error", "timeout", "denied", "too_big", "crashed"]
Stop = Literal["answer", "budget", "turn_limit"]
CallProblem = Literal["malformed", "unknown_tool", "bad_arguments", "extra_call"]


@dataclass(frozen=True, slots=True)
class Example:
    """One question on one database, with its gold query.

    `row` is the position in the split's file, from 0; `gold` is never shown to a policy.
    """

    row: int
    split: str
    question: str
    gold: str
    db_id: str
    db_path: Path


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What one bounded execution gave. `rows` is empty unless `outcome` is "ok".

    `complete` is False when the row cap ended the fetch: then `rows` holds the first ones only.
    Text that is not UTF-8 keeps its bytes as surrogate escapes, so different bytes stay different.
    `reads` are the tables, as (table, ""), and columns, as (table, column), that the query reads by
    SQLite's own account, in lower case; a result out of a cache has none.
    """

    outcome: Outcome
    columns: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    complete: bool = True
    error: str = ""
    seconds: float = field(default=0.0, compare=False)
    reads: frozenset[tuple[str, str]] = field(default=frozenset(), compare=False)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a policy is given: chat messages, their token ids, and the database to query."""

    messages: tuple[dict[str, str], ...]
    ids: tuple[int, ...]
    db_path: Path
    key: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids that a policy sampled for one turn, with the log-probability of each.

    `logprobs` has one entry an id (natural log, under the sampling distribution).
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise ValueError(f"{len(self.ids)} ids with {len(self.logprobs)} log-probabilities")


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call as the model wrote it, and what it was told.

    `problem` is None for a well-formed call; otherwise nothing ran and `response` says why.
    `query` and `arguments` are what `run_sql` and a tool of the user's own were called with.
    `result` is what SQLite gave, or a tool's error.
    """

    query: str | None
    response: str
    problem: CallProblem | None = None
    result: QueryResult | None = None
    tool: str = "run_sql"
    arguments: Mapping[str, object] | None = None

    @property
    def failed(self) -> bool:
        """Whether the model was told of an error, its own or the query's."""
        return self.problem is not None or (self.result is not None and self.result.outcome != "ok")


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """A turn that the policy sampled: the only tokens that are trained on."""

    sample: Sample
    text: str

    @property
    def ids(self) -> tuple[int, ...]:
        """The sampled ids, the end token included."""
        return self.sample.ids


@dataclass(frozen=True, slots=True)
class ToolTurn:
    """Tokens that the environment forced: tool responses with the template's glue around them."""

    ids: tuple[int, ...]
    calls: tuple[Call, ...]


Turn = ModelTurn | ToolTurn


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished rollout. It always ends on a model turn.

    `answer` is the SQL of the last model turn's fence, None when there is none.
    `stop` says what ended it: the model's answer, the token budget, or the turn limit.
    """

    prompt: Prompt
    turns: tuple[Turn, ...]
    stop: Stop
    answer: str | None

    @property
    def completion_ids(self) -> list[int]:
        """Ids after the prompt, in order: sampled and forced ones."""
        return [i for turn in self.turns for i in turn.ids]

    @property
    def env_mask(self) -> list[int]:
        """One entry a completion id: 1 where the model sampled it, 0 where it was forced."""
        return [int(isinstance(turn, ModelTurn)) for turn in self.turns for _ in turn.ids]

    @property
    def logprobs(self) -> list[float]:
        """One entry a completion id; forced tokens have 0.0."""
        return [
            value
            for turn in self.turns
            for value in (
                turn.sample.logprobs if isinstance(turn, ModelTurn) else [0.0] * len(turn.ids)
            )
        ]

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call in order, the malformed ones among them."""
        return tuple(c for t in self.turns if isinstance(t, ToolTurn) for c in t.calls)

    @property
    def model_turns(self) -> tuple[ModelTurn, ...]:
        """The turns that the policy sampled."""
        return tuple(t for t in self.turns if isinstance(t, ModelTurn))

    @property
    def ran_its_answer(self) -> bool:
        """Whether the answer is a query that the model ran before (white space and `;` aside)."""
        if self.answer is None:
            return False
        ran = {normalise(c.query) for c in self.calls if c.query is not None and not c.problem}
        return normalise(self.answer) in ran


Reason = Literal[
    "correct",
    "no_answer",
    "not_executable",
    "not_allowed",
    "timeout",
    "too_big",
    "crashed",
    "wrong_rows",
    "wrong_order",
    "wrong_columns",
    "wrong_on_suite",
    "empty",
    "gold_unusable",
]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer is right and, if not, the first thing that is wrong with it.

    `detail` is for people: SQLite's message, or the two row counts. `rows_share` is the share
    of gold rows that the answer returned, less what it returned beyond them (0 to 1), and
    `reads_share` that of the tables and columns that answer and gold both read.
    `empty_match` marks a right answer where gold and answer both return nothing.
    """

    correct: bool
    reason: Reason
    detail: str = ""
    executable: bool = False
    rows_share: float = 0.0
    empty_match: bool = False
    reads_share: float = 0.0


def normalise(query: str) -> str:
    """A query with white space folded and the final `;` gone, for telling whether two are one."""
    return " ".join(query.split()).rstrip("; ")
