/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the winning rule of each item, and every error of a spec that shows without a configuration. A spec that passes
 * can be trusted by the rest of reshard/: names are unique and in order, sizes do not overflow, each rule fits the
 * shapes it wins. Errors name tensor, dim and sizes. */
#include "reshard/spec/lint.h"

#include "reshard/spec/glob.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "a,b,c" holds name. */
static bool list_has(const char *list, const char *name)
{
	size_t n = strlen(name);

	for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
		if (!strncmp(p, name, n) && (p[n] == ',' || p[n] == '\0'))
			return true;
	return false;
}

/* Is this rule one for field f (0: the parameter)? Its match is not looked at. */
static bool rule_is_for(const struct ptc_spec *s, const struct ptc_rule *r, size_t f)
{
	if (!r->fields)
		return true;
	return f > 0 && list_has(r->fields, s->fields[f - 1].name);
}

void ptc_spec_tensor_rules(const struct ptc_spec *s, size_t tensor, const struct ptc_rule *ret[1 + PTC_MAX_FIELDS])
{
	const char *name = s->tensors[tensor].name;
	size_t len = strlen(name), open = 1 + s->nfields;

	for (size_t f = 0; f <= s->nfields; f++)
		ret[f] = NULL;
	for (size_t i = 0; i < s->nrules && open; i++) {
		const struct ptc_rule *r = &s->rules[i];

		if (!ptc_glob_match(r->match, strlen(r->match), name, len))
			continue;
		for (size_t f = 0; f <= s->nfields; f++) {
			if (ret[f] || !rule_is_for(s, r, f))
				continue;
			ret[f] = r;
			open--;
		}
	}
}

const struct ptc_rule *ptc_spec_rule(const struct ptc_spec *s, size_t item)
{
	const struct ptc_rule *rules[1 + PTC_MAX_FIELDS];

	ptc_spec_tensor_rules(s, item / (1 + s->nfields), rules);
	return rules[item % (1 + s->nfields)];
}

const struct ptc_rule *ptc_spec_rule_named(const struct ptc_spec *s, const char *name)
{
	for (size_t i = 0; i < s->nrules; i++)
		if (!s->rules[i].fields &&
		    ptc_glob_match(s->rules[i].match, strlen(s->rules[i].match), name, strlen(name)))
			return &s->rules[i];
	return NULL;
}

/* Sizes of the blocks of a dim's first split against the dim. */
static int fits_blocks(const struct ptc_split *p, const struct ptc_rule *r, int64_t size, const char *name,
		       struct ptc_error *err)
{
	int64_t sum = 0, unit = PTC_MAX(p->unit, 1), pieces = PTC_MAX(p->interleave, 1);

	for (size_t i = 0; i < p->nblocks; i++) {
		unit = p->units ? p->units[i] : unit;
		if (ptc_ckd_add(&sum, sum, p->blocks[i]))
			sum = INT64_MAX;
		if (!p->ratio && !p->interleave && p->blocks[i] % unit)
			return ptc_error_set(err, PTC_ELAYOUT,
					     "tensor \"%s\": dim %u: block %zu (%lld) is not a multiple of unit %lld",
					     name, p->dim, i, (long long)p->blocks[i], (long long)unit);
		if (!p->ratio && p->blocks[i] % pieces)
			return ptc_error_set(
				err, PTC_ELAYOUT,
				"tensor \"%s\": dim %u: block %zu (%lld) cannot be interleaved in %lld pieces", name,
				p->dim, i, (long long)p->blocks[i], (long long)pieces);
	}
	if (!p->ratio && sum != size)
		return ptc_error_set(
			err, PTC_ELAYOUT,
			"tensor \"%s\": dim %u (%lld): blocks of rule \"%s\" sum to %lld: %lld elements %s", name,
			p->dim, (long long)size, r->match, (long long)sum,
			(long long)(sum < size ? size - sum : sum - size),
			sum < size ? "are in none" : "are in two or beyond the end");
	if (p->ratio && size % sum)
		return ptc_error_set(
			err, PTC_ELAYOUT,
			"tensor \"%s\": dim %u (%lld) is not divisible by %lld, the sum of its blocks' ratio", name,
			p->dim, (long long)size, (long long)sum);
	for (size_t i = 0; p->ratio && i < p->nblocks; i++) {
		unit = p->units ? p->units[i] : unit;
		if (size / sum * p->blocks[i] % (p->interleave ? pieces : unit))
			return ptc_error_set(err, PTC_ELAYOUT,
					     "tensor \"%s\": dim %u: block %zu (%" PRId64
					     ") is not a multiple of %s %" PRId64,
					     name, p->dim, i, size / sum * p->blocks[i],
					     p->interleave ? "interleave" : "unit", p->interleave ? pieces : unit);
	}
	return 0;
}

