# SPDX-License-Identifier: Apache-2.0
"""The planner in the daemon: which configuration a number of devices becomes, who else has a say, and what is said of it."""
import json
import os
import socket
import subprocess
import threading
import time
import unittest
from xml.etree import ElementTree

import harness
import live
import numpy as np
import order_oracle
import state
from test_ctrainer import Trainer, differences

MODEL = {"layers": 1, "hidden": 6144, "heads": 48, "vocab": 51200, "seq": 2048}
SPACE = {"global_batch": 24, "tp": [1, 2, 3, 6], "pp": [1], "micro_batch": [4]}
BATCH = "global_batch=24,micro_batch=4"


class Planned(Trainer):
    """The C trainer with a description of a model, whatever it trains in truth."""

    def __init__(self, c, directory, mode="restart", sleep_ms=2, work_ms=0, **keys):
        super().__init__(c, directory, mode, 1 << 40, sleep_ms)
        with open(self.yaml, encoding="utf-8") as f:
            spec = json.load(f)
        spec["run"]["argv"] += ["--work-ms", str(work_ms)]
        spec.update({key: value for key, value in {"model": MODEL, "space": SPACE, **keys}.items() if value is not None})
        with open(self.yaml, "w", encoding="utf-8") as f:
            json.dump(spec, f)

        self.name = keys.get("name", self.name)

    def wait_idle(self):
        harness.wait_for(lambda: self.status()["phase"] == "idle", 60 * harness.PATIENCE, "the job to be idle")

    def create(self):
        return self.c.ptcctl("job", "create", "-f", self.yaml)

    def reference(self, **options):
        return super().reference(**{"micro-batch": 4, **options})

    def plan(self, *args):
        return self.c.json("resize", self.name, "--dry-run", *args)

    def go(self, *args):
        return json.loads(self.c.ptcctl("resize", self.name, *args, "--wait", "--format", "json",
                                        timeout_s=120 * harness.PATIENCE).stdout)


class SlowDoor:
    """Stands in front of a daemon's peer socket, and lets bytes that come from it through at a rate, of all connections together."""

    def __init__(self, address, behind, bytes_s):
        self.behind, self.bytes_s, self.next, self.lock = behind, bytes_s, 0.0, threading.Lock()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(address)
        self.listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                outer = self.listener.accept()[0]
            except OSError:
                return
            inner = socket.socket(socket.AF_UNIX)
            try:
                inner.connect(self.behind)
            except OSError:
                outer.close()
                continue
            threading.Thread(target=self.carry, args=(outer, inner, False), daemon=True).start()
            threading.Thread(target=self.carry, args=(inner, outer, True), daemon=True).start()

    def carry(self, source, sink, slowly):
        try:
            while data := source.recv(1 << 16):
                if slowly and self.bytes_s:
                    with self.lock:
                        now = time.monotonic()
                        self.next = max(self.next, now) + len(data) / self.bytes_s
                        wait = self.next - now
                    time.sleep(wait)
                sink.sendall(data)
        except OSError:
            pass
        for s in (source, sink):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()


def degrees(config):
    out = {"tp": 1, "dp": 1, "pp": 1}
    out.update((key, int(value)) for key, value in (pair.split("=") for pair in config.split(",")) if value.isdigit())
    return out


