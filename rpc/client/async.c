/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous calls, unary or answered by a stream: one queue, one thread, callbacks on the loop.
 *
 * Happy path: the thread takes a completed call from the queue, appends it to the done list and posts one drain to the
 * loop, which runs the callbacks. If the answer is a stream, the thread takes each message, hands it over and asks for
 * the next one. A call of which no handler has heard waits in a list of the thread's and is made again
 * (ptc_rpc_again_ms).
 *
 * Failure modes: a call that cannot be started goes straight to the done list with its error. When the loop has been
 * stopped, or the client is freed, what is left is called back by ptc_rpc_client_free() with PTC_ECANCELED. If there is
 * not even memory for a call, one of a few spare records reports that. If these are used up, too, the process ends,
 * because nobody could be told. */
#include "rpc/client/internal.h"

#include "base/alloc.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <stdio.h>
#include <string.h>

#define SPARES 64 /* calls that can fail for want of memory before their callbacks have run */

/* One batch that was started; the queue gives it back. */
struct async_tag {
	struct ptc_rpc_async *call;
	enum { WHOLE, BEGUN, MESSAGE, STATUS } kind;
};

struct ptc_rpc_async {
	struct ptc_rpc_async *next;              /* done list */
	struct ptc_rpc_async *in_prev, *in_next; /* in flight */
	struct ptc_rpc_client *client;
	struct ptc_rpc_unary_call u;
	struct async_tag whole;                /* of a unary one */
	struct async_tag begun, message, last; /* of one whose answer streams */
	unsigned pending;                      /* batches */
	bool opened;                           /* u is to be given back */
	ptc_rpc_message_fn on_message;         /* NULL: unary */
	/* to make it again */
	char method[PTC_RPC_METHOD_NAME_MAX];
	struct ptc_rpc_channel *ch; /* a reference; NULL: it never started */
	grpc_byte_buffer *request;  /* shares the memory of u's */
	int timeout_ms;
	int64_t began_ns, due_ns; /* due_ns: not 0 while it waits; it is in flight then, and u.core has ended */
	bool cancelled;
	ptc_rpc_done_fn cb;
	void *arg;
	struct ptc_error err; /* set: never started, or a message was refused */
	bool spare, in_use;
};

struct ptc_rpc_client {
	struct ptc_loop *loop;
	grpc_completion_queue *cq;
	pthread_t thread;
	struct ptc_loop_node drain_node;
	pthread_mutex_t lock; /* below */
	struct ptc_rpc_async *done, **done_tail;
	struct ptc_rpc_async *in_flight;
	size_t nwaiting; /* of those in flight */
	bool drain_posted, stopping;
	bool orphaned; /* freed while a drain was posted: the drain frees the memory */
	struct ptc_rpc_async spares[SPARES];
};

static void client_destroy(struct ptc_rpc_client *c)
{
	pthread_mutex_destroy(&c->lock);
	ptc_free(c);
}

static void call_free_locked(struct ptc_rpc_async *call)
{
	if (call->spare)
		call->in_use = false;
	else
		ptc_free(call);
}

static void finish(struct ptc_rpc_async *call, bool cancelled)
{
	struct ptc_rpc_client *c = call->client;
	struct ptc_error err = PTC_ERROR_INIT;
	void *reply = NULL;
	size_t len = 0;
	int rc = call->err.code;

	if (rc)
		err = call->err;
	else if (call->on_message)
		rc = ptc_rpc_unary_status(&call->u, &err);
	else
		rc = ptc_rpc_unary_result(&call->u, &reply, &len, &err);
	if (cancelled)
		rc = ptc_error_set(&err, PTC_ECANCELED, "cancelled: shutting down");
	call->cb(call->arg, rc, rc ? &err : NULL, rc ? NULL : reply, rc ? 0 : len);
	ptc_free(reply);
	if (call->opened)
		ptc_rpc_unary_done(&call->u);
	if (call->request)
		grpc_byte_buffer_destroy(call->request);
	ptc_rpc_channel_free(call->ch);
	pthread_mutex_lock(&c->lock);
	call_free_locked(call);
	pthread_mutex_unlock(&c->lock);
}

static struct ptc_rpc_async *pop(struct ptc_rpc_client *c)
{
	struct ptc_rpc_async *call;

	pthread_mutex_lock(&c->lock);
	call = c->done;
	if (call) {
		c->done = call->next;
		if (!c->done)
			c->done_tail = &c->done;
	}
	pthread_mutex_unlock(&c->lock);
	return call;
}

