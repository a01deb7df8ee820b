"""An evaluation that was stopped goes on where it stood, and gives what it would have given."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fakes import random_model, write_spider_folder

from nl2sql_trl import evaluate as command
from nl2sql_trl.evaluation import evaluate
from nl2sql_trl.kept import Kept, weights_digest
from nl2sql_trl.policy import ByteTokenizer, ScriptedPolicy
from nl2sql_trl.prompts import Codec
from nl2sql_trl.rollout import RolloutConfig
from nl2sql_trl.runs import read_jsonl
from nl2sql_trl.task import Task, make_task

CODEC = Codec(ByteTokenizer())
CALL = '<tool_call>\n{"name": "run_sql", "arguments": {"query": "SELECT 1"}}\n</tool_call>'
KILLED = """
import os, sys
from nl2sql_trl import evaluate, kept
add, seen = kept.Kept.add, []
def dying(self, row, trajectory):
    add(self, row, trajectory)
    seen.append(row)
    if len(seen) == 20:
        os.kill(os.getpid(), 9)
kept.Kept.add = dying
evaluate.main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = write_spider_folder(tmp_path_factory.mktemp("data") / "spider")
    return make_task(str(folder), "dev", CODEC, rollout=RolloutConfig(budget=600, max_turns=3))


def script(row: int, turn: int) -> str:
    """Even rows call the tool first; each row answers in its own way."""
    return CALL if turn == 0 and row % 2 == 0 else f"```sql\nSELECT {row}\n```"


def asked(policy: ScriptedPolicy) -> set[int]:
    return {key for key, _, _ in policy.contexts}


def test_rows_that_ended_are_played_again_and_the_others_sampled(
    task: Task, tmp_path: Path
) -> None:
    class Stopped(ScriptedPolicy):
        def release(self, key: int) -> None:
            super().release(key)
            if key == 5:
                raise KeyboardInterrupt

    path, of = tmp_path / "rows.jsonl", {"seed": 0}
    with pytest.raises(KeyboardInterrupt):
        evaluate(task, Stopped(script, CODEC), progress=False, kept=Kept(path, of))
    kept, policy = Kept(path, of), ScriptedPolicy(script, CODEC)
    assert 0 < len(kept.samples) < len(task.prompts)
    found = evaluate(task, policy, progress=False, kept=kept)
    assert asked(policy) == set(range(len(task.prompts))) - set(kept.samples)
    assert found == evaluate(task, ScriptedPolicy(script, CODEC), progress=False)
    # Now all are there.
    idle = ScriptedPolicy([], CODEC)
    assert evaluate(task, idle, progress=False, kept=Kept(path, of)) == found
    assert not asked(idle)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def spoil(path: Path) -> None:
    path.write_bytes(b"\x00\x00\n" + path.read_bytes())


@pytest.mark.parametrize(
    ("change", "of", "left"),
    [
        (lambda _: None, 0, 8),
        (lambda _: None, 1, 0),
        (cut, 0, 7),
        (spoil, 0, 0),
        (lambda path: path.write_text("", encoding="utf-8"), 0, 0),
        (lambda path: path.write_text("[]\n", encoding="utf-8"), 0, 0),
    ],
    ids=["as it was", "of something else", "cut", "spoilt", "empty", "another file"],
)
def test_what_does_not_belong_to_this_evaluation_is_not_used(
    task: Task, tmp_path: Path, change: Callable[[Path], object], of: int, left: int
) -> None:
    path = tmp_path / "rows.jsonl"
    evaluate(task, ScriptedPolicy(script, CODEC), progress=False, kept=Kept(path, {"of": 0}))
    change(path)
    assert len(Kept(path, {"of": of}).samples) == left
    assert len(Kept(path, {"of": of}).samples) == left


def test_a_step_of_training_changes_the_digest_of_weights() -> None:
    model = random_model()
    before = weights_digest(model)
    assert before == weights_digest(random_model()) != weights_digest(random_model(seed=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.tensor([[1, 2, 3]])).logits.sum().backward()
    optimizer.step()
    assert weights_digest(model) != before


def test_a_killed_command_goes_on_and_writes_what_an_undisturbed_one_writes(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_spider_folder(tmp_path / "spider")
    arguments = ["--model", str(model_folder), "--data", str(data), "--budget", "24"]
    arguments += ["--samples", "4", "--temperature", "1", "--out"]
    died, whole = tmp_path / "died", tmp_path / "whole"
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments, str(died)])
    assert done.returncode == -9
    assert command.main([*arguments, str(died)]) == 0
    told = capsys.readouterr().out
    # The greedy pass has 8 rows, and 12 of the sampled ones were there.
    assert "greedy: 8 rollouts are there from before" in told
    assert "sampled: 12 rollouts are there from before" in told
    assert command.main([*arguments, str(whole)]) == 0
    for name in ("trajectories.jsonl", "samples.jsonl"):
        first, second = (read_jsonl(out / name) for out in (died, whole))
        for a, b in zip(first, second, strict=True):
            # Other rows beside it change a sum's last digits.
            assert a.pop("logprob") == pytest.approx(b.pop("logprob"), rel=1e-5)
            assert a == b
    reports = [json.loads((out / "report.json").read_text("utf-8")) for out in (died, whole)]
    assert reports[0]["metrics"] == reports[1]["metrics"]
    assert not list(died.glob("*.unfinished.jsonl"))
