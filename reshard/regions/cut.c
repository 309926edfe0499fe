/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a tensor that splits leave on a rank. Happy path: each dim is a list of parts in the order of the rank's
 * buffer; at first it has one part, the whole dim. Each split of the rule keeps some of the parts. Last, the cut of
 * ZeRO along dims does the same. Failure modes: sizes that do not divide (PTC_ELAYOUT naming tensor, dim and sizes),
 * memory. */
#include "reshard/regions/internal.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdio.h>

static const char *const way_names[PTC_WAYS] = { "none", "tp", "ep", "etp", "dp", "cp", "zero", "stage" };

void ptc_cutter_done(struct ptc_cutter *b)
{
	for (uint32_t d = 0; d < PTC_MAX_DIMS; d++)
		ptc_free(b->dims[d].v);
	ptc_free(b->spare.v);
	ptc_boxes_done(&b->range);
}

bool ptc_cut_fits(const struct ptc_box *b)
{
	int64_t v = 64; /* bits of the widest dtype */

	for (uint32_t d = 0; d < b->ndim; d++)
		if (ptc_ckd_mul(&v, v, PTC_MAX(b->ext[d], 1)))
			return false;
	return true;
}

/* Appends; with merge, to the last part where it goes on both globally and locally. */
static int push(struct ptc_cutter *b, struct ptc_dim_parts *p, struct ptc_dim_part part, bool merge)
{
	struct ptc_dim_part *last = p->n ? &p->v[p->n - 1] : NULL;

	part.loff = p->len;
	if (merge && last && last->padding == part.padding && last->goff + last->ext == part.goff) {
		last->ext += part.ext;
		p->len += part.ext;
		return 0;
	}
	if (!PTC_ROOM(p->v, p->n + 1, p->cap))
		return ptc_nomem(b->err);
	p->v[p->n++] = part;
	p->len += part.ext;
	return 0;
}

/* Appends to b->spare what lies at [first, first + count) of the local order of d. */
static int slice(struct ptc_cutter *b, const struct ptc_dim_parts *d, int64_t first, int64_t count, bool merge)
{
	int rc = 0;

	for (size_t i = 0; i < d->n && !rc; i++) {
		const struct ptc_dim_part *p = &d->v[i];
		int64_t lo = PTC_MAX(first, p->loff), hi = PTC_MIN(first + count, p->loff + p->ext);

		if (lo < hi)
			rc = push(b, &b->spare, (struct ptc_dim_part){ p->goff + lo - p->loff, hi - lo, 0, p->padding },
				  merge);
	}
	return rc;
}

/* b->spare becomes the dim, and is empty. */
static void replace(struct ptc_cutter *b, struct ptc_dim_parts *d)
{
	struct ptc_dim_parts old = *d;

	*d = b->spare;
	old.n = 0;
	old.len = 0;
	b->spare = old;
}

static int permute(struct ptc_cutter *b, const struct ptc_split *s, struct ptc_dim_parts *d)
{
	const struct ptc_config *c = &b->l->config;
	bool config = !s->npermute && s->axis == PTC_AXIS_EP && c->nexperts;
	size_t n = config ? c->nexperts : s->npermute;
	int64_t unit = PTC_MAX(s->unit, 1);
	char name[PTC_ITEM_NAME_SIZE];
	int rc = 0;

	if (!n)
		return 0;
	if (d->len != (int64_t)n * unit)
		return ptc_error_set(b->err, PTC_ELAYOUT,
				     "tensor \"%s\": dim %u (%lld) must equal the %zu experts or units that %s orders",
				     ptc_item_name(b->l->spec, b->item, name, sizeof name), s->dim, (long long)d->len,
				     n, config ? "experts of the configuration" : "permute");
	for (size_t i = 0; i < n && !rc; i++)
		rc = slice(b, d, (config ? (int64_t)c->experts[i] : s->permute[i]) * unit, unit, true);
	if (!rc)
		replace(b, d);
	return rc;
}

/* The size of block i where the dim is len long; 0: it does not come out. */
static int64_t block_size(const struct ptc_split *s, size_t i, int64_t len)
{
	int64_t sum = 0;

	if (!s->nblocks)
		return len;
	for (size_t k = 0; k < s->nblocks; k++)
		sum += s->blocks[k];
	if (!s->ratio)
		return sum == len ? s->blocks[i] : 0;
	return len % sum ? 0 : len / sum * s->blocks[i];
}

