# SPDX-License-Identifier: Apache-2.0
"""`ptcctl report`: the page says what the job's events say, needs nothing from elsewhere, and a browser draws it."""
import json
import os
import re
import shutil
import subprocess
import unittest
import xml.etree.ElementTree as xml

import harness
import live
from harness import PATIENCE


class Report(harness.Case):
    def events(self, c, job):
        lines = c.ptcctl("events", job, "--format", "json").stdout.splitlines()
        return [e for e in map(json.loads, lines) if "switch" in e]

    def check_switch(self, event, details):
        """One switch of the page against its event."""
        s = event["switch"]
        text = re.sub(r"<[^>]*>", " ", details)
        for words in (s["kind"], s["from"], f"generation {s['generation']}, snapshot {s['snapshot']}, step {s['step']}"):
            self.assertIn(words, text)
        rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", details)[1:]]
        before = {r["node"]: r["ranks"] for r in s.get("before", [])}
        after = {r["node"]: r["ranks"] for r in s.get("after", [])}
        self.assertEqual({(n, before.get(n, ""), after.get(n, "")) for n in {**before, **after}}, {tuple(r[:3]) for r in rows})

    def test_page(self):
        with self.cluster(nodes=2, devices=2) as c:
            job = live.Job(c, self.dir, steps=100000, sleep=0.01)
            job.run("tp=2")
            job.wait_step(3)
            moved = job.resize("tp=1")
            job.do("snapshot")
            self.refused(c, "resize", "live", "--config", "tp=77")
            job.do("stop")
            path = self.path("page.html")
            self.assertIn(f"{path}: ", c.ptcctl("report", "-o", path).stdout)
            events = self.events(c, "live")
            self.refused(c, "report", "live", codes=(2,), contains="--output FILE")
            self.refused(c, "report", "live", "-o", self.path("no", "such", "folder.html"), contains="folder.html")
            self.refused(c, "report", "nobody", "-o", path, contains="nobody")
        with open(path, encoding="utf-8") as f:
            text = f.read()
        self.assertNotRegex(text, r"https?:|src=|<script|@import|url\(")
        xml.fromstring(re.sub(r"<!DOCTYPE html>|<meta[^>]*>|&nbsp;", "", text)) # every element is closed
        timeline, pauses = (xml.fromstring(d) for d in re.findall(r"<svg.*?</svg>", text, re.S))
        details = re.findall(r"<details>.*?</details>", text, re.S)
        self.assertEqual(len(events), len(details))
        for event, part in zip(events, details):
            self.check_switch(event, part)
        resize, = (e["switch"] for e in events if e["switch"]["kind"] == "resize")
        for key in ("from", "to", "generation", "snapshot", "step", "received_bytes", "captured_bytes", "digests_verified"):
            self.assertEqual(moved[key], resize[key], key)
        self.assertEqual(moved["plan"]["totals"], resize["totals"])
        self.assertIn(f"{resize['pause']['total_ms'] / 1000:.2f} s", [t.text for t in pauses.findall("text")])
        self.assertIn("generation 2: tp=1", [t.text for t in timeline.iter("title")])
        if shutil.which("chromium"):
            self.check_drawn(path)

    def check_drawn(self, path):
        shot = self.path("page.png")
        r = subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={self.path('browser')}",
                            "--window-size=1000,1000", f"--screenshot={shot}", f"file://{path}"], stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120 * PATIENCE)
        self.assertEqual(0, r.returncode, r.stdout)
        self.assertGreater(os.path.getsize(shot), 15_000) # a page with nothing on it takes a third of that
        if os.environ.get("PTC_KEEP_PICTURE"):
            shutil.copy(shot, os.environ["PTC_KEEP_PICTURE"])


if __name__ == "__main__":
    unittest.main()
