/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the summary of a committed switch as JSON (docs/control.md), and ends it. Any thread.
 *
 * Failure modes: out of memory (NULL; the switch is committed all the same). */
#include "daemon/controller/ending/summary_text.h"

#include "base/alloc.h"
#include "formats/members.h"

#include <string.h>

struct ptc_switch_summary *ptc_switch_summary_ref(struct ptc_switch_summary *s)
{
	if (s)
		atomic_fetch_add(&s->refs, 1);
	return s;
}

void ptc_switch_summary_unref(struct ptc_switch_summary *s)
{
	if (!s || atomic_fetch_sub(&s->refs, 1) != 1)
		return;
	ptc_switch_end_done(&s->end);
	ptc_plan_report_free(s->plan);
	ptc_free(s->links);
	ptc_free(s);
}

bool ptc_switch_summary_waits(const struct ptc_switch_summary *s, uint64_t *ret_step)
{
	*ret_step = s->end.step;
	return s->end.ran && strcmp(s->end.kind, "resize") == 0;
}

int ptc_resized_put(const struct ptc_controller *ctl, json_t *job)
{
	json_t *row = ctl->resized ? json_object() : NULL;

	if (!ctl->resized)
		return 0;
	if (row && ptc_switch_end_put(row, &ctl->resized->end) == 0)
		return json_object_set_new(job, "last_resize", row);
	json_decref(row);
	return -1;
}

static void add_first_step(struct ptc_switch_pause *p, double ms)
{
	p->has_first_step = true;
	p->first_step_ms = ms;
	p->total_ms += ms;
	p->lost_ms += ms;
}

#define LINK(member, kind)   PTC_ROW(struct ptc_link_use, #member, member, kind)
#define SUMMARY(member, ...) PTC_ROW(struct ptc_switch_summary, #member, member, __VA_ARGS__)

static const struct ptc_member link_rows[] = { LINK(from, TEXT), LINK(bytes, U64), LINK(seconds, REAL),
					       LINK(to, TEXT) };
static const struct ptc_members link_members = PTC_MEMBERS(link_rows, struct ptc_link_use);
/* After the phases and the plan. */
static const struct ptc_member summary_rows[] = {
	SUMMARY(blobs, MAP, PTC_IF_TEXT(struct ptc_switch_summary, blobs.text), .of = &ptc_blobs_review_members),
	SUMMARY(links, LIST, PTC_IF(struct ptc_switch_summary, nlinks), PTC_COUNT(struct ptc_switch_summary, nlinks),
		.of = &link_members),
};
static const struct ptc_members summary_members = PTC_MEMBERS(summary_rows, struct ptc_switch_summary);

static json_t *phases_json(const struct ptc_switch_summary *s)
{
	json_t *list = json_array();

	for (size_t i = 0; i < s->nphases; i++)
		json_array_append_new(list, json_pack("{s:s, s:f}", "phase", ptc_job_phase_name(s->phases[i].phase),
						      "ms", s->phases[i].ms));
	return list;
}

char *ptc_switch_summary_text(const struct ptc_switch_summary *s, double first_step_ms)
{
	struct ptc_switch_end end = s->end;
	char *text = NULL;
	json_t *root = json_pack("{s:i, s:s, s:o, s:I, s:o}", "version", 1, "job", s->job, "phases", phases_json(s),
				 "verified_bytes", (json_int_t)s->verified_bytes, "plan",
				 s->plan ? ptc_plan_report_json(s->plan) : json_null());

	if (first_step_ms >= 0)
		add_first_step(&end.pause, first_step_ms);
	if (ptc_members_put(root, &summary_members, s) == 0 && ptc_switch_end_put(root, &end) == 0)
		text = ptc_json_text(root);
	json_decref(root);
	return text;
}
