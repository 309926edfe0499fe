/* SPDX-License-Identifier: Apache-2.0 */
/* A device's thread in ptc-gpu. Happy path: takes requests in order, attaches the device at the first that needs it,
 * does each and answers. It checks copies, and hands them over to the copiers. Failure modes: a request that fails is
 * answered with why and who is to blame. After a sticky failure every later request is answered with it: the context
 * is of no more use, and ptcd replaces this process. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/fault.h"
#include "base/sys/thread.h"
#include "daemon/gpu/gpu_server.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int attach(struct ptc_gpu_worker *w, struct ptc_gpu_failure *f)
{
	return w->gpu ? 0 : w->server->ops->attach(w->uuid, w->server->ncopiers, &w->server->budget, &w->gpu, f);
}

static int fail(struct ptc_gpu_failure *f, enum ptc_gpu_blame blame, int status)
{
	f->fault = (struct ptc_cuda_fault){ status, blame, false };
	return status;
}

/* ---- allocations ---- */

static bool same(const struct ptc_gpu_export *a, const struct ptc_gpu_export *b)
{
	return a->pid == b->pid && a->process_start == b->process_start && a->context == b->context &&
	       a->buffer == b->buffer && a->path == b->path && a->bytes == b->bytes;
}

static struct ptc_gpu_entry *find(struct ptc_gpu_worker *w, const struct ptc_gpu_export *e)
{
	for (uint32_t i = 0; i < w->nentries; i++)
		if (w->entries[i].users && same(&w->entries[i].e, e))
			return &w->entries[i];
	return NULL;
}

static int free_entry(struct ptc_gpu_worker *w, struct ptc_gpu_entry **ret, struct ptc_gpu_failure *f)
{
	struct ptc_gpu_entry *grown;
	uint32_t n = w->nentries ? 2 * w->nentries : 16;

	for (uint32_t i = 0; i < w->nentries; i++)
		if (!w->entries[i].users) {
			*ret = &w->entries[i];
			return 0;
		}
	if (n > PTC_GPU_MEMORY_MAX)
		return ptc_gpu_fail(f, PTC_ELIMIT, PTC_GPU_BLAME_REQUEST,
				    "device %s: %d allocations are mapped; close some", w->uuid, PTC_GPU_MEMORY_MAX);
	pthread_mutex_lock(&w->share_lock);
	grown = ptc_reallocarray(w->entries, n, sizeof *grown);
	if (grown) {
		memset(grown + w->nentries, 0, (n - w->nentries) * sizeof *grown);
		*ret = &grown[w->nentries];
		w->entries = grown;
		w->nentries = n;
	}
	pthread_mutex_unlock(&w->share_lock);
	return grown ? 0 : ptc_gpu_fail(f, PTC_ENOMEM, PTC_GPU_BLAME_REQUEST, "out of memory");
}

/* Waits until no other worker copies from it, and gives it to no other. */
static void call_in(struct ptc_gpu_worker *w, struct ptc_gpu_entry *m)
{
	pthread_mutex_lock(&w->share_lock);
	m->shareable = false;
	while (m->readers)
		pthread_cond_wait(&w->returned, &w->share_lock);
	pthread_mutex_unlock(&w->share_lock);
}

static int unmap(struct ptc_gpu_worker *w, struct ptc_gpu_entry *m, struct ptc_gpu_failure *f)
{
	int rc;

	call_in(w, m);
	rc = w->server->ops->unmap(w->gpu, m->memory, f);
	atomic_fetch_sub(&w->mapped_bytes, m->e.bytes);
	atomic_fetch_sub(&w->allocations, 1);
	pthread_mutex_lock(&w->share_lock);
	*m = (struct ptc_gpu_entry){ 0 };
	pthread_mutex_unlock(&w->share_lock);
	return rc;
}

/* The allocation of a request; NULL and a failure when its number is none. */
static struct ptc_gpu_entry *entry_of(struct ptc_gpu_worker *w, const struct ptc_gpu_head *h, struct ptc_gpu_failure *f)
{
	uint32_t i = (h->memory - 1) % PTC_GPU_MEMORY_MAX;

