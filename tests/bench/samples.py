# SPDX-License-Identifier: Apache-2.0
"""ptc-bench samples: samples/s of a PyTorch DataLoader (loader.py) that reads a rank's part of a dataset through ptc-fuse, beside the
same loader and the same files on tmpfs. Standard library only; what needs torch runs in --python.

Happy path: a source on tmpfs whose samples follow from their numbers, a job that consumes it, two mounts: one that is
measured, one that files are copied from. Failure modes: no torch: left out, said in one line; a mount that shows other bytes than
ids.npy promises: Failed."""
import contextlib
import json
import os
import shutil
import subprocess
import tempfile

import files
from cluster import Cluster, ClusterError

MIB = 1 << 20
BLOCK = os.urandom(MIB)
TOKENS = 2048                         # of a sample, uint16
FILE_BYTES = (60 << 10, 140 << 10)    # of a sample that is a file
DP, MICRO, GLOBAL, SEED = 2, 8, 64, 7
WORKERS = "2,0"


def sample(i, size):
    """The bytes of sample i: its number, then a stretch of random ones that begins elsewhere in each."""
    at = i * 4099 % (len(BLOCK) - size)
    return i.to_bytes(8, "little") + BLOCK[at:at + size - 8]


def file_bytes(i):
    low, high = FILE_BYTES
    return low + i * 7919 % (high - low)


def steps(n):
    """About as many samples, so that every epoch has as many steps."""
    return max(1, n // GLOBAL) * GLOBAL


def write_tokens(path, mib):
    """A flat array. (arguments of `dataset add`, number of samples)"""
    size = 2 * TOKENS
    n = steps(mib * MIB // size)
    with open(path, "wb") as f:
        for i in range(n):
            f.write(sample(i, size))
    return ["--kind", "flat", "--dtype", "uint16", "--record", str(TOKENS)], n


def write_files(path, mib):
    """A directory of files, in folders of 1000."""
    n = steps(mib * MIB // (sum(FILE_BYTES) // 2))
    for i in range(n):
        folder = os.path.join(path, f"{i // 1000:06}")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"{i:09}.jpg"), "wb") as f:
            f.write(sample(i, file_bytes(i)))
    return [], n


def read_numbers(path, width):
    """A column of numbers of NumPy's."""
    with open(path, "rb") as f:
        head = f.read(10)
        f.seek(10 + int.from_bytes(head[8:10], "little"))
        body = f.read()
    return [int.from_bytes(body[at:at + width], "little") for at in range(0, len(body), width)]


def check(epoch, shape):
    """Every byte of an epoch is what its ids promise."""
    ids = read_numbers(os.path.join(epoch, "ids.npy"), 8)
    if shape == "tokens":
        with open(os.path.join(epoch, "samples.bin"), "rb") as f:
            wrong = [i for i in ids if f.read(2 * TOKENS) != sample(i, 2 * TOKENS)]
    else:
        wrong, folder = [], os.path.join(epoch, "files")
        for name, i in zip(sorted(os.listdir(folder)), ids, strict=True):
            with open(os.path.join(folder, name), "rb") as f:
                wrong += [i] * (f.read() != sample(i, file_bytes(i)))
    if wrong or not ids:
        raise ClusterError(f"{epoch}: sample {wrong[0] if wrong else 'none'} has other bytes than its source")


@contextlib.contextmanager
def cluster_of_one(args, work, complain):
    """A node that is up. What loaders read is the same whether ranks run or not, so none do."""
    cluster = Cluster.create(os.path.join(work, "c"), nodes=1, devices=DP, transport="unix", store=args.store,
                             ceiling="512MiB", build=args.build)
    try:
        cluster.up(timeout_s=60)
        yield cluster
    finally:
        for complaint in cluster.down():
            complain(complaint)


def consume(cluster, work, datasets):
    """The job bench, of two data-parallel ranks, which consumes these datasets by their names."""
    model, job = os.path.join(work, "model.safetensors"), os.path.join(work, "job.yaml")
    files.write_model(model, 1)
    with open(job, "w") as f:
        json.dump({"version": 1, "name": "bench", "tensors": {"from": model}, "rules": [{"match": "*"}],
                   "data": {d: {"dataset": d, "seed": SEED, "global_batch": GLOBAL, "micro_batch": MICRO} for d in datasets}}, f)
    cluster.ptcctl("job", "create", "-f", job)
    cluster.ptcctl("import", "bench", model, "--config", f"dp={DP}", "--nodes", "n0", timeout_s=100)


@contextlib.contextmanager
def mounted(args, cluster, work):
    """(the process, the directory of the job's data)"""
    top = tempfile.mkdtemp(dir=work)
    served = files.mount(args.build, cluster, top)
    try:
        yield served, os.path.join(top, "bench", "data")
    finally:
        served.terminate()
        served.wait()


def rank_0(data, dataset):
    return os.path.join(data, dataset, "gen-1", "dp-0")


def has_torch(python):
    test = "import importlib.util as u, sys; sys.exit(not (u.find_spec('torch') and u.find_spec('numpy')))"
    return python and shutil.which(python) and subprocess.run([python, "-c", test], check=False, stdin=subprocess.DEVNULL).returncode == 0


def load(args, plain, data, copies, pids):
    argv = [args.python, os.path.join(os.path.dirname(os.path.abspath(__file__)), "loader.py"), "--data", data, "--copies", copies,
            "--plain", plain, "--workers", WORKERS, "--rounds", str(args.rounds), "--batch", str(MICRO), "--pids",
            ",".join(map(str, pids))]
    r = subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if r.returncode:
        raise ClusterError(r.stderr.strip().split("\n")[-1] or f"loader.py ended with {r.returncode}")
    return json.loads(r.stdout)["results"]


def report(found, n, summary):
    about, first = summary(found["rounds"], "subject", "limit"), found["rounds"][0]["subject"]
    per = first["bytes"] / first["samples"]
    return {"scenario": "samples", "what": f"{found['shape']}, {found['workers']} workers", "limit": "the same files on tmpfs",
            "samples": n, "read": first["samples"], "bytes": first["bytes"], "samples_per_s": about["gb_per_s"] * 1e9 / per,
            "limit_samples_per_s": about["limit_gb_per_s"] * 1e9 / per, **about}


def bench_samples(args, work, summary, complain):
    if not has_torch(args.python):
        complain("no torch and numpy for --python: samples is left out")
        return
    source, plain = tempfile.mkdtemp(dir=args.store), tempfile.mkdtemp(dir=args.store)
    counts = {}
    try:
        with cluster_of_one(args, work, complain) as cluster:
            for shape, write in (("tokens", write_tokens), ("files", write_files)):
                add, counts[shape] = write(os.path.join(source, shape), args.mib)
                cluster.ptcctl("dataset", "add", shape, os.path.join(source, shape), *add, timeout_s=600)
            consume(cluster, work, counts)
            with mounted(args, cluster, work) as (served, data), mounted(args, cluster, work) as (_, copies):
                for shape in counts:
                    check(os.path.join(rank_0(copies, shape), "epoch-0"), shape)
                pids = [served.pid, cluster.nodes["n0"].pid()]
                for found in load(args, plain, data, copies, pids):
                    yield report(found, counts[found["shape"]], summary)
    finally:
        shutil.rmtree(source)
        shutil.rmtree(plain)
