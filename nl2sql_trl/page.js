// The list of rows: a filter whose state is in the address, and details that are built when opened.
// Every text of the data was written by a model or comes from a database. It is only ever given to
// `append` or `textContent`, which make text of it; no markup is built from strings.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);
const LAST = DATA.runs.length - 1;
const form = document.getElementById("filter");
const list = document.getElementById("list");

function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

// Facts of a row in one run (a row has one or several samples in each)

const right = (sample) => sample.scores.testsuite_exec;

function share(row, run) {
  return row.runs[run].filter(right).length / row.runs[run].length;
}

function verdicts(row, run) {
  const here = share(row, run);
  const moved = share(row, LAST) - share(row, 0);
  return [
    here === 1 ? "right" : here === 0 ? "wrong" : "mixed",
    ...(moved > 0 ? ["gained"] : moved < 0 ? ["lost"] : []),
  ];
}

function causes(row, run) {
  return row.runs[run].flatMap(({ failure }) =>
    failure ? [failure.cause, ...(failure.part ? [`${failure.cause} / ${failure.part}`] : [])] : []);
}

function detectors(row, run) {
  return row.runs[run].flatMap((sample) => sample.detectors);
}

function words(row) {
  const said = row.runs.flat().flatMap((sample) => [
    sample.answer,
    sample.detail,
    ...sample.turns.flatMap((turn) =>
      turn.role === "tool"
        ? turn.calls.flatMap((call) => [call.query, call.response])
        : [turn.content]),
  ]);
  return [row.key, row.db, row.question, row.gold, ...said].join("\n").toLowerCase();
}

// The filter: a control for each name, and whether a row passes its value

const PASSES = {
  verdict: (row, value, run) => verdicts(row, run).includes(value),
  cause: (row, value, run) => causes(row, run).includes(value),
  level: (row, value) => (row.level ?? "none") === value,
  db: (row, value) => row.db === value,
  detector: (row, value, run) => detectors(row, run).includes(value),
  text: (row, value) => (row.words ??= words(row)).includes(value.trim().toLowerCase()),
};

function every(facts) {
  const runs = DATA.runs.map((_, run) => run);
  return [...new Set(DATA.rows.flatMap((row) => runs.flatMap((run) => facts(row, run))))];
}

function addSelect(name, label, choices, start) {
  const select = make("select");
  for (const [value, text] of choices) select.append(new Option(text, value));
  addControl(name, label, select, start);
}

function addControl(name, label, control, start = "") {
  control.name = name;
  control.dataset.start = start;
  control.value = start;
  form.append(make("label", "", make("span", "", label), control));
}

function addControls() {
  const any = (values) => [["", "any"], ...values.map((value) => [value, value])];
  const levels = ["easy", "medium", "hard", "extra", "none"];
  const present = new Set(DATA.rows.map((row) => row.level ?? "none"));
  const sampled = DATA.rows.some((row) => row.runs.some((samples) => samples.length > 1));
  const moves = LAST > 0 ? ["gained", "lost"] : [];
  if (LAST > 0) {
    addSelect("run", "judged by run", DATA.runs.map((name, run) => [String(run), name]), String(LAST));
  }
  addSelect("verdict", "verdict", any(["right", "wrong", ...(sampled ? ["mixed"] : []), ...moves]));
  addSelect("cause", "cause", any(every(causes).sort()));
  addSelect("level", "hardness", any(levels.filter((level) => present.has(level))));
  addSelect("db", "database", any(every((row) => [row.db]).sort()));
  addSelect("detector", "detector", any(every(detectors).sort()));
  const text = make("input");
  text.type = "search";
  text.spellcheck = false;
  addControl("text", "text anywhere", text);
  const reset = make("button", "", "show all");
  reset.type = "button";
  reset.addEventListener("click", () => { restore(""); apply(); });
  form.append(reset);
}

const controls = () => [...form.elements].filter((control) => control.name);

function apply() {
  const run = Number(form.elements.run?.value ?? LAST);
  const wanted = controls().filter((control) => control.name in PASSES && control.value.trim());
  let shown = 0;
  for (const row of DATA.rows) {
    row.node.hidden = !wanted.every(({ name, value }) => PASSES[name](row, value, run));
    shown += !row.node.hidden;
  }
  document.getElementById("matched").textContent = `${shown} of ${DATA.rows.length} rows`;
  remember();
}

// The address holds what differs from the start, and the row that was opened last

let opened = "";

function remember() {
  const state = new URLSearchParams();
  for (const { name, value, dataset } of controls()) {
    if (value !== dataset.start) state.set(name, value);
  }
  if (opened) state.set("row", opened);
  const text = state.toString();
  if (!text && !location.hash.includes("=")) return;
  history.replaceState(null, "", location.href.split("#")[0] + (text && `#${text}`));
}

function restore(text) {
  const state = new URLSearchParams(text);
  for (const control of controls()) {
    control.value = state.get(control.name) ?? control.dataset.start;
    if (control.selectedIndex === -1) control.value = control.dataset.start;
  }
  opened = state.get("row") ?? "";
}

function follow() {
  // Other addresses are those of sections.
  if (location.hash && !location.hash.includes("=")) return;
  restore(location.hash.slice(1));
  apply();
  const row = DATA.rows.find(({ key }) => key === opened);
  if (row) row.node.open = true;
  if (location.hash) (row?.node ?? document.getElementById("rows")).scrollIntoView();
}

