/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the caller of a control call and the job that it means, and forwards to the job's controller.
 *
 * Happy path: any daemon takes a call; what only the controller can do is
 * relayed to it with the caller's uid. Failure modes: a job of somebody else
 * (told it does not exist), no controller within ten seconds (PTC_ESTATE), the
 * controller's daemon gone in the middle (PTC_EPEER; the switch goes on under
 * the next one). */
#include "daemon/api/caller/caller.h"

#include "daemon/controller/taking/lock_taking.h"
#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "formats/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTROLLER_WAIT_MS 10000
#define REF_SHOWN          80 /* of how a caller names a job */
#define MIRROR_LAG_MS      2000
#define MIRROR_WAIT_MS     5000 /* for the first reading of all keys after a start */

/* What is not a number is nobody, never root. */
static uid_t parse_uid(const char *text)
{
	unsigned long uid;
	char *end;

	if (text[0] < '0' || text[0] > '9')
		return (uid_t)-1;
	errno = 0;
	uid = strtoul(text, &end, 10);
	return errno || *end || uid >= (uid_t)-1 ? (uid_t)-1 : (uid_t)uid;
}

uid_t ptc_api_uid(const struct ptc_rpc_call *call)
{
	const struct ptc_rpc_identity *id = ptc_rpc_call_identity(call);
	const char *on_behalf;

	if (id->role == PTC_ROLE_USER)
		return id->uid;
	if (id->role == PTC_ROLE_ADMIN)
		return 0;
	on_behalf = id->role == PTC_ROLE_NODE ? ptc_rpc_call_meta(call, "ptc-uid") : NULL;
	return on_behalf ? parse_uid(on_behalf) : (uid_t)-1;
}

struct find {
	struct ptc_daemon *d;
	const char *name;
	uid_t uid;
	struct ptc_target target;
	bool found, synced;
	struct ptc_error several; /* code 0: there are not */
	bool (*when)(const struct ptc_target *t, const void *arg);
	const void *arg;
};

static void find_on_loop(void *arg)
{
	struct find *f = arg;
	struct ptc_job_view *j;
	struct ptc_target *t = &f->target;
	uint32_t node;

	memset(t, 0, sizeof *t);
	f->found = false;
	f->several.code = 0;
	f->synced = ptc_cluster_synced(f->d->cluster);
	if (!ptc_cluster_listed(f->d->cluster) ||
	    ptc_cluster_find_job(f->d->cluster, f->name, f->uid, &j, &f->several) != 0)
		return;
	f->found = true;
	t->epoch = ptc_cluster_epoch(f->d->cluster);
	t->copies_revision = j->copies_revision;
	t->changes = j->changes;
	t->meta = j->meta;
	t->has_record = j->has_record;
	t->bad_record = j->bad_record;
	snprintf(t->unreadable, sizeof t->unreadable, "%s", ptc_lock_unreadable_why(j));
	t->has_intent = j->has_intent;
	t->record = j->record;
	t->intent = j->intent;
	if (!j->has_lock || !ptc_cluster_find_node(f->d->cluster, j->lock_node, &node) ||
	    !ptc_cluster_node(f->d->cluster, node)->up)
		return;
	t->has_lock = true;
	memcpy(t->controller, j->lock_node, sizeof t->controller);
	memcpy(t->address, ptc_cluster_node(f->d->cluster, node)->doc.address, sizeof t->address);
	t->ours = ptc_controller_find(&f->d->controllers, j->uuid) != NULL;
	t->fence = j->lock_fence;
}

/* rc: of the wait. */
static int not_found(const struct find *f, int rc, struct ptc_error *err)
{
	if (rc == PTC_ECANCELED)
		return ptc_error_set(err, rc, "the daemon is stopping");
	if (f->several.code)
		return ptc_error_set(err, f->several.code, "%s", f->several.text);
	if (!f->synced || ptc_cluster_lease(f->d->cluster) == 0)
		return ptc_error_set(
			err, PTC_ECOORD,
			"the coordinator is unreachable, has lost its data, or this daemon is still reading its keys; "
			"whether job \"%.*s\" exists is not known here",
			REF_SHOWN, f->name);
	return ptc_error_set(err, PTC_ENOTFOUND, "job \"%.*s\" does not exist; see `ptcctl job list`", REF_SHOWN,
			     f->name);
}

static bool has_listed(void *arg)
{
	return ptc_cluster_listed(arg);
}

