/* SPDX-License-Identifier: Apache-2.0 */
/* For how long ranks are held when etcd was unreachable. The loop does not run in this test; the times are ours. */
#include "daemon/workers/group/hold/group_hold.h"
#include "daemon/workers/group/internal.h"

#include "base/sys/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define SECOND INT64_C(1000000000)

/* While etcd is unreachable the time is made longer from time to time. From when it answers, somebody has all of the
 * time to ask for the ranks: new leases, a new controller, and the loss of a node take some of it. */
static void the_time_begins_when_etcd_answers(void **state)
{
	struct ptc_workers *w = calloc(1, sizeof *w);
	struct job job = { .uuid = "11111111-2222-3333-4444-555555555555" };
	struct group held = { .job = &job }, other = { .job = &job };
	int64_t now;

	(void)state;
	assert_true(w && pthread_mutex_init(&w->lock, NULL) == 0);
	held.next = &other;
	job.groups = &held;
	w->jobs = &job;
	now = ptc_sys_now_ns();
	held.held_from_ns = now - 40 * SECOND;
	held.held_until_ns = now + (WORKERS_DECIDES_MS / 2000 + 1) * SECOND; /* not made longer yet */
	held.held_most_ns = now + 200 * SECOND;
	ptc_workers_undecided(w, true);
	ptc_workers_undecided(w, true);
	now = ptc_sys_now_ns();
	ptc_workers_undecided(w, false);
	assert_true(held.held_until_ns >= now + WORKERS_DECIDES_MS / 1000 * SECOND);
	assert_true(held.held_most_ns >= held.held_until_ns);
	assert_true(!other.held_from_ns && !other.held_until_ns);
	held.held_until_ns = now + SECOND; /* once, and not at each look */
	ptc_workers_undecided(w, false);
	assert_true(held.held_until_ns == now + SECOND);
	pthread_mutex_destroy(&w->lock);
	free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(the_time_begins_when_etcd_answers) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
