/* SPDX-License-Identifier: Apache-2.0 */
/* Restores ranks that have declared: a snapshot's bytes into their memory. Happy path: each declared region is cut into
 * tasks, a rank's tasks make batches, and a few threads take batches of all ranks in turn. The rank is told where a
 * task's bytes lie in the store's extents, and reads them from there straight to their declared address. It verifies
 * them meanwhile. If it cannot verify, they are verified before; if it cannot read, ptc-copy writes them there. One
 * copy of each byte is made. If a rank finds a bad block, all of its tasks are done again: now blocks are verified, and
 * healed, before the rank is told, and by the rank as well. Failure modes: a block that does not verify (PTC_ECORRUPT),
 * bytes that are not here (PTC_ENOTFOUND), a rank that dies meanwhile (the error of reading or writing its memory),
 * cancellation. */
#include "daemon/agent/calls/task_pool.h"
#include "daemon/store/store_read.h"
#include "daemon/agent/memory/copying.h"
#include "daemon/agent/ranks/internal.h"

#include "base/cleanup.h"
#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/fault.h"
#include "base/number/search.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCH_BYTES (16 << 20) /* a message to the rank, or several; each costs an answer and two wake-ups */
#define READ_ROUNDS 3          /* each finds bits that have flipped since the one before; then we write it */

_Static_assert(sizeof(struct ptc_chunk_sums) == sizeof(struct ptc_span_chunk), "chunks are passed on as they come");

struct task {
	const struct ptc_slot_source *source;
	struct ptc_box box;
	const struct ptc_resident *resident; /* that has it on the rank's device; NULL: none */
	bool ahead;                          /* page-locked memory has it, from byte `at` on */
	uint64_t at;
};

/* Tasks of one slot that follow each other. */
struct batch {
	size_t first, n;
	size_t turn; /* the how manieth of its slot */
};

struct restorer {
	const struct ptc_restore *job;
	struct ptc_slot_sources sources;
	struct task *tasks; /* by slot */
	size_t ntasks, cap;
	struct batch *batches;
	size_t nbatches;
	struct ptc_iov_batch *iov_batches; /* of each thread */
	struct ptc_copying copying;
	struct ptc_wait wait;
	struct {
		int fd; /* -1: none: we write it all */
		const uint8_t *base;
		uint64_t bytes;
	} file;
	bool ranks_verify;                 /* those that can, before we have */
	struct ptc_slot_filling *fillings; /* of each slot */
	_Atomic uint64_t ahead;            /* bytes from page-locked memory */
	atomic_bool refused;               /* something cannot be said to a rank: we write it all */
	atomic_bool stopped;               /* for the threads: the caller's question is its own thread's */
};

struct cutting {
	struct restorer *x;
	const struct ptc_slot_source *source;
};

/* Host memory is not copied from there: the rank reads the store itself. */
static struct task task_of(const struct restorer *x, const struct ptc_slot_source *source, const struct ptc_box *box,
			   const struct ptc_resident *resident)
{
	struct task t = { .source = source, .box = *box, .resident = resident };

	t.ahead = x->job->prefetched && !resident &&
		  ptc_slot_device(&x->job->group->v[source->slot], source->at.address) &&
		  ptc_slot_mapped(&x->job->group->v[source->slot]) &&
		  ptc_prefetch_find(x->job->prefetched, x->job->table, source->item, box, &t.at);
	return t;
}

static int cut_tasks(void *arg, const struct ptc_resident *resident, const struct ptc_box *box)
{
	const struct cutting *k = arg;
	struct restorer *x = k->x;
	struct ptc_boxes cut = { 0 };
	int rc = ptc_box_chop(box, PTC_PREFETCH_BOX, &cut);

	for (size_t i = 0; !rc && i < cut.n; i++) {
		if (!PTC_ROOM(x->tasks, x->ntasks + 1, x->cap))
			rc = PTC_ENOMEM;
		else
			x->tasks[x->ntasks++] = task_of(x, k->source, &cut.v[i], resident);
	}
	ptc_boxes_done(&cut);
	return rc;
}

static int tasks_make(struct restorer *x, struct ptc_error *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < x->sources.n; i++) {
		struct cutting k = { x, &x->sources.v[i] };

		if (x->job->group->v[k.source->slot].state == PTC_SLOT_DECLARED)
			rc = ptc_residents_split(x->job->residents, x->job->g, x->job->group, k.source, cut_tasks, &k);
	}
	return rc ? ptc_nomem(err) : 0;
}

