/* SPDX-License-Identifier: Apache-2.0 */
/* Seal, Prepare, Finish, Stat: the parts of a switch that move nothing over the network, and what a node says of
 * itself. Happy path: Seal aliases a table under the next snapshot; Prepare derives the new table from it and reserves
 * chunks for the rest; Finish drops what is no longer named. Each may be repeated.
 *
 * Failure modes: memory (PTC_ENOSPC in Prepare, also in its dry run, before anything moved), a stale controller
 * (PTC_EFENCED), a table that is not here (PTC_ENOTFOUND from Seal). A node that lost its old table derives from
 * nothing and pulls everything. A node that lost all chunks of the job makes new ones as soon as no committed document
 * names its tables. */
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/capture/captured_digests.h"
#include "daemon/store/store.h"
#include "daemon/store/store_table.h"
#include "daemon/store/store_read.h"
#include "daemon/agent/ranks/ranks.h"
#include "daemon/agent/switch/internal.h"
#include "daemon/gpu/node/node_devices.h"
#include "daemon/workers/group/rank_status.h"
#include "daemon/agent/tables/tables.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Prepare ---- */

struct prepared {
	int64_t missing_bytes, new_bytes, copied_bytes;
};

/* What this node has of the job cannot be used. */
static bool unusable(int status)
{
	return status == PTC_ELOST || status == PTC_ECORRUPT;
}

/* As if nothing were here: when it comes to it, this node has begun anew. */
static int prepare_dry_anew(struct ptc_agent *agent, const struct ptc_switch_view *v, struct prepared *ret,
			    struct ptc_error *err)
{
	ret->missing_bytes = ret->new_bytes = v->needs->bytes;
	return ptc_agent_memory_check(agent, ret->new_bytes, err);
}

static int prepare_dry(struct ptc_agent *agent, const struct ptc_switch_view *v, const struct ptc_table_key *key,
		       bool anew, struct prepared *ret, struct ptc_error *err)
{
	struct ptc_store_boxes missing = { 0 };
	struct ptc_table *table = NULL, *src = NULL;
	bool before = false;
	struct ptc_error why = PTC_ERROR_INIT;
	int rc = ptc_agent_table_there(agent, key, &before, &why);

	if (unusable(rc) && !ptc_switch_gets_anew(v, anew))
		return ptc_error_set(err, rc, "%s", why.text);
	if (unusable(rc))
		return prepare_dry_anew(agent, v, ret, err);
	rc = rc ? ptc_error_set(err, rc, "%s", why.text) : ptc_table_begin(agent->env.store, key, &table, err);
	if (!rc && !ptc_table_sealed(table)) {
		rc = ptc_switch_source_open(agent, v, &src, err);
		if (rc == 0)
			rc = ptc_table_derive(table, src, v->fresh, v->need_boxes, v->nneed_boxes, true, &missing,
					      &ret->new_bytes, err);
		ptc_switch_leave_made_out(v, &missing);
		ret->missing_bytes = missing.bytes;
	}
	ptc_store_boxes_done(&missing);
	ptc_table_unref(src);
	ptc_table_unref(table);
	if (table && !before) {
		int forget =
			ptc_agent_table_drop(agent, key, rc ? NULL : err); /* it leaves nothing that was not there */

		if (rc == 0)
			rc = forget;
	}
	return rc ? rc : ptc_agent_memory_check(agent, ret->new_bytes, err);
}

/* A table of that generation here: that of its ranks, or the one that has its copies, too. */
static bool is_of(const struct ptc_geometry_ref *side, const struct ptc_table_key *key)
{
	if (!side || key->generation != side->g.generation)
		return false;
	return key->snapshot == side->g.snapshot || key->snapshot == ptc_geometry_key(&side->g).snapshot;
}

/* Drops the tables of the bridge, which the controller says may go; never one that the switch reads or makes. True:
 * there was one. */
static bool make_room(struct ptc_agent_op *op, const struct ptc_switch_view *v, const Ptc__V1__PrepareRequest *req)
{
	bool there, any = false;

	for (size_t i = 0; i < req->n_yields; i++) {
		struct ptc_table_key key = { .generation = req->yields[i]->generation,
					     .snapshot = req->yields[i]->snapshot };

		snprintf(key.uuid, sizeof key.uuid, "%s", req->info->uuid);
		there = false;
		if (is_of(v->to, &key) || is_of(v->from, &key) ||
		    ptc_agent_table_there(op->agent, &key, &there, NULL) != 0 || !there)
			continue;
		pthread_mutex_lock(&op->agent->shared.lock);
		op->job->yielded = key;
		pthread_mutex_unlock(&op->agent->shared.lock);
		any |= ptc_agent_table_drop(op->agent, &key, NULL) == 0;
	}
	return any;
}

