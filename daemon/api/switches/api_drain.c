/* SPDX-License-Identifier: Apache-2.0 */
/* The call behind `ptcctl drain`: moves the jobs on a node to other nodes. Happy path: each job's controller is asked
 * for a resize to the other nodes, in turn, and its progress is relayed. Failure modes: there are too few other
 * devices; a controller goes away (the switch is followed to its end); the caller goes away (switches that have begun
 * go on). If a time is given, api_leave.c does the work. */
#include "base/alloc.h"
#include "daemon/api/switches/switches.h"
#include "daemon/cluster/job_events.h"
#include "formats/names.h"

#include <stdio.h>
#include <string.h>

struct drain_list {
	struct ptc_daemon *d;
	const char *node, *only;
	uid_t uid;
	bool known;
	char (*jobs)[PTC_UUID_TEXT];
	size_t n;
};

static void list_drained(void *arg)
{
	struct drain_list *l = arg;
	size_t njobs = ptc_cluster_njobs(l->d->cluster);
	struct ptc_job_view *only = NULL;
	uint32_t node;

	ptc_cluster_find_job(l->d->cluster, l->only, l->uid, &only, NULL);
	l->known = ptc_cluster_find_node(l->d->cluster, l->node, &node) &&
		   ptc_node_listed(ptc_cluster_node(l->d->cluster, node));
	l->jobs = ptc_calloc(njobs, sizeof *l->jobs);
	for (size_t i = 0; l->jobs && i < njobs; i++) {
		const struct ptc_job_view *j = ptc_cluster_job(l->d->cluster, i);

		if (j->has_meta && j->has_record && (l->uid == 0 || l->uid == j->meta.uid) &&
		    (!l->only[0] || (only && strcmp(only->uuid, j->uuid) == 0)))
			memcpy(l->jobs[l->n++], j->uuid, sizeof l->jobs[0]);
	}
}

/* Every node a job may use once `node` is left out. */
struct other_nodes {
	struct ptc_daemon *d;
	const char *leave;
	char **names;
	size_t n;
};

static void list_others(void *arg)
{
	struct other_nodes *o = arg;
	size_t total = ptc_cluster_nnodes(o->d->cluster);

	o->names = ptc_calloc(total, sizeof *o->names);
	for (uint32_t i = 0; o->names && i < total; i++) {
		const struct ptc_node *n = ptc_cluster_node(o->d->cluster, i);

		if (n->up && !n->drained && strcmp(n->doc.name, o->leave) != 0)
			o->names[o->n++] = ptc_strdup(n->doc.name);
	}
}

/* The controller has gone, perhaps: the switch may be carried on by another one. */
static int follow_resize(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call, uint64_t id,
			 int rc, struct ptc_error *broke, struct ptc_error *err)
{
	struct ptc_tail *tail;

	if (!id || !ptc_tail_worth(rc) || ptc_rpc_call_cancelled(call))
		return ptc_error_set(err, rc, "%s", broke->text);
	rc = ptc_tail_new(d, t, id, &tail, err);
	if (rc)
		return rc;
	rc = ptc_tail_wait(tail, call, err);
	ptc_tail_free(tail);
	return rc;
}

/* Relays the controller's progress, as long as somebody listens; its final message is swallowed, the drain has its own.
 */
