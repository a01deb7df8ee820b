"""Our shared-prefix sampling against transformers' `generate`, same model, prompts and tokens.

    python benchmarks/rollout.py [--model smollm2-135m] [--groups 4] [--size 8] [--tokens 64]

Both sample one turn for every member of every group; end tokens are ignored so that both draw
equally many tokens. Runs are interleaved; medians and their ratio are printed.
"""

from __future__ import annotations

import argparse
import statistics
import time

import transformers

from nl2sql_trl.engine import TransformersPolicy
from nl2sql_trl.generate import GeneratePolicy
from nl2sql_trl.models import load_model, load_tokenizer
from nl2sql_trl.policy import Policy
from nl2sql_trl.prompts import Codec
from nl2sql_trl.sampling import Sampling
from nl2sql_trl.task import make_task


def seconds(policy: Policy, contexts: list[tuple[int, ...]], tokens: int) -> float:
    """Wall-clock seconds to draw `tokens` tokens for every context."""
    start = time.perf_counter()
    done = 0
    with policy.session():
        for key, ids in enumerate(contexts):
            policy.submit(key, ids, tokens)
        while done < len(contexts):
            for key, sample in policy.step():
                assert len(sample.ids) == tokens, "an end token was not ignored"
                policy.release(key)
                done += 1
    return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()  # it warns of an end token that never comes
    codec = Codec(load_tokenizer(options.model))
    task = make_task("pocket", "train", codec, rows=options.groups)
    contexts = [p.ids for p in task.prompts.values() for _ in range(options.size)]
    codec.stop_ids = frozenset({-1})  # no token ends a turn
    model = load_model(options.model)
    sampling = Sampling(temperature=1.0)
    lengths = [len(c) for c in contexts]
    print(f"{options.groups} x {options.size} rows, prompts of {min(lengths)} to {max(lengths)}")
    print(f"tokens, {options.tokens} new ones each; median of {options.repeats} interleaved runs")
    for autocast in (False, True):
        times: dict[str, list[float]] = {"shared prefix": [], "generate": []}
        for _ in range(options.repeats):
            ours = TransformersPolicy(model, codec, sampling, autocast=autocast)
            theirs = GeneratePolicy(model, codec, sampling, batch=len(contexts), autocast=autocast)
            times["shared prefix"].append(seconds(ours, contexts, options.tokens))
            times["generate"].append(seconds(theirs, contexts, options.tokens))
        ours_s, theirs_s = (statistics.median(t) for t in times.values())
        kind = "bf16 autocast" if autocast else "fp32"
        print(
            f"{kind:14} shared prefix {ours_s:6.1f} s   generate {theirs_s:6.1f} s   "
            f"ratio {theirs_s / ours_s:.1f}"
        )


if __name__ == "__main__":
    main()
