# SPDX-License-Identifier: Apache-2.0
"""Who belongs to a cluster: certificates that the authority signed for others than its nodes, etcd's door, nodes that were
removed. Each refusal has a positive control beside it.

The authority's other customers here: `admin` (an administrator), `stranger` (no name of ptc's), `outsider` (names a node,
but not as a member), and `self`, who signed for himself.
"""
import concurrent.futures
import contextlib
import json
import os
import stat
import subprocess
import sys
import time
import unittest

import harness
import numpy as np
import state as states
import wire
from harness import PATIENCE, ROOT, Job, skip_unless_root, wait_for
from test_bounds import Clock
from test_security import answers_http2, tls_context

RULES = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
STRANGERS = ("admin", "stranger", "outsider", "self")
RELAYED = ("Status", "Events", "Run", "Stop", "Snapshot", "ImportBegin", "ImportCommit", "JobDelete", "Resize", "Abort", "DatasetRead",
           "Leave", "Rollback", "RollbackSkipping")


def openssl(*args, cwd):
    subprocess.run(["openssl", *args], cwd=cwd, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def make_strangers(ca):
    """What make-test-ca has not made already."""
    subprocess.run([os.path.join(ROOT, "deploy", "make-test-ca"), ca, "--nodes", "outsider", "--member", "other-cluster"], check=True)
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=ptc test CA",
            "-addext", "subjectAltName=URI:ptc://node/n1,DNS:ptc-node", "-addext", "extendedKeyUsage=clientAuth,serverAuth",
            "-keyout", "self.key", "-out", "self.crt", cwd=ca)


def revoke(ca, *names):
    """Writes crl.pem: every certificate that was revoked so far, and these."""
    config = os.path.join(ca, "crl.cnf")
    if not os.path.exists(config):
        with open(os.path.join(ca, "index.txt"), "w"), open(config, "w") as f:
            f.write("[ca]\ndefault_ca = c\n[c]\ndatabase = index.txt\ndefault_md = sha256\ndefault_crl_days = 30\n"
                    "certificate = ca.crt\nprivate_key = ca.key\n")
    for name in names:
        openssl("ca", "-config", "crl.cnf", "-revoke", f"{name}.crt", cwd=ca)
    openssl("ca", "-config", "crl.cnf", "-gencrl", "-out", "crl.new", cwd=ca)
    os.rename(os.path.join(ca, "crl.new"), os.path.join(ca, "crl.pem"))


