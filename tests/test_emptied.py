# SPDX-License-Identifier: Apache-2.0
"""A node dies in each phase of a switch and comes back with an empty store, as a machine that boots anew with its chunks in memory:
what others hold is whole, and the job goes on.

A switch is held in a phase, at a fault point of one node (base/sys/fault.h). Then a node, perhaps another one, is killed, its chunk_dir is removed, and it starts again. Every byte is on two nodes before."""
import contextlib
import os
import re
import shutil
import subprocess
import threading
import unittest

import harness
import live
import oracle
import test_crash
import test_recover
from harness import LONG, PATIENCE, ClusterError, Job, wait_for

RULES = test_crash.RULES
HERE, THERE = "tp=2,dp=2", "pp=2,dp=2"
CONTROLLER, MEMBER = "controller", "member"
FINISH = "member that finishes"  # what it is held at, others pass before the second commit, too
# (who is held, at which point, and the phase that the job is in then; None: one of several)
STORED = ((CONTROLLER, "etcd.intent.before", "intent"), (CONTROLLER, "etcd.intent.after", "intent"),
          (MEMBER, "store.meta.commit.before", None), (CONTROLLER, "etcd.commit1.before", "commit1"),
          (CONTROLLER, "etcd.commit1.after", "commit1"), (MEMBER, "agent.receive.middle", "filling"), (CONTROLLER, "digests.merge", "digesting"),
          (CONTROLLER, "etcd.commit2.before", "commit2"), (CONTROLLER, "etcd.commit2.after", "commit2"),
          (FINISH, "store.meta.commit.before", "finishing"))
JOINS = "node that joins"


class Emptied(harness.Case):
    (arm, env, up, settle, recover, forget, passed, quietly) = (
        getattr(test_crash.Crash, name) for name in "arm env up settle recover forget passed quietly".split())
    measured = test_crash.Crash.measured

    def moments(self, of):
        """Some in CI, with the time between the commits always among them; else all, each several times."""
        few = [self.random.choice([m for m in of if m[2] == "filling"]), *self.random.sample(of, 2)]
        return few if not LONG else self.random.sample(of * harness.size(1, 1, 6), len(of) * harness.size(1, 1, 6))

    def empty(self, c, victim):
        """It is gone, and has nothing in its store when it comes back."""
        c.nodes[victim].kill()
        shutil.rmtree(c.nodes[victim].chunk_dir)

    def phase(self, job, node):
        with contextlib.suppress(ClusterError, subprocess.TimeoutExpired):
            return job.status(node=node, timeout_s=10)["phase"]
        return "unknown"

    def controller(self, job):
        return wait_for(lambda: job.status()["controller"], 20 * PATIENCE, "a controller")

    @contextlib.contextmanager
    def beside(self, act):
        """act() runs in a thread of its own while the block does; what it raises is raised here at the end."""
        failed = []

        def guarded():
            try:
                act()
            except BaseException as e:  # noqa: BLE001  told to the test's own thread
                failed.append(e)
        thread = threading.Thread(target=guarded)
        thread.start()
        try:
            yield thread
        finally:
            thread.join()
        if failed:
            raise failed[0]

    def hold(self, c, node, point):
        self.forget(c.nodes[node])
        self.arm(c.nodes[node], f"{point}=hold")

    def came_to(self, c, node, point, switch):
        """Whether the switch came to the point on this node; it waits there until recover()."""
        wait_for(lambda: point in self.passed(c.nodes[node]) or not switch.is_alive(), 60 * PATIENCE, f"{point} on {node}", 0.01)
        return point in self.passed(c.nodes[node])

    def held_at(self, c, job, moment, controller, at, caller):
        """A switch is under way, and is held at this moment: (its thread, the phase that it is in, or None where it did not come there)."""
        who, point, _ = moment
        stack = contextlib.ExitStack()
        self.hold(c, *((controller, "etcd.commit2.after") if who == FINISH else (at, point)))
        switch = stack.enter_context(self.beside(lambda: self.ask(c, job, caller)))
        reached = True
        if who == FINISH:
            reached = self.came_to(c, controller, "etcd.commit2.after", switch)
            self.hold(c, at, point)
            self.arm(c.nodes[controller])
        reached = reached and self.came_to(c, at, point, switch)
        return stack, self.phase(job, caller) if reached else None

    def resized(self, job, config):
        """A node that is back may count as down for a moment, and a job may be about to change by itself."""
        wait_for(lambda: isinstance(job.resize(config, check=False), dict), 120 * PATIENCE, f"a resize to {config}", 0.3)

    def check_seen(self, moments, seen):
        """Each phase that was asked for has been met, by one of the moments that are to lead to it."""
        print("phases in which a node was emptied:", ", ".join(f"{p}: {seen.count(p)}" for p in sorted(set(seen))), flush=True)
        self.assertEqual(set(), {phase for _, _, phase in moments} - {None, *seen}, "no node was emptied in these phases")


