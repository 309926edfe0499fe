/* SPDX-License-Identifier: Apache-2.0 */
/* A block is healed by a child that is killed, or made to fail, at every passing of every fault point: what it left is
 * either damaged and refused, or right, never anything else; healing it again ends the same. In place by its checksum,
 * and anew where bytes that no table lists were damaged too. On tmpfs and on a disk. */
#include "base/check.h"
#include "base/sys/fault.h"
#include "daemon/store/scrub/store_heal.h"
#include "daemon/store/test_store_place.h"

#include <sys/wait.h>

#define CEILING (64u << 20)
#define ROWS    3000
#define COLS    1000
#define LIVE    2500 /* rows that the second table has: it refers to the first one's extents */

static const int64_t shape[] = { ROWS, COLS };
static const struct ptc_store_box first_need = { 0, { 2, { 0, 0 }, { ROWS, COLS } } };
static const struct ptc_store_box second_need = { 0, { 2, { ROWS - LIVE, 0 }, { LIVE, COLS } } };
static uint8_t *x;

static void fill(struct ptc_table *t, const struct ptc_store_boxes *m)
{
	uint32_t e[16];

	assert_true(m->n <= 16);
	ok(ptc_table_reserve(t, m->v, m->n, e, err));
	for (size_t i = 0; i < m->n; i++) {
		uint8_t *buf = malloc((size_t)volume(&m->v[i].box));

		cut_out(buf, x, shape, &m->v[i].box);
		ok(ptc_table_write(t, 0, &m->v[i].box, buf, err));
		ok(ptc_table_filled(t, e[i], err));
		free(buf);
	}
}

static void make(struct ptc_store *s, uint64_t generation, struct ptc_table *src, const struct ptc_store_box *need)
{
	struct ptc_table_key key = key_of(JOB_A, generation, 1);
	struct ptc_store_boxes m = { 0 };
	struct ptc_table *t;
	int64_t bytes;

	ok(ptc_table_begin(s, &key, &t, err));
	ok(ptc_table_derive(t, src, NULL, need, 1, false, &m, &bytes, err));
	if (m.n)
		fill(t, &m);
	ok(ptc_table_seal(t, err));
	ptc_store_boxes_done(&m);
	ptc_table_unref(t);
}

/* The second table's first block begins with rows of the first one that nothing lists any more. */
static void prepare(const struct place *p)
{
	struct ptc_table_key first = key_of(JOB_A, 1, 1), second = key_of(JOB_A, 2, 1);
	struct ptc_store *s = store_open(p, CEILING);
	struct ptc_table *t;

	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	make(s, 1, NULL, &first_need);
	ok(ptc_table_open(s, &first, &t, err));
	make(s, 2, t, &second_need);
	ptc_table_unref(t);
	ok(ptc_store_keep(s, JOB_A, &second, 1, err));
	ptc_store_close(s);
}

/* Row: of the tensor. Rows below ROWS - LIVE are listed by nothing. */
static void damage(const struct place *p, int row)
{
	flip_bit(p, x + (size_t)row * COLS + 500, 64);
}

static unsigned scrub_bytes(struct ptc_store *s, uint64_t *ret_bytes)
{
	struct ptc_scrub *c = ptc_scrub_new();
	struct ptc_scrub_step step = { .bytes = 0 };
	unsigned found = 0;

	assert_non_null(c);
	while (!step.round) {
		ok(ptc_scrub_step(s, c, 1, &step, err));
		found += step.damaged;
		*ret_bytes += step.bytes;
	}
	ptc_scrub_free(c);
	return found;
}

static unsigned scrub(struct ptc_store *s)
{
	uint64_t bytes = 0;
	unsigned found = scrub_bytes(s, &bytes);

	if (bytes < (uint64_t)LIVE * COLS || bytes > (uint64_t)ROWS * COLS + 2 * PTC_BLOCK_BYTES)
		fail_msg("%llu bytes verified", (unsigned long long)bytes);
	return found;
}

