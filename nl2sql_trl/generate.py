"""A policy for any causal language model, through transformers' own `generate`.

Slower than `engine.py`: each turn prefills its whole context again, and a batch goes on until its
longest row ends. It stands in where the shared-prefix attention does not hold.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from nl2sql_trl.engine import TransformersPolicy, supports
from nl2sql_trl.prompts import Codec
from nl2sql_trl.records import Sample
from nl2sql_trl.sampling import Sampling


def model_policy(
    model: Any, codec: Codec, sampling: Sampling, *, seed: int, autocast: bool
) -> TransformersPolicy | GeneratePolicy:
    """The faster policy that holds for this model: shared prefixes, or else `generate`."""
    kind = TransformersPolicy if supports(model) else GeneratePolicy
    return kind(model, codec, sampling, seed=seed, autocast=autocast)


class GeneratePolicy:
    """Samples with `model.generate`, `batch` contexts at a time, padded on the left."""

    def __init__(
        self,
        model: Any,
        codec: Codec,
        sampling: Sampling | None = None,
        *,
        seed: int = 0,
        batch: int = 16,
        autocast: bool = False,
    ) -> None:
        self.model, self.codec = model, codec
        self.sampling = sampling or Sampling()
        self.seed, self.batch, self.autocast = seed, batch, autocast
        self._queue: list[tuple[int, tuple[int, ...], int]] = []

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Eval mode; the global random generator, which `step` seeds, is put back afterwards.

        The model's own generation config is set aside: a penalty or a cut in it would sample from
        another distribution than `sampling` says.
        """
        import torch
        from transformers import GenerationConfig

        was_training, own_config = self.model.training, self.model.generation_config
        device = self.model.device
        self._queue = []
        self.model.eval()
        self.model.generation_config = GenerationConfig()
        cast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.autocast)
        devices = [device] if device.type == "cuda" else []
        try:
            with torch.no_grad(), cast, torch.random.fork_rng(devices=devices):
                yield
        finally:
            self.model.train(was_training)
            self.model.generation_config = own_config

    def submit(self, key: int, ids: Sequence[int], max_tokens: int) -> None:
        """Queue a context."""
        self._queue.append((key, tuple(ids), max_tokens))

    def release(self, key: int) -> None:
        """Nothing is kept between turns."""

    def step(self) -> list[tuple[int, Sample]]:
        """Generate for one batch of queued contexts; each row is cut at its own limit.

        Draws are seeded by what is in the batch: an evaluation that goes on with some of its rows
        must not draw for them what it drew for others.
        """
        import torch

        batch, self._queue = self._queue[: self.batch], self._queue[self.batch :]
        what = repr((self.seed, [(key, len(ids)) for key, ids, _ in batch]))
        torch.manual_seed(int.from_bytes(hashlib.sha256(what.encode()).digest()[:8], "big"))
        width = max(len(ids) for _, ids, _ in batch)
        pad = self.codec.tokenizer.pad_token_id
        rows = [[pad] * (width - len(ids)) + list(ids) for _, ids, _ in batch]
        mask = [[0] * (width - len(ids)) + [1] * len(ids) for _, ids, _ in batch]
        device = self.model.device
        out = self.model.generate(
            input_ids=torch.tensor(rows, device=device),
            attention_mask=torch.tensor(mask, device=device),
            max_new_tokens=max(limit for *_, limit in batch),
            eos_token_id=sorted(self.codec.stop_ids),
            pad_token_id=pad,
            return_dict_in_generate=True,
            output_logits=self.sampling.temperature == 0,
            output_scores=self.sampling.temperature != 0,
            **self._arguments(),
        )
        scores = torch.stack(out.logits or out.scores, 1).float().log_softmax(-1)
        new = out.sequences[:, width:]
        logprobs = scores.gather(2, new[:, :, None])[:, :, 0].tolist()
        done = []
        for (key, _, limit), ids, values in zip(batch, new.tolist(), logprobs, strict=True):
            ends = (n + 1 for n, token in enumerate(ids) if token in self.codec.stop_ids)
            length = min(limit, next(ends, len(ids)))
            done.append((key, Sample(tuple(ids[:length]), tuple(values[:length]))))
        return done

    def _arguments(self) -> dict[str, Any]:
        s = self.sampling
        if s.temperature == 0:
            return {"do_sample": False}
        return {
            "do_sample": True,
            "temperature": s.temperature,
            "top_p": s.top_p,
            "top_k": s.top_k,
            "min_p": s.min_p or None,
        }
