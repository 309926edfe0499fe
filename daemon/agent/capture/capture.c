/* SPDX-License-Identifier: Apache-2.0 */
/* Capture: takes a snapshot of ranks that wait at a boundary. Happy path, in this order:
 * - memory is reserved for what this node holds under the generation;
 * - a few threads copy the memory of ranks into extents (capture_fill.c): here each byte is copied once;
 * - ranks that waited only for the copy go on, and the threads digest the extents;
 * - if a rule says that the greatest value of a tensor counts, it is compared with other nodes' (max_reduce.c);
 * - if the primary of a box is on another node only, it is fetched from there (remote_primary.c);
 * - checksums are made, and the table is sealed.
 * Ranks that have copied their memory themselves (copy: fast) go on before all that. Those whose device memory was
 * copied on the device (copy: async) go on once their host memory is copied.
 *
 * If this node has lost the job's chunks while the ranks went on, the table is made in new chunks.
 *
 * Failure modes: ranks do not wait at that step (PTC_ESTATE); they have declared another layout, or a dtype without a
 * greatest value (PTC_ELAYOUT); memory is short (PTC_ENOSPC, before anything is copied); replicas differ (PTC_EDIGEST
 * naming tensor and ranks); a rank dies meanwhile (the error of reading its memory). The begun table is dropped then.
 *
 * A table with the key of this snapshot may be left from an attempt at another step. The table is accepted only if a
 * note in the store says that it was made for this very request. Otherwise the table is made anew. */
#include "daemon/agent/calls/task_pool.h"
#include "daemon/store/store.h"
#include "daemon/store/store_table.h"
#include "daemon/agent/capture/capture.h"
#include "daemon/agent/capture/internal.h"
#include "daemon/agent/tables/node_digest.h"
#include "daemon/agent/tables/tables.h"
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/memory/resident.h"
#include "formats/job/job.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/fault.h"
#include "base/number/search.h"

#include <stdlib.h>
#include <string.h>

/* ---- which replicas count ---- */

PTC_BY3(by_item, struct ptc_slot_source, item, secondary, slot)

/* Says which sources are secondary, which come after the others then, and of which the greatest counts. */
static int rank_sources(struct ptc_capture *c, const struct ptc_spec *rules, struct ptc_error *err)
{
	const struct ptc_config *config = ptc_layout_config(c->g->layout);
	const struct ptc_rule *rule = NULL;
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];

	for (size_t i = 0; i < c->sources.n; i++) {
		struct ptc_slot_source *s = &c->sources.v[i];

		if (!i || s->item != s[-1].item) {
			int rc;

			rule = ptc_spec_rule_named(rules, ptc_geometry_item_name(c->g, s->item, name, sizeof(name)));
			rc = ptc_rule_check_max(rule, name, ptc_item_dtype(c->g->spec, s->item), err);
			if (rc)
				return rc;
		}
		s->secondary = !ptc_rule_is_primary(rule, config, c->group.v[s->slot].rank.rank);
		s->max = ptc_rule_takes_max(rule);
	}
	if (c->sources.n > 1)
		qsort(c->sources.v, c->sources.n, sizeof *c->sources.v, by_item);
	return 0;
}

static int sources_make(struct ptc_capture *c, struct ptc_error *err)
{
	const struct ptc_agent_env *env = &c->agent->env;
	const struct ptc_job_desc *job;
	void *ref;
	int rc = ptc_slot_sources_make(c->g, &c->group, &c->sources, err);

	if (rc || !env->job_get)
		return rc;
	rc = env->job_get(env->arg, c->req->info->uuid, c->req->info->spec_hash, &job, &ref, err);
	if (rc)
		return rc;
	c->async = job->copy == PTC_JOB_COPY_ASYNC;
	if (job->spec.nrules) {
		rc = rank_sources(c, &job->spec, err);
		if (rc == 0)
			rc = ptc_remote_find(c->g, &job->spec, c->self, c->needs, &c->remote, &c->reduce, err);
	}
	env->job_release(env->arg, ref);
	return rc;
}

/* ---- the whole ---- */

static bool capture_stop(void *arg)
{
	struct ptc_capture *c = arg;

	if (c->broken || ptc_agent_op_stopped(&c->op))
		atomic_store(&c->stopped, true);
	return atomic_load(&c->stopped);
}

static bool capture_stopped(void *arg)
{
	return atomic_load(&((struct ptc_capture *)arg)->stopped);
}

