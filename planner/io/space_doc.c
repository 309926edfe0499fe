/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the space of a job (`space:`): which degrees the program can take, and what it keeps in memory. Fails on
 * unknown keys and values, with their place. */
#include "planner/io/plan_doc.h"

#include "base/check.h"
#include "formats/doc_rows.h"

#include <string.h>

static const char *const recomputes[] = { "none", "selective", "full" }; /* enum ptc_recompute */
static const char *const schedules[] = { "1f1b", "gpipe", "zb1p" };      /* enum ptc_schedule */

static int read_axis(const struct ptc_doc *doc, const struct ptc_doc_node *map, const char *key, struct ptc_degrees *d,
		     struct ptc_error *err)
{
	const struct ptc_doc_node *node = ptc_doc_get(map, key);

	d->n = 0;
	if (!node)
		return 0;
	if (node->kind != PTC_DOC_LIST || !node->n || node->n > PTC_DEGREES_MAX)
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s must be a list of 1 to %d degrees", key,
				     PTC_DEGREES_MAX);
	for (const struct ptc_doc_node *v = node->first; v; v = v->next) {
		int64_t degree = 0;
		int rc = ptc_doc_int(doc, v, key, 1, 1 << 17, &degree, err);

		if (rc)
			return rc;
		if (d->n && degree <= d->v[d->n - 1])
			return ptc_doc_error(doc, v, err, PTC_EINVAL, "values of %s must ascend", key);
		d->v[d->n++] = (uint32_t)degree;
	}
	return 0;
}

/* A list of words or numbers as bits. */
static int read_bits(const struct ptc_doc *doc, const struct ptc_doc_node *map, const char *key,
		     const char *const *words, uint32_t n, uint8_t *ret, struct ptc_error *err)
{
	const struct ptc_doc_node *node = ptc_doc_get(map, key);

	*ret = 1;
	if (!node)
		return 0;
	if (node->kind != PTC_DOC_LIST || !node->n)
		return ptc_doc_error(doc, node, err, PTC_EINVAL, "%s must be a list", key);
	*ret = 0;
	for (const struct ptc_doc_node *v = node->first; v; v = v->next) {
		int64_t number = 0;
		size_t word = 0;
		int rc = words ? ptc_doc_word(doc, v, key, words, n, &word, err)
			       : ptc_doc_int(doc, v, key, 0, n - 1, &number, err);

		if (rc)
			return rc;
		*ret |= (uint8_t)(1u << (words ? word : (size_t)number));
	}
	return 0;
}

static int read_memory(const struct ptc_doc *doc, const struct ptc_doc_node *map, struct ptc_work *w,
		       struct ptc_error *err)
{
	const struct ptc_doc_node *node = ptc_doc_get(map, "memory");
	struct ptc_memory_rules *m = &w->memory;
#define BYTES(key, to)                                                                                                 \
	{                                                                                                              \
		key, PTC_DOC_REAL, to, 0, 1e15                                                                         \
	}
	const struct ptc_doc_row rows[] = {
		BYTES("weight_bytes", &m->weight_bytes), BYTES("grad_bytes", &m->grad_bytes),
		BYTES("optim_bytes", &m->optim_bytes),   BYTES("logit_bytes", &m->logit_bytes),
		BYTES("activations", &m->activations),   BYTES("reserve_bytes", &m->reserve_bytes),
		BYTES("reduce_bytes", &w->reduce_bytes), BYTES("waste", &m->waste)
	};
#undef BYTES

	ptc_memory_rules_default(m);
	w->reduce_bytes = 2;
	return node ? ptc_doc_read(doc, node, "memory", rows, PTC_ARRAY_LEN(rows), err) : 0;
}

int ptc_plan_space_read(const struct ptc_doc *doc, const struct ptc_doc_node *node, struct ptc_space *ret,
			struct ptc_work *ret_work, struct ptc_error *err)
{
	struct ptc_degrees *const axes[] = { &ret->tp, &ret->cp, &ret->ep,  &ret->etp,
					     &ret->dp, &ret->pp, &ret->vpp, &ret->micro_batch };
	struct ptc_work *w = ret_work;
#define FLAG(key, to)                                                                                                  \
	{                                                                                                              \
		key, PTC_DOC_FLAG, to                                                                                  \
	}
	const struct ptc_doc_row rows[] = {
		{ "tp", PTC_DOC_OTHER },
		{ "cp", PTC_DOC_OTHER },
		{ "ep", PTC_DOC_OTHER },
		{ "etp", PTC_DOC_OTHER },
		{ "dp", PTC_DOC_OTHER },
		{ "pp", PTC_DOC_OTHER },
		{ "vpp", PTC_DOC_OTHER },
		{ "micro_batch", PTC_DOC_OTHER },
		{ "zero", PTC_DOC_OTHER },
		{ "recompute", PTC_DOC_OTHER },
		{ "memory", PTC_DOC_OTHER },
		{ "global_batch", PTC_DOC_COUNT, &w->global_batch, 1, 1u << 24 },
		{ "schedule", PTC_DOC_WORD, &w->schedule, 0, PTC_SCHEDULE_ZB1P, schedules },
		{ "dtype", PTC_DOC_WORD, &w->dtype, 0, PTC_MATHS - 1, ptc_math_names },
		FLAG("tp_across_nodes", &ret->tp_across_nodes),
		FLAG("exact_batch", &ret->exact_batch),
		FLAG("recompute_by_kind", &ret->recompute_by_kind),
		FLAG("uneven", &w->uneven),
		FLAG("encoder_apart", &w->encoder_apart),
		FLAG("sequence_parallel", &w->sequence_parallel),
		FLAG("uneven_batch", &w->uneven_batch),
	};
#undef FLAG
	int rc;

	ret->tp_across_nodes = ret->exact_batch = ret->recompute_by_kind = false;
	w->global_batch = 0;
	w->schedule = (enum ptc_schedule)0;
	w->dtype = (enum ptc_math)0;
	w->uneven = w->encoder_apart = w->sequence_parallel = w->uneven_batch = false;
	rc = ptc_doc_read(doc, node, "space", rows, PTC_ARRAY_LEN(rows), err);
	for (size_t i = 0; i < PTC_ARRAY_LEN(axes) && !rc; i++)
		rc = read_axis(doc, node, rows[i].key, axes[i], err);
	if (!rc)
		rc = read_bits(doc, node, "zero", NULL, 4, &ret->zero, err);
	if (!rc)
		rc = read_bits(doc, node, "recompute", recomputes, PTC_ARRAY_LEN(recomputes), &ret->recompute, err);
	if (!rc && !w->global_batch)
		rc = ptc_doc_error(doc, node, err, PTC_EINVAL, "space needs global_batch");
	if (!rc && w->uneven_batch && ret->exact_batch)
		rc = ptc_doc_error(doc, ptc_doc_get(node, "uneven_batch"), err, PTC_EINVAL,
				   "uneven_batch leaves slots of the batch empty, which exact_batch forbids");
	return rc ? rc : read_memory(doc, node, w, err);
}
