/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of what this node holds, and the Digest call. Happy path: boxes are
 * cut into tasks that a few threads take in turn; digests are linear, so the
 * parts of a box XOR together. Failure modes: a block that does not verify
 * (PTC_ECORRUPT from the store), a box that is not here, cancellation. The
 * first failure stops all threads. */
#include "daemon/agent/internal.h"

#include "base/alloc.h"
#include "base/check.h"

#include <string.h>

#define DIGEST_TASK_BYTES (16 << 20)

struct task {
	size_t need;
	struct ptc_box box;
};

struct digester {
	const struct ptc_digest_job *job;
	struct task *tasks;
	size_t ntasks, cap;
	_Atomic size_t next;
	atomic_bool stop;
	struct {
		pthread_mutex_t lock;
		pthread_cond_t cond;
		unsigned running;
		int status;
		struct ptc_error err;
	} shared;
};

static int task_push(struct digester *d, size_t need, const struct ptc_box *box)
{
	if (d->ntasks == d->cap) {
		size_t cap = d->cap ? 2 * d->cap : 64;
		struct task *v = ptc_reallocarray(d->tasks, cap, sizeof(*v));

		if (!v)
			return PTC_ENOMEM;
		d->tasks = v;
		d->cap = cap;
	}
	d->tasks[d->ntasks++] = (struct task){ need, *box };
	return 0;
}

static int tasks_make(struct digester *d, struct ptc_error *err)
{
	const struct ptc_needs *needs = d->job->needs;
	int r = 0;

	for (size_t i = 0; !r && i < needs->n; i++) {
		struct ptc_boxes cut = { 0 };

		if (ptc_box_empty(&needs->v[i].box))
			continue;
		r = ptc_box_chop(&needs->v[i].box, DIGEST_TASK_BYTES, &cut);
		for (size_t k = 0; !r && k < cut.n; k++)
			r = task_push(d, i, &cut.v[k]);
		ptc_boxes_done(&cut);
	}
	return r ? ptc_error_set(err, PTC_ENOMEM, "no memory to digest %zu boxes", needs->n) : 0;
}

static int task_run(struct digester *d, const struct task *t, struct ptc_error *err)
{
	uint32_t item = d->job->needs->v[t->need].item, ndim;
	int64_t shape[PTC_MAX_DIMS];
	uint64_t digest;
	int r = ptc_geometry_shape(d->job->g, item, &ndim, shape, err);

	r = r ? r : ptc_table_digest(d->job->table, item, &t->box, ndim, shape, &digest, err);
	if (!r)
		__atomic_xor_fetch(&d->job->digests[t->need], digest, __ATOMIC_RELAXED);
	return r;
}

static void *digest_thread(void *arg)
{
	struct digester *d = arg;
	struct ptc_error err = PTC_ERROR_INIT;
	size_t i;
	int r = 0;

	while (!r && !atomic_load(&d->stop) && (i = atomic_fetch_add(&d->next, 1)) < d->ntasks)
		r = task_run(d, &d->tasks[i], &err);
	pthread_mutex_lock(&d->shared.lock);
	if (r && !d->shared.status) {
		d->shared.status = r;
		d->shared.err = err;
		atomic_store(&d->stop, true);
	}
	d->shared.running--;
	pthread_cond_signal(&d->shared.cond);
	pthread_mutex_unlock(&d->shared.lock);
	return NULL;
}

/* Waits for the threads, telling the caller now and then and asking whether to stop. */
static void digest_wait(struct digester *d)
{
	const struct ptc_digest_job *job = d->job;

	pthread_mutex_lock(&d->shared.lock);
	while (d->shared.running) {
		ptc_cond_wait_ms(&d->shared.cond, &d->shared.lock, PTC_AGENT_TICK_MS);
		if (!d->shared.running)
			break;
		pthread_mutex_unlock(&d->shared.lock);
		if (job->stop && job->stop(job->arg))
			atomic_store(&d->stop, true);
		else if (job->tick)
			job->tick(job->arg);
		pthread_mutex_lock(&d->shared.lock);
	}
	pthread_mutex_unlock(&d->shared.lock);
}

