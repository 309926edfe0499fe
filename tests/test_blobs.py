# SPDX-License-Identifier: Apache-2.0
"""What becomes of ranks' blobs in a switch, by the rules of a job: each rank writes down what it is given."""
import json
import os

import harness
import live
from harness import PATIENCE, wait_for

STATE = ("generation", "snapshot", "config")


class Blobs(harness.Case):
    def job(self, c, name, mode="restart", rules=(), blobs="rng,seen", **options):
        run = {"blobs": [{"match": match, "state": state} for match, state in rules]} if rules else {}
        directory = os.path.join(self.dir, name)
        os.makedirs(directory, exist_ok=True)
        return live.Job(c, directory, name, mode, run=run, blobs=blobs, **options)

    def given(self, job, name):
        """What each rank of the generation that trains was given."""
        status = job.status()
        prefix = f"g{status['generation']}-l{status['run']['incarnation']}-r"
        ranks = sorted((int(f[len(prefix):-6]), f) for f in os.listdir(job.logs) if f.startswith(prefix) and f.endswith(".given"))
        out = []
        for _, f in ranks:
            with open(os.path.join(job.logs, f)) as opened:
                out.append(json.load(opened)[name])
        return out

    def steps(self, job, more=5):
        at = job.step()
        job.wait_step(at + more)

    def events(self, c, job, kind):
        events = map(json.loads, c.ptcctl("events", job.name, "--format", "json").stdout.splitlines())
        return [e["text"] for e in events if e["kind"] == kind]

    def check_said(self, c, job, summary, text):
        self.assertEqual(text, summary["blobs"]["text"])
        wait_for(lambda: self.events(c, job, "blobs")[-1:] == [f"generation {summary['generation']}: {text}"] or None,
                 20 * PATIENCE, "an event that says so")

    def no_rule(self, mode):
        """As ever: each where its coordinates are. What is dropped or missing is said, before and after."""
        with self.cluster(nodes=2, devices=2) as c:
            job = self.job(c, "plain", mode)
            job.run("dp=4")
            job.wait_step(3)
            job.do("snapshot")
            text = "6 per-rank blobs of ranks that are gone (rng, seen, where) are not carried"
            self.assertEqual({"gone": 6, "without": 0, "group": 0, "replicated": 0, "reset": 0, "text": text},
                             c.json("plan", job.name, "--config", "dp=2")["blobs"])
            self.assertIn(f"\n  blobs                  {text}\n", c.ptcctl("plan", job.name, "--config", "dp=2").stdout)
            self.check_said(c, job, job.resize("dp=2"), text)
            self.assertEqual(["rng 1 0", "rng 1 1"], self.given(job, "rng"))
            job.wait_step(job.status()["step"] + 3)
            summary = job.resize("dp=3")
            self.check_said(c, job, summary, "1 new rank has none (rng, seen, where)")
            self.assertEqual(["rng 1 0", "rng 1 1", None], self.given(job, "rng"))
            job.wait_step(summary["step"] + 3)
            self.assertNotIn("blobs", job.resize("dp=3"))
            self.assertEqual(["rng 1 0", "rng 1 1", "rng 3 2"], self.given(job, "rng"))
            job.do("stop")
            job.wait_run("stopped")

    @harness.labels("repeats")
    def test_no_rule_restart(self):
        self.no_rule("restart")

    def test_no_rule_rebuild(self):
        self.no_rule("rebuild")

    def rules(self, mode):
        """replicate: new ranks have rank 0's; reset: each generation begins without, and only a generation does."""
        with self.cluster(nodes=2, devices=2) as c:
            job = self.job(c, "rules", mode, rules=(("rng*", "replicate"), ("seen", "reset")))
            job.run("dp=2")
            job.wait_step(3)
            summary = job.resize("tp=2,dp=2")
            self.check_said(c, job, summary, "2 new ranks have none (where); 2 per-rank blobs are the lowest rank's (rng); "
                            "2 blobs are reset (seen)")
            self.assertEqual(["rng 1 0", "rng 1 0", "rng 1 1", "rng 1 0"], self.given(job, "rng"))
            self.assertEqual([None] * 4, self.given(job, "seen"))
            job.wait_step(summary["step"] + 3)
            job.do("snapshot")  # resets nothing
            summary = job.resize("tp=2")
            self.check_said(c, job, summary, "4 per-rank blobs of ranks that are gone (rng, where) are not carried; 4 blobs are reset (seen)")
            self.assertEqual(["rng 1 0", "rng 1 0"], self.given(job, "rng"))
            self.assertEqual([None] * 2, self.given(job, "seen"))
            job.wait_step(summary["step"] + 3)
            job.do("stop")
            last = job.wait_run("stopped")["step"]
            # stopped: what is carried is known, and no rank is asked
            r = c.ptcctl("run", job.name, "--config", "dp=4", "--wait", "--format", "json", timeout_s=60 * PATIENCE)
            self.assertEqual({"gone": 2, "without": 3, "group": 0, "replicated": 3, "reset": 2}, self.numbers(json.loads(r.stdout)))
            self.assertEqual(["rng 1 0"] * 4, self.given(job, "rng"))
            self.assertEqual([None] * 4, self.given(job, "seen"))
            job.wait_step(last + 3)
            job.do("stop")
            job.wait_run("stopped")

    @staticmethod
    def numbers(summary):
        return {k: v for k, v in summary["blobs"].items() if k != "text"}

    @harness.labels("repeats")
    def test_rules_restart(self):
        self.rules("restart")

    def test_rules_rebuild(self):
        self.rules("rebuild")

    def test_group(self):
        """What a tensor-parallel group has is its new ranks' too, where its ranks have the same."""
        with self.cluster(nodes=2, devices=2) as c:
            job = self.job(c, "group", blobs="rng@tp")
            job.run("dp=2")
            job.wait_step(3)
            summary = job.resize("tp=2,dp=2")
            self.check_said(c, job, summary, "2 new ranks have none (where); 2 per-rank blobs are the tensor-parallel group's (rng@tp)")
            self.assertEqual({"gone": 0, "without": 2, "group": 2, "replicated": 0, "reset": 0}, self.numbers(summary))
            self.assertEqual(["rng@tp 1 0", "rng@tp 1 0", "rng@tp 1 1", "rng@tp 1 1"], self.given(job, "rng@tp"))
            job.wait_step(summary["step"] + 3)
            summary = job.resize("tp=1,dp=3")  # the group's lives on in its first rank
            self.check_said(c, job, summary, "2 per-rank blobs of ranks that are gone (where) are not carried; 1 new rank has none "
                            "(rng@tp, where)")
            self.assertEqual(["rng@tp 1 0", "rng@tp 1 1", None], self.given(job, "rng@tp"))
            job.wait_step(summary["step"] + 3)
            job.resize("tp=2")
            job.do("stop")
            job.wait_run("stopped")

    @harness.labels("repeats")
    def test_reset_same_generation(self):
        """A generation that is started again after a switch came to nothing has what it had: nothing is reset."""
        with self.cluster(nodes=1, devices=2) as c:
            job = self.job(c, "again", rules=(("seen", "reset"), ("rng", "replicate")), raise_generation=2)
            job.run("dp=2")
            job.wait_step(3)
            self.refused(c, "resize", job.name, "--config", "dp=1", "--wait", contains="ValueError", timeout_s=60 * PATIENCE)
            wait_for(lambda: len(self.given(job, "seen")) == 2, 60 * PATIENCE, "ranks that go on", 0.05)
            self.assertEqual(1, job.status()["generation"])
            self.assertEqual(["seen 1 0", "seen 1 1"], self.given(job, "seen"))
            self.assertEqual([], self.events(c, job, "blobs"))
            job.do("stop")
            job.wait_run("stopped")

    def carry(self, mode):
        """Refused before the first commit, or, once it is known what ranks give, before anything is done; ranks go on."""
        with self.cluster(nodes=2, devices=2) as c:
            job = self.job(c, "carry", mode, rules=(("rng", "carry"),))
            job.run("dp=2")
            job.wait_step(3)
            before = job.status()
            for config, text in (("dp=1", "rank 1 with one would be gone"), ("dp=4", "ranks 2, 3 of the new configuration would have none")):
                said = self.refused(c, "resize", job.name, "--config", config, "--wait", contains=text, timeout_s=60 * PATIENCE)
                self.assertIn('blob "rng" must be carried (rule "rng")', said)
                self.steps(job)
            self.assertEqual(2, len(self.events(c, job, "aborted")), "it was tried")
            after = wait_for(lambda: (lambda s: s if s["phase"] == "idle" else None)(job.status()), 30 * PATIENCE, "its end")
            self.assertEqual([before[k] for k in STATE], [after[k] for k in STATE])
            self.assertEqual(before["run"]["incarnation"], after["run"]["incarnation"])
            job.do("snapshot")
            for verb in ("plan", "resize"):  # known now
                self.refused(c, verb, job.name, "--config", "tp=2", contains="rank 1 with one would be gone")
            self.assertEqual(2, len(self.events(c, job, "aborted")), "it was not tried")
            self.assertEqual(before["generation"], job.status()["generation"])
            job.resize("dp=2,order=dp-tp-cp-ep-pp")
            self.assertEqual(["rng 1 0", "rng 1 1"], self.given(job, "rng"))
            self.steps(job)
            job.do("stop")
            job.wait_run("stopped")
            self.refused(c, "run", job.name, "--config", "dp=1", "--wait", contains="rank 1 with one would be gone")
            c.ptcctl("run", job.name, "--wait", timeout_s=60 * PATIENCE)
            self.assertEqual(["rng 1 0", "rng 1 1"], self.given(job, "rng"))
            job.do("stop")
            job.wait_run("stopped")

    @harness.labels("repeats")
    def test_carry_restart(self):
        self.carry("restart")

    @harness.labels("repeats")
    def test_carry_rebuild(self):
        self.carry("rebuild")

    def test_refuse(self):
        """What nobody said how to carry is not carried silently: no snapshot, no switch, and the ranks go on."""
        with self.cluster(nodes=1, devices=2) as c:
            job = self.job(c, "refuse", rules=(("rng", "carry"), ("where", "reset"), ("job", "carry"), ("*", "refuse")))
            job.run("dp=2")
            job.wait_step(3)
            before = job.status()
            text = 'blob "seen" of rank 0 must not be given (rule "*": refuse)'
            self.refused(c, "snapshot", job.name, "--wait", contains=text, timeout_s=60 * PATIENCE)
            self.steps(job)
            self.refused(c, "resize", job.name, "--config", "tp=2", "--wait", contains=text, timeout_s=60 * PATIENCE)
            self.steps(job)
            self.refused(c, "stop", job.name, contains=text, timeout_s=60 * PATIENCE)
            self.steps(job)
            after = job.status()
            self.assertEqual([before[k] for k in STATE], [after[k] for k in STATE])
            self.assertEqual(before["run"]["incarnation"], after["run"]["incarnation"])
            c.ptcctl("stop", job.name, "--now", timeout_s=60 * PATIENCE)

    def test_refused_in_file(self):
        with self.cluster(nodes=1, devices=1) as c:
            job = self.job(c, "max", rules=(("rng", "max"),))
            self.assertIn("state max is not for blobs: a blob is bytes that only the program can read",
                          self.refused(c, "run", "-f", job.yaml, "--config", "dp=1"))

    def test_controller_killed(self):
        """Between the commits: whoever takes over gives ranks what the rules say, and says so."""
        with self.cluster(nodes=2, devices=2) as c:
            job = self.job(c, "killed", rules=(("rng", "replicate"), ("seen", "reset")))
            job.run("dp=2", node="n0")
            job.wait_step(3)
            controller = job.status()["controller"]
            with job.hold("build"):
                c.ptcctl("resize", job.name, "--config", "tp=2,dp=2", timeout_s=60 * PATIENCE)
                wait_for(lambda: job.status()["phase"] == "building" or None, 60 * PATIENCE, "building", 0.02)
                c.nodes[controller].kill()
            c.restart(controller)
            wait_for(lambda: len(self.given(job, "rng")) == 4 and job.status()["generation"] == 2 or None, 120 * PATIENCE, "the end", 0.1)
            self.assertEqual(["rng 1 0", "rng 1 0", "rng 1 1", "rng 1 0"], self.given(job, "rng"))
            self.assertEqual([None] * 4, self.given(job, "seen"))
            job.wait_step(job.status()["step"] + 3)
            self.assertIn("2 per-rank blobs are the lowest rank's (rng); 2 blobs are reset (seen)", self.events(c, job, "blobs")[0])
            job.do("stop")
            job.wait_run("stopped")
