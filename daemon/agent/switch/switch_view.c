/* SPDX-License-Identifier: Apache-2.0 */
/* This node's part in a switch, shared by Prepare and Pull. Happy path: needs and plan are computed from spec, layouts
 * and allocations; missing boxes get extents. Failure modes: memory (PTC_ENOSPC before anything changed), layouts that
 * do not describe the same tensors (PTC_ELAYOUT). */
#include "daemon/agent/switch/internal.h"
#include "daemon/store/store.h"
#include "daemon/store/store_table.h"
#include "reshard/layout/declared.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdio.h>
#include <string.h>

void ptc_switch_view_done(struct ptc_switch_view *v, struct ptc_agent *agent)
{
	ptc_geometry_put(v->from);
	ptc_geometry_put(v->to);
	ptc_free(v->own_boxes);
	ptc_free(v->usable);
	ptc_free(v->fresh);
	ptc_free(v->derived);
	*v = (struct ptc_switch_view){ 0 };
}

_Static_assert(sizeof(struct ptc_need) == sizeof(struct ptc_store_box) &&
		       offsetof(struct ptc_need, item) == offsetof(struct ptc_store_box, item) &&
		       offsetof(struct ptc_need, box) == offsetof(struct ptc_store_box, box),
	       "a need is not a box of the store");

/* The needs themselves, unless some are empty: of many tensors a copy has megabytes, and each call would make one. */
static int need_boxes_make(struct ptc_switch_view *v, struct ptc_error *err)
{
	size_t n = 0;

	while (n < v->needs->n && !ptc_box_empty(&v->needs->v[n].box))
		n++;
	v->need_boxes = (const void *)v->needs->v;
	v->nneed_boxes = n;
	if (n == v->needs->n)
		return 0;
	v->own_boxes = ptc_reallocarray(NULL, v->needs->n, sizeof *v->own_boxes);
	if (!v->own_boxes)
		return ptc_nomem(err);
	memcpy(v->own_boxes, v->need_boxes, n * sizeof *v->own_boxes);
	for (size_t i = n; i < v->needs->n; i++)
		if (!ptc_box_empty(&v->needs->v[i].box))
			v->own_boxes[n++] = (struct ptc_store_box){ v->needs->v[i].item, v->needs->v[i].box };
	v->need_boxes = v->own_boxes;
	v->nneed_boxes = n;
	return 0;
}

/* Items are numbers; both sides must mean the same by them. */
static int same_items(const struct ptc_geometry *from, const struct ptc_geometry *to, struct ptc_error *err)
{
	char what[64];

	if (from->spec == to->spec)
		return 0;
	if (from->spec->nfields || to->spec->nfields)
		return ptc_error_set(
			err, PTC_ELAYOUT,
			"generations %llu and %llu: one is laid out by rules with fields, the other by what "
			"its ranks declare; export the one and import it",
			(unsigned long long)from->generation, (unsigned long long)to->generation);
	snprintf(what, sizeof(what), "generation %llu", (unsigned long long)to->generation);
	return ptc_declared_same(from->spec, to->spec, what, err);
}

static int flag_item(bool **flags, uint32_t item, size_t nitems, struct ptc_error *err)
{
	if (!*flags)
		*flags = ptc_calloc(nitems, sizeof **flags);
	if (!*flags)
		return ptc_nomem(err);
	(*flags)[item] = true;
	return 0;
}

/* What the rules of the new generation reset begins anew, whatever the old one has of it; what they derive is asked of
 * nobody. Of copies nothing is either. */
static int states_make(struct ptc_switch_view *v, struct ptc_error *err)
{
	const struct ptc_geometry *to = &v->to->g;
	size_t nitems = ptc_spec_items(to->spec);
	int rc = 0;

	for (uint32_t item = 0; v->from && !rc && item < nitems; item++) {
		if (ptc_layout_resets(to->copied, item))
			rc = flag_item(&v->fresh, item, nitems, err);
		else if (ptc_layout_derives(to->copied, item))
			rc = flag_item(&v->derived, item, nitems, err);
	}
	return rc;
}

static int view_fill(struct ptc_switch_view *v, struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info,
		     struct ptc_error *err)
{
	int rc = ptc_geometry_get(agent, info, info->to, &v->to, err);

	if (!rc && info->from && info->from->number)
		rc = ptc_geometry_get(agent, info, info->from, &v->from, err);
	rc = rc || !v->from ? rc : same_items(&v->from->g, &v->to->g, err);
	if (rc == 0)
		rc = ptc_geometry_node(&v->to->g, agent->node, &v->self, err);
	if (rc == 0)
		rc = ptc_geometry_needs(&v->to->g, true, &v->needs, err);
	if (rc == 0)
		rc = need_boxes_make(v, err);
	if (rc == 0)
		rc = states_make(v, err);
	if (rc)
		return rc;
	v->usable = ptc_calloc(info->n_nodes, sizeof *v->usable);
	if (!v->usable)
		return ptc_nomem(err);
	memset(v->usable, true, info->n_nodes);
	for (size_t i = 0; i < info->n_lost; i++)
		v->usable[info->lost[i]] = false;
	return 0;
}

