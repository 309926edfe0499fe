/* SPDX-License-Identifier: Apache-2.0 */
/* Seal, Prepare, Finish, Stat: the parts of a switch that move nothing over
 * the network. Happy path: Seal aliases a table under the next snapshot;
 * Prepare derives the new table from it and reserves chunks for the rest;
 * Finish drops what is no longer named. Each may be repeated.
 * Failure modes: memory (PTC_ENOSPC in Prepare, also in its dry run, before
 * anything moved), a stale controller (PTC_EFENCED), a table that is not here
 * (PTC_ENOTFOUND from Seal). A node that lost its old table derives from
 * nothing and pulls everything. */
#include "daemon/agent/internal.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what this node has to do with a switch ---- */

void ptc_switch_view_done(struct ptc_switch_view *v, struct ptc_agent *agent)
{
	ptc_geometry_put(agent, v->from);
	ptc_geometry_put(agent, v->to);
	ptc_needs_done(&v->needs);
	ptc_free(v->need_boxes);
	ptc_free(v->usable);
	ptc_free(v->fresh);
	ptc_free(v->derived);
	*v = (struct ptc_switch_view){ 0 };
}

static int need_boxes_make(struct ptc_switch_view *v, struct ptc_error *err)
{
	v->need_boxes = ptc_reallocarray(NULL, v->needs.n ? v->needs.n : 1, sizeof(*v->need_boxes));
	if (!v->need_boxes)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu boxes", v->needs.n);
	for (size_t i = 0; i < v->needs.n; i++)
		if (!ptc_box_empty(&v->needs.v[i].box))
			v->need_boxes[v->nneed_boxes++] =
				(struct ptc_store_box){ v->needs.v[i].item, v->needs.v[i].box };
	return 0;
}

/* Items are numbers; both sides must mean the same by them. */
static int same_items(const struct ptc_geometry *from, const struct ptc_geometry *to, struct ptc_error *err)
{
	char what[64];

	if (from->spec == to->spec)
		return 0;
	if (from->spec->nfields || to->spec->nfields)
		return ptc_error_set(
			err, PTC_ELAYOUT,
			"generations %llu and %llu: one is laid out by rules with fields, the other by what "
			"its ranks declare; export the one and import it",
			(unsigned long long)from->generation, (unsigned long long)to->generation);
	snprintf(what, sizeof(what), "generation %llu", (unsigned long long)to->generation);
	return ptc_declared_same(from->spec, to->spec, what, err);
}

static int flag_item(bool **flags, uint32_t item, size_t nitems, struct ptc_error *err)
{
	if (!*flags)
		*flags = ptc_calloc(nitems, sizeof(**flags));
	if (!*flags)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu tensors", nitems);
	(*flags)[item] = true;
	return 0;
}

/* What the rules of the new generation reset begins anew, whatever the old one has of it; what they derive is asked of nobody. */
static int states_make(struct ptc_switch_view *v, struct ptc_error *err)
{
	const struct ptc_geometry *to = &v->to->g;
	size_t nitems = ptc_spec_items(to->spec);
	int r = 0;

	for (uint32_t item = 0; v->from && !r && item < nitems; item++) {
		if (ptc_layout_resets(to->layout, item))
			r = flag_item(&v->fresh, item, nitems, err);
		else if (ptc_layout_derives(to->layout, item))
			r = flag_item(&v->derived, item, nitems, err);
	}
	return r;
}

static int view_fill(struct ptc_switch_view *v, struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info,
		     struct ptc_error *err)
{
	int r = ptc_geometry_get(agent, info, info->to, &v->to, err);

	if (!r && info->from && info->from->number)
		r = ptc_geometry_get(agent, info, info->from, &v->from, err);
	r = r || !v->from ? r : same_items(&v->from->g, &v->to->g, err);
	r = r ? r : ptc_geometry_node(&v->to->g, agent->node, &v->self, err);
	r = r ? r : ptc_layout_node_needs(v->to->g.layout, &v->to->g.allocation, v->self, &v->needs, err);
	r = r ? r : need_boxes_make(v, err);
	r = r ? r : states_make(v, err);
	if (r)
		return r;
	v->usable = ptc_calloc(info->n_nodes, sizeof(*v->usable));
	if (!v->usable)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu nodes", info->n_nodes);
	memset(v->usable, true, info->n_nodes);
	for (size_t i = 0; i < info->n_lost; i++)
		v->usable[info->lost[i]] = false;
	return 0;
}

