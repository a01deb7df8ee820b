"""An exported model is the trained one for plain transformers, and its card quotes files alone."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_evaluations import rollouts, write_evaluation
from fakes import ROOT

from nl2sql_trl import export, models
from nl2sql_trl.lineage import lineage

# A chain as users make it, in two steps each: tiny, a LoRA warm start, GRPO of all weights.

COMMON: dict[str, Any] = {
    "data": "pocket",
    "rows": 8,
    "max_steps": 2,
    "per_device_train_batch_size": 8,
    "lr_scheduler_type": "constant",
    "bf16": False,
    "use_cpu": True,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_steps": 1,
    "logging_steps": 1,
    "disable_tqdm": True,
}


def run(script: str, out: Path, **settings: Any) -> None:
    flags = [str(x) for k, v in (COMMON | settings).items() for x in (f"--{k}", v)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "nl2sql_trl" / script), "--output_dir", str(out), *flags],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sft/ (LoRA, checkpoints of adapters) and grpo/ (from sft/model)."""
    folder = tmp_path_factory.mktemp("chain")
    lora = {"use_peft": True, "lora_r": 4, "lora_target_modules": "all-linear"}
    run("sft.py", folder / "sft", model_name_or_path="tiny", learning_rate=2e-3, **lora)
    grpo = {"num_generations": 4, "max_completion_length": 192, "max_turns": 3, "tool_chars": 96}
    start = folder / "sft" / "model"
    run("train.py", folder / "grpo", model_name_or_path=start, learning_rate=1e-4, **grpo)
    return folder


