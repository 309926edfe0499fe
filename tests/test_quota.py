# SPDX-License-Identifier: Apache-2.0
"""What etcd is kept from: one user who fills it, and the daemons themselves over thousands of switches.

Real daemons and etcd. The database's figures are etcd's own (`etcdctl endpoint status`).
"""
import itertools
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest

import harness
import live
import numpy as np
import state as states
from harness import PATIENCE, SANITIZED, Job, needs, skip_unless_root, wait_for

OTHER_UID = 65534
OTHER = ["setpriv", f"--reuid={OTHER_UID}", "--clear-groups"]
RULES = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
MiB = 1 << 20
FLAT = ["--kind", "flat", "--dtype", "uint8", "--record", "8"]


class Quota(harness.Case):
    def description(self, name, tensors=1):
        """A job.yaml that names so many tensors; 5,000 are about 400 KB in etcd."""
        path = self.path(f"{name}.yaml")
        with open(path, "w") as f:
            json.dump({"version": 1, "name": name, "rules": RULES,
                       "tensors": [{"name": f"a.tensor.of.a.name.as.long.as.usual.{i}", "dtype": "F32", "shape": [8, 8]}
                                   for i in range(tensors)]}, f)
        return path

    def create(self, c, name, tensors=1, prefix=OTHER, node="n0", **kw):
        return c.ptcctl("job", "create", "-f", self.description(name, tensors), prefix=prefix, node=node, **kw)

    def refused_job(self, c, name, contains, tensors=1, prefix=OTHER):
        line = self.refused(c, "job", "create", "-f", self.description(name, tensors), prefix=prefix, contains=contains)
        self.assertNotIn(name, [j["job"] for j in c.json("job", "list")["jobs"]])
        return line

    def small_job(self, c, name, config="tp=1"):
        s = states.State()
        for i in range(4):
            s.add(np.random.default_rng(self.seed + i), f"w.{i}", "F32", (64, 8))
        job = Job(c, name, s, self.path(name), RULES)
        job.imported(config)
        return job

    @skip_unless_root
    def test_jobs(self):
        """So many jobs of one user and no more, also of those that come at once at several daemons; root has no bound."""
        with self.cluster(nodes=2, devices=1, quota={"jobs": 4}) as c:
            results = []
            threads = [threading.Thread(target=lambda i=i: results.append(
                self.create(c, f"at-once-{i}", node=f"n{i % 2}", check=False).returncode)) for i in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            there = [j["job"] for j in c.json("job", "list")["jobs"]]
            self.assertEqual(sorted([0] * len(there) + [1] * (8 - len(there))), sorted(results))
            self.assertLessEqual(len(there), 4)
            for i in range(len(there), 4): # of those that see each other, all may be refused
                self.create(c, f"after-{i}")
            self.refused_job(c, "fifth", "has 4 jobs, and may have 4 (quota.jobs)")
            self.create(c, "of-root", prefix=())
            name = c.json("job", "list", prefix=OTHER)["jobs"][0]["job"]
            c.ptcctl("job", "delete", name, prefix=OTHER)
            self.create(c, "fifth")
            for j in c.json("job", "list")["jobs"]:
                c.ptcctl("job", "delete", j["job"])
            self.assertEqual("", c.etcdctl("get", "--prefix", "--keys-only", "/ptc/users/").stdout.strip())

    @skip_unless_root
    @needs(modules=("grpc",))
    def test_datasets(self):
        """So many datasets of one user and no more, also of those that come at once; root and others still add theirs."""
        add = textwrap.dedent("""
            import grpc, json, sys, threading
            sys.path.insert(0, sys.argv[1])
            import wire
            added = []
            def some(p, i):
                for k in range(4):
                    try:
                        p.call("Control", "DatasetAdd", json=json.dumps(json.loads(sys.argv[3]) | {"name": f"d-{i}-{k}"}))
                        added.append(0)
                    except grpc.RpcError as e:
                        added.append(e.details())
            with wire.Peer(f"unix:{sys.argv[2]}", timeout_s=60) as p:
                threads = [threading.Thread(target=some, args=(p, i)) for i in range(4)]
                for t in threads: t.start()
                for t in threads: t.join()
            print(json.dumps(added))
        """)
        with self.cluster(nodes=1, devices=1, quota={"datasets": 5}) as c:
            source = self.path("s.bin")
            with open(source, "wb") as f:
                f.write(bytes(64))
            os.chmod(self.dir, 0o755)
            c.ptcctl("dataset", "add", "of-root", source, *FLAT)
            doc = next(d for d in c.json("dataset", "list")["datasets"] if d["name"] == "of-root")
            said = subprocess.run([*OTHER, sys.executable, "-c", add, os.path.dirname(os.path.abspath(__file__)), c.nodes["n0"].socket,
                                   json.dumps(doc)], stdout=subprocess.PIPE, text=True, check=True).stdout
            said = json.loads(said)
            self.assertEqual(5, said.count(0), said)
            self.assertIn("has 5 datasets, and may have 5 (quota.datasets)", next(s for s in said if s))
            names = [d["name"] for d in c.json("dataset", "list", prefix=OTHER)["datasets"]]
            self.assertEqual(5, len(names))
            c.ptcctl("dataset", "add", "of-root-2", source, *FLAT)
            c.ptcctl("dataset", "remove", names[0], prefix=OTHER)
            c.ptcctl("dataset", "add", "again", source, *FLAT, prefix=OTHER)
            self.refused(c, "dataset", "add", "sixth", source, *FLAT, prefix=OTHER, contains="(quota.datasets)")

    @skip_unless_root
    def test_documents(self):
        """A user creates large jobs until he is refused, again and again, and deletes them; meanwhile others create, resize and ask.
        Then etcd's database is as small as before."""
        with self.cluster(nodes=2, devices=2, quota={"documents": "1MiB", "etcd": "64MiB"}) as c:
            job, stop, waits = self.small_job(c, "of-root"), threading.Event(), []
            before = live.database(c)

            def ask():
                while not stop.is_set():
                    began = time.monotonic()
                    c.ptcctl("status", "of-root", node="n1")
                    waits.append(time.monotonic() - began)

            asking = threading.Thread(target=ask)
            asking.start()
            try:
                for turn in range(harness.size(2, 6, 20)):
                    for i in range(2):
                        self.create(c, f"large-{i}", 5000)
                    line = self.refused_job(c, "large-2", "(quota.documents)", 5000)
                    self.assertIn("may have 1.00 MiB", line)
                    self.assertLess(live.database(c)[0], 48 * MiB)
                    job.resize(["tp=2", "tp=1"][turn % 2])
                    self.small_job(c, f"other-{turn}")
                    for i in range(2):
                        c.ptcctl("job", "delete", f"large-{i}", prefix=OTHER)
            finally:
                stop.set()
                asking.join()
            self.check_prompt(waits)
            kept = json.loads(c.etcdctl("get", "--prefix", "/ptc/blobs/", "-w", "json").stdout)["kvs"]
            self.assertLess(sum(len(kv.get("value", "")) for kv in kept), 64 << 10)
            self.assertLess(live.database(c)[0], before[0] + 48 * MiB)
            job.check_whole(self)

    def fill(self, c, until, keys=None, of=0):
        """Live values of somebody else's, nearly half a MiB each, until the database is so large (of=1: what is used of it), or takes no more."""
        keys = keys or itertools.count()
        with tempfile.NamedTemporaryFile("w", dir=self.dir) as f:
            f.write("x" * (MiB // 2 - 4096))
            f.flush()
            done = 0
            while done == 0 and live.database(c)[of] < until:
                with open(f.name) as value:
                    done = subprocess.run(["etcdctl", "--endpoints", ",".join(c.etcd_urls()), "put", f"junk/{next(keys)}"], stdin=value,
                                          env={**c.environment(), "ETCDCTL_API": "3"}, stdout=subprocess.DEVNULL,
                                          stderr=subprocess.DEVNULL, check=False).returncode

    def test_room_for_commits(self):
        """Above three quarters of etcd's quota no job is created, but those there are go on; with less in it, all is well again."""
        with self.cluster(nodes=2, devices=2, quota={"etcd": "64MiB"}) as c:
            job = self.small_job(c, "there-is")

            keys = itertools.count() # never one twice: what replaces a value leaves free pages behind

            def filled():
                """ptcd writes the file anew when a quarter of it is free pages: then it is smaller, and there is room for more."""
                self.fill(c, 50 * MiB, keys, of=1) # well below where etcd itself takes no more
                return live.database(c)[1] > 49 * MiB
            wait_for(filled, 30 * PATIENCE, "a database that stays as large as it is", 0.2)
            self.refused_job(c, "new", "of quota.etcd 64.0 MiB", prefix=())
            job.resize("tp=2")
            job.check_whole(self)
            wait_for(lambda: c.json("status")["daemon"]["coordinator_bytes"] > 48 * MiB, 30 * PATIENCE, "its size in status", 0.2)
            self.assertEqual(0, c.etcdctl("del", "--prefix", "junk/").returncode)
            wait_for(lambda: self.create(c, "new", prefix=(), check=False).returncode == 0, 60 * PATIENCE, "room for a job", 0.5)
            self.assertLess(live.database(c)[0], 16 * MiB)

    def arm(self, rules=""):
        harness.replace_file(self.path("fault"), rules)

    def test_full(self):
        """etcd at its quota takes no writes: jobs say so; what was deleted is given back by ptcd, without a person."""
        points = os.environ.get("PTC_FAULT_LIST", self.path("points"))
        self.arm("etcd.compact.after=hold") # what is deleted then is forgotten the next time only
        with self.cluster(nodes=1, devices=2, quota={"etcd": "32MiB"},
                          env={"n0": {"PTC_FAULT_FILE": self.path("fault"), "PTC_FAULT_LIST": points}}) as c:
            job = self.small_job(c, "there-is")
            self.fill(c, 64 * MiB)
            self.refused_job(c, "new", "etcd takes no writes: its database has reached its quota", prefix=())
            wait_for(lambda: "etcd.compact.after" in open(points).read().split(), 30 * PATIENCE, "a compaction")
            self.assertEqual(0, c.etcdctl("del", "--prefix", "junk/").returncode)
            self.arm()
            wait_for(lambda: self.create(c, "new", prefix=(), check=False).returncode == 0, 60 * PATIENCE, "writes again", 0.5)
            job.resize("tp=2")
            job.check_whole(self)
            self.assertEqual("", c.etcdctl("alarm", "list").stdout.strip())

    @staticmethod
    def is_of_calls(path):
        try:
            with open(path) as f:
                return f.read().startswith("ptc-rpc-call")
        except FileNotFoundError: # it has just ended
            return True

    def soaked(self, c):
        """What no number of switches may add to: memory, descriptors and threads of daemons, processes, chunks, files, keys in etcd but
        events. Threads of calls are left out: there are more once more calls have come at a time, up to a bound of their own."""
        def look():
            out = live.usage(c, [])
            out["ptcd threads"] = sum(not self.is_of_calls(f"/proc/{n.pid()}/task/{t}/comm") for n in c.nodes.values()
                                      for t in os.listdir(f"/proc/{n.pid()}/task"))
            out["files"] = sum(len(files) for n in c.nodes.values() for where, _, files in os.walk(n.dir) if "/etcd" not in where)
            return out
        least = live.least(look)
        least["keys"] = sum("/events/" not in k for k in c.etcdctl("get", "--prefix", "--keys-only", "/ptc/").stdout.split())
        return least

    @harness.labels("repeats")
    def test_soak(self):
        """Switch after switch: so many revisions each, and a database that does not grow with their number, nor anything else
        (2,000 with PTC_TEST_CAMPAIGN)."""
        switches, configs = harness.size(40, 300, 2000), ["tp=2", "tp=4", "tp=1", "dp=2"]
        with self.cluster(nodes=2, devices=2, env=harness.measured_env(harness.NO_LEAKS)) as c:
            job = self.small_job(c, "soak")
            wait_for(lambda: job.resize("dp=2") and True, 60, "a first switch")
            began, most, warm = live.database(c), 0, None
            for i in range(switches):
                job.resize(configs[i % 4])
                most = max(most, live.database(c)[0]) if i % 10 == 0 else most
                if i + 1 == switches // 2:
                    warm = self.soaked(c)
            ended = live.database(c)
            most = max(most, ended[0])
            now = self.soaked(c)
            print(f"{switches} switches: {(ended[2] - began[2]) / switches:.2f} revisions each; database {began[0] >> 10} KiB at first, "
                  f"{most >> 10} KiB at most, {ended[0] >> 10} KiB at last, {ended[1] >> 10} KiB of it in use\n"
                  f"after {switches // 2}: {warm}\nat last: {now}", flush=True)
            self.assertLess(ended[2] - began[2], 7 * switches)
            # three times what a thousand revisions and as many events take
            self.assertLess(most, min(12 * MiB, began[0] + switches * 16384 + MiB))
            # of the newest 4,096 events a daemon has a copy: 2 a switch, of half a KiB
            slack = {"ptcd KiB": (24 << 10) if SANITIZED else 4096, "ptcd fds": 2, "ptcd threads": 2}
            self.assertEqual({}, {k: (warm[k], now[k]) for k in now if now[k] > warm[k] + slack.get(k, 0)}, "grew in the second half")
            events = c.etcdctl("get", "--prefix", "--keys-only", "/ptc/events/").stdout.split()
            self.assertLessEqual(len(events), 1020 + 40)
            job.check_whole(self)


if __name__ == "__main__":
    unittest.main()
