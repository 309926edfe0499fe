/* SPDX-License-Identifier: Apache-2.0 */
/* How long a node is quarantined. Times are in seconds here. */
#include "daemon/cluster/loss/quarantine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define S INT64_C(1000000000)

/* Lost at `lost`, back at `back`: seconds of quarantine. */
static int64_t after(struct ptc_quarantine *q, int64_t first, int64_t lost, int64_t back)
{
	ptc_quarantine_lost(q, lost * S - 1, lost * S);
	ptc_quarantine_back(q, lost * S - 1, first * S, back * S);
	return ptc_quarantine_left(q, back * S) / S;
}

static void grows_with_each_loss(void **state)
{
	static const int64_t lengths[] = { 0, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600 };
	struct ptc_quarantine q = { 0 };
	int64_t now = 100;

	(void)state;
	assert_int_equal(ptc_quarantine_left(&q, S), 0);
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		assert_int_equal(after(&q, 60, now, now + 30), lengths[i]);
		if (lengths[i]) {
			assert_int_equal(ptc_quarantine_left(&q, (now + 30 + lengths[i]) * S - 1), 1);
			assert_int_equal(ptc_quarantine_left(&q, (now + 30 + lengths[i]) * S), 0);
		}
		now += 30 + lengths[i] + 3000; /* it stays for less than an hour */
	}
}

/* While etcd does not answer nobody is called lost; afterwards the same node is, again. That is one loss. */
static void counts_once(void **state)
{
	struct ptc_quarantine q = { 0 };

	(void)state;
	for (int64_t t = 20; t < 60; t++)
		ptc_quarantine_lost(&q, 10 * S, t * S);
	ptc_quarantine_back(&q, 10 * S, 60 * S, 60 * S);
	assert_int_equal(ptc_quarantine_left(&q, 60 * S), 0);
	assert_int_equal(after(&q, 60, 70, 80), 60);
}

/* A node that was away for a moment, or that an operator called lost, has no loss to be quarantined for. */
static void is_back_from_no_loss(void **state)
{
	struct ptc_quarantine q = { 0 };

	(void)state;
	ptc_quarantine_back(&q, 4 * S, 60 * S, 5 * S);
	assert_int_equal(ptc_quarantine_left(&q, 5 * S), 0);
	(void)after(&q, 60, 10, 20);
	assert_int_equal(after(&q, 60, 30, 40), 60);
	ptc_quarantine_back(&q, 200 * S, 60 * S, 210 * S);
	assert_int_equal(ptc_quarantine_left(&q, 210 * S), 0);
}

static void forgets(void **state)
{
	struct ptc_quarantine q = { 0 };

	(void)state;
	(void)after(&q, 60, 10, 20);
	assert_int_equal(after(&q, 60, 10 + 3600, 3700), 60);         /* the losses are an hour apart */
	assert_int_equal(after(&q, 60, 3760 + 3600, 7400), 120);      /* its quarantine had ended an hour ago */
	assert_int_equal(after(&q, 60, 7520 + 3601, 7520 + 3700), 0); /* longer: as if it had never been lost */
	assert_int_equal(after(&q, 60, 12000, 12001), 60);
}

static void can_be_off_or_long(void **state)
{
	struct ptc_quarantine q = { 0 };

	(void)state;
	for (int i = 0; i < 50; i++)
		assert_int_equal(after(&q, 0, 10 + i, 10 + i), 0);
	assert_int_equal(after(&q, 7200, 100, 101), 3600);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(grows_with_each_loss), cmocka_unit_test(counts_once),
		cmocka_unit_test(is_back_from_no_loss), cmocka_unit_test(forgets),
		cmocka_unit_test(can_be_off_or_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
