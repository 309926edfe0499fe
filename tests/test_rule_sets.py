# SPDX-License-Identifier: Apache-2.0
"""Each built-in rule set on the tensors of models that it is for: lint finds nothing wrong under a range of
configurations, every pattern matches something, and each tensor is cut as the frameworks cut it: as tables here say,
which are written from what Megatron-core, Hugging Face and torchtitan do and not from the rule sets, and as PyTorch's
parallelize_module does. No daemon."""
import fnmatch
import importlib
import importlib.util
import json
import multiprocessing
import subprocess
import unittest

import harness
import numpy as np

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


def mixtral(q=8, wide=512):
    h = 128 * q
    dense = {n: s for n, s in llama(128, q, 2, wide).items() if ".mlp." not in n}
    return dense | {f"model.layers.{i}.block_sparse_moe.gate.weight": (8, h) for i in range(4)} | {
        f"model.layers.{i}.block_sparse_moe.experts.{e}.{n}.weight": s for i in range(4) for e in range(8)
        for n, s in {"w1": (wide, h), "w3": (wide, h), "w2": (h, wide)}.items()}


def grouped(q=8, wide=256):
    h = 128 * q
    return llama(128, q, 2, 512) | {f"layers.{i}.moe.experts.{n}": s for i in range(4) for n, s in {
        "w1": (8, wide, h), "w2": (8, h, wide), "w3": (8, wide, h), "gate_up_proj": (8, 2 * wide, h), "down_proj": (8, h, wide)}.items()}


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
MOE = [*(f"{c},etp={c[3]}" for c in DENSE if c.startswith("tp=")), "pp=4,dp=2,zero=1,etp=2", "tp=2,dp=4,ep=4,etp=2", "tp=2,pp=2,dp=4,ep=2,etp=2,zero=1,shard=buffer", "dp=8,ep=4,zero=3,shard=dim0",
       "tp=2,cp=2,dp=2,ep=4,zero=1,order=tp-cp-ep-pp-dp"]


# ---- how frameworks cut ---------------------------------------------------------------------------------------------

WHOLE = None


class Cut:
    """Megatron's ColumnParallelLinear, RowParallelLinear and VocabParallelEmbedding, PyTorch's ColwiseParallel and
    RowwiseParallel: one dim in equal parts. blocks: of so many equal blocks that lie behind one another, each cut by
    itself. pad: the dim first grows to a multiple of pad times the ranks, with nothing in it."""

    def __init__(self, dim, blocks=1, pad=None):
        self.dim, self.blocks, self.pad = dim, blocks, pad

    def picked(self, size, rank, ranks):
        """Which of the dim's indices a rank has; -1 is padding."""
        line = list(range(size))
        if self.pad:
            line += [-1] * (-size % (self.pad * ranks))
        if len(line) % (self.blocks * ranks):
            raise ValueError(f"{size} over {ranks} in {self.blocks} blocks")
        part = len(line) // self.blocks // ranks
        return [line[(b * ranks + rank) * part + i] for b in range(self.blocks) for i in range(part)]


ROWS, COLUMNS = Cut(0), Cut(1) # of a Linear's weight [out, in]: ColumnParallel cuts its rows, RowParallel its columns
# Hugging Face's GPT-2 has Conv1D, whose weight is [in, out]: ColumnParallel's cut is of dim 1 there, RowParallel's of dim 0.
GPT2_TABLE = {
    "transformer.wte.weight": ("ends", Cut(0, pad=128)), "transformer.wpe.weight": ("first", WHOLE),
    "transformer.h.*.ln_1.weight": ("layer", WHOLE), "transformer.ln_f.weight": ("last", WHOLE),
    "transformer.h.*.attn.c_attn.weight": ("layer", Cut(1, blocks=3)), "transformer.h.*.attn.c_attn.bias": ("layer", Cut(0, blocks=3)),
    "transformer.h.*.attn.c_proj.weight": ("layer", Cut(0)), "transformer.h.*.attn.c_proj.bias": ("layer", WHOLE),
    "transformer.h.*.mlp.c_fc.weight": ("layer", Cut(1)), "transformer.h.*.mlp.c_fc.bias": ("layer", Cut(0)),
    "transformer.h.*.mlp.c_proj.weight": ("layer", Cut(0)), "lm_head.weight": ("last", Cut(0, pad=128))}