class Stored(Emptied):
    """A job without ranks, on four nodes."""

    def ask(self, c, job, caller):
        self.quietly(c, "resize", job.name, "--config", THERE, "--wait", node=caller)

    def switch_and_empty(self, c, job, moment):
        """The phase in which a node was emptied, or None where the switch did not come to this moment."""
        controller = self.controller(job)
        at = controller if moment[0] == CONTROLLER else self.random.choice([n for n in c.nodes if n != controller])
        victim = self.random.choice([at, *c.nodes])
        caller = next(n for n in reversed(c.nodes) if n != victim)
        switch, phase = self.held_at(c, job, moment, controller, at, caller)
        with switch:
            self.empty(c, victim)
            self.recover(c)
        print(f"{victim} emptied while {at} ({moment[0]}) was held at {moment[1]}: {phase or 'not reached'}", flush=True)
        return phase

    def check(self, c, job):
        """All is there whatever has become of the switch; and is on two nodes again after the next one."""
        config = job.wait_idle(90)["config"]
        self.assertTrue(any(test_crash.same(config, a) for a in (HERE, THERE)), config)
        self.assertNotIn("lost", job.status())
        job.check_whole(self)
        job.check_ranks(self, oracle.Config(config), RULES)
        self.resized(job, HERE)
        self.assertNotIn("absent", job.status())
        c.ptcctl("verify", job.name)
        job.check_whole(self)

    @harness.labels("repeats")
    def test_phases_of_state(self):
        with self.cluster(nodes=4, devices=1, up=False, lease_ttl="2s") as c:
            self.up(c)
            job = Job(c, "twice", test_crash.small_state(self.seed), self.path("job"), RULES)
            job.imported(HERE)
            moments, seen = self.moments(STORED), []
            for moment in moments:
                for _ in range(test_crash.TRIES):  # a node may have what it would receive, and a moment passes
                    seen.append(self.switch_and_empty(c, job, moment))
                    self.check(c, job)
                    if seen[-1] and moment[2] in (seen[-1], None):
                        break
            self.check_seen(moments, [s for s in seen if s])
            job.delete()


