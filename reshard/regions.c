/* SPDX-License-Identifier: Apache-2.0 */
/* From rules and a configuration to what one rank holds. Happy path: every
 * item's rule and place are looked up once (ptc_regions_prepare). Then, for
 * one rank and item, each dim is a list of parts in the order of the rank's
 * buffer, at first one, the whole; each split of the rule, and at last data
 * parallelism, keeps some of them. A region is one part of each dim, for flat
 * ranges cut further by the boxes of the range. Failure modes: a rule that
 * does not fit spec or configuration (PTC_ELAYOUT naming tensor, dim and
 * sizes), found by prepare for all ranks; limits, memory. */
#include "reshard/internal.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const way_names[PTC_WAYS] = { "none", "tp", "ep", "etp", "dp", "cp", "zero", "stage" };

/* A part of a dim: [goff, goff + ext) globally lies at loff locally. */
struct part {
	int64_t goff, ext, loff;
	bool padding;
};
struct parts {
	struct part *v;
	size_t n, cap;
	int64_t len; /* local length of the dim */
};

struct builder {
	const struct ptc_layout *l;
	struct ptc_error *err;
	uint32_t item;
	struct parts dims[PTC_MAX_DIMS], spare;
	struct ptc_region *regions;
	size_t n, cap;
};

static void builder_done(struct builder *b)
{
	for (uint32_t d = 0; d < PTC_MAX_DIMS; d++)
		ptc_free(b->dims[d].v);
	ptc_free(b->spare.v);
}

static int no_memory(struct builder *b)
{
	return ptc_error_set(b->err, PTC_ENOMEM, "layout: out of memory");
}

static const struct ptc_tensor *tensor_of(const struct ptc_layout *l, uint32_t item)
{
	return &l->spec->tensors[item / (1 + l->spec->nfields)];
}

/* ---- ways: what a rule says an item is cut over, and where a rank is in it ---- */

static bool names_axis(const struct ptc_rule *r, enum ptc_axis axis)
{
	for (size_t i = 0; r && i < PTC_MAX_SPLITS && r->splits[i].axis != PTC_AXIS_NONE; i++)
		if (r->splits[i].axis == axis)
			return true;
	return false;
}

static bool is_expert(const struct ptc_rule *r)
{
	return r && (r->expert || names_axis(r, PTC_AXIS_EP) || names_axis(r, PTC_AXIS_ETP));
}

/* How zero cuts an item; CONFIG where the configuration's buffers do. */
static enum ptc_shard shard_of(const struct ptc_layout *l, uint32_t item, uint32_t *ret_dim)
{
	const struct ptc_rule *r = l->items[item].rule;
	bool field = item % (1 + l->spec->nfields) > 0;
	enum ptc_shard how = r ? r->shard : PTC_SHARD_CONFIG;

	*ret_dim = 0;
	if (!l->config.zero || (l->config.zero < 3 && !field))
		return PTC_SHARD_NONE;
	if (names_axis(r, PTC_AXIS_DP) || names_axis(r, PTC_AXIS_CP))
		return PTC_SHARD_NONE;
	if (how == PTC_SHARD_CONFIG && l->config.shard != PTC_SHARDS_BUFFER)
		how = l->config.shard == PTC_SHARDS_DIM0 ? PTC_SHARD_DIM : PTC_SHARD_FLAT;
	else if (how == PTC_SHARD_DIM)
		*ret_dim = r->shard_dim;
	return how == PTC_SHARD_DIM && tensor_of(l, item)->ndim == 0 ? PTC_SHARD_NONE : how;
}

static bool is_flat(const struct ptc_layout *l, uint32_t item)
{
	uint32_t dim;
	enum ptc_shard how = shard_of(l, item, &dim);

	return how == PTC_SHARD_FLAT || how == PTC_SHARD_CONFIG;
}

bool ptc_regions_in_buffer(const struct ptc_layout *l, uint32_t item)
{
	uint32_t dim;

	return shard_of(l, item, &dim) == PTC_SHARD_CONFIG;
}

bool ptc_regions_is_expert(const struct ptc_layout *l, uint32_t item)
{
	return is_expert(l->items[item].rule);
}

/* Of how many stages the item has a buffer. */
static uint32_t places(const struct ptc_layout *l, uint32_t item)
{
	const struct ptc_rule *r = l->items[item].rule;
	enum ptc_place place = r ? r->place : PTC_PLACE_ALL;

	if (!ptc_regions_in_buffer(l, item))
		return 1;
	return place == PTC_PLACE_ALL ? l->config.pp : place == PTC_PLACE_ENDS ? PTC_MIN(l->config.pp, 2u) : 1;
}

