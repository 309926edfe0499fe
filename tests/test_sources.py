# SPDX-License-Identifier: Apache-2.0
"""Datasets that lie on one node only, read by ranks of others: n1's daemon lives in a mount namespace of its own, in which alone
the path leads to the files. What arrives elsewhere is compared with the files' bytes and the order's oracle."""
import base64
import contextlib
import errno
import json
import mmap
import os
import re
import subprocess
import threading
import time
import unittest

import dataset_oracle as oracle
import harness
import live
import numpy as np
import order_oracle
import test_partitions
import wire
from harness import LONG, PATIENCE, skip_unless_root, wait_for
from test_fuse import CAN_MOUNT, Mount

SLOTS = test_partitions.SLOTS
OTHER_UID = 65534


def pinned_sources(c, job):
    """{dataset: source} of the job's description, which is sealed in etcd (rpc/trust/seal.h; GCM's first block of text is number 2)."""
    kvs = json.loads(c.etcdctl("get", "--prefix", "/ptc/", "-w", "json").stdout)["kvs"]
    keys = {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv["value"]) for kv in kvs}
    meta = next(m for m in (json.loads(v) for k, v in keys.items() if k.endswith("/meta")) if m["name"] == job.name)
    sealed = b"".join(v for k, v in sorted(keys.items()) if k.startswith(f"/ptc/blobs/{meta['uuid']}/{meta['spec']}/"))
    with open(os.path.join(c.nodes["n0"].dir, "state", "key")) as f:
        key = f.read().split()[2]
    text = subprocess.run(["openssl", "enc", "-d", "-aes-256-ctr", "-K", key, "-iv", sealed[16:28].hex() + "00000002"], input=sealed[28:-16],
                          stdout=subprocess.PIPE, check=True).stdout.decode()
    return dict(re.findall('"dataset": ?"([a-z0-9]+)"[^}]*?"source": ?"([0-9a-f]{32})"', text))


