/* SPDX-License-Identifier: Apache-2.0 */
/* Stops ranks at a step, also at the step of a due snapshot. Happy path: arm exchanges each rank's stop word, and then
 * reads the rank's step. A rank publishes its step, and then reads its stop. So either the rank waits at the stop, or
 * ptcd sees that the rank has passed it. Failure modes: a rank has exited (ESTATE) or finished (EFINISHED) before the
 * stop; a rank is held at another step, or refuses to have its state taken (ESTATE); its state can be taken only at a
 * later boundary (the caller is told, so that the stop moves); the rank does not come (ETIMEOUT names the rank and says
 * how long it has been silent). docs/model has the handshake as a model; test_litmus.c runs it. */
#include "daemon/workers/group/internal.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/sys/sys.h"

#include <stdio.h>

#define ARM_TRIES 1000 /* of a rank that writes the page as it likes */

static struct worker *runner(const struct group *g, size_t i)
{
	struct worker *k = g->slots[i].worker;

	return k && !k->ended && k->page ? k : NULL;
}

/* It is held at `step` by the stop it saw: it has said so, or will. */
static bool held(const struct worker *k, uint64_t old_stop, uint64_t step)
{
	return (k->phase == WORKER_STOPPED && k->stop_step == step) || old_stop <= step;
}

bool ptc_worker_arm(struct worker *k, uint64_t stop, bool *ret_published, uint64_t *ret_step)
{
	uint64_t old = ptc_local_arm(k->page, stop, ret_published, ret_step);

	if (!*ret_published || *ret_step < stop)
		return false;
	if (*ret_step == stop && held(k, old, stop))
		return false;
	/* It is past: the next boundary it comes to, at the latest, holds it. Only a rank that takes our stops back
	 * runs on; it is left to the next round, and rounds are counted. */
	for (int i = 0; i < ARM_TRIES && *ret_published && *ret_step < PTC_LOCAL_STEP_MAX; i++) {
		uint64_t next = *ret_step + 1;

		old = ptc_local_arm(k->page, next, ret_published, ret_step);
		if (*ret_step < next || old <= *ret_step)
			break;
	}
	return true;
}

static uint64_t next_due(const struct group *g, uint64_t step)
{
	uint64_t every = g->desc.snapshot_every;

	return every && step < PTC_LOCAL_STEP_MAX - every ? (step / every + 1) * every : PTC_LOCAL_NO_STOP;
}

/* leave_out: so many of those after step `since` are not due. */
static uint64_t first_due(const struct group *g, uint64_t since, uint32_t leave_out)
{
	uint64_t due = next_due(g, PTC_MAX(g->start_step, since));

	if (due == PTC_LOCAL_NO_STOP || !leave_out)
		return due;
	if (leave_out > (PTC_LOCAL_STEP_MAX - due) / g->desc.snapshot_every)
		return PTC_LOCAL_NO_STOP;
	return due + leave_out * g->desc.snapshot_every;
}

uint64_t ptc_group_first_stop(const struct group *g)
{
	return g->armed != PTC_LOCAL_NO_STOP ? g->armed : next_due(g, g->start_step);
}

/* Every rank gets the stop of the next snapshot that is due, the same one; none if none ever is. Ranks that wait at an
 * earlier one go on. */
static void prearm_locked(struct group *g, uint64_t due)
{
	bool again = true;

	while (again) {
		again = false;
		for (size_t i = 0; i < g->desc.nranks; i++) {
			struct worker *k = runner(g, i);
			bool published = false;
			uint64_t step = 0;

			if (!k || k->finished || k->phase > WORKER_STOPPED || k->phase < WORKER_DECLARED)
				continue;
			ptc_local_arm(k->page, due, &published, &step);
			if (due == PTC_LOCAL_NO_STOP || !published || step < due)
				continue;
			due = next_due(g, step); /* missed here, so it is left out everywhere */
			again = true;
			break;
		}
	}
	g->said_due = false;
}