/* Which of them pipeline rank pp has. */
static uint32_t place_index(const struct ptc_layout *l, uint32_t item, uint32_t pp)
{
	const struct ptc_rule *r = l->items[item].rule;
	enum ptc_place place = r ? r->place : PTC_PLACE_ALL;

	if (places(l, item) == 1)
		return 0;
	return place == PTC_PLACE_ALL ? pp : pp > 0;
}

int64_t ptc_regions_zero_degree(const struct ptc_layout *l, bool expert)
{
	const struct ptc_config *c = &l->config;

	return (expert ? ptc_config_edp(c) : c->dp * c->cp) / PTC_MAX(c->replicas, 1u);
}

static uint32_t degree(const struct ptc_layout *l, const struct ptc_rule *r, uint32_t way)
{
	const struct ptc_config *c = &l->config;

	switch (way) {
	case PTC_AXIS_TP:
		return c->tp;
	case PTC_AXIS_EP:
		return c->ep;
	case PTC_AXIS_ETP:
		return c->etp;
	case PTC_AXIS_DP:
		return c->dp;
	case PTC_AXIS_CP:
		return c->cp;
	case PTC_BY_ZERO:
		return (uint32_t)ptc_regions_zero_degree(l, is_expert(r));
	default:
		return 1;
	}
}

/* A rank's index in each way, for tensors that are experts' or not; of BY_PLACE it is the pipeline rank. */
static void indices(const struct ptc_layout *l, uint32_t rank, bool expert, uint32_t at[PTC_WAYS])
{
	const struct ptc_config *c = &l->config;
	struct ptc_coords k = ptc_config_coords(c, rank);
	struct ptc_expert_coords e = ptc_config_expert_coords(c, rank);
	uint32_t group = expert ? ptc_config_edp(c) : c->dp * c->cp;

	at[PTC_AXIS_NONE] = 0;
	at[PTC_AXIS_TP] = k.tp;
	at[PTC_AXIS_EP] = e.ep;
	at[PTC_AXIS_ETP] = e.etp;
	at[PTC_AXIS_DP] = k.dp;
	at[PTC_AXIS_CP] = k.cp;
	at[PTC_BY_PLACE] = k.pp;
	at[PTC_BY_ZERO] = (expert ? e.edp : ptc_config_zero_index(c, &k)) % (group / PTC_MAX(c->replicas, 1u));
}

/* Does what a rank has of the item depend on its index in this way? In buffers also on the axes that may cut others. */
static bool cuts(const struct ptc_layout *l, uint32_t item, uint32_t way)
{
	const struct ptc_rule *r = l->items[item].rule;
	uint32_t dim;

	if (way == PTC_BY_ZERO)
		return shard_of(l, item, &dim) != PTC_SHARD_NONE;
	if (way == PTC_BY_PLACE)
		return places(l, item) > 1;
	if (!names_axis(r, (enum ptc_axis)way) && way <= PTC_AXIS_ETP && ptc_regions_in_buffer(l, item))
		return is_expert(r) ? way == PTC_AXIS_ETP || (way == PTC_AXIS_EP && !r->expert) : way == PTC_AXIS_TP;
	return names_axis(r, (enum ptc_axis)way);
}

/* ---- parts of one dim ---- */

/* Appends; with merge, to the last part where it goes on both globally and locally. */
static int push(struct builder *b, struct parts *p, struct part part, bool merge)
{
	struct part *last = p->n ? &p->v[p->n - 1] : NULL;

	part.loff = p->len;
	if (merge && last && last->padding == part.padding && last->goff + last->ext == part.goff) {
		last->ext += part.ext;
		p->len += part.ext;
		return 0;
	}
	if (p->n == p->cap) {
		size_t cap = p->cap ? 2 * p->cap : 4;
		struct part *v = ptc_reallocarray(p->v, cap, sizeof *v);

		if (!v)
			return no_memory(b);
		p->v = v;
		p->cap = cap;
	}
	p->v[p->n++] = part;
	p->len += part.ext;
	return 0;
}

/* Appends to b->spare what lies at [first, first + count) of the local order of d. */
static int slice(struct builder *b, const struct parts *d, int64_t first, int64_t count, bool merge)
{
	int rc = 0;

	for (size_t i = 0; i < d->n && !rc; i++) {
		const struct part *p = &d->v[i];
		int64_t lo = PTC_MAX(first, p->loff), hi = PTC_MIN(first + count, p->loff + p->ext);

		if (lo < hi)
			rc = push(b, &b->spare, (struct part){ p->goff + lo - p->loff, hi - lo, 0, p->padding }, merge);
	}
	return rc;
}

/* b->spare becomes the dim, and is empty. */
static void replace(struct builder *b, struct parts *d)
{
	struct parts old = *d;

	*d = b->spare;
	old.n = 0;
	old.len = 0;
	b->spare = old;
}

static int permute(struct builder *b, const struct ptc_split *s, struct parts *d)
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
				     "tensor \"%s\": dim %u (%lld) is not the %zu experts or units that %s orders",
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

