# SPDX-License-Identifier: Apache-2.0
"""What scripts/quickstart shows, once everything is built: a GPT in PyTorch trains on eight ranks of four daemons, and is
resized with ptcctl while it trains; then its losses and samples are compared with a run of one process that never heard
of ptc. Every step is a command that a person could type; they are printed. Failure: the command, its message and the
last lines of the logs; the cluster is taken down in any case."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import curve
import picture
from cluster import ROOT, Cluster, ClusterError, cgroups_of, end_on_signals, wait_for

JOB = "gpt"
GPT = os.path.join(ROOT, "examples", "gpt")
ORDER = [8, 4, 6, 8]
TOLERANCE = {"float32": 2e-6, "float64": 1e-12}


def say(text=""):
    print(text, flush=True)


class Show:
    """A training that something happens to; what that is, Resized and scripts/lib/quickstart_failure.py say."""
    gpus = {}
    extra = () # options of the program
    picture = ""

    def __init__(self, cluster, directory, options):
        self.c, self.dir, self.o = cluster, directory, options
        self.log = os.path.join(directory, "steps")
        self.reference = os.path.join(directory, "reference")
        os.makedirs(self.log)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = self.inductor = os.path.join(directory, "inductor") # PyTorch leaves it behind
        self.arguments = ["--steps", str(options.steps), "--dtype", options.dtype, "--records", str(options.records),
                          "--global-batch", str(options.global_batch), "--micro-batch", str(options.micro_batch), *self.extra]

    def ptcctl(self, *args, **kw):
        say(f"$ ptcctl {' '.join(args)}")
        return self.c.ptcctl(*args, timeout_s=240, **kw)

    def uninterrupted(self):
        """One process, ptc not imported."""
        argv = [sys.executable, "-B", os.path.join(GPT, "train_plain.py"), *self.arguments, "--out", self.reference]
        say(f"$ python examples/gpt/train_plain.py {' '.join(self.arguments)}")
        start = time.monotonic()
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
        say(f"  one process, {self.o.steps} steps in {time.monotonic() - start:.0f} s")

    def job(self):
        return {"version": 1, "name": JOB, "mode": self.o.mode, "build": self.o.build, "gpus": self.gpus,
                "run": {"argv": [sys.executable, "-B", os.path.join(GPT, "train.py"), *self.arguments, "--out", self.log],
                        "cwd": GPT, "env": {"PYTHONPATH": os.path.join(ROOT, "client", "python"), "OMP_NUM_THREADS": "1",
                                            "TORCHINDUCTOR_CACHE_DIR": self.inductor,
                                            "PTC_LIBRARY": os.path.join(self.c.options["build"], "client", "lib", "libptc.so.1")}}}

    def run(self, gpus):
        path = os.path.join(self.dir, "job.yaml")
        with open(path, "w") as f:
            json.dump(self.job(), f, indent=1)  # JSON is YAML
        self.ptcctl("run", "-f", path, "--gpus", str(gpus), "--wait")

    def status(self):
        return self.c.json("status", JOB)["jobs"][0]

    def wait_step(self, step):
        def there():
            s = self.status()
            if s["run"]["state"] in ("failed", "stopped"):
                raise ClusterError(f"the job has {s['run']['state']}: {s['run'].get('text', '')}\n"
                                   + self.c.ptcctl("events", JOB).stdout)
            return s["run"]["state"] == "done" or s["run"].get("step", -1) >= step

        wait_for(there, 240, f"step {step}", 0.1)

    def wait_end(self):
        wait_for(lambda: self.status()["run"]["state"] == "done", 240, "the end of the training", 0.2)
        jobs = self.c.jobs_with_ranks()
        wait_for(lambda: not cgroups_of(jobs), 60, "the end of every rank", 0.1)

    def train(self):
        """Runs the job until its end; while it trains, that happens to it which is to be shown."""
        raise NotImplementedError

    def page(self, reference, found):
        raise NotImplementedError

    def compare(self):
        reference, found = curve.read(self.reference), curve.read(self.log)
        try:
            worst = curve.difference(reference, found)
            curve.check_samples(found, self.o.records, self.o.global_batch)
        except ValueError as e:
            raise ClusterError(f"beside the uninterrupted run: {e}") from e
        if worst > TOLERANCE[self.o.dtype]:
            raise ClusterError(f"losses are {worst:.1e} apart; rounding explains {TOLERANCE[self.o.dtype]:g}")
        first, last = reference[0]["loss"], reference[self.o.steps - 1]["loss"]
        if last > 0.7 * first:
            raise ClusterError(f"the loss went from {first:.3f} to {last:.3f} only: this run shows nothing")
        say(f"\n{self.o.steps} steps, each with the same {self.o.global_batch} samples and learning rate as the uninterrupted run's, each "
            f"sample once an epoch ({self.o.steps * self.o.global_batch / self.o.records:.1f} epochs)")
        say(f"losses at most {worst:.1e} apart, where {TOLERANCE[self.o.dtype]:g} is rounding ({self.o.dtype}); the loss fell from {first:.3f} "
            f"to {last:.3f}")
        with open(self.picture, "w", encoding="utf-8") as f:
            f.write(self.page(reference, found))
        say(f"loss curves and pauses as a picture: {self.picture}")


class Resized(Show):
    gpus = {8: "tp=2,pp=2,dp=2", 4: "tp=4", 6: "tp=2,dp=3"}
    picture = os.path.join(ROOT, "build", "quickstart.html")

    def train(self):
        self.run(ORDER[0])
        last, self.summaries = 0, []
        for gpus in ORDER[1:]:
            self.wait_step(last + 11)
            r = self.ptcctl("resize", "--gpus", str(gpus), "--wait", "--format", "json")
            s = json.loads(r.stdout)
            if "pause" not in s:
                raise ClusterError(f"the training was over before it was resized to {gpus}: it needs more --steps")
            self.summaries.append(s)
            last = s["step"]
            say(f"  {s['from']} -> {s['to']} at step {s['step']}, training stood still for "
                f"{s['pause']['total_ms'] / 1000:.2f} s")
        self.wait_end()
        self.table()

    def table(self):
        say("\nEach switch:")
        for s in self.summaries:
            t = s["plan"]["totals"]
            say(f"  {s['from']:>14} -> {s['to']:<14} step {s['step']:<4} {t['between_nodes'] / 1e6:7.1f} MB between nodes (least possible: "
                f"{'' if t['bound_exact'] else '>= '}{t['bound_any_mapping'] / 1e6:.1f}), paused {s['pause']['total_ms'] / 1000:.2f} s")
            say("                 of that, ms: " + ", ".join(f"{name[:-3].replace('_', ' ')} {ms:.0f}" for name, ms in s["pause"].items()
                                                            if name != "total_ms"))

    def page(self, reference, found):
        return picture.page(reference, found, self.summaries, TOLERANCE[self.o.dtype])


def arguments(about):
    p = argparse.ArgumentParser(prog="scripts/quickstart", description=about)
    p.add_argument("--transport", choices=["tls", "unix", "insecure"], default="tls")
    p.add_argument("--mode", choices=["rebuild", "restart"], default="rebuild")
    p.add_argument("--build", choices=["ahead", "after"], default="after", help="when new ranks build; ahead means --mode restart (docs/job.md)")
    p.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    p.add_argument("--steps", type=int, help="(72; 300 where training goes on while new ranks start: a resize with --mode restart)")
    p.add_argument("--records", type=int, default=510)
    p.add_argument("--global-batch", type=int, default=20)
    p.add_argument("--micro-batch", type=int, default=5)
    return p


def perform(kind, options):
    """A Show of that kind, with a cluster of its own. Returns the exit code."""
    end_on_signals()
    directory = tempfile.mkdtemp(prefix="ptc-quickstart-")
    os.chmod(directory, 0o755)
    start, failed = time.monotonic(), True
    cluster = Cluster.create(os.path.join(directory, "cluster"), nodes=4, devices=2, transport=options.transport,
                             build=os.path.join(ROOT, "build", "release"))
    try:
        show = kind(cluster, directory, options)
        show.uninterrupted()
        say(f"starting four daemons of two devices each ({options.transport})")
        cluster.up()
        show.train()
        show.compare()
        failed = False
    except (ClusterError, subprocess.SubprocessError, KeyError) as e:
        print(f"quickstart: {e}", file=sys.stderr)
        for node in cluster.nodes.values():
            print(f"---- {node.log_file}\n{node.log_tail(8)}", file=sys.stderr)
    finally:
        complaints = cluster.down()
        shutil.rmtree(directory, ignore_errors=True)
    for line in complaints:
        print(f"quickstart: {line}", file=sys.stderr)
    if failed or complaints:
        return 1
    say(f"done in {time.monotonic() - start:.0f} s")
    return 0


def main():
    options = arguments(__doc__).parse_args()
    if options.build == "ahead":
        options.mode = "restart"
    options.steps = options.steps or {"rebuild": 72, "restart": 300}[options.mode]
    return perform(Resized, options)


if __name__ == "__main__":
    sys.exit(main())
