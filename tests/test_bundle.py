# SPDX-License-Identifier: Apache-2.0
"""scripts/bundle: its tree, moved, in a root file system that has glibc and a shell and nothing else."""
import os
import re
import shutil
import unittest

import bare_root
import harness
import state as states
from bare_root import NOBODY, listed, run
from harness import PATIENCE, wait_for


class Bundle(harness.Case):
    def bundle(self):
        """The tree, made in one place and moved to another; of a long run what users get, from the archive."""
        made, tree, bundle = self.path("made"), self.path("moved here"), os.path.join(harness.ROOT, "scripts", "bundle")
        r = run(bundle) if harness.LONG else run(bundle, "--build", harness.BUILD, "--tree", made)
        self.assertEqual(0, r.returncode, r.stdout)
        if harness.LONG:
            os.makedirs(made)
            archive = r.stdout.split(" (")[0]
            self.assertLessEqual(os.path.getsize(archive), 48 << 20)
            r = run("tar", "--extract", "--file", archive, "--strip-components=1", "--directory", made)
            self.assertEqual(0, r.returncode, r.stdout)
        shutil.move(made, tree)
        return tree

    def check_guide(self, root, tree):
        """docs/install.md's configuration will do, for an ordinary user."""
        with open(os.path.join(tree, "share", "doc", "ptc", "install.md")) as f:
            text = re.search(r"<!-- test: bundle -->\n```yaml\n(.*?)```", f.read(), re.S)[1]
        here = self.path("scratch")
        os.makedirs(os.path.join(here, "peer"), mode=0o700)
        with open(os.path.join(here, "ptcd.yaml"), "w") as f:
            f.write(text.replace("/scratch/me/ptc", here))
        run("chown", "-R", f"{NOBODY}:{NOBODY}", here)
        r = run(*root.run_by(NOBODY), f"{tree}/sbin/ptcd", "--check-config", "--config", f"{here}/ptcd.yaml")
        self.assertEqual((0, ""), (r.returncode, r.stdout))

    def model(self):
        """examples/state with its files, as its job.yaml has them."""
        os.makedirs(self.path("examples"))
        shutil.copytree(os.path.join(harness.ROOT, "examples", "state"), self.path("examples", "state"))
        r = run(self.path("examples", "state", "make-model"), self.path("build", "example"))
        self.assertEqual(0, r.returncode, r.stdout)
        shutil.copy(harness.binary("examples/c-trainer/c-trainer"), self.path("build"))

    def use(self, c, root, tree):
        """A checkpoint that is resized from 8 devices to 4; then ranks, which a resize ends and starts."""
        given, out = self.path("build", "example"), c.dir
        c.ptcctl("job", "create", "-f", self.path("examples", "state", "job.yaml"))
        c.ptcctl("import", "gpt", f"{given}/model.safetensors", "--field", f"exp_avg={given}/exp_avg.safetensors", "--gpus", "8")
        c.ptcctl("resize", "gpt", "--gpus", "4", "--wait")
        c.ptcctl("verify", "gpt")
        c.ptcctl("export", "gpt", f"{out}/model.safetensors", "--field", f"exp_avg={out}/exp_avg.safetensors")
        for name in ("model", "exp_avg"):
            want, found = (states.read_file(os.path.join(d, f"{name}.safetensors")) for d in (given, out))
            self.assertEqual({n: t.tobytes() for n, t in want.items()}, {n: t.tobytes() for n, t in found.items()})
        c.ptcctl("job", "delete", "gpt")
        with open(os.path.join(out, "run.yaml"), "w") as f:
            f.write('{"version": 1, "name": "ridge", "gpus": {"8": "tp=2,dp=4,global_batch=24,micro_batch=1",'
                    '"4": "tp=2,dp=2,global_batch=24,micro_batch=1"}, "run": {"argv": ["%s/build/c-trainer", "--steps", "100000000", '
                    '"--sleep-ms", "5"], "env": {"LD_LIBRARY_PATH": "%s/lib"}}}' % (self.dir, tree))
        c.ptcctl("run", "-f", f"{out}/run.yaml", "--gpus", "8", "--wait")
        c.ptcctl("resize", "ridge", "--gpus", "4", "--wait")

        def trains():
            ranks = c.json("status", "ridge")["jobs"][0]["run"]["ranks"]
            return len(ranks) == 4 and all((r["step"] or 0) > 5 for r in ranks)
        wait_for(trains, 60 * PATIENCE, "4 ranks to go on", 0.1)
        self.check_programs(root, tree)
        c.ptcctl("stop", "ridge")
        c.ptcctl("job", "delete", "ridge")

    def check_programs(self, root, tree):
        """What runs is the bundle's, or c-trainer, and has mapped no library but the bundle's and glibc's."""
        glibc, found = {os.path.basename(p) for p in listed("libc6")}, root.processes()
        for exe, mapped in found.values():
            self.assertTrue(exe.startswith((tree + "/", self.path("build") + "/")), exe)
            foreign = {p for p in mapped if ".so" in p and os.path.basename(p) not in glibc and not p.startswith(tree + "/lib/")}
            self.assertEqual(set(), foreign, exe)
        self.assertLessEqual({"ptcd", "etcd", "ptc-exec", "c-trainer"}, {os.path.basename(exe) for exe, _ in found.values()})

    def check_python(self, tree):
        """The Python package finds the tree's libptc by itself."""
        said = run("python3", "-c", "import ptc; print(ptc.library()._name)", cwd="/",
                   env={"PATH": os.environ["PATH"], "PYTHONPATH": os.path.join(tree, "lib", "python3", "dist-packages")}).stdout
        self.assertEqual(os.path.join(tree, "lib", "libptc.so.1"), said.strip())

    @harness.skip_unless_root
    def test_bare_root(self):
        """As root by unix sockets, and as an ordinary user with certificates."""
        if harness.SANITIZED:
            self.skipTest("a bundle carries no sanitizer along")
        if not listed("libc6") or not shutil.which("etcd"):
            self.skipTest("needs Debian's libc6 and etcd, of which a bundle is made")
        self.model()
        bare_root.make(self.dir)
        tree = self.bundle()
        self.check_python(tree)
        with bare_root.mounted(self.dir) as root:
            r = run(*root.run_by(NOBODY), "/bin/sh", "-c", '"$0"/bin/ptcctl version', tree)
            self.assertEqual(0, r.returncode, r.stdout)
            r = run(*root.run_by(0), "/usr/bin/etcd", "--version")
            self.assertNotEqual(0, r.returncode, "the root file system is not bare")
            self.check_guide(root, tree)
            for uid, transport in ((0, "unix"), (NOBODY, "tls")):
                with self.subTest(uid=uid, transport=transport), \
                        self.cluster(up=False, nodes=2, devices=4, build=tree, transport=transport, store="disk", run_by=root.run_by(uid)) as c:
                    self.assertEqual(0, run("chown", "-R", f"{uid}:{uid}", c.dir).returncode)
                    c.up(timeout_s=60 * PATIENCE)
                    self.use(c, root, tree)


if __name__ == "__main__":
    unittest.main()
