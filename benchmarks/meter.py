"""Counts seconds, tokens and memory of a run in the same way on both sides.

Hooks on the decoder (the layers without the vocabulary's projection) tell what is computed:
forwards without gradient over several positions are prefill, over one position decode; forwards
with gradient are the update. Tokens are counted as the model gets them, padding included.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from nl2sql_trl import runs


class Meter:
    """`seconds`, `cpu` (CPU seconds of all threads) and `tokens` by the name of a phase."""

    def __init__(self, model: Any) -> None:
        self.seconds: Counter[str] = Counter()
        self.cpu: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.load = os.getloadavg()[0]
        self.device = next(model.parameters()).device
        decoder = model.get_decoder()
        decoder.register_forward_pre_hook(self._before, with_kwargs=True)
        decoder.register_forward_hook(self._after, with_kwargs=True)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add what the block takes to a phase."""
        wall, cpu = self._now()
        try:
            yield
        finally:
            self._add(phase, wall, cpu)

    def peak(self) -> int:
        """Bytes at most: of the whole process so far, on a GPU of the GPU's memory."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated()
        return runs.peak_memory()

    def _now(self) -> tuple[float, float]:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter(), time.process_time()

    def _add(self, phase: str, wall: float, cpu: float) -> None:
        end, cpu_end = self._now()
        self.seconds[phase] += end - wall
        self.cpu[phase] += cpu_end - cpu

    def _before(self, _module: Any, args: Any, kwargs: Any) -> None:
        self._started = self._now()

    def _after(self, _module: Any, args: Any, kwargs: Any, _output: Any) -> None:
        ids = args[0] if args else kwargs["input_ids"]
        phase = "prefill" if ids.shape[1] > 1 else "decode"
        phase = "forward" if torch.is_grad_enabled() else phase
        self.tokens[phase] += ids.numel()
        self._add(phase, *self._started)