static int relay_resize(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call,
			Ptc__V1__ResizeRequest *req, struct ptc_error *err)
{
	struct ptc_rpc_stream *s;
	struct ptc_rpc_message *m = NULL;
	struct ptc_error broke = PTC_ERROR_INIT;
	bool gone = false;
	uint64_t id = 0;
	int rc = ptc_api_ask_open(d, t, call, "/ptc.v1.Control/Resize", &req->base, &s, err);

	if (rc)
		return rc;
	while ((rc = ptc_rpc_stream_recv(s, &m, &broke)) == 0 && m) {
		Ptc__V1__Progress *p = NULL;

		rc = ptc_pb_message(m, &ptc__v1__progress__descriptor, (ProtobufCMessage **)&p, &broke);
		ptc_rpc_message_done(m);
		id = rc == 0 && p->switch_id ? p->switch_id : id;
		if (rc == 0 && !p->finished && !gone) /* a client that goes away changes nothing */
			gone = ptc_pb_call_send(call, &p->base, NULL) != 0;
		if (p)
			ptc_pb_free(&p->base);
		if (rc)
			break;
	}
	if (rc == 0)
		rc = ptc_rpc_stream_finish(s, &broke);
	ptc_rpc_stream_free(s);
	return rc ? follow_resize(d, t, call, id, rc, &broke, err) : 0;
}

/* Between the two events that say so. */
static int leave(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_rpc_call *call,
		 Ptc__V1__ResizeRequest *req, const char *node, struct ptc_error *err)
{
	int rc;

	ptc_event(d->cluster, t->meta.uuid, "drain", "node %s is drained: the job leaves it", node);
	rc = relay_resize(d, t, call, req, err);
	if (rc == 0)
		ptc_event(d->cluster, t->meta.uuid, "drained", "the job has left node %s", node);
	else if (ptc_rpc_call_cancelled(call))
		ptc_event(
			d->cluster, t->meta.uuid, "drained",
			"whoever drained node %s did not wait for the job to leave it; a switch that has begun goes on",
			node);
	else
		ptc_event(d->cluster, t->meta.uuid, "drained", "the job has not left node %s: %s", node, err->text);
	return rc;
}

/* Moves one job off the node, keeping its configuration. *ret_moved stays false when it has nothing there. */
static int drain_job(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *job, const char *node,
		     bool *ret_moved, struct ptc_error *err)
{
	Ptc__V1__ResizeRequest req = PTC__V1__RESIZE_REQUEST__INIT;
	struct other_nodes o = { .d = d, .leave = node };
	struct ptc_target t;
	struct ptc_view v;
	int rc = ptc_api_find_controlled(d, call, job, &t, err);

	if (rc == 0)
		rc = ptc_api_view(d, &t, false, true, &v, err);
	if (rc)
		return rc;
	if (ptc_generation_doc_names(&v.from, node)) {
		rc = ptc_loop_call(d->loop, list_others, &o);
		req.version = PTC_WIRE_VERSION;
		req.job = t.meta.uuid;
		req.config = v.from.config;
		req.nodes = o.names;
		req.n_nodes = o.n;
		if (rc == 0 && o.n == 0)
			rc = ptc_error_set(err, PTC_ENODEVICES,
					   "no other node is up; start one first (`ptcctl nodes`)");
		if (rc == 0)
			rc = leave(d, &t, call, &req, node, err);
		if (rc == PTC_ENODEVICES)
			ptc_error_wrap(err,
				       "its configuration does not fit on the other nodes; `ptcctl resize %s --config "
				       "...` gives it one for fewer devices",
				       t.meta.name);
		if (rc)
			ptc_error_wrap(err, "job %s cannot leave node %s", t.meta.name, node);
		*ret_moved = rc == 0;
		for (size_t i = 0; i < o.n; i++)
			ptc_free(o.names[i]);
		ptc_free(o.names);
	}
	ptc_view_done(&v);
	return rc;
}

/* Only root closes a node for new ranks; an owner moves his own jobs. */
static int mark_drained(struct ptc_daemon *d, const char *node, struct ptc_error *err)
{
	static const char value[] = "{\"version\":1}";
	char key[PTC_NAME_MAX + 32];

	snprintf(key, sizeof key, "/ptc/nodes-drained/%s", node);
	return ptc_etcd_put(ptc_cluster_etcd(d->cluster), key, value, strlen(value), 0, "etcd.drain", err);
}

static int unmark_drained(struct ptc_daemon *d, const char *node, struct ptc_error *err)
{
	char key[PTC_NAME_MAX + 32];

	snprintf(key, sizeof key, "/ptc/nodes-drained/%s", node);
	return ptc_etcd_delete(ptc_cluster_etcd(d->cluster), key, false, "etcd.drain", err);
}

