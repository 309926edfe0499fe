# SPDX-License-Identifier: Apache-2.0
"""Declared memory is kept: each ptcd (with its etcd child and its tmpfs store) in a cgroup of its own.

Works with v2's memory.max and with v1's memory.limit_in_bytes; a machine that has neither fails, since then nothing
here proves anything.
"""
import base64
import contextlib
import json
import os
import subprocess
import sys
import threading
import unittest

import harness
import numpy as np
import oracle
import state as states
from harness import LONG, PATIENCE, SANITIZED, Job, skip_unless_root, wait_for

MIB = 1 << 20
RULES = [{"match": "*", "split": {"axis": "tp", "dim": 0}, "layer": "h.{}.*"}]

# Takes memory until so many bytes of the group are used; ends with its input.
HOG = """
import sys
taken = []
while int(open(sys.argv[1]).read()) < int(sys.argv[2]) - (4 << 20):
    taken.append(b"x" * (4 << 20))
print("full", flush=True)
sys.stdin.read()
"""


class Group:
    """A memory cgroup; whatever charges to it was first touched by a process inside."""

    def __init__(self, name, limit_bytes):
        self.v1 = os.path.exists("/sys/fs/cgroup/memory/memory.limit_in_bytes")
        base = "/sys/fs/cgroup/memory" if self.v1 else "/sys/fs/cgroup"
        if not self.v1:
            with open(os.path.join(base, "cgroup.subtree_control")) as f:
                if "memory" not in f.read().split():
                    raise AssertionError("this machine has no memory controller, v1 or v2; nothing can be shown here")
        self.path = os.path.join(base, f"ptc-test-{os.getpid()}-{name}")
        os.mkdir(self.path)
        self.write("memory.limit_in_bytes" if self.v1 else "memory.max", limit_bytes)
        with contextlib.suppress(OSError): # swap would hide what memory is used
            self.write("memory.memsw.limit_in_bytes" if self.v1 else "memory.swap.max", limit_bytes if self.v1 else 0)

    def write(self, name, value):
        with open(os.path.join(self.path, name), "w") as f:
            f.write(str(value))

    def read(self, name):
        with open(os.path.join(self.path, name)) as f:
            return f.read()

    def peak_bytes(self):
        return int(self.read("memory.max_usage_in_bytes" if self.v1 else "memory.peak"))

    def usage(self):
        """The file that says how much is used."""
        return os.path.join(self.path, "memory.usage_in_bytes" if self.v1 else "memory.current")

    def killed(self):
        fields = dict(line.split() for line in self.read("memory.oom_control" if self.v1 else "memory.events").split("\n")
                      if line)
        return int(fields.get("oom_kill", 0))

    def prefix(self):
        return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', self.path]

    def remove(self):
        def gone():
            """The kernel keeps a cgroup for a moment after its last process."""
            with contextlib.suppress(OSError):
                os.rmdir(self.path)
            return not os.path.exists(self.path)
        wait_for(gone, 30 * PATIENCE, f"the end of {self.path}", 0.05)


