# SPDX-License-Identifier: Apache-2.0
"""Starting, stopping, losing and finding daemons; scripts/local-cluster; a foreign gRPC client."""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import unittest

import harness
import live
import numpy as np
import state as states
from harness import PATIENCE, ROOT, Job, wait_for


@harness.labels("threads")
class Nodes(harness.Case):
    @harness.labels("repeats")
    def test_each_transport(self):
        for options in ({"transport": "tls"}, {"transport": "unix"}, {"transport": "insecure"},
                        {"transport": "tls", "coordinator": "etcd-cluster"}):
            with self.subTest(**options), self.cluster(nodes=3, **options) as c:
                for node in c.nodes:
                    c.wait_nodes(list(c.nodes), 20 * PATIENCE, node=node)

    def test_node_leaves_and_comes_back(self):
        with self.cluster(nodes=3) as c:
            c.nodes["n2"].kill()
            wait_for(lambda: c.nodes_up() == {"n0", "n1"}, 15 * PATIENCE, "n2 listed as gone")
            c.restart("n2")
            self.assertEqual({"n0", "n1", "n2"}, c.nodes_up())

    def test_coordinators_node_is_killed(self):
        """The next ptcd adopts or ends the etcd that the dead one left; there is one etcd in the end."""
        with self.cluster(nodes=2) as c:
            c.nodes["n0"].kill()
            c.start_node(c.nodes["n0"])
            c.wait_nodes(["n0", "n1"], 30 * PATIENCE)
            names = [open(f"/proc/{p}/comm").read().strip() for p in c.processes()]
            self.assertEqual(1, names.count("etcd"), names)

    def test_node_key_that_somebody_deletes(self):
        """It is written again, with a lease of the daemon's, and so is one that nobody can read."""
        with self.cluster(nodes=2) as c:
            for change in (("del", "/ptc/nodes/n1"), ("put", "/ptc/nodes/n1", "{")):
                self.assertEqual(0, c.etcdctl(*change).returncode)
                wait_for(lambda: "n1" not in (c.nodes_up() or {"n1"}) or "written again" in c.nodes["n1"].log_tail(9),
                         15 * PATIENCE, "n1 noticed")
                c.wait_nodes(["n0", "n1"], 15 * PATIENCE)
                key = json.loads(c.etcdctl("get", "/ptc/nodes/n1", "-w", "json").stdout)["kvs"][0]
                self.assertTrue(key.get("lease"), f"{change}: {key}")

    def test_etcd_that_loses_its_data_while_daemons_run(self):
        """An etcd that knows no job is no reason to remove what jobs have here: not what n0 has, and not what n1 has, that
        goes on running. With its data back all is as it was."""
        s = states.State()
        s.add(np.random.default_rng(self.seed), "w", "F32", (64, 16))
        with self.cluster(nodes=2, devices=1, lease_ttl="2s") as c:
            job = Job(c, "j", s, self.path("j"), [{"match": "*", "split": {"axis": "tp", "dim": 0}}])
            job.imported("tp=2")
            n0, kept = c.nodes["n0"], self.path("kept")
            self.assertTrue(n0.stop(15 * PATIENCE))
            os.mkdir(kept)
            for part in ("etcd", "state"):
                os.rename(os.path.join(n0.dir, part), os.path.join(kept, part))
            os.rename(n0.chunk_dir, n0.chunk_dir + "-kept")
            c.start_node(n0)
            wait_for(lambda: "names another cluster" in c.nodes["n1"].log_tail(9), 30 * PATIENCE, "n1 noticed")
            wait_for(lambda: c.nodes_up() == {"n0"}, 15 * PATIENCE, "n0, as of another cluster")
            self.refused(c, "status", "j", node="n1", contains="lost its data", timeout_s=30 * PATIENCE)
            self.assertTrue(n0.stop(15 * PATIENCE))
            for part in ("etcd", "state"):
                shutil.rmtree(os.path.join(n0.dir, part))
                os.rename(os.path.join(kept, part), os.path.join(n0.dir, part))
            shutil.rmtree(n0.chunk_dir)
            os.rename(n0.chunk_dir + "-kept", n0.chunk_dir)
            c.start_node(n0)
            c.wait_nodes(["n0", "n1"], 30 * PATIENCE)
            job.resize("tp=1")
            job.check_whole(self)

    def test_stopped_daemon_is_noticed(self):
        with self.cluster(nodes=2) as c:
            c.nodes["n1"].signal(signal.SIGSTOP)
            wait_for(lambda: c.nodes_up() == {"n0"}, 30 * PATIENCE, "n1, stopped, listed as gone")
            c.nodes["n1"].signal(signal.SIGCONT)
            c.wait_nodes(["n0", "n1"], 30 * PATIENCE)

    def test_sigterm_is_clean(self):
        with self.cluster(nodes=2) as c:
            for node in reversed(list(c.nodes.values())):
                self.assertTrue(node.stop(timeout_s=15 * PATIENCE), f"{node.name} did not end by itself")
                self.assertEqual(0, node.popen.returncode, node.log_tail())
                self.assertFalse(os.path.exists(node.socket), "its control socket is still there")
            self.assertEqual([], c.processes(), "an etcd is left")

    def test_sd_notify(self):
        """READY=1 once it serves, STOPPING=1 on SIGTERM; no systemd needed."""
        with self.cluster(nodes=1, up=False) as c, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.bind(self.path("notify"))
            s.settimeout(30 * PATIENCE)
            node = c.nodes["n0"]
            c.start_node(node, {"NOTIFY_SOCKET": self.path("notify")})
            self.assertIn(b"READY=1", self.until(s, b"READY=1"))
            self.assertEqual({"n0"}, c.nodes_up())
            node.signal(signal.SIGTERM)
            self.assertIn(b"STOPPING=1", self.until(s, b"STOPPING=1"))
            node.wait_gone(15 * PATIENCE)

    @staticmethod
    def until(s, wanted):
        got = b""
        while wanted not in got:
            got += s.recv(4096) + b"\n"
        return got

    def test_check_and_dump_config(self):
        """What --dump-config prints is a configuration with the same meaning."""
        with self.cluster(nodes=1, up=False) as c:
            def ptcd(*args):
                return subprocess.run([harness.program("ptcd"), *args], stdin=subprocess.DEVNULL, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=30 * PATIENCE, check=False)

            first = ptcd("--config", c.nodes["n0"].config, "--dump-config")
            self.assertEqual(0, first.returncode, first.stderr)
            with open(self.path("dumped.yaml"), "w") as f:
                f.write(first.stdout)
            again = ptcd("--config", self.path("dumped.yaml"), "--dump-config")
            self.assertEqual(first.stdout, again.stdout, again.stderr)
            self.assertEqual(0, ptcd("--config", self.path("dumped.yaml"), "--check-config").returncode)
            with open("/dev/full", "w") as full:
                r = subprocess.run([harness.program("ptcd"), "--config", c.nodes["n0"].config, "--dump-config"], stdout=full,
                                   stderr=subprocess.PIPE, text=True, timeout=30 * PATIENCE, check=False)
            self.assertEqual((1, "ptcd: writing the configuration: No space left on device\n"), (r.returncode, r.stderr))
            few = subprocess.run(["sh", "-c", f"ulimit -n 16; exec {harness.program('ptcd')} --config {c.nodes['n0'].config}"], text=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30, check=False)
            self.assertEqual(1, few.returncode)
            self.assertRegex(few.stdout, r"\Aptcd: .*16 files.*\n\Z")

    def test_python_peer(self):
        """grpcio, which shares no code with rpc/, asks for health and for the nodes."""
        import grpc
        with self.cluster(nodes=2, transport="tls") as c, grpc.insecure_channel(f"unix:{c.nodes['n1'].socket}") as channel:
            def call(method, request=b""):
                return channel.unary_unary(method, lambda b: b, lambda b: b)(request, timeout=10 * PATIENCE)

            self.assertEqual(b"\x08\x01", call("/grpc.health.v1.Health/Check")) # SERVING
            reply = call("/ptc.v1.Control/Nodes", b"\x08\x01")
            self.assertEqual(b"\x08\x01\x12", reply[:3])
            length, shift, at = 0, 0, 3
            while True: # a varint
                length |= (reply[at] & 0x7F) << shift
                shift, at = shift + 7, at + 1
                if not reply[at - 1] & 0x80:
                    break
            self.assertEqual(len(reply) - at, length)
            self.assertIn("n1", json.dumps(json.loads(reply[at:])))
            with self.assertRaises(grpc.RpcError) as refused:
                call("/ptc.v1.Control/Nodes", b"\x08\x63") # version 99
            self.assertNotIn(refused.exception.code().name, ("UNAVAILABLE", "DEADLINE_EXCEEDED"))
            with self.assertRaises(grpc.RpcError) as unknown:
                call("/ptc.v1.Control/NoSuchMethod")
            self.assertEqual("UNIMPLEMENTED", unknown.exception.code().name)

    def test_local_cluster_command(self):
        """scripts/local-cluster as a person uses it; down leaves nothing, after kill -9 of everything too."""
        directory = self.path("lc")

        def run(*args):
            r = subprocess.run([os.path.join(ROOT, "scripts", "local-cluster"), *args, "--dir", directory], text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               timeout=120 * PATIENCE, check=False)
            self.assertEqual(0, r.returncode, r.stdout)
            return r.stdout

        for bad, says in ((("--nodes", "0"), "0 nodes: at least 1"), (("--dir", "/dev/null/x"), "Not a directory: '/dev/null/x'")):
            r = subprocess.run([os.path.join(ROOT, "scripts", "local-cluster"), "up", "--dir", directory, "--build", harness.BUILD, *bad],
                               stderr=subprocess.PIPE, text=True, timeout=60 * PATIENCE, check=False)
            self.assertEqual((1, 1), (r.returncode, r.stderr.count("\n")), r.stderr)
            self.assertIn(says, r.stderr)
        try:
            run("up", "--nodes", "2", "--devices", "1", "--build", harness.BUILD)
            c = harness.clusters.Cluster(directory)
            self.assertEqual(2, run("status").count("process"))
            run("kill", "n1")
            run("restart", "n1")
            c.wait_nodes(["n0", "n1"], 30 * PATIENCE)
            for pid in c.processes():
                os.kill(pid, signal.SIGKILL)
        finally:
            run("down")
        self.assertEqual([], harness.leftovers(c))
        self.assertFalse(os.path.exists(directory))


