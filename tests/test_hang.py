# SPDX-License-Identifier: Apache-2.0
"""Ranks that hang, all of whose nodes are there: what a job says that is to follow (`on_hang`), and what is kept of them before."""
import os
import signal
import threading

import harness
import test_recover
from harness import PATIENCE, wait_for

AFTER = 4 * PATIENCE # seconds that a step may stand: a busy machine takes less for one of 2 ms


class Hang(harness.Case):
    job, events, placed, trains, begun, check_end = (
        getattr(test_recover.Recover, name) for name in ("job", "events", "placed", "trains", "begun", "check_end"))

    def hung(self, c, on_hang="recover", **kw):
        return self.job(c, "hang", elastic={"on_hang": on_hang, "hang_after": f"{AFTER}s"}, **kw)

    def test_recovered(self):
        """A rank stands still in its step, and the others wait for it; also while a snapshot waits for its boundary. The job is
        started again where it was, and does each step and each sample once."""
        with self.cluster(nodes=2, devices=1) as c:
            job = self.hung(c)
            job.run("dp=2")
            said = []
            for n, asks in enumerate((False, True)):
                before = self.begun(c, job)
                victim = before["run"]["ranks"][1]
                os.kill(victim["pid"], signal.SIGSTOP)
                if asks:
                    ask = threading.Thread(target=lambda: said.append(job.do("snapshot", check=False)))
                    ask.start()
                after = self.trains(c, job, before["run"]["incarnation"])
                self.assertEqual(before["ranks"], after["ranks"])
                self.assertEqual(n + 1, after["run"]["recovery"]["restarts"])
                hung = self.events(c, job, "hung")[-1]["text"]
                self.assertRegex(hung, r"^rank [01] of node n[01]( and 1 other have| has) stood at step \d+ for \d")
                self.assertRegex(self.events(c, job, "recovering")[-1]["text"],
                                 fr"hung at step \d+, and all nodes are there: .*\(restart {n + 1}; at most 8 in an hour\)")
                self.assertEqual(n + 1, len(self.events(c, job, "recovered")))
            ask.join()
            self.assertNotEqual(0, said[0].returncode)
            self.assertRegex(said[0].stderr, r"hung at step \d+")
            self.assertNotIn(victim["pid"], job.processes())
            self.check_end(c, job)

    def test_same_step(self):
        """A step in which ranks hang twice stops the job."""
        with self.cluster(nodes=2, devices=1) as c:
            job = self.hung(c, hold_at=25)
            job.run("dp=2", check=False)
            status = job.wait_run("failed", 120)
            self.assertEqual(1, len(self.events(c, job, "recovering")))
            self.assertRegex(self.events(c, job, "gave_up")[0]["text"], "hung at step 25 again: the same step has failed twice")
            self.assertEqual(20, status["step"])
            job.check_state(self, 20, self.path("kept"))
            wait_for(lambda: not job.processes(), 30 * PATIENCE, "the end of every rank", 0.1)

    def test_reported(self):
        """Nothing is done to ranks that hang; when they go on, that is said, too."""
        with self.cluster(nodes=2, devices=1) as c:
            job = self.hung(c, "report")
            job.run("dp=2")
            before = self.begun(c, job)
            for r in before["run"]["ranks"]:
                os.kill(r["pid"], signal.SIGSTOP)
            wait_for(lambda: self.events(c, job, "hung"), 60 * PATIENCE, "what is said")
            status = job.status(node=job.status()["controller"])
            self.assertRegex(status["run"]["recovery"]["waits"], r"stands? at step \d+ for longer than `hang_after` allows")
            for r in before["run"]["ranks"]:
                os.kill(r["pid"], signal.SIGCONT)
            wait_for(lambda: self.events(c, job, "moves"), 60 * PATIENCE, "that they go on")
            after = self.trains(c, job)
            self.assertEqual(before["run"]["incarnation"], after["run"]["incarnation"])
            self.assertEqual(1, len(self.events(c, job, "hung")))
            self.assertNotIn("recovery", job.status(node=status["controller"])["run"])
            self.check_end(c, job)
