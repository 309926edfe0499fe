# SPDX-License-Identifier: Apache-2.0
"""A machine is lost: what other nodes hold is still read, resized and run, and what only it held is named."""
import json
import os
import shutil
import threading
import unittest

import harness
import live
import numpy as np
import oracle
import state as states
from harness import PATIENCE, Job, wait_for

ROWS = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
AFTER = 2 # seconds until a node that is down counts as lost
FAST = {"lease_ttl": "2s", "node_lost_after": f"{AFTER}s"}


class Lost(harness.Case):
    def state(self):
        s, rng = states.State({"exp_avg": "F32"}), np.random.default_rng(self.seed)
        for name, shape in (("a", (64, 48)), ("b", (96, 32)), ("c", (128, 7))):
            s.add(rng, name, "F32", shape)
        return s

    def test_ranks_of_a_lost_node(self):
        """What a rank of a lost node had is put together from what others have, however it lies in its tensors."""
        rng = np.random.default_rng(self.seed)
        heads, tps = states.VARIANTS[int(rng.integers(len(states.VARIANTS)))]
        s, tp = states.random_state(rng, heads, 40), max(t for t in tps if t <= 4)
        rules = [r for r in states.rules(heads) if "dp" not in json.dumps(r)] # what is split over dp is there once
        with self.cluster(nodes=2, devices=tp, **FAST) as c:
            job = Job(c, "random", s, self.path("job"), rules)
            job.imported(f"tp={tp},dp=2")
            c.nodes["n1"].kill()
            self.wait_lost(c, "n1")
            job.check_ranks(self, oracle.Config(tp=tp, dp=2), rules)

    def test_node_gone_for_good(self):
        """Every byte is there twice, and a node goes for good. Nobody types anything: it is named, nothing is lost, the job is
        resized without it, and again once it is back."""
        with self.cluster(nodes=3, devices=2, **FAST) as c:
            job = Job(c, "twice", self.state(), self.path("job"), ROWS)
            job.imported("tp=2,dp=3")
            c.nodes["n2"].kill()
            self.wait_lost(c, "n2")
            status = job.status()
            self.assertNotIn("lost", status)
            self.assertEqual(["n2"], [a["node"] for a in status["absent"]])
            self.assertEqual("lost", status["absent"][0]["state"])
            self.assertIn("every tensor is on other nodes", status["absent"][0]["means"])
            self.assertIn("node n2 is lost", c.ptcctl("status", "twice").stdout)
            plan = c.json("plan", "twice", "--config", "tp=2,dp=2")
            self.assertEqual(0, plan["totals"]["between_nodes"])
            self.assertEqual({"n0", "n1"}, {r["node"] for r in plan["ranks"]})
            job.check_whole(self)
            done = job.resize("tp=2,dp=2")
            self.assertEqual(0, done["received_bytes"])
            self.assertEqual({"n0", "n1"}, {r["node"] for r in job.status()["ranks"]})
            self.assertNotIn("absent", job.status())
            job.check_ranks(self, oracle.Config(tp=2, dp=2), ROWS)
            job.check_whole(self)
            self.assertIn("without n2", self.events(c, job, "left_out")[0]["text"])
            self.assertEqual(["node_down", "node_lost"], [e["kind"] for e in self.events(c, job, "node_down", "node_lost")])
            job.resize("tp=4")
            job.check_whole(self)
            c.restart("n2")
            c.wait_nodes(["n0", "n1", "n2"], 30 * PATIENCE)
            job.resize("tp=2,dp=3")
            job.check_ranks(self, oracle.Config(tp=2, dp=3), ROWS)
            job.check_whole(self)

    def test_declared_lost(self):
        """An operator says so, and nobody waits; and takes it back. Of a node that is up nobody may."""
        with self.cluster(nodes=3, devices=2, lease_ttl="2s", node_lost_after="1h") as c:
            job = Job(c, "twice", self.state(), self.path("job"), ROWS)
            job.imported("tp=2,dp=3")
            self.refused(c, "node", "lost", "n2", contains="node n2 is up, so it is not lost")
            self.refused(c, "node", "lost", "n9", contains="\"n9\" is not known")
            c.nodes["n2"].kill()
            wait_for(lambda: c.nodes_up() == {"n0", "n1"}, 30 * PATIENCE, "n2 listed as down")
            self.refused(c, "node", "forget", "n2", contains="node n2 is down, and may come back")
            c.ptcctl("node", "lost", "n2")
            self.wait_lost(c, "n2")
            self.assertIn("lost", c.ptcctl("nodes").stdout)
            c.ptcctl("node", "lost", "n2", "--undo")
            wait_for(lambda: not any(n["lost"] for n in c.json("nodes")["nodes"]), 30 * PATIENCE, "n2 waited for again")
            self.assertEqual("down", job.status()["absent"][0]["state"])
            c.ptcctl("node", "lost", "n2")
            # what cannot be done says what to do
            line = self.refused(c, "drain", "n2", "--wait", contains="6 devices are needed, 4 are known")
            self.assertIn("job twice cannot leave node n2", line)
            self.assertIn("resize", line)
            job.resize("tp=2,dp=2")
            job.check_whole(self)
            c.ptcctl("drain", "n2", "--wait")
            c.restart("n2")
            wait_for(lambda: not any(n["lost"] for n in c.json("nodes")["nodes"]), 30 * PATIENCE, "n2 back")
            self.assertEqual("", c.etcdctl("get", "/ptc/nodes-lost/n2").stdout)

    def listed(self, c, node="n0"):
        return {n["node"] for n in c.json("nodes", node=node)["nodes"]}

    def test_forgotten(self):
        """A node that is down stays in the list, also of a daemon that starts afterwards, until an operator has it forgotten; not while it
        is up, or a job is laid out on it. When it comes back, it is as any other, without its marks."""
        with self.cluster(nodes=3, devices=2, **FAST) as c:
            job = Job(c, "twice", self.state(), self.path("job"), ROWS)
            job.imported("tp=2,dp=3")
            self.refused(c, "node", "forget", "n2", contains="node n2 is up, so it cannot be forgotten")
            self.refused(c, "node", "forget", "n9", contains="\"n9\" is not known")
            c.nodes["n2"].kill()
            self.wait_lost(c, "n2")
            self.refused(c, "node", "forget", "n2", contains="node n2 cannot be forgotten: job twice is laid out on it;")
            job.resize("tp=2,dp=2")
            c.restart("n1")
            wait_for(lambda: self.listed(c, "n1") == {"n0", "n1", "n2"}, 30 * PATIENCE, "n2 in the list of a daemon that never saw it up")
            c.ptcctl("node", "lost", "n2")
            c.ptcctl("drain", "n2", "--wait")
            if os.geteuid() == 0:
                nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
                self.refused(c, "node", "forget", "n2", prefix=nobody, contains="only root may have a node forgotten")
            c.ptcctl("node", "forget", "n2")
            for node in ("n0", "n1"):
                wait_for(lambda node=node: self.listed(c, node) == {"n0", "n1"}, 30 * PATIENCE, f"n2 forgotten by {node}")
            for key in ("lost/n2", "drained/n2", "known/n2"):
                self.assertEqual("", c.etcdctl("get", f"/ptc/nodes-{key}").stdout, key)
            self.refused(c, "node", "forget", "n2", contains="\"n2\" is not known")
            self.refused(c, "drain", "n2", contains="\"n2\" is not known")
            self.assertNotRegex(c.ptcctl("status").stdout + c.ptcctl("status", "twice").stdout, r"\bn2\b")
            c.restart("n1")
            wait_for(lambda: self.listed(c, "n1") == {"n0", "n1"}, 30 * PATIENCE, "no n2 in the list of a daemon that starts")
            c.restart("n2")
            c.wait_nodes(["n0", "n1", "n2"], 30 * PATIENCE)
            for node in sorted(c.nodes):
                n2 = next(n for n in c.json("nodes", node=node)["nodes"] if n["node"] == "n2")
                self.assertEqual(("up", False, False), (n2["state"], n2["lost"], n2["drained"]))
            self.assertNotEqual("", c.etcdctl("get", "/ptc/nodes-known/n2").stdout)
            job.resize("tp=2,dp=3")
            job.check_ranks(self, oracle.Config(tp=2, dp=3), ROWS)
            job.check_whole(self)

    def forget_at_last(self, c, node):
        """Once nothing names the node any more."""
        wait_for(lambda: c.ptcctl("node", "forget", node, check=False).returncode == 0, 60 * PATIENCE, f"{node} forgotten", 0.2)
        wait_for(lambda: node not in self.listed(c), 30 * PATIENCE, f"{node} gone from the list")

    def test_forgotten_after_its_copies(self):
        """A node with copies, and one with an older snapshot, are forgotten only after these are elsewhere, or gone."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = Job(c, "doubled", self.state(), self.path("job"), ROWS)
            with open(job.yaml) as f:
                spec = json.load(f)
            with open(job.yaml, "w") as f:
                json.dump({**spec, "copies": {"count": 2}}, f)
            c.nodes["n2"].kill()
            wait_for(lambda: c.nodes_up() == {"n0", "n1"}, 30 * PATIENCE, "n2 listed as down")
            job.imported("tp=1")
            self.assertEqual({"n0"}, {r["node"] for r in job.status()["ranks"]})
            wait_for(lambda: (job.status().get("copies") or {"fewest": 0})["fewest"] == 2, 60 * PATIENCE, "copies on n1", 0.2)
            c.nodes["n1"].kill()
            self.wait_lost(c, "n1")
            self.refused(c, "node", "forget", "n1", contains="node n1 cannot be forgotten: job doubled has copies there;")
            c.restart("n2")
            self.forget_at_last(c, "n1")
            self.assertEqual(2, job.status()["copies"]["fewest"])
            job.check_whole(self)

    def test_forgotten_after_its_snapshots(self):
        """A node that has an older snapshot's table is needed until the job keeps that snapshot no longer."""
        with self.cluster(nodes=2, devices=1, **FAST) as c:
            job = live.Job(c, self.path("live"), sleep=0.01, run={"keep": {"last": 2}})
            job.run("tp=2")
            job.wait_step(3)
            job.do("snapshot")
            job.resize("tp=1", nodes="n0") # its own snapshot is committed; the one before, of both nodes, is kept
            self.assertEqual({"n0"}, {r["node"] for r in job.status()["ranks"]})
            c.nodes["n1"].kill()
            self.wait_lost(c, "n1")
            self.refused(c, "node", "forget", "n1", contains="node n1 cannot be forgotten: job live keeps older snapshots there;")
            job.wait_step(job.status()["step"] + 2)
            job.do("snapshot")
            self.forget_at_last(c, "n1")
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("after"))

    def test_drain_of_a_lost_node(self):
        """Where the others have the devices, the job leaves it."""
        with self.cluster(nodes=3, devices=2, **FAST) as c:
            job = Job(c, "twice", self.state(), self.path("job"), ROWS)
            job.imported("tp=2,dp=2", )
            job.resize("dp=3,tp=1", extra=("--nodes", "n0,n1,n2"))
            used = sorted({r["node"] for r in job.status()["ranks"]} - {"n0"})
            if not used:
                self.fail("all ranks are on n0")
            victim = used[-1]
            c.nodes[victim].kill()
            self.wait_lost(c, victim)
            c.ptcctl("drain", victim, "--wait", timeout_s=60 * PATIENCE)
            self.assertNotIn(victim, {r["node"] for r in job.status()["ranks"]})
            job.check_whole(self)

    def test_only_copy(self):
        """What only the lost node held is named, everything is refused that needs it, and it is there again when the node is."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = Job(c, "once", self.state(), self.path("job"), ROWS)
            job.imported("tp=2")
            (victim,) = {r["node"] for r in job.status()["ranks"]} - {"n0"}
            c.nodes[victim].kill()
            self.wait_lost(c, victim)
            status = job.status()
            self.assertEqual({(f"{t}{f}", victim) for t in "abc" for f in ("", ":exp_avg")},
                             {(t["tensor"], *t["nodes"]) for t in status["lost"]["list"]})
            self.assertIn("of 6 tensors", status["absent"][0]["means"])
            before = status["generation"], status["snapshot"]
            self.refused(c, "resize", "once", "--config", "tp=1", "--wait", contains=f"was last on {victim}")
            c.restart(victim)
            c.wait_nodes(["n0", "n1", "n2"], 30 * PATIENCE)
            self.assertEqual(before, (job.status()["generation"], job.status()["snapshot"]))
            job.check_whole(self)
            job.resize("tp=1")
            job.check_whole(self)

    def test_chunks_gone(self):
        """A node comes back without its chunks: it takes part again, from what the others hold; and others go on without it."""
        with self.cluster(nodes=2, devices=2, **FAST) as c:
            job = Job(c, "twice", self.state(), self.path("job"), ROWS)
            job.imported("tp=2,dp=2")
            size = job.state.bytes()
            self.assertEqual({"n0": 2, "n1": 2}, {n: [r["node"] for r in job.status()["ranks"]].count(n) for n in ("n0", "n1")})
            self.empty_and_restart(c, "n1")
            absent = wait_for(lambda: job.status().get("absent"), 30 * PATIENCE, "n1's bytes missed")
            self.assertEqual([("n1", "without its bytes")], [(a["node"], a["state"]) for a in absent])
            self.assertEqual(size, c.json("plan", "twice", "--config", "tp=2,dp=2")["totals"]["between_nodes"])
            done = job.resize("tp=2,dp=2")
            self.assertEqual(size, done["received_bytes"])
            self.assertNotIn("absent", job.status())
            job.check_ranks(self, oracle.Config(tp=2, dp=2), ROWS, node="n1")
            self.empty_and_restart(c, "n1")
            wait_for(lambda: job.status().get("absent"), 30 * PATIENCE, "n1's bytes missed")
            job.resize("tp=2", extra=("--nodes", "n0"))
            job.check_whole(self, node="n1")
            job.resize("tp=4") # and n1 has what it is given
            job.check_whole(self)
            self.assertEqual(0, next(n for n in c.json("nodes")["nodes"] if n["node"] == "n1")["store"]["lost_jobs"])

    def test_run_after_chunks_gone(self):
        """A job that trained, and stopped: it runs on from its step, with all that its ranks carry, on both nodes or on one."""
        for nodes in ((), ("--nodes", "n0")):
            with self.subTest(nodes=nodes), self.cluster(nodes=2, devices=1, **FAST) as c:
                directory = self.path("live" + "".join(nodes))
                os.mkdir(directory)
                job = live.Job(c, directory, data="100000,7,8,4", blobs="rng/mine") # the ranks check step, cursor and blobs
                job.run("dp=2")
                job.wait_step(5)
                job.do("stop")
                step = job.wait_run("stopped")["step"]
                c.nodes["n1"].kill()
                shutil.rmtree(c.nodes["n1"].chunk_dir)
                c.restart("n1")
                job.check_state(self, step, self.path("out" + "".join(nodes)))
                config = "dp=1" if nodes else "dp=2"
                c.ptcctl("run", job.name, "--config", config, *nodes, "--wait", timeout_s=120 * PATIENCE)
                job.wait_step(step + 3)
                job.do("stop")
                job.check_state(self, job.wait_run("stopped")["step"], self.path("after" + "".join(nodes)))

    def test_run_without_a_lost_node(self):
        """A job that has had ranks: nobody takes its node for lost by the clock, for its ranks may still write; an operator does."""
        with self.cluster(nodes=2, devices=1, **FAST) as c:
            job = live.Job(c, self.dir, data="100000,7,8,4", blobs="rng/mine")
            job.run("dp=2")
            job.wait_step(5)
            job.do("stop")
            step = job.wait_run("stopped")["step"]
            c.nodes["n1"].kill()
            self.wait_lost(c, "n1")
            absent = job.status()["absent"]
            self.assertEqual([("n1", "down")], [(a["node"], a["state"]) for a in absent])
            self.assertIn("an operator says", absent[0]["means"])
            c.ptcctl("node", "lost", "n1")
            c.ptcctl("run", job.name, "--config", "dp=1", "--wait", timeout_s=120 * PATIENCE)
            job.wait_step(step + 3)
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("after"))
            self.assertNotIn("absent", job.status())

    def test_left_out(self):
        """A switch that a lost node was left out of is aborted after its snapshot, and the node comes back: what that snapshot has is
        verified and exported, and whoever asks for what the node would have is told."""
        with self.cluster(nodes=4, devices=1, up=False, **FAST) as c:
            for node in c.nodes.values():
                self.arm(node, "")
                c.start_node(node, {"PTC_FAULT_FILE": os.path.join(node.dir, "fault")})
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            job = Job(c, "twice", self.state(), self.path("job"), ROWS)
            job.imported("tp=2,dp=2")
            c.nodes["n3"].kill()
            self.wait_lost(c, "n3")
            for node in ("n0", "n1", "n2"):
                self.arm(c.nodes[node], "agent.receive.middle=hold")
            switch = threading.Thread(target=job.resize, args=("dp=3",), kwargs={"check": False})
            switch.start()
            wait_for(lambda: job.status()["snapshot"] == 2, 60 * PATIENCE, "the first commit")
            c.ptcctl("abort", "twice")
            for node in ("n0", "n1", "n2"):
                self.arm(c.nodes[node], "")
            switch.join()
            self.assertEqual((1, 2), tuple(job.wait_idle()[k] for k in ("generation", "snapshot")))
            c.start_node(c.nodes["n3"], {"PTC_FAULT_FILE": os.path.join(c.nodes["n3"].dir, "fault")})
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            self.assertEqual([("n3", "left out")], [(a["node"], a["state"]) for a in job.status()["absent"]])
            for node in c.nodes:
                c.ptcctl("verify", "twice", node=node)
                job.check_whole(self, node=node)
                job.check_ranks(self, oracle.Config(tp=2, dp=2), ROWS, node=node)
            job.resize("tp=2,dp=2")
            c.ptcctl("verify", "twice")
            job.check_ranks(self, oracle.Config(tp=2, dp=2), ROWS)

    def passed(self, node, point):
        path = os.path.join(node.dir, "points")
        if not os.path.exists(path):
            return False
        with open(path) as f:
            return point in f.read().split()

    def list_anew(self, node, rule):
        """Arms the node, which lists from now on anew what it passes."""
        os.unlink(os.path.join(node.dir, "points"))
        self.arm(node, rule)

    def test_gone_after_it_received(self):
        """A node has got bytes that no other node of the new generation gets, and its machine goes while another still receives. Its lease
        has not ended by the second commit. The switch aborts, and those that sent the bytes still have them."""
        with self.cluster(nodes=4, devices=1, up=False, lease_ttl="20s", node_lost_after=f"{AFTER}s") as c:
            for node in c.nodes.values():
                self.arm(node, "")
                c.start_node(node, {"PTC_FAULT_FILE": os.path.join(node.dir, "fault"), "PTC_FAULT_LIST": os.path.join(node.dir, "points")})
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            job = Job(c, "once", self.state(), self.path("job"), ROWS)
            job.imported("tp=2")
            before = job.status()
            to = sorted(set(c.nodes) - {r["node"] for r in before["ranks"]}, key=lambda n: n in (before["controller"], "n0")) # n0 has etcd
            victim, slow = (c.nodes[n] for n in to)
            self.assertNotIn(victim.name, (before["controller"], "n0"))
            for node in (victim, slow):
                self.list_anew(node, "agent.receive.middle=hold")
            ended = []
            switch = threading.Thread(target=lambda: ended.append(job.resize("tp=2", ("--nodes", ",".join(to)), check=False)))
            switch.start()
            wait_for(lambda: all(self.passed(n, "agent.receive.middle") for n in (victim, slow)), 60 * PATIENCE, "both to receive")
            self.list_anew(victim, "")
            wait_for(lambda: self.passed(victim, "store.meta.commit.after"), 60 * PATIENCE, "the victim to seal its part")
            self.assertEqual("filling", job.status()["phase"])
            victim.kill()
            self.arm(slow, "")
            switch.join()
            self.assertNotEqual(0, getattr(ended[0], "returncode", 0), ended)
            self.assertIn(victim.name, ended[0].stderr)
            after = job.wait_idle()
            self.assertEqual(before["generation"], after["generation"])
            self.assertNotIn("lost", after)
            job.check_whole(self)
            job.check_ranks(self, oracle.Config("tp=2"), ROWS)

    def gone_in_a_switch(self, c, job, victim, point, config):
        """A node dies at that point of a switch, and stays away. True: it came there. The job is whole, and moves on without it."""
        node = c.nodes[victim]
        self.arm(node, point)
        switch = threading.Thread(target=job.resize, args=(config,), kwargs={"check": False})
        switch.start()
        wait_for(lambda: not node.pid() or not switch.is_alive(), 60 * PATIENCE, "the node's death or the switch's end", 0.02)
        reached = not node.pid()
        self.arm(node, "")
        if not reached:
            node.kill()
        switch.join()
        print(f"{victim} at {point}: {'died there' if reached else 'killed afterwards'}", flush=True)
        job.wait_idle()
        left = sorted(set(c.nodes) - {victim})
        wait_for(lambda: c.ptcctl("resize", job.name, "--config", "dp=3", "--nodes", ",".join(left), "--wait", check=False,
                                  timeout_s=60 * PATIENCE).returncode == 0, 120 * PATIENCE, "a switch without the node", 0.5)
        self.assertNotIn("lost", job.status())
        self.assertEqual(left, sorted(r["node"] for r in job.status()["ranks"]))
        job.check_ranks(self, oracle.Config(dp=3), ROWS)
        job.check_whole(self)
        c.start_node(node, {"PTC_FAULT_FILE": os.path.join(node.dir, "fault")})
        c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
        job.resize("tp=2,dp=2")
        return reached

    @harness.labels("repeats")
    def test_node_gone_in_a_switch(self):
        """Every byte is on two nodes, and one of these dies for good at some point of a switch: source, destination or controller."""
        points = ["etcd.intent.before", "etcd.intent.after", "etcd.commit1.before", "etcd.commit1.after", "etcd.commit2.before",
                  "etcd.commit2.after", "store.meta.commit.before", "store.meta.commit.after", "agent.receive.middle"]
        with self.cluster(nodes=4, devices=1, up=False, **FAST) as c:
            for node in c.nodes.values():
                self.arm(node, "")
                c.start_node(node, {"PTC_FAULT_FILE": os.path.join(node.dir, "fault")})
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            job = Job(c, "twice", self.state(), self.path("job"), ROWS)
            job.imported("tp=2,dp=2")
            tries = self.random.sample(points * 4, harness.size(2, 9, 36))
            for point in tries:
                victim = job.status()["controller"] if point.startswith("etcd") else None
                if victim in (None, "n0"): # n0 has etcd
                    victim = self.random.choice(["n1", "n2", "n3"])
                self.gone_in_a_switch(c, job, victim, point, "dp=4")


if __name__ == "__main__":
    unittest.main()
