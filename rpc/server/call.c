/* SPDX-License-Identifier: Apache-2.0 */
/* The server side of one call, from accepting it to sending its status.
 *
 *   accept, begin -> REQUEST -> HANDLER [-> STEPS ...] -> DRAIN -> STATUS -> taken apart
 *
 * Between accept and the end, schedule.c gives it a thread whenever it has something to do. A thread waits here for a
 * moment (LINGER_MS), because most things come immediately. Then the call waits without a thread, and _look finds out
 * when to go on. Only a handler or step that is not brief keeps its thread while it receives and sends.
 *
 * Happy path: the caller's identity and the method are looked up, the handler runs, its status goes out, and the call
 * is taken apart.
 *
 * Failure modes: unknown method (PTC_EVERSION), wrong role (PTC_EPERM), too many calls (PTC_ELIMIT), all before the
 * handler; the caller gone, its deadline passed or the server stopping (PTC_ECANCELED from recv and send, and
 * ptc_rpc_call_cancelled). A caller that is cut off is never mistaken for one that half-closed. A caller whose request
 * does not come is refused in the end (REQUEST_MS); its status says that no handler has heard of the call. A caller
 * that does not take what it asked for is cut off, with a status that says so (stall_ms, STATUS_MS). */
#include "rpc/server/internal.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <grpc/support/string_util.h>
#include <stdio.h>
#include <string.h>

#define POLL_EVERY_NS (1000 * 1000) /* ptc_rpc_call_cancelled looks at the queue at most this often */
#define CUT_OFF_MS    20            /* see cut_off() */
#define STALL_POLL_MS 1000
#define LINGER_MS     20
#define REQUEST_MS    10000
#define STATUS_MS     5000
#define LOOK_MIN_MS   2 /* a call that waits is looked at after this, and less and less often */
#define LOOK_MAX_MS   100
#define OUT_CALL_MAX  (1u << 20)  /* what a brief call may send ahead of its caller, in more than one message */
#define OUT_SMALL     (64u << 10) /* always let through: calls are bounded in number */

bool ptc_rpc_call_accept(struct ptc_rpc_call *call)
{
	grpc_call_error e;

	grpc_call_details_init(&call->details);
	grpc_metadata_array_init(&call->metadata);
	call->accept.pending = true;
	e = grpc_server_request_call(call->srv->core, &call->core, &call->details, &call->metadata, call->cq,
				     call->srv->accept_cq, &call->accept);
	if (e == GRPC_CALL_OK && ptc_rpc_slot_wait(call->srv->accept_cq, &call->accept))
		return true;
	grpc_call_details_destroy(&call->details);
	grpc_metadata_array_destroy(&call->metadata);
	return false;
}

const struct ptc_rpc_identity *ptc_rpc_call_identity(const struct ptc_rpc_call *call)
{
	return &call->identity;
}

const char *ptc_rpc_call_meta(const struct ptc_rpc_call *call, const char *key)
{
	for (size_t i = 0; i < call->nmeta_text; i++)
		if (grpc_slice_str_cmp(call->metadata.metadata[i].key, key) == 0)
			return call->meta_text[i];
	return NULL;
}

static int meta_copy(struct ptc_rpc_call *call, struct ptc_error *err)
{
	size_t n = call->metadata.count;

	call->meta_text = ptc_calloc(n + 1, sizeof *call->meta_text);
	for (size_t i = 0; call->meta_text && i < n; i++) {
		grpc_slice v = call->metadata.metadata[i].value;

		call->meta_text[i] = ptc_strndup((const char *)GRPC_SLICE_START_PTR(v), GRPC_SLICE_LENGTH(v));
		if (!call->meta_text[i])
			break;
		call->nmeta_text++;
	}
	return call->nmeta_text == n ? 0 : ptc_nomem(err);
}

static void identify(struct ptc_rpc_call *call)
{
	char *peer = grpc_call_get_peer(call->core);
	bool tls = false;

	snprintf(call->peer, sizeof call->peer, "%s", peer ? peer : "unknown");
	gpr_free(peer);
	if (ptc_rpc_conn_identity(call->peer, &call->identity))
		return;
	call->epoch = call->srv->trust ? ptc_rpc_trust_epoch(call->srv->trust) : 0;
	ptc_rpc_identity_from_call(call->core, call->srv->trust, &tls, &call->identity, &call->stranger);
	if (!tls && call->srv->insecure && strncmp(call->peer, "ipv", 3) == 0)
		call->identity.role = PTC_ROLE_NODE;
	if (call->identity.role != PTC_ROLE_NONE)
		ptc_rpc_conn_known(call->peer);
}

