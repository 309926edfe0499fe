/* SPDX-License-Identifier: Apache-2.0 */
/* A model from config.json as transformers write it: families by model_type, each with the names and defaults of its
 * configuration class. Sizes agree with the published models (test_planner_io.c). Fails on a family that is not known
 * and on numbers that cannot be, with their place. */
#include "planner/io/plan_doc.h"

#include "base/check.h"
#include "formats/doc_rows.h"

#include <string.h>

#define SEQ (1u << 24)

/* gpt: GPT-2's shape, with biases and two matrices; llama: gated, without biases. */
enum shape { GPT, LLAMA, T5, JAMBA, NEMOTRON };
static const struct {
	const char *type;
	enum shape shape;
	bool tied, positions;
} families[] = { { "gpt2", GPT, true, true },
		 { "gpt_neo", GPT, true, true },
		 { "opt", GPT, true, true },
		 { "gpt_neox", GPT, false, false },
		 { "bloom", GPT, true, false },
		 { "starcoder2", GPT, true, false },
		 { "llama", LLAMA, false, false },
		 { "mistral", LLAMA, false, false },
		 { "mixtral", LLAMA, false, false },
		 { "qwen2", LLAMA, false, false },
		 { "qwen2_moe", LLAMA, false, false },
		 { "qwen3", LLAMA, false, false },
		 { "qwen3_moe", LLAMA, false, false },
		 { "gemma", LLAMA, true, false },
		 { "gemma2", LLAMA, true, false },
		 { "gemma3_text", LLAMA, true, false },
		 { "phi3", LLAMA, false, false },
		 { "granite", LLAMA, true, false },
		 { "deepseek", LLAMA, false, false },
		 { "deepseek_v2", LLAMA, false, false },
		 { "deepseek_v3", LLAMA, false, false },
		 { "olmo", LLAMA, false, false },
		 { "olmo2", LLAMA, false, false },
		 { "t5", T5, true, false },
		 { "mt5", T5, false, false },
		 { "jamba", JAMBA, false, false },
		 { "nemotron_h", NEMOTRON, false, false } };

struct hf {
	const struct ptc_doc *doc;
	const struct ptc_doc_node *root;
	struct ptc_error *err;
	int rc;
	size_t family;
};

/* NULL: absent, null or no single value. */
static const struct ptc_doc_node *hf_value(const struct hf *h, const char *key)
{
	const struct ptc_doc_node *node = ptc_doc_get(h->root, key);

	return node && node->kind == PTC_DOC_TEXT && strcmp(node->text, "null") ? node : NULL;
}

/* The first of the names ("a|b") that is there and not null. */
static uint32_t hf_count(struct hf *h, const char *names, uint32_t absent)
{
	uint32_t v = absent;

	while (*names && !h->rc) {
		size_t n = strcspn(names, "|");
		char key[64];

		memcpy(key, names, PTC_MIN(n, sizeof key - 1));
		key[PTC_MIN(n, sizeof key - 1)] = '\0';
		if (hf_value(h, key)) {
			h->rc = ptc_doc_read(h->doc, h->root, NULL,
					     &(struct ptc_doc_row){ key, PTC_DOC_COUNT, &v, 0, SEQ }, 1, h->err);
			return v;
		}
		names += n + (names[n] == '|');
	}
	return v;
}

static int hf_family(struct hf *h)
{
	const struct ptc_doc_node *node = hf_value(h, "model_type");

	if (h->root->kind != PTC_DOC_MAP)
		return ptc_doc_error(h->doc, h->root, h->err, PTC_EINVAL, "config.json is not a map");
	for (size_t i = 0; i < PTC_ARRAY_LEN(families); i++)
		if (node && !strcmp(families[i].type, node->text)) {
			h->family = i;
			return 0;
		}
	return ptc_doc_error(h->doc, node ? node : h->root, h->err, PTC_ENOTFOUND,
			     "model_type \"%.60s\" is not known; describe the model with \"model:\"",
			     node ? node->text : "");
}

/* DeepSeek's attention, where the file has its ranks. */
static void hf_latent(struct hf *h, struct ptc_layer_kind *k)
{
	k->kv_rank = hf_count(h, "kv_lora_rank", 0);
	if (!k->kv_rank)
		return;
	k->q_rank = hf_count(h, "q_lora_rank", 0);
	k->rope_dim = hf_count(h, "qk_rope_head_dim", 0);
	k->head_dim = hf_count(h, "qk_nope_head_dim", 0) + k->rope_dim;
	k->v_dim = hf_count(h, "v_head_dim", 0);
	k->kv_heads = k->heads;
}

