"""Where tokens come from: the seam between the rollout and whatever samples.

A policy takes token-id contexts and returns sampled ids with their log-probabilities, some
contexts sooner than others. The key of a context stays the same over a trajectory's turns, and
its ids only ever grow: a policy may keep a cache per key, and may see that contexts share a
prefix. `engine.py` does both; `ScriptedPolicy` here plays written turns without any model.

This module knows no SQL, no chat template and no trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from nl2sql_trl.prompts import Codec
from nl2sql_trl.records import Sample


class Policy(Protocol):
    """Samples continuations of token-id contexts, in whatever order they become ready."""

    codec: Codec

    def session(self) -> AbstractContextManager[None]:
        """Held open around all other calls of one rollout; weights do not change meanwhile."""

    def submit(self, key: int, ids: Sequence[int], max_tokens: int) -> None:
        """Ask for a continuation of `ids` of 1 to `max_tokens` tokens, ended by a stop token."""

    def step(self) -> list[tuple[int, Sample]]:
        """Work for a while; return what got finished (possibly nothing yet)."""

    def release(self, key: int) -> None:
        """The trajectory `key` is over: what is cached for it can go."""


Script = Callable[[int, int], str]


class ScriptedPolicy:
    """Plays written assistant messages: `scripts[key][turn]`, or a function of (key, turn).

    For tests and notebooks. A trajectory that outlives its script raises IndexError. Messages
    longer than the token limit are cut there, as a model's would be.
    """

    def __init__(self, scripts: Sequence[Sequence[str]] | Script, codec: Codec) -> None:
        self.codec = codec
        self._script: Script = (
            scripts if callable(scripts) else lambda key, turn: scripts[key][turn]
        )
        self._turns: dict[int, int] = {}
        self._queue: list[tuple[int, int]] = []
        #: every (key, ids, max_tokens) that was asked for, in order
        self.contexts: list[tuple[int, tuple[int, ...], int]] = []

    @contextmanager
    def session(self) -> Iterator[None]:
        """Start every script from its first turn."""
        self._turns, self._queue = {}, []
        yield

    def submit(self, key: int, ids: Sequence[int], max_tokens: int) -> None:
        """Queue one turn; what was asked is kept in `contexts`."""
        self.contexts.append((key, tuple(ids), max_tokens))
        self._queue.append((key, max_tokens))

    def step(self) -> list[tuple[int, Sample]]:
        """Play the next turn of every queued trajectory."""
        queue, self._queue = self._queue, []
        return [(key, self._play(key, limit)) for key, limit in queue]

    def release(self, key: int) -> None:
        """Forget the trajectory's place in its script."""
        self._turns.pop(key, None)

    def _play(self, key: int, limit: int) -> Sample:
        turn = self._turns.get(key, 0)
        self._turns[key] = turn + 1
        text_ids = self.codec.tokenizer(self._script(key, turn), add_special_tokens=False)
        ids = [*text_ids["input_ids"], self.codec.eos_id][:limit]
        return Sample(tuple(ids), (0.0,) * len(ids))


class ByteTokenizer:
    """A tokenizer without files or libraries: one token a byte, and Qwen's ChatML chat format.

    For `ScriptedPolicy` and notebooks that need no torch. Ids 0 to 255 are bytes; three special
    tokens follow. It stands in for a transformers tokenizer where `Codec` uses one.
    """

    chat_template = "built in"
    eos_token, eos_token_id = "<|im_end|>", 257
    pad_token, pad_token_id = "<|endoftext|>", 258
    _special = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")

    def get_added_vocab(self) -> dict[str, int]:
        """The special tokens with their ids."""
        return {token: 256 + n for n, token in enumerate(self._special)}

    def __call__(self, text: str, add_special_tokens: bool = False) -> dict[str, list[int]]:
        """Ids of a text; special tokens in it become single ids."""
        import re

        ids: list[int] = []
        for part in re.split("(" + "|".join(map(re.escape, self._special)) + ")", text):
            special = self.get_added_vocab().get(part)
            ids += [special] if special is not None else part.encode("utf-8", "replace")
        return {"input_ids": ids}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of ids; bytes that are no UTF-8 become replacement characters."""
        data = b"".join(
            bytes([i])
            if i < 256
            else b""
            if skip_special_tokens
            else self._special[i - 256].encode()
            for i in ids
        )
        return data.decode("utf-8", "replace")

    def apply_chat_template(
        self,
        chat: Sequence[dict[str, str]],
        tools: Sequence[dict[str, object]],
        tokenize: bool = False,
        add_generation_prompt: bool = True,
    ) -> str:
        """ChatML text with the tool's schema in the system message and Hermes tool responses."""
        import json

        parts: list[str] = []
        for n, message in enumerate(chat):
            role, content = message["role"], message["content"]
            if role == "system":
                content += "\n\n# Tools\n" + "\n".join(json.dumps(tool) for tool in tools)
            if role == "tool":
                content = f"<tool_response>\n{content}\n</tool_response>"
                if n and chat[n - 1]["role"] == "tool":
                    parts[-1] = parts[-1].removesuffix("<|im_end|>\n") + f"\n{content}<|im_end|>\n"
                    continue
                role = "user"
            parts.append(f"<|im_start|>{role}\n{content}<|im_end|>\n")
        if chat[0]["role"] != "system":
            tool_text = "\n".join(json.dumps(tool) for tool in tools)
            parts.insert(0, f"<|im_start|>system\n# Tools\n{tool_text}<|im_end|>\n")
        return "".join(parts) + ("<|im_start|>assistant\n" if add_generation_prompt else "")
