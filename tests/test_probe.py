# SPDX-License-Identifier: Apache-2.0
"""`ptcctl probe`: what it finds is what real ranks declare, byte for byte; programs that cannot be probed; what a daemon does
with it."""
import base64
import json
import os
import signal
import subprocess
import sys
import unittest

import harness  # first: it says where the others are
from harness import LONG, PATIENCE, wait_for
from test_ctrainer import Trainer, differences
from test_quota import OTHER
from test_torch import HAS_TORCH, Job


def declared(c, name, config):
    """The layout document that the ranks of a job have declared under a configuration, as etcd has it."""
    uuid = c.json("status", name)["jobs"][0]["uuid"]
    rows = json.loads(c.etcdctl("get", "--prefix", f"/ptc/blobs/{uuid}/", "-w", "json").stdout).get("kvs", [])
    parts = {}
    for row in rows:
        key = base64.b64decode(row["key"]).decode().split("/")
        parts.setdefault(key[4], []).append((int(key[5].split("-")[0]), base64.b64decode(row["value"])))
    found = [data for data in (b"".join(value for _, value in sorted(p)) for p in parts.values())
             if data.startswith(b'{"version":1,"config":"' + config.encode() + b'","tensors":')]
    return found[0] if len(found) == 1 else None


ROOM = ("--memory", "64TiB") if harness.SANITIZED else ()  # of which a sanitizer asks for most at once


def probe(path, config, *options, env=None, timeout_s=120):
    room = () if "--memory" in options else ROOM
    argv = [harness.program("ptcctl"), "probe", "-f", path, "--config", config, *room, *options]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, **(env or {})}, timeout=timeout_s * PATIENCE, check=False)


