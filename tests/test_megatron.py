# SPDX-License-Identifier: Apache-2.0
"""Buffers that rules give against what Megatron's own distributed optimizer computes for the same parameters.

Megatron's code makes the buffer and each rank's ranges of it, on the CPU; its process groups are only asked how many they
are and which of them this one is.
"""
import random
import types
import unittest
import warnings
from unittest import mock

import harness
import numpy as np
import state as states
from harness import LONG
from test_layout import Dump, spec_of


class Group:
    def __init__(self, size, rank):
        self.sizes, self.number = size, rank

    def size(self):
        return self.sizes

    def rank(self):
        return self.number


def megatron_ranges(shapes, dp, rank, bucket, busbw):
    """{name: (first, end)} of the flattened parameters that this rank's optimizer owns."""
    import torch
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.distributed import param_and_grad_buffer as buffers
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    group = Group(dp, rank)
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes.values()]
    names = dict(zip(params, shapes))
    config = DistributedDataParallelConfig(use_distributed_optimizer=True, bucket_size=bucket,
                                           pad_buckets_for_high_nccl_busbw=busbw)
    with mock.patch.object(torch.cuda, "current_device", lambda: "cpu"), \
            mock.patch.object(buffers, "log_on_each_pipeline_stage"):
        buffer = buffers._ParamAndGradBuffer(config, torch.float32, torch.float32, params, group, bucket, names, 1.0,
                                             list(range(len(params))), False,
                                             types.SimpleNamespace(dp_cp=group, tp=Group(1, 0)))
    found = {}
    for buckets in DistributedOptimizer._build_gbuf_range_map(buffer).values():
        for one in buckets:
            for p, ranges in one["param_map"].items():
                found[names[p]] = (ranges["param"].start, ranges["param"].end)
    return found


@unittest.skipUnless(LONG, "set PTC_TEST_LONG=1; Megatron takes its time to be imported")
class Megatron(harness.Case):
    @harness.needs(modules=("torch", "megatron"))
    def test_distributed_optimizer(self):
        warnings.simplefilter("ignore")
        rng, cut, empty, ranks = random.Random(self.seed), 0, 0, 0
        with Dump() as dump:
            for case in range(300):
                shapes = {f"p{i}": tuple(rng.randint(1, 40) for _ in range(rng.randint(1, 2)))
                          for i in range(rng.randint(1, 12))}
                dp, busbw = rng.choice((1, 2, 3, 4, 5, 8, 12)), rng.random() < 0.2
                bucket = rng.choice((None, rng.randint(1, 3000)))
                state = states.State({})
                for name, shape in shapes.items():
                    count = int(np.prod(shape))
                    state.tensors["param"][name] = states.Tensor("F32", shape, np.arange(1, count + 1).reshape(shape))
                buffers = {"order": list(shapes), "reverse": "true", "align": 64, "pad": 65536 if busbw else 128}
                if bucket:
                    buffers["bucket"] = bucket
                what = f"case {case}: {shapes}, dp {dp}, bucket {bucket}, pad {buffers['pad']}"
                got = dump.layout(spec_of(state, [{"match": "*"}], buffers), f"dp={dp},zero=3,shard=buffer")
                self.assertIsInstance(got, dict, f"{what}: {got}")
                for rank in range(dp):
                    want = megatron_ranges(shapes, dp, rank, bucket, busbw)
                    ours = {name: (int(a.flat[0]), int(a.flat[-1]) + 1) for i, name in enumerate(sorted(shapes))
                            if (a := got.get((rank, i))) is not None and a.size}
                    self.assertEqual(want, ours, f"{what}, rank {rank}")
                    cut += sum(b - a < np.prod(shapes[n]) for n, (a, b) in want.items())
                    empty += not want
                    ranks += 1
        print(f"{ranks} ranks, {cut} parameters cut, {empty} ranks with none")
        self.assertTrue(cut and empty)
