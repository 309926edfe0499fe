/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot's bytes into ranks that have declared. Happy path: each declared
 * region is cut into tasks that a few threads take in turn; a task's bytes go
 * from the store's extents, verified, straight to where the rank has declared
 * them. One copy of each byte is made. Failure modes: a block that does not
 * verify (PTC_ECORRUPT), bytes that are not here (PTC_ENOTFOUND), a rank that
 * dies meanwhile (whatever its memory says), cancellation. */
#include "daemon/agent/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/fault.h"

#include <string.h>

#define TASK_BYTES (8 << 20)

struct task {
	const struct ptc_seat_source *source;
	struct ptc_box box;
};

struct restorer {
	const struct ptc_restore *job;
	struct ptc_seat_sources sources;
	struct task *tasks;
	size_t ntasks, cap;
	struct ptc_mover *movers; /* of each thread */
	unsigned nmovers;
};

static int task_push(struct restorer *x, const struct ptc_seat_source *source, const struct ptc_box *box)
{
	if (x->ntasks == x->cap) {
		size_t cap = x->cap ? 2 * x->cap : 64;
		struct task *v = ptc_reallocarray(x->tasks, cap, sizeof(*v));

		if (!v)
			return PTC_ENOMEM;
		x->tasks = v;
		x->cap = cap;
	}
	x->tasks[x->ntasks++] = (struct task){ source, *box };
	return 0;
}

static int tasks_make(struct restorer *x, struct ptc_error *err)
{
	int r = 0;

	for (size_t i = 0; !r && i < x->sources.n; i++) {
		const struct ptc_seat_source *s = &x->sources.v[i];
		struct ptc_boxes cut = { 0 };

		if (x->job->group->v[s->seat].state != PTC_SEAT_DECLARED)
			continue;
		r = ptc_box_chop(&s->at.box, TASK_BYTES, &cut);
		for (size_t k = 0; !r && k < cut.n; k++)
			r = task_push(x, s, &cut.v[k]);
		ptc_boxes_done(&cut);
	}
	return r ? ptc_error_set(err, PTC_ENOMEM, "no memory to restore %zu regions", x->sources.n) : 0;
}

struct part {
	struct ptc_mover *mover;
	const struct task *task;
	const struct iovec *spans;
	int nspans;
};

static int write_run(void *arg, uint64_t address, int64_t off, int64_t len, struct ptc_error *err)
{
	const struct part *p = arg;

	return ptc_mover_add(p->mover, address, p->spans, p->nspans, off, len, err);
}

static int write_part(void *arg, const struct ptc_box *extent_box, const struct ptc_box *cut, const struct iovec *spans,
		      int nspans, struct ptc_error *err)
{
	struct part *p = arg;

	p->spans = spans;
	p->nspans = nspans;
	return ptc_placed_runs(&p->task->source->at, extent_box, cut, write_run, p, err);
}

static int task_run(void *arg, unsigned thread, size_t i, struct ptc_error *err)
{
	struct restorer *x = arg;
	const struct task *t = &x->tasks[i];
	struct part p = { .mover = &x->movers[thread], .task = t };
	char name[PTC_TENSOR_NAME_MAX + 1];
	int r;

	p.mover->seat = &x->job->group->v[t->source->seat];
	p.mover->write = true;
	p.mover->nremote = p.mover->nlocal = p.mover->bytes = 0;
	r = ptc_table_each_extent(x->job->table, t->source->item, &t->box, write_part, &p, err);
	r = r ? r : ptc_mover_flush(p.mover, err);
	if (!r && ptc_fault("agent.restore.middle"))
		r = ptc_error_set(err, PTC_EIO, "injected failure in the middle of a restore");
	if (r && r != PTC_ENOMEM)
		ptc_error_wrap(err, "restoring \"%.300s\" on rank %u",
			       ptc_geometry_item_name(x->job->g, t->source->item, name, sizeof(name)),
			       p.mover->seat->rank.rank);
	return r;
}

static bool restore_stop(void *arg)
{
	const struct ptc_restore *job = ((struct restorer *)arg)->job;

	return job->stop && job->stop(job->arg);
}

int ptc_restore_seats(const struct ptc_restore *job, struct ptc_error *err)
{
	struct restorer x = { .job = job };
	struct ptc_crew crew = { .run = task_run, .stop = restore_stop, .arg = &x, .what = "restoring ranks" };
	int r = ptc_seat_sources_make(job->g, job->group, &x.sources, err);

	r = r ? r : tasks_make(&x, err);
	if (!r && x.ntasks) {
		crew.ntasks = x.ntasks;
		crew.threads = (unsigned)PTC_MIN((size_t)ptc_crew_size(), x.ntasks);
		x.movers = ptc_calloc(crew.threads, sizeof(*x.movers));
		r = x.movers ? ptc_crew_run(&crew, err) : ptc_error_set(err, PTC_ENOMEM, "no memory to restore ranks");
	}
	ptc_free(x.movers);
	ptc_free(x.tasks);
	ptc_seat_sources_done(&x.sources);
	return r;
}
