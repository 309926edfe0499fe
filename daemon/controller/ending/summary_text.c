/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the summary of a committed switch as JSON (docs/control.md), and ends it. Any thread.
 *
 * Failure modes: out of memory (NULL; the switch is committed all the same). */
#include "daemon/controller/ending/summary_text.h"

#include "base/alloc.h"
#include "formats/json.h"

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

static void add_first_step(struct ptc_switch_pause *p, double ms)
{
	p->has_first_step = true;
	p->first_step_ms = ms;
	p->total_ms += ms;
	p->lost_ms += ms;
}

static json_t *phases_json(const struct ptc_switch_summary *s)
{
	json_t *list = json_array();

	for (size_t i = 0; i < s->nphases; i++)
		json_array_append_new(list, json_pack("{s:s, s:f}", "phase", ptc_job_phase_name(s->phases[i].phase),
						      "ms", s->phases[i].ms));
	return list;
}

static json_t *links_json(const struct ptc_switch_summary *s)
{
	json_t *list = json_array();

	for (size_t i = 0; i < s->nlinks; i++)
		json_array_append_new(list, json_pack("{s:s, s:I, s:f, s:s}", "from", s->links[i].from, "bytes",
						      (json_int_t)s->links[i].bytes, "seconds", s->links[i].seconds,
						      "to", s->links[i].to));
	return list;
}

char *ptc_switch_summary_text(const struct ptc_switch_summary *s, double first_step_ms)
{
	struct ptc_switch_end end = s->end;
	char *text = NULL;
	json_t *root = json_pack("{s:i, s:s, s:o, s:I, s:o}", "version", 1, "job", s->job, "phases", phases_json(s),
				 "verified_bytes", (json_int_t)s->verified_bytes, "plan",
				 s->plan ? ptc_plan_report_json(s->plan) : json_null());

	if (s->blobs.text[0])
		json_object_set_new(root, "blobs", ptc_rank_states_json(&s->blobs));
	if (s->nlinks)
		json_object_set_new(root, "links", links_json(s));
	if (first_step_ms >= 0)
		add_first_step(&end.pause, first_step_ms);
	if (ptc_switch_end_put(root, &end) == 0)
		text = ptc_json_text(root);
	json_decref(root);
	return text;
}
