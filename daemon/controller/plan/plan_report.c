/* SPDX-License-Identifier: Apache-2.0 */
/* Writes what a plan says as JSON (docs/control.md).
 *
 * Failure modes: memory. */
#include "base/alloc.h"
#include "daemon/controller/switch_plan.h"
#include "formats/json.h"

#include <string.h>

struct ptc_plan_report *ptc_plan_report_free(struct ptc_plan_report *r)
{
	if (!r)
		return NULL;
	ptc_generation_doc_done(&r->from);
	ptc_generation_doc_done(&r->to);
	ptc_free(r->modes);
	ptc_free(r->nodes);
	ptc_advice_row_done(&r->chosen.row);
	ptc_free(r);
	return NULL;
}

void ptc_plan_report_inherit(struct ptc_plan_report *to, struct ptc_plan_report *from)
{
	if (!from)
		return;
	ptc_advice_row_done(&to->chosen.row);
	to->chosen = from->chosen;
	memset(&from->chosen, 0, sizeof from->chosen);
}

static json_t *node_rows(const struct ptc_plan_report *r)
{
	json_t *rows = json_array();

	for (size_t i = 0; i < r->nnodes; i++) {
		const struct ptc_plan_node *n = &r->nodes[i];
		json_t *row = json_pack("{s:s, s:s, s:I}", "node", n->name, "state", n->state, "devices",
					(json_int_t)n->devices);

		if (n->counted) {
			json_object_set_new(row, "in_bytes", json_integer(n->in_bytes));
			json_object_set_new(row, "out_bytes", json_integer(n->out_bytes));
			json_object_set_new(row, "held_bytes", json_integer(n->held_bytes));
			json_object_set_new(row, "ceiling_bytes", json_integer((json_int_t)n->ceiling_bytes));
		}
		json_array_append_new(rows, row);
	}
	return rows;
}

/* Where the ranks of a generation are. modes: what happens to the process of each; NULL: nothing is said of it. */
static json_t *rank_rows(const struct ptc_generation_doc *g, const enum ptc_plan_mode *modes)
{
	static const char *const names[] = {
		[PTC_PLAN_START] = "start", [PTC_PLAN_RESTART] = "restart", [PTC_PLAN_REBUILD] = "rebuild"
	};
	json_t *rows = json_array();

	for (uint32_t r = 0; r < g->world; r++) {
		json_t *row = json_pack("{s:I, s:s, s:I}", "rank", (json_int_t)r, "node", g->nodes[g->rank_node[r]],
					"device", (json_int_t)g->rank_device[r]);

		if (modes && modes[r] != PTC_PLAN_UNASKED)
			json_object_set_new(row, "mode", json_string(names[modes[r]]));
		json_array_append_new(rows, row);
	}
	return rows;
}

/* null, while what the ranks will hold is not known. */
static json_t *totals_json(const struct ptc_plan_report *r)
{
	return r->counted ? ptc_members_to_json(&ptc_plan_totals_members, &r->totals) : json_null();
}

static json_t *groups_json(const struct ptc_groups *g)
{
	return json_pack("{s:I, s:I, s:I}", "count", (json_int_t)g->n, "split", (json_int_t)g->split, "across_racks",
			 (json_int_t)g->across);
}

/* The planner's candidate, with who has chosen it, and why. */
static json_t *chosen_json(const struct ptc_plan_chosen *c)
{
	json_t *o = c->row.config ? ptc_advice_row_json(&c->row) : json_object();

	o = o ? o : json_object();
	json_object_set_new(o, "by", json_string(c->choice.by));
	if (strcmp(c->choice.by, PTC_CHOICE_BY_PLANNER) != 0)
		return o;
	json_object_set_new(o, "why", json_string(c->why));
	json_object_set_new(o, "calibrated", json_boolean(c->calibrated));
	json_object_set_new(o, "profiled", json_boolean(c->profiled));
	json_object_set_new(o, "horizon_s", json_real(c->choice.horizon_s));
	return o;
}

json_t *ptc_plan_report_json(const struct ptc_plan_report *r)
{
	json_t *root =
		json_pack("{s:i, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "version", 1, "job", r->job, "from",
			  r->from.config ? r->from.config : "", "to", r->to.config, "from_ranks",
			  r->has_from ? rank_rows(&r->from, NULL) : json_array(), "ranks", rank_rows(&r->to, r->modes),
			  "nodes", node_rows(r), "groups", groups_json(&r->groups), "totals", totals_json(r));

	if (root && r->blobs.text[0])
		json_object_set_new(root, "blobs", ptc_rank_states_json(&r->blobs));
	if (root && r->chosen.choice.by)
		json_object_set_new(root, "choice", chosen_json(&r->chosen));
	if (root && r->leaves.warning_s > 0)
		json_object_set_new(root, "leaves", ptc_planning_leaves_json(&r->leaves));
	if (root && r->window[0])
		json_object_set_new(root, "window", json_string(r->window));
	return root;
}
