/* SPDX-License-Identifier: Apache-2.0 */
/* Sends the progress of a switch to callers that wait for it. Happy path: the loop writes the latest progress, and the
 * steps of a call send it: within milliseconds while changes follow each other, and within 200 ms when none has come
 * for a while. Failure modes: the client goes away (the switch goes on), the daemon stops. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "daemon/controller/controller.h"
#include "rpc/pb/pbcall.h"

#include "ptc.pb-c.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define POLL_MIN_MS 5
#define POLL_MAX_MS 200
#define AMEND_MS    20 /* a first step is timed as exactly as this */

struct ptc_watcher {
	atomic_int refs;
	uint64_t switch_id;
	pthread_mutex_t lock;
	struct {
		char phase[32];
		char text[512];
		uint64_t done, total;
		uint64_t version; /* counts changes */
		bool finished;
		int status;
		struct ptc_switch_summary *summary;
	} shared;
};

struct ptc_watcher *ptc_watcher_new(uint64_t switch_id)
{
	struct ptc_watcher *w = ptc_calloc(1, sizeof *w);

	if (!w)
		return NULL;
	atomic_init(&w->refs, 1);
	w->switch_id = switch_id;
	pthread_mutex_init(&w->lock, NULL);
	return w;
}

struct ptc_watcher *ptc_watcher_ref(struct ptc_watcher *w)
{
	atomic_fetch_add(&w->refs, 1);
	return w;
}

void ptc_watcher_unref(struct ptc_watcher *w)
{
	if (!w || atomic_fetch_sub(&w->refs, 1) != 1)
		return;
	pthread_mutex_destroy(&w->lock);
	ptc_switch_summary_unref(w->shared.summary);
	ptc_free(w);
}

void ptc_watcher_progress(struct ptc_watcher *w, const char *phase, uint64_t done, uint64_t total, const char *text)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	snprintf(w->shared.phase, sizeof w->shared.phase, "%s", phase);
	snprintf(w->shared.text, sizeof w->shared.text, "%s", text ? text : "");
	w->shared.done = done;
	w->shared.total = total;
	w->shared.version++;
	pthread_mutex_unlock(&w->lock);
}

void ptc_watcher_finish(struct ptc_watcher *w, int status, const char *text, struct ptc_switch_summary *summary)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	if (!w->shared.finished) {
		w->shared.finished = true;
		w->shared.status = status;
		snprintf(w->shared.text, sizeof w->shared.text, "%s", text ? text : "");
		w->shared.summary = ptc_switch_summary_ref(summary);
		w->shared.version++;
	}
	pthread_mutex_unlock(&w->lock);
}

/* What to send, copied out of the lock. */
struct update {
	char phase[32], text[512];
	uint64_t done, total, version;
	bool finished;
	int status;
};

static void take_update(struct ptc_watcher *w, struct update *n)
{
	pthread_mutex_lock(&w->lock);
	memcpy(n->phase, w->shared.phase, sizeof n->phase);
	memcpy(n->text, w->shared.text, sizeof n->text);
	n->done = w->shared.done;
	n->total = w->shared.total;
	n->version = w->shared.version;
	n->finished = w->shared.finished;
	n->status = w->shared.status;
	pthread_mutex_unlock(&w->lock);
}

static int send_update(struct ptc_watcher *w, const struct update *n, double first_step_ms, struct ptc_rpc_call *call,
		       struct ptc_error *err)
{
	Ptc__V1__Progress p = PTC__V1__PROGRESS__INIT;
	char phase[32], text[512], empty[] = "", ended[] = "done", *summary = NULL;
	int rc;

	memcpy(phase, n->phase, sizeof phase);
	memcpy(text, n->text, sizeof text);
	p.version = PTC_WIRE_VERSION;
	p.phase = n->finished ? ended : phase;
	p.text = text;
	p.bytes_done = n->done;
	p.bytes_total = n->total;
	p.finished = n->finished;
	p.switch_id = w->switch_id;
	if (n->finished && w->shared.summary) /* written once, before finished */
		summary = ptc_switch_summary_text(w->shared.summary, first_step_ms);
	p.summary = summary ? summary : empty;
	rc = ptc_pb_call_send(call, &p.base, err);
	ptc_free(summary);
	return rc;
}

int ptc_watcher_look(struct ptc_watcher *w, const char *phase, bool *ret_there, struct ptc_error *err)
{
	struct update n = { 0 };

	take_update(w, &n);
	*ret_there = !phase && n.finished;
	if (n.finished && phase)
		return ptc_error_set(err, n.status ? n.status : PTC_ESTATE, "%s", n.text);
	*ret_there |= phase && strcmp(n.phase, phase) == 0;
	return 0;
}

/* ---- streams -------------------------------------------------------------------------- */

struct stream {
	struct ptc_watcher *w;
	uint64_t sent;
	int64_t sent_ns;
	struct ptc_watch_ops ops;
	void *arg;
};

static void stream_release(void *arg)
{
	struct stream *s = arg;

	if (s->ops.release)
		s->ops.release(s->arg);
	ptc_watcher_unref(s->w);
	ptc_free(s);
}

int ptc_wait_ms(int64_t since_ns)
{
	int64_t ms = (ptc_sys_now_ns() - since_ns) / 8000000;

	return (int)PTC_MIN(PTC_MAX(ms, POLL_MIN_MS), POLL_MAX_MS);
}

static int stream_step(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct stream *s = arg;
	double first_step_ms = -1;
	struct update n = { 0 };
	int rc = 0;

	take_update(s->w, &n);
	if (n.finished && n.status == PTC_EFENCED && s->ops.lost)
		return s->ops.lost(s->arg, call, s->w->switch_id, err);
	if (n.finished && n.status)
		return ptc_error_set(err, n.status, "%s", n.text);
	if (n.finished && s->ops.amend && s->w->shared.summary) {
		bool later = false;

		rc = s->ops.amend(s->arg, call, s->w->shared.summary, &later, &first_step_ms, err);
		if (!rc && later) {
			ptc_rpc_call_again(call, AMEND_MS);
			return 0;
		}
	}
	if (!rc && n.version != s->sent) {
		rc = send_update(s->w, &n, first_step_ms, call, err);
		s->sent = n.version;
		s->sent_ns = ptc_sys_now_ns();
	}
	if (!rc && !n.finished)
		ptc_rpc_call_again(call, ptc_wait_ms(s->sent_ns));
	return rc;
}

int ptc_watcher_stream(struct ptc_watcher *w, struct ptc_rpc_call *call, const struct ptc_watch_ops *ops, void *arg,
		       struct ptc_error *err)
{
	struct stream *s = ptc_calloc(1, sizeof *s);

	if (!s) {
		if (ops->release)
			ops->release(arg);
		return ptc_error_set(err, PTC_ENOMEM, "out of memory; the switch goes on");
	}
	*s = (struct stream){ ptc_watcher_ref(w), 0, ptc_sys_now_ns(), *ops, arg };
	ptc_rpc_call_follow(call, 0, stream_step, s, stream_release);
	return 0;
}