@pytest.fixture(scope="session")
def exported(chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The exported folder of a part of the chain, made once."""
    made: dict[str, Path] = {}

    def folder(part: str) -> Path:
        if part not in made:
            made[part] = tmp_path_factory.mktemp("exported") / "model"
            export.export(export.source(str(chain / part)), made[part])
        return made[part]

    return folder


PARTS = ["sft/checkpoint-2", "grpo"]

# The replay knows nothing of our engine: transformers loads and generates.
REPLAY = """
import json, re, sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from nl2sql_trl import tools
from nl2sql_trl.database import ddl, execute
from nl2sql_trl.prompts import Codec, extract_answer, messages, parse_calls

folder, questions = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
limits = json.loads((folder / "run.json").read_text())["rollout"]
codec = Codec(AutoTokenizer.from_pretrained(folder))
model = AutoModelForCausalLM.from_pretrained(folder)


def answer(question, database):
    ids = list(codec.prompt_ids(messages(question, ddl(database))))
    end = len(ids) + limits["budget"]
    for turn in range(1, limits["max_turns"] + 1):
        given = torch.tensor([ids])
        mask = torch.ones_like(given)
        out = model.generate(given, attention_mask=mask, max_new_tokens=end - len(ids))[0].tolist()
        new, ids = out[len(ids) :], out
        text = codec.decode(new)
        calls = parse_calls(text)
        if new[-1] not in codec.stop_ids or not calls or turn == limits["max_turns"]:
            break
        for chars in (limits["tool_chars"], tools.MIN_CHARS):
            said = []
            for call in calls:
                if call.problem:
                    said.append(tools.error(call.message, limits["tool_chars"]))
                    continue
                found = execute(database, call.query)
                said.append(tools.render(found, limits["truncation"], chars))
            added = codec.suffix_ids(said, new[-1] == codec.eos_id)
            if len(ids) + len(added) < end:
                break
        else:
            break
        ids += added
    return extract_answer(text)


answers = [answer(question, Path(database)) for question, database in questions]
assert not any(f"nl2sql_trl.{name}" in sys.modules for name in ("engine", "generate", "rollout"))
code = (folder / "README.md").read_text().split("```python\\n")[1].split("```")[0]
exec(re.sub('MODEL = ".*"', f"MODEL = {str(folder)!r}", code))
card = [answer(question, Path(database)) for question, database in questions[:5]]
print(json.dumps([answers, card]))
"""


@pytest.mark.parametrize("part", PARTS)
def test_in_a_fresh_process_plain_transformers_gives_the_identical_sql(
    part: str, chain: Path, exported: Callable[[str], Path], tmp_path: Path
) -> None:
    from nl2sql_trl.asker import trained_limits
    from nl2sql_trl.generate import model_policy
    from nl2sql_trl.prompts import Codec
    from nl2sql_trl.rollout import rollout
    from nl2sql_trl.sampling import Sampling
    from nl2sql_trl.tiny import tiny_task

    source = chain / part
    codec = Codec(models.load_tokenizer(str(source)))
    task = tiny_task(codec)
    prompts = list(task.prompts.values())[:20]
    policy = model_policy(_trained(source), codec, Sampling(0.0), seed=0, autocast=False)
    done = rollout(prompts, policy, trained_limits(str(source)))
    expected = [t.answer for t in done]
    assert len(set(expected) - {None}) > 5
    assert any(t.calls for t in done)

    asked = [(task.examples[p.key].question, str(p.db_path)) for p in prompts]
    (tmp_path / "questions.json").write_text(json.dumps(asked))
    (tmp_path / "replay.py").write_text(REPLAY)
    command = [sys.executable, "replay.py", str(exported(part)), "questions.json"]
    fresh = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert fresh.returncode == 0, fresh.stderr[-2000:]
    answers, by_card = json.loads(fresh.stdout)
    assert answers == expected
    assert by_card == expected[:5]


def _trained(source: Path) -> Any:
    """The trained model as training had it: adapters beside the weights, not merged."""
    adapters = source / "adapter_config.json"
    if not adapters.is_file():
        return models.load_model(str(source))
    from peft import PeftModel

    base = models.load_model("tiny")
    return PeftModel.from_pretrained(base, str(source)).get_base_model()


def test_merging_adapters_changes_the_weights_and_leaves_no_adapter(
    exported: Callable[[str], Path],
) -> None:
    merged = _weights(exported("sft/checkpoint-2"))
    base = _weights(Path(models.resolve("tiny")))
    assert merged.keys() == base.keys()
    assert any(not (merged[name] == base[name]).all() for name in base)
    assert not list(exported("sft/checkpoint-2").glob("adapter*"))


def test_the_weights_of_a_merged_run_are_saved_bit_by_bit(
    chain: Path, exported: Callable[[str], Path]
) -> None:
    import torch

    trained, made = _weights(chain / "grpo" / "model"), _weights(exported("grpo"))
    assert trained.keys() == made.keys()
    assert all(torch.equal(trained[name], made[name]) for name in trained)


def _weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_dtype_stays_and_is_stated(dtype: str, model_folder: Path, tmp_path: Path) -> None:
    import torch

    kept = tmp_path / "kept"
    shutil.copytree(model_folder, kept)
    models.load_model(str(model_folder), dtype=dtype).save_pretrained(kept)
    made = export.export(export.source(str(kept)), tmp_path / "out")
    assert {w.dtype for w in _weights(tmp_path / "out").values()} == {getattr(torch, dtype)}
    assert f"in {dtype}" in made.told(tmp_path / "out")
    assert f"saved in {dtype}" in (tmp_path / "out" / "README.md").read_text()


def test_generation_is_greedy_whatever_the_base_model_did(
    model_folder: Path, tmp_path: Path
) -> None:
    from transformers import GenerationConfig

    folder = tmp_path / "sampler"
    shutil.copytree(model_folder, folder)
    odd = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20}
    GenerationConfig(**odd, repetition_penalty=1.05).save_pretrained(folder)
    export.export(export.source(str(folder)), tmp_path / "out")
    found = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert found["do_sample"] is False
    assert not found.keys() & {"temperature", "top_p", "top_k", "repetition_penalty"}
    assert set(found["eos_token_id"]) == set(_stop_ids(folder))
    assert found["pad_token_id"] in found["eos_token_id"]


def _stop_ids(folder: Path) -> frozenset[int]:
    from nl2sql_trl.prompts import Codec

    return Codec(models.load_tokenizer(str(folder))).stop_ids


def test_the_limits_of_the_tool_loop_go_with_the_model(exported: Callable[[str], Path]) -> None:
    from nl2sql_trl.asker import trained_limits

    limits = trained_limits(str(exported("grpo")))
    assert (limits.budget, limits.max_turns, limits.tool_chars) == (192, 3, 96)


def test_no_path_of_this_machine_is_in_any_text_file(
    chain: Path, exported: Callable[[str], Path]
) -> None:
    for part in PARTS:
        for file in exported(part).glob("*"):
            if file.suffix != ".safetensors":
                text = file.read_text(encoding="utf-8")
                assert str(Path.home()) not in text, file
                assert str(chain) not in text, file


# The card

SECTIONS = [
    "Results",
    "Intended use",
    "How it was trained",
    "Prompt format",
    "How to reproduce",
    "Behavioural profile",
    "Limitations",
    "Citation",
]


def front_matter(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.split("---\n")[1])


def section(card: str, title: str) -> str:
    return re.split(r"^## ", card.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


def test_a_card_without_evaluation_says_so_and_quotes_no_result(
    exported: Callable[[str], Path],
) -> None:
    card = (exported("grpo") / "README.md").read_text()
    assert re.findall(r"^## (.*)$", card, re.MULTILINE) == SECTIONS
    for title in ("Results", "Behavioural profile"):
        assert "No evaluation of this model was at hand" in section(card, title)
        assert not re.search(r"\d\.\d", section(card, title))
    assert "Not evaluated" in section(card, "Limitations")


def test_the_training_table_holds_what_the_runs_files_say(
    chain: Path, exported: Callable[[str], Path]
) -> None:
    trained = section((exported("grpo") / "README.md").read_text(), "How it was trained")
    cells = {
        line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]]
        for line in trained.splitlines()
        if line.startswith("|")
    }
    manifest = json.loads((chain / "grpo" / "manifest.json").read_text())
    assert cells[""] == ["warm start", "GRPO"]
    assert cells["steps"] == ["2", "2"]
    assert cells["training data"][1].startswith("8 rows of pocket, train (0 set aside)")
    assert cells["weights"] == ["LoRA, r 4, alpha 32, all-linear", "all weights"]
    assert cells["learning rate"] == ["0.002, constant", "0.0001, constant"]
    assert cells["completion budget"] == ["-", "192 tokens over all turns"]
    assert cells["batch a step"][1] == "2 prompts × 4 = 8 trajectories"  # noqa: RUF001
    assert cells["seed"][1] == str(manifest["seed"])
    assert f"torch {manifest['packages']['torch']}" in cells["software"][1]


def test_the_prompt_example_is_rendered_by_the_models_template(
    exported: Callable[[str], Path],
) -> None:
    text = section((exported("grpo") / "README.md").read_text(), "Prompt format")
    assert "<|im_start|>system\nYou are a SQL assistant" in text
    assert '"name": "run_sql"' in text
    assert "of the last training step, sampled" in text


def test_the_front_matter_is_valid_for_the_hub(exported: Callable[[str], Path]) -> None:
    from huggingface_hub import ModelCard

    data = ModelCard.load(exported("grpo") / "README.md").data
    assert data.pipeline_tag == "text-generation"
    assert data.license == "apache-2.0"
    assert {"text-to-sql", "grpo", "sft"} <= set(data.tags or [])
    assert data.datasets is None


def test_a_base_model_is_named_by_its_hub_name_alone(tmp_path: Path) -> None:
    for base, hub in (
        ("Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-3B-Instruct"),
        ("smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("tiny", None),
        (str(tmp_path), None),
        ("somewhere/on/this/machine", None),
    ):
        write_run(tmp_path / "run", base)
        found = lineage(tmp_path / "run" / "model")
        assert found.hub_base == hub
        assert str(tmp_path.parent) not in found.shown_base


def write_run(folder: Path, base: str, **config: Any) -> None:
    (folder / "model").mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"model_name_or_path": base, **config}))
    (folder / "manifest.json").write_text("{}")


def test_a_chain_that_bites_its_tail_ends(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        write_run(tmp_path / name, str(tmp_path / other / "model"))
        (tmp_path / name / "model" / "config.json").write_text("{}")
    assert len(lineage(tmp_path / "a" / "model").stages) == 2


def test_a_licence_that_is_not_known_is_left_out_with_a_note(
    model_folder: Path, tmp_path: Path
) -> None:
    made = export.export(export.source(str(model_folder)), tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "license" not in front_matter(card)
    assert "The licence of the base model was not known" in card
    assert "its training is not recorded" in section(card, "How it was trained")
    assert "not known" in made.told(tmp_path / "out")


@pytest.fixture
def evaluated(model_folder: Path, spider_folder: Path, tmp_path: Path) -> Path:
    """A run with its evaluation and its base model's, in the demo's layout."""
    run = tmp_path / "runs" / "grpo"
    shutil.copytree(model_folder, run / "model")
    write_run(run, "Qwen/Qwen2.5-3B-Instruct", num_generations=8)
    models = {"base": "Qwen/Qwen2.5-3B-Instruct", "grpo": str(run / "model"), "other": "tiny"}
    for name, verdicts in (("base", "10010000"), ("grpo", "11010110"), ("other", "1" * 8)):
        settings = {"model": models[name], "data": str(spider_folder), "split": "dev", "seed": 0}
        write_evaluation(tmp_path / "runs" / "evaluation" / name, rollouts(verdicts),
                         settings=settings)  # fmt: skip
    return run


def test_evaluations_beside_the_run_are_found_and_every_number_is_theirs(
    evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    export.export(export.source(str(evaluated)), tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    results = section(card, "Results")
    report = json.loads((tmp_path / "runs/evaluation/grpo/report.json").read_text())
    for level, found in report["metrics"]["testsuite_exec"].items():
        line = next(row for row in results.splitlines() if row.startswith(f"| {level} "))
        assert f"{found['mean']:.3f} [{found['low']:.3f}, {found['high']:.3f}]" in line
    assert "| Qwen2.5-3B-Instruct (base)" in results
    assert "this model (trained)" in results
    assert "+0.375 [" in results
    assert "87.5%" in section(card, "Behavioural profile")
    assert "8 rows of 2 databases (spider, dev)" in section(card, "Limitations")
    assert "row `dev:5` of the evaluation" in section(card, "Prompt format")
    assert "CREATE TABLE shop" in section(card, "Prompt format")
    assert "--data DATA --split dev --seed 0" in section(card, "How to reproduce")
    assert front_matter(card)["base_model"] == "Qwen/Qwen2.5-3B-Instruct"
    assert str(tmp_path) not in card


def test_an_evaluation_can_be_named_and_compared(evaluated: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "evaluation"
    what = export.source(str(evaluated), [folder / "other"], folder / "base")
    assert [[run.name for run in group] for group in what.evaluations] == [
        ["Qwen2.5-3B-Instruct", "this model"]
    ]
    assert what.evaluations[0][1].rows == [
        json.loads(line) for line in (folder / "other/trajectories.jsonl").open()
    ]


def test_an_evaluation_of_other_questions_is_no_baseline(evaluated: Path, tmp_path: Path) -> None:
    base = tmp_path / "runs" / "evaluation" / "base"
    settings = json.loads((base / "report.json").read_text())["settings"]
    write_evaluation(base, rollouts("1000"), settings=settings)
    assert [len(group) for group in export.source(str(evaluated)).evaluations] == [1]
    with pytest.raises(ValueError, match="rows"):
        export.source(str(evaluated), baseline=base)


def test_data_cannot_break_out_of_the_example(evaluated: Path, tmp_path: Path) -> None:
    path = tmp_path / "runs/evaluation/grpo"
    settings = json.loads((path / "report.json").read_text())["settings"]
    rows = rollouts("11010110")
    evil = "`````\n# forged heading\n\x1b[31m\u202e"
    for row in rows:
        row["turns"][1]["calls"][0]["response"] = evil
    write_evaluation(path, rows, settings=settings)
    export.export(export.source(str(evaluated)), tmp_path / "out")
    text = section((tmp_path / "out" / "README.md").read_text(), "Prompt format")
    fence = max(re.findall("^`+", text, re.MULTILINE), key=len)
    assert len(fence) > 5
    assert text.count(f"\n{fence}") == 2
    assert "\x1b" not in text
    assert "\u202e" not in text


# The command


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs the command in this process: its exit status, and what it printed."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def run(*arguments: object) -> tuple[object, str, str]:
        try:
            status: object = export.main([str(a) for a in arguments])
        except SystemExit as stop:
            status = stop.code
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return status, captured.out, captured.err.strip()

    return run


def test_the_command_says_what_it_made(
    model_folder: Path, tmp_path: Path, call: Callable[..., Any]
) -> None:
    status, out, _ = call(model_folder, "--to", tmp_path / "out")
    assert status == 0
    assert "parameters in float32" in out
    assert "no evaluation was found" in out


def test_an_empty_folder_may_be_the_target(
    model_folder: Path, tmp_path: Path, call: Callable[..., Any]
) -> None:
    (tmp_path / "out").mkdir()
    assert call(model_folder, "--to", tmp_path / "out")[0] == 0
    assert (tmp_path / "out" / "config.json").is_file()


@pytest.mark.parametrize("there", ["file", "folder"])
def test_a_target_that_holds_something_is_left_alone(
    there: str, model_folder: Path, tmp_path: Path, call: Callable[..., Any]
) -> None:
    target = tmp_path / "out"
    if there == "folder":
        target.mkdir()
    mine = target / "mine" if there == "folder" else target
    mine.write_text("precious")
    status, _, error = call(model_folder, "--to", target)
    assert status == 2
    assert error.startswith("error: ")
    assert "is there already" in error
    assert mine.read_text() == "precious"
    assert len(list(tmp_path.rglob("*"))) == (2 if there == "folder" else 1)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nosuch"], "no model 'nosuch'"),
        (["Qwen/Qwen2.5-3B-Instruct"], "hub name"),
        (["{run}"], "has not finished"),
        (["{model}", "--evaluation", "nosuch"], "report.json"),
        (["{model}", "--push", "a/b/c"], "a/b/c"),
    ],
    ids=str,
)
def test_what_cannot_be_exported_is_one_line_and_writes_nothing(
    arguments: list[str], part: str, model_folder: Path, tmp_path: Path, call: Callable[..., Any]
) -> None:
    write_run(tmp_path / "run", "tiny")
    (tmp_path / "run" / "model").rmdir()
    given = [a.format(run=tmp_path / "run", model=model_folder) for a in arguments]
    status, _, error = call(*given, "--to", tmp_path / "out")
    assert status == 2
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    assert part in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ("{}", "does not say which model"),
        ('{"base_model_name_or_path": "./nosuch/model"}', "no model './nosuch/model'"),
    ],
)
def test_adapters_that_cannot_be_merged_are_told(
    config: str, part: str, tmp_path: Path, call: Callable[..., Any]
) -> None:
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "adapter_config.json").write_text(config)
    status, _, error = call(tmp_path / "adapters", "--to", tmp_path / "out")
    assert status == 2
    assert part in error
    assert len(error.splitlines()) == 1


def test_an_export_that_fails_leaves_nothing(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(export, "card", fail)
    with pytest.raises(KeyboardInterrupt):
        export.export(export.source(str(model_folder)), tmp_path / "out")
    assert not list(tmp_path.iterdir())


# The hub, played by a server of our own


class Hub(BaseHTTPRequestHandler):
    """Answers what `create_repo` and `upload_folder` ask, and keeps what they send."""

    kept: dict[str, bytes]
    created: list[dict[str, Any]]
    refuse = False

    def do_GET(self) -> None:
        self._answer({"id": "me/sql", "sha": "0" * 40, "siblings": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.endswith("/repos/create"):
            self.created.append(json.loads(body))
            self._answer({"url": f"{self._place()}/me/sql", "id": "me/sql", "name": "me/sql"})
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                     for f in files]  # fmt: skip
            self._answer({"files": modes})
        elif "/commit/" in self.path:
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    value = entry["value"]
                    self.kept[value["path"]] = base64.b64decode(value["content"])
            self._answer({"success": True, "commitOid": "1" * 40,
                          "commitUrl": f"{self._place()}/me/sql/commit/1"})  # fmt: skip
        else:
            self._answer({})

    def _place(self) -> str:
        return f"http://{self.headers['Host']}"

    def _answer(self, value: object) -> None:
        data = json.dumps({"error": "no such token"} if self.refuse else value).encode()
        self.send_response(401 if self.refuse else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[ThreadingHTTPServer]:
    Hub.kept, Hub.created, Hub.refuse = {}, [], False
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def pushed(hub: ThreadingHTTPServer, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: the hub's address is read when its library loads."""
    place = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_TOKEN": "hf_test"}
    return subprocess.run(
        [sys.executable, "-m", "nl2sql_trl.export", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | place | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
    )


def test_push_uploads_the_folder_as_it_was_written(
    hub: ThreadingHTTPServer, model_folder: Path, tmp_path: Path
) -> None:
    done = pushed(hub, model_folder, "--to", tmp_path / "out", "--push", "me/sql")
    assert done.returncode == 0, done.stderr
    assert f":{hub.server_port}/me/sql/commit/1" in done.stdout
    assert Hub.created[0]["name"] == "sql"
    assert Hub.kept == {f.name: f.read_bytes() for f in (tmp_path / "out").iterdir()}
    assert b'MODEL = "me/sql"' in Hub.kept["README.md"]


def test_a_push_that_is_refused_keeps_the_folder_and_says_why(
    hub: ThreadingHTTPServer, model_folder: Path, tmp_path: Path
) -> None:
    Hub.refuse = True
    done = pushed(hub, model_folder, "--to", tmp_path / "out", "--push", "me/sql")
    assert done.returncode == 2
    assert (tmp_path / "out" / "model.safetensors").is_file()
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("error: ")
    assert "is written, but was not uploaded" in line
    assert "Traceback" not in done.stderr
