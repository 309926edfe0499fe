/* SPDX-License-Identifier: Apache-2.0 */
/* The bridge to the loop thread: an intrusive queue under a mutex, and one uv_async.
 *
 * Happy path: any thread appends a node and wakes the loop; the loop takes the
 * whole queue at once (wake-ups coalesce) and runs it in order.
 *
 * Failure modes: after ptc_loop_stop() nothing is accepted (PTC_ECANCELED);
 * memory for a posted node can run out (PTC_ENOMEM), ptc_loop_call needs none. */
#include "rpc/internal.h"

#include "base/alloc.h"

#include <signal.h>
#include <uv.h>

struct ptc_loop {
	uv_async_t async;
	struct ptc_loop_node *running; /* loop thread: taken, not yet run */
	pthread_mutex_t lock;          /* below */
	struct ptc_loop_node *head, **tail;
	bool stopped;
};

struct posted {
	struct ptc_loop_node node;
	void (*fn)(void *arg);
	void *arg;
};

struct work {
	uv_work_t uv;
	struct ptc_loop *loop;
	void (*fn)(void *arg);
	void *arg;
};

struct waiting {
	struct ptc_loop_node node;
	void (*fn)(void *arg);
	void *arg;
	pthread_mutex_t lock;
	pthread_cond_t done;
	bool is_done;
};

/* A function may itself call ptc_loop_stop(), which drains what is left here. */
static void drain(struct ptc_loop *loop)
{
	pthread_mutex_lock(&loop->lock);
	if (!loop->running) {
		loop->running = loop->head;
		loop->head = NULL;
		loop->tail = &loop->head;
	}
	pthread_mutex_unlock(&loop->lock);
	while (loop->running) {
		struct ptc_loop_node *n = loop->running;

		loop->running = n->next;
		n->fn(n->arg);
	}
}

static void on_async(uv_async_t *async)
{
	drain(async->data);
}

int ptc_loop_new(struct uv_loop_s *uv, struct ptc_loop **ret_loop, struct ptc_error *err)
{
	struct ptc_loop *loop = ptc_calloc(1, sizeof *loop);
	int e;

	if (!loop)
		return ptc_nomem(err);
	e = uv_async_init(uv, &loop->async, on_async);
	if (e) {
		ptc_free(loop);
		return ptc_error_set(err, PTC_EIO, "uv_async_init: %s", uv_strerror(e));
	}
	loop->async.data = loop;
	loop->tail = &loop->head;
	pthread_mutex_init(&loop->lock, NULL);
	*ret_loop = loop;
	return 0;
}

static void on_close(uv_handle_t *handle)
{
	struct ptc_loop *loop = handle->data;

	pthread_mutex_destroy(&loop->lock);
	ptc_free(loop);
}

struct ptc_loop *ptc_loop_free(struct ptc_loop *loop)
{
	if (loop) {
		ptc_loop_stop(loop);
		uv_close((uv_handle_t *)&loop->async, on_close);
	}
	return NULL;
}

int ptc_loop_post_node(struct ptc_loop *loop, struct ptc_loop_node *node)
{
	int rc = PTC_ECANCELED;

	node->next = NULL;
	pthread_mutex_lock(&loop->lock);
	if (!loop->stopped) {
		*loop->tail = node;
		loop->tail = &node->next;
		/* Under the lock: ptc_loop_free() cannot close the handle in between. */
		uv_async_send(&loop->async);
		rc = 0;
	}
	pthread_mutex_unlock(&loop->lock);
	return rc;
}

static void run_posted(void *arg)
{
	struct posted *p = arg;
	void (*fn)(void *) = p->fn;
	void *fn_arg = p->arg;

	ptc_free(p);
	fn(fn_arg);
}

int ptc_loop_post(struct ptc_loop *loop, void (*fn)(void *arg), void *arg)
{
	struct posted *p = ptc_malloc(sizeof *p);
	int rc;

	if (!p)
		return PTC_ENOMEM;
	*p = (struct posted){ .node = { .fn = run_posted, .arg = p }, .fn = fn, .arg = arg };
	rc = ptc_loop_post_node(loop, &p->node);
	if (rc)
		ptc_free(p);
	return rc;
}

static void work_run(uv_work_t *uv)
{
	const struct work *w = uv->data;

	pthread_setname_np(pthread_self(), "ptc-compute"); /* libuv starts the pool's threads, without a name */
	w->fn(w->arg);
}

static void work_ended(uv_work_t *uv, int status)
{
	(void)status;
	ptc_free(uv->data);
}

/* The first one starts the pool's threads, which inherit our signal mask. */
static void work_queue(void *arg)
{
	struct work *w = arg;
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	uv_queue_work(w->loop->async.loop, &w->uv, work_run, work_ended); /* fails for want of a function only */
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

int ptc_loop_work(struct ptc_loop *loop, void (*fn)(void *arg), void *arg)
{
	struct work *w = ptc_calloc(1, sizeof *w);
	int rc;

	if (!w)
		return PTC_ENOMEM;
	*w = (struct work){ .uv.data = w, .loop = loop, .fn = fn, .arg = arg };
	rc = ptc_loop_post(loop, work_queue, w);
	if (rc)
		ptc_free(w);
	return rc;
}

static void run_waiting(void *arg)
{
	struct waiting *w = arg;

	w->fn(w->arg);
	pthread_mutex_lock(&w->lock);
	w->is_done = true;
	pthread_cond_signal(&w->done);
	pthread_mutex_unlock(&w->lock);
}

int ptc_loop_call(struct ptc_loop *loop, void (*fn)(void *arg), void *arg)
{
	struct waiting w = { .node = { .fn = run_waiting, .arg = &w },
			     .fn = fn,
			     .arg = arg,
			     .lock = PTHREAD_MUTEX_INITIALIZER,
			     .done = PTHREAD_COND_INITIALIZER };
	int rc = ptc_loop_post_node(loop, &w.node);

	if (!rc) {
		pthread_mutex_lock(&w.lock);
		while (!w.is_done)
			pthread_cond_wait(&w.done, &w.lock);
		pthread_mutex_unlock(&w.lock);
	}
	pthread_cond_destroy(&w.done);
	pthread_mutex_destroy(&w.lock);
	return rc;
}

void ptc_loop_stop(struct ptc_loop *loop)
{
	pthread_mutex_lock(&loop->lock);
	loop->stopped = true;
	pthread_mutex_unlock(&loop->lock);
	drain(loop); /* the rest of a drain we were called from, if any ... */
	drain(loop); /* ... and what was queued behind it */
}