static int fits_split(const struct ptc_split *p, const struct ptc_tensor *t, const struct ptc_rule *r, bool first,
		      const char *name, struct ptc_error *err)
{
	int64_t size, unit = PTC_MAX(p->unit, 1);

	if (p->dim >= t->ndim)
		return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\": rule \"%s\" splits dim %u, but it has %u dims",
				     name, r->match, p->dim, t->ndim);
	if (!first)
		return 0; /* what is left for it depends on the degrees */
	size = t->shape[p->dim];
	if (p->nblocks) {
		int rc = fits_blocks(p, r, size, name, err);

		if (rc)
			return rc;
	}
	if ((!p->nblocks || p->interleave) && size % unit)
		return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\": dim %u (%lld) is not a multiple of unit %lld",
				     name, p->dim, (long long)size, (long long)unit);
	if (p->npermute && (int64_t)p->npermute != size / unit)
		return ptc_error_set(err, PTC_ELAYOUT,
				     "tensor \"%s\": dim %u (%lld) has %lld units of %lld, rule \"%s\" permutes %zu",
				     name, p->dim, (long long)size, (long long)(size / unit), (long long)unit, r->match,
				     p->npermute);
	return 0;
}

static int fits_splits(const struct ptc_tensor *t, const struct ptc_rule *r, const char *name, struct ptc_error *err)
{
	uint32_t dims = 0;

	for (size_t i = 0; i < PTC_MAX_SPLITS && r->splits[i].axis != PTC_AXIS_NONE; i++) {
		int rc = fits_split(&r->splits[i], t, r, !(dims & 1u << r->splits[i].dim), name, err);

		if (rc)
			return rc;
		dims |= 1u << r->splits[i].dim;
	}
	if (r->shard == PTC_SHARD_DIM && t->ndim && r->shard_dim >= t->ndim)
		return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\": rule \"%s\" shards dim %u, but it has %u dims",
				     name, r->match, r->shard_dim, t->ndim);
	return 0;
}

/* The number that stands for {} in the tensor's name. */
static int fits_pattern(const char *pattern, const char *what, const struct ptc_tensor *t, const struct ptc_rule *r,
			int64_t *ret, struct ptc_error *err)
{
	if (!ptc_layer_number(pattern, t->name, ret))
		return ptc_error_set(err, PTC_ELAYOUT,
				     "tensor \"%s\": %s pattern \"%s\" of rule \"%s\" does not match the whole name",
				     t->name, what, pattern, r->match);
	if (*ret >= PTC_MAX_TENSORS)
		return ptc_error_set(err, PTC_ELIMIT, "tensor \"%s\": %s %lld is above the limit of %u", t->name, what,
				     (long long)*ret, PTC_MAX_TENSORS);
	return 0;
}