static void capture_tick(void *arg)
{
	struct ptc_capture *c = arg;
	Ptc__V1__PullReply reply = PTC__V1__PULL_REPLY__INIT;

	reply.version = PTC_WIRE_VERSION;
	reply.bytes_done = (uint64_t)PTC_MIN(atomic_load(&c->copied), c->needs->bytes);
	reply.bytes_total = (uint64_t)c->needs->bytes;
	reply.copied_bytes = (uint64_t)atomic_load(&c->copied);
	c->broken = ptc_agent_reply(c->call, &reply.base, NULL) != 0;
}

static int task_pool_run(struct ptc_capture *c, int (*run)(void *, unsigned, size_t, struct ptc_error *), size_t ntasks,
			 struct ptc_error *err)
{
	struct ptc_task_pool task_pool = { .ntasks = ntasks,
					   .threads = c->nscratch,
					   .run = run,
					   .stop = capture_stop,
					   .tick = capture_tick,
					   .arg = c,
					   .what = "copying ranks" };

	return ptc_task_pool_run(&task_pool, err);
}

/* Ranks that have survived a loss count if their state is whole at that step. Of other ranks, killed at that step, the
 * blobs and cursors count. */
static bool is_kept(const struct ptc_capture *c, const struct ptc_slot_view *slot)
{
	return slot->step == c->req->step && (!slot->not_held || (slot->outlived && slot->has_state));
}

static void keep_held(struct ptc_capture *c)
{
	size_t n = 0;

	for (size_t i = 0; i < c->group.n; i++)
		if (is_kept(c, &c->group.v[i]))
			c->group.v[n++] = c->group.v[i];
	c->group.n = n;
}

/* A rank that has ended leaves only its tensors on devices. */
static void keep_outlived(struct ptc_capture *c)
{
	size_t n = 0;

	for (size_t i = 0; i < c->sources.n; i++) {
		const struct ptc_slot_source *s = &c->sources.v[i];
		const struct ptc_slot_view *slot = &c->group.v[s->slot];

		if (!slot->outlived || (!slot->not_held && ptc_slot_device(slot, s->at.address)))
			c->sources.v[n++] = *s;
	}
	c->sources.n = n;
}

/* Whether they have all that this node's table needs. */
static int check_held(const struct ptc_capture *c, struct ptc_error *err)
{
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	struct ptc_boxes left = { 0 };
	int rc = 0;

	if (c->remote.n || c->reduce.parts.n || c->reduce.own.n)
		return ptc_error_set(err, PTC_ESTATE,
				     "by the job's rules some of its replicas are merged, or taken from another node; "
				     "that cannot be done after a loss");
	for (size_t i = 0; !rc && i < c->needs->n; i++) {
		if (ptc_box_empty(&c->needs->v[i].box))
			continue;
		rc = ptc_boxes_push(&left, &c->needs->v[i].box) ? ptc_nomem(err) : 0;
		for (size_t k = 0; !rc && left.n && k < c->sources.n; k++) {
			struct ptc_boxes rest = { 0 };

			if (c->sources.v[k].item != c->needs->v[i].item)
				continue;
			for (size_t b = 0; !rc && b < left.n; b++)
				if (ptc_box_subtract(&left.v[b], &c->sources.v[k].at.box, &rest))
					rc = ptc_nomem(err);
			ptc_boxes_done(&left);
			left = rest;
		}
		if (!rc && left.n)
			rc = ptc_error_set(
				err, PTC_ELOST,
				"tensor \"%.600s\": no rank here that is whole at step %llu holds a part that "
				"the node's table needs",
				ptc_geometry_item_name(c->g, c->needs->v[i].item, name, sizeof name),
				(unsigned long long)c->req->step);
		ptc_boxes_done(&left);
	}
	return rc;
}

/* The ranks have been held all the while, so the copied bytes are of one step. */
static int still_held(struct ptc_capture *c, struct ptc_error *err)
{
	struct ptc_group now = { 0 };
	int rc = ptc_group_open(c->agent, &c->g->allocation, c->self, &c->group.key, &now, err);

	for (size_t i = 0; !rc && i < c->group.n; i++) {
		bool kept = false;

		for (size_t k = 0; k < now.n; k++)
			kept |= now.v[k].rank.rank == c->group.v[i].rank.rank && is_kept(c, &now.v[k]);
		if (!kept)
			rc = ptc_error_set(err, PTC_ELOST, "ranks here went on while their memory was copied");
	}
	ptc_group_close(&now);
	return rc;
}

