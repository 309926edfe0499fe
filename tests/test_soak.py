# SPDX-License-Identifier: Apache-2.0
"""Six daemons, a job without ranks and one that trains, and whatever an operator and bad luck do to them, hour after hour: resizes,
snapshots, drains, ptcds killed, machines lost and back with their stores or without, nodes declared lost.

Of each operation the outcome is that it was done, or a refusal for one of the reasons in REASONS. The bytes of the one job are compared
with an oracle that shares no code with ptcd (oracle.py) again and again; the losses and samples of the other with one process that never
stopped. Nothing grows (Looks). PTC_TEST_OPERATIONS: so many; tests/campaign makes 500 in pieces, and prints a table."""
import collections
import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
import unittest

import harness
import live
import oracle
import results
import test_crash
from harness import PATIENCE, SANITIZED, ClusterError, Job, wait_for
from test_ctrainer import BATCH, Trainer, counted, differences

NODES, DEVICES = 6, 2
TTL, AFTER = 3, 3 # seconds: lease_ttl, node_lost_after
AWAY = 2 # machines that are gone at the same time, at most
STATE = ("tp=2,dp=2", "tp=2,pp=2", "pp=2,dp=2", "tp=1,pp=2,dp=2,zero=1", "tp=4", "tp=3", "dp=3", "tp=2", "tp=1")
LIVE = ("tp=2,dp=2", "tp=3", "dp=4", "dp=3", "tp=2", "dp=2")
SLEEP_MS = harness.size(20, 30, 100) # of a step: a campaign's file of losses stays readable
COUNT = int(os.environ.get("PTC_TEST_OPERATIONS") or harness.size(8, 50, 500))
SECONDS = 1e9 if "PTC_TEST_OPERATIONS" in os.environ else harness.size(5, 90, 600) # no operation begins later
RESTS = harness.size(0, 3, 12) # about so many looks at what the cluster takes, beside the first and the last

ALWAYS, AWAY_ONLY, DISTURBED = "at any time", "while a machine is away", "just after a daemon has died or come back"
# Why an operation may be refused: (name, when that may be, what the message has).
REASONS = [(name, when, re.compile(pattern)) for name, when, pattern in (
    ("busy", ALWAYS, r"is busy \(|is busy;|is switching;|while the switch was planned|meanwhile; (ask|try) again|another switch was found under way"),
    ("no devices", ALWAYS, r"\d+ devices are needed, (\d+ are known|free: \d+)|no other node is up"),
    ("the node is up", ALWAYS, r"node n\d is up, so it is not lost"),
    ("not in time", ALWAYS, r"after 20\.\d s, \d+ jobs have not left node"),
    ("bytes on a node that is gone", AWAY_ONLY, r"on no live node|no live node has|was last on|jobs have not left node"),
    ("a node is gone", DISTURBED, r"is not known or is down|is down|down for more than|the switch was to put state there|ended without an answer|"
                                  r"went away|without that node|is lost|has not answered|was aborted|aborted:"),
    ("the job recovers", DISTURBED, r"has lost ranks and waits to be started again|a node of the job will be taken away"),
    ("another controller", DISTURBED, r"no longer the controller|another daemon (controls|took)|a newer controller|does not control the job any more|"
                                      r"is changing controllers|no daemon (controls|has taken control)|has just begun|aborted the switch|"
                                      r"was not recorded|changed controllers"),
    ("a connection broke", DISTURBED, r"the connection to .* broke|no answer|failed to connect|[Cc]onnection (refused|reset)|Socket closed|is stopping"),
    ("etcd is unreachable", DISTURBED, r"coordinator (is unreachable|does not answer)|still reading|etcd does not answer|could not be written|"
                                r"no transaction succeeded"),
    ("a rank failed", DISTURBED, r"rank \d+ .*(exited|failed|was killed|ended)|has failed before every rank's first step"),
)]


def reasons(text):
    """[(name, when)]: which of the reasons a message gives."""
    return [(name, when) for name, when, pattern in REASONS if pattern.search(text)]