int ptc_api_listed(struct ptc_daemon *d, const struct ptc_rpc_call *call, struct ptc_error *err)
{
	int rc = ptc_api_wait(d, call, has_listed, d->cluster, MIRROR_WAIT_MS);

	if (rc == PTC_ECANCELED)
		return ptc_error_set(err, rc, "the daemon is stopping");
	return rc ? ptc_error_set(err, PTC_ECOORD,
				  "node %s has just started and is still reading the coordinator's keys; ask again",
				  d->config.node)
		  : 0;
}

static bool found_or_not(void *arg)
{
	struct find *f = arg;

	find_on_loop(f);
	return f->found || f->synced;
}

int ptc_api_find(struct ptc_daemon *d, const struct ptc_rpc_call *call, const char *name, struct ptc_target *ret_target,
		 struct ptc_error *err)
{
	struct find f = { .d = d, .name = name, .uid = ptc_api_uid(call) };
	int rc = ptc_api_wait(d, call, found_or_not, &f, MIRROR_WAIT_MS);

	if (!f.found)
		return not_found(&f, rc, err);
	*ret_target = f.target;
	return 0;
}

/* A job that is to change somehow, and is gone, is not waited for. */
static bool found_as_wanted(void *arg)
{
	struct find *f = arg;

	find_on_loop(f);
	if (!f->found)
		return f->when && f->synced;
	return !f->when || f->when(&f->target, f->arg);
}

int ptc_api_await(struct ptc_daemon *d, const struct ptc_rpc_call *call, const char *name,
		  bool (*when)(const struct ptc_target *t, const void *arg), const void *arg, int64_t ms,
		  struct ptc_target *ret_target, struct ptc_error *err)
{
	struct find f = { .d = d, .name = name, .uid = ptc_api_uid(call), .when = when, .arg = arg };
	int rc = ptc_api_wait(d, call, found_as_wanted, &f, ms);

	if (!f.found)
		return not_found(&f, rc, err);
	*ret_target = f.target;
	return rc ? ptc_error_set(err, rc, "job %s has not reached the expected state in time; see `ptcctl status`",
				  f.target.meta.name)
		  : 0;
}

static int bad_record(const struct ptc_target *t, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_ESTATE,
			     "key /ptc/jobs/%s/record of job \"%s\" in etcd cannot be read: a newer ptcd wrote it, or "
			     "somebody else did; the state is kept; upgrade this node, or restore the key",
			     t->meta.uuid, t->meta.name);
}

static bool is_controlled(const struct ptc_target *t, const void *arg)
{
	const struct ptc_daemon *d = arg;

	return t->has_lock && (t->ours || strcmp(t->controller, d->config.node) != 0);
}

int ptc_api_find_controlled(struct ptc_daemon *d, const struct ptc_rpc_call *call, const char *name,
			    struct ptc_target *ret_target, struct ptc_error *err)
{
	int rc = ptc_api_find(d, call, name, ret_target, err);

	if (rc == 0 && !is_controlled(ret_target, d) && ret_target->bad_record)
		return bad_record(ret_target, err);
	if (rc == 0 && !is_controlled(ret_target, d))
		rc = ptc_api_await(d, call, name, is_controlled, d, CONTROLLER_WAIT_MS, ret_target, err);
	if (rc != PTC_ETIMEOUT)
		return rc;
	return ptc_error_set(err, PTC_ESTATE,
			     "no daemon has taken control of job \"%s\" in %d s%s%s%s%s; ask again, see `ptcctl nodes`",
			     name, CONTROLLER_WAIT_MS / 1000, ret_target->unreadable[0] ? ": " : "",
			     ret_target->unreadable, ptc_api_as_of(d) ? ": the coordinator does not answer node " : "",
			     ptc_api_as_of(d) ? d->config.node : "");
}

/* forwarded: the controller's daemon must not pass the call on. */
static int open_at_controller(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call,
			      const char *method, const ProtobufCMessage *request, int timeout_ms, bool forwarded,
			      struct ptc_rpc_stream **ret_stream, struct ptc_error *err)
{
	struct ptc_rpc_channel *channel;
	struct ptc_rpc_stream *s = NULL;
	char uid[16];
	void *data = NULL;
	size_t len;
	int rc = ptc_channels_get(d->channels, t->controller, t->address, false, 0, &channel, err);

