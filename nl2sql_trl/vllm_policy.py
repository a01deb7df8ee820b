"""A policy over a vLLM engine in this process, stepped by us: vLLM colocated with the trainer.

Requests join and leave the running batch one by one, so a trajectory goes on as soon as its SQL
is done. Each has its own token limit. vLLM's prefix cache keeps what turns and group members have
in common.

With tensor parallelism several ranks hold one engine between them and must feed it the same
requests in the same order, though each rolls out trajectories of its own. So they exchange what
is new before they step (`group`), a rank that is done goes on stepping for the others, and an
error on one ends all.

Draws come from the engine's own generator: other than with `engine.py`, they depend on what else
is in the batch. Log-probabilities are of the distribution that was drawn from if the engine has
logprobs_mode "processed_logprobs", as TRL sets it. Weights are somebody else's concern.

Run on CPU, with an engine a rank and with one over two ranks. Not run on GPUs; an engine that
sleeps needs one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nl2sql_trl.prompts import Codec
from nl2sql_trl.records import Sample
from nl2sql_trl.rollout import RolloutError
from nl2sql_trl.sampling import Sampling

_STEPS = 16  # of the engine between two exchanges


@dataclass(frozen=True, slots=True)
class _Message:
    """What a rank tells the others of its group before they step."""

    new: tuple[tuple[int, tuple[int, ...], int], ...]  # key, ids, token limit
    done: bool = False
    error: str = ""


class ColocatedPolicy:
    """Samples with `llm` (a `vllm.LLM`). Not thread-safe.

    group: the torch process group of the ranks that share the engine (None: it is ours alone).
    awake: held around the session, where the engine sleeps between rollouts.
    """

    def __init__(
        self,
        llm: Any,
        codec: Codec,
        sampling: Sampling,
        *,
        group: Any = None,
        awake: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._engine, self.codec, self.sampling = llm.llm_engine, codec, sampling
        self._group, self._awake = group, awake
        self._rank = 0 if group is None else _rank(group)

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """An empty queue; at the end the engine serves the group's other ranks until all end."""
        self._new: list[tuple[int, tuple[int, ...], int]] = []
        self._running: dict[str, tuple[int, int]] = {}  # request: the rank and key it is of
        self._count, self._told = 0, False
        with self._awake():
            try:
                yield
                while not self._exchange(done=True):
                    self._advance()
            except BaseException as error:
                if not self._told:
                    self._exchange(error=f"{type(error).__name__}: {error}")
                raise
            finally:
                self._engine.abort_request(list(self._running))

    def submit(self, key: int, ids: Sequence[int], max_tokens: int) -> None:
        """Queue a context."""
        self._new.append((key, tuple(ids), max_tokens))

    def release(self, key: int) -> None:
        """Nothing to free: vLLM evicts by itself."""

    def step(self) -> list[tuple[int, Sample]]:
        """Give the engine what is queued and run it on, a step or, in a group, some."""
        self._exchange()
        return self._advance()

    def _exchange(self, done: bool = False, error: str = "") -> bool:
        """Add the group's new requests to the engine. Returns whether all ranks are done."""
        message = _Message(tuple(self._new), done, error)
        self._new = []
        messages = [message] if self._group is None else _all_gather(message, self._group)
        failed = [(rank, m.error) for rank, m in enumerate(messages) if m.error]
        if failed:
            self._told = True
            if not error:
                raise RolloutError("rank {} of the engine's group failed: {}".format(*failed[0]))
            return True
        for rank, other in enumerate(messages):
            for key, ids, limit in other.new:
                name = f"{self._count}"
                self._count += 1
                self._add(name, key, ids, limit)
                self._running[name] = (rank, key)
        return all(m.done for m in messages)

    def _add(self, name: str, key: int, ids: tuple[int, ...], limit: int) -> None:
        """One request to the engine."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        s = self.sampling
        params = SamplingParams(
            temperature=s.temperature,
            top_p=s.top_p,
            top_k=s.top_k,
            min_p=s.min_p,
            max_tokens=limit,
            stop_token_ids=sorted(self.codec.stop_ids),
            ignore_eos=True,  # those of the codec alone end a turn
            logprobs=0,  # of the drawn token alone
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        try:
            self._engine.add_request(name, {"prompt_token_ids": list(ids)}, params)
        except Exception as error:  # vLLM's own have no common base
            raise RolloutError(f"vLLM refused the context of row {key}: {error}") from error

    def _advance(self) -> list[tuple[int, Sample]]:
        """Step the engine until a request ends; every rank of a group does so at the same step."""
        for _ in range(1 if self._group is None else _STEPS):
            if not self._running:
                break
            ended = [out for out in self._engine.step() if out.finished]
            if ended:
                return [s for s in map(self._take, ended) if s is not None]
        return []

    def _take(self, output: Any) -> tuple[int, Sample] | None:
        """A finished request of ours as a sample; None if it is another rank's."""
        rank, key = self._running.pop(output.request_id)
        if rank != self._rank:
            return None
        (completion,) = output.outputs
        ids = tuple(completion.token_ids)
        if not ids:
            raise RolloutError(
                f"vLLM wrote nothing for row {key} ({completion.finish_reason}): does its context "
                f"of {len(output.prompt_token_ids)} tokens fit vllm_max_model_length?"
            )
        chosen = zip(ids, completion.logprobs, strict=True)
        return key, Sample(ids, tuple(entry[token].logprob for token, entry in chosen))


def _rank(group: Any) -> int:
    import torch.distributed

    return torch.distributed.get_rank(group)


def _all_gather(message: _Message, group: Any) -> list[_Message]:
    import torch.distributed

    messages: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(messages, message, group=group)
    return messages
