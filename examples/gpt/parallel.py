# SPDX-License-Identifier: Apache-2.0
"""Tensor, pipeline and data parallelism for the GPT: nothing here knows what is trained on. `groups` can be entered again.

A job is a `Job`: degrees and this process's rank. Ranks are numbered tensor-parallel first, then data, then pipeline.
One process needs no process group: `groups` then gives None for the mesh, and everything below does without.
"""
import contextlib
import functools
import gc
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel,
                                               parallelize_module)


@dataclass
class Job:
    tp: int = 1
    pp: int = 1
    dp: int = 1
    rank: int = 0
    number: int = 0     # names the groups of one of several runs in the same processes, over the same store
    store: object = None  # None: the launcher's, as torchrun gives it
    device_type: str = "cpu"
    device: int | None = None  # its number on this node; None: the local rank
    one_device: bool = False  # all ranks share the first device, over gloo

    @classmethod
    def of_launcher(cls, tp, pp, dp, device_type="cpu", one_device=False):
        """This process as torchrun, or any launcher that sets RANK and WORLD_SIZE, started it."""
        world = int(os.environ.get("WORLD_SIZE", 1))
        if world != tp * pp * dp:
            raise SystemExit(f"{world} processes were started, tp {tp} x pp {pp} x dp {dp} needs {tp * pp * dp}")
        return cls(tp, pp, dp, int(os.environ.get("RANK", 0)), device_type=device_type, one_device=one_device)

    @property
    def world(self):
        return self.tp * self.pp * self.dp


def tp_rank(job):
    return job.rank % job.tp


def dp_rank(job):
    return job.rank // job.tp % job.dp


def pp_rank(job):
    return job.rank // (job.tp * job.dp)


def device(job):
    if job.device_type == "cpu":
        return torch.device("cpu")
    local = int(os.environ.get("LOCAL_RANK", 0)) if job.device is None else job.device
    local, here = 0 if job.one_device else local, torch.cuda.device_count()
    if local >= here:  # NCCL does not share a GPU between ranks
        raise SystemExit(f"--device cuda: this rank's is number {local}, PyTorch finds {here} here: see --one-device")
    torch.cuda.set_device(local)
    torch.cuda.init()  # else init_device_mesh() sets the device by LOCAL_RANK
    return torch.device("cuda", local)


@contextlib.contextmanager
def groups(job):
    """The process groups of a run, as a mesh; can be entered again in the same process with another job."""
    if job.one_device and job.pp > 1:
        raise SystemExit("--one-device: gloo does not send device memory from one pipeline stage to the next; use --pp 1")
    if job.world == 1:
        yield None
        return
    gc.collect()  # a model of an earlier run may hang in a cycle, and its mesh with it
    place = device(job)
    store = {"store": dist.PrefixStore(f"run {job.number}", job.store)} if job.store else {}
    backend = "nccl" if place.type == "cuda" and not job.one_device else "gloo"
    dist.init_process_group(backend, rank=job.rank, world_size=job.world, **store)
    try:
        yield init_device_mesh(place.type, (job.pp, job.dp, job.tp), mesh_dim_names=("pp", "dp", "tp"))
    finally:
        dist.destroy_process_group()
        forget_meshes()


def forget_meshes():
    """DTensor caches what it worked out for a mesh, and takes a later mesh of the same ranks and names for the same
    one: it would go on over groups that are gone, and keep their sockets and threads."""
    for cache in [o for o in gc.get_objects() if isinstance(o, functools._lru_cache_wrapper)]:
        if (getattr(cache, "__module__", None) or "").startswith("torch.distributed"):
            cache.cache_clear()
    if hasattr(torch._C, "_clear_DTensor_sharding_propagator_cache"):
        torch._C._clear_DTensor_sharding_propagator_cache()
    with contextlib.suppress(ImportError):  # not in older versions
        from torch.distributed.tensor._redistribute import clear_redistribute_planner_cache
        clear_redistribute_planner_cache()


def layers_of_stage(layers, job):
    """first, last + 1 of this rank's stage; the first stages get one more where it does not divide."""
    each, more = divmod(layers, job.pp)
    stage = pp_rank(job)
    first = stage * each + min(stage, more)
    return first, first + each + (stage < more)


