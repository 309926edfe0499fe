/* SPDX-License-Identifier: Apache-2.0 */
/* Free chunks that are made ahead: how many, never above the ceiling, who gets them, and that they go back. The thread
 * that does so while nobody else works runs only in the last test; the others take its steps. */
#include "base/check.h"
#include "daemon/store/internal.h"
#include "daemon/store/test_store_items.h"

#include <sys/vfs.h>
#include <linux/magic.h>

#define MIB (1 << 20)

static const char *base;

static struct ptc_store *open_with(const struct place *p, uint64_t ceiling, uint64_t cushion, bool thread)
{
	const struct ptc_store_opts o = {
		.meta_dir = p->meta, .chunk_dir = p->chunks, .chunk_ceiling = ceiling, .cushion_bytes = cushion
	};
	struct ptc_store *s = NULL;

	ok(ptc_store_open(&o, &s, err));
	if (!thread)
		ptc_store_huge_end(s);
	return s;
}

static struct ptc_store_stats stats(struct ptc_store *s)
{
	struct ptc_store_stats st;

	ptc_store_stats(s, &st);
	return st;
}

/* As many steps as there are; the ceiling holds after each. */
static void all_steps(struct ptc_store *s, enum spare allowed)
{
	for (int i = 0; ptc_store_spare_step(s, allowed); i++) {
		struct ptc_store_stats st = stats(s);

		assert_true((st.chunks_used + st.chunks_free) * PTC_CHUNK_BYTES <= st.ceiling);
		assert_true(i < 1000);
	}
}

static uint64_t made(struct ptc_store *s)
{
	all_steps(s, SPARE_MORE);
	return stats(s).chunks_free;
}

static void room_is_a_part_of_all(void **state)
{
	assert_int_equal(ptc_store_spare_of(1600, 1600), SPARE_MORE);
	assert_int_equal(ptc_store_spare_of(1600, 200), SPARE_MORE);
	assert_int_equal(ptc_store_spare_of(1600, 199), SPARE_SAME);
	assert_int_equal(ptc_store_spare_of(1600, 100), SPARE_SAME);
	assert_int_equal(ptc_store_spare_of(1600, 99), SPARE_LESS);
	assert_int_equal(ptc_store_spare_of(0, 0), SPARE_LESS); /* unknown */
}

static void as_many_as_a_job_uses_and_may_keep(void **state)
{
	struct ptc_store *s;
	struct place p;

	place_make(&p, base);
	s = open_with(&p, 96 * MIB, 12 * MIB, false);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	assert_int_equal(made(s), 0);
	assert_false(ptc_store_spare_due(s));
	ok(items_make(s, JOB_A, 1, 24, err));
	assert_true(ptc_store_spare_due(s));
	all_steps(s, SPARE_SAME);
	assert_true(stats(s).chunks_free < 12);
	assert_in_range(made(s), 12 - CHUNKS_GRAIN + 1, 12);
	ptc_store_close(s);
	s = open_with(&p, 96 * MIB, 64 * MIB, false);
	assert_int_equal(stats(s).chunks_free, 0); /* they end with the store */
	assert_true(made(s) + CHUNKS_GRAIN > stats(s).chunks_used);
	assert_true(stats(s).chunks_free <= 24 + CHUNKS_GRAIN);
	items_expect(s, JOB_A, 1, 24);
	ok(ptc_store_job_delete(s, JOB_A, err));
	assert_int_equal(made(s), 0);
	ptc_store_close(s);
	s = open_with(&p, 96 * MIB, 0, false);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(items_make(s, JOB_A, 1, 24, err));
	assert_true(made(s) < 8); /* what a table took in steps, and did not need */
	ptc_store_close(s);
	place_remove(&p);
}

static void the_next_table_takes_them(void **state)
{
	struct ptc_table_key keep = key_of(JOB_A, 2, 2);
	uint64_t file, left, freed;
	struct ptc_store *s;
	struct place p;

	place_make(&p, base);
	s = open_with(&p, 96 * MIB, 64 * MIB, false);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(items_make(s, JOB_A, 1, 24, err));
	assert_true(made(s) + CHUNKS_GRAIN > stats(s).chunks_used);
	file = stats(s).file_bytes;
	ok(items_make(s, JOB_A, 2, 12, err));
	assert_true(stats(s).file_bytes <= file + MIB);
	items_expect(s, JOB_A, 1, 24);
	items_expect(s, JOB_A, 2, 12);
	/* Now the freed ones are ready for the next switch, and those that are left of the others go. */
	all_steps(s, SPARE_SAME);
	left = stats(s).chunks_free;
	assert_true(left > 0);
	ok(ptc_store_keep(s, JOB_A, &keep, 1, err));
	freed = stats(s).chunks_free - left;
	all_steps(s, SPARE_SAME);
	assert_in_range(stats(s).chunks_free, freed, freed + CHUNKS_GRAIN - 1); /* a table is taken in steps, too */
	freed = stats(s).chunks_free;
	assert_int_equal(made(s), freed);
	for (struct chunk *c = s->jobs->warm; c; c = c->next)
		assert_false(c->ahead);
	assert_false(ptc_store_spare_due(s));
	items_expect(s, JOB_A, 2, 12);
	ptc_store_close(s);
	place_remove(&p);
}

