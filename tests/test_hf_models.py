# SPDX-License-Identifier: Apache-2.0
"""The rule sets with Hugging Face names against Hugging Face's own classes: every tensor that a model holds in memory, and
every one that it writes into a file, is on the stage and cut over the axis that the class's tensor-parallel plan says;
where it has none, as tables here say. Lint finds nothing, no rule of a set is for nothing. No daemon."""
import fnmatch
import importlib.util
import json
import re
import subprocess
import unittest

import harness
import hf_models
import numpy as np
from test_layout import Dump

WHOLE = None
# What plans leave out: (dim, blocks), or sizes of blocks. Vocabularies are cut by rows, padded.
ATTENTION = {"*.self_attn.q_b_proj.weight": (0, 1), "*.self_attn.q_proj.weight": (0, 1), "*.self_attn.kv_b_proj.weight": (0, 1),
             "*.self_attn.[kv]_proj.weight": (0, 1), "*.self_attn.[qkv]_proj.bias": (0, 1), "*.self_attn.o_proj.weight": (1, 1)}
MLP = {"*.gate_proj.weight": (0, 1), "*.up_proj.weight": (0, 1), "*.down_proj.weight": (1, 1)}
MIX, CONV = [128, 128, 16, 16, 8], [128, 16, 16] # gate, input, B, C and a step for each head
MIXER = {"*.in_proj.weight": (0, MIX), "*.conv1d.*": (0, CONV), "*.dt_bias": (0, 1), "*.A_log": (0, 1), "*.D": (0, 1),
         "*.m*.norm.weight": (0, 1), "*.out_proj.weight": (1, 1), "*.mixer.[qkv]_proj.weight": (0, 1), "*.mixer.o_proj.weight": (1, 1),
         "*.shared_mlp.input_linear.weight": (0, 2), "*.shared_mlp.output_linear.weight": (1, 1)}
EXPERTS = {"*.experts.*.w[13].weight": (0, 1), "*.experts.*.w2.weight": (1, 1)}
T5 = {"*Attention.[qkv].weight": (0, 1), "*Attention.o.weight": (1, 1), "*.relative_attention_bias.weight": (1, 1), "*.wi*.weight": (0, 1),
      "*.wo.weight": (1, 1)}
TABLE = {"*.q_a_proj.weight": WHOLE, "*layernorm.weight": WHOLE, **MIXER, **ATTENTION, **MLP, **EXPERTS, **T5}
IN_ONE = {"experts.gate_up_proj": (1, 2), "experts.up_proj": (1, 1), "experts.down_proj": (2, 1), # experts in one tensor
          "block_sparse_moe.input_linear.weight": (1, 2), "block_sparse_moe.output_linear.weight": (2, 1)}
VOCABULARY = re.compile(r".*(embed_tokens|embed_in|embed_out|embeddings|lm_head|shared_head\.head)\.weight|shared\.weight")
SETS = ("llama", "qwen3", "qwen3_moe", "mixtral", "gemma", "deepseek_v3", "gpt_neox", "t5", "mamba2", "moe_grouped_in_out")

# The layer for multi-token prediction as DeepSeek publishes it, which the class leaves out.
MTP = {"model.layers.4.embed_tokens.weight": (131, 64), "model.layers.4.enorm.weight": (64,), "model.layers.4.hnorm.weight": (64,),
       "model.layers.4.eh_proj.weight": (64, 128), "model.layers.4.shared_head.norm.weight": (64,),
       "model.layers.4.shared_head.head.weight": (131, 64), "model.layers.4.self_attn.q_a_proj.weight": (24, 64),
       "model.layers.4.self_attn.q_b_proj.weight": (96, 24), "model.layers.4.self_attn.q_b_proj.weight_scale_inv": (4, 1),
       "model.layers.4.mlp.experts.0.up_proj.weight": (32, 64), "model.layers.4.mlp.experts.0.up_proj.weight_scale_inv": (4, 1)}


def in_one(name):
    return next((cut for end, cut in IN_ONE.items() if name.endswith("." + end)), None)


def cut_of(model, name):
    """(dim, blocks) or None, from the class's plan or else the tables."""
    if VOCABULARY.fullmatch(name):
        return 0, 1
    if model and name in model.state_dict() and (found := hf_models.planned(model, name)) is not False:
        return found
    if in_one(name):
        return in_one(name)
    return next((cut for p, cut in TABLE.items() if fnmatch.fnmatchcase(name, p)), WHOLE)