/* What a parameter may be derived from: every rank that has an element of it can have it in the master, too. */
static int fits_master(const struct ptc_spec *s, size_t item, const struct ptc_rule *r, struct ptc_error *err)
{
	size_t master = item + ptc_rule_master(s, r);
	const struct ptc_rule *other = ptc_spec_rule(s, master);
	char name[PTC_ITEM_NAME_SIZE], from[PTC_ITEM_NAME_SIZE];

	ptc_item_name(s, item, name, sizeof name);
	ptc_item_name(s, master, from, sizeof from);
	if (ptc_item_dtype(s, item) != PTC_BF16 || ptc_item_dtype(s, master) != PTC_F32)
		return ptc_error_set(err, PTC_ELAYOUT,
				     "tensor \"%s\" (%s): rule \"%s\" derives it from \"%s\" (%s); only BF16 can be "
				     "derived, and only from F32",
				     name, ptc_dtype_name(ptc_item_dtype(s, item)), r->match, from,
				     ptc_dtype_name(ptc_item_dtype(s, master)));
	if (!ptc_rule_same_place(r, other))
		return ptc_error_set(err, PTC_ELAYOUT,
				     "tensor \"%s\": rule \"%s\" derives it from \"%s\", which is not placed alike",
				     name, r->match, from);
	if (other != r && other->carry != PTC_CARRY && other->carry != PTC_CARRY_REPLICATE)
		return ptc_error_set(err, PTC_ELAYOUT,
				     "tensor \"%s\": rule \"%s\" derives it from \"%s\", which is not carried", name,
				     r->match, from);
	return 0;
}

int ptc_rule_fits(const struct ptc_spec *s, size_t item, const struct ptc_rule *r, int64_t *ret_layer,
		  int64_t *ret_expert, struct ptc_error *err)
{
	const struct ptc_tensor *t = &s->tensors[item / (1 + s->nfields)];
	char name[PTC_ITEM_NAME_SIZE];
	int64_t layer = -1, expert = -1;
	int rc = 0;

	if (r && fits_splits(t, r, t->name, NULL)) /* few fail: a name is made for these only */
		rc = fits_splits(t, r, ptc_item_name(s, item, name, sizeof name), err);
	if (!rc && r && r->place == PTC_PLACE_LAYER) {
		layer = 0;
		if (r->layer)
			rc = fits_pattern(r->layer, "layer", t, r, &layer, err);
		layer += r->layer_offset;
	}
	if (!rc && r && r->expert)
		rc = fits_pattern(r->expert, "expert", t, r, &expert, err);
	if (!rc && r && r->master && item % (1 + s->nfields) == 0)
		rc = fits_master(s, item, r, err);
	if (rc)
		return rc;
	*ret_layer = layer;
	*ret_expert = expert;
	return 0;
}

static bool name_ok(const char *name, size_t max)
{
	size_t n = name ? strlen(name) : 0;

	for (size_t i = 0; i < n; i++)
		if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
			return false;
	return n > 0 && n <= max;
}

/* Products of dims, empty ones counted as 1, so that strides cannot overflow either. */
static int check_tensor(const struct ptc_tensor *t, int64_t *ret_elements, struct ptc_error *err)
{
	int64_t n = 1;

	if (!name_ok(t->name, PTC_TENSOR_NAME_MAX))
		return ptc_error_set(err, PTC_EINVAL,
				     "a tensor name is empty, longer than %d bytes or has control characters",
				     PTC_TENSOR_NAME_MAX);
	if ((uint32_t)t->dtype >= PTC_DTYPE_COUNT)
		return ptc_error_set(err, PTC_EINVAL, "tensor \"%s\": unknown dtype %d", t->name, (int)t->dtype);
	if (t->ndim > PTC_MAX_DIMS)
		return ptc_error_set(err, PTC_ELIMIT, "tensor \"%s\": %u dims, at most %d are supported", t->name,
				     t->ndim, PTC_MAX_DIMS);
	for (uint32_t d = 0; d < t->ndim; d++) {
		if (t->shape[d] < 0)
			return ptc_error_set(err, PTC_EINVAL, "tensor \"%s\": dim %u is negative (%lld)", t->name, d,
					     (long long)t->shape[d]);
		if (ptc_ckd_mul(&n, n, PTC_MAX(t->shape[d], 1)))
			return ptc_error_set(err, PTC_ELIMIT, "tensor \"%s\": its size overflows 64 bits", t->name);
	}
	*ret_elements = n;
	return 0;
}

