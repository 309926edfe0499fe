# SPDX-License-Identifier: Apache-2.0
"""Cases of other systems' own tests that concern layouts, as ours: which switches they try, with which sizes, and what
they say must come out. Where each comes from stands with it. Nothing but the numbers is theirs."""
import itertools
import unittest

import harness
import numpy as np
import oracle
import state as states
from test_layout import Dump, expected, numbered, spec_of


def state_of(shapes, fields=(), dtype="F32"):
    s = states.State({f: "F32" for f in fields})
    for name, shape in shapes.items():
        for field in s.tensors:
            s.tensors[field][name] = states.Tensor(dtype if field == "param" else "F32", shape, np.zeros(shape, dtype=np.uint8))
    return numbered(s)


@harness.labels("repeats")
class Peers(harness.Case):
    def layout(self, dump, state, rules, config, buffers=None):
        """Ours, checked against the oracle."""
        want = expected(state, rules, config, buffers)
        got = dump.layout(spec_of(state, rules, buffers), config)
        self.assertIsInstance(got, dict, f"{config}: {got}")
        self.assertEqual(set(want), set(got), str(config))
        for at, a in want.items():
            self.assertTrue(np.array_equal(a, got[at]), f"{config}: rank and item {at}")
        return got

    def there_and_back(self, dump, state, rules, a, b, buffers=None):
        """Bytes of a's ranks to b's and back. Returns both layouts."""
        rng = np.random.default_rng(self.seed)
        layouts = [self.layout(dump, state, rules, oracle.Config(c), buffers) for c in (a, b)]
        values = {}
        for (rank, item), at in layouts[0].items():
            values.setdefault(item, {}).update((int(e), int(rng.integers(256))) for e in at[at >= 0].reshape(-1))
        held = {at: [values[at[1]].get(int(e), 0) for e in x.reshape(-1)] for at, x in layouts[0].items()}
        moved = values
        for layout in (layouts[1], layouts[0]):
            parts = {at: [moved[at[1]].get(int(e), 0) for e in x.reshape(-1)] for at, x in layout.items()}
            moved = {}
            for at, x in layout.items():
                moved.setdefault(at[1], {}).update((int(e), v) for e, v in zip(x.reshape(-1), parts[at]) if e >= 0)
            self.assertEqual(moved, values, f"{a} to {b}")
        self.assertEqual(parts, held, f"{a} to {b} and back")
        return layouts

    MEGATRON = [{"match": "embedding", "split": {"axis": "tp", "dim": 0, "pad_to": 1}, "layer": "ends"},
                {"match": "layers.*.qkv", "split": {"axis": "tp", "dim": 0}, "layer": "layers.{}.*"},
                {"match": "layers.*.proj", "split": {"axis": "tp", "dim": 1}, "layer": "layers.{}.*"},
                {"match": "layers.*", "layer": "layers.{}.*"}, {"match": "norm", "layer": "last"}]

    def gpt(self, vocabulary, fields=("m",)):
        shapes = {"embedding": (vocabulary, 2), "norm": (2,)}
        for layer in range(8):
            shapes |= {f"layers.{layer}.qkv": (48, 2), f"layers.{layer}.proj": (2, 16), f"layers.{layer}.norm": (2,)}
        return state_of(shapes, fields)

    def test_megatron_gpt_reconfiguration(self):
        """Megatron-core tests/unit_tests/dist_checkpointing, parallel reconfiguration of a GPT: (tp, pp) pairs, with rank
        orders tp-dp-pp and tp-pp-dp mixed."""
        pairs = (((2, 4), (4, 2)), ((1, 8), (8, 1)), ((2, 1), (1, 8)), ((1, 1), (2, 2)), ((1, 1), (2, 4)), ((2, 4), (2, 4)))
        orders = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
        state = self.gpt(16)
        with Dump() as dump:
            for i, ((a, b), (c, d)) in enumerate(pairs):
                for first, second in itertools.product(orders, orders):
                    self.there_and_back(dump, state, self.MEGATRON, f"tp={a},pp={b},dp={8 // (a * b)},zero={i % 2},order={first}",
                                        f"tp={c},pp={d},dp={8 // (c * d)},zero={i % 2},order={second}")

    def test_megatron_vocabulary_padding(self):
        """Megatron-core, there too, change of the vocabulary's padding: vocabulary and (tp, pp) pairs. There are
        ceil(v / (div * tp)) * div * tp rows (div is 128 by default; 1 and 4 here too)."""
        cases = ((128, (2, 4), (4, 2)), (17, (1, 8), (8, 1)), (127, (1, 8), (8, 1)), (17, (1, 1), (1, 8)), (31123, (1, 1), (1, 8)),
                 (17, (8, 1), (1, 1)))
        with Dump() as dump:
            for (v, a, b), div in itertools.product(cases, (1, 4, 128)):
                if v == 31123 and div != 128:
                    continue
                rules = [{**self.MEGATRON[0], "split": {"axis": "tp", "dim": 0, "pad_to": div}}, *self.MEGATRON[1:]]
                state, texts = self.gpt(v, ()), [f"tp={tp},pp={pp}" for tp, pp in (a, b)]
                for (tp, _), layout in zip((a, b), self.there_and_back(dump, state, rules, *texts)):
                    rows = -(-v // (div * tp)) * div
                    self.assertEqual(layout[0, 0].shape, (rows, 2), f"{v} over {tp}, div {div}")
                    padding = sum(int((layout[r, 0] < 0).sum()) for r in range(tp)) // 2
                    self.assertEqual(padding, rows * tp - v)

    def test_deepspeed_reshape(self):
        """DeepSpeed tests/unit/checkpoint/test_reshape_checkpoint.py: which old ranks of pp/tp/dp 2/2/2 (numbered dp, pp, tp,
        last fastest) a new rank merges. With ZeRO-1 each of them holds something of its own."""
        shapes = {f"layers.{i}.qkv": (16, 4) for i in range(4)}
        rules = [{"match": "*", "split": {"axis": "tp", "dim": 0}, "layer": "layers.{}.*"}]
        state = state_of(shapes, ("m",))
        order = "order=tp-cp-ep-pp-dp"
        want = {"tp=1": {0: {0, 4, 1, 5, 2, 6, 3, 7}}, "tp=2": {0: {0, 4, 2, 6}, 1: {1, 5, 3, 7}},
                "pp=2": {0: {0, 4, 1, 5}, 1: {2, 6, 3, 7}}, "tp=2,dp=2": {0: {0, 4, 2, 6}, 1: {1, 5, 3, 7}}}
        with Dump() as dump:
            old = self.layout(dump, state, rules, oracle.Config(f"tp=2,pp=2,dp=2,zero=1,{order}"))
            for config, ranks in want.items():
                new = self.layout(dump, state, rules, oracle.Config(f"{config},zero=1,{order}"))
                world, tp_pp = oracle.Config(config).world, len(ranks)
                for rank, sources in ranks.items():
                    needs = {}
                    for (r, item), a in new.items(): # replicas of the new rank, which share its fields
                        if r % tp_pp == rank and r < world:
                            needs.setdefault(item, set()).update(int(e) for e in a.reshape(-1))
                    fields = [i for i in needs if i % 2]
                    got = {r for (r, i), a in old.items() if i in fields and needs[i] & {int(e) for e in a.reshape(-1)}}
                    self.assertEqual(got, sources, f"{config}: rank {rank}")

    def test_deepspeed_universal(self):
        """DeepSpeed tests/unit/checkpoint/test_universal_checkpoint.py: data-parallel degrees 2 to 2, 4 to 2 and 2 to 4, ZeRO 1
        and 3, three dtypes, with and without Adam's state. ZeRO-1 flattens a parameter group and aligns ranges to 2 elements,
        ZeRO-3 flattens each parameter; 110 elements a layer and 1 are not divisible by either degree."""
        shapes = {f"linears.{i}.{n}": s for i in range(2) for n, s in {"weight": (10, 10), "bias": (10,)}.items()} | {"scale": ()}
        how = {1: ("zero=1,shard=buffer", {"range": 2}), 3: ("zero=3", None)}
        with Dump() as dump:
            for (a, b), zero, dtype, fields in itertools.product(((2, 2), (4, 2), (2, 4)), how, ("BF16", "F16", "F32"),
                                                                 ((), ("exp_avg", "exp_avg_sq", "master"))):
                state, (rest, buffers) = state_of(shapes, fields, dtype), how[zero]
                layouts = self.there_and_back(dump, state, [{"match": "*"}], f"dp={a},{rest}", f"dp={b},{rest}", buffers)
                for dp, layout in zip((a, b), layouts):
                    for item in range(len(shapes) * (1 + len(fields))):
                        sizes = [layout[r, item].size for r in range(dp)]
                        cut = zero == 3 or item % (1 + len(fields))
                        whole = int(np.prod(state.tensors["param"][sorted(shapes)[item // (1 + len(fields))]].shape))
                        self.assertEqual(whole if cut else whole * dp, sum(sizes), f"{dp}, {rest}, item {item}: {sizes}")
                    if zero == 1 and fields: # ranges of the one buffer are equal, but for what fills up the last
                        held = [sum(layout[r, i].size for i in range(1, 4 * len(shapes), 4)) for r in range(dp)]
                        self.assertEqual([-(-221 // (2 * dp)) * 2] * (dp - 1), held[:-1])

    @staticmethod
    def qkv_rows(q, kv, size):
        """What each row of a fused tensor in Megatron's order is: per group of a key and a value head its queries first."""
        group = q // kv
        return [(kind, head) for g in range(kv)
                for kind, heads in (("q", range(g * group, (g + 1) * group)), ("k", (g,)), ("v", (g,)))
                for head in heads for _ in range(size)]

    def test_modelexpress_fused_qkv(self):
        """NVIDIA ModelExpress, fused QKV geometries (query heads, key and value heads, tp, head size): rows per group are
        queries, key, value; each global row on exactly one rank. The logical tensor here is [Q | K | V], so that the rule
        has to interleave; one that is stored interleaved is split as it is and must give the same rows."""
        with Dump() as dump:
            for q, kv, tp, size in ((32, 4, 2, 4), (32, 4, 1, 4), (64, 2, 8, 128), (24, 6, 4, 2)):
                rows = (q + 2 * kv) * size
                state = state_of({"qkv": (rows,)})
                blocks = [q * size, kv * size, kv * size]
                fused = {"axis": "tp", "dim": 0, "blocks": blocks, "interleave": kv}
                got = self.layout(dump, state, [{"match": "*", "split": fused}], oracle.Config(tp=tp))
                plain = self.layout(dump, state, [{"match": "*", "split": {"axis": "tp", "dim": 0}}], oracle.Config(tp=tp))
                kinds, seen = self.qkv_rows(q, kv, size), []
                start = {"q": 0, "k": q * size, "v": (q + kv) * size}
                for rank in range(tp):
                    mine = [int(e) for e in got[rank, 0]]
                    seen += mine
                    there = [kinds[int(e)] for e in plain[rank, 0]]
                    here = [next((k, (e - start[k]) // size) for k in "vkq" if e >= start[k]) for e in mine]
                    self.assertEqual(here, there, f"{q},{kv},{tp},{size}: rank {rank}")
                    if (q, kv, tp) == (64, 2, 8):
                        self.assertEqual({"k", "v"} <= {k for k, _ in here}, rank in (3, 7))
                        self.assertEqual({k for k, _ in here} == {"q"}, rank not in (3, 7))
                self.assertEqual(sorted(seen), list(range(rows)))
            # geometries that cannot be: groups that do not divide the heads, tp that does not divide the rows
            for blocks, pieces, tp in (([10, 4, 4], 4, 1), ([16, 4, 3], 4, 1), ([16, 4, 4], 5, 1), ([16, 4, 4], 4, 5), ([8, 4], 4, 7)):
                split = {"axis": "tp", "dim": 0, "blocks": blocks, "interleave": pieces}
                state = state_of({"qkv": (sum(blocks),)})
                got = dump.layout(spec_of(state, [{"match": "*", "split": split}]), oracle.Config(tp=tp))
                self.assertIsInstance(got, str, f"{blocks} in {pieces} over {tp}")
                self.assertIn('"qkv"', got)

    def test_dcp_resharding(self):
        """PyTorch test/distributed/checkpoint/test_dtensor_resharding.py: arange(16) as 4x4; placements on meshes of 2 and of
        2x2. From each to each: reshard/test_peers.c, dtensor_resharding."""
        state = state_of({"w": (4, 4)})

        def rules(placement):
            splits = [{"axis": a, "dim": 0, "kind": "ceil"} for a, p in zip(("dp", "tp"), placement) if p == "S"]
            return [{"match": "*", **({"split": splits} if splits else {})}]
        sides = [("dp=2", p) for p in ("S", "R")] + [("dp=2,tp=2", p) for p in ("RR", "RS", "SR", "SS")]
        with Dump() as dump:
            layouts = [self.layout(dump, state, rules(p), oracle.Config(c)) for c, p in sides]
        sizes = [sorted(x.shape[0] for x in layout.values()) for layout in layouts]
        self.assertEqual(sizes, [[2, 2], [4, 4], [4] * 4, [2] * 4, [2] * 4, [1] * 4])

    def test_torch_checkpointing_strided(self):
        """meta-pytorch torch_checkpointing test_default_resharder.py: global (8, 2) on a 2x2 mesh of dp and tp,
        StridedShard(0, split_factor=2) and Shard(0): rows by rank."""
        state = state_of({"w": (8, 2)})
        splits = [{"axis": "tp", "dim": 0, "kind": "ceil"}, {"axis": "dp", "dim": 0, "kind": "ceil"}]
        with Dump() as dump:
            got = self.layout(dump, state, [{"match": "*", "split": splits}], oracle.Config("tp=2,dp=2"))
            by_zero = self.layout(dump, state, [{"match": "*", "split": splits[0]}], oracle.Config("tp=2,dp=2,zero=3,shard=dim0"))
        rows = [[int(r[0]) // 2 for r in got[rank, 0]] for rank in range(4)]
        self.assertEqual(rows, [[0, 1], [4, 5], [2, 3], [6, 7]])
        for rank in range(4):
            self.assertTrue(np.array_equal(got[rank, 0], by_zero[rank, 0]))


if __name__ == "__main__":
    unittest.main()