	snprintf(uid, sizeof uid, "%u", (unsigned)ptc_api_uid(call));
	if (rc == 0)
		rc = ptc_pb_encode(request, &data, &len, err);
	if (rc == 0)
		rc = ptc_rpc_stream_open(channel, method, timeout_ms,
					 (struct ptc_rpc_meta[]){ { "ptc-uid", uid }, { "ptc-forwarded", "1" } },
					 forwarded ? 2 : 1, &s, err);
	if (rc == 0)
		ptc_rpc_stream_follow(s, call);
	if (rc == 0)
		rc = ptc_rpc_stream_send(s, &(struct ptc_rpc_part){ .data = data, .len = len }, 1, err);
	if (rc == 0)
		rc = ptc_rpc_stream_half_close(s, err);
	ptc_free(data);
	if (rc) {
		ptc_rpc_stream_free(s);
		return rc;
	}
	*ret_stream = s;
	return 0;
}

int ptc_api_forward_open(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call,
			 const char *method, const ProtobufCMessage *request, int timeout_ms,
			 struct ptc_rpc_stream **ret_stream, struct ptc_error *err)
{
	if (ptc_rpc_call_meta(call, "ptc-forwarded"))
		return ptc_error_set(err, PTC_ESTATE, "job \"%s\" is changing controllers; try again", t->meta.name);
	return open_at_controller(d, t, call, method, request, timeout_ms, true, ret_stream, err);
}

int ptc_api_ask_open(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call, const char *method,
		     const ProtobufCMessage *request, struct ptc_rpc_stream **ret_stream, struct ptc_error *err)
{
	return open_at_controller(d, t, call, method, request, 0, false, ret_stream, err);
}

struct relay {
	struct ptc_rpc_stream *s;
	int64_t heard_ns;
	/* of a switch */
	bool is_switch;
	struct ptc_daemon *d;
	struct ptc_target t;
	uint64_t id; /* the switch's; 0: its first progress has not come */
	struct ptc_tail *tail;
};

/* Which switch it is about. */
static void note_switch(struct relay *r, const void *data, size_t len)
{
	Ptc__V1__Progress *p = NULL;

	if (ptc_pb_decode(&ptc__v1__progress__descriptor, data, len, (ProtobufCMessage **)&p, NULL) == 0) {
		r->id = p->switch_id;
		ptc_pb_free(&p->base);
	}
}

static int relay_message(struct relay *r, struct ptc_rpc_call *call, struct ptc_rpc_message *m, struct ptc_error *err)
{
	size_t n = ptc_rpc_message_len(m);
	void *data = ptc_malloc(n);
	int rc;

	if (!data)
		return ptc_nomem(err);
	ptc_rpc_message_read(m, data, n);
	if (r && r->is_switch && !r->id)
		note_switch(r, data, n);
	rc = ptc_rpc_call_send(call, &(struct ptc_rpc_part){ .data = data, .len = n }, 1, err);
	ptc_free(data);
	return rc;
}

static void relay_free(void *arg)
{
	struct relay *r = arg;

	ptc_rpc_stream_free(r->s);
	ptc_tail_free(r->tail);
	ptc_free(r);
}

/* The stream has ended with an error, or the controller with it: the switch may go on without either. */
static int relay_broke(struct relay *r, struct ptc_rpc_call *call, int rc, struct ptc_error *err)
{
	if (!ptc_tail_worth(rc) || ptc_rpc_call_cancelled(call) || (!r->id && !r->is_switch))
		return rc;
	if (!r->id)
		return ptc_error_set(err, rc,
				     "the connection to node %s, which controls job %s, broke before that node said "
				     "whether the switch has begun; `ptcctl status %s` tells",
				     r->t.controller, r->t.meta.name, r->t.meta.name);
	rc = ptc_tail_new(r->d, &r->t, r->id, &r->tail, err);
	return rc ? rc : ptc_tail_step(r->tail, call, err);
}

static int relay_step(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct relay *r = arg;
	struct ptc_rpc_message *m;
	int rc;

	if (r->tail)
		return ptc_tail_step(r->tail, call, err);
	while (!ptc_rpc_call_full(call) && ptc_rpc_stream_ready(r->s)) {
		rc = ptc_rpc_stream_recv(r->s, &m, err);
		if (!rc && !m)
			rc = ptc_rpc_stream_finish(r->s, err);
		if (rc)
			return relay_broke(r, call, rc, err);
		if (!m)
			return 0;
		rc = relay_message(r, call, m, err);
		ptc_rpc_message_done(m);
		if (rc)
			return rc;
		r->heard_ns = ptc_sys_now_ns();
	}
	ptc_rpc_call_again(call, ptc_rpc_call_full(call) ? 0 : ptc_wait_ms(r->heard_ns));
	return 0;
}

