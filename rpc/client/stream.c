/* SPDX-License-Identifier: Apache-2.0 */
/* Blocking client streams: one call, one completion queue, one thread.
 *
 * Happy path: open starts the three batches that stay pending as long as the
 * call does (send initial metadata, receive initial metadata, receive status);
 * send and recv are one batch each, waited for on the caller's thread.
 *
 * If no handler has heard of the call when the first message is sent, the call is made again, with that message
 * (ptc_rpc_again_ms).
 *
 * Failure modes: a send fails, or a recv brings nothing. The peer's status is then there, or comes soon. The same call
 * waits for it and returns it, so no caller takes a broken stream for an ended one. */
#include "rpc/client/internal.h"

#include "base/alloc.h"
#include "base/sys/sys.h"
#include "rpc/server/server.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FOLLOW_POLL_MS 100 /* how often a stream looks at the call it follows */
#define LONG_SEND_NS   (INT64_C(1) * 1000000000)
#define STATUS_MS      20 /* see ended_meanwhile() */

struct ptc_rpc_stream {
	struct ptc_rpc_channel *ch;
	grpc_completion_queue *cq;
	grpc_call *core;      /* written under the lock */
	pthread_mutex_t lock; /* guards what ptc_rpc_stream_cancel may touch */
	bool cancelled;
	char method[PTC_RPC_METHOD_NAME_MAX];
	int timeout_ms;
	int64_t began_ns;
	bool begun; /* a message was sent, or will not be: what fails now is not made again */
	struct ptc_rpc_slot open, initial, status, send, recv;
	struct ptc_rpc_meta_list meta;
	struct ptc_rpc_outcome out;
	struct ptc_rpc_message msg;
	grpc_byte_buffer *incoming;         /* output of the recv batch */
	bool receiving;                     /* it was started, and not taken yet */
	bool ended;                         /* recv brought the end */
	const struct ptc_rpc_call *follows; /* NULL: nobody */
	int patience_ms;                    /* 0: no end */
	bool silent;                        /* the peer was so for longer: the call was cancelled */
	struct ptc_rpc_origin from;         /* turn is written under the lock */
	bool revoked;                       /* the peer's certificate is: the call was cancelled */
};

static grpc_call_error start_lasting(struct ptc_rpc_stream *s)
{
	grpc_op open = { .op = GRPC_OP_SEND_INITIAL_METADATA,
			 .data.send_initial_metadata = { .count = s->meta.count, .metadata = s->meta.list } };
	grpc_op initial = ptc_rpc_outcome_initial_op(&s->out);
	grpc_op status = ptc_rpc_outcome_status_op(&s->out);
	grpc_call_error e = ptc_rpc_slot_start(&s->open, s->core, &open, 1);

	if (e == GRPC_CALL_OK)
		e = ptc_rpc_slot_start(&s->initial, s->core, &initial, 1);
	if (e == GRPC_CALL_OK)
		e = ptc_rpc_slot_start(&s->status, s->core, &status, 1);
	return e;
}

int ptc_rpc_stream_open(struct ptc_rpc_channel *channel, const char *method, int timeout_ms,
			const struct ptc_rpc_meta *meta, size_t nmeta, struct ptc_rpc_stream **ret_stream,
			struct ptc_error *err)
{
	struct ptc_rpc_stream *s = ptc_calloc(1, sizeof *s);
	int rc;

	if (!s)
		return ptc_nomem(err);
	ptc_rpc_outcome_init(&s->out);
	pthread_mutex_init(&s->lock, NULL);
	s->ch = ptc_rpc_channel_ref(channel);
	snprintf(s->method, sizeof s->method, "%s", method);
	s->timeout_ms = timeout_ms;
	s->began_ns = ptc_sys_now_ns();
	s->cq = grpc_completion_queue_create_for_next(NULL);
	rc = ptc_rpc_meta_pack(&s->meta, meta, nmeta, err);
	if (!rc)
		rc = ptc_rpc_channel_call(channel, method, s->cq, timeout_ms, &s->core, &s->from, err);
	if (!rc) {
		grpc_call_error e = start_lasting(s);

		if (e != GRPC_CALL_OK)
			rc = ptc_rpc_status_from_call_error(e, method, err);
	}
	if (rc) {
		ptc_rpc_stream_free(s);
		return rc;
	}
	*ret_stream = s;
	return 0;
}

