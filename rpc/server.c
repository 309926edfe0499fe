/* SPDX-License-Identifier: Apache-2.0 */
/* The server: listeners, threads, shutdown.
 *
 * Each thread has its own completion queue, takes one call at a time and runs
 * its handler. Only IDLE_THREADS of them wait in the core at any time: a
 * thread that takes a call wakes or starts another, up to max_calls; the rest
 * sleep on a condition variable, because every thread that waits in the core
 * takes part in polling, and passing sockets around among many is slow.
 *
 *   parked --wake--> idle (waits in the core) --call--> busy --done--> parked or idle
 *
 * Happy path: new, method..., listen..., start, free.
 * Failure modes: an address in use or an unusable certificate at listen time
 * (PTC_EIO, with the core's reason); no thread at start (PTC_EIO); later a
 * thread that cannot be started only means that calls wait longer. Shutdown:
 * no new calls, a grace time, then every call is cancelled; handlers must
 * return when ptc_rpc_call_cancelled() is true or recv or send fails. */
#include "rpc/internal.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "base/log.h"

#include <grpc/grpc_posix.h>
#include <stdio.h>
#include <string.h>

#define IDLE_THREADS         1     /* the next is woken as soon as this one has a call */
#define HANDSHAKE_TIMEOUT_MS 10000 /* a connection that says nothing is dropped */
#define MAX_SERVER_CALLS     4096  /* threads */
#define ROOT_LEAVES          8     /* threads that root's own calls leave to others, where users are bounded */

