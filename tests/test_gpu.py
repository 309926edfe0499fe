# SPDX-License-Identifier: Apache-2.0
"""ptc-gpu from outside, on the fake driver (tests/gpu): what it lists, what strangers on its socket get, and that nothing installed
needs a CUDA library. What it does for ptcd is tested beside its client (daemon/gpu/client/test_gpu_client.c)."""
import glob
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

import harness

FAKE = harness.binary("tests/gpu/fake")
GPU = harness.binary("daemon/ptc-gpu")
UUIDS = ["GPU-" + "-".join(b * n for n in (4, 2, 2, 2, 6)) for b in ("d0", "d1", "d2", "d3")]

# The protocol as daemon/gpu/gpu_wire.h and daemon/gpu/cuda/gpu_export.h have it, written down a second time.
VERSION, READY_ID = 2, 0
MAP_HOST, UNMAP_HOST, BIND, HANDLES, COPY_OUT, COPY_IN, DIGEST, CLOSE, _, STATS, KEEP, COPY_WITHIN, SHADOW, LOCK = range(1, 15)
EXPORT = struct.Struct("<II7Q48s64s96s")
HEAD = struct.Struct("<IIQIIIIQQQII")
PART = struct.Struct("<9Q")
ANSWER = struct.Struct("<IiQIIIIQQ512s")
EINVAL, ENOTFOUND, EVERSION = -101, -102, -105


def request(op, number=1, version=VERSION, flags=0, memory=0, host=0, size=0, parts=(), nparts=None, bind=b""):
    head = HEAD.pack(version, op, number, flags, len(parts) if nparts is None else nparts, memory, host, size, 0, 0, 0, 0)
    return head + bind.ljust(EXPORT.size, b"\0") + b"".join(PART.pack(*p) for p in parts)


class Answer:
    def __init__(self, data):
        (self.version, self.status, self.id, self.blame, self.sticky, self.ref, self.count, self.value, self.more,
         text) = ANSWER.unpack(data)
        self.text = text.split(b"\0")[0].decode(errors="replace")