# Hugging Face's tensor-parallel plan of Llama, torchtitan's: q, k, v, gate, up by columns, o and down by rows.
ATTENTION = {
    "model.embed_tokens.weight": ("first", Cut(0, pad=1)), "model.norm.weight": ("last", WHOLE), "lm_head.weight": ("last", Cut(0, pad=1)),
    "model.layers.*.input_layernorm.weight": ("layer", WHOLE), "model.layers.*.self_attn.[qkv]_proj.weight": ("layer", ROWS),
    "model.layers.*.self_attn.o_proj.weight": ("layer", COLUMNS)}
LLAMA_TABLE = ATTENTION | {"model.layers.*.mlp.gate_proj.weight": ("layer", ROWS), "model.layers.*.mlp.up_proj.weight": ("layer", ROWS),
                           "model.layers.*.mlp.down_proj.weight": ("layer", COLUMNS)}
# An expert is a Llama MLP: w1 is its gate, w3 its up, w2 its down projection.
MIXTRAL_TABLE = ATTENTION | {
    "model.layers.*.block_sparse_moe.gate.weight": ("layer", WHOLE), "model.layers.*.experts.*.w1.weight": ("layer", ROWS),
    "model.layers.*.experts.*.w3.weight": ("layer", ROWS), "model.layers.*.experts.*.w2.weight": ("layer", COLUMNS)}
# torchtitan's ExpertTensorParallel on [experts, rows, columns]: w1 and w3 Shard(1), w2 Shard(2). Hugging Face's gate_up_proj is
# [experts, gate then up, in], packed_colwise, its down_proj [experts, out, middle].
GROUPED_TABLE = LLAMA_TABLE | {
    "layers.*.moe.experts.w1": ("layer", Cut(1)), "layers.*.moe.experts.w3": ("layer", Cut(1)), "layers.*.moe.experts.w2": ("layer", Cut(2)),
    "layers.*.moe.experts.gate_up_proj": ("layer", Cut(1, blocks=2)), "layers.*.moe.experts.down_proj": ("layer", Cut(2))}
BERT_TABLE = {
    "embeddings.word_embeddings.weight": ("first", ROWS), "embeddings.LayerNorm.weight": ("first", WHOLE),
    "pooler.dense.weight": ("last", WHOLE), "cls.predictions.bias": ("last", WHOLE),
    "encoder.layer.*.attention.self.query.*": ("layer", ROWS), "encoder.layer.*.attention.output.dense.weight": ("layer", COLUMNS),
    "encoder.layer.*.attention.output.dense.bias": ("layer", WHOLE), "encoder.layer.*.intermediate.dense.weight": ("layer", ROWS),
    "encoder.layer.?.output.dense.weight": ("layer", COLUMNS), "encoder.layer.?.output.LayerNorm.weight": ("layer", WHOLE)}


def megatron_table(swiglu, moe):
    """Megatron-core: linear_qkv and linear_fc1 are ColumnParallel (weight and bias), linear_proj and linear_fc2 RowParallel, whose
    bias every rank has. A fused gate and up projection is cut in two, its bias too (MLP.sharded_state_dict)."""
    layer, fc1 = "decoder.layers.*.", Cut(0, blocks=2 if swiglu else 1)
    mlp = layer + ("mlp.experts.local_experts.*." if moe else "mlp.")
    return {"embedding.word_embeddings.weight": ("first", Cut(0, pad=128)), "embedding.position_embeddings.weight": ("first", WHOLE),
            "decoder.final_layernorm.weight": ("last", WHOLE), "output_layer.weight": ("last", Cut(0, pad=128)),
            layer + "self_attention.linear_qkv.weight": ("layer", ROWS), layer + "self_attention.linear_qkv.bias": ("layer", ROWS),
            layer + "self_attention.linear_qkv.layer_norm_weight": ("layer", WHOLE),
            layer + "self_attention.linear_proj.weight": ("layer", COLUMNS), layer + "self_attention.linear_proj.bias": ("layer", WHOLE),
            layer + "mlp.linear_fc1.layer_norm_weight": ("layer", WHOLE), mlp + "linear_fc1.weight": ("layer", fc1),
            mlp + "linear_fc1.bias": ("layer", fc1), mlp + "linear_fc2.weight": ("layer", COLUMNS), mlp + "linear_fc2.bias": ("layer", WHOLE)}


