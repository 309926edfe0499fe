# SPDX-License-Identifier: Apache-2.0
"""examples/gpt on four machines, of which one gets a link with a rate (tests/machines.py): what is measured, what is advised, and
what steps then take. All that daemons and ranks say to each other goes over those links."""
import json
import os
import time
import unittest

import harness  # first: it says where the others are
import curve
import test_gpt_live
from harness import PATIENCE, wait_for
from machines import LINK, Machines
from test_torch import HAS_TORCH, Job

MODEL = {"layers": 4, "hidden": 160, "heads": 8, "vocab": 256, "seq": 32}  # examples/gpt/model.py
SPACE = {"global_batch": 20, "micro_batch": [5], "tp": [1, 2], "pp": [1, 2, 4], "dtype": "fp32",
         "memory": {"weight_bytes": 4, "grad_bytes": 4, "optim_bytes": 8, "reduce_bytes": 4}}
CORE = "devices:\n- {name: core, flops: {fp32: 30e9}, hbm_bytes_s: 5e9, memory_bytes: 4e9}\n"  # about what a core of a CPU does
FAST = ("devices_per_node: 2\ndevices:\n- {name: core, nodes: 4, flops: 30e9, hbm_bytes_s: 5e9, memory_bytes: 4e9}\n"
        "links: {intra_bytes_s: 1e10, node_bytes_s: 1e9}\n")
MBIT = 20
STEPS = 4  # that are timed


def rings(plan):
    """Sets of nodes over which tensor parallel ranks of a plan talk, and data parallel ones. tp is the fastest, pp the slowest."""
    degree = {"tp": 1, "dp": 1, **{k: int(v) for k, v in (p.split("=") for p in plan["to"].split(",")) if v.isdigit()}}
    node = {r["rank"]: r["node"] for r in plan["ranks"]}
    tp, dp = degree["tp"], degree["dp"]
    return ([{node[i + t] for t in range(tp)} for i in range(0, len(node), tp)] +
            [{node[s + t + tp * d] for d in range(dp)} for s in range(0, len(node), tp * dp) for t in range(tp)])


@harness.labels("repeats")
@harness.skip_unless_root
@unittest.skipUnless(HAS_TORCH, "no PyTorch: scripts/venv --torch")
@unittest.skipUnless(harness.LONG, "eight processes of PyTorch on four machines (PTC_TEST_LONG=1)")
class Throttled(harness.Case):
    reference = test_gpt_live.GptLive.reference

    def job(self, c, *options):
        self.out = self.path("out")
        os.makedirs(self.out, mode=0o777)
        job = Job(c, self.dir, "gpt", program=["gpt_live.py", *options, "--out", self.out], run={"model": MODEL, "space": SPACE})
        with open(job.yaml, encoding="utf-8") as f:
            spec = json.load(f)
        spec["run"]["env"]["GLOO_SOCKET_IFNAME"] = LINK
        with open(job.yaml, "w", encoding="utf-8") as f:
            json.dump(spec, f)
        return job

    @staticmethod
    def measured(c):
        return {(p["from"], p["to"]): p["bytes_s"] for p in c.json("profile", timeout_s=120 * PATIENCE)["pairs"]}

    def seconds(self, job, least):
        """A step's, of the fastest of a few: others use this machine, too."""
        steps = []
        for step in range(least, least + STEPS):
            job.wait_step(step, 400)
            steps.append(time.monotonic())
        return min(b - a for a, b in zip(steps, steps[1:]))

    @harness.needs("ip", "tc", "nsenter", "unshare")
    def test_gpt(self):
        """Without the rate, gradients go over every link. With it, the planner has no ring of tp or dp over n3's link; the GPT is
        moved there, its losses are those of one process, and its steps are faster than where it would have been."""
        options = ["--steps", "100000"]
        devices = self.path("devices.yaml")
        with open(devices, "w", encoding="utf-8") as f:
            f.write(CORE)
        with Machines([f"n{i}" for i in range(4)]) as m, self.cluster(nodes=4, transport="tls", hosts=m.hosts, lease_ttl="20s", up=False) as c:
            m.settle(c)
            for node in c.nodes.values():
                c.write_config(node, device_name="core", devices_file=devices)
            c.up(timeout_s=60 * PATIENCE)
            job = self.job(c, *options)
            job.run("dp=1")
            wait_for(lambda: c.json("advise", "gpt", "--gpus", "8")["measured_steps"], 120 * PATIENCE, "a measured step", 0.5)
            self.assertFalse(c.json("advise", "gpt", "--gpus", "8")["links_known"])
            stated = self.path("stated.yaml") # measured ones are as slow as other work on this machine makes them
            with open(stated, "w", encoding="utf-8") as f:
                f.write(FAST)
            c.ptcctl("profile", "-f", stated)
            free = c.json("resize", "gpt", "--gpus", "8", "--dry-run")
            rates = self.measured(c)
            self.assertTrue(any("n3" in ring and len(ring) > 1 for ring in rings(free)), free["choice"])
            m.throttle("n3", MBIT)
            slow = self.measured(c)
            for pair, rate in slow.items():
                print(f"{pair[0]} to {pair[1]}: {rates[pair] / 1e6:.1f}, then {rate / 1e6:.1f} MB/s", flush=True)
                if "n3" in pair:
                    self.assertLess(rate, 4 * MBIT * 1e6 / 8, pair)
                else:
                    self.assertGreater(rate, 4 * MBIT * 1e6 / 8, pair)
            said = c.json("advise", "gpt", "--gpus", "8")
            self.assertTrue(said["links_known"])
            plan = c.json("resize", "gpt", "--gpus", "8", "--dry-run")
            self.assertEqual(plan["to"], said["candidates"][0]["config"])
            print(f"at first {free['to']}: {free['choice']['why']}\nthen {plan['to']}: {plan['choice']['why']}", flush=True)
            self.assertEqual([], [ring for ring in rings(plan) if "n3" in ring and len(ring) > 1], plan["choice"])
            done = json.loads(c.ptcctl("resize", "gpt", "--gpus", "8", "--wait", "--format", "json", timeout_s=200 * PATIENCE).stdout)
            self.assertEqual(plan["to"], done["to"])
            where = {r["rank"]: r["node"] for r in job.status()["run"]["ranks"]}
            self.assertEqual({r["rank"]: r["node"] for r in plan["ranks"]}, where)
            advised = self.seconds(job, done["step"] + 2)
            former = job.resize(free["to"])
            across = self.seconds(job, former["step"] + 2)
            print(f"a step takes {advised:.2f} s as advised, {across:.2f} s with gradients over the slow link", flush=True)
            self.assertLess(advised, across / 2)
            m.throttle("n3")
            job.do("stop")
            steps = job.wait_run("stopped")["step"]
        worst = curve.difference(self.reference(steps, *options), curve.read(self.out))
        self.assertLessEqual(worst, 2e-6)


if __name__ == "__main__":
    harness.unittest.main()
