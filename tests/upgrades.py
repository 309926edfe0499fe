# SPDX-License-Identifier: Apache-2.0
"""Daemons of one version that are replaced by those of another, under live jobs: what test_upgrade.py and test_baseline.py share."""
import contextlib
import json
import mmap
import os
import subprocess
import threading
import time

import harness
import numpy as np
import state as states
from harness import PATIENCE, Job, wait_for
from test_ctrainer import BATCH, Trainer, differences
from test_fuse import Mount

CONFIGS = ("tp=2,dp=2", "tp=4", "dp=4")
ADDED = str(0x5a4e455854564552)  # what the next version writes that nobody knows


class Ridge(Trainer):
    """The C trainer of one of the two builds, as a job of that name. Its ranks speak that build's protocol as long as they live."""

    def __init__(self, c, directory, name, build, mode):
        os.makedirs(directory)
        super().__init__(c, directory, mode, steps=1 << 40, sleep_ms=2)
        self.name = name
        with open(self.yaml) as f:
            spec = json.load(f)
        spec["name"] = name
        spec["run"]["argv"][4] = os.path.join(build, "examples", "c-trainer", "c-trainer")
        spec["run"]["env"]["LD_LIBRARY_PATH"] = os.path.join(build, "client", "lib")
        with open(self.yaml, "w") as f:
            json.dump(spec, f)

    def pids(self):
        return sorted(rank["pid"] for rank in self.status()["run"]["ranks"])


