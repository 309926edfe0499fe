/* SPDX-License-Identifier: Apache-2.0 */
/* Ends the ranks of a generation, and processes: SIGTERM after half of the grace time, SIGKILL after all of it. Happy
 * path: ranks are told; with rebuild they come back to ptc_next, with restart they exit.
 *
 * Failure modes: a rank that does neither gets SIGTERM after half of the grace time and SIGKILL after all of it. (If it
 * is given up, and its step stands, it gets SIGTERM at once: it comes to no boundary where it would be told.) That
 * goes on without the caller, too; and a ptcd that starts anew finds `ending` in the group's file. */
#include "daemon/workers/group/internal.h"
#include "daemon/workers/process/priority.h"
#include "daemon/workers/process/process.h"
#include "daemon/workers/session/rank_conn.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define KILL_AGAIN_NS INT64_C(1000000000)
#define STANDS_NS     INT64_C(3000000000) /* a step that stands for so long, */
#define GIVEN_UP_NS   INT64_C(500000000)  /* .. or for so long where the job starts again, */
#define TELLS_NS      INT64_C(1000000000) /* a switch whose copy has failed says so within that */
#define STANDS_STEPS  3                   /* .. and for as long as so many take, does not go on */

/* true: every slot's process has exited or left for ptc_next. */
static bool over_locked(struct group *g)
{
	bool over = true;

	for (size_t i = 0; i < g->desc.nranks; i++) {
		struct worker *k = g->slots[i].worker;

		if (k && k->ended)
			ptc_worker_detach_locked(k);
		else if (k)
			over = false;
	}
	return over;
}

/* Its step has stood for so long, and for as long as STANDS_STEPS of them take: it comes to no boundary any more. */
static bool stands(const struct worker *k, int64_t now_ns, int64_t for_ns)
{
	int64_t window = PTC_MAX(for_ns, (int64_t)(STANDS_STEPS * 1e9 * k->step_seconds));

	return k->phase == WORKER_RUNNING && k->seen && now_ns - k->seen_ns >= window;
}

/* It was told to exit before, with more time. at_once: it is not given half of the grace time to exit by itself. */
static void hurry_locked(struct ptc_workers *w, struct worker *k, uint32_t grace_ms, bool at_once)
{
	int64_t now = ptc_sys_now_ns();

	if (k->ended || !k->exit_wanted)
		return;
	if (k->term_ns)
		k->term_ns = PTC_MIN(k->term_ns, now + (at_once ? 0 : (int64_t)grace_ms * 500000));
	k->kill_ns = PTC_MIN(k->kill_ns, now + (int64_t)grace_ms * 1000000);
	ptc_workers_wake(w);
}

static void end_worker_locked(struct ptc_workers *w, struct group *g, struct worker *k)
{
	uint32_t grace = ptc_group_grace_ms(g);
	int64_t now = ptc_sys_now_ns();

	if (g->desc.mode == PTC_MODE_RESTART || g->dropping) {
		bool waits = g->given_up && stands(k, now, GIVEN_UP_NS); /* for a rank that is lost */

		ptc_worker_want_exit_locked(w, k, grace);
		if (g->given_up)
			hurry_locked(w, k, grace, waits);
		return;
	}
	if (k->phase == WORKER_WAITING) { /* has a slot, but was never told */
		ptc_worker_detach_locked(k);
		return;
	}
	k->term_ns = now + (int64_t)grace * 500000;
	k->kill_ns = now + (int64_t)grace * 1000000;
	if (k->page)
		atomic_exchange(&k->page->stop, 0);
	ptc_worker_advance_locked(w, k);
}

void ptc_workers_end_again_locked(struct ptc_workers *w)
{
	for (struct job *job = w->jobs; job; job = job->next)
		for (struct group *g = job->groups; g; g = g->next)
			for (size_t i = 0; i < g->desc.nranks && g->ending; i++)
				if (g->slots[i].worker && !g->slots[i].worker->ended)
					end_worker_locked(w, g, g->slots[i].worker);
}

static void end_group_locked(struct ptc_workers *w, struct group *g, bool dropping, bool given_up)
{
	struct ptc_error err = PTC_ERROR_INIT;

	if (g->ending && (g->dropping || !dropping) && (g->given_up || !given_up))
		return;
	g->ending = true;
	g->dropping |= dropping;
	g->given_up |= given_up;
	if (!g->given_up)
		ptc_group_let_go_locked(w, g);
	if (ptc_group_save(g, &err)) /* then a ptcd that starts anew waits to be told again */
		ptc_warn("workers", "job %s: %s", g->desc.job, err.text);
	for (size_t i = 0; i < g->desc.nranks; i++)
		if (g->slots[i].worker)
			end_worker_locked(w, g, g->slots[i].worker);
	if (g->given_up)
		ptc_group_end_held_locked(w, g);
	ptc_workers_changed_locked(w);
}

