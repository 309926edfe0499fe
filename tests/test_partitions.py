# SPDX-License-Identifier: Apache-2.0
"""data/ of a mount: what a rank consumes as an indexed dataset, against the source, docs/order.md and what ranks wrote down."""
import errno
import json
import os
import random
import shutil
import subprocess
import sys
import unittest

import dataset_oracle as oracle
import harness
import live
import numpy as np
import order_oracle
import test_ctrainer
import wire
from harness import LONG, PATIENCE, skip_unless_root
from safetensors.numpy import save_file
from test_fuse import CAN_MOUNT, OTHER_UID, Mount, run_with_fuse_for_all
from test_proof import proved

SLOTS = 3  # of a micro batch
OWNER = ["setpriv", f"--reuid={OTHER_UID}", f"--regid={OTHER_UID}", "--clear-groups"]
THIRD = ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups"]

# Megatron reads with both of its ways, PyTorch's loader in two processes.
READERS = """
import json, sys
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset
found = {}
for way, mapped in (("mapped", True), ("read", False)):
    d = IndexedDataset(sys.argv[1], mmap=mapped)
    found[way] = [d[i].tolist() for i in range(len(d))]
loader = torch.utils.data.DataLoader(d, batch_size=None, num_workers=2)
found["loader"] = [x.tolist() for x in loader]
print(json.dumps(found))
"""


