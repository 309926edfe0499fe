/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: send_watch.h. One thread looks at all sends under way, every LOOK_MS. It starts with
 * the first send, and sleeps while there is none. */
#include "daemon/agent/gateway/send_watch.h"

#include "daemon/agent/transfer/transfer.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#define LOOK_MS 100

struct send {
	struct send *next;
	struct ptc_rpc_stream *stream;
	const struct ptc_rpc_call *caller;
	int64_t until_ns;
	int ended; /* why its stream was cancelled; 0: it was not */
};

struct ptc_send_watch {
	pthread_mutex_t lock; /* guards everything */
	pthread_cond_t cond;
	pthread_t thread;
	bool started, idle, stopping;
	struct send *sends;
};

struct ptc_send_watch *ptc_send_watch_new(void)
{
	struct ptc_send_watch *w = ptc_calloc(1, sizeof *w);

	if (!w)
		return NULL;
	ptc_require(!pthread_mutex_init(&w->lock, NULL));
	ptc_cond_init(&w->cond);
	return w;
}

struct ptc_send_watch *ptc_send_watch_free(struct ptc_send_watch *w)
{
	if (!w)
		return NULL;
	pthread_mutex_lock(&w->lock);
	ptc_require(!w->sends);
	w->stopping = true;
	pthread_cond_signal(&w->cond);
	pthread_mutex_unlock(&w->lock);
	if (w->started)
		pthread_join(w->thread, NULL);
	pthread_cond_destroy(&w->cond);
	pthread_mutex_destroy(&w->lock);
	ptc_free(w);
	return NULL;
}

static void send_look(struct send *s)
{
	if (s->ended)
		return;
	if (s->caller && ptc_rpc_call_cancelled(s->caller))
		s->ended = PTC_ECANCELED;
	else if (ptc_sys_now_ns() >= s->until_ns)
		s->ended = PTC_ETIMEOUT;
	if (s->ended == PTC_ETIMEOUT)
		ptc_rpc_stream_stood(s->stream);
	else if (s->ended)
		ptc_rpc_stream_cancel(s->stream);
}

static void *watch_main(void *arg)
{
	struct ptc_send_watch *w = arg;

	pthread_mutex_lock(&w->lock);
	while (!w->stopping) {
		w->idle = !w->sends;
		if (w->idle)
			pthread_cond_wait(&w->cond, &w->lock);
		else
			ptc_cond_wait_ms(&w->cond, &w->lock, LOOK_MS);
		for (struct send *s = w->sends; s; s = s->next)
			send_look(s);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static int send_enter(struct ptc_send_watch *w, struct send *s, struct ptc_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&w->lock);
	if (!w->started)
		rc = ptc_thread_start(&w->thread, "ptc-sends", watch_main, w, err);
	w->started = !rc;
	if (!rc) {
		s->next = w->sends;
		w->sends = s;
		if (w->idle)
			pthread_cond_signal(&w->cond);
		w->idle = false;
	}
	pthread_mutex_unlock(&w->lock);
	return rc;
}

static void send_leave(struct ptc_send_watch *w, struct send *s)
{
	struct send **at = &w->sends;

	pthread_mutex_lock(&w->lock);
	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	pthread_mutex_unlock(&w->lock);
}

int ptc_send_watched(struct ptc_send_watch *w, struct ptc_rpc_stream *stream, const struct ptc_rpc_part parts[2],
		     const struct ptc_rpc_call *caller, int stall_ms, struct ptc_error *err)
{
	struct send s = { .stream = stream,
			  .caller = caller,
			  .until_ns = ptc_sys_now_ns() + stall_ms * INT64_C(1000000) };
	int rc = send_enter(w, &s, err);

	if (rc)
		return rc;
	rc = ptc_rpc_stream_send(stream, parts, 2, err);
	send_leave(w, &s);
	if (rc && s.ended == PTC_ETIMEOUT)
		return ptc_error_set(err, PTC_ETIMEOUT, "it has taken nothing for %d s", stall_ms / 1000);
	return rc && s.ended ? ptc_error_set(err, s.ended, "whoever sent the bytes is gone") : rc;
}