	if (i < w->nentries && w->entries[i].users)
		return &w->entries[i];
	ptc_gpu_fail(f, PTC_ENOTFOUND, PTC_GPU_BLAME_REQUEST, "no allocation %" PRIu32 " is mapped", h->memory);
	return NULL;
}

static void name(const struct ptc_gpu_worker *w, const struct ptc_gpu_entry *m, struct ptc_gpu_answer *a)
{
	a->ref = w->index * PTC_GPU_MEMORY_MAX + (uint32_t)(m - w->entries) + 1;
	a->count = (uint32_t)m->missing;
	a->value = m->e.bytes;
}

/* What another worker keeps, for a copy; `give_back` afterwards. */
static int borrow(struct ptc_gpu_worker *from, uint32_t number, struct ptc_gpu_entry *ret, struct ptc_gpu_failure *f)
{
	uint32_t i = (number - 1) % PTC_GPU_MEMORY_MAX;
	bool found = false;

	pthread_mutex_lock(&from->share_lock);
	if (i < from->nentries && from->entries[i].shareable) {
		from->entries[i].readers++;
		*ret = (struct ptc_gpu_entry){ .e = from->entries[i].e, .memory = from->entries[i].memory };
		found = true;
	}
	pthread_mutex_unlock(&from->share_lock);
	return found ? 0
		     : ptc_gpu_fail(f, PTC_EINVAL, PTC_GPU_BLAME_REQUEST,
				    "device %s keeps no memory %" PRIu32
				    ": only what is kept is copied to other devices",
				    from->uuid, number);
}

static void give_back(struct ptc_gpu_worker *from, uint32_t number)
{
	pthread_mutex_lock(&from->share_lock);
	from->entries[(number - 1) % PTC_GPU_MEMORY_MAX].readers--;
	pthread_cond_broadcast(&from->returned);
	pthread_mutex_unlock(&from->share_lock);
}

/* Its process lives, so that the memory is still what was bound. */
static int owner_lives(const struct ptc_gpu_export *e, const char *when, struct ptc_gpu_failure *f)
{
	uint64_t start;

	/* Without a start it is nobody's any more, and the handles alone keep it. */
	if (e->path == PTC_GPU_PATH_OWN || (e->path == PTC_GPU_PATH_VMM && !e->process_start))
		return 0;
	if (ptc_gpu_process_start(e->pid, &start, NULL) == 0 && start == e->process_start)
		return 0;
	return ptc_gpu_fail(f, PTC_ELOST, PTC_GPU_BLAME_RANK,
			    "process %" PRIu32 " has ended %s; its memory on device %s counts as lost", e->pid, when,
			    e->uuid);
}

/* ---- requests ---- */

static int do_bind(struct ptc_gpu_worker *w, struct ptc_gpu_job *j, struct ptc_gpu_answer *a, struct ptc_gpu_failure *f)
{
	const struct ptc_gpu_export *e = &j->head.bind;
	struct ptc_gpu_entry *m = find(w, e);
	int rc;

	if (m && m->missing)
		return ptc_gpu_fail(f, PTC_ESTATE, PTC_GPU_BLAME_REQUEST,
				    "this memory of process %" PRIu32 " is being bound by another request", e->pid);
	if (m) {
		m->users++;
		name(w, m, a);
		a->more = 1;
		return 0;
	}
	rc = attach(w, f);
	if (rc == 0)
		rc = owner_lives(e, "before its memory was mapped", f);
	if (rc == 0)
		rc = free_entry(w, &m, f);
	if (rc == 0)
		rc = w->server->ops->map(w->gpu, e, &m->memory, f);
	if (rc)
		return rc;
	m->e = *e;
	m->users = 1;
	m->missing = e->path == PTC_GPU_PATH_VMM ? e->handles : 0;
	atomic_fetch_add(&w->mapped_bytes, e->bytes);
	atomic_fetch_add(&w->allocations, 1);
	name(w, m, a);
	return 0;
}

static int do_handles(struct ptc_gpu_worker *w, struct ptc_gpu_job *j, struct ptc_gpu_answer *a,
		      struct ptc_gpu_failure *f)
{
	struct ptc_gpu_entry *m = entry_of(w, &j->head, f);
	struct ptc_gpu_failure ignored;
	int rc;

