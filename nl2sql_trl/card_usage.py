"""The model card's parts on use: the prompt format with a real example, and how to replay the loop.

The example is a trajectory out of a file, rendered again by the model's own chat template. Nothing
is generated here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from nl2sql_trl import runs
from nl2sql_trl.asker import loop_limits
from nl2sql_trl.data import POCKET, load, row_key
from nl2sql_trl.database import DatabaseError, ddl
from nl2sql_trl.datafiles import DataError
from nl2sql_trl.lineage import Stage
from nl2sql_trl.prompts import Codec, messages
from nl2sql_trl.report_runs import Evaluated
from nl2sql_trl.rollout import RolloutConfig
from nl2sql_trl.textrows import plain


def prompt_format(
    codec: Codec, stages: Sequence[Stage], evaluations: Sequence[Sequence[Evaluated]]
) -> str:
    """What the model is given and writes, with a whole trajectory where one is at hand."""
    intro = (
        "A system message with the CREATE TABLE statements of every table, the question, and "
        "Hermes-style calls of one tool, `run_sql(query)`. The answer is the last fenced `sql` "
        "block of the last message."
    )
    for rows, data, split, origin in _trajectories(stages, evaluations):
        if found := _example(codec, rows, data, split):
            row, text = found
            verdict = "right" if row["correct"] else "wrong"
            # Longer than any run of backticks inside: the example cannot end its own fence.
            fence = "`" * (max(map(len, re.findall("`+", text)), default=2) + 1)
            return (
                f"{intro} This is row `{row['key']}` {origin}, as the model's own template renders "
                f"it (the answer is {verdict}):\n\n{fence}text\n{plain(text)}\n{fence}"
            )
    return (
        f"{intro}\n\nNo example is shown: there were no trajectories with their data at hand when "
        "this was exported."
    )


def _trajectories(
    stages: Sequence[Stage], evaluations: Sequence[Sequence[Evaluated]]
) -> Iterator[tuple[list[dict[str, Any]], str, str, str]]:
    """Rows with their data, split and origin: of the evaluation, else of the last training step."""
    for group in evaluations[:1]:
        settings = group[-1].report["settings"]
        yield group[-1].rows, str(settings["data"]), str(settings["split"]), "of the evaluation"
    for stage in stages[-1:]:
        if rows := runs.read_jsonl(stage.folder / "trajectories.jsonl"):
            last = [row for row in rows if row["step"] == rows[-1]["step"]]
            data, split = str(stage.config["data"]), str(stage.config.get("split", "train"))
            yield last, data, split, "of the last training step, sampled"


def _example(
    codec: Codec, rows: list[dict[str, Any]], data: str, split: str
) -> tuple[dict[str, Any], str] | None:
    """The row to show and its text: finished, right, with a call, and short, as far as there is."""
    try:
        examples = {row_key(e): e for e in load(data, split)}
        schemas = {path: ddl(path) for path in {e.db_path for e in examples.values()}}
    except (DataError, DatabaseError, OSError):
        return None

    def rank(row: dict[str, Any]) -> tuple[bool, bool, bool, int]:
        called = any(turn["role"] == "tool" for turn in row["turns"])
        length = len(schemas[examples[row["key"]].db_path])
        return row["stop"] != "answer", not row["correct"], not called, length

    row = min((row for row in rows if row["key"] in examples), key=rank, default=None)
    if row is None:
        return None
    example = examples[row["key"]]
    return row, _rendered(codec, example.question, schemas[example.db_path], row["turns"])


def _rendered(codec: Codec, question: str, schema: str, turns: list[dict[str, Any]]) -> str:
    """A whole trajectory as text, special tokens included."""
    decode = codec.tokenizer.decode
    parts = [decode(list(codec.prompt_ids(messages(question, schema))))]
    for turn in turns:
        if turn["role"] == "assistant":
            parts.append(turn["content"] + codec.tokenizer.eos_token)
        else:
            responses = [call["response"] for call in turn["calls"]]
            parts.append(decode(list(codec.suffix_ids(responses, final=not responses))))
    return "".join(parts)


def reproduce(name: str, limits: RolloutConfig, evaluations: Sequence[Sequence[Evaluated]]) -> str:
    """How the tool loop is replayed, in code, and the command of each evaluation."""
    lines = [
        "Replay the tool loop; one-shot prompting measures another system. At most "
        f"{limits.max_turns} model turns and {limits.budget} tokens over all turns, the tool's "
        "included; "
        + (
            f"tool responses of at most {limits.tool_chars} characters, cut by whole rows."
            if limits.truncation == "rows"
            else "tool responses of at most 256 characters, the middle elided."
        ),
        _REPLAY.format(
            name=name, limits=", ".join(f"{k}={v!r}" for k, v in loop_limits(limits).items())
        ),
    ]
    for group in evaluations:
        lines.append(
            "The numbers above, with `MODEL` for this model's folder:\n\n```bash\n"
            + _command(group[-1].report["settings"])
            + "\n```"
        )
    return "\n\n".join(lines)


_REPLAY = """```python
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer
from nl2sql_trl.database import ddl
from nl2sql_trl.generate import GeneratePolicy
from nl2sql_trl.prompts import Codec, messages
from nl2sql_trl.records import Prompt
from nl2sql_trl.rollout import RolloutConfig, rollout
from nl2sql_trl.sampling import Sampling

MODEL = "{name}"
codec = Codec(AutoTokenizer.from_pretrained(MODEL))
model = AutoModelForCausalLM.from_pretrained(MODEL)
limits = RolloutConfig({limits})


def answer(question: str, database: Path) -> str | None:
    chat = messages(question, ddl(database))
    prompt = Prompt(chat, codec.prompt_ids(chat), database)
    return rollout([prompt], GeneratePolicy(model, codec, Sampling(0.0)), limits)[0].answer
```"""


def _command(settings: dict[str, Any]) -> str:
    """The evaluation's command line, without the folders of this machine."""
    flags = ["python -m nl2sql_trl.evaluate --model MODEL --out OUT"]
    for name, value in settings.items():
        if name in ("model", "out") or value is None or value is False:
            continue
        if name in ("data", "suite") and value != POCKET:
            value = name.upper()
        flags.append(f"--{name}" if value is True else f"--{name} {value}")
    return " ".join(flags)
