# SPDX-License-Identifier: Apache-2.0
"""The file system: what ordinary tools read below a mount, who may, and what happens while things go away.

Real daemons, a real mount. Without /dev/fuse, or where nothing can be mounted, these are skipped; fusefs/serve/test_fs.c and
its fuzz target go through the same requests over a socket.
"""
import contextlib
import ctypes
import errno
import grp
import hashlib
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

import grpc
import harness
import live
import numpy as np
import oracle
import state as states
import trainer
import wire
from harness import LONG, PATIENCE, Job, skip_unless_root, wait_for

OTHER_UID = 65534
MEMBER_UID = 65532
MOUNT_S = 10 * PATIENCE
CONFIG = '{"model_type": "llama", "note": "käse"}\n'
LIBC = ctypes.CDLL(None, use_errno=True)
DETACH = 2
DEAD_MOUNT = (errno.ENOTCONN, errno.ECONNABORTED)  # the latter where a request was on its way as the server ended


def mounts(below):
    """Mount points below a directory."""
    with open("/proc/self/mountinfo") as f:
        return [line.split()[4] for line in f if line.split()[4].startswith(below + "/")]


def can_mount():
    """Whether FUSE can be mounted here at all: asked of the program itself, with a daemon that is not there."""
    if not os.path.exists("/dev/fuse") or not os.path.exists(harness.binary("daemon/ptc-fuse")):
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


def run_with_fuse_for_all(case, c, script, *args):
    """In a mount namespace where /dev/fuse may be opened by all, as udev has it. $2: an empty folder of OTHER_UID's; $3: ptcctl, which
    asks n0; from $4 on: args."""
    own, dev = case.path("own"), case.path("dev")
    for d in (own, dev):
        os.mkdir(d)
    os.chown(own, OTHER_UID, OTHER_UID)
    begin = """set -e; mount -t tmpfs none "$1"; mknod -m 666 "$1/fuse" c 10 229; mount --bind "$1/fuse" /dev/fuse\n"""
    return subprocess.run(["unshare", "-m", "--propagation", "private", "sh", "-c", begin + script, "sh", dev, own,
                           harness.program("ptcctl"), *args],
                          env=c.environment({"PTC_SOCKET": c.nodes["n0"].socket}), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)


