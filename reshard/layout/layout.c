/* SPDX-License-Identifier: Apache-2.0 */
/* The container of a layout, and its regions on request. If the layout is made from rules, its regions are computed
 * when a caller asks (regions.c). If it is made from declarations, the regions of each class are kept (declared.c).
 *
 * Failure modes: those of the rules, limits, memory; nothing is returned then. */
#include "reshard/layout/internal.h"
#include "reshard/spec/lint.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <string.h>

void ptc_rank_layout_done(struct ptc_rank_layout *r)
{
	ptc_free(r->regions);
	*r = (struct ptc_rank_layout){ 0 };
}

#define KEPT_PIECES 16384 /* of rules without buffers: 2.5 MiB */

static size_t pieces_of(const struct ptc_side *s)
{
	size_t n = 0;

	for (uint32_t i = 0; i < s->ngeometries; i++)
		n += s->geometries[i].n;
	return n;
}

int ptc_layout_finalize(struct ptc_layout *l, struct ptc_error *err)
{
	struct ptc_side *side = ptc_calloc(1, sizeof *side);
	int rc = side ? ptc_side_init(side, l, l->spec, err) : ptc_nomem(err);

	/* Rules without buffers give equal or disjoint boxes, so it is not needed; but mostly few of many tensors
	 * differ in shape, and then needs and plans come much quicker from it. Of buffers it is large, and plans want
	 * it too. */
	if (!rc && (side->cut || l->flats || (l->items && pieces_of(side) <= KEPT_PIECES))) {
		l->side = side;
		return 0;
	}
	if (!side)
		return rc;
	ptc_side_done(side);
	ptc_free(side);
	return rc;
}

int ptc_layout_new(const struct ptc_spec *spec, const struct ptc_config *config, struct ptc_layout **ret_layout,
		   struct ptc_error *err)
{
	struct ptc_layout *l;
	uint32_t world;
	int rc = ptc_config_world(config, &world, err);

	if (rc)
		return rc;
	rc = ptc_spec_check(spec, err);
	if (rc)
		return rc;
	l = ptc_calloc(1, sizeof *l);
	if (!l)
		return ptc_nomem(err);
	l->spec = spec;
	l->config = *config;
	l->world = world;
	rc = ptc_regions_prepare(l, err);
	if (!rc)
		rc = ptc_layout_finalize(l, err);
	if (rc)
		ptc_layout_free(l);
	else
		*ret_layout = l;
	return rc;
}

struct ptc_layout *ptc_layout_free(struct ptc_layout *l)
{
	if (!l)
		return NULL;
	for (uint32_t c = 0; l->cells && c < l->ncells; c++)
		ptc_free(l->cells[c].regions);
	for (uint32_t c = 0; l->empty && c < l->ncells; c++)
		ptc_free(l->empty[c].items);
	ptc_free(l->cells);
	ptc_free(l->rank_cells);
	ptc_free(l->cell_ranks);
	ptc_free(l->empty);
	ptc_free(l->items);
	ptc_free(l->at);
	if (l->side)
		ptc_side_done(l->side);
	ptc_free(l->side);
	ptc_free(l->flats);
	ptc_free(l);
	return NULL;
}

bool ptc_layout_resets(const struct ptc_layout *l, uint32_t item)
{
	const struct ptc_rule *rule = l->items ? l->items[item].rule : NULL;

	return rule && rule->carry == PTC_CARRY_RESET;
}

bool ptc_layout_master(const struct ptc_layout *l, uint32_t item, uint32_t *ret_master)
{
	const struct ptc_rule *rule = l->items ? l->items[item].rule : NULL;

	if (!rule || !rule->master || item % (1 + l->spec->nfields))
		return false;
	*ret_master = item + (uint32_t)ptc_rule_master(l->spec, rule);
	return true;
}