static int check_tensors(const struct ptc_spec *s, struct ptc_error *err)
{
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS], n = 0, bits, total = 0;

	for (size_t i = 0; i < s->ntensors; i++) {
		int rc = check_tensor(&s->tensors[i], &n, err);

		if (rc)
			return rc;
		if (i && strcmp(s->tensors[i - 1].name, s->tensors[i].name) >= 0)
			return ptc_error_set(err, PTC_EINVAL, "tensor \"%s\" %s", s->tensors[i].name,
					     strcmp(s->tensors[i - 1].name, s->tensors[i].name) ? "is not in name order"
												: "appears twice");
		for (size_t f = 0; f <= s->nfields; f++) {
			size_t item = i * (1 + s->nfields) + f;

			if (ptc_ckd_mul(&bits, n, (int64_t)ptc_dtype_bits(ptc_item_dtype(s, item))) ||
			    ptc_ckd_add(&total, total, bits / 8))
				return ptc_error_set(err, PTC_ELIMIT, "tensor \"%s\": total size overflows 64 bits",
						     s->tensors[i].name);
			rc = ptc_item_byte_shape(s, item, &ndim, shape, err);
			if (rc)
				return rc;
		}
	}
	return 0;
}

static int check_fields(const struct ptc_spec *s, struct ptc_error *err)
{
	for (size_t i = 0; i < s->nfields; i++) {
		const struct ptc_field *f = &s->fields[i];

		if (!name_ok(f->name, PTC_FIELD_NAME_MAX) || strpbrk(f->name, ",:"))
			return ptc_error_set(err, PTC_EINVAL,
					     "field %zu: a name is 1 to %d characters without ',' and ':'", i,
					     PTC_FIELD_NAME_MAX);
		if (!f->same_dtype && (uint32_t)f->dtype >= PTC_DTYPE_COUNT)
			return ptc_error_set(err, PTC_EINVAL, "field \"%s\": unknown dtype %d", f->name, (int)f->dtype);
		for (size_t k = 0; k < i; k++)
			if (!strcmp(s->fields[k].name, f->name))
				return ptc_error_set(err, PTC_EINVAL, "field \"%s\" appears twice", f->name);
	}
	return 0;
}

/* Each of 0 to n - 1 once. */
static bool is_permutation(const int64_t *v, size_t n)
{
	bool seen[PTC_MAX_PERMUTED] = { false };

	if (n > PTC_MAX_PERMUTED)
		return false;
	for (size_t i = 0; i < n; i++) {
		if (v[i] < 0 || (size_t)v[i] >= n || seen[v[i]])
			return false;
		seen[v[i]] = true;
	}
	return true;
}

static int check_blocks(const struct ptc_split *p, const struct ptc_rule *r, struct ptc_error *err)
{
	int64_t sum = 0;

	if (!p->nblocks && (p->ratio || p->interleave))
		return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": interleave and a ratio need blocks", r->match);
	for (size_t i = 0; i < p->nblocks; i++) {
		if (p->blocks[i] <= 0)
			return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": block %zu (%lld) must be positive",
					     r->match, i, (long long)p->blocks[i]);
		if (ptc_ckd_add(&sum, sum, p->blocks[i]))
			return ptc_error_set(err, PTC_ELIMIT, "rule \"%s\": the sum of its blocks overflows 64 bits",
					     r->match);
	}
	return 0;
}

static int check_split(const struct ptc_split *p, const struct ptc_rule *r, struct ptc_error *err)
{
	if (p->axis == PTC_AXIS_NONE) {
		if (p->nblocks || p->unit || p->pad_to || p->npermute)
			return ptc_error_set(err, PTC_EINVAL,
					     "rule \"%s\": blocks, unit, pad_to and permute need an axis to split over",
					     r->match);
		return 0;
	}
	if ((uint32_t)p->axis > PTC_AXIS_CP || (uint32_t)p->kind > PTC_SPLIT_BALANCED || p->dim >= PTC_MAX_DIMS)
		return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": unknown axis, kind or dim", r->match);
	if (p->unit < 0 || p->pad_to < 0 || p->interleave < 0)
		return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": unit, pad_to and interleave must not be negative",
				     r->match);
	if (p->pad_to && (p->nblocks || p->unit > 1)) /* unit 1 pads as none does */
		return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": pad_to cannot be combined with blocks or unit",
				     r->match);
	if (p->units && (!p->nblocks || p->unit || p->interleave || p->npermute))
		return ptc_error_set(err, PTC_EINVAL,
				     "rule \"%s\": a list of units has one for each of \"blocks\", which interleave "
				     "and permute cannot reorder",
				     r->match);
	for (size_t i = 0; p->units && i < p->nblocks; i++)
		if (p->units[i] < 1)
			return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": unit %zu (%lld) must be positive", r->match,
					     i, (long long)p->units[i]);
	if (!is_permutation(p->permute, p->npermute))
		return ptc_error_set(err, PTC_EINVAL,
				     "rule \"%s\": permute must have each number from 0 to %zu once (at most %d)",
				     r->match, p->npermute - 1, PTC_MAX_PERMUTED);
	return check_blocks(p, r, err);
}

