# SPDX-License-Identifier: Apache-2.0
"""The pages that scripts/quickstart draws: what they show is what went in, they need nothing from elsewhere, a browser opens them.
And the loss curves that it compares, as ranks logged them."""
import json
import os
import re
import shutil
import subprocess
import sys
import unittest
import xml.etree.ElementTree as xml

import harness
from harness import PATIENCE

sys.path.insert(0, os.path.join(harness.ROOT, "scripts", "lib"))
import curve  # noqa: E402
import picture  # noqa: E402

STEPS, TOLERANCE = 60, 1e-12


@harness.labels("repeats")
class Picture(harness.Case):
    def page(self):
        """A run like the quickstart's: (page, switches)."""
        reference = {i: {"loss": 4.8 * 0.97**i} for i in range(STEPS)}
        found = {i: {"loss": s["loss"] * (1 + self.random.choice((0, 3e-16)))} for i, s in reference.items()}
        switches = []
        for step, before, after in ((11, "tp=2,pp=2,dp=2", "tp=4"), (35, "tp=4", "tp=2,dp=<3>")):
            pause = {f"{key}_ms": self.random.uniform(1, 900) for key, _ in picture.PARTS}
            switches.append({"from": before, "to": after, "step": step, "digests_verified": 90,
                             "pause": {**pause, "total_ms": sum(pause.values())},
                             "plan": {"totals": {"between_nodes": 3_100_000, "bound_any_mapping": 3_000_000, "bound_exact": False,
                                                 "within_node": 0}}})
        return picture.page(reference, found, switches, TOLERANCE), switches

    def test_page(self):
        text, switches = self.page()
        self.assertNotRegex(text, r"https?:|src=|<script|@import|url\(")
        self.assertNotIn("<3>", text) # names are escaped
        drawings = [xml.fromstring(d) for d in re.findall(r"<svg.*?</svg>", text, re.S)]
        self.assertEqual(3, len(drawings))
        loss, gap, pauses = drawings
        points = [tuple(map(float, p.split(","))) for p in loss.find("polyline").get("points").split()]
        dots = [(float(c.get("cx")), float(c.get("cy"))) for c in loss.findall("circle")]
        self.assertEqual(STEPS, len(points))
        self.assertEqual(points, dots) # the losses differ by less than a pixel
        self.assertEqual(sorted(y for _, y in points), [y for _, y in points]) # downwards on the page, as the loss
        self.assertEqual([points[s["step"]][0] for s in switches], [float(m.get("x1")) for m in loss.findall("line[@class='mark']")])
        self.assertEqual(STEPS, len(gap.findall("circle")))
        bars = [float(r.get("width")) for r in pauses.findall("rect") if r.get("height") == "20"]
        per = len(picture.PARTS)
        for i, s in enumerate(switches):
            total, drawn = s["pause"]["total_ms"], bars[per * i:per * (i + 1)]
            for (key, _), width in zip(picture.PARTS, drawn):
                self.assertAlmostEqual(s["pause"][f"{key}_ms"] / total, width / sum(drawn), delta=0.01)
        for s in switches:
            self.assertIn(f'{s["pause"]["total_ms"] / 1000:.2f} s', text)

    def test_loss_page(self):
        """A machine that is killed: both steps are marked, and each part of the pause has its share."""
        reference = {i: {"loss": 4.8 * 0.97**i} for i in range(STEPS)}
        parts = {key: self.random.uniform(100, 9000) for key, _ in picture.LOSS_PARTS}
        lost = {"node": "<n2>", "begun": 20, "reached": 27, "from": "tp=2,dp=2", "to": "dp=3", "parts": parts}
        text = picture.loss_page(reference, reference, lost, TOLERANCE)
        self.assertNotIn("<n2>", text)
        self.assertIn("7 steps done again", text)
        loss, _, pauses = [xml.fromstring(d) for d in re.findall(r"<svg.*?</svg>", text, re.S)]
        at = [tuple(map(float, p.split(",")))[0] for p in loss.find("polyline").get("points").split()]
        self.assertEqual([at[20], at[27]], [float(m.get("x1")) for m in loss.findall("line[@class='mark']")])
        bars = [float(r.get("width")) for r in pauses.findall("rect") if r.get("height") == "20"]
        for took, width in zip(parts.values(), bars, strict=True):
            self.assertAlmostEqual(took / sum(parts.values()), width / sum(bars), delta=0.01)

    @unittest.skipUnless(shutil.which("chromium"), "needs a browser")
    def test_browser(self):
        """A browser opens the page and draws it; a page with nothing on it would be a much smaller picture."""
        path, shot = self.path("page.html"), self.path("page.png")
        with open(path, "w", encoding="utf-8") as f:
            f.write(self.page()[0])
        r = subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.path('browser')}",
                            "--window-size=1000,1500", f"--screenshot={shot}", f"file://{path}"], stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120 * PATIENCE)
        self.assertEqual(0, r.returncode, r.stdout)
        self.assertGreater(os.path.getsize(shot), 30_000) # a blank page of this size takes under 10 kB


@harness.labels("repeats")
class Curve(harness.Case):
    def log(self, rank, run, steps, samples, loss=lambda step: 4.0 - step / 10):
        with open(self.path(f"rank-{rank}.jsonl"), "a", encoding="ascii") as f:
            for step in steps:
                line = {"step": step, "run": run, "loss": loss(step), "lr": 0.1, "samples": [step * 4 + s for s in samples]}
                f.write(json.dumps(line) + "\n")

    def whole(self):
        return {i: {"loss": 4.0 - i / 10, "lr": 0.1, "samples": [4 * i + s for s in range(4)]} for i in range(8)}

    def test_gone_back(self):
        """Two ranks come to steps 5 and 6, one alone goes on from step 4: what was done before from there on does not count."""
        self.log(0, 1, range(5), (0, 1))
        self.log(2, 1, range(6), (2, 3))
        self.log(0, 2, range(4, 8), (0, 1, 2, 3))
        found = curve.read(self.dir)
        self.assertEqual(0, curve.difference(self.whole(), found))
        curve.check_samples(found, 32, 4)
        self.assertEqual({4: [3.6, 3.6], 5: [3.5, 3.5]}, curve.repeated(self.dir))

    def test_steps_missing(self):
        """It goes on from step 6, where step 5 had not been ended; from step 4 with steps 6 and 7 of before; a sample is used twice."""
        self.log(0, 1, range(5), range(4))
        self.log(0, 2, range(6, 8), range(4))
        with self.assertRaisesRegex(ValueError, "steps .* not "):
            curve.difference(self.whole(), curve.read(self.dir))
        self.log(0, 3, range(4, 6), range(4))
        with self.assertRaisesRegex(ValueError, "steps .* not "):
            curve.difference(self.whole(), curve.read(self.dir))
        self.log(0, 4, range(6, 8), (0, 1, 2, 2))
        with self.assertRaisesRegex(ValueError, "step 6: samples"):
            curve.difference(self.whole(), curve.read(self.dir))
        with self.assertRaisesRegex(ValueError, "samples were used 0 to 2 times"):
            curve.check_samples({s - 4: v for s, v in curve.read(self.dir).items() if s >= 4}, 40, 4)

    def test_loss_other_than_before(self):
        self.log(0, 1, range(8), range(4))
        self.log(0, 2, range(3, 8), range(4), lambda step: 4.0 - step / 10 + (step == 5))
        self.assertEqual([3.5, 4.5], curve.repeated(self.dir)[5])
        self.assertGreater(curve.difference(self.whole(), curve.read(self.dir)), 0.2)


if __name__ == "__main__":
    unittest.main()