static int blocks_error(struct builder *b, const struct ptc_split *s, int64_t len)
{
	char name[PTC_ITEM_NAME_SIZE];

	return ptc_error_set(b->err, PTC_ELAYOUT, "tensor \"%s\": dim %u (%lld) does not come out in its %zu blocks%s",
			     ptc_item_name(b->l->spec, b->item, name, sizeof name), s->dim, (long long)len, s->nblocks,
			     s->interleave ? " and interleaved pieces" : "");
}

static int interleave(struct builder *b, const struct ptc_split *s, struct parts *d)
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

static int pad(struct builder *b, const struct ptc_split *s, int64_t p, struct parts *d)
{
	char name[PTC_ITEM_NAME_SIZE];
	int64_t padded;

	if (!padded_size(s->pad_to, d->len, p, &padded))
		return ptc_error_set(b->err, PTC_ELAYOUT, "tensor \"%s\": dim %u (%lld) padded to %lld * %s overflows",
				     ptc_item_name(b->l->spec, b->item, name, sizeof name), s->dim, (long long)d->len,
				     (long long)s->pad_to, way_names[s->axis]);
	if (padded == d->len)
		return 0;
	return push(b, d, (struct part){ tensor_of(b->l, b->item)->shape[s->dim], padded - d->len, 0, true }, false);
}

/* The share [*off, *off + *len) of rank t of p; false when size does not divide. */
static bool share(const struct ptc_split *s, int64_t size, int64_t p, int64_t t, int64_t *off, int64_t *len)
{
	int64_t unit = PTC_MAX(s->unit, 1), units = size / unit, base, extra;

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
		} else if (s->unit && units < p && p % units == 0) {
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

static int split_error(struct builder *b, const struct ptc_split *s, int64_t size, size_t block, int64_t p)
{
	char name[PTC_ITEM_NAME_SIZE], units[64] = "", blocks[64] = "";

	if (s->unit > 1)
		snprintf(units, sizeof units, ", %lld units of %lld", (long long)(size / s->unit), (long long)s->unit);
	if (s->nblocks && !s->interleave)
		snprintf(blocks, sizeof blocks, " block %zu", block);
	return ptc_error_set(b->err, PTC_ELAYOUT, "tensor \"%s\": dim %u%s (%lld%s) is not divisible by %s %lld",
			     ptc_item_name(b->l->spec, b->item, name, sizeof name), s->dim, blocks, (long long)size,
			     units, way_names[s->axis], (long long)p);
}

/* Keeps of the dim what rank t of p has. */
static int apply(struct builder *b, const struct ptc_split *s, int64_t p, int64_t t)
{
	struct parts *d = &b->dims[s->dim];
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
		if (!share(s, size, p, t, &off, &len))
			return split_error(b, s, size, i, p);
		rc = slice(b, d, start + off, len, false);
		start += size;
	}
	if (!rc)
		replace(b, d);
	return rc;
}

/* Fills b->dims for the ranks at these indices; *ret_local: the local tensor before a flat range. */
static int cut_dims(struct builder *b, uint32_t item, const uint32_t at[PTC_WAYS], struct ptc_box *ret_local)
{
	const struct ptc_tensor *t = tensor_of(b->l, item);
	const struct ptc_rule *r = b->l->items[item].rule;
	struct ptc_split zero = { .kind = PTC_SPLIT_CEIL };
	int rc = 0;

	b->item = item;
	for (uint32_t d = 0; d < t->ndim && !rc; d++) {
		b->dims[d].n = 0;
		b->dims[d].len = 0;
		if (t->shape[d])
			rc = push(b, &b->dims[d], (struct part){ 0, t->shape[d], 0, false }, false);
	}
	for (size_t i = 0; r && i < PTC_MAX_SPLITS && r->splits[i].axis != PTC_AXIS_NONE && !rc; i++)
		rc = apply(b, &r->splits[i], degree(b->l, r, r->splits[i].axis), at[r->splits[i].axis]);
	if (!rc && shard_of(b->l, item, &zero.dim) == PTC_SHARD_DIM)
		rc = apply(b, &zero, degree(b->l, r, PTC_BY_ZERO), at[PTC_BY_ZERO]);
	*ret_local = ptc_box_whole(t->ndim, t->shape);
	for (uint32_t d = 0; d < t->ndim; d++)
		ret_local->ext[d] = b->dims[d].len;
	return rc;
}

/* ---- regions ---- */

