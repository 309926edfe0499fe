/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: the boxes of the next ranks on this node get places in one file of memory, which ptc-gpu page-locks. A
 * thread reads and verifies the boxes one after another, until the restore takes the list. Memory is page-locked step
 * by step, so nobody waits for all of it. Failure modes: no budget or memory, a layout or table that is not known or
 * not here, too many short rows. Then less is prefetched, or nothing. */
#include "daemon/agent/memory/prefetch.h"
#include "daemon/agent/calls/agent_state.h"
#include "daemon/store/store_read.h"
#include "daemon/store/store_table.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGN      256
#define SPANS_MAX  1024 /* of a box: shorter rows take longer to be told apart than to be read again */
#define CHUNKS_MAX (SPANS_MAX + 1)
#define LOCK_BYTES ((uint64_t)32 << 20) /* page-locked at once; no box crosses a multiple of it */

_Static_assert(LOCK_BYTES >= PTC_PREFETCH_BOX && LOCK_BYTES % ALIGN == 0, "a box fits into a step");

struct ahead {
	uint32_t item;
	struct ptc_box box;     /* in bytes */
	uint64_t at;            /* in the memory */
	struct ptc_span *spans; /* where the snapshot has it */
	size_t nspans;
};

struct ptc_prefetch {
	struct ptc_prefetch *next;
	char uuid[37]; /* the job */
	struct ptc_agent *agent;
	uint64_t reserved; /* of the node's budget */
	struct ptc_workers *workers;
	struct ptc_table *table; /* the snapshot's */
	char device[48];         /* for which it is page-locked */
	struct ptc_slot_memory memory;
	struct ptc_device_pinned pinned;
	struct ahead *v; /* by item, then box */
	size_t n, cap;
	uint64_t wanted;
	pthread_t thread;
	bool runs;
	atomic_bool stop;
	size_t ready;           /* of v; the thread's until it is joined */
	struct ptc_spans found; /* room for one call */
};

/* ---- life ---- */

static void join(struct ptc_prefetch *p)
{
	if (!p->runs)
		return;
	atomic_store(&p->stop, true);
	pthread_join(p->thread, NULL);
	p->runs = false;
}

struct ptc_prefetch *ptc_prefetch_free(struct ptc_prefetch *p)
{
	if (!p)
		return NULL;
	join(p);
	if (ptc_workers_unpin(p->workers, &p->pinned) && p->memory.base) /* else ptc-gpu may have it for ever */
		munmap((void *)(uintptr_t)p->memory.base, p->memory.bytes);
	ptc_close(&p->memory.fd);
	pthread_mutex_lock(&p->agent->shared.lock);
	p->agent->shared.prefetch_used -= p->reserved;
	pthread_mutex_unlock(&p->agent->shared.lock);
	ptc_table_unref(p->table);
	for (size_t i = 0; i < p->n; i++)
		ptc_free(p->v[i].spans);
	ptc_free(p->v);
	ptc_free(p->found.v);
	ptc_free(p->found.chunks);
	ptc_free(p);
	return NULL;
}

struct ptc_prefetch *ptc_prefetch_take(struct ptc_agent *agent, const char *uuid)
{
	struct ptc_prefetch *p = NULL;

	pthread_mutex_lock(&agent->shared.lock);
	for (struct ptc_prefetch **at = &agent->shared.prefetched; *at && !p; at = &(*at)->next)
		if (strcmp((*at)->uuid, uuid) == 0) {
			p = *at;
			*at = p->next;
			break;
		}
	pthread_mutex_unlock(&agent->shared.lock);
	if (p)
		join(p);
	return p;
}

void ptc_prefetch_drop(struct ptc_agent *agent, const char *uuid)
{
	ptc_prefetch_free(ptc_prefetch_take(agent, uuid));
}

void ptc_prefetch_done(struct ptc_agent *agent)
{
	while (agent->shared.prefetched)
		ptc_prefetch_drop(agent, agent->shared.prefetched->uuid);
}

struct ptc_slot_memory ptc_prefetch_memory(const struct ptc_prefetch *p)
{
	struct ptc_slot_memory m = p->memory;

	m.pinned = &p->pinned;
	return m;
}

uint64_t ptc_prefetch_bytes(const struct ptc_prefetch *p)
{
	uint64_t bytes = 0;

	for (size_t i = 0; p && i < p->ready; i++)
		bytes += (uint64_t)ptc_box_volume(&p->v[i].box);
	return bytes;
}

/* ---- which boxes ---- */

static int by_box(const void *pa, const void *pb)
{
	const struct ahead *a = pa, *b = pb;

	if (a->item != b->item)
		return a->item < b->item ? -1 : 1;
	if (a->box.ndim != b->box.ndim)
		return a->box.ndim < b->box.ndim ? -1 : 1;
	for (uint32_t d = 0; d < a->box.ndim; d++) {
		if (a->box.off[d] != b->box.off[d])
			return a->box.off[d] < b->box.off[d] ? -1 : 1;
		if (a->box.ext[d] != b->box.ext[d])
			return a->box.ext[d] < b->box.ext[d] ? -1 : 1;
	}
	return 0;
}