static void digest_run(struct digester *d)
{
	pthread_t threads[PTC_AGENT_DIGEST_THREADS];
	unsigned n = 0;

	d->shared.running = 0;
	while (n < PTC_AGENT_DIGEST_THREADS && n < d->ntasks) {
		pthread_mutex_lock(&d->shared.lock);
		d->shared.running++;
		pthread_mutex_unlock(&d->shared.lock);
		if (pthread_create(&threads[n], NULL, digest_thread, d)) {
			pthread_mutex_lock(&d->shared.lock);
			d->shared.running--;
			pthread_mutex_unlock(&d->shared.lock);
			break;
		}
		n++;
	}
	if (!n && d->ntasks) { /* no thread to be had: do it here */
		d->shared.running = 1;
		digest_thread(d);
	}
	digest_wait(d);
	for (unsigned i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
}

int ptc_digest_needs(const struct ptc_digest_job *job, struct ptc_error *err)
{
	struct digester d = { .job = job };
	int r = tasks_make(&d, err);

	memset(job->digests, 0, job->needs->n * sizeof(*job->digests));
	if (!r) {
		ptc_require(!pthread_mutex_init(&d.shared.lock, NULL));
		ptc_cond_init(&d.shared.cond);
		digest_run(&d);
		pthread_cond_destroy(&d.shared.cond);
		pthread_mutex_destroy(&d.shared.lock);
		r = d.shared.status;
		if (r)
			ptc_error_set(err, r, "%s", d.shared.err.text);
		else if (atomic_load(&d.stop))
			r = ptc_error_set(err, PTC_ECANCELED, "cancelled while digesting");
	}
	ptc_free(d.tasks);
	return r;
}

/* ---- the Digest call ---- */

struct verify {
	struct ptc_agent_op op;
	struct ptc_rpc_call *call;
	struct ptc_needs needs;
	bool broken; /* progress could not be sent */
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
	reply.bytes_total = (uint64_t)v->needs.bytes;
	v->broken = ptc_agent_reply(v->call, &reply.base, NULL) != 0;
}

static int verify_reply(struct verify *v, const uint64_t *digests, int64_t scrubbed, struct ptc_error *err)
{
	Ptc__V1__PullReply reply = PTC__V1__PULL_REPLY__INIT;
	uint32_t *index = ptc_reallocarray(NULL, v->needs.n ? v->needs.n : 1, sizeof(*index));
	int r;

	if (!index)
		return ptc_error_set(err, PTC_ENOMEM, "no memory for %zu digests", v->needs.n);
	for (size_t i = 0; i < v->needs.n; i++)
		index[i] = (uint32_t)i;
	reply.version = PTC_WIRE_VERSION;
	reply.finished = true;
	reply.bytes_done = reply.bytes_total = (uint64_t)v->needs.bytes;
	reply.verified_bytes = (uint64_t)scrubbed;
	reply.n_need_index = reply.n_digests = v->needs.n;
	reply.need_index = index;
	reply.digests = (uint64_t *)(uintptr_t)digests;
	r = ptc_agent_reply(v->call, &reply.base, err);
	ptc_free(index);
	return r;
}

static int verify(struct verify *v, const struct ptc_geometry *g, struct ptc_error *err)
{
	struct ptc_table_key key = ptc_geometry_key(g);
	struct ptc_digest_job job = { .g = g, .stop = verify_stop, .tick = verify_tick, .arg = v };
	uint32_t self;
	int64_t scrubbed = 0;
	int r = ptc_geometry_node(g, v->op.agent->node, &self, err);

	r = r ? r : ptc_layout_node_needs(g->layout, &g->allocation, self, &v->needs, err);
	r = r ? r : ptc_table_open(v->op.agent->env.store, &key, &job.table, err);
	if (r)
		return r;
	verify_tick(v);
	r = ptc_table_scrub(job.table, &scrubbed, err);
	job.needs = &v->needs;
	job.digests = ptc_calloc(v->needs.n ? v->needs.n : 1, sizeof(*job.digests));
	if (!r && !job.digests)
		r = ptc_error_set(err, PTC_ENOMEM, "no memory for %zu digests", v->needs.n);
	r = r ? r : ptc_digest_needs(&job, err);
	r = r ? r : verify_reply(v, job.digests, scrubbed, err);
	ptc_free(job.digests);
	ptc_table_unref(job.table);
	return r;
}

int ptc_agent_on_digest(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct verify v = { .op = { arg, NULL, call }, .call = call };
	struct ptc_geometry_ref *ref = NULL;
	ProtobufCMessage *msg = NULL;
	int r = ptc_agent_request(call, &ptc__v1__digest_request__descriptor, &msg, err);
	const Ptc__V1__DigestRequest *req = (const Ptc__V1__DigestRequest *)msg;

	r = r ? r : ptc_switch_info_check(req->version, req->info, err);
	r = r ? r : ptc_geometry_get(arg, req->info, req->info->from, &ref, err);
	r = r ? r : verify(&v, &ref->g, err);
	ptc_needs_done(&v.needs);
	ptc_geometry_put(arg, ref);
	ptc_pb_free(msg);
	return r;
}
