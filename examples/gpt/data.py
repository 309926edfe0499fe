# SPDX-License-Identifier: Apache-2.0
"""Real text cut into records, and which records each data-parallel rank trains on."""
import math

import torch
from torch.utils.data import Dataset

PAD = -1      # the sample id of a slot that only fills up a micro-batch: it weighs nothing
IGNORE = -100  # the target of a token that does not count; cross_entropy's default


def text(path=None):
    """The Python language reference, which every Python brings along, or a file."""
    if path:
        with open(path, encoding="utf-8") as f:
            return f.read()
    from pydoc_data.topics import topics
    return "\n".join(topics.values())


class Records(Dataset):
    """Record i: its id, `length` bytes of text, and the bytes that follow each of them."""

    def __init__(self, string, length, count=None):
        raw = torch.tensor(list(string.encode()), dtype=torch.int64)
        fit = (len(raw) - 1) // length
        self.length, self.count = length, fit if count is None else count
        if self.count > fit:
            raise ValueError(f"the text has {fit} records of {length} bytes, not {self.count}: give a longer --text")
        self.tokens = raw[:self.count * length + 1]

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if i == PAD:
            return PAD, torch.zeros(self.length, dtype=torch.int64), torch.full((self.length,), IGNORE)
        at = i * self.length
        return i, self.tokens[at:at + self.length], self.tokens[at + 1:at + 1 + self.length]


def blank(records, micro_batch, micro_batches):
    """Inputs and targets of a step that trains on padding only."""
    _, inputs, targets = records[PAD]
    return [[torch.stack([x] * micro_batch)] * micro_batches for x in (inputs, targets)]


def shuffled(count, seed):
    """order(position) -> sample id, for positions that go on from epoch to epoch; each epoch in an order of its own, any part
    of it computed from its index: docs/order.md, in Python."""
    mask, gamma = (1 << 64) - 1, 0x9E3779B97F4A7C15

    def mix(z):
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        return z ^ z >> 31

    def stream(key, i):
        return mix(key + (i + 1) * gamma & mask)

    rows = max(8, math.isqrt(count - 1) + 1)
    rows += rows % 2
    columns = max(8, -(-count // rows))

    def order(position):
        epoch, x = divmod(position, count)
        key = mix(stream(seed, 0) + epoch & mask)
        while True:
            a, b = divmod(x, columns)
            for r in range(0, 12, 2):
                a = (a + (stream(stream(key, r), b) * rows >> 64)) % rows
                b = (b + (stream(stream(key, r + 1), a) * columns >> 64)) % columns
            x = a * columns + b
            if x < count:
                return x
    return order


class GlobalBatches:
    """A batch sampler: `micro_batches` lists of `micro_batch` sample ids make this rank's share of a step, for ever.

    A step takes the next `global_batch` samples of the order. Every rank runs the same number of micro-batches; slots
    beyond the global batch are PAD.
    """

    def __init__(self, order, global_batch, micro_batch, rank=0, ranks=1, start=0):
        self.order, self.global_batch, self.micro_batch = order, global_batch, micro_batch
        self.rank, self.ranks, self.position = rank, ranks, start
        self.micro_batches = -(-global_batch // (micro_batch * ranks))

    def __iter__(self):
        while True:
            for m in range(self.micro_batches):
                first = (m * self.ranks + self.rank) * self.micro_batch
                yield [self.order(self.position + slot) if slot < self.global_batch else PAD
                       for slot in range(first, first + self.micro_batch)]
            self.position += self.global_batch
