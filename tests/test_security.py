# SPDX-License-Identifier: Apache-2.0
"""Nobody else's access: another user of the machine, and a peer without our certificate, on every port and file.

Ports and sockets are found with ss, so that none is forgotten; each check has a positive control, so that it cannot
pass because nothing works at all.
"""
import contextlib
import json
import os
import re
import socket
import ssl
import stat
import struct
import subprocess
import unittest

import harness
import numpy as np
import state as states
import wire
from harness import PATIENCE, ROOT, Job, skip_unless_root

STRANGER = 54321 # a uid and gid nobody has
AS_STRANGER = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", "--"]
DIRECT = ".direct" # proto/direct_read.h
RULES = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0" # and an empty SETTINGS frame


def listening(c):
    """(tcp ports, unix socket paths) on which any process of the cluster listens."""
    pids = set(c.processes()) | {n.pid() for n in c.nodes.values()} | {m.pid() for m in c.members}
    out = subprocess.run(["ss", "-Hltnxp"], stdout=subprocess.PIPE, text=True, check=True).stdout
    ports, paths = set(), set()
    for line in out.split("\n"):
        if " LISTEN " not in line or not any(int(p) in pids for p in re.findall(r"pid=(\d+)", line)):
            continue
        local = line.split()[4]
        if line.startswith("tcp"):
            ports.add((local.rpartition(":")[0], int(local.rpartition(":")[2])))
        else:
            paths.add(local)
    return ports, paths


def answers_http2(port, context=None):
    """Does somebody speak HTTP/2 with us there?"""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
            plain.settimeout(5)
            s = context.wrap_socket(plain, server_hostname="localhost") if context else plain
            s.sendall(PREFACE)
            head = b""
            while len(head) < 9:
                more = s.recv(9 - len(head))
                if not more:
                    return False
                head += more
            return head[3] == 4 # SETTINGS
    except (ssl.SSLError, OSError):
        return False


def tls_context(ca_dir, name=None, verify=None):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(os.path.join(verify or ca_dir, "ca.crt"))
    context.set_alpn_protocols(["h2"])
    if name:
        context.load_cert_chain(os.path.join(ca_dir, f"{name}.crt"), os.path.join(ca_dir, f"{name}.key"))
    return context


