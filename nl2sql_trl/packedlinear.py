"""Linear layers in the layout that oneDNN computes in, for as long as sampling goes on.

In bf16 on a CPU every product of a few rows with a weight first brings the weight into blocks. A
rollout does that thousands of times with the same weights; here it is done once. The values are
those of the layer itself in bf16. Elsewhere, and in fp32, layers stay as they are.

The operators are those that torch's own compiler emits for linear layers on CPUs; a test holds
them to `torch.nn.functional.linear`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_ROWS = 32  # about so many rows a product: the layout is chosen for it
_SMALLEST = 64  # features; below it there is nothing to gain


@contextlib.contextmanager
def packed(model: Any, *, autocast: bool) -> Iterator[None]:
    """The model's linear layers packed inside the block, if it computes in bf16 on a CPU.

    autocast: whether it does under bf16 autocast. Weights must not change inside.
    """
    import torch

    changed = []
    try:
        if torch.backends.mkldnn.is_available():
            for layer in model.modules():
                if type(layer) is torch.nn.Linear and _gains(layer.weight, autocast):
                    layer.forward = _forward(layer)
                    changed.append(layer)
        yield
    finally:
        for layer in changed:
            del layer.forward


def _gains(weight: torch.Tensor, autocast: bool) -> bool:
    import torch

    in_bf16 = autocast or weight.dtype == torch.bfloat16
    return in_bf16 and weight.device.type == "cpu" and min(weight.shape) >= _SMALLEST


def _forward(layer: Any) -> Any:
    import torch

    operators: Any = torch.ops.mkldnn
    weight = operators._reorder_linear_weight(layer.weight.detach().bfloat16(), _ROWS)
    bias = None if layer.bias is None else layer.bias.detach().bfloat16()

    def forward(x: torch.Tensor) -> Any:
        return operators._linear_pointwise(x.bfloat16(), weight, bias, "none", [], "")

    return forward
