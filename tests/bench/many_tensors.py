# SPDX-License-Identifier: Apache-2.0
"""ptc-bench many-tensors: what a switch costs for each tensor, where tensors are so small that their bytes cost nothing.

A job of --tensors tensors of 64 F32 elements, all split by tp, goes from tp2 to tp4 and back, on one daemon with 4 devices and on 4
daemons with one. At the end every byte is compared with what was imported. Failure: one differs: ClusterError. Standard library
only."""
import json
import os
import random
import statistics
import struct

from cluster import Cluster, ClusterError

ELEMENTS, DTYPE, BYTES = 64, "F32", 256
FROM, TO = "tp=2", "tp=4"
STAGING = "256MiB" # ptcd's default: a node's lists of boxes count against staging and work together


def write_model(path, n):
    """Every tensor has bytes of its own."""
    header = json.dumps({f"t.{i}": {"dtype": DTYPE, "shape": [ELEMENTS], "data_offsets": [i * BYTES, (i + 1) * BYTES]}
                         for i in range(n)}).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + random.randbytes(n * BYTES))


def one_switch(cluster, config, tensors, cpu_seconds):
    cpu = cpu_seconds(cluster)
    r = json.loads(cluster.ptcctl("resize", "bench", "--config", config, "--wait", "--format", "json", timeout_s=1200).stdout)
    cpu = cpu_seconds(cluster) - cpu
    if r["digests_verified"] != tensors:
        raise ClusterError(f"a switch of {tensors} tensors verified the digests of {r['digests_verified']}")
    phases = {p["phase"]: p["ms"] / 1e3 for p in r["phases"]}
    return {"cpu_seconds": cpu, "seconds": sum(s for name, s in phases.items() if name != "finishing"), "phases": phases}


def check_bytes(cluster, work, model):
    exported = os.path.join(work, "exported.safetensors")
    cluster.ptcctl("export", "bench", exported, timeout_s=1200)
    if tensors_of(model) != tensors_of(exported):
        raise ClusterError(f"{exported} has other bytes than {model}, which was imported")


def tensors_of(path):
    """{name: bytes}"""
    with open(path, "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
        data = f.read()
    return {name: data[slice(*e["data_offsets"])] for name, e in header.items() if name != "__metadata__"}


def summary(rounds, tensors, **about):
    return {"scenario": "many-tensors", "tensors": tensors, "rounds": len(rounds), **about,
            "us": 1e6 * statistics.median(r["cpu_seconds"] for r in rounds) / tensors,
            "us_each": [1e6 * r["cpu_seconds"] / tensors for r in rounds],
            "seconds": statistics.median(r["seconds"] for r in rounds),
            "phases": {name: statistics.median(r["phases"].get(name, 0) for r in rounds) for name in rounds[0]["phases"]}}


def bench_on(args, work, transport, nodes, cpu_seconds, complain):
    model = os.path.join(work, "model.safetensors")
    write_model(model, args.tensors)
    cluster = Cluster.create(os.path.join(work, f"{transport}{nodes}"), nodes=nodes, devices=4 // nodes, near=False, transport=transport,
                             store=args.store, ceiling="1GiB", staging=STAGING, build=args.build)
    try:
        cluster.up(timeout_s=60)
        job = os.path.join(work, "job.yaml")
        with open(job, "w") as f:
            json.dump({"version": 1, "name": "bench", "tensors": {"from": model},
                       "rules": [{"match": "*", "split": {"axis": "tp", "dim": 0}}]}, f)
        cluster.ptcctl("job", "create", "-f", job)
        cluster.ptcctl("import", "bench", model, "--config", FROM, timeout_s=1200)
        forth, back = [], []
        for _ in range(args.rounds):
            forth.append(one_switch(cluster, TO, args.tensors, cpu_seconds))
            back.append(one_switch(cluster, FROM, args.tensors, cpu_seconds))
        check_bytes(cluster, work, model)
        where = f"{nodes} node{'s' * (nodes > 1)}"
        # a switch is rare: the first one is the one that counts, so it has rows of its own
        for rounds, to in ((forth[:1], "to tp4, first"), (back[:1], "to tp2, first"), (forth[1:], "to tp4"), (back[1:], "to tp2")):
            if rounds:
                yield summary(rounds, args.tensors, transport=transport, nodes=nodes, what=f"{args.tensors} tensors {to}, {where}")
    finally:
        for complaint in cluster.down():
            complain(complaint)


def bench_many_tensors(args, work, cpu_seconds, complain):
    for transport in args.transports:
        for nodes in args.nodes:
            yield from bench_on(args, work, transport, nodes, cpu_seconds, complain)
