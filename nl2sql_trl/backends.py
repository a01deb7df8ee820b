"""Which policy samples for the trainer in each mode, so that ranks may take unequal turns.

    transformers, one process, DDP, ZeRO-1, ZeRO-2   each rank's own model; no collectives
    transformers, ZeRO-3, FSDP2    weights gathered around the rollout (`sharded.py`)
    vLLM colocated                 each rank, or tensor-parallel group, steps its engine itself
                                   (`vllm_policy.py`); a sleeping one wakes once for the rollout
    vLLM server                    each rank asks over HTTP for itself (`served.py`), after all
                                   have waited for the first one to push the weights

`VLLMGeneration.generate` is never called: with a server and unequal lists it hands a rank
another one's completions, and asleep it reloads all weights at each call. Before a rollout TRL
has pushed new weights to vLLM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from accelerate.utils import gather_object

from nl2sql_trl.generate import model_policy
from nl2sql_trl.policy import Policy
from nl2sql_trl.rollout import RolloutError
from nl2sql_trl.sampling import Sampling
from nl2sql_trl.served import ServedPolicy, served_model
from nl2sql_trl.sharded import GatheredPolicy, base_model, weights_are_sharded, whole_model
from nl2sql_trl.task import Task
from nl2sql_trl.vllm_policy import ColocatedPolicy

Done = TypeVar("Done")


def trained_policy(trainer: Any, seed: int) -> Policy:
    """Samples from the model being trained, with the run's parameters; greedy in evaluation.

    All ranks call it together. With vLLM `seed` has no effect.
    """
    args, accelerator, codec = trainer.args, trainer.accelerator, trainer.codec
    sampling = Sampling(args.temperature, args.top_p, args.top_k or 0, args.min_p or 0.0)
    if not trainer.model.training:
        sampling = Sampling(0.0)

    def make(model: Any) -> Policy:
        return model_policy(base_model(model), codec, sampling, seed=seed, autocast=args.bf16)

    if args.use_vllm and args.vllm_mode == "server":
        accelerator.wait_for_everyone()  # the first process has pushed the weights now
        return ServedPolicy(server_url(args), codec, sampling)
    if args.use_vllm:
        generation = trainer.vllm_generation
        group = None
        if generation.tensor_parallel_size > 1:
            accelerator.wait_for_everyone()  # NCCL drains before vLLM's own traffic, as in TRL
            group = generation.tp_group
        return ColocatedPolicy(
            generation.llm, codec, sampling, group=group, awake=lambda: _awake(generation)
        )
    if weights_are_sharded(accelerator):
        dtype = torch.bfloat16 if args.bf16 else None
        return GatheredPolicy(lambda: whole_model(trainer, dtype), make, codec)
    return make(accelerator.unwrap_model(trainer.model))


@contextlib.contextmanager
def _awake(generation: Any) -> Iterator[None]:
    """TRL's colocated engine, woken for one rollout where it sleeps between them."""
    if not generation.enable_sleep_mode:
        yield
        return
    # Its sleep forgets the weights; TRL pushes them anew only after a step.
    if generation._llm_weights_sleeping:
        generation.sync_weights()
    generation.llm.wake_up(tags=["kv_cache"])
    try:
        yield
    finally:
        generation.llm.sleep(level=2)
        generation._llm_weights_sleeping = True


def on_all_ranks(work: Callable[[], Done]) -> Done:
    """Do it. If a rank fails, all raise with its words: none is left waiting for the others."""
    error = None
    try:
        done = work()
    except Exception as caught:
        error = caught
    ranks = gather_object([error and (str(error) or type(error).__name__)])
    if error is not None:
        raise error
    for rank, said in enumerate(ranks):
        if said is not None:
            raise RolloutError(f"rank {rank} failed: {said}")
    return done


def server_url(args: Any) -> str:
    """Where TRL's settings say that the vLLM server is."""
    return args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"


def check_vllm(trainer: Any, task: Task) -> None:
    """Raise RolloutError where a trajectory can outgrow vLLM's context; print what to beware of."""
    args, generation = trainer.args, trainer.vllm_generation
    if args.vllm_mode == "server":
        limit = served_model(server_url(args))["max_model_len"]
        setting = "start the server with a larger --max-model-len"
    else:
        limit = generation.llm.llm_engine.model_config.max_model_len
        setting = "raise vllm_max_model_length"
    longest = max(len(p.ids) for p in task.prompts.values())
    if longest + task.rollout.budget > limit:
        raise RolloutError(
            f"the longest prompt ({longest} tokens) and max_completion_length "
            f"({task.rollout.budget}) exceed vLLM's context of {limit}: {setting}, or leave long "
            "rows out with max_prompt_tokens"
        )
    half = any(p.dtype in (torch.bfloat16, torch.float16) for p in trainer.model.parameters())
    if hasattr(trainer.model, "peft_config") and half and trainer.accelerator.is_main_process:
        print(
            "beware: LoRA on a half-precision base drifts with vLLM, which gets the adapters "
            "merged into it and taken out again each step; dtype: float32 does not"
        )
