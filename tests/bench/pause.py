# SPDX-License-Identifier: Apache-2.0
"""Scenario `pause` of ptc-bench: how long the GPT of examples/gpt stands still where it goes from 8 ranks to 4 and back, and what
training loses by it; beside it, torchrun started again from a checkpoint (pause_peer.py). Needs an interpreter with torch."""
import json
import os
import statistics
import subprocess
import time

from cluster import Cluster, ClusterError, MARK, ROOT, wait_for

FROM, TO = "tp=2,pp=2,dp=2", "tp=4"
SETTLE = 12 # steps between two switches: the rate that lost time is measured by comes from them
GPT = os.path.join(ROOT, "examples", "gpt")


class Gpt:
    """One job on four daemons of two devices."""

    def __init__(self, args, work, build):
        self.cluster = Cluster.create(os.path.join(work, f"c-{build}"), nodes=4, devices=2, near=False, transport="unix", store=args.store,
                                      build=args.build)
        self.yaml = os.path.join(work, f"{build}.yaml")
        env = {"PYTHONPATH": os.path.join(ROOT, "client", "python"), "OMP_NUM_THREADS": "1", MARK: self.cluster.options["id"],
               "PTC_LIBRARY": os.path.join(args.build, "client", "lib", "libptc.so.1"),
               "TORCHINDUCTOR_CACHE_DIR": os.path.join(work, "inductor")}
        argv = [args.python, "-B", "-W", "ignore", os.path.join(GPT, "train.py"), "--steps", "1000000", "--dtype", "float64"]
        with open(self.yaml, "w") as f:
            json.dump({"version": 1, "name": "bench", "mode": "restart", "build": build,
                       "run": {"argv": argv, "cwd": GPT, "env": env}}, f)

    def step(self):
        return self.cluster.json("status", "bench")["jobs"][0]["run"].get("step", -1)

    def wait_step(self, step):
        wait_for(lambda: self.step() >= step, 600, f"step {step}", 0.05)

    def start(self):
        self.cluster.up(timeout_s=60)
        self.cluster.ptcctl("run", "-f", self.yaml, "--config", FROM, "--wait", timeout_s=600)
        self.wait_step(3)

    def resize(self, config):
        """What a switch takes; `lost` is training time that it cost: the pause, and what new ranks slowed the old ones down by."""
        first, began = self.step(), time.monotonic()
        self.wait_step(first + SETTLE)
        first, rate = self.step(), (self.step() - first) / (time.monotonic() - began)
        began = time.monotonic()
        r = json.loads(self.cluster.ptcctl("resize", "bench", "--config", config, "--wait", "--format", "json", timeout_s=900).stdout)
        took, done = time.monotonic() - began, r["step"] + 1 - first
        pause = {name[:-3]: ms / 1e3 for name, ms in r["pause"].items()}
        told, _ = pause.pop("lost", None), pause.pop("slowed", None)
        return {"seconds": pause["total"], "lost": took - done / rate, "lost_told": told, "built_ahead": r.get("built_ahead_ms", 0) / 1e3,
                "step": 1 / rate, "pause": pause}


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
    """From the last step under one shape to the first under the other."""
    checkpoint = os.path.join(work, f"checkpoint-{i}")
    before = torchrun(args, work, config, 3, "--save", checkpoint)
    after = torchrun(args, work, other, 2, "--load", checkpoint)
    return {"seconds": after["steps"][0] - before["steps"][-1], "saved": before["saved"] - before["steps"][-1]}


def summary(what, rounds, **about):
    each = {k: statistics.median(r[k] for r in rounds) for k in rounds[0] if k != "pause"}
    if "pause" in rounds[0]:
        each["pause"] = {k: statistics.median(r["pause"][k] for r in rounds) for k in rounds[0]["pause"]}
    return {"scenario": "pause", "what": what, "rounds": len(rounds), **about, **each, "each": rounds}


def bench_pause(args, work, complain):
    shapes, peers = {"8 to 4": (FROM, TO), "4 to 8": (TO, FROM)}, {}
    if subprocess.run([args.python, "-c", "import torch"], check=False, capture_output=True).returncode:
        complain(f"pause is left out: {args.python} has no torch (see --python)")
        return
    for i, (name, (config, other)) in enumerate(shapes.items()):
        rounds = [restart_round(args, work, f"{i}-{r}", config, other) for r in range(args.rounds)]
        peers[name] = statistics.median(r["seconds"] for r in rounds)
        yield summary(f"{name}, torchrun + DCP", rounds)
    for build in ("ahead", "after"):
        gpt, rounds = Gpt(args, work, build), {name: [] for name in shapes}
        try:
            gpt.start()
            for _ in range(args.rounds):
                for name, (_, other) in shapes.items():
                    rounds[name].append(gpt.resize(other))
        finally:
            for complaint in gpt.cluster.down():
                complain(complaint)
        for name, of in rounds.items():
            s = summary(f"{name}, build: {build}", of)
            yield {**s, "ratio": s["seconds"] / peers[name]}


def line(r):
    parts = "".join(f"{name} {s * 1e3:.0f}, " for name, s in r.get("pause", {}).items() if name != "total")
    if not parts:
        return f"  {r['what']}: {r['seconds']:.2f} s without a step, of which {r['saved']:.2f} to save"
    told = f" ({r['lost_told']:.2f} by its summary)" if r.get("lost_told") is not None else ""
    return (f"  {r['what']}: paused {r['seconds']:.2f} s (1/{1 / r['ratio']:.0f} of torchrun's); a step takes {r['step'] * 1e3:.0f} ms; "
            f"built ahead {r['built_ahead']:.1f} s; training time lost {r['lost']:.2f} s{told}; ms: {parts[:-2]}")
