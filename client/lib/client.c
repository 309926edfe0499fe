/* SPDX-License-Identifier: Apache-2.0 */
/* libptc: opens and closes a client, waits for generations (ptc_next), leaves. Happy path: open starts our thread,
 * which shakes hands with ptcd; next waits until that thread was given a generation. Failure modes: no ptcd within
 * the time allowed (LOST, naming socket and variable), a token that names no slot (REFUSED), calls out of order
 * (INVALID). */
#include "client/lib/link.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LEAVE_MS        5000 /* for ptcd to say that it holds the rank */
#define OPEN_TIMEOUT_MS 30000
#define STACK_BYTES     (512u << 10) /* a frame of 64 KiB lies on it */

_Static_assert((int)PTC_LOCAL_R_REFUSED == PTC_R_REFUSED && (int)PTC_LOCAL_R_LOST == PTC_R_LOST &&
		       (int)PTC_LOCAL_R_LIMIT == PTC_R_LIMIT && (int)PTC_LOCAL_R_TIMEOUT == PTC_R_TIMEOUT &&
		       (int)PTC_LOCAL_R_SYSTEM == PTC_R_SYSTEM && (int)PTC_LOCAL_R_VERSION == PTC_R_VERSION &&
		       (int)PTC_LOCAL_R_STALE == PTC_R_STALE,
	       "what ptcd answers is what ptc.h says");

static pthread_once_t forks_once = PTHREAD_ONCE_INIT;

static void count_fork(void)
{
	atomic_fetch_add(&ptc_client_forks, 1);
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, count_fork);
}

static void wake(ptc_client *c)
{
	ssize_t n = send(c->wake[1].fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);

	(void)n; /* a full socket wakes as well */
}

void ptc_client_wake_locked(ptc_client *c)
{
	ptc_client_fds_closed_locked(c);
	if (ptc_client_fd_is_ours(&c->wake[1]))
		wake(c);
}

const char *ptc_version(void)
{
	return PTC_VERSION;
}

/* all that belongs to a generation */
static void forget_locked(ptc_client *c)
{
	for (size_t i = 0; i < c->ntensors; i++) {
		free(c->tensors[i].name);
		free(c->tensors[i].field);
		free(c->tensors[i].boxes);
	}
	for (size_t i = 0; i < c->nputs; i++)
		free(c->puts[i].value);
	free(c->tensors);
	free(c->puts);
	ptc_device_clear(&c->devices);
	c->tensors = NULL;
	c->puts = NULL;
	c->ntensors = c->tensors_cap = c->nregions = c->nputs = c->puts_cap = 0;
	c->promise.shaped_at = ++c->promise.set_at;
	ptc_client_rank_state_clear(c->set);
	ptc_client_rank_state_clear(c->got);
	c->get.active = false;
	c->does = 0;
	c->layout = c->ended = c->restored = c->declined = c->finished = c->stop_staged = false;
	memset(&c->sent, 0, sizeof c->sent);
	ptc_client_staging_done(&c->offered);
	c->huge.tensor = c->huge.box = 0;
	c->huge.at = 0;
}

/* What ptc_client_keep made, or its substitute on the heap. */
static void keep_done(ptc_client *c)
{
	if (c->kept.map) {
		munmap(c->kept.map, c->kept.bytes);
	} else {
		free(c->promise.said[0].out.data);
		free(c->promise.said[1].out.data);
	}
	ptc_client_close_guarded(&c->kept.fd);
}

static void release(ptc_client *c)
{
	if (c->set && c->got)
		forget_locked(c);
	ptc_client_staging_done(&c->staging);
	ptc_samples_done(&c->promise.samples);
	free(c->set);
	free(c->got);
	ptc_local_conn_done(&c->conn, free);
	free(c->out.data);
	keep_done(c);
	if (c->page && !c->marks.registered)
		munmap(c->page, PTC_LOCAL_PAGE);
	ptc_client_close_guarded(&c->page_fd);
	ptc_client_close_guarded(&c->wake[0]);
	ptc_client_close_guarded(&c->wake[1]);
	pthread_cond_destroy(&c->changed);
	pthread_mutex_destroy(&c->lock);
	free(c->socket);
	free(c);
}

static void set_leaves(ptc_client *c, bool yes)
{
	pthread_mutex_lock(&c->lock);
	c->leaves = yes && c->phase == PHASE_RUNNING && !c->fatal;
	c->sent.leaves &= yes;
	ptc_client_wake_locked(c);
	pthread_mutex_unlock(&c->lock);
}

