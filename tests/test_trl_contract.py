"""What we rely on in TRL 1.16. On an upgrade this file is the first to fail, and says where.

Models are small and random; completions are scripted, so TRL's own tools loop and our rollout can
be given the very same ones.
"""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import chat_tokenizer, random_model, write_spider_folder
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

from nl2sql_trl.data import to_dataset
from nl2sql_trl.database import execute
from nl2sql_trl.hints import helped
from nl2sql_trl.policy import ScriptedPolicy
from nl2sql_trl.prompts import Codec, answer_text, call_text, extract_answer
from nl2sql_trl.records import Verdict
from nl2sql_trl.rewards import judge
from nl2sql_trl.rollout import RolloutConfig
from nl2sql_trl.task import Task, make_task
from nl2sql_trl.tools import RUN_SQL, render
from nl2sql_trl.trainer import ByEpoch, SqlGRPOTrainer

STEPS = 3
BUDGET = 400
COUNT = "SELECT count(*) FROM singer"
NAMES = "SELECT name FROM singer"


def test_trl_is_the_version_that_this_was_written_against() -> None:
    assert importlib.metadata.version("trl").startswith("1.16.")


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec(chat_tokenizer())


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory, codec: Codec) -> Task:
    folder = write_spider_folder(tmp_path_factory.mktemp("contract") / "spider")
    made = make_task(str(folder), "train", codec, rollout=RolloutConfig(budget=BUDGET))
    # One database: TRL's tools do not know which row they are called for.
    keys = [k for k, e in made.examples.items() if e.db_id == "music"]
    examples = {k: made.examples[k] for k in keys}
    prompts = {k: made.prompts[k] for k in keys}
    return Task(made.data, "train", examples, prompts, (), made.golds, made.rollout)


def config(tmp_path: Path, **changes: Any) -> GRPOConfig:
    settings: dict[str, Any] = {
        "output_dir": str(tmp_path / "run"),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": BUDGET,
        "max_steps": STEPS,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 3,
    }
    return GRPOConfig(**(settings | changes))


def logged(trainer: Any) -> list[dict[str, float]]:
    return [row for row in trainer.state.log_history if "loss" in row]