/* A callback may free the client; it lives on, orphaned, until we return. */
static void drain(void *arg)
{
	struct ptc_rpc_client *c = arg;
	struct ptc_rpc_async *call;
	bool orphaned;

	while ((call = pop(c)) != NULL)
		finish(call, false);
	pthread_mutex_lock(&c->lock);
	c->drain_posted = false;
	orphaned = c->orphaned;
	/* What came after the last pop needs its own drain. */
	if (c->done && !orphaned)
		c->drain_posted = ptc_loop_post_node(c->loop, &c->drain_node) == 0;
	pthread_mutex_unlock(&c->lock);
	if (orphaned)
		client_destroy(c);
}

static void done_locked(struct ptc_rpc_client *c, struct ptc_rpc_async *call)
{
	call->next = NULL;
	*c->done_tail = call;
	c->done_tail = &call->next;
	if (!c->drain_posted && !c->stopping)
		c->drain_posted = ptc_loop_post_node(c->loop, &c->drain_node) == 0;
}

static void unlink_locked(struct ptc_rpc_client *c, struct ptc_rpc_async *call)
{
	if (call->in_prev)
		call->in_prev->in_next = call->in_next;
	else
		c->in_flight = call->in_next;
	if (call->in_next)
		call->in_next->in_prev = call->in_prev;
}

/* Not once the client stops, for its queue takes no batches then. */
static bool receive_locked(struct ptc_rpc_async *call)
{
	grpc_op op = { .op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &call->u.reply };
	bool started = !call->client->stopping &&
		       grpc_call_start_batch(call->u.core, &op, 1, &call->message, NULL) == GRPC_CALL_OK;

	call->pending += started;
	return started;
}

/* A revoked peer is not heard; a message that was refused is the last one that counts. */
static void message_take(struct ptc_rpc_async *call)
{
	grpc_byte_buffer *buf = call->u.reply;
	struct ptc_rpc_message m = { 0 };
	int rc = call->err.code;

	call->u.reply = NULL;
	if (rc) {
		grpc_byte_buffer_destroy(buf);
		return;
	}
	rc = ptc_rpc_message_init(&m, buf, &call->err);
	if (!rc && ptc_rpc_channel_disowns(call->u.ch, call->u.core, &call->u.from.listed))
		rc = ptc_rpc_channel_disowned(call->u.ch, &call->err);
	if (!rc)
		rc = call->on_message(call->arg, &m, &call->err);
	ptc_rpc_message_done(&m);
	if (rc) {
		call->err.code = rc;
		grpc_call_cancel(call->u.core, NULL);
	}
}

/* ---- making a call, and making it again --------------------------------------------- */

static void unary_begin_locked(struct ptc_rpc_async *call, struct ptc_rpc_channel *ch,
			       const struct ptc_rpc_unary_args *args)
{
	call->opened = ptc_rpc_unary_start(&call->u, ch, args, call->client->cq, &call->whole, &call->err) == 0;
	call->pending = call->opened;
}

static grpc_call_error batch_locked(struct ptc_rpc_async *call, const grpc_op *ops, size_t n, struct async_tag *tag)
{
	grpc_call_error e = grpc_call_start_batch(call->u.core, ops, n, tag, NULL);

	call->pending += e == GRPC_CALL_OK;
	return e;
}

static void stream_begin_locked(struct ptc_rpc_async *call, struct ptc_rpc_channel *ch,
				const struct ptc_rpc_unary_args *args)
{
	grpc_call_error e;

	if (ptc_rpc_unary_open(&call->u, ch, args, call->client->cq, &call->err) != 0)
		return;
	call->opened = true;
	{
		const grpc_op begin[] = {
			{ .op = GRPC_OP_SEND_INITIAL_METADATA },
			{ .op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = call->u.request },
			{ .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT },
			ptc_rpc_outcome_initial_op(&call->u.out),
		};
		const grpc_op last = ptc_rpc_outcome_status_op(&call->u.out);

		e = batch_locked(call, begin, PTC_ARRAY_LEN(begin), &call->begun);
		if (e == GRPC_CALL_OK)
			e = batch_locked(call, &last, 1, &call->last);
	}
	if (e == GRPC_CALL_OK && receive_locked(call))
		return;
	grpc_call_cancel(call->u.core, NULL);
	ptc_rpc_status_from_call_error(e == GRPC_CALL_OK ? GRPC_CALL_ERROR : e, args->method, &call->err);
}

static void start_locked(struct ptc_rpc_async *call, const struct ptc_rpc_unary_args *args)
{
	if (call->on_message)
		stream_begin_locked(call, call->ch, args);
	else
		unary_begin_locked(call, call->ch, args);
}