/* A peer whose certificate is revoked while a call to it goes on is neither told more nor heard. Before there is a
 * connection nobody is known, and the list in force by then decides. */
static bool disowned(struct ptc_rpc_stream *s)
{
	if (!s->revoked && !s->open.pending && ptc_rpc_channel_disowns(s->ch, s->core, &s->from.listed)) {
		s->revoked = true;
		grpc_call_cancel(s->core, NULL);
	}
	return s->revoked;
}

static int status_of(struct ptc_rpc_stream *s, struct ptc_error *err)
{
	ptc_rpc_slot_wait(s->cq, &s->status);
	if (s->revoked)
		return ptc_rpc_channel_disowned(s->ch, err);
	ptc_rpc_channel_judge(s->ch, &s->from, &s->out);
	if (s->silent)
		return ptc_error_set(err, PTC_ETIMEOUT, "peer %s has said nothing for %d s", s->ch->target,
				     s->patience_ms / 1000);
	return ptc_rpc_status_from_core(s->out.code, &s->out.trailing, s->out.details, s->ch->target, err);
}

static int send_failed(struct ptc_rpc_stream *s, struct ptc_error *err)
{
	int rc = status_of(s, err);

	return rc ? rc
		  : ptc_error_set(err, PTC_EPEER, "peer %s ended the call before it had read all of it", s->ch->target);
}

/* After the first message was not sent: makes the call again, if it may be. Its slots are not pending then. */
static bool reopen(struct ptc_rpc_stream *s)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_origin from;
	int pause_ms;
	grpc_call *core;
	bool begun;

	ptc_rpc_slot_wait(s->cq, &s->open);
	ptc_rpc_slot_wait(s->cq, &s->initial);
	ptc_rpc_slot_wait(s->cq, &s->status);
	pause_ms = s->revoked ? 0 : ptc_rpc_again_ms(s->ch, &s->from, &s->out, s->began_ns, s->timeout_ms);
	if (!pause_ms || (s->follows && ptc_rpc_call_cancelled(s->follows)))
		return false;
	usleep(1000u * (unsigned)pause_ms);
	ptc_rpc_channel_retry(s->ch);
	if (ptc_rpc_channel_call(s->ch, s->method, s->cq, ptc_rpc_left_ms(s->began_ns, s->timeout_ms), &core, &from,
				 &err) != 0)
		return false;
	pthread_mutex_lock(&s->lock);
	begun = !s->cancelled;
	if (begun) {
		grpc_call_unref(s->core);
		s->core = core;
		s->from = from;
	}
	pthread_mutex_unlock(&s->lock);
	if (!begun) {
		grpc_call_unref(core);
		return false;
	}
	ptc_rpc_outcome_done(&s->out);
	ptc_rpc_outcome_init(&s->out);
	return start_lasting(s) == GRPC_CALL_OK;
}

/* If the peer ends the call in order while a message waits for flow control, the core takes the message for sent. The
 * status comes in the same pass of the transport. */
static bool ended_meanwhile(struct ptc_rpc_stream *s, int64_t since_ns)
{
	if (ptc_sys_now_ns() - since_ns < LONG_SEND_NS)
		return false;
	while (s->status.pending && ptc_rpc_cq_poll(s->cq, STATUS_MS))
		;
	return !s->status.pending && s->out.code != GRPC_STATUS_OK;
}