class Security(harness.Case):
    def job(self, c, name="secret"):
        s = states.State()
        s.add(np.random.default_rng(self.seed), "w", "F32", (64, 16))
        return Job(c, name, s, self.path(name), RULES)

    # ---- the network -------------------------------------------------------------------------------------------------

    def check_ports(self, c):
        ca, other = os.path.join(c.dir, "ca"), self.path("other-ca")
        subprocess.run([os.path.join(ROOT, "deploy", "make-test-ca"), other, "--nodes", "n0"], check=True)
        ports, _ = listening(c)
        expected = set(c.options["ports"].values()) | {m["client"] for m in c.options["members"]}
        expected |= {c.options["etcd_port"]} if c.options["coordinator"] == "local" else set()
        self.assertLessEqual(expected, {p for _, p in ports}, "ss shows fewer ports than the configuration has")
        for host, port in ports:
            self.assertIn(host, ("127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"), f"port {port} listens on more than loopback")
            if port in expected: # etcd's port between its members speaks HTTP/1
                self.assertTrue(answers_http2(port, tls_context(ca, "n1")), f"port {port}: our own certificate is refused")
            self.assertFalse(answers_http2(port), f"port {port} answers in plain text")
            self.assertFalse(answers_http2(port, tls_context(ca)), f"port {port} answers without a certificate")
            self.assertFalse(answers_http2(port, tls_context(other, "n0", verify=ca)),
                             f"port {port} answers to a certificate of another CA")
        return ports

    def test_no_port_without_certificate(self):
        with self.cluster(nodes=2, transport="tls") as c:
            self.check_ports(c)

    def test_no_port_of_an_etcd_cluster_without_certificate(self):
        with self.cluster(nodes=2, transport="tls", coordinator="etcd-cluster") as c:
            self.check_ports(c)

    def test_unix_transport_opens_no_port(self):
        with self.cluster(nodes=2, transport="unix") as c:
            self.assertEqual(set(), listening(c)[0])

    def test_etcdctl_without_certificate(self):
        with self.cluster(nodes=1, transport="tls") as c:
            self.assertEqual(0, c.etcdctl("put", "/ptc-test", "x").returncode, "positive control")
            env = {"ETCDCTL_API": "3", "PATH": os.environ["PATH"]}
            ca = os.path.join(c.dir, "ca", "ca.crt")
            for scheme, flags in (("http", []), ("https", []), ("https", ["--cacert", ca]),
                                  ("https", ["--insecure-skip-tls-verify"])):
                r = subprocess.run(["etcdctl", f"--endpoints={scheme}://127.0.0.1:{c.options['etcd_port']}",
                                    "--dial-timeout=2s", "--command-timeout=2s", *flags, "put", "/ptc-test", "y"], env=env,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30, check=False)
                self.assertNotEqual(0, r.returncode, f"{scheme} {flags}: {r.stdout}")
            self.assertIn("x", c.etcdctl("get", "/ptc-test").stdout.split())

    def test_insecure_only_on_loopback(self):
        with self.cluster(nodes=1, transport="insecure") as c:
            with open(c.nodes["n0"].log_file) as log:
                self.assertIn("insecure", log.read().lower(), "no warning at start")
            self.assertIn("insecure", (c.ptcctl("status").stdout + c.ptcctl("nodes").stdout).lower())
            c.nodes["n0"].stop()
            c.write_config(c.nodes["n0"], listen=f"0.0.0.0:{c.options['ports']['n0']}")
            c.nodes["n0"].run()
            c.nodes["n0"].wait_gone(20 * PATIENCE)
            self.assertRegex(c.nodes["n0"].log_tail(3).lower(), "loopback")

    def test_plain_tcp_needs_the_flag(self):
        with self.cluster(nodes=1, transport="insecure", up=False) as c:
            argv = [harness.program("ptcd"), "--config", c.nodes["n0"].config]
            r = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               timeout=30 * PATIENCE, env=c.environment(), check=False)
            self.assertNotEqual(0, r.returncode)
            self.assertRegex(r.stdout.lower(), "tls|insecure")

    # ---- calls of the wrong kind of caller ----------------------------------------------------------------------------

    def grpc_code(self, channel, method):
        import grpc
        try:
            list(channel.stream_stream(method, lambda b: b, lambda b: b)(iter([b"\x08\x01"]), timeout=10))
        except grpc.RpcError as e:
            return e.code().name
        return "OK"

    def check_files_of_an_admin(self, c):
        """Files that ptcctl cannot use are told by name before it connects; none holds it up."""
        ca = os.path.join(c.dir, "ca")
        os.mkfifo(self.path("pipe"))
        for args in (("req", "-new", "-subj", "/CN=x", "-key", f"{ca}/admin.key", "-out", self.path("csr")),
                     ("x509", "-req", "-in", self.path("csr"), "-signkey", f"{ca}/admin.key", "-days", "-1", "-out", self.path("old"))):
            subprocess.run(["openssl", *args], check=True, stderr=subprocess.DEVNULL)
        with open(self.path("junk"), "w") as f:
            f.write("-----BEGIN CERTIFICATE-----\n")
        files = {"ca": f"{ca}/ca.crt", "cert": f"{ca}/admin.crt", "key": f"{ca}/admin.key"}
        cases = [({}, None), ({"key": f"{ca}/n1.key"}, "n1.key is not the key of"), ({"cert": self.path("old")}, "expired")]
        cases += [({k: self.path("pipe")}, "pipe is not a file") for k in files]
        cases += [({k: self.path("junk")}, "junk holds no") for k in files]
        for change, says in cases:
            args = ["nodes", "--server", f"localhost:{c.options['ports']['n0']}"]
            for k, path in {**files, **change}.items():
                args += [f"--{k}", path]
            if says:
                self.refused(c, *args, contains=says, timeout_s=20)
            else:
                c.ptcctl(*args)

    def test_peer_calls_are_for_nodes(self):
        import grpc
        methods = [rpc for service, rpc in wire.METHODS if service == "Peer"]
        with self.cluster(nodes=2, transport="tls") as c:
            def read(f):
                with open(os.path.join(c.dir, "ca", f), "rb") as x:
                    return x.read()

            def channel(name):
                cred = grpc.ssl_channel_credentials(read("ca.crt"), read(f"{name}.key"), read(f"{name}.crt"))
                return grpc.secure_channel(f"localhost:{c.options['ports']['n0']}", cred)

            with channel("n1") as node:
                self.assertEqual("OK", self.grpc_code(node, "/ptc.v1.Peer/Stat"), "positive control")
            self.check_files_of_an_admin(c)
            with channel("admin") as admin, grpc.insecure_channel(f"unix:{c.nodes['n0'].socket}") as local:
                for m in methods:
                    self.assertEqual("PERMISSION_DENIED", self.grpc_code(admin, f"/ptc.v1.Peer/{m}"), f"admin, {m}")
                    # The control socket does not even have these methods, or refuses them.
                    self.assertIn(self.grpc_code(local, f"/ptc.v1.Peer/{m}"), ("PERMISSION_DENIED", "UNIMPLEMENTED"), m)
                self.assertEqual("OK", self.grpc_code(local, "/ptc.v1.Control/Nodes"), "positive control")

    # ---- another user of this machine --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def as_uid(self, uid, target):
        """A connection that was made as another user; calls on it are his."""
        import grpc
        with wire.Peer(f"unix:{target}") as peer:
            os.setegid(uid)
            os.seteuid(uid)
            try:
                grpc.channel_ready_future(peer.channel).result(timeout=20 * PATIENCE)
            finally:
                os.seteuid(0)
                os.setegid(0)
            yield peer

    def answer(self, peer, rpc, fields):
        """(code, what was said) of a control call."""
        import grpc
        kind = wire.METHODS["Control", rpc][1]
        known = wire.TYPES[kind].DESCRIPTOR.fields_by_name
        request = wire.message(kind, **{k: v for k, v in fields.items() if k in known})
        try:
            reply = peer.call("Control", rpc, [request] if wire.METHODS["Control", rpc][0] else request)
        except grpc.RpcError as e:
            return e.code().name, e.details()
        return "OK", str(reply)

    OPEN = ("Nodes", "JobList", "DatasetList") # everybody's; each says nothing of others' jobs and data
    MAKES = ("JobCreate", "DatasetAdd")        # names are each user's own: another's is not in the way, and not found out
    LAST = ("DatasetRemove", "JobDelete")
    # of a job that runs or ran, or keeps older snapshots: for their owner in test_live, test_hang, test_sources, test_older
    LIVE = ("Logs", "Evidence", "DatasetRead", "Rollback", "RollbackSkipping", "ExportInfo")

    @skip_unless_root
    def test_stranger_makes_no_call(self):
        """Each control call there is, at each daemon: of somebody else's job or dataset a stranger is told word for word what he
        is told of one that does not exist. The same request of its owner gets past that, so it is not refused for its form. A
        call that is new is tried too; what it needs beside a job's name is added to `given`."""
        with self.cluster(nodes=2, devices=2) as c:
            job = self.job(c)
            job.imported("tp=2")
            np.save(self.path("tokens.npy"), np.zeros((4, 6), "<i4"))
            c.ptcctl("dataset", "add", "secret-data", self.path("tokens.npy"))
            data, before = c.json("dataset", "list")["datasets"][0], job.status()
            with wire.Peer(f"unix:{c.nodes['n0'].socket}") as peer:
                spec = peer.call("Control", "ExportInfo", job="secret").spec_json
            given = {"config": "tp=2", "node": "n0", "uuid": before["uuid"], "generation": 1, "snapshot": 1, "length": 16, "import_id": 7,
                     "reader": "h", "ttl_ms": 1000, "source": "0" * 32, "samples": [0], "spec_json": spec, "json": json.dumps(data)}
            there, absent = ({**given, "job": n, "name": f"{n}-data", "dataset": f"{n}-data"} for n in ("secret", "absent"))
            calls = sorted((rpc for service, rpc in wire.METHODS if service == "Control"),
                           key=lambda rpc: (rpc in self.MAKES, rpc in self.LAST))
            for node in c.nodes.values():
                with self.as_uid(STRANGER, node.socket) as peer:
                    for rpc in calls:
                        code, said = self.answer(peer, rpc, there)
                        print(f"{rpc}: {code} {said[:100]}", flush=True)
                        if rpc in self.OPEN:
                            self.assertEqual("OK", code, rpc)
                            self.assertNotIn("secret", said.replace(c.dir, ""), rpc)
                            continue
                        self.assertIn(code, ("OK",) if rpc in self.MAKES else ("NOT_FOUND", "PERMISSION_DENIED"), f"{rpc}: {said}")
                        if rpc not in self.MAKES:
                            self.assertEqual((code, said.replace("secret", "absent")), self.answer(peer, rpc, absent), rpc)
                    for rpc in self.LAST: # what he has made
                        self.assertEqual("OK", self.answer(peer, rpc, there)[0], rpc)
            self.assertEqual(before["generation"], job.generation())
            self.assertEqual([data], c.json("dataset", "list")["datasets"])
            job.check_whole(self)
            with wire.Peer(f"unix:{c.nodes['n0'].socket}") as peer:
                for rpc in (rpc for rpc in calls if rpc not in self.LIVE):
                    code, said = self.answer(peer, rpc, there)
                    self.assertNotIn(code, ("NOT_FOUND", "PERMISSION_DENIED"), f"{rpc} of the owner: {said}")

    @skip_unless_root
    def test_stranger_has_no_access_to_a_job(self):
        with self.cluster(nodes=2, devices=2) as c:
            job = self.job(c)
            job.imported("tp=2")
            for args in (("status", "secret"), ("snapshots", "secret"), ("events", "secret"), ("verify", "secret"),
                         ("plan", "secret", "--config", "tp=1"), ("resize", "secret", "--config", "tp=1", "--wait"),
                         ("export", "secret", "/dev/null"), ("job", "delete", "secret")):
                for node in c.nodes:
                    self.refused(c, *args, node=node, prefix=AS_STRANGER, contains="secret")
            self.assertNotIn("secret", c.ptcctl("job", "list", prefix=AS_STRANGER).stdout)
            self.assertIn("secret", c.ptcctl("job", "list").stdout, "positive control")
            self.assertEqual(1, job.generation())
            job.check_whole(self)

    @skip_unless_root
    def test_stranger_has_jobs_of_his_own(self):
        """And root sees them; forwarding between daemons keeps the caller's uid."""
        with self.cluster(nodes=2, devices=2) as c:
            job = self.job(c, "own")
            os.chmod(job.dir, 0o755)
            for node in ("n0", "n1"):
                job.create(prefix=AS_STRANGER, node=node)
                c.ptcctl(*job.import_args("tp=2"), prefix=AS_STRANGER, node=node)
                self.assertIn("own", c.ptcctl("job", "list").stdout)
                c.ptcctl("resize", "own", "--config", "tp=1", "--wait", prefix=AS_STRANGER, node=node)
                job.check_whole(self)
                # he moves his job off a node, which stays open for others
                there = job.status()["ranks"][0]["node"]
                moved = json.loads(c.ptcctl("drain", there, "--wait", "--format", "json", prefix=AS_STRANGER, node=node).stdout)
                self.assertEqual((1, False), (moved["jobs_moved"], moved["closed"]))
                self.assertEqual([], [n["node"] for n in c.json("nodes")["nodes"] if n["drained"]])
                c.ptcctl("job", "delete", "own", prefix=AS_STRANGER, node=node)
            self.assertTrue(json.loads(c.ptcctl("drain", "n0", "--wait", "--format", "json").stdout)["closed"])

    @skip_unless_root
    def test_stranger_reads_no_file(self):
        """Walks everything a cluster writes as the stranger: only directories on the way to the control socket, it, the one beside it
        (test_descriptors_are_the_owners), and nothing else, can be opened. A job's chunks are its owner's."""
        for transport in ("tls", "unix"):
            with self.subTest(transport), self.cluster(nodes=2, transport=transport) as c:
                job = self.job(c)
                job.imported("tp=2")
                keep = {n.socket + end for n in c.nodes.values() for end in ("", DIRECT)}
                ours = {n.config for n in c.nodes.values()} | {os.path.join(c.dir, "cluster.json")}
                ours |= {p for n in c.nodes.values() for p in (n.pid_file, n.log_file)} # local-cluster's, not ptcd's
                opened = self.as_stranger(c.dir, c.options["chunk_root"])
                self.assertEqual(keep, {p for p in opened if stat.S_ISSOCK(os.lstat(p).st_mode)})
                self.assertEqual(set(), {p for p in opened if stat.S_ISREG(os.lstat(p).st_mode)} - ours)
                job.delete()

    def as_stranger(self, *roots):
        """Paths of files and sockets below roots that the stranger can open or connect to."""
        script = r"""
import os, socket, stat, sys
for root in sys.argv[1:]:
    for d, _, files in os.walk(root):
        for f in files:
            p = os.path.join(d, f)
            try:
                if stat.S_ISSOCK(os.lstat(p).st_mode):
                    kind = socket.SOCK_SEQPACKET if p.endswith(".direct") else socket.SOCK_STREAM
                    socket.socket(socket.AF_UNIX, kind).connect(p)
                else:
                    open(p, "rb").close()
            except OSError:
                continue
            print(p)
"""
        out = subprocess.run([*AS_STRANGER, "/usr/bin/python3", "-c", script, *roots], stdout=subprocess.PIPE, text=True,
                             check=True).stdout
        return set(out.split("\n")) - {""}

    @skip_unless_root
    def test_stranger_reaches_no_socket_but_control(self):
        for transport in ("tls", "unix"):
            with self.subTest(transport), self.cluster(nodes=2, transport=transport) as c:
                _, paths = listening(c)
                control = {n.socket + end for n in c.nodes.values() for end in ("", DIRECT)}
                self.assertLessEqual(control, paths, "ss shows the control sockets")
                for path in paths - control:
                    self.assertFalse(path.startswith("@"), f"{path}: an abstract socket has no owner")
                    # etcd names its sockets relative to its directory; found by walking in test_stranger_reads_no_file
                    if path.startswith("/"):
                        r = subprocess.run([*AS_STRANGER, "/usr/bin/python3", "-c", "import socket, sys\n"
                                            "socket.socket(socket.AF_UNIX).connect(sys.argv[1])", path],
                                           stderr=subprocess.PIPE, text=True, check=False)
                        self.assertIn("PermissionError", r.stderr, path)

    # ---- descriptors of chunk files ----------------------------------------------------------------------------------

    ASK = r"""
import json, os, socket, struct, sys
path, questions = sys.argv[1], json.loads(sys.argv[2])
for q in questions:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.settimeout(20)
        s.connect(path)
        said = {"status": None, "fd": False} # None: the connection was ended
        try:
            s.send(bytes.fromhex(q))
            data, ancillary, _, _ = s.recvmsg(1 << 20, 64)
        except OSError:
            data, ancillary = b"", []
        if data:
            said["status"], _, ino, n, m = struct.unpack_from("<4xiQQII", data)
            spans = [struct.unpack_from("<QQI4x", data, 32 + 24 * i) for i in range(n)]
            chunks = [struct.unpack_from("<3Q", data, 32 + 24 * n + 152 * i) for i in range(m)]
        for _, _, sent in ancillary:
            fd = struct.unpack("<i", sent)[0]
            said["fd"] = True
            said["bytes"] = b"".join(os.pread(fd, span[1], span[0]) for span in spans).hex()
            said["use"] = all(struct.unpack("<Q", os.pread(fd, 8, chunks[span[2]][1]))[0] == chunks[span[2]][2] for span in spans)
            said["written"] = []
            for name, change in (("write", lambda: os.pwrite(fd, b"x", 4096)), ("truncate", lambda: os.ftruncate(fd, 0)),
                                 ("reopen", lambda: os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))),
                                 ("punch", lambda: os.posix_fallocate(fd, 0, 4096))):
                try:
                    change()
                    said["written"].append(name)
                except OSError:
                    pass
            os.close(fd)
        print(json.dumps(said))
"""

    def ask(self, prefix, node, *questions):
        out = subprocess.run([*prefix, "/usr/bin/python3", "-c", self.ASK, node.socket + DIRECT,
                              json.dumps([q.hex() for q in questions])], stdout=subprocess.PIPE, text=True, check=True).stdout
        return [json.loads(line) for line in out.splitlines()]

    @staticmethod
    def question(uuid, generation, snapshot, ranges, magic=0x3244454c, nranges=None):
        """ranges: (item, byte shape, offset, length)"""
        q = struct.pack("<II40s4Q", magic, len(ranges) if nranges is None else nranges, uuid.encode(), generation, snapshot, 0, 0)
        return q + b"".join(struct.pack("<II8qQQ", item, len(shape), *shape, *[0] * (8 - len(shape)), offset, length)
                            for item, shape, offset, length in ranges)

    @skip_unless_root
    def test_descriptors_are_the_owners(self):
        """Where a job's bytes lie and a descriptor for reading them: for its owner and root, who cannot write by it; to others the job
        does not exist. Whatever else is said to that socket changes nothing."""
        with self.cluster(nodes=1, devices=1) as c:
            node, jobs = c.nodes["n0"], {}
            for name, prefix in (("secret", []), ("own", AS_STRANGER)):
                job = jobs[name] = self.job(c, name)
                os.chmod(self.dir, 0o755)
                c.ptcctl("job", "create", "-f", job.yaml, prefix=prefix)
                c.ptcctl(*job.import_args("tp=1"), prefix=prefix)
            asked = {}
            for name, job in jobs.items():
                st = job.status()
                asked[name] = (st["uuid"], st["generation"], st["snapshot"], [(0, (64, 64), 0, 4096)])
                with open(job.files["param"], "rb") as f:
                    want = f.read()[-4096:].hex()
                good = {"status": 0, "fd": True, "bytes": want, "use": True, "written": []}
                self.assertEqual({**good, "written": ["reopen"]}, # root may open anything
                                 self.ask([], node, self.question(*asked[name]))[0])
                if name == "own":
                    self.assertEqual([good], self.ask(AS_STRANGER, node, self.question(*asked[name])))
            nowhere = ("00000000-0000-4000-8000-000000000000", 1, 1, asked["own"][3])
            none, secret = self.ask(AS_STRANGER, node, self.question(*nowhere), self.question(*asked["secret"]))
            self.assertEqual(none, secret)
            self.assertEqual((True, False), (secret["status"] < 0, secret["fd"]))
            self.nonsense(node, asked["own"])
            self.assertEqual([good], self.ask(AS_STRANGER, node, self.question(*asked["own"])))
            for name in jobs:
                jobs[name].delete()

    def nonsense(self, node, asked):
        bad = [((64, 64), 4096, 1), ((64, 64), 0, 4097), ((64, 64), 0, 0), ((), 0, 1), ((-64, -64), 0, 1),
               ((1 << 31, 1 << 33), 0, 1), ((64, 64), (1 << 64) - 1, 2), ((1 << 62,), 0, 1 << 62), ((4096,), 0, 4096)]
        for said in self.ask([], node, *(self.question(*asked[:3], [(0, *b)]) for b in bad),
                             self.question(*asked[:3], [(9, (64, 64), 0, 1)])):
            self.assertEqual((True, False), (said["status"] < 0, said["fd"]))
        right = self.question(*asked)
        for said in self.ask([], node, right[:-1], right + b"x", b"x", right[:88], self.question(*asked, nranges=257),
                             self.question(*asked, magic=1), right * 300, self.question("x" * 40, *asked[1:])):
            self.assertEqual({"status": None, "fd": False}, said)
        mutants = []
        for _ in range(200):
            m = bytearray(right)
            for _ in range(self.random.randrange(1, 9)):
                m[self.random.randrange(len(m))] = self.random.choice((0, 1, 0x7f, 0x80, 0xff, self.random.randrange(256)))
            mutants.append(bytes(m))
        self.ask([], node, *mutants)
        crowd = []
        for _ in range(100): # of one user; what is too much is closed
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.connect(node.socket + DIRECT)
            crowd.append(s)
        self.assertEqual(1, len(self.ask(AS_STRANGER, node, right)))
        for s in crowd:
            s.close()

    @skip_unless_root
    def test_stranger_cannot_put_into_etcd(self):
        """With the very command line and files that root used."""
        for transport in ("tls", "unix"):
            with self.subTest(transport), self.cluster(nodes=2, transport=transport) as c:
                self.assertEqual(0, c.etcdctl("put", "/ptc-test", "x").returncode, "positive control")
                argv = [*AS_STRANGER, "etcdctl", "--dial-timeout=2s", "--command-timeout=2s"]
                if transport == "tls":
                    t = c.tls("n0")
                    argv += ["--cacert", t["ca"], "--cert", t["cert"], "--key", t["key"],
                             f"--endpoints=https://127.0.0.1:{c.options['etcd_port']}"]
                else:
                    argv += [f"--endpoints={c.etcd_urls()[0]}"]
                r = subprocess.run([*argv, "put", "/ptc-test", "y"], env={**os.environ, "ETCDCTL_API": "3"},
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30, check=False)
                self.assertNotEqual(0, r.returncode, r.stdout)
                self.assertIn("x", c.etcdctl("get", "/ptc-test").stdout.split())


if __name__ == "__main__":
    unittest.main()