static int slots_check(const struct ptc_capture *c, struct ptc_error *err)
{
	if (c->req->held)
		return c->group.n ? 0
				  : ptc_error_set(err, PTC_ELOST, "no rank here is held whole at step %llu",
						  (unsigned long long)c->req->step);
	for (size_t i = 0; i < c->group.n; i++) {
		const struct ptc_slot_view *s = &c->group.v[i];

		if (s->state != PTC_SLOT_STOPPED || s->step != c->req->step)
			return ptc_error_set(err, PTC_ESTATE,
					     "rank %u does not wait at step %llu (it is in state %d at step %llu)",
					     s->rank.rank, (unsigned long long)c->req->step, (int)s->state,
					     (unsigned long long)s->step);
	}
	return 0;
}

static int extents_reserve(struct ptc_capture *c, struct ptc_table *table, const struct ptc_store_boxes *boxes,
			   int64_t new_bytes, uint32_t **ret, struct ptc_error *err)
{
	int rc = ptc_agent_memory_check(c->agent, new_bytes, err);

	if (rc)
		return rc;
	*ret = ptc_reallocarray(NULL, boxes->n ? boxes->n : 1, sizeof **ret);
	if (!*ret)
		return ptc_nomem(err);
	return boxes->n ? ptc_table_reserve(table, boxes->v, boxes->n, *ret, err) : 0;
}

/* Makes extents for parts that other nodes merge. */
static int reserve_parts(struct ptc_capture *c, struct ptc_error *err)
{
	const struct ptc_parts *parts = &c->reduce.parts;
	struct ptc_table_key key =
		ptc_reduce_key(&c->key, c->req->info->id, c->req->info->from->incarnation, c->req->step);
	struct ptc_store_box *boxes;
	int64_t new_bytes = 0;
	int rc;

	if (!parts->n)
		return 0;
	boxes = ptc_reallocarray(NULL, parts->n, sizeof *boxes);
	if (!boxes)
		return ptc_nomem(err);
	for (size_t i = 0; i < parts->n; i++)
		boxes[i] = (struct ptc_store_box){ parts->v[i].item, parts->v[i].box };
	rc = ptc_table_begin(c->agent->env.store, &key, &c->parts, err);
	if (rc == 0)
		rc = ptc_table_derive(c->parts, NULL, NULL, boxes, parts->n, false, &c->exposed, &new_bytes, err);
	ptc_free(boxes);
	return rc ? rc : extents_reserve(c, c->parts, &c->exposed, new_bytes, &c->exposed_extents, err);
}

static int drop(struct ptc_capture *c, struct ptc_error *err)
{
	int rc = ptc_agent_table_drop(c->agent, &c->key, err);

	return rc ? rc : ptc_agent_parts_drop(c->agent, c->key.uuid, err);
}

/* Where the job's chunks cannot be used, ranks have outlived them. They have all that this node's table needs, and
 * nothing else that was there can be read: new chunks take their place. */
static int drop_or_begin_anew(struct ptc_capture *c, struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	int rc = drop(c, &why);

	if (rc != PTC_ELOST && rc != PTC_ECORRUPT)
		return rc ? ptc_error_set(err, rc, "%s", why.text) : 0;
	rc = ptc_store_job_anew(c->agent->env.store, c->key.uuid, err);
	if (rc == 0)
		rc = drop(c, err);
	if (rc == 0)
		ptc_warn("agent", "%s; its ranks have outlived them, and their snapshot begins with new ones",
			 why.text);
	return rc;
}

/* Nothing is believed that may be there; all is reserved before anything is copied. */
static int reserve(struct ptc_capture *c, struct ptc_error *err)
{
	struct ptc_store_box *boxes = ptc_reallocarray(NULL, c->needs->n ? c->needs->n : 1, sizeof *boxes);
	int64_t new_bytes = 0;
	size_t n = 0;
	int rc = boxes ? drop_or_begin_anew(c, err) : ptc_nomem(err);

	for (size_t i = 0; !rc && i < c->needs->n; i++)
		if (!ptc_box_empty(&c->needs->v[i].box))
			boxes[n++] = (struct ptc_store_box){ c->needs->v[i].item, c->needs->v[i].box };
	if (rc == 0)
		rc = ptc_table_begin(c->agent->env.store, &c->key, &c->table, err);
	if (rc == 0)
		rc = ptc_table_derive(c->table, NULL, NULL, boxes, n, false, &c->missing, &new_bytes, err);
	ptc_free(boxes);
	if (rc == 0)
		rc = ptc_remote_split(&c->reduce.own, PTC_REMOTE_TAKE_BYTES, &c->missing, &c->nown, err);
	if (rc == 0)
		rc = ptc_remote_split(&c->remote, PTC_EXTENT_MAX_BYTES, &c->missing, &c->nremote, err);
	if (rc == 0)
		rc = extents_reserve(c, c->table, &c->missing, new_bytes, &c->extents, err);
	return rc ? rc : reserve_parts(c, err);
}

