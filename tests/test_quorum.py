# SPDX-License-Identifier: Apache-2.0
"""Three etcd members under a job that trains: without one nothing changes; without two nothing is committed, and ranks go on."""
import json
import signal
import unittest

import harness
import live
from harness import PATIENCE, wait_for

WARNING = "warning: the coordinator (etcd) is unreachable; what is shown may be old, nothing can be committed"


class Quorum(harness.Case):
    def lose(self, c, i):
        c.members[i].signal(signal.SIGKILL)
        c.members[i].wait_gone(30 * PATIENCE)

    def leader(self, c):
        """Which member leads: the loss of this one costs an election."""
        said = json.loads(c.etcdctl("endpoint", "status", "-w", "json", timeout_s=30 * PATIENCE).stdout)
        leader = next(s for s in said if s["Status"]["leader"] == s["Status"]["header"]["member_id"])
        return [f"127.0.0.1:{m['client']}" for m in c.options["members"]].index(leader["Endpoint"].rpartition("/")[2])

    def processes(self, job):
        return {r["rank"]: r["pid"] for r in job.status()["run"]["ranks"]}

    def logged(self, job):
        """The last step that all ranks of the newest generation have logged: no daemon is asked."""
        logged = job.steps_logged()
        return min(steps[-1] if steps else -1 for (g, _, _), steps in logged.items() if g == max(key[0] for key in logged))

    def warned(self, c, job):
        """What `status` warns of, beside that this cluster has no certificates."""
        lines = c.ptcctl("status", job.name, node="n1").stdout.splitlines()
        return [line for line in lines if line.startswith("warning:") and "insecure" not in line]

    def committed(self, status):
        return status["generation"], status["snapshot"], status["step"], status["run"]["incarnation"]

    @harness.labels("repeats")
    def test_members_lost(self):
        with self.cluster(nodes=2, devices=1, transport="insecure", coordinator="etcd-cluster", lease_ttl="10s", node_lost_after="2s") as c:
            job = live.Job(c, self.path("live"), mode="rebuild")
            job.run("tp=2")
            job.wait_step(3)
            ranks = self.processes(job)
            first = self.leader(c)
            self.lose(c, first)
            job.do("snapshot")
            taken = job.status()
            self.assertGreater(taken["step"], 0)
            job.resize("dp=2")
            self.assertEqual(ranks, self.processes(job), "ranks were started again")
            self.assertEqual([], self.warned(c, job))

            before = job.status()
            second = self.leader(c)
            self.lose(c, second)
            wait_for(lambda: self.warned(c, job) == [WARNING], 60 * PATIENCE, "the warning", 0.1)
            step = self.logged(job)
            said = self.refused(c, "snapshot", job.name, "--wait", timeout_s=60 * PATIENCE, contains="coordinator")
            wait_for(lambda: self.logged(job) > step + 50, 60 * PATIENCE, "steps without etcd", 0.05)
            self.assertEqual(self.committed(before), self.committed(job.status(node="n1")), said)
            self.assertEqual(sorted(ranks.values()), sorted(job.processes()))

            c.restart_member(second)
            wait_for(lambda: not self.warned(c, job), 60 * PATIENCE, "a coordinator that answers", 0.1)
            c.wait_nodes(["n0", "n1"], 60 * PATIENCE)
            now = job.wait_run("live")
            self.assertEqual(before["generation"], now["generation"])
            self.assertEqual(ranks, self.processes(job), "ranks were started again")
            job.resize("tp=2")
            self.assertEqual(ranks, self.processes(job), "ranks were started again")
            job.do("stop")
            last = job.wait_run("stopped")["step"]
            job.check_state(self, last, self.path("end"))
            for key, steps in job.steps_logged().items():
                self.assertEqual(list(range(steps[0], steps[0] + len(steps))), steps, f"{key}: steps left out or done twice")
            self.assertEqual([], [e["text"] for e in map(json.loads, c.ptcctl("events", job.name, "--format", "json").stdout.splitlines())
                                  if e["kind"] in ("recovering", "node_lost", "failed")])


if __name__ == "__main__":
    unittest.main()
