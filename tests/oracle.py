# SPDX-License-Identifier: Apache-2.0
"""What each rank must hold, by NumPy indexing and nothing else: written from docs/layout.md, not from reshard/.

Slow and obvious on purpose: a rank's tensor is made by picking indices along one dim after the other (np.take) and,
where ranges of the flattened tensor are cut, by slicing it. Coordinates come from grids of rank numbers, groups from
looking which ranks share coordinates.
"""
import fnmatch
import functools
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
        self.stages, self.experts = (
            [int(n) for n in str(v).split(":")] if (v := degrees.pop(key, None)) else None for key in ("stages", "experts"))
        self.n = {axis: int(degrees.pop(axis, 1)) for axis in (*AXES, "etp")}
        self.zero, self.vpp, self.replicas = (int(degrees.pop(k, d)) for k, d in (("zero", 0), ("vpp", 1), ("replicas", 1)))
        self.shard = degrees.pop("shard", "flat")
        if degrees:
            raise ValueError(f"unknown keys {degrees}")
        self.world = self.n["tp"] * self.n["cp"] * self.n["dp"] * self.n["pp"]

    def __str__(self):
        parts = [f"{a}={self.n[a]}" for a in (*AXES, "etp") if self.n[a] != 1]
        parts += [f"zero={self.zero}"] if self.zero else []
        parts += [f"order={'-'.join(self.order)}"] if self.order != list(AXES) else []
        parts += ["stages=" + ":".join(map(str, self.stages))] if self.stages else []
        parts += [f"vpp={self.vpp}"] if self.vpp != 1 else []
        parts += [f"replicas={self.replicas}"] if self.replicas != 1 else []
        parts += [f"shard={self.shard}"] if self.shard != "flat" else []
        parts += ["experts=" + ":".join(map(str, self.experts))] if self.experts else []
        return ",".join(parts) or "tp=1"

    @staticmethod
    def grid(ranks, axes):
        """{rank: {axis: coordinate}} when ranks are dealt out with the first axis fastest."""
        a = np.array(ranks).reshape([n for _, n in reversed(axes)])
        return {int(a[at]): {name: at[len(axes) - 1 - i] for i, (name, _) in enumerate(axes)} for at in np.ndindex(*a.shape)}

    @functools.cached_property
    def table(self):
        """Each rank's coordinates: tp cp dp pp; etp, ep and edp among its stage's ranks; and its place in the groups that
        zero cuts over, "dense" and "expert", with their sizes."""
        n = self.n
        table = self.grid(range(self.world), [(a, 1 if a == "ep" else n[a]) for a in self.order])
        per_stage = n["tp"] * n["cp"] * n["dp"]
        sizes = {"tp": ("etp", n["etp"]), "ep": ("ep", n["ep"]), "dp": ("edp", per_stage // (n["etp"] * n["ep"]))}
        for stage in range(n["pp"]):
            mine = sorted(r for r in table if table[r]["pp"] == stage)
            for rank, c in self.grid(mine, [sizes[a] for a in self.order if a in sizes]).items():
                table[rank].update(c)
        for kind, same in (("dense", ("tp", "pp")), ("expert", ("etp", "ep", "pp"))):
            for rank, c in table.items():
                group = sorted(r for r in table if all(table[r][a] == c[a] for a in same))
                size = len(group) // self.replicas
                c[kind] = (group.index(rank) % size, size)
        return table

    def coords(self, rank):
        return self.table[rank]

    def stage_of_layer(self, layer, layers):
        return self.chunk_of_layer(layer, layers) % self.n["pp"]

    def chunk_of_layer(self, layer, layers):
        chunks = self.n["pp"] * self.vpp
        counts = self.stages or [layers // chunks + (s < layers % chunks) for s in range(chunks)]
        for chunk, count in enumerate(counts):
            if layer < count:
                return chunk
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


def block_sizes(split, size):
    blocks = split.get("blocks")
    if blocks is None or size == 0:
        return [size]
    if isinstance(blocks, dict):
        ratio = blocks["ratio"]
        if size % sum(ratio):
            raise ValueError(f"{size} not divisible by {ratio}")
        return [size // sum(ratio) * r for r in ratio]
    if sum(blocks) != size:
        raise ValueError(f"{blocks} do not sum to {size}")
    return blocks


def reordered(line, split, experts):
    """The indices of a dim in the order that the split cuts."""
    unit, order = split.get("unit", 1) if not isinstance(split.get("unit"), list) else 1, split.get("permute") or (experts if split["axis"] == "ep" else None)
    if order:
        if len(line) != len(order) * unit:
            raise ValueError(f"{len(line)} elements, {len(order)} units of {unit} permuted")
        line = [line[u * unit + i] for u in order for i in range(unit)]
    pieces = split.get("interleave")
    if not pieces or not line:
        return line
    sizes = block_sizes(split, len(line))
    if any(s % pieces for s in sizes):
        raise ValueError(f"{sizes} cannot be interleaved by {pieces}")
    blocks = [line[sum(sizes[:i]):sum(sizes[:i + 1])] for i in range(len(sizes))]
    return [x for g in range(pieces) for b in blocks for x in b[g * len(b) // pieces:(g + 1) * len(b) // pieces]]


def indices(size, split, t, ways, experts=None):
    """Indices along the split dim that rank t of the axis holds; None stands for a padding element."""
    kind, picked, start = split.get("kind", "even"), [], 0
    line = reordered(list(range(size)), split, experts)
    if "pad_to" in split:
        line += [None] * (-size % (split["pad_to"] * ways))
        piece = len(line) // ways
        return line[t * piece:(t + 1) * piece]
    for i, block in enumerate([len(line)] if "interleave" in split else block_sizes(split, len(line))):
        unit = split["unit"][i] if isinstance(split.get("unit"), list) and line else split.get("unit", 1)
        unit = 1 if isinstance(unit, list) else unit
        if block % unit:
            raise ValueError(f"{block} is not in units of {unit}")
        units = block // unit
        if kind == "even" and "unit" in split and 0 < units < ways and ways % units == 0:
            mine = [t // (ways // units)] # fewer heads than ranks: several ranks hold the same one
        else:
            p = parts(units, ways, kind)
            mine = range(sum(p[:t]), sum(p[:t + 1]))
        picked += [line[start + u * unit + i] for u in mine for i in range(unit)]
        start += block
    return picked


def take(a, picked, dim):
    """a's elements at the picked indices of a dim; zeros where None was picked."""
    if None not in picked:
        return a.take(picked, axis=dim)
    out = a.take([i for i in picked if i is not None], axis=dim)
    shape = [*a.shape[:dim], len(picked), *a.shape[dim + 1:]]
    at = [i for i, x in enumerate(picked) if x is not None]
    whole = np.zeros(shape, dtype=a.dtype)
    whole[(slice(None),) * dim + (at,)] = out
    return whole


def splits_of(rule):
    split = rule.get("split", [])
    return [s for s in (split if isinstance(split, list) else [split]) if s["axis"] != "none"]


def pattern_numbers(pattern, name):
    """The numbers that stand for {}; None where the name does not fit."""
    m = re.fullmatch(re.escape(pattern).replace(r"\{\}", "([0-9]+)").replace(r"\*", ".*").replace(r"\?", "."), name)
    return m and tuple(int(x) for x in m.groups())


def pattern_number(pattern, name):
    return pattern_numbers(pattern, name)[0]


def by_layer(rule):
    where = rule.get("layer", "")
    return isinstance(where, dict) or "{}" in where


def layer_of(rule, name):
    where = rule["layer"]
    if isinstance(where, dict):
        return where["at"] if "at" in where else pattern_number(where["match"], name) + where.get("offset", 0)
    return pattern_number(where, name)


def expert_of(rule, name):
    expert = rule["expert"]
    return pattern_number(expert["match"] if isinstance(expert, dict) else expert, name)


def rule_for(rules, name, field="param"):
    return next((r for r in rules if fnmatch.fnmatchcase(name, r["match"]) and
                 ("fields" not in r or field in r["fields"])), {})


def round_bf16(bits):
    """The BF16 nearest to each F32, given as bits and none of them NaN: of the two beside it the nearer, then the even one."""
    low = bits >> 16
    up = low + ((low & 0x7fff) < 0x7f80)
    with np.errstate(all="ignore"):
        value = lambda b: np.where((b & 0x7fff) == 0x7f80, 2.0**128, np.abs((b << 16).astype(np.uint32).view(np.float32).astype(np.float64)))
        here = np.abs(bits.view(np.float32).astype(np.float64))
        down, above = here - value(low), value(up) - here
    return np.where((down < above) | ((down == above) & (low % 2 == 0)) | np.isinf(here), low, up).astype(np.uint16)


def items(state):
    return [(n, f) for f in state.tensors for n in state.tensors["param"]]


def layer_count(state, rules):
    indexed = [(rule_for(rules, n, f), n) for n, f in items(state)]
    return max((layer_of(r, n) + 1 for r, n in indexed if by_layer(r)), default=0)


def expert_count(state, rules, rule):
    return max(expert_of(rule, n) + 1 for n, f in items(state) if rule_for(rules, n, f) is rule)


def on_stage(rule, name, stage, config, layers):
    where = rule.get("layer")
    if where is None:
        return True
    if by_layer(rule):
        return stage == config.stage_of_layer(layer_of(rule, name), layers)
    last = config.n["pp"] - 1
    fixed = {"first": (0,), "last": (last,), "ends": (0, last)}
    return stage in fixed[where]


def on_expert_rank(rule, name, ep, config, experts):
    """Tensors of one expert each: experts in order, dealt evenly."""
    if "expert" not in rule:
        return True
    order = (rule["expert"].get("order") if isinstance(rule["expert"], dict) else None) or config.experts or list(range(experts))
    if len(order) != experts or experts % config.n["ep"]:
        raise ValueError(f"{experts} experts, {len(order)} in order, ep {config.n['ep']}")
    each = experts // config.n["ep"]
    return expert_of(rule, name) in order[ep * each:(ep + 1) * each]


def shard_of(rule, field, config, ndim):
    """How zero cuts: None, "flat" or a dim."""
    if not config.zero or (config.zero < 3 and field == "param"):
        return None
    if any(s["axis"] in ("dp", "cp") for s in splits_of(rule)):
        return None
    how = rule.get("shard", "config")
    if how == "config":
        how = {"dim": 0} if config.shard == "dim0" else config.shard
    if how == "none" or (isinstance(how, dict) and ndim == 0):
        return None
    return how["dim"] if isinstance(how, dict) else how


def is_expert(rule):
    return "expert" in rule or any(s["axis"] in ("ep", "etp") for s in splits_of(rule))


def flat_range(size, ways, i):
    """The elements of a flattened local tensor that data-parallel rank i of `ways` holds."""
    piece = -(-size // ways)
    return min(size, i * piece), min(size, (i + 1) * piece)


def buffer_order(state, rules, buffers):
    """Names in the order in which buffers hold them, each with its unit."""
    def key(name):
        rule, runs = rule_for(rules, name), [0, 0]
        groups = [g if isinstance(g, list) else [g] for g in buffers.get("groups", [])]
        group = next((i for i, g in enumerate(groups) if any(fnmatch.fnmatchcase(name, p) for p in g)), len(groups))
        unit = (group, 1 + layer_of(rule, name) if buffers.get("unit") == "layer" and by_layer(rule) else 0)
        natural = [int(x) if x.isdigit() else x for x in re.split("([0-9]+)", name)]
        patterns = buffers.get("order", [])
        for i, p in enumerate(patterns):
            for holes in (1, 2):
                runs[holes - 1] += i > 0 and not (p.count("{}") >= holes and patterns[i - 1].count("{}") >= holes)
            numbers = pattern_numbers(p, name)
            if numbers is not None:
                first, second = (*numbers, 0, 0)[:2]
                return unit, runs[0], first, runs[1], second, i, natural
        return unit, len(patterns), 0, 0, 0, 0, natural
    keys = sorted((key(n), n) for n in state.tensors["param"])
    return [(n, k[0]) for k, n in (reversed(keys) if buffers.get("reverse") == "true" else keys)]


def buffer_walk(sizes, buffers, bucket, ways):
    """[(name, elements, unit, alone)] -> {name: [which of the `ways` ranks has it, for each element]}, by writing a bucket
    out element by element."""
    align, out, slots, last = buffers.get("align", 1), {}, [], None

    def close():
        nonlocal slots
        pad = int(np.lcm(buffers.get("pad", 1), ways * buffers.get("range", 1)))
        slots += [None] * (-len(slots) % pad)
        for i, slot in enumerate(slots):
            if slot:
                out[slot[0]][slot[1]] = i * ways // len(slots)
        slots = []
    for name, count, unit, alone in sizes:
        if slots and (alone or unit != last):
            close()
        slots += [None] * (-len(slots) % align)
        last, out[name] = unit, [None] * count
        slots += [(name, i) for i in range(count)]
        if alone or (bucket and len(slots) >= bucket):
            close()
            last = None
    close()
    return out


def buffer_owners(state, config, rules, buffers, c):
    """{(name, field): (which rank of the group has it, for each element of the flattened local tensor, "dense" or
    "expert")}, for a rank with coordinates c: the same for all that differ in the group only."""
    n, out = config.n, {}
    layers, chunks = layer_count(state, rules), n["pp"] * config.vpp

    def chunk_of(rule, name):
        where = rule.get("layer")
        if where is None:
            return c["pp"]
        ends = 0 if c["pp"] == 0 else chunks - 1
        fixed = {"first": 0, "last": chunks - 1, "ends": ends}
        return config.chunk_of_layer(layer_of(rule, name), layers) if by_layer(rule) else fixed[where]
    for field in state.tensors:
        walks = {}
        for name, unit in buffer_order(state, rules, buffers):
            rule, t = rule_for(rules, name, field), state.tensors[field][name]
            if "expert" in rule and not on_expert_rank(rule, name, c["ep"], config, expert_count(state, rules, rule)):
                continue
            if shard_of(rule, field, config, t.array.ndim) != "buffer" or not on_stage(rule, name, c["pp"], config, layers):
                continue
            kind = "expert" if is_expert(rule) else "dense"
            alone = n["pp"] > 1 and rule.get("layer") == "ends"
            size = cut(t.array, rule, config, c).size
            dtype = state.tensors["param"][name].dtype
            walks.setdefault((dtype, kind, chunk_of(rule, name)), []).append((name, size, unit, alone))
        for (_, kind, chunk), sizes in walks.items():
            bucket = max(buffers.get("bucket", 0), buffers.get("bucket_per_dp", 0) * n["dp"])
            bucket = bucket if chunk == 0 or buffers.get("bucket_stages") != "first" else None
            for name, owners in buffer_walk(sizes, buffers, bucket, c[kind][1]).items():
                out[name, field] = (owners, kind)
    return out


def buffer_shards(state, config, rules, buffers, rank, memo):
    """{(name, field): elements of the flattened local tensor that the rank has}."""
    c = config.coords(rank)
    key = ("buffers", *(c[a] for a in ("pp", "tp", "etp", "ep")))
    if key not in memo:
        memo[key] = buffer_owners(state, config, rules, buffers, c)
    return {k: [i for i, owner in enumerate(owners) if owner == c[kind][0]] for k, (owners, kind) in memo[key].items()}


def cut(a, rule, config, c):
    """What the rule's splits leave of a on a rank with coordinates c."""
    for split in splits_of(rule):
        ways, dim = config.n[split["axis"]], split["dim"]
        a = take(a, indices(a.shape[dim], split, c[split["axis"]], ways, config.experts), dim)
    return a


def local_tensor(a, rule, field, config, c):
    """What a rank with coordinates c, whose stage and experts the tensor is on, holds of it."""
    a = cut(a, rule, config, c)
    how, (at, ways) = shard_of(rule, field, config, a.ndim), c["expert" if is_expert(rule) else "dense"]
    if how == "buffer": # a part of it, which only the whole buffer can tell
        return a
    if how == "flat":
        lo, hi = flat_range(a.size, ways, at)
        return a.reshape(-1)[lo:hi]
    if how is not None:
        p = parts(a.shape[how], ways, "ceil")
        a = a.take(range(sum(p[:at]), sum(p[:at + 1])), axis=how)
    return a


def rank_tensors(state, config, rules, rank, memo=None, empty=False, buffers=None):
    """{field: {name: array}} of what a rank holds; arrays without elements are left out unless empty. memo, a dict that
    the caller keeps for one state, rules and configuration, spares equal work for ranks that hold the same."""
    c, memo = config.coords(rank), {} if memo is None else memo
    if not memo:
        memo["layers"] = layer_count(state, rules)
        memo["experts"] = {}
        if config.stages and sum(config.stages) != memo["layers"]:
            raise ValueError(f"stages {config.stages} for {memo['layers']} layers")
    out = {field: {} for field in state.tensors}
    shards = buffer_shards(state, config, rules, buffers or {}, rank, memo) if config.zero and config.shard == "buffer" else {}
    for name, field in items(state):
        rule = rule_for(rules, name, field)
        if "expert" in rule and id(rule) not in memo["experts"]:
            memo["experts"][id(rule)] = expert_count(state, rules, rule)
        here = on_expert_rank(rule, name, c["ep"], config, memo["experts"].get(id(rule)))
        if not on_stage(rule, name, c["pp"], config, memo["layers"]) or not here:
            continue
        key = (name, field, c["dense"], c["expert"], *(c[s["axis"]] for s in splits_of(rule)))
        if key not in memo:
            memo[key] = local_tensor(state.tensors[field][name].array, rule, field, config, c)
        a = memo[key].reshape(-1)[shards[name, field]] if (name, field) in shards else memo[key]
        if a.size or empty:
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


def node_needs(state, config, rules, nodes):
    """{node: bytes} that its ranks hold, what several of them hold counted once. nodes: {rank: node}."""
    numbered, held, memo = states.State(state.fields), {}, {}
    for field, tensors in state.tensors.items():
        for name, t in tensors.items():
            ids = np.arange(1, t.array.size + 1, dtype=np.uint32).reshape(t.array.shape) # 0: padding
            numbered.tensors[field][name] = states.Tensor(t.dtype, t.shape, ids)
    for rank, node in nodes.items():
        for field, tensors in rank_tensors(numbered, config, rules, rank, memo).items():
            for name, ids in tensors.items():
                size = state.tensors[field][name].array.size
                mask = held.setdefault(node, {}).setdefault((field, name), np.zeros(size + 1, bool))
                mask[ids.reshape(-1)] = True
    return {node: sum(int(m[1:].sum()) * state.tensors[f][n].array.itemsize for (f, n), m in masks.items())
            for node, masks in held.items()}


def random_config(rng, devices, tps, zero=True):
    """A configuration of at most `devices` ranks; every degree, how zero cuts and the rank order vary. ep divides 4."""
    while True:
        n = {"tp": int(rng.choice(tps)), "pp": int(rng.integers(1, 5)), "dp": int(rng.integers(1, 5)),
             "cp": int(rng.integers(1, 3))}
        if n["tp"] * n["pp"] * n["dp"] * n["cp"] <= devices:
            break
    stage = n["tp"] * n["dp"] * n["cp"]
    n["ep"] = int(rng.choice([e for e in (1, 2, 4) if stage % e == 0]))
    n["etp"] = int(rng.choice([e for e in range(1, stage + 1) if stage // n["ep"] % e == 0]))
    if rng.integers(4) == 0:
        n["vpp"] = 2
    if zero and rng.integers(2):
        groups = [n["dp"] * n["cp"]] + [stage // (n["ep"] * n["etp"])] * (n["ep"] * n["etp"] > 1)
        n["zero"], n["shard"] = int(rng.integers(1, 4)), str(rng.choice(("flat", "dim0", "buffer")))
        n["replicas"] = int(rng.choice([r for r in (1, 2) if all(g % r == 0 for g in groups)]))
    order = [AXES[i] for i in rng.permutation(5)] if rng.integers(2) else list(AXES)
    return Config(**n, order="-".join(order))
