"""Runs of the trainers on CPU: what they write, how they fail, and that they can be resumed."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import chat_tokenizer, random_model, write_spider_folder
from transformers import TrainerCallback
from trl import GRPOConfig, SFTConfig

from nl2sql_trl.data import DataError
from nl2sql_trl.database import execute
from nl2sql_trl.demonstrations import attempts_of, demonstrations, mistake
from nl2sql_trl.policy import ScriptedPolicy
from nl2sql_trl.prompts import Codec, answer_text, call_text
from nl2sql_trl.records import ModelTurn, Prompt, Sample, ToolTurn, Trajectory, Verdict
from nl2sql_trl.rewards import executable, execution_match, rows_share
from nl2sql_trl.rollout import RolloutConfig, RolloutError, check
from nl2sql_trl.runs import append_jsonl, read_jsonl
from nl2sql_trl.sft import to_rows
from nl2sql_trl.task import Task, make_task
from nl2sql_trl.trainer import (
    RunCallback,
    SqlGRPOTrainer,
    SqlSFTTrainer,
    save_run_model,
    train_and_save,
)
from nl2sql_trl.warm_start import ByDatabase

BUDGET = 24


class Fortune(Codec):
    """Reads an answer into whatever a random model wrote, so that rewards vary."""

    def decode(self, ids: Sequence[int]) -> str:
        return answer_text("SELECT 1") if sum(ids) % 2 else "I do not know."


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec(chat_tokenizer())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_spider_folder(tmp_path_factory.mktemp("trainer") / "spider")


@pytest.fixture(scope="module")
def task(folder: Path, codec: Codec) -> Task:
    return make_task(str(folder), "train", codec, rollout=RolloutConfig(budget=BUDGET))


def config(run_dir: Path, **changes: Any) -> GRPOConfig:
    settings: dict[str, Any] = {
        "output_dir": str(run_dir),
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_completion_length": BUDGET,
        "max_steps": 2,
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


def sampled(task: Task, run_dir: Path, callbacks: Sequence[Any] = (), **changes: Any) -> Any:
    """A trainer whose completions are drawn from its own random model."""
    return SqlGRPOTrainer(
        random_model(),
        config(run_dir, **changes),
        task,
        Fortune(chat_tokenizer()),
        [executable],
        run_dir=run_dir,
        callbacks=[RunCallback(run_dir), *callbacks],
    )


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Logged rows without what depends on the clock or on what the process did before."""
    rows = read_jsonl(run_dir / "metrics.jsonl")
    other = ("time", "step_time", "memory/peak_bytes")
    return [
        {k: v for k, v in row.items() if k not in other and k[:8] != "seconds/"} for row in rows
    ]


# A run over pocket, with a scripted policy


@pytest.fixture(scope="module")
def pocket_run(tmp_path_factory: pytest.TempPathFactory, codec: Codec) -> tuple[Path, Task, Any]:
    """Three steps in which every second member of a group plays the gold."""
    run_dir = tmp_path_factory.mktemp("pocket") / "run"
    task = make_task("pocket", "train", codec, rows=12, rollout=RolloutConfig(budget=600))

    def policy(trainer: SqlGRPOTrainer, seed: int) -> ScriptedPolicy:
        def script(key: int, turn: int) -> str:
            gold = task.examples[trainer.asked[key]].gold
            plays = [
                [call_text(gold), answer_text(gold)],
                [call_text("SELECT nosuch"), "No idea."],
                [answer_text("SELECT 'wrong'")],
            ]
            return plays[key % 3][turn]

        return ScriptedPolicy(script, codec)

    class Asked(SqlGRPOTrainer):
        def run_rollout(self, prompts: Any) -> Any:
            self.asked = [chat[-1]["row_key"] for chat in prompts]
            return super().run_rollout(prompts)

    trainer = Asked(
        random_model(),
        config(run_dir, max_steps=3, max_completion_length=600, reward_weights=[1.0, 0.2, 0.1]),
        task,
        codec,
        [execution_match, executable, rows_share],
        run_dir=run_dir,
        policy_factory=policy,
        trajectories_per_step=5,
        callbacks=[RunCallback(run_dir)],
    )
    before = [p.clone() for p in trainer.model.parameters()]
    trainer.train()
    assert any(
        not torch.equal(p, q) for p, q in zip(before, trainer.model.parameters(), strict=True)
    )
    return run_dir, task, trainer