static int check_splits(const struct ptc_rule *r, struct ptc_error *err)
{
	uint32_t axes = 0;

	for (size_t i = 0; i < PTC_MAX_SPLITS; i++) {
		const struct ptc_split *p = &r->splits[i];
		int rc = check_split(p, r, err);

		if (rc)
			return rc;
		if (p->axis == PTC_AXIS_NONE)
			continue;
		if (i && r->splits[i - 1].axis == PTC_AXIS_NONE)
			return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": a split follows one of axis none",
					     r->match);
		if (axes & 1u << p->axis)
			return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": splits over one axis twice", r->match);
		axes |= 1u << p->axis;
	}
	if ((axes & 1u << PTC_AXIS_ETP || axes & 1u << PTC_AXIS_EP || r->expert) &&
	    axes & ~(1u << PTC_AXIS_ETP | 1u << PTC_AXIS_EP))
		return ptc_error_set(
			err, PTC_EINVAL,
			"rule \"%s\": ep and etp divide the ranks of tp, cp and dp anew, so it cannot split "
			"over one of those too",
			r->match);
	if (r->expert && axes & 1u << PTC_AXIS_EP)
		return ptc_error_set(err, PTC_EINVAL,
				     "rule \"%s\": expert places whole tensors on the ep axis, so it "
				     "cannot be split over ep too",
				     r->match);
	return 0;
}

static int count_holes(const char *pattern)
{
	int n = 0;

	for (const char *p = pattern; (p = strstr(p, "{}")); p += 2)
		n++;
	return n;
}

static int check_expert(const struct ptc_rule *r, struct ptc_error *err)
{
	if (r->expert && count_holes(r->expert) != 1)
		return ptc_error_set(err, PTC_EINVAL,
				     "rule \"%s\": expert pattern \"%s\" needs exactly one {} for the expert's index",
				     r->match, r->expert);
	if (r->nexperts && !r->expert)
		return ptc_error_set(err, PTC_EINVAL,
				     "rule \"%s\": experts needs an expert pattern, whose tensors it orders", r->match);
	if (!is_permutation(r->experts, r->nexperts))
		return ptc_error_set(err, PTC_EINVAL,
				     "rule \"%s\": experts must have each number from 0 to %zu once (at most %d)",
				     r->match, r->nexperts - 1, PTC_MAX_PERMUTED);
	if ((uint32_t)r->shard > PTC_SHARD_DIM || r->shard_dim >= PTC_MAX_DIMS)
		return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": unknown shard or dim", r->match);
	return 0;
}

static int check_place(const struct ptc_rule *r, struct ptc_error *err)
{
	if ((uint32_t)r->place > PTC_PLACE_ENDS || (uint32_t)r->carry > PTC_CARRY_REFUSE)
		return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": unknown place or state", r->match);
	if (r->place != PTC_PLACE_LAYER && (r->layer || r->layer_offset))
		return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": a layer pattern needs placement by layer",
				     r->match);
	if (r->layer_offset < 0 || r->layer_offset >= PTC_MAX_TENSORS)
		return ptc_error_set(err, PTC_ELIMIT, "rule \"%s\": layer offset %lld is not from 0 to %u", r->match,
				     (long long)r->layer_offset, PTC_MAX_TENSORS - 1);
	if (r->layer && count_holes(r->layer) != 1)
		return ptc_error_set(err, PTC_EINVAL,
				     "rule \"%s\": layer pattern \"%s\" needs exactly one {} for the layer index",
				     r->match, r->layer);
	return 0;
}