	if (!m)
		return f->fault.status;
	rc = w->server->ops->map_handles(w->gpu, m->memory, j->fds, j->nfds, f);
	if (rc) {
		if (m->missing) /* else: a descriptor too many for memory that others use */
			(void)unmap(w, m, &ignored);
		return rc;
	}
	m->missing -= j->nfds;
	name(w, m, a);
	return 0;
}

/* The guard word has the value that the caller expects. */
static int guarded(const struct ptc_gpu_job *j, const char *when, struct ptc_gpu_failure *f)
{
	uint64_t value;

	if (!j->guard)
		return 0;
	value = atomic_load((_Atomic uint64_t *)(void *)(j->guard->base + j->head.guard_at));
	if (value == j->head.guard_value)
		return 0;
	return ptc_gpu_fail(f, PTC_ECONFLICT, PTC_GPU_BLAME_REQUEST,
			    "the rank's mark was %" PRIu64 " %s the copy, not %" PRIu64
			    ": what was copied is discarded",
			    value, when, j->head.guard_value);
}

static int check_parts(const struct ptc_gpu_job *j, const struct ptc_gpu_entry *m, struct ptc_gpu_failure *f)
{
	uint64_t host_bytes = j->host ? j->host->bytes : UINT64_MAX;
	int rc = 0;

	if (m->missing)
		return ptc_gpu_fail(f, PTC_ESTATE, PTC_GPU_BLAME_REQUEST, "%" PRIu64 " handles have not come yet",
				    m->missing);
	for (uint32_t i = 0; i < j->head.nparts && rc == 0; i++)
		rc = ptc_gpu_part_check(&j->parts[i], m->e.bytes, host_bytes, &f->err);
	return rc ? fail(f, PTC_GPU_BLAME_REQUEST, rc) : 0;
}

/* What a copy or a digest must not begin without. */
static int begin_copy(struct ptc_gpu_worker *w, struct ptc_gpu_job *j, struct ptc_gpu_failure *f)
{
	int rc;

	j->entry = entry_of(w, &j->head, f);
	if (!j->entry)
		return f->fault.status;
	rc = check_parts(j, j->entry, f);
	if (rc == 0)
		rc = owner_lives(&j->entry->e, "before the copy", f);
	return rc ? rc : guarded(j, "before", f);
}

static int end_copy(const struct ptc_gpu_job *j, struct ptc_gpu_failure *f)
{
	int rc = owner_lives(&j->entry->e, "during the copy", f);

	return rc ? rc : guarded(j, "after", f);
}

static int do_digest(struct ptc_gpu_worker *w, struct ptc_gpu_job *j, struct ptc_gpu_answer *a,
		     struct ptc_gpu_failure *f)
{
	int rc = begin_copy(w, j, f);

	if (rc == 0)
		rc = w->server->ops->digest(w->gpu, j->entry->memory, j->parts, j->head.nparts, &a->value, f);
	return rc ? rc : end_copy(j, f);
}

static int copy_between(struct ptc_gpu_worker *w, const struct ptc_gpu_job *j, const struct ptc_gpu_entry *to,
			const struct ptc_gpu_entry *from, struct ptc_gpu_failure *f)
{
	int rc = 0;

	for (uint32_t i = 0; i < j->head.nparts && rc == 0; i++)
		rc = ptc_gpu_part_check(&j->parts[i], to->e.bytes, from->e.bytes, &f->err);
	if (rc)
		return fail(f, PTC_GPU_BLAME_REQUEST, rc);
	rc = owner_lives(&to->e, "before the copy", f);
	if (rc == 0)
		rc = owner_lives(&from->e, "before the copy", f);
	if (rc == 0)
		rc = guarded(j, "before", f);
	if (rc == 0 && !ptc_fault("gpu.within.bytes")) /* a test wants bytes that are not those of the source */
		rc = w->server->ops->copy_within(w->gpu, to->memory, from->memory, j->parts, j->head.nparts, f);
	if (rc == 0)
		rc = owner_lives(&to->e, "during the copy", f);
	if (rc == 0)
		rc = owner_lives(&from->e, "during the copy", f);
	return rc ? rc : guarded(j, "after", f);
}

