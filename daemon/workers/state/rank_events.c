/* SPDX-License-Identifier: Apache-2.0 */
/* Worker events for the controller. Happy path: their conditions are checked whenever a rank stops or exits. A thread
 * of its own hands queued events over, in order, without our lock. Failure modes: if memory is short, an event is
 * queued at the next check instead (`said_` stays unset). */
#include "daemon/workers/state/rank_events.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#define STALL_STEPS 30 /* a step may take many times what the last took: checkpoints, evaluation */
#define LOG_TAIL    700
#define DEATH_TEXT  440 /* a switch that comes to nothing says why in 511 bytes, with what others put before */

/* NULL: out of memory. Nobody has it before the lock is left. */
static struct ptc_worker_event *say_locked(struct ptc_workers *w, const struct group *g,
					   enum ptc_worker_event_kind kind, uint32_t rank, uint64_t step, int status,
					   const char *text)
{
	struct event_item *n = ptc_calloc(1, sizeof *n);

	if (!n)
		return NULL;
	n->event = (struct ptc_worker_event){
		.key = g->desc.key, .kind = kind, .rank = rank, .step = step, .exit_status = status
	};
	snprintf(n->event.text, sizeof n->event.text, "%s", text);
	*w->event_end = n;
	w->event_end = &n->next;
	pthread_cond_broadcast(&w->changed);
	return &n->event;
}

/* Writes "rank 3 (pid 12) exited with status 1", and on the next lines the end of its log. */
static void obituary(const struct worker *k, uint32_t rank, char *buf, size_t size)
{
	char who[48] = "a process that waited for a generation", tail[LOG_TAIL] = "";
	int n;

	if (rank != UINT32_MAX)
		snprintf(who, sizeof who, "rank %u", rank);
	if (k->leaving)
		n = snprintf(buf, size, "%s (pid %d) gives up; its memory is held", who, (int)k->process.pid);
	else if (!k->ended)
		n = snprintf(buf, size, "%s (pid %d) closed its client and does not take part any more", who,
			     (int)k->process.pid);
	else if (k->bad_ns)
		n = snprintf(buf, size, "%s (pid %d) has ended: %s", who, (int)k->process.pid, k->bad_why);
	else if (!k->status_known)
		n = snprintf(buf, size, "%s (pid %d) has exited; its status is not known", who, (int)k->process.pid);
	else if (WIFSIGNALED(k->status))
		n = snprintf(buf, size, "%s (pid %d) was killed by signal %d (%s)", who, (int)k->process.pid,
			     WTERMSIG(k->status), strsignal(WTERMSIG(k->status)));
	else
		n = snprintf(buf, size, "%s (pid %d) exited with status %d", who, (int)k->process.pid,
			     WEXITSTATUS(k->status));
	if (n <= 0 || (size_t)n + sizeof PTC_WORKER_LOG_ENDS >= size)
		return;
	/* Its last lines say what went wrong: those that still fit. */
	ptc_process_log_tail(&k->process, tail, PTC_MIN(sizeof tail, size - (size_t)n - sizeof PTC_WORKER_LOG_ENDS));
	if (*tail)
		snprintf(buf + n, size - (size_t)n, PTC_WORKER_LOG_ENDS "%s", tail);
}

static uint64_t devices_of(const struct group *g)
{
	uint64_t bits = 0;

	for (size_t i = 0; i < g->desc.nranks; i++)
		if (g->ranks[i].device < 64)
			bits |= UINT64_C(1) << g->ranks[i].device;
	return bits;
}

static void failed_locked(struct ptc_workers *w, struct group *g, const struct worker *k, size_t slot, const char *what,
			  bool gone)
{
	uint32_t rank = g->slots[slot].rank.rank;
	struct ptc_worker_event *said;
	uint64_t step = k ? k->end_step : 0;
	char text[1024];

	/* The first is the cause, and others follow from it. But a rank that gives up has seen that a peer is gone, and
	 * says so before we hear how that one has ended. A call that waits tells of the death itself. */
	if (g->said_failed && !(g->said_leaves && k && k->ended && !k->leaving))
		return;
	if (g->waited && !what)
		return;
	if (what) {
		snprintf(text, sizeof text, "rank %u (pid %d): %s", rank, k ? (int)k->process.pid : 0, what);
	} else {
		ptc_require(k);
		obituary(k, rank, text, sizeof text);
	}
	if (k && k->page)
		ptc_local_step(k->page, &step);
	said = say_locked(w, g, PTC_WORKER_EVENT_FAILED, rank, step, k && k->ended ? k->status : 0, text);
	if (!said)
		return;
	/* not known: who was there to see the end has gone, too, as with the whole node */
	said->gone = gone || (k && k->ended && (!k->status_known || k->bad_ns));
	said->devices = devices_of(g);
	g->said_failed = true;
	g->said_leaves = k && k->leaving;
}

