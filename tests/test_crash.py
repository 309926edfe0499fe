# SPDX-License-Identifier: Apache-2.0
"""kill -9, everywhere. After each: the old or the new record, whole; the bytes of the input; nothing leaked.

A daemon here is armed while it runs: a file of its own (PTC_FAULT_FILE) names the point at which it dies, and another
(PTC_FAULT_LIST) says which points it has passed since. So the points of a scenario are found by running it, a new one is
covered without being listed here, and one cluster serves many kills. `scripts/check --list-points` says which points
exist; one that no scenario reaches fails test_every_point_is_reached.

By default a sample of the points is taken (the seed is printed), with PTC_TEST_LONG=1 a third of them; PTC_TEST_CAMPAIGN=1 takes
each of them, and 200 random kills. What a run passes depends on what it finds to do, so a point that is missed is tried again; a long run fails where
one stays unreached and the test does not say why it may.
"""
import base64
import collections
import contextlib
import fnmatch
import glob
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import harness
import live
import numpy as np
import oracle
import state as states
from cluster import is_dying
from harness import LONG, PATIENCE, ROOT, SANITIZED, ClusterError, Job, wait_for

RULES = [{"match": "*", "split": {"axis": "tp", "dim": 0, "kind": "balanced"}, "layer": "h.{}.*"}]
A, B = "tp=2,pp=2", "tp=1,pp=2,dp=2,zero=1"
TRIES = 3
SLACK_CHUNKS = 2 # packing may need a chunk more, depending on what stayed where


def small_state(seed):
    rng, s = np.random.default_rng(seed), states.State({"exp_avg": "F32"})
    for layer in range(4):
        s.add(rng, f"h.{layer}.w", "BF16", (96, 512))
        s.add(rng, f"h.{layer}.b", "F32", (7,))
    return s


def same(a, b):
    return str(oracle.Config(a)) == str(oracle.Config(b))


