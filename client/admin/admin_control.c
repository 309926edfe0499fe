/* SPDX-License-Identifier: Apache-2.0 */
/* libptcadmin's control calls: one function each, fields in, fields out. Failure: see admin.c; a stream of progress
 * that ends without "finished" is PTC_EPEER. */
#include "client/admin/internal.h"

#include "base/alloc.h"
#include "proto/sample_rules.h"

#include <ptc/admin_older.h>
#include <ptc/admin_recover.h>

#include <string.h>

#define SERVICE "/ptc.v1.Control/"

static int take(const char *s, char **ret, struct ptc_error *err)
{
	char *copy = ptc_strdup(s);

	if (!copy)
		return ptc_nomem(err);
	*ret = copy;
	return 0;
}

static int call_document_within(struct ptc_admin *a, int timeout_ms, const char *method,
				const ProtobufCMessage *request, char **ret_json, struct ptc_error *err)
{
	ProtobufCMessage *reply = NULL;
	int rc = ptc_admin_call_within(a, timeout_ms, method, request, &ptc__v1__document__descriptor, &reply, err);

	if (!rc)
		rc = take(((Ptc__V1__Document *)reply)->json, ret_json, err);
	ptc_admin_reply_free(reply);
	return rc;
}

static int call_document(struct ptc_admin *a, const char *method, const ProtobufCMessage *request, char **ret_json,
			 struct ptc_error *err)
{
	return call_document_within(a, a->timeout_ms, method, request, ret_json, err);
}

static int call_list(struct ptc_admin *a, const char *method, char **ret_json, struct ptc_error *err)
{
	Ptc__V1__ListRequest request;

	ptc__v1__list_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	return call_document(a, method, &request.base, ret_json, err);
}

static Ptc__V1__JobRequest job_request(const char *job)
{
	Ptc__V1__JobRequest request;

	ptc__v1__job_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.job = ptc_admin_borrow(job);
	return request;
}

static int resize_request(const struct ptc_admin_target *target, Ptc__V1__ResizeRequest *ret_request,
			  struct ptc_error *err)
{
	struct ptc_admin_target t;
	int rc = PTC_ADMIN_TAKE(target, target, &t, err);

	if (rc)
		return rc;
	ptc__v1__resize_request__init(ret_request);
	ret_request->version = PTC_ADMIN_VERSION;
	ret_request->job = ptc_admin_borrow(t.job);
	ret_request->config = ptc_admin_borrow(t.config);
	ret_request->gpus = t.gpus;
	ret_request->nodes = (char **)(uintptr_t)t.nodes;
	ret_request->n_nodes = t.nnodes;
	return 0;
}

int ptc_admin_nodes(struct ptc_admin *a, char **ret_json, struct ptc_error *err)
{
	return call_list(a, SERVICE "Nodes", ret_json, err);
}

int ptc_admin_job_list(struct ptc_admin *a, char **ret_json, struct ptc_error *err)
{
	return call_list(a, SERVICE "JobList", ret_json, err);
}

int ptc_admin_status(struct ptc_admin *a, const char *job, char **ret_json, struct ptc_error *err)
{
	Ptc__V1__JobRequest request = job_request(job);

	return call_document(a, SERVICE "Status", &request.base, ret_json, err);
}

int ptc_admin_snapshots(struct ptc_admin *a, const char *job, char **ret_json, struct ptc_error *err)
{
	Ptc__V1__JobRequest request = job_request(job);

	return call_document(a, SERVICE "Snapshots", &request.base, ret_json, err);
}

int ptc_admin_plan(struct ptc_admin *a, const struct ptc_admin_target *target, char **ret_json, struct ptc_error *err)
{
	Ptc__V1__ResizeRequest request;
	int rc = resize_request(target, &request, err);

	return rc ? rc : call_document(a, SERVICE "Plan", &request.base, ret_json, err);
}

int ptc_admin_advise(struct ptc_admin *a, const struct ptc_admin_target *target, const struct ptc_admin_advice *ask,
		     char **ret_json, struct ptc_error *err)
{
	Ptc__V1__AdviseRequest request;
	struct ptc_admin_advice advice;
	struct ptc_admin_target t;
	int rc = PTC_ADMIN_TAKE(target, target, &t, err);

	if (rc == 0)
		rc = PTC_ADMIN_TAKE(advice, ask, &advice, err);
	if (rc)
		return rc;
	ptc__v1__advise_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.job = ptc_admin_borrow(t.job);
	request.gpus = t.gpus;
	request.first = advice.first;
	request.nodes = (char **)(uintptr_t)t.nodes;
	request.n_nodes = t.nnodes;
	request.horizon_ms = advice.horizon_ms;
	request.objective = ptc_admin_borrow(advice.objective);
	return call_document(a, SERVICE "Advise", &request.base, ret_json, err);
}

