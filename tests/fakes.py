"""Stand-ins that several test files build on: a chat tokenizer, random models, a Spider folder."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = [
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
CORPUS = [
    "SELECT name, count(*) FROM singer WHERE age > 20 GROUP BY name ORDER BY count(*) DESC LIMIT 1",
    "CREATE TABLE concert (id INTEGER PRIMARY KEY, singer_id INT REFERENCES singer(id))",
    "You are a SQL assistant. user assistant system tool_response\n\n```sql\nSELECT 1\n```\n",
    '{"name": "run_sql", "arguments": {"query": "SELECT"}} {"columns": ["a"], "rows": [[1]]}\n',
    "How many singers are there? What is the name of the oldest one?",
]


@cache
def chat_tokenizer(template: str = "qwen2_5") -> Any:
    """A byte-level BPE with Qwen's special and added tokens and one of TRL's chat templates."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS * 3, trainer)
    bpe.add_tokens([AddedToken(t, normalized=False, special=False) for t in ADDED])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    folder = Path(importlib.util.find_spec("trl").submodule_search_locations[0])  # type: ignore[union-attr, index]
    fast.chat_template = (folder / "chat_templates" / f"{template}.jinja").read_text()
    return fast


def random_model(kind: str = "qwen2", seed: int = 0, **changes: Any) -> Any:
    """A causal language model of two layers with random weights: llama, qwen2 or qwen3, fp32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = chat_tokenizer()
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        # Wide enough that the likeliest token is a clear one.
        "initializer_range": 0.2,
    }
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(sizes | changes)))
    return model.float()


MUSIC = """CREATE TABLE singer (id INTEGER PRIMARY KEY, name TEXT, age INT);
INSERT INTO singer VALUES (1, 'Ann', 31), (2, 'Zoë', 47), (3, 'Bo', 31), (4, NULL, NULL);"""
SHOPS = """CREATE TABLE shop (id INTEGER PRIMARY KEY, city TEXT);
INSERT INTO shop VALUES (1, 'Oslo'), (2, 'Bergen'), (3, 'Oslo');"""
QUESTIONS = [
    ("music", "How many singers are there?", "SELECT count(*) FROM singer"),
    ("music", "What are the names of the singers?", "SELECT name FROM singer"),
    ("music", "Who is the oldest?", "SELECT name FROM singer ORDER BY age DESC LIMIT 1"),
    ("music", "Which ages are there?", "SELECT DISTINCT age FROM singer"),
    ("shops", "How many shops are in Oslo?", "SELECT count(*) FROM shop WHERE city = 'Oslo'"),
    ("shops", "Which cities have shops?", "SELECT DISTINCT city FROM shop"),
    ("shops", "List the shops by city.", "SELECT id FROM shop ORDER BY city"),
    ("shops", "Count the shops of each city.", "SELECT city, count(*) FROM shop GROUP BY city"),
]


def make_database(path: Path, script: str = MUSIC) -> Path:
    """A SQLite file out of a script."""
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    return path


def write_spider_folder(folder: Path) -> Path:
    """Eight questions on two databases, in Spider's layout; train and dev hold the same rows."""
    for db_id, script in (("music", MUSIC), ("shops", SHOPS)):
        path = folder / "database" / db_id / f"{db_id}.sqlite"
        path.parent.mkdir(parents=True)
        make_database(path, script)
    rows = [{"db_id": d, "question": q, "query": sql} for d, q, sql in QUESTIONS]
    for name in ("train_spider.json", "dev.json"):
        (folder / name).write_text(json.dumps(rows), encoding="utf-8")
    return folder