class Crash(harness.Case):
    """Four daemons with a device each; n0 supervises etcd."""

    asked, tried, missed = 0, 0, () # points; tried: without those that chance has not brought

    # ---- a cluster whose daemons can be armed --------------------------------------------------

    def crash_cluster(self, nodes=4, store="disk", **kw):
        return self.cluster(nodes=nodes, devices=1, up=False, lease_ttl="2s", store=store, **kw)

    measured = {} # harness.measured_env(), where memory is looked at

    def env(self, node):
        return {**self.measured, "PTC_FAULT_FILE": os.path.join(node.dir, "fault"), "PTC_FAULT_LIST": os.path.join(node.dir, "points")}

    def up(self, c):
        for node in c.nodes.values():
            self.arm(node)
            c.start_node(node, self.env(node))
        self.settle(c)

    def settle(self, c, late=False):
        """Until every daemon sees this life of every daemon. late: one may have read its rule just before it was taken away, and dies
        after it was found alive; it is started again, too."""
        pids = {n.name: n.pid() for n in c.nodes.values()}
        self.assertTrue(late or None not in pids.values(), "a daemon is not running")
        waiting = list(c.nodes)

        def sees(name):
            r = c.ptcctl("nodes", "--format", "json", node=name, check=False, timeout_s=30)
            return r.returncode == 0 and pids == {n["node"]: n["pid"] for n in json.loads(r.stdout)["nodes"]
                                                  if n["state"] != "down"}

        def settled():
            for node in c.nodes.values():
                if late and not node.pid():
                    c.start_node(node, self.env(node))
                    pids[node.name], waiting[:] = node.pid(), list(c.nodes)
            waiting[:] = [name for name in waiting if not sees(name)]
            return not waiting

        try:
            wait_for(settled, 60 * PATIENCE, f"every daemon to see every other (logs: {c.dir}/*/ptcd.log)", 0.03)
        except ClusterError:
            now = {n.name: n.pid() for n in c.nodes.values()}
            print(f"not settled: {waiting} do not see {pids}; now running: {now}", flush=True)
            if os.environ.get("PTC_TEST_HANG"):
                for p in now.values():
                    subprocess.run(["gdb", "-p", str(p), "-batch", "-ex", "thread apply all bt"], check=False)
            raise

    def recover(self, c):
        """Starts what is dead, without faults, and waits until every node sees the others."""
        for node in c.nodes.values():
            self.arm(node)
        for node in c.nodes.values():
            if not node.pid():
                c.start_node(node, self.env(node))
        self.settle(c, late=True)

    def forget(self, node):
        """From the next arm() on it lists anew what it passes."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(node.dir, "points"))

    def points(self, c, scenario):
        """{node: the fault points it passes in the scenario, in order}."""
        for node in c.nodes.values():
            self.forget(node)
            self.arm(node)
        scenario()
        return {n.name: self.passed(n) for n in c.nodes.values()}

    def passed(self, node):
        try:
            with open(os.path.join(node.dir, "points")) as f:
                return f.read().split()
        except FileNotFoundError:
            return []

    def sample(self, points, n):
        points = sorted(set(points))
        n = (n + 1) // 2 if SANITIZED else harness.size(n, max(2 * n, len(points) // 3), len(points))
        return self.random.sample(points, min(n, len(points)))

    def reach(self, point, attempt, by_chance=()):
        """Attempts until one says that the point was reached. by_chance: patterns of points that need not be, here; others
        are killed at elsewhere."""
        self.asked += 1
        for _ in range(TRIES):
            if attempt():
                self.tried += 1
                return
        print(f"{point}: not reached in {TRIES} tries", flush=True)
        # some time after a node has seen another one for the first time, and some time after a commit; where no chunk is free
        by_chance = (*by_chance, "peers.write.*", "copies.look", "archive.start", "etcd.prune.*", "store.fallocate")
        if not any(fnmatch.fnmatchcase(point, pattern) for pattern in by_chance):
            self.tried += 1
            self.missed = (*self.missed, point)

    def check_reached(self):
        if LONG:
            self.assertEqual((), self.missed, "points that a clean run passes were not reached")
            self.assertTrue(self.tried or not self.asked, "not one point was reached")
        self.assertLessEqual(len(self.missed) * 2, self.tried, f"most points that a clean run passes were not reached: {self.missed}")

    # ---- what must hold afterwards --------------------------------------------------------------

    def check(self, c, job, allowed, node="n0", used=None):
        """The record is one of the allowed configurations and whole, nothing else is left; its configuration."""
        config = job.wait_idle(90, node=node)["config"]
        self.assertTrue(any(same(config, a) for a in allowed), f"{config} is none of {allowed}")
        self.verify(c, job, node)
        job.check_whole(self, node=node)
        job.check_ranks(self, oracle.Config(config), RULES, node=node)
        self.check_nothing_leaked(c, used)
        return config

    def verify(self, c, job, node):
        """A node that etcd forgot while etcd was away is down until it has a lease again: a moment after we settled."""
        def verified():
            r = c.ptcctl("verify", job.name, node=node, check=False)
            self.assertTrue(r.returncode == 0 or "is down" in r.stderr, r.stderr)
            return r.returncode == 0

        wait_for(verified, 10 * PATIENCE, "every node up", 0.1)

    def etcd(self, c):
        """{key: value} of everything in etcd."""
        out = c.etcdctl("get", "--prefix", "/ptc/", "-w", "json").stdout
        return {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv["value"])
                for kv in json.loads(out).get("kvs", [])}

    def expected_keys(self, keys):
        """What the jobs, the nodes and the records account for."""
        expected = {"/ptc/cluster", "/ptc/key"} | {"/ptc/profile", "/ptc/nodes-devices"} & set(keys) | {k for k in keys if k.startswith(("/ptc/nodes/", "/ptc/nodes-known/", "/ptc/nodes-drained/", "/ptc/nodes-losses/"))}
        for key in [k for k in keys if k.startswith("/ptc/names/")]:
            uuid = keys[key].decode()
            meta = json.loads(keys[f"/ptc/jobs/{uuid}/meta"])
            hashes = {meta["spec"]}
            expected |= {key} | {k for k in keys if k.startswith(f"/ptc/events/{uuid}/")}
            expected |= {f"/ptc/jobs/{uuid}/{leaf}" for leaf in ("meta", "lock")}
            expected |= {f"/ptc/jobs/{uuid}/{leaf}" for leaf in ("barrier", "measured")} & set(keys)
            expected.add(f"/ptc/users/{meta['uid']}/{uuid}")
            record = f"/ptc/jobs/{uuid}/record"
            if record in keys:
                expected.add(record)
                manifest_hash = json.loads(keys[record])["manifest"]
                manifest = next(v for k, v in keys.items() if k.startswith(f"/ptc/blobs/{uuid}/{manifest_hash}/000000")).decode()
                hashes |= {manifest_hash} | set(h for h in self.blob_hashes(keys, uuid) if h in manifest)
            expected |= {k for k in keys if k.startswith(f"/ptc/blobs/{uuid}/") and k.split("/")[4] in hashes}
        return expected

    @staticmethod
    def blob_hashes(keys, uuid):
        return {k.split("/")[4] for k in keys if k.startswith(f"/ptc/blobs/{uuid}/")}

    def check_nothing_leaked(self, c, used=None):
        """etcd has the keys that are accounted for, stores no more chunks than `used` {node: chunks}, nobody a spare file
        or process."""
        def etcd_clean():
            keys = self.etcd(c)
            self.extra = sorted(set(keys) ^ self.expected_keys(keys))
            return not self.extra

        self.extra = None
        try:
            wait_for(etcd_clean, 10 * PATIENCE, "only accounted keys in etcd", 0.05)
        except ClusterError:
            self.fail(f"leaked or missing in etcd: {self.extra}")
        if used is not None:
            def stores_clean():
                self.extra = {n: chunks for n, chunks in self.chunks(c).items() if chunks > used[n] + SLACK_CHUNKS}
                return not self.extra

            try:
                wait_for(stores_clean, 10 * PATIENCE, "chunks", 0.1)
            except ClusterError:
                self.fail(f"chunks leaked: {self.extra}, more than {used} and {SLACK_CHUNKS}")

        def no_spare_files(): # a daemon writes its list of peers now and then
            self.extra = [os.path.join(d, f) for node in c.nodes.values() for top in (node.dir, node.chunk_dir)
                          for d, _, files in os.walk(top) for f in files if ".tmp" in f and "/etcd/data/" not in d]
            return not self.extra

        try:
            wait_for(no_spare_files, 10 * PATIENCE, "the end of temporary files", 0.1)
        except ClusterError:
            self.fail(f"temporary files left: {self.extra}")
        self.assertEqual(len(c.nodes) + 1, len(c.processes()), "processes: the daemons and one etcd")

    def chunks(self, c, node="n0"):
        """Of each node; one that has just lost its lease is waited for."""
        def told():
            nodes = c.json("nodes", node=node)["nodes"]
            return all("store" in n for n in nodes) and {n["node"]: n["store"]["chunks_used"] for n in nodes}

        return wait_for(told, 10 * PATIENCE, "every node to tell of its store", 0.05)

    def assert_empty(self, c):
        """No job is left, so the stores hold nothing and etcd only the nodes."""
        def empty():
            return not any(os.path.isdir(os.path.join(n.chunk_dir, d)) and len(d) == 36
                           for n in c.nodes.values() for d in os.listdir(n.chunk_dir))

        wait_for(empty, 20 * PATIENCE, "stores without the directories of deleted jobs", 0.1)
        self.check_nothing_leaked(c, {n: 0 for n in c.nodes})
        self.assertEqual([], [k for k in self.etcd(c) if not k.startswith(("/ptc/cluster", "/ptc/key", "/ptc/nodes", "/ptc/profile"))])

    # ---- switches that are killed -----------------------------------------------------------------

    def start(self, c, name="crash"):
        return Job(c, name, small_state(self.seed), self.path(name), RULES)

    def warm(self, c, **kw):
        """A job that has been both ways; self.here is its configuration, self.there the other one."""
        job = self.start(c)
        job.imported(A, **kw)
        self.used = self.chunks(c)
        for config in (B, A):
            job.resize(config)
            self.used = {n: max(self.used[n], chunks) for n, chunks in self.chunks(c).items()}
        self.here, self.there = A, B
        return job

    def switched(self, config):
        if same(config, self.there):
            self.here, self.there = self.there, self.here

    def quietly(self, c, *args, **kw):
        """A command whose daemon may die; what counts is checked afterwards."""
        kw.setdefault("timeout_s", 60 * PATIENCE)
        try:
            return c.ptcctl(*args, check=False, **kw)
        except subprocess.TimeoutExpired:
            self.fail(f"ptcctl {' '.join(args)} did not end")

    def resize_quietly(self, c, job, node):
        return self.quietly(c, "resize", job.name, "--config", self.there, "--wait", node=node)

    def while_running(self, c, function, node):
        """Runs the function beside us; if the node dies it is started again at once. Whether it died."""
        failed = []

        def guarded():
            try:
                function()
            except BaseException as e: # noqa: BLE001  told to the test's own thread
                failed.append(e)

        thread = threading.Thread(target=guarded)
        thread.start()
        linger = time.monotonic() + 0.2 # what the daemon does after it has answered: events, removals
        while node.pid() and (thread.is_alive() or time.monotonic() < linger):
            if thread.is_alive():
                linger = time.monotonic() + 0.2
            time.sleep(0.005)
        if is_dying(node.pid()):
            wait_for(lambda: not node.pid(), 60 * PATIENCE, f"the end of {node.name}, which was killed", 0.01)
        died = not node.pid()
        self.recover(c)
        thread.join()
        if failed:
            raise failed[0]
        return died

    def kill_in_switch(self, c, job, victim, rule):
        """One switch in which the victim dies; everything whole afterwards."""
        node, caller = c.nodes[victim], next(n for n in reversed(c.nodes) if n != victim)
        self.arm(node, rule)
        died = self.while_running(c, lambda: self.resize_quietly(c, job, caller), node)
        print(f"{victim} ({'controller' if victim == self.controller else 'member'}): {rule}"
              f"{'' if died else ' (not reached)'}", flush=True)
        self.switched(self.check(c, job, (self.here, self.there), node=caller, used=self.used))
        return died

    def controller_of(self, c, job):
        self.controller = wait_for(lambda: job.status()["controller"], 20 * PATIENCE, "a controller")
        return self.controller

    def go_to(self, job, config):
        if not same(self.here, config):
            job.resize(config)
            self.switched(config)

    def kill_in_switches(self, c, job, choose, count, rule=None, start=A):
        """Once at each (or some) of the points that the node chosen by choose() passes in a switch from `start`: from A
        to B everybody receives, the other way everybody has what it needs."""
        self.go_to(job, start)
        self.controller_of(c, job)
        by_node = self.points(c, lambda: job.resize(self.there))
        self.switched(self.there)
        wanted, controlled = self.sample(by_node[choose()], count), choose() == self.controller
        self.assertTrue(wanted)

        def attempt(point):
            self.go_to(job, start)
            self.controller_of(c, job)
            died = self.kill_in_switch(c, job, choose(), rule(point) if rule else point)
            # A kill hands the job on, and a member passes none of its controller's points. Nor is any point passed any
            # number of times; as often as it is passed at all, it is killed at without a rule.
            return died or rule or controlled != (choose() == self.controller)

        for point in wanted:
            self.reach(point, lambda: attempt(point)) # noqa: B023

    def finish(self, c, job):
        self.check_reached()
        self.settle(c)
        job.delete()
        self.assert_empty(c)

    @harness.labels("repeats")
    def test_points_in_a_switch(self):
        """Controller, member (source and destination at once) and the node of etcd, at the points each passes."""
        with self.crash_cluster() as c:
            self.up(c)
            job = self.warm(c)
            member = lambda: next(n for n in ("n1", "n2") if n != self.controller) # noqa: E731
            self.kill_in_switches(c, job, lambda: self.controller, 12)
            self.kill_in_switches(c, job, member, 9)
            self.kill_in_switches(c, job, member, 4, start=B)
            # not the first time it is passed: another table, another chunk, another key
            self.kill_in_switches(c, job, member, 4, lambda p: f"{p}@{self.random.randint(2, 4)}")
            self.kill_in_switches(c, job, lambda: "n0", 5, start=B)
            self.finish(c, job)

    def test_failing_calls(self):
        """Each durable effect that reports failure instead of (or although) happening: one clear end, no harm."""
        with self.crash_cluster() as c:
            self.up(c)
            job = self.warm(c)
            self.controller_of(c, job)
            by_node = self.points(c, lambda: (job.resize(B), job.resize(A)))
            # always: their outcomes are unknown, and the controller reads them back
            always = [p for p in by_node[self.controller] if p.startswith(("etcd.intent", "etcd.commit"))]
            self.assertEqual(6, len(always), by_node)
            for point in always + self.sample([p for p in by_node[self.controller] if p not in always], 6):
                self.reach(point, lambda: self.fail_in_switch(c, job, point)) # noqa: B023
            self.finish(c, job)

    def fail_in_switch(self, c, job, point):
        node = c.nodes[self.controller_of(c, job)]
        self.forget(node)
        self.arm(node, f"{point}=fail")
        self.resize_quietly(c, job, "n2")
        reached = point in self.passed(node)
        print(f"{node.name}: {point} fails{'' if reached else ' (not reached)'}", flush=True)
        self.arm(node)
        self.switched(self.check(c, job, (self.here, self.there), used=self.used))
        if reached: # else the next try goes the other way, on which a node passes other points
            job.resize(self.there) # and the job is not stuck
            self.switched(self.there)
        return reached

    def test_wrong_bytes(self):
        """One bit that comes wrong, which no protocol and no checksum of the receiver's own can see, and no replica to
        differ from: the digests do, before the second commit. The tensor is named, the old generation is whole, the next
        switch works."""
        with self.crash_cluster() as c:
            self.up(c)
            job = self.start(c)
            job.imported(A)
            for victim, config in (("n1", "tp=4"), ("n2", A)):
                before = job.status()
                self.arm(c.nodes[victim], "agent.receive.bytes=fail")
                line = self.refused(c, "resize", job.name, "--config", config, "--wait")
                self.arm(c.nodes[victim])
                self.assertIn("agent.receive.bytes", self.passed(c.nodes[victim]))
                self.assertRegex(line, r'"h\.\d\.[wb](:exp_avg)?" has digest [0-9a-f]{16} instead of [0-9a-f]{16}')
                self.check(c, job, (before["config"],))
                self.assertEqual(before["generation"], job.generation())
                job.resize(config)
                self.check(c, job, (config,))
            self.finish(c, job)

    # ---- aborts --------------------------------------------------------------------------------------

    def abort_at(self, c, job, sleeper, point, victim=None, rule=""):
        """An abort while one node sleeps at a point; on the way the victim may die. (aborted, died)."""
        self.go_to(job, A) # from there to B every node receives
        self.arm(c.nodes[sleeper], f"{point}=sleep")
        out = []
        resize = threading.Thread(target=lambda: out.append(self.resize_quietly(c, job, "n3" if victim != "n3" else "n2")))
        self.forget(c.nodes[sleeper])
        resize.start()
        wait_for(lambda: point in self.passed(c.nodes[sleeper]) or not resize.is_alive(), 20 * PATIENCE, point, 0.01)
        for node in c.nodes.values(): # from here on it is about the abort
            self.forget(node)
            self.arm(node, rule if node.name == victim else "")
        caller = next(n for n in c.nodes if n != victim)
        r = []

        def abort():
            r.append(self.quietly(c, "abort", job.name, node=caller))
            resize.join()

        died = self.while_running(c, abort, c.nodes[victim or caller])
        return r[0].returncode == 0, died

    @harness.labels("repeats")
    def test_abort_in_each_phase(self):
        """Until the second commit an abort ends in the old generation; from it on it is refused or comes too late."""
        with self.crash_cluster() as c:
            self.up(c)
            job = self.warm(c)
            seen = collections.Counter()
            for role, point in (("controller", "etcd.intent.before"), ("controller", "etcd.intent.after"),
                                ("member", "store.meta.commit.before"), ("controller", "etcd.commit1.before"),
                                ("controller", "etcd.commit1.after"), ("member", "agent.receive.middle"),
                                ("controller", "etcd.commit2.before"), ("controller", "etcd.commit2.after")):
                controller = self.controller_of(c, job)
                sleeper = controller if role == "controller" else next(n for n in ("n1", "n2") if n != controller)
                aborted, _ = self.abort_at(c, job, sleeper, point)
                config = self.check(c, job, (self.here, self.there), used=self.used)
                went_on = same(config, self.there)
                print(f"abort while {sleeper} ({role}) is at {point}: {'accepted' if aborted else 'refused'}, "
                      f"{'went on' if went_on else 'old generation'}", flush=True)
                if point.startswith("etcd.commit2"):
                    self.assertTrue(went_on, "the second commit was on its way, and nothing stopped it")
                elif aborted:
                    self.assertFalse(went_on, "an accepted abort did not abort")
                seen[aborted, went_on] += 1
                self.switched(config)
            self.assertGreaterEqual(seen[True, False], 5, seen)
            self.finish(c, job)

    @harness.labels("repeats")
    def test_kills_in_an_abort(self):
        """Controller and member, at the points an abort passes."""
        with self.crash_cluster() as c:
            self.up(c)
            job = self.warm(c)
            for role in ("controller", "member"):
                controller = self.controller_of(c, job)
                sleeper, other = [n for n in ("n1", "n2", "n3") if n != controller][:2]
                self.abort_at(c, job, sleeper, "agent.receive.middle")
                job.wait_idle(90)
                points = self.passed(c.nodes[controller if role == "controller" else other])
                self.check(c, job, (self.here,)) # which passes points of its own
                for point in self.sample(points, 3):
                    # what a node still receives and stores when the abort comes is a race with the one that sleeps; the manifest
                    # is read only where no request of before has left it in the cache
                    self.reach(point, lambda: self.kill_in_abort(c, job, role, point), ("agent.receive.*", "store.*", "job.manifest")) # noqa: B023
            self.finish(c, job)

    def kill_in_abort(self, c, job, role, point):
        controller = self.controller_of(c, job)
        sleeper, other = [n for n in ("n1", "n2", "n3") if n != controller][:2]
        victim = controller if role == "controller" else other
        _, died = self.abort_at(c, job, sleeper, "agent.receive.middle", victim, point)
        print(f"abort: kill {victim} ({role}) at {point}{'' if died else ' (not reached)'}", flush=True)
        # the abort itself may be lost with the controller that was asked for it
        self.switched(self.check(c, job, (self.here, self.there), used=self.used))
        return died

    # ---- another controller ---------------------------------------------------------------------------

    @harness.labels("repeats")
    def test_another_controller_goes_on(self):
        """The controller's daemon dies and stays dead; the next one finishes the switch, from before the first commit,
        between the commits and after the second."""
        with self.crash_cluster() as c:
            self.up(c)
            job = self.start(c)
            job.create(node="n3") # which controls it; its ranks are elsewhere
            c.ptcctl("drain", "n3")
            c.ptcctl(*job.import_args("tp=2,pp=1"), timeout_s=60)
            here, there = "tp=2,pp=1", "tp=1,pp=2"
            points = ["etcd.intent.after", "etcd.commit1.before", "etcd.commit1.after", "etcd.commit2.before",
                      "etcd.commit2.after", "etcd.prune.before"]
            for point in points if LONG else self.sample(points[:4], 1) + self.sample(points[4:], 1):
                first = self.controller_of(c, job)
                nodes = {r["node"] for r in job.status()["ranks"]}
                if first in nodes:
                    print(f"{first} is a rank's node: it has to come back", flush=True)
                self.arm(c.nodes[first], point)
                caller = next(n for n in c.nodes if n != first)
                client = threading.Thread(target=self.quietly, args=(c, "resize", job.name, "--config", there, "--wait"),
                                          kwargs={"node": caller}) # which follows the switch to its end
                client.start()
                wait_for(lambda: not c.nodes[first].pid(), 10 * PATIENCE, f"the death of {first} at {point}") # noqa: B023
                back = first in nodes
                if back: # and perhaps it controls the job again
                    self.recover(c)
                second = wait_for(lambda: (lambda s: s["phase"] == "idle" and (back or s["controller"] != first) # noqa: B023
                                           and s["controller"])(job.status(node=caller)), # noqa: B023
                                  30 * PATIENCE, "another controller that has finished", 0.05)
                client.join()
                config = job.status(node=caller)["config"]
                print(f"{first} dead at {point}: {second} went on to {config}", flush=True)
                self.assertTrue(same(config, there), "the switch was written down; it is to be finished")
                self.recover(c)
                job.check_whole(self)
                self.check_nothing_leaked(c)
                here, there = there, here
            self.finish(c, job)

    @harness.labels("repeats")
    def test_takeover_is_killed(self):
        """Whoever reaches for the dead controller's lock dies over it, in the middle of a switch."""
        with self.crash_cluster() as c:
            self.up(c)
            job = self.warm(c)
            for point in ("etcd.lock.before", "etcd.lock.after"):
                first = self.controller_of(c, job)
                for node in c.nodes.values():
                    self.arm(node, "etcd.commit1.after" if node.name == first else point)
                client = threading.Thread(target=self.resize_quietly, args=(c, job, first)) # which ends with its daemon
                client.start()
                dead = lambda: [n.name for n in c.nodes.values() if not n.pid()] # noqa: E731
                wait_for(lambda: len(dead()) >= 2, 30 * PATIENCE, "two dead daemons")
                print(f"{first} at etcd.commit1.after, then at {point}: {dead()}", flush=True)
                self.recover(c)
                client.join()
                self.switched(self.check(c, job, (self.there,), used=self.used))
            self.finish(c, job)

    # ---- import, delete, drain ---------------------------------------------------------------------------

    @harness.labels("repeats")
    def test_points_of_import_and_delete(self):
        """A job's whole life: created, imported, deleted, with kills of the controller (the gateway as well) and of a
        member."""
        with self.crash_cluster(nodes=2) as c:
            self.up(c)

            def life(name, node="n0", check=True):
                job = self.start(c, name)
                if job.create(check=check, node=node).returncode == 0 and \
                   self.quietly(c, *job.import_args("tp=2"), node=node).returncode == 0:
                    job.delete(check=check, node=node)
                elif check:
                    self.fail("create or import failed")
                return job

            by_node = self.points(c, lambda: life("clean"))
            plan = [("n0", p) for p in self.sample(by_node["n0"], 14)] + [("n1", p) for p in self.sample(by_node["n1"], 8)]
            number = itertools.count()

            def attempt(victim, point):
                jobs = []
                self.arm(c.nodes[victim], point)
                died = self.while_running(c, lambda: jobs.append(life(f"life{next(number)}", check=False)), c.nodes[victim])
                print(f"import and delete: kill {victim} at {point}{'' if died else ' (not reached)'}", flush=True)
                self.end_life(c, jobs[0])
                return died

            for victim, point in plan:
                self.reach(point, lambda: attempt(victim, point)) # noqa: B023
            self.check_reached()
            self.assert_empty(c)

    def lose_controller(self, c, job, point, ask):
        """The job's controller dies at the point while ask(another node) runs; what ptcctl said."""
        victim, said = self.controller_of(c, job), []
        node = next(n for n in c.nodes if n != victim)
        self.forget(c.nodes[victim])
        self.arm(c.nodes[victim], point)
        self.assertTrue(self.while_running(c, lambda: said.append(ask(node)), c.nodes[victim]), f"{point} was not reached")
        return said[0]

    def test_import_is_followed_when_the_controller_dies(self):
        """Once all its bytes are there, who asked hears at another node what becomes of the import: committed by the next controller, or aborted."""
        with self.crash_cluster(nodes=3) as c:
            self.up(c)
            for i, point in enumerate(("etcd.commit2.before", "etcd.commit2.after")):
                with self.subTest(point):
                    job = self.start(c, f"import{i}")
                    job.create()
                    r = self.lose_controller(c, job, point, lambda node: self.quietly(c, *job.import_args("tp=2"), "--format", "json", node=node)) # noqa: B023
                    there = job.wait_idle(90)["has_state"]
                    self.assertEqual(0 if there else 1, r.returncode, r.stderr)
                    if there:
                        summary = json.loads(r.stdout)
                        self.assertEqual((1, True), (summary["generation"], summary["taken_over"])) # its kind is in an event that nobody may have written
                        job.check_whole(self)
                    else:
                        self.assertRegex(r.stderr, r"(?m)^ptcctl import: .*(aborted|controller)[^\n]*\n\Z")
                    job.delete()
            self.assert_empty(c)

    def test_delete_is_followed_when_the_controller_dies(self):
        """Before the job has gone, and after: who asked another node hears that it is deleted, and by then it is."""
        with self.crash_cluster(nodes=3) as c:
            self.up(c)
            for point in ("etcd.unjob.before", "etcd.unjob.after"):
                with self.subTest(point):
                    job = self.start(c, point.replace(".", "-"))
                    job.imported("tp=2")
                    r = self.lose_controller(c, job, point, lambda node: job.delete(check=False, node=node)) # noqa: B023
                    self.assertEqual(0, r.returncode, r.stderr)
                    self.assertNotIn(job.name, c.ptcctl("job", "list").stdout)
            self.assert_empty(c)

    def test_delete_asked_of_a_dead_controller(self):
        """The controller died a moment ago, and nobody knows yet: the next one deletes the job."""
        with self.crash_cluster(nodes=3) as c:
            self.up(c)
            job = self.start(c, "orphan")
            job.create(node="n1")
            victim = self.controller_of(c, job)
            c.nodes[victim].kill()
            self.assertEqual(0, job.delete(check=False, node=next(n for n in c.nodes if n not in (victim, "n0"))).returncode)
            self.recover(c)
            self.assert_empty(c)

    def test_points_of_datasets(self):
        """A dataset is there or it is not, whenever its daemon dies; to say it again then is enough."""
        data = self.path("tokens.npy")
        np.save(data, np.arange(24, dtype="<i4").reshape(4, 6))
        with self.crash_cluster(nodes=2) as c:
            self.up(c)
            names = lambda: [d["name"] for d in c.json("dataset", "list")["datasets"]] # noqa: E731
            for point in ("etcd.dataset.before", "etcd.dataset.after", "etcd.undataset.before", "etcd.undataset.after"):
                there = "undataset" in point
                if there:
                    c.ptcctl("dataset", "add", "tokens", data)
                self.arm(c.nodes["n0"], point)
                do = ("remove", "tokens") if there else ("add", "tokens", data)
                self.assertTrue(self.while_running(c, lambda: self.quietly(c, "dataset", *do), c.nodes["n0"]), point) # noqa: B023
                done = point.endswith("after")
                self.assertEqual(["tokens"] if there != done else [], names(), point)
                again = c.ptcctl("dataset", *do, check=False)
                self.assertEqual(1 if done else 0, again.returncode, again.stderr)
                self.assertEqual([] if there else ["tokens"], names(), point)
                if not there:
                    c.ptcctl("dataset", "remove", "tokens")
            self.assert_empty(c)

    def test_creating_fails(self):
        """Each thing that creating a job asks of etcd fails in turn, before it is done or after: one line says so, or the job is there;
        the daemon lives, nothing else is left, and the next job is created."""
        with self.crash_cluster(nodes=1) as c:
            self.up(c)
            node, job = c.nodes["n0"], self.start(c)
            found = self.points(c, job.create)["n0"]
            job.delete()
            found = [p for p in found if p.startswith("etcd.") and p.endswith((".before", ".after"))]
            self.assertLessEqual({"etcd.creating.before", "etcd.blob.before", "etcd.job.before"}, set(found))
            pid = node.pid()
            for point in found:
                self.forget(node)
                self.arm(node, f"{point}=fail")
                r = job.create(check=False, timeout_s=60 * PATIENCE)
                self.assertEqual(pid, node.pid(), f"the daemon died at {point}")
                wait_for(lambda: point in self.passed(node), 20 * PATIENCE, point, 0.02)  # events are written when the job is there
                self.arm(node)
                if r.returncode:
                    self.assertRegex(r.stderr, r"^ptcctl job create: [^\n]+\n$", point)
                if job.name in c.ptcctl("job", "list").stdout:
                    wait_for(lambda: job.delete(check=False).returncode == 0, 20 * PATIENCE, "the delete", 0.1)
                self.check_nothing_leaked(c)
                job.create()
                job.delete()
            self.assert_empty(c)

    def end_life(self, c, job):
        """Whatever the kill left of the job: empty or whole, then gone."""
        if job.name not in c.ptcctl("job", "list").stdout:
            self.check_nothing_leaked(c)
            return
        if not job.wait_idle(90)["has_state"]:
            self.check_nothing_leaked(c)
            c.ptcctl(*job.import_args("tp=2"), timeout_s=60 * PATIENCE) # generation 0: import again
        job.check_whole(self)
        self.check_nothing_leaked(c)
        job.delete()

    def test_client_dies(self):
        """ptcctl itself, in an import and in an export."""
        with self.crash_cluster(nodes=2) as c:
            self.up(c)
            job = self.start(c)
            job.create()
            for point in ("import.begun", "import.sent", "import.begun=fail", "import.sent=fail"):
                for node in c.nodes: # the controller's daemon, and one that has to relay
                    c.ptcctl(*job.import_args("tp=2"), node=node, env={"PTC_FAULT": point}, check=False)
                    self.assertFalse(job.wait_idle()["has_state"])
                    self.check_nothing_leaked(c, {n: 0 for n in c.nodes})
            for _ in range(harness.size(2, 4, 10)): # in its data
                self.arm(c.nodes["n0"], "agent.put.middle=sleep") # n1 is the gateway
                client = subprocess.Popen([harness.program("ptcctl"), *job.import_args("tp=2")],
                                          env=c.environment({"PTC_SOCKET": c.nodes["n1"].socket}),
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(self.random.uniform(0, 0.1))
                client.send_signal(signal.SIGKILL)
                client.wait()
                self.assertFalse(job.wait_idle()["has_state"])
                self.check_nothing_leaked(c, {n: 0 for n in c.nodes})
                self.arm(c.nodes["n0"])
            c.ptcctl(*job.import_args("tp=2"))
            directory = self.path("out")
            os.mkdir(directory)
            for point in ("export.rename.before", "export.rename.after"):
                c.ptcctl("export", job.name, f"{directory}/x.safetensors", env={"PTC_FAULT": point}, check=False)
                self.assertEqual(point.endswith("after"), os.path.exists(f"{directory}/x.safetensors"))
            self.assertEqual(harness.sha256(job.files["param"]), harness.sha256(f"{directory}/x.safetensors"))
            job.check_whole(self)
            self.finish(c, job)

    @harness.labels("repeats")
    def test_jobs_deleted_while_a_node_is_away(self):
        """Its chunks go when it comes back; and when it was only cut off from etcd, when it sees etcd again."""
        with self.crash_cluster(nodes=3) as c:
            self.up(c)
            job = self.start(c, "away")
            job.imported("tp=3")
            c.nodes["n1"].kill()
            job.delete()
            self.recover(c)
            self.assert_empty(c)
            job = self.start(c, "deaf")
            job.imported("tp=3")
            # n2 hears nothing of the delete: it is stopped until etcd has forgotten that revision
            c.nodes["n2"].signal(signal.SIGSTOP)
            self.kill_one(c, "etcd") # or the news would wait in n2's socket
            wait_for(lambda: job.delete(check=False).returncode == 0, 30 * PATIENCE, "the delete", 0.2)
            revision = json.loads(c.etcdctl("get", "/ptc/cluster", "-w", "json").stdout)["header"]["revision"]
            c.etcdctl("compact", str(revision))
            c.nodes["n2"].signal(signal.SIGCONT)
            self.recover(c)
            self.assert_empty(c)

    @harness.labels("repeats")
    def test_drain_is_killed(self):
        """The daemon that was asked, which controls the job, at the points a drain passes; asked again it is done."""
        with self.crash_cluster() as c:
            self.up(c)
            job = self.start(c)
            job.imported("tp=2,pp=1")
            victim = self.controller_of(c, job)
            for point in self.sample(self.points(c, lambda: self.drained_back(c, job, victim))[victim], 4):
                # what it stores itself depends on which node is emptied
                self.reach(point, lambda: self.kill_in_drain(c, job, point), ("agent.receive.*", "store.*")) # noqa: B023
            self.finish(c, job)

    def kill_in_drain(self, c, job, point):
        victim = self.controller_of(c, job)
        node = min(r["node"] for r in job.status()["ranks"])
        self.arm(c.nodes[victim], point)
        died = self.while_running(c, lambda: self.quietly(c, "drain", node, "--wait", node=victim), c.nodes[victim])
        print(f"drain of {node}: kill {victim} at {point}{'' if died else ' (not reached)'}", flush=True)
        job.wait_idle()
        c.ptcctl("drain", node, "--wait", node=next(n for n in c.nodes if n != victim))
        self.assertNotIn(node, {r["node"] for r in job.wait_idle()["ranks"]})
        job.check_whole(self)
        c.ptcctl("drain", node, "--undo")
        self.check_nothing_leaked(c)
        return died

    def drained_back(self, c, job, asked):
        node = min(r["node"] for r in job.status()["ranks"])
        c.ptcctl("drain", node, "--wait", node=asked)
        c.ptcctl("drain", node, "--undo", node=asked)

    # ---- start and stop -------------------------------------------------------------------------------------

    @harness.labels("repeats")
    def test_points_of_start_and_stop(self):
        """The first start of a node (its cluster id, etcd's arguments), every other one, and SIGTERM."""
        with self.crash_cluster(nodes=2) as c:
            n0, n1 = c.nodes["n0"], c.nodes["n1"]
            self.up(c)
            first = {n.name: self.passed(n) for n in (n0, n1)}
            stops = self.points(c, lambda: [n.stop() for n in (n1, n0)])
            self.up(c)
            for node in (n0, n1):
                node.kill()
            again = self.points(c, lambda: self.recover(c)) # after a crash: old leases, old sockets, a living etcd
        for name, points in first.items():
            wanted, missed = set(self.sample(points, 6)), []
            with self.crash_cluster(nodes=2) as c: # the points in the order they come, so that each is still a first
                for point in [p for p in points if p in wanted]:
                    if not self.die_starting(c, name, point):
                        missed.append(point)
                self.tried += len(wanted) - len(missed)
                self.recover(c)
                for point in self.sample(again[name], 4):
                    self.reach(point, lambda: self.die_again(c, name, point)) # noqa: B023
                for point in self.sample(stops[name], 3):
                    self.reach(point, lambda: self.die_stopping(c, name, point)) # noqa: B023
                self.check_nothing_leaked(c)
                job = self.start(c)
                job.imported("tp=2")
                job.check_whole(self)
                self.settle(c)
                job.delete()
                self.assert_empty(c)
            for point in missed: # once it has started it does nothing for the first time any more
                self.reach(point, lambda: self.die_first(name, point)) # noqa: B023
        self.check_reached()

    def die_first(self, name, point):
        with self.crash_cluster(nodes=2) as c:
            died = self.die_starting(c, name, point)
            self.recover(c)
        return died

    def die_again(self, c, name, point):
        c.nodes[name].kill()
        died = self.die_starting(c, name, point)
        self.recover(c)
        return died

    def die_stopping(self, c, name, point):
        node = c.nodes[name]
        self.forget(node)
        self.arm(node, point)
        node.stop()
        reached = point in self.passed(node)
        print(f"{name}: kill at {point} of a stop{'' if reached else ' (not reached)'}", flush=True)
        self.recover(c)
        return reached

    def die_starting(self, c, name, point):
        node = c.nodes[name]
        if name == "n1" and not c.nodes["n0"].pid():
            self.arm(c.nodes["n0"])
            c.start_node(c.nodes["n0"], self.env(c.nodes["n0"]))
        self.arm(node, point)
        c.start_node(node, self.env(node))
        try:
            wait_for(lambda: not node.pid(), 6 * PATIENCE, "its death", 0.02)
        except ClusterError:
            node.kill()
            print(f"{name}: {point} of a start (not reached)", flush=True)
            return False
        print(f"{name}: kill at {point} of a start", flush=True)
        return True

    # ---- at any time -------------------------------------------------------------------------------------------

    def kill_one(self, c, victim):
        """A daemon, or "etcd": the child."""
        if victim in c.nodes:
            c.nodes[victim].kill()
            return
        for pid in c.processes():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as f:
                if f.read().strip() == "etcd":
                    os.kill(pid, signal.SIGKILL)

    @harness.labels("repeats")
    def test_random_times(self):
        """Any daemon or etcd, at any time, in switches, aborts, and jobs that come and go."""
        kills = 10 if SANITIZED else harness.size(15, 40, 200)
        with self.crash_cluster(store="tmpfs", near=self.random.random() < 0.5) as c:
            self.up(c)
            job = self.warm(c)
            start = time.monotonic()
            job.resize(B)
            job.resize(A)
            span_s = (time.monotonic() - start) / 2
            for i in range(kills):
                victim = self.random.choice([*c.nodes, "etcd"])
                caller = self.random.choice([n for n in c.nodes if n != victim])
                what = self.random.choices(("resize", "abort", "life"), (6, 2, 2))[0]
                after_s = self.random.uniform(0, span_s * (1.2 if what != "life" else 3))
                print(f"kill {i}: {victim} {after_s * 1000:.0f} ms into {what} asked of {caller}", flush=True)
                other = self.start(c, f"other{i}")
                thread = threading.Thread(target=self.random_work, args=(c, job, other, what, caller, span_s))
                thread.start()
                time.sleep(after_s)
                self.kill_one(c, victim)
                self.recover(c)
                thread.join()
                self.switched(self.check_random(c, job, other, caller))
            self.finish(c, job)

    def random_work(self, c, job, other, what, caller, span_s):
        if what == "life":
            if other.create(check=False, node=caller).returncode == 0 and \
               self.quietly(c, *other.import_args(B), node=caller).returncode == 0:
                other.delete(check=False, node=caller)
            return
        if what == "abort":
            threading.Timer(span_s / 2, lambda: self.quietly(c, "abort", job.name, node=caller)).start()
        self.resize_quietly(c, job, caller)

    def check_random(self, c, job, other, caller):
        self.settle(c)
        if other.name in c.ptcctl("job", "list", node=caller).stdout:
            status = other.wait_idle(90, node=caller)
            if status["has_state"]:
                other.check_whole(self, node=caller)
            wait_for(lambda: other.delete(check=False, node=caller).returncode == 0, 30 * PATIENCE, "the delete", 0.2)
        return self.check(c, job, (self.here, self.there), node=caller, used=self.used)

    @harness.labels("repeats")
    def test_all_at_once(self):
        """Power goes: every daemon and etcd."""
        with self.crash_cluster() as c:
            self.up(c)
            job = self.warm(c)
            for _ in range(harness.size(2, 4, 10)):
                thread = threading.Thread(target=self.resize_quietly, args=(c, job, "n2"))
                thread.start()
                time.sleep(self.random.uniform(0, 0.4))
                for name in [*c.nodes, "etcd"]:
                    with contextlib.suppress(ClusterError):
                        self.kill_one(c, name)
                thread.join()
                self.recover(c)
                self.switched(self.check(c, job, (self.here, self.there), used=self.used))
            self.finish(c, job)

    # ---- no point is forgotten ---------------------------------------------------------------------------------

    def fill_event_log(self, c, job):
        """More than a job keeps, so that the oldest are dropped."""
        uuid = job.status()["uuid"]
        for batch in range(9):
            ops = "".join(f"put /ptc/events/{uuid}/{batch * 120 + i:020d} old\n" for i in range(120))
            subprocess.run(["etcdctl", "--endpoints", ",".join(c.etcd_urls()), "txn"], input=f"\n{ops}\n\n", text=True,
                           env={**c.environment(), "ETCDCTL_API": "3"}, stdout=subprocess.DEVNULL, check=True)
        for _ in range(6): # each writes two or three
            job.resize(B)
            job.resize(A)
        left = [k for k in self.etcd(c) if k.startswith(f"/ptc/events/{uuid}/")]
        self.assertLess(len(left), 1080)

    def export_several(self, c, client):
        """A model in two files with an index, there and back."""
        directory, tensors = self.path("several"), small_state(self.seed).tensors["param"]
        os.mkdir(directory)
        names = sorted(tensors)
        files = {"a.safetensors": names[:3], "b.safetensors": names[3:]}
        for file, part in files.items():
            states.write_file(os.path.join(directory, file), {n: tensors[n] for n in part})
        with open(os.path.join(directory, "model.safetensors.index.json"), "w") as f:
            json.dump({"metadata": {}, "weight_map": {n: file for file, part in files.items() for n in part}}, f)
        with open(self.path("several.yaml"), "w") as f:
            json.dump({"version": 1, "name": "several", "rules": RULES,
                       "tensors": [{"name": n, "dtype": t.dtype, "shape": t.shape} for n, t in tensors.items()]}, f)
        c.ptcctl("job", "create", "-f", self.path("several.yaml"))
        c.ptcctl("import", "several", directory, "--config", "tp=1")
        c.ptcctl("export", "several", self.path("several.out") + "/", env=client)
        for file in files:
            self.assertEqual(harness.sha256(os.path.join(directory, file)),
                             harness.sha256(os.path.join(self.path("several.out"), file)))
        c.ptcctl("job", "delete", "several")

    def live_jobs(self, c, client):
        """One whose ranks run, are moved and stop, and one whose rank gives up. What the machine at hand has no occasion
        for (cgroups that can or cannot be had), the processes' own test passes."""
        r = subprocess.run([harness.binary("daemon/workers/process/test_spawn")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           env={**os.environ, **client, "PTC_EXEC": harness.binary("daemon/ptc-exec")})
        self.assertEqual(0, r.returncode, r.stdout)
        os.makedirs(self.path("live"))
        job = live.Job(c, self.path("live"), name="moves", mode="rebuild", amax="F32",
                       run={"rules": [{"match": "amax*", "state": "max"}],
                            "model": {"layers": 4, "hidden": 64, "heads": 8, "vocab": 1000, "seq": 128}})
        job.run("dp=2")
        job.wait_step(5)
        job.do("snapshot")
        for _ in range(4): # the first of them goes for the last
            c.ptcctl("logs", job.name, "--evidence", "--now")
        wait_for(lambda: "etcd.measured.after" in open(client["PTC_FAULT_LIST"]).read().split(), 60 * PATIENCE, "the measured step", 0.1)
        job.resize("tp=1,dp=3")
        for processes in glob.glob(os.path.join(c.nodes["n1"].dir, "run", "workers", "*", "processes")):
            os.mkdir(os.path.join(processes, "999"), 0o700) # what a daemon that dies before it has started one leaves
        c.nodes["n1"].kill()
        c.start_node(c.nodes["n1"], client)
        self.settle(c)
        job.do("stop")
        wait_for(lambda: not job.status()["devices"], 60 * PATIENCE, "devices that are given back", 0.1)
        c.ptcctl("job", "delete", job.name)
        os.makedirs(self.path("gives-up"))
        job = live.Job(c, self.path("gives-up"), name="gives-up", fail_at=20)
        job.run("tp=2")
        job.wait_run("failed")
        c.ptcctl("job", "delete", job.name)
        wait_for(lambda: not job.processes(), 30 * PATIENCE, "the end of every rank", 0.1)

    def chunks_lost(self, c, client):
        """A job whose chunks are gone from a node begins anew there."""
        twice = self.start(c, "twice")
        twice.imported("dp=4", env=client)
        c.nodes["n2"].kill()
        os.unlink(os.path.join(c.nodes["n2"].chunk_dir, twice.status()["uuid"], "data.mdb"))
        c.start_node(c.nodes["n2"], {**self.env(c.nodes["n2"]), **client})
        self.settle(c)
        twice.resize("dp=4")
        twice.delete()

    def gpu_copies(self, client):
        """Of ptc-gpu, which these jobs do not start, as their tensors are in host memory: copies of its client's own test."""
        for test in ("test_ring", "test_within", "test_peers"):
            r = subprocess.run([harness.binary("daemon/gpu/client/test_gpu_client"), test], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True,
                               env={**os.environ, **client, "PTC_GPU": harness.binary("daemon/ptc-gpu"),
                                    "LD_LIBRARY_PATH": harness.binary("tests/gpu/fake")})
            self.assertEqual(0, r.returncode, r.stdout)

    def elsewhere(self, client):
        """Blocks that are healed, one that is not, copies, an etcd that is full, a probe, ranks that are held, another etcd, nodes that join,
        devices, ranks that build ahead, devices that are left, daemons of one machine, damaged pages of a store, an answer of etcd that is
        lost, writers that hang: of clusters of their own, whose stores may be written to."""
        for module, test in (("test_damage", "Damage.test_another_copy"), ("test_damage", "Damage.test_unhealed"),
                             ("test_keep_copies", "KeepCopies.test_racks"), ("test_older", "Older.test_room"), ("test_quota", "Quota.test_full"),
                             ("test_probe", "Remembered.test_plans"), ("test_recover", "Recover.test_no_step_lost"),
                             ("test_planning", "Growth.test_join_that_does_not_pay"), ("test_gpu_live", "GpuLive.test_copy_async"),
                             ("test_gpu_live", "GpuLive.test_survivors"),
                             ("test_recover_cluster", "RecoverCluster.test_what_is_missing_is_said"),
                             ("test_ahead", "Ahead.test_no_snapshot_yet"), ("test_straggler", "Straggler.test_left"),
                             ("test_near", "Near.test_memory"), ("test_flips", "Flips.test_store_while_down"),
                             ("test_keep_copies", "KeepCopies.test_answer_lost"), ("test_archive", "Archive.test_kills_do_not_end_it")):
            r = subprocess.run([sys.executable, "-B", os.path.join(ROOT, "tests", "run"), module, test], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env={**os.environ, **client})
            self.assertEqual(0, r.returncode, r.stdout)

    def backing_files(self, client):
        """A file that ptcd fills for ptc-fuse. The points that this kernel keeps anybody from passing: those of passthrough."""
        r = subprocess.run([sys.executable, "-B", os.path.join(ROOT, "tests", "run"), "test_fill", "Fill.test_some_here"], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, env={**os.environ, **client})
        self.assertIn(r.returncode, (0, 77), r.stdout)
        return {"agent.fill.offer", "api.into.written"} if r.returncode else set()

    @harness.labels("repeats")
    def test_every_point_is_reached(self):
        """Each point named in the source is passed by what the other tests kill in the middle of."""
        out = subprocess.run([os.path.join(ROOT, "scripts", "check"), "--list-points"], stdout=subprocess.PIPE, text=True,
                             check=True).stdout
        named = set(out.split())
        self.assertTrue(named)
        seen = self.path("points")
        client = {"PTC_FAULT_LIST": seen}
        with self.crash_cluster() as c:
            for node in c.nodes.values():
                c.start_node(node, {**self.env(node), **client})
            self.settle(c)
            job = self.start(c)
            job.imported(A, env=client)
            self.arm(c.nodes["n0"], "etcd.job.before=fail")
            other = self.start(c, "undone")
            self.assertNotEqual(0, other.create(check=False).returncode) # undone: the job's own transaction fails
            self.arm(c.nodes["n0"])
            for config in (B, A):  # the second round removes what the first wrote
                job.resize(config)
                c.ptcctl("archive", job.name, self.path("archive"), "--keep", "1", env=client)
            c.ptcctl("verify", job.name)
            c.ptcctl("export", job.name, "--dcp", self.path("dcp"), check=False,
                     env={**client, "PTC_FAULT": "checkpoint.flush.before=fail"})
            c.ptcctl("export", job.name, self.path("x.safetensors"), env=client)
            c.ptcctl("export", job.name, "--ranks", self.path("ranks"), env=client)
            c.ptcctl("report", job.name, "-o", self.path("report.html"), env=client)
            c.ptcctl("export", job.name, self.path("y.safetensors"), check=False,
                     env={**client, "PTC_FAULT": "export.rename.before=fail"})
            self.export_several(c, client)
            self.fill_event_log(c, job)
            np.save(self.path("tokens.npy"), np.zeros((4, 6), "<i4"))
            c.ptcctl("dataset", "add", "tokens", self.path("tokens.npy"))
            c.ptcctl("dataset", "remove", "tokens")
            with open(self.path("profile.yaml"), "w") as f:
                f.write("devices_per_node: 2\ndevices: [{name: H100-80GB, nodes: 2}]\nlinks: {intra_bytes_s: 4e11, node_bytes_s: 5e10}\n")
            c.ptcctl("profile", "-f", self.path("profile.yaml"))
            c.ptcctl("profile", timeout_s=60 * PATIENCE) # measured, under a lock
            self.arm(c.nodes["n1"], "agent.receive.middle=sleep")
            thread = threading.Thread(target=lambda: self.quietly(c, "resize", job.name, "--config", B, "--wait"))
            thread.start()
            wait_for(lambda: job.status()["phase"] == "filling", 20 * PATIENCE, "the switch in its middle", 0.02)
            c.ptcctl("abort", job.name)
            thread.join()
            c.ptcctl("drain", "n3", check=False)
            c.ptcctl("drain", "n3", "--undo")
            c.ptcctl("node", "lost", "n3", "--undo")
            self.chunks_lost(c, client)
            self.live_jobs(c, client)
            self.gpu_copies(client)
            self.elsewhere(client)
            named -= self.backing_files(client)
            c.nodes["n2"].kill() # its socket is stale now, its lease to be revoked
            c.start_node(c.nodes["n2"], client)
            self.settle(c) # one that is just starting when etcd goes away says so and ends
            c.nodes["n0"].kill()
            self.kill_one(c, "etcd")
            c.start_node(c.nodes["n0"], client)
            self.settle(c)
            wait_for(lambda: job.delete(check=False).returncode == 0, 20 * PATIENCE, "the delete", 0.2)
            self.assert_empty(c)
            c.stop()
            missing = sorted(named - set(open(seen).read().split()))
            self.maxDiff = None
        self.assertEqual([], missing, "no scenario reaches these fault points")


if __name__ == "__main__":
    unittest.main()