PTC_BY2(by_slot, struct task, source->slot, source)

PTC_BY2(by_turn, struct batch, turn, first)

/* All ranks get theirs at the same time: those that read are as many processes that do. */
static int batches_make(struct restorer *x, struct ptc_error *err)
{
	struct batch *b = NULL;
	int64_t bytes = 0;

	qsort(x->tasks, x->ntasks, sizeof *x->tasks, by_slot);
	ptc_free(x->batches);
	x->nbatches = 0;
	x->batches = ptc_reallocarray(NULL, x->ntasks, sizeof *x->batches);
	if (!x->batches)
		return ptc_nomem(err);
	for (size_t i = 0; i < x->ntasks; i++) {
		bool same = b && x->tasks[b->first].source->slot == x->tasks[i].source->slot;
		int64_t more = ptc_box_volume(&x->tasks[i].box);

		if (!same || bytes + more > BATCH_BYTES) {
			size_t turn = same ? b->turn + 1 : 0;

			b = &x->batches[x->nbatches++];
			*b = (struct batch){ .first = i, .turn = turn };
			bytes = 0;
		}
		b->n++;
		bytes += more;
	}
	qsort(x->batches, x->nbatches, sizeof *x->batches, by_turn);
	return 0;
}

struct part {
	struct ptc_iov_batch *iov_batch;
	const struct task *task;
	const struct iovec *spans;
	int nspans;
};

static int write_run(void *arg, uint64_t address, int64_t off, int64_t len, struct ptc_error *err)
{
	const struct part *p = arg;

	return ptc_iov_batch_add(p->iov_batch, address, p->spans, p->nspans, off, len, err);
}

static int write_part(void *arg, const struct ptc_box *extent_box, const struct ptc_box *cut, const struct iovec *spans,
		      int nspans, size_t chunk, struct ptc_error *err)
{
	struct part *p = arg;

	p->spans = spans;
	p->nspans = nspans;
	return ptc_strided_runs(&p->task->source->at, extent_box, cut, write_run, p, err);
}

static int task_write(struct restorer *x, unsigned thread, const struct task *t, struct ptc_error *err)
{
	struct part p = { .iov_batch = &x->iov_batches[thread], .task = t };
	int rc;

	p.iov_batch->slot = &x->job->group->v[t->source->slot];
	p.iov_batch->copying = &x->copying.slots;
	p.iov_batch->way = PTC_COPY_WRITE;
	p.iov_batch->nremote = p.iov_batch->nlocal = p.iov_batch->bytes = 0;
	if (t->ahead) {
		struct iovec span = { (uint8_t *)(uintptr_t)x->copying.slots.memory[1].base + t->at,
				      (size_t)ptc_box_volume(&t->box) };

		rc = write_part(&p, &t->box, &t->box, &span, 1, 0, err);
		atomic_fetch_add(&x->ahead, (uint64_t)ptc_box_volume(&t->box));
	} else {
		rc = ptc_table_each_extent(x->job->table, t->source->item, &t->box, write_part, &p, err);
	}
	return rc ? rc : ptc_iov_batch_flush(p.iov_batch, err);
}

/* ---- read by the rank ---- */

struct reading {
	struct restorer *x;
	const struct task *task;
	const struct iovec *spans;
	int nspans;
	size_t first_chunk; /* of the spans */
	bool refused;       /* it cannot be said so */
	bool sums;          /* the rank gets checksums */
	size_t n, nchunks;
	struct ptc_slot_rows rows[PTC_SLOT_ROWS_MAX];
	size_t chunk_numbers[PTC_SLOT_CHUNKS_MAX];
	struct ptc_chunk_sums chunks[PTC_SLOT_CHUNKS_MAX];
};

static int reading_flush(struct reading *f, struct ptc_error *err)
{
	uint32_t slot = f->task->source->slot;
	struct ptc_slot_order order = { f->rows, f->chunks, f->n, f->nchunks };

	f->n = f->nchunks = 0;
	return order.nrows ? ptc_slot_fill(&f->x->job->group->v[slot], &f->x->fillings[slot], f->x->file.fd, &order,
					   &f->x->wait, err)
			   : 0;
}

