"""The loop: the model writes, calls `run_sql`, reads the rows, and at last answers.

`rollout` runs many trajectories at once. Each goes at its own pace: while one waits for its SQL
the others generate, and SQL of different trajectories runs in parallel threads. All tokens after
the prompt, the model's and the tool's, come out of one budget per trajectory.

This module samples nothing (a Policy does), judges nothing and knows no trainer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from nl2sql_trl import tools
from nl2sql_trl.database import TOOL_LIMITS, Limits, execute
from nl2sql_trl.hints import helped
from nl2sql_trl.policy import Policy
from nl2sql_trl.prompts import Codec, ParsedCall, extract_answer, messages, parse_calls
from nl2sql_trl.records import (
    Call,
    Example,
    ModelTurn,
    Prompt,
    QueryResult,
    Sample,
    Stop,
    ToolTurn,
    Trajectory,
    Turn,
)


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """Limits of one trajectory.

    budget: tokens after the prompt, over all turns, tool tokens included. max_turns: model turns.
    truncation, tool_chars: see `tools.render`. reserve_tokens: if above 0, that many tokens of
    the budget are kept back, and a trajectory that would end without an answer gets one more,
    forced turn that asks for it (the seed recipe has 0). limits: of one query.
    """

    budget: int = 2048
    max_turns: int = 5
    truncation: tools.Truncation = "rows"
    tool_chars: int = tools.DEFAULT_CHARS
    reserve_tokens: int = 0
    sql_threads: int = 4
    limits: Limits = field(default_factory=lambda: TOOL_LIMITS)

    def __post_init__(self) -> None:
        if self.budget < 1 or self.max_turns < 1 or self.sql_threads < 1:
            raise ValueError("budget, max_turns and sql_threads must be at least 1")
        if self.truncation not in get_args(tools.Truncation):
            known = " or ".join(get_args(tools.Truncation))
            raise ValueError(f"truncation is {known}, not {self.truncation!r}")
        if self.tool_chars < tools.MIN_CHARS:
            raise ValueError(f"tool_chars must be at least {tools.MIN_CHARS}")
        if not 0 <= self.reserve_tokens < self.budget:
            raise ValueError(f"reserve_tokens must be 0 to {self.budget - 1}, below the budget")


class RolloutError(Exception):
    """A rollout that a trainer would train on wrongly or crash on; the message names the row."""


@dataclass(slots=True)
class _State:
    """One unfinished trajectory."""

    prompt: Prompt
    turns: list[Turn] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    forced: bool = False

    def left(self, config: RolloutConfig) -> int:
        """Tokens that the next turn may take."""
        used = len(self.context) - len(self.prompt.ids)
        return config.budget - used - (0 if self.forced else config.reserve_tokens)


def make_prompt(example: Example, ddl: str, codec: Codec) -> Prompt:
    """The prompt of one example. The gold query is left behind here."""
    chat = messages(example.question, ddl)
    key = f"{example.split}:{example.row}"
    return Prompt(chat, codec.prompt_ids(chat), example.db_path, key)


def rollout(
    prompts: Sequence[Prompt],
    policy: Policy,
    config: RolloutConfig | None = None,
    on_done: Callable[[int, Trajectory], None] | None = None,
    on_turn: Callable[[int, Turn], None] | None = None,
) -> list[Trajectory]:
    """Run a trajectory for every prompt; returned in the order of `prompts`.

    `on_done(position, trajectory)` is called as each one ends, `on_turn(position, turn)` as each
    turn is there. A prompt may stand in the list many times: each gives a trajectory of its own.
    """
    config = config or RolloutConfig()
    states = {k: _State(p, context=list(p.ids)) for k, p in enumerate(prompts)}
    finished: dict[int, Trajectory] = {}
    waiting: dict[Future[list[Call]], int] = {}
    generating = 0

    def submit(key: int) -> None:
        nonlocal generating
        generating += 1
        policy.submit(key, states[key].context, states[key].left(config))

    def tell(key: int) -> None:
        if on_turn:
            on_turn(key, states[key].turns[-1])

    def finish(key: int, stop: Stop) -> None:
        state = states.pop(key)
        last = state.turns[-1]
        assert isinstance(last, ModelTurn)
        trajectory = Trajectory(state.prompt, tuple(state.turns), stop, extract_answer(last.text))
        finished[key] = trajectory
        policy.release(key)
        if on_done:
            on_done(key, trajectory)

    with policy.session(), ThreadPoolExecutor(config.sql_threads, "run_sql") as pool:
        for key in list(states):
            submit(key)
        while generating or waiting:
            for key, sample in policy.step() if generating else ():
                generating -= 1
                state = states[key]
                stop, calls = _take(state, sample, policy.codec, config)
                tell(key)
                if calls:
                    work = pool.submit(_run_calls, calls, state.prompt, policy.codec.tools, config)
                    waiting[work] = key
                elif stop != "answer" and _force_final(state, [], policy.codec, config):
                    tell(key)
                    submit(key)
                else:
                    finish(key, stop)
            done = {f for f in waiting if f.done()}
            if waiting and not generating and not done:
                done = wait(waiting, return_when=FIRST_COMPLETED).done
            for work in done:
                key = waiting.pop(work)
                outcome = _answer_calls(states[key], work.result(), policy.codec, config)
                if outcome == "go on":
                    tell(key)
                    submit(key)
                else:
                    finish(key, outcome)
    return [finished[k] for k in range(len(prompts))]


def check(trajectories: Sequence[Trajectory], budget: int) -> None:
    """Refuse what TRL does not check itself. Raises RolloutError naming the row."""
    for n, t in enumerate(trajectories):
        ids, mask, logprobs = t.completion_ids, t.env_mask, t.logprobs
        where = f"trajectory {n} ({t.prompt.key or 'no key'})"
        if not ids:
            raise RolloutError(f"{where} has no completion tokens")
        if not len(ids) == len(mask) == len(logprobs):
            lengths = f"{len(ids)} ids, {len(mask)} mask entries, {len(logprobs)} log-probabilities"
            raise RolloutError(f"{where} has {lengths}")
        if len(ids) > budget:
            raise RolloutError(f"{where} has {len(ids)} tokens, over its budget of {budget}")
        if not mask[-1]:
            raise RolloutError(f"{where} ends on a token that the model did not write")


def _take(
    state: _State, sample: Sample, codec: Codec, config: RolloutConfig
) -> tuple[Stop, list[ParsedCall]]:
    """Append a sampled turn. Returns why the trajectory stops, or the calls to answer."""
    text = codec.decode(sample.ids)
    state.turns.append(ModelTurn(sample, text))
    state.context += sample.ids
    if sample.ids[-1] not in codec.stop_ids:
        return "budget", []
    calls = [] if state.forced else parse_calls(text, codec.tools)
    model_turns = sum(isinstance(t, ModelTurn) for t in state.turns)
    if not calls:
        return "answer", []
    # The last turn's call is answered only where a forced final turn can still use the answer.
    if model_turns >= config.max_turns and not config.reserve_tokens:
        return "turn_limit", []
    return "answer", calls


def _run_calls(
    calls: list[ParsedCall], prompt: Prompt, own: Sequence[tools.Tool], config: RolloutConfig
) -> list[Call]:
    """Run the good call and word the refusal of the others. Runs in a pool thread."""
    answered = []
    for call in calls:
        if call.problem:
            response = tools.error(call.message, config.tool_chars)
            answered.append(Call(call.query, response, call.problem))
        elif call.query is None:
            [tool] = [tool for tool in own if tool.name == call.tool]
            answered.append(_use(tool, call, prompt, config))
        else:
            result = execute(prompt.db_path, call.query, config.limits)
            if result.outcome == "error" and config.truncation == "rows":
                result = replace(result, error=helped(result.error, call.query, prompt.db_path))
            answered.append(_render(Call(call.query, "", None, result), config))
    return answered


def _use(tool: tools.Tool, call: ParsedCall, prompt: Prompt, config: RolloutConfig) -> Call:
    """Call a tool of the user's own. Raises RolloutError if it fails with no word for the model."""
    answered = Call(None, "", tool=tool.name, arguments=call.arguments)
    try:
        try:
            value = tool.function(prompt.db_path, **call.arguments or {})
        except ValueError as error:
            value = QueryResult("error", error=str(error))
        if isinstance(value, QueryResult):
            return _render(replace(answered, result=value), config)
        return replace(answered, response=tools.render_value(value, config.tool_chars))
    except Exception as error:
        raise RolloutError(
            f"the tool {tool.name} failed on {prompt.key or 'a row without a key'} with "
            f"{call.arguments}: {type(error).__name__}: {error}"
        ) from error


