# SPDX-License-Identifier: Apache-2.0
"""The processes that copy ranks' memory (ptc-copy): whose they are, and what the jobs see of those that are killed or hang."""
import contextlib
import json
import os
import re
import subprocess
import threading
import time

import harness
import live
from harness import PATIENCE, skip_unless_root, wait_for

NOBODY = 65534


def copiers(c):
    """Ids of the cluster's ptc-copy, but those that have been killed: their environment cannot be seen any more."""
    found = []
    for pid in c.processes():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as f:
            if f.read() == "ptc-copy\n":
                found.append(pid)
    return found


def thread_states(pid):
    found = ""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat") as f:
            found += f.read().rpartition(")")[2].split()[0]
    return found


def status_of(pid):
    with open(f"/proc/{pid}/status") as f:
        return {key: value.split() for key, _, value in (line.partition(":") for line in f)}


def events(c, job, kind):
    lines = c.ptcctl("events", job.name, "--format", "json").stdout.splitlines()
    return [e["text"] for e in map(json.loads, lines) if e["kind"] == kind]


@contextlib.contextmanager
def hung_file(case):
    """A file that can be mapped, of whose reads none is answered; it goes when the block ends."""
    directory = case.path("fs")
    os.mkdir(directory)
    fs = subprocess.Popen([harness.binary("daemon/workers/test_workers"), "--hungfs", directory], stdin=subprocess.PIPE)
    try:
        path = os.path.join(directory, "w")
        wait_for(lambda: os.path.exists(path) or fs.poll() is not None, 10 * PATIENCE, "a file system that hangs", 0.01)
        if fs.poll() == 77:
            case.skipTest("nothing can be mounted here")
        yield path
    finally:
        fs.stdin.close()
        fs.wait()


class Asking:
    """Asks every daemon for its status over and over; `took` has how long each answer took, in seconds."""

    def __init__(self, c):
        self.c, self.over, self.took = c, threading.Event(), []
        self.thread = threading.Thread(target=self.ask)

    def ask(self):
        while not self.over.is_set():
            for name in self.c.nodes:
                began = time.monotonic()
                self.c.ptcctl("status", node=name, timeout_s=30 * PATIENCE)
                self.took.append(time.monotonic() - began)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


