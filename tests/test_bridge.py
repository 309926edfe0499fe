# SPDX-License-Identifier: Apache-2.0
"""The bridge: a job with `copies` keeps the snapshot before until the copies of the newer one are complete, and goes back to it by
itself if a node with the only part of the newer one is lost."""
import json
import shutil
import unittest

import harness
import numpy as np
import oracle
import state as states
import test_recover
from harness import PATIENCE, Job, wait_for

FAST = test_recover.FAST
COUNT = {"copies": {"count": 2}}
ROWS = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]


class Bridge(test_recover.Recover):
    def rules(self):
        """A file of fault rules of every node: {name: its environment}."""
        self.faults = self.path("fault")
        self.let_copy()
        return {f"n{i}": {"PTC_FAULT_FILE": self.faults} for i in range(4)}

    def no_copies(self):
        """From now on no copy is made: the window stays open."""
        harness.replace_file(self.faults, "copies.look@*=fail")

    def let_copy(self):
        harness.replace_file(self.faults, "")

    def listed(self, c, job):
        """(snapshot, generation, state) of each, newest first."""
        return [(s["snapshot"], s["generation"], s["state"]) for s in c.json("snapshots", job.name)["snapshots"]]

    def copied(self, job):
        def there():
            try:
                s = job.status()
            except harness.ClusterError:
                return None
            return s if s.get("copies", {}).get("fewest", 0) >= 2 and "bridge" not in s else None
        return wait_for(there, 90 * PATIENCE, "two copies of all, and no bridge", 0.05)

    def snapshot(self, job, beyond):
        job.wait_step(beyond + 3)
        job.do("snapshot")
        return job.status()

    def state_job(self, c, rows):
        s, rng = states.State({"exp_avg": "F32"}), np.random.default_rng(self.seed)
        for name, shape in (("a", (rows, 48)), ("b", (96, 32)), ("c", (128, 7))):
            s.add(rng, name, "F32", shape)
        job = Job(c, "kept", s, self.path("job"), ROWS)
        with open(job.yaml) as f:
            spec = json.load(f)
        with open(job.yaml, "w") as f:
            json.dump({**spec, **COUNT}, f)
        return job

    def in_the_window(self, c, job):
        """A job that trains, with a snapshot that has copies, and a newer one that has none. Both of them."""
        job.run("tp=2")
        first = self.snapshot(job, 0)
        self.copied(job)
        self.no_copies()
        return first, self.snapshot(job, first["step"])

    def test_goes_back(self):
        """A node dies with the only half of the newest snapshot: the job goes on from the one before, which has copies."""
        with self.cluster(nodes=3, devices=1, env=self.rules(), **FAST) as c:
            job = self.job(c, "fail", {"min_gpus": 2}, every=1 << 40, more=COUNT)
            first, second = self.in_the_window(c, job)
            self.assertEqual([(second["snapshot"], 1, "committed"), (first["snapshot"], 1, "bridge")], self.listed(c, job))
            self.assertEqual({"snapshot": first["snapshot"], "generation": 1, "step": first["step"]}, second["bridge"])
            self.assertRegex(self.said(job, "snapshot")["why"], "^only node n[0-2] has a part of tensor .* of the newest snapshot, because "
                             f"its copies are not complete: .* back to the bridge, the snapshot of step {first['step']};")
            victim = next(n for n in self.placed(job) if n != "n0")
            c.power_off(victim, chunks=False)
            after = self.trains(c, job, second["run"]["incarnation"])
            self.assertEqual("tp=2", after["config"])
            self.assertEqual(first["step"], after["step"])
            self.assertNotIn(victim, self.placed(job))
            back, = self.events(c, job, "went_back")
            self.assertIn(f"snapshot {second['snapshot']} of step {second['step']} is lost, so the job goes back to snapshot "
                          f"{first['snapshot']} of step {first['step']}", back["text"])
            self.assertRegex(back["text"], f"\"layer.0.weight.*\" was last on {victim}")
            self.assertIn(f"snapshot of step {first['step']}", self.events(c, job, "recovered")[0]["text"])
            self.let_copy()
            self.copied(job)
            self.check_end(c, job)

    def test_slow_copies(self):
        """The same while the copies of the newest snapshot are on their way, at the rate that ptcd.yaml allows."""
        with self.cluster(nodes=3, devices=1, copies={"rate": "2MiB"}, **FAST) as c:
            job = self.job(c, "fail", {"min_gpus": 2}, every=1 << 40, more=COUNT, rows=1 << 15, sleep=0.05)
            job.run("tp=2")
            first = self.snapshot(job, 0)
            self.copied(job)
            second = self.snapshot(job, first["step"])
            self.assertEqual(first["snapshot"], second["bridge"]["snapshot"])
            wait_for(lambda: len([e for e in self.events(c, job, "copies") if "are brought to" in e["text"]]) > 1, 60 * PATIENCE,
                     "copies on their way", 0.05)
            victim = next(n for n in self.placed(job) if n != "n0")
            c.power_off(victim, chunks=False)
            after = self.trains(c, job, second["run"]["incarnation"])
            self.assertEqual((first["step"], 1), (after["step"], len(self.events(c, job, "went_back"))))
            self.check_end(c, job)

    def test_no_room(self):
        """No room for copies beside the bridge: it goes, its event names the window, and the copies come."""
        with self.cluster(nodes=2, devices=1, up=False, ceilings={"n1": "300MiB"}, **FAST) as c:
            c.up(timeout_s=60 * PATIENCE, in_turn=True)
            job = self.state_job(c, (30 << 20) // (48 * 4))
            job.imported("tp=1")
            self.copied(job)
            job.resize("tp=2")
            self.copied(job)
            dropped, = self.events(c, job, "bridge_dropped")
            self.assertRegex(dropped["text"], "snapshot 2 of step 0 is dropped, for node n1 has no room; until the copies of snapshot "
                             "2 are complete, the loss of a node may cost the job its state")
            job.check_whole(self)

    def test_resize_without_room(self):
        """Room for a live resize, but not beside the bridge: it goes, and the resize, whose ranks have ended already, does not fail. A
        plan names the node, once it is known what the ranks will hold."""
        with self.cluster(nodes=2, devices=1, ceilings={"n1": "360MiB"}, **FAST) as c:  # 130 MiB of it are for chunks
            job = self.job(c, every=1 << 40, more=COUNT, rows=(80 << 20) // 384)  # each half: 40 MiB
            job.run("tp=2")
            first = self.snapshot(job, 0)
            self.copied(job)
            job.resize("pp=2") # 20 MiB more on n1, beside 40 that it has of the snapshot, of its copies, and of the ranks
            self.assertEqual("pp=2", job.status()["config"])
            self.assertEqual([], self.events(c, job, "aborted"))
            dropped, = self.events(c, job, "bridge_dropped")
            self.assertRegex(dropped["text"], f"snapshot {first['snapshot']} of step {first['step']} is dropped, for node n1 has no "
                             "room; until the copies of snapshot .* are complete, the loss of a node may cost the job its state")
            self.copied(job)
            self.assertEqual("n1", c.json("plan", job.name, "--config", "tp=2")["window"])
            self.assertIn("window of one copy", c.ptcctl("plan", job.name, "--config", "tp=2").stdout)
            self.assertNotIn("window", c.json("plan", job.name, "--config", "pp=2"))
            self.check_end(c, job)

    def test_snapshots_outrun_copies(self):
        """A snapshot is due long before the copies of the last one are there: it is left out, or no copies would ever be complete."""
        with self.cluster(nodes=3, devices=1, copies={"rate": "2MiB"}, **FAST) as c:
            job = self.job(c, every=10, more=COUNT, rows=1 << 15, sleep=0.05)  # 6 MiB
            job.run("tp=2")
            reached = wait_for(lambda: len(e := self.reached(c, job)) >= 3 and e, 120 * PATIENCE, "copies of three snapshots", 0.2)
            snapshots = [int(e["text"].split()[1].rstrip(":")) for e in reached]
            self.assertEqual(sorted(set(snapshots)), snapshots)
            s = job.status()
            self.assertEqual(0, s["step"] % 10)
            self.assertGreaterEqual(s.get("bridge", s)["snapshot"], snapshots[-2])
            self.check_end(c, job)

    def reached(self, c, job):
        return [e for e in self.events(c, job, "copies") if "every region is on 2" in e["text"]]

    def test_fewer_devices(self):
        """The same where the devices that are left do for a smaller configuration only."""
        with self.cluster(nodes=2, devices=1, env=self.rules(), **FAST) as c:
            job = self.job(c, "fail", every=1 << 40, more={**COUNT, "gpus": {"1": "tp=1", "2": "tp=2"}})
            first, second = self.in_the_window(c, job)
            victim = next(n for n in self.placed(job) if n != "n0")
            c.power_off(victim, chunks=False)
            after = self.trains(c, job, second["run"]["incarnation"])
            self.assertEqual(("tp=1", first["step"]), (after["config"], after["step"]))
            self.check_end(c, job)

    def test_waits(self):
        """`on_failure: wait` waits for the node, also where there is a bridge."""
        with self.cluster(nodes=3, devices=1, env=self.rules(), **FAST) as c:
            job = self.job(c, "fail", {"on_failure": "wait"}, every=1 << 40, more=COUNT)
            _, second = self.in_the_window(c, job)
            victim = next(n for n in self.placed(job) if n != "n0")
            c.power_off(victim)
            wait_for(lambda: self.events(c, job, "waits"), 60 * PATIENCE, "a job that waits")
            c.restart(victim)
            self.assertEqual(second["step"], self.trains(c, job, second["run"]["incarnation"])["step"])
            self.assertEqual([], self.events(c, job, "went_back"))
            self.check_end(c, job)

    def test_stays_until_copied(self):
        """The bridge is the newest snapshot whose copies were complete, whatever comes after it, and its memory is given back when
        those of the newest are."""
        with self.cluster(nodes=3, devices=1, env=self.rules(), **FAST) as c:
            job = self.job(c, every=1 << 40, more=COUNT)
            first, second = self.in_the_window(c, job)
            used = {n["node"]: n["store"]["used_bytes"] for n in c.json("nodes")["nodes"]}
            third = self.snapshot(job, second["step"])
            self.assertEqual([(third["snapshot"], 1, "committed"), (first["snapshot"], 1, "bridge")], self.listed(c, job))
            job.check_state(self, first["step"], self.path("bridge"), snapshot=f"snap-{first['snapshot']}")
            c.ptcctl("verify", job.name, timeout_s=60 * PATIENCE)
            self.let_copy()
            self.copied(job)
            self.assertEqual([(third["snapshot"], 1, "committed")], self.listed(c, job))
            wait_for(lambda: all(n["store"]["used_bytes"] <= used[n["node"]] for n in c.json("nodes")["nodes"]), 60 * PATIENCE,
                     "room", 0.1)
            fourth = self.snapshot(job, third["step"])
            self.assertEqual(third["snapshot"], fourth.get("bridge", third)["snapshot"])
            self.check_end(c, job)

    def test_listed(self):
        """A bridge that `keep` keeps, too, is listed once. One that has the number of a kept snapshot, under another generation, is
        listed beside it."""
        with self.cluster(nodes=3, devices=1, env=self.rules(), **FAST) as c:
            job = self.job(c, every=1 << 40, more={**COUNT, "keep": {"last": 5}})
            first, second = self.in_the_window(c, job)
            def rows():
                return [(s["snapshot"], s["generation"], s["state"], s.get("bridge", False)) for s in
                        c.json("snapshots", job.name)["snapshots"]]
            self.assertEqual([(second["snapshot"], 1, "committed", False), (first["snapshot"], 1, "kept", True)], rows())
            self.assertRegex(c.ptcctl("snapshots", job.name).stdout, r"(?m)^[^\n]*\bkept\b[^\n]*\byes\b")
            self.let_copy()
            self.copied(job)
            job.do("stop")
            stopped = self.copied(job)
            self.no_copies()
            c.ptcctl("run", job.name, "--config", "tp=1", "--wait", timeout_s=60 * PATIENCE)
            then = job.status()
            self.assertEqual((stopped["snapshot"] + 1, 2), (then["snapshot"], then["generation"]))
            last = self.snapshot(job, then["step"])
            self.assertEqual([(last["snapshot"], 2, "committed", False), (then["snapshot"], 2, "kept", False),
                              (then["snapshot"], 1, "bridge", True), (second["snapshot"], 1, "kept", False)], rows()[:4])
            job.check_state(self, then["step"], self.path("bridge"), snapshot=f"snap-{then['snapshot']}")
            self.let_copy()
            self.check_end(c, job)

    def test_gone(self):
        """Nodes lose the chunks of the bridge: it stays as long as other nodes have all of it; then it goes, and an event says why."""
        with self.cluster(nodes=2, devices=1, env=self.rules(), **FAST) as c:
            job = self.job(c, every=1 << 40, more=COUNT)
            first, _ = self.in_the_window(c, job)
            c.nodes["n1"].kill()
            shutil.rmtree(c.nodes["n1"].chunk_dir)
            c.start_node(c.nodes["n1"], {"PTC_FAULT_FILE": self.faults})
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            wait_for(lambda: any(n["node"] == "n1" for n in self.bridge(c, job).get("absent", [])), 60 * PATIENCE, "a bridge without n1")
            self.assertEqual(first["snapshot"], job.status()["bridge"]["snapshot"])
            c.nodes["n0"].kill()
            shutil.rmtree(c.nodes["n0"].chunk_dir)
            c.start_node(c.nodes["n0"], {"PTC_FAULT_FILE": self.faults})
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            told, = wait_for(lambda: self.events(c, job, "bridge_dropped"), 60 * PATIENCE, "the end of the bridge")
            self.assertRegex(told["text"], f"^snapshot {first['snapshot']} of step {first['step']} is dropped, for node n[01] does not "
                             "have its part of it any more; until the copies of snapshot .* are complete")
            wait_for(lambda: "bridge" not in job.status(), 60 * PATIENCE, "no bridge")
            self.assertNotIn("no_bridge", job.status())
            self.let_copy()
            job.do("snapshot")
            self.copied(job)
            self.check_end(c, job)

    def bridge(self, c, job):
        return next((s for s in c.json("snapshots", job.name)["snapshots"] if s.get("bridge")), {})

    def test_replicas_need_none(self):
        """Every region is on two nodes by the layout alone: no snapshot is kept for nothing."""
        with self.cluster(nodes=2, devices=1, env=self.rules(), **FAST) as c:
            job = self.job(c, every=1 << 40, more=COUNT)
            job.run("dp=2")
            first = self.snapshot(job, 0)
            self.copied(job)
            wait_for(lambda: self.bare(c, job, first), 60 * PATIENCE, "no bridge", 0.5)
            self.check_end(c, job)

    def bare(self, c, job, since):
        s = self.snapshot(job, job.status()["step"])
        self.assertGreater(s["snapshot"], since["snapshot"])
        return "bridge" not in s

    def test_rollback_of_state(self):
        """A job without ranks is resized, and the node with its only bytes is lost before there are copies: a rollback brings the
        state back that the old generation has, to nodes that are left."""
        with self.cluster(nodes=4, devices=1, env=self.rules(), **FAST) as c:
            job = self.state_job(c, 64)
            job.imported("tp=2")
            self.copied(job)
            self.no_copies()
            job.resize("tp=1", extra=("--nodes", "n3"))
            status = job.status()
            self.assertEqual((1, status["snapshot"]), (status["bridge"]["generation"], status["bridge"]["snapshot"]))
            c.nodes["n3"].kill()
            self.wait_lost(c, "n3")
            self.assertIn("lost", job.status())
            bridge = next(s for s in c.json("snapshots", job.name)["snapshots"] if s["state"] == "bridge")
            self.assertEqual(1, bridge["generation"])
            self.assertGreaterEqual(bridge["copies"]["fewest"], 1)
            self.assertNotIn("lost", bridge)
            self.refused(c, "resize", job.name, "--config", "tp=2", "--wait", timeout_s=60 * PATIENCE)
            c.ptcctl("rollback", job.name, "--to", f"snap-{status['bridge']['snapshot']}", timeout_s=60 * PATIENCE)
            self.assertNotIn("lost", job.status())
            self.assertEqual("tp=2", job.status()["config"])
            job.check_whole(self)
            job.check_ranks(self, oracle.Config(tp=2), ROWS)
            self.let_copy()
            self.copied(job)
            job.resize("tp=1")
            job.check_whole(self)


for test in dir(test_recover.Recover):
    if test.startswith("test_"):
        setattr(Bridge, test, None)


if __name__ == "__main__":
    unittest.main()
