# SPDX-License-Identifier: Apache-2.0
"""A node is lost whose ranks train: the job goes on from its newest snapshot, and nobody types anything."""
import base64
import json
import os
import re
import shutil
import signal
import threading
import time

import harness
import live
from harness import PATIENCE, wait_for
from machines import Machines
from test_proof import proved

AFTER = 2 # seconds until a node that is down counts as lost
FAST = {"lease_ttl": "2s", "node_lost_after": f"{AFTER}s"}


class Recover(harness.Case):
    def job(self, c, together="fail", elastic=None, every=10, more=None, **kw):
        kw.setdefault("data", "100000,7,8,4")
        kw.setdefault("grace", "2s")
        run = {"snapshot_every": every, **({"elastic": elastic} if elastic else {}), **(more or {})}
        return live.Job(c, self.path("job"), together=together, run=run, **kw)

    def placed(self, job):
        return sorted({r["node"] for r in job.status()["ranks"]})

    def trains(self, c, job, incarnation=None, steps=3, timeout_s=90):
        """Until every rank of another incarnation has ended some steps. The status."""
        def stepped():
            s = job.status()
            run = s["run"]
            if run["state"] != "live" or s["phase"] != "idle" or run["incarnation"] == incarnation:
                return None
            ok = all(r["state"] == "running" and (r.get("step") or -1) >= s["step"] + steps for r in run["ranks"])
            return s if ok else None
        try:
            return wait_for(stepped, timeout_s * PATIENCE, "a job that trains again", 0.05)
        except Exception:
            print("status:", json.dumps(job.status()), c.ptcctl("events", job.name, check=False).stdout, flush=True)
            raise

    def begun(self, c, job):
        """Until it has a snapshot. The status."""
        wait_for(lambda: job.status()["snapshot"] or None, 60 * PATIENCE, "a snapshot", 0.05)
        return self.trains(c, job)

    def check_end(self, c, job, proof=True):
        """Each incarnation went on from a step that was committed, and what is committed in the end is what an undisturbed run
        would have come to."""
        while job.do("stop", check=False).returncode != 0:
            self.trains(c, job)
        status = job.wait_run("stopped")
        job.check_state(self, status["step"], self.path(f"end-{status['generation']}"))
        if proof:
            proved(self, c, job)
        for key, steps in job.steps_logged().items():
            if steps:
                self.assertEqual(list(range(steps[0], steps[0] + len(steps))), steps, f"{key}: steps left out or done twice")
        wait_for(lambda: not job.processes(), 30 * PATIENCE, "the end of every rank", 0.1)
        return status

    # ---- the job goes on -------------------------------------------------------------------------

    @harness.labels("repeats")
    def test_node_killed(self):
        """At random instants, with survivors that fail or hang: nobody types anything until the job has gone on. The lost node
        comes back, with or without its chunks, and the job is brought there again."""
        for how in ("fail", "hang"):
            with self.subTest(how=how), self.cluster(nodes=3, devices=1, **FAST) as c:
                shutil.rmtree(self.path("job"), ignore_errors=True)
                job = self.job(c, how, elastic={"min_gpus": 1, "max_gpus": 3})
                job.run("dp=3")
                last = unknown = 0
                for n in range(harness.size(2, 6, 20)):
                    before = self.begun(c, job)
                    victim = self.random.choice(["n1", "n2"])
                    time.sleep(self.random.random() * 0.5) # any instant; nothing is judged by it
                    began = time.monotonic()
                    c.power_off(victim)
                    after = self.trains(c, job, before["run"]["incarnation"])
                    print(f"{n}: {victim} (controller {before['controller']}): {before['run'].get('step')} -> {after['step']}, "
                          f"{after['config']}, after {time.monotonic() - began:.1f} s", flush=True)
                    self.assertNotIn(victim, self.placed(job))
                    self.assertEqual("dp=2", after["config"])
                    told = self.events(c, job, "recovered") # the oldest are forgotten, with many
                    self.assertGreater(told[-1]["number"], last)
                    last = told[-1]["number"]
                    how_far = re.search(r"of step (\d+), .*; step (\d+) had been reached: (\d+) steps are lost", told[-1]["text"])
                    if how_far is None: # the rank that had come furthest may be gone before anybody has asked it
                        unknown += 1
                        self.assertIn("how many steps are lost is not known", told[-1]["text"])
                    else:
                        begun, reached, lost = map(int, how_far.groups())
                        self.assertEqual(reached - begun, lost)
                        self.assertLessEqual(0, lost)
                        self.assertLessEqual(lost, 30) # a snapshot each ten, and one that was under way
                    self.assertIn(victim, self.events(c, job, "recovering")[-1]["text"])
                    if self.random.random() < 0.5:
                        shutil.rmtree(c.nodes[victim].chunk_dir)
                    c.restart(victim)
                    wait_for(lambda: job.resize("dp=3") and job.status()["config"] == "dp=3", 60 * PATIENCE, "all three again", 0.2)
                self.assertLess(unknown, 5)
                self.check_end(c, job)

    @harness.labels("repeats")
    def test_killed_in_a_switch(self):
        """A node dies at any instant of a resize, or of a snapshot that is asked for: one that has ranks, or one that joins."""
        with self.cluster(nodes=4, devices=1, **FAST) as c:
            job = self.job(c, "hang", every=25, elastic={"max_gpus": 3})
            job.run("dp=2")
            for n in range(harness.size(3, 7, 20)):
                before = self.begun(c, job)
                here = [x for x in self.placed(job) if x != "n0"]
                victim = self.random.choice(here or ["n1"])
                config = "dp=3" if before["config"] == "dp=2" else "dp=2"
                act = self.random.choice([("resize", job.name, "--config", config, "--wait"), ("snapshot", job.name, "--wait")])
                asking = threading.Thread(target=c.ptcctl, args=act, kwargs={"check": False, "timeout_s": 120 * PATIENCE})
                asking.start()
                time.sleep(self.random.random() * 0.8) # any instant; nothing is judged by it
                phase = job.status()["phase"]
                c.power_off(victim)
                asking.join()
                wait_for(lambda: victim not in self.placed(job), 90 * PATIENCE, f"a job without {victim}") # noqa: B023
                after = self.trains(c, job)
                print(f"{n}: {victim} in {act[0]} ({phase}): {before['config']} -> {after['config']}", flush=True)
                c.restart(victim)
            self.check_end(c, job)

    @harness.labels("repeats")
    def test_spare(self):
        """A node that nobody used takes the place of the lost one: the same configuration."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.job(c, elastic={"min_gpus": 2})
            job.run("dp=2", )
            before = self.begun(c, job)
            victim = next(n for n in self.placed(job) if n != "n0")
            c.power_off(victim)
            after = self.trains(c, job, before["run"]["incarnation"])
            self.assertEqual("dp=2", after["config"])
            self.assertEqual(sorted({"n0", "n1", "n2"} - {victim}), self.placed(job))
            self.check_end(c, job)

    @harness.labels("repeats")
    def test_planned(self):
        """What the job goes on with is the planner's choice: degrees that `space:` has, where scaling dp would take others."""
        model = {"layers": 3, "hidden": 1024, "heads": 8, "vocab": 1000, "seq": 512}
        space = {"global_batch": 8, "tp": [1], "pp": [1, 3], "dp": [1, 2, 4], "micro_batch": [2]}
        with self.cluster(nodes=4, devices=1, **FAST) as c:
            job = self.job(c, data="100000,7,8,2", elastic={"min_gpus": 1, "max_gpus": 4}, more={"model": model, "space": space})
            job.run("dp=4,micro_batch=2,global_batch=8")
            before = self.begun(c, job)
            c.power_off("n3")
            after = self.trains(c, job, before["run"]["incarnation"])
            best = c.json("advise", job.name, "--gpus", "3")["candidates"][0]
            self.assertTrue(best["runs_now"], best)
            self.assertEqual(best["config"], after["config"])
            self.assertIn(after["config"].split(",")[0], ("dp=2", "pp=3"))
            self.check_end(c, job)

    def test_no_devices(self):
        """min_gpus are more than there are: nothing is ended, and the job waits, until a node comes."""
        with self.cluster(nodes=2, devices=1, **FAST) as c:
            job = self.job(c, "hang", elastic={"min_gpus": 2})
            job.run("dp=2")
            before = self.begun(c, job)
            c.power_off("n1")
            waits = wait_for(lambda: self.events(c, job, "waits"), 60 * PATIENCE, "the reason")
            self.assertIn("node n1 is lost", waits[0]["text"])
            self.assertIn("1 devices are there, and the job has no configuration for", waits[0]["text"])
            self.assertEqual("live", job.status()["run"]["state"])
            c.restart("n1")
            after = self.trains(c, job, before["run"]["incarnation"])
            self.assertEqual(["n0", "n1"], self.placed(job))
            self.assertEqual("dp=2", after["config"])
            self.check_end(c, job)

    @harness.labels("repeats")
    def test_only_copy(self):
        """What only the lost node had is named, with the node; the job goes on once it is back with its chunks."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.job(c, "fail")
            job.run("tp=2")
            before = self.begun(c, job)
            victim = next(n for n in self.placed(job) if n != "n0")
            c.power_off(victim)
            waits = wait_for(lambda: [e for e in self.events(c, job, "waits") if "on no live node" in e["text"]], 60 * PATIENCE,
                             "the reason")
            self.assertRegex(waits[0]["text"], f"\"layer.0.weight.*\" was last on {victim}")
            status = job.status()
            # live: a snapshot was due, and the ranks wait for it
            self.assertIn(status["run"]["state"], ("live", "recovering"))
            self.assertIn("on no live node", job.status(node=status["controller"])["run"]["recovery"]["waits"])
            self.assertEqual({victim}, {n for t in status["lost"]["list"] for n in t["nodes"]})
            c.restart(victim)
            after = self.trains(c, job, before["run"]["incarnation"])
            self.assertEqual("tp=2", after["config"])
            self.check_end(c, job)

    def test_copies(self):
        """A node takes the only ranks that had a half of the state with it: `copies:` has it elsewhere, and nobody waits."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.job(c, "fail", {"min_gpus": 2}, every=1 << 30, more={"copies": {"count": 2}})
            job.run("tp=2")
            job.wait_step(10)
            job.do("snapshot")
            wait_for(lambda: job.status()["copies"]["fewest"] >= 2, 60 * PATIENCE, "two copies of all", 0.05)
            before = self.trains(c, job)
            victim = next(n for n in self.placed(job) if n != "n0")
            c.power_off(victim, chunks=False)
            after = self.trains(c, job, before["run"]["incarnation"])
            self.assertEqual("tp=2", after["config"])
            self.assertNotIn(victim, self.placed(job))
            self.assertIn("goes on from the snapshot", self.events(c, job, "recovered")[0]["text"])
            self.check_end(c, job)

    @harness.labels("repeats")
    def test_chunks_gone(self):
        """A node dies and is back before it counts as lost, without its ranks and chunks: the job goes on from what others hold."""
        with self.cluster(nodes=2, devices=1, lease_ttl="2s", node_lost_after="1h") as c:
            job = self.job(c, "fail")
            job.run("dp=2")
            before = self.begun(c, job)
            c.power_off("n1", chunks=False)
            c.restart("n1")
            after = self.trains(c, job, before["run"]["incarnation"])
            self.assertEqual("dp=2", after["config"])
            self.assertNotIn("absent", after)
            self.check_end(c, job)

    def test_store_gone(self):
        """A job that has no snapshot yet, and a node that comes back under another store: its rank is not begun anew beside one
        that is steps ahead; the job begins again."""
        with self.cluster(nodes=2, devices=1, lease_ttl="2s", node_lost_after="1h") as c:
            job = self.job(c, "hang", every=1 << 40)
            job.run("dp=2")
            job.wait_step(20)
            before = job.status()
            c.power_off("n1", chunks=False)
            shutil.rmtree(os.path.join(c.nodes["n1"].dir, "state"))
            wait_for(lambda: c.nodes_up() == {"n0"}, 30 * PATIENCE, "its name to be free")
            c.restart("n1")
            self.trains(c, job, before["run"]["incarnation"])
            self.assertIn("had no snapshot", self.events(c, job, "recovered")[0]["text"])
            self.check_end(c, job)

    @harness.labels("repeats")
    def test_all_gone(self):
        """All machines die at once, and one of them stays away: how far the ranks had come is not known, and not made up."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.job(c, "hang")
            job.run("dp=3")
            before = self.begun(c, job)
            c.power_off(*c.nodes)
            for name in ("n0", "n1"):
                c.start_node(c.nodes[name])
            c.wait_nodes(["n0", "n1"])
            self.assertEqual("dp=2", self.trains(c, job, before["run"]["incarnation"])["config"])
            self.assertIn("how many steps are lost is not known", self.events(c, job, "recovered")[0]["text"])
            self.check_end(c, job)

    @harness.labels("repeats")
    def test_devices_taken(self):
        """Ranks that are left hang, and have their devices until they are killed: those that are started in their place find
        them free, however long the job's grace time is."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.job(c, "hang", grace="1h", devices=1, every=1 << 40)
            job.run("dp=3")
            job.do("snapshot")
            before = self.begun(c, job)
            ranks = {r["pid"] for r in before["run"]["ranks"]}
            c.power_off("n2")
            after = self.trains(c, job, before["run"]["incarnation"])
            self.assertEqual("dp=2", after["config"])
            self.assertEqual([], self.events(c, job, "aborted", "failed"))
            self.assertFalse(ranks & set(job.processes()))
            job.do("stop")

    @harness.labels("repeats")
    def test_all_back(self):
        """All machines lose power, and one of them comes back later than nodes are waited for: it is not lost, for those that
        are back have been there for less than three times that long; the job goes on as it was."""
        with self.cluster(nodes=3, devices=1, lease_ttl="2s", node_lost_after="15s") as c:
            job = self.job(c, "hang")
            job.run("dp=3")
            before = self.begun(c, job)
            c.power_off(*c.nodes)
            for name in ("n0", "n1"):
                c.start_node(c.nodes[name])
            c.wait_nodes(["n0", "n1"])
            wait_for(lambda: [n for n in job.status().get("absent", []) if n["node"] == "n2" and n["down_s"] > 18], 60 * PATIENCE,
                     "a node that has been away for longer")
            c.start_node(c.nodes["n2"])
            self.assertEqual("dp=3", self.trains(c, job, before["run"]["incarnation"])["config"])
            self.assertEqual([], self.events(c, job, "node_lost", "left_out"))
            self.check_end(c, job)

    # ---- what is no loss ----------------------------------------------------------------------------

    @harness.labels("repeats")
    def test_ptcd_away(self):
        """A ptcd is gone for longer than nodes are waited for, and its ranks train: nothing is lost, and no rank is ended."""
        with self.cluster(nodes=2, devices=1, **FAST) as c:
            job = self.job(c, "hang", every=1 << 40) # where one is due, ranks wait for the node
            job.run("dp=2")
            job.do("snapshot")
            before = self.begun(c, job)
            c.nodes["n1"].kill()
            wait_for(lambda: next(n for n in c.json("nodes")["nodes"] if n["node"] == "n1").get("lost"), 60 * PATIENCE, "n1 lost")
            job.wait_step(job.step() + 400)
            c.restart("n1")
            after = self.trains(c, job)
            self.assertEqual((before["generation"], before["run"]["incarnation"]), (after["generation"], after["run"]["incarnation"]))
            self.assertEqual([], self.events(c, job, "recovering", "recovered", "waits", "failed"))
            self.check_end(c, job)

    def rank_fails_beside(self, c, how, job=None):
        """n1's ptcd gets a signal, then its rank dies, so the other ranks fail; nodes count as lost after an hour. (job, status before)"""
        # where a snapshot is due, ranks wait for the node
        job = job or self.job(c, "fail", every=1 << 40, elastic={"min_gpus": 1, "max_gpus": 3})
        job.run("dp=3")
        job.do("snapshot")
        before = self.begun(c, job)
        c.nodes["n1"].signal(how)
        rank = next(r for r in before["run"]["ranks"] if r["node"] == "n1")
        os.kill(rank["pid"], signal.SIGKILL)
        return job, before

    def goes_on_without(self, c, job, before):
        after = self.trains(c, job, before["run"]["incarnation"])
        self.assertEqual("dp=2", after["config"])
        self.assertNotIn("n1", self.placed(job))
        self.assertEqual([], self.events(c, job, "node_lost"))
        c.nodes["n1"].signal(signal.SIGCONT)
        c.wait_nodes(["n1"], 60 * PATIENCE)

    def test_silent(self):
        """A node's lease has ended, it says nothing, and another rank has failed: the job goes on without it before it is lost."""
        with self.cluster(nodes=3, devices=1, lease_ttl="2s", node_lost_after="1h") as c:
            job, before = self.rank_fails_beside(c, signal.SIGSTOP)
            self.goes_on_without(c, job, before)
            wait_for(lambda: job.resize("dp=3") and job.status()["config"] == "dp=3", 60 * PATIENCE, "all three again", 0.2)
            self.check_end(c, job)

    def test_silent_then_lost(self):
        """The job goes on without a silent node as soon as it has devices; when the node is lost, that is said, too."""
        with self.cluster(nodes=3, devices=1, lease_ttl="2s", node_lost_after="20s") as c:
            job = self.job(c, "fail", every=1 << 40, elastic={"min_gpus": 3, "max_gpus": 3})
            job, before = self.rank_fails_beside(c, signal.SIGSTOP, job)
            passed = wait_for(lambda: next((a for a in job.status().get("absent", []) if a["state"] == "passed by"), None),
                              60 * PATIENCE, "a node that is passed by")
            self.assertEqual("n1", passed["node"])
            self.assertIn("the job goes on without it", passed["means"])
            told = wait_for(lambda: self.events(c, job, "node_lost"), 60 * PATIENCE, "its loss")
            self.assertIn("node n1 is lost, it has been down for", told[0]["text"])
            c.nodes["n1"].signal(signal.SIGCONT)
            self.assertEqual("dp=3", self.trains(c, job, before["run"]["incarnation"])["config"])
            self.assertEqual(1, len(self.events(c, job, "node_lost")))
            self.check_end(c, job)

    def test_refuses(self):
        """As before, but its ptcd is gone. Its address is a socket file, so no machine is asked whether it takes connections: its ptcd
        is waited for, and the job goes on where it was."""
        with self.cluster(nodes=3, devices=1, lease_ttl="2s", node_lost_after="1h") as c:
            job, before = self.rank_fails_beside(c, signal.SIGKILL)
            wait_for(lambda: self.events(c, job, "recovering") and job.status()["phase"] == "idle", 60 * PATIENCE, "ranks given up")
            asked = time.monotonic() + 3 # so it has been asked more than once; nothing is judged by it
            wait_for(lambda: time.monotonic() > asked, 60, "questions", 0.1)
            self.assertEqual([], self.events(c, job, "recovered"))
            c.restart("n1")
            after = self.trains(c, job, before["run"]["incarnation"])
            self.assertEqual("dp=3", after["config"])
            self.check_end(c, job)

    # ---- its machine is there, and refuses connections ------------------------------------------------

    def closed_cluster(self):
        """Its nodes have ports, so that a machine can refuse a connection; and by time alone no node is lost in this test."""
        return self.cluster(nodes=3, devices=1, transport="insecure", lease_ttl="2s", node_lost_after="1h")

    def test_closed(self):
        """A node's ptcd and ranks are killed, other ranks fail, and its machine refuses connections: nobody waits for it to be lost."""
        for survive in (0, 1):
            with self.subTest(survive=survive), self.closed_cluster() as c:
                job = self.job(c, "fail", survive=survive, every=1 << 40, elastic={"min_gpus": 2, "max_gpus": 3}, name=f"job-{survive}")
                job.run("dp=3")
                job.do("snapshot")
                before = self.trains(c, job)
                victim = self.random.choice(["n1", "n2"])
                c.power_off(victim)
                if survive:
                    after = self.check_survived(c, job, before, victim)
                else:
                    after = self.trains(c, job, before["run"]["incarnation"])
                    self.assertEqual(before["step"], after["step"])
                self.assertEqual("dp=2", after["config"])
                self.assertNotIn(victim, self.placed(job))
                self.assertEqual([], self.events(c, job, "node_lost"))
                self.assertIn("or its machine is silent or has refused connections for 1.5 s", self.events(c, job, "recovering")[0]["text"])
                c.restart(victim)
                wait_for(lambda: job.resize("dp=3") and job.status()["config"] == "dp=3", 60 * PATIENCE, "all three again", 0.2)
                self.check_end(c, job)

    def test_closed_only_copy(self):
        """As before, but the node has what no other has: that is not given up, and the job goes on once the node is back."""
        with self.closed_cluster() as c:
            job = self.job(c, "fail", every=1 << 40, elastic={"min_gpus": 1}) # where one is due, ranks wait for the node
            job.run("tp=2", nodes="n1,n2")
            job.do("snapshot")
            before = self.trains(c, job)
            c.power_off("n1")
            waits = wait_for(lambda: self.events(c, job, "waits"), 60 * PATIENCE, "the reason")
            self.assertRegex(waits[0]["text"], "on no live node.*was last on n1")
            self.assertEqual("passed by", next(a for a in job.status()["absent"] if a["node"] == "n1")["state"])
            c.restart("n1")
            after = self.trains(c, job, before["run"]["incarnation"])
            self.assertEqual("tp=2", after["config"])
            self.check_end(c, job)

    def test_closed_ranks_live(self):
        """Only the node's ptcd is killed, for longer than machines are asked for, and the ranks train: nothing is given up."""
        with self.closed_cluster() as c:
            job = self.job(c, "fail", every=1 << 40, elastic={"min_gpus": 1, "max_gpus": 3}) # where one is due, ranks wait for the node
            job.run("dp=3")
            job.do("snapshot")
            before = self.begun(c, job)
            c.nodes["n1"].kill()
            wait_for(lambda: [a for a in job.status().get("absent", []) if a["node"] == "n1" and a["down_s"] > 12], 60 * PATIENCE,
                     "a node that has been away for longer")
            job.wait_step(job.step() + 100)
            c.restart("n1")
            after = self.trains(c, job)
            self.assertEqual((before["generation"], before["run"]["incarnation"]), (after["generation"], after["run"]["incarnation"]))
            self.assertEqual([], self.events(c, job, "recovering", "recovered", "waits", "failed", "aborted"))
            self.check_end(c, job)

    def test_closed_and_back(self):
        """A ptcd is killed and started again at once, as systemd does, and a rank of another node fails at that moment by itself: the
        job starts again where it was. Before that it has trained for longer than nodes have to settle. If the ptcd is back before the
        failure is judged, that is the program's own (`max_restarts`)."""
        with self.closed_cluster() as c:
            job = self.job(c, "fail", every=1 << 40, elastic={"min_gpus": 1, "max_gpus": 3, "max_restarts": 3})
            job.run("dp=3")
            job.do("snapshot")
            before = self.begun(c, job)
            started = time.monotonic() # of the youngest daemon, or later
            wait_for(lambda: time.monotonic() > started + 11, 60, "nodes that may be passed by", 0.1)
            c.nodes["n1"].kill()
            os.kill(next(r["pid"] for r in before["run"]["ranks"] if r["node"] == "n2"), signal.SIGKILL)
            wait_for(lambda: "n1" not in c.nodes_up() or self.events(c, job, "recovering"), 60 * PATIENCE, "a node that is down", 0.01)
            c.start_node(c.nodes["n1"])
            after = self.trains(c, job, before["run"]["incarnation"])
            self.assertEqual("dp=3", after["config"])
            self.assertEqual(["n0", "n1", "n2"], self.placed(job))
            self.check_end(c, job)

    def stopped(self, c, job):
        """n1's ptcd does nothing any more. The status before."""
        before = self.begun(c, job)
        c.nodes["n1"].signal(signal.SIGSTOP)
        return before

    def test_silent_in_a_snapshot(self):
        """A snapshot waits for ranks of a node that has gone silent, and one of them dies: the others do not wait for long."""
        with self.cluster(nodes=3, devices=1, lease_ttl="2s", node_lost_after="1h") as c:
            job = self.job(c, "fail", every=20, elastic={"min_gpus": 1, "max_gpus": 3})
            job.run("dp=3")
            before = self.stopped(c, job)
            wait_for(lambda: job.status()["phase"] == "arming", 60 * PATIENCE, "a snapshot that waits", 0.02)
            os.kill(next(r["pid"] for r in before["run"]["ranks"] if r["node"] == "n1"), signal.SIGKILL)
            self.goes_on_without(c, job, before)
            self.check_end(c, job)
            aborted = [e["text"] for e in self.events(c, job, "aborted")]
            self.assertTrue(aborted and all("node n1 is down and does not answer" in text for text in aborted), aborted)

    def test_silent_when_due(self):
        """Ranks wait for a snapshot while a node is silent: none is begun, and the job goes on without that node."""
        with self.cluster(nodes=3, devices=1, lease_ttl="2s", node_lost_after="1h") as c:
            job = self.job(c, "hang", every=400, sleep=0.02, elastic={"min_gpus": 1, "max_gpus": 3})
            job.run("dp=3")
            before = self.stopped(c, job)
            self.goes_on_without(c, job, before)
            self.check_end(c, job)
            self.assertEqual([], self.events(c, job, "aborted"))

    @harness.labels("repeats")
    def test_slow_steps(self):
        """As before, where a step takes longer than nodes are waited for."""
        with self.cluster(nodes=2, devices=1, lease_ttl="2s", node_lost_after="1s") as c:
            job = self.job(c, "hang", every=1 << 40, sleep=2)
            job.run("dp=2")
            job.wait_step(2)
            before = job.status()
            c.nodes["n1"].kill()
            wait_for(lambda: next(n for n in c.json("nodes")["nodes"] if n["node"] == "n1").get("lost"), 60 * PATIENCE, "n1 lost")
            job.wait_step(job.step() + 2)
            c.restart("n1")
            self.assertEqual(before["run"]["incarnation"], self.trains(c, job)["run"]["incarnation"])
            self.assertEqual([], self.events(c, job, "recovering", "recovered", "waits", "failed"))
            self.check_end(c, job, proof=False)

    @harness.labels("repeats")
    def test_steps_go_on_again(self):
        """Steps stood still while a node was lost and there was no other, and go on: a node that joins then is no reason to give
        them up."""
        with self.cluster(nodes=3, devices=1, up=False, **FAST) as c:
            for name in ("n0", "n1"):
                c.start_node(c.nodes[name])
            c.wait_nodes(["n0", "n1"])
            job = self.job(c, "hang", every=1 << 40, elastic={"min_gpus": 2})
            job.run("dp=2")
            job.do("snapshot")
            before = self.begun(c, job)
            ranks = job.processes()
            c.nodes["n1"].kill()
            for pid in ranks:
                os.kill(pid, signal.SIGSTOP)
            wait_for(lambda: self.events(c, job, "waits"), 60 * PATIENCE, "the reason")
            for pid in ranks:
                os.kill(pid, signal.SIGCONT)
            job.wait_step(job.step() + 200)
            c.start_node(c.nodes["n2"])
            c.wait_nodes(["n2"])
            job.wait_step(job.step() + 400)
            c.restart("n1")
            self.assertEqual(before["run"]["incarnation"], self.trains(c, job)["run"]["incarnation"])
            self.assertEqual([], self.events(c, job, "recovering", "recovered"))
            self.check_end(c, job)

    @harness.labels("repeats")
    def test_due(self):
        """Ranks wait for a snapshot at a step, and a node is lost: the snapshot is not begun and given up over and over."""
        with self.cluster(nodes=2, devices=1, **FAST) as c:
            job = self.job(c, "hang", every=50, elastic={"min_gpus": 2})
            job.run("dp=2")
            before = self.begun(c, job)
            c.nodes["n1"].kill()
            wait_for(lambda: self.events(c, job, "waits"), 60 * PATIENCE, "the reason")
            wait_for(lambda: next(n for n in job.status()["absent"] if n["node"] == "n1")["down_s"] > 16, 60 * PATIENCE, "some tries")
            self.assertLessEqual(len(self.events(c, job, "aborted")), 1) # which was begun before the node was lost
            c.restart("n1")
            self.assertEqual(before["run"]["incarnation"], self.trains(c, job)["run"]["incarnation"])
            self.check_end(c, job)

    # ---- what the job says -----------------------------------------------------------------------------

    def test_declared(self):
        """An operator says that the node is lost, long before its time: the job goes on."""
        with self.cluster(nodes=3, devices=1, lease_ttl="2s", node_lost_after="1h") as c:
            job = self.job(c, "hang")
            job.run("dp=2")
            before = self.begun(c, job)
            victim = next(n for n in self.placed(job) if n != "n0")
            c.power_off(victim)
            wait_for(lambda: victim not in c.nodes_up(), 30 * PATIENCE, "the node listed as down")
            self.assertEqual([], self.events(c, job, "recovering"))
            c.ptcctl("node", "lost", victim)
            self.trains(c, job, before["run"]["incarnation"])
            self.check_end(c, job)

    def test_told_by_one_that_dies(self):
        """The controller dies at the moment of the commit that starts the job again: that it goes on is said all the same, once."""
        with self.cluster(nodes=2, devices=1, up=False, lease_ttl="2s") as c:
            rules = os.path.join(c.nodes["n1"].dir, "fault")
            open(rules, "w").close()
            c.start_node(c.nodes["n0"])
            c.start_node(c.nodes["n1"], {"PTC_FAULT_FILE": rules})
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            job = self.job(c, elastic={"max_restarts": 2})
            job.run("dp=2", node="n1")
            before = self.begun(c, job)
            self.assertEqual("n1", before["controller"])
            harness.replace_file(rules, "etcd.commit2.after=kill")
            os.kill(next(r["pid"] for r in before["run"]["ranks"] if r["node"] == "n0"), signal.SIGKILL)
            wait_for(lambda: not c.nodes["n1"].pid(), 60 * PATIENCE, "n1 at etcd.commit2.after", 0.05)
            c.restart("n1")
            after = self.trains(c, job, before["run"]["incarnation"])
            told = self.events(c, job, "recovered")
            self.assertEqual(1, len(told), told)
            self.assertRegex(told[0]["text"], f"^the job goes on from the snapshot of step [0-9]+, under {after['config']}; step [0-9]+ had been reached: ")
            self.check_end(c, job)

    def test_sizes(self):
        """What a job would not be started again on, it is not started on, nor brought to."""
        with self.cluster(nodes=1, devices=4, **FAST) as c:
            job = self.job(c, elastic={"min_gpus": 2, "max_gpus": 3})
            few = "tp=1 needs 1 devices, and the job's `elastic` says min_gpus: 2"
            many = "dp=4 needs 4 devices, and the job's `elastic` says max_gpus: 3"
            c.ptcctl("job", "create", "-f", job.yaml)
            self.refused(c, "run", job.name, "--config", "dp=1", contains=few)
            self.refused(c, "run", job.name, "--gpus", "4", contains=many)
            c.ptcctl("run", job.name, "--config", "dp=3", "--wait", timeout_s=60 * PATIENCE)
            self.refused(c, "resize", job.name, "--config", "dp=1", contains=few)
            self.refused(c, "plan", job.name, "--gpus", "4", contains=many)
            job.resize("dp=2")
            self.assertEqual("dp=2", job.status()["config"])
            self.check_end(c, job)
            self.refused(c, "run", job.name, "--config", "dp=1", contains=few)

    def test_wait(self):
        for how in ("fail", "hang"):
            with self.subTest(how=how), self.cluster(nodes=3, devices=1, **FAST) as c:
                shutil.rmtree(self.path("job"), ignore_errors=True)
                job = self.job(c, how, elastic={"on_failure": "wait"})
                job.run("dp=2")
                before = self.begun(c, job)
                where = self.placed(job)
                victim = next(n for n in where if n != "n0")
                c.power_off(victim)
                waits = wait_for(lambda: self.events(c, job, "waits"), 60 * PATIENCE, "the reason")
                self.assertIn("on_failure: wait", waits[0]["text"])
                self.assertIn(victim, waits[0]["text"])
                self.assertNotIn("has refused", "".join(e["text"] for e in self.events(c, job, "recovering")))
                c.restart(victim)
                self.trains(c, job, before["run"]["incarnation"])
                self.assertEqual(where, self.placed(job))
                self.check_end(c, job)

    def test_stop(self):
        for how in ("fail", "hang"):
            with self.subTest(how=how), self.cluster(nodes=2, devices=1, **FAST) as c:
                shutil.rmtree(self.path("job"), ignore_errors=True)
                job = self.job(c, how, elastic={"on_failure": "stop"})
                job.run("dp=2")
                self.begun(c, job)
                c.power_off("n1")
                status = job.wait_run("failed", 90)
                self.assertEqual([], self.events(c, job, "recovering"))
                job.check_state(self, status["step"], self.path(f"stopped-{how}"))

    @harness.labels("repeats")
    def test_stop_while_it_waits(self):
        """A person ends a job that waits to be started again; it stays ended when the node is back, until it is run."""
        with self.cluster(nodes=2, devices=1, **FAST) as c:
            # no snapshot is due: a rank that stands at one does not notice that its peer has gone, and fails only later
            job = self.job(c, "fail", elastic={"on_failure": "wait"}, every=1 << 30)
            job.run("dp=2")
            self.trains(c, job)
            job.do("snapshot")
            before = self.trains(c, job)
            c.power_off("n1")
            wait_for(lambda: job.status()["run"]["state"] == "recovering", 60 * PATIENCE, "a job that waits")
            self.refused(c, "stop", job.name, contains="`ptcctl stop live --now` ends that")
            c.ptcctl("stop", job.name, "--now", timeout_s=60 * PATIENCE)
            job.wait_run("stopped")
            c.restart("n1")
            c.ptcctl("run", job.name, "--wait", timeout_s=120 * PATIENCE)
            self.trains(c, job, before["run"]["incarnation"])
            self.assertEqual([], self.events(c, job, "recovered")) # it was a person who started it
            self.check_end(c, job)

    @harness.labels("repeats")
    def test_lost_in_the_first_step(self):
        """A machine dies before its rank has ended one step; the other rank is at the end of its own, and fails for that."""
        with self.cluster(nodes=2, devices=1, **FAST) as c:
            job = self.job(c, "fail", elastic={"on_failure": "wait"}, hold_at=0)
            c.ptcctl("run", "-f", job.yaml, "--config", "dp=2")
            ranks = wait_for(lambda: (lambda s: s["ranks"] if s["run"].get("step") == 0 else None)(job.status()), 60 * PATIENCE,
                             "ranks at their first boundary", 0.05)
            here = next(r["rank"] for r in ranks if r["node"] == "n0")
            job.let_go(here)
            wait_for(lambda: any(steps == [0] for steps in job.steps_logged().values()), 60 * PATIENCE, "a rank in its step", 0.05)
            c.power_off("n1")
            wait_for(lambda: job.status()["run"]["state"] == "recovering", 60 * PATIENCE, "a job that waits")
            c.ptcctl("stop", job.name, "--now", timeout_s=60 * PATIENCE)

    # ---- the program fails ----------------------------------------------------------------------------

    @harness.labels("repeats")
    def test_restarts(self):
        """A rank is killed again and again: so often as max_restarts says the job is started again, on the same devices."""
        with self.cluster(nodes=2, devices=1, **FAST) as c:
            job = self.job(c, "fail", elastic={"max_restarts": 2})
            job.run("dp=2")
            for n in range(3):
                before = self.trains(c, job, steps=3 + 2 * n) # another step each time
                job.do("snapshot")
                at = job.status()["step"]
                rank = before["run"]["ranks"][1]
                job.wait_step(at + 1 + n)
                os.kill(rank["pid"], signal.SIGKILL)
                if n < 2:
                    after = self.trains(c, job, before["run"]["incarnation"])
                    self.assertEqual(before["ranks"], after["ranks"])
                    self.assertEqual(n + 1, after["run"]["recovery"]["restarts"])
                    self.assertIn("out of memory", self.events(c, job, "recovering")[-1]["text"])
            status = job.wait_run("failed", 90)
            self.assertIn("as often as its `max_restarts` says", self.events(c, job, "gave_up")[0]["text"])
            job.check_state(self, status["step"], self.path("kept"))
            c.ptcctl("run", job.name, "--wait", timeout_s=120 * PATIENCE) # a person's doing: counted anew
            self.assertNotIn("recovery", self.trains(c, job)["run"])
            self.check_end(c, job)

    def test_told_once(self):
        """The end of the ranks cannot begin at once: it is tried again, and what has happened is told once."""
        with self.cluster(up=False, nodes=2, devices=1, **FAST) as c:
            rules = self.path("fault")
            c.up({n: {"PTC_FAULT_FILE": rules} for n in c.nodes}, timeout_s=60 * PATIENCE)
            job = self.job(c, elastic={"max_restarts": 2}, every=1000000)
            job.run("dp=2")
            before = self.trains(c, job)
            harness.replace_file(rules, ",".join(f"controller.submit@{n}=fail" for n in (1, 2, 3)))
            os.kill(before["run"]["ranks"][1]["pid"], signal.SIGKILL)
            self.trains(c, job, before["run"]["incarnation"])
            self.assertEqual(3, sum(n.log_tail(1000).count("a test wants no switch to begin") for n in c.nodes.values()))
            self.assertEqual(["failed", "recovering"], [e["kind"] for e in self.events(c, job, "failed", "recovering")])
            self.check_end(c, job)

    def test_told_in_order(self):
        """A rank gives up, and etcd does not take that at first; meanwhile another is killed. The later event is written last."""
        with self.cluster(up=False, nodes=1, devices=2, **FAST) as c:
            c.up({"n0": {"PTC_FAULT": "etcd.worker-event.before=fail"}}, timeout_s=60 * PATIENCE)
            job = live.Job(c, self.path("job"), grace="2s", run={"snapshot_every": 1000000, "elastic": {"max_restarts": 2}}, survive=1, hold_at=20, fail_at=20)
            go = os.path.join(job.logs, "go-0")
            job.run("dp=2")
            ranks, key = job.status()["run"]["ranks"], f"/ptc/jobs/{job.status()['uuid']}/worker/n0"
            open(go, "w").close() # rank 0 fails at step 20
            wait_for(lambda: "cannot tell what its ranks have come to" in c.nodes["n0"].log_tail(1000), 60 * PATIENCE, "what rank 0 says", 0.005)
            os.kill(ranks[1]["pid"], signal.SIGKILL)
            os.unlink(go)
            found = wait_for(lambda: [kv for kv in json.loads(c.etcdctl("get", "-w", "json", key).stdout).get("kvs", []) if kv["version"] >= 2],
                             60 * PATIENCE, "both events", 0.02)
            said = json.loads(base64.b64decode(found[0]["value"]))
            self.assertEqual((2, 1), (found[0]["version"], said["rank"]), said)
            self.assertIn("was killed by signal 9", said["text"])
            wait_for(lambda: self.events(c, job, "recovering"), 60 * PATIENCE, "a job that starts again", 0.1)
            open(go, "w").close()
            job.wait_run("failed", 120) # the same step has failed twice

    def test_same_step(self):
        """A step that fails twice stops the job."""
        with self.cluster(nodes=2, devices=1, **FAST) as c:
            job = self.job(c, "fail", elastic={"max_restarts": 5}, fail_at=25, fail_rank=1)
            job.run("dp=2", check=False)
            status = job.wait_run("failed", 120)
            self.assertEqual(1, len(self.events(c, job, "recovering")))
            text = self.events(c, job, "gave_up")[0]["text"]
            self.assertIn("the same step has failed twice", text)
            self.assertEqual(text, job.status()["run"]["gave_up"])
            said = c.ptcctl("status", job.name).stdout
            self.assertIn(f"given up: {text}\n`ptcctl run JOB` starts it", said)
            self.assertLessEqual(status["step"], 25)
            job.check_state(self, status["step"], self.path("kept"))
            c.ptcctl("resize", job.name, "--config", "dp=2", "--nodes", "n1,n0", "--wait", timeout_s=60 * PATIENCE)
            self.assertEqual(text, job.status()["run"]["gave_up"], "a resize starts no ranks of such a job")

    # ---- the program takes its nodes down, or hangs --------------------------------------------------------

    def back_without_ranks(self, c, job, name, *more):
        """A machine dies with all that runs on it; once it is lost, it is back. What is told of it first; more: kinds of events."""
        kinds = ("recovering", "gave_up", *more)
        told = len(self.events(c, job, *kinds))
        c.power_off(name)
        wait_for(lambda: next(n for n in c.json("nodes")["nodes"] if n["node"] == name).get("lost"), 30 * PATIENCE, "a lost node")
        c.restart(name)
        return wait_for(lambda: self.events(c, job, *kinds)[told:], 30 * PATIENCE, "what becomes of the job")[0]

    def test_quarantined(self):
        """A node that comes and goes: a job that grows takes it back at once after the first loss, and after the second only when its
        quarantine is over. A person may resize the job to it before."""
        with self.cluster(nodes=3, devices=1, node_quarantine="10s", **FAST) as c:
            job = self.job(c, every=200, elastic={"min_gpus": 1, "max_gpus": 3, "on_join": "grow", "join_after": "500ms"})
            job.run("dp=3")
            now = self.begun(c, job)
            for loss in (1, 2, 3):
                c.power_off("n2")
                now = self.trains(c, job, now["run"]["incarnation"])
                self.assertEqual("dp=2", now["config"])
                c.restart("n2")
                if loss == 3:
                    wait_for(lambda: len(self.events(c, job, "quarantined")) == 2 or None, 60 * PATIENCE, "the longer quarantine", 0.1)
                    job.resize("dp=3")
                now = self.trains(c, job, now["run"]["incarnation"])
                self.assertEqual("dp=3", now["config"])
                grown = [e for e in self.events(c, job, "joined") if "the job goes from" in e["text"]]
                self.assertEqual(min(loss, 2), len(grown))
            once, twice = self.events(c, job, "quarantined")
            self.assertRegex(once["text"], "^node n2 is back, and was lost 2 times: the job does not move there by itself for (9|10) s$")
            self.assertRegex(twice["text"], "^node n2 is back, and was lost 3 times: .* for (19|20) s$")
            self.assertGreaterEqual(grown[1]["time_ms"] - once["time_ms"], 8000)
            row = {n["node"]: n for n in c.json("nodes", node=now["controller"])["nodes"]}
            self.assertLessEqual(row["n2"].get("quarantined_s", 0), 20)
            self.assertNotIn("quarantined_s", row["n0"])
            self.check_end(c, job)

    def test_quarantined_for_others(self):
        """What daemons have counted outlives them: those that are started anew have the node in quarantine, and count on."""
        with self.cluster(nodes=3, devices=1, node_quarantine="30s", **FAST) as c:
            job = self.job(c, every=200, elastic={"min_gpus": 1, "max_gpus": 3, "on_join": "grow", "join_after": "500ms"})
            job.run("dp=3")
            now = self.begun(c, job)
            for loss in (1, 2):
                c.power_off("n2")
                now = self.trains(c, job, now["run"]["incarnation"])
                c.restart("n2")
                if loss == 1:
                    now = self.trains(c, job, now["run"]["incarnation"])
            told = wait_for(lambda: self.events(c, job, "quarantined"), 60 * PATIENCE, "the quarantine")
            self.assertRegex(told[0]["text"], "^node n2 is back, and was lost 2 times: .* for (29|30) s$")
            def kept():
                text = c.etcdctl("get", "--print-value-only", "/ptc/nodes-losses/n2").stdout
                return text.strip() and json.loads(text).get("until_ms") and json.loads(text)
            doc = wait_for(kept, 60 * PATIENCE, "what is kept of it", 0.1)
            self.assertEqual(2, doc["losses"])
            for name in ("n0", "n1", "n2"):
                c.nodes[name].kill()
            for name in ("n0", "n1", "n2"):
                c.start_node(c.nodes[name])
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            for name in ("n0", "n1", "n2"):
                row = next(n for n in c.json("nodes", node=name)["nodes"] if n["node"] == "n2")
                self.assertTrue(0 < row.get("quarantined_s", 0) <= 30, (name, row))
            self.trains(c, job)
            c.power_off("n2")
            self.wait_lost(c, "n2")
            c.restart("n2")
            told = wait_for(lambda: [e for e in self.events(c, job, "quarantined") if "3 times" in e["text"]], 60 * PATIENCE, "the third")
            self.assertRegex(told[0]["text"], "^node n2 is back, and was lost 3 times: .* for (59|60) s$")
            self.assertEqual("dp=2", job.status()["config"])
            self.check_end(c, job)
            c.power_off("n2")
            self.wait_lost(c, "n2")
            c.ptcctl("node", "forget", "n2")
            self.assertEqual("", c.etcdctl("get", "--prefix", "/ptc/nodes-losses/").stdout)

    def test_turns(self):
        """One snapshot follows the other, and to plan takes longer than any is put off: the job grows all the same, a person's resize
        gets its turn, and so do snapshots."""
        slow = ",".join(f"{point}@*=sleep" for point in ("job.manifest", "etcd.commit1.before", "etcd.commit2.before"))
        with self.cluster(nodes=3, devices=1, up=False, **FAST) as c:
            for name, env in (("n0", {"PTC_FAULT": slow}), ("n1", None)):
                c.start_node(c.nodes[name], env)
            c.wait_nodes(["n0", "n1"], 60 * PATIENCE)
            job = self.job(c, every=1, elastic={"on_join": "grow", "join_after": "500ms"})
            job.run("dp=2")

            def snapshots(more):
                was = job.status()["snapshot"] or 0
                wait_for(lambda: (job.status()["snapshot"] or 0) >= was + more, 60 * PATIENCE, f"{more} snapshots", 0.1)

            def told():
                return [e["text"] for e in self.events(c, job, "joined")]

            snapshots(3)
            c.start_node(c.nodes["n2"])
            c.wait_nodes(["n2"], 60 * PATIENCE)
            wait_for(told, 20 * PATIENCE, "that the job grows", 0.1)
            self.assertRegex(told()[0], "^more devices are free, of n2; the job goes from dp=2 to dp=3, ")
            wait_for(lambda: self.placed(job) == ["n0", "n1", "n2"], 60 * PATIENCE, "ranks on all nodes", 0.1)
            snapshots(3)
            self.assertEqual("dp=2", job.resize("dp=2")["to"].partition(",")[0])
            snapshots(3)
            self.assertEqual((1, []), (len(told()), self.events(c, job, "aborted")))
            self.check_end(c, job)

    def test_takes_nodes_down(self):
        """A node is lost at the same step again and again: after as many restarts as the job allows it stays failed."""
        with self.cluster(nodes=2, devices=1, **FAST) as c:
            job = self.job(c, "hang", elastic={"min_gpus": 2, "max_restarts": 1}, every=20, hold_at=25)
            job.run("dp=2")
            for n in range(3):
                status = wait_for(lambda: (lambda s: s if s["run"].get("step") == 25 and s["step"] == 20 else None)(job.status()),
                                  90 * PATIENCE, "step 25")
                self.assertEqual(max(n - 1, 0), status["run"].get("recovery", {}).get("restarts", 0))
                self.assertEqual("recovering" if n < 2 else "gave_up", self.back_without_ranks(c, job, "n1")["kind"])
            status = job.wait_run("failed", 90)
            gave_up = self.events(c, job, "gave_up")
            self.assertIn("node n1 is lost, and the job stops: there is no snapshot beyond step 25", gave_up[0]["text"])
            self.assertIn("after 1 restarts that count", gave_up[0]["text"])
            self.assertEqual([1, 20], [len(gave_up), status["step"]])
            job.check_state(self, 20, self.path("kept"))

    def test_hangs_as_it_builds(self):
        """New ranks hang as they build: each such start counts, and the job gives up. The count outlives a controller."""
        with self.cluster(nodes=2, devices=1, **FAST) as c:
            job = self.job(c, "fail", elastic={"max_restarts": 2}, hang_generation=2, build_timeout=f"{3 * PATIENCE}s")
            job.run("dp=2")
            before = self.begun(c, job)
            os.kill(before["run"]["ranks"][1]["pid"], signal.SIGKILL)
            wait_for(lambda: job.status()["run"].get("recovery", {}).get("restarts") == 2, 60 * PATIENCE, "a start that counts")
            status = job.wait_run("failed", 90)
            gave_up = self.events(c, job, "gave_up")
            self.assertIn("3 restarts count by now, and at most 2 may (`max_restarts`); the last came to nothing", gave_up[0]["text"])
            self.assertIn("build_timeout", gave_up[0]["text"])
            self.assertEqual(2, len([e for e in self.events(c, job, "aborted") if "build_timeout" in e["text"]]))
            job.check_state(self, status["step"], self.path("kept"))

    def test_takes_nodes_down_as_it_builds(self):
        """A node is lost whenever new ranks build: that counts, too."""
        with self.cluster(nodes=2, devices=1, **FAST) as c:
            job = self.job(c, "hang", elastic={"min_gpus": 2, "max_restarts": 1}, hang_generation=2)
            job.run("dp=2")
            self.begun(c, job)
            self.assertEqual("recovering", self.back_without_ranks(c, job, "n1")["kind"])
            for _ in range(2):
                wait_for(lambda: job.status()["phase"] == "building" or None, 90 * PATIENCE, "ranks that build")
                self.back_without_ranks(c, job, "n1", "aborted")
            status = job.wait_run("failed", 90)
            self.assertRegex(self.events(c, job, "gave_up")[0]["text"], "2 restarts count by now.* node n1")
            job.check_state(self, status["step"], self.path("kept"))

    # ---- what a loss would cost is said before -----------------------------------------------------------

    def said(self, job, costs):
        """What status says of the loss of a node, once it is that; a job's controller finds it out anew after each change."""
        def get():
            status = job.status()
            loss = status.get("node_loss", {})
            return loss if loss.get("costs") == costs else None
        try:
            return wait_for(get, 60 * PATIENCE, f"a loss that costs {costs}", 0.05)
        except Exception:
            print("status:", json.dumps(job.status()), flush=True)
            raise

    def begins(self, c, name, config, **kw):
        job = self.job(c, name=name, **kw)
        r = job.run(config, nodes="n1,n2")
        return job, r.stderr

    def test_loss_is_said(self):
        """Each case of `node_loss`: what it costs, and which node, tensor or setting is the reason."""
        shrinks = {"min_gpus": 1}
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job, noted = self.begins(c, "none", "dp=2", survive=1, elastic=shrinks, every=1 << 30)
            self.assertIn("note: if a node is lost, the job starts again on the devices that are left", noted)
            self.assertIn("gen.survive()", noted)
            loss = self.said(job, "none")
            self.assertEqual(0, loss["steps"])
            self.assertEqual("all", loss["otherwise"]["costs"])
            text = c.ptcctl("status", job.name).stdout
            self.assertRegex(text, r"\nloss of a node: no step: for each node, the ranks of the other nodes have every tensor")
            self.assertRegex(text, r"\n  if ranks' memory cannot be used: (\d+ steps? now: )?the job has no snapshot yet")
            job.do("stop")
            job.wait_run("stopped")
            self.assertIn("every tensor is on other nodes", self.said(job, "none")["why"])

            job, noted = self.begins(c, "snapshot", "dp=2", elastic=shrinks, every=10)
            self.assertIn("which is due every 10 steps", noted)
            self.assertIn("`copies: {count: 2}` keeps it on two", noted)
            self.begun(c, job)
            loss = self.said(job, "snapshot")
            self.assertEqual(10, loss["snapshot_every"])
            self.assertRegex(loss["why"], r"a snapshot is due every 10 steps; no step would be lost if .* rank 0 does not, because its "
                                          r"program does not promise")
            job.do("stop")

            job, _ = self.begins(c, "alone", "tp=2", survive=1, elastic=shrinks, every=10)
            self.begun(c, job)
            loss = self.said(job, "waits")
            self.assertRegex(loss["why"], "^only node n[12] has a part of tensor \"layer.0.weight.*wait for the node; `copies: {count: 2}`")
            job.do("stop")
            job.wait_run("stopped")
            self.assertRegex(self.said(job, "waits")["why"], "only node n[12] has a part of .*is refused until the node is back")

            job, noted = self.begins(c, "copies", "tp=2", survive=1, elastic={"min_gpus": 2}, every=1 << 30, more={"copies": {"count": 2}})
            self.assertIn("`copies` keeps every part of the state on 2 nodes", noted)
            self.said(job, "all") # n0 is spare, and nothing is stored yet
            job.do("snapshot")
            loss = self.said(job, "snapshot")
            self.assertRegex(loss["why"], "of step \\d+; .*does not help: only ranks of node n[12] have a part of tensor")
            c.ptcctl("drain", "n0")
            loss = self.said(job, "waits") # no third device is left for two ranks
            self.assertRegex(loss["why"], "^without node n[12] the job would wait for it")
            c.ptcctl("drain", "n0", "--undo")
            self.said(job, "snapshot")
            job.do("stop")

            for what, costs in (("stop", "fails"), ("wait", "waits")):
                job, noted = self.begins(c, what, "dp=2", elastic={"min_gpus": 1, "on_failure": what}, every=10)
                self.assertIn(f"`on_failure: {what}`", noted)
                self.assertIn(f"`on_failure: {what}`", self.said(job, costs)["why"])
                job.do("stop")

    @harness.labels("repeats")
    def test_loss_costs_what_was_said(self):
        """A node is lost, and the job loses the steps that status has said: those since the snapshot, or none."""
        for survive in (0, 1):
            with self.subTest(survive=survive), self.cluster(nodes=3, devices=1, **FAST) as c:
                job = self.job(c, "hang", survive=survive, every=1 << 30, elastic={"min_gpus": 1}, name=f"job-{survive}")
                job.run("dp=3")
                job.do("snapshot")
                before = self.trains(c, job, steps=10)
                loss = self.said(job, "none" if survive else "snapshot")
                worst = loss["otherwise"] if survive else loss
                self.assertLessEqual(10, worst["steps"])
                self.assertIn(f"from its newest snapshot, of step {before['step']};", worst["why"])
                c.power_off("n2")
                after = self.trains(c, job, before["run"]["incarnation"])
                lost = int(re.search(r" (\d+) steps are lost", self.events(c, job, "recovered")[-1]["text"])[1])
                if survive:
                    self.assertEqual(0, lost)
                else:
                    self.assertEqual(before["step"], after["step"])
                    self.assertLessEqual(worst["steps"], lost) # it has made more since
                self.check_end(c, job)

    # ---- the memory of the ranks that are left --------------------------------------------------------

    def check_survived(self, c, job, before, victim):
        """After the loss of that node: the job has gone on at the step that had been reached. The status."""
        after = self.trains(c, job, before["run"]["incarnation"])
        logged = job.steps_logged()
        last = {key: steps for key, steps in logged.items() if key[1] == after["run"]["incarnation"] and steps}
        reached = max(steps[-1] for key, steps in logged.items() if key[1] == before["run"]["incarnation"] and steps)
        self.assertEqual({reached}, {steps[0] for steps in last.values()}, self.events(c, job))
        self.assertIn(" 0 steps are lost", self.events(c, job, "recovered")[-1]["text"])
        self.assertIn(f"of step {reached},", self.events(c, job, "survived")[-1]["text"])
        self.assertNotIn(victim, self.placed(job))
        return after

    def test_no_step_lost(self):
        """Survivors fail, or hang; each tensor is split over tp, and every part is on every node."""
        for how in ("fail", "hang"):
            with self.subTest(how=how), self.cluster(nodes=3, devices=2, **FAST) as c:
                job = self.job(c, how, survive=1, every=1000000, elastic={"min_gpus": 2, "max_gpus": 6}, name=f"job-{how}")
                job.run("tp=2,dp=3")
                before = self.trains(c, job)
                victim = self.random.choice(["n1", "n2"])
                time.sleep(self.random.random() * 0.3) # any instant; nothing is judged by it
                c.power_off(victim)
                after = self.check_survived(c, job, before, victim)
                self.assertEqual("tp=2,dp=2", after["config"])
                self.check_end(c, job)

    def thaw(self, pid):
        """As somebody else may do: by the cgroup by which ptcd has frozen the process, and as without one."""
        with open(f"/proc/{pid}/cgroup") as f:
            own = next(line.strip()[3:] for line in f if line.startswith("0::"))
        for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
            freeze = f"{mount}{own}/cgroup.freeze"
            if own != "/" and os.path.exists(freeze):
                with open(freeze, "w") as f:
                    f.write("0")
        os.kill(pid, signal.SIGCONT)

    def test_thawed_while_copied(self):
        """Somebody else lets a rank go on while its memory is copied: its node is left out, and the other one has all of the state."""
        env = {"n1": {"PTC_FAULT_FILE": self.path("fault"), "PTC_FAULT_LIST": self.path("points")}}
        harness.replace_file(self.path("fault"), "")

        def copies():
            with open(self.path("points")) as f:
                return "agent.capture.middle" in f.read().split()
        with self.cluster(nodes=3, devices=2, env=env, **FAST) as c:
            job = self.job(c, "fail", survive=1, every=1000000, elastic={"min_gpus": 2, "max_gpus": 6})
            job.run("tp=2,dp=3")
            before = self.trains(c, job)
            harness.replace_file(self.path("fault"), "agent.capture.middle=hold")
            c.power_off("n2")
            wait_for(copies, 60 * PATIENCE, "a copy on n1", 0.02)
            self.thaw(next(r["pid"] for r in before["run"]["ranks"] if r["node"] == "n1"))
            harness.replace_file(self.path("fault"), "")
            self.check_survived(c, job, before, "n2")
            self.assertIn(" without n1, n2:", self.events(c, job, "left_out")[0]["text"])
            self.check_end(c, job)

    def two_steps(self, c, job, before, which="", behind=(1, 3, 5)):
        """Until those ranks are a step behind the others: they do not learn that all have ended theirs."""
        path = os.path.join(job.logs, f"late-l{before['run']['incarnation']}")
        with open(path + "~", "w", encoding="ascii") as f:
            f.write(f"{job.step() + 200} {which}".strip())
        os.rename(path + "~", path)

        def apart():
            steps = {r["rank"]: r["step"] for r in job.status()["run"]["ranks"]}
            late = {steps[r] for r in behind}
            ahead = {steps[r] for r in steps if r not in behind}
            return len(ahead) == len(late) == 1 and min(ahead) == min(late) + 1
        wait_for(apart, 60 * PATIENCE, "ranks that are a step apart", 0.02)

    def test_ranks_a_step_apart(self):
        """The lost node has kept some ranks from what others have: those end their step alone, and all of the state is at one step. A
        program whose ranks cannot do that goes on from its snapshot, and is told why."""
        for how, survive in (("fail", 2), ("hang", 2), ("fail", 1)):
            with self.subTest(how=how, survive=survive), self.cluster(nodes=3, devices=2, **FAST) as c:
                job = self.job(c, how, survive=survive, every=1000000, elastic={"min_gpus": 2, "max_gpus": 6}, name=f"job-{how}-{survive}")
                job.run("tp=2,dp=3")
                job.do("snapshot")
                before = self.trains(c, job)
                self.two_steps(c, job, before)
                victim = self.random.choice(["n1", "n2"])
                c.power_off(victim)
                if survive == 2:
                    self.check_survived(c, job, before, victim)
                    self.assertEqual([], self.events(c, job, "not_survived"))
                else:
                    after = self.trains(c, job, before["run"]["incarnation"])
                    self.assertEqual(before["step"], after["step"])
                    self.assertRegex(self.events(c, job, "not_survived")[0]["text"], "at no step beyond the snapshot's do the ranks")
                self.check_end(c, job)

    def test_memory_waits_for_etcd(self):
        """A machine is lost while etcd is unreachable: nobody can decide about the other ranks, so their memory stays until somebody
        can, and no step is lost. A daemon alone would have let them go after 20 s."""
        with self.cluster(nodes=3, devices=2, transport="insecure", coordinator="etcd-cluster", **FAST) as c:
            job = self.job(c, "fail", survive=1, every=1000000, elastic={"min_gpus": 2, "max_gpus": 6})
            job.run("tp=2,dp=3")
            before = self.trains(c, job)
            for member in c.members:
                member.signal(signal.SIGKILL)
                member.wait_gone(30 * PATIENCE)
            c.power_off("n2")
            for name in ("n0", "n1"):
                wait_for(lambda: re.search("so its ranks stay held, by now for [2-9][0-9] s", c.nodes[name].log_tail(1000)), 90 * PATIENCE,
                         f"ranks that stay held on {name}", 0.2)
            c.start_members()
            self.check_survived(c, job, before, "n2")
            self.check_end(c, job)

    @harness.skip_unless_root
    @harness.needs("ip", "nsenter", "unshare")
    def test_cut_off_beside_a_loss(self):
        """A machine is cut off, and another one dies: ranks fail while the first one still has its lease. So it is asked to hold its ranks,
        and says nothing. Its answer is awaited for no longer than until its lease has ended, and not until the call fails."""
        with Machines([f"n{i}" for i in range(4)]) as m, \
                self.cluster(nodes=4, devices=1, transport="tls", hosts=m.hosts, lease_ttl="4s", node_lost_after="2s", up=False) as c:
            m.settle(c)
            c.up(timeout_s=60 * PATIENCE)
            job = self.job(c, "fail", survive=1, every=1000000, elastic={"min_gpus": 2, "max_gpus": 3})
            job.run("dp=3", nodes="n1,n2,n3")
            job.do("snapshot")
            before = self.trains(c, job)
            self.assertEqual("n0", before["controller"])
            m.cut("n3")
            c.power_off("n2")
            after = self.trains(c, job, before["run"]["incarnation"])
            self.assertEqual(("dp=2", {"n0", "n1"}), (after["config"], set(self.placed(job))))
            self.assertTrue(self.events(c, job, "survived"))
            self.assertRegex(c.nodes["n0"].log_tail(1000), "ranks of node n3 are not held: its machine answers nothing")
            m.mend("n3")
            c.wait_nodes(["n3"], 60 * PATIENCE, node="n0")
            self.check_end(c, job)

    def test_nodes_a_step_apart_in_themselves(self):
        """At the later step the ranks that are left have every tensor, but no node has all of its table: none could be captured. So those
        that are behind are let on first."""
        with self.cluster(nodes=3, devices=2, **FAST) as c:
            job = self.job(c, "fail", survive=2, every=1000000, elastic={"min_gpus": 2, "max_gpus": 6})
            job.run("tp=2,dp=3")
            job.do("snapshot")
            before = self.trains(c, job)
            self.two_steps(c, job, before, "crossed", (1, 2, 5))
            c.power_off("n2")
            self.check_survived(c, job, before, "n2")
            self.assertEqual([], self.events(c, job, "not_survived"))
            self.check_end(c, job)

    def test_first_rank_lost(self):
        """Rank 0, whose blobs are the job's, is lost, and with it the job's controller, at times."""
        with self.cluster(nodes=4, devices=1, **FAST) as c:
            job = self.job(c, survive=1, every=1000000, elastic={"min_gpus": 2, "max_gpus": 3}, blobs="rng,mask@tp")
            job.run("dp=3", nodes="n1,n2,n3")
            before = self.trains(c, job)
            victim = next(r["node"] for r in before["ranks"] if r["rank"] == 0)
            self.assertEqual("n1", victim)
            c.power_off(victim)
            self.check_survived(c, job, before, victim)
            self.assertRegex(self.events(c, job, "survived")[-1]["text"], r"that are left; not in it: blobs of rank 0 \(mask@tp, rng, where\)$")
            self.check_end(c, job)

    def test_memory_lost_before_the_commit(self):
        """The last node whose ranks are held has given their memory, and is lost with it before the commit: the commit does not name it, and the
        job goes on from its snapshot, which another node has."""
        env = {"n0": {"PTC_FAULT_FILE": self.path("fault"), "PTC_FAULT_LIST": self.path("points")}}
        harness.replace_file(self.path("fault"))
        with self.cluster(nodes=3, devices=1, env=env, **FAST) as c:
            job = self.job(c, survive=1, every=1000000, elastic={"min_gpus": 1, "max_gpus": 2})
            job.run("dp=2", nodes="n1,n2")
            job.do("snapshot")
            before = self.trains(c, job)
            self.assertEqual("n0", before["controller"])
            harness.replace_file(self.path("points"))
            harness.replace_file(self.path("fault"), "etcd.commit1.before=hold")
            c.power_off("n2")

            def points():
                with open(self.path("points"), encoding="ascii") as f:
                    return f.read().split()

            def lives(): # of n1
                found = json.loads(c.etcdctl("get", "/ptc/nodes/n1", "-w", "json").stdout).get("kvs", [])
                return {kv["create_revision"] for kv in found}
            wait_for(lambda: "etcd.commit1.before" in points(), 60 * PATIENCE, "a first commit", 0.05)
            was = lives()
            c.power_off("n1", chunks=False)
            c.restart("n1")
            wait_for(lambda: lives() - was, 60 * PATIENCE, "another life of n1", 0.05)
            harness.replace_file(self.path("fault"))
            c.restart("n2")
            after = self.trains(c, job, before["run"]["incarnation"])
            self.assertEqual(before["step"], after["step"])
            self.assertEqual([], self.events(c, job, "survived"))
            self.check_end(c, job)

    def test_not_covered(self):
        """What the lost node had is in no other rank: the job goes on from its snapshot, as ever."""
        with self.cluster(nodes=4, devices=1, **FAST) as c:
            job = self.job(c, survive=1, every=1000000, elastic={"min_gpus": 2, "max_gpus": 3},
                           gpus={3: "pp=3", 2: "pp=2"}, more={"copies": {"count": 2}})
            job.run("pp=3", nodes="n1,n2,n3")
            job.do("snapshot")
            before = self.trains(c, job)
            wait_for(lambda: self.events(c, job, "copies") and job.status()["copies"]["fewest"] == 2, 60 * PATIENCE, "copies", 0.1)
            c.power_off("n2")
            after = self.trains(c, job, before["run"]["incarnation"])
            self.assertEqual(before["step"], after["step"])
            self.assertEqual([], self.events(c, job, "survived"))
