# SPDX-License-Identifier: Apache-2.0
"""examples/gpt under a cluster. With sanitizers: resized once while it trains. For minutes (PTC_TEST_LONG): switched again and
again, nothing grows and the losses stay those of one process; and to another parallelism and back without a step between,
every byte is as it was. And machines are killed or cut off under it, at random instants (PTC_TEST_KILLS of each kind of job; tests/campaign
makes hundreds)."""
import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import unittest

import harness  # first: it says where the others are
import curve
import live
import results
from harness import PATIENCE, ClusterError, wait_for
from machines import LINK, Machines
from test_fuse import CAN_MOUNT, Mount
from test_torch import HAS_TORCH, Job

A = "tp=2,dp=2"
EVERY = 10  # steps between the snapshots of a job whose machines are killed
# of jobs whose machines are killed: the configuration of all devices, --zero, devices of each of four nodes, configurations for fewer
KINDS = {"replicas": (A, "0", 1, {3: "dp=3", 2: "dp=2"}), "pipeline": ("tp=2,pp=2,dp=2", "0", 2, {6: "tp=2,dp=3", 4: A}),
         "fsdp": ("dp=4", "fsdp", 1, {3: "dp=3", 2: "dp=2"}), "zero1": (A, "1", 1, {3: "dp=3", 2: "dp=2"})}
LOST = re.compile(r"of step (\d+), under (\S+); step (\d+) had been reached: (\d+) steps are lost")
BACK = re.compile(r"the job goes back to snapshot (\d+) of step (\d+)")
COPIED = re.compile(r"snapshot (\d+): every region is on 2 nodes")


long = unittest.skipUnless(harness.LONG, "takes minutes: PTC_TEST_LONG")


