/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a rule about placement, except the pipeline stage: split, expert and shard. Happy path: keys are read
 * into the struct of reshard/spec/rule.h; an absent key keeps the value of the rule that is overridden. Failure: file
 * and line of the key at fault. ptc_spec_lint checks the values together. */
#include "formats/job/job_decode.h"

#include "base/alloc.h"
#include "base/check.h"

#include <string.h>

#define MAX_BLOCKS 4096               /* fused blocks of one tensor */
#define PAD_TO_MAX (INT64_C(1) << 32) /* elements: above any vocabulary; its product with a degree stays an int64 */

static const char *const split_keys[] = { "axis", "dim", "kind", "blocks", "interleave", "permute", "unit", "pad_to" };
static const char *const expert_keys[] = { "match", "order" };
const char *const ptc_job_axes[PTC_JOB_AXES] = { "none", "tp", "ep", "etp", "dp", "cp" };
const char *const ptc_job_kinds[PTC_JOB_KINDS] = { "even", "ceil", "balanced" };
static const char *const shards[] = { "config", "none", "flat" };

/* "$head": of the rule set that the node is in. */
static int parameter(struct ptc_job_decoder *d, const struct ptc_doc_node *node, int64_t *value)
{
	for (size_t i = 0; i < d->nparameters; i++)
		if (!strcmp(d->parameters[i].name, node->text + 1)) {
			*value = d->parameters[i].value;
			return 0;
		}
	return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "\"%.64s\" is not a parameter of this rule set",
			     node->text);
}

/* A list of whole numbers, at least min each, of its own. */
static int decode_numbers(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const char *what, size_t cap,
			  int64_t min, const int64_t **ret_v, size_t *ret_n)
{
	int64_t *v;
	size_t i = 0;

	if (node->kind != PTC_DOC_LIST || !node->n || node->n > cap)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "%s must be a list of 1 to %zu numbers", what,
				     cap);
	v = ptc_calloc(node->n, sizeof *v);
	if (!v)
		return ptc_nomem(d->err);
	*ret_v = v;
	*ret_n = node->n;
	for (const struct ptc_doc_node *n = node->first; n; n = n->next, i++) {
		bool named = n->kind == PTC_DOC_TEXT && n->text[0] == '$';
		int rc = named ? parameter(d, n, &v[i]) : ptc_doc_int(d->doc, n, what, min, INT64_MAX, &v[i], d->err);

		if (rc)
			return rc;
	}
	return 0;
}

/* [sizes], or {ratio: [proportions]}. */
static int decode_blocks(struct ptc_job_decoder *d, const struct ptc_doc_node *node, struct ptc_split *s)
{
	static const char *const keys[] = { "ratio" };

	if (node->kind == PTC_DOC_MAP) {
		int rc = ptc_doc_check_map(d->doc, node, "blocks", keys, PTC_ARRAY_LEN(keys), d->err);

		if (rc)
			return rc;
		if (!node->first)
			return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "blocks has no \"ratio\"");
		node = node->first;
		s->ratio = true;
	}
	return decode_numbers(d, node, "blocks", MAX_BLOCKS, 1, &s->blocks, &s->nblocks);
}

/* An optional whole number; *value stays where the key is absent. */
static int optional_int(struct ptc_job_decoder *d, const struct ptc_doc_node *map, const char *key, int64_t min,
			int64_t max, int64_t *value)
{
	const struct ptc_doc_node *node = ptc_doc_get(map, key);

	if (node && node->kind == PTC_DOC_TEXT && node->text[0] == '$')
		return parameter(d, node, value);
	return node ? ptc_doc_int(d->doc, node, key, min, max, value, d->err) : 0;
}