/* ptcd's answer; PTC_LOCAL_LEAVE_GO if there is none in time: ptcd does not know how to hold ranks, or has gone. */
static uint32_t leave(ptc_client *c, bool ready)
{
	int64_t waited_ms = 0;
	uint32_t answer = PTC_LOCAL_LEAVE_ASKS;

	if (c && c->running && c->promise.made && !ptc_client_forked(c))
		ptc_promise_compare(&c->promise, c->page, c->next_step);
	if (!c || !c->running || !c->stepped || ptc_client_forked(c) || !atomic_load(&c->page->survives) ||
	    !atomic_load(&c->page->knows_survivors) || atomic_exchange(&c->page->leaving, PTC_LOCAL_LEAVE_ASKS))
		return PTC_LOCAL_LEAVE_GO;
	atomic_store(&c->page->ready, ready);
	set_leaves(c, true);
	while (answer == PTC_LOCAL_LEAVE_ASKS) {
		answer = atomic_load(&c->page->leaving);
		if (waited_ms > LEAVE_MS + CLIENT_HELD_MAX_MS || (waited_ms > LEAVE_MS && !atomic_load(&c->page->hold)))
			break;
		ptc_client_nap(&waited_ms);
	}
	set_leaves(c, false);
	atomic_store(&c->page->ready, 0);
	/* From here on the caller may free or change its memory, so nobody may take it later. */
	if (answer != PTC_LOCAL_LEAVE_UPDATES)
		atomic_store(&c->page->survives, 0);
	atomic_store(&c->page->leaving, 0); /* it may have to give up once more, after another boundary */
	return answer;
}

void ptc_leave(ptc_client *c)
{
	(void)leave(c, false);
}

int ptc_update_alone(ptc_client *c, int gone)
{
	if (!c || !c->running || !c->stepped || ptc_client_forked(c))
		return 0;
	if (gone)
		return leave(c, true) == PTC_LOCAL_LEAVE_UPDATES;
	return atomic_load(&c->page->hold) && ptc_local_may_update(c->page, c->next_step - 1);
}

ptc_client *ptc_close(ptc_client *c)
{
	if (!c || ptc_client_forked(c))
		return NULL; /* in a forked child all of it belongs to the parent */
	ptc_leave(c);
	if (c->page)
		ptc_promise_unpublish(&c->promise, c->page);
	pthread_mutex_lock(&c->lock);
	c->quit = true;
	ptc_client_wake_locked(c);
	pthread_mutex_unlock(&c->lock);
	pthread_join(c->thread, NULL);
	release(c);
	return NULL;
}

static bool make_wake(ptc_client *c)
{
	int fds[2];
	bool ours;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0)
		return false;
	ours = ptc_client_guard_fd(&c->wake[0], fds[0]);
	return ptc_client_guard_fd(&c->wake[1], fds[1]) &&
	       ours; /* the second one too if the first failed: it must be closed */
}

static ptc_client *allocate(void)
{
	ptc_client *c = calloc(1, sizeof *c);
	pthread_condattr_t attr;

	if (!c)
		return NULL;
	c->page_fd.fd = c->kept.fd.fd = c->conn_fd.fd = c->wake[0].fd = c->wake[1].fd = c->out_fd = -1;
	ptc_local_conn_init(&c->conn, -1, realloc);
	c->out.grow = realloc;
	c->forks = atomic_load(&ptc_client_forks);
	pthread_mutex_init(&c->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&c->changed, &attr);
	pthread_condattr_destroy(&attr);
	c->set = calloc(1, sizeof *c->set);
	c->got = calloc(1, sizeof *c->got);
	if (make_wake(c) && c->set && c->got)
		return c;
	release(c);
	return NULL;
}

static int start_thread(ptc_client *c)
{
	sigset_t all, before;
	pthread_attr_t attr;
	int e;

	sigfillset(&all);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	e = pthread_create(&c->thread, &attr, ptc_client_link, c);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return e;
}

static int wait_welcome(ptc_client *c, uint32_t timeout_ms)
{
	struct timespec until;
	int rc = 0, e = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += timeout_ms / 1000;
	until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	pthread_mutex_lock(&c->lock);
	while (!c->welcomed && !c->fatal && e == 0)
		e = pthread_cond_timedwait(&c->changed, &c->lock, &until);
	if (c->fatal)
		rc = ptc_client_fail(NULL, c->fatal, "%s", c->fatal_text);
	else if (!c->welcomed)
		rc = ptc_client_fail(NULL, PTC_R_LOST, "no ptcd answers at %s (from %s): %s", c->socket, c->socket_from,
				     c->link_text[0] ? c->link_text : "it did not answer in time");
	pthread_mutex_unlock(&c->lock);
	return rc;
}