/* What another node would give. */
static void put_right(struct ptc_block *b)
{
	const struct ptc_store_box *parts;
	size_t n;

	parts = ptc_block_parts(b, &n);
	assert_true(n > 0);
	for (size_t i = 0; i < n; i++) {
		uint8_t *buf = malloc((size_t)volume(&parts[i].box));

		cut_out(buf, x, shape, &parts[i].box);
		ptc_block_put(b, i, buf);
		free(buf);
	}
}

static int heal_all(struct ptc_store *s, struct ptc_error *err)
{
	struct ptc_store_damage *v;
	size_t n = 0;
	int rc = ptc_store_damaged(s, JOB_A, &v, &n, err);

	for (size_t i = 0; i < n && !rc; i++) {
		struct ptc_block *b;

		rc = ptc_block_open(s, &v[i], NULL, &b, err);
		if (rc || !b)
			continue;
		put_right(b);
		rc = ptc_block_right(b) ? ptc_block_heal(b, err) : ptc_block_renew(b, err);
		ptc_block_free(b);
	}
	if (!rc || n)
		ptc_free(v);
	return rc;
}

static int child(const struct place *p)
{
	struct ptc_store_opts o = { .meta_dir = p->meta, .chunk_dir = p->chunks, .chunk_ceiling = CEILING };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_store *s = NULL;
	uint64_t bytes = 0;
	int rc = ptc_store_open(&o, &s, &err);

	if (rc)
		return 1;
	scrub_bytes(s, &bytes);
	rc = bytes ? heal_all(s, &err) : 1; /* none, where the job could not be opened */
	ptc_store_close(s);
	return rc ? 1 : 0;
}

static int run_child(const struct place *p, const char *env, const char *value)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		setenv(env, value, 1);
		if (!freopen("/dev/null", "w", stderr))
			_exit(3);
		ptc_fault_init();
		_exit(child(p));
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

/* All rows, or PTC_ECORRUPT; right bytes where it is not. */
static int read_rows(struct ptc_store *s)
{
	struct ptc_table_key key = key_of(JOB_A, 2, 1);
	uint8_t *got = malloc(COLS), *want = malloc(COLS);
	struct ptc_table *t;
	int bad = 0;

	ok(ptc_table_open(s, &key, &t, err));
	for (int row = ROWS - LIVE; row < ROWS; row++) {
		struct ptc_box box = BOX2(row, 0, 1, COLS);
		int rc = ptc_table_read(t, 0, &box, got, NULL);

		assert_true(rc == 0 || rc == PTC_ECORRUPT);
		bad += rc != 0;
		cut_out(want, x, shape, &box);
		if (!rc)
			assert_memory_equal(want, got, COLS);
	}
	ptc_table_unref(t);
	free(got);
	free(want);
	return bad;
}

static void check_after(const struct place *p)
{
	struct ptc_store *s = store_open(p, CEILING);
	unsigned found = scrub(s);

	assert_true((read_rows(s) > 0) == (found > 0));
	ok(heal_all(s, err));
	assert_int_equal(scrub(s), 0);
	assert_int_equal(read_rows(s), 0);
	ptc_store_close(s);
	s = store_open(p, CEILING); /* as meta and the file have it */
	assert_int_equal(scrub(s), 0);
	assert_int_equal(read_rows(s), 0);
	ptc_store_close(s);
}

struct scene {
	int rows[3]; /* damaged; -1: none */
	bool anew;   /* the checksum is made anew */
};

static void spoil(const struct place *p, const struct scene *scene)
{
	struct ptc_store *s;

	prepare(p);
	for (int i = 0; i < 3; i++)
		if (scene->rows[i] >= 0)
			damage(p, scene->rows[i]);
	s = store_open(p, CEILING);
	assert_true(scrub(s) > 0);
	assert_true(read_rows(s) > 0);
	ptc_store_close(s);
}

