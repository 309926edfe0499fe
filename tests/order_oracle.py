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
