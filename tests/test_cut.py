# SPDX-License-Identifier: Apache-2.0
"""A machine is cut off from all others, silently: no connection is closed, no packet comes back (tests/machines.py). Its ptcd and its
ranks live. The others go on without it; when its cable is back it takes part again, and nothing of its old ranks counts or is written.

With cut_off_after its own ptcd ends its ranks before the others may go on (docs/failures.md, "When a node is cut off")."""
import contextlib
import glob
import json
import os
import re
import signal
import time
import unittest

import harness
from cluster import start_time
from harness import PATIENCE, wait_for
from machines import LINK, Machines
from test_ctrainer import BATCH, Trainer, counted, differences

TTL, AFTER = 2, 1  # seconds: lease_ttl, node_lost_after
# A rank finds its own address, and a child of it writes a line ten times a second whatever the rank waits for.
SCRIPT = (f'export C_TRAINER_HOST=$(ip -4 -o addr show {LINK} | sed "s/.*inet \\([0-9.]*\\).*/\\1/"); '
          'mkdir -p "$LINES/beside"; (while :; do echo "$(date +%s.%N)"; sleep 0.1; done >>"$LINES/beside/$$") & '
          'exec "$@" >>"$LINES/$$.jsonl"')
TICKS = os.sysconf("SC_CLK_TCK")


def began(pid):
    """When a process was started, in seconds since 1970; None: it is gone."""
    ticks = start_time(pid)
    return None if ticks is None else time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / TICKS