def anonymous(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as f:
        return next((int(line.split()[1]) * 1024 for line in f if line.startswith("RssAnon:")), 0)
    return 0


@harness.labels("repeats")
class Memory(harness.Case):
    def state(self, mib):
        """`mib` MiB in all, in 16 layers, parameters and one field of the same size."""
        s, rng = states.State({"exp_avg": "F32"}), np.random.default_rng(self.seed)
        for layer in range(16):
            s.add(rng, f"h.{layer}.w", "F32", (256, mib * MIB // 16 // 2 // 4 // 256))
        return s

    @contextlib.contextmanager
    def limited(self, ceiling_mib, percent=110, filled=(), **options):
        """A cluster of four, each daemon in its own cgroup with limit = percent of the ceiling. filled: groups in which others
        take memory, too."""
        with self.cluster(nodes=4, devices=2, up=False, transport="tls", ceiling=f"{ceiling_mib}MiB", staging="64MiB",
                          **options) as c:
            groups = {}
            try:
                for name, node in c.nodes.items():
                    groups[name] = Group(name, ceiling_mib * MIB * percent // 100)
                    c.start_node(node, prefix=groups[name].prefix())
                c.wait_nodes(list(c.nodes))
                yield c, groups
            finally:
                c.stop()
                for name, g in groups.items():
                    print(f"{name}: peak {g.peak_bytes() / MIB:.0f} MiB of a ceiling of {ceiling_mib} MiB", flush=True)
                    self.assertEqual(0, g.killed(), f"{name} was killed for memory")
                    if not SANITIZED and name not in filled: # ASan's shadow and quarantine are no memory of ours
                        self.assertLessEqual(g.peak_bytes(), ceiling_mib * MIB, f"{name} used more than its ceiling")
                    # What tmpfs still holds is charged until its files are gone.
                for d, _, files in os.walk(c.options["chunk_root"]):
                    for f in files:
                        os.unlink(os.path.join(d, f))
                for g in groups.values():
                    g.remove()

    @skip_unless_root
    def test_resize_within_the_limit(self):
        if SANITIZED:
            self.skipTest("sanitizers take memory of their own")
        s = self.state(512)
        with self.limited(768) as (c, groups):
            job = Job(c, "mem", s, self.path("job"), RULES)
            job.imported("tp=2,pp=2,dp=2")
            for config in ("tp=4", "tp=2,pp=2,dp=2", "tp=1,pp=4,dp=2", "tp=8"):
                job.resize(config)
            job.check_whole(self)
            job.check_ranks(self, oracle.Config("tp=8"), RULES)
            self.assertEqual(set(groups), {n["node"] for n in c.json("nodes")["nodes"] if n["memory"]["etcd_bytes"] ==
                                           (128 * MIB if n["node"] == "n0" else 0)})
            self.check_shares(c, 768 * MIB)
            self.assertEqual([b"GOMEMLIMIT=96MiB"], self.etcd_limits(c))
            self.check_given_back(c, lambda: job.check_whole(self))

    @skip_unless_root
    def test_made_ahead(self):
        """Memory for the next switch is there before anybody asks for it, and a machine that gets full has it back."""
        if SANITIZED:
            self.skipTest("sanitizers take memory of their own")
        s = self.state(128)
        with self.limited(512, percent=200, spare="256MiB", filled=("n1",)) as (c, groups):
            job = Job(c, "ahead", s, self.path("job"), RULES)
            job.imported("tp=2,pp=2,dp=2")
            limit = 1024 * MIB

            def store(node="n1"):
                return next(n["store"] for n in c.json("nodes")["nodes"] if n["node"] == node)

            def ready():
                return store()["chunks_free"] + 8 > store()["chunks_used"] > 50

            wait_for(ready, 60 * PATIENCE, "chunks made ahead", 0.2)
            before = store()
            self.assertLessEqual(before["file_bytes"], before["ceiling_bytes"] + 4 * MIB)
            hog = subprocess.Popen([*groups["n1"].prefix(), sys.executable, "-c", HOG, groups["n1"].usage(), str(limit - limit // 48)],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            try:
                self.assertEqual(b"full\n", hog.stdout.readline())
                wait_for(lambda: store()["file_bytes"] <= before["file_bytes"] - 32 * MIB, 30 * PATIENCE, "memory given back", 0.2)
                self.assertEqual(before["chunks_used"], store()["chunks_used"])
            finally:
                hog.communicate()
            wait_for(ready, 60 * PATIENCE, "chunks made ahead again", 0.2)
            job.resize("tp=4")
            job.check_whole(self)

    @staticmethod
    def etcd_limits(c):
        """What the etcd children of this cluster were told about memory."""
        found = []
        for pid in c.processes():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as comm, open(f"/proc/{pid}/environ", "rb") as env:
                if comm.read().strip() == "etcd":
                    found += [v for v in env.read().split(b"\0") if v.startswith(b"GOMEMLIMIT=")]
        return found

    def check_shares(self, c, ceiling):
        for n in c.json("nodes")["nodes"]:
            m = n["memory"]
            self.assertEqual(ceiling, m["ceiling_bytes"])
            self.assertEqual(ceiling, sum(v for k, v in m.items() if k != "ceiling_bytes"), "the shares are the ceiling")
            self.assertEqual(m["chunks_bytes"], n["store"]["ceiling_bytes"])
            self.assertLessEqual(n["store"]["file_bytes"], m["chunks_bytes"] + m["tables_bytes"])
            self.assertLessEqual(n["heap"]["peak_bytes"], m["staging_bytes"] + m["work_bytes"])

    def check_given_back(self, c, transfer):
        """An idle daemon keeps little of what transfers have used."""
        def most():
            return max(anonymous(node.pid()) for node in c.nodes.values())
        busy, over = [most()], threading.Event()

        def look():
            while not over.wait(0.1):
                busy.append(most())
        t = threading.Thread(target=look)
        t.start()
        try:
            transfer()
        finally:
            over.set()
            t.join()
        print(f"busy: {max(busy) / MIB:.0f} MiB", flush=True)
        wait_for(lambda: most() < max(max(busy) * 3 // 4, 48 * MIB), 20 * PATIENCE, "less than a busy daemon had", 0.5)

    @unittest.skipUnless(LONG, "set PTC_TEST_LONG=1")
    @skip_unless_root
    def test_many_import_streams(self):
        """What a gateway and its nodes buffer is bounded whatever the number of streams."""
        if SANITIZED:
            self.skipTest("sanitizers take memory of their own")
        with self.limited(768) as (c, groups):
            job = Job(c, "many", self.state(512), self.path("job"), RULES)
            job.create()
            peaks = self.watch(c, lambda: c.ptcctl(*job.import_args("tp=2,pp=4"), "--streams", "16"))
            m = c.json("nodes")["nodes"][0]["memory"]
            bound = m["staging_bytes"] + m["work_bytes"] + m["transport_bytes"]
            for name in groups:
                print(f"{name} grew by {peaks[name] / MIB:.0f} MiB of {bound / MIB:.0f}", flush=True)
                self.assertLess(peaks[name], bound)
            job.check_whole(self)

    @staticmethod
    def record(c):
        """When the job's record was written last, and what it is: a switch's first commit would show."""
        kvs = json.loads(c.etcdctl("get", "--prefix", "/ptc/jobs/", "-w", "json").stdout)["kvs"]
        return [(kv["mod_revision"], kv["value"]) for kv in kvs if base64.b64decode(kv["key"]).endswith((b"/record", b"/intent"))]

    @skip_unless_root
    def test_too_little_is_refused_before_anything_starts(self):
        s = self.state(512)
        with self.limited(576, percent=300) as (c, _):
            job = Job(c, "mem", s, self.path("job"), RULES)
            job.imported("tp=2,pp=4")
            before, record = job.status(), self.record(c)
            line = self.refused(c, "resize", "mem", "--config", "dp=8", "--wait", timeout_s=60)
            self.assertRegex(line, r"memory: node n\d needs \d+ more bytes .* has \d+ of \d+ free; .* raise its memory.ceiling")
            plan = {n["node"]: n for n in c.json("plan", "mem", "--config", "dp=8")["nodes"]}
            self.assertEqual({512 * MIB}, {n["held_bytes"] for n in plan.values()})
            self.assertTrue(all(0 < n["ceiling_bytes"] < n["held_bytes"] for n in plan.values()), plan)
            self.assertEqual(record, self.record(c), "a refused resize has written the record")
            after = job.status()
            self.assertEqual([1, before["snapshot"], before["config"], "idle"], [after[k] for k in ("generation", "snapshot", "config", "phase")])
            job.check_whole(self)

    @unittest.skipUnless(LONG, "set PTC_TEST_LONG=1")
    def test_import_and_export_stream(self):
        """4 GiB through import and export; anonymous memory of client and daemons grows by less than 512 MiB. In the short run
        1 GiB and 192 MiB. A copy of what a node holds would show: it is 1 GiB of the 4 GiB, 256 MiB of the 1 GiB, or the whole
        for a client."""
        if SANITIZED:
            self.skipTest("sanitizers take memory of their own")
        limit, s = 512 * MIB if LONG else 192 * MIB, states.State()
        rng = np.random.default_rng(self.seed)
        block = np.frombuffer(rng.bytes(256 * MIB), dtype="V2").reshape(2048, 65536)
        for i in range(16 if LONG else 4):
            s.tensors["param"][f"h.{i}.w"] = states.Tensor("BF16", (2048, 65536), np.roll(block, i * 4099 + 1))
        with self.cluster(nodes=4, devices=2, transport="tls", ceiling="2GiB", staging="128MiB") as c:
            job = Job(c, "stream", s, self.path("job"), RULES)
            s.tensors["param"].clear()
            del block
            job.create()
            for what, run in (("import", lambda: c.ptcctl(*job.import_args("tp=2,pp=4"), timeout_s=600)),
                              ("export", lambda: job.check_whole(self, timeout_s=600))):
                peaks = self.watch(c, run)
                for name, grown in peaks.items():
                    print(f"{what}: {name} grew by {grown / MIB:.0f} MiB at most (limit {limit / MIB:.0f})", flush=True)
                    self.assertLess(grown, limit, f"{what}: {name}")
            job.delete()

    def watch(self, c, run):
        """Greatest growth of RssAnon of each daemon and of any ptcctl while run() runs."""
        before, peaks, done = {}, {}, threading.Event()
        for name, node in c.nodes.items():
            before[name] = anonymous(node.pid())

        def sample():
            while not done.wait(0.02):
                for name, node in c.nodes.items():
                    peaks[name] = max(peaks.get(name, 0), anonymous(node.pid()) - before[name])
                daemons = {n.pid() for n in c.nodes.values()}
                for pid in c.processes():
                    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as f:
                        if pid not in daemons and f.read().strip() == "ptcctl":
                            peaks["ptcctl"] = max(peaks.get("ptcctl", 0), anonymous(pid))

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            run()
        finally:
            done.set()
            sampler.join()
        return peaks


if __name__ == "__main__":
    unittest.main()
