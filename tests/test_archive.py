# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torch.distributed.checkpoint: PyTorch reads what ptc writes, at another shape; ptc reads what PyTorch writes; and what a
full disk or a kill leaves."""
import glob
import importlib.util
import json
import os
import signal
import subprocess
import sys
import unittest

import harness
import live
import numpy as np
import state as states
from cluster import command
from harness import PATIENCE, Job, wait_for
from test_fuse import CAN_MOUNT, Mount

ROWS = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
RULES = [{"match": "h.*", "split": {"axis": "tp", "dim": 0}}, {"match": "*"}]
HERE = os.path.dirname(os.path.abspath(__file__))
STRANGER = 65534  # a user whom every machine has, "nobody"
AS_STRANGER = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", "--"]
AT_ONCE = 4  # of daemon/controller/archiving
NO_TORCH = {"F4", "F6_E2M3", "F6_E3M2"}


class Archive(harness.Case):
    def state(self):
        """All dtypes that PyTorch has; a scalar, an empty tensor, and one of more than one part's 64 MiB."""
        s, rng = states.State({"exp_avg": "F32", "exp_avg_sq": "BF16"}), np.random.default_rng(self.seed)
        for i, dtype in enumerate(d for d in states.BITS if d not in NO_TORCH):
            s.add(rng, f"h.{i}.w", dtype, (6, 2 * i + 5, 4))
        s.add(rng, "scale", "F32", ())
        s.add(rng, "none", "BF16", (0, 3))
        s.add(rng, "bias", "F32", (3,))
        return s

    def expected(self, state, name):
        """The state as dcp_ranks.py takes it."""
        out, directory = {}, self.path(name)
        os.makedirs(directory)
        for field, tensors in state.tensors.items():
            for tensor, t in tensors.items():
                key = f"model.{tensor}" if field == "param" else f"optim.state.{tensor}.{field}"
                path = os.path.join(directory, f"{len(out)}")
                with open(path, "wb") as f:
                    f.write(t.tobytes())
                out[key] = [t.dtype, list(t.shape), path]
        path = os.path.join(directory, "expected.json")
        with open(path, "w") as f:
            json.dump(out, f)
        return path

    def torch(self, expected, world, *steps):
        env = {k: v for k, v in os.environ.items() if not k.startswith("PTC_")}  # a machine without ptc
        r = subprocess.run([sys.executable, os.path.join(HERE, "dcp_ranks.py"), expected, str(world), *steps],
                           env=env, cwd=self.dir, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300 * PATIENCE)
        self.assertEqual(0, r.returncode, r.stdout)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "no torch: scripts/venv --torch")
    def test_torch(self):
        """The state goes to PyTorch and back, and is cut otherwise at each station."""
        state = self.state()
        expected = self.expected(state, "bytes")
        with self.cluster(nodes=2, devices=2) as c:
            job = Job(c, "there", state, self.path("job"), RULES)
            job.imported("tp=3")
            job.exported("--dcp", self.path("ours"))
            self.torch(expected, 4, "load:ours:strided", "save:strided:strided", "save:columns:columns")
            self.torch(expected, 1, "load:ours:whole", "save:transposed:transposed")
            back = Job(c, "back", state, self.path("job2"), RULES)
            for how in ("strided", "columns", "transposed"):
                back.create()
                c.ptcctl("import", "back", self.path(how), "--config", "tp=2", timeout_s=120 * PATIENCE)
                out = back.export(self.path(f"out-{how}"))
                for field, path in out.items():
                    self.same_tensors(back.files[field], path)
                back.delete()

    @unittest.skipUnless(importlib.util.find_spec("torch"), "no torch: scripts/venv --torch")
    def test_torch_optimizer(self):
        """What ptc.torch trained, plain dcp.load puts into a new model and optimizer: parameters, buffers, state, groups and their options."""
        program, dump = os.path.join(HERE, "dcp_trainer.py"), self.path("dump")
        env = {"PYTHONPATH": os.path.join(harness.ROOT, "client", "python"), "PTC_LIBRARY": harness.binary("client/lib/libptc.so.1"),
               "PYTHONDONTWRITEBYTECODE": "1", **harness.sanitizer_env()}
        spec = {"version": 1, "name": "adam", "run": {"argv": [sys.executable, program, "train", dump], "env": env}}
        with open(self.path("adam.yaml"), "w") as f:
            json.dump(spec, f)
        with self.cluster(nodes=1, devices=1) as c:
            c.ptcctl("run", "-f", self.path("adam.yaml"), "--config", "dp=1", "--wait", timeout_s=120 * PATIENCE)
            wait_for(lambda: c.json("status", "adam")["jobs"][0]["run"].get("step", 0) > 20, 60 * PATIENCE, "20 steps")
            c.ptcctl("stop", "adam", timeout_s=120 * PATIENCE)
            wait_for(lambda: os.path.exists(dump), 60 * PATIENCE, "the state that the program has itself")
            c.ptcctl("export", "adam", "--dcp", self.path("adam"))
        env = {k: v for k, v in os.environ.items() if not k.startswith("PTC_")}
        r = subprocess.run([sys.executable, program, "load", self.path("adam"), dump], env=env, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=120 * PATIENCE)
        self.assertEqual(0, r.returncode, r.stdout)

    def same_tensors(self, a, b):
        a, b = states.read_file(a), states.read_file(b)
        self.assertEqual(sorted(a), sorted(b))
        for name in a:
            self.assertEqual((a[name].dtype, a[name].shape), (b[name].dtype, b[name].shape), name)
            self.assertEqual(a[name].tobytes(), b[name].tobytes(), name)

    def test_resumes(self):
        """A cluster is lost with all it had. On another the job goes on at the step of the checkpoint: tensors, ranks' states, cursor, ledger."""
        data = {"data": "100000,7,8,4", "blobs": "rng/mine"}  # the ranks check step, cursor and blobs
        with self.cluster(nodes=2, devices=2) as c:
            job = live.Job(c, self.path("before"), data=data["data"], blobs=data["blobs"])
            job.run("tp=2,dp=2")
            job.wait_step(10)
            job.do("stop")
            before = job.wait_run("stopped")
            last, generation = before["step"], before["generation"]
            c.ptcctl("export", job.name, "--dcp", self.path("saved"))
            c.ptcctl("export", job.name, self.path("all.safetensors"))
        with self.cluster(nodes=2, devices=2) as c:
            job = live.Job(c, self.path("after"), data=data["data"], blobs=data["blobs"])
            with open(job.yaml) as f:
                spec = json.load(f)
            spec.update({"tensors": {"from": self.path("all.safetensors")},
                         "rules": [{"match": "steps"}, {"match": "*", "split": {"axis": "tp", "dim": 0, "kind": "balanced"}}]})
            with open(job.yaml, "w") as f:
                json.dump(spec, f)
            c.ptcctl("job", "create", "-f", job.yaml)
            c.ptcctl("import", job.name, self.path("saved"), "--config", "tp=2")
            self.assertEqual(last, job.status()["step"])
            job.run("tp=2,dp=2")
            job.wait_step(last + 5)
            given = glob.glob(os.path.join(job.logs, "*.given"))
            self.assertEqual(4, len(given))
            for path in given:
                rank = path[:-len(".given")].split("-r")[-1]
                with open(path) as f:
                    self.assertEqual({"rng/mine": f"rng/mine {generation} {rank}"}, json.load(f))
            job.do("stop")
            end = job.wait_run("stopped")["step"]
            job.check_state(self, end, self.path("end"))
            self.assertEqual(last, min(min(steps) for steps in job.steps_logged().values()))

    def test_damage(self):
        """What does not fit is refused before anything is changed. Flipped bits: test_flips.py."""
        s, rng = states.State({"exp_avg": "F32"}), np.random.default_rng(self.seed)
        s.add(rng, "a", "F32", (64, 48))
        s.add(rng, "b", "BF16", (6,))
        with self.cluster(nodes=1, devices=2) as c:
            job = Job(c, "there", s, self.path("job"), ROWS)
            job.imported("tp=2")
            good = self.path("good")
            job.exported("--dcp", good)
            self.refused(c, "export", "there", "--dcp", good, contains="is not empty")
            back = Job(c, "back", s, self.path("job2"), ROWS)
            back.create()
            self.assertEqual([".metadata", "__0_0.distcp", "ptc-ledger.json", "ptc.json"], sorted(os.listdir(good)))
            os.truncate(os.path.join(good, "__0_0.distcp"), 5000)
            self.refused(c, "import", "back", good, "--config", "tp=1", contains="is shorter than")
            self.assertFalse(back.wait_idle()["has_state"])

    def small(self, c, name="there"):
        s, rng = states.State({"exp_avg": "F32"}), np.random.default_rng(self.seed)
        s.add(rng, "a", "F32", (64, 48))
        s.add(rng, "b", "BF16", (6,))
        job = Job(c, name, s, self.path(f"job-{name}"), ROWS)
        job.imported("tp=2")
        return job

    def archive(self, c, job, *more, **kw):
        return json.loads(c.ptcctl("archive", job.name, self.path("archive"), *more, "--format", "json", timeout_s=120 * PATIENCE,
                                   **kw).stdout)

    def whole(self):
        """Names that a reader takes for checkpoints: each must be one."""
        return sorted(os.path.dirname(os.path.relpath(p, self.path("archive")))
                      for p in glob.glob(self.path("archive", "*", ".metadata")) if ".tmp-" not in p)

    def check_newest(self, c, job):
        """What the marker names is read back whole into another job."""
        with open(self.path("archive", f"{job.name}.newest")) as f:
            newest = f.read().strip()
        self.assertIn(newest, self.whole())
        back = Job(c, "back", job.state, self.path("job2"), ROWS)
        back.create()
        c.ptcctl("import", "back", self.path("archive", newest), "--config", "tp=1")
        for field, path in back.export(self.path("out")).items():
            self.same_tensors(back.files[field], path)
        back.delete()
        return newest

    def test_archive(self):
        """Rounds of an archive: what is committed once, the newest few kept; kills at each point leave a whole one, or nothing of that name."""
        with self.cluster(nodes=1, devices=2) as c:
            job = self.small(c)
            first = self.archive(c, job)
            self.assertEqual((True, 0), (first["fresh"], first["removed"]))
            self.assertEqual((False, first["archive"]), (lambda a: (a["fresh"], a["archive"]))(self.archive(c, job)))
            points = [f"{p}.{w}" for p in ("checkpoint.flush", "checkpoint.document", "checkpoint.metadata", "checkpoint.rename", "archive.mark",
                                           "archive.retire", "archive.remove") for w in ("before", "after")]
            for point in points:
                job.resize("tp=1" if job.status()["ranks"][1:] else "tp=2")  # another generation
                r = c.ptcctl("archive", job.name, self.path("archive"), "--keep", "2", check=False, env={"PTC_FAULT": f"{point}=kill"})
                self.assertNotEqual(0, r.returncode, point)
                self.check_newest(c, job)
                done = self.archive(c, job, "--keep", "2")
                self.assertEqual(2, len(self.whole()), point)
                self.assertIn(done["archive"], self.whole())
                self.assertEqual([], glob.glob(self.path("archive", "*.tmp*")), point)
            self.assertEqual(done["archive"], self.check_newest(c, job))
            other = self.small(c, "there-step-1")  # a name that begins alike
            self.archive(c, other, "--keep", "1")
            self.assertEqual(3, len(self.whole()))

    @harness.skip_unless_root
    def test_disk_full(self):
        """A disk that fills up: one line says so, nothing is left of what did not fit, and what was there stays."""
        with self.cluster(nodes=1, devices=2) as c:
            job = self.small(c)
            os.mkdir(self.path("archive"))
            script = ('set -e; mount -t tmpfs -o size=80k none "$1"; "$2" archive there "$1"; "$2" resize there --config tp=1 --wait >&2; '
                      'set +e; "$2" archive there "$1"; echo "rc=$?"; ls "$1"; df -k "$1" >&2; cat "$1/there.newest"')
            r = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", self.path("archive"), harness.program("ptcctl")],
                               env=c.environment({"PTC_SOCKET": c.nodes["n0"].socket}), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, timeout=120 * PATIENCE)
            self.assertIn("No space left on device", r.stderr)
            lines = r.stdout.splitlines()
            self.assertIn("rc=1", lines)
            newest = lines[-1]
            self.assertEqual(["there.lock", "there.newest", newest], sorted(lines[lines.index("rc=1") + 1:-1], key=len), r.stdout)

    def kept(self, c, archive, name="kept"):
        """A job with an archive, imported."""
        s, rng = states.State({"exp_avg": "F32"}), np.random.default_rng(self.seed)
        s.add(rng, "a", "F32", (64, 48))
        s.add(rng, "b", "BF16", (6,))
        job = Job(c, name, s, self.path(f"job-{name}"), ROWS)
        with open(job.yaml) as f:
            spec = json.load(f)
        spec["archive"] = {"dir": self.path("archive"), **archive}
        with open(job.yaml, "w") as f:
            json.dump(spec, f)
        return job

    def wait_archived(self, c, job):
        """Until the archive has what is committed now; returns its name."""
        def there():
            try:
                events = self.events(c, job, "archived")
                s = job.status(node=job.status()["controller"])  # not older than the events
            except (harness.ClusterError, KeyError):  # a daemon is away
                return None
            mine = [e for e in events if e["text"].startswith(f"snapshot {s['snapshot']},")]
            return s.get("archive", {}).get("archive") if mine and s["phase"] == "idle" else None

        return wait_for(there, 60 * PATIENCE, "an archive of what is committed")

    def arm(self, rule=""):
        harness.replace_file(self.path("fault"), rule)

    def test_by_itself(self):
        """A job with `archive` archives what is committed, also after kills of the process that writes and of the daemon that controls."""
        self.arm()
        env = {node: {"PTC_FAULT_FILE": self.path("fault")} for node in ("n0", "n1")}  # what ptcd starts has it, too
        with self.cluster(nodes=2, devices=1, env=env) as c:
            job = self.kept(c, {"keep": 2})
            job.imported("tp=2")
            first = self.wait_archived(c, job)
            self.assertEqual([first], self.whole())
            self.arm("checkpoint.metadata.after=kill")
            job.resize("tp=1")
            failed = wait_for(lambda: self.events(c, job, "archive_failed"), 60 * PATIENCE, "a killed ptc-archive")
            self.assertIn("said nothing", failed[0]["text"])
            self.assertEqual([first], self.whole())
            self.arm()
            second = self.wait_archived(c, job)
            self.assertEqual(sorted([first, second]), self.whole())
            self.arm("checkpoint.metadata.before=hold")
            job.resize("tp=2")
            wait_for(lambda: glob.glob(self.path("archive", "*.tmp*", "ptc.json")), 60 * PATIENCE, "a checkpoint that is being written")
            node = c.nodes[job.status()["controller"]]
            node.kill()
            self.arm()
            c.start_node(node, env[node.name])
            third = self.wait_archived(c, job)
            self.assertEqual(sorted([second, third]), self.whole())
            self.assertEqual([], glob.glob(self.path("archive", "*.tmp*")))
            c.ptcctl("job", "delete", job.name)

    @harness.skip_unless_root
    def test_share_is_full(self):
        """A job with `archive` says that its share is full, keeps what is there, and goes on; with more room it archives by itself again."""
        os.mkdir(self.path("archive"))
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80k", "none", self.path("archive")], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", self.path("archive")], check=False)
        with self.cluster(nodes=1, devices=2) as c:
            job = self.kept(c, {"keep": 2})
            job.imported("tp=2")
            first = self.wait_archived(c, job)
            job.resize("tp=1")
            failed = wait_for(lambda: self.events(c, job, "archive_failed"), 60 * PATIENCE, "a share that is full")
            self.assertIn("No space left on device", failed[0]["text"])
            self.assertIn("No space left on device", job.status()["archive"]["failed"])
            wait_for(lambda: not glob.glob(self.path("archive", "*.tmp*")), 30 * PATIENCE, "nothing left of what did not fit", 0.02)
            self.assertEqual([first], self.whole())
            job.resize("tp=2")
            job.check_whole(self)
            subprocess.run(["mount", "-o", "remount,size=1m", self.path("archive")], check=True)
            second = self.wait_archived(c, job)
            self.assertEqual(sorted([first, second]), self.whole())
            self.assertNotIn("failed", job.status()["archive"])
            self.assertEqual(second, self.check_newest(c, job))

    def writers(self, c):
        """Processes that write archives."""
        return [pid for pid in c.processes() if os.path.basename(command(pid).split(" ")[0]) == "ptc-archive"]

    @unittest.skipUnless(CAN_MOUNT, "FUSE cannot be mounted here")
    def test_share_hangs(self):
        """A share that does not answer: the job goes on, other jobs' archives, too, and it can be deleted. A mount whose program is stopped
        is such a share; as it lets nobody write, the round fails when it answers."""
        with self.cluster(nodes=1, devices=4) as c:
            mount = Mount(self, c)
            job = self.kept(c, {"dir": mount.path("archive")}, "hangs")
            job.create()
            mount.process.send_signal(signal.SIGSTOP)
            c.ptcctl(*job.import_args("tp=2"))
            wait_for(lambda: job.status().get("archive", {}).get("running"), 60 * PATIENCE, "a round")
            self.assertEqual(1, len(self.writers(c)))
            other = self.kept(c, {}, "writes")
            other.imported("tp=1")
            self.wait_archived(c, other)
            job.resize("tp=1")
            job.check_whole(self)
            self.assertTrue(job.status()["archive"]["running"], "it has not hung")
            mount.process.send_signal(signal.SIGCONT)
            failed = wait_for(lambda: self.events(c, job, "archive_failed"), 60 * PATIENCE, "an answer")
            self.assertIn(f"uid {os.geteuid()} cannot write to the archive's directory {mount.path('archive')}: Read-only file system",
                          failed[0]["text"])
            mount.process.send_signal(signal.SIGSTOP)
            wait_for(lambda: job.status()["archive"]["running"], 60 * PATIENCE, "the next round, which hangs")
            job.delete(timeout_s=30 * PATIENCE)
            wait_for(lambda: not self.writers(c), 60 * PATIENCE, "the end of the process that hung", 0.1)
            other.resize("tp=2")
            self.wait_archived(c, other)
            mount.process.send_signal(signal.SIGCONT)
            mount.stop()

    @harness.skip_unless_root
    @unittest.skipUnless(CAN_MOUNT, "FUSE cannot be mounted here")
    def test_shares_of_users(self):
        """A user whose share does not answer has as many processes waiting there as a node starts: another user's job is archived."""
        os.mkdir(self.path("archive"), 0o700)
        os.chown(self.path("archive"), STRANGER, STRANGER)
        with self.cluster(nodes=1, devices=2) as c:
            mount = Mount(self, c)
            hung = [self.kept(c, {"dir": mount.path("archive")}, f"hung-{i}") for i in range(AT_ONCE + 1)]
            for job in hung:
                job.create()
            mount.process.send_signal(signal.SIGSTOP)
            for job in hung:
                c.ptcctl(*job.import_args("tp=2"))
            wait_for(lambda: len(self.writers(c)) >= AT_ONCE, 60 * PATIENCE, "rounds that hang")
            other = self.kept(c, {}, "writes")
            for args in (("job", "create", "-f", other.yaml), other.import_args("tp=1")):
                c.ptcctl(*args, prefix=AS_STRANGER)
            self.wait_archived(c, other)
            self.assertEqual(AT_ONCE, len(self.writers(c)), "the other jobs of the first user wait for each other")
            mount.process.send_signal(signal.SIGCONT)
            for job in hung:
                job.delete(timeout_s=60 * PATIENCE)
            wait_for(lambda: not self.writers(c), 60 * PATIENCE, "the end of the processes that hung", 0.1)
            mount.stop()

    @unittest.skipUnless(CAN_MOUNT, "FUSE cannot be mounted here")
    def test_kills_do_not_end_it(self):
        """Writers that hang in the kernel even when they are killed (a fault point stands in for that): their jobs can be deleted, other
        jobs' switches are committed, and a place for a writer is free when one has ended, not before."""
        def points(rules):
            harness.replace_file(self.path("fault"), rules)
        points("")
        env = {"n0": {"PTC_FAULT_FILE": self.path("fault"), "PTC_FAULT_LIST": self.path("points")}}
        with self.cluster(nodes=1, devices=4, env=env) as c:
            mount = Mount(self, c)
            hung = [self.kept(c, {"dir": mount.path("archive")}, f"hung-{i}") for i in range(AT_ONCE)]
            for job in hung:
                job.create()
            mount.process.send_signal(signal.SIGSTOP)
            for job in hung:
                c.ptcctl(*job.import_args("tp=2"))
            wait_for(lambda: len(self.writers(c)) == AT_ONCE, 60 * PATIENCE, "rounds that hang")
            points("child.killed@*=hold")
            for job in hung:
                job.delete(timeout_s=60 * PATIENCE)
            with open(self.path("points")) as f:
                wait_for(lambda: "child.killed" in f.read().split(), 60 * PATIENCE, "a killed writer", 0.1)
            other = self.kept(c, {}, "other")
            other.imported("tp=1")
            other.resize("tp=2")
            wait_for(lambda: not self.writers(c), 60 * PATIENCE, "the end of the writers, of which ptcd does not hear", 0.1)
            other.resize("tp=1")
            other.check_whole(self)
            self.assertNotIn("archive", other.status(), "it has no place yet")
            points("")
            self.wait_archived(c, other)
            mount.process.send_signal(signal.SIGCONT)
            mount.stop()

    @harness.skip_unless_root
    def test_owner(self):
        """The job's owner writes, not ptcd: into his directory, as his files; what he may not write fails, and the job goes on."""
        os.mkdir(self.path("archive"), 0o700)
        with self.cluster(nodes=1, devices=2) as c:
            job = self.kept(c, {"every": "1h"})
            for args in (("job", "create", "-f", job.yaml), job.import_args("tp=2")):
                c.ptcctl(*args, prefix=AS_STRANGER)
            failed = wait_for(lambda: self.events(c, job, "archive_failed"), 60 * PATIENCE, "an archive that may not be written")
            self.assertIn(f"uid {STRANGER} cannot write to the archive's directory {self.path('archive')}: Permission denied", failed[0]["text"])
            os.chown(self.path("archive"), STRANGER, STRANGER)
            archived = self.wait_archived(c, job)
            for path in glob.glob(self.path("archive", "*")) + glob.glob(self.path("archive", archived, "*")):
                self.assertEqual((STRANGER, STRANGER), (os.stat(path).st_uid, os.stat(path).st_gid), path)
            self.assertNotIn("failed", job.status()["archive"])
            job.resize("tp=1")  # within the hour: not yet
            wait_for(lambda: not job.status()["archive"]["running"] and job.status()["phase"] == "idle", 60 * PATIENCE, "the next round")
            self.assertEqual([archived], self.whole())
