#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""train_plain.py as a job of ptc: its parallelism changes while it runs (`ptcctl run -f gpt.yaml`; `ptcctl resize gpt
--gpus 4`). The difference between the two files is all there is to it; --tp, --pp and --dp are the configuration's.
"""
import argparse
import json
import math
import os

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import ptc.torch
import data
import parallel
from model import GPT, Config


def options(argv=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tp", type=int, default=1)
    p.add_argument("--pp", type=int, default=1)
    p.add_argument("--dp", type=int, default=1)
    p.add_argument("--zero", choices=["0", "1", "fsdp"], default="0")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--one-device", action="store_true", help="all ranks share one device, over gloo")
    p.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--global-batch", type=int, default=20)
    p.add_argument("--micro-batch", type=int, default=5)
    p.add_argument("--records", type=int, default=510, help="records of the text in an epoch")
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--warmup", type=int, default=10)
    p.add_argument("--clip", type=float, default=0.0, help="largest norm of the gradient; 0: any")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--text", help="a UTF-8 file (default: the Python language reference)")
    p.add_argument("--out", help="folder for loss and sample ids, one JSON line a step and rank that computes them")
    return p.parse_args(argv)


def optimizer(args, model, parameters):
    """AdamW; weight decay for matrices only; a linear warm-up and a cosine down to a tenth."""
    matrix = {name for name, p in model.named_parameters() if p.dim() > 1}
    optim = torch.optim.AdamW(
        [{"params": [p for name, p in parameters.items() if name in matrix], "weight_decay": 0.1},
         {"params": [p for name, p in parameters.items() if name not in matrix], "weight_decay": 0.0}],
        lr=args.lr, betas=(0.9, 0.95), foreach=False)

    def factor(step):
        if step < args.warmup:
            return (step + 1) / args.warmup
        done = min(1.0, (step - args.warmup) / max(1, args.steps - args.warmup))
        return 0.55 + 0.45 * math.cos(math.pi * done)
    return optim, torch.optim.lr_scheduler.LambdaLR(optim, factor)


def train(args, job, gen):
    with parallel.groups(job) as mesh:
        config = Config()
        device = parallel.device(job)
        model = GPT(config, *parallel.layers_of_stage(config.layers, job)).to(device, getattr(torch, args.dtype))
        model.initialize(args.seed, config.layers)
        if job.tp > 1:
            parallel.tensor_parallel(model, mesh, job)
        sync = parallel.data_parallel(model, mesh, args.zero)
        optim, sched = optimizer(args, model, sync.parameters)

        records = data.Records(data.text(args.text), config.context, args.records)
        sampler = gen.batch_sampler(records, args.global_batch, args.micro_batch, seed=args.seed, pad=data.PAD)
        batches = iter(DataLoader(records, batch_sampler=sampler))
        tokens = args.global_batch * config.context

        def loss(logits, target):  # padding has no targets; the shares of all micro-batches add up to the mean
            return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=data.IGNORE,
                                   reduction="sum") / tokens
        pipeline = parallel.Pipeline(job, model, mesh, sampler.micro_batches, loss)

        def one_step(inputs, targets):
            share = pipeline.run([x.to(device) for x in inputs], [y.to(device) for y in targets])
            sync.reduce_gradients()
            if args.clip:
                parallel.clip_gradients(job, sync, model, mesh, args.clip)
            optim.step()
            sync.gather_parameters()
            model.zero_grad()
            return parallel.total_loss(share, mesh) if pipeline.last else None

        log = None
        if args.out and pipeline.last and parallel.tp_rank(job) == 0:
            log = open(os.path.join(args.out, f"rank-{job.rank}.jsonl"), "a", buffering=1)
        gen.warm(lambda: one_step(*data.blank(records, args.micro_batch, sampler.micro_batches)), model)
        gen.attach(model=model, optim=optim, sched=sched, data=sampler, zero1=sync.ranges)
        gen.survive(together=True)
        for step in range(gen.start_step, args.steps):
            if gen.boundary(step): return
            ids, inputs, targets = zip(*(next(batches) for _ in range(sampler.micro_batches)))
            lr, value = sched.get_last_lr()[0], one_step(inputs, targets)
            sched.step()
            if pipeline.last:
                gen.report(loss=value)
                if log:
                    samples = [i for i in torch.cat(ids).tolist() if i != data.PAD]
                    line = {"step": step, "run": job.number, "loss": value, "lr": lr, "samples": samples}
                    log.write(json.dumps(line) + "\n")
        if log:
            log.close()
        gen.finish(args.steps)


def main():
    args = options()
    torch.set_num_threads(1)
    if args.out:
        os.makedirs(args.out, exist_ok=True)
    for gen in ptc.torch.generations():
        with gen: train(args, parallel.Job(gen.tp, gen.pp, gen.dp, gen.rank, gen.generation, gen.store, args.device, gen.device, args.one_device), gen)


if __name__ == "__main__":
    main()