static int forward(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call, const char *method,
		   const ProtobufCMessage *request, bool is_switch, uint64_t id, struct ptc_error *err)
{
	struct relay *r = ptc_calloc(1, sizeof *r);
	int rc = r ? ptc_api_forward_open(d, t, call, method, request, 0, &r->s, err) : ptc_nomem(err);

	if (rc) {
		ptc_free(r);
		return rc;
	}
	ptc_rpc_stream_follow(r->s, NULL); /* the steps look */
	r->heard_ns = ptc_sys_now_ns();
	r->is_switch = is_switch;
	r->id = id;
	r->d = d;
	r->t = *t;
	ptc_rpc_call_follow(call, 0, relay_step, r, relay_free);
	return 0;
}

int ptc_api_forward(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call, const char *method,
		    const ProtobufCMessage *request, struct ptc_error *err)
{
	return forward(d, t, call, method, request, false, 0, err);
}

int ptc_api_forward_switch(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call,
			   const char *method, const ProtobufCMessage *request, uint64_t id, struct ptc_error *err)
{
	return forward(d, t, call, method, request, true, id, err);
}

int ptc_api_forward_now(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call, const char *method,
			const ProtobufCMessage *request, int timeout_ms, struct ptc_error *err)
{
	struct ptc_rpc_message *m;
	struct ptc_rpc_stream *s;
	int rc = ptc_api_forward_open(d, t, call, method, request, timeout_ms, &s, err);

	if (rc)
		return rc;
	while (rc == 0 && (rc = ptc_rpc_stream_recv(s, &m, err)) == 0 && m) {
		rc = relay_message(NULL, call, m, err);
		ptc_rpc_message_done(m);
	}
	if (rc == 0)
		rc = ptc_rpc_stream_finish(s, err);
	ptc_rpc_stream_free(s);
	return rc;
}

struct locate {
	struct ptc_daemon *d;
	struct ptc_view *v;
	struct ptc_older bridge;      /* that the view is of; snapshot 0: of none */
	struct ptc_copies_doc copies; /* of that one */
	int rc;
};

static void locate_on_loop(void *arg)
{
	struct locate *l = arg;
	const struct ptc_job_view *j = ptc_cluster_find_uuid(l->d->cluster, l->v->meta.uuid);

	if (j && j->older.bridge.snapshot && j->older.bridge.snapshot == l->v->from_snapshot &&
	    j->older.bridge.generation == l->v->from_generation)
		l->bridge = j->older.bridge;
	l->rc = l->copies.nkeepers ? ptc_view_copies(l->v, &l->copies) : ptc_view_find_copies(l->v, l->d->cluster);
	if (l->rc == 0)
		l->rc = ptc_view_locate(l->v, l->d->cluster);
}

/* A bridge has copies of its own. */
static int locate(struct locate *l, struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	int rc = ptc_loop_call(l->d->loop, locate_on_loop, l);

	if (rc == 0)
		rc = l->rc;
	if (rc == 0 && l->bridge.copies_hash[0])
		rc = ptc_bridge_copies(l->d->docs.kept, l->v->meta.uuid, &l->bridge, &l->copies, &why);
	if (rc == 0 && l->copies.nkeepers)
		rc = ptc_loop_call(l->d->loop, locate_on_loop, l);
	ptc_copies_doc_done(&l->copies);
	if (rc || l->rc)
		return ptc_error_set(err, rc ? rc : l->rc, "cannot locate the nodes of job \"%s\"%s%s", l->v->meta.name,
				     why.code ? ": " : "", why.text);
	return 0;
}

struct refresh {
	struct ptc_daemon *d;
	struct ptc_target *t;
	bool gone;
};

/* Once the mirror shows more than what t was copied from. */
static bool refreshed(void *arg)
{
	struct refresh *r = arg;
	const struct ptc_job_view *j = ptc_cluster_find_uuid(r->d->cluster, r->t->meta.uuid);

	r->gone = !j || !j->has_meta;
	if (r->gone || j->changes == r->t->changes)
		return r->gone;
	r->t->changes = j->changes;
	r->t->has_record = j->has_record;
	r->t->has_intent = j->has_intent;
	r->t->record = j->record;
	r->t->intent = j->intent;
	return true;
}

/* The documents that our mirror names may just have been replaced, and the mirror be a moment behind. */
static int load_view(struct ptc_daemon *d, struct ptc_target *t, bool with_intent, struct ptc_view *ret_view,
		     struct ptc_error *err)
{
	int64_t end = ptc_sys_now_ns() + MIRROR_LAG_MS * INT64_C(1000000);
	struct refresh r = { d, t, false };

