/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of the boxes that this node holds, and the Digest call. Happy path: boxes are cut into tasks that a few
 * threads take in turn; digests are linear, so the parts of a box XOR together. Failure modes: a block that does not
 * verify (PTC_ECORRUPT from the store), a box that is not here, cancellation. The first failure stops all threads. */
#include "daemon/agent/calls/task_pool.h"
#include "daemon/store/store_table.h"
#include "daemon/store/store_read.h"
#include "daemon/agent/calls/operation.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/tables/node_digest.h"
#include "daemon/agent/tables/tables.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"
#include "base/sys/sys.h"

#include <string.h>

#define TELL_NS           (INT64_C(1000000) * PTC_AGENT_TICK_MS)
#define DIGEST_TASK_BYTES (16 << 20)

struct task {
	uint32_t need, cut; /* cut 0: the need's whole box; else the box before this one in cuts */
};

struct digester {
	const struct ptc_digest_job *job;
	struct task *tasks;
	size_t ntasks, cap;
	struct ptc_boxes cuts;
	struct ptc_boxes rest, next; /* of the need at hand; kept from need to need for their memory */
	struct ptc_boxes unknown;    /* likewise */
	struct ptc_verified seen[PTC_AGENT_DIGEST_THREADS];
};

static int task_push(struct digester *d, size_t need, const struct ptc_box *box)
{
	const bool whole = box == &d->job->needs->v[need].box;

	if (!PTC_ROOM(d->tasks, d->ntasks + 1, d->cap) || (!whole && ptc_boxes_push(&d->cuts, box)))
		return PTC_ENOMEM;
	d->tasks[d->ntasks++] = (struct task){ (uint32_t)need, whole ? 0 : (uint32_t)d->cuts.n };
	return 0;
}

static int tasks_cut(struct digester *d, size_t need, const struct ptc_box *box)
{
	struct ptc_boxes cut = { 0 };
	int rc;

	if (ptc_box_volume(box) <= DIGEST_TASK_BYTES)
		return task_push(d, need, box);
	rc = ptc_box_chop(box, DIGEST_TASK_BYTES, &cut);
	for (size_t k = 0; !rc && k < cut.n; k++)
		rc = task_push(d, need, &cut.v[k]);
	ptc_boxes_done(&cut);
	return rc;
}

static int tasks_of(struct digester *d, size_t need, const struct ptc_box *box)
{
	const struct ptc_digest_job *job = d->job;
	int rc;

	if (!job->known)
		return tasks_cut(d, need, box);
	d->unknown.n = 0;
	rc = job->known(job->known_arg, job->needs->v[need].item, box, &job->digests[need], &d->unknown);
	for (size_t i = 0; !rc && i < d->unknown.n; i++)
		rc = tasks_cut(d, need, &d->unknown.v[i]);
	return rc;
}

/* What is not done of the box: of all that is done of its item, *at is the first or lies before it. */
static int tasks_rest(struct digester *d, size_t need, size_t *at)
{
	const struct ptc_digest_job *job = d->job;
	const struct ptc_need *n = &job->needs->v[need];
	struct ptc_boxes swap;
	struct ptc_box common;
	int rc;

	while (*at < job->ndone && job->done[*at].item < n->item)
		(*at)++;
	if (*at == job->ndone || job->done[*at].item != n->item)
		return tasks_of(d, need, &n->box);
	if (ptc_box_contains(&job->done[*at].box, &n->box)) /* as most */
		return 0;
	d->rest.n = 0;
	rc = ptc_boxes_push(&d->rest, &n->box);
	for (size_t k = *at; !rc && k < job->ndone && job->done[k].item == n->item; k++) {
		if (!ptc_box_intersect(&n->box, &job->done[k].box, &common))
			continue;
		d->next.n = 0;
		for (size_t i = 0; !rc && i < d->rest.n; i++)
			rc = ptc_box_subtract(&d->rest.v[i], &job->done[k].box, &d->next);
		swap = d->rest;
		d->rest = d->next;
		d->next = swap;
	}
	for (size_t i = 0; !rc && i < d->rest.n; i++)
		rc = tasks_of(d, need, &d->rest.v[i]);
	return rc;
}