@harness.skip_unless_root
class Cut(harness.Case):
    ends_them = True  # a node that is cut off ends its ranks itself

    @contextlib.contextmanager
    def machines(self, **options):
        options.setdefault("node_lost_after", f"{AFTER}s")
        options.setdefault("lease_ttl", f"{TTL}s")
        with Machines([f"n{i}" for i in range(4)]) as m, \
                self.cluster(nodes=4, devices=1, transport="tls", hosts=m.hosts, up=False, **options) as c:
            m.settle(c)
            c.up(timeout_s=60 * PATIENCE)
            yield m, c

    def job(self, c, every=50):
        job = Trainer(c, self.dir, "restart", steps=1 << 40, sleep_ms=20, script=SCRIPT)
        with open(job.yaml, encoding="utf-8") as f:
            spec = json.load(f)
        spec.update({"snapshot_every": every, "elastic": {"min_gpus": 2, "max_gpus": 3}, "gpus": {2: f"dp=2,{BATCH}", 3: f"dp=3,{BATCH}"}})
        with open(job.yaml, "w", encoding="utf-8") as f:
            json.dump(spec, f)
        return job

    def events(self, c, job, last):
        lines = c.ptcctl("events", job.name, "--format", "json").stdout.splitlines()
        return [e for e in map(json.loads, lines) if e["number"] > last]

    def trains(self, job, before=None):
        """Until ranks, or those of another incarnation, have ended two steps after the one that they began with. The status."""
        def stepped():
            s = job.status()
            run = s["run"]
            if run["state"] != "live" or s["phase"] != "idle" or (before and run["incarnation"] == before["run"]["incarnation"]):
                return None
            return s if min((r.get("step") or -1 for r in run["ranks"]), default=-1) >= s["step"] + 2 else None
        try:
            return wait_for(stepped, 90 * PATIENCE, "a job that trains", 0.02)
        except harness.ClusterError:
            print(json.dumps(job.status()), job.do("events").stdout, flush=True)
            raise

    def next_step(self, job, before):
        """When ranks of another incarnation had ended their first step (seconds since 1970), as their files show."""
        def first():
            new = [line for line in job.lines() if (line["generation"], line["incarnation"]) > at]
            return len({line["step"] for line in new}) > 1 and time.time()
        at = before["generation"], before["run"]["incarnation"]
        return wait_for(first, 90 * PATIENCE, "a step", 0.01)

    def gone_on(self, c, job, before, cut_at, last):
        """Prints how long each part took. (seconds from the cut until new ranks were started, and until their first step had ended; the
        status; the step that they began with)"""
        stepped = self.next_step(job, before)
        after = self.trains(job, before)
        found, told = {}, ""
        for e in self.events(c, job, last):
            found.setdefault(e["kind"], e["time_ms"] / 1000)
            told = e["text"] if e["kind"] == "recovered" else told
        started = min(began(r["pid"]) for r in after["run"]["ranks"])
        marks = [("down", found.get("node_down")), ("recovering", found.get("recovering")), ("ranks started", started), ("step", stepped)]
        print("  " + ", ".join(f"{what} after {at - cut_at:.2f} s" for what, at in marks if at), flush=True)
        said = re.search(r"of step (\d+), ", told)
        self.assertTrue(said, f"nobody says from which step the job has gone on: {told}")
        return started - cut_at, stepped - cut_at, after, int(said[1])

    def beside(self, job):
        """What the ranks' children have written: {process: bytes}."""
        return {int(os.path.basename(path)): os.path.getsize(path) for path in glob.glob(os.path.join(job.logs, "beside", "*"))}

    def cut_once(self, m, c, job, victim):
        wait_for(lambda: job.status()["snapshot"], 60 * PATIENCE, "a snapshot", 0.1)
        before, last = self.trains(job), max(e["number"] for e in self.events(c, job, -1))
        old = {r["pid"]: start_time(r["pid"]) for r in before["run"]["ranks"] if r["node"] == victim}
        self.assertEqual(1, len(old), before["run"]["ranks"])
        time.sleep(self.random.random() * 0.5)  # any instant; nothing is judged by it
        print(f"{victim} cut off (controller {before['controller']}), step {before['run'].get('step')}", flush=True)
        m.cut(victim)
        cut_at = time.time()
        started, stepped, after, begun = self.gone_on(c, job, before, cut_at, last)
        self.assertNotIn(victim, {r["node"] for r in after["ranks"]})
        logged = max(line["step"] for line in job.lines() if (line["generation"], line["incarnation"]) ==
                     (before["generation"], before["run"]["incarnation"]))
        self.assertTrue(0 <= logged + 1 - begun <= 100, f"{logged} was the last step, and the job went on at {begun}")
        runs = lambda: any(start_time(pid) == since for pid, since in old.items())  # noqa: E731
        if self.ends_them:
            wait_for(lambda: not runs(), 30 * PATIENCE, f"the end of {victim}'s ranks, by its own ptcd", 0.02)
            wrote = self.beside(job)
            self.assertRegex(c.nodes[victim].log_tail(200), "none of [3-9] other machines answers")
            ended = max(os.path.getmtime(os.path.join(job.logs, "beside", str(pid))) for pid in old) - cut_at
            print(f"  its ranks and their children wrote for {ended:.2f} s after the cut", flush=True)
            time.sleep(1)  # nothing may be written for so long
            self.assertEqual([wrote[pid] for pid in old], [self.beside(job)[pid] for pid in old], "a child of a rank still writes")
        else:
            self.assertTrue(runs(), "nobody was to end them")
        m.mend(victim)
        self.comes_back(c, job, victim, old)
        print(f"  steps lost: {logged + 1 - begun}", flush=True)
        return started, stepped

    def comes_back(self, c, job, victim, old):
        """It is a node again, its old ranks and their children are gone, and what they wrote is as it was from then on."""
        c.wait_nodes([victim], 60 * PATIENCE, node="n0")
        wait_for(lambda: all(start_time(pid) != since for pid, since in old.items()), 60 * PATIENCE, f"the end of {victim}'s old ranks", 0.02)
        alive = [pid for pid in c.machine(victim) if any(f"lines/beside/{rank}" in files(pid) for rank in old)]
        self.assertEqual([], alive, "children of ranks that are ended")
        lines, wrote = len(lines_of(job, old)), {pid: self.beside(job)[pid] for pid in old}
        now = job.status()
        job.wait_step(now["run"]["step"] + 50)
        self.assertEqual(wrote, {pid: self.beside(job)[pid] for pid in old}, "children of an old rank still write")
        self.assertEqual(lines, len(lines_of(job, old)), "an old rank still writes")

    def check_end(self, job):
        """Of each step, what the ranks said that did it last is what one process says; and each sample was used once."""
        wait_for(lambda: job.do("stop", check=False).returncode == 0, 60 * PATIENCE, "the stop", 0.2)
        job.steps = job.wait_run("stopped")["step"]
        self.assertEqual([], differences(counted(job.lines(), job.steps), job.reference())[:5])

    def resized(self, job, config, nodes):
        """A snapshot may be under way."""
        wait_for(lambda: isinstance(job.resize(config, nodes, check=False), dict), 60 * PATIENCE, f"a resize to {config}", 0.2)

    def cut_some(self, rounds, within=(TTL + AFTER) * 3, **options):
        self.ends_them = "cut_off_after" in options
        with self.machines(**options) as (m, c):
            job = self.job(c)
            job.run(f"dp=3,{BATCH}", nodes="n1,n2,n3")
            took = []
            for _ in range(rounds):
                took.append(self.cut_once(m, c, job, self.random.choice(["n1", "n2", "n3"])))
                self.resized(job, f"dp=3,{BATCH}", "n1,n2,n3")
            self.check_end(job)
        worst = max(started for started, _ in took)
        print(f"{len(took)} machines cut off: new ranks started within {worst:.2f} s, a step ended within {max(s for _, s in took):.2f} s",
              flush=True)
        self.assertLess(worst, within * PATIENCE)

    @harness.needs("ip", "nsenter", "unshare")
    @harness.labels("repeats")
    def test_machine_cut_off(self):
        self.cut_some(harness.size(1, 3, 40), cut_off_after="1s")

    @harness.needs("ip", "nsenter", "unshare")
    @harness.labels("repeats")
    def test_nobody_is_there(self):
        """Its ranks' peers wait for it, and its machine answers nothing: nobody waits until it is lost."""
        self.cut_some(harness.size(1, 2, 20), within=30, node_lost_after="1h")

    def cut_and_left(self, m, c, count):
        """So many nodes that train are cut off, each when the controller misses a renewal of the one before, so that their leases do not end
        together; by time alone nobody is lost. (they; what the controller's log says since; the job; its status when it has gone on)"""
        job = self.job(c, every=1 << 40)
        job.run(f"dp=3,{BATCH}", nodes="n1,n2,n3")
        job.do("snapshot")
        began = time.monotonic()
        wait_for(lambda: time.monotonic() > began + 11, 60, "nodes that may be passed by", 0.1)  # docs/failures.md: 10 s
        before = self.trains(job)
        victims = [n for n in ("n1", "n2", "n3") if n != before["controller"]][:count]
        log = c.nodes[before["controller"]].log_file
        told = os.path.getsize(log)

        def said():
            with open(log, encoding="utf-8", errors="replace") as f:
                f.seek(told)
                return f.read()
        for victim, line in zip(victims, [""] + [f"node={v} has not renewed its lease" for v in victims]):
            wait_for(lambda line=line: line in said(), 60 * PATIENCE, f"the line '{line}'", 0.02)
            m.cut(victim)
        after = self.trains(job, before)
        lines = said().splitlines()
        for victim in victims:
            m.mend(victim)
        c.wait_nodes(victims, 60 * PATIENCE, node="n0")
        return victims, lines, job, after

    def first(self, lines, *words):
        """The number of the first line that has all of these words."""
        found = next((i for i, line in enumerate(lines) if all(word in line for word in words)), None)
        self.assertIsNotNone(found, f"no line has {words}:\n" + "\n".join(lines))
        return found

    @harness.needs("ip", "nsenter", "unshare")
    @harness.labels("repeats")
    def test_looks_before_the_end(self):
        """A machine is looked at while its node's lease runs out, so that nobody waits for that when the lease has ended."""
        with self.machines(node_lost_after="1h", lease_ttl="5s") as (m, c):
            (victim,), lines, job, _ = self.cut_and_left(m, c, 1)
            down = self.first(lines, "node_down", f"node {victim} ")
            self.assertLess(self.first(lines, f"node={victim} has not renewed its lease"), down)
            silent = self.first(lines, f"node={victim} nothing on its machine has answered", "before its lease ended")
            self.assertLess(silent, self.first(lines, "recovering:", f"node {victim} is down, and nothing on it answers"))
            self.check_end(job)

    @harness.needs("ip", "nsenter", "unshare")
    @harness.labels("repeats")
    def test_two_in_a_row(self):
        """Two machines are cut off, and their leases end one after the other: while the second is in doubt nobody goes on without the
        first alone."""
        with self.machines(node_lost_after="1h", lease_ttl="5s") as (m, c):
            victims, lines, job, after = self.cut_and_left(m, c, 2)
            recovering = [line for line in lines if " recovering: " in line]
            self.assertEqual(1, len(recovering), "\n".join(lines))
            self.assertRegex(recovering[0], f"node {victims[0]}, {victims[1]} is down, and nothing on it answers")
            self.assertNotIn("are not held", "\n".join(lines), "ranks were to be held while the second was in doubt")
            self.assertEqual(f"dp=2,{BATCH}", ",".join(sorted(after["config"].split(","), key=f"dp=2,{BATCH}".index)))
            self.assertEqual([], [r["node"] for r in after["ranks"] if r["node"] in victims])
            self.check_end(job)

    @unittest.skipUnless(harness.LONG, "the same, with ranks that outlive the cut: PTC_TEST_LONG")
    @harness.needs("ip", "nsenter", "unshare")
    @harness.labels("repeats")
    def test_ranks_that_stay(self):
        self.cut_some(harness.size(1, 1, 10))

    @harness.needs("ip", "nsenter", "unshare")
    @harness.labels("repeats")
    def test_etcd_cut_off(self):
        """The machine that etcd runs on, and no rank: nobody is lost or cut off from all, and training goes on with the same processes,
        also afterwards, where the first node is back long before the others."""
        with self.machines(cut_off_after="1s") as (m, c):
            job = self.job(c, every=1 << 40)
            job.run(f"dp=3,{BATCH}", nodes="n1,n2,n3")
            before, last = self.trains(job), max(e["number"] for e in self.events(c, job, -1))
            m.cut("n0")
            step = max(line["step"] for line in job.lines())
            time.sleep(5 * (TTL + AFTER))  # nothing may happen for so long; a node that ended its ranks would have by then
            self.assertGreater(max(line["step"] for line in job.lines()), step + 40, "training stood still")
            for name in ("n1", "n3"):
                c.nodes[name].signal(signal.SIGSTOP)
            m.mend("n0")
            c.wait_nodes(["n0", "n2"], 90 * PATIENCE, node="n0")
            step = max(line["step"] for line in job.lines())
            wait_for(lambda: max(line["step"] for line in job.lines()) > step + 40, 60 * PATIENCE, "steps of ranks of which most are not seen")
            for name in ("n1", "n3"):
                c.nodes[name].signal(signal.SIGCONT)
            c.wait_nodes(list(c.nodes), 90 * PATIENCE, node="n1")
            after = self.trains(job)
            pids = lambda s: {r["rank"]: r["pid"] for r in s["run"]["ranks"]}  # noqa: E731
            self.assertEqual(pids(before), pids(after), "ranks were started again")
            self.resized(job, f"dp=2,{BATCH}", "n1,n3")
            self.assertEqual([], [e["text"] for e in self.events(c, job, last) if e["kind"] in ("node_lost", "recovering", "failed")])
            self.check_end(job)

    @harness.needs("ip", "nsenter", "unshare")
    @harness.labels("repeats")
    def test_controller_cut_off(self):
        """The node that controls a job reaches etcd and no other machine: it revokes no lease, another node takes the control over, and the
        ranks train on."""
        with self.machines(node_lost_after="1h") as (m, c):
            job = self.job(c)
            job.run(f"dp=3,{BATCH}", nodes="n1,n2,n3")
            before, last = self.trains(job), max(e["number"] for e in self.events(c, job, -1))
            self.assertEqual("n0", before["controller"])
            m.keep_only("n0", c.options["etcd_port"])
            wait_for(lambda: "gives its jobs' locks back" in c.nodes["n0"].log_tail(50), 90 * PATIENCE, "locks given back", 0.1)
            wait_for(lambda: any("controlling it" in c.nodes[n].log_tail(50) for n in ("n1", "n2", "n3")), 60 * PATIENCE, "a takeover", 0.1)
            m.keep_all("n0")
            wait_for(lambda: job.status()["controller"] not in ("n0", None), 60 * PATIENCE, "another controller", 0.1)
            wait_for(lambda: job.do("snapshot", check=False).returncode == 0, 60 * PATIENCE, "a snapshot", 0.2)
            after = self.trains(job)
            pids = lambda s: {r["rank"]: r["pid"] for r in s["run"]["ranks"]}  # noqa: E731
            self.assertEqual(pids(before), pids(after), "ranks were started again")
            self.assertNotIn("revoking its lease", c.nodes["n0"].log_tail(1000))
            self.assertEqual([], [e["text"] for e in self.events(c, job, last) if e["kind"] in ("node_down", "node_lost", "recovering")])
            self.check_end(job)


def lines_of(job, pids):
    """Lines that these processes have written, whole or not."""
    found = []
    for pid in pids:
        with open(os.path.join(job.logs, f"{pid}.jsonl"), encoding="utf-8") as f:
            found += f.readlines()
    return found


def files(pid):
    """Paths that a process has open, one a line."""
    found = []
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return "\n".join(found)


if __name__ == "__main__":
    unittest.main()
