/* SPDX-License-Identifier: Apache-2.0 */
/* The cache beside a count of what was dropped, alone and among threads. */
#include "base/alloc.h"
#include "base/cache/counted_cache.h"
#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct value {
	struct ptc_cached cached;
	int number;
};

static atomic_int dropped, last;

static void drop(struct ptc_cached *cached)
{
	struct value *v = (struct value *)cached;

	last = v->number;
	dropped++;
	v->number = -1; /* who still reads it sees that */
	ptc_free(v);
}

static struct value *make(int number)
{
	struct value *v = ptc_calloc(1, sizeof *v);

	ptc_require(v);
	v->number = number;
	return v;
}

static struct value *add(struct ptc_cache *c, const char *key, int number)
{
	return (struct value *)ptc_cache_add(c, key, &make(number)->cached);
}

static void what_nobody_uses_goes_in_order(void **state)
{
	struct ptc_cache c;
	struct value *v[4];

	dropped = 0;
	ptc_cache_init(&c, 2, drop);
	assert_null(ptc_cache_find(&c, "a"));
	for (int i = 0; i < 4; i++)
		v[i] = add(&c, (char[]){ (char)('a' + i), 0 }, i);
	assert_int_equal(dropped, 0); /* all are in use */
	for (int i = 0; i < 4; i++) {
		assert_ptr_equal(ptc_cache_find(&c, v[i]->cached.key), &v[i]->cached);
		ptc_cached_unref(&v[i]->cached);
	}
	ptc_cached_unref(&v[3]->cached);
	ptc_cached_unref(&v[0]->cached);
	assert_int_equal(dropped, 0);
	ptc_cached_unref(&v[1]->cached); /* of 3, 1 and 0, the last was asked for longest ago */
	assert_int_equal(dropped, 1);
	assert_int_equal(last, 0);
	assert_null(ptc_cache_find(&c, "a"));
	ptc_cached_ref(&v[2]->cached);
	ptc_cached_unref(&v[2]->cached);
	assert_int_equal(v[2]->number, 2);
	ptc_cached_unref(&v[2]->cached);
	assert_int_equal(dropped, 2);
	assert_int_equal(last, 1);
	ptc_cached_unref(NULL);
	ptc_cache_done(&c);
	assert_int_equal(dropped, 4);
	ptc_cache_done(&c);
	assert_int_equal(dropped, 4);
}

static void the_first_of_two_stays(void **state)
{
	struct ptc_cache c;
	struct value *a, *b;

	dropped = 0;
	ptc_cache_init(&c, 0, drop);
	a = add(&c, "key", 1);
	b = add(&c, "key", 2);
	assert_ptr_equal(a, b);
	assert_int_equal(dropped, 1);
	assert_int_equal(last, 2);
	ptc_cached_unref(&a->cached);
	assert_int_equal(b->number, 1);
	ptc_cached_unref(&b->cached);
	assert_int_equal(dropped, 2); /* of those that nobody uses it keeps none */
	ptc_cache_done(&c);
}

static void *use(void *arg)
{
	struct ptc_cache *c = arg;

	for (int i = 0; i < 20000; i++) {
		int number = i % 7;
		char key[8];
		struct value *v;

		snprintf(key, sizeof key, "k%d", number);
		v = (struct value *)ptc_cache_find(c, key);
		v = v ? v : add(c, key, number);
		ptc_require(v->number == number);
		ptc_cached_unref(&v->cached);
	}
	return NULL;
}

static void threads_never_see_one_that_was_dropped(void **state)
{
	struct ptc_cache c;
	pthread_t threads[4];
	int64_t live = ptc_alloc_live();

	ptc_cache_init(&c, 1, drop);
	for (size_t i = 0; i < PTC_ARRAY_LEN(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, use, &c), 0);
	for (size_t i = 0; i < PTC_ARRAY_LEN(threads); i++)
		pthread_join(threads[i], NULL);
	ptc_cache_done(&c);
	assert_int_equal(ptc_alloc_live(), live);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_nobody_uses_goes_in_order),
		cmocka_unit_test(the_first_of_two_stays),
		cmocka_unit_test(threads_never_see_one_that_was_dropped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
