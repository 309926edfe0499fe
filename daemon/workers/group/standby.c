/* SPDX-License-Identifier: Apache-2.0 */
/* Starts processes that wait without a rank for the job's next start (standby: import). Happy path: while all ranks of
 * the job here run, the loop has one process after the other started, at a low priority; each imports what its program
 * imports and waits in ptc_next. A start takes them from here instead of starting processes (group_start.c), and from
 * then on they are like those. Failure modes: one ends, or does not come to ptc_next in time: an event tells of the
 * first in a row, another is started later, and later each time. Nothing of this is a failure of the job, and nothing
 * is on disk: the next ptcd ends those that it finds. A program that was edited since: those that have imported it
 * end. */
#include "daemon/workers/group/internal.h"

#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <stdio.h>
#include <string.h>

#define MS INT64_C(1000000)

static void dismiss_locked(struct ptc_workers *w, struct worker *k)
{
	ptc_worker_want_exit_locked(w, k, WORKERS_GIVEN_UP_MS);
}

void ptc_workers_standby_end(struct ptc_workers *w, const char *uuid)
{
	struct job *job;

	pthread_mutex_lock(&w->lock);
	job = ptc_workers_job_locked(w, uuid);
	if (job)
		ptc_standby_end_locked(w, job);
	pthread_mutex_unlock(&w->lock);
}

/* desc is that of the ranks here, and does not say how many wait. */
static int set_locked(struct ptc_workers *w, struct job *job, const struct ptc_group_desc *desc, size_t want,
		      struct ptc_error *err)
{
	struct group *like;
	int rc = ptc_group_new(desc, &like, err);

	if (rc)
		return rc;
	like->desc.low = true;
	like->job = job;
	job->held++;
	if (job->standby.like && !ptc_group_same_program(&job->standby.like->desc, &like->desc))
		ptc_standby_end_locked(w, job);
	if (job->standby.like)
		ptc_group_unref_locked(job->standby.like);
	job->standby.like = like;
	job->standby.want = PTC_MIN(want, (size_t)WORKERS_PROCESSES_MAX / 4);
	ptc_workers_wake(w);
	return 0;
}

int ptc_workers_standby(struct ptc_workers *w, const struct ptc_group_desc *desc, size_t want, struct ptc_error *err)
{
	struct job *job;
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	job = ptc_workers_job_locked(w, desc->key.uuid);
	if (job && !want)
		ptc_standby_end_locked(w, job);
	else if (job && !job->forgotten)
		rc = set_locked(w, job, desc, want, err);
	pthread_mutex_unlock(&w->lock);
	return rc;
}

/* ---- what the loop does ---------------------------------------------------------- */

static void failed_locked(struct ptc_workers *w, struct job *job, const struct worker *k, const char *what,
			  int64_t now_ns)
{
	bool good = k && k->waits_ns && now_ns - k->waits_ns >= WORKERS_STANDBY_GOOD_MS * MS;
	int64_t again_ms = WORKERS_STANDBY_AGAIN_MS;

	job->standby.fails = good ? 1 : job->standby.fails + 1;
	for (unsigned i = 1; i < job->standby.fails && again_ms < WORKERS_STANDBY_MOST_MS; i++)
		again_ms *= 2;
	again_ms = PTC_MIN(again_ms, (int64_t)WORKERS_STANDBY_MOST_MS);
	job->standby.next_ns = now_ns + again_ms * MS;
	if (job->standby.like && job->standby.fails == 1)
		ptc_group_standby_failed_locked(w, job->standby.like, k, what);
}

/* Those that have ended, or are late. */
static void look_locked(struct ptc_workers *w, struct job *job, int64_t now_ns)
{
	const struct group *like = job->standby.like;

	for (struct worker *k = job->workers; k; k = k->next) {
		if (!k->standby || k->spawning)
			continue;
		if (k->phase == WORKER_WAITING && !k->waits_ns)
			k->waits_ns = now_ns;
		if (!like && !k->exit_wanted) /* started meanwhile */
			dismiss_locked(w, k);
		if (k->exit_wanted) {
			k->standby = false;
		} else if (ptc_worker_gone(k)) {
			k->standby = false;
			failed_locked(w, job, k, NULL, now_ns);
			dismiss_locked(w, k);
		} else if (like && !k->waits_ns && now_ns - k->standby_ns > (int64_t)like->desc.standby_ms * MS) {
			failed_locked(w, job, k, "has not come to ptc_next within the job's build_timeout", now_ns);
			dismiss_locked(w, k);
		}
	}
}

static bool goes(const struct worker *k)
{
	return k && !k->ended && (k->phase == WORKER_RUNNING || k->phase == WORKER_STOPPED);
}

/* All ranks of the job here train, and no others are being started: a process that imports is in nobody's way. They
 * stop for each snapshot. */
static bool is_quiet(const struct job *job)
{
	for (const struct group *g = job->groups; g; g = g->next) {
		if (!g->built || g->ending || g->spawning)
			return false;
		for (size_t i = 0; i < g->desc.nranks; i++)
			if (!goes(g->slots[i].worker))
				return false;
	}
	return job->groups != NULL;
}

static void start_task(struct ptc_workers *w, void *arg)
{
	struct group *like = arg;
	struct job *job = like->job;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_program_files files;
	struct worker *k = NULL;
	int rc;

	ptc_program_look(like->desc.cwd, like->desc.uid, like->desc.argv, &files);
	pthread_mutex_lock(&w->lock);
	rc = ptc_worker_make_locked(w, job, &k, &err);
	if (!rc) {
		k->standby = true;
		k->files = files;
		k->standby_ns = ptc_sys_now_ns();
		rc = ptc_worker_spawn_locked(w, like, NULL, k, &err);
		if (rc)
			ptc_worker_remove_locked(k);
	}
	if (rc)
		failed_locked(w, job, NULL, err.text, ptc_sys_now_ns());
	else if (!job->standby.like || !ptc_group_same_program(&job->standby.like->desc, &like->desc)) /* by now */
		dismiss_locked(w, k);
	job->standby.starting = false;
	ptc_group_unref_locked(like);
	ptc_workers_changed_locked(w);
	pthread_mutex_unlock(&w->lock);
}

static void tend_locked(struct ptc_workers *w, struct job *job, int64_t now_ns)
{
	size_t have = 0, comes = 0;

	look_locked(w, job, now_ns);
	if (!job->standby.like)
		return;
	for (struct worker *k = job->workers; k; k = k->next) {
		if (!ptc_worker_stands_by(k))
			continue;
		if (have == job->standby.want && !k->spawning) {
			dismiss_locked(w, k);
			continue;
		}
		have++;
		comes += !k->waits_ns;
	}
	if (!is_quiet(job))
		job->standby.quiet_ns = 0;
	else if (!job->standby.quiet_ns)
		job->standby.quiet_ns = now_ns;
	if (have >= job->standby.want || comes || job->standby.starting || now_ns < job->standby.next_ns ||
	    !job->standby.quiet_ns || now_ns - job->standby.quiet_ns < WORKERS_STANDBY_QUIET_MS * MS)
		return;
	job->standby.starting = true;
	ptc_group_ref(job->standby.like);
	if (ptc_workers_task_locked(w, start_task, job->standby.like))
		return;
	job->standby.starting = false;
	ptc_group_unref_locked(job->standby.like);
}

void ptc_workers_standbys_locked(struct ptc_workers *w, int64_t now_ns)
{
	for (struct job *job = w->jobs; job; job = job->next)
		tend_locked(w, job, now_ns);
}
