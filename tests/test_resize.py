# SPDX-License-Identifier: Apache-2.0
"""Import, resize, export: bytes. Every switch is compared with the oracle rank by rank, the whole export by hash."""
import base64
import concurrent.futures
import contextlib
import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import termios
import time
import unittest

import harness
import numpy as np
import oracle
import state as states
from harness import LONG, PATIENCE, SANITIZED, ClusterError, Job, wait_for


SPARE = 2 << 20 # freed chunks that a job may keep, in walks


def shm_bytes(path):
    """What the files below take; those that go meanwhile take nothing."""
    total = 0
    for d, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.lstat(os.path.join(d, name)).st_blocks * 512
    return total


def socket_bytes(c):
    """Bytes sent and received so far at the daemons' listening ports, by all TCP connections that are open."""
    out = subprocess.run(["ss", "-Htino", "state", "established"], stdout=subprocess.PIPE, text=True, check=True).stdout
    ports, total, counted = {str(p) for p in c.options["ports"].values()}, 0, False
    for line in out.split("\n"):
        if line and not line[0].isspace():
            counted = line.split()[2].rpartition(":")[2] in ports # the accepting end of a connection
        elif counted:
            total += sum(int(n) for n in re.findall(r"\bbytes_(?:sent|received):(\d+)", line))
    return total


