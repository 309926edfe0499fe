# SPDX-License-Identifier: Apache-2.0
"""What each rank must hold, by NumPy indexing and nothing else: written from docs/job.md, not from reshard/.

Slow and obvious on purpose: a rank's tensor is made by picking indices along one dim (np.take) and, for ZeRO-1, a
range of the flattened result.
"""
import fnmatch
import os
import re

import numpy as np
import state as states

AXES = ("tp", "cp", "ep", "dp", "pp")


class Config:
    def __init__(self, text=None, **degrees):
        if text is not None:
            degrees = dict(part.split("=", 1) for part in text.split(","))
        self.order = str(degrees.pop("order", "-".join(AXES))).split("-")
        stages = degrees.pop("stages", None)
        self.stages = [int(n) for n in stages.split(":")] if stages else None
        self.n = {axis: int(degrees.pop(axis, 1)) for axis in AXES}
        self.zero = int(degrees.pop("zero", 0))
        if degrees:
            raise ValueError(f"unknown keys {degrees}")
        self.world = self.n["tp"] * self.n["cp"] * self.n["dp"] * self.n["pp"]

    def __str__(self):
        parts = [f"{a}={self.n[a]}" for a in AXES if self.n[a] != 1]
        parts += [f"zero={self.zero}"] if self.zero else []
        parts += [f"order={'-'.join(self.order)}"] if self.order != list(AXES) else []
        parts += ["stages=" + ":".join(map(str, self.stages))] if self.stages else []
        return ",".join(parts) or "tp=1"

    def coords(self, rank):
        """First axis of the order is fastest; ep re-divides others and has no coordinate of its own here."""
        c = {}
        for axis in self.order:
            if axis != "ep":
                rank, c[axis] = divmod(rank, self.n[axis])
        return c

    def stage_of_layer(self, layer, layers):
        counts = self.stages or [layers // self.n["pp"] + (s < layers % self.n["pp"]) for s in range(self.n["pp"])]
        for stage, count in enumerate(counts):
            if layer < count:
                return stage
            layer -= count
        raise ValueError(f"layer {layer} is on no stage")


def parts(size, ways, kind):
    """The piece sizes of a split."""
    if kind == "even":
        if size % ways:
            raise ValueError(f"{size} not divisible by {ways}")
        return [size // ways] * ways
    if kind == "ceil":
        piece = -(-size // ways)
        return [max(0, min(piece, size - i * piece)) for i in range(ways)]
    return [size // ways + (i < size % ways) for i in range(ways)]


def indices(size, rule, t, tp):
    """Indices along the split dim that tp rank t holds."""
    split = rule["split"]
    unit, picked, start = split.get("unit", 1), [], 0
    for block in split.get("blocks") or [size]:
        units = block // unit
        if units < tp and unit > 1: # fewer heads than ranks: several ranks hold the same one
            mine = range(t * units // tp, t * units // tp + 1)
        else:
            p = parts(units, tp, split.get("kind", "even"))
            mine = range(sum(p[:t]), sum(p[:t + 1]))
        picked += [start + u * unit + i for u in mine for i in range(unit)]
        start += block
    return picked


def layer_of(rule, name):
    m = re.fullmatch(re.escape(rule["layer"]).replace(r"\{\}", "([0-9]+)").replace(r"\*", ".*").replace(r"\?", "."), name)
    return int(m.group(1))


def rule_for(rules, name):
    return next((r for r in rules if fnmatch.fnmatchcase(name, r["match"])), {})


def layer_count(state, rules):
    indexed = [(rule_for(rules, n), n) for n in state.tensors["param"]]
    return max((layer_of(r, n) + 1 for r, n in indexed if "{}" in r.get("layer", "")), default=0)


def on_stage(rule, name, stage, config, layers):
    where = rule.get("layer")
    if where is None:
        return True
    last = config.n["pp"] - 1
    fixed = {"first": (0,), "last": (last,), "ends": (0, last)}
    return stage in (fixed[where] if where in fixed else (config.stage_of_layer(layer_of(rule, name), layers),))


def flat_range(size, ways, i):
    """ZeRO-1: the elements of a flattened TP-local tensor that data-parallel rank i of `ways` holds."""
    piece = -(-size // ways)
    return min(size, i * piece), min(size, (i + 1) * piece)


def rank_tensors(state, config, rules, rank):
    """{field: {name: array}} of what a rank holds; arrays without elements are left out."""
    c, layers = config.coords(rank), layer_count(state, rules)
    out = {field: {} for field in state.tensors}
    for name in state.tensors["param"]:
        rule = rule_for(rules, name)
        if not on_stage(rule, name, c["pp"], config, layers):
            continue
        for field, tensors in state.tensors.items():
            a = tensors[name].array
            if "split" in rule:
                dim = rule["split"]["dim"]
                a = np.take(a, indices(a.shape[dim], rule, c["tp"], config.n["tp"]), axis=dim)
            if field != "param" and config.zero:
                # The data-parallel index counts dp and cp together, cp fastest, as in Megatron.
                lo, hi = flat_range(a.size, config.n["dp"] * config.n["cp"], c["dp"] * config.n["cp"] + c["cp"])
                a = a.reshape(-1)[lo:hi]
            if a.size:
                out[field][name] = a
    return out


def compare_rank_files(test, directory, state, config, rules):
    """Every DIR/rank-R.FIELD.safetensors holds exactly the oracle's tensors, and there is one for each rank and field."""
    expected = {f"rank-{r}.{f}.safetensors" for r in range(config.world) for f in state.tensors}
    test.assertEqual(expected, set(os.listdir(directory)))
    for rank in range(config.world):
        want = rank_tensors(state, config, rules, rank)
        for field, tensors in want.items():
            where = f"{config}: rank {rank}, {field}"
            got = states.read_file(os.path.join(directory, f"rank-{rank}.{field}.safetensors"))
            got = {n: t for n, t in got.items() if t.array.size}
            test.assertEqual(set(tensors), set(got), where)
            for name, a in tensors.items():
                test.assertEqual(a.shape, got[name].array.shape, f"{where}, {name}")
                test.assertEqual(state.tensors[field][name].dtype, got[name].dtype, f"{where}, {name}")
                if a.tobytes() != got[name].tobytes():
                    test.fail(f"{where}, {name}: bytes differ")


def random_config(rng, devices, tps=(1, 2, 3, 4, 6), zero=True):
    """A configuration of at most `devices` ranks; every degree, ZeRO and the rank order vary."""
    while True:
        n = {"tp": int(rng.choice(tps)), "pp": int(rng.integers(1, 5)), "dp": int(rng.integers(1, 5))}
        if n["tp"] * n["pp"] * n["dp"] <= devices:
            break
    order = [AXES[i] for i in rng.permutation(5)] if rng.integers(2) else list(AXES)
    return Config(**n, zero=int(zero and n["dp"] > 1 and rng.integers(2)), order="-".join(order))
