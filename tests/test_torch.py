# SPDX-License-Identifier: Apache-2.0
"""The Python package under real daemons and real ranks: what PyTorch's own parallelism has put where, and what whole tensors in
one process (torch_state.py) say that it must be."""
import ast
import contextlib
import difflib
import functools
import glob
import importlib.util
import json
import os
import re
import subprocess
import sys
import types
import unittest
import warnings
import weakref

import harness  # first: it says where the others are
import curve
import live
import numpy as np
import order_oracle
from harness import LONG, PATIENCE, wait_for

HAS_TORCH = importlib.util.find_spec("torch") is not None


class Job(live.Job):
    """A job of tests/torch_rank.py, or of another program."""

    def __init__(self, c, directory, case, mode="rebuild", program=None, warnings="ignore", run=None, **options):
        super().__init__(c, directory, name=case, mode=mode, run=run)
        with open(self.yaml) as f:
            spec = json.load(f)
        self.case = case
        argv = program or ["torch_rank.py", case, "--log", self.logs]
        for key, value in options.items():
            argv += [f"--{key}", str(value)]
        spec["run"]["argv"] = [sys.executable, "-B", "-W", warnings, os.path.join(harness.ROOT, "tests", argv[0]), *argv[1:]]
        spec["run"]["env"]["OMP_NUM_THREADS"] = "1"
        spec["run"]["env"]["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        with open(self.yaml, "w") as f:
            json.dump(spec, f)

    def logged(self):
        """{(generation, rank): [line]}"""
        out = {}
        for path in glob.glob(os.path.join(self.logs, f"{self.case}-g*.jsonl")):
            g, r = os.path.basename(path)[len(self.case) + 1:-6].split("-")
            with open(path) as f:
                out[int(g[1:]), int(r[1:])] = [json.loads(line) for line in f if line.endswith("\n")]
        return out

    def wait_step(self, step, timeout_s=60):
        def there():
            s = self.status()
            if s["run"]["state"] == "failed":
                raise AssertionError(s["run"]["text"] + "\n" + self.c.ptcctl("events", self.name).stdout)
            return s["run"].get("step", -1) >= step or None
        return wait_for(there, timeout_s * PATIENCE, f"step {step}", 0.05)

    def wait_run(self, state, timeout_s=120):
        def there():
            s = self.status()
            if s["run"]["state"] == "failed" and state != "failed":
                raise AssertionError(s["run"]["text"] + "\n" + self.c.ptcctl("events", self.name).stdout)
            return s if s["run"]["state"] == state and s["phase"] == "idle" else None
        return wait_for(there, timeout_s * PATIENCE, f"job {state}", 0.05)

    def check_export(self, case, step, path):
        """Every tensor of the snapshot equals plain PyTorch's on whole tensors. Returns the file's bytes."""
        import torch
        import torch_state
        from safetensors.torch import load_file
        self.c.ptcctl("export", self.name, path, timeout_s=60 * PATIENCE)
        found, want = load_file(path), torch_state.whole(self.case, step)
        case.assertEqual(sorted(want), sorted(found))
        for name, t in want.items():
            case.assertEqual((t.dtype, t.shape), (found[name].dtype, found[name].shape), name)
            case.assertTrue(torch.equal(t, found[name]), f"{name} at step {step}: {found[name]} is not {t}")
        with open(path, "rb") as f:
            return f.read()


@unittest.skipUnless(HAS_TORCH, "no PyTorch: scripts/venv --torch")
class Torch(harness.Case):
    def layouts(self, case, configs, nodes=2, devices=2, **options):
        """Runs on each configuration in turn; the state at each switch is exact."""
        with self.cluster(nodes=nodes, devices=devices) as c:
            job = Job(c, self.dir, case, **options)
            job.run(configs[0])
            at = 0
            for config in configs[1:]:
                job.wait_step(at + 3)
                at = job.resize(config)["step"]
                job.check_export(self, at, self.path("now.safetensors"))
            job.wait_step(at + 3)
            job.do("stop")
            at = job.wait_run("stopped")["step"]
            job.check_export(self, at, self.path("now.safetensors"))
            logged = job.logged()
            self.assertEqual({g for g, _ in logged}, set(range(min(logged)[0], min(logged)[0] + len(configs))))
            return logged

    def test_layouts(self):
        """Tensor parallelism, FSDP2 (uneven, empty, strided over TP), HSDP, replicated, tied, scalars, integers, bfloat16."""
        self.layouts("zoo", ["tp=2,dp=2", "dp=3", "tp=4", "tp=2,dp=2"])

    def test_names(self):
        """DDP, torch.compile, pipeline stages and tied parameters: the same names throughout."""
        self.layouts("wrap", ["dp=2", "pp=2", "dp=1", "dp=2"], nodes=1)

    @unittest.skipUnless(harness.LONG, "new processes at each switch: PTC_TEST_LONG=1")
    def test_restart(self):
        self.layouts("zoo", ["tp=2,dp=2", "dp=3", "tp=4", "tp=2,dp=2"], mode="restart")

    def test_cycles(self):
        """Rebuilt in the same process over and over, with tensor parallelism and FSDP2: nothing piles up."""
        cycles = 30 if harness.LONG else 6
        logged = self.layouts("zoo", ["tp=2", "dp=2"] * (cycles // 2) + ["tp=2"], nodes=1, sleep=0.2)
        for rank in (0, 1):
            lines = [log[0] for (_, r), log in sorted(logged.items()) if r == rank]
            self.assertEqual(1, len({line["pid"] for line in lines}))
            for what in ("fds", "threads"):
                used = [line[what] for line in lines]
                print(f"rank {rank}: {what} {used}")
                self.assertLessEqual(max(used), used[0] + 2, f"rank {rank}: {what} {used}")

    def test_forget_meshes(self):
        """Caches of PyTorch's are found among whatever else the user's process has, and nothing of that is touched."""
        import ptc.torch

        class Odd:
            __class__ = property(lambda self: 1 / 0)

        @functools.lru_cache(None)
        def mine(n):
            return n

        @functools.lru_cache(None)
        def theirs(n):
            return n
        theirs.__module__ = "torch.distributed.test"
        keep = [Odd(), weakref.proxy(type("Gone", (), {})()), mine(1), theirs(1)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ptc.torch._forget_meshes()
        self.assertEqual((1, 0), (mine.cache_info().currsize, theirs.cache_info().currsize))
        del keep

    # ---- what is refused

    REFUSED = {
        "partial": "weight: placement Partial(sum) cannot be carried",
        "extra state": "_extra_state: a module's extra state cannot be carried",
        "copy in state dict": "weight: the model's state dict has a copy there",
        "unknown optimizer": "optimizer Rprop has no state yet",
        "no optimizer": "optim: a Linear is no torch.optim.Optimizer",
        "damped": "SGD with dampening",
        "foreign parameter": "optimizer AdamW: a parameter of shape (3, 2) is none of the model's",
        "dtype": "tensor z: dtype torch.complex128 cannot be carried",
        "sparse": "tensor z: layout torch.sparse_coo cannot be carried",
        "device": "tensor weight: it is on meta",
        "not a tensor": "extra ema: a int cannot be carried",
        "name taken": "extra weight: the model's state dict has that name already",
        "group option": "a builtin_function_or_method cannot be carried",
        "numpy number": "numpy.float64 cannot be carried; make it a plain float",
        "optimizer state": "weight: optimizer state 'step' is a int",
        "state's shape": "weight: optimizer state 'row' has shape [1, 7], the parameter [3, 2]",
        "scheduler": "scheduler.f.g: a object cannot be carried",
        "too large": "history: its state takes 300",
        "zero1 range": "for the range 0..9 of 6",
        "early loader": "dataset data: where it goes on is not known before gen.attach",
        "twice": "attached already",
    }

    def test_refused_at_attach(self):
        with self.cluster(nodes=1, devices=1) as c:
            job = Job(c, self.dir, "refuse")
            job.run("dp=1")
            job.wait_run("done")
            said = {line["name"]: line["text"] for line in job.logged()[1, 0]}
        self.assertEqual(set(self.REFUSED), set(said))
        for name, text in self.REFUSED.items():
            self.assertIn(text, said[name], name)
            self.assertNotIn("\n", said[name], name)

    @unittest.skipIf(harness.SANITIZED, "this process is not started for a sanitized library")
    def test_without_daemon(self):
        """What can be seen in one process, whose client is a stand-in; one test, as PyTorch is slow to import."""
        os.environ["PTC_LIBRARY"] = harness.binary("client/lib/libptc.so.1")
        self.check_refused_before_declared()
        self.check_divided()
        self.check_external()

    def check_refused_before_declared(self):
        """What the snapshot has for another program is refused while the generation before can still go on."""
        import ptc.torch
        import torch

        class Client:  # of a rank whose snapshot is ready, before the second commit
            declared = 0
            blobs = {}

            def blob_get(self, name, scope=ptc.JOB):
                return self.blobs.get(name)

            def cursor_get(self, name):
                return 40, "n=20,seed=0"

            def declare(self, *_, **__):
                self.declared += 1

        class Picky:
            def state_dict(self):
                return {"n": 1}

            def load_state_dict(self, state):
                raise ValueError(f"n={state['n']}")

        info = types.SimpleNamespace(has_state=True, rank=0, pp=1, dp=1, dp_rank=0, start_step=10)
        model = torch.nn.Linear(2, 3)
        for error, text, samples, more, blobs in (
                (ptc.Error, "this is n=21,seed=0", 21, {}, {}),
                (ptc.Error, "the snapshot has 2 parameter groups, this one 1", 20, {},
                 {"optimizer": b'{"list": [{"dict": []}, {"dict": []}]}'}),
                (ValueError, "n=7", 20, dict(stateful={"picky": Picky()}), {"picky": b'{"dict": [["n", 7]]}'})):
            client = Client()
            client.blobs = blobs
            gen = ptc.torch.Generation(client, info)
            sampler = gen.batch_sampler(range(samples), 4, 2)
            with self.assertRaisesRegex(error, re.escape(text)):
                gen.attach(model=model, optim=torch.optim.AdamW(model.parameters()), data=sampler, **more)
            self.assertEqual(0, client.declared)

    def check_divided(self):
        """Batches by length and sequences by rule: each sample and token once, whoever computes it; what is refused."""
        import ptc.torch
        import torch
        n, g, mbs, dp, position = 50, 18, 2, 4, 45
        lengths = [(i * i * 37) % 211 for i in range(n)]
        met = {}

        def generation(rank):
            client = types.SimpleNamespace(cursor_get=lambda _: (position, f"n={n},seed=3"), meet_put=met.__setitem__,
                                           meet_get=met.__getitem__)
            return ptc.torch.Generation(client, types.SimpleNamespace(has_state=True, rank=rank, world=dp, dp=dp, dp_rank=rank,
                                                                      cp=dp, cp_rank=rank, start_step=5))
        ids = [order_oracle.at(n, 3, *divmod(p, n)) for p in range(position + g, position + 2 * g)]  # of step 6
        want, most, total = order_oracle.balanced([lengths[i] for i in ids], 6, 1, mbs, dp)
        parts = []
        for rank in range(dp):
            gen = generation(rank)
            s = gen.batch_sampler(range(n), g, mbs, 3, lengths=np.array(lengths), cost=(6, 1))
            s._agree(gen)
            s._start(gen)
            for m in range(s.micro_batches):
                self.assertEqual([(ids[i], w) for i, w in want[m][rank]], list(zip(*s.micro_batch_of(6, m), strict=True)))
            batches = iter(s)
            self.assertEqual([s.micro_batch_of(5 + m // 3, m % 3)[0] for m in range(7)], [next(batches) for _ in range(7)])
            said = s.balance(6)
            self.assertEqual((most, total / dp), (said["cost_max"], said["cost_mean"]))
            self.assertLess(said["cost_max"] / said["cost_mean"], said["count_cost_max"] / said["count_cost_mean"])
            parts.append(gen.sequence_part(torch.arange(2 * 29).reshape(2, 29), pad=-1))
        self.assertEqual("n=50,seed=3;batch=18,micro=2,by_length=1", s._told())
        for rank, tokens in enumerate(order_oracle.sequence_slices(29, dp, True)):
            self.assertEqual([[29 * row + t if t < 29 else -1 for t in tokens] for row in range(2)], parts[rank].tolist())
        other = gen.batch_sampler(range(n), g, mbs, 3, lengths=[*lengths[:-1], 5], cost=(6, 1))
        for text, call in (
                ("rank 3 has other lengths or another cost than rank 0", lambda: other._agree(gen)),
                ("49 lengths for 50 samples", lambda: gen.batch_sampler(range(n), g, mbs, lengths=lengths[1:], cost=(1, 1))),
                ("cost=(0.5, 1) is not (a, b)", lambda: gen.batch_sampler(range(n), g, mbs, lengths=lengths, cost=(0.5, 1))),
                ("cost has -1", lambda: s._sampling.balanced(0, lambda ids: [1 for _ in ids], (1, -1), 0)),
                ("lengths= and cost= go together", lambda: gen.batch_sampler(range(n), g, mbs, lengths=lengths)),
                ("has length -1", lambda: s._sampling.balanced(0, lambda ids: [-1 for _ in ids], (1, 1), 0)),
                ("do not fit 64 bits", lambda: s._sampling.balanced(0, lambda ids: [1 << 40 for _ in ids], (1, 1), 0)),
                ("not known without lengths=", lambda: gen.batch_sampler(range(n), g, mbs).balance(6)),
                ("29 tokens: 8 chunks of the same length need a multiple of 8", lambda: gen.sequence_part(torch.arange(29), 0)),
                ("no slice of a sequence of 0 tokens", lambda: ptc.sequence_slices(0, 2, 0))):
            with self.assertRaisesRegex(ptc.Error, re.escape(text)):
                call()

    def check_external(self):
        """A loader's own state goes with its data-parallel rank; what becomes of it when dp changes only a transform says."""
        import ptc.torch
        import torch
        from torch.distributed import HashStore
        store, blobs = HashStore(), {}

        class Loader:
            def __init__(self, state):
                self.state, self.state_dict = state, lambda: self.state
                self.load_state_dict = lambda state: setattr(self, "state", state)

        def generation(rank, dp, tp=1):
            client = types.SimpleNamespace(blob_get=blobs.get, blob_set=blobs.__setitem__)
            gen = ptc.torch.Generation(client, types.SimpleNamespace(has_state=True, rank=rank, dp=dp, dp_rank=rank // tp,
                                                                     tp_rank=rank % tp, pp_rank=0, cp_rank=0))
            gen._store = store
            return gen

        def stop(states, dp, tp=1, **more):
            """All ranks' stop; rank 0 comes last."""
            ranks = [(generation(r, dp, tp), ptc.torch.External(Loader(s), **more)) for r, s in enumerate(states)]
            for gen, loader in ranks:
                with contextlib.suppress(ptc.Error) if gen.rank else contextlib.nullcontext():
                    loader._before_stop(gen, 7)
            for gen, loader in reversed(ranks):
                loader._stop(gen, 7)

        def start(rank, dp, tp=1, **more):
            loader = Loader("own")
            ptc.torch.External(loader, **more)._start(generation(rank, dp, tp))
            return loader.state
        self.assertEqual("own", start(0, 2))  # there is no snapshot of it
        states = [{"at": (d, None, b"\0\xff"), "rng": torch.arange(d, d + 3, dtype=torch.uint8), "nothing": torch.empty(0, 2),
                   "key": np.arange(4, dtype=">u4").reshape(2, 2), "large": "x" * 200000} for d in range(3)]
        stop([s for s in states for _ in range(2)], 3, 2)  # more than a blob
        self.assertEqual({"loader/loader", *(f"loader/loader/{i}" for i in range(3))}, set(blobs))
        for rank in range(3):  # other parallelism may change
            got = start(rank, 3)
            self.assertEqual(repr(states[rank]), repr(got))
            self.assertEqual((torch.uint8, (0, 2), ">u4"), (got["rng"].dtype, got["nothing"].shape, got["key"].dtype.str))
        self.assertEqual([6, 2, 4, 3], start(3, 4, transform=lambda states, old, dp, d: [
            sum(s["at"][0] + 1 for s in states), old - 1, dp, d]))
        stop([5, 5], 2, scope="job")
        self.assertEqual([5, 15], [start(1, 2, scope="job"), start(1, 3, scope="job", transform=lambda states, *_: 3 * states[0])])
        gen, late = generation(0, 2), ptc.torch.External(Loader(1), "late")
        late.TIMEOUT_S = 0.01
        late._before_stop(gen, 7)
        for text, call in (
                ("dataset loader: the snapshot has the state of a Loader under dp=2, this is dp=3, and what becomes of it only the "
                 "loader knows: keep dp=2, give External(transform=), or use gen.batch_sampler()", lambda: start(0, 3, scope="job")),
                ("is of a loader with scope='job', this one has 'rank'", lambda: start(0, 2)),
                ("no state of the loader of data-parallel rank 1 within 0.01 s", lambda: late._stop(gen, 7)),
                ("the loader of data-parallel rank 1 has no state that can be carried", lambda: stop([1, object()], 2)),
                ("loader.of: a object cannot be carried", lambda: stop([{"of": object()}], 1)),
                ("the loaders' states take 5000014 bytes, at most 4194304", lambda: stop(["x" * 5000000], 1)),
                ("scope is \"rank\" or \"job\", not 'all'", lambda: start(0, 2, scope="all")),
                ("two samplers or loaders of that name", lambda: gen.attach(data=[Loader(1), Loader(2)])),
                ("a list_iterator has no state_dict()", lambda: gen.attach(data=iter([])))):
            with self.assertRaisesRegex(ptc.Error, re.escape(text)):
                call()

    def check_failed(self, job, text):
        failed = job.wait_run("failed")
        events = job.c.ptcctl("events", job.name).stdout
        self.assertRegex(failed["run"]["text"], "exited with status 1: .*" + re.escape(text))
        self.assertIn(text, events)

    def test_refused_later(self):
        """What shows at a switch only: the switch comes to nothing and training goes on; exceptions end the job."""
        with self.cluster(nodes=2, devices=2) as c:
            def told(what, name="do"):
                with open(os.path.join(job.logs, name + ".new"), "w") as f:
                    f.write(what)
                os.replace(os.path.join(job.logs, name + ".new"), os.path.join(job.logs, name))

            def train_on():
                step = wait_for(lambda: job.status()["run"].get("step"), 60 * PATIENCE, "a step", 0.05)
                job.wait_step(step + 3)

            job = Job(c, self.dir, "later")
            told('{"1": 21, "2": 20}', "samples")
            job.run("dp=2")
            job.wait_step(2)
            for what, text in (("differ", 'tensor "weight": ranks 0 and 1 hold the same part of it with different bytes'),
                               ("buffer", "rank 1 refuses at step"), ("buffer", "buffer angles is not persistent"),
                               ("moved", "tensor weight: it is not where it was at attach")):
                told(what)
                train_on()
                self.refused(c, "resize", job.name, "--config", "dp=1", "--wait", contains=text, timeout_s=60 * PATIENCE)
                train_on()
                self.assertEqual(1, job.status()["generation"])
            told("")
            train_on()
            self.refused(c, "resize", job.name, "--config", "dp=1", "--wait", timeout_s=60 * PATIENCE,
                         contains="dataset data: the snapshot's position is for n=20,seed=0, this is n=21,seed=0")
            train_on()  # generation 1 goes on
            self.assertEqual(1, job.status()["generation"])
            told('{"1": 20, "2": 20}', "samples")
            self.refused(c, "resize", job.name, "--config", "dp=1", "--wait", timeout_s=60 * PATIENCE,
                         contains="dataset stream: the snapshot has the state of a Stream under dp=2, this is dp=1, and what becomes "
                                  "of it only the loader knows")
            train_on()
            self.assertEqual(1, job.status()["generation"])
            job.do("snapshot")
            told("raise")
            self.check_failed(job, "ValueError: as told by the test")
            told("leave")
            c.ptcctl("run", job.name, "--config", "dp=2", timeout_s=60 * PATIENCE)
            self.check_failed(job, "the with block was left, but the generation has not ended")

    def test_refused_while_built(self):
        """A name on two stages that is not tied; an exception, whose last line is what is said."""
        with self.cluster(nodes=1, devices=2) as c:
            job = Job(c, self.dir, "wrap", tied=0)
            r = job.run("pp=2", check=False)
            self.assertEqual(1, r.returncode, r.stderr)
            self.assertRegex(r.stderr, "\"(count|mask|module.scale)\".*stage")
            r = Job(c, self.dir, "broken").run("dp=2", check=False)
            self.assertEqual(1, r.returncode, r.stderr)
            self.assertRegex(r.stderr.strip(), "exited with status 1: ValueError: as told by the test$")

    # ---- what is carried beside tensors, and samples

    def test_carried(self):
        """Random states by coordinates, schedule, parameter groups, gradient scaler; each sample once, loaders reading ahead."""
        import torch_state
        with self.cluster(nodes=2, devices=2) as c:
            job, at = Job(c, self.dir, "carry", warnings="default"), 0
            job.run("dp=2")
            for config in ("dp=3", "dp=1", "dp=2"):
                job.wait_step(at + 6)
                at = job.resize(config)["step"]
            job.wait_step(max(20, at + 6))  # an epoch ends at step 14.3
            job.do("stop")
            steps = job.wait_run("stopped")["step"]
            self.assertNotRegex(c.ptcctl("logs", job.name, "--rank", "all").stdout, r"ptc/\w+\.py:\d+: \w*Warning")
            logged = {key: [line for line in log if "step" in line] for key, log in job.logged().items()}
        self.assertEqual({1: 2, 2: 3, 3: 1, 4: 2}, {g: sum(1 for k in logged if k[0] == g) for g in range(1, 5)})
        for runs, number in (((1, 2, 3, 4), 0), ((1, 2), 1), ((4,), 1), ((2,), 2)):
            lines = [line for g in runs for line in logged[g, number]]
            parts = torch_state.trainer(number)
            for line, step in zip(lines, range(steps if number == 0 else len(lines))):
                want = torch_state.train(line["step"], *parts)
                carried = ("torch", "random", "numpy") if line["step"] == lines[0]["step"] + step else ()
                for what in (*carried, *(("groups", "last", "calls", "scale", "weight") if number == 0 else ())):
                    self.assertEqual(want[what], line[what], f"rank {number} step {line['step']}: {what}")
        order = lambda p: order_oracle.at(100, 5, *divmod(p, 100))
        for step in range(steps):
            found = sorted(i for log in logged.values() for line in log if line["step"] == step for i in line["ids"])
            self.assertEqual(sorted(order(p) for p in range(7 * step, 7 * step + 7)), found, f"step {step}")
        items = sorted((line["step"], line["item"]) for log in logged.values() for line in log)
        self.assertEqual(list(range(len(items))), [item for _, item in items])  # of the loader that ptc knows nothing of

    @unittest.skipUnless(LONG, "set PTC_TEST_LONG=1; PyTorch takes its time to be imported")
    @harness.needs(modules=("torchdata",))
    def test_stateful_loader(self):
        """torchdata's StatefulDataLoader: stopped, run again and resized under the same dp its ranks go on where they were, each
        with what comes next; a change of dp is refused, and training goes on."""
        with self.cluster(nodes=2, devices=2) as c:
            job = Job(c, self.dir, "stateful")
            job.run("dp=2")
            job.wait_step(5)
            job.do("stop")
            job.run("dp=2")
            job.wait_step(job.status()["step"] + 4)
            job.wait_step(job.resize("tp=2,dp=2")["step"] + 4)
            self.refused(c, "resize", job.name, "--config", "dp=3", "--wait", timeout_s=60 * PATIENCE,
                         contains="the state of a StatefulDataLoader under dp=2, this is dp=3")
            job.wait_step(job.status()["step"] + 3)
            job.do("stop")
            steps, logged = job.wait_run("stopped")["step"], job.logged()
        self.assertEqual({*((g, r) for g in (1, 2) for r in range(2)), *((3, r) for r in range(4))}, set(logged))
        for dp_rank in range(2):
            for tp_rank in range(2):  # both have the same
                lines = [*logged[1, dp_rank], *logged[2, dp_rank], *logged[3, 2 * dp_rank + tp_rank]]
                self.assertEqual(list(range(steps)), [line["step"] for line in lines])
                self.assertEqual(list(range(dp_rank, 6 * steps, 2)), [i for line in lines for i in line["ids"]])

    # ---- the GPT

    def test_damaged_row(self):
        """The losses of a GPT that is resized are those of one process, and would not be if a row of its optimizer was lost."""
        options = ["--steps", "16", "--zero", "1"]
        reference = self.path("reference")
        subprocess.run([sys.executable, "-B", "-W", "ignore", os.path.join(harness.ROOT, "examples", "gpt", "train_plain.py"),
                        *options, "--out", reference], check=True, stdin=subprocess.DEVNULL)
        with self.cluster(nodes=1, devices=2) as c:
            for name, more in (("whole", []), ("damaged", ["--damage"])):
                out = self.path(name)
                os.makedirs(out, mode=0o777)
                job = Job(c, self.dir, name, program=["gpt_live.py", *more, *options, "--out", out])
                job.run("dp=2")
                job.wait_step(3)
                self.assertGreater(job.resize("tp=2")["step"], 3)
                self.assertEqual(16, job.wait_run("done", 400)["step"])
        whole, damaged = (curve.difference(curve.read(reference), curve.read(self.path(n))) for n in ("whole", "damaged"))
        print(f"relative difference {whole:.1e}, damaged {damaged:.1e}")
        self.assertLessEqual(whole, 2e-6)
        self.assertGreater(damaged, 2e-6)


class Package(harness.Case):
    def test_install(self):
        """As a user installs it: no compiler, no dependency; what is missing is said in a line."""
        env = {k: v for k, v in os.environ.items() if k not in ("PTC_LIBRARY", "PYTHONPATH")}
        env.update(CC="/nonexistent", PYTHONDONTWRITEBYTECODE="1", PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
        subprocess.run([sys.executable, "-m", "venv", self.path("venv")], check=True)
        python = self.path("venv", "bin", "python")
        subprocess.run([python, "-m", "pip", "-q", "install", os.path.join(harness.ROOT, "client", "python")], check=True, env=env)

        def run(code, **more):
            return subprocess.run([python, "-c", code], env={**env, **harness.sanitizer_env(), **more}, cwd=self.dir, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        library = harness.binary("client/lib/libptc.so.1")
        sample = "import ptc; print(ptc.Sampling(100, 1, 10, 2, 2).micro_steps)"
        self.assertEqual("3\n", run(sample, PTC_LIBRARY=library).stdout)
        self.assertEqual("3\n", run(sample, LD_LIBRARY_PATH=os.path.dirname(library)).stdout)
        missing = run(sample, PTC_LIBRARY="/nonexistent/libptc.so.1").stderr.splitlines()[-1]
        self.assertRegex(missing, r"^ptc\.Error: cannot load libptc from '/nonexistent/libptc.so.1' .*set PTC_LIBRARY to its file$")
        alone = run("import ptc; ptc.Client()", PTC_LIBRARY=library).stderr.splitlines()[-1]
        self.assertRegex(alone, r"^ptc\.Error: .*PTC_WORKER_SOCKET")
        self.assertRegex(run("import ptc.torch", PTC_LIBRARY=library).stderr.splitlines()[-1], "^ImportError: ptc.torch needs PyTorch")

    def test_example(self):
        """Making a job of ptc of the GPT changes ten lines, those that its README shows."""
        gpt = os.path.join(harness.ROOT, "examples", "gpt")
        code = []
        for name in ("train_plain.py", "train.py"):
            with open(os.path.join(gpt, name)) as f:
                code.append(f.read().split('"""', 2)[2].splitlines())  # after what it says of itself
        diff = [line for line in difflib.unified_diff(*code, n=0, lineterm="") if line[:3] not in ("+++", "---", "@@ ")]
        self.assertLessEqual(sum(line.startswith("+") for line in diff), 10)
        with open(os.path.join(gpt, "README.md")) as f:
            self.assertIn("```diff\n" + "\n".join(diff) + "\n```\n", f.read())

    def test_syntax(self):
        """Python 3.9 reads it."""
        for path in glob.glob(os.path.join(harness.ROOT, "client", "python", "ptc", "*.py")):
            with open(path) as f:
                ast.parse(f.read(), path, feature_version=(3, 9))