/* What is to be told of it; NULL: nothing. key: its memory. */
static Ptc__V1__TableKey *yielded(const struct ptc_agent_op *op, Ptc__V1__TableKey *key)
{
	ptc__v1__table_key__init(key);
	pthread_mutex_lock(&op->agent->shared.lock);
	key->generation = op->job->yielded.generation;
	key->snapshot = op->job->yielded.snapshot;
	pthread_mutex_unlock(&op->agent->shared.lock);
	return key->snapshot ? key : NULL;
}

static int prepare_real(struct ptc_agent_op *op, const Ptc__V1__PrepareRequest *req, const struct ptc_switch_view *v,
			const struct ptc_table_key *key, struct prepared *ret, struct ptc_error *err)
{
	struct ptc_agent *agent = op->agent;
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_fill fill = { 0 };
	struct ptc_table *table;
	int rc = ptc_table_begin(agent->env.store, key, &table, err);

	if (rc)
		return rc;
	if (!ptc_table_sealed(table))
		rc = ptc_fill_reserve(&fill, agent, v, table, &why);
	if (rc == PTC_ENOSPC && make_room(op, v, req)) {
		ptc_fill_done(&fill);
		fill = (struct ptc_fill){ 0 };
		rc = ptc_fill_reserve(&fill, agent, v, table, &why);
	}
	if (rc)
		ptc_error_set(err, rc, "%s", why.text);
	if (!rc) {
		ret->missing_bytes = fill.missing.bytes;
		ret->copied_bytes = fill.copied_bytes;
		ret->new_bytes = fill.new_bytes;
		ptc_fill_keep(op->job, req->info->id, v, table, &fill);
	}
	ptc_fill_done(&fill);
	ptc_table_unref(table);
	return rc;
}

static void job_prepared(struct ptc_agent_op *op, uint64_t id, const struct ptc_table_key *key, int64_t copied_bytes)
{
	struct ptc_agent_job *job = op->job;

	pthread_mutex_lock(&op->agent->shared.lock);
	if (!job->prepared || job->switch_id != id)
		job->copied_bytes = 0;
	job->prepared = true;
	job->switch_id = id;
	job->key = *key;
	job->copied_bytes += copied_bytes;
	pthread_mutex_unlock(&op->agent->shared.lock);
}

/* The check has made the plan that the reservation agrees on again, unless a node was lost between them. */
static int plan_hash(const struct ptc_switch_view *v, char ret_hash[33], struct ptc_error *err)
{
	const struct ptc_geometry *from = v->from ? &v->from->g : NULL, *to = &v->to->g;
	int rc;

	if (ptc_geometry_plan_known(from, to, v->usable, ret_hash))
		return 0;
	rc = ptc_switch_plan_hash(v, ret_hash, err);
	if (!rc)
		ptc_geometry_plan_note(from, to, v->usable, ret_hash);
	return rc;
}

static int prepare(struct ptc_agent_op *op, const Ptc__V1__PrepareRequest *req, struct ptc_rpc_call *call,
		   struct ptc_error *err)
{
	Ptc__V1__PrepareReply reply;
	struct ptc_agent *agent = op->agent;
	struct ptc_switch_view view;
	struct prepared done = { 0 };
	struct ptc_table_key key;
	Ptc__V1__TableKey gone;
	char hash[33] = "";
	int rc = ptc_switch_view_init(&view, agent, req->info, err);

	if (rc)
		return rc;
	key = ptc_geometry_key(&view.to->g);
	rc = plan_hash(&view, hash, err);
	if (!rc && !req->dry_run) {
		ptc_fill_forget(op->job);
		rc = ptc_switch_begin_anew(agent, &view, req->info->uuid, req->anew, err);
	}
	if (!rc)
		rc = req->dry_run ? prepare_dry(agent, &view, &key, req->anew, &done, err)
				  : prepare_real(op, req, &view, &key, &done, err);
	if (!rc && !req->dry_run)
		job_prepared(op, req->info->id, &key, done.copied_bytes);
	ptc__v1__prepare_reply__init(&reply);
	reply.version = PTC_WIRE_VERSION;
	reply.plan_hash = hash;
	reply.new_bytes = (uint64_t)done.new_bytes;
	reply.missing_bytes = (uint64_t)done.missing_bytes;
	reply.needs_bytes = (uint64_t)view.needs->bytes;
	reply.yielded = yielded(op, &gone);
	ptc_switch_view_done(&view, agent);
	return rc ? rc : ptc_agent_reply(call, &reply.base, err);
}