class Resize(harness.Case):
    def rng(self):
        return np.random.default_rng(self.seed)

    def test_one_tensor(self):
        """The thinnest slice: one tensor, two daemons, one resize. And one that is reset: kept by an import, zeros after each
        switch, of which no byte goes over the network."""
        s = states.State({"m": "F32"})
        s.add(self.rng(), "w", "F32", (64, 16))
        s.add(self.rng(), "z", "F32", (1 << 17, 4))
        rules = [{"match": "w", "split": {"axis": "tp", "dim": 0}},
                 {"match": "z", "split": {"axis": "tp", "dim": 0}, "fields": ["m"]},
                 {"match": "z", "split": {"axis": "tp", "dim": 0}, "state": "reset"}]
        size = (1 << 17) * 4 * 4
        wide = 2 * 64 * 16 * 4 + size # of w, its field and that of z each node lacks half
        with self.cluster(nodes=2, devices=1) as c:
            job = Job(c, "one", s, self.path("job"), rules)
            job.imported("tp=2")
            job.check_ranks(self, oracle.Config(tp=2), rules)
            job.check_whole(self)
            for i, (config, moved, zeros) in enumerate((("dp=2", wide, 2 * size), ("tp=2", 0, size))):
                done = job.resize(config)
                totals = done["plan"]["totals"]
                self.assertEqual((moved, moved, zeros), (totals["between_nodes"], done["received_bytes"], totals["reset"]))
                z = s.tensors["param"]["z"]
                z.array = np.zeros(z.array.shape, z.array.dtype)
                job.check_ranks(self, oracle.Config(config), rules, node=f"n{i % 2}")
            s.write(job.dir)
            job.check_whole(self)
            self.assertEqual(4, c.json("verify", "one")["digests_verified"])
            job.delete()

    def derived_state(self):
        """BF16 parameters that are the nearest to their masters, any bits but NaNs' among these, and one that is F32."""
        s, rng = states.State({"m": "F32"}), self.rng()
        for name, shape in (("w", (256, 2100)), ("rows", (37, 6)), ("x", ()), ("none", (0, 3))):
            s.add(rng, name, "BF16", shape)
            m = s.tensors["m"][name]
            bits = np.frombuffer(m.tobytes(), np.uint32).copy()
            bits[np.isnan(bits.view(np.float32))] = 0x3f808000 # 1 + half a step: to 1, which is even
            m.array = np.frombuffer(bits.tobytes(), m.array.dtype).reshape(shape)
            s.tensors["param"][name].array = np.frombuffer(oracle.round_bf16(bits).tobytes(), "V2").reshape(shape)
        s.add(rng, "f", "F32", (4, 4))
        rows = {"axis": "tp", "dim": 0, "kind": "balanced"}
        return s, [{"match": "f"}, {"match": "x", "state": {"derive": "m"}}, {"match": "w", "split": {"axis": "tp", "dim": 1}, "state": {"derive": "m"}},
                   {"match": "*", "split": rows, "fields": ["m"]}, {"match": "*", "split": rows, "state": {"derive": "m"}}]

    def test_derived(self):
        """What a node lacks of a parameter it makes from its master: no byte of it goes over the network, and each is what it
        was. Where zero cuts masters and not parameters, these move."""
        s, rules = self.derived_state()
        elements = 256 * 2100 + 37 * 6
        with self.cluster(nodes=2, devices=1) as c:
            job = Job(c, "masters", s, self.path("job"), rules)
            job.imported("tp=2")
            for config, moved, derived in (("dp=2", 4, 2), ("tp=2", 0, 0), ("dp=2,zero=1", None, 0), ("tp=2,zero=3", None, 0), ("dp=2", 4, 2)):
                done = job.resize(config)
                totals = done["plan"]["totals"]
                between = totals["between_nodes"] if moved is None else moved * elements
                self.assertEqual((between, between, derived * elements),
                                 (totals["between_nodes"], done["received_bytes"], totals["derived"]), config)
                job.check_ranks(self, oracle.Config(config), rules)
                job.check_whole(self, node="n1")
            self.assertEqual(10, c.json("verify", "masters")["digests_verified"])
            job.delete()

    def test_verified_while_resized(self):
        """verify sees one committed state or the next, never the halves of two: no false alarm, through any number of switches."""
        s = states.State({})
        s.add(self.rng(), "w", "F32", (4096, 4096))
        rules = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
        with self.cluster(nodes=2, devices=2) as c:
            job = Job(c, "job", s, self.path("job"), rules)
            job.imported("tp=2")
            over, found = [], []

            def verify(node):
                while not over or not found:
                    found.append(c.ptcctl("verify", "job", node=node, check=False))

            with concurrent.futures.ThreadPoolExecutor() as pool:
                readers = [pool.submit(verify, node) for node in c.nodes]
                try:
                    for i in range(harness.size(8, 12, 24)):
                        job.resize(("tp=4", "tp=1", "dp=2", "tp=2")[i % 4])
                finally:
                    over.append(True)
                for r in readers:
                    r.result()
            print(f"{len(found)} times verified", flush=True)
            self.assertEqual([], [r.stderr for r in found if r.returncode])
            self.assertNotIn('"verify"', c.ptcctl("events", "job", "--format", "json").stdout)

    def test_not_derivable(self):
        """A parameter that is not what its master makes is refused with the first element, at the import; nothing is changed."""
        s, rules = self.derived_state()
        w = s.tensors["param"]["w"]
        bits = np.frombuffer(w.tobytes(), np.uint16).copy()
        bits[200 * 2100 + 7] ^= 1
        w.array = np.frombuffer(bits.tobytes(), "V2").reshape(w.shape)
        with self.cluster(nodes=2, devices=1) as c:
            job = Job(c, "other", s, self.path("job"), rules)
            for config in ("tp=2", "dp=2,zero=1"):
                r = job.imported(config, check=False) if config == "tp=2" else c.ptcctl(*job.import_args(config), check=False)
                self.assertNotEqual(0, r.returncode)
                self.assertIn(f'"w" cannot be derived: element [200, 7] is 0x{bits[200 * 2100 + 7]:04x}, and its master makes '
                              f'0x{bits[200 * 2100 + 7] ^ 1:04x} of it', r.stderr)
            bits[200 * 2100 + 7] ^= 1
            w.array = np.frombuffer(bits.tobytes(), "V2").reshape(w.shape)
            s.write(job.dir)
            c.ptcctl(*job.import_args("dp=2,zero=1"))
            job.check_whole(self)
            job.delete()

    def test_max_of_equals(self):
        """Without ranks that run there is one value of each tensor, and it is the greatest: whole everywhere, whatever zero cuts."""
        s = states.State({"exp_avg": "F32", "amax": "F32"})
        s.add(self.rng(), "w", "BF16", (37, 6))
        s.add(self.rng(), "w.scale", "F16", (5,))
        rules = [{"match": "*.scale", "state": "max"},
                 {"match": "*", "split": {"axis": "tp", "dim": 0, "kind": "balanced"}, "fields": {"amax": {"split": {"axis": "none"}, "state": "max"}}}]
        whole = [{"match": "*.scale", "shard": "none"}, {"match": "*", "fields": ["amax"], "shard": "none"},
                 {"match": "*", "split": {"axis": "tp", "dim": 0, "kind": "balanced"}}]
        with self.cluster(nodes=2, devices=2) as c:
            job = Job(c, "maxima", s, self.path("job"), rules)
            job.imported("tp=2")
            for config in ("dp=3,zero=3", "tp=2,dp=2,zero=1", "dp=2"):
                job.resize(config)
                job.check_ranks(self, oracle.Config(config), whole)
                job.check_whole(self, node="n1")
            job.delete()

    def random_job(self, tiny):
        """(state, rules, degrees of tp that fit)"""
        rng = self.rng()
        heads, tps = states.VARIANTS[int(rng.integers(len(states.VARIANTS)))]
        return states.random_state(rng, heads, tiny), states.rules(heads), tps

    def bulky_job(self, tiny):
        """A random state with 25 MiB in larger tensors, beside which a partly filled chunk is little."""
        s, rules, tps = self.random_job(tiny)
        for layer in range(states.LAYERS):
            s.add(self.rng(), f"bulk.{layer}", "BF16", (1024, 512))
        return s, [{"match": "bulk.*", "split": {"axis": "tp", "dim": 1, "kind": "balanced"}, "layer": "bulk.{}",
                    "shard": "flat"}, *rules], tps

    def walk(self, switches, tiny, **options):
        """Random switches; after each: bytes, what the stores hold, and over TCP what the sockets carried."""
        rng, (s, rules, tps) = self.rng(), self.bulky_job(tiny)
        with self.cluster(nodes=4, devices=2, spare=f"{SPARE >> 20}MiB", **options) as c:
            job = Job(c, "walk", s, self.path("job"), rules)
            config = oracle.random_config(rng, 8, tps)
            print(f"import as {config}", flush=True)
            job.imported(config)
            job.check_ranks(self, config, rules)
            self.check_stores(c, job, config, rules)
            for i in range(switches):
                config = oracle.random_config(rng, 8, tps)
                print(f"switch {i}: {config}", flush=True)
                before = socket_bytes(c)
                summary = job.resize(config)
                if c.options["transport"] != "unix":
                    self.check_sockets(summary, socket_bytes(c) - before, (256 << 10) + 64 * len(oracle.items(s)))
                self.check_stores(c, job, config, rules)
                job.check_ranks(self, config, rules, node=f"n{i % 4}")
                job.check_whole(self, node=f"n{(i + 1) % 4}")
            c.ptcctl("verify", "walk")
            self.assertEqual(switches + 1, job.generation())
            job.delete()

    def check_sockets(self, summary, moved, talk):
        """What the sockets carried is what the plan says, to 2 %; beside it `talk` bytes, for what a switch says without a
        byte of state."""
        planned = summary["plan"]["totals"]["between_nodes"]
        print(f"planned {planned / 1e6:.2f} MB, at the sockets {moved / 1e6:.2f} MB ({moved - planned:+d} bytes)", flush=True)
        self.assertLessEqual(abs(moved - planned), planned * 0.02 + talk, summary["to"])

    def check_stores(self, c, job, config, rules):
        """In use: the bytes of the node's ranks, the oracle says which; slack: a third (a chunk stays as long as three
        quarters of it are live) and 4 MiB of partly filled chunks. In the file: what is in use, what a job may keep
        (memory.spare), and 1 MiB of LMDB's own pages."""
        job.wait_idle()
        needs = oracle.node_needs(job.state, config, rules, {r["rank"]: r["node"] for r in job.status()["ranks"]})

        left = []

        def within():
            left.clear()
            for row in c.json("nodes")["nodes"]:
                node, used = row["node"], row["store"]["used_bytes"]
                need, file = needs.get(node, 0), shm_bytes(os.path.join(c.nodes[node].chunk_dir, job.status()["uuid"]))
                if used > (need * 4 // 3 + (4 << 20) if need else 0) or file > used + SPARE + (1 << 20):
                    left.append(f"{node} needs {need} bytes, uses {used}, its file takes {file}")
            return not left

        with contextlib.suppress(ClusterError): # a table goes when the last that reads it is gone
            wait_for(within, 10 * PATIENCE, "the stores", 0.1)
        self.assertEqual([], left, config)

    @harness.labels("threads")
    def test_random_unix(self):
        self.walk(2 if SANITIZED else harness.size(5, 6, 10), tiny=harness.size(60, 600, 2000), transport="unix")

    @unittest.skipUnless(LONG, "set PTC_TEST_LONG=1")
    @harness.labels("repeats")
    def test_thousands_of_tiny_tensors(self):
        rng, (heads, _) = self.rng(), states.VARIANTS[0]
        s, rules = states.random_state(rng, heads, 500 if SANITIZED else 3000, fields=()), states.rules(heads)
        with self.cluster(nodes=4, devices=2) as c:
            job = Job(c, "tiny", s, self.path("job"), rules)
            job.imported("tp=2,pp=2")
            job.resize("tp=4,pp=2")
            job.check_ranks(self, oracle.Config("tp=4,pp=2"), rules)
            job.check_whole(self)

    @unittest.skipUnless(LONG, "set PTC_TEST_LONG=1")
    @harness.labels("repeats")
    def test_random_tls(self):
        self.walk(harness.size(3, 6, 30), tiny=harness.size(50, 500, 2000), transport="tls")

    @unittest.skipUnless(LONG, "set PTC_TEST_LONG=1")
    @harness.labels("repeats")
    def test_random_etcd_cluster(self):
        self.walk(harness.size(2, 4, 10), tiny=50, transport="tls", coordinator="etcd-cluster")

    @unittest.skipUnless(LONG, "set PTC_TEST_LONG=1")
    @harness.labels("repeats")
    def test_disk(self):
        self.walk(harness.size(1, 2, 3), tiny=50, store="disk")

    def test_a_b_a(self):
        """A to B to A gives A's bytes on each rank."""
        (s, rules, _), a = self.random_job(20), oracle.Config("tp=2,pp=2,dp=2")
        with self.cluster(nodes=4, devices=2) as c:
            job = Job(c, "aba", s, self.path("job"), rules)
            job.imported(a)
            job.resize("tp=4,pp=2")
            job.resize(a)
            job.check_ranks(self, a, rules)
            job.delete()

    def test_small_elements(self):
        """F4 and F6 are carried where each cut falls on a byte; where one does not, the tensor is named and nothing changes."""
        rules = [{"match": "*", "split": {"axis": "tp", "dim": 0, "kind": "balanced"}}]
        s = states.State()
        for dtype in ("F4", "F6_E2M3", "F6_E3M2"):
            s.add(self.rng(), f"rows.{dtype}", dtype, (6, 8))
        odd = states.State()
        odd.add(self.rng(), "odd.F4", "F4", (10,))
        with self.cluster(nodes=2, devices=2) as c:
            job = Job(c, "small", s, self.path("small"), rules)
            job.imported("tp=2")
            job.resize("tp=3")
            job.check_ranks(self, oracle.Config(tp=3), rules)
            job.check_whole(self)
            job = Job(c, "odd", odd, self.path("odd"), rules)
            job.imported("tp=1")
            self.refused(c, "resize", "odd", "--config", "tp=4", "--wait", codes=(1, 2), contains="odd.F4")
            job.check_ranks(self, oracle.Config(), rules)

    def test_table_and_drain(self):
        """--gpus takes the job's table; drain empties a node, and more devices than there are is an error that says so."""
        s, rules, _ = self.random_job(10)
        with self.cluster(nodes=4, devices=2) as c:
            job = Job(c, "table", s, self.path("job"), rules, gpus={8: {"tp": 2, "pp": 2, "dp": 2}, 4: {"tp": 4}})
            job.imported("tp=2,pp=2,dp=2")
            c.ptcctl("resize", "table", "--gpus", "4", "--wait")
            job.check_ranks(self, oracle.Config(tp=4), rules)
            c.ptcctl("drain", "n1", "--wait", check=True)
            job.wait_idle()
            c.nodes["n1"].kill()
            job.check_whole(self)
            line = self.refused(c, "resize", "table", "--config", "tp=4,dp=4", "--wait")
            self.assertRegex(line, r"16|device")
            job.check_whole(self)

    @harness.labels("repeats")
    def test_import_without_a_configuration(self):
        """The largest entry of the job's table that the devices there are can have; else one rank, which has everything once."""
        s, rules = states.State(), [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
        s.add(self.rng(), "w", "F32", (64, 16))
        table = {2: {"tp": 2}, 4: {"tp": 2, "dp": 2}, 8: {"tp": 8}}
        with self.cluster(nodes=2, devices=2) as c:
            for i, (gpus, args, config, nodes) in enumerate((
                    (table, (), "tp=2,dp=2", {"n0", "n1"}), (table, ("--nodes", "n1"), "tp=2", {"n1"}),
                    (table, ("--gpus", "2"), "tp=2", None), (table, ("--gpus", "3"), "dp=3", {"n0", "n1"}),
                    (table, ("--config", "tp=4"), "tp=4", {"n0", "n1"}), ({8: {"tp": 8}}, (), "tp=1", None), (None, (), "tp=1", None))):
                job = Job(c, f"table{i}", s, self.path(f"job{i}"), rules, gpus=gpus)
                job.create()
                c.ptcctl(*job.import_args(None), *args)
                status = job.status()
                self.assertEqual(str(oracle.Config(config)), str(oracle.Config(status["config"])))
                self.assertIn({r["node"] for r in status["ranks"]}, [nodes] if nodes else [{"n0"}, {"n1"}, {"n0", "n1"}])
                job.check_ranks(self, oracle.Config(config), rules)
                job.delete()
            job.create()
            self.refused(c, "resize", job.name, codes=(2,), contains="needs --config")

    def on_a_terminal(self, c, *args):
        """What a person sees of a command's stderr."""
        terminal, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("4H", 40, 200, 0, 0))
        p = subprocess.Popen([harness.program("ptcctl"), *args], env=c.environment({"PTC_SOCKET": c.nodes["n0"].socket}),
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=end)
        os.close(end)
        seen = b""
        with contextlib.suppress(OSError), os.fdopen(terminal, "rb", buffering=0) as f: # EIO at its end
            while block := f.read(4096):
                seen += block
        self.assertEqual(0, p.wait(60 * PATIENCE), seen)
        return seen.decode()

    @harness.labels("repeats")
    def test_progress_on_a_terminal(self):
        """While bytes move, how many of how many, at which rate, and how long still, in one line that is rewritten. (The
        destination sleeps when some have come.)"""
        s, rules = states.State(), [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
        for i in range(16):
            s.add(self.rng(), f"w{i}", "F32", (1024, 512))
        with self.cluster(nodes=2, devices=1, env={"n1": {"PTC_FAULT": "agent.receive.middle@12=sleep"}}) as c:
            job = Job(c, "shown", s, self.path("job"), rules)
            c.ptcctl("drain", "n1")
            job.imported("tp=1")
            c.ptcctl("drain", "n1", "--undo")
            seen = self.on_a_terminal(c, "resize", "shown", "--config", "tp=1", "--nodes", "n1", "--wait")
            lines = seen.split("\r\033[K")
            print("\n".join(lines), flush=True)
            self.assertTrue(any(re.fullmatch(r"filling: .*  [0-9.]+ MiB of 32(\.0)? MiB  [1-9][0-9]?%  [0-9.]+ [KMG]iB/s  ETA [0-9]+s.*", line)
                                for line in lines), lines)
            self.assertEqual("", lines[-1], "the last line is wiped")
            self.assertNotIn("\n", "".join(lines), "one line, rewritten")
            job.check_whole(self)

    @staticmethod
    def written(c):
        """Everything of jobs in etcd: key, value, and when it was written last."""
        kvs = json.loads(c.etcdctl("get", "--prefix", "/ptc/", "-w", "json").stdout)["kvs"]
        return {base64.b64decode(kv["key"]).decode(): (kv["mod_revision"], kv["value"]) for kv in kvs
                if not base64.b64decode(kv["key"]).startswith(b"/ptc/nodes/")}

    def test_dry_run_changes_nothing(self):
        s, rules, _ = self.random_job(10)
        with self.cluster(nodes=2, devices=2) as c:
            job = Job(c, "dry", s, self.path("job"), rules)
            job.imported("tp=2,dp=2")
            before = self.written(c)
            c.ptcctl("resize", "dry", "--config", "tp=4", "--dry-run")
            self.assertEqual(before, self.written(c))
            self.assertEqual(1, job.generation())

    @harness.labels("repeats")
    def test_large_tensor(self):
        """One tensor of 1 GiB through random configurations (256 MiB through three by default), and what the sockets
        carried against what the plan says."""
        if SANITIZED:
            self.skipTest("too slow with sanitizers")
        s, rng = states.State(), self.rng()
        s.add(rng, "large", "BF16", (8192 if LONG else 1024, 65536))
        rules = [{"match": "*", "split": {"axis": "tp", "dim": 0}, "shard": "flat"}]
        configs = [oracle.random_config(rng, 8, (1, 2, 4, 8)) for _ in range(100)]
        configs = [x for x in configs if x.world <= 2 * x.n["tp"]][:harness.size(5, 5, 10)] # or rank files of up to 8 GiB are compared
        configs = configs if LONG else map(oracle.Config, ("tp=4", "dp=4", "tp=8"))
        with self.cluster(nodes=4, devices=2, transport="insecure", ceiling="4GiB", staging="256MiB") as c:
            job = Job(c, "large", s, self.path("job"), rules)
            job.imported("tp=2,dp=2")
            for config in configs:
                before, start = socket_bytes(c), time.monotonic()
                summary = job.resize(config)
                moved, seconds = socket_bytes(c) - before, time.monotonic() - start
                print(f"-> {config} in {seconds:.2f} s")
                self.check_sockets(summary, moved, 256 << 10)
                job.check_ranks(self, config, rules)
            job.check_whole(self)

    def offline(self, job, before, after, *args):
        """What the planner that asks no daemon says of four nodes with a device each."""
        r = subprocess.run([harness.binary("client/ptcctl"), "plan", "-f", job.yaml, "--from", before, "--to", after, "--nodes", "4",
                            "--devices-per-node", "1", *args, "--format", "json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual((0, ""), (r.returncode, r.stderr))
        return json.loads(r.stdout)

    def check_agrees(self, live, offline):
        slots = lambda doc, name: [(r["rank"], name(r["node"]), r["device"]) for r in doc["ranks"]]
        self.assertEqual(slots(offline["to"], lambda n: f"n{n}"), slots(live, lambda n: n))
        self.assertEqual(offline["groups"], live["groups"])
        self.assertEqual({}, {k: (v, offline["totals"][k]) for k, v in live["totals"].items() if offline["totals"][k] != v})

    def test_racks(self):
        """A TP group of several nodes stays in one rack though that moves more, as the planner says that asks no daemon; where
        none fits, racks are no matter, and the plan says so. Nodes that name no rack are one."""
        s = states.State({"m": "F32"})
        for layer in range(4):
            s.add(self.rng(), f"h.{layer}.w", "F32", (64, 16))
        rules = [{"match": "*", "split": {"axis": "tp", "dim": 0}, "layer": "h.{}.*"}]
        before, after, half = "pp=2,dp=2,order=tp-cp-ep-pp-dp", "tp=2,pp=2", 2 * 64 * 16 * 8 // 2
        with self.cluster(nodes=4, devices=1, racks={"n0": "a", "n1": "a"}) as c:
            job = Job(c, "racked", s, self.path("job"), rules)
            job.imported(before) # n0 and n2 have stage 0, n1 and n3 have stage 1
            free, racked = (self.offline(job, before, after, *a) for a in ((), ("--nodes-per-rack", "2")))
            self.assertEqual((0, 2 * half), (free["totals"]["between_nodes"], racked["totals"]["between_nodes"]))
            self.check_agrees(c.json("plan", job.name, "--config", after), racked)
            done = job.resize(after)
            self.check_agrees(done["plan"], racked)
            self.assertEqual(2 * half, done["received_bytes"])
            at = {r["rank"]: r["node"] for r in job.status()["ranks"]}
            self.assertEqual([["n0", "n1"], ["n2", "n3"]], sorted(sorted((at[k], at[k + 1])) for k in (0, 2)))
            job.check_ranks(self, oracle.Config(after), rules)
            wide = c.json("plan", job.name, "--config", "tp=4")
            self.assertEqual({"count": 1, "split": 0, "across_racks": 1}, wide["groups"])
            self.assertIn("1 of 1 are in more than one rack", c.ptcctl("plan", job.name, "--config", "tp=4").stdout)
            job.resize("tp=4")
            job.check_ranks(self, oracle.Config("tp=4"), rules)
            job.check_whole(self)

    def test_order_of_arrival(self):
        """Ranks are placed by the names of nodes, whatever the order in which the nodes joined."""
        s = states.State()
        s.add(self.rng(), "w", "F32", (64, 16))
        with self.cluster(nodes=4, devices=1, up=False) as c:
            c.start_members()
            there = []
            for name in ("n0", "n3", "n1", "n2"):
                c.start_node(c.nodes[name])
                there.append(name)
                c.wait_nodes(there)
            job = Job(c, "placed", s, self.path("job"), [{"match": "*", "split": {"axis": "tp", "dim": 0}}])
            job.imported("tp=4")
            self.assertEqual(["n0", "n1", "n2", "n3"], [r["node"] for r in sorted(job.status()["ranks"], key=lambda r: r["rank"])])

    @contextlib.contextmanager
    def small_tmpfs(self, directory, size):
        os.makedirs(directory, mode=0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "ptc-test", directory], check=True)
        try:
            yield os.path.join(directory, "rest")
        finally: # a daemon may still have it open; what it has there goes with it
            subprocess.run(["umount", "-l", directory], check=True)

    @harness.skip_unless_root
    def test_full_disk(self):
        """A node's chunks are on a file system that is full: a switch that needs more there is refused with the place, what was
        committed stays readable from it, and the same switch works once there is room."""
        s, rules = states.State(), [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
        for i in range(16):
            s.add(self.rng(), f"w{i}", "F32", (512, 512))
        with self.cluster(nodes=2, devices=2, up=False) as c, self.small_tmpfs(c.nodes["n1"].chunk_dir, "64m") as rest:
            c.up()
            job = Job(c, "full", s, self.path("job"), rules)
            job.imported("tp=4") # 8 MiB on each node
            before = job.status()
            with open(rest, "wb", buffering=0) as f, contextlib.suppress(OSError):
                while f.write(bytes(1 << 16)):
                    pass
            for _ in range(2):
                line = self.refused(c, "resize", "full", "--config", "tp=2", "--nodes", "n1", "--wait")
                self.assertRegex(line, r"n1.*cannot reserve \d+ bytes.*[Nn]o space left")
                after = job.wait_idle()
                self.assertEqual([before[k] for k in ("generation", "config", "ranks")], [after[k] for k in ("generation", "config", "ranks")])
                job.check_ranks(self, oracle.Config("tp=4"), rules)
                job.check_whole(self)
            c.restart("n1") # on a file system that is full
            job.check_whole(self)
            os.unlink(rest)
            job.resize("tp=2", extra=("--nodes", "n1"))
            job.check_ranks(self, oracle.Config("tp=2"), rules)
            job.check_whole(self)
            job.delete()
            c.stop()

    def test_lost_state_is_named(self):
        """A node that is down, or comes back without its bytes: which tensors are missing, and where they were."""
        s = states.State({"exp_avg": "F32"})
        s.add(self.rng(), "a", "F32", (64, 16))
        s.add(self.rng(), "b", "BF16", (30, 8))
        rules = [{"match": "a", "split": {"axis": "tp", "dim": 0}}] # b is replicated
        half = 64 * 16 * 4 // 2
        expected = {"tensors": 2, "bytes": 2 * half,
                    "list": [{"tensor": n, "bytes": half, "nodes": ["n1"]} for n in ("a", "a:exp_avg")]}
        with self.cluster(nodes=2, devices=1) as c:
            job = Job(c, "lost", s, self.path("job"), rules)
            copies = Job(c, "copies", s, self.path("copies"), rules)
            job.imported("tp=2")
            copies.imported("dp=2")
            self.assertNotIn("lost", job.status())
            c.nodes["n1"].kill()
            wait_for(lambda: c.nodes_up() == {"n0"}, 30 * PATIENCE, "n1 listed as down")
            self.assertEqual(expected, job.status()["lost"])
            self.assertNotIn("lost", copies.status())
            self.assertIn(f"a:exp_avg  {half} bytes  n1", c.ptcctl("status", job.name).stdout)
            line = self.refused(c, "resize", job.name, "--config", "tp=1", "--wait", contains="\"a\" was last on n1")
            self.assertIn("ptcctl status lost", line)
            os.mkdir(self.path("waited"))
            waited = os.path.join(self.path("waited"), "model.safetensors")
            with concurrent.futures.ThreadPoolExecutor() as pool: # a node that comes back while an export asks for its bytes
                exported = pool.submit(c.ptcctl, "export", job.name, waited, check=False)
                wait_for(lambda: os.listdir(self.path("waited")) or exported.done(),
                         20 * PATIENCE, "the file being written", 0.001)
                c.restart("n1")
                self.assertEqual((0, ""), (exported.result().returncode, exported.result().stderr))
            self.assertEqual(harness.sha256(job.files["param"]), harness.sha256(waited))
            wait_for(lambda: "lost" not in job.status(), 20 * PATIENCE, "n1's bytes found again")
            c.nodes["n1"].stop()
            shutil.rmtree(c.nodes["n1"].chunk_dir)
            c.restart("n1")
            self.assertEqual(expected, wait_for(lambda: job.status().get("lost"), 20 * PATIENCE, "n1's bytes gone"))

    def node_needs(self, job, state):
        """Bytes that each node's ranks need, each counted once; for a state whose cuts are all even."""
        status = job.status()
        config, held = oracle.Config(status["config"]), {}
        for r in status["ranks"]:
            c = config.coords(r["rank"])
            held.setdefault(r["node"], set()).add((c["tp"], c["pp"]))
        return {node: len(h) * state.bytes() // (config.n["tp"] * config.n["pp"]) for node, h in held.items()}

    def test_store_holds_only_what_it_must(self):
        """In use: the bytes of the node's ranks; slack: a third (a chunk stays as long as three quarters of it are live)
        and 16 MiB of partly filled chunks. In the file: at most twice the state, since a switch needs the old and the new
        at once and chunks are recycled, not given back; slack 24 MiB (LMDB's own pages)."""
        s = states.State({"exp_avg": "F32"})
        for layer in range(8):
            s.add(self.rng(), f"h.{layer}.w", "F32", (1024, 1024))
        rules = [{"match": "*", "split": {"axis": "tp", "dim": 0}, "layer": "h.{}.*"}]
        with self.cluster(nodes=2, devices=2, ceiling="1GiB") as c:
            job = Job(c, "store", s, self.path("job"), rules)
            job.imported("tp=2,dp=2")
            for config in ("tp=4", "tp=2,pp=2", "dp=2,tp=2", "tp=2", "tp=4"):
                job.resize(config)
                job.wait_idle()
                needs = self.node_needs(job, s)
                for row in c.json("nodes")["nodes"]:
                    node, used = row["node"], row["store"]["used_bytes"]
                    need, file = needs.get(node, 0), shm_bytes(c.nodes[node].chunk_dir)
                    print(f"{config}: {node} needs {need / 1e6:.1f} MB, uses {used / 1e6:.1f}, its files {file / 1e6:.1f}")
                    self.assertLessEqual(used, need * 4 // 3 + (16 << 20), f"{node} after {config}")
                    self.assertLessEqual(file, 2 * s.bytes() + (24 << 20), f"{node} after {config}")
            job.delete()
            wait_for(lambda: sum(shm_bytes(n.chunk_dir) for n in c.nodes.values()) < 24 << 20, 20 * PATIENCE,
                     "the nodes' files gone after the job was deleted")


if __name__ == "__main__":
    unittest.main()
