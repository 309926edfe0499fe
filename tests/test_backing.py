# SPDX-License-Identifier: Apache-2.0
"""Backing files of a mount: what the kernel reads without asking ptc-fuse has the state's bytes, and is gone when it should be.

Real daemons, root's mount. The states are random (the seed is printed); the files that were imported are the oracle. Where the
kernel has no FUSE passthrough, only the tests of mounts without backing files run.
"""
import contextlib
import mmap
import os
import re
import signal
import subprocess
import tempfile
import threading
import unittest

import harness
import numpy as np
import state as states
import test_fuse
import test_metrics
from harness import PATIENCE, Job, skip_unless_root, wait_for
from test_fuse import CAN_MOUNT, DETACH, LIBC, MOUNT_S, OTHER_UID, Mount, run_with_fuse_for_all, status_of

MIB = 1 << 20
LINE = re.compile(r"^backing +(\d+) +(\d+) +(\d+)$", re.M)
DTYPES = ("F32", "F64", "I64", "U8", "F16")


def read_all(fd):
    got, buffer = b"", mmap.mmap(-1, MIB)
    while n := os.preadv(fd, [buffer], len(got)):
        got += buffer[:n]
    return got


def forget(fd):
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


class BackedMount(Mount):
    """With a lock file, in which ptc-fuse says what its backing files take."""

    BACKING = ()

    def __init__(self, test, c, *options, **kw):
        self.lock = tempfile.mktemp(prefix="lock", dir=test.dir)
        super().__init__(test, c, "--lock", self.lock, *options, **kw)

    def usage(self):
        """(bytes, files)"""
        return self.said_usage()[:2]

    def said_usage(self):
        """(bytes, files, bytes of those that are open)"""
        with open(self.lock) as f:
            found = LINE.search(f.read())
        return tuple(map(int, found.groups())) if found else (0, 0, 0)

    def wait_usage(self, want):
        wait_for(lambda: self.usage() == want, 20 * PATIENCE, f"backing files: {want}")

    def wait_files(self, n):
        wait_for(lambda: self.usage()[1] == n, 20 * PATIENCE, f"{n} backing files")

    @contextlib.contextmanager
    def stopped(self):
        """ptc-fuse answers nothing."""
        # the kernel asks about the first close, as of those between fork and exec below, and then no more
        self.process.send_signal(signal.SIGSTOP)
        try:
            wait_for(lambda: status_of(self.process.pid) == "T", 10 * PATIENCE, "a stopped ptc-fuse")
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def said(self):
        with open(self.log) as f:
            return f.read()