WAITING = textwrap.dedent("""
    import os, harness, live
    class Waiting(harness.Case):
        def test_it(self):
            with self.cluster(nodes=2, devices=1) as c:
                job = live.Job(c, self.dir)
                job.run("dp=2")
                job.wait_step(3)
                with open(os.environ["WAITING_READY"] + ".new", "w") as f:
                    f.write(c.options["chunk_root"])
                os.rename(f.name, os.environ["WAITING_READY"])
                job.wait_run("done")
        def test_not_reached(self):
            open(os.environ["WAITING_READY"] + ".second", "w").close()
""")


class TakenDown(harness.Case):
    def stopped_rank(self, c):
        """A rank that runs and that no SIGTERM ends. Its cgroup, in a list that is empty where there are none."""
        job = live.Job(c, self.dir)
        job.run("dp=1")
        job.wait_step(3)
        os.kill(job.status()["run"]["ranks"][0]["pid"], signal.SIGSTOP)
        return harness.clusters.cgroups_of(c.jobs_with_ranks())

    def test_rank_that_has_to_be_killed(self):
        """Its helper, which is left alone for that, removes its cgroup, as the end of the block checks."""
        with self.cluster(nodes=1, devices=1) as c:
            cgroups = self.stopped_rank(c)
        self.assertEqual([], [path for path in cgroups if os.path.exists(path)])

    def test_cgroup_that_stays(self):
        """Nobody removes the cgroup of a rank whose helper was killed: it is told."""
        with self.cluster(nodes=1, devices=1) as c:
            cgroups = self.stopped_rank(c)
            if not cgroups:
                self.skipTest("no cgroups here")
            c.nodes["n0"].kill()
            helpers = [pid for pid in c.processes() if open(f"/proc/{pid}/comm").read().strip() == "ptc-exec"]
            self.assertEqual(1, len(helpers))
            os.kill(helpers[0], signal.SIGKILL)
            self.assertEqual([f"cgroup {path} left" for path in cgroups], c.down())