def _render(call: Call, config: RolloutConfig, chars: int | None = None) -> Call:
    """A call with the text of its result."""
    assert call.result is not None
    response = tools.render(call.result, config.truncation, chars or config.tool_chars)
    return replace(call, response=response)


def _answer_calls(
    state: _State, calls: list[Call], codec: Codec, config: RolloutConfig
) -> Stop | Literal["go on"]:
    """Append the tool turn: "go on", or the stop reason if it cannot be answered."""
    if sum(isinstance(t, ModelTurn) for t in state.turns) >= config.max_turns:
        return "go on" if _force_final(state, calls, codec, config) else "turn_limit"
    if _append_tool_turn(state, calls, codec, config):
        return "go on"
    return "go on" if _force_final(state, calls, codec, config) else "budget"


def _append_tool_turn(
    state: _State, calls: list[Call], codec: Codec, config: RolloutConfig, final: bool = False
) -> bool:
    """Append the responses if a token is left after them; shorten them once if need be."""
    last = state.context[-1]
    for attempt in (calls, [_shorten(c, config) for c in calls]):
        ids = codec.suffix_ids([c.response for c in attempt], last == codec.eos_id, final)
        if len(ids) < state.left(config):
            state.turns.append(ToolTurn(ids, tuple(attempt)))
            state.context += ids
            return True
    return False


def _shorten(call: Call, config: RolloutConfig) -> Call:
    if call.problem or config.truncation != "rows":
        return call
    if call.result is not None:
        return _render(call, config, tools.MIN_CHARS)
    body = json.loads(call.response)
    shorter = tools.render_value(body["result"], tools.MIN_CHARS, body.get("total"))
    return replace(call, response=shorter)


def _force_final(state: _State, calls: list[Call], codec: Codec, config: RolloutConfig) -> bool:
    """Ask for the final answer out of the reserved tokens, once, if there are any."""
    if state.forced or not config.reserve_tokens:
        return False
    state.forced = True
    return _append_tool_turn(state, calls, codec, config, final=True)