static int gone(const struct ptc_rpc_call *call, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ECANCELED, "call from %s: %s", call->peer,
			     atomic_load(&call->srv->cancelling)
				     ? "cancelled, the server is stopping"
				     : "the caller has gone, cancelled, or its deadline passed");
}

/* A caller's certificate was revoked after its call came; call->stranger then says so. */
static bool is_revoked(struct ptc_rpc_call *call)
{
	struct ptc_rpc_identity now;
	unsigned epoch;
	bool tls;

	if (!call->srv->trust || (call->identity.role != PTC_ROLE_NODE && call->identity.role != PTC_ROLE_ADMIN))
		return false;
	epoch = ptc_rpc_trust_epoch(call->srv->trust);
	if (epoch == call->epoch)
		return false;
	call->epoch = epoch;
	ptc_rpc_identity_from_call(call->core, call->srv->trust, &tls, &now, &call->stranger);
	return tls && now.role != call->identity.role;
}

/* A caller whose certificate is revoked while its call goes on gets no more of it. */
static bool disowned(struct ptc_rpc_call *call)
{
	if (!is_revoked(call))
		return false;
	grpc_call_cancel(call->core, NULL);
	return true;
}

bool ptc_rpc_call_cancelled(const struct ptc_rpc_call *call)
{
	/* The handler's thread owns the call; const is the interface's promise, not ours. */
	union {
		const struct ptc_rpc_call *in;
		struct ptc_rpc_call *out;
	} c = { .in = call };
	int64_t now;

	if (atomic_load_explicit(&call->srv->cancelling, memory_order_relaxed) || !call->close.pending)
		return true;
	now = ptc_sys_now_ns();
	if (now - call->polled_ns >= POLL_EVERY_NS) {
		c.out->polled_ns = now;
		while (call->close.pending && ptc_rpc_cq_poll(call->cq, 0))
			;
	}
	return !call->close.pending;
}

static bool send_initial(struct ptc_rpc_call *call)
{
	grpc_op op = { .op = GRPC_OP_SEND_INITIAL_METADATA };

	call->initial_sent = true;
	return ptc_rpc_slot_start(&call->send, call->core, &op, 1) == GRPC_CALL_OK &&
	       ptc_rpc_slot_wait(call->cq, &call->send);
}

/* "No more messages" comes both when the caller half-closed and when it was
 * cut off; in the second case the close batch completes too, but a moment
 * later. Sending the initial metadata tells for certain, as it passes the same
 * transport after the cut and fails; where that was sent already, the close is
 * given a moment to arrive (both come from one pass of the transport). */
static bool cut_off(struct ptc_rpc_call *call)
{
	if (call->close.pending && !call->initial_sent)
		return !send_initial(call);
	if (call->close.pending)
		ptc_rpc_cq_poll(call->cq, CUT_OFF_MS);
	return !call->close.pending;
}

static grpc_call_error recv_start(struct ptc_rpc_call *call)
{
	grpc_op op = { .op = GRPC_OP_RECV_MESSAGE };
	grpc_call_error e = GRPC_CALL_OK;

	if (call->recv_started)
		return e;
	call->incoming = NULL;
	op.data.recv_message.recv_message = &call->incoming;
	e = ptc_rpc_slot_start(&call->recv, call->core, &op, 1);
	call->recv_started = e == GRPC_CALL_OK;
	return e;
}

int ptc_rpc_call_recv(struct ptc_rpc_call *call, struct ptc_rpc_message **ret_msg, struct ptc_error *err)
{
	grpc_byte_buffer *buf;
	int rc;

	ptc_rpc_message_done(&call->msg);
	if (disowned(call) || recv_start(call) != GRPC_CALL_OK)
		return gone(call, err);
	ptc_rpc_slot_wait(call->cq, &call->recv);
	buf = call->incoming;
	call->incoming = NULL;
	call->recv_started = false;
	if (!call->recv.ok || !buf) {
		if (buf)
			grpc_byte_buffer_destroy(buf);
		if (!call->recv.ok || cut_off(call))
			return gone(call, err);
		*ret_msg = NULL;
		return 0;
	}
	rc = ptc_rpc_message_init(&call->msg, buf, err);
	if (!rc)
		*ret_msg = &call->msg;
	return rc;
}