static bool any_max(const struct ptc_slot_sources *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->v[i].max)
			return true;
	return false;
}

static int scratch_make(struct ptc_capture *c, struct ptc_error *err)
{
	struct ptc_table *const tables[] = { c->table, c->parts };
	unsigned n = ptc_task_pool_size();
	int rc;

	c->nscratch = (unsigned)PTC_MAX(PTC_MIN((size_t)n, c->missing.n), 1u);
	rc = ptc_pool_take(&c->agent->recv, (uint64_t)c->nscratch * PTC_CAPTURE_MAX_BYTES, ptc_agent_op_stopped, &c->op,
			   &c->ticket, err);
	if (rc)
		return rc;
	c->nscratch = (unsigned)PTC_MAX(PTC_MIN(c->nscratch, c->ticket / PTC_CAPTURE_MAX_BYTES), 1u);
	c->scratch = ptc_calloc(c->nscratch, sizeof *c->scratch);
	if (!c->scratch)
		return ptc_nomem(err);
	if (!c->group.n)
		return 0;
	c->wait = (struct ptc_wait){ .cancelled = capture_stopped, .arg = c };
	rc = ptc_copying_open(&c->copying, &c->group.v[0], tables,
			      any_max(&c->sources) || c->req->list_differing
				      ? (size_t)c->nscratch * PTC_CAPTURE_MAX_BYTES
				      : 0,
			      &c->wait, err);
	for (unsigned i = 0; !rc && i < c->nscratch; i++) {
		if (c->copying.room)
			c->scratch[i].buffer = c->copying.room + (size_t)i * PTC_CAPTURE_MAX_BYTES;
		c->scratch[i].iov_batch.copying = &c->copying.slots;
	}
	return rc;
}

static void scratch_done(struct ptc_capture *c)
{
	ptc_copying_close(&c->copying);
	ptc_free(c->scratch);
	c->scratch = NULL;
	if (c->ticket)
		ptc_pool_give(&c->agent->recv, c->ticket);
	c->ticket = 0;
}

/* All that is to be read is in staging memory: ranks are not kept waiting for anything. */
static bool all_staged(const struct ptc_capture *c)
{
	for (size_t i = 0; i < c->group.n; i++)
		if (!c->group.v[i].staged && c->group.v[i].ntensors)
			return false;
	return true;
}

static int release(struct ptc_capture *c, struct ptc_error *err)
{
	return ptc_workers_release(c->agent->env.workers, &c->group.key, c->req->step, c->req->leave_out, err);
}

/* Fetches bytes of other nodes into n extents of missing, from the first on. */
static struct ptc_remote_fetch fetch_of(struct ptc_capture *c, uint64_t snapshot, size_t first, size_t n)
{
	return (struct ptc_remote_fetch){ .agent = c->agent,
					  .g = c->g,
					  .snapshot = snapshot,
					  .self = c->self,
					  .table = c->table,
					  .boxes = c->missing.v + first,
					  .extents = c->extents + first,
					  .n = n,
					  .stop = capture_stop,
					  .tick = capture_tick,
					  .owner = c };
}

/* This node's own values of the parts that it merges have been copied. */
static int merge_own(struct ptc_capture *c, size_t first, struct ptc_error *err)
{
	struct ptc_table_key key =
		ptc_reduce_key(&c->key, c->req->info->id, c->req->info->from->incarnation, c->req->step);
	struct ptc_remote_fetch job = fetch_of(c, key.snapshot, first, c->nown);
	int rc;

	if (!c->nown)
		return 0;
	rc = ptc_reduce_merge(&c->reduce, &job, &c->fetched, err);
	if (!rc && ptc_fault("agent.capture.merged"))
		rc = ptc_error_set(err, PTC_EIO, "injected failure when parts of replicas were merged");
	c->mark_from = first + c->exposed.n;
	return rc ? rc : task_pool_run(c, ptc_capture_mark, c->nown, err);
}

