/* SPDX-License-Identifier: Apache-2.0 */
/* The ways in which an item may be cut: axes of splits, zero, stages of a buffer. Says which ways the item's rule and
 * the configuration use, how many parts each way makes, and which part a rank has. Arithmetic; nothing can fail. */
#include "reshard/regions/internal.h"

#include "base/alloc.h"
#include "base/check.h"

#include <string.h>

/* How zero cuts an item; CONFIG where the configuration's buffers do. */
static enum ptc_shard find_shard(const struct ptc_layout *l, uint32_t item, uint32_t *ret_dim)
{
	const struct ptc_rule *r = l->items[item].rule;
	bool field = item % (1 + l->spec->nfields) > 0;
	enum ptc_shard how = r ? r->shard : PTC_SHARD_CONFIG;

	*ret_dim = 0;
	if (!l->config.zero || (l->config.zero < 3 && !field))
		return PTC_SHARD_NONE;
	if (ptc_rule_names_axis(r, PTC_AXIS_DP) || ptc_rule_names_axis(r, PTC_AXIS_CP))
		return PTC_SHARD_NONE;
	if (how == PTC_SHARD_CONFIG && l->config.shard != PTC_SHARDS_BUFFER)
		how = l->config.shard == PTC_SHARDS_DIM0 ? PTC_SHARD_DIM : PTC_SHARD_FLAT;
	else if (how == PTC_SHARD_DIM)
		*ret_dim = r->shard_dim;
	return how == PTC_SHARD_DIM && ptc_layout_tensor(l, item)->ndim == 0 ? PTC_SHARD_NONE : how;
}

enum ptc_shard ptc_regions_shard(const struct ptc_layout *l, uint32_t item, uint32_t *ret_dim)
{
	*ret_dim = l->items[item].how_dim;
	return l->items[item].how;
}

bool ptc_regions_is_flat(const struct ptc_layout *l, uint32_t item)
{
	uint32_t dim;
	enum ptc_shard how = ptc_regions_shard(l, item, &dim);

	return how == PTC_SHARD_FLAT || how == PTC_SHARD_CONFIG;
}

bool ptc_regions_in_buffer(const struct ptc_layout *l, uint32_t item)
{
	uint32_t dim;

	return ptc_regions_shard(l, item, &dim) == PTC_SHARD_CONFIG;
}

/* Of how many stages the item has a buffer. */
uint32_t ptc_regions_places(const struct ptc_layout *l, uint32_t item)
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

	if (ptc_regions_places(l, item) == 1)
		return 0;
	return place == PTC_PLACE_ALL ? pp : pp > 0;
}

int64_t ptc_regions_zero_degree(const struct ptc_layout *l, bool expert)
{
	const struct ptc_config *c = &l->config;

	return (expert ? ptc_config_edp(c) : c->dp * c->cp) / PTC_MAX(c->replicas, 1u);
}

uint32_t ptc_regions_degree(const struct ptc_layout *l, const struct ptc_rule *r, uint32_t way)
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
		return (uint32_t)ptc_regions_zero_degree(l, ptc_rule_is_expert(r));
	default:
		return 1;
	}
}

/* A rank's index in each way, for tensors that are experts' or not; of BY_PLACE it is the pipeline rank. */
static void find_indices(const struct ptc_layout *l, uint32_t rank, bool expert, uint32_t at[PTC_WAYS])
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

int ptc_ways_ranks(struct ptc_layout *l)
{
	l->at = ptc_calloc(l->world, sizeof *l->at);
	if (!l->at)
		return PTC_ENOMEM;
	for (uint32_t rank = 0; rank < l->world; rank++) {
		find_indices(l, rank, false, l->at[rank][0]);
		find_indices(l, rank, true, l->at[rank][1]);
	}
	return 0;
}

void ptc_regions_indices(const struct ptc_layout *l, uint32_t rank, bool expert, uint32_t at[PTC_WAYS])
{
	memcpy(at, l->at[rank][expert], sizeof l->at[rank][expert]);
}