static int decode_numbers_of_split(struct ptc_job_decoder *d, const struct ptc_doc_node *node, struct ptc_split *s)
{
	const struct ptc_doc_node *blocks = ptc_doc_get(node, "blocks"), *permute = ptc_doc_get(node, "permute");
	const struct ptc_doc_node *unit = ptc_doc_get(node, "unit");
	bool units = unit && unit->kind == PTC_DOC_LIST;
	int64_t dim = 0;
	size_t n = 0;
	int rc;

	rc = optional_int(d, node, "dim", 0, PTC_MAX_DIMS - 1, &dim);
	if (!rc && !units)
		rc = optional_int(d, node, "unit", 1, INT64_MAX, &s->unit);
	if (!rc && units)
		rc = decode_numbers(d, unit, "unit", MAX_BLOCKS, 1, &s->units, &n);
	if (!rc)
		rc = optional_int(d, node, "pad_to", 1, PAD_TO_MAX, &s->pad_to);
	if (!rc)
		rc = optional_int(d, node, "interleave", 1, INT64_MAX, &s->interleave);
	if (!rc && blocks)
		rc = decode_blocks(d, blocks, s);
	if (!rc && units && n != s->nblocks)
		rc = ptc_doc_error(
			d->doc, unit, d->err, PTC_EINVAL,
			"unit is a list of %zu, but \"blocks\" has %zu: write one number, or one for each block", n,
			s->nblocks);
	if (!rc && permute)
		rc = decode_numbers(d, permute, "permute", PTC_MAX_PERMUTED, 0, &s->permute, &s->npermute);
	s->dim = (uint32_t)dim;
	return rc;
}

static int decode_split(struct ptc_job_decoder *d, const struct ptc_doc_node *node, struct ptc_split *s)
{
	const struct ptc_doc_node *axis, *kind;
	size_t word = 0;
	int rc;

	rc = ptc_doc_check_map(d->doc, node, "split", split_keys, PTC_ARRAY_LEN(split_keys), d->err);
	if (rc)
		return rc;
	axis = ptc_doc_get(node, "axis");
	kind = ptc_doc_get(node, "kind");
	if (!axis)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "split has no \"axis\"");
	rc = ptc_doc_word(d->doc, axis, "axis", ptc_job_axes, PTC_JOB_AXES, &word, d->err);
	if (rc)
		return rc;
	s->axis = (enum ptc_axis)word;
	if (s->axis == PTC_AXIS_NONE)
		return node->n == 1 ? 0
				    : ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "axis none takes no other keys");
	if (!ptc_doc_get(node, "dim"))
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "split has no \"dim\"");
	word = PTC_SPLIT_EVEN;
	if (kind)
		rc = ptc_doc_word(d->doc, kind, "kind", ptc_job_kinds, PTC_JOB_KINDS, &word, d->err);
	s->kind = (enum ptc_split_kind)word;
	return rc ? rc : decode_numbers_of_split(d, node, s);
}

static int copy_numbers(struct ptc_job_decoder *d, const int64_t **v, size_t n)
{
	const int64_t *from = *v;
	int64_t *to = n ? ptc_calloc(n, sizeof *to) : NULL;

	*v = to;
	if (n && !to)
		return ptc_nomem(d->err);
	if (n)
		memcpy(to, from, n * sizeof *to);
	return 0;
}

int ptc_job_decode_splits(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const struct ptc_rule *base,
			  struct ptc_rule *r)
{
	size_t i = 0;
	int rc = 0;

	if (node && node->kind != PTC_DOC_LIST) {
		rc = decode_split(d, node, &r->splits[0]);
		r->whole = r->splits[0].axis == PTC_AXIS_NONE;
		return rc;
	}
	r->whole = !node && base && base->whole;
	if (node && (!node->n || node->n > PTC_MAX_SPLITS))
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				     "split must be a map or a list of 1 to %d of them", PTC_MAX_SPLITS);
	for (const struct ptc_doc_node *n = node ? node->first : NULL; n && !rc; n = n->next) {
		rc = decode_split(d, n, &r->splits[i++]);
		if (!rc && node->n > 1 && r->splits[i - 1].axis == PTC_AXIS_NONE)
			rc = ptc_doc_error(d->doc, n, d->err, PTC_EINVAL, "axis none must be the only split");
	}
	for (i = 0; !node && base && i < PTC_MAX_SPLITS && !rc; i++) {
		struct ptc_split *s = &r->splits[i];
		const int64_t *permute = base->splits[i].permute, *units = base->splits[i].units;

		*s = base->splits[i];
		s->permute = NULL; /* until it is our own */
		s->units = NULL;
		rc = copy_numbers(d, &s->blocks, s->nblocks);
		if (!rc && units) {
			s->units = units;
			rc = copy_numbers(d, &s->units, s->nblocks);
		}
		if (!rc) {
			s->permute = permute;
			rc = copy_numbers(d, &s->permute, s->npermute);
		}
	}
	return rc;
}

/* The pattern, or {match: pattern, order: [experts]}. */
int ptc_job_decode_expert(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const struct ptc_rule *base,
			  struct ptc_rule *r)
{
	const struct ptc_doc_node *match = node, *order = NULL;
	const char *text = NULL, *mark;
	int rc;