class Probe(GRPOTrainer):
    """TRL's trainer, keeping what each generation gave to the loss."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        out = super()._generate_and_score_completions(inputs)
        self.__dict__.setdefault("kept", []).append(out)
        return out


class SqlProbe(SqlGRPOTrainer, Probe):
    """Ours, keeping the same."""


def grade(verdict: Verdict) -> float:
    return verdict.correct + 0.5 * verdict.executable + 0.25 * verdict.rows_share


# The same completions by TRL's tools loop and by our rollout


def script(step: int, row: int, turn: int) -> str:
    """What row `row` of the batch says in its turn: right, wrong, failing, at once, after two."""
    right, wrong, fails = (answer_text(q) for q in (COUNT, NAMES, "SELECT nosuch"))
    plays = [
        [call_text(COUNT), right],
        [call_text(NAMES), fails],
        [call_text("SELECT nosuch FROM singer"), call_text(COUNT), right],
        [wrong],
        ["I do not know."],
        ["Let me look.\n" + call_text("SELECT 'Zoë', NULL, 1.5"), right],
        [fails],
    ]
    return plays[(row * 3 + step) % len(plays)][turn]


def named_model(folder: Path) -> Any:
    """A random model that knows where it came from: TRL loads the reference of a KL from there."""
    if not folder.is_dir():
        random_model().save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32")


Script = Callable[[int, int, int], str]


def ours(task: Task, codec: Codec, tmp_path: Path, play: Script = script, **changes: Any) -> Any:
    step = -1

    def policy(trainer: SqlGRPOTrainer, seed: int) -> ScriptedPolicy:
        nonlocal step
        step += 1
        now = step
        return ScriptedPolicy(lambda key, turn: play(now, key, turn), codec)

    return SqlProbe(
        named_model(tmp_path / "model"),
        config(tmp_path, **changes),
        task,
        codec,
        [grade],
        policy_factory=policy,
    )


def trls(
    task: Task,
    codec: Codec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    play: Script = script,
    **changes: Any,
) -> Any:
    db_path = next(iter(task.examples.values())).db_path

    def run_sql(query: str) -> str:
        """Run it.

        Args:
            query: the query
        """
        found = execute(db_path, query)
        return render(replace(found, error=helped(found.error, query, db_path)))

    # The schema in the prompt is made from the docstring: put ours in its place.
    monkeypatch.setattr(
        "transformers.utils.chat_template_utils.get_json_schema", lambda function: RUN_SQL
    )

    def reward(completions: Any, row_key: list[str], **_: Any) -> list[float]:
        values = []
        for completion, key in zip(completions, row_key, strict=True):
            example = task.examples[key]
            answer = extract_answer(completion[-1]["content"])
            gold = task.golds[example.db_path, example.gold]
            values.append(grade(judge(answer, example.gold, gold, example.db_path)))
        return values

    reward.__name__ = "grade"
    trainer = Probe(
        model=named_model(tmp_path / "model"),
        args=config(tmp_path, **changes),
        reward_funcs=[reward],
        train_dataset=to_dataset(list(task.examples.values()), task.prompts.values()),
        processing_class=copy.deepcopy(codec.tokenizer),
        tools=[run_sql],
    )
    # Ours goes through a later epoch in an order of its own.
    sampler = ByEpoch(trainer._get_train_sampler(), lambda: int(trainer.state.epoch or 0))
    monkeypatch.setattr(trainer, "_get_train_sampler", lambda *_: sampler)
    step, turn, rows = -1, 0, []

    def single_turn(prompt_ids: list[Any], *_: Any, num_generations: int, **__: Any) -> Any:
        nonlocal step, turn, rows
        if num_generations > 1:
            step, turn, rows = step + 1, 0, list(range(len(prompt_ids)))
        else:
            # The loop goes on with those whose turn before was a call.
            rows = [row for row in rows if "<tool_call>" in play(step, row, turn)]
            turn += 1
        assert len(rows) == len(prompt_ids)
        texts = [play(step, row, turn) for row in rows]
        encode = codec.tokenizer
        ids = [
            [*encode(text, add_special_tokens=False)["input_ids"], codec.eos_id] for text in texts
        ]
        return ids, None

    def positional(
        prompt_ids: Any, images: Any, fields: Any, num_generations: int, **_: Any
    ) -> Any:
        return single_turn(prompt_ids, num_generations=num_generations)

    monkeypatch.setattr(trainer, "_generate_single_turn", positional)
    return trainer


def rows_of(kept: dict[str, Any]) -> set[tuple[Any, ...]]:
    """Each row's prompt, completion, mask of sampled tokens and advantage, without padding."""
    found = []
    for n in range(len(kept["prompt_ids"])):
        seen = kept["completion_mask"][n].bool()
        found.append(
            (
                tuple(kept["prompt_ids"][n][kept["prompt_mask"][n].bool()].tolist()),
                tuple(kept["completion_ids"][n][seen].tolist()),
                tuple(kept["tool_mask"][n][seen].tolist()),
                round(float(kept["advantages"][n]), 4),
            )
        )
    return set(found)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        {"temperature": 0.7, "loss_type": "dr_grpo"},
        {"beta": 0.05},
    ],
    ids=["one micro-batch", "two micro-batches", "temperature and dr_grpo", "with KL"],
)
def test_our_rollout_and_trls_tools_loop_log_the_same_loss_and_gradient_norm(
    task: Task,
    codec: Codec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
) -> None:
    mine = ours(task, codec, tmp_path / "ours", **changes)
    mine.train()
    theirs = trls(task, codec, tmp_path / "trl", monkeypatch, **changes)
    theirs.train()
    assert not mine.not_shared
    assert len(mine.kept) == len(theirs.kept) == STEPS
    for a, b in zip(mine.kept, theirs.kept, strict=True):
        assert rows_of(a) == rows_of(b)
        assert (a["tool_mask"] == 0).any()
        assert len(set(a["advantages"].tolist())) > 1
    own, other = logged(mine), logged(theirs)
    assert len(own) == len(other) == STEPS
    shared = ["loss", "grad_norm", "reward", "reward_std", "frac_reward_zero_std",
              "completions/mean_length", "completions/max_length", "num_tokens",
              "rewards/grade/mean"]  # fmt: skip
    if "gradient_accumulation_steps" not in changes:
        # TRL averages these over micro-batches, to which it deals the rows out by chance.
        shared += ["entropy", *(["kl"] if "beta" in changes else [])]
    for a, b in zip(own, other, strict=True):
        assert a["grad_norm"] > 0.01
        for name in shared:
            assert a[name] == pytest.approx(b[name], rel=2e-4, abs=2e-6), name
    norms = [row["grad_norm"] for row in own]
    assert len(set(norms)) == STEPS
    for p, q in zip(mine.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


# The same with groups that teach nothing, whose update we leave out


def flat_group(step: int, row: int, turn: int) -> str:
    """The second group's rows are all as good as each other."""
    return "I do not know." if row >= 4 else script(step, row, turn)


def flat_step(step: int, row: int, turn: int) -> str:
    """In the second step no group teaches anything."""
    return "I do not know." if step == 1 else script(step, row, turn)


@pytest.mark.parametrize("play", [flat_group, flat_step], ids=lambda f: f.__name__)
@pytest.mark.parametrize("size", [4, 8])
def test_leaving_out_what_has_no_gradient_changes_neither_logs_nor_weights(
    task: Task,
    codec: Codec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    play: Script,
    size: int,
) -> None:
    changes = {
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": 8 // size,
        "weight_decay": 0.1,
    }
    mine = ours(task, codec, tmp_path / "ours", play, **changes)
    mine.train()
    theirs = trls(task, codec, tmp_path / "trl", monkeypatch, play, **changes)
    theirs.train()
    for a, b in zip(logged(mine), logged(theirs), strict=True):
        for name in ("loss", "grad_norm", "reward", "frac_reward_zero_std"):
            assert a[name] == pytest.approx(b[name], rel=2e-4, abs=2e-6), name
    if (play, size) == (flat_group, 4):
        assert [row["update/skipped_share"] for row in logged(mine)] == [0.5] * STEPS
    if play is flat_step:
        assert [row["update/skipped_share"] for row in logged(mine)] == [0, 1, 0]
        assert logged(mine)[1]["grad_norm"] == 0
    # Adam's momentum moves weights in a step without gradient, too.
    for p, q in zip(mine.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


# What TRL hands to a rollout_func, and what it makes of the answer

Rollout = Callable[[list[Any], Any], dict[str, list[Any]]]


def bare(
    tmp_path: Path,
    task: Task,
    codec: Codec,
    rollout: Rollout,
    rewards: Sequence[Any],
    **changes: Any,
) -> Probe:
    return Probe(
        model=random_model(),
        args=config(tmp_path, **changes),
        reward_funcs=list(rewards),
        train_dataset=to_dataset(list(task.examples.values()), task.prompts.values()),
        processing_class=codec.tokenizer,
        rollout_func=rollout,
    )


def by_row(completions: Any, **_: Any) -> list[float]:
    return [float(n % 3) for n in range(len(completions))]


def fixed(codec: Codec, mask_tail: bool) -> Rollout:
    """Rows of five tokens; with `mask_tail` the middle three are the environment's."""

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        count = len(prompts)
        ids = [[30 + n, 41, 42, 43, codec.eos_id] for n in range(count)]
        out = {
            "prompt_ids": [[5, 6, 7 + n // 4] for n in range(count)],
            "completion_ids": ids,
            "logprobs": [[0.0] * 5] * count,
            "where": [f"row {n}" for n in range(count)],
        }
        return out | ({"env_mask": [[1, 0, 0, 0, 1]] * count} if mask_tail else {})

    return rollout


def test_prompts_arrive_repeated_with_their_row_key_and_fields_reach_the_rewards(
    tmp_path: Path, task: Task, codec: Codec
) -> None:
    seen: list[list[Any]] = []
    given: list[dict[str, Any]] = []

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        seen.append(prompts)
        return fixed(codec, True)(prompts, trainer)

    def reward(completions: Any, **fields: Any) -> list[float]:
        given.append(fields)
        return by_row(completions)

    bare(tmp_path, task, codec, rollout, [reward], max_steps=1).train()
    (prompts,) = seen
    keys = [chat[-1]["row_key"] for chat in prompts]
    assert len(prompts) == 8
    assert keys[0:4] == [keys[0]] * 4
    assert keys[4:8] == [keys[4]] * 4
    assert keys[0] != keys[4]
    for key, chat in zip(keys, prompts, strict=True):
        assert [m["content"] for m in chat] == [m["content"] for m in task.prompts[key].messages]
    (fields,) = given
    assert fields["where"] == [f"row {n}" for n in range(8)]
    assert fields["row_key"] == keys
    assert "env_mask" not in fields


def test_the_extra_key_of_a_message_is_not_rendered(task: Task, codec: Codec) -> None:
    (row,) = to_dataset(list(task.examples.values())[:1], list(task.prompts.values())[:1])
    prompt = next(iter(task.prompts.values()))
    assert codec.prompt_ids(row["prompt"]) == prompt.ids


def expected_gradients(model: Any, kept: dict[str, Any], mask: torch.Tensor) -> dict[str, Any]:
    """Gradients of the dapo loss on the first step, written out: sampled tokens alone."""
    ids = torch.cat([kept["prompt_ids"], kept["completion_ids"]], 1)
    attention = torch.cat([kept["prompt_mask"], kept["completion_mask"]], 1)
    logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1]
    width = kept["completion_ids"].shape[1]
    logprobs = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[:, -width:, 0]
    ratio = (logprobs - logprobs.detach()).exp()
    loss = -(ratio * kept["advantages"][:, None] * mask).sum() / mask.sum()
    model.zero_grad()
    loss.backward()
    return {n: p.grad for n, p in model.named_parameters()}


def norm(gradients: dict[str, torch.Tensor]) -> float:
    return float(torch.stack([g.norm() for g in gradients.values()]).norm())


@pytest.mark.parametrize("mask_tail", [True, False])
def test_the_env_mask_takes_the_environments_tokens_out_of_the_gradient(
    tmp_path: Path, task: Task, codec: Codec, mask_tail: bool
) -> None:
    trainer = bare(tmp_path, task, codec, fixed(codec, mask_tail), [by_row], max_steps=1)
    trainer.train()
    (kept,) = trainer.kept
    mask = torch.ones(8, 5)
    if mask_tail:
        mask[:, 1:4] = 0
    (row,) = logged(trainer)
    assert row["completions/mean_length"] == mask.sum() / 8
    gradients = expected_gradients(random_model(), kept, mask)
    assert row["grad_norm"] == pytest.approx(norm(gradients), rel=1e-3)


def test_tool_tokens_of_our_rollouts_get_no_gradient(
    tmp_path: Path, task: Task, codec: Codec
) -> None:
    trainer = ours(task, codec, tmp_path, max_steps=1)
    trainer.train()
    (kept,) = trainer.kept
    mask = kept["completion_mask"] * kept["tool_mask"]
    assert (kept["tool_mask"] == 0).any()
    gradients = expected_gradients(random_model(), kept, mask)
    (row,) = logged(trainer)
    assert row["grad_norm"] == pytest.approx(norm(gradients), rel=1e-3)
    # And it would be another with them.
    wrong = expected_gradients(random_model(), kept, kept["completion_mask"])
    assert row["grad_norm"] != pytest.approx(norm(wrong), rel=0.05)


def test_a_missing_key_is_told_by_trl(tmp_path: Path, task: Task, codec: Codec) -> None:
    trainer = bare(tmp_path, task, codec, lambda prompts, _: {"prompt_ids": []}, [by_row])
    with pytest.raises(ValueError, match="must return keys"):
        trainer.train()


def test_trl_logs_a_reward_under_the_name_of_its_function(
    tmp_path: Path, task: Task, codec: Codec
) -> None:
    trainer = ours(task, codec, tmp_path, max_steps=1)
    trainer.train()
    (row,) = logged(trainer)
    assert {"rewards/grade/mean", "rewards/grade/std"} <= row.keys()