class Reader(Mount):
    """A mount by the ptc-fuse of one build at a node, and a thread that reads a job there: a file that stays open, and each tensor's, opened
    anew each time. Nothing comes out of the kernel's pages. Requests that meet a daemon that is away wait for it.

    unread: the daemon there has begun to start, and may say that there are no jobs (Replaced.says_none). Until all has been read again, what
    is not found is opened again; `missed` counts that."""

    def __init__(self, test, c, build, node, job, expected):
        self.build, self.node, self.job, self.expected = build, node, job, expected
        self.rounds, self.failed, self.over = 0, None, threading.Event()
        self.unread, self.missed = False, 0
        if "--backing" not in subprocess.run([os.path.join(build, "daemon", "ptc-fuse"), "--help"], stdout=subprocess.PIPE, text=True,
                                             check=True).stdout:
            self.BACKING = () # an older one has none
        super().__init__(test, c, "--timeout", f"{60 * PATIENCE:.0f}s", node=node)
        self.thread = threading.Thread(target=self.run)
        test.addCleanup(self.end) # before the mount goes
        self.thread.start()

    def start(self):
        self.argv[0] = os.path.join(self.build, "daemon", "ptc-fuse")
        super().start()

    def read(self, fd):
        with mmap.mmap(-1, 1 << 16) as buf: # O_DIRECT wants whole pages
            n = os.preadv(fd, [buf], 0)
            return buf[:n]

    def open(self, path):
        while True:
            try:
                return os.open(path, os.O_RDONLY | os.O_DIRECT)
            except FileNotFoundError:
                if not self.unread or self.over.is_set():
                    raise
                self.missed += 1
                time.sleep(0.01)

    def run(self):
        top = self.path(self.job, "state", "latest")
        did, path = "opens", os.path.join(top, "model.safetensors")
        try:
            kept = self.open(path)
            first = self.read(kept)
            while not self.over.is_set():
                for name, data in self.expected.items():
                    did, path = "opens", os.path.join(top, "tensors", f"{name}.npy")
                    fd = self.open(path)
                    did = "reads"
                    found = self.read(fd)
                    os.close(fd)
                    if not found.endswith(data):
                        raise AssertionError("other bytes")
                    did, path = "reads what it has held open since the beginning,", os.path.join(top, "model.safetensors")
                    if self.read(kept) != first:
                        raise AssertionError("other bytes")
                self.rounds += 1
            os.close(kept)
        except Exception as e: # noqa: BLE001  told to the test's own thread
            self.failed = f"{self.clock()} the ptc-fuse of {self.build} at {self.node} {did} {path}: {e!r}, {self.test.at_work}"

    @staticmethod
    def clock():
        """As logs of daemons have it."""
        now = time.time()
        return time.strftime("%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03}"

    def goes_on(self):
        """Until it has read all of it twice since."""
        before = self.rounds
        wait_for(lambda: self.failed or self.rounds >= before + 2, 90 * PATIENCE, "reads through the mount", 0.05)
        self.unread = False
        self.passed()

    def passed(self):
        self.test.assertIsNone(self.failed)

    def end(self):
        self.over.set()
        self.thread.join()


class Replaced(harness.Case):
    """Daemons of `old`, the cluster's build, are replaced by those of `new`, and back."""
    old, new = harness.BUILD, None
    at = {}  # {job: nodes}; of others: all
    at_work = "before any daemon was replaced"
    says_none = False # whether a daemon of `old` that starts says that there are no jobs, until it has read etcd's keys

    def document(self, c, uuid, kind):
        """(version, whether it has what the next version adds) of a document of a job."""
        text = c.etcdctl("get", "--print-value-only", f"/ptc/jobs/{uuid}/{kind}").stdout
        return json.loads(text)["version"], ADDED in text

    @contextlib.contextmanager
    def by(self, c, build):
        """ptcctl of that build."""
        before, c.options["build"] = c.options["build"], build
        try:
            yield
        finally:
            c.options["build"] = before

    def replace(self, c, name, build, readers=()):
        self.at_work = f"while the daemon of {name} was replaced by that of {build or self.old}"
        c.nodes[name].stop()
        c.nodes[name].build = build
        for reader in readers:
            reader.unread = self.says_none and not build and reader.node == name
        c.restart(name, timeout_s=60 * PATIENCE)
        c.wait_nodes(list(c.nodes), 60 * PATIENCE)
        self.at_work = f"after the daemon of {name} was replaced by that of {build or self.old}"

    def give_control(self, c, jobs, nodes):
        """Their controllers are among these nodes from now on: daemons of others that hold one are away until they are not. Ranks
        take no notice."""
        away = []

        def holders():
            return {job.status(node=nodes[0])["controller"] for job in jobs}

        def given():
            held = holders()
            for name in held - {""} - set(nodes):
                if c.nodes[name].pid():
                    self.assertTrue(c.nodes[name].stop())
                    away.append(name)
            return held <= set(nodes)
        try:
            wait_for(given, 60 * PATIENCE, f"controllers on {nodes}", 0.1)
        finally:
            for name in away:
                c.start_node(c.nodes[name])
        c.wait_nodes(list(c.nodes), 60 * PATIENCE, node=nodes[0])

    def switch(self, job):
        """The next configuration, with the same ranks, and steps behind it."""
        at = job.resize(f"{CONFIGS[self.turn % len(CONFIGS)]},{BATCH}", nodes=self.at.get(job.name))
        self.assertIsInstance(at, dict, at)
        job.wait_step(at["step"] + 5)

    def mixed(self, c, jobs, state, both):
        """Resizes of every job, controlled by nodes of either version where there are both; bytes of the one that only has state."""
        old = [n for n in c.nodes if c.nodes[n].build is None]
        new = [n for n in c.nodes if c.nodes[n].build]
        for group in (old, new) if both else (old or new,):
            self.turn += 1
            self.give_control(c, (*jobs, state), group)
            for job in jobs:
                self.switch(job)
            at = state.resize(("tp=2,dp=2", "tp=4", "dp=4,zero=1")[self.turn % 3])
            self.assertIsInstance(at, dict, at)
            state.check_whole(self, node=group[0])
        c.ptcctl("verify", state.name, node=(new or old)[-1])

    def mounts(self):
        """Mounts by the ptc-fuse of either version, at every node, are read while daemons are replaced, and back: each read has its bytes, and
        none fails. A file that was opened before the first daemon was replaced is read until the end. One thing is left out: where says_none,
        opens below a mount at a node whose daemon of `old` starts may find nothing until it has read etcd's keys."""
        s = states.State({})
        rng = np.random.default_rng(self.seed)
        for i in range(6):
            s.add(rng, f"h.{i}.w", "F32", (64, 48))
        with self.cluster(nodes=2, devices=2, coordinator="etcd-cluster", transport="tls", build=self.old) as c:
            job = Job(c, "state", s, self.path("state"), [{"match": "h.*", "split": {"axis": "tp", "dim": 0}}])
            job.imported("tp=2") # each node has half of each tensor
            expected = {name: t.tobytes() for name, t in s.tensors["param"].items()}
            readers = [Reader(self, c, build, node, job.name, expected) for build in (self.old, self.new) for node in c.nodes]
            for reader in readers:
                reader.goes_on()
            for build in (self.new, None):
                for name in list(c.nodes):
                    self.replace(c, name, build, readers)
                    for reader in readers:
                        reader.goes_on()
            for reader in readers:
                reader.end()
                reader.passed()
                reader.stop()
            print(f"opened again where a daemon had not read etcd yet: {sum(reader.missed for reader in readers)}", flush=True)

    def switch_goes_on(self, raised):
        """A switch that daemons of one version have begun when they die, those of the other find, and end or undo; ranks train on. raised:
        what the new version's intent has (document())."""
        with self.cluster(nodes=2, devices=2, coordinator="etcd-cluster", transport="tls", build=self.old) as c:
            job = Ridge(c, self.path("now"), "now", self.old, "rebuild")
            job.run(f"tp=2,dp=2,{BATCH}")
            pids, uuid, self.turn = job.pids(), job.status()["uuid"], 0
            for first, then in ((None, self.new), (self.new, None)):
                for point in ("etcd.intent.after", "etcd.commit1.after", "etcd.commit2.before"):
                    with self.subTest(point, first=first or self.old, then=then or self.old):
                        self.die_at(c, job, first, point)
                        if point == "etcd.commit1.after":
                            self.assertEqual(raised if first else (1, False), self.document(c, uuid, "intent"))
                        for node in c.nodes.values():
                            node.build = then
                            c.start_node(node)
                        c.wait_nodes(list(c.nodes), 60 * PATIENCE)
                        job.wait_step(job.wait_run("live")["step"] + 5)
                        self.assertEqual(pids, job.pids())
                        self.turn += 1
                        self.switch(job)
            job.do("stop")
            job.steps = job.wait_run("stopped")["step"]
            self.assertEqual([], differences(job.lines(), job.reference()))

    def die_at(self, c, job, build, point):
        """All daemons die, of that build, in a switch of this job whose controller is at that point."""
        for node in c.nodes.values():
            node.stop()
            node.build = build
            c.start_node(node, {"PTC_FAULT": point})
        c.wait_nodes(list(c.nodes), 60 * PATIENCE)
        job.wait_step(job.wait_run("live")["step"] + 5)
        config = next(x for x in CONFIGS if not job.status()["config"].startswith(x))
        argv = [harness.program("ptcctl"), "resize", job.name, "--config", f"{config},{BATCH}", "--wait"]
        with subprocess.Popen(argv, env=c.environment({"PTC_SOCKET": c.nodes["n0"].socket}), stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as ptcctl:
            wait_for(lambda: not all(n.pid() for n in c.nodes.values()), 60 * PATIENCE, f"a daemon to die at {point}", 0.005)
            for node in c.nodes.values():
                node.kill()
            ptcctl.kill()