static size_t points(const char *base, const struct scene *scene, char (*names)[96], size_t max)
{
	struct place p;
	char list[128];
	size_t n = 0;
	FILE *f;

	place_make(&p, base);
	spoil(&p, scene);
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

static void at_every_point(const char *base, const struct scene *scene, const char *action)
{
	static char names[64][96];
	size_t n = points(base, scene, names, 64);
	bool middle = false, meta = false;
	int hits = 0;

	for (size_t i = 0; i < n; i++) {
		middle |= !strcmp(names[i], "store.heal.middle");
		meta |= !strcmp(names[i], "store.meta.commit.before");
		for (int nth = 1;; nth++) {
			char rule[160];
			struct place p;
			int status;

			place_make(&p, base);
			spoil(&p, scene);
			snprintf(rule, sizeof rule, "%.95s@%d=%s", names[i], nth, action);
			print_message("%s\n", rule);
			status = run_child(&p, "PTC_FAULT", rule);
			hits += WIFSIGNALED(status) || WEXITSTATUS(status) != 0;
			check_after(&p);
			place_remove(&p);
			if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
				break;
		}
	}
	print_message("%zu points: %s %d times in %s\n", n, action, hits, base);
	assert_true(middle && hits >= 3);
	assert_true(!scene->anew || meta);
}

static void in_place(void **state)
{
	const struct scene scene = { { ROWS - 10, ROWS - LIVE + 300, -1 }, false };

	at_every_point(fast_base(), &scene, "kill");
	at_every_point(fast_base(), &scene, "fail");
	at_every_point("/tmp", &scene, "kill");
}

/* A listed row of the first block, and one beside it that nothing lists. */
static void anew(void **state)
{
	const struct scene scene = { { ROWS - LIVE, ROWS - LIVE - 1, -1 }, true };

	at_every_point(fast_base(), &scene, "kill");
	at_every_point(fast_base(), &scene, "fail");
	at_every_point("/tmp", &scene, "kill");
}

/* Nothing is written where what was put is not what was there, and nothing is summed anew while others have bytes in
 * it. */
static void refused(void **state)
{
	const struct scene scene = { { ROWS - LIVE, ROWS - LIVE - 1, -1 }, true };
	struct ptc_table_key key = key_of(JOB_A, 2, 1), third = key_of(JOB_A, 3, 1);
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store_damage *v;
	struct ptc_table *held;
	struct ptc_block *b;
	struct ptc_store *s;
	struct place p;
	size_t n;

	place_make(&p, fast_base());
	spoil(&p, &scene);
	s = store_open(&p, CEILING);
	assert_int_equal(scrub(s), 1);
	ok(ptc_store_damaged(s, NULL, &v, &n, err));
	assert_int_equal(n, 1);
	ok(ptc_block_open(s, &v[0], NULL, &b, err));
	assert_non_null(b);
	assert_int_equal(ptc_block_heal(b, &why), PTC_ECORRUPT);
	assert_int_equal(ptc_block_renew(b, &why), PTC_ESTATE); /* nothing was put */
	assert_int_equal(scrub(s), 1);
	/* a reader of a dropped table may still ask for its bytes */
	ok(ptc_table_alias(s, &key, &third, err));
	ok(ptc_table_open(s, &third, &held, err));
	ok(ptc_store_keep(s, JOB_A, &key, 1, err));
	put_right(b);
	assert_int_equal(ptc_block_renew(b, &why), PTC_ESTATE);
	ptc_table_unref(held);
	ok(ptc_block_renew(b, err));
	ptc_block_free(b);
	ptc_free(v);
	assert_int_equal(scrub(s), 0);
	assert_int_equal(read_rows(s), 0);
	/* a bit that is put right by hand is found to be right */
	damage(&p, ROWS - 3);
	assert_int_equal(scrub(s), 1);
	ok(ptc_store_damaged(s, NULL, &v, &n, err));
	assert_int_equal(n, 1);
	ok(heal_all(s, err));
	ok(ptc_block_open(s, &v[0], NULL, &b, err));
	assert_null(b);
	ptc_free(v);
	ptc_store_close(s);
	place_remove(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(in_place),
		cmocka_unit_test(anew),
		cmocka_unit_test(refused),
	};
	unsigned seed = 11;
	int rc;

	x = malloc(ROWS * COLS);
	for (int i = 0; i < ROWS * COLS; i++)
		x[i] = (uint8_t)rand_r(&seed);
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	free(x);
	return rc;
}