#define WITHIN_MAX_MS (7 * UINT64_C(86400000))

static int check_within(const Ptc__V1__DrainRequest *req, struct ptc_error *err)
{
	if (req->within_ms > WITHIN_MAX_MS)
		return ptc_error_set(err, PTC_EINVAL, "--within is longer than 7 days; give a shorter time");
	if (req->within_ms && req->undo)
		return ptc_error_set(
			err, PTC_EINVAL,
			"--undo opens the node again, and --within says that it goes away: give one of them");
	return 0;
}

/* Each job in turn. */
static int move_all(struct ptc_daemon *d, struct ptc_rpc_call *call, const struct drain_list *l, size_t *ret_moved,
		    struct ptc_error *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < l->n; i++) {
		bool moved = false;

		rc = drain_job(d, call, l->jobs[i], l->node, &moved, err);
		*ret_moved += moved;
	}
	return rc;
}

/* *ret_summary: of a node that is taken away; else NULL. */
static int drain_all(struct ptc_daemon *d, struct ptc_rpc_call *call, const Ptc__V1__DrainRequest *req,
		     size_t *ret_moved, char **ret_summary, struct ptc_error *err)
{
	struct drain_list l = { .d = d, .node = req->node, .only = req->job, .uid = ptc_api_uid(call) };
	int rc = ptc_api_listed(d, call, err);
	bool closes = l.uid == 0 && !req->job[0];

	if (rc == 0)
		rc = ptc_loop_call(d->loop, list_drained, &l);
	if (rc == 0 && !l.known)
		rc = ptc_error_set(err, PTC_ENOTFOUND, "node \"%s\" is not known; see `ptcctl nodes`", req->node);
	if (rc == 0 && req->job[0] && l.n == 0)
		rc = ptc_error_set(err, PTC_ENOTFOUND, "job \"%s\" does not exist or has no state", req->job);
	if (rc == 0 && req->undo)
		rc = l.uid == 0 ? unmark_drained(d, req->node, err)
				: ptc_error_set(err, PTC_EPERM, "only root may open a node again");
	else if (rc == 0 && closes)
		rc = mark_drained(d, req->node, err);
	if (rc == 0 && req->within_ms)
		rc = ptc_api_leave_all(d, call,
				       &(struct ptc_api_leaving){ req->node, l.jobs, l.n, req->within_ms, closes },
				       ret_summary, err);
	else if (rc == 0 && !req->undo)
		rc = move_all(d, call, &l, ret_moved, err);
	ptc_free(l.jobs);
	return rc;
}

PTC_API_HANDLER(ptc_api_drain)
{
	Ptc__V1__Progress p = PTC__V1__PROGRESS__INIT;
	Ptc__V1__DrainRequest *req;
	char phase[] = "done", text[PTC_NAME_MAX + 128], *summary = NULL;
	bool closed = false;
	size_t moved = 0;
	int rc = ptc_pb_call_recv(call, &ptc__v1__drain_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = ptc_name_check_job(req->node, err);
	if (rc == 0)
		rc = check_within(req, err);
	if (rc == 0)
		rc = drain_all(arg, call, req, &moved, &summary, err);
	closed = ptc_api_uid(call) == 0 && !req->job[0] && !req->undo;
	snprintf(text, sizeof text, "{\"version\":1,\"node\":\"%s\",\"jobs_moved\":%zu,\"closed\":%s}",
		 rc ? "" : req->node, moved, closed ? "true" : "false");
	ptc_pb_free(&req->base);
	if (rc)
		return rc;
	p.version = PTC_WIRE_VERSION;
	p.phase = phase;
	p.finished = true;
	p.summary = summary ? summary : text;
	rc = ptc_pb_call_send(call, &p.base, err);
	ptc_free(summary);
	return rc;
}
