# SPDX-License-Identifier: Apache-2.0
"""One small training for each kind of state that a PyTorch program may have (docs/training-state.md): all of them at once in the ranks
of a job (torch_rank.py), and, by the same code, in one process that is never stopped. Each step of each gives a number that depends on
everything before it."""
import contextlib
import inspect
import itertools
import warnings

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn


def data(kind, step, n=4):
    g = torch.Generator().manual_seed(1000003 * sum(map(ord, kind)) + step)
    return torch.randn(6, n, generator=g), torch.randn(6, 2, generator=g)


def net(kind, *layers):
    g = torch.Generator().manual_seed(sum(map(ord, kind)))
    m = nn.Sequential(*(layers or (nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))))
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(torch.randn(p.shape, generator=g))
    return m


class Kind:
    """A model, an optimizer and a step."""

    def __init__(self, name):
        self.name = name
        self.model = self.make()
        self.optim = self.optimizer()
        self.sched, self.stateful, self.extra, self.zero1 = self.schedule(), {}, {}, {}

    def make(self):
        return net(self.name)

    def optimizer(self):
        return torch.optim.AdamW(self.model.parameters(), lr=0.05, foreach=False)

    def schedule(self):
        return None

    def loss(self, step):
        x, y = data(self.name, step)
        return (self.model(x) - y).square().mean()

    def step(self, step):
        loss = self.loss(step)
        loss.backward()
        self.optim.step()
        self.optim.zero_grad()
        if self.sched is not None:
            self.sched.step(*([loss.item()] if isinstance(self.sched, lr_scheduler.ReduceLROnPlateau) else []))
        return loss.item()


# ---- optimizers and schedules ---------------------------------------------------------------------------------------------------


OPTIMIZERS = {"Adadelta": {}, "Adagrad": {}, "Adam": dict(amsgrad=True), "AdamW": {}, "Adamax": {}, "ASGD": dict(t0=2), "NAdam": {},
              "RAdam": {}, "RMSprop": dict(momentum=0.5, centered=True), "Rprop": {}, "SGD": dict(momentum=0.9, nesterov=True),
              "Adafactor": {}, "Muon": {}}
OPTIMIZERS = {n: options for n, options in OPTIMIZERS.items() if hasattr(torch.optim, n)}  # older versions have fewer
SCHEDULES = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda s: 1 / (s + 1)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda s: 0.93),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5, 9, 14]),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=17),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 20, 2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 9),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=1 << 20, pct_start=0.00001, cycle_momentum=False),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 3, cycle_momentum=False),
    # ConstantLR only here: all kinds together have as many blobs as a job may have
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o, 0.1, 4), lr_scheduler.StepLR(o, 2)], [5]),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.StepLR(o, 3), lr_scheduler.ExponentialLR(o, 0.97)]),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "SWALR": lambda o: SWALR(o, 0.01, 6),
}


class OfTorch(Kind):
    """An optimizer and a schedule of PyTorch's."""

    def make(self):  # Muon is for matrices
        return net(self.name, nn.Linear(4, 3, bias=False), nn.Tanh(), nn.Linear(3, 2, bias=False))

    def optimizer(self):
        name = self.name.split("-")[0]
        return getattr(torch.optim, name)(self.model.parameters(), **OPTIMIZERS[name])

    def schedule(self):
        return SCHEDULES[self.name.split("-")[1]](self.optim)


class Counting(torch.optim.Optimizer):
    """Keeps numbers of Python's, and a tensor of a shape of its own."""

    def __init__(self, params):
        super().__init__(params, dict(lr=0.1))
        for p in params:
            self.state[p] = {"step": 0, "rate": 1.0, "up": False, "row": torch.zeros(p.shape[0]), "none": None}

    def step(self):
        for p in self.param_groups[0]["params"]:
            s = self.state[p]
            s["step"] += 1
            s["rate"] *= 0.9
            s["up"] = not s["up"]
            s["row"].add_(p.grad.flatten(1).sum(1) if p.dim() > 1 else p.grad)
            scale = self.param_groups[0]["lr"] * s["rate"] / (s["step"] + s["up"])
            with torch.no_grad():
                p.sub_(p.grad * scale + 0.01 * s["row"].view(-1, *[1] * (p.dim() - 1)))


