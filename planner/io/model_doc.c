// SPDX-License-Identifier: Apache-2.0
/* A model from `model:`. Fails on numbers that cannot be, with their place. */
#include "planner/io/plan_doc.h"
#include "planner/io/plan_value.h"

#include "base/check.h"

#include <string.h>

#define DIM (1u << 20)
#define SEQ (1u << 24)

/* The first `n` layers are an encoder's, of samples of so many tokens; the others then look at what it put out. */
static int place_encoder(const struct ptc_doc *doc, const struct ptc_doc_node *node, uint32_t n, uint32_t seq,
			 struct ptc_model *m, struct ptc_error *err)
{
	if (!n && seq)
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "encoder_seq without encoder_layers");
	if (!n)
		return 0;
	if (n >= m->layers || m->kinds[0].experts)
		return ptc_doc_error(doc, node, err, PTC_EINVAL,
				     "encoder_layers is %u; fewer than layers, and without experts", n);
	m->nkinds = 2;
	m->kinds[1] = m->kinds[0];
	m->kinds[0].seq = seq;
	m->kinds[1].cross = true;
	for (uint32_t i = n; i < m->layers; i++)
		m->kind[i] = 1;
	return 0;
}

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

static const char *const model_keys[] = { "layers",     "hidden",         "heads",        "kv_heads",     "head_dim",
					  "ffn",        "vocab",          "seq",          "experts",      "topk",
					  "expert_ffn", "shared_ffn",     "dense_layers", "expert_every", "glu",
					  "tied",       "positions",      "bias",         "dropout",      "flash",
					  "eager_glu",  "encoder_layers", "encoder_seq" };

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
	uint32_t layers, hidden, heads, vocab, seq, dense = 0, every = 1, shared = 0, encoder = 0, encoder_seq = 0;
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
	COUNT("encoder_layers", 0, PTC_MODEL_MAX_LAYERS, 0, &encoder);
	COUNT("encoder_seq", 0, SEQ, 0, &encoder_seq);
#undef COUNT
	if (!rc)
		rc = read_flags(doc, node, ret, err);
	if (!rc)
		rc = place_encoder(doc, node, encoder, encoder_seq, ret, err);
	return rc ? rc : finish(doc, node, dense, every, shared, ret, err);
}
