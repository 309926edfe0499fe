/* SPDX-License-Identifier: Apache-2.0 */
/* A node will be taken away within a stated time (`ptcctl drain NODE --within`).
 *
 * Happy path: for every job that has something on the node, its controller is told at once that the node will go
 * (leaving.h). Then the controllers are asked how far they are, until all are done or the time is over. Failure modes:
 * a job that is not done in time is `late`, and the answer says what it lacks; a controller goes away: the next one is
 * told, with the remaining time; the caller goes away: the controllers go on. */
#include "base/alloc.h"
#include "base/sys/sys.h"
#include "daemon/api/switches/switches.h"
#include "daemon/controller/leaving/leaving.h"
#include "daemon/controller/leaving/leaving_answer.h"
#include "formats/json.h"

#include <stdio.h>
#include <string.h>

#define MS        INT64_C(1000000)
#define POLL_MS   150
#define ANSWER_MS 3000

/* ---- at the job's controller --------------------------------------------------------------- */

struct ask {
	struct ptc_daemon *d;
	const char *uuid;
	const Ptc__V1__LeaveRequest *req;
	struct ptc_leaving_answer *ret;
	int rc;
	struct ptc_error *err;
};

static void ask_on_loop(void *arg)
{
	struct ask *a = arg;
	struct ptc_controller *ctl = ptc_controller_find(&a->d->controllers, a->uuid);

	a->rc = ctl ? ptc_leaving_ask(ctl, a->req->node, a->req->within_ms, a->req->closed, a->req->begin, a->ret,
				      a->err)
		    : ptc_error_set(a->err, PTC_ESTATE, "this daemon does not control the job any more");
}

static int ask_here(struct ptc_daemon *d, const char *uuid, const Ptc__V1__LeaveRequest *req,
		    struct ptc_leaving_answer *ret, struct ptc_error *err)
{
	struct ask a = { .d = d, .uuid = uuid, .req = req, .ret = ret, .err = err };
	int rc = ptc_loop_call(d->loop, ask_on_loop, &a);

	return rc ? ptc_error_set(err, rc, "the daemon is stopping") : a.rc;
}

PTC_API_HANDLER(ptc_api_leave)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__LeaveRequest *req;
	struct ptc_leaving_answer answer = { 0 };
	struct ptc_target t;
	int rc = ptc_pb_call_recv(call, &ptc__v1__leave_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = ptc_api_find(d, call, req->job, &t, err);
	if (rc == 0)
		rc = ask_here(d, t.meta.uuid, req, &answer, err);
	if (rc == 0)
		rc = ptc_api_send_json(call, ptc_leaving_answer_json(&answer), err);
	ptc_pb_free(&req->base);
	return rc;
}

/* ---- at the daemon that was asked ----------------------------------------------------------- */

struct part {
	const char *uuid;
	char job[PTC_UUID_TEXT]; /* the same, for requests */
	char name[PTC_NAME_MAX + 1];
	char why[PTC_ERROR_MAX]; /* why it could not be asked */
	bool begun;              /* it has been asked, and has said: */
	struct ptc_leaving_answer said;
};

static int receive(struct ptc_rpc_stream *s, struct ptc_leaving_answer *ret, struct ptc_error *err)
{
	struct ptc_rpc_message *m = NULL;
	Ptc__V1__Document *doc = NULL;
	int rc = ptc_rpc_stream_recv(s, &m, err);

	if (rc == 0 && !m)
		return ptc_rpc_stream_finish(s, err)
			       ? err->code
			       : ptc_error_set(err, PTC_EPEER, "the job's controller has sent no answer");
	if (rc)
		return rc;
	rc = ptc_pb_message(m, &ptc__v1__document__descriptor, (ProtobufCMessage **)&doc, err);
	ptc_rpc_message_done(m);
	if (rc)
		return rc;
	rc = ptc_leaving_answer_decode(doc->json, ret, err);
	ptc_pb_free(&doc->base);
	return rc;
}

static int ask_there(struct ptc_daemon *d, struct ptc_rpc_call *call, const struct ptc_target *t,
		     const Ptc__V1__LeaveRequest *req, struct ptc_leaving_answer *ret, struct ptc_error *err)
{
	struct ptc_rpc_stream *s;
	int rc = ptc_api_forward_open(d, t, call, "/ptc.v1.Control/Leave", &req->base, ANSWER_MS, &s, err);

	if (rc)
		return rc;
	rc = receive(s, ret, err);
	ptc_rpc_stream_free(s);
	return rc;
}

