#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what `ptcctl dataset proof` says, without ptc: usage: ledger_check.py PROOF.json STEPS.jsonl

PROOF.json is `ptcctl dataset proof JOB --format json`, STEPS.jsonl the same with `--steps 0-LAST`. The order and the division of
batches are computed from docs/order.md (order_oracle.py). Exit 1, and a line, where something is not as it was said."""
import json
import sys
from collections import Counter

import order_oracle as order


def check(cursor, lines):
    n, seed, block = cursor["samples"], cursor["seed"], cursor["block"]
    said = {(x["generation"], x["step"], x["dp_rank"]): x["samples"] for x in lines}
    consumed, position, step = [], None, None
    for e in cursor["generations"]:
        (first_step, end_step), (first, end) = e["steps"], e["positions"]
        dp, mbs, g = e["dp"], e["micro_batch"], e["global_batch"]
        dp, mbs = (1, g) if e["by_length"] else (dp, mbs)  # which rank had which is not recorded: one line, of rank null
        if position is not None and (position, step) != (first, first_step):
            return f"generation {e['generation']} begins at {first}, step {first_step}, not at {position}, step {step}"
        if (end_step - first_step) * g != end - first:
            return f"generation {e['generation']}: steps and positions do not agree"
        for s in range(first_step, end_step):
            at, had = first + (s - first_step) * g, []

            def sample(p):
                return order.at(n, seed, p // n, p % n, not cursor["sequential"], block)
            for r in range(dp):
                pairs = [order.micro_batch(sample, at, g, mbs, dp, m, r) for m in range(-(-g // (mbs * dp)))]
                mine = [i for pair in pairs for i, w in pair if w]
                if said.pop((e["generation"], s, None if e["by_length"] else r), None) != mine:
                    return f"step {s}, dp rank {r} of generation {e['generation']}: not {mine}"
                had += mine
            if Counter(had) != Counter(sample(at + i) for i in range(g)):
                return f"step {s}: ranks together had other samples than the step consumes"
            consumed += [sample(at + i) for i in range(g)]
        position, step = end, end_step
    whole = cursor["since"] % n and n - cursor["since"] % n
    epochs = [consumed[i:i + n] for i in range(whole, len(consumed) - n + 1, n)]
    if any(sorted(e) != list(range(n)) for e in epochs) or len(epochs) != cursor["epochs_finished"]:
        return f"{len(epochs)} epochs, not each sample once in each"
    return f"{len(said)} lines of steps that are in no generation" if said else None


if __name__ == "__main__":
    with open(sys.argv[1]) as proof, open(sys.argv[2]) as steps:
        problem = check(json.load(proof)["cursors"][0], [json.loads(line) for line in steps])
    if problem:
        sys.exit(problem)