class Mount:
    """ptc-fuse at a directory of its own. Without backing files: reads are requests to it (test_backing.py has the others)."""

    BACKING = ("--backing", "0B")

    def __init__(self, test, c, *options, node="n0", prefix=(), directory=None):
        self.dir = directory or tempfile.mkdtemp(prefix="mnt", dir=test.dir)
        self.argv = [*prefix, harness.binary("daemon/ptc-fuse"), "--socket", c.nodes[node].socket, *self.BACKING, *options,
                     self.dir]
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
        with open(self.log) as f:
            self.test.assertEqual(0, self.process.returncode, f.read())
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

    def assert_errno(self, numbers, call, *args):
        with self.assertRaises(OSError) as caught:
            call(*args)
        wanted = numbers if isinstance(numbers, tuple) else (numbers,)
        self.assertIn(errno.errorcode[caught.exception.errno], [errno.errorcode[n] for n in wanted])

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
        top, = (os.path.join(top, n) for n in os.listdir(top) if n.startswith("gen-"))
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
                self.assertEqual({"model.safetensors", "optimizer.safetensors", "tensors", f"gen-{at['generation']}"}, set(os.listdir(top)))
                self.assertEqual(harness.sha256(job.files["param"]), harness.sha256(top + "/model.safetensors"))
                self.check_optimizer(top, s)
                self.check_tensors(top, s)
                self.check_ranks(top, s, rules, config)
                config = oracle.random_config(rng, 8, tps)
                job.resize(config)
            m.stop()

    def test_foreign_readers(self):
        """safetensors' own reader, cp, cmp, md5sum, sendfile, mmap, O_DIRECT and many readers at random places at once."""
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
            self.assertEqual(f"{hashlib.md5(want).hexdigest()}  {path}\n",
                             subprocess.run(["md5sum", path], check=True, stdout=subprocess.PIPE, text=True).stdout)
            st = os.stat(path)
            self.assertEqual((len(want), 0o100400, 1), (st.st_size, st.st_mode, st.st_nlink))
            self.read_odd_ways(path, want)
            self.read_at_random(path, want)
            self.assertGreater(os.statvfs(path).f_blocks, 0)
            m.stop()

    @harness.needs("fio", "rsync")
    def test_fio_and_rsync(self):
        """A tensor whose bytes are fio's own pattern, verified by fio through the mount, read in order and, at random, past the
        page cache by several jobs at once; one wrong byte is found. rsync copies the whole snapshot."""
        size, model = 16 << 20, self.path("model.safetensors")
        header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with open(model, "wb") as f:
            f.write((4088).to_bytes(8, "little") + header.ljust(4088) + bytes(size))

        def fio(path, *options, check=True):
            return subprocess.run(["fio", "--name=x", f"--filename={path}", "--offset=4096", f"--size={size}", "--bs=64k",
                                   "--verify=crc32c", "--verify_fatal=1", *options], cwd=self.dir, check=check, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

        fio(model, "--rw=write", "--do_verify=0")
        with open(self.path("job.yaml"), "w") as f:
            json.dump({"version": 1, "name": "j", "tensors": {"from": model},
                       "rules": [{"match": "*", "split": {"axis": "tp", "dim": 0}}]}, f)
        with self.cluster(nodes=2, devices=1) as c:
            c.ptcctl("job", "create", "-f", self.path("job.yaml"))
            c.ptcctl("import", "j", model, "--config", "tp=2")
            m = Mount(self, c)
            top = m.path("j", "state", "latest")
            path = os.path.join(top, "model.safetensors")
            fio(path, "--readonly", "--rw=read")
            fio(path, "--readonly", "--rw=randread", "--direct=1", "--numjobs=4", "--iodepth=4")
            damaged = shutil.copyfile(path, self.path("damaged"))
            with open(damaged, "rb+") as f:
                at = f.seek(4096 + 5 * 65536 + 777)
                byte = f.read(1)[0]
                f.seek(at)
                f.write(bytes([byte ^ 1]))
            self.assertNotEqual(0, fio(damaged, "--readonly", "--rw=read", check=False).returncode)
            subprocess.run(["rsync", "-aL", "--checksum", top + "/", self.path("copy")], check=True)
            changes = subprocess.run(["rsync", "-aL", "--checksum", "--dry-run", "--itemize-changes", top + "/", self.path("copy")],
                                     check=True, capture_output=True, text=True).stdout
            self.assertEqual("", changes)
            with open(model, "rb") as a, open(self.path("copy", "model.safetensors"), "rb") as b:
                self.assertEqual(a.read(), b.read())
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

    def read_small(self, top, want, enough=None):
        """Every file of tensors/ as a plain program reads them: (right, EIO). Whatever else comes is a failure. Not the rest, once so
        many are EIO: without a daemon each takes its time."""
        right, refused = 0, 0
        names = os.listdir(top)
        self.assertEqual(len(want), len(names))
        self.random.shuffle(names)
        for name in names:
            if refused == enough:
                break
            try:
                with open(os.path.join(top, name), "rb", buffering=0) as f: # where the daemon dies, its first call may be this one
                    data = f.read(1 << 20)
                    self.assertTrue(data.endswith(want[name]) and len(data) % 64 == len(want[name]) % 64, name)
                    self.assertEqual(b"", f.read(1))
                right += 1
            except FileNotFoundError:
                raise
            except OSError as e:
                self.assertEqual(errno.EIO, e.errno, name)
                refused += 1
        return right, refused

    def small_job(self, c, n=3000):
        s = self.state({f"t.{i}": (2 + 2 * (i % 3), 2) for i in range(n)}, fields=())
        job = Job(c, "small", s, self.path("small"), [{"match": "*", "split": {"axis": "tp", "dim": 0}}])
        job.imported("tp=2", timeout_s=120)
        return job, {f"{name}.npy": t.tobytes() for name, t in s.tensors["param"].items()}

    def brought_by_one(self, c, want):
        """Below a new mount, after one read, with which all others came, as they are not much together. A read that takes longer than
        FS_PACK_MS may have brought its own bytes only: then another mount."""
        while True:
            new = Mount(self, c, "--timeout", "10s")
            top = os.path.realpath(new.path("small", "state", "latest", "tensors"))
            self.assertEqual(len(want), len(os.listdir(top)))
            with open(os.path.join(top, "t.0.npy"), "rb") as f:
                began = time.monotonic()
                self.assertTrue(f.read().endswith(want["t.0.npy"]))
                took = time.monotonic() - began
            if took < 2:
                return top
            print(f"a read took {took:.1f} s", flush=True)
            new.stop()

    def test_small_tensors(self):
        """Thousands of small tensors over two nodes, from either: their bytes before and after a resize, of a snapshot that is still open, and
        while the daemons are dead; a few calls, not one for each file."""
        with self.cluster(nodes=2, devices=1) as c:
            job, want = self.small_job(c)
            m = Mount(self, c, "--timeout", "5s")
            top = os.path.realpath(m.path("small", "state", "latest", "tensors"))
            for where in (m, Mount(self, c, node="n1")):
                self.assertEqual((len(want), 0), self.read_small(where.path("small", "state", "latest", "tensors"), want))
            held, first = os.open(os.path.join(top, "t.7.npy"), os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 4096)
            job.resize("tp=1", extra=("--nodes", "n1"))
            n = os.preadv(held, [first], 0)
            self.assertTrue(first[:n].endswith(want["t.7.npy"]))
            os.close(held)
            self.assertEqual((len(want), 0), self.read_small(m.path("small", "state", "latest", "tensors"), want))
            top = self.brought_by_one(c, want)
            for node in c.nodes.values():
                node.kill()
            self.assertEqual((len(want), 0), self.read_small(top, want))

    def test_small_damaged(self):
        """A bit of the only copy changes before anything was read: those whose block it is in are EIO, all others right; also while the
        daemon that is asked dies in the middle."""
        with self.cluster(nodes=2, devices=1) as c:
            job, want = self.small_job(c)
            uuid, needle = job.status()["uuid"], want["t.14.npy"]
            path = os.path.join(c.nodes["n0"].chunk_dir, uuid, "data.mdb")
            with open(path, "r+b") as f:
                at = f.read().index(needle[:16])
                f.seek(at)
                f.write(bytes([needle[0] ^ 1]))
            self.refused(c, "export", "small", self.path("refused"), contains='no node left that has all of "t.')
            m = Mount(self, c, "--timeout", "5s")
            right, refused = self.read_small(m.path("small", "state", "latest", "tensors"), want)
            print(f"{right} right, {refused} refused", flush=True)
            self.assertGreater(refused, 0)
            self.assertGreater(right, 0)
            killed = threading.Timer(0.2, c.nodes["n0"].kill)
            killed.start()
            new = Mount(self, c, "--timeout", "1s", node="n1")
            top = new.path("small", "state", "latest", "tensors")
            with contextlib.suppress(FileNotFoundError): # where the state itself is gone
                print(self.read_small(top, want, enough=200), flush=True)
            killed.join()

    # ---- who may --------------------------------------------------------------

    @skip_unless_root
    def test_other_users(self):
        """In root's mount each user has his own jobs, root all; a user's own mount works without privileges."""
        other = ["setpriv", f"--reuid={OTHER_UID}", "--clear-groups"]
        with self.cluster(nodes=1, devices=1) as c:
            self.big_job(c, "mine", mib=1, config="tp=1")
            theirs = self.path("theirs")
            os.makedirs(theirs)
            job = Job(c, "theirs", self.state({"w": (30, 4)}, fields=()), theirs, [{"match": "*"}])
            c.ptcctl("job", "create", "-f", job.yaml, prefix=other)
            c.ptcctl(*job.import_args("tp=1"), prefix=other)
            m = Mount(self, c, "--others")
            self.assertEqual({"mine", "theirs"}, set(os.listdir(m.dir)))
            self.assertEqual((OTHER_UID, 0o40500), (os.stat(m.path("theirs")).st_uid, os.stat(m.path("theirs")).st_mode))
            self.others_see_nothing(m, other, job)
            m.stop()
            self.own_mount(c, job, other)

    def others_see_nothing(self, m, other, job):
        model = ("state", "latest", "model.safetensors")

        def as_other(*args):
            return subprocess.run([*other, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        self.assertEqual("theirs\n", as_other("ls", m.dir).stdout)
        self.assertIn("No such file", as_other("stat", m.path("mine")).stderr)
        self.assertEqual(0, as_other("cmp", m.path("theirs", *model), job.files["param"]).returncode)
        self.assertEqual(harness.sha256(job.files["param"]), harness.sha256(m.path("theirs", *model)))
        # known to the kernel now, and in use: that must not help anybody, nor he disturb who is there
        os.stat(m.path("mine", *model))
        here = os.getcwd()
        os.chdir(m.path("mine", "state"))
        try:
            for path in (m.path("mine", "generation.json"), m.path("mine", *model)):
                self.assertNotEqual(0, as_other("stat", path).returncode)
                self.assertEqual(1, as_other("cat", path).returncode)
            self.assertEqual(("", 2), (as_other("ls", m.path("mine")).stdout, as_other("ls", m.path("mine")).returncode))
            self.assertEqual("theirs\n", as_other("ls", m.dir).stdout)
            self.assertEqual(m.path("mine", "state"), os.getcwd())
        finally:
            os.chdir(here)

    def own_mount(self, c, job, other):
        script = """
            as="setpriv --reuid=$5 --clear-groups"
            $as "$3" mount "$2"
            test "$($as ls "$2")" = theirs
            $as cmp "$2/theirs/state/latest/model.safetensors" "$4"
            $as "$3" mount "$2" 2>&1 | grep -q 'mounted there already'
            $as "$3" umount "$2"
            $as "$3" umount "$2" 2>&1 | grep -q 'nothing is mounted'
            """
        r = run_with_fuse_for_all(self, c, script, job.files["param"], str(OTHER_UID))
        self.assertEqual((0, ""), (r.returncode, r.stdout))
        wait_for(lambda: not [p for p in c.processes() if "ptc-fuse" in open(f"/proc/{p}/comm").read()], 10 * PATIENCE,
                 "the end of ptc-fuse after umount")

    def test_mounted_again(self):
        """Unmounted and mounted again while somebody has a file open: the end of the first ptc-fuse, by itself once the file is
        closed or by a signal before, leaves the second one's mount alone."""
        with self.cluster(nodes=1, devices=1) as c:
            job = self.big_job(c, mib=1, config="tp=1")
            for ends_it in ("close", "signal"):
                old = Mount(self, c)
                held = os.open(old.path("big", "state", "latest", "model.safetensors"), os.O_RDONLY)
                c.ptcctl("umount", old.dir)
                new = Mount(self, c, directory=old.dir)
                self.assertIsNone(old.process.poll(), "the first one serves the file that is open")
                if ends_it == "signal":
                    old.process.terminate()
                    self.assertEqual(0, old.process.wait(10 * PATIENCE))
                os.close(held)
                self.assertEqual(0, old.process.wait(10 * PATIENCE))
                self.assertEqual([new.dir], mounts(self.dir), f"after the {ends_it}")
                self.assertEqual(harness.sha256(job.files["param"]), harness.sha256(new.path("big/state/latest/model.safetensors")))
                new.stop()

    @skip_unless_root
    def test_covered(self):
        """Something else is mounted on top: ptc-fuse ends without touching that, and what is below answers an error, not the disk."""
        with self.cluster(nodes=1, devices=1) as c:
            self.big_job(c, mib=1, config="tp=1")
            m = Mount(self, c)
            subprocess.run(["mount", "-t", "tmpfs", "none", m.dir], check=True)
            try:
                m.process.terminate()
                self.assertEqual(0, m.process.wait(10 * PATIENCE))
                self.assertEqual([m.dir, m.dir], mounts(self.dir))
                self.assertEqual([], os.listdir(m.dir))
                self.assertIn("another file system", c.ptcctl("umount", m.dir, check=False).stderr)
            finally:
                subprocess.run(["umount", m.dir], check=True)
            self.assert_errno(DEAD_MOUNT, os.listdir, m.dir)
            m.start()
            self.assertEqual(["big"], os.listdir(m.dir))
            m.stop()

    @skip_unless_root
    def test_reads_ahead(self):
        """The kernel reads ahead 1 MiB of root's mount; a mapped file has its bytes."""
        with self.cluster(nodes=1, devices=1) as c:
            job = self.big_job(c, mib=8, config="tp=1")
            m = Mount(self, c)
            path, device = m.path("big/state/latest/model.safetensors"), os.stat(m.dir).st_dev
            ahead = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
            if not os.access(ahead, os.W_OK):
                self.skipTest("/sys cannot be written")
            with open(ahead) as f:
                self.assertEqual("1024", f.read().strip())
            with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as got, open(job.files["param"], "rb") as want:
                self.assertEqual(want.read(), got[:])
            m.stop()

    def test_ended_as_it_mounts(self):
        """Told to end as soon as its mount can be seen: the mount is gone with it."""
        for _ in range(25):
            d = tempfile.mkdtemp(dir=self.dir)
            self.addCleanup(LIBC.umount2, d.encode(), DETACH)
            p = subprocess.Popen([harness.binary("daemon/ptc-fuse"), "--socket", d + "/none", d])
            while d not in mounts(self.dir):
                self.assertIsNone(p.poll())
            p.terminate()
            self.assertEqual(0, p.wait(10 * PATIENCE))
            self.assertEqual([], mounts(self.dir))

    @skip_unless_root
    def test_unmounted_under_readers(self):
        """fuse.dir unmounted by an administrator while a file is open: the files are back, and who had it open reads on."""
        top = self.path("files")
        self.addCleanup(LIBC.umount2, top.encode(), DETACH)
        with self.cluster(nodes=1, devices=1, fuse={"n0": {"dir": top}}) as c:
            node, job = c.nodes["n0"], self.big_job(c, mib=1, config="tp=1")
            path = os.path.join(top, "big", "state", "latest", "model.safetensors")
            with open(job.files["param"], "rb") as f:
                want = f.read()
            wait_for(lambda: self.readable(path, want), MOUNT_S, "the files")
            served = self.fuse_pid(node)
            with open(path, "rb") as held:
                self.assertEqual(0, LIBC.umount2(top.encode(), DETACH))
                wait_for(lambda: self.fuse_pid(node) not in (None, served), MOUNT_S, "another ptc-fuse")
                wait_for(lambda: self.readable(path, want), MOUNT_S, "the files again")
                self.assertEqual(want, held.read())
            wait_for(lambda: not os.path.exists(f"/proc/{served}") or status_of(served) == "Z", MOUNT_S, "the end of the first one")
            self.assertTrue(self.readable(path, want))
            node.stop()
            wait_for(lambda: self.fuse_ended(node), MOUNT_S, "its end")

    def test_mounted_again_by_a_user(self):
        """The same through fusermount3, which unmounts by path."""
        script = """
            as="setpriv --reuid=$5 --clear-groups" dir=$2 fuse=$6
            begin() {
                $as "$fuse" --socket "$PTC_SOCKET" "$dir" &
                left=400
                until $as test -e "$dir/theirs"; do test $((left -= 1)) -gt 0; sleep 0.05; done
            }
            for how in close TERM; do
                begin; old=$!
                $as tail -n 1 -f "$dir/theirs/state/latest/model.safetensors" > /dev/null & reader=$!
                until ls -l /proc/$reader/fd 2>/dev/null | grep -q model; do sleep 0.05; done
                $as "$3" umount "$dir"
                begin; new=$!
                test $how = close || kill -s $how $old
                test $how = TERM || kill $reader
                wait $old
                $as cmp "$dir/theirs/state/latest/model.safetensors" "$4"
                test $how = close || kill $reader
                kill $new; wait $new
                test -z "$(ls "$dir")"
            done
            """
        with self.cluster(nodes=1, devices=1) as c:
            job = Job(c, "theirs", self.state({"w": (30, 4)}, fields=()), self.path("theirs"), [{"match": "*"}])
            other = ["setpriv", f"--reuid={OTHER_UID}", "--clear-groups"]
            c.ptcctl("job", "create", "-f", job.yaml, prefix=other)
            c.ptcctl(*job.import_args("tp=1"), prefix=other)
            r = run_with_fuse_for_all(self, c, script, job.files["param"], str(OTHER_UID), harness.binary("daemon/ptc-fuse"))
            self.assertEqual((0, ""), (r.returncode, r.stdout))

    def shared_job(self, c, name, group, prefix=()):
        os.makedirs(self.path(name))
        job = Job(c, name, self.state({"w": (3000, 40)}), self.path(name), [{"match": "*"}])
        with open(job.yaml) as f:
            spec = json.load(f)
        with open(job.yaml, "w") as f:
            json.dump(spec | {"files": {"group": group}}, f)
        return job

    @skip_unless_root
    def test_group(self):
        """`files: {group: ...}`: its members, by whichever of their groups, read the job's files in root's mount, and may do nothing else."""
        def user(uid, gid, *groups):
            return ["setpriv", f"--reuid={uid}", f"--regid={gid}", f"--groups={','.join(map(str, groups))}" if groups else "--clear-groups"]

        owner, group = user(OTHER_UID, OTHER_UID), grp.getgrgid(OTHER_UID).gr_name
        members = [user(MEMBER_UID, MEMBER_UID, 7, OTHER_UID, 65531), user(MEMBER_UID, OTHER_UID)]
        strangers = [user(MEMBER_UID, MEMBER_UID), user(MEMBER_UID, MEMBER_UID, 6553, 55340)]
        with self.cluster(nodes=2, devices=1) as c:
            job = self.shared_job(c, "shared", group)
            c.ptcctl("job", "create", "-f", job.yaml, prefix=owner)
            c.ptcctl(*job.import_args("tp=1"), prefix=owner)
            self.big_job(c, "mine", mib=1, config="tp=1")
            self.assertEqual(OTHER_UID, {j["job"]: j.get("files_group") for j in c.json("job", "list")["jobs"]}["shared"])
            for node in ("n0", "n1"): # where its bytes lie, and where they do not
                m = Mount(self, c, "--others", node=node)
                top = m.path("shared", "state", os.readlink(m.path("shared", "state", "latest")))
                for path, mode in ((m.path("shared"), 0o40550), (top + "/tensors", 0o40550), (top + "/tensors/w.npy", 0o100440),
                                   (m.path("shared", "generation.json"), 0o100440), (m.path("mine"), 0o40500)):
                    of = os.stat(path)
                    self.assertEqual((mode, OTHER_UID if "shared" in path else 0), (of.st_mode, of.st_gid), path)
                for member in [owner, *members]:
                    self.assertEqual("shared\n", self.output([*member, "ls", m.dir]))
                    self.output([*member, "cmp", top + "/model.safetensors", job.files["param"]])
                    self.assertEqual("", self.output([*member, "find", m.path("shared"), "!", "-type", "l", "!", "-readable"]))
                    self.assertIn("Read-only", self.output([*member, "touch", top + "/tensors/w.npy"], fails=True))
                    self.output([*member, "ls", m.path("mine")], fails=True)
                for stranger in strangers:
                    self.assertEqual("", self.output([*stranger, "ls", m.dir]))
                    for path in (m.path("shared"), m.path("shared", "generation.json"), top + "/model.safetensors"):
                        self.assertIn("Permission denied", self.output([*stranger, "head", "-c1", path], fails=True))
                m.stop()
            self.only_files(c, job, owner, members)

    def output(self, argv, fails=False, env=None):
        r = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        self.assertEqual(fails, r.returncode != 0, f"{argv}: {r.returncode}: {r.stdout}")
        return r.stdout

    def only_files(self, c, job, owner, members):
        """The group is for the mount; everything else is the owner's, whose group it has to be."""
        out = self.path("out.safetensors")
        for member in members:
            for verb in (["status", "shared"], ["export", "shared", out], ["resize", "shared", "--config", "tp=1"], ["job", "delete", "shared"]):
                self.refused(c, *verb, prefix=member, contains='"shared" does not exist')
            self.refused(c, "job", "create", "-f", self.shared_job(c, f"to{len(os.listdir(self.dir))}", 3).yaml, prefix=member,
                         contains="not in group 3")
        os.makedirs(self.path("exported"))
        os.chown(self.path("exported"), OTHER_UID, OTHER_UID)
        c.ptcctl("export", "shared", self.path("exported", "x.safetensors"), prefix=owner)
        self.assertEqual(harness.sha256(job.files["param"]), harness.sha256(self.path("exported", "x.safetensors")))
        self.refused(c, "job", "create", "-f", self.shared_job(c, "nobodys", "no-such-group").yaml, contains='no group "no-such-group"')
        c.ptcctl("job", "create", "-f", self.shared_job(c, "roots", 3).yaml) # root names any
        with wire.Peer(f"unix:{c.nodes['n0'].socket}") as p, self.assertRaisesRegex(grpc.RpcError, "is a name"):
            p.call("Control", "JobCreate", spec_json=json.dumps({
                "version": 1, "name": "raw", "tensors": [{"name": "a", "dtype": "U8", "shape": [4]}], "rules": [{"match": "a"}],
                "files": {"group": "staff"}}).encode())

    # ---- what goes away -------------------------------------------------------

    def reader(self, path, at, n=4096):
        """A process that reads past the page cache, so that it waits in the kernel; prints what came of it."""
        code = ("import mmap, os, sys\nfd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)\nprint('open', flush=True)\n"
                "try:\n print(os.preadv(fd, [mmap.mmap(-1, int(sys.argv[3]))], int(sys.argv[2])))\n"
                "except OSError as e:\n print(e.errno)")
        p = subprocess.Popen([shutil.which("python3"), "-c", code, path, str(at), str(n)], stdout=subprocess.PIPE, text=True)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        self.assertEqual("open\n", p.stdout.readline())
        return p

    def check_stopped(self, m, stopped, path, size, bound_s):
        """While that process is stopped: bytes that need it are EIO within the bound; who waits can be killed; the rest lives."""
        began = time.monotonic()
        waiting, killed = self.reader(path, size // 2 & ~4095), self.reader(path, size // 2 + (1 << 20) & ~4095)
        os.kill(stopped, signal.SIGSTOP)
        try:
            waiting = self.reader(path, size // 4 & ~4095) if waiting.poll() is not None else waiting
            killed.kill()
            killed.wait(2 * PATIENCE)
            os.stat(path)
            self.assertIn("latest", os.listdir(m.path("big", "state")))
            out, _ = waiting.communicate(timeout=(bound_s + 3) * PATIENCE)
            # it may have been quicker than the signal
            self.assertIn(int(out), (errno.EIO, 4096))
            self.assert_errno(errno.EIO, self.read_all_direct, path)
            self.assertLess(time.monotonic() - began, (3 * bound_s + 3) * PATIENCE)
        finally:
            os.kill(stopped, signal.SIGCONT)

    @staticmethod
    def read_all_direct(path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            got, buffer = b"", mmap.mmap(-1, 1 << 20)
            while n := os.preadv(fd, [buffer], len(got)):
                got += buffer[:n]
            return got
        finally:
            os.close(fd)

    def test_stopped_peer(self):
        """SIGSTOP of a node that has half of the bytes, and of the daemon asked: EIO within the bound, nobody stuck. kill -9
        of the node: the same, and the bytes again when it is back."""
        bound_s = 1
        with self.cluster(nodes=2, devices=1) as c:
            job = self.big_job(c, mib=48)
            m = Mount(self, c, "--timeout", f"{bound_s}s", "--cache", "8MiB")
            path = m.path("big", "state", "latest", "model.safetensors")
            size = os.stat(path).st_size
            with open(job.files["param"], "rb") as f:
                want = f.read()
            for node in ("n1", "n0"):
                print(f"stopping {node}", flush=True)
                self.check_stopped(m, c.nodes[node].pid(), path, size, bound_s)
                wait_for(lambda: self.readable(path, want), 30 * PATIENCE, f"the bytes again once {node} goes on", 0.2)
            if LONG:
                c.nodes["n1"].kill()
                self.assert_errno(errno.EIO, self.read_all_direct, path)
                c.restart("n1")
                wait_for(lambda: self.readable(path, want), 30 * PATIENCE, "the bytes again once n1 is back", 0.2)
            m.stop()

    # Reads past the page cache at random places until its input ends, and writes a character for each: r(ight), E(IO), ! (anything
    # else); at last how long the longest took.
    RANDOM_READER = """
import errno, mmap, os, random, select, sys, time
path, file, seed = sys.argv[1:]
fd, rng, buffer, longest = os.open(path, os.O_RDONLY | os.O_DIRECT), random.Random(seed), mmap.mmap(-1, 1 << 20), 0
with open(file, "rb") as f:
    want = f.read()
while not select.select([0], [], [], 0)[0]:
    at, n, began = rng.randrange(len(want)) & ~4095, 4096 * rng.randint(1, 64), time.monotonic()
    try:
        got = os.preadv(fd, [memoryview(buffer)[:n]], at)
        said = "r" if buffer[:got] == want[at:at + n] else "!"
    except OSError as e:
        said = "E" if e.errno == errno.EIO else "!"
    longest = max(longest, time.monotonic() - began)
    print(said, end="", flush=True)
print(f" {longest}")
"""

    def random_readers(self, path, file, n=4):
        """[(process, where it writes)], all of which have read something."""
        readers = []
        for i in range(n):
            said = self.path(f"reader-{i}")
            with open(said, "wb") as out:
                p = subprocess.Popen([shutil.which("python3"), "-c", self.RANDOM_READER, path, file, str(self.random.random())],
                                     stdin=subprocess.PIPE, stdout=out)
            self.addCleanup(p.wait)
            self.addCleanup(p.kill)
            self.addCleanup(p.stdin.close)
            readers.append((p, said))
        wait_for(lambda: all(os.path.getsize(said) for _, said in readers), MOUNT_S, "what readers read", 0.01)
        return readers

    def check_killed(self, c, node, path, file, waiting, bound_s):
        """kill -9 of a daemon while readers read, or wait for its bytes because it stood still: each read ends within the bound,
        as EIO or with the right bytes; once the daemon is back, with the right bytes."""
        readers = self.random_readers(path, file)

        def sizes():
            return [os.path.getsize(said) for _, said in readers]

        def all_wait():
            before, _ = sizes(), time.sleep(0.1 * bound_s)
            return before == sizes()
        if waiting:
            node.signal(signal.SIGSTOP)
            wait_for(all_wait, 10 * bound_s * PATIENCE, "readers that all wait for the daemon", 0)
        node.kill()
        at = sizes()
        # of a few reads of each one needs what is gone
        wait_for(lambda: all(b > a + 16 for a, b in zip(at, sizes(), strict=True)), (17 * bound_s + 10) * PATIENCE, "reads without the daemon")
        gone = sizes()
        c.restart(node.name)
        wait_for(lambda: all("E" not in open(said).read()[-16:] and os.path.getsize(said) > n + 16
                             for (_, said), n in zip(readers, gone, strict=True)), 30 * PATIENCE, "the bytes again once it is back", 0.05)
        failed = 0
        for p, said in readers:
            p.stdin.close()
            self.assertEqual(0, p.wait(5 * PATIENCE))
            with open(said) as f:
                reads, longest = f.read().split()
            self.assertEqual(set(), set(reads) - set("rE"))
            self.assertLess(float(longest), (bound_s + 2) * PATIENCE)
            failed += reads.count("E")
        self.assertGreater(failed, 0, "no read needed the daemon")
        print(f"{node.name} killed{' while readers waited' if waiting else ''}: {failed} reads failed, the longest took {longest} s", flush=True)

    def test_killed_under_readers(self):
        """kill -9 of a node that has half of the bytes, and of the daemon asked, while readers are in a read."""
        bound_s = 2
        with self.cluster(nodes=2, devices=1) as c:
            job = self.big_job(c, mib=48)
            m = Mount(self, c, "--timeout", f"{bound_s}s", "--cache", "8MiB")
            path = m.path("big", "state", "latest", "model.safetensors")
            for name in ("n1", "n0"):
                for waiting in (True, False):
                    self.check_killed(c, c.nodes[name], path, job.files["param"], waiting, bound_s)
            m.stop()

    def readable(self, path, want):
        try:
            return self.read_all_direct(path) == want
        except OSError:
            return False

    def test_stop_under_readers(self):
        """SIGTERM, and kill -9, while many read: the process ends within a bound, readers get an error, nothing is left."""
        with self.cluster(nodes=2, devices=1) as c:
            self.big_job(c, mib=48)
            for how in (signal.SIGTERM, signal.SIGKILL):
                m = Mount(self, c, "--cache", "8MiB")
                path, ends, began = m.path("big", "state", "latest", "model.safetensors"), [], threading.Semaphore(0)

                def read_for_ever():
                    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
                    try:
                        while True:
                            self.read_fd(fd)
                            began.release()
                    except OSError as e:
                        ends.append(e.errno)
                    finally:
                        with contextlib.suppress(OSError): # nobody is there to be told
                            os.close(fd)

                threads = [threading.Thread(target=read_for_ever) for _ in range(4)]
                for t in threads:
                    t.start()
                began.acquire()
                m.process.send_signal(how)
                m.process.wait(5 * PATIENCE)
                for t in threads:
                    t.join(5 * PATIENCE)
                    self.assertFalse(t.is_alive(), f"a reader waits after {how.name}")
                self.assertEqual(4, len(ends))
                self.assertLessEqual(set(ends), {errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENODEV})
                if how == signal.SIGKILL:
                    self.assert_errno(DEAD_MOUNT, os.listdir, m.dir) # at once, and nothing that blocks
                    m.start()
                    self.assertEqual(["big"], os.listdir(m.dir))
                    m.stop()
            self.assertEqual([], mounts(self.dir))

    @staticmethod
    def read_fd(fd):
        buffer, at = mmap.mmap(-1, 1 << 20), 0
        while n := os.preadv(fd, [buffer], at):
            at += n

    def test_daemon_restarts(self):
        """fuse.dir: ptcd may stop, die and come back, and ptc-fuse die: the same paths, the same open files."""
        top = self.path("files")
        self.addCleanup(LIBC.umount2, top.encode(), DETACH)
        with self.cluster(nodes=2, devices=1, fuse={"n1": {"dir": top, "cache": "8MiB", "timeout": "5s"}}) as c:
            node = c.nodes["n1"]
            job = self.big_job(c)
            path = os.path.join(top, "big", "state", "latest", "model.safetensors")
            with open(job.files["param"], "rb") as f:
                want = f.read()
            wait_for(lambda: os.path.exists(path), MOUNT_S, "the files")
            served = self.fuse_pid(node)
            with open(path, "rb") as held:
                self.assertEqual(want[:100], held.read(100))
                for how in (signal.SIGKILL, signal.SIGTERM):
                    node.signal(how)
                    node.wait_gone(20)
                    self.assertEqual(["big"], os.listdir(top))
                    c.restart("n1")
                    wait_for(lambda: self.readable(path, want), 20 * PATIENCE, "the bytes after a restart", 0.2)
                    held.seek(0)
                    self.assertEqual(want, held.read())
                    self.assertEqual(served, self.fuse_pid(node), "ptc-fuse was started anew")
            os.kill(served, signal.SIGKILL)
            wait_for(lambda: self.fuse_pid(node) not in (None, served), MOUNT_S, "another ptc-fuse")
            wait_for(lambda: self.readable(path, want), MOUNT_S, "the bytes after ptc-fuse died", 0.2)
            self.die_together(c, node, top, path, want)

    def test_daemon_has_not_read_etcd(self):
        """A daemon that starts and has not read etcd's keys yet does not say that there are no jobs: it lets the question wait, and then says
        why. What is below a mount is found all the time."""
        with self.cluster(nodes=2, devices=1) as c:
            self.big_job(c, mib=1)
            m = Mount(self, c, node="n1")
            path = m.path("big", "state", "latest", "model.safetensors")
            size = os.stat(path).st_size

            def told():
                self.assertEqual(["big"], os.listdir(m.dir))
                self.assertEqual(size, os.stat(path).st_size)
                r = c.ptcctl("status", node="n1", check=False)
                self.assertNotEqual(0, r.returncode, r.stdout)
                return harness.UNREAD in r.stderr
            with self.unread(c, "n1"):
                wait_for(told, 60 * PATIENCE, "a daemon that says what it waits for")
            c.wait_nodes(["n0", "n1"], 60 * PATIENCE)
            self.assertEqual(["big"], [job["job"] for job in c.json("status", node="n1")["jobs"]])
            self.assertEqual(size, len(open(path, "rb").read()))
            m.stop()

    def die_together(self, c, node, top, path, want):
        os.kill(self.fuse_pid(node), signal.SIGKILL)
        node.kill()
        wait_for(lambda: self.fuse_pid(node) is None, MOUNT_S, "the end of both")
        if top in mounts(self.dir): # ptcd may have been quicker
            self.assert_errno(DEAD_MOUNT, os.listdir, top)
        c.restart("n1")
        wait_for(lambda: self.readable(path, want), MOUNT_S, "the bytes after both died", 0.2)
        os.kill(self.fuse_pid(node), signal.SIGTERM)
        node.stop()
        wait_for(lambda: self.fuse_ended(node), MOUNT_S, "its end")
        wait_for(lambda: not mounts(self.dir), MOUNT_S, "the end of the mount")

    def fuse_ended(self, node):
        """Whoever serves that node's fuse.dir, one just started, too, is told to end."""
        pid = self.fuse_pid(node)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return pid is None

    @staticmethod
    def fuse_pid(node):
        """The process that serves that node's fuse.dir; None: none."""
        try:
            with open(os.path.join(node.dir, "run", "fuse.lock")) as f:
                pid = int(f.read().split()[0])
            with open(f"/proc/{pid}/comm") as f:
                return pid if f.read() == "ptc-fuse\n" and status_of(pid) != "Z" else None
        except (OSError, ValueError, IndexError):
            return None

    # ---- what is replaced -----------------------------------------------------

    def used_bytes(self, c):
        return sum(n["store"]["used_bytes"] for n in c.json("nodes")["nodes"])

    def test_open_while_replaced(self):
        """A file that is open keeps its snapshot through switches, on every node; once closed, its chunks are freed."""
        with self.cluster(nodes=2, devices=2) as c:
            job = self.big_job(c, mib=16, config="tp=2")
            m = Mount(self, c, "--cache", "8MiB")
            with open(job.files["param"], "rb") as f:
                want = f.read()
            before = json.load(open(m.path("big", "generation.json")))
            old = m.path("big", "state", os.readlink(m.path("big", "state", "latest")), "model.safetensors")
            rank = os.path.join(os.path.dirname(old), f"gen-{before['generation']}", "ranks", "0.safetensors")
            want_rank = open(rank, "rb").read()
            fd = os.open(old, os.O_RDONLY | os.O_DIRECT)
            rank_fd = os.open(rank, os.O_RDONLY | os.O_DIRECT)
            for config in ("dp=2,tp=2", "tp=4", "dp=2"):
                job.resize(config)
            now = json.load(open(m.path("big", "generation.json")))
            self.assertEqual(before["generation"] + 3, now["generation"])
            held = self.used_bytes(c)
            self.assertEqual(want, self.read_direct(fd))
            self.assertEqual(want_rank, self.read_direct(rank_fd))
            self.assertEqual(want, open(m.path("big", "state", "latest", "model.safetensors"), "rb").read())
            ranks = m.path("big", "state", "latest", f"gen-{now['generation']}", "ranks")
            self.assertEqual({"0.safetensors", "1.safetensors"}, set(os.listdir(ranks)))
            # the path of the old generation's ranks leads to theirs, as long as it leads anywhere
            self.assertEqual(want_rank, open(rank, "rb").read())
            self.assertEqual({"0.safetensors", "1.safetensors"}, set(os.listdir(os.path.dirname(rank))))
            os.close(fd)
            os.close(rank_fd)
            job.resize("tp=2") # chunks that nobody refers to any more are given back by the next switch
            wait_for(lambda: self.used_bytes(c) < held, 30 * PATIENCE, "the held chunks freed", 0.2)
            m.stop()

    @staticmethod
    def read_direct(fd):
        got, buffer = b"", mmap.mmap(-1, 1 << 20)
        while n := os.preadv(fd, [buffer], len(got)):
            got += buffer[:n]
        return got

    def test_read_through_switches(self):
        """Readers that open `latest` again and again while the job is resized: always the right bytes, in the right places;
        the one error there may be is that a snapshot has just gone."""
        with self.cluster(nodes=3, devices=2) as c:
            job = self.big_job(c, mib=8)
            with open(job.files["param"], "rb") as f:
                want = f.read()
            m = [Mount(self, c, "--cache", "8MiB", node=n) for n in ("n0", "n2")]
            over, wrong, read, gone = threading.Event(), [], [0, 0], [0]

            def reader(i):
                path = m[i % 2].path("big", "state", "latest", "model.safetensors")
                while not over.is_set():
                    try:
                        fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if i > 1 else 0))
                    except OSError as e:
                        gone[0] += 1
                        if e.errno not in (errno.ENOENT, errno.ESTALE):
                            wrong.append(f"open: {e}")
                        continue
                    try:
                        if self.read_direct(fd) != want:
                            wrong.append("other bytes")
                        read[i % 2] += 1
                    except OSError as e:
                        wrong.append(f"read: {e}")
                    finally:
                        os.close(fd)

            threads = [threading.Thread(target=reader, args=[i]) for i in range(4)]
            for t in threads:
                t.start()
            try:
                for i in range(harness.size(6, 12, 30)):
                    job.resize(("dp=2", "tp=4", "dp=3,tp=2", "tp=2")[i % 4])
            finally:
                over.set()
                for t in threads:
                    t.join(60 * PATIENCE)
            print(f"{read} files read, {gone[0]} gone", flush=True)
            for x in m if wrong else ():
                with open(x.log) as f:
                    print(f"---- {x.log}\n{f.read()}", flush=True)
            self.assertEqual([], wrong)
            self.assertGreater(min(read), 0)
            for x in m:
                x.stop()

    # ---- what lies on this node -------------------------------------------------

    @staticmethod
    def opened_chunk_files(m):
        """Access modes of the chunk files that ptc-fuse has open."""
        top, modes = f"/proc/{m.process.pid}/fd", []
        for fd in os.listdir(top):
            with contextlib.suppress(OSError):
                if "data.mdb" in os.readlink(f"{top}/{fd}"):
                    with open(f"/proc/{m.process.pid}/fdinfo/{fd}") as f:
                        modes.append(int(f.read().split("flags:")[1].split()[0], 8) & os.O_ACCMODE)
        return modes

    def right_or_eio(self, fd, want):
        """Reads all of it in pieces of random sizes; how many bytes there were. Whatever else than EIO comes, it is the right one."""
        got, at, buffer = 0, 0, mmap.mmap(-1, 1 << 20)
        while at < len(want):
            n = min(self.random.randrange(1, 257) * 4096, len(want) - at)
            try:
                n = os.preadv(fd, [memoryview(buffer)[:n]], at)
                self.assertTrue(buffer[:n] == want[at:at + n], f"other bytes within [{at}, {at + n})")
                got += n
            except OSError as e:
                self.assertEqual(errno.EIO, e.errno)
            at += n
        return got

    def gone_and_back(self, c, m, path, want, lapse):
        """The job's bytes go to another node and come back, while ptc-fuse is stopped and learns of it by what it finds in the file
        only; nothing is held any more, because ptcd was killed, or the lease is over."""
        fd, node = os.open(m.path(*path), os.O_RDONLY | os.O_DIRECT), c.nodes["n0"]
        self.assertEqual(len(want), self.right_or_eio(fd, want))
        self.assertEqual([os.O_RDONLY], self.opened_chunk_files(m))
        if not lapse:
            node.kill()
            self.assertEqual(len(want), self.right_or_eio(fd, want))
        os.close(os.dup(fd)) # the kernel asks about the first close, as of those between fork and exec below, and then no more
        m.process.send_signal(signal.SIGSTOP)
        if lapse:
            time.sleep(33) # FS_PIN_MS and what ptcd takes to see it
        else:
            c.restart("n0")
        for there in ("n1", "n0") * (5 if LONG else 1): # odd: chunks are taken in the reverse order of what they were before
            c.ptcctl("resize", "here", "--config", "tp=1", "--nodes", there, "--wait")
        m.process.send_signal(signal.SIGCONT)
        print(f"{self.right_or_eio(fd, want)} of {len(want)} bytes still there", flush=True)
        os.close(fd)
        with open(m.path(*path), "rb") as f:
            self.assertEqual(want, f.read())
        self.assertEqual([os.O_RDONLY], self.opened_chunk_files(m))

    def test_read_on_this_node(self):
        """What lies here is read in the chunk file: also while ptcd is dead, and never what has come in its place."""
        with self.cluster(nodes=2, devices=1) as c:
            job = Job(c, "here", self.state({f"w.{i}": (3000 + i, 700) for i in range(3)}, fields=()), self.path("here"),
                      [{"match": "*"}])
            job.create()
            c.ptcctl(*job.import_args("tp=1"), "--nodes", "n0")
            with open(job.files["param"], "rb") as f:
                want = f.read()
            m, far = Mount(self, c, "--cache", "8MiB", "--timeout", "5s"), Mount(self, c, node="n1")
            path = ("here", "state", "latest", "model.safetensors")
            with open(far.path(*path), "rb") as f:
                self.assertEqual(want, f.read())
            self.assertEqual([], self.opened_chunk_files(far))
            far.stop()
            for lapse in (False, True) if LONG else (False,):
                self.gone_and_back(c, m, path, want, lapse)
            m.stop()

    def test_live_job(self):
        """Ranks that train: the model and what belongs to the optimizer, a snapshot that is held while newer ones are made."""
        with self.cluster(nodes=2, devices=2) as c:
            job = live.Job(c, self.dir, steps=1_000_000, sleep=0.005, run={"files": {"carry": {"config.json": CONFIG}}})
            job.run("tp=2,dp=2")
            m = Mount(self, c, node="n1")
            self.assertEqual([], os.listdir(m.path("live", "state")))
            self.assert_errno(errno.ENOENT, os.stat, m.path("live", "generation.json"))
            job.wait_step(5)
            job.do("snapshot")
            first = self.check_live(c, job, m)
            fd = os.open(os.path.join(first, "model.safetensors"), os.O_RDONLY | os.O_DIRECT)
            want = self.read_direct(fd)
            job.resize("tp=4")
            self.assertNotEqual(first, self.check_live(c, job, m))
            self.assertEqual(want, self.read_direct(fd))
            self.assertIn(os.path.basename(first), os.readlink(f"/proc/self/fd/{fd}"))
            os.close(fd)
            job.do("stop")
            m.stop()

    def check_live(self, c, job, m):
        exported = tempfile.mkdtemp(dir=self.dir) + "/all.safetensors"
        c.ptcctl("export", "live", exported)
        want = {n: (t.dtype, t.shape, t.tobytes()) for n, t in states.read_file(exported).items()}
        top = m.path("live", "state", os.readlink(m.path("live", "state", "latest")))
        at = json.load(open(m.path("live", "generation.json")))
        self.assertEqual({"model.safetensors", "optimizer.safetensors", "config.json", "tensors", f"gen-{at['generation']}"}, set(os.listdir(top)))
        with open(f"{top}/config.json") as f:
            self.assertEqual(CONFIG, f.read())
        got = {f: {n: (t.dtype, t.shape, t.tobytes()) for n, t in states.read_file(f"{top}/{f}.safetensors").items()}
               for f in ("model", "optimizer")}
        self.assertEqual(want, {**got["model"], **got["optimizer"]})
        self.assertEqual({n for n in want if ":" in n}, set(got["optimizer"]))
        self.assertTrue(got["optimizer"] and got["model"])
        self.assertTrue(top.endswith(f"snap-{at['snapshot']}-step-{at['step']}"))
        # what each rank declared: its rows of every layer (tests/trainer.py), tp the fastest axis
        gen = f"{top}/gen-{at['generation']}"
        self.assertEqual({f"{r}.safetensors" for r in range(4)}, set(os.listdir(gen + "/ranks")))
        tp = int(at["config"].partition("tp=")[2].partition(",")[0])
        for r in range(4):
            first, n = trainer.rows_of(job.rows, tp, r % tp)
            files = states.read_file(f"{gen}/ranks/{r}.safetensors")
            self.assertEqual(set(want), set(files))
            for l in range(job.layers):
                for name, sign in ((f"layer.{l}.weight", 1), (f"layer.{l}.weight:m", -1)):
                    rows = live.layer(job.rows, l, at["step"], sign)[first:first + n]
                    self.assertEqual((n, 6), files[name].shape)
                    self.assertEqual(rows.tobytes(), files[name].tobytes(), f"rank {r}, {name}")
        ranks = tempfile.mkdtemp(dir=self.dir)
        c.ptcctl("export", "live", "--ranks", ranks)
        self.assertEqual(files["steps"].tobytes(), states.read_file(f"{ranks}/rank-3.param.safetensors")["steps"].tobytes())
        return top

    def test_name_used_again(self):
        """Another job of the same name, sizes and numbers: other inodes, other bytes, and no file shows both."""
        with self.cluster(nodes=1, devices=1) as c:
            m = Mount(self, c)
            path, seen, fds = m.path("again", "state", "latest", "model.safetensors"), [], []
            for i in range(2):
                rng = np.random.default_rng(self.seed + i)
                s = states.State()
                s.add(rng, "w", "F32", (300_000,))
                job = Job(c, "again", s, self.path(f"job{i}"), [{"match": "*"}])
                job.imported("tp=1")
                with open(job.files["param"], "rb") as f:
                    want = f.read()
                self.assertEqual(want, open(path, "rb").read())
                seen.append(os.stat(path).st_ino)
                fds.append(os.open(path, os.O_RDONLY | os.O_DIRECT))
                for fd, bytes_of in zip(fds, [want] if i == 0 else [first, want]):
                    with contextlib.suppress(OSError):
                        self.assertEqual(bytes_of, self.read_direct(fd))
                first = want
                job.delete()
                self.assert_errno(errno.ENOENT, os.stat, m.path("again"))
            self.assertNotEqual(*seen)
            for fd in fds:
                os.close(fd)
            m.stop()


if __name__ == "__main__":
    unittest.main()
