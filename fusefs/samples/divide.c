/* SPDX-License-Identifier: Apache-2.0 */
/* Batches divided by length. Happy path: a caller asks for a slot of a step. If the step is not remembered, the
 * caller's thread reads the lengths of the step's samples and divides them. The step then takes the place of the oldest
 * one. Several threads may do so for one step at once. Failure modes: a source that cannot be read; lengths whose costs
 * do not fit 64 bits; out of memory. */
#include "fusefs/samples/part.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"

#include <inttypes.h>

#define STEPS 8    /* remembered: ranks of one node are at about the same step */
#define BATCH 1024 /* samples that are looked at together */

struct fs_division {
	struct ptc_cost cost;
	pthread_mutex_t lock; /* guards the members below */
	struct divided {
		uint64_t step;
		uint32_t *offsets; /* of each slot, of all ranks; NULL: none */
	} v[STEPS];
	size_t next;
};

struct fs_division *fs_division_new(struct ptc_cost cost)
{
	struct fs_division *d = ptc_calloc(1, sizeof *d);

	if (d) {
		d->cost = cost;
		pthread_mutex_init(&d->lock, NULL);
	}
	return d;
}

struct fs_division *fs_division_free(struct fs_division *d)
{
	if (!d)
		return NULL;
	for (size_t i = 0; i < STEPS; i++)
		ptc_free(d->v[i].offsets);
	pthread_mutex_destroy(&d->lock);
	ptc_free(d);
	return NULL;
}

static bool remembered(struct fs_division *d, uint64_t step, uint64_t i, uint64_t *ret)
{
	bool yes = false;

	pthread_mutex_lock(&d->lock);
	for (size_t k = 0; k < STEPS && !yes; k++) {
		yes = d->v[k].offsets && d->v[k].step == step;
		if (yes)
			*ret = d->v[k].offsets[i];
	}
	pthread_mutex_unlock(&d->lock);
	return yes;
}

static void remember(struct fs_division *d, uint64_t step, uint32_t *offsets)
{
	struct divided *v;

	pthread_mutex_lock(&d->lock);
	v = &d->v[d->next++ % STEPS];
	ptc_free(v->offsets);
	*v = (struct divided){ step, offsets };
	pthread_mutex_unlock(&d->lock);
}

/* In elements, which are tokens. */
static int lengths_of(const struct fs_part *p, uint64_t position, uint64_t *ret, struct ptc_error *err)
{
	ptc_auto_free struct fs_want *v = ptc_calloc(BATCH, sizeof *v);
	int rc = v ? 0 : ptc_nomem(err);

	for (uint64_t at = 0; !rc && at < p->batch.global; at += BATCH) {
		size_t n = (size_t)PTC_MIN(p->batch.global - at, (uint64_t)BATCH);

		for (size_t i = 0; i < n; i++) {
			struct ptc_mix_sample s = ptc_mix_at(&p->mix, position + at + i);

			v[i] = (struct fs_want){ .part = s.part, .sample = s.sample };
		}
		rc = fs_part_fetch(p, v, n, err);
		for (size_t i = 0; !rc && i < n; i++)
			ret[at + i] = v[i].size / ptc_source_dtype_bytes(p->dtype);
	}
	return rc;
}

static int divide(const struct fs_part *p, uint64_t step, uint32_t **ret, struct ptc_error *err)
{
	const struct ptc_batch *b = &p->batch;
	uint64_t n = b->n_micro * b->width, work = ptc_balance_work(b);
	ptc_auto_free uint64_t *lengths = ptc_calloc(b->global, sizeof *lengths);
	ptc_auto_free uint64_t *slots = ptc_calloc(n, sizeof *slots);
	ptc_auto_free struct ptc_balance_item *items = ptc_calloc(work, sizeof *items);
	ptc_auto_free uint32_t *offsets = ptc_calloc(n, sizeof *offsets);
	struct ptc_batch_cost cost;
	int rc;

	if (!lengths || !slots || !items || !offsets)
		return ptc_nomem(err);
	rc = lengths_of(p, p->position + step * b->global, lengths, err);
	if (!rc && !ptc_batch_balance(b, lengths, p->division->cost, items, slots, &cost))
		rc = ptc_error_set(err, PTC_EINVAL,
				   "data %s: the samples of step %" PRIu64
				   " are too long to be divided by length: their costs do not fit 64 bits",
				   p->name, p->first_step + step);
	if (rc)
		return rc;
	for (uint64_t i = 0; i < n; i++)
		offsets[i] = (uint32_t)slots[i];
	*ret = offsets;
	offsets = NULL;
	return 0;
}

int fs_division_slot(const struct fs_part *p, uint64_t step, uint64_t i, uint64_t *ret_offset, struct ptc_error *err)
{
	uint32_t *offsets = NULL;
	int rc;

	if (remembered(p->division, step, i, ret_offset))
		return 0;
	rc = divide(p, step, &offsets, err);
	if (rc)
		return rc;
	*ret_offset = offsets[i];
	remember(p->division, step, offsets);
	return 0;
}