// A row: a line, and below it the trajectories of each run, side by side

function mark(row, run) {
  const samples = row.runs[run];
  const count = samples.filter(right).length;
  const verdict = verdicts(row, run)[0];
  const sign = samples.length > 1 ? `${count}/${samples.length}` : count ? "✓" : "✗";
  const node = make("b", `mark ${verdict}`, sign);
  node.title = `${DATA.runs[run]}: ${verdict}`;
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", node.title);
  return node;
}

function addRow(row) {
  const moved = verdicts(row, LAST)[1];
  const marks = make("span", "marks", ...DATA.runs.map((_, run) => mark(row, run)));
  if (moved) marks.append(make("i", moved, moved));
  const summary = make("summary", "", marks, make("code", "", row.key), make("span", "db", row.db),
    make("span", "level", row.level ?? ""), make("span", "question", row.question));
  row.node = make("details", "row", summary);
  row.node.dataset.key = row.key;
  row.node.addEventListener("toggle", () => {
    if (row.node.open && row.node.childElementCount === 1) row.node.append(detail(row));
    if (row.node.open) opened = row.key;
    else if (opened === row.key) opened = "";
    remember();
  });
  list.append(row.node);
}

function block(kind, label, text, className = "") {
  return make("div", `block ${kind}`, make("h4", "", label), make("pre", className, text));
}

function detail(row) {
  const columns = row.runs.map((samples, run) => {
    const column = make("div", "column");
    if (LAST > 0) column.append(make("h3", "", DATA.runs[run]));
    samples.forEach((sample, at) => {
      column.append(samples.length === 1 ? trajectory(sample) : folded(sample, at, samples.length));
    });
    return column;
  });
  return make("div", "detail", block("asked", "question", row.question),
    block("gold", "gold", row.gold, "sql"), make("div", "columns", ...columns));
}

function folded(sample, at, total) {
  const sign = make("b", `mark ${right(sample) ? "right" : "wrong"}`, right(sample) ? "✓" : "✗");
  const node = make("details", "sample", make("summary", "", sign, ` sample ${at + 1} of ${total}`));
  node.addEventListener("toggle", () => {
    if (node.open && node.childElementCount === 1) node.append(trajectory(sample));
  });
  return node;
}

const STOPS = {
  answer: "the model answered",
  budget: "the token budget ran out",
  turn_limit: "the turn limit was reached",
};

function trajectory(sample) {
  const node = make("div", "trajectory");
  for (const turn of sample.turns) {
    if (turn.role === "tool") for (const call of turn.calls) node.append(called(call));
    else node.append(block("model", `model · ${turn.tokens} tokens`, turn.content));
  }
  const answer = block(right(sample) ? "right" : "wrong",
    `final answer · ${STOPS[sample.stop] ?? sample.stop}`, sample.answer ?? "no answer", "sql");
  node.append(answer, scored(sample), facts(sample));
  return node;
}

function called(call) {
  const node = make("div", "block tool", make("h4", "", call.tool ?? "run_sql"));
  if (call.problem) node.append(make("p", "", `refused: ${call.problem.replaceAll("_", " ")}`));
  if (call.query !== null) node.append(make("pre", "sql", call.query));
  if (call.arguments) node.append(make("pre", "", JSON.stringify(call.arguments)));
  node.append(make("pre", "", call.response));
  return node;
}

function scored({ scores, correct }) {
  const verdict = (label, value) =>
    make("li", value ? "right" : "wrong", `${value ? "✓" : "✗"} ${label}`);
  return make("ul", "scores",
    verdict("test suite", scores.testsuite_exec),
    verdict("exact match", scores.exact_match),
    verdict("exact match (legacy)", scores.exact_match_legacy),
    verdict("legacy execution", scores.legacy_exec),
    verdict("training reward", correct),
    verdict("parses", scores.pred_parses),
    verdict("parses (legacy)", scores.pred_parses_legacy));
}

function facts(sample) {
  const { failure, scores } = sample;
  const found = [
    ["training verdict", [sample.reason.replaceAll("_", " "), sample.detail].filter(Boolean).join(": ")],
    ["official scripts", [scores.reason, ...(scores.flags ?? [])].filter(Boolean).join(", ")],
    ["cause", [failure?.cause, failure?.part].filter(Boolean).join(" / ")],
    ["SQL differs in", failure?.sql_differs?.join(", ")],
    ["result differs", failure?.result_differs],
    ["tables missing", failure?.tables_missing?.join(", ")],
    ["tables extra", failure?.tables_extra?.join(", ")],
    ["wrong join keys", failure?.wrong_join_keys?.join(", ")],
    ["ran its answer", sample.ran_its_answer ? "yes" : "no"],
    ["detectors", sample.detectors.join(", ").replaceAll("_", " ")],
  ];
  const node = make("dl");
  for (const [term, text] of found) {
    if (text) node.append(make("dt", "", term), make("dd", "", text));
  }
  return node;
}

addControls();
list.style.setProperty("--runs", DATA.runs.length);
DATA.rows.forEach(addRow);
form.addEventListener("input", apply);
form.addEventListener("change", apply); // of a select, some tools send only this one
form.addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", follow);
if (location.hash.includes("=")) follow();
else apply();
