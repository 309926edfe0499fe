/* SPDX-License-Identifier: Apache-2.0 */
/* From rules and a configuration to what one rank holds. Happy path: every
 * item's rule and stage are looked up once (ptc_regions_prepare); ranks that
 * hold the same are one cell; a rank's regions are made one item after the
 * other, each starting as a part of the split dim (a block's share, or
 * padding), for flat ranges cut further by the boxes of the range. Failure
 * modes: a rule that does not fit spec or configuration (PTC_ELAYOUT naming
 * tensor, dim and sizes), limits, memory; nothing is returned then. */
#include "reshard/internal.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A share of the split dim: [goff, goff + ext) globally lies at loff locally. */
struct part {
	int64_t goff, ext, loff;
	bool padding;
};

struct builder {
	const struct ptc_layout *l;
	struct ptc_region *regions;
	size_t n, cap;
	struct part *parts;
	size_t nparts, parts_cap;
	struct ptc_error *err;
};

static const struct ptc_tensor *tensor_of(const struct ptc_layout *l, uint32_t item)
{
	return &l->spec->tensors[item / (1 + l->spec->nfields)];
}

static bool is_flat(const struct ptc_layout *l, uint32_t item)
{
	return l->nzero && item % (1 + l->spec->nfields) > 0;
}

static uint32_t split_degree(const struct ptc_layout *l, const struct ptc_rule *r)
{
	return r->axis == PTC_AXIS_TP ? l->config.tp : 1; /* ep and etp are 1 so far */
}

/* The share [*off, *off + *len) of rank t; false when size does not divide. */
static bool share(const struct ptc_rule *r, int64_t size, int64_t degree, int64_t t, int64_t *off, int64_t *len)
{
	int64_t unit = PTC_MAX(r->unit, 1), units = size / unit, base, extra;

	switch (r->kind) {
	case PTC_SPLIT_CEIL:
		base = units / degree + (units % degree != 0);
		*off = PTC_MIN(t * base, units);
		*len = PTC_MIN(base, units - *off);
		break;
	case PTC_SPLIT_BALANCED:
		base = units / degree;
		extra = units % degree;
		*off = t * base + PTC_MIN(t, extra);
		*len = base + (t < extra);
		break;
	default:
		if (units % degree == 0) {
			*len = units / degree;
			*off = t * *len;
		} else if (r->unit && units < degree && degree % units == 0) {
			*len = 1;
			*off = t / (degree / units);
		} else {
			return false;
		}
	}
	*off *= unit;
	*len *= unit;
	return true;
}

static bool padded_size(const struct ptc_rule *r, int64_t size, int64_t degree, int64_t *ret)
{
	int64_t step, rest;

	if (ptc_ckd_mul(&step, r->pad_to, degree))
		return false;
	rest = size % step;
	return !ptc_ckd_add(ret, size, rest ? step - rest : 0);
}

static int add_part(struct builder *b, int64_t goff, int64_t ext, int64_t loff, bool padding)
{
	if (b->nparts == b->parts_cap) {
		size_t cap = b->parts_cap ? 2 * b->parts_cap : 16;
		struct part *v = ptc_reallocarray(b->parts, cap, sizeof *v);

		if (!v)
			return ptc_error_set(b->err, PTC_ENOMEM, "layout: out of memory");
		b->parts = v;
		b->parts_cap = cap;
	}
	b->parts[b->nparts++] = (struct part){ goff, ext, loff, padding };
	return 0;
}

static int split_error(struct builder *b, uint32_t item, const struct ptc_rule *r, int64_t size, size_t block)
{
	char name[PTC_ITEM_NAME_SIZE], units[64] = "", blocks[64] = "";

	ptc_item_name(b->l->spec, item, name, sizeof name);
	if (r->unit > 1)
		snprintf(units, sizeof units, ", %lld units of %lld", (long long)(size / r->unit), (long long)r->unit);
	if (r->nblocks)
		snprintf(blocks, sizeof blocks, " block %zu", block);
	return ptc_error_set(b->err, PTC_ELAYOUT, "tensor \"%s\": dim %u%s (%lld%s) is not divisible by tp %u", name,
			     r->dim, blocks, (long long)size, units, split_degree(b->l, r));
}

