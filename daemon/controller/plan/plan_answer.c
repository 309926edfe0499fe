/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan says: the document of the generation to come, and the JSON that docs/control.md describes.
 *
 * Failure modes: memory. */
#include "base/alloc.h"
#include "base/cleanup.h"
#include "daemon/controller/plan/internal.h"
#include "formats/json.h"
#include "reshard/copies/copies.h"

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

/* Of every node of the cluster, and those that have something of the job; what moves, where it is known. */
static json_t *node_rows(const struct ptc_device_pool *p, const struct ptc_plan_layouts *l)
{
	const struct ptc_plan *plan = l->plan;
	json_t *rows = json_array();

	for (size_t i = 0; i < p->nall; i++) {
		json_t *row = json_pack("{s:s, s:s, s:I}", "node", p->names[i], "state",
					p->states[i] ? p->states[i] : "down", "devices", (json_int_t)p->counts[i]);

		if (plan && i < p->nnames) {
			json_object_set_new(row, "in_bytes", json_integer(plan->in_bytes[i]));
			json_object_set_new(row, "out_bytes", json_integer(plan->out_bytes[i]));
			json_object_set_new(row, "held_bytes", json_integer(l->need->in_bytes[i]));
			json_object_set_new(row, "ceiling_bytes", json_integer((json_int_t)p->ceilings[i]));
		}
		json_array_append_new(rows, row);
	}
	return rows;
}

/* Where the ranks are now. */
static json_t *from_ranks(const struct ptc_view *v)
{
	json_t *rows = json_array();

	for (uint32_t r = 0; v->from_generation && r < v->from.world; r++)
		json_array_append_new(rows, json_pack("{s:I, s:s, s:I}", "rank", (json_int_t)r, "node",
						      v->from.nodes[v->from.rank_node[r]], "device",
						      (json_int_t)v->from.rank_device[r]));
	return rows;
}

/* Nothing, while what the ranks will hold is not known. */
static json_t *totals(const struct ptc_plan_layouts *l)
{
	const struct ptc_plan *plan = l->plan;

	if (!plan)
		return json_null();
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:I, s:I}", "in_place", (json_int_t)plan->in_place,
			 "within_node", (json_int_t)plan->within_node, "between_nodes", (json_int_t)plan->between_nodes,
			 "bound_this_mapping", (json_int_t)plan->bound_mapping, "bound_any_mapping",
			 (json_int_t)l->bound, "bound_exact", (int)l->exact, "gap",
			 (json_int_t)(plan->between_nodes - l->bound), "reset", (json_int_t)plan->reset, "derived",
			 (json_int_t)plan->derived);
}

static json_t *groups(const struct ptc_plan_layouts *l)
{
	return json_pack("{s:I, s:I, s:I}", "count", (json_int_t)l->groups.n, "split", (json_int_t)l->groups.split,
			 "across_racks", (json_int_t)l->groups.across);
}

/* What happens to the process of a rank that is to run there; NULL: the job has none. desc NULL: not asked for. */
static const char *rank_mode(const struct ptc_job_desc *desc, const struct ptc_view *v, const char *node,
			     uint32_t device)
{
	if (!desc || !desc->has_run)
		return NULL;
	for (uint32_t r = 0; v->from_incarnation && r < v->from.world; r++)
		if (v->from.rank_device[r] == device && strcmp(v->from.nodes[v->from.rank_node[r]], node) == 0)
			return desc->mode == PTC_JOB_REBUILD ? "rebuild" : "restart";
	return "start";
}

/* Whether the bytes of the node that alone has most can be copied between a warning and its end. NULL: not asked for,
 * or the layout is not known. */
static json_t *leaves(const struct ptc_device_pool *p, const struct ptc_job_desc *desc,
		      const struct ptc_plan_layouts *l)
{
	ptc_auto_free int64_t *bytes = ptc_calloc(p->nnames + 1, sizeof *bytes);
	size_t most = 0;

	if (!desc || !desc->warning_ms || !l->to || !p->nnames || !bytes ||
	    ptc_copies_alone(l->to, &l->to_alloc, (uint32_t)p->nnames, bytes, NULL) != 0)
		return NULL;
	for (size_t i = 0; i < p->nnames; i++)
		most = bytes[i] > bytes[most] ? i : most;
	return ptc_planning_leaves(p->all->planning, p->names[most], bytes[most], desc->warning_ms);
}

/* blobs: what becomes of ranks' blobs; NULL: not asked for. choice: who chose the configuration; NULL: it was given. */
char *ptc_plan_json(const struct ptc_device_pool *p, const struct ptc_view *v, const struct ptc_job_desc *desc,
		    const struct ptc_generation_doc *to, const struct ptc_plan_layouts *l,
		    const struct ptc_blobs_review *blobs, json_t *choice)
{
	json_t *ranks = json_array(), *root, *leaving;
	char *text;

	for (uint32_t r = 0; r < to->world; r++) {
		const char *node = to->nodes[to->rank_node[r]], *mode = rank_mode(desc, v, node, to->rank_device[r]);
		json_t *row = json_pack("{s:I, s:s, s:I}", "rank", (json_int_t)r, "node", node, "device",
					(json_int_t)to->rank_device[r]);

		if (mode)
			json_object_set_new(row, "mode", json_string(mode));
		json_array_append_new(ranks, row);
	}
	root = json_pack("{s:i, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "version", 1, "job", v->meta.name, "from",
			 v->from.config ? v->from.config : "", "to", to->config, "from_ranks", from_ranks(v), "ranks",
			 ranks, "nodes", node_rows(p, l), "groups", groups(l), "totals", totals(l));
	if (root && blobs && blobs->text[0])
		json_object_set_new(root, "blobs", ptc_rank_states_json(blobs));
	if (root && choice)
		json_object_set(root, "choice", choice);
	leaving = root ? leaves(p, desc, l) : NULL;
	if (leaving)
		json_object_set_new(root, "leaves", leaving);
	text = root ? ptc_json_text(root) : NULL;
	json_decref(root);
	return text;
}
