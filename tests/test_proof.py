# SPDX-License-Identifier: Apache-2.0
"""ptcctl dataset proof: what jobs that were resized, stopped and killed have consumed, against what their ranks wrote down."""
import json
import os
import subprocess
import sys
import unittest

import harness
import live
import numpy as np
from harness import LONG, wait_for


def ledger_check(proof, lines, directory):
    """What the script that knows nothing of ptc has to say of a proof and its lines; "": all is as it says."""
    files = [os.path.join(directory, name) for name in ("proof.json", "steps.jsonl")]
    for path, text in zip(files, (json.dumps(proof), "".join(json.dumps(line) + "\n" for line in lines))):
        with open(path, "w") as f:
            f.write(text)
    r = subprocess.run([sys.executable, "-B", os.path.join(harness.ROOT, "tests", "ledger_check.py"), *files],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert (r.returncode == 0) == (not r.stdout), r.stdout
    return r.stdout


def said_by(case, c, job, *cursor, code=0):
    """The proof and the lines of all its steps."""
    r = c.ptcctl("dataset", "proof", job.name, "--format", "json", *cursor, check=False)
    case.assertEqual(code, r.returncode, r.stderr)
    got = json.loads(r.stdout)
    last = max(e["steps"][1] for x in got["cursors"] for e in x["generations"]) - 1
    r = c.ptcctl("dataset", "proof", job.name, "--steps", f"0-{last}", "--format", "json", *cursor, check=False)
    case.assertEqual(code, r.returncode, r.stderr)
    return got, [json.loads(line) for line in r.stdout.splitlines()]


def proved(case, c, job, name="data", counted=False):
    """The proof of the cursor that the ranks consume by, its lines and itself: right by the script and by the ranks' logs. counted:
    the ranks set none."""
    got, lines = said_by(case, c, job, "--cursor", name, *["--counted"] * counted)
    case.assertEqual("", ledger_check(got, lines, case.dir))
    wrote = {}
    for log in sorted(os.listdir(job.logs)):
        with open(os.path.join(job.logs, log)) as f:
            for line in map(json.loads, (text for text in f if text.endswith("\n"))):  # a rank may have been killed in one
                if line["first"]:
                    wrote[line["generation"], line["step"], line["dp_rank"]] = line["samples"]
    for line in lines:
        if line["dp_rank"] is not None:
            case.assertEqual(wrote[line["generation"], line["step"], line["dp_rank"]], line["samples"], line)
            continue
        had = [ids for (g, s, _), ids in wrote.items() if (g, s) == (line["generation"], line["step"])]
        case.assertEqual(sorted(line["samples"]), sorted(sum(had, [])), line)
    cursor, = got["cursors"]
    case.assertEqual((name, "counts" if counted else "ranks", True), tuple(cursor[k] for k in ("cursor", "said_by", "exactly_once")))
    return got, lines, cursor


class Proof(harness.Case):

    @harness.labels("repeats")
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
            got, lines, cursor = proved(self, c, job)
            self.assertEqual((n, self.seed, 0), tuple(cursor[k] for k in ("samples", "seed", "since")))
            self.assertEqual([(2, False), (3, True), (5, False), (1, False), (7, False)],
                             [(e["dp"], e["by_length"]) for e in cursor["generations"]])
            self.assertEqual((got["step"] * batch, got["step"] * batch // n), (cursor["position"], cursor["epochs_finished"]))
            self.assertGreater(cursor["epochs_finished"], 9)
            self.table(c, job, cursor)
            self.tampered(got, lines, cursor)

    def test_unequal_micro_steps(self):
        """Replicas that compute unequally many micro steps (micro_steps=), and equally many before and after: each sample once."""
        n, batch, uneven = 37, 20, "dp=3,micro_batch=3,global_batch=20,micro_steps=1x4:1x2:1x1"
        with self.cluster(nodes=2, devices=2) as c:
            job = live.Job(c, self.dir, sleep=0.004, data=f"{n},{self.seed},{batch},3")
            for bad, said in (("dp=3,micro_steps=1x4:2x2", "needs micro_batch and global_batch"),
                              (uneven.replace("1x1", "2x1"), "is of 4 replicas, dp is 3"), (uneven.replace("20", "22"), "fewer slots"),
                              (uneven.replace("1x4", "1x"), "bad value")):
                self.assertIn(said, self.refused(c, "run", job.name, "--config", bad, codes=(2,)))
            job.run("dp=2")
            for config in (uneven, "dp=3"):
                job.wait_step(job.step() + 12)
                job.resize(config)
            job.wait_step(job.step() + 12)
            job.do("stop")
            _, lines, cursor = proved(self, c, job)
            self.assertEqual([2, 3, 3], [e["dp"] for e in cursor["generations"]])
            tag, = (e["tag"] for e in cursor["generations"] if e["generation"] == 2) # the program writes none of it
            self.assertTrue(tag.endswith(",micro_steps=1x4:1x2:1x1"), tag)
            had = {line["dp_rank"]: len(line["samples"]) for line in lines if line["generation"] == 2}
            self.assertEqual({0: 11, 1: 6, 2: 3}, had)

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
        self.assertRegex(line[0], f"^cursor data step {second} generation 2 dp rank not known: [0-9 ]+$")
        line = c.ptcctl("dataset", "proof", job.name, "--steps", "3", "--cursor", "data").stdout.splitlines()
        self.assertEqual(2, len(line))
        self.assertRegex(line[1], "^cursor data step 3 generation 1 dp rank 1: [0-9 ]+$")
        for code, said, args in ((2, "--steps is", ("--steps", "9-3")), (1, "none of these steps", ("--steps", "99999")),
                                 (1, "no cursor train", ("--cursor", "train"))):
            p = c.ptcctl("dataset", "proof", job.name, *args, check=False)
            self.assertEqual(code, p.returncode)
            self.assertIn(said, p.stderr)

    def tampered(self, got, lines, cursor):
        """The script finds a proof that is not true, and lines of steps that are not."""
        for change in ({"seed": cursor["seed"] ^ 1}, {"samples": 38}, {"epochs_finished": cursor["epochs_finished"] + 1}):
            self.assertNotEqual("", ledger_check({**got, "cursors": [{**cursor, **change}]}, lines, self.dir), change)
        at = self.random.choice([i for i, line in enumerate(lines) if line["samples"]]) # a rank may have had padding only
        line, one = lines[at], self.random.randrange(len(lines[at]["samples"]))
        samples = [(x + 1) % cursor["samples"] if i == one else x for i, x in enumerate(line["samples"])]
        for change in ({"samples": samples}, {"samples": line["samples"][:-1]}, {"step": 10**6}, {"cursor": "other"}):
            other = [*lines[:at], {**line, **change}, *lines[at + 1:]]
            self.assertNotEqual("", ledger_check(got, other, self.dir), change)
        self.assertNotEqual("", ledger_check(got, lines[:at] + lines[at + 1:], self.dir))
        self.assertEqual("", ledger_check(got, lines, self.dir))

    @harness.labels("repeats")
    def test_several(self):
        """A mixture, one dataset, and a cursor whose tag says no order, which does not keep the others from being proved."""
        sizes = {"flat": 30, "rows": 7, "more": 11}
        with self.cluster(nodes=2, devices=4) as c:
            for name, n in sizes.items():
                np.save(self.path(f"{name}.npy"), np.arange(n * 4, dtype="uint16").reshape(n, 4))
                c.ptcctl("dataset", "add", name, self.path(f"{name}.npy"))
            mixed = {"seed": self.seed, "global_batch": 10, "micro_batch": 3, "mix": [
                {"dataset": "flat", "weight": 5, "block": 8}, {"dataset": "rows", "weight": 2, "shuffle": False},
                {"dataset": "more", "weight": 5}]}
            one = {"dataset": "flat", "seed": 1, "global_batch": 4, "micro_batch": 2}
            job = live.Job(c, self.dir, sleep=0.02, run={"data": {"mixed": mixed, "held": one}})
            job.run("dp=2")
            for config in ("dp=3", "tp=2,dp=1"):
                job.wait_step(job.step() + 12)
                job.resize(config)
            job.wait_step(job.step() + 12)
            job.do("stop")
            self.check_several(c, job, sizes)

    def check_several(self, c, job, sizes):
        got, lines = said_by(self, c, job, code=1)
        found = {x["cursor"]: x for x in got["cursors"]}
        self.assertEqual({"mixed": True, "held": True, "data": False}, {k: x["exactly_once"] for k, x in found.items()})
        self.assertIn('tag "n=100" does not say its order', *found["data"]["problems"])
        self.assertEqual({"mixed", "held"}, {x["cursor"] for x in lines})
        self.assertEqual((sum(sizes.values()), got["step"] * 10, [2, 3, 1]),
                         (found["mixed"]["samples"], found["mixed"]["position"], [e["dp"] for e in found["mixed"]["generations"]]))
        epochs = {p["dataset"]: p["epochs_finished"] for p in found["mixed"]["parts"]}
        self.assertGreater(min(epochs.values()), 2)
        self.assertEqual(list(sizes), list(epochs))
        self.assertIn("cursor data: ", ledger_check(got, lines, self.dir))
        both = {**got, "cursors": [found["mixed"], found["held"]]}
        self.assertEqual("", ledger_check(both, lines, self.dir))
        for change in ({"weight": 4}, {"block": 0}, {"epochs_finished": epochs["flat"] + 1}):
            first, *others = found["mixed"]["parts"]
            wrong = {**found["mixed"], "parts": [{**first, **change}, *others]}
            self.assertIn("cursor mixed: ", ledger_check({**got, "cursors": [wrong, found["held"]]}, lines, self.dir), change)
        p = c.ptcctl("dataset", "proof", job.name, check=False)
        self.assertEqual(1, p.returncode)
        self.assertIn('tag "n=100" does not say its order', p.stderr)
        self.assertRegex(p.stdout, r"(?m)^cursor mixed: 48 samples of 3 datasets, seed \d+$")
        self.assertRegex(p.stdout, r"(?m)^dataset rows: weight 2, 7 samples, not shuffled: \d+ epochs finished, each sample once in each")
        self.assertRegex(p.stdout, r"(?m)^cursor held: 30 samples, seed 1$")
        for cursor, code in (("mixed", 0), ("held", 0), ("data", 1)):
            p = c.ptcctl("dataset", "proof", job.name, "--cursor", cursor, check=False)
            self.assertEqual(1, p.returncode) # that no rank set a cursor shows nothing of what it had
            if code == 0:
                self.assertIn(f"cursor {cursor}: no rank said that it had the samples", p.stderr)
            self.assertEqual(code, c.ptcctl("dataset", "proof", job.name, "--cursor", cursor, "--counted", check=False).returncode)
        self.assertEqual(("counts", True), tuple(found["mixed"][k] for k in ("said_by", "compared")))
        # what the job pinned is known also when the dataset is not there any more
        c.ptcctl("dataset", "remove", "rows")
        self.assertEqual(0, c.ptcctl("dataset", "proof", job.name, "--cursor", "mixed", "--counted").returncode)

    @unittest.skipUnless(LONG, "set PTC_TEST_LONG=1; PyTorch takes its time to be imported")
    @harness.needs(modules=("torch", "megatron"))
    def test_megatron(self):
        """Ranks whose loader is Megatron's own sampler, begun in each generation at the consumed samples that the cursor counts:
        what each rank had is what the order, not shuffled, says, through dp 2, 3, 1 and 6."""
        n, g, mbs = 50, 12, 2
        np.save(self.path("rows.npy"), np.arange(2 * n, dtype="uint16").reshape(n, 2))
        with self.cluster(nodes=2, devices=3) as c:
            c.ptcctl("dataset", "add", "rows", self.path("rows.npy"))
            job = live.Job(c, self.dir, sleep=0.05, data=f"{n},0,{g},{mbs}", megatron=1, run={"data": {"data": {
                "dataset": "rows", "shuffle": "false", "global_batch": g, "micro_batch": mbs}}})
            job.run("dp=2")
            for config in ("dp=3", "tp=2,dp=1", "dp=6"):
                job.wait_step(job.step() + 7)
                job.resize(config)
            job.wait_step(job.step() + 7)
            job.do("stop")
            got, _, cursor = proved(self, c, job, counted=True)
        self.assertEqual((True, got["step"] * g, [2, 3, 1, 6]),
                         (cursor["sequential"], cursor["position"], [e["dp"] for e in cursor["generations"]]))
        self.assertGreater(cursor["epochs_finished"], 3)

    def test_not_shown(self):
        """What cannot be proved: a cursor whose tag says nothing of an order; another order than that of the job's data; and data that
        no rank opened, of which ptcd counted what it delivered at most. Each is said."""
        with self.cluster(nodes=1, devices=2) as c:
            job = live.Job(c, self.dir)
            job.run("dp=1")
            job.wait_step(5)
            job.do("stop")
            p = c.ptcctl("dataset", "proof", job.name, check=False)
            self.assertEqual(1, p.returncode)
            self.assertIn('tag "n=100" does not say its order', p.stderr)
            np.save(self.path("rows.npy"), np.arange(24, dtype="uint16").reshape(12, 2))
            c.ptcctl("dataset", "add", "rows", self.path("rows.npy"))
            rows = {"dataset": "rows", "seed": 7, "global_batch": 4, "micro_batch": 2}
            job = live.Job(c, self.dir, name="other", data="50,7,4,2", run={"data": {"data": rows, "unread": rows}})
            job.run("dp=1")
            job.wait_step(5)
            job.do("stop")
            got, _ = said_by(self, c, job, code=1)
            found = {x["cursor"]: x for x in got["cursors"]}
            said = 'ranks consumed by "n=50,seed=7'
            self.assertFalse(found["data"]["exactly_once"])
            self.assertIn(said, found["data"]["problems"][0])
            self.assertEqual("counts", found["unread"]["said_by"])
            p = c.ptcctl("dataset", "proof", job.name, check=False)
            self.assertEqual(1, p.returncode)
            self.assertIn(said, p.stderr)
            self.assertIn("the job's data has 12 samples of 1 dataset, seed 7", p.stderr)
            self.assertIn("cursor unread: no rank said that it had the samples", p.stderr)
            self.assertIn("not that they were read", p.stdout)
