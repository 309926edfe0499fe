/* SPDX-License-Identifier: Apache-2.0 */
/* From rules and a configuration to the regions of one rank. Happy path: every item's rule and place are looked up once
 * (ptc_regions_prepare). A region is then one part of each dim (cut.c), for flat ranges cut further by the boxes of the
 * range. Failure modes: a rule that does not fit spec or configuration (PTC_ELAYOUT naming tensor, dim and sizes),
 * found by prepare for all ranks; limits, memory. */
#include "reshard/regions/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <stdlib.h>
#include <string.h>

static int add_region(struct ptc_cutter *b, const struct ptc_region *r)
{
	struct ptc_box bytes;

	if (!r->padding && ptc_dtype_bits(ptc_item_dtype(b->l->spec, r->item)) % 8) {
		int rc = ptc_item_byte_box(b->l->spec, r->item, &r->box, &bytes, b->err);

		if (rc)
			return rc;
	}
	if (b->n >= PTC_MAX_REGIONS)
		return ptc_error_set(b->err, PTC_ELIMIT, "layout: more than %u regions", PTC_MAX_REGIONS);
	if (!PTC_ROOM(b->regions, b->n + 1, b->cap))
		return ptc_nomem(b->err);
	b->regions[b->n++] = *r;
	return 0;
}

PTC_COMPARE(by_first_element, struct ptc_region, ptc_box_order_off(&a->box, &b->box))

