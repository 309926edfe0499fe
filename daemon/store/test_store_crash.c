/* SPDX-License-Identifier: Apache-2.0 */
/* A child runs a scenario and is killed at every passing of every fault point; after each death the store is opened,
 * what it says is complete is compared with what it must be, blocks are counted, and the scenario is run to its end
 * on what was left. The same again with each point made to fail instead. */
#include "base/sys/fault.h"
#include "daemon/store/internal.h"
#include "daemon/store/test_store_place.h"

#include <sys/stat.h>
#include <sys/wait.h>

#define MIB     (1 << 20)
#define CEILING (64u << 20)
#define ROWS    5000
#define COLS    1000

static const int64_t shape[] = { ROWS, COLS };
static uint8_t *x;
static const struct ptc_store_box first_needs[] = { { 0, { 2, { 0, 0 }, { ROWS, COLS } } },
						    { 1, { 2, { 0, 0 }, { 3, 7 } } } };
static const struct ptc_store_box second_needs[] = { { 0, { 2, { 1000, 0 }, { 4000, 400 } } },
						     { 1, { 2, { 0, 0 }, { 3, 9 } } } };

static int fill(struct ptc_table *t, const struct ptc_store_boxes *m, struct ptc_error *err)
{
	uint32_t e[16];
	int rc = m->n <= 16 ? ptc_table_reserve(t, m->v, m->n, e, err) : PTC_EINTERNAL;

	for (size_t i = 0; i < m->n && !rc; i++) {
		uint8_t *buf = malloc((size_t)volume(&m->v[i].box));

		cut_out(buf, x, shape, &m->v[i].box);
		rc = ptc_table_write(t, m->v[i].item, &m->v[i].box, buf, err);
		if (!rc)
			rc = ptc_table_filled(t, e[i], err);
		if (!rc)
			rc = ptc_table_flush(t, err);
		free(buf);
	}
	return rc;
}

/* Makes table k hold needs, from wherever an earlier attempt left it. */
static int make(struct ptc_store *s, const struct ptc_table_key *from, const struct ptc_table_key *k,
		const struct ptc_store_box *needs, struct ptc_error *err)
{
	struct ptc_table *t = NULL, *src = NULL;
	struct ptc_store_boxes m = { 0 };
	int64_t n;
	int rc = ptc_table_begin(s, k, &t, err);

	if (!rc && !ptc_table_sealed(t)) {
		if (from)
			rc = ptc_table_open(s, from, &src, err);
		if (!rc)
			rc = ptc_table_derive(t, src, NULL, needs, 2, false, &m, &n, err);
		if (!rc)
			rc = fill(t, &m, err);
		if (!rc)
			rc = ptc_table_seal(t, err);
	}
	ptc_store_boxes_done(&m);
	ptc_table_unref(src);
	ptc_table_unref(t);
	return rc;
}

/* Free chunks for the next table, as the store's thread makes them. */
static int make_ahead(struct ptc_store *s, struct ptc_error *err)
{
	struct ptc_store_stats st;

	pthread_mutex_lock(&s->wlock);
	(void)ptc_store_chunks_ahead(s->jobs, CHUNKS_GRAIN);
	pthread_mutex_unlock(&s->wlock);
	ptc_store_stats(s, &st);
	return st.chunks_free >= CHUNKS_GRAIN ? 0 : ptc_error_set(err, PTC_EIO, "chunks were not made ahead");
}

static int scenario_in(struct ptc_store *s, struct ptc_error *err)
{
	struct ptc_table_key k1 = key_of(JOB_A, 1, 1), k2 = key_of(JOB_A, 1, 2), k3 = key_of(JOB_A, 2, 1);
	struct ptc_table_key kb = key_of(JOB_B, 1, 1);
	struct ptc_table *t = NULL;
	int rc = ptc_store_job_create(s, JOB_A, getuid(), err);

	if (!rc)
		rc = ptc_store_fence(s, JOB_A, 5, err);
	if (!rc && ptc_table_open(s, &k3, &t, NULL) != 0) {
		rc = make(s, NULL, &k1, first_needs, err);
		if (!rc)
			rc = ptc_table_alias(s, &k1, &k2, err);
		if (!rc)
			rc = make(s, &k2, &k3, second_needs, err);
	}
	ptc_table_unref(t);
	if (!rc)
		rc = ptc_store_keep(s, JOB_A, &k3, 1, err);
	if (!rc)
		rc = make_ahead(s, err);
	if (!rc)
		rc = ptc_store_job_create(s, JOB_B, getuid(), err);
	if (!rc)
		rc = make(s, NULL, &kb, second_needs, err);
	return rc ? rc : ptc_store_job_delete(s, JOB_B, err);
}

static int scenario(const struct place *p, struct ptc_error *err)
{
	/* the smallest cushion, so that keep gives blocks back */
	struct ptc_store_opts o = {
		.meta_dir = p->meta, .chunk_dir = p->chunks, .chunk_ceiling = CEILING, .cushion_bytes = 1
	};
	struct ptc_store *s = NULL;
	int rc = ptc_store_open(&o, &s, err);

	if (!rc)
		rc = scenario_in(s, err);
	ptc_store_close(s);
	return rc;
}