/* All else is there for others to fetch. */
static int fetch_remote(struct ptc_capture *c, size_t first, struct ptc_error *err)
{
	struct ptc_remote_fetch job = fetch_of(c, c->key.snapshot, first, c->nremote);
	struct ptc_parts parts = { 0 };
	int rc = 0;

	if (!c->nremote)
		return 0;
	for (size_t i = 0; !rc && i < c->remote.n; i++) {
		c->fetched += (uint64_t)ptc_box_volume(&c->remote.v[i].box);
		rc = ptc_remote_ask(&job, &c->remote, i, c->remote.v[i].node, &parts, err);
	}
	if (rc == 0)
		rc = ptc_remote_fetch(&job, &parts, err);
	ptc_parts_done(&parts);
	c->mark_from = first + c->exposed.n;
	return rc ? rc : task_pool_run(c, ptc_capture_mark, c->nremote, err);
}

/* For copy: async: copies the ranks' device memory on the devices. Tasks that need the ranks no longer than that come
 * last; returns the number of the other tasks. If anything fails, the ranks wait until all is copied. */
static size_t shadow(struct ptc_capture *c, size_t ntasks)
{
	struct ptc_error err = PTC_ERROR_INIT;
	size_t first = 0, last = ntasks;
	int rc = 0;

	if (!c->async || c->req->held || !c->group.n || !ntasks)
		return ntasks;
	c->order = ptc_reallocarray(NULL, ntasks, sizeof *c->order);
	for (size_t i = 0; c->order && i < ntasks; i++)
		c->order[ptc_capture_from_shadow(c, i) ? --last : first++] = i;
	if (!c->order)
		rc = ptc_nomem(&err);
	else if (first == ntasks)
		rc = ptc_error_set(&err, PTC_ENODEVICES, "no tensor here is on devices alone");
	for (size_t i = 0; i < c->group.n && !rc; i++)
		rc = ptc_slot_shadow(&c->group.v[i], &c->copying.slots, &err);
	if (!rc && ptc_fault("agent.capture.shadow"))
		rc = ptc_error_set(&err, PTC_EIO, "injected failure when device memory was copied on the device");
	if (ptc_workers_copied_async(c->agent->env.workers, &c->group.key, rc == 0, err.text) && rc)
		ptc_warn("agent", "job %s: copy: async is refused, so its ranks wait for the copy of a snapshot: %s",
			 c->key.uuid, err.text);
	if (rc == 0)
		return first;
	ptc_slots_shadow_drop(c->agent->env.workers, &c->copying.slots);
	ptc_free(c->order);
	c->order = NULL;
	return ntasks;
}

/* If the shadow is gone when the ranks go on, the snapshot is lost. So if it is gone before that, the rest is copied
 * from the ranks' own memory. Returns the number of tasks that are done. */
static int before_release(struct ptc_capture *c, size_t here, size_t *waited, struct ptc_error *err)
{
	struct ptc_workers *workers = c->agent->env.workers;
	int rc;

	if (ptc_fault("agent.capture.release"))
		return ptc_error_set(err, PTC_EIO, "injected failure before ranks are let go");
	if (ptc_slots_shadow_lives(workers, &c->copying.slots)) {
		ptc_slots_shadow_only(workers, &c->copying.slots);
		return 0;
	}
	ptc_warn("agent", "job %s: the copies on its devices are lost, so its ranks wait for the copy of a snapshot",
		 c->key.uuid);
	(void)ptc_workers_copied_async(workers, &c->group.key, false, "ptc-gpu ended before the ranks went on");
	ptc_slots_shadow_drop(workers, &c->copying.slots);
	c->fill_from = *waited;
	rc = task_pool_run(c, ptc_capture_fill, here - *waited, err);
	*waited = here;
	return rc;
}