static int add_box(struct ptc_prefetch *p, uint32_t item, const struct ptc_box *box)
{
	struct ptc_boxes cut = { 0 };
	int rc = ptc_box_chop(box, PTC_PREFETCH_BOX, &cut);

	for (size_t i = 0; i < cut.n && !rc; i++) {
		if (!PTC_ROOM(p->v, p->n + 1, p->cap))
			rc = PTC_ENOMEM;
		else
			p->v[p->n++] = (struct ahead){ .item = item, .box = cut.v[i] };
	}
	ptc_boxes_done(&cut);
	return rc;
}

static int add_rank(struct ptc_prefetch *p, const struct ptc_geometry *to, uint32_t rank, struct ptc_error *err)
{
	struct ptc_rank_layout l = { 0 };
	int rc = ptc_layout_rank(to->layout, rank, &l, err);

	for (size_t i = 0; i < l.nregions && !rc; i++) {
		struct ptc_box bytes;

		rc = ptc_item_byte_box(to->spec, l.regions[i].item, &l.regions[i].box, &bytes, err);
		if (!rc && !ptc_box_empty(&bytes) && add_box(p, l.regions[i].item, &bytes))
			rc = ptc_nomem(err);
	}
	ptc_rank_layout_done(&l);
	return rc;
}

/* Replicas on this node need one copy. What does not fit into the budget is left out. */
static void place(struct ptc_prefetch *p, uint64_t budget)
{
	size_t n = 0;

	for (size_t i = 0; i < p->n; i++) {
		uint64_t bytes = (uint64_t)ptc_box_volume(&p->v[i].box), at = p->wanted;

		if (at / LOCK_BYTES != (at + bytes - 1) / LOCK_BYTES)
			at = (at / LOCK_BYTES + 1) * LOCK_BYTES;
		if ((n && by_box(&p->v[n - 1], &p->v[i]) == 0) || bytes > budget || at > budget - bytes)
			continue;
		p->v[n] = p->v[i];
		p->v[n++].at = at;
		p->wanted = (at + bytes + ALIGN - 1) / ALIGN * ALIGN;
	}
	p->n = n;
}

/* What other jobs' bytes leave of the node's budget. */
static void reserve(struct ptc_prefetch *p)
{
	struct ptc_agent *agent = p->agent;

	qsort(p->v, p->n, sizeof *p->v, by_box);
	pthread_mutex_lock(&agent->shared.lock);
	place(p, agent->env.prefetch_bytes - PTC_MIN(agent->shared.prefetch_used, agent->env.prefetch_bytes));
	p->reserved = p->wanted;
	agent->shared.prefetch_used += p->reserved;
	pthread_mutex_unlock(&agent->shared.lock);
}

static int boxes_make(struct ptc_prefetch *p, struct ptc_agent *agent, const struct ptc_geometry *to,
		      struct ptc_error *err)
{
	uint32_t self;
	int rc = ptc_geometry_node(to, agent->node, &self, err);

	for (uint32_t r = 0; !rc && r < to->allocation.world; r++)
		if (to->allocation.ranks[r].node == self)
			rc = add_rank(p, to, r, err);
	if (!rc && p->n)
		reserve(p);
	return rc;
}

/* ---- the thread ---- */

/* Where the table has the box, to p->found. */
static int find_spans(struct ptc_prefetch *p, struct ptc_table *table, uint32_t item, const struct ptc_box *box,
		      struct ptc_error *err)
{
	p->found.n = p->found.nchunks = 0;
	return ptc_table_spans(table, item, box, &p->found, err);
}

/* Until the memory for a box is page-locked. */
static int lock_for(struct ptc_prefetch *p, const struct ahead *a, struct ptc_error *err)
{
	int rc = 0;

	while (!rc && p->pinned.bytes < a->at + (uint64_t)ptc_box_volume(&a->box)) {
		if (atomic_load(&p->stop))
			return PTC_ECANCELED;
		rc = ptc_workers_pin_more(p->workers, &p->pinned, err);
	}
	return rc;
}

/* PTC_ENOTFOUND, PTC_ELIMIT: another node has it, or it is too scattered. */
static int read_one(struct ptc_prefetch *p, struct ahead *a, struct ptc_error *err)
{
	int rc = find_spans(p, p->table, a->item, &a->box, err);

	if (rc)
		return rc;
	rc = lock_for(p, a, err);
	if (rc)
		return rc;
	a->spans = ptc_reallocarray(NULL, p->found.n ? p->found.n : 1, sizeof *a->spans);
	if (!a->spans)
		return ptc_nomem(err);
	memcpy(a->spans, p->found.v, p->found.n * sizeof *a->spans);
	a->nspans = p->found.n;
	return ptc_table_read(p->table, a->item, &a->box, (uint8_t *)(uintptr_t)p->memory.base + a->at, err);
}

