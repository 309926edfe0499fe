/* SPDX-License-Identifier: Apache-2.0 */
/* What this node has to do with a switch, shared by Prepare and Pull. Happy path: needs and plan
 * are computed from spec, layouts and allocations; what is missing gets extents. Failure modes:
 * memory (PTC_ENOSPC before anything changed), layouts that do not describe the same tensors
 * (PTC_ELAYOUT). */
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
	ptc_geometry_put(agent, v->from);
	ptc_geometry_put(agent, v->to);
	ptc_needs_done(&v->needs);
	ptc_free(v->need_boxes);
	ptc_free(v->usable);
	ptc_free(v->fresh);
	ptc_free(v->derived);
	*v = (struct ptc_switch_view){ 0 };
}

static int need_boxes_make(struct ptc_switch_view *v, struct ptc_error *err)
{
	v->need_boxes = ptc_reallocarray(NULL, v->needs.n ? v->needs.n : 1, sizeof(*v->need_boxes));
	if (!v->need_boxes)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu boxes", v->needs.n);
	for (size_t i = 0; i < v->needs.n; i++)
		if (!ptc_box_empty(&v->needs.v[i].box))
			v->need_boxes[v->nneed_boxes++] =
				(struct ptc_store_box){ v->needs.v[i].item, v->needs.v[i].box };
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
		*flags = ptc_calloc(nitems, sizeof(**flags));
	if (!*flags)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu tensors", nitems);
	(*flags)[item] = true;
	return 0;
}

/* What the rules of the new generation reset begins anew, whatever the old one has of it; what they derive is asked of nobody. */
static int states_make(struct ptc_switch_view *v, struct ptc_error *err)
{
	const struct ptc_geometry *to = &v->to->g;
	size_t nitems = ptc_spec_items(to->spec);
	int r = 0;

	for (uint32_t item = 0; v->from && !r && item < nitems; item++) {
		if (ptc_layout_resets(to->layout, item))
			r = flag_item(&v->fresh, item, nitems, err);
		else if (ptc_layout_derives(to->layout, item))
			r = flag_item(&v->derived, item, nitems, err);
	}
	return r;
}

static int view_fill(struct ptc_switch_view *v, struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info,
		     struct ptc_error *err)
{
	int r = ptc_geometry_get(agent, info, info->to, &v->to, err);

	if (!r && info->from && info->from->number)
		r = ptc_geometry_get(agent, info, info->from, &v->from, err);
	r = r || !v->from ? r : same_items(&v->from->g, &v->to->g, err);
	r = r ? r : ptc_geometry_node(&v->to->g, agent->node, &v->self, err);
	r = r ? r : ptc_layout_node_needs(v->to->g.layout, &v->to->g.allocation, v->self, &v->needs, err);
	r = r ? r : need_boxes_make(v, err);
	r = r ? r : states_make(v, err);
	if (r)
		return r;
	v->usable = ptc_calloc(info->n_nodes, sizeof(*v->usable));
	if (!v->usable)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu nodes", info->n_nodes);
	memset(v->usable, true, info->n_nodes);
	for (size_t i = 0; i < info->n_lost; i++)
		v->usable[info->lost[i]] = false;
	return 0;
}

int ptc_switch_view_init(struct ptc_switch_view *v, struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info,
			 struct ptc_error *err)
{
	int r;

	*v = (struct ptc_switch_view){ 0 };
	r = view_fill(v, agent, info, err);
	if (r)
		ptc_switch_view_done(v, agent);
	return r;
}

int ptc_switch_plan(const struct ptc_switch_view *v, struct ptc_plan **ret_plan, struct ptc_error *err)
{
	const struct ptc_geometry *from = v->from ? &v->from->g : NULL, *to = &v->to->g;

	return ptc_plan_new(to->spec, from ? from->layout : NULL, from ? &from->allocation : NULL, to->layout,
			    &to->allocation, (uint32_t)to->nnodes, v->usable, ret_plan, err);
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
	int r;

	*ret = NULL;
	if (!v->from)
		return 0;
	key = ptc_geometry_key(&v->from->g);
	r = ptc_table_open(agent->env.store, &key, ret, &why);
	if (r == PTC_ENOTFOUND || r == PTC_ELOST)
		return 0;
	return r ? ptc_error_set(err, r, "%s", why.text) : 0;
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
	int r = ptc_switch_source_open(agent, v, &src, err);

	*f = (struct ptc_fill){ 0 };
	if (r)
		return r;
	ptc_store_stats(agent->env.store, &before);
	r = ptc_table_derive(table, src, v->fresh, v->need_boxes, v->nneed_boxes, false, &f->missing, &f->new_bytes,
			     err);
	ptc_table_unref(src);
	if (r == PTC_ECORRUPT && v->from)
		ptc_geometry_name_error(&v->from->g, err);
	if (r)
		return r;
	ptc_switch_leave_made_out(v, &f->missing);
	ptc_store_stats(agent->env.store, &after);
	f->copied_bytes = (int64_t)(after.copied_bytes - before.copied_bytes);
	f->extents = ptc_reallocarray(NULL, f->missing.n ? f->missing.n : 1, sizeof(*f->extents));
	if (!f->extents)
		r = ptc_error_set(err, PTC_ENOMEM, "no memory for %zu extents", f->missing.n);
	if (!r && f->missing.n) /* boxes reserved before keep their extents */
		r = ptc_table_reserve(table, f->missing.v, f->missing.n, f->extents, err);
	if (r)
		ptc_fill_done(f);
	return r;
}