class Numbers(Kind):
    def optimizer(self):
        return Counting(list(self.model.parameters()))


class Flags(Kind):
    """A fused optimizer whose learning rate is a tensor, and one that goes by lists, each for a part of the model."""

    def optimizer(self):
        return {"fused": torch.optim.AdamW(self.model[0].parameters(), lr=torch.tensor(0.05), fused=True),
                "foreach": torch.optim.Adam(self.model[2].parameters(), lr=0.05, foreach=True, maximize=True)}

    def schedule(self):
        return lr_scheduler.ExponentialLR(self.optim["fused"], 0.9)

    def step(self, step):
        loss = self.loss(step)
        loss.backward()
        for o in self.optim.values():
            o.step()
            o.zero_grad()
        self.sched.step()
        return loss.item()


class Sparse(Kind):
    """Sparse gradients, whose optimizer has taken a step before it is attached."""

    def __init__(self, name):
        super().__init__(name)
        super().step(-1)

    def make(self):
        return net(self.name, nn.Embedding(5, 3, sparse=True), nn.Flatten())

    def optimizer(self):
        return torch.optim.SparseAdam(self.model.parameters(), lr=0.05)

    def loss(self, step):
        return (self.model(torch.tensor([[step % 5, step % 3]])) - 0.5).square().mean()


class InBackward(Kind):
    """An optimizer for each parameter, which steps as soon as there is a gradient."""

    def optimizer(self):
        def step(p):
            of[p].step()
            of[p].zero_grad()
        of = {p: torch.optim.AdamW([p], lr=0.05) for p in self.model.parameters()}
        for p in of:
            p.register_post_accumulate_grad_hook(step)
        return list(of.values())

    def step(self, step):
        loss = self.loss(step)
        loss.backward()
        return loss.item()


class Sharp(torch.optim.Optimizer):
    """Sharpness-aware minimization, around an optimizer that keeps its own state, and shares the groups. Its state dict has no more
    keys than others."""

    def __init__(self, params, base, **options):
        super().__init__(params, dict(rho=0.05, **options))
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def step(self, closure):
        parameters = [p for group in self.param_groups for p in group["params"]]
        for p in parameters:
            self.state[p].setdefault("old", torch.empty_like(p)).copy_(p)
            p.add_(0.05 * p.grad.sign())
        self.zero_grad()
        with torch.enable_grad():
            closure()
        for p in parameters:
            p.copy_(self.state[p]["old"])
        self.base_optimizer.step()
        self.zero_grad()


class AroundAnother(Kind):
    """An optimizer and the one in it, both attached, after a step that makes the state of the outer one."""

    def __init__(self, name):
        super().__init__(name)
        self.step(-1)

    def optimizer(self):
        outer = Sharp(self.model.parameters(), torch.optim.SGD, lr=0.05, momentum=0.9)
        return {"outer": outer, "inner": outer.base_optimizer}

    def step(self, step):
        loss = self.loss(step)
        loss.backward()
        self.optim["outer"].step(lambda: self.loss(step).backward())
        return loss.item()


# ---- models -------------------------------------------------------------------------------------------------------------------


class BatchNorm(Kind):
    def make(self):
        return net(self.name, nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None), nn.Linear(3, 2))

    def loss(self, step):
        self.model.train(step % 3 > 0)
        return super().loss(step)


class Tied(Kind):
    def make(self):
        m = net(self.name, nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False), nn.Linear(4, 2))
        m[2].weight = m[0].weight
        return m


class Frozen(Kind):
    """A part that is frozen, but given to the optimizer, and trained from step 9 on; another is frozen in every other step. What Rprop
    keeps of a parameter begins with the learning rate at its first step."""

    def optimizer(self):
        return torch.optim.Rprop(self.model.parameters(), lr=0.05)

    def make(self):
        m = super().make()
        m[0].requires_grad_(False)
        return m

    def step(self, step):
        if step == 9:
            self.model[0].requires_grad_(True)
        self.model[2].bias.requires_grad_(step % 2 > 0)
        self.optim.param_groups[0]["lr"] *= 0.9
        return super().step(step)


