# SPDX-License-Identifier: Apache-2.0
"""reshard/'s layouts against the oracle, element by element, for thousands of ranks; needs no daemon."""
import json
import subprocess
import unittest

import harness
import numpy as np
import oracle
import state as states
from harness import LONG, SANITIZED


class Layout(harness.Case):
    def dump(self, state, rules, configs):
        """For each configuration {(rank, item): (shape, [(padding, buf_off, [(off, ext, stride)])])}, or an error text."""
        spec = {"version": 1, "name": "layout", "rules": rules, "fields": {f: {"dtype": d} for f, d in state.fields.items()},
                "tensors": [{"name": n, "dtype": t.dtype, "shape": list(t.shape)}
                            for n, t in state.tensors["param"].items()]}
        with open(self.path("job.yaml"), "w") as f:
            json.dump(spec, f)
        out = subprocess.run([harness.binary("tests/layout-dump"), self.path("job.yaml")], text=True, check=True,
                             input="".join(f"{c}\n" for c in configs), stdout=subprocess.PIPE).stdout
        results, current = [], {}
        for line in out.splitlines():
            kind, _, rest = line.partition(" ")
            if kind in ("end", "error"):
                results.append(current if kind == "end" else rest)
                current = {}
                continue
            rank, name, *numbers = rest.split(" ")
            numbers = [int(n) for n in numbers]
            if kind == "item":
                current[int(rank), name] = (tuple(numbers[1:]), [])
            else:
                triples = [tuple(numbers[i:i + 3]) for i in range(3, len(numbers), 3)]
                current[int(rank), name][1].append((numbers[0], numbers[1], triples))
        return results

    @staticmethod
    def assemble(array, shape, regions):
        """The rank's tensor as the regions describe it. -1 marks what no region covers, -2 what two do."""
        flat = np.full(int(np.prod(shape, dtype=np.int64)), -1, dtype=np.int64)
        numbers = np.arange(array.size, dtype=np.int64).reshape(array.shape)
        for padding, buf_off, triples in regions:
            at = np.full([t[1] for t in triples], buf_off, dtype=np.int64)
            for d, (_, ext, stride) in enumerate(triples):
                at = at + (np.arange(ext) * stride).reshape([-1 if i == d else 1 for i in range(len(triples))])
            value = -3 if padding else numbers[tuple(slice(o, o + e) for o, e, _ in triples)]
            flat[at] = np.where(flat[at] != -1, -2, value)
        return flat.reshape(shape)

    def compare(self, state, rules, config, dumped):
        """Compares element numbers, so that equal values in different places are told apart. Padding is -3."""
        numbered = states.State(state.fields)
        for field, tensors in state.tensors.items():
            for name, t in tensors.items():
                numbered.tensors[field][name] = states.Tensor(
                    t.dtype, t.shape, np.arange(1, t.array.size + 1, dtype=np.int64).reshape(t.array.shape))
        for rank in range(config.world):
            want = {name if field == "param" else f"{name}:{field}": a - np.where(a == 0, 3, 1)
                    for field, tensors in oracle.rank_tensors(numbered, config, rules, rank).items()
                    for name, a in tensors.items()}
            got = {}
            for (r, item), (shape, regions) in dumped.items():
                name, _, field = item.partition(":")
                if r == rank and np.prod(shape, dtype=np.int64):
                    got[item] = self.assemble(state.tensors[field or "param"][name].array, shape, regions)
            self.assertEqual(set(want), set(got), f"{config}: rank {rank}")
            for item, a in want.items():
                self.assertEqual(a.shape, got[item].shape, f"{config}: rank {rank}: {item}")
                if not np.array_equal(a, got[item]):
                    self.fail(f"{config}: rank {rank}: {item}: want {a.tolist()}\ngot {got[item].tolist()}")

    def test_random(self):
        rng = np.random.default_rng(self.seed)
        ranks = 0
        for heads, tps in states.VARIANTS:
            s = states.random_state(rng, heads, tiny=20)
            configs = [oracle.random_config(rng, 24, tps) for _ in range(300 if LONG else 10 if SANITIZED else 25)]
            for config, dumped in zip(configs, self.dump(s, states.rules(heads), configs), strict=True):
                self.assertIsInstance(dumped, dict, f"{config}: {dumped}")
                self.compare(s, states.rules(heads), config, dumped)
                ranks += config.world
        print(f"{ranks} ranks compared")

    def test_refusals(self):
        """What does not divide is refused with tensor and sizes in the message."""
        s = states.State({"exp_avg": "F32"})
        s.add(np.random.default_rng(1), "w", "F32", (6, 4))
        for rules, config, words in (
                ([{"match": "*", "split": {"axis": "tp", "dim": 0}}], "tp=4", ("w", "6", "4")),
                ([{"match": "*", "split": {"axis": "tp", "dim": 0, "kind": "even", "blocks": [3, 3]}}], "tp=2", ("w", "3")),
                ([{"match": "*", "split": {"axis": "tp", "dim": 0, "unit": 2}}], "tp=2", ("w", "6", "2"))):
            (result,) = self.dump(s, rules, [config])
            self.assertIsInstance(result, str, f"{rules} {config} was not refused")
            for word in words:
                self.assertIn(word, result)


if __name__ == "__main__":
    unittest.main()
