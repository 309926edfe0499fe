/* SPDX-License-Identifier: Apache-2.0 */
/* How long a rank that is held waits by itself: not counted while ptcd has it frozen, however long that is. The clock
 * and the sleep are the test's. */
#include "client/lib/internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define MINUTE_MS INT64_C(60000)

int __wrap_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_nanosleep(const struct timespec *ts, struct timespec *left);

static struct ptc_local_page page;
static int64_t now_ms;
static unsigned naps, frozen_naps; /* the first ones end after a quarter of an hour each */
static unsigned lets_on_at;        /* at that nap ptcd lets the rank on, to one update; 0: never */
static bool gone_on;               /* the rank has ended the hold by itself */

int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
	(void)id;
	*ts = (struct timespec){ .tv_sec = now_ms / 1000, .tv_nsec = now_ms % 1000 * 1000000 };
	return 0;
}

int __wrap_nanosleep(const struct timespec *ts, struct timespec *left)
{
	(void)ts;
	(void)left;
	gone_on = gone_on || !atomic_load(&page.hold);
	now_ms += naps++ < frozen_naps ? 15 * MINUTE_MS : 2;
	if (naps == lets_on_at)
		atomic_store(&page.hold_from, 9);
	return 0;
}

/* At step 8, held. When its update has begun. */
static void update(unsigned frozen, unsigned lets_on)
{
	static ptc_client c;

	memset(&c, 0, sizeof c);
	memset(&page, 0, sizeof page);
	c.page = &page;
	c.running = c.stepped = true;
	c.next_step = 9;
	atomic_store(&page.state, ptc_local_mark(8, true));
	atomic_store(&page.hold, 1);
	naps = 0;
	frozen_naps = frozen;
	lets_on_at = lets_on;
	gone_on = false;
	ptc_update_begin(&c);
	assert_false(ptc_local_whole(&page));
}

static void frozen_for_long(void **state)
{
	(void)state;
	update(3, 40);
	assert_int_equal(naps, 40);
	assert_true(atomic_load(&page.hold) && !gone_on);
}

static void ptcd_is_gone(void **state)
{
	int64_t began = now_ms;

	(void)state;
	update(0, 0);
	assert_false(atomic_load(&page.hold));
	assert_in_range(now_ms - began, CLIENT_HELD_MAX_MS, CLIENT_HELD_MAX_MS + 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(frozen_for_long), cmocka_unit_test(ptcd_is_gone) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
