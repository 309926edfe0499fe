# SPDX-License-Identifier: Apache-2.0
"""The Python package under real daemons and real ranks: what PyTorch's own parallelism has put where, and what whole tensors in
one process (torch_state.py) say that it must be."""
import ast
import contextlib
import datetime
import difflib
import functools
import glob
import importlib.metadata
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import threading
import types
import unittest
import warnings
import weakref
import zlib
from unittest import mock

import harness  # first: it says where the others are
import curve
import live
import numpy as np
import order_oracle
from harness import LONG, PATIENCE, wait_for

HAS_TORCH = importlib.util.find_spec("torch") is not None
VERSION = tuple(map(int, importlib.metadata.version("torch").split(".")[:2])) if HAS_TORCH else ()


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


class Apart:
    """A parameter with an optimizer of its own, which may work on a master of it."""

    def __init__(self, attribute, of):
        import torch
        self.attribute, self.p = attribute, torch.nn.Parameter(torch.zeros(1))
        if attribute == "main_grad":
            self.p.main_grad = torch.zeros(1)
        self.applied = self.p if of == "parameters" else torch.nn.Parameter(torch.zeros(1))
        if of == "named":
            self.p.main_param = self.applied
        self.optim = torch.optim.SGD([self.applied], lr=0.1)

    def gradient(self):
        return getattr(self.p, self.attribute)

    def live(self):
        return self.gradient() is not None and bool(self.gradient().any())

    def add(self, fused):
        """A backward pass; fused: its kernel adds to main_grad, and autograd is told of no gradient."""
        import torch
        more = torch.ones(1)
        if not fused:
            (self.p * 1.0).sum().backward()
            more, self.p.grad = (self.p.grad, None) if self.attribute == "main_grad" else (None, self.p.grad)
        if more is not None:
            self.p.main_grad = more.clone() if self.p.main_grad is None else self.p.main_grad.add_(more)

    def does(self, what):
        if what == "S":
            if self.attribute == "main_grad":
                self.applied.grad = None if self.gradient() is None else self.gradient().clone()
            self.optim.step()
            if self.attribute == "main_grad":
                self.applied.grad = None
        elif self.gradient() is not None:
            self.gradient().zero_()
            if what == "N":
                setattr(self.p, self.attribute, None)


