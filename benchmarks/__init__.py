"""Speed, measured: not part of the package, and no test asserts a time.

python -m benchmarks --data DIR      ours against TRL's own loop (docs/speed.md has the method)
python benchmarks/score.py ...       scoring against the official scripts

jobs.py      what one measurement is, and the list of them for each part
cases.py     questions, prompts and the turns that both sides are made to take
forced.py    the hooks that make both sides sample those tokens
meter.py     seconds, tokens and memory, counted in the same way on both sides
grpo.py      rollouts, update and whole step by both GRPO trainers
others.py    greedy evaluation, warm start, comparison of gradients
worker.py    runs jobs in a process of their own
tables.py    Markdown out of the measurements
"""
