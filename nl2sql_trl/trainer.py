"""The one module that knows TRL's internals: GRPO over our rollouts, and the warm start.

`SqlGRPOTrainer` hands `rollout` to TRL as `rollout_func`, checks what goes in, logs what came
out, and keeps a group's rows together so that `sharing.py` can run their prompt once. TRL does
the rest: advantages, loss, optimiser, checkpoints.

Written against TRL 1.16; `tests/test_trl_contract.py` is the first to fail on another version.
Not here: ZeRO-3 and FSDP, whose forward is a collective and needs equal calls on every rank.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # the contract test watches rollout_func

import torch
from transformers import ProgressCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTTrainer
from trl.trainer.utils import split_tensor_dict

from nl2sql_trl import runs
from nl2sql_trl.data import to_dataset
from nl2sql_trl.generate import model_policy
from nl2sql_trl.policy import Policy
from nl2sql_trl.prompts import Codec
from nl2sql_trl.records import Trajectory, Verdict
from nl2sql_trl.rewards import Reward
from nl2sql_trl.rollout import RolloutError, check, rollout
from nl2sql_trl.sampling import Sampling
from nl2sql_trl.sharing import share_prefixes
from nl2sql_trl.task import Task

PolicyFactory = Callable[["SqlGRPOTrainer", int], Policy]


class SqlGRPOTrainer(GRPOTrainer):
    """GRPOTrainer whose completions come from `rollout` on the task's databases.

    `policy_factory(trainer, seed)` makes the policy of one rollout; by default it samples from the
    model being trained. `run_dir` gets trajectories of every step (None: nowhere).
    """

    _buffered_inputs: list[Any] | None

    def __init__(
        self,
        model: Any,
        args: GRPOConfig,
        task: Task,
        codec: Codec,
        rewards: Sequence[Reward],
        *,
        run_dir: Path | None = None,
        policy_factory: PolicyFactory | None = None,
        trajectories_per_step: int = 8,
        **kwargs: Any,
    ) -> None:
        _check_batch(args)
        if args.use_vllm:
            raise RolloutError("use_vllm is not supported: set use_vllm to false")
        self.task, self.codec, self.run_dir = task, codec, run_dir
        self._policy_factory = policy_factory or trained_policy
        self._trajectories_per_step = trajectories_per_step
        super().__init__(
            model=model,
            args=args,
            reward_funcs=[_for_trl(reward) for reward in rewards],
            train_dataset=to_dataset(list(task.examples.values()), task.prompts.values()),
            processing_class=codec.tokenizer,
            rollout_func=_rollout_func,
            **kwargs,
        )
        if self.is_fsdp_enabled or _is_zero3(self):
            raise RolloutError(
                "FSDP and ZeRO-3 are not supported: use DDP or ZeRO-2 "
                "(accelerate_configs/multi_gpu.yaml)"
            )
        self.not_shared = share_prefixes(
            base_model(self.model),
            gradient_checkpointing=args.gradient_checkpointing,
            temperature=args.temperature,
            entropy_grad=bool(args.entropy_coef) or args.use_adaptive_entropy,
        )

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """TRL's, without its shuffle of rows: a group's members stay in one micro-batch.

        The gradient of an optimiser step is a sum over its micro-batches, so the order of rows
        within it does not matter.
        """
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        steps = self.args.steps_per_generation
        if self._step % (steps * self.num_iterations) == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = split_tensor_dict(batch, steps)
        return self._buffered_inputs[self._step % steps]

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """TRL's loss, but a micro-batch that has no gradient is not computed.

        Where every advantage is 0 (a group all right or all wrong) and nothing but the policy
        term is in the loss, the gradient is 0 whatever the model. With several ranks each must
        take part in every backward pass, so there nothing is skipped.
        """
        only_policy = self.beta == 0 and not self._entropy_bonus_enabled
        alone = self.accelerator.num_processes == 1 and not self.aux_loss_enabled
        skip = self.model.training and only_policy and alone and not inputs["advantages"].any()
        self._metrics["train"]["update/skipped_share"].append(float(skip))
        if skip:
            # Zero, not none: Adam's momentum moves the weights in such a step as well.
            for weight in self.model.parameters():
                if weight.requires_grad and weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
            return inputs["advantages"].new_zeros((), requires_grad=True)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def run_rollout(self, prompts: list[list[dict[str, str]]]) -> dict[str, list[Any]]:
        """What TRL's `rollout_func` returns, for chats whose last message carries `row_key`."""
        started = time.monotonic()
        chosen = [self.task.prompts[chat[-1]["row_key"]] for chat in prompts]
        # From the global generator, which checkpoints keep: a resumed run draws the same.
        seed = int(torch.randint(2**31 - 1, (1,)))
        policy = self._policy_factory(self, seed)
        trajectories = rollout(chosen, policy, self.task.rollout)
        check(trajectories, self.task.rollout.budget)
        sampled = time.monotonic()
        verdicts = [self.task.verdict(t) for t in trajectories]
        judged = time.monotonic()
        self._log_facts(trajectories, verdicts, sampled - started, judged - sampled)
        return {
            "prompt_ids": [list(t.prompt.ids) for t in trajectories],
            "completion_ids": [t.completion_ids for t in trajectories],
            "logprobs": [t.logprobs for t in trajectories],
            "env_mask": [t.env_mask for t in trajectories],
            "trajectory": list(trajectories),
            "verdict": list(verdicts),
        }

    def _log_facts(
        self,
        trajectories: Sequence[Trajectory],
        verdicts: Sequence[Verdict],
        rollout_seconds: float,
        judge_seconds: float,
    ) -> None:
        """Means over all ranks into TRL's metrics; some trajectories into the run directory."""
        facts = torch.tensor(
            [list(_facts(t, v).values()) for t, v in zip(trajectories, verdicts, strict=True)],
            device=self.accelerator.device,
        )
        means = self.accelerator.gather(facts).mean(0).tolist()
        names = _facts(trajectories[0], verdicts[0])
        metrics = self._metrics["train" if self.model.training else "eval"]
        for name, value in zip(names, means, strict=True):
            metrics[name].append(value)
        sql = sum(c.result.seconds for t in trajectories for c in t.calls if c.result)
        for name, seconds in (("rollout", rollout_seconds), ("judge", judge_seconds), ("sql", sql)):
            metrics[f"seconds/{name}"].append(seconds)
        if self.run_dir and self.accelerator.is_main_process and self._trajectories_per_step:
            chosen = list(zip(trajectories, verdicts, strict=True))[: self._trajectories_per_step]
            step = {"step": self.state.global_step + 1}
            rows = [step | runs.describe(t, v) for t, v in chosen]
            runs.append_jsonl(self.run_dir / "trajectories.jsonl", rows)


