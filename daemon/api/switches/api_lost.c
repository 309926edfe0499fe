/* SPDX-License-Identifier: Apache-2.0 */
/* The calls behind `ptcctl node lost`, `node forget` and `device bad`: an operator says that a node is lost, or a
 * device is bad, or takes that back. Happy path: a key under /ptc/nodes-lost/ or /ptc/nodes-bad/, which every daemon
 * sees. Or a node is to be forgotten: its keys go.
 *
 * A device that is good again is also given back to jobs that have left it, because their ranks were slow there.
 *
 * Failure modes: nobody knows the node or device (PTC_ENOTFOUND); the node is up; the node to forget is not lost, or a
 * job needs it (all PTC_ESTATE); the caller is not root (PTC_EPERM). */
#include "daemon/api/switches/switches.h"
#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "daemon/cluster/job_events.h"
#include "formats/names.h"

#include <stdio.h>
#include <string.h>

struct known {
	struct ptc_daemon *d;
	const char *node;
	bool synced, yes, up, lost;
	uint32_t devices;
};

static void look(void *arg)
{
	struct known *k = arg;
	const struct ptc_node *n;
	uint32_t i;

	k->synced = ptc_cluster_synced(k->d->cluster);
	n = ptc_cluster_find_node(k->d->cluster, k->node, &i) ? ptc_cluster_node(k->d->cluster, i) : NULL;
	k->yes = n && ptc_node_listed(n);
	k->up = k->yes && n->up;
	k->lost = k->yes && !n->up && (n->lost || n->declared);
	k->devices = k->yes ? n->doc.devices : 0;
}

/* For root, who wants to do something with the node; `what`, in the error for others. */
static int find_node(struct ptc_rpc_call *call, const char *what, struct known *k, struct ptc_error *err)
{
	int rc = ptc_name_check_job(k->node, err);

	if (rc == 0 && ptc_api_uid(call) != 0)
		rc = ptc_error_set(err, PTC_EPERM, "only root may %s", what);
	if (rc == 0)
		rc = ptc_api_listed(k->d, call, err);
	if (rc == 0)
		rc = ptc_loop_call(k->d->loop, look, k);
	if (rc == 0 && !k->yes)
		rc = ptc_error_set(err, PTC_ENOTFOUND, "node \"%s\" is not known; see `ptcctl nodes`", k->node);
	return rc;
}

PTC_API_HANDLER(ptc_api_node_lost)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__Ack ack = PTC__V1__ACK__INIT;
	struct known k = { .d = d };
	Ptc__V1__NodeLostRequest *req;
	int rc = ptc_pb_call_recv(call, &ptc__v1__node_lost_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	k.node = req->node;
	rc = find_node(call, "declare a node lost", &k, err);
	if (rc == 0)
		rc = ptc_cluster_declare_lost(d->cluster, req->node, !req->undo, err);
	ptc_pb_free(&req->base);
	ack.version = PTC_WIRE_VERSION;
	return rc ? rc : ptc_pb_call_send(call, &ack.base, err);
}

/* ---- a node that is gone for good ---- */

#define MARK_MS   2000 /* until this daemon has seen what an operator has just said */
#define TOLD_JOBS 5    /* by name, of those that need the node */

struct need {
	char uuid[PTC_UUID_TEXT];
	bool copies, older; /* as the mirror has these documents */
};

struct needs {
	struct ptc_daemon *d;
	const char *node;
	struct need *v;
	size_t n;
};

static bool has_copies(const struct ptc_copies_doc *d, const char *node)
{
	if (ptc_copies_keeper(d, node))
		return true;
	for (size_t i = 0; i < d->nold; i++)
		if (strcmp(d->old[i].node, node) == 0)
			return true;
	return false;
}

static bool has_older(const struct ptc_older_doc *d, const char *node)
{
	for (size_t i = 0; i < d->n; i++)
		if (ptc_older_has(&d->v[i], node))
			return true;
	return false;
}

static void list_jobs(void *arg)
{
	struct needs *l = arg;
	size_t n = ptc_cluster_njobs(l->d->cluster);

	l->v = ptc_calloc(n ? n : 1, sizeof *l->v);
	for (size_t i = 0; l->v && i < n; i++) {
		const struct ptc_job_view *j = ptc_cluster_job(l->d->cluster, i);

		if (!j->has_meta)
			continue;
		l->v[l->n].copies = has_copies(&j->copies, l->node);
		l->v[l->n].older = has_older(&j->older, l->node);
		memcpy(l->v[l->n++].uuid, j->uuid, PTC_UUID_TEXT);
	}
}

