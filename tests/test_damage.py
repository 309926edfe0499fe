# SPDX-License-Identifier: Apache-2.0
"""A bit of the store that changes by itself: no way out of the system gives wrong bytes for right ones.

Real daemons. Each way out is taken once before the damage, so that whatever is verified once and then believed is believed.
"""
import errno
import json
import mmap
import os
import re
import struct
import unittest

import harness
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
        uuid = job.status()["uuid"]
        needle, found = job.state.tensors[field][name].tobytes()[row * COLS * 4:(row + 1) * COLS * 4], 0
        wrong = bytes([needle[0] ^ 1]) + needle[1:]
        for node in nodes:
            with open(os.path.join(c.nodes[node].chunk_dir, uuid, "data.mdb"), "r+b") as f:
                data = f.read()
                for m in re.finditer(b"|".join(map(re.escape, (needle, wrong))), data):
                    f.seek(m.start())
                    f.write(bytes([data[m.start()] ^ 1]))
                    found += 1
        self.assertGreaterEqual(found, len(nodes))

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

    def events(self, c):
        return [json.loads(line) for line in c.ptcctl("events", "j", "--format", "json").stdout.splitlines()]

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
