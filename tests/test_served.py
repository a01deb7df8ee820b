"""ServedPolicy against a stand-in for vLLM's HTTP endpoint (the real one: tests/real_vllm)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from fakes import chat_tokenizer

from nl2sql_trl.prompts import Codec
from nl2sql_trl.records import Sample
from nl2sql_trl.rollout import RolloutError
from nl2sql_trl.sampling import Sampling
from nl2sql_trl.served import ServedPolicy, served_model


class Server(ThreadingHTTPServer):
    """Answers a context that begins with n with the tokens n, n, ...; the longest ones first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.asked: list[dict[str, Any]] = []
        self.refusal: tuple[int, str] | None = None
        self.empty = False


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def say(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self.say(200, {"data": [{"id": "the model", "max_model_len": 2048}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        if self.server.refusal:
            status, text = self.server.refusal
            return self.say(status, {"error": text})
        count = 0 if self.server.empty else asked["max_tokens"]
        first = asked["prompt"][0]
        time.sleep(0.02 * (5 - first % 5))
        logprobs = [-first / 10] * count
        choice = {"token_ids": [first] * count, "logprobs": {"token_logprobs": logprobs}}
        return self.say(200, {"choices": [choice | {"finish_reason": "length"}]})


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec(chat_tokenizer())


def drained(policy: ServedPolicy, asked: dict[int, tuple[list[int], int]]) -> dict[int, Sample]:
    done: dict[int, Sample] = {}
    with policy.session():
        for key, (ids, limit) in asked.items():
            policy.submit(key, ids, limit)
        while len(done) < len(asked):
            done.update(policy.step())
    return done


def test_each_context_gets_its_own_completion_whatever_the_order(
    server: Server, codec: Codec
) -> None:
    asked = {key: ([key + 1, 7, 8], 1 + key % 4) for key in range(40)}
    done = drained(ServedPolicy(server.url, codec, Sampling(), requests=8), asked)
    for key, (ids, limit) in asked.items():
        assert done[key] == Sample((ids[0],) * limit, (-ids[0] / 10,) * limit)


def test_several_ranks_may_ask_one_server_at_once_and_in_unequal_numbers(
    server: Server, codec: Codec
) -> None:
    found: dict[int, dict[int, Sample]] = {}

    def rank(n: int) -> None:
        policy = ServedPolicy(server.url, codec, Sampling())
        for turn in range(1 + 2 * n):
            found[n] = drained(policy, {key: ([100 * (n + 1) + key, turn], 2) for key in range(4)})

    ranks = [threading.Thread(target=rank, args=(n,)) for n in range(3)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    for n in range(3):
        assert {key: s.ids[0] for key, s in found[n].items()} == {
            key: 100 * (n + 1) + key for key in range(4)
        }


def test_the_request_has_the_sampling_parameters_and_its_own_limit(
    server: Server, codec: Codec
) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1)
    drained(ServedPolicy(server.url + "/", codec, sampling), {3: ([9, 8], 4)})
    (asked,) = server.asked
    assert asked == {
        "model": "the model",
        "prompt": [9, 8],
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.0,
        "max_tokens": 4,
        "stop_token_ids": sorted(codec.stop_ids),
        "ignore_eos": True,
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


@pytest.mark.parametrize(
    ("refusal", "empty", "message"),
    [
        ((400, "context too long"), False, "refused .* with 400: .*context too long"),
        ((500, "engine\n\ndied"), False, "refused .* with 500: .*died"),
        (None, True, r"wrote nothing \(length\) after a context of 2 tokens"),
    ],
)
def test_what_the_server_refuses_is_an_error_with_its_words(
    server: Server, codec: Codec, refusal: Any, empty: bool, message: str
) -> None:
    server.refusal, server.empty = refusal, empty
    with pytest.raises(RolloutError, match=message):
        drained(ServedPolicy(server.url, codec, Sampling()), {0: ([9, 8], 4)})


def test_the_server_tells_its_context(server: Server) -> None:
    assert served_model(server.url)["max_model_len"] == 2048


def test_a_server_that_hangs_is_an_error(server: Server, codec: Codec) -> None:
    policy = ServedPolicy(server.url, codec, Sampling(), seconds=0.01)
    with pytest.raises(RolloutError, match="the vLLM server did not answer at"):
        drained(policy, {0: ([5, 8], 4)})


def test_no_server_is_an_error_that_names_where_it_was_sought(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("urllib3.util.retry.Retry.sleep", lambda self, response=None: None)
    with pytest.raises(RolloutError, match=r"did not answer at http://127.0.0.1:9/v1/models"):
        drained(ServedPolicy("http://127.0.0.1:9", codec, Sampling()), {0: ([9], 4)})