int ptc_admin_profile(struct ptc_admin *a, const char *action, const char *text, char **ret_json, struct ptc_error *err)
{
	Ptc__V1__ProfileRequest request;

	ptc__v1__profile_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.action = ptc_admin_borrow(action);
	request.text = ptc_admin_borrow(text);
	return call_document_within(a, strcmp(request.action, "measure") == 0 ? a->measure_timeout_ms : a->timeout_ms,
				    SERVICE "Profile", &request.base, ret_json, err);
}

int ptc_admin_probe(struct ptc_admin *a, const char *job, const void *layout, size_t len, char **ret_json,
		    struct ptc_error *err)
{
	Ptc__V1__ProbeRequest request;

	ptc__v1__probe_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.job = ptc_admin_borrow(job);
	request.layout.data = (uint8_t *)(uintptr_t)layout; /* packing only reads */
	request.layout.len = len;
	return call_document(a, SERVICE "Probe", &request.base, ret_json, err);
}

int ptc_admin_job_create(struct ptc_admin *a, const void *spec, size_t len, char **ret_uuid, char **ret_json,
			 struct ptc_error *err)
{
	Ptc__V1__JobCreateRequest request;
	ProtobufCMessage *reply = NULL;
	char *uuid = NULL, *json = NULL;
	int rc;

	ptc__v1__job_create_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.spec_json.data = (uint8_t *)(uintptr_t)spec;
	request.spec_json.len = len;
	rc = ptc_admin_call(a, SERVICE "JobCreate", &request.base, &ptc__v1__job_create_reply__descriptor, &reply, err);
	if (!rc)
		rc = take(((Ptc__V1__JobCreateReply *)reply)->uuid, &uuid, err);
	if (!rc)
		rc = take(((Ptc__V1__JobCreateReply *)reply)->json, &json, err);
	ptc_admin_reply_free(reply);
	if (rc) {
		ptc_free(uuid);
		return rc;
	}
	*ret_uuid = uuid;
	*ret_json = json;
	return 0;
}

int ptc_admin_job_delete(struct ptc_admin *a, const char *job, struct ptc_error *err)
{
	Ptc__V1__JobRequest request = job_request(job);

	return ptc_admin_call_ack(a, SERVICE "JobDelete", &request.base, err);
}

static int call_dataset(struct ptc_admin *a, const char *method, const char *name, const char *json, bool here,
			struct ptc_error *err)
{
	Ptc__V1__DatasetRequest request;

	ptc__v1__dataset_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.name = ptc_admin_borrow(name);
	request.json = ptc_admin_borrow(json);
	request.here = here;
	return ptc_admin_call_ack(a, method, &request.base, err);
}

int ptc_admin_dataset_add(struct ptc_admin *a, const char *json, bool here, struct ptc_error *err)
{
	return call_dataset(a, SERVICE "DatasetAdd", NULL, json, here, err);
}

int ptc_admin_dataset_remove(struct ptc_admin *a, const char *name, struct ptc_error *err)
{
	return call_dataset(a, SERVICE "DatasetRemove", name, NULL, false, err);
}

int ptc_admin_dataset_list(struct ptc_admin *a, char **ret_json, struct ptc_error *err)
{
	return call_list(a, SERVICE "DatasetList", ret_json, err);
}

static int each_sample(const Ptc__V1__SamplesRequest *q, const Ptc__V1__SamplesReply *r, ptc_admin_sample_fn fn,
		       void *arg, struct ptc_error *err)
{
	const uint8_t *at = r->data.len ? r->data.data : (const uint8_t *)"";
	int rc = ptc_samples_fits(q, r, err);

	for (size_t i = 0; !rc && i < q->n_samples; i++) {
		struct ptc_admin_sample s = { .size = sizeof s, .bytes = r->sizes[i], .data = at };

		s.len = ptc_samples_part(q, i, s.bytes);
		if (r->n_names) {
			s.name = (const char *)r->names[i].data;
			s.name_len = r->names[i].len;
		}
		rc = fn(arg, i, &s, err);
		at += s.len;
	}
	return rc;
}