static int read_all(struct ptc_prefetch *p, struct ptc_error *err)
{
	for (size_t i = 0; i < p->n && !atomic_load(&p->stop); i++) {
		struct ahead a = p->v[i];
		int rc = read_one(p, &a, err);

		if (rc) {
			ptc_free(a.spans);
			a.spans = NULL;
		}
		if (rc == PTC_ECANCELED)
			return 0;
		if (rc && rc != PTC_ENOTFOUND && rc != PTC_ELIMIT)
			return rc;
		if (rc == 0) {
			p->v[i] = p->v[p->ready]; /* without spans */
			p->v[p->ready++] = a;
		}
	}
	return 0;
}

static void *run(void *arg)
{
	struct ptc_prefetch *p = arg;
	struct ptc_error err = PTC_ERROR_INIT;
	int rc = ptc_workers_pin_begin(p->workers, p->memory.fd, p->memory.bytes, LOCK_BYTES, p->device, &p->pinned,
				       &err);

	if (rc == 0)
		rc = read_all(p, &err);
	if (rc)
		ptc_info("agent", "job %s: less is read ahead of its restore: %s", p->uuid, err.text);
	ptc_info("agent", "job %s: %llu of %llu bytes are read ahead of its restore", p->uuid,
		 (unsigned long long)ptc_prefetch_bytes(p), (unsigned long long)p->wanted);
	return NULL;
}

/* ---- begun ---- */

static int memory_make(struct ptc_prefetch *p, struct ptc_error *err)
{
	struct ptc_slot_memory *m = &p->memory;
	void *base = MAP_FAILED;

	m->fd = memfd_create("ptc-prefetch", MFD_CLOEXEC);
	if (m->fd >= 0 && ftruncate(m->fd, (off_t)p->wanted) == 0)
		base = mmap(NULL, p->wanted, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	if (base == MAP_FAILED)
		return ptc_error_errno(err, errno, "no memory to read ahead");
	m->base = base;
	m->bytes = p->wanted;
	p->found.v = ptc_reallocarray(NULL, SPANS_MAX, sizeof *p->found.v);
	p->found.chunks = ptc_reallocarray(NULL, CHUNKS_MAX, sizeof *p->found.chunks);
	p->found.max = SPANS_MAX;
	p->found.max_chunks = CHUNKS_MAX;
	return p->found.v && p->found.chunks ? 0 : ptc_nomem(err);
}

void ptc_prefetch_begin(struct ptc_agent *agent, const struct ptc_geometry *from, const struct ptc_geometry *to,
			const char *device)
{
	struct ptc_table_key key = ptc_geometry_key(from);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_prefetch *p;
	int rc;

	ptc_prefetch_drop(agent, from->uuid);
	if (!agent->env.prefetch_bytes || !agent->env.workers)
		return;
	p = ptc_calloc(1, sizeof *p);
	if (!p)
		return;
	p->agent = agent;
	p->workers = agent->env.workers;
	p->memory.fd = -1;
	memcpy(p->uuid, from->uuid, sizeof p->uuid);
	snprintf(p->device, sizeof p->device, "%s", device);
	rc = ptc_table_open(agent->env.store, &key, &p->table, &err);
	if (rc == 0)
		rc = boxes_make(p, agent, to, &err);
	if (!rc && p->n)
		rc = memory_make(p, &err);
	if (!rc && p->n)
		rc = ptc_thread_start(&p->thread, "ptc-prefetch", run, p, &err);
	if (rc || !p->n) {
		ptc_debug("agent", "job %s: nothing is read ahead of its restore: %s", p->uuid, err.text);
		ptc_prefetch_free(p);
		return;
	}
	p->runs = true;
	pthread_mutex_lock(&agent->shared.lock);
	p->next = agent->shared.prefetched;
	agent->shared.prefetched = p;
	pthread_mutex_unlock(&agent->shared.lock);
}

/* ---- used ---- */

bool ptc_prefetch_find(struct ptc_prefetch *p, struct ptc_table *table, uint32_t item, const struct ptc_box *box,
		       uint64_t *ret_at)
{
	const struct ahead key = { .item = item, .box = *box }, *a;

	if (!p || !p->ready)
		return false;
	a = bsearch(&key, p->v, p->ready, sizeof *p->v, by_box);
	if (!a || find_spans(p, table, item, box, NULL) != 0 || p->found.n != a->nspans)
		return false;
	for (size_t i = 0; i < a->nspans; i++)
		if (a->spans[i].at != p->found.v[i].at || a->spans[i].bytes != p->found.v[i].bytes)
			return false;
	*ret_at = a->at;
	return true;
}
