# SPDX-License-Identifier: Apache-2.0
"""Random streams under real daemons and real ranks: what each rank draws, and the masks and the curve of a network with dropout, whatever
its parallelism, against one process (rng_oracle.py) that computes which numbers each rank must draw."""
import importlib.util
import json
import os
import random
import re
import signal
import types
import unittest
import warnings
from unittest import mock

import harness  # first: it says where the others are
import numpy as np
from test_torch import HAS_TORCH, VERSION, Job

if HAS_TORCH:
    import rng_oracle

SEED = 7


@unittest.skipUnless(HAS_TORCH, "no PyTorch: scripts/venv --torch")
@harness.labels("repeats")
class Rng(harness.Case):
    def job(self, c, case, mode="rebuild", run=None, **options):
        argv = ["rng_rank.py", case, "--log", os.path.join(self.dir, "steps")]
        for key, value in options.items():
            argv += [f"--{key}", str(value)]
        return Job(c, self.dir, case, mode, program=argv, run={"seed": SEED} if run is None else run)

    def drive(self, job, configs, stop=True, each=4):
        """Runs on each configuration in turn: [(config, generation, first step, end)], of those that have ended."""
        job.run(configs[0])
        runs, at = [], 0
        for config in configs[1:]:
            job.wait_step(at + each)
            end = job.resize(config)["step"]
            runs.append((configs[len(runs)], len(runs) + 1, at, end))
            at = end
        job.wait_step(at + each)
        if stop:
            job.do("stop")
            runs.append((configs[-1], len(configs), at, job.wait_run("stopped")["step"]))
        return runs

    def lines(self, job, generation):
        """{(place, step): line}"""
        return {(tuple(line["place"]), line["step"]): line for (g, _), log in job.logged().items() for line in log
                if g == generation}

    def check_drawn(self, job, oracle, config, generation, first, end):
        lines = self.lines(job, generation)
        for step in range(first, end):
            for place, want in oracle.step().items():
                self.assertEqual(want, lines[place, step]["drawn"], f"{config}, rank at {place}, step {step}")
        self.assertEqual(set(rng_oracle.places(config)), {place for place, _ in lines})

    def test_streams(self):
        """Generators of every kind, through changes of every degree; a run after a rank was killed goes on from the snapshot."""
        configs = ["tp=1", "tp=2", "pp=2", "dp=2", "cp=2"]
        with self.cluster(nodes=1, devices=2) as c:
            job = self.job(c, "streams")
            runs = self.drive(job, configs, stop=False)
            job.do("snapshot")
            step = job.status()["step"]
            job.wait_step(step + 2)
            os.kill(next(iter(self.lines(job, len(configs)).values()))["pid"], signal.SIGKILL)
            job.wait_run("failed")
            job.run("tp=2")
            job.wait_step(step + 3)
            job.do("stop")
            stopped = job.wait_run("stopped")
        runs.append((configs[-1], len(configs), runs[-1][-1], step))
        runs.append(("tp=2", stopped["generation"], step, stopped["step"]))
        oracle = rng_oracle.Oracle(SEED, configs[0])
        for config, generation, first, end in runs:
            if generation > 1:
                oracle.resize(config, first)
            self.check_drawn(job, oracle, config, generation, first, end)

    def restarted(self, configs, run):
        with self.cluster(nodes=2, devices=2) as c:
            job = self.job(c, "streams", mode="restart", run={"seed": SEED, **run})
            runs = self.drive(job, configs)
        oracle = rng_oracle.Oracle(SEED, configs[0])
        for config, generation, first, end in runs:
            if generation > 1:
                oracle.resize(config, first)
            self.check_drawn(job, oracle, config, generation, first, end)

    def test_streams_ahead(self):
        """Ranks that were built with an earlier snapshot's streams, or with none, begin with those of the stop."""
        self.restarted(["tp=1", "tp=2", "dp=2"], {"build": "ahead"})

    @unittest.skipUnless(harness.LONG, "more processes, started anew at each switch: PTC_TEST_LONG=1")
    def test_streams_restart(self):
        self.restarted(["tp=2", "tp=2,dp=2", "tp=2,pp=2", "tp=4", "dp=2,cp=2", "tp=2,cp=2", "tp=2,dp=2,order=pp-dp-ep-cp-tp", "tp=3"], {})

    def reference(self, runs, plain=False):
        """{step: (loss, {place: (residual, inside)})} of one process that has the whole network and every rank's generators."""
        import rng_rank
        import torch
        import torch.nn.functional as F
        streams = ["torch", "masks/model-parallel-rng"]
        oracle, now, out = rng_oracle.Oracle(SEED, runs[0][0], streams), {}, {}

        def masks_of(stream, place, shape):
            torch.set_rng_state(oracle.ranks[place][stream].get_state())
            mask = F.dropout(torch.ones(shape, dtype=torch.float64), rng_rank.P)
            oracle.ranks[place][stream].set_state(torch.get_rng_state())
            return mask

        def inside(h):
            parts = [masks_of("masks/model-parallel-rng", (t, *now["group"]), (len(h), h.shape[1] // now["tp"]))
                     for t in range(now["tp"])]
            for t, part in enumerate(parts):
                now["inside"][t].append(part == 0)
            return h if plain else h * torch.cat(parts, 1)

        def residual(x):
            parts = [masks_of("torch", (t, *now["group"]), x.shape) for t in range(now["tp"])]
            for part in parts:
                self.assertTrue(torch.equal(part, parts[0]), "the oracle's own ranks of a group draw the same")
            now["residual"].append(parts[0] == 0)
            return parts[0]

        class Whole(rng_rank.Net):
            def forward(self, x):
                for layer in self.layers:
                    x = x + residual(x) * layer.down(inside(F.gelu(layer.up(x))))
                return self.head(self.norm(x))

        model = Whole(None)
        optim = rng_rank.optimizer(model)
        for config, generation, first, end in runs:
            tp, _, dp, _ = rng_oracle.degrees(config)
            if generation > 1:
                oracle.resize(config, first)
            for step in range(first, end):
                x, y = rng_rank.batch(step)
                total, masks = 0, {}
                for d in range(dp):
                    now.update(tp=tp, group=(0, d, 0), inside=[[] for _ in range(tp)], residual=[])
                    part = slice(d * len(x) // dp, (d + 1) * len(x) // dp)
                    total = total + F.mse_loss(model(x[part]), y[part], reduction="sum") / len(x)
                    for t in range(tp):
                        masks[t, 0, d, 0] = (rng_rank.packed(now["residual"]), [] if plain else rng_rank.packed(now["inside"][t]))
                optim.zero_grad()
                total.backward()
                optim.step()
                out[step] = total.item(), masks
        return out

    def check_trained(self, job, runs, want):
        for config, generation, first, end in runs:
            lines = self.lines(job, generation)
            for step in range(first, end):
                loss, masks = want[step]
                for place, (residual, inside) in masks.items():
                    line, what = lines[place, step], f"{config}, rank at {place}, step {step}"
                    self.assertEqual(residual, line["residual"], f"residual masks: {what}")
                    self.assertEqual(inside, line["inside"], f"masks inside of the tensor-parallel region: {what}")
                    self.assertLess(abs(line["loss"] - loss), 1e-9 * max(1, abs(loss)), f"loss: {what}")

    @unittest.skipUnless(VERSION >= (2, 8), "PyTorch 2.7's FSDP2 does not run on CPUs")
    def test_dropout(self):
        """Trains with dropout of residuals and inside of the tensor-parallel region, tensor-parallel and with FSDP over data-parallel
        ranks: masks, curve, and replicas that stay replicas, which each stop checks."""
        configs = ["tp=1", "tp=2", "tp=1", "tp=2,dp=2", "dp=2"]
        with self.cluster(nodes=1, devices=4) as c:
            job = self.job(c, "dropout")
            runs = self.drive(job, configs)
        self.check_trained(job, runs, self.reference(runs))

    def test_residual(self):
        """Without a word about streams: the default generator agrees within tensor parallelism, from the first start on."""
        with self.cluster(nodes=1, devices=2) as c:
            job = self.job(c, "dropout", run={}, plain=1)
            runs = self.drive(job, ["tp=2", "tp=1", "tp=2"])
            self.assertEqual({int(job.status()["uuid"].replace("-", "")[:16], 16)},
                             {line["seed"] for log in job.logged().values() for line in log})
        self.check_trained(job, runs, self.reference(runs, plain=True))

    # ---- what can be seen in one process, whose client is a stand-in

    @unittest.skipIf(harness.SANITIZED, "this process is not started for a sanitized library")
    def test_without_daemon(self):
        """One test, as PyTorch is slow to import."""
        os.environ["PTC_LIBRARY"] = harness.binary("client/lib/libptc.so.1")
        os.environ["PTC_SEED"] = str(SEED)
        import torch
        self.addCleanup(torch.set_rng_state, torch.get_rng_state())
        self.addCleanup(random.setstate, random.getstate())
        self.addCleanup(np.random.set_state, np.random.get_state())
        for check in (self.check_kinds, self.check_megatron, self.check_device, self.check_old, self.check_start, self.check_refused,
                      self.check_left_behind, self.check_rule_changed):
            check()

    def streams(self, blobs, given=None, step=10, tp=1, place=(0, 0, 0, 0), has_state=True, store=None):
        """Streams of a rank whose snapshot has these blobs, {(name, scope): bytes}."""
        import ptc
        from ptc import _rng
        client = types.SimpleNamespace(blob_get=lambda name, scope=ptc.JOB: blobs.get((name, scope)),
                                       blob_set=lambda name, data, scope=ptc.JOB: blobs.__setitem__((name, scope), data))
        gen = types.SimpleNamespace(_client=client, has_state=has_state, start_step=step, tp=tp, store=store,
                                    **dict(zip(("tp_rank", "pp_rank", "dp_rank", "cp_rank"), place)))
        return _rng.Streams(gen, given)

    def refused(self, text, call):
        import ptc
        with self.assertRaisesRegex(ptc.Error, re.escape(text)):
            call()

    @staticmethod
    def kinds():
        import rng_rank
        import torch
        tracker, graphs = rng_rank.Tracker(), rng_rank.Tracker()
        tracker.add("a", 3)
        graphs.states = {"data-parallel-rng": torch.Generator().manual_seed(4)}  # as where CUDA graphs capture
        return {"t": torch.Generator().manual_seed(1), "p": random.Random(2), "r": np.random.RandomState(3), "k": tracker, "g": graphs,
                **{f"n{i}": np.random.Generator(kind(i)) for i, kind in enumerate((
                    np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64))},
                "b": np.random.PCG64(9)}

    @staticmethod
    def draws(things):
        import torch
        out = {}
        for name, thing in things.items():
            if hasattr(thing, "fork"):
                for key, state in thing.get_states().items():
                    g = state if isinstance(state, torch.Generator) else torch.Generator()
                    if g is not state:
                        g.set_state(state)
                    out[f"{name}/{key}"] = rng_oracle.draw(g)
            else:
                out[name] = [int(thing.random_raw())] if name == "b" else rng_oracle.draw(thing)
        return out

    def check_kinds(self):
        """Every kind of generator comes back, to the cached half of a pair; on a new rank it begins as the oracle says."""
        import torch
        blobs, things = {}, self.kinds()
        self.draws(things)
        torch.randn(()), random.gauss(0, 1), np.random.randn()
        self.streams(blobs, things).save()
        want = self.draws(things), torch.randn(()).item(), random.gauss(0, 1), np.random.randn()
        again = self.kinds()
        torch.manual_seed(5), random.seed(5), np.random.seed(5)
        self.streams(blobs, again).load()
        self.assertEqual(want, (self.draws(again), torch.randn(()).item(), random.gauss(0, 1), np.random.randn()))
        self.assertEqual({"t": 3, "p": 3, "k/a": 1, "g/data-parallel-rng": 3, "torch": 3, "numpy": 3},
                         {n: s for (b, s) in blobs for n in [b[4:]] if n in ("t", "p", "k/a", "g/data-parallel-rng", "torch", "numpy")})
        place, again = (1, 2, 3, 4), self.kinds()
        again["r"].randn(), again["p"].gauss(0, 1), np.random.seed(5), np.random.randn()  # half of a pair is left
        self.streams({("rng/streams", 2): blobs["rng/streams", 2]}, again, step=12, tp=2, place=place).load()
        found = {**self.draws(again), "torch": rng_oracle.draw(torch.default_generator), "python": rng_oracle.draw(random._inst),
                 "numpy": rng_oracle.draw(np.random.get_state.__self__)}
        for name, numbers in found.items():
            rule = "differ" if name == "k/a" else "agree"
            key = rng_oracle.digest(SEED, name, 12, place, rule)
            number = int.from_bytes(key, "little")
            if name[0] == "n" and name != "numpy":
                want = rng_oracle.draw(np.random.Generator(type(self.kinds()[name].bit_generator)(number)))
            elif name == "b":
                want = [int(np.random.PCG64(number).random_raw())]
            else:
                want = rng_oracle.draw(rng_oracle.derive({"p": "python", "r": "numpy"}.get(name, name), key))
            self.assertEqual(want, numbers, name)

    def check_megatron(self):
        """Megatron's own tracker is found by itself; its states are those of a GPU's generator, seed and offset."""
        if not importlib.util.find_spec("megatron"):
            self.assertFalse(harness.LONG, "no Megatron here: scripts/venv --torch")
            return
        import torch
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from megatron.core.tensor_parallel import random as megatron
        tracker = megatron.CudaRNGStatesTracker()
        state = lambda n: torch.arange(n, n + 16, dtype=torch.uint8)
        names = ("data-parallel-rng", "expert-parallel-rng", "model-parallel-rng")
        tracker.set_states({name: state(i) for i, name in enumerate(names)})
        with mock.patch.object(megatron, "_CUDA_RNG_STATE_TRACKER", tracker):
            blobs = {}
            self.streams(blobs).save()
            self.assertEqual({"rng/megatron/data-parallel-rng": 3, "rng/megatron/expert-parallel-rng": 1, "rng/megatron/model-parallel-rng": 1},
                             {b: s for b, s in blobs if "megatron" in b})
            tracker.set_states({name: state(9) for name in names})
            self.streams(blobs).load()
            self.assertEqual([bytes(state(i).tolist()) for i in range(3)], [bytes(tracker.get_states()[n].tolist()) for n in names])
            self.streams({("rng/streams", 2): blobs["rng/streams", 2]}, tp=2, place=(1, 0, 1, 0)).load()
            for name in names:
                key = rng_oracle.digest(SEED, f"megatron/{name}", 10, (1, 0, 1, 0), "agree" if name == names[0] else "differ")
                self.assertEqual(key[:8] + bytes(8), bytes(tracker.get_states()[name].tolist()))
            tracker._current_state_name = names[2]
            self.refused("rng megatron: its state model-parallel-rng is in use", self.streams({}).save)
            tracker._current_state_name = "default-rng"
            tracker.reset()  # the new program has not seeded it yet
            self.refused("rng megatron/data-parallel-rng: the snapshot has this random stream, and the program has not",
                         self.streams({("rng/streams", 2): blobs["rng/streams", 2]}).load)

    def check_device(self):
        """A device's generator once the device is in use; here the CPU's stand in for it. Others must not have been drawn from."""
        import torch
        generators = tuple(torch.Generator().manual_seed(i) for i in range(2))
        other = types.SimpleNamespace(get_state=lambda: torch.zeros(16, dtype=torch.uint8))
        blobs = {}

        def devices(others, ready=True):
            return mock.patch.multiple(torch.cuda, is_initialized=lambda: ready, is_available=lambda: True, current_device=lambda: 1,
                                       default_generators=(others, generators[1]), init=lambda: inits.append(1))
        inits = []
        with devices(other):
            self.streams(blobs).save()
            self.assertEqual("agree", json.loads(blobs["rng/streams", 2])["streams"]["cuda"])
            want = rng_oracle.draw(generators[1])
            generators[1].manual_seed(8)
            self.streams(blobs).load()
            self.assertEqual((want, [1]), (rng_oracle.draw(generators[1]), inits))
            other.get_state = lambda: torch.tensor([0] * 8 + [4] + [0] * 7, dtype=torch.uint8)
            drawn = self.streams(blobs)
            drawn.load()
            self.refused("numbers have been drawn from the generator of cuda:0, and this rank's device is cuda:1", drawn.save)
        self.assertNotIn(("rng/other", 3), blobs)
        self.refused("rng cuda: the snapshot has this random stream, and the program has not", self.streams(blobs).load)

    def check_old(self):
        """Snapshots of before streams had names are read where they say enough."""
        import base64
        import torch
        from ptc import _values
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        np.random.randn()
        kind, key, *rest = np.random.get_state()
        old = {("rng", 1): torch.get_rng_state().numpy().tobytes(), ("rng-python", 1): _values.dumps("random", random.getstate()),
               ("rng-numpy", 1): json.dumps([base64.b64encode(key.tobytes()).decode(), *rest]).encode()}
        draw = lambda: (torch.rand(()).item(), random.random(), np.random.randn(), np.random.randn())
        want = draw()
        torch.manual_seed(2), random.seed(2), np.random.seed(2)
        self.streams(old).load()
        self.assertEqual(want, draw())
        self.refused("rng torch: the snapshot was made by an older ptc", self.streams(old, tp=2).load)
        self.streams({}, tp=2, place=(1, 0, 0, 0)).load()  # of another kind of program, or reset by a rule
        key = rng_oracle.digest(SEED, "torch", 10, (0, 0, 0, 0), "agree")
        self.assertEqual(rng_oracle.draw(rng_oracle.derive("torch", key)), rng_oracle.draw(torch.default_generator))
        later = {("rng/streams", 2): b'{"version": 2, "streams": {}}'}
        self.refused("the snapshot's random states are of version 2; this ptc reads version 1", self.streams(later).load)
        with mock.patch.dict(os.environ):
            del os.environ["PTC_SEED"]
            self.refused("rng: the ptcd of this node has told the job's processes no seed", self.streams({}).load)

    def check_start(self):
        """Where a job begins the program's seeds count, also from imported tensors; of a tensor-parallel group those of its rank 0."""
        import torch
        from torch.distributed import HashStore
        for options in (dict(has_state=False), dict(step=0)):
            torch.manual_seed(11)
            self.streams({}, **options).load()
            self.assertEqual(11, torch.initial_seed())
        store, begun = HashStore(), []
        for rank in range(2):
            torch.manual_seed(rank), random.seed(rank), np.random.seed(rank)
            mine = {"mine": random.Random(rank), "other": torch.Generator().manual_seed(rank)}
            given = {"mine": (mine["mine"], "differ"), "other": mine["other"], "numpy": "differ"}
            self.streams({}, given, tp=2, place=(rank, 0, 3, 0), has_state=False, store=store).load()
            begun.append([torch.rand(()).item(), random.random(), rng_oracle.draw(mine["other"]), np.random.rand(), mine["mine"].random()])
        torch.manual_seed(0), random.seed(0)
        self.assertEqual([torch.rand(()).item(), random.random()], begun[0][:2])
        self.assertEqual([True] * 3 + [False] * 2, [a == b for a, b in zip(*begun)])

    def check_refused(self):
        import torch
        spawned = np.random.default_rng(1)
        spawned.spawn(1)
        g = torch.Generator()
        for text, given in (
                ("rng: a list, not a dict", [g]), ("rng: the name 3 of a stream is no text", {3: g}),
                ("rng x: a tuple of 3, not (generator, rule)", {"x": (g, 1, 2)}), ("rng x: a int is no generator", {"x": 3}),
                ("rng x: the rule 'same' is neither", {"x": (g, "same")}), ("rng s: a SystemRandom is no generator", {"s": random.SystemRandom()}),
                ("rng torsh: there is no stream of that name to give a rule", {"torsh": "differ"}),
                ("rng torch: this name is that of a stream which is carried anyhow", {"torch": g})):
            self.refused(text, lambda: self.streams({}, given))
        self.refused("rng s: generators have been spawned from it", self.streams({}, {"s": spawned}).save)
        self.refused("rng: 43 streams, at most 32", self.streams({}, {str(i): g for i in range(40)}).save)
        self.refused("at most 128 bytes", self.streams({}, {"x" * 129: g}).save)
        blobs = {}
        self.streams(blobs, {"x": g}).save()
        self.refused("rng x: the snapshot has the state of a generator of kind 'torch cpu', this one is of kind 'python'",
                     self.streams(blobs, {"x": random.Random()}).load)
        self.refused("rng x: the snapshot has this random stream, and the program has not; make it before attach(), give it in rng=, or "
                     "leave it behind with rng={'x': None}", self.streams(blobs).load)
        blobs["rng/x", 3] = b"torch cpu\nabc"
        self.refused("rng x: the snapshot's state cannot be restored into it: ", self.streams(blobs, {"x": g}).load)

    def check_left_behind(self):
        import torch
        blobs = {}
        self.streams(blobs, {"x": torch.Generator()}).save()
        after = self.streams(blobs, {"x": None, "python": None})
        random.seed(4)
        after.load()
        self.assertEqual(random.Random(4).random(), random.random())
        after.save()
        self.assertEqual((b"", b""), (blobs["rng/x", 3], blobs["rng/python", 3]))
        self.assertEqual({"torch", "numpy"}, set(json.loads(blobs["rng/streams", 2])["streams"]))
        self.streams(blobs).load()

    def check_rule_changed(self):
        import torch
        blobs, g = {}, torch.Generator().manual_seed(3)
        self.streams(blobs, {"x": (g, "differ")}).save()
        want = rng_oracle.draw(g)
        after = self.streams(blobs, {"x": g})
        after.load()
        self.assertEqual(want, rng_oracle.draw(g))
        after.save()
        self.assertEqual(b"", blobs["rng/x", 1])
        self.refused("rng x: ranks of a tensor-parallel group agree in the snapshot, and are to differ now",
                     self.streams({**blobs, ("rng/x", 1): b""}, {"x": (g, "differ")}, tp=2).load)
