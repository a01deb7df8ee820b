"""What vLLM 0.31 needs to run on a small CPU machine. Call `prepare` before vLLM is imported.

It stands with the tests: on a GPU none of it is wanted.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]

ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in the trainer's process, as TRL wants it
    "VLLM_LOGGING_LEVEL": "WARNING",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
# head_dim is at least 32 in vLLM's CPU attention.
SIZES = {"hidden_size": 128, "intermediate_size": 128, "head_dim": 32}


def prepare() -> None:
    """Settings and patches of this process; `tests` goes on the path for `fakes`."""
    os.environ.update(ENV)
    sys.path.insert(0, str(TESTS))
    import vllm
    import vllm._custom_ops

    # oneDNN packs the weights, and packed ones cannot be loaded again.
    vllm._custom_ops._supports_onednn = False

    import trl.generation.vllm_generation as generation

    # Compiling takes longer than these trainings do. Left to itself vLLM makes bf16 of fp32, whose
    # rounding would hide a log-probability of another row.
    generation.LLM = functools.partial(vllm.LLM, enforce_eager=True, dtype="float32")


def save_model(folder: Path) -> Path:
    """A small random Qwen2 with its tokenizer."""
    from fakes import chat_tokenizer, random_model

    random_model(**SIZES).save_pretrained(folder)
    chat_tokenizer().save_pretrained(folder)
    return folder


def codec(calls_of: int = 3) -> Any:
    """Reads calls and answers into what a random model writes: a call in `calls_of` - 1 of them.

    Many tokens end a turn, so that turns are short and of unequal lengths.
    """
    from fakes import chat_tokenizer

    from nl2sql_trl.prompts import Codec, answer_text, call_text

    class Fortune(Codec):
        def decode(self, ids: Any) -> str:
            if sum(ids) % calls_of:
                return call_text("SELECT count(*) FROM singer")
            return answer_text("SELECT 1") if len(ids) % 2 else "I do not know."

    found = Fortune(chat_tokenizer())
    found.stop_ids |= frozenset(range(300, len(chat_tokenizer()), 8))
    return found
