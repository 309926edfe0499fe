# SPDX-License-Identifier: Apache-2.0
"""One job's work delays no other job: neither its commits nor the daemon's lease. Asserted by the order of events, or as a
ratio; a wall time is printed, never asserted.

A daemon is armed while it runs, by a file (PTC_FAULT_FILE): "hold" stops one thread where it is until the file says otherwise.
"""
import concurrent.futures
import json
import time
import unittest

import harness
import numpy as np
import state as states
from harness import PATIENCE, Job, wait_for

RULES = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
A, B = "tp=2", "dp=2"
POINTS = ("digests.merge", "etcd.commit1.before", "etcd.commit2.before", "etcd.intent.before")
# What takes time of a large job is what its controller does; the more tensors, the longer.
MANY, WIDTH = (100_000, 64) if harness.LONG else (20_000, 256)
RATE = "1MiB" # of copies, and of archives: both take seconds


class Held(harness.Case):
    def rng(self):
        return np.random.default_rng(self.seed)

    def job(self, c, name, tensors, width=2, **more):
        s = states.State()
        rng = self.rng()
        for i in range(tensors):
            s.add(rng, f"w.{i}", "U8", (width,))
        return Job(c, name, s, self.path(name), RULES, more=more)

    def arm(self, rules=""):
        harness.replace_file(self.path("fault"), rules)

    def points(self):
        return {"PTC_FAULT_FILE": self.path("fault"), "PTC_FAULT_LIST": self.path("points")}

    def armed_cluster(self, **options):
        self.arm()
        return self.cluster(**{"nodes": 1, "devices": 2, "env": {"n0": self.points()}, **options})

    def reached(self, point):
        with open(self.path("points")) as f:
            return point in f.read().split()

    def hold(self, pool, job, point, config):
        """The job's switch, held at the point."""
        with open(self.path("points"), "w"):
            pass
        self.arm(f"{point}=hold")
        going = pool.submit(job.resize, config)
        wait_for(lambda: self.reached(point) or going.done(), 60 * PATIENCE, f"a switch at {point}")
        self.assertFalse(going.done(), f"the switch never came to {point}")
        return going

    def committed(self, c, job):
        """Numbers of its events, which grow over all jobs of the daemon that wrote them."""
        lines = c.ptcctl("events", job.name, "--format", "json").stdout.splitlines()
        return [e["number"] for e in map(json.loads, lines) if e["kind"] == "committed"]


@harness.labels("threads")
class Beside(Held):
    def test_a_held_job_delays_no_other(self):
        """One job's switch stands still at each step that its controller takes off the loop: another job's switches are
        committed meanwhile, and one that is created has state."""
        with self.armed_cluster() as c, concurrent.futures.ThreadPoolExecutor(1) as pool:
            held, other = self.job(c, "held", 3), self.job(c, "other", 2)
            held.imported(A)
            other.imported(A)
            for i, point in enumerate(POINTS):
                to = (B, A)[i % 2]
                going = self.hold(pool, held, point, to)
                try:
                    other.resize(to)
                    new = self.job(c, f"new-{i}", 1)
                    new.imported(A)
                    self.assertFalse(going.done(), f"the switch that was held at {point} ended")
                finally:
                    self.arm()
                going.result(120 * PATIENCE)
                self.assertLess(self.committed(c, other)[-1], self.committed(c, held)[-1], f"held at {point}")
                new.delete()
            held.check_whole(self)
            other.check_whole(self)

    def test_plans_for_status_delay_no_commit(self):
        """What the loss of a node would cost is computed for status, and stands still there, for more jobs than there are threads of
        either kind: jobs are imported and resized meanwhile."""
        with self.armed_cluster() as c:
            other = self.job(c, "other", 2)
            other.imported(A)
            self.arm("loss.facts@*=hold")
            try:
                asked = [self.job(c, f"asked-{i}", 1) for i in range(6)]
                for job in asked:
                    job.imported(A)
                    self.assertEqual("not known yet: it is being found out", self.loss(job)["why"])
                wait_for(lambda: self.reached("loss.facts"), 60 * PATIENCE, "facts that are computed")
                for to in (B, A):
                    other.resize(to)
            finally:
                self.arm()
            for job in asked:
                wait_for(lambda job=job: "not known" not in self.loss(job)["why"], 60 * PATIENCE, "the facts")
            other.check_whole(self)

    def test_work_aside_delays_no_commit(self):
        """Archives, and looks for what lacks copies, stand still for as many jobs as there are threads of either kind: a job is resized
        meanwhile. Let go, all of them end."""
        with self.armed_cluster() as c:
            other = self.job(c, "other", 2)
            other.imported(A)
            self.arm("archive.start@*=hold,copies.look@*=hold")
            try:
                aside = [self.job(c, f"aside-{i}", 1, archive={"dir": self.path(f"archive-{i}")}) for i in range(5)]
                for job in aside:
                    job.imported(A)
                wait_for(lambda: self.reached("archive.start") and self.reached("copies.look"), 60 * PATIENCE, "work aside")
                for to in (B, A):
                    other.resize(to)
            finally:
                self.arm()
            for job in aside:
                wait_for(lambda job=job: self.events(c, job, "archived"), 60 * PATIENCE, "an archive")
                self.assertLess(self.committed(c, other)[-1], self.events(c, job, "archived")[-1]["number"])
            other.check_whole(self)

    def loss(self, job):
        return job.status()["node_loss"]

    def test_the_lease_waits_for_no_job(self):
        """While a job's commit and its digests stand still the daemon's key is deleted: it is written again."""
        with self.armed_cluster() as c, concurrent.futures.ThreadPoolExecutor(1) as pool:
            held = self.job(c, "held", 3)
            held.imported(A)
            for point in ("digests.merge", "etcd.commit2.before"):
                going = self.hold(pool, held, point, B)
                try:
                    key = "/ptc/nodes/n0"
                    c.etcdctl("del", key)
                    wait_for(lambda key=key: c.etcdctl("get", key, "--keys-only").stdout.strip(), 60 * PATIENCE, "the node's key")
                    self.assertFalse(going.done() and point == "digests.merge" and going.exception() is None,
                                     f"the switch that was held at {point} ended")
                finally:
                    self.arm()
                concurrent.futures.wait([going], 120 * PATIENCE) # it may have lost its lock with the lease
                held.wait_idle()
                held.resize(A)
            held.check_whole(self)