def test_a_run_logs_each_step_with_every_reward_under_its_name(pocket_run: Any) -> None:
    rows = metrics(pocket_run[0])
    assert [row["step"] for row in rows] == [1, 2, 3]
    for row in rows:
        for name in ("execution_match", "executable", "rows_share"):
            assert f"rewards/{name}/mean" in row
        # Of eight rows three play the gold, three fail, and two answer wrongly.
        assert row["rewards/execution_match/mean"] == pytest.approx(3 / 8)
        assert row["rewards/executable/mean"] == pytest.approx(5 / 8)
        assert row["rollout/calls"] == pytest.approx(6 / 8)
        assert row["rollout/sql_errors"] == pytest.approx(3 / 8)
        assert row["rollout/ran_its_answer"] == pytest.approx(3 / 8)
        assert row["rollout/executable"] == row["rewards/executable/mean"]
        assert row["grad_norm"] > 0
        assert row["frac_reward_zero_std"] == 0


def test_a_run_logs_the_seconds_of_every_phase_and_the_tokens_of_every_kind(
    pocket_run: Any,
) -> None:
    for row in read_jsonl(pocket_run[0] / "metrics.jsonl"):
        spent = {k.removeprefix("seconds/"): v for k, v in row.items() if k[:8] == "seconds/"}
        assert spent.keys() == {
            "rollout", "generate", "sql_wait", "sql", "reward", "rank_wait", "update", "steps",
            "sql_p50", "sql_p95", "sql_max",
        }  # fmt: skip
        assert spent["generate"] + spent["sql_wait"] == pytest.approx(spent["rollout"])
        assert spent["rollout"] + spent["reward"] + spent["update"] <= spent["steps"]
        assert row["memory/peak_bytes"] > 2**20
        assert 0 < spent["sql_p50"] <= spent["sql_p95"] <= spent["sql_max"] <= spent["sql"]
        assert spent["rank_wait"] == 0
        assert min(spent["update"], spent["reward"], spent["generate"]) > 0
        # TRL counts sampled tokens alone, with the prompts.
        assert row["tokens/sampled"] == pytest.approx(row["completions/mean_length"])
        assert row["tokens/forced"] > 0
        assert row["rollout/truncated"] == row["rollout/malformed_calls"] == 0
    total = sum(
        8 * (row["tokens/prompt"] + row["tokens/sampled"])
        for row in read_jsonl(pocket_run[0] / "metrics.jsonl")
    )
    assert total == pytest.approx(row["num_tokens"])


def test_a_run_keeps_trajectories_with_their_verdicts(pocket_run: Any) -> None:
    run_dir, task, _ = pocket_run
    rows = read_jsonl(run_dir / "trajectories.jsonl")
    assert Counter(row["step"] for row in rows) == {1: 5, 2: 5, 3: 5}
    for row in rows:
        example = task.examples[row["key"]]
        assert row["question"] == example.question
        if row["correct"]:
            assert (row["answer"], row["reason"]) == (example.gold, "correct")
            assert [turn["role"] for turn in row["turns"]] == ["assistant", "tool", "assistant"]
    assert {row["reason"] for row in rows} >= {"correct", "no_answer"}


def test_prompts_are_shared_in_the_update(pocket_run: Any) -> None:
    assert pocket_run[2].not_shared == ""


# Errors name the row


