# SPDX-License-Identifier: Apache-2.0
"""examples/gpt without ptc: every parallelism has the loss curve of one process, and runs follow each other in the
same processes, with everything rebuilt, without growing. What a resize must preserve can only be judged against that."""
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "scripts", "lib"))
import curve  # noqa: E402
import harness  # noqa: E402

RANKS = 8
LIMIT_S = 800


def shape(tp, pp, dp, zero="0", *more):
    return ["--tp", str(tp), "--pp", str(pp), "--dp", str(dp), "--zero", zero, *more]


@unittest.skipUnless(importlib.util.find_spec("torch"), "no PyTorch: scripts/venv --torch")
class Gpt(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ptc-gpt.")
        self.addCleanup(shutil.rmtree, self.folder)

    def run_jobs(self, jobs):
        """jobs: [(name, options, damage)], run one after the other by the same 8 processes."""
        with open(os.path.join(self.folder, "jobs.json"), "w", encoding="ascii") as f:
            json.dump([RANKS, jobs], f)
        log = open(os.path.join(self.folder, "log"), "w+", encoding="utf-8")
        program = os.path.join(ROOT, "tests", "gpt_rank.py")
        ranks = [subprocess.Popen([sys.executable, "-W", "ignore", program, str(r), self.folder], stdout=log, stderr=log)
                 for r in range(RANKS)]
        try:
            end = time.monotonic() + LIMIT_S
            while any(r.poll() is None for r in ranks):
                if any(r.poll() for r in ranks) or time.monotonic() > end:
                    break
                time.sleep(0.1)
            codes = [r.poll() for r in ranks]
        finally:
            for r in ranks:
                r.kill()
                r.wait()
            log.seek(0)
            tail = log.read()[-6000:]
            log.close()
        self.assertFalse(codes == [None] * RANKS, f"not within {LIMIT_S} s")
        self.assertEqual([0] * RANKS, codes, tail)

    def curve(self, name):
        return curve.read(os.path.join(self.folder, name))

    def use(self, rank):
        with open(os.path.join(self.folder, f"use-{rank}.jsonl"), encoding="ascii") as f:
            return [json.loads(line) for line in f]

    def check_curves(self, jobs, limit, damaged=()):
        reference = self.curve("reference")
        for name, _, _ in jobs[1:]:
            d = curve.difference(reference, self.curve(name))
            print(f"{name}: relative difference {d:.1e}, may be {limit:.0e}", flush=True)
            if name in damaged:
                self.assertGreater(d, limit, f"{name}: the comparison does not see it")
            else:
                self.assertLessEqual(d, limit, name)
        return reference

    @unittest.skipUnless(harness.LONG, "takes minutes: PTC_TEST_LONG")
    def test_float32_and_rebuilds(self):
        base = ["--steps", "20"]
        shapes = {"reference": shape(1, 1, 1), "tp2-pp2-dp2": shape(2, 2, 2), "dp3, batch not divided": shape(1, 1, 3),
                  "tp2-pp3": shape(2, 3, 1), "tp2-pp2-dp2-zero1": shape(2, 2, 2, "1"),
                  "tp2-dp3-fsdp": shape(2, 1, 3, "fsdp"), "tp4-dp2-zero1 on one device": shape(4, 1, 2, "1", "--one-device")}
        if harness.CAMPAIGN:
            shapes |= {"tp2-dp2": shape(2, 1, 2), "pp3-dp2": shape(1, 3, 2), "dp3-zero1": shape(1, 1, 3, "1"),
                       "tp2-pp2-dp2-fsdp": shape(2, 2, 2, "fsdp"), "tp4-pp2": shape(4, 2, 1)}
        jobs = [(name, options + base, None) for name, options in shapes.items()]
        self.run_jobs(jobs)
        reference = self.check_curves(jobs, 2e-6)
        self.assertLess(reference[19]["loss"], 0.7 * reference[0]["loss"])
        for rank in range(RANKS):
            use = self.use(rank)
            for what, since, may_grow in (("fds", 1, 2), ("threads", 1, 2), ("rss_mib", 4, 60)):
                values = [u[what] for u in use]
                if rank == 0:
                    print(f"{what} after each of {len(use)} jobs: {values}")
                self.assertLessEqual(values[-1], values[since] + may_grow, f"rank {rank}: {what} {values}")

    @unittest.skipUnless(harness.LONG, "takes minutes: PTC_TEST_LONG")
    def test_float64_clipped(self):
        """With the gradient's norm over all ranks clipped. Losing one row of one first moment of the first layer's wq
        once is seen here; in float32 it is not: it shows as 1e-6, which rounding reaches too."""
        base = ["--steps", "20", "--dtype", "float64", "--clip", "0.5"]
        shapes = {"reference": shape(1, 1, 1), "tp2-pp2-dp2-zero1": shape(2, 2, 2, "1"),
                  "tp2-dp3-fsdp": shape(2, 1, 3, "fsdp"), "tp2-pp3": shape(2, 3, 1)}
        jobs = [(name, options + base, None) for name, options in shapes.items()]
        jobs.append(("not clipped", shape(1, 1, 1) + base[:4], None))
        jobs.append(("damaged", shape(1, 1, 1) + base, [160, 160]))
        self.run_jobs(jobs)
        self.check_curves(jobs, 1e-12, ["not clipped", "damaged"])
