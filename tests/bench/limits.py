# SPDX-License-Identifier: Apache-2.0
"""What ptc is compared with: measured by ptc-bench-measure around each round, and how ratios come from it. Standard library only."""
import json
import os
import statistics
import subprocess
import time

GIB, MIB = 1 << 30, 1 << 20
STREAMS = 8 # connections of a switch between four daemons, at least
CPUCLOCK_SCHED = 2 # of a process, all its threads


class Failed(Exception):
    pass


def cpu_of(pid):
    """By the clock that clock_getcpuclockid(3) names: exact, where /proc counts 10 ms."""
    return time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED)


def cpu_seconds(cluster):
    """Of its daemons."""
    return sum(cpu_of(node.pid()) for node in cluster.nodes.values())


def measure(args, scenario, directory, mib, rounds, *rest):
    argv = [os.path.join(args.build, "tests", "bench", "ptc-bench-measure"), scenario, directory, str(mib), str(rounds),
            *map(str, rest)]
    r = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       check=False)
    if r.returncode:
        raise Failed(r.stderr.strip() or f"{argv[0]} ended with {r.returncode}")
    return json.loads(r.stdout)["rounds"]


def around(values, i):
    """The median of the samples of a round and of its neighbours: what was measured shortly before and after it."""
    return statistics.median(values[max(0, i - 1):i + 2])


def spread(values):
    """How far a limit's samples lie apart, as a share of their median: how much a ratio to it can be trusted."""
    return (max(values) - min(values)) / statistics.median(values)


def summary(rounds, subject, limit):
    """Medians of one measurement and of its limit; the ratio is taken to the limit's samples around each round."""
    def per_byte(name, what):
        return [r[name][what] / r[name]["bytes"] for r in rounds]

    def ratio(what):
        limits = per_byte(limit, what)
        return statistics.median(each / around(limits, i) for i, each in enumerate(per_byte(subject, what)))

    def median(name, what):
        return statistics.median(per_byte(name, what))

    return {"gb_per_s": 1e-9 / median(subject, "seconds"), "cpu_s_per_gb": 1e9 * median(subject, "cpu_seconds"),
            "limit_gb_per_s": 1e-9 / median(limit, "seconds"), "limit_cpu_s_per_gb": 1e9 * median(limit, "cpu_seconds"),
            "limit_spread": spread(per_byte(limit, "seconds")),
            "ratio": ratio("seconds"), "cpu_ratio": ratio("cpu_seconds"), "rounds": len(rounds)}


class Limits:
    """The time that the bytes of a switch need at the rates of loopback TCP and memcpy. Both rates are measured right before and right
    after each switch, twice each time."""

    def __init__(self, args, work, transport, threads):
        self.args, self.work, self.transport, self.threads = args, work, transport, threads
        self.size = int(min(256 * MIB, max(16 * MIB, args.gib * GIB / 4)))
        self.before = self.sample(STREAMS)
        self.all = list(self.before)

    def sample(self, streams):
        rounds = measure(self.args, "limit", self.work, self.size // MIB, 2, streams, self.transport, self.size, self.threads,
                         self.size)
        return [{(name, what): r[name][what] / r[name]["bytes"] for name in ("moved", "copied") for what in ("seconds", "cpu_seconds")}
                for r in rounds]

    def of(self, streams, moved, copied):
        """The limits of a switch that has just ended: (seconds, CPU seconds)."""
        after = self.sample(streams)
        samples, self.before = self.before + after, after
        self.all += after
        return tuple(moved * statistics.median(s["moved", what] for s in samples) +
                     copied * statistics.median(s["copied", what] for s in samples) for what in ("seconds", "cpu_seconds"))

    def spread(self, moved=True):
        """Of the rate that varied most; moved: whether bytes moved at all."""
        return max(spread([s[name, "seconds"] for s in self.all]) for name in (("copied", "moved") if moved else ("copied",)))