/* Out of the ranks' memory; they may go on then. */
static int copy(struct ptc_capture *c, bool released, struct ptc_error *err)
{
	size_t here = c->missing.n - c->nremote + c->exposed.n, waited = here;
	int rc = scratch_make(c, err);

	if (!rc && c->req->release && !released)
		waited = shadow(c, here);
	if (rc == 0)
		rc = task_pool_run(c, ptc_capture_fill, waited, err);
	if (!rc && !c->req->release && !c->staged) /* the ranks end, and others will be restored */
		ptc_residents_make(c->agent,
				   &(struct ptc_residents_make){ c->g, &c->group, &c->sources, &c->copying.slots });
	if (!rc && c->order)
		rc = before_release(c, here, &waited, err);
	if (!rc && c->req->release && !released)
		rc = release(c, err);
	c->fill_from = waited;
	if (!rc && c->order)
		rc = task_pool_run(c, ptc_capture_fill, here - waited, err);
	ptc_slots_shadow_drop(c->agent->env.workers, &c->copying.slots); /* digests need none */
	if (!rc && c->req->release)
		rc = task_pool_run(c, ptc_capture_mark, here - c->nown, err);
	scratch_done(c);
	return rc;
}

/* From the ranks' memory to a sealed table. If that fails, the begun table is dropped. */
static int take(struct ptc_capture *c, struct ptc_error *err)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	bool early;
	size_t remote;
	int rc;

	ptc_captured_keep(c->op.job, NULL);
	if (!c->req->release) /* a switch that ends the ranks */
		c->captured = ptc_captured_new(PTC_CAPTURED_BAND, PTC_CAPTURED_RUN);
	if (c->req->held)
		keep_held(c);
	rc = slots_check(c, err);
	c->staged = !c->req->held && all_staged(c);
	early = c->req->release && c->staged;

	if (rc == 0)
		rc = sources_make(c, err);
	if (!rc && c->req->held) {
		keep_outlived(c);
		rc = check_held(c, err);
	}
	if (rc == 0)
		rc = ptc_captured_encode(c, err);
	if (!rc && early)
		rc = release(c, err);
	if (rc)
		return rc;
	rc = reserve(c, err);
	remote = c->missing.n - c->nremote;
	if (rc == 0)
		rc = copy(c, early, err);
	if (rc == 0)
		rc = merge_own(c, remote - c->nown, err);
	if (rc == 0)
		rc = fetch_remote(c, remote, err);
	if (!rc && c->req->held)
		rc = still_held(c, err);
	if (!rc && c->parts) /* before the snapshot's: where that is sealed, parts are not made again */
		rc = ptc_table_seal(c->parts, err);
	if (rc == 0)
		rc = ptc_captured_add_differing(c, err);
	if (rc == 0)
		rc = ptc_captured_write(c, err);
	if (rc == 0)
		rc = ptc_table_seal(c->table, err);
	if (!rc && c->captured) {
		ptc_captured_seal(c->captured, c->table);
		ptc_captured_keep(c->op.job, c->captured);
		c->captured = NULL;
	}
	if (rc) {
		c->table = ptc_table_unref(c->table);
		c->parts = ptc_table_unref(c->parts);
		(void)drop(c, &ignored);
	}
	return rc;
}

/* Digests a table that was made for this request before, part by part, as when it was made. */
static int digest_again(struct ptc_capture *c, struct ptc_error *err)
{
	struct ptc_digest_job job = { .table = c->table,
				      .g = c->g,
				      .needs = c->needs,
				      .digests = c->digests,
				      .stop = capture_stop,
				      .tick = capture_tick,
				      .arg = c };

	return ptc_digest_needs(&job, err);
}

/* The table that was made for this very request, or one made now. */
static int find_or_take(struct ptc_capture *c, struct ptc_error *err)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	struct ptc_group_key key;
	int rc = ptc_captured_read(c, &ignored);

	if (!rc && !ptc_table_open(c->agent->env.store, &c->key, &c->table, &ignored))
		return digest_again(c, err);
	if (rc && rc != PTC_ENOTFOUND)
		return ptc_error_set(err, rc, "%s", ignored.text);
	ptc_free(c->ranks);
	c->ranks = NULL;
	c->ranks_len = 0;
	ptc_group_key_of(c->req->info, c->req->info->from, &key);
	rc = ptc_group_open(c->agent, &c->g->allocation, c->self, &key, &c->group, err);
	return rc ? rc : take(c, err);
}