class Live(Emptied):
    """A job whose ranks train, on two nodes of three, and then on all. The node that dies has its ranks with it."""
    (events, trains, placed, check_end) = (getattr(test_recover.Recover, name) for name in "events trains placed check_end".split())

    def ask(self, c, job, caller):
        self.quietly(c, "resize", job.name, "--config", "dp=3", "--wait", node=caller, timeout_s=180 * PATIENCE)

    def reboot_while_filling(self, c, job, chunks):
        """A resize is held while the node that joins gets its state; a machine whose rank is built by then reboots, and is back at once."""
        there, controller = self.placed(job), self.controller(job)
        victim, joins = next(n for n in there if n != "n0"), next(n for n in c.nodes if n not in there)
        switch, phase = self.held_at(c, job, (JOINS, "agent.receive.middle", "filling"), controller, joins, "n0")
        with switch:
            c.power_off(victim, chunks=chunks)
            self.arm(c.nodes[victim])
            c.start_node(c.nodes[victim], self.env(c.nodes[victim]))
            self.settle(c)
            self.recover(c)
        self.assertEqual("filling", phase)
        return victim

    @harness.labels("repeats")
    def test_back_while_filling(self):
        """Other ranks have met the rank that went with the machine: it is not built again alone. The switch aborts and names the node,
        and the job goes on; that is nobody's program error."""
        with self.cluster(nodes=3, devices=1, up=False, lease_ttl="2s", node_lost_after="1h") as c:
            self.up(c)
            job = live.Job(c, self.path("job"), together="fail", data="100000,7,8,4", grace="2s",
                           run={"elastic": {"min_gpus": 1, "max_gpus": 3, "on_join": "ignore"}, "snapshot_every": 1 << 40})
            job.run("dp=2")
            job.wait_step(3)
            for chunks in (True, False):
                before = self.trains(c, job)
                victim = self.reboot_while_filling(c, job, chunks)
                after = self.trains(c, job, before["run"]["incarnation"])
                aborted = self.events(c, job, "aborted")[-1]["text"]
                self.assertRegex(aborted, f"node {victim}: .*no longer run on this node.*have met them")
                told = [e["text"] for e in self.events(c, job, "recovering")]
                self.assertEqual(0 if chunks else 1, len(told), told)
                self.assertTrue(all(re.search(f"node {victim} .*its chunks cannot be used", t) for t in told), told)
                self.assertEqual([], self.events(c, job, "failed", "gave_up"))
                self.assertGreaterEqual(after["step"], before["step"])
                self.assertEqual("dp=2", after["config"])
            self.check_end(c, job)

    def other_store_while_filling(self, c, job):
        """As above, but what comes back has nothing of the store, and the controller has died, too: nobody who is there has asked it."""
        there, controller = self.placed(job), self.controller(job)
        victim, joins = there[-1], next(n for n in c.nodes if n not in there)
        switch, phase = self.held_at(c, job, (JOINS, "agent.receive.middle", "filling"), controller, joins, there[0])
        with switch:
            c.power_off(victim, chunks=False)
            shutil.rmtree(os.path.join(c.nodes[victim].dir, "state"))
            if controller != victim:
                c.nodes[controller].kill()
            key = f"/ptc/nodes/{victim}" # a name is another store's only once the lease has ended
            wait_for(lambda: not c.etcdctl("get", "--keys-only", key).stdout.strip(), 60 * PATIENCE, f"the end of {victim}'s lease", 0.05)
            self.recover(c)
        self.assertEqual("filling", phase)
        return victim

    @harness.labels("repeats")
    def test_controller_and_store_gone(self):
        """The controller that goes on with the switch knows nothing of the ranks that the lost store had built. That the store is newer
        than the switch says it: no rank is built there alone, and the switch aborts."""
        with self.cluster(nodes=3, devices=1, up=False, transport="tls", coordinator="etcd-cluster", lease_ttl="2s",
                          node_lost_after="1h") as c:
            c.start_members()
            self.up(c)
            job = live.Job(c, self.path("job"), together="fail", data="100000,7,8,4", grace="2s",
                           run={"elastic": {"min_gpus": 1, "max_gpus": 3, "on_join": "ignore"}, "snapshot_every": 1 << 40})
            job.run("dp=2")
            job.wait_step(3)
            before = self.trains(c, job)
            victim = self.other_store_while_filling(c, job)
            after = self.trains(c, job, before["run"]["incarnation"])
            aborted = self.events(c, job, "aborted")[-1]["text"]
            self.assertRegex(aborted, f"node {victim}: .*no longer run on this node.*have met them")
            self.assertEqual([], self.events(c, job, "failed", "gave_up"))
            self.assertGreaterEqual(after["step"], before["step"])
            self.check_end(c, job)

    @harness.labels("repeats")
    def test_ranks_outlive_chunks(self):
        """A ptcd comes back without the job's chunks, and its ranks train on. They have all that a snapshot needs, so the next one is
        made in new chunks, and counts there."""
        with self.cluster(nodes=2, devices=1) as c:
            job = live.Job(c, self.path("job"), together="hang", data="100000,7,8,4", grace="2s", run={"snapshot_every": 1 << 40})
            job.run("dp=2")
            job.wait_step(3)
            job.do("snapshot")
            before = self.trains(c, job)
            self.empty(c, "n1")
            c.start_node(c.nodes["n1"])
            c.wait_nodes(["n1"])
            wait_for(lambda: job.do("snapshot", check=False).returncode == 0, 60 * PATIENCE, "a snapshot of ranks that have outlived chunks", 0.3)
            after = self.trains(c, job)
            self.assertGreater(after["step"], before["step"])
            self.assertEqual(before["run"]["incarnation"], after["run"]["incarnation"])
            self.assertNotIn("absent", after)
            c.ptcctl("verify", job.name)
            job.check_state(self, after["step"], self.path("state"))
            self.assertEqual([], self.events(c, job, "recovering", "failed"))
            self.resized(job, "dp=1")
            self.check_end(c, job)


if __name__ == "__main__":
    unittest.main()