def _rollout_func(prompts: list[Any], trainer: SqlGRPOTrainer) -> dict[str, list[Any]]:
    return trainer.run_rollout(prompts)


def trained_policy(trainer: SqlGRPOTrainer, seed: int) -> Policy:
    """Samples from the model being trained, with the run's sampling parameters."""
    args = trainer.args
    model = base_model(trainer.accelerator.unwrap_model(trainer.model))
    sampling = Sampling(args.temperature, args.top_p, args.top_k or 0, args.min_p or 0.0)
    return model_policy(model, trainer.codec, sampling, seed=seed, autocast=args.bf16)


def base_model(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper (whose adapters stay active), or itself."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def _facts(trajectory: Trajectory, verdict: Verdict) -> dict[str, float]:
    calls = trajectory.calls
    problems = Counter(c.problem for c in calls if c.problem)
    outcomes = Counter(c.result.outcome for c in calls if c.result)
    return {
        "rollout/calls": float(len(calls)),
        "rollout/malformed_calls": float(problems.total()),
        "rollout/sql_errors": float(outcomes["error"] + outcomes["denied"] + outcomes["too_big"]),
        "rollout/sql_timeouts": float(outcomes["timeout"]),
        "rollout/turns": float(len(trajectory.model_turns)),
        "rollout/tool_tokens": float(trajectory.env_mask.count(0)),
        "rollout/answered": float(trajectory.answer is not None),
        "rollout/executable": float(verdict.executable),
        "rollout/ran_its_answer": float(trajectory.ran_its_answer),
        "rollout/out_of_budget": float(trajectory.stop == "budget"),
        "rollout/empty_match": float(verdict.correct and verdict.empty_match),
    }


def _for_trl(reward: Reward) -> Callable[..., list[float]]:
    """A reward as TRL calls it, under its own name in the logs. An error names the row."""

    def call(*, verdict: list[Verdict], trajectory: list[Trajectory], **_: Any) -> list[float]:
        values = []
        for v, t in zip(verdict, trajectory, strict=True):
            try:
                values.append(float(reward(v)))
            except Exception as error:
                name = getattr(reward, "__name__", "the reward")
                raise RolloutError(f"{name} failed on {t.prompt.key}: {error}") from error
        return values

    call.__name__ = reward.__name__
    return call


def _check_batch(args: GRPOConfig) -> None:
    if args.generation_batch_size % args.num_generations:
        raise ValueError(
            f"the batch of {args.generation_batch_size} rows does not divide by num_generations "
            f"({args.num_generations}): change per_device_train_batch_size, "
            "gradient_accumulation_steps or num_generations"
        )


def _is_zero3(trainer: Any) -> bool:
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    return plugin is not None and plugin.zero_stage == 3


class RunCallback(TrainerCallback):
    """Keeps a run directory: metrics.jsonl, the curve, and a clean stop on Ctrl-C.

    After a resume, lines of steps that are done again are dropped first.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.interrupted = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Forget what a killed run logged after the checkpoint that we resume from."""
        if state.is_world_process_zero:
            for name in ("metrics.jsonl", "trajectories.jsonl"):
                runs.drop_after(self.run_dir / name, state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Append the step's metrics. TRL logs a summary without a loss at the end: left out."""
        if state.is_world_process_zero and logs and "loss" in logs:
            row = {"step": state.global_step, "time": time.time(), **logs}
            runs.append_jsonl(self.run_dir / "metrics.jsonl", [row])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop after this step, with a checkpoint, if Ctrl-C was pressed during it."""
        if self.interrupted:
            control.should_save = control.should_training_stop = True


class Progress(ProgressCallback):
    """The trainer's bar with the few numbers that tell how it goes, not a dictionary a step."""

    shown = ("reward", "rollout/executable", "frac_reward_zero_std", "loss", "mean_token_accuracy")

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Put the numbers behind the bar."""
        if state.is_world_process_zero and self.training_bar is not None and logs:
            found = {k.split("/")[-1]: f"{float(logs[k]):.3f}" for k in self.shown if k in logs}
            self.training_bar.set_postfix(found, refresh=True)


def short_progress(trainer: Any) -> None:
    """Give a trainer our progress bar in place of its own."""
    if any(isinstance(c, ProgressCallback) for c in trainer.callback_handler.callbacks):
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(Progress)


class SqlSFTTrainer(SFTTrainer):
    """SFTTrainer on token ids made by us, micro-batches by database, shared beginnings run once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.not_shared = share_prefixes(
            base_model(self.model), gradient_checkpointing=self.args.gradient_checkpointing
        )

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        # `dataset` has lost the columns that the model does not take.
        keys = self.train_dataset["db_id"]
        return _ByDatabase(keys, self.args.per_device_train_batch_size, self.args.seed)


class _ByDatabase(torch.utils.data.Sampler):
    """Row indices such that each micro-batch holds one database's rows, in shuffled order.

    Full micro-batches of one database first; what is left over fills mixed ones at the end.
    """

    def __init__(self, keys: Sequence[str], size: int, seed: int) -> None:
        self.keys, self.size, self.seed = keys, size, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        by_key: dict[str, list[int]] = {}
        for n in torch.randperm(len(self.keys), generator=generator).tolist():
            by_key.setdefault(self.keys[n], []).append(n)
        full, rest = [], []
        for rows in by_key.values():
            whole = len(rows) // self.size * self.size
            full += [rows[i : i + self.size] for i in range(0, whole, self.size)]
            rest += rows[whole:]
        full = [full[n] for n in torch.randperm(len(full), generator=generator).tolist()]
        return iter([n for batch in full for n in batch] + rest)


def train_and_save(trainer: Any, run_dir: Path) -> None:
    """Train, from a checkpoint where the config names one, and save the final model."""
    if trainer.not_shared:
        print(f"beginnings are not shared in the update: {trainer.not_shared}")
    short_progress(trainer)
    trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
    save_run_model(trainer, run_dir / "model")
    if trainer.accelerator.is_main_process:
        print(f"saved {run_dir / 'model'}")


def save_run_model(trainer: Any, folder: Path) -> None:
    """The final model as an ordinary folder; LoRA adapters are merged into it."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if trainer.accelerator.is_main_process:
        if hasattr(model, "peft_config"):
            model = model.merge_and_unload()
        model.save_pretrained(folder)
        trainer.processing_class.save_pretrained(folder)
        marker = {"finished_step": trainer.state.global_step}
        runs.write_text(folder / "run.json", json.dumps(marker))
    trainer.accelerator.wait_for_everyone()
