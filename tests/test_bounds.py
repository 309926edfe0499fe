# SPDX-License-Identifier: Apache-2.0
"""What users and strangers can take of a daemon: connections, calls, descriptors. While they take all that they get, its
control API answers promptly, root and other users alike; what they don't get is refused in one line."""
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import harness
import numpy as np
import state as states
import wire
from harness import PATIENCE, ROOT, SANITIZED, Job, needs, skip_unless_root

UID = 54500 # the first attacker's; nobody has these
HONEST = 54999
RULES = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]


class Clock(threading.Thread):
    """Asks all the time, and remembers how long each answer took."""

    def __init__(self, target):
        import grpc # noqa: F401, takes a second the first time
        super().__init__(daemon=True)
        self.target, self.took, self.failed, self.ended = target, [], None, threading.Event()

    def run(self):
        try:
            while not self.ended.wait(0.02):
                began = time.monotonic()
                with wire.Peer(self.target, timeout_s=20 * PATIENCE) as p: # a connection of its own each time
                    p.call("Control", "Nodes")
                self.took.append(time.monotonic() - began)
        except Exception as e: # noqa: BLE001, told by the test
            self.failed = e

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *unused):
        self.ended.set()
        self.join()


class TestBounds(harness.Case):
    def attacker(self, stack, uid, *args):
        """Says (held, refused, words)."""
        p = subprocess.Popen([sys.executable, os.path.join(ROOT, "tests", "hostile.py"), str(uid), *map(str, args)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(p.stdout.close)
        stack.callback(p.wait)
        stack.callback(p.stdin.close)
        return p

    def said(self, p):
        held, refused, *words = p.stdout.readline().split(maxsplit=2)
        return int(held), int(refused), "".join(words)

    def honest(self, c):
        began = time.monotonic()
        c.ptcctl("nodes", prefix=("setpriv", f"--reuid={HONEST}", f"--regid={HONEST}", "--clear-groups"),
                 timeout_s=20 * PATIENCE)
        return time.monotonic() - began

    def check(self, clock, least=3):
        self.assertIsNone(clock.failed)
        self.check_prompt(clock.took, least)

    @skip_unless_root
    def test_connections_of_many_users(self):
        """More users than there are connections for, who come and go; then some who stay."""
        with self.cluster(nodes=1, devices=1) as c, self.keeps_leases(c, "n0"), contextlib.ExitStack() as stack:
            socket = c.nodes["n0"].socket
            with Clock(f"unix:{socket}") as clock:
                for first in range(0, 24, 8):
                    with contextlib.ExitStack() as wave:
                        for p in [self.attacker(wave, UID + first + i, "unix", socket, 300) for i in range(8)]:
                            self.assertGreater(self.said(p)[0], 0)
                    self.honest(c)
                for p in [self.attacker(stack, UID + 100 + i, "unix", socket, 300) for i in range(6)]:
                    self.said(p)
                self.honest(c)
            self.check(clock)

    @skip_unless_root
    def test_user_who_connects_in_a_loop(self):
        """Faster than anybody accepts: root is answered each time, as he does not stand in the same queue; others are, too."""
        with self.cluster(nodes=1, devices=1) as c, self.keeps_leases(c, "n0"), contextlib.ExitStack() as stack:
            self.said(self.attacker(stack, UID, "flood-unix", c.nodes["n0"].socket, 50))
            for _ in range(8):
                c.ptcctl("nodes", timeout_s=20 * PATIENCE)
            self.honest(c)

    @skip_unless_root
    @needs(modules=("grpc",))
    def test_users_who_follow(self):
        """Three users with all the streams that they get, and three whose requests never come."""
        with self.cluster(nodes=1, devices=1) as c, self.keeps_leases(c, "n0"), contextlib.ExitStack() as stack:
            socket = c.nodes["n0"].socket
            for i in range(3):
                job = self.job(c, f"h{i}")
                os.chmod(job.dir, 0o755)
                job.create(prefix=("setpriv", f"--reuid={UID + i}", f"--regid={UID + i}", "--clear-groups"))
            with Clock(f"unix:{socket}") as clock:
                attackers = [self.attacker(stack, UID + i, "follow", socket, 80, f"h{i}") for i in range(3)]
                attackers += [self.attacker(stack, UID + 10 + i, "silent", socket, 80) for i in range(3)]
                for p in attackers:
                    held, refused, words = self.said(p)
                    self.assertEqual(23, held) # the last place is for calls that move bytes
                    self.assertEqual(57, refused)
                    self.assertIn("too many calls of user", words)
                self.assertLess(self.honest(c), 10 * PATIENCE)
                asked = len(clock.took)
                self.wait_until(lambda: clock.failed or len(clock.took) >= asked + 10)
            self.check(clock)

    @skip_unless_root
    def test_strangers_without_a_certificate(self):
        """Connections by the thousand to the port of peers: few are kept, and a node that comes back is let in."""
        with self.cluster(nodes=2, devices=1, transport="tls") as c, self.keeps_leases(c, "n0"), contextlib.ExitStack() as stack:
            node = c.nodes["n0"]
            port = c.options["ports"]["n0"]
            before = self.resident(node.pid())
            with Clock(f"unix:{node.socket}") as clock:
                for p in [self.attacker(stack, UID + i, "tcp", port, 2500) for i in range(2)]:
                    self.assertEqual(2500, self.said(p)[0])
                c.nodes["n1"].kill()
                c.restart("n1")
                c.ptcctl("job", "list", node="n1")
            self.check(clock)
            grown = self.resident(node.pid()) - before
            print(f"{grown >> 20} MiB more", file=sys.stderr)
            self.assertLess(grown, (512 if SANITIZED else 64) << 20) # a sanitizer keeps what is freed, up to 256 MiB
            self.assertLess(len(os.listdir(f"/proc/{node.pid()}/fd")), 600)

    @skip_unless_root
    def test_strangers_who_connect_in_a_loop(self):
        """To the ports of all nodes, faster than a handshake is through: switches go on, and a node that comes back is let in."""
        with self.cluster(nodes=2, devices=1, transport="tls") as c, self.keeps_leases(c, "n0"), contextlib.ExitStack() as stack:
            job = self.job(c, "j")
            job.imported("tp=2")
            for i, port in enumerate(c.options["ports"].values()):
                self.said(self.attacker(stack, UID + i, "flood-tcp", port, 400))
            for config in ("tp=1", "tp=2"):
                job.resize(config)
            c.nodes["n1"].kill()
            c.restart("n1")
            job.resize("tp=1")
            job.check_whole(self)

    @harness.labels("alone")
    @skip_unless_root
    def test_strangers_who_begin_handshakes_in_a_loop(self):
        """To the ports of all nodes, from several addresses: each sends a ClientHello, and says nothing more. Members have places
        of their own: switches go on, a node that comes back is let in, and the control API answers. Then from the members' own
        address, too, where a member competes with the flood for each new connection."""
        with self.cluster(nodes=2, devices=1, transport="tls") as c, self.keeps_leases(c, "n0"), contextlib.ExitStack() as stack:
            job = self.job(c, "j")
            job.imported("tp=2")
            for i, port in enumerate(c.options["ports"].values()):
                self.said(self.attacker(stack, UID + i, "flood-hello", port, 400, f"127.0.{i}.2,127.0.{i}.3,127.0.{i}.4"))
            with Clock(f"unix:{c.nodes['n0'].socket}") as clock:
                for config in ("tp=1", "tp=2"):
                    job.resize(config)
                self.said(self.attacker(stack, UID + 2, "flood-hello", c.options["ports"]["n0"], 400, "127.0.0.1"))
                c.nodes["n1"].kill()
                c.restart("n1")
                job.resize("tp=1")
            self.check(clock)
            job.check_whole(self)

    @skip_unless_root
    def test_strangers_at_the_local_etcd(self):
        """20,000 connections to etcd's port, and then handshakes in a loop: few come to etcd, commits go on, and a node that comes
        back finds it."""
        with self.cluster(nodes=2, devices=1, transport="tls") as c, contextlib.ExitStack() as stack:
            job = self.job(c, "j")
            job.imported("tp=2")
            etcd, port = self.pid_of(c, "etcd"), c.options["etcd_port"]
            before = self.resident(etcd)
            with self.keeps_leases(c, "n0"):
                for p in [self.attacker(stack, UID + i, "tcp", port, 10000) for i in range(2)]:
                    self.assertEqual(10000, self.said(p)[0])
                self.said(self.attacker(stack, UID + 2, "flood-hello", port, 400, "127.0.1.2,127.0.1.3,127.0.1.4"))
                job.resize("tp=1")
                c.nodes["n1"].kill()
                c.restart("n1")
                job.resize("tp=2")
            os.kill(self.pid_of(c, "ptc-etcd-door"), signal.SIGKILL) # it knows no member's host afterwards
            job.resize("tp=1")
            door = self.pid_of(c, "ptc-etcd-door")
            c.nodes["n0"].kill() # which leaves both behind
            c.restart("n0")
            self.assertEqual((etcd, door), (self.pid_of(c, "etcd"), self.pid_of(c, "ptc-etcd-door")))
            job.check_whole(self)
            grown = self.resident(etcd) - before
            print(f"etcd has {grown >> 20} MiB more, its door {self.resident(door) >> 20} MiB", file=sys.stderr)
            self.assertLess(grown, 64 << 20)
            self.assertLess(self.resident(door), (512 if SANITIZED else 64) << 20)
            for pid, most in ((etcd, 400), (door, 1200)):
                self.assertLess(len(os.listdir(f"/proc/{pid}/fd")), most)

    def pid_of(self, c, program):
        return harness.wait_for(lambda: next((pid for pid in c.processes() if os.path.basename(os.readlink(f"/proc/{pid}/exe")) ==
                                              program), None), 60 * PATIENCE, program)

    def test_few_descriptors(self):
        """The soft limit is raised to the hard one, what does not fit is said, and who reaches nobody is told so."""
        with self.cluster(nodes=1, devices=1) as c:
            node = c.nodes["n0"]
            c.restart("n0", prefix=("prlimit", "--nofile=256:2048", "--"))
            with open(f"/proc/{node.pid()}/limits") as f:
                self.assertIn(["2048", "2048"], [line.split()[3:5] for line in f if line.startswith("Max open files")])
            c.ptcctl("nodes", prefix=("prlimit", "--nofile=24", "--"))
            for few in range(4, 24): # down to what the dynamic linker needs; those that work, work
                r = c.ptcctl("nodes", prefix=("prlimit", f"--nofile={few}", "--"), check=False)
                self.assertEqual((r.returncode != 0, r.stderr.count("\n")), (bool(r.stderr),) * 2, r.stderr)
                if few < 16:
                    self.assertRegex(r.stderr, r"^ptcctl nodes: a connection to a daemon needs 16 descriptors and \d+ are free; .*ulimit -n")
            with open(os.path.join(node.dir, "ptcd.log")) as f:
                self.assertIn("this process may open 2048 files: room for 512 connections of users", f.read())
            node.kill()
            self.refused(c, "nodes", contains="nobody listens at")
            self.refused(c, "--socket", self.path("none"), "nodes", contains="is ptcd running?")

    def resident(self, pid):
        with open(f"/proc/{pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def wait_until(self, condition):
        harness.wait_for(condition, 60 * PATIENCE, "answers", 0.02)

    @needs(modules=("grpc",))
    def test_many_ranges_of_a_cut_tensor(self):
        """Ranges of one call that fall into very many pieces: all of their bytes, and no more memory than for a few."""
        rows, columns = 2048, 128
        s = states.State()
        s.add(np.random.default_rng(self.seed), "w", "U8", (rows, columns))
        whole = s.tensors["param"]["w"].array.tobytes()
        with self.cluster(nodes=2, devices=1) as c:
            job = Job(c, "j", s, self.path("j"), [{"match": "w", "split": {"axis": "tp", "dim": 1, "blocks": [4] * 32}}])
            job.imported("tp=2")
            with wire.Peer(f"unix:{c.nodes['n0'].socket}", timeout_s=60 * PATIENCE) as p:
                info = p.call("Control", "ExportInfo", job="j")
                before = self.heap_peak(c)
                at = [columns * int(i) for i in np.random.default_rng(self.seed).permutation(rows)]
                got = p.call("Control", "ReadMany", job="j", generation=info.generation, snapshot=info.snapshot, items=[0] * rows,
                             offsets=at, lengths=[columns] * rows)
            self.assertEqual(b"".join(whole[i:i + columns] for i in at), b"".join(m.data for m in got))
            grown = self.heap_peak(c) - before
            print(f"{grown >> 10} KiB more", file=sys.stderr)
            self.assertLess(grown, 12 << 20)

    def heap_peak(self, c):
        return next(n["heap"]["peak_bytes"] for n in c.json("nodes")["nodes"] if n["node"] == "n0")

    def job(self, c, name):
        s = states.State()
        s.add(np.random.default_rng(self.seed), "w", "F32", (64, 16))
        return Job(c, name, s, self.path(name), RULES)


if __name__ == "__main__":
    unittest.main()