int ptc_rpc_call_recv_within(struct ptc_rpc_call *call, int ms, struct ptc_rpc_message **ret_msg, struct ptc_error *err)
{
	const int64_t until = ptc_sys_now_ns() + (int64_t)ms * 1000000;
	int64_t left = (int64_t)ms * 1000000;

	ptc_rpc_message_done(&call->msg);
	if (disowned(call) || recv_start(call) != GRPC_CALL_OK)
		return gone(call, err);
	while (call->recv.pending && left > 0) {
		ptc_rpc_cq_poll(call->cq, (int)(left / 1000000) + 1);
		left = until - ptc_sys_now_ns();
	}
	if (call->recv.pending)
		return ptc_error_set(err, PTC_ETIMEOUT, "nothing has come for %d ms", ms);
	return ptc_rpc_call_recv(call, ret_msg, err);
}

/* Everything pending then ends. The core sends the status if no other one was sent. No deadline of the caller's has
 * passed, and what it has asked for may go on: so it is not told to ask again. */
static void cut_stalled(struct ptc_rpc_call *call)
{
	grpc_call_cancel_with_status(call->core, GRPC_STATUS_CANCELLED, PTC_RPC_NOT_TAKEN, NULL);
}

/* Others wait for the memory of what is being sent. */
static bool stalled(struct ptc_rpc_call *call)
{
	int64_t until = ptc_sys_now_ns() + (int64_t)call->srv->stall_ms * 1000000;

	while (call->srv->stall_ms && call->send.pending) {
		ptc_rpc_cq_poll(call->cq, PTC_MIN(call->srv->stall_ms, STALL_POLL_MS));
		if (!call->send.pending || ptc_sys_now_ns() < until)
			continue;
		cut_stalled(call);
		ptc_rpc_slot_wait(call->cq, &call->send);
		return true;
	}
	return false;
}

/* ---- sending without waiting ---------------------------------------------------------- */

static void out_free(struct ptc_rpc_call *call, struct ptc_rpc_out *o)
{
	atomic_fetch_sub(&call->out_bytes, o->len);
	grpc_byte_buffer_destroy(o->buf);
	ptc_free(o);
}

static void out_drop(struct ptc_rpc_call *call)
{
	while (call->out) {
		struct ptc_rpc_out *o = call->out;

		call->out = o->next;
		out_free(call, o);
	}
}

/* Gives the core the next message once it is done with the one before. */
static void pump(struct ptc_rpc_call *call)
{
	grpc_op ops[2] = { { .op = GRPC_OP_SEND_MESSAGE }, { .op = GRPC_OP_SEND_INITIAL_METADATA } };

	while (!call->send.pending && (call->sending || call->out)) {
		if (call->sending) {
			out_free(call, call->sending);
			call->sending = NULL;
			if (!call->send.ok)
				out_drop(call); /* the caller is gone, as the next look at the call shows */
			continue;
		}
		call->sending = call->out;
		call->out = call->sending->next;
		call->sent_ns = ptc_sys_now_ns();
		ops[0].data.send_message.send_message = call->sending->buf;
		if (ptc_rpc_slot_start(&call->send, call->core, ops, call->initial_sent ? 1 : 2) != GRPC_CALL_OK)
			call->send.ok = false;
		call->initial_sent = true;
	}
}

bool ptc_rpc_call_full(const struct ptc_rpc_call *call)
{
	return call->send.pending || call->out;
}

static bool out_fits(struct ptc_rpc_call *call, size_t len)
{
	size_t waits = atomic_load(&call->out_bytes);

	if (waits && waits + len > OUT_CALL_MAX)
		return false;
	return len <= OUT_SMALL || ptc_rpc_out_room(call, len);
}

