/* SPDX-License-Identifier: Apache-2.0 */
/* The result of a committed switch (docs/control.md): the summary for the waiting caller, and a brief form for its
 * event. Loop thread.
 *
 * Happy path: both are made once, when the core says that the switch is done.
 *
 * Failure modes: out of memory (NULL; the switch is committed all the same). */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "formats/json.h"

#include <string.h>

#define BRIEF_NODES_MAX 64 /* of larger switches the brief names the first; an event should stay below 16 KiB */

/* The switch under way, in a word. */
const char *ptc_switch_name(const struct ptc_controller *ctl)
{
	const struct ptc_intent_doc *in = &ctl->intent;

	switch (in->kind) {
	case PTC_SWITCH_IMPORT:
		return in->source ? "rollback" : "import";
	case PTC_SWITCH_SNAPSHOT:
		return in->run_to ? "snapshot" : in->end == PTC_RUN_DONE ? "finish" : "stop";
	case PTC_SWITCH_HALT:
		return in->end == PTC_RUN_DONE ? "finish" : "halt";
	default:
		return in->run_to && !in->run_from ? "run" : "resize";
	}
}

static json_t *phases_json(struct ptc_controller *ctl)
{
	json_t *list = json_array();
	int64_t now = ptc_sys_now_ns();

	for (size_t i = 0; i < ctl->nphases; i++) {
		int64_t until = i + 1 < ctl->nphases ? ctl->phases[i + 1].at_ns : now;

		if (ctl->phases[i].phase != PTC_JOB_IDLE)
			json_array_append_new(list,
					      json_pack("{s:s, s:f}", "phase", ptc_job_phase_name(ctl->phases[i].phase),
							"ms", (double)(until - ctl->phases[i].at_ns) / 1e6));
	}
	return list;
}

/* Of the switch that has just been committed; a RELOAD may have made `to` the view's `from`. */
const char *ptc_switch_to_config(const struct ptc_controller *ctl)
{
	const char *config = ctl->view.to.config ? ctl->view.to.config : ctl->view.from.config;

	return config ? config : "";
}

static double phase_ms(const struct ptc_controller *ctl, enum ptc_job_phase first, enum ptc_job_phase last)
{
	int64_t now = ptc_sys_now_ns(), sum = 0;

	for (size_t i = 0; i < ctl->nphases; i++)
		if (ctl->phases[i].phase >= first && ctl->phases[i].phase <= last)
			sum += (i + 1 < ctl->nphases ? ctl->phases[i + 1].at_ns : now) - ctl->phases[i].at_ns;
	return (double)sum / 1e6;
}

static double slowed_ms(const struct ptc_controller *ctl, double stop_ms)
{
	int64_t stood = 0;
	double s;

	for (size_t i = 0; i + 1 < ctl->nphases; i++)
		if (ctl->phases[i].phase == PTC_JOB_ARMING)
			stood = ctl->phases[i + 1].at_ns;
	if (!stood || !ptc_ahead_slowed(ctl, stood, ctl->record.step, &s))
		return -1;
	return PTC_MAX(0.0, s * 1e3 - stop_ms);
}

/* How long ranks stood still, and for what. Arming counts: ranks wait for the last of them to come to the stop. */
struct ptc_switch_pause ptc_switch_pause(const struct ptc_controller *ctl)
{
	struct ptc_switch_pause p = { .stop_ms = phase_ms(ctl, PTC_JOB_ARMING, PTC_JOB_ARMING),
				      .copy_ms = phase_ms(ctl, PTC_JOB_SEALING, PTC_JOB_AGREEING),
				      .commit_ms = phase_ms(ctl, PTC_JOB_COMMIT1, PTC_JOB_COMMIT1) +
						   phase_ms(ctl, PTC_JOB_COMMIT2, PTC_JOB_COMMIT2),
				      .end_ms = phase_ms(ctl, PTC_JOB_ENDING, PTC_JOB_ENDING),
				      .build_ms = phase_ms(ctl, PTC_JOB_BUILDING, PTC_JOB_LAYOUT),
				      .move_ms = phase_ms(ctl, PTC_JOB_PREPARING, PTC_JOB_DIGESTING),
				      .restore_ms = phase_ms(ctl, PTC_JOB_FINISHING, PTC_JOB_FINISHING) };
	double built;

	p.total_ms = p.stop_ms + p.copy_ms + p.commit_ms + p.end_ms + p.build_ms + p.move_ms + p.restore_ms;
	if (ptc_ahead_took(ctl, &built))
		p.slowed_ms = slowed_ms(ctl, p.stop_ms);
	return p;
}

