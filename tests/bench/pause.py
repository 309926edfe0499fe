# SPDX-License-Identifier: Apache-2.0
"""Scenario `pause` of ptc-bench: how long training stands still where it goes from 8 ranks to 4 and back, and what it loses by it.
Two trainers: the GPT of examples/gpt, which needs an interpreter with torch, and beside it torchrun started again from a checkpoint
(pause_peer.py); and examples/c-trainer, whose ranks start, build and step in milliseconds, so that what is left is ptc's."""
import json
import os
import statistics
import subprocess
import time

from cluster import Cluster, ClusterError, MARK, ROOT, wait_for

TRAINERS = ("gpt", "c")
SHAPES = {"gpt": ("tp=2,pp=2,dp=2", "tp=4"), "c": ("tp=2,dp=4", "tp=4")} # the model of c-trainer has one layer
C_STEP_MS = 20 # that a rank of c-trainer sleeps in each step
SETTLE = 12 # steps between two switches: the rate that lost time is measured by comes from them
GPT = os.path.join(ROOT, "examples", "gpt")


class Trained:
    """One job on four daemons of two devices."""

    def __init__(self, args, work, trainer, build):
        self.cluster = Cluster.create(os.path.join(work, f"{trainer}-{build}"), nodes=4, devices=2, near=False, transport="unix",
                                      store=args.store, build=args.build)
        self.yaml, self.config = os.path.join(work, f"{trainer}-{build}.yaml"), SHAPES[trainer][0]
        env = {"PYTHONPATH": os.path.join(ROOT, "client", "python"), "OMP_NUM_THREADS": "1", MARK: self.cluster.options["id"],
               "PTC_LIBRARY": os.path.join(args.build, "client", "lib", "libptc.so.1"),
               "TORCHINDUCTOR_CACHE_DIR": os.path.join(work, "inductor")}
        argv = {"gpt": [args.python, "-B", "-W", "ignore", os.path.join(GPT, "train.py"), "--steps", "1000000", "--dtype", "float64"],
                "c": [os.path.join(args.build, "examples", "c-trainer", "c-trainer"), "--steps", "100000000", "--sleep-ms",
                      str(C_STEP_MS)]}[trainer]
        with open(self.yaml, "w") as f:
            json.dump({"version": 1, "name": "bench", "mode": "restart", "build": build,
                       "run": {"argv": argv, "cwd": GPT if trainer == "gpt" else work, "env": env}}, f)

    def step(self):
        return self.cluster.json("status", "bench")["jobs"][0]["run"].get("step", -1)

    def wait_step(self, step):
        wait_for(lambda: self.step() >= step, 600, f"step {step}", 0.05)

    def start(self):
        self.cluster.up(timeout_s=60)
        self.cluster.ptcctl("run", "-f", self.yaml, "--config", self.config, "--wait", timeout_s=600)
        self.wait_step(3)

    def steps_s(self):
        """(a step that ranks are in, how many of them they make in a second)"""
        first, began = self.step(), time.monotonic()
        self.wait_step(first + SETTLE)
        now = self.step()
        return now, (now - first) / (time.monotonic() - began)

    def resize(self, config):
        """What a switch takes; `lost` is training time that it cost: the pause, and what new ranks slowed the old ones down by."""
        first, rate = self.steps_s()
        began = time.monotonic()
        r = json.loads(self.cluster.ptcctl("resize", "bench", "--config", config, "--wait", "--format", "json", timeout_s=900).stdout)
        took, done = time.monotonic() - began, r["step"] + 1 - first
        pause = {name[:-3]: ms / 1e3 for name, ms in r["pause"].items()}
        told, slowed, built = pause.pop("lost", None), pause.pop("slowed", None), r.get("built_ahead_ms", 0) / 1e3
        return {"seconds": pause["total"], "lost": took - done / rate, "lost_told": told, "built_ahead": built, "slowed": slowed,
                "slowed_share": None if slowed is None or not built else slowed / built, "step": 1 / rate,
                "step_after": 1 / self.steps_s()[1], "pause": pause}


