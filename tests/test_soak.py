# SPDX-License-Identifier: Apache-2.0
"""Six daemons for a long time: resizes, joins, drains, kills and losses at random, of a job without ranks and of one that trains.
Nothing is lost, every byte is as it must be, and nothing grows. In rounds (rounds.py); PTC_TEST_LONG=1: a short one.

n0 has etcd and is never killed, so that what grows in a daemon is seen in it. At the beginning, after some warming up, and at the end
of a round the cluster is brought to the same state, and what it takes is compared."""
import collections
import contextlib
import json
import os
import shutil
import threading
import time
import unittest

import harness
import live
import oracle
import test_crash
from cluster import cgroups_of
from harness import PATIENCE, ClusterError, Job, wait_for
from rounds import Rounds
from test_fuse import CAN_MOUNT, Mount, mounts
import test_recover

NODES, LEAST = 6, 3  # LEAST: nodes that stay, of which a job may have ranks
ROUND = 125  # actions
OFTEN = {"resize": 6, "drain": 2, "join": 4, "kill": 3, "lose": 2}


def world(config):
    return oracle.Config(config).world


class Soak(harness.Case):
    (events, trains, placed, check_end) = (getattr(test_recover.Recover, name) for name in "events trains placed check_end".split())
    configs = base = None  # what the job is resized to; what it has when usage is compared

    # ---- the cluster

    def away(self, c):
        return [n for n in c.nodes if not c.nodes[n].pid()]

    def usable(self, c):
        return [n for n in c.nodes if n not in self.drained and n not in self.away(c)]

    def fitting(self, c):
        return [config for config in self.configs if world(config) <= len(self.usable(c))]

    def wait_copies(self, job):
        """Until two nodes have each byte: from here on one of them may go."""
        def there():
            s = job.status()
            return s["phase"] == "idle" and (s.get("copies") or {}).get("fewest", 0) >= 2 and "lost" not in s
        try:
            wait_for(there, 120 * PATIENCE, "two copies of everything", 0.1)
        except ClusterError:
            print(json.dumps(job.status()), job.c.ptcctl("events", job.name, check=False).stdout, flush=True)
            raise

    def start(self, c, name):
        c.start_node(c.nodes[name])
        c.wait_nodes([name], 60 * PATIENCE, node="n0")

    # ---- what is done

    def resize(self, c, job):
        """Also one to the configuration that there is: it may move. A job that is about to change by itself is asked again."""
        self.resized(job, self.random.choice(self.fitting(c)))

    def resized(self, job, config):
        try:
            wait_for(lambda: isinstance(job.resize(config, check=False), dict), 120 * PATIENCE, f"a resize to {config}", 0.3)
        except ClusterError:
            print(json.dumps(job.status()), job.c.ptcctl("events", job.name, check=False).stdout, flush=True)
            raise

    def drain(self, c, job):
        if len(self.usable(c)) <= LEAST:
            return False
        node = self.random.choice(self.usable(c))
        self.drained.add(node)
        self.shrunk(c, job)
        wait_for(lambda: c.ptcctl("drain", node, "--wait", check=False, timeout_s=120 * PATIENCE).returncode == 0, 120 * PATIENCE,
                 f"a drain of {node}", 0.3)
        self.assertNotIn(node, {r["node"] for r in job.status()["ranks"]})
        return True

    def shrunk(self, c, job):
        """The job has no more ranks than the nodes that are left."""
        if world(job.status()["config"]) > len(self.usable(c)):
            self.resize(c, job)

    def join(self, c, job):
        """A node that was lost or drained takes part again. Whether there was one."""
        back = [*self.away(c), *self.drained]
        if not back:
            return False
        node = self.random.choice(back)
        if node in self.drained:
            self.drained.remove(node)
            c.ptcctl("drain", node, "--undo")
        else:
            self.start(c, node)
        return True

    def kill(self, c, job):
        """A ptcd dies at any instant of a resize, and is started again."""
        victim = self.random.choice([n for n in c.nodes if n not in ("n0", *self.away(c))])
        config = self.random.choice(self.fitting(c))
        asking = threading.Thread(target=job.resize, args=(config,), kwargs={"check": False})
        asking.start()
        time.sleep(self.random.random() * 0.5)  # any instant; nothing is judged by it
        c.nodes[victim].kill()
        self.start(c, victim)
        asking.join()
        return True

    def lose(self, c, job):
        """A machine dies, at times with what it has stored; the others go on without it."""
        candidates = [n for n in self.usable(c) if n != "n0"]
        if len(self.usable(c)) <= LEAST or not candidates:
            return False
        self.wait_copies(job)
        victim = self.random.choice(candidates)
        before = job.status()
        c.power_off(victim, chunks=self.random.random() < 0.5)
        self.go_on(c, job, before, victim)
        self.wait_copies(job)
        return True

    def act(self, c, job, done):
        what = self.random.choices(list(OFTEN), list(OFTEN.values()))[0]
        if getattr(self, what)(c, job) is False:
            what = "resize"
            self.resize(c, job)
        self.well(c, job)
        done[what] += 1

    # ---- what must hold

    def rest(self, c, job):
        """All nodes take part, and the job is as it was at the first rest."""
        while self.join(c, job):
            pass
        self.resized(job, self.base)
        self.wait_copies(job)
        self.well(c, job)
        self.whole(c, job)
        looks = []
        for _ in range(5):
            time.sleep(0.3)
            looks.append(self.usage(c, job))
        return {k: min(look[k] for look in looks) for k in looks[0]}

    def usage(self, c, job):
        n0 = c.nodes["n0"].pid()
        revision = json.loads(c.etcdctl("get", "/ptc/cluster", "-w", "json").stdout)["header"]["revision"]
        c.etcdctl("compact", str(revision))
        return {"n0 KiB": live.memory_kib(n0), "n0 fds": len(os.listdir(f"/proc/{n0}/fd")), "n0 threads": live.threads(n0),
                "fds": max(len(os.listdir(f"/proc/{n.pid()}/fd")) for n in c.nodes.values()), "processes": len(c.processes()),
                "files": sum(len(files) + len(folders) for n in c.nodes.values() for d, folders, files in os.walk(n.dir)
                             if not d.startswith(os.path.join(n.dir, "etcd"))),
                "chunk files": sum(len(files) for n in c.nodes.values() for _, _, files in os.walk(n.chunk_dir)),
                "chunks": sum(n["store"]["chunks_used"] for n in c.json("nodes")["nodes"]),
                "mounts": len(mounts(self.dir)), "cgroups": len(cgroups_of([job.status()["uuid"]])),
                "keys": len([k for k in test_crash.Crash.etcd(self, c) if "/events/" not in k]),
                "database KiB": live.database(c)[1] >> 10}

    @staticmethod
    def slack(what):
        """Heaps breathe; the event log, which has a bound, fills; packing may need a chunk more; and a node that has had nothing of the
        job at the first rest has its folders at the last. None of this goes on with the number of actions."""
        return {"n0 KiB": 24 << 10 if harness.SANITIZED else 6 << 10, "n0 fds": 2 * NODES, "fds": 2 * NODES, "n0 threads": NODES,
                "chunks": 2 * NODES, "files": 6 * NODES, "chunk files": 3 * NODES, "keys": NODES + 2, "database KiB": 1024}.get(what, 0)

    def check_growth(self, began, ended):
        print(f"began with {began}\nended with {ended}", flush=True)
        self.assertEqual({}, {k: (began[k], ended[k]) for k in began if ended[k] > began[k] + self.slack(k)}, "grew")

    # ---- rounds

    def soak(self, name, wanted):
        rounds = Rounds(self, name, "actions", wanted)
        while rounds.left():
            count = min(ROUND, rounds.left())
            with rounds.round() as row:
                done = collections.Counter()
                self.drained = set()
                with self.cluster(nodes=NODES, devices=1, lease_ttl="2s", node_lost_after="2s") as c:
                    self.one_round(c, count, done)
                row.update(actions=sum(done.values()), **done)
        rounds.report()

    def one_round(self, c, count, done):
        directory = self.path("job")
        shutil.rmtree(directory, ignore_errors=True)
        job = self.job(c, directory)
        self.wait_copies(job)
        mount = Mount(self, c) if CAN_MOUNT else None
        for _ in range(count // 5):
            self.act(c, job, done)
        began = self.rest(c, job)
        while sum(done.values()) < count:
            self.act(c, job, done)
        self.check_growth(began, self.rest(c, job))
        self.finish(c, job)
        if mount:
            mount.stop()


@unittest.skipUnless(harness.LONG, "takes minutes: PTC_TEST_LONG")
@harness.labels("repeats")
class SoakState(Soak):
    base = "tp=2,dp=2"
    configs = ("tp=2,dp=2", "pp=2,dp=2", "tp=3", "dp=5,zero=1", "tp=2,pp=2", "pp=3,dp=2", "tp=6", "tp=2,dp=3", "dp=3")

    def job(self, c, directory):
        job = Job(c, "soak", test_crash.small_state(self.seed), directory, test_crash.RULES, more={"copies": {"count": 2}})
        job.imported(self.base)
        return job

    def go_on(self, c, job, before, victim):
        wait_for(lambda: next(n for n in c.json("nodes")["nodes"] if n["node"] == victim).get("lost"), 60 * PATIENCE, f"{victim} lost", 0.1)
        self.resize(c, job)

    def well(self, c, job):
        self.assertNotIn("lost", job.wait_idle(90))

    def whole(self, c, job):
        job.check_whole(self)
        job.check_ranks(self, oracle.Config(job.status()["config"]), test_crash.RULES)
        c.ptcctl("verify", job.name)

    def finish(self, c, job):
        job.delete()

    def act(self, c, job, done):
        super().act(c, job, done)
        if self.random.random() < 0.2:
            job.check_whole(self)

    def test_state(self):
        self.soak("soak-state", harness.size(25, 40, 500))


@unittest.skipUnless(harness.LONG, "takes minutes: PTC_TEST_LONG")
@harness.labels("repeats")
class SoakLive(Soak):
    base = "dp=3"
    configs = ("dp=2", "dp=3", "dp=4", "dp=5", "dp=6", "tp=2,dp=2", "pp=2,dp=2", "tp=2,dp=3", "tp=3,dp=2")

    def job(self, c, directory):
        job = live.Job(c, directory, mode=self.random.choice(("rebuild", "restart")), together="fail", data="100000,7,8,4", grace="2s",
                       gpus={n: f"dp={n}" for n in range(2, NODES + 1)}, sleep=0.01,
                       run={"snapshot_every": 100, "copies": {"count": 2}, "elastic": {"min_gpus": 2, "max_gpus": NODES}})
        job.run(self.base)
        job.wait_step(3)
        job.do("snapshot")
        return job

    def go_on(self, c, job, before, victim):
        """A loss of ranks is a recovery; that of a spare node is none of the job's business."""
        if victim in {r["node"] for r in before["ranks"]}:
            self.trains(c, job, before["run"]["incarnation"])
        self.assertNotIn(victim, self.placed(job))

    def well(self, c, job):
        self.trains(c, job)

    def whole(self, c, job):
        while job.do("snapshot", check=False).returncode != 0:
            self.trains(c, job)
        snapshot = c.json("snapshots", job.name)["snapshots"][0]
        job.check_state(self, snapshot["step"], self.path("state"), str(snapshot["snapshot"]))

    def finish(self, c, job):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path("end"))
        self.check_end(c, job)
        c.ptcctl("job", "delete", job.name)

    def test_live(self):
        self.soak("soak-live", harness.size(25, 25, 500))


if __name__ == "__main__":
    unittest.main()
