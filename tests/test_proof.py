# SPDX-License-Identifier: Apache-2.0
"""ptcctl dataset proof: what jobs that were resized, stopped and killed have consumed, against what their ranks wrote down."""
import json
import os
import subprocess
import sys

import harness
import live
from harness import wait_for


class Proof(harness.Case):
    def proved(self, c, job, cursor="data"):
        """The proof, checked by the script that knows nothing of ptc and against the ranks' own logs."""
        got = c.json("dataset", "proof", job.name)
        last = max(e["steps"][1] for e in got["cursors"][0]["generations"]) - 1
        lines = c.ptcctl("dataset", "proof", job.name, "--steps", f"0-{last}", "--format", "json").stdout
        for name, text in (("proof.json", json.dumps(got)), ("steps.jsonl", lines)):
            with open(self.path(name), "w") as f:
                f.write(text)
        r = subprocess.run([sys.executable, "-B", os.path.join(harness.ROOT, "tests", "ledger_check.py"), self.path("proof.json"),
                            self.path("steps.jsonl")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(0, r.returncode, r.stdout)
        wrote = {}
        for name in sorted(os.listdir(job.logs)):
            with open(os.path.join(job.logs, name)) as f:
                for line in map(json.loads, f):
                    if line["first"]:
                        wrote[line["generation"], line["step"], line["dp_rank"]] = line["samples"]
        for line in map(json.loads, lines.splitlines()):
            if line["dp_rank"] is not None:
                self.assertEqual(wrote[line["generation"], line["step"], line["dp_rank"]], line["samples"], line)
                continue
            had = [ids for (g, s, _), ids in wrote.items() if (g, s) == (line["generation"], line["step"])]
            self.assertEqual(sorted(line["samples"]), sorted(sum(had, [])), line)
        cursor, = (x for x in got["cursors"] if x["cursor"] == cursor)
        self.assertTrue(cursor["exactly_once"])
        return got, cursor

    def test_resizes(self):
        """dp up, down, to a prime, to 1; a rank that fails and steps that are trained again; stopped and run again."""
        n, batch = 37, 10
        with self.cluster(nodes=2, devices=6) as c:
            job = live.Job(c, self.dir, sleep=0.004, data=f"{n},{self.seed},{batch},3", by_length=3)
            self.assertEqual(1, c.ptcctl("dataset", "proof", job.name, check=False).returncode)
            job.run("tp=1,dp=2")
            for config in ("tp=2,dp=3", "tp=1,dp=5", "tp=1,dp=1"):
                job.wait_step(job.step() + 12)
                job.resize(config)
            job.wait_step(job.step() + 12)
            job.do("snapshot")
            self.fail_rank(c, job)
            job.run("tp=1,dp=7")
            job.wait_step(job.step() + 15)
            job.do("stop")
            got, cursor = self.proved(c, job)
            self.assertEqual((n, self.seed, 0), tuple(cursor[k] for k in ("samples", "seed", "since")))
            self.assertEqual([(2, False), (3, True), (5, False), (1, False), (7, False)],
                             [(e["dp"], e["by_length"]) for e in cursor["generations"]])
            self.assertEqual((got["step"] * batch, got["step"] * batch // n), (cursor["position"], cursor["epochs_finished"]))
            self.assertGreater(cursor["epochs_finished"], 9)
            self.table(c, job, cursor)
            self.tampered(c, job, cursor)

    def fail_rank(self, c, job):
        """The rank of the last generation dies: what it did after the snapshot is in no state."""
        there = job.status()
        rank = there["run"]["ranks"][0]
        wait_for(lambda: job.step() > there["step"] + 5 or None, 60, "some steps after the snapshot")
        os.kill(rank["pid"], 9)
        job.wait_run("failed")

    def table(self, c, job, cursor):
        text = c.ptcctl("dataset", "proof", job.name).stdout
        self.assertIn(f"{cursor['epochs_finished']} epochs finished, each sample once in each", text)
        self.assertEqual([False, True, False, False, False], [x.endswith(" *") for x in text.splitlines()[2:7]])
        self.assertIn("* divided by the samples' lengths: which rank had which sample is not recorded", text)
        second = str(cursor["generations"][1]["steps"][0])
        line = c.ptcctl("dataset", "proof", job.name, "--steps", second, "--cursor", "data").stdout.splitlines()
        self.assertEqual(1, len(line))
        self.assertRegex(line[0], f"^step {second} generation 2 dp rank not known: [0-9 ]+$")
        line = c.ptcctl("dataset", "proof", job.name, "--steps", "3", "--cursor", "data").stdout.splitlines()
        self.assertEqual(2, len(line))
        self.assertRegex(line[1], "^step 3 generation 1 dp rank 1: [0-9 ]+$")
        for code, said, args in ((2, "--steps is", ("--steps", "9-3")), (1, "none of these steps", ("--steps", "99999")),
                                 (1, "no cursor train", ("--cursor", "train"))):
            p = c.ptcctl("dataset", "proof", job.name, *args, check=False)
            self.assertEqual(code, p.returncode)
            self.assertIn(said, p.stderr)

    def tampered(self, c, job, cursor):
        """The script finds a proof that is not true."""
        with open(self.path("proof.json")) as f:
            got = json.load(f)
        for change in ({"seed": cursor["seed"] ^ 1}, {"samples": 38}, {"epochs_finished": cursor["epochs_finished"] + 1}):
            with open(self.path("proof.json"), "w") as f:
                json.dump({**got, "cursors": [{**cursor, **change}]}, f)
            r = subprocess.run([sys.executable, "-B", os.path.join(harness.ROOT, "tests", "ledger_check.py"),
                                self.path("proof.json"), self.path("steps.jsonl")], stderr=subprocess.DEVNULL)
            self.assertEqual(1, r.returncode, change)

    def test_without_an_order(self):
        """A cursor whose tag says nothing of an order can't be proved, and that is said."""
        with self.cluster(nodes=1, devices=2) as c:
            job = live.Job(c, self.dir)
            job.run("dp=1")
            job.wait_step(5)
            job.do("stop")
            p = c.ptcctl("dataset", "proof", job.name, check=False)
            self.assertEqual(1, p.returncode)
            self.assertIn('tag "n=100" does not say its order', p.stderr)