/* From another allocation of this device, or from what the worker j->from keeps. */
static int do_copy_within(struct ptc_gpu_worker *w, struct ptc_gpu_job *j, struct ptc_gpu_failure *f)
{
	struct ptc_gpu_head other = { .memory = j->head.host };
	struct ptc_gpu_entry *to = entry_of(w, &j->head, f), *from = NULL, borrowed;
	int rc;

	if (!to)
		return f->fault.status;
	if (j->from == w) {
		from = entry_of(w, &other, f);
		if (!from)
			return f->fault.status;
	}
	if (to == from || to->missing || (from && from->missing))
		return ptc_gpu_fail(f, PTC_EINVAL, PTC_GPU_BLAME_REQUEST,
				    "a copy within device %s from allocation %" PRIu32 " to %" PRIu32, w->uuid,
				    j->head.host, j->head.memory);
	if (from)
		return copy_between(w, j, to, from, f);
	rc = borrow(j->from, j->head.host, &borrowed, f);
	if (rc)
		return rc;
	if (!ptc_fault("gpu.peer.bytes")) /* as above */
		rc = copy_between(w, j, to, &borrowed, f);
	give_back(j->from, j->head.host);
	return rc;
}

static int do_keep(struct ptc_gpu_worker *w, struct ptc_gpu_job *j, struct ptc_gpu_answer *a, struct ptc_gpu_failure *f)
{
	struct ptc_gpu_entry *m;
	int rc = attach(w, f);

	if (rc == 0)
		rc = free_entry(w, &m, f);
	if (rc == 0)
		rc = w->server->ops->keep(w->gpu, j->head.bytes, j->head.flags & PTC_GPU_BESIDE, &m->memory, f);
	if (rc)
		return rc;
	m->e = (struct ptc_gpu_export){ .path = PTC_GPU_PATH_OWN, .bytes = j->head.bytes };
	snprintf(m->e.uuid, sizeof m->e.uuid, "%s", w->uuid);
	m->users = 1;
	m->missing = 0;
	pthread_mutex_lock(&w->share_lock);
	m->shareable = true;
	pthread_mutex_unlock(&w->share_lock);
	atomic_fetch_add(&w->mapped_bytes, m->e.bytes);
	atomic_fetch_add(&w->allocations, 1);
	name(w, m, a);
	return 0;
}

static int do_close(struct ptc_gpu_worker *w, struct ptc_gpu_job *j, struct ptc_gpu_answer *a,
		    struct ptc_gpu_failure *f)
{
	struct ptc_gpu_entry *m = entry_of(w, &j->head, f);

	if (!m)
		return f->fault.status;
	a->count = --m->users;
	if (m->users)
		return 0;
	return unmap(w, m, f);
}

/* The next bytes of a host map. */
static int lock_bytes(struct ptc_gpu_worker *w, struct ptc_gpu_host_map *h, uint64_t bytes, struct ptc_gpu_failure *f)
{
	struct ptc_gpu_server *s = w->server;
	int rc = attach(w, f);

	if (rc)
		return rc;
	rc = ptc_gpu_budget_take(&s->budget, bytes, &f->err);
	if (rc)
		return fail(f, PTC_GPU_BLAME_REQUEST, rc);
	rc = s->ops->pin(w->gpu, h->base + atomic_load(&h->locked), bytes, f);
	if (rc)
		ptc_gpu_budget_give(&s->budget, bytes);
	else
		atomic_fetch_add(&h->locked, bytes);
	return rc;
}

/* One step. Only this thread locks bytes of the map, once it has locked the first ones. */
static int do_lock(struct ptc_gpu_worker *w, struct ptc_gpu_job *j, struct ptc_gpu_answer *a, struct ptc_gpu_failure *f)
{
	struct ptc_gpu_host_map *h = j->host;
	uint64_t locked = atomic_load(&h->locked);
	int rc;

	if (locked == h->bytes || (locked && (h->worker != w->index || h->step != j->head.bytes)))
		return ptc_gpu_fail(f, PTC_EINVAL, PTC_GPU_BLAME_REQUEST,
				    "device %s: host map %" PRIu32 " has %" PRIu64 " of %" PRIu64
				    " bytes page-locked in steps of %" PRIu64,
				    w->uuid, j->head.host, locked, h->bytes, h->step);
	if (!locked) {
		h->worker = w->index;
		h->step = j->head.bytes;
	}
	rc = lock_bytes(w, h, PTC_MIN(j->head.bytes, h->bytes - locked), f);
	a->value = atomic_load(&h->locked);
	return rc;
}

