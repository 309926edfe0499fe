/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the loop writes the latest progress, the server thread sends it
 * at most five times a second and the end at once. Failure modes: the client
 * goes away (the switch goes on; the thread returns), the daemon stops. */
#include "base/alloc.h"
#include "daemon/daemon.h"
#include "daemon/pbcall.h"

#include "ptc.pb-c.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define POLL_MS 200

struct ptc_watcher {
	atomic_int refs;
	uint64_t switch_id;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct {
		char phase[32];
		char text[512];
		uint64_t done, total;
		uint64_t version; /* counts changes */
		bool finished;
		int status;
		char *summary;
	} shared;
};

struct ptc_watcher *ptc_watcher_new(uint64_t switch_id)
{
	struct ptc_watcher *w = ptc_calloc(1, sizeof *w);
	pthread_condattr_t attr;

	if (!w)
		return NULL;
	atomic_init(&w->refs, 1);
	w->switch_id = switch_id;
	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&w->wake, &attr);
	pthread_condattr_destroy(&attr);
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
	pthread_cond_destroy(&w->wake);
	ptc_free(w->shared.summary);
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
	pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&w->lock);
}

void ptc_watcher_finish(struct ptc_watcher *w, int status, const char *text, const char *summary)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	if (!w->shared.finished) {
		w->shared.finished = true;
		w->shared.status = status;
		snprintf(w->shared.text, sizeof w->shared.text, "%s", text ? text : "");
		w->shared.summary = summary ? ptc_strdup(summary) : NULL;
		w->shared.version++;
		pthread_cond_signal(&w->wake);
	}
	pthread_mutex_unlock(&w->lock);
}

/* What to send, copied out of the lock. */
struct news {
	char phase[32], text[512];
	uint64_t done, total, version;
	bool finished;
	int status;
};

static void wait_news(struct ptc_watcher *w, struct news *n)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += POLL_MS * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000L;
	until.tv_nsec %= 1000000000L;
	pthread_mutex_lock(&w->lock);
	while (w->shared.version == n->version && !w->shared.finished)
		if (pthread_cond_timedwait(&w->wake, &w->lock, &until) != 0)
			break;
	memcpy(n->phase, w->shared.phase, sizeof n->phase);
	memcpy(n->text, w->shared.text, sizeof n->text);
	n->done = w->shared.done;
	n->total = w->shared.total;
	n->version = w->shared.version;
	n->finished = w->shared.finished;
	n->status = w->shared.status;
	pthread_mutex_unlock(&w->lock);
}

static int send_news(struct ptc_watcher *w, const struct news *n, const char *summary, struct ptc_rpc_call *call,
		     struct ptc_error *err)
{
	Ptc__V1__Progress p = PTC__V1__PROGRESS__INIT;
	char phase[32], text[512], empty[] = "", ended[] = "done";

	memcpy(phase, n->phase, sizeof phase);
	memcpy(text, n->text, sizeof text);
	p.version = 1;
	p.phase = n->finished ? ended : phase;
	p.text = text;
	p.bytes_done = n->done;
	p.bytes_total = n->total;
	p.finished = n->finished;
	if (!summary && n->finished)
		summary = w->shared.summary; /* written once, before finished */
	p.summary = summary ? (char *)(uintptr_t)summary : empty;
	return ptc_pb_call_send(call, &p.base, err);
}

int ptc_watcher_stream(struct ptc_watcher *w, struct ptc_rpc_call *call, struct ptc_error *err)
{
	return ptc_watcher_stream_amended(w, call, NULL, NULL, err);
}

int ptc_watcher_stream_amended(struct ptc_watcher *w, struct ptc_rpc_call *call, ptc_amend_fn amend, void *arg,
			       struct ptc_error *err)
{
	struct news n = { 0 };
	uint64_t sent = 0;

	for (;;) {
		int rc;

		wait_news(w, &n);
		if (n.finished && n.status)
			return ptc_error_set(err, n.status, "%s", n.text);
		if (n.version != sent) {
			char *summary = NULL;

			rc = amend && n.finished && w->shared.summary ? amend(arg, w->shared.summary, &summary, err)
								      : 0;
			rc = rc ? rc : send_news(w, &n, summary, call, err);
			ptc_free(summary);
			if (rc)
				return rc;
			sent = n.version;
		}
		if (n.finished)
			return 0;
		if (ptc_rpc_call_cancelled(call))
			return ptc_error_set(err, PTC_ECANCELED, "the client went away; the switch goes on");
	}
}

int ptc_watcher_wait_end(struct ptc_watcher *w, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct news n = { 0 };

	for (;;) {
		wait_news(w, &n);
		if (n.finished)
			return 0;
		if (ptc_rpc_call_cancelled(call))
			return ptc_error_set(err, PTC_ECANCELED, "the client went away");
	}
}

int ptc_watcher_wait_phase(struct ptc_watcher *w, const char *phase, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct news n = { 0 };

	for (;;) {
		wait_news(w, &n);
		if (n.finished)
			return ptc_error_set(err, n.status ? n.status : PTC_ESTATE, "%s", n.text);
		if (strcmp(n.phase, phase) == 0)
			return 0;
		if (ptc_rpc_call_cancelled(call))
			return ptc_error_set(err, PTC_ECANCELED, "the client went away");
	}
}
