# SPDX-License-Identifier: Apache-2.0
"""Backing files of bytes that lie on other nodes: the ptcd beside ptc-fuse writes them into the file (docs/decisions/0071).

Real daemons, root's mount. That ptcd wrote is seen in its metrics. The states are random (the seed is printed); the files that were
imported are the oracle. Where the kernel has no FUSE passthrough, nothing is filled, and the tests are skipped.
"""
import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
import unittest

import harness
from harness import PATIENCE, skip_unless_root, wait_for
from test_backing import BackedMount, Backing
from test_fuse import CAN_MOUNT
from test_metrics import scrape, total

METHODS = ("ReadInto", "Read")
FILL_MAGIC, LOCATE_MAGIC, SO_PASSRIGHTS = 0x3146464c, 0x3244454c, 83 # proto/direct_read.h; Linux 6.16
SEGMENT = 4 << 20 # FS_BACKING_SEGMENT: of one call


class Opened(threading.Thread):
    """Opens the file and reads all of it."""

    def __init__(self, path):
        super().__init__()
        self.path, self.got, self.error = path, None, None
        self.start()

    def run(self):
        try:
            with open(self.path, "rb") as f:
                self.got = f.read()
        except OSError as e:
            self.error = e


@unittest.skipUnless(CAN_MOUNT, "FUSE cannot be mounted here")
class Fill(harness.Case):
    job, bytes_of, needs_passthrough, check_without_server = Backing.job, Backing.bytes_of, Backing.needs_passthrough, Backing.check_without_server

    @contextlib.contextmanager
    def filled(self, env=None, nodes=2, near=False, config="tp=1", places="n0", **job):
        """A cluster with a job on these places, and a mount on its last node: (cluster, job, mount)."""
        self.asker, self.address = f"n{nodes - 1}", f"127.0.0.1:{harness.clusters.free_port()}"
        with self.cluster(nodes=nodes, devices=1, near=near, up=False) as c:
            write = c.write_config
            c.write_config = lambda node, **more: write(node, **({"metrics": self.address} if node.name == self.asker else {}), **more)
            for node in c.nodes.values():
                c.write_config(node)
            c.up({self.asker: env} if env else None, timeout_s=60 * PATIENCE)
            made = self.job(c, config=config, places=("--nodes", places), **job)
            m = BackedMount(self, c, "--timeout", "30s", node=self.asker)
            yield c, made, m
            m.stop()

    def calls(self):
        """How often each method of the daemon beside ptc-fuse was called."""
        samples = scrape(self.address)[1]
        return {m: total(samples, "ptc_rpc_calls_total", method=f"ptc.v1.Control/{m}") for m in METHODS}

    def model(self, m):
        return m.path("big", "state", "latest", "model.safetensors")

    def check(self, m, want):
        """Its backing file is there, or will be; and it is right."""
        def there():
            with open(self.model(m), "rb") as f:
                self.assertEqual(want, f.read())
                self.needs_passthrough(m)
            return m.usage() == (len(want), 1)
        wait_for(there, 60 * PATIENCE, "the backing file")
        self.check_without_server(m, self.model(m), want)

    @skip_unless_root
    def test_bytes(self):
        """From another node, over sockets or in memory: ptcd writes all parts of the file."""
        for near in (False, True):
            with self.subTest(near=near):
                with self.filled(near=near, tensors=9) as (_, job, m):
                    self.check(m, self.bytes_of(job))
                    self.assertGreaterEqual(self.calls()["ReadInto"], os.path.getsize(job.files["param"]) // SEGMENT)

    @skip_unless_root
    def test_some_here(self):
        """Rows are cut over all nodes, the one with the mount among them."""
        with self.filled(config="tp=2", places="n0,n1", tensors=9) as (c, job, m):
            self.check(m, self.bytes_of(job))
            self.assertGreater(self.calls()["ReadInto"], 1)

    @skip_unless_root
    def test_older_daemon(self):
        """One that takes no files: the bytes are read, as before."""
        with self.filled({"PTC_FAULT": "agent.fill.offer@*=fail"}) as (_, job, m):
            self.check(m, self.bytes_of(job))
            self.assertEqual(0, self.calls()["ReadInto"])
            self.assertGreater(self.calls()["Read"], 1)

    @skip_unless_root
    def test_fails_in_the_middle(self):
        """After some bytes were written: what is left is read, and so is what that call had to write."""
        with self.filled({"PTC_FAULT": "api.into.written@2=fail"}) as (_, job, m):
            self.check(m, self.bytes_of(job))
            self.assertGreater(self.calls()["Read"], 0)

    @skip_unless_root
    def test_daemon_dies(self):
        """In the middle of its writing. When it is back, the file is made anew, and is right."""
        with self.filled({"PTC_FAULT": "api.into.written@2=kill"}) as (c, job, m):
            opened = Opened(self.model(m))
            wait_for(lambda: not c.nodes[self.asker].pid(), 60 * PATIENCE, "the end of ptcd")
            c.restart(self.asker)
            c.wait_nodes([self.asker], 60 * PATIENCE)
            opened.join()
            if opened.got is not None:
                self.assertEqual(self.bytes_of(job), opened.got)

            def readable():
                try:
                    with open(self.model(m), "rb") as f:
                        return f.read() == self.bytes_of(job)
                except OSError:
                    return False
            wait_for(readable, 60 * PATIENCE, "the file")
            self.check(m, self.bytes_of(job))

    @skip_unless_root
    def test_node_is_lost(self):
        """One of two nodes that have the bytes dies while ptcd writes: the rest comes from the other one."""
        env = {"PTC_FAULT_FILE": self.path("fault"), "PTC_FAULT_LIST": self.path("points")}
        harness.replace_file(self.path("fault"), "api.into.written=hold")
        with self.filled(env, nodes=3, config="dp=2", places="n0,n1", mib=24) as (c, job, m):
            opened = Opened(self.model(m))
            wait_for(lambda: os.path.exists(self.path("points")) and "api.into.written" in open(self.path("points")).read(), 60 * PATIENCE,
                     "the first bytes")
            c.nodes["n0"].kill()
            harness.replace_file(self.path("fault"))
            opened.join()
            self.assertEqual(self.bytes_of(job), opened.got)
            self.check(m, self.bytes_of(job))
            self.assertGreater(self.calls()["ReadInto"], 1)



class Descriptors(harness.Case):
    """What comes over the sockets of a node's users."""

    @staticmethod
    def connect(path, kind):
        s = socket.socket(socket.AF_UNIX, kind)
        s.settimeout(20 * PATIENCE)
        s.connect(path)
        return s

    def fill(self, path, fd):
        """A connection whose file ptcd is to fill, and the statuses of both answers."""
        s, said = self.connect(path, socket.SOCK_SEQPACKET), []
        for fds in ([], [fd]):
            socket.send_fds(s, [struct.pack("=II", FILL_MAGIC, 0)], fds)
            said.append(struct.unpack("=Ii16s", s.recv(100))[1])
        return s, said

    @skip_unless_root
    def test_of_users_are_refused(self):
        """A user sends a descriptor to each socket that he may connect to: the kernel refuses it. To drop one of a file system of his own
        could take ptcd for ever."""
        program = ("import os, socket, sys\n"
                   "for path, kind in ((sys.argv[1], socket.SOCK_STREAM), (sys.argv[1] + '.direct', socket.SOCK_SEQPACKET)):\n"
                   "    s = socket.socket(socket.AF_UNIX, kind); s.connect(path)\n"
                   "    try: socket.send_fds(s, [b'x' * 8], [0]); print('sent')\n"
                   "    except PermissionError: print('refused')\n")
        a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with a, b:
            try:
                a.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
            except OSError:
                self.skipTest("a kernel before 6.16 cannot refuse descriptors")
        with self.cluster(nodes=1, devices=1) as c:
            r = subprocess.run(["setpriv", "--reuid=54400", "--regid=54400", "--clear-groups", sys.executable, "-c", program, c.nodes["n0"].socket],
                               capture_output=True, text=True, check=True, timeout=60 * PATIENCE)
            self.assertEqual(["refused", "refused"], r.stdout.split(), r.stderr)

    @skip_unless_root
    def test_files_leave_room_for_questions(self):
        """More files of root's than one user may have connections: each is taken, and a question is still answered."""
        with self.cluster(nodes=1, devices=1) as c, contextlib.ExitStack() as stack:
            path = c.nodes["n0"].socket + ".direct"
            for i in range(16):
                fd = os.memfd_create(f"file{i}")
                stack.callback(os.close, fd)
                s, said = self.fill(path, fd)
                stack.enter_context(s)
                self.assertEqual([0, 0], said)
            with self.connect(path, socket.SOCK_SEQPACKET) as s:
                s.send(struct.pack("=II40sQQQQ", LOCATE_MAGIC, 0, b"a" * 36, 1, 1, 0, 0))
                self.assertGreater(len(s.recv(4096)), 8)


if __name__ == "__main__":
    unittest.main()
