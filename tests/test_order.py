# SPDX-License-Identifier: Apache-2.0
"""order/ against a Python version written from docs/order.md; needs no daemon."""
import random
import subprocess
import unittest

import harness
import numpy as np
import order_oracle as oracle
from harness import SANITIZED

CASES = 100 if SANITIZED else harness.size(300, 900, 3000)


@harness.labels("repeats")
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

    def test_uneven_batches(self):
        """Ranks that compute unequally many micro steps: which samples each has, and that it has nothing after its own."""
        rng = random.Random(self.seed)
        for _ in range(CASES // 20):
            n, seed = rng.choice((1, 7, rng.randrange(1, 3000))), rng.getrandbits(64)
            runs = [(rng.randrange(1, 4), rng.randrange(1, 6)) for _ in range(rng.randrange(1, 5))]
            steps = [s for ranks, s in runs for _ in range(ranks)]
            mbs, dp, position = rng.randrange(1, 5), len(steps), rng.randrange(10000)
            g = rng.choice((sum(steps) * mbs, rng.randrange(1, sum(steps) * mbs + 1)))
            case = f"n={n} seed={seed} G={g} mbs={mbs} runs={runs} position={position}"

            def sample(p, n=n, seed=seed):
                return oracle.at(n, seed, p // n, p % n)

            want, flat = oracle.uneven_batch(sample, position, g, mbs, steps), " ".join(f"{r} {s}" for r, s in runs)
            got = self.dump([f"batch {n} {seed} 1 {g} {mbs} {dp} {position} {m} {r} {flat}" for m, r in want])
            batch = {sample(position + i) for i in range(g)}
            for turn, line in zip(want, got, strict=True):
                pairs = [(int(s), float(w)) for s, _, w in (item.partition(":") for item in line)]
                self.assertEqual(mbs, len(pairs))
                self.assertEqual(want[turn], [s for s, w in pairs if w], f"{case} {turn}")
                self.assertLessEqual({s for s, _ in pairs}, batch, "padding names samples of the batch")
            real = [x for turn in want for x in want[turn]]
            self.assertEqual([sample(position + i) for i in range(g)], real, case)
            self.assertEqual([["refused"]] * 3, self.dump([f"batch {n} {seed} 1 {bad_g} {mbs} {bad_dp} 0 0 0 {flat}" for bad_g, bad_dp in
                                                          ((sum(steps) * mbs + 1, dp), (g, dp + 1), (g, dp - 1 or 9))]))

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
            drawn, bound, of = [[] for _ in parts], 1 + np.log(len(parts)), np.array([x[0] for x in items])
            for j, sample, *_ in items:
                drawn[j].append(sample)
            counts = np.cumsum(np.eye(len(parts), dtype=np.int64)[of], axis=0) # of each part, after each sample
            self.assertTrue(np.array_equal([x[2] for x in items], counts[np.arange(n), of] - 1))
            off = counts - np.outer(np.arange(1, n + 1), [w / total for _, w, _, _ in parts])
            wrong = np.argwhere((off <= -1) | (off >= bound))
            self.assertEqual(0, len(wrong), f"{parts}: (sample, part) {wrong[:5].tolist()}")
            self.assertEqual(counts[-1].tolist(), [int(x) for x in self.dump([f"count {seed} {n} 0 {flat}"])[0]])
            for (m, *_), got in zip(parts, drawn, strict=True):
                for e in range(len(got) // m):
                    self.assertEqual(list(range(m)), sorted(got[e * m:(e + 1) * m]))

    def test_mixture_of_one(self):
        got = self.dump(["mix 9 5 100 77 3 1 0", "at 77 9 1 0 1 1", "at 77 9 1 1 0 77"])
        one = [x.split(":")[1] for x in got[0]]
        self.assertEqual(got[2][:28], one[72:])

    def random_lengths(self, rng, n):
        kind = rng.randrange(4)
        return [rng.randrange(3) if kind == 0 else rng.randrange(1, 5000) if kind == 1 else int(rng.lognormvariate(6, 1.5))
                if kind == 2 else 7 for _ in range(n)]

    def balanced(self, cases):
        """Of (lengths, a, b, mbs, dp) the numbers that are reported, and what each slot of each micro step and rank holds."""
        got = self.dump([f"balance {a} {b} {mbs} {dp} " + " ".join(map(str, lengths)) for lengths, a, b, mbs, dp in cases])
        for (lengths, _, _, mbs, dp), line in zip(cases, got, strict=True):
            slots, g = [int(x) for x in line[1:]], len(lengths)
            pairs = iter([(s, 1.0) if s < g else (s - g, 0.0) for s in slots])
            yield [int(x) for x in line[0].split(":")], [[[next(pairs) for _ in range(mbs)] for _ in range(dp)]
                                                         for _ in range(len(slots) // (mbs * dp))]

    def test_balanced(self):
        rng, cases = random.Random(self.seed), [([3, 3, 0, 0, 2, 2, 2, 0], 1, 0, 4, 2)]  # by count it is 6, by cost it would be 7
        for _ in range(CASES // 2):
            cases.append((self.random_lengths(rng, rng.randrange(1, 40)), rng.choice((0, 1, rng.randrange(2**20))),
                          rng.choice((0, 1, rng.randrange(2**10))), rng.randrange(1, 5), rng.randrange(1, 6)))
        for (lengths, a, b, mbs, dp), (said, slots) in zip(cases, self.balanced(cases), strict=True):
            case = f"lengths={lengths} a={a} b={b} mbs={mbs} dp={dp}"
            want, most, total = oracle.balanced(lengths, a, b, mbs, dp)
            self.assertEqual(want, slots, case)
            self.assertEqual([most, total], said[:2], case)
            g, cost = len(lengths), [a * s + b * s * s for s in lengths]
            split = [[cost[i % g] for m in range(len(slots)) for i in range((m * dp + r) * mbs, (m * dp + r + 1) * mbs)]
                     for r in range(dp)]
            self.assertEqual([max(map(sum, split)), sum(map(sum, split))], said[2:], case)
            real = [i for ranks in slots for pairs in ranks for i, w in pairs if w]
            self.assertEqual(list(range(g)), sorted(real), case)

    def best(self, costs, dp, k):
        """The smallest that the greatest of dp sums can be, k costs in each: all ways there are."""
        costs, sums, counts = sorted(costs, reverse=True), [0] * dp, [0] * dp
        least = sum(costs)

        def place(i):
            nonlocal least
            if i == len(costs):
                least = max(sums)
            for r in range(dp) if i < len(costs) else ():
                if counts[r] == k or sums[r] + costs[i] >= least or (sums[r], counts[r]) in zip(sums[:r], counts[:r]):
                    continue
                sums[r], counts[r] = sums[r] + costs[i], counts[r] + 1
                place(i + 1)
                sums[r], counts[r] = sums[r] - costs[i], counts[r] - 1
        place(0)
        return least

    def test_balanced_bound(self):
        """At most 2 - 1/k times the best there is, found by trying all; never more than by count."""
        rng, cases = random.Random(self.seed), []
        for _ in range(CASES):
            dp, mbs = rng.randrange(2, 4), rng.randrange(1, 3)
            cases.append((self.random_lengths(rng, rng.randrange(1, 10)), rng.randrange(3), rng.randrange(1, 3), mbs, dp))
        worst = 0
        for (lengths, a, b, mbs, dp), (said, slots) in zip(cases, self.balanced(cases), strict=True):
            k, costs = len(slots) * mbs, [a * s + b * s * s for s in lengths]
            best = self.best(costs + [min(costs)] * (k * dp - len(costs)), dp, k)
            self.assertLessEqual(said[0] * k, best * (2 * k - 1), f"lengths={lengths} a={a} b={b} mbs={mbs} dp={dp}: {best}")
            self.assertLessEqual(said[0], said[2])
            worst = max(worst, said[0] / best if best else 1)
        print(f"at worst {worst:.3f} of the best")

    def test_slices(self):
        rng, cases = random.Random(self.seed), []
        for _ in range(CASES):
            cases.append((rng.choice((rng.randrange(1, 50), rng.randrange(1, 2000))), rng.randrange(1, 17), rng.random() < 0.5))
        got = self.dump([f"slices {n} {cp} {int(zigzag)}" for n, cp, zigzag in cases])
        for (n, cp, zigzag), line in zip(cases, got, strict=True):
            pieces = [tuple(map(int, x.split(":"))) for x in line]
            per = len(pieces) // cp
            tokens = [[t for first, length, _ in pieces[r * per:(r + 1) * per] for t in range(first, first + length)]
                      for r in range(cp)]
            self.assertEqual(oracle.sequence_slices(n, cp, zigzag), tokens, f"{n} tokens, cp={cp}, zigzag={zigzag}")
            real = sorted(t for first, _, real in pieces for t in range(first, first + real))
            self.assertEqual(list(range(n)), real)
            if zigzag:  # token t attends to t + 1: all ranks have the same to do
                self.assertEqual(1, len({sum(t + 1 for t in mine) for mine in tokens}))

    def test_refusals(self):
        got = self.dump(("at 0 1 1 0 0 1", f"at {2**63 + 1} 1 1 0 0 1", "batch 10 1 1 0 1 1 0 0 0",
                         "batch 10 1 1 4 2 1 0 2 0", "batch 10 1 1 4 2 1 0 0 1", "blocks 10 1 0 0 0 1", "mix 1 0 1",
                         "mix 1 0 1 10 0 1 0", "mix 1 0 1 0 1 1 0", f"mix 1 0 1 10 {2**32 - 1} 1 0 10 1 1 0",
                         f"mix 1 0 1 {2**63} 1 1 0 1 1 1 0", "mix 1 0 1 10 1 0 5", "mix 1 0 1" + " 5 1 1 0" * 65, f"batch 10 1 1 4 2 1 {2**64 - 4} 0 0"))
        got += self.dump(("balance 1 1 1 1", "balance 1 1 0 1 5", "balance 1 1 1 0 5", f"balance 0 1 1 1 {2**32}",
                          f"balance {2**63} 0 1 1 2", f"balance {2**63} {2**63} 1 1 1", f"balance 1 0 2 1 {2**63} 1",
                          f"balance 0 2 1 1 {2**63}", "slices 0 1 1", "slices 5 0 1", f"slices {2**63 + 1} 2 1"))
        self.assertEqual([["refused"]] * len(got), got)


if __name__ == "__main__":
    unittest.main()
