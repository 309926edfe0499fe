/* SPDX-License-Identifier: Apache-2.0 */
/* Samples at random places of an epoch's order, computed (order/), one by one and in runs; and what would be read
 * instead: numbers at random places of a table, which takes 8 bytes a sample.
 *
 * Happy path: every place that was computed leads back to where it came from. Failure modes: one that does not:
 * PTC_ECORRUPT. */
#include "tests/bench/measure.h"

#include "base/check.h"
#include "order/order.h"

#include <inttypes.h>
#include <string.h>

#define RUN  64 /* of neighbours, as a rank's micro batches are */
#define SEED 7

/* Places all over, none near the one before it. */
static uint64_t place(uint64_t i, uint64_t n)
{
	return i * UINT64_C(0x9E3779B97F4A7C15) % n;
}

static struct measured at_random(const struct ptc_order *o, int64_t count, uint64_t *ret_sum)
{
	struct measure_clock c = measure_start();
	uint64_t sum = 0;

	for (int64_t i = 0; i < count; i++)
		sum += ptc_order_at(o, 1, place((uint64_t)i, o->nsamples));
	*ret_sum = sum;
	return measure_end(&c, count);
}

static struct measured in_runs(const struct ptc_order *o, int64_t count, uint64_t *ret_sum)
{
	struct measure_clock c = measure_start();
	uint64_t sum = 0, run[RUN];

	for (int64_t i = 0; i < count; i += RUN) {
		ptc_order_fill(o, o->nsamples + place((uint64_t)i, o->nsamples), RUN, run);
		for (int k = 0; k < RUN; k++)
			sum += run[k];
	}
	*ret_sum = sum;
	return measure_end(&c, count);
}

static struct measured from_table(const struct measure_memory *m, int64_t count, uint64_t *ret_sum)
{
	struct measure_clock c = measure_start();
	uint64_t sum = 0, v;

	for (int64_t i = 0; i < count; i++) {
		memcpy(&v, m->src + place((uint64_t)i, m->bytes / sizeof v) * sizeof v, sizeof v);
		sum += v;
	}
	*ret_sum = sum;
	return measure_end(&c, count);
}

int measure_order(const struct measure_memory *m, uint64_t samples, int64_t count, struct measure_order_round *ret,
		  struct ptc_error *err)
{
	volatile uint64_t kept; /* else nothing would be computed */
	struct ptc_order o;
	uint64_t sum;

	if (!ptc_order_init(&o, samples, SEED))
		return ptc_error_set(err, PTC_EINVAL, "no order of %" PRIu64 " samples", samples);
	for (uint64_t i = 0; i < 1000; i++)
		if (ptc_order_find(&o, 1, ptc_order_at(&o, 1, place(i, samples))) != place(i, samples))
			return ptc_error_set(err, PTC_ECORRUPT, "place %" PRIu64 " of %" PRIu64 " is not found again",
					     place(i, samples), samples);
	ret->at = at_random(&o, count, &sum);
	kept = sum;
	ret->fill = in_runs(&o, count, &sum);
	kept = sum;
	ret->table = from_table(m, count, &sum);
	kept = sum;
	(void)kept;
	return 0;
}