def torchrun(args, work, config, steps, *more):
    degrees = dict(d.split("=") for d in config.split(","))
    world, argv = 1, []
    for name in ("tp", "pp", "dp"):
        world *= int(degrees.get(name, 1))
        argv += [f"--{name}", degrees.get(name, "1")]
    times = os.path.join(work, "times")
    # torchrun leaves its folders of logs where temporary files are
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": os.path.join(work, "inductor"), "TMPDIR": work}
    r = subprocess.run([args.python, "-B", "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", str(world),
                        os.path.join(ROOT, "tests", "bench", "pause_peer.py"), *argv, "--times", times, "--steps", str(steps), *more],
                       check=False, env=env, cwd=work, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if r.returncode:
        raise ClusterError(f"torchrun at {config} ended with {r.returncode}: {r.stderr[-2000:]}")
    with open(times) as f:
        return json.loads(f.read().splitlines()[-1])


def restart_round(args, work, i, config, other):
    """From the end of the last step under one shape to the end of the first under the other."""
    checkpoint = os.path.join(work, f"checkpoint-{i}")
    before = torchrun(args, work, config, 3, "--save", checkpoint)
    after = torchrun(args, work, other, 2, "--load", checkpoint)
    return {"seconds": after["steps"][0] - before["steps"][-1], "saved": before["saved"] - before["steps"][-1],
            "step_after": after["steps"][1] - after["steps"][0]}


def median(values):
    """Of those that are known."""
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def idle(r):
    """What a pause takes beside its last part, which is one step under the new shape: nobody can save that."""
    return max(r["seconds"] - r["step_after"], 0.001)


def summary(what, rounds, **about):
    each = {k: median(r[k] for r in rounds) for k in rounds[0] if k != "pause"}
    if "pause" in rounds[0]:
        each["pause"] = {k: statistics.median(r["pause"][k] for r in rounds) for k in rounds[0]["pause"]}
    return {"scenario": "pause", "what": what, "rounds": len(rounds), **about, **each, "each": rounds}


def bench_trained(args, work, trainer, build, complain):
    shapes = dict(zip(("8 to 4", "4 to 8"), reversed(SHAPES[trainer])))
    trained, rounds = Trained(args, work, trainer, build), {name: [] for name in shapes}
    try:
        trained.start()
        for _ in range(args.rounds):
            for name, config in shapes.items():
                rounds[name].append(trained.resize(config))
    finally:
        for complaint in trained.cluster.down():
            complain(complaint)
    for name, of in rounds.items():
        yield name, summary(f"{trainer}, {name}, build: {build}", of)


def bench_torchrun(args, work):
    there, back = SHAPES["gpt"]
    for name, config, other in (("8 to 4", there, back), ("4 to 8", back, there)):
        rounds = [restart_round(args, work, f"{name.split()[0]}-{r}", config, other) for r in range(args.rounds)]
        yield name, summary(f"gpt, {name}, torchrun + DCP", rounds)


def bench_pause(args, work, complain):
    if "c" in args.trainers:
        for build in ("ahead", "after"):
            for _, s in bench_trained(args, work, "c", build, complain):
                yield s
    if "gpt" not in args.trainers:
        return
    if subprocess.run([args.python, "-c", "import torch"], check=False, capture_output=True).returncode:
        complain(f"the GPT of pause is left out: {args.python} has no torch (see --python)")
        return
    peers = {}
    for name, s in bench_torchrun(args, work):
        peers[name] = s
        yield s
    for build in ("ahead", "after"):
        for name, s in bench_trained(args, work, "gpt", build, complain):
            peer = peers[name]
            yield {**s, "ratio": s["seconds"] / peer["seconds"], "ratio_without_step": idle(s) / idle(peer)}


# What the names of the summary are called in the goal of a pause: one step, the state, and 1 s for all else.
PARTS = {"stop": ("stop",), "state": ("copy", "commit", "move", "restore"), "end": ("end",), "build": ("build",),
         "first step": ("first_step",)}


def line(r):
    if "pause" not in r:
        return f"  {r['what']}: {r['seconds']:.2f} s, of which {r['saved']:.2f} to save, {r['step_after']:.2f} for a step after"
    parts = ", ".join(f"{part} {sum(r['pause'].get(name, 0) for name in names) * 1e3:.0f}" for part, names in PARTS.items())
    told = f" ({r['lost_told']:.2f} by its summary)" if r["lost_told"] is not None else ""
    beside = (f" (1/{1 / r['ratio']:.0f} of torchrun's; 1/{1 / r['ratio_without_step']:.0f} without a step after, {idle(r):.2f} s)"
              if "ratio" in r else "")
    ahead = f"; built ahead {r['built_ahead']:.1f} s" if r["built_ahead"] else ""
    if r["slowed_share"] is not None:
        ahead += f", in which training was slowed by {100 * r['slowed_share']:.0f} %"
    return (f"  {r['what']}: paused {r['seconds']:.2f} s{beside}, ms: {parts}; a step takes {r['step'] * 1e3:.0f} ms before, {r['step_after'] * 1e3:.0f} after{ahead}; "
            f"training time lost {r['lost']:.2f} s{told}")