static int ask_part(struct ptc_daemon *d, struct ptc_rpc_call *call, struct part *p, Ptc__V1__LeaveRequest *req,
		    struct ptc_error *err)
{
	struct ptc_target t;
	int rc = ptc_api_find(d, call, p->uuid, &t, err);

	if (rc == 0)
		snprintf(p->name, sizeof p->name, "%s", t.meta.name);
	if (rc == 0 && !t.ours && !t.controller[0])
		rc = ptc_error_set(err, PTC_ESTATE, "no daemon controls the job at present");
	snprintf(p->job, sizeof p->job, "%s", p->uuid);
	req->job = p->job;
	req->begin = !p->begun;
	if (rc == 0)
		rc = t.ours ? ask_here(d, t.meta.uuid, req, &p->said, err) : ask_there(d, call, &t, req, &p->said, err);
	p->begun = p->begun || rc == 0;
	return rc;
}

static bool ask_all(struct ptc_daemon *d, struct ptc_rpc_call *call, struct part *parts, size_t n,
		    Ptc__V1__LeaveRequest *req, int64_t until_ns)
{
	bool over = true;

	for (size_t i = 0; i < n; i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		int64_t left = until_ns - ptc_sys_now_ns();

		req->within_ms = left > 0 ? (uint64_t)(left / MS) : 0;
		if (!parts[i].said.over && ask_part(d, call, &parts[i], req, &err) != 0)
			snprintf(parts[i].why, sizeof parts[i].why, "%s", err.text);
		over = over && parts[i].said.over;
	}
	return over;
}

/* One that has never been asked is late. */
static json_t *summary_row(const struct part *p, size_t *moved)
{
	*moved += !strcmp(p->said.state, "moved") || !strcmp(p->said.state, "starts");
	return p->begun ? ptc_leaving_answer_json(&p->said)
			: json_pack("{s:s, s:s, s:s, s:s}", "job", p->name, "uuid", p->uuid, "state", "late", "why",
				    p->why);
}

static json_t *summary(const Ptc__V1__LeaveRequest *req, struct part *parts, size_t n, uint64_t within_ms,
		       int64_t began_ns)
{
	json_t *jobs = json_array();
	size_t moved = 0;

	for (size_t i = 0; i < n; i++)
		if (parts[i].said.concerned || !parts[i].begun)
			json_array_append_new(jobs, summary_row(&parts[i], &moved));
	return json_pack("{s:i, s:s, s:I, s:b, s:f, s:f, s:o}", "version", 1, "node", req->node, "jobs_moved",
			 (json_int_t)moved, "closed", req->closed, "within_s", (double)within_ms / 1e3, "seconds",
			 (double)(ptc_sys_now_ns() - began_ns) / 1e9, "jobs", jobs);
}

static bool never(void *arg)
{
	(void)arg;
	return false;
}

int ptc_api_leave_all(struct ptc_daemon *d, struct ptc_rpc_call *call, const struct ptc_api_leaving *what,
		      char **ret_summary, struct ptc_error *err)
{
	Ptc__V1__LeaveRequest req = PTC__V1__LEAVE_REQUEST__INIT;
	struct part *parts = ptc_calloc(what->njobs, sizeof *parts);
	int64_t began = ptc_sys_now_ns(), until = began + (int64_t)what->within_ms * MS;
	char node[PTC_NAME_MAX + 1];
	json_t *root;

	if (!parts)
		return ptc_nomem(err);
	snprintf(node, sizeof node, "%s", what->node);
	req.version = PTC_WIRE_VERSION;
	req.node = node;
	req.closed = what->closed;
	for (size_t i = 0; i < what->njobs; i++)
		parts[i].uuid = what->jobs[i];
	while (!ask_all(d, call, parts, what->njobs, &req, until) && ptc_sys_now_ns() < until &&
	       !ptc_rpc_call_cancelled(call))
		ptc_api_wait(d, call, never, NULL, POLL_MS);
	root = summary(&req, parts, what->njobs, what->within_ms, began);
	*ret_summary = root ? ptc_json_text(root) : NULL;
	json_decref(root);
	ptc_free(parts);
	return *ret_summary ? 0 : ptc_nomem(err);
}
