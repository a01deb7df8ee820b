"""Resampling of groups, evaluation during training, and the best checkpoint, in real training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import chat_tokenizer, random_model, write_spider_folder
from test_trainer import config

from nl2sql_trl.callbacks import RunCallback
from nl2sql_trl.models import load_model
from nl2sql_trl.policy import ScriptedPolicy
from nl2sql_trl.prompts import Codec, answer_text
from nl2sql_trl.records import Trajectory
from nl2sql_trl.rewards import executable
from nl2sql_trl.rollout import RolloutConfig
from nl2sql_trl.runs import read_jsonl
from nl2sql_trl.saving import save_run_model
from nl2sql_trl.task import Task, make_task
from nl2sql_trl.trainer import SqlGRPOTrainer

CODEC = Codec(chat_tokenizer())
RUNS, NONE = answer_text("SELECT 1"), "No idea."


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = write_spider_folder(tmp_path_factory.mktemp("features") / "spider")
    return make_task(str(folder), "train", CODEC, rollout=RolloutConfig(budget=200))


class Rounds(SqlGRPOTrainer):
    """Keeps what each round was asked and what TRL was given."""

    asked: list[list[str]]
    given: list[list[Trajectory]]

    def _roll_out(self, task: Any, prompts: Any, seconds: Any) -> Any:
        self.asked.append([p.key for p in prompts[::4]])
        return super()._roll_out(task, prompts, seconds)

    def run_rollout(self, prompts: Any) -> Any:
        done = super().run_rollout(prompts)
        self.given.append(done["trajectory"])
        return done


def trainer(task: Task, run_dir: Path, script: Any, **settings: Any) -> Rounds:
    """`script(trainer, round)` gives the answers of a round, one a rollout, over and over."""
    rounds = -1

    def policy(trainer: SqlGRPOTrainer, seed: int) -> ScriptedPolicy:
        nonlocal rounds
        rounds += 1
        answers = script(trainer, rounds)
        return ScriptedPolicy(lambda key, turn: answers[key % len(answers)], CODEC)

    ours = {n: settings.pop(n) for n in ("resample_rounds", "eval_task") if n in settings}
    made = Rounds(
        random_model(),
        config(run_dir, max_completion_length=200, max_steps=1, **settings),
        task,
        CODEC,
        [executable],
        run_dir=run_dir,
        policy_factory=policy,
        callbacks=[RunCallback(run_dir)],
        **ours,
    )
    made.asked, made.given = [], []
    return made


def test_even_groups_are_replaced_before_the_update_and_both_shares_are_logged(
    task: Task, tmp_path: Path
) -> None:
    # Two groups of four. At first one is all right and one mixed; the new one is mixed.
    def script(_: Any, number: int) -> list[str]:
        return [RUNS] * 4 + [RUNS, NONE] * 2 if number == 0 else [RUNS, NONE]

    made = trainer(task, tmp_path, script, resample_rounds=3)
    made.train()
    first, second = made.asked
    assert len(first) == 2
    assert len(second) == 1
    assert second[0] not in first
    assert [t.prompt.key for t in made.given[0][::4]] == [second[0], first[1]]
    [row] = read_jsonl(tmp_path / "metrics.jsonl")
    assert row["groups/zero_std_at_first"] == 0.5
    assert row["frac_reward_zero_std"] == 0.0
    assert row["reward"] == 0.5
    assert row["grad_norm"] > 0


def test_a_step_whose_groups_stay_even_goes_on_after_the_cap(task: Task, tmp_path: Path) -> None:
    made = trainer(task, tmp_path, lambda *_: [NONE], resample_rounds=2)
    made.train()
    assert [len(keys) for keys in made.asked] == [2, 2, 2]
    assert len({key for keys in made.asked for key in keys}) == 6
    [row] = read_jsonl(tmp_path / "metrics.jsonl")
    assert row["groups/zero_std_at_first"] == row["frac_reward_zero_std"] == 1.0


def test_resampling_wants_whole_groups_on_each_process(task: Task, tmp_path: Path) -> None:
    halves = config(tmp_path)
    halves.per_device_train_batch_size = 1  # of four processes: a group lies on two
    with pytest.raises(ValueError, match="whole groups on each process"):
        SqlGRPOTrainer(random_model(), halves, task, CODEC, [executable], resample_rounds=1)


def test_nothing_is_resampled_where_it_is_not_asked_for(task: Task, tmp_path: Path) -> None:
    made = trainer(task, tmp_path, lambda *_: [NONE])
    made.train()
    assert len(made.asked) == 1
    assert "groups/zero_std_at_first" not in read_jsonl(tmp_path / "metrics.jsonl")[0]


def evaluating(task: Task, run_dir: Path, script: Any, **settings: Any) -> Rounds:
    return trainer(
        task, run_dir, script, eval_task=task, eval_strategy="steps", eval_steps=1,
        num_generations_eval=1, per_device_eval_batch_size=4, resample_rounds=2, **settings,
    )  # fmt: skip


def test_evaluation_during_training_is_logged_apart_and_resamples_nothing(
    task: Task, tmp_path: Path
) -> None:
    def script(made: Rounds, _: int) -> list[str]:
        return [RUNS, NONE] if made.model.training else [RUNS, RUNS, RUNS, NONE]

    made = evaluating(task, tmp_path, script)
    made.train()
    assert len(read_jsonl(tmp_path / "metrics.jsonl")) == 1
    [row] = read_jsonl(tmp_path / "evaluations.jsonl")
    assert row["eval_reward"] == 0.75
    assert row["step"] == 1
    assert len(made.asked) == 1 + len(task.examples) / 4
    asked = {t.prompt.key for done in made.given[1:] for t in done}
    assert asked == set(task.examples)
    assert all(r["step"] == 1 for r in read_jsonl(tmp_path / "trajectories.jsonl"))


def test_evaluation_during_training_is_greedy(task: Task, tmp_path: Path) -> None:
    made = SqlGRPOTrainer(
        random_model(),
        config(tmp_path, max_completion_length=200, num_generations_eval=1),
        task,
        CODEC,
        [executable],
        eval_task=task,
    )
    for training, temperature in ((True, 1.0), (False, 0.0)):
        made.model.train(training)
        assert made._policy_factory(made, 0).sampling.temperature == temperature  # type: ignore[attr-defined]


def test_the_best_checkpoint_is_kept_beside_the_last_and_is_what_a_run_ends_with(
    task: Task, tmp_path: Path
) -> None:
    def script(made: Rounds, _: int) -> list[str]:
        good = made.model.training or made.state.global_step == 2
        return [RUNS, NONE] if good else [NONE]

    made = evaluating(
        task, tmp_path, script, save_strategy="steps", save_steps=1, save_total_limit=2,
        load_best_model_at_end=True, metric_for_best_model="eval_reward", greater_is_better=True,
    )  # fmt: skip
    made.args.max_steps = 4
    made.train()
    assert made.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    assert {p.name for p in tmp_path.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    save_run_model(made, tmp_path / "model")
    best, last, final = (
        load_model(str(tmp_path / name)).state_dict()
        for name in ("checkpoint-2", "checkpoint-4", "model")
    )
    assert all(torch.equal(final[name], best[name]) for name in final)
    assert any(not torch.equal(final[name], last[name]) for name in final)