static int answer(struct ptc_capture *c, struct ptc_error *err)
{
	Ptc__V1__PullReply reply = PTC__V1__PULL_REPLY__INIT;
	struct ptc_rpc_part parts[2] = { { 0 } };
	size_t n = c->needs->n;
	uint32_t *index = ptc_reallocarray(NULL, n ? n : 1, sizeof *index);
	void *data = NULL;
	int rc = index ? 0 : ptc_nomem(err);

	for (size_t i = 0; !rc && i < n; i++)
		index[i] = (uint32_t)i;
	reply.version = PTC_WIRE_VERSION;
	reply.finished = true;
	reply.bytes_done = reply.bytes_total = reply.verified_bytes = (uint64_t)c->needs->bytes;
	reply.copied_bytes = (uint64_t)atomic_load(&c->copied);
	reply.wire_bytes = c->fetched;
	reply.n_need_index = reply.n_digests = n;
	reply.need_index = index;
	reply.digests = c->digests;
	if (rc == 0)
		rc = ptc_pb_encode(&reply.base, &data, &parts[0].len, err);
	parts[0].data = data;
	/* Two encoded messages one after the other are one with the fields of both. */
	parts[1] = (struct ptc_rpc_part){ .data = c->ranks, .len = c->ranks_len };
	if (rc == 0)
		rc = ptc_rpc_call_send(c->call, parts, c->ranks_len ? 2 : 1, err);
	ptc_free(data);
	ptc_free(index);
	return rc;
}

static int capture(struct ptc_capture *c, struct ptc_error *err)
{
	int rc = ptc_geometry_get(c->agent, c->req->info, c->req->info->from, &c->ref, err);

	if (rc)
		return rc;
	c->g = &c->ref->g;
	c->key = (struct ptc_table_key){ .generation = c->req->to->generation, .snapshot = c->req->to->snapshot };
	memcpy(c->key.uuid, c->g->uuid, sizeof(c->key.uuid));
	rc = ptc_geometry_node(c->g, c->agent->node, &c->self, err);
	if (rc == 0)
		rc = ptc_geometry_needs(c->g, false, &c->needs, err);
	if (rc)
		return rc;
	c->digests = ptc_calloc(c->needs->n ? c->needs->n : 1, sizeof *c->digests);
	rc = c->digests ? find_or_take(c, err) : ptc_nomem(err);
	return rc ? rc : answer(c, err);
}

static int request_check(const struct ptc_capture *c, struct ptc_error *err)
{
	int rc = ptc_switch_info_check(c->req->version, c->req->info, err);

	if (!rc && (!c->req->to || !c->req->to->snapshot || !c->req->info->from ||
		    c->req->to->generation != c->req->info->from->number))
		rc = ptc_error_set(
			err, PTC_EINVAL,
			"the capture request names no snapshot, or a generation that is not the one to capture");
	if (!rc && c->req->to->snapshot & PTC_PARTS_SNAPSHOT)
		rc = ptc_error_set(err, PTC_EINVAL,
				   "the capture request has a snapshot number that is reserved for partial snapshots");
	return rc ? rc : ptc_group_workers(c->agent, err);
}

int ptc_agent_on_capture(void *agent, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_capture c = { .agent = agent, .call = call, .differing = { .lock = PTHREAD_MUTEX_INITIALIZER } };
	ProtobufCMessage *msg = NULL;
	int rc = ptc_agent_request(call, &ptc__v1__capture_request__descriptor, &msg, err);

	c.req = (const Ptc__V1__CaptureRequest *)msg;
	if (rc == 0)
		rc = request_check(&c, err);
	if (rc == 0)
		rc = ptc_store_job_create(c.agent->env.store, c.req->info->uuid, c.req->info->uid, err);
	if (rc == 0)
		rc = ptc_agent_enter(agent, call, c.req->info->uuid, c.req->info->fence, c.req->info->seq,
				     PTC_TURN_IN_ORDER, &c.op, err);
	if (rc == 0)
		rc = capture(&c, err);
	ptc_table_unref(c.table);
	ptc_table_unref(c.parts);
	ptc_slot_sources_done(&c.sources);
	ptc_group_close(&c.group);
	ptc_store_boxes_done(&c.missing);
	ptc_store_boxes_done(&c.exposed);
	ptc_parts_done(&c.remote);
	ptc_reduce_done(&c.reduce);
	ptc_free(c.order);
	ptc_free(c.differing.list.v);
	ptc_free(c.extents);
	ptc_free(c.exposed_extents);
	ptc_free(c.digests);
	ptc_captured_free(c.captured);
	ptc_free(c.ranks);
	ptc_geometry_put(c.ref);
	ptc_agent_leave(&c.op);
	ptc_pb_free(msg);
	return rc;
}