static int tasks_make(struct digester *d, struct ptc_error *err)
{
	const struct ptc_needs *needs = d->job->needs;
	size_t at = 0;
	int rc = 0;

	for (size_t i = 0; !rc && i < needs->n; i++)
		if (!ptc_box_empty(&needs->v[i].box))
			rc = d->job->ndone ? tasks_rest(d, i, &at) : tasks_of(d, i, &needs->v[i].box);
	return rc ? ptc_nomem(err) : 0;
}

static int task_run(void *arg, unsigned thread, size_t i, struct ptc_error *err)
{
	struct digester *d = arg;
	const struct task *t = &d->tasks[i];
	const struct ptc_box *box = t->cut ? &d->cuts.v[t->cut - 1] : &d->job->needs->v[t->need].box;
	uint32_t item = d->job->needs->v[t->need].item, ndim;
	int64_t shape[PTC_MAX_DIMS];
	uint64_t digest;
	struct ptc_heal_tries tries = { .now = true };
	int rc = ptc_geometry_shape(d->job->g, item, &ndim, shape, err);

	if (rc)
		return rc;
	ptc_require(thread < PTC_ARRAY_LEN(d->seen));
	do
		rc = ptc_table_digest_row(d->job->table, item, box, ndim, shape, &digest, &d->seen[thread], err);
	while (ptc_agent_heals(d->job->g->agent, d->job->g->uuid, rc, &tries));
	if (rc)
		ptc_geometry_name_error(d->job->g, err);
	else
		__atomic_xor_fetch(&d->job->digests[t->need], digest, __ATOMIC_RELAXED);
	return rc;
}

static bool digest_stop(void *arg)
{
	const struct ptc_digest_job *job = ((struct digester *)arg)->job;

	return job->stop && job->stop(job->arg);
}

static void digest_tick(void *arg)
{
	const struct ptc_digest_job *job = ((struct digester *)arg)->job;

	if (job->tick)
		job->tick(job->arg);
}

int ptc_digest_needs(const struct ptc_digest_job *job, struct ptc_error *err)
{
	struct digester d = { .job = job };
	struct ptc_task_pool task_pool = { .threads = PTC_AGENT_DIGEST_THREADS,
					   .run = task_run,
					   .stop = digest_stop,
					   .tick = digest_tick,
					   .arg = &d,
					   .what = "digesting" };
	int rc;

	if (!job->ndone)
		memset(job->digests, 0, job->needs->n * sizeof *job->digests);
	rc = tasks_make(&d, err);
	task_pool.ntasks = d.ntasks;
	if (rc == 0)
		rc = ptc_task_pool_run(&task_pool, err);
	ptc_free(d.tasks);
	ptc_boxes_done(&d.cuts);
	ptc_boxes_done(&d.rest);
	ptc_boxes_done(&d.next);
	ptc_boxes_done(&d.unknown);
	return rc;
}

/* ---- of what is being filled ---- */

static size_t first_need(const struct ptc_needs *needs, uint32_t item)
{
	return PTC_SEARCH(struct ptc_need, item, needs->v, needs->n, item);
}

int ptc_digest_part(const struct ptc_digest_fill *f, uint32_t extent, uint32_t item, const struct ptc_box *part,
		    struct ptc_error *err)
{
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS];
	struct ptc_box cut;
	uint64_t digest;
	int rc = ptc_geometry_shape(f->g, item, &ndim, shape, err);

	for (size_t i = first_need(f->needs, item); !rc && i < f->needs->n && f->needs->v[i].item == item; i++) {
		if (!ptc_box_intersect(&f->needs->v[i].box, part, &cut))
			continue;
		rc = ptc_table_digest_extent(f->table, extent, &cut, ndim, shape, &digest, err);
		if (!rc)
			__atomic_xor_fetch(&f->digests[i], digest, __ATOMIC_RELAXED);
	}
	return rc;
}

/* ---- the Digest call ---- */

struct verify {
	struct ptc_agent_op op;
	struct ptc_rpc_call *call;
	const struct ptc_needs *needs;
	bool repair; /* what is damaged is healed */
	struct ptc_heal_tries tries;
	bool broken; /* progress could not be sent */
	int64_t told_ns;
};