@unittest.skipUnless(HAS_TORCH, "no PyTorch: scripts/venv --torch")
@harness.labels("repeats")
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

    @unittest.skipUnless(harness.LONG, "new processes at each switch: PTC_TEST_LONG=1")
    def test_ahead(self):
        self.layouts("zoo", ["tp=2,dp=2", "dp=3", "tp=4", "tp=2,dp=2"], mode="restart", run={"build": "ahead"})

    def test_declared_on_meta(self):
        """A model on meta is declared, and gets memory later, while the other ranks train: the loss of every step is that of one process
        without ptc. An optimizer made before to_empty() is named."""
        import torch_rank
        with self.cluster(nodes=2, devices=2) as c:
            job = Job(c, self.dir, "meta", mode="restart", run={"build": "ahead"}, sleep=0.02)
            job.run("dp=2")
            job.wait_step(5)
            with job.hold("place"):
                resize = subprocess.Popen([harness.program("ptcctl"), "resize", job.name, "--config", "dp=3", "--wait", "--format", "json"],
                                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                          env=c.environment({"PTC_SOCKET": c.nodes["n0"].socket}))
                wait_for(lambda: job.status()["phase"] == "building" or None, 60 * PATIENCE, "new ranks that build", 0.02)
                job.wait_step(job.status()["run"]["step"] + 5)
            out, err = resize.communicate(timeout=180 * PATIENCE)
            self.assertEqual(0, resize.returncode, err)
            self.assertGreater(json.loads(out)["built_ahead_ms"], 0)
            job.wait_step(json.loads(out)["step"] + 5)
            job.wait_step(job.resize("dp=1")["step"] + 5)
            job.do("stop")
            last = job.wait_run("stopped")["step"]
            found = {line["step"]: line["loss"] for (_, rank), lines in job.logged().items() if rank == 0 for line in lines}
        model = torch_rank.net()
        for name, p in model.named_parameters():
            torch_rank.fill(name, p)
        optim = torch_rank.meta_optimizer(model)
        self.assertEqual(list(range(last)), sorted(found)[:last])
        for step in range(last):
            loss = torch_rank.loss_at(model, step)
            self.assertAlmostEqual(1.0, loss.item() / float.fromhex(found[step]), delta=1e-9, msg=f"step {step}")
            optim.zero_grad()
            loss.backward()
            optim.step()

    def test_cycles(self):
        """Rebuilt in the same process over and over, with tensor parallelism and FSDP2: nothing piles up."""
        cycles = harness.size(6, 10, 30)
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
        "extra state": "extra._extra_state.f: a object cannot be carried",
        "copy in state dict": "weight: the model's state dict has a copy there",
        "unknown optimizer": "optimizer SparseAdam has no state yet",
        "lbfgs": "optimizer LBFGS: its state is lists of tensors",
        "list in optimizer": "weight: optimizer state 'old' is a list, which cannot be carried",
        "state of nobody": "optimizer AdamW: it has state for 'all', which is none of its parameters",
        "keys of two types": "weight: the optimizer's state has two keys '0' that differ in type only",
        "state beside state": "its state dict has step beside state and param_groups",
        "averaging": "optimizer PostLocalSGDOptimizer: its state dict has step beside",
        "redundancy": "optimizer ZeroRedundancyOptimizer: its state_dict() cannot be had",
        "two optimizers": "bias: two optimizers, or one and zero1=, have a state 'step' of it",
        "unlike optimizers": "optimizer: number 1 of the list has other parameter groups or options than number 0",
        "unlike schedulers": "scheduler: objects of the list have different states",
        "no scheduler": "scheduler: a list_iterator has no state_dict()",
        "no module": "model a: a dict is no torch.nn.Module",
        "same names": "weight: two modules have a tensor of that name",
        "dropped name": "dropped wieght: no parameter has this name",
        "taken name": "stateful scheduler: that name is taken",
        "left out": "bias: the model's state dict leaves it out",
        "fsdp1": "weight: the model's state dict has a copy there",
        "power sgd": "DDP's communication hook powerSGD_hook has a PowerSGDState, which cannot be carried",
        "subclass": "a Quantized cannot be carried, only plain tensors",
        "lazy": "weight: it is not initialized; call the module once before attach",
        "no optimizer": "optim: a Linear is no torch.optim.Optimizer",
        "damped": "SGD with dampening",
        "foreign parameter": "optimizer AdamW: a parameter of shape (3, 2) is none of the model's",
        "dtype": "tensor z: dtype torch.complex128 cannot be carried",
        "sparse": "tensor z: layout torch.sparse_coo cannot be carried",
        "device": "tensor weight: it is on meta",
        "not a tensor": "extra ema: a int cannot be carried",
        "name taken": "extra weight: the model's state dict has that name already",
        "group option": "a builtin_function_or_method cannot be carried",
        "complex option": "optimizer[0].phase: a Tensor cannot be carried",
        "numpy number": "numpy.float64 cannot be carried; make it a plain float",
        "optimizer state": "weight: optimizer state 'step' is a int64",
        "state's shape": "tensor weight (row): a piece of 7 elements for the range 0..3 of 6",
        "scheduler": "scheduler.f.g: a object cannot be carried",
        "too large": "history: its state takes 300",
        "too many": "blobs beside tensors, at most 64 can be carried (41 of optimizers, schedulers and objects, 2 of the model's "
                    "description, ",
        "zero1 range": "for the range 0..9 of 6",
        "zero1 name": "zero1 wieght: the model has no parameter of that name",
        "master": "weight: two optimizers, or one and zero1=, have a state 'master' of it",
        "inner optimizer": "optimizer Sharp.base_optimizer: this AdamW has state of its own, inside an attached optimizer, and is not attached, "
                           "so that its state would be lost; attach both, each by a name of its own",
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
    def test_import(self):
        """What a rank imports before it knows what it is: DTensor and checkpoints, a second of CPU, wait until a model is attached."""
        program = ("import sys, ptc.torch\n"
                   "heavy = ('torch.distributed.tensor', 'torch.distributed.checkpoint', 'sympy')\n"
                   "print([m for m in sys.modules if m.startswith(heavy)])\n"
                   "import torch\n"
                   "held = ptc._held.of_model(torch.nn.Linear(3, 2), (), {})\n"
                   "print(sorted(held), all(m in sys.modules for m in heavy[:2]))\n")
        env = {**os.environ, "PYTHONPATH": os.path.join(harness.ROOT, "client", "python"),
               "PTC_LIBRARY": harness.binary("client/lib/libptc.so.1")}
        out = subprocess.run([sys.executable, "-W", "ignore", "-c", program], env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertEqual(["[]", "['bias', 'weight'] True"], out.splitlines())

    @unittest.skipIf(harness.SANITIZED, "this process is not started for a sanitized library")
    def test_without_daemon(self):
        """What can be seen in one process, whose client is a stand-in; one test, as PyTorch is slow to import."""
        os.environ["PTC_LIBRARY"] = harness.binary("client/lib/libptc.so.1")
        os.environ["PTC_SEED"] = "1"
        ran = self.record_checks()
        self.check_refused_before_declared()
        self.check_blobs()
        self.check_given()
        self.check_divided()
        self.check_external()
        self.check_gradients()
        self.check_any_order()
        self.check_two_optimizers()
        self.check_alone()
        self.check_unattached()
        self.check_sharp_elsewhere()
        self.check_warm()
        self.check_survive()
        if LONG:
            self.check_compiled()
        self.check_fsdp_gradients()
        self.check_fsdp_places()
        self.check_started()
        self.check_program_changed()
        self.check_names_changed()
        self.check_extra_state_divided()
        self.check_table(ran)

    def record_checks(self):
        """The names of those that have run to their end, from now on."""
        ran = set()

        def recorded(name, check):
            def call(*args, **kw):
                check(*args, **kw)
                ran.add(name)
            return call
        for name in dir(self):
            if name.startswith("check_"):
                setattr(self, name, recorded(name, getattr(self, name)))
        return ran

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

        info = types.SimpleNamespace(has_state=True, rank=0, world=1, pp=1, dp=1, dp_rank=0, start_step=10)
        model = torch.nn.Linear(2, 3)
        for error, text, samples, more, blobs in (
                (ptc.Error, "this is n=21,seed=0", 21, {}, {}),
                (ptc.Error, "the snapshot has 2 parameter groups, this one 1; build the groups as they were after step 10", 20, {},
                 {"optimizer": b'{"list": [{"dict": []}, {"dict": []}]}'}),
                (ValueError, "n=7", 20, dict(stateful={"picky": Picky()}), {"picky": b'{"dict": [["n", 7]]}'})):
            client = Client()
            client.blobs = blobs
            gen = ptc.torch.Generation(client, info)
            sampler = gen.batch_sampler(range(samples), 4, 2)
            with self.assertRaisesRegex(error, re.escape(text)):
                gen.attach(model=model, optim=torch.optim.AdamW(model.parameters()), data=sampler, **more)
            self.assertEqual(0, client.declared)

    def check_warm(self):
        """A step on made-up data leaves what attach() does not restore as it was, and is not done where nothing is restored."""
        import random
        import ptc.torch
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.drop = torch.nn.Linear(2, 3), torch.nn.Dropout()
                self.register_buffer("seen", torch.zeros(1), persistent=False)

            def forward(self, x):
                self.seen += 1
                return self.drop(self.a(x))

        nets, calls = [Net(), Net()], []
        nets[1].a.weight.grad = torch.full((3, 2), 5.0)

        def step():
            calls.append(random.random())
            sum(net(torch.randn(4, 2)).sum() for net in nets).backward()

        for has_state in (False, True):
            gen = ptc.torch.Generation(None, types.SimpleNamespace(has_state=has_state, start_step=3))
            torch.manual_seed(7)
            random.seed(7)
            before = torch.get_rng_state(), random.getstate()
            self.assertEqual(has_state, gen.warm(step, {"one": nets[0], "two": nets[1]}))
            self.assertEqual(has_state, len(calls) == 1)
            self.assertTrue(torch.equal(before[0], torch.get_rng_state()))
            self.assertEqual(before[1], random.getstate())
            self.assertEqual([0, 0], [net.seen.item() for net in nets])
            self.assertIsNone(nets[0].a.weight.grad)
            self.assertEqual([5.0] * 6, nets[1].a.weight.grad.flatten().tolist())
        with self.assertRaises(ZeroDivisionError):
            gen.warm(lambda: random.random() / 0, nets)
        self.assertEqual(before[1], random.getstate())
        gen._bound = object()
        with self.assertRaisesRegex(ptc.Error, "call warm\\(\\) before it"):
            gen.warm(step)

    def check_survive(self):
        """What each boundary publishes; what ends the promise, or puts it off; and which errors hold the process."""
        import ptc.torch
        import torch
        from ptc import _survive

        class Client:
            def __init__(self):
                self.set, self.said, self.left = {}, [], 0
            start_step = lambda self: 0
            restore = lambda self: False
            boundary = lambda self, step: False
            blob_get = cursor_get = declare = on_stop = update_begin = lambda self, *_, **__: None

            def blob_set(self, name, data, scope=ptc.JOB):
                self.set[name] = data

            def cursor_set(self, name, position, tag=""):
                self.set[name] = position

            def survive(self, yes=True):
                self.said.append(yes)

            def leave(self):
                self.left += 1

        class Peers(torch.autograd.Function):
            forward = staticmethod(lambda ctx, x, text: (setattr(ctx, "text", text), x.clone())[1])

            @staticmethod
            def backward(ctx, g):
                raise RuntimeError(ctx.text)

        def made(loader=(), model=None, several=False):
            model = model or torch.nn.Linear(2, 3)
            optim = torch.optim.SGD(model.parameters(), lr=0.5)
            both = {name: torch.optim.SGD([p], lr=0.5) for name, p in model.named_parameters()}
            info = types.SimpleNamespace(has_state=False, start_step=0, rank=0, world=1, tp=1, pp=1, dp=1, cp=1, tp_rank=0, pp_rank=0,
                                         dp_rank=0, cp_rank=0)
            gen = ptc.torch.Generation(Client(), info)
            with self.assertRaisesRegex(ptc.Error, "attach\\(\\) comes first"):
                gen.survive()
            gen.attach(model=model, optim=both if several else optim,
                       sched=None if several else torch.optim.lr_scheduler.StepLR(optim, 1, 0.5),
                       data=[gen.batch_sampler(range(20), 4, 2), *loader])
            return gen, model, both if several else optim, gen._client

        def ended(call, *args):
            """What a call says in which a promise ends. Warnings are errors there."""
            with contextlib.redirect_stderr(io.StringIO()) as said, warnings.catch_warnings():
                warnings.simplefilter("error")
                call(*args)
            return said.getvalue()
        was = torch.autograd.backward, torch.distributed.Work.wait, os._exit
        gen, model, optim, client = made()
        gen.survive()
        gen.boundary(0)
        self.assertEqual([], client.said)  # no update has been seen
        optim.step()
        gen.boundary(1)
        self.assertEqual([True], client.said)
        first = dict(client.set)
        self.assertLessEqual({"optimizer", "scheduler", "model", "rng/torch", "rng/python", "rng/streams", "data"}, set(first))
        torch.rand(1)
        optim.param_groups[0]["lr"] = 0.25
        gen.boundary(2)
        self.assertEqual({"optimizer", "rng/torch", "data"}, {name for name in first if client.set[name] != first[name]})
        self.assertEqual(8, client.set["data"])
        for text, left in (("mat1 and mat2 shapes cannot be multiplied", 0), ("[gloo/transport/tcp/pair.cc:547] Connection closed by peer", 1)):
            with self.assertRaisesRegex(RuntimeError, re.escape(text)):
                Peers.apply(torch.ones(1, requires_grad=True), text).backward()
            self.assertEqual(left, client.left)
        self.check_waits(client)
        model.weight.grad = torch.ones_like(model.weight)
        gen._promise._next_check = 0.0
        gen.boundary(3)
        self.assertEqual([True, False], client.said)  # its gradients are live
        model.weight.grad = None
        gen.boundary(4)
        self.assertEqual([True, False, True], client.said)
        model.weight.data = model.weight.data.clone()
        gen._promise._next_check = 0.0
        self.assertRegex(ended(gen.boundary, 5), "^ptc: rank 0: .*goes on from snapshots.*tensor weight: it is not where it was at attach.*\n$")
        gen.boundary(6)
        self.assertEqual([True, False, True, False], client.said)
        with contextlib.suppress(ZeroDivisionError):
            gen.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
        self.assertEqual(3, client.left)
        self.assertEqual(was, (torch.autograd.backward, torch.distributed.Work.wait, os._exit))
        gen = made([ptc.torch.External(types.SimpleNamespace(state_dict=dict, load_state_dict=dict))])[0]
        with self.assertRaisesRegex(ptc.Error, "dataset loader: survive\\(\\) publishes positions at each boundary"):
            gen.survive()
        self.assertFalse(_survive.is_of_peers(ValueError("gloo")))
        for call in ("cursor_set", "survive"):  # the generation has ended meanwhile
            gen, _, optim, client = made()
            gen.survive()
            gen.boundary(0)
            optim.step()
            client.__dict__[call] = mock.Mock(side_effect=ptc.Error(-9, "this generation has ended"))
            self.assertEqual("", ended(gen.boundary, 1))
            client.__dict__[call].assert_called_once()
            gen._promise.close()

        self.check_buffers(made, ended)
        self.check_added(made)

    def check_added(self, made):
        """One optimizer steps at each boundary, the other one has gradients that add up over four: what is there between is lost."""
        import torch
        for main in range(2):
            for to_none in range(2 - main):
                model = torch.nn.Linear(2, 3)
                for p in model.parameters() if main else ():
                    p.main_grad = torch.zeros_like(p)
                gen, model, optims, client = made(model=model, several=True)
                gen.survive()
                promised = []
                for step in range(13):
                    gen.boundary(step)
                    gen._promise._next_check = float("inf") if gen._promise._made else 0.0
                    promised += [step] if client.said[-1:] == [True] else []
                    model(torch.ones(1, 2)).sum().backward()
                    for p in model.parameters() if main else ():
                        p.main_grad += p.grad
                        p.grad = None
                    for name, p in model.named_parameters():
                        if name == "weight" or step % 4 == 3:
                            optims[name].step()
                            optims[name].zero_grad(set_to_none=bool(to_none))
                            if main:
                                p.main_grad.zero_()
                self.assertEqual([4, 8, 12], promised)
                gen._promise.close()
        for gan in range(2):  # what a GAN's generator leaves in the discriminator is zeroed before it is used
            gen, model, optims, client = made(several=True)
            gen.survive()
            for step in range(8):
                gen.boundary(step)
                for optim in optims.values():
                    optim.zero_grad(set_to_none=bool(gan))
                    if gan:
                        model(torch.ones(1, 2)).sum().backward()
                        optim.step()
                if not gan:
                    model(torch.ones(1, 2)).sum().backward()
                    for optim in optims.values():
                        optim.step()
            self.assertEqual([True], client.said)
            gen._promise.close()

    def check_buffers(self, made, ended):
        """What a forward pass changes before update_begin() is not the boundary's; `.data` and some kernels change no version."""
        import torch
        norm = lambda name: torch.nn.Sequential(torch.nn.Linear(2, 3), getattr(torch.nn, name)(3, track_running_stats=True))
        forward = {"1.(running_mean|num_batches_tracked)": (norm("BatchNorm1d"), lambda m: m(torch.rand(4, 2))),
                   "1.running_mean": (norm("InstanceNorm1d"), lambda m: m[1](torch.rand(4, 3, 5))),
                   "parametrizations.weight.0._u": (torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(2, 3)),
                                                    lambda m: m(torch.rand(4, 2))),
                   "1.running_var": (norm("BatchNorm1d"), lambda m: m[1].running_var.data.add_(1))}
        for name, (model, change) in forward.items():
            text = f"^ptc: rank 0: .*buffer {name} is changed before the optimizer's step.*\n$"
            for late in range(2):
                gen, model, optim, client = made(model=model)
                gen.survive()
                gen.boundary(0)
                if late:
                    gen.update_begin()
                    change(model)
                    self.assertEqual("", ended(optim.step))
                    gen.boundary(1)
                    self.assertEqual([True], client.said)
                    if name == "1.running_var":
                        gen._promise.close()
                        continue  # which is not seen any more
                change(model)
                self.assertRegex(ended(optim.step), text)
                gen.boundary(1 + late)
                self.assertEqual([True, False] * late, client.said)
                gen._promise.close()
        gen, model, optim, client = made(model=norm("BatchNorm1d"))
        gen.survive()
        gen.boundary(0)
        optim.step()
        gen.boundary(1)
        model(torch.rand(4, 2))
        self.assertRegex(ended(gen.boundary, 2), "buffer 1.num_batches_tracked is changed")  # without an update
        self.assertEqual([True, False], client.said)
        gen._promise.close()
        gen, model, optim, client = made()
        gen.survive()
        gen.boundary(0)
        model.bias.data = model.bias.data.clone()
        optim.step()
        self.assertRegex(ended(gen.boundary, 1), "tensor bias: it is not where it was")  # though it has been looked at just now
        self.assertEqual([], client.said)
        gen._promise.close()

    def check_waits(self, client):
        """A wait that a program has limited may fail; what fails without a peer is final."""
        import torch
        import torch.distributed as dist
        from ptc import _survive
        store, groups, soon = dist.HashStore(), {}, datetime.timedelta(milliseconds=20)
        join = lambda rank: groups.update({rank: dist.ProcessGroupGloo(store, rank, 2, datetime.timedelta(seconds=60))})
        threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        late, timed, plain = [groups[rank].recv([torch.zeros(1)], 1 - rank, tag) for rank, tag in ((0, 0), (1, 0), (1, 1))]
        left = client.left
        with self.assertRaisesRegex(RuntimeError, "gloo.*Timed out waiting 20ms"):
            late.wait(timeout=soon)
        with self.assertRaisesRegex(RuntimeError, "gloo.*Connection closed"):
            timed.wait(datetime.timedelta(seconds=60))
        self.assertEqual(left, client.left)
        with self.assertRaisesRegex(RuntimeError, "gloo.*Connection closed"):
            plain.wait()
        self.assertEqual(left + 1, client.left)
        self.assertFalse(_survive.is_of_peers(RuntimeError("[gloo/unbound_buffer.cc:78] Timed out waiting 1000ms for recv operation")))

    def check_given(self):
        """A program that puts something else in the place of what it gave to attach() is told so after its first step, and at a stop."""
        import copy
        import ptc.torch
        import torch

        class Client:
            start_step = lambda self: 0
            restore = boundary = lambda self, *_: False
            blob_get = blob_set = declare = update_begin = lambda self, *_, **__: None

            def on_stop(self, fn):
                self.stop = fn

        info = types.SimpleNamespace(has_state=False, rank=0, world=1, tp=1, pp=1, dp=1, cp=1, tp_rank=0, pp_rank=0, dp_rank=0, cp_rank=0,
                                     start_step=0)
        make = {
            "tensor mean": (lambda: torch.ones(3), lambda x: dict(extra={"mean": x}), lambda x: x * 0.5),
            "tensor learned": (lambda: torch.ones(3, requires_grad=True), lambda x: dict(extra={"learned": x}),
                               lambda x: (x - 1).detach().requires_grad_()),
            "model target": (lambda: torch.nn.Linear(2, 3), lambda x: dict(model={"target": x}), copy.deepcopy),
            "model": (lambda: torch.nn.Linear(2, 3), lambda x: dict(model=x), copy.deepcopy),
            "scaler": (lambda: torch.amp.GradScaler("cpu"), lambda x: dict(stateful={"scaler": x}),
                       lambda _: torch.amp.GradScaler("cpu", init_scale=2.0)),
            "scheduler": (lambda: torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.ones(1)], lr=1.0), 2),
                          lambda x: dict(sched=x), lambda x: torch.optim.lr_scheduler.StepLR(x.optimizer, 3)),
            # which the program has under another name
            "view": (lambda: torch.ones(3), lambda x: dict(extra={"view": x[1:]}), None),
            "container": (lambda: torch.nn.Linear(2, 3), lambda x: dict(model=torch.nn.ModuleList([x])), None),
            "its own dict": (lambda: {"a": torch.nn.Linear(2, 3)}, lambda x: dict(model=x), None)}
        for what, (new, args, another) in make.items():
            for at in (0, 1, 5):  # the step in which it is put there
                gen, has = ptc.torch.Generation(Client(), info), [new()]
                gen.attach(**args(has[0]))
                error = f"^{what}: nobody refers any more to what was given to attach"
                for step in range(8):
                    if another and step == at + 1 == 1:
                        with self.assertRaisesRegex(ptc.Error, error):
                            gen.boundary(step)
                    gen.boundary(step) if step != 1 or not another or at else None
                    fails = another and step > at
                    with self.assertRaisesRegex(ptc.Error, error, msg=f"put there in step {at}") if fails else contextlib.nullcontext():
                        gen._client.stop(step)
                    if another and step == at:
                        has[0] = another(has[0])
                gen._bound.close()

    def check_blobs(self):
        """As many names as ptcd takes are set at a stop; one object more is refused at attach."""
        import ptc.torch
        import torch

        class Client:
            def __init__(self):
                self.names, self.declared = set(), 0

            def blob_set(self, name, data, scope=ptc.JOB):
                self.names.add((name, scope))

            def declare(self, *_, **__):
                self.declared += 1

            def restore(self):
                return False

            def on_stop(self, fn):
                self.stop = fn

            def blob_get(self, name, scope=ptc.JOB):
                return None

        class Counter:
            def state_dict(self):
                return {"n": 1}

            def load_state_dict(self, state):
                pass

        info = types.SimpleNamespace(has_state=False, rank=0, world=1, tp=1, pp=1, dp=1, cp=1, tp_rank=0, pp_rank=0, dp_rank=0, cp_rank=0,
                                     start_step=0)

        def attached(n):
            client, model = Client(), torch.nn.Linear(2, 3)
            gen = ptc.torch.Generation(client, info)
            gen.attach(model=model, optim=torch.optim.AdamW(model.parameters()), data=ptc.torch.External(Counter()),
                       stateful={f"object {i}": Counter() for i in range(n)}, rng={"mine": torch.Generator()})
            client.stop(3)
            gen._bound.close()
            return client

        beside = len(attached(0).names)
        self.assertEqual(ptc.BLOBS_MAX, len(attached(ptc.BLOBS_MAX - beside).names))
        with self.assertRaisesRegex(ptc.Error, f"65 blobs beside tensors, at most 64 can be carried .{66 - beside} of optimizers, schedulers and objects, "
                                               "2 of the model's description, 2 of loaders, [4-9] of random streams.; attach fewer"):
            attached(ptc.BLOBS_MAX - beside + 1)

    def check_table(self, ran):
        """docs/training-state.md names a test in each row, and every kind and refusal that is tested. ran: checks that have run here;
        kinds run in test_kinds, and ctest runs each test."""
        import inspect
        import torch_kinds
        with open(os.path.join(harness.ROOT, "docs", "training-state.md"), encoding="utf-8") as f:
            text = f.read()
        kinds = {k for k, v in vars(torch_kinds).items() if inspect.isclass(v) and issubclass(v, torch_kinds.Kind)}
        trained = {type(kind).__name__ for kind in torch_kinds.make().values()}
        tests = set(unittest.defaultTestLoader.getTestCaseNames(type(self)))
        tests -= {name for name in tests if getattr(getattr(self, name), "__unittest_skip__", False)}
        self.assertEqual(trained, kinds - {"Kind", "Micro"})
        later = set() if LONG else {"check_compiled"}
        named = set()
        for row in (line for line in text.splitlines() if line.startswith("|") and not line.startswith(("|---", "| State |"))):
            cell = row.split("|")[3]
            for name in re.findall(r"`(\w+)`", cell):
                self.assertIn(name, trained | tests | ran | later, row)
            self.assertRegex(cell, r'[`"]\w', row)
            named |= set(re.findall(r'"([^"]+)"', cell))
        self.assertEqual(set(self.REFUSED), named)
        for kind in kinds - {"Kind", "Micro"}:
            self.assertIn(f"`{kind}`", text)

    def live(self, kind, steps=12, **more):
        """At which boundaries a stop would lose gradients; it is wanted at each."""
        from ptc._gradients import Gradients
        models = kind.model if isinstance(kind.model, dict) else {"": kind.model}
        named = [(f"{i}.{n}".lstrip("."), p) for i, m in models.items() for n, p in m.named_parameters()]
        watch, out = Gradients(list(models.items()), named, {}, **more), []
        for step in range(steps):
            kind.step(step)
            watch.boundary()
            out.append(bool(watch.live()[0]))
        watch.close()
        return out

    def check_gradients(self):
        """Which gradients are live, for each order of backward, step and zeroing: unless they were shown to be dead."""
        import torch
        import torch_kinds
        from ptc._gradients import Gradients
        from torch_kinds import Gan
        live, micro = self.live, [step % 4 != 3 for step in range(12)]
        for how, want in {"zeroes": micro, "zeroes late": [True] * 11 + micro[11:], "zeroes in place": micro, "skips": [False] * 12,
                          "skips, zeroes late": [True] * 6 + [False] * 6,  # dropped in step after step
                          "never steps": [True] * 12, "never zeroes": [True] * 12}.items():
            with self.subTest(how):
                self.assertEqual(want, live(torch_kinds.Micro(how)))
        late = [True] * 11 + [step % 4 != 3 for step in range(11, 24)]  # what zeroes in place is watched for two times
        self.assertEqual(late, live(torch_kinds.Micro("zeroes late in place"), 24))
        for gan, moves in ((Gan("Gan", 1), 2), (Gan("Gan"), 4), (Gan("Gan", 3), 6), (Gan("Gan", 1, False), 3), (Gan("Gan", 3, False), 9),
                           (Gan("Gan", 1, True, True), 3), (Gan("Gan", 3, True, True), 9)):
            with self.subTest(f"{vars(gan)}"):
                self.assertEqual([True] * moves + [False] * (20 - moves), live(gan, 20))
        gan = Gan("Gan", 100)  # whose discriminator is hardly ever trained
        self.assertEqual([True] * 12, live(gan))
        self.assertEqual([False] * 12, live(gan, dropped=["d.0", "d.2", "g"]))
        self.check_learned_anew()
        self.check_kept_elsewhere()
        self.assertEqual(0, len(sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks))

    def check_learned_anew(self):
        """Boundaries between backward and step; what a program was seen to do does not count for ever."""
        import torch
        from ptc._gradients import Gradients

        def backward():
            m(torch.ones(1, 2)).sum().backward()

        def boundary(ask=True):
            watch.boundary()
            return [n for n, _ in m.named_parameters() if n in watch.live()[0]] if ask else None
        m = torch.nn.Linear(2, 2)
        optim, both = torch.optim.SGD(m.parameters(), lr=0.1), ["weight", "bias"]
        watch = Gradients([("", m)], list(m.named_parameters()), {})
        for step in range(6):
            backward()
            self.assertEqual(both, boundary())
            optim.step()
            self.assertEqual([] if step > 1 else both, boundary())
            optim.zero_grad()
        backward()
        optim.step()
        backward()  # as a GAN's generator does
        self.assertEqual([], boundary())
        optim.step()
        self.assertEqual(both, boundary())  # it does add to what was applied
        watch.close()

        watch = Gradients([("", m)], list(m.named_parameters()), {})
        told = []
        for step in range(12):
            optim.zero_grad(set_to_none=False)
            backward()
            optim.step()
            backward()
            told.append(boundary(step != 8))
        self.assertEqual([both] * 3 + [[]] * 5 + [None] + [both] * 3, told)
        watch.close()

    def check_kept_elsewhere(self):
        """Gradients that Megatron keeps elsewhere, and masters', which are overwritten."""
        import torch
        from ptc._gradients import Gradients

        def backward():
            m(torch.ones(1, 2)).sum().backward()

        def boundary():
            watch.boundary()
            return [n for n, _ in m.named_parameters() if n in watch.live()[0]]
        m, both = torch.nn.Linear(2, 2), ["weight", "bias"]

        def into_main(p):
            p.main_grad.add_(p.grad)
            p.grad = None
        masters = [p.detach().clone() for p in m.parameters()]
        for p in m.parameters():
            p.main_grad = torch.zeros_like(p)
            p.register_post_accumulate_grad_hook(into_main)
        inner = torch.optim.SGD(masters, lr=0.1)
        watch = Gradients([("", m)], list(m.named_parameters()), {})
        told = []
        for step in range(5):
            for p in m.parameters():
                p.main_grad.zero_()
            backward()
            told.append(boundary())
            backward()
            for p, q in zip(masters, m.parameters()):
                p.grad = q.main_grad.clone()
            inner.step()
            told.append(boundary())
        self.assertEqual([both] * 5 + [[], both] * 2 + [[]], told)
        watch.close()

        for piece, want in ((False, [both] * 5 + [[], both] * 2 + [[]]), (True, [both, []] * 5)):
            m = torch.nn.Linear(2, 2)
            masters = {n: torch.nn.Parameter(p.detach().double()) for n, p in m.named_parameters()}
            watch, told = Gradients([("", m)], list(masters.items()), {id(q): [q] for q in masters.values()} if piece else {}), []
            inner = torch.optim.SGD(masters.values(), lr=0.1)
            for step in range(5):
                backward()
                for n, p in m.named_parameters():
                    if step:
                        masters[n].grad.copy_(p.grad)
                    else:
                        masters[n].grad = p.grad.double()
                told.append(boundary())
                inner.step()
                m.zero_grad()
                told.append(boundary())
            self.assertEqual(want, told)
            watch.close()

    def check_any_order(self):
        """Programs that repeat any order of setting to None, zeroing in place, backward, step and boundary, after
        any other: nothing that a later step applies is called dead."""
        import torch
        from ptc._gradients import Gradients
        told = 0
        for _ in range(20000 if LONG else 1000):
            cycle = self.random.choices("NZAASBB", k=self.random.randint(2, 8))
            events = self.random.choices("NZASB", k=self.random.randint(0, 5)) + 9 * cycle
            p, seldom = torch.nn.Parameter(torch.zeros(1)), self.random.random()
            optim, watch = torch.optim.SGD([p], lr=0.1), Gradients([], [("p", p)], {})
            for i, event in enumerate(events):
                if event == "A":
                    (p * 1.0).sum().backward()
                elif event == "S":
                    optim.step()
                elif event == "B":
                    watch.boundary()
                    if self.random.random() < seldom or watch.live()[0]:
                        continue
                    told += 1
                    live = p.grad is not None and p.grad.any() and next(filter("NZS".count, events[i + 1:]), "") == "S"
                    self.assertFalse(live, f"{''.join(events)} at {i}")
                else:
                    optim.zero_grad(set_to_none=event == "N")
            watch.close()
        self.assertGreater(told, 100)

    def check_two_optimizers(self):
        """Two optimizers, each of which steps after a number of micro-steps of its own, gradients in `grad` or in Megatron's main_grad:
        nothing that a later step of the parameter's own optimizer applies is called dead; and a stop comes where there is none.
        of: whose the optimizer's tensors are: the parameters, masters that parameters name, or masters that nobody knows."""
        from ptc._gradients import Gradients
        for attribute, of in (("grad", "parameters"), ("main_grad", "parameters"), ("main_grad", "named"), ("main_grad", "unknown")):
            told = 0
            for _ in range(400 if LONG else 40):
                events, fused = self.two_cadences(24), attribute == "main_grad" and self.random.random() < 0.5
                two = [Apart(attribute, of) for _ in range(2)]
                watch, begun = Gradients([], [(str(i), t.p) for i, t in enumerate(two)], {}, [t.optim for t in two]), self.random.randrange(80)
                for i, event in enumerate(events):
                    if event == "A":
                        for t in two:
                            t.add(fused)
                    elif event == "B":
                        watch.boundary()
                        names = watch.live()[0] if i >= begun else ["0", "1"]
                        for o in {0, 1} - set(map(int, names)):
                            told += 1
                            follows = next((e for e in events[i + 1:] if e in (f"N{o}", f"Z{o}", f"S{o}")), "")
                            self.assertFalse(two[o].live() and follows[:1] == "S", f"{attribute}, {of}: {' '.join(events)} at {i} of {o}")
                        begun = begun if names else i + self.random.randrange(40)
                    else:
                        two[int(event[1])].does(event[0])
                watch.close()
            self.assertGreater(told, 30, f"{attribute}, {of}")
        self.assertEqual([], [o for o in range(3) if not self.stops_between(o)])

    def two_cadences(self, micro_steps):
        """A: a backward pass; S0, S1: a step; N, Z: gradients are set to None or zeroed in place, after the step or before the next
        micro-step; B: a boundary."""
        every = [self.random.choice((1, 1, 2, 3, 4, 5, 7)) for _ in range(2)]
        at, late = [self.random.randrange(k) for k in every], [self.random.random() < 0.5 for _ in range(2)]
        zero, order, events = self.random.choices("NZ", k=2), self.random.sample((0, 1), 2), []
        for m in range(micro_steps):
            events += [f"{zero[o]}{o}" for o in range(2) if late[o] and (m - at[o]) % every[o] == 0]
            events.append("A")
            for o in order:
                if (m - at[o]) % every[o] == every[o] - 1:
                    events += [f"S{o}"] if late[o] else [f"S{o}", f"{zero[o]}{o}"]
            events.append("B")
        return events

    def stops_between(self, which):
        """One optimizer steps in each micro-step, the other one in every fourth, and both zero at the start of a step: there are boundaries
        without live gradients, whoever's the main_grads are."""
        from ptc._gradients import Gradients
        two, found = [Apart("main_grad", ("parameters", "named", "unknown")[which]) for _ in range(2)], []
        watch = Gradients([], [(str(i), t.p) for i, t in enumerate(two)], {}, [t.optim for t in two])
        for m in range(24):
            for o, every in enumerate((1, 4)):
                if m % every == 0:
                    two[o].does("Z")
            for t in two:
                t.add(False)
            for o, every in enumerate((1, 4)):
                if m % every == every - 1:
                    two[o].does("S")
            watch.boundary()
            found += [m] if not watch.live()[0] else []
        watch.close()
        self.assertEqual([], [m for m in found if m % 4 != 3])
        return found

    def check_compiled(self):
        """A compiled step of an optimizer is noted, and what notes it is not compiled with it."""
        import torch
        import torch._dynamo
        from ptc._gradients import Gradients
        m = torch.nn.Linear(2, 2)
        optim = torch.optim.AdamW(m.parameters())
        watch, told = Gradients([("", m)], list(m.named_parameters()), {}, [optim]), []
        torch._dynamo.utils.counters.clear()
        step = torch.compile(lambda: optim.step(), backend="eager")
        for _ in range(6):
            optim.zero_grad()
            m(torch.ones(1, 2)).sum().backward()
            step()
            watch.boundary()
            told.append(len(watch.live()[0]))
        self.assertEqual([2, 2, 0, 0, 0, 0], told)
        self.assertNotIn("item", str(torch._dynamo.utils.counters["graph_break"]))
        watch.close()

    def check_alone(self):
        """A parameter that no optimizer has is named, and what to do."""
        import ptc
        import torch
        from ptc import _attached

        def attached(dropped=()):
            m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
            optim = torch.optim.AdamW(m[0].parameters())
            b = _attached.Attached(m, optim, None, None, (), None, None, (), dropped)
            b.collect()
            b.check_dropped()
            b.watch()
            self.addCleanup(b.close)
            return m, optim, b

        def said(zero):
            """What each stop says: nothing, or the first letter of the error."""
            out = []
            for _ in range(20):
                zero()
                m(torch.ones(1, 2)).sum().backward()
                optim.step()
                b.gradients.boundary()
                try:
                    b.check_gradients()
                    out.append("")
                except ptc.Error as e:
                    out.append(type(e).__name__[0])
                    if _ > 1 and zero == optim.zero_grad:
                        self.assertRegex(str(e), r"parameter 1\.weight and 1 more is in no optimizer, and has a gradient that nothing "
                                                 r"applies .*: freeze it \(requires_grad_\(False\)\), give it to an optimizer, zero")
            return "".join(out)
        m, optim, b = attached()
        self.assertEqual("L" * 16 + "E" * 4, said(optim.zero_grad))
        m, optim, b = attached()
        self.assertEqual("LLL", said(lambda: m.zero_grad()))  # the whole model's are zeroed
        m, optim, b = attached()
        self.assertEqual("LLL", said(lambda: m.zero_grad(set_to_none=False)))
        masters = [p.detach().double() for p in m.parameters()]  # which two micro-steps' gradients are copied into
        b = _attached.Attached(m, torch.optim.SGD(masters, lr=0.1), None, None, (), {f"m{i}": p for i, p in enumerate(masters)}, None, ())
        b.collect()
        b.watch()
        told = []
        for step in range(12):
            if step % 2 == 0:
                m.zero_grad()
            m(torch.ones(1, 2)).sum().backward()
            if step % 2:
                for p, q in zip(m.parameters(), masters):
                    q.grad = p.grad.double()
                b.optimizers["optimizer"][0].step()
            b.gradients.boundary()
            told.append(bool(b.gradients.live()[0]))
        self.assertEqual([True] * 5 + [False, True] * 3 + [False], told)
        b.close()
        m, optim, b = attached(["1"])
        self.assertEqual("LL", said(optim.zero_grad))
        with self.assertRaisesRegex(ptc.Error, "dropped 2: no parameter has this name, or one that begins with 2"):
            attached("2")

    def check_sharp_elsewhere(self):
        """SAM as it is usually written makes its state anew in each step, and may put the old parameter back as another tensor (p.data = old):
        refused by name however it is attached, in the first step if the outer optimizer is not, else at a stop."""
        import ptc.torch
        import torch
        import torch_kinds

        class Usual(torch_kinds.Sharp):
            @torch.no_grad()
            def step(self, closure):
                parameters = [p for group in self.param_groups for p in group["params"]]
                for p in parameters:
                    up = 0.05 * p.grad.sign()
                    self.state[p] = {"e_w": up} if self.in_place else {"old_p": p.data.clone()}
                    p.add_(up)
                self.zero_grad()
                with torch.enable_grad():
                    closure()
                for p in parameters:
                    if self.in_place:
                        p.sub_(self.state[p]["e_w"])
                    else:
                        p.data = self.state[p]["old_p"]
                self.base_optimizer.step()
                self.zero_grad()

        def step(model, optim):
            def backward():
                model(torch.ones(1, 2)).square().sum().backward()
            backward()
            optim.step(backward)

        for in_place, tensor in ((True, r"weight \(e_w\)"), (False, "weight")):
            moved = f"tensor {tensor}: it is not where it was at attach: .*; change tensors in place, by copy_"
            for base, names, text in ((torch.optim.SGD, ("outer", "inner"), moved), (torch.optim.AdamW, ("outer", "inner"), moved),
                                      (torch.optim.SGD, ("outer",), moved),
                                      (torch.optim.AdamW, ("outer",), "optimizer Usual.base_optimizer: .* and is not attached"),
                                      (torch.optim.AdamW, ("inner",), "optimizer Usual: it steps weight, has state of its own and is not attached")):
                with self.subTest(in_place=in_place, base=base.__name__, attached=names):
                    model = torch.nn.Linear(2, 2)
                    optim = Usual(model.parameters(), base, lr=0.1)
                    optim.in_place = in_place
                    step(model, optim) # which makes the state
                    client = types.SimpleNamespace(
                        blob_get=lambda *_, **__: None, blob_set=lambda *_, **__: None, declare=lambda *_, **__: None, boundary=lambda step: False,
                        restore=lambda: False, on_stop=lambda fn: None, update_begin=lambda: None, stop_holds=lambda: True)
                    gen = ptc.torch.Generation(client, types.SimpleNamespace(
                        has_state=False, rank=0, world=1, tp=1, dp=1, pp=1, cp=1, tp_rank=0, dp_rank=0, pp_rank=0, cp_rank=0, start_step=4))
                    with self.assertRaisesRegex(ptc.Error, text):
                        try:
                            gen.attach(model=model, optim={n: optim if n == "outer" else optim.base_optimizer for n in names})
                            step(model, optim)
                            gen.boundary(5)
                            gen._at_stop(5)
                        finally:
                            if gen._bound is not None:
                                gen._bound.close()

    def check_unattached(self):
        """An optimizer that steps attached parameters, and has what no snapshot would have, is refused by name."""
        import gc
        import ptc.torch
        import torch
        import torch_kinds
        from ptc import _attached

        class Shares(torch.optim.Optimizer):
            def __init__(self, inner):
                super().__init__(inner.param_groups, {})
                self.inner, self.state, self.param_groups = inner, inner.state, inner.param_groups

            def step(self):
                self.inner.step()

        sgd = lambda p, lr=0.1, momentum=0.9: torch.optim.SGD(p, lr=lr, momentum=momentum)

        def attached(optim):
            """optim(model): what is attached, and another."""
            m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
            mine, other = optim(m)
            b = _attached.Attached(m, mine, None, None, (), None, None, ())
            b.collect()
            b.watch()
            self.addCleanup(b.close)
            return m, b, other

        def step(m, optim):
            m(torch.ones(1, 2)).square().sum().backward()
            optim.step()
            m.zero_grad()

        lost = "its state would be lost; give each optimizer that steps to attach"
        for name, optim, text in (
                ("one of two", lambda m: (sgd(m[0].parameters()), sgd(m[1].parameters())), f"SGD: it steps 1.weight, .*{lost}"),
                ("none", lambda m: (None, torch.optim.AdamW(m.parameters())), f"AdamW: it steps 0.weight, .*{lost}"),
                ("made anew", lambda m: (sgd(m.parameters()), sgd(m.parameters())), f"SGD: it steps 0.weight, .*{lost}"),
                ("made anew, no state", lambda m: (sgd(m.parameters(), 0.1, 0), sgd(m.parameters(), 0.01, 0)),
                 "SGD: it steps 0.weight, is not attached, and its lr is not that of the attached optimizer, so that it would be lost"),
                ("no state", lambda m: (None, sgd(m.parameters(), 0.1, 0)), None),
                ("the same options", lambda m: (sgd(m.parameters(), 0.1, 0), sgd(m.parameters(), 0.1, 0)), None),
                ("nobody's", lambda m: (sgd(m.parameters()), sgd([torch.nn.Parameter(torch.ones(1))])), None),
                ("shared state", lambda m: (o := sgd(m.parameters()), Shares(o)), None)):
            with self.subTest(name):
                m, b, other = attached(optim)
                for p in other.param_groups[0]["params"]:
                    p.grad = torch.zeros_like(p)
                step(m, other)
                client = types.SimpleNamespace(boundary=lambda step: False)
                gen = ptc.torch.Generation(client, types.SimpleNamespace(start_step=4))
                gen._bound = b
                for call in (functools.partial(gen.boundary, 5), b.collect):  # after the first step, and at a stop
                    with self.assertRaisesRegex(ptc.Error, text) if text else contextlib.nullcontext():
                        call()
        m, b, other = attached(lambda m: (None, sgd(m.parameters(), 0.1, 0)))  # whose lr decays
        step(m, other)
        other.param_groups[0]["lr"] *= 0.5
        with self.assertRaisesRegex(ptc.Error, "SGD: it steps 0.weight, is not attached, and its lr is not what it was in the first step"):
            b.collect()
        m, b, other = attached(lambda m: (sgd(m[1].parameters()), sgd(m[0].parameters())))
        step(m, other)
        other.me = other  # a cycle
        gc.disable()
        del other
        b.collect()  # nobody uses it any more
        gc.enable()
        stateless = lambda m: torch_kinds.Sharp(m.parameters(), lambda groups, **options: torch.optim.SGD(groups, **options), lr=0.1)
        m = torch.nn.Linear(2, 2)
        outer = stateless(m)
        m(torch.ones(1, 2)).sum().backward()
        outer.step(lambda: m(torch.ones(1, 2)).sum().backward())
        b = _attached.Attached(m, outer, None, None, (), None, None, ())
        b.collect()
        b.watch()
        m(torch.ones(1, 2)).sum().backward()
        outer.step(lambda: m(torch.ones(1, 2)).sum().backward())
        outer.param_groups[0]["lr"] = 0.01  # the inner one's too: the groups are the same
        b.collect()
        b.close()

    def check_fsdp_gradients(self):
        """FSDP2 keeps gradients to itself until it reduces them."""
        import torch
        import torch.distributed as dist
        from ptc._gradients import Gradients
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            for how in ("end", "start", "never", "drop"):
                m = fully_shard(torch.nn.Linear(2, 3), mesh=init_device_mesh("cpu", (1,)))
                optim = torch.optim.AdamW(m.parameters())
                watch, told = Gradients([("", m)], list(m.named_parameters()), {}), []
                for step in range(5):
                    if how in ("start", "drop"):
                        optim.zero_grad()
                    for last in (False, True):
                        m.set_requires_gradient_sync(last)
                        m(torch.ones(1, 2)).sum().backward()
                        watch.boundary()
                        told.append(len(watch.live()[0]))
                    optim.step()
                    if how == "end":
                        optim.zero_grad()
                    elif how == "drop":
                        m(torch.ones(1, 2)).sum().backward()
                    watch.boundary()
                    told.append(len(watch.live()[0]))
                late, end = 2 if how == "end" else 8, 2 if how == "never" else 0
                self.assertEqual([end if i % 3 == 2 and i >= late else 2 for i in range(15)], told, how)
                watch.close()
        finally:
            dist.destroy_process_group()

    def check_fsdp_places(self):
        """What is bound is the memory that FSDP2 trains on: of uneven parts, after to_empty(), and of a parameter that was made anew."""
        import ptc.torch
        import torch
        import torch.distributed as dist
        from ptc import _held
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor
        from torch.testing._internal.distributed.fake_pg import FakeStore

        class Client:
            start_step = lambda self: 0
            restore = lambda self: False
            blob_get = blob_set = update_begin = lambda self, *_, **__: None

            def __init__(self):
                self.at = {}

            def declare(self, name, dtype, shape, boxes, address, field, *_):
                if field is None:
                    self.at[name] = address

            def on_stop(self, fn):
                self.stop = fn

        info = types.SimpleNamespace(has_state=False, start_step=0, rank=0, world=1, tp=1, pp=1, dp=1, cp=1, tp_rank=0, pp_rank=0,
                                     dp_rank=0, cp_rank=0)
        for how in ("as made", "to_empty", "made anew"):
            dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)  # with a peer that sends nothing
            try:
                with torch.device("meta" if how == "to_empty" else "cpu"):
                    m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))
                for part in (m[1], m):
                    fully_shard(part, mesh=init_device_mesh("cpu", (2,)))
                if how == "to_empty":
                    m.to_empty(device="cpu")
                elif how == "made anew":
                    p = m[1].weight
                    m[1].weight = torch.nn.Parameter(DTensor.from_local(p.to_local().detach().clone(), p.device_mesh, p.placements,
                                                                        shape=p.shape, stride=p.stride()))
                optim, gen = torch.optim.SGD(m.parameters(), lr=0.5), ptc.torch.Generation(Client(), info)
                gen.attach(model=m, optim=optim)
                for step in range(2):
                    m(torch.ones(1, 4)).sum().backward()
                    optim.step()
                    optim.zero_grad()
                gen._client.stop(2)
                names = {f._param_fqn: f._sharded_param_data.data_ptr() for group in _held.fsdp_groups(m) for f in group.fsdp_params}
                self.assertEqual(names, gen._client.at, how)
                gen._bound.close()
            finally:
                dist.destroy_process_group()
                ptc.torch._forget_meshes()

    def check_started(self):
        """The state that PyTorch's optimizers make at their first step is there before, and is what they make."""
        import torch
        import torch_kinds
        from ptc import _held
        for name in torch_kinds.OPTIMIZERS:
            for options in ({}, {"lr": torch.tensor(0.05)} if name in ("Adam", "AdamW") else {}, torch_kinds.OPTIMIZERS[name]):
                kinds = [torch_kinds.OfTorch(f"{name}-StepLR") for _ in range(2)]
                for kind in kinds:
                    kind.optim, kind.sched = getattr(torch.optim, name)(kind.model.parameters(), **options), None
                _held.start_optimizer(kinds[0].optim)
                for step in range(3):
                    self.assertEqual(kinds[1].step(step), kinds[0].step(step), f"{name} {options} step {step}")
                for p, q in zip(*(k.model.parameters() for k in kinds)):
                    a, b = kinds[0].optim.state[p], kinds[1].optim.state[q]
                    self.assertEqual(list(b), list(a), name)
                    for key, t in b.items():
                        self.assertTrue((t.dtype, t.shape) == (a[key].dtype, a[key].shape) and torch.equal(t, a[key]), f"{name} {key}")

        for name, lr in (("ASGD", 0.2), ("Rprop", 0.2), ("Rprop", torch.tensor(0.2)), ("SGD", 0.2)):
            kinds = [torch_kinds.OfTorch(f"{name}-StepLR") for _ in range(2)]
            for kind in kinds:
                kind.optim, kind.sched = getattr(torch.optim, name)(kind.model.parameters(), lr=lr, maximize=True), None
                kind.model[0].requires_grad_(False)
            _held.start_optimizer(kinds[0].optim)
            waiting = _held.not_begun(kinds[0].optim)
            places = {key: t.data_ptr() for p in kinds[0].model.parameters() for key, t in kinds[0].optim.state[p].items()}
            self.assertEqual(0 if name == "SGD" else 2, len(waiting))
            kinds[0].optim.register_step_pre_hook(lambda optim, *_: _held.begin(optim, waiting))
            for step in range(9):
                for kind in kinds:
                    kind.model[0].requires_grad_(step > 3)
                    kind.optim.param_groups[0]["lr"] *= 0.5
                self.assertEqual(kinds[1].step(step), kinds[0].step(step), f"{name} step {step}")
            self.assertEqual((set(), set()), (waiting, _held.not_begun(kinds[0].optim)))
            self.assertEqual(places, {key: t.data_ptr() for p in kinds[0].model.parameters() for key, t in kinds[0].optim.state[p].items()})

    def check_program_changed(self):
        """What a snapshot has of another program than this one, found before anything is declared; and ranks that are not alike."""
        import ptc.torch
        import torch
        from torch import nn
        from torch.distributed import HashStore
        blobs, met, store = {}, {}, HashStore()

        class Amax(nn.Linear):
            def __init__(self, value):
                super().__init__(2, 2)
                self.value = value

            def get_extra_state(self):
                return None if self.value is None else {"amax": self.value}

            def set_extra_state(self, state):
                self.value = None if state is None else state["amax"]

        class Options:
            def __init__(self, value):
                self.value = value

            def state_dict(self):
                return {"v": self.value}

            def load_state_dict(self, state):
                self.value = state["v"]

        def net(buffer=1.0, frozen=False, value=1.0):
            m = nn.ModuleDict({"a": nn.Linear(2, 2), "b": Amax(value)})
            m.register_buffer("table", torch.full((3,), buffer), persistent=False)
            m["a"].requires_grad_(not frozen)
            return m

        def groups(m, order=1, kind=torch.optim.AdamW):
            return kind([{"params": list(m["a"].parameters())}, {"params": list(m["b"].parameters()), "lr": 0.5}][::order])

        def generation(rank=0, tp=1, dp=1):
            client = types.SimpleNamespace(
                blob_get=lambda name, scope=ptc.JOB: blobs.get(name) if scope == ptc.JOB else None, stop_holds=lambda: True,
                blob_set=lambda name, data, scope=ptc.JOB: blobs.__setitem__(name, data) if rank == 0 and scope == ptc.JOB else None,
                declare=lambda *_, **__: None, restore=lambda: False, on_stop=lambda fn: None, update_begin=lambda: None,
                rendezvous_put=met.__setitem__, rendezvous_get=met.__getitem__)
            gen = ptc.torch.Generation(client, types.SimpleNamespace(
                has_state=bool(blobs), rank=rank, world=tp * dp, tp=tp, dp=dp, pp=1, cp=1, tp_rank=rank % tp, dp_rank=rank // tp,
                pp_rank=0, cp_rank=0, start_step=8))
            gen._store = store
            return gen

        def stop(step, models, tp=1, dp=1, sched=None, order=1, loaders=False, live=None):
            """All ranks' stop, rank 0's last as it is the one that waits; or what a rank refuses. The others hear rank 0 first."""
            gens = [generation(r, tp, dp) for r in range(tp * dp)]
            for r, (gen, m) in enumerate(zip(gens, models)):
                gen.attach(model=m, optim=groups(m, order), sched=sched and Options(sched[r]), data=Options(r) if loaders else ())
                if r == live:
                    m["a"](torch.ones(1, 2)).sum().backward()
            threads, said = [], {}

            def run(r):
                try:
                    gens[r]._at_stop(step)
                except ptc.Error as e:
                    said[r] = e
            threads = [threading.Thread(target=run, args=(r,)) for r in range(tp * dp)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            for gen in gens:
                gen._bound.close()
            return said

        def attach(model, tp=1, rank=0, **options):
            gen, more = generation(rank, tp), {k: options.pop(k) for k in list(options) if k == "remade"}
            gen.attach(model=model, optim=groups(model, **options), **more)
            gen._bound.close()
            return model

        self.assertEqual({}, stop(1, [net(value=v) for v in (3.0, 3.0, 3.0, 3.0)], tp=2, dp=2))
        self.assertEqual(3.0, attach(net())["b"].value)  # the same on all, so that it goes anywhere
        attach(net(2.0), remade=["table"])
        for text, call in (
                ("parameter a.weight: trained in the snapshot, frozen here", lambda: attach(net(frozen=True))),
                ("optimizer: the snapshot is of a AdamW, this is a Adam", lambda: attach(net(), kind=torch.optim.Adam)),
                ("optimizer: parameter a.weight was in group 0 in the snapshot, and is in group 1 here", lambda: attach(net(), order=-1)),
                ("buffer table is not persistent, and is made with other values", lambda: attach(net(2.0))),
                ("b._extra_state: the snapshot has it, this model has not", lambda: attach(nn.ModuleDict(
                    {"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}))),
                ("model: the snapshot's description of it is of version 2", lambda: attach(net()))):
            if "version" in text:
                blobs["model/0"] = zlib.compress(zlib.decompress(blobs["model/0"]).replace(b'"version": 1', b'"version": 2'))
            with self.assertRaisesRegex(ptc.Error, re.escape(text)):
                call()
        blobs.clear()
        self.assertEqual({}, stop(2, [net(value=v) for v in (3.0, 4.0)], tp=2))  # its own for each tensor-parallel rank
        self.assertEqual([3.0, 4.0], [attach(net(), tp=2, rank=r)["b"].value for r in range(2)])
        with self.assertRaisesRegex(ptc.Error, "b._extra_state: the extra state differs between the snapshot's 2 tensor-parallel ranks"):
            attach(net())
        blobs.clear()
        said = stop(3, [net(value=v) for v in (3.0, 4.0)], dp=2)
        self.assertRegex(str(said[1]), "extra state: rank 1 has another one than its replica with dp_rank 0")
        blobs.clear()
        said = stop(4, [net(), net()], dp=2, sched=[1, 2])
        self.assertRegex(str(said[1]), "scheduler: its state on rank 1 is not that on rank 0")
        blobs.clear()
        for r in range(2):  # nobody waits for the word of a rank that has put the stop off
            said = stop(5 + r, [net(), net()], dp=2, loaders=True, live=r)
            self.assertEqual({0: ptc.Later, 1: ptc.Later}, {k: type(e) for k, e in said.items()})
        blobs.clear()
        self.assertEqual({}, stop(8, [net(value=None)], sched=[1]))
        gen = generation()
        with self.assertRaisesRegex(ptc.Error, "^scheduler: the snapshot has its state, this program attaches no such object; "):
            attach(net())
        carried = net()
        gen.attach(model=carried, optim=groups(carried), sched=Options(2))
        gen._bound.close()
        self.assertIsNone(carried["b"].value)  # an extra state of nothing is one, too
        blobs.clear()
        changing, gen = nn.Linear(2, 2), generation()
        model = nn.ModuleDict({"a": changing, "b": nn.Linear(2, 2)})
        optim = groups(model)
        optim.state[changing.weight]["ema"] = 0
        gen.attach(model=model, optim=optim)
        optim.state[changing.weight]["ema"] = 0.25
        with self.assertRaisesRegex(ptc.Error, r"a.weight \(ema\): it was declared as a number of type int64 and is 0.25 now"):
            gen._at_stop(9)
        gen._bound.close()
        blobs.clear()
        gen = generation(1, dp=2)
        gen._client.stop_holds = lambda: False
        with self.assertRaisesRegex(ptc.Later, "rank 0 was past step 9"):
            gen._hear(9, "values", "rank 0")
        live = net()
        gen = generation()
        gen.attach(model=live, optim=groups(live))
        live["a"](torch.ones(1, 2)).sum().backward()
        with self.assertRaisesRegex(ptc.Later, "gradients of a.weight and 1 more have been computed and not been applied"):
            gen._at_stop(5)
        gen._finishing = True  # then they are nobody's
        gen._at_stop(5)
        gen._bound.close()
        blobs.clear()
        made, gen = net(), generation()
        gen.attach(model=made, optim=groups(made))
        made.register_buffer("later", torch.zeros(1))
        with self.assertRaisesRegex(ptc.Error, "tensor later: it was not there at attach, and would be lost; make it before attach"):
            gen._at_stop(7)
        gen._bound.close()
        blobs.clear()
        grown, gen = net(), generation()
        optim = torch.optim.AdamW(grown["a"].parameters())
        gen.attach(model=grown, optim=optim)
        optim.add_param_group({"params": list(grown["b"].parameters())})
        grown["b"](torch.ones(1, 2)).sum().backward()
        optim.step()
        grown.zero_grad()
        with self.assertRaisesRegex(ptc.Error, r"tensor b.weight \(\w+\): it was not there at attach, and would be lost; give the parameter to "
                                               "the optimizer before attach, frozen as long as it is not trained"):
            gen._at_stop(7)
        gen._bound.close()
        live.zero_grad()
        piece = nn.Parameter(live["a"].weight.detach().flatten().clone())
        gen = generation()
        gen.attach(model=live["a"], optim=torch.optim.SGD([piece], lr=0.1), zero1={"weight": (0, 4, piece)})
        with torch.no_grad():
            piece[1] += 1
        with self.assertRaisesRegex(ptc.Error, "zero1 weight: the piece differs from the parameter, whose copy it is"):
            gen._at_stop(6)
        gen._bound.close()

    def check_names_changed(self):
        """What a snapshot has of a sampler, a loader or an optimizer is taken by one of the same name, or refused by name."""
        import ptc.torch
        import torch
        from ptc.torch import External
        blobs, cursors, met = {}, {}, {}

        class Loader:
            def __init__(self, at=0):
                self.at = at

            def state_dict(self):
                return {"at": self.at}

            def load_state_dict(self, state):
                self.at = state["at"]

        def generation(pp=1, pp_rank=0):
            client = types.SimpleNamespace(
                blob_get=lambda name, scope=ptc.JOB: blobs.get(name) if scope == ptc.JOB else None, cursor_get=cursors.get,
                blob_set=lambda name, data, scope=ptc.JOB: blobs.__setitem__(name, data) if scope == ptc.JOB else None,
                cursor_set=lambda name, position, tag: cursors.__setitem__(name, (position, tag)), rendezvous_put=met.__setitem__,
                rendezvous_get=met.__getitem__, declare=lambda *_, **__: None, restore=lambda: False, on_stop=lambda fn: None)
            return ptc.torch.Generation(client, types.SimpleNamespace(
                has_state=bool(blobs), rank=pp_rank, world=pp, tp=1, dp=1, pp=pp, cp=1, tp_rank=0, dp_rank=0, pp_rank=pp_rank, cp_rank=0,
                start_step=8))

        def attach(names, stop=False, pp=1, pp_rank=0, optim=None, **more):
            """The samplers of these names, and loaders of those in capitals; how far they are."""
            gen = generation(pp, pp_rank)
            gen._store = torch.distributed.HashStore()
            data = [External(Loader(7), n) if n.isupper() else gen.batch_sampler(range(20), 4, 2, name=n) for n in names.split()]
            gen.attach(data=data, optim=optim, **more)
            if stop:
                gen._at_stop(10)
            gen._bound.close()
            return [d.loader.at if isinstance(d, External) else d.position(8) for d in data]

        self.assertEqual([0, 7], attach("data A", stop=True))
        self.assertEqual([8, 7], attach("data A"))
        for text, names in (("data: the snapshot says where it was, and no sampler or loader here has this name", "train A"),
                            ("A: the snapshot says where it was", "data B"), ("A: the snapshot says where it was", "data"),
                            ("A: the snapshot says where it was", ""),
                            ("more: the snapshot does not say where it was, so that it would begin at its start", "data A more"),
                            ("a: the snapshot does not say where it was", "data A a")):
            with self.subTest(names), self.assertRaisesRegex(ptc.Error, f"^dataset {text}"):
                attach(names)
        self.assertEqual([0, 7], attach("train A", data_changed=["data", "train"]))
        self.assertEqual([0], attach("data", data_changed="A") and attach("data train A", data_changed="train")[1:2])
        attach("data", pp=2, pp_rank=1)  # another stage reads it
        self.assertEqual([7], attach("A", pp=2))
        met.clear()
        attach("", pp=2, pp_rank=1)
        with self.assertRaisesRegex(ptc.Error, "^dataset data: the snapshot says where it was"):
            attach("A", pp=2)

        def pieces(a, b):
            """Ranges of a model's weight and bias in optimizers of these names; its lr has decayed."""
            m = torch.nn.Linear(2, 2)
            w, v = (torch.nn.Parameter(p.detach().flatten()) for p in m.parameters())
            optim = {a: torch.optim.SGD([w], lr=0.05, momentum=0.9), b: torch.optim.SGD([v], lr=0.05, momentum=0.9)}
            return dict(model=m, optim=optim, zero1={"weight": (0, 4, w), "bias": (0, 2, v)})
        for version_before in (False, True):
            blobs.clear()
            attach("", stop=True, **pieces("a", "b"))
            attach("", **pieces("a", "b"))
            if version_before:
                old = json.loads(zlib.decompress(blobs["model/0"]))
                del old["optimizers"], old["data"]
                blobs["model/0"] = zlib.compress(json.dumps(old).encode())
            with self.assertRaisesRegex(ptc.Error, "^optimizer/c: this program attaches it, the snapshot has no options of it; give the same "
                                        if version_before else "^optimizer/b: the snapshot has its options, this program attaches no such"):
                attach("", **pieces("a", "c"))
            with self.assertRaisesRegex(ptc.Error, "^optimizer/a: parameter weight was in group 0 in the snapshot, and is in no group here"):
                attach("", **pieces("b", "a"))

    def check_extra_state_divided(self):
        """An extra state does not go to another tp where that cuts its module, up or down; it does where it does not."""
        import ptc.torch
        import torch
        import torch.distributed as dist
        from ptc import _attached
        from torch import nn
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard
        from torch.testing._internal.distributed.fake_pg import FakeStore

        class Amax(nn.Linear):
            def get_extra_state(self):
                return {"amax": self.amax}

            def set_extra_state(self, state):
                self.amax = state["amax"]

        def bound(rank, tp, cut_by, value=0.0):
            """What a rank attaches; its weight is cut among tensor-parallel ranks, or among data-parallel ones."""
            m = nn.ModuleDict({"a": nn.ModuleDict({"b": Amax(2, 4)})})
            layer = m["a"]["b"]
            layer.amax = value
            if cut_by == "dp" or (cut_by == "tp" and tp > 1):
                dist.init_process_group("fake", store=FakeStore(), rank=rank if cut_by == "tp" else 0, world_size=2)
                mesh = init_device_mesh("cpu", (2,))
                layer.weight = nn.Parameter(DTensor.from_local(layer.weight.detach()[:2].clone(), mesh, [Shard(0)], run_check=False))
            b = _attached.Attached(m, None, None, None, (), None, None, ())
            b.collect()
            about = b.about(rank == 0, {})
            if dist.is_initialized():
                dist.destroy_process_group()
                ptc.torch._forget_meshes()
            return b, about, layer

        def carried(tp, new_tp, cut_by, values=(3.0, 3.0), forget=False):
            data = _attached.Attached.merge({(0, r): bound(r, tp, cut_by, values[r])[1] for r in range(tp)}, tp)
            if forget:
                old = json.loads(data)
                del old["cut"]
                data = json.dumps(old).encode()
            met, out = {}, []
            for r in range(new_tp):
                b, _, layer = bound(r, new_tp, cut_by)
                gen = ptc.torch.Generation(types.SimpleNamespace(rendezvous_put=met.__setitem__, rendezvous_get=met.__getitem__),
                                           types.SimpleNamespace(has_state=True, rank=r, world=new_tp, tp=new_tp, tp_rank=r, pp=1, pp_rank=0,
                                                                 dp=1, dp_rank=0, cp=1, cp_rank=0, start_step=8))
                gen._bound = b
                gen._tell_parts()
                b.load_about(data, gen)
                out.append(layer.amax)
            return out

        self.assertEqual([3.0, 4.0], carried(2, 2, "tp", (3.0, 4.0)))
        for how in (None, "dp"):
            self.assertEqual([3.0, 3.0], carried(1, 2, how))
            self.assertEqual([3.0], carried(2, 1, how))
        self.assertEqual([3.0], carried(1, 1, "tp", forget=True))
        for tp, new_tp, how, forget in ((1, 2, "tp", False), (2, 1, "tp", False), (1, 2, "tp", True), (2, 1, "tp", True), (2, 1, None, True)):
            with self.subTest(f"{tp} {new_tp} {how} {forget}"), self.assertRaisesRegex(ptc.Error, re.escape(
                    "a.b._extra_state: the extra state is of a module whose parameters tensor parallelism cuts; the snapshot's is of "
                    f"tp={tp}, this is tp={new_tp}")):
                carried(tp, new_tp, how, forget=forget)

    def check_divided(self):
        """Batches by length and sequences by rule: each sample and token once, whoever computes it; what is refused."""
        import ptc.torch
        import torch
        n, g, mbs, dp, position = 50, 18, 2, 4, 45
        lengths = [(i * i * 37) % 211 for i in range(n)]
        met = {"ptc.length_cost": b"6 1"}  # as a daemon says it

        def generation(rank):
            client = types.SimpleNamespace(cursor_get=lambda _: (position, f"n={n},seed=3"), rendezvous_put=met.__setitem__,
                                           rendezvous_get=lambda key, _timeout_ms=0: met[key])
            return ptc.torch.Generation(client, types.SimpleNamespace(has_state=True, rank=rank, world=dp, dp=dp, dp_rank=rank,
                                                                      cp=dp, cp_rank=rank, start_step=5))
        ids = [order_oracle.at(n, 3, *divmod(p, n)) for p in range(position + g, position + 2 * g)]  # of step 6
        want, most, total = order_oracle.balanced([lengths[i] for i in ids], 6, 1, mbs, dp)
        parts = []
        for rank in range(dp):
            gen = generation(rank)
            s = gen.batch_sampler(range(n), g, mbs, 3, lengths=np.array(lengths), cost=(6, 1) if rank % 2 else None)
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
                ("lengths= and cost= go together", lambda: gen.batch_sampler(range(n), g, mbs, cost=(6, 1))),
                ("lengths= needs cost=(a, b), a sample costs", lambda: met.update({"ptc.length_cost": b""}) or
                                                              gen.batch_sampler(range(n), g, mbs, lengths=lengths)),
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
            client = types.SimpleNamespace(blob_get=blobs.get, blob_set=blobs.__setitem__, stop_holds=lambda: True)
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
                ("dataset late: the loader of data-parallel rank 1 has not come to step 7 within 0.01 s", lambda: late._stop(gen, 7)),
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
        import rng_oracle
        import torch_state
        with self.cluster(nodes=2, devices=2) as c:
            job, at = Job(c, self.dir, "carry", warnings="default", run={"seed": 7}), 0
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
            if runs[0] > 1:  # new where it begins
                rng_oracle.seed_all(7, lines[0]["step"], (0, 0, number, 0))
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

    # ---- every kind of state, and gradients

    def test_kinds(self):
        """Each kind of state that docs/training-state.md calls carried trains on as if it had never been stopped, to the last bit."""
        import torch
        import torch_kinds
        with self.cluster(nodes=1, devices=2) as c:
            job, at = Job(c, self.dir, "kinds"), 0
            job.run("dp=1")
            for config in ("dp=2", "dp=1"):
                job.wait_step(at + 7)
                at = job.resize(config)["step"]
            job.wait_step(at + 7)
            job.do("stop")
            steps, logged = job.wait_run("stopped")["step"], job.logged()
        self.assertEqual({(1, 0), (2, 0), (2, 1), (3, 0)}, set(logged))
        torch.set_num_threads(1)
        kinds = torch_kinds.make()
        lines = {rank: {line["step"]: line["values"] for (_, r), log in logged.items() if r == rank for line in log} for rank in (0, 1)}
        self.assertEqual(set(range(steps)), set(lines[0]))
        for step in range(steps):
            want = {name: kind.step(step) for name, kind in kinds.items()}
            for rank in (0, 1):
                self.assertEqual(want, lines[rank].get(step, want), f"rank {rank} step {step}")

    def micro(self, c, how, **options):
        job = Job(c, self.dir, "micro", **options)
        with open(os.path.join(job.logs, "do"), "w") as f:
            f.write(how)
        return job

    def test_gradients(self):
        """A stop is where no gradient is lost, whenever it was wanted: the curve is that of a program that never stops."""
        import torch
        import torch_kinds
        torch.set_num_threads(1)
        with self.cluster(nodes=2, devices=1) as c:
            job, at = self.micro(c, "all", run={"snapshot_every": 7}), 0
            job.run("dp=2")
            for config in ("dp=1", "dp=2"):
                job.wait_step(at + 9)
                at = job.resize(config)["step"]
                self.assertEqual(0, at % 4)
            job.wait_step(at + 9)
            job.do("stop")
            steps, logged = job.wait_run("stopped")["step"], job.logged()
        plain = torch_kinds.micros("all", 0)
        want = {step: {how: kind.step(step) for how, kind in plain.items()} for step in range(steps)}
        for (g, rank), lines in logged.items():
            for line in lines:
                self.assertEqual(want[line["step"]], line["losses"], f"generation {g} rank {rank} step {line['step']}")

    def test_gradients_refused(self):
        """Where there is no boundary without live gradients, as ranks differ, the switch comes to nothing, says why, and training
        goes on."""
        with self.cluster(nodes=2, devices=1) as c:
            job = self.micro(c, "ranks differ", sleep=0)
            job.run("dp=2")
            job.wait_step(9)
            line = self.refused(c, "resize", job.name, "--config", "dp=1", "--wait", timeout_s=120 * PATIENCE,
                             contains="the stop has moved on by 1024 boundaries")
            self.assertRegex(line, r"rank [01]: gradients of ranks differ\.0\.weight and 3 more have been computed and not been applied")
            job.wait_step(job.step() + 3)
            self.assertEqual(1, job.status()["generation"])

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


@harness.labels("repeats")
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
        other = run("import ptc; ptc.Client()", PTC_LIBRARY="libm.so.6").stderr.splitlines()[-1]
        self.assertRegex(other, r"^ptc\.Error: the library 'libm.so.6' has no ptc_open\(\): it is not libptc, or older than this package; ")
        alone = run("import ptc; ptc.Client()", PTC_LIBRARY=library).stderr.splitlines()[-1]
        self.assertRegex(alone, r"^ptc\.Error: .*PTC_WORKER_SOCKET")
        self.assertRegex(run("import ptc.torch", PTC_LIBRARY=library).stderr.splitlines()[-1], "^ImportError: ptc.torch needs PyTorch")

    def test_example(self):
        """Making a job of ptc of the GPT changes eleven lines, those that its README shows."""
        gpt = os.path.join(harness.ROOT, "examples", "gpt")
        code = []
        for name in ("train_plain.py", "train.py"):
            with open(os.path.join(gpt, name)) as f:
                code.append(f.read().split('"""', 2)[2].splitlines())  # after what it says of itself
        diff = [line for line in difflib.unified_diff(*code, n=0, lineterm="") if line[:3] not in ("+++", "---", "@@ ")]
        self.assertLessEqual(sum(line.startswith("+") for line in diff), 11)
        with open(os.path.join(gpt, "README.md")) as f:
            self.assertIn("```diff\n" + "\n".join(diff) + "\n```\n", f.read())

    def test_syntax(self):
        """Python 3.9 reads it."""
        for path in glob.glob(os.path.join(harness.ROOT, "client", "python", "ptc", "*.py")):
            with open(path) as f:
                ast.parse(f.read(), path, feature_version=(3, 9))
