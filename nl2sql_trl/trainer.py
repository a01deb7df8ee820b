"""The trainer: GRPO over our rollouts. With the modules it names, all that knows TRL's internals.

`SqlGRPOTrainer` hands `rollout` to TRL as `rollout_func`, checks what goes in, logs what came
out, and keeps a group's rows together so that `sharing.py` can run their prompt once. TRL does
the rest: advantages, loss, optimiser, checkpoints.

    backends.py, sharded.py   where completions come from in each mode, on any number of ranks
    facts.py, callbacks.py    what is logged, and what a run directory gets
    warm_start.py             the trainer of the supervised start
    saving.py                 a training from its start to the saved model

Written against TRL 1.16; `tests/test_trl_contract.py` is the first to fail on another version.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # the contract test watches rollout_func

import torch
from accelerate.utils import gather_object
from trl import GRPOConfig, GRPOTrainer
from trl.import_utils import is_vllm_available
from trl.trainer.utils import split_tensor_dict

from nl2sql_trl import facts, runs
from nl2sql_trl.backends import check_vllm, on_all_ranks, trained_policy
from nl2sql_trl.callbacks import RunCallback, StepClock, short_progress
from nl2sql_trl.checkpoints import WholeCheckpoints
from nl2sql_trl.data import to_dataset
from nl2sql_trl.groups import resample
from nl2sql_trl.policy import Policy
from nl2sql_trl.prompts import Codec
from nl2sql_trl.records import Prompt, Trajectory, Verdict
from nl2sql_trl.rewards import Reward
from nl2sql_trl.rollout import RolloutError, check, rollout
from nl2sql_trl.saving import save_run_model, train_and_save
from nl2sql_trl.sharded import base_model, replica_of, weights_are_sharded
from nl2sql_trl.sharing import share_prefixes
from nl2sql_trl.task import Task
from nl2sql_trl.warm_start import SqlSFTTrainer

__all__ = [
    "RunCallback",
    "SqlGRPOTrainer",
    "SqlSFTTrainer",
    "base_model",
    "save_run_model",
    "short_progress",
    "train_and_save",
    "trained_policy",
]

PolicyFactory = Callable[["SqlGRPOTrainer", int], Policy]


@dataclass(frozen=True, slots=True)
class Judged:
    """A trajectory, the verdict on it, and its rewards by their names."""

    trajectory: Trajectory
    verdict: Verdict
    scores: dict[str, float]


class SqlGRPOTrainer(WholeCheckpoints, GRPOTrainer):
    """GRPOTrainer whose completions come from `rollout` on the task's databases.

    `eval_task`: the questions of evaluation during training, answered greedily; `eval_reward` is
    their mean reward. `policy_factory(trainer, seed)` makes the policy of one rollout; by default
    it samples from the model being trained. `run_dir` gets trajectories of every step (None:
    nowhere). `resample_rounds`: how often groups without variance are replaced, see `groups.py`.
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
        eval_task: Task | None = None,
        run_dir: Path | None = None,
        resample_rounds: int = 0,
        policy_factory: PolicyFactory | None = None,
        trajectories_per_step: int = 8,
        **kwargs: Any,
    ) -> None:
        _check_settings(args, resample_rounds)
        self.task, self.eval_task, self.codec, self.run_dir = task, eval_task, codec, run_dir
        self._rewards, self._resample_rounds = list(rewards), resample_rounds
        self._policy_factory = policy_factory or trained_policy
        self._trajectories_per_step = trajectories_per_step
        self.rollout_seconds = 0.0
        super().__init__(
            model=model,
            args=args,
            reward_funcs=[_for_trl(reward) for reward in rewards],
            train_dataset=_dataset(task),
            eval_dataset=None if eval_task is None else _dataset(eval_task),
            processing_class=codec.tokenizer,
            rollout_func=_rollout_func,
            **kwargs,
        )
        if args.use_vllm:
            check_vllm(self, task)
        self.add_callback(StepClock(self))
        self.replica = replica_of(self.model, self.accelerator)
        self.not_shared = weights_are_sharded(self.accelerator) or share_prefixes(
            base_model(self.model),
            gradient_checkpointing=args.gradient_checkpointing,
            temperature=args.temperature,
            entropy_grad=bool(args.entropy_coef) or args.use_adaptive_entropy,
        )

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return ByEpoch(super()._get_train_sampler(dataset), lambda: int(self.state.epoch or 0))

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
        """What TRL's `rollout_func` returns, for chats whose last message carries `row_key`.

        An error on one rank is raised on all, naming it: none is left waiting for the others.
        """
        started = time.monotonic()
        training = self.model.training
        task = self.task if training or self.eval_task is None else self.eval_task
        wanted = [task.prompts[chat[-1]["row_key"]] for chat in prompts]
        seconds: defaultdict[str, float] = defaultdict(float)

        def run(some: Sequence[Prompt]) -> list[Judged]:
            return on_all_ranks(lambda: self._roll_out(task, some, seconds))

        at_first: dict[str, float] = {}
        if training and self._resample_rounds:
            done, dull = resample(
                wanted, self.num_generations, run, self._reward, self._others(wanted),
                self._resample_rounds, go_on=lambda here: any(gather_object([here])),
            )  # fmt: skip
            everywhere = gather_object([dull])
            groups = len(everywhere) * len(wanted) // self.num_generations
            at_first["groups/zero_std_at_first"] = sum(everywhere) / groups
        else:
            done = run(wanted)
        trajectories, verdicts = [d.trajectory for d in done], [d.verdict for d in done]
        told = facts.describe(trajectories, verdicts, dict(seconds))
        self._log(trajectories, verdicts, facts.summary(gather_object([told])) | at_first)
        self.rollout_seconds += time.monotonic() - started
        return {
            "prompt_ids": [list(t.prompt.ids) for t in trajectories],
            "completion_ids": [t.completion_ids for t in trajectories],
            "logprobs": [t.logprobs for t in trajectories],
            "env_mask": [t.env_mask for t in trajectories],
            "trajectory": list(trajectories),
            "verdict": list(verdicts),
            "scores": [d.scores for d in done],
        }

    def _roll_out(
        self, task: Task, prompts: Sequence[Prompt], seconds: defaultdict[str, float]
    ) -> list[Judged]:
        """This rank's trajectories, judged and rewarded; adds to `seconds` by phase."""
        # From the global generator, which checkpoints keep: a resumed run draws the same.
        seed = int(torch.randint(2**31 - 1, (1,)))
        policy = facts.TimedPolicy(self._policy_factory(self, seed))
        started = time.monotonic()
        trajectories = rollout(prompts, policy, task.rollout)
        check(trajectories, task.rollout.budget)
        sampled = time.monotonic()
        pairs = [(t, task.verdict(t)) for t in trajectories]
        rewards = self._rewards
        done = [Judged(t, v, {r.__name__: _score(r, t, v) for r in rewards}) for t, v in pairs]
        seconds["rollout"] += sampled - started
        seconds["generate"] += policy.seconds
        seconds["reward"] += time.monotonic() - sampled
        return done

    def _reward(self, done: Judged) -> float:
        """The sum that TRL makes of the rewards."""
        weights = self.args.reward_weights or [1.0] * len(self._rewards)
        return sum(w * s for w, s in zip(weights, done.scores.values(), strict=True))

    def _others(self, prompts: Sequence[Prompt]) -> Iterator[Prompt]:
        """The task's other prompts, in an order that a resumed run draws again."""
        here = {prompt.key for prompt in prompts}
        keys = [key for key in self.task.prompts if key not in here]
        random.Random(int(torch.randint(2**31 - 1, (1,)))).shuffle(keys)
        return (self.task.prompts[key] for key in keys)

    def _log(
        self,
        trajectories: Sequence[Trajectory],
        verdicts: Sequence[Verdict],
        metrics: dict[str, float],
    ) -> None:
        """The step's metrics among TRL's; some trajectories into the run directory."""
        for name, value in metrics.items():
            self._metrics["train" if self.model.training else "eval"][name].append(value)
        kept = self._trajectories_per_step if self.model.training else 0
        if self.run_dir and self.accelerator.is_main_process and kept:
            chosen = list(zip(trajectories, verdicts, strict=True))
            step = {"step": self.state.global_step + 1}
            rows = [step | runs.describe(t, v) for t, v in chosen[:kept]]
            runs.append_jsonl(self.run_dir / "trajectories.jsonl", rows)


