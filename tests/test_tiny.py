"""The tiny model: there without a download, good enough to learn from, bad enough to learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nl2sql_trl import models, tiny, tiny_runs
from nl2sql_trl.demonstrations import demonstrations
from nl2sql_trl.prompts import Codec
from nl2sql_trl.task import Task


@pytest.fixture(scope="module")
def folder() -> Path:
    return tiny.tiny_model()


@pytest.fixture(scope="module")
def codec(folder: Path) -> Codec:
    return Codec(models.load_tokenizer(str(folder)))


@pytest.fixture(scope="module")
def task(codec: Codec) -> Task:
    return tiny.tiny_task(codec)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return models.load_model(str(folder))


def test_the_name_tiny_is_the_cached_folder(folder: Path) -> None:
    assert models.resolve("tiny") == str(folder)
    assert folder.parent == models.cache_dir()


def test_it_is_made_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "make", None)
    assert tiny.tiny_model() == folder


def test_a_failed_making_leaves_nothing_that_looks_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NL2SQL_TRL_CACHE", str(tmp_path))

    def fail(made: Path, settings: tiny.Settings) -> None:
        made.mkdir()
        (made / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny, "make", fail)
    with pytest.raises(KeyboardInterrupt):
        tiny.tiny_model()
    assert not list(tmp_path.glob("tiny-*/"))
    assert not list(tmp_path.glob("**/config.json"))


def test_it_is_a_qwen2_of_a_few_million_parameters(model: Any) -> None:
    assert model.config.model_type == "qwen2"
    assert 1_500_000 < model.num_parameters() < 5_000_000


def test_tokenizer_and_model_agree_on_the_special_tokens(codec: Codec, model: Any) -> None:
    tokenizer = codec.tokenizer
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert model.config.vocab_size == len(tokenizer)
    assert set(tiny.SPECIAL) <= set(tokenizer.get_added_vocab())


@pytest.mark.parametrize("text", ["Łódź: 12.50 'x'", "\x00\t\r\n", "日本 🛰", "  two  spaces "])
def test_the_tokenizer_gives_every_text_back(text: str, codec: Codec) -> None:
    ids = codec.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert codec.tokenizer.decode(ids) == text


def test_every_question_of_its_task_has_a_right_demonstration_within_the_budget(
    task: Task, codec: Codec
) -> None:
    played = demonstrations(task, codec, retry_share=0.5, seed=1)
    assert {e.db_id for e in task.examples.values()} == {tiny.DATABASE}
    assert len(task.examples) >= 24
    assert all(task.verdict(t).correct for t in played)


def test_sampled_on_its_task_it_is_right_sometimes_and_not_always(
    task: Task, codec: Codec, model: Any
) -> None:
    from nl2sql_trl.engine import TransformersPolicy
    from nl2sql_trl.evaluation import evaluate
    from nl2sql_trl.sampling import Sampling

    policy = TransformersPolicy(model, codec, Sampling(temperature=1.0), seed=0)
    right = evaluate(task, policy, samples=2, progress=False).correct
    assert 0.05 < sum(right) / len(right) < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_grpo_raises_its_reward(seed: int) -> None:
    before, after, _ = tiny_runs.learn(steps=25, seed=seed)
    assert after > before + 0.2
