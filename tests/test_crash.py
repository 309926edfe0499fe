# SPDX-License-Identifier: Apache-2.0
"""kill -9, everywhere. After each: the old or the new record, whole; the bytes of the input; nothing leaked.

Fault points are enumerated by running the scenario once with PTC_FAULT_LIST, so a new point is covered without
being listed here; `scripts/check --list-points` says which exist, and one that no scenario reaches fails the test.
"""
import os
import subprocess
import threading
import time
import unittest

import harness
import numpy as np
import oracle
import state as states
from harness import LONG, PATIENCE, ROOT, SANITIZED, Job, wait_for

RULES = [{"match": "*", "split": {"axis": "tp", "dim": 0, "kind": "balanced"}, "layer": "h.{}.*"}]
A, B = "tp=2,pp=2", "tp=1,pp=2,dp=2,zero=1"


def small_state(seed):
    rng, s = np.random.default_rng(seed), states.State({"exp_avg": "F32"})
    for layer in range(4):
        s.add(rng, f"h.{layer}.w", "BF16", (96, 512))
        s.add(rng, f"h.{layer}.b", "F32", (7,))
    return s


class Crash(harness.Case):
    """Four daemons with a device each; n0 supervises etcd."""

    def start(self, c, name="crash"):
        return Job(c, name, small_state(self.seed), self.path(name), RULES)

    def recover(self, c):
        """Starts what is dead, without faults, and waits until every node sees the others."""
        for node in c.nodes.values():
            if not node.pid():
                c.start_node(node)
        c.wait_nodes(list(c.nodes), 60 * PATIENCE)

    def check(self, c, job, allowed, node="n0"):
        """The record is one of the allowed configurations and whole; returns its configuration."""
        status = job.wait_idle(90)
        config = status["config"]
        self.assertIn(str(oracle.Config(config)), [str(oracle.Config(a)) for a in allowed])
        c.ptcctl("verify", job.name, node=node)
        job.check_whole(self, node=node)
        job.check_ranks(self, oracle.Config(config), RULES, node=node)
        return config

    def switch_quietly(self, c, job, config, node):
        """A resize whose client may lose its daemon; what counts is checked afterwards."""
        try:
            c.ptcctl("resize", job.name, "--config", config, "--wait", node=node, check=False, timeout_s=60 * PATIENCE)
        except subprocess.TimeoutExpired:
            pass

    def arm(self, c, victim, fault):
        """Starts the victim with a fault. It may be a point that the start passes: then it is dead when this returns."""
        node, other = c.nodes[victim], next(n for n in c.nodes if n != victim)
        node.stop()
        c.start_node(node, {"PTC_FAULT": fault})
        wait_for(lambda: not node.pid() or victim in (c.nodes_up(other) or ()), 60 * PATIENCE, f"{victim} up or dead")
        return node

    def switch_through(self, c, job, config, caller, node):
        """A switch during which the node may die; it is started again, without a fault, as soon as it is dead."""
        client = threading.Thread(target=self.switch_quietly, args=(c, job, config, caller))
        client.start()
        while client.is_alive() and node.pid():
            time.sleep(0.02)
        died = not node.pid()
        self.recover(c)
        client.join()
        if not died:
            print("  (not reached)", flush=True)

    def points_of(self, c, victim, scenario):
        """The fault points that the victim's daemon passes in the scenario (after its start)."""
        seen = self.path(f"points.{victim}.{time.monotonic_ns()}")
        c.restart(victim, {"PTC_FAULT_LIST": seen})
        c.wait_nodes(list(c.nodes), 60 * PATIENCE)
        started = set(open(seen).read().split()) if os.path.exists(seen) else set()
        scenario()
        c.restart(victim)
        reached = set(open(seen).read().split()) if os.path.exists(seen) else set()
        return sorted(reached), started

    def kill_at_each(self, victim):
        """In a switch, kills the victim's daemon once at each point it passes."""
        with self.cluster(nodes=4, devices=1) as c:
            job = self.start(c)
            job.imported(A)
            here, there = A, B
            points, _ = self.points_of(c, victim, lambda: job.resize(B, node="n2"))
            here, there = there, here
            self.assertTrue(points, f"{victim} passes no fault point in a switch")
            job.resize(there, node="n2") # warm in both directions
            here, there = there, here
            for point in points if LONG or not SANITIZED else self.random.sample(points, min(8, len(points))):
                print(f"{victim}: kill at {point}", flush=True)
                self.switch_through(c, job, there, "n2" if victim != "n2" else "n3", self.arm(c, victim, point))
                config = self.check(c, job, (here, there))
                if str(oracle.Config(config)) == str(oracle.Config(there)):
                    here, there = there, here
            for node in c.nodes:
                c.restart(node)
            job.delete()

    def test_points_of_a_member(self):
        self.kill_at_each("n1")

    def test_points_of_the_coordinators_node(self):
        """n0 also supervises etcd: the next daemon adopts or ends that child."""
        self.kill_at_each("n0")

    def test_points_of_import_and_delete(self):
        with self.cluster(nodes=2, devices=1) as c:
            def whole_life(name):
                job = self.start(c, name)
                job.imported("tp=2", node="n0")
                job.delete(node="n0")

            points, _ = self.points_of(c, "n1", lambda: whole_life("list"))
            self.assertTrue(points)
            for i, point in enumerate(points):
                print(f"import and delete: kill n1 at {point}", flush=True)
                node = self.arm(c, "n1", point)
                job = self.start(c, f"life{i}")
                job.create(check=False)

                def live(job=job):
                    if c.ptcctl(*job.import_args("tp=2"), check=False, timeout_s=60 * PATIENCE).returncode == 0:
                        job.delete(check=False)

                client = threading.Thread(target=live)
                client.start()
                while client.is_alive() and node.pid():
                    time.sleep(0.02)
                self.recover(c)
                client.join()
                listed = c.ptcctl("job", "list", check=True).stdout
                if job.name in listed:
                    status = job.wait_idle(90)
                    if not status["has_state"]:
                        c.ptcctl(*job.import_args("tp=2"), timeout_s=60 * PATIENCE) # generation 0: import again
                    job.check_whole(self)
                    job.delete()
            self.assert_empty(c)

    def assert_empty(self, c):
        """No job is left, so the stores hold nothing: chunk files shrink to their empty size."""
        def small():
            sizes = [sum(os.lstat(os.path.join(d, f)).st_blocks * 512 for d, _, fs in os.walk(n.chunk_dir) for f in fs)
                     for n in c.nodes.values()]
            return max(sizes) < 1 << 20

        wait_for(small, 20 * PATIENCE, "empty stores after every job was deleted", 0.2)
        self.assertNotIn("/ptc/jobs/", c.etcdctl("get", "--prefix", "/ptc/jobs/", "--keys-only").stdout)

    def test_failing_calls(self):
        """Each durable effect that reports failure instead of happening: one clear end, no harm."""
        with self.cluster(nodes=4, devices=1) as c:
            job = self.start(c)
            job.imported(A)
            points, _ = self.points_of(c, "n1", lambda: job.resize(B))
            job.resize(A)
            here, there = A, B
            befores = [p for p in points if p.endswith(".before")]
            for point in befores if LONG else self.random.sample(befores, min(6, len(befores))):
                print(f"n1: {point} fails", flush=True)
                node = self.arm(c, "n1", f"{point}=fail")
                if node.pid():
                    self.switch_quietly(c, job, there, "n2")
                c.restart("n1")
                config = self.check(c, job, (here, there))
                if str(oracle.Config(config)) == str(oracle.Config(there)):
                    here, there = there, here

    def test_random_times(self):
        """Any daemon, at any time, while switches go back and forth."""
        kills = 200 if LONG else 6 if SANITIZED else 20
        with self.cluster(nodes=4, devices=1) as c:
            job = self.start(c)
            job.imported(A)
            start = time.monotonic()
            job.resize(B)
            job.resize(A)
            span_s = (time.monotonic() - start) / 2
            here, there = A, B
            for i in range(kills):
                victim, after_s = self.random.choice(list(c.nodes)), self.random.uniform(0, span_s * 1.2)
                caller = self.random.choice([n for n in c.nodes if n != victim])
                print(f"kill {i}: {victim} {after_s * 1000:.0f} ms into a switch asked of {caller}", flush=True)
                client = threading.Thread(target=self.switch_quietly, args=(c, job, there, caller))
                client.start()
                time.sleep(after_s)
                c.nodes[victim].kill()
                self.recover(c)
                client.join()
                config = self.check(c, job, (here, there), node=caller)
                if str(oracle.Config(config)) == str(oracle.Config(there)):
                    here, there = there, here

    def test_all_at_once(self):
        """Power goes: every daemon and etcd."""
        with self.cluster(nodes=4, devices=1) as c:
            job = self.start(c)
            job.imported(A)
            client = threading.Thread(target=self.switch_quietly, args=(c, job, B, "n2"))
            client.start()
            time.sleep(self.random.uniform(0, 0.5))
            for pid in c.processes():
                try:
                    with open(f"/proc/{pid}/comm") as f:
                        name = f.read().strip()
                    if name in ("ptcd", "etcd"):
                        os.kill(pid, 9)
                except OSError:
                    continue
            client.join()
            wait_for(lambda: not any(n.pid() for n in c.nodes.values()), 10, "the end of every daemon")
            self.recover(c)
            self.check(c, job, (A, B))

    def test_every_point_is_reached(self):
        """Each point named in the source is passed by start, import, switch, drain, delete or stop."""
        out = subprocess.run([os.path.join(ROOT, "scripts", "check"), "--list-points"], stdout=subprocess.PIPE, text=True,
                             check=True).stdout
        named = set(out.split())
        self.assertTrue(named)
        seen = self.path("points")
        env = {"PTC_FAULT_LIST": seen}
        with self.cluster(nodes=4, devices=1, up=False) as c:
            c.up({n: env for n in c.nodes}, timeout_s=60 * PATIENCE)
            job = self.start(c)
            job.imported(A)
            job.resize(B)
            job.resize(A)
            c.ptcctl("drain", "n3", check=False)
            job.wait_idle()
            c.restart("n2", env)
            job.delete()
            c.stop()
            missing = sorted(named - set(open(seen).read().split()))
            self.assertEqual([], missing, "no scenario reaches these fault points")


if __name__ == "__main__":
    unittest.main()
