"""Run as a script by test_preflight: the memory of one training step, estimated and measured.

    python peak_of_step.py MODEL ROWS PROMPT BUDGET AUTOCAST SHARED CHECKPOINTING

Prints both in bytes. The step is the trainer's own: the shared-prefix forward or TRL's, backward,
AdamW. A small step first, so that what libraries load by themselves is not counted.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from trl.trainer.utils import add_fused_lm_head

from nl2sql_trl.footprint import Layout, Work, memory, shape_of
from nl2sql_trl.models import load_model
from nl2sql_trl.sharing import share_prefixes


def resident(key: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024


name = sys.argv[1]
rows, prompt, budget, autocast, shared, checkpointing = map(int, sys.argv[2:])
model = load_model(name).train()
shape = shape_of(model.config)
add_fused_lm_head(model, outputs=("log_probs", "entropy"))
if checkpointing:
    model.gradient_checkpointing_enable()
if shared:
    assert not share_prefixes(model, gradient_checkpointing=False)
optimizer = torch.optim.AdamW(model.parameters(), 1e-6)
generator = torch.Generator().manual_seed(0)
first = torch.randint(5, shape.vocabulary, (1, prompt), generator=generator).expand(rows, -1)
own = torch.randint(5, shape.vocabulary, (rows, budget), generator=generator)
ids = torch.cat([first, own], 1)


def step(ids: torch.Tensor, prompt: int) -> None:
    labels = ids.clone()
    labels[:, :prompt] = -100
    mask = torch.ones_like(ids)
    with torch.autocast("cpu", torch.bfloat16, enabled=bool(autocast)):
        out = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    out.loss.backward()
    optimizer.step()
    optimizer.zero_grad()


step(ids[:1, prompt - 32 : prompt + 8], 32)
states = sum(p.numel() for p in model.parameters()) * 12
before = resident("VmRSS:") - states
Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
for _ in range(2):
    step(ids, prompt)
work = Work(
    rows, rows, rows, prompt, budget, autocast=bool(autocast),
    checkpointing=bool(checkpointing), shared=bool(shared),
)  # fmt: skip
print(memory(shape, work, Layout()).peak, resident("VmHWM:") - before)