static void hf_experts(struct hf *h, struct ptc_layer_kind *k)
{
	k->experts = hf_count(h, "num_local_experts|n_routed_experts|num_experts", 0);
	k->topk = k->experts ? hf_count(h, "num_experts_per_tok", 1) : 0;
	k->expert_ffn = k->experts ? hf_count(h, "moe_intermediate_size", k->ffn) : 0;
}

/* Layer i is of the kind that is like `want`; 8 kinds are enough for what these families mix. */
static void hf_layer(struct hf *h, struct ptc_model *m, uint32_t i, const struct ptc_layer_kind *want)
{
	uint32_t k = 0;

	while (k < m->nkinds && !ptc_layer_kind_same(&m->kinds[k], want))
		k++;
	if (k == PTC_MODEL_MAX_KINDS || i >= PTC_MODEL_MAX_LAYERS) {
		h->rc = ptc_doc_error(h->doc, h->root, h->err, PTC_EINVAL, "more than %d layers or %d kinds of layers",
				      PTC_MODEL_MAX_LAYERS, PTC_MODEL_MAX_KINDS);
		return;
	}
	if (k == m->nkinds)
		m->kinds[m->nkinds++] = *want;
	m->kind[i] = (uint8_t)k;
}

/* Some layers have experts instead of the dense part, or beside it what all tokens meet. */
static void hf_dense_and_experts(struct hf *h, struct ptc_model *m)
{
	struct ptc_layer_kind dense = m->kinds[0], sparse = dense;
	uint32_t first = hf_count(h, "first_k_dense_replace", 0),
		 every = hf_count(h, "moe_layer_freq|decoder_sparse_step", 1);

	sparse.ffn = hf_count(h, "n_shared_experts", 0) * sparse.expert_ffn +
		     hf_count(h, "shared_expert_intermediate_size", 0);
	dense.experts = dense.topk = dense.expert_ffn = 0;
	m->nkinds = 0;
	for (uint32_t i = 0; i < m->layers && !h->rc; i++)
		hf_layer(h, m, i, i >= first && (i - first + 1) % PTC_MAX(1, every) == 0 ? &sparse : &dense);
}

/* Encoder layers, then decoder layers that look at them. */
static void hf_t5(struct hf *h, struct ptc_model *m)
{
	const struct ptc_doc_node *act = hf_value(h, "feed_forward_proj");
	struct ptc_layer_kind k = { .heads = m->kinds[0].heads, .kv_heads = m->kinds[0].heads };
	uint32_t encoder = hf_count(h, "num_layers", 0);

	k.head_dim = hf_count(h, "d_kv", 64);
	k.ffn = hf_count(h, "d_ff", 2048);
	k.glu = act && !strncmp(act->text, "gated", 5);
	m->bias = false;
	m->nkinds = 0;
	m->layers = encoder + hf_count(h, "num_decoder_layers", encoder);
	for (uint32_t i = 0; i < m->layers && !h->rc; i++) {
		k.cross = i >= encoder;
		hf_layer(h, m, i, &k);
	}
}

/* Attention in some layers, a state space in the others; experts in some of both (Lieber et al., 2024). */
static void hf_jamba(struct hf *h, struct ptc_model *m)
{
	uint32_t period = hf_count(h, "attn_layer_period", 8), offset = hf_count(h, "attn_layer_offset", 4);
	uint32_t each = hf_count(h, "expert_layer_period", 2), from = hf_count(h, "expert_layer_offset", 1);
	uint32_t state = hf_count(h, "mamba_d_state", 16), conv = hf_count(h, "mamba_d_conv", 4);
	uint32_t inner = hf_count(h, "mamba_expand", 2) * m->hidden,
		 rank = hf_count(h, "mamba_dt_rank", (m->hidden + 15) / 16);
	struct ptc_layer_kind all = m->kinds[0];

	m->nkinds = 0;
	for (uint32_t i = 0; i < m->layers && !h->rc; i++) {
		struct ptc_layer_kind k = all;

		if (i % PTC_MAX(1, period) != offset) {
			k.heads = k.kv_heads = k.head_dim = 0;
			k.ssm_inner = inner;
			k.ssm_wide = 2 * inner;
			k.ssm_state = state;
			/* convolution, both small projections, A, D, three norms */
			k.ssm_more = inner * (conv + 1) + inner * (2 * rank + 2 * state + 1) + inner * (state + 1) +
				     rank + 2 * state;
		}
		if (i % PTC_MAX(1, each) == from)
			k.ffn = 0;
		else
			k.experts = k.topk = k.expert_ffn = 0;
		hf_layer(h, m, i, &k);
	}
}