@unittest.skipUnless(HAS_TORCH, "no PyTorch: scripts/venv --torch")
@harness.labels("repeats")
class GptLive(harness.Case):
    def job(self, c, mode, *options, name="gpt", env=None, **run):
        self.out = self.path(f"{name}-out")
        os.makedirs(self.out, mode=0o777)
        job = Job(c, self.dir, name, mode, program=["gpt_live.py", *options, "--out", self.out], run=run)
        with open(job.yaml, encoding="utf-8") as f:
            spec = json.load(f)
        spec["run"]["env"].update(env or {})
        with open(job.yaml, "w", encoding="utf-8") as f:
            json.dump(spec, f)
        return job

    def reference(self, steps, *options):
        """The first steps of one process with the same options. It ends there: its schedule is that of the whole run."""
        out = self.path("reference")
        log = os.path.join(out, "rank-0.jsonl")
        argv = [sys.executable, "-B", "-W", "ignore", os.path.join(harness.ROOT, "examples", "gpt", "train_plain.py"), *options]

        def done():
            if process.poll() is not None:
                return True
            with contextlib.suppress(FileNotFoundError), open(log) as f:
                return f.read().count("\n") >= steps
            return False

        with subprocess.Popen([*argv, "--out", out], stdin=subprocess.DEVNULL) as process:
            try:
                wait_for(done, 1200 * PATIENCE, f"{steps} steps of one process", 0.2)
            finally:
                process.kill()
        return {step: line for step, line in curve.read(out).items() if step < steps}

    # ---- once

    @unittest.skipUnless(harness.SANITIZED or harness.LONG, "torch.damaged_row is more, without sanitizers")
    def test_resized(self):
        """A few steps and a resize, mode rebuild. With sanitizers: the ranks' libptc has them too, and says nothing."""
        options = ["--steps", "8", "--zero", "1"]
        with self.cluster(nodes=1, devices=2) as c:
            job = self.job(c, "rebuild", *options)
            job.run("dp=2")
            job.wait_step(2)
            for rank in job.status()["run"]["ranks"] if "address" in harness.SANITIZED else []:
                with open(f"/proc/{rank['pid']}/maps") as f:
                    maps = f.read()
                for library in ("/libasan.so", "/libubsan.so", harness.BUILD + "/"):
                    self.assertIn(library, maps, "the rank is not what is to be tested")
            at = job.resize("tp=2")["step"]
            self.assertEqual(8, job.wait_run("done", 400)["step"])
            self.assertLess(at, 8)
        worst = curve.difference(self.reference(8, *options), curve.read(self.out))
        print(f"resized at step {at}, losses at most {worst:.1e} apart", flush=True)
        self.assertLessEqual(worst, 2e-6)

    def test_recompute(self):
        """A configuration tells the GPT to compute its layers once more in the backward pass, and then not to: the losses of one
        process."""
        options = ["--steps", "8", "--zero", "1"]
        with self.cluster(nodes=1, devices=2) as c:
            job = self.job(c, "rebuild", *options, "--recompute")
            job.run("dp=2,recompute=full")
            job.wait_step(2)
            at = job.resize("tp=2")["step"]
            self.assertEqual(8, job.wait_run("done", 400)["step"])
        self.assertTrue(0 < at < 8, at)
        self.assertLessEqual(curve.difference(self.reference(8, *options), curve.read(self.out)), 2e-6)

    @long
    def test_fsdp(self):
        """FSDP2 alone, over tensor parallelism (strided shards) and uneven, resized while it trains: the losses of one process."""
        options = ["--steps", "16", "--zero", "fsdp", "--dtype", "float64"]
        with self.cluster(nodes=2, devices=2) as c:
            job = self.job(c, "rebuild", *options)
            job.run("dp=4")
            at = [0]
            for config in ("tp=2,dp=2", "dp=3"):
                job.wait_step(at[-1] + 2)
                at.append(job.resize(config)["step"])
            self.assertEqual(16, job.wait_run("done", 400)["step"])
            self.assertTrue(0 < at[1] < at[2] < 16, at)
        worst = curve.difference(self.reference(16, *options), curve.read(self.out))
        print(f"resized at steps {at[1:]}, losses at most {worst:.1e} apart", flush=True)
        self.assertLessEqual(worst, 1e-12)

    @long
    @unittest.skipUnless(CAN_MOUNT, "FUSE cannot be mounted here")
    def test_through_files(self):
        """The records come from data/ of a mount, through five resizes, epochs that end within a step, and padding."""
        import numpy as np
        count, g, mbs, options = 130, 20, 3, ["--dtype", "float64", "--records", "130", "--micro-batch", "3"]
        sys.path.insert(0, os.path.join(harness.ROOT, "examples", "gpt"))
        import data
        from model import Config
        records = data.Records(data.text(), Config().context, count)
        np.save(self.path("text.npy"), np.stack([np.append(x.numpy(), y.numpy()[-1]) for _, x, y in map(records.__getitem__, range(count))])
                .astype("uint8"))
        with self.cluster(nodes=2, devices=2, lease_ttl="20s") as c:
            c.ptcctl("dataset", "add", "text", self.path("text.npy"))
            mount = Mount(self, c)
            job = self.job(c, "rebuild", *options, "--steps", "100000", "--files", mount.path("gpt", "data", "text"),
                           data={"text": {"dataset": "text", "seed": 1, "global_batch": g, "micro_batch": mbs}})
            job.run("tp=2,dp=2")
            at = 0
            for config in ("dp=3", "pp=2,dp=2", "tp=2", "dp=4", "tp=2,pp=2"):
                job.wait_step(at + 4, 120)
                at = job.resize(config)["step"]
            job.wait_step(at + 4, 120)
            job.do("stop")
            steps = job.wait_run("stopped")["step"]
            proof = c.json("dataset", "proof", "gpt", "--counted")["cursors"][0]
            mount.stop()
        self.assertEqual((True, steps * g, [2, 3, 2, 1, 4, 1]),
                         (proof["exactly_once"], proof["position"], [e["dp"] for e in proof["generations"]]))
        worst = curve.difference(self.reference(steps, *options, "--steps", "100000"), curve.read(self.out))
        print(f"{steps} steps, {steps * g // count} epochs, losses at most {worst:.1e} apart", flush=True)
        self.assertLessEqual(worst, 1e-12)

    # ---- many switches

    def heap_kib(self, pid):
        with open(os.path.join(self.heap, str(pid))) as f:
            return int(f.read())

    def usage(self, c, job):
        ranks = [r["pid"] for r in job.status()["run"]["ranks"]]
        return {**live.usage(c, ranks, of=max), "rank heap KiB": max(self.heap_kib(p) for p in ranks)}

    def many_switches(self, mode, count, every, rest=(), **run):
        options = ["--steps", "100000", "--dtype", "float64", "--zero", "1"]
        configs, rows = ["tp=4", "pp=2,dp=2", "tp=1,dp=3", "tp=2,pp=2", A], []
        self.heap = self.path("heap")
        os.mkdir(self.heap)
        os.chmod(self.heap, 0o777)
        with self.cluster(nodes=2, devices=2, lease_ttl="20s") as c:
            job = self.job(c, mode, *options, "--heap", self.heap, *rest, **run)
            job.run(A)
            at = 0
            for i in range(count):
                job.wait_step(at + 2, 120)
                at = job.resize(configs[-every:][i % every])["step"] # what is compared is used under one configuration
                if i % every == every - 1:
                    job.wait_step(at + 1, 120)
                    rows.append(self.usage(c, job))
                    print(f"after {i + 1} switches: {rows[-1]}", flush=True)
            job.do("stop")
            steps = job.wait_run("stopped")["step"]
        for what in rows[0]:
            # what ranks have resident is printed only: most that is not in use is what the C library keeps of freed memory
            may = {"ptcd fds": 4, "ptcd threads": 8, "ptcd KiB": 24 << 10, "rank fds": 2, "rank threads": 4, "rank heap KiB": 12 << 10,
                   "rank KiB": 1 << 30}.get(what, 0)
            self.assertLessEqual(rows[-1][what] - rows[0][what], may, f"{what} grows: {[r[what] for r in rows]}")
        worst = curve.difference(self.reference(steps, *options), curve.read(self.out))
        print(f"{steps} steps, losses at most {worst:.1e} apart", flush=True)
        self.assertLessEqual(worst, 1e-12)

    @long
    def test_fifty_switches(self):
        self.many_switches("rebuild", harness.size(10, 15, 50), 5)

    @long
    def test_ten_switches_restart(self):
        self.many_switches("restart", harness.size(4, 4, 10), harness.size(2, 2, 5), rest=("--rest", "0.5"), build="ahead")

    # ---- there and back

    def state_documents(self, c, job):
        """What the newest snapshot holds beside tensors: ({coordinates: blobs}, cursors)."""
        found = json.loads(c.etcdctl("get", "--prefix", "/ptc/", "-w", "json").stdout)["kvs"]
        keys = {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv["value"]) for kv in found}
        uuid = job.status()["uuid"]

        def blob(name):
            prefix = f"/ptc/blobs/{uuid}/{name}/"
            return json.loads(b"".join(v for k, v in sorted(keys.items()) if k.startswith(prefix)))
        state = blob(blob(json.loads(keys[f"/ptc/jobs/{uuid}/record"])["manifest"])["state"])
        return {tuple(r[axis] for axis in ("tp", "pp", "dp", "cp")): r["blobs"] for r in state["ranks"]}, state["cursors"]

    def there_and_back(self, other, zero):
        """The job has done all its steps: ranks are started, restored and captured, and train nothing."""
        seen = []
        name = f"back{len(other)}{zero}"
        with self.cluster(nodes=2, devices=2) as c:
            job = self.job(c, "rebuild", "--steps", "6", "--zero", zero, name=name)
            for i, config in enumerate((A, other, A)):
                job.run(config) if i == 0 else c.ptcctl("run", name, "--config", config, "--wait", timeout_s=240 * PATIENCE)
                self.assertEqual(6, job.wait_run("done", 240)["step"])
                self.assertTrue(config in job.status()["config"] or config == A, job.status())
                path = self.path(f"{name}-{i}.safetensors")
                c.ptcctl("export", name, path, timeout_s=120 * PATIENCE) # parameters and PARAMETER:FIELD
                seen.append((harness.sha256(path), *self.state_documents(c, job)))
        for there in seen[1:]:
            self.assertEqual(seen[0][0], there[0], "parameters or optimizer")
            self.assertEqual(seen[0][2], there[2], "cursors")
        kept = set(seen[0][1]) & set(seen[1][1])
        self.assertGreater(len(kept), 0)
        for at in kept: # random states go with coordinates, so those that `other` has none of begin anew
            self.assertEqual(seen[0][1][at], seen[2][1][at], f"blobs of {at}")

    @long
    def test_there_and_back(self):
        ways = (("pp=2", "1"), ("tp=2,pp=2", "0"), ("dp=3", "fsdp"), (A, "1"))
        for other, zero in self.random.sample(ways, harness.size(2, 2, 4)):
            with self.subTest(other, zero=zero):
                self.there_and_back(other, zero)

    # ---- machines are killed

    def events(self, c, job, node):
        lines = c.ptcctl("events", job.name, "--format", "json", node=node, check=False).stdout.splitlines()
        return [json.loads(line) for line in lines]

    def copied(self, job):
        """Until every part of its newest snapshot is on two nodes. From then on no single loss may cost more than going back to the last
        snapshot of which that was so; until then a loss that comes soon after another one may (docs/failures.md, "Copies")."""
        def there():
            with contextlib.suppress(ClusterError):
                s = job.status()
                return s["snapshot"] and s.get("copies", {}).get("fewest", 0) >= 2
        wait_for(there, 120 * PATIENCE, "a snapshot on two nodes", 0.1)

    def goes_on(self, c, job, victim, last):
        """Until the job has gone on without the node; nobody types anything, nor brings the node back. The events since."""
        node = next(n for n in c.nodes if n != victim)

        def recovered():
            new = [e for e in self.events(c, job, node) if e["number"] > last]
            for e in new:
                self.assertNotIn(e["kind"], ("gave_up", "copies_short", "copies_failed"), e["text"])
            return new if any(e["kind"] == "recovered" for e in new) else None
        try:
            return wait_for(recovered, 180 * PATIENCE, "a job that goes on", 0.2)
        except ClusterError:
            print(c.ptcctl("events", job.name, node=node, check=False).stdout, json.dumps(job.status(node=node)), flush=True)
            raise

    def went_back(self, before, events, step):
        """Whether the newest snapshot was lost with the node: then the job has gone back to the newest one of which two nodes had every
        part, or to a newer one."""
        told = [e["text"] for e in events if e["kind"] == "went_back"]
        for text in told:
            to, at = map(int, BACK.search(text).groups())
            self.assertGreaterEqual(to, max(int(COPIED.match(e["text"])[1]) for e in before if COPIED.match(e["text"])), text)
            self.assertEqual(step, at, text)
        self.assertLessEqual(len(told), 1, told)
        return bool(told)

    def stepped(self, job, node, generation, step):
        """When the ranks of a later generation had all ended this step (seconds since 1970)."""
        def there():
            s = job.status(node=node)
            return s["generation"] > generation and s["run"].get("step", -1) > step and time.time()
        return wait_for(there, 180 * PATIENCE, f"the end of step {step}", 0.05)

    @staticmethod
    def parts(events, began, stepped):
        """Of the time until a step had ended, the seconds of each part (results.PARTS)."""
        at = {"stepped": stepped}
        for e in events:
            if e["kind"] in ("node_down", "recovering"):
                at.setdefault("detected", e["time_ms"] / 1000)
            elif e["kind"] == "switch": # of several the last, which went through
                at["decided"] = e["time_ms"] / 1000
            elif e["kind"] == "recovered":
                at["started"] = e["time_ms"] / 1000
                break
        parts, last = {}, began
        for part in results.PARTS:
            now = max(last, at.get(part, last))
            parts[part], last = round(now - last, 3), now
        return parts

    def any_instant(self, job):
        """Within about two snapshots; in half of all cases one at which the copies of the newest are on their way, where it needs any."""
        self.copied(job)
        time.sleep(self.random.random() * 8)  # nothing is judged by it
        if self.random.random() < 0.5 and KINDS[job.name][1] != "0":
            wait_for(lambda: "bridge" in job.status(), 120 * PATIENCE, "a snapshot without its copies", 0.02)

    def lose(self, c, job, full, cables, piece):
        """One machine dies at a random instant, or its cable is pulled; it comes back after the job has gone on. What became of it."""
        self.any_instant(job)
        before, earlier = job.status(), self.events(c, job, "n0")
        victim = self.random.choice(sorted({r["node"] for r in before["ranks"]} - ({"n0"} if cables else set())))
        node, began = next(n for n in c.nodes if n != victim), time.time()
        cables.cut(victim) if cables else c.power_off(victim)
        events = self.goes_on(c, job, victim, earlier[-1]["number"])
        text = next(e["text"] for e in events if e["kind"] == "recovered")
        said = LOST.search(text)
        self.assertTrue(said, text)
        step, config, reached, lost = int(said[1]), said[2], int(said[3]), int(said[4])
        back = self.went_back(earlier, events, step)
        whys = [e["text"] for e in events if e["kind"] == "not_survived"]
        parts = self.parts(events, began, self.stepped(job, node, before["generation"], step))
        logged = max(curve.runs(self.out)[before["generation"]]) + 1
        print(f"  {victim} (controller {before['controller']}) {'cut off' if cables else 'killed'} under {before['config']}: {reached} -> "
              f"{step}, under {config}, {parts}{', back to the bridge' if back else ''}; {whys}", flush=True)
        self.assertLessEqual(abs(logged - reached), 1, "what ranks logged, and what the event says that they had reached")
        self.assertEqual(lost, reached - step, text)
        self.assertTrue((before["bridge"] if back and "bridge" in before else before)["step"] <= step <= reached, f"{before}, {text}")
        piece.line(test=f"GptLive.{self._testMethodName}", config=full, kind=f"{job.name}, survive()", way="cut off" if cables else "killed", node=victim,
                   controller=victim == before["controller"], phase=before["phase"], under=before["config"], to=config, reached=reached,
                   step=step, lost=lost, back=back, seconds=parts, whys=whys)
        self.come_back(c, victim, cables)
        if self.random.random() < 0.5 and config != full:
            job.resize(full)
        job.wait_step(step + 2, 120)

    def come_back(self, c, victim, cables):
        if cables:
            cables.mend(victim)
        else:
            if self.random.random() < 0.5:  # as of a machine that starts anew
                shutil.rmtree(c.nodes[victim].chunk_dir)
            c.restart(victim)
        c.wait_nodes([victim], 60 * PATIENCE, node=next(n for n in c.nodes if n != victim))

    @contextlib.contextmanager
    def four_machines(self, devices, cut):
        """(cluster, what cuts its machines off or None). With cables etcd is on n0, whose cable stays where it is."""
        options = {"nodes": 4, "devices": devices, "transport": "tls", "lease_ttl": "4s", "node_lost_after": "4s",
                   "copies": {"rate": "2MiB"}} # seconds for the copies of a snapshot
        if not cut:
            with self.cluster(coordinator="etcd-cluster", **options) as c:
                yield c, None
            return
        with Machines([f"n{i}" for i in range(4)]) as m, self.cluster(hosts=m.hosts, up=False, cut_off_after="1s", **options) as c:
            m.settle(c)
            c.up(timeout_s=60 * PATIENCE)
            yield c, m

    def kill_machines(self, kind, cut, kills, piece):
        """step -> what ranks logged"""
        full, zero, devices, fewer = KINDS[kind]
        options = ["--steps", "100000", "--dtype", "float64", "--zero", zero]
        with self.four_machines(devices, cut) as (c, cables):
            job = self.job(c, "rebuild", *options, name=kind, env={"GLOO_SOCKET_IFNAME": LINK} if cut else {}, snapshot_every=EVERY,
                           copies={"count": 2}, elastic={"on_failure": "shrink"}, gpus={4 * devices: full, **fewer})
            job.run(full)
            for _ in range(kills):
                self.lose(c, job, full, cables, piece)
            job.do("stop")
            steps = job.wait_run("stopped")["step"]
        found = curve.read(self.out)
        self.assertEqual(list(range(steps)), sorted(found))
        for step, twice in curve.repeated(self.out).items():
            for loss in twice:
                self.assertLessEqual(abs(loss - twice[-1]) / twice[-1], 1e-12, f"step {step} was done twice: {twice}")
        return found

    def machines_lost(self, kind, cut=False):
        """A machine is gone at random instants, with its ptcd and its ranks; nobody types anything. From the step on from which the job
        goes on, its losses are those of one process that never stopped, and samples are used once."""
        with results.Piece("kills", self.seed) as piece:
            found = self.kill_machines(kind, cut, int(os.environ.get("PTC_TEST_KILLS", 1)), piece)
            worst = curve.difference(self.reference(len(found), "--steps", "100000", "--dtype", "float64"), found)
            curve.check_samples(found, 510, 20)
            print(f"{kind}: {len(found)} steps, losses at most {worst:.1e} apart", flush=True)
            self.assertLessEqual(worst, 1e-12)

    @long
    def test_machines_killed(self):
        self.machines_lost("replicas")

    @long
    def test_machines_killed_pipeline(self):
        self.machines_lost("pipeline")

    @long
    def test_machines_killed_fsdp(self):
        self.machines_lost("fsdp")

    @long
    def test_machines_killed_zero1(self):
        self.machines_lost("zero1")

    @long
    @harness.skip_unless_root
    @harness.needs("ip", "nsenter", "unshare")
    def test_machines_cut_off(self):
        """No connection is closed and no packet comes back: the machine's lease has to end."""
        self.machines_lost(self.random.choice(sorted(KINDS)), cut=True)


if __name__ == "__main__":
    unittest.main()
