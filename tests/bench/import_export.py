# SPDX-License-Identifier: Apache-2.0
"""ptc-bench import-export: `ptcctl import` and `ptcctl export` of a model file, beside `cp` of the same file, all on tmpfs.

Each round makes a new job, so no page of its chunks is there yet, and every file is written anew. What is exported has to be the same
file. CPU seconds are those of the program and of all daemons. Failure: another file comes out: ClusterError. Standard library only."""
import filecmp
import json
import os
import resource
import shutil
import struct
import subprocess
import tempfile
import time

from cluster import Cluster, ClusterError

MIB, TENSOR_MIB = 1 << 20, 8
CONFIGS = {1: "tp=1", 2: "tp=2", 4: "tp=4"}


def write_model(path, mib):
    """Tensors of 8 MiB, cut by tp into parts that lie together. Their bytes are random, so none are equal."""
    n = max(mib // TENSOR_MIB, 1)
    size = TENSOR_MIB * MIB
    header = json.dumps({f"t.{i}": {"dtype": "F32", "shape": [size >> 12, 1024], "data_offsets": [i * size, (i + 1) * size]}
                         for i in range(n)}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        for _ in range(n):
            f.write(os.urandom(size))


def children():
    """CPU seconds of programs that have ended: cp and ptcctl."""
    r = resource.getrusage(resource.RUSAGE_CHILDREN)
    return r.ru_utime + r.ru_stime


def timed(cpu_seconds, size, run):
    cpu, began = cpu_seconds(), time.monotonic()
    run()
    seconds = time.monotonic() - began
    return {"bytes": size, "seconds": seconds, "cpu_seconds": cpu_seconds() - cpu}


def round_of(cluster, model, top, nodes, daemons):
    def cpu():
        return children() + daemons(cluster)

    job, out, copy = os.path.join(top, "job.yaml"), os.path.join(top, "exported.safetensors"), os.path.join(top, "copy")
    size = os.path.getsize(model)
    with open(job, "w") as f:
        json.dump({"version": 1, "name": "bench", "tensors": {"from": model},
                   "rules": [{"match": "*", "split": {"axis": "tp", "dim": 0}}]}, f)
    cluster.ptcctl("job", "create", "-f", job)
    try:
        r = {"cp": timed(cpu, size, lambda: subprocess.run(["cp", model, copy], check=True)),
             "import": timed(cpu, size, lambda: cluster.ptcctl("import", "bench", model, "--config", CONFIGS[nodes], timeout_s=1200)),
             "export": timed(cpu, size, lambda: cluster.ptcctl("export", "bench", out, timeout_s=1200))}
        if not filecmp.cmp(model, out, shallow=False):
            raise ClusterError(f"{out} is not the file that was imported, {model}")
        return r
    finally:
        cluster.ptcctl("job", "delete", "bench")
        for path in (out, copy):
            if os.path.exists(path):
                os.unlink(path)


def bench_on(args, top, transport, nodes, way, summary, cpu_seconds, complain):
    model = os.path.join(top, "model.safetensors")
    cluster = Cluster.create(os.path.join(top, "c"), nodes=nodes, devices=1, transport=transport, store=args.store,
                             ceiling=f"{args.mib * 2 + 512}MiB", build=args.build, near=way == "memory")
    try:
        cluster.up(timeout_s=60)
        rounds = [round_of(cluster, model, top, nodes, cpu_seconds) for _ in range(args.rounds)]
        where = f"{nodes} node{'s' * (nodes > 1)}"
        for what in ("import", "export"):
            yield {"scenario": "import-export", "what": f"{what}, {where}", "transport": transport, "way": way, "limit": "cp",
                   "bytes": os.path.getsize(model), **summary(rounds, what, "cp")}
    finally:
        for complaint in cluster.down():
            complain(complaint)


def bench_import_export(args, _, summary, cpu_seconds, complain):
    top = tempfile.mkdtemp(prefix="ptc-bench-", dir=args.store) # the files, too, are on tmpfs
    try:
        write_model(os.path.join(top, "model.safetensors"), args.mib)
        for transport in args.transports:
            for nodes in args.nodes:
                for way in args.ways if nodes > 1 else ("sockets",): # one node has no other one
                    yield from bench_on(args, top, transport, nodes, way, summary, cpu_seconds, complain)
    finally:
        shutil.rmtree(top)
