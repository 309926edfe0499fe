# SPDX-License-Identifier: Apache-2.0
"""Generation.survive(): a node is lost under ranks of PyTorch, and the job goes on at the step that they had reached, with all that
they had beside tensors, whatever their own handlers do when gloo raises."""
import unittest

import harness
import order_oracle
import test_torch
from harness import PATIENCE, wait_for


@unittest.skipUnless(test_torch.HAS_TORCH, "no PyTorch: scripts/venv --torch")
class Survive(harness.Case):
    def lose(self, c, job, seen):
        """The node of the last rank is lost. The step at which the others went on."""
        job.wait_step(6)
        before = job.status()
        victim = next(r["node"] for r in before["ranks"] if r["rank"] == 2)
        self.assertNotEqual("n0", victim)
        c.power_off(victim)

        def went_on():
            s = job.status()
            again = s["run"]["state"] == "live" and s["phase"] == "idle" and s["run"]["incarnation"] != before["run"]["incarnation"]
            return s if again and s["run"].get("step", 0) >= s["step"] + 5 else None
        try:
            after = wait_for(went_on, 120 * PATIENCE, "a job that goes on", 0.1)
        finally:
            events = c.ptcctl("events", job.name, check=False).stdout
        self.assertIn("was made from the memory of the ranks that are left", events, c.ptcctl("logs", job.name, "--rank", "all").stdout)
        self.assertEqual("dp=2", after["config"])
        job.do("stop")
        return job.wait_run("stopped")["step"]

    def check(self, job, steps):
        """Each step's numbers are those of a run that nothing has disturbed, and each sample comes once."""
        import torch_state
        logged = job.logged()
        first, second = (sorted(g for g, r in logged if r == 0)[i] for i in (0, -1))
        reached = max(line["boundary"] for r in (0, 1) for line in logged[first, r] if "boundary" in line)
        lines = {key: [line for line in log if "step" in line] for key, log in logged.items()}
        for r in (0, 1):
            self.assertEqual(reached, lines[second, r][0]["step"])
            parts, there = torch_state.trainer(r), {line["step"]: line for line in lines[first, r]}
            behind = reached - 1 not in there  # what it has then is the other one's, but for random streams
            there.update({line["step"]: line for line in lines[second, r]})
            for step in range(steps):
                want = torch_state.train(step, *parts)
                for what in want if step in there else ():
                    if not (behind and step >= reached and what in ("torch", "random", "numpy")):
                        self.assertEqual(want[what], there[step][what], f"rank {r} step {step}: {what}")
            self.assertEqual(set(range(steps)) - set(there), {reached - 1} if behind else set())
        order = lambda p: order_oracle.at(100, 5, *divmod(p, 100))
        for step in range(reached, steps):
            found = sorted(i for r in (0, 1) for line in lines[second, r] if line["step"] == step for i in line["ids"])
            self.assertEqual(sorted(order(p) for p in range(7 * step, 7 * step + 7)), found, f"step {step}")

    def survive(self, seen):
        with self.cluster(nodes=3, devices=1, lease_ttl="2s", node_lost_after="2s") as c:
            job = test_torch.Job(c, self.dir, "survive", run={"elastic": {"min_gpus": 2}, "snapshot_every": 1000000, "seed": 7}, seen=seen)
            job.run("dp=3")
            self.check(job, self.lose(c, job, seen))

    def test_backward(self):
        self.survive("backward")

    @harness.labels("repeats")
    def test_wait(self):
        self.survive("wait")

    def test_broken(self):
        """What changes declared memory before update_begin() ends the promise of its rank; status says why, and training goes on."""
        with self.cluster(nodes=1, devices=3) as c:
            job = test_torch.Job(c, self.dir, "unkept", run={"snapshot_every": 1000000, "seed": 7})
            job.run("dp=3")

            def told():
                ranks = {r["rank"]: r for r in job.status()["run"].get("ranks", ())}
                known = len(ranks) == 3 and ranks[0].get("survives_broken") and ranks[1].get("survives_broken")
                return ranks if known and "survives_checked" in ranks[2] and ranks[2].get("survives_sampled", 0) > 5 else None
            ranks = wait_for(told, 40 * PATIENCE, "broken promises", 0.1)
            text = c.ptcctl("status", job.name).stdout
            job.wait_step(ranks[2]["step"] + 5)
            said = c.ptcctl("logs", job.name, "--rank", "all").stdout
        why = 'its promise is broken: tensor "[^"]+" changed after the boundary at step {} without ptc_update_begin'
        for rank, step in enumerate(("3", r"\d+")):
            self.assertIs(False, ranks[rank]["survives"])
            self.assertRegex(ranks[rank]["survives_not"], f"^{why.format(step)}$")
            self.assertRegex(said, f"ptc: rank {rank}: .*goes on from snapshots, not from this rank's memory: tensor ")
        self.assertIs(True, ranks[2]["survives"])
        self.assertNotIn("survives_broken", ranks[2])
        self.assertNotIn("ptc: rank 2: ", said)
        self.assertRegex(text, f"(?m)^memory of rank 0 is not used if a node is lost: {why.format(3)} \\(and that of 1 more\\)$")
        self.assertRegex(text, r"(?m)^memory: compared at step \d+, checked at step \d+$")


if __name__ == "__main__":
    unittest.main()
