# SPDX-License-Identifier: Apache-2.0
"""examples/gpt under a cluster, for minutes (PTC_TEST_LONG): switched again and again while it trains, nothing grows and the
losses stay those of one process; and to another parallelism and back without a step between, every byte is as it was."""
import base64
import json
import os
import subprocess
import sys
import unittest

import harness  # first: it says where the others are
import curve
from harness import PATIENCE
from test_torch import HAS_TORCH, Job

A = "tp=2,dp=2"


@unittest.skipUnless(HAS_TORCH, "no PyTorch: scripts/venv --torch")
@unittest.skipUnless(harness.LONG, "takes minutes: PTC_TEST_LONG")
class GptLive(harness.Case):
    def job(self, c, mode, *options, name="gpt"):
        self.out = self.path(f"{name}-out")
        os.makedirs(self.out, mode=0o777)
        return Job(c, self.dir, name, mode, program=["gpt_live.py", *options, "--out", self.out])

    def reference(self, *options):
        out = self.path("reference")
        subprocess.run([sys.executable, "-B", "-W", "ignore", os.path.join(harness.ROOT, "examples", "gpt", "train_plain.py"),
                        *options, "--out", out], check=True, stdin=subprocess.DEVNULL)
        return curve.read(out)

    # ---- many switches

    @staticmethod
    def memory_kib(pid):
        """Memory of its own, which a page of a file or of shared memory is not."""
        with open(f"/proc/{pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("RssAnon:"))

    def usage(self, c, job):
        out = {}
        daemons, ranks = [n.pid() for n in c.nodes.values()], [r["pid"] for r in job.status()["run"]["ranks"]]
        for kind, pids in (("ptcd", daemons), ("rank", ranks)):
            out[f"{kind} fds"] = max(len(os.listdir(f"/proc/{p}/fd")) for p in pids)
            out[f"{kind} threads"] = max(len(os.listdir(f"/proc/{p}/task")) for p in pids)
            out[f"{kind} MiB"] = max(self.memory_kib(p) for p in pids) >> 10
        out["processes"] = len(c.processes())
        out["shm"] = sum(len(files) for _, _, files in os.walk(c.options["chunk_root"]))
        return out

    def many_switches(self, mode, count, every):
        options = ["--dtype", "float64", "--zero", "1"]
        configs, rows = ["tp=4", "pp=2,dp=2", "tp=1,dp=3", "tp=2,pp=2", A], []
        with self.cluster(nodes=2, devices=2, lease_ttl="20s") as c:
            job = self.job(c, mode, "--steps", "100000", *options)
            job.run(A)
            at = 0
            for i in range(count):
                job.wait_step(at + 2, 120)
                at = job.resize(configs[i % 5])["step"]
                if i % every == every - 1:
                    job.wait_step(at + 1, 120)
                    rows.append(self.usage(c, job))
                    print(f"after {i + 1} switches: {rows[-1]}", flush=True)
            job.do("stop")
            steps = job.wait_run("stopped")["step"]
        for what in rows[0]:
            may = {"ptcd fds": 4, "ptcd threads": 8, "ptcd MiB": 24, "rank fds": 2, "rank threads": 4, "rank MiB": 60}.get(what, 0)
            self.assertLessEqual(rows[-1][what] - rows[0][what], may, f"{what} grows: {[r[what] for r in rows]}")
        worst = curve.difference(self.reference("--steps", str(steps), *options), curve.read(self.out))
        print(f"{steps} steps, losses at most {worst:.1e} apart", flush=True)
        self.assertLessEqual(worst, 1e-12)

    def test_fifty_switches(self):
        self.many_switches("rebuild", 50, 5)

    def test_ten_switches_restart(self):
        self.many_switches("restart", 10, 5)

    # ---- there and back

    def bundle(self, c, job):
        """What the newest snapshot holds beside tensors: ({coordinates: blobs}, cursors)."""
        found = json.loads(c.etcdctl("get", "--prefix", "/ptc/", "-w", "json").stdout)["kvs"]
        keys = {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv["value"]) for kv in found}
        uuid = job.status()["uuid"]

        def blob(name):
            prefix = f"/ptc/blobs/{uuid}/{name}/"
            return json.loads(b"".join(v for k, v in sorted(keys.items()) if k.startswith(prefix)))
        state = blob(blob(json.loads(keys[f"/ptc/jobs/{uuid}/record"])["manifest"])["state"])
        return {tuple(r[axis] for axis in ("tp", "pp", "dp", "cp")): r["blobs"] for r in state["ranks"]}, state["cursors"]

    def there_and_back(self, other, zero):
        """The job has done all its steps: ranks are started, restored and captured, and train nothing."""
        seen = []
        name = f"back{len(other)}{zero}"
        with self.cluster(nodes=2, devices=2) as c:
            job = self.job(c, "rebuild", "--steps", "6", "--zero", zero, name=name)
            for i, config in enumerate((A, other, A)):
                job.run(config) if i == 0 else c.ptcctl("run", name, "--config", config, "--wait", timeout_s=240 * PATIENCE)
                self.assertEqual(6, job.wait_run("done", 240)["step"])
                self.assertTrue(config in job.status()["config"] or config == A, job.status())
                path = self.path(f"{name}-{i}.safetensors")
                c.ptcctl("export", name, path, timeout_s=120 * PATIENCE) # parameters and PARAMETER:FIELD
                seen.append((harness.sha256(path), *self.bundle(c, job)))
        for there in seen[1:]:
            self.assertEqual(seen[0][0], there[0], "parameters or optimizer")
            self.assertEqual(seen[0][2], there[2], "cursors")
        kept = set(seen[0][1]) & set(seen[1][1])
        self.assertGreater(len(kept), 0)
        for at in kept: # random states go with coordinates, so those that `other` has none of begin anew
            self.assertEqual(seen[0][1][at], seen[2][1][at], f"blobs of {at}")

    def test_there_and_back(self):
        for other, zero in (("pp=2", "1"), ("tp=2,pp=2", "0"), ("dp=3", "fsdp"), (A, "1")):
            with self.subTest(other, zero=zero):
                self.there_and_back(other, zero)


if __name__ == "__main__":
    unittest.main()
