/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the summary of a committed switch (docs/control.md), for the waiting caller and for the switch's event. Loop
 * thread.
 *
 * Happy path: the result is made once, when the core says that the switch is done.
 *
 * Failure modes: out of memory (NULL; the switch is committed all the same). */
#include "daemon/controller/ending/summary_text.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/sys/sys.h"

#include <string.h>

#define NODES_MAX 64 /* of larger switches an event names the first; it should stay below 16 KiB */

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
	double ahead_s;

	p.total_ms = p.stop_ms + p.copy_ms + p.commit_ms + p.end_ms + p.build_ms + p.move_ms + p.restore_ms;
	p.has_slowed = ptc_ahead_took(ctl, &ahead_s);
	if (p.has_slowed)
		p.slowed_ms = slowed_ms(ctl, p.stop_ms);
	p.has_lost = p.slowed_ms >= 0;
	p.has_slowed &= p.has_lost;
	p.slowed_ms = PTC_MAX(0.0, p.slowed_ms);
	p.lost_ms = p.total_ms + p.slowed_ms;
	return p;
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

/* ---- the switch's end --------------------------------------------------------------- */

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

/* Where the ranks of a generation are. */
static void placed(const struct ptc_generation_doc *g, struct ptc_switch_placed **v, size_t *n)
{
	for (uint32_t k = 0; k < g->nnodes && k < NODES_MAX; k++) {
		struct ptc_switch_placed p = { .ranks = ranks_of(g, k) };

		snprintf(p.node, sizeof p.node, "%s", g->nodes[k]);
		if (p.ranks && PTC_MORE(*v, *n))
			(*v)[(*n)++] = p;
		else
			ptc_free(p.ranks);
	}
}

/* By the plan, with the nodes between which bytes moved. */
static void planned(const struct ptc_plan_report *plan, struct ptc_switch_end *e)
{
	e->counted = true;
	e->totals = plan->totals;
	for (size_t i = 0; i < plan->nnodes && e->nnodes < NODES_MAX; i++) {
		const struct ptc_plan_node *n = &plan->nodes[i];
		struct ptc_switch_moved m = { .in_bytes = n->in_bytes, .out_bytes = n->out_bytes };

		snprintf(m.node, sizeof m.node, "%s", n->name);
		if ((m.in_bytes || m.out_bytes) && PTC_MORE(e->nodes, e->nnodes))
			e->nodes[e->nnodes++] = m;
	}
}

/* Of a job with device memory: where what was restored to devices came from. */
static void on_devices(const struct ptc_restored_devices *d, struct ptc_switch_end *e)
{
	e->on_devices = d->kept_bytes || d->peer_bytes || d->host_bytes;
	e->unfinished = e->on_devices && d->unfinished;
	e->device_kept_bytes = d->kept_bytes;
	e->device_peer_bytes = d->peer_bytes;
	e->device_host_bytes = d->host_bytes;
}

/* 0 or PTC_ENOMEM. */
static int sum_up_end(struct ptc_controller *ctl, struct ptc_switch_end *ret)
{
	struct ptc_switch_end e = {
		.id = ctl->intent.id,
		.generation = ctl->intent.to_generation,
		.snapshot = ctl->intent.to_snapshot,
		.step = ctl->record.step,
		.from = ptc_strdup(ctl->from_config ? ctl->from_config : ""),
		.to = ptc_strdup(ptc_switch_to_config(ctl)),
		.digests_verified = ctl->ndigests,
		.seconds = ctl->nphases ? (double)(ptc_sys_now_ns() - ctl->phases[0].at_ns) / 1e9 : 0.0,
		.ran = ctl->intent.run_from,
		.captured_bytes = ctl->captured_bytes,
	};
	double ahead_s;

	if (!e.from || !e.to) {
		ptc_switch_end_done(&e);
		return PTC_ENOMEM;
	}
	snprintf(e.kind, sizeof e.kind, "%s", ptc_switch_name(ctl));
	snprintf(e.preserved, sizeof e.preserved, "%s", preserved(ctl));
	for (size_t i = 0; i < ctl->npulls; i++) {
		e.received_bytes += ctl->pulls[i].wire_bytes;
		e.near_bytes += ctl->pulls[i].near_bytes;
		e.copied_bytes += ctl->pulls[i].copied_bytes;
	}
	if (e.ran)
		e.pause = ptc_switch_pause(ctl);
	on_devices(&ctl->device, &e);
	e.ahead = ptc_ahead_took(ctl, &ahead_s);
	e.built_ahead_ms = e.ahead ? ahead_s * 1e3 : 0;
	if (ctl->plan && ctl->plan->counted)
		planned(ctl->plan, &e);
	placed(&ctl->view.from, &e.before, &e.nbefore);
	placed(&ctl->view.to, &e.after, &e.nafter);
	*ret = e;
	return 0;
}

/* ---- the summary ------------------------------------------------------------------------ */

struct ptc_switch_summary *ptc_switch_summary_new(struct ptc_controller *ctl, const struct ptc_switch_end **ret_end)
{
	struct ptc_switch_summary *s = ptc_calloc(1, sizeof *s);
	int64_t now = ptc_sys_now_ns();

	*ret_end = NULL;
	if (!s || sum_up_end(ctl, &s->end) != 0) {
		ptc_free(s);
		return NULL;
	}
	atomic_init(&s->refs, 1);
	snprintf(s->job, sizeof s->job, "%s", ctl->meta.name);
	for (size_t i = 0; i < ctl->nphases; i++) {
		int64_t until = i + 1 < ctl->nphases ? ctl->phases[i + 1].at_ns : now;

		if (ctl->phases[i].phase == PTC_JOB_IDLE)
			continue;
		s->phases[s->nphases].phase = ctl->phases[i].phase;
		s->phases[s->nphases++].ms = (double)(until - ctl->phases[i].at_ns) / 1e6;
	}
	s->verified_bytes = ctl->captured_bytes;
	for (size_t i = 0; i < ctl->npulls; i++)
		s->verified_bytes += ctl->pulls[i].verified_bytes;
	s->blobs = ctl->rank_states.review;
	s->links = ptc_switch_links(ctl, &s->nlinks);
	s->plan = ctl->plan;
	ctl->plan = NULL;
	*ret_end = &s->end;
	return s;
}
