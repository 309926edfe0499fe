/* SPDX-License-Identifier: Apache-2.0 */
/* Shared between the files of reshard/; nobody else includes it. */
#pragma once

#include "reshard/plan.h"

#define PTC_ITEM_NAME_SIZE (PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2)

/* pattern is a glob in which each {} stands for a run of digits; false when the name does not fit. *ret_numbers: one for each
 * {}, undefined where it does not fit. */
bool ptc_holes_match(const char *pattern, const char *name, int64_t *ret_numbers);

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
	/* What follows from rule and configuration, asked for more often than it can be worked out (ptc_ways_settle). */
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
	uint32_t (
		*at)[2]
		    [PTC_WAYS]; /* per rank: its index in each way, for dense and expert tensors; NULL when declared */
	struct ptc_flat_at *flats; /* buffers.c; NULL without */
	uint32_t ncells;
	uint32_t *rank_cells; /* per rank: its cell; ranks that hold the same share one */
	uint32_t *cell_ranks; /* per cell: the lowest of its ranks; NULL when declared */
	/* What ranks share, where it is needed often: where ranks hold boxes that meet and are not equal (then all of them
	 * are cut so that any two nodes' boxes are equal or disjoint), and of buffers. Else NULL. */
	struct ptc_side *side;
	/* declared (declared.c) */
	struct ptc_rank_layout *cells;  /* per cell */
	struct ptc_layout_empty *empty; /* per cell: what was declared, with nothing held */
};
/* regions.c. Of a layout with spec, config and world: items, their rules and stages, and which cells there are. What was
 * allocated when it fails is ptc_layout_free's. */
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
/* Items of one shape and dtype with the same rule and form have the same parts, part by part; with the same `where` too,
 * every rank has the same part of both. */
void ptc_regions_key(const struct ptc_layout *l, uint32_t item, struct ptc_regions_key *ret);
uint32_t ptc_regions_nparts(const struct ptc_layout *l, uint32_t item);
/* false: the rank has nothing of the item. */
bool ptc_regions_part(const struct ptc_layout *l, uint32_t item, uint32_t rank, uint32_t *ret_part);
/* Parts that may hold anything, as runs of numbers first, first + step ...: in buffers most parts of a tensor are empty. */
struct ptc_part_run {
	uint32_t first, step, n;
};
uint32_t ptc_regions_nruns(const struct ptc_layout *l, uint32_t item);
void ptc_regions_run(const struct ptc_layout *l, uint32_t item, uint32_t run, struct ptc_part_run *ret);
/* The regions of one part; the caller frees ret->regions. */
int ptc_regions_of_part(const struct ptc_layout *l, uint32_t item, uint32_t part, struct ptc_rank_layout *ret,
			struct ptc_error *err);
/* buffers.c: fills l->flats where the configuration shards buffers. Items must be placed. */
int ptc_buffers_prepare(struct ptc_layout *l, struct ptc_error *err);
/* For buffers.c. at: an index per way, of PTC_BY_PLACE the pipeline rank. */
bool ptc_regions_in_buffer(const struct ptc_layout *l, uint32_t item);
bool ptc_regions_is_expert(const struct ptc_layout *l, uint32_t item);
/* Is the item on ranks of this pipeline rank and place on the ep axis? */
bool ptc_regions_is_at(const struct ptc_layout *l, uint32_t item, uint32_t pp, uint32_t ep);
int64_t ptc_regions_zero_degree(const struct ptc_layout *l, bool expert);
/* Elements of the local tensor before zero cuts it. */
int64_t ptc_regions_elements(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS]);
/* Which of an item's flats is for these indices, below ptc_regions_flat_slots. */
uint32_t ptc_regions_flat_slot(const struct ptc_layout *l, uint32_t item, const uint32_t at[PTC_WAYS]);
uint32_t ptc_regions_flat_slots(const struct ptc_layout *l, uint32_t item);
/* ptc_layout_local_shape of a declared one. */
bool ptc_declared_local_shape(const struct ptc_layout *l, uint32_t rank, uint32_t item, struct ptc_local_shape *ret);

