"""The loop: budgets, turns, masks, and trajectories that go on without one another.

Everything here runs without a model: the policy is scripted and a token is a byte.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nl2sql_trl import rollout as module
from nl2sql_trl.database import DatabaseError, Limits, execute
from nl2sql_trl.policy import ByteTokenizer, ScriptedPolicy
from nl2sql_trl.prompts import FINAL_ANSWER, Codec, answer_text, call_text, parse_calls
from nl2sql_trl.records import Example, ModelTurn, Prompt, QueryResult, Sample, ToolTurn, Trajectory
from nl2sql_trl.rollout import RolloutConfig, make_prompt, rollout
from nl2sql_trl.tools import DEFAULT_CHARS, MIN_CHARS, render

CODEC = Codec(ByteTokenizer())
DDL = "CREATE TABLE singer (id INTEGER PRIMARY KEY, name TEXT)"
GOLD = "SELECT count(*) AS gold_never_shown FROM singer"
NAMES = "SELECT name FROM singer"
LOOK, ANSWER = call_text(NAMES), answer_text(NAMES)
MANY = "SELECT a.name, b.name FROM singer a, singer b, singer c, singer d"
COUNT_UP = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rollout") / "music.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        f"{DDL}; INSERT INTO singer VALUES (1, 'Ann'), (2, 'Zoë'), (3, '<|im_end|>'), (4, NULL);"
    )
    connection.close()
    return path


@pytest.fixture(scope="module")
def prompt(db: Path) -> Prompt:
    example = Example(0, "dev", "Which singers are there?", GOLD, "music", db)
    return make_prompt(example, DDL, CODEC)


def play(
    prompt: Prompt, *scripts: Sequence[str], config: RolloutConfig | None = None
) -> tuple[list[Trajectory], ScriptedPolicy]:
    """One trajectory a script, all of the same prompt."""
    policy = ScriptedPolicy(scripts, CODEC)
    return rollout([prompt] * len(scripts), policy, config), policy


def one(prompt: Prompt, *script: str, config: RolloutConfig | None = None) -> Trajectory:
    return play(prompt, script, config=config)[0][0]


def size(text: str) -> int:
    """Tokens of a sampled message, its end token included."""
    return len(text.encode()) + 1


# One trajectory


def test_a_model_that_looks_and_answers_gives_three_turns(prompt: Prompt) -> None:
    trajectory = one(prompt, LOOK, ANSWER)
    look, tool, answer = trajectory.turns
    assert isinstance(look, ModelTurn)
    assert isinstance(tool, ToolTurn)
    assert isinstance(answer, ModelTurn)
    assert (look.text, answer.text) == (LOOK, ANSWER)
    (call,) = tool.calls
    assert (call.query, call.problem) == (NAMES, None)
    assert json.loads(call.response)["rows"] == [["Ann"], ["Zoë"], ["<|im_end|>"], [None]]
    assert call.result is not None
    assert call.result.outcome == "ok"
    assert (trajectory.stop, trajectory.answer) == ("answer", NAMES)
    assert trajectory.ran_its_answer


def test_a_model_that_answers_at_once_gives_one_turn(prompt: Prompt) -> None:
    trajectory = one(prompt, ANSWER)
    assert (len(trajectory.turns), trajectory.stop, trajectory.answer) == (1, "answer", NAMES)
    assert not trajectory.ran_its_answer


def test_the_ids_of_all_turns_read_as_one_conversation(prompt: Prompt) -> None:
    trajectory = one(prompt, LOOK, ANSWER)
    response = trajectory.calls[0].response
    assert CODEC.tokenizer.decode(trajectory.completion_ids) == (
        f"{LOOK}<|im_end|>\n<|im_start|>user\n<tool_response>\n{response}\n</tool_response>"
        f"<|im_end|>\n<|im_start|>assistant\n{ANSWER}<|im_end|>"
    )


def test_the_gold_query_is_never_shown(prompt: Prompt) -> None:
    assert "gold_never_shown" not in CODEC.tokenizer.decode(prompt.ids)
    assert "gold_never_shown" not in repr(prompt)


def test_special_text_in_a_cell_adds_no_special_token(prompt: Prompt) -> None:
    tool = one(prompt, LOOK, ANSWER).turns[1]
    assert [i for i in tool.ids if i > 255] == [256, 257, 256]


def test_a_policy_may_end_its_turn_with_the_padding_token(prompt: Prompt) -> None:
    class Padding(ScriptedPolicy):
        def _play(self, key: int, limit: int) -> Sample:
            sample = super()._play(key, limit)
            return replace(sample, ids=(*sample.ids[:-1], 258))

    (trajectory,) = rollout([prompt], Padding([[LOOK, ANSWER]], CODEC))
    assert (trajectory.stop, trajectory.answer) == ("answer", NAMES)
    assert trajectory.turns[0].text == LOOK  # type: ignore[union-attr]
    assert trajectory.turns[1].ids[0] == 257  # the end token that the model left out


@pytest.mark.parametrize("chars", [MIN_CHARS, 100, 1000])
def test_a_response_keeps_to_the_characters_it_was_given(prompt: Prompt, chars: int) -> None:
    config = RolloutConfig(tool_chars=chars)
    result = one(prompt, call_text(MANY), ANSWER, config=config).calls[0]
    assert result.response == render(execute(prompt.db_path, MANY), "rows", chars)
    failed = one(prompt, call_text("x" * 900), ANSWER, config=config).calls[0]
    assert len(failed.response) <= chars


# What the model gets wrong

BAD = {
    "malformed": '<tool_call>\n{"name": "run_sql", "arguments": {"query": "SELECT\n</tool_call>',
    "unknown_tool": '<tool_call>\n{"name": "python", "arguments": {"query": "1"}}\n</tool_call>',
    "bad_arguments": '<tool_call>\n{"name": "run_sql", "arguments": "SELECT 1"}\n</tool_call>',
}


@pytest.mark.parametrize("problem", BAD)
def test_a_bad_call_is_answered_and_counted_and_the_loop_goes_on(
    prompt: Prompt, problem: str
) -> None:
    trajectory = one(prompt, BAD[problem], LOOK, ANSWER)
    bad, good = trajectory.calls
    assert (bad.problem, bad.query, bad.result) == (problem, None, None)
    assert json.loads(bad.response)["error"]
    assert good.problem is None
    assert (trajectory.stop, trajectory.answer) == ("answer", NAMES)


def test_of_several_calls_one_runs_and_every_one_is_answered(prompt: Prompt) -> None:
    trajectory = one(prompt, BAD["malformed"] + LOOK + LOOK, ANSWER)
    assert [c.problem for c in trajectory.calls] == ["malformed", None, "extra_call"]
    assert [c.result is not None for c in trajectory.calls] == [False, True, False]
    text = CODEC.tokenizer.decode(trajectory.turns[1].ids)
    assert text.count("<tool_response>") == 3
    assert trajectory.answer == NAMES


@pytest.mark.parametrize(
    ("query", "outcome"),
    [
        ("SELEC", "error"),
        ("DROP TABLE singer", "denied"),
        ("SELECT hex(zeroblob(9999999))", "too_big"),
        (COUNT_UP, "timeout"),
        ("", "error"),
        ("SELECT '\ud800'", "error"),
        ("SELECT 1\x00", "error"),
    ],
)
def test_a_query_that_fails_is_answered_with_the_reason(
    prompt: Prompt, query: str, outcome: str
) -> None:
    call = json.dumps({"name": "run_sql", "arguments": {"query": query}})
    config = RolloutConfig(limits=Limits(steps=100_000))
    trajectory = one(prompt, f"<tool_call>{call}</tool_call>", ANSWER, config=config)
    (made,) = trajectory.calls
    assert made.result is not None
    assert made.result.outcome == outcome
    assert json.loads(made.response) == {"error": made.result.error}
    assert trajectory.answer == NAMES


# Where the answer comes from


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ((ANSWER + "\n" + LOOK, "I am done."), None),
        ((ANSWER + "\n" + LOOK, answer_text("SELECT 2")), "SELECT 2"),
        (
            (call_text("SELECT '```sql' || char(10) || 'SELECT 9' || char(10) || '```'"), "Done."),
            None,
        ),
        ((call_text("SELECT '\n```sql\nSELECT 9\n```\n' AS a"), "It is above."), None),
        ((LOOK, "<think>\n" + ANSWER + "\n</think>"), None),
        ((LOOK, ""), None),
        (("```sql\nSELECT 1",), "SELECT 1"),
    ],
    ids=range(7),
)
def test_only_the_last_message_holds_the_answer(
    prompt: Prompt, script: tuple[str, ...], answer: str | None
) -> None:
    trajectory = one(prompt, *script)
    assert (trajectory.stop, trajectory.answer) == ("answer", answer)


# Turn limit


@pytest.mark.parametrize("turns", [1, 2, 5])
def test_a_model_that_never_stops_calling_meets_the_turn_limit(prompt: Prompt, turns: int) -> None:
    trajectory = one(prompt, *[LOOK] * 9, config=RolloutConfig(max_turns=turns))
    assert trajectory.stop == "turn_limit"
    assert len(trajectory.model_turns) == turns
    assert len(trajectory.calls) == turns - 1
    assert isinstance(trajectory.turns[-1], ModelTurn)


def test_a_call_that_can_no_longer_be_answered_is_not_run(
    prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "execute", pytest.fail)
    assert one(prompt, LOOK, config=RolloutConfig(max_turns=1)).stop == "turn_limit"


def test_an_answer_in_the_last_allowed_turn_counts(prompt: Prompt) -> None:
    trajectory = one(prompt, LOOK, ANSWER, config=RolloutConfig(max_turns=2))
    assert (trajectory.stop, trajectory.answer) == ("answer", NAMES)


# Budget


def room(db: Path, query: str, chars: int) -> int:
    """Tokens of the tool turn that answers `query` in at most `chars` characters."""
    return len(CODEC.suffix_ids([render(execute(db, query), "rows", chars)]))


def test_each_request_asks_for_what_is_left_of_the_shared_budget(prompt: Prompt) -> None:
    (trajectory,), policy = play(prompt, [LOOK, LOOK, ANSWER], config=RolloutConfig(budget=900))
    used = 0
    sizes = [len(t.ids) for t in trajectory.turns]
    for n, (_, ids, max_tokens) in enumerate(policy.contexts):
        used = sum(sizes[: 2 * n])
        assert len(ids) == len(prompt.ids) + used
        assert max_tokens == 900 - used


@pytest.mark.parametrize(
    ("missing", "stop", "answer"),
    [(0, "answer", NAMES), (1, "budget", NAMES), (6, "budget", NAMES[:-1])],
)
def test_a_turn_is_cut_where_the_budget_ends(
    prompt: Prompt, missing: int, stop: str, answer: str
) -> None:
    config = RolloutConfig(budget=size(ANSWER) - missing)
    trajectory = one(prompt, ANSWER, config=config)
    assert (trajectory.stop, trajectory.answer) == (stop, answer)
    assert len(trajectory.completion_ids) == config.budget


def test_a_call_that_was_cut_off_is_not_run(
    prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "execute", pytest.fail)
    trajectory = one(prompt, LOOK, config=RolloutConfig(budget=size(LOOK) - 1))
    assert (trajectory.stop, trajectory.calls) == ("budget", ())


def test_a_response_that_just_fits_is_kept_whole(prompt: Prompt) -> None:
    config = RolloutConfig(
        budget=size(call_text(MANY)) + room(prompt.db_path, MANY, DEFAULT_CHARS) + 1
    )
    trajectory = one(prompt, call_text(MANY), ANSWER, config=config)
    assert trajectory.calls[0].response == render(execute(prompt.db_path, MANY))
    assert len(trajectory.turns[-1].ids) == 1
    assert trajectory.stop == "budget"


def test_a_response_larger_than_what_is_left_is_shortened(prompt: Prompt) -> None:
    config = RolloutConfig(budget=size(call_text(MANY)) + room(prompt.db_path, MANY, DEFAULT_CHARS))
    trajectory = one(prompt, call_text(MANY), ANSWER, config=config)
    (call,) = trajectory.calls
    assert call.response == render(execute(prompt.db_path, MANY), "rows", MIN_CHARS)
    assert json.loads(call.response)["total_rows"] == 256
    assert isinstance(trajectory.turns[-1], ModelTurn)


@pytest.mark.parametrize(("spare", "turns"), [(1, 3), (0, 1), (-1, 1)])
def test_a_response_that_fits_not_even_shortened_ends_the_row_on_the_models_turn(
    prompt: Prompt, spare: int, turns: int
) -> None:
    config = RolloutConfig(
        budget=size(call_text(MANY)) + room(prompt.db_path, MANY, MIN_CHARS) + spare
    )
    trajectory = one(prompt, call_text(MANY), ANSWER, config=config)
    assert trajectory.stop == "budget"
    assert len(trajectory.turns) == turns
    assert isinstance(trajectory.turns[-1], ModelTurn)
    assert len(trajectory.completion_ids) <= config.budget


def test_the_seed_mode_elides_at_256_characters_and_never_shortens_further(prompt: Prompt) -> None:
    whole = json.dumps(
        {"columns": ["name", "name"], "rows": [list(r) for r in execute(prompt.db_path, MANY).rows]}
    )
    expected = whole[:128] + "...(truncated)..." + whole[-128:]
    config = RolloutConfig(truncation="seed")
    trajectory = one(prompt, call_text(MANY), ANSWER, config=config)
    assert trajectory.calls[0].response == expected
    tight = replace(config, budget=size(call_text(MANY)) + len(CODEC.suffix_ids([expected])))
    trajectory = one(prompt, call_text(MANY), ANSWER, config=tight)
    assert (trajectory.stop, len(trajectory.turns)) == ("budget", 1)


# The forced final turn


def test_a_model_that_never_stops_calling_is_asked_for_its_answer(prompt: Prompt) -> None:
    config = RolloutConfig(max_turns=2, reserve_tokens=700)
    trajectory = one(prompt, LOOK, LOOK, ANSWER, config=config)
    assert (trajectory.stop, trajectory.answer) == ("answer", NAMES)
    assert len(trajectory.calls) == 2  # the last call is answered too
    text = CODEC.tokenizer.decode(trajectory.turns[-2].ids)
    assert text.index("<tool_response>") < text.index(FINAL_ANSWER)


def test_a_model_that_rambles_is_cut_and_asked_for_its_answer(prompt: Prompt) -> None:
    config = RolloutConfig(budget=500, reserve_tokens=300)
    trajectory = one(prompt, "x" * 1000, ANSWER, config=config)
    cut, asked, _ = trajectory.turns
    assert len(cut.ids) == 200
    assert asked == ToolTurn(CODEC.suffix_ids([], after_end=False, final=True), ())
    assert asked.ids[0] == CODEC.eos_id
    assert (trajectory.stop, trajectory.answer) == ("answer", NAMES)


def test_a_response_too_large_for_the_unreserved_part_still_leads_to_an_answer(
    prompt: Prompt,
) -> None:
    config = RolloutConfig(budget=size(LOOK) + 20 + 500, reserve_tokens=500)
    trajectory = one(prompt, LOOK, ANSWER, config=config)
    assert FINAL_ANSWER in CODEC.tokenizer.decode(trajectory.turns[1].ids)
    assert (trajectory.stop, trajectory.answer) == ("answer", NAMES)


def test_reserved_tokens_are_asked_for_in_the_forced_turn_alone(prompt: Prompt) -> None:
    config = RolloutConfig(budget=900, max_turns=1, reserve_tokens=500)
    (trajectory,), policy = play(prompt, [LOOK, ANSWER], config=config)
    first, forced = (max_tokens for _, _, max_tokens in policy.contexts)
    assert first == 400
    assert forced == 900 - len(trajectory.turns[0].ids) - len(trajectory.turns[1].ids)


def test_a_call_in_the_forced_turn_is_not_run_and_ends_the_trajectory(prompt: Prompt) -> None:
    config = RolloutConfig(max_turns=1, reserve_tokens=700)
    trajectory = one(prompt, LOOK, LOOK, config=config)
    assert (trajectory.stop, trajectory.answer, len(trajectory.calls)) == ("answer", None, 1)


def test_a_forced_turn_that_is_cut_off_ends_on_budget(prompt: Prompt) -> None:
    config = RolloutConfig(budget=800, max_turns=1, reserve_tokens=600)
    trajectory = one(prompt, LOOK, "x" * 5000, config=config)
    assert (trajectory.stop, trajectory.answer) == ("budget", None)
    assert len(trajectory.completion_ids) == 800


@pytest.mark.parametrize(("script", "stop"), [((LOOK,), "turn_limit"), (("x" * 999,), "budget")])
def test_a_reserve_too_small_to_ask_leaves_the_trajectory_as_it_was(
    prompt: Prompt, script: tuple[str, ...], stop: str
) -> None:
    config = RolloutConfig(budget=200, max_turns=1, reserve_tokens=20)
    trajectory = one(prompt, *script, config=config)
    assert (trajectory.stop, len(trajectory.turns)) == (stop, 1)


def test_a_model_that_answers_is_not_asked_again(prompt: Prompt) -> None:
    trajectory = one(prompt, LOOK, ANSWER, config=RolloutConfig(reserve_tokens=300))
    assert (len(trajectory.turns), trajectory.answer) == (3, NAMES)


# What holds for every script and every budget

MESSAGES = [
    LOOK, ANSWER, *BAD.values(), LOOK + LOOK, call_text(MANY), call_text("SELEC"), "", "hm",
    "x" * 300, "Zoë 😀" * 20, "<think>\n" + LOOK, ANSWER + LOOK, BAD["malformed"] + LOOK,
]  # fmt: skip
_scripts = st.lists(
    st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=5), min_size=1, max_size=3
)


@st.composite
def configs(draw: st.DrawFn) -> RolloutConfig:
    budget = draw(st.integers(1, 1500))
    return RolloutConfig(
        budget=budget,
        max_turns=draw(st.integers(1, 5)),
        truncation=draw(st.sampled_from(["rows", "seed"])),
        tool_chars=draw(st.integers(MIN_CHARS, 500)),
        reserve_tokens=draw(st.one_of(st.just(0), st.integers(0, budget - 1))),
        sql_threads=draw(st.integers(1, 3)),
    )


@settings(deadline=None, max_examples=150)
@given(scripts=_scripts, config=configs())
def test_any_script_under_any_limits_gives_a_sound_row(
    prompt: Prompt, scripts: list[list[str]], config: RolloutConfig
) -> None:
    policy = ScriptedPolicy(lambda key, turn: scripts[key][turn % len(scripts[key])], CODEC)
    trajectories = rollout([prompt] * len(scripts), policy, config)

    for key, trajectory in enumerate(trajectories):
        ids, turns = trajectory.completion_ids, trajectory.turns
        assert 1 <= len(ids) <= config.budget
        assert len(ids) == len(trajectory.env_mask) == len(trajectory.logprobs)
        # model and tool turns alternate, first and last is the model's
        kinds = [isinstance(t, ModelTurn) for t in turns]
        assert kinds == [n % 2 == 0 for n in range(len(turns))]
        assert kinds[-1]
        # the mask and the ids are the turns', one after the other
        assert ids == [i for t in turns for i in t.ids]
        mask = [int(isinstance(t, ModelTurn)) for t in turns for _ in t.ids]
        assert trajectory.env_mask == mask

        forced = [
            isinstance(t, ToolTurn) and FINAL_ANSWER in CODEC.tokenizer.decode(t.ids) for t in turns
        ]
        assert sum(forced) <= bool(config.reserve_tokens)
        assert len(trajectory.model_turns) <= config.max_turns + sum(forced)
        # every call of an answered turn was answered, in order
        for model, tool in pairwise(turns):
            if isinstance(model, ModelTurn) and isinstance(tool, ToolTurn) and tool.calls:
                wanted = [(p.query, p.problem) for p in parse_calls(model.text)]
                assert [(c.query, c.problem) for c in tool.calls] == wanted

        asked = [(ids, limit) for k, ids, limit in policy.contexts if k == key]
        assert len(asked) == len(trajectory.model_turns)
        for n, (context, limit) in enumerate(asked):
            before = [i for t in turns[: 2 * n] for i in t.ids]
            assert context == (*prompt.ids, *before)
            reserve = 0 if any(forced[: 2 * n]) else config.reserve_tokens
            assert limit == config.budget - len(before) - reserve
            assert limit >= 1
        ended = ids[-1] in CODEC.stop_ids
        if trajectory.stop in ("answer", "turn_limit"):
            assert ended
        if trajectory.stop == "turn_limit":
            assert len(trajectory.model_turns) == config.max_turns
        if trajectory.stop == "answer" and not any(forced):
            assert not parse_calls(trajectory.model_turns[-1].text)


# Many trajectories


def test_trajectories_are_returned_in_the_order_of_their_prompts(db: Path) -> None:
    prompts = [
        make_prompt(Example(n, "dev", f"Question {n}?", GOLD, "music", db), DDL, CODEC)
        for n in range(6)
    ]
    scripts = [[*[LOOK] * (n % 3), answer_text(f"SELECT {n}")] for n in range(6)]
    done: list[int] = []
    policy = ScriptedPolicy(scripts, CODEC)
    trajectories = rollout(prompts, policy, on_done=lambda key, _: done.append(key))
    assert [t.answer for t in trajectories] == [f"SELECT {n}" for n in range(6)]
    assert [t.prompt.key for t in trajectories] == [f"dev:{n}" for n in range(6)]
    assert sorted(done) == list(range(6))
    assert done[:2] == [0, 3]  # those that called nothing


def test_the_same_prompt_many_times_gives_trajectories_of_their_own(prompt: Prompt) -> None:
    scripts = [[answer_text(f"SELECT {n}")] if n % 2 else [LOOK, ANSWER] for n in range(40)]
    trajectories, _ = play(prompt, *scripts)
    assert [t.answer for t in trajectories] == [
        f"SELECT {n}" if n % 2 else NAMES for n in range(40)
    ]
    assert all(t.prompt is prompt for t in trajectories)


def test_no_prompts_give_no_trajectories() -> None:
    assert rollout([], ScriptedPolicy([], CODEC)) == []


def blocking(real: Callable[..., QueryResult], gate: threading.Event) -> Callable[..., QueryResult]:
    """`execute`, but a query that mentions `slow` first waits for the gate."""

    def run(path: Path, query: str, limits: Limits) -> QueryResult:
        if "slow" in query and not gate.wait(30):
            raise TimeoutError("the others waited for the slow query")
        return real(path, query, limits)

    return run


@pytest.mark.parametrize("slow", [0, 3])
def test_no_trajectory_waits_for_the_slow_query_of_another(
    prompt: Prompt, monkeypatch: pytest.MonkeyPatch, slow: int
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(module, "execute", blocking(execute, gate))
    scripts = [[LOOK] * 4 + [ANSWER] for _ in range(4)]
    scripts[slow] = [call_text("SELECT 'slow'"), ANSWER]
    policy = ScriptedPolicy(scripts, CODEC)
    done: list[int] = []

    def on_done(key: int, _: Trajectory) -> None:
        done.append(key)
        if len(done) == 3:  # the slow query returns only after the others are all through
            assert [k for k, _, _ in policy.contexts].count(slow) == 1
            gate.set()

    trajectories = rollout([prompt] * 4, policy, on_done=on_done)
    assert done[-1] == slow
    assert [t.answer for t in trajectories] == [NAMES] * 4


def test_generation_goes_on_while_a_query_runs(
    prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OneAtATime(ScriptedPolicy):
        def step(self) -> list[tuple[int, Sample]]:
            key, limit = self._queue.pop(0)
            return [(key, self._play(key, limit))]

    gate = threading.Event()
    monkeypatch.setattr(module, "execute", blocking(execute, gate))
    done: list[int] = []

    def on_done(key: int, _: Trajectory) -> None:
        done.append(key)
        if done == [1, 2, 3]:
            gate.set()

    scripts = [[call_text("SELECT 'slow'"), ANSWER], [ANSWER], [ANSWER], [ANSWER]]
    rollout([prompt] * 4, OneAtATime(scripts, CODEC), on_done=on_done)
    assert done == [1, 2, 3, 0]


def test_a_query_stopped_at_its_limits_holds_up_nobody(prompt: Prompt) -> None:
    config = RolloutConfig(limits=Limits(seconds=60, steps=20_000_000))
    policy = ScriptedPolicy([[call_text(COUNT_UP), ANSWER], [ANSWER], [ANSWER]], CODEC)
    done: list[int] = []
    trajectories = rollout([prompt] * 3, policy, config, lambda key, _: done.append(key))
    assert done == [1, 2, 0]
    assert "stopped" in trajectories[0].calls[0].response
    assert trajectories[0].answer == NAMES


def test_queries_of_different_trajectories_run_at_the_same_time(
    prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = threading.Barrier(4)  # passes only while four threads stand at it

    def together(path: Path, query: str, limits: Limits) -> QueryResult:
        barrier.wait(30)
        return execute(path, query, limits)

    monkeypatch.setattr(module, "execute", together)
    config = RolloutConfig(sql_threads=4)
    trajectories, _ = play(prompt, *[[LOOK, LOOK, ANSWER]] * 4, config=config)
    assert [t.answer for t in trajectories] == [NAMES] * 4


def test_one_thread_serves_many_trajectories(prompt: Prompt) -> None:
    trajectories, _ = play(prompt, *[[LOOK, ANSWER]] * 20, config=RolloutConfig(sql_threads=1))
    assert [t.answer for t in trajectories] == [NAMES] * 20


class Moody(ScriptedPolicy):
    """Returns turns one at a time, the youngest first, and nothing on every other step.

    It also notes what was called on it.
    """

    def __init__(self, scripts: Sequence[Sequence[str]], codec: Codec) -> None:
        super().__init__(scripts, codec)
        self.steps, self.open = 0, 0
        self.released: list[int] = []

    @contextmanager
    def session(self) -> Iterator[None]:
        with super().session():
            self.open += 1
            yield
            self.open -= 1

    def submit(self, key: int, ids: Sequence[int], max_tokens: int) -> None:
        assert self.open == 1
        assert key not in self.released
        super().submit(key, ids, max_tokens)

    def step(self) -> list[tuple[int, Sample]]:
        assert self.open == 1
        assert self._queue, "asked to step with nothing to do"
        self.steps += 1
        if self.steps % 2:
            return []
        key, limit = self._queue.pop()
        return [(key, self._play(key, limit))]

    def release(self, key: int) -> None:
        assert self.open == 1
        self.released.append(key)
        super().release(key)


def test_a_policy_may_return_turns_in_any_order_and_is_told_when_each_is_over(
    prompt: Prompt,
) -> None:
    policy = Moody([[LOOK] * (n % 3) + [ANSWER] for n in range(9)], CODEC)
    trajectories = rollout([prompt] * 9, policy)
    assert [len(t.model_turns) for t in trajectories] == [n % 3 + 1 for n in range(9)]
    assert sorted(policy.released) == list(range(9))
    assert policy.open == 0


def test_the_contexts_of_a_trajectory_only_ever_grow(prompt: Prompt) -> None:
    _, policy = play(prompt, *[[LOOK, LOOK, BAD["malformed"], ANSWER]] * 3)
    for key in range(3):
        contexts = [ids for k, ids, _ in policy.contexts if k == key]
        assert len(contexts) == 4
        assert all(
            new[: len(old)] == old and len(new) > len(old) for old, new in pairwise(contexts)
        )


# Failures that are not the model's


@pytest.mark.parametrize("fails_at", [0, 5])
def test_an_exception_while_running_sql_reaches_the_caller(
    prompt: Prompt, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    calls: list[str] = []

    def broken(path: Path, query: str, limits: Limits) -> QueryResult:
        calls.append(query)
        if len(calls) > fails_at:
            raise RuntimeError("disk on fire")
        return execute(path, query, limits)

    monkeypatch.setattr(module, "execute", broken)
    with pytest.raises(RuntimeError, match="disk on fire"):
        play(prompt, *[[LOOK, LOOK, LOOK, ANSWER]] * 3)


def test_a_database_that_vanished_is_named(prompt: Prompt, tmp_path: Path) -> None:
    gone = replace(prompt, db_path=tmp_path / "gone.sqlite")
    with pytest.raises(DatabaseError, match=r"gone\.sqlite"):
        play(gone, [LOOK, ANSWER])


def test_an_exception_of_the_policy_reaches_the_caller(prompt: Prompt) -> None:
    with pytest.raises(IndexError):
        play(prompt, [LOOK], [LOOK, ANSWER])  # the first outlives its script


def test_an_exception_of_the_callback_reaches_the_caller(prompt: Prompt) -> None:
    def complain(key: int, trajectory: Trajectory) -> None:
        raise KeyError(key)

    with pytest.raises(KeyError):
        rollout([prompt], ScriptedPolicy([[ANSWER]], CODEC), on_done=complain)


@pytest.mark.parametrize(
    "wrong",
    [
        {"budget": 0},
        {"max_turns": 0},
        {"sql_threads": 0},
        {"reserve_tokens": -1},
        {"reserve_tokens": 2048},
        {"budget": 10, "reserve_tokens": 10},
        {"tool_chars": MIN_CHARS - 1},
    ],
)
def test_limits_that_cannot_work_are_refused_before_anything_runs(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        RolloutConfig(**wrong)  # type: ignore[arg-type]
