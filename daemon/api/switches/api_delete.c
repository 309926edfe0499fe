/* SPDX-License-Identifier: Apache-2.0 */
/* The call behind `ptcctl job delete`.
 *
 * Happy path: the job's controller waits until the job is idle, and one transaction removes the job's keys. Every
 * daemon then drops its bytes of the job. Any other daemon forwards the call, and waits for its end. If the controller
 * goes away or loses the job meanwhile, the job is gone already, or the next controller is asked. Failure modes: the
 * job runs or switches (PTC_ESTATE); there is no controller within FOLLOW_NS, or the coordinator does not answer: then
 * nobody knows whether the job is gone. */
#include "base/alloc.h"
#include "base/number/fence.h"
#include "base/sys/sys.h"
#include "daemon/api/switches/switches.h"
#include "daemon/cluster/quota.h"

#include <stdio.h>
#include <string.h>

#define BUSY_WAIT_MS 30000
#define LOOK_MS      100
#define FOLLOW_NS    (30 * INT64_C(1000000000)) /* without a controller that could be asked */

struct idle_check {
	struct ptc_daemon *d;
	const char *uuid;
	bool ours, idle;
	int64_t fence;
};

static bool is_idle(void *arg)
{
	struct idle_check *c = arg;
	struct ptc_controller *ctl = ptc_controller_find(&c->d->controllers, c->uuid);

	c->ours = ctl != NULL;
	c->idle = ctl && ptc_controller_idle(ctl);
	c->fence = ctl ? ptc_controller_fence(ctl) : 0;
	return c->idle;
}

/* One transaction makes the job disappear; every daemon then drops its bytes. */
static int delete_keys(struct ptc_daemon *d, const struct ptc_meta_doc *m, int64_t fence, struct ptc_error *err)
{
	struct ptc_etcd *e = ptc_cluster_etcd(d->cluster);
	char jobs[96], name[96], older[96], lock[96], blobs[96], events[96], user[PTC_USER_KEY];
	struct ptc_etcd_op ops[6] = { { 0 } };
	struct ptc_etcd_kvs kvs = { 0 };
	bool ok = false, has_older;
	int rc;

	snprintf(jobs, sizeof jobs, "/ptc/jobs/%s/", m->uuid);
	snprintf(lock, sizeof lock, "/ptc/jobs/%s/lock", m->uuid);
	snprintf(name, sizeof name, "/ptc/names/%u/%s", (unsigned)m->uid, m->name);
	snprintf(older, sizeof older, "/ptc/names/%s", m->name); /* see check_older_name */
	snprintf(blobs, sizeof blobs, "/ptc/blobs/%s/", m->uuid);
	snprintf(events, sizeof events, "/ptc/events/%s/", m->uuid);
	ops[0] = (struct ptc_etcd_op){ .key = name };
	ops[1] = (struct ptc_etcd_op){ .key = jobs, .prefix = true };
	ops[2] = (struct ptc_etcd_op){ .key = blobs, .prefix = true };
	ops[3] = (struct ptc_etcd_op){ .key = events, .prefix = true };
	ptc_quota_key(m->uid, m->uuid, user);
	ops[4] = (struct ptc_etcd_op){ .key = user };
	ops[5] = (struct ptc_etcd_op){ .key = older };
	rc = ptc_etcd_get(e, older, false, 1, &kvs, err);
	if (rc)
		return rc;
	has_older = kvs.n && strcmp(kvs.kv[0].value, m->uuid) == 0;
	ptc_etcd_kvs_done(&kvs);
	rc = ptc_etcd_txn(e, &(struct ptc_etcd_compare){ lock, PTC_ETCD_CREATE_REV, ptc_fence_revision(fence) }, 1, ops,
			  has_older ? 6 : 5, "etcd.unjob", &ok, NULL, err);
	if (rc == 0 && !ok)
		rc = ptc_error_set(err, PTC_ECONFLICT, "job %s changed controllers meanwhile; try again", m->name);
	return rc;
}

/* On this daemon, which controls the job. */
static int delete_here(struct ptc_daemon *d, struct ptc_rpc_call *call, const struct ptc_target *t,
		       struct ptc_error *err)
{
	Ptc__V1__Ack ack = PTC__V1__ACK__INIT;
	struct idle_check c = { .d = d, .uuid = t->meta.uuid };
	int rc;

	if (t->has_record && t->record.run == PTC_RUN_LIVE)
		return ptc_error_set(err, PTC_ESTATE, "job %s runs; `ptcctl stop %s` first", t->meta.name,
				     t->meta.name);
	rc = ptc_api_wait(d, call, is_idle, &c, t->has_intent ? 0 : BUSY_WAIT_MS);
	if (rc == PTC_ECANCELED)
		return ptc_error_set(err, rc, "the daemon is stopping");
	if (rc && t->has_intent)
		return ptc_error_set(err, PTC_ESTATE, "job %s is switching; wait, or `ptcctl abort %s` first",
				     t->meta.name, t->meta.name);
	if (rc)
		return ptc_error_set(err, PTC_ESTATE, "job %s is busy; try again", t->meta.name);
	rc = delete_keys(d, &t->meta, c.fence, err);
	ack.version = PTC_WIRE_VERSION;
	return rc ? rc : ptc_pb_call_send(call, &ack.base, err);
}

/* ---- where another daemon controls the job ------------------------------------------- */

/* A call of somebody who waits. Between two controllers it has no stream. */
struct deletion {
	struct ptc_daemon *d;
	struct ptc_target t;      /* as it was when its controller was asked */
	struct ptc_rpc_stream *s; /* to the controller */
	int64_t since_ns;         /* heard of the controller, or looked for the next one */
};