static int add_region(struct builder *b, const struct ptc_region *r)
{
	struct ptc_box bytes;

	if (!r->padding && ptc_dtype_bits(ptc_item_dtype(b->l->spec, r->item)) % 8) {
		int rc = ptc_item_byte_box(b->l->spec, r->item, &r->box, &bytes, b->err);

		if (rc)
			return rc;
	}
	if (b->n >= PTC_MAX_REGIONS)
		return ptc_error_set(b->err, PTC_ELIMIT, "layout: more than %u regions", PTC_MAX_REGIONS);
	if (b->n == b->cap) {
		size_t cap = b->cap ? b->cap + b->cap / 2 : 16;
		struct ptc_region *v = ptc_reallocarray(b->regions, cap, sizeof *v);

		if (!v)
			return no_memory(b);
		b->regions = v;
		b->cap = cap;
	}
	b->regions[b->n++] = *r;
	return 0;
}

static int by_first_element(const void *pa, const void *pb)
{
	const struct ptc_region *a = pa, *b = pb;

	for (uint32_t d = 0; d < a->box.ndim; d++)
		if (a->box.off[d] != b->box.off[d])
			return a->box.off[d] < b->box.off[d] ? -1 : 1;
	return 0;
}

/* The elements that a rank has of an item's flattened local tensor of count elements. */
static void flat_range(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS], int64_t count,
		       int64_t *ret_first, int64_t *ret_count)
{
	int64_t n = degree(l, l->items[item].rule, PTC_BY_ZERO), k = at[PTC_BY_ZERO];
	struct ptc_flat_at f = { .range = count / n + (count % n != 0) };
	int64_t from, to;

	if (ptc_regions_in_buffer(l, item))
		f = l->flats[l->items[item].flats + ptc_regions_flat_slot(l, item, at)];
	from = PTC_MIN(PTC_MAX(k * f.range - f.first, 0), count);
	to = PTC_MIN(PTC_MAX((k + 1) * f.range - f.first, from), count);
	*ret_first = from;
	*ret_count = to - from;
}

/* One region: what piece (in local index space) has of the chosen part of each dim. flat_first is where the rank's
 * buffer begins in the flat order. */
static int emit(struct builder *b, const size_t *chosen, const struct ptc_box *piece, const int64_t *stride,
		int64_t flat_first)
{
	struct ptc_region region = { .item = b->item, .box = { .ndim = piece->ndim }, .buf_off = -flat_first };

	for (uint32_t d = 0; d < piece->ndim; d++) {
		const struct part *p = &b->dims[d].v[chosen[d]];
		int64_t lo = PTC_MAX(p->loff, piece->off[d]),
			hi = PTC_MIN(p->loff + p->ext, piece->off[d] + piece->ext[d]);

		if (lo >= hi)
			return 0;
		region.padding |= p->padding;
		region.box.off[d] = p->goff + lo - p->loff;
		region.box.ext[d] = hi - lo;
		region.buf_off += lo * stride[d];
		region.buf_stride[d] = stride[d];
	}
	return add_region(b, &region);
}

/* Every piece of the local tensor in `pieces`, cut by the parts. */
static int emit_pieces(struct builder *b, const struct ptc_box *local, const struct ptc_box *pieces, size_t npieces,
		       int64_t flat_first)
{
	int64_t stride[PTC_MAX_DIMS], s = 1;
	size_t chosen[PTC_MAX_DIMS] = { 0 }, mark = b->n;
	uint32_t d;
	int rc = 0;

	for (d = local->ndim; d-- > 0;) {
		stride[d] = s;
		s *= local->ext[d];
	}
	do {
		for (size_t i = 0; i < npieces && !rc; i++)
			rc = emit(b, chosen, &pieces[i], stride, flat_first);
		for (d = local->ndim; d > 0 && ++chosen[d - 1] == b->dims[d - 1].n; d--)
			chosen[d - 1] = 0;
	} while (d > 0 && !rc);
	if (!rc && b->n > mark + 1)
		qsort(b->regions + mark, b->n - mark, sizeof *b->regions, by_first_element);
	return rc;
}

static bool volume_fits(const struct ptc_box *b)
{
	int64_t v = 64; /* bits of the widest dtype */

	for (uint32_t d = 0; d < b->ndim; d++)
		if (ptc_ckd_mul(&v, v, PTC_MAX(b->ext[d], 1)))
			return false;
	return true;
}

static int build_item(struct builder *b, uint32_t item, const uint32_t at[PTC_WAYS])
{
	struct ptc_boxes range = { 0 };
	struct ptc_box local;
	char name[PTC_ITEM_NAME_SIZE];
	int64_t first, count;
	int rc = cut_dims(b, item, at, &local);

	if (rc)
		return rc;
	if (!volume_fits(&local))
		return ptc_error_set(b->err, PTC_ELAYOUT, "tensor \"%s\": its padded size overflows 64 bits",
				     ptc_item_name(b->l->spec, item, name, sizeof name));
	if (ptc_box_empty(&local))
		return 0;
	if (!is_flat(b->l, item))
		return emit_pieces(b, &local, &local, 1, 0);
	flat_range(b->l, item, at, ptc_box_volume(&local), &first, &count);
	rc = ptc_box_from_range(local.ndim, local.ext, first, count, &range);
	if (rc)
		ptc_error_set(b->err, rc, "layout: out of memory");
	else if (range.n)
		rc = emit_pieces(b, &local, range.v, range.n, first);
	ptc_boxes_done(&range);
	return rc;
}