class Copies(harness.Case):
    @skip_unless_root
    def test_whose_they_are(self):
        """The job's user's, without a right, and out of his reach; they end with the job's ranks."""
        with self.cluster(nodes=1, devices=1) as c:
            as_nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            os.chmod(self.dir, 0o777)
            argv = [os.path.abspath(harness.binary("daemon/workers/test_workers")), "--rank", ""]
            job = live.Job(c, self.dir, run={"run": {"argv": argv, "env": harness.sanitizer_env(), "cwd": "/"}})
            job.run("tp=1", **as_nobody)
            job.wait_step(3)
            self.assertEqual([], copiers(c))
            job.do("snapshot")
            pid, = copiers(c)
            status = status_of(pid)
            self.assertEqual([str(NOBODY)] * 4, status["Uid"])
            self.assertEqual([str(NOBODY)] * 4, status["Gid"])
            self.assertEqual(["0" * 16] * 4, [status[key][0] for key in ("CapInh", "CapPrm", "CapEff", "CapAmb")])
            self.assertEqual(["1"], status["NoNewPrivs"])
            peek = subprocess.run(["ls", f"/proc/{pid}/fd"], capture_output=True, text=True, check=False, **as_nobody)
            self.assertIn("Permission denied", peek.stderr) # as for whoever may not trace it
            job.do("stop", **as_nobody)
            wait_for(lambda: not copiers(c), 20 * PATIENCE, "the end of ptc-copy", 0.05)

    def test_killed(self):
        """Each is killed by itself in the middle of its third copy, and all now and then by somebody: snapshots and switches are whole."""
        with self.cluster(nodes=2, devices=2, env={f"n{i}": {"PTC_FAULT": "copy.middle@3"} for i in range(2)}) as c:
            job = live.Job(c, self.dir)
            job.run("tp=2,dp=2")
            job.wait_step(3)
            over, ready, killed = threading.Event(), set(), set()

            def kill():
                while not over.wait(0.05):
                    for pid in copiers(c):
                        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                            if pid in ready:
                                os.kill(pid, 9)
                                killed.add(pid)
                            elif status_of(pid)["NoNewPrivs"] == ["1"]: # one that ends before it serves is an error, not repeated
                                ready.add(pid)
            thread = threading.Thread(target=kill)
            thread.start()
            try:
                for config in ("tp=1,pp=2,dp=2", "tp=4", "tp=2,dp=2"):
                    job.do("snapshot")
                    job.resize(config)
                    job.wait_step(job.step() + 3)
            finally:
                over.set()
                thread.join()
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))
            self.assertTrue(killed)
            logs = ""
            for n in c.nodes.values():
                with open(n.log_file) as f:
                    logs += f.read()
            self.assertGreater(logs.count("PTC_FAULT=copy.middle@3"), 2 + 6) # of the daemons, and of as many copiers at least

    @skip_unless_root
    def test_memory_hangs(self):
        """A rank's tensor lies where nothing answers: its job's snapshot fails and says so, it can be stopped and deleted; the daemon
        answers, copies other jobs' ranks, and can be stopped and started, all the while."""
        with self.cluster(nodes=1, devices=2, copy_timeout="1s") as c, hung_file(self) as path:
            hung = live.Job(c, self.path("hung"), name="hung", maps=path, grace="2s")
            good = live.Job(c, self.path("good"), name="good")
            for job in (hung, good):
                job.run("tp=1")
                job.wait_step(3)
            with Asking(c) as asking:
                copier = self.check_hangs(c, hung, good)
            self.check_prompt(asking.took)
            self.check_restarts(c, hung, good)
            c.ptcctl("stop", hung.name, "--now", timeout_s=60 * PATIENCE)
            wait_for(lambda: not hung.processes(), 30 * PATIENCE, "the end of the rank", 0.1)
            c.ptcctl("job", "delete", hung.name)
            wait_for(lambda: len(os.listdir(f"{c.nodes['n0'].dir}/run/workers")) == 1, 30 * PATIENCE, "the end of its folder", 0.1)
            self.assertIn("D", thread_states(copier), "what was to hang does not")
            good.do("snapshot")
            good.do("stop")
            good.check_state(self, good.wait_run("stopped")["step"], self.path("end"))

    def check_hangs(self, c, hung, good):
        pid = hung.status()["run"]["ranks"][0]["pid"]
        said = self.refused(c, "snapshot", hung.name, "--wait", contains="has not answered for 1 s", timeout_s=60 * PATIENCE)
        self.assertIn(f'tensor "mapped" of rank 0 (pid {pid})', said)
        self.assertIn("hangs_s", hung.wait_run("live")["run"])
        self.assertIn("a rank's memory hangs for ", c.ptcctl("status", hung.name).stdout)
        said, = wait_for(lambda: [t for t in events(c, hung, "hangs") if f"rank 0 (pid {pid})" in t], 20 * PATIENCE, "word of it", 0.1)
        copier = int(re.search(r"process (\d+), which copied it, hangs", said)[1])
        good.do("snapshot")
        self.refused(c, "stop", hung.name, contains="still hangs", timeout_s=60 * PATIENCE)
        step = hung.wait_run("live")["run"]["step"]
        hung.wait_step(step + 3)
        return copier

    def check_restarts(self, c, hung, good):
        """The daemon goes without what hangs; a new one gives out none of the chunks that may still be written to."""
        self.assertTrue(c.nodes["n0"].stop(), "ptcd did not end")
        c.restart("n0")
        for job in (hung, good):
            job.wait_step(wait_for(lambda job=job: max(job.step(), 0), 30 * PATIENCE, "a step", 0.05) + 3)
        self.refused(c, "snapshot", hung.name, "--wait", contains="is stuck copying", timeout_s=60 * PATIENCE)
        good.do("snapshot")