static int send_brief(struct ptc_rpc_call *call, const struct ptc_rpc_part *parts, size_t nparts, struct ptc_error *err)
{
	struct ptc_rpc_out *o, **end = &call->out;
	grpc_byte_buffer *buf;
	size_t len;
	int rc = ptc_rpc_parts_pack(parts, nparts, &buf, err);

	if (rc)
		return rc;
	len = grpc_byte_buffer_length(buf);
	o = out_fits(call, len) ? ptc_calloc(1, sizeof *o) : NULL;
	if (!o) {
		grpc_byte_buffer_destroy(buf);
		return ptc_error_set(err, PTC_ELIMIT, "call from %s: too many bytes wait for slow readers; try again",
				     call->peer);
	}
	*o = (struct ptc_rpc_out){ .buf = buf, .len = len };
	atomic_fetch_add(&call->out_bytes, len);
	while (*end)
		end = &(*end)->next;
	*end = o;
	pump(call);
	while (call->send.pending && ptc_rpc_cq_poll(call->cq, 0))
		;
	pump(call);
	return call->close.pending ? 0 : gone(call, err);
}

int ptc_rpc_call_send(struct ptc_rpc_call *call, const struct ptc_rpc_part *parts, size_t nparts, struct ptc_error *err)
{
	grpc_op ops[2] = { { .op = GRPC_OP_SEND_MESSAGE }, { .op = GRPC_OP_SEND_INITIAL_METADATA } };
	grpc_byte_buffer *buf;
	int rc;

	if (call->kind == PTC_RPC_BRIEF)
		return send_brief(call, parts, nparts, err);
	rc = ptc_rpc_parts_pack(parts, nparts, &buf, err);
	if (rc)
		return rc;
	ops[0].data.send_message.send_message = buf;
	if (disowned(call) ||
	    ptc_rpc_slot_start(&call->send, call->core, ops, call->initial_sent ? 1 : 2) != GRPC_CALL_OK)
		rc = gone(call, err);
	else if (stalled(call))
		rc = ptc_error_set(err, PTC_ETIMEOUT, "call from %s: the caller has read nothing for %d ms", call->peer,
				   call->srv->stall_ms);
	else if (!ptc_rpc_slot_wait(call->cq, &call->send))
		rc = gone(call, err);
	call->initial_sent = true;
	grpc_byte_buffer_destroy(buf);
	return rc;
}

static struct ptc_rpc_method *method_find(struct ptc_rpc_server *srv, grpc_slice name)
{
	for (size_t i = 0; i < srv->nmethods; i++)
		if (grpc_slice_str_cmp(name, srv->methods[i].name) == 0)
			return &srv->methods[i];
	return NULL;
}

/* ---- its life -------------------------------------------------------------------------- */

static int allowed(const struct ptc_rpc_call *call, struct ptc_error *err)
{
	const struct ptc_rpc_method *m = call->method;

	if (call->identity.role == PTC_ROLE_NONE)
		return ptc_error_set(err, PTC_EPERM, "caller is not known: %s", call->stranger);
	if (!m)
		return ptc_error_set(err, PTC_EVERSION, "method %.*s is not known here",
				     (int)PTC_MIN(GRPC_SLICE_LENGTH(call->details.method), PTC_RPC_METHOD_NAME_MAX),
				     (const char *)GRPC_SLICE_START_PTR(call->details.method));
	if (!(m->roles & (1u << call->identity.role)))
		return ptc_error_set(err, PTC_EPERM, "%s: not allowed for this caller", m->name);
	return 0;
}

void ptc_rpc_call_refuse(struct ptc_rpc_call *call, int rc)
{
	call->rc = rc;
	call->refused = true;
	call->kind = PTC_RPC_BRIEF;
	call->phase = PTC_RPC_DRAIN;
}

void ptc_rpc_call_begin(struct ptc_rpc_call *call)
{
	grpc_op close = { .op = GRPC_OP_RECV_CLOSE_ON_SERVER };
	int rc;

	close.data.recv_close_on_server.cancelled = &call->cancelled;
	ptc_require(ptc_rpc_slot_start(&call->close, call->core, &close, 1) == GRPC_CALL_OK);
	identify(call);
	call->method = method_find(call->srv, call->details.method);
	call->kind = call->method ? call->method->kind : PTC_RPC_BRIEF;
	call->phase = call->kind == PTC_RPC_THREAD ? PTC_RPC_HANDLER : PTC_RPC_REQUEST;
	rc = allowed(call, &call->err);
	if (rc)
		ptc_rpc_call_refuse(call, rc);
	else if (call->phase == PTC_RPC_REQUEST && recv_start(call) != GRPC_CALL_OK)
		ptc_rpc_call_refuse(call, gone(call, &call->err));
	call->sent_ns = ptc_sys_now_ns();
}

