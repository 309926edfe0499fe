/* SPDX-License-Identifier: Apache-2.0 */
/* What Prepare and Pull share: a switch as this node sees it, what is still missing, and whom a
 * pull asks. */
#pragma once

#include "daemon/agent/calls/operation.h"
#include "daemon/store/store_key.h"
#include "daemon/agent/geometry/geometry.h"
#include "daemon/agent/switch/switch.h"
#include "reshard/plan/plan.h"

/* ---- switch_view.c ---- */
/* One side of a switch as this node sees it. */
struct ptc_switch_view {
	struct ptc_geometry_ref *from, *to; /* from NULL: nothing before */
	uint32_t self;                      /* our index in nodes */
	struct ptc_needs needs;
	struct ptc_store_box *need_boxes; /* the same as the store wants them; empty boxes left out */
	size_t nneed_boxes;
	bool *usable;  /* per node: may be a source */
	bool *fresh;   /* per item: begins as zeros here, for its rule resets it; NULL: none does */
	bool *derived; /* per item: what is missing is made from its master here; NULL: none is */
};
int ptc_switch_view_init(struct ptc_switch_view *v, struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info,
			 struct ptc_error *err);
void ptc_switch_view_done(struct ptc_switch_view *v, struct ptc_agent *agent);
int ptc_switch_plan(const struct ptc_switch_view *v, struct ptc_plan **ret_plan, struct ptc_error *err);
/* The old table, or NULL when it is not here. */
int ptc_switch_source_open(struct ptc_agent *agent, const struct ptc_switch_view *v, struct ptc_table **ret,
			   struct ptc_error *err);
/* Fresh and derived ones come from nowhere: their bytes are not counted. */
void ptc_switch_leave_made_out(const struct ptc_switch_view *v, struct ptc_store_boxes *missing);
/* What must still be filled, each with its extent. PTC_ENOSPC before anything changed. */
struct ptc_fill {
	struct ptc_store_boxes missing; /* bytes: of those that nodes bring, not of fresh and derived ones */
	uint32_t *extents;
	int64_t new_bytes;    /* of chunks taken by this call */
	int64_t copied_bytes; /* by this call; other jobs' copies at the same time count too */
};
int ptc_fill_reserve(struct ptc_fill *f, struct ptc_agent *agent, const struct ptc_switch_view *v,
		     struct ptc_table *table, struct ptc_error *err);
void ptc_fill_done(struct ptc_fill *f);

/* ---- from_masters.c ---- */
/* Fills all of fill, boxes of derived items, from masters, which are filled. */
int ptc_derived_make(struct ptc_table *table, const struct ptc_geometry *g, const struct ptc_fill *fill,
		     ptc_stop_fn stop, void *arg, struct ptc_error *err);
/* Of a sealed table: what this node needs of masters makes what it has of parameters; PTC_EINVAL naming tensor and element. */
int ptc_derived_check(struct ptc_table *table, const struct ptc_geometry *g, const struct ptc_needs *needs,
		      ptc_stop_fn stop, void *arg, struct ptc_error *err);

/* ---- whom a pull asks (pull.c) ---- */
struct ptc_pull_source {
	size_t next, end; /* parts it is to send: those left */
	unsigned lanes;   /* bits of lanes in use */
	bool failed;
};
/* Of n sources, one per node, the one that node `self` asks next: with fewest streams, of those with most left, of those the
 * next after itself, so that nodes that lack the same begin with different ones. NULL: nothing is left, or no lane is free. */
struct ptc_pull_source *ptc_pull_choose(struct ptc_pull_source *sources, size_t n, uint32_t self);