/* One part a layer, by the letters of hybrid_override_pattern: M a state space (Mamba-2), - a feed-forward part, *
 * attention. */
static void hf_nemotron(struct hf *h, struct ptc_model *m)
{
	const struct ptc_doc_node *node = hf_value(h, "hybrid_override_pattern");
	const char *pattern = node ? node->text : "";
	uint32_t heads = hf_count(h, "mamba_num_heads", 128), state = hf_count(h, "ssm_state_size", 128);
	uint32_t groups = hf_count(h, "n_groups", 8), conv = hf_count(h, "conv_kernel", 4);
	uint32_t inner = heads * hf_count(h, "mamba_head_dim", 64);
	struct ptc_layer_kind attention = m->kinds[0], ffn = { .ffn = attention.ffn };
	struct ptc_layer_kind space = { .ssm_inner = inner,
					.ssm_wide = 2 * inner + 2 * groups * state + heads,
					.ssm_state = state,
					/* convolution with bias; A, D and the bias of steps; a norm */
					.ssm_more = (inner + 2 * groups * state) * (conv + 1) + 3 * heads + inner };

	attention.ffn = 0;
	attention.glu = false;
	m->nkinds = 0;
	if (strlen(pattern) != m->layers || strspn(pattern, "M-*") != m->layers)
		h->rc = ptc_doc_error(h->doc, node ? node : h->root, h->err, PTC_EINVAL,
				      "hybrid_override_pattern must have one of M, - and * for each of %u layers",
				      m->layers);
	for (uint32_t i = 0; i < m->layers && !h->rc; i++)
		hf_layer(h, m, i, pattern[i] == 'M' ? &space : pattern[i] == '-' ? &ffn : &attention);
}

static void hf_layers(struct hf *h, struct ptc_model *m)
{
	switch (families[h->family].shape) {
	case T5:
		hf_t5(h, m);
		break;
	case JAMBA:
		hf_jamba(h, m);
		break;
	case NEMOTRON:
		hf_nemotron(h, m);
		break;
	default:
		if (m->kinds[0].experts)
			hf_dense_and_experts(h, m);
	}
}

int ptc_plan_hf_read(const struct ptc_doc *doc, const struct ptc_doc_node *node, uint32_t seq, struct ptc_model *ret,
		     struct ptc_error *err)
{
	struct hf h = { doc, node, err, 0, 0 };
	struct ptc_error why = PTC_ERROR_INIT;
	uint32_t hidden, heads, longest;
	enum shape shape;

	h.rc = hf_family(&h);
	if (h.rc)
		return h.rc;
	shape = families[h.family].shape;
	hidden = hf_count(&h, "hidden_size|n_embd|d_model|n_embed", 0);
	heads = hf_count(&h, "num_attention_heads|n_head|num_heads", 0);
	longest = hf_count(&h, "max_position_embeddings|n_positions|seq_length", 0);
	if (!h.rc && (!heads || !hidden))
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "hidden_size or num_attention_heads is missing");
	if (!h.rc && !seq && !longest)
		return ptc_doc_error(doc, node, err, PTC_EINVAL,
				     "the file does not give the longest sample; add \"seq\"");
	if (h.rc)
		return h.rc;
	ptc_model_gpt(ret, hf_count(&h, "num_hidden_layers|n_layer", 0), hidden, heads,
		      hf_count(&h, "intermediate_size|n_inner|ffn_dim", 4 * hidden), hf_count(&h, "vocab_size", 0),
		      seq ? seq : longest);
	ret->kinds[0].kv_heads = hf_count(&h, "num_key_value_heads", heads);
	ret->kinds[0].head_dim = hf_count(&h, "head_dim|attention_head_dim", hidden / heads);
	ret->kinds[0].glu = shape == LLAMA || shape == JAMBA;
	ret->positions = families[h.family].positions;
	ret->bias = ret->dropout = shape == GPT;
	ret->flash = true;
	hf_latent(&h, &ret->kinds[0]);
	hf_experts(&h, &ret->kinds[0]);
	hf_layers(&h, ret);
	ret->tied = families[h.family].tied;
	if (!h.rc)
		h.rc = ptc_doc_read(doc, node, NULL,
				    &(struct ptc_doc_row){ "tie_word_embeddings", PTC_DOC_FLAG, &ret->tied }, 1, err);
	if (!h.rc && ptc_model_check(ret, &why))
		h.rc = ptc_doc_error(doc, node, err, PTC_EINVAL, "%s", why.text);
	return h.rc;
}
