#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What one would do without ptc to change a training's shape: save by torch.distributed.checkpoint, end, start torchrun again at
the other shape, load. One such run of the GPT of examples/gpt.

  torchrun --nproc-per-node N pause_peer.py --tp T --pp P --dp D --times FILE [--load DIR] [--save DIR] --steps N

Rank 0 appends to FILE the seconds (CLOCK_MONOTONIC, which all processes share) at which each of its steps ended, and at which all
was saved. Only time is of interest: the data is made up. Failure modes: a rank's traceback, exit 1."""
import argparse
import json
import os
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "examples", "gpt"))
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402

import data  # noqa: E402
import parallel  # noqa: E402
from model import GPT, Config  # noqa: E402

MICRO_BATCH, BATCH = 5, 20


def options():
    p = argparse.ArgumentParser()
    for name in ("tp", "pp", "dp", "steps"):
        p.add_argument(f"--{name}", type=int, required=True)
    p.add_argument("--times", required=True)
    p.add_argument("--load")
    p.add_argument("--save")
    return p.parse_args()


def main():
    args = options()
    torch.set_num_threads(1)
    job = parallel.Job.of_launcher(args.tp, args.pp, args.dp)
    config = Config()
    with parallel.groups(job) as mesh:
        model = GPT(config, *parallel.layers_of_stage(config.layers, job)).to(torch.float64)
        model.initialize(1, config.layers)
        if job.tp > 1:
            parallel.tensor_parallel(model, mesh, job)
        sync = parallel.data_parallel(model, mesh, "0")
        optim = torch.optim.AdamW(sync.parameters.values(), lr=1e-3, foreach=False)
        micro_batches = -(-BATCH // (MICRO_BATCH * job.dp))
        tokens = BATCH * config.context

        def loss(logits, target):
            return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=data.IGNORE, reduction="sum") / tokens
        pipeline = parallel.Pipeline(job, model, mesh, micro_batches, loss)
        if args.load:
            weights, moments = get_state_dict(model, optim)
            dcp.load({"model": weights, "optim": moments}, checkpoint_id=args.load)
            set_state_dict(model, optim, model_state_dict=weights, optim_state_dict=moments)
        ended = []
        for step in range(args.steps):
            torch.manual_seed(step)
            text = torch.randint(0, 256, (MICRO_BATCH, config.context + 1))
            share = pipeline.run([text[:, :-1]] * micro_batches, [text[:, 1:]] * micro_batches)
            sync.reduce_gradients()
            optim.step()
            sync.gather_parameters()
            model.zero_grad()
            if pipeline.last:
                parallel.total_loss(share, mesh)
            dist.barrier()
            ended.append(time.monotonic())
        if args.save:
            weights, moments = get_state_dict(model, optim)
            dcp.save({"model": weights, "optim": moments}, checkpoint_id=args.save)
            dist.barrier()
        if job.rank == 0:
            with open(args.times, "a") as f:
                f.write(json.dumps({"steps": ended, "saved": time.monotonic()}) + "\n")


main()