class Looks:
    """What a cluster takes, once both jobs are where they were at the first look and nothing is under way.

    Compared is the last look with the greatest of the first half, in which daemons warm up: they keep the memory of as many calls and
    transfers as have ever run at one time, and the newest 4,096 events (2 MiB). Daemons are killed and started, so of memory, descriptors
    and threads of daemons it is that of the greatest daemon. What is counted does not breathe, but:
    - a daemon has a few descriptors and threads more while it serves the calls of the look itself and of its peers;
    - a node with ranks has a copier from the first time that it reads them; the ranks lie on two nodes;
    - a snapshot of the job that trains may be under way: a chunk on each of its four nodes, and on one for its copies;
    - a heap is not given back whole: 8 MiB a daemon, 2 MiB a rank (with sanitizers three times as much). 500 operations that leave
      32 KiB each behind are found by it.
    etcd keeps what was deleted until it is compacted, every thousand revisions of at most some KiB each: 8 MiB.
    Memory is compared once there have been four looks: before that daemons still warm up.
    Keys are those of ranks' blobs and of nodes that have ranks: these depend on where the last switch has put the ranks.
    Folders of ended processes grow up to a number, which is compared by itself."""

    MAY = {"ptcd KiB": 8 << 10, "rank KiB": 2 << 10, "ptcd fds": 8, "rank fds": 2, "ptcd threads": 6, "rank threads": 2, "chunks": 10,
           "processes": 2, "etcd KiB": 8 << 10, "keys": 12}
    PROCESS = "run/workers/N/processes/N/"
    KEPT = 32 + 8  # folders of ended processes that a node keeps of a job, for their logs; and of ranks that run

    def __init__(self, case, c):
        self.case, self.c, self.rows, self.sorts, self.keys = case, c, [], [], []

    @staticmethod
    def files(c):
        """{what sort of file in the folders of daemons: how many}; a sort is a path whose numbers and nodes are left out."""
        paths = [os.path.join(os.path.relpath(where, n.dir), name) for n in c.nodes.values() for where, _, files in os.walk(n.dir)
                 if "/etcd" not in where for name in files]
        return dict(collections.Counter(re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9]+", "N", path) for path in paths))

    def once(self, ranks):
        c = self.c
        row = live.usage(c, ranks, of=max)
        self.sorts.append(self.files(c))
        row["files"] = sum(n for path, n in self.sorts[-1].items() if not path.startswith(self.PROCESS))
        kept = max(n for path, n in self.sorts[-1].items() if path.startswith(self.PROCESS))
        self.case.assertLessEqual(kept, self.KEPT * len(c.nodes), "folders of processes")
        with open("/proc/self/mountinfo", encoding="utf-8") as f:
            row["mounts"] = sum(c.dir in line for line in f)
        row["cgroups"] = len(harness.clusters.cgroups_of(c.jobs_with_ranks()))
        row["chunks"] = sum(n["store"]["chunks_used"] for n in c.json("nodes")["nodes"])
        return row

    def look(self, pids):
        """What is there now. A snapshot and its copies, as calls that have just ended, are no leak."""
        def once():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError): # a process has just ended
                return self.once(pids())
        least = live.least(once)
        keys = self.c.etcdctl("get", "--prefix", "--keys-only", "/ptc/").stdout.split()
        self.keys.append({k for k in keys if "/events/" not in k})
        least["keys"] = len(self.keys[-1])
        least["etcd KiB"] = live.database(self.c)[1] >> 10
        events = collections.Counter(k.split("/")[3] for k in keys if k.startswith("/ptc/events/"))
        self.case.assertLessEqual(max(events.values()), 1020 + 40, "events of a job")
        self.rows.append(least)
        return least

    def check(self):
        half, last = self.rows[:(len(self.rows) + 1) // 2], self.rows[-1]
        may = {k: n * (3 if SANITIZED and "KiB" in k else 1) for k, n in self.MAY.items()}
        if len(self.rows) < 4:
            may.update({"ptcd KiB": 1 << 30, "rank KiB": 1 << 30})
        grown = {k: [row[k] for row in self.rows] for k in last if last[k] > max(row[k] for row in half) + may.get(k, 0)}
        self.case.assertEqual({}, grown, f"grew after the first half; files at first {self.sorts[0]}, at last {self.sorts[-1]}; keys that are new "
                                         f"{sorted(self.keys[-1] - self.keys[0])}")


class Soak(harness.Case):
    # ---- jobs -----------------------------------------------------------------------------------

    def jobs(self, c):
        self.state = Job(c, "state", test_crash.small_state(self.seed), self.path("state"), test_crash.RULES, more={"copies": {"count": 2}})
        self.state.imported("tp=2,dp=2")
        self.live = Trainer(c, self.path("live"), self.random.choice(("restart", "rebuild")), steps=1 << 40, sleep_ms=SLEEP_MS)
        with open(self.live.yaml, encoding="utf-8") as f:
            spec = json.load(f)
        spec.update({"snapshot_every": 1500 // SLEEP_MS, "copies": {"count": 2}, "elastic": {"min_gpus": 1, "on_failure": "shrink"},
                     "gpus": {1: f"tp=1,{BATCH}", 2: f"dp=2,{BATCH}", 3: f"dp=3,{BATCH}", 4: f"tp=2,dp=2,{BATCH}"}})
        with open(self.live.yaml, "w", encoding="utf-8") as f:
            json.dump(spec, f)
        self.live.run(f"tp=2,dp=2,{BATCH}")

    def visit_all(self):
        """A job has a store, a folder and a key on each node that it has ever been on."""
        for nodes in ("n0,n1,n2", "n3,n4,n5"):
            self.state.resize("dp=6", extra=("--nodes", nodes))
            wait_for(lambda: isinstance(self.live.resize(f"dp=6,{BATCH}", nodes, check=False), dict), 60 * PATIENCE, # noqa: B023
                     "a resize; a snapshot may be under way", 0.2)

    def up(self):
        """Nodes whose daemons run."""
        return [name for name, node in self.c.nodes.items() if node.pid()]

    def ask(self, job):
        """Its status, of any daemon that answers; None: none does."""
        with contextlib.suppress(ClusterError, subprocess.TimeoutExpired, IndexError):
            s = job.status(node=self.random.choice(self.up()), timeout_s=20)
            if s["run"]["state"] == "failed":
                self.fail(f"{s['run'].get('text')}\n{self.c.ptcctl('events', job.name, node=self.up()[0], check=False).stdout}")
            return s
        return None

    def wait_job(self, job, condition, what, timeout_s=90):
        """Until condition(status) holds."""
        def holds():
            s = self.ask(job)
            return s if s and condition(s) else None
        try:
            return wait_for(holds, timeout_s * PATIENCE, what, 0.1)
        except ClusterError:
            node = self.up()[0]
            print("away:", self.away, "drained:", self.drained, json.dumps(self.ask(job)),
                  self.c.ptcctl("events", job.name, node=node, check=False).stdout, flush=True)
            raise

    @staticmethod
    def least(s):
        return min((r.get("step") or -1 for r in s["run"]["ranks"]), default=-1)

    def trains(self, s):
        return s["run"]["state"] == "live" and s["phase"] == "idle" and self.least(s) > s["step"] and \
            all(r["state"] == "running" and r["node"] not in self.away for r in s["run"]["ranks"])

    @staticmethod
    def copied(s):
        return s["phase"] == "idle" and not s.get("lost") and (s.get("copies") or {"fewest": 0})["fewest"] >= 2 and not s["copies"]["bytes_left"]

    def settled(self):
        """Until both jobs go on, without anybody's help; where the bytes of one are on machines that are gone, these come back first."""
        def stuck(s):
            return bool(s.get("lost") or "on no live node" in (s["run"].get("recovery") or {}).get("waits", ""))

        for job, well in ((self.state, lambda s: s["phase"] == "idle"), (self.live, self.trains)):
            s = self.wait_job(job, lambda s: well(s) or self.away and stuck(s), f"job {job.name} to go on") # noqa: B023
            if stuck(s) and self.away:
                for name in list(self.away):
                    self.come_back(name, emptied=False)
                s = self.wait_job(job, well, f"job {job.name} to go on with all machines")
        at = s["generation"], s["run"]["incarnation"]
        self.wait_job(self.live, lambda now: self.trains(now) and (at != (now["generation"], now["run"]["incarnation"]) or
                                                                   self.least(now) > self.least(s)), "another step")
        self.kept = wait_for(lambda: self.leases(self.c), 60 * PATIENCE, "etcd's answer")

    def copies(self):
        """Until every byte of both jobs is on two machines that are up."""
        for job in (self.state, self.live):
            self.wait_job(job, self.copied, f"two copies of job {job.name}")

    # ---- operations -----------------------------------------------------------------------------

    def operate(self, what, *args, node=None, timeout_s=90):
        """One call of ptcctl. Its outcome is judged, and written down as that of `what`."""
        began = self.disturbances
        r = self.c.ptcctl(*args, node=node or self.random.choice(self.up()), check=False, timeout_s=timeout_s * PATIENCE)
        why = self.judged(args, r.stderr + r.stdout, self.disturbances != began) if r.returncode else ""
        if what:
            self.outcomes.append((what, why))
            self.piece.line(operation=what, refused=why)
        return r.returncode == 0

    def judged(self, args, text, disturbed):
        """The reason for which it was refused, which has to be one that there may be now."""
        may = {ALWAYS: True, AWAY_ONLY: bool(self.away), DISTURBED: disturbed or self.restless()}
        text = "\n".join(text.strip().splitlines()[-3:])
        found = reasons(text)
        well = [name for name, when in found if may[when]]
        if not well and found and self.leases(self.c) != self.kept: # a busy machine: a daemon has lost its lease by itself
            well = [name for name, _ in found]
        self.assertTrue(well, f"ptcctl {' '.join(args)} is refused: {text}; that is so {found or 'at no time'}, and now: {may}")
        return well[0]

    def restless(self):
        """Whether a daemon has been killed or started a moment ago: others may not have seen it, or have lost their own lease for it."""
        return time.monotonic() < self.quiet_at

    def disturb(self):
        self.disturbances += 1
        self.quiet_at = time.monotonic() + TTL

    def several(self, least):
        """Some nodes, or all."""
        names = [n for n in self.up() if n not in self.drained]
        return ["--nodes", ",".join(sorted(self.random.sample(names, min(len(names), least))))] if self.random.random() < 0.4 else []

    def resize(self):
        job, configs, tail = self.random.choice(((self.state, STATE, ""), (self.live, LIVE, f",{BATCH}")))
        self.operate(f"resize {job.name}", "resize", job.name, "--config", self.random.choice(configs) + tail, "--wait", *self.several(3))

    def snapshot(self):
        self.operate("snapshot", "snapshot", self.live.name, "--wait")

    def drain(self):
        """Jobs leave a node, and it is opened again at some later time."""
        here = [n for n in self.up() if n not in self.drained]
        if self.drained or len(here) < 5:
            return self.undrain()
        victim = self.random.choice(here)
        how = self.random.choice((["--wait"], ["--within", "20s"]))
        self.drained.append(victim)
        return self.operate(f"drain {how[0]}", "drain", victim, *how)

    def undrain(self):
        for name in list(self.drained):
            self.operate("drain --undo", "drain", name, "--undo")
            self.drained.remove(name)

    def beside(self):
        """Another operation goes on in a thread; most often one that moves state."""
        what = self.random.choices((self.resize, self.snapshot, None), (5, 1, 2))[0]
        thread = threading.Thread(target=self.guarded, args=(what,)) if what else None
        if thread:
            thread.start()
            time.sleep(self.random.random() * 1.2) # any instant of it; nothing is judged by it
        return thread

    def guarded(self, what):
        try:
            what()
        except BaseException as e:  # noqa: BLE001  told to the test's own thread
            self.failures.append(e)

    def kill_daemon(self):
        """kill -9 of one ptcd; its ranks live. It is started again at once, or after others have seen that it is gone."""
        victim = self.random.choice(self.up())
        if len(self.up()) < 4:
            return
        thread = self.beside()
        self.disturb()
        self.c.nodes[victim].kill()
        time.sleep(self.random.choice((0, 0, 0.5, TTL + 1))) # for so long it is away
        self.c.start_node(self.c.nodes[victim])
        self.c.wait_nodes([victim], 60 * PATIENCE)
        if thread:
            thread.join()
        self.disturb()
        self.note("kill -9 of a ptcd")

    def lose_machine(self):
        """ptcd and ranks die at once. Every byte is on two machines before: what else may go with it is that of the newest commit."""
        able = [n for n in self.up() if n != "n0"] # which has etcd
        if len(self.away) >= AWAY or len(self.up()) < 5:
            return self.machine_back()
        self.copies()
        victim, thread = self.random.choice(able), self.beside()
        self.disturb()
        self.away.append(victim)
        self.c.power_off(victim)
        if thread:
            thread.join()
        wait_for(lambda: victim not in (self.c.nodes_up("n0") or {victim}), 60 * PATIENCE, f"{victim} to be down", 0.1)
        if self.random.random() < 0.4:
            self.operate("node lost", "node", "lost", victim)
        wait_for(lambda: self.is_lost(victim), 120 * PATIENCE, f"{victim} to be lost", 0.1)
        self.disturb()
        self.note("a machine lost")
        return self.settled()

    def is_lost(self, name):
        with contextlib.suppress(ClusterError, subprocess.TimeoutExpired):
            return next(n for n in self.c.json("nodes")["nodes"] if n["node"] == name).get("lost")
        return False

    def declare_up_lost(self):
        """Of a node that is up nobody may say that it is lost."""
        up = [n for n in self.up() if n in (self.c.nodes_up("n0") or ())]
        if not self.restless() and up:
            self.assertFalse(self.operate("node lost, of one that is up", "node", "lost", self.random.choice(up)))

    def machine_back(self):
        """With all its bytes, or with none where the jobs do not need them."""
        if self.away:
            self.settled()
        for name in self.away[:1]:
            emptied = self.random.random() < 0.5
            if emptied:
                self.copies()
            self.come_back(name, emptied)

    def come_back(self, name, emptied):
        self.disturb()
        if emptied:
            shutil.rmtree(self.c.nodes[name].chunk_dir)
        self.c.restart(name, timeout_s=60 * PATIENCE)
        self.away.remove(name)
        self.disturb()
        self.note(f"a machine back, {'emptied' if emptied else 'with its bytes'}")

    def note(self, what):
        """An operation that cannot be refused."""
        self.outcomes.append((what, ""))
        self.piece.line(operation=what, refused="")

    # ---- what must hold -------------------------------------------------------------------------

    def check_bytes(self):
        """Whole, and each rank's, as any daemon reads them."""
        node = self.random.choice(self.up())
        config = self.wait_job(self.state, lambda s: s["phase"] == "idle" and not s.get("lost"), "its bytes")["config"]
        self.state.check_whole(self, node=node)
        self.state.check_ranks(self, oracle.Config(config), test_crash.RULES, node=node)
        self.compared += 1

    def rest(self, looks):
        """All machines are back, all nodes are open, and both jobs are where they were at the first look."""
        for name in list(self.away):
            self.machine_back()
        self.assertEqual([], self.away)
        self.c.wait_nodes(list(self.c.nodes), 60 * PATIENCE, node="n0")
        self.undrain()
        for job, config, nodes in ((self.state, "tp=2,dp=2", "n0,n1"), (self.live, f"tp=2,dp=2,{BATCH}", "n2,n3")):
            self.settled()
            wait_for(lambda: self.operate(None, "resize", job.name, "--config", config, "--nodes", nodes, "--wait"), # noqa: B023
                     90 * PATIENCE, f"job {job.name} under {config}", 0.5)
        self.settled()
        self.copies()
        self.check_bytes()
        self.c.ptcctl("verify", self.state.name, timeout_s=60 * PATIENCE)
        row = looks.look(lambda: [r["pid"] for r in self.live.status()["run"]["ranks"]])
        print(f"after {len(self.outcomes)} operations: {row}", flush=True)
        self.piece.line(look=row, operations=len(self.outcomes))

    def check_curve(self):
        """What counts of the losses and samples is what one process comes to."""
        wait_for(lambda: self.operate(None, "stop", self.live.name), 60 * PATIENCE, "the stop", 0.5)
        self.live.steps = self.live.wait_run("stopped")["step"]
        proof = self.c.json("dataset", "proof", self.live.name)["cursors"][0]
        self.assertEqual((True, 24 * self.live.steps), (proof["exactly_once"], proof["position"]))
        self.assertEqual([], differences(counted(self.live.lines(), self.live.steps), self.live.reference())[:5])
        print(f"{self.live.steps} steps, {len(proof['generations'])} generations", flush=True)

    def show(self):
        for line in results.soak_table([{"operation": what, "refused": why} for what, why in self.outcomes]):
            print(line, flush=True)

    @harness.labels("repeats")
    @unittest.skipUnless(harness.LONG, "takes minutes: PTC_TEST_LONG")
    def test_soak(self):
        (self.away, self.drained, self.outcomes, self.failures), self.disturbances, self.compared = ([], [], [], []), 0, 0
        self.quiet_at, self.kept = time.monotonic(), {}
        what = (self.resize, self.kill_daemon, self.lose_machine, self.machine_back, self.drain, self.snapshot, self.declare_up_lost)
        often = (10, 4, 4, 3, 3, 2, 1)
        with results.Piece("soak", self.seed) as self.piece, \
                self.cluster(nodes=NODES, devices=DEVICES, lease_ttl=f"{TTL}s", node_lost_after=f"{AFTER}s",
                             env={f"n{i}": harness.measured_env(harness.NO_LEAKS) for i in range(NODES)}) as self.c:
            self.jobs(self.c)
            self.visit_all()
            looks = Looks(self, self.c)
            self.rest(looks)
            began = time.monotonic()
            while len(self.outcomes) < COUNT and time.monotonic() < began + SECONDS:
                self.random.choices(what, often)[0]()
                if self.failures:
                    raise self.failures[0]
                self.settled()
                if self.random.random() < 0.15:
                    self.check_bytes()
                if self.random.random() < RESTS / COUNT:
                    self.rest(looks)
            self.rest(looks)
            self.show()
            self.check_curve()
            self.state.check_whole(self)
            self.assertGreater(self.compared, 1)
            looks.check()


if __name__ == "__main__":
    unittest.main()