	if (!node) {
		r->expert = base && base->expert ? ptc_strdup(base->expert) : NULL;
		if (base && base->expert && !r->expert)
			return ptc_nomem(d->err);
		r->experts = base ? base->experts : NULL;
		r->nexperts = base ? base->nexperts : 0;
		return copy_numbers(d, &r->experts, r->nexperts);
	}
	if (node->kind == PTC_DOC_MAP) {
		rc = ptc_doc_check_map(d->doc, node, "expert", expert_keys, PTC_ARRAY_LEN(expert_keys), d->err);
		if (rc)
			return rc;
		match = ptc_doc_get(node, "match");
		order = ptc_doc_get(node, "order");
		if (!match)
			return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "expert has no \"match\"");
	}
	rc = ptc_doc_text(d->doc, match, "expert", &text, d->err);
	if (rc)
		return rc;
	mark = strstr(text, "{}");
	if (!mark || strstr(mark + 2, "{}") || strlen(text) > PTC_TENSOR_NAME_MAX)
		return ptc_doc_error(
			d->doc, match, d->err, PTC_EINVAL,
			"expert must be a pattern with one {} where the expert's number stands, not \"%.80s\"", text);
	r->expert = ptc_strdup(text);
	if (!r->expert)
		return ptc_nomem(d->err);
	return order ? decode_numbers(d, order, "order", PTC_MAX_PERMUTED, 0, &r->experts, &r->nexperts) : 0;
}

/* none, flat, config, or {dim: N}. */
int ptc_job_decode_shard(struct ptc_job_decoder *d, const struct ptc_doc_node *node, const struct ptc_rule *base,
			 struct ptc_rule *r)
{
	static const char *const keys[] = { "dim" };
	size_t word = 0;
	int64_t dim = 0;
	int rc;

	if (!node) {
		r->shard = base ? base->shard : PTC_SHARD_CONFIG;
		r->shard_dim = base ? base->shard_dim : 0;
		return 0;
	}
	if (node->kind != PTC_DOC_MAP) {
		rc = ptc_doc_word(d->doc, node, "shard", shards, PTC_ARRAY_LEN(shards), &word, d->err);
		r->shard = (enum ptc_shard)word;
		return rc;
	}
	rc = ptc_doc_check_map(d->doc, node, "shard", keys, PTC_ARRAY_LEN(keys), d->err);
	if (!rc && !node->first)
		rc = ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "shard has no \"dim\"");
	if (!rc)
		rc = ptc_doc_int(d->doc, node->first, "dim", 0, PTC_MAX_DIMS - 1, &dim, d->err);
	r->shard = PTC_SHARD_DIM;
	r->shard_dim = (uint32_t)dim;
	return rc;
}

static int decode_order(struct ptc_job_decoder *d, const struct ptc_doc_node *node, struct ptc_buffers *b)
{
	if (node->kind != PTC_DOC_LIST || !node->n || node->n > PTC_MAX_RULES)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL, "order must be a list of 1 to %d patterns",
				     PTC_MAX_RULES);
	b->order = ptc_calloc(node->n, sizeof *b->order);
	if (!b->order)
		return ptc_nomem(d->err);
	for (const struct ptc_doc_node *n = node->first; n; n = n->next) {
		const char *text = NULL;
		int rc = ptc_doc_text(d->doc, n, "a pattern", &text, d->err);

		if (rc)
			return rc;
		b->order[b->norder] = ptc_strdup(text);
		if (!b->order[b->norder++])
			return ptc_nomem(d->err);
	}
	return 0;
}

/* One pattern of group `number`. */
static int push_group(struct ptc_job_decoder *d, const struct ptc_doc_node *node, uint32_t number)
{
	struct ptc_buffers *b = &d->job->spec.buffers;
	const char *text = NULL;
	int rc = ptc_doc_text(d->doc, node, "a pattern", &text, d->err);

	if (rc)
		return rc;
	if (b->ngroups == PTC_MAX_RULES)
		return ptc_doc_error(d->doc, node, d->err, PTC_ELIMIT, "groups have more than %d patterns",
				     PTC_MAX_RULES);
	if (!PTC_MORE(b->groups, b->ngroups))
		return ptc_nomem(d->err);
	b->groups[b->ngroups] = (struct ptc_buffer_group){ ptc_strdup(text), number };
	return b->groups[b->ngroups++].glob ? 0 : ptc_nomem(d->err);
}

