# SPDX-License-Identifier: Apache-2.0
"""`build: ahead`: new ranks build while the old ones train. Every byte of what is restored is compared with a formula by the
rank itself, steps join without a gap, and what fails while new ranks build leaves the job as it was."""
import functools
import glob
import json
import os
import signal
import subprocess
import time
import unittest

import harness
import live
from harness import PATIENCE, replace_file, wait_for
from test_live import Live


def ahead(case, c, name="ahead", run=None, **options):
    options.setdefault("sleep", 0.01)
    return live.Job(c, case.path(name), name=name, run={"build": "ahead", **(run or {})}, steps=100000, **options)


class Ahead(harness.Case):
    check_steps = Live.check_steps
    steps_without = Live.steps_without

    def end(self, job):
        job.do("stop")
        last = job.wait_run("stopped")["step"]
        job.check_state(self, last, self.path("end"))
        self.check_steps(job, last)
        return last

    def resizing(self, c, job, config):
        """ptcctl resize beside us."""
        return subprocess.Popen([harness.program("ptcctl"), "resize", job.name, "--config", config, "--wait", "--format", "json"],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=c.environment({"PTC_SOCKET": c.nodes["n0"].socket}))

    def building(self, job):
        wait_for(lambda: job.status()["phase"] == "building" or None, 60 * PATIENCE, "new ranks that build", 0.02)

    def priorities(self, pids):
        """{(nice, oom_score_adj)} of all threads of these processes. Where their cgroups have weights, nice stands for these."""
        found = set()
        for pid in pids:
            with open(f"/proc/{pid}/oom_score_adj") as f:
                oom = int(f.read())
            weight = self.weight(pid)
            for thread in os.listdir(f"/proc/{pid}/task"):
                nice = os.getpriority(os.PRIO_PROCESS, int(thread))
                found.add((nice if weight is None else nice + 10 * (weight < 100), oom))
        return found

    def weight(self, pid):
        """None: the kernel divides processors by other things than cgroups of version 2."""
        with open(f"/proc/{pid}/cgroup") as f:
            path = next((line[3:].strip() for line in f if line.startswith("0::/")), None)
        with open("/proc/mounts") as f:
            mount = next((line.split()[1] for line in f if line.split()[2] == "cgroup2"), None)
        try:
            with open(f"{mount}{path}/cpu.weight") as f:
                return int(f.read())
        except OSError:
            return None

    def low_priority(self, job, c):
        """The new ranks have one; the old ones have their ptcd's."""
        normal = self.normal(c)
        old = [r["pid"] for r in job.status()["run"]["ranks"]]
        new = [pid for pid in job.processes() if pid not in old]
        self.assertTrue(old and new)
        low = min(normal[0] + 10, 19) if os.geteuid() == 0 or self.weight(new[0]) is not None else normal[0]
        self.assertEqual({normal}, self.priorities(old))
        self.assertEqual({(low, min(normal[1] + 500, 1000))}, self.priorities(new))

    def normal(self, c):
        pid = c.nodes["n0"].pid()
        with open(f"/proc/{pid}/oom_score_adj") as f:
            return os.getpriority(os.PRIO_PROCESS, pid), max(int(f.read()), 0)

    def test_trains_meanwhile(self):
        """Ranks of both generations are on each node; the old ones go on, also through snapshots, until the new ones have declared.
        Then these begin at the step where those stopped, which is another than that which they were built with."""
        with self.cluster(nodes=2, devices=2) as c:
            job = ahead(self, c, run={"snapshot_every": 40})
            job.run("tp=2,dp=2")
            job.wait_step(60)
            with job.hold("build"):
                resize = self.resizing(c, job, "tp=4")
                self.building(job)
                wait_for(lambda: len(job.processes()) == 8 or None, 60 * PATIENCE, "ranks of both generations", 0.02)
                self.steps_without(job, 100)  # two snapshots are due meanwhile
                self.assertEqual((1, 8, None), (job.status()["generation"], len(job.processes()), resize.poll()))
                self.low_priority(job, c)
                began = job.status()["step"]
            out, err = resize.communicate(timeout=120 * PATIENCE)
            self.assertEqual(0, resize.returncode, err)
            summary = json.loads(out)
            self.assertGreater(summary["built_ahead_ms"], 0)
            self.assertGreater(summary["step"], began)
            job.wait_step(summary["step"] + 20)
            self.assertEqual({self.normal(c)}, self.priorities(r["pid"] for r in job.status()["run"]["ranks"]))
            second = job.resize("tp=1,dp=2")
            self.assertGreater(second["built_ahead_ms"], 0)
            job.wait_step(second["step"] + 5)
            self.end(job)

    def test_time_that_is_lost(self):
        """What building ranks slow the others by counts as lost. Here the others stand still for three seconds meanwhile."""
        with self.cluster(nodes=1, devices=4) as c:
            job = ahead(self, c)
            job.run("tp=2")
            job.wait_step(60)
            old = [r["pid"] for r in job.status()["run"]["ranks"]]
            with job.hold("build"):
                resize = self.resizing(c, job, "tp=4")
                self.building(job)
                for pid in old:
                    os.kill(pid, signal.SIGSTOP)
                time.sleep(3)
                for pid in old:
                    os.kill(pid, signal.SIGCONT)
            out, err = resize.communicate(timeout=120 * PATIENCE)
            self.assertEqual(0, resize.returncode, err)
            pause = json.loads(out)["pause"]
            self.assertGreater(pause["slowed_ms"], 1500, pause)
            self.assertAlmostEqual(pause["total_ms"] + pause["slowed_ms"], pause["lost_ms"], delta=1, msg=pause)
            self.end(job)

    def test_no_snapshot_yet(self):
        """New ranks of a job without a snapshot find nothing of one while they build, and all of it once they are restored."""
        with self.cluster(nodes=1, devices=4) as c:
            job = ahead(self, c)
            job.run("tp=2")
            job.wait_step(5)
            summary = job.resize("tp=4")
            self.assertGreater(summary["built_ahead_ms"], 0)
            job.wait_step(summary["step"] + 5)
            self.end(job)

    def test_fails_while_it_builds(self):
        """The line is the rank's; nothing has stopped, and nothing of the new ranks is left."""
        with self.cluster(nodes=2, devices=2) as c:
            job = ahead(self, c, raise_generation=2)
            job.run("tp=2,dp=2")
            job.wait_step(5)
            job.do("snapshot")
            r = job.resize("tp=4", check=False)
            self.assertEqual(1, r.returncode)
            self.assertRegex(r.stderr, r"node n\d: rank \d.*no such optimizer")
            self.steps_without(job)
            wait_for(lambda: len(job.processes()) == 4 or None, 60 * PATIENCE, "the old ranks alone")
            status = job.status()
            self.assertEqual((1, "idle", "live"), (status["generation"], status["phase"], status["run"]["state"]))
            self.end(job)

    def test_hangs_while_it_builds(self):
        """Snapshots come more often than build_timeout; each ends the node's wait, but not the time that a rank may take to build."""
        with self.cluster(nodes=1, devices=4) as c:
            job = ahead(self, c, run={"snapshot_every": 40}, build_timeout=f"{12 * PATIENCE}s")
            job.run("tp=2")
            job.wait_step(5)
            pids = sorted(job.processes())
            with job.hold("build"):
                resize = self.resizing(c, job, "tp=4")
                self.building(job)
                _, err = resize.communicate(timeout=120 * PATIENCE)
            self.assertEqual(1, resize.returncode)
            self.assertRegex(err, r"node n0: build_timeout of \d+ s is over: waiting for ranks to build and declare: rank \d")
            self.stands(job, pids)
            self.end(job)

    def stands(self, job, pids):
        """The ranks that train are the same, and go on."""
        wait_for(lambda: sorted(job.processes()) == pids or None, 60 * PATIENCE, "the old ranks alone")
        self.steps_without(job)
        self.assertEqual((1, "idle", "live"), tuple(x for s in [job.status()] for x in (s["generation"], s["phase"], s["run"]["state"])))

    def test_other_tensors(self):
        """New ranks declare something else: the resize fails, and the old ranks have not stopped."""
        with self.cluster(nodes=2, devices=2) as c:
            job = ahead(self, c, grow_generation=2)
            job.run("tp=2,dp=2")
            job.wait_step(5)
            job.do("snapshot")
            pids = sorted(job.processes())
            r = job.resize("tp=4", check=False)
            self.assertEqual(1, r.returncode)
            self.assertRegex(r.stderr, r"layer\.0\.weight. is F64 .13, 6. .* declares F64 .14, 6.")
            self.stands(job, pids)
            self.end(job)

    def test_declared_before_memory(self):
        """New ranks say what they hold before they have memory for it. The layout is written down while they have none, the old ones
        train on until they have, and every byte then comes to where it is."""
        with self.cluster(nodes=2, devices=2) as c:
            job = ahead(self, c, place_later=1)
            job.run("tp=2,dp=2")
            job.wait_step(5)
            job.do("snapshot")
            with job.hold("place"):
                resize = self.resizing(c, job, "tp=4")
                self.building(job)
                wait_for(lambda: len(job.processes()) == 8 or None, 60 * PATIENCE, "ranks of both generations", 0.02)
                self.steps_without(job, 100)
                self.assertEqual((1, "building", None), (job.status()["generation"], job.status()["phase"], resize.poll()))
                self.low_priority(job, c)
                c.nodes["n1"].kill()  # its ranks say it again to the next ptcd
                c.start_node(c.nodes["n1"])
                c.wait_nodes(list(c.nodes))
            out, err = resize.communicate(timeout=120 * PATIENCE)
            if resize.returncode:  # the node that was killed had the job's lock
                self.steps_without(job)
                summary = job.resize("tp=4")
            else:
                summary = json.loads(out)
            self.assertGreater(summary["built_ahead_ms"], 0)
            job.wait_step(summary["step"] + 5)
            self.assertEqual({self.normal(c)}, self.priorities(r["pid"] for r in job.status()["run"]["ranks"]))
            self.end(job)

    def test_other_tensors_before_memory(self):
        """What does not fit the state fails while no new rank has memory; what a rank gets memory for has to be what it has said; and
        one that finds none ends the resize. Nothing has stopped."""
        with self.cluster(nodes=2, devices=2) as c:
            job = ahead(self, c, grow_generation=2, place_later=1)
            job.run("tp=2,dp=2")
            job.wait_step(5)
            job.do("snapshot")
            pids = sorted(job.processes())
            with job.hold("place"):
                r = job.resize("tp=4", check=False)
                self.assertEqual(1, r.returncode)
                self.assertRegex(r.stderr, r"layer\.0\.weight. is F64 .13, 6. .* declares F64 .14, 6.")
            self.stands(job, pids)
            self.end(job)

    def wrong_memory(self, wrong, line):
        with self.cluster(nodes=1, devices=4) as c:
            job = ahead(self, c, place_later=1, place_wrong=wrong)
            job.run("tp=2")
            job.wait_step(5)
            job.do("snapshot")
            pids = sorted(job.processes())
            r = job.resize("dp=2", check=False)
            self.assertEqual(1, r.returncode)
            self.assertRegex(r.stderr, line)
            self.stands(job, pids)
            self.end(job)

    def test_no_memory(self):
        self.wrong_memory("exit", r"rank \d.* (exit|ended|failed)")

    @harness.labels("repeats")
    def test_memory_left_out(self):
        self.wrong_memory("less", r"layer\.0\.weight.* declared without data")

    @harness.labels("repeats")
    def test_memory_of_another_dtype(self):
        self.wrong_memory("dtype", r"layer\.0\.weight.* another dtype")

    @harness.labels("repeats")
    def test_memory(self):
        """Likewise where a node has no room for what the new ranks would have."""
        with self.cluster(nodes=2, devices=1, ceiling="460MiB") as c:
            chunks = c.json("nodes")["nodes"][0]["store"]["ceiling_bytes"]
            job = ahead(self, c, name="large", rows=chunks * 12 // 10 // (2 * 4 * 6 * 8))
            job.run("tp=2")
            job.wait_step(2)
            pids = sorted(job.processes())
            r = job.resize("dp=2", check=False)
            self.assertEqual(1, r.returncode)
            self.assertRegex(r.stderr, r"memory: node n\d needs .* more bytes")
            self.stands(job, pids)

    def test_no_room(self):
        """A node without memory for ranks of both generations: the new ones only start before the old ones end. The plan, an event and
        the summary say so. Once there is room, and it is known what ranks of the configuration hold, they build ahead."""
        faults = functools.partial(replace_file, self.path("fault"))
        with self.cluster(nodes=2, devices=2, env={"n1": {"PTC_FAULT_FILE": self.path("fault")}}) as c:
            job = ahead(self, c)
            job.run("tp=2,dp=2")
            job.wait_step(5)
            for r in job.status()["run"]["ranks"]:
                self.assertTrue(1 << 20 < r["memory_peak_bytes"] < 1 << 30, r)
            faults("agent.room@*=fail")
            build = c.json("plan", job.name, "--config", "tp=4")["build"]
            self.assertEqual("imports", build["level"])
            self.assertRegex(build["why"], r"node n1 has 0 MiB of memory left, and its 2 new ranks would take about [1-9]\d* MiB")
            self.assertRegex(c.ptcctl("plan", job.name, "--config", "tp=4").stdout, "new ranks build +after the end +node n1 has")
            summary = job.resize("tp=4")
            self.assertNotIn("built_ahead_ms", summary)
            self.assertEqual("imports", summary["plan"]["build"]["level"])
            self.assertRegex(self.events(c, job, "switch")[-1]["text"], "build after the old ones have ended: node n1 has 0 MiB")
            self.assertEqual([], self.events(c, job, "building"))
            faults("")
            job.wait_step(summary["step"] + 5)
            back = job.resize("tp=2,dp=2")
            self.assertGreater(back["built_ahead_ms"], 0)
            self.assertEqual("memory", back["plan"]["build"]["level"])
            self.assertRegex(self.events(c, job, "building")[-1]["text"], r"there is room for what each new rank takes: about \d+ MiB")
            job.wait_step(back["step"] + 5)
            self.end(job)

    def test_devices(self):
        """New ranks have their devices while they build: another job gets none of them."""
        with self.cluster(nodes=1, devices=4) as c:
            job, other = ahead(self, c), live.Job(c, self.path("other"), name="other")
            job.run("tp=2")
            job.wait_step(5)
            with job.hold("build"):
                resize = self.resizing(c, job, "tp=4")
                self.building(job)
                wait_for(lambda: len(job.processes()) == 6 or None, 60 * PATIENCE, "ranks of both generations")
                r = other.run("dp=1", check=False)
                self.assertEqual(1, r.returncode)
                self.assertIn("devices are needed", r.stderr)
            out, err = resize.communicate(timeout=120 * PATIENCE)
            self.assertEqual(0, resize.returncode, err)
            job.resize("tp=1")
            wait_for(lambda: len(job.status()["devices"]["n0"]) == 1 or None, 60 * PATIENCE, "devices given back")
            other.run("dp=3")
            other.do("stop")
            self.end(job)

    def test_aborted(self):
        """By a person, by a second resize (refused), by the job's end."""
        with self.cluster(nodes=2, devices=2) as c:
            job = ahead(self, c)
            job.run("tp=2,dp=2")
            job.wait_step(5)
            job.do("snapshot")
            with job.hold("build"):
                first = self.resizing(c, job, "tp=4")
                self.building(job)
                r = job.resize("tp=1,dp=2", check=False)
                self.assertEqual(1, r.returncode)
                self.assertIn("is busy (building)", r.stderr)
                job.do("abort")
                _, err = first.communicate(timeout=60 * PATIENCE)
                self.assertEqual(1, first.returncode)
                self.assertIn("aborted", err)
                wait_for(lambda: len(job.processes()) == 4 or None, 60 * PATIENCE, "the old ranks alone")
                self.steps_without(job)
                again = self.resizing(c, job, "tp=4")
                self.building(job)
                self.end(job)
                _, err = again.communicate(timeout=60 * PATIENCE)
                self.assertEqual(1, again.returncode)
                self.assertIn("ranks end before the new ones have built", err)

    def test_end_fails(self):
        """The node that is to end its new ranks fails to, and is not in the record: it ends them all the same."""
        with self.cluster(nodes=3, devices=1, env={"n2": {"PTC_FAULT": "agent.end.told=fail"}}) as c:
            job = ahead(self, c)
            job.run("dp=2", nodes="n0,n1")
            job.wait_step(5)
            pids = sorted(job.processes())
            with job.hold("build"):
                resize = self.resizing(c, job, "dp=3")
                self.building(job)
                wait_for(lambda: len(job.processes()) == 5 or None, 60 * PATIENCE, "ranks of both generations", 0.02)
                job.do("abort")
                resize.communicate(timeout=60 * PATIENCE)
                self.assertEqual(1, resize.returncode)
                self.stands(job, pids)
            self.end(job)

    def test_finishes(self):
        """The job finishes while new ranks build: whoever resizes hears that."""
        with self.cluster(nodes=1, devices=4) as c:
            job = live.Job(c, self.path("finishes"), name="ahead", run={"build": "ahead"}, steps=60, sleep=0.01, hold_at=20)
            job.run("tp=2")
            job.wait_step(20)
            with job.hold("build"):
                resize = self.resizing(c, job, "tp=4")
                self.building(job)
                job.let_go()
                out, err = resize.communicate(timeout=120 * PATIENCE)
            self.assertEqual(0, resize.returncode, err)
            self.assertEqual(("finish", 60), (json.loads(out)["kind"], json.loads(out)["step"]))
            job.wait_run("done")
            wait_for(lambda: not job.processes() or None, 60 * PATIENCE, "the end of every process")

    def killed(self, whom):
        """kill -9 of a daemon while new ranks build: the resize is done or comes to nothing, and the job goes on whole."""
        with self.cluster(nodes=3, devices=2) as c:
            job = ahead(self, c)
            job.run("tp=2,dp=2")
            job.wait_step(5)
            job.do("snapshot")
            with job.hold("build"):
                resize = self.resizing(c, job, "tp=1,dp=3")
                self.building(job)
                node = job.status()["controller"] if whom == "controller" else next(
                    n for n in ("n1", "n2") if n != job.status()["controller"])
                c.nodes[node].kill()
                c.start_node(c.nodes[node])
                c.wait_nodes(list(c.nodes))
            _, err = resize.communicate(timeout=180 * PATIENCE)
            status = job.wait_run("live", timeout_s=120)
            self.assertEqual(2 if resize.returncode == 0 else 1, status["generation"], err)
            job.wait_step(job.step() + 5)
            wait_for(lambda: len(job.processes()) == (3 if resize.returncode == 0 else 4) or None, 120 * PATIENCE, "one generation's ranks")
            self.end(job)

    @harness.labels("repeats")
    def test_controller_killed(self):
        self.killed("controller")

    @harness.labels("repeats")
    def test_node_killed(self):
        self.killed("node")

    @harness.labels("repeats")
    def test_killed_as_it_raises(self):
        """kill -9 of a daemon between the first priority that it raises and its note of that: the next daemon raises them all."""
        with self.cluster(nodes=2, devices=2, env={"n1": {"PTC_FAULT": "process.low.before=kill"}}) as c:
            job = ahead(self, c)
            job.run("tp=2,dp=2")
            job.wait_step(5)
            job.do("snapshot")
            resize = self.resizing(c, job, "tp=4")
            wait_for(lambda: not c.nodes["n1"].pid() or None, 120 * PATIENCE, "the end of n1's daemon", 0.02)
            low = os.path.join(c.nodes["n1"].dir, "run", "workers", "*", "processes", "*", "low")
            self.assertTrue(glob.glob(low))
            c.start_node(c.nodes["n1"])
            c.wait_nodes(list(c.nodes))
            resize.communicate(timeout=180 * PATIENCE)
            step = job.wait_run("live", timeout_s=120)["run"]["step"]
            job.wait_step(step + 5)
            self.assertEqual({self.normal(c)}, self.priorities(r["pid"] for r in job.status()["run"]["ranks"]))
            wait_for(lambda: not glob.glob(low) or None, 60 * PATIENCE, "no process that is noted as low")
            self.end(job)

    def test_rank_killed(self):
        """Of those that train: the job's own rules apply, as if nobody built."""
        with self.cluster(nodes=2, devices=2) as c:
            job = ahead(self, c, run={"elastic": {"max_restarts": 1}})
            job.run("tp=2,dp=2")
            job.wait_step(5)
            job.do("snapshot")
            with job.hold("build"):
                resize = self.resizing(c, job, "tp=4")
                self.building(job)
                os.kill(job.status()["run"]["ranks"][0]["pid"], signal.SIGKILL)
                _, err = resize.communicate(timeout=60 * PATIENCE)
                self.assertEqual(1, resize.returncode)
            job.wait_run("live", timeout_s=120)
            wait_for(lambda: len(job.processes()) == 4 or None, 120 * PATIENCE, "one generation's ranks")
            job.do("stop")

    def test_bad_input(self):
        with self.cluster(nodes=1) as c:
            for run, line in (({"build": "ahed"}, 'unknown build "ahed"; did you mean "ahead"?'),
                              ({"build": "ahead", "mode": "rebuild"}, "build: ahead needs mode: restart")):
                job = live.Job(c, self.path("bad"), name="bad", run=run)
                r = c.ptcctl("job", "create", "-f", job.yaml, check=False)
                self.assertEqual(1, r.returncode)
                self.assertIn(line, r.stderr)


if __name__ == "__main__":
    unittest.main()