class WeightNorm(Kind):
    def make(self):
        m = super().make()
        parametrizations.weight_norm(m[0])
        torch.manual_seed(5)
        parametrizations.spectral_norm(m[2])
        return m


class Strided(nn.Module):
    def __init__(self):
        super().__init__()
        self.turned = nn.Parameter(torch.zeros(4, 3).t())
        self.image = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
        self.scale, self.nothing = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(0, 2))
        self.phase = nn.Parameter(torch.zeros(3, 2, dtype=torch.complex64))

    def forward(self, x):
        y = self.image(x[:, :2, None, None].expand(6, 2, 2, 2)).flatten(1) + nn.functional.linear(x, self.turned) * self.scale
        return (y.to(torch.complex64) @ self.phase).real


class Reparametrized(Kind):
    """By hooks, as before there were parametrizations, and with a part of the weights pruned; after tensors that lie otherwise than row
    by row, a scalar, an empty one and complex numbers."""

    def make(self):
        m = net(self.name, Strided(), nn.Linear(2, 4), nn.Linear(4, 3), nn.Linear(3, 2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            nn.utils.weight_norm(m[1])
        torch.manual_seed(6)
        nn.utils.spectral_norm(m[2])
        prune.l1_unstructured(m[3], "weight", 2)
        return m


class NoSync(Kind):
    """DDP, whose gradients are parts of its buckets, reduced in every other step; zeroed at the start."""

    def __init__(self, name):
        super().__init__(name)
        if torch.distributed.is_initialized():
            self.model = nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)

    def step(self, step):
        if step % 2 == 0:
            self.optim.zero_grad(set_to_none=step % 4 > 0)
        alone = step % 2 == 0 and torch.distributed.is_initialized()
        with self.model.no_sync() if alone else contextlib.nullcontext():
            loss = self.loss(step)
            loss.backward()
        if step % 2:
            self.optim.step()
        return loss.item()


class Amax(nn.Linear):
    """Keeps a history in a form of its own, as the modules of Transformer Engine do."""

    def __init__(self):
        super().__init__(4, 4)
        self.history, self.steps = torch.zeros(3), 0

    def forward(self, x):
        self.steps += 1
        self.history = torch.cat([self.history[1:], x.abs().max().view(1)])
        return super().forward(x / (self.history.max() + self.steps))

    def get_extra_state(self):
        return {"history": self.history.clone(), "steps": self.steps, "raw": b"\0\xff"}

    def set_extra_state(self, state):
        assert state["raw"] == b"\0\xff"
        self.history, self.steps = state["history"].clone(), state["steps"]


class ExtraState(Kind):
    def make(self):
        return net(self.name, Amax(), nn.Linear(4, 2))


class Ema(Kind):
    """Weights that are averaged, by a rule and as an equal mean; the averages answer."""

    def __init__(self, name):
        super().__init__(name)
        model = self.model
        self.model = nn.ModuleDict({"net": model, "ema": AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
                                    "mean": AveragedModel(model, use_buffers=True)})

    def step(self, step):
        parts, (x, y) = self.model, data(self.name, step)
        loss = (parts["net"](x) - y).square().mean()
        loss.backward()
        self.optim.step()
        self.optim.zero_grad()
        for name in ("ema", "mean"):
            parts[name].update_parameters(parts["net"])
        return loss.item() + parts["ema"](x).sum().item() + parts["mean"](x).sum().item()


class Parts(Kind):
    """Parts of one model, each with an optimizer and a schedule."""

    def __init__(self, name):
        super().__init__(name)
        whole = self.model
        self.model = [nn.ModuleDict({"a": whole[0]}), nn.ModuleDict({"b": whole[2]})]
        self.optim = [torch.optim.AdamW(m.parameters(), lr=0.05) for m in self.model]
        self.sched = [lr_scheduler.ExponentialLR(o, 0.95) for o in self.optim]

    def step(self, step):
        x, y = data(self.name, step)
        loss = (self.model[1]["b"](self.model[0]["a"](x).tanh()) - y).square().mean()
        loss.backward()
        for o in self.optim:
            o.step()
            o.zero_grad()
        for s in self.sched:
            s.step()
        return loss.item()


class Bare(Kind):
    """A parameter that is in no module."""

    def __init__(self, name):
        super().__init__(name)
        self.scale = nn.Parameter(torch.ones(2))
        self.extra = {f"{name}.scale": self.scale}
        self.optim = torch.optim.AdamW([*self.model.parameters(), self.scale], lr=0.05)

    def loss(self, step):
        x, y = data(self.name, step)
        return (self.model(x) * self.scale - y).square().mean()


class OwnMasters(Kind):
    """The program keeps fp32 masters of a bf16 model, and copies what two micro-steps have added up."""

    def __init__(self, name):
        super().__init__(name)
        self.model = self.model.to(torch.bfloat16)
        self.masters = [p.detach().float() for p in self.model.parameters()]
        self.optim = torch.optim.AdamW(self.masters, lr=0.02)
        self.extra = {f"{name}.{n} master": m for (n, _), m in zip(self.model.named_parameters(), self.masters)}

    def step(self, step):
        x, y = data(self.name, step)
        loss = (self.model(x.to(torch.bfloat16)).float() - y).square().mean()
        loss.backward()
        if step % 2:
            for p, m in zip(self.model.parameters(), self.masters):
                m.grad = p.grad.float()
            self.optim.step()
            with torch.no_grad():
                for p, m in zip(self.model.parameters(), self.masters):
                    p.copy_(m)
            self.model.zero_grad()
        return loss.item()


class Gan(Kind):
    """The loss of one model leaves gradients in the other, which are zeroed unapplied, in each `every`-th step only."""

    def __init__(self, name, every=2, to_none=True, twice=False):
        super().__init__(name)
        self.every, self.to_none, self.twice = every, to_none, twice
        self.model = {"d": net("d", nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)), "g": net("g", nn.Linear(4, 3))}
        self.optim = {k: torch.optim.Adam(m.parameters(), lr=0.02) for k, m in self.model.items()}

    def zero(self, which):
        self.optim[which].zero_grad(set_to_none=self.to_none)

    def step(self, step):
        d, g, (x, _) = self.model["d"], self.model["g"], data(self.name, step)
        out = 0.0
        if step % self.every == 0:
            self.zero("d")
            real = d(x[:, :3]).exp().mean()
            real.backward()
            fake = d(g(x).detach()).square().mean()
            fake.backward()
            self.optim["d"].step()
            out = real.item() + fake.item()
            if self.twice:
                self.zero("d")
        self.zero("g")
        loss = -d(g(x)).mean()
        loss.backward()
        self.optim["g"].step()
        return out + loss.item()


