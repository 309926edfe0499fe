/* SPDX-License-Identifier: Apache-2.0 */
/* Capture: a snapshot from ranks that wait at a boundary. Happy path: memory
 * is reserved for what this node holds under the generation; a few threads
 * fill an extent each from the memory of ranks (capture_fill.c) and digest it, after
 * the ranks may go on, where they wait only for the copy; where by a rule the
 * greatest counts, of what other nodes hold, too (max_reduce.c); what by a rule only
 * other nodes have as it counts is fetched from there (remote_primary.c); checksums, seal.
 * One copy of each byte is made. Ranks that have copied their memory themselves
 * (copy: fast) may go on before all that.
 * Failure modes: ranks that do not wait at that step, or have declared other
 * than the layout (PTC_ESTATE, PTC_ELAYOUT) or what has no greatest, memory (PTC_ENOSPC before
 * anything is copied), replicas that differ (PTC_EDIGEST naming tensor and
 * ranks), a rank that dies meanwhile (whatever its memory says). What was
 * begun is dropped then.
 *
 * A table of that name may be left from an attempt at another step: it is only
 * believed when a note in the store says that it was made for this very request;
 * else it is made anew. */
#include "daemon/agent/calls/task_pool.h"
#include "daemon/store/store.h"
#include "daemon/store/store_table.h"
#include "daemon/agent/capture/capture.h"
#include "daemon/agent/capture/internal.h"
#include "daemon/agent/tables/node_digest.h"
#include "daemon/agent/tables/tables.h"
#include "daemon/agent/calls/wire.h"
#include "formats/job/job.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/fault.h"

#include <stdlib.h>
#include <string.h>

/* ---- which replicas count ---- */

static int by_item(const void *a, const void *b)
{
	const struct ptc_slot_source *x = a, *y = b;

	if (x->item != y->item)
		return x->item < y->item ? -1 : 1;
	if (x->secondary != y->secondary)
		return x->secondary ? 1 : -1;
	return x->slot < y->slot ? -1 : x->slot > y->slot;
}

/* Says which sources are secondary, which come after the others then, and of which the greatest counts. */
static int rank_sources(struct ptc_capture *c, const struct ptc_spec *rules, struct ptc_error *err)
{
	const struct ptc_config *config = ptc_layout_config(c->g->layout);
	const struct ptc_rule *rule = NULL;
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];

	for (size_t i = 0; i < c->sources.n; i++) {
		struct ptc_slot_source *s = &c->sources.v[i];

		if (!i || s->item != s[-1].item) {
			int r;

			rule = ptc_spec_rule_named(rules, ptc_geometry_item_name(c->g, s->item, name, sizeof(name)));
			r = ptc_rule_check_max(rule, name, ptc_item_dtype(c->g->spec, s->item), err);
			if (r)
				return r;
		}
		s->secondary = !ptc_rule_is_primary(rule, config, c->group.v[s->slot].rank.rank);
		s->max = ptc_rule_takes_max(rule);
	}
	if (c->sources.n > 1)
		qsort(c->sources.v, c->sources.n, sizeof(*c->sources.v), by_item);
	return 0;
}

