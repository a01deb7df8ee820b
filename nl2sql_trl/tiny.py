"""`tiny`: a model of a few million parameters, made here from nothing in about a minute.

A Qwen2 architecture with a tokenizer trained on pocket's train split and a warm start on
demonstrations from one of its databases. Half of them are careless on purpose: they answer
`SELECT * FROM table` and never call the tool. So at temperature 1 it does well on some
trajectories and badly on others, and GRPO has something to find out in few steps: looking pays.
It is for tests and notebooks that should really learn without a download.

What it can't do: anything else. It has seen one database's questions and knows no language beyond
them; its numbers say nothing about text-to-SQL. `tiny_runs.py` trains it with GRPO.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql_trl import __version__
from nl2sql_trl.data import load, pocket_dir
from nl2sql_trl.database import ddl
from nl2sql_trl.demonstrations import demonstrations
from nl2sql_trl.models import cache_dir, publish, qwen_template
from nl2sql_trl.policy import ScriptedPolicy
from nl2sql_trl.prompts import SYSTEM, Codec, answer_text, call_text, messages
from nl2sql_trl.records import Trajectory
from nl2sql_trl.rollout import RolloutConfig, rollout
from nl2sql_trl.sft import to_rows
from nl2sql_trl.task import Task, make_task
from nl2sql_trl.tools import RUN_SQL

if TYPE_CHECKING:
    import torch

DATABASE, ROWS = "pet_clinic", 24
ROLLOUT = RolloutConfig(budget=224, max_turns=3, tool_chars=96)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CALL_MARKS = ("<tool_call>", "</tool_call>")  # single tokens, as in Qwen2.5


@dataclass(frozen=True, slots=True)
class Settings:
    """What the model is made of. Another value gives another folder in the cache."""

    vocabulary: int = 2048
    hidden: int = 256
    layers: int = 2
    heads: int = 8
    kv_heads: int = 2
    intermediate: int = 704
    steps: int = 90
    learning_rate: float = 2e-3
    seed: int = 0


def tiny_model() -> Path:
    """The model's folder in the cache, made on the first call (about a minute on 2 cores).

    It appears whole or not at all; of several processes that ask at once, one makes it.
    """
    from filelock import FileLock

    settings = Settings()
    task = [pocket_dir().name, DATABASE, ROWS, asdict(ROLLOUT), SYSTEM, RUN_SQL]
    made_of = [__version__, asdict(settings), task]
    digest = hashlib.sha256(json.dumps(made_of, default=str).encode()).hexdigest()[:16]
    target = cache_dir() / f"tiny-{digest}"
    if not (target / "config.json").is_file():
        with FileLock(f"{target}.lock"):
            if not (target / "config.json").is_file():
                print("making the tiny model (about a minute, once)", file=sys.stderr, flush=True)
                with tempfile.TemporaryDirectory(dir=target.parent) as work:
                    make(Path(work) / "model", settings)
                    publish(Path(work) / "model", target)
    return target


def tiny_task(codec: Codec) -> Task:
    """The questions that `tiny` learns: the first ROWS of one pocket database on a single table."""
    task = make_task("pocket", "train", codec, rollout=ROLLOUT)
    keys = [
        key for key, e in task.examples.items() if e.db_id == DATABASE and _easy(e.gold)
    ][:ROWS]  # fmt: skip
    examples = {k: task.examples[k] for k in keys}
    return replace(task, examples=examples, prompts={k: task.prompts[k] for k in keys})


def _easy(gold: str) -> bool:
    return "JOIN" not in gold and gold.count("SELECT") == 1 and len(gold) <= 70


def make(folder: Path, settings: Settings) -> None:
    """Train the tokenizer and the model and save both in `folder`."""
    import torch

    tokenizer = train_tokenizer(settings.vocabulary)
    # The caller's random state is its own.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = untrained(tokenizer, settings)
        warm_start(model, Codec(tokenizer), settings)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def untrained(tokenizer: Any, settings: Settings) -> Any:
    """The model before its warm start, with weights from torch's random state."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM._from_config(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=settings.hidden,
            intermediate_size=settings.intermediate,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.kv_heads,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        ),
        attn_implementation="eager",  # the fastest at this size on a CPU
    )


def train_tokenizer(vocabulary: int) -> Any:
    """A byte-level BPE tokenizer of pocket's train prompts and golds, with Qwen2.5's template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    bpe.add_tokens([AddedToken(token, normalized=False) for token in CALL_MARKS])

    def wrapped() -> Any:
        return PreTrainedTokenizerFast(
            tokenizer_object=bpe,
            pad_token="<|endoftext|>",
            eos_token="<|im_end|>",
            chat_template=qwen_template(),
            clean_up_tokenization_spaces=False,
        )

    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    render, texts = wrapped().apply_chat_template, []
    for e in load("pocket", "train"):
        chat = [
            *messages(e.question, ddl(e.db_path)),
            {"role": "assistant", "content": call_text(e.gold)},
            {"role": "tool", "content": '{"columns": ["name"], "rows": [[null]], "total_rows": 1}'},
            {"role": "assistant", "content": answer_text(e.gold)},
        ]
        texts.append(render(chat, tools=[RUN_SQL], tokenize=False))
    bpe.train_from_iterator(texts, trainer)
    return wrapped()


def warm_start(model: Any, codec: Codec, settings: Settings) -> None:
    """Supervised steps, each on a careful and a careless trajectory of every question.

    A plain loop: Trainer would set up accelerate for the whole process, and under
    `accelerate launch` split this work over the ranks.
    """
    import torch

    from nl2sql_trl.sharing import share_prefixes

    task = tiny_task(codec)
    careful = demonstrations(task, codec, retry_share=0, seed=settings.seed)
    # Apart, so that the short ones are not padded to the length of the long ones.
    batches = [_padded(t, task) for t in (careful, careless(task, codec))]
    tokens = sum(int((batch["labels"] != -100).sum()) for batch in batches)
    share_prefixes(model, gradient_checkpointing=False)
    optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate, weight_decay=0.01)
    # Up over 10 steps, down over the last 20: in between nothing of the minute is wasted.
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min(1.0, (n + 1) / 10, (settings.steps - n) / 20)
    )
    model.train()
    for _ in range(settings.steps):
        optimizer.zero_grad()
        for batch in batches:
            scores = model(**batch, fused_lm_head=True)
            (-scores.log_probs.sum() / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


def careless(task: Task, codec: Codec) -> list[Trajectory]:
    """A trajectory a question that answers with the whole table and looks at nothing."""
    scripts = []
    for example in task.examples.values():
        table = example.gold.split(" FROM ")[1].split()[0]
        scripts.append([answer_text(f"SELECT * FROM {table}")])
    return rollout(list(task.prompts.values()), ScriptedPolicy(scripts, codec), task.rollout)


def _padded(trajectories: list[Trajectory], task: Task) -> dict[str, torch.Tensor]:
    """One batch of all of them, padded on the right."""
    import torch

    rows = to_rows(trajectories, task)
    width = max(map(len, rows["input_ids"]))

    def padded(values: Iterable[list[int]], fill: int) -> torch.Tensor:
        return torch.tensor([v + [fill] * (width - len(v)) for v in values])

    return {
        "input_ids": padded(rows["input_ids"], 0),
        "attention_mask": padded(([1] * len(ids) for ids in rows["input_ids"]), 0),
        "labels": padded(rows["labels"], -100),
    }
