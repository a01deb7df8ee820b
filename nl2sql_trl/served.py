"""A policy over a vLLM server's HTTP endpoint: token ids in, token ids out.

Every rank asks for its own trajectories, each in a request of its own, so no rank can get another
one's completions and none waits for another; the server batches what comes. Start it with
`trl vllm-serve` or `vllm serve --logprobs-mode processed_logprobs`, without which the
log-probabilities are not those of the distribution that was drawn from.

Weights are pushed by somebody else, between rollouts. Draws are the server's: they do not repeat.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from nl2sql_trl.prompts import Codec
from nl2sql_trl.records import Sample
from nl2sql_trl.rollout import RolloutError
from nl2sql_trl.sampling import Sampling

_SECONDS = 600.0  # for one turn; a turn that takes longer is a server that hangs


class ServedPolicy:
    """Samples with the server at `url` (`http://host:8000`), up to `requests` turns at a time."""

    def __init__(
        self,
        url: str,
        codec: Codec,
        sampling: Sampling,
        *,
        requests: int = 256,
        seconds: float = _SECONDS,
    ) -> None:
        self.url, self.codec, self.sampling = url.rstrip("/"), codec, sampling
        self._requests, self._seconds = requests, seconds

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Connections and threads; what is still asked for when it ends is dropped."""
        self._pending: dict[Future[Sample], int] = {}
        self._pool = ThreadPoolExecutor(self._requests, "vllm_server")
        self._http = _connect(self._requests)
        try:
            self._model = served_model(self.url, self._http)["id"]
            yield
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._http.close()

    def submit(self, key: int, ids: Sequence[int], max_tokens: int) -> None:
        """Ask at once."""
        self._pending[self._pool.submit(self._ask, tuple(ids), max_tokens)] = key

    def release(self, key: int) -> None:
        """Nothing to free: vLLM evicts by itself."""

    def step(self) -> list[tuple[int, Sample]]:
        """Wait a moment for answers; SQL that ends meanwhile should not wait long."""
        done = wait(self._pending, timeout=0.02, return_when=FIRST_COMPLETED).done
        return [(self._pending.pop(future), future.result()) for future in done]

    def _ask(self, ids: tuple[int, ...], limit: int) -> Sample:
        s = self.sampling
        payload = {
            "model": self._model,
            "prompt": list(ids),
            "temperature": s.temperature,
            "top_p": s.top_p,
            "top_k": s.top_k,
            "min_p": s.min_p,
            "repetition_penalty": 1.0,  # unsaid, the model's own generation config would count
            "max_tokens": limit,
            "stop_token_ids": sorted(self.codec.stop_ids),
            "ignore_eos": True,  # those of the codec alone end a turn
            "logprobs": 0,  # of the drawn token alone
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        url = f"{self.url}/v1/completions"
        (choice,) = _answer(self._http, "POST", url, self._seconds, json=payload)["choices"]
        drawn = tuple(choice["token_ids"])
        if not drawn:
            raise RolloutError(
                f"the vLLM server {self.url} wrote nothing ({choice['finish_reason']}) after a "
                f"context of {len(ids)} tokens"
            )
        return Sample(drawn, tuple(choice["logprobs"]["token_logprobs"]))


def served_model(url: str, http: Any = None) -> dict[str, Any]:
    """What the server says of its model: `id`, `max_model_len`. Raises RolloutError if it can't."""
    answer = _answer(http or _connect(1), "GET", f"{url.rstrip('/')}/v1/models", 30.0)
    return answer["data"][0]


def _connect(connections: int) -> Any:
    """A session that threads may share and that asks again where the server was not reached."""
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util.retry import Retry

    # A read is repeated once: a kept connection may have died, a hanging server will hang again.
    again = Retry(3, read=1, backoff_factor=1, status_forcelist=[502, 503], allowed_methods=None)
    http = requests.Session()
    for scheme in ("http://", "https://"):
        http.mount(scheme, HTTPAdapter(pool_maxsize=connections, max_retries=again))
    return http


def _answer(http: Any, method: str, url: str, seconds: float, **fields: Any) -> Any:
    import requests

    try:
        response = http.request(method, url, timeout=(10, seconds), **fields)
    except requests.RequestException as error:
        raise RolloutError(f"the vLLM server did not answer at {url}: {error}") from error
    if response.status_code != 200:
        said = " ".join(response.text.split())[:300]
        raise RolloutError(f"the vLLM server refused {url} with {response.status_code}: {said}")
    return response.json()
