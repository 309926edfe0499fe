/* SPDX-License-Identifier: Apache-2.0 */
/* What items are: dtypes, names, byte shapes and byte boxes. Failure modes:
 * a shape or box of a sub-byte dtype that does not fall on bytes
 * (PTC_ELAYOUT naming the item). Sizes were checked by ptc_spec_check, so the
 * products here cannot overflow. */
#include "reshard/spec/spec.h"

#include "base/alloc.h"
#include "base/check.h"
#include "reshard/spec/config.h"

#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	uint32_t bits;
} dtypes[PTC_DTYPE_COUNT] = {
	[PTC_BOOL] = { "BOOL", 8 },
	[PTC_F4] = { "F4", 4 },
	[PTC_F6_E2M3] = { "F6_E2M3", 6 },
	[PTC_F6_E3M2] = { "F6_E3M2", 6 },
	[PTC_U8] = { "U8", 8 },
	[PTC_I8] = { "I8", 8 },
	[PTC_F8_E5M2] = { "F8_E5M2", 8 },
	[PTC_F8_E4M3] = { "F8_E4M3", 8 },
	[PTC_F8_E5M2FNUZ] = { "F8_E5M2FNUZ", 8 },
	[PTC_F8_E4M3FNUZ] = { "F8_E4M3FNUZ", 8 },
	[PTC_F8_E8M0] = { "F8_E8M0", 8 },
	[PTC_I16] = { "I16", 16 },
	[PTC_U16] = { "U16", 16 },
	[PTC_F16] = { "F16", 16 },
	[PTC_BF16] = { "BF16", 16 },
	[PTC_I32] = { "I32", 32 },
	[PTC_U32] = { "U32", 32 },
	[PTC_F32] = { "F32", 32 },
	[PTC_C64] = { "C64", 64 },
	[PTC_F64] = { "F64", 64 },
	[PTC_I64] = { "I64", 64 },
	[PTC_U64] = { "U64", 64 },
};

uint32_t ptc_dtype_bits(enum ptc_dtype t)
{
	return (uint32_t)t < PTC_DTYPE_COUNT ? dtypes[t].bits : 0;
}

const char *ptc_dtype_name(enum ptc_dtype t)
{
	return (uint32_t)t < PTC_DTYPE_COUNT ? dtypes[t].name : "?";
}

bool ptc_dtype_parse(const char *name, enum ptc_dtype *ret)
{
	for (int t = 0; t < PTC_DTYPE_COUNT; t++) {
		if (strcmp(dtypes[t].name, name))
			continue;
		*ret = (enum ptc_dtype)t;
		return true;
	}
	return false;
}

static void free_const(const void *p)
{
	ptc_free((void *)(uintptr_t)p);
}

void ptc_rule_done(struct ptc_rule *r)
{
	free_const(r->match);
	for (size_t i = 0; i < PTC_MAX_SPLITS; i++) {
		free_const(r->splits[i].blocks);
		free_const(r->splits[i].permute);
		free_const(r->splits[i].units);
	}
	free_const(r->layer);
	free_const(r->expert);
	free_const(r->experts);
	free_const(r->fields);
	free_const(r->master);
	*r = (struct ptc_rule){ 0 };
}

void ptc_spec_done(struct ptc_spec *spec)
{
	if (!spec)
		return;
	for (size_t i = 0; spec->tensors && i < spec->ntensors; i++)
		free_const(spec->tensors[i].name);
	for (size_t i = 0; spec->fields && i < spec->nfields; i++)
		free_const(spec->fields[i].name);
	for (size_t i = 0; spec->rules && i < spec->nrules; i++) {
		ptc_rule_done(&spec->rules[i]);
	}
	for (size_t i = 0; spec->buffers.order && i < spec->buffers.norder; i++)
		free_const(spec->buffers.order[i]);
	free_const(spec->buffers.order);
	for (size_t i = 0; spec->buffers.groups && i < spec->buffers.ngroups; i++)
		free_const(spec->buffers.groups[i].glob);
	ptc_free(spec->buffers.groups);
	free_const(spec->name);
	ptc_free(spec->tensors);
	ptc_free(spec->fields);
	ptc_free(spec->rules);
	*spec = (struct ptc_spec){ 0 };
}

static const struct ptc_tensor *tensor_of(const struct ptc_spec *s, size_t item)
{
	return &s->tensors[item / (1 + s->nfields)];
}

enum ptc_dtype ptc_item_dtype(const struct ptc_spec *s, size_t item)
{
	size_t f = item % (1 + s->nfields);

	if (f == 0 || s->fields[f - 1].same_dtype)
		return tensor_of(s, item)->dtype;
	return s->fields[f - 1].dtype;
}

const char *ptc_item_name(const struct ptc_spec *s, size_t item, char *buf, size_t size)
{
	size_t f = item % (1 + s->nfields);

	if (f)
		snprintf(buf, size, "%s:%s", tensor_of(s, item)->name, s->fields[f - 1].name);
	else
		snprintf(buf, size, "%s", tensor_of(s, item)->name);
	return buf;
}

