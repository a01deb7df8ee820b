"""The page in a real browser: filters, links, opened rows, hostile texts; no network.

Needs Chromium, its driver and selenium; skipped without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, requested
from fake_evaluations import rollout, rollouts, write_evaluation

from nl2sql_trl.report import write_report

Row = dict[str, Any]
BASE, TRAINED = "11000000", "10111000"
KEYS = [f"dev:{at}" for at in range(8)]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


class Page:
    """A report in the browser."""

    def __init__(self, driver: Any, folders: list[Path], out: Path) -> None:
        self.driver = driver
        write_report(folders, out)
        self.url = (out / "report.html").as_uri()
        self.open("")

    def open(self, state: str) -> None:
        """Load it afresh: going to another part of a page loads nothing."""
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(self.url + state)

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def visible(self) -> list[str]:
        """The keys of the rows that take up space."""
        return self.run(
            "return [...document.querySelectorAll('.row')]"
            ".filter(row => row.getClientRects().length).map(row => row.dataset.key)"
        )

    def matched(self) -> str:
        return self.find("#matched").text

    def set(self, name: str, value: str) -> None:
        control = self.find(f"#filter [name={name}]")
        if control.tag_name == "select":
            at = self.choices(name).index(value)
            control.find_elements("css selector", "option")[at].click()
        else:
            control.clear()
            control.send_keys(value)

    def choices(self, name: str) -> list[str]:
        return self.run(
            "return [...document.querySelector(`#filter [name=${arguments[0]}]`).options]"
            ".map(option => option.value)",
            name,
        )

    def row(self, key: str) -> Any:
        return self.find(f".row[data-key='{key}']")

    def toggle(self, key: str) -> Any:
        """Open or close a row as a reader does; returns it when the page has seen to it."""
        row = self.row(key)
        row.find_element("css selector", "summary").click()
        self.settle()
        return row

    def settle(self) -> None:
        """Wait for events that are under way."""
        self.driver.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 0))")

    def state(self) -> str:
        return self.run("return location.hash")


@pytest.fixture
def one(driver: Any, tmp_path: Path) -> Page:
    return Page(driver, [write_evaluation(tmp_path / "base", rollouts(BASE))], tmp_path)


@pytest.fixture
def two(driver: Any, tmp_path: Path) -> Page:
    folders = [
        write_evaluation(tmp_path / name, rollouts(verdicts))
        for name, verdicts in (("base", BASE), ("trained", TRAINED))
    ]
    return Page(driver, folders, tmp_path)


def having(rows: list[Row], holds: Callable[[Row], bool]) -> list[str]:
    return [row["key"] for row in rows if holds(row)]


def causes(row: Row) -> list[str]:
    failure = row["failure"]
    if not failure:
        return []
    return [failure["cause"], f"{failure['cause']} / {failure['part']}".removesuffix(" / ")]


HOLDS: dict[str, Callable[[Row, str], bool]] = {
    "verdict": lambda row, value: (row["failure"] is None) == (value == "right"),
    "cause": lambda row, value: value in causes(row),
    "level": lambda row, value: (row["hardness"] or "none") == value,
    "db": lambda row, value: row["db_id"] == value,
    "detector": lambda row, value: value in row["detectors"],
}


@pytest.mark.parametrize("name", HOLDS)
def test_every_choice_of_a_filter_shows_the_rows_that_the_data_has(name: str, one: Page) -> None:
    rows = rollouts(BASE)
    choices = one.choices(name)
    assert choices[0] == ""
    assert len(choices) > 1
    for value in choices[1:]:
        one.set(name, value)
        expected = having(rows, lambda row, value=value: HOLDS[name](row, value))
        assert expected
        assert one.visible() == expected
        assert one.matched() == f"{len(expected)} of 8 rows"
    one.set(name, "")
    assert one.visible() == KEYS
    assert one.matched() == "8 of 8 rows"


def test_the_filters_offer_all_that_the_rows_have(one: Page) -> None:
    rows = rollouts(BASE)
    assert set(one.choices("cause")) == {"", *(cause for row in rows for cause in causes(row))}
    assert one.choices("level") == ["", "easy", "medium", "hard", "extra", "none"]
    assert one.choices("verdict") == ["", "right", "wrong"]


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("OLDEST", ["dev:2"]),  # question
        ("distinct age", ["dev:3"]),  # gold
        ("wrong_6", ["dev:6"]),  # the model's SQL
        ("cell 5", ["dev:5"]),  # tool response
        ("thinking 7", ["dev:7"]),  # the model's words
        ("3 rows, gold", KEYS[2:]),  # detail of the verdict
        ("dev:4", ["dev:4"]),
        ("  ", KEYS),
        ("nowhere to be seen", []),
        (".*", []),
    ],
)
def test_text_is_looked_for_in_the_whole_row(text: str, keys: list[str], one: Page) -> None:
    one.set("text", text)
    assert one.visible() == keys
    assert one.matched() == f"{len(keys)} of 8 rows"


def test_filters_hold_together(one: Page) -> None:
    one.set("db", "shops")
    one.set("cause", "wrong rows")
    one.set("text", "shops")
    assert one.visible() == ["dev:6", "dev:7"]
    one.set("level", "extra")
    assert one.visible() == ["dev:6"]


@pytest.mark.parametrize(
    ("run", "verdict", "keys"),
    [
        ("1", "right", ["dev:0", "dev:2", "dev:3", "dev:4"]),
        ("1", "wrong", ["dev:1", "dev:5", "dev:6", "dev:7"]),
        ("0", "right", ["dev:0", "dev:1"]),
        ("0", "wrong", KEYS[2:]),
        ("1", "gained", ["dev:2", "dev:3", "dev:4"]),
        ("1", "lost", ["dev:1"]),
        ("0", "gained", ["dev:2", "dev:3", "dev:4"]),
    ],
)
def test_verdicts_of_several_runs_are_of_the_chosen_one_or_of_the_change(
    run: str, verdict: str, keys: list[str], two: Page
) -> None:
    two.set("run", run)
    two.set("verdict", verdict)
    assert two.visible() == keys


def test_the_last_run_is_judged_unless_another_is_chosen(two: Page) -> None:
    two.set("cause", "not executable")
    assert two.visible() == ["dev:1", "dev:5"]
    two.set("run", "0")
    assert two.visible() == ["dev:5"]


def test_a_link_reopens_the_filters_and_the_opened_row(two: Page) -> None:
    two.set("run", "0")
    two.set("verdict", "wrong")
    two.set("cause", "wrong rows / condition")
    two.set("db", "music")
    two.set("text", "who is")
    two.toggle("dev:2")
    state, keys = two.state(), two.visible()
    assert keys == ["dev:2"]
    two.open(state)
    two.settle()
    assert two.visible() == keys
    assert two.state() == state
    values = two.run("return [...new FormData(document.getElementById('filter'))]")
    assert dict(values) == {
        "run": "0",
        "verdict": "wrong",
        "cause": "wrong rows / condition",
        "level": "",
        "db": "music",
        "detector": "",
        "text": "who is",
    }
    assert "thinking 2" in two.row("dev:2").text


def test_going_back_to_all_rows_clears_the_address(one: Page) -> None:
    assert one.state() == ""
    one.set("verdict", "right")
    assert one.state() == "#verdict=right"
    one.find("#filter button").click()
    assert one.visible() == KEYS
    assert one.state() == ""


@pytest.mark.parametrize("state", ["#db=gone", "#nonsense=1", "#verdict=%3Cb%3E", "#", "#results"])
def test_a_link_with_a_state_that_is_not_there_shows_all_rows(state: str, one: Page) -> None:
    one.open(state)
    assert one.visible() == KEYS
    assert one.matched() == "8 of 8 rows"


def test_a_count_of_a_table_leads_to_the_rows_that_it_counts(two: Page) -> None:
    links = two.driver.find_elements("css selector", "#why-it-fails td a")
    assert len(links) == 11
    for link in links:
        two.run("arguments[0].click()", link)
        two.settle()
        assert link.text.split()[0] == str(len(two.visible()))


def test_an_example_of_a_detector_opens_its_row(one: Page) -> None:
    link = one.driver.find_elements("css selector", "#detectors td a")[-1]
    assert link.text == "dev:6"
    one.run("arguments[0].click()", link)
    one.settle()
    assert one.visible() == ["dev:3", "dev:6"]
    assert "thinking 6" in one.row("dev:6").text


def test_an_opened_row_shows_the_whole_trajectory_in_order(one: Page) -> None:
    row = one.toggle("dev:3")
    parts = [
        "Which ages are there?",
        "SELECT DISTINCT age FROM singer",
        "43 tokens",
        "thinking 3 <tool_call>",
        "SELECT wrong_3",
        '{"rows": [["cell 3"]]}',
        "done 3",
        "final answer",
        "✗ test suite",
        "wrong rows: 3 rows, gold 1",
        "wrong rows / join path",
        "condition, tables",
        "missing rows",
        "city",
        "answer never executed",
    ]
    places = [row.text.index(part) for part in parts]
    assert places == sorted(places)


def test_a_refused_call_and_a_missing_answer_are_shown(driver: Any, tmp_path: Path) -> None:
    rows = rollouts("10")
    rows[1] |= {"answer": None, "stop": "budget"}
    rows[1]["turns"][1]["calls"] = [
        {"query": None, "problem": "unknown_tool", "response": "no such tool"}
    ]
    page = Page(driver, [write_evaluation(tmp_path / "run", rows)], tmp_path)
    text = page.toggle("dev:1").text
    assert "refused: unknown tool" in text
    assert "no such tool" in text
    assert "the token budget ran out\nno answer" in text


def test_details_are_built_only_when_a_row_is_opened(one: Page) -> None:
    assert one.run("return document.querySelectorAll('.trajectory').length") == 0
    one.toggle("dev:0")
    one.toggle("dev:5")
    assert one.run("return document.querySelectorAll('.trajectory').length") == 2


def test_several_runs_of_a_row_stand_side_by_side_and_stacked_where_it_is_narrow(
    two: Page,
) -> None:
    row = two.toggle("dev:2")
    columns = row.find_elements("css selector", ".column")
    assert [c.find_element("css selector", "h3").text for c in columns] == ["base", "trained"]
    assert "SELECT wrong_2" in columns[0].text
    assert "SELECT wrong_2" not in columns[1].text
    assert columns[0].location["y"] == columns[1].location["y"]
    two.driver.set_window_size(500, 900)
    try:
        assert columns[0].location["x"] == columns[1].location["x"]
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert two.run(wide) <= 0
    finally:
        two.driver.set_window_size(1200, 900)


def test_samples_of_a_row_open_one_by_one(driver: Any, tmp_path: Path) -> None:
    rows = [rollout(at, right) for at in range(4) for right in (True, at < 2)]
    folder = write_evaluation(tmp_path / "sampled", rows, samples=2)
    page = Page(driver, [folder], tmp_path)
    assert page.choices("verdict") == ["", "right", "wrong", "mixed"]
    page.set("verdict", "mixed")
    assert page.visible() == ["dev:2", "dev:3"]
    row = page.toggle("dev:2")
    assert [m.text for m in row.find_elements("css selector", "summary > .marks > b")] == ["1/2"]
    first, second = row.find_elements("css selector", ".sample")
    second.find_element("css selector", "summary").click()
    page.settle()
    assert "SELECT wrong_2" in second.text
    assert "thinking" not in first.text


def test_rows_and_filters_are_used_with_the_keyboard_alone(one: Page) -> None:
    from selenium.webdriver.common.keys import Keys

    one.find("#filter [name=verdict]").send_keys("right")
    assert one.visible() == ["dev:0", "dev:1"]
    summary = one.row("dev:1").find_element("css selector", "summary")
    summary.send_keys(Keys.ENTER)
    one.settle()
    assert "thinking 1" in one.row("dev:1").text
    one.find("#filter [name=text]").send_keys("singers", Keys.ENTER)
    assert one.visible() == ["dev:0", "dev:1"]


def test_every_control_has_a_label(two: Page) -> None:
    for control in two.driver.find_elements("css selector", "#filter select, #filter input"):
        assert control.accessible_name
    # What is out of sight has not been laid out yet.
    two.run("arguments[0].scrollIntoView()", two.row("dev:1"))
    two.settle()
    marks = two.row("dev:1").find_elements("css selector", ".mark")
    assert [m.accessible_name for m in marks] == ["base: right", "trained: wrong"]


def test_printing_takes_the_tables_and_the_opened_rows(one: Page) -> None:
    one.toggle("dev:2")
    one.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert one.visible() == ["dev:2"]
        assert not one.find("#filter").is_displayed()
        assert one.find("#results table").is_displayed()
    finally:
        one.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background_in_either_scheme(scheme: str, two: Page) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    two.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    two.toggle("dev:1")
    try:
        ratios = two.run(CONTRASTS)
    finally:
        two.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}
    assert len(ratios) > 5


CONTRASTS = """
function parts(colour) { return colour.match(/[\\d.]+/g).map(Number); }
function light(colour) {
  const [r, g, b] = parts(colour).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function behind(node) {
  for (; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor;
    if (parts(colour)[3] !== 0) return colour;
  }
  return "rgb(255, 255, 255)";
}
const found = {};
for (const selector of ["h1", "h2", "td", "thead th", ".note", "a", "#filter label", "summary code",
                        "pre", "h4", "dt", ".mark.right", ".mark.wrong", ".scores .right",
                        ".scores .wrong", ".marks i"]) {
  const node = document.querySelector(selector);
  const both = [light(getComputedStyle(node).color), light(behind(node))];
  const [low, high] = both.sort((a, b) => a - b);
  found[selector] = (high + 0.05) / (low + 0.05);
}
return found;
"""

HACKS = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "<svg onload='window.hacked = 1'></svg>",
    "<iframe srcdoc='<script>parent.hacked = 1</script>'></iframe>",
    "<!-- <script>",
    "javascript:window.hacked=1",
    "\u202e\udcff\x00\u2028 half",
    "${window.hacked = 1} `",
    "constructor",
    "__proto__",
]


@pytest.mark.parametrize("hack", HACKS)
def test_no_text_of_a_model_or_a_database_does_anything(
    hack: str, driver: Any, tmp_path: Path
) -> None:
    rows = []
    for at in range(2):
        row = rollout(at, False, db_id=hack, question=hack, gold=hack, answer=hack, detail=hack)
        row |= {"key": f"{hack}{at}", "reason": hack, "stop": hack, "detectors": [hack]}
        row["turns"][0]["content"] = hack
        row["turns"][1]["calls"] = [{"query": hack, "problem": hack, "response": hack}]
        row["scores"] |= {"reason": hack, "flags": [hack]}
        row["failure"] |= {"cause": hack, "part": hack, "sql_differs": [hack]}
        rows.append(row)
    folder = write_evaluation(tmp_path / "run", rows, name=hack, settings={hack: hack})
    page = Page(driver, [folder, folder], tmp_path)
    for name in ("cause", "db", "detector"):
        for value in page.choices(name):
            page.set(name, value)
            assert len(page.visible()) == 2
    page.run("for (const row of document.querySelectorAll('.row')) row.open = true")
    page.settle()
    assert page.run("return document.querySelectorAll('.trajectory').length") == 4
    assert page.run("return window.hacked ?? null") is None
    assert page.run("return Object.prototype.hacked ?? null") is None
    assert page.run("return document.querySelectorAll('script').length") == 2
    assert not driver.find_elements("css selector", "img, iframe, object, .detail svg, .detail a")
    assert driver.get_log("browser") == []


def test_the_page_loads_nothing_and_its_policy_finds_nothing_to_refuse(two: Page) -> None:
    two.open("#verdict=gained&row=dev:2")
    two.toggle("dev:3")
    assert requested(two.driver) == {two.url}
    assert two.run("return performance.getEntriesByType('resource').length") == 0
    assert two.driver.get_log("browser") == []


def test_the_policy_stops_a_script_and_a_picture_that_got_in(one: Page) -> None:
    one.run(
        """
        const script = document.createElement("script");
        script.textContent = "window.hacked = 1";
        document.body.append(script);
        const image = new Image();
        image.src = "http://127.0.0.1:9/x.png";
        document.body.append(image);
        """
    )
    one.settle()
    assert one.run("return window.hacked ?? null") is None
    assert (
        len([e for e in one.driver.get_log("browser") if "Content Security" in e["message"]]) == 2
    )


def test_the_script_ran_under_its_policy_in_a_page_of_a_thousand_rows(
    driver: Any, tmp_path: Path
) -> None:
    rows = [rollout(at, at % 3 == 0) for at in range(1034)]
    page = Page(driver, [write_evaluation(tmp_path / "run", rows)], tmp_path)
    page.set("verdict", "right")
    assert page.matched() == "345 of 1034 rows"
    assert page.visible() == [f"dev:{at}" for at in range(0, 1034, 3)]
