# SPDX-License-Identifier: Apache-2.0
"""Daemons of one machine read each other's chunks in memory (docs/decisions/0065-near-nodes.md): that they do is seen in what a switch
says and in metrics, and so is that bytes go over sockets if a daemon is told so, or runs elsewhere, or as another user."""
import unittest

import harness
import numpy as np
import state as states
from harness import Job
from test_metrics import at, scrape

RULES = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
A, B = "tp=2", "tp=1"
SHAPE = (2048, 1024) # a tensor of 2 MiB, half of which moves


class Near(harness.Case):
    def job(self, c):
        s, rng = states.State(), np.random.default_rng(self.seed)
        s.add(rng, "big", "U8", SHAPE)
        s.add(rng, "small", "U8", (64,))
        job = Job(c, "j", s, self.path("j"), RULES)
        job.imported(A)
        return job

    def started(self, c, env=None, **changes):
        """Each node has metrics, and what `changes` has for it; {node: a function that scrapes it}."""
        addresses = {name: f"127.0.0.1:{harness.clusters.free_port()}" for name in c.nodes}
        write = c.write_config
        c.write_config = lambda node, **more: write(node, **{"metrics": addresses[node.name], **changes.get(node.name, {}), **more})
        for node in c.nodes.values():
            c.write_config(node)
        c.up(env, timeout_s=60 * harness.PATIENCE)
        return {name: lambda a=address: scrape(a)[1] for name, address in addresses.items()}

    def switched(self, c, scrapes):
        """A job there and back; (bytes received, bytes of these from memory), as the switches and as the nodes count them."""
        job, received, near = self.job(c), 0, 0
        for config in (B, A):
            r = job.resize(config)
            received += r["received_bytes"]
            near += r.get("near_bytes", 0)
        self.assertEqual(near, sum(at(s(), "ptc_near_bytes_total") for s in scrapes.values()))
        job.check_whole(self)
        return received, near

    def failures(self, scrapes):
        return sum(at(s(), "ptc_near_failures_total") for s in scrapes.values())

    def log(self, c, name):
        with open(c.nodes[name].log_file) as f:
            return f.read()

    def test_memory(self):
        """Over any transport: all but the small tensor comes from memory, and what an export gathers, too."""
        for transport in ("unix", "tls", "insecure"):
            with self.subTest(transport=transport), \
                    self.cluster(nodes=2, devices=1, transport=transport, near=True, up=False) as c:
                scrapes = self.started(c)
                received, near = self.switched(c, scrapes)
                self.assertEqual(SHAPE[0] * SHAPE[1], near)
                self.assertTrue(near < received <= near + 64, received)
                exported = sum(at(s(), "ptc_near_bytes_total") for s in scrapes.values()) - near
                self.assertGreaterEqual(exported, SHAPE[0] * SHAPE[1] // 2)
                self.assertEqual(0, self.failures(scrapes))

    def elsewhere(self, reason, env=None, **changes):
        with self.subTest(reason), self.cluster(nodes=2, devices=1, near=True, up=False) as c:
            scrapes = self.started(c, env, **changes)
            received, near = self.switched(c, scrapes)
            self.assertEqual(0, near)
            self.assertGreater(received, SHAPE[0] * SHAPE[1])
            return self.failures(scrapes), {name: self.log(c, name).count("runs on this machine, but") for name in c.nodes}

    def test_sockets(self):
        """Nobody is asked for a file, and nothing is said, if one does not want it, or they run on different machines."""
        self.assertEqual((0, {"n0": 0, "n1": 0}), self.elsewhere("both are told so", n0={"near": "no"}, n1={"near": "no"}))
        self.assertEqual((0, {"n0": 0, "n1": 0}), self.elsewhere("one is told so", n1={"near": "no"}))
        other = {"PTC_FAULT": "agent.near.machine@*=fail"}
        self.assertEqual((0, {"n0": 0, "n1": 0}), self.elsewhere("of other machines", {"n0": other, "n1": other}))

    def test_another_user(self):
        """Each node says once that the other one is another user's."""
        fault = {"PTC_FAULT": "agent.near.user@*=fail"}
        failures, said = self.elsewhere("another user's", {"n0": fault, "n1": fault})
        self.assertGreater(failures, 0)
        self.assertEqual({"n0": 1, "n1": 1}, said)


if __name__ == "__main__":
    unittest.main()
