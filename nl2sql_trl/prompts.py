r"""The text protocol, both ways: what the model is told, and what is read from what it wrote.

Out: a system message with the DDL, the question, and tool responses, all through the model's own
chat template. In: Hermes-style tool calls and the fenced answer.

The answer is taken from the last assistant message alone:
1. `<think>...</think>` and tool calls are removed, CRLF becomes LF.
2. A fence is three backticks at the start of a line, with the label `sql` or `sqlite` (any case)
   or none. It ends at the next line that starts with three backticks; if there is none, at the
   end of the message. A fence that opens and closes on one line counts as well. Backticks inside
   a line (in a string literal) do not end a fence.
3. The last labelled fence is the answer; if none is labelled, the last plain one. Other labels
   (```python) are skipped. No fence, or an empty one: no answer.

Token ids of a chat are made here too (`Codec`): once for the prompt, then only the suffix that a
tool turn adds, never the model's own text again. A special token's text inside data (a cell that
holds `<|im_end|>`) is encoded as plain text and cannot become structure.

This module runs no SQL and samples nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nl2sql_trl.records import CallProblem
from nl2sql_trl.tools import RUN_SQL, Tool

SYSTEM = """You are a SQL assistant for a SQLite database with this schema:
{ddl}
You may call the tool run_sql(query) to execute a SQL query and inspect results. \
When you are done, give your final answer as a single SQL query inside a ```sql code block."""

FINAL_ANSWER = "Give your final answer now: a single SQL query inside a ```sql code block."

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_TOOLS_BLOCK = re.compile(r"<tools>\s*\{.*?(?:</tools>|\Z)", re.DOTALL)
_THINK = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
# Possessive (`*+`): with backtracking, a model that repeats a character would stall us for minutes.
_FENCE = re.compile(
    r"^[ \t]*+```[ \t]*+([A-Za-z0-9_+-]*+)[ \t]*+"
    r"(?:(?P<line>[^\n]+?)```[ \t]*+$|\n(?P<block>.*?)(?:^[ \t]*+```|\Z))",
    re.DOTALL | re.MULTILINE,
)


def messages(question: str, ddl: str) -> tuple[dict[str, str], ...]:
    """The chat that opens a rollout: the card's system message, then the question."""
    return (
        {"role": "system", "content": SYSTEM.format(ddl=ddl)},
        {"role": "user", "content": question},
    )


def call_text(query: str) -> str:
    """An assistant message that calls `run_sql`, as the Hermes format writes it."""
    return tool_call_text("run_sql", query=query)


def tool_call_text(tool: str, **arguments: object) -> str:
    """An assistant message that calls a tool."""
    call = {"name": tool, "arguments": arguments}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def answer_text(query: str) -> str:
    """An assistant message that answers with `query`."""
    return f"```sql\n{query}\n```"


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call found in a message: what is to be run, or what is wrong with it.

    `query` is for `run_sql`, `arguments` for a tool of the user's own.
    """

    query: str | None
    problem: CallProblem | None = None
    message: str = ""
    tool: str = "run_sql"
    arguments: dict[str, object] | None = None


def parse_calls(text: str, tools: Sequence[Tool] = ()) -> list[ParsedCall]:
    """Every tool call in an assistant message, in order. The first good one is to be run.

    tools: those that there are beside `run_sql`; names and arguments are checked against them. Any
    further call is an `extra_call`: it is refused in words, not dropped in silence.
    """
    text = _THINK.sub("", text)
    bodies = _CALL.findall(text)
    if not bodies and _TOOLS_BLOCK.search(text):
        message = "write the call inside <tool_call></tool_call>, not <tools></tools>"
        return [ParsedCall(None, "malformed", message)]
    calls: list[ParsedCall] = []
    for body in bodies:
        if any(c.problem is None for c in calls):
            message = "only one call a turn is run: make this call again if you still need it"
            calls.append(ParsedCall(None, "extra_call", message))
        else:
            calls.append(_parse_call(body, tools))
    return calls


def _parse_call(body: str, tools: Sequence[Tool]) -> ParsedCall:
    form = '{"name": "run_sql", "arguments": {"query": "..."}}'
    try:
        call = json.loads(body, strict=False)
    # Deep nesting ends in RecursionError, a huge integer in ValueError.
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "not readable"
        return ParsedCall(None, "malformed", f"could not parse the call ({reason}): write {form}")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return ParsedCall(None, "malformed", f"could not parse the call: write {form}")
    if own := next((tool for tool in tools if tool.name == call["name"]), None):
        return _parse_own(own, call.get("arguments", {}))
    if call["name"] != "run_sql":
        known = ", ".join(["run_sql", *(tool.name for tool in tools)])
        known = f"the tools are {known}" if tools else "the tool is run_sql"
        message = f"there is no tool {call['name'][:40]!r}: {known}"
        return ParsedCall(None, "unknown_tool", message)
    arguments = call.get("arguments")
    if not isinstance(arguments, dict) or not isinstance(arguments.get("query"), str):
        message = f"run_sql needs one argument, query, a string: write {form}"
        return ParsedCall(None, "bad_arguments", message)
    if extra := sorted(set(arguments) - {"query"}):
        message = f"run_sql takes query alone, not {extra[0][:40]!r}"
        return ParsedCall(None, "bad_arguments", message)
    return ParsedCall(arguments["query"])


def _parse_own(tool: Tool, arguments: object) -> ParsedCall:
    if not isinstance(arguments, dict):
        return ParsedCall(None, "bad_arguments", f"{tool.name}: its arguments must be an object")
    needed = tool.schema["function"]["parameters"].get("required", ())
    # Models write null for what they leave out.
    given = {k: v for k, v in arguments.items() if v is not None or k in needed}
    if wrong := tool.wrong(given):
        return ParsedCall(None, "bad_arguments", f"{tool.name}: {wrong}")
    return ParsedCall(None, tool=tool.name, arguments=given)


def extract_answer(text: str) -> str | None:
    """The SQL of the message's answering fence, by the rule in this module's docstring."""
    text = _THINK.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    text = _CALL.sub("", text)
    labelled, plain = [], []
    for match in _FENCE.finditer(text):
        body = (match["line"] or match["block"] or "").strip()
        label = match[1].lower()
        if label in ("sql", "sqlite"):
            labelled.append(body)
        elif not label:
            plain.append(body)
        elif match["line"] is not None and label in ("select", "with"):
            plain.append(f"{match[1]} {body}")  # ```SELECT 1```: the word is SQL, not a label
    for bodies in (labelled, plain):
        if bodies:
            return bodies[-1] or None
    return None


class TemplateError(ValueError):
    """A tokenizer's chat template cannot carry tool calls; the message says what to use."""