/* The first message. The core empties what it is given, so each try gets a copy, which shares its memory. */
static bool send_first(struct ptc_rpc_stream *s, grpc_byte_buffer *buf, grpc_call_error *ret_error)
{
	bool sent;

	do {
		grpc_byte_buffer *copy = grpc_byte_buffer_copy(buf);
		grpc_op op = { .op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = copy };
		const int64_t since_ns = ptc_sys_now_ns();

		*ret_error = ptc_rpc_slot_start(&s->send, s->core, &op, 1);
		sent = *ret_error == GRPC_CALL_OK && ptc_rpc_slot_wait(s->cq, &s->send) &&
		       !ended_meanwhile(s, since_ns);
		grpc_byte_buffer_destroy(copy);
	} while (*ret_error == GRPC_CALL_OK && !sent && reopen(s));
	return sent;
}

int ptc_rpc_stream_send(struct ptc_rpc_stream *s, const struct ptc_rpc_part *parts, size_t nparts,
			struct ptc_error *err)
{
	grpc_byte_buffer *buf;
	grpc_call_error e;
	int rc = ptc_rpc_parts_pack(parts, nparts, &buf, err);
	grpc_op op = { .op = GRPC_OP_SEND_MESSAGE };
	bool sent = false;

	if (rc)
		return rc;
	disowned(s); /* then the batch fails, and the status says why */
	op.data.send_message.send_message = buf;
	if (!s->begun && !s->receiving) {
		sent = send_first(s, buf, &e);
	} else {
		e = ptc_rpc_slot_start(&s->send, s->core, &op, 1);
		sent = e == GRPC_CALL_OK && ptc_rpc_slot_wait(s->cq, &s->send);
	}
	s->begun = true;
	if (e == GRPC_CALL_OK && !sent)
		rc = send_failed(s, err);
	grpc_byte_buffer_destroy(buf);
	return e == GRPC_CALL_OK ? rc : ptc_rpc_status_from_call_error(e, "send", err);
}

int ptc_rpc_stream_half_close(struct ptc_rpc_stream *s, struct ptc_error *err)
{
	grpc_op op = { .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT };
	grpc_call_error e = ptc_rpc_slot_start(&s->send, s->core, &op, 1);

	s->begun = true;
	if (e != GRPC_CALL_OK)
		return ptc_rpc_status_from_call_error(e, "half-close", err);
	if (ptc_rpc_slot_wait(s->cq, &s->send))
		return 0;
	/* A peer that has already ended the call with success needs no more from us. */
	return status_of(s, err);
}

void ptc_rpc_stream_follow(struct ptc_rpc_stream *s, const struct ptc_rpc_call *call)
{
	s->follows = call;
}

void ptc_rpc_stream_patience(struct ptc_rpc_stream *s, int ms)
{
	s->patience_ms = ms;
}

/* For the message, the end of whoever it is for, or of our patience. */
static bool recv_wait(struct ptc_rpc_stream *s)
{
	const int64_t until = s->patience_ms ? ptc_sys_now_ns() + s->patience_ms * INT64_C(1000000) : INT64_MAX;

	while ((s->follows || s->patience_ms) && s->recv.pending) {
		ptc_rpc_cq_poll(s->cq, FOLLOW_POLL_MS);
		s->silent = s->recv.pending && ptc_sys_now_ns() >= until;
		if (s->recv.pending &&
		    (s->silent || disowned(s) || (s->follows && ptc_rpc_call_cancelled(s->follows)))) {
			if (s->silent)
				ptc_rpc_stream_stood(s);
			else
				ptc_rpc_stream_cancel(s);
			break;
		}
	}
	return ptc_rpc_slot_wait(s->cq, &s->recv);
}

static grpc_call_error recv_start(struct ptc_rpc_stream *s)
{
	grpc_op op = { .op = GRPC_OP_RECV_MESSAGE };
	grpc_call_error e = GRPC_CALL_OK;

	if (s->receiving)
		return e;
	s->incoming = NULL;
	op.data.recv_message.recv_message = &s->incoming;
	e = ptc_rpc_slot_start(&s->recv, s->core, &op, 1);
	s->receiving = e == GRPC_CALL_OK;
	return e;
}

