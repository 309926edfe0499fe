# SPDX-License-Identifier: Apache-2.0
"""What planner/ must reach on published measurements (tests/planner_replay.py; docs/planner.md has the figures), and
where it must not. Without the data these are skipped."""
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import unittest
from xml.etree import ElementTree

import paced_model
import planner_replay as replay


class Replay(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        path = replay.default_data()
        if not path:
            raise unittest.SkipTest("no published measurements: set PTC_PLANNER_DATA")
        cls.data, wrong = replay.load(path)
        if wrong:
            raise AssertionError(wrong[0])
        cls.planner = replay.Planner(replay.default_dump())

    @classmethod
    def tearDownClass(cls):
        if hasattr(cls, "planner"):
            cls.planner.close()

    def test_formulas(self):
        found = replay.formulas(self.planner, self.data)
        self.assertTrue(found["sc21_sizes"] and found["korthikanti"])
        for name, printed, computed in found["sc21_sizes"]:
            self.assertEqual(printed, computed, name)
        for name, printed, computed in found["korthikanti"]:
            self.assertAlmostEqual(printed, computed, delta=1e-6 * printed, msg=name)
        self.assertEqual("449.2", f"{found['llama3_70b_gflop_token']:.1f}")

    def test_single_node(self):
        found = replay.single_node(self.planner, self.data)
        third = found["calibrated on a third of the rows, tested on the rest"]
        self.assertGreater(third["groups"], 20)
        self.assertLessEqual(third["regret"], 0.06)
        self.assertGreaterEqual(third["top3"], 0.75)
        self.assertLess(third["mape"], found["uncalibrated"]["mape"])
        for baseline in ("median_choice", "greedy"):
            self.assertLess(third["regret"], third[baseline])
        # One standard deviation holds two thirds of the errors, or more.
        self.assertGreaterEqual(third["within_sd"], 0.65)

    def test_multi_node(self):
        found = replay.multi_node(self.planner, self.data)
        half = found["calibrated on half of the rows, error on the rest, ranked all"]
        self.assertLessEqual(half["regret"], 0.05)
        self.assertLessEqual(half["mape"], 0.08)
        self.assertLess(half["regret"], half["median_choice"])
        self.assertLess(half["regret"], half["greedy"])
        out = found["leave one group out"]
        self.assertLessEqual(out["regret"], 0.05)
        self.assertLessEqual(out["mape"], 0.08)
        other = replay.other_clusters(self.planner, self.data)
        for name, found in other.items():
            self.assertLess(found["regret"], found["median_choice"], name)
            self.assertLess(found["regret"], found["greedy"], name)

    def test_idle_devices(self):
        found = replay.idle_devices(self.planner, self.data)
        self.assertIn("GPT 6.7B", found)
        for name, table in found.items():
            self.assertLess(table["regret"], table["always_the_most_devices"], name)
            self.assertGreater(table["left_idle"], 0, name)
        self.assertLessEqual(found["GPT 6.7B"]["regret"], 0.05)

    def test_peaks_of_memory(self):
        found = replay.peaks(self.planner, self.data)
        self.assertGreater(found["all"]["rows"], 50)
        self.assertLessEqual(found["all"]["median_error"], 0.10)
        self.assertLessEqual(found["all"]["median_error_fitted_on_a_third"], 0.05)
        left_out = replay.waste_left_out(self.planner, self.data)
        self.assertLessEqual(left_out["all"]["median_error"], 0.10)

    def test_veto(self):
        found = replay.veto(self.planner, self.data)
        self.assertGreater(found["ran"], 200)
        self.assertEqual([], found["ran_refused"])
        self.assertGreater(found["out_of_memory"], 0)
        self.assertEqual([], found["out_of_memory_taken"])


class Programs(unittest.TestCase):
    """Programs at random that compute for as long as they say and send what a transformer's ranks send (tests/paced_model.py, which
    tests/test_paced.py compares with such programs that run). Two measured configurations, and six devices are asked for."""
    KNOWN = (1, 1, 2), (2, 1, 2)
    COUNT = 60

    def setUp(self):
        seed = int(os.environ.get("PTC_TEST_SEED") or random.SystemRandom().randrange(2**32))
        print(f"seed {seed} (repeat with PTC_TEST_SEED={seed})", flush=True)
        self.rng = random.Random(seed)
        self.planner = replay.Planner(replay.default_dump())
        self.addCleanup(self.planner.close)

    def case(self, program, config, step_s=0):
        mbit, hidden, layer_us = program
        tp, pp, dp = config
        case = {"model": {"layers": 6, "hidden": hidden, "heads": 8, "ffn": 4 * hidden, "seq": 256, "flash": True, "no_dropout": True},
                "cluster": {"per_node": 2, "nodes": 3, "device": "T4", "flops": paced_model.flops(hidden, layer_us), "hbm": 1e11,
                            "intra": 1e9, "intra_latency": 1e-4, "node": 0.97 * mbit * 1e6 / 8, "node_latency": 2e-4},
                "config": {"tp": tp, "pp": pp, "dp": dp, "mbs": 2}, "batch": 12,
                "rules": {"weight": 4, "grad": 4, "optim": 0, "reduce": 4, "gpipe": True}}
        return {**case, "step": step_s, "noise": 0.05} if step_s else case

    def regret(self, program):
        truth = {c: paced_model.seconds(c, program) for c in paced_model.configs(6)}
        rows = [self.case(program, c, truth[c] * (1 + self.rng.uniform(-0.02, 0.02))) for c in self.KNOWN]
        got = self.planner.ask(rows + [self.case(program, c) for c in truth], train=[0, 1])["cases"][len(rows):]
        steps = {c: g["step"] for c, g in zip(truth, got) if "error" not in g}
        self.assertEqual(len(truth), len(steps))
        chosen = min(steps, key=steps.get)
        return truth[chosen] / min(truth.values()) - 1

    def test_choice_for_programs(self):
        programs = [paced_model.random_program(self.rng) for _ in range(self.COUNT)]
        regrets = sorted((self.regret(p), p) for p in programs)
        mean = sum(r for r, _ in regrets) / len(regrets)
        print(f"regret: mean {mean:.1%}, the greatest {regrets[-1][0]:.0%} ({regrets[-1][1]})")
        self.assertLessEqual(mean, 0.02)
        self.assertLessEqual(sum(r > 0.1 for r, _ in regrets), self.COUNT // 20, regrets[-5:])


class AnotherFile(unittest.TestCase):
    """The replay of any file of the format: figures without a manual step, a line for each row that cannot be."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "rows.json")

    def replay(self, rows, expect=0):
        with open(self.path, "w", encoding="utf-8") as f:
            f.write(rows if isinstance(rows, str) else json.dumps(rows))
        r = subprocess.run([sys.executable, os.path.join(replay.ROOT, "tests", "planner_replay.py"), self.path, "--json", "--dump",
                            replay.default_dump()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(expect, r.returncode, r.stderr)
        return (json.loads(r.stdout) if r.stdout else None), r.stderr.splitlines()

    @staticmethod
    def rows(seed):
        """Steps that only work and a pipeline's bubble decide."""
        draw, rows = random.Random(seed), []
        for layers in (12, 24):
            for tp, pp, mbs in [(t, p, m) for t in (1, 2, 4) for p in (1, 2) for m in (1, 2)]:
                dp, batch = 8 // (tp * pp), 32
                step = 0.02 * layers * batch / 8 * (1 + (pp - 1) * mbs * dp / batch) * (1 + 0.05 * tp) * draw.uniform(0.97, 1.03)
                rows.append({"id": f"vtrain-single-{len(rows)}", "kind": "throughput", "gpu_type": "A100-80GB", "gpus": 8,
                             "gpus_per_node": 8, "tp": tp, "pp": pp, "dp": dp, "micro_batch": mbs, "global_batch": batch,
                             "recompute": "full", "step_time_s": step,
                             "model": {"name": f"L{layers}", "layers": layers, "hidden": 1024, "heads": 16, "seq": 1024, "vocab": 50257}})
        return rows

    def test_figures(self):
        seed = random.randrange(1 << 32)
        found, lines = self.replay(self.rows(seed))
        self.assertEqual([], lines)
        self.assertEqual((24, 0), (found["rows"], found["rows left out"]))
        third = found["single node"]["calibrated on a third of the rows, tested on the rest"]
        self.assertLess(third["mape"], 0.25, f"seed {seed}")
        self.assertGreater(found["single node"]["leave one model out"]["mape"], 0)
        self.assertEqual({}, found["multi node"])
        self.assertIsNone(found["peaks of memory"]["all"]["median_error"])

    def test_nothing_to_show(self):
        for rows in ([], self.rows(1)[:1]):
            found, lines = self.replay(rows)
            self.assertEqual(([], {}), (lines, found["single node"]))

    def test_bad_rows(self):
        rows = self.rows(2)
        bad = {0: ("step_time_s", -3, "step_time_s is -3; it must be above 0"), 1: ("tp", 2.5, "tp is 2.5, not a whole number"),
               2: ("gpus", float("nan"), "gpus is nan, not a number"), 3: ("model", None, "has no model with a name"),
               4: ("id", rows[5]["id"], "stands twice"), 6: ("memory_gb", 1e300, "memory_gb is 1e+300; it must be above 0 and at most"),
               7: ("zero_stage", 9, "zero_stage is 9; it is 0, 1, 2 or 3"), 8: ("kind", None, "has no kind"),
               9: ("pp", "two", "pp is 'two', not a number"), 10: ("gpu_type", [], "gpu_type is [], not a text")}
        for i, (key, value, _) in bad.items():
            rows[i][key] = value
        rows.append("text")
        found, lines = self.replay(rows)
        self.assertEqual((14, 11), (found["rows"], found["rows left out"]))
        self.assertEqual(11, len(lines))
        for i, (_, _, text) in bad.items():
            at = 5 if i == 4 else i  # of two of one name the second
            self.assertTrue(any(f"row {at + 1} (" in line and text in line for line in lines), (i, text, lines))
        self.assertIn("row 25 (?) is str, not an object", lines[-1])

    def test_no_such_file(self):
        self.assertIn("not JSON", self.replay("[1,", expect=2)[1][0])
        self.assertIn("not a JSON array of rows", self.replay("{}", expect=2)[1][0])


JOB = """model: {layers: 40, hidden: 6144, heads: 48, vocab: 51200, seq: 2048, bias: true, positions: true,
        dropout: true, tied: true, flash: false}
space: {global_batch: 1024, micro_batch: [1, 2, 4, 8], recompute: [full], zero: [0, 1], uneven: true}
"""
PROFILE = """devices_per_node: 8
devices: [{name: A100-80GB, nodes: 32, price_hour: 2}]
links: {intra_bytes_s: 2e11, node_bytes_s: 8e10}
"""


class Advise(unittest.TestCase):
    """ptcctl advise, offline."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.write("job.yaml", JOB)
        self.write("profile.yaml", PROFILE)

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as f:
            f.write(text)

    def run_it(self, *args, expect=0):
        build = os.environ.get("PTC_BUILD", os.path.join(replay.ROOT, "build", "release"))
        r = subprocess.run([os.path.join(os.path.abspath(build), "client", "ptcctl"), "advise", "-f", "job.yaml", "--profile",
                            "profile.yaml", *args], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           check=False)
        self.assertEqual(expect, r.returncode, r.stdout + r.stderr)
        if expect:
            self.assertEqual(("", 1), (r.stdout, r.stderr.count("\n")), r.stderr)
            return r.stderr.strip()
        return r.stdout

    def candidates(self, *args):
        return json.loads(self.run_it("--format", "json", *args))

    def test_candidates(self):
        found = self.candidates("--gpus", "61")
        rows = found["candidates"]
        self.assertFalse(found["calibrated"])
        self.assertEqual(sorted(r["step_s"] for r in rows), [r["step_s"] for r in rows])
        for r in rows:
            self.assertLessEqual(r["devices"], 61)
            self.assertLessEqual(r["memory_bytes"], 80e9)
            self.assertAlmostEqual(r["step_s"], sum(r["parts_s"].values()), delta=1e-6 * r["step_s"])
            self.assertAlmostEqual(1024 / r["step_s"], r["samples_s"], delta=1e-6 * r["samples_s"])
        self.assertIn(rows[0]["config"], found["why"])
        text = self.run_it("--gpus", "61")
        self.assertTrue(text.startswith("uncalibrated: "))
        self.assertIn(rows[0]["config"] + " ", text)

    def test_a_range_never_gets_slower(self):
        counts = json.loads(self.run_it("--gpus", "8-64", "--format", "json"))["counts"]
        self.assertEqual(list(range(8, 65)), [c["gpus"] for c in counts])
        steps = [c.get("step_s", float("inf")) for c in counts]
        self.assertEqual(sorted(steps, reverse=True), steps)
        self.assertTrue(any(c["devices"] < c["gpus"] for c in counts if "devices" in c))
        self.assertEqual(counts[-1]["config"], self.candidates("--gpus", "64")["candidates"][0]["config"])

    def test_measured_steps_are_believed(self):
        plain = self.candidates("--gpus", "64")["candidates"][0]
        measured = "tp=8,pp=1,dp=8,micro_batch=4,global_batch=1024"
        self.write("profile.yaml", PROFILE + f'measured:\n- {{config: "{measured},zero=1,recompute=full", step_s: 20.0}}\n'
                   '- {config: "tp=2,pp=1,dp=32,zero=1,micro_batch=8,global_batch=1024,recompute=full", step_s: 45.0}\n')
        found = self.candidates("--gpus", "64")
        self.assertTrue(found["calibrated"])
        self.assertTrue(plain["config"].startswith("tp=2,pp=1,dp=32"))
        self.assertTrue(found["candidates"][0]["config"].startswith("tp=8,"), found["why"])
        measured = [r for r in found["candidates"] if r["config"].startswith("tp=8,pp=1,dp=8,zero=1,micro_batch=4,")]
        self.assertAlmostEqual(20.0, measured[0]["step_s"], delta=2.0)
        self.assertLess(measured[0]["error"], plain["error"])

    def test_what_runs_stays_if_the_pause_does_not_pay(self):
        best = self.candidates("--gpus", "64")["candidates"][1]["config"]
        now = ("--gpus", "64", "--now", best)
        self.assertFalse(self.candidates(*now, "--pause", "1s", "--horizon", "600m")["candidates"][0]["runs_now"])
        self.assertTrue(self.candidates(*now, "--pause", "500s")["candidates"][0]["runs_now"])

    def test_bytes_of_a_switch_are_those_of_plan(self):
        h, layers = 256, 8
        tensors = [(f"h.{i}.attn.qkv.weight", [3 * h, h]) for i in range(layers)] + [(f"h.{i}.mlp.up.weight", [4 * h, h])
                                                                                    for i in range(layers)]
        self.write("job.yaml", "version: 1\nname: tiny\ntensors:\n" +
                   "".join(f"  - {{name: {n}, dtype: F32, shape: {s}}}\n" for n, s in tensors) +
                   'rules: [{match: "*", split: {axis: tp, dim: 0}, layer: "h.{}.*"}]\n'
                   f"model: {{layers: {layers}, hidden: {h}, heads: 8, vocab: 1000, seq: 128}}\n"
                   "space: {global_batch: 64, micro_batch: [1]}\n")
        self.write("profile.yaml", PROFILE.replace("nodes: 32", "nodes: 2"))
        now = "tp=2,pp=2,dp=2,micro_batch=1"
        rows = self.candidates("--gpus", "16", "--now", now, "--pause", "1s", "--horizon", "100h")["candidates"]
        moving = [r for r in rows if not r["runs_now"]]
        self.assertTrue(any(r["moved_bytes"] for r in moving))
        build = os.environ.get("PTC_BUILD", os.path.join(replay.ROOT, "build", "release"))
        for r in moving[:4]:
            plan = json.loads(subprocess.run(
                [os.path.join(os.path.abspath(build), "client", "ptcctl"), "plan", "-f", "job.yaml", "--nodes", "2", "--from", now,
                 "--to", r["config"], "--format", "json"], cwd=self.folder, stdout=subprocess.PIPE, check=True).stdout)
            self.assertEqual(plan["totals"]["between_nodes"], r["moved_bytes"], r["config"])
            self.assertGreaterEqual(r["pause_s"], 1)

    def ctl(self, *args):
        build = os.environ.get("PTC_BUILD", os.path.join(replay.ROOT, "build", "release"))
        return subprocess.run([os.path.join(os.path.abspath(build), "client", "ptcctl"), *args], cwd=self.folder,
                              stdout=subprocess.PIPE, check=True, text=True).stdout

    def test_bytes_by_probed_layouts(self):
        """Of a job without rules: exact where a probe has looked, as `plan` says from the same documents; bounds elsewhere. Also for
        a range, and in pictures."""
        rows, layers = 48, 4
        state, layouts = rows * 64 * 4 * layers, []
        for tp, dp in ((2, 2), (4, 2), (2, 8)):  # what ranks would declare, tp fastest
            part = rows // tp
            doc = {"version": 1, "config": f"tp={tp},dp={dp}",
                   "tensors": [[f"h.{i}.up.weight", "F32", [rows, 64]] for i in range(layers)],
                   "classes": [[[i, t * part, 0, part, 64] for i in range(layers)] for t in range(tp)],
                   "ranks": [r % tp for r in range(tp * dp)]}
            self.write(f"tp{tp}dp{dp}.json", json.dumps(doc, separators=(",", ":")))
            layouts += ["--layout", f"tp{tp}dp{dp}.json"]
        self.write("job.yaml", "version: 1\nname: tiny\nrun: {argv: [train]}\n"
                   f"model: {{layers: {layers}, hidden: 64, heads: 8, vocab: 1000, seq: 128}}\n"
                   "space: {global_batch: 64, micro_batch: [1], tp: [2, 4, 8], pp: [1]}\n")
        self.write("profile.yaml", PROFILE.replace("devices_per_node: 8", "devices_per_node: 4").replace("nodes: 32", "nodes: 4"))
        now = ("--now", "tp=2,dp=2,micro_batch=1", "--pause", "1s", "--horizon", "100h")
        found = {r["config"]: r for r in self.candidates("--gpus", "16", *now, *layouts)["candidates"]}
        counts = json.loads(self.run_it("--gpus", "4-16", "--format", "json", *now, *layouts))["counts"]
        self.assertEqual(list(range(4, 17)), [row["gpus"] for row in counts])
        self.assertEqual({True, False}, {row["moved_exact"] for row in counts})
        for r in [*found.values(), *counts]:
            config = r["config"]
            degree = dict(pair.split("=") for pair in config.split(","))
            tp, dp = int(degree["tp"]), int(degree["dp"])
            if r.get("runs_now"):
                self.assertEqual(0, r["moved_bytes"])
            elif r["moved_exact"]:
                plan = json.loads(self.ctl("plan", "-f", "job.yaml", *layouts, "--nodes", "4", "--devices-per-node", "4", "--from",
                                           "tp=2,dp=2", "--to", f"tp={tp},dp={dp}", "--format", "json"))
                self.assertEqual(plan["totals"]["between_nodes"], r["moved_bytes"], config)
            else:  # the first node has all of it already
                needs = [min(1, min(4, max(0, tp * dp - 4 * n)) / tp) * state for n in range(4)]
                self.assertEqual((sum(needs[1:]), sum(needs)), (r["moved_bytes_least"], r["moved_bytes"]), config)
        for row in counts:
            if row["config"] in found and not found[row["config"]]["runs_now"]:
                self.assertEqual([found[row["config"]][key] for key in ("moved_bytes", "pause_s")], [row["moved_bytes"], row["pause_s"]])
        self.assertIn("to ", self.run_it("--gpus", "4-16", *now, *layouts))
        # as pictures
        for gpus, says in (("16", "runs now"), ("4-16", "samples a second")):
            text = " ".join(ElementTree.fromstring(self.run_it("--gpus", gpus, "--format", "svg", *now, *layouts)).itertext())
            self.assertIn(says, text)
            self.assertIn("moves ", text)
        self.assertIn("no --layout is of this configuration", self.run_it("--gpus", "16", "--now", "tp=4,dp=1,micro_batch=1", *layouts, expect=1))
        self.assertIn("job.yaml", self.run_it("--gpus", "16", *now, "--layout", "job.yaml", expect=1))

    def test_a_config_json(self):
        self.write("config.json", json.dumps({
            "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072,
            "rope_theta": 500000.0, "tie_word_embeddings": False, "pad_token_id": None}, indent=1))
        self.write("job.yaml", "model: {config: config.json, seq: 8192}\nspace: {global_batch: 128, zero: [1, 3]}\n")
        self.assertTrue(self.candidates("--gpus", "16")["candidates"])

    def test_devices_of_two_kinds(self):
        self.write("job.yaml", JOB.replace("uneven: true", "uneven: true, uneven_batch: true, dp: [1, 2, 4], pp: [4, 8]"))
        self.write("profile.yaml", PROFILE.replace("{name: A100-80GB, nodes: 32, price_hour: 2}",
                                                   "{name: H100-80GB, nodes: 2, price_hour: 5}, {name: A100-80GB, nodes: 2, price_hour: 2}"))
        both = self.candidates("--gpus", "32")["candidates"]
        self.assertRegex(both[0]["on"], r"^(stages|replicas) 1-\d+ on .*(A100|H100)-80GB.*, \d+-\d+ on .*(H100|A100)-80GB")
        for kind in ("H100-80GB, nodes: 2, price_hour: 5", "A100-80GB, nodes: 2, price_hour: 2"):
            self.write("profile.yaml", PROFILE.replace("A100-80GB, nodes: 32, price_hour: 2", kind))
            self.assertGreater(self.candidates("--gpus", "16")["candidates"][0]["step_s"], both[0]["step_s"])

    def test_the_least_money(self):
        self.write("profile.yaml", PROFILE.replace("{name: A100-80GB, nodes: 32, price_hour: 2}",
                                                   "{name: H100-80GB, nodes: 8, price_hour: 5}, {name: A100-80GB, nodes: 8, price_hour: 2}"))
        fast = self.candidates("--gpus", "64")["candidates"]
        cheap = self.candidates("--gpus", "64", "--objective", "money")["candidates"]
        self.assertLess(cheap[0]["money_step"], fast[0]["money_step"])
        self.assertEqual(sorted(r["money_step"] for r in cheap), [r["money_step"] for r in cheap])
        for r in fast + cheap:  # none is both faster and cheaper
            self.assertTrue(r["money_step"] >= cheap[0]["money_step"])
            self.assertTrue(r["step_s"] > cheap[0]["step_s"] or r["money_step"] > cheap[0]["money_step"] or r == cheap[0])
        self.write("profile.yaml", PROFILE.replace(", price_hour: 2", ""))
        self.assertIn("device A100-80GB has no price_hour", self.run_it("--gpus", "64", "--objective", "money", expect=1))
        self.assertIn("--objective is throughput, money or state-bytes", self.run_it("--gpus", "8", "--objective", "speed", expect=2))
        self.assertIn("bytes are known where", self.run_it("--gpus", "8", "--objective", "state-bytes", expect=1))

    def test_the_file_of_devices(self):
        """deploy/devices.yaml agrees with what is built in; its other peaks are used."""
        path = os.path.join(os.path.abspath(replay.ROOT), "deploy", "devices.yaml")
        with open(path, encoding="utf-8") as f:
            names = re.findall(r"name: ([\w-]+),", f.read())
        self.assertGreater(len(names), 10)
        for name in names:
            self.write("profile.yaml", PROFILE.replace("A100-80GB", name).replace("price_hour: 2", "memory_bytes: 8e10, price_hour: 1"))
            self.assertEqual(self.run_it("--gpus", "64"), self.run_it("--gpus", "64", "--devices", path), name)
        self.write("profile.yaml", PROFILE.replace("A100-80GB", "H100-80GB").replace("price_hour: 2", ""))
        plain = self.candidates("--gpus", "64", "--devices", path)["candidates"][0]
        self.write("job.yaml", JOB.replace("uneven: true", "uneven: true, dtype: fp8"))
        fp8 = self.candidates("--gpus", "64", "--devices", path)["candidates"][0]
        self.assertLess(fp8["parts_s"]["compute"], plain["parts_s"]["compute"])
        self.assertIn("only the 16-bit peak", self.run_it("--gpus", "64", expect=1))

    def test_galvatron(self):
        """Files as Galvatron's hardware profiler writes them, for two nodes of eight: its p2p file says what a hop of the
        pipeline takes. One file that is wrong is named in one line."""
        self.write("profile.yaml", PROFILE.replace("nodes: 32", "nodes: 2"))
        self.write("job.yaml", JOB.replace("micro_batch: [1, 2, 4, 8]", "tp: [1], dp: [1], pp: [16], micro_batch: [1]").replace("40", "32"))
        files = {"allreduce_bandwidth_2nodes_8gpus_per_node.json": {"allreduce_size_16_consec_1": 44.682, "allreduce_size_8_consec_0": 20.7724},
                 "p2p_bandwidth_2nodes_8gpus_per_node.json": {"pp_size_2": 7.65998, "pp_size_4": 8.02132, "pp_size_8": 8.76278,
                                                              "pp_size_16": 8.13177},
                 "overlap_coefficient.json": {"overlap_coe": 1.125552573612729}}
        args = []
        for name, values in files.items():
            self.write(name, json.dumps(values, indent=4))
            args += ["--galvatron", name]
        without = self.candidates("--gpus", "16")["candidates"][0]
        with_them = self.candidates("--gpus", "16", *args)["candidates"][0]
        self.assertTrue(with_them["config"].startswith("tp=1,pp=16,dp=1,"), with_them)
        # 2 bytes for each of 2048 tokens and 6144 columns, there and back, over 1023 + 15 boundaries in a row
        hops = 2 * (1023 + 15) * 2 * 2048 * 6144
        self.assertAlmostEqual(hops / 8.13177e9, with_them["parts_s"]["pp"], delta=1e-6)
        self.assertGreater(abs(without["parts_s"]["pp"] - with_them["parts_s"]["pp"]), 1e-3)
        self.write("p2p.json", '{\n    "pp_size_2": 7.6,\n    "pp_size_4": -8\n}')
        self.assertIn("p2p.json:3: pp_size_4 must be in 1e-06..1e+06, not -8", self.run_it("--gpus", "16", "--galvatron", "p2p.json", expect=1))
        self.write("p2p.json", '{"sp_size_2": 7.6}')
        self.assertIn('p2p.json:1: "sp_size_2" is none of', self.run_it("--gpus", "16", "--galvatron", "p2p.json", expect=1))

    def test_bytes_as_objective(self):
        h, layers = 256, 8
        self.write("job.yaml", "version: 1\nname: tiny\ntensors:\n" +
                   "".join(f"  - {{name: h.{i}.up.weight, dtype: F32, shape: [{4 * h}, {h}]}}\n" for i in range(layers)) +
                   'rules: [{match: "*", split: {axis: tp, dim: 0}, layer: "h.{}.*"}]\n'
                   f"model: {{layers: {layers}, hidden: {h}, heads: 8, vocab: 1000, seq: 128}}\n"
                   "space: {global_batch: 64, micro_batch: [1]}\n")
        self.write("profile.yaml", PROFILE.replace("nodes: 32", "nodes: 3"))
        now = ("--gpus", "16", "--now", "tp=2,pp=3,dp=4,micro_batch=1")  # of 24 devices: it cannot stay
        rows = self.candidates(*now, "--objective", "state-bytes")["candidates"]
        self.assertEqual(sorted(r["moved_bytes"] for r in rows), [r["moved_bytes"] for r in rows])
        self.assertFalse(any(r["runs_now"] for r in rows))
        best = min(r["step_s"] for r in self.candidates(*now)["candidates"])
        self.assertLessEqual(rows[0]["step_s"], 1.1 * best * (1 + 1e-9))

    def test_model_inferred_from_tensors(self):
        h, layers = 2048, 8
        tensors = [("embed.weight", [32000, h]), ("lm_head.weight", [32000, h])]
        for i in range(layers):
            tensors += [(f"layers.{i}.attn.{p}_proj.weight", [h, h]) for p in "qkvo"]
            tensors += [(f"layers.{i}.mlp.gate_proj.weight", [8192, h]), (f"layers.{i}.mlp.up_proj.weight", [8192, h]),
                        (f"layers.{i}.mlp.down_proj.weight", [h, 8192])]
        job = ("version: 1\nname: tiny\ntensors:\n" + "".join(f"  - {{name: {n}, dtype: F32, shape: {s}}}\n" for n, s in tensors) +
               'rules: [{match: "*"}]\nmodel: MODEL\nspace: {global_batch: 64, micro_batch: [1]}\n')
        self.write("job.yaml", job.replace("MODEL", "{seq: 1024, heads: 16}"))
        inferred = self.candidates("--gpus", "16")
        self.assertIn("8 layers of 1 kind, hidden 2048, 16 heads of 128, ffn 8192, vocab 32000", inferred["inferred"])
        self.write("job.yaml", job.replace("MODEL", "{layers: 8, hidden: 2048, heads: 16, ffn: 8192, vocab: 32000, seq: 1024, glu: true}"))
        told = self.candidates("--gpus", "16")
        self.assertEqual("", told["inferred"])
        self.assertEqual(told["candidates"], inferred["candidates"])
        self.write("job.yaml", job.replace("layers.", "blocks.x").replace("MODEL", "{seq: 1024}"))
        self.assertIn("do not look like a transformer", self.run_it("--gpus", "16", expect=1))

    def test_without_a_model_what_was_measured(self):
        self.write("job.yaml", "space: {global_batch: 64}\n")
        self.assertIn("has no model:", self.run_it("--gpus", "16", expect=1))
        self.write("profile.yaml", PROFILE + 'measured:\n- {config: "tp=2,pp=1,dp=4,micro_batch=1,global_batch=64", step_s: 8}\n'
                   '- {config: "tp=1,pp=2,dp=8,micro_batch=1,global_batch=64", step_s: 5}\n'
                   '- {config: "tp=1,pp=1,dp=8,micro_batch=1,global_batch=32", step_s: 1}\n')
        rows = json.loads(self.run_it("--gpus", "16", "--format", "json"))["candidates"]
        self.assertEqual([("tp=2,pp=1,dp=8,micro_batch=1", 4.0, False), ("tp=1,pp=2,dp=8,micro_batch=1", 5.0, True)],
                         [(r["config"], r["step_s"], r["measured"]) for r in rows[:2]])
        self.assertTrue(all(r["devices"] <= 16 for r in rows))
        self.assertIn("dp scaled", self.run_it("--gpus", "16"))
        self.write("config.json", '{"model_type": "resnet"}')
        self.write("job.yaml", "model: {config: config.json, seq: 8}\nspace: {global_batch: 64}\n")
        self.assertIn('model_type "resnet" is not known', self.run_it("--gpus", "16"))

    def test_bad_input_is_one_line(self):
        self.assertIn('--gpus is a number in 1..131072, not "0"', self.run_it("--gpus", "0", expect=2))
        self.assertIn('--gpus is a number in 1..131072, not "-1"', self.run_it("--gpus", "-1", expect=2))
        self.assertIn("the profile has 256 devices", self.run_it("--gpus", "257", expect=1))
        self.assertIn("the range is empty", self.run_it("--gpus", "9-3", expect=2))
        self.assertIn("nothing fits on 1 devices of 80.0 GB", self.run_it("--gpus", "1", expect=1))
        self.assertIn("tp=5 does not divide 48 heads", self.run_it("--gpus", "8", "--now", "tp=5", expect=1))
        self.assertIn("--now has global_batch=7, the job's is ", self.run_it("--gpus", "8", "--now", "tp=1,dp=7,global_batch=7", expect=1))
        self.write("profile.yaml", PROFILE.replace("8e10", "-1"))
        self.assertIn("profile.yaml:3: node_bytes_s must be in", self.run_it("--gpus", "8", expect=1))
        self.write("profile.yaml", PROFILE.replace("links", "linsk"))
        self.assertIn('did you mean "links"?', self.run_it("--gpus", "8", expect=1))
        for row, line in (("step_s: 1", "the measured step of tp=5,pp=1,dp=4,micro_batch=1: tp=5 does not divide 48 heads"),
                          ("peak_bytes: 1e9", "the measured peak of tp=5,pp=1,dp=4,micro_batch=1: tp=5 does not divide 48 heads")):
            self.write("profile.yaml", PROFILE + f'measured: [{{config: "tp=5,dp=4,micro_batch=1,global_batch=1024", {row}}}]\n')
            self.assertIn(line, self.run_it("--gpus", "8", expect=1))
        self.write("profile.yaml", PROFILE)
        self.write("job.yaml", JOB.replace("heads: 48", "heads: 48, kv_heads: 7"))
        self.assertIn("kv_heads is 7", self.run_it("--gpus", "8", expect=1))
        self.write("job.yaml", JOB.replace("heads: 48", "heads: 5"))
        self.assertIn("heads must divide hidden, and 5 does not divide 6144", self.run_it("--gpus", "8", expect=1))
        self.write("job.yaml", JOB.split("space:")[0])
        self.assertIn("has no space:", self.run_it("--gpus", "8", expect=1))


if __name__ == "__main__":
    unittest.main()
