/* SPDX-License-Identifier: Apache-2.0 */
/* Decides whether ranks of a job that trains hang (`on_hang`).
 *
 * Happy path: the job's nodes are asked for the steps of their ranks, often enough for the job's limit. A rank hangs if
 * its step has not changed for the limit, although no boundary holds the rank and it has not finished. One event says
 * so, nodes keep records of the ranks, and another event says when they go on. recovery.c does the rest.
 *
 * Failure modes: a node is down or does not answer (the node is to blame, and not the ranks: recovery.c); another
 * controller takes over (it begins to count anew). Loop thread. */
#include "daemon/controller/internal.h"

#include "base/check.h"
#include "base/sys/sys.h"

#include <stdio.h>

#define MS         INT64_C(1000000)
#define ASKS       8          /* rounds within the limit */
#define ASK_MIN_NS (250 * MS) /* between two rounds */
#define ASK_MAX_NS (5000 * MS)

static int64_t after_ns(const struct ptc_recovery *r)
{
	return (int64_t)(r->elastic.hang_after_ms ? r->elastic.hang_after_ms : PTC_JOB_HANG_AFTER_MS) * MS;
}

/* So long a step may take. */
static int64_t limit_ns(const struct ptc_recovery *r)
{
	const struct ptc_rank_stand *s = &r->rounds.stand;
	uint32_t steps = r->elastic.hang_steps ? r->elastic.hang_steps : PTC_JOB_HANG_STEPS;
	int64_t limit = PTC_MAX(after_ns(r), (int64_t)(steps * s->step_s * 1e9));

	return s->fresh ? PTC_MAX(limit, r->first_step_ms * MS) : limit;
}

static int64_t ask_ns(const struct ptc_recovery *r)
{
	return PTC_MAX(ASK_MIN_NS, PTC_MIN(ASK_MAX_NS, after_ns(r) / ASKS));
}

bool ptc_hang_hangs(const struct ptc_controller *ctl)
{
	const struct ptc_recovery *r = &ctl->recovery;
	const struct ptc_rank_rounds *rounds = &r->rounds;

	/* Ranks are held, or one has failed: what is done then is under way. Ranks of an earlier incarnation that were
	 * held are gone. While snapshots follow each other, nobody may have had the time to note that. */
	if ((r->hold.state != PTC_HOLD_IDLE && r->hold.incarnation == ctl->record.incarnation) ||
	    r->judging.incarnation == ctl->record.incarnation)
		return false;
	return r->has_elastic && r->elastic.on_hang && ctl->record.run == PTC_RUN_LIVE &&
	       rounds->incarnation == ctl->record.incarnation && rounds->n && rounds->stand.least != UINT64_MAX &&
	       ptc_sys_now_ns() - rounds->done_ns < 2 * ask_ns(r) + ASK_MAX_NS &&
	       rounds->done_ns - rounds->stand.still_ns >= limit_ns(r);
}

/* Of which step; the same ranks at the same step are told of once. */
static bool told(const struct ptc_controller *ctl)
{
	const struct ptc_hang *h = &ctl->recovery.hang;

	return h->incarnation && h->incarnation == ctl->record.incarnation &&
	       h->step == ctl->recovery.rounds.stand.least;
}

static void tell(struct ptc_controller *ctl)
{
	const struct ptc_rank_stand *s = &ctl->recovery.rounds.stand;
	struct ptc_hang *h = &ctl->recovery.hang;
	char others[40] = "", median[64] = "";

	h->incarnation = ctl->record.incarnation;
	h->step = s->least;
	h->since_ns = s->still_ns;
	if (s->n > 1)
		snprintf(others, sizeof others, " and %u other%s", s->n - 1, s->n > 2 ? "s" : "");
	if (s->fresh)
		snprintf(median, sizeof median, "; no step had ended before");
	else if (s->step_s > 0)
		snprintf(median, sizeof median, "; a step took %.3g s", s->step_s);
	snprintf(h->who, sizeof h->who, "rank %u of node %s%s", s->rank, s->node, others);
	snprintf(h->text, sizeof h->text, "%s stand%s at step %llu for longer than `hang_after` allows", h->who,
		 s->n > 1 ? "" : "s", (unsigned long long)h->step);
	ptc_event(ctl->all->cluster, ctl->uuid, "hung", "%s %s stood at step %llu for %.1f s%s", h->who,
		  s->n > 1 ? "have" : "has", (unsigned long long)h->step,
		  (double)(ctl->recovery.rounds.done_ns - s->still_ns) / 1e9, median);
}

/* Nobody needs to be told of ranks that have ended since. */
static void tell_moves(struct ptc_controller *ctl)
{
	struct ptc_hang *h = &ctl->recovery.hang;

	if (h->incarnation == ctl->record.incarnation && ctl->record.run == PTC_RUN_LIVE)
		ptc_event(ctl->all->cluster, ctl->uuid, "moves", "ranks that had stood at step %llu go on",
			  (unsigned long long)h->step);
	h->incarnation = 0;
}

void ptc_hang_tick(struct ptc_controller *ctl)
{
	struct ptc_recovery *r = &ctl->recovery;
	bool same = r->rounds.incarnation == ctl->record.incarnation;

	if (!r->has_elastic || !r->elastic.on_hang)
		return;
	if (!same || ptc_sys_now_ns() - r->rounds.asked_ns >= ask_ns(r))
		ptc_recovery_ask(ctl, true);
	if (r->hang.incarnation && same && r->rounds.n && !told(ctl))
		tell_moves(ctl);
	if (ptc_hang_hangs(ctl) && !told(ctl)) {
		tell(ctl);
		ptc_hang_keep(ctl);
	}
}