static void describe(const struct group *g, struct ptc_buf *b)
{
	for (size_t i = 0; i < g->desc.nranks && b->len < 300; i++)
		if (g->slots[i].worker)
			ptc_buf_printf(b, "%srank %u (pid %d)", b->len ? ", " : "", g->slots[i].rank.rank,
				       (int)g->slots[i].worker->process.pid);
}

int ptc_workers_end(struct ptc_workers *w, const struct ptc_group_key *key, const struct ptc_wait *wait,
		    struct ptc_error *err)
{
	int64_t deadline = ptc_workers_deadline(wait);
	struct group *g;
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	g = ptc_group_find_locked(w, key);
	if (g) {
		ptc_group_ref(g);
		end_group_locked(w, g, false, false);
		while (!rc && !over_locked(g)) {
			rc = ptc_workers_pause_locked(w, wait, deadline, err);
			if (rc) {
				struct ptc_buf who = PTC_BUF_INIT;

				describe(g, &who);
				ptc_error_wrap(err, "waiting for ranks to end: %s", who.data ? who.data : "");
				ptc_buf_done(&who);
			}
		}
		if (!rc)
			ptc_group_remove_locked(w, g);
		ptc_group_unref_locked(g);
	}
	pthread_mutex_unlock(&w->lock);
	return rc;
}

void ptc_workers_tell_end(struct ptc_workers *w, const struct ptc_group_key *key)
{
	struct group *g;

	pthread_mutex_lock(&w->lock);
	g = ptc_group_find_locked(w, key);
	if (g)
		end_group_locked(w, g, true, false);
	for (size_t i = 0; g && i < g->desc.nranks; i++) /* an interpreter takes seconds of a processor to exit */
		if (g->slots[i].worker && !g->slots[i].worker->ended)
			ptc_priority_yield(&g->slots[i].worker->process);
	ptc_workers_wake(w); /* it may be over already */
	pthread_mutex_unlock(&w->lock);
}

void ptc_standby_end_locked(struct ptc_workers *w, struct job *job)
{
	job->standby.want = 0;
	for (struct worker *k = job->workers; k; k = k->next)
		if (k->standby && !k->spawning)
			ptc_worker_want_exit_locked(w, k, WORKERS_GIVEN_UP_MS);
	if (job->standby.like)
		ptc_group_unref_locked(job->standby.like);
	job->standby.like = NULL;
}

static bool is_kept(const struct group *g, const struct ptc_group_key *keep, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (ptc_group_is(g, keep[i].generation, keep[i].incarnation))
			return true;
	return false;
}

void ptc_workers_drop(struct ptc_workers *w, const char *uuid, const struct ptc_group_key *keep, size_t n,
		      bool given_up)
{
	struct job *job;

	pthread_mutex_lock(&w->lock);
	job = ptc_workers_job_locked(w, uuid);
	if (job && !n && !given_up)
		ptc_standby_end_locked(w, job);
	for (struct group *g = job ? job->groups : NULL; g; g = g->next)
		if (!is_kept(g, keep, n))
			end_group_locked(w, g, true, given_up);
	for (struct worker *k = job ? job->workers : NULL; k; k = k->next) {
		bool wanted = false;

		if (k->ended || k->group || k->standby)
			continue;
		for (const struct group *g = job->groups; g && !wanted; g = g->next)
			wanted = !g->ending && ptc_group_wants_locked(w, g, k);
		if (!wanted)
			ptc_worker_want_exit_locked(w, k, WORKERS_GRACE_MS);
		if (given_up)
			hurry_locked(w, k, WORKERS_GIVEN_UP_MS, false);
	}
	pthread_mutex_unlock(&w->lock);
}

/* ---- before others start ------------------------------------------------------- */

/* A process of the job that was told to exit, and has not; NULL: none, or the job has ranks that stay. */
static const struct worker *leaver(const struct group *g)
{
	for (const struct group *other = g->job->groups; other; other = other->next)
		if (other != g && !other->ending)
			return NULL;
	for (const struct worker *k = g->job->workers; k; k = k->next)
		if (k->exit_wanted && !k->ended && k->group != g)
			return k;
	return NULL;
}