static int sources_make(struct ptc_capture *c, struct ptc_error *err)
{
	const struct ptc_agent_env *env = &c->agent->env;
	const struct ptc_job_desc *job;
	void *ref;
	int r = ptc_slot_sources_make(c->g, &c->group, &c->sources, err);

	if (r || !env->job_get)
		return r;
	r = env->job_get(env->arg, c->req->info->uuid, c->req->info->spec_hash, &job, &ref, err);
	if (r)
		return r;
	if (job->spec.nrules) {
		r = rank_sources(c, &job->spec, err);
		r = r ? r : ptc_remote_find(c->g, &job->spec, c->self, &c->needs, &c->remote, &c->reduce, err);
	}
	env->job_release(env->arg, ref);
	return r;
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
	reply.bytes_done = (uint64_t)PTC_MIN(atomic_load(&c->copied), c->needs.bytes);
	reply.bytes_total = (uint64_t)c->needs.bytes;
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

static int slots_check(const struct ptc_capture *c, struct ptc_error *err)
{
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
	int r = ptc_agent_memory_check(c->agent, new_bytes, err);

	if (r)
		return r;
	*ret = ptc_reallocarray(NULL, boxes->n ? boxes->n : 1, sizeof(**ret));
	if (!*ret)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu extents", boxes->n);
	return boxes->n ? ptc_table_reserve(table, boxes->v, boxes->n, *ret, err) : 0;
}

/* For what others merge. */
static int reserve_parts(struct ptc_capture *c, struct ptc_error *err)
{
	const struct ptc_remote *parts = &c->reduce.parts;
	struct ptc_table_key key =
		ptc_reduce_key(&c->key, c->req->info->id, c->req->info->from->incarnation, c->req->step);
	struct ptc_store_box *boxes;
	int64_t new_bytes = 0;
	int r;

	if (!parts->n)
		return 0;
	boxes = ptc_reallocarray(NULL, parts->n, sizeof(*boxes));
	if (!boxes)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu boxes", parts->n);
	for (size_t i = 0; i < parts->n; i++)
		boxes[i] = (struct ptc_store_box){ parts->v[i].item, parts->v[i].box };
	r = ptc_table_begin(c->agent->env.store, &key, &c->parts, err);
	r = r ? r : ptc_table_derive(c->parts, NULL, NULL, boxes, parts->n, false, &c->exposed, &new_bytes, err);
	ptc_free(boxes);
	return r ? r : extents_reserve(c, c->parts, &c->exposed, new_bytes, &c->exposed_extents, err);
}

static int drop(struct ptc_capture *c, struct ptc_error *err)
{
	int r = ptc_agent_table_drop(c->agent, &c->key, err);

	return r ? r : ptc_agent_parts_drop(c->agent, c->key.uuid, err);
}

/* Nothing is believed that may be there; all is reserved before anything is copied. */
static int reserve(struct ptc_capture *c, struct ptc_error *err)
{
	struct ptc_store_box *boxes = ptc_reallocarray(NULL, c->needs.n ? c->needs.n : 1, sizeof(*boxes));
	int64_t new_bytes = 0;
	size_t n = 0;
	int r = boxes ? drop(c, err) : ptc_error_set(err, PTC_ENOMEM, "no memory for %zu boxes", c->needs.n);

	for (size_t i = 0; !r && i < c->needs.n; i++)
		if (!ptc_box_empty(&c->needs.v[i].box))
			boxes[n++] = (struct ptc_store_box){ c->needs.v[i].item, c->needs.v[i].box };
	r = r ? r : ptc_table_begin(c->agent->env.store, &c->key, &c->table, err);
	r = r ? r : ptc_table_derive(c->table, NULL, NULL, boxes, n, false, &c->missing, &new_bytes, err);
	ptc_free(boxes);
	r = r ? r : ptc_remote_split(&c->reduce.own, PTC_REMOTE_TAKE_BYTES, &c->missing, err);
	r = r ? r : ptc_remote_split(&c->remote, PTC_EXTENT_MAX_BYTES, &c->missing, err);
	r = r ? r : extents_reserve(c, c->table, &c->missing, new_bytes, &c->extents, err);
	return r ? r : reserve_parts(c, err);
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
	int r;

	c->nscratch = (unsigned)PTC_MAX(PTC_MIN((size_t)n, c->missing.n), 1u);
	r = ptc_pool_take(&c->agent->recv, (uint64_t)c->nscratch * PTC_CAPTURE_MAX_BYTES, ptc_agent_op_stopped, &c->op,
			  &c->ticket, err);
	if (r)
		return r;
	c->nscratch = (unsigned)PTC_MAX(PTC_MIN(c->nscratch, c->ticket / PTC_CAPTURE_MAX_BYTES), 1u);
	c->scratch = ptc_calloc(c->nscratch, sizeof(*c->scratch));
	if (!c->scratch)
		return ptc_error_set(err, PTC_ENOMEM, "no memory to take a snapshot");
	if (!c->group.n)
		return 0;
	c->wait = (struct ptc_wait){ .cancelled = capture_stopped, .arg = c };
	r = ptc_copying_open(&c->copying, &c->group.v[0], tables,
			     any_max(&c->sources) ? (size_t)c->nscratch * PTC_CAPTURE_MAX_BYTES : 0, &c->wait, err);
	for (unsigned i = 0; !r && i < c->nscratch; i++) {
		if (c->copying.room)
			c->scratch[i].buffer = c->copying.room + (size_t)i * PTC_CAPTURE_MAX_BYTES;
		c->scratch[i].iov_batch.copying = &c->copying.slots;
	}
	return r;
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
	return ptc_workers_release(c->agent->env.workers, &c->group.key, err);
}

/* What others have gets to extents of missing, from the first on. g: names and addresses, and what is set here; it outlives the job. */
static void fetch_init(struct ptc_capture *c, struct ptc_geometry *g, uint64_t snapshot, size_t first,
		       struct ptc_remote_fetch *ret)
{
	*g = *c->g; /* another snapshot of it */
	g->snapshot = snapshot;
	*ret = (struct ptc_remote_fetch){ .agent = c->agent,
					  .g = g,
					  .table = c->table,
					  .extents = c->extents + first,
					  .stop = capture_stop,
					  .tick = capture_tick,
					  .arg = c };
}

/* Of what is merged here, what is here has been copied. */
static int merge_own(struct ptc_capture *c, size_t first, struct ptc_error *err)
{
	struct ptc_table_key key =
		ptc_reduce_key(&c->key, c->req->info->id, c->req->info->from->incarnation, c->req->step);
	struct ptc_remote_fetch job;
	struct ptc_geometry g;
	uint64_t bytes = 0;
	int r;

	if (!c->reduce.own.nboxes)
		return 0;
	fetch_init(c, &g, key.snapshot, first, &job);
	r = ptc_reduce_merge(&c->reduce, &job, c->missing.v + first, &bytes, err);
	if (!r && ptc_fault("agent.capture.merged"))
		r = ptc_error_set(err, PTC_EIO, "injected failure when parts of replicas were merged");
	c->fetched += bytes;
	c->mark_from = first + c->exposed.n;
	return r ? r : task_pool_run(c, ptc_capture_mark, c->reduce.own.nboxes, err);
}

/* All else is there for others to fetch. */
static int fetch_remote(struct ptc_capture *c, size_t first, struct ptc_error *err)
{
	struct ptc_remote_fetch job;
	struct ptc_geometry g;
	int r;

	if (!c->remote.nboxes)
		return 0;
	fetch_init(c, &g, c->key.snapshot, first, &job);
	job.nodes = c->remote.nodes;
	job.boxes = c->missing.v + first;
	job.n = c->remote.nboxes;
	r = ptc_remote_fetch(&job, err);
	for (size_t i = 0; !r && i < c->remote.nboxes; i++)
		c->fetched += (uint64_t)ptc_box_volume(&job.boxes[i].box);
	c->mark_from = first + c->exposed.n;
	return r ? r : task_pool_run(c, ptc_capture_mark, c->remote.nboxes, err);
}

/* Out of the ranks' memory; they may go on then. */
static int copy(struct ptc_capture *c, bool released, struct ptc_error *err)
{
	size_t here = c->missing.n - c->remote.nboxes + c->exposed.n;
	int r = scratch_make(c, err);

	r = r ? r : task_pool_run(c, ptc_capture_fill, here, err);
	if (!r && c->req->release && !released)
		r = release(c, err);
	if (!r && c->req->release)
		r = task_pool_run(c, ptc_capture_mark, here - c->reduce.own.nboxes, err);
	scratch_done(c);
	return r;
}

/* From the ranks' memory to a sealed table. What is begun and fails is dropped. */
static int take(struct ptc_capture *c, struct ptc_error *err)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	bool early;
	size_t remote;
	int r = slots_check(c, err);

	c->staged = all_staged(c);
	early = c->req->release && c->staged;

	r = r ? r : sources_make(c, err);
	r = r ? r : ptc_captured_encode(c, err);
	if (!r && early)
		r = release(c, err);
	if (r)
		return r;
	r = reserve(c, err);
	remote = c->missing.n - c->remote.nboxes;
	r = r ? r : copy(c, early, err);
	r = r ? r : merge_own(c, remote - c->reduce.own.nboxes, err);
	r = r ? r : fetch_remote(c, remote, err);
	if (!r && c->parts) /* before the snapshot's: where that is sealed, parts are not made again */
		r = ptc_table_seal(c->parts, err);
	r = r ? r : ptc_captured_write(c, err);
	r = r ? r : ptc_table_seal(c->table, err);
	if (r) {
		c->table = ptc_table_unref(c->table);
		c->parts = ptc_table_unref(c->parts);
		(void)drop(c, &ignored);
	}
	return r;
}

