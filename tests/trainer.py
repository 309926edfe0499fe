#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank whose state after s steps is a closed formula, so that a test knows every byte without training.

  trainer.py --rows R --layers L [--steps N] [--sleep S] [--build-sleep S] [--start-sleep S] [--end-sleep S] [--rendezvous 1] [--log DIR]
             [--fail-at STEP --fail-rank R] [--early STEP] [--hold-at STEP] [--raise-in start|build] [--data N,SEED,BATCH,MICRO [--by-length DP | --megatron 1]]
             [--place-later 1 [--place-wrong exit|less|dtype]] [--together fail|hang] [--survive 1|2] [--devices 1] [--stat 1] [--blobs NAME,..] [--amax DTYPE] [--own N]
             [--recompute KINDS] [--schedule 1] [--peak BYTES]

Layer l is a matrix of R x 6 doubles, rows split over tp (the first ranks have more), on pipeline stage l % pp, replicated over dp;
element (i, j) is 1000 l + 10 i + j + s after s steps. Its field `m` is the same, negative. A scalar `steps` is s everywhere.
With --stat there is a tensor `stat`, too, whose elements grow by 1 + dp rank with each step: replicas differ.
With --early rank 0 finishes at that step, before the others.
With --hold-at ranks wait behind that boundary until there is a file `go`, or `go-RANK`, in the directory of logs.
With --blobs each rank writes down what it is given of these per-rank blobs, carries that on, and sets its own of those that it was not given.
With --amax there are `amax`, whole on each rank, and `amax.rows`, rows split over tp, of which each rank has values of its own:
random ones of its number and the step, with zeros of both signs and a NaN. What a rank is given and what it stops with goes to a
file beside its steps.
With --together ranks end each step together, as with an all-reduce; a rank whose peer has gone fails, as with gloo, or hangs.
With --survive a rank promises that its memory stays whole, and keeps it when it fails. A file `late-lINCARNATION` in the directory of logs
has a step: from this one on, no rank but those of tp rank 0 learns that the others have ended it. If the word `crossed` follows, no rank
learns it whose tp rank and dp rank have an odd sum. With --survive 2 a rank asks whether it has to go on alone.
With --devices a rank needs its device for itself, as one that fills its memory does, and fails where another process has it.
With --own ranks tell of their own work; where there is a file `slow-RANK` or `slow-on-NODE` in the directory of logs, it takes that rank,
or those of that node, N times as long.
A file `spoil-RANK` in the directory of logs has a step: a rank whose file has that step spoils one value of its state in it, once.
Samples of step s begin at position s * BATCH, and at that of the cursor where there is a file `skips` in the directory of logs.
With --log each rank appends a JSON line per step. Else ranks do not wait for each other: how far they are apart is theirs.
Tests start thousands of these: what takes long to import (NumPy: three quarters of a start) is imported where it is needed.
"""
import argparse
import array
import contextlib
import ctypes
import fcntl
import itertools
import json
import mmap
import os
import struct
import time

import ptc

SIZES = {"F32": 4, "C64": 8}


def layer(l, first, n, sign):
    """Rows first to first + n of a layer before the first step."""
    return array.array("d", (sign * (1000.0 * l + 10.0 * i + j) for i in range(first, first + n) for j in range(6)))


def address(values):
    return values.buffer_info()[0]


def take_device(args):
    where = args.log.rstrip("/") + "-devices"
    os.makedirs(where, exist_ok=True)
    name = os.environ["PTC_WORKER_SOCKET"].replace("/", "_")[-200:]
    fd = os.open(f"{where}/{name}.{os.environ['LOCAL_RANK']}", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("out of device memory", flush=True)
        raise SystemExit(5) from None


def rows_of(rows, tp, rank):
    each, more = divmod(rows, tp)
    first = rank * each + min(rank, more)
    return first, each + (rank < more)


class Later:
    """A client whose declarations are said twice: first without memory."""
    def __init__(self, client, gen, args):
        self.client, self.gen, self.args, self.said = client, gen, args, []

    def declare(self, name, dtype, shape, boxes, data, field=None, **options):
        self.client.declare(name, dtype, shape, boxes, None, field, **options)
        self.said.append((name, dtype, shape, boxes, data, field, options))

    def place(self):
        self.client.declared()
        wait_held(self.args, "place")
        wrong = self.args.place_wrong if self.gen.generation > 1 else None
        if wrong == "exit":
            print("out of device memory", flush=True)
            raise SystemExit(6)
        for i, (name, dtype, shape, boxes, data, field, options) in enumerate(self.said):
            if wrong == "less" and not i:
                continue
            self.client.declare(name, "I64" if wrong == "dtype" else dtype, shape, boxes, data, field, **options)


class Rank:
    def __init__(self, args, client, gen):
        self.args, self.client, self.gen, self.skipped = args, client, gen, 0
        later = Later(client, gen, args) if args.place_later else None
        self.recompute = [client.recompute(kind) for kind in range(args.recompute)]
        self.schedule = client.schedule() if args.schedule else None
        client = later or client
        self.cost = self.ask_cost()
        first, n = rows_of(args.rows, gen.tp, gen.tp_rank)
        self.arrays = []  # (array, sign)
        for l in range(args.layers):
            if l % gen.pp != gen.pp_rank:
                continue
            for field, sign in ((None, 1), ("m", -1)):
                a = layer(l, first, n, sign)
                self.arrays.append((a, sign))
                client.declare(f"layer.{l}.weight", "F64", [args.rows, 6], [([first, 0], [n, 6], 0, None)] if n else [],
                               address(a), field)
        self.steps = array.array("q", [0])
        client.declare("steps", "I64", [], [([], [], 0, None)], address(self.steps), tied=True)
        self.stat = array.array("d", [0.0] * 3)
        if args.amax:
            import numpy as np
            self.rows = (first, n)
            self.amax, self.amax_rows = np.zeros(6, np.float32), np.zeros(n, np.float16)
            self.measure(0)
            client.declare("amax", args.amax, [24 // SIZES[args.amax]], [([0], [24 // SIZES[args.amax]], 0, None)],
                           self.amax.ctypes.data, tied=True)
            client.declare("amax.rows", "F16", [args.rows], [([first], [n], 0, None)] if n else [], self.amax_rows.ctypes.data,
                           tied=True)
        if args.maps:
            with open(args.maps, "rb") as f:
                self.map = mmap.mmap(f.fileno(), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            self.mapped = ctypes.c_char.from_buffer(self.map) # of which nothing is ever read here
            client.declare("mapped", "U8", [4096], [([0], [4096], 0, None)], ctypes.addressof(self.mapped), tied=True)
        if args.stat:
            client.declare("stat", "F64", [3], [([0], [3], 0, None)], address(self.stat), tied=True)
        if later:
            later.place()

    def measure(self, step):
        """What a rank finds in a step, which no other does."""
        import numpy as np
        rng = np.random.default_rng([step, self.gen.rank])
        self.amax[:] = rng.standard_normal(6)
        self.amax[4:] = 0.0 if self.gen.rank else -0.0, np.nan if self.gen.rank == 1 else 1.0
        self.amax_rows[:] = rng.standard_normal(self.amax_rows.size)

    def log_amax(self, what, step):
        if self.args.amax and self.args.log:
            gen = self.gen
            with open(os.path.join(self.args.log, f"g{gen.generation}-l{gen.incarnation}-r{gen.rank}.amax"), "a") as f:
                f.write(json.dumps({"what": what, "step": step, "world": gen.world, "amax": self.amax.tobytes().hex(),
                                    "first": self.rows[0], "rows": self.amax_rows.tobytes().hex()}) + "\n")

    def from_files(self, step):
        """What this rank consumes in a step, as it finds it in data/ of a mount: slots of this step, without padding."""
        import numpy as np
        base = f"{self.args.files}/gen-{self.gen.generation}/dp-{self.gen.dp_rank}"
        deadline = time.monotonic() + 20  # the daemon there may learn of the generation a moment after we did
        while not os.path.isdir(base) and time.monotonic() < deadline:
            time.sleep(0.02)
        first = min(int(name[6:]) for name in os.listdir(base))
        for name in (f"epoch-{e}" for e in itertools.count(first)): # eight are listed, the later ones are there too
            with open(f"{base}/{name}/partition.json") as f:
                part = json.load(f)
            row = (step - part["first_step"]) * part["micro_steps"] * part["micro_batch"]
            if part["first_step"] <= step < part["first_step"] + part["steps"]:
                rows = slice(row, row + part["micro_steps"] * part["micro_batch"])
                ids, weights = (np.load(f"{base}/{name}/{what}.npy", mmap_mode="r")[rows] for what in ("ids", "weights"))
                return [int(i) for i, w in zip(ids, weights, strict=True) if w]

    def from_megatron(self):
        """The same, as Megatron's own sampler hands it out from the number of consumed samples that the cursor says."""
        import importlib.metadata # here, for it takes a quarter of a rank's start
        import importlib.util
        path, = (f.locate() for f in importlib.metadata.files("megatron-bridge") if f.match("megatron/bridge/data/samplers.py"))
        spec = importlib.util.spec_from_file_location("samplers", path) # its package wants to be more than that
        samplers = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(samplers)
        n, _, batch, micro = self.args.data
        consumed, _ = self.client.cursor_get("data") or (0, "")
        each = iter(samplers.MegatronPretrainingSampler(1 << 40, consumed, micro, self.gen.dp_rank, self.gen.dp))
        while True: # it counts through, whatever the epoch
            yield [i % n for _ in range(batch // (micro * self.gen.dp)) for i in next(each)]

    def position(self, step):
        return step * (self.args.data[2] if self.args.data else 8) + self.skipped

    def take_skipped(self, step):
        """How many samples were never had, by the cursor."""
        if self.args.log and os.path.exists(os.path.join(self.args.log, "skips")):
            self.skipped = self.client.cursor_get("data")[0] - self.position(step)
            assert self.skipped >= 0, self.skipped

    def cursor(self, step):
        if not self.args.data:
            return self.position(step), "n=100"
        n, seed, batch, micro = self.args.data
        return self.position(step), f"n={n},seed={seed};batch={batch},micro={micro}" + ",by_length=1" * self.by_length()

    def ask_cost(self):
        """What ptcd says that a sample costs."""
        told = self.client.rendezvous_get("ptc.length_cost").decode() if self.args.cost else "1 2"
        return tuple(map(int, told.split())) or (0, 0)

    def by_length(self):
        return self.gen.dp == self.args.by_length

    def samples(self, step):
        """What this rank consumes in a step, by libptc."""
        n, seed, batch, micro = self.args.data
        s = ptc.Sampling(n, seed, batch, micro, self.gen.dp)  # as the generation says that the batch is divided
        at = self.position(step)
        pairs = [s.micro_batch_of(at, m, self.gen.dp_rank) for m in range(s.micro_steps_of(self.gen.dp_rank))]
        if self.by_length():
            pairs = s.balanced(at, lambda ids: [i * i % 97 for i in ids], self.cost, self.gen.dp_rank)[0]
        return [i for ids, weights in pairs for i, w in zip(ids, weights, strict=True) if w]

    def at_stop(self, step):
        if self.args.refuse and os.path.exists(self.args.refuse):
            raise ptc.Error(-1, "refused, as told")
        self.log_amax("stopped", step)
        if not self.args.files and not self.args.megatron:
            self.client.cursor_set("data", *self.cursor(step))
        self.client.blob_set("where", f"{self.gen.tp_rank} {self.gen.pp_rank} {self.gen.dp_rank} {step}".encode(), ptc.RANK)
        self.client.blob_set("job", f"step {step}".encode())
        if self.args.loader:
            self.client.blob_set("loader/own", str(self.position(step)).encode())
        for name, given in self.given.items():
            if given is None:
                self.client.blob_set(name, f"{name} {self.gen.generation} {self.gen.rank}".encode(), self.scope(name))

    @staticmethod
    def scope(name):
        return ptc.TP if name.endswith("@tp") else ptc.RANK

    def take_blobs(self):
        found = {name: self.client.blob_get(name, self.scope(name)) for name in self.args.blobs}
        self.given = {name: data if data is None else data.decode() for name, data in found.items()}
        if self.given and self.args.log:
            path = os.path.join(self.args.log, f"g{self.gen.generation}-l{self.gen.incarnation}-r{self.gen.rank}.given")
            with open(path + "~", "w") as f:
                json.dump(self.given, f)
            os.rename(path + "~", path)

    def check_restored(self):
        step = self.gen.start_step
        assert self.steps[0] == step, (self.steps[0], step)
        self.log_amax("restored", step)
        assert not self.args.stat or all(x == step for x in self.stat), self.stat  # what dp rank 0 had
        if self.args.imported and step == 0:  # tensors only
            assert self.client.cursor_get("data") is None and self.client.blob_get("job") is None
            return
        self.take_skipped(step)
        if self.args.files or self.args.megatron:  # counted for us, as Megatron's consumed_train_samples
            assert self.client.cursor_get("data")[0] == self.position(step), self.client.cursor_get("data")
        else:
            # what comes after the ; is how the generation before divided
            found, mine = ((at, tag.split(";")[0]) for at, tag in (self.client.cursor_get("data"), self.cursor(step)))
            assert found == mine, (found, mine)
        assert self.client.blob_get("job") == f"step {step}".encode()
        assert not self.args.loader or self.client.blob_get("loader/own") == str(self.position(step)).encode()
        where = self.client.blob_get("where", ptc.RANK)
        if where is not None:
            assert where == f"{self.gen.tp_rank} {self.gen.pp_rank} {self.gen.dp_rank} {step}".encode(), where

    def update(self):
        self.client.update_begin()
        for a, sign in self.arrays:
            a[:] = array.array("d", [x + sign for x in a]) # in place: as many as there were
        self.steps[0] += 1
        self.spoil()
        for i in range(len(self.stat)):
            self.stat[i] += 1 + self.gen.dp_rank
        if self.args.amax:
            self.measure(self.steps[0])


    def spoil(self):
        """One replica goes wrong, as by a fault of its device."""
        path = os.path.join(self.args.log or "/", f"spoil-{self.gen.rank}")
        if self.arrays and os.path.exists(path):
            with open(path, encoding="ascii") as f:
                first = int(f.read())
            if self.steps[0] >= first:
                os.unlink(path)
                self.arrays[0][0][0] += 0.5


class Together:
    """Each rank's file has its process and the number of steps that it has ended."""
    def __init__(self, args, client, gen):
        base = os.path.join(args.log.rstrip("/") + "-together", f"g{gen.generation}-l{gen.incarnation}-r")
        self.late = os.path.join(args.log, f"late-l{gen.incarnation}") if args.survive else None
        self.of_late = {"": gen.tp_rank > 0, "crossed": (gen.tp_rank + gen.dp_rank) % 2 > 0}
        self.alone = client.update_alone if args.survive == 2 else None
        self.fails, self.peers = args.together == "fail", [f"{base}{r}" for r in range(gen.world) if r != gen.rank]
        os.makedirs(os.path.dirname(base), exist_ok=True)
        self.mine = os.open(f"{base}{gen.rank}", os.O_RDWR | os.O_CREAT, 0o666)
        os.pwrite(self.mine, struct.pack("qq", os.getpid(), -1), 0) # who dies in its first step is missed, too

    @staticmethod
    def read(path):
        try:
            with open(path, "rb") as f:
                return struct.unpack("qq", f.read(16))
        except (OSError, struct.error):
            return None, -1

    @staticmethod
    def gone(pid):
        try:
            with open(f"/proc/{pid}/stat", "rb") as f:
                return f.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
        except OSError:
            return True

    def end(self, step):
        os.pwrite(self.mine, struct.pack("qq", os.getpid(), step), 0)
        while self.is_late(step):
            if self.alone and self.alone(False):
                return
            if self.fails and any(self.gone(pid) for pid, _ in map(self.read, self.peers) if pid):
                if self.alone and self.alone(True):
                    return
                self.fail()
            time.sleep(0.001)
        for path in self.peers:
            while True:
                pid, ended = self.read(path)
                if ended >= step:
                    break
                # It may have ended the step after we looked, and before it died: then the others have seen that, and go on.
                if self.fails and pid and self.gone(pid) and self.read(path)[1] < step:
                    self.fail()
                time.sleep(0.001)

    def is_late(self, step):
        try:
            with open(self.late or os.devnull, "r", encoding="ascii") as f:
                first, _, which = f.read().partition(" ")
                return self.of_late[which] and int(first or step + 1) <= step
        except FileNotFoundError:
            return False

    @staticmethod
    def fail():
        print("connection closed by peer", flush=True)
        raise SystemExit(4)


def wait_held(args, what):
    """Until the test lets go of it (live.Job.hold)."""
    while args.log and os.path.exists(os.path.join(args.log, f"hold-{what}")):
        time.sleep(0.01)


def run(args, client, gen):
    together = Together(args, client, gen) if args.together else None # before anybody can wait for it
    if args.rendezvous:
        client.rendezvous_put(f"at/{gen.rank}", f"{gen.rank} of {gen.generation}".encode())
    time.sleep(1 << 20 if gen.generation >= args.hang_generation else args.build_sleep)
    wait_held(args, "build")
    for r in range(gen.world) if args.rendezvous else ():
        assert client.rendezvous_get(f"at/{r}", 60000) == f"{r} of {gen.generation}".encode()
    if args.raise_in == "build" and gen.rank == 1 or gen.generation == args.raise_generation:
        raise ValueError("no such optimizer")
    if gen.generation == args.grow_generation:
        args.rows += 1
    rank = Rank(args, client, gen)
    restored = client.restore()
    gen.start_step = client.start_step()  # built ahead, it was that of an earlier snapshot
    if restored:
        rank.check_restored()
    rank.take_blobs()
    client.on_stop(rank.at_stop)
    if args.survive:
        client.survive()
    try:
        train(args, client, gen, rank, together)
    except BaseException:
        client.leave()
        raise


def node():
    """The name of the rank's node: each has a directory of its own, with the socket for its ranks."""
    return os.environ["PTC_WORKER_SOCKET"].partition("/run/")[0].rpartition("/")[2]


def work(args, client, gen):
    slow = args.own and any(os.path.exists(os.path.join(args.log, f"slow-{who}")) for who in (gen.rank, f"on-{node()}"))
    with client.own_work() if args.own else contextlib.nullcontext():
        time.sleep(args.sleep * (args.own if slow else 1))


def train(args, client, gen, rank, together):
    log = open(os.path.join(args.log, f"g{gen.generation}-l{gen.incarnation}-r{gen.rank}.jsonl"), "a", buffering=1) if args.log else None
    step, each = gen.start_step, rank.from_megatron()
    while True:
        if args.survive:
            rank.at_stop(step)
        if client.boundary(step):
            return
        while step == args.hold_at and not any(os.path.exists(os.path.join(args.log, f"go{who}")) for who in ("", f"-{gen.rank}")):
            time.sleep(0.002)
        if step == (args.early if args.early >= 0 and gen.rank == 0 else args.steps):
            client.finish(step)
            return
        if log:
            line = {"step": step, "rank": gen.rank, "pid": os.getpid(), "generation": gen.generation}
            line |= {"recompute": rank.recompute} if rank.recompute else {}
            line |= {"schedule": rank.schedule} if rank.schedule else {}
            if args.data:
                samples = rank.from_files(step) if args.files else next(each) if args.megatron else rank.samples(step)
                line |= {"samples": samples, "dp_rank": gen.dp_rank, "first": gen.tp_rank + gen.pp_rank == 0}
            log.write(json.dumps(line) + "\n")
        client.report("loss", 1.0 / (step + 1))
        if args.peak:
            client.report("peak_bytes", args.peak)
        if args.cost:
            client.report("cost_linear", rank.cost[0])
            client.report("cost_square", rank.cost[1])
        if gen.rank == args.fail_rank and (step == args.fail_at or gen.generation == args.fail_generation):
            print("giving up, as told", flush=True)
            raise SystemExit(3)
        work(args, client, gen)
        if together:
            together.end(step + 1)
        rank.update()
        step += 1


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rows", type=int, default=13)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--steps", type=int, default=-1)
    p.add_argument("--sleep", type=float, default=0.002)
    p.add_argument("--own", type=float, default=0)
    p.add_argument("--build-sleep", type=float, default=0)
    p.add_argument("--hang-generation", type=int, default=1 << 60, help="hangs as it builds this one, or a later one")
    p.add_argument("--end-sleep", type=float, default=0, help="when a generation has ended")
    p.add_argument("--log")
    p.add_argument("--raise-in", choices=["start", "build"], help="on node n1 before it asks for a generation, or rank 1 as it builds one")
    p.add_argument("--raise-generation", type=int, default=-1, help="as it builds this one")
    p.add_argument("--grow-generation", type=int, default=-1, help="declares a row more in this one")
    p.add_argument("--place-later", type=int, default=0, help="1: declares without memory, which comes later (live.Job.hold(\"place\"))")
    p.add_argument("--place-wrong", choices=["exit", "less", "dtype"], help="with --place-later, what goes wrong then in later generations")
    p.add_argument("--imported", type=int, default=0, help="1: what is restored at step 0 was imported")
    p.add_argument("--fail-at", type=int, default=-1)
    p.add_argument("--hold-at", type=int, default=-1)
    p.add_argument("--early", type=int, default=-1, help="where rank 0 finishes, before the others")
    p.add_argument("--fail-rank", type=int, default=0)
    p.add_argument("--fail-generation", type=int, default=-1, help="fails in its first step")
    p.add_argument("--rendezvous", type=int, default=0, help="1: before a rank declares, it has met all others")
    p.add_argument("--together", choices=["fail", "hang"], help="ranks end each step together; what one does whose peer has gone")
    p.add_argument("--survive", type=int, default=0, help="1: the job may go on from this rank's memory; 2: this rank ends a step alone")
    p.add_argument("--devices", type=int, default=0, help="1: a rank fails where another process has its device")
    p.add_argument("--stat", type=int, default=0, help="1: with the tensor whose replicas differ")
    p.add_argument("--maps", help="with a tensor that lies in a mapping of this file")
    p.add_argument("--blobs", type=lambda s: s.split(","), default=[], help="names of per-rank blobs; NAME@tp: of the tensor-parallel group")
    p.add_argument("--amax", choices=sorted(SIZES), help="with tensors of which each rank has values of its own, `amax` of this dtype")
    p.add_argument("--peak", type=float, default=0, help="bytes of its device's memory that a rank reports as its peak")
    p.add_argument("--schedule", type=int, default=0, help="asks in which order micro-batches pass the pipeline, and logs it")
    p.add_argument("--recompute", type=int, default=0, help="asks how layers of so many kinds are to be recomputed, and logs it")
    p.add_argument("--refuse", help="stops are refused while this file exists")
    p.add_argument("--data", type=lambda s: [int(x) for x in s.split(",")], help="N,SEED,BATCH,MICRO: samples are consumed, and logged")
    p.add_argument("--by-length", type=int, default=0, help="with --data: batches are divided by length where dp is this")
    p.add_argument("--cost", type=int, default=0, help="1: by what ptcd says that a sample costs, which is reported; 0 0: it says nothing")
    p.add_argument("--loader", type=int, default=0, help="1: with the state of a loader of its own, as ptc.torch.External has it")
    p.add_argument("--files", help="with --data: samples are taken from this directory of a mount, and no cursor is set")
    p.add_argument("--megatron", type=int, default=0, help="1: with --data: samples are those of Megatron's sampler, and no cursor is set")
    args = p.parse_args()
    wait_held(args, "start")
    if args.devices:
        take_device(args)
    if args.raise_in == "start" and "/n1/" in os.environ["PTC_WORKER_SOCKET"]: # a process that waits has no rank yet
        raise ValueError("no such optimizer")
    client = ptc.Client()
    while (gen := client.next()) is not None:
        print(f"generation {gen.generation} incarnation {gen.incarnation} rank {gen.rank} of {gen.world} from step {gen.start_step}", flush=True)
        run(args, client, gen)
        time.sleep(args.end_sleep)
    client.close()


if __name__ == "__main__":
    main()