static int64_t last_killed_ns(const struct group *g)
{
	int64_t at = 0;

	for (const struct worker *k = g->job->workers; k; k = k->next)
		if (k->exit_wanted && !k->ended && k->group != g)
			at = PTC_MAX(at, k->kill_ns);
	return at;
}

/* A process of another job that has a device which a rank of g is to have alone; NULL: none. */
static const struct worker *occupant(const struct ptc_workers *w, const struct group *g, uint32_t *ret_device)
{
	for (const struct job *job = w->jobs; job; job = job->next)
		for (const struct worker *k = job->workers; k && job != g->job && !(job->shares && g->job->shares);
		     k = k->next) {
			*ret_device = k->group ? k->group->ranks[k->slot].device : k->device;
			for (size_t i = 0; i < g->desc.nranks && !k->ended && (k->group || k->ran); i++)
				if (g->desc.ranks[i].device == *ret_device)
					return k;
		}
	return NULL;
}

/* The cluster gives nobody a device that another job has. But ranks of a job that has been deleted, or of a node that
 * was away, may be here still: they were told to end, or are in a moment. */
static int wait_devices_locked(struct ptc_workers *w, const struct group *g, const struct ptc_wait *wait,
			       int64_t deadline_ns, struct ptc_error *err)
{
	int64_t until = ptc_sys_now_ns() + WORKERS_KILLED_MS * INT64_C(1000000);
	const struct worker *k;
	uint32_t device;
	char who[128];
	int rc;

	while ((k = occupant(w, g, &device)) && !g->removed && !g->ending) {
		snprintf(who, sizeof who, "device %u, which a rank of another job (pid %d of user %u) has", device,
			 (int)k->process.pid, (unsigned)k->job->uid);
		if (ptc_sys_now_ns() >= PTC_MAX(until, k->kill_ns + WORKERS_KILLED_MS * INT64_C(1000000)))
			return ptc_error_set(err, PTC_ESTATE, "no rank is started on %s still", who);
		rc = ptc_workers_pause_locked(w, wait, deadline_ns, err); /* after which k may be gone */
		if (rc)
			return ptc_error_wrap(err, "waiting for %s", who);
	}
	return 0;
}

int ptc_group_wait_others_locked(struct ptc_workers *w, const struct group *g, const struct ptc_wait *wait,
				 int64_t deadline_ns, struct ptc_error *err)
{
	int64_t until = last_killed_ns(g) + WORKERS_KILLED_MS * INT64_C(1000000);
	const struct worker *k;
	char who[96];
	int rc;

	while ((k = leaver(g)) && !g->removed && !g->ending) {
		snprintf(who, sizeof who, "rank %u (pid %d) of generation %llu", k->label.rank, (int)k->process.pid,
			 (unsigned long long)k->label.generation);
		if (ptc_sys_now_ns() >= until)
			return ptc_error_set(err, PTC_ESTATE,
					     "%s was killed, and has not ended %d s later: no rank is started beside "
					     "it, for it has memory and devices still",
					     who, WORKERS_KILLED_MS / 1000);
		rc = ptc_workers_pause_locked(w, wait, deadline_ns, err); /* after which k may be gone */
		if (rc)
			return ptc_error_wrap(err, "waiting for %s to exit", who);
	}
	if (k)
		return ptc_error_set(err, PTC_ESTATE, "the generation was ended before its processes were started");
	return wait_devices_locked(w, g, wait, deadline_ns, err);
}

/* ---- deleted jobs -------------------------------------------------------------- */

void ptc_workers_forget(struct ptc_workers *w, const char *uuid)
{
	struct job *job;

	ptc_workers_drop(w, uuid, NULL, 0, false);
	pthread_mutex_lock(&w->lock);
	job = ptc_workers_job_locked(w, uuid);
	if (job)
		job->forgotten = true;
	ptc_workers_wake(w);
	pthread_mutex_unlock(&w->lock);
}

void ptc_workers_jobs(struct ptc_workers *w, void (*fn)(void *arg, const char *uuid), void *arg)
{
	pthread_mutex_lock(&w->lock);
	for (const struct job *j = w->jobs; j; j = j->next)
		if (!j->forgotten)
			fn(arg, j->uuid);
	pthread_mutex_unlock(&w->lock);
}

struct folder {
	char dir[PTC_EXEC_PATH_MAX];
};

