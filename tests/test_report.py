"""The report says what the evaluation folders hold, compares like with like, and trusts no text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fake_evaluations import report, rollout, rollouts, write_evaluation

from nl2sql_trl import stats
from nl2sql_trl.report import load, main, markdown, page, write_report
from nl2sql_trl.report_tables import TIMES

BASE, TRAINED = "11000000", "10111000"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_evaluation(tmp_path / "base", rollouts(BASE))


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    return write_evaluation(tmp_path / "trained", rollouts(TRAINED))


def table(text: str, first: str) -> dict[str, list[str]]:
    """The Markdown table whose head starts with `first`: cells by the first cell of their row."""
    grids = re.findall(r"(?:^\|.*\|\n)+", text, re.M)
    for grid in grids:
        head, _, *rows = [[c.strip() for c in line.split(" | ")] for line in _bare(grid)]
        if head[0] == first:
            return {row[0]: row[1:] for row in [head, *rows]}
    raise AssertionError(f"no table {first!r}")


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def _bare(grid: str) -> list[str]:
    return [line.removeprefix("|").removesuffix("|").strip(" ") for line in grid.splitlines()]


# One run


def test_one_run_is_shown_by_hardness_with_counts_and_intervals(base: Path) -> None:
    found = table(section(markdown([load(base)]), "Results"), "level")
    assert list(found) == ["level", "easy", "medium", "hard", "extra", "all"]
    assert found["level"] == [
        "rows",
        "test-suite execution",
        "exact match",
        "legacy execution",
        "execution accuracy (training reward)",
    ]
    easy = stats.mean([1, 1, 0], ["music", "music", "shops"])
    assert found["easy"] == ["3", *[f"0.667 [{easy.low:.3f}, {easy.high:.3f}]"] * 4]
    every = stats.mean([1, 1, 0, 0, 0, 0, 0, 0], ["music"] * 4 + ["shops"] * 4)
    assert found["all"][:2] == ["8", f"0.250 [{every.low:.3f}, {every.high:.3f}]"]
    assert found["hard"][1] == "0.000 [0.000, 0.000]"


def test_each_metric_has_its_own_column(tmp_path: Path) -> None:
    rows = [rollout(0, True), rollout(1, True)]
    rows[0]["scores"] |= {"exact_match": False, "legacy_exec": False}
    rows[1]["scores"] |= {"exact_match": False}
    rows[0]["correct"] = rows[1]["correct"] = False
    text = markdown([load(write_evaluation(tmp_path / "run", rows))])
    cells = table(section(text, "Results"), "level")["all"]
    assert [cell.split()[0] for cell in cells] == ["2", "1.000", "0.000", "0.500", "0.000"]


def test_wilson_intervals_stand_in_a_second_table(base: Path) -> None:
    found = table(section(markdown([load(base)]), "Wilson intervals"), "level")
    low, high = stats.wilson(2, 8)
    assert found["all"][0] == f"[{low:.3f}, {high:.3f}]"
    assert len(found["all"]) == 4


def test_rows_that_the_official_parser_rejects_stand_beside_exact_match(base: Path) -> None:
    found = table(section(markdown([load(base)]), "Exact match and parse coverage"), "variant")
    # Wrong ones with odd numbers.
    assert found["test-suite script"][0].startswith("0.250 [")
    assert found["test-suite script"][1] == found["legacy script"][1] == "3 (37.5%)"


def test_the_profile_is_that_of_the_card(base: Path) -> None:
    found = table(section(markdown([load(base)]), "Behavioural profile"), "measure")
    assert found["valid executable SQL"] == ["87.5%"]
    assert found["answers with a query it actually ran"] == ["50.0%"]
    assert found["run_sql calls per row"] == ["1.25"]
    assert found["unparseable by Spider's (legacy) parser"] == ["37.5%"]


def test_the_failure_tree_has_causes_with_their_parts(base: Path) -> None:
    found = table(section(markdown([load(base)]), "Why it fails"), "cause")
    assert list(found.items())[1:] == [
        ("wrong rows", ["4 (50.0%)"]),
        ("└ condition", ["2 (25.0%)"]),
        ("└ join path", ["2 (25.0%)"]),
        ("no answer", ["1 (12.5%)"]),
        ("not executable", ["1 (12.5%)"]),
        ("└ no such column", ["1 (12.5%)"]),
        ("all", ["6 (75.0%)"]),
    ]


def test_detectors_have_counts_and_examples(base: Path) -> None:
    found = table(section(markdown([load(base)]), "Detectors"), "detector")
    assert found["answer never executed"] == ["2 (25.0%)", "dev:3, dev:6"]


def test_databases_have_their_rows_accuracies_and_the_cause_that_is_most_frequent(
    base: Path,
) -> None:
    found = table(section(markdown([load(base)]), "By database"), "database")
    assert found["music"][:3] == ["4", "0.500", "0.500"]
    assert found["shops"] == ["4", "0.000", "0.000", "wrong rows (2)"]


def test_grounding_counts_are_shares_of_the_wrong_rows(base: Path) -> None:
    found = table(section(markdown([load(base)]), "Schema grounding"), "grounding")
    assert found["wrong answers that ran"] == ["6"]
    assert found["└ miss a table of the gold"] == ["6 (100.0%)"]
    assert found["└ join on other than the foreign keys"] == ["0 (0.0%)"]


def test_a_run_without_a_wrong_row_has_no_failure_tree(tmp_path: Path) -> None:
    text = markdown([load(write_evaluation(tmp_path / "run", rollouts("11111111")))])
    assert "## Why it fails" not in text
    assert "## Detectors" not in text


@pytest.mark.parametrize(("files", "said"), [(40, "test suite of 40"), (2, "no test suite")])
def test_the_report_says_what_stands_behind_the_test_suite(
    files: int, said: str, tmp_path: Path
) -> None:
    run = load(write_evaluation(tmp_path / "run", rollouts(BASE), suite={"files": files}))
    assert said in markdown([run])
    assert said in page([run])


# Several runs


def test_two_runs_are_base_and_trained_with_the_change_at_each_level(
    base: Path, trained: Path
) -> None:
    text = section(markdown([load(base), load(trained)]), "Results")
    found = table(text, "level")
    assert found["level"] == ["rows", "base (base)", "trained (trained)", "change", "ratio"]
    assert [c.split()[0] for c in found["easy"]] == [
        "3",
        "0.667",
        "0.667",
        "+0.000",
        f"{TIMES}1.00",
    ]
    assert [c.split()[0] for c in found["medium"]] == ["2", "0.000", "0.500", "+0.500", "-"]
    clusters = ["music"] * 4 + ["shops"] * 4
    change = stats.paired_difference(list(map(int, BASE)), list(map(int, TRAINED)), clusters)
    assert found["all"][3:] == [f"+0.250 [{change.low:+.3f}, {change.high:+.3f}]", f"{TIMES}2.00"]


def test_two_runs_are_compared_in_every_metric(base: Path, tmp_path: Path) -> None:
    rows = rollouts(TRAINED)
    for row in rows:
        row["scores"]["exact_match"] = True
    other = write_evaluation(tmp_path / "other", rows)
    found = table(markdown([load(base), load(other)]), "all rows")
    assert [c.split()[0] for c in found["exact match"]] == [
        "0.250",
        "1.000",
        "+0.750",
        f"{TIMES}4.00",
    ]
    assert found["legacy execution"][-1] == f"{TIMES}2.00"


def test_a_paired_comparison_has_mcnemars_p_with_both_discordant_counts(
    base: Path, trained: Path
) -> None:
    found = table(markdown([load(base), load(trained)]), "test-suite execution, paired")
    cells = found["trained against base"]
    # Gained rows 2, 3 and 4, lost row 1: of 4 changed rows, at most one lost, on either side.
    assert cells[1:] == ["3", "1", f"{2 * (1 + 4) / 16:.3g}"]
    assert cells[0].startswith("+0.250 [")


def test_the_last_of_three_runs_is_compared_with_the_first_and_the_one_before_it(
    base: Path, trained: Path, tmp_path: Path
) -> None:
    between = write_evaluation(tmp_path / "sft", rollouts("11100000"))
    text = markdown([load(base), load(between), load(trained)])
    assert table(text, "level")["level"][1:4] == ["base (base)", "sft", "trained (trained)"]
    found = table(text, "test-suite execution, paired")
    assert found["trained against base"][1:3] == ["3", "1"]
    assert found["trained against sft"][1:3] == ["2", "1"]


def test_failure_trees_stand_side_by_side(base: Path, trained: Path) -> None:
    text = markdown([load(base), load(trained)])
    found = table(section(text, "Why it fails"), "cause")
    assert found["cause"] == ["base", "trained"]
    assert found["wrong rows"] == ["4 (50.0%)", "2 (25.0%)"]
    assert found["no answer"] == ["1 (12.5%)", "0 (0.0%)"]


def test_databases_show_what_was_gained_and_lost(base: Path, trained: Path) -> None:
    text = markdown([load(base), load(trained)])
    found = table(section(text, "By database"), "database")
    assert found["music"][:5] == ["4", "0.500", "0.750", "2", "1"]
    assert found["shops"][:5] == ["4", "0.000", "0.250", "1", "0"]


def test_runs_of_one_name_are_numbered(base: Path, tmp_path: Path) -> None:
    again = write_evaluation(tmp_path / "again", rollouts(TRAINED), name="base")
    text = write_report([base, again], tmp_path / "out")
    assert "base (1) (base)" in text
    assert "base (2) (trained)" in text


def test_a_comparison_in_which_nothing_changed_says_so(base: Path) -> None:
    found = table(markdown([load(base), load(base)]), "test-suite execution, paired")
    assert found["base against base"] == ["+0.000 [+0.000, +0.000]", "0", "0", "1"]


def test_runs_with_other_limits_are_told_apart_wherever_they_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = {"budget": 192, "max_turns": 3, "bf16": True}
    one = write_evaluation(tmp_path / "one", rollouts(BASE), settings=limits)
    two = write_evaluation(tmp_path / "two", rollouts(TRAINED), settings=limits | {"budget": 256})
    said = "Not evaluated alike: tokens (192, 256). A change may come from that."
    assert main([str(one), str(two)]) == 0
    assert said in capsys.readouterr().out
    assert f"- {said}" in (two / "report.md").read_text(encoding="utf-8")
    assert f"<p>{said}</p>" in (two / "report.html").read_text(encoding="utf-8")
    assert "Not evaluated alike" not in markdown([load(one), load(one)])


# Several samples a row


@pytest.fixture
def sampled(tmp_path: Path) -> Path:
    rows = [rollout(at, right) for at in range(8) for right in (True, at < 2)]
    more = {"pass_at_k": {"1": 0.625, "2": 1.0}}
    return write_evaluation(tmp_path / "sampled", rows, samples=2, more=more)


def test_a_sampled_row_counts_as_the_mean_of_its_samples(sampled: Path) -> None:
    text = markdown([load(sampled)])
    assert table(text, "level")["all"][1].startswith("0.625 [")
    assert table(text, "level")["medium"][:2] == ["2", "0.500 [0.500, 0.500]"]
    assert "mean of 2 samples a row" in text


def test_sampled_rows_are_paired_by_their_means_and_have_no_mcnemar(
    base: Path, sampled: Path
) -> None:
    found = table(markdown([load(base), load(sampled)]), "test-suite execution, paired")
    assert found["test-suite execution, paired"] == ["difference"]
    assert found["sampled against base"][0].startswith("+0.375 [")


def test_sampled_runs_have_no_wilson_interval(base: Path, sampled: Path) -> None:
    assert "Wilson" not in markdown([load(sampled)])
    both = section(markdown([load(base), load(sampled)]), "Wilson intervals")
    assert table(both, "level")["level"] == ["base"]


def test_pass_at_k_and_self_consistency_are_shown_when_present(base: Path, tmp_path: Path) -> None:
    rows = [rollout(at, right) for at in range(8) for right in (True, at < 2)]
    vote = report(rollouts(TRAINED), "")["metrics"]["testsuite_exec"]["all"]
    more = {
        "samples": 2,
        "mean": {"testsuite_exec": vote},
        "pass_at_k": {"1": 0.625, "2": 1.0},
        "self_consistency": vote,
    }
    run = load(write_evaluation(tmp_path / "run", rows, samples=2, more=more))
    found = table(section(markdown([load(base), run]), "More than one sample"), "measure")
    assert found["samples a row"] == ["-", "2"]
    assert found["mean of the samples"][1].startswith("0.500 [")
    assert found["pass@1"] == ["-", "0.625"]
    assert found["pass@2"] == ["-", "1.000"]
    assert found["self-consistency (majority of result sets)"][1].startswith("0.500 [")
    assert "More than one sample" not in markdown([load(base)])


# What cannot be read or paired


def drop_report(folder: Path) -> None:
    (folder / "report.json").unlink()


def cut_report(folder: Path) -> None:
    path = folder / "report.json"
    path.write_bytes(path.read_bytes()[:-40])


def old_report(folder: Path) -> None:
    path = folder / "report.json"
    found = json.loads(path.read_text())
    del found["metrics"], found["failures"]
    path.write_text(json.dumps(found))


def unmeasured(folder: Path) -> None:
    path = folder / "report.json"
    found = json.loads(path.read_text())
    found["metrics"]["legacy_exec"] = {}
    path.write_text(json.dumps(found))


def list_report(folder: Path) -> None:
    (folder / "report.json").write_text("[]")


def drop_rows(folder: Path) -> None:
    (folder / "trajectories.jsonl").unlink()


def cut_rows(folder: Path) -> None:
    path = folder / "trajectories.jsonl"
    path.write_bytes(path.read_bytes()[:-40])


def spoil_row(folder: Path) -> None:
    path = folder / "trajectories.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "{,", *lines[2:]]))


def unscored_row(folder: Path) -> None:
    path = folder / "trajectories.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    del rows[2]["scores"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def half_scored_row(folder: Path) -> None:
    path = folder / "trajectories.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    del rows[2]["scores"]["pred_parses"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def repeated_row(folder: Path) -> None:
    path = folder / "trajectories.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], lines[0]]) + "\n")


SPOILT: list[tuple[Callable[[Path], None], str]] = [
    (drop_report, "there is no .*report.json"),
    (cut_report, "report.json is not whole JSON"),
    (old_report, "report.json has no metrics, failures"),
    (unmeasured, "report.json has no legacy_exec"),
    (list_report, "report.json has no name"),
    (drop_rows, "there is no .*trajectories.jsonl"),
    (cut_rows, "trajectories.jsonl holds 7 rollouts and report.json counts 8"),
    (spoil_row, "trajectories.jsonl, line 2: not JSON"),
    (unscored_row, "trajectories.jsonl, row 3 has no scores"),
    (half_scored_row, "trajectories.jsonl, row 3 has no pred_parses"),
    (repeated_row, "trajectories.jsonl: the samples of dev:0 are not together"),
]


@pytest.mark.parametrize(("spoil", "message"), SPOILT, ids=[s.__name__ for s, _ in SPOILT])
def test_a_folder_that_is_not_whole_is_an_error_of_one_line_that_names_the_file(
    spoil: Callable[[Path], None],
    message: str,
    base: Path,
    trained: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil(base)
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        load(base)
    assert main([str(base), str(trained)]) == 2
    said = capsys.readouterr()
    assert re.match(f"error: .*{message}", said.err)
    assert said.err.count("\n") == 1
    assert not said.out
    assert not (trained / "report.md").exists()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load(tmp_path / "nowhere")


def with_change(rows: list[dict[str, object]], **changes: object) -> list[dict[str, object]]:
    rows[3] = {**rows[3], **changes}
    return rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (rollouts("1110000"), "base has 8 rows and other 7"),
        (with_change(rollouts(TRAINED), key="dev:9"), "row 4 differs in key: 'dev:3' in base"),
        (with_change(rollouts(TRAINED), gold="SELECT 1"), "row 4 differs in gold"),
        (with_change(rollouts(TRAINED), db_id="cars"), "row 4 differs in db_id"),
        ([*rollouts("11")[::-1], *rollouts(BASE)[2:]], "row 1 differs in key"),
    ],
    ids=["fewer rows", "other row", "other gold", "other database", "other order"],
)
def test_runs_of_other_questions_are_not_compared(
    rows: list[dict[str, object]], message: str, base: Path, tmp_path: Path
) -> None:
    runs = [load(base), load(write_evaluation(tmp_path / "other", rows))]
    for make in (markdown, page):
        with pytest.raises(ValueError, match=message):
            make(runs)


# The command


def test_the_command_writes_into_the_last_folder_and_prints_the_headline(
    base: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(base), str(trained)]) == 0
    printed = capsys.readouterr().out
    written = (trained / "report.md").read_text(encoding="utf-8")
    assert table(printed, "level") == table(written, "level")
    assert "trained against base" in printed
    assert "Wilson" not in printed
    assert (trained / "report.html").is_file()
    assert not (base / "report.md").exists()


def test_the_command_writes_where_it_is_told(base: Path, tmp_path: Path) -> None:
    assert main([str(base), "--out", str(tmp_path / "new" / "folder")]) == 0
    written = {path.name for path in (tmp_path / "new" / "folder").iterdir()}
    assert written == {"report.md", "report.html"}


def test_a_place_that_cannot_be_written_to_is_an_error_of_one_line(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main([str(base), "--out", str(tmp_path / "file")]) == 2
    assert re.fullmatch(r"error: .*\n", capsys.readouterr().err)


def test_a_report_of_a_report_folder_changes_nothing(base: Path) -> None:
    write_report([base], base)
    first = [(base / name).read_bytes() for name in ("report.md", "report.html")]
    write_report([base], base)
    assert first == [(base / name).read_bytes() for name in ("report.md", "report.html")]


# Texts of models and databases


class Tags(HTMLParser):
    """The elements of a page, the text of its scripts, and its text outside of them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts.append(data)
        elif self.cdata_elem is None:
            self.text += data


HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror=alert(1)>",
    "<!-- <script>",
    '"><svg/onload=alert(1)>',
    "]]></style></title></textarea>",
    "&lt;b&gt;",
    "{title} {0} %s",
    "[x](javascript:alert(1)) ![y](http://example.com/z.png)",
    "| a | b |\n|---|---|\n\n# heading",
    "`` ` ``` **bold** _it_ ~~x~~ $y$ \\",
]


def spoilt_everywhere(text: str, folder: Path) -> Path:
    """An evaluation in which `text` stands wherever a text can stand."""
    rows = []
    for at in range(4):
        row = rollout(at, False, db_id=text, question=text, gold=text, answer=text, detail=text)
        row |= {"key": f"{text}{at}", "reason": text, "stop": text, "detectors": [text]}
        row["turns"][0]["content"] = text
        row["turns"][1]["calls"] = [{"query": text, "problem": text, "response": text}]
        row["scores"] |= {"reason": text, "flags": [text]}
        row["failure"] |= {
            "cause": text,
            "part": text,
            "sql_differs": [text],
            "result_differs": text,
            "tables_missing": [text],
        }
        rows.append(row)
    return write_evaluation(folder, rows, name=text, settings={text: text})


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_anywhere_is_no_markup_of_the_page(hostile: str, tmp_path: Path) -> None:
    tame = Tags(page([load(spoilt_everywhere("tame", tmp_path / "tame"))] * 2))
    found = Tags(page([load(spoilt_everywhere(hostile, tmp_path / "run"))] * 2))
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in tame.tags]
    names = {name for _, attributes in found.tags for name in attributes}
    assert names == {name for _, attributes in tame.tags for name in attributes}
    assert found.text.count(hostile) >= 10
    data = json.loads(found.scripts[0])
    assert len(found.scripts) == 2
    assert data["rows"][0]["question"] == hostile
    assert data["rows"][0]["runs"][0][0]["turns"][1]["calls"][0]["response"] == hostile


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_is_no_markup_of_markdown(hostile: str, tmp_path: Path) -> None:
    tame = markdown([load(spoilt_everywhere("tame", tmp_path / "tame"))])
    found = markdown([load(spoilt_everywhere(hostile, tmp_path / "run"))])
    assert "<" not in found
    assert "](" not in found
    assert len(found.splitlines()) == len(tame.splitlines())
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in found.splitlines()]
    assert bars == [line.count("|") for line in tame.splitlines()]
    assert not re.findall(r"(?<!\\)[`*~$]", found)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("half \udcff", "half \\udcff"),
        ("nul \x00 escape \x1b[2J", "nul \\x00 escape \\x1b[2J"),
        ("\u202egnirts\u2066", "\\u202egnirts\\u2066"),
        ("line\u2028break", "line\\u2028break"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("Zoë 山 👩\u200d🚀", "Zoë 山 👩\u200d🚀"),
    ],
    ids=["surrogate", "controls", "direction", "separator", "plain white space", "plain letters"],
)
def test_what_cannot_be_seen_or_written_is_shown_as_an_escape(
    text: str, shown: str, tmp_path: Path
) -> None:
    folder = spoilt_everywhere(text, tmp_path / "run")
    write_report([folder], folder)
    found = Tags((folder / "report.html").read_text(encoding="utf-8"))
    assert json.loads(found.scripts[0])["rows"][0]["question"] == shown
    assert shown in found.text
    assert " ".join(shown.split()) in (folder / "report.md").read_text(encoding="utf-8").replace(
        "\\\\", "\\"
    )