/* The pause before it is made again. false: it is over. */
static bool wait_locked(struct ptc_rpc_async *call)
{
	struct ptc_rpc_client *c = call->client;
	int pause_ms =
		call->err.code || call->cancelled || c->stopping
			? 0
			: ptc_rpc_again_ms(call->ch, &call->u.from, &call->u.out, call->began_ns, call->timeout_ms);

	if (!pause_ms)
		return false;
	call->due_ns = ptc_sys_now_ns() + pause_ms * INT64_C(1000000);
	c->nwaiting++;
	return true;
}

static void again_locked(struct ptc_rpc_async *call)
{
	ptc_rpc_unary_done(&call->u);
	call->opened = false;
	ptc_rpc_channel_retry(call->ch);
	start_locked(call,
		     &(struct ptc_rpc_unary_args){ .method = call->method,
						   .timeout_ms = ptc_rpc_left_ms(call->began_ns, call->timeout_ms),
						   .packed = call->request });
}

static void completed(struct ptc_rpc_client *c, const struct async_tag *tag)
{
	struct ptc_rpc_async *call;
	bool more;

	pthread_mutex_lock(&c->lock); /* the call was filled in under it */
	call = tag->call;
	more = tag->kind == MESSAGE && call->u.reply;
	pthread_mutex_unlock(&c->lock);
	if (more)
		message_take(call);
	pthread_mutex_lock(&c->lock);
	if (more && !receive_locked(call))
		grpc_call_cancel(call->u.core, NULL); /* the status waits for messages that nobody reads */
	if (--call->pending == 0 && !wait_locked(call)) {
		unlink_locked(c, call);
		done_locked(c, call);
	}
	pthread_mutex_unlock(&c->lock);
}

/* Makes the calls again whose pause is over. Once the client stops, their first failure is all there is. Returns when
 * the next one is due; 0: none waits. */
static int64_t make_again(struct ptc_rpc_client *c)
{
	struct ptc_rpc_async *call, *next;
	int64_t least = 0, now = ptc_sys_now_ns();

	pthread_mutex_lock(&c->lock);
	for (call = c->nwaiting ? c->in_flight : NULL; call; call = next) {
		next = call->in_next;
		if (!call->due_ns)
			continue;
		if (now >= call->due_ns || c->stopping || call->cancelled) {
			c->nwaiting--;
			call->due_ns = 0;
			if (!c->stopping && !call->cancelled)
				again_locked(call);
			if (call->pending)
				continue;
			unlink_locked(c, call);
			done_locked(c, call);
		} else if (!least || call->due_ns < least) {
			least = call->due_ns;
		}
	}
	pthread_mutex_unlock(&c->lock);
	return least;
}

static void *client_main(void *arg)
{
	struct ptc_rpc_client *c = arg;

	for (;;) {
		const int64_t due = make_again(c), now = ptc_sys_now_ns();
		const gpr_timespec until = due ? gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
							      gpr_time_from_nanos(PTC_MAX(due - now, 0), GPR_TIMESPAN))
					       : gpr_inf_future(GPR_CLOCK_MONOTONIC);
		grpc_event ev = grpc_completion_queue_next(c->cq, until, NULL);

		if (ev.type == GRPC_OP_COMPLETE)
			completed(c, ev.tag);
		if (ev.type == GRPC_QUEUE_SHUTDOWN) {
			make_again(c);
			return NULL;
		}
	}
}

int ptc_rpc_client_new(struct ptc_loop *loop, struct ptc_rpc_client **ret_client, struct ptc_error *err)
{
	struct ptc_rpc_client *c = ptc_calloc(1, sizeof *c);
	int rc;

	if (!c)
		return ptc_nomem(err);
	c->loop = loop;
	c->done_tail = &c->done;
	c->drain_node = (struct ptc_loop_node){ .fn = drain, .arg = c };
	pthread_mutex_init(&c->lock, NULL);
	for (size_t i = 0; i < SPARES; i++)
		c->spares[i].spare = true;
	c->cq = grpc_completion_queue_create_for_next(NULL);
	rc = ptc_thread_start(&c->thread, "ptc-rpc-client", client_main, c, err);
	if (rc) {
		ptc_rpc_cq_free(c->cq);
		client_destroy(c);
		return rc;
	}
	*ret_client = c;
	return 0;
}

struct ptc_rpc_client *ptc_rpc_client_free(struct ptc_rpc_client *client)
{
	struct ptc_rpc_async *call;
	bool posted;