/* *ret_why: what of the job names the node; NULL: nothing does. */
static int look_at_job(struct ptc_daemon *d, struct ptc_rpc_call *call, const struct need *of, const char *node,
		       struct ptc_target *t, const char **ret_why, struct ptc_error *err)
{
	struct ptc_view v = { 0 };
	int rc = ptc_api_find(d, call, of->uuid, t, err);

	if (rc == 0)
		rc = ptc_api_view(d, t, true, false, &v, err);
	if (rc == PTC_ENOTFOUND && ptc_api_find(d, call, of->uuid, t, err) == 0) /* a document of it is missing */
		return ptc_error_set(err, PTC_ESTATE, "job %s cannot be read, so it may need node %s", t->meta.name,
				     node);
	if (rc)
		return rc;
	*ret_why = ptc_generation_doc_names(&v.from, node) ? "is laid out on it"
		   : ptc_generation_doc_names(&v.to, node) ? "is being switched to it"
		   : of->copies                            ? "has copies there"
		   : of->older                             ? "keeps older snapshots there"
							   : NULL;
	ptc_view_done(&v);
	return 0;
}

/* Whether no job needs the node. A job that was deleted meanwhile does not. PTC_ESTATE: the line names those that do.
 */
static int check_jobs(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *node, struct ptc_error *err)
{
	struct needs l = { .d = d, .node = node };
	struct ptc_buf told = PTC_BUF_INIT;
	size_t ntold = 0;
	int rc = ptc_loop_call(d->loop, list_jobs, &l);

	if (rc == 0 && !l.v)
		rc = ptc_nomem(err);
	for (size_t i = 0; rc == 0 && i < l.n; i++) {
		struct ptc_error why = PTC_ERROR_INIT;
		const char *needed = NULL;
		struct ptc_target t;

		rc = look_at_job(d, call, &l.v[i], node, &t, &needed, &why);
		rc = rc == 0 || rc == PTC_ENOTFOUND ? 0 : ptc_error_set(err, rc, "%s", why.text);
		if (needed && ++ntold <= TOLD_JOBS)
			ptc_buf_printf(&told, "%sjob %s %s", ntold > 1 ? ", " : "", t.meta.name, needed);
	}
	if (rc == 0 && ntold > TOLD_JOBS)
		ptc_buf_printf(&told, ", and %zu more", ntold - TOLD_JOBS);
	if (rc == 0 && ptc_buf_failed(&told))
		rc = ptc_nomem(err);
	if (rc == 0 && ntold)
		rc = ptc_error_set(
			err, PTC_ESTATE,
			"node %s cannot be forgotten: %s; `ptcctl drain %s` moves jobs off it, copies move by "
			"themselves, and older snapshots go as `keep` says",
			node, told.data, node);
	ptc_buf_done(&told);
	ptc_free(l.v);
	return rc;
}

static bool can_be_told(void *arg)
{
	struct known *k = arg;

	look(arg);
	return k->synced && (!k->yes || k->up || k->lost);
}

/* Whether the node is known and lost. What jobs need is read after this, so a node that is up goes no further. */
static int check_lost(struct known *k, struct ptc_rpc_call *call, struct ptc_error *err)
{
	int rc = ptc_api_wait(k->d, call, can_be_told, k, MARK_MS);

	if (rc && rc != PTC_ETIMEOUT)
		return ptc_error_set(err, rc, "the daemon is stopping");
	if (!k->synced)
		return ptc_error_set(
			err, PTC_ECOORD,
			"node %s is still reading the coordinator's keys, so it cannot tell what needs node "
			"%s; ask again",
			k->d->config.node, k->node);
	if (!k->yes)
		return ptc_error_set(err, PTC_ENOTFOUND, "node \"%s\" is not known; see `ptcctl nodes`", k->node);
	if (k->lost)
		return 0;
	if (k->up)
		return ptc_error_set(err, PTC_ESTATE,
				     "node %s is up, so it cannot be forgotten: `ptcctl drain %s`, then stop its ptcd "
				     "first",
				     k->node, k->node);
	return ptc_error_set(err, PTC_ESTATE,
			     "node %s is down, and may come back: wait until `ptcctl nodes` shows it as lost, or say "
			     "`ptcctl node lost %s` first",
			     k->node, k->node);
}

