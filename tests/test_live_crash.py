# SPDX-License-Identifier: Apache-2.0
"""Live jobs and everything that dies, hangs or comes too late while they run.

Ranks outlive ptcd: after any death of a daemon the job goes on, with the same processes unless the generation had ended
already, and every byte is that of an undisturbed run. A rank that dies stops the job with its state kept. Fault points are
found by running a scenario, as in test_crash.py. By default a sample is taken (the seed is printed); PTC_TEST_LONG=1 takes
every point, and more random kills.
"""
import concurrent.futures
import contextlib
import glob
import json
import operator
import os
import shutil
import signal
import subprocess
import threading
import time
import unittest

import harness
import live
import test_crash
from cluster import cgroups_of
from harness import LONG, PATIENCE, ClusterError, wait_for
from test_proof import proved

A, B = "tp=2,dp=2", "tp=1,pp=2,dp=2"


class LiveCrash(harness.Case):
    (arm, env, up, settle, recover, forget, points, passed, sample, reach, check_reached, quietly, etcd, kill_one, while_running) = (
        getattr(test_crash.Crash, name) for name in
        "arm env up settle recover forget points passed sample reach check_reached quietly etcd kill_one while_running".split())

    measured = {}
    asked, tried, missed = 0, 0, ()

    @contextlib.contextmanager
    def started(self, nodes=2, devices=2, config=A, start=True, lease_ttl="2s", **kw):
        """A cluster and a job that runs on it."""
        with self.cluster(nodes=nodes, devices=devices, up=False, lease_ttl=lease_ttl) as c:
            self.up(c)
            job = live.Job(c, os.path.join(self.dir, "job"), **kw)
            if start:
                job.run(config)
                job.wait_step(3)
            yield c, job

    # ---- what must hold ---------------------------------------------------------------------------

    def ranks(self, job):
        return job.status()["run"].get("ranks", [])

    def pids(self, job):
        return {r["rank"]: r.get("pid") for r in self.ranks(job)}

    def alive(self, c, job, node="n0"):
        """Until no switch is under way and every rank has ended a step since. The status."""
        def idle():
            s = job.status(node=node)
            return s if s["phase"] == "idle" and s["run"]["state"] == "live" and \
                all(r["state"] == "running" and r.get("step") is not None for r in s["run"]["ranks"]) else None

        def stepped():
            s = idle()
            if not s or (s["generation"], s["run"]["incarnation"]) != at:
                return None
            return s if all(r["step"] > before.get(r["rank"], -1) for r in s["run"]["ranks"]) else None

        try:
            s = wait_for(idle, 60 * PATIENCE, "a job that runs", 0.05)
            at, before = (s["generation"], s["run"]["incarnation"]), {r["rank"]: r["step"] for r in s["run"]["ranks"]}
            return wait_for(stepped, 30 * PATIENCE, "steps of every rank", 0.05)
        except ClusterError:
            print("status:", json.dumps(job.status(node=node)), c.ptcctl("events", job.name, check=False).stdout, flush=True)
            raise

    def spans(self, job):
        """[(generation, incarnation, first step, step after the last)], in the order they ran."""
        found = {}
        for path in glob.glob(os.path.join(job.logs, "*.jsonl")):
            g, l, r = os.path.basename(path)[:-6].split("-")
            with open(path) as f:
                lines = [json.loads(line) for line in f if line.endswith("\n")]
            if not lines:
                continue
            steps = [line["step"] for line in lines]
            key = int(g[1:]), int(l[1:])
            self.assertEqual(list(range(steps[0], steps[0] + len(steps))), steps, f"{path}: steps left out or done twice")
            self.assertEqual(1, len({line["pid"] for line in lines}), f"{path}: a rank was started again in its incarnation")
            found.setdefault(key, {})[r] = (steps[0], steps[-1] + 1)
        for key, ranks in found.items():
            self.assertEqual(1, len(set(ranks.values())), f"ranks of {key} began or ended at different steps: {ranks}")
        return sorted((g, next(iter(ranks.values()))[0], next(iter(ranks.values()))[1], l) for (g, l), ranks in found.items())

    def check_end(self, c, job, name="end"):
        """Stops the job: each step was done once, in order, and what is committed is the state after the last one."""
        self.alive(c, job)
        self.stop(job)
        last = job.wait_run("stopped")["step"]
        job.check_state(self, last, self.path(name))
        spans = self.spans(job)
        for (_, _, end, _), (_, begin, _, _) in zip(spans, spans[1:]):
            self.assertEqual(end, begin, f"steps left out or done twice: {spans}")
        self.assertEqual(last, spans[-1][2], spans)
        wait_for(lambda: not job.processes(), 20 * PATIENCE, "the end of every rank", 0.1)
        return last

    def stop(self, job):
        """Stops the job, also where the controller has just lost its lease: an error says that nothing was done."""
        while (r := job.do("stop", check=False)).returncode != 0:
            self.assertIn("nothing was done; ask again", r.stderr)

    def check_clean(self, c, job):
        """No process, cgroup or key of a switch is left of a job that does not run."""
        uuid = job.status()["uuid"]
        wait_for(lambda: not cgroups_of([uuid]), 10 * PATIENCE, f"no cgroup of {uuid}", 0.1)
        self.assertEqual([], [k for k in self.etcd(c) if k.endswith(("/intent", "/barrier")) and uuid in k and "barrier" not in k])

    def phase(self, c, job, wanted, timeout_s=20):
        wait_for(lambda: job.status()["phase"] == wanted, timeout_s * PATIENCE, f"phase {wanted}", 0.01)

    # ---- kill -9 of ptcd at fault points -------------------------------------------------------------

    def other(self, c, victim):
        return next(n for n in reversed(c.nodes) if n != victim)

    def told(self, c, job, *args, **kw):
        """quietly(), but says how things stand when it does not end."""
        try:
            return self.quietly(c, *args, **kw)
        except AssertionError:
            print(json.dumps(job.status()), c.ptcctl("events", job.name, check=False).stdout, flush=True)
            if os.environ.get("PTC_TEST_HANG"):
                for n in c.nodes.values():
                    subprocess.run(["gdb", "-p", str(n.pid()), "-batch", "-ex", "thread apply all bt"], check=False)
            raise

    def die(self, c, victim, point, function):
        """The victim dies at the point while the function runs. Whether it was reached; some a rank's helper or the process
        that copies passes, and dies."""
        node = c.nodes[victim]
        self.forget(node)
        self.arm(node, point)
        died = self.while_running(c, function, node)
        return died or (point.startswith(("process.", "copy.")) and point in self.passed(node))

    def act_and_die(self, c, job, victim, point, act):
        """The victim dies at the point while act(node) runs; the job goes on. Whether it was reached."""
        before = self.alive(c, job)
        pids = {r["rank"]: r["pid"] for r in before["run"]["ranks"]}
        died = self.die(c, victim, point, lambda: act(self.other(c, victim)))
        kind = "controller" if victim == before["controller"] else "member"
        after = self.alive(c, job)
        same = (before["generation"], before["run"]["incarnation"]) == (after["generation"], after["run"]["incarnation"])
        print(f"{victim} ({kind}) at {point}{'' if died else ' (not reached)'}: generation {before['generation']} -> "
              f"{after['generation']}{'' if same or after['generation'] != before['generation'] else ', launched again'}", flush=True)
        if same and pids:
            self.assertEqual(pids, {r["rank"]: r["pid"] for r in after["run"]["ranks"]}, "ranks were restarted")
        return died

    def kill_at_points(self, c, job, act, controllers, members):
        """act(node) once to find the points, then with a death at some of those of each daemon."""
        controller = wait_for(lambda: job.status()["controller"], 20 * PATIENCE, "a controller")
        found = self.points(c, lambda: act(controller))
        self.alive(c, job)
        member = self.other(c, controller)
        plan = [(True, p) for p in self.sample(found[controller], controllers)] + \
               [(False, p) for p in self.sample(found[member], members)]

        def attempt(is_controller, point):
            controller = wait_for(lambda: job.status()["controller"], 20 * PATIENCE, "a controller")
            return self.act_and_die(c, job, controller if is_controller else self.other(c, controller), point, act)

        # a store that has enough chunks makes no new ones; a rank's helper kills its cgroup where it has not ended by itself
        by_chance = ("store.chunks.commit.*", "store.fallocate", "process.cgroup_remove.*")
        for is_controller, point in plan:
            self.reach(point, lambda: attempt(is_controller, point), by_chance) # noqa: B023
        self.check_reached()

    def resize_there(self, c, job, configs=(B, A)):
        """Each time to the one after that which there is."""
        def act(node):
            now = job.status(node=node)["config"]
            at = [i for i, config in enumerate(configs) if test_crash.same(now, config)]
            there = configs[(at[0] + 1) % len(configs) if at else 0]
            self.told(c, job, "resize", job.name, "--config", there, "--wait", node=node)
        return act

    @unittest.skipUnless(LONG, "set PTC_TEST_LONG=1")
    @harness.labels("repeats")
    def test_points_in_resize_rebuild(self):
        with self.started(mode="rebuild") as (c, job):
            self.kill_at_points(c, job, self.resize_there(c, job), 3, 3)
            self.check_end(c, job)

    @unittest.skipUnless(LONG, "set PTC_TEST_LONG=1")
    @harness.labels("repeats")
    def test_points_in_resize_restart(self):
        with self.started() as (c, job):
            self.kill_at_points(c, job, self.resize_there(c, job), 3, 3)
            self.check_end(c, job)

    @harness.labels("repeats")
    def test_points_in_snapshot(self):
        with self.started() as (c, job):
            self.kill_at_points(c, job, lambda node: self.told(c, job, "snapshot", job.name, "--wait", node=node), 3, 3)
            self.check_end(c, job)

    @unittest.skipUnless(LONG, "set PTC_TEST_LONG=1")
    @harness.labels("repeats")
    def test_points_in_max(self):
        """The daemon that merges what ranks have each their own of dies, or one that exposes its values to it: it is the greatest all the same."""
        with self.started(amax="F32", run={"rules": [{"match": "amax*", "state": "max"}]}) as (c, job):
            reached = 0
            for rank, point in ((0, "agent.capture.merged"), (3, "agent.capture.middle"), (0, "agent.capture.middle@3"),
                                (3, "store.meta.commit.before@2"), (3, "store.meta.commit.after@3")):
                victim = next(r["node"] for r in self.alive(c, job)["run"]["ranks"] if r["rank"] == rank)
                reached += self.act_and_die(c, job, victim, point, self.resize_there(c, job))
            self.assertGreater(reached, 3)
            job.resize("tp=4")
            self.check_end(c, job)
            self.assertGreater(job.check_amax(self), 4)

    @unittest.skipUnless(LONG, "set PTC_TEST_LONG=1")
    @harness.labels("repeats")
    def test_points_in_first_run(self):
        """Whatever dies while a job first starts: it runs, or does not and can be run again."""
        with self.started(start=False, sleep=0.01) as (c, job):
            def act(node):
                self.told(c, job, "run", "-f", job.yaml, "--config", A, "--wait", node=node)

            found = self.points(c, lambda: act("n0"))
            self.alive(c, job)
            controller = job.status()["controller"]
            plan = [(True, p) for p in self.sample(found[controller], 2)] + \
                   [(False, p) for p in self.sample(found[self.other(c, controller)], 2)]
            def attempt(is_controller, point):
                self.delete(c, job)
                victim = controller if is_controller else self.other(c, controller)
                # who is asked to make a job controls it
                died = self.die(c, victim, point, lambda: act(controller))
                state = self.settled(c, job)
                print(f"{victim} at {point}{'' if died else ' (not reached)'}: {state}", flush=True)
                if state != "live":
                    act("n0")
                self.alive(c, job)
                return died

            for is_controller, point in plan:
                self.reach(point, lambda: attempt(is_controller, point)) # noqa: B023
            self.check_reached()
            self.check_end(c, job)
            self.delete(c, job)

    def settled(self, c, job):
        """None (no such job), or its run state when nothing is under way."""
        def done():
            r = c.ptcctl("status", job.name, "--format", "json", check=False)
            if r.returncode:
                return "none" if "does not exist" in r.stderr else None
            s = json.loads(r.stdout)["jobs"][0]
            return s.get("run", {}).get("state", "new") if s["phase"] in ("idle", "empty") else None

        return wait_for(done, 60 * PATIENCE, "an idle job", 0.05)

    def delete(self, c, job):
        """A deleted job leaves no process, cgroup, folder or key; its steps are forgotten too."""
        uuid = job.status()["uuid"]
        if job.status()["run"]["state"] == "live":
            self.refused(c, "job", "delete", job.name, contains="stop")
            job.do("stop")
        wait_for(lambda: job.c.ptcctl("job", "delete", job.name, check=False).returncode == 0, 30 * PATIENCE, "the delete", 0.2)
        wait_for(lambda: not job.processes(), 30 * PATIENCE, "the end of every rank", 0.1)
        wait_for(lambda: not cgroups_of([uuid]), 10 * PATIENCE, f"no cgroup of {uuid}", 0.1)
        folders = [os.path.join(n.dir, "run", "workers", uuid) for n in c.nodes.values()]
        wait_for(lambda: not any(map(os.path.exists, folders)), 10 * PATIENCE, f"the end of {folders}", 0.1)
        wait_for(lambda: not [k for k in self.etcd(c) if uuid in k], 10 * PATIENCE, f"no key of {uuid}", 0.1)
        for path in glob.glob(os.path.join(job.logs, "*.jsonl")):
            os.unlink(path)

    def failed(self, c, job):
        """Until the job has failed, as any daemon that lives says it."""
        def look():
            for node in c.nodes:
                with contextlib.suppress(ClusterError):
                    s = job.status(node=node)
                    if s["run"]["state"] == "failed" and s["phase"] == "idle":
                        return s
            return None

        return wait_for(look, 60 * PATIENCE, "a failed job", 0.05)

    @harness.labels("repeats")
    def test_points_in_halt(self):
        """A rank dies; then a daemon, while the job is brought to a stop. It is failed, its snapshot whole, and runs again."""
        # a rank and its node that die at once would else be a lost node's doing: the job would be started again
        with self.started(run={"snapshot_every": 20, "elastic": {"on_failure": "stop"}}) as (c, job):
            def act(node=None):
                os.kill(self.random.choice(job.processes()), signal.SIGKILL) # daemons may be down already
                self.failed(c, job)

            def again():
                c.ptcctl("run", job.name, "--wait", timeout_s=60 * PATIENCE)
                job.wait_step(job.status()["step"] + 21)

            job.wait_step(25)
            found = self.points(c, act)
            controller = job.status()["controller"]
            other = self.other(c, controller)
            plan = [(True, p) for p in self.sample(found[controller], 2)] + [(False, p) for p in self.sample(found[other], 1)]

            def attempt(is_controller, point):
                again()
                controller = job.status()["controller"]
                victim = controller if is_controller else self.other(c, controller)
                died = self.die(c, victim, point, act)
                print(f"{victim} at {point}{'' if died else ' (not reached)'}", flush=True)
                status = self.failed(c, job)
                said = "was killed by signal 9"
                if point.startswith("process.exit"): # of the rank's helper, which then cannot tell
                    said += "|its status is not known"
                self.assertRegex(status["run"]["text"], said)
                self.assertGreater(status["step"], 0)
                job.check_state(self, status["step"], self.path("halted"))
                wait_for(lambda: not job.processes(), 20 * PATIENCE, "the end of every rank", 0.1)
                return died

            of_snapshots = ("etcd.intent.*", "etcd.blob.*", "etcd.clear.*", "etcd.commit1.*", "digests.merge", "store.*", "agent.capture.*", "copy.*",
                            "process.cgroup_remove.*") # a rank's helper may have done it
            for is_controller, point in plan: # a snapshot is due, or under way, at some halts and not at others
                self.reach(point, lambda: attempt(is_controller, point), of_snapshots) # noqa: B023
            self.check_reached()

    # ---- daemons that come back late ------------------------------------------------------------------

    @harness.labels("repeats")
    def test_restarted_while_ranks_stand(self):
        """Daemons die while ranks are stopped at a boundary, and while new ones build and meet."""
        with self.started(mode="rebuild", build_sleep=1.5, end_sleep=1, rendezvous=1) as (c, job):
            # what ranks of the other node have put is only with rank 0's, here: theirs has no reason to put it again
            for phase, dying in (("building", ["n0"]), *((p, list(c.nodes)) for p in ("building", "arming", "sealing", "ending"))):
                resize = self.resize_there(c, job)
                if phase == "sealing":
                    for n in c.nodes.values():
                        self.arm(n, "agent.capture.middle=sleep")
                if phase in ("arming", "ending"): # one rank keeps all others waiting
                    pid = self.pids(job)[3]
                    os.kill(pid, signal.SIGSTOP)
                before = self.pids(job)
                thread = threading.Thread(target=resize, args=("n0",))
                thread.start()
                try:
                    if phase == "ending":
                        os.kill(pid, signal.SIGCONT)
                    self.phase(c, job, phase)
                    time.sleep(0.3 if phase != "ending" else 0) # an instant well inside it; nothing is judged by it
                finally:
                    for name in dying:
                        c.nodes[name].kill()
                    if phase == "arming":
                        os.kill(pid, signal.SIGCONT)
                self.recover(c)
                thread.join()
                status = self.alive(c, job)
                print(f"{phase}: generation {status['generation']}", flush=True)
                self.assertEqual(sorted(before.values()), sorted(self.pids(job).values()), "processes that rebuild stay")
            self.check_end(c, job)

    @harness.labels("repeats")
    def test_coordinator_away(self):
        """etcd stands still for ten seconds; training does not; what was asked meanwhile is done or refused, not half."""
        with self.started() as (c, job):
            etcd = [pid for pid in c.processes() if open(f"/proc/{pid}/comm").read().strip() == "etcd"]
            before = self.pids(job)
            steps = sum(map(len, job.steps_logged().values()))
            os.kill(etcd[0], signal.SIGSTOP)
            try:
                time.sleep(5) # for so long it stands, before what is asked and after
                thread = threading.Thread(target=self.resize_there_quietly, args=(c, job))
                thread.start()
                time.sleep(5)
                self.assertGreater(sum(map(len, job.steps_logged().values())), steps + 100, "training stood still")
            finally:
                os.kill(etcd[0], signal.SIGCONT)
            thread.join()
            self.settle(c)
            now = self.alive(c, job)
            if now["generation"] == 1:
                self.assertEqual(before, self.pids(job))
            job.resize(B if test_crash.same(now["config"], A) else A)
            self.check_end(c, job)

    @harness.labels("repeats")
    def test_ranks_end_with_ptcd(self):
        """ptcd stops while etcd stands still, and its ranks die one after another meanwhile: it ends in order, and the next one tells."""
        with self.started(config="dp=4") as (c, job):
            etcd = [pid for pid in c.processes() if open(f"/proc/{pid}/comm").read().strip() == "etcd"]
            status = job.status()
            there = [r["pid"] for r in status["run"]["ranks"] if r["node"] == "n1"]
            node = c.nodes["n1"]
            os.kill(etcd[0], signal.SIGSTOP)
            try:
                node.signal(signal.SIGTERM)
                for pid in there:
                    time.sleep(self.random.random()) # any instant; nothing is judged by it
                    os.kill(pid, signal.SIGKILL)
                node.wait_gone(60 * PATIENCE)
            finally:
                os.kill(etcd[0], signal.SIGCONT)
            self.assertIn("ptcd: stopped", node.log_tail(1))
            c.restart("n1")
            job.wait_run("failed", 90)

    def resize_there_quietly(self, c, job):
        self.quietly(c, "resize", job.name, "--config", B, "--wait", node="n1")

    # ---- ranks that die or hang -----------------------------------------------------------------------

    @harness.labels("repeats")
    def test_rank_killed(self):
        """In each phase: of those that train, the job fails with its state kept; of those to come, it goes on as before."""
        with self.started() as (c, job):
            for phase, old in (("starting", True), ("starting", False), ("arming", True), ("building", False)):
                job.do("snapshot")
                before = job.status()
                pids = self.pids(job)
                if phase == "arming":
                    os.kill(pids[3], signal.SIGSTOP)
                thread = threading.Thread(target=self.resize_there(c, job), args=("n0",))
                with job.hold("build" if phase == "building" else "start") if phase != "arming" else contextlib.nullcontext():
                    thread.start()
                    self.phase(c, job, phase)
                    if old:
                        os.kill(pids[2], signal.SIGKILL)
                    else:
                        new = wait_for(lambda: [p for p in job.processes() if p not in pids.values()], 10 * PATIENCE, "new ranks", 0.01) # noqa: B023
                        os.kill(self.random.choice(new), signal.SIGKILL)
                thread.join()
                if phase == "arming":
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pids[3], signal.SIGCONT)
                if old:
                    status = job.wait_run("failed")
                    self.assertIn("rank 2", status["run"]["text"])
                    self.assertEqual(before["generation"], status["generation"])
                    job.check_state(self, status["step"], self.path(f"killed-{phase}"))
                    c.ptcctl("run", job.name, "--wait", timeout_s=60 * PATIENCE)
                    self.alive(c, job)
                else:
                    status = self.alive(c, job)
                    self.assertTrue(test_crash.same(before["config"], status["config"]), "the switch was to be aborted")
                    if phase == "starting":
                        self.assertEqual(pids, self.pids(job), "ranks were restarted")
                    else:
                        self.assertNotEqual(before["run"]["incarnation"], status["run"]["incarnation"])
                events = c.ptcctl("events", job.name).stdout
                self.assertIn("aborted", events.split("requested")[-1] if not old else events)
                print(f"{phase}, {'old' if old else 'new'} rank: {status['run']['state']}", flush=True)
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))

    @harness.labels("repeats")
    def test_hang(self):
        """A rank that does not come to its boundary: a person ends the switch, or boundary_timeout does; then all go on."""
        with self.started() as (c, job):
            pids = self.pids(job)
            os.kill(pids[1], signal.SIGSTOP)
            thread = threading.Thread(target=self.resize_there(c, job), args=("n1",))
            thread.start()
            self.phase(c, job, "arming")
            time.sleep(0.5) # the others wait at the stop, or are on their way to it
            c.ptcctl("abort", job.name)
            thread.join()
            os.kill(pids[1], signal.SIGCONT)
            self.alive(c, job)
            self.assertEqual(pids, self.pids(job))
            # the stop that was set is taken back also where ranks had not come to it yet
            for pid in pids.values():
                os.kill(pid, signal.SIGSTOP)
            thread = threading.Thread(target=self.resize_there(c, job), args=("n1",))
            thread.start()
            self.phase(c, job, "arming")
            time.sleep(0.5) # the stop is set, or about to be; nothing is judged by it
            c.ptcctl("abort", job.name)
            thread.join()
            for pid in pids.values():
                os.kill(pid, signal.SIGCONT)
            self.alive(c, job)
            self.assertEqual(pids, self.pids(job))
            self.check_end(c, job)

    def test_boundary_timeout(self):
        with self.started(start=False) as (c, job):
            with open(job.yaml) as f:
                spec = json.load(f)
            spec["run"]["boundary_timeout"] = "1s"
            with open(job.yaml, "w") as f:
                json.dump(spec, f)
            job.run(A)
            job.wait_step(5)
            pids = self.pids(job)
            os.kill(pids[2], signal.SIGSTOP)
            error = self.refused(c, "snapshot", job.name, "--wait", contains="boundary_timeout")
            os.kill(pids[2], signal.SIGCONT)
            self.assertIn("rank 2", error)
            self.assertNotIn("rank 1", error)
            self.alive(c, job)
            self.assertEqual(pids, self.pids(job))
            self.check_end(c, job)

    @harness.labels("repeats")
    def test_build_timeout(self):
        """New ranks that hang as they start, or as they build: the switch ends with a line that names them, and training goes on."""
        with self.started(start=False, grace="1s") as (c, job):
            with open(job.yaml) as f:
                spec = json.load(f)
            spec["run"]["build_timeout"] = f"{4 * PATIENCE}s"
            with open(job.yaml, "w") as f:
                json.dump(spec, f)
            job.run(A)
            for phase, held in (("starting", "start"), ("building", "build")):
                before, pids = self.alive(c, job), set(job.processes())
                said = []
                thread = threading.Thread(target=lambda: said.append( # noqa: B023
                    self.refused(c, "resize", job.name, "--config", B, "--wait", contains="build_timeout", timeout_s=90 * PATIENCE))) # noqa: B023
                with job.hold(held):
                    thread.start()
                    self.phase(c, job, phase)
                    new = wait_for(lambda: [p for p in job.processes() if p not in pids], 10 * PATIENCE, "new ranks", 0.01) # noqa: B023
                    os.kill(new[0], signal.SIGSTOP)
                thread.join()
                self.assertEqual(1, len(said), "it was not refused as it had to be: see above")
                self.assertIn(f"(pid {new[0]})", said[0])
                after = self.alive(c, job)
                self.assertTrue(test_crash.same(before["config"], after["config"]))
                wait_for(lambda: new[0] not in job.processes(), 20 * PATIENCE, "the end of the rank that hung", 0.1) # noqa: B023
            self.check_end(c, job)

    @staticmethod
    def removed(path):
        with contextlib.suppress(OSError):
            os.rmdir(path)
        return not os.path.exists(path)

    def test_machine_restarted(self):
        """Ranks that trained and are gone with their node's memory are not started alone: the others are steps ahead."""
        with self.started(run={"elastic": {"on_failure": "stop"}}) as (c, job):
            job.do("snapshot")
            job.wait_step(job.status()["step"] + 10)
            n1 = c.nodes["n1"]
            lost = [r["pid"] for r in self.ranks(job) if r["node"] == "n1"]
            orphans = [r["cgroup"] for r in self.ranks(job) if r["node"] == "n1" and r["cgroup"]]
            n1.kill()
            folder = os.path.join(n1.dir, "run", "workers")
            helpers = {int(line.split()[1]) for path in glob.glob(f"{folder}/*/processes/*/process")
                       for line in open(path) if line.startswith("helper ")}
            for pid in [*helpers, *lost]:
                os.kill(pid, signal.SIGKILL)
            shutil.rmtree(folder)
            self.recover(c)
            status = job.wait_run("failed")
            self.assertIn("no longer run on this node", status["run"]["text"])
            wait_for(lambda: not job.processes(), 20 * PATIENCE, "the end of every rank", 0.1)
            job.check_state(self, status["step"], self.path("kept"))
            self.assertEqual(1, len({(g, l) for g, l, _ in job.steps_logged()}), "ranks were started again")
            c.ptcctl("run", job.name, "--wait", timeout_s=60 * PATIENCE)
            self.alive(c, job)
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))
            # a machine that really restarts has none of the old cgroups
            wait_for(lambda: not [p for p in orphans if os.path.exists(p) and not self.removed(p)], 10 * PATIENCE, "cgroups", 0.1)

    # ---- what is refused ---------------------------------------------------------------------------------

    def test_refused(self):
        with self.started(nodes=3, devices=2, run={"snapshot_every": 30}) as (c, job):
            pids = self.pids(job)
            self.refused(c, "resize", job.name, "--config", "tp=7", "--wait", contains="devices")
            self.assertEqual(pids, self.pids(job))
            # two at once: one is done, the other told that the job is busy or has changed
            results = []
            threads = [threading.Thread(target=lambda n=n, to=to: results.append(
                self.quietly(c, "resize", job.name, "--config", to, "--wait", node=n))) for n, to in (("n0", B), ("n1", "tp=6"), ("n2", "dp=4"))]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            done = [r for r in results if r.returncode == 0]
            self.assertTrue(done, [r.stderr for r in results])
            for r in results:
                self.assertTrue(r.returncode == 0 or "busy" in r.stderr or "try again" in r.stderr, r.stderr)
            at = self.alive(c, job)["step"]
            # switches while snapshots are due
            for i in range(6):
                job.wait_step(at + 26 + self.random.randint(0, 8))
                at = job.resize(B if i % 2 else A)["step"]
            job.wait_step(at + 65)
            self.assertGreater(job.status()["step"], at, "no snapshot was made since")
            self.check_end(c, job)

    def test_planned_meanwhile(self):
        """Snapshots are committed between what a resize reads of the job and its plan, whose documents are dropped: it reads anew."""
        with self.started(run={"snapshot_every": 20}) as (c, job), concurrent.futures.ThreadPoolExecutor() as pool:
            job.wait_step(21)
            controller = c.nodes[job.status()["controller"]]
            self.arm(controller, "api.switch.plan=hold")
            resized = pool.submit(job.resize, B)
            try:
                held = job.status()["snapshot"]
                wait_for(lambda: job.status()["snapshot"] > held + 3, 60 * PATIENCE, "later snapshots", 0.05)
            finally:
                self.arm(controller)
            job.wait_step(resized.result()["step"] + 3)
            self.check_end(c, job)

    def test_stopped_now(self):
        """Ranks that come to no boundary are ended all the same; the last snapshot is the state, and runs again."""
        with self.started(grace="1s") as (c, job):
            job.do("snapshot")
            step = job.status()["step"]
            for pid in self.pids(job).values():
                os.kill(pid, signal.SIGSTOP)
            thread = threading.Thread(target=self.quietly, args=(c, "stop", job.name))
            thread.start()
            self.phase(c, job, "arming")
            c.ptcctl("stop", job.name, "--now", node="n1", timeout_s=60 * PATIENCE)
            thread.join()
            self.assertEqual(step, job.wait_run("stopped")["step"])
            wait_for(lambda: not job.processes(), 20 * PATIENCE, "the end of every rank", 0.1)
            self.refused(c, "stop", job.name, "--now", contains="does not run (stopped)")
            job.check_state(self, step, self.path("now"))
            c.ptcctl("run", job.name, "--wait", timeout_s=60 * PATIENCE)
            job.wait_step(step + 3)
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))

    def test_snapshots_fail(self):
        """One that is due and fails costs the ranks that stop, and not more; the next one is tried at its own step."""
        told = self.path("refuse")
        with self.started(run={"snapshot_every": 20}, refuse=told) as (c, job):
            open(told, "w").close()
            wait_for(lambda: "refused, as told" in c.ptcctl("events", job.name).stdout, 20 * PATIENCE, "a snapshot that fails")
            snapshot, at = job.status()["snapshot"], job.step()
            job.wait_step(at + 400, 30) # twenty more
            self.assertEqual(snapshot, job.status()["snapshot"])
            os.unlink(told)
            wait_for(lambda: job.status()["snapshot"] > snapshot, 20 * PATIENCE, "a snapshot that is made")
            self.check_end(c, job)

    @harness.labels("repeats")
    def test_asked_between_snapshots(self):
        """A snapshot after every step keeps the job nearly always busy: whoever asks for something is let in all the same."""
        with self.started(run={"snapshot_every": 1}) as (c, job):
            for config in (B, A):
                at = job.resize(config)["step"]
                job.wait_step(at + 3)
                job.do("snapshot")
            self.assertGreater(job.status()["snapshot"], 8)
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("end"))

    @harness.labels("repeats")
    def test_drain(self):
        with self.started(nodes=3, devices=2) as (c, job):
            node = sorted({r["node"] for r in job.status()["ranks"]})[-1]
            c.ptcctl("drain", node, "--wait", timeout_s=60 * PATIENCE)
            status = self.alive(c, job)
            self.assertNotIn(node, {r["node"] for r in status["ranks"]})
            self.assertEqual("live", status["run"]["state"])
            self.check_end(c, job)
            uuid = status["uuid"]
            self.assertEqual([], glob.glob(os.path.join(c.nodes[node].dir, "run", "workers", uuid, "groups", "*")))

    def delete_until_gone(self, c, job, node):
        def gone():
            r = self.quietly(c, "job", "delete", job.name, node=node)
            return r.returncode == 0 or "does not exist" in r.stderr

        wait_for(gone, 30 * PATIENCE, "the delete", 0.2)

    @harness.labels("repeats")
    def test_delete(self):
        """Leaves nothing; also where a daemon was down when it was deleted, or is killed in the middle of removing it."""
        with self.started() as (c, job):
            found = self.points(c, lambda: self.delete(c, job))
            for victim, point in (("n1", None), *((n, p) for n in c.nodes for p in self.sample(found[n], 2))):
                job.run(A)
                self.alive(c, job)
                job.do("stop")
                uuid = job.status()["uuid"]
                print(f"{victim}: {point or 'down'}", flush=True)
                if point:
                    self.arm(c.nodes[victim], point)
                else:
                    c.nodes[victim].kill()
                self.while_running(c, lambda: self.delete_until_gone(c, job, self.other(c, victim)), c.nodes[victim]) # noqa: B023
                wait_for(lambda: not job.processes(), 30 * PATIENCE, "the end of every rank", 0.1)
                folders = [os.path.join(n.dir, "run", "workers", uuid) for n in c.nodes.values()]
                wait_for(lambda: not any(map(os.path.exists, folders)), 10 * PATIENCE, f"the end of {folders}", 0.1) # noqa: B023
                wait_for(lambda: not cgroups_of([uuid]), 10 * PATIENCE, "no cgroup", 0.1) # noqa: B023

    # ---- other users, old processes -----------------------------------------------------------------------

    @harness.skip_unless_root
    def test_strangers(self):
        """Another user reads neither logs nor sockets; a process of an old incarnation, or with a wrong token, is sent away."""
        with self.started() as (c, job):
            row = self.ranks(job)[0]
            uuid = job.status()["uuid"]
            path = os.path.join(c.nodes[row["node"]].dir, "run", "workers", uuid, "s")
            code = f"""
import os, socket, sys
os.setgid(65534); os.setuid(65534)
for what, act in (("socket", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect({path!r})),
                  ("log", lambda: open({row['log']!r}).read()), ("environment", lambda: open("/proc/{row['pid']}/environ").read()),
                  ("folder", lambda: os.listdir(os.path.dirname({row['log']!r})))):
    try:
        act()
        print("open:", what)
    except OSError as e:
        pass
"""
            out = subprocess.run(["python3", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
            self.assertEqual("", out.stdout)
            r = c.ptcctl("logs", job.name, prefix=["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"], check=False)
            self.assertNotEqual(0, r.returncode, r.stdout)
            # a process with the environment of an old incarnation
            with open(f"/proc/{row['pid']}/environ", "rb") as f:
                old = dict(e.split(b"=", 1) for e in f.read().split(b"\0") if b"=" in e)
            job.resize(B)
            stale = subprocess.run(open(f"/proc/{self.pids(job)[0]}/cmdline", "rb").read().split(b"\0")[:-1], env=old, timeout=30,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            self.assertNotEqual(0, stale.returncode)
            self.assertRegex(stale.stdout, "(?i)stale|over|token")
            # the same token as a rank that runs, from a process that is not of its session
            with open(f"/proc/{self.pids(job)[1]}/environ", "rb") as f:
                live_env = dict(e.split(b"=", 1) for e in f.read().split(b"\0") if b"=" in e)
            thief = subprocess.run(open(f"/proc/{self.pids(job)[1]}/cmdline", "rb").read().split(b"\0")[:-1], env=live_env, timeout=30,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            self.assertNotEqual(0, thief.returncode)
            self.assertIn("not for process", thief.stdout)
            self.alive(c, job)
            self.check_end(c, job)

    # ---- a controller that loses the job while somebody waits ----------------------------------------

    def controller(self, job):
        return wait_for(lambda: job.status()["controller"], 20 * PATIENCE, "a controller")

    def take_lock(self, c, job):
        """The controller loses the job's lock, as with a lease that ends; somebody, perhaps the same node, gets it anew."""
        key = f"/ptc/jobs/{job.status()['uuid']}/lock"

        def life():
            return [kv["create_revision"] for kv in json.loads(c.etcdctl("get", key, "-w", "json").stdout).get("kvs", [])]

        before = life()
        c.etcdctl("del", key)
        wait_for(lambda: life() not in ([], before), 30 * PATIENCE, "a controller", 0.05)

    def follow(self, c, job, verb, *more, node, then, what=None):
        """What ptcctl says, asked of a node, when `then` happens while new ranks start."""
        with concurrent.futures.ThreadPoolExecutor() as pool:
            with job.hold("start"):
                asked = pool.submit(c.ptcctl, verb, what or job.name, *more, node=node, check=False, timeout_s=90 * PATIENCE)
                self.phase(c, job, "starting")
                then()
            return asked.result()

    def test_followed_to_the_next_controller(self):
        """The lock is lost while new ranks start: who asked hears how the switch ends, at the controller or at another node."""
        with self.started() as (c, job):
            uuid = job.status()["uuid"]
            for i in range(80): # of nodes that the job has been on
                c.etcdctl("put", f"/ptc/jobs/{uuid}/worker/gone{i}", '{"version":1}')
            for leaf in ("meta", "record", "intent", "barrier", "lock"): # nodes may be called so
                c.etcdctl("put", f"/ptc/jobs/{uuid}/worker/{leaf}", '{"version":1}')
            takeovers = self.takeovers(c, job) # a busy machine may lose the lock by itself
            for generation, (config, there) in enumerate(((B, False), (A, True)), 2):
                node = self.other(c, self.controller(job)) if there else self.controller(job)
                r = self.follow(c, job, "resize", "--config", config, "--wait", "--format", "json", node=node,
                                then=lambda: self.take_lock(c, job))
                self.assertEqual(0, r.returncode, r.stderr)
                summary = json.loads(r.stdout)
                self.assertEqual(("resize", generation, True), (summary["kind"], summary["generation"], summary["taken_over"]))
                self.assertEqual(generation, self.alive(c, job)["generation"])
            r = self.follow(c, job, "resize", "--config", B, "--wait", node=self.controller(job),
                            then=lambda: (self.take_lock(c, job), c.ptcctl("abort", job.name)))
            self.assertEqual((1, ""), (r.returncode, r.stdout))
            self.assertIn("aborted by request", r.stderr)
            self.assertEqual([], [e for e in self.events(c, job) if "no longer the controller" in e["text"]])
            new = self.takeovers(c, job)[len(takeovers):]
            self.assertEqual(3, len(new), new)
            self.check_end(c, job)

    def takeovers(self, c, job):
        return [e["text"] for e in self.events(c, job) if e["kind"] == "takeover"]

    def events(self, c, job):
        return [json.loads(line) for line in c.ptcctl("events", job.name, "--format", "json").stdout.splitlines()]

    def test_followed_when_the_controller_dies(self):
        """kill -9 of the controller, before and after what it writes: another node's ptcctl says what is then true."""
        with self.started(nodes=3) as (c, job):
            for point in ("etcd.intent.before", "etcd.intent.after", "etcd.commit1.after", "etcd.commit2.before", "etcd.commit2.after"):
                with self.subTest(point):
                    before = self.alive(c, job)
                    victim = self.controller(job)
                    said = []
                    config = B if test_crash.same(before["config"], A) else A

                    def ask(victim=victim, config=config, said=said):
                        said.append(c.ptcctl("resize", job.name, "--config", config, "--wait", node=self.other(c, victim),
                                             check=False, timeout_s=90 * PATIENCE))

                    self.assertTrue(self.die(c, victim, point, ask))
                    after = self.alive(c, job)
                    done = after["generation"] == before["generation"] + 1
                    self.assertEqual(0 if done else 1, said[0].returncode, f"{said[0].stderr} {after['generation']}")
                    if point == "etcd.intent.before":
                        self.assertFalse(done)
                        # it may die before it has said which switch it has begun
                        self.assertRegex(said[0].stderr, "nothing was done; ask again|broke before that node said whether")
                    else:
                        self.assertIn(f"generation {after['generation']}, ", said[0].stdout)
            self.check_end(c, job)

    def test_drain_when_the_controller_dies(self):
        """kill -9 of the controller while a job leaves another node: the drain waits for the one that takes over, and tells what is true."""
        with self.started(nodes=4) as (c, job):
            victim = self.controller(job)
            node = next(r["node"] for r in job.status()["ranks"] if r["node"] != victim)
            asked = next(n for n in c.nodes if n not in (victim, node))

            def kill():
                c.nodes[victim].kill()
                c.restart(victim)

            r = self.follow(c, job, "drain", "--wait", node=asked, then=kill, what=node)
            self.assertEqual(0, r.returncode, r.stderr)
            self.assertNotIn(node, {r["node"] for r in self.alive(c, job)["ranks"]})
            self.assertEqual([f"the job has left node {node}"], [e["text"] for e in self.events(c, job) if e["kind"] == "drained"])
            self.check_end(c, job)

    # ---- at any time -----------------------------------------------------------------------------------------

    @harness.labels("repeats")
    def test_random_times(self):
        """Any daemon or etcd, at any time: training, resizes, snapshots, aborts. Each step had the samples that it has in
        an undisturbed run, each sample once, whoever computed them, and the proof says which."""
        kills = harness.size(12, 30, 120)
        with self.started(mode=self.random.choice(("rebuild", "restart")), sleep=0.02, by_length=3,
                          data=f"{self.random.randrange(5, 90)},{self.seed},7,2") as (c, job):
            for i in range(kills):
                victim = self.random.choice([*c.nodes, "etcd"])
                caller = self.random.choice([n for n in c.nodes if n != victim])
                what = self.random.choices(("resize", "snapshot", "abort", "nothing"), (6, 2, 2, 1))[0]
                after_s = self.random.uniform(0, 0.6)
                before = self.alive(c, job)
                print(f"kill {i}: {victim} {after_s * 1000:.0f} ms into {what} asked of {caller}", flush=True)
                thread = threading.Thread(target=self.random_work, args=(c, job, what, caller))
                thread.start()
                time.sleep(after_s)
                self.kill_one(c, victim)
                self.recover(c)
                thread.join()
                after = self.alive(c, job)
                if (before["generation"], before["run"]["incarnation"]) == (after["generation"], after["run"]["incarnation"]):
                    self.assertEqual({r["rank"]: r["pid"] for r in before["run"]["ranks"]},
                                     {r["rank"]: r["pid"] for r in after["run"]["ranks"]}, "ranks were restarted")
            last = self.check_end(c, job)
            got, lines, cursor = proved(self, c, job)
            self.assertEqual((last, 7 * last, 0), (got["step"], cursor["position"], cursor["since"]))
            self.assertEqual(set(range(last)), {line["step"] for line in lines})
            print(f"{last} steps, {cursor['epochs_finished']} epochs, dp {[e['dp'] for e in cursor['generations']]}", flush=True)

    def random_work(self, c, job, what, caller):
        if what == "snapshot":
            self.told(c, job, "snapshot", job.name, "--wait", node=caller)
        elif what != "nothing":
            if what == "abort":
                threading.Timer(0.2, lambda: self.quietly(c, "abort", job.name, node=caller)).start()
            with contextlib.suppress(ClusterError):
                self.resize_there(c, job, (A, B, "dp=3"))(caller)

    # ---- nothing grows ---------------------------------------------------------------------------------------

    def usage(self, c, job):
        wait_for(lambda: len(job.processes()) == len(self.ranks(job)), 20 * PATIENCE, "only ranks that run", 0.05)
        out = live.usage(c, self.pids(job).values())
        out["cgroups"] = len(cgroups_of([job.status()["uuid"]]))
        out["keys"] = len([k for k in self.etcd(c) if "/events/" not in k])
        out["chunks"] = sum(n["store"]["chunks_used"] for n in c.json("nodes")["nodes"])
        return out

    def many_switches(self, mode, count):
        self.measured = harness.measured_env()
        with self.started(mode=mode, lease_ttl="20s", env=harness.measured_env(harness.NO_LEAKS)) as (c, job): # a busy machine is no reason to change controllers
            fifth = began = None
            for i in range(1, count + 1):
                at = job.status()["step"]
                job.wait_step(at + 3)
                job.resize(A if i % 2 == 0 else B)
                if i == 6 or (i % 10 == 0 and i > 6):
                    now = live.least(lambda: self.usage(c, job))
                    if not fifth:
                        fifth, began = now, live.database(c)
                    print(f"{mode}, after {i} switches: {now}", flush=True)
            grown = {k: (fifth[k], now[k]) for k in now if now[k] > fifth[k] + self.slack(k)}
            self.assertEqual({}, grown, f"grew from the sixth to switch {count}")
            size, _, revision = map(operator.sub, live.database(c), began)
            print(f"{mode}: {revision / (count - 6):.2f} revisions of etcd a switch, {size / (count - 6) / 1024:.1f} KiB", flush=True)
            self.assertLess(revision, 10 * (count - 6))
            self.assertLess(size, 16384 * (count - 6) + (1 << 20)) # until etcd compacts, which test_quota looks at
            # A -> B -> A: the same bytes, and what is carried beside them
            self.alive(c, job)
            self.check_end(c, job)

    @staticmethod
    def slack(what):
        """Heaps breathe, AddressSanitizer's more; nothing that is counted does."""
        return (24 << 10 if harness.SANITIZED else 4096) if "KiB" in what else 2 if "threads" in what or "fds" in what else 2 if what == "chunks" else 0

    @harness.labels("repeats")
    def test_many_switches_rebuild(self):
        self.many_switches("rebuild", harness.size(10, 20, 50))

    @unittest.skipUnless(LONG, "set PTC_TEST_LONG=1")
    @harness.labels("repeats")
    def test_many_switches_restart(self):
        self.many_switches("restart", harness.size(10, 10, 20))


if __name__ == "__main__":
    unittest.main()
