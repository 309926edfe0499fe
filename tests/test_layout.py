# SPDX-License-Identifier: Apache-2.0
"""reshard/'s layouts against the oracle, element by element, for thousands of random jobs; needs no daemon."""
import json
import os
import random
import struct
import subprocess

import unittest

import harness
import numpy as np
import oracle
import state as states
from harness import SANITIZED

RULES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "deploy", "rules")


def spec_of(state, rules, buffers=None):
    return {"version": 1, "name": "layout", "rules": rules, **({"buffers": buffers} if buffers else {}), "fields": {f: {"dtype": d} for f, d in state.fields.items()},
            "tensors": [{"name": n, "dtype": t.dtype, "shape": list(t.shape)} for n, t in state.tensors["param"].items()]}


class Dump:
    """A layout-dump that answers one question after the other."""

    def __init__(self):
        self.process = subprocess.Popen([harness.binary("tests/layout-dump")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def read(self, n):
        data = self.process.stdout.read(n)
        if len(data) != n:
            raise RuntimeError("layout-dump died")
        return data

    def u32(self):
        return struct.unpack("<I", self.read(4))[0]

    def job(self, path, bucket):
        """The job in this file for what follows, with buckets of so many elements."""
        self.process.stdin.write(f"job {path}\nbucket {bucket}\n".encode())

    def layout(self, spec, config):
        """{(rank, item number): array of element numbers}, or the error's text. spec None: as before."""
        text = ("" if spec is None else f"spec {json.dumps(spec)}\n") + f"config {config}\n"
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()
        if self.u32():
            return self.read(self.u32()).decode()
        world, items, out = self.u32(), self.u32(), {}
        for rank in range(world):
            for item in range(items):
                ndim = self.u32()
                if ndim != 0xffffffff:
                    shape = struct.unpack(f"<{ndim}q", self.read(8 * ndim))
                    count = int(np.prod(shape, dtype=np.int64))
                    out[rank, item] = np.frombuffer(self.read(8 * count), dtype=np.int64).reshape(shape)
        return out


def numbered(state):
    """The state with element numbers from 1 for elements, so that equal values in different places are told apart."""
    out = states.State(state.fields)
    for field, tensors in state.tensors.items():
        for name, t in tensors.items():
            count = int(np.prod(t.shape, dtype=np.int64))
            out.tensors[field][name] = states.Tensor(t.dtype, t.shape, np.arange(1, count + 1).reshape(t.shape))
    return out


def expected(state, rules, config, buffers=None):
    """As Dump.layout: padding -1. A ValueError where the rules do not fit."""
    out, memo = {}, {}
    order = [(n, f) for n in sorted(state.tensors["param"], key=str.encode) for f in ("param", *sorted(state.fields))]
    for rank in range(config.world):
        held = oracle.rank_tensors(state, config, rules, rank, memo, empty=True, buffers=buffers)
        for item, (name, field) in enumerate(order):
            if name in held[field]:
                out[rank, item] = held[field][name] - 1
    return out


@harness.labels("repeats")
class Layout(harness.Case):
    def check(self, got, want, what):
        if want is None:
            if not isinstance(got, str):
                self.fail(f"{what}: was not refused")
            return
        if isinstance(got, str):
            self.fail(f"{what}: {got}")
        self.assertEqual(set(want), set(got), what)
        for at, a in want.items():
            if a.shape != got[at].shape or not np.array_equal(a, got[at]):
                self.fail(f"{what}: rank {at[0]}, item {at[1]}: want {a.tolist()}\ngot {got[at].tolist()}")

    def test_random(self):
        rng = np.random.default_rng(self.seed)
        ranks = 0
        with Dump() as dump:
            for heads, tps in states.VARIANTS:
                s = numbered(states.random_state(rng, heads, tiny=20))
                rules = states.rules(heads)
                for _ in range(5 if SANITIZED else harness.size(10, 50, 300)):
                    config = oracle.random_config(rng, 24, tps)
                    self.check(dump.layout(spec_of(s, rules), config), expected(s, rules, config), str(config))
                    ranks += config.world
        print(f"{ranks} ranks compared")

    def test_rules(self):
        """Random rules of every sort, alone and together, from one random configuration to another and back. What the
        oracle cannot cut must be refused."""
        cases = int(os.environ.get("PTC_CASES", 500 if SANITIZED else harness.size(3000, 8000, 40000)))
        asked = refused = done = 0
        with Dump() as dump:
            while done < cases:
                rng = random.Random(f"{self.seed} {asked}")
                asked += 1
                state, rules = random_job(rng)
                buffers = random_buffers(rng)
                spec, layouts = spec_of(state, rules, buffers), []
                for _ in range(4): # one to four, until two come out
                    config = random_config(rng, state, rules)
                    what = f"job {asked - 1}: {config} {json.dumps(spec)}"
                    try:
                        want = expected(state, rules, config, buffers)
                    except ValueError:
                        want = None
                    got = dump.layout(spec, config)
                    self.check(got, want, what)
                    if want is None:
                        refused += 1
                        continue
                    layouts.append(got)
                    if len(layouts) == 2:
                        self.round_trip(rng, state, layouts, what)
                        done += 1
                        break
        print(f"{done} cases of {asked} jobs, {refused} layouts rightly refused")

    def round_trip(self, rng, state, layouts, what):
        """Random bytes on A's ranks to B's and back are what they were, and every element is on some rank."""
        shapes = [t.shape for t in (state.tensors["param"][n] for n in sorted(state.tensors["param"], key=str.encode))
                  for _ in range(1 + len(state.fields))]
        values = [np.frombuffer(rng.randbytes(int(np.prod(s, dtype=np.int64))), dtype=np.uint8) for s in shapes]
        first = None
        for layout in (layouts[0], layouts[1], layouts[0]):
            held = {at: np.where(a < 0, 0, values[at[1]][a]) if values[at[1]].size else a for at, a in layout.items()}
            first = first or held
            values = [np.zeros_like(v) for v in values]
            seen = [np.zeros(v.shape, dtype=bool) for v in values]
            for (rank, item), a in layout.items():
                values[item][a[a >= 0]] = held[rank, item][a >= 0]
                seen[item][a[a >= 0]] = True
            self.assertTrue(all(s.all() for s in seen), f"{what}: elements on no rank")
        for at, a in held.items():
            self.assertTrue(np.array_equal(a, first[at]), f"{what}: {at} differs after there and back")

    def test_distributed_optimizer(self):
        """The worked example of docs/layout.md: Megatron's buffer of three parameters on two ranks."""
        state = states.State({})
        for name, count in (("a", 100), ("b", 30), ("c", 170)):
            state.tensors["param"][name] = states.Tensor("F32", (count,), np.arange(1, count + 1))
        rules = [{"match": "*"}]
        with Dump() as dump:
            got = dump.layout(spec_of(state, rules, {"reverse": "true", "align": 64, "pad": 128}), "dp=2,zero=3,shard=buffer")
            small = dump.layout(spec_of(state, rules, {"reverse": "true", "align": 64, "pad": 128, "bucket": 150}),
                                "dp=2,zero=3,shard=buffer")
        # c at 0, b at 192, a at 256, the end at 356 padded to 384: ranges of 192
        self.assertEqual([[got[r, i].tolist() for i in range(3)] for r in range(2)],
                         [[[], [], list(range(170))], [list(range(100)), list(range(30)), []]])
        # c fills a bucket of 256, ranges of 128; b at 0 and a at 64 are one of 256 again
        self.assertEqual([[small[r, i].tolist() for i in range(3)] for r in range(2)],
                         [[list(range(64)), list(range(30)), list(range(128))], [list(range(64, 100)), [], list(range(128, 170))]])

    def test_a_stated_unit_of_one(self):
        """One number for each key and value head, fewer than tp: neighbours share it where `unit: 1` is stated. Else it must divide."""
        state = states.State({})
        for name, count in (("scale", 2), ("qkv", 8)):
            state.tensors["param"][name] = states.Tensor("F32", (count,), np.arange(1, count + 1))
        split, more = {"axis": "tp", "dim": 0}, {"axis": "tp", "dim": 0, "blocks": [4, 2, 2]}
        with Dump() as dump:
            for unit, units in ((1, 1), (1, [1, 1, 1]), (None, [1, 1, 1]), (1, None)):
                rules = [{"match": "scale", "split": {**split, **({"unit": unit} if unit else {})}},
                         {"match": "qkv", "split": {**more, **({"unit": units} if units else {})}}]
                got = dump.layout(spec_of(state, rules), "tp=4")
                if not unit or not units:
                    self.assertRegex(got, 'tensor "qkv": .*block 1|tensor "scale"', "a size that does not divide is refused")
                    continue
                self.assertIsInstance(got, dict, got)
                self.assertEqual([[0, 4, 6], [1, 4, 6], [2, 5, 7], [3, 5, 7]], [got[r, 0].tolist() for r in range(4)])
                self.assertEqual([[0], [0], [1], [1]], [got[r, 1].tolist() for r in range(4)])

    def test_an_encoder_then_a_decoder(self):
        """Layers of one pipeline under two patterns, each numbered from 0: the decoder's go on where the encoder's end."""
        state = states.State({})
        names = [*(f"{part}.{i}.w" for part in ("enc", "dec") for i in range(3)), "enc.norm"]
        for name in names:
            state.tensors["param"][name] = states.Tensor("F32", (2,), np.arange(1, 3))
        items = sorted(names)
        with Dump() as dump:
            for more, stages in (({"offset": 3}, [["enc.0.w", "enc.1.w"], ["enc.2.w", "enc.norm", "dec.0.w"], ["dec.1.w", "dec.2.w"]]),
                                 ({"after": "enc.{}.*"}, [["enc.0.w", "enc.1.w"], ["enc.2.w", "enc.norm", "dec.0.w"], ["dec.1.w", "dec.2.w"]]),
                                 ({}, [["enc.0.w", "dec.0.w"], ["enc.1.w", "dec.1.w"], ["enc.2.w", "enc.norm", "dec.2.w"]])):
                rules = [{"match": "dec.*", "layer": {"match": "dec.{}.*", **more}}, {"match": "enc.norm", "layer": {"with": "enc.{}.*"}},
                         {"match": "enc.*", "layer": "enc.{}.*"}]
                got = dump.layout(spec_of(state, rules), "pp=3")
                self.assertEqual([sorted(s) for s in stages], [[items[i] for r, i in sorted(got) if r == rank] for rank in range(3)], more)

    def test_refusals(self):
        """What does not divide is refused with tensor and sizes in the message."""
        s = states.State({"exp_avg": "F32"})
        s.add(np.random.default_rng(1), "w", "F32", (6, 4))
        with Dump() as dump:
            for rules, config, words in (
                    ([{"match": "*", "split": {"axis": "tp", "dim": 0}}], "tp=4", ("w", "6", "4")),
                    ([{"match": "*", "split": {"axis": "tp", "dim": 0, "kind": "even", "blocks": [3, 3]}}], "tp=2", ("w", "3")),
                    ([{"match": "*", "split": {"axis": "tp", "dim": 0, "unit": 2}}], "tp=2", ("w", "6", "2")),
                    ([{"match": "*", "split": {"axis": "tp", "dim": 0, "pad_to": 1 << 61}}], "tp=2", ("pad_to must be in", "4294967296")),
                    ([{"match": "*", "split": {"axis": "tp", "dim": 0}}], "tp=2,pp=2,stages=1:1", ("stages", "2", "0 layers")),
                    ([{"match": "*", "split": {"axis": "ep", "dim": 0}}], "dp=4,ep=4", ("w", "6", "ep 4")),
                    ([{"match": "*", "split": [{"axis": "tp", "dim": 0, "kind": "ceil"}, {"axis": "dp", "dim": 0}]}],
                     "tp=5,dp=4", ("w", "dp 4")),
                    ([{"match": "*", "split": {"axis": "ep", "dim": 0}}], "dp=2,ep=2,experts=0:1", ("w", "6", "2", "experts"))):
                result = dump.layout(spec_of(s, rules), config)
                self.assertIsInstance(result, str, f"{rules} {config} was not refused")
                for word in words:
                    self.assertIn(word, result)


def random_split(rng, axis, shape, first):
    dim = rng.randrange(len(shape))
    split, size = {"axis": axis, "dim": dim}, shape[dim]
    if rng.random() < 0.6:
        split["kind"] = rng.choice(("even", "ceil", "balanced"))
    if rng.random() < 0.3:
        divisors = [u for u in (1, 2, 3, 4, 6) if size and size % u == 0]
        if divisors:
            split["unit"] = rng.choice(divisors)
    sort = rng.randrange(8)
    if sort == 0:
        split.pop("unit", None)
        split["pad_to"] = rng.randint(1, 4)
    elif sort in (1, 2) and size >= 2 and (first or sort == 1):
        n = rng.randint(1, min(3, size))
        cuts = sorted(rng.sample(range(1, size), n - 1))
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, size])]
        split["blocks"] = {"ratio": rng.choice(([1, 1], [2, 1, 1], [3, 1], [1]))} if sort == 1 else sizes
        if rng.random() < 0.4:
            split["interleave"] = rng.choice((1, 2, 3))
        elif rng.random() < 0.3:
            split["unit"] = [rng.choice((1, 1, 2, 3)) for _ in (sizes if sort == 2 else split["blocks"]["ratio"])]
    elif sort == 3 and first and size:
        split["permute"] = rng.sample(range(size // split.get("unit", 1)), size // split.get("unit", 1))
    return split


def random_splits(rng, shape):
    axes = rng.choice((("tp",), ("tp",), ("tp", "dp"), ("dp", "cp", "tp"), ("ep",), ("ep", "etp"), ("etp",)))
    axes = rng.sample(axes, rng.randint(1, len(axes)))
    seen, out = set(), []
    for axis in axes:
        out.append(random_split(rng, axis, shape, True))
        if out[-1]["dim"] in seen: # its sizes depend on the degrees; sizes that are stated rarely fit
            if isinstance(out[-1].get("unit"), list):
                del out[-1]["unit"]
            for key in ("permute", "unit", "interleave") if rng.random() < 0.7 else ():
                out[-1].pop(key, None)
            if isinstance(out[-1].get("blocks"), list):
                del out[-1]["blocks"]
                out[-1].pop("interleave", None)
        seen.add(out[-1]["dim"])
    return out[0] if len(out) == 1 and rng.random() < 0.5 else out


def random_rule(rng, match, shape, layered):
    rule = {"match": match}
    if shape and rng.random() < 0.8:
        rule["split"] = random_splits(rng, shape)
    where = rng.choice((None, "first", "last", "ends", *(["h.{}.*"] * 4 if layered else [])))
    if where:
        rule["layer"] = where
    if where == "h.{}.*" and rng.random() < 0.3:
        rule["layer"] = rng.choice(({"match": where, "offset": rng.randrange(1, 4)}, {"at": rng.randrange(4)}))
    if rng.random() < 0.3:
        rule["shard"] = rng.choice(["none", "flat", "config", *({"dim": d} for d in range(len(shape)))])
    return rule


def random_job(rng):
    """One to three tensors, or a layer's experts, a rule for each, and a field or none."""
    s, rules = states.State({"m": "F32"} if rng.random() < 0.6 else {}), []
    for i in range(rng.randint(1, 3)):
        shape = tuple(rng.choice((1, 2, 3, 4, 4, 5, 6, 8, 12, 12, 16, 24, 0)) for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 3))))
        while np.prod(shape) > 300:
            shape = shape[1:]
        layered = rng.random() < 0.6
        name = f"h.{rng.randrange(4)}.{i}" if layered else f"x{i}"
        rule = random_rule(rng, f"*{name[1:]}" if rng.random() < 0.3 else name, shape, layered)
        names = [name]
        if rng.random() < 0.2: # a tensor per expert
            splits = [t for t in oracle.splits_of(rule) if t["axis"] == "etp"]
            rule.pop("split", None)
            if splits:
                rule["split"] = splits
            count = rng.choice((1, 2, 4, 6))
            rule["match"], rule["expert"] = f"{name}.e*", "*.e{}.w"
            if rng.random() < 0.3:
                rule["expert"] = {"match": "*.e{}.w", "order": rng.sample(range(count), count)}
            names = [f"{name}.e{e}.w" for e in range(count)]
        rules.append(rule)
        dtype = rng.choice(("F32", "F32", "BF16"))
        for n in names:
            for field in s.tensors:
                count = int(np.prod(shape, dtype=np.int64))
                s.tensors[field][n] = states.Tensor(dtype if field == "param" else "F32", shape, np.arange(1, count + 1).reshape(shape))
    if s.fields and rng.random() < 0.2:
        rules.insert(0, {"match": "*", "fields": ["m"]})
    if rng.random() < 0.2:
        rules.pop()
    return s, rules or [{"match": "none"}]


