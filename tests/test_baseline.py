# SPDX-License-Identifier: Apache-2.0
"""Upgrades from a ptc that is really older: four daemons built from the commit in tests/baseline are replaced by those of this tree under
live jobs that never end, and one goes back. docs/versions.md says what each side promises.

`scripts/baseline` builds it in build/baseline/build; `scripts/test --full` does that before.
"""
import os
import unittest

import harness
import numpy as np
import state as states
from harness import LONG, PATIENCE, Job, wait_for
from test_ctrainer import BATCH, differences
from test_fuse import CAN_MOUNT
from upgrades import Replaced, Ridge

HERE = os.path.join(harness.ROOT, "build", "baseline")
BASELINE = os.path.abspath(os.environ.get("PTC_BASELINE_BUILD", os.path.join(HERE, "build")))
ASKED = LONG or "PTC_BASELINE_BUILD" in os.environ  # else it may be another one's
RULES = [{"match": "h.*", "split": {"axis": "tp", "dim": 0}}]


def needs_baseline(test):
    if harness.SANITIZED or not ASKED:
        return unittest.skip("only with PTC_TEST_LONG or PTC_BASELINE_BUILD, and without sanitizers")(test)
    if os.path.exists(os.path.join(BASELINE, "daemon", "ptcd")):
        return test
    if os.path.exists(os.path.join(HERE, "skipped")):
        with open(os.path.join(HERE, "skipped")) as f:
            return unittest.skip(f.read().strip())(test)
    return lambda self: self.fail(f"no build of the baseline in {BASELINE}: scripts/baseline")


