# SPDX-License-Identifier: Apache-2.0
"""Bits that flip at random places of stores, messages and checkpoints: each is found, each is healed where a copy exists, and nobody
is given wrong bytes.

Each test draws its places by its seed, and ends with a line that counts what became of them. CI tries a few; with PTC_TEST_LONG they are
more than 200 together.
"""
import collections
import contextlib
import json
import mmap
import os
import re
import socket
import struct
import threading

import harness
import numpy as np
import oracle
import state as states
import test_damage
from cluster import ClusterError, free_port
from harness import PATIENCE, Job, wait_for
from test_fuse import CAN_MOUNT, Mount

TP = [{"match": "*", "split": {"axis": "tp", "dim": 0}}]
# Each row is long enough to be found in a file by its bytes; small tensors share a block of the store.
TENSORS = {"emb": ("F32", (4096, 96)), "h.0.w": ("BF16", (2048, 64)), "h.0.b": ("F64", (2, 3)), "h.1.w": ("I64", (600, 7)), "h.1.b": ("U8", (4, 9)),
           "ids": ("I32", (12, 5)), "mask": ("BOOL", (64, 64)), "f8": ("F8_E4M3", (3000, 10)), "half": ("F16", (128, 31)), "last": ("F32", (70000, 2))}
COPIES = ("dp=3", "tp=2,dp=2", "dp=4")  # on two nodes of two devices: each node has everything
BALANCED = [{"match": "*", "split": {"axis": "tp", "dim": 0, "kind": "balanced"}}]
PLACES = (("tp=4", "n1,n2"), ("tp=2,dp=3", "n0,n1,n2"), ("tp=4", "n0,n1"), ("tp=6", "n0,n1,n2"))  # where a switch takes the state in turn
NEEDLE = 16


class Proxy:
    """Passes connections of one address on to another, and changes one bit of what it passes when it is told to. Counts the bytes that it
    has passed to the other one, and back."""

    def __init__(self, listen, target):
        self.target, self.passed, self.lock, self.armed = target, [0, 0], threading.Lock(), None
        self.listener = self.listening(listen)
        self.ends = set()
        threading.Thread(target=self.accept, daemon=True).start()

    @staticmethod
    def listening(address):
        if isinstance(address, str):
            s = socket.socket(socket.AF_UNIX)
            s.bind(address)
            s.listen(64)
            return s
        return socket.create_server(address)

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.socket(socket.AF_UNIX if isinstance(self.target, str) else socket.AF_INET)
                try:
                    far.connect(self.target)
                except OSError:
                    near.close()
                    continue
                with self.lock:
                    self.ends |= {near, far}
                for a, b, back in ((near, far, 0), (far, near, 1)):
                    threading.Thread(target=self.pump, args=(a, b, back), daemon=True).start()

    def pump(self, a, b, back):
        with contextlib.suppress(OSError):
            while data := a.recv(1 << 16):
                b.sendall(self.changed(data, back))
        for s in (a, b):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
        with self.lock:
            self.ends -= {a, b}
        a.close()

    def changed(self, data, back):
        with self.lock:
            self.passed[back] += len(data)
            if self.armed is None or self.armed[2] != back:
                return data
            after, bit, _ = self.armed
            if after >= len(data):
                self.armed = (after - len(data), bit, back)
                return data
            self.armed = None
            return data[:after] + bytes([data[after] ^ 1 << bit]) + data[after + 1:]

    def arm(self, after, bit, back):
        with self.lock:
            self.armed = (after, bit, back)

    def disarm(self):
        """True: the bit was changed."""
        with self.lock:
            armed, self.armed = self.armed, None
            return armed is None

    def close(self):
        self.listener.close()
        with self.lock:
            ends = set(self.ends)
        for s in ends:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


