"""nl2sql_trl: fine-tune a language model with GRPO to answer questions with SQL.

The model works in several turns: it writes, calls `run_sql` on a live SQLite database, reads the
rows, and answers with a fenced sql block; the reward says whether its query returns the gold's
rows. Importing this package loads no torch: heavy modules are imported where they are used.

    records -> database, tools, prompts -> policy, rollout -> rewards -> task -> trainer, evaluate
"""

__version__ = "0.1.0"