int ptc_switch_view_init(struct ptc_switch_view *v, struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info,
			 struct ptc_error *err)
{
	int rc;

	*v = (struct ptc_switch_view){ 0 };
	rc = view_fill(v, agent, info, err);
	if (rc)
		ptc_switch_view_done(v, agent);
	return rc;
}

int ptc_switch_plan(const struct ptc_switch_view *v, uint32_t node, struct ptc_plan **ret_plan, struct ptc_error *err)
{
	const struct ptc_geometry *from = v->from ? &v->from->g : NULL, *to = &v->to->g;

	return ptc_plan_into(from ? from->copied : NULL, from ? &from->copied_at : NULL, to->copied, &to->copied_at,
			     (uint32_t)to->nnodes, v->usable, node, ret_plan, err);
}

int ptc_switch_plan_hash(const struct ptc_switch_view *v, char ret_hash[33], struct ptc_error *err)
{
	const struct ptc_geometry *from = v->from ? &v->from->g : NULL, *to = &v->to->g;

	return ptc_plan_hash_of(from ? from->copied : NULL, from ? &from->copied_at : NULL, to->copied, &to->copied_at,
				(uint32_t)to->nnodes, v->usable, ret_hash, err);
}

/* ---- reserving ---- */

void ptc_fill_done(struct ptc_fill *f)
{
	ptc_store_boxes_done(&f->missing);
	ptc_free(f->extents);
	*f = (struct ptc_fill){ 0 };
}

int ptc_switch_source_open(struct ptc_agent *agent, const struct ptc_switch_view *v, struct ptc_table **ret,
			   struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_table_key key;
	int rc;

	*ret = NULL;
	if (!v->from)
		return 0;
	key = ptc_geometry_key(&v->from->g);
	rc = ptc_table_open(agent->env.store, &key, ret, &why);
	if (rc == PTC_ENOTFOUND || rc == PTC_ELOST)
		return 0;
	return rc ? ptc_error_set(err, rc, "%s", why.text) : 0;
}

static bool is_source(const struct ptc_switch_view *v)
{
	const struct ptc_allocation *at = v->from ? &v->from->g.copied_at : NULL;

	for (uint32_t r = 0; at && r < at->world; r++)
		if (at->ranks[r].node == v->self)
			return true;
	return false;
}

bool ptc_switch_gets_anew(const struct ptc_switch_view *v, bool anew)
{
	return anew || !v->usable[v->self] || is_source(v);
}

int ptc_switch_begin_anew(struct ptc_agent *agent, const struct ptc_switch_view *v, const char *uuid, bool anew,
			  struct ptc_error *err)
{
	if (v->usable[v->self] && (!anew || is_source(v)))
		return 0;
	return ptc_store_job_anew(agent->env.store, uuid, err);
}

void ptc_switch_leave_made_out(const struct ptc_switch_view *v, struct ptc_store_boxes *missing)
{
	for (size_t i = 0; i < missing->n; i++)
		if ((v->fresh && v->fresh[missing->v[i].item]) || (v->derived && v->derived[missing->v[i].item]))
			missing->bytes -= ptc_box_volume(&missing->v[i].box);
}

int ptc_fill_reserve(struct ptc_fill *f, struct ptc_agent *agent, const struct ptc_switch_view *v,
		     struct ptc_table *table, struct ptc_error *err)
{
	struct ptc_store_stats before, after;
	struct ptc_table *src;
	int64_t new_bytes = 0;
	struct ptc_heal_tries tries = { .now = true };
	int rc = ptc_switch_source_open(agent, v, &src, err);

	*f = (struct ptc_fill){ 0 };
	if (rc)
		return rc;
	ptc_store_stats(agent->env.store, &before);
	do {
		rc = ptc_table_derive(table, src, v->fresh, v->need_boxes, v->nneed_boxes, false, &f->missing,
				      &new_bytes, err);
		f->new_bytes = PTC_MAX(f->new_bytes, new_bytes); /* again: its chunks are there already */
	} while (v->from && ptc_agent_heals(agent, v->from->g.uuid, rc, &tries));
	ptc_table_unref(src);
	if (rc == PTC_ECORRUPT && v->from)
		ptc_geometry_name_error(&v->from->g, err);
	if (rc)
		return rc;
	ptc_switch_leave_made_out(v, &f->missing);
	ptc_store_stats(agent->env.store, &after);
	f->copied_bytes = (int64_t)(after.copied_bytes - before.copied_bytes);
	f->extents = ptc_reallocarray(NULL, f->missing.n ? f->missing.n : 1, sizeof *f->extents);
	if (!f->extents)
		rc = ptc_nomem(err);
	if (!rc && f->missing.n) /* boxes reserved before keep their extents */
		rc = ptc_table_reserve(table, f->missing.v, f->missing.n, f->extents, err);
	if (rc)
		ptc_fill_done(f);
	return rc;
}