class Trust(harness.Case):
    def peer(self, c, name, node="n0", uid=None):
        """A connection to a daemon's TCP port that shows NAME's certificate."""
        import grpc

        def read(f):
            with open(os.path.join(c.dir, "ca", f), "rb") as x:
                return x.read()
        cred = grpc.ssl_channel_credentials(read("ca.crt"), read(f"{name}.key"), read(f"{name}.crt"))
        return wire.Peer(f"localhost:{c.options['ports'][node]}", cred, [] if uid is None else [("ptc-uid", uid)])

    def answer(self, peer, service, rpc, **fields):
        import grpc
        known = wire.TYPES[wire.METHODS[service, rpc][1]].DESCRIPTOR.fields_by_name
        request = wire.message(wire.METHODS[service, rpc][1], **{k: v for k, v in fields.items() if k in known})
        try:
            peer.call(service, rpc, [request] if wire.METHODS[service, rpc][0] else request)
        except grpc.RpcError as e:
            return e.code().name
        return "OK"

    def etcdctl_as(self, c, name, *args, limit="5s"):
        ca = os.path.join(c.dir, "ca")
        return subprocess.run(["etcdctl", "--endpoints", ",".join(c.etcd_urls()), f"--dial-timeout={limit}", f"--command-timeout={limit}", "--cacert",
                               f"{ca}/ca.crt", "--cert", f"{ca}/{name}.crt", "--key", f"{ca}/{name}.key", *args],
                              env={**os.environ, "ETCDCTL_API": "3"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60, check=False)

    def imported(self, c, name="job"):
        s = states.State()
        s.add(np.random.default_rng(self.seed), "w", "F32", (64, 16))
        job = Job(c, name, s, self.path(name), RULES)
        job.imported("tp=2")
        return job

    # ---- etcd -------------------------------------------------------------------------------------------------------

    def check_etcd(self, c, ports):
        """Strangers pass no handshake on any of etcd's ports, and neither read nor write; members do both."""
        ca = os.path.join(c.dir, "ca")
        make_strangers(ca)
        self.assertEqual(0, self.etcdctl_as(c, "n1", "put", "/ptc-test", "x").returncode, "positive control")
        for port in ports["client"]:
            self.assertTrue(answers_http2(port, tls_context(ca, "n1")), "positive control")
        tries = [(name, args) for name in STRANGERS for args in (("get", "--prefix", "/ptc/"), ("put", "/ptc-test", "y"), ("del", "/ptc-test"))]
        with concurrent.futures.ThreadPoolExecutor(len(tries)) as pool: # each fails for as long as it may try
            for (name, args), r in zip(tries, pool.map(lambda t: self.etcdctl_as(c, t[0], *t[1], limit="1s"), tries)):
                self.assertNotEqual(0, r.returncode, f"{name}, {args}: {r.stdout}")
                self.assertNotIn("/ptc/", r.stdout.replace(c.dir, ""), f"{name}, {args}")
        for name in STRANGERS:
            for port in ports["client"] + ports["peer"]:
                self.assertFalse(answers_http2(port, tls_context(ca, name)), f"{name} passes the handshake of port {port}")
                for path in ("/health", "/metrics", "/version", "/members", "/v3/kv/range", "/raft/stream/message/1"):
                    self.assertEqual(b"", self.http1(port, tls_context(ca, name), path), f"{name}, port {port}, {path}")
        self.assertIn("x", self.etcdctl_as(c, "n1", "get", "/ptc-test").stdout.split())

    def http1(self, port, context, path):
        import socket
        import ssl
        context.set_alpn_protocols(["http/1.1"])
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
                plain.settimeout(5)
                s = context.wrap_socket(plain, server_hostname="localhost")
                s.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                return s.recv(100)
        except (ssl.SSLError, OSError):
            return b""

    def test_strangers_do_not_reach_the_local_etcd(self):
        with self.cluster(nodes=2, transport="tls") as c:
            self.check_etcd(c, {"client": [c.options["etcd_port"]], "peer": []})

    @harness.labels("repeats")
    def test_strangers_do_not_reach_an_etcd_cluster(self):
        """As docs/install.md says to start its members; and no daemon starts while one of them lets strangers in."""
        with self.cluster(nodes=2, transport="tls", coordinator="etcd-cluster") as c:
            ports = {k: [m[k] for m in c.options["members"]] for k in ("client", "peer")}
            self.check_etcd(c, ports)
            node = c.nodes["n1"]
            node.stop()
            c.restart_member(2, without=("--client-cert-allowed-hostname",))
            node.run()
            node.wait_gone(30 * PATIENCE)
            self.assertRegex(node.log_tail(1), rf"^ptcd: \S+ptcd.yaml:\d+:\d+: coordinator.endpoints: etcd at 127.0.0.1:{ports['client'][2]} lets in "
                             r"\S+stranger.crt, .*--client-cert-allowed-hostname=ptc-node")
            c.restart_member(2, without=("--client-cert-auth", "--client-cert-allowed-hostname", "--trusted-ca-file"))
            node.run()
            node.wait_gone(30 * PATIENCE)
            self.assertRegex(node.log_tail(1), r"lets in whoever shows no certificate")
            c.restart_member(2)
            node.run()
            c.wait_nodes(["n0", "n1"])

    def test_a_stranger_is_asked_for(self):
        """Without one whose refusal proves something, a daemon does not start on somebody else's etcd, unless told to."""
        with self.cluster(nodes=2, transport="tls") as c:
            node, ca = c.nodes["n1"], os.path.join(c.dir, "ca")
            node.stop()
            right = c.config(node)["coordinator"]
            tls = c.tls("n1")
            own = {k: tls[k] for k in ("cert", "key")}
            none = {k: v for k, v in right.items() if k != "stranger"}
            make_strangers(ca)
            wrong = {k: os.path.join(ca, f"self.{f}") for k, f in (("cert", "crt"), ("key", "key"))}
            for coordinator, says in ((none, "coordinator.stranger: missing; name a certificate"),
                                      ({**right, "stranger": own}, "stranger.cert: .*n1.crt carries the DNS name ptc-node"),
                                      ({**right, "stranger": wrong}, "stranger.cert: .*self.crt"),
                                      ({**right, "stranger": {"cert": own["cert"]}}, "stranger.key: missing; coordinator.stranger needs")):
                c.write_config(node, coordinator=coordinator)
                r = subprocess.run([harness.program("ptcd"), "--check-config", "--config", node.config], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, check=False)
                self.assertEqual(1, r.returncode)
                self.assertRegex(r.stdout, says)
            c.write_config(node, coordinator={**none, "unproved": "yes"})
            node.run()
            c.wait_nodes(["n0", "n1"])
            with open(node.log_file) as f:
                self.assertIn("coordinator.unproved", f.read())

    # ---- nodes ------------------------------------------------------------------------------------------------------

    def test_strangers_call_nothing(self):
        """Neither what nodes call nor what administrators do, however they name themselves."""
        with self.cluster(nodes=2, transport="tls") as c:
            make_strangers(os.path.join(c.dir, "ca"))
            with self.peer(c, "n1") as node, self.peer(c, "admin") as admin:
                self.assertEqual("OK", self.answer(node, "Peer", "Stat"), "positive control")
                self.assertEqual("OK", self.answer(admin, "Control", "JobList"), "positive control")
            for name in ("stranger", "outsider"):
                with self.peer(c, name, uid="0") as peer:
                    for service, rpc in wire.METHODS:
                        self.assertEqual("UNAUTHENTICATED", self.answer(peer, service, rpc), f"{name}, {rpc}")
            with self.peer(c, "self") as peer:
                self.assertEqual("UNAVAILABLE", self.answer(peer, "Control", "JobList"))

    def test_a_node_acts_for_users_only(self):
        """A member relays calls of its users, and says whose they are; it has no rights of its own, and none that need not be relayed."""
        with self.cluster(nodes=2, transport="tls") as c:
            job = self.imported(c)
            there = {"job": "job", "name": "job", "node": "n0", "config": "tp=1", "json": "{}"}
            for uid in (None, "", "-1", "root", "4294967295", "0x0"):
                with self.peer(c, "n1", uid=uid) as peer:
                    for service, rpc in wire.METHODS:
                        if service == "Control":
                            self.assertEqual("PERMISSION_DENIED", self.answer(peer, service, rpc, **there), f"{rpc} for {uid}")
            with self.peer(c, "n1", uid="0") as root, self.peer(c, "n1", uid="12345") as other:
                for rpc in (rpc for service, rpc in wire.METHODS if service == "Control" and rpc not in RELAYED):
                    self.assertEqual("PERMISSION_DENIED", self.answer(root, "Control", rpc, **there), rpc)
                self.assertEqual("OK", self.answer(root, "Control", "Status", **there), "positive control")
                self.assertEqual("NOT_FOUND", self.answer(other, "Control", "Status", **there))
            for node in c.nodes: # what is relayed works, and nothing above did anything
                job.resize("tp=1" if node == "n1" else "tp=2", node=node)
            job.check_whole(self)

    def test_a_removed_node_is_out(self):
        """Its certificate goes into the list of revoked ones: without a restart it calls nobody, etcd ends its connections and takes no
        new ones, and the cluster goes on without it."""
        with self.cluster(nodes=3, transport="tls", up=False, lease_ttl="3s") as c:
            ca = os.path.join(c.dir, "ca")
            revoke(ca)
            for node in c.nodes.values():
                c.write_config(node, tls={**c.tls(node.name), "crl": os.path.join(ca, "crl.pem")})
            c.up()
            job = self.imported(c)
            with self.peer(c, "n2") as peer:
                self.assertEqual("OK", self.answer(peer, "Peer", "Stat"), "positive control")
                revoke(ca, "n2")
                wait_for(lambda: self.answer(peer, "Peer", "Stat") == "UNAUTHENTICATED", 20 * PATIENCE, "n2 to be refused")
            wait_for(lambda: self.etcdctl_as(c, "n2", "get", "/ptc/cluster").returncode, 20 * PATIENCE, "etcd to refuse n2")
            wait_for(lambda: c.nodes_up("n0") == {"n0", "n1"}, 30 * PATIENCE, "n2 to be down")
            self.assertEqual(0, self.etcdctl_as(c, "n1", "get", "/ptc/cluster").returncode)
            with self.keeps_leases(c, "n0", "n1"), contextlib.ExitStack() as stack: # it tries as fast as it can
                for i, node in enumerate(("n0", "n1") if os.geteuid() == 0 else ()): # root alone becomes another user
                    p = subprocess.Popen([sys.executable, os.path.join(ROOT, "tests", "hostile.py"), str(54500 + i), "flood-tls",
                                          str(c.options["ports"][node]), "8", os.path.join(ca, "n2")],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                    for end in (p.stdout.close, p.wait, p.stdin.close):
                        stack.callback(end)
                    self.assertEqual("1 0\n", p.stdout.readline(), "a handshake with the revoked certificate")
                with Clock(f"unix:{c.nodes['n0'].socket}") as clock:
                    job.resize("tp=1")
                    job.check_whole(self)
                    wait_for(lambda: clock.failed or len(clock.took) > 3, 60 * PATIENCE, "answers")
                self.assertIsNone(clock.failed)
                self.check_prompt(clock.took)
            c.nodes["n2"].kill() # it cannot give its lease back, and would try
            c.nodes["n2"].run()
            c.nodes["n2"].wait_gone(20 * PATIENCE)
            self.assertRegex(c.nodes["n2"].log_tail(1), r"tls.crl: \S+n2.crt is revoked by \S+crl.pem")

    # ---- environments -----------------------------------------------------------------------------------------------

    TOKEN = "hunter2-0123456789abcdef"

    def live(self, c, name="job", **kw):
        """Creates a job with a secret in its environment, which comes from the caller's and from its description."""
        path = self.path(f"{name}.yaml")
        with open(path, "w") as f:
            f.write(f"version: 1\nname: {name}\nrun:\n  argv: [/bin/sh, -c, 'echo $A $B; exec sleep 600']\n"
                    f"  env: {{A: '{self.TOKEN}-a'}}\n  build_timeout: 600s\ngpus: {{1: dp=1}}\n")
        c.ptcctl("job", "create", "-f", path, env={"B": f"{self.TOKEN}-b"}, **kw)

    def everything_in_etcd(self, c):
        out = c.etcdctl("get", "--prefix", "", "-w", "fields").stdout
        self.assertIn("/ptc/jobs/", out, "positive control")
        return out

    def test_environments_are_sealed(self):
        """etcd has no word of a job's environment, neither now nor in the files of its database; the job's ranks have all of it, on a
        node that was not there when the job was made too."""
        with self.cluster(nodes=2, devices=1, up=False) as c:
            c.start_node(c.nodes["n0"])
            c.wait_nodes(["n0"])
            self.live(c)
            self.assertNotIn(self.TOKEN, self.everything_in_etcd(c))
            job, found = c.json("status", "job")["jobs"][0]["uuid"].encode(), False
            for folder, _, files in os.walk(os.path.join(c.dir, "n0", "etcd")):
                for path in (os.path.join(folder, name) for name in files):
                    if stat.S_ISREG(os.stat(path).st_mode):
                        with open(path, "rb") as f:
                            data = f.read()
                        self.assertNotIn(self.TOKEN.encode(), data, path)
                        found |= job in data
            self.assertTrue(found, "positive control")
            self.assertNotIn(self.TOKEN, c.ptcctl("status", "job", "--format", "json").stdout)
            c.start_node(c.nodes["n1"])
            c.wait_nodes(["n0", "n1"])
            keys = [open(os.path.join(n.dir, "state", "key"), "rb").read() for n in c.nodes.values()]
            self.assertEqual(1, len(set(keys)))
            self.assertEqual(0o600, os.stat(os.path.join(c.nodes["n1"].dir, "state", "key")).st_mode & 0o777)
            self.assertNotIn(keys[0].split()[2].decode(), self.everything_in_etcd(c))
            c.ptcctl("drain", "n0", "--wait")
            run = subprocess.Popen([harness.program("ptcctl"), "run", "job"], env=c.environment({"PTC_SOCKET": c.nodes["n1"].socket}),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(run.wait)
            self.addCleanup(run.terminate)
            wait_for(lambda: f"{self.TOKEN}-a {self.TOKEN}-b" in c.ptcctl("logs", "job", node="n1", check=False).stdout, 30 * PATIENCE,
                     "the rank on n1 to say what it has")
            c.ptcctl("abort", "job", check=False)
            wait_for(lambda: not c.json("status", "job")["jobs"][0].get("ranks"), 30 * PATIENCE, "the end of the run")
            run.terminate()
            run.wait()
            c.ptcctl("job", "delete", "job")

    def test_a_node_without_the_key(self):
        """It says what it lacks until a node that has the key is back; a job is not made with another one."""
        with self.cluster(nodes=3, devices=1) as c:
            self.live(c)
            n1, n2 = c.nodes["n1"], c.nodes["n2"]
            for n in (n1, n2):
                n.stop()
                os.unlink(os.path.join(n.dir, "state", "key"))
            c.nodes["n0"].signal(19) # it holds etcd, which goes on
            n1.run()
            wait_for(lambda: "does not have the cluster's key" in n1.log_tail(50), 30 * PATIENCE, "n1 to miss the key")
            wait_for(lambda: c.nodes_up("n1"), 30 * PATIENCE, "n1 to answer")
            with open(self.path("job.yaml")) as f, open(self.path("other.yaml"), "w") as t:
                t.write(f.read().replace("name: job", "name: other"))
            self.refused(c, "job", "create", "-f", self.path("other.yaml"), node="n1", contains="does not have the cluster's key")
            c.nodes["n0"].signal(18)
            wait_for(lambda: c.ptcctl("plan", "job", "--gpus", "1", node="n1", check=False).returncode == 0, 30 * PATIENCE, "n1 to have the key")
            c.start_node(n2)
            c.wait_nodes(["n0", "n1", "n2"])
            self.assertEqual(1, len({open(os.path.join(n.dir, "state", "key"), "rb").read() for n in c.nodes.values()}))

    def test_nodes_that_start_together(self):
        """One has named the key and is about to keep it when the other asks: it waits for that, and jobs can be made at once."""
        with self.cluster(nodes=2, devices=1, up=False) as c:
            n0, n1 = c.nodes.values()
            with open(self.path("fault"), "w") as f:
                f.write("etcd.key.after=hold")
            c.start_node(n0, {"PTC_FAULT_FILE": self.path("fault"), "PTC_FAULT_LIST": self.path("points")})
            wait_for(lambda: os.path.exists(self.path("points")) and "etcd.key.after" in open(self.path("points")).read(),
                     30 * PATIENCE, "the key to be named")
            c.start_node(n1)
            asked = time.monotonic() + 1.5
            wait_for(lambda: "does not have the cluster's key" in n1.log_tail(50) or time.monotonic() > asked, 30 * PATIENCE, "n1 to ask")
            harness.replace_file(self.path("fault"))
            c.wait_nodes(["n0", "n1"])
            self.live(c, node="n1")

    def test_keys_that_are_none(self):
        """A file that is no key is refused by name; descriptions that somebody changed, or took from another job, are not run."""
        with self.cluster(nodes=1, devices=1) as c:
            self.live(c, "one")
            self.live(c, "two")
            spec = {}
            for name in ("one", "two"):
                job = c.json("status", name)["jobs"][0]["uuid"]
                meta = json.loads(c.etcdctl("get", "--print-value-only", f"/ptc/jobs/{job}/meta").stdout)
                spec[name] = (job, meta)
            (one, meta), (two, other) = spec["one"], spec["two"]
            node = c.nodes["n0"]
            with wire_etcd(c) as etcd: # the description of "two", whole, in the place of that of "one"
                prefix = f"/ptc/blobs/{two}/{other['spec']}/000000" # the part's bytes follow
                key, = c.etcdctl("get", "--prefix", "--keys-only", prefix).stdout.split()
                etcd.put(key.replace(two, one), etcd.get(key))
                etcd.put(f"/ptc/jobs/{one}/meta", json.dumps({**meta, "spec": other["spec"]}).encode())
            node.stop()
            node.run()
            c.wait_nodes(["n0"])
            self.refused(c, "run", "one", contains="the sealed bytes were changed, or moved to another key")
            self.assertIn("two", c.ptcctl("plan", "two", "--gpus", "1", "--format", "json").stdout)
            node.stop()
            with open(os.path.join(node.dir, "state", "key"), "r+") as f:
                f.write("x")
            node.run()
            node.wait_gone(20 * PATIENCE)
            self.assertRegex(node.log_tail(1), r"^ptcd: \S+/state/key is not a cluster's key; remove the file")

    # ---- names ------------------------------------------------------------------------------------------------------

    @skip_unless_root
    def test_names_are_each_users_own(self):
        """Two users and root have jobs of one name, made at different daemons; nobody learns of another's, each verb reaches the right
        one, and root says whose he means where he has none himself."""
        alice, bob = (["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"] for uid in (54321, 54322))
        with self.cluster(nodes=2, devices=4) as c:
            jobs = {}
            for i, (who, prefix) in enumerate((("alice", alice), ("bob", bob))):
                s = states.State()
                s.add(np.random.default_rng(self.seed + i), "w", "F32", (64, 16))
                jobs[who] = job = Job(c, "train", s, self.path(who), RULES)
                os.chmod(job.dir, 0o755)
                job.create(prefix=prefix, node=f"n{i}")
                self.refused(c, "job", "create", "-f", job.yaml, prefix=prefix, node=f"n{1 - i}", contains='a job named "train" exists already')
                c.ptcctl(*job.import_args("tp=2"), prefix=prefix, node="n0")
            for who, prefix, config in (("alice", alice, "tp=1"), ("bob", bob, "tp=4")):
                for node in c.nodes:
                    c.ptcctl("resize", "train", "--config", config, "--wait", prefix=prefix, node=node)
                rows = json.loads(c.ptcctl("job", "list", "--format", "json", prefix=prefix).stdout)["jobs"]
                self.assertEqual([int(prefix[1].split("=")[1])], [row["uid"] for row in rows])
                jobs[who].name = f"{rows[0]['uid']}:train" # for root
                jobs[who].check_whole(self)
            self.refused(c, "status", "54322:train", prefix=alice, contains='job "54322:train" does not exist')
            line = self.refused(c, "status", "train", contains='2 users have a job "train"; write UID:NAME: ')
            self.assertTrue("54321:train" in line and "54322:train" in line, line)
            for ref, config in (("54321:train", "tp=1"), ("54322:train", "tp=4")):
                self.assertEqual(config, c.json("status", ref)["jobs"][0]["config"])
            jobs["alice"].create() # root's own
            self.assertEqual(0, c.json("status", "train")["jobs"][0]["uid"])
            c.ptcctl("job", "delete", "train")
            drained = json.loads(c.ptcctl("drain", "n1", "--wait", "--format", "json").stdout)
            self.assertTrue(drained["closed"])
            for name, prefix in (("54321:train", []), ("train", bob)):
                c.ptcctl("job", "delete", name, prefix=prefix)
            self.assertEqual([], c.json("job", "list")["jobs"])
            self.assertEqual("", c.etcdctl("get", "--prefix", "/ptc/names/").stdout)

    @skip_unless_root
    def test_a_name_of_an_older_version(self):
        """It is its owner's still: not made twice, and gone with the job."""
        with self.cluster(nodes=1, devices=2) as c:
            job = self.imported(c, "old")
            uuid = job.status()["uuid"]
            for args in (("del", "/ptc/names/0/old"), ("put", "/ptc/names/old", uuid)):
                self.assertEqual(0, c.etcdctl(*args).returncode)
            c.restart("n0")
            self.refused(c, "job", "create", "-f", job.yaml, contains='a job named "old" exists already')
            job.check_whole(self)
            job.delete()
            self.assertEqual("", c.etcdctl("get", "--prefix", "/ptc/names/").stdout)

    @skip_unless_root
    @harness.needs("fusermount3")
    def test_names_as_files(self):
        """In the nodes' mount each user finds his own job under its name, and root each under its owner's number."""
        users = {uid: ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"] for uid in (54321, 54322)}
        where = self.path("mnt")
        with self.cluster(nodes=1, devices=2, fuse={"n0": {"dir": where}}) as c:
            for uid, prefix in users.items():
                s = states.State()
                s.add(np.random.default_rng(uid), "w", "F32", (64, 16))
                job = Job(c, "train", s, self.path(f"{uid}"), RULES)
                os.chmod(job.dir, 0o755)
                job.create(prefix=prefix)
                c.ptcctl(*job.import_args("tp=2"), prefix=prefix)
                with open(job.files["param"], "rb") as f:
                    users[uid] = (prefix, f.read())
            for _ in range(3): # one after the other, by the same path
                for uid, (prefix, want) in users.items():
                    self.assertEqual(b"train\n", subprocess.run([*prefix, "ls", where], stdout=subprocess.PIPE, check=True).stdout)
                    for name in ("train", f"{uid}:train"):
                        got = subprocess.run([*prefix, "cat", f"{where}/{name}/state/latest/model.safetensors"], stdout=subprocess.PIPE, check=True).stdout
                        self.assertEqual(want, got)
                    other = next(u for u in users if u != uid)
                    r = subprocess.run([*prefix, "ls", f"{where}/{other}:train"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
                    self.assertEqual((b"", True), (r.stdout, r.returncode != 0))
            self.assertEqual({f"{uid}:train" for uid in users}, set(os.listdir(where)))
            for uid, (_, want) in users.items():
                with open(f"{where}/{uid}:train/state/latest/model.safetensors", "rb") as f:
                    self.assertEqual(want, f.read())


@contextlib.contextmanager
def wire_etcd(c):
    """etcd's own API, for values that etcdctl cannot be given."""
    import grpc

    def field(number, data):
        size, out = len(data), b""
        while True:
            out += bytes([size & 127 | (128 if size > 127 else 0)])
            size >>= 7
            if not size:
                return bytes([number << 3 | 2]) + out + data

    def fields(data):
        at, found = 0, {}
        while at < len(data):
            tag, at = data[at], at + 1
            size = shift = 0
            while True:
                b, at = data[at], at + 1
                size |= (b & 127) << shift
                shift += 7
                if b < 128:
                    break
            if tag & 7 == 2:
                found[tag >> 3], at = data[at:at + size], at + size
        return found

    class Etcd:
        def __init__(self, channel):
            self.channel = channel

        def call(self, method, request):
            return self.channel.unary_unary(f"/etcdserverpb.KV/{method}", lambda b: b, lambda b: b)(request, timeout=10)

        def get(self, key):
            return fields(fields(self.call("Range", field(1, key.encode())))[2])[5]

        def put(self, key, value):
            self.call("Put", field(1, key.encode()) + field(2, value))

    with grpc.insecure_channel(f"unix:{c.etcd_socket()}", [("grpc.default_authority", "localhost")]) as channel:
        yield Etcd(channel)


if __name__ == "__main__":
    unittest.main()