/* Everything a layout trusts, except that each rule fits the tensors it wins (ptc_rule_fits). */
int ptc_spec_check(const struct ptc_spec *s, struct ptc_error *err);
/* The rule fits the item's shape and name. *ret_layer: its layer for PTC_PLACE_LAYER, else -1; *ret_expert likewise where
 * the rule has expert. rule may be NULL. */
int ptc_rule_fits(const struct ptc_spec *s, size_t item, const struct ptc_rule *rule, int64_t *ret_layer,
		  int64_t *ret_expert, struct ptc_error *err);
/* The number of the field that a rule derives from; 0: there is none of that name. */
size_t ptc_rule_master(const struct ptc_spec *s, const struct ptc_rule *r);
/* Does a split of the rule name the axis? NULL ok: no. */
bool ptc_rule_names_axis(const struct ptc_rule *r, enum ptc_axis axis);
/* Does its data-parallel group count by experts? NULL ok: no. */
bool ptc_rule_is_expert(const struct ptc_rule *r);
/* Both lay out a tensor alike, under any configuration. */
bool ptc_rule_same_place(const struct ptc_rule *a, const struct ptc_rule *b);
/* "[4096, 1024]" into buf; returns buf. */
const char *ptc_shape_text(const struct ptc_tensor *t, char *buf, size_t size);
/* Every name that the glob inner matches is matched by outer. false also where that cannot be seen from the two. */
bool ptc_glob_contains(const char *outer, const char *inner);
/* The rules of one tensor's items: ret[0] for the parameter, ret[f] for field f; NULL where none applies. */
void ptc_spec_tensor_rules(const struct ptc_spec *s, size_t tensor, const struct ptc_rule *ret[1 + PTC_MAX_FIELDS]);

/* This rank's place in its dp*cp group, in rank order. */
uint32_t ptc_config_zero_index(const struct ptc_config *c, const struct ptc_coords *k);

/* A byte box of an item and the lowest rank it comes from. */
struct ptc_holding {
	uint32_t item, rank;
	struct ptc_box box;
};
struct ptc_holdings {
	struct ptc_holding *v;
	size_t n, cap;
	int64_t bytes;
};
void ptc_holdings_done(struct ptc_holdings *h);
/* Makes the boxes of one item, h->v[mark..], sorted, distinct and disjoint, with the same union: overlaps that are not
 * equal are cut. */
int ptc_holdings_settle(struct ptc_holdings *h, size_t mark);
/* What the given ranks hold together: by item, then first byte; disjoint within an item. */
int ptc_layout_holdings(const struct ptc_layout *l, const uint32_t *ranks, size_t nranks, struct ptc_holdings *ret,
			struct ptc_error *err);
/* [*ret_lo, *ret_hi) of one item. */
void ptc_holdings_item(const struct ptc_holdings *h, uint32_t item, size_t *ret_lo, size_t *ret_hi);
const struct ptc_spec *ptc_layout_spec(const struct ptc_layout *l);
/* Ranks that hold the same share a cell. */
/* Finds out whether l needs its side, and makes it. The last thing done to a layout that is made. */
int ptc_layout_settle(struct ptc_layout *l, struct ptc_error *err);
uint32_t ptc_layout_ncells(const struct ptc_layout *l);
uint32_t ptc_layout_cell(const struct ptc_layout *l, uint32_t rank);

/* Assigns each row to a column, of which column c takes room[c] (NULL: 1 each), as cheaply as it can; there is room for all.
 * cost is rows * cols. *ret_bound: no assignment is cheaper; equal to the cost of this one unless it ran out of max_steps
 * (an entry of cost looked at each), when the rest goes to the cheapest column with room. */
int ptc_assign(size_t rows, size_t cols, const uint32_t *room, const int64_t *cost, int64_t max_steps,
	       uint32_t *ret_col, int64_t *ret_bound);
