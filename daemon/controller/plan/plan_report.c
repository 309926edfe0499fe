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
	to->build = from->build;
}

bool ptc_plan_builds_ahead(const struct ptc_plan_report *r)
{
	return r && r->build.level && strcmp(r->build.level, "memory") == 0;
}

#define NODE(key, member, kind, ...) PTC_ROW(struct ptc_plan_node, key, member, kind, __VA_ARGS__)
#define COUNTED(member, kind)        NODE(#member, member, kind, PTC_IF(struct ptc_plan_node, counted))
#define RANK(member, kind, ...)      PTC_ROW(struct rank, #member, member, kind, __VA_ARGS__)
#define GROUPS(key, member)          PTC_ROW(struct ptc_groups, key, member, U32)
#define PLANNER(key, member, kind)   PTC_ROW(struct ptc_plan_chosen, key, member, kind)
#define REPORT(member, ...)          PTC_ROW(struct ptc_plan_report, #member, member, __VA_ARGS__)

static const struct ptc_member node_rows[] = { NODE("node", name, TEXT),      NODE("state", state, STRING),
					       NODE("devices", devices, U32), COUNTED(in_bytes, I64),
					       COUNTED(out_bytes, I64),       COUNTED(held_bytes, I64),
					       COUNTED(ceiling_bytes, U64) };
static const struct ptc_members node_members = PTC_MEMBERS(node_rows, struct ptc_plan_node);

struct rank {
	uint32_t rank, device;
	const char *node;
	enum ptc_plan_mode mode;
};
static const char *const modes_words[] = {
	[PTC_PLAN_START] = "start", [PTC_PLAN_RESTART] = "restart", [PTC_PLAN_REBUILD] = "rebuild"
};
static const struct ptc_member rank_rows[] = { RANK(rank, U32), RANK(node, STRING), RANK(device, U32),
					       RANK(mode, WORD, PTC_IF(struct rank, mode), .words = modes_words) };
static const struct ptc_members rank_members = PTC_MEMBERS(rank_rows, struct rank);

static const struct ptc_member groups_rows[] = { GROUPS("count", n), GROUPS("split", split),
						 GROUPS("across_racks", across) };
static const struct ptc_members groups_members = PTC_MEMBERS(groups_rows, struct ptc_groups);

/* After its candidate. */
static const struct ptc_member planner_rows[] = { PLANNER("why", why, TEXT), PLANNER("calibrated", calibrated, BOOL),
						  PLANNER("profiled", profiled, BOOL),
						  PLANNER("horizon_s", choice.horizon_s, REAL) };
static const struct ptc_members planner_members = PTC_MEMBERS(planner_rows, struct ptc_plan_chosen);

/* After the configurations and their ranks. Totals are null while what the ranks will hold is not known. */
static const struct ptc_member report_rows[] = {
	REPORT(nodes, LIST, PTC_COUNT(struct ptc_plan_report, nnodes), .of = &node_members),
	REPORT(groups, MAP, .of = &groups_members),
	REPORT(totals, MAP, PTC_IF(struct ptc_plan_report, counted), .null = true, .of = &ptc_plan_totals_members),
	REPORT(blobs, MAP, PTC_IF_TEXT(struct ptc_plan_report, blobs.text), .of = &ptc_blobs_review_members),
};
static const struct ptc_members report_members = PTC_MEMBERS(report_rows, struct ptc_plan_report);

json_t *ptc_plan_ranks_json(const struct ptc_generation_doc *g, const enum ptc_plan_mode *modes)
{
	json_t *rows = json_array();

	for (uint32_t r = 0; r < g->world; r++) {
		const struct rank row = { r, g->rank_device[r], g->nodes[g->rank_node[r]],
					  modes ? modes[r] : PTC_PLAN_UNASKED };

		json_array_append_new(rows, ptc_members_to_json(&rank_members, &row));
	}
	return rows;
}

/* The planner's candidate, with who has chosen it, and why. */
static json_t *chosen_json(const struct ptc_plan_chosen *c)
{
	json_t *o = c->row.config ? ptc_members_to_json(&ptc_advice_row_members, &c->row) : NULL;

	o = o ? o : json_object();
	json_object_set_new(o, "by", json_string(c->choice.by));
	if (strcmp(c->choice.by, PTC_CHOICE_BY_PLANNER) == 0)
		(void)ptc_members_put(o, &planner_members, c);
	return o;
}

json_t *ptc_plan_report_json(const struct ptc_plan_report *r)
{
	json_t *root = json_pack("{s:i, s:s, s:s, s:s, s:o, s:o}", "version", 1, "job", r->job, "from",
				 r->from.config ? r->from.config : "", "to", r->to.config, "from_ranks",
				 r->has_from ? ptc_plan_ranks_json(&r->from, NULL) : json_array(), "ranks",
				 ptc_plan_ranks_json(&r->to, r->modes));

	if (!root || ptc_members_put(root, &report_members, r) != 0) {
		json_decref(root);
		return NULL;
	}
	if (r->chosen.choice.by)
		json_object_set_new(root, "choice", chosen_json(&r->chosen));
	if (r->build.level)
		json_object_set_new(root, "build",
				    json_pack("{s:s, s:s}", "level", r->build.level, "why", r->build.why));
	if (r->leaves.warning_s > 0)
		json_object_set_new(root, "leaves", ptc_planning_leaves_json(&r->leaves));
	if (r->window[0])
		json_object_set_new(root, "window", json_string(r->window));
	return root;
}
