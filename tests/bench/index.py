# SPDX-License-Identifier: Apache-2.0
"""ptc-bench index: datasets of so many samples that no table of them would fit: registered, consumed by a job, and read at random
places through ptc-fuse, beside a plain file of the same size; the order by index, beside a table in memory; and the memory of
everybody. Standard library only.

The sources are files with holes: a flat array, with numbers in the few samples that are looked at, and an indexed dataset of empty
sequences. Which samples those are says tests/order_oracle.py. Failure modes: another sample or other bytes come: ClusterError."""
import mmap
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import samples
from cluster import ClusterError, program

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import order_oracle  # noqa: E402

TOKENS = 2048 # of a sample, uint16
READS = 200   # of a round, each
LOOKED_AT = 40
IDX_HEAD, NPY_HEAD = 34, 128
# What is read, how: bytes of each read; 0: one number through a mapping, of which the kernel has nothing.
FILES = ("samples.idx", "samples.bin", "ids.npy", "weights.npy")
WAYS = {"read of 8 B": 8, "read of 4 KiB": 4096, "mapped": 0}
# Of the indexed one only what is read from its index: its sequences are empty.
READ = {"flat": FILES, "indexed": ("samples.idx",)}
LEAST = 10000


def slots_of(n):
    """How many slots rank 0 has in the first epoch."""
    return -(-n // samples.GLOBAL) * samples.GLOBAL // samples.DP


def sample_at(n, slot):
    """The sample of a slot of rank 0 in the first epoch."""
    per_step = samples.GLOBAL // samples.DP
    step, (micro_step, k) = slot // per_step, divmod(slot % per_step, samples.MICRO)
    position = step * samples.GLOBAL + micro_step * samples.MICRO * samples.DP + k
    return order_oracle.at(n, samples.SEED, position // n, position % n)


def write_flat(path, n, slots):
    with open(path, "wb") as f:
        f.truncate(n * 2 * TOKENS)
        for sample in {sample_at(n, slot) for slot in slots}:
            f.seek(sample * 2 * TOKENS)
            f.write((sample + 1).to_bytes(8, "little"))


def write_indexed(path, n):
    open(path + ".bin", "wb").close()
    with open(path + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + bytes([8]) + n.to_bytes(8, "little") + (2).to_bytes(8, "little"))
        f.truncate(IDX_HEAD + 12 * n + 8) # one document: marks 0 and n
        f.seek(0, os.SEEK_END)
        f.write(n.to_bytes(8, "little"))


def check(folder, n, slots):
    """The bytes of every file at these slots."""
    def at(name, offset, size):
        with open(os.path.join(folder, name), "rb") as f:
            f.seek(offset)
            return f.read(size)
    for slot in slots:
        sample = sample_at(n, slot)
        found = (at("ids.npy", NPY_HEAD + 8 * slot, 8), at("samples.bin", 2 * TOKENS * slot, 16),
                 at("samples.idx", IDX_HEAD + 4 * slot, 4), at("samples.idx", IDX_HEAD + 4 * slots_of(n) + 8 * slot, 8))
        want = (sample.to_bytes(8, "little"), (sample + 1).to_bytes(8, "little") + bytes(8), TOKENS.to_bytes(4, "little"),
                (2 * TOKENS * slot).to_bytes(8, "little"))
        if found != want:
            raise ClusterError(f"{folder}: slot {slot} is not sample {sample}: {found}")


# ---- measuring ------------------------------------------------------------------------------------------------------


def ptcctl(cluster, *args):
    """Runs it: seconds, CPU seconds, and the most memory it had."""
    began = time.monotonic()
    p = subprocess.Popen([program(cluster.options["build"], "ptcctl"), *args], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         env=cluster.environment({"PTC_SOCKET": cluster.nodes["n0"].socket}))
    _, status, used = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode:
        raise ClusterError(f"ptcctl {' '.join(args)} ended with {p.returncode}")
    return {"seconds": time.monotonic() - began, "cpu_seconds": used.ru_utime + used.ru_stime, "rss_bytes": used.ru_maxrss << 10}


def rss(pid):
    """Bytes in memory, without pages of files, which the kernel may take back."""
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("RssAnon"))


def at_random(path, way, places):
    """Microseconds of a read at a random place."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size, n = os.fstat(fd).st_size, WAYS[way]
        at = [places.randrange(size - max(n, 8)) for _ in range(READS)]
        if n:
            began = time.monotonic()
            for offset in at:
                os.pread(fd, n, offset)
            return (time.monotonic() - began) / READS * 1e6
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as m:
            began = time.monotonic()
            for offset in at:
                m[offset]
            return (time.monotonic() - began) / READS * 1e6
    finally:
        os.close(fd)


def opening(path, places):
    """Microseconds until a file, whose folder nobody has looked into, is open and its size known."""
    began = time.monotonic()
    fd = os.open(path, os.O_RDONLY)
    os.fstat(fd)
    seconds = time.monotonic() - began
    os.close(fd)
    return seconds * 1e6


def row(what, n, rounds, limit="a plain file of that size"):
    us, limit_us = (statistics.median(r[k] for r in rounds) for k in ("us", "limit_us"))
    return {"scenario": "index", "what": what, "limit": limit, "samples": n, "us": us, "limit_us": limit_us,
            "ratio": statistics.median(r["us"] / r["limit_us"] for r in rounds), "rounds": len(rounds)}


def bench_reads(args, n, kind, folder, plain):
    """Every file of every epoch is new to the kernel."""
    places = random.Random(n)
    for name in READ[kind]:
        rounds = {way: [] for way in ("open", *WAYS)}
        for r in range(args.rounds):
            path, beside = os.path.join(folder, f"epoch-{1 + r}", name), os.path.join(plain, f"{kind}-{r}-{name}")
            us = {"open": opening(path, places)}
            with open(beside, "wb") as f:
                f.truncate(os.path.getsize(path))
            rounds["open"].append({"us": us["open"], "limit_us": opening(beside, places)})
            for way in WAYS:
                rounds[way].append({"us": at_random(path, way, places), "limit_us": at_random(beside, way, places)})
            os.unlink(beside)
        for way, found in rounds.items():
            yield row(f"{kind} {name}, {way}", n, found)


def bench_order(args, work, n, measure):
    found = measure(args, "order", work, args.mib, args.rounds, n)
    for what, name in (("order, at random", "at"), ("order, in runs of 64", "fill")):
        yield row(what, n, [{"us": 1e6 * r[name]["cpu_seconds"] / r[name]["bytes"],
                             "limit_us": 1e6 * max(r["table"]["cpu_seconds"], 1e-9) / r["table"]["bytes"]} for r in found],
                  f"a table of {args.mib} MiB")


def bench_index(args, work, measure, complain):
    n, store = args.samples, tempfile.mkdtemp(dir=args.store)
    slots = [0, slots_of(n) - 1, *random.Random(n).sample(range(slots_of(n)), LOOKED_AT)]
    try:
        write_flat(os.path.join(store, "flat"), n, slots)
        write_indexed(os.path.join(store, "indexed"), n)
        with samples.cluster_of_one(args, work, complain) as cluster:
            daemon = cluster.nodes["n0"].pid()
            for what, argv in (("flat", ("--kind", "flat", "--dtype", "uint16", "--record", str(TOKENS))), ("indexed", ())):
                yield {"scenario": "index", "what": f"{what}, add", "samples": n, "rounds": 1,
                       **ptcctl(cluster, "dataset", "add", what, os.path.join(store, what), *argv)}
            yield {"scenario": "index", "what": "indexed, check", "samples": n, "rounds": 1, **ptcctl(cluster, "dataset", "check", "indexed")}
            samples.consume(cluster, work, ("flat", "indexed"))
            with samples.mounted(args, cluster, work) as (served, data):
                pids = {"ptcd": daemon, "ptc-fuse": served.pid, "reader": os.getpid()}
                before = {who: rss(pid) for who, pid in pids.items()}
                began = time.monotonic()
                check(os.path.join(samples.rank_0(data, "flat"), "epoch-0"), n, slots)
                seconds = time.monotonic() - began
                for kind in READ:
                    yield from bench_reads(args, n, kind, samples.rank_0(data, kind), store)
                yield {"scenario": "index", "what": "memory", "samples": n, "seconds": seconds, "rounds": 1, "slots_checked": len(slots),
                       "rss_bytes": {who: [before[who], rss(pid)] for who, pid in pids.items()}}
    finally:
        shutil.rmtree(store)
    yield from bench_order(args, work, n, measure)