void ptc_rpc_call_follow(struct ptc_rpc_call *call, int ms, ptc_rpc_step_fn step, void *arg, void (*release)(void *arg))
{
	ptc_require(call->kind != PTC_RPC_THREAD && !call->step);
	call->step = step;
	call->step_arg = arg;
	call->step_release = release;
	ptc_rpc_call_again(call, ms);
}

void ptc_rpc_call_again(struct ptc_rpc_call *call, int ms)
{
	call->again = true;
	call->due_ns = ms < 0 ? INT64_MAX : ptc_sys_now_ns() + (int64_t)ms * 1000000;
}

static void count(struct ptc_rpc_call *call)
{
	if (!call->method || call->refused)
		return;
	atomic_fetch_add_explicit(&call->method->calls, 1, memory_order_relaxed);
	if (call->rc)
		atomic_fetch_add_explicit(&call->method->errors, 1, memory_order_relaxed);
}

/* Its handler or its next step. false: another one is to come. */
static bool handle(struct ptc_rpc_call *call)
{
	int rc = 0;

	call->again = false;
	atomic_store(&call->woken, false); /* before the step looks: what wakes from now on is news */
	call->polled_ns = 0;
	if (call->phase == PTC_RPC_HANDLER && is_revoked(call))
		rc = ptc_error_set(&call->err, PTC_EPERM, "caller is not known: %s",
				   call->stranger); /* it waited for a thread */
	else if (disowned(call) || ptc_rpc_call_cancelled(call))
		rc = gone(call, &call->err);
	else if (call->phase == PTC_RPC_STEPS)
		rc = call->step(call->step_arg, call, &call->err);
	else
		rc = meta_copy(call, &call->err);
	if (!rc && call->phase == PTC_RPC_HANDLER)
		rc = call->method->fn(call->method->arg, call, &call->err);
	if (!rc && call->again) {
		call->phase = PTC_RPC_STEPS;
		return false;
	}
	if (call->step && call->step_release)
		call->step_release(call->step_arg);
	call->step = NULL;
	call->rc = rc;
	count(call);
	return true;
}

/* true: it is not pending any more. */
static bool linger(struct ptc_rpc_call *call, const struct ptc_rpc_slot *slot)
{
	int64_t until = ptc_sys_now_ns() + LINGER_MS * INT64_C(1000000), now;

	while (slot->pending && (now = ptc_sys_now_ns()) < until)
		ptc_rpc_cq_poll(call->cq, (int)((until - now) / 1000000) + 1);
	return !slot->pending;
}

static bool drained(struct ptc_rpc_call *call)
{
	for (pump(call); call->send.pending || call->out; pump(call))
		if (!linger(call, &call->send))
			return false;
	return true;
}