class Scaled(Kind):
    """A gradient scaler that skips steps; gradients are zeroed at the start of a step."""

    def __init__(self, name):
        super().__init__(name)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 10, growth_interval=2)
        self.stateful = {"scaler": self.scaler}

    def step(self, step):
        self.optim.zero_grad()
        loss = self.loss(step) * (float("inf") if step % 5 == 2 else 1.0)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optim)
        self.scaler.update()
        return self.loss(step).item() + self.scaler.get_scale()


class Pieces(Kind):
    """ZeRO-1: each data-parallel rank's optimizer has a range of each flattened parameter."""
    DP = DP_RANK = None  # of the ranks; one process has no other
    DTYPE, PIECE = torch.float32, torch.float32

    def __init__(self, name):
        super().__init__(name)
        self.model = self.model.to(self.DTYPE)
        dp, rank = (self.DP or 1), (self.DP_RANK or 0)
        for n, p in self.model.named_parameters():
            each = -(-p.numel() // dp)
            start, stop = min(rank * each, p.numel()), min((rank + 1) * each, p.numel())
            if start < stop:
                self.zero1[f"{name}.{n}"] = (start, stop, self.piece(p, start, stop))
        self.optim = torch.optim.AdamW([piece for _, _, piece in self.zero1.values()], lr=0.02, foreach=False)

    def piece(self, p, start, stop):
        return nn.Parameter(p.detach().flatten()[start:stop].to(self.PIECE, copy=True))

    def step(self, step):
        x, y = data(self.name, step)
        loss = (self.model(x.to(self.DTYPE)).float() - y).square().mean()
        loss.backward()
        for n, p in self.model.named_parameters():
            if f"{self.name}.{n}" in self.zero1:
                start, stop, piece = self.zero1[f"{self.name}.{n}"]
                piece.grad = p.grad.flatten()[start:stop].to(self.PIECE)
        self.optim.step()
        for n, p in self.model.named_parameters():
            self.gather(p.detach(), self.zero1.get(f"{self.name}.{n}"))
        self.model.zero_grad()
        return loss.item()

    def gather(self, p, mine):
        whole = torch.zeros_like(p).flatten()
        if mine:
            whole[mine[0]:mine[1]] = mine[2].detach().to(self.DTYPE)
        if (self.DP or 1) > 1:  # the others have zeros there
            torch.distributed.all_reduce(whole)
        p.copy_(whole.view_as(p))


class Masters(Pieces):
    DTYPE = torch.bfloat16


class HalfMasters(Pieces):
    DTYPE, PIECE = torch.float32, torch.float64


class Views(Pieces):
    def piece(self, p, start, stop):
        return nn.Parameter(p.detach().view(-1)[start:stop])

    def gather(self, p, mine):
        if (self.DP or 1) > 1:
            keep = p.flatten()[mine[0]:mine[1]].clone() if mine else None
            p.zero_()
            if mine:
                p.view(-1)[mine[0]:mine[1]] = keep
            torch.distributed.all_reduce(p)


class Micro(Kind):
    """Gradients of several micro-steps add up. No Kind of make(): how many there are, and what is zeroed when, is told."""

    def __init__(self, how, rank=0):
        super().__init__("Micro")
        self.how, self.rank = how, rank
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)

    def step(self, step):
        how, n = self.how, {"skips": 1, "skips, zeroes late": 1, "never zeroes": 1}.get(self.how, 4)
        at = step + (self.rank if how == "ranks differ" else 0)
        if how.split(", ")[-1] in ("zeroes late", "zeroes late in place") and at % n == 0:
            self.optim.zero_grad(set_to_none=not how.endswith("in place"))
        loss = self.loss(step)
        self.scaler.scale(loss * (float("inf") if how.startswith("skips") and step % 3 else 1.0)).backward()
        if at % n == n - 1 and how != "never steps":
            self.scaler.step(self.optim)
            self.scaler.update()
            if "late" not in how and how != "never zeroes":
                self.optim.zero_grad(set_to_none=how != "zeroes in place")
        return loss.item()


