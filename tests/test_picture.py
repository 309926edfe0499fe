# SPDX-License-Identifier: Apache-2.0
"""The page that scripts/quickstart draws: what it shows is what went in, it needs nothing from elsewhere, a browser opens it."""
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


if __name__ == "__main__":
    unittest.main()
