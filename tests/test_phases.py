# SPDX-License-Identifier: Apache-2.0
"""A node is lost in each phase of a switch of a job whose ranks train, or comes back with nothing in its store: the job goes on, and
nobody types anything.

A switch moves a job from two of three nodes to another two: one node is left, one joins, and one stays. It is held in a phase: at a
fault point of a daemon (base/sys/fault.h), by ranks that wait, or by one that is stopped. Then a node dies there. Both ranks have all
of the state, and their memory counts (ptc_survive), so no step may be lost: the next ranks begin where those before had come to."""
import contextlib
import os
import shutil
import signal
import unittest

import harness
import live
import test_crash
import test_emptied
import test_recover
from harness import PATIENCE, wait_for

CONTROLLER, GIVES, ENDS, TAKES, RANKS = "controller", "node that gives", "node that only gives", "node that only takes", "ranks"
ANY = "node of the new ranks"
BUILD = (RANKS, "build")
AFTER1 = (CONTROLLER, "etcd.commit1.after")
# (phase, (who is held, at which point), ...). Of several the last counts: it is set while the one before holds, so that it is not met
# sooner. RANKS: they wait as they start or build (live.Job.hold), or one of those that are to stop does nothing more.
MOMENTS = (
    ("checking", (TAKES, "store.meta.commit.before")), ("intent", (CONTROLLER, "etcd.intent.before")),
    ("intent", (CONTROLLER, "etcd.intent.after")), ("starting", (RANKS, "start")), ("warming", (ENDS, "agent.warm.middle")),
    ("arming", (RANKS, "stopped")), ("sealing", (GIVES, "agent.capture.middle")), ("agreeing", (CONTROLLER, "digests.merge")),
    ("commit1", (CONTROLLER, "etcd.commit1.before")), ("commit1", AFTER1), ("ending", (GIVES, "process.exit.before")),
    ("building", BUILD), ("layout", AFTER1, (CONTROLLER, "etcd.blob.before")), ("preparing", BUILD, (TAKES, "store.meta.commit.before")),
    ("filling", (TAKES, "agent.receive.middle")), ("digesting", AFTER1, (CONTROLLER, "digests.merge")),
    ("commit2", (CONTROLLER, "etcd.commit2.before")), ("commit2", (CONTROLLER, "etcd.commit2.after")),
    ("finishing", (ANY, "agent.restore.middle")))
NO_MORE = next(i for i, m in enumerate(MOMENTS) if m[0] == "digesting")  # later the node that joins may have said that it has its part
GIVEN = MOMENTS.index(("commit2", (CONTROLLER, "etcd.commit2.after")))  # from here on the node that is left has nothing of the state
LEFT, JOINS, STAYS = "left", "joins", "stays"  # the node that dies: only in the old configuration, only in the new one, in both
CHUNKS, STORE, PTCD = "without chunks", "without its store", "without chunks, and its ranks live"  # how it comes back


