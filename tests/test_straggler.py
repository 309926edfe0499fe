# SPDX-License-Identifier: Apache-2.0
"""A rank whose own work takes longer than that of the others is found, though every rank's step takes equally long (`on_straggler`)."""
import json
import os

import harness
import live
import test_ctrainer
import test_metrics
import test_recover
from harness import PATIENCE, wait_for

ELASTIC = {"on_straggler": "report", "straggler_percent": 100, "straggler_steps": 10}
SLOW = 'case $RANK in 2) ms=120;; *) ms=20;; esac; exec "$@" --work-ms $ms >>"$LINES/$$.jsonl"' # the C trainer's rank 2


class Straggler(harness.Case):
    events = test_recover.Recover.events

    def seen(self, c, job):
        """What the controller says of slow ranks; {}: nothing yet."""
        status = job.status(node=job.status()["controller"])
        return status["run"].get("stragglers", {})

    def series(self, given, job):
        samples = test_metrics.scrape(given[job.status()["controller"]])[1]
        return {labels: value for (name, labels), value in samples.items() if name == "ptc_job_straggler_ratio"}

    @harness.labels("threads")
    def test_told(self):
        """One of four ranks of the C trainer is slow: an event, status and a metric name it and its node. Two ranks cannot be compared."""
        with self.cluster(nodes=2, devices=2, up=False) as c:
            given = test_metrics.Metrics.addresses(self, c)
            c.up()
            job = test_ctrainer.Trainer(c, self.dir, "restart", steps=1 << 40, sleep_ms=0, script=SLOW)
            with open(job.yaml) as f:
                spec = json.load(f)
            with open(job.yaml, "w") as f:
                json.dump({**spec, "elastic": ELASTIC}, f)
            job.run("dp=4,global_batch=24,micro_batch=6")
            wait_for(lambda: self.events(c, job, "straggler"), 120 * PATIENCE, "that a rank is slow", 0.2)
            node = {r["rank"]: r["node"] for r in job.status()["run"]["ranks"]}[2]
            text = self.events(c, job, "straggler")[0]["text"]
            self.assertRegex(text, r"^slower than others by more than 100 %, 3 times 10 steps in a row: "
                             fr"rank 2 of node {node} \(\S+ ms of own work a step, its stage's median \S+ ms\)$")
            seen = self.seen(c, job)
            self.assertEqual((4, 1, [(2, node)]), (seen["comparable"], seen["slow"], [(r["rank"], r["node"]) for r in seen["list"]]))
            self.assertGreater(seen["list"][0]["own_s"], 0.12) # as long as it sleeps, at least
            self.assertGreater(seen["list"][0]["median_s"], 0.02)
            self.assertGreater(seen["list"][0]["own_s"], 2 * seen["list"][0]["median_s"])
            self.assertNotIn("text", seen)
            shown = c.ptcctl("status", job.name, node=job.status()["controller"]).stdout
            self.assertRegex(shown, fr"\nslow: rank 2 of node {node} \(")
            (labels, ratio), = self.series(given, job).items()
            self.assertLessEqual({"ptc_job": job.name, "rank": "2", "node": node}.items(), dict(labels).items())
            self.assertGreater(ratio, 2)
            job.resize("dp=2,global_batch=24,micro_batch=6")
            wait_for(lambda: self.seen(c, job).get("windows"), 120 * PATIENCE, "a window of the new ranks", 0.2)
            seen = self.seen(c, job)
            self.assertEqual((0, 0, []), (seen["comparable"], seen["slow"], seen["list"]))
            self.assertRegex(seen["text"], r"^2 of 2 ranks cannot be compared: each has to report `own_seconds`")
            self.assertEqual({}, self.series(given, job))
            self.assertEqual(1, len(self.events(c, job, "straggler")))

    def test_over(self):
        """Ranks that say nothing of their work are not judged. A rank that becomes slow is told of, and that it is so no longer."""
        with self.cluster(nodes=1, devices=3) as c:
            quiet = live.Job(c, self.path("quiet"), name="quiet", sleep=0.02, run={"elastic": ELASTIC, "share_devices": True})
            quiet.run("dp=3")
            job = live.Job(c, self.path("job"), sleep=0.02, own=6, run={"elastic": ELASTIC, "share_devices": True})
            job.run("dp=3")
            for rank in (1, 0):
                slow = os.path.join(job.logs, f"slow-{rank}")
                open(slow, "w").close()
                wait_for(lambda: any(r["rank"] == rank for r in self.seen(c, job).get("list", [])), 120 * PATIENCE, "a slow rank", 0.2) # noqa: B023
                self.assertIn(f"row: rank {rank} of node n0 (", self.events(c, job, "straggler")[-1]["text"])
                os.unlink(slow)
                wait_for(lambda: self.seen(c, job)["slow"] == 0, 120 * PATIENCE, "that it is as fast as the others", 0.2)
                self.assertIn(f"row: rank {rank} of node n0 (", self.events(c, job, "straggler_over")[-1]["text"])
            seen = self.seen(c, quiet)
            self.assertEqual((0, 0), (seen["comparable"], seen["slow"]))
            self.assertRegex(seen["text"], "^3 of 3 ranks cannot be compared")
            self.assertEqual([], self.events(c, quiet, "straggler", "straggler_over"))