static int blocks_error(struct ptc_cutter *b, const struct ptc_split *s, int64_t len)
{
	char name[PTC_ITEM_NAME_SIZE];

	return ptc_error_set(b->err, PTC_ELAYOUT,
			     "tensor \"%s\": dim %u (%lld) cannot be divided into its %zu blocks%s",
			     ptc_item_name(b->l->spec, b->item, name, sizeof name), s->dim, (long long)len, s->nblocks,
			     s->interleave ? " and interleaved pieces" : "");
}

static int interleave(struct ptc_cutter *b, const struct ptc_split *s, struct ptc_dim_parts *d)
{
	int rc = 0;

	for (int64_t g = 0; g < s->interleave && !rc; g++) {
		int64_t start = 0;

		for (size_t i = 0; i < s->nblocks && !rc; i++) {
			int64_t size = block_size(s, i, d->len), piece = size / s->interleave;

			if (d->len && (!size || size % s->interleave))
				return blocks_error(b, s, d->len);
			rc = slice(b, d, start + g * piece, piece, true);
			start += size;
		}
	}
	if (!rc)
		replace(b, d);
	return rc;
}

static bool padded_size(int64_t pad_to, int64_t size, int64_t p, int64_t *ret)
{
	int64_t step, rest;

	if (ptc_ckd_mul(&step, pad_to, p))
		return false;
	rest = size % step;
	return !ptc_ckd_add(ret, size, rest ? step - rest : 0);
}

static int pad(struct ptc_cutter *b, const struct ptc_split *s, int64_t p, struct ptc_dim_parts *d)
{
	char name[PTC_ITEM_NAME_SIZE];
	int64_t padded;

	if (!padded_size(s->pad_to, d->len, p, &padded))
		return ptc_error_set(b->err, PTC_ELAYOUT, "tensor \"%s\": dim %u (%lld) padded to %lld * %s overflows",
				     ptc_item_name(b->l->spec, b->item, name, sizeof name), s->dim, (long long)d->len,
				     (long long)s->pad_to, way_names[s->axis]);
	if (padded == d->len)
		return 0;
	return push(b, d,
		    (struct ptc_dim_part){ ptc_layout_tensor(b->l, b->item)->shape[s->dim], padded - d->len, 0, true },
		    false);
}

/* The share [*off, *off + *len) of rank t of p; false when size does not divide. */
static bool share(const struct ptc_split *s, size_t block, int64_t size, int64_t p, int64_t t, int64_t *off,
		  int64_t *len)
{
	int64_t stated = s->units ? s->units[block] : s->unit, unit = PTC_MAX(stated, 1), units = size / unit, base,
		extra;

	switch (s->kind) {
	case PTC_SPLIT_CEIL:
		base = units / p + (units % p != 0);
		*off = PTC_MIN(t * base, units);
		*len = PTC_MIN(base, units - *off);
		break;
	case PTC_SPLIT_BALANCED:
		base = units / p;
		extra = units % p;
		*off = t * base + PTC_MIN(t, extra);
		*len = base + (t < extra);
		break;
	default:
		if (units % p == 0) {
			*len = units / p;
			*off = t * *len;
		} else if (stated && units && units < p && p % units == 0) {
			*len = 1;
			*off = t / (p / units);
		} else {
			return false;
		}
	}
	*off *= unit;
	*len *= unit;
	return size % unit == 0;
}

static int split_error(struct ptc_cutter *b, const struct ptc_split *s, int64_t size, size_t block, int64_t p)
{
	char name[PTC_ITEM_NAME_SIZE], units[64] = "", blocks[64] = "";
	int64_t unit = PTC_MAX(s->units ? s->units[block] : s->unit, 1);

	if (s->unit || s->units)
		snprintf(units, sizeof units, ", %lld units of %lld", (long long)(size / unit), (long long)unit);
	if (s->nblocks && !s->interleave)
		snprintf(blocks, sizeof blocks, " block %zu", block);
	return ptc_error_set(b->err, PTC_ELAYOUT, "tensor \"%s\": dim %u%s (%lld%s) is not divisible by %s %lld",
			     ptc_item_name(b->l->spec, b->item, name, sizeof name), s->dim, blocks, (long long)size,
			     units, way_names[s->axis], (long long)p);
}

