/* SPDX-License-Identifier: Apache-2.0 */
/* How long a node is quarantined. Times are in seconds here. */
#include "daemon/cluster/loss/quarantine_doc.h"

#include "base/alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

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

/* By way of etcd, to a daemon whose clocks show other times. */
static void tell(struct ptc_quarantine *from, int64_t from_s, struct ptc_quarantine *to, int64_t to_s)
{
	char *text = ptc_quarantine_encode(from, from_s * S, 1700000000000);
	struct ptc_quarantine now;
	struct ptc_error err = PTC_ERROR_INIT;

	assert_int_equal(ptc_quarantine_decode(text, strlen(text), to_s * S, 1700000000000, &now, &err), 0);
	ptc_quarantine_take(to, &now);
	assert_int_equal(ptc_quarantine_decode(text, strlen(text), from_s * S, 1700000000000, &now, &err), 0);
	ptc_quarantine_take(from, &now);
	ptc_free(text);
}

/* A daemon that has seen nothing goes on from what another one has counted. */
static void others_go_on(void **state)
{
	struct ptc_quarantine a = { 0 }, b = { 0 };

	(void)state;
	assert_false(ptc_quarantine_ahead(&a));
	(void)after(&a, 60, 100, 130);
	assert_int_equal(after(&a, 60, 200, 230), 60);
	assert_true(ptc_quarantine_ahead(&a));
	tell(&a, 240, &b, 5); /* b has just been started */
	assert_false(ptc_quarantine_ahead(&a) || ptc_quarantine_ahead(&b));
	assert_int_equal(b.losses, 2);
	assert_int_equal(ptc_quarantine_left(&b, 5 * S), 50 * S);
	ptc_quarantine_lost(&b, a.life, 6 * S); /* it sees the end of that life, too, which has counted */
	assert_int_equal(b.losses, 2);
	ptc_quarantine_lost(&b, a.life + 1, 60 * S);
	assert_true(ptc_quarantine_ahead(&b));
	ptc_quarantine_back(&b, a.life + 1, 60 * S, 70 * S);
	assert_int_equal(ptc_quarantine_left(&b, 70 * S), 120 * S);
	tell(&b, 80, &a, 315);
	assert_int_equal(a.losses, 3);
	assert_int_equal(ptc_quarantine_left(&a, 315 * S), 110 * S);
	ptc_quarantine_lost(&a, b.life, 316 * S);
	assert_true(a.losses == 3 && !ptc_quarantine_ahead(&a));
	assert_int_equal(after(&b, 60, 200 + 3690, 4000), 0); /* it forgets by what it was told, too */
}

/* What etcd has is less than what this daemon knows: that stays, and is written. */
static void knows_more(void **state)
{
	struct ptc_quarantine a = { 0 }, b = { 0 };

	(void)state;
	(void)after(&a, 60, 100, 130);
	(void)after(&b, 60, 10, 20);
	(void)after(&b, 60, 100, 130);
	tell(&a, 140, &b, 140);
	assert_true(b.losses == 2 && ptc_quarantine_ahead(&b) && !ptc_quarantine_ahead(&a));
	tell(&b, 140, &a, 140);
	assert_true(a.losses == 2 && !ptc_quarantine_ahead(&b));
	assert_int_equal(ptc_quarantine_left(&a, 140 * S), 50 * S);
	ptc_quarantine_take(&b, &(struct ptc_quarantine){ 0 }); /* another etcd */
	assert_true(b.losses == 2 && ptc_quarantine_ahead(&b));
}

static void bad_documents(void **state)
{
	static const char *const bad[] = { "",
					   "[]",
					   "{\"version\":1}",
					   "{\"version\":1,\"losses\":0,\"life\":3,\"lost_ms\":5}",
					   "{\"version\":1,\"losses\":2,\"life\":-1,\"lost_ms\":5}",
					   "{\"version\":1,\"losses\":2,\"life\":3,\"lost_ms\":\"x\"}" };
	static const char far[] = "{\"version\":1,\"losses\":2,\"life\":3,\"lost_ms\":9000000000000000000,"
				  "\"until_ms\":9000000000000000000}";
	static const char past[] = "{\"version\":1,\"losses\":2,\"life\":3,\"lost_ms\":-9000000000000000000,"
				   "\"until_ms\":-9000000000000000000}";
	struct ptc_quarantine q = { .losses = 7 };

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct ptc_error err = PTC_ERROR_INIT;

		assert_int_not_equal(ptc_quarantine_decode(bad[i], strlen(bad[i]), S, 1, &q, &err), 0);
		assert_true(q.losses == 7 && err.text[0]);
	}
	assert_int_equal(ptc_quarantine_decode(far, strlen(far), S, 1, &q, NULL), 0);
	assert_int_equal(ptc_quarantine_left(&q, S), PTC_QUARANTINE_MAX_NS); /* a clock that is wrong */
	assert_int_equal(q.lost_ns, S);
	assert_int_equal(ptc_quarantine_decode(past, strlen(past), S, 1, &q, NULL), 0);
	assert_int_equal(ptc_quarantine_left(&q, S), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(grows_with_each_loss), cmocka_unit_test(counts_once),
		cmocka_unit_test(is_back_from_no_loss), cmocka_unit_test(forgets),
		cmocka_unit_test(can_be_off_or_long),   cmocka_unit_test(others_go_on),
		cmocka_unit_test(knows_more),           cmocka_unit_test(bad_documents),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