PTC_API_HANDLER(ptc_api_node_forget)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__Ack ack = PTC__V1__ACK__INIT;
	struct known k = { .d = d };
	Ptc__V1__NodeForgetRequest *req;
	int rc = ptc_pb_call_recv(call, &ptc__v1__node_forget_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	k.node = req->node;
	rc = ptc_name_check_job(req->node, err);
	if (rc == 0 && ptc_api_uid(call) != 0)
		rc = ptc_error_set(err, PTC_EPERM, "only root may have a node forgotten");
	if (rc == 0)
		rc = ptc_api_listed(d, call, err);
	if (rc == 0)
		rc = check_lost(&k, call, err);
	if (rc == 0)
		rc = check_jobs(d, call, req->node, err);
	if (rc == 0)
		rc = ptc_cluster_forget(d->cluster, req->node, err);
	ptc_pb_free(&req->base);
	ack.version = PTC_WIRE_VERSION;
	return rc ? rc : ptc_pb_call_send(call, &ack.base, err);
}

/* ---- devices ---- */

struct slow_there {
	struct ptc_daemon *d;
	const struct ptc_slow_device *device;
	char (*uuids)[PTC_UUID_TEXT]; /* of jobs that have left the device */
	size_t n;
	bool failed;
};

static void find_slow(void *arg)
{
	struct slow_there *s = arg;

	for (size_t i = 0; i < ptc_cluster_njobs(s->d->cluster) && !s->failed; i++) {
		const struct ptc_job_view *j = ptc_cluster_job(s->d->cluster, i);

		if (!ptc_slow_device_find(&j->slow, s->device->node, s->device->device, 0))
			continue;
		s->failed = !PTC_MORE(s->uuids, s->n);
		if (!s->failed)
			memcpy(s->uuids[s->n++], j->uuid, PTC_UUID_TEXT);
	}
}

static int give_back(struct ptc_daemon *d, const char *node, uint32_t device, struct ptc_error *err)
{
	struct ptc_slow_device at = { .device = device };
	struct slow_there s = { .d = d, .device = &at };
	char key[64 + PTC_SLOW_LEAF_BYTES], leaf[PTC_SLOW_LEAF_BYTES];
	int rc;

	snprintf(at.node, sizeof at.node, "%s", node);
	ptc_slow_device_key(&at, leaf);
	rc = ptc_loop_call(d->loop, find_slow, &s);
	if (rc == 0 && s.failed)
		rc = ptc_nomem(err);
	for (size_t i = 0; rc == 0 && i < s.n; i++) {
		snprintf(key, sizeof key, "/ptc/jobs/%s/%s", s.uuids[i], leaf);
		rc = ptc_etcd_delete(ptc_cluster_etcd(d->cluster), key, false, "etcd.slow", err);
		if (rc == 0)
			ptc_event(d->cluster, s.uuids[i], "straggler_over",
				  "the job may have %s:%u again, which it has left as slow: an operator says so", node,
				  device);
	}
	ptc_free(s.uuids);
	return rc;
}

PTC_API_HANDLER(ptc_api_device_bad)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__Ack ack = PTC__V1__ACK__INIT;
	struct known k = { .d = d };
	Ptc__V1__DeviceBadRequest *req;
	int rc = ptc_pb_call_recv(call, &ptc__v1__device_bad_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	k.node = req->node;
	rc = find_node(call, "mark a device", &k, err);
	if (rc == 0 && !req->undo && req->device >= k.devices) /* a mark outlives the device that it is of */
		rc = ptc_error_set(err, PTC_ENOTFOUND,
				   "node %s has %u devices, from 0 on; see `ptcctl nodes --devices`", req->node,
				   k.devices);
	if (rc == 0)
		rc = ptc_cluster_mark_device(d->cluster, req->node, req->device, !req->undo, err);
	if (rc == 0 && req->undo)
		rc = give_back(d, req->node, req->device, err);
	ptc_pb_free(&req->base);
	ack.version = PTC_WIRE_VERSION;
	return rc ? rc : ptc_pb_call_send(call, &ack.base, err);
}
