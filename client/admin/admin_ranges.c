// SPDX-License-Identifier: Apache-2.0
/* Ranges of items, in order. A read costs a round trip, which for small ones
 * is nearly all of it, so a few are begun ahead of the one whose bytes are
 * taken: at most AHEAD_RANGES, and small ones only, at most AHEAD_BYTES
 * together; so what waits in the transport has a bound whatever the sizes.
 * Failure: what a read fails with. A daemon that has too many calls of this
 * user open refuses one more; then fewer are begun ahead and the range is
 * asked for again, for some seconds. */
#include "client/admin/ptcadmin_state.h"

#include <inttypes.h>
#include <time.h>

#define AHEAD_RANGES  16
#define AHEAD_BYTES   (4u << 20)
#define REFUSED_MAX   40  /* times in a row that a read is refused */
#define REFUSED_PAUSE 100 /* ms */

struct ahead {
	struct ptc_admin *a;
	const char *job;
	const struct ptc_admin_export *e;
	const struct ptc_admin_range *ranges;
	size_t n;
	const struct ptc_admin_ranges_fn *fn;
	struct ptc_admin_reading *ring[AHEAD_RANGES];
	size_t first, next; /* ranges [first, next) are begun */
	uint64_t bytes;     /* of those */
	size_t most;        /* so many at once */
	int refused;
	uint64_t got; /* of the range being taken */
};

static void pause_ms(int ms)
{
	const struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

	nanosleep(&t, NULL);
}

static int begin(struct ahead *h, size_t i, struct ptc_error *err)
{
	const struct ptc_admin_range *r = &h->ranges[i];
	struct ptc_admin_reading **ret = &h->ring[i % AHEAD_RANGES];

	if (!r->length)
		return 0;
	if (r->ranked)
		return ptc_admin_read_rank_begin(h->a, h->job, h->e, r->rank, r->item, r->offset, r->length, ret, err);
	return ptc_admin_read_begin(h->a, h->job, h->e, r->item, r->offset, r->length, ret, err);
}

static int begin_more(struct ahead *h, struct ptc_error *err)
{
	int rc = 0;

	while (!rc && h->next < h->n && h->next - h->first < h->most) {
		uint64_t bytes = h->ranges[h->next].length;

		if (h->next > h->first && h->bytes + bytes > AHEAD_BYTES)
			break;
		rc = begin(h, h->next, err);
		if (!rc) {
			h->bytes += bytes;
			h->next++;
		}
	}
	return rc;
}

static void drop(struct ahead *h)
{
	for (size_t i = 0; i < AHEAD_RANGES; i++)
		h->ring[i] = ptc_admin_read_end(h->ring[i]);
	h->next = h->first;
	h->bytes = 0;
}

static int receive(void *arg, const void *data, size_t len, struct ptc_error *err)
{
	struct ahead *h = arg;

	h->got += len;
	return h->fn->data(h->fn->arg, h->first, data, len, err);
}

/* The next range. PTC_ELIMIT with h->got 0: refused before it began. */
static int take(struct ahead *h, struct ptc_error *err)
{
	size_t slot = h->first % AHEAD_RANGES;
	int rc = begin_more(h, err);

	h->got = 0;
	if (!rc && h->ring[slot])
		rc = ptc_admin_read_take(h->ring[slot], receive, h, err);
	if (!rc && h->fn->end)
		rc = h->fn->end(h->fn->arg, h->first, err);
	if (rc)
		return rc;
	h->ring[slot] = ptc_admin_read_end(h->ring[slot]);
	h->bytes -= h->ranges[h->first++].length;
	h->refused = 0;
	return 0;
}

static bool stopped(const struct ahead *h)
{
	return h->fn->stop && h->fn->stop(h->fn->arg);
}

int ptc_admin_read_ranges(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e,
			  const struct ptc_admin_range *ranges, size_t n, const struct ptc_admin_ranges_fn *fn,
			  struct ptc_error *err)
{
	struct ahead h = { .a = a,
			   .job = job,
			   .e = e,
			   .ranges = ranges,
			   .n = n,
			   .fn = fn,
			   .most = fn->ahead && fn->ahead < AHEAD_RANGES ? fn->ahead : AHEAD_RANGES };
	int rc = 0;

	while (!rc && h.first < h.n) {
		rc = take(&h, err);
		if (rc != PTC_ELIMIT || h.got || h.refused++ == REFUSED_MAX || stopped(&h))
			continue;
		drop(&h);
		h.most = h.most / 2 ? h.most / 2 : 1;
		pause_ms(REFUSED_PAUSE);
		rc = 0;
	}
	drop(&h);
	return rc;
}
