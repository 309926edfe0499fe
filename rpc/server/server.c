/* SPDX-License-Identifier: Apache-2.0 */
/* The server: listeners, start, shutdown. methods.c has its methods, schedule.c its threads.
 *
 * Happy path: new, method..., listen..., start, free.
 *
 * Failure modes: an address in use or an unusable certificate at listen time
 * (PTC_EIO, with the core's reason); no thread at start (PTC_EIO); later a
 * thread that cannot be started only means that calls wait longer. Shutdown:
 * no new calls, a grace time, then every call is cancelled; handlers must
 * return when ptc_rpc_call_cancelled() is true or recv or send fails. */
#include "rpc/server/internal.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sys/thread.h"

#include <grpc/grpc_posix.h>
#include <stdio.h>
#include <string.h>

#define HANDSHAKE_TIMEOUT_MS 10000 /* a connection that says nothing is dropped */
#define MAX_SERVER_CALLS     4096  /* threads */
#define WAITING_MAX          448   /* calls that wait without a thread; 2 MiB of ours and 4 of the core's */

static grpc_server *core_server_new(struct ptc_rpc_server *srv, const struct ptc_rpc_server_opts *opts, int max_calls)
{
	struct ptc_rpc_args a;
	grpc_channel_args args;

	ptc_rpc_args_common(&a, opts->max_message_bytes, opts->keepalive_ms, true);
	ptc_rpc_args_bulk(&a, PTC_RPC_SERVER_WINDOW);
	/* Else windows grow with what a connection carries, and what unread streams hold has no bound of its own. */
	ptc_rpc_args_int(&a, GRPC_ARG_HTTP2_BDP_PROBE, 0);
	ptc_rpc_args_memory(&a);
	ptc_rpc_args_fronts(&a, srv->fd_handlers);
	ptc_rpc_args_int(&a, GRPC_ARG_MAX_CONCURRENT_STREAMS, max_calls + WAITING_MAX);
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
	if (srv) {
		srv->max_calls = max_calls;
		srv->max_open = max_calls + WAITING_MAX;
		srv->calls = ptc_calloc((size_t)srv->max_open, sizeof(struct ptc_rpc_call *));
		srv->threads = ptc_calloc((size_t)max_calls + 1, sizeof *srv->threads);
	}
	if (!srv || !srv->calls || !srv->threads) {
		if (srv) {
			ptc_free(srv->calls);
			ptc_free(srv->threads);
		}
		ptc_free(srv);
		return ptc_nomem(err);
	}
	srv->max_calls_per_user = opts->max_calls_per_user;
	srv->stall_ms = opts->stall_ms;
	srv->keepalive_ms = ptc_rpc_keepalive(opts->keepalive_ms);
	pthread_mutex_init(&srv->lock, NULL);
	pthread_cond_init(&srv->wake, NULL);
	ptc_cond_init(&srv->waiter_wake);
	pthread_cond_init(&srv->quiet, NULL);
	srv->core = core_server_new(srv, opts, max_calls);
	srv->main_cq = grpc_completion_queue_create_for_next(NULL);
	srv->accept_cq = grpc_completion_queue_create_for_next(NULL);
	grpc_server_register_completion_queue(srv->core, srv->main_cq, NULL);
	grpc_server_register_completion_queue(srv->core, srv->accept_cq, NULL);
	rc = ptc_rpc_health_register(srv, err);
	if (rc) {
		ptc_rpc_server_free(srv, 0);
		return rc;
	}
	*ret_server = srv;
	return 0;
}

/* ---- listeners ------------------------------------------------------------------ */

int ptc_rpc_server_listen_tls(struct ptc_rpc_server *srv, const char *address, const struct ptc_rpc_tls *tls,
			      int *ret_port, struct ptc_error *err)
{
	grpc_server_credentials *creds;
	bool loopback;
	int rc = ptc_rpc_address_check(address, &loopback, err);

	if (!rc && srv->trust)
		rc = ptc_error_set(err, PTC_ESTATE, "%s: the server listens with TLS already", address);
	if (!rc)
		rc = ptc_rpc_creds_server(tls, &srv->renewals, &creds, err);
	if (rc)
		return rc;
	rc = ptc_rpc_trust_new(tls, &srv->trust, err);
	if (rc) {
		grpc_server_credentials_release(creds);
		return rc;
	}
	rc = ptc_rpc_front_listen(srv, address, creds, true, ret_port, err);
	grpc_server_credentials_release(creds);
	if (rc)
		srv->trust = ptc_rpc_trust_free(srv->trust);
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
	rc = ptc_rpc_front_listen(srv, address, creds, false, ret_port, err);
	grpc_server_credentials_release(creds);
	if (!rc)
		srv->insecure = true;
	return rc;
}

/* ---- start and stop ---------------------------------------------------------------- */

int ptc_rpc_server_start(struct ptc_rpc_server *srv, struct ptc_error *err)
{
	int rc;

	if (srv->started)
		return ptc_error_set(err, PTC_ESTATE, "the server has started already");
	srv->started = true;
	grpc_server_start(srv->core);
	rc = ptc_rpc_schedule_start(srv, err);
	if (rc == 0)
		rc = ptc_rpc_front_start(srv->fronts, err);
	return rc ? rc : ptc_rpc_unix_start(srv->unix_listeners, err);
}

void ptc_rpc_server_serving(struct ptc_rpc_server *srv, bool serving)
{
	atomic_store(&srv->serving, serving);
}

static void stop(struct ptc_rpc_server *srv, int grace_ms)
{
	static char tag;
	gpr_timespec until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(grace_ms, GPR_TIMESPAN));

	ptc_rpc_schedule_stop(srv);
	grpc_server_shutdown_and_notify(srv->core, srv->main_cq, &tag);
	if (grpc_completion_queue_next(srv->main_cq, until, NULL).type != GRPC_OP_COMPLETE) {
		atomic_store(&srv->cancelling, true);
		grpc_server_cancel_all_calls(srv->core);
		grpc_completion_queue_next(srv->main_cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
	}
	ptc_rpc_schedule_join(srv);
}

struct ptc_rpc_server *ptc_rpc_server_free(struct ptc_rpc_server *srv, int grace_ms)
{
	if (!srv)
		return NULL;
	ptc_rpc_unix_free(srv->unix_listeners);
	ptc_rpc_front_free(srv->fronts);
	stop(srv, grace_ms);
	grpc_server_destroy(srv->core);
	ptc_rpc_cq_free(srv->main_cq);
	ptc_rpc_cq_free(srv->accept_cq);
	for (int i = 0; i < srv->ncalls; i++) {
		ptc_rpc_cq_free(srv->calls[i]->cq);
		ptc_free(srv->calls[i]);
	}
	ptc_rpc_trust_free(srv->trust);
	ptc_rpc_renewal_free(srv->renewals);
	pthread_cond_destroy(&srv->wake);
	pthread_cond_destroy(&srv->waiter_wake);
	pthread_cond_destroy(&srv->quiet);
	pthread_mutex_destroy(&srv->lock);
	ptc_free(srv->calls);
	ptc_free(srv->threads);
	ptc_free(srv);
	return NULL;
}