/* All that is page-locked of a host map. A failure is sticky; the rest is tried all the same. */
static int unlock(struct ptc_gpu_worker *w, struct ptc_gpu_host_map *h, struct ptc_gpu_failure *f)
{
	uint64_t locked = atomic_load(&h->locked);
	int rc = 0;

	for (uint64_t at = 0; at < locked; at += h->step) {
		struct ptc_gpu_failure one = { .err = PTC_ERROR_INIT };

		if (w->server->ops->unpin(w->gpu, h->base + at, &one) == 0 || rc)
			continue;
		*f = one;
		rc = one.fault.status;
	}
	return rc;
}

static int do_pin(struct ptc_gpu_worker *w, struct ptc_gpu_job *j, struct ptc_gpu_answer *a, struct ptc_gpu_failure *f)
{
	struct ptc_gpu_server *s = w->server;
	int rc;

	j->host->step = j->host->bytes; /* nobody else has its number yet */
	rc = lock_bytes(w, j->host, j->host->bytes, f);
	if (rc) {
		ptc_gpu_server_host_free(s, j->host);
		j->host = NULL;
		return rc;
	}
	ptc_gpu_server_host_ready(s, j->host);
	a->ref = (uint32_t)(j->host - s->hosts) + 1;
	return 0;
}

/* The last step of a host map, then the one before it: other requests of the device are served in between. */
static int do_unpin(struct ptc_gpu_worker *w, struct ptc_gpu_job *j, struct ptc_gpu_failure *f)
{
	struct ptc_gpu_host_map *h = j->host;
	uint64_t locked = atomic_load(&h->locked), at = (locked - 1) / h->step * h->step;
	struct ptc_gpu_failure ignored;
	int rc = w->server->ops->unpin(w->gpu, h->base + at, f);

	atomic_store(&h->locked, at);
	if (rc) { /* sticky: this process is about to end */
		(void)unlock(w, h, &ignored);
		at = 0;
	}
	ptc_gpu_budget_give(&w->server->budget, locked - at);
	j->again = at > 0;
	if (j->again)
		return 0;
	ptc_gpu_server_host_free(w->server, h);
	j->host = NULL;
	return rc;
}

static int dispatch(struct ptc_gpu_worker *w, struct ptc_gpu_job *j, struct ptc_gpu_answer *a,
		    struct ptc_gpu_failure *f)
{
	switch ((enum ptc_gpu_op)j->head.op) {
	case PTC_GPU_MAP_HOST:
		return do_pin(w, j, a, f);
	case PTC_GPU_LOCK:
		return do_lock(w, j, a, f);
	case PTC_GPU_UNMAP_HOST:
		return do_unpin(w, j, f);
	case PTC_GPU_BIND:
		return do_bind(w, j, a, f);
	case PTC_GPU_HANDLES:
		return do_handles(w, j, a, f);
	case PTC_GPU_DIGEST:
		return do_digest(w, j, a, f);
	case PTC_GPU_CLOSE:
		return do_close(w, j, a, f);
	case PTC_GPU_KEEP:
		return do_keep(w, j, a, f);
	case PTC_GPU_COPY_WITHIN:
	case PTC_GPU_SHADOW:
		return do_copy_within(w, j, f);
	case PTC_GPU_COPY_OUT:
	case PTC_GPU_COPY_IN:
	case PTC_GPU_STATS:
		break;
	}
	return ptc_gpu_fail(f, PTC_EINTERNAL, PTC_GPU_BLAME_REQUEST, "a request of kind %" PRIu32, j->head.op);
}

static void append_locked(struct ptc_gpu_worker *w, struct ptc_gpu_job *j)
{
	j->next = NULL;
	*w->last = j;
	w->last = &j->next;
	w->queued++;
	pthread_cond_broadcast(&w->changed);
}

/* Its own thread waits for no room in the queue. */
static void append(struct ptc_gpu_worker *w, struct ptc_gpu_job *j)
{
	pthread_mutex_lock(&w->lock);
	append_locked(w, j);
	pthread_mutex_unlock(&w->lock);
}

