# SPDX-License-Identifier: Apache-2.0
"""ptc-bench scale: layout, mapping and plan of the largest jobs on one core (ptc-bench-scale), and what some ranks keep and
get checked with arithmetic of its own: where a rank's part of a tensor lies is computed here from degrees and sizes, as
intervals; whether a box lies in a range of a flattened tensor, from its first and last element."""
import json
import math
import os
import random
import re
import subprocess

MIB = 1 << 20
LIMIT_S, LIMIT_BYTES = 1.0, 512 * MIB # of each case
DENSE = "tp=8,pp=16,dp=80,zero=1"
MOE = "tp=4,pp=16,dp=32,ep=64,zero=1"
SAMPLES = 64
# What, arguments, from, to. A node less takes a whole data-parallel group: its other nodes become free. Experts have to come
# out on 4 * 31 ranks of a stage then, which ep=4 does; with ep=16 four groups go.
CASES = (
    ("dense, a node less", ["--drain", "1"], DENSE, "tp=8,pp=16,dp=79,zero=1"),
    ("dense, tp x2 pp /2", [], DENSE, "tp=16,pp=8,dp=80,zero=1"),
    ("dense, pp 16 to 12", [], DENSE, "tp=8,pp=12,dp=106,zero=1"),
    ("moe, a node less", ["--moe", "--drain", "1"], "tp=4,pp=16,dp=32,ep=4,zero=1", "tp=4,pp=16,dp=31,ep=4,zero=1"),
    ("moe, ep 16, dp -4", ["--moe", "--drain", "1"], "tp=4,pp=16,dp=32,ep=16,zero=1", "tp=4,pp=16,dp=28,ep=16,zero=1"),
    ("moe, tp x2 pp /2", ["--moe"], MOE, "tp=8,pp=8,dp=32,ep=64,zero=1"),
    ("moe, pp 16 to 12", ["--moe"], MOE, "tp=4,pp=12,dp=32,ep=64,zero=1"),
    ("moe, ep x2", ["--moe"], MOE, "tp=4,pp=16,dp=32,ep=128,zero=1"),
)
# Ranges of buffers that hold many tensors: no two are cut alike. Part knows nothing of those, so that these are timed only.
BUFFERS = (("moe, shard=buffer", ["--moe"], MOE + ",shard=buffer", "tp=8,pp=8,dp=32,ep=64,zero=1,shard=buffer"),)
SMALL_BUFFERS = (("moe, shard=buffer", ["--moe", "--layers", 5], "tp=2,pp=2,dp=8,ep=4,zero=1,shard=buffer",
                  "tp=2,pp=2,dp=8,ep=8,zero=1,shard=buffer"),)
SMALL = (
    ("dense, a node less", ["--drain", "1", "--layers", "8", "--hidden", "256", "--vocab", "1000"], "tp=4,pp=4,dp=6,zero=1",
     "tp=4,pp=4,dp=5,zero=1"),
    ("moe, ep x2", ["--moe", "--layers", "5"], "tp=2,pp=2,dp=8,ep=4,zero=1", "tp=2,pp=2,dp=8,ep=8,zero=1"),
)


