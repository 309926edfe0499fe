/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of daemon/workers, and its life: sockets, connections, ended processes, times. Happy path: poll, act under
 * the lock, signal `changed`. Failure modes: an accept or a poll that fails is tried again at the next round; memory
 * that runs out closes the connection it was for, which its rank makes anew. */
#include "daemon/workers/group/worker_jobs.h"
#include "daemon/workers/session/rank_conn.h"
#include "daemon/workers/session/session.h"
#include "daemon/workers/state/group_find.h"
#include "daemon/workers/state/rank_events.h"
#include "daemon/workers/state/workers_sync.h"
#include "daemon/workers/workers.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define POLLED_MAX (1u << 16)

/* ---- loop -------------------------------------------------------------------- */

struct polled {
	struct pollfd *fds;
	struct {
		void *at; /* struct job, worker or conn; by kind */
		char kind;
	} * what;
	size_t n, fds_cap, what_cap;
};

static void polled_add(struct polled *p, int fd, short events, char kind, void *what)
{
	if (p->n == POLLED_MAX || !PTC_ROOM(p->fds, p->n + 1, p->fds_cap) || !PTC_ROOM(p->what, p->n + 1, p->what_cap))
		return; /* it is polled when memory is there again */
	p->fds[p->n] = (struct pollfd){ .fd = fd, .events = events };
	p->what[p->n].at = what;
	p->what[p->n++].kind = kind;
}

static void polled_fill_locked(struct ptc_workers *w, struct polled *p)
{
	p->n = 0;
	polled_add(p, w->wake, POLLIN, 'e', w);
	for (struct job *j = w->jobs; j; j = j->next) {
		polled_add(p, j->listen, POLLIN, 'l', j);
		for (struct worker *k = j->workers; k; k = k->next)
			if (!k->ended && !k->reaping && k->process.pidfd >= 0)
				polled_add(p, k->process.pidfd, POLLIN, 'p', k);
	}
	for (struct conn *c = w->conns; c; c = c->next)
		polled_add(p, c->link.fd, (short)((ptc_conn_reads(c) ? POLLIN : 0) | (c->out ? POLLOUT : 0)), 'c', c);
}

static void conn_event_locked(struct ptc_workers *w, struct conn *c, short events)
{
	if (events & POLLOUT)
		ptc_conn_flush_locked(c);
	if (events & (POLLHUP | POLLERR) && !ptc_conn_reads(c))
		c->broken = true; /* it will never read what waits for it */
	if (events & (POLLIN | POLLHUP | POLLERR))
		ptc_conn_read_locked(w, c);
}

/* Objects are only freed by this thread while it holds the lock, or by API calls (workers, jobs): what poll returned is
 * compared with what is there now. */
static bool still_there(const struct ptc_workers *w, char kind, const void *what, int fd)
{
	if (kind == 'c') {
		for (const struct conn *c = w->conns; c; c = c->next)
			if (c == what)
				return c->link.fd == fd;
		return false;
	}
	for (const struct job *j = w->jobs; j; j = j->next) {
		if (kind == 'l' && j == what)
			return j->listen == fd;
		for (const struct worker *k = kind == 'p' ? j->workers : NULL; k; k = k->next)
			if (k == what)
				return k->process.pidfd == fd;
	}
	return false;
}

static void handle_locked(struct ptc_workers *w, struct polled *p)
{
	uint64_t n;

	for (size_t i = 0; i < p->n; i++) {
		void *at = p->what[i].at;
		const char kind = p->what[i].kind;

		if (!p->fds[i].revents)
			continue;
		if (kind == 'e') {
			if (read(w->wake, &n, sizeof n) < 0 && errno != EAGAIN)
				ptc_debug("workers", "eventfd: %s", strerror(errno));
			continue;
		}
		if (!still_there(w, kind, at, p->fds[i].fd))
			continue;
		if (kind == 'l')
			ptc_conn_accept_locked(w, at);
		else if (kind == 'p')
			ptc_worker_exited_locked(w, at);
		else
			conn_event_locked(w, at, p->fds[i].revents);
	}
}

static void close_broken_locked(struct ptc_workers *w, int64_t now_ns)
{
	struct conn **at = &w->conns;

	while (*at) {
		struct conn *c = *at;
		bool stranger = !c->worker && now_ns - c->since_ns > WORKERS_HELLO_MS * INT64_C(1000000);

		if (!c->broken && !stranger && !(c->closing && !c->out)) {
			at = &c->next;
			continue;
		}
		*at = c->next;
		ptc_conn_close_locked(w, c);
	}
}

/* True: ranks are being frozen. */
static bool times_locked(struct ptc_workers *w, int64_t now_ns)
{
	for (struct job *j = w->jobs; j; j = j->next)
		for (struct worker *k = j->workers; k; k = k->next) {
			ptc_worker_sample_locked(k, now_ns);
			ptc_worker_left_locked(w, k, now_ns);
			ptc_rendezvous_expire_locked(k, now_ns);
		}
	for (struct job *j = w->jobs; j; j = j->next)
		for (struct group *g = j->groups; g; g = g->next) {
			ptc_group_stalled_locked(w, g, now_ns);
			ptc_group_hangs_locked(w, g);
		}
	ptc_workers_standbys_locked(w, now_ns);
	ptc_workers_signals_locked(w, now_ns);
	close_broken_locked(w, now_ns);
	ptc_workers_forgotten_locked(w);
	return ptc_workers_holds_locked(w, now_ns);
}

