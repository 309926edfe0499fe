# SPDX-License-Identifier: Apache-2.0
"""The rule sets for Megatron against its own GPTModel, built for every rank; and buffers that rules give against what its
distributed optimizer computes for the same parameters.

Megatron's code makes models, buffers and each rank's ranges of them, on the CPU; its process groups are only asked how many
they are and which of them this one is.
"""
import importlib.util
import json
import random
import types
import unittest
import warnings
from unittest import mock

import harness
import megatron_model
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


BASE = {"num_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "ffn_hidden_size": 64}
LLAMA = BASE | {"num_query_groups": 2, "gated_linear_unit": True, "add_bias_linear": False, "normalization": "RMSNorm", "tied": False}
MOE = {"num_moe_experts": 8, "moe_ffn_hidden_size": 16}
MLA = {"multi_latent_attention": True, "q_lora_rank": 16, "kv_lora_rank": 8, "qk_head_dim": 8, "qk_pos_emb_head_dim": 4,
       "v_head_dim": 8, "qk_layernorm": True}
DEEPSEEK = LLAMA | MOE | MLA | {"num_query_groups": None, "moe_layer_freq": [0, 1, 1, 1], "moe_shared_expert_intermediate_size": 32,
                                "moe_shared_expert_gate": True, "mtp_num_layers": 1}
DENSE_AT, MOE_AT = ("tp=2,pp=2,dp=2", "tp=2,pp=2,vpp=2,cp=2"), ("tp=2,pp=2,dp=2,ep=2,etp=1", "tp=2,dp=4,ep=4,etp=1", "tp=2,pp=2,ep=2,dp=4,etp=2")
# name: options of TransformerConfig (and of the model: tied, positions), configurations
MODELS = {
    "gpt, tied": (BASE | {"positions": "learned_absolute"}, DENSE_AT),
    "gpt, untied": (BASE | {"tied": False, "add_qkv_bias": True}, DENSE_AT),
    "llama": (LLAMA | {"qk_layernorm": True}, DENSE_AT),
    "experts with biases": (BASE | MOE, MOE_AT[:2]),
    "experts, gated": (LLAMA | MOE, MOE_AT),
    "experts in one tensor": (BASE | MOE | {"add_bias_linear": False, "moe_grouped_gemm": True, "moe_use_legacy_grouped_gemm": True}, MOE_AT),
    "experts in one tensor, gated": (LLAMA | MOE | {"moe_grouped_gemm": True, "moe_use_legacy_grouped_gemm": True}, MOE_AT[2:]),
    "latent attention": (LLAMA | MLA | {"num_query_groups": None, "q_lora_rank": None}, DENSE_AT[:1]),
    "deepseek": (DEEPSEEK, MOE_AT)}


@unittest.skipUnless(importlib.util.find_spec("megatron"), "no Megatron: scripts/venv --torch")
@harness.labels("repeats")
class Models(harness.Case):
    """Each parameter of each rank of each model: is it there, which elements of the whole has it in which order, and
    which of these does the rank's optimizer own, with one bucket and with small ones?"""

    def job(self, gated, ranks):
        shapes = {name: shape for held in ranks for name, shape, _, _ in held}
        with open(self.path("job.yaml"), "w") as f:
            json.dump({"version": 1, "name": "m", "rules": ["megatron_swiglu", "megatron_gpt"] if gated else "megatron_gpt",
                       "tensors": [{"name": n, "dtype": "F32", "shape": list(s)} for n, s in shapes.items()]}, f)
        return sorted(shapes, key=str.encode)

    def compare(self, what, names, ranks, got, part):
        """How many parameters of ranks there are; part: what of the elements should be there, by the last column."""
        if isinstance(got, str):
            self.fail(f"{what}: {got}")
        wrong, pairs = [], 0
        for rank, held in enumerate(ranks):
            want = {name: elements[part(owned)] for name, _, elements, owned in held}
            ours = {names[i]: a.reshape(-1) for (r, i), a in got.items() if r == rank}
            wrong += [(rank, n) for n in want.keys() | ours.keys()
                      if not np.array_equal(want.get(n, ()), ours.get(n, ())) or (n in want) != (n in ours)]
            pairs += len(want)
        self.assertEqual([], sorted(wrong), f"{what}: of {pairs}")
        return pairs

    def test_models(self):
        pairs = 0
        with Dump() as dump:
            for model, (options, configs) in MODELS.items():
                for config in configs:
                    degrees = {k: int(v) for k, v in (d.split("=") for d in config.split(","))}
                    ranks = megatron_model.all_ranks(options, degrees, (None, 2000))
                    names, what = self.job(options.get("gated_linear_unit"), ranks), f"{model}, {config}"
                    dump.job(self.path("job.yaml"), 0)
                    pairs += self.compare(what, names, ranks, dump.layout(None, config), lambda owned: slice(None))
                    for bucket in (None, 2000):
                        dump.job(self.path("job.yaml"), bucket or 0)
                        self.compare(f"{what}, bucket {bucket}", names, ranks, dump.layout(None, config + ",zero=3,shard=buffer"),
                                     lambda owned: slice(*owned[bucket]))
        print(pairs, "parameters of ranks compared")


@unittest.skipUnless(LONG, "set PTC_TEST_LONG=1; Megatron takes its time to be imported")
@harness.labels("repeats")
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
