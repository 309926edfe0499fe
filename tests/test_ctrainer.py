# SPDX-License-Identifier: Apache-2.0
"""examples/c-trainer under a cluster: whatever its parallelism does meanwhile, its losses and samples are those of one
process that has never heard of ptcd."""
import glob
import json
import os
import subprocess

import harness
import live

PROGRAM = harness.binary("examples/c-trainer/c-trainer")
TOLERANCE = 1e-12  # relative: sums are made in another order
BATCH = "global_batch=24,micro_batch=5"  # 24 samples in slots of 5: no dp but 1 divides them, so some slots are padding


class Trainer(live.Job):
    """A job whose ranks run the C trainer; each process appends its lines to a file of its own."""

    def __init__(self, c, directory, mode, steps, sleep_ms, script='exec "$@" >>"$LINES/$$.jsonl"', run=None):
        self.c, self.name, self.dir, self.steps = c, "ridge", directory, steps
        self.logs = os.path.join(directory, "lines")
        os.makedirs(self.logs)
        os.chmod(self.logs, 0o777)
        self.argv = [PROGRAM, "--steps", str(steps), "--sleep-ms", str(sleep_ms)]
        spec = {"version": 1, "name": self.name, "mode": mode,
                "run": {"argv": ["/bin/sh", "-c", script, "sh", *self.argv], "env": {"LINES": self.logs}, **(run or {})}}
        self.yaml = os.path.join(directory, "ridge.yaml")
        with open(self.yaml, "w") as f:
            json.dump(spec, f)

    def lines(self):
        out = []
        for path in glob.glob(os.path.join(self.logs, "*.jsonl")):
            with open(path) as f:
                out += [json.loads(line) for line in f if line.endswith("\n")]
        return out

    def reference(self, **options):
        argv = [PROGRAM, "--alone", "--steps", str(self.steps), "--global-batch", "24", "--micro-batch", "5"]
        for key, value in options.items():
            argv += [f"--{key}", str(value)]
        r = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, text=True, timeout=300)
        return [json.loads(line) for line in r.stdout.splitlines()]


def differences(lines, reference):
    """What of a run is not as in the reference: (step, what)."""
    found, steps = [], {}
    for line in lines:
        steps.setdefault(line["step"], []).append(line)
    for want in reference:
        of = steps.pop(want["step"], [])
        if len({(line["generation"], line["incarnation"]) for line in of}) != 1:
            found.append((want["step"], f"done {len(of)} times, by ranks of different generations or none"))
            continue
        for key in ("loss", "average"):
            if any(abs(line[key] - want[key]) > TOLERANCE * abs(want[key]) for line in of):
                found.append((want["step"], f"{key} {[line[key] for line in of]}, not {want[key]}"))
        samples = sorted(s for line in of if line["tp_rank"] == 0 for s in line["samples"])
        if samples != sorted(want["samples"]):
            found.append((want["step"], "other samples"))
    return found + [(step, "beyond the end") for step in steps]


def counted(lines, steps):
    """Of a run that went back to snapshots: of each step what those ranks said that did it last."""
    newest = {}
    for line in lines:
        at = line["generation"], line["incarnation"]
        newest[line["step"]] = max(at, newest.get(line["step"], at))
    return [line for line in lines if newest[line["step"]] == (line["generation"], line["incarnation"]) and line["step"] < steps]


class As:
    """The cluster, used by somebody else."""

    def __init__(self, c, uid):
        self.c, self.prefix = c, ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]

    def __getattr__(self, name):
        return getattr(self.c, name)

    def ptcctl(self, *args, **kw):
        return self.c.ptcctl(*args, prefix=self.prefix, **kw)