bool ptc_regions_cuts(const struct ptc_layout *l, uint32_t item, uint32_t way)
{
	return l->items[item].cuts >> way & 1;
}

/* Does what a rank has of the item depend on its index in this way? In buffers also on the axes that may cut others. */
static bool find_cuts(const struct ptc_layout *l, uint32_t item, uint32_t way)
{
	const struct ptc_rule *r = l->items[item].rule;
	uint32_t dim;

	if (way == PTC_BY_ZERO)
		return ptc_regions_shard(l, item, &dim) != PTC_SHARD_NONE;
	if (way == PTC_BY_PLACE)
		return ptc_regions_places(l, item) > 1;
	if (!ptc_rule_names_axis(r, (enum ptc_axis)way) && way <= PTC_AXIS_ETP && ptc_regions_in_buffer(l, item))
		return ptc_rule_is_expert(r) ? way == PTC_AXIS_ETP || (way == PTC_AXIS_EP && !r->expert)
					     : way == PTC_AXIS_TP;
	return ptc_rule_names_axis(r, (enum ptc_axis)way);
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

/* Number of the part in the ways below `end`, the first fastest. */
static uint32_t part_number(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS], uint32_t end)
{
	uint32_t part = 0, step = 1;

	for (uint32_t way = PTC_AXIS_TP; way < end; way++)
		if (ptc_regions_cuts(l, item, way)) {
			part += step * (way == PTC_BY_PLACE ? place_index(l, item, at[way]) : at[way]);
			step *= way == PTC_BY_PLACE ? ptc_regions_places(l, item)
						    : ptc_regions_degree(l, l->items[item].rule, way);
		}
	return part;
}

uint32_t ptc_regions_nparts(const struct ptc_layout *l, uint32_t item)
{
	uint32_t n = ptc_regions_places(l, item);

	for (uint32_t way = PTC_AXIS_TP; way <= PTC_BY_ZERO; way++)
		if (ptc_regions_cuts(l, item, way))
			n *= ptc_regions_degree(l, l->items[item].rule, way);
	return n;
}

uint32_t ptc_regions_flat_slot(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS])
{
	return part_number(l, item, at, PTC_BY_ZERO) * ptc_regions_places(l, item) +
	       place_index(l, item, at[PTC_BY_PLACE]);
}

uint32_t ptc_regions_flat_slots(const struct ptc_layout *l, uint32_t item)
{
	return ptc_regions_nparts(l, item) / ptc_regions_degree(l, l->items[item].rule, PTC_BY_ZERO);
}

bool ptc_regions_part(const struct ptc_layout *l, uint32_t item, uint32_t rank, uint32_t *ret_part)
{
	uint32_t at[PTC_WAYS];

	ptc_regions_indices(l, rank, ptc_rule_is_expert(l->items[item].rule), at);
	if (!ptc_regions_is_at(l, item, at[PTC_BY_PLACE], at[PTC_AXIS_EP]))
		return false;
	*ret_part = part_number(l, item, at, PTC_WAYS);
	return true;
}

void ptc_ways_finalize(struct ptc_layout *l, uint32_t item)
{
	const uint32_t fields = 1 + (uint32_t)l->spec->nfields, before = item - fields;
	struct ptc_layout_item *i = &l->items[item];

	/* All that follows depends on the rule, on which field it is, and on whether the tensor is a scalar. */
	if (item >= fields && i->rule == l->items[before].rule &&
	    !ptc_layout_tensor(l, item)->ndim == !ptc_layout_tensor(l, before)->ndim) {
		i->expert = l->items[before].expert;
		i->how = l->items[before].how;
		i->how_dim = l->items[before].how_dim;
		i->cuts = l->items[before].cuts;
		return;
	}
	i->expert = ptc_rule_is_expert(i->rule);
	i->how = find_shard(l, item, &i->how_dim);
	for (uint32_t way = PTC_AXIS_TP; way < PTC_WAYS; way++)
		i->cuts |= (uint32_t)find_cuts(l, item, way) << way;
}