static bool on_stage(const struct ptc_layout *l, uint32_t item, uint32_t pp)
{
	const struct ptc_layout_item *i = &l->items[item];
	uint32_t last = l->config.pp - 1;

	switch (i->rule ? i->rule->place : PTC_PLACE_ALL) {
	case PTC_PLACE_LAYER:
		return pp == i->stage;
	case PTC_PLACE_FIRST:
		return pp == 0;
	case PTC_PLACE_LAST:
		return pp == last;
	case PTC_PLACE_ENDS:
		return pp == 0 || pp == last;
	default:
		return true;
	}
}

bool ptc_regions_is_at(const struct ptc_layout *l, uint32_t item, uint32_t pp, uint32_t ep)
{
	const struct ptc_rule *r = l->items[item].rule;

	return on_stage(l, item, pp) && (!r || !r->expert || l->items[item].ep == ep);
}

int ptc_regions_of_rank(const struct ptc_layout *l, uint32_t rank, struct ptc_rank_layout *ret, struct ptc_error *err)
{
	struct builder b = { .l = l, .err = err };
	uint32_t at[2][PTC_WAYS], pp = ptc_config_coords(&l->config, rank).pp;
	struct ptc_region *v;
	int rc = 0;

	indices(l, rank, false, at[0]);
	indices(l, rank, true, at[1]);
	for (uint32_t item = 0; item < l->nitems && !rc; item++)
		if (ptc_regions_is_at(l, item, pp, at[1][PTC_AXIS_EP]))
			rc = build_item(&b, item, at[is_expert(l->items[item].rule)]);
	builder_done(&b);
	if (rc) {
		ptc_free(b.regions);
		return rc;
	}
	v = ptc_reallocarray(b.regions, b.n, sizeof *v); /* give back what is not used */
	*ret = (struct ptc_rank_layout){ .regions = v ? v : b.regions, .nregions = b.n };
	return 0;
}

/* ---- where items are ---- */

/* Layer -> stage of pp*vpp, for all layers. */
static int map_stages(const struct ptc_config *c, int64_t layers, uint32_t *stages, struct ptc_error *err)
{
	uint32_t all = c->pp * PTC_MAX(c->vpp, 1u);
	int64_t sum = 0, at = 0;

	for (uint32_t i = 0; i < c->nstages; i++)
		sum += c->stages[i];
	if (c->nstages && sum != layers)
		return ptc_error_set(err, PTC_ELAYOUT, "configuration: stages sum to %lld, the model has %lld layers",
				     (long long)sum, (long long)layers);
	for (uint32_t s = 0; s < all; s++) {
		int64_t n = c->nstages ? c->stages[s] : layers / all + (s < layers % all);

		while (n-- > 0)
			stages[at++] = s;
	}
	return 0;
}

/* The place of expert e in the order that the rule, or else the configuration, states. */
static int64_t expert_place(const struct ptc_layout *l, const struct ptc_rule *r, int64_t e)
{
	const struct ptc_config *c = &l->config;

	for (size_t i = 0; i < r->nexperts; i++)
		if (r->experts[i] == e)
			return (int64_t)i;
	for (uint32_t i = 0; !r->nexperts && i < c->nexperts; i++)
		if ((int64_t)c->experts[i] == e)
			return i;
	return e;
}

/* Tensors of one expert each: how many experts the item's rule has, and so on which rank of the ep axis the item is. */
static int place_expert(struct ptc_layout *l, uint32_t item, const int64_t *experts, struct ptc_error *err)
{
	const struct ptc_rule *r = l->items[item].rule;
	size_t given = r->nexperts ? r->nexperts : l->config.nexperts;
	int64_t n = experts[r - l->spec->rules];
	char name[PTC_ITEM_NAME_SIZE];

	ptc_item_name(l->spec, item, name, sizeof name);
	if (given && (int64_t)given != n)
		return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\": rule \"%s\" has %lld experts, %s orders %zu",
				     name, r->match, (long long)n, r->nexperts ? "the rule" : "the configuration",
				     given);
	if (n % l->config.ep)
		return ptc_error_set(err, PTC_ELAYOUT,
				     "tensor \"%s\": the %lld experts of rule \"%s\" are not divisible by ep %u", name,
				     (long long)n, r->match, l->config.ep);
	l->items[item].ep = (uint32_t)(expert_place(l, r, l->items[item].ep) / (n / l->config.ep));
	return 0;
}

/* Looks up every item's rule; items[].ep is the expert until it is placed. experts counts, per
 * rule. */
