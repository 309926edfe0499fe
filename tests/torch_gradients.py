# SPDX-License-Identifier: Apache-2.0
"""Checks of test_torch.py in one process, without a daemon: gradients that live at a stop, and optimizers that have them elsewhere."""
import contextlib
import functools
import sys
import types

from harness import LONG


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


class Gradients:
    """Of a test case: where gradients are when a rank is asked to stop, and when that may be."""

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