int ptc_agent_on_prepare(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_agent *agent = arg;
	struct ptc_agent_op op = { 0 };
	ProtobufCMessage *msg = NULL;
	int rc = ptc_agent_request(call, &ptc__v1__prepare_request__descriptor, &msg, err);
	const Ptc__V1__PrepareRequest *req = (const Ptc__V1__PrepareRequest *)msg;

	if (rc == 0)
		rc = ptc_switch_info_check(req->version, req->info, err);
	if (rc == 0)
		rc = ptc_store_job_create(agent->env.store, req->info->uuid, req->info->uid, err);
	if (rc == 0)
		rc = ptc_agent_enter(agent, call, req->info->uuid, req->info->fence, req->info->seq, PTC_TURN_IN_ORDER,
				     &op, err);
	if (!rc) {
		rc = prepare(&op, req, call, err);
		ptc_agent_memory_short(agent, rc, err);
		ptc_agent_leave(&op);
	}
	ptc_pb_free(msg);
	return rc;
}

/* ---- Seal ---- */

static int table_bytes(struct ptc_agent *agent, const struct ptc_table_key *key, uint64_t *ret, struct ptc_error *err)
{
	struct ptc_table *table;
	int rc = ptc_table_open(agent->env.store, key, &table, err);

	if (rc)
		return rc;
	*ret = ptc_table_live_bytes(table);
	ptc_table_unref(table);
	return 0;
}

static int seal(struct ptc_agent *agent, const Ptc__V1__SealRequest *req, struct ptc_rpc_call *call,
		struct ptc_error *err)
{
	Ptc__V1__SealReply reply = PTC__V1__SEAL_REPLY__INIT;
	struct ptc_table_key from = { .generation = req->from->generation, .snapshot = req->from->snapshot };
	struct ptc_table_key to = { .generation = req->to->generation, .snapshot = req->to->snapshot };
	int rc;

	snprintf(from.uuid, sizeof from.uuid, "%s", req->info->uuid);
	snprintf(to.uuid, sizeof to.uuid, "%s", req->info->uuid);
	rc = ptc_table_alias(agent->env.store, &from, &to, err);
	if (rc == 0)
		rc = table_bytes(agent, &to, &reply.bytes, err);
	reply.version = PTC_WIRE_VERSION;
	return rc ? rc : ptc_agent_reply(call, &reply.base, err);
}

int ptc_agent_on_seal(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_agent *agent = arg;
	struct ptc_agent_op op = { 0 };
	ProtobufCMessage *msg = NULL;
	int rc = ptc_agent_request(call, &ptc__v1__seal_request__descriptor, &msg, err);
	const Ptc__V1__SealRequest *req = (const Ptc__V1__SealRequest *)msg;

	if (rc == 0)
		rc = ptc_switch_info_check(req->version, req->info, err);
	if (!rc && (!req->from || !req->to))
		rc = ptc_error_set(err, PTC_EINVAL, "the seal request names no table");
	if (rc == 0)
		rc = ptc_agent_enter(agent, call, req->info->uuid, req->info->fence, req->info->seq, PTC_TURN_IN_ORDER,
				     &op, err);
	if (!rc) {
		rc = seal(agent, req, call, err);
		ptc_agent_leave(&op);
	}
	ptc_pb_free(msg);
	return rc;
}

/* ---- Finish ---- */

#define FINISH_MAX_KEEP 4096

static int finish(struct ptc_agent *agent, const Ptc__V1__FinishRequest *req, struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_table_key *keep;
	int rc;

	if (req->delete_job)
		return ptc_store_job_delete(agent->env.store, req->uuid, err);
	if (agent->env.keep_committed) {
		rc = agent->env.keep_committed(agent->env.arg, req->uuid, err);
		if (rc)
			return rc;
	}
	keep = ptc_calloc(req->n_keep ? req->n_keep : 1, sizeof *keep);
	if (!keep)
		return ptc_nomem(err);
	for (size_t i = 0; i < req->n_keep; i++) {
		snprintf(keep[i].uuid, sizeof keep[i].uuid, "%s", req->uuid);
		keep[i].generation = req->keep[i]->generation;
		keep[i].snapshot = req->keep[i]->snapshot;
	}
	rc = ptc_store_keep(agent->env.store, req->uuid, keep, req->n_keep, &why);
	if (unusable(rc)) /* what the record still names may be there again one day; what nothing names is gone */
		rc = req->n_keep ? 0 : ptc_store_job_anew(agent->env.store, req->uuid, err);
	else if (rc)
		ptc_error_set(err, rc, "%s", why.text);
	ptc_free(keep);
	return rc;
}

