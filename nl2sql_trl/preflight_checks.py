"""What is wrong with a planned run: what makes it impossible, and what to beware of.

Each check is a function of a `Plan` and gives sentences that say what to change. Nothing is read
here and nothing is printed: `plan.py` gathers what is known, `preflight.py` shows what was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nl2sql_trl.footprint import checkpoint_bytes, model_bytes, vllm_least
from nl2sql_trl.plan import Plan, gib

_ROOM = 0.9  # of a device: the rest goes to the CUDA context and the allocator's fragments


def impossible(plan: Plan) -> list[str]:
    """Why the run cannot work at all."""
    return [*_batch(plan), *_engine(plan), *_no_room(plan), *_no_prompt(plan), *_no_disk(plan)]


def bewares(plan: Plan) -> list[str]:
    """What may go wrong."""
    return [*_tight(plan), *_long(plan), *_little_disk(plan), *_sampling(plan), *_settings(plan)]


def _batch(plan: Plan) -> Iterator[str]:
    work, n = plan.work, plan.layout.processes
    if work.group < 2:
        yield "num_generations is below 2: a group of one has no advantage; set it to 8"
        return
    batch = work.rollouts * n
    if batch % work.group:
        yield (
            f"a step's {batch} rollouts ({n} processes x {work.rollouts}) do not divide by "
            f"num_generations ({work.group}): change per_device_train_batch_size, "
            "gradient_accumulation_steps or num_generations"
        )


def _engine(plan: Plan) -> Iterator[str]:
    work, shape = plan.work, plan.shape
    if work.vllm != "colocate":
        return
    width = work.tensor_parallel
    if plan.layout.processes % width or shape.heads % width:
        yield (
            f"vllm_tensor_parallel_size {width} must divide the processes "
            f"({plan.layout.processes}) and the model's heads ({shape.heads})"
        )
        return
    if plan.device and vllm_least(shape, work) > plan.device * work.vllm_share:
        yield (
            f"vLLM needs {gib(vllm_least(shape, work))} GiB for its weights and one sequence, but "
            f"gets {gib(plan.device * work.vllm_share)}: raise vllm_gpu_memory_utilization or "
            "vllm_tensor_parallel_size, or lower vllm_max_model_length"
        )


def _no_room(plan: Plan) -> Iterator[str]:
    if plan.device and plan.memory.fixed > plan.device:
        yield (
            f"weights, gradients and optimiser need {gib(plan.memory.fixed)} GiB a device, which "
            f"has {gib(plan.device)}: {_fewer_states(plan)}"
        )


def _no_prompt(plan: Plan) -> Iterator[str]:
    if plan.prompts is None:
        return
    shortest = plan.prompts.lengths[0]
    if not plan.prompts.kept:
        yield (
            f"max_prompt_tokens {plan.prompts.most} leaves no row: the shortest of "
            f"{len(plan.prompts.lengths)} sampled prompts has {shortest} tokens; raise it"
        )
    elif shortest >= plan.shape.positions:
        yield (
            f"the shortest prompt has {shortest} tokens and the model {plan.shape.positions} "
            "positions: take a model with a longer context"
        )
    elif _vllm_limit(plan) and plan.work.prompt + plan.work.budget > _vllm_limit(plan):
        yield (
            f"a prompt of {plan.work.prompt} tokens and max_completion_length "
            f"{plan.work.budget} exceed vLLM's context of {_vllm_limit(plan)}: raise "
            "vllm_max_model_length, or leave long rows out with max_prompt_tokens"
        )


def _vllm_limit(plan: Plan) -> int:
    """Tokens that colocated vLLM takes, 0 where there is none."""
    if plan.work.vllm != "colocate":
        return 0
    return plan.work.vllm_length or plan.shape.positions


def _no_disk(plan: Plan) -> Iterator[str]:
    least = model_bytes(plan.shape, plan.work)
    if plan.saves:
        least = max(least, checkpoint_bytes(plan.shape, plan.work, plan.layout))
    if plan.disk is not None and least > plan.disk:
        yield (
            f"{gib(least)} GiB are to be saved at once and {gib(plan.disk)} are free: make room, "
            "or set output_dir to a larger disk"
        )


def _tight(plan: Plan) -> Iterator[str]:
    needed, work = plan.memory, plan.work
    if not plan.device or needed.peak <= plan.device * _ROOM or needed.fixed > plan.device:
        return
    told = (
        f"trajectories at their full budget need about {gib(needed.peak)} GiB a device, which has "
        f"{gib(plan.device)}: "
    )
    if needed.sampling > plan.device * _ROOM:
        yield told + (
            "set vllm_enable_sleep_mode: true or lower vllm_gpu_memory_utilization"
            if work.vllm
            else "lower gradient_accumulation_steps or max_completion_length"
        )
    elif work.rows > 1:
        also = "" if work.checkpointing else ", or set gradient_checkpointing: true"
        yield told + (
            "halve per_device_train_batch_size and double gradient_accumulation_steps" + also
        )
    else:
        yield told + (
            "lower max_completion_length"
            if work.checkpointing
            else "set gradient_checkpointing: true"
        )


def _fewer_states(plan: Plan) -> str:
    more = "set vllm_enable_sleep_mode: true, or " if plan.memory.generation_stays else ""
    if plan.layout.processes > 1 and plan.layout.sharding == "none":
        return more + "share them out with accelerate_configs/zero2.yaml, zero3.yaml or fsdp2.yaml"
    if plan.shape.trainable == plan.shape.parameters:
        return more + "train adapters (use_peft: true), or take more or larger devices"
    return more + "set dtype: bfloat16, or take a larger device or a smaller model"


def _long(plan: Plan) -> Iterator[str]:
    if plan.prompts is None or not plan.prompts.kept:
        return
    lengths, kept = plan.prompts.lengths, plan.prompts.kept
    if out := len(lengths) - len(kept):
        yield (
            f"{out / len(lengths):.1%} of the rows have prompts over max_prompt_tokens "
            f"({plan.prompts.most}) and are left out: raise it if memory allows"
        )
    room = plan.shape.positions - plan.work.budget
    if cut := sum(n > room for n in kept):
        yield (
            f"{cut / len(kept):.1%} of the rows have no room for max_completion_length "
            f"({plan.work.budget}) in the model's {plan.shape.positions} positions: lower it, or "
            f"set max_prompt_tokens to {max(0, room)}"
        )


def _little_disk(plan: Plan) -> Iterator[str]:
    each = checkpoint_bytes(plan.shape, plan.work, plan.layout)
    needed = plan.saves * each + model_bytes(plan.shape, plan.work)
    if plan.saves and plan.disk is not None and each <= plan.disk < needed:
        yield (
            f"checkpoints and model take {gib(needed)} GiB and {gib(plan.disk)} are free: lower "
            "save_total_limit, or set output_dir to a larger disk"
        )
    if plan.saves and not plan.config.save_total_limit:
        yield (
            f"every checkpoint of {gib(each)} GiB is kept: set save_total_limit to 2, or the disk "
            "fills up"
        )


def _sampling(plan: Plan) -> Iterator[str]:
    config, own = plan.config, plan.generation
    cuts = _cuts(own)
    if cuts:
        server = " (start vLLM's server with --generation-config vllm)"
        yield (
            f"the model's own generation config is nearer to greedy ({', '.join(cuts)}): this run "
            f"samples by its own temperature {config.temperature:g}, top_p {config.top_p:g}, top_k "
            f"{config.top_k or 0}; what else generates with the model must be told so, too"
            + (server if plan.work.vllm == "server" else "")
        )
    if 0 < config.temperature < 0.5:
        yield (
            f"temperature {config.temperature:g} is near greedy: a group's members will be alike "
            "and give no gradient; set it to 1"
        )
    if config.top_p < 1 or config.top_k or config.min_p:
        yield (
            "top_p, top_k and min_p cut the distribution that is sampled from, but not the one "
            "that is trained: set top_p: 1.0, top_k: 0 and no min_p"
        )


def _cuts(own: Any) -> list[str]:
    """What of a model's generation config makes it sample less widely than the model says."""
    if own is None:
        return []
    neutral = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
    found = {name: getattr(own, name, None) for name in neutral}
    # top_k is 50 in transformers' defaults of old, which files still carry.
    return [
        f"{name} {value:g}"
        for name, value in found.items()
        if value is not None and value != neutral[name] and (name, value) != ("top_k", 50)
    ]


def _settings(plan: Plan) -> Iterator[str]:
    config, shape, work = plan.config, plan.shape, plan.work
    full = shape.trainable == shape.parameters
    # DeepSpeed keeps an fp32 master of bf16 weights.
    if work.weight_bytes == 2 and full and plan.layout.sharding in ("none", "fsdp2"):
        yield (
            "small updates vanish in weights of half precision: set dtype: float32 (bf16: true "
            "still computes in bf16)"
        )
    if work.weight_bytes == 2 and not full and work.vllm:
        yield (
            "adapters are merged into a half-precision base and taken out again at each "
            "synchronisation with vLLM, which drifts: set dtype: float32, or use_vllm: false"
        )
    if config.beta:
        yield (
            f"beta {config.beta:g} needs a reference model, which is not in the memory above: "
            "set beta: 0 for none"
        )
    if work.autocast and not work.shared and not work.checkpointing and work.group > 1:
        yield "prompts are not shared in the update here: a group's prompt runs once a member"
    if not plan.keeps_prefix:
        yield (
            "the chat template renders earlier turns anew (it is not prefix-preserving): training "
            "and evaluation here keep their tokens, but a server that renders every turn gives "
            "the model others; use a template that keeps them, such as Qwen2.5's"
        )