size_t ptc_rule_master(const struct ptc_spec *s, const struct ptc_rule *r)
{
	size_t f = s->nfields;

	while (f && strcmp(s->fields[f - 1].name, r->master) != 0)
		f--;
	return f;
}

static int check_primary(const struct ptc_rule *r, struct ptc_error *err)
{
	bool dense = r->primary == PTC_AXIS_TP || r->primary == PTC_AXIS_DP || r->primary == PTC_AXIS_CP;

	if (r->primary != PTC_AXIS_NONE && (!dense || r->carry != PTC_CARRY_REPLICATE))
		return ptc_error_set(err, PTC_EINVAL,
				     "rule \"%s\": primary needs state replicate and the axis tp, dp or cp", r->match);
	return 0;
}

static int check_master(const struct ptc_spec *s, const struct ptc_rule *r, struct ptc_error *err)
{
	if (!r->master)
		return 0;
	if (r->carry != PTC_CARRY_DERIVE || r->fields)
		return ptc_error_set(
			err, PTC_EINVAL,
			"rule \"%s\": only a rule for parameters with state derive names a field to derive from",
			r->match);
	if (!ptc_rule_master(s, r))
		return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": there is no field \"%.*s\" to derive from",
				     r->match, PTC_FIELD_NAME_MAX, r->master);
	return 0;
}

static int check_rule_fields(const struct ptc_spec *s, const struct ptc_rule *r, struct ptc_error *err)
{
	for (const char *p = r->fields; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
		size_t n = strcspn(p, ","), f = 0;

		while (f < s->nfields && (strlen(s->fields[f].name) != n || strncmp(s->fields[f].name, p, n)))
			f++;
		if (f == s->nfields)
			return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": there is no field \"%.*s\"", r->match,
					     (int)PTC_MIN(n, (size_t)PTC_FIELD_NAME_MAX), p);
	}
	return 0;
}

static int check_buffers(const struct ptc_buffers *b, struct ptc_error *err)
{
	if (b->norder > PTC_MAX_RULES || b->ngroups > PTC_MAX_RULES)
		return ptc_error_set(err, PTC_ELIMIT, "buffers: more than %d patterns in order or groups",
				     PTC_MAX_RULES);
	for (size_t i = 0; i < b->norder; i++)
		if (!b->order[i] || strlen(b->order[i]) > PTC_TENSOR_NAME_MAX || !ptc_glob_valid(b->order[i]) ||
		    count_holes(b->order[i]) > 2)
			return ptc_error_set(err, PTC_EINVAL,
					     "buffers: pattern %zu is empty, too long, has an open [ or three {}", i);
	for (size_t i = 0; i < b->ngroups; i++)
		if (!b->groups[i].glob || strlen(b->groups[i].glob) > PTC_TENSOR_NAME_MAX ||
		    !ptc_glob_valid(b->groups[i].glob))
			return ptc_error_set(err, PTC_EINVAL,
					     "buffers: a pattern of group %u is empty, too long or has an open [",
					     b->groups[i].number);
	if (b->bucket_per_dp < 0 || b->bucket_per_dp > PTC_MAX_PADDING)
		return ptc_error_set(err, PTC_EINVAL, "buffers: bucket_per_dp must be 1 to %lld elements",
				     (long long)PTC_MAX_PADDING);
	if (b->align < 0 || b->pad < 0 || b->range < 0 || b->range > PTC_MAX_PADDING || b->bucket < 0 ||
	    b->align > PTC_MAX_PADDING || b->pad > PTC_MAX_PADDING)
		return ptc_error_set(err, PTC_EINVAL,
				     "buffers: align, pad and range must be 1 to %lld elements, bucket at least 1",
				     (long long)PTC_MAX_PADDING);
	return 0;
}