int ptc_admin_dataset_read(struct ptc_admin *a, const struct ptc_admin_samples *samples, ptc_admin_sample_fn fn,
			   void *arg, struct ptc_error *err)
{
	ProtobufCMessage *reply = NULL;
	Ptc__V1__SamplesRequest request;
	struct ptc_admin_samples what;
	int rc = PTC_ADMIN_TAKE(samples, samples, &what, err);

	if (rc)
		return rc;
	ptc__v1__samples_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.dataset = ptc_admin_borrow(what.dataset);
	request.source = ptc_admin_borrow(what.source);
	request.n_samples = what.n; /* protobuf-c only reads */
	request.samples = (uint64_t *)(uintptr_t)what.samples;
	request.n_offsets = request.n_lengths = what.offsets ? what.n : 0;
	request.offsets = (uint64_t *)(uintptr_t)what.offsets;
	request.lengths = (uint32_t *)(uintptr_t)what.lengths;
	request.uid = (uint32_t)what.uid;
	request.names = what.names;
	request.ahead = what.ahead;
	rc = ptc_admin_call(a, SERVICE "DatasetRead", &request.base, &ptc__v1__samples_reply__descriptor, &reply, err);
	if (!rc && !what.ahead)
		rc = each_sample(&request, (const Ptc__V1__SamplesReply *)reply, fn, arg, err);
	ptc_admin_reply_free(reply);
	return rc;
}

int ptc_admin_data(struct ptc_admin *a, const char *job, char **ret_json, struct ptc_error *err)
{
	Ptc__V1__JobRequest request = job_request(job);

	return call_document(a, SERVICE "JobData", &request.base, ret_json, err);
}

int ptc_admin_abort(struct ptc_admin *a, const char *job, uint64_t id, struct ptc_error *err)
{
	Ptc__V1__AbortRequest request;

	ptc__v1__abort_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.job = ptc_admin_borrow(job);
	request.id = id;
	return ptc_admin_call_ack(a, SERVICE "Abort", &request.base, err);
}

struct follow {
	ptc_admin_progress_fn fn;
	void *arg;
	bool finished;
};

static int on_progress(void *arg, const ProtobufCMessage *reply, struct ptc_error *err)
{
	const Ptc__V1__Progress *p = (const Ptc__V1__Progress *)reply;
	struct follow *f = arg;
	struct ptc_admin_progress out = { sizeof out, p->phase,    p->bytes_done, p->bytes_total,
					  p->text,    p->finished, p->summary };

	f->finished |= p->finished;
	if (f->fn && f->fn(f->arg, &out))
		return ptc_error_set(err, PTC_ECANCELED, "stopped listening");
	return 0;
}

int ptc_admin_follow(struct ptc_admin *a, const char *method, const ProtobufCMessage *request, ptc_admin_progress_fn fn,
		     void *arg, struct ptc_error *err)
{
	struct follow f = { fn, arg, false };
	int rc = ptc_admin_call_stream(a, method, request, &ptc__v1__progress__descriptor, on_progress, &f, err);

	if (!rc && !f.finished)
		rc = ptc_error_set(err, PTC_EPEER, "the daemon ended the stream before the work was finished");
	return rc;
}

int ptc_admin_resize(struct ptc_admin *a, const struct ptc_admin_target *target, ptc_admin_progress_fn fn, void *arg,
		     struct ptc_error *err)
{
	Ptc__V1__ResizeRequest request;
	int rc = resize_request(target, &request, err);

	return rc ? rc : ptc_admin_follow(a, SERVICE "Resize", &request.base, fn, arg, err);
}

int ptc_admin_drain(struct ptc_admin *a, const char *node, const char *job, ptc_admin_progress_fn fn, void *arg,
		    struct ptc_error *err)
{
	return ptc_admin_drain_within(a, node, job, 0, fn, arg, err);
}

static Ptc__V1__DrainRequest drain_request(const char *node)
{
	Ptc__V1__DrainRequest request;

	ptc__v1__drain_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.node = ptc_admin_borrow(node);
	return request;
}

int ptc_admin_drain_within(struct ptc_admin *a, const char *node, const char *job, uint64_t within_ms,
			   ptc_admin_progress_fn fn, void *arg, struct ptc_error *err)
{
	Ptc__V1__DrainRequest request = drain_request(node);

	request.job = ptc_admin_borrow(job);
	request.within_ms = within_ms;
	return ptc_admin_follow(a, SERVICE "Drain", &request.base, fn, arg, err);
}