static int find_locked(struct ptc_workers *w, const struct ptc_group_key *key, struct group **ret,
		       struct ptc_error *err)
{
	struct group *g = ptc_group_find_locked(w, key);

	if (!g)
		return ptc_group_missing(key, err);
	*ret = ptc_group_ref(g);
	return 0;
}

static void advance_all(struct ptc_workers *w, struct group *g)
{
	for (size_t i = 0; i < g->desc.nranks; i++)
		if (g->slots[i].worker)
			ptc_worker_advance_locked(w, g->slots[i].worker);
}

static int arm_locked(struct ptc_workers *w, struct group *g, uint64_t stop, bool *ret_passed, uint64_t *ret_step,
		      struct ptc_error *err)
{
	uint64_t greatest = 0;
	bool passed = false;
	int rc = ptc_group_wait_connected_locked(w, g, err);

	if (!rc)
		rc = ptc_group_dead_locked(w, g, err);
	if (!rc && (g->ending || !g->built))
		rc = ptc_error_set(err, PTC_ESTATE, "the generation does not run here");
	for (size_t i = 0; i < g->desc.nranks && !rc; i++)
		if (!runner(g, i))
			rc = ptc_error_set(err, PTC_ESTATE, "rank %u has no process", g->slots[i].rank.rank);
	if (rc)
		return rc;
	g->armed = stop;
	for (size_t i = 0; i < g->desc.nranks; i++) {
		struct worker *k = runner(g, i);
		bool published = false;
		uint64_t step = 0;

		if (k)
			passed |= ptc_worker_arm(k, stop, &published, &step);
		if (!published && g->start_step > stop) { /* its first boundary, of start_step, will hold it */
			passed = published = true;
			step = g->start_step - 1;
		}
		if (published)
			greatest = PTC_MAX(greatest, step);
	}
	advance_all(w, g);
	*ret_passed = passed;
	*ret_step = greatest;
	return 0;
}

int ptc_workers_arm(struct ptc_workers *w, const struct ptc_group_key *key, uint64_t stop, bool *ret_passed,
		    uint64_t *ret_step, struct ptc_error *err)
{
	struct group *g = NULL;
	int rc;

	if (stop > PTC_LOCAL_STEP_MAX)
		return ptc_error_set(err, PTC_EINVAL, "step %llu is too large to stop at", (unsigned long long)stop);
	pthread_mutex_lock(&w->lock);
	rc = find_locked(w, key, &g, err);
	if (!rc) {
		rc = arm_locked(w, g, stop, ret_passed, ret_step, err);
		ptc_group_unref_locked(g);
	}
	pthread_mutex_unlock(&w->lock);
	return rc;
}

static void describe_late(struct ptc_buf *b, const struct group *g, size_t i, int64_t now_ns)
{
	const struct worker *k = g->slots[i].worker;
	uint64_t step;

	if (b->len > 400)
		return;
	ptc_buf_printf(b, "%srank %u (pid %d)", b->len ? ", " : "", g->slots[i].rank.rank, k ? (int)k->pid : 0);
	if (k && k->page && ptc_local_step(k->page, &step))
		ptc_buf_printf(b, " at step %llu", (unsigned long long)step);
	else
		ptc_buf_puts(b, " before its first boundary");
	if (k && k->page && ptc_local_device_step(k->page, &step))
		ptc_buf_printf(b, " (its device at step %llu)", (unsigned long long)step);
	if (k && k->seen)
		ptc_buf_printf(b, ", no boundary for %.1f s", (double)(now_ns - k->seen_ns) * 1e-9);
}

/* 1: all wait there; 0: not yet. */
static int stopped_locked(struct ptc_workers *w, struct group *g, uint64_t stop, char *ret_later, struct ptc_buf *who,
			  struct ptc_error *err)
{
	int64_t now = ptc_sys_now_ns();
	bool all = true;
	int rc = g->removed || g->ending ? ptc_error_set(err, PTC_ESTATE, "the generation was ended")
					 : ptc_group_dead_locked(w, g, err);