/* Whether the job's table under construction is dropped by this, and with it the right to write to it. What nobody
 * expects here any more is told no longer. */
static void finish_prepared(struct ptc_agent_op *op, Ptc__V1__TableKey *const *keep, size_t nkeep)
{
	struct ptc_table_key *gone = &op->job->yielded;
	bool named = false;

	ptc_fill_forget(op->job);
	ptc_captured_keep(op->job, NULL);
	pthread_mutex_lock(&op->agent->shared.lock);
	op->job->prepared = false;
	for (size_t i = 0; i < nkeep; i++)
		named |= keep[i]->generation == gone->generation && keep[i]->snapshot == gone->snapshot;
	if (!named)
		*gone = (struct ptc_table_key){ 0 };
	pthread_mutex_unlock(&op->agent->shared.lock);
}

static int finish_check(const Ptc__V1__FinishRequest *req, struct ptc_error *err)
{
	int rc = ptc_pb_version(req->version, err);

	if (rc)
		return rc;
	if (strlen(req->uuid) != 36 || strspn(req->uuid, "0123456789abcdef-") != 36)
		return ptc_error_set(err, PTC_EINVAL, "job identifier \"%.40s\" in a request: not a UUID", req->uuid);
	if (req->live && req->delete_job)
		return ptc_error_set(err, PTC_EINVAL, "the request says that a deleted job's ranks run");
	if (req->live) {
		rc = ptc_switch_info_check(req->version, req->info, err);
		if (!rc && (!req->info->from || !req->info->from->number || strcmp(req->info->uuid, req->uuid)))
			rc = ptc_error_set(err, PTC_EINVAL,
					   "the request says that job %s runs, but not which generation", req->uuid);
		if (rc)
			return rc;
	}
	if (req->n_keep > FINISH_MAX_KEEP)
		return ptc_error_set(err, PTC_ELIMIT, "the request keeps %zu tables; at most %d are possible",
				     req->n_keep, FINISH_MAX_KEEP);
	return 0;
}

int ptc_agent_on_finish(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__FinishReply reply = PTC__V1__FINISH_REPLY__INIT;
	Ptc__V1__TableKey gone;
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_agent *agent = arg;
	struct ptc_agent_op op = { 0 };
	ProtobufCMessage *msg = NULL;
	uint64_t number = 0;
	int rc = ptc_agent_request(call, &ptc__v1__finish_request__descriptor, &msg, err);
	const Ptc__V1__FinishRequest *req = (const Ptc__V1__FinishRequest *)msg;

	if (rc == 0)
		rc = finish_check(req, err);
	if (rc)
		goto out;
	if (req->live) /* ranks may be started where nothing was before */
		rc = ptc_store_job_create(agent->env.store, req->uuid, req->info->uid, &why);
	if (rc == 0)
		rc = ptc_agent_enter(agent, call, req->uuid, req->fence, req->seq, PTC_TURN_FINISH, &op, &why);
	if (!rc) {
		finish_prepared(&op, req->keep, req->n_keep);
		reply.yielded = yielded(&op, &gone);
		rc = finish(agent, req, &why);
		if (req->live && (!rc || rc == PTC_ENOTFOUND))
			number = ptc_agent_reconciles(&op);
		ptc_agent_leave(&op);
	}
	if (!rc || rc == PTC_ENOTFOUND) {
		int reconciled = ptc_reconcile(agent, req, number, &reply, &why);

		rc = reconciled ? reconciled : rc;
	}
	if (rc && rc != PTC_ENOTFOUND) /* a job never seen here has nothing to drop */
		ptc_error_set(err, rc, "%s", why.text);
	else
		rc = 0;
	reply.version = PTC_WIRE_VERSION;
	if (rc == 0)
		rc = ptc_agent_reply(call, &reply.base, err);
out:
	ptc_pb_free(msg);
	return rc;
}

/* ---- a job that is gone ---- */

/* Nobody sends a Finish for it. */
int ptc_agent_job_delete(struct ptc_agent *agent, const char *uuid, struct ptc_error *err)
{
	struct ptc_agent_op op;
	int rc = ptc_agent_enter_deleted(agent, uuid, &op, err);

	if (rc)
		return rc;
	finish_prepared(&op, NULL, 0);
	rc = ptc_store_job_delete(agent->env.store, uuid, err);
	ptc_agent_leave(&op);
	return rc;
}

/* ---- Stat ---- */

#define DEVICES_AGE_MS 10000 /* how old what is said of devices may be before it is asked anew */