def test_a_reward_that_raises_names_itself_and_the_row(task: Task, tmp_path: Path) -> None:
    def boom(verdict: Verdict) -> float:
        raise ZeroDivisionError("by zero")

    trainer = SqlGRPOTrainer(
        random_model(), config(tmp_path), task, Fortune(chat_tokenizer()), [boom]
    )
    with pytest.raises(RolloutError, match=r"boom failed on train:\d+: by zero"):
        trainer.train()


def trajectory(*turns: ModelTurn | ToolTurn, key: str = "train:7") -> Trajectory:
    prompt = Prompt(({"role": "user", "content": "q"},), (1, 2), Path("x"), key)
    return Trajectory(prompt, turns, "answer", None)


def said(*ids: int) -> ModelTurn:
    return ModelTurn(Sample(ids, (0.0,) * len(ids)), "")


GOOD = trajectory(said(1, 2), ToolTurn((3,), ()), said(4))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (trajectory(), "no completion tokens"),
        (trajectory(said()), "no completion tokens"),
        (trajectory(said(*range(11))), "11 tokens, over its budget of 10"),
        (
            trajectory(said(1), ToolTurn(tuple(range(12)), ()), said(2)),
            "14 tokens, over its budget",
        ),
        (trajectory(said(1), ToolTurn((3,), ())), "ends on a token that the model did not write"),
        (
            SimpleNamespace(
                completion_ids=[1, 2], env_mask=[1], logprobs=[0.0, 0.0], prompt=GOOD.prompt
            ),
            "2 ids, 1 mask entries, 2 log-probabilities",
        ),
        (
            SimpleNamespace(
                completion_ids=[1, 2], env_mask=[1, 1], logprobs=[0.0], prompt=GOOD.prompt
            ),
            "2 ids, 2 mask entries, 1 log-probabilities",
        ),
    ],
)
def test_what_trl_would_train_on_wrongly_is_refused_with_the_row(bad: Any, message: str) -> None:
    with pytest.raises(RolloutError, match=r"trajectory 2 \(train:7\) .*" + message):
        check([GOOD, GOOD, bad], 10)


def test_a_row_without_a_key_is_named_by_its_place() -> None:
    with pytest.raises(RolloutError, match=r"trajectory 0 \(no key\)"):
        check([trajectory(key="")], 10)


def test_sound_trajectories_pass() -> None:
    check([GOOD, trajectory(said(*range(10)))], 10)


def test_a_batch_that_does_not_divide_by_the_group_is_refused(task: Task, tmp_path: Path) -> None:
    args = config(tmp_path)
    args.num_generations = 3
    with pytest.raises(ValueError, match="8 rows does not divide by num_generations"):
        SqlGRPOTrainer(random_model(), args, task, Fortune(chat_tokenizer()), [executable])


# Sampling from the model that is trained


