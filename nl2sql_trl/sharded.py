"""A whole model on each rank, where training shards its weights: ZeRO-3 and FSDP2.

A forward of a sharded model is a collective: a rank whose trajectories take another turn would
wait for ranks that are done. So the weights are gathered once around a rollout, and each rank
samples from its own whole copy. To enter and to leave is collective, between there are none.

    ZeRO-3   TRL's `unwrap_model_for_generation` gathers in place.
    FSDP2    an unsharded copy beside the shards, in bf16 where the run is; its memory is freed
             after each rollout.

A whole copy must fit beside the shards. FSDP1 is refused. Everything else that generates on
ranks, vLLM among it, is in `backends.py`.

Both are tested on two CPU ranks with gloo, against DDP; neither was run on GPUs.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from nl2sql_trl.policy import Policy
from nl2sql_trl.prompts import Codec
from nl2sql_trl.records import Sample
from nl2sql_trl.rollout import RolloutError


def base_model(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper (whose adapters stay active), or itself."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def weights_are_sharded(accelerator: Any) -> str:
    """Why a rank holds a part of the weights only, as a sentence; "" where it holds all."""
    deepspeed = accelerator.state.deepspeed_plugin
    if deepspeed is not None and deepspeed.zero_stage == 3:
        return "ZeRO-3 shards the weights"
    if fsdp_version(accelerator):
        return "FSDP shards the weights"
    return ""


def fsdp_version(accelerator: Any) -> int:
    """1 or 2 under FSDP, otherwise 0."""
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    return 0 if plugin is None else int(plugin.fsdp_version)


def replica_of(model: Any, accelerator: Any) -> Replica | None:
    """An empty copy to fill later, where FSDP is going to shard. Call it before training starts."""
    version = fsdp_version(accelerator)
    if version == 1:
        raise RolloutError("FSDP version 1 is not supported: set fsdp_version to 2")
    return Replica(model) if version else None


class Replica:
    """An unsharded copy of a model that FSDP2 is about to shard. Empty but within `filled`."""

    def __init__(self, model: Any) -> None:
        empty = {id(p): _frozen(p.detach().to("meta")) for p in model.parameters()}
        self.model = copy.deepcopy(model, dict(empty))
        self.model.requires_grad_(False)
        self._empty = dict(self.model.named_parameters(remove_duplicate=False))
        # Modules, not names: to merge adapters renames what is inside.
        self._owners = dict(self.model.named_modules())

    @contextlib.contextmanager
    def filled(self, sharded: Any, dtype: torch.dtype | None, device: Any) -> Iterator[Any]:
        """The copy with the weights that `sharded` has now. A collective to enter.

        dtype: of floating-point weights (None: as they are).
        """
        whole: dict[int, torch.nn.Parameter] = {}
        for name, shard in sharded.named_parameters(remove_duplicate=False):
            if id(shard) not in whole:  # tied weights stay tied
                full = _gathered(shard.detach(), device)
                whole[id(shard)] = _frozen(full if dtype is None else full.to(dtype))
            self._put(name, whole[id(shard)])
        for name, buffer in sharded.named_buffers(remove_duplicate=False):
            owner, _, leaf = _plain_name(name).rpartition(".")
            self._owners[owner]._buffers[leaf] = buffer
        try:
            yield self.model
        finally:
            for name, empty in self._empty.items():
                self._put(name, empty)

    def _put(self, name: str, weight: torch.nn.Parameter) -> None:
        owner, _, leaf = _plain_name(name).rpartition(".")
        self._owners[owner]._parameters[leaf] = weight


def _frozen(weight: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(weight, requires_grad=False)


def _gathered(shard: Any, device: Any) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    shard = shard.to(device)
    return shard.full_tensor() if isinstance(shard, DTensor) else shard


def _plain_name(name: str) -> str:
    """A weight's name without what FSDP's activation checkpointing puts into it."""
    return name.replace("_checkpoint_wrapped_module.", "")


@contextlib.contextmanager
def whole_model(trainer: Any, dtype: torch.dtype | None = None) -> Iterator[Any]:
    """The trained model with all its weights on this rank. All ranks enter and leave together.

    dtype: what FSDP2's copy is kept in (None: as it is trained).
    """
    accelerator = trainer.accelerator
    if fsdp_version(accelerator):
        sharded = accelerator.unwrap_model(trainer.model)
        with trainer.replica.filled(sharded, dtype, accelerator.device) as model:
            yield model
    elif weights_are_sharded(accelerator):
        from trl.models import unwrap_model_for_generation

        with unwrap_model_for_generation(trainer.model_wrapped, accelerator) as model:
            yield model
    else:
        yield accelerator.unwrap_model(trainer.model)


class GatheredPolicy:
    """A policy whose model is whole within its session only. `make` builds it from that model."""

    def __init__(
        self,
        whole: Callable[[], contextlib.AbstractContextManager[Any]],
        make: Callable[[Any], Policy],
        codec: Codec,
    ) -> None:
        self._whole, self._make, self.codec = whole, make, codec

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Gather, sample, let go."""
        with self._whole() as model:
            self._inner = self._make(model)
            with self._inner.session():
                yield
            del self._inner

    def submit(self, key: int, ids: Sequence[int], max_tokens: int) -> None:
        """Of the policy inside."""
        self._inner.submit(key, ids, max_tokens)

    def step(self) -> list[tuple[int, Sample]]:
        """Of the policy inside."""
        return self._inner.step()

    def release(self, key: int) -> None:
        """Of the policy inside."""
        self._inner.release(key)
