# SPDX-License-Identifier: Apache-2.0
"""The file system: what ordinary tools read below a mount, who may, and what happens while things go away.

Real daemons, a real mount. Without /dev/fuse, or where nothing can be mounted, these are skipped; fusefs/test_fs.c and
its fuzz target go through the same requests over a socket.
"""
import contextlib
import ctypes
import errno
import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import harness
import numpy as np
import oracle
import state as states
from harness import PATIENCE, Job, skip_unless_root, wait_for

OTHER_UID = 65534
MOUNT_S = 10 * PATIENCE
LIBC = ctypes.CDLL(None, use_errno=True)
DETACH = 2


def mounts(below):
    """Mount points below a directory."""
    with open("/proc/self/mountinfo") as f:
        return [line.split()[4] for line in f if line.split()[4].startswith(below + "/")]


def can_mount():
    """Whether FUSE can be mounted here at all: asked of the program itself, with a daemon that is not there."""
    if not os.path.exists("/dev/fuse"):
        return False
    with tempfile.TemporaryDirectory(prefix="ptc-") as d:
        p = subprocess.Popen([harness.binary("daemon/ptc-fuse"), "--socket", d + "/none", d], stderr=subprocess.DEVNULL)
        ok = None
        while ok is None:
            ok = True if d in {m for m in mounts(os.path.dirname(d))} else False if p.poll() is not None else None
            time.sleep(0.01)
        p.terminate()
        p.wait()
        return ok


CAN_MOUNT = can_mount()


