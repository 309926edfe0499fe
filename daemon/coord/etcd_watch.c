/* SPDX-License-Identifier: Apache-2.0 */
/* A watch of etcd's keys: a listing, then every change after it, on a thread of its own.
 *
 *            +--------- failed, cancelled or compacted: pause ---------+
 *            v                                                         |
 *   RESET, list the prefix (PUT...), SYNCED  ->  stream from revision + 1
 *
 * Happy path: one listing, then events as they come.
 *
 * Failure modes: every one of them ends the stream, and the next round lists
 * again from whichever endpoint answers. That is right also where the stream
 * could have been resumed (compaction, a restored or replaced etcd with lower
 * revisions), and listings are small. Rounds that fail are 100 ms to 2 s apart.
 * The listing is streamed to the callback: nothing is held but one page.
 *
 * A watch of changes alone lists nothing: it asks for the key that is the
 * prefix itself, whose answer has the revision. */
#include "daemon/coord/etcd_i.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"

#include <inttypes.h>
#include <string.h>

#define PAUSE_MIN_MS 100
#define PAUSE_MAX_MS 2000

struct ptc_etcd_watch {
	struct ptc_etcd_task task;
	struct ptc_etcd *e;
	char *prefix;
	ptc_watch_fn fn;
	void *arg;
	bool lists;       /* what is there, before changes */
	int64_t revision; /* everything up to it was delivered */
};

static int emit(struct ptc_etcd_watch *w, enum ptc_watch_kind kind, const Ptc__Etcd__KeyValue *kv,
		struct ptc_error *err)
{
	struct ptc_etcd_kv copy;
	int rc;

	if (!ptc_etcd_key_ok(kv))
		return 0;
	rc = ptc_etcd_kv_copy(kv, &copy, err);
	if (rc)
		return rc;
	w->fn(w->arg, kind, &copy);
	ptc_etcd_kv_done(&copy);
	return 0;
}

/* ---- the listing ---------------------------------------------------------- */

static int list_key(void *arg, const Ptc__Etcd__KeyValue *kv, struct ptc_error *err)
{
	struct ptc_etcd_watch *w = arg;

	if (ptc_etcd_task_wait(&w->task, 0))
		return ptc_error_set(err, PTC_ECANCELED, "the watch is being stopped");
	return emit(w, PTC_WATCH_PUT, kv, err);
}

static void list_restart(void *arg)
{
	struct ptc_etcd_watch *w = arg;

	w->fn(w->arg, PTC_WATCH_RESET, NULL);
}

static int list(struct ptc_etcd_watch *w, struct ptc_error *err)
{
	struct ptc_etcd_lister to = { list_key, list_restart, w };
	int rc;

	w->fn(w->arg, PTC_WATCH_RESET, NULL);
	rc = ptc_etcd_list(w->e, w->prefix, w->lists, &to, &w->revision, err);
	if (rc == 0)
		w->fn(w->arg, PTC_WATCH_SYNCED, NULL);
	return rc;
}

/* ---- the stream ------------------------------------------------------------ */

static int request_watch(struct ptc_etcd_watch *w, struct ptc_rpc_stream *s, struct ptc_error *err)
{
	Ptc__Etcd__WatchRequest req = PTC__ETCD__WATCH_REQUEST__INIT;
	Ptc__Etcd__WatchCreateRequest create = PTC__ETCD__WATCH_CREATE_REQUEST__INIT;
	struct ptc_rpc_part part = { 0 };
	ptc_auto_free void *data = NULL;
	int rc = ptc_etcd_prefix_end(w->prefix, &create.range_end, err);

	if (rc)
		return rc;
	create.key = ptc_etcd_bytes(w->prefix, strlen(w->prefix));
	create.start_revision = w->revision + 1;
	req.request_union_case = PTC__ETCD__WATCH_REQUEST__REQUEST_UNION_CREATE_REQUEST;
	req.create_request = &create;
	rc = ptc_pb_encode(&req.base, &data, &part.len, err);
	ptc_free(create.range_end.data);
	if (rc)
		return rc;
	part.data = data;
	return ptc_rpc_stream_send(s, &part, 1, err);
}

static int take_response(struct ptc_etcd_watch *w, const Ptc__Etcd__WatchResponse *r, struct ptc_error *err)
{
	int rc = 0;

	if (r->canceled && r->compact_revision)
		return ptc_error_set(err, PTC_ESTATE, "compacted up to %" PRId64, r->compact_revision);
	if (r->canceled)
		return ptc_error_set(err, PTC_ECOORD, "cancelled by etcd: %s", r->cancel_reason);
	for (size_t i = 0; i < r->n_events && !rc; i++) {
		const Ptc__Etcd__Event *ev = r->events[i];
		bool del = ev->type == PTC__ETCD__EVENT__EVENT_TYPE__DELETE;

		if (ev->kv)
			rc = emit(w, del ? PTC_WATCH_DELETE : PTC_WATCH_PUT, ev->kv, err);
	}
	if (!rc && r->header)
		w->revision = PTC_MAX(w->revision, r->header->revision);
	return rc;
}