class ByEpoch(torch.utils.data.Sampler):
    """TRL's sampler, its order a matter of seed and epoch alone.

    TRL's draws on from one epoch to the next, so that a run resumed in a later one would go through
    the first one's order again.
    """

    def __init__(self, sampler: Any, epoch: Callable[[], int]) -> None:
        self._sampler, self._epoch = sampler, epoch

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[int]:
        if self._sampler.shuffle:
            self._sampler.generator.manual_seed(self._sampler.seed + self._epoch())
        return iter(self._sampler)


def _rollout_func(prompts: list[Any], trainer: SqlGRPOTrainer) -> dict[str, list[Any]]:
    return trainer.run_rollout(prompts)


def _dataset(task: Task) -> Any:
    return to_dataset(list(task.examples.values()), task.prompts.values())


def _score(reward: Reward, trajectory: Trajectory, verdict: Verdict) -> float:
    """The reward of a verdict. An error names the row."""
    try:
        return float(reward(verdict))
    except Exception as error:
        where = f"{reward.__name__} failed on {trajectory.prompt.key}"
        raise RolloutError(f"{where}: {error}") from error


def _for_trl(reward: Reward) -> Callable[..., list[float]]:
    """A reward as TRL calls it, under its own name in the logs: the value is there already."""

    def call(*, scores: list[dict[str, float]], **_: Any) -> list[float]:
        return [row[reward.__name__] for row in scores]

    call.__name__ = reward.__name__
    return call


def _check_settings(args: GRPOConfig, resample_rounds: int) -> None:
    if args.generation_batch_size % args.num_generations:
        raise ValueError(
            f"the batch of {args.generation_batch_size} rows does not divide by num_generations "
            f"({args.num_generations}): change per_device_train_batch_size, "
            "gradient_accumulation_steps or num_generations"
        )
    rows_of_a_rank = args.per_device_train_batch_size * args.steps_per_generation
    if resample_rounds and rows_of_a_rank % args.num_generations:
        raise ValueError(
            f"resample_rounds needs whole groups on each process: its {rows_of_a_rank} rows a step "
            f"do not divide by num_generations ({args.num_generations})"
        )
    if args.use_vllm and not is_vllm_available():
        raise ValueError("use_vllm needs vLLM: pip install -e '.[vllm]', or set use_vllm to false")
    if args.repetition_penalty != 1:
        raise ValueError("repetition_penalty is not supported: set it to 1")
