# SPDX-License-Identifier: Apache-2.0
"""Scenarios of ptc-bench with real daemons and real ranks (rank.c): what a rank sees of a boundary, a snapshot and a restore, and
what a live switch takes. Standard library only."""
import contextlib
import glob
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time

import bench_state as state
from cluster import Cluster, ClusterError, MARK, wait_for
from limits import around, cpu_of, cpu_seconds, Limits, STREAMS, spread

MIB, GIB = 1 << 20, 1 << 30
SETTLE_S = 1 # between two stops: ranks measure the limit, staging memory is read, old chunks are given back


class Job:
    """One live job on a cluster of its own."""

    def __init__(self, args, work, nodes, devices, copy="lean", pages="small", spin=0, size=None, transport="unix", near=False):
        size = int(size or args.gib * GIB)
        self.hidden, self.shapes = state.shapes(size)
        self.layers = sum(name.endswith(".norm1.weight") for name in self.shapes)
        self.rows = self.shapes["embed.weight"][0]
        self.bytes = sum(state.elements(s) for s in self.shapes.values()) * state.BYTES_PER_PARAMETER
        self.logs = os.path.join(work, "logs")
        os.makedirs(self.logs, exist_ok=True)
        # What a snapshot adds while the one before it is still there, and what ranks hold of replicas, once more.
        mib = size // MIB * (3 if nodes == 1 else 2) + 768
        # Shared memory of each rank, and as much again free for chunks.
        fast = 2 * devices * (size // MIB) if copy == "fast" else 0
        self.cluster = Cluster.create(os.path.join(work, "c"), nodes=nodes, devices=devices, transport=transport,
                                      ceiling=f"{mib + fast}MiB", staging="256MiB", spare=f"{mib}MiB", store=args.store,
                                      build=args.build, near=near)
        argv = [os.path.join(args.build, "tests", "bench", "ptc-bench-rank"), "--hidden", self.hidden, "--layers",
                self.layers, "--rows", self.rows, "--log", self.logs, "--spin", spin,
                "--huge", int(pages == "huge")]
        self.yaml = os.path.join(work, "live.yaml")
        with open(self.yaml, "w") as f:
            json.dump({"version": 1, "name": "bench", "mode": "restart", "copy": copy,
                       "run": {"argv": [str(a) for a in argv], "cwd": work,
                               "env": {MARK: self.cluster.options["id"], "PTC_HUGE_PAGES": str(int(pages != "plain"))}}}, f)

    def start(self, config):
        self.cluster.up(timeout_s=60)
        self.cluster.ptcctl("run", "-f", self.yaml, "--config", config, "--wait", timeout_s=600)

    def down(self):
        return self.cluster.down()

    def wait_run(self, what):
        def ended():
            run = self.cluster.json("status", "bench")["jobs"][0]["run"]
            if run["state"] not in (what, "live"):
                raise ClusterError(f"the job is {run['state']}, not {what}: {run.get('why', '')}")
            return run["state"] == what
        wait_for(ended, 300, f"job {what}", 0.1)

    def resize(self, config):
        return json.loads(self.cluster.ptcctl("resize", "bench", "--config", config, "--wait", "--format", "json",
                                              timeout_s=600).stdout)

    def snapshot(self):
        self.cluster.ptcctl("snapshot", "bench", "--wait", timeout_s=600)

    def wait_measured(self, generation, ranks):
        """Ranks of the generation have measured their limit: from here on they leave the machine alone."""
        def measured():
            return [r for r in self.lines("restore") if r["generation"] == generation]
        wait_for(lambda: len(measured()) >= ranks, 300, f"{ranks} ranks of generation {generation} measured", 0.1)
        time.sleep(SETTLE_S)
        return measured()

    def restored_s(self, generation):
        """How long the slowest daemon says it restored ranks of a generation."""
        found = []
        for node in self.cluster.nodes.values():
            with open(node.log_file, errors="replace") as f:
                found += re.findall(rf"generation {generation}: ranks restored in ([0-9.]+) s", f.read())
        if not found:
            raise ClusterError(f"no daemon has restored ranks of generation {generation}")
        return max(map(float, found))

    def lines(self, what):
        found = []
        for path in sorted(glob.glob(os.path.join(self.logs, "*.jsonl"))):
            generation = int(os.path.basename(path)[1:].partition("-")[0])
            with open(path) as f:
                found += [{"generation": generation, **json.loads(line)} for line in f if line.endswith("\n")]
        return [line for line in found if line["what"] == what]


@contextlib.contextmanager
def job(args, work, config, complain, **options):
    j = Job(args, work, **options)
    try:
        j.start(config)
        yield j
    finally:
        for complaint in j.down():
            complain(complaint)


def bench_boundary(args, work, complain):
    with job(args, work, "tp=1", complain, nodes=1, devices=1, spin=args.spin, size=MIB) as j:
        j.wait_run("done")
        rounds = j.lines("boundary")
    yield {"scenario": "boundary", "what": "idle ptc_boundary", "limit": "an exchange and a load", "rounds": len(rounds),
           "ns": statistics.median(r["ns"] for r in rounds), "limit_ns": statistics.median(r["limit_ns"] for r in rounds),
           "ratio": statistics.median(r["ns"] / r["limit_ns"] for r in rounds)}


NEW_CHUNKS = 2 # snapshots: the next one is made while the one before it is still there. Rows of their own


def by_stop(lines):
    """Lines of all ranks, one list for each stop."""
    stops = {}
    for line in lines:
        stops.setdefault(line["step"], []).append(line)
    return [stops[step] for step in sorted(stops)]


def bench_save(args, work, complain):
    for config in args.configs:
        for copy, pages in itertools.product(args.copy or ("lean", "fast"), args.pages):
            with job(args, os.path.join(work, f"{config}-{copy}-{pages}".replace("=", "").replace(",", "")), config, complain,
                     nodes=1, devices=args.ranks, copy=copy, pages=pages) as j:
                def stops():
                    return [s for s in by_stop(j.lines("stall")) if len(s) == args.ranks]

                j.wait_measured(1, args.ranks)
                for i in range(args.rounds + NEW_CHUNKS):
                    time.sleep(SETTLE_S)
                    j.snapshot()
                    wait_for(lambda: len(stops()) > i, 60, f"{i + 1} stops of all ranks", 0.1)
            each = [{"seconds": max(r["seconds"] for r in s), "limit_seconds": max(r["limit_seconds"] for r in s),
                     "kernel_seconds": max(r["kernel_seconds"] for r in s), "bytes": sum(r["bytes"] for r in s)} for s in stops()]
            yield from timed("save", f"{config}, copy {copy}, {pages} pages", each, NEW_CHUNKS, config=config, copy=copy, pages=pages)


def timed(scenario, what, each, first, **about):
    """A row of the later ones, and one of the `first` ones. The limit of each is what was measured around it."""
    limits = [e["limit_seconds"] / e["bytes"] for e in each]
    ratios = [e["seconds"] / e["bytes"] / around(limits, i) for i, e in enumerate(each)]
    for which, part in (("", slice(first, None)), (", first", slice(first))):
        yield {"scenario": scenario, "what": what + which, "limit": "memcpy in the ranks", "rounds": len(each[part]), **about,
               **{k: statistics.median(e[k] for e in each[part]) for k in ("seconds", "limit_seconds", "bytes")},
               "limit_spread": spread(limits), "ratio": statistics.median(ratios[part]),
               "kernel_ratio": statistics.median(e["seconds"] / e["kernel_seconds"] for e in each[part]), "each": each[part]}


def bench_restore(args, work, complain):
    """There and back between two configurations of as many ranks: everything is restored into processes that are new."""
    there, back = f"tp={args.ranks}", f"tp={args.ranks // 2},pp=2"
    for pages in args.pages:
        each = []
        with job(args, os.path.join(work, pages), there, complain, nodes=1, devices=args.ranks, pages=pages) as j:
            j.wait_measured(1, args.ranks)
            for i in range(args.rounds + 1):
                r = j.resize(there if i % 2 else back)
                ranks = j.wait_measured(r["generation"], args.ranks)
                if len(ranks) != args.ranks or not all(line["restored"] for line in ranks):
                    raise ClusterError(f"generation {r['generation']} was not restored on {args.ranks} ranks")
                each.append({"seconds": j.restored_s(r["generation"]), "bytes": sum(line["bytes"] for line in ranks),
                             "limit_seconds": max(line["limit_seconds"] for line in ranks),
                             "kernel_seconds": max(line["kernel_seconds"] for line in ranks)})
        yield from timed("restore", f"{there} and {back}, {pages} pages", each, 1, pages=pages)


# ---- live-switch ----------------------------------------------------------------------------------------------------

OLD, NEW = "tp=2,pp=2,dp=2", "tp=4"


def copiers(cluster):
    """CPU seconds of each ptc-copy of the cluster's daemons."""
    daemons, found = {node.pid() for node in cluster.nodes.values()}, {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError): # it has ended meanwhile
            with open(path) as f:
                pid, _, rest = f.read().partition(" (")
            name, _, rest = rest.rpartition(") ")
            if name == "ptc-copy" and int(rest.split()[1]) in daemons:
                found[int(pid)] = cpu_of(int(pid))
    return found


def one_live_switch(j, config, limits):
    """The limit: what is distinct is copied out, what goes to other nodes moves, what new ranks hold is copied in."""
    daemons, copying = cpu_seconds(j.cluster), copiers(j.cluster)
    r = j.resize(config)
    cpu = {"ptcd": cpu_seconds(j.cluster) - daemons,
           "ptc-copy": sum(s - copying.get(pid, 0) for pid, s in copiers(j.cluster).items())}
    ranks = j.wait_measured(r["generation"], 4 if config == NEW else 8)
    cpu["ranks"] = sum(line["restore_cpu_seconds"] for line in ranks)
    limit, limit_cpu = limits.of(STREAMS, r["received_bytes"], j.bytes + sum(line["bytes"] for line in ranks))
    pause = {name[:-3]: ms / 1e3 for name, ms in r["pause"].items() if name != "lost_ms"} # no part of it; see pause.py
    restored = j.restored_s(r["generation"])
    # What is done with state. Not: waiting for the step's end, ending processes, starting them, their first step.
    return {"seconds": pause["copy"] + pause["commit"] + pause["move"] + restored, "limit_seconds": limit, "pause": pause, "restored": restored,
            "cpu": cpu, "limit_cpu_seconds": limit_cpu,
            "received_bytes": r["received_bytes"], "copied_bytes": r["copied_bytes"],
            "digests_verified": r["digests_verified"], "phases": {p["phase"]: p["ms"] / 1e3 for p in r["phases"]}}


def switch_medians(what, nodes, way, copy, each, j, limits):
    pauses = [e["pause"] for e in each]
    return {"scenario": "live-switch", "what": f"{what}, {nodes} node{'s' * (nodes > 1)}{', copy fast' * (copy == 'fast')}",
            "way": way, "copy": copy, "rounds": len(each),
            "limit": "memcpy" if nodes == 1 else "memcpy + loopback TCP", "limit_spread": limits.spread(moved=nodes > 1),
            **{k: statistics.median(e[k] for e in each) for k in ("seconds", "limit_seconds", "limit_cpu_seconds")},
            "cpu": {who: statistics.median(e["cpu"][who] for e in each) for who in each[0]["cpu"]}, "bytes": j.bytes, "each": each,
            "ratio": statistics.median(e["seconds"] / e["limit_seconds"] for e in each),
            "cpu_ratio": statistics.median(sum(e["cpu"].values()) / e["limit_cpu_seconds"] for e in each),
            "pause": {k: statistics.median(p.get(k, 0) for p in pauses) for k in pauses[0]},
            "restored": statistics.median(e["restored"] for e in each)}


def run_peers(args, directory, rounds):
    """Seconds of each round of what one would write without ptc; None without torch."""
    python = args.python
    if not python or subprocess.run([python, "-c", "import torch, safetensors"], check=False, stdin=subprocess.DEVNULL,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        return None
    r = subprocess.run([python, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers.py"), "--gib", str(args.gib),
                        "--dir", directory, "--rounds", str(rounds)], check=False, stdin=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=1800)
    if r.returncode:
        raise ClusterError(f"peers.py: {r.stderr.strip()[-2000:]}")
    return json.loads(r.stdout)


def bench_live_switch(args, work, complain):
    """The same state by ptc and by others in turn: a block of theirs before ours and one after it."""
    theirs = [run_peers(args, args.store, max(1, args.rounds // 2))]
    for nodes, way, copy in ((n, w, c) for n in args.nodes for w in (args.ways if n > 1 else ("sockets",))
                             for c in args.copy or ("lean",)):
        where = os.path.join(work, f"n{nodes}-{way}-{copy}")
        os.makedirs(where)
        with job(args, where, OLD, complain, nodes=nodes, devices=8 // nodes, near=way == "memory", copy=copy) as j:
            forth, back = [], []
            j.wait_measured(1, 8)
            limits = Limits(args, where, "unix", os.cpu_count())
            for _ in range(args.rounds + 1):
                forth.append(one_live_switch(j, NEW, limits))
                back.append(one_live_switch(j, OLD, limits))
            for what, each in (("to tp4", forth[1:]), ("to tp4, first", forth[:1]), ("to tp2,pp2,dp2", back[1:]),
                               ("to tp2,pp2,dp2, first", back[:1])):
                yield switch_medians(what, nodes, way, copy, each, j, limits)
    if theirs[0] is None:
        complain("no torch and safetensors for --python: the baselines are left out")
        return
    theirs.append(run_peers(args, args.store, max(1, args.rounds // 2)))
    for system in theirs[0]["seconds"]:
        runs = [t["seconds"][system] for t in theirs]
        for what, each in (("first call", [r[0] for r in runs]), ("later calls", [e for r in runs for e in r[1:]])):
            yield {"scenario": "live-switch", "what": f"{system}, {what}", "rounds": len(each), "bytes": theirs[0]["bytes"],
                   "seconds": statistics.median(sum(e) for e in each), "each": each}