static bool is_broken(struct ptc_gpu_worker *w, struct ptc_gpu_failure *ret)
{
	bool broken;

	pthread_mutex_lock(&w->lock);
	broken = w->is_broken;
	if (broken)
		*ret = w->broken;
	pthread_mutex_unlock(&w->lock);
	return broken;
}

/* Frees the job before it answers: a caller that hears of the end may unmap what the request used. */
static void finish(struct ptc_gpu_worker *w, struct ptc_gpu_job *j, int rc, const struct ptc_gpu_answer *a,
		   const struct ptc_gpu_failure *f)
{
	pthread_mutex_lock(&w->lock);
	if (rc && f->fault.sticky && !w->is_broken) {
		w->is_broken = true;
		w->broken = *f;
	}
	pthread_mutex_unlock(&w->lock);
	ptc_gpu_server_job_free(w->server, j);
	if (rc)
		ptc_gpu_server_refuse(w->server, a->id, f);
	else
		ptc_gpu_server_answer(w->server, a);
}

static void run(struct ptc_gpu_worker *w, struct ptc_gpu_job *j)
{
	struct ptc_gpu_answer a = { .version = PTC_GPU_VERSION, .id = j->head.id };
	struct ptc_gpu_failure f = { .err = PTC_ERROR_INIT };
	int rc;

	ptc_gpu_copiers_wait(&w->copiers);
	rc = is_broken(w, &f) ? f.fault.status : dispatch(w, j, &a, &f);
	if (j->again) {
		j->again = false;
		append(w, j);
		return;
	}
	finish(w, j, rc, &a, &f);
}

/* ---- copies ---- */

static bool begin_copying(struct ptc_gpu_worker *w, unsigned copier, struct ptc_gpu_job *j, struct ptc_gpu_failure *f)
{
	struct ptc_gpu_host host = { j->host->base, atomic_load(&j->host->locked), j->host->step };
	struct ptc_gpu_answer a = { .version = PTC_GPU_VERSION, .id = j->head.id };
	int rc = f->fault.status;

	if (rc == 0 && is_broken(w, f))
		rc = f->fault.status;
	if (rc == 0)
		rc = w->server->ops->copy(w->gpu, copier, j->entry->memory,
					  j->head.op == PTC_GPU_COPY_OUT ? PTC_GPU_OUT : PTC_GPU_IN, &host, j->parts,
					  j->head.nparts, j->kernels, f);
	if (rc)
		finish(w, j, rc, &a, f);
	return rc == 0;
}

static void end_copying(struct ptc_gpu_worker *w, unsigned copier, struct ptc_gpu_job *j)
{
	struct ptc_gpu_answer a = { .version = PTC_GPU_VERSION, .id = j->head.id };
	struct ptc_gpu_failure f = { .err = PTC_ERROR_INIT };
	int rc = w->server->ops->copied(w->gpu, copier, &f);

	if (rc == 0)
		rc = end_copy(j, &f);
	finish(w, j, rc, &a, &f);
}

static const struct ptc_gpu_copying copying = { begin_copying, end_copying };

static int check_copy(struct ptc_gpu_worker *w, struct ptc_gpu_job *j, struct ptc_gpu_failure *f)
{
	const struct ptc_gpu_ops *ops = w->server->ops;
	int rc = is_broken(w, f) ? f->fault.status : begin_copy(w, j, f);

	if (rc == 0 && ops->packs(j->parts, j->head.nparts)) {
		if (!w->kernels_tried)
			ptc_gpu_copiers_wait(&w->copiers);
		rc = ops->kernels(w->gpu, &j->kernels, f);
		w->kernels_tried |= rc == 0;
	}
	if (rc || w->copiers.n)
		return rc;
	rc = ptc_gpu_copiers_start(w, &copying, &f->err);
	return rc ? fail(f, PTC_GPU_BLAME_REQUEST, rc) : 0;
}

/* Copies of one direction run at once. */
static void hand_over(struct ptc_gpu_worker *w, struct ptc_gpu_job *j)
{
	struct ptc_gpu_answer a = { .version = PTC_GPU_VERSION, .id = j->head.id };
	struct ptc_gpu_failure f = { .err = PTC_ERROR_INIT };
	int rc;

	if (w->copiers.op != j->head.op)
		ptc_gpu_copiers_wait(&w->copiers);
	w->copiers.op = (enum ptc_gpu_op)j->head.op;
	rc = check_copy(w, j, &f);
	if (rc)
		finish(w, j, rc, &a, &f);
	else
		ptc_gpu_copiers_give(&w->copiers, j);
}