int ptc_switch_view_init(struct ptc_switch_view *v, struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info,
			 struct ptc_error *err)
{
	int r;

	*v = (struct ptc_switch_view){ 0 };
	r = view_fill(v, agent, info, err);
	if (r)
		ptc_switch_view_done(v, agent);
	return r;
}

int ptc_switch_plan(const struct ptc_switch_view *v, struct ptc_plan **ret_plan, struct ptc_error *err)
{
	const struct ptc_geometry *from = v->from ? &v->from->g : NULL, *to = &v->to->g;

	return ptc_plan_new(to->spec, from ? from->layout : NULL, from ? &from->allocation : NULL, to->layout,
			    &to->allocation, (uint32_t)to->nnodes, v->usable, ret_plan, err);
}

/* ---- reserving ---- */

void ptc_fill_done(struct ptc_fill *f)
{
	ptc_store_boxes_done(&f->missing);
	ptc_free(f->extents);
	*f = (struct ptc_fill){ 0 };
}

/* The old table, or NULL when it is not here. */
static int source_open(struct ptc_agent *agent, const struct ptc_switch_view *v, struct ptc_table **ret,
		       struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_table_key key;
	int r;

	*ret = NULL;
	if (!v->from)
		return 0;
	key = ptc_geometry_key(&v->from->g);
	r = ptc_table_open(agent->env.store, &key, ret, &why);
	if (r == PTC_ENOTFOUND || r == PTC_ELOST)
		return 0;
	return r ? ptc_error_set(err, r, "%s", why.text) : 0;
}

/* Fresh and derived ones come from nowhere: their bytes are not counted. */
static void leave_made_out(const struct ptc_switch_view *v, struct ptc_store_boxes *missing)
{
	for (size_t i = 0; i < missing->n; i++)
		if ((v->fresh && v->fresh[missing->v[i].item]) || (v->derived && v->derived[missing->v[i].item]))
			missing->bytes -= ptc_box_volume(&missing->v[i].box);
}

int ptc_fill_reserve(struct ptc_fill *f, struct ptc_agent *agent, const struct ptc_switch_view *v,
		     struct ptc_table *table, struct ptc_error *err)
{
	struct ptc_store_stats before, after;
	struct ptc_table *src;
	int r = source_open(agent, v, &src, err);

	*f = (struct ptc_fill){ 0 };
	if (r)
		return r;
	ptc_store_stats(agent->env.store, &before);
	r = ptc_table_derive(table, src, v->fresh, v->need_boxes, v->nneed_boxes, false, &f->missing, &f->new_bytes,
			     err);
	ptc_table_unref(src);
	if (r == PTC_ECORRUPT && v->from)
		ptc_geometry_name_error(&v->from->g, err);
	if (r)
		return r;
	leave_made_out(v, &f->missing);
	ptc_store_stats(agent->env.store, &after);
	f->copied_bytes = (int64_t)(after.copied_bytes - before.copied_bytes);
	f->extents = ptc_reallocarray(NULL, f->missing.n ? f->missing.n : 1, sizeof(*f->extents));
	if (!f->extents)
		r = ptc_error_set(err, PTC_ENOMEM, "no memory for %zu extents", f->missing.n);
	if (!r && f->missing.n) /* boxes reserved before keep their extents */
		r = ptc_table_reserve(table, f->missing.v, f->missing.n, f->extents, err);
	if (r)
		ptc_fill_done(f);
	return r;
}

/* ---- Prepare ---- */

struct prepared {
	int64_t missing_bytes, new_bytes, copied_bytes;
};

struct key_list {
	const struct ptc_table_key *except;
	struct ptc_table_key *v;
	size_t n, cap;
	bool seen, failed;
};

static void key_collect(void *arg, const struct ptc_table_key *key, bool sealed, int64_t bytes)
{
	struct key_list *l = arg;

	if (key->generation == l->except->generation && key->snapshot == l->except->snapshot) {
		l->seen = true;
		return;
	}
	if (l->n == l->cap) {
		size_t cap = l->cap ? 2 * l->cap : 8;
		struct ptc_table_key *v = ptc_reallocarray(l->v, cap, sizeof(*v));

		if (!v) {
			l->failed = true;
			return;
		}
		l->v = v;
		l->cap = cap;
	}
	l->v[l->n++] = *key;
}

