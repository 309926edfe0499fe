#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks for test_probe.py that build as programs do: on a device, with a model that no machine has the memory for.

  probe_torch.py fsdp|meta|ddp|compile cpu|cuda WIDTH
"""
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import init_process_group  # by name, before ptc.torch is there
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import ptc.torch


def make(kind, device, width):
    with torch.device("meta" if kind == "meta" else device):
        model = nn.Sequential(nn.Embedding(1000, width), nn.LayerNorm(width), nn.Linear(width, width), nn.BatchNorm1d(width))
    if kind == "meta":
        model.to_empty(device=device)
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.kaiming_uniform_(p)
            nn.init.trunc_normal_(p)
    return model


def train(gen, kind, device, width):
    init_process_group("nccl" if device == "cuda" else "gloo")
    torch.manual_seed(1)
    rates = [rate.item() for rate in torch.linspace(0, 0.1, 4)]  # a value that is read
    model = make(kind, device, width)
    if kind in ("fsdp", "meta"):
        mesh = init_device_mesh(device, (gen.world,))
        fully_shard(model[2], mesh=mesh)
        fully_shard(model, mesh=mesh)
    if kind == "ddp":
        model = DistributedDataParallel(model)
    if kind == "compile":
        model = torch.compile(model)
    dist.all_reduce(torch.ones(4, device=device))
    dist.barrier()
    dist.new_group([0])
    optim = torch.optim.AdamW(model.parameters(), lr=rates[1], fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(optim, max_lr=0.1, total_steps=100)
    gen.attach(model=model, optim=optim, sched=sched)
    raise AssertionError("a probe does not come here")


if __name__ == "__main__":
    for gen in ptc.torch.generations():
        with gen:
            train(gen, sys.argv[1], sys.argv[2], int(sys.argv[3]))
