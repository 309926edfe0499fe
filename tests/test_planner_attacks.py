# SPDX-License-Identifier: Apache-2.0
"""`ptcctl profile` and `ptcctl resize --gpus` while things die, hang or happen twice, and with numbers that cannot be."""
import json
import os
import signal
import subprocess
import time

import harness
from harness import PATIENCE, wait_for
from test_ctrainer import differences
from test_planning import BATCH, MODEL, SPACE, Planned

GOOD = "devices_per_node: 2\ndevices: [{name: H100-80GB, nodes: 2}]\nlinks: {intra_bytes_s: 4e11, node_bytes_s: 5e10}\n"


class Attacks(harness.Case):
    def show(self, c, node="n0"):
        return c.json("profile", "--show", node=node)

    def pairs(self, c):
        return {(p["from"], p["to"]): p for p in self.show(c)["pairs"]}

    def measure(self, c, node="n0"):
        return c.json("profile", node=node, timeout_s=120 * PATIENCE)

    def begin(self, c, *args, node="n0"):
        """ptcctl in the background."""
        p = subprocess.Popen([harness.binary("client/ptcctl"), *args], env=c.environment({"PTC_SOCKET": c.nodes[node].socket}),
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(p.stdout.close)
        self.addCleanup(p.stderr.close)
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        return p

    def locked(self, c):
        return c.etcdctl("get", "--print-value-only", "/ptc/profiling").stdout.strip()

    def wait_locked(self, c, node):
        wait_for(lambda: self.locked(c) == node, 20 * PATIENCE, f"{node} to measure", 0.01)

    def test_two_measure(self):
        """One node measures at a time; a profile that is put in meanwhile stays, and so do the links."""
        with self.cluster(nodes=3, devices=2) as c:
            path = self.path("profile.yaml")
            with open(path, "w", encoding="utf-8") as f:
                f.write(GOOD)
            first = self.begin(c, "profile", "--format", "json", node="n1")
            self.wait_locked(c, "n1")
            self.refused(c, "profile", node="n0", contains="node n1 is measuring links; try again later")
            self.refused(c, "profile", node="n1", contains="is measuring links; try again later")
            c.ptcctl("profile", "-f", path)
            out, err = first.communicate(timeout=120 * PATIENCE)
            self.assertEqual(0, first.returncode, err)
            self.assertEqual([], json.loads(out)["failed"])
            self.assertEqual("", self.locked(c))
            now = self.show(c)
            self.assertEqual((GOOD, 6), (now["profile"], len(now["pairs"])))
            self.assertEqual(6, len(self.measure(c)["pairs"]))

    @harness.labels("repeats")
    def test_node_that_hangs(self):
        """A node that answers nobody, and one that is down, keep the links that they had; the others are measured, in a bounded time."""
        with self.cluster(nodes=3, devices=2, lease_ttl="60s") as c:
            self.measure(c)
            was = self.pairs(c)
            self.assertEqual(6, len(was))
            c.nodes["n2"].signal(signal.SIGSTOP)
            try:
                began = time.monotonic()
                said = self.measure(c)
                self.assertLess(time.monotonic() - began, 30 * PATIENCE) # two rounds with it, of 5 s
                text = c.ptcctl("profile", "--show").stdout
            finally:
                c.nodes["n2"].signal(signal.SIGCONT)
            of = {pair for pair in was if "n2" in pair}
            self.assertEqual(of, {(p["from"], p["to"]) for p in said["failed"]})
            now = self.pairs(c)
            for pair, p in was.items():
                self.assertEqual(pair in of, now[pair] == p, pair)
                self.assertEqual(p["measured_ms"] if pair in of else said["measured_ms"], now[pair]["measured_ms"])
            self.assertEqual(4, text.count("(measured before)"), text)
            c.nodes["n2"].kill()
            wait_for(lambda: [n["state"] for n in c.json("nodes")["nodes"] if n["node"] == "n2"] == ["down"], 120 * PATIENCE, "n2 down")
            self.assertEqual([], self.measure(c)["failed"])
            self.assertEqual({pair: was[pair] for pair in of}, {pair: p for pair, p in self.pairs(c).items() if pair in of})

    @harness.labels("repeats")
    def test_killed_while_measuring(self):
        """Who has asked is killed, then the daemon that measures: what was known stays, and others can measure."""
        with self.cluster(nodes=3, devices=2, lease_ttl="3s") as c:
            self.measure(c)
            was = self.show(c)
            asked = self.begin(c, "profile", node="n1")
            self.wait_locked(c, "n1")
            asked.kill()
            wait_for(lambda: not self.locked(c), 60 * PATIENCE, "the measurement to end", 0.05)
            self.assertEqual(was, self.show(c), "nobody waits for a measurement, and it went on")
            again = self.begin(c, "profile", node="n1")
            self.wait_locked(c, "n1")
            before = self.show(c)
            self.assertEqual((set(self.pairs(c)), None), ({(p["from"], p["to"]) for p in was["pairs"]}, was["profile"]))
            c.nodes["n1"].kill()
            self.assertEqual(1, again.wait(60 * PATIENCE))
            self.assertEqual(before, self.show(c))
            wait_for(lambda: c.ptcctl("profile", check=False, timeout_s=120 * PATIENCE).returncode == 0, 60 * PATIENCE, "n0 to measure", 0.2)
            self.assertEqual(6, len(self.pairs(c)), "n1 is down, and known")
            c.restart("n1")
            self.assertEqual([], self.measure(c, "n1")["failed"])

    def test_frozen_coordinator(self):
        """While etcd hangs a measurement fails with one line within a bound, what is known is shown, and plans are made of that."""
        with self.cluster(nodes=2, devices=2) as c:
            job = Planned(c, self.dir)
            job.run(f"tp=2,{BATCH}")
            job.wait_step(5)
            self.measure(c)
            was = self.show(c)
            etcd = next(pid for pid in c.processes() if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "etcd")
            os.kill(etcd, signal.SIGSTOP)
            try:
                began = time.monotonic()
                for args in (("profile",), ("resize", job.name, "--gpus", "4", "--wait")):
                    self.refused(c, *args, timeout_s=120 * PATIENCE)
                self.assertLess(time.monotonic() - began, 60 * PATIENCE)
                self.assertEqual(was, self.show(c))
            finally:
                os.kill(etcd, signal.SIGCONT)
            wait_for(lambda: c.ptcctl("profile", check=False, timeout_s=120 * PATIENCE).returncode == 0, 60 * PATIENCE, "a measurement", 0.2)
            wait_for(lambda: job.status()["phase"] == "idle", 60 * PATIENCE, "the job to be idle")
            job.wait_step(job.step() + 5)
            job.do("stop")
            job.steps = job.wait_run("stopped")["step"]
            self.assertEqual([], differences(job.lines(), job.reference()))

    @harness.labels("repeats")
    def test_resizes_are_killed(self):
        """ptcctl and then the controller are killed in the middle of a planned resize, and two are asked for at once: the job is in one
        generation, of the old configuration or the planned one, and loses no step's worth of training."""
        with self.cluster(nodes=3, devices=2, lease_ttl="3s") as c:
            job = Planned(c, self.dir)
            job.run(f"tp=2,{BATCH}")
            job.wait_step(5)
            asked = self.begin(c, "resize", job.name, "--gpus", "4", "--wait")
            wait_for(lambda: job.status()["phase"] != "idle" or asked.poll() is not None, 60 * PATIENCE, "a switch", 0.005)
            asked.kill()
            job.wait_idle()
            job.wait_step(job.step() + 5)
            one = job.status()["generation"]
            both = [self.begin(c, "resize", job.name, "--gpus", "6", "--wait", node=n) for n in ("n0", "n1")]
            codes = [p.wait(120 * PATIENCE) for p in both]
            self.assertIn(0, codes, [p.stderr.read() for p in both])
            job.wait_idle()
            self.assertEqual(one + 1, job.status()["generation"])
            job.wait_step(job.step() + 5)
            name = job.status()["controller"]
            asked = self.begin(c, "resize", job.name, "--gpus", "2", "--wait", node="n0")
            wait_for(lambda: job.status()["phase"] != "idle" or asked.poll() is not None, 60 * PATIENCE, "a switch", 0.005)
            c.nodes[name].kill()
            asked.wait(120 * PATIENCE)
            c.restart(name)
            job.wait_idle()
            self.assertIn(job.status()["generation"], (one + 1, one + 2))
            wait_for(lambda: job.status()["run"]["state"] == "live", 120 * PATIENCE, "ranks that train", 0.1)
            job.wait_step(job.step() + 5)
            job.do("stop")
            job.steps = job.wait_run("stopped")["step"]
            self.assertEqual([], differences(job.lines(), job.reference()))

    def test_numbers_that_cannot_be(self):
        """One clear line for each, and nothing is changed."""
        with self.cluster(nodes=2, devices=2) as c:
            job = Planned(c, self.dir)
            job.run(f"tp=2,{BATCH}")
            was = job.status()["generation"]
            for n in ("0", "-1", "-4294967295", "4294967297", "99999999999999999999", "1e3", "nan", "0x4", " 4", "4 ", "four", ""):
                for verb in ("resize", "advise", "run"):
                    self.refused(c, verb, job.name, "--gpus", n, codes=(2,), contains="--gpus")
            for n in ("5", "65536"):
                for verb in ("resize", "advise"):
                    self.refused(c, verb, job.name, "--gpus", n, contains=f"{n} devices are asked for, 4 are known")
            path = self.path("profile.yaml")
            cases = [GOOD.replace("5e10", bad) for bad in ("-5e10", "0", ".nan", "nan", ".inf", "-.inf", "1e999", "fast", "[]", "")]
            cases += [GOOD.replace(", node_bytes_s: 5e10", ""), GOOD.replace("links: {intra_bytes_s: 4e11, node_bytes_s: 5e10}\n", "")]
            cases += [GOOD.replace("nodes: 2", f"nodes: {bad}") for bad in ("-2", "0", "1e99", "2.5")]
            cases += [GOOD.replace("devices_per_node: 2", f"devices_per_node: {bad}") for bad in ("0", "-2", "1e12")]
            cases += [GOOD + f"groups: [{{size: {s}, stride: {k}, bytes_s: {b}}}]\n" for s, k, b in ((0, 1, 1e9), (2, -1, 1e9), (2, 1, "-1e9"))]
            cases += [GOOD + f"hops: [{{size: {s}, stride: {k}, bytes_s: {b}}}]\n" for s, k, b in ((1, 1, 1e9), (2, 0, 1e9), (2, 1, 0))]
            cases += [GOOD + f"overlap: {o}\n" for o in ("0", "0.5", "-1", ".nan", "1e9", "[]")]
            cases += [GOOD + f"measured: [{{config: \"tp=2\", step_s: {s}}}]\n" for s in ("0", "-1", ".nan")]
            cases += ["", "\n", "- 1\n", "\t", "a: b: c", "x" * (300 << 10), GOOD + "\0more", "[" * 5000]
            for text in cases:
                with open(path, "w", encoding="utf-8") as f:
                    f.write(text)
                self.refused(c, "profile", "-f", path, codes=(1, 2))
            self.refused(c, "profile", "-f", self.path("nothing"), contains="nothing")
            self.assertIsNone(self.show(c)["profile"])
            for key, bads in (("layers", (0, -1, 1 << 40, 2.5, "many")), ("hidden", (0, -64, 1 << 40)), ("heads", (0, 7, 1 << 33)),
                              ("seq", (0, -1)), ("kv_heads", (5, 0)), ("vocab", (-1, 1 << 50))):
                for bad in bads:
                    self.refused(c, "job", "create", "-f", self.described({**MODEL, key: bad}, SPACE), codes=(1, 2), contains=key)
            for key, bads in (("global_batch", (0, -1, 1 << 40)), ("tp", ([0], [-1], [], [1 << 40], ["two"])), ("recompute", (["all"], [])),
                              ("zero", ([4], [-1])), ("micro_batch", ([0],))):
                for bad in bads:
                    self.refused(c, "job", "create", "-f", self.described(MODEL, {**SPACE, key: bad}), codes=(1, 2), contains=key)
            self.assertEqual([job.name], [j["job"] for j in c.json("status")["jobs"]])
            self.assertEqual(was, job.status()["generation"])
            job.do("stop")

    def described(self, model, space):
        path = self.path("bad.yaml")
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"version": 1, "name": "bad", "run": {"argv": ["true"]}, "model": model, "space": space}, f)
        return path


if __name__ == "__main__":
    harness.unittest.main()