bool ptc_rpc_stream_ready(struct ptc_rpc_stream *s)
{
	struct ptc_rpc_slot *waited = s->ended ? &s->status : &s->recv;

	if (!s->ended && recv_start(s) != GRPC_CALL_OK)
		return true; /* recv says what is wrong */
	disowned(s);
	while (waited->pending && ptc_rpc_cq_poll(s->cq, 0))
		;
	if (waited->pending)
		return false;
	/* The end is one with its status, which comes at the same time or a moment later. */
	while (!s->ended && !s->incoming && s->status.pending && ptc_rpc_cq_poll(s->cq, 0))
		;
	return s->ended || s->incoming || !s->status.pending;
}

static int recv_buffer(struct ptc_rpc_stream *s, grpc_byte_buffer **ret_buf, struct ptc_error *err)
{
	grpc_call_error e = recv_start(s);

	if (e != GRPC_CALL_OK)
		return ptc_rpc_status_from_call_error(e, "receive", err);
	disowned(s);
	if ((!recv_wait(s) || disowned(s)) && s->incoming) {
		grpc_byte_buffer_destroy(s->incoming);
		s->incoming = NULL;
	}
	s->receiving = false;
	*ret_buf = s->incoming;
	s->incoming = NULL;
	return 0;
}

int ptc_rpc_stream_recv(struct ptc_rpc_stream *s, struct ptc_rpc_message **ret_msg, struct ptc_error *err)
{
	grpc_byte_buffer *buf = NULL;
	int rc;

	ptc_rpc_message_done(&s->msg);
	if (!s->ended) {
		rc = recv_buffer(s, &buf, err);
		if (rc)
			return rc;
		s->ended = buf == NULL;
	}
	if (!buf) {
		rc = status_of(s, err);
		if (!rc)
			*ret_msg = NULL;
		return rc;
	}
	rc = ptc_rpc_message_init(&s->msg, buf, err);
	if (!rc)
		*ret_msg = &s->msg;
	return rc;
}

int ptc_rpc_stream_finish(struct ptc_rpc_stream *s, struct ptc_error *err)
{
	/* The status comes after the last message, so unread ones are read and dropped. */
	ptc_rpc_message_done(&s->msg);
	while (!s->ended) {
		grpc_byte_buffer *buf = NULL;
		int rc = recv_buffer(s, &buf, err);

		if (rc)
			return rc;
		s->ended = buf == NULL;
		if (buf)
			grpc_byte_buffer_destroy(buf);
	}
	return status_of(s, err);
}

void ptc_rpc_stream_cancel(struct ptc_rpc_stream *s)
{
	pthread_mutex_lock(&s->lock);
	s->cancelled = true;
	grpc_call_cancel(s->core, NULL);
	pthread_mutex_unlock(&s->lock);
}

void ptc_rpc_stream_stood(struct ptc_rpc_stream *s)
{
	unsigned turn;

	pthread_mutex_lock(&s->lock);
	turn = s->from.turn;
	pthread_mutex_unlock(&s->lock);
	ptc_rpc_channel_stood(s->ch, turn);
	ptc_rpc_stream_cancel(s);
}

struct ptc_rpc_stream *ptc_rpc_stream_free(struct ptc_rpc_stream *s)
{
	if (!s)
		return NULL;
	ptc_rpc_message_done(&s->msg);
	if (s->core) {
		if (s->status.pending || s->initial.pending || s->open.pending || s->recv.pending)
			grpc_call_cancel(s->core, NULL);
		ptc_rpc_slot_wait(s->cq, &s->open);
		ptc_rpc_slot_wait(s->cq, &s->initial);
		ptc_rpc_slot_wait(s->cq, &s->status);
		ptc_rpc_slot_wait(s->cq, &s->recv);
		if (s->incoming)
			grpc_byte_buffer_destroy(s->incoming);
		grpc_call_unref(s->core);
	}
	ptc_rpc_cq_free(s->cq);
	ptc_rpc_meta_done(&s->meta);
	ptc_rpc_outcome_done(&s->out);
	ptc_rpc_channel_free(s->ch);
	pthread_mutex_destroy(&s->lock);
	ptc_free(s);
	return NULL;
}
