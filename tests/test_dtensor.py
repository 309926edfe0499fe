# SPDX-License-Identifier: Apache-2.0
"""Boxes that rules give against what PyTorch's own DTensor and FSDP2 give for the same shape, mesh and placements.

DTensor's side is arithmetic (placements split a tensor of element numbers); FSDP2's is real fully_shard over
parallelize_module on the fake backend and the meta device, so no device and no peer is needed.
"""
import collections
import importlib.util
import multiprocessing
import random
import unittest

import harness
import numpy as np
import state as states
from test_layout import Dump, spec_of

CASES = harness.size(100, 200, 400)
TORCH = importlib.util.find_spec("torch") is not None


def state_of(shapes):
    s = states.State({})
    for name, shape in shapes.items():
        s.tensors["param"][name] = states.Tensor("F32", shape, np.arange(int(np.prod(shape))).reshape(shape))
    return s


def chunk_sizes(size, ways):
    """Of torch.chunk, without empty ones."""
    piece = -(-size // ways)
    return [min(piece, size - at) for at in range(0, size, piece)]


@unittest.skipUnless(TORCH, "no PyTorch: scripts/venv --torch")
@harness.labels("repeats")
class DTensor(harness.Case):
    AXES = ("dp", "cp", "tp") # mesh dims, slowest first, as the default rank order has them

    def random_case(self, rng):
        """(shape, mesh, placements, our splits). A tensor dim that several mesh dims shard is cut left to right (Shard
        only), or right to left (_StridedShard on all but the last), as FSDP over TP does."""
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.placement_types import _StridedShard
        shape = tuple(rng.randint(1, 13) for _ in range(rng.randint(1, 3)))
        mesh = [rng.randint(1, 4) for _ in self.AXES]
        where = [rng.choice((None, *range(len(shape)))) for _ in mesh]
        backward = {d: rng.random() < 0.6 for d in range(len(shape))}
        placements, splits = [], []
        for i, d in enumerate(where):
            later = [k for k in range(i + 1, len(mesh)) if where[k] == d]
            if d is None:
                placements.append(Replicate())
            elif backward[d] and later:
                placements.append(_StridedShard(d, split_factor=int(np.prod([mesh[k] for k in later]))))
            else:
                placements.append(Shard(d))
        for d in range(len(shape)):
            axes = [i for i, x in enumerate(where) if x == d]
            ways = int(np.prod([mesh[i] for i in axes[1:]]))
            if backward[d] and len(axes) > 1 and shape[d] % ways:
                # DTensor then means less than FSDP over TP does: chunks of the first dim cut by themselves, in two steps
                if len(axes) > 2:
                    return self.random_case(rng)
                splits.append({"axis": self.AXES[axes[0]], "dim": d, "kind": "ceil", "blocks": chunk_sizes(shape[d], ways)})
                splits.append({"axis": self.AXES[axes[1]], "dim": d, "kind": "ceil"})
            else:
                order = reversed(axes) if backward[d] else axes
                splits += [{"axis": self.AXES[i], "dim": d, "kind": "ceil"} for i in order]
        return shape, mesh, placements, splits

    def test_placements(self):
        import torch
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
        rng, ranks, strided, uneven = random.Random(self.seed), 0, 0, 0
        with Dump() as dump:
            for _ in range(CASES):
                shape, mesh, placements, splits = self.random_case(rng)
                what = f"{shape} on {mesh}: {placements}, {splits}"
                rules = [{"match": "w", **({"split": splits} if splits else {})}]
                got = dump.layout(spec_of(state_of({"w": shape}), rules), f"dp={mesh[0]},cp={mesh[1]},tp={mesh[2]}")
                self.assertIsInstance(got, dict, f"{what}: {got}")
                strided += any("Strided" in repr(p) for p in placements)
                uneven += len({a.shape for a in got.values()}) > 1
                for rank in range(int(np.prod(mesh))):
                    at, want = np.unravel_index(rank, mesh), torch.arange(int(np.prod(shape))).reshape(shape)
                    for placement, ways, c in zip(placements, mesh, at):
                        if placement != Replicate():
                            want = placement._split_tensor(want, ways, with_padding=False)[0][c]
                    local, offset = _compute_local_shape_and_global_offset(shape, mesh, [int(c) for c in at], placements)
                    mine = got[rank, 0]
                    self.assertEqual(tuple(local), mine.shape, f"{what}: rank {rank}")
                    self.assertTrue(np.array_equal(want.numpy(), mine), f"{what}: rank {rank}: {want} {mine}")
                    if mine.size:
                        first = np.unravel_index(int(mine.reshape(-1)[0]), shape)
                        self.assertEqual(tuple(offset), tuple(int(i) for i in first), f"{what}: rank {rank}")
                    ranks += 1
        self.assertTrue(strided > CASES // 20 and uneven > CASES // 3, f"{strided} strided, {uneven} uneven")
        print(f"{CASES} cases, {ranks} ranks, {strided} strided, {uneven} uneven")

    def test_fsdp(self):
        """fully_shard with and without TP and replicas, uneven shards among them."""
        for module in ("fsdp", "tensor.parallel"): # so that the children need not
            importlib.import_module(f"torch.distributed.{module}")
        importlib.import_module("torch.testing._internal.distributed.fake_pg")
        rng, tensors, context = random.Random(self.seed), 0, multiprocessing.get_context("fork")
        with Dump() as dump:
            for _ in range(harness.size(6, 15, 40)):
                replicas, shards, tp = rng.randint(1, 2), rng.randint(1, 4), rng.choice((1, 2, 3))
                wide, narrow = tp * rng.randint(1, 7), tp * rng.randint(1, 7)
                rank = rng.randrange(replicas * shards * tp)
                config = f"tp={tp},dp={replicas * shards},zero=3,shard=dim0" + (f",replicas={replicas}" if replicas > 1 else "")
                # a process each: device meshes are cached beyond destroy_process_group, with the old rank's coordinate
                ours, theirs = context.Pipe(duplex=False)
                child = context.Process(target=fsdp_boxes, args=(theirs, replicas, shards, tp, wide, narrow, rank))
                child.start()
                theirs.close()
                held = ours.recv()
                child.join()
                rules = [{"match": "up.*", "split": {"axis": "tp", "dim": 0}},
                         {"match": "down.weight", "split": {"axis": "tp", "dim": 1}}, {"match": "*"}]
                got = dump.layout(spec_of(state_of({n: shape for n, (shape, *_) in held.items()}), rules), config)
                self.assertIsInstance(got, dict, f"{config}: {got}")
                for item, name in enumerate(sorted(held)):
                    shape, actual, local, offset, placements = held[name]
                    mine, what = got[rank, item], f"{config}: rank {rank}: {name} {shape} {placements}"
                    self.assertEqual(actual, mine.shape, what)
                    self.assertEqual(local, mine.shape, what)
                    if mine.size:
                        first = np.unravel_index(int(mine.reshape(-1)[0]), shape)
                        self.assertEqual(offset, tuple(int(i) for i in first), what)
                    tensors += 1
        print(f"{tensors} parameters compared")


    def test_flat_parameters(self):
        """FSDP1: which range of each original parameter this rank's part of a unit's flat parameter holds."""
        importlib.import_module("torch.distributed.fsdp")
        importlib.import_module("torch.testing._internal.distributed.fake_pg")
        rng, tensors, context = random.Random(self.seed), 0, multiprocessing.get_context("fork")
        patterns = ("emb.*", "norm.weight", "norm.bias", "layers.{}.a.weight", "layers.{}.a.bias", "layers.{}.b.weight")
        with Dump() as dump:
            for _ in range(harness.size(8, 15, 40)):
                world, sizes = rng.randint(1, 6), [rng.randint(1, 9) for _ in range(3)]
                rank = rng.randrange(world)
                ours, theirs = context.Pipe(duplex=False)
                child = context.Process(target=flat_ranges, args=(theirs, world, rank, sizes))
                child.start()
                theirs.close()
                held = ours.recv()
                child.join()
                rules = [{"match": "layers.*", "layer": "layers.{}.*"}, {"match": "*"}]
                spec = spec_of(state_of({n: shape for n, (shape, _) in held.items()}), rules,
                               {"order": list(patterns), "unit": "layer", "align": 4}) # 16 bytes of F32
                got = dump.layout(spec, f"dp={world},zero=3,shard=buffer")
                self.assertIsInstance(got, dict, got)
                for item, name in enumerate(sorted(held)):
                    shape, (first, count) = held[name]
                    mine = got[rank, item].reshape(-1)
                    what = f"rank {rank} of {world}, sizes {sizes}: {name} {shape}"
                    self.assertEqual(mine.tolist(), list(range(first, first + count)), what)
                    tensors += 1
        print(f"{tensors} parameters compared")


def flat_ranges(pipe, world, rank, sizes):
    """In a process of its own: {parameter: (shape, (first element, elements))}."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    from torch.testing._internal.distributed.fake_pg import FakeStore

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(sizes[0], sizes[1]), torch.nn.Linear(sizes[1], sizes[0], bias=False)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.norm = torch.nn.Embedding(sizes[2], sizes[0]), torch.nn.LayerNorm(sizes[0])
            self.layers = torch.nn.ModuleList([Block(), Block()])

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    net = Net()
    shapes = {n: tuple(p.shape) for n, p in net.named_parameters()}
    wrapped = FullyShardedDataParallel(net, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"),
                                       use_orig_params=True)
    out = {}
    for prefix, module in wrapped.named_modules():
        if not isinstance(module, FullyShardedDataParallel):
            continue
        flat = module._handle.flat_param
        for name, info in zip(flat._fqns, flat._shard_param_infos):
            full = ".".join(x for x in f"{prefix}.{name}".split(".") if x and x != "_fsdp_wrapped_module")
            first = info.intra_param_start_idx if info.in_shard else 0
            out[full] = (shapes[full], (first, info.numel_in_shard if info.in_shard else 0))
    pipe.send(out)
    pipe.close()


def fsdp_boxes(pipe, replicas, shards, tp, wide, narrow, rank):
    """In a process of its own: {parameter: (global shape, local shape, DTensor's local shape and offset, placements)}."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=replicas * shards * tp)
    mesh = init_device_mesh("cpu", (replicas, shards, tp), mesh_dim_names=("replicate", "shard", "tp"))
    with torch.device("meta"):
        model = torch.nn.Sequential(collections.OrderedDict(
            up=torch.nn.Linear(narrow, wide), down=torch.nn.Linear(wide, narrow), norm=torch.nn.LayerNorm(narrow)))
    if tp > 1:
        parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["replicate", "shard"] if replicas > 1 else mesh["shard"])
    out = {}
    for name, p in model.named_parameters():
        local, offset = compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)
        out[name] = (tuple(p.shape), tuple(p.to_local().shape), tuple(local), tuple(offset), repr(p.placements))
    pipe.send(out)
    pipe.close()


if __name__ == "__main__":
    unittest.main()
