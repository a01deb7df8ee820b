"""Runs jobs in a process of its own: `python -m benchmarks.worker IN OUT`.

IN is a JSON list of jobs, or a pair of gradient files to compare; OUT gets the results. In a
process of its own a side's peak memory is its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.jobs import Job


def main(source: Path, target: Path) -> None:
    """Do what IN says."""
    asked = json.loads(source.read_text(encoding="utf-8"))
    if "compare" in asked:
        from benchmarks.others import compare

        found: Any = compare(*map(Path, asked["compare"]))
    else:
        found = run([Job(**job) for job in asked["jobs"]])
    target.write_text(json.dumps(found), encoding="utf-8")


def run(jobs: list[Job]) -> list[dict[str, Any]]:
    """Warm up, then measure each job."""
    import transformers

    from benchmarks.grpo import measure
    from benchmarks.others import measure_evaluation, measure_warm_start
    from nl2sql_trl.models import load_tokenizer
    from nl2sql_trl.prompts import Codec

    transformers.logging.set_verbosity_error()
    codec = Codec(load_tokenizer(jobs[0].model))
    kinds = {"evaluate": measure_evaluation, "sft": measure_warm_start}
    function = kinds.get(jobs[0].part, measure)
    function(jobs[0].warm_up, codec)
    found = []
    for job in jobs:
        print(f"  {job.prompt_tokens} tokens x {job.group}, {job.turns} turns", file=sys.stderr)
        found.append(function(job, codec))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
