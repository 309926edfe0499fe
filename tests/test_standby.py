# SPDX-License-Identifier: Apache-2.0
"""`standby: import`: processes of the job's program wait on its nodes for the next start, and are the ranks of that start."""
import json
import os
import shutil
import signal

import harness
import live
import test_recover
from harness import PATIENCE, wait_for
from test_recover import FAST


def environment(pid):
    with open(f"/proc/{pid}/environ", "rb") as f:
        return dict(entry.split(b"=", 1) for entry in f.read().split(b"\0") if b"=" in entry)


class Standby(harness.Case):
    trains, begun, check_end = test_recover.Recover.trains, test_recover.Recover.begun, test_recover.Recover.check_end

    def job(self, c, elastic=None, more=None, **kw):
        run = {"snapshot_every": 10, "elastic": {"standby": "import", **(elastic or {})}, **(more or {})}
        return live.Job(c, self.path(f"job-{kw.get('mode', 'restart')}"), together="fail", data="100000,7,8,4", grace="2s", run=run, **kw)

    def waiting(self, job, n, without=()):
        """{node: pids} once so many wait, and none of `without`."""
        def there():
            rows = job.status()["run"].get("standby", [])
            pids = {r["pid"] for r in rows}
            if len(rows) != n or any(r["state"] != "waiting" for r in rows) or pids & set(without):
                return None
            return {node: {r["pid"] for r in rows if r["node"] == node} for node in {r["node"] for r in rows}}
        return wait_for(there, 120 * PATIENCE, f"{n} processes that wait", 0.1)

    def pids(self, status):
        return {r["pid"] for r in status["run"]["ranks"]}

    def ended(self, pids):
        wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), 30 * PATIENCE, f"the end of {pids}", 0.05)

    def test_taken(self):
        """A rank is killed: the ranks that go on are the processes that waited. Others wait for the next start, and end with the job."""
        for mode in ("restart", "rebuild"):
            with self.subTest(mode=mode), self.cluster(nodes=1, devices=2) as c:
                job = self.job(c, {"max_restarts": 3}, mode=mode)
                job.run("dp=2")
                gone = set()
                for n in range(2):
                    waits = self.waiting(job, 2, gone)["n0"]
                    before = self.trains(c, job, steps=3 + 2 * n)
                    self.assertFalse(waits & self.pids(before))
                    for pid in waits | self.pids(before):
                        self.assertFalse({b"RANK", b"WORLD_SIZE", b"LOCAL_RANK"} & set(environment(pid)), "no process knows what it will be")
                    job.do("snapshot")
                    job.wait_step(job.status()["step"] + 1 + n)
                    os.kill(before["run"]["ranks"][1]["pid"], signal.SIGKILL)
                    after = self.trains(c, job, before["run"]["incarnation"])
                    self.assertEqual(waits, self.pids(after))
                    gone |= waits | self.pids(before)
                self.assertEqual([], self.events(c, job, "standby"))
                waits = self.waiting(job, 2, gone)["n0"]
                self.check_end(c, job)
                self.ended(waits)

    @harness.labels("repeats")
    def test_node_lost(self):
        """A node is lost: the ranks on the others are those that waited there. It comes back, the job grows, and
        leaves another node, where none wait then."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.job(c, {"min_gpus": 1})
            job.run("dp=3")
            waits = self.waiting(job, 3)
            before = self.begun(c, job)
            c.power_off("n2")
            after = self.trains(c, job, before["run"]["incarnation"])
            self.assertEqual("dp=2", after["config"])
            self.assertEqual(waits["n0"] | waits["n1"], self.pids(after))
            c.restart("n2")
            waits = self.waiting(job, 2)
            self.assertEqual({"n0", "n1"}, set(waits))
            wait_for(lambda: "returncode" not in dir(job.resize("dp=3")), 60 * PATIENCE, "all three again", 0.2)
            after = self.trains(c, job)
            self.assertEqual(set(), (waits["n0"] | waits["n1"]) - self.pids(after), "a resize takes them, too")
            waits = self.waiting(job, 3)
            job.resize("dp=2", nodes="n0,n2")
            self.ended(waits["n1"])
            self.check_end(c, job)

    def test_ends(self):
        """What waits is no part of the job: that it ends or does not come to wait is told once, and the job goes on. It ends with a ptcd
        that ends, with a stop, and with the job."""
        with self.cluster(nodes=1, devices=2) as c:
            job = self.job(c, build_timeout="10s")
            job.run("dp=2")
            waits = self.waiting(job, 2)["n0"]
            ranks, incarnation = self.pids(job.status()), job.status()["run"]["incarnation"]
            with job.hold("start"):
                os.kill(min(waits), signal.SIGKILL)
                told = wait_for(lambda: self.events(c, job, "standby"), 60 * PATIENCE, "the event", 0.1)
                self.assertRegex(told[0]["text"], rf"node n0: a process that waited for a generation \(pid {min(waits)}\) was killed by signal 9")
                late = wait_for(lambda: [r["pid"] for r in job.status()["run"]["standby"] if r["state"] == "starting"], 60 * PATIENCE, "another", 0.1)
                self.ended(late)
            waits = self.waiting(job, 2, {min(waits), *late})["n0"]
            self.assertEqual(1, len(self.events(c, job, "standby")), "one event for failures in a row")
            status = job.status()
            self.assertEqual((ranks, incarnation, "live"), (self.pids(status), status["run"]["incarnation"], status["run"]["state"]))
            self.assertIn("standby: 2 of 2 processes wait for the next start", c.ptcctl("status", job.name).stdout)
            c.restart("n0")
            again = self.waiting(job, 2, waits)["n0"]
            self.ended(waits)
            self.assertEqual(ranks, self.pids(job.status()))
            job.do("stop")
            job.wait_run("stopped")
            self.ended(again)
            self.assertNotIn("standby", job.status()["run"])
            job.c.ptcctl("run", job.name, "--wait", timeout_s=120 * PATIENCE)
            waits = self.waiting(job, 2)["n0"]
            c.ptcctl("stop", job.name, "--now", timeout_s=60 * PATIENCE)
            c.ptcctl("job", "delete", job.name, timeout_s=60 * PATIENCE)
            self.ended(waits)

    def test_edited(self):
        """The program was edited since processes have imported it: they end at the next start, whose ranks are of the new text. Those that
        wait after that have imported it, and are taken."""
        with self.cluster(nodes=1, devices=2) as c:
            job, program, mark = self.job(c, {"max_restarts": 3}), self.path("own.py"), self.path("mark")
            with open(job.yaml) as f:
                spec = json.load(f)
            shutil.copy(spec["run"]["argv"][2], program)
            spec["run"]["argv"][2] = program
            harness.replace_file(job.yaml, json.dumps(spec))
            job.run("dp=2")
            waits = self.waiting(job, 2)["n0"]
            for edited in (True, False):
                before = self.trains(c, job, steps=3)
                job.do("snapshot")
                job.wait_step(job.status()["step"] + 1)
                if edited:
                    with open(program) as f:
                        text = f.read()
                    harness.replace_file(program, text.replace("import ptc\n", f"import ptc\nopen({mark!r}, 'w').close()\n", 1))
                self.assertFalse(os.path.exists(mark) and edited)
                os.kill(before["run"]["ranks"][1]["pid"], signal.SIGKILL)
                after = self.trains(c, job, before["run"]["incarnation"])
                self.assertEqual(set() if edited else waits, waits & self.pids(after))
                self.assertTrue(os.path.exists(mark))
                if edited:
                    self.ended(waits)
                waits = self.waiting(job, 2, waits | self.pids(after))["n0"]
            self.assertEqual([], self.events(c, job, "standby"))
            self.check_end(c, job)

    def test_priority(self):
        """The kernel ends them before any rank if memory runs out; as a rank one is like any other. Nobody waits for
        the start of a job that has failed."""
        def oom(pid):
            with open(f"/proc/{pid}/oom_score_adj") as f:
                return int(f.read())
        with self.cluster(nodes=1, devices=1) as c:
            job = self.job(c, {"max_restarts": 1})
            job.run("dp=1")
            waits = self.waiting(job, 1)["n0"].pop()
            before = self.begun(c, job)
            rank = before["run"]["ranks"][0]["pid"]
            usual = oom(rank)
            self.assertLess(usual, oom(waits))
            os.kill(rank, signal.SIGKILL)
            self.assertEqual({waits}, self.pids(self.trains(c, job, before["run"]["incarnation"])))
            wait_for(lambda: oom(waits) == usual, 30 * PATIENCE, "the priority of a rank", 0.05)
            others = self.waiting(job, 1, {waits})["n0"]
            os.kill(waits, signal.SIGKILL)
            job.wait_run("failed", 90)
            self.ended(others)
