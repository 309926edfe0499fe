# SPDX-License-Identifier: Apache-2.0
"""The power of all nodes is cut while copies are made or named (power.py): whatever etcd names then is whole on the disks."""
import contextlib
import json
import os
import unittest

import harness
import numpy as np
import state as states
from harness import PATIENCE, ClusterError, Job, wait_for
from power import Power

ROWS = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
POINTS = ("agent.receive.middle", "store.msync.before", "store.msync.after", "store.meta.commit.before", "store.meta.commit.after",
          "etcd.copies.before", "etcd.copies.after")


class PowerCut(harness.Case):
    def job(self, c):
        s, rng = states.State({"exp_avg": "F32"}), np.random.default_rng(self.seed)
        for name, shape in (("a", (1 << 13, 48)), ("b", (96, 32)), ("c", (128, 7))):
            s.add(rng, name, "F32", shape)
        return Job(c, "kept", s, self.path("job"), ROWS, more={"copies": {"count": 2}})

    def key(self, c, uuid, name):
        """What etcd has, whose members go on."""
        text = c.etcdctl("get", "--print-value-only", f"/ptc/jobs/{uuid}/{name}").stdout
        return json.loads(text) if text.strip() else {}

    def named(self, c, uuid, ranks):
        """Whether etcd names copies of all that these ranks hold of the present generation."""
        copies = self.key(c, uuid, "copies")
        return copies.get("generation") == self.key(c, uuid, "record")["generation"] and \
            set(range(ranks)) <= {rank for _, rank, _ in copies["parts"]}

    def cut(self, c, power, uuid, ranks, point):
        """Both nodes die at once: when one of them comes to that point, or when the copies are named. Returns whether they are."""
        nodes = list(c.nodes.values())
        for node in nodes:
            self.arm(node, point)
        wait_for(lambda: not all(n.pid() for n in nodes) or self.named(c, uuid, ranks), 60 * PATIENCE, "a death, or copies", 0.01)
        for node in nodes:
            self.arm(node)
            node.kill()
        named, percent = self.named(c, uuid, ranks), self.random.choice((0, 0, 10, 50, 90))
        for node in nodes:
            power.cut(node, percent)
        print(f"power cut, {point or 'copies named'}: {named=}, {percent} % of what was not synced is written", flush=True)
        return named

    def check_whole(self, job, node):
        """Once the node that is down counts as lost, and this one controls the job."""
        said = []

        def whole():
            try:
                job.check_whole(self, node=node)
            except ClusterError as e:
                said.append(str(e))
                return False
            return True
        try:
            wait_for(whole, 30 * PATIENCE, f"all bytes from {node} alone", 0.2)
        except ClusterError as e:
            self.fail(f"{e}: {said[-1:]}")

    def round(self, c, power, job, uuid, point):
        ranks = 3 - len(job.status()["ranks"])
        job.resize(f"tp={ranks}")
        nodes = sorted(c.nodes)
        if named := self.cut(c, power, uuid, ranks, point):
            survivor = self.random.choice(nodes)
            c.restart(survivor, self.env(c.nodes[survivor], power))
            self.check_whole(job, survivor)
        for node in c.nodes.values():
            if not node.pid():
                c.start_node(node, self.env(node, power))
        c.wait_nodes(nodes, 60 * PATIENCE)
        job.wait_idle()

        def there():
            with contextlib.suppress(ClusterError):
                now = job.status().get("copies")
                return now and now["fewest"] >= 2 and not now["bytes_left"]
            return False
        wait_for(there, 120 * PATIENCE, "two copies of everything")
        c.ptcctl("verify", job.name, timeout_s=60 * PATIENCE)
        job.check_whole(self)
        return named

    def env(self, node, power):
        return {"PTC_FAULT_FILE": os.path.join(node.dir, "fault"), **power.env}

    def test_while_copies_are_named(self):
        """Copies that etcd names are whole after a power cut: with each node alone all bytes are there. Others are made again."""
        points = [None, *self.random.sample(POINTS, harness.size(2, len(POINTS), len(POINTS)))]
        with self.cluster(nodes=2, devices=2, up=False, coordinator="etcd-cluster", transport="insecure", copies={"rate": "4MiB"},
                          lease_ttl="2s", node_lost_after="2s") as c:
            power = Power(c, self.random)
            for node in c.nodes.values():
                self.arm(node)
            c.up({n.name: self.env(n, power) for n in c.nodes.values()}, timeout_s=60 * PATIENCE)
            job = self.job(c)
            job.imported("tp=1")
            uuid = job.status()["uuid"]
            wait_for(lambda: self.named(c, uuid, 1), 60 * PATIENCE, "copies", 0.1)
            named = [self.round(c, power, job, uuid, point or "") for point in points for _ in range(harness.size(1, 2, 20))]
            self.assertTrue(any(named))


if __name__ == "__main__":
    unittest.main()
