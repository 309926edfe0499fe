/* SPDX-License-Identifier: Apache-2.0 */
/* Reads ranges of items, in order (ptc_admin_read_ranges). A call costs a round trip, which is nearly all the time of
 * a small range. So many small ranges that follow each other are one call, and a few calls are begun ahead of the one
 * whose bytes are taken. Calls ahead are bounded in number (AHEAD_CALLS) and in bytes (AHEAD_BYTES together), so the
 * bytes that wait in the transport have a bound.
 *
 * Failure: what a read fails with. If the daemon has too many calls of this user open, it refuses one more; then fewer
 * are begun ahead, and the ranges are asked for again, for some seconds. If a call for many ranges fails before its
 * first byte, each range is read by a call of its own, so that the error names the one that cannot be read. If the
 * daemon does not know the call for many, ranges are read one by one as well. */
#include "client/admin/internal.h"

#include "base/check.h"
#include "base/limits.h"

#include <inttypes.h>
#include <time.h>

#define AHEAD_CALLS   16
#define AHEAD_BYTES   (4u << 20)
#define SMALL         (64u << 10) /* what goes with others into one call */
#define REFUSED_MAX   40          /* times in a row that a call is refused */
#define REFUSED_MANY  3           /* ... and so often one for many: it may never find room */
#define REFUSED_PAUSE 100         /* ms */

struct call {
	size_t first, n; /* ranges */
	uint64_t bytes;
	struct ptc_admin_reading *reading; /* NULL: there is nothing to be read */
};

struct ahead {
	struct ptc_admin *a;
	const char *job;
	const struct ptc_admin_export *e;
	const struct ptc_admin_range *ranges;
	size_t n;
	const struct ptc_admin_ranges_fn *fn;
	struct call ring[AHEAD_CALLS];
	size_t first, next; /* calls [first, next) are begun */
	size_t begun;       /* ranges */
	uint64_t bytes;     /* of those calls */
	size_t most;        /* so many at once */
	size_t alone_to;    /* ranges before this one are asked for alone */
	int refused;
	size_t asked;           /* ranges of the call that is begun or taken: of the one that failed */
	size_t range;           /* being taken, of the first call */
	uint64_t got, got_call; /* of it, and of the call */
};

static void pause_ms(int ms)
{
	const struct timespec t = { ms / 1000, ms % 1000 * 1000000L };

	nanosleep(&t, NULL);
}

static bool small(const struct ptc_admin_range *r)
{
	return !r->ranked && r->length && r->length <= SMALL;
}

/* The call that the next ranges are asked for with. */
static struct call call_of(const struct ahead *h)
{
	struct call c = { .first = h->begun, .n = 1, .bytes = h->ranges[h->begun].length };

	if (!small(&h->ranges[c.first]) || c.first < h->alone_to)
		return c;
	while (c.first + c.n < h->n && c.n < PTC_READ_MANY_RANGES && small(&h->ranges[c.first + c.n]) &&
	       h->ranges[c.first + c.n].length <= PTC_READ_MANY_BYTES - c.bytes)
		c.bytes += h->ranges[c.first + c.n++].length;
	return c;
}

static int begin(struct ahead *h, struct call *c, struct ptc_error *err)
{
	const struct ptc_admin_range *r = &h->ranges[c->first];

	if (c->n > 1)
		return ptc_admin_read_many_begin(h->a, h->job, h->e, r, c->n, &c->reading, err);
	if (!r->length)
		return 0;
	if (r->ranked)
		return ptc_admin_read_rank_begin(h->a, h->job, h->e, r->rank, r->item, r->offset, r->length,
						 &c->reading, err);
	return ptc_admin_read_begin(h->a, h->job, h->e, r->item, r->offset, r->length, &c->reading, err);
}

static int begin_more(struct ahead *h, struct ptc_error *err)
{
	int rc = 0;

	while (!rc && h->begun < h->n && h->next - h->first < h->most) {
		struct call c = call_of(h);

		if (h->next > h->first && h->bytes + c.bytes > AHEAD_BYTES)
			break;
		h->asked = c.n;
		rc = begin(h, &c, err); /* a call that is refused at once may fail here already */
		if (!rc) {
			h->ring[h->next++ % AHEAD_CALLS] = c;
			h->begun += c.n;
			h->bytes += c.bytes;
		}
	}
	return rc;
}