void ptc_group_failed_locked(struct ptc_workers *w, struct group *g, const struct worker *k, size_t slot,
			     const char *what)
{
	failed_locked(w, g, k, slot, what, false);
}

void ptc_group_device_failed_locked(struct ptc_workers *w, struct group *g, const struct worker *k, size_t slot,
				    const char *what)
{
	failed_locked(w, g, k, slot, what, true);
}

int ptc_group_not_started_locked(struct ptc_workers *w, struct group *g, const struct worker *k, uint32_t rank,
				 struct ptc_error *err)
{
	char text[sizeof((struct ptc_worker_event *)0)->text], line[DEATH_TEXT];

	obituary(k, rank, text, sizeof text);
	if (g->waited && !g->said_not_started && !g->ending) /* the first is the cause */
		g->said_not_started =
			say_locked(w, g, PTC_WORKER_EVENT_NOT_STARTED, rank, 0, k->ended ? k->status : 0, text) != NULL;
	return ptc_error_set(err, PTC_ESTATE, "%s", ptc_worker_text_line(text, line, sizeof line));
}

/* Where ranks wait that have finished, and those that have not. */
struct ends {
	size_t finished, held;
	uint64_t finished_step, held_step; /* the greatest */
	bool uneven;                       /* ranks have finished at different steps */
	bool apart;                        /* ranks that have not are held at different steps */
};

/* false: some rank goes on. */
static bool all_wait(const struct group *g, struct ends *ret_ends)
{
	struct ends e = { 0 };

	for (size_t i = 0; i < g->desc.nranks; i++) {
		const struct worker *k = g->slots[i].worker;

		if (!k || k->phase != WORKER_STOPPED)
			return false;
		if (k->finished) {
			e.uneven |= e.finished++ && k->stop_step != e.finished_step;
			e.finished_step = PTC_MAX(e.finished_step, k->stop_step);
		} else {
			e.apart |= e.held++ && k->stop_step != e.held_step;
			e.held_step = PTC_MAX(e.held_step, k->stop_step);
		}
	}
	*ret_ends = e;
	return true;
}

/* "rank 0 at step 25, rank 1 at step 40" */
static void list_ends(const struct group *g, char *buf, size_t size)
{
	size_t len = 0;

	for (size_t i = 0; i < g->desc.nranks && len + 64 < size; i++)
		len += (size_t)snprintf(buf + len, size - len, "%srank %u at step %llu", i ? ", " : "",
					g->slots[i].rank.rank, (unsigned long long)g->slots[i].worker->stop_step);
}

/* Ranks that are held for a snapshot that is due are told of also where another has finished before that step: the
 * controller finds that it cannot be had, and lets them go on. */
void ptc_group_event_locked(struct ptc_workers *w, struct group *g)
{
	char text[sizeof((struct ptc_worker_event *)0)->text] = "";
	uint64_t every = g ? g->desc.snapshot_every : 0;
	struct ends e;

	if (!g || !g->built || g->ending || g->said_failed || !all_wait(g, &e))
		return;
	if (!e.held && e.uneven)
		list_ends(g, text, sizeof text);
	if (!e.held && !g->said_finished)
		g->said_finished =
			say_locked(w, g, PTC_WORKER_EVENT_FINISHED, g->slots[0].rank.rank, e.finished_step, 0, text);
	else if (e.held && !e.apart && !g->said_due && g->armed == PTC_LOCAL_NO_STOP && every &&
		 e.held_step % every == 0)
		g->said_due = say_locked(w, g, PTC_WORKER_EVENT_DUE, g->slots[0].rank.rank, e.held_step, 0, "");
}