static int key_list_read(struct key_list *l, struct ptc_agent *agent, const struct ptc_table_key *except,
			 struct ptc_error *err)
{
	int r;

	*l = (struct key_list){ .except = except };
	r = ptc_store_tables(agent->env.store, except->uuid, key_collect, l, err);
	if (!r && l->failed)
		r = ptc_error_set(err, PTC_ENOMEM, "no memory for the list of tables");
	return r;
}

int ptc_agent_table_drop(struct ptc_agent *agent, const struct ptc_table_key *key, struct ptc_error *err)
{
	struct key_list after;
	int r = key_list_read(&after, agent, key, err);

	if (!r && after.seen)
		r = ptc_store_keep(agent->env.store, key->uuid, after.v, after.n, err);
	ptc_free(after.v);
	return r;
}

int ptc_agent_parts_drop(struct ptc_agent *agent, const char *uuid, struct ptc_error *err)
{
	struct ptc_table_key none = { 0 };
	struct key_list all;
	size_t n = 0;
	int r;

	snprintf(none.uuid, sizeof(none.uuid), "%s", uuid);
	r = key_list_read(&all, agent, &none, err);
	for (size_t i = 0; !r && i < all.n; i++)
		if (!(all.v[i].snapshot & PTC_PARTS_SNAPSHOT))
			all.v[n++] = all.v[i];
	if (!r && n < all.n)
		r = ptc_store_keep(agent->env.store, uuid, all.v, n, err);
	ptc_free(all.v);
	return r;
}

static bool older(const struct ptc_table_key *a, const struct ptc_table_key *b)
{
	return a->generation < b->generation || (a->generation == b->generation && a->snapshot < b->snapshot);
}

int ptc_agent_tables_drop_old(struct ptc_agent *agent, const char *uuid, Ptc__V1__TableKey *const *keep, size_t nkeep,
			      struct ptc_error *err)
{
	struct ptc_table_key none = { 0 }, newest = { 0 };
	struct key_list all;
	size_t n = 0;
	int r;

	snprintf(none.uuid, sizeof(none.uuid), "%s", uuid);
	for (size_t i = 0; i < nkeep; i++) {
		struct ptc_table_key k = { .generation = keep[i]->generation, .snapshot = keep[i]->snapshot };

		if (older(&newest, &k))
			newest = k;
	}
	r = key_list_read(&all, agent, &none, err);
	for (size_t i = 0; !r && i < all.n; i++) {
		bool stays = !older(&all.v[i], &newest) && !(all.v[i].snapshot & PTC_PARTS_SNAPSHOT);

		for (size_t k = 0; k < nkeep; k++)
			stays = stays ||
				(keep[k]->generation == all.v[i].generation && keep[k]->snapshot == all.v[i].snapshot);
		if (stays)
			all.v[n++] = all.v[i];
	}
	if (!r && n < all.n)
		r = ptc_store_keep(agent->env.store, uuid, all.v, n, err);
	ptc_free(all.v);
	return r;
}

int ptc_agent_memory_check(struct ptc_agent *agent, int64_t new_bytes, struct ptc_error *err)
{
	struct ptc_store_stats stats;
	uint64_t room;

	ptc_store_stats(agent->env.store, &stats);
	room = stats.ceiling - PTC_MIN(stats.ceiling, stats.used_bytes + stats.outside_bytes);
	if (new_bytes <= 0 || (uint64_t)new_bytes <= room)
		return 0;
	return ptc_error_set(
		err, PTC_ENOSPC,
		"memory: node %s needs %lld more bytes for this and has %llu of %llu free; use more nodes, "
		"drop snapshots or jobs, or raise its memory.ceiling by %llu bytes",
		agent->node, (long long)new_bytes, (unsigned long long)room, (unsigned long long)stats.ceiling,
		(unsigned long long)new_bytes - room);
}

static int prepare_dry(struct ptc_agent *agent, const struct ptc_switch_view *v, const struct ptc_table_key *key,
		       struct prepared *ret, struct ptc_error *err)
{
	struct ptc_store_boxes missing = { 0 };
	struct ptc_table *table = NULL, *src = NULL;
	struct key_list before;
	int r = key_list_read(&before, agent, key, err);

