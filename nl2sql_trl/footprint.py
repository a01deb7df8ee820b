"""How much memory and disk a GRPO run needs, by arithmetic from the model's config alone.

Weights, gradients and optimiser states are counted as in "ZeRO" (Rajbhandari et al. 2020, section
3); keys and values and logits from their shapes; activations from what a layer of the Llama family
keeps for its backward pass (`_kept`). Parameters are counted on the meta device: no weight is
loaded. Everything is in bytes, and for one device at its busiest moment, with every trajectory at
its full budget: with usual ones it is less. States are exact; the whole was within a factor of two
of what was measured on a CPU.

Not counted: the CUDA context and the allocator's fragments (leave some GiB free), the libraries
themselves, a reference model (`beta` above 0 loads one), and what other processes use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Sharding = Literal["none", "zero2", "zero3", "fsdp2"]
_HEAD_TOKENS = 4096  # tokens that go through the vocabulary's projection at once, here and in TRL
_TILE = 32_768  # TRL's own head takes so much of the vocabulary at once
_ENGINE_ROWS = 64  # rows that the engine decodes together
_BUCKET = 500_000_000  # elements of DeepSpeed's communication buffer


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a model decides its size. `parameters` counts tied weights once."""

    parameters: int
    trainable: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    positions: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How many processes there are, and what they share out among them."""

    processes: int = 1
    sharding: Sharding = "none"


@dataclass(frozen=True, slots=True)
class Work:
    """What one device holds and does in a step.

    rows: of a micro-batch; group: rollouts a prompt; rollouts: rows it samples in a step; prompt:
    tokens of the longest; budget: tokens after it. weight_bytes: of a parameter as loaded;
    optimizer_bytes: of a trained parameter's states. shared: prompts run once in the update.
    """

    rows: int
    group: int
    rollouts: int
    prompt: int
    budget: int
    weight_bytes: int = 4
    optimizer_bytes: int = 8
    autocast: bool = True
    checkpointing: bool = False
    shared: bool = True
    vllm: Literal["", "server", "colocate"] = ""
    vllm_share: float = 0.3
    vllm_length: int = 0  # longest sequence that vLLM must hold; 0: all positions
    tensor_parallel: int = 1
    sleep: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device, by what they are for."""

    weights: int
    gradients: int
    optimizer: int
    generation: int
    activations: int
    logits: int
    generation_stays: bool

    @property
    def fixed(self) -> int:
        """What is there in every update, however short the trajectories."""
        stays = self.generation if self.generation_stays else 0
        return self.weights + self.gradients + self.optimizer + stays

    @property
    def sampling(self) -> int:
        """What the rollouts need."""
        return self.weights + self.optimizer + self.generation

    @property
    def peak(self) -> int:
        """The busier of the two phases: sampling, and the update."""
        return max(self.sampling, self.fixed + self.activations + self.logits)


def shape_of(config: Any, lora: Any = None) -> Shape:
    """The shape of a causal language model, from its transformers config.

    lora: PEFT's config; then only the adapters are trained. Parameters are exact.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    parameters = trainable = sum(p.numel() for p in model.parameters())
    if lora is not None:
        from peft import get_peft_model

        adapted = get_peft_model(model, lora)
        trainable = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    text = config.get_text_config()
    heads = text.num_attention_heads
    return Shape(
        parameters,
        trainable,
        text.num_hidden_layers,
        text.hidden_size,
        text.intermediate_size,
        heads,
        getattr(text, "num_key_value_heads", None) or heads,
        getattr(text, "head_dim", None) or text.hidden_size // heads,
        text.vocab_size,
        text.max_position_embeddings,
    )


def kv_bytes(shape: Shape, tokens: int, width: int) -> int:
    """Keys and values of `tokens` tokens in all layers, `width` bytes a number."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * tokens * width


def memory(shape: Shape, work: Work, layout: Layout, device: int | None = None) -> Memory:
    """What one device needs. device: its bytes, of which colocated vLLM takes a share (None: as
    much as its weights and a full batch of keys and values need)."""
    weights, gradients, optimizer = _states(shape, work, layout)
    generation, stays = _generation(shape, work, device)
    if not work.vllm and layout.sharding in ("zero3", "fsdp2"):
        generation += 2 * shape.parameters  # sampled from whole, gathered for the rollout
    return Memory(
        weights,
        gradients,
        optimizer,
        generation,
        _activations(shape, work),
        _logits(shape, work),
        stays,
    )


def vllm_least(shape: Shape, work: Work) -> int:
    """The least that a vLLM engine starts with: its bf16 weights and one full sequence."""
    length = work.vllm_length or shape.positions
    return _vllm_weights(shape, work) + kv_bytes(shape, length, 2) // work.tensor_parallel


def model_bytes(shape: Shape, work: Work) -> int:
    """The finished model on disk, LoRA merged."""
    return shape.parameters * work.weight_bytes