@skip_unless_root
@unittest.skipUnless(CAN_MOUNT, "FUSE cannot be mounted here")
class Sources(harness.Case):
    check, rows, sequences = (getattr(test_partitions.Partitions, name) for name in ("check", "rows", "sequences"))

    def setUp(self):
        super().setUp()
        self.rng = self.random
        os.mkdir(self.path("real")) # where the files are; n1 alone sees them at `shown`, which is what is registered
        os.mkdir(self.path("shown"))

    def start_alone(self, c, **kw):
        script = f'mount --bind {self.path("real")} {self.path("shown")} && exec "$@"'
        c.restart("n1", prefix=["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"], **kw)

    def add(self, c, name, *options, as_user=()):
        inside = ["nsenter", "-m", "-t", str(c.nodes["n1"].pid()), *as_user]
        return c.ptcctl("dataset", "add", name, self.path("shown", name), "--here", *options, node="n1", prefix=inside)

    def run_job(self, c, **data):
        job = live.Job(c, self.dir, run={"data": {k: {"dataset": k, "seed": 5, "global_batch": 10, "micro_batch": SLOTS, **v}
                                                  for k, v in data.items()}})
        job.run("dp=2")
        return job

    def test_elsewhere(self):
        """All kinds, through a daemon whose node has no such path: every byte, as where the source lies."""
        sequences = self.sequences(70)
        oracle.write_indexed(self.path("real", "text"), sequences)
        flat = np.frombuffer(self.rng.randbytes(2 * 3000 * 61), "uint16")
        flat.tofile(self.path("real", "flat"))
        os.mkdir(self.path("real", "files"))
        contents = [self.rng.randbytes(self.rng.randrange(300000)) for _ in range(40)]
        for i, b in enumerate(contents):
            with open(self.path("real", "files", f"{i:02}.bin"), "wb") as f:
                f.write(b)
        with self.cluster(nodes=2, devices=2, transport="tls") as c:
            self.start_alone(c)
            self.add(c, "text")
            self.add(c, "flat", "--kind", "flat", "--dtype", "uint16", "--record", "3000")
            self.add(c, "files")
            self.assertEqual({"n1"}, {d["node"] for d in c.json("dataset", "list")["datasets"]})
            self.assertEqual([], os.listdir(self.path("shown")))
            self.refused(c, "dataset", "inspect", "text", contains="dataset text lies on node n1 only: run this there")
            job = self.run_job(c, text={}, flat={}, files={})
            for node in ("n0", "n1"):
                prefix = ["nsenter", "-m", "-t", str(c.nodes["n1"].pid())] if node == "n1" else []
                mount = None if prefix else Mount(self, c, node=node)
                if not mount: # the source's own node, where it is opened by who reads
                    self.assertEqual(["samples.bin"], self.inside(c, job, prefix))
                    continue
                for name, n, bytes_of, dtype in (("text", 70, lambda i: sequences[i].tobytes(), "int32"),
                                                 ("flat", 61, lambda i: flat[3000 * i:3000 * i + 3000].tobytes(), "uint16"),
                                                 ("files", 40, contents.__getitem__, "uint8")):
                    for rank in range(2):
                        want = self.rows(lambda p, n=n: order_oracle.at(n, 5, p // n, p % n), n, 0, 0, 1, 10, SLOTS, 2, rank)
                        rows = [r for step in want.values() for r in step]
                        folder = mount.path(job.name, "data", name, "gen-1", f"dp-{rank}", "epoch-1")
                        self.check(folder, rows, bytes_of, dtype)
                        if name == "files":
                            listed = sorted(os.listdir(os.path.join(folder, "files")))
                            self.assertEqual([f"{slot:09}-{i:02}.bin" for slot, (i, _) in enumerate(rows)], listed)
                            for entry, (i, _) in zip(listed, rows):
                                with open(os.path.join(folder, "files", entry), "rb") as f:
                                    self.assertEqual(contents[i], f.read(), entry)
                mount.stop()

    def inside(self, c, job, prefix):
        """What ls says in a mount within n1's namespace, and that its bytes are those of a mount elsewhere."""
        mnt = self.path("inside")
        os.mkdir(mnt)
        script = """set -e; trap '"$1" --unmount "$3"' EXIT; "$1" --socket "$2" "$3" & n=0
            until ls "$3/$4" >/dev/null 2>&1; do n=$((n + 1)); test $n -lt 200; sleep 0.05; done
            cd "$3/$4/data/text/gen-1/dp-0/epoch-0"; ls samples.bin; cd /"""
        r = subprocess.run([*prefix, "sh", "-c", script, "sh", harness.binary("daemon/ptc-fuse"), c.nodes["n1"].socket, mnt, job.name],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=c.environment(), timeout=60 * PATIENCE)
        self.assertEqual(0, r.returncode, r.stderr)
        return r.stdout.split()

    def read(self, path, at, n=4096):
        """Past the kernel's cache. Bytes, or the errno's name; and how long it took."""
        began = time.monotonic()
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            buf = mmap.mmap(-1, n)
            got = os.preadv(fd, [buf], at)
            return buf[:got], time.monotonic() - began
        except OSError as e:
            return errno.errorcode[e.errno], time.monotonic() - began
        finally:
            os.close(fd)

    def flat(self, n=256, bytes_=4096):
        """A dataset "flat" of records as long as a page."""
        data = [self.rng.randbytes(bytes_) for _ in range(n)]
        with open(self.path("real", "flat"), "wb") as f:
            f.write(b"".join(data))
        return data

    def test_goes_away(self):
        """The source's daemon is killed, comes back, and is stopped, under a reader: EIO in time with a reason, and bytes again."""
        data = self.flat(bytes_=65536)
        with self.cluster(nodes=2, devices=2, sources={"cache": "0B"}) as c:
            self.start_alone(c)
            self.add(c, "flat", "--kind", "flat", "--dtype", "uint8", "--record", "65536")
            job = self.run_job(c, flat={})
            mount = Mount(self, c, "--timeout", f"{4 * PATIENCE}s")
            folder = mount.path(job.name, "data", "flat", "gen-1", "dp-0", "epoch-0")
            ids = np.load(os.path.join(folder, "ids.npy"))
            file = os.path.join(folder, "samples.bin")
            self.assertEqual(data[ids[3]][:4096], self.read(file, 3 * 65536)[0])
            c.nodes["n1"].kill()
            said, took = self.read(file, 50 * 65536)
            self.assertEqual("EIO", said)
            self.assertLess(took, 5 * PATIENCE)
            with open(mount.log) as f:
                self.assertRegex(f.read(), "dataset flat|node n1")
            self.start_alone(c)
            wait_for(lambda: self.read(file, 50 * 65536)[0] == data[ids[50]][:4096], 20 * PATIENCE, "bytes again", 0.1)
            c.nodes["n1"].signal(19)
            said, took = self.read(file, 99 * 65536)
            self.assertEqual("EIO", said)
            self.assertLess(took, 5 * PATIENCE)
            began = time.monotonic() # names do not wait for it
            self.assertIn("state", os.listdir(mount.path(job.name)))
            self.assertLess(time.monotonic() - began, 2 * PATIENCE)
            c.nodes["n1"].signal(18)
            wait_for(lambda: self.read(file, 99 * 65536)[0] == data[ids[99]][:4096], 20 * PATIENCE, "bytes after SIGCONT", 0.1)
            mount.stop()

    def cached(self, c):
        """Bytes that n0's cache takes on disk."""
        with contextlib.suppress(FileNotFoundError):
            return os.stat(os.path.join(c.nodes["n0"].dir, "state/sources/samples")).st_blocks * 512
        return 0

    def test_ahead(self):
        """What a rank reads next is on its node before it asks: bounded, in order, for every reader there."""
        data = self.flat(3000)
        with self.cluster(nodes=2, devices=2) as c:
            self.start_alone(c)
            self.add(c, "flat", "--kind", "flat", "--dtype", "uint8", "--record", "4096")
            job = self.run_job(c, flat={})
            mount = Mount(self, c)
            folder = mount.path(job.name, "data", "flat", "gen-1", "dp-1", "epoch-0")
            ids = np.load(os.path.join(folder, "ids.npy"))
            file = os.path.join(folder, "samples.bin")
            for slot in range(3):
                self.assertEqual(data[ids[slot]], self.read(file, slot * 4096)[0])
            wait_for(lambda: self.cached(c) >= 1000 * 4096, 20 * PATIENCE, "1000 samples read ahead", 0.05)
            seen = [-1]
            wait_for(lambda: seen.append(self.cached(c)) or seen[-1] == seen[-2], 20 * PATIENCE, "the end of reading ahead", 0.2)
            c.nodes["n1"].kill()
            for slot in (3, 50, 1000):
                self.assertEqual(data[ids[slot]], self.read(file, slot * 4096)[0])
            self.assertEqual("EIO", self.read(file, 1400 * 4096)[0])
            mount.stop()
            other = Mount(self, c)
            file = other.path(job.name, "data", "flat", "gen-1", "dp-1", "epoch-0", "samples.bin")
            self.assertEqual(data[ids[500]], self.read(file, 500 * 4096)[0])
            other.stop()

    def test_cache(self):
        """On disk, bounded, still there after kill -9; damaged at random, it never gives a wrong byte."""
        data = self.flat(3000, 8192)
        with self.cluster(nodes=2, devices=2, sources={"cache": "16MiB"}) as c:
            self.start_alone(c)
            self.add(c, "flat", "--kind", "flat", "--dtype", "uint8", "--record", "8192")
            job = self.run_job(c, flat={})
            mount = Mount(self, c)
            part = (job.name, "data", "flat", "gen-1", "dp-0", "epoch-0")
            ids = np.load(mount.path(*part, "ids.npy"))
            with open(mount.path(*part, "samples.bin"), "rb") as f:
                self.assertEqual(b"".join(data[i] for i in ids), f.read())
            mount.stop()
            self.assertLessEqual(self.cached(c), (16 << 20) + 65536)
            self.assertGreater(self.cached(c), 4 << 20)
            file = os.path.join(c.nodes["n0"].dir, "state/sources/samples")
            for damaged in (False, True):
                c.nodes["n0"].kill() # etcd goes with it and comes back
                if damaged:
                    with open(file, "r+b") as f:
                        for _ in range(500):
                            f.seek(self.rng.randrange(4096, os.path.getsize(file) - 4096))
                            f.write(self.rng.randbytes(self.rng.randrange(1, 3000)))
                c.start_node(c.nodes["n0"])
                c.wait_nodes(["n0"])
                wait_for(lambda: "n1" in (c.nodes_up() or ()), 30 * PATIENCE, "n1 with the new etcd")
                mount = Mount(self, c)
                self.assertIn("samples.bin", os.listdir(mount.path(*part)))
                c.nodes["n1"].kill()
                found = {}
                for slot in self.rng.sample(range(len(ids)), 150):
                    if (got := self.read(mount.path(*part, "samples.bin"), slot * 8192, 8192)[0]) != "EIO":
                        self.assertEqual(data[ids[slot]], got, f"slot {slot}")
                    found[got == "EIO"] = found.get(got == "EIO", 0) + 1
                self.assertGreater(found.get(False, 0), 5, found)
                mount.stop()
                self.start_alone(c)

    def test_changed(self):
        """A source that is written, or replaced, is refused while it is read and when it is opened again."""
        data = self.flat()
        with self.cluster(nodes=2, devices=2, sources={"cache": "0B"}) as c:
            self.start_alone(c)
            self.add(c, "flat", "--kind", "flat", "--dtype", "uint8", "--record", "4096")
            job = self.run_job(c, flat={})
            mount = Mount(self, c)
            folder = mount.path(job.name, "data", "flat", "gen-1", "dp-0", "epoch-0")
            file = os.path.join(folder, "samples.bin")
            ids = np.load(os.path.join(folder, "ids.npy"))
            self.assertEqual(data[ids[0]], self.read(file, 0)[0])
            with open(self.path("real", "flat"), "r+b") as f:
                f.seek(100 * 4096)
                f.write(b"other")
            for slot in (1, 2): # as it is open, and opened anew
                self.assertEqual("EIO", self.read(file, slot * 4096)[0])
            mount.stop()
            mount = Mount(self, c)
            self.assertRaises(OSError, os.listdir, mount.path(job.name, "data", "flat", "gen-1"))
            with open(mount.log) as f:
                self.assertRegex(f.read(), "flat has changed since it was added|flat was written to since it was added")
            mount.stop()

    def ask(self, c, caller, node, **fields):
        """DatasetRead as another user; the reply, or the status's text."""
        import grpc
        os.seteuid(caller)
        try:
            with wire.Peer(f"unix:{c.nodes[node].socket}") as p:
                return p.call("Control", "DatasetRead", **fields)
        except grpc.RpcError as e:
            return e.details()
        finally:
            os.seteuid(0)

    def test_rights(self):
        """The source is read as its owner, whoever runs the daemons: what he may not open any more nobody reads for him."""
        data = self.flat(n=16)
        for path in (self.path("real"), self.path("real", "flat")):
            os.chown(path, OTHER_UID, OTHER_UID)
        os.chmod(self.path("real"), 0o700)
        other = ["setpriv", f"--reuid={OTHER_UID}", f"--regid={OTHER_UID}", "--clear-groups"]
        with self.cluster(nodes=2, devices=2, sources={"cache": "0B"}) as c:
            self.start_alone(c)
            self.add(c, "flat", "--kind", "flat", "--dtype", "uint8", "--record", "4096", as_user=other)
            job = live.Job(c, self.dir, run={"data": {"flat": {"dataset": "flat"}}})
            c.ptcctl("job", "create", "-f", job.yaml) # its description says which source it means
            source, = pinned_sources(c, job).values()
            fields = {"dataset": "flat", "source": source, "samples": [3, 15], "offsets": [0, 4090], "lengths": [4096, 100]}
            for node in ("n0", "n1"):
                for uid in (OTHER_UID, 0):
                    reply = self.ask(c, uid, node, **fields)
                    self.assertEqual((data[3] + data[15][4090:], [4096, 4096]), (reply.data, list(reply.sizes)))
                self.assertIn("not registered", self.ask(c, 65533, node, **fields))
                self.assertEqual(data[3], self.ask(c, 0, node, **{**fields, "lengths": [4096, 0]}, uid=OTHER_UID).data)
                self.assertEqual(data[3], self.ask(c, OTHER_UID, node, **{**fields, "lengths": [4096, 0]}, uid=OTHER_UID).data)
                self.assertIn("not registered", self.ask(c, 0, node, **fields, uid=65533)) # for whom root may not
                self.assertIn("which only root may do", self.ask(c, 65533, node, **fields, uid=OTHER_UID))
                self.assertIn("another source", self.ask(c, OTHER_UID, node, **{**fields, "source": "0" * 32}))
                self.assertIn("at most", self.ask(c, OTHER_UID, node, **{**fields, "lengths": [4096, 1 << 20]}))
                self.assertIn("differ in count", self.ask(c, OTHER_UID, node, **{**fields, "lengths": [1]}))
                self.assertIn("no 16", self.ask(c, OTHER_UID, node, **{**fields, "samples": [3, 16]}))
                self.assertIn("are not files", self.ask(c, OTHER_UID, node, **{**fields, "names": True}))
            helpers = self.helpers(c)
            self.assertEqual([OTHER_UID], [uid for _, uid in helpers])
            with open(f"/proc/{helpers[0][0]}/oom_score_adj") as f:
                self.assertEqual("500\n", f.read())
            os.kill(helpers[0][0], 9)
            self.assertEqual(data[3] + data[15][4090:], self.ask(c, OTHER_UID, "n0", **fields).data) # by another one
            os.kill(self.helpers(c)[0][0], 9)
            os.chown(self.path("real"), 0, 0)
            self.assertIn("cannot open", self.ask(c, OTHER_UID, "n0", **fields))
            self.assertIn("Permission denied", self.ask(c, OTHER_UID, "n0", **fields))

    def test_grown(self):
        """A file that grows between two reads, a piece of which was kept meanwhile: no byte is made up."""
        os.mkdir(self.path("real", "grown"))
        data = self.rng.randbytes(65536)
        with open(self.path("real", "grown", "one"), "wb") as f:
            f.write(data[:32768])
        with self.cluster(nodes=2, devices=2) as c:
            self.start_alone(c)
            self.add(c, "grown", "--kind", "files")
            job = live.Job(c, self.dir, run={"data": {"grown": {"dataset": "grown", "seed": 1, "global_batch": 1, "micro_batch": 1}}})
            c.ptcctl("job", "create", "-f", job.yaml)
            source, = pinned_sources(c, job).values()
            what = {"dataset": "grown", "source": source, "samples": [0]}
            self.assertEqual(data[16384:32768], self.ask(c, 0, "n0", **what, offsets=[16384], lengths=[16384]).data)
            with open(self.path("real", "grown", "one"), "ab") as f:
                f.write(data[32768:])
            self.assertRegex(self.ask(c, 0, "n0", **what, offsets=[0], lengths=[65536]), "another size than before")
            self.assertEqual(data[49152:], self.ask(c, 0, "n0", **what, offsets=[49152], lengths=[16384]).data)

    def test_many(self):
        """More sources, and more readers at once, than there are processes for: all are answered, and few processes are left."""
        contents = {f"d{i:02}": self.rng.randbytes(40000) for i in range(20)}
        with self.cluster(nodes=2, devices=2, sources={"cache": "0B"}) as c:
            self.start_alone(c)
            for name, data in contents.items():
                with open(self.path("real", name), "wb") as f:
                    f.write(data)
                self.add(c, name, "--kind", "flat", "--dtype", "uint8", "--record", "1000")
            job = live.Job(c, self.dir, run={"data": {"all": {"mix": [{"dataset": n} for n in contents]}}})
            c.ptcctl("job", "create", "-f", job.yaml)
            pinned = pinned_sources(c, job)
            self.assertEqual(set(contents), set(pinned))
            right = []

            def reader(names):
                with wire.Peer(f"unix:{c.nodes['n0'].socket}") as p:
                    for name in names:
                        sample = int(name[1:])
                        reply = p.call("Control", "DatasetRead", dataset=name, source=pinned[name], samples=[sample, 39],
                                       offsets=[0, 990], lengths=[1000, 20])
                        right.append(reply.data == contents[name][1000 * sample:1000 * sample + 1000] + contents[name][-10:])

            threads = [threading.Thread(target=reader, args=(self.rng.sample(sorted(contents), 20),)) for _ in range(12)]
            threads += [threading.Thread(target=reader, args=(["d00"] * 20,)) for _ in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual([True] * 400, right) # none has failed
            self.assertTrue(0 < len(self.helpers(c)) <= 16, self.helpers(c))

    @staticmethod
    def helpers(c):
        """[(pid, uid)] of n1's daemon's readers of sources."""
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/status") as f:
                    status = dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
            except OSError:
                continue
            if status["Name"] == "ptc-source" and int(status["PPid"]) == c.nodes["n1"].pid() and status["State"][0] != "Z":
                found.append((int(entry), int(status["Uid"].split()[0])))
        return found

    @unittest.skipUnless(LONG, "set PTC_TEST_LONG=1; a process is given up after 8 s")
    def test_hangs(self):
        """A source whose disk does not answer: its process is given up, readers elsewhere and their daemons are not."""
        data = self.flat(bytes_=65536)
        with self.cluster(nodes=2, devices=2, sources={"cache": "0B"}) as c:
            self.start_alone(c)
            self.add(c, "flat", "--kind", "flat", "--dtype", "uint8", "--record", "65536")
            job = self.run_job(c, flat={})
            mount = Mount(self, c)
            folder = mount.path(job.name, "data", "flat", "gen-1", "dp-0", "epoch-0")
            ids = np.load(os.path.join(folder, "ids.npy"))
            self.assertEqual(data[ids[0]][:4096], self.read(os.path.join(folder, "samples.bin"), 0)[0])
            hung, = self.helpers(c)
            os.kill(hung[0], 19)
            said, took = self.read(os.path.join(folder, "samples.bin"), 50 * 65536)
            self.assertEqual("EIO", said)
            self.assertTrue(7 < took < 12 * PATIENCE, took)
            with open(mount.log) as f:
                self.assertIn("its source has not answered in time", f.read())
            self.assertEqual(data[ids[99]][:4096], self.read(os.path.join(folder, "samples.bin"), 99 * 65536)[0])
            self.assertNotIn(hung, self.helpers(c))
            mount.stop()

    @unittest.skipUnless(LONG, "set PTC_TEST_LONG=1; a reader waits 8 s")
    def test_opens_slowly(self):
        """A source that takes longer to open than a reader waits is open when he asks again."""
        data = self.flat()
        slow = self.path("slow")
        with open(slow, "w") as f:
            f.write(f'#!/bin/sh\necho >> {slow}.log\nsleep 11\nexec {harness.binary("daemon/ptc-source")} "$@"\n')
        os.chmod(slow, 0o755)
        with self.cluster(nodes=2, devices=2, sources={"cache": "0B"}) as c:
            self.start_alone(c, env={"PTC_SOURCE": slow})
            self.add(c, "flat", "--kind", "flat", "--dtype", "uint8", "--record", "4096")
            job = live.Job(c, self.dir, run={"data": {"flat": {"dataset": "flat"}}})
            c.ptcctl("job", "create", "-f", job.yaml)
            source, = pinned_sources(c, job).values()
            fields = {"dataset": "flat", "source": source, "samples": [9], "offsets": [0], "lengths": [4096]}
            self.assertIn("its source has not been opened in time", self.ask(c, 0, "n0", **fields))
            self.assertEqual(data[9], self.ask(c, 0, "n0", **fields).data)
            with open(slow + ".log") as f:
                self.assertEqual("\n", f.read()) # one process
