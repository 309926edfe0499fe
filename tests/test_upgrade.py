# SPDX-License-Identifier: Apache-2.0
"""Upgrades: four daemons of this version are replaced one after the other by daemons of the next one, and back, under live jobs
that never end. docs/versions.md says what each side promises.

The next version is this tree built with PTC_NEXT_VERSION (base/number/versions.h): every number raised by one, and something
unknown in every message, record and document. `scripts/test --full` builds it in build/next.
"""
import json
import os
import unittest

import harness
import numpy as np
import state as states
from harness import LONG, PATIENCE, Job, wait_for
from test_ctrainer import BATCH, differences
from test_fuse import CAN_MOUNT
from upgrades import Replaced, Ridge

NEXT = os.path.abspath(os.environ.get("PTC_NEXT_BUILD", os.path.join(harness.ROOT, "build", "next")))
ASKED = LONG or "PTC_NEXT_BUILD" in os.environ  # else it may be of a tree that has changed since


def needs_next(test):
    text = f"no build of the next version in {NEXT}: cmake --preset next && cmake --build build/next, then PTC_NEXT_BUILD=build/next"
    if harness.SANITIZED or not ASKED:
        return unittest.skip("only with PTC_TEST_LONG or PTC_NEXT_BUILD, and without sanitizers")(test)
    return test if os.path.exists(os.path.join(NEXT, "daemon", "ptcd")) else lambda self: self.fail(text)


class Upgrade(Replaced):
    new = NEXT

    @needs_next
    @harness.labels("repeats")
    def test_rolling(self):
        """To the next version and back, node by node; the ranks that were there at first are there in the end."""
        s = states.State({"m": "F32"})
        rng = np.random.default_rng(self.seed)
        for i in range(6):
            s.add(rng, f"h.{i}.w", "F32", (64, 48))
        with self.cluster(nodes=4, devices=3, coordinator="etcd-cluster", transport="tls") as c:
            self.turn = 0
            job = Ridge(c, self.path("now"), "now", harness.BUILD, "rebuild")
            ahead = Ridge(c, self.path("ahead"), "ahead", NEXT, "rebuild") # its libptc is newer than any daemon at first
            state = Job(c, "state", s, self.path("state"), [{"match": "h.*", "split": {"axis": "tp", "dim": 0}}])
            anew = Ridge(c, self.path("anew"), "anew", harness.BUILD, "restart") # new processes at each switch
            for j in (job, ahead, anew):
                with self.by(c, NEXT if j is ahead else harness.BUILD): # described by a ptcctl of the next version
                    j.run(f"tp=2,dp=2,{BATCH}")
                j.wait_step(5)
            state.imported("tp=2,dp=2")
            pids = {j: j.pids() for j in (job, ahead)}
            for build in (NEXT, None):
                order = list(c.nodes) if build else list(reversed(c.nodes))
                for name in order:
                    self.replace(c, name, build)
                    last = name == order[-1]
                    self.mixed(c, (job, ahead, anew), state, both=not last)
                    self.assertEqual(pids, {j: j.pids() for j in (job, ahead)}, f"ranks, after {name} was replaced")
                    with self.by(c, NEXT): # ptcctl and ptcd of either version
                        self.assertEqual({n.name: 2 if n.build else 1 for n in c.nodes.values()},
                                         {n["node"]: n["documents"] for n in c.json("nodes", node=order[0])["nodes"]})
                        job.do("snapshot")
                        state.check_whole(self, node=order[0])
                    raised = build is NEXT and last
                    self.assertEqual((2, True) if raised else (1, False), self.document(c, job.status()["uuid"], "record"),
                                     "all write what the oldest member reads")
                    if raised:
                        made = Job(c, "made", s, self.path("made"), [{"match": "h.*", "split": {"axis": "tp", "dim": 1}}])
                        made.imported("tp=2") # by daemons of the next version alone, read by this one later
            made.check_whole(self)
            made.resize("dp=2")
            made.check_whole(self)
            c.ptcctl("verify", made.name)
            for j in (job, ahead, anew):
                j.do("stop")
                j.steps = j.wait_run("stopped")["step"]
                self.assertEqual([], differences(j.lines(), j.reference()), j.name)

    @needs_next
    @unittest.skipUnless(CAN_MOUNT, "FUSE cannot be mounted here")
    @harness.labels("repeats")
    def test_mounts(self):
        """Mounts by the ptc-fuse of either version, at every node, are read while daemons are replaced, by the next version and back: each
        read has its bytes, and none fails. A file that was opened before the first daemon was replaced is read until the end."""
        self.mounts()

    @needs_next
    @harness.labels("repeats")
    def test_switch_goes_on(self):
        """A switch that daemons of one version have begun when they die, those of the other find, and end or undo; ranks train on."""
        self.switch_goes_on(raised=(2, True))

    def test_too_far(self):
        """A daemon joins no cluster with a member that is further away than one version, and says what to do."""
        with self.cluster(nodes=2, devices=1) as c:
            n1 = c.nodes["n1"]
            mine = c.etcdctl("get", "--print-value-only", "/ptc/nodes/n1").stdout
            self.assertTrue(n1.stop())
            doc = {**json.loads(mine), "node": "far", "documents": [3, 9], "store_id": "0" * 8 + "-0000-4000-8000-" + "0" * 12}
            self.assertEqual(0, c.etcdctl("put", "/ptc/nodes/far", json.dumps(doc)).returncode)
            before = c.etcdctl("get", "--prefix", "--keys-only", "/ptc/").stdout
            c.start_node(n1)
            wait_for(lambda: not n1.pid(), 60 * PATIENCE, "the end of a ptcd that may not join")
            self.assertIn("node far writes documents of version 9, this ptcd", n1.log_tail(3))
            self.assertIn("upgrade this node to version 8 first", n1.log_tail(3))
            self.assertEqual(before, c.etcdctl("get", "--prefix", "--keys-only", "/ptc/").stdout)
            self.assertEqual(0, c.etcdctl("del", "/ptc/nodes/far").returncode)
            c.start_node(n1)
            c.wait_nodes(["n0", "n1"], 60 * PATIENCE)


if __name__ == "__main__":
    harness.unittest.main()