	r = r ? r : ptc_table_begin(agent->env.store, key, &table, err);
	if (!r && !ptc_table_sealed(table)) {
		r = source_open(agent, v, &src, err);
		r = r ? r
		      : ptc_table_derive(table, src, v->fresh, v->need_boxes, v->nneed_boxes, true, &missing,
					 &ret->new_bytes, err);
		leave_made_out(v, &missing);
		ret->missing_bytes = missing.bytes;
	}
	ptc_store_boxes_done(&missing);
	ptc_table_unref(src);
	ptc_table_unref(table);
	if (table && !before.seen) {
		int forget =
			ptc_agent_table_drop(agent, key, r ? NULL : err); /* it leaves nothing that was not there */

		r = r ? r : forget;
	}
	ptc_free(before.v);
	return r ? r : ptc_agent_memory_check(agent, ret->new_bytes, err);
}

static int prepare_real(struct ptc_agent *agent, const struct ptc_switch_view *v, const struct ptc_table_key *key,
			struct prepared *ret, struct ptc_error *err)
{
	struct ptc_fill fill = { 0 };
	struct ptc_table *table;
	int r = ptc_table_begin(agent->env.store, key, &table, err);

	if (r)
		return r;
	if (!ptc_table_sealed(table))
		r = ptc_fill_reserve(&fill, agent, v, table, err);
	if (!r) {
		ret->missing_bytes = fill.missing.bytes;
		ret->copied_bytes = fill.copied_bytes;
		ret->new_bytes = fill.new_bytes;
	}
	ptc_fill_done(&fill);
	ptc_table_unref(table);
	return r;
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

static int prepare(struct ptc_agent_op *op, const Ptc__V1__PrepareRequest *req, struct ptc_rpc_call *call,
		   struct ptc_error *err)
{
	Ptc__V1__PrepareReply reply;
	struct ptc_agent *agent = op->agent;
	struct ptc_switch_view view;
	struct ptc_plan *plan = NULL;
	struct prepared done = { 0 };
	struct ptc_table_key key;
	char hash[33] = "";
	int r = ptc_switch_view_init(&view, agent, req->info, err);

	if (r)
		return r;
	key = ptc_geometry_key(&view.to->g);
	r = ptc_switch_plan(&view, &plan, err);
	if (!r) {
		ptc_plan_hash(plan, hash);
		r = req->dry_run ? prepare_dry(agent, &view, &key, &done, err)
				 : prepare_real(agent, &view, &key, &done, err);
	}
	if (!r && !req->dry_run)
		job_prepared(op, req->info->id, &key, done.copied_bytes);
	ptc__v1__prepare_reply__init(&reply);
	reply.version = PTC_WIRE_VERSION;
	reply.plan_hash = hash;
	reply.new_bytes = (uint64_t)done.new_bytes;
	reply.missing_bytes = (uint64_t)done.missing_bytes;
	reply.needs_bytes = (uint64_t)view.needs.bytes;
	ptc_plan_free(plan);
	ptc_switch_view_done(&view, agent);
	return r ? r : ptc_agent_reply(call, &reply.base, err);
}

int ptc_agent_on_prepare(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_agent *agent = arg;
	struct ptc_agent_op op = { 0 };
	ProtobufCMessage *msg = NULL;
	int r = ptc_agent_request(call, &ptc__v1__prepare_request__descriptor, &msg, err);
	const Ptc__V1__PrepareRequest *req = (const Ptc__V1__PrepareRequest *)msg;

	r = r ? r : ptc_switch_info_check(req->version, req->info, err);
	r = r ? r : ptc_store_job_create(agent->env.store, req->info->uuid, req->info->uid, err);
	r = r ? r : ptc_agent_enter(agent, call, req->info->uuid, req->info->fence, req->info->seq, false, &op, err);
	if (!r) {
		r = prepare(&op, req, call, err);
		if (r == PTC_ENOMEM && agent->env.work_bytes)
			ptc_error_wrap(err, "node %s: this job needs more than the memory.work of %llu bytes, raise it",
				       agent->node, (unsigned long long)agent->env.work_bytes);
		ptc_agent_leave(&op);
	}
	ptc_pb_free(msg);
	return r;
}

/* ---- Seal ---- */

static int table_bytes(struct ptc_agent *agent, const struct ptc_table_key *key, uint64_t *ret, struct ptc_error *err)
{
	struct ptc_table *table;
	const struct ptc_piece *pieces;
	size_t n;
	int r = ptc_table_open(agent->env.store, key, &table, err);

	if (r)
		return r;
	pieces = ptc_table_all_pieces(table, &n);
	*ret = 0;
	for (size_t i = 0; i < n; i++)
		*ret += (uint64_t)ptc_box_volume(&pieces[i].live);
	ptc_table_unref(table);
	return 0;
}

static int seal(struct ptc_agent *agent, const Ptc__V1__SealRequest *req, struct ptc_rpc_call *call,
		struct ptc_error *err)
{
	Ptc__V1__SealReply reply = PTC__V1__SEAL_REPLY__INIT;
	struct ptc_table_key from = { .generation = req->from->generation, .snapshot = req->from->snapshot };
	struct ptc_table_key to = { .generation = req->to->generation, .snapshot = req->to->snapshot };
	int r;

