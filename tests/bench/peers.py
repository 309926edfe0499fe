#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What one would write without ptc to carry a state from tp2,pp2,dp2 on 8 processes to tp4 on 4 of them, on this machine.

  peers.py --gib G --dir TMPFS [--rounds N] [--systems dcp,gloo,safetensors]

The state is that of bench_state.py, except that a fused qkv is cut as one block. Prints one JSON document: seconds of every round,
the first of which is the first call in a process. Every destination tensor is compared with what it must be, between rounds.
  dcp          torch.distributed.checkpoint: save, then load into the new shards
  safetensors  each process writes its shards; the new ones read what they need with get_slice
  gloo         isend/irecv of the overlapping parts, which is all that moves
Needs torch, numpy and safetensors. Failure modes: a process that fails ends all (its traceback is on stderr), exit 1."""
import argparse
import json
import os
import shutil
import socket
import sys
import tempfile
import time
import warnings
import zlib
from datetime import timedelta

sys.dont_write_bytecode = True
warnings.filterwarnings("ignore")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import bench_state as state  # noqa: E402

TP, PP, DP = 2, 2, 2
WORLD, NEW = TP * PP * DP, 4
DTYPES = {"BF16": (torch.bfloat16, torch.int16), "F32": (torch.float32, torch.int32)}


class Tensor:
    def __init__(self, name, field, shape, stage):
        self.name = name + ("" if field == "param" else f":{field}")
        self.shape, self.kind = shape, state.FIELDS[field]
        self.dtype, self.bits = DTYPES[self.kind]
        self.stage = stage
        matrix = len(shape) == 2 or name.endswith(("qkv.bias", "mlp.up.bias"))
        self.dim = (1 if name.endswith(("attn.out.weight", "mlp.down.weight")) else 0) if matrix else None

    def span(self, parts, part):
        """Begin and end along dim of one part."""
        each = self.shape[self.dim] // parts
        return part * each, (part + 1) * each

    def cut(self, whole, parts, part):
        if self.dim is None:
            return whole
        begin, end = self.span(parts, part)
        return whole.narrow(self.dim, begin, end - begin).contiguous()

    def whole(self):
        n = state.elements(self.shape)
        v = torch.arange(n, dtype=torch.int32) * 40503 + zlib.crc32(self.name.encode()) % 65521
        return v.to(self.bits).view(self.dtype).reshape(self.shape)

    def empty(self, parts):
        shape = list(self.shape)
        if self.dim is not None:
            shape[self.dim] //= parts
        return torch.zeros(shape, dtype=self.dtype).fill_(1)


def tensors(gib):
    _, shapes = state.shapes(int(gib * (1 << 30)))
    layers = sum(n.endswith(".norm1.weight") for n in shapes)
    out = []
    for name, shape in shapes.items():
        stage = int(name.split(".")[1]) // (layers // PP) if name.startswith("h.") else 0 if name.startswith("embed") else PP - 1
        out += [Tensor(name, field, shape, stage) for field in state.FIELDS]
    return out


class Peer:
    """One process: an old rank (rank order tp-dp-pp), and one of the new ones too if its number is below 4."""

    def __init__(self, rank, args):
        self.rank, self.args = rank, args
        self.tp, self.dp, self.pp = rank % TP, rank // TP % DP, rank // TP // DP
        self.tensors = tensors(args.gib)
        self.old = {t.name: t.cut(t.whole(), TP, self.tp) for t in self.tensors if t.stage == self.pp}
        self.new = {t.name: t.empty(NEW) for t in self.tensors} if rank < NEW else {}
        self.few = dist.new_group(list(range(NEW)))

    def timed(self, *steps):
        """Seconds of each step, over all processes; then what has come is checked and made wrong again."""
        out = []
        for step in steps:
            dist.barrier()
            began = time.monotonic()
            step()
            dist.barrier()
            out.append(time.monotonic() - began)
        for t in self.tensors if self.new else ():
            want, got = t.cut(t.whole(), NEW, self.rank), self.new[t.name]
            if not torch.equal(want.view(t.bits), got.view(t.bits)):
                raise SystemExit(f"peers.py: {t.name} is not what it was on rank {self.rank}")
            got.fill_(1)
        return out

    # ---- torch.distributed.checkpoint

    def dtensors(self, mine, mesh, placements):
        from torch.distributed.tensor import DTensor, Replicate, Shard
        out = {}
        for t in self.tensors:
            if t.name in mine:
                at = [Replicate() if p is None or t.dim is None else Shard(t.dim) for p in placements]
                out[t.name] = DTensor.from_local(mine[t.name], mesh, at, run_check=False)
        return out

    def dcp(self, path):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
        if not hasattr(self, "mesh"):
            self.mesh = init_device_mesh("cpu", (PP, DP, TP), mesh_dim_names=("pp", "dp", "tp"))["dp", "tp"]
            self.new_mesh = DeviceMesh.from_group(self.few, "cpu") if self.new else None
        old = self.dtensors(self.old, self.mesh, (None, "tp"))
        new = self.dtensors(self.new, self.new_mesh, ("tp",)) if self.new else None
        return self.timed(lambda: dcp.save(old, checkpoint_id=path),
                          lambda: dcp.load(new, checkpoint_id=path, process_group=self.few) if self.new else None)

    # ---- safetensors

    def safetensors_save(self, path):
        from safetensors.torch import save_file
        os.makedirs(path, exist_ok=True)
        if self.dp == 0:
            save_file(self.old, f"{path}/pp{self.pp}-tp{self.tp}.safetensors")

    def safetensors_load(self, path):
        from safetensors import safe_open
        files = {}
        for t in self.tensors if self.new else ():
            for src, begin, end, at in self.overlaps(t, self.rank):
                key = f"pp{t.stage}-tp{src}"
                if key not in files:
                    files[key] = safe_open(f"{path}/{key}.safetensors", "pt").__enter__()
                piece = files[key].get_slice(t.name)
                piece = piece[:] if t.dim is None else piece[begin:end] if t.dim == 0 else piece[:, begin:end]
                place = self.new[t.name] if t.dim is None else self.new[t.name].narrow(t.dim, at, end - begin)
                place.copy_(piece)
        for f in files.values():
            f.__exit__(None, None, None)

    def safetensors(self, path):
        return self.timed(lambda: self.safetensors_save(path), lambda: self.safetensors_load(path))

    # ---- gloo

    @staticmethod
    def overlaps(t, new):
        """(old tp rank, begin and end in its shard, place in the new shard)"""
        if t.dim is None:
            return [(new % TP, 0, 0, 0)]
        begin, end = t.span(NEW, new)
        out = []
        for tp in range(TP):
            b, e = t.span(TP, tp)
            if max(b, begin) < min(e, end):
                out.append((tp, max(b, begin) - b, min(e, end) - b, max(b, begin) - begin))
        return out

    def exchange(self):
        works, later, held = [], [], []
        for tag, t in enumerate(self.tensors):
            for new in range(NEW):
                for tp, begin, end, at in self.overlaps(t, new):
                    ranks = [tp + TP * dp + TP * DP * t.stage for dp in range(DP)]
                    src = new if new in ranks else ranks[new // (NEW // DP)]
                    if self.rank not in (src, new):
                        continue
                    piece = place = None
                    if self.rank == src:
                        piece = self.old[t.name] if t.dim is None else self.old[t.name].narrow(t.dim, begin, end - begin)
                    if self.rank == new:
                        place = self.new[t.name] if t.dim is None else self.new[t.name].narrow(t.dim, at, end - begin)
                    if src == new:
                        place.copy_(piece)
                    elif self.rank == src:
                        held.append(piece.contiguous().view(torch.uint8))
                        works.append(dist.isend(held[-1], new, tag=tag * TP + tp))
                    elif place.is_contiguous():
                        works.append(dist.irecv(place.view(torch.uint8), src, tag=tag * TP + tp))
                    else:
                        buffer = torch.empty(place.shape, dtype=place.dtype)
                        works.append(dist.irecv(buffer.view(torch.uint8), src, tag=tag * TP + tp))
                        later.append((works[-1], place, buffer))
        for work in works:
            work.wait()
        for _, place, buffer in later:
            place.copy_(buffer)

    def gloo(self, path):
        return self.timed(self.exchange)


def process(rank, args, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD,
                            timeout=timedelta(seconds=600))
    peer, out = Peer(rank, args), {}
    for system in args.systems.split(","):
        out[system] = []
        for _ in range(args.rounds + 1):
            path = os.path.join(args.work, system)
            out[system].append(getattr(peer, system)(path))
            dist.barrier()
            if rank == 0:
                shutil.rmtree(path, ignore_errors=True)
            dist.barrier()
    if rank == 0:
        size = sum(state.elements(t.shape) * state.SIZES[t.kind] for t in peer.tensors)
        print(json.dumps({"version": 1, "torch": torch.__version__, "bytes": size, "seconds": out}), flush=True)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gib", type=float, default=1)
    p.add_argument("--dir", required=True)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--systems", default="dcp,safetensors,gloo")
    args = p.parse_args()
    with tempfile.TemporaryDirectory(prefix="ptc-bench-", dir=args.dir) as args.work:
        port, children, failed = free_port(), [], False
        for rank in range(WORLD):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    process(rank, args, port)
                    code = 0
                except BaseException as e:  # noqa: BLE001
                    print(f"peers.py: rank {rank}: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
                finally:
                    os._exit(code)
            children.append(pid)
        while children:
            pid, status = os.wait()
            children.remove(pid)
            if status and not failed:
                failed = True
                for other in children:
                    os.kill(other, 9)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
