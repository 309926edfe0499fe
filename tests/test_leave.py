# SPDX-License-Identifier: Apache-2.0
"""drain NODE --within: a node is taken away, and from the moment that ptcctl returns nothing is lost with it."""
import concurrent.futures
import contextlib
import json
import os
import signal
import subprocess
import time

import harness
import numpy as np
import state as states
import test_recover
from harness import PATIENCE, Job, wait_for

ROWS = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
FAST = {"lease_ttl": "2s", "node_lost_after": "2s"}
WITHIN = f"{int(120 * PATIENCE)}s"


class Leave(test_recover.Recover):
    """Only the tests below: those of Recover are run there."""

    def state_job(self, c, **spec):
        s, rng = states.State({"exp_avg": "F32"}), np.random.default_rng(self.seed)
        for name, shape in (("a", (64, 48)), ("b", (96, 32)), ("c", (128, 7))):
            s.add(rng, name, "F32", shape)
        job = Job(c, "kept", s, self.path("job"), ROWS)
        with open(job.yaml) as f:
            given = json.load(f)
        with open(job.yaml, "w") as f:
            json.dump({**given, **spec}, f)
        return job

    def leave(self, c, victim, *args, within=WITHIN, code=0, **kw):
        r = c.ptcctl("drain", victim, "--within", within, "--format", "json", *args, check=False, timeout_s=300 * PATIENCE, **kw)
        self.assertEqual(code, r.returncode, r.stdout + r.stderr)
        return json.loads(r.stdout), r.stderr

    def taken(self, c, node):
        c.power_off(node)
        wait_for(lambda: next(n for n in c.json("nodes")["nodes"] if n["node"] == node).get("lost"), 60 * PATIENCE, f"{node} lost")

    def test_state(self):
        """A job without ranks moves, where there are devices; else what only the node has is copied. Either way the node
        can go, and every byte is there."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.state_job(c)
            job.imported("tp=2")
            first = next(r["node"] for r in job.status()["ranks"] if r["node"] != "n0")
            (second,) = set(c.nodes) - {"n0", first}
            said, _ = self.leave(c, first)
            self.assertEqual((1, True, [("kept", "moved", 0)]), (said["jobs_moved"], said["closed"], [
                (j["job"], j["state"], j["left_bytes"]) for j in said["jobs"]]))
            self.assertNotIn(first, {r["node"] for r in job.status()["ranks"]})
            self.taken(c, first)
            job.check_whole(self)
            said, _ = self.leave(c, second)
            self.assertEqual([("copied", 0)], [(j["state"], j["left_bytes"]) for j in said["jobs"]])
            self.assertIn("cannot lie elsewhere", said["jobs"][0]["why"])
            self.taken(c, second)
            self.assertNotIn("lost", job.status())
            job.check_whole(self)
            job.resize("tp=1")
            job.check_whole(self)

    def test_warning(self):
        """A job says how long it is warned, and create and plan say whether what a node alone has can be copied by then. create says, too, which timeouts contradict each other."""
        with self.cluster(nodes=2, devices=1, **FAST) as c:
            big = {"version": 1, "name": "big", "tensors": [{"name": "w", "dtype": "F32", "shape": [1 << 28]}], "rules": ROWS,
                   "gpus": {"2": "tp=2", "1": "tp=1"}, "warning": "1ms"}
            path = self.path("big.yaml")
            with open(path, "w") as f:
                json.dump(big, f)
            self.assertIn("links are not measured", c.ptcctl("job", "create", "-f", path).stderr)
            c.ptcctl("job", "delete", "big")
            c.ptcctl("profile", timeout_s=120 * PATIENCE)
            r = c.ptcctl("job", "create", "-f", path, "--format", "json")
            said = {row["config"]: row["leaves"] for row in json.loads(r.stdout)["gpus"]}
            self.assertEqual({"tp=2": 1 << 29, "tp=1": 1 << 30}, {k: v["bytes"] for k, v in said.items()})
            self.assertEqual([False, False], [v["fits"] for v in said.values()])
            self.assertEqual(2, r.stderr.count("warning: tp="), r.stderr)
            live = {"version": 1, "name": "live", "run": {"argv": ["true"], "cwd": "/", "grace": "2m", "build_timeout": "1m"},
                    "elastic": {"on_hang": "report", "hang_after": "1s"}}
            with open(path, "w") as f:
                json.dump(live, f)
            r = c.ptcctl("job", "create", "-f", path, "--format", "json")
            self.assertEqual(2, len(json.loads(r.stdout)["timeouts"]), r.stdout)
            for said in (r"hang_after \(1s\) is not longer than lease_ttl", r"build_timeout \(1m\) is not longer than grace \(2m\)"):
                self.assertRegex(r.stderr, f"(?m)^ptcctl: warning: {said}")
            with open(path, "w") as f:
                json.dump({**big, **live}, f) # lint needs tensors, and asks no node
            self.assertIn("note: build_timeout (1m) is not longer than grace (2m)", c.ptcctl("rules", "lint", "-f", path).stdout)
            job = self.state_job(c, warning="1h")
            job.imported("tp=2")
            plan = c.json("plan", job.name, "--config", "tp=2")
            self.assertEqual((3600, True), (plan["leaves"]["warning_s"], plan["leaves"]["fits"]))
            whole = sum(len(t.tobytes()) for of in job.state.tensors.values() for t in of.values())
            self.assertEqual(whole // 2, plan["leaves"]["bytes"])
            self.assertIn("in time", c.ptcctl("plan", job.name, "--config", "tp=2").stdout)

    def test_hook_at_once(self):
        """A warning that comes while ptc-warning starts its command, or waits for it, is not lost; the command's status is passed on."""
        env = {**os.environ, "PTCCTL": "true"}
        hook = ["taskset", "-c", str(min(os.sched_getaffinity(0))), os.path.join(harness.ROOT, "deploy", "hooks", "ptc-warning"), "--node", "n0"]
        command = ["--", "sh", "-c", "trap 'exit 7' TERM; echo begun; while :; do sleep 0.02; done"]

        def warned(_):
            p = subprocess.Popen(hook + command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, start_new_session=True)
            try:
                self.assertEqual(b"begun\n", p.stdout.readline())
                p.send_signal(signal.SIGUSR1)
                return p.wait(10 * PATIENCE)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(p.pid, signal.SIGKILL)
                p.wait()
                p.stdout.close()

        with concurrent.futures.ThreadPoolExecutor(8) as pool: # on one CPU: who starts a command is often the last to go on
            self.assertEqual([7] * 240, list(pool.map(warned, range(240))))

    def test_hook(self):
        """ptc-warning, now and around a command: the node is drained, and the command gets SIGTERM after that."""
        hook = os.path.join(harness.ROOT, "deploy", "hooks", "ptc-warning")
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.state_job(c)
            job.imported("tp=2")
            (spare,) = set(c.nodes) - {r["node"] for r in job.status()["ranks"]}
            one, other = sorted({r["node"] for r in job.status()["ranks"]}, key=lambda n: n != "n0")
            config = self.path("ptcd.yaml")
            with open(config, "w") as f:
                f.write(f"version: 1\nnode: {other} # ours\n")
            env = c.environment({"PTC_SOCKET": c.nodes["n0"].socket, "PTCCTL": harness.program("ptcctl"), "PTC_WARNING": WITHIN})
            r = subprocess.run([hook], env={**env, "PTCD_CONFIG": config}, stdout=subprocess.PIPE, text=True, check=False)
            self.assertEqual(0, r.returncode, r.stdout)
            self.assertIn(f"job {job.name}: nothing of it is on the node any more", r.stdout)
            self.assertEqual({one, spare}, {r["node"] for r in job.status()["ranks"]})
            c.ptcctl("drain", other, "--undo")
            said = self.path("said")
            with open(said, "w") as f:
                around = subprocess.Popen([hook, "--node", spare, "--", "sh", "-c", "trap 'echo ended; exit 7' TERM; echo begun; "
                                           "while :; do sleep 0.1; done"], env=env, stdout=f, stderr=f)
            try:
                wait_for(lambda: "begun" in open(said).read(), 30 * PATIENCE, "the command")
                around.send_signal(signal.SIGUSR1)
                self.assertEqual(7, around.wait(timeout=200 * PATIENCE), open(said).read())
            finally:
                around.kill()
                around.wait()
            lines = open(said).read().splitlines()
            self.assertEqual(["begun", f"ptc-warning: node {spare} is taken away within {WITHIN}",
                              f"job {job.name}: nothing of it is on the node any more", "ended"], lines)
            r = subprocess.run([hook, "--nod"], env=env, stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual(2, r.returncode)

    def test_late(self):
        """What does not fit is named, and the call fails; a job that the node has nothing of is not."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.state_job(c)
            job.imported("tp=2")
            here = sorted({r["node"] for r in job.status()["ranks"]})
            (other,) = set(c.nodes) - set(here)
            said, _ = self.leave(c, other)
            self.assertEqual([], said["jobs"])
            c.ptcctl("drain", other, "--undo")
            said, error = self.leave(c, here[1], within="1ms", code=1)
            self.assertEqual(["late"], [j["state"] for j in said["jobs"]])
            self.assertIn("jobs have not left node", error)
            self.assertTrue(said["jobs"][0]["why"])
            r = c.ptcctl("drain", here[1], "--within", "1s", "--undo", check=False)
            self.assertEqual(2, r.returncode, r.stderr)
            wait_for(lambda: here[1] not in {r["node"] for r in job.wait_idle()["ranks"]}, 60 * PATIENCE, "a move that goes on")
            job.check_whole(self)

    @harness.labels("repeats")
    def test_gone(self):
        """What only the node had is gone with it before anybody says so: nobody waits for that until the time is over."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.state_job(c)
            job.imported("tp=2")
            victim = next(r["node"] for r in job.status()["ranks"] if r["node"] != "n0")
            self.taken(c, victim)
            said, error = self.leave(c, victim, within="48h", code=1)
            self.assertEqual("late", said["jobs"][0]["state"])
            self.assertRegex(said["jobs"][0]["why"], "no node that is up has .* of it: nodes that leave have gone with them")
            self.assertGreater(said["jobs"][0]["left_bytes"], 0)
            self.assertIn("jobs have not left node", error)
            c.restart(victim)
            c.ptcctl("drain", victim, "--undo")
            job.check_whole(self)

    def test_back(self):
        """What nobody had is back with its node: that is seen, and what the node that leaves alone has is copied."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.state_job(c)
            job.imported("tp=2")
            job.resize("tp=2", extra=("--nodes", "n1,n2"))
            leaves, victim = sorted(r["node"] for r in job.status()["ranks"])
            self.taken(c, victim)
            said, _ = self.leave(c, leaves, within="48h", code=1)
            self.assertRegex(said["jobs"][0]["why"], "no node that is up has .* of it: nodes that leave have gone with them")
            c.restart(victim)
            wait_for(lambda: leaves not in {r["node"] for r in job.status()["ranks"]} or None, 60 * PATIENCE, "a move off the node", 0.1)
            job.wait_idle()
            self.taken(c, leaves)
            job.check_whole(self)

    def test_ranks_start_elsewhere(self):
        """Ranks stop at a boundary, and the node goes as soon as ptcctl returns, and the job's controller with it: no step is lost,
        and none is done twice."""
        with self.cluster(nodes=4, devices=1, **FAST) as c:
            job = self.job(c, "fail", every=0)
            job.run("tp=2", nodes="n1,n2,n3", node="n1") # which is the job's controller
            for n in range(harness.size(1, 2, 10)):
                before = self.trains(c, job)
                victim = before["controller"] if before["controller"] != "n0" else self.placed(job)[-1]
                said, _ = self.leave(c, victim, node=victim)
                c.power_off(victim)
                self.assertEqual(["starts"], [j["state"] for j in said["jobs"]])
                step = said["jobs"][0]["step"]
                after = self.trains(c, job, before["run"]["incarnation"])
                self.assertNotIn(victim, self.placed(job))
                self.assertEqual(before["config"], after["config"])
                told = self.events(c, job, "recovered")
                self.assertEqual(n + 1, len(told))
                self.assertIn(f"from the snapshot of step {step}", told[-1]["text"])
                self.assertIn(f"step {step} had been reached: 0 steps are lost", told[-1]["text"])
                c.restart(victim)
                c.ptcctl("drain", victim, "--undo")
            self.check_end(c, job)

    @harness.labels("repeats")
    def test_new_ranks_build(self):
        """New ranks build ahead when a node is to be taken away: they end, with their resize, and the node is left."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            job = self.job(c, "fail", every=0, more={"build": "ahead"})
            job.run("tp=2", nodes="n0,n1")
            before = self.trains(c, job)
            with job.hold("build"):
                resize = subprocess.Popen([harness.program("ptcctl"), "resize", job.name, "--config", "tp=3", "--wait"],
                                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                          env=c.environment({"PTC_SOCKET": c.nodes["n0"].socket}))
                wait_for(lambda: job.status()["phase"] == "building" or None, 60 * PATIENCE, "new ranks that build", 0.02)
                said, _ = self.leave(c, "n1")  # which returns while they would still build
            _, error = resize.communicate(timeout=60 * PATIENCE)
            self.assertEqual(1, resize.returncode)
            self.assertIn("a node of the job will be taken away; ask again when it has gone", error)
            self.assertEqual(["starts"], [j["state"] for j in said["jobs"]])
            self.trains(c, job, before["run"]["incarnation"])
            self.assertNotIn("n1", self.placed(job))
            c.ptcctl("drain", "n1", "--undo")
            self.check_end(c, job)

    @harness.labels("repeats")
    def test_gone_too_early(self):
        """The node goes at any instant of it, and comes back: the job goes on from what was committed, with every byte. Whoever asked
        then waits for what only that node had, until the time is over."""
        with self.cluster(nodes=4, devices=1, **FAST) as c:
            job = self.job(c, "fail", every=20)
            job.run("tp=2", nodes="n1,n2,n3", node="n1")
            for n in range(harness.size(2, 6, 30)):
                before = self.begun(c, job)
                victim = self.random.choice([x for x in self.placed(job) if x != "n0"])
                call = subprocess.Popen([harness.program("ptcctl"), "drain", victim, "--within", "20s"], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        env=c.environment({"PTC_SOCKET": c.nodes["n0"].socket}))
                time.sleep(self.random.random() * 1.5) # any instant; nothing is judged by it
                done = call.poll() is not None
                c.power_off(victim)
                if done: # a promise
                    self.trains(c, job, before["run"]["incarnation"])
                c.restart(victim)
                print(f"{n}: {victim}, {'after' if done else 'before'} its end: {call.communicate(timeout=300 * PATIENCE)[0]}", flush=True)
                self.trains(c, job, before["run"]["incarnation"])
                c.ptcctl("drain", victim, "--undo")
            self.assertEqual([], [e["text"] for e in self.events(c, job, "copies_failed") if "differ" in e["text"]])
            self.check_end(c, job)

    def test_ranks_have_no_other_place(self):
        """The job cannot start elsewhere: its ranks go on, and a snapshot of it is whole without the node."""
        with self.cluster(nodes=2, devices=1, **FAST) as c:
            job = self.job(c, "fail", every=20, elastic={"min_gpus": 2}) # the next is due soon
            job.run("tp=2")
            before = self.trains(c, job)
            said, _ = self.leave(c, "n1")
            self.assertEqual(["copied"], [j["state"] for j in said["jobs"]])
            self.assertIn("cannot start elsewhere", said["jobs"][0]["why"])
            step = said["jobs"][0]["step"]
            wait_for(lambda: (job.step() >= step // 20 * 20 + 20) or None, 60 * PATIENCE, "ranks that go on to where a snapshot is due")
            self.assertEqual((before["run"]["incarnation"], step), (job.status()["run"]["incarnation"], job.status()["step"]))
            self.taken(c, "n1")
            self.assertNotIn("lost", job.status())
            self.assertEqual(step, job.status()["step"])
            job.check_state(self, step, self.path("out"))
            c.restart("n1")
            c.ptcctl("drain", "n1", "--undo")
            self.trains(c, job, before["run"]["incarnation"])
            self.check_end(c, job)


for name in dir(test_recover.Recover):
    if name.startswith("test_"):
        setattr(Leave, name, None)