class Codec:
    """Chat to token ids for one tokenizer: prompts, tool suffixes, and text of sampled ids.

    `tokenizer` is a transformers tokenizer with a chat template that renders tools. `tools` are
    those that the model is given beside `run_sql`. Raises TemplateError if the tokenizer has no
    template, or one that leaves tools or tool responses out; ValueError if two tools share a name.
    """

    def __init__(self, tokenizer: Any, tools: Sequence[Tool] = ()) -> None:
        self.tokenizer = tokenizer
        self.tools = tuple(tools)
        names = ["run_sql", *(tool.name for tool in tools)]
        if twice := [name for n, name in enumerate(names) if name in names[:n]]:
            raise ValueError(f"two tools are called {twice[0]}: rename one")
        if not tokenizer.chat_template:
            raise TemplateError(
                "the tokenizer has no chat template: use an instruct model, or set "
                "tokenizer.chat_template to one that renders tools"
            )
        self.eos_id: int = tokenizer.eos_token_id
        # Some models end a turn with the padding token (`<|endoftext|>`) instead.
        self.stop_ids = frozenset(
            i for i in (tokenizer.eos_token_id, tokenizer.pad_token_id) if i is not None
        )
        added = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
        # The marks themselves are held too, so that data cannot forge one.
        self._held = re.compile("|".join([*map(re.escape, added), "[\ue001\ue002]"]))
        self._check_template()

    def prompt_ids(self, chat: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """Ids of the opening chat, tools block and generation prompt included."""
        safe, held = self._hold(chat)
        return self._encode(self._render(safe, True), held)

    def suffix_ids(
        self, responses: Sequence[str], after_end: bool = True, final: bool = False
    ) -> tuple[int, ...]:
        """Ids that follow an assistant turn: tool responses and the next generation prompt.

        They start right after the end-of-turn token, so the newline that templates print there
        is kept; with `after_end=False` (the turn was cut off) the token itself comes first.
        `final=True` adds a user message that asks for the final answer.
        """
        marker = "\ue000assistant\ue000"
        opening: list[dict[str, str]] = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": marker},
        ]
        added = [{"role": "tool", "content": text} for text in responses]
        if final:
            added.append({"role": "user", "content": FINAL_ANSWER})
        safe, held = self._hold(added)
        text = self._render(opening + safe, True)
        _, _, tail = text.partition(marker)
        end = self.tokenizer.eos_token
        if not tail.startswith(end):
            # Some templates end a turn with another token than the tokenizer's.
            raise TemplateError(f"the chat template does not end an assistant turn with {end!r}")
        return self._encode(tail[len(end) :] if after_end else tail, held)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of a sampled turn, without the end token. Other special tokens stay visible."""
        if ids and ids[-1] in self.stop_ids:
            ids = ids[:-1]
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def _render(self, chat: Sequence[dict[str, str]], generation: bool) -> str:
        schemas = [RUN_SQL, *(tool.schema for tool in self.tools)]
        return self.tokenizer.apply_chat_template(
            list(chat), tools=schemas, tokenize=False, add_generation_prompt=generation
        )

    def _hold(self, chat: Sequence[dict[str, str]]) -> tuple[list[dict[str, str]], list[str]]:
        """Replace special-token strings in the contents by private-use marks."""
        held: list[str] = []

        def keep(match: re.Match[str]) -> str:
            held.append(match[0])
            return f"\ue001{len(held) - 1}\ue002"

        return [{**m, "content": self._held.sub(keep, m["content"])} for m in chat], held

    def _encode(self, text: str, held: list[str]) -> tuple[int, ...]:
        ids: list[int] = []
        parts = re.split("\ue001(\\d+)\ue002", text) if held else [text]
        for n, part in enumerate(parts):
            # A held token is cut after its first character: neither half is special.
            pieces = (held[int(part)][:1], held[int(part)][1:]) if n % 2 else (part,)
            for piece in pieces:
                if piece:
                    ids += self.tokenizer(piece, add_special_tokens=False)["input_ids"]
        return tuple(ids)

    def _check_template(self) -> None:
        text = self._render([{"role": "user", "content": "q"}], True)
        if "run_sql" not in text:
            raise TemplateError(
                "the chat template ignores tools: the model would never hear of run_sql. "
                "Use a tool-calling template, such as the one of Qwen2.5"
            )
        chat = [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "a"},
            {"role": "tool", "content": "\ue000r\ue000"},
        ]
        try:
            text = self._render(chat, True)
        except Exception as error:  # whatever a template's raise_exception gives
            raise TemplateError(
                f"the chat template refuses tool messages ({error}): use a tool-calling template"
            ) from error
        if "\ue000r\ue000" not in text:
            raise TemplateError(
                "the chat template drops tool messages: use a tool-calling template"
            )
