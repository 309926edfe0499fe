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
import unittest

import harness
import live
import numpy as np
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

    @harness.labels("repeats")
    def test_another_copy(self):
        """Where another node has the same bytes, a whole export takes its; a rank's file is that rank's, so it is refused."""
        with self.cluster(nodes=2, devices=1) as c:
            job = self.job(c, "dp=2")
            job.check_whole(self)
            job.export(self.path("ranks"), ranks=True)
            self.flip(c, job)
            for node in c.nodes:
                job.check_whole(self, node=node)
            self.refused(c, "export", "j", "--ranks", self.path("again"), contains='"a"')
            self.refused(c, "verify", "j", contains='"a"')

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
        with open(self.path("fault.new"), "w") as f:
            f.write(rule)
        os.rename(self.path("fault.new"), self.path("fault"))

    def test_no_run_from_it(self):
        """The state that ranks stopped with is damaged at one node after it was read: no rank takes a step with it, in whatever
        configuration; put right, the next run goes on from it."""
        with self.cluster(nodes=2, devices=2) as c:
            job = self.live_job(c)
            step = self.at_rest(c, job)
            ran = job.steps_logged()
            self.flip_bytes(c, self.uuid, ("n0",), self.part(step))
            for config in ("tp=2,dp=2", "tp=1,dp=4"):
                self.refused(c, "run", job.name, "--config", config, "--wait", contains='node n0: tensor "layer.1.weight"',
                             timeout_s=60 * PATIENCE)
                self.assertEqual((step, "stopped"), (job.status()["step"], job.status()["run"]["state"]))
            self.assertEqual(ran, job.steps_logged())
            self.flip_bytes(c, self.uuid, ("n0",), self.part(step))
            c.ptcctl("run", job.name, "--config", "tp=4", "--wait", timeout_s=60 * PATIENCE)
            job.wait_step(step + 3)
            after = self.at_rest(c, job)
            self.assertGreaterEqual(after, step + 3)

    def test_no_restore_of_it(self):
        """What a switch has put together, verified and is about to commit is damaged at one node: the ranks there are not given it.
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
            self.flip_bytes(c, self.uuid, ("n0",), self.part(step))
            self.arm()
            os.kill(pid, signal.SIGCONT)
            run.communicate(timeout=120 * PATIENCE) # the switch is committed; what its ranks do then is told by status and events
            failed = job.wait_run("failed")
            self.assertRegex(failed["run"]["text"], r'^node n0: restoring "layer\.1\.weight" on rank [01]: tensor "layer\.1\.weight", '
                             r"rows \d+ to \d+: block \d+ of chunk \d+ does not match its checksum")
            self.assertEqual(step, failed["step"])
            self.assertEqual([], [key for key in job.steps_logged() if key not in ran and key[2] in (0, 1)], "ranks at n0 went on")
            self.assertEqual(1, len([e for e in self.events(c, job.name) if e["kind"] == "damaged"]))
            self.refused(c, "run", job.name, "--config", "tp=2,dp=2", "--wait", contains='node n0: tensor "layer.1.weight"')
            self.flip_bytes(c, self.uuid, ("n0",), self.part(step))
            c.ptcctl("run", job.name, "--config", "tp=2,dp=2", "--wait", timeout_s=60 * PATIENCE)
            job.wait_step(step + 3)
            self.assertGreaterEqual(self.at_rest(c, job), step + 3)