class Planning(harness.Case):
    def test_resize_without_a_table(self):
        """The planner chooses, says why, and the job trains on with every byte that it had."""
        with self.cluster(nodes=2, devices=4) as c:
            job = Planned(c, self.dir)
            job.run(f"tp=2,dp=2,{BATCH}")
            job.wait_step(20)
            plan = job.plan("--gpus", "6")
            choice = plan["choice"]
            self.assertEqual("planner", choice["by"])
            self.assertFalse(choice["profiled"])
            self.assertEqual(plan["to"], choice["config"])
            of = degrees(choice["config"])
            self.assertIn(of["tp"], SPACE["tp"])
            self.assertEqual((1, 4, 24), (of["pp"], of["micro_batch"], of["global_batch"]))
            self.assertLessEqual(of["tp"] * of["dp"], 6)
            self.assertGreater(choice["step_s"], 0)
            self.assertGreater(choice["pause_s"], 0)
            self.assertIn("step times are uncalibrated", choice["why"])
            self.assertIn("their memory is not compared", choice["why"])
            self.assertFalse(choice["moved_exact"], "ranks never had this configuration")
            self.assertLessEqual(choice["moved_bytes_least"], choice["moved_bytes"])
            text = c.ptcctl("resize", job.name, "--gpus", "6", "--dry-run").stdout
            self.assertIn(choice["why"], text)
            self.assertIn("uncalibrated", text)
            done = job.go("--gpus", "6")
            self.assertEqual(choice["config"], done["to"])
            self.assertEqual("planner", done["plan"]["choice"]["by"])
            self.assertLessEqual(done["received_bytes"], choice["moved_bytes"])
            self.assertGreaterEqual(done["received_bytes"], choice["moved_bytes_least"])
            job.wait_step(done["step"] + 20)
            back = job.plan("--gpus", "4")["choice"]
            self.assertEqual("planner", back["by"])
            job.do("stop")
            job.steps = job.wait_run("stopped")["step"]
            self.assertEqual([], differences(job.lines(), job.reference()))

    def test_who_has_a_say(self):
        with self.cluster(nodes=2, devices=4) as c:
            job = Planned(c, self.dir, gpus={"6": f"tp=6,{BATCH}"})
            job.run(f"tp=2,dp=2,{BATCH}")
            job.wait_step(5)
            self.assertEqual("table", job.plan("--gpus", "6")["choice"]["by"])
            self.assertEqual(6, degrees(job.plan("--gpus", "6")["to"])["tp"])
            self.assertEqual("planner", job.plan("--gpus", "8")["choice"]["by"])
            given = job.plan("--config", f"tp=1,dp=5,{BATCH}")
            self.assertNotIn("choice", given)
            self.assertEqual(5, degrees(given["to"])["dp"])
            line = self.refused(c, "resize", job.name, "--gpus", "9")
            self.assertIn("9 devices are asked for, 8 are known", line)
            # What runs is as good as anything that four devices can have: nothing is stopped for that.
            best = job.go("--gpus", "8")
            line = self.refused(c, "resize", job.name, "--gpus", "8")
            self.assertIn("stays as it is", line)
            self.assertEqual(best["to"], job.plan("--gpus", "8")["to"])
            self.assertEqual(best["generation"], job.status()["generation"])

    def test_without_a_model(self):
        """As ever: tp and pp are kept, dp is scaled."""
        with self.cluster(nodes=2, devices=4) as c:
            job = Planned(c, self.dir, model=None, space=None)
            job.run(f"tp=2,dp=2,{BATCH}")
            plan = job.plan("--gpus", "6")
            self.assertEqual({"by": "scaling of dp"}, plan["choice"])
            self.assertEqual((2, 3), (degrees(plan["to"])["tp"], degrees(plan["to"])["dp"]))

    def test_without_a_space(self):
        """Degrees that the job is known to take, and dp."""
        with self.cluster(nodes=2, devices=4) as c:
            job = Planned(c, self.dir, space=None, gpus={"3": f"tp=3,{BATCH}"})
            job.run(f"tp=2,dp=2,{BATCH}")
            choice = job.plan("--gpus", "6")["choice"]
            self.assertEqual("planner", choice["by"])
            self.assertIn(degrees(choice["config"])["tp"], (2, 3))

    def test_first_run(self):
        """Nothing has run and nothing is held: the planner says where to begin; stopped, and run again with more."""
        with self.cluster(nodes=2, devices=4) as c:
            job = Planned(c, self.dir)
            c.ptcctl("run", "-f", job.yaml, "--gpus", "4", "--wait", timeout_s=120 * harness.PATIENCE)
            first = job.status()["run"]
            self.assertLessEqual(len(first["ranks"]), 4)
            job.wait_step(10)
            job.do("stop")
            c.ptcctl("run", job.name, "--gpus", "6", "--wait", timeout_s=120 * harness.PATIENCE)
            self.assertLessEqual(len(job.status()["run"]["ranks"]), 6)
            job.wait_step(20)
            job.do("stop")
            job.steps = job.wait_run("stopped")["step"]
            self.assertEqual([], differences(job.lines(), job.reference()))

    def test_state_only_job(self):
        """What a switch moves is known exactly, and what is predicted then moves."""
        rules = [{"match": "*.qkv", "split": {"axis": "tp", "dim": 0}}, {"match": "*.out", "split": {"axis": "tp", "dim": 1}},
                 {"match": "*"}]
        held, rng = state.State(), np.random.default_rng(self.seed)
        for l in range(4):
            for name, shape in ((f"h.{l}.qkv", [96, 32]), (f"h.{l}.out", [32, 96]), (f"h.{l}.norm", [32])):
                held.add(rng, name, "F32", shape)
        with self.cluster(nodes=3, devices=2) as c:
            job = harness.Job(c, "gpt", held, self.path("gpt"), rules)
            with open(job.yaml, encoding="utf-8") as f:
                spec = json.load(f)
            with open(job.yaml, "w", encoding="utf-8") as f:
                json.dump({**spec, "model": {**MODEL, "layers": 4}, "space": SPACE}, f)
            job.imported(f"tp=2,{BATCH}")
            choice = c.json("resize", "gpt", "--gpus", "6", "--dry-run")["choice"]
            self.assertTrue(choice["moved_exact"])
            done = json.loads(c.ptcctl("resize", "gpt", "--gpus", "6", "--wait", "--format", "json").stdout)
            self.assertEqual(choice["config"], done["to"])
            self.assertEqual(choice["moved_bytes"], done["received_bytes"])
            self.assertGreater(done["received_bytes"], 0)
            job.check_whole(self)

    def test_advise(self):
        with self.cluster(nodes=2, devices=4) as c:
            job = Planned(c, self.dir)
            job.run(f"tp=2,dp=2,{BATCH}")
            job.wait_step(5)
            said = c.json("advise", job.name, "--gpus", "8")
            rows = said["candidates"]
            self.assertEqual((job.name, False, False, 600), (said["job"], said["calibrated"], said["profiled"], said["horizon_s"]))
            self.assertEqual(rows[0]["config"], job.plan("--gpus", "8")["to"])
            for row in rows:
                self.assertLessEqual(row["devices"], 8)
                self.assertAlmostEqual(row["step_s"], sum(row["parts_s"].values()), delta=1e-9)
                self.assertAlmostEqual(24 / row["step_s"], row["samples_s"], delta=1e-6)
            # Each row's worth by the formula, not by ours.
            worth = [(600 - (0 if r["runs_now"] else r["pause_s"])) / r["step_s"] for r in rows]
            self.assertEqual(sorted(worth, reverse=True), worth)
            table = c.ptcctl("advise", job.name, "--gpus", "8").stdout
            self.assertTrue(table.startswith("uncalibrated"), table)
            self.assertEqual([r["config"] for r in rows],
                             [line.split()[0] for line in table.splitlines() if "global_batch=24 " in line])
            self.assertTrue(table.rstrip().endswith(said["why"]), table)
            # A horizon that no pause pays back in: what runs stays.
            soon = c.json("advise", job.name, "--gpus", "8", "--horizon", "11s")
            self.assertTrue(soon["candidates"][0]["runs_now"], soon["why"])
            counts = c.json("advise", job.name, "--gpus", "1-8")["counts"]
            self.assertEqual(list(range(1, 9)), [row["gpus"] for row in counts])
            steps = [row["step_s"] for row in counts]
            self.assertEqual(sorted(steps, reverse=True), steps)
            for args in (("8",), ("1-8",)):
                picture = ElementTree.fromstring(c.ptcctl("advise", job.name, "--gpus", *args, "--format", "svg").stdout)
                self.assertIn(rows[0]["config"], " ".join(picture.itertext()))
            self.refused(c, "advise", job.name, "--gpus", "0", codes=(2,), contains='--gpus is a number in 1..')
            self.refused(c, "advise", job.name, "--gpus", "5-3", codes=(2,), contains="the range is empty")
            self.refused(c, "advise", job.name, "--gpus", "9", contains="9 devices are asked for, 8 are known")
            self.refused(c, "advise", job.name, "--gpus", "8", "--objective", "joy", contains='not "joy"')
            self.refused(c, "advise", job.name, "--gpus", "8", "--pause", "3s", codes=(2,), contains="--pause needs -f FILE")
            os.makedirs(self.path("plain"))
            plain = Planned(c, self.path("plain"), model=None, name="plain")
            plain.create()
            self.refused(c, "advise", "plain", "--gpus", "8", contains="has no model:")

    def measured(self, job, config):
        """Waits until a configuration has been measured; its step time."""
        def row():
            rows = self.c_json(job, "--gpus", "1")["measured"]
            return next((r["step_s"] for r in rows if r["config"].startswith(config)), None)
        return harness.wait_for(row, 60 * harness.PATIENCE, f"steps of {config} measured", 0.2)

    @staticmethod
    def work(config):
        """In units of one micro-batch on one device: of 24 samples in all, in micro-batches of 7."""
        degree = dict(part.split("=") for part in config.split(",") if "=" in part)
        samples = 24 // int(degree.get("dp", 1))
        return -(-samples // 7) / int(degree.get("tp", 1))

    @staticmethod
    def c_json(job, *args):
        return job.c.json("advise", job.name, *args)

    @harness.labels("repeats")
    @unittest.skipUnless(harness.LONG, "compares steps in seconds, which needs a machine that is not busy (PTC_TEST_LONG=1)")
    def test_measured_steps(self):
        """Steps of what has run calibrate; the choice for six devices is the best of all that six devices can have, measured;
        after each switch what was predicted stands beside what came. The trainer's time is that of a program whose tensor
        parallel ranks share the work of a micro-batch."""
        batch = "micro_batch=7,global_batch=24"
        with self.cluster(nodes=2, devices=4) as c:
            job = Planned(c, self.dir, sleep_ms=0, work_ms=90, space={**SPACE, "micro_batch": [7]},
                          model={"layers": 1, "hidden": 3072, "heads": 48, "seq": 8192})  # computes much, has few gradients
            job.run(f"dp=2,{batch}")
            first = self.measured(job, "dp=2,")
            self.assertAlmostEqual(0.18, first, delta=0.18 * 0.3 * harness.SLOWED)
            job.go("--config", f"tp=2,dp=2,{batch}")
            second = self.measured(job, "tp=2,dp=2,")
            self.assertLess(second, first)
            said = self.c_json(job, "--gpus", "6")
            self.assertEqual((True, 2), (said["calibrated"], said["measured_steps"]))
            self.assertNotIn("uncalibrated", said["why"])
            now = [r for r in self.c_json(job, "--gpus", "4")["candidates"] if r["runs_now"]][0]
            self.assertAlmostEqual(second, now["step_s"], delta=0.1 * second)
            self.assertLess(now["error"], 0.2)
            chosen = job.go("--gpus", "6")["to"]
            steps = {chosen: self.measured(job, chosen)}
            for config in ("tp=6", "tp=3,dp=2", "tp=2,dp=3", "dp=6"):
                if not chosen.startswith(config):
                    job.go("--config", f"{config},{batch}")
                    steps[config] = self.measured(job, config + ",")
            print(f"chosen {chosen}: {steps}", flush=True)
            self.assertGreater(max(steps.values()), 1.2 * min(steps.values()), "the configurations differ")
            # By what the program does, for what it is measured at differs by what else the machine does.
            self.assertLessEqual(self.work(chosen), 1.1 * min(self.work(config) for config in steps))
            events = [json.loads(e) for e in c.ptcctl("events", job.name, "--format", "json").stdout.splitlines()]
            events = [e for e in events if e["kind"] == "measured"]
            self.assertEqual(2 + len(steps), len(events))
            of = next(e["text"] for e in events if e["text"].startswith(chosen))
            self.assertRegex(of, r"a step takes [0-9.]+ s, predicted [0-9.]+ s \+- \d+ % \(off by [+-]\d+ %\); the pause took [0-9.]+ s, "
                                 r"predicted [0-9.]+ s; memory of a device: predicted [0-9.]+ GB, none was reported")
            # A daemon that has just started knows what was measured.
            for name in c.nodes:
                c.nodes[name].kill()
                c.restart(name)
            self.assertEqual(2 + len(steps), self.c_json(job, "--gpus", "6")["measured_steps"])
            job.do("stop")

    @harness.labels("repeats")
    @unittest.skipUnless(harness.LONG, "compares rates of links, which needs a machine that is not busy (PTC_TEST_LONG=1)")
    def test_profile(self):
        """Links are measured over the daemons' own connections; a node behind a slow one is done without, and the job that is
        resized goes on without it. What changes is said."""
        rate = 2e6
        model = {"layers": 4, "hidden": 64, "heads": 8, "seq": 65536}  # computes for long, and has few gradients
        with self.cluster(nodes=4, devices=2) as c:
            door, node = self.path("door"), c.nodes["n3"]
            slow = SlowDoor(door, c.config(node)["listen"].removeprefix("unix:"), rate)
            self.addCleanup(slow.close)
            node.kill()
            c.write_config(node, advertise=f"unix:{door}")
            node.run()
            harness.wait_for(lambda: f"unix:{door}" in [n["address"] for n in c.json("nodes")["nodes"] if n["state"] == "up"],
                             30 * harness.PATIENCE, "n3 behind its door")
            job = Planned(c, self.dir, model=model, space={**SPACE, "tp": [1, 2], "micro_batch": [1]}, work_ms=50,
                          on_link_change="replan")
            job.run("tp=2,micro_batch=1,global_batch=24")
            job.wait_step(5)
            self.assertEqual((None, []), tuple(c.json("profile", "--show")[key] for key in ("profile", "pairs")))
            self.assertIn("links measured: never", c.ptcctl("profile", "--show").stdout)
            before = self.c_json(job, "--gpus", "8")
            self.assertFalse(before["links_known"])
            self.assertEqual(8, before["candidates"][0]["devices"], before["why"])
            pairs = {(p["from"], p["to"]): p for p in c.json("profile", timeout_s=120 * harness.PATIENCE)["pairs"]}
            self.assertEqual({(a, b) for a in c.nodes for b in c.nodes if a != b}, set(pairs))
            for (a, _), p in pairs.items():
                if a == "n3":
                    self.assertLess(p["bytes_s"], 4 * rate, p)
                else: # a busy machine
                    self.assertGreater(p["bytes_s"], 5 * rate, p)
            after = self.c_json(job, "--gpus", "8")
            self.assertTrue(after["links_known"])
            self.assertLessEqual(after["candidates"][0]["devices"], 6)
            self.assertIn("without n3, whose links are slow", after["why"])
            done = job.go("--gpus", "8")
            self.assertNotIn("n3", {r["node"] for r in job.status()["run"]["ranks"]})
            self.assertEqual(after["candidates"][0]["config"], done["to"])
            job.wait_step(done["step"] + 10)
            # The same link again, without the door's rate.
            slow.bytes_s = 0
            changed = c.json("profile", timeout_s=120 * harness.PATIENCE)["changed"]
            self.assertLessEqual({("n3", other) for other in ("n0", "n1", "n2")}, {(p["from"], p["to"]) for p in changed})
            self.assertRegex(c.ptcctl("events", job.name).stdout, r"links .*links have changed, most of all from n3 to n")
            self.assertNotIn("without n3", self.c_json(job, "--gpus", "8")["why"])
            # The planner was asked: either no switch pays, or, as other links are never measured the same twice, one does.
            def planned():
                asked = [e["text"] for e in map(json.loads, c.ptcctl("events", job.name, "--format", "json").stdout.splitlines())]
                asked = asked[next(i for i, text in enumerate(asked) if "most of all from n3" in text) + 1:]
                return any("no new plan: the job stays as it is" in text or text.startswith("a new plan: ") for text in asked)
            harness.wait_for(planned, 60 * harness.PATIENCE, "an answer of the planner", 0.2)
            job.wait_idle()
            # The door narrows again, of a node that the job is moved to: it leaves that node by itself.
            moved = job.go("--config", done["to"], "--nodes", "n1,n2,n3")
            slow.bytes_s = rate
            c.json("profile", timeout_s=120 * harness.PATIENCE)
            harness.wait_for(lambda: (lambda s: s["generation"] > moved["generation"] and s["phase"] == "idle")(job.status()),
                             60 * harness.PATIENCE, "a new plan")
            self.assertNotIn("n3", {r["node"] for r in job.status()["run"]["ranks"]})
            job.do("stop")

    @harness.labels("repeats")
    @unittest.skipUnless(os.environ.get("PTC_TEST_LONG"), "moves bytes over a link that is made slow (PTC_TEST_LONG=1)")
    def test_links_of_switches(self):
        """A link gives less in one switch than in one before: that is said to all jobs, and one that wants to is planned anew."""
        held, rng = state.State(), np.random.default_rng(self.seed)
        for l in range(8):
            held.add(rng, f"h.{l}.w", "F32", [1024, 1024])
        with self.cluster(nodes=2, devices=2) as c:
            door, node = self.path("door"), c.nodes["n1"]
            slow = SlowDoor(door, c.config(node)["listen"].removeprefix("unix:"), 0)
            self.addCleanup(slow.close)
            node.kill()
            c.write_config(node, advertise=f"unix:{door}")
            node.run()
            harness.wait_for(lambda: f"unix:{door}" in [n["address"] for n in c.json("nodes")["nodes"] if n["state"] == "up"],
                             30 * harness.PATIENCE, "n1 behind its door")
            c.json("profile", timeout_s=120 * harness.PATIENCE)
            job = Planned(c, self.dir, on_link_change="replan")
            job.run(f"tp=2,dp=2,{BATCH}")
            big = harness.Job(c, "big", held, self.path("big"), [{"match": "*"}])
            big.imported("tp=1")

            def move(to):
                return json.loads(c.ptcctl("resize", "big", "--config", "tp=1", "--nodes", to, "--wait", "--format", "json",
                                           timeout_s=120 * harness.PATIENCE).stdout)
            move("n0")
            move("n1")
            rows = move("n0")["links"] # what n1 gives in a switch
            self.assertEqual([("n1", "n0", 32 << 20)], [(r["from"], r["to"], r["bytes"]) for r in rows])
            move("n1")
            slow.bytes_s = 8e6
            self.assertLess((lambda r: r["bytes"] / r["seconds"])(move("n0")["links"][0]), 2 * slow.bytes_s)
            for name in ("big", job.name):
                harness.wait_for(lambda: "a switch has shown that 1 links have changed: from n1 to n0" in c.ptcctl("events", name).stdout,
                                 30 * harness.PATIENCE, f"an event of {name}", 0.2)
            harness.wait_for(lambda: any(text in c.ptcctl("events", job.name).stdout for text in ("no new plan: ", "a new plan: ")),
                             60 * harness.PATIENCE, "a plan", 0.2)
            pair = next(p for p in c.json("profile", "--show")["pairs"] if (p["from"], p["to"]) == ("n1", "n0"))
            self.assertLess(pair["bytes_s"], 2 * slow.bytes_s)
            self.assertGreater(pair["measured_bytes_s"], pair["bytes_s"])
            job.wait_idle()
            job.do("stop")

    def test_remembered(self):
        """`job create` has what each number of devices gets computed ahead: questions then search nothing. Another profile begins anew,
        and so does another model."""
        path = self.path("profile.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write("devices_per_node: 4\ndevices: [{name: H100-80GB, nodes: 1}]\nlinks: {intra_bytes_s: 4e11, node_bytes_s: 5e10}\n")
        with self.cluster(nodes=1, devices=4) as c:
            job = Planned(c, self.path("job"), model={**MODEL, "hidden": 1536, "heads": 12})
            job.create()

            def memory(gpus, name=job.name):
                return c.json("advise", name, "--gpus", gpus)["remembered"]

            first = harness.wait_for(lambda: (lambda m: m if m["frontier"] and m["devices"] == 4 else None)(memory("1")),
                                     60 * harness.PATIENCE, "all numbers of devices to be searched ahead", 0.2)
            for gpus in ("2", "3", "4", "1-4", "1"):
                self.assertEqual(first, memory(gpus))
            c.ptcctl("profile", "-f", path)
            self.assertEqual({"devices": 1, "frontier": False, "searches": 1}, memory("2"))
            self.assertEqual({"devices": 1, "frontier": True, "searches": 2}, memory("1-4"))
            other = Planned(c, self.path("other"), name="other", model={**MODEL, "hidden": 768, "heads": 12})
            other.create()
            harness.wait_for(lambda: memory("1", "other")["devices"] == 4 or None, 60 * harness.PATIENCE, "the other model's search", 0.2)
            self.assertEqual({"devices": 1, "frontier": True, "searches": 2}, memory("1-4"))

    def test_profile_of_devices(self):
        good = "devices_per_node: 2\ndevices: [{name: H100-80GB, nodes: 2}]\nlinks: {intra_bytes_s: 4e11, node_bytes_s: 5e10}\n"
        path = self.path("profile.yaml")

        def put(text, **kw):
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            return c.ptcctl("profile", "-f", path, **kw)

        with self.cluster(nodes=2, devices=2) as c:
            job = Planned(c, self.dir)
            job.create()
            for text, says in ((good.replace("5e10", "-1"), "profile:3: node_bytes_s must be in"),
                               (good.replace("nodes: 2", "nodes: 0"), "profile:2: nodes"),
                               (good.replace("links", "linsk"), 'did you mean "links"?')):
                with open(path, "w", encoding="utf-8") as f:
                    f.write(text)
                self.refused(c, "profile", "-f", path, contains=says)
            self.assertIsNone(c.json("profile", "--show")["profile"])
            for junk in ("{", "[1]"):
                c.etcdctl("put", "/ptc/profile", junk)
                harness.wait_for(lambda: "is not a profile" in c.ptcctl("profile", "--show", check=False).stderr, 10 * harness.PATIENCE, "the junk", 0.05)
                put(good)
            self.assertEqual(good, c.json("profile", "--show")["profile"])
            said = self.c_json(job, "--gpus", "4")
            self.assertTrue(said["profiled"] and said["links_known"])
            self.assertNotIn("memory is not compared", said["why"])
            put(good.replace("nodes: 2", "nodes: 2, memory_bytes: 4e9"))
            self.refused(c, "advise", job.name, "--gpus", "4", contains="nothing fits on 4 devices of 4.0 GB")
            self.refused(c, "profile", "-f", path, "--show", codes=(2,), contains="exclude each other")
            if os.geteuid() == 0:
                nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
                self.refused(c, "profile", prefix=nobody, contains="only root may measure links")
                self.assertIn("H100", c.ptcctl("profile", "--show", prefix=nobody).stdout)

    def test_devices_by_name(self):
        """Nodes say what their devices are; a devices file of one's own says what that means, memory and speed."""
        mine = self.path("devices.yaml")
        with open(mine, "w", encoding="utf-8") as f:
            f.write("devices:\n- {name: Swift, flops: {bf16: 400e12}, hbm_bytes_s: 2e12, memory_bytes: 90e9, price_hour: 2}\n"
                    "- {name: Slow, flops: {bf16: 40e12}, hbm_bytes_s: 2e12, memory_bytes: 4e9}\n")
        with self.cluster(nodes=3, devices=2, up=False) as c:
            c.write_config(c.nodes["n0"], device_name="Swift", devices_file=mine)
            c.up(timeout_s=60 * harness.PATIENCE)
            for node in (c.nodes["n1"], c.nodes["n2"]):
                node.kill()
                c.write_config(node, device_name="Slow", devices_file=mine)
                node.run()
            harness.wait_for(lambda: sorted(n["device_name"] for n in c.json("nodes")["nodes"] if n["state"] == "up") == ["Slow", "Slow", "Swift"],
                             30 * harness.PATIENCE, "nodes that name their devices")
            job = Planned(c, self.dir)
            job.create()
            said = self.c_json(job, "--gpus", "6")
            self.assertEqual([("Swift", 2, 90e9), ("Slow", 4, 4e9)],
                             [(k["name"], k["devices"], k["memory_bytes"]) for k in said["kinds"]])
            self.assertTrue(said["profiled"])
            self.assertNotIn("memory is not compared", said["why"])
            for row in said["candidates"]: # nothing fits on what is slow and small
                self.assertLessEqual(row["devices"], 2)
            self.assertIn("on devices of kind Swift alone", said["why"])
            c.ptcctl("run", job.name, "--gpus", "6", "--wait", timeout_s=120 * harness.PATIENCE)
            self.assertEqual({"n0"}, {r["node"] for r in job.status()["run"]["ranks"]})
            job.do("stop")
            with open(mine, "a", encoding="utf-8") as f:
                f.write("- {name: slow}\n")
            r = subprocess.run([harness.program("ptcd"), "--config", c.nodes["n2"].config, "--check-config"], text=True,
                               stderr=subprocess.PIPE, check=False)
            self.assertEqual((1, f"ptcd: {mine}:4: device slow is listed twice\n"), (r.returncode, r.stderr))

    def held(self, c, model, space):
        """A job without ranks that is held by one node under tp=1."""
        held, rng = state.State(), np.random.default_rng(self.seed)
        for l in range(model["layers"]):
            held.add(rng, f"h.{l}.out", "F32", [32, 96])
        job = harness.Job(c, "gpt", held, self.path("gpt"), [{"match": "*", "layer": "h.{}.*"}])
        with open(job.yaml, encoding="utf-8") as f:
            spec = json.load(f)
        with open(job.yaml, "w", encoding="utf-8") as f:
            json.dump({**spec, "model": model, "space": space}, f)
        job.imported("tp=1,micro_batch=4,global_batch=24")
        return job

    def test_ranks_placed_by_links(self):
        """Two fast pairs, and slow links between them: gradients stay within the pairs, the pipeline crosses, and no node is left
        out. What is planned is done, and is whole."""
        fast, slow = 1e11, 1e10
        pairs = [{"from": a, "to": b, "latency_s": 1e-5, "bytes_s": fast if {a, b} in ({"n0", "n2"}, {"n1", "n3"}) else slow}
                 for a in ("n0", "n1", "n2", "n3") for b in ("n0", "n1", "n2", "n3") if a != b]
        with self.cluster(nodes=4, devices=1) as c:
            job = self.held(c, {**MODEL, "layers": 4}, {"global_batch": 24, "tp": [1], "pp": [2], "dp": [2], "micro_batch": [4]})
            before = c.json("advise", "gpt", "--gpus", "4")["candidates"][0]
            c.etcdctl("put", "/ptc/profile", json.dumps({"version": 1, "profile": None, "pairs": pairs}))
            said = harness.wait_for(lambda: (lambda s: s if s["links_known"] else None)(c.json("advise", "gpt", "--gpus", "4")),
                                    30 * harness.PATIENCE, "the links", 0.1)
            best = said["candidates"][0]
            self.assertEqual((4, "links", {"dp": fast, "pp": slow}),
                             (best["devices"], best["placed"]["by"], best["placed"]["links_bytes_s"]), said["why"])
            self.assertIn("the slowest that is crossed, 10 GB/s, carries pp", said["why"])
            self.assertNotIn("without n", said["why"])
            self.assertLess(best["step_s"], before["step_s"] * 5)
            plan = c.json("resize", "gpt", "--gpus", "4", "--dry-run")
            nodes = [r["node"] for r in sorted(plan["ranks"], key=lambda r: r["rank"])] # of stage 0, then of stage 1
            self.assertEqual([{"n0", "n2"}, {"n1", "n3"}], sorted(map(set, (nodes[:2], nodes[2:])), key=sorted))
            self.assertGreaterEqual(plan["totals"]["gap"], 0)
            done = json.loads(c.ptcctl("resize", "gpt", "--gpus", "4", "--wait", "--format", "json").stdout)
            self.assertEqual(best["moved_bytes"], done["received_bytes"])
            job.check_whole(self)

    @harness.labels("repeats")
    def test_memory_of_a_switch(self):
        """Two stages would be the fastest, and their bytes fit; but while state moves a node would have to hold half of it and a
        quarter more. Whoever names that is refused, and the planner does not recommend it."""
        with self.cluster(nodes=2, devices=1, ceilings={"n1": "300MiB"}) as c:
            room = next(n["store"]["ceiling_bytes"] for n in c.json("nodes")["nodes"] if n["node"] == "n1")
            held, rng = state.State(), np.random.default_rng(self.seed)
            for l in range(4):
                held.add(rng, f"h.{l}.out", "F32", [2 * int(room * 1.6 / 4 / 2 / 1024 / 4), 1024])
            for name, pp in (("some", [1, 2]), ("none", [2])):
                job = harness.Job(c, name, held, self.path(name), [{"match": "*", "layer": "h.{}.*", "split": {"axis": "tp", "dim": 0}}])
                with open(job.yaml, encoding="utf-8") as f:
                    spec = json.load(f)
                with open(job.yaml, "w", encoding="utf-8") as f:
                    json.dump({**spec, "model": {**MODEL, "layers": 4},
                               "space": {"global_batch": 24, "tp": [1], "pp": pp, "dp": [1], "micro_batch": [1]}}, f)
                job.imported("tp=2,micro_batch=1,global_batch=24")
                two = c.json("resize", name, "--config", "pp=2,micro_batch=1,global_batch=24", "--dry-run")
                self.assertLess(next(n for n in two["nodes"] if n["node"] == "n1")["held_bytes"], room)
                self.refused(c, "resize", name, "--config", "pp=2,micro_batch=1,global_batch=24", "--wait")
                if 1 in pp:
                    said = c.json("advise", name, "--gpus", "2")
                    self.assertEqual([], [row["config"] for row in said["candidates"] if "pp=2" in row["config"]], said["why"])
                else:
                    self.refused(c, "resize", name, "--gpus", "2", "--wait", contains="for none of 1 candidates have the nodes' stores room")
                job.check_whole(self)
                job.delete()

    def test_stages_by_kind(self):
        """Half of the nodes are four times as fast: each stage is on one kind, and the fast ones have more layers."""
        mine = self.path("devices.yaml")
        with open(mine, "w", encoding="utf-8") as f:
            f.write("devices:\n- {name: Swift, flops: {bf16: 400e12}, hbm_bytes_s: 8e12, memory_bytes: 200e9}\n"
                    "- {name: Slow, flops: {bf16: 100e12}, hbm_bytes_s: 2e12, memory_bytes: 200e9}\n")
        with self.cluster(nodes=4, devices=1, up=False) as c:
            c.write_config(c.nodes["n0"], device_name="Slow", devices_file=mine)
            c.up(timeout_s=60 * harness.PATIENCE)
            for name, device in (("n1", "Swift"), ("n2", "Slow"), ("n3", "Swift")):
                c.nodes[name].kill()
                c.write_config(c.nodes[name], device_name=device, devices_file=mine)
                c.nodes[name].run()
            harness.wait_for(lambda: sorted(n["device_name"] for n in c.json("nodes")["nodes"] if n["state"] == "up") == ["Slow", "Slow", "Swift", "Swift"],
                             30 * harness.PATIENCE, "nodes that name their devices")
            job = self.held(c, {**MODEL, "layers": 20}, {"global_batch": 24, "tp": [1], "pp": [2], "dp": [2], "micro_batch": [1], "uneven": "true"})
            plan = c.json("resize", "gpt", "--gpus", "4", "--dry-run")
            stages = [int(n) for n in plan["to"].partition("stages=")[2].split(":")]
            self.assertEqual(20, sum(stages))
            nodes = [r["node"] for r in sorted(plan["ranks"], key=lambda r: r["rank"])]
            kinds = [{"Swift" if node in ("n1", "n3") else "Slow" for node in half} for half in (nodes[:2], nodes[2:])]
            self.assertEqual([["Slow"], ["Swift"]], sorted(map(sorted, kinds)), plan["choice"]["why"])
            self.assertGreater(stages[kinds.index({"Swift"})], 2 * stages[kinds.index({"Slow"})])
            self.assertRegex(plan["choice"]["why"], "stages? 1-?1? on (Swift|Slow), 2-2 on (Swift|Slow)")
            c.ptcctl("resize", "gpt", "--gpus", "4", "--wait")
            job.check_whole(self)

    def test_data_by_speed(self):
        """Half of the nodes are three times as fast: replicas there take more micro-batches, each sample is consumed once, and the
        losses are those of one process."""
        mine = self.path("devices.yaml")
        with open(mine, "w", encoding="utf-8") as f:
            f.write("devices:\n- {name: Swift, flops: {bf16: 300e12}, hbm_bytes_s: 6e12, memory_bytes: 200e9}\n"
                    "- {name: Slow, flops: {bf16: 100e12}, hbm_bytes_s: 2e12, memory_bytes: 200e9}\n")
        with self.cluster(nodes=2, devices=2, up=False) as c:
            c.write_config(c.nodes["n0"], device_name="Slow", devices_file=mine)
            c.up(timeout_s=60 * harness.PATIENCE)
            c.nodes["n1"].kill()
            c.write_config(c.nodes["n1"], device_name="Swift", devices_file=mine)
            c.nodes["n1"].run()
            harness.wait_for(lambda: sorted(n["device_name"] for n in c.json("nodes")["nodes"] if n["state"] == "up") == ["Slow", "Swift"],
                             30 * harness.PATIENCE, "nodes that name their devices")
            job = Planned(c, self.dir, model={**MODEL, "layers": 8},
                          space={"global_batch": 24, "tp": [1], "pp": [1], "dp": [1, 2, 4], "micro_batch": [1], "uneven_batch": True})
            job.run("dp=1")
            job.wait_step(10)
            done = job.go("--gpus", "4")
            runs = dict(pair.split("=") for pair in done["to"].split(","))["micro_steps"]
            ranks, steps = zip(*(map(int, run.split("x")) for run in runs.split(":")), strict=True)
            self.assertEqual(((2, 2), 12), (ranks, sum(steps)), done["to"])
            at = {r["rank"]: r["node"] for r in job.status()["run"]["ranks"]}
            swift = [rank in (0, 1) for rank in range(4)] if steps[0] > steps[1] else [rank in (2, 3) for rank in range(4)]
            self.assertEqual(["n1" if s else "n0" for s in swift], [at[r] for r in range(4)], done["plan"]["choice"]["why"])
            self.assertGreater(max(steps), 2 * min(steps))
            self.assertRegex(done["plan"]["choice"]["why"], "replicas 1-2 on (Swift|Slow) with [0-9]+ micro-batches each, 3-4 on ")
            job.wait_step(done["step"] + 10)
            job.go("--config", "dp=3,micro_batch=1,global_batch=24") # equally many again
            job.wait_step(job.step() + 5)
            job.do("stop")
            job.steps = job.wait_run("stopped")["step"]
            self.assertEqual([], differences(job.lines(), job.reference()))
            had = {(x["generation"], x["rank"]): len(x["samples"]) for x in job.lines()}
            self.assertEqual([n for n, k in zip(steps, ranks, strict=True) for _ in range(k)], [had[2, r] for r in range(4)])
            cursor, = c.json("dataset", "proof", job.name)["cursors"]
            self.assertTrue(cursor["exactly_once"], cursor["problems"])

    def test_reported_memory(self):
        """Ranks report the peak of their devices' memory: the event after a switch has it beside what was predicted, and what other
        configurations need is computed by it."""
        model, space = {**MODEL, "hidden": 1536, "heads": 12}, {"global_batch": 24, "tp": [1], "pp": [1], "micro_batch": [4]}

        def needs(name):
            return {r["devices"]: r["memory_bytes"] for r in c.json("advise", name, "--gpus", "3")["candidates"]}

        with self.cluster(nodes=1, devices=3) as c:
            plain = Planned(c, self.path("plain"), name="plain", model=model, space=space)
            plain.create()
            before = needs("plain")
            job = live.Job(c, self.dir, sleep=0.02, peak=40e9, run={"model": model, "space": space})
            job.run(f"dp=1,{BATCH}")
            after = harness.wait_for(lambda: (lambda now: now if now[3] > before[3] + 5e9 else None)(needs(job.name)), 90 * harness.PATIENCE,
                                     "memory by what was reported", 0.2)
            self.assertLess(after[3], 60e9)
            done = job.resize(f"dp=2,{BATCH}")
            job.wait_step(done["step"] + 5)
            said = harness.wait_for(lambda: [e["text"] for e in map(json.loads, c.ptcctl("events", job.name, "--format", "json").stdout.splitlines())
                                             if e["kind"] == "measured" and e["text"].startswith("dp=2,")],
                                    90 * harness.PATIENCE, "a measured switch", 0.2)
            self.assertRegex(said[-1], r"^dp=2,.*: a step takes [0-9.]+ s, predicted [0-9.]+ s .*; the pause took [0-9.]+ s"
                                       r".*; memory of a device: predicted [0-9.]+ GB, reported 40 GB$")
            job.do("stop")

    def test_recompute(self):
        """Ranks are told what to recompute, by kind of layers, where `space:` has several ways. A program that does not promise it is
        refused, and the job goes on as it was."""
        mine = self.path("devices.yaml")
        with open(mine, "w", encoding="utf-8") as f:
            f.write("devices:\n- {name: Small, flops: {bf16: 100e12}, hbm_bytes_s: 2e12, memory_bytes: 160e9}\n")
        model, space = {**MODEL, "layers": 16}, {"global_batch": 24, "tp": [1], "pp": [1], "micro_batch": [4], "recompute": ["none", "full"]}
        with self.cluster(nodes=1, devices=4, up=False) as c:
            c.write_config(c.nodes["n0"], device_name="Small", devices_file=mine)
            c.up(timeout_s=60 * harness.PATIENCE)
            job = live.Job(c, self.dir, recompute=3, run={"model": model, "space": space})
            job.run(f"dp=1,{BATCH}")
            job.wait_step(5)
            done = json.loads(c.ptcctl("resize", job.name, "--gpus", "2", "--wait", "--format", "json",
                                       timeout_s=120 * harness.PATIENCE).stdout)
            self.assertEqual("planner", done["plan"]["choice"]["by"])
            self.assertTrue(done["to"].endswith(",recompute=full"), done["to"]) # nothing else fits
            job.wait_step(done["step"] + 5)
            to = f"dp=2,{BATCH},recompute=none/full"
            self.assertEqual(0, job.resize(to)["received_bytes"], "what is recomputed changes nothing that ranks hold")
            job.wait_step(job.step() + 5)
            job.resize(f"dp=1,{BATCH}")
            job.wait_step(job.step() + 5)
            told = {}
            for log in sorted(os.listdir(job.logs)):
                with open(os.path.join(job.logs, log), encoding="utf-8") as f:
                    for line in map(json.loads, f):
                        told.setdefault(line["generation"], set()).add(tuple(line["recompute"]))
            plain = ("none",) * 3 # kinds that are not named are as the first
            self.assertEqual([{plain}, {("full",) * 3}, {("none", "full", "none")}, {plain}], [told[g] for g in sorted(told)])
            for bad in ("recompute=all", "recompute=", "recompute=full/"):
                self.refused(c, "resize", job.name, "--config", f"dp=1,{BATCH},{bad}", codes=(1, 2),
                             contains="(none, selective or full; none/full says it for each kind of layers)")
            job.do("stop")
            # A program that never asks. What runs goes on: new ranks are refused before anything of theirs counts.
            deaf = Planned(c, self.path("deaf"), name="deaf", model=model, space=space)
            deaf.run(f"dp=1,{BATCH}")
            deaf.wait_step(5)
            for args in (("--config", f"dp=2,{BATCH},recompute=full"), ("--gpus", "2")):
                self.refused(c, "resize", "deaf", *args, "--wait", timeout_s=120 * harness.PATIENCE,
                             contains="has recompute, and the program has not asked for it (ptc_recompute)")
                now = harness.wait_for(lambda: (lambda s: s if s["phase"] == "idle" and s["run"]["state"] == "live" else None)(deaf.status()),
                                       60 * harness.PATIENCE, "the job to go on", 0.1)
                self.assertEqual((1, 1), (now["generation"], len(now["run"]["ranks"])))
                deaf.wait_step(deaf.step() + 5)
            deaf.do("stop")
            deaf.steps = deaf.wait_run("stopped")["step"]
            self.assertEqual([], differences(deaf.lines(), deaf.reference()))

    def test_schedule(self):
        """A planned pipeline with virtual stages says its schedule; a program that does not promise it is refused, and goes on as it was.
        A plain pipeline, and one with virtual stages that an operator asks for, need no promise."""
        space = {"global_batch": 24, "tp": [1], "pp": [2], "dp": [1], "vpp": [2], "micro_batch": [4], "schedule": "zb1p"}
        run = {"model": {**MODEL, "layers": 8}, "space": space}
        with self.cluster(nodes=1, devices=4) as c:
            job = live.Job(c, self.dir, schedule=1, run=run)
            job.run(f"dp=1,{BATCH}")
            job.wait_step(5)
            done = json.loads(c.ptcctl("resize", job.name, "--gpus", "4", "--wait", "--format", "json",
                                       timeout_s=120 * harness.PATIENCE).stdout)
            self.assertEqual("planner", done["plan"]["choice"]["by"])
            self.assertRegex(done["to"], "^pp=2,.*,vpp=2,schedule=zb1p$")
            job.wait_step(done["step"] + 5)
            to = done["to"].replace("zb1p", "1f1b")
            self.assertEqual(0, job.resize(to)["received_bytes"], "when ranks compute changes nothing that they hold")
            job.wait_step(job.step() + 5)
            job.resize(f"dp=1,{BATCH}")
            job.wait_step(job.step() + 5)
            told = {}
            for log in sorted(os.listdir(job.logs)):
                with open(os.path.join(job.logs, log), encoding="utf-8") as f:
                    for line in map(json.loads, f):
                        told.setdefault(line["generation"], set()).add(tuple(line["schedule"]))
            self.assertEqual([{(None, 1)}, {("zb1p", 2)}, {("1f1b", 2)}, {(None, 1)}], [told[g] for g in sorted(told)])
            for bad in ("schedule=interleaved", "schedule="):
                self.refused(c, "resize", job.name, "--config", f"pp=2,{BATCH},{bad}", codes=(1, 2), contains="(1f1b, gpipe or zb1p)")
            job.do("stop")
            deaf = live.Job(c, self.path("deaf"), name="deaf", run=run)
            deaf.run(f"dp=1,{BATCH}")
            deaf.wait_step(5)
            self.refused(c, "resize", "deaf", "--gpus", "4", "--wait", timeout_s=120 * harness.PATIENCE,
                         contains="has schedule, and the program has not asked for it (ptc_schedule)")
            now = harness.wait_for(lambda: (lambda s: s if s["phase"] == "idle" and s["run"]["state"] == "live" else None)(deaf.status()),
                                   60 * harness.PATIENCE, "the job to go on", 0.1)
            self.assertEqual((1, 1), (now["generation"], len(now["run"]["ranks"])))
            deaf.wait_step(deaf.step() + 5)
            self.assertEqual(2, deaf.resize(f"pp=2,vpp=2,{BATCH}")["generation"])
            deaf.wait_step(deaf.step() + 5)
            deaf.do("stop")
            deaf.check_state(self, deaf.wait_run("stopped")["step"], self.path("out"))
            plain = live.Job(c, self.path("plain"), name="plain", run={**run, "space": {**space, "dp": [2], "vpp": [1, 2]}})
            plain.run(f"dp=1,{BATCH}")
            plain.wait_step(5)
            done = json.loads(c.ptcctl("resize", "plain", "--gpus", "4", "--wait", "--format", "json",
                                       timeout_s=120 * harness.PATIENCE).stdout)
            self.assertEqual("planner", done["plan"]["choice"]["by"])
            self.assertEqual("pp=2,dp=2,micro_batch=4,global_batch=24", done["to"])
            plain.wait_step(done["step"] + 5)
            plain.do("stop")

    def test_what_samples_cost(self):
        """Ranks on both nodes divide batches by what their controller says that a sample costs, also after a resize; of a job without
        a model it says that it knows nothing."""
        n, seed, g, micro, steps = 50, 3, 24, 4, 12
        with self.cluster(nodes=2, devices=2) as c:
            runs = {"run": {"model": MODEL, "space": SPACE}, "sleep": 0.004, "data": f"{n},{seed},{g},{micro}", "by_length": 3, "cost": 1}
            job = live.Job(c, self.path("job"), **runs)
            told = {}
            job.run("dp=4")
            for generation, config in ((1, None), (2, "dp=3")):
                if config:
                    self.assertEqual(generation, job.resize(config)["generation"])
                s = job.wait_step(job.status()["step"] + steps) and job.status()["run"]
                reports = s["reports"]
                told[generation] = (int(reports["cost_linear"]), int(reports["cost_square"]))
            job.do("stop")
            a, b = told[2]
            # 12 h and the head's share are multiplications alone; passes over memory and launched kernels add to what is linear
            of_flops = 12 * MODEL["hidden"] + MODEL["vocab"] / MODEL["layers"]
            self.assertTrue(of_flops <= a / b <= 3 * of_flops, (told, of_flops))
            self.assertAlmostEqual(40, np.log2(a * MODEL["seq"] + b * MODEL["seq"] ** 2), delta=0.1)
            seen = 0
            for name in os.listdir(job.logs):
                with open(os.path.join(job.logs, name), encoding="utf-8") as f:
                    for x in map(json.loads, f):
                        if x["generation"] == 2:
                            ids = [order_oracle.at(n, seed, *divmod(p, n)) for p in range(x["step"] * g, (x["step"] + 1) * g)]
                            slots = order_oracle.balanced([i * i % 97 for i in ids], a, b, micro, 3)[0]
                            self.assertEqual([ids[i] for m in slots for i, weight in m[x["dp_rank"]] if weight], x["samples"], x)
                            seen += 1
            self.assertGreaterEqual(seen, 3 * steps)
            runs["run"] = None
            plain = live.Job(c, self.path("plain"), name="plain", **runs)
            plain.run("dp=2")
            plain.wait_step(2)
            reports = plain.status()["run"]["reports"]
            self.assertEqual((0, 0), (reports["cost_linear"], reports["cost_square"]))
            plain.do("stop")

    def test_bad_descriptions(self):
        with self.cluster(nodes=1, devices=1) as c:
            for keys, text in (({"model": {**MODEL, "kv_heads": 7}}, "kv_heads is 7"),
                               ({"model": {**MODEL, "layers": 0}}, "layers"),
                               ({"space": {**SPACE, "tp": [2, 1]}}, "values of tp must ascend"),
                               ({"space": {**SPACE, "uneven_batch": True, "exact_batch": True}}, "leaves slots of the batch empty"),
                               ({"space": {"tp": [1]}}, "space needs global_batch")):
                directory = self.path(f"bad{len(os.listdir(self.dir))}")
                os.makedirs(directory)
                self.refused(c, "job", "create", "-f", Planned(c, directory, **keys).yaml, contains=text)
            self.assertEqual([], c.json("status")["jobs"])


class Growth(harness.Case):
    """on_join: grow."""

    def start(self, c, *names):
        for name in names:
            c.start_node(c.nodes[name])
        c.wait_nodes(names, 60 * harness.PATIENCE)

    def joined(self, c, job, n=1):
        """The texts of n events about devices that have joined or become free."""
        def texts():
            rows = [json.loads(e) for e in c.ptcctl("events", job.name, "--format", "json").stdout.splitlines()]
            rows = [e["text"] for e in rows if e["kind"] == "joined"]
            return rows if len(rows) >= n else None
        return harness.wait_for(texts, 60 * harness.PATIENCE, f"{n} events of devices that joined", 0.1)

    def weighed(self, c, job):
        """What is there when the job is first seen to run has not joined. It is written down."""
        key = f"/ptc/jobs/{job.status()['uuid']}/weighed"
        harness.wait_for(lambda: c.etcdctl("get", "--print-value-only", key).stdout.strip(), 60 * harness.PATIENCE, key, 0.1)

    def trains(self, job, world):
        def there():
            s = job.status()
            run = s["run"]
            return s if s["phase"] == "idle" and run["state"] == "live" and len(run["ranks"]) == world else None
        return harness.wait_for(there, 120 * harness.PATIENCE, f"{world} ranks", 0.1)

    def elastic(self, c, settle, **keys):
        return Planned(c, self.dir, elastic={"on_join": "grow", "join_after": settle, "max_gpus": 4}, **keys)

    def test_nodes_that_join_together(self):
        """Two nodes join: one switch, to the largest that is permitted. A third one: the job has as many as it may have."""
        table = {"2": f"dp=2,{BATCH}", "4": f"tp=2,dp=2,{BATCH}", "5": f"dp=5,{BATCH}"}
        with self.cluster(nodes=5, devices=1, up=False) as c:
            self.start(c, "n0", "n1")
            job = self.elastic(c, "3s", model=None, space=None, gpus=table)
            job.run(table["2"])
            self.weighed(c, job)
            job.wait_step(5)
            was = job.status()["generation"]
            self.start(c, "n2", "n3")
            self.assertEqual(was + 1, self.trains(job, 4)["generation"])
            self.assertRegex(" / ".join(self.joined(c, job)), "^more devices are free, of n[23], n[23]; the job goes from dp=2,[^ ]* to tp=2,dp=2,[^ ]*, by its table$")
            self.start(c, "n4")
            self.assertIn("stays as it is: it has 4 devices, and its max_gpus is 4", self.joined(c, job, 2)[1])
            self.assertEqual(was + 1, job.status()["generation"])
            self.assertEqual(self.joined(c, job, 2)[1], job.status()["run"]["stays"])
            job.do("stop")
            job.steps = job.wait_run("stopped")["step"]
            self.assertEqual([], differences(job.lines(), job.reference()))

    def test_grows_by_plan(self):
        """Two nodes join a job without a table: it goes to what the planner chooses for three devices, and trains on with what it had."""
        with self.cluster(nodes=3, devices=1, up=False) as c:
            self.start(c, "n0")
            job = self.elastic(c, "3s")
            job.run(f"dp=1,{BATCH}")
            self.weighed(c, job)
            job.wait_step(5)
            was = job.status()["generation"]
            self.start(c, "n1", "n2")
            now = self.trains(job, 3)
            self.assertEqual(was + 1, now["generation"])
            self.assertRegex(self.joined(c, job)[0], "^more devices are free, of n[12], n[12]; the job goes from micro_batch=4,[^ ]* to dp=3,[^ ]*, "
                                                     "[^ ]*dp=3,[^ ]*: .* in the next [0-9]+ s of [0-9]+ candidates")
            job.wait_step(job.status()["step"] + 5)
            job.do("stop")
            job.steps = job.wait_run("stopped")["step"]
            self.assertEqual([], differences(job.lines(), job.reference()))

    def test_grows_without_promises(self):
        """The fastest pipeline for two devices has virtual stages, which no rank has promised: nobody would read the refusal, so the job
        grows to one without them, and says so."""
        space = {"global_batch": 24, "tp": [1], "pp": [2], "dp": [1], "vpp": [1, 2], "micro_batch": [4]}
        with self.cluster(nodes=2, devices=1, up=False) as c:
            self.start(c, "n0")
            job = live.Job(c, self.dir, run={"model": {**MODEL, "layers": 8}, "space": space,
                                             "elastic": {"on_join": "grow", "join_after": "500ms"}})
            job.run(f"dp=1,{BATCH}")
            self.weighed(c, job)
            job.wait_step(5)
            self.start(c, "n1")
            now = self.trains(job, 2)
            text = self.joined(c, job)[0]
            self.assertRegex(text, "the job goes from micro_batch=4,[^ ]* to pp=2,micro_batch=4,global_batch=24, ")
            self.assertIn("; without virtual stages, for the program has not promised them yet (ptc_schedule)", text)
            job.wait_step(now["step"] + 5)
            asked = [x["config"] for x in c.json("advise", job.name, "--gpus", "2")["candidates"]]
            self.assertTrue(any(",vpp=2,schedule=1f1b" in config for config in asked), asked)
            job.do("stop")

    def test_links_without_promises(self):
        """`ptcctl profile` finds a link changed. Whoever measured, nobody reads what a program refuses: the new plan of a job that wants
        one has no virtual stages, which no rank has promised."""
        space = {"global_batch": 24, "tp": [1], "pp": [2], "dp": [1], "vpp": [1, 2], "micro_batch": [4]}
        with self.cluster(nodes=2, devices=1) as c:
            door, node = self.path("door"), c.nodes["n1"]
            slow = SlowDoor(door, c.config(node)["listen"].removeprefix("unix:"), 1e6)
            self.addCleanup(slow.close)
            node.kill()
            c.write_config(node, advertise=f"unix:{door}")
            node.run()
            harness.wait_for(lambda: f"unix:{door}" in [n["address"] for n in c.json("nodes")["nodes"] if n["state"] == "up"],
                             30 * harness.PATIENCE, "n1 behind its door")
            job = live.Job(c, self.dir, run={"model": {**MODEL, "layers": 8}, "space": space, "on_link_change": "replan"})
            job.run("pp=2,micro_batch=4,global_batch=24")
            job.wait_step(5)
            c.json("profile", timeout_s=120 * harness.PATIENCE)
            slow.bytes_s = 0
            self.assertTrue(c.json("profile", timeout_s=120 * harness.PATIENCE)["changed"])

            def answer():
                rows = [json.loads(e) for e in c.ptcctl("events", job.name, "--format", "json").stdout.splitlines()]
                return [e["text"] for e in rows if e["kind"] == "links" and " new plan: " in e["text"]]
            text = harness.wait_for(answer, 60 * harness.PATIENCE, "an answer of the planner", 0.2)[0]
            self.assertIn("; without virtual stages, for the program has not promised them yet (ptc_schedule)", text)
            self.assertNotIn("vpp", job.status()["config"])
            job.do("stop")

    def test_join_that_does_not_pay(self):
        """One micro-batch is one rank's work: the planner says that no switch pays, once."""
        with self.cluster(nodes=3, devices=1, up=False) as c:
            self.start(c, "n0")
            job = self.elastic(c, "500ms", space={"global_batch": 24, "tp": [1], "pp": [1], "micro_batch": [24]})
            job.run("dp=1,global_batch=24,micro_batch=24")
            self.weighed(c, job)
            self.start(c, "n1")
            self.assertIn("more devices are free, of n1; the job stays as it is: ", self.joined(c, job)[0])
            self.start(c, "n2")
            self.assertIn("more devices are free, of n2; the job stays as it is: ", self.joined(c, job, 2)[1])
            self.assertEqual(1, len(job.status()["run"]["ranks"]))
            job.do("stop")

    def test_another_job_ends(self):
        """Devices of another job are nobody's to grow into. They are free once it has ended, and once it has shrunk; the job grows
        with `build: ahead`, as its description says."""
        table = {"1": f"dp=1,{BATCH}", "2": f"dp=2,{BATCH}", "3": f"dp=3,{BATCH}"}
        with self.cluster(nodes=3, devices=1) as c:
            other = Planned(c, self.path("other"), name="other", model=None, space=None, gpus={"2": f"dp=2,{BATCH}"})
            other.run(f"dp=2,{BATCH}")
            job = self.elastic(c, "500ms", model=None, space=None, gpus=table, build="ahead")
            job.run(table["1"])
            self.weighed(c, job)
            job.wait_step(5)
            other.resize(f"dp=1,{BATCH}")
            was = self.trains(job, 2)
            self.assertRegex(self.joined(c, job)[0], "^more devices are free, of n[0-2]; the job goes from micro_batch=4,[^ ]* to dp=2,[^ ]*, by its table$")
            kinds = [json.loads(e)["kind"] for e in c.ptcctl("events", job.name, "--format", "json").stdout.splitlines()]
            self.assertIn("building", kinds)
            other.do("stop")
            self.assertEqual(was["generation"] + 1, self.trains(job, 3)["generation"])
            self.assertEqual(2, len(self.joined(c, job, 2)))
            job.do("stop")
            job.steps = job.wait_run("stopped")["step"]
            self.assertEqual([], differences(job.lines(), job.reference()))

    @harness.labels("repeats")
    @unittest.skipUnless(os.environ.get("PTC_TEST_LONG"), "a kill of the controller before it decides (PTC_TEST_LONG=1)")
    def test_controller_dies_before_it_decides(self):
        with self.cluster(nodes=4, devices=1, up=False) as c:
            self.start(c, "n0", "n1", "n2")
            job = self.elastic(c, "8s", model=None, space=None, gpus={"2": f"dp=2,{BATCH}", "4": f"dp=4,{BATCH}"})
            job.run(f"dp=2,{BATCH}")
            self.weighed(c, job)
            self.start(c, "n3")
            name = job.status()["controller"]
            if name != "n0": # whose etcd is everybody's
                c.nodes[name].kill()
                c.restart(name)
            self.trains(job, 4)
            self.assertEqual(1, len(self.joined(c, job)))
            job.do("stop")


if __name__ == "__main__":
    harness.unittest.main()
