# SPDX-License-Identifier: Apache-2.0
"""Ranks that hang, all of whose nodes are there: what a job says that is to follow (`on_hang`), and what is kept of them before."""
import os
import re
import signal
import threading
import time

import harness
import test_recover
from harness import PATIENCE, wait_for

AFTER = 4 * PATIENCE # seconds that a step may stand: a busy machine takes less for one of 2 ms


class Hang(harness.Case):
    job, events, placed, trains, begun, check_end = (
        getattr(test_recover.Recover, name) for name in ("job", "events", "placed", "trains", "begun", "check_end"))

    def hung(self, c, on_hang="recover", **kw):
        return self.job(c, "hang", elastic={"on_hang": on_hang, "hang_after": f"{AFTER}s"}, **kw)

    def check_kept(self, c, job, before):
        """What is kept of all ranks, on both nodes: the one that stands stopped, and where the other one waits for it."""
        text = c.ptcctl("logs", job.name, "--evidence").stdout
        for r, rank in enumerate(before["run"]["ranks"]):
            part = text[text.index(f"==== rank {r} (pid {rank['pid']}), at step "):].partition("==== these files are on node ")
            self.assertRegex(part[0], fr"thread {rank['pid']} .*: {r'T .stopped' if r else '[RSDT] '}")
            self.assertTrue(part[2].startswith(f"{rank['node']} in "), part[2][:100])
            where = part[2].split()[2]
            self.assertEqual({"about", "dumps", f"rank-{r}", *([f"dump-{r}"] if os.path.exists(f"{self.dump}{r}") else [])},
                             set(os.listdir(where)))
        self.assertRegex(text, fr"dump of rank 0, {self.dump}0, written at \S+Z, is kept as dump-0: 9000 of 9000 bytes\n")
        self.assertIn(f"dump of rank 1, {self.dump}1: No such file or directory\n", text)
        told = text[text.index("==== rank 0 "):text.index("==== rank 1 ")]
        self.assertIn("it was asked for its stacks (SIGURG), and wrote:", told)
        self.assertRegex(told, r'File ".*trainer.py", line \d+ in (end|train)') # where it waits for its peer
        if os.path.exists("/proc/self/stack") and os.geteuid() == 0:
            self.assertRegex(told, r"\n    \[<0>\] \w+")
        with open(os.path.join(where, "about")) as f:
            self.assertRegex(f.read(), r"==== node n[01], \S+Z: ranks? .* for longer than `hang_after` allows ====\nthe kernel's log")

    def evidence(self, c, job):
        """The folder on n0."""
        return os.path.join(c.nodes["n0"].dir, "run", "workers", job.status()["uuid"], "evidence")

    def look(self, c, job, ranks):
        """At ranks that train; only the newest few sets of files are kept."""
        for _ in range(4):
            text = c.ptcctl("logs", job.name, "--evidence", "--now").stdout
        for r in ranks:
            self.assertIn(f"==== rank {r['rank']} (pid {r['pid']})", text)
        sets = re.findall(r"are on node (\w+) in (\S+) ====", text)
        self.assertEqual(["n0", "n1"], [node for node, _ in sets])
        for _, where in sets:
            self.assertEqual(["3", "4", "5"], sorted(set(os.listdir(os.path.dirname(where))) - {"tmp-new"}), sets)
            files = [os.stat(os.path.join(where, name)) for name in os.listdir(where)]
            self.assertEqual({(0o100400, os.geteuid())}, {(st.st_mode, st.st_uid) for st in files})
        self.refused(c, "logs", job.name, "--now", codes=(2,), contains="--now goes with --evidence")
        self.refused(c, "logs", job.name, "--evidence", "--rank", "1", codes=(2,), contains="--evidence is of all ranks")

    def test_recovered(self):
        """A rank stands still in its step, and the others wait for it; also while a snapshot waits for its boundary. The job is
        started again where it was, and does each step and each sample once."""
        with self.cluster(nodes=2, devices=1) as c:
            self.dump = self.path("dumps/trace_rank_") # of rank 0 there is one
            os.makedirs(os.path.dirname(self.dump))
            with open(f"{self.dump}0", "wb") as f:
                f.write(b"\0recorded" * 1000)
            job = self.hung(c, env={"TORCH_FR_DUMP_TEMP_FILE": self.dump})
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
                self.assertIn("stacks and states of 2 ranks are kept", self.events(c, job, "evidence")[-1]["text"])
                self.check_kept(c, job, before)
            ask.join()
            self.assertNotEqual(0, said[0].returncode)
            self.assertRegex(said[0].stderr, r"hung at step \d+")
            self.assertNotIn(victim["pid"], job.processes())
            self.check_end(c, job)

    def test_again_at_once(self):
        """Ranks hang right after a restart, and a snapshot that waits for them is under way: the controller has had no moment between two
        switches, and still knows of the hold of the ranks that had hung before. The hang is seen, and the job is started again."""
        with self.cluster(nodes=2, devices=1) as c:
            job = self.job(c, "hang", elastic={"on_hang": "recover", "hang_after": f"{AFTER}s", "on_failure": "wait"}, every=1000000, hold_at=1)
            job.let_go()
            job.run("dp=2")
            job.wait_step(10)
            first = job.status()["run"]
            os.unlink(os.path.join(job.logs, "go")) # the next ranks stand at step 1
            c.ptcctl("device", "bad", "n1:0")
            os.kill(first["ranks"][1]["pid"], signal.SIGSTOP)
            wait_for(lambda: "n1:0 is not well" in " ".join(e["text"] for e in self.events(c, job, "waits")), 60 * PATIENCE, "a job that waits", 0.1)
            # It is tried again after 1, 2, 4 and 8 s. From a try on the controller waits as long, also if it succeeds, before it looks whether
            # ranks are held: after the next one for 8 s, in which the ranks start and the snapshot begins. By the clock, because the
            # controller's is what it is about, and of a try that fails as the one before it says nothing.
            time.sleep(4)
            c.ptcctl("device", "bad", "n1:0", "--undo")

            def stand():
                s = job.status()["run"]
                on = s["state"] == "live" and s["incarnation"] != first["incarnation"]
                return s if on and [r.get("step") for r in s["ranks"]] == [1, 1] else None
            second = wait_for(stand, 90 * PATIENCE, "ranks at step 1", 0.02)
            os.kill(second["ranks"][1]["pid"], signal.SIGSTOP)
            job.let_go() # the other one now waits for it
            said = []
            ask = threading.Thread(target=lambda: said.append(job.do("snapshot", check=False)))
            ask.start()
            after = self.trains(c, job, second["incarnation"])
            ask.join()
            self.assertRegex(said[0].stderr, "hung at step 1")
            self.assertEqual(2, after["run"]["recovery"]["restarts"])
            self.assertEqual(2, len(self.events(c, job, "hung")))
            self.check_end(c, job)

    def test_no_step_lost(self):
        """The ranks that hang are whole, or one of them is that has everything: their memory becomes the snapshot."""
        with self.cluster(nodes=2, devices=1) as c:
            job = self.hung(c, every=1000000, survive=1)
            job.run("dp=2")
            before = self.trains(c, job)
            job.do("snapshot")
            job.wait_step(job.status()["step"] + 3)
            os.kill(before["run"]["ranks"][1]["pid"], signal.SIGSTOP)
            after = self.trains(c, job, before["run"]["incarnation"])
            told = self.events(c, job, "hung", "evidence", "recovering", "survived", "recovered")
            self.assertEqual(["hung", "evidence", "recovering", "survived", "recovered"], [e["kind"] for e in told], told)
            least = int(re.search(r"stood at step (\d+)", told[0]["text"]).group(1))
            step = int(re.search(r"of step (\d+),", told[3]["text"]).group(1))
            self.assertIn(step, (least, least + 1))
            self.assertIn(" 0 steps are lost", told[4]["text"])
            self.assertEqual({step}, {steps[0] for key, steps in job.steps_logged().items() if key[1] == after["run"]["incarnation"]})
            self.assertEqual(1, after["run"]["recovery"]["restarts"])
            self.check_end(c, job)

    def test_same_step(self):
        """A step in which ranks hang twice stops the job."""
        with self.cluster(nodes=2, devices=1) as c:
            job = self.hung(c, every=20, hold_at=25) # the first due snapshot: no earlier one can make it late
            job.run("dp=2", check=False)
            status = job.wait_run("failed", 120)
            self.assertEqual(1, len(self.events(c, job, "recovering")))
            self.assertRegex(self.events(c, job, "gave_up")[0]["text"], "hung at step 25 again: the same step has failed twice")
            self.assertEqual(20, status["step"])
            job.check_state(self, status["step"], self.path("kept"))
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
            for name in ("tmp-left", "tmp-new"): # as a ptcd leaves one that is killed
                os.mkdir(os.path.join(self.evidence(c, job), name))
            os.utime(os.path.join(self.evidence(c, job), "tmp-left"), (0, 0))
            self.look(c, job, after["run"]["ranks"])
            told = len(self.events(c, job, "evidence"))
            os.kill(after["run"]["ranks"][0]["pid"], signal.SIGSTOP)
            wait_for(lambda: len(self.events(c, job, "hung")) == 2, 60 * PATIENCE, "what is said again")
            c.ptcctl("stop", job.name, "--now", timeout_s=60 * PATIENCE)
            # the other one may wait at a boundary, where it does not stand
            self.assertRegex(self.events(c, job, "evidence")[-1]["text"], "before they are ended, stacks and states of [12] ranks are kept")
            self.assertEqual(told + 2, len(self.events(c, job, "evidence")))
            job.wait_run("stopped")
            wait_for(lambda: not job.processes(), 30 * PATIENCE, "the end of every rank", 0.1)
