/* SPDX-License-Identifier: Apache-2.0 */
/* What a daemon remembers of events, beside an etcd that keeps nothing: the functions of the coordination client and of
 * the cluster that job_events.c calls are ours. Whoever reads what is remembered does not keep others from writing
 * events: the loop is one of them. Shown by a writer that is started in the middle of reading, and waited for. */
#include "daemon/cluster/job_events.h"

#include "base/alloc.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define JOB   "00000000-0000-4000-8000-000000000001"
#define OTHER "00000000-0000-4000-8000-000000000002"

const char *ptc_cluster_self(const struct ptc_cluster *c)
{
	return "n0";
}

int ptc_cluster_run(struct ptc_cluster *c, const char *lane, void (*work)(void *arg, struct ptc_etcd *etcd),
		    void (*done)(void *arg), void *arg)
{
	work(arg, NULL);
	return 0;
}

int ptc_etcd_get(struct ptc_etcd *e, const char *key, bool prefix, size_t max_keys, struct ptc_etcd_kvs *ret_kvs,
		 struct ptc_error *err)
{
	return PTC_ECOORD;
}

int ptc_etcd_get_keys(struct ptc_etcd *e, const char *prefix, struct ptc_etcd_kvs *ret_kvs, struct ptc_error *err)
{
	return PTC_ECOORD;
}

int ptc_etcd_txn(struct ptc_etcd *e, const struct ptc_etcd_compare *cmp, size_t ncmp, const struct ptc_etcd_op *ops,
		 size_t nops, const char *point, bool *ret_succeeded, int64_t *ret_revision, struct ptc_error *err)
{
	*ret_succeeded = true;
	return 0;
}

void ptc_etcd_kvs_done(struct ptc_etcd_kvs *kvs)
{
}

/* ---- a writer in the middle of reading ---- */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	pthread_t thread;
	bool wanted, begun, written, in_time;
} writer = { .lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER };

static void *write_one(void *arg)
{
	ptc_event(NULL, JOB, "stop", "written meanwhile");
	pthread_mutex_lock(&writer.lock);
	writer.written = true;
	pthread_cond_signal(&writer.cond);
	pthread_mutex_unlock(&writer.lock);
	return NULL;
}

/* The time is how long a failure takes, not what is measured. */
static void write_meanwhile(void)
{
	struct timespec until;
	int e = 0;

	writer.begun = true;
	assert_int_equal(pthread_create(&writer.thread, NULL, write_one, NULL), 0);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 20;
	pthread_mutex_lock(&writer.lock);
	while (!writer.written && !e)
		e = pthread_cond_timedwait(&writer.cond, &writer.lock, &until);
	writer.in_time = writer.written;
	pthread_mutex_unlock(&writer.lock);
}

int __real_ptc_json_load(const char *what, const char *text, size_t len, json_t **ret, struct ptc_error *err);
int __wrap_ptc_json_load(const char *what, const char *text, size_t len, json_t **ret, struct ptc_error *err);
int __wrap_ptc_json_load(const char *what, const char *text, size_t len, json_t **ret, struct ptc_error *err)
{
	if (writer.wanted && !writer.begun)
		write_meanwhile();
	return __real_ptc_json_load(what, text, len, ret, err);
}

static size_t remembered(const char *uuid, const char *text)
{
	struct ptc_read_events all = { 0 };
	size_t n = 0;

	assert_int_equal(ptc_events_remembered(uuid, &all), 0);
	for (size_t i = 0; i < all.n; i++) {
		const json_t *ev = all.v[i].json;

		assert_true(json_integer_value(json_object_get(ev, "number")) > 0);
		n += !text || strcmp(json_string_value(json_object_get(ev, "text")), text) == 0;
	}
	ptc_read_events_done(&all);
	return n;
}

static void a_reader_keeps_no_writer_waiting(void **state)
{
	ptc_event(NULL, JOB, "created", "first");
	ptc_event(NULL, OTHER, "created", "of another job");
	ptc_event(NULL, JOB, "committed", "second");
	writer.wanted = true;
	assert_int_equal(remembered(JOB, NULL), 2); /* as of when it began */
	assert_true(writer.begun);
	pthread_join(writer.thread, NULL);
	assert_true(writer.in_time);
	assert_int_equal(remembered(JOB, "written meanwhile"), 1);
	assert_int_equal(remembered(JOB, NULL), 3);
	assert_int_equal(remembered(OTHER, NULL), 1);
	ptc_events_free();
	assert_int_equal(ptc_alloc_live(), 0);
}

/* Only so many lines are kept, the newest, however many jobs they are of. */
static void the_oldest_are_forgotten(void **state)
{
	ptc_event(NULL, JOB, "created", "oldest");
	for (int i = 0; i < 4096; i++)
		ptc_event(NULL, i % 2 ? JOB : OTHER, "step", "line %d", i);
	assert_int_equal(remembered(JOB, "oldest"), 0);
	assert_int_equal(remembered(OTHER, "line 0"), 1);
	assert_int_equal(remembered(JOB, NULL), 2048);
	ptc_events_free();
	assert_int_equal(ptc_alloc_live(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_reader_keeps_no_writer_waiting),
		cmocka_unit_test(the_oldest_are_forgotten),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
