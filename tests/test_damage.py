# SPDX-License-Identifier: Apache-2.0
"""A bit of the store that changes by itself: no way out of the system gives wrong bytes for right ones.

Real daemons. Each way out is taken once before the damage, so that whatever is verified once and then believed is believed.
"""
import errno
import json
import mmap
import os
import re
import signal
import struct
import subprocess
import time
import unittest

import harness
import live
import numpy as np
import oracle
import state as states
from harness import PATIENCE, Job, wait_for
from test_fuse import CAN_MOUNT, Mount

TP = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
ROWS, COLS = 4096, 256 # 4 MiB of F32


class Damage(harness.Case):
    def job(self, c, config):
        s = states.State({"exp_avg": "F32"})
        rng = np.random.default_rng(self.seed)
        for name in ("a", "b"):
            s.add(rng, name, "F32", (ROWS, COLS))
        job = Job(c, "j", s, self.path("job"), TP)
        job.imported(config)
        return job

    def flip(self, c, job, nodes=("n0",), name="a", field="param", row=100):
        """Changes one bit of the tensor in the chunks of these nodes; again: puts it right."""
        self.flip_bytes(c, job.status()["uuid"], nodes, job.state.tensors[field][name].tobytes()[row * COLS * 4:(row + 1) * COLS * 4])

    def flip_bytes(self, c, uuid, nodes, needle):
        """Wherever these bytes lie there: one bit of the first. It asks no daemon."""
        found = 0
        for node in nodes:
            with open(os.path.join(c.nodes[node].chunk_dir, uuid, "data.mdb"), "r+b") as f:
                for begin, data in self.written(f):
                    at = data.find(needle[1:])
                    while at > 0:
                        if data[at - 1] | 1 == needle[0] | 1:
                            os.pwrite(f.fileno(), bytes([data[at - 1] ^ 1]), begin + at - 1)
                            found += 1
                        at = data.find(needle[1:], at + 1)
        self.assertGreaterEqual(found, len(nodes))

    @staticmethod
    def written(f):
        """(where it begins, bytes) of the parts of a file that are no holes."""
        size, end = os.fstat(f.fileno()).st_size, 0
        while end < size:
            try:
                begin = os.lseek(f.fileno(), end, os.SEEK_DATA)
            except OSError as e:
                if e.errno == errno.ENXIO:
                    return
                raise
            end = os.lseek(f.fileno(), begin, os.SEEK_HOLE)
            yield begin, os.pread(f.fileno(), end - begin, begin)

    def ways(self, c, into):
        """{way out: whether it gave bytes}; each asks for the damaged tensor, and one that refuses names it and its node."""
        got = {}
        for node in c.nodes:
            os.makedirs(self.path(into, node))
            got["whole", node] = c.ptcctl("export", "j", self.path(into, node, "whole"), node=node, check=False)
            got["ranks", node] = c.ptcctl("export", "j", "--ranks", self.path(into, node, "ranks"), node=node, check=False)
        got["verify"] = c.ptcctl("verify", "j", check=False)
        for way, r in got.items():
            if r.returncode:
                self.assertRegex(r.stderr, r'node n0.*"a"', way)
        return {way: r.returncode == 0 for way, r in got.items()}

    def events(self, c, job="j"):
        return [json.loads(line) for line in c.ptcctl("events", job, "--format", "json").stdout.splitlines()]

    def test_every_way_refuses(self):
        """The only copy of a tensor is damaged after all had been read once: nothing is exported, whole or by ranks, at either
        node, nothing moves; the bit put right, all of it works again. It is told once, as an event."""
        with self.cluster(nodes=2, devices=1) as c:
            job = self.job(c, "tp=2")
            ways = self.ways(c, "before")
            self.assertEqual({True}, set(ways.values()), ways)
            self.flip(c, job)
            ways = self.ways(c, "damaged")
            self.assertEqual({False}, set(ways.values()), ways)
            self.refused(c, "resize", "j", "--config", "tp=1", "--nodes", "n1", "--wait", contains='"a"')
            self.assertEqual(1, job.generation())
            events = wait_for(lambda: [e for e in self.events(c) if e["kind"] == "damaged"], 10 * PATIENCE, "the event")
            self.assertEqual(1, len(events), events)
            said = re.search(r'node n0: tensor "a", rows (\d+) to (\d+)', events[0]["text"])
            self.assertTrue(int(said[1]) <= 100 <= int(said[2]) < int(said[1]) + 70, events)
            self.flip(c, job)
            ways = self.ways(c, "after")
            self.assertEqual({True}, set(ways.values()), ways)
            job.resize("tp=1", extra=("--nodes", "n1"))
            job.check_whole(self)

    def kinds(self, c, job="j"):
        return [e["kind"] for e in self.events(c, job)]

    def scrub(self, c, node):
        """What the scrubber of the node says of itself."""
        return json.loads(c.ptcctl("status", "--format", "json", node=node).stdout)["daemon"]["scrub"]

    def test_another_copy(self):
        """Where another node has the same bytes, whoever reads gets right ones: a rank's file, the whole, a switch. The block is
        healed by it. The scrubber reads nothing here."""
        with self.cluster(nodes=3, devices=2, scrub={"rate": "0B"}) as c:
            job = self.job(c, "dp=3")
            reads = [lambda: job.check_ranks(self, oracle.Config("dp=3"), TP), lambda: c.ptcctl("verify", "j", "--repair"),
                     lambda: job.resize("tp=2,dp=3"), lambda: job.resize("dp=6"), lambda: job.check_whole(self)]
            for i, read in enumerate(reads):
                with self.subTest(i):
                    seen = self.kinds(c).count("healed")
                    self.flip(c, job, row=100 + 600 * i)
                    read()
                    wait_for(lambda: self.kinds(c).count("healed") > seen, 10 * PATIENCE, "the event")
                    c.ptcctl("verify", "j")
            job.check_whole(self)
            job.check_ranks(self, oracle.Config("dp=6"), TP)
            self.assertNotIn("unhealed", self.kinds(c))
            healed = [e for e in self.events(c) if e["kind"] == "healed"][0]
            self.assertRegex(healed["text"], r'^node n0: tensor "a", rows \d+ to \d+: block .*; healed from node n[12]$')
            self.assertNotIn("damaged", job.status())

    def test_scrubber(self):
        """Bits flip in chunks that nobody reads: the scrubber finds and heals them, and says how far it is."""
        with self.cluster(nodes=2, devices=1, scrub={"rate": "64MiB", "pause": "0s"}) as c:
            job = self.job(c, "dp=2")
            for name, row in (("a", 7), ("b", 2000), ("a", 4000)):
                self.flip(c, job, name=name, row=row)
            wait_for(lambda: self.kinds(c).count("healed") >= 3, 30 * PATIENCE, "three healed blocks")
            c.ptcctl("verify", "j")
            rounds = self.scrub(c, "n0")["rounds"]
            wait_for(lambda: self.scrub(c, "n0")["rounds"] > rounds + 1, 30 * PATIENCE, "a round without a find")
            said = self.scrub(c, "n0")
            self.assertEqual((64 << 20, 3, 3, 0), tuple(said[k] for k in ("rate", "found_blocks", "healed_blocks", "damaged_blocks")))
            self.assertGreaterEqual(said["bytes"], said["rounds"] * 16 << 20)
            job.check_whole(self)
            job.check_ranks(self, oracle.Config("dp=2"), TP)

    def test_scrubber_rate(self):
        """It reads no faster than it may."""
        with self.cluster(nodes=1, devices=1, scrub={"rate": "2MiB", "pause": "0s"}) as c:
            self.job(c, "dp=1")
            begin, before = time.monotonic(), self.scrub(c, "n0")["bytes"]
            wait_for(lambda: self.scrub(c, "n0")["bytes"] > before + (6 << 20), 60 * PATIENCE, "it reads")
            read = self.scrub(c, "n0")["bytes"] - before
            self.assertLessEqual(read, (2 << 20) * (time.monotonic() - begin) + (2 << 20))

    def test_unhealed(self):
        """The only copy is damaged: status, an event and the metrics say which tensor on which node, until it is right."""
        with self.cluster(nodes=2, devices=1, scrub={"rate": "64MiB", "pause": "0s"}) as c:
            job = self.job(c, "tp=2")
            self.flip(c, job)
            damaged = wait_for(lambda: job.status().get("damaged"), 30 * PATIENCE, "status says so")
            self.assertEqual([("n0", 1)], [(d["node"], d["blocks"]) for d in damaged])
            self.assertEqual("a", damaged[0]["list"][0]["tensor"])
            self.assertRegex(damaged[0]["list"][0]["text"], r"^rows \d+ to \d+: block \d+ of chunk \d+ does not match its checksum$")
            self.assertRegex(c.ptcctl("status", "j").stdout, r"warning: 1 damaged blocks on node n0 .*\n  a  rows")
            said = [e["text"] for e in self.events(c) if e["kind"] == "unhealed"]
            self.assertEqual(1, len(said), said)
            self.assertRegex(said[0], r'^node n0: tensor "a", rows .*no other node has all of its bytes$')
            self.refused(c, "verify", "j", "--repair", contains='"a"')
            self.assertEqual(1, self.scrub(c, "n0")["damaged_blocks"])
            self.flip(c, job)
            wait_for(lambda: "damaged" not in job.status(), 60 * PATIENCE, "status says nothing any more")
            c.ptcctl("verify", "j")
            self.assertEqual(1, self.kinds(c).count("unhealed"))

    @harness.labels("repeats")
    def test_stopped_while_healing(self):
        """Five blocks are damaged, and the only node with copies says nothing: a daemon that is told to stop does, within what systemd
        gives it, though it would ask for minutes."""
        with self.cluster(nodes=2, devices=1, scrub={"rate": "256MiB", "pause": "0s"}) as c:
            job = self.job(c, "dp=2")
            silent = c.nodes["n1"].pid()
            os.kill(silent, signal.SIGSTOP)
            try:
                for row in range(100, 2600, 500):
                    self.flip(c, job, row=row)
                wait_for(lambda: self.scrub(c, "n0")["found_blocks"], 30 * PATIENCE, "the scrubber to find it")
                os.kill(c.nodes["n0"].pid(), signal.SIGTERM)
                wait_for(lambda: not c.nodes["n0"].pid(), 25 * PATIENCE, "the daemon's end")
            finally:
                os.kill(silent, signal.SIGCONT)

    @harness.labels("repeats")
    def test_killed_while_healing(self):
        """A daemon is killed in the middle of a block that it heals, and wherever else it heals: after its restart the block is
        healed, and until then nobody is given other bytes."""
        for point in ("before", "middle", "after"):
            with self.subTest(point), self.cluster(nodes=2, devices=1, scrub={"rate": "0B"},
                                                   env={"n1": {"PTC_FAULT": f"store.heal.{point}=kill"}}) as c:
                job = self.job(c, "dp=2")
                self.flip(c, job, nodes=("n1",))
                c.ptcctl("verify", "j", check=False)
                wait_for(lambda: not c.nodes["n1"].pid(), 30 * PATIENCE, "the daemon is dead")
                c.restart("n1", timeout_s=60 * PATIENCE)
                c.ptcctl("verify", "j", "--repair")
                c.ptcctl("verify", "j")
                job.check_whole(self, node="n1")
                job.check_ranks(self, oracle.Config("dp=2"), TP)

    @unittest.skipUnless(CAN_MOUNT, "FUSE cannot be mounted here")
    @harness.labels("repeats")
    def test_files(self):
        """Files of every kind, at the node that has the bytes and at one that has not, of a mount that had read them and of a new
        one: EIO for the damaged block, right bytes beside it."""
        with self.cluster(nodes=2, devices=1) as c:
            job = self.job(c, "tp=2")
            whole = job.state.tensors["param"]["a"].tobytes()
            mounts, at, bad = {}, {}, 100 * COLS * 4

            def kinds(m):
                top = m.path("j", "state", "latest")
                yield "model", os.path.join(top, "model.safetensors")
                yield "npy", os.path.join(top, "tensors", "a.npy")
                for at, _, names in os.walk(top + "/"):
                    yield from (("rank", os.path.join(at, n)) for n in names if n == "0.safetensors")

            def read(path, off, n):
                """Past the page cache, which is the kernel's; None: refused."""
                fd, buffer = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, n)
                try:
                    return buffer[:os.preadv(fd, [buffer], off)]
                except OSError as e:
                    self.assertEqual(errno.EIO, e.errno)
                    return None
                finally:
                    os.close(fd)

            def begin(path):
                with open(path, "rb") as f:
                    head = f.read(8)
                    if head[:6] == b"\x93NUMPY":
                        return 10 + struct.unpack("<H", (head + f.read(2))[8:10])[0]
                    n = struct.unpack("<Q", head)[0]
                    return 8 + n + json.loads(f.read(n))["a"]["data_offsets"][0]

            for node in c.nodes:
                mounts[node] = Mount(self, c, node=node)
                for kind, path in kinds(mounts[node]):
                    at[kind] = begin(path)
                    self.assertEqual(whole[:1 << 20], read(path, at[kind], 1 << 20), (node, kind))
            self.flip(c, job)
            for node in c.nodes:
                mounts[node, "new"] = Mount(self, c, node=node)
            for which, m in mounts.items():
                for kind, path in kinds(m):
                    got = read(path, at[kind] + bad, 4096)
                    if which in c.nodes and got is not None: # it keeps for a while what came through a daemon
                        self.assertEqual(whole[bad:bad + 4096], got, (which, kind))
                    else:
                        self.assertIsNone(got, (which, kind))
                    # what was asked for together with the block, ahead of a reader, fails with it, and then is asked for by itself
                    beside = wait_for(lambda: read(path, at[kind] + (1 << 20), 1 << 20), 10 * PATIENCE, "bytes beside it")
                    self.assertEqual(whole[1 << 20:2 << 20], beside, (which, kind))
            for m in mounts.values():
                m.stop()

    @unittest.skipUnless(CAN_MOUNT, "FUSE cannot be mounted here")
    def test_files_heal(self):
        """A file whose bytes another node has, too: a reader past the page cache is given right ones, and the block is healed."""
        with self.cluster(nodes=2, devices=1, scrub={"rate": "0B"}) as c:
            job = self.job(c, "dp=2")
            m = Mount(self, c)
            path = m.path("j", "state", "latest", "model.safetensors")
            whole = job.state.tensors["param"]["a"].tobytes()
            with open(path, "rb") as f:
                n = struct.unpack("<Q", f.read(8))[0]
                at = 8 + n + json.loads(f.read(n))["a"]["data_offsets"][0]
            self.flip(c, job)
            fd, buffer = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 20)
            try:
                self.assertEqual(1 << 20, os.preadv(fd, [buffer], at))
            finally:
                os.close(fd)
            self.assertEqual(whole[:1 << 20], buffer[:])
            wait_for(lambda: "healed" in self.kinds(c), 30 * PATIENCE, "the event")
            m.stop()

    # ---- ranks ---------------------------------------------------------------------------------------------------

    ROW, HEAD = 4000, slice(4000, 4016) # of layer 1: no other tensor has these values after any step

    def live_job(self, c, **kw):
        """A job that is live at tp=2,dp=2 on two nodes: each has all of its state."""
        job = live.Job(c, self.path("job"), rows=4096, layers=2, **kw)
        job.run("tp=2,dp=2")
        job.wait_step(3)
        self.uuid = job.status()["uuid"]
        return job

    def at_rest(self, c, job):
        """The job stopped, and its state read by all that can. Returns the step."""
        job.do("stop")
        step = job.wait_run("stopped")["step"]
        c.ptcctl("verify", job.name)
        job.check_state(self, step, self.path(f"at{step}"))
        return step

    def part(self, step):
        return live.layer(4096, 1, step)[self.HEAD].tobytes()

    def arm(self, rule=""):
        harness.replace_file(self.path("fault"), rule)

    def test_no_run_from_it(self):
        """The state that ranks stopped with is damaged after it was read, in every copy: no rank takes a step with it, in whatever
        configuration. One copy put right, the next run goes on from it, and the other is healed."""
        with self.cluster(nodes=2, devices=2) as c:
            job = self.live_job(c)
            step = self.at_rest(c, job)
            ran = job.steps_logged()
            self.flip_bytes(c, self.uuid, ("n0", "n1"), self.part(step))
            for config in ("tp=2,dp=2", "tp=1,dp=4"):
                self.refused(c, "run", job.name, "--config", config, "--wait", contains='tensor "layer.1.weight"',
                             timeout_s=60 * PATIENCE)
                self.assertEqual((step, "stopped"), (job.status()["step"], job.status()["run"]["state"]))
            self.assertEqual(ran, job.steps_logged())
            self.flip_bytes(c, self.uuid, ("n1",), self.part(step))
            c.ptcctl("run", job.name, "--config", "tp=4", "--wait", timeout_s=60 * PATIENCE)
            job.wait_step(step + 3)
            after = self.at_rest(c, job)
            self.assertGreaterEqual(after, step + 3)

    def test_no_restore_of_it(self):
        """What a switch has put together, verified and is about to commit is damaged in every copy: ranks are not given it.
        They fail by the name of the tensor, no rank takes a step, and put right, all goes on with the step before."""
        self.arm()
        with self.cluster(nodes=2, devices=2, env={n: {"PTC_FAULT_FILE": self.path("fault")} for n in ("n0", "n1")}) as c:
            job = self.live_job(c)
            step = self.at_rest(c, job)
            ran = job.steps_logged()
            controller = c.nodes[job.status()["controller"]]
            self.arm("etcd.commit2.before=stop")
            argv = [harness.program("ptcctl"), "run", job.name, "--config", "tp=2,dp=2", "--wait"]
            run = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=c.environment({"PTC_SOCKET": controller.socket}))
            pid = controller.pid()

            def is_stopped():
                with open(f"/proc/{pid}/stat") as f:
                    return f.read().rpartition(")")[2].split()[0] == "T"

            wait_for(is_stopped, 60 * PATIENCE, "the second commit", 0.02)
            self.flip_bytes(c, self.uuid, ("n0", "n1"), self.part(step))
            self.arm()
            os.kill(pid, signal.SIGCONT)
            run.communicate(timeout=120 * PATIENCE) # the switch is committed; what its ranks do then is told by status and events
            failed = job.wait_run("failed")
            self.assertRegex(failed["run"]["text"], r'^node n[01]: restoring "layer\.1\.weight" on rank [0-3]: tensor "layer\.1\.weight", '
                             r"rows \d+ to \d+: block \d+ of chunk \d+ does not match its checksum")
            self.assertEqual(step, failed["step"])
            self.assertEqual([], [key for key in job.steps_logged() if key not in ran], "ranks went on")
            self.assertIn("unhealed", self.kinds(c, job.name))
            self.refused(c, "run", job.name, "--config", "tp=2,dp=2", "--wait", contains='tensor "layer.1.weight"')
            self.flip_bytes(c, self.uuid, ("n0", "n1"), self.part(step))
            c.ptcctl("run", job.name, "--config", "tp=2,dp=2", "--wait", timeout_s=60 * PATIENCE)
            job.wait_step(step + 3)
            self.assertGreaterEqual(self.at_rest(c, job), step + 3)

    def test_restore_heals(self):
        """The same, but damaged at one node only: its ranks are given what the other has, and go on."""
        self.arm()
        with self.cluster(nodes=2, devices=2, scrub={"rate": "0B"}) as c:
            job = self.live_job(c)
            step = self.at_rest(c, job)
            self.flip_bytes(c, self.uuid, ("n0",), self.part(step))
            c.ptcctl("run", job.name, "--config", "tp=2,dp=2", "--wait", timeout_s=60 * PATIENCE)
            job.wait_step(step + 3)
            self.assertGreaterEqual(self.at_rest(c, job), step + 3)
            self.assertIn("healed", self.kinds(c, job.name))
            self.assertNotIn("unhealed", self.kinds(c, job.name))
