# SPDX-License-Identifier: Apache-2.0
"""A rank whose own work takes longer than that of the others is found, though every rank's step takes equally long (`on_straggler`);
and the job leaves its device, where that is asked for."""
import json
import os
import re

import harness
import live
import test_ctrainer
import test_metrics
import test_recover
from harness import PATIENCE, wait_for

ELASTIC = {"on_straggler": "report", "straggler_percent": 100, "straggler_steps": 10}
SLOW = 'case $RANK in 2) ms=120;; *) ms=20;; esac; exec "$@" --work-ms $ms >>"$LINES/$$.jsonl"' # the C trainer's rank 2


DRAIN = {"on_straggler": "drain", "straggler_percent": 100, "straggler_steps": 10, "on_join": "grow", "join_after": "500ms"}
TABLE = {"3": "dp=3", "4": "dp=4"}


class Straggler(harness.Case):
    placed = test_recover.Recover.placed
    trains = test_recover.Recover.trains
    check_end = test_recover.Recover.check_end

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

    # ---- the job leaves a device ---------------------------------------------------------------------

    def drained(self, c, nodes, config="dp=4", **elastic):
        """A job that trains on these nodes, and begins at n1, which controls it."""
        job = live.Job(c, self.path("job"), sleep=0.02, own=6, gpus=TABLE, run={"elastic": {**DRAIN, **elastic}})
        job.run(config, nodes=nodes, node="n1")
        self.trains(c, job)
        return job

    def slow(self, job, node):
        """Every rank on that node works six times as long, from now on, until the file is removed."""
        path = os.path.join(job.logs, f"slow-on-{node}")
        open(path, "w").close()
        return path

    def told(self, c, job, kind, pattern, n=1):
        """The n-th event of that kind whose text has that; it is waited for."""
        def found():
            rows = [e for e in self.events(c, job, kind) if re.search(pattern, e["text"])]
            return rows[n - 1] if len(rows) >= n else None
        try:
            return wait_for(found, 120 * PATIENCE, f"{kind}: {pattern}", 0.1)
        except Exception:
            print("status:", json.dumps(job.status()), c.ptcctl("events", job.name, check=False).stdout, flush=True)
            raise

    def left(self, job):
        return [(d["node"], d["device"]) for d in job.status()["run"].get("left_devices", [])]

    def windows(self, c, job, more):
        """Until so many more windows of the present ranks have ended."""
        was = self.seen(c, job).get("windows", 0)
        wait_for(lambda: self.seen(c, job).get("windows", 0) >= was + more, 120 * PATIENCE, f"{more} windows", 0.1)

    def test_left(self):
        """The job leaves the slow device, with no step lost, and does not get it again: not by growing, not by a person's resize, nor
        under another controller. An operator gives it back, and the job grows."""
        with self.cluster(nodes=4, devices=1, lease_ttl="2s") as c:
            job = self.drained(c, "n0,n1,n2,n3")
            before = job.status()
            self.assertEqual("n1", before["controller"])
            path = self.slow(job, "n2")
            begins = self.told(c, job, "drain", "")
            self.assertRegex(begins["text"], "^ranks are slow on n2:0: the job leaves it, from dp=4 to dp=3, and does not get it again for 3600 s, ")
            ends = self.told(c, job, "drained", "")
            self.assertEqual("the job has left n2:0, where its ranks were slow", ends["text"])
            self.assertLess(self.events(c, job, "straggler")[0]["number"], begins["number"])
            after = self.trains(c, job, before["run"]["incarnation"])
            self.assertEqual(("dp=3", ["n0", "n1", "n3"]), (after["config"], self.placed(job)))
            self.assertEqual((before["generation"] + 1, []), (after["generation"], self.events(c, job, "recovering", "aborted")))
            for node in c.nodes:
                self.assertEqual([{"node": "n2", "device": 0}], [
                    {k: d[k] for k in ("node", "device")} for d in job.status(node=node)["run"]["left_devices"]])
            self.assertRegex(c.ptcctl("status", job.name).stdout, r"\nleft as slow: n2:0 for 3[0-9]{3} s more\n")
            os.unlink(path)  # nothing is wrong with it any more, and its time is not over
            c.nodes["n1"].kill()
            wait_for(lambda: (job.status()["controller"] or "n1") != "n1", 60 * PATIENCE, "another controller", 0.1)
            c.restart("n1")
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            self.windows(c, job, 3)
            now = job.status()
            self.assertEqual((after["generation"], "dp=3"), (now["generation"], now["config"]))
            self.assertEqual([], [e["text"] for e in self.events(c, job, "joined") if "n2" in e["text"]])
            self.assertEqual([("n2", 0)], self.left(job))
            self.refused(c, "resize", job.name, "--config", "dp=4",
                         contains="the job's ranks were slow on n2:0 (`ptcctl device bad n2:0 --undo` gives it back)")
            c.ptcctl("device", "bad", "n2:0", "--undo")
            self.assertEqual("the job may have n2:0 again, which it has left as slow: an operator says so",
                             self.told(c, job, "straggler_over", "")["text"])
            self.told(c, job, "joined", "more devices are free, of n2; the job goes from dp=3 to dp=4")
            self.trains(c, job, after["run"]["incarnation"])
            self.assertEqual(["n0", "n1", "n2", "n3"], self.placed(job))
            self.assertEqual([], self.left(job))
            self.check_end(c, job, proof=False)

    @harness.labels("repeats")
    def test_stays(self):
        """All ranks are slow: nothing is said or done. One is, and the job may not have fewer devices: an event says why it stays, once,
        and the device remains the job's."""
        with self.cluster(nodes=3, devices=1) as c:
            job = self.drained(c, "n0,n1,n2", "dp=3", min_gpus=3)
            was = job.status()
            slow = {node: self.slow(job, node) for node in c.nodes}
            self.windows(c, job, 6)
            self.assertEqual([], self.events(c, job, "straggler", "drain", "drained"))
            os.unlink(slow["n0"])
            os.unlink(slow["n1"])
            self.assertRegex(self.told(c, job, "drained", "")["text"],
                             "^the job stays on n2:0, where its ranks are slow: 2 devices are there, and the job has no configuration for 3 to 3$")
            self.windows(c, job, 4)
            now = job.status()
            self.assertEqual((was["generation"], was["run"]["incarnation"]), (now["generation"], now["run"]["incarnation"]))
            self.assertEqual((1, [], []), (len(self.events(c, job, "drained")), self.events(c, job, "drain"), self.left(job)))
            self.assertEqual(1, self.seen(c, job)["slow"])
            self.check_end(c, job, proof=False)

    @harness.labels("repeats")
    def test_spare(self):
        """A node that nobody used takes the place of the slow one. Another one is slow then: the job has left devices as often as it
        may, so it stays."""
        with self.cluster(nodes=5, devices=1) as c:
            job = self.drained(c, "n0,n1,n2,n3", max_gpus=4, straggler_drains=1)
            was = job.status()
            path = self.slow(job, "n2")
            self.told(c, job, "drained", "has left n2:0")
            os.unlink(path)
            after = self.trains(c, job, was["run"]["incarnation"])
            self.assertEqual(("dp=4", ["n0", "n1", "n3", "n4"]), (after["config"], self.placed(job)))
            self.slow(job, "n3")
            self.told(c, job, "drained", r"may do so no more often \(`straggler_drains`\)$")
            self.windows(c, job, 4)
            self.assertEqual((after["generation"], 2), (job.status()["generation"], len(self.events(c, job, "drained"))))
            self.assertEqual([("n2", 0)], self.left(job))
            self.check_end(c, job, proof=False)

    @harness.labels("repeats")
    def test_time_is_over(self):
        """The job grows to the device that it has left when its time is over, also if that is before its ranks have left: the slow rank
        is hundreds of steps behind the others, and comes to their boundary after more than half a minute."""
        with self.cluster(nodes=4, devices=1) as c:
            job = self.drained(c, "n0,n1,n2,n3", straggler_backoff="10s")
            was = job.status()
            path = self.slow(job, "n3")
            self.told(c, job, "drained", "has left n3:0")
            os.unlink(path)
            self.trains(c, job, was["run"]["incarnation"])
            self.told(c, job, "straggler_over", "^the job may have n3:0 again, which it has left as slow: its time is over$")
            self.told(c, job, "joined", "more devices are free, of n3; the job goes from dp=3 to dp=4")
            wait_for(lambda: self.placed(job) == ["n0", "n1", "n2", "n3"], 60 * PATIENCE, "all four again", 0.1)
            self.check_end(c, job, proof=False)

    @harness.labels("repeats")
    def test_dies_before_it_leaves(self):
        """The controller dies once it has written which device is left: the next one makes the switch."""
        with self.cluster(nodes=4, devices=1, lease_ttl="2s", env={"n1": {"PTC_FAULT": "etcd.slow.after=kill"}}) as c:
            job = self.drained(c, "n0,n1,n2,n3")
            was = job.status()
            path = self.slow(job, "n2")
            wait_for(lambda: not c.nodes["n1"].pid(), 120 * PATIENCE, "n1 at etcd.slow.after", 0.1)
            os.unlink(path)
            self.assertEqual(was["generation"], job.status()["generation"])
            c.restart("n1")
            self.told(c, job, "drain", "^ranks are slow on n2:0: the job leaves it, from dp=4 to dp=3, ")
            self.trains(c, job, was["run"]["incarnation"])
            self.assertEqual(["n0", "n1", "n3"], self.placed(job))
            self.check_end(c, job, proof=False)