def test_the_same_seed_gives_the_same_run_and_another_another(task: Task, tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        torch.manual_seed(seed)
        sampled(task, tmp_path / name, seed=seed).train()
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b") != metrics(tmp_path / "c")
    assert read_jsonl(tmp_path / "a" / "trajectories.jsonl")


def test_completions_come_from_the_model_as_it_is_at_that_step(task: Task, tmp_path: Path) -> None:
    sampled(task, tmp_path, max_steps=3).train()
    rows = metrics(tmp_path)
    assert all(row["grad_norm"] > 0 for row in rows)
    # On-policy and without a KL term, the first update of a batch has ratio one everywhere.
    assert all(row["clip_ratio/region_mean"] == 0 for row in rows)
    assert len({row["entropy"] for row in rows}) == 3


class Killed(TrainerCallback):
    """Dies when step 3 was logged, as a process might."""

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 6:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def resumed(task: Task, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of seven steps, four an epoch, and one that died after the sixth and went on from the
    fifth."""
    whole, broken = (tmp_path_factory.mktemp(name) / "run" for name in ("whole", "broken"))
    saves = {"max_steps": 7, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}
    sampled(task, whole, **saves).train()
    with pytest.raises(KeyboardInterrupt):
        sampled(task, broken, [Killed()], **saves).train()
    with (broken / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "los')  # and a line was cut
    assert [row["step"] for row in metrics(broken)] == [1, 2, 3, 4, 5, 6]
    sampled(task, broken, **saves).train(resume_from_checkpoint=str(broken / "checkpoint-5"))
    return whole, broken


def test_a_resumed_run_logs_what_an_uninterrupted_one_does(resumed: tuple[Path, Path]) -> None:
    whole, broken = map(metrics, resumed)
    assert [row["step"] for row in whole] == [1, 2, 3, 4, 5, 6, 7]
    assert len(whole) == len(broken)
    for a, b in zip(whole, broken, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            assert a[name] == pytest.approx(b[name], rel=1e-5, abs=1e-7), name


def test_lines_of_steps_done_again_are_dropped(resumed: tuple[Path, Path]) -> None:
    whole, broken = (read_jsonl(run / "trajectories.jsonl") for run in resumed)
    assert [row["step"] for row in broken] == sorted(row["step"] for row in broken)
    assert broken == whole


def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(
    resumed: tuple[Path, Path],
) -> None:
    from transformers import AutoModelForCausalLM

    whole, broken = (
        AutoModelForCausalLM.from_pretrained(run / "checkpoint-7").state_dict() for run in resumed
    )
    for name, weight in whole.items():
        torch.testing.assert_close(weight, broken[name])


def test_an_interrupt_ends_the_run_after_the_step_with_a_checkpoint(
    task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = sampled(task, tmp_path, max_steps=9, save_strategy="steps", save_steps=100)
    callback = next(c for c in trainer.callback_handler.callbacks if isinstance(c, RunCallback))
    callback.interrupted = True
    with pytest.raises(SystemExit) as ended:
        train_and_save(trainer, tmp_path)
    assert ended.value.code == 130
    assert "checkpoint-1 is saved; go on with --resume" in capsys.readouterr().out
    assert trainer.state.global_step == 1
    assert (tmp_path / "checkpoint-1" / "trainer_state.json").is_file()
    assert not (tmp_path / "model").exists(), "an unfinished run has no final model"


def test_a_lora_run_trains_the_adapters_alone_and_saves_a_merged_model(
    task: Task, tmp_path: Path
) -> None:
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM

    trainer = SqlGRPOTrainer(
        random_model(),
        config(tmp_path, learning_rate=1e-2),
        task,
        Fortune(chat_tokenizer()),
        [executable],
        peft_config=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[RunCallback(tmp_path)],
    )
    assert trainer.not_shared == ""
    trainer.train()
    assert all(row["grad_norm"] > 0 for row in metrics(tmp_path))
    named = dict(trainer.model.named_parameters())
    start = dict(random_model().named_parameters())
    adapters = [name for name in named if "lora_B" in name]
    assert any(bool(named[name].any()) for name in adapters)
    q = "model.layers.0.self_attn.q_proj"
    assert torch.equal(named[f"base_model.model.{q}.base_layer.weight"], start[f"{q}.weight"])
    ids = torch.tensor([list(range(10, 30))])
    trainer.model.eval()
    with torch.no_grad():
        expected = trainer.model(ids).logits
        save_run_model(trainer, tmp_path / "model")
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
        torch.testing.assert_close(loaded(ids).logits, expected, rtol=1e-3, atol=1e-3)
    assert json.loads((tmp_path / "model" / "run.json").read_text()) == {"finished_step": 2}


def test_an_architecture_that_cannot_share_still_trains(task: Task, tmp_path: Path) -> None:
    trainer = SqlGRPOTrainer(
        random_model("mistral"),
        config(tmp_path, max_steps=1),
        task,
        Fortune(chat_tokenizer()),
        [executable],
        callbacks=[RunCallback(tmp_path)],
    )
    assert "mistral" in trainer.not_shared
    trainer.train()
    assert metrics(tmp_path)[0]["grad_norm"] > 0


# The warm start


@pytest.fixture(scope="module")
def demos(folder: Path, codec: Codec) -> tuple[Task, list[Trajectory]]:
    task = make_task(str(folder), "train", codec)
    return task, demonstrations(task, codec, 1.0, 0)


def test_demonstrations_play_the_gold_and_are_right(demos: tuple[Task, list[Trajectory]]) -> None:
    task, played = demos
    assert len(played) == len(task.examples)
    for t in played:
        assert t.answer == task.examples[t.prompt.key].gold
        assert task.verdict(t).correct
        assert t.ran_its_answer
        assert len(t.calls) == 2


def test_labels_are_the_assistants_tokens_of_calls_that_ran(
    demos: tuple[Task, list[Trajectory]], codec: Codec
) -> None:
    task, played = demos
    rows = to_rows(played, task)
    failed = 0
    for t, row in zip(played, rows, strict=True):
        assert row["input_ids"] == [*t.prompt.ids, *t.completion_ids]
        assert row["db_id"] == task.examples[t.prompt.key].db_id
        expected = [-100] * len(t.prompt.ids)
        for turn, following in zip(t.turns, [*t.turns[1:], None], strict=True):
            bad = isinstance(following, ToolTurn) and any(
                c.result is None or c.result.outcome != "ok" for c in following.calls
            )
            failed += bad
            learnt = isinstance(turn, ModelTurn) and not bad
            expected += turn.ids if learnt else [-100] * len(turn.ids)
        assert row["labels"] == expected
        labelled = [i for i in row["labels"] if i != -100]
        text = codec.tokenizer.decode(labelled)
        assert "tool_response" not in text
        assert text.endswith(answer_text(task.examples[t.prompt.key].gold) + "<|im_end|>")
        assert labelled.count(codec.eos_id) >= 1
    assert failed >= 4


def test_without_mended_calls_there_are_none(folder: Path, codec: Codec) -> None:
    task = make_task(str(folder), "train", codec)
    assert all(len(t.calls) == 1 for t in demonstrations(task, codec, 0.0, 0))


def test_a_models_own_failed_calls_are_mended(folder: Path, codec: Codec, tmp_path: Path) -> None:
    task = make_task(str(folder), "train", codec)
    refused, ran = list(task.examples)[:2]
    calls = {refused: ("SELECT nosuch", '{"error": "no such column: nosuch"}'),
             ran: ("SELECT 1", '{"columns": ["1"], "rows": [[1]]}')}  # fmt: skip
    rows = [
        {"key": key, "question": task.examples[key].question,
         "turns": [{"content": "a call"}, {"calls": [{"query": query, "response": response}]}]}
        for key, (query, response) in calls.items()
    ]  # fmt: skip
    append_jsonl(tmp_path / "trajectories.jsonl", rows)
    attempts = attempts_of(tmp_path)
    part = make_task(str(folder), "train", codec, keys=attempts)
    played = {t.prompt.key: t for t in demonstrations(part, codec, 1.0, 0, attempts)}
    golds = {key: task.examples[key].gold for key in calls}
    assert [c.query for c in played[refused].calls] == ["SELECT nosuch", golds[refused]]
    assert [c.query for c in played[ran].calls] == [golds[ran]]
    assert len(played) == 2

    other = {refused: attempts[refused]._replace(question="Who?"), ran: attempts[ran]}
    with pytest.raises(DataError, match="of other data"):
        demonstrations(part, codec, 1.0, 0, other)
    with pytest.raises(DataError, match="holds no evaluation"):
        attempts_of(tmp_path / "nosuch")


def test_a_mistake_is_a_query_that_sqlite_refuses(demos: tuple[Task, list[Trajectory]]) -> None:
    import random

    for seed in range(5):
        for example in demos[0].examples.values():
            query = mistake(example.db_path, example.gold, random.Random(seed))
            assert query is not None
            assert execute(example.db_path, query).outcome == "error"


def test_no_mistake_is_made_up_where_none_can_be(demos: tuple[Task, list[Trajectory]]) -> None:
    import random

    example = next(iter(demos[0].examples.values()))
    assert mistake(example.db_path, "SELECT count(*)", random.Random(0)) is None


def test_some_mistakes_are_near_the_query_and_some_are_not(
    demos: tuple[Task, list[Trajectory]], codec: Codec
) -> None:
    from difflib import SequenceMatcher

    likeness = []
    for seed in range(6):
        for t in demonstrations(demos[0], codec, 1.0, seed):
            failed, mended = (call.query or "" for call in t.calls)
            likeness.append(SequenceMatcher(None, failed, mended).ratio())
    near = sum(ratio > 0.85 for ratio in likeness)
    assert len(likeness) / 4 < near < len(likeness) * 0.9


def sft_trainer(rows: Any, tmp_path: Path, codec: Codec, **changes: Any) -> SqlSFTTrainer:
    settings: dict[str, Any] = {
        "output_dir": str(tmp_path),
        "per_device_train_batch_size": 2,
        "max_steps": 2,
        "learning_rate": 1e-3,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataset_kwargs": {"skip_prepare_dataset": True},
    }
    return SqlSFTTrainer(
        model=random_model(),
        args=SFTConfig(**(settings | changes)),
        train_dataset=rows,
        processing_class=codec.tokenizer,
        callbacks=[RunCallback(tmp_path)],
    )


def test_a_micro_batch_of_the_warm_start_holds_one_database(
    demos: tuple[Task, list[Trajectory]], codec: Codec, tmp_path: Path
) -> None:
    task, played = demos
    rows = to_rows(played, task)
    databases = {tuple(row["input_ids"]): row["db_id"] for row in rows}
    trainer = sft_trainer(rows, tmp_path, codec)
    seen = []
    for batch in trainer.get_train_dataloader():
        ids = [
            tuple(row[mask.bool()].tolist())
            for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
        ]
        seen += ids
        assert len({databases[row] for row in ids}) == 1
    assert sorted(seen) == sorted(databases)


def test_the_warm_start_lowers_the_loss_it_logs(
    demos: tuple[Task, list[Trajectory]], codec: Codec, tmp_path: Path
) -> None:
    trainer = sft_trainer(to_rows(demos[1], demos[0]), tmp_path, codec, max_steps=8)
    assert trainer.not_shared == ""
    trainer.train()
    losses = [row["loss"] for row in metrics(tmp_path)]
    assert len(losses) == 8
    assert losses[-1] < losses[0]


def test_the_first_loss_of_the_warm_start_is_the_plain_mean_over_labelled_tokens(
    demos: tuple[Task, list[Trajectory]], codec: Codec, tmp_path: Path
) -> None:
    rows = to_rows(demos[1], demos[0])
    trainer = sft_trainer(rows, tmp_path, codec, max_steps=1, per_device_train_batch_size=8)
    trainer.train()
    total, count = 0.0, 0
    model = random_model().eval()
    for row in rows:
        with torch.no_grad():
            logprobs = model(torch.tensor([row["input_ids"]])).logits[0, :-1].log_softmax(-1)
        labels = torch.tensor(row["labels"][1:])
        kept = labels != -100
        total -= float(logprobs[kept].gather(1, labels[kept][:, None]).sum())
        count += int(kept.sum())
    assert metrics(tmp_path)[0]["loss"] == pytest.approx(total / count, rel=1e-3)


def test_long_rows_are_not_cut(codec: Codec, tmp_path: Path) -> None:
    from datasets import Dataset

    ids = [10 + n % 200 for n in range(1500)]
    row = {"input_ids": ids, "labels": [-100] * 1400 + ids[1400:], "db_id": "a"}
    trainer = sft_trainer(Dataset.from_list([row] * 2), tmp_path, codec)
    (batch,) = trainer.get_train_dataloader()
    assert batch["input_ids"].shape == (2, 1500)
    assert (batch["labels"] != -100).sum() == 200


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("counts", [(4, 4), (5, 2, 9), (1, 1, 1), (7,)])
def test_the_sampler_gives_every_row_once_and_fills_batches_by_database(
    counts: tuple[int, ...], size: int
) -> None:
    keys = [str(n) for n, count in enumerate(counts) for _ in range(count)]
    seed = 1
    sampler = ByDatabase(keys, size, lambda: seed)
    order = list(sampler)
    assert sorted(order) == list(range(len(keys)))
    assert len(sampler) == len(keys)
    pure = sum(count // size for count in counts)
    for n in range(pure):
        assert len({keys[i] for i in order[n * size : (n + 1) * size]}) == 1
    assert list(sampler) == order
    seed = 2
    assert len(keys) < 8 or list(sampler) != order


# The whole command


def test_the_train_command_leaves_a_whole_run_directory(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import signal

    import yaml

    from nl2sql_trl import train

    run_dir = tmp_path / "run"
    recipe = tmp_path / "recipe.yaml"
    settings = {
        "model_name_or_path": str(model_folder),
        "output_dir": str(run_dir),
        "data": "pocket",
        "rows": 6,
        "rewards": ["execution_match", "executable"],
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 16,
        "max_steps": 2,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
    }
    recipe.write_text(yaml.safe_dump(settings))
    monkeypatch.setattr(sys, "argv", ["train.py", "--config", str(recipe), "--max_turns", "2"])
    handler = signal.getsignal(signal.SIGINT)
    try:
        assert train.main() == 0
        monkeypatch.setattr(
            sys,
            "argv",
            [*sys.argv, "--max_steps", "3", "--resume_from_checkpoint", "true"],
        )
        assert train.main() == 0
    finally:
        signal.signal(signal.SIGINT, handler)
    assert [row["step"] for row in metrics(run_dir)] == [1, 2, 3]
    resolved = yaml.safe_load((run_dir / "config.yaml").read_text())
    assert (resolved["max_turns"], resolved["rows"], resolved["num_generations"]) == (2, 6, 4)
    manifest = json.loads((run_dir / "manifest.json").read_text())
    assert manifest["sampling"]["temperature"] == 1.0
    assert manifest["packages"]["trl"].startswith("1.16.")
    assert len(next(iter(manifest["data"]["files"].values()))["sha256"]) == 64
    for name in ("trajectories.jsonl", "gold_cache.jsonl", "reward_curve.png", "model/config.json",
                 "model/tokenizer.json", "model/model.safetensors", "checkpoint-3"):  # fmt: skip
        assert (run_dir / name).exists(), name
    # Our attention is a matter of this process: others must be able to load the model.
    assert "nl2sql" not in (run_dir / "model" / "config.json").read_text()


def test_evaluation_during_training_asks_the_same_questions_for_every_seed(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nl2sql_trl import train

    drawn = []

    def trainer(_model: Any, _config: Any, task: Task, *_: Any, eval_task: Task, **__: Any) -> None:
        drawn.append((list(task.examples), list(eval_task.examples)))
        raise ValueError("that is all")

    monkeypatch.setattr("nl2sql_trl.trainer.SqlGRPOTrainer", trainer)
    monkeypatch.setattr("nl2sql_trl.launch.stop_on_interrupt", lambda _: None)
    for seed in (0, 1):
        command = (
            f"--model_name_or_path {model_folder} --output_dir {tmp_path / str(seed)} "
            f"--seed {seed} --rows 6 --eval_strategy steps --eval_steps 1 --eval_split dev "
            "--eval_rows 4 --max_completion_length 16 --use_cpu true --bf16 false --report_to none"
        )
        monkeypatch.setattr(sys, "argv", ["train.py", *command.split()])
        with pytest.raises(SystemExit):
            train.main()
    (trained, asked), (trained_1, asked_1) = drawn
    assert trained != trained_1
    assert asked == asked_1