/* Rows that follow each other mostly lie in the chunk named last. There is room for one. */
static void reading_add_chunk(struct reading *f, size_t number)
{
	struct ptc_span_chunk c;
	size_t i = f->nchunks;

	while (i-- > 0)
		if (f->chunk_numbers[i] == number)
			return;
	ptc_table_chunk(f->x->job->table, number, f->x->file.base, &c);
	memcpy(&f->chunks[f->nchunks], &c, sizeof c);
	f->chunk_numbers[f->nchunks++] = number;
}

/* n rows that lie in one span: from is the first one's memory here. */
static int reading_add(struct reading *f, const struct ptc_strided_rows *rows, int64_t n, int64_t len,
		       const uint8_t *from, size_t chunk, struct ptc_error *err)
{
	uint64_t off = (uint64_t)(from - f->x->file.base);
	int rc = f->n == PTC_SLOT_ROWS_MAX || f->nchunks == PTC_SLOT_CHUNKS_MAX ? reading_flush(f, err) : 0;

	if (rows->there < 0 || rows->here < 0 || from < f->x->file.base || off >= f->x->file.bytes)
		f->refused = true;
	if (rc || f->refused)
		return rc;
	if (f->sums)
		reading_add_chunk(f, chunk);
	f->rows[f->n++] =
		(struct ptc_slot_rows){ rows->address,       off, (uint64_t)len, (uint64_t)n, (uint64_t)rows->there,
					(uint64_t)rows->here };
	return 0;
}

/* Chunks of an extent follow each other in its spans, not in the file: rows are told apart by the span they lie in, and
 * one that crosses spans in pieces. */
static int read_rows(void *arg, const struct ptc_strided_rows *all, struct ptc_error *err)
{
	struct ptc_strided_rows left = *all;
	struct reading *f = arg;
	int rc = 0;

	for (int i = 0, begin = 0; !rc && i < f->nspans && left.n; begin += (int)f->spans[i++].iov_len) {
		int64_t end = begin + (int64_t)f->spans[i].iov_len, n, now;

		while (!rc && left.n && left.off < end) {
			const uint8_t *from = (const uint8_t *)f->spans[i].iov_base + (left.off - begin);

			now = PTC_MIN(left.len, end - left.off);
			n = now < all->len ? 1
			    : left.here    ? PTC_MIN(left.n, (end - left.off - now) / left.here + 1)
					   : left.n;
			rc = reading_add(f, &left, n, now, from, f->first_chunk + (size_t)i, err);
			if (now < left.len) { /* its rest is in the next span */
				left.address += (uint64_t)now;
				left.off += now;
				left.len -= now;
				break;
			}
			left.n -= n;
			left.address += (uint64_t)(left.there * n) - (uint64_t)(all->len - left.len);
			left.off += left.here * n - (all->len - left.len);
			left.len = all->len;
		}
	}
	return rc || !left.n ? rc : ptc_error_set(err, PTC_EINTERNAL, "internal error: a copy goes beyond its extent");
}

static int read_part(void *arg, const struct ptc_box *extent_box, const struct ptc_box *cut, const struct iovec *spans,
		     int nspans, size_t chunk, struct ptc_error *err)
{
	struct reading *f = arg;

	f->spans = spans;
	f->nspans = nspans;
	f->first_chunk = chunk;
	return ptc_strided_each_rows(&f->task->source->at, extent_box, cut, read_rows, f, err);
}

static int task_read(struct reading *f, const struct task *t, struct ptc_error *err)
{
	const struct ptc_slot_view *slot = &f->x->job->group->v[t->source->slot];
	const bool by_rank = f->sums && f->x->ranks_verify && !ptc_slot_device(slot, t->source->at.address);

	f->task = t;
	return by_rank ? ptc_table_each_unverified(f->x->job->table, t->source->item, &t->box, read_part, f, err)
		       : ptc_table_each_extent(f->x->job->table, t->source->item, &t->box, read_part, f, err);
}

