"""The trainer of the supervised warm start: TRL's, on our token ids, batched by database.

`sft.py` makes the demonstrations; this module makes none and renders no text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from trl import SFTTrainer

from nl2sql_trl.checkpoints import WholeCheckpoints
from nl2sql_trl.sharded import base_model, replica_of, weights_are_sharded
from nl2sql_trl.sharing import share_prefixes


class SqlSFTTrainer(WholeCheckpoints, SFTTrainer):
    """SFTTrainer on token ids made by us, micro-batches by database, shared beginnings run once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.replica = replica_of(self.model, self.accelerator)
        self.not_shared = weights_are_sharded(self.accelerator) or share_prefixes(
            base_model(self.model), gradient_checkpointing=self.args.gradient_checkpointing
        )

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        # `dataset` has lost the columns that the model does not take.
        keys = self.train_dataset["db_id"]
        size, seed = self.args.per_device_train_batch_size, self.args.seed
        return ByDatabase(keys, size, lambda: seed + int(self.state.epoch or 0))


class ByDatabase(torch.utils.data.Sampler):
    """Row indices such that each micro-batch holds one database's rows, in shuffled order.

    Full micro-batches of one database first; what is left over fills mixed ones at the end. `seed`
    is asked at the start of each epoch, so that a resumed run has the order of its epoch.
    """

    def __init__(self, keys: Sequence[str], size: int, seed: Callable[[], int]) -> None:
        self.keys, self.size, self.seed = keys, size, seed

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Any:
        generator = torch.Generator().manual_seed(self.seed())
        by_key: dict[str, list[int]] = {}
        for n in torch.randperm(len(self.keys), generator=generator).tolist():
            by_key.setdefault(self.keys[n], []).append(n)
        full, rest = [], []
        for rows in by_key.values():
            whole = len(rows) // self.size * self.size
            full += [rows[i : i + self.size] for i in range(0, whole, self.size)]
            rest += rows[whole:]
        full = [full[n] for n in torch.randperm(len(full), generator=generator).tolist()]
        return iter([n for batch in full for n in batch] + rest)