class Flips(harness.Case):
    def setUp(self):
        super().setUp()
        self.counts = collections.Counter()
        self.addCleanup(lambda: print(f"places of {self.id()}: {json.dumps(dict(sorted(self.counts.items())))}", flush=True))

    def job(self, c, config, name="j", rules=TP):
        s, rng = states.State({"exp_avg": "F32", "exp_avg_sq": "BF16"}), np.random.default_rng(self.random.randrange(1 << 32))
        for tensor, (dtype, shape) in TENSORS.items():
            s.add(rng, tensor, dtype, shape)
        job = Job(c, name, s, self.path(f"job-{name}"), rules)
        job.imported(config)
        return job

    # ---- stores --------------------------------------------------------------------------------------------------

    def place(self, job):
        """(field, tensor, row, bytes of the row around a byte of it, which of these bytes): each tensor is as likely as any other."""
        field, name = self.random.choice(sorted(job.state.tensors)), self.random.choice(sorted(TENSORS))
        a = job.state.tensors[field][name].array
        row = self.random.randrange(len(a))
        data = a[row].tobytes()
        at = self.random.randrange(len(data))
        begin = max(0, min(at - NEEDLE // 2, len(data) - NEEDLE))
        end = len(data) if name == "mask" else begin + NEEDLE  # bytes of a BOOL say little
        begin = 0 if name == "mask" else begin
        return field, name, row, data[begin:end], at - begin

    def flip(self, c, uuid, node, needle, at):
        """Changes a random bit of that byte wherever these bytes lie in the node's chunks. Returns what puts it right again."""
        path, bit, found = os.path.join(c.nodes[node].chunk_dir, uuid, "data.mdb"), 1 << self.random.randrange(8), []
        with open(path, "rb") as f:
            for begin, data in test_damage.Damage.written(f):
                i = data.find(needle)
                while i >= 0:
                    found.append(begin + i + at)
                    i = data.find(needle, i + 1)
        self.assertTrue(found, f"{needle} is nowhere in {path}")

        def change():
            with open(path, "r+b") as f:
                for where in found:
                    os.pwrite(f.fileno(), bytes([os.pread(f.fileno(), 1, where)[0] ^ bit]), where)
        change()
        return change

    def healed(self, c, job):
        return len(self.events(c, job, "healed"))

    def read_files(self, job, path):
        """The file of a mount, past the page cache, which is the kernel's."""
        size = os.path.getsize(job.files["param"])
        fd, buffer = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, size + 4096)
        try:
            got = 0
            while got < size:
                n = os.preadv(fd, [memoryview(buffer)[got:]], got)
                self.assertGreater(n, 0)
                got += n
        finally:
            os.close(fd)
        with open(job.files["param"], "rb") as f:
            self.assertEqual(f.read(), buffer[:size])

    def ways(self, c, job, mounts):
        """{way: reads the state by it, and compares it with the oracle's}."""
        def some():
            return self.random.choice(list(c.nodes))

        def resize():
            self.config = self.random.choice([x for x in COPIES if x != self.config])
            job.resize(self.config)
            job.check_ranks(self, oracle.Config(self.config), TP, node=some())

        return {"export": lambda: job.check_whole(self, node=some()),
                "ranks": lambda: job.check_ranks(self, oracle.Config(self.config), TP, node=some()),
                "verify": lambda: c.ptcctl("verify", "j", "--repair", node=some()), "resize": resize,
                **({"mount": lambda: self.read_files(job, self.random.choice(mounts))} if mounts else {})}

    def test_store_with_copies(self):
        """A bit of one node's chunks flips, and the other node has the bytes: whoever reads is given right ones, and the block is healed."""
        with self.cluster(nodes=2, devices=2, scrub={"rate": "0B"}) as c:
            self.config = "dp=4"
            job = self.job(c, self.config)
            mounts = [Mount(self, c, node=n) for n in c.nodes] if CAN_MOUNT else []
            ways = self.ways(c, job, [m.path("j", "state", "latest", "model.safetensors") for m in mounts])
            for _ in range(harness.size(6, 90, 300)):
                field, name, row, needle, at = self.place(job)
                node, way, before = self.random.choice(list(c.nodes)), self.random.choice(list(ways)), self.healed(c, job)
                with self.subTest(way, place=f"{name}:{field}, row {row}, on {node}, {self.config}"):
                    self.flip(c, job.status()["uuid"], node, needle, at)
                    ways[way]()
                    by = way if self.healed(c, job) > before else "verify after it"
                    c.ptcctl("verify", "j", "--repair")
                    if way == "resize" and self.healed(c, job) == before:
                        by = "dropped by the switch"
                    else:
                        wait_for(lambda: self.healed(c, job) > before, 10 * PATIENCE, f"the event healed after {way}") # noqa: B023
                    c.ptcctl("verify", "j")
                    self.counts[f"{way}: {'healed by ' if by != 'dropped by the switch' else ''}{by}"] += 1
            job.check_whole(self)
            job.check_ranks(self, oracle.Config(self.config), TP)
            self.assertEqual([], self.events(c, job, "unhealed"))
            for m in mounts:
                m.stop()

    @harness.labels("repeats")
    def test_store_scrubbed(self):
        """The same, in what nobody reads: the scrubber finds and heals it."""
        with self.cluster(nodes=2, devices=1, scrub={"rate": "64MiB", "pause": "0s"}) as c:
            job = self.job(c, "dp=2")
            uuid = job.status()["uuid"]
            for _ in range(harness.size(4, 30, 100)):
                field, name, row, needle, at = self.place(job)
                node, before = self.random.choice(list(c.nodes)), self.healed(c, job)
                self.flip(c, uuid, node, needle, at)
                wait_for(lambda: self.healed(c, job) > before, 60 * PATIENCE, f"{name}:{field}, row {row} healed on {node}") # noqa: B023
                self.counts["healed by the scrubber"] += 1
            c.ptcctl("verify", "j")
            job.check_whole(self)
            self.assertEqual([], self.events(c, job, "unhealed"))

    def test_store_without_copies(self):
        """A bit of the only copy flips: whoever needs the block is refused by the name of a tensor and of the node, others are given right
        bytes; put right, all is read again."""
        named = "|".join(re.escape(n) for n in TENSORS)
        with self.cluster(nodes=2, devices=1, scrub={"rate": "0B"}) as c:
            job = self.job(c, "tp=2")
            uuid = job.status()["uuid"]
            for i in range(harness.size(4, 40, 150)):
                field, name, row, needle, at = self.place(job)
                node = "n0" if row < len(job.state.tensors[field][name].array) // 2 else "n1"
                with self.subTest(i, place=f"{name}:{field}, row {row}, on {node}"):
                    back = self.flip(c, uuid, node, needle, at)
                    said = self.refused(c, "verify", "j", contains=f"node {node}")
                    self.assertRegex(said, f'tensor "({named})(:exp_avg|:exp_avg_sq)?", rows? \\d+')
                    for way in ("whole", "ranks", *(["resize"] if i % 10 == 3 else [])):  # it tries for seconds
                        try:
                            if way == "whole":
                                job.check_whole(self, node=self.random.choice(list(c.nodes)))
                            elif way == "ranks":
                                job.check_ranks(self, oracle.Config("tp=2"), TP)
                            else:
                                job.resize("tp=1", extra=("--nodes", "n1" if node == "n0" else "n0"))
                            self.fail(f"{way} read all of the state")
                        except ClusterError as e:
                            self.assertRegex(str(e), f'node {node}.*"({named})', way)
                    back()
                    c.ptcctl("verify", "j")
                    self.counts["refused, right when put right"] += 1
            job.check_whole(self)
            job.check_ranks(self, oracle.Config("tp=2"), TP)
            self.assertEqual(1, job.generation())

    def flip_page(self, path, sure):
        """Changes a bit of a page of LMDB in the file: of its root's flags, so that the file cannot be used, or anywhere in a page that
        LMDB has written (of a value only in its head, because its bytes are tensors)."""
        with open(path, "r+b") as f:
            heads = [struct.unpack("<136xQQ", os.pread(f.fileno(), 152, page * 4096)) for page in (0, 1)]
            newer = max((0, 1), key=lambda page: heads[page][1])
            root, = struct.unpack("<Q", os.pread(f.fileno(), 8, newer * 4096 + 128))
            pages = [root]
            if not sure:
                pages = [at // 4096 for begin, data in test_damage.Damage.written(f) for at in range(begin, begin + len(data), 4096)
                         if self.page_flags(data, at - begin, at // 4096)]
            page = self.random.choice(pages)
            flags = self.page_flags(os.pread(f.fileno(), 16, page * 4096), 0, page)
            at = 10 if sure else self.random.randrange(16 if flags == 4 else self.random.choice((100, 4096)))
            where, bit = page * 4096 + at, 1 << self.random.randrange(8)
            os.pwrite(f.fileno(), bytes([os.pread(f.fileno(), 1, where)[0] ^ bit]), where)
        return f"bit {bit} of byte {at} of page {page}, which has flags {flags}"

    @staticmethod
    def page_flags(data, at, page):
        number, flags = struct.unpack_from("<QxxH", data, at)
        return flags if number == page and flags in (1, 2, 4, 8) else 0

    def test_store_while_down(self):
        """Bits of LMDB's own pages flip while a node is down: its ptcd starts, and the job is healed from the other node."""
        with self.cluster(nodes=2, devices=2, scrub={"rate": "0B"}, lease_ttl="2s", node_lost_after="2s") as c:
            config = "dp=4"
            job = self.job(c, config)
            n1 = c.nodes["n1"]
            files = {"meta": os.path.join(n1.dir, "state", "meta", "data.mdb"),
                     "chunks": os.path.join(n1.chunk_dir, job.status()["uuid"], "data.mdb")}

            def moved():
                try:
                    job.resize(config, node="n0") # noqa: B023
                except ClusterError:
                    self.assertTrue(n1.pid(), "the damaged node has ended")
                    return False
                return True

            for i in range(harness.size(4, 20, 80)):
                n1.kill()
                kind, sure = ("meta", "chunks")[i % 2], i < 2
                place = self.flip_page(files[kind], sure)
                print(f"{kind}: {place}", flush=True)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(files[kind] + ".damaged")
                with self.subTest(i, file=kind, place=place):
                    self.wait_lost(c, "n1") # until then etcd has its name for the store that it had
                    if sure: # also if ptcd dies while it sets the file aside
                        c.start_node(n1, {"PTC_FAULT": f"store.aside.{('before', 'after')[i]}"})
                        wait_for(lambda: not n1.pid(), 60 * PATIENCE, "its death at the fault point", 0.02)
                    c.restart("n1", timeout_s=60 * PATIENCE)
                    aside = os.path.exists(files[kind] + ".damaged")
                    self.assertTrue(aside or not sure)
                    if aside:
                        wait_for(lambda: job.status().get("absent"), 30 * PATIENCE, "n1's bytes missed")
                    config = self.random.choice([x for x in COPIES if x != config])
                    wait_for(moved, 120 * PATIENCE, f"the job moved to {config}", 1)
                    job.check_ranks(self, oracle.Config(config), TP, node="n1")
                    c.ptcctl("verify", "j")
                    self.assertTrue(n1.pid(), "the damaged node has ended")
                    self.counts[f"{kind}: {'set aside' if aside else 'used'}, healed"] += 1
            job.check_whole(self)

    # ---- messages ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def between(self, transport):
        """Three daemons, each of which the others reach through a proxy: (cluster, proxies)."""
        with self.cluster(up=False, nodes=3, devices=2, transport=transport, scrub={"rate": "0B"}) as c:
            proxies = []
            try:
                for node in c.nodes.values():
                    port = free_port()
                    proxies.append(Proxy(("127.0.0.1", port), ("127.0.0.1", c.options["ports"][node.name])))
                    c.write_config(node, advertise=f"127.0.0.1:{port}")
                c.up(timeout_s=60 * PATIENCE)
                yield c, proxies
            finally:
                for p in proxies:
                    p.close()

    def one_line(self, e):
        said = str(e).partition(": exit 1: ")[2].split("\n")
        self.assertEqual([len(said) - 1], [i for i, line in enumerate(said) if line.startswith("ptcctl ")], e)
        print("refused:", said[-1], flush=True)

    def operations(self, c, job):
        """{name: (does it, makes it possible again after it was refused)}. What they give is compared with the oracle's."""
        self.turn = 0

        def some():
            return self.random.choice(list(c.nodes))

        def resize():
            config, nodes = PLACES[self.turn % len(PLACES)]
            job.resize(config, extra=("--nodes", nodes), node=some())
            self.turn, self.config = self.turn + 1, config

        def imported():
            other = Job(c, "other", job.state, self.path("other"), BALANCED)
            other.imported("tp=4", node=some())
            other.delete()

        def delete():
            c.ptcctl("abort", "other", check=False)
            wait_for(lambda: c.ptcctl("job", "delete", "other", check=False).returncode == 0 or
                     not any(j["job"] == "other" for j in c.json("status")["jobs"]), 60 * PATIENCE, "the job deleted")

        def nothing():
            pass

        return {"resize": (resize, job.wait_idle), "import": (imported, delete), "verify": (lambda: c.ptcctl("verify", "j", node=some()), nothing),
                "export": (lambda: job.check_whole(self, node=some()), nothing),
                "ranks": (lambda: job.check_ranks(self, oracle.Config(self.config), BALANCED, node=some()), nothing)}

    def disturbed(self, kind, do, again, proxy, after, back):
        """Does it while one bit of what the proxy passes changes, and once more if it is refused. What it reads wrong fails the test."""
        bit = self.random.randrange(8)
        print(f"{kind}: bit {bit} of byte {after} {'from' if back else 'to'} {proxy.target}", flush=True)
        proxy.arm(after, bit, back)
        try:
            do()
            became = "right"
        except ClusterError as e:
            became = "refused, right when asked again"
            self.one_line(e)
        except UnicodeDecodeError: # the bit was in the text of a refusal
            became = "refused, right when asked again"
        finally:
            changed = proxy.disarm()
        if became != "right":
            again()
            do()
        if changed:
            self.counts[f"{kind}: {became}"] += 1

    def messages(self, transport, places):
        with self.between(transport) as (c, proxies):
            self.config = "tp=4"
            job = self.job(c, self.config, rules=BALANCED)
            kinds, usual = self.operations(c, job), {}
            while sum(self.counts.values()) < places:
                kind = self.random.choice(list(kinds))
                do, again = kinds[kind]
                if kind not in usual:
                    before = [list(p.passed) for p in proxies]
                    do()
                    usual[kind] = [(p, back, p.passed[back] - b[back]) for p, b in zip(proxies, before) for back in (0, 1)]
                proxy, back, passes = self.random.choice(usual[kind])
                self.disturbed(kind, do, again, proxy, int(self.random.random() ** self.random.choice((1, 4)) * passes), back)
                job.check_whole(self)
                job.check_ranks(self, oracle.Config(self.config), BALANCED)
                self.assertTrue(all(n.pid() for n in c.nodes.values()), "a daemon has ended")
            c.ptcctl("verify", "j")

    def test_messages_tls(self):
        """A bit of what daemons say to each other over TLS changes: what is asked for is done, or refused with one clear line and done when
        asked again; no byte is wrong, no daemon ends."""
        self.messages("tls", harness.size(5, 40, 200))

    @harness.labels("repeats")
    def test_messages_insecure(self):
        """The same where no TLS looks at the bytes."""
        self.messages("insecure", harness.size(5, 40, 200))

    def test_rank_files_insecure(self):
        """Files of ranks of other nodes, whose bytes have no digest of their own: a bit that changes on the way does not get into one."""
        with self.between("insecure") as (c, proxies):
            job = self.job(c, "tp=4", rules=BALANCED)

            def read():
                job.check_ranks(self, oracle.Config("tp=4"), BALANCED, node="n2")

            before = proxies[0].passed[1]
            read()
            passes = proxies[0].passed[1] - before
            for _ in range(harness.size(5, 20, 100)):
                self.disturbed("ranks", read, lambda: None, proxies[self.random.randrange(2)], self.random.randrange(passes * 9 // 10), 1)

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def test_checkpoint(self):
        """A bit of a file of a checkpoint flips: an import is refused and names the checkpoint, or the bit said nothing of the state (a date
        in a header, say), and then the state is right."""
        s, rng = states.State({"exp_avg": "F32"}), np.random.default_rng(self.seed)
        s.add(rng, "a", "F32", (64, 48))
        s.add(rng, "b", "BF16", (6,))
        with self.cluster(nodes=1, devices=2) as c:
            job = Job(c, "there", s, self.path("job"), TP)
            job.imported("tp=2")
            good = self.path("good")
            job.exported("--dcp", good)
            back = Job(c, "back", s, self.path("job2"), TP)
            back.create()
            files = sorted(os.listdir(good))
            for i in range(harness.size(24, 120, 400)):
                name = files[i % len(files)]
                path = os.path.join(good, name)
                at, bit = self.random.randrange(os.path.getsize(path)), 1 << self.random.randrange(8)
                with self.subTest(i, file=name, at=at, bit=bit):
                    self.change(path, at, bit)
                    r = c.ptcctl("import", "back", good, "--config", "tp=1", check=False, timeout_s=120 * PATIENCE)
                    self.change(path, at, bit)
                    self.counts[f"{name}: {'refused' if r.returncode else 'says nothing of the state'}"] += 1
                    if r.returncode:
                        self.assertIn(good, r.stderr)
                        self.assertFalse(back.wait_idle()["has_state"])
                        continue
                    for field, file in back.export(self.path(f"out-{i}")).items():
                        a, b = states.read_file(back.files[field]), states.read_file(file)
                        self.assertEqual({n: (t.dtype, t.shape, t.tobytes()) for n, t in a.items()},
                                         {n: (t.dtype, t.shape, t.tobytes()) for n, t in b.items()})
                    back.delete()
                    back.create()
            c.ptcctl("import", "back", good, "--config", "tp=1")

    @staticmethod
    def change(path, at, bit):
        with open(path, "r+b") as f:
            os.pwrite(f.fileno(), bytes([os.pread(f.fileno(), 1, at)[0] ^ bit]), at)