int ptc_admin_undrain(struct ptc_admin *a, const char *node, ptc_admin_progress_fn fn, void *arg, struct ptc_error *err)
{
	Ptc__V1__DrainRequest request = drain_request(node);

	request.undo = true;
	return ptc_admin_follow(a, SERVICE "Drain", &request.base, fn, arg, err);
}

int ptc_admin_node_lost(struct ptc_admin *a, const char *node, bool undo, struct ptc_error *err)
{
	Ptc__V1__NodeLostRequest request;

	ptc__v1__node_lost_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.node = ptc_admin_borrow(node);
	request.undo = undo;
	return ptc_admin_call_ack(a, SERVICE "NodeLost", &request.base, err);
}

int ptc_admin_node_forget(struct ptc_admin *a, const char *node, struct ptc_error *err)
{
	Ptc__V1__NodeForgetRequest request;

	ptc__v1__node_forget_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.node = ptc_admin_borrow(node);
	return ptc_admin_call_ack(a, SERVICE "NodeForget", &request.base, err);
}

int ptc_admin_cluster_recover(struct ptc_admin *a, const struct ptc_admin_recover *how, char **ret_json,
			      struct ptc_error *err)
{
	Ptc__V1__RecoverRequest request;

	ptc__v1__recover_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.nodes = (char **)(uintptr_t)how->nodes; /* packing only reads */
	request.n_nodes = how->nnodes;
	request.dry_run = how->dry_run;
	request.old_is_gone = how->old_is_gone;
	request.rejoin = how->rejoin;
	request.drop = how->drop;
	return call_document(a, SERVICE "Recover", &request.base, ret_json, err);
}

int ptc_admin_device_bad(struct ptc_admin *a, const char *node, uint32_t device, bool undo, struct ptc_error *err)
{
	Ptc__V1__DeviceBadRequest request;

	ptc__v1__device_bad_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.node = ptc_admin_borrow(node);
	request.device = device;
	request.undo = undo;
	return ptc_admin_call_ack(a, SERVICE "DeviceBad", &request.base, err);
}

int ptc_admin_verify(struct ptc_admin *a, const char *job, ptc_admin_progress_fn fn, void *arg, struct ptc_error *err)
{
	Ptc__V1__JobRequest request = job_request(job);

	return ptc_admin_follow(a, SERVICE "Verify", &request.base, fn, arg, err);
}

int ptc_admin_repair(struct ptc_admin *a, const char *job, ptc_admin_progress_fn fn, void *arg, struct ptc_error *err)
{
	Ptc__V1__JobRequest request = job_request(job);

	request.repair = true;
	return ptc_admin_follow(a, SERVICE "Verify", &request.base, fn, arg, err);
}

/* ---- live jobs ---- */

int ptc_admin_run(struct ptc_admin *a, const struct ptc_admin_target *target, ptc_admin_progress_fn fn, void *arg,
		  struct ptc_error *err)
{
	Ptc__V1__RunRequest request;
	struct ptc_admin_target t;
	int rc = PTC_ADMIN_TAKE(target, target, &t, err);

	if (rc)
		return rc;
	ptc__v1__run_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.job = ptc_admin_borrow(t.job);
	request.config = ptc_admin_borrow(t.config);
	request.gpus = t.gpus;
	request.nodes = (char **)(uintptr_t)t.nodes;
	request.n_nodes = t.nnodes;
	return ptc_admin_follow(a, SERVICE "Run", &request.base, fn, arg, err);
}

int ptc_admin_stop(struct ptc_admin *a, const char *job, bool now, ptc_admin_progress_fn fn, void *arg,
		   struct ptc_error *err)
{
	Ptc__V1__StopRequest request;

	ptc__v1__stop_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.job = ptc_admin_borrow(job);
	request.now = now;
	return ptc_admin_follow(a, SERVICE "Stop", &request.base, fn, arg, err);
}

static Ptc__V1__RollbackRequest rollback_request(const char *job, uint64_t snapshot, bool check)
{
	Ptc__V1__RollbackRequest request;

	ptc__v1__rollback_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.job = ptc_admin_borrow(job);
	request.snapshot = snapshot;
	request.check = check;
	return request;
}

int ptc_admin_rollback(struct ptc_admin *a, const char *job, uint64_t snapshot, ptc_admin_progress_fn fn, void *arg,
		       struct ptc_error *err)
{
	Ptc__V1__RollbackRequest request = rollback_request(job, snapshot, false);