class Gathered(torch.autograd.Function):
    """The whole of what is split over a group in its last dimension, by a sum of zeros and shares: of the collectives that
    DTensor uses, gloo makes only sums for device memory."""

    @staticmethod
    def forward(ctx, share, first, size, group):
        ctx.first, ctx.mine = first, share.shape[-1]
        whole = share.new_zeros(*share.shape[:-1], size)
        whole[..., first:first + ctx.mine] = share
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx, gradient):  # every rank computes the same loss of it
        return gradient[..., ctx.first:ctx.first + ctx.mine].contiguous(), None, None, None


def gather_logits(head, mesh):
    """Has the head, which gives each rank a part of the vocabulary, give whole logits."""
    def whole(module, _, share):
        first = compute_local_shape_and_global_offset(share.shape, share.device_mesh, share.placements)[1][-1]
        return Gathered.apply(share.to_local(), first, share.shape[-1], mesh["tp"].get_group())
    head.register_forward_hook(whole)


def tensor_parallel(model, mesh, job):
    """Splits attention by heads, the MLP by its hidden units, both vocabularies by rows; the rest is replicated."""
    head = {"output_layouts": Shard(-1), "use_local_output": False} if job.one_device else {"output_layouts": Replicate()}
    plan = {
        "tokens": RowwiseParallel(input_layouts=Replicate()),
        "layers.*.attn": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()),
        "layers.*.attn.w[qkv]": ColwiseParallel(),
        "layers.*.attn.wo": RowwiseParallel(),
        "layers.*.mlp.up": ColwiseParallel(),
        "layers.*.mlp.down": RowwiseParallel(),
        "head": ColwiseParallel(**head),
    }
    here = {name: style for name, style in plan.items() if name.startswith("layers") or hasattr(model, name)}
    # Every rank has made the same values, so none has to be sent them.
    parallelize_module(model, mesh["tp"], here, src_data_rank=None)
    if job.one_device:
        gather_logits(model.head, mesh)


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_gradient(p):
    """The gradient of the elements that this rank has; autograd may leave it whole (a split embedding's is)."""
    if isinstance(p, DTensor) and p.grad.placements != p.placements:
        p.grad = p.grad.redistribute(placements=p.placements)
    return local(p.grad)


class Replicated:
    """Data parallelism with all state on every rank."""
    ranges = None

    def __init__(self, model, mesh):
        self.model, self.group = model, mesh and mesh["dp"].get_group()
        self.parameters = dict(model.named_parameters())

    def reduce_gradients(self):
        if not self.group or self.group.size() == 1:
            return
        grads = [local_gradient(p) for p in self.parameters.values()]
        flat = torch.cat([g.flatten() for g in grads])
        dist.all_reduce(flat, group=self.group)
        for g, sum_ in zip(grads, flat.split([g.numel() for g in grads])):
            g.copy_(sum_.view_as(g))

    def gather_parameters(self):
        pass


