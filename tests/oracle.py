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
    """Indices along the split dim that tp rank t holds; None stands for a padding element."""
    split = rule["split"]
    unit, kind, picked, start = split.get("unit", 1), split.get("kind", "even"), [], 0
    if "pad_to" in split:
        step = split["pad_to"] * tp
        all_of_it = list(range(size)) + [None] * (-size % step)
        piece = len(all_of_it) // tp
        return all_of_it[t * piece:(t + 1) * piece]
    for block in split.get("blocks") or [size]:
        units = block // unit
        if kind == "even" and unit > 1 and units < tp and tp % units == 0:
            mine = [t // (tp // units)] # fewer heads than ranks: several ranks hold the same one
        else:
            p = parts(units, tp, kind)
            mine = range(sum(p[:t]), sum(p[:t + 1]))
        picked += [start + u * unit + i for u in mine for i in range(unit)]
        start += block
    return picked


def take(a, picked, dim):
    """a's elements at the picked indices of a dim; zeros where None was picked."""
    padding = picked.count(None)
    out = np.take(a, picked[:len(picked) - padding], axis=dim)
    if padding:
        shape = [*a.shape[:dim], padding, *a.shape[dim + 1:]]
        out = np.concatenate([out, np.zeros(shape, dtype=a.dtype)], axis=dim)
    return out


def data_parallel_index(config, c):
    """dp and cp counted together; whichever comes first in the rank order is faster."""
    if config.order.index("cp") < config.order.index("dp"):
        return c["dp"] * config.n["cp"] + c["cp"]
    return c["cp"] * config.n["dp"] + c["dp"]


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
                a = take(a, indices(a.shape[dim], rule, c["tp"], config.n["tp"]), dim)
            if field != "param" and config.zero:
                lo, hi = flat_range(a.size, config.n["dp"] * config.n["cp"], data_parallel_index(config, c))
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


def random_config(rng, devices, tps, zero=True):
    """A configuration of at most `devices` ranks; every degree, ZeRO and the rank order vary."""
    while True:
        n = {"tp": int(rng.choice(tps)), "pp": int(rng.integers(1, 5)), "dp": int(rng.integers(1, 5)),
             "cp": int(rng.integers(1, 3))}
        if n["tp"] * n["pp"] * n["dp"] * n["cp"] <= devices:
            break
    order = [AXES[i] for i in rng.permutation(5)] if rng.integers(2) else list(AXES)
    return Config(**n, zero=int(zero and rng.integers(2)), order="-".join(order))
