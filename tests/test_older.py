# SPDX-License-Identifier: Apache-2.0
"""keep: {last, every}: snapshots beside the committed one are listed, read, exported and dropped as the job says; and a job goes
back to one of them."""
import concurrent.futures
import json
import os
import re
import shutil
import subprocess

import harness
import live
import order_oracle as order
import test_fuse
import test_proof
from harness import PATIENCE, wait_for
from safetensors.numpy import load_file


class Older(harness.Case):
    def listed(self, c, job):
        """[(snapshot, step)], the committed one first."""
        rows = [r for r in c.json("snapshots", job.name)["snapshots"] if r["state"] != "bridge"]
        self.assertEqual(["committed"] + ["kept"] * (len(rows) - 1), [r["state"] for r in rows])
        for row in rows:
            self.assertNotIn("lost", row)
        return [(r["snapshot"], r["step"]) for r in rows]

    def snapshot(self, c, job, beyond):
        """One more, of a later step than that."""
        job.wait_step(beyond + 2)
        job.do("snapshot")
        return self.listed(c, job)[0]

    def check_all(self, c, job, what):
        """Every byte of all that is listed, by number and by step."""
        for snapshot, step in self.listed(c, job):
            job.check_state(self, step, self.path(f"{what}-{snapshot}"), f"snap-{snapshot}")

    def document(self, c, job):
        text = c.etcdctl("get", "--print-value-only", f"/ptc/jobs/{job.status()['uuid']}/older").stdout
        return [(o["snapshot"], o["step"]) for o in json.loads(text)["snapshots"]] if text.strip() else []

    def test_kept(self):
        """The last three are there, through a resize, a stop and daemons that are killed; a fourth goes."""
        with self.cluster(nodes=2, devices=2) as c:
            job = live.Job(c, self.dir, sleep=0.01, run={"keep": {"last": 3}})
            job.run("tp=2,dp=2")
            made = [self.snapshot(c, job, 0)]
            self.assertEqual([], self.document(c, job))
            for _ in range(2):
                made.insert(0, self.snapshot(c, job, made[0][1]))
            self.assertEqual(made, self.listed(c, job))
            self.check_all(c, job, "three")
            job.check_state(self, made[1][1], self.path("step"), str(made[1][1]))
            self.assertEqual([list(o) for o in reversed(made[1:])], job.status()["kept"])
            job.resize("tp=3")  # its own snapshot is one more, and the layout is another one
            made.insert(0, self.listed(c, job)[0])
            self.assertEqual(made[:3], self.listed(c, job))
            self.check_all(c, job, "resized")
            self.check_files(c, job, made[:3], made[3])
            self.refused(c, "export", job.name, self.path("x.safetensors"), "--snapshot", f"snap-{made[3][0]}",
                         contains=f"has no snapshot snap-{made[3][0]}")
            for node in ("n1", "n0"):  # one that has only a part of what is kept, and the controller or not
                c.nodes[node].kill()
                c.restart(node)
                c.wait_nodes(sorted(c.nodes), 30 * PATIENCE)
            job.wait_step(made[0][1] + 2)
            self.check_all(c, job, "restarted")
            job.do("stop")
            made.insert(0, self.listed(c, job)[0])
            self.assertEqual(made[:3], self.listed(c, job))
            self.assertEqual(list(reversed(made[1:3])), self.document(c, job))
            self.check_all(c, job, "stopped")
            # each snapshot has chunks of its own: what is not kept is not there, also on a node that has left the job since
            wait_for(lambda: all(n["store"]["used_bytes"] <= 3 << 20 for n in c.json("nodes")["nodes"]), 30 * PATIENCE, "room", 0.1)
            c.ptcctl("job", "delete", job.name)

    def check_files(self, c, job, there, gone):
        """The job's files have a directory for each snapshot, and the one that has gone has none."""
        if not test_fuse.CAN_MOUNT:
            return
        mount = test_fuse.Mount(self, c)
        state = mount.path(job.name, "state")
        self.assertEqual(sorted([f"snap-{n}-step-{s}" for n, s in there] + ["latest"]), sorted(os.listdir(state)))
        self.assertFalse(os.path.exists(os.path.join(state, f"snap-{gone[0]}-step-{gone[1]}")))
        for n, s in there:
            found = load_file(os.path.join(state, f"snap-{n}-step-{s}", "model.safetensors"))
            for name, array in job.expected(s)["param"].items():
                self.assertEqual(array.tobytes(), found[name].tobytes(), f"{name} of snap-{n}")
        mount.stop()

    def back(self, c, job, to, *more):
        """ptcctl rollback of a job that runs: how it ended."""
        c.ptcctl("rollback", job.name, "--to", to, *more, timeout_s=120 * PATIENCE)
        return self.listed(c, job)[0]

    def test_rollback(self):
        """A job that runs goes back twice, to other layouts' snapshots: tensors, blobs, cursors and the ledger are that step's, and
        neither file names nor the ledger tell two things by one name."""
        with self.cluster(nodes=2, devices=2) as c:
            job = live.Job(c, self.dir, sleep=0.01, run={"keep": {"last": 9}}, data="1000,7,24,2", blobs="rng,rng@tp")
            job.run("tp=2,dp=2")
            made = [self.snapshot(c, job, 0)]
            made.append(self.snapshot(c, job, made[-1][1]))
            job.resize("tp=3")
            made.append(self.listed(c, job)[0])
            made.append(self.snapshot(c, job, made[-1][1]))
            at = self.back(c, job, str(made[1][1]))
            self.assertEqual(made[1][1], at[1])
            self.assertGreater(at[0], made[-1][0])
            self.assertEqual([at] + made[::-1], self.listed(c, job))  # also what it has gone back from
            job.wait_step(made[1][1] + 3)  # ranks check what they begin with (trainer.py, check_restored)
            self.check_all(c, job, "back")
            made += [at, self.snapshot(c, job, made[1][1])]
            test_proof.proved(self, c, job)  # steps that were trained twice are in it once, as the last ranks had them
            job.resize("tp=2")
            made.append(self.listed(c, job)[0])
            at = self.back(c, job, f"snap-{made[3][0]}")  # forth again, to what it had gone back from
            self.assertEqual(made[3][1], at[1])
            self.assertGreater(at[0], made[-1][0])
            job.wait_step(made[3][1] + 3)
            self.check_all(c, job, "forth")
            job.do("stop")
            last = self.listed(c, job)[0]
            test_proof.proved(self, c, job)
            names = [f"snap-{n}-step-{s}" for n, s in self.listed(c, job)]
            self.assertEqual(len(names), len(set(names)))
            c.ptcctl("rollback", job.name, "--to", f"snap-{made[1][0]}", timeout_s=60 * PATIENCE)  # one that does not run
            self.assertEqual(("stopped", made[1][1]), (job.status()["run"]["state"], job.status()["step"]))
            job.check_state(self, made[1][1], self.path("stopped"))
            self.assertEqual(last[0] + 1, job.status()["snapshot"])
            self.refused(c, "rollback", job.name, "--to", "snap-999", contains="no older snapshot snap-999; it has snap-")
            self.refused(c, "rollback", job.name, codes=(2,), contains="needs --to")
            job.resize("tp=3")  # the newest layouts are known, although the snapshot is from before it
            job.check_state(self, made[1][1], self.path("resized"))

    N, BATCH = 37, 10

    def expect_skips(self, job):
        """From now on ranks take their samples behind what their cursor says that was skipped."""
        open(os.path.join(job.logs, "skips"), "w").close()

    def had(self, job, generation, step):
        """What ranks of that generation wrote down for a step."""
        found = {}
        for log in os.listdir(job.logs):
            if not log.endswith(".jsonl"):
                continue
            with open(os.path.join(job.logs, log)) as f:
                for line in map(json.loads, (text for text in f if text.endswith("\n"))):
                    if (line["generation"], line["step"]) == (generation, step) and line["first"]:
                        found[line["dp_rank"]] = line["samples"]
        return sorted(sum(found.values(), []))

    def check_skipped(self, c, job, at, end):
        """Since the state of step `at` came back, ranks have had what follows position `end`: by docs/order.md, by what they wrote
        down, and by the proof, which names what was skipped, and nothing else of the given-up steps."""
        self.snapshot(c, job, at + 2)
        _, _, cursor = test_proof.proved(self, c, job)
        skips = [i for i, e in enumerate(cursor["generations"]) if e["skipped"]]
        last, now = cursor["generations"][skips[-1]], cursor["generations"][skips[-1] + 1]
        self.assertEqual(([at, at], [at * self.BATCH, end], 0), (last["steps"], last["positions"], last["dp"]))
        self.assertEqual((at, end), (now["steps"][0], now["positions"][0]))
        self.assertLess(last["generation"], now["generation"])
        for step in range(at, at + 2):
            first = end + (step - at) * self.BATCH
            want = [order.mixed([(self.N, 1, True, 0)], self.seed, p)[1] for p in range(first, first + self.BATCH)]
            self.assertEqual(sorted(want), self.had(job, now["generation"], step), step)
        names = [(e["generation"], s) for e in cursor["generations"] for s in range(*e["steps"])]
        self.assertEqual(len(names), len(set(names)))
        return cursor

    def test_skip_data(self):
        """A job that runs goes back twice, and on in its data: the state is the older snapshot's, byte for byte, and samples are those
        behind what it had come to, also after a resize. Without --skip-data they are those of the snapshot again."""
        with self.cluster(nodes=2, devices=2) as c:
            job = live.Job(c, self.dir, sleep=0.01, run={"keep": {"last": 20}}, loader=1, blobs="rng,rng@tp",
                           data=f"{self.N},{self.seed},{self.BATCH},2")
            job.run("tp=2,dp=2")
            first = self.snapshot(c, job, 18)
            job.resize("tp=1,dp=3")
            job.wait_step(first[1] + 20)
            self.expect_skips(job)
            at = self.back(c, job, str(first[1]), "--skip-data")
            self.assertEqual(first[1], at[1])
            stopped = self.listed(c, job)[1]  # ranks were ended with a snapshot
            self.assertGreaterEqual(stopped[1], first[1] + 20)
            cursor = self.check_skipped(c, job, at[1], stopped[1] * self.BATCH)
            self.assertEqual((stopped[1] - at[1]) * self.BATCH, cursor["skipped"])
            self.check_all(c, job, "skipped")
            text = c.ptcctl("dataset", "proof", job.name).stdout
            skipped = f"{at[1] * self.BATCH}-{stopped[1] * self.BATCH - 1}"
            self.assertRegex(text, rf"(?m)^\d+ +skipped +{skipped} +no rank had these: ptcctl rollback --skip-data at step {at[1]}$")
            job.resize("tp=2,dp=2")  # the offset stays
            job.wait_step(job.step() + 3)
            again = self.back(c, job, f"snap-{first[0]}", "--skip-data")
            stopped_again = self.listed(c, job)[1]
            self.assertEqual(first[1], again[1])
            end = stopped_again[1] * self.BATCH + cursor["skipped"]
            cursor = self.check_skipped(c, job, first[1], end)
            self.assertEqual(end - first[1] * self.BATCH, cursor["skipped"])  # of this state: from the snapshot to there, once
            job.do("stop")
            last, position = self.listed(c, job)[0], self.position(c, job)
            self.assertEqual(last[1] * self.BATCH + cursor["skipped"], position)
            c.ptcctl("rollback", job.name, "--to", f"snap-{again[0]}", "--skip-data", timeout_s=60 * PATIENCE)  # it does not run
            self.assertEqual((first[1], position), (self.listed(c, job)[0][1], self.position(c, job)))
            c.ptcctl("rollback", job.name, "--to", f"snap-{first[0]}", timeout_s=60 * PATIENCE)
            self.assertEqual((first[1], first[1] * self.BATCH), (self.listed(c, job)[0][1], self.position(c, job)))
            c.ptcctl("run", job.name, "--wait", timeout_s=60 * PATIENCE)
            self.snapshot(c, job, first[1])
            _, _, cursor = test_proof.proved(self, c, job)
            self.assertEqual((0, False), (cursor["skipped"], any(e["skipped"] for e in cursor["generations"])))
            self.check_all(c, job, "all")

    def position(self, c, job):
        """How many samples the committed state has consumed or skipped, and that its ledger is one."""
        cursor, = json.loads(c.ptcctl("dataset", "proof", job.name, "--format", "json").stdout)["cursors"]
        self.assertTrue(cursor["exactly_once"], cursor)
        return cursor["position"]

    def test_skip_refused(self):
        """What cannot be skipped is said while ranks train on: nothing says where the job is in its data; the snapshot that ranks stop
        with would take the place of the one that is wanted."""
        with self.cluster(nodes=1, devices=2) as c:
            job = live.Job(c, self.dir, sleep=0.01, run={"keep": {"last": 2}}, megatron=1)
            job.run("dp=2")
            first = self.snapshot(c, job, 0)
            self.snapshot(c, job, first[1])
            pids = sorted(job.processes())
            self.refused(c, "rollback", job.name, "--to", str(first[1]), "--skip-data", contains="has no cursor and no loader's state")
            self.assertEqual((pids, "live"), (sorted(job.processes()), job.status()["run"]["state"]))
            c.ptcctl("stop", job.name, "--now", timeout_s=60 * PATIENCE)
            os.mkdir(self.path("other"))
            job = live.Job(c, self.path("other"), name="other", sleep=0.01, run={"keep": {"last": 2}}, data="37,7,10,2")
            job.run("dp=2")
            first = self.snapshot(c, job, 0)
            second = self.snapshot(c, job, first[1])
            pids = sorted(job.processes())
            self.refused(c, "rollback", job.name, "--to", str(first[1]), "--skip-data",
                         contains=f"would not keep snapshot {first[0]} beside the one that its ranks stop with")
            self.assertEqual((pids, "live"), (sorted(job.processes()), job.status()["run"]["state"]))
            c.ptcctl("stop", job.name, "--now", timeout_s=60 * PATIENCE)
            c.ptcctl("rollback", job.name, "--to", str(first[1]), "--skip-data", timeout_s=60 * PATIENCE)
            self.assertEqual((first[1], second[1] * 10), (self.listed(c, job)[0][1], self.position(c, job)))

    @harness.labels("repeats")
    def test_room(self):
        """Where there is no room for all that is to be kept, the oldest goes, and the next snapshots find room."""
        with self.cluster(nodes=1, devices=2, ceiling="423MiB") as c:
            room = c.json("nodes")["nodes"][0]["memory"]["chunks_bytes"]
            job = live.Job(c, self.dir, rows=room // 5 // (4 * 2 * 6 * 8), run={"keep": {"last": 20}, "snapshot_every": 2})
            job.run("tp=2")
            wait_for(lambda: self.events(c, job, "snapshot_dropped"), 60 * PATIENCE, "a snapshot that goes", 0.1)
            first, = re.findall(r"snapshot (\d+) of step \d+ is not kept", self.events(c, job, "snapshot_dropped")[0]["text"])
            failed = len(self.events(c, job, "aborted"))
            at = self.listed(c, job)[0]
            wait_for(lambda: self.listed(c, job)[0][0] >= at[0] + 3, 60 * PATIENCE, "snapshots after that", 0.1)
            job.do("stop")
            listed = self.listed(c, job)
            self.assertGreater(len(listed), 1)
            self.assertNotIn(int(first), [n for n, _ in listed])
            self.assertLessEqual(len(self.events(c, job, "aborted")), failed + 1)  # it remembers how many there is room for
            self.check_all(c, job, "room")
            self.assertLessEqual(c.json("nodes")["nodes"][0]["store"]["used_bytes"], room)

    def events(self, c, job, kind):
        lines = c.ptcctl("events", job.name, "--format", "json").stdout.splitlines()
        return [e for e in map(json.loads, lines) if e["kind"] == kind]

    def test_source_lost(self):
        """A node that alone has a part of an older snapshot is gone: a rollback to it is refused while the ranks train on, and when
        they do not run."""
        with self.cluster(nodes=3, devices=1, lease_ttl="2s", node_lost_after="2s") as c:
            job = live.Job(c, self.dir, sleep=0.01, run={"keep": {"last": 9}})
            job.run("tp=2", nodes="n1,n2")
            first = self.snapshot(c, job, 0)
            job.resize("tp=2", nodes="n0,n1")
            second = self.snapshot(c, job, first[1])
            self.snapshot(c, job, second[1])
            pids = sorted(job.processes())
            c.power_off("n2")
            wait_for(lambda: next(n for n in c.json("nodes")["nodes"] if n["node"] == "n2").get("lost"), 60 * PATIENCE, "n2 lost")
            line = f"cannot go back to snapshot {first[0]} now: .*layer"
            self.assertRegex(self.refused(c, "rollback", job.name, "--to", f"snap-{first[0]}"), line)
            self.assertEqual((pids, "live"), (sorted(job.processes()), job.status()["run"]["state"]))
            c.ptcctl("rollback", job.name, "--to", f"snap-{second[0]}", timeout_s=120 * PATIENCE)  # another one that is whole
            self.assertEqual((second[1], "live"), (job.status()["step"], job.status()["run"]["state"]))
            job.do("stop")
            before = self.listed_numbers(c, job)
            self.assertRegex(self.refused(c, "rollback", job.name, "--to", f"snap-{first[0]}"), line)
            self.assertEqual(before, self.listed_numbers(c, job))
            c.restart("n2")
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            c.ptcctl("rollback", job.name, "--to", f"snap-{first[0]}", timeout_s=60 * PATIENCE)
            job.check_state(self, first[1], self.path("back"))

    def rollback_that_waits(self, c, job, to, ranks):
        """A rollback that has said that it waits for n1, whose ranks run on."""
        log = open(self.path("rollback.err"), "w+")
        self.addCleanup(log.close)
        asked = subprocess.Popen([harness.program("ptcctl"), "rollback", job.name, "--to", f"snap-{to}", "--progress"], stderr=log,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=c.environment({"PTC_SOCKET": c.nodes["n0"].socket}))

        def said():
            with open(log.name) as f:
                return re.search(r"waits for node n1, down for \d+ s", f.read())
        wait_for(said, 30 * PATIENCE, "that it waits for n1", 0.1)
        self.assertIsNone(asked.poll())
        self.assertEqual(ranks, ranks & set(job.processes()))
        return asked, log.name

    @harness.labels("repeats")
    def test_waits_for_ranks(self):
        """The job is ended while a node's ptcd is gone, and the ranks there run on: a rollback waits for that node, and names it. Once
        the node is back its ranks end, and then the rollback goes on. If it is lost instead, the rollback ends, and says so."""
        with self.cluster(nodes=2, devices=2, lease_ttl="2s", node_lost_after="1h") as c:
            job = live.Job(c, self.dir, sleep=0.01, run={"keep": {"last": 9}})
            job.run("tp=2,dp=2")
            for how in ("back", "lost"):
                first = self.snapshot(c, job, job.status()["step"])
                self.snapshot(c, job, first[1])
                ranks = set(job.processes()) & c.machine("n1")
                self.assertTrue(ranks)
                c.nodes["n1"].kill()
                wait_for(lambda: "n1" not in (c.nodes_up() or {"n1"}), 30 * PATIENCE, "the node listed as down", 0.1)
                c.ptcctl("stop", job.name, "--now", timeout_s=60 * PATIENCE)
                self.assertEqual("stopped", job.status()["run"]["state"])
                asked, err = self.rollback_that_waits(c, job, first[0], ranks)
                if how == "back":
                    c.restart("n1")
                    self.assertEqual(0, asked.wait(60 * PATIENCE))
                    wait_for(lambda: not ranks & set(job.processes()), 30 * PATIENCE, "the end of the ranks", 0.1)
                    self.assertEqual(first[1], job.status()["step"])
                    job.check_state(self, first[1], self.path("back"))
                    c.ptcctl("run", job.name, "--wait", timeout_s=60 * PATIENCE)
                    continue
                c.ptcctl("node", "lost", "n1")
                self.assertEqual(1, asked.wait(60 * PATIENCE))
                with open(err) as f:
                    self.assertRegex(f.read(), "node n1 is lost, and the rollback was to put state there: ask again")
                self.assertEqual(ranks, ranks & set(job.processes()))
                c.ptcctl("rollback", job.name, "--to", f"snap-{first[0]}", timeout_s=60 * PATIENCE)  # n0 has a replica of all
                self.assertEqual({"n0"}, {r["node"] for r in job.status()["ranks"]})
                job.check_state(self, first[1], self.path("without"))
                self.assertEqual(ranks, ranks & set(job.processes()))
                c.restart("n1")
                wait_for(lambda: not ranks & set(job.processes()), 60 * PATIENCE, "the end of ranks that nobody has any more", 0.1) # noqa: B023

    def listed_numbers(self, c, job):
        return [r["snapshot"] for r in c.json("snapshots", job.name)["snapshots"]]

    @harness.labels("repeats")
    @harness.labels("repeats")
    def test_chunks_come_back(self):
        """A node whose chunk files are away when its ptcd starts has parts of older snapshots. Neither copies nor a switch begin
        there anew, and all is there again with the files."""
        with self.cluster(nodes=3, devices=1, lease_ttl="2s", node_lost_after="2s") as c:
            job = live.Job(c, self.dir, sleep=0.01, run={"keep": {"last": 3}, "copies": {"count": 2}})
            job.run("tp=2")
            self.snapshot(c, job, self.snapshot(c, job, 0)[1])
            first, second = sorted({r["node"] for r in job.status()["ranks"]})
            job.resize("tp=1", nodes=first)
            wait_for(lambda: job.status()["copies"]["fewest"] == 2, 60 * PATIENCE, "copies", 0.1)
            aside = c.nodes[second].chunk_dir + "-away"
            c.nodes[second].kill()
            os.rename(c.nodes[second].chunk_dir, aside)
            c.restart(second)
            ranks = set(job.processes())
            for config in "tp=2", "dp=2":  # what ranks hold under dp=2 is not known yet
                line = self.refused(c, "resize", job.name, "--config", config, "--nodes", f"{first},{second}", "--wait",
                                    contains=f"check: node {second}: ", timeout_s=120 * PATIENCE)
                self.assertRegex(line, "its chunks cannot be used: .* the job keeps .*: name other nodes")
            self.assertEqual(ranks, set(job.processes()), "ranks were stopped for a switch that could not be made")
            wait_for(lambda: job.status()["copies"]["fewest"] == 2, 60 * PATIENCE, "copies without it", 0.1)
            c.nodes[second].kill()
            shutil.rmtree(c.nodes[second].chunk_dir)
            os.rename(aside, c.nodes[second].chunk_dir)
            c.restart(second)
            self.assertIn("tp=2", [r["config"] for r in c.json("snapshots", job.name)["snapshots"]])
            self.check_all(c, job, "back")

    def test_killed_in_a_rollback(self):
        """The controller dies before or after a transaction of a rollback. From the intent on, another one goes on to the end."""
        self.killed_in_rollbacks()

    @harness.labels("repeats")
    def test_killed_while_it_skips(self):
        """The same with --skip-data: what has gone back has its data skipped, and what has not has not."""
        self.killed_in_rollbacks("--skip-data")

    def killed_in_rollbacks(self, *skip):
        with self.cluster(nodes=3, devices=1, up=False, lease_ttl="2s") as c:
            for node in c.nodes.values():
                self.arm(node)
                c.start_node(node, {"PTC_FAULT_FILE": os.path.join(node.dir, "fault")})
            c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
            job = live.Job(c, self.dir, sleep=0.01, run={"keep": {"last": 30}}, data=f"{self.N},{self.seed},{self.BATCH},2")
            c.ptcctl("job", "create", "-f", job.yaml, node="n1")
            c.ptcctl("run", job.name, "--config", "tp=2", "--nodes", "n1,n2", "--wait", timeout_s=60 * PATIENCE)
            made = [self.snapshot(c, job, 0)]
            made.append(self.snapshot(c, job, made[-1][1]))
            job.do("stop")
            points = ["etcd.intent.before", "etcd.intent.after", "etcd.commit2.before", "etcd.commit2.after"]
            for i, point in enumerate(points if harness.LONG else self.random.sample(points, 2)):
                now, (want, step), position = self.listed(c, job)[0], made[i % 2], self.position(c, job)
                victim = job.status()["controller"]
                other = next(n for n in c.nodes if n != victim)
                self.arm(c.nodes[victim], point)
                with concurrent.futures.ThreadPoolExecutor() as pool:
                    asked = pool.submit(c.ptcctl, "rollback", job.name, "--to", f"snap-{want}", *skip, node=other, check=False,
                                        timeout_s=120 * PATIENCE)
                    wait_for(lambda: not c.nodes[victim].pid(), 30 * PATIENCE, f"{victim} at {point}", 0.05)
                    self.arm(c.nodes[victim])
                    c.start_node(c.nodes[victim], {"PTC_FAULT_FILE": os.path.join(c.nodes[victim].dir, "fault")})
                    r = asked.result()
                c.wait_nodes(sorted(c.nodes), 60 * PATIENCE)
                job.wait_run("stopped")
                at = self.listed(c, job)[0]
                print(f"{point} on {victim}: exit {r.returncode}, {now} -> {at}", flush=True)
                self.assertIn(at, (now, (now[0] + 1, step)))
                if r.returncode == 0 or point != "etcd.intent.before":
                    self.assertEqual((now[0] + 1, step), at)
                if at != now and not skip:
                    position = step * self.BATCH
                self.assertEqual(position, self.position(c, job))
                self.check_all(c, job, f"killed-{i}")
            if skip:
                self.expect_skips(job)
            c.ptcctl("run", job.name, "--wait", timeout_s=60 * PATIENCE)
            job.wait_step(self.listed(c, job)[0][1] + 2)
            job.do("stop")
            test_proof.proved(self, c, job)