class Config:
    def __init__(self, text):
        n = dict(part.split("=") for part in text.split(","))
        self.tp, self.pp, self.dp, self.ep, self.zero = (int(n.get(k, 0 if k == "zero" else 1))
                                                         for k in ("tp", "pp", "dp", "ep", "zero"))
        self.world = self.tp * self.pp * self.dp

    def coords(self, rank):
        """tp, dp, pp; and among the stage's ranks ep, edp."""
        stage, at = divmod(rank, self.tp * self.dp)
        return at % self.tp, at // self.tp, stage, at % self.ep, at // self.ep

    def stage(self, layer, layers):
        sizes = [layers // self.pp + (s < layers % self.pp) for s in range(self.pp)]
        for s, n in enumerate(sizes):
            if layer < n:
                return s
            layer -= n
        raise ValueError(layer)


class Model:
    """Names, shapes and how they are cut: (dim, [block sizes], padding) over tp, or None."""

    def __init__(self, moe, layers, hidden, vocab):
        self.layers, self.tensors = layers, {}
        if moe:
            self.moe()
        else:
            self.dense(hidden, vocab)

    def dense(self, h, vocab):
        t = self.tensors
        for i in range(self.layers):
            for ln in ("ln_1", "ln_2"):
                t[f"h.{i}.{ln}.weight"] = t[f"h.{i}.{ln}.bias"] = ((h,), None)
            t[f"h.{i}.attn.qkv.weight"], t[f"h.{i}.attn.qkv.bias"] = ((3 * h, h), (0, [h] * 3, 0)), ((3 * h,), (0, [h] * 3, 0))
            t[f"h.{i}.attn.proj.weight"], t[f"h.{i}.attn.proj.bias"] = ((h, h), (1, [h], 0)), ((h,), None)
            t[f"h.{i}.mlp.up.weight"], t[f"h.{i}.mlp.up.bias"] = ((4 * h, h), (0, [4 * h], 0)), ((4 * h,), (0, [4 * h], 0))
            t[f"h.{i}.mlp.down.weight"], t[f"h.{i}.mlp.down.bias"] = ((h, 4 * h), (1, [4 * h], 0)), ((h,), None)
        t["wte"], t["wpe"] = ((vocab, h), (0, [vocab], 128)), ((4096, h), None)
        t["ln_f.weight"] = t["ln_f.bias"] = ((h,), None)

    def moe(self):
        t = self.tensors
        for i in range(self.layers):
            p = f"model.layers.{i}."
            t[p + "input_layernorm.weight"] = t[p + "post_attention_layernorm.weight"] = ((7168,), None)
            a = p + "self_attn."
            t[a + "q_a_proj.weight"], t[a + "q_a_layernorm.weight"] = ((1536, 7168), None), ((1536,), None)
            t[a + "q_b_proj.weight"] = ((128 * 192, 1536), (0, [128 * 192], 0))
            t[a + "kv_a_proj_with_mqa.weight"], t[a + "kv_a_layernorm.weight"] = ((576, 7168), None), ((512,), None)
            t[a + "kv_b_proj.weight"] = ((128 * 256, 512), (0, [128 * 256], 0))
            t[a + "o_proj.weight"] = ((7168, 128 * 128), (1, [128 * 128], 0))
            if i >= 3:
                t[p + "mlp.gate.weight"] = ((256, 7168), None)
            groups = [("mlp.", 18432, True)] if i < 3 else [("mlp.shared_experts.", 2048, True)] + [
                (f"mlp.experts.{e}.", 2048, False) for e in range(256)]
            for name, inner, cut in groups:
                for part, shape, dim in (("gate", (inner, 7168), 0), ("up", (inner, 7168), 0), ("down", (7168, inner), 1)):
                    t[f"{p}{name}{part}_proj.weight"] = (shape, (dim, [inner], 0) if cut else None)
        t["model.embed_tokens.weight"] = t["lm_head.weight"] = ((129280, 7168), (0, [129280], 0))
        t["model.norm.weight"] = ((7168,), None)

    def stages(self, name, config):
        layer = re.match(r"(?:model\.layers|h)\.(\d+)\.", name)
        if layer:
            return {config.stage(int(layer[1]), self.layers)}
        return {"wte": {0, config.pp - 1}, "wpe": {0}, "model.embed_tokens.weight": {0}}.get(name, {config.pp - 1})


class Part:
    """What a rank holds of a tensor's field: parts along one dim, then a range of what that leaves, flattened."""

    def __init__(self, model, config, rank, name, field):
        tp, dp, pp, ep, edp = config.coords(rank)
        shape, cut = model.tensors[name]
        expert = re.search(r"\.experts\.(\d+)\.", name)
        self.here = pp in model.stages(name, config)
        group, at = (config.tp * config.dp // config.ep, edp) if expert else (config.dp, dp)
        if expert:
            self.here = self.here and int(expert[1]) // (256 // config.ep) == ep
        self.dim, self.parts, local = 0, [(0, shape[0], 0)], list(shape)
        if cut:
            self.dim, blocks, pad = cut
            self.parts, start, length = [], 0, 0
            for size in blocks:
                share = (-(-size // (pad * config.tp)) * pad) if pad else size // config.tp
                lo = tp * share
                self.parts.append((start + lo, max(0, min(share, size - lo)), length))
                start, length = start + size, length + share
            local[self.dim] = length
        self.local, self.lo, self.hi = local, 0, math.prod(local)
        if field != "-" and config.zero:
            chunk = -(-self.hi // group)
            self.lo, self.hi = min(at * chunk, self.hi), min((at + 1) * chunk, self.hi)
        self.real = self.hi - self.lo
        if cut and cut[2]: # padding is the last rows
            rows = self.parts[0][1] * math.prod(local[1:])
            self.real = max(0, min(self.hi, rows) - min(self.lo, rows))

    def holds(self, box):
        """box: (offset, extent) per dim, in elements."""
        off, ext = box[self.dim]
        for start, length, at in self.parts:
            if start <= off and off + ext <= start + length:
                first = last = 0
                for d, n in enumerate(self.local):
                    o, e = box[d]
                    o += at - start if d == self.dim else 0
                    first, last = first * n + o, last * n + o + e - 1
                return self.here and self.lo <= first and last < self.hi
        return False


def volume(box):
    return math.prod(e for _, e in box)


def meet(a, b):
    return all(x < y + f and y < x + e for (x, e), (y, f) in zip(a, b))


def check(path, model, old, new):
    """Each sampled rank gets and keeps just its part of each tensor, once, from ranks that have it. Boxes checked."""
    got, slots, sampled = {}, ({}, {}), set()
    with open(path, encoding="ascii") as f:
        for line in f:
            w = line.split()
            if w[0] in ("old", "new"):
                slots[w[0] == "new"][int(w[1])] = (int(w[2]), int(w[3]))
                if len(w) > 4 and w[4] == "1":
                    sampled.add(int(w[1]))
                continue
            numbers = list(map(int, w[6:]))
            size = 2 if w[3] == "-" else 4
            box = list(zip(numbers[::2], numbers[1::2]))
            box[-1] = (box[-1][0] // size, box[-1][1] // size)
            got.setdefault((int(w[1]), w[2], w[3]), []).append((w[0], int(w[4]), box))
    boxes = 0
    for rank in sampled:
        for name in model.tensors:
            for field in ("-", "exp_avg", "exp_avg_sq", "master"):
                mine = Part(model, new, rank, name, field)
                moves = got.pop((rank, name, field), [])
                what = f"rank {rank}, {name} {field}"
                if sum(volume(b) for _, _, b in moves) != (mine.real if mine.here else 0):
                    raise AssertionError(f"{what}: {moves} are not {mine.real} elements")
                for i, (kind, src, box) in enumerate(moves):
                    at, to = slots[kind == "forward"][src], slots[1][rank]
                    source = Part(model, new if kind == "forward" else old, src, name, field)
                    fits = {"keep": at == to, "within": at[0] == to[0] and at != to, "forward": at[0] == to[0] and src != rank,
                            "between": at[0] != to[0]}[kind]
                    if not fits or not mine.holds(box) or not source.holds(box):
                        raise AssertionError(f"{what}: {kind} from {src}: {box}")
                    if any(meet(box, other) for _, _, other in moves[:i]):
                        raise AssertionError(f"{what}: {box} comes twice")
                boxes += len(moves)
    if got:
        raise AssertionError(f"moves to ranks that were not asked for: {list(got)[:3]}")
    return len(sampled), boxes


def run(args, *rest):
    argv = [os.path.join(args.build, "tests", "bench", "ptc-bench-scale"), *map(str, rest)]
    r = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if r.returncode:
        raise subprocess.SubprocessError(r.stderr.strip() or f"{argv[0]} ended with {r.returncode}")
    return json.loads(r.stdout)


def option(rest, name, otherwise):
    return int(rest[rest.index(name) + 1]) if name in rest else otherwise


HEAD = ("what", "devices", "items", "s", "layout", "change", "place", "plan", "MiB", "moves", "moved TB", "gap", "checked")


def cells(r):
    gap = r["gap"] / r["between_nodes"] if r["between_nodes"] else 0
    return (r["what"], str(r["devices"]), str(r["items"]), f"{r['seconds']:.3f}",
            *(f"{r[part + '_s']:.3f}" for part in ("layout", "change", "place", "plan")), f"{r['mib']:.0f}", str(r["moves"]),
            f"{r['between_nodes'] / 1e12:.2f}", f"{100 * gap:.1f} %",
            f"{r['ranks_checked']} ranks, {r['boxes_checked']} boxes, seed {r['seed']}" if "ranks_checked" in r else "")


def row(what, found, **more):
    return {"scenario": "scale", "what": what, "rounds": 1, "seconds": found["total_s"], "mib": found["peak_rss_bytes"] / MIB,
            **found, **more}


def over(r):
    """A line for a case that took more than it may; None for one that did not, or that has no limit."""
    if r.get("within_limits", True):
        return None
    return (f"scale: {r['what']} took {r['seconds']:.2f} CPU seconds and {r['mib']:.0f} MiB; the limits are {r['limit_s']:g} and "
            f"{r['limit_mib']:g}. Anything else running makes it slower (docs/benchmarking.md)")


def limited(args, found):
    return {"limit_s": args.limit_s, "limit_mib": LIMIT_BYTES / MIB,
            "within_limits": found["total_s"] <= args.limit_s and found["peak_rss_bytes"] <= LIMIT_BYTES}


def bench_scale(args, work):
    """Each case with its time, then again with some ranks checked; then time against devices and tensors."""
    small = args.scale == "small"
    for what, rest, old, new in SMALL_BUFFERS if small else BUFFERS:
        case = [*(rest if small else [*rest, "--layers", 61]), "--from", old, "--to", new]
        found = min((run(args, *case) for _ in range(args.rounds)), key=lambda r: r["total_s"])
        yield row(what, found, **limited(args, found))
    for what, rest, old, new in SMALL if small else CASES:
        moe = "--moe" in rest
        rest = rest + (["--layers", 61] if moe and "--layers" not in rest else [])
        case = [*rest, "--from", old, "--to", new]
        found = min((run(args, *case) for _ in range(args.rounds)), key=lambda r: r["total_s"])
        path = os.path.join(work, "sampled")
        seed = args.seed or random.randrange(1, 1 << 40)
        checked = run(args, *case, "--out", path, "--samples", SAMPLES, "--seed", seed)
        if checked["checksum"] != found["checksum"]:
            raise AssertionError(f"{what}: two runs made different moves")
        model = Model(moe, option(rest, "--layers", 128), option(rest, "--hidden", 25600), option(rest, "--vocab", 51200))
        ranks, boxes = check(path, model, Config(old), Config(new))
        os.unlink(path)
        if ranks != min(SAMPLES, Config(new).world):
            raise AssertionError(f"{what}: {ranks} ranks were checked, of {Config(new).world}")
        yield row(what, found, ranks_checked=ranks, boxes_checked=boxes, seed=seed, **limited(args, found))
    for dp in () if small else (10, 20, 40, 80, 160, 320):
        yield row(f"{128 * dp} devices", run(args, "--from", f"tp=8,pp=16,dp={dp},zero=1", "--to", f"tp=16,pp=8,dp={dp},zero=1"))
    for layers in () if small else (32, 64, 128, 256, 512):
        yield row(f"{layers} layers", run(args, "--layers", layers, "--from", DENSE, "--to", "tp=16,pp=8,dp=80,zero=1"))