@unittest.skipUnless(CAN_MOUNT, "FUSE cannot be mounted here")
class Partitions(harness.Case):
    def setUp(self):
        super().setUp()
        self.rng = random.Random(self.seed)

    def sequences(self, n, dtype="int32"):
        return [np.array([self.rng.randrange(100) for _ in range(self.rng.randrange(0, 30))], dtype) for _ in range(n)]

    def check(self, folder, rows, bytes_of, dtype):
        """rows: [(id, weight)], one per slot, in order."""
        ids, weights = np.load(os.path.join(folder, "ids.npy")), np.load(os.path.join(folder, "weights.npy"), mmap_mode="r")
        self.assertEqual((np.dtype("uint64"), np.dtype("float32")), (ids.dtype, weights.dtype))
        self.assertEqual([i for i, _ in rows], ids.tolist(), folder)
        self.assertEqual([w for _, w in rows], weights.tolist(), folder)
        reader = oracle.Indexed(os.path.join(folder, "samples"))
        self.assertEqual((len(rows), 0, np.dtype(dtype)), (len(reader), reader.problems(), reader.dtype))
        for slot in self.rng.sample(range(len(rows)), min(len(rows), 60)):
            self.assertEqual(bytes_of(rows[slot][0]), reader[slot].tobytes(), f"{folder} slot {slot}")
        copy = shutil.copytree(folder, os.path.join(self.dir, "copy"), dirs_exist_ok=True)
        self.assertEqual(reader.size, os.path.getsize(os.path.join(copy, "samples.bin")))
        for slot in self.rng.sample(range(len(rows)), min(len(rows), 20)):
            self.assertEqual(reader[slot].tobytes(), oracle.Indexed(os.path.join(copy, "samples"))[slot].tobytes())

    def rows(self, sample, n, position, first_step, epoch, g, mbs, dp, rank):
        """{step: [(id, weight)]} of the steps that begin in an epoch, from docs/files.md and the order's oracle."""
        found, at, step = {}, position, first_step
        while at < (epoch + 1) * n:
            if at >= epoch * n:
                found[step] = [pair for m in range(-(-g // (mbs * dp)))
                               for pair in order_oracle.micro_batch(sample, at, g, mbs, dp, m, rank)]
            at, step = at + g, step + 1
        return found

    @harness.labels("repeats")
    def test_resizes(self):
        """The ranks' own logs, through dp 2, 3, 1 and 5, are what the partitions of each generation hold."""
        n, g = 70, 10
        sequences = self.sequences(n)
        oracle.write_indexed(self.path("text"), sequences)
        with self.cluster(nodes=1, devices=5) as c:
            c.ptcctl("dataset", "add", "text", self.path("text"))
            job = live.Job(c, self.dir, sleep=0.004, data=f"{n},{self.seed},{g},{SLOTS}", by_length=1,
                           run={"data": {"data": {"dataset": "text", "seed": self.seed, "global_batch": g, "micro_batch": SLOTS}}})
            mount = Mount(self, c)
            job.run("dp=2")
            for config in ("dp=3", "dp=1", "dp=5"):
                job.wait_step(job.step() + 9)
                job.resize(config)
            job.wait_step(job.step() + 9)
            job.do("stop")
            entries = {e["generation"]: e for e in c.json("dataset", "proof", job.name, "--counted")["cursors"][0]["generations"]}
            self.assertEqual([2, 3, 1, 5], [e["dp"] for e in entries.values()])
            self.assertEqual(sorted(f"gen-{x}" for x in entries), sorted(os.listdir(mount.path(job.name, "data", "data"))))
            self.assertEqual(len(entries) * [["data"]], [os.listdir(mount.path(job.name, "data"))] * len(entries))
            wrote = {}
            for name in os.listdir(job.logs):
                with open(os.path.join(job.logs, name)) as f:
                    wrote |= {(x["generation"], x["step"], x["dp_rank"]): x["samples"] for x in map(json.loads, f)}

            def sample(p):
                return order_oracle.at(n, self.seed, p // n, p % n)

            for generation, e in entries.items():
                if e["dp"] == 1:  # which rank had which only they know: nothing is made up
                    with self.assertRaises(OSError) as refused:
                        os.listdir(mount.path(job.name, "data", "data", f"gen-{generation}"))
                    self.assertEqual(errno.EIO, refused.exception.errno)
                    continue
                for rank in range(e["dp"]):
                    base = mount.path(job.name, "data", "data", f"gen-{generation}", f"dp-{rank}")
                    now = e["positions"][0] // n
                    self.assertEqual([f"epoch-{now + i}" for i in range(8)], sorted(os.listdir(base), key=lambda x: int(x[6:])))
                    self.assertFalse(now and os.path.exists(os.path.join(base, f"epoch-{now - 1}")))
                    consumed = {}
                    for epoch in range(now, e["positions"][1] // n + 1):
                        folder = os.path.join(base, f"epoch-{epoch}")
                        rows = self.rows(sample, n, e["positions"][0], e["steps"][0], epoch, g, SLOTS, e["dp"], rank)
                        self.check(folder, [r for step in rows.values() for r in step], lambda i: sequences[i].tobytes(), "int32")
                        with open(os.path.join(folder, "partition.json")) as f:
                            said = json.load(f)
                        self.assertEqual((generation, rank, epoch, min(rows), len(rows), e["dp"]),
                                         tuple(said[k] for k in ("generation", "dp_rank", "epoch", "first_step", "steps", "dp")))
                        consumed |= rows
                    for step in range(*e["steps"]):
                        self.assertEqual(wrote[generation, step, rank], [i for i, w in consumed[step] if w], f"step {step}")
            mount.stop()

    @harness.labels("repeats")
    def test_ranks_read_files(self):
        self.ranks_read({"text": 50}, {"dataset": "text"}, [(50, 1, True, 0)])

    @harness.labels("repeats")
    def test_ranks_read_a_mixture(self):
        self.ranks_read({"text": 50, "code": 9}, {"mix": [{"dataset": "code", "weight": 2, "block": 4},
                                                          {"dataset": "text", "weight": 3}]}, [(9, 2, True, 4), (50, 3, True, 0)])

    def ranks_read(self, sizes, data, parts):
        """Ranks that know nothing of orders take their samples from the mount, set no cursor, and are resized: what they
        consumed is proved, and is what an uninterrupted run consumes."""
        n, g = sum(sizes.values()), 8
        with self.cluster(nodes=2, devices=4) as c:
            for name, size in sizes.items():
                oracle.write_indexed(self.path(name), self.sequences(size))
                c.ptcctl("dataset", "add", name, self.path(name))
            mount = Mount(self, c)
            job = live.Job(c, self.dir, sleep=0.01, data=f"{n},7,{g},{SLOTS}", files=mount.path("live", "data", "data"),
                           run={"data": {"data": {**data, "seed": 7, "global_batch": g, "micro_batch": SLOTS}}})
            job.run("dp=2")
            for config in ("dp=3", "dp=1", f"dp=2,micro_batch={SLOTS},global_batch={g},micro_steps=1x2:1x1", "tp=2,dp=2"):
                job.wait_step(job.step() + 9)
                job.resize(config)
            job.wait_step(job.step() + 9)
            job.do("snapshot")
            job.wait_step(job.step() + 3)
            job.do("stop")
            got, _, cursor = proved(self, c, job, counted=True)
            self.assertEqual((got["step"] * g, [2, 3, 1, 2, 2]), (cursor["position"], [e["dp"] for e in cursor["generations"]]))
            wrote = {}
            for name in sorted(os.listdir(job.logs)):
                with open(os.path.join(job.logs, name)) as f:
                    wrote |= {(x["step"], x["dp_rank"]): x for x in map(json.loads, f) if x["first"]}

            def sample(p):
                part, i, _ = order_oracle.mixed(parts, 7, p)
                return sum(m for m, *_ in parts[:part]) + i

            for e in cursor["generations"]:
                for step in range(*e["steps"]):
                    had = [wrote[step, r] for r in range(e["dp"])]
                    self.assertEqual({e["generation"]}, {x["generation"] for x in had})
                    self.assertEqual(sorted(sample(p) for p in range(step * g, step * g + g)),
                                     sorted(i for x in had for i in x["samples"]), f"step {step}")
            mount.stop()

    @harness.labels("repeats")
    def test_ranks_read_behind_what_was_skipped(self):
        """Ranks that take their samples from the mount, and set no cursor, go back with --skip-data: files of the generation that
        begins there go on behind what the job had come to, and the skipped samples are in no generation's files."""
        n, g, parts = 59, 8, [(9, 2, True, 4), (50, 3, True, 0)]
        with self.cluster(nodes=2, devices=2) as c:
            for name, size in {"text": 50, "code": 9}.items():
                oracle.write_indexed(self.path(name), self.sequences(size))
                c.ptcctl("dataset", "add", name, self.path(name))
            mount = Mount(self, c)
            mix = [{"dataset": "code", "weight": 2, "block": 4}, {"dataset": "text", "weight": 3}]
            job = live.Job(c, self.dir, sleep=0.01, data=f"{n},7,{g},{SLOTS}", files=mount.path("live", "data", "data"),
                           run={"data": {"data": {"mix": mix, "seed": 7, "global_batch": g, "micro_batch": SLOTS}}, "keep": {"last": 9}})
            job.run("dp=2")
            job.wait_step(5)
            job.do("snapshot")
            at = c.json("snapshots", job.name)["snapshots"][0]["step"]
            job.wait_step(at + 20)
            job.do("snapshot")  # which makes that one an older one
            open(os.path.join(job.logs, "skips"), "w").close()
            c.ptcctl("rollback", job.name, "--to", str(at), "--skip-data", timeout_s=120 * PATIENCE)
            end = c.json("snapshots", job.name)["snapshots"][1]["step"] * g
            job.wait_step(at + 9)
            job.resize("dp=3")
            job.wait_step(job.step() + 9)
            job.do("stop")
            got, _, cursor = proved(self, c, job, counted=True)
            self.assertEqual([2, 0, 2, 3], [e["dp"] for e in cursor["generations"]])
            self.assertEqual(([at * g, end], end - at * g), (cursor["generations"][1]["positions"], cursor["skipped"]))
            self.assertEqual(got["step"] * g + cursor["skipped"], cursor["position"])
            wrote = {}
            for name in sorted(os.listdir(job.logs)):
                if name.endswith(".jsonl"):
                    with open(os.path.join(job.logs, name)) as f:
                        wrote |= {(x["generation"], x["step"], x["dp_rank"]): x for x in map(json.loads, f) if x["first"]}

            def sample(p):
                part, i, _ = order_oracle.mixed(parts, 7, p)
                return sum(m for m, *_ in parts[:part]) + i

            for e in cursor["generations"][2:]:
                for step in range(*e["steps"]):
                    first = end + (step - at) * g
                    self.assertEqual(sorted(sample(p) for p in range(first, first + g)),
                                     sorted(i for r in range(e["dp"]) for i in wrote[e["generation"], step, r]["samples"]), f"step {step}")
            listed = sorted(os.listdir(mount.path(job.name, "data", "data")))
            self.assertEqual(sorted(f"gen-{e['generation']}" for e in cursor["generations"] if e["dp"]), listed)
            mount.stop()

    @harness.labels("repeats")
    def test_by_length(self):
        """Batches divided by what the planner says that samples cost: each generation by its own numbers, which its tag keeps. The
        ranks read the files, and what they read is the oracle's division."""
        n, g = 60, 8
        model = {"layers": 2, "hidden": 64, "heads": 8, "seq": 4096}
        sequences = [np.arange(min(4000, int(self.rng.lognormvariate(5, 1.5))), dtype="int32") for _ in range(n)]
        oracle.write_indexed(self.path("text"), sequences)
        os.mkdir(self.path("files"))
        with open(self.path("files", "a"), "wb") as f:
            f.write(b"x")
        with self.cluster(nodes=2, devices=2) as c:
            for name in ("text", "files"):
                c.ptcctl("dataset", "add", name, self.path(name))
            mount = Mount(self, c)
            data = {"dataset": "text", "seed": 7, "global_batch": g, "micro_batch": SLOTS, "by_length": "true"}
            planned = {"model": model, "space": {"global_batch": g, "tp": [1], "micro_batch": [SLOTS]}}
            bad = live.Job(c, self.path("bad"), run={"data": {"data": {**data, "dataset": "files"}}, **planned})
            self.refused(c, "job", "create", "-f", bad.yaml, contains="by_length: the samples of dataset files are files")
            job = live.Job(c, self.dir, sleep=0.01, data=f"{n},7,{g},{SLOTS}", cost=1, files=mount.path("live", "data", "data"),
                           run={"data": {"data": data}, **planned})
            job.run("dp=2")
            told = {}
            for generation, config in ((1, None), (2, "dp=3"), (3, "dp=1")):
                if config:
                    job.resize(config)
                reports = job.wait_step(job.step() + 9) and job.status()["run"]["reports"]
                told[generation] = (int(reports["cost_linear"]), int(reports["cost_square"]))
                self.compare_division(mount, job, sequences, told[generation], generation, job.status()["run"])
            job.do("stop")
            _, _, cursor = proved(self, c, job, counted=True)
            self.assertEqual([(2, True), (3, True), (1, True)], [(e["dp"], e["by_length"]) for e in cursor["generations"]])
            wrote = {}
            for name in sorted(os.listdir(job.logs)):
                with open(os.path.join(job.logs, name), encoding="utf-8") as f:
                    wrote |= {(x["generation"], x["step"], x["dp_rank"]): x["samples"] for x in map(json.loads, f)}
            saved = 0
            for e in cursor["generations"]:
                a, b = told[e["generation"]]
                self.assertIn(f",by_length=1,linear={a},square={b}", e["tag"])
                for step in range(*e["steps"]):
                    ids, division, most = self.division(sequences, (a, b), step, e["dp"])
                    had = [[ids[i] for m in division for i, weight in m[r] if weight] for r in range(e["dp"])]
                    self.assertEqual(had, [wrote[e["generation"], step, r] for r in range(e["dp"])], f"step {step}")
                    lengths = [len(sequences[i]) for i in ids]
                    count = [[p for m in range(-(-g // (SLOTS * e["dp"])))
                              for p in order_oracle.micro_batch(lambda p: p, 0, g, SLOTS, e["dp"], m, r)] for r in range(e["dp"])]
                    by_count = max(sum(a * lengths[i] + b * lengths[i] ** 2 for i, _ in of) for of in count)
                    self.assertLessEqual(most, by_count)
                    saved += most < by_count
            self.assertGreater(saved, 5, "divided otherwise than by count")
            mount.stop()

    @harness.labels("repeats")
    def test_mixture_by_length(self):
        """A step's samples are those of all datasets together, and so is their division."""
        g, seed, dp = 8, 7, 2
        long, short = ([np.arange(min(4000, int(self.rng.lognormvariate(mean, 1.2))), dtype="int32") for _ in range(n)]
                       for mean, n in ((6, 20), (3, 31)))
        sequences, parts = long + short, [(len(long), 1, True, 0), (len(short), 3, True, 0)]

        def sample(p):
            j, i, _ = order_oracle.mixed(parts, seed, p)
            return sum(m for m, *_ in parts[:j]) + i

        with self.cluster(nodes=1, devices=2) as c:
            for name, those in (("long", long), ("short", short)):
                oracle.write_indexed(self.path(name), those)
                c.ptcctl("dataset", "add", name, self.path(name))
            data = {"mix": [{"dataset": "long", "weight": 1}, {"dataset": "short", "weight": 3}], "seed": seed, "global_batch": g,
                    "micro_batch": SLOTS, "by_length": "true"}
            job = live.Job(c, self.dir, sleep=0.01, cost=1, run={
                "data": {"data": data}, "model": {"layers": 2, "hidden": 64, "heads": 8, "seq": 4096},
                "space": {"global_batch": g, "tp": [1], "micro_batch": [SLOTS]}})
            job.run(f"dp={dp}")
            reports = job.wait_step(2) and job.status()["run"]["reports"]
            mount = Mount(self, c)
            self.compare_division(mount, job, sequences, (int(reports["cost_linear"]), int(reports["cost_square"])), 1,
                                  job.status()["run"], sample)
            job.do("stop")
            mount.stop()

    @staticmethod
    def division(sequences, cost, step, dp, sample=None, g=8, seed=7):
        """Of a step: its samples, and the oracle's slots and greatest cost of a rank."""
        n = len(sequences)
        sample = sample or (lambda p: order_oracle.at(n, seed, *divmod(p, n)))
        ids = [sample(p) for p in range(step * g, (step + 1) * g)]
        return ids, *order_oracle.balanced([len(sequences[i]) for i in ids], *cost, SLOTS, dp)[:2]

    def compare_division(self, mount, job, sequences, cost, generation, run, sample=None):
        """Files of the newest generation, before any snapshot has a tag of it, padding included."""
        dp = len(run["ranks"])
        for rank in range(dp):
            base = mount.path(job.name, "data", "data", f"gen-{generation}", f"dp-{rank}")
            name = self.rng.choice(os.listdir(base))
            with open(os.path.join(base, name, "partition.json"), encoding="utf-8") as f:
                said = json.load(f)
            rows = []
            for step in range(said["first_step"], said["first_step"] + said["steps"]):
                ids, slots, _ = self.division(sequences, cost, step, dp, sample)
                rows += [(ids[i], weight) for m in slots for i, weight in m[rank]]
            self.check(os.path.join(base, name), rows, lambda i: sequences[i].tobytes(), "int32")

    @harness.labels("repeats")
    def test_mixture(self):
        """Sources of several kinds by weight, shuffled within blocks and not at all, before there is any snapshot."""
        flat = np.arange(900, dtype="uint16")
        flat.tofile(self.path("flat.bin"))
        rows = np.arange(400, dtype="uint16").reshape(20, 20) + 1000
        np.save(self.path("rows.npy"), rows)
        sequences = self.sequences(33, "uint16")
        oracle.write_indexed(self.path("text"), sequences, dtype="uint16")
        parts = [(100, 5, True, 16), (20, 2, False, 0), (33, 5, True, 0)]
        contents = [flat[9 * i:9 * i + 9].tobytes() for i in range(100)] + [r.tobytes() for r in rows] + \
            [s.tobytes() for s in sequences]
        n, g, dp = len(contents), 13, 2
        with self.cluster(nodes=1, devices=2) as c:
            c.ptcctl("dataset", "add", "flat", self.path("flat.bin"), "--kind", "flat", "--dtype", "uint16", "--record", "9")
            c.ptcctl("dataset", "add", "rows", self.path("rows.npy"))
            c.ptcctl("dataset", "add", "text", self.path("text"))
            job = live.Job(c, self.dir, run={"data": {"mixed": {"seed": 5, "mix": [
                {"dataset": "flat", "weight": 5, "block": 16}, {"dataset": "rows", "weight": 2, "shuffle": False},
                {"dataset": "text", "weight": 5}]}}})
            job.run(f"dp={dp},micro_batch={SLOTS},global_batch={g}")
            mount = Mount(self, c)

            def sample(p):
                j, i, _ = order_oracle.mixed(parts, 5, p)
                return sum(m for m, *_ in parts[:j]) + i

            for rank in range(dp):
                for epoch in (0, 1, 7, 100):
                    want = self.rows(sample, n, 0, 0, epoch, g, SLOTS, dp, rank)
                    self.check(mount.path(job.name, "data", "mixed", "gen-1", f"dp-{rank}", f"epoch-{epoch}"),
                               [r for step in want.values() for r in step], contents.__getitem__, "uint16")
            mount.stop()

    def test_files(self):
        """A directory of files: each is a sequence of bytes. And what is not there, may not be seen, or has changed."""
        os.mkdir(self.path("files"))
        contents = [self.rng.randbytes(self.rng.randrange(5000)) for _ in range(40)]
        base = [f"{i:03}" for i in range(39)] + ["é" * 123 + ".jpg"] # the last one's is too long to have the slot before it
        for name, data in zip(base, contents):
            with open(self.path("files", name), "wb") as f:
                f.write(data)
        with self.cluster(nodes=1, devices=2) as c:
            c.ptcctl("dataset", "add", "files", self.path("files"))
            one = {"dataset": "files", "seed": 1, "global_batch": 7, "micro_batch": 2}
            job = live.Job(c, self.dir, run={"data": {"f": one, "none": {"dataset": "files"}}})
            job.run("dp=2")
            mount = Mount(self, c)
            folder = mount.path(job.name, "data", "f", "gen-1", "dp-1", "epoch-0")
            want = self.rows(lambda p: order_oracle.at(40, 1, p // 40, p % 40), 40, 0, 0, 0, 7, 2, 2, 1)
            rows = [r for step in want.values() for r in step]
            self.check(folder, rows, contents.__getitem__, "uint8")
            base[39] = "é" * 120 + ".jpg"
            names = [f"{slot:09}-{base[sample]}" for slot, (sample, _) in enumerate(rows)]
            self.assertEqual(names, sorted(os.listdir(os.path.join(folder, "files"))))
            listed = {e.name: e.inode() for e in os.scandir(os.path.join(folder, "files"))}
            for name, (sample, _) in zip(names, rows):
                with open(os.path.join(folder, "files", name), "rb") as f:
                    self.assertEqual((contents[sample], listed[name]), (f.read(), os.fstat(f.fileno()).st_ino), name)
            self.assertFalse(os.path.exists(mount.path(job.name, "data", "none", "gen-1")))
            for gone in (f"{len(rows):09}-000", "00000000-000", "0000000000-000", names[0] + "x", "x", "-", "99999999999999999999-a"):
                self.assertFalse(os.path.exists(os.path.join(folder, "files", gone)), gone)
            for gone in ("f/gen-2", "f/gen-01", "f/gen-1/dp-2", "f/gen-1/dp-0/epoch--1", "f/gen-1/dp-0/epoch-0/x", "g"):
                self.assertFalse(os.path.exists(mount.path(job.name, "data", *gone.split("/"))), gone)
            with self.assertRaises(OSError):
                open(os.path.join(folder, "ids.npy"), "wb").close()
            self.assertRaises(OSError, os.listdir, mount.path(job.name, "data", "none", "gen-1"))
            with open(mount.log) as f:
                self.assertIn("neither the configuration nor the job says its global and micro batch", f.read())
            r = subprocess.run(["setpriv", "--reuid=65534", "--clear-groups", "ls", folder], capture_output=True)
            self.assertNotEqual(0, r.returncode)
            mount.stop()
            os.truncate(self.path("files", "000"), 5)
            os.unlink(self.path("files", "001"))
            mount = Mount(self, c)
            self.assertRaises(OSError, os.listdir, mount.path(job.name, "data", "f", "gen-1"))
            with open(mount.log) as f:
                self.assertIn("has other files than when it was added", f.read())
            mount.stop()

    def own_and_roots(self, c, job, roots):
        """The owner compares all that is in a mount of his own with what root's mount shows him."""
        script = """
            as="setpriv --reuid=$6 --regid=$6 --clear-groups"
            $as "$3" mount "$2"; trap '$as "$3" umount "$2"' EXIT
            $as diff -r "$2/$5/data" "$4/$5/data"; $as find "$4/$5/data" -type f | wc -l
            """
        r = run_with_fuse_for_all(self, c, script, roots, job.name, str(OTHER_UID))
        self.assertEqual(0, r.returncode, r.stdout)
        return int(r.stdout)

    @skip_unless_root
    def test_mount_by_root(self):
        """Root's mount has each job's data, read with its owner's rights: for him the bytes of a mount of his own, for root the same, for
        others nothing."""
        sequences = self.sequences(40)
        oracle.write_indexed(self.path("text"), sequences)
        os.mkdir(self.path("files"))
        contents = [self.rng.randbytes(self.rng.randrange(5000)) for _ in range(30)]
        for i, b in enumerate(contents):
            with open(self.path("files", f"{i:02}.bin"), "wb") as f:
                f.write(b)
        for at in (self.path("text.bin"), self.path("text.idx"), self.path("files")):
            os.chown(at, OTHER_UID, OTHER_UID)
            os.chmod(at, 0o700)
        with self.cluster(nodes=2, devices=2) as c:
            for name in ("text", "files"):
                c.ptcctl("dataset", "add", name, self.path(name), *(["--here"] if name == "files" else []), prefix=OWNER)
            job = self.run_as_owner(c, "owns", {k: {"dataset": k, "seed": 5} for k in ("text", "files")})
            for node in ("n0", "n1"): # of "files" n0 alone is asked
                mount = Mount(self, c, "--others", node=node)
                self.assertEqual({"text", "files"}, set(os.listdir(mount.path(job.name, "data"))))
                for name, n, bytes_of, dtype in (("text", 40, lambda i: sequences[i].tobytes(), "int32"),
                                                 ("files", 30, contents.__getitem__, "uint8")):
                    want = self.rows(lambda p, n=n: order_oracle.at(n, 5, p // n, p % n), n, 0, 0, 1, 10, SLOTS, 2, 1)
                    folder = mount.path(job.name, "data", name, "gen-1", "dp-1", "epoch-1")
                    self.check(folder, [r for step in want.values() for r in step], bytes_of, dtype)
                    self.assertEqual((OTHER_UID, 0o40500), (os.stat(folder).st_uid, os.stat(folder).st_mode))
                    self.assertEqual(0o100400, os.stat(os.path.join(folder, "samples.bin")).st_mode)
                    for command in (["ls", folder], ["cat", os.path.join(folder, "samples.bin")]):
                        self.assertEqual(1 if command[0] == "cat" else 2, subprocess.run([*THIRD, *command], capture_output=True).returncode)
                        self.assertEqual(0, subprocess.run([*OWNER, *command], capture_output=True).returncode)
                if node == "n0":
                    self.assertGreater(self.own_and_roots(c, job, mount.dir), 2 * 2 * 8 * 5)
                mount.stop()
            job.do("stop")
            self.opened_to_group(c)
            self.opened_nothing(c)

    def opened_to_group(self, c):
        """What is shared with a group is read for its members as for the owner, who alone has the sources."""
        job = self.run_as_owner(c, "shares", {"text": {"dataset": "text"}}, files={"group": OTHER_UID})
        mount = Mount(self, c, "--others")
        path = mount.path(job.name, "data", "text", "gen-1", "dp-0", "epoch-0", "samples.bin")
        with open(path, "rb") as f:
            want = f.read()
        member = [*THIRD[:-1], f"--groups={OTHER_UID}"]
        self.assertEqual(want, subprocess.run([*member, "cat", path], stdout=subprocess.PIPE, check=True).stdout)
        self.assertEqual(1, subprocess.run([*THIRD, "cat", path], capture_output=True).returncode)
        self.assertEqual(1, subprocess.run([*member, "cat", self.path("text.bin")], capture_output=True).returncode)
        mount.stop()
        job.do("stop")

    def run_as_owner(self, c, name, data, **keys):
        """Ranks in C, for others may not run root's Python."""
        os.mkdir(self.path(name))
        job = test_ctrainer.Trainer(test_ctrainer.As(c, OTHER_UID), self.path(name), "restart", steps=1 << 40, sleep_ms=5)
        with open(job.yaml) as f:
            spec = json.load(f)
        job.name = name
        with open(job.yaml, "w") as f:
            json.dump(spec | {"name": name, "data": data, **keys}, f)
        job.run(f"dp=2,global_batch=10,micro_batch={SLOTS}")
        return job

    def opened_nothing(self, c):
        """A job whose dataset says that it is a file of root's, which its owner made up: root serves it, and reads nothing."""
        import grpc  # noqa: F401, while its files may still be read
        secret = self.path("secret")
        with open(secret, "wb") as f:
            f.write(self.rng.randbytes(4000))
        os.chmod(secret, 0o600)
        c.ptcctl("dataset", "add", "roots", secret, "--kind", "flat", "--dtype", "uint8", "--record", "100")
        doc, = (d for d in c.json("dataset", "list")["datasets"] if d["name"] == "roots")
        os.seteuid(OTHER_UID)
        try:
            with wire.Peer(f"unix:{c.nodes['n0'].socket}") as p:
                p.call("Control", "DatasetAdd", json=json.dumps(doc | {"name": "theirs"}))
        finally:
            os.seteuid(0)
        job = self.run_as_owner(c, "thief", {"d": {"dataset": "theirs"}})
        mount = Mount(self, c, "--others")
        self.assertEqual(["d"], os.listdir(mount.path(job.name, "data")))
        with self.assertRaises(PermissionError):
            os.listdir(mount.path(job.name, "data", "d", "gen-1"))
        with open(mount.log) as f:
            self.assertRegex(f.read(), f"cannot open {secret}: Permission denied")
        mount.stop()

    @unittest.skipUnless(LONG, "set PTC_TEST_LONG=1; Megatron takes its time to be imported")
    @harness.needs(modules=("torch", "megatron"))
    def test_other_readers(self):
        """Megatron's own IndexedDataset, mapped and not, and PyTorch's DataLoader with two workers on top of it."""
        n, g = 200, 16
        sequences = self.sequences(n)
        oracle.write_indexed(self.path("text"), sequences)
        with self.cluster(nodes=1, devices=2) as c:
            c.ptcctl("dataset", "add", "text", self.path("text"))
            job = live.Job(c, self.dir, run={"data": {"d": {"dataset": "text", "seed": 3, "global_batch": g, "micro_batch": SLOTS}}})
            job.run("dp=2")
            mount = Mount(self, c)
            for rank in range(2):
                folder = mount.path(job.name, "data", "d", "gen-1", f"dp-{rank}", "epoch-0")
                r = subprocess.run([sys.executable, "-W", "ignore", "-c", READERS, os.path.join(folder, "samples")],
                                   capture_output=True, text=True, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"})
                self.assertEqual(0, r.returncode, r.stderr)
                want = [sequences[i].tolist() for i in np.load(os.path.join(folder, "ids.npy")).tolist()]
                for way, got in json.loads(r.stdout).items():
                    self.assertEqual(want, got, way)
            mount.stop()

    def test_paths_ask_nobody(self):
        """Whoever opens file after file of a source that lies here walks paths that are settled: ptcd is not asked for any part of
        them, and may be away."""
        n, g = 40, 8
        contents = [self.rng.randbytes(100 + i) for i in range(n)]
        os.mkdir(self.path("files"))
        for i, data in enumerate(contents):
            with open(self.path("files", f"{i:03}"), "wb") as f:
                f.write(data)
        save_file({"w": np.zeros(4, "float32")}, self.path("model.safetensors"))
        with open(self.path("job.yaml"), "w") as f:
            json.dump({"version": 1, "name": "j", "tensors": {"from": self.path("model.safetensors")}, "rules": [{"match": "*"}],
                       "data": {"d": {"dataset": "files", "seed": 3, "global_batch": g, "micro_batch": SLOTS}}}, f)
        with self.cluster(nodes=1, devices=2) as c:
            c.ptcctl("dataset", "add", "files", self.path("files"))
            c.ptcctl("job", "create", "-f", self.path("job.yaml"))
            c.ptcctl("import", "j", self.path("model.safetensors"), "--config", "dp=2")
            mount = Mount(self, c)
            base = mount.path("j", "data", "d", "gen-1")
            names = sorted(os.listdir(os.path.join(base, "dp-0", "epoch-0", "files")))
            c.nodes["n0"].kill()
            for rank in range(2):
                folder = os.path.join(base, f"dp-{rank}", "epoch-0")
                ids = np.load(os.path.join(folder, "ids.npy")).tolist()
                want = self.rows(lambda p: order_oracle.at(n, 3, p // n, p % n), n, 0, 0, 0, g, SLOTS, 2, rank)
                self.assertEqual([i for step in want.values() for i, _ in step], ids)
                for name, i in zip(names if rank == 0 else (), ids):
                    with open(os.path.join(folder, "files", name), "rb") as f:
                        self.assertEqual(contents[i], f.read(), name)
            mount.stop()

    @harness.labels("repeats")
    def test_pinned(self):
        """A job keeps to the dataset it was created with, whatever gets its name later."""
        for name in ("a", "b"):
            oracle.write_indexed(self.path(name), self.sequences(20))
        with self.cluster(nodes=1, devices=1) as c:
            c.ptcctl("dataset", "add", "d", self.path("a"))
            job = live.Job(c, self.dir, run={"data": {"d": {"dataset": "d", "global_batch": 4, "micro_batch": 1}}})
            job.run("dp=1")
            mount = Mount(self, c)
            self.assertTrue(os.path.exists(mount.path(job.name, "data", "d", "gen-1", "dp-0", "epoch-0", "samples.idx")))
            mount.stop()
            c.ptcctl("dataset", "remove", "d")
            c.ptcctl("dataset", "add", "d", self.path("b"))
            mount = Mount(self, c)
            self.assertRaises(OSError, os.listdir, mount.path(job.name, "data", "d", "gen-1"))
            with open(mount.log) as f:
                self.assertIn("dataset d has another source than when the job was created", f.read())
            mount.stop()
            other = live.Job(c, self.path("x"), name="other", run={"data": {"d": {"dataset": "nothing"}}})
            p = other.run("dp=1", check=False)
            self.assertEqual(1, p.returncode)
            self.assertIn('data d: dataset "nothing" does not exist', p.stderr)
