/* SPDX-License-Identifier: Apache-2.0 */
/* Prepare and Pull share this: a switch as this node sees it, and the boxes that are still missing. */
#pragma once

#include "daemon/agent/calls/operation.h"
#include "daemon/store/store_key.h"
#include "daemon/agent/geometry/geometry.h"
#include "daemon/agent/switch/switch.h"
#include "reshard/plan/plan.h"

/* ---- switch_view.c ---- */
/* One side of a switch as this node sees it. */
struct ptc_switch_view {
	struct ptc_geometry_ref *from, *to;     /* from NULL: there is no state before */
	uint32_t self;                          /* this node's index in nodes */
	const struct ptc_needs *needs;          /* of `to` */
	const struct ptc_store_box *need_boxes; /* needs in the store's form, without empty boxes; may be the needs */
	struct ptc_store_box *own_boxes;        /* NULL, or need_boxes */
	size_t nneed_boxes;
	bool *usable;  /* of each node: it may be a source */
	bool *fresh;   /* of each item: it begins as zeros, because its rule resets it; NULL: none does */
	bool *derived; /* of each item: this node makes missing boxes from its master; NULL: of none */
};
int ptc_switch_view_init(struct ptc_switch_view *v, struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info,
			 struct ptc_error *err);
void ptc_switch_view_done(struct ptc_switch_view *v, struct ptc_agent *agent);
/* The plan, with a list of only the moves into `node`. */
int ptc_switch_plan(const struct ptc_switch_view *v, uint32_t node, struct ptc_plan **ret_plan, struct ptc_error *err);
/* The hash of the plan with the moves into all nodes. */
int ptc_switch_plan_hash(const struct ptc_switch_view *v, char ret_hash[33], struct ptc_error *err);
/* Opens the old table; NULL if this node does not have it. */
int ptc_switch_source_open(struct ptc_agent *agent, const struct ptc_switch_view *v, struct ptc_table **ret,
			   struct ptc_error *err);
/* If all chunks of the job are gone, lets the job begin with new chunks here. It does so only if nobody needs this
 * node's tables, because the switch leaves this node out or no document names one of its tables (anew). */
int ptc_switch_begin_anew(struct ptc_agent *agent, const struct ptc_switch_view *v, const char *uuid, bool anew,
			  struct ptc_error *err);
/* Whether this node has new chunks by then, if its chunks cannot be used when the switch is checked: Prepare makes
 * them, or Capture has done so, or Seal has told that the switch has to leave this node out. Where no layout is known
 * yet, the controller decides so by itself: counts_on_chunks in daemon/controller/controller_send.c. */
bool ptc_switch_gets_anew(const struct ptc_switch_view *v, bool anew);
/* Takes fresh and derived boxes out of the count of missing bytes, because no node sends them. */
void ptc_switch_leave_made_out(const struct ptc_switch_view *v, struct ptc_store_boxes *missing);
/* Boxes that must still be filled, each with its extent. */
struct ptc_fill {
	struct ptc_store_boxes missing; /* `bytes` counts boxes that nodes send, not fresh and derived ones */
	uint32_t *extents;
	int64_t new_bytes;    /* of chunks taken by this call */
	int64_t copied_bytes; /* by this call; other jobs' copies at the same time count too */
};
/* PTC_ENOSPC: memory is short; nothing has changed. */
int ptc_fill_reserve(struct ptc_fill *f, struct ptc_agent *agent, const struct ptc_switch_view *v,
		     struct ptc_table *table, struct ptc_error *err);
void ptc_fill_done(struct ptc_fill *f);

/* ---- kept_fill.c ---- */
/* Keeps the list of missing boxes for the Pull of that switch, in place of an earlier list. Takes over the content of
 * *fill and empties it, unless the list is not worth keeping. */
void ptc_fill_keep(struct ptc_agent_job *job, uint64_t switch_id, const struct ptc_switch_view *v,
		   struct ptc_table *table, struct ptc_fill *fill);
/* Takes out the kept list; NULL: there is none. */
struct ptc_kept_fill *ptc_fill_take(struct ptc_agent_job *job);
/* Gives the kept list, once; false: it is of another switch or table, or has been given. k may be NULL. */
bool ptc_kept_fill_use(struct ptc_kept_fill *k, uint64_t switch_id, const struct ptc_switch_view *v,
		       const struct ptc_table *table, struct ptc_fill *ret);
struct ptc_kept_fill *ptc_kept_fill_free(struct ptc_kept_fill *k);

/* ---- from_masters.c ---- */
/* Fills all boxes of `fill`, which are of derived items, from their masters, which are filled already. */
int ptc_derived_make(struct ptc_table *table, const struct ptc_geometry *g, const struct ptc_fill *fill,
		     ptc_stop_fn stop, void *arg, struct ptc_error *err);
/* Checks that the masters in a sealed table make the parameters in it. PTC_EINVAL: they do not; the line names tensor
 * and element. */
int ptc_derived_check(struct ptc_table *table, const struct ptc_geometry *g, const struct ptc_needs *needs,
		      ptc_stop_fn stop, void *arg, struct ptc_error *err);
