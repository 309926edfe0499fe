# SPDX-License-Identifier: Apache-2.0
"""A node's file system is really full, not only its share of memory, while copies come to it: the job goes on, events say which node,
which path and what to do, and the copies are made when there is room again."""
import contextlib
import os
import unittest

import harness
import live
import test_keep_copies
import test_leave
import test_resize
from harness import PATIENCE, wait_for

ROOM = 64 << 20


@harness.skip_unless_root
class FullDisk(harness.Case):
    small_tmpfs = test_resize.Resize.small_tmpfs
    state = test_keep_copies.KeepCopies.state
    job = test_keep_copies.KeepCopies.job
    copies = test_keep_copies.KeepCopies.copies
    wait_copies = test_keep_copies.KeepCopies.wait_copies
    leave = test_leave.Leave.leave
    state_job = test_leave.Leave.state_job

    def fill(self, path):
        """But for as much as an empty job takes, or all."""
        spare = self.random.choice((0, 256 << 10))
        with open(path, "wb", buffering=0) as f, contextlib.suppress(OSError):
            while f.write(bytes(1 << 16)):
                pass
        os.truncate(path, os.path.getsize(path) - spare)

    def check_said(self, c, job, node):
        """One event for each snapshot, however often it is tried again."""
        said = wait_for(lambda: self.events(c, job, "copies_failed"), 60 * PATIENCE, "it is said that there is no room")
        print(said[-1]["text"], flush=True)
        self.assertIn(f"node {node} could not take its copies", said[-1]["text"])
        self.assertRegex(said[-1]["text"], f"{c.nodes[node].chunk_dir}.*: No space left on device: make room")
        return said

    def test_while_copies_come(self):
        """The only node for copies of a job that trains: it trains on, makes snapshots, and has copies once there is room."""
        with self.cluster(nodes=2, devices=2, up=False, **test_keep_copies.FAST) as c, \
                self.small_tmpfs(c.nodes["n1"].chunk_dir, str(ROOM)) as rest:
            c.up(timeout_s=60 * PATIENCE)
            self.fill(rest)
            job = live.Job(c, self.dir, data="100000,7,8,4", blobs="rng/mine", run={"copies": {"count": 2}})
            job.run("tp=2", nodes="n0")
            for step in (5, 10):
                job.wait_step(step)
                job.do("snapshot")
                self.check_said(c, job, "n1")
                self.assertEqual(1, self.copies(job)["fewest"])
            self.assertLessEqual(len(self.events(c, job, "copies_failed")), 3)
            job.wait_step(job.step() + 5)
            c.restart("n1")  # on a file system that is full
            job.wait_step(job.step() + 5)
            os.unlink(rest)
            job.do("snapshot")
            self.wait_copies(job, 2, 90)  # a node without room is left alone for a minute
            job.do("stop")
            step = job.wait_run("stopped")["step"]
            self.wait_copies(job, 2, 90)
            c.ptcctl("verify", job.name, timeout_s=60 * PATIENCE)
            job.check_state(self, step, self.path("out"))

    @harness.labels("repeats")
    def test_after_a_loss(self):
        """A node with copies is lost, and the only other one for them is full: what is there stays and can be resized, and copies are
        made again once there is room."""
        with self.cluster(nodes=3, devices=2, up=False, **test_keep_copies.FAST) as c, \
                self.small_tmpfs(c.nodes["n2"].chunk_dir, str(ROOM)) as rest:
            c.up(timeout_s=60 * PATIENCE, in_turn=True)
            self.fill(rest)
            job = self.job(c, rows=1 << 15, count=2)
            job.imported("tp=1")
            self.assertEqual("n0", job.status()["ranks"][0]["node"])
            self.wait_copies(job, 2)
            before = len(self.events(c, job, "copies_failed"))  # n2 may have been asked first
            c.nodes["n1"].kill()
            self.wait_lost(c, "n1")
            wait_for(lambda: self.copies(job)["fewest"] == 1, 60 * PATIENCE, "the loss of a copy")
            job.check_whole(self)
            job.resize("tp=2", extra=("--nodes", "n0"))
            wait_for(lambda: len(self.events(c, job, "copies_failed")) > before, 60 * PATIENCE, "what is said after the loss")
            self.check_said(c, job, "n2")
            job.check_whole(self)
            os.unlink(rest)
            self.wait_copies(job, 2, 90)
            c.ptcctl("verify", job.name, timeout_s=60 * PATIENCE)
            job.check_whole(self)

    def test_drain(self):
        """A node is to leave, and the only other one is full: the answer says so, with the path, and the next one, with room, is good."""
        with self.cluster(nodes=2, devices=2, up=False, **test_keep_copies.FAST) as c, \
                self.small_tmpfs(c.nodes["n1"].chunk_dir, str(ROOM)) as rest:
            c.up(timeout_s=60 * PATIENCE, in_turn=True)
            self.fill(rest)
            job = self.state_job(c)
            job.imported("tp=1", node="n0")
            self.assertEqual("n0", job.status()["ranks"][0]["node"])
            said, error = self.leave(c, "n0", within="20s", code=1)
            print(said["jobs"][0]["why"], error, flush=True)
            self.assertEqual("late", said["jobs"][0]["state"])
            self.assertRegex(said["jobs"][0]["why"], "are only on nodes that leave, and no other node that is up can take them: node n1: "
                             f"cannot .*{c.nodes['n1'].chunk_dir}/.*: No space left on device")
            job.check_whole(self)
            os.unlink(rest)
            said, _ = self.leave(c, "n0")
            self.assertEqual([("moved", 0)], [(j["state"], j["left_bytes"]) for j in said["jobs"]])
            job.check_whole(self)


if __name__ == "__main__":
    unittest.main()
