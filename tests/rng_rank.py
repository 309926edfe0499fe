#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ranks of test_rng.py. Each appends JSON lines to DIR/CASE-gGENERATION-rRANK.jsonl.

  rng_rank.py streams --log DIR     draws from generators of every kind in each step
  rng_rank.py dropout --log DIR     trains a network with dropout of residuals and, but for --plain 1, inside of the tensor-parallel region
"""
import argparse
import contextlib
import gc
import hashlib
import json
import os
import random
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import ptc.torch
import rng_oracle

WIDTH, HIDDEN, BATCH, LAYERS, P = 6, 8, 8, 2, 0.25


class Tracker:
    """As Megatron's, for the CPU's generator: states that are swapped in while a region runs."""

    def __init__(self):
        self.states = {}

    def add(self, name, seed):
        self.states[name] = torch.Generator().manual_seed(seed).get_state()

    def get_states(self):
        return dict(self.states)

    def set_states(self, states):
        self.states = states

    @contextlib.contextmanager
    def fork(self, name="model-parallel-rng"):
        outside = torch.get_rng_state()
        torch.set_rng_state(self.states[name])
        try:
            yield
        finally:
            self.states[name] = torch.get_rng_state()
            torch.set_rng_state(outside)


def log_of(args, gen):
    return open(os.path.join(args.log, f"{args.case}-g{gen.generation}-r{gen.rank}.jsonl"), "a", buffering=1)


def place_of(gen):
    return gen.tp_rank, gen.pp_rank, gen.dp_rank, gen.cp_rank


def write(log, gen, **line):
    log.write(json.dumps({"place": place_of(gen), "pid": os.getpid(), "seed": int(os.environ["PTC_SEED"]), **line}) + "\n")


# ---- streams: generators of every kind ------------------------------------------------------------------------------------


def case_streams(args, gen):
    if gen.tp > 1:
        dist.init_process_group("gloo")
    seed = lambda name: rng_oracle.own_seed(name, gen.generation, place_of(gen))
    torch.manual_seed(seed("torch"))
    random.seed(seed("python"))
    np.random.seed(seed("numpy"))
    masks = Tracker()
    for key in ("data-parallel-rng", "model-parallel-rng"):
        masks.add(key, seed(f"masks/{key}"))
    aug, noise, shuffle = (rng_oracle.make(name, seed(name)) for name in ("aug", "noise", "shuffle"))
    weight = torch.zeros(3)
    gen.attach(extra={"weight": weight}, tied=("weight",),
               rng={"aug": aug, "noise": (noise, "differ"), "shuffle": (shuffle, ptc.torch.DIFFER), "masks": masks})
    log = log_of(args, gen)
    for step in range(gen.start_step, args.steps):
        if gen.boundary(step):
            return
        time.sleep(args.sleep)
        tracked = {}
        for key in masks.get_states():
            with masks.fork(key):
                tracked[f"masks/{key}"] = rng_oracle.draw(torch.default_generator)
        write(log, gen, step=step, drawn={
            "torch": rng_oracle.draw(torch.default_generator), "numpy": [np.random.rand(), np.random.randn()],
            "python": [random.random(), random.gauss(0, 1), random.randrange(1 << 20)], **tracked,
            **{name: rng_oracle.draw(g) for name, g in (("aug", aug), ("noise", noise), ("shuffle", shuffle))}})
        gen.update_begin()
        weight += 1
    gen.finish(args.steps)


# ---- dropout: a network whose masks are looked at ---------------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)


class Net(nn.Module):
    """Values depend on names only. inside(t): dropout of what a tensor-parallel rank has of the hidden units."""

    def __init__(self, inside):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1)
        self.inside, self.masks = inside, []
        self.double()
        with torch.no_grad():
            for name, p in self.named_parameters():
                number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "little")
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(number), dtype=p.dtype) * 0.5)

    def forward(self, x):
        for layer in self.layers:
            h = self.inside(F.gelu(layer.up(x)))
            y = F.dropout(torch.ones_like(x), P) * layer.down(h)
            self.masks.append(y == 0)
            x = x + y
        return self.head(self.norm(x))


def batch(step):
    g = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, WIDTH, generator=g, dtype=torch.float64), torch.randn(BATCH, 1, generator=g, dtype=torch.float64)


def optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=0.02, foreach=False)


def inside_of(tracker, masks, plain):
    def inside(h):
        if plain:
            return h
        with tracker.fork():
            mask = F.dropout(torch.ones_like(h), P)
        masks.append(mask == 0)
        return h * mask
    return inside


def packed(masks):
    return [np.packbits(m.numpy().astype(bool)).tobytes().hex() for m in masks]


def build(gen, tracker, inner, plain):
    model = Net(inside_of(tracker, inner, plain))
    mesh = init_device_mesh("cpu", (gen.dp, gen.tp), mesh_dim_names=("dp", "tp")) if gen.world > 1 else None
    if gen.tp > 1:
        plan = {"layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()}
        parallelize_module(model, mesh["tp"], plan, src_data_rank=None)
    if gen.dp > 1:
        fully_shard(model, mesh=mesh["dp"])
        for m in model.modules():
            if isinstance(m, FSDPModule):
                m.set_gradient_divide_factor(1.0)
                m.set_force_sum_reduction_for_comms(True)
    return model, mesh


def case_dropout(args, gen):
    if gen.world > 1:
        dist.init_process_group("gloo")
    tracker, inner = Tracker(), []
    model, mesh = build(gen, tracker, inner, args.plain)
    optim = optimizer(model)
    # the program's own seeds, which count where the job begins and nowhere else; there those of a tensor-parallel group's rank 0
    torch.manual_seed(rng_oracle.own_seed("torch", gen.generation, place_of(gen)) + 17 * gen.tp_rank)
    tracker.add("model-parallel-rng", rng_oracle.own_seed("masks/model-parallel-rng", gen.generation, place_of(gen)))
    gen.attach(model=model, optim=optim, **({} if args.plain else {"rng": {"masks": tracker}}))
    log, mine = log_of(args, gen), BATCH // gen.dp
    for step in range(gen.start_step, args.steps):
        if gen.boundary(step):
            return
        time.sleep(args.sleep)
        x, y = (t[gen.dp_rank * mine:(gen.dp_rank + 1) * mine] for t in batch(step))
        model.masks.clear(), inner.clear()
        loss = F.mse_loss(model(x), y, reduction="sum") / BATCH
        optim.zero_grad()
        loss.backward()
        optim.step()
        total = loss.detach().clone()
        if gen.dp > 1:
            dist.all_reduce(total, group=mesh["dp"].get_group())
        write(log, gen, step=step, loss=total.item(), residual=packed(model.masks), inside=packed(inner))
    gen.finish(args.steps)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("case")
    p.add_argument("--log")
    p.add_argument("--steps", type=int, default=1 << 30)
    p.add_argument("--sleep", type=float, default=0.05)
    p.add_argument("--plain", type=int, default=0)
    args = p.parse_args()
    torch.set_num_threads(1)
    for gen in ptc.torch.generations():
        with gen:
            globals()[f"case_{args.case}"](args, gen)
        gc.collect()


if __name__ == "__main__":
    sys.exit(main())
