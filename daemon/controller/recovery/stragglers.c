/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: once a second the nodes are asked where their ranks are (recovery_ask.c); the answers also have the
 * ranks' own work: the report `own_seconds`. When every rank has made `straggler_steps` steps, the window is judged; an
 * event tells which ranks have become slow, and which are slow no longer.
 *
 * Failure modes: a node that does not answer (the window goes on; if it is down, nothing is asked); ranks that do not
 * tell (status says how many); new ranks, or another controller (it begins anew); out of memory (it is tried again at
 * the next round). */
#include "daemon/controller/recovery/stragglers.h"

#include "daemon/controller/internal.h"
#include "daemon/controller/recovery/straggler_drain.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "formats/ranks/rank_rows.h"
#include "daemon/core/slow/slow.h"
#include "reshard/spec/config.h"

#include <stdio.h>

#define ASK_NS     INT64_C(1000000000)
#define OWN_REPORT "own_seconds" /* what a program gives to ptc_report (docs/failures.md) */

struct ptc_stragglers {
	uint64_t incarnation;
	uint32_t n, round;   /* round: the last one that was judged */
	uint32_t windows;    /* that have ended */
	uint32_t comparable; /* ranks, in the last one */
	struct ptc_slow_scratch *scratch;
	bool *told; /* of each rank, that it is slow */
	struct ptc_straggler_drain drain;
	struct ptc_slow_rank ranks[];
};

static uint64_t steps_of(const struct ptc_job_elastic *e)
{
	return e->straggler_steps ? e->straggler_steps : PTC_JOB_STRAGGLER_STEPS;
}

static uint32_t percent_of(const struct ptc_job_elastic *e)
{
	return e->straggler_percent ? e->straggler_percent : PTC_JOB_STRAGGLER_PERCENT;
}

static bool current(const struct ptc_controller *ctl)
{
	const struct ptc_stragglers *s = ctl->recovery.stragglers;

	return s && s->incarnation == ctl->record.incarnation && ctl->record.run == PTC_RUN_LIVE;
}

/* One block, which whoever frees the controller frees. */
static void begin(struct ptc_controller *ctl)
{
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);
	struct ptc_straggler_drain drain = { 0 };
	struct ptc_stragglers *s = NULL;
	struct ptc_config c;
	size_t n = g->world;

	if (ctl->recovery.stragglers)
		drain = ctl->recovery.stragglers->drain; /* is not the ranks' */
	ptc_free(ctl->recovery.stragglers);
	ctl->recovery.stragglers = NULL;
	ctl->recovery.drain = NULL;
	if (n == 0 || ptc_config_parse(g->config, &c, NULL) != 0)
		return;
	s = ptc_calloc(1, sizeof *s + n * (sizeof *s->ranks + sizeof *s->scratch + sizeof *s->told));
	if (!s)
		return;
	s->scratch = (struct ptc_slow_scratch *)(void *)(s->ranks + n);
	s->told = (bool *)(void *)(s->scratch + n);
	s->incarnation = ctl->record.incarnation;
	s->n = g->world;
	s->drain = drain;
	for (uint32_t r = 0; r < s->n; r++)
		s->ranks[r].role = ptc_config_coords(&c, r).pp;
	ctl->recovery.stragglers = s;
	ctl->recovery.drain = &s->drain;
}

void ptc_stragglers_saw(struct ptc_controller *ctl, const struct ptc_rank_row *row)
{
	struct ptc_stragglers *s = ctl->recovery.stragglers;

	if (current(ctl) && row->incarnation == s->incarnation && row->has_step && row->rank < s->n)
		ptc_slow_see(&s->ranks[row->rank], row->step, row->has_own ? &row->own_s : NULL);
}

/* ---- what is said ---------------------------------------------------------------------- */

static const char *node_of(const struct ptc_controller *ctl, uint32_t rank)
{
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);

	return rank < g->world ? g->nodes[g->rank_node[rank]] : "";
}

