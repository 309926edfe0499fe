# SPDX-License-Identifier: Apache-2.0
"""A controller that has lost a job's lock, and does not know it, asks nodes for each thing that controllers ask for: it is refused,
and nothing has changed. Spoken over a node's own peer socket (wire.py), as that controller's ptcd would. And it writes to etcd what
controllers write: nothing of it is written. Held there, at a fault point (base/sys/fault.h), while it loses the lock.
fence_mutants leaves out one of these checks after the other."""
import base64
import contextlib
import json
import os
import shutil
import threading
import time
import unittest
import uuid as uuids

import harness
import live
import numpy as np
import state as states
import test_crash
import wire
from harness import PATIENCE, Job, wait_for

FENCED = "was overtaken by request|has obeyed a controller|has lost the job's lock"
CALLS = ("Seal", "Prepare", "Pull", "Finish", "Drop", "Capture", "Start", "Arm", "Stop", "End", "Build")
# Writes of a controller, each as (fault point, at which pass of it, what leads there). Of blobs there are several sorts in one switch.
WRITES = [("etcd.intent", 1, "resize"), ("etcd.commit1", 1, "resize"), ("etcd.commit2", 1, "resize"), ("etcd.prune", 1, "resize"),
          ("etcd.copies", 1, "snapshot"), ("etcd.devices", 1, "resize"), ("etcd.halt", 1, "stop"), *(("etcd.blob", n, "resize") for n in range(1, 5))]
LATE = 1 << 40  # the number of a request: after all others with its fence


