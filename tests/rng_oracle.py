# SPDX-License-Identifier: Apache-2.0
"""What every rank's random streams must give, in one process, written from docs/job.md ("Random streams"): which rank begins with
whose state, and what is derived for the others. Shares no code with ptc."""
import copy
import hashlib
import random

import numpy as np
import torch

# name -> (rule, seed of the program's own: by coordinates for streams that differ, the same within tp for those that agree)
STREAMS = {
    "torch": "agree", "python": "agree", "numpy": "agree", "aug": "agree", "masks/data-parallel-rng": "agree",
    "noise": "differ", "shuffle": "differ", "masks/model-parallel-rng": "differ",
}


def degrees(config):
    """(tp, pp, dp, cp) of "tp=2,dp=2"."""
    said = dict(part.split("=") for part in config.split(","))
    return tuple(int(said.get(axis, 1)) for axis in ("tp", "pp", "dp", "cp"))


def places(config):
    """All (tp, pp, dp, cp) of a configuration."""
    tp, pp, dp, cp = degrees(config)
    return [(t, p, d, c) for p in range(pp) for d in range(dp) for c in range(cp) for t in range(tp)]


def digest(seed, stream, step, place, rule):
    tp, pp, dp, cp = place
    text = f"ptc rng 1 seed={seed} stream={stream} step={step} pp={pp} dp={dp} cp={cp}"
    return hashlib.sha256((text + (f" tp={tp}" if rule == "differ" else "")).encode()).digest()


def own_seed(stream, generation, place):
    """What the test's program seeds a stream with; another number in every generation."""
    tp, pp, dp, cp = place
    at = (pp * 10 + dp) * 10 + cp
    return 1000 * generation + 10 * at + (tp if STREAMS[stream] == "differ" else 0) + sorted(STREAMS).index(stream) * 100000


def make(stream, number):
    """A generator as the program makes it of a small number."""
    if stream == "python" or stream == "shuffle":
        return random.Random(number)
    if stream == "numpy":
        return np.random.RandomState(number)
    if stream == "noise":
        return np.random.default_rng(number)
    return torch.Generator().manual_seed(number)


def derive(stream, key):
    """One that begins with 32 bytes of docs/job.md's."""
    if stream in ("python", "shuffle"):
        return random.Random(int.from_bytes(key, "little"))
    if stream == "numpy":
        return np.random.RandomState(np.random.MT19937(int.from_bytes(key, "little")))
    if stream == "noise":
        return np.random.Generator(np.random.PCG64(int.from_bytes(key, "little")))
    return torch.Generator().manual_seed(int.from_bytes(key[:8], "little"))


def seed_all(seed, step, place):
    """This process's own generators, as those of a rank that is new there."""
    new = {name: derive(name, digest(seed, name, step, place, "agree")) for name in ("torch", "python", "numpy")}
    torch.set_rng_state(new["torch"].get_state())
    random.setstate(new["python"].getstate())
    np.random.set_state(new["numpy"].get_state())


def draw(generator):
    if isinstance(generator, torch.Generator):
        return [torch.rand((), generator=generator, dtype=torch.float64).item(), torch.randn((), generator=generator).item()]
    if isinstance(generator, random.Random):
        return [generator.random(), generator.gauss(0, 1), generator.randrange(1 << 20)]
    if isinstance(generator, np.random.RandomState):
        return [generator.rand(), generator.randn()]
    return [float(generator.random()), int(generator.integers(1 << 20))]


def clone(generator):
    return generator.clone_state() if isinstance(generator, torch.Generator) else copy.deepcopy(generator)


class Oracle:
    """{place: {stream: generator}} of the ranks that there are."""

    def __init__(self, seed, config, streams=None):
        self.seed, self.streams = seed, {n: STREAMS[n] for n in streams or STREAMS}
        self.ranks = {p: {n: make(n, own_seed(n, 1, p)) for n in self.streams} for p in places(config)}

    def copy(self):
        o = copy.copy(self)
        o.ranks = {p: {n: clone(g) for n, g in streams.items()} for p, streams in self.ranks.items()}
        return o

    def _next(self, stream, rule, place, step):
        if place in self.ranks:
            return clone(self.ranks[place][stream])
        group = [p for p in sorted(self.ranks) if p[1:] == place[1:]]
        if rule == "agree" and group:
            return clone(self.ranks[group[0]][stream])
        return derive(stream, digest(self.seed, stream, step, place, rule))

    def resize(self, config, step):
        self.ranks = {p: {n: self._next(n, rule, p, step) for n, rule in self.streams.items()} for p in places(config)}

    def step(self):
        """{place: {stream: numbers}}"""
        return {p: {n: draw(g) for n, g in streams.items()} for p, streams in self.ranks.items()}