/* Of a table made for this request before: as it was made, each part was digested on the way. */
static int digest_again(struct ptc_capture *c, struct ptc_error *err)
{
	struct ptc_digest_job job = { .table = c->table,
				      .g = c->g,
				      .needs = &c->needs,
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
	int r = ptc_captured_read(c, &ignored);

	if (!r && !ptc_table_open(c->agent->env.store, &c->key, &c->table, &ignored))
		return digest_again(c, err);
	if (r && r != PTC_ENOTFOUND)
		return ptc_error_set(err, r, "%s", ignored.text);
	ptc_free(c->ranks);
	c->ranks = NULL;
	c->ranks_len = 0;
	ptc_group_key_of(c->req->info, c->req->info->from, &key);
	r = ptc_group_open(c->agent, &c->g->allocation, c->self, &key, &c->group, err);
	return r ? r : take(c, err);
}

static int answer(struct ptc_capture *c, struct ptc_error *err)
{
	Ptc__V1__PullReply reply = PTC__V1__PULL_REPLY__INIT;
	struct ptc_rpc_part parts[2] = { { 0 } };
	size_t n = c->needs.n;
	uint32_t *index = ptc_reallocarray(NULL, n ? n : 1, sizeof(*index));
	void *data = NULL;
	int r = index ? 0 : ptc_error_set(err, PTC_ENOMEM, "no memory for %zu digests", n);

	for (size_t i = 0; !r && i < n; i++)
		index[i] = (uint32_t)i;
	reply.version = PTC_WIRE_VERSION;
	reply.finished = true;
	reply.bytes_done = reply.bytes_total = reply.verified_bytes = (uint64_t)c->needs.bytes;
	reply.copied_bytes = (uint64_t)atomic_load(&c->copied);
	reply.wire_bytes = c->fetched;
	reply.n_need_index = reply.n_digests = n;
	reply.need_index = index;
	reply.digests = c->digests;
	r = r ? r : ptc_pb_encode(&reply.base, &data, &parts[0].len, err);
	parts[0].data = data;
	/* Two encoded messages one after the other are one with the fields of both. */
	parts[1] = (struct ptc_rpc_part){ .data = c->ranks, .len = c->ranks_len };
	r = r ? r : ptc_rpc_call_send(c->call, parts, c->ranks_len ? 2 : 1, err);
	ptc_free(data);
	ptc_free(index);
	return r;
}

static int capture(struct ptc_capture *c, struct ptc_error *err)
{
	int r = ptc_geometry_get(c->agent, c->req->info, c->req->info->from, &c->ref, err);

	if (r)
		return r;
	c->g = &c->ref->g;
	c->key = (struct ptc_table_key){ .generation = c->req->to->generation, .snapshot = c->req->to->snapshot };
	memcpy(c->key.uuid, c->g->uuid, sizeof(c->key.uuid));
	r = ptc_geometry_node(c->g, c->agent->node, &c->self, err);
	r = r ? r : ptc_layout_node_needs(c->g->layout, &c->g->allocation, c->self, &c->needs, err);
	if (r)
		return r;
	c->digests = ptc_calloc(c->needs.n ? c->needs.n : 1, sizeof(*c->digests));
	r = c->digests ? find_or_take(c, err) : ptc_error_set(err, PTC_ENOMEM, "no memory for %zu digests", c->needs.n);
	return r ? r : answer(c, err);
}

static int request_check(const struct ptc_capture *c, struct ptc_error *err)
{
	int r = ptc_switch_info_check(c->req->version, c->req->info, err);

	if (!r && (!c->req->to || !c->req->to->snapshot || !c->req->info->from ||
		   c->req->to->generation != c->req->info->from->number))
		r = ptc_error_set(err, PTC_EINVAL, "a snapshot of a generation that is not named, or of another");
	if (!r && c->req->to->snapshot & PTC_PARTS_SNAPSHOT)
		r = ptc_error_set(err, PTC_EINVAL, "a snapshot's number of parts of one");
	return r ? r : ptc_group_workers(c->agent, err);
}

int ptc_agent_on_capture(void *agent, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_capture c = { .agent = agent, .call = call };
	ProtobufCMessage *msg = NULL;
	int r = ptc_agent_request(call, &ptc__v1__capture_request__descriptor, &msg, err);

	c.req = (const Ptc__V1__CaptureRequest *)msg;
	r = r ? r : request_check(&c, err);
	r = r ? r : ptc_store_job_create(c.agent->env.store, c.req->info->uuid, c.req->info->uid, err);
	r = r ? r
	      : ptc_agent_enter(agent, call, c.req->info->uuid, c.req->info->fence, c.req->info->seq, false, &c.op,
				err);
	r = r ? r : capture(&c, err);
	ptc_table_unref(c.table);
	ptc_table_unref(c.parts);
	ptc_slot_sources_done(&c.sources);
	ptc_group_close(&c.group);
	ptc_store_boxes_done(&c.missing);
	ptc_store_boxes_done(&c.exposed);
	ptc_remote_done(&c.remote);
	ptc_reduce_done(&c.reduce);
	ptc_free(c.extents);
	ptc_free(c.exposed_extents);
	ptc_free(c.digests);
	ptc_free(c.ranks);
	ptc_needs_done(&c.needs);
	ptc_geometry_put(agent, c.ref);
	ptc_agent_leave(&c.op);
	ptc_pb_free(msg);
	return r;
}