static grpc_server *core_server_new(const struct ptc_rpc_server_opts *opts, int max_calls)
{
	struct ptc_rpc_args a;
	grpc_channel_args args;

	ptc_rpc_args_common(&a, opts->max_message_bytes, opts->keepalive_ms, true);
	ptc_rpc_args_bulk(&a, PTC_RPC_SERVER_WINDOW);
	/* Else windows grow with what a connection carries, and what unread streams hold has no bound of its own. */
	ptc_rpc_args_int(&a, GRPC_ARG_HTTP2_BDP_PROBE, 0);
	ptc_rpc_args_memory(&a);
	ptc_rpc_args_int(&a, GRPC_ARG_ALLOW_REUSEPORT, 0); /* a second daemon on the port is an error */
	ptc_rpc_args_int(&a, GRPC_ARG_MAX_CONCURRENT_STREAMS, max_calls);
	ptc_rpc_args_int(&a, GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, HANDSHAKE_TIMEOUT_MS);
	/* Callers choose their keepalive; they are ours, and too_many_pings would cut them off. */
	ptc_rpc_args_int(&a, GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 100);
	ptc_rpc_args_int(&a, GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
	args = ptc_rpc_args_core(&a);
	return grpc_server_create(&args, NULL);
}

int ptc_rpc_server_new(const struct ptc_rpc_server_opts *opts, struct ptc_rpc_server **ret_server,
		       struct ptc_error *err)
{
	int max_calls = opts->max_calls ? opts->max_calls : PTC_MAX_SERVER_CALLS;
	struct ptc_rpc_server *srv;
	int rc;

	if (max_calls < 1 || max_calls > MAX_SERVER_CALLS)
		return ptc_error_set(err, PTC_EINVAL, "max_calls %d is not in 1..%d", max_calls, MAX_SERVER_CALLS);
	srv = ptc_calloc(1, sizeof *srv);
	if (srv)
		srv->workers = ptc_calloc((size_t)max_calls, sizeof *srv->workers);
	if (!srv || !srv->workers) {
		ptc_free(srv);
		return ptc_error_set(err, PTC_ENOMEM, "out of memory for a server");
	}
	srv->nworkers = max_calls;
	srv->max_calls_per_user = opts->max_calls_per_user;
	srv->stall_ms = opts->stall_ms;
	pthread_mutex_init(&srv->lock, NULL);
	pthread_cond_init(&srv->wake, NULL);
	srv->core = core_server_new(opts, max_calls);
	srv->main_cq = grpc_completion_queue_create_for_next(NULL);
	grpc_server_register_completion_queue(srv->core, srv->main_cq, NULL);
	for (int i = 0; i < max_calls; i++) {
		struct ptc_rpc_worker *w = &srv->workers[i];

		w->srv = w->call.srv = srv;
		w->call.cq = grpc_completion_queue_create_for_next(NULL);
		grpc_server_register_completion_queue(srv->core, w->call.cq, NULL);
	}
	rc = ptc_rpc_health_register(srv, err);
	if (rc) {
		ptc_rpc_server_free(srv, 0);
		return rc;
	}
	*ret_server = srv;
	return 0;
}

int ptc_rpc_server_method(struct ptc_rpc_server *srv, const char *method, unsigned roles, ptc_rpc_handler_fn fn,
			  void *arg, struct ptc_error *err)
{
	struct ptc_rpc_method *m = &srv->methods[srv->nmethods];
	const char *slash = method[0] == '/' ? strchr(method + 1, '/') : NULL;

	if (srv->started)
		return ptc_error_set(err, PTC_ESTATE, "%s: the server has started", method);
	if (!slash || slash[1] == '\0' || strlen(method) >= sizeof m->name)
		return ptc_error_set(err, PTC_EINVAL, "\"%s\" is not \"/package.Service/Method\"", method);
	if (srv->nmethods == PTC_RPC_METHODS_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "%s: more than %d methods", method, PTC_RPC_METHODS_MAX);
	for (size_t i = 0; i < srv->nmethods; i++)
		if (strcmp(srv->methods[i].name, method) == 0)
			return ptc_error_set(err, PTC_EEXIST, "%s is registered already", method);
	m->roles = roles;
	m->fn = fn;
	m->arg = arg;
	snprintf(m->name, sizeof m->name, "%s", method);
	srv->nmethods++;
	return 0;
}

void ptc_rpc_server_methods(const struct ptc_rpc_server *srv, ptc_rpc_method_fn fn, void *arg)
{
	for (size_t i = 0; i < srv->nmethods; i++)
		fn(arg, srv->methods[i].name, atomic_load_explicit(&srv->methods[i].calls, memory_order_relaxed),
		   atomic_load_explicit(&srv->methods[i].errors, memory_order_relaxed));
}

/* ---- listeners ------------------------------------------------------------------ */

static int listen_tcp(struct ptc_rpc_server *srv, const char *address, grpc_server_credentials *creds, int *ret_port,
		      struct ptc_error *err)
{
	int port;

	ptc_rpc_core_log_clear();
	port = srv->started ? 0 : grpc_server_add_http2_port(srv->core, address, creds);
	if (port <= 0)
		return ptc_error_set(err, PTC_EIO, "cannot listen on %s: %s", address,
				     srv->started          ? "the server has started"
				     : *ptc_rpc_core_log() ? ptc_rpc_core_log()
							   : "address in use, or certificate not usable");
	if (ret_port)
		*ret_port = port;
	return 0;
}

int ptc_rpc_server_listen_tls(struct ptc_rpc_server *srv, const char *address, const struct ptc_rpc_tls *tls,
			      int *ret_port, struct ptc_error *err)
{
	grpc_server_credentials *creds;
	bool loopback;
	int rc = ptc_rpc_address_check(address, &loopback, err);

	if (!rc)
		rc = ptc_rpc_creds_server(tls, &creds, err);
	if (rc)
		return rc;
	rc = listen_tcp(srv, address, creds, ret_port, err);
	grpc_server_credentials_release(creds);
	return rc;
}

int ptc_rpc_server_listen_insecure(struct ptc_rpc_server *srv, const char *address, int *ret_port,
				   struct ptc_error *err)
{
	grpc_server_credentials *creds;
	bool loopback;
	int rc = ptc_rpc_address_check(address, &loopback, err);

	if (rc)
		return rc;
	if (!loopback)
		return ptc_error_set(err, PTC_EPERM, "%s: plain TCP is allowed on loopback only", address);
	creds = grpc_insecure_server_credentials_create();
	rc = listen_tcp(srv, address, creds, ret_port, err);
	grpc_server_credentials_release(creds);
	if (!rc)
		srv->insecure = true;
	return rc;
}

/* ---- threads ---------------------------------------------------------------------- */

static void *worker_main(void *arg);

/* Wakes or starts a thread if too few wait for calls. */
static void replenish_locked(struct ptc_rpc_server *srv, struct ptc_error *err)
{
	struct ptc_rpc_worker *w;

	if (srv->stopping || srv->idle >= IDLE_THREADS)
		return;
	if (srv->parked > 0) {
		pthread_cond_signal(&srv->wake);
		return;
	}
	if (srv->running == srv->nworkers)
		return;
	w = &srv->workers[srv->running];
	if (ptc_rpc_thread_start(&w->thread, "ptc-rpc-call", worker_main, w, err) != 0)
		return;
	w->started = true;
	srv->running++;
	srv->idle++; /* counted before it runs, so that two are not started for one */
}

/* Waits until this thread is needed; false: the server stops. */
static bool park_locked(struct ptc_rpc_server *srv)
{
	while (!srv->stopping && srv->idle >= IDLE_THREADS) {
		srv->parked++;
		pthread_cond_wait(&srv->wake, &srv->lock);
		srv->parked--;
	}
	srv->idle++;
	return !srv->stopping;
}

static void *worker_main(void *arg)
{
	struct ptc_rpc_worker *w = arg;
	struct ptc_rpc_server *srv = w->srv;
	bool go_on = true;

	while (go_on) {
		bool accepted = ptc_rpc_call_accept(&w->call);

		pthread_mutex_lock(&srv->lock);
		srv->idle--;
		if (accepted)
			replenish_locked(srv, NULL);
		pthread_mutex_unlock(&srv->lock);
		if (!accepted)
			return NULL;
		ptc_rpc_call_serve(&w->call);
		pthread_mutex_lock(&srv->lock);
		go_on = park_locked(srv);
		pthread_mutex_unlock(&srv->lock);
	}
	return NULL;
}

int ptc_rpc_server_start(struct ptc_rpc_server *srv, struct ptc_error *err)
{
	int rc;

	if (srv->started)
		return ptc_error_set(err, PTC_ESTATE, "the server has started already");
	srv->started = true;
	grpc_server_start(srv->core);
	pthread_mutex_lock(&srv->lock);
	for (int i = 0; i < IDLE_THREADS; i++)
		replenish_locked(srv, err);
	rc = srv->running > 0 ? 0 : PTC_EIO;
	pthread_mutex_unlock(&srv->lock);
	return rc ? rc : ptc_rpc_unix_start(srv->unix_listeners, err);
}

void ptc_rpc_server_serving(struct ptc_rpc_server *srv, bool serving)
{
	atomic_store(&srv->serving, serving);
}

bool ptc_rpc_server_admit(struct ptc_rpc_server *srv, struct ptc_rpc_call *call)
{
	uid_t uid = call->identity.uid;
	int limit = uid ? srv->max_calls_per_user : srv->nworkers - ROOT_LEAVES, n = 0;

	if (!srv->max_calls_per_user || call->identity.role != PTC_ROLE_USER)
		return true;
	pthread_mutex_lock(&srv->lock);
	for (int i = 0; i < srv->nworkers; i++)
		n += srv->workers[i].call.counted && srv->workers[i].call.identity.uid == uid;
	call->counted = n < limit;
	pthread_mutex_unlock(&srv->lock);
	return call->counted;
}

void ptc_rpc_server_leave(struct ptc_rpc_server *srv, struct ptc_rpc_call *call)
{
	pthread_mutex_lock(&srv->lock);
	call->counted = false;
	pthread_mutex_unlock(&srv->lock);
}

/* ---- shutdown ----------------------------------------------------------------------- */

static void stop(struct ptc_rpc_server *srv, int grace_ms)
{
	static char tag;
	gpr_timespec until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(grace_ms, GPR_TIMESPAN));

	pthread_mutex_lock(&srv->lock);
	srv->stopping = true;
	pthread_cond_broadcast(&srv->wake);
	pthread_mutex_unlock(&srv->lock);
	grpc_server_shutdown_and_notify(srv->core, srv->main_cq, &tag);
	if (grpc_completion_queue_next(srv->main_cq, until, NULL).type != GRPC_OP_COMPLETE) {
		atomic_store(&srv->cancelling, true);
		grpc_server_cancel_all_calls(srv->core);
		grpc_completion_queue_next(srv->main_cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
	}
	for (int i = 0; i < srv->nworkers; i++)
		if (srv->workers[i].started)
			pthread_join(srv->workers[i].thread, NULL);
}

struct ptc_rpc_server *ptc_rpc_server_free(struct ptc_rpc_server *srv, int grace_ms)
{
	if (!srv)
		return NULL;
	ptc_rpc_unix_free(srv->unix_listeners);
	stop(srv, grace_ms);
	grpc_server_destroy(srv->core);
	ptc_rpc_cq_free(srv->main_cq);
	for (int i = 0; i < srv->nworkers; i++)
		ptc_rpc_cq_free(srv->workers[i].call.cq);
	pthread_cond_destroy(&srv->wake);
	pthread_mutex_destroy(&srv->lock);
	ptc_free(srv->workers);
	ptc_free(srv);
	return NULL;
}
