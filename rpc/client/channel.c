/* SPDX-License-Identifier: Apache-2.0 */
/* Channels: connections to a server (keepalive, pauses between attempts), what every call on one needs, and unary
 * calls.
 *
 * Happy path: channel_new connects lazily; a unary call is one batch of all
 * six operations on a queue of its own, so the caller's thread moves the bytes.
 *
 * Failure modes: an unreachable peer fails the call at once (PTC_EPEER with
 * the target's name; the next call after a short backoff tries again); a
 * listener that closes the connection before anything was sent is tried again
 * for a few seconds, within the deadline (ptc_rpc_again_ms); a
 * deadline (PTC_ETIMEOUT) covers connecting too; plain TCP off loopback and
 * TCP without TLS are refused when the channel is made (PTC_EPERM). */
#include "rpc/client/internal.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "rpc/door/door.h"
#include "rpc/trust/creds.h"

#include <grpc/support/string_util.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define OLD_NS         (INT64_C(60) * 1000000000) /* longer than a connection takes to be made */
#define RETRY_MS       5000                       /* how long a call tries again that was closed before it was sent */
#define UNHEARD_MS     15000 /* ... or whose request did not come, which servers say after 10 s: once */
#define STOOD_NS       (INT64_C(5) * 1000000000) /* a shorter deadline proves nothing; a connection may take so long */
#define RETRY_LEAST_MS 20                        /* the pause before, at most twice as long */

/* ---- channels ---------------------------------------------------------------- */

static int target_creds(const struct ptc_rpc_channel_opts *opts, grpc_channel_credentials **ret_creds,
			struct ptc_error *err)
{
	bool loopback = false;
	int rc;

	if (strncmp(opts->target, "unix:/", 6) == 0) {
		*ret_creds = grpc_insecure_credentials_create();
		return 0;
	}
	rc = ptc_rpc_address_check(opts->target, &loopback, err);
	if (rc)
		return rc;
	if (!opts->insecure && !opts->tls)
		return ptc_error_set(err, PTC_EPERM, "peer %s: TCP needs TLS credentials", opts->target);
	if (!opts->insecure)
		return ptc_rpc_creds_client(opts->tls, opts->expect_node, ret_creds, err);
	if (!loopback)
		return ptc_error_set(err, PTC_EPERM, "peer %s: plain TCP is allowed on loopback only", opts->target);
	*ret_creds = grpc_insecure_credentials_create();
	return 0;
}

