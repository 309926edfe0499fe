# SPDX-License-Identifier: Apache-2.0
"""Each built-in rule set on the tensors of models that it is for: lint finds nothing wrong under a range of
configurations, every pattern matches something, and what must not be cut is whole. No daemon."""
import json
import subprocess
import unittest

import harness

GPT2 = {"transformer.wte.weight": (50257, 768), "transformer.wpe.weight": (1024, 768), "transformer.ln_f.weight": (768,),
        **{f"transformer.h.{i}.{n}": s for i in range(12) for n, s in {
            "ln_1.weight": (768,), "attn.c_attn.weight": (768, 2304), "attn.c_attn.bias": (2304,), "attn.c_proj.bias": (768,),
            "attn.c_proj.weight": (768, 768), "mlp.c_fc.weight": (768, 3072), "mlp.c_fc.bias": (3072,),
            "mlp.c_proj.weight": (3072, 768)}.items()}}


def llama(head, q, kv, wide):
    h = q * head
    return {"model.embed_tokens.weight": (32000, h), "model.norm.weight": (h,), "lm_head.weight": (32000, h),
            **{f"model.layers.{i}.{n}": s for i in range(4) for n, s in {
                "input_layernorm.weight": (h,), "self_attn.q_proj.weight": (h, h), "self_attn.k_proj.weight": (kv * head, h),
                "self_attn.v_proj.weight": (kv * head, h), "self_attn.o_proj.weight": (h, h), "mlp.gate_proj.weight": (wide, h),
                "mlp.up_proj.weight": (wide, h), "mlp.down_proj.weight": (h, wide)}.items()}}


def mixtral():
    dense = {n: s for n, s in llama(128, 8, 2, 512).items() if ".mlp." not in n}
    return dense | {f"model.layers.{i}.block_sparse_moe.gate.weight": (8, 1024) for i in range(4)} | {
        f"model.layers.{i}.block_sparse_moe.experts.{e}.{n}.weight": s for i in range(4) for e in range(8)
        for n, s in {"w1": (512, 1024), "w3": (512, 1024), "w2": (1024, 512)}.items()}


def grouped():
    dense = {n: s for n, s in llama(128, 8, 2, 512).items()}
    return dense | {f"layers.{i}.moe.experts.{n}": s for i in range(4) for n, s in {
        "w1": (8, 256, 1024), "w2": (8, 1024, 256), "w3": (8, 256, 1024), "gate_up_proj": (8, 1024, 512),
        "down_proj": (8, 256, 1024)}.items()}


def megatron(moe):
    h = 512
    shapes = {"embedding.word_embeddings.weight": (50257, h), "embedding.position_embeddings.weight": (1024, h),
              "decoder.final_layernorm.weight": (h,), "output_layer.weight": (50257, h)}
    for i in range(4):
        p = f"decoder.layers.{i}."
        shapes |= {p + n: s for n, s in {
            "self_attention.linear_qkv.weight": (3 * h, h), "self_attention.linear_qkv.bias": (3 * h,),
            "self_attention.linear_qkv.layer_norm_weight": (h,), "self_attention.linear_proj.weight": (h, h),
            "self_attention.linear_proj.bias": (h,), "mlp.linear_fc1.layer_norm_weight": (h,)}.items()}
        for e in range(4) if moe else (None,):
            q = p + ("mlp." if e is None else f"mlp.experts.local_experts.{e}.")
            shapes |= {q + "linear_fc1.weight": (4 * h, h), q + "linear_fc1.bias": (4 * h,), q + "linear_fc2.weight": (h, 2 * h),
                       q + "linear_fc2.bias": (h,)}
    return shapes


BERT = {"embeddings.word_embeddings.weight": (30522, 384), "embeddings.LayerNorm.weight": (384,), "pooler.dense.weight": (384, 384),
        "cls.predictions.bias": (30522,),
        **{f"encoder.layer.{i}.{n}": s for i in range(6) for n, s in {
            "attention.self.query.weight": (384, 384), "attention.self.query.bias": (384,), "attention.output.dense.weight": (384, 384),
            "attention.output.dense.bias": (384,), "intermediate.dense.weight": (1536, 384), "output.dense.weight": (384, 1536),
            "output.LayerNorm.weight": (384,)}.items()}}

DENSE = ["tp=1", "tp=2", "tp=4,pp=2", "pp=4,dp=2,zero=1", "tp=2,dp=2,zero=3,shard=dim0,replicas=2", "tp=2,pp=2,dp=2,zero=1,shard=buffer",
         "tp=2,pp=2,vpp=2,dp=2,cp=2,zero=2"]
MOE = [*DENSE, "tp=2,dp=4,ep=4,etp=2", "tp=2,pp=2,dp=4,ep=2,etp=2,zero=1,shard=buffer", "dp=8,ep=4,zero=3,shard=dim0",
       "tp=2,cp=2,dp=2,ep=4,zero=1,order=tp-cp-ep-pp-dp"]


class RuleSets(harness.Case):
    def lint(self, rules, shapes, configs):
        job = {"version": 1, "name": "m", "rules": rules, "fields": {"exp_avg": {"dtype": "F32"}},
               "tensors": [{"name": n, "dtype": "BF16", "shape": list(s)} for n, s in shapes.items()]}
        with open(self.path("job.yaml"), "w") as f:
            json.dump(job, f)
        args = [harness.binary("client/ptcctl"), "rules", "lint", "-f", self.path("job.yaml"), "--format", "json"]
        for config in configs:
            args += ["--config", config]
        r = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertTrue(r.stdout, r.stderr)
        return json.loads(r.stdout)["findings"]

    def clean(self, rules, shapes, configs, unused=()):
        """No error, and no note but of rules that this model has no tensor for."""
        findings = self.lint(rules, shapes, configs)
        self.assertEqual([f for f in findings if f["severity"] == "error" or not any(u in f["text"] for u in unused)], [], rules)

    def test_dense(self):
        self.clean("gpt2", GPT2, DENSE, ("lm_head",)) # tied: the head is the embedding
        self.clean({"use": "gpt3", "head": 96}, {n: s for n, s in GPT2.items() if "wte" not in n}, ["tp=2", "tp=8"], ("lm_head", "wte"))
        self.clean("llama", llama(128, 8, 2, 512), [*DENSE, "tp=8"])
        self.clean({"use": "llama", "head": 64}, llama(64, 16, 8, 512), [*DENSE, "tp=8", "tp=16"])
        self.clean("bert", BERT, [c for c in DENSE if "vpp" not in c])
        self.clean("megatron_gpt", megatron(False), DENSE, ("local_experts", ))
        self.clean(["megatron_swiglu", "megatron_gpt"], megatron(False), DENSE, ("local_experts",))

    def test_experts(self):
        self.clean("mixtral", mixtral(), MOE)
        self.clean(["moe_grouped", {"match": "layers.*", "layer": "layers.{}.*"}, "llama"], grouped(), MOE, ("layers.*\") ",))
        self.clean(["megatron_swiglu", "megatron_gpt"], megatron(True), MOE,
                   ("mlp.linear_fc1.*", "mlp.linear_fc1.weight", "mlp.linear_fc2.weight", "local_experts.*\")"))

    def test_wrong_head(self):
        """A rule set for another head size is told apart: its units do not divide, or tp does not."""
        wrong = [f["text"] for f in self.lint({"use": "llama", "head": 96}, llama(96, 8, 3, 512), ["tp=8"])]
        self.assertTrue(any("3 units of 96" in f and "tp 8" in f for f in wrong), wrong)


if __name__ == "__main__":
    unittest.main()