	if (!client)
		return NULL;
	pthread_mutex_lock(&client->lock);
	client->stopping = true;
	for (call = client->in_flight; call; call = call->in_next)
		grpc_call_cancel(call->u.core, NULL);
	pthread_mutex_unlock(&client->lock);
	grpc_completion_queue_shutdown(client->cq);
	pthread_join(client->thread, NULL);
	grpc_completion_queue_destroy(client->cq);
	while ((call = pop(client)) != NULL)
		finish(call, true);
	pthread_mutex_lock(&client->lock);
	client->orphaned = true;
	posted = client->drain_posted;
	pthread_mutex_unlock(&client->lock);
	if (!posted)
		client_destroy(client);
	return NULL;
}

static struct ptc_rpc_async *call_new(struct ptc_rpc_client *c)
{
	struct ptc_rpc_async *call = ptc_calloc(1, sizeof *call);

	if (call)
		return call;
	pthread_mutex_lock(&c->lock);
	for (size_t i = 0; i < SPARES && !call; i++)
		if (!c->spares[i].in_use)
			call = &c->spares[i];
	ptc_require(call != NULL);
	*call = (struct ptc_rpc_async){ .spare = true, .in_use = true };
	pthread_mutex_unlock(&c->lock);
	ptc_error_set(&call->err, PTC_ENOMEM, "out of memory for a call");
	return call;
}

static void link_locked(struct ptc_rpc_client *c, struct ptc_rpc_async *call)
{
	call->in_next = c->in_flight;
	if (c->in_flight)
		c->in_flight->in_prev = call;
	c->in_flight = call;
}

/* What it takes to make the call, and to make it again. */
static int keep(struct ptc_rpc_async *call, struct ptc_rpc_channel *channel, const struct ptc_rpc_unary_args *args)
{
	const struct ptc_rpc_part part = { .data = args->request, .len = args->len };

	call->ch = ptc_rpc_channel_ref(channel);
	call->timeout_ms = args->timeout_ms;
	call->began_ns = ptc_sys_now_ns();
	snprintf(call->method, sizeof call->method, "%s", args->method);
	return ptc_rpc_parts_pack(&part, 1, &call->request, &call->err);
}

static struct ptc_rpc_async *begin(struct ptc_rpc_client *client, struct ptc_rpc_channel *channel,
				   const struct ptc_rpc_unary_args *args, ptc_rpc_message_fn on_message,
				   ptc_rpc_done_fn cb, void *arg)
{
	struct ptc_rpc_async *call = call_new(client);

	call->client = client;
	call->on_message = on_message;
	call->cb = cb;
	call->arg = arg;
	call->whole = (struct async_tag){ call, WHOLE };
	call->begun = (struct async_tag){ call, BEGUN };
	call->message = (struct async_tag){ call, MESSAGE };
	call->last = (struct async_tag){ call, STATUS };
	/* Started under the lock: ptc_rpc_client_free() sees it in flight or not at all. */
	pthread_mutex_lock(&client->lock);
	if (!call->err.code && client->stopping)
		ptc_error_set(&call->err, PTC_ECANCELED, "%s: shutting down", args->method);
	if (!call->err.code && keep(call, channel, args) == 0)
		start_locked(call, &(struct ptc_rpc_unary_args){ .method = args->method,
								 .timeout_ms = args->timeout_ms,
								 .packed = call->request });
	if (call->pending)
		link_locked(client, call);
	else
		done_locked(client, call);
	pthread_mutex_unlock(&client->lock);
	return call;
}

void ptc_rpc_unary_async(struct ptc_rpc_client *client, struct ptc_rpc_channel *channel, const char *method,
			 const void *request, size_t request_len, int timeout_ms, ptc_rpc_done_fn cb, void *arg)
{
	begin(client, channel,
	      &(struct ptc_rpc_unary_args){
		      .method = method, .request = request, .len = request_len, .timeout_ms = timeout_ms },
	      NULL, cb, arg);
}

struct ptc_rpc_async *ptc_rpc_stream_async(struct ptc_rpc_client *client, struct ptc_rpc_channel *channel,
					   const char *method, const void *request, size_t request_len,
					   ptc_rpc_message_fn on_message, ptc_rpc_done_fn cb, void *arg)
{
	return begin(client, channel,
		     &(struct ptc_rpc_unary_args){ .method = method, .request = request, .len = request_len },
		     on_message, cb, arg);
}

void ptc_rpc_async_cancel(struct ptc_rpc_async *call)
{
	struct ptc_rpc_client *c = call->client;

	pthread_mutex_lock(&c->lock);
	call->cancelled = true;
	if (call->opened)
		grpc_call_cancel(call->u.core, NULL);
	pthread_mutex_unlock(&c->lock);
}
