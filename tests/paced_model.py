# SPDX-License-Identifier: Apache-2.0
"""What a step of tests/paced_trainer.c takes, from what the program does and nothing of planner/: each stage's micro-batches one
after another, each message at the rate of its link. And programs of that kind at random."""
import re

LAYERS, HEADS, SEQ, BATCH, MICRO, NODES, PER_NODE = 6, 8, 256, 12, 2, 3, 2
INTRA = (1e9, 5e-5)  # between processes of a machine: bytes a second, seconds a message
LATENCY_S = 1.5e-4  # of a link between machines


def random_program(rng, fastest_mbit=2000):
    """(Mbit/s of each machine's link, hidden size, microseconds of a layer for a sample)."""
    return round(50 * (fastest_mbit / 50) ** rng.random()), rng.choice([64, 96, 128, 192, 256]), round(2000 * 15 ** rng.random())


def flops(hidden, layer_us):
    """Of a device of which a layer gets about half of the peak."""
    return SEQ * (24 * hidden ** 2 + 2 * SEQ * hidden) / (layer_us * 1e-6) / 0.55


def configs(devices, tps=(1, 2), pps=(1, 2, 3)):
    return [(tp, pp, dp) for tp in tps for pp in pps for dp in range(1, devices // (tp * pp) + 1)]


def text(config):
    return "tp={},pp={},dp={}".format(*config)


def parsed(config):
    degrees = dict(re.findall(r"(\w+)=(\d+)", config))
    return tuple(int(degrees.get(k, 1)) for k in ("tp", "pp", "dp"))


class Step:
    def __init__(self, config, program):
        (self.tp, self.pp, self.dp), (mbit, self.hidden, self.layer_us) = config, program
        self.link = mbit * 1e6 / 8
        self.cut = [LAYERS // self.pp + (s < LAYERS % self.pp) for s in range(self.pp)]
        self.micro_batches = -(-BATCH // (MICRO * self.dp))
        self.values = MICRO * SEQ * self.hidden * 2  # bytes of a micro-batch's activations

    def node(self, p, d, t):
        return (t + self.tp * (d + self.dp * p)) // PER_NODE

    def message(self, size, flows):
        """Seconds of one of so many messages that leave a machine together; 0: none does."""
        return size * flows / self.link + LATENCY_S if flows else size / INTRA[0] + INTRA[1]

    def hop(self, p):
        """From stage p to the next: each rank of tp sends its share."""
        pairs = [(self.node(p, d, t), self.node(p + 1, d, t)) for d in range(self.dp) for t in range(self.tp)]
        across = [(a, b) for a, b in pairs if a != b]
        flows = max((max(sum(a == n for a, _ in across), sum(b == n for _, b in across)) for n in range(NODES)), default=0)
        return self.message(self.values / self.tp, flows)

    def phase(self, times, hops):
        """All micro-batches through the stages in order. A stage goes on while its values are on their way."""
        free, link = [0.0] * self.pp, [0.0] * self.pp
        for _ in range(self.micro_batches):
            arrived = 0.0
            for i, seconds in enumerate(times):
                free[i] = max(free[i], arrived) + seconds
                if i < len(hops):
                    arrived = link[i] = max(free[i], link[i]) + hops[i]
        return max(free)

    def sums(self, size, ring):
        """An all-reduce over nodes in this order."""
        n = len(ring)
        out = [a for a, b in zip(ring, ring[1:] + ring[:1]) if a != b]
        return 2 * (n - 1) * self.message(size / n, max((out.count(a) for a in out), default=0) * self.rings(ring))

    def rings(self, ring):
        """How many rings like this one a machine's devices are in."""
        return self.tp if len(set(ring)) > 1 else 1

    def seconds(self):
        layer = (self.layer_us / 10 + self.layer_us * MICRO / self.tp) * 1e-6
        tp = 2 * (self.tp - 1) * (self.values / self.tp / INTRA[0] + INTRA[1]) * 2  # a layer has two sums each way
        hops = [self.hop(p) for p in range(self.pp - 1)]
        total = self.phase([n * (layer + tp) for n in self.cut], hops)
        total += self.phase([n * (2 * layer + tp) for n in reversed(self.cut)], hops[::-1])
        if self.dp > 1:
            sizes = [n * 12 * self.hidden ** 2 // self.tp * 4 for n in self.cut]
            total += max(self.sums(size, [self.node(p, d, 0) for d in range(self.dp)]) for p, size in enumerate(sizes))
        return total


def seconds(config, program):
    return Step(config, program).seconds()
