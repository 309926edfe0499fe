# SPDX-License-Identifier: Apache-2.0
"""The devices of a node through its daemon, on the fake driver's NVML: found, listed, given to ranks."""
import contextlib
import os
import subprocess

import harness
import live
from harness import PATIENCE, wait_for

FAKE = harness.binary("tests/gpu/fake")
UUIDS = ["GPU-" + "-".join(b * n for n in (4, 2, 2, 2, 6)) for b in ("d0", "d1", "d2", "d3")]


class GpuDevices(harness.Case):
    def fake(self, **more):
        os.makedirs(self.path("gpu"), exist_ok=True)
        return {"LD_LIBRARY_PATH": FAKE, "PTC_FAKE_GPU": self.path("gpu"), **more}

    @contextlib.contextmanager
    def gpus(self, devices="auto", **env):
        """A cluster of one node, whose devices are the fake driver's."""
        with self.cluster(up=False, nodes=1) as c:
            c.write_config(c.nodes["n0"], devices=devices)
            c.up({"n0": self.fake(**env)}, timeout_s=60 * PATIENCE)
            yield c

    def devices(self, c):
        return c.json("nodes", "--devices")["device_list"]

    def test_lists(self):
        """auto: who they are; which are not shown are not the node's; how they are now, within some seconds."""
        with self.gpus(PTC_FAKE_GPU_DEVICES="4", CUDA_VISIBLE_DEVICES="3,0", PTC_FAKE_NVML="0:busy") as c:
            first, second = self.devices(c)
            self.assertEqual(first, {
                "node": "n0", "device": 0, "kind": "gpu", "health": "ok", "uuid": UUIDS[3], "name": 'Fake "GPU" 3', "index": 3,
                "bus": "00000000:1A:00.0", "memory_bytes": 256 << 20, "free_bytes": 200 << 20, "processes": 0, "ranks": [], "jobs": []})
            self.assertEqual((second["uuid"], second["device"], second["processes"]), (UUIDS[0], 1, 2))
            self.assertEqual(c.json("nodes")["nodes"][0]["devices"], 2)
            table = c.ptcctl("nodes", "--devices").stdout.splitlines()
            self.assertEqual(table[0].split(), ["node", "device", "kind", "health", "name", "uuid", "memory_bytes", "free_bytes", "jobs", "ranks"])
            self.assertEqual(len(table), 3)
            open(self.path("gpu", "lost-3"), "w").close()
            lost = wait_for(lambda: [d for d in self.devices(c) if d["health"] == "lost"], 60 * PATIENCE, "the lost device is listed", 0.2)
            self.assertEqual([d["uuid"] for d in lost], [UUIDS[3]])
            self.assertIn("no longer shows it", lost[0]["why"])

    def test_unhealthy(self):
        """A device that is not well is given to no rank: the others are, and who wants more hears why."""
        with self.gpus(PTC_FAKE_GPU_DEVICES="3", PTC_FAKE_NVML="1:ecc") as c:
            node = c.json("nodes")["nodes"][0]
            self.assertEqual(("1:ecc", 2, 3), (node["unhealthy"], node["devices_free"], node["devices"]))
            self.assertIn("unhealthy", c.ptcctl("nodes").stdout.splitlines()[0])
            self.assertEqual(["ok", "ecc", "ok"], [d["health"] for d in self.devices(c)])
            job = live.Job(c, self.dir)
            r = job.run("tp=3", check=False)
            self.assertNotEqual(0, r.returncode)
            self.assertIn(r"3 devices are needed, 2 are known, up and not drained; n0:1 is not well (ecc); add nodes first", r.stderr)
            job.run("tp=2")
            self.assertEqual([0, 2], sorted(r["device"] for r in job.status()["run"]["ranks"]))
            job.wait_step(3)
            job.do("stop")

    def test_virtual(self):
        with self.gpus(devices=3) as c:
            self.assertEqual(self.devices(c), [{"node": "n0", "device": i, "kind": "virtual", "health": "ok", "ranks": [], "jobs": []} for i in range(3)])

    def test_none(self):
        """Without a driver auto says so, and what to do."""
        with self.cluster(up=False, nodes=1) as c:
            node = c.nodes["n0"]
            c.write_config(node, devices="auto")
            r = subprocess.run([harness.program("ptcd"), "--config", node.config, "--check-config"], text=True,
                               env={**os.environ, "LD_LIBRARY_PATH": "/nonexistent"}, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, timeout=60 * PATIENCE)
            self.assertNotEqual(r.returncode, 0)
            self.assertRegex(r.stdout, "devices: auto found no device: no NVIDIA driver on this node: .*write devices: NUMBER")

    def given(self, c, config):
        """What ranks find in their environment: {rank: {name: value}}; and how the node lists them meanwhile."""
        job = live.Job(c, self.dir, mode="restart", hold_at=1,
                       env={"CUDA_VISIBLE_DEVICES": "7", "PTC_DEVICES": "mine", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
        job.run(config)
        found, ranks = {}, job.status()["run"]["ranks"] if "ranks" in job.status()["run"] else job.status()["ranks"]
        for r in ranks:
            with open(f"/proc/{r['pid']}/environ", "rb") as f:
                all_ = dict(e.split(b"=", 1) for e in f.read().split(b"\0") if b"=" in e)
            found[r["rank"]] = {n: all_.get(n.encode(), b"").decode() for n in ("CUDA_VISIBLE_DEVICES", "PTC_DEVICES", "CUDA_DEVICE_ORDER")}
        listed = {d["device"]: [(r["job"], r["rank"], r["pid"]) for r in d["ranks"]] for d in self.devices(c)}
        self.assertEqual(listed, {r["device"]: [("live", r["rank"], r["pid"])] for r in ranks} |
                         {d: [] for d in listed if d not in [r["device"] for r in ranks]})
        job.let_go()
        job.do("stop")
        return found

    def test_ranks(self):
        """Each rank sees the node's devices in the node's order; of virtual ones nothing is said, and a job's own words stay."""
        with self.gpus(CUDA_VISIBLE_DEVICES="1,0") as c:
            ids = f"{UUIDS[1]},{UUIDS[0]}"
            want = {"CUDA_VISIBLE_DEVICES": ids, "PTC_DEVICES": ids, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
            self.assertEqual(self.given(c, "tp=2"), {0: want, 1: want})
        with self.gpus(devices=2) as c:
            mine = {"CUDA_VISIBLE_DEVICES": "7", "PTC_DEVICES": "mine", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
            self.assertEqual(self.given(c, "tp=2"), {0: mine, 1: mine})
