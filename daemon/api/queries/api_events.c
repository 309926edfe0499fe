/* SPDX-License-Identifier: Apache-2.0 */
/* The call behind `ptcctl events`: a job's event log. Happy path: etcd has the log. While etcd is unreachable, the
 * answer has the events that this daemon and the daemons of the job's nodes remember (job_events.c). The answer has
 * each event once, and the time up to which the events are complete. A call that follows is woken by each new event
 * (event_feed.h), and then reads from etcd only what was written since its last read, in the order of numbers. So an
 * event with a lower number that comes later is told, too: clocks of daemons differ. Failure modes: PEERS_MS is for all
 * nodes together: those that have not answered by then add nothing; nobody remembers anything: no lines, as for a job
 * without events. While etcd is unreachable, a call that follows looks whenever the watch tries etcd again. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "daemon/api/queries/event_feed.h"
#include "daemon/api/queries/queries.h"
#include "daemon/cluster/job_events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PEERS_MS  2000 /* for all nodes that are asked, one after the other: a thread is held meanwhile */
#define PEERS_MAX 64

struct followed {
	struct ptc_daemon *d;
	struct ptc_target t;
	uint64_t after;   /* the highest number that was told; at first what the caller has */
	uint32_t limit;   /* of the first look; 0: none */
	int64_t revision; /* of the last read from etcd; 0: none */
	bool guessed;     /* since then, remembered events were told: numbers alone say which */
	bool follow;
	struct ptc_event_follower follower;
	struct ptc_read_events events; /* of the last look */
	size_t at;                     /* the next one to send */
};

static int from_etcd(struct followed *f, struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	char prefix[96];
	int rc;

	snprintf(prefix, sizeof prefix, "/ptc/events/%s/", f->t.meta.uuid);
	rc = ptc_etcd_get_since(ptc_cluster_etcd(f->d->cluster), prefix, f->revision, &kvs, err);
	if (rc == 0 && kvs.revision < f->revision) { /* etcd was restored from a backup */
		ptc_etcd_kvs_done(&kvs);
		f->guessed = true;
		rc = ptc_etcd_get_since(ptc_cluster_etcd(f->d->cluster), prefix, 0, &kvs, err);
	}
	for (size_t i = 0; rc == 0 && i < kvs.n; i++)
		rc = ptc_read_events_add(&f->events, strtoull(kvs.kv[i].key + strlen(prefix), NULL, 10),
					 kvs.kv[i].value, kvs.kv[i].len);
	if (rc == 0) {
		ptc_read_events_sort(&f->events, f->revision && !f->guessed ? 0 : f->after);
		f->revision = kvs.revision;
		f->guessed = false;
	}
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

/* ---- while etcd is unreachable ---- */

static int receive(struct ptc_rpc_stream *s, struct ptc_read_events *to)
{
	struct ptc_rpc_message *m;
	int rc;

	while ((rc = ptc_rpc_stream_recv(s, &m, NULL)) == 0 && m) {
		Ptc__V1__Document *doc = NULL;

		rc = ptc_pb_message(m, &ptc__v1__document__descriptor, (ProtobufCMessage **)&doc, NULL);
		ptc_rpc_message_done(m);
		if (rc == 0)
			rc = ptc_read_events_add(to, 0, doc->json, strlen(doc->json));
		if (doc)
			ptc_pb_free(&doc->base);
		if (rc)
			return rc;
	}
	return rc;
}

static void from_node(struct ptc_daemon *d, const char *node, const char *address, const struct ptc_meta_doc *meta,
		      int64_t until_ns, struct ptc_read_events *to)
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

static int remembered(struct ptc_daemon *d, struct ptc_rpc_call *call, struct ptc_target *t, struct ptc_read_events *to,
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

static void followed_free(void *arg)
{
	struct followed *f = arg;

	ptc_event_feed_leave(&f->follower);
	ptc_read_events_done(&f->events);
	ptc_free(f);
}

static int look(struct followed *f, struct ptc_rpc_call *call, struct ptc_error *err)
{
	bool forwarded = ptc_rpc_call_meta(call, "ptc-forwarded") != NULL;
	struct ptc_error why = PTC_ERROR_INIT;
	int rc = PTC_ECOORD;

	ptc_read_events_done(&f->events);
	if (!forwarded && !ptc_api_as_of(f->d))
		rc = from_etcd(f, &why);
	if (rc == PTC_ECOORD || rc == PTC_ETIMEOUT) {
		why = (struct ptc_error)PTC_ERROR_INIT;
		rc = forwarded ? ptc_events_remembered(f->t.meta.uuid, &f->events)
			       : remembered(f->d, call, &f->t, &f->events, &why);
		ptc_read_events_sort(&f->events, f->after);
		f->guessed = true;
	}
	f->at = f->limit && f->events.n > f->limit ? f->events.n - f->limit : 0;
	f->limit = 0;
	return rc ? ptc_error_set(err, rc, "%s", why.text) : 0;
}

/* As far as the caller takes it. */
static int send_events(struct followed *f, struct ptc_rpc_call *call, struct ptc_error *err)
{
	bool dated = !ptc_rpc_call_meta(call, "ptc-forwarded");
	int rc = 0;

	for (; rc == 0 && f->at < f->events.n && !ptc_rpc_call_full(call); f->at++) {
		const struct ptc_read_event *e = &f->events.v[f->at];
		json_t *json = json_incref(e->json);

		f->after = PTC_MAX(f->after, e->number);
		rc = ptc_api_send_json(call, dated ? ptc_api_dated(f->d, json) : json, err);
	}
	return rc;
}

static int events_step(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct followed *f = arg;
	bool looks = f->at == f->events.n, all;
	int rc = looks ? look(f, call, err) : 0;

	if (rc == 0)
		rc = send_events(f, call, err);
	all = f->at == f->events.n;
	if (rc || (all && !f->follow))
		return rc;
	ptc_rpc_call_again(call, looks && all ? PTC_RPC_WOKEN : 0);
	return 0;
}

PTC_API_HANDLER(ptc_api_events)
{
	struct ptc_daemon *d = arg;
	struct followed *f;
	Ptc__V1__EventsRequest *req;
	struct ptc_target t;
	int rc = ptc_pb_call_recv(call, &ptc__v1__events_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = ptc_api_find(d, call, req->job, &t, err);
	f = rc ? NULL : ptc_calloc(1, sizeof *f);
	if (f) {
		*f = (struct followed){
			.d = d, .t = t, .after = req->after, .limit = req->limit, .follow = req->follow
		};
		f->follower = (struct ptc_event_follower){ .uuid = f->t.meta.uuid, .call = call };
		if (f->follow)
			rc = ptc_event_feed_join(d->event_feed, ptc_cluster_etcd(d->cluster), &f->follower, err);
		if (rc == 0)
			ptc_rpc_call_follow(call, 0, events_step, f, followed_free);
		else
			followed_free(f);
	} else if (!rc) {
		rc = ptc_nomem(err);
	}
	ptc_pb_free(&req->base);
	return rc;
}