	return ptc_admin_follow(a, SERVICE "Rollback", &request.base, fn, arg, err);
}

int ptc_admin_rollback_check(struct ptc_admin *a, const char *job, uint64_t snapshot, struct ptc_error *err)
{
	Ptc__V1__RollbackRequest request = rollback_request(job, snapshot, true);

	return ptc_admin_follow(a, SERVICE "Rollback", &request.base, NULL, NULL, err);
}

int ptc_admin_rollback_skip(struct ptc_admin *a, const char *job, uint64_t snapshot, ptc_admin_progress_fn fn,
			    void *arg, struct ptc_error *err)
{
	Ptc__V1__RollbackRequest request = rollback_request(job, snapshot, false);

	return ptc_admin_follow(a, SERVICE "RollbackSkipping", &request.base, fn, arg, err);
}

int ptc_admin_rollback_skip_check(struct ptc_admin *a, const char *job, uint64_t snapshot, struct ptc_error *err)
{
	Ptc__V1__RollbackRequest request = rollback_request(job, snapshot, true);

	return ptc_admin_follow(a, SERVICE "RollbackSkipping", &request.base, NULL, NULL, err);
}

int ptc_admin_snapshot(struct ptc_admin *a, const char *job, ptc_admin_progress_fn fn, void *arg, struct ptc_error *err)
{
	Ptc__V1__JobRequest request = job_request(job);

	return ptc_admin_follow(a, SERVICE "Snapshot", &request.base, fn, arg, err);
}

struct log_sink {
	ptc_admin_log_fn fn;
	void *arg;
};

static int on_log(void *arg, const ProtobufCMessage *reply, struct ptc_error *err)
{
	const Ptc__V1__LogLine *l = (const Ptc__V1__LogLine *)reply;
	struct log_sink *sink = arg;

	if (l->data.len && sink->fn(sink->arg, l->rank, l->data.data, l->data.len))
		return ptc_error_set(err, PTC_ECANCELED, "stopped listening");
	return 0;
}

int ptc_admin_logs(struct ptc_admin *a, const struct ptc_admin_logs *logs, ptc_admin_log_fn fn, void *arg,
		   struct ptc_error *err)
{
	struct log_sink sink = { fn, arg };
	Ptc__V1__EvidenceRequest evidence;
	Ptc__V1__LogsRequest request;
	struct ptc_admin_logs what;
	int rc = PTC_ADMIN_TAKE(logs, logs, &what, err);

	if (rc)
		return rc;
	if (what.evidence) {
		ptc__v1__evidence_request__init(&evidence);
		evidence.version = PTC_ADMIN_VERSION;
		evidence.job = ptc_admin_borrow(what.job);
		evidence.collect = what.now;
		return ptc_admin_call_stream(a, SERVICE "Evidence", &evidence.base, &ptc__v1__log_line__descriptor,
					     on_log, &sink, err);
	}
	ptc__v1__logs_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.job = ptc_admin_borrow(what.job);
	request.all = what.all;
	request.rank = what.rank;
	request.follow = what.follow;
	request.lines = what.lines;
	return ptc_admin_call_stream(a, SERVICE "Logs", &request.base, &ptc__v1__log_line__descriptor, on_log, &sink,
				     err);
}

/* ---- events ---- */

struct event_sink {
	ptc_admin_event_fn fn;
	void *arg;
};

static int on_event(void *arg, const ProtobufCMessage *reply, struct ptc_error *err)
{
	struct event_sink *sink = arg;

	if (sink->fn(sink->arg, ((const Ptc__V1__Document *)reply)->json))
		return ptc_error_set(err, PTC_ECANCELED, "stopped listening");
	return 0;
}

int ptc_admin_events(struct ptc_admin *a, const char *job, bool follow, uint64_t after, uint32_t limit,
		     ptc_admin_event_fn fn, void *arg, struct ptc_error *err)
{
	struct event_sink sink = { fn, arg };
	Ptc__V1__EventsRequest request;

	ptc__v1__events_request__init(&request);
	request.version = PTC_ADMIN_VERSION;
	request.job = ptc_admin_borrow(job);
	request.follow = follow;
	request.after = after;
	request.limit = limit;
	return ptc_admin_call_stream(a, SERVICE "Events", &request.base, &ptc__v1__document__descriptor, on_event,
				     &sink, err);
}