def random_buffers(rng):
    if rng.random() < 0.3:
        return None
    sorts = {"order": lambda: rng.choice((["x*", "h.{}.1", "h.{}.*"], ["*2"], ["h.{}.0", "x?", "h.{}.2*"], ["h.{}.{}", "x*"],
                                          ["h.{}.2", "h.{}.{}*", "h.{}.*", "x0*"], ["h.{}.0.e{}.w", "h.{}.{}*", "x*.e{}.w"])),
             "groups": lambda: rng.choice((["x*"], [["*0", "*2"], "*1"], ["h.1*", ["h*", "x1"]])), "bucket_per_dp": lambda: rng.choice((3, 20)),
             "reverse": lambda: "true", "unit": lambda: "layer", "align": lambda: rng.choice((2, 3, 8)),
             "pad": lambda: rng.choice((2, 4, 6)), "range": lambda: rng.choice((2, 3)), "bucket": lambda: rng.choice((1, 10, 60)), "bucket_stages": lambda: "first"}
    return {key: make() for key, make in sorts.items() if rng.random() < 0.4} or None


def random_config(rng, state, rules, devices=8):
    while True:
        n = {a: rng.choice((1, 1, 2, 2, 3, 4)) for a in ("tp", "pp", "dp", "cp")}
        stage = n["tp"] * n["dp"] * n["cp"]
        if stage * n["pp"] <= devices:
            break
    n["ep"] = rng.choice([d for d in range(1, stage + 1) if stage % d == 0])
    n["etp"] = rng.choice([d for d in range(1, stage // n["ep"] + 1) if stage // n["ep"] % d == 0])
    if rng.random() < 0.3:
        n["order"] = "-".join(rng.sample(oracle.AXES, 5))
    if rng.random() < 0.2:
        n["vpp"] = rng.choice((1, 2, 3))
    n["zero"] = rng.randrange(4)
    if n["zero"]:
        n["shard"] = rng.choice(("flat", "dim0", "buffer"))
        groups = [n["dp"] * n["cp"]] + ([stage // (n["ep"] * n["etp"])] if n["ep"] * n["etp"] > 1 else [])
        n["replicas"] = rng.choice([r for r in (1, 1, 2, 3) if all(g % r == 0 for g in groups)])
    layers = oracle.layer_count(state, rules)
    if layers and rng.random() < 0.2:
        cuts = sorted(rng.randint(0, layers) for _ in range(n["pp"] * n.get("vpp", 1) - 1))
        n["stages"] = ":".join(str(b - a) for a, b in zip([0, *cuts], [*cuts, layers]))
    experts = [int(name.split(".e")[1].split(".")[0]) + 1 for name in state.tensors["param"] if ".e" in name]
    if rng.random() < 0.1:
        count = max(experts, default=4)
        if count % n["ep"] == 0:
            n["experts"] = ":".join(map(str, rng.sample(range(count), count)))
    return oracle.Config(**n)


if __name__ == "__main__":
    unittest.main()