static int choose(const struct ptc_open_options *o, const char **ret_socket, const char **ret_token)
{
	const char *socket = o && o->socket ? o->socket : getenv("PTC_WORKER_SOCKET");
	const char *token = o && o->token ? o->token : getenv("PTC_WORKER_TOKEN");

	if (o && o->size < sizeof *o)
		return ptc_client_fail(NULL, PTC_R_INVALID, "options.size is %zu, not sizeof (struct ptc_open_options)",
				       o->size);
	if (!socket || !*socket)
		return ptc_client_fail(
			NULL, PTC_R_LOST,
			"PTC_WORKER_SOCKET is not set: this process was not started by ptcd (see ptcctl run)");
	if (!token || !*token)
		return ptc_client_fail(
			NULL, PTC_R_LOST,
			"PTC_WORKER_TOKEN is not set: this process was not started by ptcd (see ptcctl run)");
	if (strlen(token) != PTC_LOCAL_TOKEN || strspn(token, "0123456789abcdef") != PTC_LOCAL_TOKEN)
		return ptc_client_fail(NULL, PTC_R_INVALID, "the token is not 32 hex digits");
	*ret_socket = socket;
	*ret_token = token;
	return 0;
}

int ptc_open(const struct ptc_open_options *options, ptc_client **ret_client)
{
	const char *socket = NULL, *token = NULL;
	ptc_client *c;
	int rc;

	if (!ret_client)
		return ptc_client_fail(NULL, PTC_R_INVALID, "ret_client is NULL");
	rc = choose(options, &socket, &token);
	if (rc)
		return rc;
	pthread_once(&forks_once, watch_forks);
	c = allocate();
	/* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): choose() has set it, or returned an error's code */
	if (!c || !(c->socket = strdup(socket))) {
		if (c)
			release(c);
		return ptc_client_fail(NULL, PTC_R_MEMORY, "out of memory");
	}
	c->socket_from = options && options->socket ? "options" : "PTC_WORKER_SOCKET";
	memcpy(c->token, token, PTC_LOCAL_TOKEN);
	rc = start_thread(c);
	if (rc) {
		release(c);
		return ptc_client_fail(NULL, PTC_R_SYSTEM, "cannot start a thread: %s", strerror(rc));
	}
	rc = wait_welcome(c, options && options->timeout_ms ? options->timeout_ms : OPEN_TIMEOUT_MS);
	if (rc) {
		ptc_close(c);
		return rc;
	}
	*ret_client = c;
	return 0;
}

static void tell(const ptc_client *c, struct ptc_generation *ret)
{
	const struct ptc_local_generation *g = &c->generation;
	size_t size = ret->size;

	*ret = (struct ptc_generation){
		.size = size,
		.generation = g->generation,
		.incarnation = g->incarnation,
		.start_step = g->start_step,
		.has_state = g->has_state,
		.rank = g->rank,
		.world = g->world,
		.local_rank = g->local_rank,
		.local_world = g->local_world,
		.node_rank = g->node_rank,
		.nodes = g->nodes,
		.device = g->device,
		.tp = g->degrees[0],
		.pp = g->degrees[1],
		.dp = g->degrees[2],
		.cp = g->degrees[3],
		.ep = g->degrees[4],
		.etp = g->degrees[5],
		.tp_rank = g->coordinates[0],
		.pp_rank = g->coordinates[1],
		.dp_rank = g->coordinates[2],
		.cp_rank = g->coordinates[3],
		.zero = g->zero,
		.micro_batch = g->micro_batch,
		.global_batch = g->global_batch,
		.config = c->config,
		.job = c->job,
	};
	ptc_client_sampling_is(c);
}

int ptc_next(ptc_client *c, struct ptc_generation *ret_generation)
{
	int rc = ptc_client_enter(c);

	if (rc)
		return rc;
	if (!ret_generation || ret_generation->size < sizeof *ret_generation)
		return ptc_client_fail(c, PTC_R_INVALID, "ret_generation is NULL, or its size is not set");
	c->running = c->stepped = false;
	c->on_stop = NULL;
	ptc_client_staging_done(&c->staging);
	ptc_promise_over(&c->promise, c->page);
	atomic_store(&c->page->state, 0);
	atomic_store(&c->page->marks, PTC_LOCAL_MARKS_NONE);
	atomic_store(&c->page->device, 0);
	c->marks.on = false;
	pthread_mutex_lock(&c->lock);
	if (c->phase != PHASE_OVER && !c->fatal) {
		forget_locked(c);
		c->phase = PHASE_NEXT;
		ptc_client_wake_locked(c);
	}
	while (c->phase == PHASE_NEXT && !c->fatal)
		pthread_cond_wait(&c->changed, &c->lock);
	if (c->phase == PHASE_BUILDING) {
		tell(c, ret_generation);
		rc = 1;
	} else if (c->phase != PHASE_OVER && c->fatal != PTC_R_STALE) {
		rc = ptc_client_fatal_locked(c);
	}
	pthread_mutex_unlock(&c->lock);
	return rc;
}