def shrunk(shapes, sizes):
    """The same tensors with other sizes, so that every element can be looked at."""
    return {n: tuple(sizes.get(d, d) for d in s) for n, s in shapes.items()}


GPT2_SMALL = shrunk(GPT2, {768: 256, 2304: 768, 3072: 128, 50257: 300, 1024: 16}) | {"lm_head.weight": (300, 256)}
MEGATRON_SMALL = {50257: 300, 512: 32, 1536: 96, 2048: 128, 1024: 64}
BERT_SMALL = shrunk(BERT, {384: 64, 1536: 128, 30522: 50})
# use, shapes, table
SETS = (("gpt2", GPT2_SMALL, GPT2_TABLE), ("gpt3", GPT2_SMALL, GPT2_TABLE),
        ("llama", shrunk(llama(128, 2, 2, 64), {32000: 33}), LLAMA_TABLE), ("bert", BERT_SMALL, BERT_TABLE),
        ("megatron_gpt", shrunk(megatron(False), MEGATRON_SMALL), megatron_table(False, False)),
        (["megatron_swiglu", "megatron_gpt"], shrunk(megatron(False), MEGATRON_SMALL), megatron_table(True, False)))
EXPERT_SETS = (("mixtral", shrunk(mixtral(2, 16), {32000: 33}), MIXTRAL_TABLE),
               (["moe_grouped", "llama"], shrunk(grouped(2, 8), {32000: 33, 512: 32}), GROUPED_TABLE),
               ("megatron_gpt", shrunk(megatron(True), MEGATRON_SMALL), megatron_table(False, True)),
               (["megatron_swiglu", "megatron_gpt"], shrunk(megatron(True), MEGATRON_SMALL), megatron_table(True, True)))


