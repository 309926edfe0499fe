# SPDX-License-Identifier: Apache-2.0
"""Every scenario of ptc-bench, small: it runs, reports what docs/benchmarking.md says, and leaves nothing. No time is
asserted."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.environ.get("PTC_BUILD", os.path.join(HERE, "..", "..", "build", "release"))


def bench(*args, fails=False):
    r = subprocess.run([sys.executable, os.path.join(HERE, "ptc-bench"), *args, "--build", BUILD], check=False,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=500)
    if (r.returncode != 0) != fails:
        raise AssertionError(f"ptc-bench {' '.join(args)}: exit {r.returncode}\n{r.stdout}{r.stderr}")
    return r


class Smoke(unittest.TestCase):
    def results(self, *args):
        report = json.loads(bench(*args, "--format", "json").stdout)
        self.assertEqual((1, "ptc-bench"), (report["version"], report["tool"]))
        for r in report["results"]:
            self.assertGreater(r["ratio"], 0)
            self.assertGreaterEqual(r["rounds"], 1)
        return report["results"]

    def test_store(self):
        found = {(r["what"], r["chunks"]): r for r in self.results("store", "--mib", "17", "--rounds", "2")}
        self.assertEqual({("write", "touched"), ("write", "cold"), ("read", "touched"), ("read_iov", "touched"),
                          ("verify", "touched")}, set(found))
        self.assertEqual(17 << 20, found["write", "cold"]["bytes"])

    def test_stream(self):
        found = self.results("stream", "--mib", "16", "--rounds", "2", "--streams", "1,3")
        self.assertEqual({(t, w) for t in ("insecure", "unix", "tls") for w in ("1 stream", "3 streams")},
                         {(r["transport"], r["what"]) for r in found})
        self.assertTrue(all(r["gb_per_s"] > 0 and r["limit_gb_per_s"] > 0 for r in found))

    def test_switch(self):
        chunks = tempfile.mkdtemp(prefix="ptc-bench-test-", dir="/dev/shm")
        self.addCleanup(shutil.rmtree, chunks, True)
        found = self.results("switch", "--gib", "0.015", "--rounds", "1", "--transports", "unix", "--store", chunks)
        self.assertEqual({("to tp4", "touched"), ("to tp2,pp2,dp2", "touched"), ("to tp4, after import", "cold"),
                          ("to tp4", "cold"), ("to tp2,pp2,dp2", "cold")}, {(r["what"], r["chunks"]) for r in found})
        for r in found:
            self.assertGreater(r["received_bytes"], 0)
            self.assertGreater(r["each"][0]["digests_verified"], 0)
            self.assertEqual(8 if "tp4" in r["what"] else 12, r["streams"])
        # Half of the state enters two nodes that had its other half; on the way back, that and the other replica.
        forth, back = (next(r for r in found if r["what"] == w) for w in ("to tp4", "to tp2,pp2,dp2"))
        self.assertLess(abs(forth["received_bytes"] / forth["state_bytes"] - 0.5), 0.1)
        self.assertLess(abs(back["received_bytes"] / back["state_bytes"] - 1.5), 0.1)
        self.assertEqual([], os.listdir(chunks))

    def test_table_and_errors(self):
        table = bench("store", "--mib", "16", "--rounds", "1").stdout
        self.assertRegex(table, r"store: write +- +cold +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+")
        line = bench("store", "--mib", "16", "--store", "/nowhere", fails=True).stderr.strip().split("\n")[-1]
        self.assertRegex(line, "^ptc-bench: .*nowhere")
        bench("stream", "--transports", "pigeon", fails=True)


if __name__ == "__main__":
    unittest.main()