static int take_message(struct ptc_etcd_watch *w, struct ptc_rpc_message *m, struct ptc_error *err)
{
	size_t len = ptc_rpc_message_len(m);
	ptc_auto_free void *data = ptc_malloc(len);
	ProtobufCMessage *msg;
	int rc;

	if (!data)
		return ptc_nomem(err);
	if (ptc_rpc_message_read(m, data, len) != len)
		return ptc_error_set(err, PTC_EPEER, "a message shorter than announced");
	rc = ptc_pb_decode(&ptc__etcd__watch_response__descriptor, data, len, &msg, err);
	if (rc)
		return rc;
	rc = take_response(w, (const Ptc__Etcd__WatchResponse *)msg, err);
	ptc_pb_free(msg);
	return rc;
}

/* Delivers until the stream ends; never returns 0. */
static int follow(struct ptc_etcd_watch *w, struct ptc_rpc_stream *s, struct ptc_error *err)
{
	struct ptc_rpc_message *m;
	int rc = request_watch(w, s, err);

	while (!rc) {
		rc = ptc_rpc_stream_recv(s, &m, err);
		if (rc)
			break;
		if (!m) {
			rc = ptc_rpc_stream_finish(s, err);
			return rc ? rc : ptc_error_set(err, PTC_ECOORD, "etcd ended the stream");
		}
		rc = take_message(w, m, err);
		ptc_rpc_message_done(m);
	}
	return rc;
}

static int stream(struct ptc_etcd_watch *w, struct ptc_error *err)
{
	/* a member that lost its cluster then ends the stream instead of staying silent */
	const struct ptc_rpc_meta leader = { "hasleader", "true" };
	size_t which = atomic_load(&w->e->preferred); /* it has just answered the listing */
	struct ptc_rpc_stream *s;
	int rc = ptc_rpc_stream_open(w->e->ep[which].channel, "/etcdserverpb.Watch/Watch", 0, &leader, 1, &s, err);

	if (rc)
		return rc;
	if (ptc_etcd_task_stream(&w->task, s))
		rc = follow(w, s, err);
	else
		rc = ptc_error_set(err, PTC_ECANCELED, "the watch is being stopped");
	ptc_etcd_task_stream(&w->task, NULL);
	ptc_rpc_stream_free(s);
	return rc;
}

static void watch_run(struct ptc_etcd_task *t)
{
	struct ptc_etcd_watch *w = (struct ptc_etcd_watch *)t; /* first member */
	int64_t pause_ms = PAUSE_MIN_MS;

	for (;;) {
		struct ptc_error err = PTC_ERROR_INIT;
		int rc = list(w, &err);

		if (rc == 0) {
			pause_ms = PAUSE_MIN_MS;
			stream(w, &err);
		}
		if (ptc_etcd_task_wait(t, 0))
			return;
		ptc_debug("etcd", "watch of %s starts again: %s", w->prefix, err.text);
		if (ptc_etcd_task_wait(t, pause_ms))
			return;
		pause_ms = PTC_MIN(pause_ms * 2, PAUSE_MAX_MS);
	}
}

static int watch_new(struct ptc_etcd *e, const char *prefix, bool lists, ptc_watch_fn fn, void *arg,
		     struct ptc_etcd_watch **ret_watch, struct ptc_error *err)
{
	struct ptc_etcd_watch *w;
	int rc;

	if (!*prefix)
		return ptc_error_set(err, PTC_EINVAL, "a watch needs a key prefix");
	w = ptc_calloc(1, sizeof *w);
	if (!w)
		return ptc_nomem(err);
	w->e = e;
	w->fn = fn;
	w->arg = arg;
	w->lists = lists;
	w->prefix = ptc_strdup(prefix);
	rc = w->prefix ? ptc_etcd_task_start(&w->task, e, "ptc-watch", watch_run, err) : ptc_nomem(err);
	if (rc) {
		ptc_free(w->prefix);
		ptc_free(w);
		return rc;
	}
	*ret_watch = w;
	return 0;
}

int ptc_etcd_watch_new(struct ptc_etcd *e, const char *prefix, ptc_watch_fn fn, void *arg,
		       struct ptc_etcd_watch **ret_watch, struct ptc_error *err)
{
	return watch_new(e, prefix, true, fn, arg, ret_watch, err);
}

int ptc_etcd_watch_changes(struct ptc_etcd *e, const char *prefix, ptc_watch_fn fn, void *arg,
			   struct ptc_etcd_watch **ret_watch, struct ptc_error *err)
{
	return watch_new(e, prefix, false, fn, arg, ret_watch, err);
}

struct ptc_etcd_watch *ptc_etcd_watch_free(struct ptc_etcd_watch *w)
{
	if (!w)
		return NULL;
	ptc_etcd_task_stop(&w->task);
	ptc_etcd_task_done(&w->task);
	ptc_free(w->prefix);
	ptc_free(w);
	return NULL;
}