def test_a_text_of_ten_megabytes_is_cut_and_its_length_told(tmp_path: Path) -> None:
    rows = rollouts("10")
    rows[0]["turns"][1]["calls"][0]["response"] = "<" * 10_000_000
    run = load(write_evaluation(tmp_path / "run", rows))
    data = json.loads(Tags(page([run])).scripts[0])
    shown = data["rows"][0]["runs"][0][0]["turns"][1]["calls"][0]["response"]
    assert shown == "<" * 20_000 + " … (9,980,000 more characters)"


# The page by itself


def test_the_page_refers_to_nothing_outside_of_it(base: Path, trained: Path) -> None:
    found = Tags(page([load(base), load(trained)]))
    for tag, attributes in found.tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "image", "use"}
        assert not {"src", "srcset", "style", "action"} & attributes.keys()
        assert (attributes.get("href") or "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in page([load(base)])
    assert "@import" not in page([load(base)])


def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else(base: Path) -> None:
    text = page([load(base)])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    assert rules["default-src"] == "'none'"
    inside = {
        "script-src": text.rsplit("<script>", 1)[1].rsplit("</script>", 1)[0],
        "style-src": text.split("<style>", 1)[1].split("</style>", 1)[0],
    }
    for rule, content in inside.items():
        digest = hashlib.sha256(content.encode("utf-8")).digest()
        assert rules[rule] == f"'sha256-{base64.b64encode(digest).decode()}'"


def test_every_table_of_markdown_is_in_the_page(base: Path, trained: Path) -> None:
    runs = [load(base), load(trained)]
    text = Tags(page(runs)).text
    for line in markdown(runs).splitlines():
        if line.startswith("|") and not line.startswith("|-"):
            for cell in line.strip("|").split(" | "):
                assert cell.strip(" -").replace("\\", "") in text


def test_importing_it_loads_nothing_heavy() -> None:
    heavy = ["torch", "transformers", "trl", "datasets", "pandas", "matplotlib"]
    script = f"import sys, nl2sql_trl.report; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_seeds_of_one_recipe_count_as_their_mean_with_their_spread(tmp_path: Path) -> None:
    base, *seeds = (tmp_path / name for name in ("base", "a", "b", "c"))
    for folder, verdicts in zip((base, *seeds), ("10000000", "11000000", "11110000", "11111100"),
                                strict=True):  # fmt: skip
        write_evaluation(folder, rollouts(verdicts), name=folder.name)
    text = write_report([base, ",".join(map(str, seeds))], tmp_path / "out")
    assert "3 seeds of a (trained)" in text
    everything = next(line for line in text.splitlines() if line.startswith("| all "))
    assert "0.125" in everything
    assert "0.500" in everything
    assert "+0.375" in everything
    report = (tmp_path / "out" / "report.md").read_text()
    assert "mean of 3 seeds (test suite 0.250 to 0.750, s.d. 0.250)" in report


def test_seeds_of_other_questions_are_refused(tmp_path: Path) -> None:
    write_evaluation(tmp_path / "a", rollouts("10000000"), name="a")
    write_evaluation(tmp_path / "b", rollouts("1000"), name="b")
    with pytest.raises(ValueError, match="evaluate both on the same rows"):
        write_report([f"{tmp_path / 'a'},{tmp_path / 'b'}"], tmp_path / "out")


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ("{a},", "an empty name among the seeds"),
        (",", "an empty name among the seeds"),
        ("{a},{a}", "stands twice among the seeds"),
        ("{a},{nowhere}", "there is no"),
    ],
)
def test_a_list_of_seeds_that_cannot_be_is_refused(
    seeds: str, message: str, tmp_path: Path
) -> None:
    write_evaluation(tmp_path / "a", rollouts("10000000"), name="a")
    names = seeds.format(a=tmp_path / "a", nowhere=tmp_path / "nowhere")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        write_report([names], tmp_path / "out")


@pytest.mark.parametrize("change", [{"suite": {"files": 99}}, {"mode": "fixed"}])
def test_runs_that_were_scored_otherwise_are_not_compared(
    change: dict[str, Any], tmp_path: Path
) -> None:
    write_evaluation(tmp_path / "a", rollouts("10000000"), name="a")
    write_evaluation(tmp_path / "b", rollouts("11000000"), name="b", **change)
    with pytest.raises(ValueError, match="evaluate both the same way"):
        write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "out")


def test_a_run_of_another_version_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_evaluation(tmp_path / "a", rollouts("10000000"), name="a", profile={})
    assert main([str(tmp_path / "a")]) == 2
    error = capsys.readouterr().err
    assert "evaluate again" in error
    assert error.count("\n") == 1
