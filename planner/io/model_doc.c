// SPDX-License-Identifier: Apache-2.0
/* A model from `model:`, or from config.json as transformers write it. Fails on numbers that cannot be, with their place. */
#include "planner/io/plan_doc.h"
#include "planner/io/plan_value.h"

#include "base/check.h"

#include <string.h>

#define DIM (1u << 20)
#define SEQ (1u << 24)

/* Layers with experts come after the first `dense`, and then every `every`-th. */
static void place_kinds(struct ptc_model *m, uint32_t dense, uint32_t every)
{
	if (!m->kinds[0].experts || (!dense && every <= 1))
		return;
	m->nkinds = 2;
	m->kinds[1] = m->kinds[0];
	m->kinds[0].experts = m->kinds[0].topk = m->kinds[0].expert_ffn = 0;
	m->kinds[1].ffn = 0;
	for (uint32_t i = 0; i < m->layers && i < PTC_MODEL_MAX_LAYERS; i++)
		m->kind[i] = i >= dense && (i - dense) % PTC_MAX(1, every) == PTC_MAX(1, every) - 1;
}

static int finish(const struct ptc_doc *doc, const struct ptc_doc_node *node, uint32_t dense, uint32_t every,
		  uint32_t shared, struct ptc_model *m, struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;

	place_kinds(m, dense, every);
	if (m->kinds[m->nkinds - 1].experts) /* every layer with experts: the dense part is the shared ones' */
		m->kinds[m->nkinds - 1].ffn = shared;
	if (ptc_model_check(m, &why))
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s", why.text);
	return 0;
}

static const char *const model_keys[] = { "layers",     "hidden",     "heads",        "kv_heads",     "head_dim",
					  "ffn",        "vocab",      "seq",          "experts",      "topk",
					  "expert_ffn", "shared_ffn", "dense_layers", "expert_every", "glu",
					  "tied",       "positions",  "bias",         "dropout",      "flash",
					  "eager_glu" };

static int read_flags(const struct ptc_doc *doc, const struct ptc_doc_node *node, struct ptc_model *m,
		      struct ptc_error *err)
{
	const struct {
		const char *key;
		bool absent;
		bool *ret;
	} flags[] = { { "glu", false, &m->kinds[0].glu },    { "tied", false, &m->tied },
		      { "positions", false, &m->positions }, { "bias", false, &m->bias },
		      { "dropout", false, &m->dropout },     { "flash", true, &m->flash },
		      { "eager_glu", false, &m->eager_glu } };
	int rc = 0;

	for (size_t i = 0; i < PTC_ARRAY_LEN(flags) && !rc; i++)
		rc = ptc_plan_flag(doc, node, flags[i].key, flags[i].absent, flags[i].ret, err);
	return rc;
}

/* ---- config.json ---- */

/* Families that transformers name in model_type. old: GPT-2's shape, with biases, two matrices and learned positions. */
static const struct {
	const char *type;
	bool old, tied;
} families[] = { { "gpt2", true, true },        { "gpt_neo", true, true },     { "opt", true, true },
		 { "llama", false, false },     { "mistral", false, false },   { "mixtral", false, false },
		 { "qwen2", false, false },     { "qwen2_moe", false, false }, { "qwen3", false, false },
		 { "qwen3_moe", false, false }, { "gemma", false, true },      { "gemma2", false, true },
		 { "phi3", false, false },      { "deepseek", false, false },  { "olmo", false, false } };

struct hf {
	const struct ptc_doc *doc;
	const struct ptc_doc_node *root;
	struct ptc_error *err;
	int rc;
};

/* The first of the names ("a|b") that is there and not null. */
static uint32_t hf_count(struct hf *h, const char *names, uint32_t absent)
{
	uint32_t v = absent;

	while (*names && !h->rc) {
		size_t n = strcspn(names, "|");
		char key[64];
		const struct ptc_doc_node *node;

		memcpy(key, names, PTC_MIN(n, sizeof key - 1));
		key[PTC_MIN(n, sizeof key - 1)] = '\0';
		node = ptc_doc_get(h->root, key);
		if (node && !(node->kind == PTC_DOC_TEXT && !strcmp(node->text, "null"))) {
			h->rc = ptc_plan_count(h->doc, h->root, key, 0, SEQ, absent, &v, h->err);
			return v;
		}
		names += n + (names[n] == '|');
	}
	return v;
}

static int hf_family(struct hf *h, size_t *ret)
{
	const struct ptc_doc_node *node = ptc_doc_get(h->root, "model_type");
	const char *type = node && node->kind == PTC_DOC_TEXT ? node->text : "";

	for (size_t i = 0; i < PTC_ARRAY_LEN(families); i++)
		if (!strcmp(families[i].type, type)) {
			*ret = i;
			return 0;
		}
	return ptc_doc_error(h->doc, node ? node : h->root, h->err, PTC_EINVAL,
			     "model_type \"%.60s\" is not known; describe the model with \"model:\"", type);
}