class Interrupted(harness.Case):
    def test_a_signal_takes_all_down(self):
        """A test ended by SIGTERM or SIGHUP leaves no daemon, rank, file or shared memory, and no other test runs."""
        with open(self.path("test_waiting.py"), "w") as f:
            f.write(WAITING)
        for number in (signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number.name):
                tmp, ready, run = (self.path(f"{what}-{number.name}") for what in ("tmp", "ready", "run"))
                os.mkdir(tmp)
                os.chmod(tmp, 0o755)
                env = {**os.environ, "TMPDIR": tmp, "WAITING_READY": ready, "WAITING_RUN": run, "PYTHONPATH": self.dir}
                p = subprocess.Popen([sys.executable, os.path.join(ROOT, "tests", "run"), "test_waiting"], env=env,
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                wait_for(lambda: os.path.exists(ready) or p.poll() is not None, 60 * PATIENCE, "the ranks' third step")
                p.send_signal(number)
                out = p.communicate(timeout=60 * PATIENCE)[0].decode()
                self.assertEqual(1, p.returncode, out)
                self.assertIn(f"SystemExit: {128 + number}", out)
                self.assertFalse(os.path.exists(ready + ".second"), out)
                self.assertEqual([], harness.clusters.processes_of(f"WAITING_RUN={run}", tmp), out)
                self.assertEqual([], os.listdir(tmp), out)
                with open(ready) as f:
                    self.assertFalse(os.path.exists(f.read()), "its shared memory")


if __name__ == "__main__":
    unittest.main()
