# SPDX-License-Identifier: Apache-2.0
"""copies: {every: step}: a job whose nodes have different parts of its state (tp across nodes, so no replica has them) loses a node at
any instant, and one step at most."""
import json
import statistics
import time
import unittest

import harness
import test_ctrainer
import test_recover
from harness import PATIENCE, wait_for

FAST = test_recover.FAST
CONFIG = f"tp=2,{test_ctrainer.BATCH}"
COPIES = {"copies": {"count": 2, "every": "step", "budget": "100%"}}


class Trainer(test_ctrainer.Trainer):
    def __init__(self, c, directory, name, sleep_ms, **more):
        super().__init__(c, directory, "restart", steps=1 << 40, sleep_ms=sleep_ms)
        self.name = name
        with open(self.yaml) as f:
            spec = json.load(f)
        spec.update({"name": name, "elastic": {"min_gpus": 2}, **more})
        spec["run"]["grace"] = "2s"
        with open(self.yaml, "w") as f:
            json.dump(spec, f)


class EachStep(test_recover.Recover):
    def step_s(self, c):
        """A step that is long enough for a snapshot and its copies, however busy this machine is: some times as long as a snapshot alone
        takes, which says nothing of how copies are made."""
        job = Trainer(c, self.path("calm"), "calm", 20)
        job.run(CONFIG)
        job.wait_step(3)
        took = []
        for _ in range(3):
            began = time.monotonic()
            job.do("snapshot")
            took.append(time.monotonic() - began)
        job.do("stop")
        c.ptcctl("job", "delete", job.name, timeout_s=60 * PATIENCE)
        return max(0.5, 3 * statistics.median(took))

    def keeps_up(self, c, job, since):
        """Until there have been copies of three steps in a row beyond `since`."""
        seen = []
        def there():
            step = job.status().get("copied", {}).get("step", 0)
            if step > since and step not in seen:
                seen.append(step)
            return len(seen) > 2 and seen[-3:] == list(range(seen[-1] - 2, seen[-1] + 1))
        try:
            wait_for(there, 60 * PATIENCE, f"copies of three steps in a row beyond step {since}", 0.05)
        except Exception:
            print("copied:", seen, c.ptcctl("events", job.name, check=False).stdout, flush=True)
            raise

    def ran(self, job):
        """{incarnation: its steps, by the ranks' own lines}."""
        steps = {}
        for line in job.lines():
            steps.setdefault(line["incarnation"], []).append(line["step"])
        return steps

    def goes_on(self, job, before, timeout_s=120):
        """Until ranks of another incarnation than these train: which one, and its first step."""
        steps = wait_for(lambda: {i: s for i, s in self.ran(job).items() if i not in before}, timeout_s * PATIENCE, "a job that trains", 0.05)
        (incarnation, own), = steps.items()
        return incarnation, min(own)

    def test_any_instant(self):
        """A whole node is killed at random instants: the job goes on one step behind the last boundary at most."""
        with self.cluster(nodes=3, devices=1, copies={"rate": "0B"}, **FAST) as c:
            step_s = self.step_s(c)
            job = Trainer(c, self.path("job"), "ridge", int(step_s * 1000), **COPIES)
            job.run(CONFIG)
            incarnation, first = self.goes_on(job, {})
            for _ in range(harness.size(2, 4, 12)):
                self.keeps_up(c, job, first)
                victim = next(n for n in self.placed(job) if n != "n0")
                time.sleep(self.random.random() * 2 * step_s) # any instant; nothing is judged by it
                seen, before = job.step(), set(self.ran(job))
                c.power_off(victim, chunks=False)
                was, (incarnation, first) = incarnation, self.goes_on(job, before)
                # A rank logs a step after it has heard from the others in it. When the node is gone, another rank may still end that step
                # alone, and come to a boundary that the lost node never came to.
                reached = max([seen, *self.ran(job)[was]])
                print(f"{victim}: {reached} -> {first}, steps of {step_s:.1f} s", flush=True)
                self.assertNotIn(victim, self.placed(job))
                self.assertGreaterEqual(first, reached - 1, c.ptcctl("events", job.name).stdout)
                c.restart(victim)
                c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            self.keeps_up(c, job, first)
            self.assertRegex(c.ptcctl("status", job.name).stdout, r"(?m)^copied: step \d+, \d+ steps? behind; snapshots stop ranks for "
                             r"[\d.]+ % of the time$")
            job.do("stop")
            job.steps = job.wait_run("stopped")["step"]
            self.assertEqual([], test_ctrainer.differences(test_ctrainer.counted(job.lines(), job.steps), job.reference()))


for test in dir(test_recover.Recover):
    if test.startswith("test_"):
        setattr(EachStep, test, None)


if __name__ == "__main__":
    unittest.main()
