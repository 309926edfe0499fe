# SPDX-License-Identifier: Apache-2.0
"""Every scenario of ptc-bench, small: it runs, reports what docs/benchmarking.md says, and leaves nothing. No time is
asserted."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "scripts", "lib")]
import files  # noqa: E402
import index  # noqa: E402
import limits  # noqa: E402
import pause  # noqa: E402
import ranks  # noqa: E402
import samples  # noqa: E402
PAUSE = {"total", "stop", "copy", "commit", "end", "build", "move", "restore", "first_step"}
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
            self.assertGreater(r["ratio"] if "ratio" in r else r["seconds"], 0)
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
        for r in found:
            self.assertTrue(r["gb_per_s"] > 0 and r["limit_gb_per_s"] > 0 and r["limit_spread"] >= 0)
            self.assertEqual("TLS over loopback TCP" if r["transport"] == "tls" else "loopback TCP", r["limit"])

    def test_limits(self):
        """The limit of a round is measured around it; that of a switch is made of rates measured before and after it."""
        rounds = [{"s": {"bytes": 10, "seconds": 4, "cpu_seconds": 4}, "l": {"bytes": 10, "seconds": t, "cpu_seconds": t}} for t in (1, 3)]
        found = limits.summary(rounds, "s", "l")
        self.assertAlmostEqual(2, found["ratio"]) # 4 / 2 both times; by its own sample alone, 4 / 1 and 4 / 3
        self.assertAlmostEqual(1, found["limit_spread"])
        each = [{"bytes": 10, "seconds": s, "limit_seconds": t, "kernel_seconds": 1} for s, t in ((9, 6), (4, 1), (4, 3))]
        later, first = ranks.timed("save", "x", each, 1)
        self.assertEqual(("x", "x, first", 2, 1), (later["what"], first["what"], later["rounds"], first["rounds"]))
        # Around the three rounds it took 3.5, 3 and 2; by their own samples alone, ratios would be 1.5, 4 and 4/3.
        self.assertAlmostEqual(9 / 3.5, first["ratio"])
        self.assertAlmostEqual((4 / 3 + 4 / 2) / 2, later["ratio"])
        ours = limits.Limits.__new__(limits.Limits)
        rate = {(name, what): each for name, each in (("moved", 2), ("copied", 1)) for what in ("seconds", "cpu_seconds")}
        ours.before, ours.all = [rate], [rate]
        ours.sample = lambda streams: [{k: 3 * v for k, v in rate.items()}]
        self.assertEqual((50, 50), ours.of(8, moved=10, copied=5)) # twice the first rates: halfway between both samples
        self.assertAlmostEqual(1, ours.spread())

    def test_scale(self):
        for r in self.results("scale", "--scale", "small", "--rounds", "1", "--seed", "7"):
            self.assertTrue(r["moves"] > 0 and r["within_limits"])
            self.assertEqual(r["moves"], r["moves_between"] + r["moves_within"])
            self.assertEqual("shard=buffer" in r["what"], "seed" not in r)
            if "seed" in r:
                self.assertEqual((min(64, r["new_ranks"]), 7), (r["ranks_checked"], r["seed"]))
                self.assertGreater(r["boxes_checked"], r["ranks_checked"])

    @unittest.skipUnless(os.environ.get("PTC_TEST_LONG") and os.environ.get("PTC_PEERS_PYTHON"), "starts 40 processes of PyTorch: PTC_TEST_LONG=1")
    def test_pause(self):
        found = {r["what"]: r for r in self.results("pause", "--rounds", "1", "--python", os.environ["PTC_PEERS_PYTHON"], "--trainers", "gpt")}
        ways = {f"gpt, {shapes}, {way}" for shapes in ("8 to 4", "4 to 8") for way in ("torchrun + DCP", "build: ahead", "build: after")}
        self.assertEqual(ways, set(found))
        for what, r in found.items():
            self.assertEqual("ahead" in what, r.get("built_ahead", 0) > 0)
            self.assertEqual("torchrun" not in what, "pause" in r)
            self.assertGreater(r["step_after"], 0)

    def test_pause_of_c_trainer(self):
        chunks = self.store()
        args = ("pause", "--rounds", "1", "--trainers", "c", "--store", chunks)
        found = {r["what"]: r for r in self.results(*args)}
        self.assertEqual({f"c, {shapes}, build: {build}" for shapes in ("8 to 4", "4 to 8") for build in ("ahead", "after")}, set(found))
        for what, r in found.items():
            self.assertEqual(PAUSE, set(r["pause"]))
            self.assertEqual("ahead" in what, r["built_ahead"] > 0)
            self.assertEqual(r["slowed"] / r["built_ahead"] if r["slowed"] is not None else None, r["slowed_share"])
        some = {"what": "x", "seconds": 1, "pause": {"stop": 0.1, "copy": 0.2, "commit": 0.3, "move": 0, "restore": 0.25, "first_step": 0.15},
                "step": 0.02, "step_after": 0.1, "built_ahead": 4, "slowed_share": 0.12, "lost": 1.5, "lost_told": 1.48}
        self.assertIn("stop 100, state 750, end 0, build 0, first step 150; a step takes 20 ms before, 100 after; built ahead 4.0 s, in "
                      "which training was slowed by 12 %; training time lost 1.50 s (1.48", pause.line(some))
        self.assertIn("(1/5 of torchrun's; 1/10 without a step after, 0.90 s)", pause.line({**some, "ratio": 0.2, "ratio_without_step": 0.1}))
        self.assertEqual([], os.listdir(chunks))

    def test_planner(self):
        found = {(r["what"], r["devices"]): r for r in self.results("planner", "--scale", "small", "--rounds", "2")}
        self.assertEqual({(w, 64) for w in ("search, dense", "search, experts", "search, two kinds of devices", "search, the cheapest",
                                            "frontier, dense", "look-ups, dense", "mapping")}, set(found))
        self.assertIn("tp=", found["search, dense", 64]["answer"])

    def test_scale_over_its_limits(self):
        """It reports what it found, says which case took too much, and fails."""
        r = bench("scale", "--scale", "small", "--rounds", "1", "--limit-s", "1e-9", "--format", "json", fails=True)
        found = json.loads(r.stdout)["results"]
        self.assertTrue(found and not any(f["within_limits"] for f in found))
        lines = [line for line in r.stderr.split("\n") if line.startswith("ptc-bench: scale: ")]
        self.assertEqual(len(found), len(lines), r.stderr)
        self.assertRegex(lines[1], "dense, a node less took [0-9.]+ CPU seconds and [0-9]+ MiB; the limits are 1e-09 and 512")

    def test_switch(self):
        chunks = tempfile.mkdtemp(prefix="ptc-bench-test-", dir="/dev/shm")
        self.addCleanup(shutil.rmtree, chunks, True)
        found = self.results("switch", "--gib", "0.015", "--rounds", "1", "--transports", "unix", "--store", chunks)
        self.assertEqual({(f"{to}{which}", chunks) for chunks in ("touched", "cold")
                          for to, first in (("to tp4", ", after import"), ("to tp2,pp2,dp2", ", first")) for which in ("", first)},
                         {(r["what"], r["chunks"]) for r in found})
        self.assertEqual({"sockets", "memory"}, {r["way"] for r in found})
        for r in found:
            self.assertGreater(r["received_bytes"], 0)
            self.assertEqual(r["way"] == "memory", r["near_bytes"] > 0)
            self.assertGreater(r["each"][0]["digests_verified"], 0)
            self.assertEqual(8 if "tp4" in r["what"] else 12, r["streams"])
        # Half of the state enters two nodes that had its other half; on the way back, that and the other replica.
        forth, back = (next(r for r in found if r["what"] == w) for w in ("to tp4", "to tp2,pp2,dp2"))
        self.assertLess(abs(forth["received_bytes"] / forth["state_bytes"] - 0.5), 0.1)
        self.assertLess(abs(back["received_bytes"] / back["state_bytes"] - 1.5), 0.1)
        self.assertEqual([], os.listdir(chunks))

    def store(self):
        chunks = tempfile.mkdtemp(prefix="ptc-bench-test-", dir="/dev/shm")
        self.addCleanup(shutil.rmtree, chunks, True)
        return chunks

    def test_boundary(self):
        (r,) = self.results("boundary", "--spin", "10000", "--store", self.store())
        self.assertTrue(r["ns"] > 0 and r["limit_ns"] > 0)

    def test_save(self):
        chunks = self.store()
        found = self.results("save", "--gib", "0.01", "--rounds", "1", "--store", chunks)
        rows = {(c, copy, pages) for c in ("tp=2", "dp=2") for copy in ("lean", "fast") for pages in ("small", "huge")}
        self.assertEqual({(*row, rounds) for row in rows for rounds in (1, ranks.NEW_CHUNKS)},
                         {(r["config"], r["copy"], r["pages"], r["rounds"]) for r in found})
        self.assertEqual(len(rows), sum(r["what"].endswith("pages, first") for r in found))
        whole = {c: max(r["bytes"] for r in found if r["config"] == c) for c in ("tp=2", "dp=2")}
        self.assertLess(abs(whole["dp=2"] / whole["tp=2"] - 2), 0.1) # both ranks have all of it
        self.assertEqual([], os.listdir(chunks))

    def test_huge_pages(self):
        """libptc puts declared memory into huge pages while ranks run, unless it is told not to."""
        if not os.path.exists("/sys/kernel/mm/transparent_hugepage"):
            self.skipTest("a kernel without huge pages")
        args = argparse.Namespace(gib=0.1, store=self.store(), build=BUILD)

        def huge(j):
            with open(f"/proc/{j.cluster.json('status', 'bench')['jobs'][0]['run']['ranks'][0]['pid']}/smaps_rollup") as f:
                return next(int(line.split()[1]) << 10 for line in f if line.startswith("AnonHugePages"))

        for pages, least in (("plain", 0), ("small", 16 << 20)):
            with tempfile.TemporaryDirectory(prefix="ptc-bench-") as work:
                with ranks.job(args, work, "tp=1", self.fail, nodes=1, devices=1, pages=pages) as j:
                    j.wait_measured(1, 1)
                    if least:
                        ranks.wait_for(lambda: huge(j) >= least, 60, f"{least} bytes in huge pages", 0.1)
                    else:
                        self.assertEqual(0, huge(j))

    def test_restore(self):
        chunks = self.store()
        found = self.results("restore", "--gib", "0.01", "--rounds", "1", "--store", chunks, "--pages", "small")
        self.assertEqual([f"tp=2 and tp=1,pp=2, small pages{which}" for which in ("", ", first")], [r["what"] for r in found])
        self.assertEqual([], os.listdir(chunks))

    def test_live_switch(self):
        chunks = self.store()
        python = os.environ.get("PTC_PEERS_PYTHON", "")
        found = {r["what"]: r for r in self.results("live-switch", "--gib", "0.01", "--rounds", "1", "--nodes", "1,4", "--store",
                                                    chunks, "--python", python)}
        peers = {f"{s}, {w}" for s in ("dcp", "safetensors", "gloo") for w in ("first call", "later calls")} if python else set()
        self.assertEqual({f"{w}, {n}" for w in ("to tp4", "to tp4, first", "to tp2,pp2,dp2", "to tp2,pp2,dp2, first") for n in ("1 node", "4 nodes")} |
                         peers, set(found))
        for what, r in found.items():
            if what not in peers:
                self.assertGreater(r["each"][0]["digests_verified"], 0)
                self.assertTrue(r["limit_seconds"] > 0 and r["ratio"] > 0 and r["limit_spread"] >= 0)
                self.assertEqual(PAUSE, set(r["pause"]))
                self.assertEqual("lean", r["copy"])
                self.assertEqual({"ptcd", "ptc-copy", "ranks"}, set(r["cpu"]))
                self.assertTrue(min(r["cpu"].values()) > 0 and r["cpu_ratio"] > 0, r["cpu"])
        self.assertEqual([], os.listdir(chunks))

    @unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/fuse"), "needs root and /dev/fuse, to mount")
    def test_fuse(self):
        chunks = self.store()
        found = {r["what"]: r for r in self.results("fuse", "--mib", "12", "--rounds", "1", "--store", chunks)}
        self.assertEqual({f"{where}, {way}" for where in ("local", "remote") for way in files.WAYS} |
                         {"remote, first, to one stream"}, set(found))
        streamed, beside = found["remote, first, to one stream"], found["remote, first"]
        self.assertEqual(("one bulk stream", beside["gb_per_s"]), (streamed["limit"], streamed["gb_per_s"])) # of the same rounds
        self.assertNotEqual(beside["limit_gb_per_s"], streamed["limit_gb_per_s"])
        self.assertGreater(streamed["bytes"], 12 << 20)
        self.assertEqual([], os.listdir(chunks))

    def test_import_export(self):
        """The scenario compares the exported file with the imported one."""
        chunks = self.store()
        found = self.results("import-export", "--mib", "16", "--rounds", "1", "--transports", "unix", "--nodes", "1,2", "--store", chunks)
        self.assertEqual({f"{what}, {nodes}" for what in ("import", "export") for nodes in ("1 node", "2 nodes")},
                         {r["what"] for r in found})
        self.assertEqual({("1 node", "sockets"), ("2 nodes", "sockets"), ("2 nodes", "memory")},
                         {(r["what"].split(", ")[1], r["way"]) for r in found})
        self.assertTrue(all(r["bytes"] > 16 << 20 and r["cpu_s_per_gb"] > 0 and r["limit"] == "cp" for r in found))
        self.assertEqual([], os.listdir(chunks))

    def test_many_tensors(self):
        found = self.results("many-tensors", "--tensors", "300", "--rounds", "2", "--transports", "unix", "--nodes", "1,2")
        self.assertEqual({f"300 tensors to {to}, {nodes}" for to in ("tp4, first", "tp2, first", "tp4", "tp2")
                          for nodes in ("1 node", "2 nodes")}, {r["what"] for r in found})

    @unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/fuse"), "needs root and /dev/fuse, to mount")
    def test_small_files(self):
        """The scenario compares every file with what was imported."""
        chunks = self.store()
        found = {r["what"]: r for r in self.results("small-files", "--tensors", "500", "--rounds", "1", "--store", chunks)}
        self.assertEqual({f"500 tensors of 12 B, {where}, {way}{to}" for where in ("local", "remote") for way in ("cold", "warm")
                          for to in ("", ", to a bare server")}, set(found))
        for what, r in found.items():
            self.assertEqual((500, 500 * (128 + 12)), (r["tensors"], r["bytes"]))
            self.assertEqual("a server that only answers" if "bare" in what else "the tree on tmpfs", r["limit"])
        with open("/proc/self/mounts") as f:
            self.assertNotIn("ptc-bench-floor", f.read())
        self.assertEqual([], os.listdir(chunks))

    @unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/fuse"), "needs root and /dev/fuse, to mount")
    def test_samples(self):
        """The DataLoader compares every byte of the first round with a copy, the scenario that copy with its source."""
        chunks, python = self.store(), os.environ.get("PTC_PEERS_PYTHON", "")
        found = {r["what"]: r for r in self.results("samples", "--mib", "8", "--rounds", "1", "--store", chunks, "--python", python)}
        self.assertEqual({f"{shape}, {n} workers" for shape in ("tokens", "files") for n in (2, 0)} if python else set(), set(found))
        for what, r in found.items():
            self.assertEqual(r["samples"], 2 * r["read"], what) # by one of two ranks
            self.assertTrue(r["samples_per_s"] > 0 and r["limit_samples_per_s"] > 0)
            self.assertEqual(4096 * r["read"] if "tokens" in what else r["bytes"], r["bytes"])
        self.assertEqual([], os.listdir(chunks))
        self.assertIn("samples is left out", bench("samples", "--python", "/nowhere", "--store", chunks).stderr)

    def test_samples_differ(self):
        """What compares them notices another byte."""
        top = tempfile.mkdtemp(prefix="ptc-bench-test-")
        self.addCleanup(shutil.rmtree, top)
        rows = [3, 1, 2]
        with open(os.path.join(top, "ids.npy"), "wb") as f:
            f.write(b"\x93NUMPY\1\0" + (118).to_bytes(2, "little") + b" " * 118 + b"".join(i.to_bytes(8, "little") for i in rows))
        with open(os.path.join(top, "samples.bin"), "wb") as f:
            f.write(b"".join(samples.sample(i, 2 * samples.TOKENS) for i in rows))
        samples.check(top, "tokens")
        with open(os.path.join(top, "samples.bin"), "r+b") as f:
            f.seek(2 * samples.TOKENS + 100)
            byte = f.read(1)[0]
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte ^ 1]))
        self.assertRaisesRegex(Exception, "sample 1 has other bytes", samples.check, top, "tokens")

    @unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/dev/fuse"), "needs root and /dev/fuse, to mount")
    def test_index(self):
        chunks, n = self.store(), 200001
        found = {r["what"]: r for r in self.results("index", "--samples", str(n), "--mib", "8", "--rounds", "1", "--store", chunks)}
        reads = {f"{kind} {name}, {way}" for kind, names in index.READ.items() for name in names for way in ("open", *index.WAYS)}
        self.assertEqual(reads | {"flat, add", "indexed, add", "indexed, check", "memory", "order, at random", "order, in runs of 64"},
                         set(found))
        self.assertEqual({n}, {r["samples"] for r in found.values()})
        self.assertTrue(all(r["us"] > 0 and r["limit_us"] > 0 for r in found.values() if "us" in r))
        self.assertEqual(index.LOOKED_AT + 2, found["memory"]["slots_checked"])
        self.assertEqual({"ptcd", "ptc-fuse", "reader"}, set(found["memory"]["rss_bytes"]))
        # Memory does not depend on the number of samples, so that is no time; a table of 10^9 would take gigabytes.
        self.assertLess(max(b for _, b in found["memory"]["rss_bytes"].values()), 256 << 20)
        self.assertEqual([], os.listdir(chunks))

    def test_table_and_errors(self):
        table = bench("store", "--mib", "16", "--rounds", "1").stdout
        self.assertRegex(table, r"store: write +- +cold +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9]+ %")
        line = bench("store", "--mib", "16", "--store", "/nowhere", fails=True).stderr.strip().split("\n")[-1]
        self.assertRegex(line, "^ptc-bench: .*nowhere")
        bench("stream", "--transports", "pigeon", fails=True)
        bench("save", "--copy", "pigeon", fails=True)
        bench("live-switch", "--nodes", "3", fails=True)
        bench("pause", "--trainers", "pigeon", fails=True)


if __name__ == "__main__":
    unittest.main()
