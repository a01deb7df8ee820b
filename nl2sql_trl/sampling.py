"""How one token is drawn from logits: temperature, the usual cuts, and log-probabilities.

Draws invert the cumulative distribution at given uniform numbers, so who provides the numbers
decides what repeats. Nothing here knows of models or batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. temperature 0 is greedy; top_p 1 and top_k 0 mean no cut."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0 or self.min_p < 0:
            raise ValueError(f"sampling parameters out of range: {self}")


def draw(
    logits: torch.Tensor, sampling: Sampling, uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """One token a row by inverting the cumulative distribution at `uniforms` (each in [0, 1)).

    `logits`: (rows, vocabulary), fp32. Returns ids and their natural log-probabilities under
    the distribution that was drawn from (greedy: under the model's own).
    """
    import torch

    if sampling.temperature == 0:
        ids = logits.argmax(-1)
        chosen = logits.gather(1, ids[:, None])[:, 0]
        return ids.tolist(), (chosen - logits.logsumexp(-1)).tolist()
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    points = torch.tensor(uniforms, device=logits.device, dtype=torch.double)[:, None]
    probabilities = _cut_tail(logits, sampling).softmax(-1)
    ids = _invert(probabilities, points)
    return ids.tolist(), probabilities.gather(1, ids[:, None])[:, 0].log().tolist()


def _invert(probabilities: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """The id where each row's cumulative probability passes its point (rows, 1).

    By blocks: a running sum over a whole vocabulary is slow, over its blocks' sums it is not.
    """
    import torch
    from torch.nn.functional import pad

    rows, size = probabilities.shape
    if size % _BLOCK:
        probabilities = pad(probabilities, (0, -size % _BLOCK))
    blocks = probabilities.view(rows, -1, _BLOCK)
    outer = blocks.sum(-1).cumsum(-1, dtype=torch.double)
    points = points * outer[:, -1:]
    block = torch.searchsorted(outer, points, right=True).clamp_max(outer.shape[1] - 1)
    chosen = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0]
    inner = chosen.double().cumsum(-1)
    before = outer.gather(1, block) - inner[:, -1:]
    place = torch.searchsorted(inner, points - before, right=True).clamp_max(_BLOCK - 1)
    # Rounding can point at a token that was cut: then the block's likeliest stands in.
    place = torch.where(chosen.gather(1, place) > 0, place, chosen.argmax(-1, keepdim=True))
    return (block * _BLOCK + place)[:, 0]


def _cut_tail(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Apply top-k, top-p and min-p, in the order that transformers applies them."""
    if sampling.top_k:
        kept = logits.topk(min(sampling.top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kept, float("-inf"))
    if sampling.top_p < 1:
        ranked, order = logits.sort(-1)
        drop = ranked.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        drop[:, -1] = False
        logits = logits.masked_fill(drop.scatter(1, order, drop), float("-inf"))
    if sampling.min_p:
        probabilities = logits.softmax(-1)
        least = probabilities.amax(-1, keepdim=True) * sampling.min_p
        logits = logits.masked_fill(probabilities < least, float("-inf"))
    return logits