static json_t *pause_json(const struct ptc_controller *ctl)
{
	const struct ptc_switch_pause p = ptc_switch_pause(ctl);
	double built;
	json_t *json = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "total_ms", p.total_ms, "stop_ms",
				 p.stop_ms, "copy_ms", p.copy_ms, "commit_ms", p.commit_ms, "end_ms", p.end_ms,
				 "build_ms", p.build_ms, "move_ms", p.move_ms, "restore_ms", p.restore_ms);

	if (json && p.slowed_ms >= 0) {
		if (ptc_ahead_took(ctl, &built))
			json_object_set_new(json, "slowed_ms", json_real(p.slowed_ms));
		json_object_set_new(json, "lost_ms", json_real(p.total_ms + p.slowed_ms));
	}
	return json;
}

/* What goes on as before (docs/control.md): training under another configuration adds in another order, and with a
 * stream of random numbers that is not where it was nothing more than the distribution is the same. */
static const char *preserved(const struct ptc_controller *ctl)
{
	if (ctl->intent.source)
		return ctl->rank_states.review.text[0] ? "statistical" : "bytes";
	if (ctl->intent.kind != PTC_SWITCH_RESIZE || !ctl->intent.run_to || !ctl->intent.to_snapshot)
		return "bytes";
	if (ctl->rank_states.review.text[0])
		return "statistical";
	return ctl->from_config && strcmp(ctl->from_config, ptc_switch_to_config(ctl)) == 0 ? "bytes" : "native";
}

static bool sends_elsewhere(const struct ptc_controller *ctl, const char *from, size_t but)
{
	for (size_t i = 0; i < ctl->npulls; i++)
		for (size_t k = 0; i != but && k < ctl->pulls[i].nlinks; k++)
			if (strcmp(ctl->pulls[i].links[k].from, from) == 0)
				return true;
	return false;
}

struct ptc_link_use *ptc_switch_links(const struct ptc_controller *ctl, size_t *ret_n)
{
	struct ptc_link_use *v = NULL;
	size_t n = 0;

	for (size_t i = 0; i < ctl->npulls; i++)
		for (size_t k = 0; k < ctl->pulls[i].nlinks; k++) {
			const struct ptc_link_use *l = &ctl->pulls[i].links[k];

			if (sends_elsewhere(ctl, l->from, i) || !PTC_MORE(v, n))
				continue;
			v[n] = *l;
			snprintf(v[n].to, sizeof v[n].to, "%s",
				 ptc_cluster_node(ctl->all->cluster, ctl->pulls[i].node)->doc.name);
			n++;
		}
	*ret_n = n;
	return v;
}

static void links_json(const struct ptc_controller *ctl, json_t *root)
{
	size_t n;
	struct ptc_link_use *v = ptc_switch_links(ctl, &n);
	json_t *out = n ? json_array() : NULL;

	for (size_t i = 0; i < n; i++)
		json_array_append_new(out, json_pack("{s:s, s:I, s:f, s:s}", "from", v[i].from, "bytes",
						     (json_int_t)v[i].bytes, "seconds", v[i].seconds, "to", v[i].to));
	if (out)
		json_object_set_new(root, "links", out);
	ptc_free(v);
}

/* Of a job with device memory: where what was restored to devices came from. */
static void device_json(const struct ptc_controller *ctl, json_t *root)
{
	if (!ctl->device.kept_bytes && !ctl->device.peer_bytes && !ctl->device.host_bytes)
		return;
	json_object_set_new(root, "device_kept_bytes", json_integer((json_int_t)ctl->device.kept_bytes));
	json_object_set_new(root, "device_peer_bytes", json_integer((json_int_t)ctl->device.peer_bytes));
	json_object_set_new(root, "device_host_bytes", json_integer((json_int_t)ctl->device.host_bytes));
	if (ctl->device.unfinished)
		json_object_set_new(root, "device_unfinished", json_true());
}

