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

    def test_blocks(self):
        rng = random.Random(self.seed)
        cases = []
        for _ in range(CASES // 3):
            n = rng.randrange(1, 2000)
            cases.append((n, rng.getrandbits(64), rng.choice((1, 2, n, n + 5, rng.randrange(1, 200))), rng.randrange(4),
                          rng.randrange(n), rng.randrange(1, 300)))
        got = self.dump([f"blocks {n} {seed} {b} {e} {first} {count}" for n, seed, b, e, first, count in cases])
        for (n, seed, b, e, first, count), line in zip(cases, got, strict=True):
            line, places = [int(x) for x in line], [divmod(e * n + first + i, n) for i in range(count)]
            want = [oracle.at(n, seed, epoch, i, True, b) for epoch, i in places]
            self.assertEqual(want, line[:count], f"n={n} seed={seed} block={b}")
            self.assertEqual([x for (_, i), s in zip(places, want, strict=True) for x in (s, i)], line[count:])
        n, b = 1000, 64
        whole = [int(x) for x in self.dump([f"blocks {n} 7 {b} 0 0 {n}"])[0][:n]]
        self.assertEqual([list(range(i, min(n, i + b))) for i in range(0, n, b)],
                         [sorted(whole[i:i + b]) for i in range(0, n, b)])

    def random_parts(self, rng):
        k = rng.choice((1, 2, 3, 5, 64))
        return [(rng.randrange(1, 500), rng.choice((1, 2, rng.randrange(1, 2**rng.randrange(1, 26)))), rng.random() < 0.8, 0)
                if rng.random() < 0.8 else (rng.randrange(1, 500), rng.randrange(1, 9), True, rng.randrange(1, 60))
                for _ in range(k)]

    def test_mixtures(self):
        rng, cases = random.Random(self.seed), []
        for _ in range(CASES):
            cases.append((rng.getrandbits(64), rng.choice((0, rng.randrange(10**4), rng.getrandbits(62), 2**64 - 41)), 40,
                          self.random_parts(rng)))
        flat = [" ".join(f"{n} {w} {int(s)} {b}" for n, w, s, b in parts) for *_, parts in cases]
        got = self.dump([f"mix {seed} {first} {count} {f}" for (seed, first, count, _), f in zip(cases, flat, strict=True)])
        for (seed, first, count, parts), line in zip(cases, got, strict=True):
            for p, item in zip(range(first, first + count), line, strict=True):
                j, sample, before = oracle.mixed(parts, seed, p)
                self.assertEqual(f"{j}:{sample}:{before}:{sum(part[0] for part in parts[:j]) + sample}", item,
                                 f"parts={parts} seed={seed} position={p}")

    def test_mixtures_are_even(self):
        """Every part has had its share of any number of samples, within the bound of docs/order.md, and its own samples in its
        own order, each once an epoch; counts agree with what was handed out."""
        rng = random.Random(self.seed)
        for _ in range(CASES // 20):
            parts = self.random_parts(rng)
            flat, total = " ".join(f"{n} {w} {int(s)} {b}" for n, w, s, b in parts), sum(w for _, w, _, _ in parts)
            seed, n = rng.getrandbits(64), 3000
            items = [tuple(map(int, x.split(":"))) for x in self.dump([f"mix {seed} 0 {n} {flat}"])[0]]
            counts, drawn, bound = [0] * len(parts), [[] for _ in parts], 1 + np.log(len(parts))
            for p, (j, sample, before, _) in enumerate(items):
                self.assertEqual(counts[j], before)
                counts[j] += 1
                drawn[j].append(sample)
                for i, (_, w, _, _) in enumerate(parts):
                    self.assertTrue(-1 < counts[i] - (p + 1) * w / total < bound, f"{parts} part {i} after {p + 1}: {counts}")
            self.assertEqual(counts, [int(x) for x in self.dump([f"count {seed} {n} 0 {flat}"])[0]])
            for (m, *_), got in zip(parts, drawn, strict=True):
                for e in range(len(got) // m):
                    self.assertEqual(list(range(m)), sorted(got[e * m:(e + 1) * m]))

    def test_mixture_of_one(self):
        got = self.dump(["mix 9 5 100 77 3 1 0", "at 77 9 1 0 1 1", "at 77 9 1 1 0 77"])
        one = [x.split(":")[1] for x in got[0]]
        self.assertEqual(got[2][:28], one[72:])

    def test_refusals(self):
        got = self.dump(("at 0 1 1 0 0 1", f"at {2**63 + 1} 1 1 0 0 1", "batch 10 1 1 0 1 1 0 0 0",
                         "batch 10 1 1 4 2 1 0 2 0", "batch 10 1 1 4 2 1 0 0 1", "blocks 10 1 0 0 0 1", "mix 1 0 1",
                         "mix 1 0 1 10 0 1 0", "mix 1 0 1 0 1 1 0", f"mix 1 0 1 10 {2**32 - 1} 1 0 10 1 1 0",
                         f"mix 1 0 1 {2**63} 1 1 0 1 1 1 0", "mix 1 0 1 10 1 0 5", "mix 1 0 1" + " 5 1 1 0" * 65, f"batch 10 1 1 4 2 1 {2**64 - 4} 0 0"))
        self.assertEqual([["refused"]] * len(got), got)


if __name__ == "__main__":
    unittest.main()
