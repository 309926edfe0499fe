# SPDX-License-Identifier: Apache-2.0
"""Small models of Hugging Face's own classes: names and shapes of what they hold in memory and of what they save, and how
their classes' tensor-parallel plans cut it. Models are made on the meta device and have no data."""
import re
import warnings

SIZE = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "intermediate_size": 96, "vocab_size": 131} # a vocabulary that nothing divides
MIXER = {"inner": 128, "mamba": 16, "heads": 8, "bc": 16, "state": 8, "head": 16}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_expand": 2}


def without(*keys, **more):
    return {k: v for k, v in SIZE.items() if k not in keys} | more


EXPERTS = {"num_experts": 8, "moe_intermediate_size": 32}
DEEPSEEK = without("head_dim", num_key_value_heads=4, n_routed_experts=8, moe_intermediate_size=32, first_k_dense_replace=1, kv_lora_rank=16,
                   qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, n_group=2, topk_group=1, num_experts_per_tok=2)
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 3, "num_decoder_layers": 5, "num_heads": 4, "vocab_size": 131}
# name: rules, configuration class, its values
MODELS = {
    "llama": ({"use": "llama", "head": 16}, "LlamaConfig", SIZE),
    "llama, tied": ({"use": "llama", "head": 16}, "LlamaConfig", SIZE | {"tie_word_embeddings": True}),
    "qwen2": ({"use": "llama", "head": 16}, "Qwen2Config", SIZE),
    "qwen3": ({"use": "qwen3", "head": 16}, "Qwen3Config", SIZE),
    "qwen3, tied": ({"use": "qwen3", "head": 16}, "Qwen3Config", SIZE | {"tie_word_embeddings": True}),
    "qwen3 moe": ({"use": "qwen3_moe", "head": 16}, "Qwen3MoeConfig", SIZE | EXPERTS | {"mlp_only_layers": [0]}),
    "qwen2 moe": ({"use": "qwen3_moe", "head": 16}, "Qwen2MoeConfig", without("head_dim", shared_expert_intermediate_size=48) | EXPERTS),
    "mixtral": ({"use": "mixtral", "head": 16}, "MixtralConfig", SIZE | {"num_local_experts": 8}),
    "gemma": ({"use": "gemma", "head": 16}, "GemmaConfig", SIZE),
    "gemma 2": ({"use": "gemma", "head": 16}, "Gemma2Config", SIZE),
    "gemma 3": ({"use": "gemma", "head": 16}, "Gemma3TextConfig", SIZE),
    "deepseek v3": ({"use": "deepseek_v3", "qk": 24, "kv": 32, "v": 16}, "DeepseekV3Config", DEEPSEEK | {"q_lora_rank": 24}),
    "deepseek v2 lite": ({"use": "deepseek_v3", "qk": 24, "kv": 32, "v": 16}, "DeepseekV3Config", DEEPSEEK | {"q_lora_rank": None}),
    "gpt neox": ({"use": "gpt_neox", "head": 16, "qkv": 48}, "GPTNeoXConfig", without("num_key_value_heads", "head_dim")),
    "t5": ({"use": "t5", "head": 16}, "T5Config", T5),
    "t5 1.1": ({"use": "t5", "head": 16}, "T5Config", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "bamba": ({"use": "mamba2", **MIXER}, "BambaConfig", without("head_dim", attn_layer_indices=[2], **MAMBA)),
    "falcon h1": ({"use": "mamba2", **MIXER}, "FalconH1Config", SIZE | MAMBA | {"mamba_d_ssm": 128}),
    "granite hybrid": ({"use": "mamba2", **MIXER}, "GraniteMoeHybridConfig",
                       without("head_dim", layer_types=["mamba", "mamba", "attention", "mamba"], num_local_experts=8, shared_intermediate_size=48,
                               **MAMBA)),
    "nemotron h": ({"use": "mamba2", **MIXER}, "NemotronHConfig",
                   SIZE | {"layers_block_type": ["mamba", "mlp", "attention", "moe"], "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2,
                           "ssm_state_size": 8, "n_routed_experts": 8, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48}),
    "mamba 2": ({"use": "mamba2", **MIXER}, "Mamba2Config",
                {"num_hidden_layers": 4, "hidden_size": 64, "num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 8, "vocab_size": 131}),
    "llama 4": (["moe_grouped_in_out", {"match": "*.feed_forward.shared_expert.[gu]*_proj.weight", "split": {"axis": "tp", "dim": 0}, "layer": "model.layers.{}.*"},
                 {"match": "*.feed_forward.shared_expert.down_proj.weight", "split": {"axis": "tp", "dim": 1}, "layer": "model.layers.{}.*"},
                 {"match": "*.feed_forward.[gu]*_proj.weight", "split": {"axis": "tp", "dim": 0}, "layer": "model.layers.{}.*"},
                 {"match": "*.feed_forward.down_proj.weight", "split": {"axis": "tp", "dim": 1}, "layer": "model.layers.{}.*"},
                 {"match": "*.router.weight", "split": {"axis": "none"}, "layer": "model.layers.{}.*"}, {"use": "llama", "head": 16}],
                "Llama4TextConfig", SIZE | {"intermediate_size_mlp": 96, "num_local_experts": 8, "interleave_moe_layer_step": 2}),
}


def build(name):
    """The model, on the meta device."""
    import torch
    import transformers
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    _, kind, values = MODELS[name]
    config = getattr(transformers, kind)(**values)
    make = transformers.T5ForConditionalGeneration if kind == "T5Config" else transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        return make(config)


def shapes(model):
    """{name: shape} of parameters and buffers that are state, tied ones once, under the name that is not an alias."""
    import torch
    persistent = model.state_dict(keep_vars=True)
    tied = {}
    for alias, source in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        tied[alias] = source
    return {n: tuple(t.shape) for n, t in persistent.items() if n not in tied and isinstance(t, torch.Tensor)}


def saved(model):
    """{name: shape} as the class would write it: an expert has tensors of its own."""
    import torch
    from transformers.core_model_loading import revert_weight_conversion
    held = {n: torch.empty(s, device="meta") for n, s in shapes(model).items()}
    return {n: tuple(t.shape) for n, t in revert_weight_conversion(model, held).items()}


def planned(model, name):
    """The dim over which the class's plan cuts a parameter and in how many blocks: (dim, blocks), None where it is whole, False where the plan
    says nothing."""
    plan = {f"{model.base_model_prefix}.{k}": v for k, v in (getattr(model.config, "base_model_tp_plan", None) or {}).items()}
    plan |= dict(getattr(model, "_tp_plan", None) or {})
    for pattern, style in plan.items():
        if not re.fullmatch(re.escape(pattern).replace(r"\*", "[0-9]+") + r"(\.weight|\.bias)?", name):
            continue
        ndim = len(model.state_dict()[name].shape)
        dims = {"colwise": (-2, 1), "packed_colwise": (-2, 2), "rowwise": (-1, 1), "packed_rowwise": (-1, 2), "colwise_gather_output": (-2, 1),
                "embedding_rowwise": (-2, 1)}
        if style not in dims:
            continue
        dim, blocks = dims[style]
        if name.endswith("bias"):
            return (0, blocks) if dim == -2 else None
        return ndim + dim, blocks
    return False
