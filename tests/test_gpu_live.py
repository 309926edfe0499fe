# SPDX-License-Identifier: Apache-2.0
"""Live jobs whose tensors lie in device memory, on the fake driver: ranks of tests/gpu/gpu_trainer.c, whose device addresses are no
memory of theirs but through the driver. Whoever copies, the bytes are those of a closed formula, and nothing is left mapped."""
import argparse
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import time
import unittest.mock
import urllib.request
import warnings
import weakref

import harness
import live
import numpy as np
from harness import PATIENCE, wait_for

FAKE = harness.binary("tests/gpu/fake")
TRAINER = harness.binary("tests/gpu/gpu_trainer")


def from_where(done):
    """Of a switch's summary: bytes that stayed on a device, came from another one, came through the host."""
    return tuple(done[f"device_{k}_bytes"] for k in ("kept", "peer", "host"))


def alive(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as f:
        return f.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    return False


class GpuJob(live.Job):
    def __init__(self, c, directory, gpu, mode="rebuild", rows=37, layers=3, memory="plain", env=None, argv=(), run_options=None,
                 name="gpu", **run):
        self.c, self.name, self.dir, self.rows, self.layers, self.apart = c, name, directory, rows, layers, set()
        self.host = "--host" not in argv
        argv = [TRAINER, "--rows", str(rows), "--layers", str(layers), "--memory", memory, *argv]
        env = {"LD_LIBRARY_PATH": FAKE, "PTC_FAKE_GPU": gpu, "PTC_FAKE_GPU_APART": "1", "PTC_FAKE_GPU_SOUND": "1",
               **harness.sanitizer_env(), **(env or {})}
        spec = {"version": 1, "name": self.name, "mode": mode, "run": {"argv": argv, "env": env, "grace": "30s", **(run_options or {})},
                **run}
        self.yaml = os.path.join(directory, f"{name}.yaml")
        with open(self.yaml, "w") as f:
            json.dump(spec, f)

    def expected(self, step):
        want = super().expected(step)
        i, j = np.meshgrid(np.arange(self.rows), np.arange(64), indexing="ij")
        want["param"]["cols"] = i + j / 64 + float(step)
        if not self.host:
            del want["param"]["steps"]
        return want

    def ranks(self):
        return {r["rank"]: r for r in self.status()["run"]["ranks"] if r.get("pid")}


class GpuLive(harness.Case):
    @contextlib.contextmanager
    def gpus(self, config=None, **env):
        """A node with two fake GPUs; afterwards no process of the driver has left anything, nor done anything wrong."""
        self.gpu, image = self.path("gpu"), self.path("image")
        for d in (self.gpu, *glob.glob(self.path("at-*")), self.path("end")):  # of a cluster before
            shutil.rmtree(d, ignore_errors=True)
        os.makedirs(self.gpu)
        os.chmod(self.gpu, 0o777)
        with open(image, "w") as f:
            f.write("kernels of the fake driver\n")
        self.may_leave = False
        env = {"LD_LIBRARY_PATH": FAKE, "PTC_FAKE_GPU": self.gpu, "PTC_GPU_KERNELS": image, **env}
        with self.cluster(up=False, nodes=1) as c:
            self.scraped = f"127.0.0.1:{harness.clusters.free_port()}"
            c.write_config(c.nodes["n0"], devices="auto", metrics=self.scraped, **(config or {}))
            c.up({"n0": env}, timeout_s=60 * PATIENCE)
            yield c
        self.check_reports()
        self.assertEqual([], [f for f in os.listdir(self.gpu) if f.startswith("alloc-")] if not self.may_leave else [])

    def metrics(self):
        """Bytes restored to devices since ptcd started, by where they came from."""
        with urllib.request.urlopen(f"http://{self.scraped}/metrics", timeout=20 * PATIENCE) as r:
            text = r.read().decode()
        return tuple(int(re.search(rf"^ptc_device_{k}_bytes_total (\d+)$", text, re.M)[1]) for k in ("kept", "peer", "host"))

    def reports(self):
        for path in glob.glob(os.path.join(self.gpu, "report-*")):
            with open(path) as f:
                yield path, f.read()

    def check_reports(self):
        for path, text in self.reports():
            left = re.findall(r"^left (\w+) ([1-9]\d*)$", text, re.M)
            self.assertEqual(([], "0"), (left if not self.may_leave else [], re.search(r"^count wrong (\d+)", text, re.M)[1]),
                             f"{path}: {text}")

    def calls(self, function):
        """By processes that have ended: how often, of each that called it."""
        return [int(n) for _, text in self.reports() for n in re.findall(rf"^call {function} (\d+)$", text, re.M)]

    def faults(self, *rules):
        with open(os.path.join(self.gpu, "faults"), "w") as f:
            f.write("".join(rule + "\n" for rule in rules))

    def tried(self, job):
        """What each rank's status says of its device memory, once ptc-gpu has tried to open it, which goes on beside training."""
        def look():
            said = {r: s["device_memory"] for r, s in job.ranks().items()}
            return said if all(s["copied_by"] != "untried" for s in said.values()) else None
        return wait_for(look, 20 * PATIENCE, "ptc-gpu to try")

    def resizes(self, c, by, why="", marks="none", **options):
        """tp=2, tp=1, dp=2, tp=2, where replicas are compared, too: at each stop and after each restore the bytes are right; who copied is what status says."""
        job = GpuJob(c, self.dir, self.gpu, **options)
        job.run("tp=2")
        at = 0
        for config in ("tp=1", "dp=2", "tp=2"):
            job.wait_step(at + 10)
            said = self.tried(job)
            self.assertEqual({(by, marks)}, {(s["copied_by"], s["marks"]) for s in said.values()}, said)
            for s in said.values():
                self.assertIn(why, s.get("why", ""))
            at = job.resize(config)["step"]
            job.check_state(self, at, self.path(f"at-{config}"))
        job.wait_step(at + 10)
        job.do("stop")
        job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))

    def test_resizes(self):
        """ptc-gpu maps the ranks' memory and copies it; short rows by a kernel."""
        for mode in ("rebuild", "restart"):
            with self.subTest(mode), self.gpus() as c:
                self.resizes(c, "ptc-gpu", mode=mode)
            self.assertEqual(1, len(self.calls("cuIpcOpenMemHandle")))
            self.assertEqual(1, len(self.calls("cuLaunchKernel")))

    def test_old_memory_is_free(self):
        """A device has room for the old ranks or for the new ones: none of the new ones allocates before all of the old ones have freed
        theirs."""
        for mode in ("rebuild", "restart"):
            with self.subTest(mode), self.gpus(PTC_GPU_KERNELS="off") as c:
                self.resizes(c, "ptc-gpu", mode=mode, rows=700, env={"PTC_FAKE_GPU_ROOM": "700000"})  # 297296 bytes of tp=2, 577296 of others

    def test_resizes_handles(self):
        """Memory of cuMemMap, several handles: ptc-gpu maps each by its descriptor; where there are none the ranks copy."""
        with self.gpus() as c:
            self.resizes(c, "ptc-gpu", rows=700, memory="vmm")
        self.assertTrue(max(self.calls("cuMemImportFromShareableHandle")) > 8)
        self.assertEqual([], self.calls("cuIpcOpenMemHandle"))
        with self.gpus() as c:
            self.resizes(c, "rank", "cannot be shared by descriptors", rows=700, memory="vmm", env={"PTC_FAKE_GPU_NO_FDS": "1"})
        self.assertEqual([], self.calls("cuMemImportFromShareableHandle"))

    def test_state_pool(self):
        """Memory of ptc_pool_alloc: by descriptor where IPC handles do not work; plain where the driver exports no descriptors."""
        with self.gpus() as c:
            self.resizes(c, "ptc-gpu", memory="state", env={"PTC_FAKE_GPU_NO_IPC": "1"})
        self.assertEqual([], self.calls("cuIpcOpenMemHandle"))
        with self.gpus() as c:
            self.resizes(c, "rank", "cannot be shared by descriptors", memory="state",
                         env={"PTC_FAKE_GPU_NO_FDS": "1", "PTC_FAKE_GPU_NO_EXPORT": "1"})

    def test_bound_twice(self):
        """A snapshot wants memory that comes by descriptor while ptcd still tries whether ptc-gpu can map it, and has not given it the
        descriptor: it waits for that."""
        self.arm("workers.bind.handles=hold")
        with self.gpus(PTC_FAULT_FILE=self.path("rules"), PTC_FAULT_LIST=self.path("points")) as c:
            job = GpuJob(c, self.dir, self.gpu, memory="state")
            job.run("tp=1")
            wait_for(lambda: self.passed("workers.bind.handles"), 60 * PATIENCE, "memory that is being mapped", 0.05)
            self.assertEqual({"untried"}, {s["device_memory"]["copied_by"] for s in job.ranks().values()})
            job.wait_step(5)
            taking = self.snapshot(job)
            wait_for(lambda: taking.poll() is not None or (job.status()["phase"] != "idle" and self.stand(job)), 60 * PATIENCE, "ranks that stand")
            time.sleep(1)  # the snapshot's copies begin, and wait for the memory: so long they may not fail
            self.assertIsNone(taking.poll())
            self.arm("")
            self.assertEqual("", taking.communicate(timeout=120 * PATIENCE)[1])
            self.assertEqual(0, taking.returncode)
            self.assertEqual({"ptc-gpu"}, {s["copied_by"] for s in self.tried(job).values()})
            job.check_state(self, job.status()["step"], self.path("at"))
            job.do("stop")

    def test_resizes_by_rank(self):
        """Memory of a pool cannot be shared: the ranks copy it themselves, and ptc-gpu maps nothing."""
        with self.gpus() as c:
            self.resizes(c, "rank", "stream-ordered pool", memory="pool")
        self.assertEqual([], self.calls("cuIpcOpenMemHandle"))

    def test_copy_fast(self):
        """copy: fast: ranks copy to staging memory themselves, go on, and are restored by ptc-gpu."""
        with self.gpus() as c:
            self.resizes(c, "ptc-gpu", copy="fast")
        # Of the ranks, each stop; and none by ptc-gpu, whose copies out go through streams.
        self.assertTrue(self.calls("cuMemcpyDtoH"))
        self.assertEqual([], self.calls("cuMemcpyDtoHAsync"))

    def snapshot(self, job):
        return subprocess.Popen([harness.program("ptcctl"), "--socket", job.c.nodes["n0"].socket, "snapshot", job.name, "--wait"],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def blocked(self, *names):
        for name in names or ("blocked",):
            wait_for(lambda: os.path.exists(os.path.join(self.gpu, name)), 60 * PATIENCE, name, 0.02)

    def unblock(self, taking):
        """Lets copies go on that the fault `block` holds back. Returns the snapshot's status and what it said."""
        os.unlink(os.path.join(self.gpu, "faults"))
        open(os.path.join(self.gpu, "unblock"), "w").close()
        _, said = taking.communicate(timeout=120 * PATIENCE)
        os.unlink(os.path.join(self.gpu, "unblock"))
        os.unlink(os.path.join(self.gpu, "blocked"))
        return taking.returncode, said

    def copier(self, c):
        """The node's ptc-gpu."""
        with contextlib.suppress(OSError):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as f:
                    name, rest = f.read().rpartition(")")[::2]
                    if name.endswith("(ptc-gpu") and int(rest.split()[1]) == c.nodes["n0"].pid():
                        return int(pid)
        return None

    def own(self, c):
        """Device memory that ptc-gpu has for itself."""
        return sorted(os.path.getsize(p) for p in glob.glob(os.path.join(self.gpu, f"alloc-{self.copier(c)}-*")))

    def arm(self, rules):
        """Sets the fault points of the node's ptcd, for a cluster that was begun with PTC_FAULT_FILE."""
        harness.replace_file(self.path("rules"), rules + "\n")

    def passed(self, point):
        """Whether a process that was begun with PTC_FAULT_LIST has come to the fault point."""
        with contextlib.suppress(FileNotFoundError), open(self.path("points")) as f:
            return point in f.read().split()
        return False

    def async_job(self, c, **options):
        """A job with copy: async, and a snapshot of it, after which ptc-gpu has what it keeps for itself."""
        job = GpuJob(c, self.dir, self.gpu, copy="async", **options)
        job.run("tp=2")
        job.wait_step(5)
        self.tried(job)
        job.do("snapshot")
        self.assertEqual([("async", None)] * 2, self.ways(job))
        return job, self.own(c)

    def ways(self, job):
        return [(r["device_memory"].get("copy"), r["device_memory"].get("copy_why")) for r in job.ranks().values()]

    def test_copy_async(self):
        """copy: async: the ranks train on while their state is copied out of its copy on their devices; it is that of the stop."""
        for memory, rows, marks in (("plain", 37, "1"), ("vmm", 700, "0")):
            with self.subTest(memory), self.gpus() as c:
                job, own = self.async_job(c, memory=memory, rows=rows, argv=["--marks", marks])
                first = job.status()["step"]
                job.check_state(self, first, self.path("at-first"))
                self.faults("cuMemcpyDtoHAsync 0 block")
                taking = self.snapshot(job)
                self.blocked()
                self.assertLess(sum(own) + 2 * 8 * rows * (6 * 3 + 32), sum(self.own(c)))
                job.wait_step(job.step() + 20)
                self.assertEqual(first, job.status()["step"])
                self.assertEqual((0, ""), self.unblock(taking))
                at = job.status()["step"]
                self.assertTrue(first < at < job.step() - 10, (first, at))
                job.check_state(self, at, self.path("at-second"))
                self.assertEqual([("async", None)] * 2, self.ways(job))
                self.assertEqual(own, self.own(c))
                at = job.resize("dp=2")["step"]
                job.check_state(self, at, self.path("at-dp=2"))
                job.wait_step(at + 5)
                job.do("snapshot")  # replicas are compared where their copies are
                job.check_state(self, job.status()["step"], self.path("at-replicas"))
                self.assertEqual([("async", None)] * 2, self.ways(job))
                job.do("stop")

    def test_copy_async_refused(self):
        """Without room on a device, or where the copy there fails, the ranks wait for the copy as ever, and status says why."""
        with self.gpus() as c:
            self.may_leave = True  # what a ptc-gpu with a sticky error had mapped ended with it
            job, own = self.async_job(c)
            for name, prepare, why in (
                    ("room", lambda: None, r"^device GPU-d1.*: a copy of \d+ bytes has no room there: 16777300 of 268435456 bytes are "
                                           r"free, and 16777216 have to stay so for the ranks$"),
                    ("memory", lambda: self.faults("cuMemAlloc 0 2"), "keep .* bytes: CUDA_ERROR_OUT_OF_MEMORY"),
                    ("copy", lambda: self.faults("cuMemcpy3DAsync 0 719 sticky once"), "CUDA_ERROR_LAUNCH_FAILED|unspecified launch")):
                with self.subTest(name):
                    with open(os.path.join(self.gpu, "free-1"), "w") as f:
                        f.write("16777300\n" if name == "room" else f"{200 << 20}\n")
                    prepare()
                    before = job.status()["step"]
                    job.do("snapshot")
                    if os.path.exists(os.path.join(self.gpu, "faults")):
                        os.unlink(os.path.join(self.gpu, "faults"))
                    at = job.status()["step"]
                    self.assertLess(before, at)
                    job.check_state(self, at, self.path(f"at-{name}"))
                    for way, said in self.ways(job):
                        self.assertEqual("lean", way)
                        self.assertRegex(said, why)
                    if name != "copy":
                        self.assertEqual(own, self.own(c))
            job.do("snapshot")
            job.check_state(self, job.status()["step"], self.path("at-end"))
            self.assertEqual([("async", None)] * 2, self.ways(job))
            with open(os.path.join(c.nodes["n0"].dir, "ptcd.log")) as f:
                self.assertEqual(1, f.read().count("copy: async is refused"))
            job.do("stop")

    def test_copy_async_dies(self):
        """What ends while ranks have gone on: a rank costs nothing that was stopped, its ptc-gpu the snapshot and no more; and nothing at
        all if it ends right before they go on."""
        self.arm("")
        with self.gpus(PTC_FAULT_FILE=self.path("rules")) as c:
            self.may_leave = True
            job, own = self.async_job(c)
            for what in ("unreleased", "abort", "ptc-gpu", "rank"):
                first = job.status()["step"]
                if what == "unreleased":  # before the ranks go on: they wait for the copy of their own memory
                    self.arm("agent.capture.release=hold")
                    taking = self.snapshot(job)
                    wait_for(lambda: len(self.own(c)) > len(own), 60 * PATIENCE, "the copy on the devices", 0.05)
                    at = job.step()
                    os.kill(self.copier(c), signal.SIGKILL)
                    self.arm("")
                    said = taking.communicate(timeout=120 * PATIENCE)
                    self.assertEqual((0, ""), (taking.returncode, said[1]))
                    self.assertEqual([("lean", "ptc-gpu ended before the ranks went on")] * 2, self.ways(job))
                    self.assertEqual(at, job.status()["step"])
                    job.check_state(self, at, self.path("at-unreleased"))
                    continue
                self.faults("cuMemcpyDtoHAsync 0 block")
                taking = self.snapshot(job)
                self.blocked()
                job.wait_step(job.step() + 10)
                if what == "abort":
                    c.ptcctl("abort", job.name, check=False, timeout_s=60 * PATIENCE)
                    status, said = self.unblock(taking)
                    self.assertEqual((1, True), (status, "aborted by request" in said), said)
                    wait_for(lambda: self.own(c) == own, 60 * PATIENCE, "the copy on the device to be gone", 0.05)
                elif what == "ptc-gpu":
                    os.kill(self.copier(c), signal.SIGKILL)
                    status, said = self.unblock(taking)
                    self.assertNotEqual(0, status)
                    self.assertRegex(said, "device GPU-d[01].*: the copy there of ranks that have gone on is lost: ")
                    self.assertEqual(first, job.status()["step"])
                    wait_for(lambda: job.status()["phase"] == "idle", 60 * PATIENCE, "idle", 0.1)
                    job.wait_step(job.step() + 5)
                    job.do("snapshot")
                    self.assertLess(first, job.status()["step"])
                    job.check_state(self, job.status()["step"], self.path("at-again"))
                else:
                    victim = job.ranks()[0]["pid"]
                    os.kill(victim, signal.SIGKILL)
                    wait_for(lambda: not alive(victim), 60 * PATIENCE, "the rank to be dead", 0.02)
                    self.assertEqual((0, ""), self.unblock(taking))
                    at = job.wait_run("failed")["step"]
                    self.assertLess(first, at)
                    job.check_state(self, at, self.path("end"))

    def test_copy_async_mark_moves(self):
        """A rank that changes its memory while that is copied on its device: what was copied does not count."""
        with self.gpus() as c:
            job, own = self.async_job(c, argv=["--marks", "1", "--folder", self.gpu])
            self.faults("cuMemcpy3DAsync 0 block")
            taking = self.snapshot(job)
            self.blocked()
            open(os.path.join(self.gpu, "meddle"), "w").close()
            self.blocked("meddled")
            status, said = self.unblock(taking)
            self.assertNotEqual(0, status, said)
            self.assertRegex(said, r"rank 0.*mark was \d+ before the copy, not \d+: what was copied is discarded")
            why = {why for way, why in self.ways(job) if way == "lean"}
            self.assertRegex(why.pop(), r"mark was \d+ (before|after) the copy, not")
            self.assertEqual(own, self.own(c))
            wait_for(lambda: job.status()["phase"] == "idle", 60 * PATIENCE, "idle", 0.1)
            job.wait_step(job.step() + 5)
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))

    def test_marks(self):
        """Ranks name their stream: a stop waits for the mark that the device writes there, never for the whole device."""
        with self.gpus() as c:
            self.resizes(c, "ptc-gpu", marks="proven", argv=["--marks", "1"])
        self.assertEqual(7, sum(self.calls("cuCtxSynchronize")))  # before each rank's restore: 2 + 1 + 2 + 2
        with self.gpus() as c:
            self.resizes(c, "rank", marks="proven", argv=["--marks", "1"], memory="pool")
        with self.gpus() as c:
            job = GpuJob(c, self.dir, self.gpu, argv=["--marks", "1", "--steps", "40"])
            job.run("tp=2")
            self.assertEqual(40, job.wait_run("done")["step"])
            job.check_state(self, 40, self.path("done"))

    def marks(self, job):
        return {r["device_memory"]["marks"] for r in job.ranks().values()}

    def test_marks_unproven(self):
        """Marks end with a second stream, and with an update that goes into a graph; then stops wait for the device. So do they where
        the driver cannot write marks."""
        with self.gpus() as c:
            job = GpuJob(c, self.dir, self.gpu, mode="rebuild", argv=["--marks", "2"])
            job.run("tp=2")
            job.wait_step(25)
            wait_for(lambda: self.marks(job) == {"unproven"}, 20 * PATIENCE, "marks to end")
            at = job.resize("tp=1")["step"]
            job.check_state(self, at, self.path("at-streams"))
            job.do("stop")
        with self.gpus() as c:
            job = GpuJob(c, self.dir, self.gpu, argv=["--marks", "1"])
            job.run("tp=2")
            job.wait_step(5)
            with open(os.path.join(self.gpu, "capturing"), "w"):
                wait_for(lambda: self.marks(job) == {"unproven"}, 20 * PATIENCE, "marks to end")
            os.unlink(os.path.join(self.gpu, "capturing"))
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))
        with self.gpus() as c:
            self.resizes(c, "ptc-gpu", marks="none", argv=["--marks", "1"], env={"PTC_FAKE_GPU_NO_MARKS": "1"})

    def test_marks_in_graphs(self):
        """Updates are launches of a CUDA graph: its mark is a node of it, wherever it is captured, and comes before what it changes at each
        launch. Without such nodes the marks end, and stops wait for the device."""
        for where in ("own", "other"):
            argv = ["--marks", "1", "--graph", where, "--folder", self.path("gpu")]
            with self.subTest(where), self.gpus() as c:
                self.resizes(c, "ptc-gpu", marks="proven", argv=argv)
            self.assertEqual(7, sum(self.calls("cuCtxSynchronize")))  # before each rank's restore
            self.assertEqual(7, sum(self.calls("cuGraphAddBatchMemOpNode")))
            with self.subTest(where), self.gpus() as c:
                job = GpuJob(c, self.dir, self.gpu, argv=argv)
                job.run("tp=2")
                job.wait_step(10)
                self.faults("cuMemcpyDtoHAsync 0 block")
                taking = self.snapshot(job)
                self.blocked()
                open(os.path.join(self.gpu, "meddle"), "w").close()
                self.blocked("meddled")
                status, said = self.unblock(taking)
                self.assertNotEqual(0, status, said)
                self.assertRegex(said, r"rank 0.*mark was 0 (before|after) the copy, not \d+: what was copied is discarded")
                wait_for(lambda: job.status()["phase"] == "idle", 60 * PATIENCE, "idle", 0.1)
                self.assertEqual({"proven"}, self.marks(job))
                job.do("stop")
                job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))
            with self.subTest(where), self.gpus() as c:
                job = GpuJob(c, self.dir, self.gpu, argv=argv, env={"PTC_FAKE_GPU_NO_NODES": "1"})
                job.run("tp=2")
                wait_for(lambda: self.marks(job) == {"unproven"}, 20 * PATIENCE, "marks to end")
                job.wait_step(10)
                at = job.resize("tp=1")["step"]
                job.check_state(self, at, self.path("at-tp=1"))
                job.do("stop")

    def test_mark_moves(self):
        """A rank that changes its memory while it waits at a stop: what was copied meanwhile does not count."""
        with self.gpus() as c:
            job = GpuJob(c, self.dir, self.gpu, argv=["--marks", "1", "--folder", self.gpu])
            job.run("tp=2")
            job.wait_step(10)
            self.faults("cuMemcpyDtoHAsync 0 block")
            taking = subprocess.Popen([harness.program("ptcctl"), "--socket", c.nodes["n0"].socket, "snapshot", job.name, "--wait"],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for name, then in (("blocked", "meddle"), ("meddled", "unblock")):
                wait_for(lambda: os.path.exists(os.path.join(self.gpu, name)), 60 * PATIENCE, name, 0.02)
                open(os.path.join(self.gpu, then), "w").close()
            os.unlink(os.path.join(self.gpu, "faults"))
            _, said = taking.communicate(timeout=120 * PATIENCE)
            self.assertNotEqual(0, taking.returncode, said)
            self.assertRegex(said, r"rank 0.*mark was \d+ (before|after) the copy, not \d+: what was copied is discarded")
            wait_for(lambda: job.status()["phase"] == "idle", 60 * PATIENCE, "idle", 0.1)
            job.wait_step(job.step() + 5)
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))

    def hang(self, job):
        open(os.path.join(self.gpu, "hang"), "w").close()
        wait_for(lambda: os.path.exists(os.path.join(self.gpu, "hung")), 60 * PATIENCE, "rank 0's device to hang", 0.02)
        job.wait_step(job.step() + 5)

    def test_hangs(self):
        """Something on rank 0's device never ends. With marks the state is taken all the same, if the state's own stream gets to the
        stop. Else the stop is refused, in the time that the job allows: the rank and its device are named, and training goes on."""
        with self.gpus() as c:
            job = GpuJob(c, self.dir, self.gpu, argv=["--marks", "1", "--folder", self.gpu, "--hang", "other"])
            job.run("tp=2")
            self.hang(job)
            at = job.resize("tp=1")["step"]
            job.check_state(self, at, self.path("at-hang"))
            job.do("stop")
        for marks, where in (("0", "other"), ("1", "own")):
            with self.subTest(marks=marks), self.gpus() as c:
                self.may_leave = True  # rank 0 can only be killed
                job = GpuJob(c, self.dir, self.gpu, argv=["--marks", marks, "--folder", self.gpu, "--hang", where, "--sleep-ms", "20"],
                             run_options={"boundary_timeout": f"{4 * PATIENCE}s", "grace": "1s"})
                job.run("tp=2")
                job.do("snapshot")
                kept = job.status()["step"]
                self.hang(job)
                r = job.resize("tp=1", check=False)
                self.assertRegex(r.stderr, r"rank 0.*its device has not finished the step in \d+\.\d s; perhaps a kernel hangs")
                wait_for(lambda: job.status()["phase"] == "idle", 60 * PATIENCE, "idle", 0.1)
                job.wait_step(job.step() + 5)
                if marks == "1":
                    device = job.ranks()[0]["device_memory"]
                    self.assertTrue(device["device_whole"], device)
                    self.assertLess(device["device_step"] + 5, job.step())
                self.assertEqual(kept, job.status()["step"])
                c.ptcctl("stop", job.name, "--now", timeout_s=60 * PATIENCE)

    def test_replicas_differ(self):
        """Replicas on devices whose bytes differ are found when the state is taken, and the ranks named."""
        with self.gpus() as c:
            self.may_leave = True  # its ranks are killed at the end
            job = GpuJob(c, self.dir, self.gpu, argv=["--differ-at", "20"])
            job.run("dp=2")
            job.wait_step(25)
            r = job.resize("tp=2", check=False)
            self.assertRegex(r.stderr, r"(?s)layer\.0\.weight.*rank")
            job.wait_step(job.step() + 5)

    def test_no_handles(self):
        """A driver that gives no IPC handle to ranks, or none that ptc-gpu may open: the ranks copy."""
        with self.gpus() as c:
            self.resizes(c, "rank", "gives no IPC handle", env={"PTC_FAKE_GPU_NO_IPC": "1"})
        with self.gpus() as c:
            self.faults("cuIpcOpenMemHandle 0 801")
            self.resizes(c, "rank", "CUDA_ERROR_NOT_SUPPORTED")

    def test_driver_errors(self):
        """A sticky error costs a ptc-gpu, not the switch; one that lasts costs the switch and names the device, and the ranks go on."""
        with self.gpus() as c:
            self.may_leave = True  # what a ptc-gpu with a sticky error had mapped ended with it
            job = GpuJob(c, self.dir, self.gpu)
            job.run("tp=2")
            job.wait_step(10)
            self.faults("cuMemcpyDtoHAsync 1 719 sticky once")
            at = job.resize("tp=1")["step"]
            self.assertFalse(os.path.exists(os.path.join(self.gpu, "faults")))
            job.check_state(self, at, self.path("first"))
            job.wait_step(at + 10)
            self.faults("cuMemcpyDtoHAsync 0 214 sticky")
            r = job.resize("tp=2", check=False)
            self.assertIn("uncorrectable memory error", r.stderr)
            self.assertRegex(r.stderr, "device GPU-d[01]d[01]")
            wait_for(lambda: job.status()["phase"] == "idle", 60 * PATIENCE, "idle", 0.1)
            job.wait_step(job.step() + 5)
            job.check_state(self, at, self.path("end"))  # what was committed before

    def test_stays_on_device(self):
        """With device_copy what stays on a device is copied there, and what another device of the node has comes from there; nothing of
        it comes from the host. But bytes that the device does not have right, or reads wrong, or without kernels for digests, do."""
        config = {"device_copy": "32MiB"}
        for name, memory, env in (("plain", "plain", {}), ("no peers", "plain", {"PTC_FAKE_GPU_NO_PEERS": "1"}),
                                  ("peers read garbage", "vmm", {"PTC_FAULT": "gpu.peer.bytes@1=fail"}), ("handles", "vmm", {}), ("wrong", "plain", {"PTC_FAULT": "gpu.within.bytes@1=fail"}),
                                  ("no kernels", "plain", {"PTC_GPU_KERNELS": "off"}), ("a ptc-gpu ends", "plain", {})):
            with self.subTest(name), self.gpus(config=config, **env) as c:
                job = GpuJob(c, self.dir, self.gpu, rows=700, memory=memory)
                job.run("tp=2")
                job.wait_step(10)
                self.tried(job)
                if name == "a ptc-gpu ends":
                    self.may_leave = True
                    self.faults("cuMemcpy3DAsync 1 719 sticky once")
                done = [job.resize("tp=1")]  # half of the one device's tensors stay there
                job.check_state(self, done[0]["step"], self.path("at-tp=1"))
                job.wait_step(done[0]["step"] + 5)
                done += [job.resize("dp=2")]  # all of them
                job.check_state(self, done[1]["step"], self.path("at-dp=2"))
                job.do("stop")
                counted = self.metrics()
                events = map(json.loads, c.ptcctl("events", job.name, "--format", "json").stdout.splitlines())
                with open(os.path.join(c.nodes["n0"].dir, "ptcd.log")) as f:
                    log = f.read()
                restored = re.findall(r"ranks restored in \S+ s, (\d+) bytes on their devices, (\d+) from other devices, (\d+) to dev", log)
                first, second = (tuple(map(int, n)) for n in restored)
                whole = 8 * (700 * 6 * 2 * 3 + 700 * 64)
                print(f"{name}: {first}, {second} of {whole} bytes", flush=True)
                self.assertEqual([first, second], list(map(from_where, done)))
                self.assertEqual([whole, 2 * whole], list(map(sum, (first, second))))
                self.assertEqual([from_where(d) for d in done], [from_where(e["switch"]) for e in events
                                                                 if "device_kept_bytes" in (e.get("switch") or {})])
                self.assertEqual(counted, tuple(map(sum, zip(*map(from_where, done)))))
                if name in ("plain", "handles"):
                    self.assertEqual([(whole // 2, whole // 2, 0), (whole, whole, 0)], [first, second])
                elif name == "no peers":
                    self.assertEqual([(whole // 2, 0, whole // 2), (whole, 0, whole)], [first, second])
                    self.assertIn("comes from the host: device", log)
                elif name == "peers read garbage":
                    self.assertTrue(first[0] == whole // 2 and first[1] < whole // 2, (first, second))
                    self.assertTrue(first[2] > 0 and second == (whole, whole, 0), (first, second))
                    self.assertIn("what it reads there is not what is there", log)
                elif name == "wrong":
                    self.assertTrue(first[2] > 0 and second == (whole, whole, 0), (first, second))
                elif name == "no kernels":
                    self.assertEqual([(0, 0, whole), (0, 0, 2 * whole)], [first, second])
                    self.assertIn("without kernels for digests", log)
                else:
                    self.assertEqual((0, 0, whole), first)
            for d in glob.glob(self.path("at-*")):
                shutil.rmtree(d, ignore_errors=True)

    def log(self, c):
        with open(os.path.join(c.nodes["n0"].dir, "ptcd.log")) as f:
            return f.read()

    def ahead(self, c):
        """[(bytes used, bytes read)] of restores that something was read ahead of."""
        return [(int(a), int(b)) for a, b in re.findall(r": the restore took (\d+) of the (\d+) bytes that were read ahead", self.log(c))]

    def resize_ahead(self, c, job, config, meanwhile=lambda: None, status=0):
        """Resizes; the new ranks build until what is read ahead has been read."""
        hold, ready = os.path.join(self.gpu, "hold"), "are read ahead of its restore"
        before = self.log(c).count(ready)
        open(hold, "w").close()
        taking = subprocess.Popen([harness.program("ptcctl"), "--socket", c.nodes["n0"].socket, "resize", job.name, "--config", config,
                                   "--wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_for(lambda: self.log(c).count(ready) > before, 60 * PATIENCE, "what is read ahead", 0.05)
        meanwhile()
        with contextlib.suppress(FileNotFoundError):  # where two jobs wait for it
            os.unlink(hold)
        _, said = taking.communicate(timeout=120 * PATIENCE)
        self.assertEqual(status, taking.returncode, said)
        return job.status()["step"]

    def pinned(self, c):
        return c.json("nodes")["nodes"][0]["store"]["pinned_bytes"]

    def test_prefetch(self):
        """What the next ranks are restored with is read to page-locked memory while they build: all of it, as much as may be locked, or
        nothing where that goes wrong. The ranks compare what they get with their formula."""
        whole = 8 * (700 * 6 * 2 * 3 + 700 * 64)
        for name, prefetch, memory in (("all", "8MiB", "plain"), ("some", "256KiB", "vmm")):
            with self.subTest(name), self.gpus(config={"prefetch": prefetch}) as c:
                job = GpuJob(c, self.dir, self.gpu, rows=700, memory=memory, argv=["--folder", self.gpu])
                job.run("tp=2")
                job.wait_step(5)
                at = job.resize("tp=1")["step"]  # nobody knows its layout yet
                self.assertEqual([], self.ahead(c))
                seen = []
                for config in ("tp=2", "tp=1"):
                    job.wait_step(at + 5)
                    at = self.resize_ahead(c, job, config, lambda: seen.append(self.pinned(c)))
                    job.check_state(self, at, self.path(f"at-{config}"))
                job.wait_step(at + 5)
                if name == "all":
                    self.assertEqual([(whole, whole + 8)] * 2, self.ahead(c))
                    self.assertLess(32 << 20, seen[0])
                else:
                    for used, read in self.ahead(c):
                        self.assertTrue(0 < used <= read <= 256 << 10, self.ahead(c))
                    self.assertTrue(all(0 < n - (32 << 20) <= 256 << 10 for n in seen), seen)
                self.assertEqual(32 << 20, self.pinned(c))
                if name == "all":  # its ptc-gpu ends; it cannot be locked
                    self.may_leave = True
                    at = self.resize_ahead(c, job, "tp=2", lambda: os.kill(self.copier(c), signal.SIGKILL))
                    self.assertEqual((whole, whole + 8), self.ahead(c)[-1])
                    job.wait_step(at + 5)
                    self.faults("cuMemHostRegister 0 2")
                    at = self.resize_ahead(c, job, "tp=1")
                    job.wait_step(at + 5)
                    self.assertEqual((0, 0), self.ahead(c)[-1])
                    self.assertIn("less is read ahead of its restore: ", self.log(c))
                    os.unlink(os.path.join(self.gpu, "faults"))
                    self.assertEqual(32 << 20, self.pinned(c))
                    job.check_state(self, at, self.path("end"))
                job.do("stop")

    def test_prefetch_for_nothing(self):
        """A rank dies as it builds: what was read ahead is given back with the switch."""
        with self.gpus(config={"prefetch": "8MiB"}) as c:
            self.may_leave = True
            job = GpuJob(c, self.dir, self.gpu, argv=["--folder", self.gpu], run_options={"grace": "1s"})
            job.run("tp=2")
            job.wait_step(5)
            at = job.resize("dp=2")["step"]
            job.wait_step(at + 5)
            before = job.ranks()
            self.resize_ahead(c, job, "tp=2", lambda: os.kill(before[0]["pid"], signal.SIGKILL), status=1)
            wait_for(lambda: job.status()["phase"] == "idle" and self.pinned(c) == 32 << 20, 60 * PATIENCE, "the locked memory back", 0.1)
            self.assertEqual(0, sum(used for used, _ in self.ahead(c)))  # other ranks may be restored now

    def test_prefetch_steps(self):
        """The budget is the node's: a job gets what others leave of it. Memory is page-locked in steps of 32 MiB, each as it is read to."""
        rows, budget, steps = (50000, 44 << 20, 2) if harness.LONG else (700, 640 << 10, 1)
        whole, box = rows * 800, rows * 48
        with self.gpus(config={"prefetch": f"{budget >> 10}KiB"}) as c:
            jobs = [GpuJob(c, self.dir, self.gpu, name=name, rows=rows, share_devices=True, argv=["--folder", self.gpu])
                    for name in ("one", "two")]
            for job in jobs:
                job.run("dp=2")
                job.wait_step(2)
                job.resize("tp=1")
            seen = []
            self.resize_ahead(c, jobs[0], "dp=2", lambda: self.resize_ahead(c, jobs[1], "dp=2", lambda: seen.append(self.pinned(c))))
            used = sorted(used for used, _ in self.ahead(c))
            self.assertEqual(2 * whole, used[1])  # each of the replicas from the one copy
            self.assertTrue(box <= used[0] / 2 <= budget - whole, used)
            self.assertTrue(sum(used) / 2 <= seen[0] - (32 << 20) <= budget, (seen, used))
            for job in jobs:
                job.do("stop")
        self.assertEqual(steps + 1, max(self.calls("cuMemHostRegister")))

    def test_device_lost(self):
        """A device is lost, and the rank that has it dies: the job is told, and started again on the devices that are well."""
        with self.gpus(PTC_FAKE_GPU_DEVICES="3") as c:
            self.may_leave = True
            job = GpuJob(c, self.dir, self.gpu, env={"PTC_FAKE_GPU_DEVICES": "3"}, elastic={"max_restarts": 4}, run_options={"grace": "1s"})
            job.run("tp=2")
            job.wait_step(5)
            job.do("snapshot")
            at = job.status()["step"]
            self.assertEqual([0, 1], sorted(r["device"] for r in job.ranks().values()))
            open(os.path.join(self.gpu, "lost-1"), "w").close()
            wait_for(lambda: [0, 2] == [r["device"] for r in job.status()["run"].get("ranks", []) if r.get("pid")], 60 * PATIENCE,
                     "ranks on other devices", 0.1)
            job.wait_step(at + 5)
            self.assertEqual("1:lost", c.json("nodes")["nodes"][0]["unhealthy"])
            said = [e["text"] for e in self.events(c, job) if e["kind"] == "device"]
            self.assertRegex(said[0], r"^node n0: device 1 \(GPU-d1.*\), which the job has, is not well: lost \(.*\); the next switch")
            r = job.resize("tp=3", check=False)
            self.assertIn("3 devices are needed, 2 are known, up and not drained; n0:1 is not well (lost); add nodes first", r.stderr)
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))

    def stall(self, job):
        """Ranks wait at one step. The file that holds them, and the step."""
        stall = os.path.join(self.gpu, "stall")
        open(stall, "w").close()
        reached = max(wait_for(lambda: self.stand(job), 60 * PATIENCE, "ranks that wait").values()) + 20
        harness.replace_file(stall, f"{reached}\n")
        return stall, reached

    ENDED = r"rank 1 \(pid \d+\)(:| has ended:) its device 1 \(GPU-d1.*\) has failed: "

    def bad_device(self, c, name, **options):
        """A job of two ranks on devices 0 and 1 that may go on with one, with a snapshot, and some steps after it. The ranks wait at a step."""
        job = GpuJob(c, self.dir, self.gpu, run_options={"grace": "1s"}, snapshot_every=1000000, gpus={"1": "tp=1", "2": options.pop("config", "tp=2")},
                     **options)
        c.ptcctl("run", "-f", job.yaml, "--gpus", "2", "--wait", timeout_s=60 * PATIENCE)
        job.wait_step(5)
        job.do("snapshot")
        kept = job.status()["step"]
        job.check_state(self, kept, self.path(f"at-{name}"))
        job.wait_step(kept + 5)
        self.tried(job)
        self.assertEqual([0, 1], sorted(r["device"] for r in job.ranks().values()))
        return job, kept

    def goes_on(self, job, devices, kept, name):
        """The job has been started again, on these devices; its end has the bytes of the formula."""
        wait_for(lambda: devices == sorted(r["device"] for r in job.status()["run"].get("ranks", []) if r.get("pid")), 90 * PATIENCE,
                 f"ranks on {devices}", 0.1)
        job.wait_step(kept + 5)
        job.do("stop")
        job.check_state(self, job.wait_run("stopped")["step"], self.path(f"end-{name}"))

    def unhealthy(self, c):
        """What the cluster knows, once the node has looked."""
        c.json("nodes", "--devices")
        return c.json("nodes")["nodes"][0].get("unhealthy")

    def said(self, c, job, kind):
        return " ".join(e["text"] for e in self.events(c, job) if e["kind"] == kind)

    def test_bad_device_copied(self):
        """A device has uncorrectable errors, found in the middle of a copy, and its rank trains on: the rank counts as failed, the job goes on
        from the snapshot before, on a spare device, or on fewer, or waits for the device, as its `elastic` says."""
        for name, devices, then in (("spare", 3, [0, 2]), ("shrink", 2, [0]), ("wait", 2, [0, 1])):
            with self.subTest(name), self.gpus(PTC_FAKE_GPU_DEVICES=str(devices)) as c:
                self.may_leave = True
                job, kept = self.bad_device(c, name, env={"PTC_FAKE_GPU_DEVICES": str(devices)},
                                            elastic={"on_failure": "wait" if name == "wait" else "shrink"})
                bad = os.path.join(self.gpu, "ecc-1")
                open(bad, "w").close()
                r = c.ptcctl("snapshot", job.name, "--wait", check=False, timeout_s=60 * PATIENCE)
                self.assertNotEqual(0, r.returncode, r.stdout)
                print(r.stderr, flush=True)
                if name == "wait":
                    wait_for(lambda: "n0:1 is not well (ecc)" in self.said(c, job, "waits"), 60 * PATIENCE, "the job to wait", 0.2)
                    job.check_state(self, kept, self.path("at-waits"))
                    os.unlink(bad)
                    wait_for(lambda: self.unhealthy(c) is None, 60 * PATIENCE, "a device that is well", 0.5)
                self.goes_on(job, then, kept, name)
                self.assertRegex(self.said(c, job, "failed"), self.ENDED + r"ecc \(.*\)")
                self.assertIn(f"from the snapshot of step {kept},", self.said(c, job, "recovered"))

    def test_bad_device_stands(self):
        """A device is lost while ranks wait for a peer. Its rank stands, and is ended: the other one has all of the state, and no step is lost. Or
        it ends itself, nobody has its shard, and the snapshot has to do."""
        for name, config in (("replica", "dp=2"), ("shards", "tp=2")):
            with self.subTest(name), self.gpus() as c:
                self.may_leave = True
                job, kept = self.bad_device(c, name, config=config, argv=["--folder", self.gpu, "--survive", "1", "--marks", "1", "--host", "0"])
                stall, reached = self.stall(job)
                wait_for(lambda: {s["step"] for s in job.ranks().values()} == {reached}, 60 * PATIENCE, "ranks that stand", 0.1)
                if name == "replica":  # as in a call of the driver that does not return
                    os.kill(job.ranks()[1]["pid"], signal.SIGSTOP)
                open(os.path.join(self.gpu, "lost-1"), "w").close()
                wait_for(lambda: self.unhealthy(c) == "1:lost", 60 * PATIENCE, "a lost device", 0.5)
                wait_for(lambda: self.said(c, job, "failed"), 60 * PATIENCE, "the rank's end", 0.1)
                self.assertRegex(self.said(c, job, "failed"), self.ENDED + "lost" if name == "replica" else
                                 r"device 1 \(GPU-d1.*\) is not well: lost \(.*\); rank 1 \(pid \d+\) exited with status 1")
                os.unlink(stall)
                at = reached if name == "replica" else kept
                self.goes_on(job, [0], at, name)
                self.assertEqual(name == "replica", f"of step {reached}," in self.said(c, job, "survived"), self.events(c, job))
                self.assertIn(f"from the snapshot of step {at},", self.said(c, job, "recovered"))

    @harness.labels("repeats")
    def test_bad_device_trains(self):
        """Ranks that make steps are not ended, whatever the driver says of their devices."""
        os.makedirs(self.path("apart"))
        with self.gpus() as c:
            job, _ = self.bad_device(c, "trains", env={"PTC_FAKE_GPU": self.path("apart")})  # the ranks' driver sees nothing of what follows
            before = {n: r["pid"] for n, r in job.ranks().items()}
            open(os.path.join(self.gpu, "lost-1"), "w").close()
            wait_for(lambda: self.unhealthy(c) == "1:lost", 60 * PATIENCE, "a lost device", 0.5)
            job.wait_step(job.step() + 5)
            self.assertEqual(before, {n: r["pid"] for n, r in job.ranks().items()})
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))

    def killed(self, victims, then, sig=signal.SIGKILL, survive="1", faults=(), argv=(), leaves=False, **options):
        """tp=2: each rank's shard is its alone. Ranks stand at one step, and some are killed. The step that they had come to, that of the
        snapshot, that from which the job goes on, and what events say. leaves: rank 0 says first that it gives up."""
        with self.gpus() as c:
            self.may_leave = True
            job = GpuJob(c, self.dir, self.gpu, argv=["--folder", self.gpu, "--survive", survive, "--marks", "1", "--blobs", "5000", *argv],
                         run_options={"grace": "1s"}, snapshot_every=1000000, elastic={"max_restarts": 4}, **options)
            job.run("tp=2")
            job.wait_step(5)
            job.do("snapshot")
            kept = job.status()["step"]
            job.wait_step(kept + 5)
            self.tried(job)
            stall, reached = self.stall(job)
            ranks = wait_for(lambda: (lambda r: r if len(r) == 2 and {s["step"] for s in r.values()} == {reached} and
                             (survive == "2" or all(s["whole"] for s in r.values())) else None)(job.ranks()), 60 * PATIENCE, "ranks that stand", 0.1)
            self.assertEqual(options["memory"] == "state", bool(self.handles(c)))
            self.faults(*faults)
            before = job.status()["run"]["incarnation"]
            if leaves:
                open(os.path.join(self.gpu, "leave"), "w").close()
                wait_for(lambda: self.frozen(ranks[0]), 60 * PATIENCE, "rank 0 to be held")
            for rank in victims:
                os.kill(ranks[rank]["pid"], sig)
            wait_for(lambda: [e for e in self.events(c, job) if e["kind"] in then], 60 * PATIENCE, str(then), 0.1)
            for path in [stall] + leaves * [os.path.join(self.gpu, "leave")]:
                os.unlink(path)
            wait_for(lambda: (lambda r: r["state"] == "live" and r["incarnation"] != before)(job.status()["run"]), 90 * PATIENCE, "ranks anew")
            at, said = job.status()["step"], [e["text"] for e in self.events(c, job) if e["kind"] in ("survived", "recovering")]
            job.wait_step(at + 5)  # each rank has compared what it was restored with
            self.assertLess(1, len([s for s in job.ranks().values() if s["device_memory"]["copied_by"] != "rank"]))
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))
            self.assertEqual([], self.handles(c))
            self.assertTrue(not faults or "ptc-gpu (process " in self.log(c))
        return kept, reached, at, said

    @staticmethod
    def frozen(rank):
        """By its cgroup, or by SIGSTOP."""
        for name, word in (("freezer.state", "FROZEN"), ("cgroup.events", "frozen 1")):
            with contextlib.suppress(OSError), open(os.path.join(rank["cgroup"] or "/", name)) as f:
                return word in f.read()
        with open(f"/proc/{rank['pid']}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] == "T"

    def handles(self, c):
        """Descriptors of device memory that ptcd has."""
        found = []
        folder = f"/proc/{c.nodes['n0'].pid()}/fd"
        for fd in os.listdir(folder):
            with contextlib.suppress(OSError):
                found += [link for link in [os.readlink(os.path.join(folder, fd))] if "fake-vmm" in link]
        return found

    def test_killed_rank(self):
        """Memory of the state pool outlives its rank: what a killed rank had finished is captured, and the job goes on from there."""
        kept, reached, at, said = self.killed([1], ("survived",), memory="state")
        self.assertTrue(kept < at == reached, (kept, reached, at, said))
        self.assertIn(f"of step {at},", " ".join(said))
        kept, reached, at, said = self.killed([0], ("survived",), signal.SIGABRT, faults=["cuMemcpyDtoHAsync 0 719 sticky once"], memory="state")
        self.assertTrue(kept < at == reached, (kept, reached, at, said))  # ptc-gpu has ended in the middle, and copied again

    def test_killed_rank_seen_by_another(self):
        """A rank that waits for a collective hears that its peer is gone before ptcd hears how that one has ended, and gives up: the
        job goes on at its step, and its event names the rank that was killed."""
        kept, reached, at, said = self.killed([1], ("survived",), memory="state", leaves=True)
        self.assertTrue(kept < at == reached, (kept, reached, at, said))
        self.assertIn("rank 1 was killed", " ".join(said))

    def test_killed_ranks_all(self):
        """Blobs and cursors outlive their rank, too: nobody is left of a job that has all tensors on devices, and it goes on at the step
        that it had reached."""
        kept, reached, at, said = self.killed([0, 1], ("survived",), argv=["--host", "0"], memory="state")
        self.assertTrue(kept < at == reached, (kept, reached, at, said))

    @harness.labels("repeats")
    def test_killed_at_any_moment(self):
        """The only rank of a job is killed as it trains: the job goes on from the step that the rank had finished, or from the snapshot
        if it was in an update; and what the next one is restored with, blobs as well, is that of its start (the trainer looks)."""
        survived = 0
        with self.gpus() as c:
            self.may_leave = True
            job = GpuJob(c, self.dir, self.gpu, argv=["--survive", "1", "--marks", "1", "--blobs", "200000", "--host", "0", "--folder", self.gpu,
                                                      "--sleep-ms", "20"],
                         memory="state", run_options={"grace": "1s"}, snapshot_every=1000000, elastic={"max_restarts": 100})
            job.run("tp=1")
            job.wait_step(5)
            job.do("snapshot")  # its layout is known from here on
            for _ in range(12 if harness.LONG else 4):
                began = job.status()["step"]
                job.wait_step(began + 5)
                self.tried(job)
                before = job.status()["run"]["incarnation"]
                time.sleep(self.random.uniform(0, 0.1))
                os.kill(job.ranks()[0]["pid"], signal.SIGKILL)
                wait_for(lambda: (lambda r: r["state"] == "live" and r["incarnation"] != before)(job.status()["run"]), 90 * PATIENCE, "a rank anew")
                at = job.status()["step"]
                self.assertTrue(at == began or at >= began + 5, (began, at))
                survived += at > began
            job.wait_step(at + 5)
            said = [e["text"] for e in self.events(c, job) if e["kind"] == "recovered"]
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))
        self.assertLess(0, survived, said)
        self.assertEqual(survived, len([text for text in said if text.endswith(" 0 steps are lost")]), said)

    @harness.labels("repeats")
    def test_killed_rank_lost(self):
        """Without handles that ptcd holds, with nobody left who has what the host had, or without the device's last mark, the last
        snapshot has to do."""
        for victims, memory, survive in (([1], "plain", "1"), ([0, 1], "state", "1"), ([1], "state", "2")):
            with self.subTest(victims=victims, memory=memory, survive=survive):
                kept, reached, at, said = self.killed(victims, ("recovering",), memory=memory, survive=survive)
                self.assertTrue(kept == at < reached, (kept, reached, at, said))
                self.assertNotIn("survived", " ".join(said))

    def test_page_locked(self):
        """A device's page-locked memory counts before it is locked: a rank on a device for which there is no room copies itself."""
        memory = {"ceiling": "440MiB", "staging": "64MiB", "spare": "0B"}  # 82 MiB are for chunks, half of that for other memory
        all_cpus = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, all_cpus)
        os.sched_setaffinity(0, sorted(all_cpus)[:4])  # as many copies at once as on a small node: 16 MiB for each device
        with self.gpus(config={"memory": memory}, PTC_FAKE_GPU_DEVICES="3") as c:
            job = GpuJob(c, self.dir, self.gpu, env={"PTC_FAKE_GPU_DEVICES": "3"})
            job.run("dp=3")
            job.wait_step(10)
            said = self.tried(job)
            self.assertEqual({"ptc-gpu", "rank"}, {s["copied_by"] for s in said.values()}, said)
            why = next(s["why"] for s in said.values() if s["copied_by"] == "rank")
            self.assertRegex(why, r"^device GPU-d[012].*: no room below memory.ceiling for 16MiB of page-locked memory: \d+ bytes are "
                             r"needed")
            store = c.json("nodes")["nodes"][0]["store"]
            self.assertEqual(32 << 20, store["pinned_bytes"])
            self.assertLess(32 << 20, store["outside_bytes"])  # and staging memory of the rank that copies
            at = job.resize("tp=1")["step"]
            job.check_state(self, at, self.path("at-tp=1"))
            job.do("stop")

    def test_device_too_small(self):
        """What the next ranks declare has to fit beside what others use: else nothing stops, and the line names device and bytes.
        No snapshot goes for it, which would make no room there."""
        with self.gpus() as c:
            job = GpuJob(c, self.dir, self.gpu, keep={"last": 9})
            job.run("tp=1")  # so that its layout is known
            job.wait_step(5)
            at = job.resize("tp=2")["step"]
            job.wait_step(at + 5)
            job.do("snapshot")
            ranks = job.ranks()
            for rank in ranks.values():
                with open(os.path.join(self.gpu, f"uses-{rank['device']}"), "w") as f:
                    f.write(f"1 99999999\n{rank['pid']} 12000\n")
                with open(os.path.join(self.gpu, f"free-{rank['device']}"), "w") as f:
                    f.write("8000\n")
            kept = job.status()["kept"]
            self.assertEqual(1, len(kept))
            r = job.resize("tp=1", check=False)
            self.assertNotIn("goes now", r.stderr)
            self.assertEqual(kept, job.status()["kept"])
            self.assertRegex(r.stderr, r"node n0, device [01] \(GPU-d[01].*\): the next ranks' tensors need (\d+) bytes of its memory; "
                             r"beside what other processes use, 20000 of 268435456 bytes can be free; end those processes")
            self.assertLess(20000, int(re.search(r"need (\d+) bytes", r.stderr)[1]))
            wait_for(lambda: job.status()["phase"] == "idle", 60 * PATIENCE, "idle", 0.1)
            self.assertEqual({n: r["pid"] for n, r in ranks.items()}, {n: r["pid"] for n, r in job.ranks().items()})
            job.wait_step(job.step() + 5)
            for rank in ranks.values():  # what its own ranks use is free for the next
                with open(os.path.join(self.gpu, f"uses-{rank['device']}"), "w") as f:
                    f.write(f"1 99999999\n{rank['pid']} 120000\n")
            at = job.resize("tp=1")["step"]
            job.check_state(self, at, self.path("at-tp=1"))
            job.do("stop")

    def beside(self, job, ranks, config, new_bytes):
        """ptcctl resize --build ahead's end, where the driver says of each device: 8000 bytes are free, the old rank uses 12000, and the
        new one, which has its memory by then, new_bytes."""
        hold = os.path.join(self.path("folder"), "hold")
        with open(hold, "w"):
            resize = subprocess.Popen([harness.program("ptcctl"), "resize", job.name, "--config", config, "--wait", "--format", "json"],
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      env=job.c.environment({"PTC_SOCKET": job.c.nodes["n0"].socket}))
        old = {r["pid"] for r in ranks.values()}
        new = wait_for(lambda: sorted(set(job.processes()) - old), 60 * PATIENCE, "a new rank", 0.05)
        for rank in ranks.values():
            with open(os.path.join(self.gpu, f"uses-{rank['device']}"), "w") as f:
                f.write(f"1 99999999\n{rank['pid']} 12000\n" + "".join(f"{pid} {new_bytes}\n" for pid in new))
            with open(os.path.join(self.gpu, f"free-{rank['device']}"), "w") as f:
                f.write("8000\n")
        os.unlink(hold)
        out, err = resize.communicate(timeout=120 * PATIENCE)
        return resize.returncode, json.loads(out) if resize.returncode == 0 else err

    def test_built_ahead(self):
        """`build: ahead`: new ranks have their tensors on devices while the old ones train there. What the new ones use already is not
        wanted a second time; what certainly does not fit is refused, and the old ranks go on."""
        folder = self.path("folder")
        os.makedirs(folder)
        os.chmod(folder, 0o777)
        with self.gpus() as c:
            job = GpuJob(c, self.dir, self.gpu, mode="restart", build="ahead", argv=["--folder", folder])
            job.logs = folder  # by which job.processes() knows its ranks
            job.run("tp=2")
            job.wait_step(5)
            ranks = job.ranks()
            code, err = self.beside(job, ranks, "tp=1", 500)
            self.assertEqual(1, code, err)
            self.assertRegex(err, r"the next ranks' tensors need (\d+) bytes of its memory; .* 20500 of 268435456 bytes can be free")
            wait_for(lambda: job.status()["phase"] == "idle" or None, 60 * PATIENCE, "idle", 0.1)
            wait_for(lambda: len(job.processes()) == 2 or None, 60 * PATIENCE, "the old ranks alone", 0.1)
            self.assertEqual({n: r["pid"] for n, r in ranks.items()}, {n: r["pid"] for n, r in job.ranks().items()})
            job.wait_step(job.step() + 5)
            code, done = self.beside(job, ranks, "tp=1", 120000)
            self.assertEqual(0, code, done)
            self.assertGreater(done["built_ahead_ms"], 0)
            self.assertGreater(done["step"], 5)
            job.check_state(self, done["step"], self.path("at-tp=1"))
            for path in glob.glob(os.path.join(self.gpu, "uses-*")) + glob.glob(os.path.join(self.gpu, "free-*")):
                os.unlink(path)
            job.wait_step(done["step"] + 5)
            again = job.resize("dp=2")
            job.check_state(self, again["step"], self.path("at-dp=2"))
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))

    def test_rank_dies_mapped(self):
        """A rank is killed while ptc-gpu copies out of its mapped memory: the snapshot comes to nothing, ptc-gpu lets go of it."""
        with self.gpus() as c:
            self.may_leave = True  # a killed rank leaves its file, as it could not free it
            job = GpuJob(c, self.dir, self.gpu)
            job.run("tp=2")
            job.wait_step(10)
            job.do("snapshot")
            kept = job.status()["step"]
            job.wait_step(kept + 10)
            self.faults("cuMemcpyDtoHAsync 0 block")
            taking = subprocess.Popen([harness.program("ptcctl"), "--socket", c.nodes["n0"].socket, "snapshot", job.name, "--wait"],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            wait_for(lambda: os.path.exists(os.path.join(self.gpu, "blocked")), 60 * PATIENCE, "a copy under way", 0.02)
            victim = job.ranks()[0]["pid"]
            os.kill(victim, signal.SIGKILL)
            wait_for(lambda: not alive(victim), 60 * PATIENCE, "the rank to be dead", 0.02)
            open(os.path.join(self.gpu, "unblock"), "w").close()
            os.unlink(os.path.join(self.gpu, "faults"))
            _, said = taking.communicate(timeout=120 * PATIENCE)
            self.assertNotEqual(0, taking.returncode, said)
            self.assertIn("rank 0", said)
            self.assertEqual(kept, job.wait_run("failed")["step"])
            job.check_state(self, kept, self.path("end"))
        left = [re.findall(r"^left (ipc|context|stream|event|module) ([1-9]\d*)$", text, re.M) for _, text in self.reports()]
        self.assertEqual([], [x for x in left if x])


    def loses_a_node(self, survive, then, **options):
        """dp=3 on two nodes with two devices each. All ranks wait for a peer, as in a collective; one node goes. The job's steps: of
        each rank as it waited, of the snapshot from which it goes on, and what `then` kinds of events say."""
        gpu = self.path("gpu")
        shutil.rmtree(gpu, ignore_errors=True)
        os.makedirs(gpu)
        os.chmod(gpu, 0o777)
        env = {"LD_LIBRARY_PATH": FAKE, "PTC_FAKE_GPU": gpu, "PTC_GPU_KERNELS": "off"}
        with self.cluster(up=False, nodes=2, lease_ttl="2s", node_lost_after="2s") as c:
            for node in c.nodes.values():
                c.write_config(node, devices="auto")
            c.up(dict.fromkeys(c.nodes, {**env, **options.pop("daemons", {})}), timeout_s=60 * PATIENCE)
            job = GpuJob(c, self.dir, gpu, argv=["--folder", gpu, "--survive", survive, *options.pop("argv", [])],
                         run_options={"grace": "1s"}, snapshot_every=1000000, elastic={"min_gpus": 2, "max_gpus": 3}, **options)
            job.run("dp=3")
            job.wait_step(5)
            job.do("snapshot")
            kept = job.status()["step"]
            job.wait_step(kept + 10)
            self.tried(job)
            stall = os.path.join(gpu, "stall")
            open(stall, "w").close()
            steps = wait_for(lambda: self.stand(job), 60 * PATIENCE, "ranks that wait")
            before = job.status()["run"]["incarnation"]
            victim = next(r["node"] for r in job.status()["ranks"] if r["rank"] == 2)
            c.power_off(victim)
            event = wait_for(lambda: [e["text"] for e in self.events(c, job) if e["kind"] in then], 90 * PATIENCE, str(then))[-1]
            os.unlink(stall)
            wait_for(lambda: (lambda r: r["state"] == "live" and r["incarnation"] != before)(job.status()["run"]), 90 * PATIENCE, "ranks anew")
            at = job.status()["step"]
            job.wait_step(at + 5)  # each rank has compared what it was restored with
            job.do("stop")
            end = job.wait_run("stopped")["step"]
            self.assertGreaterEqual(end, at + 5)
            job.check_state(self, end, self.path(f"end-{survive}-{len(options)}"))
        wrong = [m for path in glob.glob(os.path.join(gpu, "report-*")) for m in re.findall(r"^count wrong ([1-9]\d*)", open(path).read(), re.M)]
        self.assertEqual([], wrong)
        return [steps[r] for r in (0, 1)], kept, at, event

    def events(self, c, job):
        return list(map(json.loads, c.ptcctl("events", job.name, "--format", "json").stdout.splitlines()))

    def stand(self, job):
        """{rank: step} once none of them moves for a while: a rank that waits on its device says no more than its step."""
        before = {r: s["step"] for r, s in job.ranks().items()}
        time.sleep(0.3)
        return before if before == {r: s["step"] for r, s in job.ranks().items()} else None

    def test_survivors(self):
        """A node goes; the survivors' state lies on devices, which have finished what they had to do: no step is lost."""
        steps, kept, at, event = self.loses_a_node("1", ("survived",), argv=["--marks", "1"])
        self.assertTrue(kept < at == max(steps), (steps, kept, at))
        self.assertIn(f"of step {at},", event)

    @harness.labels("repeats")
    def test_survivors_refused(self):
        """Devices that do not finish, that write no marks, that only the rank can copy, or that cannot be watched meanwhile, as no
        descriptor is left: the last snapshot has to do, and it is said why."""
        unwatched = ",".join(f"workers.guard@{n}=fail" for n in range(1, 9))  # of both ranks, each time that they are looked at
        for survive, marks, memory, fault in (("2", "1", "plain", ""), ("1", "0", "plain", ""), ("1", "1", "pool", ""),
                                              ("1", "1", "plain", unwatched)):
            with self.subTest(survive=survive, marks=marks, memory=memory, fault=fault):
                _, kept, at, event = self.loses_a_node(survive, ("recovering",), argv=["--marks", marks], memory=memory,
                                                       daemons={"PTC_FAULT": fault} if fault else {})
                self.assertEqual(kept, at)
                self.assertNotIn("survived", event)


@harness.needs(modules=("torch",))
class GpuTorch(harness.Case):
    """What ptc.torch makes of CUDA tensors, as far as that goes without a device: their memory stays the host's, their device is said
    to be another."""

    def test_tensors(self):
        import torch
        from ptc import Error, _attached, _held, _values

        class Client:
            def declare(self, *args):
                self.args = args

        def on(name):
            return unittest.mock.patch.object(torch.Tensor, "device", property(lambda _: torch.device(name)), create=True)

        t, client = torch.arange(12.0).reshape(3, 4).t(), Client()
        for name, device in (("cuda:1", True), ("cpu", False)):
            with on(name):
                held = _held.Held("w", "exp_avg", t)
                held.like("exp_avg_sq", t).declare(client)
                self.assertEqual(client.args, ("w", "F32", [4, 3], [([0, 0], [4, 3], 0, [4, 16])], t.data_ptr(), "exp_avg_sq", False, device))
                held.range("master", torch.arange(5.0), 2, 7).declare(client)
                self.assertEqual(client.args[-1], device)
                carried = _values.loads(_values.dumps("loader", {"seen": t}, True))["seen"]
                self.assertEqual(_attached._digest(t), _attached._digest(t.clone()))
            self.assertTrue(torch.equal(carried, t))
        with on("xpu:0"), self.assertRaisesRegex(Error, r"tensor w \(exp_avg\): it is on xpu:0; only memory of the host and of CUDA"):
            _held.Held("w", "exp_avg", t)

    def test_stream_is_named(self):
        """The device's marks go into PyTorch's current stream, which is named once; not where communicators may be aborted."""
        import torch
        from ptc import torch as ptc_torch

        class Client:
            named = []

            def stream(self, number):
                self.named.append(number)

        class Info:
            rank = 0

        gen, on = ptc_torch.Generation(Client(), Info()), [7]
        gen._device = torch.device("cuda:0")
        with unittest.mock.patch.object(torch.cuda, "current_stream", lambda _: unittest.mock.Mock(cuda_stream=on[0])), \
                unittest.mock.patch.object(torch.cuda, "device", contextlib.nullcontext):
            for on[0] in (7, 7, 9):
                gen._name_stream()
        self.assertEqual([7, 9], Client.named)
        for mode, waits, aborts in (("3", "0", False), ("0", "0", False), ("1", "0", True), ("2", "0", True), ("3", "1", True)):
            with unittest.mock.patch.dict(os.environ, TORCH_NCCL_ASYNC_ERROR_HANDLING=mode, TORCH_NCCL_BLOCKING_WAIT=waits), \
                    warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                self.assertEqual((aborts, aborts), (ptc_torch._communicators_abort(), bool(said)), (mode, waits))

    def test_update_in_a_graph(self):
        """An update that goes into a CUDA graph is told as one, with the stream that captures; any other as it begins."""
        import torch
        from ptc import torch as ptc_torch

        class Client:
            told = []

            def update_begin(self):
                self.told.append("begins")

            def update_captured(self, number):
                self.told.append(number)

        class Info:
            rank = 0

        gen, stream = ptc_torch.Generation(Client(), Info()), unittest.mock.Mock(cuda_stream=7)
        for gen._on_cuda, captures in ((False, True), (True, False), (True, True)):
            with unittest.mock.patch.object(torch.cuda, "current_stream", lambda: stream), \
                    unittest.mock.patch.object(torch.cuda, "is_current_stream_capturing", lambda c=captures: c):
                gen.update_begin()
        self.assertEqual(["begins", "begins", 7], Client.told)

    def test_memory_between_generations(self):
        """Before a process asks for its next generation it has given its device memory back: the model's, which hangs in a cycle, the
        state pool's, and what PyTorch caches."""
        import torch
        import ptc
        from ptc import torch as ptc_torch
        told, models, pools = [], [], []

        class Client:
            def next(self):
                told.append("next")
                return argparse.Namespace(rank=0) if told.count("next") < 3 else None

            def close(self):
                told.append("close")

        def empty_cache():
            told.append("empty")
            self.assertEqual([None], [m() for m in models])
            self.assertEqual([None], [p() for p in pools])

        def train(device):
            model, pool = torch.nn.Linear(2, 2), torch.nn.Module()
            model.hooks = [model]
            ptc_torch._pools[device] = pool
            models[:], pools[:] = [weakref.ref(model)], [weakref.ref(pool)]

        with unittest.mock.patch.object(ptc, "Client", Client), unittest.mock.patch.object(torch.cuda, "empty_cache", empty_cache):
            for _ in ptc_torch.generations():
                train(0)
        self.assertEqual(["next", "empty", "next", "empty", "next", "close"], told)

    def test_buffers(self):
        """Buffers that no state dict has are compared wherever they are, so a device's are not passed over."""
        import torch
        from ptc import _held, _attached

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("mask", torch.ones(3), persistent=False)

        a = _attached.Attached.__new__(_attached.Attached)
        a.modules = _held.modules_of(Model())
        with unittest.mock.patch.object(torch.Tensor, "device", property(lambda _: torch.device("cuda:0")), create=True):
            self.assertEqual(["mask"], list(a.buffers()))