static int find_rules(struct ptc_layout *l, int64_t *ret_layers, int64_t *experts, struct ptc_error *err)
{
	const struct ptc_rule *rules[1 + PTC_MAX_FIELDS];
	char name[PTC_ITEM_NAME_SIZE];
	int64_t layers = 0, layer, expert;

	for (size_t item = 0; item < l->nitems; item++) {
		size_t f = item % (1 + l->spec->nfields);
		int rc;

		if (f == 0)
			ptc_spec_tensor_rules(l->spec, item / (1 + l->spec->nfields), rules);
		rc = ptc_rule_fits(l->spec, item, rules[f], &layer, &expert, err);
		if (rc)
			return rc;
		if (rules[f] && rules[f]->carry == PTC_CARRY_REFUSE)
			return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\": rule \"%s\" refuses to lay it out",
					     ptc_item_name(l->spec, item, name, sizeof name), rules[f]->match);
		l->items[item].rule = rules[f];
		l->items[item].layer = layer < 0 ? 0 : (uint32_t)layer;
		l->items[item].ep = expert < 0 ? 0 : (uint32_t)expert;
		layers = PTC_MAX(layers, layer + 1);
		if (expert >= 0)
			experts[rules[f] - l->spec->rules] = PTC_MAX(experts[rules[f] - l->spec->rules], expert + 1);
	}
	*ret_layers = layers;
	return 0;
}

static int place_items(struct ptc_layout *l, struct ptc_error *err)
{
	int64_t layers = 0, *experts = ptc_calloc(l->spec->nrules, sizeof *experts);
	uint32_t *stages = NULL;
	int rc = experts ? find_rules(l, &layers, experts, err) : PTC_ENOMEM;

	if (!rc && !(stages = ptc_calloc((size_t)layers, sizeof *stages)))
		rc = PTC_ENOMEM;
	if (rc == PTC_ENOMEM)
		ptc_error_set(err, rc, "layout: out of memory");
	if (!rc)
		rc = map_stages(&l->config, layers, stages, err);
	for (uint32_t i = 0; i < l->nitems && !rc; i++) {
		const struct ptc_rule *r = l->items[i].rule;

		if (r && r->place == PTC_PLACE_LAYER) {
			l->items[i].chunk = stages[l->items[i].layer];
			l->items[i].stage = l->items[i].chunk % l->config.pp;
		}
		if (r && r->expert)
			rc = place_expert(l, i, experts, err);
	}
	ptc_free(stages);
	ptc_free(experts);
	return rc;
}

/* ---- cells ---- */

/* What decides which parts a rank has, most significant first. */
struct cell_key {
	uint32_t v[8], rank;
};
enum { KEY_ZERO, KEY_PP, KEY_TP, KEY_DP, KEY_CP, KEY_EP, KEY_ETP, KEY_EDP };

static int by_key(const void *pa, const void *pb)
{
	const struct cell_key *a = pa, *b = pb;

	for (size_t i = 0; i < PTC_ARRAY_LEN(a->v); i++)
		if (a->v[i] != b->v[i])
			return a->v[i] < b->v[i] ? -1 : 1;
	return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* Which ways cut anything, for dense and for expert items. */
static void find_ways(const struct ptc_layout *l, bool used[2][PTC_WAYS])
{
	for (uint32_t item = 0; item < l->nitems; item++) {
		const struct ptc_rule *r = l->items[item].rule;

		for (uint32_t way = PTC_AXIS_TP; way < PTC_WAYS; way++)
			used[is_expert(r)][way] |= cuts(l, item, way);
		used[1][PTC_AXIS_EP] |= r && r->expert;
	}
}

static struct cell_key key_of(const struct ptc_layout *l, uint32_t rank, bool used[2][PTC_WAYS])
{
	uint32_t at[2][PTC_WAYS];
	struct cell_key k = { .rank = rank };

	indices(l, rank, false, at[0]);
	indices(l, rank, true, at[1]);
	k.v[KEY_ZERO] = used[0][PTC_BY_ZERO] ? at[0][PTC_BY_ZERO] : 0;
	k.v[KEY_PP] = ptc_config_coords(&l->config, rank).pp;
	k.v[KEY_TP] = at[0][PTC_AXIS_TP];
	k.v[KEY_DP] = used[0][PTC_AXIS_DP] || used[1][PTC_AXIS_DP] ? at[0][PTC_AXIS_DP] : 0;
	k.v[KEY_CP] = used[0][PTC_AXIS_CP] || used[1][PTC_AXIS_CP] ? at[0][PTC_AXIS_CP] : 0;
	k.v[KEY_EP] = used[1][PTC_AXIS_EP] ? at[1][PTC_AXIS_EP] : 0;
	k.v[KEY_ETP] = used[1][PTC_AXIS_ETP] ? at[1][PTC_AXIS_ETP] : 0;
	k.v[KEY_EDP] = used[1][PTC_BY_ZERO] ? at[1][PTC_BY_ZERO] : 0;
	return k;
}

static int make_cells(struct ptc_layout *l, struct ptc_error *err)
{
	struct cell_key *keys = ptc_calloc(l->world, sizeof *keys);
	bool used[2][PTC_WAYS] = { { false } };

	l->rank_cells = ptc_calloc(l->world, sizeof *l->rank_cells);
	l->cell_ranks = ptc_calloc(l->world, sizeof *l->cell_ranks);
	if (!keys || !l->rank_cells || !l->cell_ranks) {
		ptc_free(keys);
		return ptc_error_set(err, PTC_ENOMEM, "layout: out of memory");
	}
	find_ways(l, used);
	for (uint32_t r = 0; r < l->world; r++)
		keys[r] = key_of(l, r, used);
	qsort(keys, l->world, sizeof *keys, by_key);
	for (uint32_t i = 0; i < l->world; i++) {
		if (!i || memcmp(keys[i].v, keys[i - 1].v, sizeof keys[i].v) != 0)
			l->cell_ranks[l->ncells++] = keys[i].rank;
		l->rank_cells[keys[i].rank] = l->ncells - 1;
	}
	ptc_free(keys);
	return 0;
}

/* ---- parts: what ranks share ---- */

/* Number of the part in the ways below `end`, the first fastest. */
static uint32_t part_number(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS], uint32_t end)
{
	uint32_t part = 0, step = 1;

	for (uint32_t way = PTC_AXIS_TP; way < end; way++)
		if (cuts(l, item, way)) {
			part += step * (way == PTC_BY_PLACE ? place_index(l, item, at[way]) : at[way]);
			step *= way == PTC_BY_PLACE ? places(l, item) : degree(l, l->items[item].rule, way);
		}
	return part;
}

