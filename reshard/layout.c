/* SPDX-License-Identifier: Apache-2.0 */
/* The container of a layout: a list of regions per cell, made by rules
 * (regions.c) or by declarations (declared.c). Failure modes: those of the
 * rules, limits, memory; nothing is returned then. */
#include "reshard/internal.h"

#include "base/alloc.h"
#include "base/check.h"

#include <string.h>

static int build(struct ptc_layout *l, struct ptc_error *err)
{
	size_t total = 0;
	int rc = ptc_regions_prepare(l, err);

	if (rc)
		return rc;
	l->cells = ptc_calloc(l->ncells, sizeof *l->cells);
	if (!l->cells)
		return ptc_error_set(err, PTC_ENOMEM, "layout: out of memory");
	for (uint32_t c = 0; c < l->ncells; c++) {
		rc = ptc_regions_of_rank(l, l->cell_ranks[c], &l->cells[c], err);
		if (rc)
			return rc;
		total += l->cells[c].nregions;
		if (total > PTC_MAX_REGIONS)
			return ptc_error_set(err, PTC_ELIMIT, "layout: more than %u regions", PTC_MAX_REGIONS);
	}
	return 0;
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
		return ptc_error_set(err, PTC_ENOMEM, "layout: out of memory");
	l->spec = spec;
	l->config = *config;
	l->world = world;
	rc = build(l, err);
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
	ptc_free(l->flats);
	ptc_free(l);
	return NULL;
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

uint32_t ptc_layout_ncells(const struct ptc_layout *l)
{
	return l->ncells;
}

uint32_t ptc_layout_cell(const struct ptc_layout *l, uint32_t rank)
{
	return l->rank_cells[rank];
}

const struct ptc_rank_layout *ptc_layout_cell_at(const struct ptc_layout *l, uint32_t cell)
{
	return &l->cells[cell];
}

const struct ptc_rank_layout *ptc_layout_rank(const struct ptc_layout *l, uint32_t rank)
{
	return &l->cells[ptc_layout_cell(l, rank)];
}

bool ptc_layout_local_shape(const struct ptc_layout *l, uint32_t rank, uint32_t item, struct ptc_local_shape *ret)
{
	return l->items ? ptc_regions_local_shape(l, rank, item, ret) : ptc_declared_local_shape(l, rank, item, ret);
}

void ptc_allocation_done(struct ptc_allocation *a)
{
	if (!a)
		return;
	ptc_free(a->ranks);
	*a = (struct ptc_allocation){ 0 };
}