class RuleSets(harness.Case):
    def job(self, rules, shapes, fields=None):
        job = {"version": 1, "name": "m", "rules": rules, "fields": fields or {},
               "tensors": [{"name": n, "dtype": "BF16", "shape": list(s)} for n, s in shapes.items()]}
        with open(self.path("job.yaml"), "w") as f:
            json.dump(job, f)
        return self.path("job.yaml")

    def lint(self, rules, shapes, configs):
        args = [harness.binary("client/ptcctl"), "rules", "lint", "-f", self.job(rules, shapes, {"exp_avg": {"dtype": "F32"}}),
                "--format", "json"]
        for config in configs:
            args += ["--config", config]
        r = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertTrue(r.stdout, r.stderr)
        return json.loads(r.stdout)["findings"]

    def held(self, rules, shapes, config):
        """[{tensor: its regions}] by rank, as `ptcctl layout` prints them."""
        r = subprocess.run([harness.binary("client/ptcctl"), "layout", "-f", self.job(rules, shapes), "--config", config, "--format", "json"],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(0, r.returncode, f"{rules}, {config}: {r.stderr}")
        out = []
        for rank in json.loads(r.stdout)["ranks"]:
            out.append({})
            for region in rank["regions"]:
                out[-1].setdefault(region["tensor"], []).append(region)
        return out

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
        self.clean(["megatron_swiglu", "megatron_gpt"], megatron(False), DENSE,
                   ("local_experts", 'linear_fc1.*") never applies'))

    def test_experts(self):
        self.clean("mixtral", mixtral(), MOE)
        self.clean(["moe_grouped", {"match": "layers.*", "layer": "layers.{}.*"}, "llama"], grouped(), MOE, ("layers.*\") ",))
        self.clean(["megatron_swiglu", "megatron_gpt"], megatron(True), MOE,
                   ("mlp.linear_fc1.*", "mlp.linear_fc1.[wb]*", "mlp.linear_fc2.weight", "local_experts.*\")", 'linear_fc1.*") never applies'))

    def test_wrong_head(self):
        """A rule set for another head size is told apart: its units do not divide, or tp does not."""
        wrong = [f["text"] for f in self.lint({"use": "llama", "head": 96}, llama(96, 8, 3, 512), ["tp=8"])]
        self.assertTrue(any("3 units of 96" in f and "tp 8" in f for f in wrong), wrong)

    # ---- against what frameworks do

    def filled(self, regions, shape, count, what):
        """The rank's buffer: numbers of the whole tensor's elements, -1 where there is padding."""
        buffer = np.full(count, -2)
        for r in regions:
            at, number = np.array(r["buffer"]["offset"]), np.array(0)
            for offset, extent, stride, size in zip(r["offset"], r["extent"], r["buffer"]["strides"], shape):
                at = at[..., None] + np.arange(extent) * stride
                number = number[..., None] * size + np.arange(offset, offset + extent)
            self.assertTrue(0 <= at.min() and at.max() < count, what)
            self.assertTrue((buffer[at] == -2).all(), what)
            buffer[at] = -1 if r["padding"] else number
        return buffer

    def on_stage(self, where, name, stage, stages, layers):
        number = next((int(x) for x in name.split(".") if x.isdigit()), 0)
        return stage in {"first": {0}, "last": {stages - 1}, "ends": {0, stages - 1},
                         "layer": {number // (layers // stages)}}[where]

    def whole_experts(self, name, shapes, tp, lists):
        """Does rank tp of two have this tensor, or in `lists` which part of dim 0, when each has half of the experts?"""
        number = name.split("experts.")[-1].split(".")[0]
        if number.isdigit():
            count = 1 + max(int(n.split("experts.")[-1].split(".")[0]) for n in shapes if "experts." in n)
            return int(number) // (count // 2) == tp
        half = len(lists[0]) // 2
        lists[0] = lists[0][tp * half:(tp + 1) * half]
        return True

    def check_set(self, rules, shapes, table, ep=1):
        """Two stages of two ranks; of experts, either each is cut over both ranks, or each rank has half of them."""
        held = self.held(rules, shapes, f"tp=2,pp=2,{f'ep={ep}' if ep > 1 else 'etp=2'}")
        layers = 1 + max(int(x) for n in shapes for x in n.split(".")[:3] if x.isdigit())
        unused, tensors = set(table), 0
        for name, shape in shapes.items():
            fits = [p for p in table if fnmatch.fnmatchcase(name, p)]
            self.assertEqual(1, len(fits), f"{rules}: {name} {fits}")
            unused.discard(fits[0])
            where, cut = table[fits[0]]
            for rank in range(4):
                stage, tp = divmod(rank, 2)
                what = f"{rules}: {name} {list(shape)} on rank {rank}"
                here, lists = self.on_stage(where, name, stage, 2, layers), [list(range(n)) for n in shape]
                if "experts." in name and ep > 1:
                    here = here and self.whole_experts(name, shapes, tp, lists)
                elif cut:
                    lists[cut.dim] = cut.picked(shape[cut.dim], tp, 2)
                if not here:
                    self.assertNotIn(name, held[rank], what)
                    continue
                want = np.arange(int(np.prod(shape))).reshape(shape)[np.ix_(*([max(i, 0) for i in line] for line in lists))]
                if cut and cut.pad:
                    want[np.array(lists[cut.dim]) < 0] = -1 # dim 0, as vocabularies are
                got = self.filled(held[rank].get(name, []), shape, want.size, what)
                self.assertTrue(np.array_equal(want.ravel(), got), f"{what}: {got}, not {want.ravel()}")
                tensors += 1
        self.assertEqual(set(), unused, rules)
        return tensors

    @harness.labels("repeats")
    def test_cuts(self):
        """Every element of every tensor of every set, at tp=2, pp=2."""
        print(sum(self.check_set(rules, shapes, table) for rules, shapes, table in SETS), "tensors of ranks compared")

    @harness.labels("repeats")
    def test_expert_cuts(self):
        n = 0
        for one in EXPERT_SETS:
            n += self.check_set(*one) + self.check_set(*one, ep=2)
        print(n, "tensors of ranks compared")

    @unittest.skipUnless(importlib.util.find_spec("torch"), "no PyTorch: scripts/venv --torch")
    @harness.labels("repeats")
    def test_parallelize_module(self):
        """The boxes that PyTorch gives modules of these names, by the plans of Hugging Face and torchtitan."""
        importlib.import_module("torch.distributed.tensor.parallel") # so that the children need not
        importlib.import_module("torch.testing._internal.distributed.fake_pg")
        dense = {"*q_proj": "C", "*k_proj": "C", "*v_proj": "C", "*o_proj": "R", "*gate_proj": "C", "*up_proj": "C", "*down_proj": "R",
                 "*embed_tokens": "R", "lm_head": "C", "*.w1": "C", "*.w3": "C", "*.w2": "R"}
        bert = {"*self.query": "C", "*attention.output.dense": "R", "*intermediate.dense": "C", "*layer.?.output.dense": "R",
                "*word_embeddings": "R"}
        moe = {n: s for n, s in EXPERT_SETS[0][1].items() if "layers.0." in n or "layers." not in n}
        context, tensors = multiprocessing.get_context("fork"), 0
        for rules, shapes, plan in (("llama", SETS[2][1], dense), ("mixtral", moe, dense), ("bert", BERT_SMALL, bert)):
            held = self.held(rules, shapes, "tp=2,etp=2")
            for rank in range(2):
                ours, theirs = context.Pipe(duplex=False)
                child = context.Process(target=parallelized, args=(theirs, shapes, plan, rank))
                child.start()
                theirs.close()
                want = ours.recv()
                child.join()
                self.assertEqual(set(shapes), set(want))
                for name, (local, offset, placements) in want.items():
                    got = [(tuple(r["offset"]), tuple(r["extent"])) for r in held[rank][name] if not r["padding"]]
                    self.assertEqual([(offset, local)], got, f"{rules}: {name} {shapes[name]} {placements} on rank {rank}")
                    tensors += 1
        print(tensors, "parameters compared")


def parallelized(pipe, shapes, plan, rank):
    """In a process of its own: {parameter: (local shape, offset, placements)} of modules with these parameters on two ranks."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
    mesh, root = init_device_mesh("cpu", (2,)), torch.nn.Module()
    with torch.device("meta"):
        for name, shape in shapes.items():
            *path, leaf = name.split(".")
            parent = root
            for part in path[:-1]:
                if not hasattr(parent, part):
                    parent.add_module(part, torch.nn.Module())
                parent = getattr(parent, part)
            if not hasattr(parent, path[-1]):
                if len(shape) == 1:
                    made = torch.nn.LayerNorm(shape[0], bias=False)
                elif "embed" in path[-1]:
                    made = torch.nn.Embedding(*shape)
                else:
                    made = torch.nn.Linear(shape[1], shape[0], bias=".".join([*path, "bias"]) in shapes)
                parent.add_module(path[-1], made)
            if leaf == "bias" and getattr(parent, path[-1]).bias is None:
                getattr(parent, path[-1]).register_parameter("bias", torch.nn.Parameter(torch.empty(shape)))
    styles = {"C": ColwiseParallel, "R": RowwiseParallel}
    names = [n for n, m in root.named_modules() for p in plan if fnmatch.fnmatchcase(n, p) and list(m.parameters(recurse=False))]
    parallelize_module(root, mesh, {n: styles[next(s for p, s in plan.items() if fnmatch.fnmatchcase(n, p))]() for n in names})
    out = {}
    for name, p in root.named_parameters():
        if name not in shapes: # of a module that has more than the model
            continue
        local, offset, how = tuple(p.shape), (0,) * p.dim(), "not parallelized"
        if isinstance(p, DTensor):
            local, offset = compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)
            how = repr(p.placements)
        out[name] = (tuple(local), tuple(offset), how)
    pipe.send(out)
    pipe.close()


if __name__ == "__main__":
    unittest.main()
