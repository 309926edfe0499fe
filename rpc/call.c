/* SPDX-License-Identifier: Apache-2.0 */
/* The server side of one call, from accepting it to sending its status.
 *
 * Happy path: accept blocks on this thread's queue until the core hands a call
 * over; the caller's identity and the method are looked up, the handler runs,
 * its status goes out, and the call is taken apart.
 * Failure modes: unknown method (PTC_EVERSION), wrong role (PTC_EPERM), both
 * before the handler; the caller gone, its deadline passed or the server
 * stopping (PTC_ECANCELED from recv and send, and ptc_rpc_call_cancelled). A
 * caller that is cut off is never mistaken for one that half-closed. */
#include "rpc/internal.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/sys.h"

#include <grpc/support/string_util.h>
#include <stdio.h>
#include <string.h>

#define POLL_EVERY_NS (1000 * 1000) /* ptc_rpc_call_cancelled looks at the queue at most this often */
#define CUT_OFF_MS    20            /* see cut_off() */
#define STALL_POLL_MS 1000

bool ptc_rpc_call_accept(struct ptc_rpc_call *call)
{
	grpc_call_error e;

	grpc_call_details_init(&call->details);
	grpc_metadata_array_init(&call->metadata);
	call->accept.pending = true;
	e = grpc_server_request_call(call->srv->core, &call->core, &call->details, &call->metadata, call->cq, call->cq,
				     &call->accept);
	if (e == GRPC_CALL_OK && ptc_rpc_slot_wait(call->cq, &call->accept))
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
	return call->nmeta_text == n ? 0 : ptc_error_set(err, PTC_ENOMEM, "out of memory for the call's metadata");
}

static void identify(struct ptc_rpc_call *call)
{
	char *peer = grpc_call_get_peer(call->core);
	bool tls = false;

	snprintf(call->peer, sizeof call->peer, "%s", peer ? peer : "unknown");
	gpr_free(peer);
	if (ptc_rpc_unix_identity(call->peer, &call->identity))
		return;
	ptc_rpc_identity_from_call(call->core, &tls, &call->identity);
	if (!tls && call->srv->insecure && strncmp(call->peer, "ipv", 3) == 0)
		call->identity.role = PTC_ROLE_NODE;
}

static int gone(const struct ptc_rpc_call *call, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ECANCELED, "call from %s: %s", call->peer,
			     atomic_load(&call->srv->cancelling)
				     ? "cancelled, the server is stopping"
				     : "the caller has gone, cancelled, or its deadline passed");
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

