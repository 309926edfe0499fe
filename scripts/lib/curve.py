# SPDX-License-Identifier: Apache-2.0
"""Loss curves of examples/gpt: read from the folder that its ranks logged into, and compared.

A line is {"step", "loss", "lr", "samples"}; ranks of the last stage write one a step, each with its own samples.
"""
import glob
import json
import os


def read(folder):
    """step -> {"loss", "lr", "samples" (sorted)}. Ranks that disagree on a step's loss are an error."""
    steps = {}
    for name in sorted(glob.glob(os.path.join(folder, "*.jsonl"))):
        with open(name, encoding="utf-8") as f:
            for line in map(json.loads, f):
                s = steps.setdefault(line["step"], {"loss": line["loss"], "lr": line["lr"], "samples": []})
                if (s["loss"], s["lr"]) != (line["loss"], line["lr"]):
                    raise ValueError(f"{name}: step {line['step']}: another loss or lr than a rank before it logged")
                s["samples"] = sorted(s["samples"] + line["samples"])
    return steps


def difference(reference, other):
    """The largest relative difference of the loss at any step. Other steps, samples or rates are an error."""
    if not reference or sorted(reference) != sorted(other):
        raise ValueError(f"steps {sorted(other)}, not {sorted(reference)}")
    worst = 0.0
    for step, a in reference.items():
        b = other[step]
        for what in ("samples", "lr"):
            if a[what] != b[what]:
                raise ValueError(f"step {step}: {what} {b[what]}, not {a[what]}")
        worst = max(worst, abs(a["loss"] - b["loss"]) / abs(a["loss"]))
    return worst