/* Whether ranks of the job are here, whose memory may be copied. */
static bool copier_wanted(void *workers, const char *uuid)
{
	const struct job *job = ptc_workers_job_locked(workers, uuid);

	for (const struct worker *k = job ? job->workers : NULL; k; k = k->next)
		if (!k->ended)
			return true;
	return false;
}

static void *loop(void *workers)
{
	struct ptc_workers *w = workers;
	struct polled p = { 0 };
	bool copiers = false, holding = false;

	pthread_mutex_lock(&w->lock);
	while (!w->quit) {
		int timeout = holding ? WORKERS_LOOK_MS : w->jobs || w->conns || copiers ? WORKERS_SAMPLE_MS : -1;

		polled_fill_locked(w, &p);
		pthread_mutex_unlock(&w->lock);
		copiers = ptc_copiers_look(&w->copiers);
		if (poll(p.fds, p.n, timeout) < 0)
			p.n = 0;
		pthread_mutex_lock(&w->lock);
		handle_locked(w, &p);
		holding = times_locked(w, ptc_sys_now_ns());
		ptc_copiers_end(&w->copiers, copier_wanted, w);
		pthread_cond_broadcast(&w->changed);
	}
	pthread_mutex_unlock(&w->lock);
	ptc_free(p.fds);
	ptc_free(p.what);
	return NULL;
}

/* ---- life --------------------------------------------------------------------- */

static int init(struct ptc_workers *w, const struct ptc_workers_env *env, struct ptc_error *err)
{
	int rc;

	w->env = *env;
	w->event_end = &w->event;
	snprintf(w->node, sizeof w->node, "%s", env->node);
	ptc_copiers_init(&w->copiers, env->copy_ms);
	pthread_mutex_init(&w->lock, NULL);
	ptc_cond_init(&w->changed);
	ptc_thread_count_init(&w->tasks);
	w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	w->dir = ptc_strdup(env->dir);
	if (w->wake < 0)
		return ptc_error_errno(err, errno, "eventfd");
	if (!w->dir)
		return ptc_nomem(err);
	if (env->cgroup)
		snprintf(w->cgroup, sizeof w->cgroup, "%s", env->cgroup);
	else
		ptc_cgroup_find(w->cgroup, sizeof w->cgroup);
	rc = ptc_device_copier_new(&w->env, &w->gpu, err);
	return rc ? rc : ptc_sys_mkdirs(env->dir, 0711, err);
}

int ptc_workers_new(const struct ptc_workers_env *env, struct ptc_workers **ret_workers, struct ptc_error *err)
{
	struct ptc_workers *w = ptc_calloc(1, sizeof *w);
	int rc;

	if (!w)
		return ptc_nomem(err);
	rc = init(w, env, err);
	if (!rc) {
		pthread_mutex_lock(&w->lock);
		rc = ptc_workers_adopt(w, err);
		if (!rc)
			ptc_workers_end_again_locked(w);
		pthread_mutex_unlock(&w->lock);
	}
	if (!rc) {
		rc = ptc_thread_start(&w->loop, "ptc-ranks", loop, w, err);
		w->loop_runs = rc == 0;
	}
	if (!rc) {
		rc = ptc_thread_start(&w->reporter, "ptc-rank-events", ptc_workers_reporter, w, err);
		w->reporter_runs = rc == 0;
	}
	if (rc) {
		ptc_workers_free(w);
		return rc;
	}
	*ret_workers = w;
	return 0;
}

void ptc_workers_silence(struct ptc_workers *w)
{
	if (!w || !w->reporter_runs)
		return;
	pthread_mutex_lock(&w->lock);
	w->silent = true;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->reporter, NULL);
	w->reporter_runs = false;
}

struct ptc_workers *ptc_workers_free(struct ptc_workers *w)
{
	if (!w)
		return NULL;
	pthread_mutex_lock(&w->lock);
	ptc_workers_let_all_go_locked(w); /* a ptcd that starts anew knows nothing of them */
	w->quit = true;
	ptc_workers_changed_locked(w);
	pthread_mutex_unlock(&w->lock);
	ptc_thread_count_done(&w->tasks);
	if (w->loop_runs)
		pthread_join(w->loop, NULL);
	ptc_workers_silence(w);
	while (w->conns) {
		struct conn *c = w->conns;

		w->conns = c->next;
		ptc_conn_close_locked(w, c);
	}
	while (w->jobs) {
		struct job *job = w->jobs;

		w->jobs = job->next;
		ptc_workers_job_free(job);
	}
	while (w->event) {
		struct event_item *n = w->event;

		w->event = n->next;
		ptc_free(n);
	}
	ptc_copiers_done(&w->copiers);
	ptc_device_copier_free(w->gpu);
	ptc_close(&w->wake);
	pthread_cond_destroy(&w->changed);
	pthread_mutex_destroy(&w->lock);
	ptc_free(w->dir);
	ptc_free(w);
	return NULL;
}