uint32_t ptc_regions_nparts(const struct ptc_layout *l, uint32_t item)
{
	uint32_t n = places(l, item);

	for (uint32_t way = PTC_AXIS_TP; way <= PTC_BY_ZERO; way++)
		if (cuts(l, item, way))
			n *= degree(l, l->items[item].rule, way);
	return n;
}

bool ptc_regions_part(const struct ptc_layout *l, uint32_t item, uint32_t rank, uint32_t *ret_part)
{
	uint32_t at[PTC_WAYS];

	indices(l, rank, is_expert(l->items[item].rule), at);
	if (!ptc_regions_is_at(l, item, at[PTC_BY_PLACE], at[PTC_AXIS_EP]))
		return false;
	*ret_part = part_number(l, item, at, PTC_WAYS);
	return true;
}

uint32_t ptc_regions_flat_slot(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS])
{
	return part_number(l, item, at, PTC_BY_ZERO) * places(l, item) + place_index(l, item, at[PTC_BY_PLACE]);
}

uint32_t ptc_regions_flat_slots(const struct ptc_layout *l, uint32_t item)
{
	return ptc_regions_nparts(l, item) / degree(l, l->items[item].rule, PTC_BY_ZERO);
}

static void part_indices(const struct ptc_layout *l, uint32_t item, uint32_t part, uint32_t at[PTC_WAYS])
{
	const struct ptc_rule *r = l->items[item].rule;

	memset(at, 0, PTC_WAYS * sizeof *at);
	for (uint32_t way = PTC_AXIS_TP; way <= PTC_BY_ZERO; way++)
		if (cuts(l, item, way)) {
			uint32_t n = degree(l, r, way);

			at[way] = part % n;
			part /= n;
		}
	at[PTC_BY_PLACE] = r && r->place == PTC_PLACE_ENDS && part ? l->config.pp - 1 : part;
}

int ptc_regions_of_part(const struct ptc_layout *l, uint32_t item, uint32_t part, struct ptc_rank_layout *ret,
			struct ptc_error *err)
{
	struct builder b = { .l = l, .err = err };
	uint32_t at[PTC_WAYS];
	int rc;

	part_indices(l, item, part, at);
	rc = build_item(&b, item, at);
	builder_done(&b);
	if (rc) {
		ptc_free(b.regions);
		return rc;
	}
	*ret = (struct ptc_rank_layout){ .regions = b.regions, .nregions = b.n };
	return 0;
}

void ptc_regions_key(const struct ptc_layout *l, uint32_t item, struct ptc_regions_key *ret)
{
	const struct ptc_layout_item *i = &l->items[item];
	enum ptc_place place = i->rule ? i->rule->place : PTC_PLACE_ALL;
	uint32_t dim;

	*ret = (struct ptc_regions_key){
		.rule = i->rule,
		.form = ptc_regions_in_buffer(l, item) ? (uint64_t)item << 8 : shard_of(l, item, &dim),
		.where = (uint64_t)place << 60 | (uint64_t)(i->rule && i->rule->expert ? 1 + i->ep : 0) << 30 |
			 (place == PTC_PLACE_LAYER ? i->stage : 0),
	};
}