class CTrainer(harness.Case):
    def resizes(self, mode):
        with self.cluster(nodes=2, devices=2) as c:
            job = Trainer(c, self.dir, mode, steps=1 << 40, sleep_ms=2)
            job.run(f"tp=2,dp=2,{BATCH}")
            at = 0
            for config in ("tp=3", "dp=4", "tp=1", "tp=2,dp=2"):
                job.wait_step(at + 20)
                at = job.resize(f"{config},{BATCH}")["step"]
            job.wait_step(at + 100)
            job.do("stop")
            job.steps = job.wait_run("stopped")["step"]
            reference = job.reference()
            self.assertLess(reference[-1]["loss"], 0.1 * reference[0]["loss"])
            self.assertEqual([], differences(job.lines(), reference))
            # A reference that is wrong from the first step on, by less than anybody would see: found.
            self.assertGreater(len(differences(job.lines(), job.reference(rate=0.05 * (1 + 1e-7)))), job.steps / 2)

    @harness.labels("threads")
    def test_finishes(self):
        with self.cluster(nodes=2, devices=2) as c:
            job = Trainer(c, self.dir, "restart", steps=60, sleep_ms=0)
            job.run(f"tp=2,dp=2,{BATCH}")
            self.assertEqual(60, job.wait_run("done")["step"])
            self.assertEqual([], differences(job.lines(), job.reference()))

    @harness.labels("threads")
    def test_log_is_bounded(self):
        """What ranks write is kept up to log_bytes, the newest of it, whole lines for who asks."""
        with self.cluster(nodes=1, devices=1) as c:
            job = Trainer(c, self.dir, "restart", steps=3000, sleep_ms=0, script='exec "$@"', run={"log_bytes": "64KiB"})
            job.run(f"dp=1,{BATCH}")
            job.wait_run("done")
            kept = glob.glob(os.path.join(c.nodes["n0"].dir, "run", "workers", "*", "processes", "*", "log"))
            self.assertEqual(1, len(kept), kept)
            of = os.stat(kept[0])
            self.assertGreater(of.st_size, 256 << 10, "too little was written to see it cut")
            self.assertLessEqual(of.st_blocks * 512, 128 << 10)
            lines = c.ptcctl("logs", job.name, "--lines", "5").stdout.splitlines()
            self.assertIn('"step":2999', lines[-1].replace(" ", ""))
            self.assertEqual(5, len(lines))

    @harness.skip_unless_root
    @harness.labels("threads")
    def test_somebody_elses(self):
        """Ranks are processes of the job's owner, in his groups, and find their daemon; his job is his to resize."""
        uid = 65534 # nobody, who is in the user database, of the group of the same number
        with self.cluster(nodes=2, devices=2) as c:
            job = Trainer(As(c, uid), self.dir, "restart", steps=1 << 40, sleep_ms=2)
            os.chmod(job.yaml, 0o644)
            job.run(f"tp=2,dp=2,{BATCH}")
            for rank in job.status()["run"]["ranks"]:
                with open(f"/proc/{rank['pid']}/status") as f:
                    of = dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
                self.assertEqual([str(uid)] * 4, of["Uid"].split())
                self.assertEqual([str(uid)] * 4, of["Gid"].split())
                self.assertIn(of["Groups"].strip(), ("", str(uid)))
                self.assertEqual(0, int(of["CapEff"], 16))
            job.wait_step(20)
            for name in c.nodes:
                c.nodes[name].kill()
                c.restart(name)
            at = job.resize(f"tp=3,{BATCH}")["step"]
            job.wait_step(at + 20)
            self.assertIn(f"uid {uid}", job.do("events").stdout)
            job.do("stop")
            job.steps = job.wait_run("stopped")["step"]
            self.assertEqual([], differences(job.lines(), job.reference()))

    @harness.labels("threads")
    def test_resizes_restart(self):
        self.resizes("restart")

    @harness.labels("threads")
    def test_resizes_rebuild(self):
        self.resizes("rebuild")

    @harness.labels("repeats")
    def test_switch_after_switch(self):
        """Nothing grows from the fifth on: memory, descriptors, processes, files."""
        switches = harness.size(15, 25, 50)
        with self.cluster(nodes=2, devices=2, env={node: harness.measured_env() for node in ("n0", "n1")}) as c:
            job = Trainer(c, self.dir, "rebuild", steps=1 << 40, sleep_ms=1)
            job.run(f"tp=2,dp=2,{BATCH}")
            at, rows = 0, []
            for i in range(switches):
                job.wait_step(at + 2)
                at = job.resize(f"{('tp=4', 'dp=3', 'tp=2', 'tp=1', 'tp=2,dp=2')[i % 5]},{BATCH}")["step"]
                if i % 5 == 4:
                    rows.append(self.measure(c, job))
                    print(f"after {i + 1} switches: {rows[-1]}", flush=True)
            for key in rows[0]:
                allowed = {"ptcd fds": 4, "ptcd threads": 8, "ptcd KiB": 24 << 10, "rank fds": 2, "rank threads": 2,
                           "rank KiB": 24 << 10 if harness.SANITIZED else 1 << 10}.get(key, 0)
                self.assertLessEqual(rows[-1][key] - rows[0][key], allowed, f"{key} grows: {[r[key] for r in rows]}")
            job.do("stop")
            stopped = job.wait_run("stopped")["step"]
            job.steps = stopped
            self.assertEqual([], differences(job.lines(), job.reference()))

    @staticmethod
    def measure(c, job):
        """Of daemons and ranks, and what the job has on the daemons' disks."""
        files = sum(len(names) for node in c.nodes.values() for d, _, names in os.walk(node.dir) if os.path.basename(d) == "groups")
        return {**live.usage(c, [r["pid"] for r in job.status()["run"]["ranks"]]), "files": files}


if __name__ == "__main__":
    harness.unittest.main()