struct on_device {
	uint32_t device;
	bool any;
	struct ptc_buf *json;
};

static void put_rank(void *arg, const struct ptc_rank_given *r)
{
	struct on_device *o = arg;

	if (r->device != o->device)
		return;
	ptc_buf_printf(o->json, "%s{\"job\":\"%s\",\"uid\":%u,\"rank\":%u,\"pid\":%d}", o->any ? "," : "", r->job,
		       (unsigned)r->uid, r->rank, (int)r->pid);
	o->any = true;
}

/* Each device, how it is, and the ranks that have been given it. */
static void put_devices(const struct ptc_agent_env *env, struct ptc_buf *json)
{
	size_t n = env->devices ? ptc_node_devices_count(env->devices) : 0;

	if (n)
		ptc_node_devices_look(env->devices, DEVICES_AGE_MS);
	ptc_buf_puts(json, ",\"device_list\":[");
	for (size_t i = 0; i < n; i++) {
		struct on_device o = { .device = (uint32_t)i, .json = json };

		ptc_buf_puts(json, i ? ",{" : "{");
		ptc_node_devices_json(env->devices, i, json);
		ptc_buf_puts(json, ",\"ranks\":[");
		if (env->workers)
			ptc_workers_each_rank(env->workers, put_rank, &o);
		ptc_buf_puts(json, "]}");
	}
	ptc_buf_puts(json, "]");
}

/* What the ceiling is shared among, and what backing files take beside it. */
static void put_memory(const struct ptc_agent_env *env, struct ptc_buf *json)
{
	const char *shares = env->memory_json ? env->memory_json : "{}";
	uint64_t bytes, open;

	if (!env->backing || !env->backing(env->arg, &bytes, &open)) {
		ptc_buf_puts(json, shares);
		return;
	}
	ptc_buf_printf(json, "%.*s%s\"backing_bytes\":%llu,\"backing_open_bytes\":%llu}", (int)strlen(shares) - 1,
		       shares, shares[1] == '}' ? "" : ",", (unsigned long long)bytes, (unsigned long long)open);
}

int ptc_agent_on_stat(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__Document reply;
	struct ptc_buf json = PTC_BUF_INIT;
	struct ptc_agent *agent = arg;
	struct ptc_store_stats s;
	uint64_t staging_peak;
	ProtobufCMessage *msg = NULL;
	int rc = ptc_agent_request(call, &ptc__v1__list_request__descriptor, &msg, err);

	if (rc == 0)
		rc = ptc_pb_version(((const Ptc__V1__ListRequest *)msg)->version, err);
	ptc_pb_free(msg);
	if (rc)
		return rc;
	ptc_store_stats(agent->env.store, &s);
	staging_peak = ptc_pool_peak(&agent->send) + ptc_pool_peak(&agent->recv) + ptc_pool_peak(&agent->gate);
	ptc_buf_printf(&json,
		       "{\"version\":1,\"node\":\"%s\",\"store\":{\"ceiling_bytes\":%llu,\"used_bytes\":%llu,"
		       "\"file_bytes\":%llu,\"chunks_used\":%llu,\"chunks_free\":%llu,\"copied_bytes\":%llu,"
		       "\"lost_jobs\":%llu,\"outside_bytes\":%llu,\"pinned_bytes\":%llu},\"staging\":{\"ceiling_"
		       "bytes\":%llu,\"peak_bytes\":%llu},\"memory\":",
		       agent->node, (unsigned long long)s.ceiling, (unsigned long long)s.used_bytes,
		       (unsigned long long)s.file_bytes, (unsigned long long)s.chunks_used,
		       (unsigned long long)s.chunks_free, (unsigned long long)s.copied_bytes,
		       (unsigned long long)s.lost_jobs, (unsigned long long)s.outside_bytes,
		       (unsigned long long)(agent->env.workers ? ptc_workers_pinned(agent->env.workers) : 0),
		       (unsigned long long)agent->env.staging_bytes, (unsigned long long)staging_peak);
	put_memory(&agent->env, &json);
	ptc_buf_printf(&json, ",\"heap\":{\"used_bytes\":%llu,\"peak_bytes\":%llu}",
		       (unsigned long long)ptc_alloc_bytes(), (unsigned long long)ptc_alloc_peak());
	put_devices(&agent->env, &json);
	ptc_buf_puts(&json, "}");
	ptc__v1__document__init(&reply);
	reply.version = PTC_WIRE_VERSION;
	reply.json = json.data;
	rc = ptc_buf_failed(&json) ? ptc_nomem(err) : ptc_agent_reply(call, &reply.base, err);
	ptc_buf_done(&json);
	return rc;
}
