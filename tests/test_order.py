# SPDX-License-Identifier: Apache-2.0
"""order/ against a Python version written from docs/order.md; needs no daemon."""
import random
import subprocess
import unittest

import harness
import numpy as np
import order_oracle as oracle
from harness import LONG, SANITIZED

CASES = 3000 if LONG else 100 if SANITIZED else 300


class Order(harness.Case):
    def dump(self, lines):
        out = subprocess.run([harness.binary("tests/order-dump")], text=True, check=True, stdout=subprocess.PIPE,
                             input="".join(line + "\n" for line in lines)).stdout.splitlines()
        self.assertEqual(len(lines), len(out))
        return [line.split() for line in out]

    def random_size(self, rng):
        if rng.random() < 0.2:
            return rng.choice((1, 2, 3, 63, 64, 65, 2**32, 2**62 + 1, 2**63 - 1, 2**63))
        return max(1, min(2**63, int(2 ** rng.uniform(0, 63)) + rng.randrange(100)))

    def test_same_sequence(self):
        rng = random.Random(self.seed)
        cases = []
        for _ in range(CASES):
            n = self.random_size(rng)
            count = min(n, 40)
            cases.append((n, rng.choice((0, 1, rng.getrandbits(64), 2**64 - 1)), rng.random() < 0.9,
                          rng.choice((0, 1, rng.getrandbits(64))), rng.randrange(n - count + 1), count))
        got = self.dump([f"at {n} {seed} {int(s)} {epoch} {first} {count}" for n, seed, s, epoch, first, count in cases])
        for (n, seed, shuffled, epoch, first, count), line in zip(cases, got, strict=True):
            want = [oracle.at(n, seed, epoch, i, shuffled) for i in range(first, first + count)]
            self.assertEqual(want, [int(x) for x in line], f"n={n} seed={seed} epoch={epoch} from {first}")

    def test_find_is_the_inverse(self):
        rng = random.Random(self.seed)
        cases = [(rng.randrange(1, 400), rng.getrandbits(64), rng.randrange(5)) for _ in range(CASES // 10)]
        got = self.dump([f"{word} {n} {seed} 1 {epoch} 0 {n}" for n, seed, epoch in cases for word in ("at", "find")])
        for (n, _, _), at, find in zip(cases, got[::2], got[1::2], strict=True):
            at, find = np.array(at, dtype=np.uint64), np.array(find, dtype=np.uint64)
            np.testing.assert_array_equal(np.sort(at), np.arange(n, dtype=np.uint64))
            np.testing.assert_array_equal(np.argsort(at), find)

    def test_batches(self):
        """All ranks' micro batches of some steps, sample by sample; and together they are the global order."""
        rng = random.Random(self.seed)
        for _ in range(CASES // 20):
            n, seed, shuffled = rng.choice((1, 7, rng.randrange(1, 3000))), rng.getrandbits(64), rng.random() < 0.8
            g, mbs, dp = rng.randrange(1, 60), rng.randrange(1, 7), rng.randrange(1, 7)
            position = rng.choice((0, rng.randrange(10000), 2**64 - 1 - g))
            slots = [(m, r) for m in range(-(-g // (mbs * dp))) for r in range(dp)]
            case = f"n={n} seed={seed} G={g} mbs={mbs} dp={dp} position={position}"

            def sample(p, n=n, seed=seed, shuffled=shuffled):
                return oracle.at(n, seed, p // n, p % n, shuffled)

            got = self.dump([f"batch {n} {seed} {int(shuffled)} {g} {mbs} {dp} {position} {m} {r}" for m, r in slots])
            real = []
            for (m, r), line in zip(slots, got, strict=True):
                pairs = [(int(s), float(w)) for s, _, w in (item.partition(":") for item in line)]
                self.assertEqual(oracle.micro_batch(sample, position, g, mbs, dp, m, r), pairs, f"{case} m={m} r={r}")
                real += [s for s, w in pairs if w]
            self.assertEqual([sample(position + i) for i in range(g)], real, case)

    def test_refusals(self):
        got = self.dump(("at 0 1 1 0 0 1", f"at {2**63 + 1} 1 1 0 0 1", "batch 10 1 1 0 1 1 0 0 0",
                         "batch 10 1 1 4 2 1 0 2 0", "batch 10 1 1 4 2 1 0 0 1", f"batch 10 1 1 4 2 1 {2**64 - 4} 0 0"))
        self.assertEqual([["refused"]] * len(got), got)


if __name__ == "__main__":
    unittest.main()