static void channel_args(const struct ptc_rpc_channel_opts *opts, struct ptc_rpc_args *a)
{
	static char localhost[] = "localhost";

	ptc_rpc_args_common(a, opts->max_message_bytes, opts->keepalive_ms, !opts->quiet_idle);
	ptc_rpc_args_int(a, GRPC_ARG_ENABLE_RETRIES, 0); /* would hold on to sent messages */
	ptc_rpc_args_int(a, GRPC_ARG_ENABLE_HTTP_PROXY, 0);
	ptc_rpc_args_int(a, GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
	/* A peer that restarts is found again quickly; a lost one costs a SYN every 2 s. */
	ptc_rpc_args_int(a, GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
	ptc_rpc_args_int(a, GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000); /* which is the connect timeout */
	ptc_rpc_args_int(a, GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
	if (strncmp(opts->target, "unix:", 5) == 0)
		ptc_rpc_args_str(a, GRPC_ARG_DEFAULT_AUTHORITY, localhost);
	/* Credentials differ per channel, so a shared connection would only surprise. */
	ptc_rpc_args_int(a, GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
	if (opts->bulk)
		ptc_rpc_args_bulk(a, PTC_RPC_BULK_WINDOW);
	if (!opts->quiet_idle)
		ptc_rpc_args_memory(a);
}

static int core_new(const struct ptc_rpc_channel_opts *opts, grpc_channel **ret_core, struct ptc_error *err)
{
	grpc_channel_credentials *creds;
	struct ptc_rpc_args a;
	grpc_channel_args args;
	int rc = target_creds(opts, &creds, err);

	if (rc)
		return rc;
	channel_args(opts, &a);
	args = ptc_rpc_args_core(&a);
	*ret_core = grpc_channel_create(opts->target, creds, &args);
	grpc_channel_credentials_release(creds);
	return 0;
}

/* Where revoked certificates are listed: what is open to a peer ends when it is. */
static int trust_new(struct ptc_rpc_channel *ch, const struct ptc_rpc_channel_opts *opts, struct ptc_error *err)
{
	int rc;

	if (opts->insecure || !opts->tls || !opts->tls->crl_path || strncmp(opts->target, "unix:", 5) == 0)
		return 0;
	rc = ptc_rpc_trust_new(opts->tls, &ch->trust, err);
	if (!rc)
		ch->listed = ch->tried = ptc_rpc_trust_epoch(ch->trust);
	return rc;
}

static void tls_done(struct ptc_rpc_tls *tls)
{
	const char *const of[] = { tls->ca_path, tls->cert_path, tls->key_path, tls->member, tls->crl_path };

	for (size_t i = 0; i < PTC_ARRAY_LEN(of); i++)
		ptc_free((void *)(uintptr_t)of[i]);
}

static int tls_copy(const struct ptc_rpc_tls *from, struct ptc_rpc_tls *to, struct ptc_error *err)
{
	const char *const of[] = { from->ca_path, from->cert_path, from->key_path, from->member, from->crl_path };
	const char **const copy[] = { &to->ca_path, &to->cert_path, &to->key_path, &to->member, &to->crl_path };

	for (size_t i = 0; i < PTC_ARRAY_LEN(of); i++)
		if (of[i] && !(*copy[i] = ptc_strdup(of[i])))
			return ptc_nomem(err);
	return 0;
}

/* Later calls may make a connection anew, so nothing of the caller's is kept. */
static int opts_copy(struct ptc_rpc_channel *ch, const struct ptc_rpc_channel_opts *opts, struct ptc_error *err)
{
	snprintf(ch->target, sizeof ch->target, "%s", opts->target);
	snprintf(ch->expect_node, sizeof ch->expect_node, "%s", opts->expect_node ? opts->expect_node : "");
	ch->opts = *opts;
	ch->opts.target = ch->target;
	ch->opts.expect_node = opts->expect_node ? ch->expect_node : NULL;
	ch->opts.tls = opts->tls ? &ch->tls : NULL;
	return opts->tls ? tls_copy(opts->tls, &ch->tls, err) : 0;
}

int ptc_rpc_channel_new(const struct ptc_rpc_channel_opts *opts, struct ptc_rpc_channel **ret_channel,
			struct ptc_error *err)
{
	struct ptc_rpc_channel *ch;
	int rc;

	if (strlen(opts->target) >= sizeof ch->target)
		return ptc_error_set(err, PTC_ELIMIT, "address is longer than %zu bytes", sizeof ch->target - 1);
	ch = ptc_calloc(1, sizeof *ch);
	if (!ch)
		return ptc_nomem(err);
	ch->renewed = ptc_rpc_tls_renewals();
	rc = opts_copy(ch, opts, err);
	if (!rc)
		rc = trust_new(ch, opts, err);
	if (!rc)
		rc = core_new(opts, &ch->core, err);
	if (rc) {
		ptc_rpc_trust_free(ch->trust);
		tls_done(&ch->tls);
		ptc_free(ch);
		return rc;
	}
	atomic_init(&ch->refs, 1);
	pthread_mutex_init(&ch->lock, NULL);
	if (ch->opts.expect_node) /* where it listens, it calls from, too */
		ptc_door_member_address(ch->target);
	*ret_channel = ch;
	return 0;
}

struct ptc_rpc_channel *ptc_rpc_channel_ref(struct ptc_rpc_channel *ch)
{
	atomic_fetch_add(&ch->refs, 1);
	return ch;
}

struct ptc_rpc_channel *ptc_rpc_channel_free(struct ptc_rpc_channel *channel)
{
	if (channel && atomic_fetch_sub(&channel->refs, 1) == 1) {
		grpc_channel_destroy(channel->core);
		if (channel->old)
			grpc_channel_destroy(channel->old);
		ptc_rpc_trust_free(channel->trust);
		tls_done(&channel->tls);
		pthread_mutex_destroy(&channel->lock);
		ptc_free(channel);
	}
	return NULL;
}

/* After certificates were renewed, or others revoked, or a call stood: the next connection is another core's. The one
 * before stays for a while, for calls that have just been made and wait for its connection; those that have one keep it
 * as long as they need it. Where no other can be made, `listed` stays too, so that each call looks whether its peer is
 * revoked. */
static void renew_locked(struct ptc_rpc_channel *ch)
{
	const unsigned now = ptc_rpc_tls_renewals(), listed = ch->trust ? ptc_rpc_trust_epoch(ch->trust) : 0;
	const int64_t now_ns = ptc_sys_now_ns();
	const bool renews = ch->opts.renews && ch->opts.tls;
	const bool same = !ch->stood && (!renews || (ch->renewed == now && ch->tried == listed));
	struct ptc_error err = PTC_ERROR_INIT;
	grpc_channel *core;

	if (ch->old && (!same || now_ns - ch->old_ns > OLD_NS)) {
		grpc_channel_destroy(ch->old);
		ch->old = NULL;
	}
	if (same)
		return;
	if (ch->stood)
		ptc_debug("rpc", "peer %s: a call stood, so the next one makes a connection of its own", ch->target);
	ch->stood = false;
	ch->renewed = now;
	ch->tried = listed;
	if (core_new(&ch->opts, &core, &err) != 0) {
		ptc_error_log("rpc", "peer %s: cannot read the new certificate, so calls keep the old one: %s",
			      ch->target, err.text);
		return;
	}
	ch->old = ch->core;
	ch->old_ns = now_ns;
	ch->core = core;
	ch->turn++;
	ch->listed = listed;
}

/* A foreign server that does not answer has more to do than it can: new connections would be more of it. */
void ptc_rpc_channel_stood(struct ptc_rpc_channel *ch, unsigned turn)
{
	pthread_mutex_lock(&ch->lock);
	if (turn == ch->turn && !ch->opts.quiet_idle)
		ch->stood = true;
	pthread_mutex_unlock(&ch->lock);
}

bool ptc_rpc_channel_disowns(struct ptc_rpc_channel *ch, grpc_call *call, unsigned *listed)
{
	const unsigned now = ch->trust ? ptc_rpc_trust_epoch(ch->trust) : 0;

	if (now == *listed)
		return false;
	*listed = now;
	return ptc_rpc_peer_revoked(call, ch->trust);
}

int ptc_rpc_channel_disowned(const struct ptc_rpc_channel *ch, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_EPEER, "peer %s: its certificate is revoked (tls.crl)", ch->target);
}

void ptc_rpc_channel_retry(struct ptc_rpc_channel *channel)
{
	pthread_mutex_lock(&channel->lock);
	grpc_channel_reset_connect_backoff(channel->core);
	pthread_mutex_unlock(&channel->lock);
}

int ptc_rpc_channel_call(struct ptc_rpc_channel *ch, const char *method, grpc_completion_queue *cq, int timeout_ms,
			 grpc_call **ret_call, struct ptc_rpc_origin *ret_from, struct ptc_error *err)
{
	gpr_timespec until = gpr_inf_future(GPR_CLOCK_MONOTONIC);
	grpc_slice name;

	if (method[0] != '/' || strlen(method) >= PTC_RPC_METHOD_NAME_MAX)
		return ptc_error_set(err, PTC_EINVAL, "\"%s\" is not a method name", method);
	if (timeout_ms > 0)
		until = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(timeout_ms, GPR_TIMESPAN));
	name = grpc_slice_from_copied_string(method);
	pthread_mutex_lock(&ch->lock);
	renew_locked(ch);
	*ret_call = grpc_channel_create_call(ch->core, NULL, GRPC_PROPAGATE_DEFAULTS, cq, name, NULL, until, NULL);
	*ret_from = (struct ptc_rpc_origin){ .listed = ch->listed, .turn = ch->turn, .made_ns = ptc_sys_now_ns() };
	pthread_mutex_unlock(&ch->lock);
	grpc_slice_unref(name);
	return 0;
}

/* ---- metadata, outcome ---------------------------------------------------------- */

int ptc_rpc_meta_pack(struct ptc_rpc_meta_list *l, const struct ptc_rpc_meta *meta, size_t nmeta, struct ptc_error *err)
{
	l->count = 0;
	if (nmeta > PTC_RPC_META_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "%zu metadata entries: at most %d", nmeta, PTC_RPC_META_MAX);
	for (size_t i = 0; i < nmeta; i++)
		l->list[l->count++] = (grpc_metadata){ .key = grpc_slice_from_copied_string(meta[i].key),
						       .value = grpc_slice_from_copied_string(meta[i].value) };
	return 0;
}

void ptc_rpc_meta_done(struct ptc_rpc_meta_list *l)
{
	for (size_t i = 0; i < l->count; i++) {
		grpc_slice_unref(l->list[i].key);
		grpc_slice_unref(l->list[i].value);
	}
	l->count = 0;
}

void ptc_rpc_outcome_init(struct ptc_rpc_outcome *o)
{
	grpc_metadata_array_init(&o->initial);
	grpc_metadata_array_init(&o->trailing);
	o->code = GRPC_STATUS_UNKNOWN;
	o->details = grpc_empty_slice();
}

void ptc_rpc_outcome_done(struct ptc_rpc_outcome *o)
{
	grpc_metadata_array_destroy(&o->initial);
	grpc_metadata_array_destroy(&o->trailing);
	grpc_slice_unref(o->details);
	o->details = grpc_empty_slice();
}

grpc_op ptc_rpc_outcome_status_op(struct ptc_rpc_outcome *o)
{
	return (grpc_op){ .op = GRPC_OP_RECV_STATUS_ON_CLIENT,
			  .data.recv_status_on_client = { .trailing_metadata = &o->trailing,
							  .status = &o->code,
							  .status_details = &o->details } };
}

grpc_op ptc_rpc_outcome_initial_op(struct ptc_rpc_outcome *o)
{
	return (grpc_op){ .op = GRPC_OP_RECV_INITIAL_METADATA,
			  .data.recv_initial_metadata.recv_initial_metadata = &o->initial };
}

static bool says(const struct ptc_rpc_outcome *o, const char *key)
{
	for (size_t i = 0; i < o->trailing.count; i++)
		if (grpc_slice_str_cmp(o->trailing.metadata[i].key, key) == 0)
			return true;
	return false;
}

/* The server has cut the call off, as its answer was not taken: perhaps it never came here. */
static bool not_taken(const struct ptc_rpc_outcome *o)
{
	return o->code == GRPC_STATUS_CANCELLED && grpc_slice_str_cmp(o->details, PTC_RPC_NOT_TAKEN) == 0;
}

/* A deadline that a handler of the peer's says has passed is another one. */
void ptc_rpc_channel_judge(struct ptc_rpc_channel *ch, const struct ptc_rpc_origin *from,
			   const struct ptc_rpc_outcome *o)
{
	if (says(o, PTC_RPC_UNHEARD_KEY) || not_taken(o) ||
	    (o->code == GRPC_STATUS_DEADLINE_EXCEEDED && !says(o, PTC_RPC_STATUS_KEY) &&
	     ptc_sys_now_ns() - from->made_ns >= STOOD_NS))
		ptc_rpc_channel_stood(ch, from->turn);
}

/* Closed early: nothing of the peer's has come; what a peer says of its own calls does not count. */
int ptc_rpc_again_ms(struct ptc_rpc_channel *ch, const struct ptc_rpc_origin *from, const struct ptc_rpc_outcome *o,
		     int64_t began_ns, int timeout_ms)
{
	const bool unheard = says(o, PTC_RPC_UNHEARD_KEY);
	const int limit_ms = unheard ? UNHEARD_MS : RETRY_MS;
	const int most_ms = timeout_ms ? PTC_MIN(timeout_ms, limit_ms) : limit_ms;
	unsigned char dice = 0;

	ptc_rpc_channel_judge(ch, from, o);
	if (!unheard &&
	    (o->initial.count || o->trailing.count || !ptc_rpc_status_closed_early(o->code, o->details, ch->target)))
		return 0;
	if (ptc_sys_now_ns() - began_ns >= most_ms * INT64_C(1000000))
		return 0;
	(void)ptc_sys_random(&dice, sizeof dice, NULL);
	return RETRY_LEAST_MS + dice % RETRY_LEAST_MS;
}

int ptc_rpc_left_ms(int64_t began_ns, int timeout_ms)
{
	return timeout_ms ? PTC_MAX(1, timeout_ms - (int)((ptc_sys_now_ns() - began_ns) / 1000000)) : 0;
}

/* ---- unary -------------------------------------------------------------------------- */

static grpc_call_error unary_batch(struct ptc_rpc_unary_call *u, void *tag)
{
	grpc_op ops[] = {
		{ .op = GRPC_OP_SEND_INITIAL_METADATA,
		  .data.send_initial_metadata = { .count = u->meta.count, .metadata = u->meta.list } },
		{ .op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = u->request },
		{ .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT },
		ptc_rpc_outcome_initial_op(&u->out),
		{ .op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &u->reply },
		ptc_rpc_outcome_status_op(&u->out),
	};

	return grpc_call_start_batch(u->core, ops, PTC_ARRAY_LEN(ops), tag, NULL);
}

int ptc_rpc_unary_open(struct ptc_rpc_unary_call *u, struct ptc_rpc_channel *ch, const struct ptc_rpc_unary_args *args,
		       grpc_completion_queue *cq, struct ptc_error *err)
{
	struct ptc_rpc_part part = { .data = args->request, .len = args->len };
	int rc;

	memset(u, 0, sizeof *u);
	ptc_rpc_outcome_init(&u->out);
	u->ch = ptc_rpc_channel_ref(ch);
	rc = ptc_rpc_meta_pack(&u->meta, args->meta, args->nmeta, err);
	if (!rc)
		rc = ptc_rpc_channel_call(ch, args->method, cq, args->timeout_ms, &u->core, &u->from, err);
	if (!rc && args->packed)
		u->request = grpc_byte_buffer_copy(args->packed);
	else if (!rc)
		rc = ptc_rpc_parts_pack(&part, 1, &u->request, err);
	if (rc)
		ptc_rpc_unary_done(u);
	return rc;
}

int ptc_rpc_unary_start(struct ptc_rpc_unary_call *u, struct ptc_rpc_channel *ch, const struct ptc_rpc_unary_args *args,
			grpc_completion_queue *cq, void *tag, struct ptc_error *err)
{
	grpc_call_error e;
	int rc;

	if (args->timeout_ms <= 0)
		return ptc_error_set(err, PTC_EINVAL, "%s: a call needs a timeout", args->method);
	rc = ptc_rpc_unary_open(u, ch, args, cq, err);
	if (rc)
		return rc;
	e = unary_batch(u, tag);
	if (e == GRPC_CALL_OK)
		return 0;
	ptc_rpc_unary_done(u);
	return ptc_rpc_status_from_call_error(e, args->method, err);
}

static int flatten(grpc_byte_buffer *buf, void **ret_data, size_t *ret_len, struct ptc_error *err)
{
	struct ptc_rpc_message m = { 0 };
	int rc = ptc_rpc_message_init(&m, buf, err);
	void *data;

	if (rc)
		return rc;
	data = ptc_malloc(m.len ? m.len : 1);
	if (!data) {
		ptc_rpc_message_done(&m);
		return ptc_nomem(err);
	}
	*ret_len = ptc_rpc_message_read(&m, data, m.len);
	*ret_data = data;
	ptc_rpc_message_done(&m);
	return 0;
}

int ptc_rpc_unary_status(struct ptc_rpc_unary_call *u, struct ptc_error *err)
{
	if (ptc_rpc_channel_disowns(u->ch, u->core, &u->from.listed))
		return ptc_rpc_channel_disowned(u->ch, err);
	ptc_rpc_channel_judge(u->ch, &u->from, &u->out);
	return ptc_rpc_status_from_core(u->out.code, &u->out.trailing, u->out.details, u->ch->target, err);
}

int ptc_rpc_unary_result(struct ptc_rpc_unary_call *u, void **ret_reply, size_t *ret_len, struct ptc_error *err)
{
	grpc_byte_buffer *reply = u->reply;
	int rc = ptc_rpc_unary_status(u, err);

	if (rc)
		return rc;
	if (!reply)
		return ptc_error_set(err, PTC_EPEER, "peer %s reported success but sent no reply", u->ch->target);
	u->reply = NULL;
	return flatten(reply, ret_reply, ret_len, err);
}

void ptc_rpc_unary_done(struct ptc_rpc_unary_call *u)
{
	if (u->request)
		grpc_byte_buffer_destroy(u->request);
	if (u->reply)
		grpc_byte_buffer_destroy(u->reply);
	ptc_rpc_meta_done(&u->meta);
	ptc_rpc_outcome_done(&u->out);
	if (u->core)
		grpc_call_unref(u->core);
	u->ch = ptc_rpc_channel_free(u->ch);
	u->request = u->reply = NULL;
	u->core = NULL;
}

int ptc_rpc_unary(struct ptc_rpc_channel *channel, const char *method, const void *request, size_t request_len,
		  int timeout_ms, const struct ptc_rpc_meta *meta, size_t nmeta, void **ret_reply, size_t *ret_len,
		  struct ptc_error *err)
{
	struct ptc_rpc_unary_args args = { .method = method,
					   .request = request,
					   .len = request_len,
					   .timeout_ms = timeout_ms,
					   .meta = meta,
					   .nmeta = nmeta };
	const int64_t began_ns = ptc_sys_now_ns();
	grpc_completion_queue *cq = grpc_completion_queue_create_for_next(NULL);
	int rc, again_ms;

	do {
		struct ptc_rpc_slot slot = { .pending = true };
		struct ptc_rpc_unary_call u;

		rc = ptc_rpc_unary_start(&u, channel, &args, cq, &slot, err);
		if (rc)
			break;
		ptc_rpc_slot_wait(cq, &slot);
		rc = ptc_rpc_unary_result(&u, ret_reply, ret_len, err);
		again_ms = rc ? ptc_rpc_again_ms(channel, &u.from, &u.out, began_ns, timeout_ms) : 0;
		ptc_rpc_unary_done(&u);
		if (again_ms) {
			usleep(1000u * (unsigned)again_ms);
			ptc_rpc_channel_retry(channel);
		}
		args.timeout_ms = ptc_rpc_left_ms(began_ns, timeout_ms);
	} while (again_ms);
	ptc_rpc_cq_free(cq);
	return rc;
}