class Mount:
    """ptc-fuse at a directory of its own."""

    def __init__(self, test, c, *options, node="n0", prefix=(), directory=None):
        self.dir = directory or tempfile.mkdtemp(prefix="mnt", dir=test.dir)
        self.argv = [*prefix, harness.binary("daemon/ptc-fuse"), "--socket", c.nodes[node].socket, *options, self.dir]
        self.env = c.environment()
        self.test, self.log = test, self.dir + ".log"
        self.process = None
        test.addCleanup(self.clean)
        self.start()

    def start(self):
        read, write = os.pipe()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([*self.argv[:-1], "--ready-fd", str(write), self.dir], env=self.env,
                                            pass_fds=[write], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        os.close(write)
        with os.fdopen(read) as f:
            said = f.read()
        self.test.assertEqual("\n", said, "ptc-fuse did not mount")

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def stop(self, within_s=5):
        self.process.terminate()
        self.process.wait(within_s * PATIENCE)
        self.test.assertNotIn(self.dir, mounts(self.test.dir))

    def clean(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
        while self.dir in mounts(self.test.dir):
            LIBC.umount2(self.dir.encode(), DETACH)


def status_of(pid):
    with open(f"/proc/{pid}/stat", "rb") as f:
        return f.read().rpartition(b")")[2].split()[0].decode()


@unittest.skipUnless(CAN_MOUNT, "FUSE cannot be mounted here")
class Fuse(harness.Case):
    def state(self, tensors, fields=("exp_avg",), dtype="F32"):
        """tensors: {name: shape}"""
        rng = np.random.default_rng(self.seed)
        s = states.State({f: "F32" for f in fields})
        for name, shape in tensors.items():
            s.add(rng, name, dtype, shape)
        return s

    def big_job(self, c, name="big", mib=24, config="tp=2"):
        """One of a few tensors over two nodes."""
        s = self.state({f"w.{i}": (mib * (1 << 18) // 4 // 256, 256) for i in range(4)}, fields=())
        job = Job(c, name, s, self.path(name), [{"match": "*", "split": {"axis": "tp", "dim": 0}}])
        job.imported(config)
        return job

    def assert_errno(self, number, call, *args):
        with self.assertRaises(OSError) as caught:
            call(*args)
        self.assertEqual(errno.errorcode[number], errno.errorcode[caught.exception.errno])

    # ---- what is read ---------------------------------------------------------

    def check_tensors(self, top, s):
        """Every .npy has the input's bytes, and NumPy maps it."""
        listed = set(os.listdir(os.path.join(top, "tensors")))
        expected = set()
        for field, tensors in s.tensors.items():
            for name, t in tensors.items():
                file = (name if field == "param" else f"{name}:{field}") + ".npy"
                expected.add(file)
                a = np.load(os.path.join(top, "tensors", file), mmap_mode="r" if t.array.size else None)
                self.assertEqual(t.shape, a.shape, file)
                self.assertEqual(t.tobytes(), a.tobytes(), file)
                kind = {"F32": "<f4", "I64": "<i8", "F64": "<f8", "F16": "<f2", "BOOL": "|b1", "BF16": "|V2"}.get(t.dtype)
                if kind:
                    self.assertEqual(kind, a.dtype.str, file)
        self.assertEqual(expected, listed)

    def check_ranks(self, top, s, rules, config):
        self.assertEqual({f"{r}.safetensors" for r in range(config.world)}, set(os.listdir(os.path.join(top, "ranks"))))
        for rank in range(config.world):
            got = states.read_file(os.path.join(top, "ranks", f"{rank}.safetensors"))
            want = {(n if f == "param" else f"{n}:{f}"): a for f, ts in oracle.rank_tensors(s, config, rules, rank).items()
                    for n, a in ts.items()}
            self.assertEqual(set(want), {n for n, t in got.items() if t.array.size})
            for name, a in want.items():
                self.assertEqual(a.shape, got[name].array.shape, f"rank {rank}, {name}")
                self.assertEqual(a.tobytes(), got[name].tobytes(), f"rank {rank}, {name}")

    def check_optimizer(self, top, s):
        got = states.read_file(os.path.join(top, "optimizer.safetensors"))
        want = {f"{n}:{f}": t for f in s.fields for n, t in s.tensors[f].items()}
        self.assertEqual(set(want), set(got))
        for name, t in want.items():
            self.assertEqual((t.dtype, t.shape, t.tobytes()), (got[name].dtype, got[name].shape, got[name].tobytes()))

    def test_random_state(self):
        """A random state over four nodes: all files against the input, the export and the oracle; again after a resize."""
        rng = np.random.default_rng(self.seed)
        heads, tps = states.VARIANTS[int(rng.integers(len(states.VARIANTS)))]
        s, rules = states.random_state(rng, heads, 40), states.rules(heads)
        with self.cluster(nodes=4, devices=2) as c:
            job = Job(c, "random", s, self.path("job"), rules)
            config = oracle.random_config(rng, 8, tps)
            job.imported(config)
            m = Mount(self, c, node=f"n{int(rng.integers(4))}")
            for _ in range(2):
                print(f"at {config}", flush=True)
                at = json.load(open(m.path("random", "generation.json")))
                status = job.status()
                self.assertEqual([status[k] for k in ("generation", "snapshot", "step", "uuid", "config", "ranks")],
                                 [at[k] for k in ("generation", "snapshot", "step", "uuid", "config", "ranks")])
                top = m.path("random", "state", f"snap-{at['snapshot']}-step-{at['step']}")
                self.assertEqual(os.path.basename(top), os.readlink(m.path("random", "state", "latest")))
                self.assertEqual({"model.safetensors", "optimizer.safetensors", "tensors", "ranks"}, set(os.listdir(top)))
                self.assertEqual(harness.sha256(job.files["param"]), harness.sha256(top + "/model.safetensors"))
                self.check_optimizer(top, s)
                self.check_tensors(top, s)
                self.check_ranks(top, s, rules, config)
                config = oracle.random_config(rng, 8, tps)
                job.resize(config)
            m.stop()

    def test_foreign_readers(self):
        """safetensors' own reader, cp, cmp, sendfile, mmap, O_DIRECT and many readers at random places at once."""
        with self.cluster(nodes=2, devices=1) as c:
            job = self.big_job(c)
            m = Mount(self, c)
            path = m.path("big", "state", "latest", "model.safetensors")
            with open(job.files["param"], "rb") as f:
                want = f.read()
            from safetensors import safe_open
            with safe_open(path, "np") as f:
                self.assertEqual(set(job.state.tensors["param"]), set(f.keys()))
                for name, t in job.state.tensors["param"].items():
                    self.assertEqual(t.tobytes(), f.get_tensor(name).tobytes())
            subprocess.run(["cp", path, self.path("copy")], check=True)
            subprocess.run(["cmp", path, job.files["param"]], check=True)
            self.assertEqual(want, open(self.path("copy"), "rb").read())
            st = os.stat(path)
            self.assertEqual((len(want), 0o100400, 1), (st.st_size, st.st_mode, st.st_nlink))
            self.read_odd_ways(path, want)
            self.read_at_random(path, want)
            self.assertGreater(os.statvfs(path).f_blocks, 0)
            m.stop()

    def read_odd_ways(self, path, want):
        with open(path, "rb") as f, open(self.path("sent"), "wb") as out:
            sent = 0
            while n := os.sendfile(out.fileno(), f.fileno(), sent, 1 << 20):
                sent += n
        self.assertEqual(want, open(self.path("sent"), "rb").read())
        with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            self.assertEqual(want[5_000_001:5_100_000], mapped[5_000_001:5_100_000])
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        buffer, got, at = mmap.mmap(-1, 1 << 20), b"", 0
        while n := os.preadv(fd, [buffer], at):
            got += buffer[:n]
            at += n
        os.close(fd)
        self.assertEqual(want, got)

    def read_at_random(self, path, want):
        failures, seeds = [], [self.random.randrange(1 << 32) for _ in range(8)]

        def reader(seed):
            r = random.Random(seed)
            fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if seed % 2 else 0))
            for _ in range(60):
                at, n = r.randrange(len(want)) & ~4095, 4096 * r.randint(1, 40)
                buffer = mmap.mmap(-1, n)
                got = os.preadv(fd, [buffer], at)
                if buffer[:got] != want[at:at + n]:
                    failures.append((seed, at, n, got))
            os.close(fd)

        threads = [threading.Thread(target=reader, args=[s]) for s in seeds]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual([], failures)

    def test_names_and_thousands(self):
        """Names no file can have as they are; thousands of them; what is not there is ENOENT; nothing can be written."""
        odd = ["a/b/c", "per%cent", ".hidden", "tilde~", "x" * 400, "x" * 400 + "y", "käse", "with:colon"]
        s = self.state({**{n: (3, 2) for n in odd}, **{f"t.{i}": (2,) for i in range(3000)}}, fields=())
        with self.cluster(nodes=1, devices=1) as c:
            Job(c, "odd", s, self.path("job"), [{"match": "*"}]).imported("tp=1", timeout_s=120)
            m = Mount(self, c)
            top = m.path("odd", "state", "latest", "tensors")
            names = os.listdir(top)
            self.assertEqual(len(names), len(set(names)))
            self.assertEqual(3000 + len(odd), len(names))
            self.assertEqual(3000, sum(n.startswith("t.") for n in names))
            want = sorted(s.tensors["param"][n].tobytes() for n in odd)
            got = sorted(np.load(os.path.join(top, n)).tobytes() for n in names if not n.startswith("t."))
            self.assertEqual(want, got)
            for entry in self.random.sample(sorted(os.scandir(top), key=lambda e: e.name), 50):
                self.assertEqual(entry.inode(), entry.stat().st_ino, entry.name)
                self.assertTrue(entry.is_file())
            for missing in ("t.3000.npy", "t.1", "nothing", "~.npy", "%zz.npy", "t.1:exp.npy"):
                self.assert_errno(errno.ENOENT, os.stat, os.path.join(top, missing))
            self.assert_errno(errno.ENOENT, os.stat, m.path("nojob"))
            self.assert_errno(errno.ENOENT, os.stat, m.path("odd", "state", "snap-9-step-0"))
            self.assert_errno(errno.EROFS, os.mkdir, m.path("odd", "new"))
            self.assert_errno(errno.EROFS, os.unlink, os.path.join(top, "t.1.npy"))
            self.assert_errno(errno.EROFS, os.open, os.path.join(top, "t.1.npy"), os.O_RDWR)
            self.assert_errno(errno.EROFS, os.open, os.path.join(top, "new"), os.O_WRONLY | os.O_CREAT)
            self.assert_errno(errno.EROFS, os.truncate, os.path.join(top, "t.1.npy"), 0)
            m.stop()
