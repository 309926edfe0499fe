/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous unary calls: one queue, one thread, callbacks on the loop.
 *
 * Happy path: the thread takes a completed call from the queue, appends it to
 * the done list and posts one drain to the loop, which runs the callbacks.
 * Failure modes: a call that cannot be started goes straight to the done list
 * with its error. When the loop has been stopped, or the client is freed, what
 * is left is called back by ptc_rpc_client_free() with PTC_ECANCELED. When not
 * even the memory for a call can be had, one of a few spare records carries
 * the news; with those gone too the process ends, as nobody could be told. */
#include "rpc/client/internal.h"

#include "base/alloc.h"

#include <string.h>

#define SPARES 64 /* calls that can fail for want of memory before their callbacks have run */

struct async_call {
	struct async_call *next;              /* done list */
	struct async_call *in_prev, *in_next; /* in flight */
	struct ptc_rpc_client *client;
	struct ptc_rpc_unary_call u;
	ptc_rpc_done_fn cb;
	void *arg;
	struct ptc_error err; /* set: never started */
	bool spare, in_use;
};

struct ptc_rpc_client {
	struct ptc_loop *loop;
	grpc_completion_queue *cq;
	pthread_t thread;
	struct ptc_loop_node drain_node;
	pthread_mutex_t lock; /* below */
	struct async_call *done, **done_tail;
	struct async_call *in_flight;
	bool drain_posted, stopping;
	bool orphaned; /* freed while a drain was posted: the drain frees the memory */
	struct async_call spares[SPARES];
};

static void client_destroy(struct ptc_rpc_client *c)
{
	pthread_mutex_destroy(&c->lock);
	ptc_free(c);
}

static void call_free_locked(struct async_call *call)
{
	if (call->spare)
		call->in_use = false;
	else
		ptc_free(call);
}

static void finish(struct async_call *call, bool cancelled)
{
	struct ptc_rpc_client *c = call->client;
	struct ptc_error err = PTC_ERROR_INIT;
	void *reply = NULL;
	size_t len = 0;
	int rc = call->err.code;

	if (rc)
		err = call->err;
	else
		rc = ptc_rpc_unary_result(&call->u, &reply, &len, &err);
	if (cancelled)
		rc = ptc_error_set(&err, PTC_ECANCELED, "cancelled: shutting down");
	call->cb(call->arg, rc, rc ? &err : NULL, rc ? NULL : reply, rc ? 0 : len);
	ptc_free(reply);
	if (!call->err.code)
		ptc_rpc_unary_done(&call->u);
	pthread_mutex_lock(&c->lock);
	call_free_locked(call);
	pthread_mutex_unlock(&c->lock);
}

static struct async_call *pop(struct ptc_rpc_client *c)
{
	struct async_call *call;

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
	struct async_call *call;
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

static void done_locked(struct ptc_rpc_client *c, struct async_call *call)
{
	call->next = NULL;
	*c->done_tail = call;
	c->done_tail = &call->next;
	if (!c->drain_posted && !c->stopping)
		c->drain_posted = ptc_loop_post_node(c->loop, &c->drain_node) == 0;
}

static void unlink_locked(struct ptc_rpc_client *c, struct async_call *call)
{
	if (call->in_prev)
		call->in_prev->in_next = call->in_next;
	else
		c->in_flight = call->in_next;
	if (call->in_next)
		call->in_next->in_prev = call->in_prev;
}

static void *client_main(void *arg)
{
	struct ptc_rpc_client *c = arg;

	for (;;) {
		grpc_event ev = grpc_completion_queue_next(c->cq, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
		struct async_call *call = ev.tag;

		if (ev.type == GRPC_QUEUE_SHUTDOWN)
			return NULL;
		pthread_mutex_lock(&c->lock);
		unlink_locked(c, call);
		done_locked(c, call);
		pthread_mutex_unlock(&c->lock);
	}
}

int ptc_rpc_client_new(struct ptc_loop *loop, struct ptc_rpc_client **ret_client, struct ptc_error *err)
{
	struct ptc_rpc_client *c = ptc_calloc(1, sizeof *c);
	int rc;

	if (!c)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory for an rpc client");
	c->loop = loop;
	c->done_tail = &c->done;
	c->drain_node = (struct ptc_loop_node){ .fn = drain, .arg = c };
	pthread_mutex_init(&c->lock, NULL);
	for (size_t i = 0; i < SPARES; i++)
		c->spares[i].spare = true;
	c->cq = grpc_completion_queue_create_for_next(NULL);
	rc = ptc_rpc_thread_start(&c->thread, "ptc-rpc-client", client_main, c, err);
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
	struct async_call *call;
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

static struct async_call *call_new(struct ptc_rpc_client *c)
{
	struct async_call *call = ptc_calloc(1, sizeof *call);

	if (call)
		return call;
	pthread_mutex_lock(&c->lock);
	for (size_t i = 0; i < SPARES && !call; i++)
		if (!c->spares[i].in_use)
			call = &c->spares[i];
	ptc_require(call != NULL);
	*call = (struct async_call){ .spare = true, .in_use = true };
	pthread_mutex_unlock(&c->lock);
	ptc_error_set(&call->err, PTC_ENOMEM, "out of memory for a call");
	return call;
}

static void link_locked(struct ptc_rpc_client *c, struct async_call *call)
{
	call->in_next = c->in_flight;
	if (c->in_flight)
		c->in_flight->in_prev = call;
	c->in_flight = call;
}

void ptc_rpc_unary_async(struct ptc_rpc_client *client, struct ptc_rpc_channel *channel, const char *method,
			 const void *request, size_t request_len, int timeout_ms, ptc_rpc_done_fn cb, void *arg)
{
	struct ptc_rpc_unary_args args = {
		.method = method, .request = request, .len = request_len, .timeout_ms = timeout_ms
	};
	struct async_call *call = call_new(client);

	call->client = client;
	call->cb = cb;
	call->arg = arg;
	/* Started under the lock: ptc_rpc_client_free() sees it in flight or not at all. */
	pthread_mutex_lock(&client->lock);
	if (!call->err.code && client->stopping)
		ptc_error_set(&call->err, PTC_ECANCELED, "%s: shutting down", method);
	if (!call->err.code)
		ptc_rpc_unary_start(&call->u, channel, &args, client->cq, call, &call->err);
	if (call->err.code)
		done_locked(client, call);
	else
		link_locked(client, call);
	pthread_mutex_unlock(&client->lock);
}