static int padded_parts(struct builder *b, uint32_t item, const struct ptc_rule *r, uint32_t t, int64_t *ret_len)
{
	int64_t size = tensor_of(b->l, item)->shape[r->dim], degree = split_degree(b->l, r), padded, len, real;
	char name[PTC_ITEM_NAME_SIZE];
	int rc = 0;

	if (!padded_size(r, size, degree, &padded))
		return ptc_error_set(b->err, PTC_ELAYOUT, "tensor \"%s\": dim %u (%lld) padded to %lld * tp overflows",
				     ptc_item_name(b->l->spec, item, name, sizeof name), r->dim, (long long)size,
				     (long long)r->pad_to);
	len = padded / degree;
	real = PTC_MAX(PTC_MIN(size - len * t, len), 0);
	if (real)
		rc = add_part(b, len * t, real, 0, false);
	if (!rc && real < len)
		rc = add_part(b, len * t + real, len - real, real, true);
	*ret_len = len;
	return rc;
}

/* Fills b->parts for tp rank t; *ret_len: the local length of the split dim. */
static int make_parts(struct builder *b, uint32_t item, const struct ptc_rule *r, uint32_t t, int64_t *ret_len)
{
	int64_t size = tensor_of(b->l, item)->shape[r->dim], start = 0, local = 0, off, len;
	size_t nblocks = r->nblocks ? r->nblocks : 1;

	b->nparts = 0;
	if (r->pad_to)
		return padded_parts(b, item, r, t, ret_len);
	for (size_t i = 0; i < nblocks; i++) {
		int64_t block = r->nblocks ? r->blocks[i] : size;

		if (!share(r, block, split_degree(b->l, r), t, &off, &len))
			return split_error(b, item, r, block, i);
		if (len && add_part(b, start + off, len, local, false))
			return PTC_ENOMEM;
		start += block;
		local += len;
	}
	*ret_len = local;
	return 0;
}

static int add_region(struct builder *b, const struct ptc_region *r)
{
	struct ptc_box bytes;

	if (ptc_box_empty(&r->box))
		return 0;
	if (!r->padding && ptc_dtype_bits(ptc_item_dtype(b->l->spec, r->item)) % 8) {
		int rc = ptc_item_byte_box(b->l->spec, r->item, &r->box, &bytes, b->err);

		if (rc)
			return rc;
	}
	if (b->n >= PTC_MAX_REGIONS)
		return ptc_error_set(b->err, PTC_ELIMIT, "layout: more than %u regions", PTC_MAX_REGIONS);
	if (b->n == b->cap) {
		size_t cap = b->cap ? b->cap + b->cap / 2 : 64;
		struct ptc_region *v = ptc_reallocarray(b->regions, cap, sizeof *v);

		if (!v)
			return ptc_error_set(b->err, PTC_ENOMEM, "layout: out of memory");
		b->regions = v;
		b->cap = cap;
	}
	b->regions[b->n++] = *r;
	return 0;
}

/* Where a part (or, without a split, the whole) lies in the index space of the TP-local tensor. */
static struct ptc_box local_box(const struct ptc_box *whole, const struct ptc_rule *r, const struct part *p)
{
	struct ptc_box box = *whole;

	if (p) {
		box.off[r->dim] = p->loff;
		box.ext[r->dim] = p->ext;
	}
	return box;
}

/* One region: cut (in local index space) of part p; flat_first is where the rank's buffer begins in the flat order. */
static int emit(struct builder *b, uint32_t item, const struct ptc_rule *r, const struct part *p,
		const struct ptc_box *cut, const int64_t *stride, int64_t flat_first)
{
	struct ptc_region region = { .item = item, .padding = p && p->padding, .box = *cut, .buf_off = -flat_first };

	for (uint32_t d = 0; d < cut->ndim; d++) {
		region.buf_off += cut->off[d] * stride[d];
		region.buf_stride[d] = stride[d];
	}
	if (p)
		region.box.off[r->dim] += p->goff - p->loff;
	return add_region(b, &region);
}

