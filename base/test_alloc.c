/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator's bound: what counts, what is refused, what races cannot pass. */
#include "base/alloc.h"
#include "base/status.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MIB (1u << 20)

static int unbounded(void **state)
{
	(void)state;
	ptc_alloc_limit_set(UINT64_MAX);
	return ptc_alloc_bytes() == 0 ? 0 : -1;
}

static void bytes_follow_every_call(void **state)
{
	char *a = ptc_malloc(3 * MIB), *b = ptc_calloc(2, MIB), *c = ptc_asprintf("%d", 7), *d;

	(void)state;
	assert_true(ptc_alloc_bytes() >= 5 * MIB && ptc_alloc_bytes() < 5 * MIB + 65536);
	d = ptc_realloc(a, MIB);
	assert_non_null(d);
	assert_true(ptc_alloc_bytes() >= 3 * MIB && ptc_alloc_bytes() < 3 * MIB + 65536);
	d = ptc_reallocarray(d, 2, MIB);
	assert_non_null(d);
	assert_true(ptc_alloc_bytes() >= 4 * MIB && ptc_alloc_bytes() < 4 * MIB + 65536);
	assert_true(ptc_alloc_peak() >= 5 * MIB);
	ptc_free(b);
	ptc_free(c);
	ptc_free(d);
	assert_true(ptc_alloc_bytes() == 0);
}

static void the_bound_is_kept(void **state)
{
	char *a, *b;

	(void)state;
	ptc_alloc_limit_set(4 * MIB);
	a = ptc_malloc(3 * MIB);
	assert_non_null(a);
	memset(a, 7, 3 * MIB);
	assert_null(ptc_malloc(2 * MIB));
	assert_null(ptc_calloc(2, MIB));
	assert_null(ptc_calloc(SIZE_MAX / 2, 3));
	assert_null(ptc_realloc(a, 64 * MIB));
	assert_true(a[3 * MIB - 1] == 7);
	assert_true(ptc_alloc_bytes() < 3 * MIB + 65536); /* refusals leave nothing behind */
	b = ptc_malloc(MIB / 2);
	assert_non_null(b);
	ptc_free(a);
	a = ptc_malloc(3 * MIB);
	assert_non_null(a);
	ptc_free(a);
	ptc_free(b);
	ptc_alloc_trim();
}

/* The error says how much was asked for, and how much there was; a failure that is not the bound's says nothing. */
static void the_error_has_the_numbers(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	char want[200];

	(void)state;
	ptc_alloc_limit_set(ptc_alloc_bytes() + 1000);
	snprintf(want, sizeof want, "out of memory: 5000 more bytes are needed, 1000 of %llu are free",
		 (unsigned long long)ptc_alloc_bytes() + 1000);
	assert_null(ptc_calloc(50, 100));
	ptc_alloc_limit_set(UINT64_MAX);
	assert_int_equal(ptc_nomem(&err), PTC_ENOMEM);
	assert_string_equal(err.text, want);
	err = (struct ptc_error)PTC_ERROR_INIT;
	ptc_alloc_fail_at(1);
	assert_null(ptc_malloc(1));
	ptc_alloc_fail_at(0);
	assert_int_equal(ptc_nomem(&err), PTC_ENOMEM);
	assert_string_equal(err.text, "out of memory");
}

static atomic_int got;

static void *take(void *arg)
{
	void **slot = arg;

	*slot = ptc_malloc(MIB);
	if (*slot)
		atomic_fetch_add(&got, 1);
	return NULL;
}

static void threads_do_not_pass_it_together(void **state)
{
	pthread_t t[16];
	void *slot[16];

	(void)state;
	for (int round = 0; round < 50; round++) {
		ptc_alloc_limit_set(4 * MIB + 65536);
		atomic_store(&got, 0);
		for (int i = 0; i < 16; i++)
			assert_int_equal(pthread_create(&t[i], NULL, take, &slot[i]), 0);
		for (int i = 0; i < 16; i++)
			pthread_join(t[i], NULL);
		assert_int_equal(atomic_load(&got), 4);
		for (int i = 0; i < 16; i++)
			ptc_free(slot[i]);
		assert_true(ptc_alloc_bytes() == 0);
	}
}

/* Both kinds of growing arrays, beside counts kept here; and that a failure leaves what there was. */
static void arrays_grow(void **state)
{
	uint32_t *v = NULL, cap = 0, before;
	uint64_t *one = NULL;
	size_t grown = 0;

	(void)state;
	assert_true(PTC_ROOM(v, 0, cap) && !v && cap == 0);
	for (uint32_t n = 0; n < 5000; n++) {
		before = cap;
		assert_true(PTC_ROOM(v, n + 1, cap));
		assert_true(cap > n && (cap == before || before == n));
		grown += cap != before;
		memset(v + before, 0xff, (cap - before) * sizeof *v); /* the sanitizer sees whether it is there */
		v[n] = n * 7;
		assert_true(PTC_MORE(one, n));
		one[n] = n * 11;
	}
	assert_true(grown < 25);
	assert_true(PTC_ROOM(v, 100000, cap) && cap == 100000);
	v[99999] = 1;
	ptc_alloc_limit_set(ptc_alloc_bytes() + 1000);
	assert_false(PTC_ROOM(v, 100001, cap));
	assert_false(PTC_ROOM(v, SIZE_MAX, cap));
	assert_int_equal(cap, 100000);
	assert_true(PTC_MORE(one, 5000));
	assert_false(PTC_MORE(one, 8192));
	ptc_alloc_limit_set(UINT64_MAX);
	for (uint32_t n = 0; n < 5000; n++)
		assert_true(v[n] == n * 7 && one[n] == n * 11);
	ptc_free(v);
	ptc_free(one);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(bytes_follow_every_call, unbounded, unbounded),
		cmocka_unit_test_setup_teardown(arrays_grow, unbounded, unbounded),
		cmocka_unit_test_setup_teardown(the_bound_is_kept, unbounded, unbounded),
		cmocka_unit_test_setup_teardown(the_error_has_the_numbers, unbounded, unbounded),
		cmocka_unit_test_setup_teardown(threads_do_not_pass_it_together, unbounded, unbounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
