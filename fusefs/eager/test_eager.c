/* SPDX-License-Identifier: Apache-2.0 */
/* When a thread that waits for requests stays awake. Times are the test's own, but for the waits on a pipe. */
#include "fusefs/eager/eager.h"

#include "base/sys/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <unistd.h>

#define QUICK 2000   /* ns */
#define SLOW  150000 /* more than a quick request waits */

static void row_of(struct fs_eager *e, unsigned n)
{
	while (n--)
		fs_eager_came(e, QUICK, true);
}

static void test_row(void **state)
{
	struct fs_eager e = { 0 };

	assert_false(fs_eager_begins(&e, 1));
	row_of(&e, FS_EAGER_ROW - 1);
	assert_false(fs_eager_begins(&e, 1));
	row_of(&e, 1);
	assert_true(fs_eager_begins(&e, 1));
	fs_eager_came(&e, SLOW, true); /* the program pauses between requests */
	assert_false(fs_eager_begins(&e, 1));
	row_of(&e, FS_EAGER_ROW);
	fs_eager_came(&e, QUICK, false); /* a request that takes long */
	assert_false(fs_eager_begins(&e, 1));
}

static void test_nothing_comes(void **state)
{
	struct fs_eager e = { 0 };

	row_of(&e, FS_EAGER_ROW);
	assert_true(fs_eager_again(&e, 0, 0, 500));
	assert_true(fs_eager_again(&e, 0, FS_EAGER_NS - 500, FS_EAGER_NS - 1));
	assert_false(fs_eager_again(&e, 0, FS_EAGER_NS - 1, FS_EAGER_NS));
	row_of(&e, FS_EAGER_LONG); /* it was a short row, so the next one has to wait */
	assert_false(fs_eager_begins(&e, FS_EAGER_NS));
	fs_eager_came(&e, SLOW, true);
	row_of(&e, FS_EAGER_ROW - 1);
	assert_false(fs_eager_begins(&e, FS_EAGER_NS));
	row_of(&e, 1);
	assert_true(fs_eager_begins(&e, FS_EAGER_NS));
}

/* A program that pauses now and then loses little by it. */
static void test_long_row_ends(void **state)
{
	struct fs_eager e = { 0 };

	row_of(&e, FS_EAGER_LONG);
	assert_false(fs_eager_again(&e, 0, FS_EAGER_NS, FS_EAGER_NS));
	row_of(&e, FS_EAGER_ROW - 1);
	assert_false(fs_eager_begins(&e, FS_EAGER_NS));
	row_of(&e, 1);
	assert_true(fs_eager_begins(&e, FS_EAGER_NS));
}

/* Another thread ran where this one yielded. */
static void test_processor_is_wanted(void **state)
{
	struct fs_eager e = { 0 };
	int64_t now = 1000 + FS_EAGER_AWAY_NS;

	row_of(&e, FS_EAGER_ROW);
	assert_false(fs_eager_again(&e, 0, 1000, now));
	row_of(&e, FS_EAGER_ROW);
	assert_false(fs_eager_begins(&e, now + FS_EAGER_CALM_NS - 1));
	assert_true(fs_eager_begins(&e, now + FS_EAGER_CALM_NS));
}

static void test_pipe(void **state)
{
	struct fs_eager e = { 0 };
	int ends[2];

	assert_int_equal(0, pipe2(ends, O_CLOEXEC));
	fs_eager_wait(&e, ends[0], ptc_sys_now_ns()); /* without a row it does not even look */
	row_of(&e, FS_EAGER_ROW);
	fs_eager_wait(&e, ends[0], ptc_sys_now_ns()); /* ends although nothing comes */
	assert_false(fs_eager_begins(&e, ptc_sys_now_ns()));
	e = (struct fs_eager){ 0 };
	row_of(&e, FS_EAGER_ROW);
	assert_int_equal(1, write(ends[1], "x", 1));
	fs_eager_wait(&e, ends[0], ptc_sys_now_ns());
	assert_true(fs_eager_begins(&e, ptc_sys_now_ns())); /* it saw the byte at its first look */
	close(ends[1]);
	assert_int_equal(1, read(ends[0], &(char){ 0 }, 1));
	fs_eager_wait(&e, ends[0], ptc_sys_now_ns()); /* the end of the file is for read to find */
	assert_true(fs_eager_begins(&e, ptc_sys_now_ns()));
	close(ends[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_row),           cmocka_unit_test(test_nothing_comes),
		cmocka_unit_test(test_long_row_ends), cmocka_unit_test(test_processor_is_wanted),
		cmocka_unit_test(test_pipe),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