/* Never above the ceiling, and whoever needs room gets it. */
static void the_ceiling_holds(void **state)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store *s;
	struct place p;

	place_make(&p, base);
	s = open_with(&p, 50 * MIB, 64 * MIB, false);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(ptc_store_job_create(s, JOB_B, getuid(), err));
	ok(items_make(s, JOB_A, 1, 30, err));
	assert_in_range(made(s) + stats(s).chunks_used, 50 - CHUNKS_GRAIN + 1, 50);
	ok(items_make(s, JOB_B, 1, 12, err));
	all_steps(s, SPARE_MORE); /* takes nothing from the other job */
	assert_true(stats(s).chunks_used + stats(s).chunks_free <= 50);
	assert_true(ptc_store_job_free_bytes(s, JOB_A) > 0);
	assert_int_equal(ptc_store_job_free_bytes(s, JOB_A) + ptc_store_job_free_bytes(s, JOB_B),
			 stats(s).chunks_free * PTC_CHUNK_BYTES);
	ok(items_make(s, JOB_A, 2, 5, err));
	assert_int_equal(items_make(s, JOB_B, 2, 20, &why), PTC_ENOSPC);
	items_expect(s, JOB_A, 1, 30);
	items_expect(s, JOB_A, 2, 5);
	items_expect(s, JOB_B, 1, 12);
	/* Other memory takes its part of the ceiling, too. */
	ok(ptc_store_outside_take(s, MIB, err));
	assert_true(stats(s).chunks_used + stats(s).chunks_free <= 49);
	all_steps(s, SPARE_MORE);
	assert_true(stats(s).chunks_used + stats(s).chunks_free <= 49);
	ptc_store_outside_give(s, MIB);
	ptc_store_close(s);
	place_remove(&p);
}

/* What a switch has left stays, as before; what was made ahead goes. */
static void a_full_machine_gets_them_back(void **state)
{
	struct ptc_table_key keep = key_of(JOB_A, 2, 2);
	uint64_t file, before, kept;
	struct ptc_store *s;
	struct place p;

	place_make(&p, base);
	s = open_with(&p, 128 * MIB, 40 * MIB, false);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(items_make(s, JOB_A, 1, 24, err));
	file = stats(s).file_bytes;
	before = stats(s).chunks_free;
	assert_true(made(s) + CHUNKS_GRAIN > stats(s).chunks_used);
	assert_true(stats(s).file_bytes > file + 8 * MIB);
	all_steps(s, SPARE_SAME);
	assert_true(stats(s).chunks_free + CHUNKS_GRAIN > stats(s).chunks_used);
	all_steps(s, SPARE_LESS);
	assert_int_equal(stats(s).chunks_free, before);
	assert_true(stats(s).file_bytes <= file + 2 * MIB);
	items_expect(s, JOB_A, 1, 24);
	ok(items_make(s, JOB_A, 2, 8, err));
	ok(ptc_store_keep(s, JOB_A, &keep, 1, err));
	kept = stats(s).chunks_free;
	assert_true(kept >= 20);
	all_steps(s, SPARE_LESS);
	assert_int_equal(stats(s).chunks_free, kept);
	items_expect(s, JOB_A, 2, 8);
	ptc_store_close(s);
	place_remove(&p);
}

/* The thread does so by itself, and can be stopped at any moment. */
static void while_the_store_is_idle(void **state)
{
	struct ptc_store *s;
	struct place p;
	uint64_t want;
	bool less;

	place_make(&p, base);
	for (int round = 0; round < 2; round++) {
		s = open_with(&p, 96 * MIB, 64 * MIB, true);
		ok(ptc_store_job_create(s, JOB_A, getuid(), err));
		if (!round)
			ok(items_make(s, JOB_A, 1, 24, err));
		less = ptc_store_spare_look(s) != SPARE_MORE;
		want = round ? stats(s).chunks_used - CHUNKS_GRAIN + 1 : 1; /* the first is stopped in the middle */
		/* 30 s; a machine that is full is no failure */
		for (int i = 0; i < 1500 && !less && stats(s).chunks_free < want; i++) {
			usleep(20000);
			less = ptc_store_spare_look(s) != SPARE_MORE;
		}
		if (!less)
			assert_true(stats(s).chunks_free >= want);
		items_expect(s, JOB_A, 1, 24);
		ptc_store_close(s);
	}
	place_remove(&p);
	if (less)
		skip();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(room_is_a_part_of_all),         cmocka_unit_test(as_many_as_a_job_uses_and_may_keep),
		cmocka_unit_test(the_next_table_takes_them),     cmocka_unit_test(the_ceiling_holds),
		cmocka_unit_test(a_full_machine_gets_them_back), cmocka_unit_test(while_the_store_is_idle),
	};
	struct statfs fs;

	base = fast_base();
	if (statfs(base, &fs) != 0 || fs.f_type != TMPFS_MAGIC) {
		fprintf(stderr, "skipped: no tmpfs at %s\n", base);
		return 77;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