int64_t ptc_worker_stalled_ns(const struct ptc_workers *w, const struct worker *k, int64_t now_ns)
{
	int64_t limit = PTC_MAX(w->env.stall_ms * INT64_C(1000000), (int64_t)(k->step_seconds * STALL_STEPS * 1e9));

	if (!w->env.stall_ms || !k->seen || k->phase != WORKER_RUNNING || k->ended || !k->group || k->group->ending)
		return 0;
	return now_ns - k->seen_ns >= limit ? now_ns - k->seen_ns : 0;
}

/* Of those that stand, the one that is furthest behind: others may only wait for it. */
static const struct worker *stands(const struct ptc_workers *w, const struct group *g, int64_t now_ns)
{
	const struct worker *found = NULL;

	for (size_t i = 0; i < g->desc.nranks; i++) {
		const struct worker *k = g->slots[i].worker;

		if (k && ptc_worker_stalled_ns(w, k, now_ns) && (!found || k->seen_step < found->seen_step))
			found = k;
	}
	return found;
}

void ptc_group_stalled_locked(struct ptc_workers *w, struct group *g, int64_t now_ns)
{
	const struct worker *k = g->built ? stands(w, g, now_ns) : NULL;
	char text[256];
	int n;

	if (g->ending || g->said_failed || !k == !g->said_stalled)
		return;
	if (!k) {
		g->said_stalled = !say_locked(w, g, PTC_WORKER_EVENT_MOVES, 0, 0, 0, "ranks here go on");
		return;
	}
	n = snprintf(text, sizeof text, "rank %u (pid %d) has been at step %llu for %lld s", k->rank,
		     (int)k->process.pid, (unsigned long long)k->seen_step,
		     (long long)((now_ns - k->seen_ns) / 1000000000));
	if (k->step_seconds > 0)
		snprintf(text + n, sizeof text - (size_t)n, "; a step took %.3g s", k->step_seconds);
	g->said_stalled = say_locked(w, g, PTC_WORKER_EVENT_STALLED, k->rank, k->seen_step, 0, text);
}

void ptc_group_hangs_locked(struct ptc_workers *w, struct group *g)
{
	for (size_t i = 0; i < g->desc.nranks; i++) {
		struct worker *k = g->slots[i].worker;
		pid_t copier = 0;
		char text[256];
		bool hangs = k && ptc_copiers_hung_ns(&w->copiers, g->job->uuid, k->pid, &copier);

		if (!k || hangs == k->said_hangs)
			continue;
		if (hangs)
			snprintf(text, sizeof text,
				 "rank %u (pid %d): its memory does not answer; process %d, which copied it, hangs "
				 "there "
				 "and cannot be ended",
				 k->rank, (int)k->pid, (int)copier);
		else
			snprintf(text, sizeof text, "rank %u (pid %d): what hung in its memory has ended", k->rank,
				 (int)k->pid);
		if (say_locked(w, g, hangs ? PTC_WORKER_EVENT_HANGS : PTC_WORKER_EVENT_ANSWERS, k->rank, 0, 0, text))
			k->said_hangs = hangs;
	}
}

void ptc_group_standby_failed_locked(struct ptc_workers *w, const struct group *like, const struct worker *k,
				     const char *what)
{
	char text[sizeof((struct ptc_worker_event *)0)->text];

	if (k && !what)
		obituary(k, UINT32_MAX, text, sizeof text);
	else if (k)
		snprintf(text, sizeof text, "a process that is to wait for the job's next start (pid %d) %s",
			 (int)k->process.pid, what);
	else
		snprintf(text, sizeof text, "no process can be started to wait for the job's next start: %.900s", what);
	(void)say_locked(w, like, PTC_WORKER_EVENT_STANDBY, 0, 0, k && k->ended ? k->status : 0, text);
}

void *ptc_workers_reporter(void *workers)
{
	struct ptc_workers *w = workers;

	pthread_mutex_lock(&w->lock);
	while (!w->silent) {
		struct event_item *n = w->event;

		if (!n) {
			pthread_cond_wait(&w->changed, &w->lock);
			continue;
		}
		w->event = n->next;
		if (!w->event)
			w->event_end = &w->event;
		pthread_mutex_unlock(&w->lock);
		if (w->env.event)
			w->env.event(w->env.arg, &n->event);
		ptc_free(n);
		pthread_mutex_lock(&w->lock);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}