/* ---- the whole ---- */

/* Whether the sizes come out depends on the part only where a split meets what another split of its dim left over, or a
 * dtype of less than a byte. */
static bool every_part_counts(const struct ptc_layout *l, uint32_t item)
{
	const struct ptc_rule *r = l->items[item].rule;
	uint32_t dims = 0;

	if (ptc_dtype_bits(ptc_item_dtype(l->spec, item)) % 8)
		return true;
	for (size_t i = 0; r && i < PTC_MAX_SPLITS && r->splits[i].axis != PTC_AXIS_NONE; i++) {
		if (dims & 1u << r->splits[i].dim)
			return true;
		dims |= 1u << r->splits[i].dim;
	}
	return false;
}

/* So that no rank's regions can fail later but for memory and limits. */
static int check_items(const struct ptc_layout *l, struct ptc_error *err)
{
	struct builder b = { .l = l, .err = err };
	uint32_t at[PTC_WAYS];
	int rc = 0;

	for (uint32_t item = 0; item < l->nitems && !rc; item++) {
		uint32_t n = every_part_counts(l, item) ? ptc_regions_nparts(l, item) : 1;

		for (uint32_t part = 0; part < n && !rc; part++) {
			b.n = 0;
			part_indices(l, item, part, at);
			rc = build_item(&b, item, at);
		}
	}
	builder_done(&b);
	ptc_free(b.regions);
	return rc;
}

int ptc_regions_prepare(struct ptc_layout *l, struct ptc_error *err)
{
	int rc;

	l->nitems = ptc_spec_items(l->spec);
	l->items = ptc_calloc(l->nitems, sizeof *l->items);
	if (!l->items)
		return ptc_error_set(err, PTC_ENOMEM, "layout: out of memory");
	rc = place_items(l, err);
	if (!rc)
		rc = ptc_buffers_prepare(l, err);
	if (!rc)
		rc = check_items(l, err);
	if (!rc)
		rc = make_cells(l, err);
	return rc;
}

/* What apply leaves of a dim, without the parts. */
static int64_t left_over(const struct ptc_split *s, int64_t len, int64_t p, int64_t t)
{
	int64_t sum = 0, off, part;

	if (s->pad_to)
		return padded_size(s->pad_to, len, p, &part) ? part / p : 0;
	if (s->interleave)
		return share(s, len, p, t, &off, &part) ? part : 0;
	for (size_t i = 0; i < PTC_MAX(s->nblocks, (size_t)1); i++)
		if (share(s, block_size(s, i, len), p, t, &off, &part))
			sum += part;
	return sum;
}

static void local_lengths(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS], struct ptc_box *local)
{
	const struct ptc_rule *r = l->items[item].rule;
	struct ptc_split zero = { .kind = PTC_SPLIT_CEIL };

	for (size_t i = 0; r && i < PTC_MAX_SPLITS && r->splits[i].axis != PTC_AXIS_NONE; i++) {
		const struct ptc_split *s = &r->splits[i];

		local->ext[s->dim] = left_over(s, local->ext[s->dim], degree(l, r, s->axis), at[s->axis]);
	}
	if (shard_of(l, item, &zero.dim) == PTC_SHARD_DIM)
		local->ext[zero.dim] =
			left_over(&zero, local->ext[zero.dim], degree(l, r, PTC_BY_ZERO), at[PTC_BY_ZERO]);
}

int64_t ptc_regions_elements(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS])
{
	const struct ptc_tensor *t = tensor_of(l, item);
	struct ptc_box local = ptc_box_whole(t->ndim, t->shape);

	local_lengths(l, item, at, &local);
	return ptc_box_volume(&local);
}

bool ptc_regions_local_shape(const struct ptc_layout *l, uint32_t rank, uint32_t item, struct ptc_local_shape *ret)
{
	const struct ptc_rule *r = l->items[item].rule;
	const struct ptc_tensor *t = tensor_of(l, item);
	struct ptc_box local = ptc_box_whole(t->ndim, t->shape);
	uint32_t at[PTC_WAYS];
	int64_t first, count;

	indices(l, rank, is_expert(r), at);
	if (!ptc_regions_is_at(l, item, ptc_config_coords(&l->config, rank).pp, at[PTC_AXIS_EP]))
		return false;
	local_lengths(l, item, at, &local);
	if (is_flat(l, item)) {
		flat_range(l, item, at, ptc_box_volume(&local), &first, &count);
		local.ndim = 1;
		local.ext[0] = count;
	}
	*ret = (struct ptc_local_shape){ .item = item, .ndim = local.ndim };
	memcpy(ret->shape, local.ext, local.ndim * sizeof *ret->shape);
	return true;
}
