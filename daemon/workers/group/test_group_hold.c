/* SPDX-License-Identifier: Apache-2.0 */
/* For how long ranks are held when etcd was unreachable. The loop does not run in this test; the times are ours. */
#include "daemon/workers/group/hold/group_hold.h"
#include "daemon/workers/group/internal.h"
#include "daemon/workers/process/process.h"

#include "base/sys/sys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
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

/* A lease that comes and goes makes the time longer again and again. Each process's helper has to hear of it: it thaws
 * the process in the end. */
static void helpers_count_anew_when_etcd_answers(void **state)
{
	struct ptc_workers *w = calloc(1, sizeof *w);
	struct job job = { .uuid = "11111111-2222-3333-4444-555555555555" };
	struct worker *frozen = calloc(1, sizeof *frozen), *runs = calloc(1, sizeof *runs);
	struct slot slots[] = { { .worker = frozen }, { .worker = runs }, { .worker = NULL } };
	struct group held = { .job = &job, .slots = slots, .desc.nranks = 3 };
	struct ptc_error err = PTC_ERROR_INIT;
	const char *tmp = getenv("TMPDIR");
	char dir[128], path[140];
	FILE *f;

	(void)state;
	snprintf(dir, sizeof dir, "%.100s/ptc-hold-XXXXXX", tmp ? tmp : "/tmp");
	assert_true(w && frozen && runs && pthread_mutex_init(&w->lock, NULL) == 0 && mkdtemp(dir));
	snprintf(frozen->process.dir, sizeof frozen->process.dir, "%s", dir);
	snprintf(runs->process.dir, sizeof runs->process.dir, "%s/none", dir);
	frozen->hold.asked = true;
	job.groups = &held;
	w->jobs = &job;
	held.held_from_ns = ptc_sys_now_ns() - 290 * SECOND;
	snprintf(path, sizeof path, "%s/held", dir);
	f = fopen(path, "w");
	assert_non_null(f);
	fprintf(f, "since %020lld\n", (long long)(held.held_from_ns / SECOND));
	assert_int_equal(fclose(f), 0);
	assert_true(ptc_process_held_s(dir) >= 290);
	ptc_workers_undecided(w, true);
	ptc_workers_undecided(w, false);
	assert_in_range(ptc_process_held_s(dir), 0, 200);
	assert_int_equal(ptc_process_held_s(runs->process.dir), -1);
	assert_int_equal(ptc_sys_remove_tree(dir, "test", &err), 0);
	pthread_mutex_destroy(&w->lock);
	free(frozen);
	free(runs);
	free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(the_time_begins_when_etcd_answers),
					    cmocka_unit_test(helpers_count_anew_when_etcd_answers) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