/* The elements that a rank has of an item's flattened local tensor of count elements. */
static void flat_range(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS], int64_t count,
		       int64_t *ret_first, int64_t *ret_count)
{
	int64_t n = ptc_regions_degree(l, l->items[item].rule, PTC_BY_ZERO), k = at[PTC_BY_ZERO];
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
static int emit(struct ptc_cutter *b, const size_t *chosen, const struct ptc_box *piece, const int64_t *stride,
		int64_t flat_first)
{
	struct ptc_region region = { .item = b->item, .box = { .ndim = piece->ndim }, .buf_off = -flat_first };

	for (uint32_t d = 0; d < piece->ndim; d++) {
		const struct ptc_dim_part *p = &b->dims[d].v[chosen[d]];
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
static int emit_pieces(struct ptc_cutter *b, const struct ptc_box *local, const struct ptc_box *pieces, size_t npieces,
		       int64_t flat_first)
{
	int64_t stride[PTC_MAX_DIMS] = { 0 }, s = 1;
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

static int build_item(struct ptc_cutter *b, uint32_t item, const uint32_t at[PTC_WAYS])
{
	struct ptc_box local;
	char name[PTC_ITEM_NAME_SIZE];
	int64_t first, count;
	int rc = ptc_cut_dims(b, item, at, &local);

	if (rc)
		return rc;
	if (!ptc_cut_fits(&local))
		return ptc_error_set(b->err, PTC_ELAYOUT, "tensor \"%s\": its padded size overflows 64 bits",
				     ptc_item_name(b->l->spec, item, name, sizeof name));
	if (ptc_box_empty(&local))
		return 0;
	if (!ptc_regions_is_flat(b->l, item))
		return emit_pieces(b, &local, &local, 1, 0);
	flat_range(b->l, item, at, ptc_box_volume(&local), &first, &count);
	b->range.n = 0;
	rc = ptc_box_from_range(local.ndim, local.ext, first, count, &b->range);
	if (rc)
		return ptc_error_set(b->err, rc, "layout: out of memory");
	return b->range.n ? emit_pieces(b, &local, b->range.v, b->range.n, first) : 0;
}

int ptc_regions_of_rank(const struct ptc_layout *l, uint32_t rank, uint32_t first, uint32_t end,
			struct ptc_rank_layout *ret, struct ptc_error *err)
{
	struct ptc_cutter b = { .l = l, .err = err };
	uint32_t at[2][PTC_WAYS], pp = ptc_config_coords(&l->config, rank).pp;
	struct ptc_region *v;
	int rc = 0;

	ptc_regions_indices(l, rank, false, at[0]);
	ptc_regions_indices(l, rank, true, at[1]);
	for (uint32_t item = first; item < end && !rc; item++)
		if (ptc_regions_is_at(l, item, pp, at[1][PTC_AXIS_EP]))
			rc = build_item(&b, item, at[ptc_rule_is_expert(l->items[item].rule)]);
	ptc_cutter_done(&b);
	if (rc) {
		ptc_free(b.regions);
		return rc;
	}
	v = ptc_reallocarray(b.regions, b.n, sizeof *v); /* give back what is not used */
	*ret = (struct ptc_rank_layout){ .regions = v ? v : b.regions, .nregions = b.n };
	return 0;
}

/* ---- parts: what ranks share ---- */

static void part_indices(const struct ptc_layout *l, uint32_t item, uint32_t part, uint32_t at[PTC_WAYS])
{
	const struct ptc_rule *r = l->items[item].rule;

	memset(at, 0, PTC_WAYS * sizeof *at);
	for (uint32_t way = PTC_AXIS_TP; way <= PTC_BY_ZERO; way++)
		if (ptc_regions_cuts(l, item, way)) {
			uint32_t n = ptc_regions_degree(l, r, way);

			at[way] = part % n;
			part /= n;
		}
	at[PTC_BY_PLACE] = r && r->place == PTC_PLACE_ENDS && part ? l->config.pp - 1 : part;
}

uint32_t ptc_regions_nruns(const struct ptc_layout *l, uint32_t item)
{
	return ptc_regions_in_buffer(l, item) ? ptc_regions_flat_slots(l, item) : 1;
}

void ptc_regions_run(const struct ptc_layout *l, uint32_t item, uint32_t run, struct ptc_part_run *ret)
{
	uint32_t nplaces = ptc_regions_places(l, item), nzero = ptc_regions_degree(l, l->items[item].rule, PTC_BY_ZERO),
		 at[PTC_WAYS];
	const struct ptc_flat_at *f;
	int64_t count, end;

	if (!ptc_regions_in_buffer(l, item)) {
		*ret = (struct ptc_part_run){ 0, 1, ptc_regions_nparts(l, item) };
		return;
	}
	*ret = (struct ptc_part_run){ .step = ptc_regions_flat_slots(l, item) / nplaces };
	ret->first = run / nplaces + ret->step * nzero * (run % nplaces);
	part_indices(l, item, ret->first, at);
	count = ptc_regions_elements(l, item, at);
	f = &l->flats[l->items[item].flats + run];
	if (!count || !f->range)
		return;
	end = PTC_MIN((f->first + count - 1) / f->range + 1, (int64_t)nzero);
	ret->first += ret->step * (uint32_t)(f->first / f->range);
	ret->n = (uint32_t)PTC_MAX(end - f->first / f->range, 0);
}

int ptc_cutter_part(struct ptc_cutter *c, uint32_t item, uint32_t part)
{
	uint32_t at[PTC_WAYS];

	part_indices(c->l, item, part, at);
	c->n = 0;
	return build_item(c, item, at);
}

void ptc_regions_key(const struct ptc_layout *l, uint32_t item, struct ptc_regions_key *ret)
{
	const struct ptc_layout_item *i = &l->items[item];
	enum ptc_place place = i->rule ? i->rule->place : PTC_PLACE_ALL;
	uint32_t dim;

	*ret = (struct ptc_regions_key){
		.rule = i->rule,
		.form = ptc_regions_in_buffer(l, item) ? (uint64_t)item << 8 : ptc_regions_shard(l, item, &dim),
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

/* Whether the item is cut as the same field of the tensor before it is. Mostly many tensors in a row are alike. */
static bool cut_as_before(const struct ptc_layout *l, uint32_t item)
{
	const uint32_t fields = 1 + (uint32_t)l->spec->nfields, before = item - fields;
	const struct ptc_tensor *a, *b;
	struct ptc_regions_key x, y;

	if (item < fields || ptc_item_dtype(l->spec, item) != ptc_item_dtype(l->spec, before))
		return false;
	a = ptc_layout_tensor(l, before);
	b = ptc_layout_tensor(l, item);
	if (a->ndim != b->ndim || memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape) != 0)
		return false;
	ptc_regions_key(l, before, &x);
	ptc_regions_key(l, item, &y);
	return x.rule == y.rule && x.form == y.form;
}

/* So that no rank's regions can fail later but for memory and limits. */
static int check_items(const struct ptc_layout *l, struct ptc_error *err)
{
	struct ptc_cutter b = { .l = l, .err = err };
	int rc = 0;

	for (uint32_t item = 0; item < l->nitems && !rc; item++) {
		uint32_t n;

		if (cut_as_before(l, item))
			continue;
		n = every_part_counts(l, item) ? ptc_regions_nparts(l, item) : 1;
		for (uint32_t part = 0; part < n && !rc; part++)
			rc = ptc_cutter_part(&b, item, part);
	}
	ptc_cutter_done(&b);
	ptc_free(b.regions);
	return rc;
}

int ptc_regions_prepare(struct ptc_layout *l, struct ptc_error *err)
{
	int rc;

	l->nitems = ptc_spec_items(l->spec);
	l->items = ptc_calloc(l->nitems, sizeof *l->items);
	if (!l->items || ptc_ways_ranks(l))
		return ptc_nomem(err);
	rc = ptc_items_place(l, err);
	if (!rc)
		rc = ptc_buffers_prepare(l, err);
	if (!rc)
		rc = check_items(l, err);
	if (!rc)
		rc = ptc_items_cells(l, err);
	return rc;
}

bool ptc_regions_local_shape(const struct ptc_layout *l, uint32_t rank, uint32_t item, struct ptc_local_shape *ret)
{
	const struct ptc_rule *r = l->items[item].rule;
	const struct ptc_tensor *t = ptc_layout_tensor(l, item);
	struct ptc_box local = ptc_box_whole(t->ndim, t->shape);
	uint32_t at[PTC_WAYS];
	int64_t first, count;

	ptc_regions_indices(l, rank, ptc_rule_is_expert(r), at);
	if (!ptc_regions_is_at(l, item, ptc_config_coords(&l->config, rank).pp, at[PTC_AXIS_EP]))
		return false;
	ptc_cut_lengths(l, item, at, &local);
	if (ptc_regions_is_flat(l, item)) {
		flat_range(l, item, at, ptc_box_volume(&local), &first, &count);
		local.ndim = 1;
		local.ext[0] = count;
	}
	*ret = (struct ptc_local_shape){ .item = item, .ndim = local.ndim };
	memcpy(ret->shape, local.ext, local.ndim * sizeof *ret->shape);
	return true;
}