/* Which of the ranks are slow, or are so no longer, that have not been told of as such. */
static void tell_of(struct ptc_controller *ctl, bool slow)
{
	const struct ptc_stragglers *s = ctl->recovery.stragglers;
	struct ptc_buf b = PTC_BUF_INIT;
	uint32_t n = 0;

	for (uint32_t r = 0; r < s->n; r++) {
		const struct ptc_slow_rank *k = &s->ranks[r];

		if (k->slow != slow || s->told[r] == slow || n++ >= PTC_STRAGGLERS_SHOWN)
			continue;
		ptc_buf_printf(&b, "%srank %u of node %s (%.3g ms of own work a step, its stage's median %.3g ms)",
			       n > 1 ? ", " : "", r, node_of(ctl, r), 1e3 * k->own_s, 1e3 * k->median_s);
	}
	if (n > PTC_STRAGGLERS_SHOWN)
		ptc_buf_printf(&b, " and %u more", n - PTC_STRAGGLERS_SHOWN);
	if (n && !ptc_buf_failed(&b))
		ptc_event(ctl->all->cluster, ctl->uuid, slow ? "straggler" : "straggler_over",
			  slow ? "slower than others by more than %u %%, %d times %llu steps in a row: %s"
			       : "as fast as others again, within half of %u %%, %d times %llu steps in a row: %s",
			  percent_of(&ctl->recovery.elastic), PTC_SLOW_WINDOWS,
			  (unsigned long long)steps_of(&ctl->recovery.elastic), b.data);
	ptc_buf_done(&b);
}

static void judge(struct ptc_controller *ctl)
{
	struct ptc_stragglers *s = ctl->recovery.stragglers;

	if (!ptc_slow_judge(s->ranks, s->n, steps_of(&ctl->recovery.elastic), percent_of(&ctl->recovery.elastic),
			    s->scratch))
		return;
	s->windows++;
	s->comparable = 0;
	for (uint32_t r = 0; r < s->n; r++)
		s->comparable += s->ranks[r].word != PTC_SLOW_UNKNOWN;
	tell_of(ctl, true);
	tell_of(ctl, false);
	for (uint32_t r = 0; r < s->n; r++)
		s->told[r] = s->ranks[r].slow;
}

bool ptc_stragglers_tick(struct ptc_controller *ctl)
{
	struct ptc_recovery *r = &ctl->recovery;

	if (!r->has_elastic || !r->elastic.on_straggler)
		return false;
	if (!current(ctl))
		begin(ctl);
	if (!r->stragglers)
		return false;
	if (r->rounds.incarnation != ctl->record.incarnation)
		return true;
	if (!r->rounds.awaited && r->rounds.n != r->stragglers->round) {
		r->stragglers->round = r->rounds.n;
		judge(ctl);
	}
	return ptc_sys_now_ns() - r->rounds.asked_ns >= ASK_NS;
}

bool ptc_stragglers_leave(struct ptc_controller *ctl)
{
	struct ptc_stragglers *s = ctl->recovery.stragglers;

	return ctl->recovery.has_elastic && ctl->recovery.elastic.on_straggler == PTC_JOB_STRAGGLER_DRAIN &&
	       current(ctl) && ptc_straggler_drain_tick(ctl, &s->drain, s->ranks, s->n);
}

/* ---- what is shown ----------------------------------------------------------------------- */

uint32_t ptc_stragglers(const struct ptc_controller *ctl, struct ptc_straggler ret[PTC_STRAGGLERS_SHOWN],
			uint32_t *ret_all)
{
	const struct ptc_stragglers *s = ctl && current(ctl) ? ctl->recovery.stragglers : NULL;
	uint32_t n = 0;

	*ret_all = 0;
	for (uint32_t r = 0; s && r < s->n; r++) {
		if (!s->ranks[r].slow || (*ret_all)++ >= PTC_STRAGGLERS_SHOWN)
			continue;
		ret[n] = (struct ptc_straggler){ .rank = r,
						 .own_s = s->ranks[r].own_s,
						 .median_s = s->ranks[r].median_s };
		snprintf(ret[n++].node, sizeof ret->node, "%s", node_of(ctl, r));
	}
	return n;
}

void ptc_stragglers_say(const struct ptc_controller *ctl, struct ptc_stragglers_said *ret)
{
	const struct ptc_stragglers *s = ctl && current(ctl) ? ctl->recovery.stragglers : NULL;

	*ret = (struct ptc_stragglers_said){ 0 };
	if (!s || !s->windows)
		return;
	ret->windows = s->windows;
	ret->comparable = s->comparable;
	ret->n = ptc_stragglers(ctl, ret->v, &ret->slow);
	if (s->comparable < s->n)
		snprintf(ret->text, sizeof ret->text,
			 "%u of %u ranks cannot be compared: each has to report `%s`, as have to at least %d of its "
			 "pipeline stage",
			 s->n - s->comparable, s->n, OWN_REPORT, PTC_SLOW_RANKS_MIN);
}
