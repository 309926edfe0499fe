# SPDX-License-Identifier: Apache-2.0
"""What planner/ must reach on published measurements (tests/planner_replay.py; docs/planner.md has the figures), and
where it must not. Without the data these are skipped."""
import json
import unittest

import planner_replay as replay


class Replay(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        path = replay.default_data()
        if not path:
            raise unittest.SkipTest("no published measurements: set PTC_PLANNER_DATA")
        with open(path, encoding="utf-8") as f:
            cls.data = json.load(f)
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
        self.assertLessEqual(out["regret"], 0.05 + out["regret_se"])
        self.assertLessEqual(out["mape"], 0.08 + out["mape_se"])

    def test_peaks_of_memory(self):
        found = replay.peaks(self.planner, self.data)
        self.assertGreater(found["all"]["rows"], 50)
        self.assertLessEqual(found["all"]["median_error_fitted_on_a_third"], 0.10)

    def test_veto(self):
        found = replay.veto(self.planner, self.data)
        self.assertGreater(found["ran"], 200)
        self.assertEqual([], found["ran_refused"])
        self.assertGreater(found["out_of_memory"], 0)
        self.assertEqual([], found["out_of_memory_taken"])


if __name__ == "__main__":
    unittest.main()
