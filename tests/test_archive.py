# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torch.distributed.checkpoint: PyTorch reads what ptc writes, at another shape; ptc reads what PyTorch writes; and what a
full disk or a kill leaves."""
import contextlib
import glob
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import unittest

import harness
import live
import numpy as np
import state as states
import test_proof
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
        """What ptc.torch trained, plain dcp.load puts into a new model and optimizer: parameters, buffers, state, groups and their options.
        On another cluster the job goes on from there, and comes to what training without a break comes to."""
        program, dump = os.path.join(HERE, "dcp_trainer.py"), self.path("dump")
        env = {"PYTHONPATH": os.path.join(harness.ROOT, "client", "python"), "PTC_LIBRARY": harness.binary("client/lib/libptc.so.1"),
               "PYTHONDONTWRITEBYTECODE": "1", **harness.sanitizer_env()}
        spec = {"version": 1, "name": "adam", "run": {"argv": [sys.executable, program, "train", dump], "env": env}}
        with open(self.path("adam.yaml"), "w") as f:
            json.dump(spec, f)
        plain = {k: v for k, v in os.environ.items() if not k.startswith("PTC_")}

        def trained(steps, *how):
            """The step after so many more; the program has written its own state."""
            c.ptcctl("run", "-f", self.path("adam.yaml"), *how, "--wait", timeout_s=120 * PATIENCE)
            wait_for(lambda: c.json("status", "adam")["jobs"][0]["run"].get("step", 0) > steps, 60 * PATIENCE, f"{steps} steps")
            c.ptcctl("stop", "adam", timeout_s=120 * PATIENCE)
            wait_for(lambda: os.path.exists(dump), 60 * PATIENCE, "the state that the program has itself")
            return c.json("status", "adam")["jobs"][0]["step"]

        def check(*what):
            r = subprocess.run([sys.executable, program, *what, dump], env=plain, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, timeout=120 * PATIENCE)
            self.assertEqual(0, r.returncode, r.stdout)

        with self.cluster(nodes=1, devices=1) as c:
            last = trained(20, "--config", "dp=1")
            c.ptcctl("export", "adam", "--dcp", self.path("adam"))
        check("load", self.path("adam"))
        os.unlink(dump)
        with self.cluster(nodes=1, devices=1) as c:
            end = trained(last + 20, "--from", self.path("adam"))
        check("straight", str(end))

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
            self.check_given(job, 4, generation)
            job.do("stop")
            end = job.wait_run("stopped")["step"]
            job.check_state(self, end, self.path("end"))
            self.assertEqual(last, min(min(steps) for steps in job.steps_logged().values()))

    def check_given(self, job, ranks, generation):
        """So many ranks began; each with its own blob, of that generation, if one is named."""
        given = glob.glob(os.path.join(job.logs, "*.given"))
        self.assertEqual(ranks, len(given))
        for path in given if generation else []:
            rank = path[:-len(".given")].split("-r")[-1]
            with open(path) as f:
                self.assertEqual({"rng/mine": f"rng/mine {generation} {rank}"}, json.load(f))

    DATA = {"data": "1000,7,24,4", "blobs": "rng/mine"}  # the ranks check step, cursor and blobs

    def trained(self, nodes=2, devices=2, config="tp=2,dp=2"):
        """A job trains, and its cluster is gone: with it the steps since the checkpoint, which is in the archive. Its step."""
        with self.cluster(nodes=nodes, devices=devices) as c:
            job = live.Job(c, self.path("before"), **self.DATA)
            job.run(config)
            job.wait_step(10)
            job.do("snapshot")
            made = self.archive(c, job)
            job.wait_step(made["step"] + 5)
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("whole"))
        return made

    def check_went_on(self, c, job, made, ranks, generation=None):
        """The ranks began where the checkpoint was made, with what ranks had then, and no sample is missing or twice."""
        job.wait_step(made["step"] + 5)
        self.check_given(job, ranks, generation)
        job.do("stop")
        end = job.wait_run("stopped")["step"]
        job.check_state(self, end, self.path("end"))
        logged = job.steps_logged()
        self.assertEqual({made["step"]}, {min(steps) for steps in logged.values()})
        for path in glob.glob(self.path("before", "steps", "*.jsonl")):  # what ranks of the first cluster had is in the proof, too
            os.rename(path, os.path.join(job.logs, os.path.basename(path)))
        test_proof.proved(self, c, job)

    def test_run_from(self):
        """The whole cluster is lost. On a new one, one command goes on with what the archive has last, though the ranks declared their
        tensors: the same step, bytes, ranks' states and samples. What is in its way leaves nothing half made."""
        made = self.trained()
        archive, newest = self.path("archive"), self.path("archive", made["archive"])
        with self.cluster(nodes=2, devices=2) as c:
            job = live.Job(c, self.path("after"), **self.DATA)

            def refused(source, contains, *more, codes=(1,)):
                self.refused(c, "run", "-f", job.yaml, "--from", source, *more, contains=contains, codes=codes)
                self.assertEqual([], c.json("job", "list")["jobs"])

            os.mkdir(self.path("empty"))
            refused(self.path("none"), "No such file or directory")
            refused(self.path("empty"), "has no checkpoint of job live")
            refused(archive, "6 devices are needed", "--config", "tp=2,dp=3")
            harness.replace_file(self.path("archive", "other.newest"), "other-step-1-01234567\n")
            os.rename(newest, newest + "~")
            refused(archive, "it is an archive of")
            os.rename(newest + "~", newest)
            with open(os.path.join(newest, "ptc-layout.json"), "r+b") as f:  # a bit is flipped
                text = bytearray(f.read())
                f.seek(0)
                f.write(text.replace(b"F", b"G", 1))
                f.flush()
                refused(archive, "ptc-layout.json: its hash is")
                f.seek(0)
                f.write(text)
            for point in ("import.begun", "import.sent"):
                self.refused(c, "run", "-f", job.yaml, "--from", archive, contains=f"fault point {point}", env={"PTC_FAULT": f"{point}=fail"})
                self.assertEqual([], c.json("job", "list")["jobs"])
            c.ptcctl("run", "-f", job.yaml, "--from", archive, check=False, env={"PTC_FAULT": "import.sent=kill"})
            self.assertFalse(job.status()["has_state"])  # a job that is there and empty is filled
            other = next(n for n in c.nodes if n != job.status()["controller"])  # which passes the import on
            r = c.ptcctl("run", "-f", job.yaml, "--from", archive, "--wait", node=other, timeout_s=120 * PATIENCE)
            self.assertIn(f"job live has the state of {newest}, step {made['step']}", r.stdout)
            self.refused(c, "run", "-f", job.yaml, "--from", archive, contains="has state already, of step")
            self.check_went_on(c, job, made, 4, made["generation"])

    def test_run_from_at_fewer(self):
        """The new cluster has fewer devices than the ranks had whose state it is, and gets their bytes all the same; an import alone, too."""
        made = self.trained()
        with self.cluster(nodes=1, devices=2) as c:
            job = live.Job(c, self.path("after"), **self.DATA)
            c.ptcctl("job", "create", "-f", job.yaml)
            self.refused(c, "import", job.name, self.path("archive", made["archive"]), "--config", "tp=2", codes=(2,),
                         contains="leave out --config")
            c.ptcctl("import", job.name, self.path("archive", made["archive"]))
            job.check_state(self, made["step"], self.path("imported"))
            self.assertEqual(("tp=2,dp=2", made["step"]), (lambda s: (s["config"], s["step"]))(job.status()))
            c.ptcctl("job", "delete", job.name)
            c.ptcctl("job", "create", "-f", job.yaml)
            r = c.ptcctl("run", job.name, "--from", self.path("archive"), "--config", "tp=2", "--wait", "--format", "json",
                         timeout_s=120 * PATIENCE)
            self.assertEqual(made["step"], json.loads(r.stdout)["step"])
            self.check_went_on(c, job, made, 2)

    def test_run_from_older(self):
        """An archive of an earlier version lacks the layout: one line says so, and with tensors and rules it goes on."""
        made = self.trained(config="tp=2")
        newest = self.path("archive", made["archive"])
        os.unlink(os.path.join(newest, "ptc-layout.json"))
        with open(os.path.join(newest, "ptc.json")) as f:
            doc = json.load(f)
        del doc["documents"]["layout"]
        with open(os.path.join(newest, "ptc.json"), "w") as f:
            json.dump(doc, f)
        with self.cluster(nodes=1, devices=2) as c:
            job = live.Job(c, self.path("after"), **self.DATA)
            self.refused(c, "run", "-f", job.yaml, "--from", newest, contains="write tensors and rules into the job's description")
            self.assertEqual([], c.json("job", "list")["jobs"])
            with open(job.yaml) as f:
                spec = json.load(f)
            spec.update({"tensors": {"from": self.path("whole", "model.safetensors")},
                         "rules": [{"match": "steps"}, {"match": "*", "split": {"axis": "tp", "dim": 0, "kind": "balanced"}}]})
            with open(job.yaml, "w") as f:
                json.dump(spec, f)
            c.ptcctl("run", "-f", job.yaml, "--from", self.path("archive"), "--config", "tp=2", "--wait", timeout_s=120 * PATIENCE)
            self.check_went_on(c, job, made, 2, made["generation"])

    def test_state_lost(self):
        """A node is gone for good with the only copy of a part of the state, which the archive has: status says which commands go on
        from there, and so they do."""
        with self.cluster(nodes=3, devices=1, lease_ttl="2s", node_lost_after="2s") as c:
            job = live.Job(c, self.path("before"), together="fail", run={"archive": {"dir": self.path("archive")}}, **self.DATA)
            job.run("tp=2")
            job.wait_step(10)
            job.do("snapshot")
            step = job.status()["step"]
            wait_for(lambda: self.events(c, job, "archived"), 60 * PATIENCE, "a checkpoint")
            c.power_off(next(r["node"] for r in job.status()["ranks"] if r["node"] != "n0"), chunks=False)
            waits = wait_for(lambda: [e for e in self.events(c, job, "waits") if "on no live node" in e["text"]], 60 * PATIENCE,
                             "the reason")
            commands = re.findall("`ptcctl ([^`]*)`", waits[0]["text"].split("archive: ")[1])
            self.assertEqual(["stop", "job", "run"], [line.split()[0] for line in commands])
            for line in commands:
                r = c.ptcctl(*line.replace("FILE", job.yaml).split(), timeout_s=120 * PATIENCE)
            self.assertRegex(r.stdout, f"has the state of {self.path('archive')}/live-step-{step}-.*, step {step}\n")
            job.wait_step(step + 5)
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))
            test_proof.proved(self, c, job)

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
            self.assertRegex(r.stderr, f"full; make room there, or .*: cannot write {self.path('archive')}/.*: No space left on device")
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

    def test_late_mark(self):
        """Killed between the checkpoint's name and the marker, with a long `every`: the next round writes nothing, and still marks."""
        self.arm("archive.mark.before=kill")
        with self.cluster(nodes=1, devices=2, env={"n0": {"PTC_FAULT_FILE": self.path("fault")}}) as c:
            job = self.kept(c, {"every": "1h"})
            job.imported("tp=2")
            wait_for(lambda: self.events(c, job, "archive_failed"), 60 * PATIENCE, "a killed ptc-archive")
            there = self.whole()
            self.assertEqual((1, []), (len(there), glob.glob(self.path("archive", "*.newest"))))
            self.arm()
            wait_for(lambda: job.status().get("archive", {}).get("archive"), 60 * PATIENCE, "a round that succeeds")
            self.assertEqual(there, [self.check_newest(c, job)])

    def test_start_and_end(self):
        """A daemon ends while it starts a round: it ends the process, and does not fail."""
        self.arm("archive.start=hold")
        points, env = self.path("points"), {"PTC_FAULT_FILE": self.path("fault"), "PTC_FAULT_LIST": self.path("points")}

        def passed():
            with contextlib.suppress(FileNotFoundError), open(points) as f:
                return "archive.start" in f.read()

        with self.cluster(nodes=1, devices=2, env={"n0": env}) as c:
            job, node = self.kept(c, {}), c.nodes["n0"]
            job.imported("tp=2")
            wait_for(passed, 60 * PATIENCE, "a round that starts")
            node.signal(signal.SIGTERM)
            wait_for(lambda: not os.path.exists(node.socket), 60 * PATIENCE, "a daemon that takes no more calls")
            self.arm()
            node.wait_gone(60 * PATIENCE)

    def later(self, *names):
        """As if they had been written before the clock was set back by a day and more."""
        for i, name in enumerate(names):
            path = self.path("archive", name, "ptc.json")
            os.utime(path, times=(os.stat(path).st_mtime + 86400 * (i + 1),) * 2)

    def test_clock_set_back(self):
        """After the clock was set back, `every` counts from now, and new checkpoints are still newer than those before."""
        with self.cluster(nodes=1, devices=2) as c:
            job = self.kept(c, {"every": "1s", "keep": 2})
            job.imported("tp=2")
            first = self.wait_archived(c, job)
            self.later(first)
            job.resize("tp=1")
            second = self.wait_archived(c, job)
            self.later(first, second)
            for config in ("tp=2", "tp=1"):
                job.resize(config)
                third = self.wait_archived(c, job)
                self.assertEqual(sorted([second, third]), self.whole())
                second = third
            self.assertEqual(third, self.check_newest(c, job))

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
            for said in (failed[0]["text"], job.status()["archive"]["failed"]):
                self.assertRegex(said, f"full; make room there, or .*: cannot write {self.path('archive')}/.*: No space left on device")
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
        passed = os.environ.get("PTC_FAULT_LIST", self.path("points")) # test_crash wants to know them, too
        env = {"n0": {"PTC_FAULT_FILE": self.path("fault"), "PTC_FAULT_LIST": passed}}
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
            with open(passed) as f:
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
