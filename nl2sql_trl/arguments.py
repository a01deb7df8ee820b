"""What train.py takes beside TRL's GRPOConfig and ModelConfig.

In a module of its own, so that `preflight.py` reads a recipe without importing the training
script. Nothing is checked here: what a value means is known where it is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class TrainArguments:
    """What to train on and how a rollout goes, beside GRPOConfig and ModelConfig.

    The completion budget of a trajectory, over all turns, is GRPOConfig's max_completion_length.
    """

    data: str = field(
        default="pocket", metadata={"help": "pocket, a Spider-layout folder, or a questions file"}
    )
    split: str = field(
        default="train", metadata={"help": "train, or fit: train without its holdout databases"}
    )
    rows: int | None = field(default=None, metadata={"help": "how many train rows (default: all)"})
    rewards: list[str] = field(
        default_factory=lambda: ["execution_match"],
        metadata={"help": "reward functions of nl2sql_trl.rewards; weights: reward_weights"},
    )
    difficulty: str | None = field(
        default=None,
        metadata={
            "help": "an evaluation of the train rows: keep those that were right in "
            "difficulty_range of its samples"
        },
    )
    difficulty_range: list[float] = field(
        default_factory=lambda: [0.01, 0.99], metadata={"help": "lowest and highest share right"}
    )
    resample_rounds: int = field(
        default=0,
        metadata={"help": "how often a step replaces groups without variance by other prompts"},
    )
    eval_split: str = field(
        default="holdout",
        metadata={"help": "questions of evaluation during training (eval_strategy), greedy"},
    )
    eval_rows: int = field(default=64, metadata={"help": "how many, the same for every seed"})
    max_turns: int = field(default=5, metadata={"help": "model turns in a trajectory"})
    reserve_tokens: int = field(
        default=0, metadata={"help": "tokens kept for a forced final answer (0: none is forced)"}
    )
    truncation: str = field(
        default="rows", metadata={"help": "rows (whole rows that fit) or seed (256 characters)"}
    )
    tool_chars: int = field(default=400, metadata={"help": "longest tool response, in characters"})
    column_order: str = field(default="strict", metadata={"help": "strict or any"})
    empty_results: str = field(
        default="equal",
        metadata={"help": "equal: empty matches an empty gold; wrong: such rows are out"},
    )
    suite: str | None = field(
        default=None,
        metadata={
            "help": "reward only what is right on every file of this test suite, too: "
            "a folder, or pocket"
        },
    )
    max_prompt_tokens: int | None = field(
        default=None, metadata={"help": "leave rows with longer prompts out"}
    )
