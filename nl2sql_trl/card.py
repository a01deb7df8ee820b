"""The model card of an exported model: Markdown for the hub, every number taken from a file.

The files are the runs' config.yaml, manifest.json and metrics.jsonl and the evaluations'
report.json and trajectories.jsonl. What no file says is not made up: its section says what is
missing. Folders of this machine are not named. `card_training.py` has the training's table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nl2sql_trl.card_training import fingerprint, training_table
from nl2sql_trl.card_usage import prompt_format, reproduce
from nl2sql_trl.data import POCKET
from nl2sql_trl.lineage import OWN, Lineage
from nl2sql_trl.prompts import Codec
from nl2sql_trl.report import markdown_table
from nl2sql_trl.report_runs import Evaluated
from nl2sql_trl.report_sections import tables
from nl2sql_trl.report_tables import Table, about
from nl2sql_trl.rollout import RolloutConfig

NO_EVALUATION = (
    "No evaluation of this model was at hand when it was exported, so there are no numbers here. "
    "`python -m nl2sql_trl.evaluate --model DIR --data DATA --out OUT` makes one."
)
_BRACKETS = (
    "Test-suite execution (Zhong, Yu and Klein 2020) is the number to quote where a test suite "
    "was used. Brackets hold 95% intervals: bootstrap, clustered by database."
)
_CITATION = """\
- GRPO: Shao et al. 2024, *DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open
  Language Models*, arXiv:2402.03300; trained with [TRL](https://github.com/huggingface/trl).
- Test-suite execution accuracy: Zhong, Yu and Klein 2020, *Semantic Evaluation for Text-to-SQL
  with Distilled Test Suites*, EMNLP.
- Question difficulty and exact match: Yu et al. 2018, *Spider: A Large-Scale Human-Labeled Dataset
  for Complex and Cross-Domain Semantic Parsing and Text-to-SQL Task*, EMNLP."""


@dataclass(frozen=True, slots=True)
class Exported:
    """All that a card is made of. `evaluations` hold earlier stages' runs before the model's."""

    name: str
    found: Lineage
    evaluations: list[list[Evaluated]]
    codec: Codec
    limits: RolloutConfig
    dtype: str
    parameters: int
    step: int | None
    licence: str | None
    merged: bool

    @property
    def spider(self) -> bool:
        """Whether a stage was trained on Spider's own training file, byte by byte."""
        return any(fingerprint(stage) == "spider" for stage in self.found.stages)

    @property
    def report(self) -> dict[str, Any] | None:
        """The first evaluation's report."""
        return self.evaluations[0][-1].report if self.evaluations else None

    def told(self, folder: Path) -> str:
        """What was exported, in a few lines."""
        merged = ", LoRA adapters merged" if self.merged else ""
        step = "" if self.step is None else f", step {self.step}"
        count = len(self.evaluations)
        return "\n".join(
            [
                f"{folder}: {self.parameters:,} parameters in {self.dtype}{merged}{step}",
                f"card: {len(self.found.stages)} training run(s) from {self.found.shown_base}, "
                + (f"{count} evaluation(s)" if count else "no evaluation was found"),
                "licence: " + (self.licence or "not known, left out of the card"),
            ]
        )


def licence(found: Lineage) -> str | None:
    """The base model's licence: known of our own names, else out of its card if at hand."""
    from huggingface_hub import ModelCard

    if found.base in OWN:
        return OWN[found.base][1]
    local = Path(found.base).expanduser() / "README.md"
    if not local.is_file() and found.hub_base is None:
        return None
    try:
        value = ModelCard.load(local if local.is_file() else found.base).data.license
    except Exception:  # no network, no such card, a card that is not valid
        return None
    return value if isinstance(value, str) else None


def card(made: Exported) -> str:
    """README.md of an exported model."""
    parts = [
        f"---\n{_front_matter(made)}\n---\n",
        f"# {made.name}\n\n{_opening(made)}\n",
        f"## Results\n\n{_results(made)}\n",
        f"## Intended use\n\n{_use(made)}\n",
        f"## How it was trained\n\n{training_table(made.found.stages)}\n",
        f"## Prompt format\n\n{prompt_format(made.codec, made.found.stages, made.evaluations)}\n",
        f"## How to reproduce\n\n{reproduce(made.name, made.limits, made.evaluations)}\n",
        f"## Behavioural profile\n\n{_profile(made)}\n",
        f"## Limitations\n\n{_limitations(made)}\n",
        f"## Citation\n\n{_CITATION}\n",
    ]
    return "\n".join(parts)


def _front_matter(made: Exported) -> str:
    from huggingface_hub import ModelCardData

    kinds = {stage.name for stage in made.found.stages}
    tags = ["text-to-sql", "nl2sql", "tool-use", "trl"]
    tags += ["grpo", "reinforcement-learning"] if "GRPO" in kinds else []
    tags += ["sft"] if "warm start" in kinds else []
    data = ModelCardData(
        license=made.licence,
        base_model=made.found.hub_base,
        library_name="transformers",
        language="en",
        tags=tags + (["spider"] if made.spider else []),
        datasets=["spider"] if made.spider else None,
        pipeline_tag="text-generation",
    )
    return data.to_yaml().strip()


def _opening(made: Exported) -> str:
    kinds = " and then ".join(stage.name for stage in made.found.stages)
    trained = f" after {kinds}" if kinds else ""
    step = "" if made.step is None else f" (step {made.step})"
    lines = [
        f"`{made.found.shown_base}`{trained}{step}, for answering questions with SQL in a loop of "
        "several turns: the model calls the tool `run_sql` on a SQLite database, reads the rows, "
        "and answers with one query. Made with nl2sql_trl.",
        f"{made.parameters:,} parameters, saved in {made.dtype}"
        + (", LoRA adapters merged." if made.merged else "."),
    ]
    if made.licence is None:
        lines.append(
            "The licence of the base model was not known when this was exported, so none is "
            "stated: look it up before you use or share the model."
        )
    return "\n\n".join(lines)


def _results(made: Exported) -> str:
    parts = []
    for group in made.evaluations:
        settings = group[-1].report["settings"]
        title = f"### {_data_name(settings)}, {settings.get('split', 'split not known')}"
        found = tables(group)
        # The headline: the first title and what goes on below it.
        end = next((at for at, t in enumerate(found) if at and t.title), len(found))
        parts += [title, f"{about(group[-1]).capitalize()}. {_BRACKETS}"]
        parts += [markdown_table(table).strip() for table in found[:end]]
        for name in ("Exact match and parse coverage", "More than one sample"):
            parts += _titled(found, name)
    return "\n\n".join(parts) or NO_EVALUATION


def _titled(found: list[Table], title: str) -> list[str]:
    """The table of a title, if there is one, below a line of what it is."""
    return [
        f"**{table.title}.** {table.note}\n\n{markdown_table(table).strip()}"
        for table in found
        if table.title == title
    ]


def _data_name(settings: dict[str, Any]) -> str:
    data = str(settings.get("data", "data not known"))
    return data if data == POCKET else Path(data).name


def _use(made: Exported) -> str:
    return (
        "A research artefact: it shows what training with execution feedback did to this base "
        "model. It writes one SQLite query for a question in English, given the DDL of all tables "
        "and a tool that runs queries. Run its SQL read-only and under limits, as the tool loop "
        "does: nothing keeps it from writing wrong, slow or harmful SQL. Rows that it reads become "
        "part of its prompt, so whoever writes them can influence what it answers."
    )


def _profile(made: Exported) -> str:
    if not made.evaluations:
        return NO_EVALUATION
    found = tables(made.evaluations[0])
    parts = [*_titled(found, "Behavioural profile"), *_titled(found, "Why it fails")]
    return "\n\n".join(parts)


def _limitations(made: Exported) -> str:
    lines = []
    seeds = [f"{s.name} {s.manifest.get('seed', 'not known')}" for s in made.found.stages]
    if seeds:
        lines.append(f"One run of each stage (seed: {', '.join(seeds)}). The intervals are over "
                     "questions and databases, not over seeds.")  # fmt: skip
    report = made.report
    if report is None:
        lines.append("Not evaluated: see Results.")
    else:
        clusters = report["metrics"]["testsuite_exec"]["all"]["clusters"]
        settings = report["settings"]
        lines.append(f"Evaluated on {report['rows']} rows of {clusters} databases "
                     f"({_data_name(settings)}, {settings.get('split')}).")  # fmt: skip
        if settings.get("split") in ("train", "fit"):
            lines.append("Evaluated on the split that training rows come from: this says little "
                         "about new questions.")  # fmt: skip
        if settings.get("data") == POCKET:
            lines.append("pocket is a small collection made for nl2sql_trl: its numbers cannot be "
                         "compared with those of Spider or of other benchmarks.")  # fmt: skip
        if report["suite"]["files"] <= clusters:
            lines.append("Scored on the base databases alone, without a test suite: a wrong query "
                         "can pass by accident.")  # fmt: skip
        if "more" not in report:
            lines.append("Greedy answers only: no self-consistency was measured.")
        if settings.get("bf16"):
            lines.append("The evaluation ran under bf16 autocast; greedy answers in another "
                         "precision can differ.")  # fmt: skip
    if any(stage.manifest.get("git", {}).get("changed") for stage in made.found.stages):
        lines.append("Trained from a working tree with uncommitted changes.")
    if made.found.base == "smollm2-135m":
        lines.append("The base weights come from a 4-bit quantised file (Q4_1), dequantised.")
    if made.found.base == "tiny":
        lines.append("`tiny` knows one small database and no language beyond its questions: it is "
                     "for tests.")  # fmt: skip
    lines.append("English questions and SQLite only. The whole schema has to fit the context.")
    return "\n".join(f"- {line}" for line in lines)
