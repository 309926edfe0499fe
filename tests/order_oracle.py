# SPDX-License-Identifier: Apache-2.0
"""The order of samples and the division of batches, written from docs/order.md and nothing else. Slow and obvious."""
import math

MASK = 2**64 - 1


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def splitmix(s, i):
    return mix((s + (i + 1) * 0x9E3779B97F4A7C15) & MASK)


def at(n, seed, epoch, i, shuffled=True, block=0):
    if not shuffled:
        return i
    if block:
        b = i // block
        return b * block + at(min(n - b * block, block), splitmix(seed, 1 + b), epoch, i - b * block)
    rows = max(8, math.isqrt(n - 1) + 1)
    rows += rows % 2
    columns = max(8, -(-n // rows))
    key = mix((splitmix(seed, 0) + epoch) & MASK)
    while True:
        a, b = divmod(i, columns)
        for r in range(0, 12, 2):
            a = (a + (splitmix(splitmix(key, r), b) * rows >> 64)) % rows
            b = (b + (splitmix(splitmix(key, r + 1), a) * columns >> 64)) % columns
        i = a * columns + b
        if i < n:
            return i


def mixed(parts, seed, position):
    """(part, sample in it, how many of it came before); parts: [(n, weight, shuffled, block)]."""
    p, rest = position, sum(part[1] for part in parts)
    for j in sorted(range(len(parts)), key=lambda j: -parts[j][1]):
        n, weight, shuffled, block = parts[j]
        c = p * weight // rest
        if (p + 1) * weight // rest > c:
            own = splitmix(seed, 1 + j) if len(parts) > 1 else seed
            return j, at(n, own, c // n, c % n, shuffled, block), c
        p, rest = p - c, rest - weight
    raise AssertionError("the last part takes what is left")


def micro_batch(sample, position, g, mbs, dp, m, rank):
    """[(sample, weight)] of one rank's micro step; sample(position) is the global order."""
    slots = [m * mbs * dp + rank * mbs + k for k in range(mbs)]
    return [(sample(position + (s if s < g else s % g)), 1.0 if s < g else 0.0) for s in slots]


def uneven_batch(sample, position, g, mbs, steps):
    """{(m, rank): the samples of weight 1}, where rank r computes steps[r] micro steps: slots are dealt out one after another."""
    turns = [(m, r) for m in range(max(steps)) for r in range(len(steps)) if m < steps[r]]
    slots = [turn for turn in turns for _ in range(mbs)]
    had = {(m, r): [] for m in range(max(steps)) for r in range(len(steps))}
    for i, turn in enumerate(slots[:g]):
        had[turn].append(sample(position + i))
    return had


def balanced(lengths, a, b, mbs, dp):
    """(slots, max, total), slots[m][rank]: [(offset, weight)]."""
    g, n_micro = len(lengths), -(-len(lengths) // (mbs * dp))
    cost = [a * s + b * s * s for s in lengths]
    falling = sorted(range(g), key=lambda i: (-cost[i], i))
    items = [(i, 1.0) for i in falling] + [(falling[-1], 0.0)] * (n_micro * mbs * dp - g)
    slots = [[[] for _ in range(dp)] for _ in range(n_micro)]

    def spent(lists):
        return sum(cost[i] for items in lists for i, _ in items)

    def had(r):
        return [slots[m][r] for m in range(n_micro)]
    for item in items:
        _, _, r = min((spent(had(r)), n, r) for r in range(dp) if (n := sum(map(len, had(r)))) < n_micro * mbs)
        _, _, m = min((spent([x]), len(x), m) for m, x in enumerate(had(r)) if len(x) < mbs)
        slots[m][r].append(item)
    by_count = [[[pair for pair in micro_batch(lambda p: p, 0, g, mbs, dp, m, r)] for r in range(dp)] for m in range(n_micro)]
    most, most_by_count = (max(spent(s[m][r] for m in range(n_micro)) for r in range(dp)) for s in (slots, by_count))
    if most_by_count < most:
        slots, most = by_count, most_by_count
    return slots, most, sum(spent(ranks) for ranks in slots)


def sequence_slices(length, cp, zigzag):
    """[[positions of the padded sequence]] of each rank."""
    chunks = 2 * cp if zigzag else cp
    size = -(-length // chunks)
    chunk = [list(range(i * size, (i + 1) * size)) for i in range(chunks)]
    return [chunk[r] + (chunk[-1 - r] if zigzag else []) for r in range(cp)]
