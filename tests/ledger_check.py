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
    if "seed" not in cursor:
        return "; ".join(cursor["problems"])
    parts = cursor.get("parts", [{**cursor, "weight": 1}])  # of a mixture; one dataset is a mixture of itself alone
    mix = [(p["samples"], p["weight"], not p["sequential"], p["block"]) for p in parts]
    said = {(x["generation"], x["step"], x["dp_rank"]): x["samples"] for x in lines}
    since, position, step = cursor["since"], cursor["since"], cursor["generations"][0]["steps"][0]
    skipped = 0  # samples of positions that no rank had
    drawn = [order.mixed(mix, cursor["seed"], p) for p in range(since, cursor["generations"][-1]["positions"][1])]

    def sample(p):  # numbered through
        part, i, _ = drawn[p - since]
        return sum(n for n, *_ in mix[:part]) + i
    for e in cursor["generations"]:
        (first_step, end_step), (first, end) = e["steps"], e["positions"]
        dp, mbs, g = e["dp"], e["micro_batch"], e["global_batch"]
        if dp == 0:  # nobody had these: the job went back, and on in its data
            if (position, step, step) != (first, first_step, end_step) or not e["skipped"] or end < first:
                return f"generation {e['generation']}: positions {first} to {end} are skipped at step {step}, position {position}"
            position, skipped = end, skipped + end - first
            continue
        if e["skipped"]:
            return f"generation {e['generation']} is said to be skipped, and {dp} ranks had it"
        dp, mbs = (1, g) if e["by_length"] else (dp, mbs)  # which rank had which is not recorded: one line, of rank null
        if (position, step, (end_step - first_step) * g) != (first, first_step, end - first):
            return f"generation {e['generation']}: positions {first} to {end} do not go on from {position} at step {step}"
        text = "".join(word[12:] for word in e["tag"].replace(";", ",").split(",") if word.startswith("micro_steps="))
        steps = [int(n) for run in text.split(":") if run for n in [run.split("x")[1]] * int(run.split("x")[0])]
        for s in range(first_step, end_step):
            at, had = first + (s - first_step) * g, []
            uneven = order.uneven_batch(sample, at, g, mbs, steps) if steps else {}
            for r in range(dp):
                pairs = [order.micro_batch(sample, at, g, mbs, dp, m, r) for m in range(-(-g // (mbs * dp)))]
                mine = [i for pair in pairs for i, w in pair if w]
                mine = [i for m in range(max(steps)) for i in uneven[m, r]] if steps else mine
                if said.pop((e["generation"], s, None if e["by_length"] else r), None) != mine:
                    return f"step {s}, dp rank {r} of generation {e['generation']}: not {mine}"
                had += mine
            if Counter(had) != Counter(sample(at + i) for i in range(g)):
                return f"step {s}: ranks together had other samples than the step consumes"
        position, step = end, end_step
    if skipped != cursor["skipped"]:
        return f"{skipped} samples are skipped, not {cursor['skipped']}"
    for j, part in enumerate(parts):  # each has epochs of its own; the first may have begun before `since`
        n, had = part["samples"], [(i, before) for k, i, before in drawn if k == j]
        whole = -had[0][1] % n if had else 0
        epochs = [[i for i, _ in had[k:k + n]] for k in range(whole, len(had) - n + 1, n)]
        if any(sorted(e) != list(range(n)) for e in epochs) or len(epochs) != part["epochs_finished"]:
            return f"dataset {j}: {len(epochs)} epochs, not each sample once in each"
    return f"{len(said)} lines of steps that are in no generation" if said else None


if __name__ == "__main__":
    with open(sys.argv[1]) as proof, open(sys.argv[2]) as steps:
        cursors, lines = json.load(proof)["cursors"], [json.loads(line) for line in steps]
    found = [(c["cursor"], check(c, [x for x in lines if x["cursor"] == c["cursor"]])) for c in cursors]
    found += [(x, "not in the proof") for x in {x["cursor"] for x in lines} - {c["cursor"] for c in cursors}]
    if any(problem for _, problem in found) or not cursors:
        sys.exit("\n".join(f"cursor {name}: {problem}" for name, problem in found if problem))