/* ---- the thread ---- */

static struct ptc_gpu_job *take(struct ptc_gpu_worker *w)
{
	struct ptc_gpu_job *j = NULL;

	pthread_mutex_lock(&w->lock);
	while (!w->first && !w->stop)
		pthread_cond_wait(&w->changed, &w->lock);
	if (!w->stop) {
		j = w->first;
		w->first = j->next;
		if (!w->first)
			w->last = &w->first;
		w->queued--;
		pthread_cond_broadcast(&w->changed);
	}
	pthread_mutex_unlock(&w->lock);
	return j;
}

static void *loop(void *arg)
{
	struct ptc_gpu_worker *w = arg;
	struct ptc_gpu_server *s = w->server;
	struct ptc_gpu_failure ignored;
	struct ptc_gpu_job *j;

	while ((j = take(w))) {
		if (j->head.op == PTC_GPU_COPY_OUT || j->head.op == PTC_GPU_COPY_IN)
			hand_over(w, j);
		else
			run(w, j);
	}
	ptc_gpu_copiers_stop(&w->copiers);
	if (!w->gpu)
		return NULL;
	pthread_mutex_lock(&s->hosts_lock);
	for (unsigned i = 0; i < PTC_GPU_HOSTS_MAX; i++)
		if (s->hosts[i].base && atomic_load(&s->hosts[i].locked) && s->hosts[i].worker == w->index)
			(void)unlock(w, &s->hosts[i], &ignored);
	pthread_mutex_unlock(&s->hosts_lock);
	for (uint32_t i = 0; i < w->nentries; i++)
		call_in(w, &w->entries[i]);
	s->ops->detach(w->gpu);
	return NULL;
}

int ptc_gpu_worker_new(struct ptc_gpu_server *s, unsigned index, const char *uuid, struct ptc_gpu_worker **ret,
		       struct ptc_error *err)
{
	struct ptc_gpu_worker *w = ptc_calloc(1, sizeof *w);
	char name[PTC_THREAD_NAME_MAX + 1];
	int rc;

	if (!w)
		return ptc_nomem(err);
	w->server = s;
	w->index = index;
	w->last = &w->first;
	snprintf(w->uuid, sizeof w->uuid, "%s", uuid);
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->changed, NULL);
	pthread_mutex_init(&w->share_lock, NULL);
	pthread_cond_init(&w->returned, NULL);
	pthread_mutex_init(&w->copiers.lock, NULL);
	pthread_cond_init(&w->copiers.changed, NULL);
	snprintf(name, sizeof name, "ptc-gpu-%u", index);
	rc = ptc_thread_start(&w->thread, name, loop, w, err);
	if (rc) {
		ptc_free(w);
		return rc;
	}
	*ret = w;
	return 0;
}

void ptc_gpu_worker_push(struct ptc_gpu_worker *w, struct ptc_gpu_job *j)
{
	pthread_mutex_lock(&w->lock);
	while (w->queued >= PTC_GPU_REQUESTS_MAX)
		pthread_cond_wait(&w->changed, &w->lock);
	append_locked(w, j);
	pthread_mutex_unlock(&w->lock);
}

void ptc_gpu_worker_stop(struct ptc_gpu_worker *w)
{
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	pthread_join(w->thread, NULL);
}

struct ptc_gpu_worker *ptc_gpu_worker_free(struct ptc_gpu_worker *w)
{
	if (!w)
		return NULL;
	while (w->first) {
		struct ptc_gpu_job *j = w->first;

		w->first = j->next;
		ptc_gpu_server_job_free(w->server, j);
	}
	ptc_free(w->entries);
	pthread_cond_destroy(&w->copiers.changed);
	pthread_mutex_destroy(&w->copiers.lock);
	pthread_cond_destroy(&w->returned);
	pthread_mutex_destroy(&w->share_lock);
	pthread_cond_destroy(&w->changed);
	pthread_mutex_destroy(&w->lock);
	ptc_free(w);
	return NULL;
}
