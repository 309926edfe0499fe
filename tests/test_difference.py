# SPDX-License-Identifier: Apache-2.0
"""A rank whose replica is not that of the others is found at the next snapshot, named, and taken off its device, if the job says which
replica is right (`on_difference`)."""
import os
import re

import harness
import live
import test_recover
from harness import PATIENCE, wait_for


class Difference(harness.Case):
    placed = test_recover.Recover.placed
    trains = test_recover.Recover.trains
    begun = test_recover.Recover.begun
    check_end = test_recover.Recover.check_end

    def job(self, c, rule, min_gpus=1, **kw):
        kw.setdefault("name", f"job-{rule}")
        run = {"snapshot_every": 40, "elastic": {"min_gpus": min_gpus, "on_difference": rule}}
        return live.Job(c, self.path(kw["name"]), run=run, data="100000,7,8,4", grace="2s", **kw)

    def spoil(self, job, rank):
        """A value of that rank's replica goes wrong at once."""
        os.makedirs(job.logs, exist_ok=True)
        path = os.path.join(job.logs, f"spoil-{rank}")
        harness.replace_file(path, "0")
        wait_for(lambda: not os.path.exists(path), 60 * PATIENCE, "a spoilt value", 0.02)

    def taken_out(self, c, job, rank, against):
        """Spoils that rank. Until the job goes on without its device, from a snapshot in which all were equal; the status."""
        before = self.begun(c, job)
        self.spoil(job, rank)
        after = self.trains(c, job, before["run"]["incarnation"])
        said = [e["text"] for e in self.events(c, job, "rank_differs")]
        at = next(r for r in before["ranks"] if r["rank"] == rank)
        self.assertEqual(1, len(said), said)
        self.assertRegex(said[0], fr'rank {rank} on node {at["node"]}, device {at["device"]}: its replica of "layer\.0\.weight" is not '
                         fr"that of {against} of the {against + 1} ranks that have one$")
        self.assertNotIn((at["node"], at["device"]), [(r["node"], r["device"]) for r in after["ranks"]])
        self.assertRegex(self.events(c, job, "recovering")[-1]["text"], "the job leaves these devices, and is started again from its")
        return after

    def test_majority(self):
        """Replicas on three nodes, and all on one: the odd one's device is left; the state is as if nothing had gone wrong."""
        for nodes, devices in ((3, 1), (1, 3)):
            with self.subTest(nodes=nodes), self.cluster(nodes=nodes, devices=devices, **test_recover.FAST) as c:
                job = self.job(c, "majority")
                job.run("dp=3")
                after = self.taken_out(c, job, self.random.randrange(3), 2)
                self.assertEqual("dp=2", after["config"])
                self.check_end(c, job)

    def test_primary(self):
        """Of two replicas none has a majority: the first one is right, if the job says so; else nothing is taken out."""
        with self.cluster(nodes=2, devices=2, **test_recover.FAST) as c:
            job = self.job(c, "majority", name="none")
            job.run("dp=2")
            before = self.begun(c, job)
            self.spoil(job, 1)
            wait_for(lambda: self.events(c, job, "aborted"), 60 * PATIENCE, "a snapshot that is refused", 0.1)
            self.assertIn("no more than half are equal", self.events(c, job, "aborted")[0]["text"])
            self.assertEqual(before["run"]["incarnation"], job.status()["run"]["incarnation"])
            self.assertEqual([], self.events(c, job, "rank_differs"))
            c.ptcctl("stop", job.name, "--now")
            job.wait_run("stopped")
            job = self.job(c, "primary")
            job.run("dp=2")
            after = self.taken_out(c, job, 1, 1)
            self.assertEqual("dp=2", after["config"]) # there is a spare device
            self.check_end(c, job)

    def test_needed(self):
        """Without the device the job would have too few: it stays, an event says so, and the device is the job's."""
        with self.cluster(nodes=3, devices=1, **test_recover.FAST) as c:
            job = self.job(c, "majority", min_gpus=3)
            job.run("dp=3")
            before = self.begun(c, job)
            self.spoil(job, 2)
            said = wait_for(lambda: [e["text"] for e in self.events(c, job, "rank_differs")][1:], 60 * PATIENCE, "that it stays", 0.1)
            self.assertRegex(said[0], "^the job stays on its devices: ")
            self.assertEqual(before["run"]["incarnation"], job.status()["run"]["incarnation"])
            step = job.step()
            wait_for(lambda: job.step() > step + 100, 60 * PATIENCE, "ranks that go on", 0.05)
            wait_for(lambda: not c.etcdctl("get", "--prefix", f"/ptc/jobs/{job.status()['uuid']}/slow/").stdout, 20 * PATIENCE, "its key gone")

    def test_controller_killed(self):
        """It dies when the device is written down. Whoever controls the job next goes on from there."""
        env = {f"n{i}": {"PTC_FAULT": "etcd.slow.after=kill"} for i in range(4)}
        with self.cluster(nodes=4, devices=1, transport="insecure", coordinator="etcd-cluster", env=env, **test_recover.FAST) as c:
            job = self.job(c, "majority")
            job.run("dp=3", nodes="n1,n2,n3")
            before = self.begun(c, job)
            self.spoil(job, 1)
            dead = wait_for(lambda: [name for name, node in c.nodes.items() if not node.pid()], 60 * PATIENCE, "a daemon that dies", 0.05)
            c.restart(dead[0], env={}, timeout_s=60 * PATIENCE)
            after = self.trains(c, job, before["run"]["incarnation"])
            at = next(r for r in before["ranks"] if r["rank"] == 1)
            self.assertNotIn(at["node"], [r["node"] for r in after["ranks"]])
            self.check_end(c, job)
