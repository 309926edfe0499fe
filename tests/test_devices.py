# SPDX-License-Identifier: Apache-2.0
"""Which job has which devices: two live jobs have none together unless both say so, also when they start at the same moment; and
a device is given on once the ranks that had it have ended."""
import json
import os
import signal
import threading

import harness
import live
from harness import LONG, PATIENCE, wait_for

AFTER = 2 # seconds until a node that is down counts as lost
FAST = {"lease_ttl": "2s", "node_lost_after": f"{AFTER}s"}
KEY = "/ptc/nodes-devices"


class Devices(harness.Case):
    def job(self, c, name, **kw):
        kw.setdefault("grace", "2s")
        return live.Job(c, self.path(name), name=name, **kw)

    def placed(self, job):
        """Where its ranks are, and what the cluster says that it has."""
        return sorted((r["node"], r["device"]) for r in job.status()["ranks"])

    def has(self, job):
        return sorted((n, d) for n, list_ in job.status()["devices"].items() for d in list_)

    def wait_has(self, job, want):
        wait_for(lambda: self.has(job) == sorted(want), 60 * PATIENCE, f"{job.name} has {want}", 0.05)

    def begin(self, job, config):
        """A `run` in the background; .returncode and .stderr once it is joined."""
        t = threading.Thread(target=lambda: setattr(t, "r", job.run(config, check=False)))
        t.start()
        return t

    def refused_run(self, c, job, config, *names):
        """In one line, which names the jobs and their devices."""
        if job.name not in [j["job"] for j in c.json("job", "list")["jobs"]]:
            c.ptcctl("job", "create", "-f", job.yaml)
        line = self.refused(c, "run", job.name, "--config", config, "--wait", contains="devices are needed", timeout_s=60 * PATIENCE)
        for name in names:
            self.assertIn(name, line)
        return line

    def gone(self, pids):
        return not any(os.path.exists(f"/proc/{pid}") for pid in pids)

    def test_marked_bad(self):
        """An operator's word: no ranks get the device, also not after a restart of everything, until he takes it back."""
        with self.cluster(nodes=2, devices=2) as c:
            for name, says in (("n0", "names no device"), (":1", "names no device"), ("n0:x", "names no device"),
                               ("n0:64", "names no device")):
                self.refused(c, "device", "bad", name, codes=(2,), contains=says)
            self.refused(c, "device", "bad", "n7:0", contains='node "n7" is not known')
            self.refused(c, "device", "bad", "n0:2", contains="node n0 has 2 devices, from 0 on")
            a = self.job(c, "first")
            a.run("dp=2", nodes="n0")
            self.assertEqual([("n0", 0), ("n0", 1)], self.placed(a))
            c.ptcctl("device", "bad", "n0:1") # its rank goes on
            shown = wait_for(lambda: [n.get("unhealthy") for n in c.json("nodes")["nodes"]] == ["1:marked bad", None], 30 * PATIENCE,
                             "a device that is marked")
            self.assertTrue(shown)
            self.assertEqual(2, sum(n["devices_free"] for n in c.json("nodes")["nodes"]))
            step = a.step()
            a.wait_step(step + 5)
            a.resize("dp=3")
            self.assertEqual([("n0", 0), ("n1", 0), ("n1", 1)], self.placed(a))
            self.assertIn("n0:1 is not well (marked bad)", a.resize("dp=4", check=False).stderr)
            a.do("stop")
            for node in list(c.nodes):
                c.nodes[node].kill()
            for node in c.nodes.values():
                c.start_node(node)
            c.wait_nodes(list(c.nodes))
            a.run("dp=2", nodes="n0", check=False)
            self.assertEqual("stopped", a.status()["run"]["state"])
            c.ptcctl("device", "bad", "n0:1", "--undo")
            wait_for(lambda: not any(n.get("unhealthy") for n in c.json("nodes")["nodes"]), 30 * PATIENCE, "no device that is marked")
            c.ptcctl("run", a.name, "--config", "dp=4", "--wait", timeout_s=60 * PATIENCE)
            self.assertEqual([("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)], self.placed(a))
            a.do("stop")

    def test_health_command(self):
        """A node's own command says which devices are well; one that gives no verdict changes nothing, and the log says why."""
        script, says = self.path("check"), self.path("says")
        with open(script, "w") as f:
            f.write(f'#!/bin/sh\n. {says}\n')
        os.chmod(script, 0o755)

        def say(text):
            harness.replace_file(says, text)

        def unhealthy(c):
            return [n.get("unhealthy") for n in c.json("nodes")["nodes"]]

        def listed(want):
            wait_for(lambda: [(d["health"], d.get("why")) for d in c.json("nodes", "--devices")["device_list"]] == want,
                     30 * PATIENCE, str(want), 0.2)

        def logged(c, text):
            return wait_for(lambda: text in c.nodes["n0"].log_tail(1000), 60 * PATIENCE, text)

        say("echo all is well")
        with self.cluster(nodes=2, devices=2, health={"argv": [script, "--quick"], "every": "1s", "timeout": "2s"}) as c:
            a = self.job(c, "first")
            a.run("dp=2", nodes="n0")
            self.assertEqual([None, None], unhealthy(c))
            # of one node's devices one, and of the other's, for it has the same command, too; most of the output counts for nothing
            say(f'echo "device 9: no such device"; printf "device 1: fan \\033 stands\\n" >&2; head -c 300000 /dev/zero; '
                f'sleep 1000 & echo $! > {self.path("left")}; exit 1')
            wait_for(lambda: unhealthy(c) == ["1:check", "1:check"], 60 * PATIENCE, "what the command says", 0.2)
            told = wait_for(lambda: [e["text"] for e in map(json.loads, c.ptcctl(
                "events", a.name, "--format", "json").stdout.splitlines()) if e["kind"] == "device"], 30 * PATIENCE, "an event")
            self.assertEqual("node n0: device 1 (virtual), which the job has, is not well: check (fan ? stands); the next switch "
                             "goes without it", told[0])
            listed([("ok", None), ("check", "fan ? stands")] * 2)
            with open(self.path("left")) as f:
                wait_for(lambda pid=int(f.read()): self.gone([pid]), 30 * PATIENCE, "the end of what the command had left")
            a.resize("dp=2")
            self.assertEqual([("n0", 0), ("n1", 0)], self.placed(a))
            self.assertIn("is not well (check)", a.resize("dp=3", check=False).stderr)
            for text, log in (("sleep 1000", "took longer than its `health.timeout` of 2000 ms, and was killed; that is no verdict"),
                              ("kill -9 $$", "was ended by signal 9; that is no verdict"),
                              ("/no/such/program", "could not run (exit status 127), and that is no verdict")):
                say(text)
                logged(c, log)
                self.assertEqual(["1:check", "1:check"], unhealthy(c))
            os.rename(script, script + "-away")
            logged(c, "the health command cannot be run, and that is no verdict")
            self.assertEqual(["1:check", "1:check"], unhealthy(c))
            os.rename(script + "-away", script)
            say("exit 3") # of all devices, and it says nothing
            wait_for(lambda: unhealthy(c) == ["0:check,1:check"] * 2, 60 * PATIENCE, "all devices", 0.2)
            listed([("check", "the health command has exit status 3")] * 4)
            say("exit 0")
            wait_for(lambda: unhealthy(c) == [None, None], 60 * PATIENCE, "devices that are well", 0.2)
            a.resize("dp=4")
            say(f'echo $$ > {self.path("runs")}; sleep 1000')
            wait_for(lambda: os.path.exists(self.path("runs")), 30 * PATIENCE, "a command that runs as ptcd ends")
            a.do("stop")
            a.wait_run("stopped")

    def test_one_job_each(self):
        """Placement takes free devices only, a refusal names the job and the devices, a switch keeps its own, and what a job has
        no more is given on."""
        with self.cluster(nodes=2, devices=2) as c:
            a = self.job(c, "first", run={"snapshot_every": 2}) # which is hardly ever idle
            b, d = (self.job(c, n) for n in ("second", "third"))
            a.run("dp=2")
            self.wait_has(a, self.placed(a))
            b.run("dp=1")
            self.assertFalse(set(self.placed(a)) & set(self.placed(b)))
            self.refused_run(c, d, "dp=2", "free: 1;", "job first has", "job second has",
                             *(f"{n}:{i}" for n, i in self.placed(a) + self.placed(b)))
            r = a.resize("dp=4", check=False)
            self.assertIn("job second has {}:{}".format(*self.placed(b)[0]), r.stderr)
            self.assertIn("free: 3;", r.stderr)
            a.resize("dp=3")
            self.assertFalse(set(self.placed(a)) & set(self.placed(b)))
            nodes = {n["node"]: n for n in c.json("nodes")["nodes"]}
            for node, n in nodes.items():
                self.assertEqual(0, n["devices_free"])
                want = [{"device": i, "jobs": [{"uid": 0, "job": j.name} for j in (a, b) if (node, i) in self.placed(j)]} for i in (0, 1)]
                self.assertEqual(want, n["given"])
            for row in c.json("nodes", "--devices")["device_list"]:
                self.assertEqual([j.name for j in (a, b) if (row["node"], row["device"]) in self.placed(j)], [j["job"] for j in row["jobs"]])
            # the document is written anew, as when an older version has started the ranks
            c.etcdctl("del", KEY)
            for j in (a, b):
                self.wait_has(j, self.placed(j))
            b.do("stop")
            self.wait_has(b, [])
            a.resize("dp=2") # what it no longer has is free a moment later, without a request
            d.run("dp=2")
            self.assertFalse(set(self.placed(a)) & set(self.placed(d)))
            self.wait_has(a, self.placed(a))
            a.do("stop")
            b.run("dp=2") # at once: waits for the ranks that end
            for j in (b, d):
                j.do("stop")
                self.wait_has(j, [])
            for j in (a, b, d):
                status = j.wait_run("stopped")
                j.check_state(self, status["step"], self.path(f"end-{j.name}"))
                c.ptcctl("job", "delete", j.name)

    def test_shared(self):
        """Only jobs that both say so have a device together."""
        with self.cluster(nodes=1, devices=2) as c:
            a, b = (self.job(c, n, run={"share_devices": True}) for n in ("first", "second"))
            alone = self.job(c, "alone")
            a.run("dp=2")
            b.run("dp=2")
            self.assertEqual(self.placed(a), self.placed(b))
            self.assertEqual([{"device": i, "jobs": ["first", "second"]} for i in (0, 1)],
                             [{**g, "jobs": sorted(j["job"] for j in g["jobs"])} for g in c.json("nodes")["nodes"][0]["given"]])
            self.refused_run(c, alone, "dp=1", "free: 0;", "n0:0", "n0:1", "`share_devices: true`")
            a.do("stop")
            self.wait_has(a, [])
            self.refused_run(c, alone, "dp=1", "job second has n0:0, n0:1")
            b.do("stop")
            alone.run("dp=2")
            self.refused_run(c, a, "dp=1", "job alone has n0:0, n0:1")
            if os.getuid() == 0:
                self.check_stranger(c, "alone")
            alone.do("stop")
            self.wait_has(alone, [])

    def check_stranger(self, c, name):
        """Another user learns that root has the devices, and not the name of root's job."""
        prefix = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", "--"]
        job = self.job(c, "theirs")
        os.chmod(job.dir, 0o755)
        r = c.ptcctl("run", "-f", job.yaml, "--config", "dp=1", "--wait", prefix=prefix, check=False, timeout_s=60 * PATIENCE)
        self.assertEqual(1, r.returncode)
        self.assertIn("a job of user 0 has n0:0, n0:1;", r.stderr)
        node = json.loads(c.ptcctl("nodes", "--format", "json", prefix=prefix).stdout)["nodes"][0]
        self.assertEqual([{"device": i, "jobs": [{"uid": 0}]} for i in (0, 1)], node["given"])
        self.assertEqual([0, 0], [r["uid"] for d in node["device_list"] for r in d["ranks"]])
        self.assertNotIn(name, r.stderr + json.dumps([node["given"], node["device_list"]]))
        self.assertIn(name, c.ptcctl("nodes", "--devices").stdout)
        c.ptcctl("job", "delete", job.name, prefix=prefix)

    def test_claimed_meanwhile(self):
        """Two switches were planned for one device before either was written down: the second finds who has it, and starts
        nothing. One that wants another device is written although the document has changed."""
        points, rules = self.path("points"), self.path("fault")

        def arm(rule=""):
            harness.replace_file(rules, rule)

        def held():
            with open(points) as f:
                return "etcd.intent.before" in f.read().split()
        arm()
        env = {"n1": {"PTC_FAULT_FILE": rules, "PTC_FAULT_LIST": points}}
        with self.cluster(nodes=2, devices=1, env=env) as c:
            for wants, ok in (("n0", False), ("n1", True)):
                a, b = (self.job(c, f"{n}-{wants}", grace="1s") for n in ("first", "second"))
                c.ptcctl("job", "create", "-f", b.yaml, node="n1") # and so b's controller
                self.assertEqual("n1", wait_for(lambda: b.status()["controller"], 60 * PATIENCE, "a controller", 0.05)) # noqa: B023
                open(points, "w").close()
                arm("etcd.intent.before=hold")
                results = []
                t = threading.Thread(target=lambda: results.append(c.ptcctl( # noqa: B023
                    "run", b.name, "--config", "dp=1", "--nodes", wants, "--wait", node="n1", check=False, timeout_s=120 * PATIENCE))) # noqa: B023
                t.start()
                wait_for(held, 60 * PATIENCE, "the second's transaction", 0.05)
                c.ptcctl("run", "-f", a.yaml, "--config", "dp=1", "--nodes", "n0", "--wait", timeout_s=120 * PATIENCE)
                arm()
                t.join()
                self.assertEqual(0 if ok else 1, results[0].returncode, results[0].stderr)
                if not ok:
                    self.assertIn(f"job {a.name} has got devices of this switch meanwhile (n0:0)", results[0].stderr)
                self.assertEqual([("n0", 0)], self.has(a))
                self.assertEqual([("n1", 0)] if ok else [], self.has(b))
                for j in (a, b):
                    c.ptcctl("stop", j.name, check=j is a or ok, timeout_s=60 * PATIENCE)
                    self.wait_has(j, [])
                    c.ptcctl("job", "delete", j.name)

    @harness.labels("repeats")
    def test_same_moment(self):
        """Jobs that are started at the same moment through daemons of other nodes, of which each becomes the controller of its
        own: devices for one of them only. Exactly one runs; the other is told whose the devices are."""
        with self.cluster(nodes=3, devices=1) as c:
            lost = 0
            for n in range(20 if LONG else 4):
                jobs = [self.job(c, f"job-{n}-{i}", grace="1s") for i in range(3)]
                for i, j in enumerate(jobs):
                    c.ptcctl("job", "create", "-f", j.yaml, node=f"n{i}")
                at = threading.Barrier(3)
                results = [None] * 3

                def start(i):
                    at.wait() # noqa: B023
                    results[i] = c.ptcctl("run", jobs[i].name, "--config", "dp=2", "--wait", node=f"n{i}", check=False, # noqa: B023
                                          timeout_s=120 * PATIENCE)
                threads = [threading.Thread(target=start, args=(i,)) for i in range(3)]
                for t in threads:
                    t.start()
                for t in threads:
                    t.join()
                won = [i for i, r in enumerate(results) if r.returncode == 0]
                self.assertEqual(1, len(won), [r.stderr for r in results])
                for i, r in enumerate(results):
                    if i not in won:
                        self.assertRegex(r.stderr, r"job job-\d+-\d (has n\d:0|has got devices of this switch meanwhile \(n\d:0)")
                        lost += "meanwhile" in r.stderr
                        self.wait_has(jobs[i], [])
                self.wait_has(jobs[won[0]], self.placed(jobs[won[0]]))
                jobs[won[0]].do("stop")
                self.wait_has(jobs[won[0]], [])
                for j in jobs:
                    c.ptcctl("job", "delete", j.name)
            print(f"{lost} were refused by the transaction, the others by the look before it", flush=True)

    def test_ranks_that_do_not_end(self):
        """Devices are free once the ranks have ended, however long that takes, and not when the job is called stopped."""
        with self.cluster(nodes=1, devices=1) as c:
            a, b = self.job(c, "first", grace="6s"), self.job(c, "second")
            a.run("dp=1")
            a.wait_step(3)
            pids = a.processes()
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            c.ptcctl("stop", a.name, "--now", timeout_s=60 * PATIENCE)
            self.assertFalse(self.gone(pids))
            self.assertEqual([("n0", 0)], self.has(a))
            b.run("dp=1")
            self.assertTrue(self.gone(pids))
            self.assertEqual([("n0", 0)], self.has(b))
            self.wait_has(a, [])
            b.do("stop")

    def lose_with_ranks(self, c, job):
        """n1's daemon is gone, and its ranks stand: the job goes on elsewhere, and they live. Their ids."""
        node = c.nodes["n1"]
        pids = [r["pid"] for r in job.status()["run"]["ranks"] if r["node"] == "n1"]
        self.assertTrue(pids)
        node.kill()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: (lambda s: s["run"]["state"] == "live" and "n1" not in [r["node"] for r in s["ranks"]])(job.status()),
                 60 * PATIENCE, "a job without n1", 0.1)
        self.assertFalse(self.gone(pids))
        return pids

    @harness.labels("repeats")
    def test_node_back_with_ranks(self):
        """A lost node comes back with ranks that nobody has ended: its devices are the old job's until they have. Of a job that has
        been deleted meanwhile, too."""
        for deleted in (False, True):
            with self.subTest(deleted=deleted), self.cluster(nodes=3, devices=1, **FAST) as c:
                tag = "gone" if deleted else "kept"
                a = self.job(c, f"first-{tag}", together="hang", grace="5s", run={"snapshot_every": 10, "elastic": {"min_gpus": 1}})
                b = self.job(c, f"second-{tag}")
                a.run("dp=2")
                if "n1" not in [n for n, _ in self.placed(a)]:
                    self.skipTest("no rank on n1")
                wait_for(lambda: a.status()["snapshot"], 60 * PATIENCE, "a snapshot", 0.05) # noqa: B023
                pids = self.lose_with_ranks(c, a)
                self.assertIn(("n1", 0), self.has(a))
                if deleted:
                    a.do("stop")
                    c.ptcctl("job", "delete", a.name)
                c.restart("n1")
                if not deleted:
                    self.wait_has(a, self.placed(a)) # the old ranks have ended
                b.run("dp=3" if deleted else "dp=1")
                self.assertTrue(self.gone(pids))
                if not deleted:
                    self.assertFalse(set(self.placed(a)) & set(self.placed(b)))
                    a.do("stop")
                b.do("stop")

    @harness.labels("repeats")
    def test_recovery_takes_free_devices(self):
        """A job that has lost a node goes on where nobody else is, also where that is less than it had."""
        with self.cluster(nodes=3, devices=1, **FAST) as c:
            a = self.job(c, "first", together="hang", run={"snapshot_every": 10, "elastic": {"min_gpus": 1}})
            b = self.job(c, "second")
            a.run("dp=2")
            b.run("dp=1")
            where = self.placed(b)
            wait_for(lambda: a.status()["snapshot"], 60 * PATIENCE, "a snapshot", 0.05)
            victim = next(n for n, _ in self.placed(a) if n != "n0")
            keep = next(n for n, _ in self.placed(a) if n != victim)
            if victim == c.json("status", b.name)["jobs"][0]["controller"]:
                b.wait_step(3)
            c.power_off(victim)
            wait_for(lambda: (lambda s: s["run"]["state"] == "live" and len(s["ranks"]) == 1)(a.status()), 60 * PATIENCE,
                     "a job of one rank", 0.1)
            self.assertEqual([(keep, 0)], self.placed(a))
            self.assertEqual(where, self.placed(b))
            self.assertEqual("live", b.status()["run"]["state"])
            c.restart(victim)
            self.wait_has(a, self.placed(a))
            a.do("stop")
            b.do("stop")

    @harness.labels("repeats")
    def test_killed_at_any_moment(self):
        """The daemons die around the transactions that give devices and take them back: what is said in the end is what is."""
        for point in ("etcd.intent.before", "etcd.intent.after", "etcd.devices.before", "etcd.devices.after"):
            with self.subTest(point=point), self.cluster(nodes=1, devices=1) as c:
                a, b = (self.job(c, f"{n}-{point.replace('.', '-')}") for n in ("first", "second"))
                c.ptcctl("job", "create", "-f", a.yaml)
                c.ptcctl("job", "create", "-f", b.yaml)
                if "devices" in point:
                    a.run("dp=1")
                c.nodes["n0"].stop()
                c.restart("n0", env={"PTC_FAULT": f"{point}=kill"})
                c.ptcctl(*(("stop", a.name) if "devices" in point else ("run", a.name, "--config", "dp=1", "--wait")), check=False,
                         timeout_s=60 * PATIENCE)
                wait_for(lambda: not c.nodes["n0"].pid(), 60 * PATIENCE, "the crash", 0.1)
                c.restart("n0")
                if "devices" not in point:
                    a.run("dp=1", check=False)
                    a.wait_step(1)
                    self.refused_run(c, b, "dp=1", a.name)
                    a.do("stop")
                b.run("dp=1")
                self.assertEqual([("n0", 0)], self.has(b))
                self.wait_has(a, [])
                b.do("stop")
                self.wait_has(b, [])
