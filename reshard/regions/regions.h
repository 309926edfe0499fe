/* SPDX-License-Identifier: Apache-2.0 */
/* From rules and a configuration to what each rank holds: the layout's items,
 * the ways they are cut over, and the regions of a rank or of a part. For
 * reshard/layout, which owns the layout; nobody else includes it. Functions
 * read the layout unless they say otherwise; any thread. An `at` is an index
 * per way, of PTC_BY_PLACE the pipeline rank. */
#pragma once

#include "reshard/regions/region.h"
#include "reshard/spec/config.h"

/* What an item may be cut over: the axes of splits, the data-parallel group by zero and, in buffers, the stages that
 * have it, for a tensor on two lies elsewhere in the buffer of each. */
enum { PTC_BY_ZERO = PTC_AXIS_CP + 1, PTC_BY_PLACE, PTC_WAYS };

struct ptc_layout_item {
	const struct ptc_rule *rule; /* NULL: replicated */
	uint32_t layer;              /* for PTC_PLACE_LAYER, as are chunk and stage */
	uint32_t chunk;              /* of the pp*vpp stages */
	uint32_t stage;              /* pipeline rank */
	size_t flats;                /* its first in the layout's flats, where in buffers */
	uint32_t ep;                 /* place on the ep axis, for a rule with expert */
	/* What follows from rule and configuration, asked for more often than it can be worked out (ptc_ways_finalize).
	 */
	enum ptc_shard how;     /* ptc_regions_shard */
	uint32_t how_dim, cuts; /* bits: ptc_regions_cuts */
	bool expert;            /* ptc_rule_is_expert */
};
/* An item's local tensor in its bucket: its first element, and the elements of each rank's range of the bucket. */
struct ptc_flat_at {
	int64_t first, range;
};
struct ptc_layout_empty {
	uint32_t *items; /* ascending */
	size_t n;
};
struct ptc_layout {
	const struct ptc_spec *spec;
	struct ptc_config config;
	uint32_t world;
	size_t nitems;
	struct ptc_layout_item *items; /* NULL when declared */
	uint32_t (*at)[2][PTC_WAYS];   /* per rank: its index in each way, for dense and expert tensors; NULL when
					  declared */
	struct ptc_flat_at *flats;     /* buffers.c; NULL without */
	uint32_t ncells;
	uint32_t *rank_cells; /* per rank: its cell; ranks that hold the same share one */
	uint32_t *cell_ranks; /* per cell: the lowest of its ranks; NULL when declared */
	/* What ranks share, where it is needed often: where ranks hold boxes that meet and are not equal (then all of
	 * them are cut so that any two nodes' boxes are equal or disjoint), and of buffers. Else NULL. */
	struct ptc_side *side;
	/* declared (declared.c) */
	struct ptc_rank_layout *cells;  /* per cell */
	struct ptc_layout_empty *empty; /* per cell: what was declared, with nothing held */
};
/* regions.c. Of a layout with spec, config and world: items, their rules and stages, and which cells there are. What
 * was allocated when it fails is ptc_layout_free's. */
int ptc_regions_prepare(struct ptc_layout *l, struct ptc_error *err);
/* What one rank holds, by item, then row-major; the caller frees ret->regions. Reads l's items, changes nothing: any
 * number of them in any order, or none. */
int ptc_regions_of_rank(const struct ptc_layout *l, uint32_t rank, struct ptc_rank_layout *ret, struct ptc_error *err);
/* ptc_layout_local_shape of one made of rules. */
bool ptc_regions_local_shape(const struct ptc_layout *l, uint32_t rank, uint32_t item, struct ptc_local_shape *ret);
/* Ranks that hold the same of an item have the same part of it: parts are numbered from 0 below ptc_regions_nparts. */
struct ptc_regions_key {
	const struct ptc_rule *rule;
	uint64_t form;
	uint64_t where;
};
/* Items of one shape and dtype with the same rule and form have the same parts, part by part; with the same `where`
 * too, every rank has the same part of both. */
void ptc_regions_key(const struct ptc_layout *l, uint32_t item, struct ptc_regions_key *ret);
uint32_t ptc_regions_nparts(const struct ptc_layout *l, uint32_t item);
/* false: the rank has nothing of the item. */
bool ptc_regions_part(const struct ptc_layout *l, uint32_t item, uint32_t rank, uint32_t *ret_part);
/* Parts that may hold anything, as runs of numbers first, first + step ...: in buffers most parts of a tensor are
 * empty. */
struct ptc_part_run {
	uint32_t first, step, n;
};
uint32_t ptc_regions_nruns(const struct ptc_layout *l, uint32_t item);
void ptc_regions_run(const struct ptc_layout *l, uint32_t item, uint32_t run, struct ptc_part_run *ret);
/* A part of a dim: [goff, goff + ext) globally lies at loff locally. */
struct ptc_dim_part {
	int64_t goff, ext, loff;
	bool padding;
};
struct ptc_dim_parts {
	struct ptc_dim_part *v;
	size_t n, cap;
	int64_t len; /* local length of the dim */
};
/* Makes the regions of parts, one part after the other, in memory that it keeps from each to the next. Begin with l and
 * err set and the rest zero; end with ptc_cutter_done. */
struct ptc_cutter {
	const struct ptc_layout *l;
	struct ptc_error *err;
	uint32_t item;
	struct ptc_dim_parts dims[PTC_MAX_DIMS], spare;
	struct ptc_boxes range;
	struct ptc_region *regions; /* the caller frees them, whether a call has failed or not */
	size_t n, cap;
};
/* Regions 0 to c->n - 1 become those of one part. PTC_ELAYOUT, PTC_ELIMIT, PTC_ENOMEM: c->err says why. */
int ptc_cutter_part(struct ptc_cutter *c, uint32_t item, uint32_t part);
/* Frees all but the regions. */
void ptc_cutter_done(struct ptc_cutter *c);

/* ---- ways: what an item is cut over ---- */
/* How zero cuts an item; CONFIG where the configuration's buffers do. */
enum ptc_shard ptc_regions_shard(const struct ptc_layout *l, uint32_t item, uint32_t *ret_dim);
/* A range of the flattened local tensor is kept. */
bool ptc_regions_is_flat(const struct ptc_layout *l, uint32_t item);
uint32_t ptc_regions_degree(const struct ptc_layout *l, const struct ptc_rule *r, uint32_t way);
/* A rank's index in each way, for tensors that are experts' or not. */
void ptc_regions_indices(const struct ptc_layout *l, uint32_t rank, bool expert, uint32_t at[PTC_WAYS]);
/* Does what a rank has of the item depend on its index in this way? In buffers also on the axes that may cut others. */
bool ptc_regions_cuts(const struct ptc_layout *l, uint32_t item, uint32_t way);
/* Of how many stages the item has a buffer, and which of them pipeline rank pp has. */
uint32_t ptc_regions_places(const struct ptc_layout *l, uint32_t item);
uint32_t ptc_regions_place_index(const struct ptc_layout *l, uint32_t item, uint32_t pp);
bool ptc_regions_in_buffer(const struct ptc_layout *l, uint32_t item);
/* Which of an item's flats is for these indices, below ptc_regions_flat_slots. */
uint32_t ptc_regions_flat_slot(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS]);
uint32_t ptc_regions_flat_slots(const struct ptc_layout *l, uint32_t item);