class Zero1:
    """Replicated parameters; the optimizer's state, and its work, is split over the data-parallel ranks (ZeRO-1).

    The TP-local parameters, flattened one after the other, are cut into equal ranges, one a rank; `parameters` are the
    pieces of this rank's range, `ranges` says where each lies: name -> (start, stop, piece), of that flattened parameter.
    """

    def __init__(self, model, mesh):
        self.group = mesh["dp"].get_group()
        rank, ranks = self.group.rank(), self.group.size()
        self.whole = {name: local(p.detach()) for name, p in model.named_parameters()}
        self.model = dict(model.named_parameters())
        sizes = [p.numel() for p in self.whole.values()]
        each = -(-sum(sizes) // ranks)
        some = next(iter(self.whole.values()))
        self.flat = some.new_zeros(each * ranks)  # the last range may end in padding
        self.flat_grad = torch.zeros_like(self.flat)
        self.mine = self.flat[rank * each:(rank + 1) * each]
        self.grad = torch.zeros_like(self.mine)
        self.parameters, self.ranges, at = {}, {}, 0
        self.flat[:sum(sizes)] = torch.cat([p.flatten() for p in self.whole.values()])
        for (name, p), size in zip(self.whole.items(), sizes):
            start, stop = max(rank * each - at, 0), min((rank + 1) * each - at, size)
            if start < stop:
                begin, end = at + start - rank * each, at + stop - rank * each
                piece = torch.nn.Parameter(self.mine[begin:end])
                piece.grad = self.grad[begin:end]
                self.parameters[name], self.ranges[name] = piece, (start, stop, piece)
            at += size

    def reduce_gradients(self):
        grads = torch.cat([local_gradient(p).flatten() for p in self.model.values()])
        self.flat_grad[:len(grads)] = grads
        dist.reduce_scatter_tensor(self.grad, self.flat_grad, group=self.group)

    def gather_parameters(self):
        dist.all_gather_into_tensor(self.flat, self.mine.clone(), group=self.group)
        at = 0
        for p in self.whole.values():
            p.copy_(self.flat[at:at + p.numel()].view_as(p))
            at += p.numel()


class Sharded:
    """Parameters, gradients and optimizer state split over the data-parallel ranks (FSDP2)."""
    ranges = None

    def __init__(self, model, mesh):
        if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
            raise SystemExit("this PyTorch's FSDP2 needs what NCCL alone has, and does not run on CPUs: "
                             "use a newer one than 2.7")
        for layer in model.layers.values():
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        for m in model.modules():
            if isinstance(m, FSDPModule):  # sums, not means: the loss is divided by the global count already
                m.set_gradient_divide_factor(1.0)
                m.set_force_sum_reduction_for_comms(True)
        self.parameters = dict(model.named_parameters())

    def reduce_gradients(self):
        pass  # the last backward did

    def gather_parameters(self):
        pass


def data_parallel(model, mesh, zero):
    """zero: "0", "1" or "fsdp". The result's `parameters` are what this rank's optimizer works on."""
    if not mesh:
        return Replicated(model, mesh)
    return {"0": Replicated, "1": Zero1, "fsdp": Sharded}[zero](model, mesh)


class Pipeline:
    """Runs the micro-batches of a step, forward and backward; gradients add up."""

    def __init__(self, job, model, mesh, micro_batches, loss):
        self.model, self.loss = model, loss
        self.first, self.last = pp_rank(job) == 0, pp_rank(job) == job.pp - 1
        self.schedule = None
        if job.pp > 1:
            stage = PipelineStage(model, pp_rank(job), job.pp, device(job), group=mesh["pp"].get_group())
            kind = Schedule1F1B if micro_batches >= job.pp else ScheduleGPipe  # the former needs one for each stage
            self.schedule = kind(stage, micro_batches, loss_fn=loss, scale_grads=False)

    def run(self, inputs, targets):
        """This rank's share of the loss, which is 0 where it is not the last stage's."""
        losses = []
        if self.schedule:
            self.schedule.step(*([torch.cat(inputs)] if self.first else []),
                               **({"target": torch.cat(targets), "losses": losses} if self.last else {}))
        else:
            for i, (x, y) in enumerate(zip(inputs, targets)):
                if isinstance(self.model, FSDPModule):
                    self.model.set_requires_gradient_sync(i == len(inputs) - 1)
                losses.append(self.loss(self.model(x), y))
                losses[-1].backward()
        return torch.stack(losses).detach().sum() if losses else torch.zeros(())


def total_loss(share, mesh):
    """The global batch's loss, on ranks of the last stage."""
    if mesh:
        dist.all_reduce(share, group=mesh["dp"].get_group())
    return share.item()


def clip_gradients(job, data, model, mesh, limit):
    """Scales the gradients so that their norm over the whole model is at most `limit`; returns the norm.

    Each element counts once: a rank adds those that no rank before it has too.
    """
    whole = dict(model.named_parameters())
    total = torch.zeros((), dtype=torch.float64)
    for name, p in data.parameters.items():
        over = set()  # what it is split over; FSDP's split of a split dimension is no is_shard()
        if isinstance(whole[name], DTensor):
            over = {dim for dim, placement in zip(whole[name].device_mesh.mesh_dim_names, whole[name].placements)
                    if not placement.is_replicate()}
        if isinstance(data, Zero1):
            over.add("dp")
        if ("tp" in over or tp_rank(job) == 0) and ("dp" in over or dp_rank(job) == 0):
            total += local_gradient(p).double().square().sum().cpu()
    if mesh:
        total = total.to(device(job))
        dist.all_reduce(total)
    norm = total.sqrt().item()
    if norm > limit:
        for p in data.parameters.values():
            local(p.grad).mul_(limit / norm)
    return norm
