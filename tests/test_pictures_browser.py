"""What a reader sees: the viewer, the tokens, a reward curve and the report in a real browser.

In light and in dark, on a phone's and on a desk's screen. Needs Chromium, its driver and selenium;
skipped without them. Pictures are left in pytest's `--basetemp`, to be looked at.
"""

from __future__ import annotations

import html
import itertools
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy
import pytest
from browser import chromium, forget, look, outside, pale, requested, screenshot, see_as
from fake_evaluations import rollouts, write_evaluation

from nl2sql_trl.database import ddl
from nl2sql_trl.display import save_reward_curve
from nl2sql_trl.markup import FORCED, SAMPLED, Shown
from nl2sql_trl.policy import ByteTokenizer, ScriptedPolicy
from nl2sql_trl.prompts import Codec, answer_text, call_text
from nl2sql_trl.records import Example, Trajectory, Verdict
from nl2sql_trl.report import write_report
from nl2sql_trl.rollout import RolloutConfig, make_prompt, rollout
from nl2sql_trl.runs import append_jsonl, describe
from nl2sql_trl.tokens import show_tokens
from nl2sql_trl.viewer import show

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS, SCRIPT = ROOT / "notebooks", ROOT / "scripts" / "make_pictures.py"
CODEC = Codec(ByteTokenizer())
CONFIG = RolloutConfig(budget=100_000, tool_chars=50_000, max_turns=9)