class Gpu(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="ptc-gpu-")
        self.addCleanup(shutil.rmtree, self.dir)

    def env(self, **more):
        return {**os.environ, "LD_LIBRARY_PATH": FAKE, "PTC_FAKE_GPU": self.dir, **more}

    def list(self, **env):
        r = subprocess.run([GPU, "--list"], env=self.env(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           timeout=60 * harness.PATIENCE)
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        return json.loads(r.stdout)

    # ---- devices ----

    def test_devices(self):
        found = self.list()
        self.assertEqual(found["version"], 1)
        self.assertNotIn("why", found)
        first, second = found["devices"]
        self.assertEqual(first, {
            "uuid": UUIDS[0], "index": 0, "kind": "gpu", "name": 'Fake "GPU" 0', "bus": "00000000:17:00.0", "health": "ok",
            "memory_bytes": 256 << 20, "free_bytes": 200 << 20, "processes": 0, "pids": [], "pid_bytes": [], "visible": True, "cuda_index": 0})
        self.assertEqual((second["uuid"], second["index"], second["cuda_index"]), (UUIDS[1], 1, 1))
        self.assertEqual(self.list(PTC_FAKE_GPU_DEVICES="0")["devices"], [])

    def test_health(self):
        with open(os.path.join(self.dir, "lost-3"), "w"):
            pass
        devices = self.list(PTC_FAKE_GPU_DEVICES="4", PTC_FAKE_NVML="0:ecc,1:pending,2:failed")["devices"]
        self.assertEqual([d["health"] for d in devices], ["ecc", "reset-required", "ecc", "lost"])
        self.assertIn("3 uncorrectable memory errors", devices[0]["why"])
        self.assertIn("waits for a reset", devices[1]["why"])
        self.assertIn("could not be remapped", devices[2]["why"])
        self.assertIn("GPU is lost", devices[3]["why"])

    def test_occupancy(self):
        devices = self.list(PTC_FAKE_GPU_DEVICES="3", PTC_FAKE_NVML="0:busy,1:full,2:bare")["devices"]
        self.assertEqual([(d["processes"], d["pids"]) for d in devices], [(2, [1000, 1001]), (1000, []), (0, [])])
        self.assertEqual(devices[0]["pid_bytes"], [10 << 20, None])
        self.assertEqual([d["health"] for d in devices], ["ok"] * 3)

    def test_mig(self):
        devices = self.list(PTC_FAKE_NVML="1:mig")["devices"]
        self.assertEqual([(d["kind"], d["index"]) for d in devices], [("gpu", 0), ("mig", 1), ("mig", 1)])
        self.assertEqual(len({d["uuid"] for d in devices}), 3)
        shown = self.list(PTC_FAKE_NVML="1:mig", CUDA_VISIBLE_DEVICES=devices[2]["uuid"])["devices"]
        self.assertEqual([d["visible"] for d in shown], [False, False, True])

    def test_visible(self):
        for value, shown in (("1", [1]), ("1,0", [1, 0]), ("-1", []), ("0,-1,1", [0]), ("GPU-d1", [1]), ("GPU-d", []), ("0,0", [])):
            with self.subTest(value):
                devices = self.list(CUDA_VISIBLE_DEVICES=value)["devices"]
                by_place = sorted((d["cuda_index"], d["index"]) for d in devices if d["visible"])
                self.assertEqual([i for _, i in by_place], shown)

    def test_no_driver(self):
        found = self.list(LD_LIBRARY_PATH="/nonexistent")
        self.assertEqual(found["devices"], [])
        self.assertIn("no NVIDIA driver on this node", found["why"])
        self.assertIn("reboot the node", self.list(PTC_FAKE_NVML_START="18")["why"])
        self.assertIn("see nvidia-smi", self.list(PTC_FAKE_NVML_START="999")["why"])

    def test_usage(self):
        for args in ([], ["--what"], ["--list", "x"], ["--serve"], *(["--serve", "--pinned", *more] for more in (
                ["x"], ["-1"], ["1", "--copiers"], ["1", "--copiers", "0"], ["1", "--copiers", "9"], ["1", "--copy", "2"]))):
            r = subprocess.run([GPU, *args], env=self.env(), stderr=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual((r.returncode, r.stderr), (2, "usage: ptc-gpu --list | --serve --pinned BYTES [--copiers 1..8]\n"), args)
        r = subprocess.run([GPU, "--serve", "--pinned", "1"], env=self.env(), stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(r.returncode, 1)
        self.assertIn("only ptcd starts ptc-gpu --serve", r.stderr)

    # ---- its socket ----

    def serve(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(60 * harness.PATIENCE)
        fd = theirs.fileno()
        run = "import os, sys; os.dup2(int(sys.argv[2]), 3); os.execv(sys.argv[1], ['ptc-gpu', '--serve', '--pinned', '67108864'])"
        p = subprocess.Popen([sys.executable, "-c", run, GPU, str(fd)], env=self.env(), pass_fds=[fd], stderr=subprocess.PIPE,
                             text=True)
        theirs.close()
        self.addCleanup(p.stderr.close)
        self.addCleanup(p.wait)
        self.addCleanup(ours.close)
        ready = Answer(ours.recv(ANSWER.size))
        self.assertEqual((ready.version, ready.id, ready.status, ready.text), (VERSION, READY_ID, 0, ""))
        return p, ours

    def ask(self, ours, data, fds=()):
        socket.send_fds(ours, [data], list(fds))
        return Answer(ours.recv(ANSWER.size + 1))

    def assert_clean(self, p, ours):
        """It ends with its socket, and the fake driver has nothing to complain of."""
        ours.close()
        self.assertEqual(p.wait(60 * harness.PATIENCE), 0)
        report = os.path.join(self.dir, f"report-{p.pid}")
        with open(report) as f:
            for line in f:
                if not line.startswith("call "):
                    self.assertRegex(line, r"^(left|count) \w+ 0$")

    def test_requests(self):
        """Each malformed request is answered with what is wrong with it, and the next one served."""
        p, ours = self.serve()
        box = (0, 0, 1, 1, 1, 1, 1, 1, 1)
        export = EXPORT.pack(1, p.pid, 1, 1, 1, 100, 0, 0, 0, b"GPU-x", b"", b"")
        cases = [
            (request(STATS, version=4), EVERSION, "version 4, this ptc-gpu speaks 1 to 3"),
            (request(STATS, version=0), EVERSION, "version 0"),
            (request(0), EINVAL, "kind 0"), (request(LOCK + 1), EINVAL, "kind 15"), (request(9), ENOTFOUND, "no allocation 0"),
            (request(STATS, number=0), EINVAL, "number 0"),
            (request(STATS, parts=[box]), EINVAL, "with 1 boxes"), (request(COPY_OUT), EINVAL, "with 0 boxes"),
            (request(COPY_OUT, parts=[box], nparts=2), EINVAL, "with 2 boxes"),
            (request(COPY_OUT, nparts=0xFFFFFFFF), EINVAL, "boxes in"),
            (request(COPY_OUT, parts=[box], host=7), ENOTFOUND, "no host map 7"),
            (request(COPY_OUT, parts=[box], host=0xFFFFFFFF), ENOTFOUND, "no host map"),
            (request(DIGEST, parts=[box], memory=5), ENOTFOUND, "no allocation 5"),
            (request(DIGEST, parts=[box], memory=0xFFFFFFFF), ENOTFOUND, "no allocation"),
            (request(KEEP, size=4096), EINVAL, "no device is named"), (request(KEEP, bind=export), EINVAL, "0 bytes to keep"),
            (request(COPY_WITHIN, memory=3, host=4, parts=[box]), ENOTFOUND, "no allocation 4"),
            (request(CLOSE, memory=1), ENOTFOUND, "no allocation 1"), (request(UNMAP_HOST, host=1), ENOTFOUND, "no host map 1"),
            (request(MAP_HOST, size=4096), EINVAL, "with 0 descriptors"), (request(HANDLES, memory=1), EINVAL, "0 descriptors"),
            (request(BIND), EINVAL, "names no device"),
            (request(BIND, bind=b"\xff" * EXPORT.size), EINVAL, "names no device"),
            (request(BIND, bind=export), -503, "no device GPU-x"),
            (request(BIND, bind=struct.pack("<I", 9) + export[4:]), EINVAL, "path 9"),
        ]
        for data, status, text in cases:
            a = self.ask(ours, data)
            self.assertEqual(a.status, status, a.text)
            self.assertIn(text, a.text)
            self.assertEqual(a.sticky, 0)
        self.assertEqual(self.ask(ours, request(STATS, number=77)).id, 77)
        self.assert_clean(p, ours)

    def test_descriptors(self):
        """Descriptors that come with a request are closed, whatever becomes of it; a file may not be shorter than its map."""
        p, ours = self.serve()
        with tempfile.TemporaryFile() as f:
            f.truncate(4096)
            before = len(os.listdir(f"/proc/{p.pid}/fd"))
            for data, n, status in ((request(MAP_HOST, size=4097), 1, EINVAL), (request(MAP_HOST, size=0), 1, EINVAL),
                                    (request(MAP_HOST, size=4096), 2, EINVAL), (request(MAP_HOST, size=4096), 1, 0),
                                    (request(UNMAP_HOST, host=1), 0, 0), (request(STATS), 5, EINVAL),
                                    (request(HANDLES, memory=1), 253, ENOTFOUND),
                                    (request(MAP_HOST, size=1 << 63), 1, EINVAL)):
                self.assertEqual(self.ask(ours, data, [f.fileno()] * n).status, status)
            self.assertEqual(len(os.listdir(f"/proc/{p.pid}/fd")), before)
        self.assert_clean(p, ours)

    def test_strangers(self):
        """What is no request ends it with one line; random requests never do anything but get an answer."""
        for data in (b"x", b"GET / HTTP/1.1\r\n\r\n", b"\0" * (HEAD.size + EXPORT.size - 1)):
            p, ours = self.serve()
            ours.send(data)
            self.assertEqual(p.wait(60 * harness.PATIENCE), 1)
            self.assertRegex(p.stderr.read(), r"^\S+ error gpu: descriptor 3 does not speak ptc-gpu's protocol\n$")
        p, ours = self.serve()
        rng = random.Random(5)
        for number in range(1, 2000):
            box = [rng.choice((0, 1, 4096, rng.getrandbits(64), (1 << 64) - 1)) for _ in range(9)]
            op = rng.randrange(0, 14)
            parts = [box] * rng.choice((0, 1, 3)) if op not in (COPY_OUT, COPY_IN, DIGEST, COPY_WITHIN) else [box]
            bind = rng.randbytes(EXPORT.size) if rng.random() < 0.5 else EXPORT.pack(
                rng.randrange(4), rng.choice((p.pid, os.getpid())), rng.getrandbits(8), 1, rng.getrandbits(2), 65536, 0, 1, 65536,
                UUIDS[0].encode(), rng.randbytes(64), b"")
            self.assertEqual(self.ask(ours, request(op, number, flags=rng.randrange(4), memory=rng.randrange(4),
                                                    host=rng.randrange(4), size=4096, parts=parts, bind=bind)).id, number)
        self.assertIsNone(p.poll())
        self.assert_clean(p, ours)

    def test_ends_with_ptcd(self):
        """Its socket's other end is killed: it ends by itself, whatever is queued."""
        p, ours = self.serve()
        for number in range(1, 50):
            ours.send(request(STATS, number))
        self.assert_clean(p, ours)
        p, ours = self.serve()
        p.send_signal(signal.SIGKILL)
        self.assertEqual(ours.recv(1), b"")

    # ---- packages ----

    def test_needs_no_cuda(self):
        """Nothing that is installed is linked against a library of CUDA or of the driver, and no fake driver is installed."""
        top = os.path.join(self.dir, "installed")
        r = subprocess.run(["cmake", "--install", harness.BUILD, "--prefix", top], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True)
        self.assertEqual(r.returncode, 0, r.stdout[-2000:])
        elf = []
        for name in glob.glob(top + "/**", recursive=True):
            if os.path.isfile(name) and not os.path.islink(name):
                with open(name, "rb") as f:
                    if f.read(4) == b"\x7fELF":
                        elf.append(name)
        names = {os.path.basename(e) for e in elf}
        self.assertLessEqual({"ptcd", "ptcctl", "ptc-gpu", "ptc-fuse", "ptc-copy", "ptc-exec"}, names)
        self.assertFalse({n for n in names if re.match(r"lib(cuda|nv)", n)})
        for name in elf:
            out = subprocess.run(["readelf", "-d", name], stdout=subprocess.PIPE, text=True, check=True).stdout
            needed = re.findall(r"NEEDED.*\[(.*)\]", out)
            self.assertFalse([n for n in needed if re.match(r"lib(cu|nv)", n)], name)

    def test_says_kernels(self):
        """The list says whether there are kernels; other images and none are asked for by the environment."""
        built_here = bool(glob.glob(harness.binary("daemon/gpu/kernels/*.fatbin")))
        self.assertEqual(self.list()["kernels"], "built in" if built_here else "none: built without nvcc")
        self.assertEqual(self.list(PTC_GPU_KERNELS="off")["kernels"], "none: PTC_GPU_KERNELS=off")
        self.assertIn("no such image", self.list(PTC_GPU_KERNELS="/nonexistent")["kernels"])


class Kernels(unittest.TestCase):
    """What nvcc makes of the kernels. Their logic is tested without it (daemon/gpu/kernels/test_gpu_kernels.c)."""
    TARGETS = ("sm_80", "sm_90", "sm_100")
    SOURCE = os.path.join(harness.ROOT, "daemon/gpu/kernels/gpu_kernels.cu")

    def setUp(self):
        self.nvcc = shutil.which("nvcc", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")
        if not self.nvcc:
            self.skipTest("no nvcc in PATH or /usr/local/cuda/bin")
        self.dir = tempfile.mkdtemp(prefix="ptc-kernels-")
        self.addCleanup(shutil.rmtree, self.dir)

    def compile(self, *args):
        out = os.path.join(self.dir, "out")
        r = subprocess.run([self.nvcc, "-I" + harness.ROOT, *args, "-o", out, self.SOURCE], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=300 * harness.PATIENCE)
        self.assertEqual(r.returncode, 0, r.stdout)
        with open(out, "rb") as f:
            return f.read(), r.stdout

    def test_compiles(self):
        """For each target and as PTX: every kernel is there, and none keeps its registers in memory."""
        with open(os.path.join(os.path.dirname(self.SOURCE), "gpu_kernels.h"), encoding="utf-8") as f:
            names = re.findall(r'#define PTC_GPU_KERNEL_\w+\s+"(\w+)"', f.read())
        self.assertEqual(len(names), 4)
        for target in self.TARGETS:
            with self.subTest(target):
                image, said = self.compile("-cubin", "-arch=" + target, "-Xptxas", "-v")
                self.assertTrue(image.startswith(b"\x7fELF"))
                for name in names:
                    self.assertIn(b".text." + name.encode() + b"\0", image)
                self.assertEqual(set(re.findall(r"(\d+) bytes (?:spill|stack)", said)), {"0"}, said)
        ptx, _ = self.compile("-ptx", "-arch=compute_80")
        for name in names:
            self.assertIn(f".entry {name}(".encode(), ptx)

    def test_built_in(self):
        """ptc-gpu of this build has an image for each target, and PTX."""
        image = harness.binary("daemon/gpu/kernels/gpu_kernels.fatbin")
        if not os.path.exists(image):
            self.skipTest("this build was configured without nvcc")
        with open(image, "rb") as f, open(GPU, "rb") as g:
            data = f.read()
            self.assertIn(data, g.read())
        magic, _, at, size = struct.unpack_from("<IHHQ", data)
        self.assertEqual((magic, at + size), (0xBA55ED50, len(data)))
        found = []
        while at < len(data):  # of each entry: kind (1 PTX, 2 machine code), sizes of its header and of what follows, target
            kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
            found.append(({1: "ptx", 2: "sm"}[kind], struct.unpack_from("<I", data, at + 28)[0]))
            at += header + size
        self.assertEqual(sorted(found), [("ptx", 80), ("sm", 80), ("sm", 90), ("sm", 100)])


if __name__ == "__main__":
    unittest.main()