class Fence(harness.Case):
    def lock(self, c, uuid):
        """The job's fence, which is the revision at which its lock was made."""
        kvs = json.loads(c.etcdctl("get", f"/ptc/jobs/{uuid}/lock", "-w", "json").stdout).get("kvs", [])
        return kvs[0]["create_revision"] if kvs else None

    def lose_lock(self, c, uuid):
        """(the fence that was, the one that is)"""
        before = self.lock(c, uuid)
        c.etcdctl("del", f"/ptc/jobs/{uuid}/lock")
        return before, wait_for(lambda: (now := self.lock(c, uuid)) != before and now, 30 * PATIENCE, "a controller", 0.05)

    @staticmethod
    def peer(c, node):
        return wire.Peer(f"unix:{c.nodes[node].dir}/run/peer/peer.sock", timeout_s=60 * PATIENCE)

    @staticmethod
    def request(c, call, uuid, fence, record):
        """What a controller sends that believes in this record: of the job's present generation, and of the next one."""
        now = {"number": record["generation"], "snapshot": record["snapshot"], "config": "dp=2", "nodes": [0, 1], "devices": [0, 0],
               "incarnation": record.get("incarnation", 0)}
        table = {"generation": now["number"], "snapshot": now["snapshot"]}
        later = {"generation": now["number"], "snapshot": now["snapshot"] + 1}
        info = {"uuid": uuid, "job": "job", "uid": os.geteuid(), "fence": fence, "id": 1 << 30, "nodes": ["n0", "n1"],
                "addresses": [c.config(c.nodes[n])["advertise"] for n in ("n0", "n1")], "from": now,
                "to": {**now, "number": now["number"] + 1, "snapshot": later["snapshot"]}, "seq": LATE}
        name = wire.METHODS["Peer", call][1]
        fields = {"Seal": {"info": info, "from": table, "to": later}, "Capture": {"info": info, "to": later, "step": 1 << 30},
                  "Finish": {"uuid": uuid, "fence": fence, "seq": LATE}, "Drop": {"uuid": uuid, "fence": fence, "seq": LATE, "tables": [table]},
                  "Prepare": {"info": info}, "Pull": {"info": info}}
        return wire.message(name, **fields.get(call, {"info": info, "from": True, "stop": 1 << 30}))

    def refusal(self, peer, call, request):
        """The line with which the node refuses it, or None."""
        import grpc
        try:
            peer.call("Peer", call, request)
        except grpc.RpcError as e:
            return e.details()
        return None

    def test_calls_of_a_controller_without_lock(self):
        """To ranks that train, on the controller's own node and on another one."""
        with self.cluster(nodes=2, devices=1) as c:
            job = live.Job(c, self.path("job"))
            job.run("dp=2")
            job.wait_step(3)
            uuid = job.status()["uuid"]
            old, now = self.lose_lock(c, uuid)
            self.assertGreater(now, old)
            job.do("snapshot")  # each node has heard of the new controller
            before = job.status()
            ranks = {r["rank"]: r["pid"] for r in before["run"]["ranks"]}
            record = {**before, "incarnation": before["run"]["incarnation"]}
            for node in c.nodes:
                with self.peer(c, node) as peer:
                    for call in CALLS:
                        said = self.refusal(peer, call, self.request(c, call, uuid, old, record))
                        self.assertRegex(said or "nothing", FENCED, f"{call} of {node}")
                    allowed = wire.message("DropRequest", uuid=uuid, fence=now)
                    self.assertIsNone(self.refusal(peer, "Drop", allowed), "a positive control")
            job.wait_step(before["run"]["step"] + 50)
            after = job.status()
            self.assertEqual(ranks, {r["rank"]: r["pid"] for r in after["run"]["ranks"]}, "ranks were started again")
            self.assertEqual((before["generation"], before["snapshot"]), (after["generation"], after["snapshot"]))
            c.ptcctl("verify", job.name)
            job.check_state(self, before["step"], self.path("out"))
            job.resize("tp=2")
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))

    def state_job(self, c):
        s, rng = states.State({}), np.random.default_rng(self.seed)
        s.add(rng, "a", "F32", (64, 48))
        return Job(c, "alone", s, self.path("alone"), [{"match": "*", "split": {"axis": "tp", "dim": 0}}])

    def test_store_that_is_new(self):
        """A node that has forgotten all fences with its store knows the least that a controller can have: that of the job's lock, or,
        of a job without one, that which its own key gives."""
        with self.cluster(nodes=2, devices=1) as c:
            job = self.state_job(c)
            job.imported("tp=1")
            self.assertEqual(["n0"], [r["node"] for r in job.status()["ranks"]])
            uuid = job.status()["uuid"]
            node = c.nodes["n1"]
            node.stop()
            shutil.rmtree(node.chunk_dir)
            shutil.rmtree(os.path.join(node.dir, "state"))
            wait_for(lambda: c.nodes_up() == {"n0"}, 30 * PATIENCE, "its name to be free")
            c.restart("n1", timeout_s=60 * PATIENCE)
            old, _ = self.lose_lock(c, uuid)
            self.wait_seen(c, uuid, "n1")
            record = job.status()
            with self.peer(c, "n1") as peer:
                said = self.refusal(peer, "Prepare", self.request(c, "Prepare", uuid, old, record))
                self.assertRegex(said or "nothing", FENCED)  # the job's controller may have asked it for something meanwhile
                other = str(uuids.uuid4())  # nobody has its lock
                own = self.revision(c, "/ptc/nodes/n1")
                said = self.refusal(peer, "Drop", self.request(c, "Drop", other, own - 1, record))
                self.assertRegex(said or "nothing", rf"has lost the job's lock \(fence {own - 1}, and {own} is the least now\)")
                self.assertIsNone(self.refusal(peer, "Drop", self.request(c, "Drop", other, own, record)), "a positive control")
            job.check_whole(self)
            job.resize("tp=2")
            job.check_whole(self)

    # ---- what it writes to etcd ----------------------------------------------------------------

    (arm, env, up, settle, forget, passed, quietly) = (getattr(test_crash.Crash, name) for name in "arm env up settle forget passed quietly".split())
    measured = {}

    def written(self, c, uuid):
        """{key: revision} of what is in etcd for the job, but its events, and of what jobs have in common."""
        kvs = json.loads(c.etcdctl("get", "--prefix", "--keys-only", "/ptc/", "-w", "json").stdout)["kvs"]
        keys = {base64.b64decode(kv["key"]).decode(): kv["mod_revision"] for kv in kvs}
        return {k: n for k, n in keys.items() if (uuid in k and "/events/" not in k) or k == "/ptc/nodes-devices"}

    def act(self, c, job, what):
        if what == "resize":
            there = "tp=3" if "tp=2" in job.status()["config"] else "tp=2"
            return lambda: self.quietly(c, "resize", job.name, "--config", there, "--wait")
        args = ["stop", job.name, "--now"] if what == "stop" else ["snapshot", job.name, "--wait"]
        return lambda: self.quietly(c, *args)

    @contextlib.contextmanager
    def held(self, c, job, point, nth, what):
        """The controller is about to write (its name), or what leads there has ended without it (None)."""
        controller, act = wait_for(lambda: job.status()["controller"], 30 * PATIENCE, "a controller"), self.act(c, job, what)
        for name, node in c.nodes.items():
            self.forget(node)
            self.arm(node, "etcd.lock.before@*=hold" + (f",{point}.before@{nth}=hold" if name == controller else ""))
        thread, over = threading.Thread(target=act), []
        thread.start()

        def there():
            """"held", or "over": some time after the call has ended, for copies and removals come after it. A second pass is not listed:
            that the call does not end says that it is held there."""
            if f"{point}.before" in self.passed(c.nodes[controller]) and (nth == 1 or thread.is_alive()) and self.stands(c, job):
                return "held"
            over.extend([] if thread.is_alive() else [time.monotonic()])
            return over and time.monotonic() > over[0] + 3 and "over"
        try:
            came = wait_for(there, 60 * PATIENCE, f"{point}, or the end of the {what}", 0.05)
            yield controller if came == "held" else None
        finally:
            for node in c.nodes.values():
                self.arm(node)
            thread.join()

    def stands(self, c, job):
        """Whether nothing is written for a while: other nodes, and other threads of the controller, may have writes on their way, which
        nobody outside can see."""
        uuid = job.status()["uuid"]
        return self.written(c, uuid) == (time.sleep(0.5) or self.written(c, uuid))

    def write_without_lock(self, c, job, point, nth, what):
        """Whether the controller came to write: then it has not, without the lock."""
        uuid = job.status()["uuid"]
        with self.held(c, job, point, nth, what) as controller:
            if not controller:
                return False
            self.assertEqual(0, c.etcdctl("del", f"/ptc/jobs/{uuid}/lock").returncode)
            before = self.written(c, uuid)
            self.assertNotIn(f"/ptc/jobs/{uuid}/lock", before)
            self.forget(c.nodes[controller])
            self.arm(c.nodes[controller], "etcd.lock.before@*=hold")
            wait_for(lambda: f"{point}.after" in self.passed(c.nodes[controller]), 30 * PATIENCE, f"{point}.after", 0.01)
            self.assertEqual(before, self.written(c, uuid), f"{controller} wrote at {point} without the lock")
        return True

    @harness.labels("repeats")
    def test_writes_of_a_controller_without_lock(self):
        """Nobody has the lock, for whoever would take it is held, too: whatever is written is the old controller's."""
        with self.cluster(nodes=3, devices=1, up=False) as c:
            self.up(c)
            job = live.Job(c, self.path("job"), run={"copies": {"count": 2}})
            job.run("tp=2")
            writes = WRITES if harness.LONG else self.random.sample(WRITES, 3)
            reached = [w for w in writes if self.try_write(c, job, *w)]
            print("held without the lock:", ", ".join(f"{point}@{n}" for point, n, _ in reached), flush=True)
            self.assertGreaterEqual(len(reached), len(writes) - (4 if harness.LONG else 2), f"of {writes}")
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))

    def try_write(self, c, job, point, nth, what):
        """The same, and the job trains again at the end."""
        reached = self.write_without_lock(c, job, point, nth, what)

        def trains():
            s = job.status()
            if s["run"]["state"] in ("stopped", "failed") and s["phase"] == "idle" and what == "stop":
                self.quietly(c, "run", job.name, "--config", "tp=2", "--wait")
            return s["run"]["state"] == "live" and s["phase"] == "idle" and (s["run"].get("step") or -1) > s["step"]
        wait_for(trains, 90 * PATIENCE, f"a job that trains after {point}", 0.2)
        return reached

    def revision(self, c, key):
        return json.loads(c.etcdctl("get", key, "-w", "json").stdout)["kvs"][0]["create_revision"]

    def wait_seen(self, c, uuid, node):
        """Until that node sees who controls the job now."""
        kv = json.loads(c.etcdctl("get", f"/ptc/jobs/{uuid}/lock", "-w", "json").stdout)["kvs"][0]
        holder = json.loads(base64.b64decode(kv["value"]))["node"]
        wait_for(lambda: c.json("status", "alone", node=node)["jobs"][0]["controller"] == holder, 30 * PATIENCE, "the controller seen", 0.05)


if __name__ == "__main__":
    unittest.main()
