/* SPDX-License-Identifier: Apache-2.0 */
/* ctl_run_in_box against a walk over every byte. PTC_TEST_SEED overrides; the seed is printed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/test_seed.h"
#include "client/ctl/homes/homes.h"

#include <stdlib.h>

static bool has(const struct ptc_box *box, const int64_t *shape, uint64_t offset)
{
	int64_t at = (int64_t)offset;

	for (uint32_t d = box->ndim; d-- > 0; at /= shape[d])
		if (at % shape[d] < box->off[d] || at % shape[d] >= box->off[d] + box->ext[d])
			return false;
	return true;
}

static uint64_t walk(const struct ptc_box *box, const int64_t *shape, uint64_t offset, uint64_t bytes)
{
	uint64_t n = 0;

	while (offset + n < bytes && has(box, shape, offset + n))
		n++;
	return n;
}

static void test_runs(void **state)
{
	(void)state;
	srandom((unsigned)ptc_test_seed());
	for (int round = 0; round < 2000; round++) {
		struct ptc_box box = { .ndim = 1 + (uint32_t)random() % 4 };
		int64_t shape[PTC_MAX_DIMS];
		uint64_t bytes = 1;

		for (uint32_t d = 0; d < box.ndim; d++) {
			shape[d] = 1 + random() % 5;
			box.off[d] = random() % 2 ? 0 : random() % shape[d];
			box.ext[d] = random() % 2 ? shape[d] - box.off[d] : 1 + random() % (shape[d] - box.off[d]);
			bytes *= (uint64_t)shape[d];
		}
		for (uint64_t at = 0; at < bytes; at++) {
			const uint64_t run = ctl_run_in_box(&box, box.ndim, shape, at);

			/* a run may end at a row that goes on in the next one of the box, but never too late */
			assert_int_equal(run > 0, has(&box, shape, at));
			assert_int_equal(run, walk(&box, shape, at, bytes));
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_runs) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
