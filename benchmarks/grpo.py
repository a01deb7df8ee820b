"""One GRPO step by TRL's trainer with its own `tools=` loop, or by ours, measured by phase.

The parts are the same step with something left out: "rollout" leaves out the update, "update"
plays the rollouts without a model, "step" leaves out nothing, "growth" nothing either.
"""

from __future__ import annotations

import copy
import hashlib
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.cases import Case, Cast, distinct, grpo_case
from benchmarks.forced import ForcedEngine, Played, force_generate
from benchmarks.jobs import Job
from benchmarks.meter import Meter
from nl2sql_trl.data import to_dataset
from nl2sql_trl.database import execute
from nl2sql_trl.models import load_model
from nl2sql_trl.prompts import Codec, extract_answer
from nl2sql_trl.rewards import execution_match, judge
from nl2sql_trl.rollout import rollout
from nl2sql_trl.sampling import Sampling
from nl2sql_trl.tools import RUN_SQL, render
from nl2sql_trl.trainer import SqlGRPOTrainer


def measure(job: Job, codec: Codec) -> dict[str, Any]:
    """The seconds, tokens, memory and results of one step."""
    case = grpo_case(job, codec)
    model = loaded(job)
    meter = Meter(model)
    side = _ours if job.side == "ours" else _trl
    with tempfile.TemporaryDirectory() as folder:
        trainer = side(job, case, codec, model, meter, config(job, folder))
        trainer.add_callback(Steps(meter, job.gradients))
        trainer.train()
    if job.side == "ours":
        assert not trainer.not_shared, trainer.not_shared
        logs = next(row for row in trainer.state.log_history if "seconds/rollout" in row)
        for name in ("rollout", "sql", "reward"):
            meter.seconds[name] = logs[f"seconds/{name}"]
    return result(meter) | _outcome(trainer)


def loaded(job: Job) -> Any:
    """The model in the job's precision, on its device."""
    dtype = "bfloat16" if job.precision == "bf16" else "float32"
    return load_model(job.model, dtype=dtype).to(job.device)


def result(meter: Meter) -> dict[str, Any]:
    """What a meter has seen, as plain values."""
    return {
        "seconds": dict(meter.seconds),
        "cpu_seconds": dict(meter.cpu),
        "tokens": dict(meter.tokens),
        "peak_bytes": meter.peak(),
        "load_before": meter.load,
        "threads": torch.get_num_threads(),
    }


def config(job: Job, folder: str) -> GRPOConfig:
    """The same settings for both trainers: those of our recipes."""
    rows = job.prompts * job.group
    return GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=job.micro,
        gradient_accumulation_steps=rows // job.micro,
        num_generations=job.group,
        max_completion_length=4 * job.tokens * job.turns + 400,
        temperature=1.0,
        max_steps=1,
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        # Without clipping the gradients of both sides can be compared.
        max_grad_norm=0.0 if job.part == "update" else 1.0,
        beta=0.0,
        gradient_checkpointing=False,
        bf16=job.precision == "autocast",
        use_cpu=job.device == "cpu",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=job.seed,
    )


class Steps(TrainerCallback):
    """Times the optimiser and the step as a whole; keeps the gradients where a file is named."""

    def __init__(self, meter: Meter, gradients: str | None) -> None:
        self._meter, self._gradients = meter, gradients

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """From here the step counts."""
        self._step = self._meter("step")
        self._step.__enter__()

    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        """All gradients are there."""
        if self._gradients:
            kept = {n: p.grad.float() for n, p in model.named_parameters() if p.grad is not None}
            save_file(kept, self._gradients)
        self._optimiser = self._meter("optimiser")
        self._optimiser.__enter__()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """The weights have moved."""
        self._optimiser.__exit__(None, None, None)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Zeroing the gradients included."""
        self._step.__exit__(None, None, None)


def measured(base: type) -> type:
    """A trainer class that times its phases and keeps what it trained on."""

    class Measured(base):  # type: ignore[misc]
        job: Job
        meter: Meter
        kept: dict[str, Any]
        loss_sum = nll_sum = scored = 0.0

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            with self.meter("prepare"):
                self.kept = super()._generate_and_score_completions(inputs)
            # A copy: TRL's own is shuffled and split.
            return dict(self.kept)

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            before = self.meter.seconds["prepare"], self.meter.cpu["prepare"]
            with self.meter("update"):
                loss = super().training_step(*args, **kwargs)
            self.meter.seconds["update"] -= self.meter.seconds["prepare"] - before[0]
            self.meter.cpu["update"] -= self.meter.cpu["prepare"] - before[1]
            return loss

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self.job.part == "rollout":
                return inputs["advantages"].new_zeros((), requires_grad=True)
            loss = super().compute_loss(model, inputs, *args, **kwargs)
            mask = inputs["completion_mask"] * inputs["tool_mask"]
            self.loss_sum += float(loss.detach())
            self.nll_sum -= float((self._logps * mask).sum())
            self.scored += float(mask.sum())
            return loss

        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
            found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            self._logps = found[0].detach()
            return found

    return Measured


def _ours(job: Job, case: Case, codec: Codec, model: Any, meter: Meter, args: GRPOConfig) -> Any:
    def policy(trainer: Any, seed: int) -> Any:
        cast = Cast(case, codec)
        if job.part == "update":
            return Played(cast, codec)
        sampling = Sampling(args.temperature, args.top_p, args.top_k or 0, args.min_p or 0.0)
        return ForcedEngine(cast, model, codec, sampling, seed=seed, autocast=args.bf16)

    kind = measured(SqlGRPOTrainer)
    kind.job, kind.meter = job, meter
    return kind(model, args, case.task, codec, [execution_match], policy_factory=policy)


def _trl(job: Job, case: Case, codec: Codec, model: Any, meter: Meter, args: GRPOConfig) -> Any:
    played = job.part == "update"
    kind = measured(GRPOTrainer if played else _tools_loop(case, codec, model))
    kind.job, kind.meter = job, meter
    tokens = {"rollout_func": _play(case, codec)} if played else {"tools": [_tool(case, meter)]}
    task = case.task
    trainer = kind(
        model=model,
        args=args,
        reward_funcs=[_reward(case, meter)],
        train_dataset=to_dataset(list(task.examples.values()), task.prompts.values()),
        processing_class=copy.deepcopy(codec.tokenizer),
        **tokens,
    )
    if not played:
        # In place of the schema that it makes from a docstring: the prompts are ours, id for id.
        trainer.tools = [RUN_SQL]
    return trainer


def _tools_loop(case: Case, codec: Codec, model: Any) -> type:
    """TRL's trainer, whose `generate` is forced turn by turn; its tools loop is its own."""

    class ToolsLoop(GRPOTrainer):
        meter: Meter

        def _generate(self, prompts: Any) -> Any:
            self._cast, self._rows = Cast(case, codec), []
            with self.meter("rollout"):
                return super()._generate(prompts)

        def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._rows:
                self._rows = [self._cast.member(ids) for ids in prompt_ids]
            else:
                # The loop goes on with the rows whose turn before was a call.
                self._rows = [turns[1:] for turns in self._rows if len(turns) > 1]
            assert len(self._rows) == len(prompt_ids), "TRL's loop took other turns than written"
            processor.start([turns[0] for turns in self._rows])
            return super()._generate_single_turn(prompt_ids, *args, **kwargs)

    processor = force_generate(model)
    return ToolsLoop