def picked(size, blocks, rank, ranks, pad):
    """The dim's indices that a rank has; -1: padding."""
    line = list(range(size)) + [-1] * (-size % ranks if pad else 0)
    sizes = blocks if isinstance(blocks, list) else [len(line) // blocks] * blocks
    out, start = [], 0
    for n in sizes:
        assert n % ranks == 0, (size, blocks, ranks)
        out += line[start + rank * n // ranks:start + (rank + 1) * n // ranks]
        start += n
    return out


def layers_of(names):
    """{name: number of its layer in the pipeline}, and how many layers there are."""
    numbers = {n: int(m[1]) for n in names if (m := re.search(r"(?:layers|block)\.(\d+)\.", n))}
    encoder = 1 + max((v for n, v in numbers.items() if n.startswith("encoder.")), default=-1)
    numbers = {n: v + encoder * n.startswith("decoder.") for n, v in numbers.items()}
    if encoder:
        numbers["encoder.final_layer_norm.weight"] = encoder - 1
    return numbers, 1 + max(numbers.values())


def stages_of(name, names, numbers, layers):
    """The pipeline ranks of two that have it."""
    if name in numbers:
        return {numbers[name] >= (layers + 1) // 2}
    if name == "shared.weight":
        return {0, 1}
    if VOCABULARY.fullmatch(name) and name not in ("lm_head.weight", "embed_out.weight"):
        return {0} if {"lm_head.weight", "embed_out.weight"} & set(names) else {0, 1}
    return {1}


@unittest.skipUnless(importlib.util.find_spec("transformers"), "no transformers: scripts/venv --torch")
@harness.labels("repeats")
class HuggingFace(harness.Case):
    def job(self, rules, shapes):
        with open(self.path("job.yaml"), "w") as f:
            json.dump({"version": 1, "name": "m", "rules": rules if isinstance(rules, list) else [rules],
                       "tensors": [{"name": n, "dtype": "BF16", "shape": list(s)} for n, s in shapes.items()]}, f)
        return self.path("job.yaml")

    def lint(self, rules, shapes, *configs):
        args = [harness.binary("client/ptcctl"), "rules", "lint", "-f", self.job(rules, shapes), "--format", "json"]
        r = subprocess.run([*args, *(a for c in configs for a in ("--config", c))], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertTrue(r.stdout, r.stderr)
        return [f"{f['severity']}: {f['text']}" for f in json.loads(r.stdout)["findings"]]

    def held(self, name, shape, cut, tp, ep, ep_at):
        """The numbers of the elements that a rank has, in order; None: of another rank's expert."""
        lists = [list(range(n)) for n in shape]
        one = re.search(r"\.experts\.(\d+)\.", name)
        if one and ep > 1:
            return np.arange(int(np.prod(shape))) if int(one[1]) // (8 // ep) == ep_at else None
        if in_one(name) and ep > 1:
            lists[0] = picked(shape[0], 1, ep_at, ep, False)
        elif cut:
            lists[cut[0]] = picked(shape[cut[0]], cut[1], tp, 2, VOCABULARY.fullmatch(name))
        number = np.zeros((1,) * len(shape), dtype=np.int64)
        padding = np.zeros((1,) * len(shape), dtype=bool)
        for line, n in zip(np.ix_(*(np.array(x) for x in lists)) if shape else (), shape):
            number, padding = number * n + line, padding | (line < 0)
        return np.where(padding, -1, number).reshape(-1)

    def compare(self, dump, what, model, rules, shapes, ep):
        names = sorted(shapes, key=str.encode)
        numbers, layers = layers_of(names)
        dump.job(self.job(rules, shapes), 0)
        got = dump.layout(None, f"tp=2,pp=2,{f'ep={ep}' if ep > 1 else 'etp=2'}")
        self.assertNotIsInstance(got, str, f"{what}: {got if isinstance(got, str) else ''}")
        wrong = set()
        for rank in range(4):
            stage, tp = divmod(rank, 2)
            for i, name in enumerate(names):
                here = stage in stages_of(name, names, numbers, layers)
                want = self.held(name, shapes[name], cut_of(model, name), tp, ep, tp) if here else None
                ours = got.get((rank, i))
                if (want is None) != (ours is None) or (want is not None and not np.array_equal(want, ours.reshape(-1))):
                    wrong.add(name)
        self.assertEqual([], sorted(wrong), what)
        return 4 * len(names)

    def test_models(self):
        pairs, seen = 0, set()
        dense, moe = ("tp=2,pp=2,dp=2", "tp=4", "pp=4,dp=2,zero=1"), ("tp=2,dp=4,ep=4,etp=2", "tp=2,pp=2,dp=2,ep=2,etp=2", "dp=8,ep=8,zero=3")
        with Dump() as dump:
            for name, (rules, _, _) in hf_models.MODELS.items():
                model = hf_models.build(name)
                forms = {"in memory": hf_models.shapes(model), "saved": hf_models.saved(model)}
                if forms["saved"] == forms["in memory"]:
                    del forms["saved"]
                elif name == "deepseek v3":
                    forms["saved, with multi-token prediction"] = forms["saved"] | MTP
                for form, shapes in forms.items():
                    what, experts = f"{name}, {form}", any(".experts." in n or in_one(n) for n in shapes)
                    self.assertEqual([], self.lint(rules, shapes, *(moe if experts else dense)), what)
                    seen |= set(shapes)
                    if "prediction" in form: # no model of its own: what the tables say is all there is
                        continue
                    for ep in (1, 2) if experts else (1,):
                        pairs += self.compare(dump, what, model, rules, shapes, ep)
        print(pairs, "tensors of ranks compared")
        self.unused(seen)

    def unused(self, seen):
        """Every rule of the sets is for a tensor that some class has, but for those that only files of FP8 weights have."""
        for one in SETS:
            text = subprocess.run([harness.binary("client/ptcctl"), "rules", "show", one], stdout=subprocess.PIPE, text=True, check=True).stdout
            rules = re.findall(r'- match: "([^"]+)"', text)
            self.assertTrue(rules)
            idle = [p for p in rules if "scale_inv" not in p and not any(fnmatch.fnmatchcase(n, p) for n in seen)]
            allowed = {"mamba2": ["*layers.*.in_proj.bias"], "gpt_neox": ["embed_out.weight"], "t5": ["*coder.embed_tokens.weight", "lm_head.weight"]}
            self.assertEqual(set(idle) - set(allowed.get(one, ())), set(), one)

    def test_wrong_set(self):
        """A set for dense models says of experts and shared experts, by name and bytes, that every rank would hold them all; rules
        written out, special first and one for the rest last, are not ambiguous."""
        for name, rules, words in (("qwen3 moe", "llama", (".experts.", )), ("deepseek v3", "mixtral", (".experts.", ".shared_experts."))):
            found = self.lint({"use": rules, "head": 8}, hf_models.saved(hf_models.build(name)), "tp=2,dp=4,ep=4")
            for word in words:
                self.assertTrue([f for f in found if f.startswith("error: ") and word in f and "more like it" in f and "KiB" in f], found)
        rules = [{"match": "*.query_key_value.*", "split": {"axis": "tp", "dim": 0}, "layer": "gpt_neox.layers.{}.*"},
                 {"match": "*.dense_h_to_4h.*", "split": {"axis": "tp", "dim": 0}, "layer": "gpt_neox.layers.{}.*"},
                 {"match": "*.dense*.weight", "split": {"axis": "tp", "dim": 1}, "layer": "gpt_neox.layers.{}.*"},
                 {"match": "*layers*", "layer": "gpt_neox.layers.{}.*"},
                 {"match": "*embed_in.weight", "split": {"axis": "tp", "dim": 0, "pad_to": 1}, "layer": "first"},
                 {"match": "lm_head.weight", "split": {"axis": "tp", "dim": 0, "pad_to": 1}, "layer": "last"}, {"match": "*"}]
        self.assertEqual([], self.lint(rules, hf_models.shapes(hf_models.build("gpt neox")), "tp=2,pp=2"))

    def test_shared_groups(self):
        """Where a mixer has fewer groups than tp, neighbours share one; heads are cut."""
        with Dump() as dump:
            dump.job(self.job({"use": "mamba2", **hf_models.MIXER}, {"model.layers.0.mamba.conv1d.bias": (160,), "model.layers.0.mamba.D": (8,)}), 0)
            got = dump.layout(None, "tp=4")
        for rank in range(4):
            group = [128 + (rank // 2) * 8 + i for i in range(8)]
            self.assertEqual([2 * rank, 2 * rank + 1], got[rank, 0].tolist())
            self.assertEqual([*range(32 * rank, 32 * rank + 32), *group, *(16 + g for g in group)], got[rank, 1].tolist())


if __name__ == "__main__":
    unittest.main()
