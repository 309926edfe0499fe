# SPDX-License-Identifier: Apache-2.0
"""Daemons of one machine read each other's chunks in memory (docs/decisions/0065-near-nodes.md): that they do is seen in what a switch
says and in metrics, and so is that bytes go over sockets if a daemon is told so, or runs elsewhere, or as another user."""
import concurrent.futures
import glob
import os
import unittest

import harness
import numpy as np
import state as states
from harness import Job
from test_metrics import at, scrape, total

RULES = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
A, B = "tp=2", "tp=1"
SHAPE = (2048, 1024) # a tensor of 2 MiB, half of which moves
UID = 54300 # who imports
METHODS = "Control/ImportData", "Control/Read", "Control/ReadMany", "Peer/Put", "Peer/Fetch"


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
        """Over any transport: all but the small tensor comes from memory."""
        for transport in ("unix", "tls", "insecure"):
            with self.subTest(transport=transport), \
                    self.cluster(nodes=2, devices=1, transport=transport, near=True, up=False) as c:
                scrapes = self.started(c)
                received, near = self.switched(c, scrapes)
                self.assertEqual(SHAPE[0] * SHAPE[1], near)
                self.assertTrue(near < received <= near + 64, received)
                self.assertEqual(near, sum(at(s(), "ptc_near_bytes_total") for s in scrapes.values())) # ptcctl reads exports itself
                self.assertEqual(0, self.failures(scrapes))

    def calls(self, scrapes):
        """{node: {method: how often it was called}}"""
        seen = {name: s() for name, s in scrapes.items()}
        return {name: {m.partition("/")[2]: total(s, "ptc_rpc_calls_total", method=f"ptc.v1.{m}") for m in METHODS}
                for name, s in seen.items()}

    def client(self, near, tensor, rules):
        """A job of one tensor, imported and exported; (calls of the import, calls of the export, bytes read in memory)."""
        with self.cluster(nodes=2, devices=1, near=near, up=False) as c:
            scrapes = self.started(c)
            s = states.State()
            s.add(np.random.default_rng(self.seed), tensor, "U8", SHAPE)
            job = Job(c, "j", s, self.path(f"{tensor}-{near}"), rules)
            job.imported(A)
            imported = self.calls(scrapes)
            job.check_whole(self)
            after = self.calls(scrapes)
            self.assertEqual(0, self.failures(scrapes))
            exported = {name: {m: n - imported[name][m] for m, n in calls.items()} for name, calls in after.items()}
            return imported, exported, sum(at(s(), "ptc_near_bytes_total") for s in scrapes.values())

    def test_client(self):
        """ptcctl hands an import's bytes to the daemon that needs them, and reads an export's where they lie. Daemons carry what is
        too finely cut for that, and everything if they are not near."""
        imported, exported, _ = self.client(True, "long", RULES)
        for name in ("n0", "n1"):
            self.assertGreater(imported[name]["ImportData"], 0)
            self.assertEqual(0, imported[name]["Put"])
            self.assertEqual(0, exported[name]["Read"] + exported[name]["ReadMany"])
        imported, exported, near = self.client(True, "wide", [{"match": "*", "split": {"axis": "tp", "dim": 1}}])
        self.assertGreater(imported["n1"]["Put"], 0)
        self.assertGreater(exported["n0"]["Read"] + exported["n0"]["ReadMany"], 0)
        self.assertGreaterEqual(near, SHAPE[0] * SHAPE[1] // 2)
        imported, exported, near = self.client(False, "long", RULES)
        self.assertEqual(0, imported["n1"]["ImportData"])
        self.assertGreater(imported["n1"]["Put"], 0)
        self.assertGreater(exported["n1"]["Fetch"], 0)
        self.assertEqual(0, near)

    @harness.skip_unless_root
    def test_many_imports(self):
        """More streams at once than one user may have calls, half of them through each daemon: no import waits for others to be given
        up, and none is refused."""
        user = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups")
        for near in (True, False):
            with self.subTest(near=near), self.cluster(nodes=2, devices=1, near=near) as c:
                s = states.State()
                for i in range(32):
                    s.add(np.random.default_rng(self.seed + i), f"t{i}", "U8", (512, 1024))
                jobs = [Job(c, f"j{i}", s, self.path(f"{near}-{i}"), RULES) for i in range(6)]
                for job in jobs:
                    os.chmod(job.dir, 0o755)
                    job.create(prefix=user)
                with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
                    done = [pool.submit(c.ptcctl, *job.import_args(A), "--streams", "16", node=f"n{i % 2}", prefix=user,
                                        timeout_s=50 * harness.PATIENCE) for i, job in enumerate(jobs)]
                    while not all(d.done() for d in done): # the user is answered meanwhile
                        for node in ("n0", "n1"):
                            c.ptcctl("status", jobs[0].name, node=node, prefix=user)
                    for d in done:
                        d.result()
                for job in jobs:
                    c.ptcctl("verify", job.name, prefix=user)

    @staticmethod
    def call_threads(node):
        names = [open(path, encoding="ascii").read() for path in glob.glob(f"/proc/{node.pid()}/task/*/comm")]
        return sum(name.startswith("ptc-rpc-call") for name in names)

    def test_many_imports_over_tls(self):
        """Imports of administrators on other machines, whose bytes all go to the other node, while that is slow: they share the bulk
        threads of a server with the Puts that they wait for, and do not take all of them."""
        slow = "agent.put.middle@*=sleep"
        with self.cluster(nodes=2, devices=1, near=False, transport="tls", staging="512MiB", ceiling="3GiB", up=False) as c:
            for node in c.nodes.values():
                self.arm(node, slow)
            c.up({n: {"PTC_FAULT_FILE": os.path.join(node.dir, "fault")} for n, node in c.nodes.items()}, timeout_s=60 * harness.PATIENCE)
            s = states.State()
            for i in range(16):
                s.add(np.random.default_rng(self.seed + i), f"t{i}", "U8", (1, 3 << 20))
            jobs = [Job(c, f"j{i}", s, self.path(f"{i}"), [{"match": "*"}]) for i in range(8)]
            for job in jobs:
                job.create()
            ca = os.path.join(c.dir, "ca")
            with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
                done = []
                for i, job in enumerate(jobs):
                    server = ("--server", f"localhost:{c.options['ports'][f'n{i % 2}']}", "--ca", f"{ca}/ca.crt", "--cert", f"{ca}/admin.crt",
                              "--key", f"{ca}/admin.key")
                    done.append(pool.submit(c.ptcctl, *job.import_args("tp=1"), "--nodes", f"n{1 - i % 2}", "--streams", "16", *server,
                                            timeout_s=20 * harness.PATIENCE))
                harness.wait_for(lambda: all(self.call_threads(node) >= 40 for node in c.nodes.values()), 20 * harness.PATIENCE,
                                 "calls that wait")
                for node in c.nodes.values():
                    self.arm(node)
                for d in done:
                    d.result()
            for job in jobs:
                c.ptcctl("verify", job.name)

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
