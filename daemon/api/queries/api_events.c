/* SPDX-License-Identifier: Apache-2.0 */
/* The call behind `ptcctl events`: a job's event log. Happy path: etcd has the log. While etcd is unreachable, the
 * answer has the events that this daemon and the daemons of the job's nodes remember (job_events.c). The answer has
 * each event once, all in one order, and the time up to which the events are complete. Failure modes: PEERS_MS is for
 * all nodes together: those that have not answered by then add nothing; nobody remembers anything: no lines, as for a
 * job without events. */
#include "base/alloc.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "daemon/api/queries/queries.h"
#include "daemon/cluster/job_events.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLLOW_POLL_MS 300
#define FOLLOWERS_SLOW 16   /* so many of them and each asks half as often; etcd is asked 50 times a second at most */
#define PEERS_MS       2000 /* for all nodes that are asked, one after the other: a thread is held meanwhile */
#define PEERS_MAX      64

/* Those after `after`. */
static int from_etcd(struct ptc_daemon *d, const char *uuid, uint64_t after, struct ptc_event_texts *to,
		     struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	char prefix[96];
	int rc;

	snprintf(prefix, sizeof prefix, "/ptc/events/%s/", uuid);
	rc = ptc_etcd_get(ptc_cluster_etcd(d->cluster), prefix, true, 0, &kvs, err);
	for (size_t i = 0; rc == 0 && i < kvs.n; i++) {
		uint64_t number = strtoull(kvs.kv[i].key + strlen(prefix), NULL, 10);

		if (number > after)
			rc = ptc_event_texts_add(to, number, ptc_strndup(kvs.kv[i].value, kvs.kv[i].len));
	}
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

/* ---- while etcd is unreachable ---- */

static int receive(struct ptc_rpc_stream *s, struct ptc_event_texts *to)
{
	struct ptc_rpc_message *m;
	int rc;

	while ((rc = ptc_rpc_stream_recv(s, &m, NULL)) == 0 && m) {
		Ptc__V1__Document *doc = NULL;

		rc = ptc_pb_message(m, &ptc__v1__document__descriptor, (ProtobufCMessage **)&doc, NULL);
		ptc_rpc_message_done(m);
		if (rc == 0)
			rc = ptc_event_texts_add(to, 0, ptc_strdup(doc->json));
		if (doc)
			ptc_pb_free(&doc->base);
		if (rc)
			return rc;
	}
	return rc;
}

static void from_node(struct ptc_daemon *d, const char *node, const char *address, const struct ptc_meta_doc *meta,
		      int64_t until_ns, struct ptc_event_texts *to)
{
	Ptc__V1__EventsRequest req = PTC__V1__EVENTS_REQUEST__INIT;
	struct ptc_rpc_channel *channel;
	struct ptc_rpc_stream *s = NULL;
	ptc_auto_free void *data = NULL;
	char uid[16];
	int64_t left_ms = (until_ns - ptc_sys_now_ns()) / 1000000;
	size_t len;

	snprintf(uid, sizeof uid, "%u", (unsigned)meta->uid);
	req.version = PTC_WIRE_VERSION;
	req.job = (char *)(uintptr_t)meta->name; /* packing only reads */
	if (left_ms <= 0 || !address[0] || ptc_channels_get(d->channels, node, address, false, 0, &channel, NULL) ||
	    ptc_pb_encode(&req.base, &data, &len, NULL) ||
	    ptc_rpc_stream_open(channel, "/ptc.v1.Control/Events", (int)left_ms,
				(struct ptc_rpc_meta[]){ { "ptc-uid", uid }, { "ptc-forwarded", "1" } }, 2, &s, NULL))
		return;
	if (ptc_rpc_stream_send(s, &(struct ptc_rpc_part){ .data = data, .len = len }, 1, NULL) == 0 &&
	    ptc_rpc_stream_half_close(s, NULL) == 0)
		(void)receive(s, to);
	ptc_rpc_stream_free(s);
}

static int remembered(struct ptc_daemon *d, struct ptc_rpc_call *call, struct ptc_target *t, struct ptc_event_texts *to,
		      struct ptc_error *err)
{
	const int64_t until_ns = ptc_sys_now_ns() + PEERS_MS * INT64_C(1000000);
	struct ptc_error ignored = PTC_ERROR_INIT;
	struct ptc_view v;
	int rc = ptc_events_remembered(t->meta.uuid, to);

	if (rc)
		return ptc_error_set(err, rc, "out of memory");
	if (t->has_lock && strcmp(t->controller, d->config.node) != 0)
		from_node(d, t->controller, t->address, &t->meta, until_ns, to);
	if (!t->has_record || ptc_api_view(d, t, false, true, &v, &ignored) != 0)
		return 0;
	for (size_t i = 0; i < v.nnodes && i < PEERS_MAX && !ptc_rpc_call_cancelled(call); i++)
		if (strcmp(v.nodes[i], d->config.node) != 0 && (!t->has_lock || strcmp(v.nodes[i], t->controller) != 0))
			from_node(d, v.nodes[i], v.addresses[i], &t->meta, until_ns, to);
	ptc_view_done(&v);
	return 0;
}

/* ---- both ---- */

static int by_number(const void *a, const void *b)
{
	uint64_t x = ((const struct ptc_event_text *)a)->number, y = ((const struct ptc_event_text *)b)->number;

	return x < y ? -1 : x > y;
}

/* Leaves those after `after`, each once. */
static void put_in_order(struct ptc_event_texts *events, uint64_t after)
{
	size_t kept = 0;

	if (events->n)
		qsort(events->v, events->n, sizeof *events->v, by_number);
	for (size_t i = 0; i < events->n; i++) {
		struct ptc_event_text event = events->v[i];

		if (event.number <= after) {
			ptc_free(event.json);
			continue;
		}
		events->v[kept++] = event;
		after = event.number;
	}
	events->n = kept;
}

struct followed {
	struct ptc_daemon *d;
	struct ptc_target t;
	uint64_t after;
	uint32_t limit; /* of the first look; 0: none */
	bool follow;
};

static atomic_int followers; /* of this daemon */

static void followed_free(void *arg)
{
	struct followed *f = arg;

	if (f->follow)
		atomic_fetch_sub(&followers, 1);
	ptc_free(f);
}

/* As far as the caller takes it. *ret_all: there is no more. */
static int send_in_order(struct followed *f, struct ptc_rpc_call *call, const struct ptc_event_texts *events,
			 bool dated, bool *ret_all, struct ptc_error *err)
{
	size_t i = f->limit && events->n > f->limit ? events->n - f->limit : 0;
	int rc = 0;

	for (; rc == 0 && i < events->n && !ptc_rpc_call_full(call); i++) {
		json_t *json = ptc_event_text_json(&events->v[i]);

		f->after = events->v[i].number;
		rc = ptc_api_send_json(call, dated ? ptc_api_dated(f->d, json) : json, err);
	}
	f->limit = 0;
	*ret_all = i >= events->n;
	return rc;
}

static int send_events(struct followed *f, struct ptc_rpc_call *call, bool *ret_all, struct ptc_error *err)
{
	bool forwarded = ptc_rpc_call_meta(call, "ptc-forwarded") != NULL, unreachable = false;
	struct ptc_event_texts events = { 0 };
	int rc = 0;

	if (!forwarded && !ptc_api_as_of(f->d)) {
		struct ptc_error why = PTC_ERROR_INIT;

		rc = from_etcd(f->d, f->t.meta.uuid, f->after, &events, &why);
		unreachable = rc == PTC_ECOORD || rc == PTC_ETIMEOUT;
		if (rc && !unreachable)
			ptc_error_set(err, rc, "%s", why.text);
	} else {
		unreachable = true;
	}
	if (unreachable)
		rc = forwarded ? ptc_events_remembered(f->t.meta.uuid, &events)
			       : remembered(f->d, call, &f->t, &events, err);
	if (rc == 0) {
		put_in_order(&events, f->after);
		rc = send_in_order(f, call, &events, !forwarded, ret_all, err);
	}
	ptc_event_texts_done(&events);
	return rc;
}

static int events_step(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct followed *f = arg;
	bool all = false;
	int rc = send_events(f, call, &all, err);

	if (rc || (all && !f->follow))
		return rc;
	ptc_rpc_call_again(call, all ? FOLLOW_POLL_MS * (1 + atomic_load(&followers) / FOLLOWERS_SLOW) : 0);
	return 0;
}

PTC_API_HANDLER(ptc_api_events)
{
	struct followed *f;
	Ptc__V1__EventsRequest *req;
	struct ptc_target t;
	int rc = ptc_pb_call_recv(call, &ptc__v1__events_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = ptc_api_find(arg, call, req->job, &t, err);
	f = rc ? NULL : ptc_calloc(1, sizeof *f);
	if (f) {
		*f = (struct followed){
			.d = arg, .t = t, .after = req->after, .limit = req->limit, .follow = req->follow
		};
		if (f->follow)
			atomic_fetch_add(&followers, 1);
		ptc_rpc_call_follow(call, 0, events_step, f, followed_free);
	} else if (!rc) {
		rc = ptc_nomem(err);
	}
	ptc_pb_free(&req->base);
	return rc;
}
