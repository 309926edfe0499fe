# SPDX-License-Identifier: Apache-2.0
"""ptc-bench small-files: every file of a job of many tiny tensors, opened, read and closed through ptc-fuse, beside the same tree of
files on tmpfs, and the same tree through ptc-bench-floor: a FUSE server that does nothing but answer (fuse_floor.c).

Cold: a mount of its own in each round, of which neither the kernel nor ptc-fuse knows anything. Warm: the same files once more. The
tensors are on the node that is asked (local), or on another one (remote). Failure: a file has other bytes: ClusterError.
Standard library only."""
import json
import os
import shutil
import struct
import subprocess
import tempfile

import files
from cluster import Cluster, ClusterError

ELEMENTS = 3
WAYS = ("cold", "warm")


def content(i):
    return struct.pack(f"<{ELEMENTS}I", *(i * ELEMENTS + k for k in range(ELEMENTS)))


def write_model(path, n):
    size = len(content(0))
    header = json.dumps({f"t.{i}": {"dtype": "U32", "shape": [ELEMENTS], "data_offsets": [i * size, (i + 1) * size]}
                         for i in range(n)}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + b"".join(map(content, range(n))))


def read_all(directory):
    """{name: bytes}, as a program that knows nothing reads them."""
    found = {}
    for name in os.listdir(directory):
        fd = os.open(f"{directory}/{name}", os.O_RDONLY)
        found[name] = os.read(fd, 4096)
        os.close(fd)
    return found


def timed(directory, n, pids, clock):
    cpu, began = files.cpu_seconds(pids), clock()
    found = read_all(directory)
    seconds = clock() - began
    cpu = max(files.cpu_seconds(pids) - cpu, 1 / files.TICKS)
    if len(found) != n or any(found[f"t.{i}.npy"][-len(content(0)):] != content(i) for i in range(n)):
        raise ClusterError(f"{directory} has other files than the {n} that were imported")
    return {"bytes": sum(map(len, found.values())), "seconds": seconds, "cpu_seconds": cpu}


def through_floor(args, work, plain, clock):
    """{way: what was measured}"""
    top = tempfile.mkdtemp(dir=work)
    floor = subprocess.Popen([os.path.join(args.build, "tests", "bench", "ptc-bench-floor"), plain, top],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    with floor:
        if floor.stdout.read(1) != b"\n":
            raise ClusterError("ptc-bench-floor ended at once")
        try:
            return {way: timed(top, args.tensors, [floor.pid], clock) for way in WAYS}
        finally:
            floor.terminate()


def round_of(args, work, cluster, plain, clock):
    """{way: through the mount, on tmpfs, through the floor}"""
    top = tempfile.mkdtemp(dir=work)
    served = files.mount(args.build, cluster, top)
    pids = [served.pid, *(n.pid() for n in cluster.nodes.values())]
    directory = os.path.join(top, "bench", "state", "latest", "tensors")
    try:
        if not os.listdir(plain):
            for name, data in read_all(directory).items():
                with open(os.path.join(plain, name), "wb") as f:
                    f.write(data)
            return None
        found = {way: {"subject": timed(directory, args.tensors, pids, clock), "limit": timed(plain, args.tensors, [], clock)}
                 for way in WAYS}
    finally:
        served.terminate()
        served.wait()
    for way, floor in through_floor(args, work, plain, clock).items():
        found[way]["floor"] = floor
    return found


def bench_on(args, work, where, node, summary, clock):
    model = os.path.join(work, "model.safetensors")
    write_model(model, args.tensors)
    cluster = Cluster.create(os.path.join(work, where), nodes=2, devices=1, near=False, transport=files.TRANSPORT, store=args.store,
                             ceiling="768MiB", build=args.build)
    plain = tempfile.mkdtemp(dir=args.store)
    try:
        cluster.up(timeout_s=60)
        job = os.path.join(work, "job.yaml")
        with open(job, "w") as f:
            json.dump({"version": 1, "name": "bench", "tensors": {"from": model}, "rules": [{"match": "*"}]}, f)
        cluster.ptcctl("job", "create", "-f", job)
        cluster.ptcctl("import", "bench", model, "--config", "tp=1", "--nodes", node, timeout_s=1200)
        round_of(args, work, cluster, plain, clock) # the first one copies the tree
        rounds = [round_of(args, work, cluster, plain, clock) for _ in range(args.rounds)]
        for way in WAYS:
            of_way = [r[way] for r in rounds]
            about = {"scenario": "small-files", "transport": files.TRANSPORT, "bytes": of_way[0]["subject"]["bytes"],
                     "tensors": args.tensors}
            what = f"{args.tensors} tensors of {len(content(0))} B, {where}, {way}"
            yield {**about, "what": what, "limit": "the tree on tmpfs", **summary(of_way, "subject", "limit")}
            yield {**about, "what": f"{what}, to a bare server", "limit": "a server that only answers",
                   **summary(of_way, "subject", "floor")}
    finally:
        shutil.rmtree(plain)
        for complaint in cluster.down():
            print(f"ptc-bench: {complaint}")


def bench_small_files(args, work, summary, clock):
    yield from bench_on(args, work, "local", "n0", summary, clock)
    yield from bench_on(args, work, "remote", "n1", summary, clock)