static void deletion_free(void *arg)
{
	struct deletion *x = arg;

	ptc_rpc_stream_free(x->s);
	ptc_free(x);
}

static int ask(struct deletion *x, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__JobRequest req = PTC__V1__JOB_REQUEST__INIT;
	int rc;

	req.version = PTC_WIRE_VERSION;
	req.job = x->t.meta.uuid;
	rc = ptc_api_forward_open(x->d, &x->t, call, "/ptc.v1.Control/JobDelete", &req.base, 0, &x->s, err);
	if (rc == 0)
		ptc_rpc_stream_follow(x->s, NULL); /* the steps look */
	return rc;
}

/* Whether the controller can have gone, or lost the job, before it could say what became of the call. */
static bool is_lost(int rc)
{
	return ptc_tail_worth(rc) || rc == PTC_ECONFLICT;
}

/* The controller's answer, once it is here. */
static int take_answer(struct deletion *x, struct ptc_rpc_call *call, bool *ret_over, struct ptc_error *err)
{
	Ptc__V1__Ack ack = PTC__V1__ACK__INIT;
	struct ptc_rpc_message *m = NULL;
	int rc;

	*ret_over = false;
	while (ptc_rpc_stream_ready(x->s)) {
		rc = ptc_rpc_stream_recv(x->s, &m, err);
		if (rc)
			return rc;
		if (m) {
			ptc_rpc_message_done(m);
			continue;
		}
		*ret_over = true;
		ack.version = PTC_WIRE_VERSION;
		rc = ptc_rpc_stream_finish(x->s, err);
		return rc ? rc : ptc_pb_call_send(call, &ack.base, err);
	}
	return 0;
}

/* The controller is lost. The job has gone: so it was deleted. Else its next controller is asked. */
static int find_next(struct deletion *x, struct ptc_rpc_call *call, bool *ret_over, struct ptc_error *err)
{
	Ptc__V1__Ack ack = PTC__V1__ACK__INIT;
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_target now;
	int rc = ptc_api_find(x->d, call, x->t.meta.uuid, &now, &why);

	*ret_over = true;
	ack.version = PTC_WIRE_VERSION;
	if (rc == PTC_ENOTFOUND)
		return ptc_pb_call_send(call, &ack.base, err);
	if (rc == 0 && now.has_lock && now.fence != x->t.fence &&
	    (now.ours || strcmp(now.controller, x->d->config.node) != 0)) {
		x->t = now;
		x->since_ns = ptc_sys_now_ns();
		rc = now.ours ? delete_here(x->d, call, &now, &why) : ask(x, call, &why);
		*ret_over = now.ours && !is_lost(rc);
		return rc && !is_lost(rc) ? ptc_error_set(err, rc, "%s", why.text) : 0;
	}
	if (ptc_sys_now_ns() - x->since_ns > FOLLOW_NS)
		return ptc_error_set(
			err, PTC_EPEER,
			"the controller of job %s was lost while it deleted the job, and no other has been found; "
			"`ptcctl job list` says whether the job is still there",
			x->t.meta.name);
	*ret_over = false;
	return 0;
}

static int deletion_step(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct deletion *x = arg;
	struct ptc_error why = PTC_ERROR_INIT;
	bool over = false;
	int rc;

	if (x->s) {
		rc = take_answer(x, call, &over, &why);
		if (rc && (!is_lost(rc) || ptc_rpc_call_cancelled(call)))
			return ptc_error_set(err, rc, "%s", why.text);
		if (rc) {
			x->s = ptc_rpc_stream_free(x->s);
			x->since_ns = ptc_sys_now_ns();
			over = false;
		}
	} else {
		rc = find_next(x, call, &over, err);
		if (rc)
			return rc;
	}
	if (!over)
		ptc_rpc_call_again(call, x->s ? ptc_wait_ms(x->since_ns) : LOOK_MS);
	return 0;
}

/* To the end. lost: this daemon was the controller, and is not any more; else the controller is asked first. One that
 * cannot be reached may have been lost a moment ago. */
static int follow(struct ptc_daemon *d, struct ptc_rpc_call *call, const struct ptc_target *t, bool lost,
		  struct ptc_error *err)
{
	struct deletion *x = ptc_calloc(1, sizeof *x);
	struct ptc_error why = PTC_ERROR_INIT;
	int rc;

	if (!x)
		return ptc_nomem(err);
	*x = (struct deletion){ .d = d, .t = *t, .since_ns = ptc_sys_now_ns() };
	rc = lost ? 0 : ask(x, call, &why);
	if (rc && !is_lost(rc)) {
		deletion_free(x);
		return ptc_error_set(err, rc, "%s", why.text);
	}
	ptc_rpc_call_follow(call, 0, deletion_step, x, deletion_free);
	return 0;
}

PTC_API_HANDLER(ptc_api_job_delete)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_daemon *d = arg;
	Ptc__V1__JobRequest *req;
	struct ptc_target t;
	int rc = ptc_pb_call_recv(call, &ptc__v1__job_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = ptc_api_find_controlled(d, call, req->job, &t, err);
	ptc_pb_free(&req->base);
	if (rc)
		return rc;
	if (!t.ours)
		return follow(d, call, &t, false, err);
	rc = delete_here(d, call, &t, &why);
	if (rc == PTC_ECONFLICT && !ptc_rpc_call_meta(call, "ptc-forwarded")) /* else whoever relays it follows */
		return follow(d, call, &t, true, err);
	return rc ? ptc_error_set(err, rc, "%s", why.text) : 0;
}
