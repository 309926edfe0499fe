# SPDX-License-Identifier: Apache-2.0
"""What Megatron-core's own GPTModel has on each rank, as its distributed checkpoints describe it.

A model is built on the CPU for one rank after the other, over process groups that only know their sizes. Each parameter
is filled with the numbers of its elements on the rank; model.sharded_state_dict() then says where each of them lies in
the whole tensor, and Megatron's own DistributedDataParallel and distributed optimizer say which of them the rank's
optimizer owns. Nothing here is known from ptc.
"""
import logging
import re
import warnings
from unittest import mock

import numpy as np

DEGREES = {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
           "ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size"}
VOCAB = 300 # rows that mean something


def sharded_parts(value):
    """The ShardedTensors of one entry of a sharded state dict: one, or several where a factory cuts it."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensor
    if isinstance(value, ShardedTensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [p for v in value for p in sharded_parts(v)] if isinstance(value, list) else []


def whole_name(name, part):
    """The tensor's name with numbers that count over all ranks: those that the sharded tensor has as its first axes, layer
    and expert, or that its key spells out. Where two stages share a tensor, both get the key."""
    numbers = [int(n) for n in part.global_offset[:part.prepend_axis_num]]
    if "layers." not in name:
        return part.key
    if spelled := re.search(r"layers\.(\d+)\.", part.key):
        numbers.insert(0, int(spelled[1]))
    holes = re.split(r"(?<=layers\.)\d+|(?<=local_experts\.)\d+", name)
    assert len(holes) == len(numbers) + 1, (name, part)
    return "".join(a + b for a, b in zip(holes, [*map(str, numbers), ""]))


def placed(name, param, parts):
    """(name, shape of the whole, for each element of the rank's tensor its number in the whole; -1: padding)."""
    held = np.full(param.numel(), -2)
    for part in parts:
        lead = part.prepend_axis_num
        shape, offset = list(part.global_shape[lead:]), part.global_offset[lead:]
        grid = list(np.ix_(*(np.arange(o, o + n) for o, n in zip(offset, part.data.shape))))
        padding = False
        if part.key.split(".")[0] in ("embedding", "output_layer") and shape[0] > VOCAB:
            padding, shape[0] = grid[0] >= VOCAB, VOCAB
        if re.search(r"experts\.weight[12]$", name): # [experts, in, out] in memory, turned round for a checkpoint
            grid[1:], shape[1:] = grid[:0:-1], shape[:0:-1]
        number = np.zeros((1,) * len(shape), dtype=np.int64)
        for g, n in zip(grid, shape):
            number = number * n + g
        at = part.data.detach().numpy().astype(np.int64)
        assert (held[at] == -2).all(), name
        held[at] = np.where(padding, -1, number)
    assert (held != -2).all(), name
    return whole_name(name, parts[0]), tuple(shape), held


def owned(model, config, bucket):
    """{parameter: (first, end)} of its elements that the rank's distributed optimizer has."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.distributed import distributed_data_parallel, param_and_grad_buffer
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=bucket is not None, bucket_size=bucket,
                                        grad_reduce_in_fp32=True)
    for p in model.parameters(): # Megatron makes them views of its buffer, and no others
        p.data = p.data.clone()
    with mock.patch.object(param_and_grad_buffer, "log_on_each_pipeline_stage"), mock.patch.object(distributed_data_parallel, "log_single_rank"):
        wrapped = DistributedDataParallel(config, ddp, model, disable_bucketing=bool(getattr(model, "vp_stage", 0)))
    found = {}
    for buffer in wrapped.buffers + wrapped.expert_parallel_buffers:
        for buckets in DistributedOptimizer._build_gbuf_range_map(buffer).values():
            for one in buckets:
                found |= {p: (r["param"].start, r["param"].end) for p, r in one["param_map"].items()}
    return found


def layer_spec(config, vp_stage):
    from megatron.core.models.gpt import gpt_layer_specs as specs
    if config.num_moe_experts is not None and not isinstance(config.moe_layer_freq, int):
        return specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=config.normalization,
                                                vp_stage=vp_stage)
    return specs.get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts, moe_grouped_gemm=config.moe_grouped_gemm, qk_layernorm=config.qk_layernorm,
        multi_latent_attention=config.multi_latent_attention, normalization=config.normalization,
        moe_use_legacy_grouped_gemm=config.moe_use_legacy_grouped_gemm)


def build(config, tied, positions, vp_stage):
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs
    from megatron.core.transformer.identity_op import IdentityOp
    spec = layer_spec(config, vp_stage)
    for layer in getattr(spec, "layer_specs", [spec]): # no kind has parameters; that without Transformer Engine refuses much
        layer.submodules.self_attention.submodules.core_attention = IdentityOp
    mtp = gpt_layer_specs.get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False, vp_stage=vp_stage) \
        if config.mtp_num_layers else None
    step = 128 * config.tensor_model_parallel_size
    return GPTModel(
        config, spec, vocab_size=-(-VOCAB // step) * step, max_sequence_length=16, position_embedding_type=positions,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=vp_stage is None, vp_stage=vp_stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=vp_stage is None, vp_stage=vp_stage),
        share_embeddings_and_output_weights=tied, mtp_block_spec=mtp, vp_stage=vp_stage)


def rank_model(options, degrees, rank, world, buckets):
    """[(name, shape, elements, {bucket size: (first, end) that its optimizer owns})] of one rank."""
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.dist_checkpointing.mapping import apply_factories
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.moe import experts
    from torch.testing._internal.distributed.fake_pg import FakeStore
    options, vpp, out = dict(options), degrees.get("vpp"), []
    tied, positions = options.pop("tied", True), options.pop("positions", "rope")
    sizes = {DEGREES[a]: n for a, n in degrees.items() if a in DEGREES}
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    # what a device would be asked for: where things are made, and to move a tied embedding there before it is reduced
    with mock.patch.object(torch.cuda, "current_device", lambda: "cpu"), mock.patch.object(torch.Tensor, "cuda", lambda t: t), \
            mock.patch.object(torch, "compile", lambda f, **_: f), mock.patch.object(experts.gg, "assert_grouped_gemm_is_available"), \
            mock.patch.object(multi_latent_attention, "TELinear", ()):
        try:
            parallel_state.initialize_model_parallel(**sizes, virtual_pipeline_model_parallel_size=vpp, create_gloo_process_groups=False)
            kind = MLATransformerConfig if options.get("multi_latent_attention") else TransformerConfig
            config = kind(**options, **sizes, virtual_pipeline_model_parallel_size=vpp, use_cpu_initialization=True, perform_initialization=False,
                          pipeline_dtype=torch.float32)
            for vp_stage in range(vpp) if vpp else (None,):
                model = build(config, tied, positions, vp_stage)
                for p in model.parameters():
                    p.data = torch.arange(p.numel(), dtype=torch.float32).reshape(p.shape)
                sharded = model.sharded_state_dict(metadata={"dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)})
                apply_factories(sharded)
                places = {n: placed(n, p, sharded_parts(sharded[n])) for n, p in model.named_parameters()}
                ranges = {bucket: owned(model, config, bucket) for bucket in buckets}
                out += [(*places[n], {b: ranges[b].get(p, (0, 0)) for b in buckets}) for n, p in model.named_parameters()]
        finally:
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()
    return out


def all_ranks(options, degrees, buckets=(None,)):
    """rank_model of every rank."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    world = degrees.get("tp", 1) * degrees.get("pp", 1) * degrees.get("dp", 1) * degrees.get("cp", 1)
    return [rank_model(options, degrees, rank, world, buckets) for rank in range(world)]