static int task_do(struct restorer *x, unsigned thread, struct reading *f, const struct task *t, struct ptc_error *err)
{
	struct ptc_heal_tries tries = { 0, 0 };
	bool done = false;
	int rc;

	if (f && (t->resident || t->ahead))
		return 0; /* with those that we write */
	do {
		rc = t->resident ? ptc_resident_restore(x->job->residents, t->resident, x->job->g, x->job->table,
							&x->job->group->v[t->source->slot], t->source,
							&x->copying.slots, &t->box, &done, err)
				 : 0;
		if (!rc && !done)
			rc = f ? task_read(f, t, err) : task_write(x, thread, t, err);
	} while (ptc_agent_heals(x->job->g->agent, x->job->g->uuid, rc, &tries)); /* rows said twice are read twice */
	return rc;
}

static int task_failed(const struct restorer *x, const struct task *t, int r, struct ptc_error *err)
{
	char name[PTC_TENSOR_NAME_MAX + 1];

	if (r == PTC_ECORRUPT)
		ptc_geometry_name_error(x->job->g, err);
	if (r != PTC_ENOMEM)
		ptc_error_wrap(err, "restoring \"%.300s\" on rank %u",
			       ptc_geometry_item_name(x->job->g, t->source->item, name, sizeof(name)),
			       x->job->group->v[t->source->slot].rank.rank);
	return r;
}

static int batch_run(void *arg, unsigned thread, size_t i, struct ptc_error *err)
{
	struct restorer *x = arg;
	const struct batch *b = &x->batches[i];
	const struct task *t = &x->tasks[b->first], *end = t + b->n;
	struct reading *f = x->file.fd >= 0 ? ptc_malloc(sizeof *f) : NULL;
	int rc = 0;

	if (x->file.fd >= 0 && !f)
		return ptc_nomem(err);
	if (f) {
		f->x = x;
		f->task = t;
		f->refused = false;
		f->sums = x->job->group->v[t->source->slot].verifies && ptc_table_in_memory(x->job->table);
		f->n = f->nchunks = 0;
	}
	for (; !rc && t < end; t++) {
		rc = task_do(x, thread, f, t, err);
		if (!rc && ptc_fault("agent.restore.middle"))
			rc = ptc_error_set(err, PTC_EIO, "injected failure in the middle of a restore");
		rc = rc ? task_failed(x, t, rc, err) : 0;
	}
	if (f && !rc && !f->refused && (rc = reading_flush(f, err)))
		rc = task_failed(x, f->task, rc, err);
	if (f && f->refused)
		atomic_store(&x->refused, true);
	ptc_free(f);
	return rc;
}

static bool restore_stop(void *arg)
{
	struct restorer *x = arg;

	if (x->job->stop && x->job->stop(x->job->arg))
		atomic_store(&x->stopped, true);
	return atomic_load(&x->stopped);
}

static bool restore_stopped(void *arg)
{
	return atomic_load(&((struct restorer *)arg)->stopped);
}

static int tasks_run(struct restorer *x, struct ptc_error *err)
{
	struct ptc_task_pool task_pool = { .threads = ptc_task_pool_size(),
					   .run = batch_run,
					   .stop = restore_stop,
					   .arg = x,
					   .what = "restoring ranks" };
	int rc = x->ntasks ? batches_make(x, err) : 0;

	task_pool.ntasks = x->nbatches;
	return rc || !x->ntasks ? rc : ptc_task_pool_run(&task_pool, err);
}

/* All ranks have done what they were told. What is left in tasks is theirs that did not, or not rightly. */
static int tasks_wait(struct restorer *x, bool *ret_damaged, struct ptc_error *err)
{
	struct ptc_wait wait = { .cancelled = restore_stop, .arg = x };
	const struct ptc_group *g = x->job->group;
	size_t n = 0;
	int rc = 0;

	*ret_damaged = false;
	for (size_t i = 0; !rc && i < g->n; i++)
		if (g->v[i].state == PTC_SLOT_DECLARED) {
			rc = ptc_slot_filled(&g->v[i], &x->fillings[i], &wait, err);
			*ret_damaged = *ret_damaged || x->fillings[i].damaged;
		}
	for (size_t i = 0; !rc && i < x->ntasks; i++) {
		const struct ptc_slot_filling *f = &x->fillings[x->tasks[i].source->slot];

		if (x->file.fd < 0 || x->tasks[i].resident || x->tasks[i].ahead || atomic_load(&x->refused) ||
		    f->failed || f->damaged)
			x->tasks[n++] = x->tasks[i];
	}
	x->ntasks = n;
	return rc;
}