	snprintf(from.uuid, sizeof from.uuid, "%s", req->info->uuid);
	snprintf(to.uuid, sizeof to.uuid, "%s", req->info->uuid);
	r = ptc_table_alias(agent->env.store, &from, &to, err);
	r = r ? r : table_bytes(agent, &to, &reply.bytes, err);
	reply.version = PTC_WIRE_VERSION;
	return r ? r : ptc_agent_reply(call, &reply.base, err);
}

int ptc_agent_on_seal(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_agent *agent = arg;
	struct ptc_agent_op op = { 0 };
	ProtobufCMessage *msg = NULL;
	int r = ptc_agent_request(call, &ptc__v1__seal_request__descriptor, &msg, err);
	const Ptc__V1__SealRequest *req = (const Ptc__V1__SealRequest *)msg;

	r = r ? r : ptc_switch_info_check(req->version, req->info, err);
	if (!r && (!req->from || !req->to))
		r = ptc_error_set(err, PTC_EINVAL, "a seal that names no table");
	r = r ? r : ptc_agent_enter(agent, call, req->info->uuid, req->info->fence, req->info->seq, false, &op, err);
	if (!r) {
		r = seal(agent, req, call, err);
		ptc_agent_leave(&op);
	}
	ptc_pb_free(msg);
	return r;
}

/* ---- Finish ---- */

#define FINISH_MAX_KEEP 4096

static int finish(struct ptc_agent *agent, const Ptc__V1__FinishRequest *req, struct ptc_error *err)
{
	struct ptc_table_key *keep;
	int r;

	if (req->delete_job)
		return ptc_store_job_delete(agent->env.store, req->uuid, err);
	keep = ptc_calloc(req->n_keep ? req->n_keep : 1, sizeof(*keep));
	if (!keep)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu table keys", req->n_keep);
	for (size_t i = 0; i < req->n_keep; i++) {
		snprintf(keep[i].uuid, sizeof keep[i].uuid, "%s", req->uuid);
		keep[i].generation = req->keep[i]->generation;
		keep[i].snapshot = req->keep[i]->snapshot;
	}
	r = ptc_store_keep(agent->env.store, req->uuid, keep, req->n_keep, err);
	ptc_free(keep);
	return r;
}

/* Whether the job's table under construction is dropped by this, and with it the right to write to it. */
static void finish_prepared(struct ptc_agent_op *op)
{
	pthread_mutex_lock(&op->agent->shared.lock);
	op->job->prepared = false;
	pthread_mutex_unlock(&op->agent->shared.lock);
}

static int finish_check(const Ptc__V1__FinishRequest *req, struct ptc_error *err)
{
	int r = ptc_wire_version(req->version, err);

	if (r)
		return r;
	if (strlen(req->uuid) != 36 || strspn(req->uuid, "0123456789abcdef-") != 36)
		return ptc_error_set(err, PTC_EINVAL, "a job identifier that is none: \"%.40s\"", req->uuid);
	if (req->live && req->delete_job)
		return ptc_error_set(err, PTC_EINVAL, "a deleted job whose ranks are to run");
	if (req->live) {
		r = ptc_switch_info_check(req->version, req->info, err);
		if (!r && (!req->info->from || !req->info->from->number || strcmp(req->info->uuid, req->uuid)))
			r = ptc_error_set(err, PTC_EINVAL, "job %s is to run, but not which generation", req->uuid);
		if (r)
			return r;
	}
	if (req->n_keep > FINISH_MAX_KEEP)
		return ptc_error_set(err, PTC_ELIMIT, "%zu tables to keep; at most %d", req->n_keep, FINISH_MAX_KEEP);
	return 0;
}

int ptc_agent_on_finish(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__FinishReply reply = PTC__V1__FINISH_REPLY__INIT;
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_agent *agent = arg;
	struct ptc_agent_op op = { 0 };
	ProtobufCMessage *msg = NULL;
	int r = ptc_agent_request(call, &ptc__v1__finish_request__descriptor, &msg, err);
	const Ptc__V1__FinishRequest *req = (const Ptc__V1__FinishRequest *)msg;

	r = r ? r : finish_check(req, err);
	if (r)
		goto out;
	if (req->live) /* ranks may be started where nothing was before */
		r = ptc_store_job_create(agent->env.store, req->uuid, req->info->uid, &why);
	r = r ? r : ptc_agent_enter(agent, call, req->uuid, req->fence, req->seq, true, &op, &why);
	if (!r) {
		finish_prepared(&op);
		r = finish(agent, req, &why);
		ptc_agent_leave(&op);
	}
	if (!r || r == PTC_ENOTFOUND) {
		int settled = ptc_settle(agent, req, &why);

		r = settled ? settled : r;
	}
	if (r && r != PTC_ENOTFOUND) /* a job never seen here has nothing to drop */
		ptc_error_set(err, r, "%s", why.text);
	else
		r = 0;
	reply.version = PTC_WIRE_VERSION;
	r = r ? r : ptc_agent_reply(call, &reply.base, err);
out:
	ptc_pb_free(msg);
	return r;
}

/* ---- Stat ---- */

int ptc_agent_on_stat(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__Document reply;
	struct ptc_buf json = PTC_BUF_INIT;
	struct ptc_agent *agent = arg;
	struct ptc_store_stats s;
	uint64_t staging_peak;
	ProtobufCMessage *msg = NULL;
	int r = ptc_agent_request(call, &ptc__v1__list_request__descriptor, &msg, err);

	r = r ? r : ptc_wire_version(((const Ptc__V1__ListRequest *)msg)->version, err);
	ptc_pb_free(msg);
	if (r)
		return r;
	ptc_store_stats(agent->env.store, &s);
	staging_peak = ptc_pool_peak(&agent->send) + ptc_pool_peak(&agent->recv) + ptc_pool_peak(&agent->gate);
	ptc_buf_printf(
		&json,
		"{\"version\":1,\"node\":\"%s\",\"store\":{\"ceiling_bytes\":%llu,\"used_bytes\":%llu,"
		"\"file_bytes\":%llu,\"chunks_used\":%llu,\"chunks_free\":%llu,\"copied_bytes\":%llu,"
		"\"lost_jobs\":%llu,\"outside_bytes\":%llu},\"staging\":{\"ceiling_bytes\":%llu,\"peak_bytes\":%llu},"
		"\"memory\":%s,\"heap\":{\"used_bytes\":%llu,\"peak_bytes\":%llu}}",
		agent->node, (unsigned long long)s.ceiling, (unsigned long long)s.used_bytes,
		(unsigned long long)s.file_bytes, (unsigned long long)s.chunks_used, (unsigned long long)s.chunks_free,
		(unsigned long long)s.copied_bytes, (unsigned long long)s.lost_jobs,
		(unsigned long long)s.outside_bytes, (unsigned long long)agent->env.staging_bytes,
		(unsigned long long)staging_peak, agent->env.memory_json ? agent->env.memory_json : "{}",
		(unsigned long long)ptc_alloc_bytes(), (unsigned long long)ptc_alloc_peak());
	ptc__v1__document__init(&reply);
	reply.version = PTC_WIRE_VERSION;
	reply.json = json.data;
	r = ptc_buf_failed(&json) ? ptc_error_set(err, PTC_ENOMEM, "no memory for the statistics")
				  : ptc_agent_reply(call, &reply.base, err);
	ptc_buf_done(&json);
	return r;
}
