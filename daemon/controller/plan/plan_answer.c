/* SPDX-License-Identifier: Apache-2.0 */
/* Makes what a plan says: the document of the generation to come, and the report for those who asked.
 *
 * Failure modes: memory. */
#include "base/alloc.h"
#include "base/cleanup.h"
#include "daemon/controller/plan/internal.h"
#include "reshard/copies/copies.h"

#include <stdio.h>
#include <string.h>

/* Names only nodes that ranks use, in order of first use. */
int ptc_plan_doc(const struct ptc_device_pool *p, const struct ptc_config *config, const struct ptc_allocation *a,
		 struct ptc_generation_doc *ret_doc, struct ptc_error *err)
{
	struct ptc_generation_doc g = { 0 };
	ptc_auto_free uint32_t *number = ptc_malloc(p->nnames * sizeof *number);
	ptc_auto_free char *text = ptc_malloc(PTC_CONFIG_TEXT_MAX);

	g.nodes = ptc_calloc(p->nnames, sizeof *g.nodes);
	g.rank_node = ptc_calloc(a->world, sizeof *g.rank_node);
	g.rank_device = ptc_calloc(a->world, sizeof *g.rank_device);
	if (!number || !text || !g.nodes || !g.rank_node || !g.rank_device)
		goto nomem;
	memset(number, 0xff, p->nnames * sizeof *number);
	if (ptc_config_format(config, text, PTC_CONFIG_TEXT_MAX) != 0 || !(g.config = ptc_strdup(text)))
		goto nomem;
	g.world = a->world;
	for (uint32_t r = 0; r < a->world; r++) {
		uint32_t n = a->ranks[r].node;

		if (number[n] == UINT32_MAX) {
			number[n] = (uint32_t)g.nnodes;
			g.nodes[g.nnodes] = ptc_strdup(p->names[n]);
			if (!g.nodes[g.nnodes++])
				goto nomem;
		}
		g.rank_node[r] = number[n];
		g.rank_device[r] = a->ranks[r].index;
	}
	*ret_doc = g;
	return 0;
nomem:
	ptc_generation_doc_done(&g);
	return ptc_nomem(err);
}

/* What moves, where it is known. */
static int fill_nodes(const struct ptc_device_pool *p, const struct ptc_plan_layouts *l, struct ptc_plan_report *r)
{
	const struct ptc_plan *plan = l->plan;

	r->nodes = ptc_calloc(p->nall + 1, sizeof *r->nodes);
	if (!r->nodes)
		return PTC_ENOMEM;
	for (; r->nnodes < p->nall; r->nnodes++) {
		const size_t i = r->nnodes;
		struct ptc_plan_node *n = &r->nodes[i];

		snprintf(n->name, sizeof n->name, "%s", p->names[i]);
		n->state = p->states[i] ? p->states[i] : "down";
		n->devices = p->counts[i];
		n->counted = plan && i < p->nnames;
		if (!n->counted)
			continue;
		n->in_bytes = plan->in_bytes[i];
		n->out_bytes = plan->out_bytes[i];
		n->held_bytes = l->need->in_bytes[i];
		n->ceiling_bytes = p->ceilings[i];
	}
	return 0;
}

static struct ptc_plan_totals totals(const struct ptc_plan_layouts *l)
{
	const struct ptc_plan *plan = l->plan;

	return (struct ptc_plan_totals){ .in_place = plan->in_place,
					 .within_node = plan->within_node,
					 .between_nodes = plan->between_nodes,
					 .reset = plan->reset,
					 .derived = plan->derived,
					 .bound_mapping = plan->bound_mapping,
					 .bound_any = l->bound,
					 .bound_exact = l->exact,
					 .gap = plan->between_nodes - l->bound };
}

/* What happens to the process of a rank that is to run there. */
static enum ptc_plan_mode rank_mode(const struct ptc_job_desc *desc, const struct ptc_view *v, const char *node,
				    uint32_t device)
{
	if (!desc || !desc->has_run)
		return PTC_PLAN_UNASKED;
	if (!v->from_incarnation || !ptc_generation_doc_gives(&v->from, node, device))
		return PTC_PLAN_START;
	return desc->mode == PTC_JOB_REBUILD ? PTC_PLAN_REBUILD : PTC_PLAN_RESTART;
}

/* Whether the bytes of the node that alone has most can be copied between a warning and its end. Zeros: not asked for,
 * or the layout is not known. */
static struct ptc_planning_leaves leaves(const struct ptc_device_pool *p, const struct ptc_job_desc *desc,
					 const struct ptc_plan_layouts *l)
{
	ptc_auto_free int64_t *bytes = ptc_calloc(p->nnames + 1, sizeof *bytes);
	size_t most = 0;

	if (!desc || !desc->warning_ms || !l->to || !p->nnames || !bytes ||
	    ptc_copies_alone(l->to, &l->to_alloc, (uint32_t)p->nnames, bytes, NULL) != 0)
		return (struct ptc_planning_leaves){ 0 };
	for (size_t i = 0; i < p->nnames; i++)
		most = bytes[i] > bytes[most] ? i : most;
	return ptc_planning_leaves(p->all->planning, p->names[most], bytes[most], desc->warning_ms);
}

int ptc_plan_report_fill(const struct ptc_device_pool *p, const struct ptc_view *v, const struct ptc_job_desc *desc,
			 const struct ptc_generation_doc *to, const struct ptc_plan_layouts *l,
			 struct ptc_plan_report *r)
{
	const char *narrow = ptc_plan_window(p, v, desc, l);

	snprintf(r->window, sizeof r->window, "%s", narrow ? narrow : "");
	snprintf(r->job, sizeof r->job, "%s", v->meta.name);
	r->has_from = v->from_generation != 0;
	r->groups = l->groups;
	r->counted = l->plan != NULL;
	if (l->plan)
		r->totals = totals(l);
	r->modes = ptc_calloc((size_t)to->world + 1, sizeof *r->modes);
	if (!r->modes || (v->from.world && ptc_generation_doc_copy(&v->from, &r->from)) ||
	    ptc_generation_doc_copy(to, &r->to) || fill_nodes(p, l, r))
		return PTC_ENOMEM;
	for (uint32_t i = 0; i < to->world; i++)
		r->modes[i] = rank_mode(desc, v, to->nodes[to->rank_node[i]], to->rank_device[i]);
	r->leaves = leaves(p, desc, l);
	return 0;
}