class Phases(test_emptied.Emptied):
    (events, placed) = (getattr(test_recover.Recover, name) for name in "events placed".split())

    @contextlib.contextmanager
    def training(self, config="dp=2", more=None, **options):
        """(cluster, job). Any of the nodes may die: etcd is elsewhere."""
        with self.cluster(nodes=3, devices=1, up=False, transport="insecure", coordinator="etcd-cluster", lease_ttl="2s", node_quarantine="0s",
                          **options) as c:
            c.start_members()
            self.up(c)
            self.config = config
            job = live.Job(c, self.path("job"), together="fail", survive=1, data="100000,7,8,4", grace="2s",
                           run={"elastic": {"min_gpus": 1, "max_gpus": 2, "on_join": "ignore"}, "snapshot_every": 1 << 40, **(more or {})})
            job.run(config)
            job.wait_step(3)
            job.do("snapshot")
            yield c, job

    @staticmethod
    def ask_by(c, node):
        """From now on commands are given at this node, where they name no other."""
        c.ptcctl = lambda *args, **kw: type(c).ptcctl(c, *args, **{"node": node, **kw})

    def ask(self, c, job, caller):
        self.quietly(c, "resize", job.name, "--config", self.config, "--nodes", self.there, "--wait", node=caller, timeout_s=180 * PATIENCE)

    def roles(self, c, job):
        here = self.placed(job)
        self.assertEqual(2, len(here))
        self.random.shuffle(here)
        roles = {LEFT: here[0], STAYS: here[1], JOINS: next(n for n in c.nodes if n not in here)}
        self.there = f"{roles[STAYS]},{roles[JOINS]}"
        return roles

    # ---- a switch that is held

    def held_by_ranks(self, job, where, stack):
        if where != "stopped":
            stack.enter_context(job.hold(where))
            return
        pid = self.random.choice(job.status()["run"]["ranks"])["pid"]
        os.kill(pid, signal.SIGSTOP)
        stack.callback(self.go_on, pid)

    @staticmethod
    def go_on(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def held(self, c, job, roles, controller, caller, moment, release):
        """A switch has begun, and is held at the moment: the phase that it is in, or None where it did not come there. What holds it is let
        go by the stack `release`, which then waits until the command has its answer."""
        phase, *steps = moment
        may = {CONTROLLER: [controller], GIVES: [roles[LEFT], roles[STAYS]], ENDS: [roles[LEFT]], TAKES: [roles[JOINS]],
               ANY: [roles[STAYS], roles[JOINS]]}
        switch = None
        for who, where in steps:
            stack = contextlib.ExitStack()
            at = None if who == RANKS else self.random.choice(may[who])
            if who == RANKS:
                self.held_by_ranks(job, where, stack)
            else:
                self.hold(c, at, where)
                stack.callback(self.arm, c.nodes[at])
            if switch is None:
                switch = release.enter_context(self.beside(lambda: self.ask(c, job, caller)))
            else:
                before.close()
                if at is not None: # the one before may have been of the same node
                    self.arm(c.nodes[at], f"{where}=hold")
            before = stack
            release.enter_context(stack)
            if not self.reached(c, job, phase, at, where, switch):
                return None
        return self.phase(job, caller)

    def reached(self, c, job, phase, at, where, switch):
        if at is not None:
            return self.came_to(c, at, where, switch)
        wait_for(lambda: not switch.is_alive() or job.status()["phase"] in (phase, "building"), 60 * PATIENCE, f"phase {phase}", 0.01)
        return switch.is_alive()

    # ---- what must hold

    def goes_on(self, c, job, beyond, without=None):
        """Until the job trains beyond that step. The status."""
        def trained():
            s = job.status()
            run = s["run"]
            if run["state"] != "live" or s["phase"] != "idle" or any(r["node"] == without for r in s["ranks"]):
                return None
            return s if all(r["state"] == "running" and (r.get("step") or -1) > beyond for r in run["ranks"]) else None
        try:
            return wait_for(trained, 60 * PATIENCE, "a job that goes on", 0.05)
        except harness.ClusterError:
            print("status:", job.status(), c.ptcctl("events", job.name, check=False).stdout, flush=True)
            raise

    def runs(self, job):
        """[(generation, first step, last step that a rank has begun)] of each start of ranks, as they wrote it down."""
        found = {}
        for (generation, incarnation, rank), steps in job.steps_logged().items():
            self.assertEqual(list(range(steps[0], steps[0] + len(steps))) if steps else [], steps, f"rank {rank} of generation {generation}")
            if steps:
                found.setdefault((generation, incarnation), []).append(steps)
        for key, ranks in found.items():
            self.assertEqual(1, len({steps[0] for steps in ranks}), key)
        return sorted((generation, ranks[0][0], max(steps[-1] for steps in ranks)) for (generation, _), ranks in found.items())

    def check(self, c, job, status, before, floor):
        """Nobody has gone back, or no further than to the step `floor`; what is committed is whole. The events since. before: (runs, number
        of the last event) as the switch began."""
        runs = self.runs(job)
        events = self.events(c, job)
        for (_, _, last), (_, first, _) in zip(runs[len(before[0]) - 1:], runs[len(before[0]):]):
            self.assertTrue((last if floor is None else min(floor, last)) <= first <= last + 1, f"{runs}, {floor}, {events}")
        if len(runs) > len(before[0]):  # else the ranks have gone on
            self.assertEqual(runs[-1][1], status["step"], status)
        job.check_state(self, status["step"], self.path("state"))
        new = [e for e in events if e["number"] > before[1]]
        for e in new:
            self.assertNotEqual("gave_up", e["kind"], new)
            if e["kind"] == "aborted":  # a lost node is waited for no longer
                self.assertNotRegex(e["text"], "has been down for [0-9]+ s")
            if e["kind"] == "recovered" and floor is None:  # or nobody knows: who had come furthest is gone
                self.assertRegex(e["text"], " 0 steps are lost|how many steps are lost is not known")
        return new

    def come_to(self, job):
        return max(last for _, _, last in self.runs(job)[-1:])

    # ---- a node dies

    def one(self, c, job, moment, role, act, floor=None):
        """act(victim) in that moment. The phase, or None where the switch did not come there."""
        self.turn(c, job, role)
        roles, controller = self.roles(c, job), self.controller(job)
        victim = roles[role]
        caller = self.random.choice([n for n in c.nodes if n != victim])
        self.ask_by(c, caller)
        before = self.runs(job), self.events(c, job)[-1]["number"]
        with contextlib.ExitStack() as release:
            phase = self.held(c, job, roles, controller, caller, moment, release)
            if phase is not None:
                act(victim)
            for node in c.nodes.values():
                self.arm(node)
        without = victim if phase is not None and not c.nodes[victim].pid() else None
        after = self.goes_on(c, job, self.come_to(job), without)
        new = self.check(c, job, after, before, floor)
        print(f"{moment[0]} ({moment[-1][1]}): {victim} ({role}{', controller' if victim == controller else ''}): {phase or 'not reached'}; "
              f"{', '.join(e['kind'] for e in new)}; {self.placed(job)}", flush=True)
        self.recover(c)
        self.goes_on(c, job, self.come_to(job))
        return phase

    def turn(self, c, job, role):
        """A switch that has failed leaves the job where it was. So that the node that joins is the job's controller, too, at times, the job
        goes away from the controller."""
        controller = self.controller(job)
        if role == JOINS and controller in self.placed(job) and self.random.random() < 0.3:
            job.resize(self.config, nodes=",".join(n for n in c.nodes if n != controller))
            self.goes_on(c, job, self.come_to(job))

    def tried(self, c, job, moment, role, act, floor=None):
        """Whether the job was in that phase: a switch may pass a moment."""
        return any(self.one(c, job, moment, role, act, floor) == moment[0] for _ in range(test_crash.TRIES))

    def each(self, c, job, few, role, act):
        for moment in self.random.sample(MOMENTS, harness.size(few, len(MOMENTS), len(MOMENTS))):
            self.assertTrue(self.tried(c, job, moment, role, act), f"the switch was not held in {moment}")
        self.check_end(c, job)

    def check_end(self, c, job):
        test_recover.Recover.check_end(self, c, job)

    trains = test_recover.Recover.trains

    def killed(self, role):
        with self.training(node_lost_after="2s") as (c, job):
            self.each(c, job, 4, role, lambda victim: c.power_off(victim, chunks=self.random.random() < 0.5))

    @harness.labels("repeats")
    def test_killed_that_is_left(self):
        self.killed(LEFT)

    @harness.labels("repeats")
    def test_killed_that_joins(self):
        self.killed(JOINS)

    @harness.labels("repeats")
    def test_killed_that_stays(self):
        self.killed(STAYS)

    # ---- a node dies that alone has a half of the state

    def copied(self, job):
        """A snapshot is made, and each half of it is on two nodes: its step."""
        job.do("snapshot")
        def there():
            s = job.status()
            return s.get("copies", {}).get("fewest", 0) >= 2 and "bridge" not in s and s
        return wait_for(there, 60 * PATIENCE, "a snapshot with its copies", 0.05)["step"]

    @harness.labels("repeats")
    def test_killed_with_copies(self):
        """Each rank has a half of the state for itself. What is lost with the node is no more than the steps since the snapshot that
        has its copies; and nothing, if the node has only been sent its half, or has given it away by the second commit."""
        with self.training("tp=2", {"copies": {"count": 2}, "elastic": {"min_gpus": 2, "max_gpus": 2, "on_join": "ignore"}},
                           node_lost_after="2s") as (c, job):
            cases = [(moment, role) for moment in MOMENTS for role in (LEFT, JOINS, STAYS)]
            for moment, role in self.random.sample(cases, harness.size(3, 12, len(cases))):
                for _ in range(test_crash.TRIES):
                    floor = self.copied(job)
                    kept = role == JOINS and MOMENTS.index(moment) < NO_MORE or role == LEFT and MOMENTS.index(moment) >= GIVEN
                    if self.one(c, job, moment, role, c.power_off, None if kept else floor) == moment[0]:
                        break
                else:
                    self.fail(f"the switch was not held in {moment}")
            self.check_end(c, job)

    # ---- a node loses its store, and is back at once

    def emptied(self, c, victim, how):
        node = c.nodes[victim]
        if how == PTCD:
            self.empty(c, victim)
        else:
            c.power_off(victim, chunks=False)
        if how == STORE:
            shutil.rmtree(os.path.join(node.dir, "state"))
            key = f"/ptc/nodes/{victim}"  # a name is another store's only once the lease has ended
            wait_for(lambda: not c.etcdctl("get", "--keys-only", key).stdout.strip(), 60 * PATIENCE, f"the end of {victim}'s lease", 0.05)
        self.arm(node)
        c.start_node(node, self.env(node))

    def emptied_in_each(self, role):
        """It may count as lost while it is away, as its machine refuses connections, or as back: no step is lost either way."""
        with self.training(node_lost_after="1h") as (c, job):
            self.each(c, job, 3, role, lambda victim: self.emptied(c, victim, self.random.choice((CHUNKS, STORE, PTCD))))

    @harness.labels("repeats")
    def test_emptied_that_is_left(self):
        self.emptied_in_each(LEFT)

    @harness.labels("repeats")
    def test_emptied_that_joins(self):
        self.emptied_in_each(JOINS)

    @harness.labels("repeats")
    def test_emptied_that_stays(self):
        self.emptied_in_each(STAYS)


if __name__ == "__main__":
    unittest.main()