/* Keeps of the dim what rank t of p has. */
static int apply(struct ptc_cutter *b, const struct ptc_split *s, int64_t p, int64_t t)
{
	struct ptc_dim_parts *d = &b->dims[s->dim];
	int64_t start = 0, off, len;
	size_t nblocks = s->interleave ? 1 : PTC_MAX(s->nblocks, (size_t)1);
	int rc = permute(b, s, d);

	if (!rc && s->interleave)
		rc = interleave(b, s, d);
	if (!rc && s->pad_to)
		rc = pad(b, s, p, d);
	for (size_t i = 0; i < nblocks && !rc; i++) {
		int64_t size = s->interleave ? d->len : block_size(s, i, d->len);

		if (!size && d->len)
			return blocks_error(b, s, d->len);
		if (!share(s, i, size, p, t, &off, &len))
			return split_error(b, s, size, i, p);
		rc = slice(b, d, start + off, len, false);
		start += size;
	}
	if (!rc)
		replace(b, d);
	return rc;
}

/* Fills b->dims for the ranks at these indices; *ret_local: the local tensor before a flat range. */
int ptc_cut_dims(struct ptc_cutter *b, uint32_t item, const uint32_t at[PTC_WAYS], struct ptc_box *ret_local)
{
	const struct ptc_tensor *t = ptc_layout_tensor(b->l, item);
	const struct ptc_rule *r = b->l->items[item].rule;
	struct ptc_split zero = { .kind = PTC_SPLIT_CEIL };
	int rc = 0;

	b->item = item;
	for (uint32_t d = 0; d < t->ndim && !rc; d++) {
		b->dims[d].n = 0;
		b->dims[d].len = 0;
		if (t->shape[d])
			rc = push(b, &b->dims[d], (struct ptc_dim_part){ 0, t->shape[d], 0, false }, false);
	}
	for (size_t i = 0; r && i < PTC_MAX_SPLITS && r->splits[i].axis != PTC_AXIS_NONE && !rc; i++)
		rc = apply(b, &r->splits[i], ptc_regions_degree(b->l, r, r->splits[i].axis), at[r->splits[i].axis]);
	if (!rc && ptc_regions_shard(b->l, item, &zero.dim) == PTC_SHARD_DIM)
		rc = apply(b, &zero, ptc_regions_degree(b->l, r, PTC_BY_ZERO), at[PTC_BY_ZERO]);
	*ret_local = ptc_box_whole(t->ndim, t->shape);
	for (uint32_t d = 0; d < t->ndim; d++)
		ret_local->ext[d] = b->dims[d].len;
	return rc;
}

/* What apply leaves of a dim, without the parts. */
static int64_t left_over(const struct ptc_split *s, int64_t len, int64_t p, int64_t t)
{
	int64_t sum = 0, off, part;

	if (s->pad_to)
		return padded_size(s->pad_to, len, p, &part) ? part / p : 0;
	if (s->interleave)
		return share(s, 0, len, p, t, &off, &part) ? part : 0;
	for (size_t i = 0; i < PTC_MAX(s->nblocks, (size_t)1); i++)
		if (share(s, i, block_size(s, i, len), p, t, &off, &part))
			sum += part;
	return sum;
}

void ptc_cut_lengths(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS], struct ptc_box *local)
{
	const struct ptc_rule *r = l->items[item].rule;
	struct ptc_split zero = { .kind = PTC_SPLIT_CEIL };

	for (size_t i = 0; r && i < PTC_MAX_SPLITS && r->splits[i].axis != PTC_AXIS_NONE; i++) {
		const struct ptc_split *s = &r->splits[i];

		local->ext[s->dim] = left_over(s, local->ext[s->dim], ptc_regions_degree(l, r, s->axis), at[s->axis]);
	}
	if (ptc_regions_shard(l, item, &zero.dim) == PTC_SHARD_DIM)
		local->ext[zero.dim] =
			left_over(&zero, local->ext[zero.dim], ptc_regions_degree(l, r, PTC_BY_ZERO), at[PTC_BY_ZERO]);
}

int64_t ptc_regions_elements(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS])
{
	const struct ptc_tensor *t = ptc_layout_tensor(l, item);
	struct ptc_box local = ptc_box_whole(t->ndim, t->shape);

	ptc_cut_lengths(l, item, at, &local);
	return ptc_cut_fits(&local) ? ptc_box_volume(&local) : INT64_MAX; /* refused when it is cut */
}
