/* SPDX-License-Identifier: Apache-2.0 */
/* Makes regions from rules and a configuration: the layout's items, the ways by which they are cut, and the regions of
 * a rank or of a part. For reshard/layout only, which owns the layout. Functions only read the layout unless they say
 * otherwise; any thread.
 *
 * `at` in an argument says which part of an item is meant: for each way, the index of the part along it. For
 * PTC_BY_PLACE the index is the pipeline rank. */
#pragma once

#include "reshard/regions/region.h"
#include "reshard/spec/config.h"

/* The ways by which an item may be cut. A split cuts it along an axis (enum ptc_axis). ZeRO cuts it over the
 * data-parallel group (PTC_BY_ZERO). In buffers, the pipeline stages that have the item are a way, too (PTC_BY_PLACE),
 * because a tensor on two stages lies at different places in their buffers. */
enum { PTC_BY_ZERO = PTC_AXIS_CP + 1, PTC_BY_PLACE, PTC_WAYS };

struct ptc_layout_item {
	const struct ptc_rule *rule; /* NULL: replicated */
	uint32_t layer;              /* layer, chunk and stage are for PTC_PLACE_LAYER */
	uint32_t chunk;              /* one of the pp*vpp stages */
	uint32_t stage;              /* pipeline rank */
	size_t flats;                /* the item's first entry in the layout's flats, where in buffers */
	uint32_t ep;                 /* place on the ep axis, for a rule with expert */
	/* Derived from rule and configuration by ptc_ways_finalize, because it is asked for often. */
	enum ptc_shard how;     /* ptc_regions_shard */
	uint32_t how_dim, cuts; /* bits: ptc_regions_cuts */
	bool expert;            /* ptc_rule_is_expert */
};
/* The place of an item's local tensor in its bucket: its first element, and the length of each rank's range of the
 * bucket, in elements. */
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
	/* per rank: its index in each way, for dense and for expert tensors; NULL when declared */
	uint32_t (*at)[2][PTC_WAYS];
	struct ptc_flat_at *flats; /* made by buffers.c; NULL without buffers */
	uint32_t ncells;
	uint32_t *rank_cells; /* per rank: its cell; ranks that hold the same regions share one */
	uint32_t *cell_ranks; /* per cell: the lowest of its ranks; NULL when declared */
	/* The layout in compressed form, kept where it is needed often: for rules, unless it is large, and where boxes
	 * of ranks overlap and are not equal. Then all boxes are cut so that any two nodes' boxes are equal or
	 * disjoint. Otherwise NULL. */
	struct ptc_side *side;
	/* for declared layouts (declared.c) */
	struct ptc_rank_layout *cells;  /* per cell */
	struct ptc_layout_empty *empty; /* per cell: items that were declared with no element held */
};
/* Prepares a layout that has spec, config and world: its items with their rules and stages, and its cells. On failure,
 * ptc_layout_free frees all that was allocated. */
int ptc_regions_prepare(struct ptc_layout *l, struct ptc_error *err);
/* The regions of one rank, of the items from `first` to end - 1, by item, then row-major; the caller frees
 * ret->regions. Reads l's items and changes nothing. l may have any number of items, in any order, or none. */
int ptc_regions_of_rank(const struct ptc_layout *l, uint32_t rank, uint32_t first, uint32_t end,
			struct ptc_rank_layout *ret, struct ptc_error *err);
/* ptc_layout_local_shape for a layout made from rules. */
bool ptc_regions_local_shape(const struct ptc_layout *l, uint32_t rank, uint32_t item, struct ptc_local_shape *ret);
/* Ranks that hold the same region of an item have the same part. Parts are numbered from 0; there are
 * ptc_regions_nparts. */
struct ptc_regions_key {
	const struct ptc_rule *rule;
	uint64_t form;
	uint64_t where;
};
/* The key of an item. Items of one shape and dtype with the same rule and form have the same parts, number by number.
 * If `where` is equal too, every rank has the same part of both. */
void ptc_regions_key(const struct ptc_layout *l, uint32_t item, struct ptc_regions_key *ret);
uint32_t ptc_regions_nparts(const struct ptc_layout *l, uint32_t item);
/* false: the rank holds nothing of the item. */
bool ptc_regions_part(const struct ptc_layout *l, uint32_t item, uint32_t rank, uint32_t *ret_part);
/* The parts that may hold elements, as runs of numbers first, first + step ... In buffers, most parts of a tensor are
 * empty. */
struct ptc_part_run {
	uint32_t first, step, n;
};
uint32_t ptc_regions_nruns(const struct ptc_layout *l, uint32_t item);
void ptc_regions_run(const struct ptc_layout *l, uint32_t item, uint32_t run, struct ptc_part_run *ret);
/* A part of a dim: the global range [goff, goff + ext) lies at loff locally. */
struct ptc_dim_part {
	int64_t goff, ext, loff;
	bool padding;
};
struct ptc_dim_parts {
	struct ptc_dim_part *v;
	size_t n, cap;
	int64_t len; /* length of the local dim */
};
/* Makes the regions of one part after another, and reuses its memory. Begin with l and err set and all else zero. End
 * with ptc_cutter_done. */
struct ptc_cutter {
	const struct ptc_layout *l;
	struct ptc_error *err;
	uint32_t item;
	struct ptc_dim_parts dims[PTC_MAX_DIMS], spare;
	struct ptc_boxes range;
	struct ptc_region *regions; /* the caller frees them, also after a failure */
	size_t n, cap;
};
/* Replaces regions 0 to c->n - 1 by those of one part. PTC_ELAYOUT, PTC_ELIMIT, PTC_ENOMEM: c->err says why. */
int ptc_cutter_part(struct ptc_cutter *c, uint32_t item, uint32_t part);
/* Frees everything but the regions. */
void ptc_cutter_done(struct ptc_cutter *c);

/* ---- ways: what an item is cut over ---- */
/* How zero cuts an item. CONFIG: it is cut in the configuration's buffers. */
enum ptc_shard ptc_regions_shard(const struct ptc_layout *l, uint32_t item, uint32_t *ret_dim);
/* Whether a rank keeps a range of the flattened local tensor. */
bool ptc_regions_is_flat(const struct ptc_layout *l, uint32_t item);
uint32_t ptc_regions_degree(const struct ptc_layout *l, const struct ptc_rule *r, uint32_t way);
/* A rank's index in each way, for expert tensors or for dense ones. */
void ptc_regions_indices(const struct ptc_layout *l, uint32_t rank, bool expert, uint32_t at[PTC_WAYS]);
/* Whether the rank's part of the item depends on the rank's index in this way. In buffers, it also depends on the axes
 * that cut other tensors of the buffer. */
bool ptc_regions_cuts(const struct ptc_layout *l, uint32_t item, uint32_t way);
/* The number of stages that have the item in a buffer. */
uint32_t ptc_regions_places(const struct ptc_layout *l, uint32_t item);
bool ptc_regions_in_buffer(const struct ptc_layout *l, uint32_t item);
/* The item's entry in its flats for these indices; below ptc_regions_flat_slots. */
uint32_t ptc_regions_flat_slot(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS]);
uint32_t ptc_regions_flat_slots(const struct ptc_layout *l, uint32_t item);
