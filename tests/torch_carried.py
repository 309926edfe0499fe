# SPDX-License-Identifier: Apache-2.0
"""Checks of test_torch.py in one process, without a daemon: what is carried beside tensors, and what is refused before it is lost."""
import contextlib
import datetime
import io
import json
import os
import random
import re
import threading
import types
import warnings
import zlib
from unittest import mock

import numpy as np
import order_oracle


class Carried:
    """Of a test case: what a snapshot has, is given back, and is compared with the program that asks for it."""

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

        info = types.SimpleNamespace(has_state=True, rank=0, world=1, pp=1, dp=1, dp_rank=0, start_step=10, config="dp=1")
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
                self.set, self.said, self.left, self.checked, self.why = {}, [], 0, 0, None
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

            def survive_checked(self):
                self.checked += 1

            def survive_broken(self, why=None):
                if why and self.said[-1:] == [True]:
                    self.said.append(False)
                self.why = self.why or why
                return self.why

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
            info = types.SimpleNamespace(has_state=False, start_step=0, config="dp=1", rank=0, world=1, tp=1, pp=1, dp=1, cp=1, tp_rank=0, pp_rank=0,
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
        self.assertEqual(2, client.checked)
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
        self.assertRegex(client.why, "^tensor weight: it is not where it was at attach")
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

        gen, _, optim, client = made()  # libptc finds bytes that have changed
        gen.survive()
        gen.boundary(0)
        optim.step()
        gen.boundary(1)
        client.why = 'tensor "weight" changed after the boundary at step 1'
        self.assertRegex(ended(gen.boundary, 2), "^ptc: rank 0: .*from snapshots.*: tensor \"weight\" changed after the boundary at step 1\n$")
        self.assertEqual("", ended(gen.boundary, 3))
        gen._promise.close()

        self.check_structure(made, ended)
        self.check_encoded(made)
        self.check_buffers(made, ended)
        self.check_added(made)

    def check_structure(self, made, ended):
        """Where the program has changed what there is, the promise rests until a check has passed. Where it is as it was, it goes on."""
        import torch

        def other(model, optim):
            torch.optim.SGD(model.parameters(), lr=0.5).step()

        def replaced(model, optim):
            model.bias = torch.nn.Parameter(model.bias.detach().clone())
        changes = {"frozen": lambda model, optim: model.bias.requires_grad_(False), "replaced": replaced, "other": other,
                   "added": lambda model, optim: setattr(model, "more", torch.nn.Parameter(torch.ones(2))),
                   "buffer": lambda model, optim: model.register_buffer("more", torch.ones(2)),
                   "module": lambda model, optim: model.add_module("more", torch.nn.Linear(1, 1)),
                   "group": lambda model, optim: optim.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})}
        for name, change in changes.items():
            gen, model, optim, client = made()
            gen.survive()
            gen.boundary(0)
            optim.step()
            gen.boundary(1)
            model.bias, model.count = model.bias, 1  # as it is; not the model's
            gen._promise._next_check = float("inf")
            optim.step()
            gen.boundary(2)
            self.assertEqual([True], client.said)
            change(model, optim)
            gen.boundary(3)
            gen.boundary(4)
            self.assertEqual([True, False], client.said, name)
            if name == "frozen":
                model.bias.requires_grad_(True)
            gen._promise._next_check = 0.0
            said = ended(gen.boundary, 5)
            if name in ("frozen", "other"):  # which loses nothing
                self.assertEqual(("", [True, False, True]), (said, client.said), name)
            else:
                self.assertRegex(said, "^ptc: rank 0: .*goes on from snapshots", name)
                self.assertEqual([True, False], client.said)
            gen._promise.close()
        many = torch.nn.Sequential(*[torch.nn.Linear(1, 1) for _ in range(100)])
        gen, model, optim, client = made(model=many)
        gen.survive()
        gen.boundary(0)
        optim.step()
        gen.boundary(1)
        gen._promise._next_check = float("inf")
        many[77].bias.requires_grad_(False)
        for step in range(2, 7):
            gen.boundary(step)
        self.assertEqual([True, False], client.said)
        gen._promise.close()

    def check_encoded(self, made):
        """What has not changed since the last boundary is not encoded again; whatever has changed is."""
        import torch
        from ptc import _rng, _values
        gen, model, optim, client = made()
        gen.survive()
        gen.boundary(0)
        optim.step()
        gen.boundary(1)
        gen._promise._next_check = float("inf")
        with mock.patch.object(_values, "dumps", side_effect=_values.dumps) as dumps, mock.patch.object(_rng.json, "dumps") as python:
            optim.step()
            gen.boundary(2)
            self.assertEqual((0, 0), (dumps.call_count, python.call_count))
        for i, lr in enumerate((1, True, 1.0, 0.0, -0.0, torch.tensor(0.5), torch.tensor(0.25))):
            optim.param_groups[0]["lr"] = lr
            gen.boundary(3 + i)
            self.assertIn(b'["lr", ' + _values.dumps("lr", lr) + b"]", client.set["optimizer"], lr)
        optim.param_groups[0]["lr"].fill_(0.125)  # in place
        gen.boundary(10)
        self.assertIn(b"0.125", client.set["optimizer"])
        gen._promise.close()
        draw = random.Random(5)
        for g in (np.random.RandomState(3), np.random.Generator(np.random.MT19937(3)), np.random.default_rng(3)):
            source = _rng._Numpy("it", g)
            for _ in range(3000):
                what = draw.randrange(5)
                if what == 0 and isinstance(g, np.random.RandomState):
                    g.seed(draw.randrange(4))
                elif what in (1, 2):
                    (g.randn if isinstance(g, np.random.RandomState) else g.standard_normal)()
                elif what == 3:
                    g.random(draw.choice((1, 312, 624)))
                self.assertEqual(_rng._Numpy("it", g).get(), source.get())
        g = random.Random(3)
        source = _rng._Python(g)
        for _ in range(3000):
            what = draw.randrange(5)
            if what == 0:
                g.seed(draw.randrange(4))
            elif what in (1, 2):
                g.gauss(0, 1)
            elif what == 3:
                for _ in range(draw.choice((1, 312, 624))):
                    g.random()
            self.assertEqual(_rng._Python(g).get(), source.get())

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
                start_step=8, config="dp=1"))

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

        def generation(rank, config="dp=4"):
            client = types.SimpleNamespace(cursor_get=lambda _: (position, f"n={n},seed=3"), rendezvous_put=met.__setitem__,
                                           rendezvous_get=lambda key, _timeout_ms=0: met[key])
            return ptc.torch.Generation(client, types.SimpleNamespace(has_state=True, rank=rank, world=dp, dp=dp, dp_rank=rank,
                                                                      cp=dp, cp_rank=rank, start_step=5, micro_batch=mbs,
                                                                      global_batch=g, config=config))
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
        by_length = s
        config, steps = "dp=4,micro_batch=2,global_batch=18,micro_steps=1x5:2x2:1x1", (5, 2, 2, 1)
        want = order_oracle.uneven_batch(lambda p: order_oracle.at(n, 3, *divmod(p, n)), position + g, g, mbs, steps)
        for rank in range(dp):
            fast = generation(rank, config)
            for uneven, own in ((True, steps[rank]), (False, 5)):
                s = fast.batch_sampler(range(n), g, mbs, 3, uneven=uneven)
                s._start(fast)
                self.assertEqual(own, s.micro_batches)
                self.assertEqual([want[m, rank] for m in range(own)],
                                 [[i for i, w in zip(*s.micro_batch_of(6, m), strict=True) if w] for m in range(own)])
        self.assertEqual("n=50,seed=3;batch=18,micro=2,micro_steps=1x5:2x2:1x1", s._told())
        s = by_length
        other = gen.batch_sampler(range(n), g, mbs, 3, lengths=[*lengths[:-1], 5], cost=(6, 1))
        for text, call in (
                ("rank 3 has other lengths or another cost than rank 0", lambda: other._agree(gen)),
                ("in micro-batches of 2, the program asks for 18 and 3", lambda: fast.batch_sampler(range(n), g, 3)),
                ("gives all ranks equally many micro-batches", lambda: fast.batch_sampler(range(n), g, mbs, lengths=lengths, cost=(6, 1))),
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
                ("dataset loader: the snapshot has the state of a Loader under dp=2, this is dp=3, and only the loader can "
                 "convert it: keep dp=2, give External(transform=), or use gen.batch_sampler()", lambda: start(0, 3, scope="job")),
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