def _tool(case: Case, meter: Meter) -> Callable[[str], str]:
    # TRL tells a tool nothing about its row, so the database is found by the query.
    paths = {example.gold: example.db_path for example in case.task.examples.values()}

    def run_sql(query: str) -> str:
        """Execute a SQL query and return its rows.

        Args:
            query: the query
        """
        found = execute(paths[query], query)
        meter.seconds["sql"] += found.seconds
        return render(found)

    return run_sql


def _reward(case: Case, meter: Meter) -> Callable[..., list[float]]:
    """Our reward on what TRL's loop made of the completions, or on played trajectories."""
    task = case.task

    def answer_of(completion: Any) -> str | None:
        return extract_answer(completion[-1]["content"])

    def execution(completions: Any, row_key: list[str], **fields: Any) -> list[float]:
        answers = fields.get("answer") or [answer_of(c) for c in completions]
        with meter("reward"):
            values = []
            for answer, key in zip(answers, row_key, strict=True):
                example = task.examples[key]
                results = task.golds[example.db_path, example.gold]
                verdict = judge(answer, example.gold, results, example.db_path, task.comparison)
                values.append(execution_match(verdict))
            return values

    return execution


def _play(case: Case, codec: Codec) -> Callable[..., dict[str, list[Any]]]:
    """A `rollout_func` for TRL's trainer that returns the written rows at once."""

    def play(prompts: list[Any], _trainer: Any) -> dict[str, list[Any]]:
        chosen = [case.task.prompts[chat[-1]["row_key"]] for chat in prompts]
        done = rollout(chosen, Played(Cast(case, codec), codec), case.task.rollout)
        return {
            "prompt_ids": [list(t.prompt.ids) for t in done],
            "completion_ids": [t.completion_ids for t in done],
            "logprobs": [t.logprobs for t in done],
            "env_mask": [t.env_mask for t in done],
            "answer": [t.answer for t in done],
        }

    return play


def _outcome(trainer: Any) -> dict[str, Any]:
    """What was trained on, to be compared with the other side, and what came out."""
    kept = trainer.kept
    rows, full = [], []
    sampled = tool = 0
    for n, advantage in enumerate(kept["advantages"].tolist()):
        seen = kept["completion_mask"][n].bool()
        prompt = kept["prompt_ids"][n][kept["prompt_mask"][n].bool()].tolist()
        completion = kept["completion_ids"][n][seen].tolist()
        mask = kept["tool_mask"][n][seen].tolist()
        rows.append((prompt, completion, mask, round(advantage, 4)))
        full.append(prompt + completion)
        sampled, tool = sampled + sum(mask), tool + mask.count(0)
    digest = hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()[:16]
    count = max(trainer.scored, 1.0)
    return {
        "digest": digest,
        "loss": trainer.loss_sum,
        "nll": trainer.nll_sum / count,
        "rows": len(rows),
        "prompt_tokens": round(sum(len(p) for p, *_ in rows) / len(rows), 1),
        "sampled_tokens": sampled,
        "tool_tokens": tool,
        "all_tokens": sum(map(len, full)),
        "distinct_tokens": distinct(full),
        "flat_groups": _flat(rows),
    }


def _flat(rows: list[Any]) -> int:
    """Groups whose advantages are all 0: ours would not compute them, so there must be none."""
    found: dict[tuple[int, ...], bool] = {}
    for prompt, _, _, advantage in rows:
        found[tuple(prompt)] = found.get(tuple(prompt), False) or advantage != 0
    return sum(not moved for moved in found.values())
