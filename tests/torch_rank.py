#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ranks of test_torch.py: real processes under ptcd that build small models with PyTorch's own parallelism.

  torch_rank.py CASE --log DIR [--steps N]

Each rank appends JSON lines to DIR/CASE-gGENERATION-rRANK.jsonl. What a rank finds wrong is an exception, which ends the job.
"""
import argparse
import gc
import json
import os
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import ptc
import ptc.torch
import torch_kinds
import torch_state
from ptc import _held


def local(t):
    return t.to_local() if isinstance(t, DTensor) else t


class Log:
    def __init__(self, args, gen):
        self.file = open(os.path.join(args.log, f"{args.case}-g{gen.generation}-r{gen.rank}.jsonl"), "a", buffering=1)

    def write(self, **line):
        self.file.write(json.dumps(line) + "\n")


# ---- layouts: every kind of placement, whose state after any step is known ---------------------------------------------------


class Values(nn.Module):
    """Parameters without a forward."""

    def __init__(self, **parameters):
        super().__init__()
        for name, p in parameters.items():
            self.register_parameter(name, p)


class Zoo(nn.Module):
    """fill(name) gives a whole tensor."""

    def __init__(self, fill):
        super().__init__()
        make = lambda name: nn.Parameter(fill(name), requires_grad=True)
        linear = lambda name: Values(weight=make(f"{name}.weight"), bias=make(f"{name}.bias"))
        for name in ("plain", "fsdp", "one", "fsdphalf", "strided", "hsdp", "col", "row"):
            self.add_module(name, linear(name))
        # real modules, as parallelize_module wants them
        for name, at in (("col", ColwiseParallel), ("row", RowwiseParallel), ("strided", ColwiseParallel)):
            v = self.get_submodule(name)
            real = nn.Linear(v.weight.shape[1], v.weight.shape[0])
            real.weight, real.bias = v.weight, v.bias
            self.add_module(name, real)
        self.emb = nn.Embedding(11, 4)
        self.emb.weight = make("emb.weight")
        self.dim1 = Values(weight=make("dim1.weight"))
        self.scalar, self.low = make("scalar"), make("low")
        self.tie_a, self.tie_b = nn.Embedding(6, 3), nn.Linear(3, 6, bias=False)
        self.tie_a.weight = self.tie_b.weight = make("tie_a.weight")
        for name, b in torch_state.buffers("zoo", 0).items():
            self.register_buffer(name, b)
        self.register_buffer("angles", torch.arange(4.0), persistent=False)

    def spread(self, gen):
        """As users do it: tensor parallelism first, then FSDP2."""
        mesh = init_device_mesh("cpu", (gen.dp, gen.tp), mesh_dim_names=("dp", "tp"))
        if gen.tp > 1:
            parallelize_module(self, mesh["tp"], {"col": ColwiseParallel(), "row": RowwiseParallel(), "emb": RowwiseParallel(),
                                                  "strided": ColwiseParallel()}, src_data_rank=None)
        for m in (self.fsdp, self.one, self.fsdphalf, self.strided):
            fully_shard(m, mesh=mesh["dp"])
        both = init_device_mesh("cpu", (gen.tp, gen.dp), mesh_dim_names=("replicas", "shards"))
        fully_shard(self.hsdp, mesh=both)
        self.dim1.weight = nn.Parameter(distribute_tensor(self.dim1.weight.detach(), mesh, [Replicate(), Shard(1)]))
        return self


def index_of(name):
    """A tensor that says of each element where it is in the whole one."""
    shape, dtype = torch_state.ZOO[torch_state.ALIASES["zoo"].get(name, name)]
    return torch.arange(max(1, int(np.prod(shape))), dtype=dtype).view(shape)  # all are small enough for bfloat16


def check_boxes(held, where):
    """Each box that ptc would declare has the elements that PyTorch has put there."""
    for name, h in held.items():
        if name not in where:
            continue
        numbers, n = index_of(name), 0
        for offset, extent, here in h.cuts:
            want = numbers[tuple(slice(o, o + e) for o, e in zip(offset, extent))]
            got = h.local[tuple(slice(o, o + e) for o, e in zip(here, extent))]
            assert torch.equal(want, got), (name, offset, extent, want, got)
            n += got.numel()
        assert n == h.local.numel(), (name, n, h.local.shape)
        if isinstance(where[name], DTensor):
            assert torch.equal(where[name].full_tensor(), numbers), name


def check_state(case, step, model, optim, where, names):
    want = torch_state.whole(case, step)
    for name, p in names.items():
        pick = lambda t: t if t.dim() == 0 else t.flatten()[local(where[name]).flatten().long()]
        found = {name: p, **{f"{name}:{f}": v for f, v in optim.state[p].items()}}
        for key, value in found.items():
            mine = local(value.detach()).flatten()
            if step == 0 and ":" in key:  # before the first step PyTorch has none; what ptc makes ahead is all zero
                assert not mine.any(), (key, mine)
                continue
            expected = pick(want[key]).flatten() if value.dim() else want[key].flatten()
            assert mine.dtype == want[key].dtype and torch.equal(mine, expected), (key, step, mine, expected)
    for name, b in model.named_buffers():
        assert name.endswith("angles") or torch.equal(b, want[name.split(".")[-1]]), (name, step, b)


def set_gradients(case, step, names, where):
    for name, p in names.items():
        p.grad = torch.zeros_like(p)
        whole = torch_state.gradient(case, name, step)
        g = local(p.grad)
        g.copy_(whole.flatten()[local(where[name]).flatten().long()].view_as(g) if whole.dim() else whole)


def loop(args, gen, model, optim, case, where, names, **attach):
    """Steps whose gradients are known."""
    log = Log(args, gen)
    restored = gen.attach(model=model, optim=optim, **attach)
    check_state(case, gen.start_step, model, optim, where, names)
    log.write(start=gen.start_step, restored=restored, config=gen.config, fds=len(os.listdir("/proc/self/fd")),
              threads=len(os.listdir("/proc/self/task")), pid=os.getpid())
    bare = {n.split(".")[-1]: b for n, b in model.named_buffers()}
    for step in range(gen.start_step, args.steps):
        if gen.boundary(step):
            return
        time.sleep(args.sleep)
        set_gradients(case, step, names, where)
        optim.step()
        for name, b in torch_state.buffers(case, step + 1).items():
            if name in bare:
                bare[name].copy_(b)
    gen.finish(args.steps)


def case_zoo(args, gen):
    dist.init_process_group("gloo")
    where = Zoo(index_of).spread(gen)
    where = dict(where.named_parameters(remove_duplicate=False)), where
    check_boxes(_held.of_model(where[1], (), {}), where[0])
    model = Zoo(lambda name: torch_state.initial("zoo", name)).spread(gen)
    names = dict(model.named_parameters())
    optim = torch_state.optimizer("zoo", list(names.values()))
    loop(args, gen, model, optim, "zoo", where[0], names)


# ---- a model on meta ------------------------------------------------------------------------------------------------------------


def fill(name, p):
    """Its part of values that depend on its name only."""
    whole = torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(len(name) + 7 * p.dim()))
    with torch.no_grad():
        local(p).copy_(distribute_tensor(whole, p.device_mesh, p.placements).to_local() if isinstance(p, DTensor) else whole)


def net():
    return nn.Sequential(nn.Linear(6, 10, dtype=torch.float64), nn.Tanh(), nn.Linear(10, 3, dtype=torch.float64))


def loss_at(model, step):
    """The same samples on every rank, so that the mean of gradients is the gradient."""
    x = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    return model(x).square().mean()


def meta_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def case_meta(args, gen):
    """FSDP2 over a model on meta, declared there, in memory only then. One rank has a plain model, whose parameters to_empty()
    replaces; DTensors stay what they are."""
    dist.init_process_group("gloo")
    with torch.device("meta"):
        model = net()
    if gen.world > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (gen.world,)))
    dead = meta_optimizer(model)
    gen.declare(model=model, optim=dead)
    assert not dead.state, dead.state
    try:
        raise AssertionError(gen.start_step)
    except ptc.Error as e:
        assert "start_step: it is known after attach()" in str(e), e
    while os.path.exists(os.path.join(args.log, "hold-place")):
        time.sleep(0.01)
    model.to_empty(device="cpu")
    for name, p in model.named_parameters():
        fill(name, p)
    optim = dead if gen.world > 1 else meta_optimizer(model)
    if gen.world == 1:
        try:
            gen.attach(model=model, optim=dead)
            raise AssertionError("a dead optimizer")
        except ptc.Error as e:
            assert "AdamW: it works on 0.weight as that was before to_empty()" in str(e), e
    gen.attach(model=model, optim=optim)
    log = Log(args, gen)
    for step in range(gen.start_step, args.steps):
        if gen.boundary(step):
            return
        time.sleep(args.sleep)
        loss = loss_at(model, step)
        log.write(step=step, loss=loss.item().hex())
        optim.zero_grad()
        loss.backward()
        optim.step()
    gen.finish(args.steps)


# ---- names: wrappers, pipeline stages, tied parameters -----------------------------------------------------------------------


class Inner(nn.Module):  # in an attribute that is called as DDP's is
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch_state.initial("wrap", "module.scale"))


class Stage(nn.Module):
    def __init__(self, first, last):
        super().__init__()
        fill = lambda name: nn.Parameter(torch_state.initial("wrap", name))
        self.module = Inner()
        layers = {}
        for i in range(2):
            if (i == 0 and first) or (i == 1 and last):
                layers[str(i)] = nn.Linear(4, 4)
                layers[str(i)].weight, layers[str(i)].bias = fill(f"layers.{i}.weight"), fill(f"layers.{i}.bias")
        self.layers = nn.ModuleDict(layers)
        if first:
            self.emb = nn.Embedding(9, 4)
            self.emb.weight = fill("emb.weight")
        if last:
            self.head = nn.Linear(4, 9, bias=False)
            self.head.weight = self.emb.weight if first else fill("head.weight")
        for name, b in torch_state.buffers("wrap", 0).items():
            self.register_buffer(name, b)
        self.register_buffer("angles", torch.arange(4.0), persistent=False)

    def forward(self, x):
        return self.head(self.layers["1"](self.layers["0"](self.emb(x))) * self.module.scale)


def case_wrap(args, gen):
    model = Stage(gen.pp_rank == 0, gen.pp_rank == gen.pp - 1)
    names = dict(model.named_parameters())
    if gen.dp > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
    elif gen.pp == 1:
        model = torch.compile(model)
    optim = torch_state.optimizer("wrap", list(names.values()))
    where = {n: torch.arange(p.numel()).view_as(p) for n, p in names.items()}
    tied = ("count", "mask", "module.scale") if args.tied else ()
    loop(args, gen, model, optim, "wrap", where, names, tied=tied)


# ---- what is refused at attach -------------------------------------------------------------------------------------------


class Extra(nn.Linear):
    def get_extra_state(self):
        return {"f": object()}

    def set_extra_state(self, state):
        pass


class Leaves(nn.Linear):
    def __init__(self):
        super().__init__(2, 3)
        self._register_state_dict_hook(self.leave_out)

    @staticmethod
    def leave_out(module, state, prefix, _):
        del state[f"{prefix}bias"]


class Quantized(torch.Tensor):
    pass


class Averaging(torch.optim.AdamW):
    def state_dict(self):
        return {**super().state_dict(), "step": 3}


class Copies(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)
        self._register_state_dict_hook(lambda m, state, *_: state.update(weight=state["weight"] * 2))


def odd_state(piece):
    odd = torch.optim.AdamW([piece])
    odd.state[piece] = {"row": torch.zeros(1, 7)}
    return odd


def refusals(gen):
    """(name, attach's arguments)."""
    mesh = init_device_mesh("cpu", (1,))
    linear = lambda: nn.Linear(2, 3)
    good = linear()
    adam = lambda m: torch.optim.AdamW(m.parameters())
    p = linear()
    p.weight = nn.Parameter(DTensor.from_local(torch.zeros(3, 2), mesh, [Partial()]))
    yield "partial", dict(model=p)
    yield "extra state", dict(model=nn.ModuleDict({"extra": Extra(2, 3)}))
    yield "copy in state dict", dict(model=Copies())
    yield "unknown optimizer", dict(model=good, optim=torch.optim.SparseAdam(good.parameters()))
    yield "lbfgs", dict(model=good, optim=torch.optim.LBFGS(good.parameters()))
    odd = adam(good)
    for q in good.parameters():
        odd.state[q] = {"old": [torch.zeros(1)]}
    yield "list in optimizer", dict(model=good, optim=odd)
    odd = adam(good)
    odd.state["all"] = {"k": 1}
    yield "state of nobody", dict(model=good, optim=odd)
    odd = adam(good)
    odd.state[good.weight] = {0: torch.zeros(()), "0": torch.zeros(())}
    yield "keys of two types", dict(model=good, optim=odd)
    yield "state beside state", dict(model=good, optim=Averaging(good.parameters()))
    averager = averagers.PeriodicModelAverager(period=4, warmup_steps=2)
    yield "averaging", dict(model=good, optim=PostLocalSGDOptimizer(adam(good), averager))
    yield "redundancy", dict(model=good, optim=ZeroRedundancyOptimizer(good.parameters(), torch.optim.AdamW, lr=0.1))
    sharp = torch_kinds.Sharp(good.parameters(), torch.optim.AdamW, lr=0.1)
    for q in good.parameters():
        q.grad = torch.zeros_like(q)
    sharp.step(lambda: [setattr(q, "grad", torch.zeros_like(q)) for q in good.parameters()])
    yield "inner optimizer", dict(model=good, optim=sharp)
    yield "two optimizers", dict(model=good, optim={"a": adam(good), "b": torch.optim.AdamW([good.bias])})
    m = linear()
    yield "unlike optimizers", dict(model=[nn.ModuleDict({"a": good}), nn.ModuleDict({"b": m})],
                                    optim=[adam(good), torch.optim.AdamW(m.parameters(), lr=0.5)])
    one, two = (torch.optim.lr_scheduler.StepLR(adam(good), 2) for _ in range(2))
    two.last_epoch = 7
    yield "unlike schedulers", dict(model=good, sched=[one, two])
    yield "no scheduler", dict(model=good, sched=iter([]))
    yield "no module", dict(model={"a": {}})
    yield "same names", dict(model=[good, linear()])
    yield "dropped name", dict(model=good, dropped="wieght")
    yield "taken name", dict(model=good, stateful={"scheduler": torch.amp.GradScaler("cpu")})
    yield "left out", dict(model=Leaves())
    yield "fsdp1", dict(model=FullyShardedDataParallel(linear(), device_id=torch.device("cpu")))
    m = DistributedDataParallel(linear())
    m.register_comm_hook(powerSGD_hook.PowerSGDState(None), powerSGD_hook.powerSGD_hook)
    yield "power sgd", dict(model=m)
    m = linear()
    m.register_buffer("q", torch.zeros(2).as_subclass(Quantized))
    yield "subclass", dict(model=m)
    yield "lazy", dict(model=nn.LazyLinear(3))
    yield "no optimizer", dict(model=good, optim=good)
    damped = torch.optim.SGD(good.parameters(), lr=0.1, momentum=0.9, dampening=0.5)
    yield "damped", dict(model=good, optim=damped)
    yield "foreign parameter", dict(model=good, optim=adam(linear()))
    m = linear()
    m.register_buffer("z", torch.zeros(2, dtype=torch.complex128))
    yield "dtype", dict(model=m)
    m = linear()
    m.register_buffer("z", torch.zeros(2, 2).to_sparse())
    yield "sparse", dict(model=m)
    yield "device", dict(model=nn.Linear(2, 3, device="meta"))
    yield "not a tensor", dict(extra={"ema": 3})
    yield "name taken", dict(model=good, extra={"weight": torch.zeros(1)})
    odd = adam(good)
    odd.param_groups[0]["filter"] = print
    yield "group option", dict(model=good, optim=odd)
    odd = adam(good)
    odd.param_groups[0]["phase"] = torch.tensor(1j)
    yield "complex option", dict(model=good, optim=odd)
    odd = adam(good)
    odd.param_groups[0]["lr"] = np.float64(0.5)
    yield "numpy number", dict(model=good, optim=odd)
    odd = adam(good)
    for q in good.parameters():
        odd.state[q] = {"step": np.int64(3)}
    yield "optimizer state", dict(model=good, optim=odd)
    m = linear()
    yield "state's shape", dict(zero1={"weight": (0, 3, piece := nn.Parameter(torch.zeros(3)))}, model=m, optim=odd_state(piece))

    class Scheduler(torch.optim.lr_scheduler.LRScheduler):
        def __init__(self):
            pass

        def state_dict(self):
            return {"f": {"g": object()}}
    yield "scheduler", dict(model=good, sched=Scheduler())

    class Large(Scheduler):
        def state_dict(self):
            return {"text": "x" * 300000}
    yield "too large", dict(stateful={"history": Large()})
    few = {f"object {i}": Scheduler() for i in range(40)}
    for thing in few.values():
        thing.state_dict = lambda: {}
    yield "too many", dict(model=good, optim=adam(good), stateful=few, rng={f"stream {i}": torch.Generator() for i in range(25)})
    yield "zero1 name", dict(model=good, optim=adam(good), zero1={"wieght": (0, 6, good.weight)})
    piece = nn.Parameter(torch.zeros(6, dtype=torch.float64))
    odd = torch.optim.AdamW([piece])
    odd.state[piece] = {"master": torch.zeros(6)}
    yield "master", dict(model=good, optim=odd, zero1={"weight": (0, 6, piece)})
    yield "zero1 range", dict(model=good, optim=adam(good), zero1={"weight": (0, 9, good.weight)})


def case_refuse(args, gen):
    dist.init_process_group("gloo")
    log = Log(args, gen)
    for name, arguments in refusals(gen):
        try:
            gen.attach(**arguments)
            raise SystemExit(f"{name}: was not refused")
        except ptc.Error as e:
            log.write(name=name, text=str(e), code=e.code)
    sampler = gen.batch_sampler(range(20), 4, 2)
    try:
        iter(DataLoader(range(20), batch_sampler=sampler, num_workers=1))
        raise SystemExit("samples before attach were not refused")
    except ptc.Error as e:
        log.write(name="early loader", text=str(e), code=e.code)
    model = nn.Linear(2, 3)  # nothing has been declared so far
    gen.attach(model=model, optim=torch.optim.AdamW(model.parameters()), data=sampler)
    try:
        gen.attach(model=model)
        raise SystemExit("a second attach was not refused")
    except ptc.Error as e:
        log.write(name="twice", text=str(e), code=e.code)
    gen.finish(0)


# ---- what is refused later -----------------------------------------------------------------------------------------------


def case_broken(args, gen):
    raise ValueError("as told by the test")


def case_later(args, gen):
    """Trains; a file DIR/do says what goes wrong from then on, DIR/samples how many there are for a dp. A loader has a state of its own."""
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.fill_(1.0), model.bias.fill_(2.0)
    model.register_buffer("angles", torch.zeros(3), persistent=False)
    optim = torch.optim.AdamW(model.parameters())
    told = os.path.join(args.log, "do")
    with open(os.path.join(args.log, "samples")) as f:
        samples = json.load(f)  # {"dp": number}
    sampler = gen.batch_sampler(range(samples[str(gen.dp)]), 4, 2)
    gen.attach(model=model, optim=optim, data=[sampler, ptc.torch.External(Stream(gen.dp, gen.dp_rank), "stream")])
    weight = model.weight.data
    for step in range(gen.start_step, args.steps):
        if gen.boundary(step):
            return
        time.sleep(args.sleep)
        gen.update_begin()
        what = open(told).read() if os.path.exists(told) else ""
        model.angles[0] = 1.0 if what == "buffer" and gen.rank == 1 else 0.0
        model.weight.data = weight.clone() if what == "moved" and gen.rank == 0 else weight
        weight[0, 0] = float(gen.rank) if what == "differ" else 1.0
        if what == "raise" and gen.rank == 1:
            raise ValueError("as told by the test")
        if what == "leave":
            return
    gen.finish(args.steps)


# ---- what is carried beside tensors, and samples -----------------------------------------------------------------------------


class Stream:
    """A loader with a state of its own: of the numbers from first on, each rank takes every dp-th."""

    def __init__(self, dp, dp_rank):
        self.dp, self.dp_rank, self.first, self.taken = dp, dp_rank, 0, torch.zeros(1, dtype=torch.int64)

    def __next__(self):
        self.taken += 1
        return self.first + (int(self.taken) - 1) * self.dp + self.dp_rank

    def state_dict(self):
        return {"first": self.first, "taken": self.taken}

    def load_state_dict(self, state):
        self.first, self.taken = state["first"], state["taken"]

    @staticmethod
    def transform(states, old_dp, dp, dp_rank):
        assert len(states) == old_dp != dp
        return {"first": states[0]["first"] + sum(int(s["taken"]) for s in states), "taken": torch.zeros(1, dtype=torch.int64)}


def case_carry(args, gen):
    log = Log(args, gen)
    model, optim, sched, scaler = torch_state.trainer(gen.dp_rank)
    data = list(range(100))
    # who computes a sample may change from one generation to the next
    by_length = dict(lengths=[i % 13 + i % 7 * 40 for i in data], cost=(6, 1)) if gen.dp == 3 else {}
    sampler = gen.batch_sampler(data, 7, 2, seed=5, **by_length)
    stream = Stream(gen.dp, gen.dp_rank)
    loader = ptc.torch.External(stream, "stream", transform=Stream.transform)
    restored = gen.attach(model=model, optim=optim, sched=sched, data=[sampler, loader], stateful={"scaler": scaler})
    # A loader draws a seed from PyTorch's generator: give it one of its own, and draws do not depend on resizes.
    loader = DataLoader(data, batch_sampler=sampler, num_workers=2, prefetch_factor=4, generator=torch.Generator())
    batches = iter(loader)
    log.write(start=gen.start_step, restored=restored)
    for step in range(gen.start_step, args.steps):
        if gen.boundary(step):
            return
        time.sleep(args.sleep)
        ids = []
        for weights in sampler.weights(step):
            ids += [i for i, w in zip(next(batches).tolist(), weights) if w]
        log.write(step=step, ids=ids, item=next(stream), **torch_state.train(step, model, optim, sched, scaler))
    gen.finish(args.steps)


def case_survive(args, gen):
    """A peer's death shows in a backward pass, or in a wait of its own. What the program does then would spoil its state."""
    dist.init_process_group("gloo")
    beside = DistributedDataParallel(nn.Linear(1, 1))
    model, optim, sched, scaler = torch_state.trainer(gen.dp_rank)
    sampler = gen.batch_sampler(list(range(100)), 7, 2, seed=5)
    gen.attach(model=model, optim=optim, sched=sched, data=sampler, stateful={"scaler": scaler})
    gen.survive()
    log, batches = Log(args, gen), iter(sampler)
    try:
        for step in range(gen.start_step, args.steps):
            if gen.boundary(step):
                return
            log.write(boundary=step)
            time.sleep(args.sleep)
            if args.seen == "backward":
                beside(torch.ones(1, 1)).sum().backward()
            else:
                dist.all_reduce(torch.ones(1))
            ids = []
            for weights in sampler.weights(step):
                ids += [i for i, w in zip(next(batches), weights) if w]
            log.write(step=step, ids=ids, **torch_state.train(step, model, optim, sched, scaler))
    except RuntimeError:
        with torch.no_grad():
            model.weight.fill_(7.0)
        optim.state.clear()
        sched.last_epoch = 1 << 20
        log.write(handled=True)
        if gen.dp_rank == 0:
            raise
        os._exit(9)
    gen.finish(args.steps)


def case_unkept(args, gen):
    """Promises that are not kept: rank 0 clips its weights in place before its optimizer steps; rank 1 has another optimizer, which
    says nothing. Rank 2 keeps its own."""
    model, optim, sched, scaler = torch_state.trainer(gen.dp_rank)
    gen.attach(model=model, optim=optim, sched=sched, stateful={"scaler": scaler})
    gen.survive()
    log = Log(args, gen)
    for step in range(gen.start_step, args.steps):
        if gen.boundary(step):
            return
        time.sleep(args.sleep)
        with torch.no_grad():
            for p in model.parameters():
                if gen.rank == 0 and step == 3:
                    p.clamp_(-0.01, 0.01)
                elif gen.rank == 1:
                    p.sub_(0.01)
        log.write(step=step, **torch_state.train(step, model, optim, sched, scaler))
    gen.finish(args.steps)


def case_stateful(args, gen):
    """torchdata's StatefulDataLoader, which reads ahead in a process of its own, over what is this data-parallel rank's."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    model = Values(weight=nn.Parameter(torch.zeros(3, 2)))
    loader = StatefulDataLoader(range(gen.dp_rank, 30000, gen.dp), batch_size=3, num_workers=1)
    gen.attach(model=model, optim=torch.optim.AdamW(model.parameters()), data=loader)
    log, batches = Log(args, gen), iter(loader)
    for step in range(gen.start_step, args.steps):
        if gen.boundary(step):
            return
        time.sleep(args.sleep)
        log.write(step=step, ids=next(batches).tolist())
    gen.finish(args.steps)


# ---- every kind of state, and gradients ------------------------------------------------------------------------------------


def case_kinds(args, gen):
    dist.init_process_group("gloo")
    kinds = torch_kinds.make(gen.dp, gen.dp_rank)
    gen.attach(**torch_kinds.attached(kinds))
    log = Log(args, gen)
    for step in range(gen.start_step, args.steps):
        if gen.boundary(step):
            return
        time.sleep(args.sleep)
        log.write(step=step, values={name: kind.step(step) for name, kind in kinds.items()})
    gen.finish(args.steps)


def case_micro(args, gen):
    """Micro-steps, with a boundary before each. DIR/do says how."""
    with open(os.path.join(args.log, "do")) as f:
        kinds = torch_kinds.micros(f.read(), gen.rank)
    gen.attach(model={how: k.model for how, k in kinds.items()}, optim={how: k.optim for how, k in kinds.items()},
               stateful={f"{how} scaler": k.scaler for how, k in kinds.items()})
    log = Log(args, gen)
    for step in range(gen.start_step, args.steps):
        if gen.boundary(step):
            return
        time.sleep(args.sleep)
        log.write(step=step, losses={how: kind.step(step) for how, kind in kinds.items()})
    gen.finish(args.steps)


# ---- a warm step leaves no trace ----------------------------------------------------------------------------------------------


def case_warm(args, gen):
    """DDP over a model with batch norm and dropout, a gradient scaler that grows. With --warm a step on other data goes before
    attach(): it makes the optimizer's states, and changes every state that a step changes. Ranks have the same samples, so that their
    batch norms are replicas, and other losses."""
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    model = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    optim = torch.optim.AdamW(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)

    def train(data):
        loss = model(data).square().mean() * (1 + gen.rank)
        scaler.scale(loss).backward()
        scaler.step(optim)
        scaler.update()
        optim.zero_grad()
        return loss.item()

    def warm():
        train(torch.full((4, 6), 3.0))
        model(torch.full((4, 6), 2.0)).sum().backward()  # these gradients would go into the first step

    warmed = bool(args.warm) and gen.warm(warm, model)
    gen.attach(model=model, optim=optim, stateful={"scaler": scaler})
    log = Log(args, gen)
    for step in range(gen.start_step, args.steps):
        if gen.boundary(step):
            return
        time.sleep(args.sleep)
        data = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        loss = train(data)
        log.write(step=step, warmed=warmed, loss=loss.hex(), scale=scaler.get_scale(),
                  mean=[x.hex() for x in model.module[0].running_mean.tolist()])
    gen.finish(args.steps)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("case")
    p.add_argument("--log")
    p.add_argument("--steps", type=int, default=1 << 30)
    p.add_argument("--sleep", type=float, default=0.05)
    p.add_argument("--tied", type=int, default=1)
    p.add_argument("--warm", type=int, default=0)
    p.add_argument("--seen", default="backward", help="where a peer's death shows: in a backward pass, or a collective")
    args = p.parse_args()
    torch.set_num_threads(1)
    case = globals()[f"case_{args.case}"]
    for gen in ptc.torch.generations():
        print(f"generation {gen.generation} incarnation {gen.incarnation} rank {gen.rank} of {gen.world} from step {gen.start_step}", flush=True)
        with gen:
            case(args, gen)
        gc.collect()
    return None if gc.get_freeze_count() else "nothing is left out when this process exits, so others wait for processors"


if __name__ == "__main__":
    sys.exit(main())
