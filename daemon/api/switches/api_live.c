/* SPDX-License-Identifier: Apache-2.0 */
/* The calls behind `ptcctl run`, `stop`, `snapshot` and `rollback`.
 *
 * Happy path: each is a switch like resize, with the same progress and summary. run starts a job's ranks, stop and
 * snapshot are for ranks that run, and rollback is for a job of which none run.
 *
 * Failure modes: a job without `run:` has no ranks to start; a job that lists its tensors must be imported first. The
 * others are those of a switch (api_switch.c). */
#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "daemon/api/switches/switches.h"
#include "formats/json.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- run, stop, snapshot -------------------------------------------------------------- */

static int switch_and_stream(struct ptc_daemon *d, struct ptc_rpc_call *call, const struct ptc_target *t,
			     const struct ptc_api_ask *ask, const struct ptc_plan_request *pr, struct ptc_error *err)
{
	uint64_t id = ptc_api_new_id();
	struct ptc_watcher *w = ptc_watcher_new(id);
	int rc = w ? ptc_api_start_switch(d, call, t->meta.uuid, ask, pr, w, id, err) : ptc_nomem(err);

	if (rc == 0)
		rc = ptc_api_stream(d, t, w, call, err);
	ptc_watcher_unref(w);
	return rc;
}

/* Ranks declare their tensors, each field as one of its own, NAME:FIELD. A job that lists them is run from what was
 * imported, which has to have the same names. */
static int check_runnable(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_error *err)
{
	const struct ptc_job_desc *desc;
	void *ref;
	int rc = ptc_specs_get(d->docs.specs, t->meta.uuid, t->meta.spec_hash, &desc, &ref, err);

	if (rc)
		return rc;
	if (!desc->has_run)
		rc = ptc_error_set(err, PTC_ESTATE, "job %s has no `run:`: there is nothing to start (docs/job.md)",
				   t->meta.name);
	else if (desc->spec.nfields)
		rc = ptc_error_set(
			err, PTC_ESTATE,
			"job %s lists `fields`, which ranks declare as tensors named NAME:FIELD; import those from one "
			"file, as `ptcctl export` writes it, without `fields`",
			t->meta.name);
	else if (desc->spec.ntensors && !t->has_record)
		rc = ptc_error_set(
			err, PTC_ESTATE,
			"job %s lists its tensors: `ptcctl import %s FILE` first, or leave `tensors` out for ranks "
			"that begin with values of their own",
			t->meta.name, t->meta.name);
	ptc_specs_release(ref);
	return rc;
}

PTC_API_HANDLER(ptc_api_run)
{
	struct ptc_daemon *d = arg;
	struct ptc_plan_request pr;
	Ptc__V1__RunRequest *req;
	struct ptc_target t;
	int rc = ptc_pb_call_recv(call, &ptc__v1__run_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	pr = (struct ptc_plan_request){
		.config = req->config, .gpus = req->gpus, .or_same = true, .nodes = req->nodes, .nnodes = req->n_nodes
	};
	rc = ptc_api_find_controlled(d, call, req->job, &t, err);
	if (rc == 0 && !t.ours) {
		rc = ptc_api_forward_switch(d, &t, call, "/ptc.v1.Control/Run", &req->base, 0, err);
	} else if (rc == 0) {
		rc = check_runnable(d, &t, err);
		if (rc == 0)
			rc = switch_and_stream(d, call, &t,
					       &(struct ptc_api_ask){ .kind = PTC_SWITCH_RESIZE, .start = true }, &pr,
					       err);
	}
	ptc_pb_free(&req->base);
	return rc;
}

/* What ends the ranks or lets them go on; `job` is of `req`, a request of the method. */
static int end_or_go_on(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *job, const struct ptc_api_ask *ask,
			const char *method, const ProtobufCMessage *req, struct ptc_error *err)
{
	struct ptc_plan_request pr = { .config = "" };
	struct ptc_target t;
	int rc = ptc_api_find_controlled(d, call, job, &t, err);

	if (rc)
		return rc;
	if (t.ours && ask->kind == PTC_SWITCH_HALT)
		ptc_api_evidence_keep(d, &t);
	return t.ours ? switch_and_stream(d, call, &t, ask, &pr, err)
		      : ptc_api_forward_switch(d, &t, call, method, req, 0, err);
}

PTC_API_HANDLER(ptc_api_stop)
{
	Ptc__V1__StopRequest *req;
	int rc = ptc_pb_call_recv(call, &ptc__v1__stop_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = end_or_go_on(arg, call, req->job,
			  &(struct ptc_api_ask){ .kind = req->now ? PTC_SWITCH_HALT : PTC_SWITCH_SNAPSHOT,
						 .stop = true },
			  "/ptc.v1.Control/Stop", &req->base, err);
	ptc_pb_free(&req->base);
	return rc;
}

static int check_rollback(struct ptc_daemon *d, struct ptc_rpc_call *call, const Ptc__V1__RollbackRequest *req,
			  bool skip_data, struct ptc_error *err)
{
	Ptc__V1__Progress p = PTC__V1__PROGRESS__INIT;
	char phase[] = "idle", text[] = "", summary[] = "{\"version\":1}";
	struct ptc_target t;
	int rc = ptc_api_find(d, call, req->job, &t, err);

	if (rc == 0)
		rc = ptc_api_check_rollback(d, &t, req->snapshot, skip_data, err);
	p.version = PTC_WIRE_VERSION;
	p.phase = phase;
	p.text = text;
	p.finished = true;
	p.summary = summary;
	return rc ? rc : ptc_pb_call_send(call, &p.base, err);
}

static int roll_back(struct ptc_daemon *d, struct ptc_rpc_call *call, bool skip_data, struct ptc_error *err)
{
	Ptc__V1__RollbackRequest *req;
	int rc = ptc_pb_call_recv(call, &ptc__v1__rollback_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	if (!req->snapshot)
		rc = ptc_error_set(err, PTC_EINVAL, "the request names no snapshot to which the job should go back");
	if (rc == 0 && req->check)
		rc = check_rollback(d, call, req, skip_data, err);
	else if (rc == 0)
		rc = end_or_go_on(d, call, req->job,
				  &(struct ptc_api_ask){
					  .kind = PTC_SWITCH_IMPORT, .source = req->snapshot, .skip_data = skip_data },
				  skip_data ? "/ptc.v1.Control/RollbackSkipping" : "/ptc.v1.Control/Rollback",
				  &req->base, err);
	ptc_pb_free(&req->base);
	return rc;
}

PTC_API_HANDLER(ptc_api_rollback)
{
	return roll_back(arg, call, false, err);
}

/* A call of its own: a daemon that does not know it refuses, where one that passed a member over would go back in the
 * data, too. */
PTC_API_HANDLER(ptc_api_rollback_skipping)
{
	return roll_back(arg, call, true, err);
}

PTC_API_HANDLER(ptc_api_snapshot)
{
	Ptc__V1__JobRequest *req;
	int rc = ptc_pb_call_recv(call, &ptc__v1__job_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = end_or_go_on(arg, call, req->job, &(struct ptc_api_ask){ .kind = PTC_SWITCH_SNAPSHOT },
			  "/ptc.v1.Control/Snapshot", &req->base, err);
	ptc_pb_free(&req->base);
	return rc;
}
