/* SPDX-License-Identifier: Apache-2.0 */
/* Starts and ends gRPC's library, and has completion queues and the core's log.
 *
 * Happy path: ptc_rpc_init() once; the core's own threads have all signals
 * blocked as well as ours (base/sys/thread.h).
 *
 * Failure modes: the polling thread cannot be started (the process ends). The core's log lines go to our debug log. The
 * core's last error line is kept for each thread, because some functions of the core give their reason only there. */
#include "rpc/internal.h"

#include "base/log.h"
#include "base/sys/thread.h"

#include <grpc/support/log.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TICK_EVERY_MS 200
#define TICK_POLL_MS  10
#define CORE_LOG_MAX  256 /* enough for the reason, short enough for an error line */

#define RESOLVER    "GRPC_DNS_RESOLVER"
#define BACKUP_POLL "GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS"

static _Thread_local char core_log[CORE_LOG_MAX];

/* The core logs nested errors as TEXT {key:value, ..., children:[...]}. What
 * helps a person is the operating system's word if there is one, else TEXT. */
static void keep_reason(const char *message)
{
	static const char os_error[] = "os_error:\"";
	const char *p = strstr(message, os_error);
	size_t n;

	if (p)
		p += strlen(os_error);
	n = p ? strcspn(p, "\"") : strcspn(message, "{\n");
	snprintf(core_log, sizeof core_log, "%.*s", (int)n, p ? p : message);
}

static void on_core_log(gpr_log_func_args *args)
{
	if (args->severity == GPR_LOG_SEVERITY_ERROR)
		keep_reason(args->message);
	ptc_debug("grpc", "%s", args->message);
}

void ptc_rpc_core_log_clear(void)
{
	core_log[0] = '\0';
}

const char *ptc_rpc_core_log(void)
{
	return core_log;
}

static void signals_block(sigset_t *ret_old)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, ret_old);
}

grpc_call_error ptc_rpc_slot_start(struct ptc_rpc_slot *slot, grpc_call *call, const grpc_op *ops, size_t nops)
{
	grpc_call_error e;

	ptc_assert(!slot->pending);
	slot->pending = true;
	e = grpc_call_start_batch(call, ops, nops, slot, NULL);
	if (e != GRPC_CALL_OK)
		slot->pending = false;
	return e;
}

static bool cq_next(grpc_completion_queue *cq, gpr_timespec until)
{
	grpc_event ev = grpc_completion_queue_next(cq, until, NULL);
	struct ptc_rpc_slot *slot = ev.tag;

	if (ev.type != GRPC_OP_COMPLETE)
		return false;
	slot->pending = false;
	slot->ok = ev.success;
	return true;
}

bool ptc_rpc_slot_wait(grpc_completion_queue *cq, struct ptc_rpc_slot *slot)
{
	while (slot->pending)
		cq_next(cq, gpr_inf_future(GPR_CLOCK_MONOTONIC));
	return slot->ok;
}

bool ptc_rpc_cq_poll(grpc_completion_queue *cq, int wait_ms)
{
	gpr_timespec until = gpr_inf_past(GPR_CLOCK_MONOTONIC); /* "now" is rounded up, and waits a millisecond */

	if (wait_ms > 0)
		until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(wait_ms, GPR_TIMESPAN));
	return cq_next(cq, until);
}

void ptc_rpc_cq_free(grpc_completion_queue *cq)
{
	if (!cq)
		return;
	grpc_completion_queue_shutdown(cq);
	while (grpc_completion_queue_next(cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type != GRPC_QUEUE_SHUTDOWN)
		;
	grpc_completion_queue_destroy(cq);
}

/* The core reads sockets only while some thread waits on some queue. When all
 * of ours are in handlers or between calls, pings would go unanswered and our
 * own be taken for lost. So one thread polls now and then, for a moment; a
 * permanent one would take turns with the threads that move bulk data. */
static struct {
	grpc_completion_queue *cq;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool stop;
} tick = { .lock = PTHREAD_MUTEX_INITIALIZER };

static bool tick_sleep(void)
{
	bool stop;

	pthread_mutex_lock(&tick.lock);
	if (!tick.stop)
		ptc_cond_wait_ms(&tick.wake, &tick.lock, TICK_EVERY_MS);
	stop = tick.stop;
	pthread_mutex_unlock(&tick.lock);
	return !stop;
}

static void *tick_main(void *arg)
{
	(void)arg;
	while (tick_sleep())
		ptc_rpc_cq_poll(tick.cq, TICK_POLL_MS);
	return NULL;
}

/* For grpc_init, which reads the environment now; children must not inherit it. A user's own setting stays. */
static bool core_setting(const char *name, const char *value)
{
	return !getenv(name) && setenv(name, value, 0) == 0;
}

static void first_init(void)
{
	bool resolver, poll;
	sigset_t old;

	signals_block(&old); /* the core's own threads inherit it */
	gpr_set_log_function(on_core_log);
	/* The C library's resolver: /etc/hosts and nsswitch as everywhere else, and c-ares 1.18 leaks each "localhost".
	 */
	resolver = core_setting(RESOLVER, "native");
	/* While calls fail fast nobody polls a connection that is being made; the core then looks at it every 5 s, by
	 * which time its handshake has timed out. */
	poll = core_setting(BACKUP_POLL, "100");
	grpc_init();
	if (resolver)
		unsetenv(RESOLVER);
	if (poll)
		unsetenv(BACKUP_POLL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	tick.stop = false;
	ptc_cond_init(&tick.wake);
	tick.cq = grpc_completion_queue_create_for_next(NULL);
	ptc_require(ptc_thread_start(&tick.thread, "ptc-rpc-tick", tick_main, NULL, NULL) == 0);
}

/* ---- memory -------------------------------------------------------------------- */

static grpc_resource_quota *quota; /* NULL: unbounded; set before any thread of ours uses it */

void ptc_rpc_memory_limit_set(uint64_t bytes)
{
	if (!quota)
		quota = grpc_resource_quota_create("ptc");
	grpc_resource_quota_resize(quota, (size_t)bytes);
}

void ptc_rpc_args_memory(struct ptc_rpc_args *a)
{
	static char key[] = GRPC_ARG_RESOURCE_QUOTA;

	if (!quota)
		return;
	ptc_require(a->count < PTC_RPC_MAX_ARGS);
	a->list[a->count++] = (grpc_arg){ .type = GRPC_ARG_POINTER,
					  .key = key,
					  .value.pointer = { .p = quota, .vtable = grpc_resource_quota_arg_vtable() } };
}

static void last_shutdown(void)
{
	pthread_mutex_lock(&tick.lock);
	tick.stop = true;
	pthread_cond_signal(&tick.wake);
	pthread_mutex_unlock(&tick.lock);
	pthread_join(tick.thread, NULL);
	pthread_cond_destroy(&tick.wake);
	ptc_rpc_cq_free(tick.cq);
	if (quota)
		grpc_resource_quota_unref(quota);
	quota = NULL;
	grpc_shutdown_blocking();
}

/* A program and a library in it may both use us. */
static pthread_mutex_t users_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned users;

void ptc_rpc_init(void)
{
	pthread_mutex_lock(&users_lock);
	if (users++ == 0)
		first_init();
	pthread_mutex_unlock(&users_lock);
}

void ptc_rpc_shutdown(void)
{
	pthread_mutex_lock(&users_lock);
	ptc_require(users > 0);
	if (--users == 0)
		last_shutdown();
	pthread_mutex_unlock(&users_lock);
}
