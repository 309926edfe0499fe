/* SPDX-License-Identifier: Apache-2.0 */
/* Which rule rules what, and everything about a spec that can be wrong
 * without knowing a configuration. A spec that passes can be trusted by the
 * rest of reshard/: names are unique and in order, sizes do not overflow,
 * each rule fits the shapes it wins. Errors name tensor, dim and sizes. */
#include "reshard/internal.h"

#include "base/check.h"

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

static int fits_split(const struct ptc_spec *s, size_t item, const struct ptc_rule *r, const char *name,
		      struct ptc_error *err)
{
	const struct ptc_tensor *t = &s->tensors[item / (1 + s->nfields)];
	int64_t size, sum = 0, unit = PTC_MAX(r->unit, 1);

	if (r->dim >= t->ndim)
		return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\": rule \"%s\" splits dim %u, but it has %u dims",
				     name, r->match, r->dim, t->ndim);
	size = t->shape[r->dim];
	for (size_t i = 0; i < r->nblocks; i++) {
		if (ptc_ckd_add(&sum, sum, r->blocks[i]))
			sum = INT64_MAX;
		if (r->blocks[i] % unit)
			return ptc_error_set(err, PTC_ELAYOUT,
					     "tensor \"%s\": dim %u: block %zu (%lld) is not a multiple of unit %lld",
					     name, r->dim, i, (long long)r->blocks[i], (long long)unit);
	}
	if (r->nblocks && sum != size)
		return ptc_error_set(err, PTC_ELAYOUT,
				     "tensor \"%s\": dim %u (%lld): blocks of rule \"%s\" sum to %lld", name, r->dim,
				     (long long)size, r->match, (long long)sum);
	if (!r->nblocks && size % unit)
		return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\": dim %u (%lld) is not a multiple of unit %lld",
				     name, r->dim, (long long)size, (long long)unit);
	return 0;
}

int ptc_rule_fits(const struct ptc_spec *s, size_t item, const struct ptc_rule *r, int64_t *ret_layer,
		  struct ptc_error *err)
{
	const struct ptc_tensor *t = &s->tensors[item / (1 + s->nfields)];
	char name[PTC_ITEM_NAME_SIZE];
	int64_t layer = -1;
	int rc;

	ptc_item_name(s, item, name, sizeof name);
	if (r && r->axis != PTC_AXIS_NONE) {
		rc = fits_split(s, item, r, name, err);
		if (rc)
			return rc;
	}
	if (r && r->place == PTC_PLACE_LAYER) {
		if (!ptc_layer_match(r->layer, t->name, &layer))
			return ptc_error_set(err, PTC_ELAYOUT,
					     "tensor \"%s\": layer pattern \"%s\" of rule \"%s\" does not fit its name",
					     name, r->layer, r->match);
		if (layer >= PTC_MAX_TENSORS)
			return ptc_error_set(err, PTC_ELIMIT, "tensor \"%s\": layer %lld is above the limit of %u",
					     name, (long long)layer, PTC_MAX_TENSORS);
	}
	*ret_layer = layer;
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
												: "is there twice");
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
				return ptc_error_set(err, PTC_EINVAL, "field \"%s\" is there twice", f->name);
	}
	return 0;
}

static int check_split(const struct ptc_rule *r, struct ptc_error *err)
{
	if (r->axis == PTC_AXIS_NONE) {
		if (r->nblocks || r->unit || r->pad_to)
			return ptc_error_set(err, PTC_EINVAL,
					     "rule \"%s\": blocks, unit and pad_to need an axis to split over",
					     r->match);
		return 0;
	}
	if ((uint32_t)r->axis > PTC_AXIS_ETP || (uint32_t)r->kind > PTC_SPLIT_BALANCED)
		return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": unknown axis or kind", r->match);
	if (r->unit < 0 || r->pad_to < 0)
		return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": unit and pad_to must not be negative", r->match);
	if (r->pad_to && (r->nblocks || r->unit > 1))
		return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": pad_to cannot be combined with blocks or unit",
				     r->match);
	for (size_t i = 0; i < r->nblocks; i++)
		if (r->blocks[i] <= 0)
			return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": block %zu (%lld) must be positive",
					     r->match, i, (long long)r->blocks[i]);
	return 0;
}

static int check_place(const struct ptc_rule *r, struct ptc_error *err)
{
	const char *hole = r->layer ? strstr(r->layer, "{}") : NULL;

	if ((uint32_t)r->place > PTC_PLACE_ENDS || (uint32_t)r->carry > PTC_CARRY_REFUSE)
		return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": unknown place or state", r->match);
	if ((r->place == PTC_PLACE_LAYER) != (r->layer != NULL))
		return ptc_error_set(err, PTC_EINVAL, "rule \"%s\": a layer pattern goes with placement by layer",
				     r->match);
	if (r->layer && (!hole || strstr(hole + 2, "{}")))
		return ptc_error_set(err, PTC_EINVAL,
				     "rule \"%s\": layer pattern \"%s\" needs exactly one {} for the layer index",
				     r->match, r->layer);
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

int ptc_spec_check(const struct ptc_spec *s, struct ptc_error *err)
{
	int rc;

	if (s->ntensors > PTC_MAX_TENSORS || s->nfields > PTC_MAX_FIELDS || s->nrules > PTC_MAX_RULES)
		return ptc_error_set(err, PTC_ELIMIT, "%zu tensors, %zu fields, %zu rules: at most %u, %d and %d",
				     s->ntensors, s->nfields, s->nrules, PTC_MAX_TENSORS, PTC_MAX_FIELDS,
				     PTC_MAX_RULES);
	rc = check_fields(s, err);
	if (!rc)
		rc = check_tensors(s, err);
	for (size_t i = 0; i < s->nrules && !rc; i++) {
		const struct ptc_rule *r = &s->rules[i];

		if (!r->match || strlen(r->match) > PTC_TENSOR_NAME_MAX || !ptc_glob_valid(r->match))
			return ptc_error_set(err, PTC_EINVAL, "rule %zu: match is empty, too long or has an open [", i);
		rc = check_split(r, err);
		if (!rc)
			rc = check_place(r, err);
		if (!rc)
			rc = check_rule_fields(s, r, err);
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

int ptc_spec_lint(const struct ptc_spec *s, struct ptc_error *err)
{
	const struct ptc_rule *rules[1 + PTC_MAX_FIELDS];
	bool won[PTC_MAX_RULES] = { false };
	int64_t layer;
	int rc = ptc_spec_check(s, err);

	for (size_t t = 0; t < s->ntensors && !rc; t++) {
		ptc_spec_tensor_rules(s, t, rules);
		for (size_t f = 0; f <= s->nfields && !rc; f++) {
			if (rules[f])
				won[rules[f] - s->rules] = true;
			rc = ptc_rule_fits(s, t * (1 + s->nfields) + f, rules[f], &layer, err);
		}
	}
	return rc ? rc : check_shadowed(s, won, err);
}
