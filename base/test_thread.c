/* SPDX-License-Identifier: Apache-2.0 */
/* What every thread of ours has: a name, blocked signals, and somebody who waits for its end. */
#include "base/check.h"
#include "base/sys/sys.h"
#include "base/sys/thread.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

struct seen {
	char name[PTC_THREAD_NAME_MAX + 1];
	bool term_blocked;
};

static void look(struct seen *s)
{
	sigset_t mask;

	pthread_getname_np(pthread_self(), s->name, sizeof s->name);
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	s->term_blocked = sigismember(&mask, SIGTERM) == 1;
}

static void *joined_main(void *arg)
{
	pthread_barrier_t *named = ((void **)arg)[1];

	pthread_barrier_wait(named); /* the starter names it once it runs */
	look(((void **)arg)[0]);
	return NULL;
}

static void a_joined_thread_has_a_name_and_no_signals(void **state)
{
	pthread_barrier_t named;
	struct seen s = { 0 };
	void *arg[] = { &s, &named };
	pthread_t thread;
	sigset_t mask;

	(void)state;
	pthread_barrier_init(&named, NULL, 2);
	assert_int_equal(ptc_thread_start(&thread, "ptc-fifteen-byt", joined_main, arg, NULL), 0);
	pthread_barrier_wait(&named);
	pthread_join(thread, NULL);
	pthread_barrier_destroy(&named);
	assert_string_equal(s.name, "ptc-fifteen-byt");
	assert_true(s.term_blocked);
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	assert_int_equal(sigismember(&mask, SIGTERM), 0); /* the starter's own mask is as before */
}

struct counted {
	struct seen seen[3];
	atomic_size_t at, ended;
	pthread_barrier_t go;
};

static void counted_main(void *arg)
{
	struct counted *c = arg;

	look(&c->seen[atomic_fetch_add(&c->at, 1)]);
	pthread_barrier_wait(&c->go);
	atomic_fetch_add(&c->ended, 1);
}

static void counted_threads_are_bounded_and_waited_for(void **state)
{
	struct counted c = { 0 };
	struct ptc_thread_count count;
	struct ptc_error err = PTC_ERROR_INIT;

	(void)state;
	pthread_barrier_init(&c.go, NULL, 4);
	ptc_thread_count_init(&count);
	for (int i = 0; i < 3; i++)
		assert_int_equal(ptc_thread_start_counted(&count, 3, "ptc-counted", counted_main, &c, &err), 0);
	assert_int_equal(ptc_thread_start_counted(&count, 3, "ptc-counted", counted_main, &c, &err), PTC_ELIMIT);
	assert_non_null(strstr(err.text, "ptc-counted"));
	assert_int_equal(atomic_load(&c.ended), 0);
	pthread_barrier_wait(&c.go);
	ptc_thread_count_done(&count);
	assert_int_equal(atomic_load(&c.ended), 3);
	pthread_barrier_destroy(&c.go);
	for (size_t i = 0; i < 3; i++) {
		assert_string_equal(c.seen[i].name, "ptc-counted");
		assert_true(c.seen[i].term_blocked);
	}
}

static void a_wait_ends_at_its_time(void **state)
{
	pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	int64_t until = ptc_sys_now_ns() + 20000000;
	pthread_cond_t cond;

	(void)state;
	ptc_cond_init(&cond);
	pthread_mutex_lock(&lock);
	while (ptc_cond_wait_until(&cond, &lock, until))
		;
	assert_true(ptc_sys_now_ns() >= until);
	while (ptc_cond_wait_ms(&cond, &lock, 0))
		;
	pthread_mutex_unlock(&lock);
	pthread_cond_destroy(&cond);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_joined_thread_has_a_name_and_no_signals),
		cmocka_unit_test(counted_threads_are_bounded_and_waited_for),
		cmocka_unit_test(a_wait_ends_at_its_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
