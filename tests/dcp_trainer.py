# SPDX-License-Identifier: Apache-2.0
"""Model and optimizer of test_archive.py.

  dcp_trainer.py train FILE     a rank under ptcd: trains until it is stopped, and then writes its own state dicts to FILE
  dcp_trainer.py load DIR FILE  a process that knows nothing of ptc: plain dcp.load of the checkpoint DIR into a new model and optimizer,
                                whose state dicts have to equal FILE
  dcp_trainer.py straight N FILE  so many steps in one process, without ptc, after which its state dicts have to equal FILE
"""
import os
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def build():
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() == 1], "lr": 0.02, "betas": (0.8, 0.9)}]
    return model, torch.optim.AdamW(groups, lr=0.01)


def one_step(model, optim):
    optim.zero_grad()
    model(torch.randn(16, 6)).square().sum().backward()
    optim.step()
    for group in optim.param_groups:
        group["lr"] *= 0.999


def train(path):
    import ptc.torch
    for gen in ptc.torch.generations():
        with gen:
            model, optim = build()
            gen.attach(model=model, optim=optim)
            step = gen.start_step
            while not gen.boundary(step):
                one_step(model, optim)
                step += 1
            torch.save({"model": model.state_dict(), "optim": optim.state_dict()}, path + "~")
            os.rename(path + "~", path)


def same(a, b, where="state"):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b) and a.dtype == b.dtype, where
    elif isinstance(a, dict):
        assert set(a) == set(b), (where, sorted(map(str, a)), sorted(map(str, b)))
        for k in a:
            same(a[k], b[k], f"{where}.{k}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b) and type(a) is type(b), (where, a, b)
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}[{i}]")
    else:
        assert a == b and type(a) is type(b), (where, a, b)


def load(directory, path):
    model, optim = build()
    one_step(model, optim)  # other values, and a state to load into
    model_state, optim_state = get_state_dict(model, optim)
    state = {"model": model_state, "optim": optim_state}
    dcp.load(state, checkpoint_id=directory)
    set_state_dict(model, optim, model_state_dict=state["model"], optim_state_dict=state["optim"])
    same(torch.load(path), {"model": dict(model.state_dict()), "optim": optim.state_dict()})


def straight(steps, path):
    model, optim = build()
    for _ in range(int(steps)):
        one_step(model, optim)
    same(torch.load(path), {"model": model.state_dict(), "optim": optim.state_dict()})


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"train": train, "load": load, "straight": straight}[sys.argv[1]](*sys.argv[2:])
