/* SPDX-License-Identifier: Apache-2.0 */
/* Tells a caller the end of a switch whose controller has gone. It is read from etcd, so a client hears the switch's
 * real outcome, whichever daemon carries the switch on.
 *
 * Happy path: the intent names the switch, which is under way. Then the record names the switch, which is committed,
 * and the switch's event has the summary. Failure modes: the barrier key names the switch (aborted; the event says
 * why). A later lock exists, and neither intent nor record names the switch (it was never recorded, and may be asked
 * for again). etcd is unreachable (waited for, up to SILENT_NS). The job is deleted. A daemon could not write the event
 * (the outcome is told without its details). One step on a call's thread reads etcd once. */
#include "base/alloc.h"
#include "base/number/fence.h"
#include "base/sys/sys.h"
#include "daemon/api/caller/caller.h"
#include "daemon/cluster/job_events.h"
#include "formats/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LOOK_MS    200
#define EVENT_NS   (5 * INT64_C(1000000000))  /* how long an event may be behind the record */
#define SILENT_NS  (15 * INT64_C(1000000000)) /* etcd does not answer */
#define UNCLEAR_NS (30 * INT64_C(1000000000)) /* the same controller, or none, and no trace of the switch */

struct ptc_tail {
	struct ptc_daemon *d;
	struct ptc_meta_doc meta;
	int64_t fence; /* of the controller that was asked */
	uint64_t id;
	bool waits;        /* by ptc_tail_wait: no steps, and nobody takes the summary */
	bool over;         /* of a tail that waits: it was committed */
	bool seen;         /* its intent was there */
	int64_t ended_ns;  /* when we saw that it had ended; 0: not yet */
	int64_t began_ns;  /* of following */
	int64_t silent_ns; /* since when etcd does not answer; 0: it does */
	char said[256];    /* progress, sent last */
	struct ptc_record_doc record;
};

/* What is written down of the job, at one revision. */
struct trace {
	bool job, under_way, committed, cleared, has_lock;
	int64_t lock_fence;
	char node[PTC_NAME_MAX + 1]; /* who holds the lock */
};

int ptc_tail_new(struct ptc_daemon *d, const struct ptc_target *t, uint64_t id, struct ptc_tail **ret_tail,
		 struct ptc_error *err)
{
	struct ptc_tail *tail = ptc_calloc(1, sizeof *tail);

	if (!tail)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory; the switch goes on");
	*tail = (struct ptc_tail){ .d = d, .meta = t->meta, .fence = t->fence, .id = id, .began_ns = ptc_sys_now_ns() };
	*ret_tail = tail;
	return 0;
}

struct ptc_tail *ptc_tail_free(struct ptc_tail *tail)
{
	ptc_free(tail);
	return NULL;
}

/* leaf: the key below the job's own. Those of nodes have a slash, whatever the nodes are called. */
static void read_key(struct ptc_tail *tail, const char *leaf, const struct ptc_etcd_kv *kv, struct trace *t)
{
	struct ptc_intent_doc intent;
	struct ptc_barrier_doc barrier;
	struct ptc_lock_doc lock;

	if (strcmp(leaf, "meta") == 0) {
		t->job = true;
	} else if (strcmp(leaf, "record") == 0) {
		t->committed = ptc_record_doc_decode(kv->value, kv->len, &tail->record, NULL) == 0 &&
			       tail->record.switch_id == tail->id;
	} else if (strcmp(leaf, "intent") == 0) {
		t->under_way = ptc_intent_doc_decode(kv->value, kv->len, &intent, NULL) == 0 && intent.id == tail->id;
	} else if (strcmp(leaf, "barrier") == 0) {
		t->cleared =
			ptc_barrier_doc_decode(kv->value, kv->len, &barrier, NULL) == 0 && barrier.cleared == tail->id;
	} else if (strcmp(leaf, "lock") == 0) {
		t->has_lock = true;
		t->lock_fence = ptc_fence(ptc_cluster_coordination_epoch(tail->d->cluster), kv->create_revision);
		if (ptc_lock_doc_decode(kv->value, kv->len, &lock, NULL) == 0)
			snprintf(t->node, sizeof t->node, "%s", lock.node);
	}
}