/* How many leading dims of the tensor are dims of their own in bytes; the rest is one run of elements, *ret_row long.
 * false when no merge gives whole bytes. */
static bool byte_rows(const struct ptc_tensor *t, uint32_t bits, uint32_t *ret_lead, int64_t *ret_row)
{
	int64_t row = t->ndim ? t->shape[t->ndim - 1] : 1;
	uint32_t lead = t->ndim ? t->ndim - 1 : 0;

	while (row * bits % 8 && lead > 0)
		row *= t->shape[--lead];
	*ret_lead = lead;
	*ret_row = row;
	return row * bits % 8 == 0;
}

int ptc_item_byte_shape(const struct ptc_spec *s, size_t item, uint32_t *ret_ndim, int64_t *ret_shape,
			struct ptc_error *err)
{
	const struct ptc_tensor *t = tensor_of(s, item);
	enum ptc_dtype dtype = ptc_item_dtype(s, item);
	char name[PTC_ITEM_NAME_SIZE];
	uint32_t lead;
	int64_t row;

	if (!byte_rows(t, ptc_dtype_bits(dtype), &lead, &row))
		return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\": %lld elements of %s are not whole bytes",
				     ptc_item_name(s, item, name, sizeof name), (long long)row, ptc_dtype_name(dtype));
	for (uint32_t d = 0; d < lead; d++)
		ret_shape[d] = t->shape[d];
	ret_shape[lead] = row * ptc_dtype_bits(dtype) / 8;
	*ret_ndim = lead + 1;
	return 0;
}

/* Elements [*ret_first, + *ret_count) of the run that the dims from lead on form; false when the box is not one run. */
static bool merged_run(const struct ptc_tensor *t, const struct ptc_box *e, uint32_t lead, int64_t *ret_first,
		       int64_t *ret_count)
{
	int64_t first = 0, count = 1;
	bool partial = false;

	for (uint32_t d = lead; d < t->ndim; d++) {
		first = first * t->shape[d] + e->off[d];
		count *= e->ext[d];
		if (partial && e->ext[d] != t->shape[d])
			return false;
		partial |= e->ext[d] != 1;
	}
	*ret_first = first;
	*ret_count = count;
	return true;
}

int ptc_item_byte_box(const struct ptc_spec *s, size_t item, const struct ptc_box *e, struct ptc_box *ret_bytes,
		      struct ptc_error *err)
{
	const struct ptc_tensor *t = tensor_of(s, item);
	enum ptc_dtype dtype = ptc_item_dtype(s, item);
	uint32_t bits = ptc_dtype_bits(dtype), lead;
	char name[PTC_ITEM_NAME_SIZE];
	struct ptc_box b = { 0 };
	int64_t row, first, count;

	if (ptc_fails(e->ndim == t->ndim))
		return ptc_error_set(err, PTC_EINTERNAL, "tensor \"%s\": a box has %u dims, but the tensor has %u",
				     ptc_item_name(s, item, name, sizeof name), e->ndim, t->ndim);
	if (!byte_rows(t, bits, &lead, &row))
		return ptc_item_byte_shape(s, item, &lead, &row, err);
	if (!merged_run(t, e, lead, &first, &count) || first * bits % 8 || count * bits % 8)
		return ptc_error_set(err, PTC_ELAYOUT,
				     "tensor \"%s\": a cut at element %lld of a row, %lld elements of %s (%u bits), "
				     "does not fall on a byte",
				     ptc_item_name(s, item, name, sizeof name),
				     (long long)(t->ndim ? e->off[t->ndim - 1] : 0),
				     (long long)(t->ndim ? e->ext[t->ndim - 1] : 1), ptc_dtype_name(dtype), bits);
	b.ndim = lead + 1;
	for (uint32_t d = 0; d < lead; d++) {
		b.off[d] = e->off[d];
		b.ext[d] = e->ext[d];
	}
	b.off[lead] = first * bits / 8;
	b.ext[lead] = count * bits / 8;
	*ret_bytes = b;
	return 0;
}

int64_t ptc_item_bytes(const struct ptc_spec *s, size_t item)
{
	const struct ptc_tensor *t = tensor_of(s, item);
	struct ptc_box whole = ptc_box_whole(t->ndim, t->shape);

	return ptc_box_volume(&whole) * ptc_dtype_bits(ptc_item_dtype(s, item)) / 8;
}

bool ptc_rule_is_primary(const struct ptc_rule *r, const struct ptc_config *c, uint32_t rank)
{
	struct ptc_coords k = ptc_config_coords(c, rank);

	switch (r ? r->primary : PTC_AXIS_NONE) {
	case PTC_AXIS_TP:
		return r->primary_at >= c->tp || k.tp == r->primary_at;
	case PTC_AXIS_DP:
		return r->primary_at >= c->dp || k.dp == r->primary_at;
	case PTC_AXIS_CP:
		return r->primary_at >= c->cp || k.cp == r->primary_at;
	default:
		return true;
	}
}