class Many(Held):
    def test_many_tensors_beside_few(self):
        """A job of many tensors, with copies and an archive, is imported and resized while a small one is resized again and again. Small
        switches are committed while the large one's copies come, while its archive is written, and while its own switch is held. With
        100,000 tensors many are committed before the large one's is, and the slowest takes a small part of that."""
        memory = {"ceiling": "3GiB", "staging": "64MiB", "spare": "64MiB", "work": "1GiB"}
        with self.armed_cluster(nodes=2, copies={"rate": RATE}, **memory) as c, concurrent.futures.ThreadPoolExecutor(1) as pool:
            small = self.job(c, "small", 2)
            large = self.job(c, "large", MANY, WIDTH, copies={"count": 2}, archive={"dir": self.path("archive"), "keep": 1, "rate": RATE})
            small.imported(A)
            self.beside(pool, "import", small, lambda: large.imported(A, timeout_s=600))
            wait_for(lambda: self.reached("archive.start"), 60 * PATIENCE, "an archive that is begun")
            begun = self.committed(c, small)[-1]
            self.beside(pool, "4 resizes", small, lambda: [large.resize(to, timeout_s=600) for to in (B, A, B, A)])
            for to, point in ((B, "digests.merge"), (A, "etcd.commit2.before")):
                going = self.hold(pool, large, point, to)
                try:
                    for other in (B, A):
                        small.resize(other)
                    self.assertFalse(going.done(), f"the switch that was held at {point} ended")
                finally:
                    self.arm()
                going.result(600)
                self.assertLess(self.committed(c, small)[-1], self.committed(c, large)[-1], f"held at {point}")
            self.beside(pool, "copies and archive", small,
                        lambda: wait_for(lambda: self.is_kept(c, large), 300 * PATIENCE, "copies and an archive"))
            commits = self.committed(c, small)
            self.check_between(commits, self.copying(c, large), "copies")
            self.check_between(commits, [(begun, self.events(c, large, "archived")[0]["number"])], "an archive")
            large.check_whole(self, timeout_s=600)

    def check_between(self, commits, spans, what):
        between = [n for n in commits if any(a < n < b for a, b in spans)]
        print(json.dumps({"small switches committed while there was work for": what, "n": len(between)}), flush=True)
        self.assertTrue(between, f"{what}: {spans}")

    def is_kept(self, c, job):
        """There is an archive, and copies of the newest state have come."""
        said = [e["text"] for e in self.events(c, job, "copies")]
        return self.events(c, job, "archived") and said[-1:] and said[-1].endswith("every region is on 2 nodes")

    def copying(self, c, job):
        """From when to when copies came, as numbers of events."""
        said = self.events(c, job, "copies")
        return [(a["number"], b["number"]) for a, b in zip(said, said[1:]) if "brought to" in a["text"] and "every region" in b["text"]]

    def beside(self, pool, what, small, begin):
        took, at = [], 0
        began = time.monotonic()
        going = pool.submit(begin)
        while not going.done():
            since = time.monotonic()
            small.resize((B, A)[at % 2])
            at += 1
            if not going.done():
                took.append(time.monotonic() - since)
        going.result()
        whole = time.monotonic() - began
        if at % 2:
            small.resize(A)
        print(json.dumps({"beside": what, "large_s": round(whole, 2), "small": len(took), "slowest_s": round(max(took, default=0), 2),
                          "median_s": round(float(np.median(took)) if took else 0, 2)}), flush=True)
        if harness.LONG: # rates need a machine that is not busy
            self.assertGreater(len(took), 8)
            self.assertLess(max(took), whole / 3)


if __name__ == "__main__":
    unittest.main()