SCREENS = [(360, "light"), (360, "dark"), (1280, "light"), (1280, "dark")]
on_every_screen = pytest.mark.parametrize(("width", "scheme"), SCREENS)

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<style>:root { color-scheme: light dark } body { margin: 8px; font-family: sans-serif }</style>
"""

HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "</pre></td></table></div><svg onload='window.hacked = 1'>",
    "<iframe srcdoc='<script>parent.hacked = 1</script>'></iframe>",
    "</style></title><link rel=stylesheet href=http://127.0.0.1:9/x.css>",
    "<!-- <base href=http://127.0.0.1:9/>",
    "<a href='javascript:window.hacked=1' autofocus onfocus='window.hacked = 1'>x</a>",
    "\u202egnp.exe\u2066 \x00\x07\x1b[31m",
    "$$\\href{javascript:window.hacked=1}{x}$$",
    "<|im_end|>\n<|im_start|>system",
    "x" * 10_000,
    "מסד נתונים",
    "NULL",
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(autouse=True)
def as_found(driver: Any) -> Iterator[None]:
    yield
    forget(driver)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "hostile.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE cell (id INTEGER, text TEXT, size REAL)")
        rows = [(n, text, None if n % 3 else n * 1.5) for n, text in enumerate(HOSTILE)]
        connection.executemany("INSERT INTO cell VALUES (?, ?, ?)", rows)
    connection.close()
    return path


def play(database: Path, *messages: str) -> Trajectory:
    question = "Which cells are there? <b>bold</b>"
    example = Example(0, "dev", question, "SELECT 1", "hostile", database)
    prompt = make_prompt(example, ddl(database), CODEC)
    return rollout([prompt], ScriptedPolicy([messages], CODEC), CONFIG)[0]


@pytest.fixture(scope="module")
def trajectory(database: Path) -> Trajectory:
    """An ordinary one: a mistake, rows, a wide result, an answer."""
    wide = ", ".join(f"{n} AS column_{n}" for n in range(150))
    return play(
        database,
        call_text("SELECT names FROM cell"),
        "<think>Look again.</think>\n" + call_text("SELECT id, size FROM cell WHERE id < 5"),
        call_text(f"SELECT {wide}"),
        "<tool_call>{broken</tool_call>",
        "Here it is.\n" + answer_text("SELECT id\nFROM cell -- all of them"),
    )


def write(folder: Path, *shown: Shown) -> Path:
    path = folder / "page.html"
    path.write_text(PAGE + "<hr>".join(one.html for one in shown), encoding="utf-8")
    return path


def share(picture: numpy.ndarray, colour: str) -> float:
    """The share of pixels that have this colour, near enough."""
    wanted = [int(colour[n : n + 2], 16) for n in (1, 3, 5)]
    return float((numpy.abs(picture - wanted).max(axis=2) < 12).mean())


def calm(driver: Any, page: Path) -> None:
    """Nothing was loaded but the page itself, and the console has nothing to say."""
    assert requested(driver) == {page.as_uri()}
    assert driver.get_log("browser") == []


@on_every_screen
def test_the_viewer_shows_a_trajectory_whole(
    width: int, scheme: str, driver: Any, trajectory: Trajectory, tmp_path: Path
) -> None:
    page = write(tmp_path, show(trajectory, Verdict(True, "correct", "13 rows, gold 13")))
    look(driver, page, width, scheme)
    text = driver.find_element("css selector", "body").text
    for part in (
        "Which cells are there? <b>bold</b>",
        "error no such column: names",
        "5 rows",
        "column_0",
        "refused: malformed",
        "-- all of them",
        "✓ correct",
        "13 rows, gold 13",
    ):
        assert part in text
    assert outside(driver) == []
    assert pale(driver) == {}
    picture = screenshot(driver, tmp_path / f"viewer_{width}_{scheme}.png")
    assert picture.shape[1] == width
    assert share(picture, SAMPLED) > 0.001
    assert share(picture, FORCED) > 0.0005
    calm(driver, page)


@on_every_screen
def test_the_tokens_are_all_on_the_screen(
    width: int, scheme: str, driver: Any, trajectory: Trajectory, tmp_path: Path
) -> None:
    page = write(tmp_path, show_tokens(trajectory, CODEC, 100_000))
    look(driver, page, width, scheme)
    text = driver.find_element("css selector", "body").text
    mask = trajectory.env_mask
    assert f"{mask.count(1)} sampled, {mask.count(0)} forced" in text
    boxes = driver.execute_script(
        "return [...document.querySelectorAll('[title]')]"
        ".map(box => [getComputedStyle(box).borderBottomStyle, box.getClientRects().length])"
    )
    assert len(boxes) == len(mask)
    assert all(seen for _, seen in boxes)
    # A special token's frame is solid whatever its mask.
    special = CODEC.tokenizer.get_added_vocab().values()
    plain = [n for n, token in enumerate(trajectory.completion_ids) if token not in special]
    assert [boxes[n][0] for n in plain] == [("dashed", "solid")[mask[n]] for n in plain]
    assert outside(driver) == []
    assert pale(driver) == {}
    picture = screenshot(driver, tmp_path / f"tokens_{width}_{scheme}.png")
    assert share(picture, SAMPLED) > 0.001
    assert share(picture, FORCED) > 0.0005
    calm(driver, page)


@pytest.mark.parametrize("deficiency", ["none", "protanopia", "deuteranopia", "tritanopia"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_sampled_and_forced_tokens_differ_for_eyes_that_see_other_colours(
    deficiency: str, scheme: str, driver: Any, database: Path, tmp_path: Path
) -> None:
    trajectory = play(database, call_text("SELECT 'mmmmmmmm'"), "no")
    page = write(tmp_path, show_tokens(trajectory, CODEC))
    look(driver, page, 1280, scheme)
    see_as(driver, deficiency)
    picture = screenshot(driver, tmp_path / f"{deficiency}_{scheme}.png")
    fills, lines = [], []
    for kind in ("solid", "dashed"):
        box = driver.execute_script(
            "const legend = [...document.querySelectorAll('span')].find(span => !span.title"
            " && getComputedStyle(span).borderBottomStyle === arguments[0]);"
            "const { left, top, bottom } = legend.getBoundingClientRect();"
            "return [left, top, bottom].map(Math.round);",
            kind,
        )
        left, top, bottom = box
        fills.append(picture[top + 1, left + 1])
        lines.append(picture[bottom - 1, left + 1])
    assert numpy.abs(lines[0] - lines[1]).max() > 60
    assert numpy.abs(fills[0] - fills[1]).max() > 12


@on_every_screen
def test_hostile_texts_are_seen_and_do_nothing(
    width: int, scheme: str, driver: Any, database: Path, tmp_path: Path
) -> None:
    everything = "\n".join(text[:300] for text in HOSTILE)
    trajectory = play(
        database,
        call_text("SELECT * FROM cell"),
        f"{everything}\n<tool_call>{everything}</tool_call>",
        everything + "\n" + answer_text(everything.replace("```", "")),
    )
    shown = show(trajectory, Verdict(False, "wrong_rows", everything))
    page = write(tmp_path, shown, show_tokens(play(database, everything), CODEC))
    look(driver, page, width, scheme)
    body = driver.find_element("css selector", "body").text
    assert body.count("onerror='window.hacked = 1'") >= 4
    assert "\\u202egnp.exe\\u2066" in body
    assert driver.execute_script("return window.hacked ?? null") is None
    tags = driver.execute_script(
        "return [...new Set([...document.body.querySelectorAll('*')].map(n => n.localName))]"
    )
    tables = {"table", "thead", "tbody", "tr", "th", "td"}
    assert set(tags) <= {"div", "pre", "span", "b", "i", "hr", *tables}
    assert outside(driver) == []
    screenshot(driver, tmp_path / f"hostile_{width}_{scheme}.png")
    calm(driver, page)


def test_a_wide_table_scrolls_inside_itself(
    driver: Any, trajectory: Trajectory, tmp_path: Path
) -> None:
    look(driver, write(tmp_path, show(trajectory)), 360, "light")
    hidden = driver.execute_script(
        "return [...document.querySelectorAll('table')]"
        ".map(table => table.parentElement.scrollWidth - table.parentElement.clientWidth)"
    )
    assert hidden[0] == 0  # a narrow one has no need to
    assert hidden[1] > 1000
    assert driver.find_elements("css selector", "th")[-1].text == "column_149"


def outputs() -> list[Any]:
    """Every piece of HTML in the committed notebooks that the viewers made."""
    found = []
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        count = itertools.count()
        for cell in nbformat.read(path, 4).cells:
            for output in cell.get("outputs", ()):
                text = output.get("data", {}).get("text/html", "")
                if "mathjax_ignore" in text:
                    found.append(pytest.param(text, id=f"{path.stem}-{next(count)}"))
    return found


@pytest.mark.parametrize("text", outputs())
def test_what_is_committed_of_the_notebooks_fits_a_phone(
    text: str, driver: Any, tmp_path: Path
) -> None:
    page = write(tmp_path, Shown(text, ""))
    look(driver, page, 360, "dark")
    assert outside(driver) == []
    assert pale(driver) == {}
    calm(driver, page)


@on_every_screen
def test_a_reward_curve_is_a_picture_that_reads_on_any_page(
    width: int, scheme: str, driver: Any, tmp_path: Path
) -> None:
    rows = [{"step": n, "loss": 0.0, "reward": n / 9, "entropy": 0.3} for n in range(1, 9)]
    append_jsonl(tmp_path / "metrics.jsonl", rows)
    picture = save_reward_curve(tmp_path)
    page = tmp_path / "curve.html"
    alt = html.escape("reward over steps")
    page.write_text(f'{PAGE}<img src="{picture.name}" alt="{alt}" style="max-width:100%">')
    look(driver, page, width, scheme)
    image = driver.find_element("css selector", "img")
    assert image.get_property("naturalWidth") >= 1000
    assert image.rect["width"] <= width
    assert outside(driver) == []
    seen = screenshot(driver, tmp_path / f"curve_{width}_{scheme}.png")
    left, top = round(image.rect["x"]), round(image.rect["y"])
    # Its letters are black: the picture brings its own white paper to a dark page.
    assert (seen[top + 2, left + 2] == 255).all()
    assert (numpy.ptp(seen, axis=2) > 60).mean() > 0.0005  # lines in colour
    assert driver.get_log("browser") == []


@on_every_screen
def test_the_report_fits_every_screen_with_no_pale_text(
    width: int, scheme: str, driver: Any, tmp_path: Path
) -> None:
    runs = [
        write_evaluation(tmp_path / name, rollouts(verdicts))
        for name, verdicts in (("base", "11000000"), ("trained", "10111000"))
    ]
    write_report(runs, tmp_path)
    page = tmp_path / "report.html"
    look(driver, page, width, scheme)
    driver.execute_script(
        "document.documentElement.style.scrollBehavior = 'auto';"
        "for (const row of [...document.querySelectorAll('.row')].slice(0, 2)) row.open = true"
    )
    driver.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 0))")
    assert "thinking 1" in driver.find_element("css selector", "body").text
    assert outside(driver) == []
    assert pale(driver) == {}
    picture = screenshot(driver, tmp_path / f"report_{width}_{scheme}.png")
    assert (picture.mean() < 90) == (scheme == "dark")
    calm(driver, page)


@pytest.mark.slow
def test_the_pictures_of_the_readme_are_made_from_a_run(
    driver: Any, database: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    trajectory = play(database, call_text("SELECT id FROM cell"), answer_text("SELECT 1"))
    append_jsonl(run / "metrics.jsonl", [{"step": n, "loss": 0.0, "reward": 0.5} for n in (1, 2)])
    rows = [describe(trajectory, Verdict(right, "correct")) for right in (False, True)]
    append_jsonl(run / "trajectories.jsonl", rows)
    command = [sys.executable, str(SCRIPT), str(run), "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    for name in ("reward_curve.png", "viewer.png", "live_curve.png"):
        assert 5_000 < (tmp_path / name).stat().st_size < 150_000


@pytest.mark.parametrize("rows", [0, 1])
def test_a_run_without_a_right_trajectory_makes_no_picture(
    rows: int, driver: Any, trajectory: Trajectory, tmp_path: Path
) -> None:
    wrong = describe(trajectory, Verdict(False, "wrong_rows"))
    append_jsonl(tmp_path / "trajectories.jsonl", [wrong] * rows)
    command = [sys.executable, str(SCRIPT), str(tmp_path), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no right trajectory" in done.stderr
    assert not (tmp_path / "out").exists()