/* A list with a pattern, or a list of patterns, for each group. */
static int decode_groups(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	uint32_t number = 0;

	if (node->kind != PTC_DOC_LIST || !node->n)
		return ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				     "groups must be a list with a pattern, or a list of patterns, for each parameter "
				     "group");
	for (const struct ptc_doc_node *n = node->first; n; n = n->next, number++) {
		bool list = n->kind == PTC_DOC_LIST;
		int rc = list && !n->n ? ptc_doc_error(d->doc, n, d->err, PTC_EINVAL, "a group without patterns") : 0;

		for (const struct ptc_doc_node *p = list ? n->first : n; p && !rc; p = list ? p->next : NULL)
			rc = push_group(d, p, number);
		if (rc)
			return rc;
	}
	return 0;
}

static const char *const flags[] = { "false", "true" }, *const units[] = { "all", "layer" },
			 *const stages[] = { "all", "first" };

#define BUFFERS(key, member, ...) PTC_DOC_FIELD(struct ptc_buffers, key, member, __VA_ARGS__)
static const struct ptc_doc_row buffers_rows[] = {
	{ "order", PTC_DOC_OTHER },
	{ "groups", PTC_DOC_OTHER },
	BUFFERS("align", align, COUNT, .min = 1, .max = PTC_MAX_PADDING),
	BUFFERS("pad", pad, COUNT, .min = 1, .max = PTC_MAX_PADDING),
	BUFFERS("range", range, COUNT, .min = 1, .max = PTC_MAX_PADDING),
	BUFFERS("bucket", bucket, COUNT, .min = 1, .max = PTC_DOC_NO_MAX),
	BUFFERS("bucket_per_dp", bucket_per_dp, COUNT, .min = 1, .max = PTC_MAX_PADDING),
	BUFFERS("reverse", reverse, WORD, .max = 1, .words = flags),
	BUFFERS("unit", by_layer, WORD, .max = 1, .words = units),
	BUFFERS("bucket_stages", first_only, WORD, .max = 1, .words = stages),
};
const struct ptc_doc_table ptc_job_buffers_table = PTC_DOC_TABLE(buffers_rows);

/* Values of a rule set may be "$name". */
static int decode_values(struct ptc_job_decoder *d, const struct ptc_doc_node *map, struct ptc_buffers *b)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < ptc_job_buffers_table.n; i++) {
		const struct ptc_doc_row *row = &buffers_rows[i];
		const struct ptc_doc_node *node = ptc_doc_get(map, row->key);

		if (node && row->kind == PTC_DOC_COUNT && node->kind == PTC_DOC_TEXT && node->text[0] == '$')
			rc = parameter(d, node, (void *)((char *)b + row->offset));
		else
			rc = ptc_doc_read_to(d->doc, map, NULL, &(struct ptc_doc_table){ row, 1 }, b, d->err);
	}
	return rc;
}

/* buffers: of the job, or of the one rule set that has them. */
int ptc_job_decode_buffers(struct ptc_job_decoder *d, const struct ptc_doc_node *node)
{
	const struct ptc_doc_node *order = node ? ptc_doc_get(node, "order") : NULL;
	const struct ptc_doc_node *groups = node ? ptc_doc_get(node, "groups") : NULL;
	struct ptc_buffers *b = &d->job->spec.buffers;
	const char *known[PTC_ARRAY_LEN(buffers_rows)];
	int rc;

	if (!node || d->own_buffers)
		return 0;
	for (size_t i = 0; i < PTC_ARRAY_LEN(known); i++)
		known[i] = buffers_rows[i].key;
	rc = ptc_doc_check_map(d->doc, node, "buffers", known, PTC_ARRAY_LEN(known), d->err);
	if (!rc && d->has_buffers)
		rc = ptc_doc_error(d->doc, node, d->err, PTC_EINVAL,
				   "a second rule set with \"buffers\"; the job's own "
				   "\"buffers\" would go before both");
	d->has_buffers = true;
	if (!rc && order)
		rc = decode_order(d, order, b);
	if (!rc && groups)
		rc = decode_groups(d, groups);
	if (!rc)
		rc = decode_values(d, node, b);
	b->align = b->align == 1 ? 0 : b->align;
	b->pad = b->pad == 1 ? 0 : b->pad;
	b->range = b->range == 1 ? 0 : b->range;
	return rc;
}