/* What both forms have. */
static json_t *switch_json(struct ptc_controller *ctl)
{
	uint64_t wire = 0, copied = 0;
	json_t *root;
	double ahead;

	for (size_t i = 0; i < ctl->npulls; i++) {
		wire += ctl->pulls[i].wire_bytes;
		copied += ctl->pulls[i].copied_bytes;
	}
	root = json_pack("{s:I, s:s, s:I, s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:s, s:f}", "id",
			 (json_int_t)ctl->intent.id, "kind", ptc_switch_name(ctl), "generation",
			 (json_int_t)ctl->intent.to_generation, "snapshot", (json_int_t)ctl->intent.to_snapshot, "step",
			 (json_int_t)ctl->record.step, "from", ctl->from_config ? ctl->from_config : "", "to",
			 ptc_switch_to_config(ctl), "received_bytes", (json_int_t)wire, "copied_bytes",
			 (json_int_t)copied, "digests_verified", (json_int_t)ctl->ndigests, "preserved", preserved(ctl),
			 "seconds", ctl->nphases ? (double)(ptc_sys_now_ns() - ctl->phases[0].at_ns) / 1e9 : 0.0);
	if (root && ctl->intent.run_from) {
		json_object_set_new(root, "captured_bytes", json_integer((json_int_t)ctl->captured_bytes));
		json_object_set_new(root, "pause", pause_json(ctl));
	}
	if (root)
		device_json(ctl, root);
	if (root && ptc_ahead_took(ctl, &ahead))
		json_object_set_new(root, "built_ahead_ms", json_real(ahead * 1e3));
	return root;
}

char *ptc_switch_summary(struct ptc_controller *ctl)
{
	uint64_t verified = ctl->captured_bytes;
	char *text = NULL;
	json_t *root;

	for (size_t i = 0; i < ctl->npulls; i++)
		verified += ctl->pulls[i].verified_bytes;
	root = json_pack("{s:i, s:s, s:o, s:I, s:o}", "version", 1, "job", ctl->meta.name, "phases", phases_json(ctl),
			 "verified_bytes", (json_int_t)verified, "plan",
			 ctl->plan ? ptc_plan_report_json(ctl->plan) : json_null());
	if (ctl->rank_states.review.text[0])
		json_object_set_new(root, "blobs", ptc_rank_states_json(&ctl->rank_states.review));
	links_json(ctl, root);
	if (json_object_update_new(root, switch_json(ctl)) == 0)
		text = ptc_json_text(root);
	json_decref(root);
	return text;
}

/* ---- the brief form ------------------------------------------------------------------- */

/* Ranks of one node as "0-3,8"; NULL: out of memory. */
static char *ranks_of(const struct ptc_generation_doc *g, uint32_t node)
{
	struct ptc_buf b = PTC_BUF_INIT;

	for (uint32_t r = 0; r < g->world; r++) {
		uint32_t first = r;

		if (g->rank_node[r] != node)
			continue;
		while (r + 1 < g->world && g->rank_node[r + 1] == node)
			r++;
		ptc_buf_printf(&b, first == r ? "%s%u" : "%s%u-%u", b.len ? "," : "", first, r);
	}
	return ptc_buf_steal(&b, NULL);
}

/* [{node, ranks}] of a generation. */
static json_t *placement(const struct ptc_generation_doc *g)
{
	json_t *list = json_array();

	for (uint32_t n = 0; n < g->nnodes && n < BRIEF_NODES_MAX; n++) {
		char *ranks = ranks_of(g, n);

		if (ranks)
			json_array_append_new(list, json_pack("{s:s, s:s}", "node", g->nodes[n], "ranks", ranks));
		ptc_free(ranks);
	}
	return list;
}

/* [{node, in_bytes, out_bytes}] of the nodes between which bytes moved. */
static json_t *moved(const struct ptc_plan_report *plan)
{
	json_t *list = json_array();

	for (size_t i = 0; i < plan->nnodes && json_array_size(list) < BRIEF_NODES_MAX; i++) {
		const struct ptc_plan_node *n = &plan->nodes[i];

		if (n->in_bytes || n->out_bytes)
			json_array_append_new(list, json_pack("{s:s, s:I, s:I}", "node", n->name, "in_bytes",
							      (json_int_t)n->in_bytes, "out_bytes",
							      (json_int_t)n->out_bytes));
	}
	return list;
}

json_t *ptc_switch_brief(struct ptc_controller *ctl)
{
	json_t *brief = switch_json(ctl);

	if (ctl->plan && ctl->plan->counted) {
		json_object_set_new(brief, "totals", ptc_plan_totals_json(ctl->plan));
		json_object_set_new(brief, "nodes", moved(ctl->plan));
	}
	if (ctl->view.from.world)
		json_object_set_new(brief, "before", placement(&ctl->view.from));
	if (ctl->view.to.world)
		json_object_set_new(brief, "after", placement(&ctl->view.to));
	return brief;
}
