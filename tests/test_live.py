# SPDX-License-Identifier: Apache-2.0
"""Jobs whose ranks run: every byte of what is captured, moved and restored is compared with a formula, by the rank that
is restored itself and by export."""
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import unittest
import unittest.mock

import cluster as clusters
import harness
import live
import numpy as np
import state as states
from harness import PATIENCE, SLOWED, wait_for
from safetensors.numpy import load_file, save_file


class Live(harness.Case):
    def check_steps(self, job, last):
        """Each rank of each generation went through its steps one by one, and the generations join without a gap."""
        logged = job.steps_logged()
        ends = {}
        for (generation, incarnation, rank), steps in sorted(logged.items()):
            self.assertEqual(list(range(steps[0], steps[0] + len(steps))), steps, (generation, incarnation, rank))
            ends.setdefault((generation, incarnation), set()).add((steps[0], steps[-1] + 1))
        for key, spans in ends.items():
            self.assertEqual(1, len(spans), f"ranks of {key} began or ended at different steps: {spans}")
        spans = [next(iter(s)) for _, s in sorted(ends.items(), key=lambda e: (e[0][0], min(e[1])))] # incarnations are random numbers
        for (_, end), (begin, _) in zip(spans, spans[1:]):
            self.assertEqual(end, begin, f"steps left out or done twice: {spans}")
        self.assertEqual(last, spans[-1][1])

    def steps_without(self, job, steps=3):
        """Waits until every rank has done more steps: nothing asks a daemon."""
        before = {key: len(of) for key, of in job.steps_logged().items()}
        wait_for(lambda: all(len(job.steps_logged()[key]) >= n + steps for key, n in before.items()), 30 * PATIENCE,
                 "steps of every rank")

    def test_nothing_of_a_job_escapes_a_mark(self):
        """A variable of whoever runs a job is in every process of it, if it is not called PTC_*: so scripts/test finds what tests
        leave, whatever it is called. What a daemon has started beside ranks ends with it; Cluster.stop() looks."""
        mark = f"TEST_RUN_MARK={self.seed}.{os.getpid()}"
        with unittest.mock.patch.dict(os.environ, [mark.split("=")]), self.cluster(nodes=1, devices=2) as c:
            job = live.Job(c, self.path("job"))
            job.run("tp=2")
            job.wait_step(2)
            self.assertLessEqual(set(job.processes()), set(clusters.processes_of(mark, "/nowhere")))
            self.assertEqual(2, len(job.processes()))
            started = [clusters.command(pid).split(" ")[0] for pid in clusters.children(c.nodes["n0"].pid())]
            self.assertIn("etcd", [os.path.basename(name) for name in started])
            job.do("stop")

    def test_first_run(self):
        """Starts, trains, makes a snapshot, stops, goes on elsewhere, finishes."""
        with self.cluster(nodes=2, devices=2) as c:
            job = live.Job(c, self.dir, steps=1200, sleep=0.01)
            job.run("tp=2,dp=2")
            job.wait_step(20)
            job.do("snapshot")
            step = job.status()["step"]
            job.check_state(self, step, self.path("a"))
            job.do("stop")
            stopped = job.wait_run("stopped")
            self.assertGreater(stopped["step"], step)
            job.check_state(self, stopped["step"], self.path("b"))
            c.ptcctl("run", job.name, "--config", "tp=3", "--wait", timeout_s=60 * PATIENCE)
            job.wait_step(stopped["step"] + 5)
            done = job.wait_run("done")
            self.assertEqual(1200, done["step"])
            job.check_state(self, 1200, self.path("c"))
            self.check_steps(job, 1200)

    def finished(self, r):
        self.assertEqual((0, ""), (r.returncode, r.stderr))
        return r.stdout

    def test_finish_before_the_stop(self):
        """What waits for a stop after the last step is told that the job has finished, and which snapshot has its state."""
        for verb, more in (("resize", ["--config", "tp=2", "--wait"]), ("snapshot", ["--wait"]), ("stop", [])):
            with self.subTest(verb), self.cluster(nodes=2, devices=2) as c:
                job = live.Job(c, self.path(verb), steps=12, hold_at=12)
                job.run("dp=2,tp=2")
                job.wait_step(12)  # the last boundary is behind them, the end is not
                with concurrent.futures.ThreadPoolExecutor() as pool:
                    asked = pool.submit(c.ptcctl, verb, job.name, *more, check=False, timeout_s=60 * PATIENCE)
                    wait_for(lambda: job.status()["phase"] == "arming", 30 * PATIENCE, "a stop that is waited for", 0.02)
                    job.let_go()
                    out = self.finished(asked.result())
                done = job.wait_run("done")
                self.assertIn(f"job {job.name} has finished at step 12; its state is in snapshot {done['snapshot']}", out)
                self.assertEqual(12, done["step"])
                job.check_state(self, 12, self.path(f"{verb}-state"))

    def test_rank_that_finishes_early(self):
        """One node or two: the job ends when all have finished, with the last step that all had, and says so."""
        for nodes in (1, 2):
            with self.subTest(nodes=nodes), self.cluster(nodes=nodes, devices=2 // nodes) as c:
                job = live.Job(c, self.path(f"early{nodes}"), steps=40, early=25, sleep=0.01, hold_at=20, run={"snapshot_every": 10})
                job.run("dp=2")
                job.wait_step(20)
                job.let_go(1)  # rank 1 is past rank 0's end when that comes there
                wait_for(lambda: any(rank == 1 and 29 in steps for (_, _, rank), steps in job.steps_logged().items()),
                         30 * PATIENCE, "rank 1 past the other's end", 0.02)
                job.let_go()
                done = job.wait_run("done")
                self.assertEqual(20, done["step"])
                job.check_state(self, 20, self.path(f"state{nodes}"))
                lines = [e["text"] for e in self.events(c, job, "finished")]
                at = {r["node"]: r["rank"] for r in done["ranks"]}
                who = {"node n0: rank 0 at step 25, rank 1 at step 40"} if nodes == 1 else {
                    f"node {n}: rank {at[n]} and others there at step {(25, 40)[at[n]]}" for n in c.nodes}
                told = re.fullmatch(r"ranks finished at different steps, so that no step has the state of all \((.*)\); the job's state "
                                    rf"is snapshot {done['snapshot']}, of step 20", lines[0])
                self.assertEqual((1, who), (len(lines), set(told[1].split("; ")) if told else lines[0]))  # as nodes say so

    def test_preserved(self):
        """The summary says what goes on as before; of a drain its event does, beside those of the drain."""
        with self.cluster(nodes=3, devices=1) as c:
            job = live.Job(c, self.path("blobs"), "blobs", blobs="mine")
            job.run("tp=2")
            job.wait_step(3)
            self.assertEqual("statistical", job.resize("tp=3")["preserved"], "a rank without a blob of its own")
            job.do("stop")
            plain = live.Job(c, self.path("plain"), "plain")
            plain.run("dp=2")
            plain.wait_step(3)
            self.assertEqual("native", plain.resize("dp=2,zero=1")["preserved"])
            c.ptcctl("job", "delete", job.name)
            c.ptcctl("drain", plain.status()["ranks"][0]["node"], "--wait", timeout_s=60 * PATIENCE)
            self.assertEqual(["drain", "drained"], [e["kind"] for e in self.events(c, plain, "drain", "drained")])
            self.assertEqual("bytes", self.events(c, plain, "committed")[-1]["switch"]["preserved"])
            plain.do("stop")

    def test_drain_that_is_not_waited_for(self):
        """ptcctl is killed while the job leaves: the job goes on leaving, and no event says that it stays."""
        with self.cluster(nodes=3, devices=1) as c:
            job = live.Job(c, self.dir)
            job.run("dp=2")
            job.wait_step(3)
            node = job.status()["ranks"][0]["node"]
            with job.hold("start"):
                ptcctl = subprocess.Popen([harness.program("ptcctl"), "drain", node, "--wait"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                          stderr=subprocess.DEVNULL, env=c.environment({"PTC_SOCKET": c.nodes["n0"].socket}))
                wait_for(lambda: job.status()["phase"] == "starting", 30 * PATIENCE, "new ranks started", 0.02)
                ptcctl.kill()
                ptcctl.wait()
                wait_for(lambda: self.events(c, job, "drained"), 30 * PATIENCE, "the drain's end", 0.05)
            self.assertIn("did not wait for the job to leave it", self.events(c, job, "drained")[0]["text"])
            wait_for(lambda: self.events(c, job, "committed")[-1]["switch"]["generation"] == 2, 60 * PATIENCE, "the job to leave", 0.1)
            self.assertNotIn(node, [r["node"] for r in job.status()["ranks"]])
            job.do("stop")

    def test_events_of_nodes(self):
        """A node with ranks is lost and comes back; or the controller is, and another takes over."""
        with self.cluster(nodes=3, devices=1) as c:
            job = live.Job(c, self.dir)
            job.run("tp=3")
            job.wait_step(3)
            job.do("snapshot")
            kinds = "node_down", "node_back", "takeover"
            for wanted in (["node_down", "node_back"], ["takeover", "node_back"]):
                before = len(self.events(c, job, *kinds))
                controller = job.status()["controller"]
                victim = controller if "takeover" in wanted else next(n for n in ("n1", "n2") if n != controller)
                if victim == "n0":  # etcd's, whose end is another test's
                    continue
                c.nodes[victim].kill()
                wait_for(lambda: len(self.events(c, job, *kinds)) > before, 30 * PATIENCE, wanted[0], 0.1)
                c.restart(victim)
                wait_for(lambda: [e["kind"] for e in self.events(c, job, *kinds)[before:]] == wanted, 30 * PATIENCE, str(wanted), 0.1)
            job.do("stop")

    def test_node_that_is_waited_for(self):
        """A node goes down while a switch needs it: the progress says which and for how long, the end what to do. The node does not count as
        lost meanwhile: half of the nodes are down, so that would take about as long as the switch waits."""
        with self.cluster(nodes=2, devices=2, node_lost_after="1h") as c:
            job = live.Job(c, self.dir)
            job.run("tp=2")
            job.wait_step(3)
            argv = [harness.program("ptcctl"), "resize", job.name, "--config", "tp=4", "--wait", "--progress"]
            controller = job.status()["controller"]
            other = "n1" if controller == "n0" else "n0"
            with job.hold("start"):
                ptcctl = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                          env=c.environment({"PTC_SOCKET": c.nodes[controller].socket}))
                wait_for(lambda: job.status(node=controller)["phase"] == "starting", 30 * PATIENCE, "new ranks started", 0.02)
                c.nodes[other].kill()
            out, err = ptcctl.communicate(timeout=120 * PATIENCE)
            self.assertRegex(err, "(?m)^starting: ", "a line for each phase, where it was asked for")
            self.assertEqual((1, ""), (ptcctl.returncode, out))
            self.assertRegex(err, rf"waits for node {other}, down for \d+ s")
            self.assertRegex(err, rf"node {other} has been down for 30 s, and the switch needs it: start ptcd there")
            self.assertNotIn("30000", err)
            c.restart(other)
            job.do("stop")

    def test_silent_new_node(self):
        """A node on which a resize starts ranks says nothing any more, and closes no connection: the resize ends with its lease, and the
        ranks that train train on."""
        with self.cluster(nodes=2, devices=2, lease_ttl="2s") as c:
            job = live.Job(c, self.dir)
            job.run("tp=2")
            job.wait_step(3)
            before = job.status()
            other = "n1" if before["ranks"][0]["node"] == "n0" else "n0"
            self.assertEqual(("n1", "n0"), (other, before["controller"]))
            with job.hold("start"):
                argv = [harness.program("ptcctl"), "resize", job.name, "--config", "tp=4", "--wait"]
                ptcctl = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                          env=c.environment({"PTC_SOCKET": c.nodes["n0"].socket}))
                wait_for(lambda: job.status()["phase"] == "starting", 30 * PATIENCE, "new ranks started", 0.02)
                c.nodes[other].signal(signal.SIGSTOP)
            _, err = ptcctl.communicate(timeout=120 * PATIENCE)
            self.assertEqual(1, ptcctl.returncode)
            self.assertIn(f"node {other} is lost, and the switch was to put state there: ask again", err)
            job.wait_step(job.status()["run"]["step"] + 3)
            c.nodes[other].signal(signal.SIGCONT)
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            wait_for(lambda: c.ptcctl("resize", job.name, "--config", "tp=4", "--wait", check=False, timeout_s=60 * PATIENCE).returncode == 0,
                     60 * PATIENCE, "the resize", 0.5)
            job.do("stop")

    @unittest.skipUnless(harness.LONG, "takes long: PTC_TEST_LONG")
    def test_node_that_has_a_part(self):
        """A node with a replica of the state is down: what others have is read, and nobody is told to ask for other nodes."""
        with self.cluster(nodes=2, devices=1, node_lost_after="1h") as c:
            s = states.State()
            s.add(np.random.default_rng(self.seed), "w", "F32", (64, 4))
            job = harness.Job(c, "twice", s, self.path("twice"), [{"match": "*"}])
            job.imported("dp=2")
            c.nodes["n1"].kill()
            wait_for(lambda: self.events(c, job, "node_down"), 30 * PATIENCE, "the node's end", 0.1)
            self.assertIn("what it alone has of the state cannot be read", self.events(c, job, "node_down")[0]["text"])
            c.ptcctl("export", "twice", self.path("out.safetensors"))
            r = c.ptcctl("resize", "twice", "--config", "dp=1", "--nodes", "n0", "--wait", check=False, timeout_s=120 * PATIENCE)
            self.assertEqual(1, r.returncode)
            self.assertIn("start ptcd there and ask again; it has a part of the job's state", r.stderr)
            self.assertNotIn("--nodes", r.stderr)

    @harness.labels("repeats")
    def test_racks(self):
        """Nobody has said yet what ranks will hold: TP groups are together in a rack all the same; and they are when that is known."""
        with self.cluster(nodes=4, devices=1, racks={"n0": "a", "n2": "a", "n1": "b", "n3": "b"}) as c:
            job = live.Job(c, self.dir)
            job.run("tp=2,dp=2")

            def pairs(): # nodes of each TP group
                at = {r["rank"]: r["node"] for r in job.status()["ranks"]}
                return sorted(sorted((at[k], at[k + 1])) for k in (0, 2))

            self.assertEqual([["n0", "n2"], ["n1", "n3"]], pairs())
            at = 0
            for config in ("tp=1,dp=4", "tp=2,dp=2", "tp=1,dp=2", "tp=2,pp=2"):
                job.wait_step(at + 5)
                at = job.resize(config)["step"]
                if config.startswith("tp=2"):
                    self.assertEqual([["n0", "n2"], ["n1", "n3"]], pairs(), config)
            plan = c.json("plan", job.name, "--config", "tp=4")
            self.assertEqual((None, {"count": 1, "split": 0, "across_racks": 1}), (plan["totals"], plan["groups"]))
            job.wait_step(at + 5)
            job.do("stop")
            last = job.wait_run("stopped")["step"]
            job.check_state(self, last, self.path("end"))

    def test_primary(self):
        """By a rule dp rank 0's replica counts, whatever others hold, on its node and elsewhere."""
        with self.cluster(nodes=2, devices=2) as c:
            job = live.Job(c, self.dir, "rules", stat=1, run={"rules": [{"match": "stat", "state": {"replicate": {"dp": 0}}}]})
            job.run("tp=2,dp=2")
            job.wait_step(3)
            job.do("snapshot")  # ranks go on with what they have
            c.ptcctl("verify", job.name)
            at = job.status()["step"]
            for config in ("dp=3", "dp=1", "dp=4"):
                job.wait_step(at + 5)
                at = job.resize(config)["step"]
            job.wait_step(at + 5)
            job.do("snapshot")
            model = self.path("model.safetensors")
            c.ptcctl("export", job.name, model)
            found = load_file(model)
            self.assertEqual([float(found["steps"])] * 3, found["stat"].tolist())

    def maxima(self, **kw):
        rules = [{"match": "amax*", "state": "max"}]
        with self.cluster(nodes=4, devices=1) as c:
            job = live.Job(c, self.dir, amax="F32", **{**kw, "run": {"rules": rules, **kw.get("run", {})}})
            job.run("tp=2,dp=2")
            at = 3
            for config in ("tp=4", "pp=3", "dp=4", "tp=1", "tp=2,dp=2"):
                job.wait_step(at)
                job.do("snapshot")  # ranks go on with what they have
                c.ptcctl("verify", job.name)
                at = job.status()["step"] + 3
                job.wait_step(at)
                at = job.resize(config)["step"] + 3
                c.ptcctl("verify", job.name)
            job.wait_step(at)
            job.do("stop")
            last = job.wait_run("stopped")
            job.check_state(self, last["step"], self.path("end"))
            found = load_file(self.path("end/model.safetensors"))
            for name, want in zip(("amax", "amax.rows"), job.greatest(last["step"], last["generation"]), strict=True):
                np.testing.assert_array_equal(found[name], want)
            self.assertEqual(4 + 3 + 4 + 1 + 4, job.check_amax(self))
            alive = [row for row in job.amax_logged() if row["what"] == "stopped" and row["world"] == 4]
            self.assertGreater(len({row["amax"].tobytes() for row in alive}), len(alive) // 2, "ranks had values of their own")
            self.check_steps(job, last["step"])

    @harness.labels("repeats")
    def test_max_restart(self):
        """Of what ranks have each their own the greatest goes on, whoever had it, in whole tensors and in cut ones."""
        self.maxima()

    @harness.labels("repeats")
    def test_max_rebuild(self):
        self.maxima(mode="rebuild", run={"copy": "fast"})

    def test_max_refused(self):
        """Without the rule replicas differ; and there is a greatest of numbers that have an order only."""
        with self.cluster(nodes=2, devices=2) as c:
            job = live.Job(c, self.dir, "none", amax="F32")
            job.run("dp=2")
            job.wait_step(3)
            r = job.do("snapshot", check=False)
            self.assertEqual(1, r.returncode)
            self.assertIn('"amax": ranks 0 and 1 hold the same part of it with different bytes', r.stderr)
            job = live.Job(c, self.path("other"), "complex", amax="C64", run={"rules": [{"match": "amax", "state": "max"}]})
            r = job.run("dp=2", check=False)
            self.assertEqual(1, r.returncode, r.stderr)
            self.assertIn('tensor "amax" (C64): rule "amax" takes the greatest value of its replicas', r.stderr)

    def resizes(self, mode):
        with self.cluster(nodes=4, devices=2) as c:
            job = live.Job(c, self.dir, mode=mode)
            job.run("tp=2,pp=2,dp=2")
            at = 0
            plan = c.json("plan", job.name, "--config", "tp=4")
            self.assertIsNone(plan["totals"], "nobody has built that yet")
            self.assertEqual({mode}, {r["mode"] for r in plan["ranks"]})
            for config in ("tp=4", "tp=3,dp=2", "pp=4,dp=2", "tp=1", "tp=2,pp=2,dp=2"):
                job.wait_step(at + 10)
                summary = job.resize(config)
                self.assertGreater(summary["step"], at)
                at = summary["step"]
                self.assertGreater(summary["digests_verified"], 0)
                said = job.status()["last_resize"]
                self.assertEqual([summary[k] for k in ("id", "kind", "generation", "step", "from", "to")],
                                 [said[k] for k in ("id", "kind", "generation", "step", "from", "to")])
                first_step = summary["pause"]["first_step_ms"]
                for k, ms in summary["pause"].items():
                    self.assertAlmostEqual(ms - (first_step if k in ("total_ms", "lost_ms") else 0), said["pause"].get(k, first_step), delta=0.01)
                self.assertNotIn("first_step_ms", said["pause"])
                self.assertRegex(c.ptcctl("status", job.name).stdout,
                                 r"\nlast resize: \S+ -> %s, generation %d, step %d\n  training paused +[0-9.]+ ms\n    stop at boundary " %
                                 (re.escape(config), summary["generation"], summary["step"]))
                pause = {k: summary["pause"].pop(k + "_ms") for k in ("total", "stop", "copy", "commit", "end", "build", "move",
                                                                      "restore", "first_step")}
                self.assertAlmostEqual(pause["total"], summary["pause"].pop("lost_ms"), delta=0.01)
                self.assertEqual({}, summary["pause"])
                self.assertTrue(all(ms >= 0 for ms in pause.values()) and all(pause[k] > 0 for k in ("copy", "move", "build")), pause)
                self.assertAlmostEqual(2 * pause["total"], sum(pause.values()), delta=0.01)
            job.wait_step(at + 10)
            plan = c.json("plan", job.name, "--config", "tp=4")
            self.assertTrue(plan["totals"]["bound_exact"])
            self.assertEqual(plan["totals"]["between_nodes"], plan["totals"]["bound_any_mapping"])
            job.do("stop")
            last = job.wait_run("stopped")["step"]
            job.check_state(self, last, self.path("end"))
            self.check_steps(job, last)

    def test_resize_restart(self):
        self.resizes("restart")

    def test_resize_rebuild(self):
        self.resizes("rebuild")

    def test_rank_fails(self):
        """The job stops, says which rank and shows its log; the last snapshot is kept and can be run again."""
        with self.cluster(nodes=2, devices=2) as c:
            job = live.Job(c, self.dir, fail_at=60, fail_rank=3, run={"snapshot_every": 25})
            job.run("tp=2,dp=2")
            failed = job.wait_run("failed")
            self.assertIn("rank 3", failed["run"]["text"])
            events = c.ptcctl("events", job.name).stdout
            # at 25 and 50; at a later step, where a node's ranks were past 50 before the first was committed
            taken = [int(step) for step in re.findall(r"snapshot: snapshot \d+, step (\d+)", events)]
            self.assertEqual(25, taken[0])
            self.assertEqual(max(taken), failed["step"])
            job.check_state(self, failed["step"], self.path("a"))
            self.assertIn("giving up, as told", events)
            wait_for(lambda: not job.processes(), 20 * PATIENCE, "the end of every rank", 0.1)
            self.assertIn("giving up, as told", c.ptcctl("logs", job.name, "--rank", "3").stdout)

    def test_resize_of_failed(self):
        """Its state moves; why it failed is still known."""
        with self.cluster(nodes=1, devices=2) as c:
            job = live.Job(c, self.dir)
            job.run("tp=2")
            job.resize("tp=1")
            os.kill(job.status()["run"]["ranks"][0]["pid"], signal.SIGKILL)
            failed = job.wait_run("failed")
            self.assertIn("was killed by signal 9", failed["run"]["text"])
            job.resize("tp=2")
            moved = job.status()
            self.assertGreater(moved["generation"], failed["generation"])
            self.assertEqual(failed["run"], moved["run"])

    def test_first_start_fails(self):
        """A script that raises: one line says so, and the whole of it is in the logs and in an event, also of a ptcd started anew."""
        with self.cluster(nodes=2, devices=1) as c:
            for mode, where in (("restart", "start"), ("rebuild", "start"), ("restart", "build"), ("rebuild", "build")):
                job = live.Job(c, self.dir, name=f"{mode}-{where}", mode=mode, raise_in=where)
                r = job.run("tp=2", check=False)
                self.assertEqual(1, r.returncode)
                self.assertRegex(r.stderr, r"(?:\A|\n)ptcctl run: .*node n1: .*exited with status 1: ValueError: no such optimizer\n\Z") # behind notes
                wait_for(lambda: job.status()["phase"] in ("idle", "empty"), 20 * PATIENCE, "the end of the switch", 0.05)
                self.assertIn("no such optimizer", c.ptcctl("logs", job.name, "--rank", "1").stdout)
                self.assertNotIn("no such optimizer", c.ptcctl("logs", job.name, "--rank", "0").stdout)
                self.refused(c, "logs", job.name, "--rank", "2", contains="has ranks 0 to 1, and no rank 2")
                followed = c.ptcctl("logs", job.name, "--rank", "all", "-f", timeout_s=20 * PATIENCE).stdout
                self.assertIn("[rank 1] Traceback", followed)
                events = [json.loads(e) for e in c.ptcctl("events", job.name, "--format", "json").stdout.splitlines()]
                texts = [e["text"] for e in events if e["kind"] == "failed"]
                self.assertTrue(texts and all("Traceback" in t and "\n" in t for t in texts), events)
            c.nodes["n1"].kill()
            c.restart("n1")
            self.assertIn("no such optimizer", c.ptcctl("logs", job.name, "--rank", "1").stdout)

    @harness.labels("repeats")
    def test_copy_fast_memory(self):
        """The shared memory of copy: fast counts against the ceiling, and goes with its ranks; where it has no room, copies are lean."""
        def outside(c):
            return sum(n["store"]["outside_bytes"] for n in c.json("nodes")["nodes"])

        with self.cluster(nodes=2, devices=2) as c:
            job = live.Job(c, self.dir, mode="rebuild", run={"copy": "fast"}, rows=2000)
            job.run("tp=2,dp=2")
            state = 2 * 4 * 2000 * 6 * 8
            for config, copies in (("tp=4", 1), ("tp=2,dp=2", 2)):
                job.resize(config)
                wait_for(lambda: copies * state <= outside(c) < copies * state + 65536, 20 * PATIENCE, f"{copies} states", 0.05) # noqa: B023
            job.do("snapshot")
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("fast"))
            wait_for(lambda: outside(c) == 0, 20 * PATIENCE, "memory given back", 0.05)
        with self.cluster(nodes=1, devices=1, ceiling="460MiB") as c:
            chunks = c.json("nodes")["nodes"][0]["store"]["ceiling_bytes"]
            job = live.Job(c, self.dir, name="large", run={"copy": "fast"}, rows=chunks * 6 // 10 // (2 * 4 * 6 * 8), sleep=0.05)
            job.run("tp=1")
            job.wait_step(2)
            self.assertEqual(0, outside(c))
            with open(c.nodes["n0"].log_file) as f:
                self.assertRegex(f.read(), "copy: fast has no room within memory.ceiling here")
            job.do("stop")
            job.check_state(self, job.wait_run("stopped")["step"], self.path("lean"))

    def test_run_of_imported(self):
        """Ranks begin with what was imported, under names as export writes them; what does not fit is refused and changes nothing."""
        with self.cluster(nodes=2, devices=2) as c:
            rng = np.random.default_rng(self.seed)
            layers = [f"layer.{l}.weight" for l in range(4)]
            state = {name: rng.integers(-1000, 1000, (13, 6)).astype(np.float64) for name in (*layers, *(f"{l}:m" for l in layers))}
            state["steps"] = np.array(0, dtype=np.int64)
            save_file(state, self.path("all.safetensors"))
            save_file({name: state[name] for name in (*layers, "steps")}, self.path("some.safetensors"))
            for name, more in (("all", {}), ("some", {}), ("fields", {"fields": {"m": {"dtype": "F64"}}})):
                job = live.Job(c, self.dir, name=name, imported=1)
                with open(job.yaml) as f:
                    spec = json.load(f)
                source = "all.safetensors" if name == "all" else "some.safetensors"
                spec.update({"tensors": {"from": source}, **more,
                             "rules": [{"match": "steps"}, {"match": "*", "split": {"axis": "tp", "dim": 0, "kind": "balanced"}}]})
                with open(job.yaml, "w") as f:
                    json.dump(spec, f)
                c.ptcctl("job", "create", "-f", job.yaml)
                if name == "fields":
                    self.refused(c, "run", name, "--config", "dp=2", "--wait", contains="NAME:FIELD")
                    continue
                self.refused(c, "run", name, "--config", "dp=2", "--wait", contains=f"`ptcctl import {name} FILE` first")
                c.ptcctl("import", name, self.path(source), "--config", "tp=2")
                if name == "some":
                    before = job.status()
                    self.refused(c, "run", name, "--config", "dp=2", "--wait", contains="layer.0.weight:m")
                    wait_for(lambda: job.status()["phase"] == "idle" and not job.processes(), 20 * PATIENCE, "its end", 0.05) # noqa: B023
                    after = job.status()
                    self.assertEqual(("none", before["generation"], 0), (after["run"]["state"], after["generation"], after["step"]))
                    continue
                job.run("tp=2,dp=2")
                job.wait_step(5)
                at = job.resize("tp=3")["step"]
                job.wait_step(at + 5)
                job.do("stop")
                last = job.wait_run("stopped")["step"]
                c.ptcctl("export", name, self.path("end.safetensors"))
                found = load_file(self.path("end.safetensors"))
                self.assertEqual(sorted(state), sorted(found))
                for tensor, begin in state.items():
                    want = begin + (-last if tensor.endswith(":m") else last)
                    self.assertEqual(want.astype(begin.dtype).tobytes(), found[tensor].tobytes(), f"{tensor} after {last} steps")

    def refused_build(self, mode):
        """What the new generation's ranks refuse comes after the snapshot: the old one is started again from there, at that very step."""
        with self.cluster(nodes=2, devices=2) as c:
            job = live.Job(c, self.dir, mode=mode, raise_generation=2)
            job.run("tp=2,dp=2")
            for _ in range(2):
                job.wait_step(job.status()["run"].get("step", 0) + 5)
                before = job.status()
                self.refused(c, "resize", job.name, "--config", "tp=3", "--wait", contains="ValueError: no such optimizer",
                             timeout_s=60 * PATIENCE)
                after = wait_for(lambda: (lambda s: s if s["phase"] == "idle" and "step" in s["run"] else None)(job.status()),
                                 60 * PATIENCE, "ranks that go on", 0.05)
                self.assertEqual((1, "live", before["snapshot"] + 1), (after["generation"], after["run"]["state"], after["snapshot"]))
                self.assertNotEqual(before["run"]["incarnation"], after["run"]["incarnation"])
                self.assertGreater(after["step"], before["step"])
                spans = job.steps_logged()
                self.assertEqual({after["step"]}, {min(steps) for (_, incarnation, _), steps in spans.items()
                                                   if incarnation == after["run"]["incarnation"]}, "it goes on where it was stopped")
            job.do("stop")
            last = job.wait_run("stopped")["step"]
            job.check_state(self, last, self.path("end"))
            self.check_steps(job, last)

    @harness.labels("repeats")
    def test_refused_build_restart(self):
        self.refused_build("restart")

    def test_refused_build_rebuild(self):
        self.refused_build("rebuild")

    def wait_shown(self, path, incarnation):
        def shown():
            with open(path) as f:
                return f" incarnation {incarnation} " in f.read()

        wait_for(shown, 30 * PATIENCE, f"a line of incarnation {incarnation}")

    def check_followed(self, job):
        with open(self.path("followed")) as f:
            got = [line.rsplit(" from", 1)[0] for line in f if " of " in line]
        worlds = {}
        for generation, incarnation, rank in job.steps_logged():
            worlds.setdefault((generation, incarnation), []).append(rank)
        want = [f"[rank {rank}] generation {generation} incarnation {incarnation} rank {rank} of {len(ranks)}"
                for (generation, incarnation), ranks in worlds.items() for rank in ranks]
        self.assertEqual(sorted(want), sorted(got), "of every rank of every generation, once")

    def follows(self, mode):
        with self.cluster(nodes=2, devices=2) as c:
            job = live.Job(c, self.dir, mode=mode)
            self.refused(c, "logs", job.name, contains="does not exist")
            job.run("dp=2")
            with open(self.path("followed"), "w") as out:
                follower = job.follow_logs(out)
                self.addCleanup(follower.kill)
                for config in ("tp=2,dp=2", "tp=1", "tp=2"):
                    self.wait_shown(self.path("followed"), job.status()["run"]["incarnation"])
                    job.resize(config)
                job.do("stop")
                self.assertEqual(0, follower.wait(30 * PATIENCE), "it ends when the job is not live any more")
            self.check_followed(job)
            self.refused(c, "logs", job.name, "--rank", "7", contains="has ranks 0 to 1, and no rank 7")

    def follows_missed(self, mode):
        """Whoever follows by way of a daemon that stands still meanwhile is shown what came and went, by whom it was written."""
        with self.cluster(nodes=3, devices=2, lease_ttl="20s") as c:
            c.ptcctl("drain", "n2")
            job = live.Job(c, self.dir, mode=mode)
            job.run("tp=2,dp=2")
            with open(self.path("followed"), "w") as out:
                follower = job.follow_logs(out, "n2")
                self.addCleanup(follower.kill)
                self.wait_shown(self.path("followed"), job.status()["run"]["incarnation"])
                c.nodes["n2"].signal(signal.SIGSTOP)
                try:
                    for config in ("tp=4", "tp=3", "dp=2"):
                        job.resize(config)
                finally:
                    c.nodes["n2"].signal(signal.SIGCONT)
                self.wait_shown(self.path("followed"), job.status()["run"]["incarnation"])
                job.do("stop")
                self.assertEqual(0, follower.wait(30 * PATIENCE))
            self.check_followed(job)

    @harness.labels("repeats")
    def test_logs_follow_missed_restart(self):
        self.follows_missed("restart")

    @harness.labels("repeats")
    def test_logs_follow_missed_rebuild(self):
        self.follows_missed("rebuild")

    @harness.labels("repeats")
    def test_logs_follow_restart(self):
        self.follows("restart")

    @harness.labels("repeats")
    def test_logs_follow_rebuild(self):
        self.follows("rebuild")

    @harness.labels("repeats")
    def test_stalled(self):
        """A rank that hangs while nobody waits for it is named in an event and in status; when it goes on, that is said, too."""
        def said(c, job, kind):
            events = [json.loads(e) for e in c.ptcctl("events", job.name, "--format", "json").stdout.splitlines()]
            return [e["text"] for e in events if e["kind"] == kind]

        with self.cluster(nodes=2, devices=1, stall_after=f"{2 * SLOWED}s") as c:
            job = live.Job(c, self.dir, mode="rebuild", build_sleep=3 * SLOWED)
            job.run("dp=2")
            job.wait_step(3)
            rank = wait_for(lambda: next((r for r in job.status()["run"]["ranks"] if r["rank"] == 1 and r.get("steps_per_s")), None),
                            60 * PATIENCE, "what a step takes", 0.2)
            self.assertEqual([], said(c, job, "stalled"))
            os.kill(rank["pid"], signal.SIGSTOP)
            try:
                wait_for(lambda: [t for t in said(c, job, "stalled") if "rank 1 " in t], 60 * PATIENCE, "word of the stall", 0.2)
                run = job.status()["run"]
                self.assertGreaterEqual(run["stalled_s"], 2 * SLOWED)
                self.assertRegex(c.ptcctl("status", job.name).stdout, rf"(?m)^step {run['step']}, has not moved for \d+ s")
                text = next(t for t in said(c, job, "stalled") if "rank 1 " in t)
                self.assertRegex(text, rf"^node n1: rank 1 \(pid {rank['pid']}\) has been at step \d+ for \d+ s; a step took ")
            finally:
                os.kill(rank["pid"], signal.SIGCONT)
            wait_for(lambda: [t for t in said(c, job, "moves") if "n1" in t], 60 * PATIENCE, "word that it goes on", 0.2)
            step = job.step()
            job.wait_step(step + 3)
            self.assertNotIn("stalled_s", job.status()["run"])
            before = len(said(c, job, "stalled"))
            job.resize("dp=1")  # no stall is made of the time that a switch takes
            job.wait_step(step + 6)
            self.assertEqual(before, len(said(c, job, "stalled")))

    def test_first_step_fails(self):
        """Whoever waits for a resize is told when the job does not get through the step after it."""
        with self.cluster(nodes=1, devices=2) as c:
            job = live.Job(c, self.dir, fail_generation=2)
            job.run("dp=2")
            job.wait_step(3)
            said = self.refused(c, "resize", job.name, "--config", "tp=2", "--wait", contains="failed before every rank's first step")
            self.assertIn("giving up, as told", said)
            job.wait_run("failed")

    def test_run_dir_changed(self):
        """A ptcd that would not find its ranks says so and does not start; back at its folder it has them, and without any it moves."""
        with self.cluster(nodes=2, devices=1) as c:
            job = live.Job(c, self.dir)
            job.run("dp=2")
            job.wait_step(5)
            before = {r["rank"]: r["pid"] for r in job.status()["run"]["ranks"]}
            node, there = c.nodes["n1"], self.path("elsewhere")
            run_dir = c.config(node)["run_dir"]
            node.stop()
            c.write_config(node, run_dir=there)
            node.run()
            node.wait_gone(20 * PATIENCE)
            self.assertNotEqual(0, node.popen.returncode)
            said = node.log_tail(1)
            for what in ("run_dir: ", there, run_dir, f"pid {before[1]}"):
                self.assertIn(what, said)
            os.symlink(run_dir, self.path("link"))
            for path in (self.path("link"), run_dir):  # by another name it is the same
                c.write_config(node, run_dir=path)
                c.restart("n1")
                job.wait_step(job.wait_run("live")["run"]["step"] + 5)
                self.assertEqual(before, {r["rank"]: r["pid"] for r in job.status()["run"]["ranks"]})
            job.do("stop")
            job.wait_run("stopped")
            wait_for(lambda: not job.processes(), 20 * PATIENCE, "the end of every rank", 0.1)
            node.stop()
            c.write_config(node, run_dir=there)
            c.restart("n1")
            c.ptcctl("run", job.name, "--wait", timeout_s=60 * PATIENCE)
            job.wait_step(job.status()["step"] + 5)
            job.do("stop")
            self.check_steps(job, job.wait_run("stopped")["step"])

    def test_daemon_killed(self):
        """Ranks outlive ptcd: none is restarted, no step is lost, and the next resize works."""
        with self.cluster(nodes=2, devices=2) as c:
            job = live.Job(c, self.dir)
            job.run("tp=2,dp=2")
            job.wait_step(10)
            before = {r["rank"]: r["pid"] for r in job.status()["run"]["ranks"]}
            for name in ("n1", "n0"):
                c.nodes[name].kill()
                self.steps_without(job)
                c.restart(name)
            at = job.wait_run("live")["run"]["step"]
            job.wait_step(at + 10)
            self.assertEqual(before, {r["rank"]: r["pid"] for r in job.status()["run"]["ranks"]})
            job.resize("tp=4")
            job.wait_step(job.status()["step"] + 10)
            job.do("stop")
            last = job.wait_run("stopped")["step"]
            job.check_state(self, last, self.path("end"))
            self.check_steps(job, last)
