# SPDX-License-Identifier: Apache-2.0
"""ptc-bench fuse: reading a job's model through ptc-fuse, beside the same bytes in a plain file on tmpfs.

The model is one tensor on one node: the one that is asked (local), or another one (remote). First: the mount is new, so
ptc-fuse has nothing, and what it makes for later readers counts. Cold: a later reader; the kernel's page cache of the file was
dropped. Without passthrough ptc-fuse then has nothing either, but for what fits into its cache. Opening counts in each case. What
is read first and in order from another node is also compared with one bulk stream, as daemons use between each other, over the
same transport. Standard library only.
"""
import json
import mmap
import os
import random
import shutil
import struct
import subprocess
import tempfile

from cluster import Cluster, ClusterError, program

MIB = 1 << 20
BLOCK = os.urandom(4 * MIB)
TICKS = os.sysconf("SC_CLK_TCK")
RANDOM_READS = 400
PLACES = random.Random(1) # goes on from round to round: what was read once is in ptc-fuse's cache


def write_model(path, mib):
    rows = mib * 256 # of 4 KiB
    header = json.dumps({"w": {"dtype": "F32", "shape": [rows, 1024], "data_offsets": [0, rows * 4096]}}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        for at in range(0, rows * 4096, len(BLOCK)):
            f.write(BLOCK[:rows * 4096 - at])


def forget(fd):
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def sequential(fd):
    buffer, at = mmap.mmap(-1, MIB), 0
    while n := os.preadv(fd, [buffer], at):
        at += n
    return at


def at_random(size):
    def read(fd):
        buffer, end = mmap.mmap(-1, size), os.fstat(fd).st_size // size
        for _ in range(RANDOM_READS):
            os.preadv(fd, [buffer], PLACES.randrange(end) * size)
        return RANDOM_READS * size
    return read


def mapped(fd):
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as m, memoryview(m) as view:
        buffer = bytearray(MIB)
        for at in range(0, len(view) - MIB + 1, MIB):
            buffer[:] = view[at:at + MIB]
        return len(view) // MIB * MIB


# what: (how it is read, is it cold, flags)
WAYS = {"first": (sequential, True, 0), "cold": (sequential, True, 0), "warm": (sequential, False, 0), "direct": (sequential, True, os.O_DIRECT),
        "mapped, cold": (mapped, True, 0), "random 64 KiB, cold": (at_random(65536), True, 0),
        "random 4 KiB, cold": (at_random(4096), True, 0)}


def cpu_seconds(pids):
    total = sum(os.times()[:2])
    for pid in pids:
        with open(f"/proc/{pid}/stat", "rb") as f:
            fields = f.read().rpartition(b")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def timed(path, way, pids, clock):
    read, cold, flags = WAYS[way]
    if way != "first":
        fd = os.open(path, os.O_RDONLY)
        forget(fd) if cold else read(fd)
        os.close(fd)
    cpu, began = cpu_seconds(pids), clock()
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        return {"bytes": read(fd), "seconds": clock() - began, "cpu_seconds": max(cpu_seconds(pids) - cpu, 1 / TICKS)}
    finally:
        os.close(fd)


def mount(build, cluster, directory, *options):
    """ptc-fuse at the directory, asking n0."""
    read, write = os.pipe()
    p = subprocess.Popen([os.path.join(build, "daemon", "ptc-fuse"), *options, "--socket", cluster.nodes["n0"].socket,
                          "--ready-fd", str(write), directory], env=cluster.environment(), pass_fds=[write], stdin=subprocess.DEVNULL)
    os.close(write)
    with os.fdopen(read) as f:
        said = f.read()
    if said != "\n":
        p.wait()
        raise ClusterError(said.strip() or "ptc-fuse ended at once")
    return p


TRANSPORT = "unix"
STREAMED = ("remote", "first") # what one stream is measured beside


def one_stream(args, work, measure):
    """A bulk stream of as many bytes, measured now."""
    return measure(args, "stream", tempfile.mkdtemp(dir=work), args.mib, 1, 1, TRANSPORT)[0]["stream"]


def bench_on(args, work, where, node, summary, measure, clock):
    model, plain = os.path.join(work, "model.safetensors"), None
    write_model(model, args.mib)
    cluster = Cluster.create(os.path.join(work, where), nodes=2, devices=1, near=False, transport=TRANSPORT, store=args.store,
                             ceiling=f"{args.mib * 3 // 2 + 768}MiB", build=args.build)
    served = None
    options, kind = (("--backing", "0B"), ", no backing files") if args.no_backing else ((), "")
    try:
        cluster.up(timeout_s=60)
        job, top = os.path.join(work, "job.yaml"), tempfile.mkdtemp(dir=work)
        with open(job, "w") as f:
            json.dump({"version": 1, "name": "bench", "tensors": {"from": model}, "rules": [{"match": "*"}]}, f)
        cluster.ptcctl("job", "create", "-f", job)
        cluster.ptcctl("import", "bench", model, "--config", "tp=1", "--nodes", node, timeout_s=1200)
        handle, plain = tempfile.mkstemp(dir=args.store)
        os.close(handle)
        shutil.move(model, plain)
        path = os.path.join(top, "bench", "state", "latest", "model.safetensors")
        for way in WAYS:
            limit = "cold" if way == "direct" else way # a tmpfs knows no other way
            streamed, rounds = (where, way) == STREAMED, []
            for _ in range(args.rounds):
                if served and way == "first":
                    served.terminate()
                    served.wait()
                    served = None
                served = served or mount(args.build, cluster, top, *options)
                pids = [served.pid, *(n.pid() for n in cluster.nodes.values())]
                rounds.append({"subject": timed(path, way, pids, clock), "limit": timed(plain, limit, [], clock),
                               **({"stream": one_stream(args, work, measure)} if streamed else {})})
            about = {"scenario": "fuse", "transport": TRANSPORT, "bytes": rounds[0]["subject"]["bytes"]}
            yield {**about, "what": f"{where}, {way}{kind}", "limit": "the file on tmpfs", **summary(rounds, "subject", "limit")}
            if streamed:
                yield {**about, "what": f"{where}, {way}, to one stream{kind}", "limit": "one bulk stream",
                       **summary(rounds, "subject", "stream")}
    finally:
        if served:
            served.terminate()
            served.wait()
        if plain and os.path.exists(plain):
            os.unlink(plain)
        for complaint in cluster.down():
            print(f"ptc-bench: {complaint}")


def bench_fuse(args, work, summary, measure, clock):
    if not os.path.exists(program(args.build, "ptcd").replace("ptcd", "ptc-fuse")):
        raise ClusterError("ptc-fuse is not built")
    yield from bench_on(args, work, "local", "n0", summary, measure, clock)
    yield from bench_on(args, work, "remote", "n1", summary, measure, clock)
