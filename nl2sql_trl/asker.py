"""Answers questions on a SQLite file with a trained model, by the training's own tool loop.

    asker = Asker.load("runs/demo/grpo")
    asker.ask("How many hotels are there?", "my.sqlite")      # a notebook shows steps and rows
    asker.ask("How many hotels are there?", "my.sqlite", samples=8)    # votes by the rows

The database is opened read-only and immutable and cannot be changed. Immutable also means that
changes which another program has not yet merged into the file (`-wal`, `-journal`) are not seen.
Nothing is judged here, for there is no gold; the command line is in `ask.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from html import escape
from pathlib import Path
from typing import Any

from nl2sql_trl import results
from nl2sql_trl.database import DatabaseError, ddl, execute
from nl2sql_trl.datafiles import DataError, check_database
from nl2sql_trl.policy import Policy
from nl2sql_trl.prompts import Codec, messages
from nl2sql_trl.records import Prompt, QueryResult, Trajectory, Turn
from nl2sql_trl.rewards import ANSWER_LIMITS
from nl2sql_trl.rollout import RolloutConfig, rollout
from nl2sql_trl.sampling import Sampling
from nl2sql_trl.textrows import ROWS, cell, counted, plain
from nl2sql_trl.viewer import show

_MIN_BUDGET = 64  # tokens; with less there is no call, let alone an answer
PolicyOf = Callable[[Sampling, int], Policy]
_STOPS = {"budget": "the token budget ran out", "turn_limit": "the turn limit was reached"}


@dataclass(frozen=True, slots=True)
class Vote:
    """One result of several samples: a query that gives it, and how many samples did."""

    sql: str
    count: int


@dataclass(frozen=True, slots=True, repr=False)
class Asked:
    """A question with the trajectory that answers it, and what its answer returned.

    `result` is None without an answer. `votes` are the results that ran, the winner first;
    `samples` are all trajectories. A notebook shows the steps and the rows.
    """

    question: str
    trajectory: Trajectory
    result: QueryResult | None
    votes: tuple[Vote, ...]
    samples: tuple[Trajectory, ...]

    @property
    def sql(self) -> str | None:
        """The answer, whether it ran or not; None if there is none."""
        return self.trajectory.answer

    @property
    def problem(self) -> str:
        """Why there are no rows to show; empty if the answer ran."""
        if self.result is None:
            ended = _STOPS.get(self.trajectory.stop, "its last message holds no SQL")
            return f"the model gave no answer: {ended}"
        return (
            "" if self.result.outcome == "ok" else f"the answer does not run: {self.result.error}"
        )

    @property
    def voted(self) -> str:
        """How the vote went, to stand behind the number of rows; empty for one sample."""
        total = len(self.samples)
        return f"; {self.votes[0].count} of {total} samples return these" if total > 1 else ""

    def __repr__(self) -> str:
        rows = self.problem
        if self.result is not None and not rows:
            rows = counted(self.result, len(self.result.rows))
        return f"Asked({self.question!r}: {plain(self.sql or 'no SQL')!r}, {plain(rows)})"

    def _repr_html_(self) -> str:
        steps = show(self.trajectory).html
        if self.result is None or self.problem:
            return steps + f"<p>{escape(plain(self.problem))}</p>"
        shown = self.result.rows[:ROWS]
        head, *body = (
            "".join(f"<{tag}>{escape(cell(value))}</{tag}>" for value in row)
            for tag, row in (("th", self.result.columns), *(("td", row) for row in shown))
        )
        rows = "".join(f"<tr>{row}</tr>" for row in body)
        return (
            f"{steps}<div class='tex2jax_ignore mathjax_ignore' style='overflow-x:auto'><table>"
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
            f"<p>{counted(self.result, len(shown))}{self.voted}</p>"
        )


@dataclass(frozen=True, slots=True)
class Asker:
    """A loaded model that answers questions. `policy(sampling, seed)` makes a rollout's policy.

    room: tokens that the model can look back on, prompt included; None where it says nothing.
    """

    codec: Codec
    policy: PolicyOf
    config: RolloutConfig
    room: int | None = None

    @classmethod
    def load(cls, model: str | Path, config: RolloutConfig | None = None) -> Asker:
        """The asker of a run directory, model folder, adapter folder, hub name or name of ours.

        Raises ModelError or TemplateError if it cannot be used.
        """
        import torch

        from nl2sql_trl.generate import model_policy
        from nl2sql_trl.models import load_model, load_tokenizer

        name = str(model)
        codec = Codec(load_tokenizer(name))
        loaded = load_model(name).to("cuda" if torch.cuda.is_available() else "cpu")

        def policy(sampling: Sampling, seed: int) -> Policy:
            return model_policy(loaded, codec, sampling, seed=seed, autocast=False)

        room = getattr(loaded.config, "max_position_embeddings", None)
        return cls(codec, policy, config or trained_limits(name), room)

    def ask(
        self,
        question: str,
        db: str | Path,
        *,
        samples: int = 1,
        temperature: float = 1.0,
        seed: int = 0,
        on_turn: Callable[[int, Turn], None] | None = None,
        on_done: Callable[[int, Trajectory], None] | None = None,
    ) -> Asked:
        """Answer a question on the SQLite file `db`, greedily or by the vote of several samples.

        Samples are drawn at `temperature` and vote by the rows that their answers return
        (`results.by_votes`); one sample is greedy. Raises DatabaseError for a file that is no
        sound database, and DataError if it has no tables or the schema does not fit the model.
        """
        if samples < 1 or (samples > 1 and not temperature > 0):
            raise ValueError("samples must be at least 1, and their temperature above 0")
        path, question = Path(db), question.encode("utf-8", "replace").decode()
        if not question.strip():
            raise DataError("the question is empty")
        chat = messages(question, schema(path))
        prompt = Prompt(chat, self.codec.prompt_ids(chat), path)
        policy = self.policy(Sampling(temperature if samples > 1 else 0.0), seed)
        config = self._limits(len(prompt.ids), path)
        done = rollout([prompt] * samples, policy, config, on_done=on_done, on_turn=on_turn)
        found = [None if t.answer is None else execute(path, t.answer, ANSWER_LIMITS) for t in done]
        ranked = results.by_votes(found, [results.mean_logprob(t) for t in done])
        chosen = ranked[0][0] if ranked else 0
        votes = (Vote(done[group[0]].answer or "", len(group)) for group in ranked)
        return Asked(question, done[chosen], found[chosen], tuple(votes), tuple(done))

    def _limits(self, prompt: int, path: Path) -> RolloutConfig:
        """The limits, the budget cut to what the model can look back on."""
        if self.room is None or prompt + self.config.budget <= self.room:
            return self.config
        budget = self.room - prompt
        if budget < _MIN_BUDGET:
            raise DataError(
                f"the schema of {path} and the question take {prompt} tokens, and the model has "
                f"room for {self.room}: ask on a file with fewer tables"
            )
        reserve = min(self.config.reserve_tokens, budget - 1)
        return replace(self.config, budget=budget, reserve_tokens=reserve)


def schema(path: Path) -> str:
    """The DDL of a database that can be asked about. Raises DatabaseError or DataError."""
    if not path.is_file():
        raise DatabaseError(f"there is no database file {path}")
    check_database(path)
    found = ddl(path)
    if not found:
        raise DataError(f"the database {path} has no tables")
    return found


def trained_limits(model: str) -> RolloutConfig:
    """The limits that a model was trained with, or the package's own where its files name none."""
    return known_limits(model) or RolloutConfig()


def known_limits(model: str) -> RolloutConfig | None:
    """The limits that a model's own files or its run's name: an exported model has them in its
    run.json, one that GRPO trained in its run's config.yaml.
    """
    import yaml

    from nl2sql_trl.models import resolve

    folder = Path(resolve(model))
    found: Any = None
    try:
        if (folder / "run.json").is_file():
            found = json.loads((folder / "run.json").read_bytes()).get("rollout")
        if found is None and (folder.parent / "manifest.json").is_file():
            config = yaml.safe_load((folder.parent / "config.yaml").read_bytes())
            found = {"budget": config["max_completion_length"]} | {
                name: config[name]
                for name in ("max_turns", "truncation", "tool_chars", "reserve_tokens")
            }
        return RolloutConfig(**found) if found else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
        # A warm start's config names no limits; a file of another version may lack some.
        return None


def loop_limits(config: RolloutConfig) -> dict[str, Any]:
    """What of the limits decides how a trajectory goes, as plain values."""
    others = ("sql_threads", "limits")
    return {f.name: getattr(config, f.name) for f in fields(RolloutConfig) if f.name not in others}
