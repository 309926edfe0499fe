# SPDX-License-Identifier: Apache-2.0
"""What the state of tests/torch_rank.py's models must be after any step: plain PyTorch on whole tensors, knowing nothing of
ptc and of parallelism. Values and gradients depend on a parameter's name and the step only."""
import hashlib
import random

import numpy as np
import torch

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64

# name -> (shape, dtype) of the parameters
ZOO = {
    "plain.weight": ((3, 5), F32), "plain.bias": ((3,), F32), "scalar": ((), F32), "low": ((3, 4), BF16),
    "col.weight": ((7, 6), F32), "col.bias": ((7,), F32), "row.weight": ((6, 7), F32), "row.bias": ((6,), F32),
    "emb.weight": ((11, 4), F32),
    "fsdp.weight": ((5, 4), F32), "fsdp.bias": ((5,), F32), "one.weight": ((1, 3), F64), "one.bias": ((1,), F64),
    "fsdphalf.weight": ((7, 2), BF16), "fsdphalf.bias": ((7,), BF16),
    "strided.weight": ((12, 4), F32), "strided.bias": ((12,), F32),
    "hsdp.weight": ((5, 3), F32), "hsdp.bias": ((5,), F32), "dim1.weight": ((4, 9), F32),
    "tie_a.weight": ((6, 3), F32),
}
WRAP = {"emb.weight": ((9, 4), F32), "layers.0.weight": ((4, 4), F32), "layers.0.bias": ((4,), F32),
        "layers.1.weight": ((4, 4), F32), "layers.1.bias": ((4,), F32), "module.scale": ((4,), F32)}
ALIASES = {"zoo": {"tie_b.weight": "tie_a.weight"}, "wrap": {"head.weight": "emb.weight"}}
SHAPES = {"zoo": ZOO, "wrap": WRAP}


def values(what, name, shape, dtype):
    seed = int.from_bytes(hashlib.sha256(f"{what} {name}".encode()).digest()[:7], "little")
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def initial(case, name):
    shape, dtype = SHAPES[case][ALIASES[case].get(name, name)]
    return values(case, ALIASES[case].get(name, name), shape, dtype)


def gradient(case, name, step):
    shape, dtype = SHAPES[case][ALIASES[case].get(name, name)]
    return values(f"{case} {step}", ALIASES[case].get(name, name), shape, dtype)


def optimizer(case, parameters):
    if case == "wrap":
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True, foreach=False)
    return torch.optim.AdamW(parameters, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1, amsgrad=True, foreach=False)


def buffers(case, step):
    return {"count": torch.tensor(step, dtype=torch.int64), "mask": (torch.arange(5) + step) % 2 == 0}


def whole(case, steps):
    """{exported name: tensor} after `steps` steps."""
    torch.set_num_threads(1)
    params = {name: torch.nn.Parameter(initial(case, name)) for name in SHAPES[case]}
    optim = optimizer(case, list(params.values()))
    for step in range(steps):
        for name, p in params.items():
            p.grad = gradient(case, name, step)
        optim.step()
    out = dict(buffers(case, steps))
    for name in [*SHAPES[case], *ALIASES[case]]:
        p = params[ALIASES[case].get(name, name)]
        out[name] = p.detach()
        for field, value in optim.state[p].items():
            out[f"{name}:{field}"] = value
    return out


# ---- what a trainer has beside tensors -------------------------------------------------------------------------------------


class Warm:
    """A schedule with a state of its own."""

    def __init__(self):
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return 1.0 / (step + 3)


def trainer(number):
    """Seeds every generator by `number`; model, optimizer, schedule and gradient scaler."""
    torch.manual_seed(100 + number)
    random.seed(200 + number)
    np.random.seed(300 + number)
    model = torch.nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.zero_(), model.bias.zero_()
    optim = torch.optim.AdamW([{"params": [model.weight], "betas": (0.9, 0.95)}, {"params": [model.bias], "lr": 0.3}], lr=0.1)
    sched = torch.optim.lr_scheduler.LambdaLR(optim, [Warm(), lambda step: 0.7 ** step])
    return model, optim, sched, torch.amp.GradScaler("cpu", init_scale=3.0, growth_interval=2)


def train(step, model, optim, sched, scaler):
    """A step; what a rank logs of it."""
    line = {"torch": torch.rand(()).item(), "random": random.random(), "numpy": [np.random.rand(), np.random.randn()],
            "groups": repr([{k: v for k, v in g.items() if k != "params"} for g in optim.param_groups]),
            "last": sched.get_last_lr(), "calls": sched.lr_lambdas[0].calls, "scale": scaler.get_scale(),
            "weight": model.weight.tolist()}
    for p in model.parameters():
        p.grad = torch.full_like(p, 0.1 * (step + 1))
    scaler.scale(torch.zeros(()))
    scaler.step(optim)
    scaler.update()
    sched.step()
    optim.param_groups[1]["betas"] = (0.9 / (step + 1), 0.95)
    return line