class Baseline(Replaced):
    old, new = BASELINE, harness.BUILD
    says_none = True
    # An old controller does not know which devices other jobs have: nodes of their own (docs/decisions/0021-devices.md).
    at = {"now": "n0,n1", "ahead": "n2,n3"}

    def state(self):
        s = states.State({"m": "F32"})
        rng = np.random.default_rng(self.seed)
        for i in range(6):
            s.add(rng, f"h.{i}.w", "F32", (64, 48))
        return s

    def commands(self, c, job, state):
        """Each ptcctl with a daemon of each version, of those that are there."""
        one = {node.build: name for name, node in c.nodes.items()}
        for build in (self.old, self.new):
            for name in one.values():
                with self.by(c, build), self.subTest(ptcctl=build, node=name):
                    wait_for(lambda: [{"store", "memory", "device_list"} <= set(n) for n in c.json("nodes", node=name)["nodes"]] == [True] * 4, # noqa: B023
                             60 * PATIENCE, "figures of all four nodes", 0.2)
                    self.assertEqual("live", job.status(node=name)["run"]["state"])
                    self.assertIn("committed", c.ptcctl("events", state.name, node=name).stdout)
                    self.assertEqual(state.status(node=name)["snapshot"], c.json("snapshots", state.name, node=name)["snapshots"][0]["snapshot"])
                    c.ptcctl("verify", state.name, node=name, timeout_s=60 * PATIENCE)
                    job.do("snapshot", node=name)
                    state.check_whole(self, node=name)

    def copied(self, c):
        """A job that needs what only this tree has, among its daemons."""
        job = Job(c, "copied", self.state(), self.path("copied"), RULES, more={"copies": {"count": 2}})
        with self.by(c, self.new):
            job.imported("tp=2")
            self.twice(job)
        return job

    def twice(self, job):
        wait_for(lambda: (job.status().get("copies") or {}).get("fewest") == 2, 60 * PATIENCE, "two copies of everything")

    def gone_back(self, c, name, copied):
        """A daemon of the baseline leaves alone a job that needs what it does not know, and says so in one line, also where it is the only
        one; the others serve the job."""
        self.replace(c, name, None)
        others = [n for n in c.nodes if n != name]
        for n in others:
            self.assertTrue(c.nodes[n].stop())
        for build in (self.old, self.new):
            with self.by(c, build):
                for verb in (("status",), ("resize", "--config", "dp=2"), ("export", self.path("none.safetensors"))):
                    print(self.refused(c, verb[0], copied.name, *verb[1:], node=name, contains="copies"), flush=True)
        for n in others:
            c.start_node(c.nodes[n])
        c.wait_nodes(list(c.nodes), 60 * PATIENCE, node=others[0])
        with self.by(c, self.new):
            known = copied.status(node=others[0])  # though its controller cannot read the job
            self.assertEqual((name, "tp=2"), (known["controller"], known["config"]))
            self.assertTrue(c.nodes[name].stop())
            wait_for(lambda: copied.status(node=others[0])["controller"] in others, 60 * PATIENCE, "another controller")
            c.start_node(c.nodes[name])
            c.wait_nodes(list(c.nodes), 60 * PATIENCE)
            self.assertEqual("tp=2", copied.status()["config"])
            self.twice(copied)
            copied.resize("dp=2")
            copied.check_whole(self)

    @needs_baseline
    @harness.labels("repeats")
    def test_rolling(self):
        """From the baseline to this tree, node by node, and one node back; the ranks that were there at first are there in the end."""
        with self.cluster(nodes=4, devices=2, coordinator="etcd-cluster", transport="tls", build=self.old) as c:
            self.turn = 0
            job = Ridge(c, self.path("now"), "now", self.old, "rebuild")
            ahead = Ridge(c, self.path("ahead"), "ahead", self.new, "rebuild") # its libptc is newer than any daemon at first
            state = Job(c, "state", self.state(), self.path("state"), RULES)
            for j in (job, ahead):
                with self.by(c, self.new if j is ahead else self.old):
                    j.run(f"tp=2,dp=2,{BATCH}", nodes=self.at[j.name])
                j.wait_step(5)
            state.imported("tp=2,dp=2")
            pids = {j: j.pids() for j in (job, ahead)}
            for name in c.nodes:
                self.replace(c, name, self.new)
                self.mixed(c, (job, ahead), state, both=name != "n3")
                self.assertEqual(pids, {j: j.pids() for j in (job, ahead)}, f"ranks, after {name} was replaced")
                if name in ("n1", "n3"):
                    self.commands(c, job, state)
            copied = self.copied(c)
            self.gone_back(c, "n3", copied)
            self.mixed(c, (job, ahead), state, both=True)
            self.commands(c, ahead, state)
            self.assertEqual(pids, {j: j.pids() for j in (job, ahead)})
            for j in (job, ahead):
                j.do("stop")
                j.steps = j.wait_run("stopped")["step"]
                self.assertEqual([], differences(j.lines(), j.reference()), j.name)
            self.new_processes(c)
            self.replace(c, "n3", self.new)
            with self.by(c, self.new):
                copied.resize("tp=2")
                copied.check_whole(self)

    def new_processes(self, c):
        """New processes at each switch, of a daemon of each version."""
        anew = Ridge(c, self.path("anew"), "anew", self.old, "restart")
        self.at = {"anew": "n2,n3"}
        anew.run(f"tp=2,dp=2,{BATCH}", nodes=self.at["anew"])
        anew.wait_step(5)
        for group in (["n3"], ["n2"]):
            self.give_control(c, (anew,), group)
            self.turn += 1
            self.switch(anew)
        anew.do("stop")
        anew.steps = anew.wait_run("stopped")["step"]
        self.assertEqual([], differences(anew.lines(), anew.reference()))

    @needs_baseline
    @unittest.skipUnless(CAN_MOUNT, "FUSE cannot be mounted here")
    @harness.labels("repeats")
    def test_mounts(self):
        """Mounts of either version are read while daemons are replaced. A daemon of the baseline that starts answers at once that there are no
        jobs, and has not read etcd's keys yet: what is not found then is opened again. A daemon of this tree lets the question wait, as
        fuse.daemon_has_not_read_etcd shows."""
        self.mounts()

    @needs_baseline
    @harness.labels("repeats")
    def test_switch_goes_on(self):
        """A switch that daemons of one version have begun when they die, those of the other find, and end or undo."""
        self.switch_goes_on(raised=(1, False))


if __name__ == "__main__":
    harness.unittest.main()