def micros(how, rank):
    return {h: Micro(h, rank) for h in (("zeroes", "zeroes late", "zeroes in place", "skips") if how == "all" else (how,))}


def make(dp=None, dp_rank=None):
    """{name: Kind}."""
    Pieces.DP, Pieces.DP_RANK = dp, dp_rank
    names = [f"{o}-{s}" for o, s in zip(itertools.cycle(OPTIMIZERS), SCHEDULES)]
    made = [OfTorch(n) for n in names]
    kinds = [k for k in globals().values() if inspect.isclass(k) and issubclass(k, Kind) and k not in (Kind, OfTorch, Micro)]
    return {k.name: k for k in made + [k(k.__name__) for k in kinds]}


def attached(kinds):
    """Arguments of attach(): all of them in one job, each under its name."""
    out = dict(model={}, optim={}, sched={}, stateful={}, extra={}, zero1={})
    for name, k in kinds.items():
        if isinstance(k.model, list):
            out["model"].update({f"{name}.{i}": m for i, m in enumerate(k.model)})
        else:
            out["model"].update({f"{name}.{part}": m for part, m in k.model.items()} if isinstance(k.model, dict) else
                                {name: k.model})
        out["optim"].update({f"{name}.{part}": o for part, o in k.optim.items()} if isinstance(k.optim, dict) else {name: k.optim})
        if k.sched is not None:
            out["sched"][name] = k.sched
        out["stateful"].update({f"{name} {what}": thing for what, thing in k.stateful.items()})
        out["extra"].update(k.extra)
        out["zero1"].update(k.zero1)
    return out