/* Where in a buffer an item lies depends on what else is in it: the parameters' need not have what the masters' has. */
static bool same_flats(const struct ptc_layout *l, uint32_t a, uint32_t b)
{
	uint32_t n = ptc_regions_in_buffer(l, a) ? ptc_regions_flat_slots(l, a) : 0;

	if (!n || !ptc_regions_in_buffer(l, b))
		return !n && !ptc_regions_in_buffer(l, b);
	return n == ptc_regions_flat_slots(l, b) &&
	       !memcmp(&l->flats[l->items[a].flats], &l->flats[l->items[b].flats], n * sizeof *l->flats);
}

bool ptc_layout_derives(const struct ptc_layout *l, uint32_t item)
{
	uint32_t master;

	if (!ptc_layout_master(l, item, &master)) /* placed alike: lint saw to it */
		return false;
	return ptc_regions_degree(l, l->items[item].rule, PTC_BY_ZERO) == 1 ||
	       (ptc_regions_cuts(l, item, PTC_BY_ZERO) == ptc_regions_cuts(l, master, PTC_BY_ZERO) &&
		same_flats(l, item, master));
}

int ptc_layout_master_box(const struct ptc_layout *l, uint32_t item, const struct ptc_box *bytes,
			  struct ptc_box *ret_master, struct ptc_error *err)
{
	struct ptc_box elements;
	uint32_t master;

	if (ptc_fails(ptc_layout_master(l, item, &master)))
		return ptc_error_set(err, PTC_EINTERNAL, "item %u has no master to be derived from", item);
	ptc_item_elements(l->spec, item, bytes, &elements);
	return ptc_item_byte_box(l->spec, master, &elements, ret_master, err);
}

uint32_t ptc_layout_world(const struct ptc_layout *l)
{
	return l->world;
}

const struct ptc_spec *ptc_layout_spec(const struct ptc_layout *l)
{
	return l->spec;
}

const struct ptc_config *ptc_layout_config(const struct ptc_layout *l)
{
	return &l->config;
}

const struct ptc_side *ptc_layout_side(const struct ptc_layout *l)
{
	return l->side;
}

uint32_t ptc_layout_cell(const struct ptc_layout *l, uint32_t rank)
{
	return l->rank_cells[rank];
}

static int copy_regions(const struct ptc_region *v, size_t n, struct ptc_rank_layout *ret, struct ptc_error *err)
{
	struct ptc_region *copy = ptc_calloc(n, sizeof *copy);

	if (!copy)
		return ptc_nomem(err);
	if (n)
		memcpy(copy, v, n * sizeof *v);
	*ret = (struct ptc_rank_layout){ copy, n };
	return 0;
}

int ptc_layout_rank(const struct ptc_layout *l, uint32_t rank, struct ptc_rank_layout *ret, struct ptc_error *err)
{
	const struct ptc_rank_layout *cell;

	if (l->items)
		return ptc_regions_of_rank(l, rank, 0, (uint32_t)l->nitems, ret, err);
	cell = &l->cells[l->rank_cells[rank]];
	return copy_regions(cell->regions, cell->nregions, ret, err);
}

int ptc_layout_rank_item(const struct ptc_layout *l, uint32_t rank, uint32_t item, struct ptc_rank_layout *ret,
			 struct ptc_error *err)
{
	struct ptc_cutter cutter = { .l = l, .err = err };
	const struct ptc_rank_layout *cell;
	size_t lo, end;
	uint32_t part;
	int rc;

	if (l->items) {
		if (!ptc_regions_part(l, item, rank, &part))
			return copy_regions(NULL, 0, ret, err);
		rc = ptc_cutter_part(&cutter, item, part);
		ptc_cutter_done(&cutter);
		if (rc)
			ptc_free(cutter.regions);
		else
			*ret = (struct ptc_rank_layout){ .regions = cutter.regions, .nregions = cutter.n };
		return rc;
	}
	cell = &l->cells[l->rank_cells[rank]];
	lo = PTC_SEARCH(struct ptc_region, item, cell->regions, cell->nregions, item);
	for (end = lo; end < cell->nregions && cell->regions[end].item == item;)
		end++;
	return copy_regions(cell->regions + lo, end - lo, ret, err);
}