int ptc_spec_check(const struct ptc_spec *s, struct ptc_error *err)
{
	int rc;

	if (s->ntensors > PTC_MAX_TENSORS || s->nfields > PTC_MAX_FIELDS || s->nrules > PTC_MAX_RULES)
		return ptc_error_set(err, PTC_ELIMIT, "%zu tensors, %zu fields, %zu rules: at most %u, %d and %d",
				     s->ntensors, s->nfields, s->nrules, PTC_MAX_TENSORS, PTC_MAX_FIELDS,
				     PTC_MAX_RULES);
	rc = check_fields(s, err);
	if (!rc)
		rc = check_buffers(&s->buffers, err);
	if (!rc)
		rc = check_tensors(s, err);
	for (size_t i = 0; i < s->nrules && !rc; i++) {
		const struct ptc_rule *r = &s->rules[i];

		if (!r->match || strlen(r->match) > PTC_TENSOR_NAME_MAX || !ptc_glob_valid(r->match))
			return ptc_error_set(err, PTC_EINVAL, "rule %zu: match is empty, too long or has an open [", i);
		rc = check_splits(r, err);
		if (!rc)
			rc = check_place(r, err);
		if (!rc)
			rc = check_expert(r, err);
		if (!rc)
			rc = check_rule_fields(s, r, err);
		if (!rc)
			rc = check_primary(r, err);
		if (!rc)
			rc = check_master(s, r, err);
	}
	return rc;
}

/* A rule made for certain fields that matches a tensor but never gets to rule one was surely not meant so. */
static int check_shadowed(const struct ptc_spec *s, const bool *won, struct ptc_error *err)
{
	for (size_t i = 0; i < s->nrules; i++) {
		const struct ptc_rule *r = &s->rules[i];

		if (!r->fields || won[i])
			continue;
		for (size_t t = 0; t < s->ntensors; t++)
			if (ptc_glob_match(r->match, strlen(r->match), s->tensors[t].name, strlen(s->tensors[t].name)))
				return ptc_error_set(
					err, PTC_EINVAL,
					"rule %zu (\"%s\" for fields %s) never applies: an earlier rule takes tensor "
					"\"%s\"; put it first",
					i, r->match, r->fields, s->tensors[t].name);
	}
	return 0;
}

static int compare_name(const void *name, const void *tensor)
{
	return strcmp(name, ((const struct ptc_tensor *)tensor)->name);
}

/* A field's part of a tensor is called TENSOR:FIELD wherever one name must do: no tensor may be called so, too. */
static int check_item_names(const struct ptc_spec *s, struct ptc_error *err)
{
	for (size_t i = 0; i < s->ntensors && s->nfields; i++) {
		const char *name = s->tensors[i].name, *colon = strrchr(name, ':');
		char base[PTC_TENSOR_NAME_MAX + 1];

		if (!colon)
			continue;
		snprintf(base, sizeof(base), "%.*s", (int)(colon - name), name);
		for (size_t f = 0; f < s->nfields; f++)
			if (!strcmp(colon + 1, s->fields[f].name) &&
			    bsearch(base, s->tensors, s->ntensors, sizeof(s->tensors[0]), compare_name))
				return ptc_error_set(err, PTC_EINVAL,
						     "tensor \"%s\" has the name of field \"%s\" of tensor \"%s\"; "
						     "rename the tensor or the field",
						     name, colon + 1, base);
	}
	return 0;
}

int ptc_spec_lint(const struct ptc_spec *s, struct ptc_error *err)
{
	const struct ptc_rule *rules[1 + PTC_MAX_FIELDS];
	bool won[PTC_MAX_RULES] = { false };
	int64_t layer, expert;
	int rc = ptc_spec_check(s, err);

	if (!rc)
		rc = check_item_names(s, err);
	for (size_t t = 0; t < s->ntensors && !rc; t++) {
		ptc_spec_tensor_rules(s, t, rules);
		for (size_t f = 0; f <= s->nfields && !rc; f++) {
			if (rules[f])
				won[rules[f] - s->rules] = true;
			if (f == 0 || rules[f] != rules[f - 1]) /* what fits the parameter fits its fields */
				rc = ptc_rule_fits(s, t * (1 + s->nfields) + f, rules[f], &layer, &expert, err);
		}
	}
	return rc ? rc : check_shadowed(s, won, err);
}