@unittest.skipUnless(CAN_MOUNT, "FUSE cannot be mounted here")
class Backing(harness.Case):
    def job(self, c, name="big", mib=12, tensors=5, config="tp=2", fields=(), places=()):
        """Random tensors of several types and sizes, small ones among them, cut over the nodes in a way that leaves no order."""
        rng, s = np.random.default_rng(self.seed), states.State({f: "F32" for f in fields})
        for i in range(tensors):
            rows = 2 * int(rng.integers(1, mib * MIB // tensors // 96 // 4))
            s.add(rng, f"w.{i}", DTYPES[i % len(DTYPES)] if not fields else "F32", (rows, 96))
            s.add(rng, f"small.{i}", "F32", (2, int(rng.integers(1, 9))))
        s.add(rng, "last", "F32", (mib * MIB // 96 // 4 // 2 * 2, 96))
        job = Job(c, name, s, self.path(name), [{"match": "*", "split": {"axis": "tp", "dim": 0}}])
        job.create()
        c.ptcctl(*job.import_args(config), *places, timeout_s=120 * PATIENCE)
        return job

    def bytes_of(self, job, field="param"):
        with open(job.files[field], "rb") as f:
            return f.read()

    def needs_passthrough(self, m):
        if "no FUSE passthrough" in m.said():
            self.skipTest("this kernel has no FUSE passthrough")

    def made(self, m, path, files=1):
        """Waits until the path's backing file is there."""
        with open(path, "rb") as f:
            f.read(1)
            self.needs_passthrough(m)
        m.wait_files(files)

    def check_without_server(self, m, path, want):
        """In each way to read, while ptc-fuse is stopped: nobody else than the kernel answers."""
        with open(path, "rb") as plain, open(os.open(path, os.O_RDONLY | os.O_DIRECT), "rb") as direct:
            plain.read(1)
            with m.stopped():
                forget(plain.fileno())
                self.assertEqual(want, read_all(plain.fileno()))
                self.assertEqual(want, read_all(direct.fileno()))
                with mmap.mmap(plain.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                    self.assertEqual(want, mapped[:])
                rng = np.random.default_rng(self.seed)
                for at in rng.integers(0, len(want), 200):
                    size = int(rng.integers(1, 200_000))
                    self.assertEqual(want[at:at + size], os.pread(plain.fileno(), size, int(at)))

    @skip_unless_root
    def test_bytes(self):
        """Every large file of a snapshot, read in every way, on a node that has half of the bytes, by several readers at once."""
        with self.cluster(nodes=2, devices=1) as c:
            job = self.job(c, fields=("exp_avg",))
            m = BackedMount(self, c, node="n1")
            top = m.path("big", "state", "latest")
            got, path = [None] * 4, os.path.join(top, "model.safetensors")

            def read(i):
                fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if i % 2 else 0))
                got[i] = read_all(fd)
                os.close(fd)
            readers = [threading.Thread(target=read, args=(i,)) for i in range(len(got))]
            for t in readers:
                t.start()
            for t in readers:
                t.join()
            want = self.bytes_of(job)
            for g in got:
                self.assertEqual(want, g)
            self.needs_passthrough(m)
            m.wait_usage((len(want), 1))
            self.check_without_server(m, path, want)
            a = np.load(os.path.join(top, "tensors", "last.npy"), mmap_mode="r")
            self.assertEqual(job.state.tensors["param"]["last"].tobytes(), a.tobytes())
            del a
            size = os.stat(os.path.join(top, "optimizer.safetensors")).st_size
            with open(os.path.join(top, "optimizer.safetensors"), "rb") as f:
                self.assertEqual(states.read_file(job.files["exp_avg"])["last"].tobytes(),
                                 states.read_file(f.name)["last:exp_avg"].tobytes())
            m.wait_usage((len(want) + size + os.stat(os.path.join(top, "tensors", "last.npy")).st_size, 3))
            m.stop()

    @skip_unless_root
    def test_daemon_killed(self):
        """kill -9 of ptcd, here and on the other node, while a backing file is open: nobody who reads it notices."""
        with self.cluster(nodes=2, devices=1) as c:
            job = self.job(c)
            m = BackedMount(self, c, "--timeout", "5s", node="n1")
            path, want = m.path("big", "state", "latest", "model.safetensors"), self.bytes_of(job)
            self.made(m, path)
            with open(path, "rb") as f:
                f.read(100)
                for node in ("n0", "n1"):
                    c.nodes[node].kill()
                forget(f.fileno())
                self.assertEqual(want, read_all(f.fileno()))
                with open(path, "rb") as again: # nobody can be asked, and nobody need be
                    self.assertEqual(want, again.read())
                for node in ("n0", "n1"):
                    c.restart(node)
                c.wait_nodes(["n0", "n1"], 60 * PATIENCE)
            with open(path, "rb") as f:
                self.assertEqual(want, f.read())
            m.stop()

    @skip_unless_root
    def test_ends_with_its_snapshot(self):
        """A file that somebody reads stays when the job moves on; then it is gone, also where nobody asks for anything."""
        with self.cluster(nodes=1, devices=2) as c:
            job = self.job(c)
            m = BackedMount(self, c)
            snap = m.path("big", "state", os.readlink(m.path("big", "state", "latest")))
            want = self.bytes_of(job)
            self.made(m, os.path.join(snap, "model.safetensors"))
            with open(os.path.join(snap, "model.safetensors"), "rb") as f:
                job.resize("dp=2")
                wait_for(lambda: os.readlink(m.path("big", "state", "latest")) != os.path.basename(snap), 20 * PATIENCE,
                         "the next snapshot")
                with open(m.path("big", "state", "latest", "model.safetensors"), "rb") as new:
                    self.assertEqual(want, new.read())
                m.wait_usage((2 * len(want), 2))
                forget(f.fileno())
                self.assertEqual(want, read_all(f.fileno()))
            m.wait_usage((len(want), 1))
            c.ptcctl("job", "delete", "big")
            m.wait_usage((0, 0))
            m.stop()

    @skip_unless_root
    def test_open_already(self):
        """A file that was opened before its backing file was made stays as it is for all who open it meanwhile; then they get the
        backing file. The bytes are on a node that hangs for a while."""
        with self.cluster(nodes=2, devices=1) as c:
            job = self.job(c, config="tp=1", places=("--nodes", "n0"))
            m = BackedMount(self, c, "--timeout", "30s", node="n1")
            path, want = m.path("big", "state", "latest", "model.safetensors"), self.bytes_of(job)
            with open(os.path.join(os.path.dirname(path), "tensors", "small.0.npy"), "rb") as lease:
                lease.read()
            os.stat(path)
            c.nodes["n0"].signal(signal.SIGSTOP)
            try:
                held = open(path, "rb")
            finally:
                c.nodes["n0"].signal(signal.SIGCONT)
            with held:
                self.needs_passthrough(m)
                m.wait_usage((len(want), 1))
                with open(path, "rb") as other, open(os.open(path, os.O_RDONLY | os.O_DIRECT), "rb") as direct:
                    self.assertEqual(want, other.read())
                    self.assertEqual(want, read_all(direct.fileno()))
                    self.assertEqual(want, held.read())
            self.check_without_server(m, path, want)
            m.stop()

    @skip_unless_root
    def test_without_room(self):
        """A file that is larger than the budget, or none wanted at all: read as before, and the log says why once."""
        with self.cluster(nodes=1, devices=2) as c:
            job = self.job(c)
            want = self.bytes_of(job)
            for budget, said in (("4MiB", 1), ("0B", 0)):
                m = BackedMount(self, c, "--backing", budget)
                for _ in range(3):
                    with open(m.path("big", "state", "latest", "model.safetensors"), "rb") as f:
                        self.assertEqual(want, f.read())
                self.needs_passthrough(m)
                self.assertEqual((0, 0), m.usage())
                self.assertEqual(said, m.said().count("does not fit into the budget"), m.said())
                m.stop()

    @skip_unless_root
    def test_reported(self):
        """Of the mount that ptcd has: with the shares of the ceiling, in the list of nodes and in its metrics."""
        top, address = self.path("files"), f"127.0.0.1:{harness.clusters.free_port()}"
        self.addCleanup(LIBC.umount2, top.encode(), DETACH)
        with self.cluster(up=False, nodes=1, devices=1, fuse={"n0": {"dir": top}}) as c:
            node = c.nodes["n0"]
            c.write_config(node, metrics=address)
            c.up(timeout_s=60 * PATIENCE)
            job = self.job(c, config="tp=1")
            want, path = self.bytes_of(job), os.path.join(top, "big", "state", "latest", "model.safetensors")

            def said():
                memory = c.json("nodes")["nodes"][0].get("memory", {})
                listed = memory.get("backing_bytes"), memory.get("backing_open_bytes")
                _, samples = test_metrics.scrape(address)
                self.assertEqual(memory.get("ceiling_bytes"), test_metrics.at(samples, "ptc_memory_ceiling_bytes"))
                return listed, tuple(test_metrics.at(samples, f"ptc_fuse_backing_{what}") for what in ("bytes", "open_bytes"))
            wait_for(lambda: os.path.exists(path), 60 * PATIENCE, "the files")
            with open(path, "rb") as f:
                self.assertEqual(want, f.read())
                with open(node.log_file) as log:
                    if "no FUSE passthrough" in log.read():
                        self.skipTest("this kernel has no FUSE passthrough")
                wait_for(lambda: said() == 2 * ((len(want), len(want)),), 20 * PATIENCE, "an open backing file")
            wait_for(lambda: said() == 2 * ((len(want), 0),), 20 * PATIENCE, "a backing file that is not open")
            node.stop()
            wait_for(lambda: test_fuse.Fuse.fuse_ended(test_fuse.Fuse, node), MOUNT_S, "the end of ptc-fuse")

    @skip_unless_root
    def test_descriptors(self):
        """One for each file: ptc-fuse takes as many as it may, and makes half as many files. What is open is said."""
        with self.cluster(nodes=1, devices=2) as c:
            job = self.job(c, fields=("exp_avg",))
            m = BackedMount(self, c, prefix=["prlimit", "--nofile=100:600"])
            top, want = m.path("big", "state", "latest"), self.bytes_of(job)
            with open(f"/proc/{m.process.pid}/limits") as f:
                self.assertRegex(f.read(), r"Max open files +600 +600 ")
            with open(os.path.join(top, "model.safetensors"), "rb") as f:
                self.assertEqual(want, f.read())
                self.needs_passthrough(m)
                wait_for(lambda: m.said_usage() == (len(want), 1, len(want)), 20 * PATIENCE, "an open backing file")
            wait_for(lambda: m.said_usage() == (len(want), 1, 0), 20 * PATIENCE, "a backing file that is not open")
            m.stop()

    @skip_unless_root
    def test_user_namespace(self):
        """The kernel takes no backing files from a root that is none outside. That is found out before anything is copied."""
        with self.cluster(nodes=1, devices=1) as c:
            job = self.job(c, config="tp=1")
            try:
                m = BackedMount(self, c, prefix=["unshare", "--user", "--map-root-user", "--mount"])
            except AssertionError as e:
                self.skipTest(f"no mounts in a user namespace: {e}")
            path = m.path("big", "state", "latest", "model.safetensors")
            enter = ["nsenter", "--target", str(m.process.pid), "--user", "--mount", "--preserve-credentials"]
            for _ in range(2):
                subprocess.run([*enter, "cmp", job.files["param"], path], check=True)
            self.needs_passthrough(m)
            self.assertEqual(1, m.said().count("no backing files, so reads cost more: the kernel does not take a file"), m.said())
            self.assertNotIn("no backing file,", m.said())
            m.process.terminate()
            self.assertEqual(0, m.process.wait(20 * PATIENCE))

    @skip_unless_root
    def test_folder(self):
        """On a disk: nothing of it has a name there, whether ptc-fuse is told to end or killed."""
        with self.cluster(nodes=1, devices=2) as c:
            job = self.job(c)
            want = self.bytes_of(job)
            folder = self.path("backing")
            os.mkdir(folder)
            for how in (signal.SIGTERM, signal.SIGKILL):
                m = BackedMount(self, c, "--backing-dir", folder)
                with open(m.path("big", "state", "latest", "model.safetensors"), "rb") as f:
                    self.assertEqual(want, f.read())
                    self.assertEqual([], os.listdir(folder))
                    self.needs_passthrough(m)
                if "overlay" not in self.file_system(folder):
                    m.wait_usage((len(want), 1))
                m.process.send_signal(how)
                m.process.wait(20 * PATIENCE)
                self.assertEqual([], os.listdir(folder))
                m.clean()

    @staticmethod
    def file_system(path):
        return subprocess.run(["stat", "-f", "-c", "%T", path], stdout=subprocess.PIPE, text=True).stdout

    @skip_unless_root
    def test_of_a_user(self):
        """A user's own mount may have none: it reads as before, and says why if asked to."""
        script = """
            as="setpriv --reuid=$5 --clear-groups"
            PTC_LOG=debug $as "$6" --socket "$PTC_SOCKET" "$2" & served=$!
            left=400
            until $as test -e "$2/theirs"; do test $((left -= 1)) -gt 0; sleep 0.05; done
            $as cmp "$2/theirs/state/latest/model.safetensors" "$4"
            kill $served; wait $served
            """
        with self.cluster(nodes=1, devices=1) as c:
            rng, s = np.random.default_rng(self.seed), states.State()
            s.add(rng, "w", "F32", (2 * MIB, 3))
            job = Job(c, "theirs", s, self.path("theirs"), [{"match": "*"}])
            other = ["setpriv", f"--reuid={OTHER_UID}", "--clear-groups"]
            c.ptcctl("job", "create", "-f", job.yaml, prefix=other)
            c.ptcctl(*job.import_args("tp=1"), prefix=other)
            r = run_with_fuse_for_all(self, c, script, job.files["param"], str(OTHER_UID), harness.binary("daemon/ptc-fuse"))
            self.assertEqual(0, r.returncode, r.stdout)
            self.assertRegex(r.stdout, "no backing files: (only root's mount|this kernel)")


if __name__ == "__main__":
    unittest.main()