int ptc_plan_hf_read(const struct ptc_doc *doc, const struct ptc_doc_node *node, uint32_t seq, struct ptc_model *ret,
		     struct ptc_error *err)
{
	struct hf h = { doc, node, err, 0 };
	struct ptc_layer_kind *k = &ret->kinds[0];
	uint32_t hidden, heads, layers, vocab, longest, dense, every;
	size_t family = 0;

	h.rc = node->kind == PTC_DOC_MAP ? hf_family(&h, &family)
					 : ptc_doc_error(doc, node, err, PTC_EINVAL, "config.json is not a map");
	hidden = hf_count(&h, "hidden_size|n_embd", 0);
	heads = hf_count(&h, "num_attention_heads|n_head", 0);
	layers = hf_count(&h, "num_hidden_layers|n_layer", 0);
	vocab = hf_count(&h, "vocab_size", 0);
	longest = hf_count(&h, "max_position_embeddings|n_positions", 0);
	if (h.rc)
		return h.rc;
	if (!heads || !hidden)
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "hidden_size or num_attention_heads is missing");
	ptc_model_gpt(ret, layers, hidden, heads, hf_count(&h, "intermediate_size|n_inner", 4 * hidden), vocab,
		      seq ? seq : longest);
	k->kv_heads = hf_count(&h, "num_key_value_heads", heads);
	k->head_dim = hf_count(&h, "head_dim", hidden / heads);
	k->glu = !families[family].old;
	ret->positions = ret->bias = ret->dropout = families[family].old;
	ret->flash = true;
	k->experts = hf_count(&h, "num_local_experts|n_routed_experts|num_experts", 0);
	k->topk = k->experts ? hf_count(&h, "num_experts_per_tok", 1) : 0;
	k->expert_ffn = k->experts ? hf_count(&h, "moe_intermediate_size", k->ffn) : 0;
	dense = hf_count(&h, "first_k_dense_replace", 0);
	every = hf_count(&h, "moe_layer_freq|decoder_sparse_step", 1);
	if (!h.rc)
		h.rc = ptc_plan_flag(doc, node, "tie_word_embeddings", families[family].tied, &ret->tied, err);
	return h.rc ? h.rc
		    : finish(doc, node, dense, every, hf_count(&h, "n_shared_experts", 0) * k->expert_ffn, ret, err);
}

/* {config: {...}, seq: S} */
static int read_config(const struct ptc_doc *doc, const struct ptc_doc_node *node, struct ptc_model *ret,
		       struct ptc_error *err)
{
	static const char *const keys[] = { "config", "seq" };
	uint32_t seq = 0;
	int rc = ptc_doc_check_map(doc, node, "model", keys, PTC_ARRAY_LEN(keys), err);

	if (!rc)
		rc = ptc_plan_count(doc, node, "seq", 1, SEQ, 0, &seq, err);
	return rc ? rc : ptc_plan_hf_read(doc, ptc_doc_get(node, "config"), seq, ret, err);
}

int ptc_plan_model_read(const struct ptc_doc *doc, const struct ptc_doc_node *node, struct ptc_model *ret,
			struct ptc_error *err)
{
	uint32_t layers, hidden, heads, vocab, seq, dense = 0, every = 1, shared = 0;
	struct ptc_layer_kind *k = &ret->kinds[0];
	int rc;

	if (ptc_doc_get(node, "config"))
		return read_config(doc, node, ret, err);
	rc = ptc_doc_check_map(doc, node, "model", model_keys, PTC_ARRAY_LEN(model_keys), err);

#define COUNT(key, min, max, absent, to)                                                                               \
	do {                                                                                                           \
		if (!rc)                                                                                               \
			rc = ptc_plan_count(doc, node, key, min, max, absent, to, err);                                \
	} while (0)
	COUNT("layers", 1, PTC_MODEL_MAX_LAYERS, 0, &layers);
	COUNT("hidden", 1, DIM, 0, &hidden);
	COUNT("heads", 1, DIM, 0, &heads);
	COUNT("vocab", 0, SEQ, 0, &vocab);
	COUNT("seq", 1, SEQ, 0, &seq);
	if (rc)
		return rc;
	if (!layers || !hidden || !heads || !seq)
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "model needs layers, hidden, heads and seq");
	ptc_model_gpt(ret, layers, hidden, heads, 4 * hidden, vocab, seq);
	COUNT("kv_heads", 1, DIM, heads, &k->kv_heads);
	COUNT("head_dim", 1, DIM, hidden / heads, &k->head_dim);
	COUNT("ffn", 0, DIM, 4 * hidden, &k->ffn);
	COUNT("experts", 0, 4096, 0, &k->experts);
	COUNT("topk", 0, 4096, 0, &k->topk);
	COUNT("expert_ffn", 0, DIM, 0, &k->expert_ffn);
	COUNT("shared_ffn", 0, DIM, 0, &shared);
	COUNT("dense_layers", 0, PTC_MODEL_MAX_LAYERS, 0, &dense);
	COUNT("expert_every", 1, PTC_MODEL_MAX_LAYERS, 1, &every);
#undef COUNT
	if (!rc)
		rc = read_flags(doc, node, ret, err);
	return rc ? rc : finish(doc, node, dense, every, shared, ret, err);
}