static int tasks_read(struct restorer *x, struct ptc_error *err)
{
	bool damaged = false;
	int rc = 0;

	x->ranks_verify = true;
	for (int i = 0; !rc && i < READ_ROUNDS && (i == 0 || damaged); i++) {
		rc = tasks_run(x, err);
		if (rc == 0)
			rc = tasks_wait(x, &damaged, err);
		x->ranks_verify = false;
		if (!rc && damaged)
			ptc_warn("agent",
				 "job %s: a rank has read a block that does not match its checksum; its blocks "
				 "are verified, and it reads them again",
				 x->job->g->uuid);
	}
	return rc;
}

/* No descriptor is left for what was read ahead: its boxes come out of the store. */
static void take_none_ahead(struct restorer *x)
{
	x->copying.slots.memory[1] = (struct ptc_slot_memory){ .fd = -1 };
	for (size_t i = 0; i < x->ntasks; i++)
		x->tasks[i].ahead = false;
}

/* What is left has to be written. */
static int tasks_write(struct restorer *x, struct ptc_error *err)
{
	struct ptc_table *const tables[] = { x->job->table, NULL };
	int rc = x->ntasks ? ptc_copying_open(&x->copying, &x->job->group->v[0], tables, 0, &x->wait, err) : 0;

	if (!rc && x->ntasks && x->job->prefetched) {
		x->copying.slots.memory[1] = ptc_prefetch_memory(x->job->prefetched);
		x->copying.slots.memory[1].fd = fcntl(x->copying.slots.memory[1].fd, F_DUPFD_CLOEXEC, 0);
		if (x->copying.slots.memory[1].fd < 0)
			take_none_ahead(x);
	}
	if (rc == 0)
		rc = tasks_run(x, err);
	ptc_copying_close(&x->copying);
	return rc;
}

/* First what ranks read, then what we have to write. */
static int restore(struct restorer *x, struct ptc_error *err)
{
	bool damaged;
	int rc;

	x->iov_batches = ptc_calloc(ptc_task_pool_size(), sizeof *x->iov_batches);
	x->fillings = ptc_calloc(x->job->group->n, sizeof *x->fillings);
	if (!x->iov_batches || !x->fillings)
		return ptc_nomem(err);
	if (ptc_table_file(x->job->table, &x->file.fd, &x->file.base, &x->file.bytes, NULL))
		x->file.fd = -1; /* then we write it all */
	rc = x->file.fd >= 0 ? tasks_read(x, err) : tasks_wait(x, &damaged, err);
	ptc_close(&x->file.fd);
	return rc ? rc : tasks_write(x, err);
}

/* What the declared slots have on devices, but for what came from there. */
static struct ptc_device_bytes device_bytes(const struct restorer *x)
{
	struct ptc_device_bytes b = ptc_residents_bytes(x->job->residents);

	for (size_t i = 0; i < x->sources.n; i++) {
		const struct ptc_slot_source *s = &x->sources.v[i];
		const struct ptc_slot_view *v = &x->job->group->v[s->slot];

		if (v->state == PTC_SLOT_DECLARED && ptc_slot_device(v, s->at.address))
			b.host += (uint64_t)ptc_box_volume(&s->at.box);
	}
	b.host -= PTC_MIN(b.host, b.kept + b.peer);
	return b;
}

int ptc_restore_slots(const struct ptc_restore *job, struct ptc_device_bytes *ret_bytes, struct ptc_error *err)
{
	struct restorer x = { .job = job, .file.fd = -1, .wait = { .cancelled = restore_stopped, .arg = &x } };
	int rc = ptc_slot_sources_make(job->g, job->group, &x.sources, err);

	if (rc == 0)
		rc = tasks_make(&x, err);
	if (!rc && x.ntasks)
		rc = restore(&x, err);
	if (!rc)
		*ret_bytes = device_bytes(&x);
	if (!rc && job->prefetched)
		ptc_info("agent",
			 "job %s: the restore took %llu of the %llu bytes that were read ahead to page-locked memory",
			 job->g->uuid, (unsigned long long)atomic_load(&x.ahead),
			 (unsigned long long)ptc_prefetch_bytes(job->prefetched));
	ptc_free(x.batches);
	ptc_free(x.iov_batches);
	ptc_free(x.fillings);
	ptc_free(x.tasks);
	ptc_slot_sources_done(&x.sources);
	return rc;
}