static bool verify_stop(void *arg)
{
	struct verify *v = arg;

	return v->broken || ptc_agent_op_stopped(&v->op);
}

static void verify_tick(void *arg)
{
	struct verify *v = arg;
	Ptc__V1__PullReply reply = PTC__V1__PULL_REPLY__INIT;

	reply.version = PTC_WIRE_VERSION;
	reply.bytes_total = (uint64_t)v->needs->bytes;
	v->broken = ptc_agent_reply(v->call, &reply.base, NULL) != 0;
}

/* Whoever asked must hear from us also while a large table is read. */
static bool verify_goes_on(void *arg)
{
	struct verify *v = arg;
	int64_t now = ptc_sys_now_ns();

	if (now < v->told_ns + TELL_NS)
		return true;
	v->told_ns = now;
	verify_tick(v);
	return !verify_stop(v);
}

static int verify_reply(struct verify *v, const uint64_t *digests, int64_t scrubbed, struct ptc_error *err)
{
	Ptc__V1__PullReply reply = PTC__V1__PULL_REPLY__INIT;
	uint32_t *index = ptc_reallocarray(NULL, v->needs->n ? v->needs->n : 1, sizeof *index);
	int rc;

	if (!index)
		return ptc_nomem(err);
	for (size_t i = 0; i < v->needs->n; i++)
		index[i] = (uint32_t)i;
	reply.version = PTC_WIRE_VERSION;
	reply.finished = true;
	reply.bytes_done = reply.bytes_total = (uint64_t)v->needs->bytes;
	reply.verified_bytes = (uint64_t)scrubbed;
	reply.healed_blocks = v->tries.healed;
	reply.n_need_index = reply.n_digests = v->needs->n;
	reply.need_index = index;
	reply.digests = (uint64_t *)(uintptr_t)digests;
	rc = ptc_agent_reply(v->call, &reply.base, err);
	ptc_free(index);
	return rc;
}

static int verify(struct verify *v, const struct ptc_geometry *g, struct ptc_error *err)
{
	struct ptc_table_key key = ptc_geometry_key(g);
	struct ptc_digest_job job = { .g = g, .stop = verify_stop, .tick = verify_tick, .arg = v };
	int64_t scrubbed = 0;
	int rc = ptc_geometry_needs(g, true, &v->needs, err);

	if (rc == 0)
		rc = ptc_agent_table_open(v->op.agent, &key, &job.table, err);
	if (rc)
		return rc;
	verify_tick(v);
	do
		rc = ptc_table_scrub(job.table, verify_goes_on, v, &scrubbed, err);
	while (v->repair && ptc_agent_heals(v->op.agent, g->uuid, rc, &v->tries));
	if (rc)
		ptc_geometry_name_error(g, err);
	job.needs = v->needs;
	job.digests = ptc_calloc(v->needs->n ? v->needs->n : 1, sizeof *job.digests);
	if (!rc && !job.digests)
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = ptc_digest_needs(&job, err);
	if (rc == 0)
		rc = verify_reply(v, job.digests, scrubbed, err);
	ptc_free(job.digests);
	ptc_table_unref(job.table);
	return rc;
}

int ptc_agent_on_digest(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct verify v = { .op = { arg, NULL, call }, .call = call };
	struct ptc_geometry_ref *ref = NULL;
	ProtobufCMessage *msg = NULL;
	int rc = ptc_agent_request(call, &ptc__v1__digest_request__descriptor, &msg, err);
	const Ptc__V1__DigestRequest *req = (const Ptc__V1__DigestRequest *)msg;

	if (rc == 0)
		rc = ptc_switch_info_check(req->version, req->info, err);
	v.repair = !rc && req->repair;
	v.tries.now = v.repair;
	if (rc == 0)
		rc = ptc_geometry_get(arg, req->info, req->info->from, &ref, err);
	if (rc == 0)
		rc = verify(&v, &ref->g, err);
	ptc_geometry_put(ref);
	ptc_pb_free(msg);
	return rc;
}