/* What is left of processes that have ended, cgroups too; then the folder. */
static void remove_folder(struct ptc_workers *w, void *arg)
{
	struct folder *f = arg;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_process p;
	struct dirent *entry;
	char path[PTC_EXEC_PATH_MAX * 2];
	DIR *d;

	(void)w;
	snprintf(path, sizeof path, "%s/processes", f->dir);
	d = opendir(path);
	while (d && (entry = readdir(d))) {
		snprintf(path, sizeof path, "%s/processes/%.64s", f->dir, entry->d_name);
		if (entry->d_name[0] != '.' && ptc_process_adopt(path, &p, NULL) == 0)
			ptc_process_remove(&p, false);
	}
	if (d)
		closedir(d);
	if (ptc_sys_remove_tree(f->dir, "workers.job-gone", &err)) /* tried again after the next start */
		ptc_warn("workers", "%s", err.text);
	ptc_free(f);
}

/* Nothing of it runs, connects or is looked at any more. */
static bool all_over(struct ptc_workers *w, const struct job *job)
{
	if (job->held || job->groups)
		return false;
	for (const struct worker *k = job->workers; k; k = k->next)
		if (!k->ended)
			return false;
	for (const struct conn *c = w->conns; c; c = c->next)
		if (c->job == job)
			return false;
	return true;
}

void ptc_workers_forgotten_locked(struct ptc_workers *w)
{
	for (struct job **at = &w->jobs; *at;) {
		struct job *job = *at;
		struct folder *f;

		if (!job->forgotten || !all_over(w, job) || !(f = ptc_calloc(1, sizeof *f))) {
			at = &job->next;
			continue;
		}
		snprintf(f->dir, sizeof f->dir, "%s", job->dir);
		if (!ptc_workers_task_locked(w, remove_folder, f)) {
			ptc_free(f);
			return;
		}
		*at = job->next;
		w->njobs--;
		ptc_workers_job_free(job);
		ptc_workers_changed_locked(w);
	}
}

static void signal_worker(struct worker *k, int sig)
{
	struct ptc_error err = PTC_ERROR_INIT;

	if (sig == SIGKILL)
		ptc_priority_hurry(&k->process);
	if (ptc_process_signal(&k->process, sig, &err))
		ptc_warn("workers", "job %s: process %d: %s", k->job->uuid, (int)k->process.pid, err.text);
}

/* ---- devices that fail --------------------------------------------------------- */

void ptc_workers_device_failed(struct ptc_workers *w, uint32_t device, pid_t pid, const char *why)
{
	int64_t now = ptc_sys_now_ns();

	pthread_mutex_lock(&w->lock);
	for (struct job *job = w->jobs; job; job = job->next)
		for (struct worker *k = job->workers; k; k = k->next) {
			if (k->ended || !k->group || k->bad_ns || k->group->ranks[k->slot].device != device ||
			    (pid ? k->pid != pid : !stands(k, now, STANDS_NS)))
				continue;
			k->bad_ns = now + (pid ? TELLS_NS : 0);
			k->bad_device = device;
			snprintf(k->bad_why, sizeof k->bad_why, "%s", why);
		}
	pthread_mutex_unlock(&w->lock);
}

/* A switch that reads its memory says first what it has found there. */
static void end_bad_locked(struct ptc_workers *w, struct worker *k, int64_t now_ns)
{
	struct group *g = k->group;

	if (!g || g->ending || g->ranks[k->slot].device != k->bad_device) {
		k->bad_ns = 0; /* it has another device since, or is ended anyhow */
		return;
	}
	if (now_ns < k->bad_ns || g->viewed)
		return;
	ptc_group_device_failed_locked(w, g, k, k->slot, k->bad_why);
	signal_worker(k, SIGKILL);
	k->bad_ns = now_ns + KILL_AGAIN_NS;
}

void ptc_workers_signals_locked(struct ptc_workers *w, int64_t now_ns)
{
	for (struct job *job = w->jobs; job; job = job->next) {
		struct group *next;

		for (struct worker *k = job->workers; k; k = k->next) {
			if (k->ended || k->spawning || k->reaping)
				continue;
			if (k->bad_ns)
				end_bad_locked(w, k, now_ns);
			if (k->term_ns && now_ns >= k->term_ns) {
				signal_worker(k, SIGTERM);
				k->term_ns = 0;
			}
			if (k->kill_ns && now_ns >= k->kill_ns) {
				signal_worker(k, SIGKILL);
				k->kill_ns = now_ns + KILL_AGAIN_NS;
			}
		}
		for (struct group *g = job->groups; g; g = next) {
			next = g->next;
			if (g->dropping && g->refs == 1 && over_locked(g))
				ptc_group_remove_locked(w, g);
		}
	}
}