static int by_first_element(const void *pa, const void *pb)
{
	const struct ptc_region *a = pa, *b = pb;

	for (uint32_t d = 0; d < a->box.ndim; d++)
		if (a->box.off[d] != b->box.off[d])
			return a->box.off[d] < b->box.off[d] ? -1 : 1;
	return 0;
}

/* What range k of n of count elements is. */
static void flat_range(int64_t count, uint32_t n, uint32_t k, int64_t *ret_first, int64_t *ret_count)
{
	int64_t chunk = count / n + (count % n != 0);

	*ret_first = PTC_MIN(k * chunk, count);
	*ret_count = PTC_MIN(chunk, count - *ret_first);
}

/* Every piece of the local tensor in `pieces`, cut by the parts. */
static int emit_pieces(struct builder *b, uint32_t item, const struct ptc_rule *r, const struct ptc_box *local,
		       const struct ptc_box *pieces, size_t npieces, int64_t flat_first)
{
	int64_t stride[PTC_MAX_DIMS], s = 1;
	size_t mark = b->n;
	int rc = 0;

	for (uint32_t d = local->ndim; d-- > 0;) {
		stride[d] = s;
		s *= local->ext[d];
	}
	for (size_t i = 0; i < npieces && !rc; i++) {
		if (!r)
			rc = emit(b, item, r, NULL, &pieces[i], stride, flat_first);
		for (size_t k = 0; r && k < b->nparts && !rc; k++) {
			struct ptc_box cut = local_box(local, r, &b->parts[k]);

			if (ptc_box_intersect(&cut, &pieces[i], &cut))
				rc = emit(b, item, r, &b->parts[k], &cut, stride, flat_first);
		}
	}
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

static int build_item(struct builder *b, uint32_t item, uint32_t t, uint32_t zero)
{
	const struct ptc_tensor *tensor = tensor_of(b->l, item);
	const struct ptc_rule *r = b->l->items[item].rule;
	struct ptc_box local = ptc_box_whole(tensor->ndim, tensor->shape);
	struct ptc_boxes range = { 0 };
	char name[PTC_ITEM_NAME_SIZE];
	int64_t first, count;
	int rc = 0;

	if (r && r->axis == PTC_AXIS_NONE)
		r = NULL;
	if (r)
		rc = make_parts(b, item, r, t, &local.ext[r->dim]);
	if (rc)
		return rc;
	if (!volume_fits(&local))
		return ptc_error_set(b->err, PTC_ELAYOUT, "tensor \"%s\": its padded size overflows 64 bits",
				     ptc_item_name(b->l->spec, item, name, sizeof name));
	if (ptc_box_empty(&local))
		return 0;
	if (!is_flat(b->l, item))
		return emit_pieces(b, item, r, &local, &local, 1, 0);
	flat_range(ptc_box_volume(&local), b->l->nzero, zero, &first, &count);
	rc = ptc_box_from_range(local.ndim, local.ext, first, count, &range);
	if (rc)
		ptc_error_set(b->err, rc, "layout: out of memory");
	else
		rc = emit_pieces(b, item, r, &local, range.v, range.n, first);
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

int ptc_regions_of_rank(const struct ptc_layout *l, uint32_t rank, struct ptc_rank_layout *ret, struct ptc_error *err)
{
	struct ptc_coords k = ptc_config_coords(&l->config, rank);
	uint32_t zero = ptc_config_zero_index(&l->config, &k);
	struct builder b = { .l = l, .err = err };
	struct ptc_region *v;
	int rc = 0;

	for (size_t item = 0; item < l->nitems && !rc; item++)
		if (on_stage(l, (uint32_t)item, k.pp))
			rc = build_item(&b, (uint32_t)item, k.tp, zero);
	ptc_free(b.parts);
	if (rc) {
		ptc_free(b.regions);
		return rc;
	}
	v = ptc_reallocarray(b.regions, b.n, sizeof *v); /* give back what is not used */
	*ret = (struct ptc_rank_layout){ .regions = v ? v : b.regions, .nregions = b.n };
	return 0;
}

/* Layer -> stage for all layers; *ret_stages is layer-indexed. */
static int map_stages(const struct ptc_config *c, int64_t layers, uint32_t *stages, struct ptc_error *err)
{
	int64_t sum = 0, at = 0;

	for (uint32_t i = 0; i < c->nstages; i++)
		sum += c->stages[i];
	if (c->nstages && sum != layers)
		return ptc_error_set(err, PTC_ELAYOUT, "configuration: stages sum to %lld, the model has %lld layers",
				     (long long)sum, (long long)layers);
	for (uint32_t s = 0; s < c->pp; s++) {
		int64_t n = c->nstages ? c->stages[s] : layers / c->pp + (s < layers % c->pp);

		while (n-- > 0)
			stages[at++] = s;
	}
	return 0;
}

/* Looks up every item's rule; items[].stage is the layer until place_layers. */
static int find_rules(struct ptc_layout *l, int64_t *ret_layers, struct ptc_error *err)
{
	const struct ptc_rule *rules[1 + PTC_MAX_FIELDS];
	char name[PTC_ITEM_NAME_SIZE];
	int64_t layers = 0, layer;

	for (size_t item = 0; item < l->nitems; item++) {
		size_t f = item % (1 + l->spec->nfields);
		int rc;

		if (f == 0)
			ptc_spec_tensor_rules(l->spec, item / (1 + l->spec->nfields), rules);
		rc = ptc_rule_fits(l->spec, item, rules[f], &layer, err);
		if (rc)
			return rc;
		if (rules[f] && rules[f]->carry == PTC_CARRY_REFUSE)
			return ptc_error_set(err, PTC_ELAYOUT, "tensor \"%s\": rule \"%s\" refuses to lay it out",
					     ptc_item_name(l->spec, item, name, sizeof name), rules[f]->match);
		l->items[item].rule = rules[f];
		l->items[item].stage = layer < 0 ? 0 : (uint32_t)layer;
		layers = PTC_MAX(layers, layer + 1);
	}
	*ret_layers = layers;
	return 0;
}

static int place_layers(struct ptc_layout *l, struct ptc_error *err)
{
	int64_t layers = 0;
	uint32_t *stages;
	int rc = find_rules(l, &layers, err);

	if (rc)
		return rc;
	stages = ptc_calloc((size_t)layers, sizeof *stages);
	if (!stages)
		return ptc_error_set(err, PTC_ENOMEM, "layout: out of memory");
	rc = map_stages(&l->config, layers, stages, err);
	for (size_t i = 0; i < l->nitems && !rc; i++)
		if (l->items[i].rule && l->items[i].rule->place == PTC_PLACE_LAYER)
			l->items[i].stage = stages[l->items[i].stage];
	ptc_free(stages);
	return rc;
}

/* What a rank holds of all items is determined by its cell, which keeps the order (zero range, pp, tp). */
static uint32_t cell_of(const struct ptc_layout *l, uint32_t rank)
{
	struct ptc_coords k = ptc_config_coords(&l->config, rank);
	uint32_t zero = l->nzero && l->spec->nfields ? ptc_config_zero_index(&l->config, &k) : 0;

	return (zero * l->config.pp + k.pp) * l->config.tp + k.tp;
}

int ptc_regions_prepare(struct ptc_layout *l, struct ptc_error *err)
{
	l->nitems = ptc_spec_items(l->spec);
	l->nzero = l->config.zero ? l->config.dp * l->config.cp : 0;
	l->ncells = l->config.tp * l->config.pp * PTC_MAX(l->spec->nfields ? l->nzero : 0, 1u);
	l->items = ptc_calloc(l->nitems, sizeof *l->items);
	l->rank_cells = ptc_calloc(l->world, sizeof *l->rank_cells);
	l->cell_ranks = ptc_calloc(l->ncells, sizeof *l->cell_ranks);
	if (!l->items || !l->rank_cells || !l->cell_ranks)
		return ptc_error_set(err, PTC_ENOMEM, "layout: out of memory");
	for (uint32_t r = l->world; r-- > 0;) {
		l->rank_cells[r] = cell_of(l, r);
		l->cell_ranks[l->rank_cells[r]] = r;
	}
	return place_layers(l, err);
}

/* Length of the split dim on tp rank t. */
static int64_t local_len(const struct ptc_layout *l, uint32_t item, const struct ptc_rule *r, uint32_t t)
{
	int64_t size = tensor_of(l, item)->shape[r->dim], degree = split_degree(l, r), sum = 0, off, len;

	if (r->pad_to)
		return padded_size(r, size, degree, &len) ? len / degree : 0;
	for (size_t i = 0; i < PTC_MAX(r->nblocks, 1u); i++)
		if (share(r, r->nblocks ? r->blocks[i] : size, degree, t, &off, &len))
			sum += len;
	return sum;
}

bool ptc_regions_local_shape(const struct ptc_layout *l, uint32_t rank, uint32_t item, struct ptc_local_shape *ret)
{
	const struct ptc_tensor *t = tensor_of(l, item);
	const struct ptc_rule *r = l->items[item].rule;
	struct ptc_coords k = ptc_config_coords(&l->config, rank);
	struct ptc_box local = ptc_box_whole(t->ndim, t->shape);
	int64_t first, count;

	if (!on_stage(l, item, k.pp))
		return false;
	if (r && r->axis != PTC_AXIS_NONE)
		local.ext[r->dim] = local_len(l, item, r, k.tp);
	if (is_flat(l, item)) {
		flat_range(ptc_box_volume(&local), l->nzero, ptc_config_zero_index(&l->config, &k), &first, &count);
		local.ndim = 1;
		local.ext[0] = count;
	}
	*ret = (struct ptc_local_shape){ .item = item, .ndim = local.ndim };
	memcpy(ret->shape, local.ext, local.ndim * sizeof *ret->shape);
	return true;
}

/* ---- parts: what ranks share ---- */

static uint32_t tp_parts(const struct ptc_layout *l, uint32_t item)
{
	const struct ptc_rule *r = l->items[item].rule;

	return r && r->axis != PTC_AXIS_NONE ? split_degree(l, r) : 1;
}

uint32_t ptc_regions_nparts(const struct ptc_layout *l, uint32_t item)
{
	return tp_parts(l, item) * (is_flat(l, item) ? l->nzero : 1);
}

bool ptc_regions_part(const struct ptc_layout *l, uint32_t item, uint32_t rank, uint32_t *ret_part)
{
	struct ptc_coords k = ptc_config_coords(&l->config, rank);
	uint32_t parts = tp_parts(l, item);

	if (!on_stage(l, item, k.pp))
		return false;
	*ret_part = parts > 1 ? k.tp : 0;
	if (is_flat(l, item))
		*ret_part += parts * ptc_config_zero_index(&l->config, &k);
	return true;
}

int ptc_regions_of_part(const struct ptc_layout *l, uint32_t item, uint32_t part, struct ptc_rank_layout *ret,
			struct ptc_error *err)
{
	struct builder b = { .l = l, .err = err };
	uint32_t parts = tp_parts(l, item);
	int rc = build_item(&b, item, part % parts, part / parts);

	ptc_free(b.parts);
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

	*ret = (struct ptc_regions_key){
		.rule = i->rule,
		.flat = is_flat(l, item),
		.where = (uint64_t)place << 32 | (place == PTC_PLACE_LAYER ? i->stage : 0),
	};
}