class Probe(harness.Case):
    def found(self, path, config, *options):
        """The layout document of a probe, and what was said."""
        out = self.path(f"{config}.json")
        r = probe(path, config, "-o", out, "--format", "json", *options)
        self.assertEqual((0, ""), (r.returncode, r.stderr), r.stderr)
        with open(out, "rb") as f:
            return f.read(), json.loads(r.stdout)

    def check_gpt(self, mode, zero, configs, options=()):
        """Ranks that run declare what the probe has found before."""
        with self.cluster(nodes=1, devices=4) as c:
            job = Job(c, self.dir, "gpt", mode, program=["gpt_live.py", "--steps", "100000", "--zero", zero])
            probed = {config: self.found(job.yaml, config, *options) for config in configs}
            job.run(configs[0])
            for config in configs:
                if config != configs[0]:
                    job.resize(config)
                job.wait_step(1)
                document, said = probed[config]
                self.assertEqual(declared(c, "gpt", config), document, config)
                self.assertEqual((said["world"], said["config"]), (said["built"], config))
            job.do("stop")
            job.wait_run("stopped")

    @unittest.skipUnless(HAS_TORCH, "no PyTorch: scripts/venv --torch")
    def test_zero1(self):
        """Tensor parallelism, pipeline stages, and ranges of ZeRO-1; one process is one rank after the other."""
        self.check_gpt("rebuild", "1", ["tp=2,dp=2", "pp=2,dp=2"])

    @unittest.skipUnless(LONG, "what test_zero1 shows, for other kinds: PTC_TEST_LONG")
    def test_replicated(self):
        """A process for each rank."""
        self.check_gpt("restart", "0", ["tp=2,dp=2", "pp=2", "dp=2", "tp=2,pp=2"])

    @unittest.skipUnless(LONG, "what test_zero1 shows, for other kinds: PTC_TEST_LONG")
    def test_fsdp(self):
        self.check_gpt("rebuild", "fsdp", ["tp=2,dp=2", "dp=3"])


    def check_kind(self, kind, device, width, held):
        """held: bytes of the state that a rank of two has, of all."""
        if harness.SANITIZED:
            self.skipTest("a sanitizer needs more than the limit that is tested")
        with self.cluster(up=False) as c:
            job = Job(c, self.dir, kind, "rebuild", program=["probe_torch.py", kind, device, str(width)])
        _, said = self.found(job.yaml, "dp=2", "--memory", "2GiB")
        step = 4 * len("weight bias weight bias weight weight bias".split())
        whole = (1000 * width + 2 * width + width * width + width + 2 * width) * 4 * 3 + 2 * width * 4 + 8 + step
        self.assertEqual(whole, said["state_bytes"])
        self.assertEqual(held(whole, 2 * width * 4 + 8 + step), said["rank_bytes_most"])

    @unittest.skipUnless(HAS_TORCH, "no PyTorch: scripts/venv --torch")
    @harness.labels("repeats")
    def test_large(self):
        """48 GiB of state, on CUDA devices that are not there, in 2 GiB of memory."""
        self.check_kind("fsdp", "cuda", 1 << 16, lambda whole, rest: rest + (whole - rest) // 2)

    @unittest.skipUnless(LONG, "what test_large shows, for other programs: PTC_TEST_LONG")
    def test_kinds(self):
        for device in ("cpu", "cuda"):
            self.check_kind("fsdp", device, 1 << 16, lambda whole, rest: rest + (whole - rest) // 2)
            self.check_kind("meta", device, 1 << 16, lambda whole, rest: rest + (whole - rest) // 2)
            self.check_kind("ddp", device, 64, lambda whole, _: whole)
            self.check_kind("compile", device, 64, lambda whole, _: whole)


def between(c, config, *verb):
    """Bytes between nodes that a resize would move, by each who says it; None: they are not known."""
    said = [c.json(*v, "ridge", "--config", config, *more)["totals"] for v, more in ((("plan",), ()), (("resize",), ("--dry-run",)))]
    totals = {None if t is None else t["between_nodes"] for t in said}
    return totals.pop() if len(totals) == 1 else totals


class Remembered(harness.Case):
    """What a daemon does with a layout."""

    def other(self, kind, *options):
        """A job's file whose program is not that of the job."""
        path = self.path(f"other-{kind}.yaml")
        with open(path, "w") as f:
            json.dump({"version": 1, "name": "ridge", "mode": "rebuild", "run": {
                "argv": [sys.executable, "-B", os.path.join(harness.ROOT, "tests", "probe_rank.py"), kind],
                "env": {"PYTHONPATH": os.path.join(harness.ROOT, "client", "python"),
                        "PTC_LIBRARY": harness.binary("client/lib/libptc.so.1"), **harness.sanitizer_env()}}}, f)
        return path

    def events(self, c, kind):
        lines = c.ptcctl("events", "ridge", "--format", "json").stdout.splitlines()
        return [e["text"] for e in map(json.loads, lines) if e["kind"] == kind]

    def test_plans(self):
        """Bytes of a configuration that has never run are exact once it was probed: in plans, and as the resize then moves them.
        What ranks declare counts; what differs is told. Blobs of layouts outlive what a controller tidies up."""
        tell = ("probe", "ridge", *ROOM, "-f")
        with self.cluster(nodes=2, devices=2) as c:
            job = Trainer(c, self.dir, "rebuild", 100000, 5)
            job.run("tp=2")
            job.wait_step(1)
            self.assertIsNone(between(c, "tp=4"))
            self.assertEqual("probed", c.json(*tell, job.yaml, "--config", "tp=4", "-o", self.path("tp4.json"))["daemon"]["known"])
            for config in ("tp=3", "dp=3"):
                c.ptcctl(*tell, self.other("ridge"), "--config", config)
            want = 3 * 8 * (9 + 9) + 3 * 8  # of 37 features, those of ranks 2 and 3, and b: the first node has all
            self.assertEqual(want, between(c, "tp=4"))
            self.assertEqual(["tp=4", "tp=3", "dp=3"], [text.split(":")[0] for text in self.events(c, "probed")])
            # offline, from two documents
            c.ptcctl("probe", *ROOM, "-f", job.yaml, "--config", "tp=2", "-o", self.path("tp2.json"))
            layouts = ["--layout", self.path("tp2.json"), "--layout", self.path("tp4.json")]
            plan = c.json("plan", "-f", job.yaml, *layouts, "--from", "tp=2", "--to", "tp=4", "--devices-per-node", "2")
            self.assertEqual(want, plan["totals"]["between_nodes"])
            self.refused(c, "plan", "-f", job.yaml, *layouts, "--from", "tp=2", "--to", "tp=3", contains="no --layout is of this configuration")
            self.refused(c, "plan", "-f", job.yaml, "--layout", job.yaml, "--from", "tp=2", "--to", "tp=4", contains="ridge.yaml")
            self.refused(c, "plan", "-f", job.yaml, "--from", "tp=2", "--to", "tp=4", contains="ptcctl probe -o")
            # what cannot be is refused, and nothing changes
            self.refused(c, *tell, self.other("plain"), "--config", "tp=4", contains='tensor "w" is F64 [37]')
            if os.geteuid() == 0:
                theirs = self.path("theirs")  # where another user may have temporary files
                os.mkdir(theirs)
                os.chmod(theirs, 0o777)
                self.refused(c, *tell, job.yaml, "--config", "tp=4", contains='"ridge"', prefix=OTHER, env={"TMPDIR": theirs})
            self.refused(c, "probe", "nothing", *ROOM, "-f", job.yaml, "--config", "tp=4", contains="nothing")
            self.assertEqual(want, between(c, "tp=4"))
            # ranks declare what was found
            summary = job.resize("tp=4")
            self.assertEqual([], self.events(c, "layout"))
            self.assertEqual(want, summary["received_bytes"])
            said = c.json(*tell, job.yaml, "--config", "tp=4")["daemon"]
            self.assertEqual(("declared", ""), (said["known"], said["differs"]))
            # ranks declare something else
            self.assertIsNotNone(between(c, "tp=3"))
            at = job.resize("tp=3")["step"]
            self.assertIn('holds other parts of tensor "w"', self.events(c, "layout")[0])
            job.wait_step(at + 2)
            said = c.json(*tell, self.other("ridge"), "--config", "tp=3")["daemon"]
            self.assertEqual("declared", said["known"])
            self.assertIn('tensor "w"', said["differs"])
            job.do("snapshot")
            self.assertIsNotNone(between(c, "dp=3"))
            self.assertIsNone(between(c, "dp=2"))
            job.do("stop")
            job.wait_run("stopped")
        steps = 1 + max(line["step"] for line in job.lines())
        job.steps = steps  # as far as it came, it trained as one process does
        self.assertEqual([], differences(job.lines(), job.reference()))

    def test_recovery(self):
        """A node is lost, and the job goes on under a configuration that has only been probed: its ranks go where their bytes lie.
        By the numbers of ranks alone, rank 1 would go to the first free node, which holds the other half."""
        with self.cluster(nodes=4, devices=1, lease_ttl="2s", node_lost_after="2s") as c:
            job = Trainer(c, self.dir, "rebuild", 100000, 5)
            with open(job.yaml) as f:
                spec = json.load(f)
            with open(job.yaml, "w") as f:
                json.dump({**spec, "snapshot_every": 10, "gpus": {"2": "tp=2", "4": "tp=2,dp=2"}, "elastic": {"min_gpus": 2}}, f)
            job.run("tp=2,dp=2")
            c.ptcctl("probe", "ridge", *ROOM, "-f", job.yaml, "--config", "tp=2")
            harness.wait_for(lambda: job.status()["snapshot"] or None, 60 * harness.PATIENCE, "a snapshot", 0.05)
            before = job.status()
            at = {r["rank"]: r["node"] for r in before["run"]["ranks"]}
            first = min(at[2], at[3])
            lost, wanted = (at[1], at[3]) if first == at[2] else (at[0], at[2])
            c.power_off(lost)

            def there():
                s = job.status()
                return s if s["phase"] == "idle" and s["run"]["state"] == "live" and s["config"] == "tp=2" else None
            after = harness.wait_for(there, 120 * harness.PATIENCE, "a job that goes on", 0.05)
            kept = 0 if lost == at[1] else 1
            now = {r["rank"]: r["node"] for r in after["run"]["ranks"]}
            self.assertEqual({kept: at[kept], 1 - kept: wanted}, now)
            self.assertEqual([], self.events(c, "layout"))
            job.wait_step(after["step"] + 2)
            job.do("stop")
            job.wait_run("stopped")

    @harness.labels("repeats")
    @unittest.skipUnless(LONG, "daemons killed as they remember a layout: PTC_TEST_LONG")
    def test_killed(self):
        """A daemon dies before it has named a layout in etcd, and after: the layout is known or it is not, to probe again is enough,
        and the job trains on."""
        with self.cluster(nodes=2, devices=2, up=False, lease_ttl="2s") as c:
            def arm(rule):
                for name in c.nodes:
                    harness.replace_file(self.path(f"fault-{name}"), rule)

            def start(*names):
                for name in names:
                    c.start_node(c.nodes[name], {"PTC_FAULT_FILE": self.path(f"fault-{name}")})
                c.wait_nodes(list(c.nodes), 60 * harness.PATIENCE)
            arm("")
            start(*c.nodes)
            job = Trainer(c, self.dir, "rebuild", 100000, 5)
            job.run("tp=2")
            job.wait_step(1)
            for point, config in (("etcd.probed.before", "tp=3"), ("etcd.probed.after", "tp=4")):
                tell = ("probe", "ridge", *ROOM, "-f", job.yaml, "--config", config)
                self.assertIsNone(between(c, config))
                arm(point)
                self.assertNotEqual(0, c.ptcctl(*tell, check=False).returncode)
                dead = harness.wait_for(lambda: [n for n in c.nodes if not c.nodes[n].pid()] or None, 30 * harness.PATIENCE, "a kill", 0.05)
                arm("")
                start(*dead)
                known = harness.wait_for(lambda: c.ptcctl("plan", "ridge", "--config", config, "--format", "json", check=False).stdout or None,
                                         60 * harness.PATIENCE, "a plan", 0.1)
                self.assertEqual(point.endswith("after"), json.loads(known)["totals"] is not None, point)
                harness.wait_for(lambda: c.ptcctl(*tell, check=False).returncode == 0, 60 * harness.PATIENCE, "another probe", 0.2) # noqa: B023
                self.assertIsNotNone(between(c, config))
                job.wait_step(job.status()["step"] + 2)
            harness.wait_for(lambda: job.do("stop", check=False).returncode == 0, 60 * harness.PATIENCE, "the stop", 0.2)
            job.steps = job.wait_run("stopped")["step"]
            self.assertEqual([], differences(job.lines(), job.reference()))

    @unittest.skipUnless(LONG, "dozens of probes: PTC_TEST_LONG")
    def test_limit(self):
        """So many are remembered; the oldest goes first."""
        with self.cluster(nodes=1, devices=1) as c:
            job = Trainer(c, self.dir, "rebuild", 100000, 5)
            job.run("tp=1")
            configs = [f"dp={n}" for n in range(2, 36)]
            for config in configs:
                c.ptcctl("probe", "ridge", *ROOM, "-f", self.other("ridge"), "--config", config)
            uuid = c.json("status", "ridge")["jobs"][0]["uuid"]
            kept = json.loads(c.etcdctl("get", "--print-value-only", f"/ptc/jobs/{uuid}/probed").stdout)["layouts"]
            self.assertEqual(configs[-32:], [config for config, _ in kept])
            job.do("stop")
            job.wait_run("stopped")


def command_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


class Programs(harness.Case):
    """Of programs that have never heard of PyTorch."""

    def job(self, kind, mode="rebuild", **run):
        path = self.path(f"{kind}-{mode}.yaml")
        env = {"PYTHONPATH": os.path.join(harness.ROOT, "client", "python"), "PYTHONDONTWRITEBYTECODE": "1",
               "PTC_LIBRARY": harness.binary("client/lib/libptc.so.1"), **harness.sanitizer_env()}
        argv = [sys.executable, "-B", os.path.join(harness.ROOT, "tests", "probe_rank.py"), kind]
        with open(path, "w") as f:
            json.dump({"version": 1, "name": "probe", "mode": mode, "run": {"argv": argv, "env": env, **run}}, f)
        return path

    def found(self, kind, config, *options, mode="rebuild"):
        out = self.path("layout.json")
        r = probe(self.job(kind, mode), config, "-o", out, "--format", "json", *options)
        self.assertEqual((0, ""), (r.returncode, r.stderr), r.stderr)
        with open(out, "rb") as f:
            return f.read(), json.loads(r.stdout)

    def fails(self, path, *contains, config="tp=2", options=(), lines=()):
        """One line says what is wrong, after the last lines that the program wrote."""
        r = probe(path, config, "-o", self.path("none.json"), *options)
        shown = f"{path}: exit {r.returncode}\n{r.stdout}\n{r.stderr}"
        self.assertEqual(1, r.returncode, shown)
        *above, last = r.stderr.rstrip("\n").split("\n")
        self.assertTrue(last.startswith("ptcctl probe: "), shown)
        for text in contains:
            self.assertIn(text, last, shown)
        for line in above:
            self.assertTrue(line.startswith("  | "), shown)
        for text in lines:
            self.assertIn(text, "\n".join(above), shown)
        self.assertEqual(("", False), (r.stdout, os.path.exists(self.path("none.json"))), shown)

    def private_tmp(self):
        os.mkdir(self.path("tmp"))
        was = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = self.path("tmp")
        self.addCleanup(lambda: os.environ.update(TMPDIR=was) if was else os.environ.pop("TMPDIR"))

    def left(self):
        return [name for name in os.listdir(self.path("tmp")) if name.startswith("ptc-probe-")]

    def test_ranks(self):
        """One process is one rank after the other, or only one; all give the same. In a large world replicas are not built, and
        ranks that are none are."""
        one = self.found("plain", "tp=2,dp=3")
        self.assertEqual(one, self.found("once", "tp=2,dp=3"))
        self.assertEqual(one, self.found("plain", "tp=2,dp=3", "--programs", "3", mode="restart"))
        self.assertEqual((6, 6, 48 * 5 * 4 + 8, 24 * 5 * 4 + 8),
                         tuple(one[1][k] for k in ("world", "built", "state_bytes", "rank_bytes_most")))
        document, said = self.found("plain", "tp=2,dp=300")
        self.assertEqual((600, 6), (said["world"], said["built"]))
        again, said = self.found("plain", "tp=2,dp=300", "--all")
        self.assertEqual((600, document), (said["built"], again))
        document, said = self.found("zero", "tp=2,dp=40")
        self.assertEqual(80, said["built"])
        self.assertEqual(2 * (24 + 1), len(json.loads(document)["classes"]))  # 24 rows on 40 ranks

    def test_refused(self):
        """What cannot be probed is said in one line, and nothing is left behind."""
        self.private_tmp()
        before = "before it declared its tensors"
        self.fails(self.job("exits"), "rank 0 (tp 0, pp 0, dp 0, cp 0)", "ended with status 3", before, lines=["there is no corpus here"])
        self.fails(self.job("killed"), "ended by signal 15", before)
        if not harness.SANITIZED:
            self.fails(self.job("memory"), "ended with status 1", before, options=["--memory", "300MiB"], lines=["MemoryError"])
        self.fails(self.job("hangs"), "within 1 s", "has not opened ptc", options=["--limit", "1s"], lines=["waiting for the corpus"])
        self.fails(self.job("floods"), "within 1 s", options=["--limit", "1s"], lines=["corpus corpus"])
        self.fails(self.job("junk"), "the program sends bytes that are no message of libptc")
        self.fails(self.job("asks"), 'the key "theirs"', "no other ranks", "PTC_PROBE")
        self.fails(self.job("twice"), before, lines=["declared twice"])
        self.fails(self.job("dtype"), 'tensor "w"', "F64", "F32")
        self.fails(self.job("hole"), 'tensor "w"')
        self.fails(self.job("plain", argv=["/nowhere/train"]), "/nowhere/train")
        # what has left the program's session, and a child of it, end with the probe
        stray = str(10**6 + self.random.randrange(10**6))
        script = f"setsid sh -c 'setsid sleep {stray}.1 & sleep {stray}.2 & echo both; sleep {stray}.3' & read -r x <$0; exit 3"
        self.fails(self.job("plain", argv=["/bin/sh", "-c", f"mkfifo {self.path('both')}; {script.replace('echo both', 'echo both >' + self.path('both'))}",
                                           self.path("both")]), "ended with status 3", before)
        self.assertEqual([], [pid for pid in os.listdir("/proc") if pid.isdigit() and stray in command_of(pid)])
        self.fails(self.job("plain", cwd="/nowhere"), "/nowhere")
        self.assertEqual([], self.left())
        self.assertEqual(2, probe(self.job("plain"), "tp=0").returncode)
        self.assertEqual(2, probe(self.job("plain"), "tp=2", "--memory", "8").returncode)
        with open(self.path("rules.yaml"), "w") as f:
            json.dump({"version": 1, "name": "x", "tensors": [{"name": "w", "dtype": "F32", "shape": [4]}], "rules": [{"match": "*"}]}, f)
        self.fails(self.path("rules.yaml"), "no program to probe")

    def test_interrupted(self):
        """Whoever leaves it leaves no process behind, also by kill -9, and no file unless by kill -9."""
        self.private_tmp()
        for sig in (signal.SIGINT, signal.SIGKILL):
            argv = [harness.program("ptcctl"), "probe", *ROOM, "-f", self.job("hangs", env={
                "PYTHONPATH": os.path.join(harness.ROOT, "client", "python"), "MARK": self.dir}), "--config", "tp=2", "--show"]
            with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
                self.assertEqual("waiting for the corpus\n", p.stderr.readline())
                self.assertNotEqual([], self.running())
                p.send_signal(sig)
                p.wait(60 * PATIENCE)
            if sig == signal.SIGINT:
                self.assertEqual([], self.left())
            wait_for(lambda: not self.running(), 60 * PATIENCE, "the program's end", 0.05)

    def running(self):
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    if f"MARK={self.dir}".encode() in f.read().split(b"\0"):
                        found.append(pid)
            except OSError:
                pass
        return found

    def test_c_trainer(self):
        """A program in C; a process for each rank."""
        with self.cluster(nodes=1, devices=3) as c:
            job = Trainer(c, self.dir, "restart", 100000, 5)
            for config in ("tp=3", "dp=2"):
                out = self.path(f"{config}.json")
                r = probe(job.yaml, config, "-o", out)
                self.assertEqual((0, ""), (r.returncode, r.stderr), r.stderr)
                if config == "tp=3":
                    job.run(config)
                else:
                    job.resize(config)
                job.wait_step(1)
                with open(out, "rb") as f:
                    self.assertEqual(declared(c, "ridge", config), f.read())
            job.do("stop")
            job.wait_run("stopped")


if __name__ == "__main__":
    unittest.main()
