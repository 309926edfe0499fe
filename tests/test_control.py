# SPDX-License-Identifier: Apache-2.0
"""The control API under hostile and unlucky callers: what ptcctl would never send, clients that go away, a coordinator
that does not answer, daemons that are stopped in the middle. Spoken over grpcio (tests/wire.py), not through ptcctl.
"""
import concurrent.futures
import fcntl
import json
import mmap
import os
import random
import re
import signal
import socket
import struct
import subprocess
import threading
import time
import unittest
import xml.etree.ElementTree

import harness
import numpy as np
import state as states
import wire
from harness import PATIENCE, SLOWED, Job, wait_for

RULES = [{"match": "*", "split": {"axis": "tp", "dim": 0, "kind": "balanced"}}]

SEALS = {"add": 1033, "all": 0x1 | 0x2 | 0x4 | 0x10} # F_ADD_SEALS; of proto/direct_read.h


def digest_of(data):
    """base/number/digest.h, a byte at a time."""
    table = []
    for i in range(256):
        v = i << 56
        for _ in range(8):
            v = (v << 1 ^ 0xAD93D23594C935A9 if v >> 63 else v << 1) & (1 << 64) - 1
        table.append(v)
    v = 0
    for byte in data:
        v = (v << 8 & (1 << 64) - 1) ^ table[v >> 56 ^ byte]
    return v


class Window:
    """A client's end of proto/direct_read.h, which does as it likes."""
    MAGIC = 0x3157494c

    def __init__(self, control):
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.s.settimeout(20 * PATIENCE)
        self.s.connect(control + ".direct")
        self.s.send(struct.pack("=II", self.MAGIC, 0))
        reply, (self.fd,), _, _ = socket.recv_fds(self.s, 1024, 1)
        magic, status, size, self.key = struct.unpack("=IiQ16s", reply)
        assert (magic, status) == (self.MAGIC, 0), reply
        self.map = mmap.mmap(self.fd, size)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.s.close()
        self.map.close()
        os.close(self.fd)

    def seal(self):
        os.posix_fallocate(self.fd, 0, os.fstat(self.fd).st_size)
        fcntl.fcntl(self.fd, SEALS["add"], SEALS["all"])

    def say(self, item, offset, at, size):
        self.s.send(struct.pack("=IIQII", self.MAGIC, item, offset, at, size))

    def taken(self):
        return struct.unpack("=II", self.s.recv(64))[1]