/* Errors quote what the caller sent, and must stay one line. */
static void clean_error(struct ptc_rpc_call *call)
{
	if (call->rc && call->err.code == 0)
		ptc_error_set(&call->err, call->rc, "%s", ptc_status_name(call->rc));
	for (char *p = call->err.text; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = *p == '\n' || *p == '\t' ? ' ' : '?';
	if (call->rc)
		ptc_debug("rpc", "call from %s: %s", call->peer, call->err.text);
}

static void send_status(struct ptc_rpc_call *call)
{
	char number[16];
	grpc_metadata trailing[] = { { .key = grpc_slice_from_static_string(PTC_RPC_STATUS_KEY) },
				     { .key = grpc_slice_from_static_string(PTC_RPC_UNHEARD_KEY),
				       .value = grpc_slice_from_static_string("1") } };
	grpc_slice text = grpc_slice_from_copied_string(call->rc ? call->err.text : "");
	grpc_op ops[2] = { { .op = GRPC_OP_SEND_STATUS_FROM_SERVER }, { .op = GRPC_OP_SEND_INITIAL_METADATA } };

	snprintf(number, sizeof number, "%d", call->rc);
	trailing[0].value = grpc_slice_from_copied_string(number);
	ops[0].data.send_status_from_server.status = ptc_rpc_status_to_core(call->rc, call->identity.role);
	ops[0].data.send_status_from_server.status_details = &text;
	ops[0].data.send_status_from_server.trailing_metadata_count = call->unheard ? 2 : call->rc ? 1 : 0;
	ops[0].data.send_status_from_server.trailing_metadata = trailing;
	if (ptc_rpc_slot_start(&call->send, call->core, ops, call->initial_sent ? 1 : 2) != GRPC_CALL_OK)
		grpc_call_cancel(call->core, NULL); /* its end then comes */
	grpc_slice_unref(trailing[0].value);
	grpc_slice_unref(text);
	call->phase = PTC_RPC_STATUS;
	call->sent_ns = ptc_sys_now_ns();
}

static void take_apart(struct ptc_rpc_call *call)
{
	pump(call);
	ptc_rpc_message_done(&call->msg);
	if (call->incoming)
		grpc_byte_buffer_destroy(call->incoming);
	for (size_t i = 0; i < call->nmeta_text; i++)
		ptc_free(call->meta_text[i]);
	ptc_free(call->meta_text);
	grpc_call_details_destroy(&call->details);
	grpc_metadata_array_destroy(&call->metadata);
	grpc_call_unref(call->core);
}

bool ptc_rpc_call_run(struct ptc_rpc_call *call)
{
	if (call->phase == PTC_RPC_REQUEST) {
		if (!linger(call, &call->recv))
			return false;
		call->phase = PTC_RPC_HANDLER;
	}
	if (call->phase == PTC_RPC_HANDLER || call->phase == PTC_RPC_STEPS) {
		if (!handle(call))
			return false;
		call->phase = PTC_RPC_DRAIN;
	}
	if (call->phase == PTC_RPC_DRAIN) {
		if (!drained(call))
			return false;
		clean_error(call);
		send_status(call);
	}
	if (!linger(call, &call->send) || !linger(call, &call->recv) || !linger(call, &call->close))
		return false;
	take_apart(call);
	return true;
}

/* How long its caller may take to let it go on. */
static int64_t patience_ms(const struct ptc_rpc_call *call)
{
	if (call->refused && !call->unheard)
		return LINGER_MS;
	if (call->phase == PTC_RPC_REQUEST)
		return REQUEST_MS;
	return call->phase == PTC_RPC_STATUS ? STATUS_MS : call->srv->stall_ms ? call->srv->stall_ms : INT32_MAX;
}

/* Frames with bytes wait for flow control, and a connection that has lost some of it never lets them go. Its frames
 * without bytes still come: the call did, and so does the status. */
static void unheard(struct ptc_rpc_call *call)
{
	call->unheard = true;
	ptc_error_set(&call->err, PTC_ETIMEOUT,
		      "the request of %s from %s has not come whole within %d s; ask again, over a new connection",
		      call->method->name, call->peer, REQUEST_MS / 1000);
	ptc_rpc_call_refuse(call, PTC_ETIMEOUT);
	call->sent_ns = ptc_sys_now_ns();
}

bool ptc_rpc_call_look(struct ptc_rpc_call *call, int64_t now_ns)
{
	bool sending, late;

	while (ptc_rpc_cq_poll(call->cq, 0))
		;
	pump(call);
	sending = call->send.pending || call->out;
	late = now_ns - call->sent_ns > patience_ms(call) * 1000000;
	if (late && call->phase == PTC_RPC_REQUEST && call->recv.pending && call->close.pending)
		unheard(call);
	else if (late && (sending || call->phase == PTC_RPC_REQUEST || call->phase == PTC_RPC_STATUS))
		cut_stalled(call);
	call->look_ns = now_ns + PTC_MAX(LOOK_MIN_MS * INT64_C(1000000),
					 PTC_MIN((now_ns - call->waiting_ns) / 8, LOOK_MAX_MS * INT64_C(1000000)));
	if (call->phase == PTC_RPC_STEPS && !sending)
		call->look_ns = PTC_MIN(PTC_MAX(call->due_ns, now_ns), now_ns + LOOK_MAX_MS * INT64_C(1000000));
	switch (call->phase) {
	case PTC_RPC_REQUEST:
		return !call->recv.pending;
	case PTC_RPC_STEPS:
		return !call->close.pending || atomic_load(&call->srv->cancelling) ||
		       (!sending && (now_ns >= call->due_ns || atomic_load(&call->woken)));
	case PTC_RPC_DRAIN:
		return !sending;
	default:
		return !call->send.pending && !call->recv.pending && !call->close.pending;
	}
}
