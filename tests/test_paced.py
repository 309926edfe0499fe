# SPDX-License-Identifier: Apache-2.0
"""A trainer of programmed computing and real traffic (paced_trainer.c) on three machines whose links have a rate
(tests/machines.py): the planner's choice for six devices against all that six devices can have, measured."""
import json
import os
import statistics
import unittest

import harness  # first: it says where the others are
import live
import paced_model
from harness import PATIENCE, wait_for
from machines import Machines

PROGRAM = harness.binary("tests/paced-trainer")
SPACE = {"global_batch": 12, "micro_batch": [2], "tp": [1, 2], "pp": [1, 2, 3], "schedule": "gpipe", "dtype": "fp32",
         "memory": {"weight_bytes": 4, "grad_bytes": 4, "optim_bytes": 0, "reduce_bytes": 4}}
STEPS = 6  # that are timed


def model(hidden):
    return {"layers": 6, "hidden": hidden, "heads": 8, "seq": 256}


def profile(hidden, layer_us):
    """Devices of which a layer gets about half of the peak; between processes of a machine bytes are copied."""
    flops = 256 * (24 * hidden ** 2 + 2 * 256 * hidden) / (layer_us * 1e-6) / 0.55
    return (f"devices_per_node: 2\ndevices: [{{name: paced, nodes: 3, flops: {flops:.0f}, hbm_bytes_s: 1e11, memory_bytes: 8e9}}]\n"
            "links: {intra_bytes_s: 1e9, node_bytes_s: 25e6, intra_latency_s: 1e-4, node_latency_s: 2e-4}\n")


def feasible(n):
    return [f"tp={tp},pp={pp},dp={dp}" for tp in SPACE["tp"] for pp in SPACE["pp"] for dp in range(1, n // (tp * pp) + 1)]


class Paced(live.Job):
    def __init__(self, c, directory, hidden, layer_us):
        self.c, self.name = c, "paced"
        self.steps = os.path.join(directory, "steps.jsonl")
        m = model(hidden)
        # what sleeps and sends is to be scheduled at once: others who compute on this machine are none of the program's costs
        argv = ["nice", "-n", "-20", PROGRAM, "--layers", m["layers"], "--hidden", hidden, "--seq", m["seq"], "--layer-us", layer_us,
                "--launch-us", layer_us // 10, "--batch", SPACE["global_batch"], "--micro", SPACE["micro_batch"][0], "--log", self.steps]
        self.yaml = os.path.join(directory, "paced.yaml")
        with open(self.yaml, "w", encoding="utf-8") as f:
            json.dump({"version": 1, "name": self.name, "run": {"argv": list(map(str, argv))}, "model": m, "space": SPACE}, f)

    def seconds(self, generation):
        """A step's, of the fastest of a few, without the first: others use this machine, too."""
        def some():
            with open(self.steps, encoding="utf-8") as f:
                steps = [s["s"] for s in map(json.loads, f) if s["generation"] == generation]
            return steps[1:] if len(steps) > STEPS else None
        return min(wait_for(some, 120 * PATIENCE, f"{STEPS} steps of generation {generation}", 0.2))


@harness.labels("repeats")
@harness.skip_unless_root
@unittest.skipUnless(harness.LONG, "measures sixteen configurations (PTC_TEST_LONG=1)")
class PacedTrainer(harness.Case):
    @staticmethod
    def known(job, n):
        """The advice, once so many configurations have been measured."""
        def asked():
            said = job.c.json("advise", job.name, "--gpus", "6")
            return said if said["measured_steps"] == n else None
        return wait_for(asked, 120 * PATIENCE, f"{n} measured configurations", 0.5)

    def choice(self, mbit, hidden, layer_us, differ=2.0):
        """The job has run on two devices and on four, so two configurations are measured when six are asked for."""
        path = self.path("profile.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(profile(hidden, layer_us))
        names = [f"n{i}" for i in range(3)]
        with Machines(names) as m, self.cluster(nodes=3, devices=2, transport="tls", hosts=m.hosts, lease_ttl="20s", up=False) as c:
            m.settle(c)
            c.up(timeout_s=60 * PATIENCE)
            for name in names:
                m.throttle(name, mbit)
            c.ptcctl("profile", "-f", path)
            rates = [p["bytes_s"] for p in c.json("profile", timeout_s=120 * PATIENCE)["pairs"]]
            job = Paced(c, self.dir, hidden, layer_us)
            c.ptcctl("job", "create", "-f", job.yaml)
            blind = c.json("advise", job.name, "--gpus", "6")["candidates"][0]["config"]
            c.ptcctl("run", job.name, "--config", "dp=2", "--wait", timeout_s=120 * PATIENCE)
            self.known(job, 1)
            job.resize("tp=2,dp=2")
            said = self.known(job, 2)
            for row in said["candidates"]:
                print(f"advised: {row['config']} {row['step_s']:.3f} s +- {row['error']:.0%}", flush=True)
            done = json.loads(c.ptcctl("resize", job.name, "--gpus", "6", "--wait", "--format", "json", timeout_s=120 * PATIENCE).stdout)
            steps = {done["to"]: job.seconds(done["generation"])}
            for config in feasible(6):
                at = job.resize(config)
                steps.setdefault(at["to"], job.seconds(at["generation"]))
            job.do("stop")
        best = min(steps, key=steps.get)
        print(f"links give {min(rates) / 1e6:.0f} to {max(rates) / 1e6:.0f} MB/s; with nothing measured it would be {blind}", flush=True)
        for config in sorted(steps, key=steps.get):
            print(f"{steps[config]:.3f} s {config}{' chosen' if config == done['to'] else ''}", flush=True)
        self.assertLessEqual(steps[done["to"]], 1.1 * steps[best])
        self.assertGreater(max(steps.values()), differ * steps[best], "they differ")
        self.steps = steps
        return done["to"]

    @harness.needs("ip", "tc", "nsenter", "unshare")
    def test_random_program(self):
        """One of those that tests/test_planner.py computes, on links that this machine's processors can fill; what it computes is
        what is measured."""
        program = paced_model.random_program(self.random, 700)
        print(f"program (Mbit/s, hidden, us): {program}", flush=True)
        self.choice(*program, differ=1.5)
        off = [abs(paced_model.seconds(paced_model.parsed(c), program) / s - 1) for c, s in self.steps.items()]
        print(f"computed against measured: half of {len(off)} within {statistics.median(off):.1%}", flush=True)
        self.assertLess(statistics.median(off), 0.1)

    @harness.needs("ip", "tc", "nsenter", "unshare")
    def test_slow_links(self):
        """5 MB of gradients, 20 MB/s: stages are the best, for these send the least."""
        self.assertIn("pp=3", self.choice(160, 128, 5000))

    @harness.needs("ip", "tc", "nsenter", "unshare")
    def test_fast_links(self):
        """1.2 MB, 40 MB/s: replicas are, for they never wait. More would be limited by this machine's processors, not by links."""
        self.assertNotIn("pp=", self.choice(320, 64, 10000))


if __name__ == "__main__":
    harness.unittest.main()
