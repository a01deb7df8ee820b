"""Linear layers in the layout that oneDNN computes in, for as long as sampling goes on.

In bf16 on a CPU every product of a few rows with a weight first brings the weight into blocks. A
rollout does that thousands of times with the same weights; here it is done once. The values are
those of the layer itself in bf16. Layers that read the same input (queries, keys and values; the
two of a gated unit) are one product. Elsewhere, and in fp32, layers stay as they are.

The operators are those that torch's own compiler emits for linear layers on CPUs; a test holds
them to `torch.nn.functional.linear`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_ROWS = 32  # about so many rows a product: the layout is chosen for it
_SMALLEST = 64  # features; below it there is nothing to gain
_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # read the same input


@contextlib.contextmanager
def packed(model: Any, *, autocast: bool) -> Iterator[None]:
    """The model's linear layers packed inside the block, if it computes in bf16 on a CPU.

    autocast: whether it does under bf16 autocast. Weights must not change inside.
    """
    import torch

    changed: list[Any] = []
    try:
        for layers in _joint(model, autocast) if torch.backends.mkldnn.is_available() else ():
            product = _Product(layers)
            for place, layer in enumerate(layers):
                layer.forward = functools.partial(product.part, place)
                changed.append(layer)
        yield
    finally:
        for layer in changed:
            del layer.forward


def _joint(model: Any, autocast: bool) -> Iterator[list[Any]]:
    """The layers that gain, those that read the same input together."""
    import torch

    rest = [m for m in model.modules() if type(m) is torch.nn.Linear and _gains(m.weight, autocast)]
    gaining = set(rest)
    for parent in model.modules():
        for names in _SIBLINGS:
            layers = [getattr(parent, name, None) for name in names]
            if gaining.issuperset(layers):
                gaining.difference_update(layers)
                yield layers
    yield from ([layer] for layer in rest if layer in gaining)


def _gains(weight: torch.Tensor, autocast: bool) -> bool:
    import torch

    in_bf16 = autocast or weight.dtype == torch.bfloat16
    return in_bf16 and weight.device.type == "cpu" and min(weight.shape) >= _SMALLEST


class _Product:
    """What some layers make of one input, computed when the first of them is asked."""

    def __init__(self, layers: Sequence[Any]) -> None:
        import torch

        self.operators: Any = torch.ops.mkldnn
        weight = torch.cat([layer.weight.detach().bfloat16() for layer in layers])
        self.weight = self.operators._reorder_linear_weight(weight, _ROWS)
        self.bias = None
        if any(layer.bias is not None for layer in layers):
            biases = [
                weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias.detach()
                for layer in layers
            ]
            self.bias = torch.cat([bias.bfloat16() for bias in biases])
        self.sizes = [layer.out_features for layer in layers]
        self.input: Any = None
        self.parts: Sequence[Any] = ()

    def part(self, place: int, x: torch.Tensor) -> Any:
        """The output of the layer at `place`. Inputs are known by identity: none may change."""
        if x is not self.input:
            found = self.operators._linear_pointwise(
                x.bfloat16(), self.weight, self.bias, "none", [], ""
            )
            self.input, self.parts = x, found.split(self.sizes, -1)
        if place == len(self.sizes) - 1:
            self.input, parts, self.parts = None, self.parts, ()
            return parts[place]
        return self.parts[place]
