# SPDX-License-Identifier: Apache-2.0
"""Loss curves of examples/gpt: read from the folder that its ranks logged into, and compared.

A line is {"step", "run", "loss", "lr", "samples"}; ranks of the last stage write one a step, each with its own samples. "run" grows
each time the ranks' process groups are made: a run that begins at a step which an earlier one has done does that step again.
"""
import glob
import json
import os


def runs(folder):
    """run -> step -> {"loss", "lr", "samples" (sorted)}. Ranks of a run that disagree on a step's loss are an error."""
    found = {}
    for name in sorted(glob.glob(os.path.join(folder, "*.jsonl"))):
        with open(name, encoding="utf-8") as f:
            for line in map(json.loads, f):
                steps = found.setdefault(line["run"], {})
                s = steps.setdefault(line["step"], {"loss": line["loss"], "lr": line["lr"], "samples": []})
                if (s["loss"], s["lr"]) != (line["loss"], line["lr"]):
                    raise ValueError(f"{name}: step {line['step']}: another loss or lr than a rank before it logged")
                s["samples"] = sorted(s["samples"] + line["samples"])
    return dict(sorted(found.items()))


def read(folder):
    """step -> {"loss", "lr", "samples"}, of what counts: where a run begins, what earlier ones did from there on is given up."""
    steps = {}
    for run in runs(folder).values():
        steps = {step: s for step, s in steps.items() if step < min(run)} | run
    return steps


def repeated(folder):
    """{step: [loss]} of steps that were given up and done again: each loss that ranks came to, the one that counts last."""
    counts, out = read(folder), {}
    for run in runs(folder).values():
        for step, s in run.items():
            out.setdefault(step, []).append(s["loss"])
    return {step: losses for step, losses in out.items() if len(losses) > 1 and step in counts}


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


def check_samples(steps, records, global_batch):
    """Every sample once an epoch, however many epochs the steps made: no count is more than one above another."""
    counts = [0] * records
    for step, s in steps.items():
        if len(s["samples"]) != global_batch:
            raise ValueError(f"step {step} took {len(s['samples'])} samples, not {global_batch}")
        for sample in s["samples"]:
            counts[sample] += 1
    epochs = len(steps) * global_batch // records
    if min(counts) < epochs or max(counts) > epochs + 1:
        raise ValueError(f"samples were used {min(counts)} to {max(counts)} times in {epochs} epochs and a part")