int ptc_rpc_call_recv(struct ptc_rpc_call *call, struct ptc_rpc_message **ret_msg, struct ptc_error *err)
{
	grpc_op op = { .op = GRPC_OP_RECV_MESSAGE };
	grpc_byte_buffer *buf = NULL;
	int rc;

	ptc_rpc_message_done(&call->msg);
	op.data.recv_message.recv_message = &buf;
	if (ptc_rpc_slot_start(&call->recv, call->core, &op, 1) != GRPC_CALL_OK)
		return gone(call, err);
	if (!ptc_rpc_slot_wait(call->cq, &call->recv) || !buf) {
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

/* Others wait for the memory of what is being sent. */
static bool stalled(struct ptc_rpc_call *call)
{
	int64_t until = ptc_sys_now_ns() + (int64_t)call->srv->stall_ms * 1000000;

	while (call->srv->stall_ms && call->send.pending) {
		ptc_rpc_cq_poll(call->cq, PTC_MIN(call->srv->stall_ms, STALL_POLL_MS));
		if (!call->send.pending || ptc_sys_now_ns() < until)
			continue;
		grpc_call_cancel(call->core, NULL);
		ptc_rpc_slot_wait(call->cq, &call->send);
		return true;
	}
	return false;
}

int ptc_rpc_call_send(struct ptc_rpc_call *call, const struct ptc_rpc_part *parts, size_t nparts, struct ptc_error *err)
{
	grpc_op ops[2] = { { .op = GRPC_OP_SEND_MESSAGE }, { .op = GRPC_OP_SEND_INITIAL_METADATA } };
	grpc_byte_buffer *buf;
	int rc = ptc_rpc_parts_pack(parts, nparts, &buf, err);

	if (rc)
		return rc;
	ops[0].data.send_message.send_message = buf;
	if (ptc_rpc_slot_start(&call->send, call->core, ops, call->initial_sent ? 1 : 2) != GRPC_CALL_OK)
		rc = gone(call, err);
	else if (stalled(call))
		rc = ptc_error_set(err, PTC_ETIMEOUT, "call from %s: took nothing of what was sent for %d ms",
				   call->peer, call->srv->stall_ms);
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

static int dispatch(struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_rpc_method *m = method_find(call->srv, call->details.method);
	int rc;

	if (call->identity.role == PTC_ROLE_NONE)
		return ptc_error_set(err, PTC_EPERM, "caller is not known: its certificate names no ptc node or admin");
	if (!m)
		return ptc_error_set(err, PTC_EVERSION, "method %.*s is not known here",
				     (int)PTC_MIN(GRPC_SLICE_LENGTH(call->details.method), PTC_RPC_METHOD_NAME_MAX),
				     (const char *)GRPC_SLICE_START_PTR(call->details.method));
	if (!(m->roles & (1u << call->identity.role)))
		return ptc_error_set(err, PTC_EPERM, "%s: not allowed for this caller", m->name);
	if (!ptc_rpc_server_admit(call->srv, call))
		return ptc_error_set(err, PTC_ELIMIT, "too many calls of user %u at once; end some first",
				     (unsigned)call->identity.uid);
	rc = meta_copy(call, err);
	if (!rc)
		rc = m->fn(m->arg, call, err);
	atomic_fetch_add_explicit(&m->calls, 1, memory_order_relaxed);
	if (rc)
		atomic_fetch_add_explicit(&m->errors, 1, memory_order_relaxed);
	return rc;
}

static void send_status(struct ptc_rpc_call *call, int rc, const struct ptc_error *err)
{
	char number[16];
	grpc_metadata trailing = { .key = grpc_slice_from_static_string(PTC_RPC_STATUS_KEY) };
	grpc_slice text = grpc_slice_from_copied_string(rc ? err->text : "");
	grpc_op ops[2] = { { .op = GRPC_OP_SEND_STATUS_FROM_SERVER }, { .op = GRPC_OP_SEND_INITIAL_METADATA } };

	snprintf(number, sizeof number, "%d", rc);
	trailing.value = grpc_slice_from_copied_string(number);
	ops[0].data.send_status_from_server.status = ptc_rpc_status_to_core(rc, call->identity.role);
	ops[0].data.send_status_from_server.status_details = &text;
	ops[0].data.send_status_from_server.trailing_metadata_count = rc ? 1 : 0;
	ops[0].data.send_status_from_server.trailing_metadata = &trailing;
	if (ptc_rpc_slot_start(&call->send, call->core, ops, call->initial_sent ? 1 : 2) == GRPC_CALL_OK)
		ptc_rpc_slot_wait(call->cq, &call->send);
	else
		grpc_call_cancel(call->core, NULL); /* the close below then comes */
	grpc_slice_unref(trailing.value);
	grpc_slice_unref(text);
}

static void take_apart(struct ptc_rpc_call *call)
{
	ptc_rpc_server_leave(call->srv, call);
	ptc_rpc_message_done(&call->msg);
	for (size_t i = 0; i < call->nmeta_text; i++)
		ptc_free(call->meta_text[i]);
	ptc_free(call->meta_text);
	grpc_call_details_destroy(&call->details);
	grpc_metadata_array_destroy(&call->metadata);
	grpc_call_unref(call->core);
	call->meta_text = NULL;
	call->nmeta_text = 0;
	call->core = NULL;
}

void ptc_rpc_call_serve(struct ptc_rpc_call *call)
{
	grpc_op close = { .op = GRPC_OP_RECV_CLOSE_ON_SERVER };
	struct ptc_error err = PTC_ERROR_INIT;
	int rc;

	call->initial_sent = false;
	call->polled_ns = 0;
	close.data.recv_close_on_server.cancelled = &call->cancelled;
	ptc_require(ptc_rpc_slot_start(&call->close, call->core, &close, 1) == GRPC_CALL_OK);
	identify(call);
	rc = dispatch(call, &err);
	if (rc && err.code == 0)
		ptc_error_set(&err, rc, "%s", ptc_status_name(rc));
	/* Errors quote what the caller sent, and must stay one line. */
	for (char *p = err.text; *p; p++)
		if ((unsigned char)*p < 0x20 || *p == 0x7f)
			*p = *p == '\n' || *p == '\t' ? ' ' : '?';
	if (rc)
		ptc_debug("rpc", "call from %s: %s", call->peer, err.text);
	send_status(call, rc, &err);
	ptc_rpc_slot_wait(call->cq, &call->close);
	take_apart(call);
}
