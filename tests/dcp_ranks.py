# SPDX-License-Identifier: Apache-2.0
"""Ranks that know nothing of ptc: PyTorch's own torch.distributed.checkpoint, in a process of its own.

  dcp_ranks.py EXPECTED WORLD DO:CHECKPOINT:MESH ...      DO: load or save

EXPECTED is a JSON file: {key: [dtype, shape, file with the tensor's bytes]} with keys such as "model.w" and "optim.state.w.exp_avg". MESH
says how tensors are cut: "whole" (one rank has all), "rows" (dim 0 over the ranks), "columns" (the last dim), "strided" (tensor parallel
rows, cut once more as FSDP does), "transposed" (one rank has all, in another order in its memory).
load: dcp.load into that sharding, and each rank compares its part byte by byte. save: dcp.save of EXPECTED.
"""
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard

DTYPES = {"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "F8_E5M2": torch.float8_e5m2, "F8_E4M3": torch.float8_e4m3fn,
          "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E8M0": torch.float8_e8m0fnu, "I16": torch.int16,
          "U16": torch.uint16, "F16": torch.float16, "BF16": torch.bfloat16, "I32": torch.int32, "U32": torch.uint32, "F32": torch.float32,
          "C64": torch.complex64, "F64": torch.float64, "I64": torch.int64, "U64": torch.uint64}


def whole(dtype, shape, path):
    with open(path, "rb") as f:
        data = bytearray(f.read())
    raw = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return raw.view(DTYPES[dtype]).reshape(shape)


def as_bytes(t):
    return t.contiguous().flatten().view(torch.uint8) if t.numel() else torch.empty(0, dtype=torch.uint8)


def cut(full, mesh, how):
    """(DTensor of this rank's part, the part)."""
    if how == "transposed" and full.dim() > 1:
        return full.transpose(0, -1).contiguous().transpose(0, -1), full
    if how in ("whole", "transposed") or not full.dim():
        return full.clone(), full
    if how == "strided":
        placements = [_StridedShard(0, split_factor=mesh.size(1)), Shard(0)]
        part = full.chunk(mesh.size(1))
        part = part[mesh.get_local_rank(1)] if mesh.get_local_rank(1) < len(part) else full[:0]
        pieces = part.chunk(mesh.size(0))
        part = pieces[mesh.get_local_rank(0)] if mesh.get_local_rank(0) < len(pieces) else part[:0]
    else:
        dim = 0 if how == "rows" else full.dim() - 1
        placements, pieces = [Shard(dim)], full.chunk(mesh.size(0), dim)
        rank = mesh.get_local_rank(0)
        part = pieces[rank] if rank < len(pieces) else full.narrow(dim, 0, 0)
    local = part.contiguous().clone()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=full.shape, stride=full.stride()), part


def nested(flat):
    """{"model": {..}, "optim": {"state": {name: {field: ..}}}} of keys with dots; a field has none."""
    out = {"model": {}, "optim": {"state": {}}}
    for key, value in flat.items():
        if key.startswith("model."):
            out["model"][key[len("model."):]] = value
        else:
            name, field = key[len("optim.state."):].rsplit(".", 1)
            out["optim"]["state"].setdefault(name, {})[field] = value
    return out


def step(rank, world, full, do, checkpoint, how):
    mesh = init_device_mesh("cpu", (2, world // 2) if how == "strided" else (world,))
    tensors = {key: cut(t, mesh, how) for key, t in full.items()}
    state = nested({key: t for key, (t, _) in tensors.items()})
    if do == "save":
        dcp.save(state, checkpoint_id=checkpoint)
        return
    for t, _ in tensors.values():
        local = t.to_local() if isinstance(t, DTensor) else t
        if local.numel():
            local.logical_not_() if local.dtype == torch.bool else local.flatten().view(torch.uint8).fill_(0x5a)
    dcp.load(state, checkpoint_id=checkpoint)
    for key, (t, part) in tensors.items():
        local = t.to_local() if isinstance(t, DTensor) else t
        assert torch.equal(as_bytes(local), as_bytes(part)), f"rank {rank}: {key} differs"


def main(rank, expected, world, steps, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    with open(expected) as f:
        full = {key: whole(*about) for key, about in json.load(f).items()}
    for one in steps:
        step(rank, world, full, *one.split(":"))
    dist.destroy_process_group()


if __name__ == "__main__":
    expected, world, *steps = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="ptc-") as d:
        args = (expected, int(world), steps, os.path.join(d, "store"))
        main(0, *args) if int(world) == 1 else mp.start_processes(main, args, nprocs=int(world), start_method="fork")