	for (size_t i = 0; i < g->desc.nranks && !rc; i++) {
		const struct worker *k = g->slots[i].worker;

		if (k && k->phase == WORKER_STOPPED && k->stop_step != stop)
			return ptc_error_set(err, k->finished ? PTC_EFINISHED : PTC_ESTATE,
					     "rank %u %s step %llu, not at %llu", g->slots[i].rank.rank,
					     k->finished ? "has finished at" : "is held at",
					     (unsigned long long)k->stop_step, (unsigned long long)stop);
		if (k && k->phase == WORKER_STOPPED && k->later && ret_later) {
			snprintf(ret_later, PTC_WORKERS_LATER_MAX, "rank %u: %s", g->slots[i].rank.rank, k->refused);
			continue;
		}
		if (k && k->phase == WORKER_STOPPED && *k->refused)
			return ptc_error_set(err, PTC_ESTATE, "rank %u refuses at step %llu: %s", g->slots[i].rank.rank,
					     (unsigned long long)stop, k->refused);
		if (k && k->phase == WORKER_STOPPED)
			continue;
		describe_late(who, g, i, now);
		all = false;
	}
	return rc ? rc : all;
}

int ptc_workers_wait_stopped(struct ptc_workers *w, const struct ptc_group_key *key, uint64_t stop, char *ret_later,
			     const struct ptc_wait *wait, struct ptc_error *err)
{
	int64_t deadline = ptc_workers_deadline(wait);
	struct group *g = NULL;
	int rc;

	pthread_mutex_lock(&w->lock);
	rc = find_locked(w, key, &g, err);
	if (!rc) {
		ptc_group_patience_locked(g, wait);
		do {
			struct ptc_buf who = PTC_BUF_INIT;

			if (ret_later)
				*ret_later = '\0';
			rc = stopped_locked(w, g, stop, ret_later, &who, err);
			if (!rc) {
				rc = ptc_workers_pause_locked(w, wait, deadline, err);
				if (rc)
					ptc_error_wrap(err, "waiting for ranks to stop at step %llu: %s",
						       (unsigned long long)stop, who.data ? who.data : "");
			}
			ptc_buf_done(&who);
		} while (!rc);
		ptc_group_unref_locked(g);
	}
	pthread_mutex_unlock(&w->lock);
	return rc < 0 ? rc : 0;
}

int ptc_workers_release(struct ptc_workers *w, const struct ptc_group_key *key, uint64_t since, uint32_t leave_out,
			struct ptc_error *err)
{
	struct group *g = NULL;
	int rc;

	pthread_mutex_lock(&w->lock);
	rc = find_locked(w, key, &g, err);
	if (!rc) {
		rc = ptc_group_wait_connected_locked(w, g, err);
		if (!rc && !g->ending) {
			g->armed = PTC_LOCAL_NO_STOP;
			g->said_finished = false;
			prearm_locked(g, first_due(g, since, leave_out));
			advance_all(w, g);
			ptc_group_event_locked(w, g);
		}
		ptc_group_unref_locked(g);
	}
	pthread_mutex_unlock(&w->lock);
	return rc;
}

void ptc_workers_look_again(struct ptc_workers *w)
{
	pthread_mutex_lock(&w->lock);
	ptc_workers_changed_locked(w);
	pthread_mutex_unlock(&w->lock);
}

void ptc_workers_report_again(struct ptc_workers *w, const struct ptc_group_key *key)
{
	struct group *g;

	pthread_mutex_lock(&w->lock);
	g = ptc_group_find_locked(w, key);
	if (g && g->built && !g->ending) {
		g->said_failed = g->said_leaves = g->said_finished = g->said_due = false;
		for (size_t i = 0; i < g->desc.nranks; i++) {
			const struct worker *k = g->slots[i].worker;

			if (g->slots[i].exited || (k && k->ended))
				ptc_group_failed_locked(w, g, k, i, k ? NULL : "its process has ended");
		}
		ptc_group_event_locked(w, g);
	}
	pthread_mutex_unlock(&w->lock);
}
