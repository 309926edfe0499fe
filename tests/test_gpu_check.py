# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu-check out of a bundle's tree, on the fake driver: what it finds is told apart from what is not possible."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import bare_root
import harness
from harness import PATIENCE

FAKE = harness.binary("tests/gpu/fake")


class GpuCheck(harness.Case):
    def setUp(self):
        super().setUp()
        if os.environ.get("PTC_SANITIZED"):
            self.skipTest("a bundle carries no sanitizer along")
        if not shutil.which("etcd") or not shutil.which("dpkg-query"):
            self.skipTest("needs Debian's libraries and etcd, of which a bundle is made")

        self.shared = tempfile.TemporaryDirectory(prefix="ptc-shared-")  # ranks of other users keep their memory there
        self.addCleanup(self.shared.cleanup)
        os.chmod(self.shared.name, 0o755)

    def bundle(self):
        made, tree = self.path("made"), self.path("moved here")
        r = subprocess.run([os.path.join(harness.ROOT, "scripts", "bundle"), "--build", harness.BUILD, "--tree", made],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(0, r.returncode, r.stdout)
        shutil.move(made, tree)
        return tree

    @harness.labels("gpu")
    def test_on_device(self):
        """On the first device of this machine, with its own driver: nothing fails, and there is time for all of it."""
        gpu = harness.binary("daemon/ptc-gpu")
        found = json.loads(subprocess.run([gpu, "--list"], stdout=subprocess.PIPE, check=True, timeout=120 * PATIENCE).stdout)
        if not found["devices"]:
            self.skipTest(f"needs a GPU: {found['why']}")
        rows = self.check(self.bundle(), "--bytes", str(1 << 30), "--state-bytes", str(4 << 30), "--cycles", "20", driver=None, status=None,
                          PTC_GPU_KERNELS="")
        print(self.said, flush=True)
        self.assertEqual([], [row for row in rows.values() if row["verdict"] in ("FAILED", "not run")])

    def check(self, tree, *args, driver=FAKE, status=0, run_by=(sys.executable,), shared=None, **env):
        """{what: row} of its table. Nothing of this environment reaches it but the way to Python's programs. run_by: this Python, perhaps elsewhere."""
        gpu, image, table = os.path.join(shared or self.shared.name, "gpu"), self.path("image"), self.path("table.json")
        shutil.rmtree(gpu, ignore_errors=True)
        os.makedirs(gpu)
        os.chmod(gpu, 0o777)
        if os.path.exists(table):
            os.unlink(table)
        with open(image, "w") as f:
            f.write("kernels of the fake driver\n")
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **({"LD_LIBRARY_PATH": driver} if driver else {}), "PTC_FAKE_GPU": gpu,
               "PTC_GPU_KERNELS": image, **env}
        r = subprocess.run([*run_by, os.path.join(tree, "bin", "gpu-check"), "--bytes", str(8 << 20), "--state-bytes", str(8 << 20),
                            "--cycles", "3", "--json", table, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600 * PATIENCE, cwd="/")
        self.assertTrue(status in (None, r.returncode), r.stdout)
        self.said = r.stdout
        with open(table) as f:
            return {row["what"]: row for row in json.load(f)}

    @unittest.skipUnless(harness.LONG, "takes a minute: PTC_TEST_LONG")
    @harness.needs(modules=("torch",))
    @harness.labels("repeats")
    def test_torch_rehearsal(self):
        """Every line of PyTorch's part but those that need CUDA: the job's tensors lie in host memory."""
        rows = self.check(self.bundle(), "--torch-device", "cpu", "--cycles", "20", "--only", "PyTorch")
        rows = {what: row for what, row in rows.items() if what.startswith("PyTorch")}
        self.assertEqual({"ok"}, {row["verdict"] for row in rows.values()}, rows)
        for what in ("default allocator, copied by", "resize to dp=2", "a killed rank, and the job again", "memory after 4 resizes",
                     "expandable segments, copied by", "state pool, copied by", "a step, and with survive() in a pool",
                     "a killed rank of a state pool, and the job again"):
            self.assertIn(f"PyTorch: {what}", rows)
        self.assertTrue([what for what in rows if what.startswith("PyTorch: losses of ")])

    def check_rows(self, rows, root=True):
        """Everything is found and right but what needs a device, or root."""
        # The fake driver runs no kernel but ours, and its NVML does not know who uses it.
        allowed = dict.fromkeys(("hanging kernel", "memory of a rank aborted while its kernel hangs",
                                 "NVML names the rank's process and its memory"), "not possible here")
        allowed.update({what: "not possible here" for what in rows if what.startswith("PyTorch: ")})  # nor PyTorch's
        if not root:
            allowed.update({what: "not possible here" for what, row in rows.items() if row["value"].startswith("only root can")})
        for what, row in rows.items():
            self.assertIn(row["verdict"], (allowed.get(what, "ok"), "ok" if not row["goal"] else "below goal"), row)
        for what in ("ptc-gpu maps it", "bytes saved, ring", "bytes restored, pinned map", "bytes by kernels", "bytes by strided copies",
                     "3 saves and restores: bytes", "3 ranks killed while mapped, and bound anew", "repack of a column shard, of that",
                     "digest, of the memory's bandwidth", "copy between two devices", "memory of a killed rank, by its descriptor, 3 times",
                     "memory after the last killed rank, against the first", "hanging kernel", "copied while a stream waits for ever",
                     "copied while the rank is frozen", "memory of another user's aborted rank, by its descriptor",
                     "memory of a rank aborted while its kernel hangs", "memory of a rank aborted while its stream waits",
                     "digests by the device, as by the CPU", "a rank's own copies beside that, of those alone",
                     "a launch with such a node, and without", "PyTorch: losses", "PyTorch: state pool", "PyTorch: a step", "PyTorch: memory"):
            self.assertIn(what, rows)

    @unittest.skipUnless(harness.LONG, "takes a minute: PTC_TEST_LONG")
    @harness.skip_unless_root
    @harness.labels("repeats")
    def test_bare_root(self):
        """In a root file system that has glibc, a shell, Python and a driver where drivers are, and nothing else: as root, and as an ordinary user.
        Everything runs; what the driver does not allow, or without one, is not possible there, and the table says why."""
        if not bare_root.listed("libc6"):
            self.skipTest("needs Debian's libc6, of which the root file system is made")
        bare_root.make(self.dir)
        python = bare_root.add_python(self.dir)
        drivers = self.path("usr/lib/x86_64-linux-gnu")
        os.makedirs(drivers, exist_ok=True)
        tree, shared = self.bundle(), self.path("tmp")
        os.chmod(self.dir, 0o777)  # the table is written there
        with bare_root.mounted(self.dir) as root:
            self.assertNotEqual(0, bare_root.run(*root.run_by(0), "/usr/bin/etcd", "--version").returncode, "the root file system is not bare")
            rows = self.check(tree, driver=None, shared=shared, run_by=[*root.run_by(0), python])
            self.assertEqual({"not possible here"}, {row["verdict"] for row in rows.values()})
            self.assertIn("no NVIDIA driver", rows["CUDA"]["value"])
            for name in os.listdir(FAKE):
                if name.endswith(".so.1"):
                    shutil.copy(os.path.join(FAKE, name), drivers)
            for uid in (0, bare_root.NOBODY):
                with self.subTest(uid=uid):
                    rows = self.check(tree, driver=None, shared=shared, run_by=[*root.run_by(uid), python])
                    print(f"as user {uid}:\n{self.said}", flush=True)
                    self.check_rows(rows, root=uid == 0)
                    self.assertEqual("ptc-gpu", rows["copied before tp=2 by"]["value"])
                    self.assertEqual({"not possible here"}, {row["verdict"] for what, row in rows.items() if what.startswith("PyTorch: ")})
            rows = self.check(tree, "--only", "live", driver=None, shared=shared, run_by=[*root.run_by(0), python], PTC_FAKE_GPU_NO_IPC="1")
            self.assertEqual("not possible here", rows["a rank gives an IPC handle"]["verdict"])
            self.assertEqual("rank", rows["copied before tp=2 by"]["value"])

    @harness.labels("repeats")
    def test_fake_driver(self):
        """Everything is found and right but what needs a device; without handles the rest goes on; without a driver it says so."""
        tree = self.bundle()
        rows = self.check(tree)
        self.check_rows(rows)
        if os.geteuid() == 0 and os.path.exists("/usr/bin/python3") and all(os.stat(p).st_mode & 1 for p in pathlib.Path(FAKE).parents):
            self.assertEqual(("yes", "yes"), tuple(rows[w]["value"] for w in ("ptc-gpu maps memory of another user's rank",
                                                                              "and where a third user shows its handle")))
            self.assertRegex(rows["a handle made of one's own by the process id"]["value"], "differs in")
        self.assertEqual("ptc-gpu", rows["copied before tp=2 by"]["value"])
        self.assertTrue([w for w in rows if w.startswith("loss at ")])

        rows = self.check(tree, "--only", "live", PTC_FAKE_GPU_NO_IPC="1")
        self.assertEqual("not possible here", rows["a rank gives an IPC handle"]["verdict"])
        self.assertEqual("rank", rows["copied before tp=2 by"]["value"])
        self.assertNotIn("bytes saved, ring", rows)

        rows = self.check(tree, "--only", "peers", PTC_FAKE_GPU_DEVICES="1")
        self.assertEqual(("not possible here", "there is one device"), tuple(rows["copy between two devices"][k] for k in ("verdict", "value")))

        rows = self.check(tree, "--only", "digests", "--minutes", "0", status=1)  # what there was no time for is no success
        self.assertEqual("not run", rows["probes"]["verdict"])

        rows = self.check(tree, driver="/nonexistent")
        self.assertEqual({"not possible here"}, {row["verdict"] for row in rows.values()})
        self.assertIn("no NVIDIA driver", rows["CUDA"]["value"])

        # What fails for no known reason is no "not possible here".
        rows = self.check(tree, "--only", "copies", status=1, PTC_GPU="/bin/false")
        self.assertIn("FAILED", {row["verdict"] for row in rows.values()})