@harness.labels("threads")
class Control(harness.Case):
    def job(self, c, name="j", tensors=4, shape=(64, 32)):
        s = states.State()
        for i in range(tensors):
            s.add(np.random.default_rng(self.seed + i), f"w{i}", "F32", shape)
        return Job(c, name, s, self.path(name), RULES)

    def peer(self, c, node="n0", **kw):
        return wire.Peer(f"unix:{c.nodes[node].socket}", timeout_s=60 * PATIENCE, **kw)

    def error(self, peer, rpc, request=None, **fields):
        """Status and text of a call that must be refused, with one line."""
        import grpc
        with self.assertRaises(grpc.RpcError, msg=rpc) as e:
            peer.call("Control", rpc, request, **fields)
        details = e.exception.details() or ""
        self.assertTrue(details, f"{rpc}: no text")
        self.assertNotIn("\n", details, rpc)
        return e.exception.code().name, details

    def begin(self, peer, job, config="tp=2"):
        """The import's number. Its call stays open, as a client's does, until the import or the test has ended."""
        call = peer.start("Control", "ImportBegin",
                          wire.message("ImportBeginRequest", job=job.name, config=config))
        self.addCleanup(call.cancel)
        return next(call).import_id

    def chunks(self, job, import_id):
        for item, name in enumerate(sorted(job.state.tensors["param"])):
            yield wire.message("ImportChunk", job=job.name, import_id=import_id, item=item, offset=0,
                               data=job.state.tensors["param"][name].tobytes())

    def phase(self, job, node="n0"):
        return job.status(node=node)["phase"]

    # ---- commands -----------------------------------------------------------------------------------------------------

    def usage(self, c, *args, **kw):
        """The one line of a command that is refused as wrong usage."""
        r = c.ptcctl(*args, check=False, **kw)
        self.assertEqual((2, 1, ""), (r.returncode, r.stderr.count("\n"), r.stdout), r.stderr)
        return r.stderr

    def test_asked_while_starting(self):
        """A daemon that has just started is asked before it has read all keys, of which the job has very many: what it says is so,
        or it says that it does not know yet."""
        with self.cluster(nodes=2) as c:
            job = self.job(c)
            job.imported("dp=1")
            uuid = job.status()["uuid"]
            for page in range(120): # between "meta" and "record"
                puts = "".join(f'put /ptc/jobs/{uuid}/n/{page}-{i} "x"\n' for i in range(120))
                self.assertEqual(0, c.etcdctl("txn", given=f"\n{puts}\n\n").returncode)
            asked = []
            for _ in range(3):
                c.nodes["n1"].kill()
                c.start_node(c.nodes["n1"])
                done = set()
                while len(done) < 3:
                    for ask in (("job", "list"), ("status", "j"), ("plan", "j", "--config", "dp=2")):
                        r = c.ptcctl(*ask, "--format", "json", node="n1", check=False)
                        asked.append((ask[0], r.returncode))
                        if r.returncode:
                            self.assertRegex(r.stderr, "nobody listens|Socket closed|reading", ask)
                            continue
                        done.add(ask)
                        said = json.loads(r.stdout)
                        if "jobs" in said:
                            self.assertEqual([("j", 1)], [(row["job"], row["generation"]) for row in said["jobs"]], ask)
                        else:
                            self.assertEqual("tp=1", said["from"], said)
            print(asked)

    def test_a_job_that_is_not_named(self):
        """`ptcctl resize --gpus 2` and the others mean the only job that the caller sees, or the one of $PTC_JOB. With none, or
        several, one line says so. What deletes is not guessed."""
        with self.cluster(nodes=1, devices=2) as c:
            self.assertIn("you have none: `ptcctl job create", self.usage(c, "resize", "--gpus", "2"))
            one = self.job(c, "one")
            one.create()
            c.ptcctl("import", one.files["param"], "--config", "tp=1")
            self.assertIn("job one: accepted", c.ptcctl("resize", "--gpus", "2", "--config", "tp=2").stdout)
            one.wait_idle()
            self.assertEqual("tp=1", c.json("resize", "--config", "tp=1", "--wait")["to"])
            self.check_progress(c)
            self.check_names_completed(c, "n0", "one")
            self.assertEqual("one", c.json("plan", "--config", "tp=2")["job"])
            self.assertIn("job one: snapshot", c.ptcctl("verify").stdout)
            self.assertEqual(1, len(c.json("snapshots")["snapshots"]))
            self.assertTrue(c.ptcctl("events").stdout)
            target = self.path("out")
            os.makedirs(target)
            c.ptcctl("export", os.path.join(target, "m.safetensors"))
            c.ptcctl("export", "--ranks", target)
            self.assertIn("needs a TARGET", self.usage(c, "export", "one"))
            self.assertIn("by its name, because its state will be gone; you have one", self.usage(c, "job", "delete"))
            self.assertEqual(["one"], c.ptcctl("job", "list", "--names").stdout.split())
            self.assertEqual(["n0"], c.ptcctl("nodes", "--names").stdout.split())
            self.assertNotIn("spec_hash", c.ptcctl("job", "list").stdout)

            pictures = [json.loads(line) for line in c.ptcctl("top", "--every", "100ms", "--count", "2", "--format", "json").stdout.splitlines()]
            self.assertEqual([(["n0"], ["one"])] * 2, [([n["node"] for n in p["nodes"]], [j["job"] for j in p["jobs"]]) for p in pictures])
            self.assertRegex(c.ptcctl("top", "--count", "1").stdout, r"(?s)node .*n0 .*job .*one .*tp=1")
            self.assertIn("--every", self.usage(c, "top", "--every", "soon"))

            two = self.job(c, "two")
            two.create()
            self.assertIn("needs JOB, or $PTC_JOB; you have one, two", self.usage(c, "resize", "--gpus", "2"))
            self.assertEqual("one", c.json("plan", "--config", "tp=2", env={"PTC_JOB": "one"})["job"])
            self.assertIn("argument 1 is empty", self.usage(c, "status", ""))
            c.ptcctl("job", "delete", env={"PTC_JOB": "two"})
            self.assertEqual(["one"], c.ptcctl("job", "list", "--names").stdout.split())

    def check_progress(self, c):
        """What a script keeps of stderr is errors: no line of progress, unless it asks for them."""
        for more, to in (([], "tp=2"), (["--progress"], "tp=1")):
            r = c.ptcctl("resize", "--config", to, "--wait", *more)
            self.assertEqual(bool(more), bool(r.stderr), r.stderr)
        self.assertRegex(r.stderr, r"(?m)^done\b")

    def check_names_completed(self, c, node, job):
        """bash offers the names of jobs and nodes, those that begin with what is typed, where a verb or an option takes one."""
        script = c.ptcctl("completion", "bash").stdout
        env = c.environment({"PTC_SOCKET": c.nodes[node].socket, "PATH": os.path.dirname(harness.program("ptcctl")) + ":" + os.environ["PATH"]})
        os.makedirs(self.path("empty")) # where no name is offered, those of files are
        for words, want in ((("status", ""), job), (("status", job[:1]), job), (("status", "x"), ""), (("resize", ""), job),
                            (("events", "--job", ""), job), (("job", "delete", ""), job), (("drain", ""), node), (("drain", node[:1]), node),
                            (("drain", job[:1]), ""), (("resize", job, "--nodes", ""), node), (("ping", ""), "")):
            r = subprocess.run(["bash", "-c", script + 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ptcctl; printf "%s\\n" "${COMPREPLY[@]}"',
                                "bash", "ptcctl", *words], env=env, cwd=self.path("empty"), stdout=subprocess.PIPE, text=True, check=True)
            self.assertEqual(want.split(), r.stdout.split(), words)

    def check_plan_picture(self, doc, text):
        """Each rank in its cell, before and after, what nodes send and get, and a band for each node that is not up."""
        root, svg = xml.etree.ElementTree.fromstring(text), "{http://www.w3.org/2000/svg}"
        rects = list(root.iter(svg + "rect"))
        labels = [t.text for t in root.iter(svg + "text")]
        used = {r["node"] for k in ("from_ranks", "ranks") for r in doc[k]}
        rows = [n for n in doc["nodes"] if n["node"] in used or n["state"] != "up"]
        for n in doc["nodes"]:
            self.assertEqual(int(n in rows), labels.count(n["node"]), n)
        self.assertEqual(2 * sum(n["devices"] for n in rows), sum(r.get("fill") == "#f4f4f4" for r in rects))
        self.assertEqual(len(doc["from_ranks"]), sum(r.get("fill") == "#d7e3f4" for r in rects))
        self.assertEqual(len(doc["ranks"]), sum(r.get("stroke") == "#333" and r.get("fill") == "none" for r in rects))
        for r in range(max(len(doc["ranks"]), len(doc["from_ranks"]))):
            self.assertEqual((r < len(doc["ranks"])) + (r < len(doc["from_ranks"])), labels.count(str(r)))
        of = {n["node"]: n for n in doc["nodes"]}
        red = [f"{of[r['node']]['in_bytes'] / of[r['node']]['held_bytes'] * 44:.1f}" for r in doc["ranks"] if of[r["node"]]["in_bytes"]]
        self.assertEqual(sorted(red), sorted(r.get("height") for r in rects if r.get("fill") == "#eb9a8f"))
        said = sorted(line.find(svg + "title").text for line in root.iter(svg + "line"))
        self.assertEqual(sorted([f"{n['node']} sends {n['out_bytes']} bytes" for n in rows if n.get("out_bytes")] +
                                [f"{n['node']} gets {n['in_bytes']} bytes" for n in rows if n.get("in_bytes")]), said)
        for state, about in (("down", "node is down"), ("drained", "node is drained")):
            n = sum(row["state"] == state for row in rows)
            bands = [r for r in rects if r.get("class") == state]
            self.assertEqual(n + bool(n), len(bands), "a band for each, and one in the legend")
            self.assertEqual((n, bool(n)), (labels.count(state), any(t.startswith(about) for t in labels)))
        self.assertEqual(sum(n["devices"] for n in rows if n["state"] == "down"),
                         sum(e.get("class") == "failed" for e in root.iter(svg + "path")))
        self.assertEqual(f"job {doc['job']}: {doc['from'] or 'nothing'} to {doc['to']}", root.find(svg + "title").text)

    def test_plan_as_a_picture(self):
        """`plan JOB --format svg` shows where ranks are and will be, and which nodes are down or drained; the document says so, too."""
        with self.cluster(nodes=5, devices=2) as c:
            job = self.job(c)
            job.imported("tp=2,dp=2")
            ranks = [{k: r[k] for k in ("rank", "node", "device")} for r in job.status()["ranks"]]
            plan = ("plan", job.name, "--config", "tp=2,dp=3")
            doc = c.json(*plan)
            self.assertEqual(ranks, doc["from_ranks"])
            self.assertEqual({(n, "up", 2) for n in c.nodes}, {(n["node"], n["state"], n["devices"]) for n in doc["nodes"]})
            self.check_plan_picture(doc, c.ptcctl(*plan, "--format", "svg").stdout)
            idle = [n for n in c.nodes if n != "n0" and n not in {r["node"] for r in ranks}]
            c.ptcctl("drain", idle[0])
            c.nodes[idle[1]].kill()
            wait_for(lambda: {n["node"]: n["state"] for n in c.json("nodes")["nodes"]}[idle[1]] == "down", 60 * PATIENCE, "a node that is down")
            doc = c.json(*plan)
            self.assertEqual({idle[0]: "drained", idle[1]: "down"}, {n["node"]: n["state"] for n in doc["nodes"] if n["state"] != "up"})
            self.assertGreater(sum(n.get("in_bytes", 0) for n in doc["nodes"]), 0)
            self.check_plan_picture(doc, c.ptcctl(*plan, "--format", "svg").stdout)
            table = c.ptcctl(*plan).stdout
            self.assertRegex(table, rf"(?m)^  {idle[0]} .*  drained$")
            self.assertRegex(table, rf"(?m)^  {idle[1]} .*  down$")

    def test_kinds_of_events(self):
        """docs/control.md has each kind of event that the daemon's sources write, and no other."""
        written = set()
        for where, _, files in os.walk(os.path.join(harness.ROOT, "daemon")):
            for name in files:
                if name.endswith(".c") and not name.startswith("test_"):
                    with open(os.path.join(where, name), encoding="utf-8") as f:
                        text = f.read()
                    for kind in (*re.findall(r"\b(?:ptc_event(?:_with|_line_new)?|say)\(\s*[^,]+,\s*[^,]+,\s*([^,]+),", text),
                                 *re.findall(r"\b(?:will_)?tell\(\s*[^,]+,\s*([^,]+),", text)):
                        written |= set(re.findall(r'"(\w+)"', kind))
        with open(os.path.join(harness.ROOT, "docs", "control.md"), encoding="utf-8") as f:
            table = f.read().partition("### event\n")[2].partition("\n### ")[0]
        said = [kinds for kinds, _ in re.findall(r"^\| (`[^|]+) \| (.+) \|$", table, re.M)]
        self.assertEqual(written, set(re.findall(r"`(\w+)`", " ".join(said))))

    # ---- requests that are wrong ------------------------------------------------------------------------------------

    def test_a_version_in_every_message(self):
        """A request without one, or with one that nobody speaks yet, is refused by each call there is; the next one is not."""
        import grpc
        with self.cluster(nodes=1, devices=1) as c, self.peer(c) as p:
            with wire.Peer(f"unix:{c.nodes['n0'].dir}/run/peer/peer.sock") as q:
                for (service, rpc), (streams_in, kind, _, _) in wire.METHODS.items():
                    for version in (0, 3, 9, 2**32 - 1, 2):
                        request = wire.message(kind, version=version)
                        call = (p if service == "Control" else q).start(service, rpc, [request] if streams_in else request)
                        try:
                            said = "OK", str(list(call) if hasattr(call, "__next__") and wire.METHODS[service, rpc][2] else call.result())
                        except grpc.RpcError as e:
                            said = e.code().name, e.details()
                        if version == 2:
                            self.assertNotIn("version", said[1] if said[0] != "OK" else "", (service, rpc))
                        else:
                            self.assertRegex(said[1], rf"version {version}; this ptc [0-9.]+ speaks 1 to 2: upgrade", (service, rpc, said))
                            self.assertNotEqual("OK", said[0], (service, rpc))

    def test_requests(self):
        with self.cluster(nodes=2, devices=2) as c, self.peer(c) as p, self.peer(c, "n1") as q:
            job = self.job(c)
            job.imported("tp=2")
            for peer in (p, q):
                for rpc in ("JobDelete", "Abort", "Snapshots", "Verify", "Plan", "Resize", "ImportBegin", "ExportInfo",
                            "Events"):
                    for name in ("", "..", "a/b", "x" * 5000, "a\nb", "nö"):
                        self.assertEqual("NOT_FOUND", self.error(peer, rpc, job=name)[0], f"{rpc} {name[:9]!r}")
                for config in ("tp=0", "tp=-1", "tp=2,tp=2", "tp=99999999999", "tp=4294967295,pp=4294967295", "tp=2\n",
                               "x" * 10_000_000, "dp=1000000", "dp=131072"):
                    for rpc in ("Plan", "Resize"):
                        self.error(peer, rpc, job="j", config=config)
                for gpus in (5, 131072, 2**32 - 1):
                    self.error(peer, "Plan", job="j", gpus=gpus)
                self.assertEqual("RESOURCE_EXHAUSTED",
                                 self.error(peer, "Plan", job="j", config="tp=1", nodes=["n0"] * 1_000_000)[0])
                self.error(peer, "Plan", job="j", config="tp=1", nodes=[f"n{i}" for i in range(10000)])
                for node in ("", "..", "nope", "x" * 100000):
                    self.error(peer, "Drain", node=node)
                for n in (4, 2**31, 2**32 - 1):
                    self.error(peer, "Read", job="j", generation=1, snapshot=1, item=n, length=10)
                    self.error(peer, "ReadRank", job="j", generation=1, snapshot=1, item=n)
                    self.error(peer, "ReadRank", job="j", generation=1, snapshot=1, rank=n)
                for offset, length in ((2**64 - 1, 10), (10, 2**64 - 5), (8193, 0), (0, 8193)):
                    self.error(peer, "Read", job="j", generation=1, snapshot=1, item=0, offset=offset, length=length)
                self.error(peer, "Read", job="j", generation=9, snapshot=9, item=0, length=1)
                for items, offsets, lengths in (([0], [0], []), ([0], [], [1]), ([4], [0], [1]), ([0, 2**32 - 1], [0, 0], [1, 1]),
                                                ([0], [2**64 - 1], [10]), ([0], [10], [2**64 - 5]), ([0, 0], [0, 0], [2**63, 2**63]),
                                                ([0] * 8193, [0] * 8193, [1] * 8193), ([0] * 200, [0] * 200, [8192] * 200),
                                                ([0] * 1_000_000, [], [])):
                    self.error(peer, "ReadMany", job="j", generation=1, snapshot=1, items=items, offsets=offsets, lengths=lengths)
                self.error(peer, "ReadMany", job="j", generation=9, snapshot=9, items=[0], offsets=[0], lengths=[1])
                for raw in (b"\xff" * 10, b"\x08\x01\x12\xff\xff\xff\xff\x0f", b"\x08\x63"):
                    for rpc in ("Status", "Resize", "Drain", "ImportCommit", "JobCreate", "Events", "ReadRank"):
                        self.assertNotEqual("UNAVAILABLE", self.error(peer, rpc, raw)[0])
                    self.assertNotEqual("UNAVAILABLE", self.error(peer, "ImportData", [raw])[0])
                for rpc in ("Status", "Resize", "Drain", "ImportCommit", "JobCreate", "Events"):
                    self.assertEqual("RESOURCE_EXHAUSTED", self.error(peer, rpc, b"\x08\x01" * 5_000_000)[0])
                self.assertEqual("RESOURCE_EXHAUSTED", self.error(peer, "ImportCommit", b"\x2a\x00" * 5_000_000)[0])
                self.assertEqual("RESOURCE_EXHAUSTED", # nested: items, not packed
                                 self.error(peer, "ImportCommit", b"\x2a\x80\x80\x40" + b"\x20\x01" * (1 << 19))[0])
                for spec in (b"", b"{}", b"[]", b"null", b"[" * 100000, b'{"version":1}', bytes(100), b"\xff",
                             b'{"version":1,"name":"..","tensors":[]}'):
                    self.error(peer, "JobCreate", spec_json=spec)
                for state in ("max", "derive", "replicate"): # what ptcctl refuses, others are refused too
                    code, text = self.error(peer, "JobCreate", spec_json=json.dumps({
                        "version": 1, "name": "s", "tensors": [{"name": "w", "dtype": "F32", "shape": [4]}],
                        "rules": [{"match": "w", "state": state}]}).encode())
                    self.assertEqual("INVALID_ARGUMENT", code)
                    self.assertIn(f'rule "w": state {state} ', text)
            self.assertEqual(1, job.generation())
            job.check_whole(self)

    def test_commit_keeps_only_what_describes_the_job(self):
        with self.cluster(nodes=1, devices=2) as c, self.peer(c) as p:
            job = self.job(c)
            job.create()
            number = self.begin(p, job)
            p.call("Control", "ImportData", list(self.chunks(job, number)))
            good = {"field": "param", "name": "m.safetensors", "header": b"\x02" + bytes(7) + b"{}", "items": [0, 1, 2, 3]}
            for change in ({"items": [4]}, {"items": [0, 0]}, {"name": "../x"}, {"name": ""}, {"name": "x" * 300},
                           {"field": "exp_avg"}, {"header": b"1234567"}):
                file = wire.message("ImportedFile", **{**good, **change})
                code, _ = self.error(p, "ImportCommit", job="j", import_id=number, digests=[0] * 4, files=[file])
                self.assertEqual("INVALID_ARGUMENT", code, change)
            for n in (0, 3, 5, 100000):
                self.assertEqual("INVALID_ARGUMENT",
                                 self.error(p, "ImportCommit", job="j", import_id=number, digests=[0] * n)[0])
            self.assertEqual("filling", self.phase(job), "a refused commit leaves the import open")
            code, text = self.error(p, "ImportCommit", job="j", import_id=number, digests=[1] * 4,
                                    files=[wire.message("ImportedFile", **good)])
            self.assertIn("digest", text)
            wait_for(lambda: self.phase(job) == "empty" or self.phase(job) == "idle", 20 * PATIENCE, "the import's end")
            self.assertEqual(0, job.generation())
            c.ptcctl(*job.import_args("tp=2"))
            job.check_whole(self)

    def test_windows_of_hostile_clients(self):
        """What a client says of its window is checked, each time with one line, and only its own import ends. What it writes there after
        the daemon has copied the bytes changes nothing."""
        import grpc

        def stream(p, number, w, key=None):
            return p.start("Control", "ImportData", [wire.message("ImportChunk", job="j", import_id=number, window=key or w.key)])

        def refused(call, text):
            with self.assertRaises(grpc.RpcError) as e:
                call.result()
            self.assertIn(text, e.exception.details())
            self.assertNotIn("\n", e.exception.details())

        with self.cluster(nodes=2, devices=1) as c, self.peer(c) as p:
            job = self.job(c)
            job.create()
            for parts, text in (((4, 0, 0, 1), "item"), ((0, 8192, 0, 1), "exceed"), ((0, 2**64 - 1, 0, 2), "exceed"),
                                ((0, 0, 2 << 20, 1), "window"), ((0, 0, 2**32 - 1, 2), "window"), ((0, 0, 0, 0), "window"),
                                ((0, 0, 0, 2**32 - 1), "window"), (None, "sealed"), (b"x" * 16, "again")):
                with Window(c.nodes["n0"].socket) as w, self.subTest(parts=parts):
                    for size in (0, 4 << 20):
                        self.assertRaises(PermissionError, os.ftruncate, w.fd, size)
                    number = self.begin(p, job)
                    if parts:
                        w.seal()
                    call = stream(p, number, w, parts if isinstance(parts, bytes) else None)
                    if isinstance(parts, tuple):
                        w.say(*parts)
                    refused(call, text)
                    wait_for(lambda: self.phase(job) in ("idle", "empty"), 20 * PATIENCE, "the import's end")

            with Window(c.nodes["n0"].socket) as w: # killed in the middle
                number = self.begin(p, job)
                w.seal()
                over = threading.Event() # as ptcctl, it says that the stream is complete only after its window is

                def messages(head=wire.message("ImportChunk", job="j", import_id=number, window=w.key), over=over):
                    yield head
                    over.wait()
                call = p.start("Control", "ImportData", messages())
                w.say(0, 0, 0, 4096)
                self.assertEqual(4096, w.taken())
                call.cancel()
                over.set()
            wait_for(lambda: self.phase(job) in ("idle", "empty"), 20 * PATIENCE, "the import of a client that is gone to end")

            rng = random.Random(self.seed)
            with Window(c.nodes["n0"].socket) as w:
                number = self.begin(p, job)
                w.seal()
                call = stream(p, number, w)
                data = [job.state.tensors["param"][name].tobytes() for name in sorted(job.state.tensors["param"])]
                parts = [(i, at) for i, tensor in enumerate(data) for at in range(0, len(tensor), 1000)]
                rng.shuffle(parts)
                for item, at in parts:
                    part = data[item][at:at + 1000]
                    place = rng.randrange(len(w.map) - len(part))
                    w.map[place:place + len(part)] = part
                    w.say(item, at, place, len(part))
                    self.assertEqual(len(part), w.taken())
                    w.map[place:place + len(part)] = rng.randbytes(len(part))
                w.s.shutdown(socket.SHUT_WR)
                self.assertEqual(sum(map(len, data)), call.result().bytes)
                with open(job.files["param"], "rb") as f:
                    size = struct.unpack("<Q", f.read(8))[0]
                    header = struct.pack("<Q", size) + f.read(size)
                p.call("Control", "ImportCommit", job="j", import_id=number, digests=list(map(digest_of, data)),
                       files=[wire.message("ImportedFile", field="param", name="model.safetensors", header=header,
                                           items=range(len(data)))])
            job.check_whole(self)

    def test_on_whose_behalf(self):
        """A node forwards for a uid; for nobody it forwards nothing, and only a node is asked at all."""
        import grpc
        with self.cluster(nodes=2, devices=1, transport="tls") as c:
            job = self.job(c)
            job.imported("tp=2")

            def status(name, *metadata):
                files = []
                for f in ("ca.crt", f"{name}.key", f"{name}.crt"):
                    with open(os.path.join(c.dir, "ca", f), "rb") as x:
                        files.append(x.read())
                with wire.Peer(f"localhost:{c.options['ports']['n0']}", grpc.ssl_channel_credentials(*files),
                               [("ptc-uid", m) for m in metadata]) as peer:
                    try:
                        peer.call("Control", "Status", job="j")
                    except grpc.RpcError as e:
                        return e.code().name
                    return "OK"

            self.assertEqual("OK", status("n1", str(os.geteuid())), "positive control")
            self.assertEqual("NOT_FOUND", status("n1", "12345"))
            self.assertEqual("PERMISSION_DENIED", status("n1"))
            for uid in ("x", "", "-1", " 0", "+0", "0x0", "4294967295", "4294967296", "9" * 30):
                self.assertEqual("PERMISSION_DENIED", status("n1", uid), uid)
            self.assertEqual("OK", status("admin", "12345"), "an administrator is root, whatever it says")

    # ---- callers that go away ---------------------------------------------------------------------------------------

    def test_a_broken_stream_ends_only_its_own_import(self):
        import grpc
        with self.cluster(nodes=2, devices=1) as c, self.peer(c) as p, self.peer(c, "n1") as q:
            job = self.job(c)
            job.create()
            first = self.begin(p, job)
            taken, go_on = threading.Event(), threading.Event()

            def slow():
                chunk = list(self.chunks(job, first))
                yield chunk[0]
                taken.set()
                go_on.wait(60 * PATIENCE)
                yield chunk[1]

            stream = q.start("Control", "ImportData", slow())
            self.assertTrue(taken.wait(20 * PATIENCE))
            q.call("Control", "Status", job="j") # on the same connection, after the first bytes
            p.call("Control", "Abort", job="j")
            wait_for(lambda: self.phase(job) in ("idle", "empty"), 20 * PATIENCE, "the first import's end")
            second = self.begin(p, job)
            go_on.set()
            with self.assertRaises(grpc.RpcError):
                stream.result()
            self.error(p, "Abort", job="j", id=first)
            wait_for(lambda: "data stream ended early" in c.ptcctl("events", "j").stdout, 20 * PATIENCE,
                     "the daemon to give up the first import")
            p.call("Control", "ImportData", list(self.chunks(job, second)))
            self.assertEqual("filling", self.phase(job), "the second import was aborted by the first one's stream")
            p.call("Control", "Abort", job="j", id=second) # refused if it were not open any more
            wait_for(lambda: self.phase(job) in ("idle", "empty"), 20 * PATIENCE, "the second import's end")

    def test_a_client_that_goes_away_before_its_import_began(self):
        with self.cluster(nodes=2, devices=1) as c, self.peer(c) as p:
            job = self.job(c)
            job.create()
            c.nodes["n1"].signal(signal.SIGSTOP) # CHECKING waits for it
            try:
                call = p.start("Control", "ImportBegin", wire.message("ImportBeginRequest", job="j", config="tp=2"))
                wait_for(lambda: self.phase(job) == "checking", 20 * PATIENCE, "the import to wait for n1")
                call.cancel()
                wait_for(lambda: self.phase(job) != "checking", 20 * PATIENCE, "the controller to notice")
            finally:
                c.nodes["n1"].signal(signal.SIGCONT)
            wait_for(lambda: self.phase(job) in ("idle", "empty"), 40 * PATIENCE, "the end of an import nobody waits for")
            c.wait_nodes(["n0", "n1"], 30 * PATIENCE)
            c.ptcctl(*job.import_args("tp=2"), timeout_s=60 * PATIENCE)

    def test_a_gateway_stops_while_it_relays(self):
        with self.cluster(nodes=3, devices=1) as c, self.peer(c, "n1") as gateway:
            job = self.job(c)
            job.imported("tp=2", node="n0")
            if job.status()["controller"] == "n1":
                self.skipTest("the gateway is the controller")
            c.nodes["n2"].signal(signal.SIGSTOP)
            try:
                request = wire.message("ResizeRequest", job="j", config="tp=2", nodes=["n0", "n2"])
                call = gateway.start("Control", "Resize", request)
                wait_for(lambda: self.phase(job) == "checking", 20 * PATIENCE, "the resize to wait for n2")
                self.assertTrue(c.nodes["n1"].stop(30 * PATIENCE), "SIGTERM did not end a daemon that relays a call")
                call.cancel()
            finally:
                c.nodes["n2"].signal(signal.SIGCONT)

    def test_one_user_leaves_room_for_others(self):
        """Eighty calls that never end: those over the bound are refused, and other calls still get through."""
        import grpc
        with self.cluster(nodes=1, devices=2) as c:
            job = self.job(c)
            job.imported("tp=2")
            peers = [self.peer(c) for _ in range(80)]
            calls = [p.start("Control", "Events", wire.message("EventsRequest", job="j", follow=True)) for p in peers]
            try:
                if os.geteuid() == 0:
                    c.ptcctl("nodes", prefix=("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"),
                             timeout_s=20 * PATIENCE)
                else: # root has more; tests/test_bounds.py has users who are refused
                    wait_for(lambda: any(call.done() for call in calls), 20 * PATIENCE, "somebody to be refused", 0.05)
                c.ptcctl("nodes", timeout_s=20 * PATIENCE, check=os.geteuid() == 0)
                for call in [call for call in calls if call.done()]:
                    self.assertEqual(grpc.StatusCode.RESOURCE_EXHAUSTED, call.code())
            finally:
                for call, p in zip(calls, peers):
                    call.cancel()
                    p.channel.close()
            wait_for(lambda: c.ptcctl("status", "j", check=False).returncode == 0, 20 * PATIENCE, "room again")

    # ---- daemons stopped in the middle ------------------------------------------------------------------------------

    @harness.labels("repeats")
    def test_stop_at_any_time(self):
        """SIGTERM to every daemon in turn while a job is created, imported, resized, exported: a clean end, each time."""
        with self.cluster(nodes=2, devices=2) as c:
            for round_ in range(6 if harness.LONG else 3):
                job = self.job(c, f"j{round_}", tensors=8, shape=(512, 64))

                def work():
                    for args in (["job", "create", "-f", job.yaml], job.import_args("tp=2"),
                                 ["resize", job.name, "--config", "tp=4", "--wait"],
                                 ["export", job.name, self.path(f"out{round_}.safetensors")],
                                 ["resize", job.name, "--config", "dp=2", "--wait"]):
                        c.ptcctl(*args, check=False, node="n1", timeout_s=120 * PATIENCE)

                t = threading.Thread(target=work)
                t.start()
                time.sleep(self.random.uniform(0.02, 1.0) * SLOWED)
                self.assertTrue(c.nodes["n0"].stop(30 * PATIENCE), "no clean end after SIGTERM")
                c.restart("n0", timeout_s=60 * PATIENCE)
                t.join()
                c.wait_nodes(["n0", "n1"], 60 * PATIENCE)

    # ---- the coordinator --------------------------------------------------------------------------------------------

    def events(self, c, node):
        return [json.loads(line) for line in c.ptcctl("events", "j", "--format", "json", node=node).stdout.splitlines()]

    def reads_without_coordinator(self, c, job, node, stopped_ms):
        """All that reads committed state, at a node, and each answer says as of when it is."""
        for verb in ("status", "snapshots", "verify"):
            got = c.json(verb, "j", node=node)
            self.assertLess(abs(got["as_of_ms"] - stopped_ms), 30000 * PATIENCE, verb)
            self.assertIn("the coordinator (etcd) is unreachable; this is as of 20", c.ptcctl(verb, "j", node=node).stderr, verb)
        self.assertEqual(["tp=2"], [j["config"] for j in c.json("status", "j", node=node)["jobs"]])
        got = self.events(c, node)
        self.assertEqual(["created", "switch", "committed"], [e["kind"] for e in got][:3], got)
        self.assertTrue(all("as_of_ms" in e for e in got))
        job.check_whole(self, node=node)
        job.export(self.path(f"ranks-{node}"), ranks=True, node=node)

    @harness.labels("repeats")
    def test_no_coordinator(self):
        """While etcd does not answer each call ends within a bound: what changes something with one line that blames etcd, not the
        caller; what reads committed state as ever, and with the time as of which it is."""
        with self.cluster(nodes=2, devices=1) as c, self.peer(c) as p:
            job = self.job(c)
            job.imported("tp=2")
            other, doomed = self.job(c, "other"), self.job(c, "doomed")
            doomed.create() # what is asked of etcd now may still happen when it answers again
            etcd = self.etcd_pid(c)
            wait_for(lambda: all(c.json("status", node=n)["daemon"]["kept_jobs"] for n in c.nodes), 10 * PATIENCE, "kept documents")
            os.kill(etcd, signal.SIGSTOP)
            stopped_ms = time.time() * 1000
            try:
                calls = [("Resize", {"config": "tp=1"}), ("JobDelete", {"job": "doomed"})]
                for leases in (True, False):
                    if not leases: # they run out, and the daemons know
                        wait_for(lambda: not any(c.json("status", node=n)["daemon"]["coordinator_ok"] for n in c.nodes),
                                 60 * PATIENCE, "the leases to run out", 0.2)
                    ended = {}

                    def ask(rpc, fields):
                        try:
                            ended[rpc] = self.error(p, rpc, **{"job": "j", **fields})[1]
                        except AssertionError as e:
                            ended[rpc] = f"does not exist: {e}"

                    threads = [threading.Thread(target=ask, args=call) for call in calls]
                    for t in threads:
                        t.start()
                    for t in threads:
                        t.join()
                    for rpc, _ in calls:
                        self.assertNotEqual("Deadline Exceeded", ended[rpc], f"{rpc} was ended by us, not by the daemon")
                        self.assertNotIn("does not exist", ended[rpc], rpc)
                    self.assertIn("j", str(p.call("Control", "JobList").json))
                for node in c.nodes:
                    self.reads_without_coordinator(c, job, node, stopped_ms)
                self.refused(c, "job", "create", "-f", other.yaml, codes=range(1, 10), timeout_s=60 * PATIENCE)
            finally:
                os.kill(etcd, signal.SIGCONT)
            c.wait_nodes(["n0", "n1"], 60 * PATIENCE)
            wait_for(lambda: c.ptcctl("resize", "j", "--config", "tp=1", "--wait", check=False).returncode == 0,
                     60 * PATIENCE, "a resize after etcd answers again", 0.5)
            job.check_whole(self)

    def test_keys_not_read(self):
        """A daemon that has just started and has not read etcd's keys does not judge by what it has read so far: what asks which nodes and jobs
        there are waits, and is then refused with one line."""
        with self.cluster(nodes=2, devices=1) as c:
            calls = (("status",), ("job", "list"), ("nodes",), ("drain", "n0"), ("node", "lost", "n0"), ("device", "bad", "n0:0"), ("profile",))
            with self.unread(c, "n1"), concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
                asked = [pool.submit(self.refused, c, *call, node="n1", codes=range(1, 10), contains=harness.UNREAD) for call in calls]
            for call, answer in zip(calls, asked, strict=True):
                with self.subTest(call):
                    answer.result()
            c.wait_nodes(["n0", "n1"], 60 * PATIENCE)

    def test_events_followed(self):
        """Who follows a job's events is told each of them once, and soon: also one with a lower number than the last, as of a daemon whose
        clock is behind, and what comes after etcd was killed and started again."""
        with self.cluster(nodes=2, devices=1) as c:
            job = self.job(c)
            job.imported("tp=2")
            prefix = c.etcdctl("get", "/ptc/events/", "--prefix", "--keys-only", "--limit=1").stdout.strip().rpartition("/")[0]
            with open(self.path("told"), "w") as out:
                follower = subprocess.Popen([harness.program("ptcctl"), "events", "j", "--follow", "--format", "json"], stdout=out,
                                            env=c.environment({"PTC_SOCKET": c.nodes["n1"].socket}))
            self.addCleanup(follower.wait)
            self.addCleanup(follower.kill) # before that

            def told():
                with open(self.path("told")) as f:
                    return [json.loads(line) for line in f.read().split("\n")[:-1]]

            def put(number, text):
                event = {"version": 1, "time_ms": 1, "node": "n0", "kind": "test", "text": text}
                c.etcdctl("put", f"{prefix}/{number:020}", json.dumps(event))
                wait_for(lambda: any(e["text"] == text for e in told()), 60 * PATIENCE, text)

            wait_for(lambda: any(e["kind"] == "committed" for e in told()), 60 * PATIENCE, "the events that there are")
            last = told()[-1]["number"]
            put(last + 10, "later")
            put(last + 5, "behind")
            put(last + 11, "again")
            etcd = self.etcd_pid(c)
            os.kill(etcd, signal.SIGKILL)
            wait_for(lambda: c.etcdctl("get", "/ptc/cluster").returncode == 0, 60 * PATIENCE, "etcd to be back")
            put(last + 12, "after etcd")
            job.resize("tp=1")
            wait_for(lambda: [e["kind"] for e in told()].count("committed") == 2, 60 * PATIENCE, "the switch's event")
            numbers = [e["number"] for e in told()]
            self.assertEqual(len(numbers), len(set(numbers)), "an event was told twice")
            self.assertIsNone(follower.poll())

    def test_events_of_nodes_that_do_not_answer(self):
        """While etcd is unreachable the job's nodes are asked for its events, one after the other: eight that do not answer take about as long
        of whoever asks as one does, and he is told what the node at hand remembers."""
        with self.cluster(nodes=9, devices=1) as c:
            job = self.job(c)
            job.imported("tp=3,pp=3") # and no switch after it: documents that are kept are then those of the state that is there
            wait_for(lambda: c.json("status")["daemon"]["kept_jobs"], 10 * PATIENCE, "kept documents")
            etcd, others = self.etcd_pid(c), [n for name, n in c.nodes.items() if name != "n0"]

            def kinds_and_time():
                began = time.monotonic()
                told = c.ptcctl("events", "j", "--format", "json").stdout
                return {json.loads(line)["kind"] for line in told.splitlines()}, time.monotonic() - began

            os.kill(etcd, signal.SIGSTOP)
            try:
                wait_for(lambda: not c.json("status")["daemon"]["coordinator_ok"], 60 * PATIENCE, "the lease to run out", 0.2)
                others[0].signal(signal.SIGSTOP)
                of_one, one_s = kinds_and_time()
                for node in others[1:]:
                    node.signal(signal.SIGSTOP)
                of_eight, eight_s = kinds_and_time()
            finally:
                for node in others:
                    node.signal(signal.SIGCONT)
                os.kill(etcd, signal.SIGCONT)
            for kinds in of_one, of_eight:
                self.assertLessEqual({"created", "committed"}, kinds)
            self.assertGreater(one_s, 1) # it was asked
            self.assertLess(eight_s, len(others) / 2 * one_s, f"of one that does not answer: {one_s} s") # one time for each would be eight times as long
            c.wait_nodes(list(c.nodes), 60 * PATIENCE)

    def test_etcd_without_space(self):
        """Who waits for a switch is told what etcd says; with space again it goes on."""
        import grpc
        with self.cluster(nodes=2, devices=1) as c, self.peer(c) as p:
            job = self.job(c)
            job.imported("tp=2")
            with grpc.insecure_channel(f"unix:{c.etcd_socket()}", [("grpc.default_authority", "localhost")]) as channel:
                alarm = channel.unary_unary("/etcdserverpb.Maintenance/Alarm", lambda b: b, lambda b: b)
                alarm(b"\x08\x01\x10\x01\x18\x01", timeout=10) # ACTIVATE, for a member with id 1, NOSPACE
            messages = p.start("Control", "Resize", wire.message("ResizeRequest", job="j", config="tp=1"))
            self.assertIn("takes no writes", next(m.text for m in messages if "etcd" in m.text))
            self.assertEqual(0, c.etcdctl("alarm", "disarm").returncode)
            self.assertTrue(list(messages)[-1].finished)
            self.assertEqual("tp=1", job.status()["config"])
            job.check_whole(self)

    @harness.labels("repeats")
    def test_unknown_outcomes(self):
        """A transaction whose answer is lost: the switch goes on from what is written down, and so do the next ones."""
        for point in ("etcd.intent", "etcd.commit1", "etcd.commit2", "etcd.clear"):
            for side in ("before", "after"):
                with self.subTest(f"{point}.{side}"):
                    fault = {n: {"PTC_FAULT": f"{point}.{side}=fail"} for n in ("n0", "n1")}
                    with self.cluster(nodes=2, devices=2, up=False) as c:
                        c.up(fault, timeout_s=60 * PATIENCE)
                        job = self.job(c)
                        job.create()
                        c.ptcctl(*job.import_args("tp=2"), check=False, timeout_s=60 * PATIENCE)
                        job.wait_idle()
                        if job.generation() == 0:
                            c.ptcctl(*job.import_args("tp=2"), timeout_s=60 * PATIENCE)
                        for config in ("tp=4", "tp=2,dp=2", "tp=1"):
                            c.ptcctl("resize", "j", "--config", config, "--wait", check=False, timeout_s=60 * PATIENCE)
                            job.wait_idle()
                            if job.status()["config"] != config:
                                job.resize(config)
                            self.assertEqual(config, job.status()["config"])
                        job.check_whole(self)

    def test_a_record_nobody_can_read(self):
        """One job's broken record stops that job, not the others."""
        with self.cluster(nodes=2, devices=1) as c:
            broken, whole = self.job(c, "broken"), self.job(c, "whole")
            for j in (broken, whole):
                j.imported("tp=2")
            key = f"/ptc/jobs/{broken.status()['uuid']}/record"
            record = c.etcdctl("get", key, "--print-value-only").stdout.strip()
            for text in ("{", "{}", "null", '{"version":1}', '{"version":99}', "\x01", ""):
                self.assertEqual(0, c.etcdctl("put", "--", key, text or " ").returncode)
            c.restart("n0", timeout_s=60 * PATIENCE)
            c.restart("n1", timeout_s=60 * PATIENCE)
            whole.resize("tp=1", timeout_s=60 * PATIENCE)
            whole.check_whole(self)
            for args in (("resize", "broken", "--config", "tp=1", "--wait"), broken.import_args("tp=1"), ("verify", "broken")):
                self.refused(c, *args, contains="cannot be read")
            self.assertEqual({"unreadable"}, {self.phase(broken, n) for n in c.nodes})
            self.assertEqual(0, c.etcdctl("put", "--", key, record).returncode)
            wait_for(lambda: self.phase(broken) == "idle", 20 * PATIENCE, "the record, which is right again")
            broken.check_whole(self)

    def test_a_job_that_one_node_cannot_read(self):
        """n0 is as a version that cannot read jobs' descriptions. It leaves the locks to n1, which can; when n0 is alone, it takes them, so that a
        job can be deleted, and gives them back when n1 is there again."""
        with self.cluster(nodes=2, devices=2) as c:
            c.ptcctl("drain", "n0")
            jobs = [self.job(c, f"j{i}") for i in range(3)]
            for job in jobs:
                job.imported("tp=2")
            c.ptcctl("drain", "n0", "--undo")
            c.restart("n0", {"PTC_FAULT": "job.description@*=fail"}, timeout_s=60 * PATIENCE)

            def controllers(node):
                return {job.status(node=node)["controller"] for job in jobs}

            self.assertTrue(c.nodes["n1"].stop())
            wait_for(lambda: controllers("n0") == {"n0"}, 60 * PATIENCE, "a controller that cannot read the job")
            self.assertIn("leaves its control to other nodes", jobs[0].status(node="n0")["unreadable"])
            self.assertIn("cannot read job j0", c.ptcctl("status", "j0", node="n0").stdout)
            jobs.pop().delete(node="n0")
            c.start_node(c.nodes["n1"])
            c.wait_nodes(["n0", "n1"], 60 * PATIENCE)
            wait_for(lambda: controllers("n1") == {"n1"}, 60 * PATIENCE, "the node that can read the jobs to control them")
            for job in jobs:
                job.resize("tp=1", extra=("--nodes", "n1"), node="n1")
                self.assertNotIn("unreadable", job.status(node="n1"))
            self.assertTrue(c.nodes["n1"].stop())
            c.start_node(c.nodes["n1"])
            c.wait_nodes(["n0", "n1"], 60 * PATIENCE)
            wait_for(lambda: controllers("n1") == {"n1"}, 60 * PATIENCE, "the same, once n1 has been away")
            for job in jobs:
                job.check_whole(self, node="n1")
            with open(c.nodes["n0"].log_file) as f:
                said = [line for line in f if "leaves its control" in line]
            self.assertEqual(3, len(said), "one line for each job")

    def test_a_manifest_that_one_node_cannot_read(self):
        """That shows only once n0 has the lock: it gives the lock back, says so once, and n1 controls the job when it comes."""
        with self.cluster(nodes=2, devices=1) as c:
            c.ptcctl("drain", "n0")
            job = self.job(c)
            job.imported("tp=1")
            c.ptcctl("drain", "n0", "--undo")
            c.restart("n0", {"PTC_FAULT": "job.manifest@*=fail"}, timeout_s=60 * PATIENCE)
            self.assertTrue(c.nodes["n1"].stop())
            said = [0]

            def gave_back():
                with open(c.nodes["n0"].log_file) as f:
                    said[0] = sum("leaves its control" in line for line in f)
                return said[0] and job.status(node="n0")["controller"] == ""

            wait_for(gave_back, 60 * PATIENCE, "n0 to give the lock back")
            self.assertIn("manifest that this node cannot read", job.status(node="n0")["unreadable"])
            self.refused(c, "resize", job.name, "--config", "tp=1", node="n0", contains="manifest that this node cannot read")
            c.start_node(c.nodes["n1"])
            c.wait_nodes(["n0", "n1"], 60 * PATIENCE)
            wait_for(lambda: job.status(node="n1")["controller"] == "n1", 60 * PATIENCE, "n1 to control the job")
            job.check_whole(self, node="n1")
            gave_back()
            self.assertEqual(1, said[0])


if __name__ == "__main__":
    unittest.main()
