/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the model of a job (`model:` of job.yaml). Fails on numbers that cannot be, with their place. */
#include "planner/io/plan_doc.h"

#include "base/check.h"
#include "formats/doc_rows.h"

#include <string.h>

#define DIM (1u << 20)
#define SEQ (1u << 24)

/* The first `n` layers are an encoder's, of samples of so many tokens; the others then look at what it put out. */
static int place_encoder(const struct ptc_doc *doc, const struct ptc_doc_node *node, uint32_t n, uint32_t seq,
			 struct ptc_model *m, struct ptc_error *err)
{
	if (!n && seq)
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "encoder_seq needs encoder_layers");
	if (!n)
		return 0;
	if (n >= m->layers || m->kinds[0].experts)
		return ptc_doc_error(doc, node, err, PTC_EINVAL,
				     "encoder_layers is %u; it must be less than layers, in a model without experts",
				     n);
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

/* {config: {...}, seq: S} */
static int read_config(const struct ptc_doc *doc, const struct ptc_doc_node *node, struct ptc_model *ret,
		       struct ptc_error *err)
{
	uint32_t seq = 0;
	const struct ptc_doc_row rows[] = { { "config", PTC_DOC_OTHER }, { "seq", PTC_DOC_COUNT, &seq, 1, SEQ } };
	int rc = ptc_doc_read(doc, node, "model", rows, PTC_ARRAY_LEN(rows), err);

	return rc ? rc : ptc_plan_hf_read(doc, ptc_doc_get(node, "config"), seq, ret, err);
}

int ptc_plan_model_read(const struct ptc_doc *doc, const struct ptc_doc_node *node, struct ptc_model *ret,
			struct ptc_error *err)
{
	uint32_t layers = 0, hidden = 0, heads = 0, vocab = 0, seq = 0;
	uint32_t dense = 0, every = 1, shared = 0, encoder = 0, encoder_seq = 0;
	struct ptc_layer_kind *k = &ret->kinds[0];
#define COUNT(key, min, max, to)                                                                                       \
	{                                                                                                              \
		key, PTC_DOC_COUNT, to, min, max                                                                       \
	}
#define FLAG(key, to)                                                                                                  \
	{                                                                                                              \
		key, PTC_DOC_FLAG, to                                                                                  \
	}
	/* The first ones come first: what the others are without a word follows from them. */
	const struct ptc_doc_row rows[] = {
		COUNT("layers", 1, PTC_MODEL_MAX_LAYERS, &layers),
		COUNT("hidden", 1, DIM, &hidden),
		COUNT("heads", 1, DIM, &heads),
		COUNT("vocab", 0, SEQ, &vocab),
		COUNT("seq", 1, SEQ, &seq),
#define FIRST 5
		COUNT("kv_heads", 1, DIM, &k->kv_heads),
		COUNT("head_dim", 1, DIM, &k->head_dim),
		COUNT("ffn", 0, DIM, &k->ffn),
		COUNT("experts", 0, 4096, &k->experts),
		COUNT("topk", 0, 4096, &k->topk),
		COUNT("expert_ffn", 0, DIM, &k->expert_ffn),
		COUNT("shared_ffn", 0, DIM, &shared),
		COUNT("dense_layers", 0, PTC_MODEL_MAX_LAYERS, &dense),
		COUNT("expert_every", 1, PTC_MODEL_MAX_LAYERS, &every),
		COUNT("encoder_layers", 0, PTC_MODEL_MAX_LAYERS, &encoder),
		COUNT("encoder_seq", 0, SEQ, &encoder_seq),
		FLAG("glu", &k->glu),
		FLAG("tied", &ret->tied),
		FLAG("positions", &ret->positions),
		FLAG("bias", &ret->bias),
		FLAG("dropout", &ret->dropout),
		FLAG("flash", &ret->flash),
		FLAG("eager_glu", &ret->eager_glu),
	};
#undef COUNT
#undef FLAG
	int rc;

	if (ptc_doc_get(node, "config"))
		return read_config(doc, node, ret, err);
	rc = ptc_doc_read(doc, node, "model", rows, PTC_ARRAY_LEN(rows), err);
	if (rc)
		return rc;
	if (!layers || !hidden || !heads || !seq)
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "model must have layers, hidden, heads and seq");
	if (hidden % heads && !ptc_doc_get(node, "head_dim"))
		return ptc_doc_error(doc, ptc_doc_get(node, "heads"), err, PTC_EINVAL,
				     "heads must divide hidden, and %u does not divide %u; else say head_dim", heads,
				     hidden);
	ptc_model_gpt(ret, layers, hidden, heads, 4 * hidden, vocab, seq);
	ret->tied = ret->positions = ret->bias = ret->dropout = false;
	ret->flash = true;
	rc = ptc_doc_read(doc, node, NULL, rows + FIRST, PTC_ARRAY_LEN(rows) - FIRST, err);
	if (!rc)
		rc = place_encoder(doc, node, encoder, encoder_seq, ret, err);
	return rc ? rc : finish(doc, node, dense, every, shared, ret, err);
}

bool ptc_plan_model_infers(const struct ptc_doc_node *node)
{
	return node && node->kind == PTC_DOC_MAP && !ptc_doc_get(node, "config") && !ptc_doc_get(node, "layers") &&
	       ptc_doc_get(node, "seq");
}

int ptc_plan_given_read(const struct ptc_doc *doc, const struct ptc_doc_node *node, struct ptc_infer_given *ret,
			struct ptc_error *err)
{
	struct ptc_infer_given given = { 0 };
	const struct ptc_doc_row rows[] = { { "seq", PTC_DOC_COUNT, &given.seq, 1, SEQ },
					    { "heads", PTC_DOC_COUNT, &given.heads, 1, SEQ },
					    { "topk", PTC_DOC_COUNT, &given.topk, 1, SEQ } };
	int rc = ptc_doc_read(doc, node, "model", rows, PTC_ARRAY_LEN(rows), err);

	if (rc == 0)
		*ret = given;
	return rc;
}