static int look(struct ptc_tail *tail, struct trace *ret_trace, struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	char prefix[96];
	int rc;

	memset(ret_trace, 0, sizeof *ret_trace);
	snprintf(prefix, sizeof prefix, "/ptc/jobs/%s/", tail->meta.uuid);
	rc = ptc_etcd_get(ptc_cluster_etcd(tail->d->cluster), prefix, true, 0, &kvs, err);
	for (size_t i = 0; rc == 0 && i < kvs.n; i++)
		read_key(tail, kvs.kv[i].key + strlen(prefix), &kvs.kv[i], ret_trace);
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

/* The switch's own event, committed or aborted. */
struct ended {
	char *json; /* NULL: there is none (yet) */
	struct ptc_event_doc doc;
};

static void ended_done(struct ended *e)
{
	ptc_event_doc_done(&e->doc);
	ptc_free(e->json);
}

static struct ended find_event(const struct ptc_tail *tail)
{
	struct ptc_etcd_kvs kvs = { 0 };
	struct ended e = { 0 };
	char prefix[96];

	snprintf(prefix, sizeof prefix, "/ptc/events/%s/", tail->meta.uuid);
	if (ptc_etcd_get(ptc_cluster_etcd(tail->d->cluster), prefix, true, 0, &kvs, NULL) != 0)
		return e;
	for (size_t i = kvs.n; i-- > 0 && !e.json;) {
		const struct ptc_etcd_kv *kv = &kvs.kv[i];

		if (ptc_event_doc_decode(kv->value, kv->len, &e.doc, NULL) == 0 && e.doc.end.id == tail->id)
			e.json = ptc_strndup(kv->value, kv->len);
		if (!e.json)
			ptc_event_doc_done(&e.doc);
	}
	ptc_etcd_kvs_done(&kvs);
	return e;
}

static int say(struct ptc_tail *tail, struct ptc_rpc_call *call, const char *text, struct ptc_error *err)
{
	Ptc__V1__Progress p = PTC__V1__PROGRESS__INIT;
	char phase[] = "taken-over", empty[] = "";

	if (strcmp(text, tail->said) == 0)
		return 0;
	snprintf(tail->said, sizeof tail->said, "%s", text);
	p.version = PTC_WIRE_VERSION;
	p.phase = phase;
	p.text = tail->said;
	p.summary = empty;
	p.switch_id = tail->id;
	return ptc_pb_call_send(call, &p.base, err);
}

static int go_on(struct ptc_tail *tail, struct ptc_rpc_call *call, const char *text, struct ptc_error *err)
{
	int rc = say(tail, call, text, err);

	if (rc == 0 && !tail->waits)
		ptc_rpc_call_again(call, LOOK_MS);
	return rc;
}

/* The event's text keeps what a person wants of a summary, and what another version says; without it, what the record
 * says. NULL: out of memory. */
static char *summary_text(const struct ptc_tail *tail, const struct ended *e)
{
	json_t *event = NULL, *root;
	char *text;

	if (e->json && ptc_json_load("event", e->json, strlen(e->json), &event, NULL) == 0)
		root = json_incref(json_object_get(event, "switch"));
	else
		root = json_pack("{s:s, s:I, s:I, s:I, s:I}", "kind", "switch", "generation",
				 (json_int_t)tail->record.generation, "snapshot", (json_int_t)tail->record.snapshot,
				 "step", (json_int_t)tail->record.step, "id", (json_int_t)tail->id);
	json_object_update_new(root, json_pack("{s:i, s:s, s:[], s:b}", "version", 1, "job", tail->meta.name, "phases",
					       "taken_over", 1));
	text = root ? ptc_json_text(root) : NULL;
	json_decref(root);
	json_decref(event);
	return text;
}

static int send_summary(struct ptc_tail *tail, struct ptc_rpc_call *call, const struct ended *e, struct ptc_error *err)
{
	Ptc__V1__Progress p = PTC__V1__PROGRESS__INIT;
	char phase[] = "done", empty[] = "", *text;
	int rc;

	if (tail->waits) {
		tail->over = true;
		return 0;
	}
	text = summary_text(tail, e);
	if (!text)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory; the switch was committed");
	p.version = PTC_WIRE_VERSION;
	p.phase = phase;
	p.text = empty;
	p.finished = true;
	p.summary = text;
	p.switch_id = tail->id;
	rc = ptc_pb_call_send(call, &p.base, err);
	ptc_free(text);
	return rc;
}

static int came_to_nothing(const struct ended *e, struct ptc_error *err)
{
	const struct ptc_switch_end *end = &e->doc.end;

	if (!e->json)
		return ptc_error_set(err, PTC_EFENCED,
				     "the node that controlled the job is gone, and the one that took over aborted the "
				     "switch; `ptcctl events` says why");
	return ptc_error_set(err, end->status ? ptc_status_from_wire(end->status) : PTC_ESTATE, "%s",
			     end->why ? end->why : "");
}

/* It has ended: with its event, or without where that does not come. */
static int end(struct ptc_tail *tail, struct ptc_rpc_call *call, const struct trace *t, struct ptc_error *err)
{
	int64_t now = ptc_sys_now_ns();
	struct ended e = find_event(tail);
	bool committed = t->committed || (e.doc.kind && strcmp(e.doc.kind, "committed") == 0);
	int rc;

	tail->ended_ns = tail->ended_ns ? tail->ended_ns : now;
	if (!e.json && now - tail->ended_ns < EVENT_NS)
		return go_on(tail, call, tail->said, err);
	rc = committed ? send_summary(tail, call, &e, err) : came_to_nothing(&e, err);
	ended_done(&e);
	return rc;
}

/* There is no trace of it now. */
static int untraced(struct ptc_tail *tail, struct ptc_rpc_call *call, const struct trace *t, struct ptc_error *err)
{
	bool later = t->has_lock && t->lock_fence != tail->fence;
	struct ended e = find_event(tail);
	bool known = tail->seen || e.json;

	ended_done(&e);
	if (known) /* another switch has ended since */
		return end(tail, call, t, err);
	if (later)
		return ptc_error_set(err, PTC_EFENCED,
				     "the node that controlled the job is gone, and the switch was not recorded: "
				     "nothing was done; ask again (node %s controls the job now)",
				     t->node);
	if (ptc_sys_now_ns() - tail->began_ns > UNCLEAR_NS)
		return ptc_error_set(err, PTC_EPEER,
				     "the connection to the job's controller broke, and etcd has no record of the "
				     "switch; `ptcctl status %s` says whether it is under way",
				     tail->meta.name);
	return go_on(tail, call, "the connection to the job's controller broke", err);
}

/* etcd may only be restarted, which takes seconds; who asked is not kept for longer. */
static int unanswered(struct ptc_tail *tail, struct ptc_rpc_call *call, struct ptc_error *err)
{
	int64_t now = ptc_sys_now_ns();

	tail->silent_ns = tail->silent_ns ? tail->silent_ns : now;
	if (now - tail->silent_ns > SILENT_NS)
		return ptc_error_set(err, PTC_ECOORD,
				     "the connection to the job's controller broke and etcd does not answer; once it "
				     "does, `ptcctl status %s` shows the outcome of the switch",
				     tail->meta.name);
	return go_on(tail, call, "the coordinator does not answer", err);
}

int ptc_tail_step(struct ptc_tail *tail, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct trace t;
	char text[256];

	if (look(tail, &t, &why) != 0)
		return unanswered(tail, call, err);
	tail->silent_ns = 0;
	if (!t.job)
		return ptc_error_set(err, PTC_ENOTFOUND, "job \"%s\" was deleted meanwhile", tail->meta.name);
	if (t.committed || t.cleared)
		return end(tail, call, &t, err);
	if (!t.under_way)
		return untraced(tail, call, &t, err);
	tail->seen = true;
	tail->ended_ns = 0;
	if (t.has_lock && t.lock_fence != tail->fence)
		snprintf(text, sizeof text, "node %s carries the switch on", t.node);
	else
		snprintf(text, sizeof text, "the job's controller is gone; another node takes over soon");
	return go_on(tail, call, text, err);
}

struct tail_wait {
	struct ptc_tail *tail;
	uint64_t changes; /* of the job's keys, at the last look */
	bool looked;
};

static bool has_changed(void *arg)
{
	struct tail_wait *w = arg;
	const struct ptc_job_view *j = ptc_cluster_find_uuid(w->tail->d->cluster, w->tail->meta.uuid);
	uint64_t now = j ? j->changes : 0;
	bool changed = w->looked && now != w->changes;

	w->looked = true;
	w->changes = now;
	return changed;
}

/* Silence of etcd's changes nothing: one look in LOOK_MS is made whatever happens. */
int ptc_tail_wait(struct ptc_tail *tail, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct tail_wait w = { .tail = tail };
	int rc = 0;

	tail->waits = true;
	while (rc == 0 && !tail->over) {
		rc = ptc_rpc_call_cancelled(call) ? ptc_error_set(err, PTC_ECANCELED, "the client went away")
						  : ptc_tail_step(tail, call, err);
		if (rc == 0 && !tail->over && ptc_api_wait(tail->d, call, has_changed, &w, LOOK_MS) == PTC_ECANCELED)
			rc = ptc_error_set(err, PTC_ECANCELED, "the client went away, or the daemon stops");
	}
	return rc;
}

bool ptc_tail_worth(int status)
{
	return status == PTC_EFENCED || status == PTC_EPEER || status == PTC_ECANCELED;
}