/* All that is begun is given up; the ranges from done on are asked for again. */
static void drop(struct ahead *h, size_t done)
{
	for (; h->first < h->next; h->first++)
		h->ring[h->first % AHEAD_CALLS].reading = ptc_admin_read_end(h->ring[h->first % AHEAD_CALLS].reading);
	h->begun = done;
	h->bytes = 0;
}

static int range_end(struct ahead *h, struct ptc_error *err)
{
	int rc = h->fn->end ? h->fn->end(h->fn->arg, h->range, err) : 0;

	h->range++;
	h->got = 0;
	return rc;
}

static int receive(void *arg, const void *data, size_t len, struct ptc_error *err)
{
	struct ahead *h = arg;
	const struct call *c = &h->ring[h->first % AHEAD_CALLS];
	const uint8_t *from = data;
	int rc = 0;

	h->got_call += len;
	while (!rc && len) {
		bool last =
			h->range == c->first + c->n - 1; /* its end is told once the daemon has said that all is well */
		size_t part = last ? len : (size_t)PTC_MIN((uint64_t)len, h->ranges[h->range].length - h->got);

		rc = h->fn->data(h->fn->arg, h->range, from, part, err);
		h->got += part;
		from += part;
		len -= part;
		if (!rc && !last && h->got == h->ranges[h->range].length)
			rc = range_end(h, err);
	}
	return rc;
}

/* The next call's ranges. Not 0 with h->got_call 0: it failed before it began. */
static int take(struct ahead *h, struct ptc_error *err)
{
	struct call *c = &h->ring[h->first % AHEAD_CALLS];
	int rc;

	h->got = h->got_call = 0;
	rc = begin_more(h, err);
	if (rc)
		return rc;
	h->range = c->first;
	h->asked = c->n;
	if (c->reading)
		rc = ptc_admin_read_take(c->reading, receive, h, err);
	if (rc == 0)
		rc = range_end(h, err);
	if (rc)
		return rc;
	c->reading = ptc_admin_read_end(c->reading);
	h->bytes -= c->bytes;
	h->first++;
	h->refused = 0;
	return 0;
}

static bool stopped(const struct ahead *h)
{
	return h->fn->stop && h->fn->stop(h->fn->arg);
}

/* Whether what failed before its first byte is asked for again; then it is, from done on. */
static bool again(struct ahead *h, size_t done, int rc)
{
	size_t many = h->asked;

	if (many > 1 && rc == PTC_EVERSION && !h->got_call) { /* also when stopped: that is no reason to fail with */
		h->alone_to = h->n;
		drop(h, done);
		return true;
	}
	if (h->got_call || stopped(h))
		return false;
	if (many > 1 && rc != PTC_ELIMIT) {
		h->alone_to = done + many;
	} else if (rc == PTC_ELIMIT && h->refused++ < REFUSED_MAX) {
		if (many > 1 && h->refused == REFUSED_MANY)
			h->alone_to = done + many;
		h->most = h->most / 2 ? h->most / 2 : 1;
		drop(h, done);
		pause_ms(REFUSED_PAUSE);
		return true;
	} else {
		return false;
	}
	drop(h, done);
	return true;
}

int ptc_admin_read_ranges(struct ptc_admin *a, const char *job, const struct ptc_admin_export *e,
			  const struct ptc_admin_range *ranges, size_t n, const struct ptc_admin_ranges_fn *given,
			  struct ptc_error *err)
{
	struct ptc_admin_ranges_fn fns, *fn = &fns;
	int rc = PTC_ADMIN_TAKE(ranges_fn, given, &fns, err);
	struct ahead h = { .a = a,
			   .job = job,
			   .e = e,
			   .ranges = ranges,
			   .n = n,
			   .fn = fn,
			   .most = !rc && fn->ahead && fn->ahead < AHEAD_CALLS ? fn->ahead : AHEAD_CALLS };
	size_t done = 0; /* ranges */

	while (!rc && done < n) {
		rc = take(&h, err);
		if (!rc)
			done = h.range;
		else if (again(&h, done, rc))
			rc = 0;
	}
	drop(&h, done);
	return rc;
}