/* Runs the scenario in a child with env set; returns its wait status. */
static int run_child(const struct place *p, const char *env, const char *value)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		struct ptc_error err = PTC_ERROR_INIT;
		int rc;

		setenv(env, value, 1);
		if (!freopen("/dev/null", "w", stderr))
			_exit(3);
		ptc_fault_init();
		rc = scenario(p, &err);
		_exit(rc ? 1 : 0);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void check_bytes(struct ptc_store *s, const struct ptc_table_key *k, const struct ptc_store_box *needs)
{
	struct ptc_table *t;

	if (ptc_table_open(s, k, &t, NULL) != 0)
		return;
	for (int i = 0; i < 2; i++) {
		uint8_t *want = malloc((size_t)volume(&needs[i].box)), *got = malloc((size_t)volume(&needs[i].box));

		cut_out(want, x, shape, &needs[i].box);
		ok(ptc_table_read(t, needs[i].item, &needs[i].box, got, err));
		assert_memory_equal(got, want, volume(&needs[i].box));
		free(want);
		free(got);
	}
	ptc_table_unref(t);
}

static void each_job(void *arg, const char *uuid, uid_t uid, bool lost)
{
	unsigned *jobs = arg;

	assert_false(lost);
	*jobs |= strcmp(uuid, JOB_A) == 0 ? 1 : 2;
}

/* What a death left: whole tables or none, no blocks but those of used chunks, no directory without a job. */
static void check_left(const struct place *p)
{
	struct ptc_table_key k1 = key_of(JOB_A, 1, 1), k2 = key_of(JOB_A, 1, 2), k3 = key_of(JOB_A, 2, 1);
	struct ptc_store *s = store_open(p, CEILING);
	struct ptc_store_stats st;
	char path[160];
	struct stat sb;
	unsigned jobs = 0;

	ok(ptc_store_jobs(s, each_job, &jobs, err));
	if (jobs & 1) {
		check_bytes(s, &k1, first_needs);
		check_bytes(s, &k2, first_needs);
		check_bytes(s, &k3, second_needs);
	}
	ptc_store_stats(s, &st);
	assert_int_equal(st.chunks_free, 0);
	assert_true(st.chunks_used <= 20);
	/* 5 MiB, 2 MiB and 2 MiB of tables; LMDB's own pages and slack are below 1 MiB a file */
	if (st.file_bytes > st.chunks_used * (uint64_t)MIB + 3 * MIB)
		fail_msg("%llu bytes of blocks for %llu chunks", (unsigned long long)st.file_bytes,
			 (unsigned long long)st.chunks_used);
	snprintf(path, sizeof path, "%s/%s", p->chunks, JOB_B);
	assert_true((stat(path, &sb) == 0) == ((jobs & 2) != 0));
	ptc_store_close(s);
}

static void check_end(const struct place *p)
{
	struct ptc_table_key k3 = key_of(JOB_A, 2, 1);
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store_stats st;
	struct ptc_table *t;
	struct ptc_store *s;

	ok(scenario(p, err));
	s = store_open(p, CEILING);
	ok(ptc_table_open(s, &k3, &t, err));
	ptc_table_unref(t);
	check_bytes(s, &k3, second_needs);
	ptc_store_stats(s, &st);
	assert_true(st.chunks_used <= 5);
	assert_int_equal(ptc_store_fence(s, JOB_A, 4, &why), PTC_EFENCED);
	ok(ptc_store_job_delete(s, JOB_A, err));
	ptc_store_stats(s, &st);
	assert_int_equal(st.chunks_used + st.chunks_free, 0);
	ptc_store_close(s);
}

static size_t points(const char *base, char (*names)[96], size_t max)
{
	struct place p;
	char list[128];
	size_t n = 0;
	FILE *f;

	place_make(&p, base);
	snprintf(list, sizeof list, "%s/points", p.dir);
	assert_int_equal(run_child(&p, "PTC_FAULT_LIST", list), 0);
	f = fopen(list, "r");
	assert_non_null(f);
	while (n < max && fgets(names[n], 96, f)) {
		names[n][strcspn(names[n], "\n")] = '\0';
		n++;
	}
	fclose(f);
	place_remove(&p);
	return n;
}

/* Every passing of every point with the given action; returns how often the child was hit. */
static int at_every_point(const char *base, const char *action)
{
	static char names[64][96];
	size_t n = points(base, names, 64);
	int hits = 0;

	assert_true(n >= 10);
	for (size_t i = 0; i < n; i++)
		for (int nth = 1;; nth++) {
			char rule[160];
			struct place p;
			int status;

			place_make(&p, base);
			snprintf(rule, sizeof rule, "%.95s@%d=%s", names[i], nth, action);
			status = run_child(&p, "PTC_FAULT", rule);
			if (WIFSIGNALED(status) || WEXITSTATUS(status))
				hits++;
			print_message("%s\n", rule);
			check_left(&p);
			check_end(&p);
			place_remove(&p);
			if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
				break;
			assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 1);
		}
	print_message("%zu points, %d passings: %s in %s\n", n, hits, action, base);
	return hits;
}

static void killed_at_every_point(void **state)
{
	assert_true(at_every_point(fast_base(), "kill") >= 30);
}

static void failed_at_every_point(void **state)
{
	assert_true(at_every_point(fast_base(), "fail") >= 10);
}

/* On a disk the points around msync are passed too. */
static void killed_at_every_point_on_disk(void **state)
{
	assert_true(at_every_point("/tmp", "kill") >= 30);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed_at_every_point),
		cmocka_unit_test(failed_at_every_point),
		cmocka_unit_test(killed_at_every_point_on_disk),
	};
	unsigned seed = 9;
	int rc;

	x = malloc(ROWS * COLS);
	for (int i = 0; i < ROWS * COLS; i++)
		x[i] = (uint8_t)rand_r(&seed);
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	free(x);
	return rc;
}