def checkpoint_bytes(shape: Shape, work: Work, layout: Layout) -> int:
    """One checkpoint on disk, all ranks together: what is trained, and the optimiser's states."""
    master = 4 if layout.sharding in ("zero2", "zero3") else 0
    width = work.weight_bytes if shape.trainable == shape.parameters else 4
    if master and shape.trainable == shape.parameters:
        width = 2  # DeepSpeed trains a bf16 copy; the fp32 master is among the states
    saved = width * (2 if master else 1)  # DeepSpeed writes its own copy beside the model's file
    return shape.trainable * (saved + master + work.optimizer_bytes)


def _states(shape: Shape, work: Work, layout: Layout) -> tuple[int, int, int]:
    """Weights, gradients and optimiser states, with what autocast and communication add."""
    n, everything, trained = layout.processes, shape.parameters, shape.trainable
    embedding = shape.vocabulary * shape.hidden
    gathered = embedding + 2 * (everything - embedding) // shape.layers  # at once, in bf16
    if layout.sharding == "zero2":
        buffers = 2 * 2 * min(_BUCKET, trained)
        return 2 * everything, 2 * trained // n + buffers, (4 + work.optimizer_bytes) * trained // n
    if layout.sharding == "zero3":
        states = (4 + work.optimizer_bytes) * trained // n
        return 2 * everything // n + 2 * gathered, 2 * trained // n, states
    width = work.weight_bytes
    if layout.sharding == "fsdp2":
        held = width * everything // n + 2 * gathered
        return held, 4 * trained // n, work.optimizer_bytes * trained // n
    adapters = 4 * trained if trained < everything else 0
    casts = 2 * everything if work.autocast and width == 4 else 0
    copies = 2 if n > 1 else 1  # DDP's buckets hold the gradients a second time
    gradient = 4 if adapters else width
    states = work.optimizer_bytes * trained * gradient // 4
    return width * everything + adapters + casts, copies * gradient * trained, states


def _generation(shape: Shape, work: Work, device: int | None) -> tuple[int, bool]:
    """Bytes that sampling takes, and whether they stay taken during the update."""
    if work.vllm == "server":
        return 0, False
    if work.vllm == "colocate":
        if device:
            return int(device * work.vllm_share), not work.sleep
        length = min(work.prompt + work.budget, work.vllm_length or shape.positions)
        rows = work.rollouts * work.tensor_parallel  # the engine serves its whole group's rows
        cache = kv_bytes(shape, rows * length, 2) // work.tensor_parallel
        return _vllm_weights(shape, work) + cache, not work.sleep
    rows = min(work.rollouts, _ENGINE_ROWS)
    prompts = -(-rows // work.group)
    # A prompt's are there twice: by themselves, and beside the others that are decoded with it.
    tokens = rows * work.budget + 2 * prompts * work.prompt
    cache = kv_bytes(shape, tokens, 2 if work.autocast else work.weight_bytes)
    return cache + rows * shape.vocabulary * 4 * 4, False


def _vllm_weights(shape: Shape, work: Work) -> int:
    return 2 * shape.parameters // work.tensor_parallel


def _activations(shape: Shape, work: Work) -> int:
    """What the update's forward keeps for its backward, and a layer's worth to work in."""
    if work.shared:
        tokens = work.rows * work.budget + -(-work.rows // work.group) * work.prompt
    else:
        tokens = work.rows * (work.budget + work.prompt)
    layer = _kept(shape, work)
    if work.checkpointing:
        residual = shape.hidden * (4 if work.weight_bytes == 4 else 2)
        return tokens * (shape.layers * residual + 2 * layer)
    return tokens * (shape.layers + 1) * layer


def _kept(shape: Shape, work: Work) -> int:
    """Bytes a token that one layer keeps: norms, projections, attention, the gated MLP."""
    h, heads = shape.hidden, shape.heads * shape.head_dim
    kv, i = shape.kv_heads * shape.head_dim, shape.intermediate
    if not work.autocast and work.weight_bytes == 4:
        # fp32 throughout; what a norm gives is kept once for all that read it
        return 4 * (6 * h + 2 * heads + 2 * kv + 4 * i)
    # Each norm: its input and its normed value in fp32, and a bf16 cast for each that reads it.
    norms = 2 * 8 * h + 5 * 2 * h
    return norms + 2 * (2 * heads + 2 * kv + 4 * i)


def _logits(shape: Shape, work: Work) -> int:
    """The vocabulary's projection of the scored tokens, forward and backward."""
    tokens = min(work.rows * work.budget, _HEAD_TOKENS)
    if work.shared:
        # Ours: bf16 and fp32 logits, their scaled copy, the weights for the entropy, gradients.
        return tokens * shape.vocabulary * 20
    head = shape.vocabulary * shape.hidden * 4  # TRL's: a tile, and the head's gradient in fp32
    return tokens * min(shape.vocabulary, _TILE) * 12 + head
