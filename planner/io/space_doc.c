// SPDX-License-Identifier: Apache-2.0
/* `space:`: which degrees the program can take, and what it keeps in memory. Fails on unknown keys and values, with their
 * place. */
#include "planner/io/plan_doc.h"
#include "planner/io/plan_value.h"

#include "base/check.h"

#include <string.h>

static const char *const keys[] = { "global_batch",
				    "tp",
				    "cp",
				    "ep",
				    "etp",
				    "dp",
				    "pp",
				    "vpp",
				    "micro_batch",
				    "zero",
				    "recompute",
				    "tp_across_nodes",
				    "exact_batch",
				    "uneven",
				    "sequence_parallel",
				    "schedule",
				    "memory",
				    "uneven_batch",
				    "dtype",
				    "recompute_by_kind" };
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
			return ptc_doc_error(doc, v, err, PTC_EINVAL, "values of %s are to ascend", key);
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
	static const char *const known[] = { "weight_bytes", "grad_bytes",    "optim_bytes",  "logit_bytes",
					     "activations",  "reserve_bytes", "reduce_bytes", "waste" };
	const struct ptc_doc_node *node = ptc_doc_get(map, "memory");
	double *const to[] = { &w->memory.weight_bytes, &w->memory.grad_bytes,  &w->memory.optim_bytes,
			       &w->memory.logit_bytes,  &w->memory.activations, &w->memory.reserve_bytes,
			       &w->reduce_bytes,        &w->memory.waste };
	int rc = node ? ptc_doc_check_map(doc, node, "memory", known, PTC_ARRAY_LEN(known), err) : 0;

	ptc_memory_rules_default(&w->memory);
	w->reduce_bytes = 2;
	for (size_t i = 0; i < PTC_ARRAY_LEN(known) && node && !rc; i++)
		rc = ptc_plan_number(doc, node, known[i], 0, 1e15, *to[i], to[i], err);
	return rc;
}

static int read_program(const struct ptc_doc *doc, const struct ptc_doc_node *node, struct ptc_space *s,
			struct ptc_work *w, struct ptc_error *err)
{
	const struct ptc_doc_node *schedule = ptc_doc_get(node, "schedule"), *dtype = ptc_doc_get(node, "dtype");
	size_t word = 0, type = 0;
	int rc = ptc_plan_flag(doc, node, "tp_across_nodes", false, &s->tp_across_nodes, err);

	if (!rc)
		rc = ptc_plan_flag(doc, node, "exact_batch", false, &s->exact_batch, err);
	if (!rc)
		rc = ptc_plan_flag(doc, node, "recompute_by_kind", false, &s->recompute_by_kind, err);
	if (!rc)
		rc = ptc_plan_flag(doc, node, "uneven", false, &w->uneven, err);
	if (!rc)
		rc = ptc_plan_flag(doc, node, "sequence_parallel", false, &w->sequence_parallel, err);
	if (!rc && schedule)
		rc = ptc_doc_word(doc, schedule, "schedule", schedules, PTC_ARRAY_LEN(schedules), &word, err);
	w->schedule = (enum ptc_schedule)word;
	if (!rc && dtype)
		rc = ptc_doc_word(doc, dtype, "dtype", ptc_math_names, PTC_MATHS, &type, err);
	w->dtype = (enum ptc_math)type;
	if (!rc)
		rc = ptc_plan_flag(doc, node, "uneven_batch", false, &w->uneven_batch, err);
	if (!rc && w->uneven_batch && s->exact_batch)
		rc = ptc_doc_error(doc, ptc_doc_get(node, "uneven_batch"), err, PTC_EINVAL,
				   "uneven_batch leaves slots of the batch empty, which exact_batch forbids");
	return rc ? rc : read_memory(doc, node, w, err);
}

int ptc_plan_space_read(const struct ptc_doc *doc, const struct ptc_doc_node *node, struct ptc_space *ret,
			struct ptc_work *ret_work, struct ptc_error *err)
{
	struct ptc_degrees *const axes[] = { &ret->tp, &ret->cp, &ret->ep,  &ret->etp,
					     &ret->dp, &ret->pp, &ret->vpp, &ret->micro_batch };
	int rc = ptc_doc_check_map(doc, node, "space", keys, PTC_ARRAY_LEN(keys), err);

	for (size_t i = 0; i < PTC_ARRAY_LEN(axes) && !rc; i++)
		rc = read_axis(doc, node, keys[1 + i], axes[i], err);
	if (!rc)
		rc = read_bits(doc, node, "zero", NULL, 4, &ret->zero, err);
	if (!rc)
		rc = read_bits(doc, node, "recompute", recomputes, PTC_ARRAY_LEN(recomputes), &ret->recompute, err);
	if (!rc)
		rc = ptc_plan_count(doc, node, "global_batch", 1, 1u << 24, 0, &ret_work->global_batch, err);
	if (!rc && !ret_work->global_batch)
		rc = ptc_doc_error(doc, node, err, PTC_EINVAL, "space needs global_batch");
	return rc ? rc : read_program(doc, node, ret, ret_work, err);
}