int ptc_layout_rank_bytes(const struct ptc_layout *l, int64_t *ret_most, struct ptc_error *err)
{
	int64_t *bytes = ptc_calloc(l->world, sizeof *bytes), most = 0;
	struct ptc_side side;
	int rc = bytes ? ptc_side_init(&side, l, l->spec, err) : ptc_nomem(err);

	if (rc) {
		ptc_free(bytes);
		return rc;
	}
	for (uint32_t s = 0; s < side.sets.n; s++)
		for (size_t i = side.sets.first[s]; i < side.sets.first[s + 1]; i++)
			bytes[side.sets.v[i]] += side.held[s];
	for (uint32_t r = 0; r < l->world; r++)
		most = PTC_MAX(most, bytes[r]);
	ptc_side_done(&side);
	ptc_free(bytes);
	*ret_most = most;
	return 0;
}

static bool declared_empty(const struct ptc_layout_empty *e, uint32_t item)
{
	size_t lo = ptc_search_u32(e->items, e->n, sizeof *e->items, 0, item);

	return lo < e->n && e->items[lo] == item;
}

static bool declared_local_shape(const struct ptc_layout *l, uint32_t rank, uint32_t item, struct ptc_local_shape *ret)
{
	uint32_t cell = l->rank_cells[rank];
	const struct ptc_rank_layout *c = &l->cells[cell];
	size_t lo = PTC_SEARCH(struct ptc_region, item, c->regions, c->nregions, item);

	if (lo == c->nregions || c->regions[lo].item != item) {
		if (!declared_empty(&l->empty[cell], item))
			return false;
		*ret = (struct ptc_local_shape){ .item = item, .ndim = 1 };
		return true;
	}
	*ret = (struct ptc_local_shape){ .item = item, .ndim = c->regions[lo].box.ndim };
	memcpy(ret->shape, c->regions[lo].box.ext, ret->ndim * sizeof *ret->shape);
	if (lo + 1 == c->nregions || c->regions[lo + 1].item != item)
		return true;
	*ret = (struct ptc_local_shape){ .item = item, .ndim = 1 };
	for (; lo < c->nregions && c->regions[lo].item == item; lo++)
		ret->shape[0] += ptc_box_volume(&c->regions[lo].box);
	return true;
}

bool ptc_layout_local_shape(const struct ptc_layout *l, uint32_t rank, uint32_t item, struct ptc_local_shape *ret)
{
	return l->items ? ptc_regions_local_shape(l, rank, item, ret) : declared_local_shape(l, rank, item, ret);
}

void ptc_item_elements(const struct ptc_spec *s, uint32_t item, const struct ptc_box *bytes, struct ptc_box *ret)
{
	int64_t bits = ptc_dtype_bits(ptc_item_dtype(s, item));

	*ret = *bytes;
	if (s->tensors[item / (1 + s->nfields)].ndim == 0) {
		ret->ndim = 0;
		return;
	}
	ret->off[ret->ndim - 1] = ret->off[ret->ndim - 1] * 8 / bits;
	ret->ext[ret->ndim - 1] = ret->ext[ret->ndim - 1] * 8 / bits;
}

int ptc_allocation_in_order(uint32_t world, uint32_t nodes, uint32_t per_node, struct ptc_allocation *ret,
			    struct ptc_error *err)
{
	struct ptc_device *ranks;

	if (world > (uint64_t)nodes * per_node)
		return ptc_error_set(err, PTC_ENODEVICES, "%u ranks need %u devices, but %u nodes of %u have %llu",
				     world, world, nodes, per_node, (unsigned long long)nodes * per_node);
	ranks = ptc_calloc(world, sizeof *ranks);
	if (!ranks)
		return ptc_nomem(err);
	for (uint32_t r = 0; r < world; r++)
		ranks[r] = (struct ptc_device){ r / per_node, r % per_node };
	*ret = (struct ptc_allocation){ ranks, world };
	return 0;
}

void ptc_allocation_done(struct ptc_allocation *a)
{
	if (!a)
		return;
	ptc_free(a->ranks);
	*a = (struct ptc_allocation){ 0 };
}
