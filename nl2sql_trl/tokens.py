"""Every token of a completion in a small box, coloured by the mask that the trainer gets.

    show_tokens(trajectory, codec, task.rollout.budget)     # the last line of a notebook cell

Sampled tokens are blue on a solid line and are trained on; forced ones are amber on a dashed line
and are only read. Special tokens are bold in a frame, a newline is `↵`. Each box's tooltip is the
token's id. Where a character takes several tokens the first box has the character, the others `⋯`.

For tokenizers whose tokens are bytes (Qwen, Llama 3, SmolLM2, `ByteTokenizer`); of a SentencePiece
tokenizer leading spaces are not seen. The text of the trajectory is better read with `viewer.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from nl2sql_trl.markup import FORCED, SAMPLED, Shown, label, line, page, pre, safe, strip
from nl2sql_trl.prompts import Codec
from nl2sql_trl.records import ModelTurn, Trajectory

# Bytes of one UTF-8 character; more tokens than that never stand for one character.
_LONGEST = 4
_TOKEN = {
    True: f"background:rgba(0,114,178,0.18);border-bottom:2px solid {SAMPLED}",
    False: f"background:rgba(230,159,0,0.18);border-bottom:2px dashed {FORCED}",
}


def show_tokens(trajectory: Trajectory, codec: Codec, budget: int | None = None) -> Shown:
    """The tokens after the prompt, turn by turn, with what is left of the budget after each.

    `codec` must be the one that the trajectory was made with; `budget` is `RolloutConfig.budget`.
    """
    special = frozenset(codec.tokenizer.get_added_vocab().values())
    mask = trajectory.env_mask
    used, parts = 0, []
    for turn in trajectory.turns:
        sampled = isinstance(turn, ModelTurn)
        used += len(turn.ids)
        kind = "model · {} tokens, sampled" if sampled else "tool · {} tokens, forced"
        rest = f"{used} used" if budget is None else f"{budget - used} left"
        parts.append(label(f"{kind.format(len(turn.ids))} · {rest}", above=10))
        parts.append(pre(_boxes(turn.ids, sampled, codec, special), height=1.9))
    words = f"{len(mask)} tokens: {mask.count(1)} sampled, {mask.count(0)} forced"
    if budget is not None:
        words += f", {budget - used} of {budget} left"
    bar = strip(
        [(len(t.ids), SAMPLED if isinstance(t, ModelTurn) else FORCED) for t in trajectory.turns],
        rest=0 if budget is None else budget - used,
    )
    legend = (
        f'<span style="{_TOKEN[True]}">sampled</span>, trained on · '
        f'<span style="{_TOKEN[False]}">forced</span>, only read'
    )
    head = line(safe(words), strong=True) + bar + line(legend)
    return Shown(page(head, *parts), f"trajectory {trajectory.prompt.key}: {words}")


def _boxes(ids: Sequence[int], sampled: bool, codec: Codec, special: frozenset[int]) -> str:
    found = []
    for token, text in zip(ids, pieces(ids, codec), strict=True):
        style = _TOKEN[sampled] + ";margin-right:1px"
        if token in special:
            style += ";border:1px solid;font-weight:700"
        inner = safe(text).replace("\n", "↵\n").replace("\t", "→\t")
        found.append(f'<span title="{token}" style="{style}">{inner}</span>')
    return "".join(found)


def pieces(ids: Sequence[int], codec: Codec) -> list[str]:
    """The text of each token. Of several that make up one character the first has it, then `⋯`.

    Tokens that make up no character (the turn was cut inside one) have the replacement character.
    """
    found: list[str] = []
    while len(found) < len(ids):
        at = len(found)
        text, size = codec.tokenizer.decode(ids[at : at + 1], skip_special_tokens=False), 1
        for more in range(2, min(_LONGEST, len(ids) - at) + 1) if "\ufffd" in text else ():
            whole = codec.tokenizer.decode(ids[at : at + more], skip_special_tokens=False)
            if "\ufffd" not in whole:
                text, size = whole, more
                break
        found += [text] + ["⋯"] * (size - 1)
    return found
