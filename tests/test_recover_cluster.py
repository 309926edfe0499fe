# SPDX-License-Identifier: Apache-2.0
"""etcd and the node it ran on are gone for good: `ptcctl cluster recover` goes on with an empty etcd on another node."""
import contextlib
import functools
import json
import os
import shutil
import stat
import threading
import unittest

import harness
import live
import numpy as np
import oracle
import state as states
from harness import PATIENCE, Job, wait_for

ROWS = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
FAST = {"lease_ttl": "2s", "node_lost_after": "2s"}


class RecoverCluster(harness.Case):
    def job(self, c, name="kept"):
        s, rng = states.State({"exp_avg": "F32"}), np.random.default_rng(self.seed)
        for tensor, shape in (("a", (96, 48)), ("b", (96, 32)), ("c", (120, 7))):
            s.add(rng, tensor, "F32", shape)
        return Job(c, name, s, self.path(name), ROWS)

    # ---- etcd on another node ----

    def etcd_of(self, c, name):
        """The client socket of a node's etcd."""
        data = os.path.join(c.nodes[name].dir, "etcd")
        with contextlib.suppress(FileNotFoundError):
            for e in os.scandir(data):
                if stat.S_ISSOCK(e.stat(follow_symlinks=False).st_mode) and "peer" not in e.name:
                    return e.path
        return None

    def local(self, c, name):
        """The node runs etcd itself from now on."""
        node = c.nodes[name]
        c.write_config(node, coordinator="local", local_coordinator={"data_dir": f"{node.dir}/etcd", "listen": "unix"})

    def point(self, c, name, at):
        """The node uses the etcd of node `at` from now on."""
        node = c.nodes[name]
        config = {k: v for k, v in c.config(node).items() if k != "local_coordinator"}
        etcd = wait_for(lambda: self.etcd_of(c, at), 30 * PATIENCE, f"the etcd of {at}")
        with open(node.config, "w") as f:
            f.write(harness.clusters.yaml_map({**config, "coordinator": {"endpoints": [f"unix:{etcd}"]}}))

    def waits(self, c, name, says="waits: etcd is empty"):
        wait_for(lambda: says in c.ptcctl("nodes", node=name, check=False).stderr, 30 * PATIENCE, f"{name} that says {says!r}", 0.1)

    def lose_n0(self, c):
        """n0 goes with its etcd. What it had is kept aside, for the day it comes back."""
        c.power_off("n0")
        os.rename(os.path.join(c.nodes["n0"].dir, "etcd"), self.path("old-etcd"))

    def move_etcd(self, c, to="n1"):
        """An empty etcd on node `to`; all others are pointed at it, and wait."""
        others = [n for n in c.nodes if n not in ("n0", to)]
        for name in (to, *others):
            self.assertTrue(c.nodes[name].stop(30 * PATIENCE))
        self.local(c, to)
        c.nodes[to].run()
        self.waits(c, to)
        for name in others:
            self.point(c, name, to)
            c.nodes[name].run()
            self.waits(c, name)

    def spec(self, c, *names):
        return ",".join(f"{n}={c.config(c.nodes[n])['advertise']}" for n in names)

    def recover(self, c, *names, node="n1", extra=(), **kw):
        kw.setdefault("timeout_s", 60 * PATIENCE)
        return c.ptcctl("cluster", "recover", "--nodes", self.spec(c, *names), *extra, node=node, **kw)

    def kept(self, c, job, names):
        """The nodes keep what is committed now, as the dry run of a node that runs tells."""
        now = job.status()
        r = json.loads(self.recover(c, *names, node=names[0], extra=("--dry-run", "--format", "json")).stdout)
        return any(j["uuid"] == now["uuid"] and j["generation"] == now["generation"] and j["complete"] for j in r["jobs"])

    def kept_bytes(self, c, name):
        return c.json("status", node=name)["daemon"]["kept_bytes"]

    # ---- tests ----

    @harness.labels("repeats")
    def test_etcd_and_its_node_gone(self):
        """dp=2 on four nodes. What is exported after the recovery is what was imported; then resizes; then n0 comes back."""
        with self.cluster(nodes=4, devices=1, **FAST) as c:
            left = ["n1", "n2", "n3"]
            for i in range(60): # so that fences of this etcd are far above the revisions of the next one
                self.assertEqual(0, c.etcdctl("put", "/other", str(i)).returncode)
            job = self.job(c)
            job.imported("tp=2")
            whole = wait_for(lambda: self.kept_bytes(c, "n1"), 30 * PATIENCE, "documents on n1", 0.2)
            job.resize("tp=2,dp=2")
            wait_for(lambda: self.kept(c, job, left), 30 * PATIENCE, "documents on n1 to n3", 0.2)
            # n1 keeps the later commit beside the one that it had: what it writes is much less than both
            both = wait_for(lambda: (n := self.kept_bytes(c, "n1")) != whole and n, 30 * PATIENCE, "the later commit on n1", 0.2)
            self.assertTrue(1.1 * whole < both < 1.7 * whole, (whole, both))
            doomed = self.job(c, "doomed")
            doomed.imported("tp=1")
            doomed.delete()
            before = job.status()
            wait_for(lambda: self.remembered(c, "n0") == set(left), 30 * PATIENCE, "n0 to know the others", 0.2)
            self.lose_n0(c)
            self.move_etcd(c)
            self.refused(c, "status", "kept", node="n1", contains="node n1 waits: etcd is empty")
            self.refused_first(c)
            told = self.recover(c, *left, extra=("--dry-run",)).stdout
            self.assertRegex(told, rf"job kept \(\S+\): generation {before['generation']}, .*: complete without n0\n")
            self.assertNotIn("doomed", told)
            self.assertIn("nothing was changed", told)
            told = self.recover(c, *left).stdout
            self.assertIn("recovered: coordination epoch 1", told)
            c.wait_nodes(left, 60 * PATIENCE)
            self.refused(c, "cluster", "recover", "--nodes", self.spec(c, *left), node="n1", contains="nothing to recover")
            job.check_whole(self, node="n1")
            now = job.status(node="n1")
            self.assertEqual((before["generation"], before["uuid"]), (now["generation"], now["uuid"]))
            # a daemon that has started since knows n0 from the jobs that it controls
            controller = wait_for(lambda: job.status(node="n1")["controller"], 60 * PATIENCE, "a controller")
            wait_for(lambda: self.lost(c, controller), 60 * PATIENCE, "n0 lost")
            for name in left: # which daemon controls it does not matter
                wait_for(lambda name=name: self.lost(c, name), 60 * PATIENCE, f"n0 lost for {name}")
            self.refused(c, "node", "forget", "n0", node="n3", contains="node n0 cannot be forgotten: job kept is laid out on it;")
            job.resize("tp=3", node="n1")
            job.check_whole(self, node="n2")
            job.check_ranks(self, oracle.Config(tp=3), ROWS, node="n3")
            c.ptcctl("node", "forget", "n0", node="n3")
            for name in left:
                wait_for(lambda name=name: "n0" not in {n["node"] for n in c.json("nodes", node=name)["nodes"]}, 60 * PATIENCE, f"n0 forgotten by {name}")
            self.comes_back(c, job) # forgotten or not, what ran with an etcd that has been replaced must rejoin

    def lost(self, c, name, node="n0"):
        """Whether that daemon lists the node as lost."""
        return any(n["node"] == node and n.get("lost") for n in c.json("nodes", node=name)["nodes"])

    def refused_first(self, c):
        """Sets and callers that are not right; nothing has changed after any of them."""
        for names, says in ((("n2", "n3"), "n1, which was asked"), (("n1", "n1"), "named twice"), (("n1", "n0"), "node n0 at")):
            self.refused(c, "cluster", "recover", "--nodes", self.spec(c, *names), node="n1", contains=says, timeout_s=60 * PATIENCE)
        self.refused(c, "cluster", "recover", "--nodes", f"n1={c.config(c.nodes['n1'])['advertise']},n2={c.config(c.nodes['n3'])['advertise']}",
                     node="n1", contains="is n3, not n2", timeout_s=60 * PATIENCE)
        self.refused(c, "cluster", "recover", codes=(2,), node="n1", contains="--nodes says which")
        self.refused(c, "cluster", "rejoin", node="n1", contains="etcd is empty")

    def remembered(self, c, name):
        """The nodes that a node has seen, as it keeps them."""
        with contextlib.suppress(FileNotFoundError), open(os.path.join(c.nodes[name].dir, "state", "peers")) as f:
            return {line.split(" ")[0] for line in f}
        return set()

    def ends(self, c, name, says):
        c.nodes[name].wait_gone(60 * PATIENCE)
        self.assertIn(says, c.nodes[name].log_tail(3))

    def all_back(self, c, first, *others):
        c.nodes[first].run()
        wait_for(lambda: self.etcd_of(c, first), 30 * PATIENCE, f"the etcd of {first}")
        for name in others:
            c.nodes[name].run()

    def comes_back(self, c, job):
        """n0 with its old etcd, then pointed at the new one: its tables of generation 2 are not what is committed."""
        n0, other, left = c.nodes["n0"], c.nodes["n3"], ["n1", "n2", "n3"]
        for name in left: # nobody is there who could tell it
            self.assertTrue(c.nodes[name].stop(30 * PATIENCE))
        os.rename(self.path("old-etcd"), os.path.join(n0.dir, "etcd"))
        n0.run() # alone, with what it had
        wait_for(lambda: c.nodes_up("n0") == {"n0"}, 60 * PATIENCE, "n0 with its old etcd", 0.2)
        self.point(c, "n3", "n0")
        other.run()
        self.ends(c, "n3", "this etcd has been replaced")
        self.all_back(c, "n1", "n2")
        self.ends(c, "n0", "is of coordination epoch 1, and this etcd of epoch 0: it has been replaced")
        self.point(c, "n3", "n1")
        other.run()
        c.wait_nodes(left, 60 * PATIENCE)
        said = wait_for(lambda: [e for e in c.ptcctl("events", job.name, node="n1").stdout.splitlines() if "node_behind" in e],
                        60 * PATIENCE, "an event", 0.2)
        self.assertIn("node n0 ran with an etcd that has been replaced", said[0])
        for name in left: # what it was told it knows also when nobody is there
            self.assertTrue(c.nodes[name].stop(30 * PATIENCE))
        n0.run()
        self.ends(c, "n0", "another node is of coordination epoch 1")
        self.all_back(c, *left)
        c.wait_nodes(left, 60 * PATIENCE)
        self.point(c, "n0", "n1")
        n0.run()
        self.waits(c, "n0", "was recovered to epoch 1 without it")
        self.refused(c, "nodes", node="n0", contains="`ptcctl cluster rejoin` on this node")
        told = c.ptcctl("cluster", "rejoin", node="n0").stdout
        self.assertIn("its 1 tables on this node are not of committed snapshots: they were dropped", told)
        c.wait_nodes(["n0", "n1", "n2", "n3"], 60 * PATIENCE)
        job.resize("tp=4", node="n1")
        job.check_whole(self, node="n0")

    @harness.labels("repeats")
    def test_killed_in_the_middle(self):
        """The daemon that recovers is killed at each of its effects; the same command then succeeds, and the bytes are right."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            jobs = [self.job(c, "kept"), self.job(c, "second")]
            for job in jobs:
                job.imported("tp=1,dp=3")
            left = ["n1", "n2"]
            wait_for(lambda: all(self.kept(c, job, left) for job in jobs), 30 * PATIENCE, "documents on n1 and n2", 0.2)
            self.lose_n0(c)
            self.move_etcd(c)
            points = [f"{p}.{when}" for p in ("recover.begin", "recover.raise", "etcd.blob", "recover.job", "recover.job@2", "recover.end")
                      for when in ("before", "after")]
            drawn = self.random.sample(points[:-1], harness.size(3, len(points) - 1, len(points) - 1))
            ended = False
            for point in [p for p in points if p in drawn or p == points[-1]]: # after the last one all was done
                name, _, nth = point.partition("@")
                fault = point
                if nth: # recover.job@2.before: the second time
                    number, when = nth.split(".")
                    fault = f"{name}.{when}@{number}"
                self.assertTrue(c.nodes["n1"].stop(30 * PATIENCE))
                c.nodes["n1"].run({"PTC_FAULT": f"{fault}=kill"})
                self.waits(c, "n1")
                r = self.recover(c, *left, check=False)
                self.assertNotEqual(0, r.returncode, point)
                c.nodes["n1"].wait_gone(30 * PATIENCE)
                c.nodes["n1"].run()
                if point == "recover.end.after": # all was done
                    ended = True
                else:
                    self.waits(c, "n1")
            self.assertTrue(ended)
            c.wait_nodes(left, 60 * PATIENCE)
            for job in jobs:
                job.check_whole(self, node="n1")
                job.check_whole(self, node="n2")
            self.assertEqual("", c.ptcctl("status", node="n1").stderr)

    def test_old_etcd_answers(self):
        """An etcd that nodes had and that still answers is not replaced, unless root says that it is gone."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.job(c)
            job.imported("tp=1,dp=2")
            left = ["n1", "n2"]
            wait_for(lambda: self.kept(c, job, ["n1"]), 30 * PATIENCE, "documents on n1", 0.2)
            self.move_etcd(c)
            self.refused(c, "cluster", "recover", "--nodes", self.spec(c, *left), node="n1", contains="still answers", timeout_s=60 * PATIENCE)
            told = self.recover(c, *left, extra=("--old-is-gone",)).stdout
            self.assertIn("recovered: coordination epoch 1", told)
            c.wait_nodes(left, 60 * PATIENCE)
            job.check_whole(self, node="n1")

    def test_what_is_missing_is_said(self):
        """A job without replicas: what only n0 had is named; its tables count again when it has rejoined."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.job(c)
            job.imported("tp=3")
            left = ["n1", "n2"]
            self.lose_n0_when_kept(c, job)
            self.move_etcd(c)
            told = self.recover(c, *left).stdout
            self.assertRegex(told, r"INCOMPLETE: .* are on no live node; \"\S+\" was last on n0; .*when n0 come back")
            c.wait_nodes(left, 60 * PATIENCE)
            os.rename(self.path("old-etcd"), os.path.join(c.nodes["n0"].dir, "etcd"))
            c.nodes["n0"].run() # with what it had: it asks before it begins
            self.ends(c, "n0", "is of coordination epoch 1, and this etcd of epoch 0: it has been replaced")
            with open(c.nodes["n0"].log_file) as f:
                self.assertEqual(1, f.read().count("node=n0 ready"), "it has begun with the etcd that was replaced")
            self.point(c, "n0", "n1")
            c.nodes["n0"].run()
            self.waits(c, "n0", "was recovered to epoch 1 without it")
            self.assertIn("they count again", c.ptcctl("cluster", "rejoin", node="n0").stdout)
            c.wait_nodes(["n0", *left], 60 * PATIENCE)
            job.check_whole(self, node="n1")
            job.resize("tp=2", node="n1")
            job.check_whole(self, node="n2")

    def killed_in_a_commit(self, point):
        """n0, which has etcd and controls the job, dies at this point of a resize, and never comes back."""
        with self.cluster(nodes=4, devices=1, up=False, **FAST) as c:
            left, fault = ["n1", "n2", "n3"], os.path.join(c.nodes["n0"].dir, "fault")
            with open(fault, "w"):
                pass
            for node in c.nodes.values():
                c.start_node(node, {"PTC_FAULT_FILE": fault} if node.name == "n0" else None)
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            job = self.job(c)
            job.imported("tp=2,dp=2")
            before = job.status()
            self.assertEqual("n0", before["controller"])
            wait_for(lambda: self.kept(c, job, left), 60 * PATIENCE, "documents on n1 to n3", 0.2)
            harness.replace_file(fault, point)
            asked = threading.Thread(target=job.resize, args=("dp=4",), kwargs={"node": "n1", "check": False})
            asked.start()
            c.nodes["n0"].wait_gone(60 * PATIENCE)
            self.lose_n0(c)
            self.move_etcd(c)
            asked.join()
            told = self.recover(c, *left).stdout
            self.assertRegex(told, r"job kept \(\S+\): .*: complete without n0\n")
            c.wait_nodes(left, 60 * PATIENCE)
            now = job.status(node="n1")
            print(f"{point}: generation {before['generation']}, then {now['generation']} of {now['config']}", flush=True)
            self.assertIn(now["generation"], (before["generation"], before["generation"] + (point == "etcd.commit2.after")), told)
            at = oracle.Config(tp=2, dp=2) if now["generation"] == before["generation"] else oracle.Config(dp=4)
            for node in left:
                job.check_whole(self, node=node)
            job.check_ranks(self, at, ROWS, node="n2")
            wait_for(lambda: self.lost(c, "n1"), 60 * PATIENCE, "n0 lost")
            job.resize("tp=3", node="n1")
            job.check_whole(self, node="n3")
        shutil.rmtree(self.path("old-etcd"))
        shutil.rmtree(self.path("kept"))

    @harness.labels("repeats")
    def test_killed_in_a_commit(self):
        """The node of etcd dies before, between or after commits, before anybody was told: the newest commit of which the others
        have all, or the one before."""
        points = ["etcd.intent.after", "etcd.commit1.after", "etcd.commit2.before", "etcd.commit2.after"]
        for point in self.random.sample(points, harness.size(1, 4, 4)):
            self.killed_in_a_commit(point)

    def test_live(self):
        """Ranks on n0 and n1 train; n0 goes with etcd. The job starts again from its snapshot, by itself, and makes its steps."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            left = ["n1", "n2"]
            job = live.Job(c, self.path("live"), together="fail", run={"copies": {"count": 2}})
            job.run("tp=2", nodes="n0,n1")
            job.wait_step(5)
            job.do("snapshot")
            wait_for(lambda: (job.status().get("copies") or {"fewest": 0})["fewest"] >= 2, 60 * PATIENCE, "copies", 0.2)
            step = job.status()["step"]
            wait_for(lambda: self.kept(c, job, left), 60 * PATIENCE, "documents on n1 and n2", 0.2)
            self.lose_n0(c)
            self.move_etcd(c)
            told = self.recover(c, *left).stdout
            self.assertRegex(told, rf"job live \(\S+\): .*, step {step}: complete without n0\n")
            c.wait_nodes(left, 60 * PATIENCE)
            c.ptcctl = functools.partial(c.ptcctl, node="n1")
            now = wait_for(lambda: (lambda s: s if {r["node"] for r in s["ranks"]} <= set(left) else None)(job.status()),
                           120 * PATIENCE, "ranks on nodes that are left", 0.2)
            job.wait_step(now["step"] + 5, 120)
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("after"))

    def lose_n0_when_kept(self, c, job):
        def all_keep():
            r = json.loads(self.recover(c, *c.nodes, node="n0", extra=("--dry-run", "--format", "json")).stdout)
            return [j["complete"] for j in r["jobs"]] == [True] and job.status()["generation"] == r["jobs"][0]["generation"]

        wait_for(all_keep, 30 * PATIENCE, "documents on all nodes", 0.2)
        wait_for(lambda: self.remembered(c, "n0") == set(c.nodes) - {"n0"}, 30 * PATIENCE, "n0 to know the others", 0.2)
        self.lose_n0(c)


if __name__ == "__main__":
    unittest.main()
