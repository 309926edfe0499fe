# SPDX-License-Identifier: Apache-2.0
"""copies: {count, across}: each region is kept on so many nodes, also after a loss, and what a lost node had is still there."""
import concurrent.futures
import json
import os
import unittest

import harness
import live
import numpy as np
import oracle
import state as states
import test_damage
from harness import PATIENCE, Job, wait_for

ROWS = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
FAST = {"lease_ttl": "2s", "node_lost_after": "2s"}


class KeepCopies(harness.Case):
    def state(self, rows=64):
        s, rng = states.State({"exp_avg": "F32"}), np.random.default_rng(self.seed)
        for name, shape in (("a", (rows, 48)), ("b", (96, 32)), ("c", (128, 7))):
            s.add(rng, name, "F32", shape)
        return s

    def job(self, c, rows=64, **copies):
        job = Job(c, "kept", self.state(rows), self.path("job"), ROWS)
        with open(job.yaml) as f:
            spec = json.load(f)
        spec["copies"] = copies
        with open(job.yaml, "w") as f:
            json.dump(spec, f)
        return job

    def copies(self, job):
        return job.status().get("copies")

    def wait_copies(self, job, fewest, timeout_s=60):
        def there():
            try:
                now = self.copies(job)
            except harness.ClusterError:
                return None
            return now if now and now["fewest"] >= fewest and not now["bytes_left"] else None

        return wait_for(there, timeout_s * PATIENCE, f"{fewest} copies of everything")

    def document(self, c, job):
        uuid = job.status()["uuid"]
        text = c.etcdctl("get", "--print-value-only", f"/ptc/jobs/{uuid}/copies").stdout
        return json.loads(text) if text.strip() else None

    def used(self, c, node):
        return next(n for n in c.json("nodes")["nodes"] if n["node"] == node)["store"]["used_bytes"]

    def test_keeper_without_chunks(self):
        """The only node for copies comes back without its chunks while the document still names its table: it gets copies again.
        The same before a resize that puts state there, which begins before the controller has looked."""
        rules = self.path("fault")
        with self.cluster(nodes=2, devices=2, env={n: {"PTC_FAULT_FILE": rules} for n in ("n0", "n1")}, **FAST) as c:
            job = self.job(c, count=2)
            job.imported("tp=2")
            self.assertEqual({"n0"}, {r["node"] for r in job.status()["ranks"]})
            self.wait_copies(job, 2)
            self.empty_and_restart(c, "n1")
            self.wait_copies(job, 2)
            self.assertEqual([0], [n["store"]["lost_jobs"] for n in c.json("nodes")["nodes"] if n["node"] == "n1"])
            harness.replace_file(rules, ",".join(f"copies.look@{n}=fail" for n in range(1, 9)))
            self.empty_and_restart(c, "n1")
            job.resize("tp=4")
            job.check_whole(self)
            job.check_ranks(self, oracle.Config(tp=4), ROWS)

    @harness.labels("repeats")
    def test_any_node_lost(self):
        """tp=2 without replicas on two of four nodes: whichever is lost, every byte is there, and is there twice again."""
        for victim in ("n1", "n2", "n3"):
            with self.subTest(victim=victim), self.cluster(nodes=4, devices=1, **FAST) as c:
                job = self.job(c, count=2)
                job.imported("tp=2")
                done = self.wait_copies(job, 2)
                self.assertEqual((2, "node", 0, 0), (done["count"], done["across"], done["bytes_left"], done["bytes_without_place"]))
                self.assertEqual(2, c.json("snapshots", job.name)["snapshots"][0]["copies"]["fewest"])
                keepers = {h[0] for h in self.document(c, job)["keepers"]}
                c.nodes[victim].kill()
                self.wait_lost(c, victim)
                self.assertNotIn("lost", job.status())
                job.check_whole(self)
                job.check_ranks(self, oracle.Config(tp=2), ROWS)
                if victim in {r["node"] for r in job.status()["ranks"]} | keepers:
                    again = self.wait_copies(job, 2)
                    self.assertEqual(2, again["fewest"])
                    # what is spare is taken out of the document after that
                    wait_for(lambda: victim not in {h[0] for h in self.document(c, job)["keepers"]}, 60 * PATIENCE,
                             f"a document of copies without {victim}", 0.05)
                c.ptcctl("verify", job.name, timeout_s=60 * PATIENCE)
                job.check_whole(self)
                job.resize("dp=3")
                job.check_ranks(self, oracle.Config(dp=3), ROWS)
                job.check_whole(self)
                self.wait_copies(job, 2)
                c.restart(victim)
                c.wait_nodes(sorted(c.nodes), 30 * PATIENCE)
                job.resize("tp=4")
                job.check_whole(self)
                self.wait_copies(job, 2)

    def test_idle_node_keeps_a_replica(self):
        """The planner takes two of three devices. The node of the idle one keeps a copy of everything: both others are lost at once, and
        every byte is there."""
        model = {"layers": 4, "hidden": 6144, "heads": 48, "vocab": 51200, "seq": 2048}
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.job(c, count=3)
            with open(job.yaml) as f:
                spec = json.load(f)
            with open(job.yaml, "w") as f:
                json.dump({**spec, "model": model, "space": {"global_batch": 24, "tp": [1], "pp": [1], "dp": [2], "micro_batch": [4]}}, f)
            job.imported("tp=2,global_batch=24,micro_batch=4")
            done = json.loads(c.ptcctl("resize", job.name, "--gpus", "3", "--wait", "--format", "json", timeout_s=60 * PATIENCE).stdout)
            self.assertTrue(done["to"].startswith("dp=2,"), done)
            if {"n1", "n2"} != {r["node"] for r in job.status()["ranks"]}: # n0, which answers here, is to be the idle one
                job.resize(done["to"], extra=("--nodes", "n1,n2"))
            self.assertEqual({"n1", "n2"}, {r["node"] for r in job.status()["ranks"]})
            self.wait_copies(job, 3)
            for victim in ("n1", "n2"):
                c.nodes[victim].kill()
            for victim in ("n1", "n2"):
                self.wait_lost(c, victim)
            self.assertNotIn("lost", job.status())
            job.check_whole(self)
            job.resize("tp=1")
            job.check_ranks(self, oracle.Config(tp=1), ROWS)

    @harness.labels("repeats")
    def test_both_lost_and_back(self):
        """Both nodes that have a region are lost: it is named, nothing of it is dropped, and it is there when they are back."""
        with self.cluster(nodes=4, devices=1, **FAST) as c:
            job = self.job(c, count=2)
            job.imported("tp=2")
            self.wait_copies(job, 2)
            first = next(r for r in job.status()["ranks"] if r["node"] != "n0")
            document = self.document(c, job)
            (second,) = {document["keepers"][k][0] for k, rank, _ in document["parts"] if rank == first["rank"]}
            for node in (first["node"], second):
                c.nodes[node].kill()
            for node in (first["node"], second):
                self.wait_lost(c, node)
            self.assertEqual({first["node"]}, {n for t in job.status()["lost"]["list"] for n in t["nodes"]} & {first["node"]})
            self.refused(c, "resize", job.name, "--config", "tp=1", "--wait", contains="was last on")
            for node in (first["node"], second):
                c.restart(node)
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            self.wait_copies(job, 2)
            job.check_whole(self)
            c.ptcctl("verify", job.name, timeout_s=60 * PATIENCE)
            job.resize("tp=1")
            job.check_whole(self)

    @harness.labels("repeats")
    def test_lost_at_once(self):
        """The node is lost, and the job is resized before anybody has made new copies: the copies are the source."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.job(c, count=2)
            job.imported("tp=2")
            self.wait_copies(job, 2)
            (victim,) = {r["node"] for r in job.status()["ranks"]} - {"n0"}
            c.nodes[victim].kill()
            self.wait_lost(c, victim)
            job.resize("tp=1")
            job.check_ranks(self, oracle.Config(), ROWS)
            job.check_whole(self)
            self.assertEqual([], self.events(c, job, "aborted"))

    @harness.labels("repeats")
    def test_replicas_count(self):
        """Data-parallel replicas are copies: nothing is brought, and of a job that asks for three only the third."""
        with self.cluster(nodes=3, devices=2, **FAST) as c:
            job = self.job(c, count=2)
            job.imported("tp=2,dp=2")
            self.wait_copies(job, 2)
            self.assertIsNone(self.document(c, job))
            self.assertEqual([], self.events(c, job, "copies"))
        with self.cluster(nodes=3, devices=2, **FAST) as c:
            job = self.job(c, count=3)
            job.imported("tp=2,dp=2")
            self.wait_copies(job, 3)
            self.assertEqual(1, len(self.document(c, job)["keepers"]))

    def test_racks(self):
        """Nodes of one rack are one place: copies go to the other, which has the most already."""
        with self.cluster(nodes=4, devices=2, racks={"n0": "a", "n1": "a", "n2": "b", "n3": "a"}, **FAST) as c:
            job = self.job(c, count=2, across="rack")
            job.imported("tp=4")
            job.resize("tp=4", extra=("--nodes", "n0,n1"))
            self.assertEqual("rack", self.wait_copies(job, 2)["across"])
            self.assertEqual({"n2"}, {h[0] for h in self.document(c, job)["keepers"]})
            job.check_whole(self)

    @harness.labels("repeats")
    def test_no_place(self):
        """More copies than nodes: as many as there are, and one event; the job goes on."""
        with self.cluster(nodes=2, devices=1, **FAST) as c:
            job = self.job(c, count=3)
            job.imported("tp=2")
            wait_for(lambda: (self.copies(job) or {}).get("fewest") == 2, 60 * PATIENCE, "two copies")
            said = wait_for(lambda: self.events(c, job, "copies_short"), 30 * PATIENCE, "it is said that there is no place")
            self.assertEqual(1, len(said))
            self.assertEqual(job.state.bytes(), self.copies(job)["bytes_without_place"])
            self.assertIn("some regions are on 2 of 3 nodes", c.ptcctl("status", job.name).stdout)
            job.resize("tp=1")
            job.check_whole(self)

    def test_no_room(self):
        """The only other node has no room: one event, nothing is lost, and there is a copy once there is room."""
        size = 64 << 20
        with self.cluster(nodes=2, devices=1, up=False, ceilings={"n1": "300MiB"}, **FAST) as c:
            c.up(timeout_s=60 * PATIENCE, in_turn=True) # so that the state goes to n0
            job = self.job(c, rows=size // (48 * 4), count=2)
            job.imported("tp=1")
            self.assertEqual("n0", job.status()["ranks"][0]["node"])
            said = wait_for(lambda: self.events(c, job, "copies_failed"), 60 * PATIENCE, "it is said that there is no room")
            self.assertIn("node n1 could not take its copies", said[0]["text"])
            self.assertIn("store is full", said[0]["text"])
            job.check_whole(self)
            self.assertEqual(1, self.copies(job)["fewest"])
            self.assertEqual(1, len(self.events(c, job, "copies_failed")))
            node = c.nodes["n1"]
            node.kill()
            c.options["ceilings"] = {}
            c.start_node(node)
            self.wait_copies(job, 2)
            job.check_whole(self)

    @harness.labels("repeats")
    def test_room_for_one(self):
        """There is no room for old copies and new ones: the old go first, it is said, and the new ones come."""
        with self.cluster(nodes=2, devices=1, up=False, ceilings={"n1": "300MiB"}, **FAST) as c:
            c.up(timeout_s=60 * PATIENCE, in_turn=True)
            job = self.job(c, rows=(30 << 20) // (48 * 4), count=2)
            job.imported("tp=1")
            self.wait_copies(job, 2)
            job.resize("tp=2")
            self.wait_copies(job, 2)
            self.assertEqual(1, len(self.events(c, job, "copies_dropped")))
            self.assertEqual([], self.events(c, job, "copies_failed"))
            job.check_whole(self)

    @harness.labels("repeats")
    def test_survives_restarts(self):
        """Every daemon ends and starts again: the copies are the ones that were there, and nothing is brought again."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.job(c, count=2)
            job.imported("tp=2")
            self.wait_copies(job, 2)
            before = self.document(c, job)
            for node in sorted(c.nodes):
                c.nodes[node].kill()
            for node in sorted(c.nodes):
                c.restart(node)
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            self.wait_copies(job, 2)
            self.assertEqual(before, self.document(c, job))
            self.assertEqual(1, sum("are brought" in e["text"] for e in self.events(c, job, "copies")))
            c.ptcctl("verify", job.name, timeout_s=60 * PATIENCE)
            (victim,) = {r["node"] for r in job.status()["ranks"]} - {"n0"}
            c.nodes[victim].kill()
            self.wait_lost(c, victim)
            job.check_whole(self)
            job.resize("tp=1")
            job.check_whole(self)

    def test_dropped_with_their_snapshot(self):
        """Copies of what was committed before go when the new ones are there; a deleted job leaves none."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.job(c, rows=1 << 14, count=2)
            job.imported("tp=2")
            self.wait_copies(job, 2)
            for config in ("tp=1", "tp=2", "tp=1", "tp=2"):
                job.resize(config)
                self.wait_copies(job, 2)
                wait_for(lambda: not (self.document(c, job) or {}).get("old"), 60 * PATIENCE, "old copies gone")
            job.check_whole(self)
            most = 3 * job.state.bytes() + (8 << 20)
            wait_for(lambda: sum(self.used(c, n) for n in c.nodes) <= most, 60 * PATIENCE, "their bytes gone, too")
            job.delete()
            wait_for(lambda: sum(self.used(c, n) for n in c.nodes) == 0, 60 * PATIENCE, "all bytes gone")

    @harness.labels("repeats")
    def test_verified_meanwhile(self):
        """Copies are made anew on another node between what verify reads of them and what it reads of the nodes: it reads that anew."""
        with self.cluster(nodes=4, devices=1, up=False, **FAST) as c:
            for node in c.nodes.values():
                self.arm(node, "")
                c.start_node(node, {"PTC_FAULT_FILE": os.path.join(node.dir, "fault")})
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            job = self.job(c, count=2)
            job.imported("tp=1")
            self.wait_copies(job, 2)
            (rank,) = job.status()["ranks"]
            (keeper,) = {h[0] for h in self.document(c, job)["keepers"]} - {rank["node"]}
            asked = next(n for n in c.nodes if n not in (keeper, rank["node"]))
            self.arm(c.nodes[asked], "api.verify.pin=hold")
            with concurrent.futures.ThreadPoolExecutor() as pool:
                verified = pool.submit(c.ptcctl, "verify", job.name, node=asked, check=False, timeout_s=240 * PATIENCE)
                try:
                    c.nodes[keeper].kill()
                    self.wait_lost(c, keeper)
                    wait_for(lambda: keeper not in {h[0] for h in self.document(c, job)["keepers"]}, 60 * PATIENCE, "copies elsewhere", 0.05)
                    c.restart(keeper)
                    c.wait_nodes(sorted(c.nodes), 30 * PATIENCE)
                    wait_for(lambda: self.used(c, keeper) == 0, 60 * PATIENCE, "its copies gone")
                finally:
                    self.arm(c.nodes[asked], "")
                done = verified.result()
            self.assertEqual((0, ""), (done.returncode, done.stderr))

    def kill_at(self, c, job, point):
        """Somebody dies at that point while copies come, and comes back. True: somebody came there."""
        for node in c.nodes.values():
            self.arm(node, point if node.name != "n0" else "")
        wait_for(lambda: not all(n.pid() for n in c.nodes.values()) or (self.copies(job) or {}).get("fewest") == 2, 60 * PATIENCE,
                 "a death, or the copies", 0.05)
        for node in c.nodes.values():
            self.arm(node, "")
        died = set()

        def all_up(): # one that was at the point already may die after the first of them
            for node in (n for n in c.nodes.values() if not n.pid()):
                died.add(node.name)
                c.start_node(node, {"PTC_FAULT_FILE": os.path.join(node.dir, "fault")})
            # the lease of one that died may last still, so each of them answers for itself
            return all(set(c.nodes) <= (c.nodes_up(n) or set()) for n in ("n0", *died))

        wait_for(all_up, 60 * PATIENCE, "all nodes again", 0.1)
        print(f"{point}: {sorted(died)} died", flush=True)
        return bool(died)

    @harness.labels("repeats")
    def test_killed_in_the_middle(self):
        """Whoever gets copies, gives or controls dies in the middle, and comes back: the copies are finished, and right."""
        points = ["agent.receive.middle", "store.meta.commit.before", "store.meta.commit.after", "etcd.copies.before",
                  "etcd.copies.after"]
        with self.cluster(nodes=4, devices=1, up=False, copies={"rate": "4MiB"}, **FAST) as c:
            for node in c.nodes.values():
                self.arm(node, "")
                c.start_node(node, {"PTC_FAULT_FILE": os.path.join(node.dir, "fault")})
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            job = self.job(c, rows=1 << 15, count=2)
            job.create(node="n1") # which controls it then: n0 has etcd, and stays
            c.ptcctl(*job.import_args("tp=2"), timeout_s=120 * PATIENCE)
            reached = 0
            for point in points if harness.LONG else ["agent.receive.middle", *self.random.sample(points[1:], 2)]:
                before = len(self.events(c, job, "copies"))
                if len(self.events(c, job, "committed")) > 1 or self.copies(job)["fewest"] == 2:
                    job.resize("tp=1" if len(job.status()["ranks"]) == 2 else "tp=2")
                    wait_for(lambda: len(self.events(c, job, "copies")) > before, 60 * PATIENCE, "copies on their way", 0.05)
                reached += self.kill_at(c, job, point)
                job.wait_idle()
                self.wait_copies(job, 2, 120)
                c.ptcctl("verify", job.name, timeout_s=60 * PATIENCE)
                job.check_whole(self)
            self.assertTrue(reached, "nobody died")

    def test_answer_lost(self):
        """etcd names the copies of a snapshot, and its answer is lost: those of the next snapshots come as before."""
        fault = {n: {"PTC_FAULT": "etcd.copies.after=fail"} for n in ("n0", "n1", "n2")}
        with self.cluster(nodes=3, devices=1, env=fault, **FAST) as c:
            job = live.Job(c, self.dir, data="100000,7,8,4", blobs="rng/mine", run={"copies": {"count": 2}})
            job.run("tp=2")
            for step in (5, 10, 15):
                job.wait_step(step)
                job.do("snapshot")
                self.wait_copies(job, 2)
            c.ptcctl("verify", job.name, timeout_s=60 * PATIENCE)
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("out"))

    def test_outcome_unknown(self):
        """etcd names the copies, its answer is lost, and it cannot be read: after the next commit nodes still have the tables that it names.
        When it can be read again, the copies come, and those of before go."""
        rules = self.path("fault")
        harness.replace_file(rules, "etcd.copies.after=fail,copies.read@*=fail")
        with self.cluster(nodes=2, devices=1, env={n: {"PTC_FAULT_FILE": rules} for n in ("n0", "n1")}, **FAST) as c:
            job = self.job(c, rows=1 << 14, count=2)
            job.imported("tp=2")
            wait_for(lambda: self.document(c, job), 60 * PATIENCE, "a document of copies", 0.05)
            harness.replace_file(rules, "copies.look@*=fail,copies.read@*=fail") # nobody makes other copies
            job.resize("tp=1", extra=("--nodes", "n0"))
            job.wait_idle()
            c.restart("n1") # whose tables may still have been counted before
            c.wait_nodes(["n0", "n1"], 60 * PATIENCE)
            self.assertIn("n1", {h[0] for h in self.document(c, job)["keepers"]})
            self.assertGreaterEqual(self.used(c, "n1"), job.state.bytes()) # half of it is the bridge's
            harness.replace_file(rules, "")
            self.wait_copies(job, 2)
            job.check_whole(self)
            wait_for(lambda: not (self.document(c, job) or {}).get("old"), 60 * PATIENCE, "old copies gone")
            wait_for(lambda: self.used(c, "n1") <= job.state.bytes() + (8 << 20), 60 * PATIENCE, "their bytes gone, too")

    def test_giver_killed(self):
        """The node that has the only bytes is killed while it gives them, and comes back."""
        with self.cluster(nodes=3, devices=1, copies={"rate": "2MiB"}, **FAST) as c:
            job = self.job(c, rows=1 << 15, count=2)
            job.imported("tp=2")
            (victim,) = {r["node"] for r in job.status()["ranks"]} - {"n0"}
            wait_for(lambda: self.events(c, job, "copies"), 60 * PATIENCE, "copies on their way")
            self.assertEqual(1, self.copies(job)["fewest"])
            c.nodes[victim].kill()
            c.restart(victim)
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            self.wait_copies(job, 2, 120)
            c.ptcctl("verify", job.name, timeout_s=60 * PATIENCE)
            job.check_whole(self)

    def test_damage_healed(self):
        """A bit flips in the only rank that has the bytes, then in its copy: each is healed from the other."""
        with self.cluster(nodes=3, devices=1, scrub={"rate": "0B"}, **FAST) as c:
            job = self.job(c, rows=1 << 12, count=2)
            job.imported("tp=2")
            self.wait_copies(job, 2)
            layout = next(r["node"] for r in job.status()["ranks"] if r["rank"] == 0)
            keeper = [h[0] for h in self.document(c, job)["keepers"] if h[0] not in {r["node"] for r in job.status()["ranks"]}]
            row = job.state.tensors["param"]["a"].tobytes()[100 * 48 * 4:101 * 48 * 4] # of rank 0
            for node in (layout, *keeper):
                try:
                    self.flip_bytes(c, job.status()["uuid"], [node], row)
                except AssertionError:
                    self.assertNotEqual(layout, node) # another node has the copy of this one
                    continue
                before = len(self.events(c, job, "healed"))
                c.ptcctl("verify", job.name, "--repair", timeout_s=60 * PATIENCE)
                wait_for(lambda: len(self.events(c, job, "healed")) > before, 30 * PATIENCE, "it is healed")
                c.ptcctl("verify", job.name, timeout_s=60 * PATIENCE)
                job.check_whole(self)

    written = staticmethod(test_damage.Damage.written)
    flip_bytes = test_damage.Damage.flip_bytes

    @harness.labels("repeats")
    def test_live(self):
        """Snapshots of ranks that run get copies beside the training; a node is lost, and the job runs on from the last one."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = live.Job(c, self.dir, data="100000,7,8,4", blobs="rng/mine", run={"copies": {"count": 2}})
            job.run("tp=2")
            for step in (5, 10):
                job.wait_step(step)
                job.do("snapshot")
                self.wait_copies(job, 2)
            job.resize("tp=3") # while it runs: what ranks have by now counts
            job.wait_step(15)
            job.resize("tp=2")
            job.wait_step(20)
            job.do("stop")
            step = job.wait_run("stopped")["step"]
            self.wait_copies(job, 2)
            (victim,) = {r["node"] for r in job.status()["ranks"]} - {"n0"} or {"n1"}
            c.nodes[victim].kill()
            wait_for(lambda: victim not in c.nodes_up(), 30 * PATIENCE, f"{victim} listed as down")
            c.ptcctl("node", "lost", victim)
            self.wait_lost(c, victim)
            job.check_state(self, step, self.path("out"))
            c.ptcctl("run", job.name, "--config", "tp=1", "--wait", timeout_s=120 * PATIENCE)
            job.wait_step(step + 3)
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("after"))

    @harness.labels("repeats")
    def test_joins_without_chunks(self):
        """Ranks that train are moved onto a node whose copies have gone with its chunks, before the controller has asked it; and it
        loses its chunks once more when the switch has begun. Nothing is aborted, and copies are made again."""
        rules = self.path("fault")
        env = {n: {"PTC_FAULT_FILE": rules} for n in ("n0", "n1", "n2")}
        no_look = ",".join(f"copies.look@{n}=fail" for n in range(1, 9))
        with self.cluster(nodes=3, devices=1, env=env, lease_ttl="2s", node_lost_after="1h") as c:
            job = live.Job(c, self.dir, data="100000,7,8,4", run={"copies": {"count": 2}})
            job.run("tp=2", nodes="n0,n1")
            for during, joins in (False, "n2"), (True, "n1"):
                job.wait_step(job.step() + 3)
                job.do("snapshot")
                self.wait_copies(job, 2)
                self.assertIn(joins, {k[0] for k in self.document(c, job)["keepers"]})
                harness.replace_file(rules, no_look + ",etcd.commit1.after=hold" * during)
                if not during:
                    self.empty_and_restart(c, joins)
                    c.wait_nodes([joins], 60 * PATIENCE)
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    resized = pool.submit(job.resize, "tp=2", nodes=f"n0,{joins}")
                    if during:
                        wait_for(lambda: job.status()["phase"] == "commit1", 60 * PATIENCE, "the first commit", 0.05)
                        self.empty_and_restart(c, joins)
                        harness.replace_file(rules, no_look)
                    resized.result()
                harness.replace_file(rules, "")
                self.assertIn(joins, {r["node"] for r in job.status()["ranks"]})
                self.wait_copies(job, 2)
            self.assertEqual([], self.events(c, job, "aborted", "copies_failed"))
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("out"))

    @harness.labels("repeats")
    def test_snapshot_without_chunks(self):
        """A node loses its copies with its chunks, and ranks make another snapshot before the controller has asked the node: its copies
        come to this node again."""
        rules = self.path("fault")
        with self.cluster(nodes=3, devices=1, env={n: {"PTC_FAULT_FILE": rules} for n in ("n0", "n1", "n2")}, **FAST) as c:
            job = live.Job(c, self.dir, data="100000,7,8,4", run={"copies": {"count": 3}})
            job.run("dp=2", nodes="n0,n1")
            job.wait_step(3)
            job.do("snapshot")
            self.wait_copies(job, 3)
            harness.replace_file(rules, ",".join(f"copies.look@{n}=fail" for n in range(1, 9)))
            self.empty_and_restart(c, "n2")
            c.wait_nodes(["n2"], 60 * PATIENCE)
            job.wait_step(job.step() + 3)
            job.do("snapshot")
            harness.replace_file(rules, "")
            self.wait_copies(job, 3)
            self.assertEqual([], self.events(c, job, "copies_failed"))
            self.assertEqual([0], [n["store"]["lost_jobs"] for n in c.json("nodes")["nodes"] if n["node"] == "n2"])

    @harness.labels("repeats")
    def test_switch_meanwhile(self):
        """A switch that begins while copies come slowly does not wait for them."""
        with self.cluster(nodes=3, devices=1, copies={"rate": "1MiB"}, **FAST) as c:
            job = self.job(c, rows=1 << 17, count=2) # 25 MB of a and as much of its field
            job.imported("tp=2")
            wait_for(lambda: self.events(c, job, "copies"), 60 * PATIENCE, "copies on their way")
            job.resize("tp=1")
            self.assertEqual(1, self.copies(job)["fewest"])
            job.check_whole(self)


if __name__ == "__main__":
    unittest.main()