	for (;;) {
		int rc = ptc_view_load(d->docs.kept, &t->meta, t->has_record ? &t->record : NULL,
				       with_intent && t->has_intent ? &t->intent : NULL, ret_view, err);
		int waited = rc == PTC_ENOTFOUND
				     ? ptc_api_wait(d, NULL, refreshed, &r, (end - ptc_sys_now_ns()) / 1000000)
				     : PTC_ETIMEOUT;

		if (waited == PTC_ECANCELED)
			return ptc_error_set(err, waited, "the daemon is stopping");
		if (waited)
			return rc;
		if (r.gone)
			return ptc_error_set(err, PTC_ENOTFOUND, "job \"%s\" was deleted meanwhile", t->meta.name);
	}
}

int ptc_api_view(struct ptc_daemon *d, struct ptc_target *t, bool with_intent, bool need_record,
		 struct ptc_view *ret_view, struct ptc_error *err)
{
	struct locate l = { .d = d, .v = ret_view };
	int rc;

	if (t->bad_record)
		return bad_record(t, err);
	if (need_record && !t->has_record)
		return ptc_error_set(err, PTC_ESTATE,
				     "job \"%s\" has no state yet; `ptcctl import %s PATH`, or `ptcctl run %s`, first",
				     t->meta.name, t->meta.name, t->meta.name);
	rc = load_view(d, t, with_intent, ret_view, err);
	if (rc)
		return rc;
	rc = locate(&l, err);
	if (rc)
		ptc_view_done(ret_view);
	return rc;
}

struct older {
	struct ptc_daemon *d;
	const char *uuid;
	struct ptc_older_doc *doc;
};

static void older_on_loop(void *arg)
{
	struct older *o = arg;
	const struct ptc_job_view *j = ptc_cluster_find_uuid(o->d->cluster, o->uuid);

	if (j)
		*o->doc = j->older;
}

void ptc_api_older(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_older_doc *ret)
{
	struct older o = { d, t->meta.uuid, ret };

	*ret = (struct ptc_older_doc){ 0 };
	ptc_loop_call(d->loop, older_on_loop, &o); /* a daemon that stops knows none */
}

bool ptc_api_go_back(struct ptc_daemon *d, struct ptc_target *t, uint64_t generation, uint64_t snapshot)
{
	struct ptc_older_doc doc;
	const struct ptc_older *o;

	ptc_api_older(d, t, &doc);
	o = generation ? ptc_older_table(&doc, generation, snapshot) : ptc_older_find(&doc, snapshot);
	if (!o)
		return false;
	t->has_record = true;
	t->record = (struct ptc_record_doc){ .generation = o->generation, .snapshot = o->snapshot, .step = o->step };
	memcpy(t->record.manifest_hash, o->manifest_hash, sizeof t->record.manifest_hash);
	return true;
}

int64_t ptc_api_as_of(struct ptc_daemon *d)
{
	int64_t answered_ms;
	bool unreachable = ptc_etcd_unreachable(ptc_cluster_etcd(d->cluster), &answered_ms);

	return unreachable || ptc_cluster_lease(d->cluster) == 0 ? answered_ms : 0;
}

json_t *ptc_api_dated(struct ptc_daemon *d, json_t *root)
{
	int64_t as_of_ms = ptc_api_as_of(d);

	if (root && as_of_ms)
		json_object_set_new(root, "as_of_ms", json_integer((json_int_t)as_of_ms));
	return root;
}

int ptc_api_need_snapshot(const struct ptc_target *t, struct ptc_error *err)
{
	if (!t->has_record || t->record.snapshot)
		return 0; /* no record: ptc_api_view says so */
	return ptc_error_set(err, PTC_ESTATE, "job \"%s\" has no snapshot yet; `ptcctl snapshot %s` makes one",
			     t->meta.name, t->meta.name);
}

int ptc_api_send_text(struct ptc_rpc_call *call, const char *json, struct ptc_error *err)
{
	Ptc__V1__Document doc = PTC__V1__DOCUMENT__INIT;

	doc.version = PTC_WIRE_VERSION;
	doc.json = (char *)(uintptr_t)json; /* packing only reads */
	return ptc_pb_call_send(call, &doc.base, err);
}

int ptc_api_send_json(struct ptc_rpc_call *call, json_t *root, struct ptc_error *err)
{
	char *text = root ? ptc_json_text(root) : NULL;
	int rc;

	json_decref(root);
	if (!text)
		return ptc_nomem(err);
	rc = ptc_api_send_text(call, text, err);
	ptc_free(text);
	return rc;
}
