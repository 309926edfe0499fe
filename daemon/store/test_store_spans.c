/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes read in the chunk file by somebody who only knows what ptc_table_spans has said: they are the table's, or a
 * count of uses has changed; a bit that was flipped is found by the checksum of its block. Random boxes out of random
 * tables, which are dropped, replaced, reopened and deleted under the reader. */
#include "base/check.h"
#include "base/number/digest.h"
#include "base/test_seed.h"
#include "daemon/store/test_store_place.h"

#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>

#define MIB    (1ull << 20)
#define ROWS   1500
#define COLS   4096
#define ROUNDS 12
#define MAX    4096

static const int64_t shape[] = { ROWS, COLS };

struct mapped {
	struct ptc_box box;
	struct ptc_span v[MAX];
	struct ptc_span_chunk chunks[64];
	size_t n, nchunks;
};

static uint8_t *tensor(unsigned seed)
{
	uint8_t *p = malloc((size_t)ROWS * COLS);

	for (int64_t i = 0; i < (int64_t)ROWS * COLS; i++)
		p[i] = (uint8_t)(rand_r(&seed) >> 3);
	return p;
}

/* The tensor in columns' halves, so that rows lie apart. */
static void make(struct ptc_store *s, const struct ptc_table_key *k, const uint8_t *x)
{
	const struct ptc_store_box halves[] = { { 3, BOX2(0, 0, ROWS, COLS / 2) },
						{ 3, BOX2(0, COLS / 2, ROWS, COLS / 2) } };
	struct ptc_table *t;
	uint32_t extents[2];

	ok(ptc_table_begin(s, k, &t, err));
	ok(ptc_table_reserve(t, halves, 2, extents, err));
	for (size_t i = 0; i < 2; i++) {
		uint8_t *buf = malloc((size_t)volume(&halves[i].box));

		cut_out(buf, x, shape, &halves[i].box);
		fill_extent(t, extents[i], buf, volume(&halves[i].box));
		ok(ptc_table_filled(t, extents[i], err));
		free(buf);
	}
	ok(ptc_table_seal(t, err));
	ptc_table_unref(t);
}

static struct ptc_box box_random(unsigned *seed)
{
	int64_t r0 = rand_r(seed) % ROWS, c0 = rand_r(seed) % COLS;

	return BOX2(r0, c0, 1 + rand_r(seed) % (ROWS - r0), 1 + rand_r(seed) % (COLS - c0));
}

static void map_spans(struct ptc_store *s, const struct ptc_table_key *k, struct mapped *l, int *fd)
{
	const uint8_t *base;
	struct ptc_spans spans = { l->v, 0, MAX, l->chunks, 0, 64 };
	struct ptc_table *t;
	uint64_t bytes;

	ok(ptc_table_open(s, k, &t, err));
	ok(ptc_table_spans(t, 3, &l->box, &spans, err));
	l->n = spans.n;
	l->nchunks = spans.nchunks;
	if (fd)
		ok(ptc_table_file(t, fd, &base, &bytes, err));
	ptc_table_unref(t);
}

/* As a reader does: the bytes, then the counts. How many spans are still what they were. */
static size_t expect_right_or_refused(const struct mapped *l, int fd, const uint8_t *x)
{
	uint8_t *want = malloc((size_t)volume(&l->box)), *got = malloc((size_t)volume(&l->box));
	const struct ptc_span_chunk *c;
	uint64_t at = 0, use;
	size_t same = 0;

	cut_out(want, x, shape, &l->box);
	for (size_t i = 0; i < l->n; at += l->v[i++].bytes) {
		assert_int_equal(pread(fd, got + at, l->v[i].bytes, (off_t)l->v[i].at), l->v[i].bytes);
		atomic_thread_fence(memory_order_seq_cst);
		c = &l->chunks[l->v[i].chunk];
		assert_int_equal(pread(fd, &use, sizeof use, (off_t)c->use_at), sizeof use);
		if (use != c->use)
			continue;
		assert_memory_equal(got + at, want + at, l->v[i].bytes);
		same++;
	}
	assert_int_equal(at, volume(&l->box));
	free(want);
	free(got);
	return same;
}

/* How many blocks of the chunks do not have their checksums. */
static int damaged_blocks(const struct mapped *l, int fd)
{
	uint8_t *buf = malloc(PTC_BLOCK_BYTES);
	int n = 0;

	for (size_t i = 0; i < l->nchunks; i++)
		for (uint64_t b = 0; b < PTC_CHUNK_BLOCKS; b++) {
			uint64_t off = b * PTC_BLOCK_BYTES,
				 len = PTC_MIN((uint64_t)PTC_BLOCK_BYTES, PTC_CHUNK_BYTES - off);

			assert_int_equal(pread(fd, buf, len, (off_t)(l->chunks[i].at + off)), len);
			n += ptc_checksum(buf, len) != l->chunks[i].sums[b];
		}
	free(buf);
	return n;
}

static void a_flipped_bit_is_seen(void **state)
{
	struct ptc_table_key k = key_of(JOB_A, 1, 1);
	struct mapped l = { .box = BOX2(0, 0, ROWS, COLS) };
	uint8_t *x = tensor(11), byte;
	struct ptc_store *s;
	struct place p;
	int fd;

	place_make(&p, fast_base());
	s = store_open(&p, 24 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	make(s, &k, x);
	map_spans(s, &k, &l, &fd);
	assert_int_equal(damaged_blocks(&l, fd), 0);
	flip_bit(&p, x + 1000 * COLS, 64);
	assert_int_equal(damaged_blocks(&l, fd), 1);
	map_spans(s, &k, &l, NULL); /* that nothing is verified where it is mapped is the reader's to know */
	assert_int_equal(pread(fd, &byte, 1, (off_t)l.v[0].at), 1);
	close(fd);
	ptc_store_close(s);
	place_remove(&p);
	free(x);
}

static void right_or_refused(void **state)
{
	unsigned seed = (unsigned)ptc_test_seed();
	struct ptc_table_key k = key_of(JOB_A, 1, 1);
	uint8_t *x = tensor(seed), *old = NULL;
	struct ptc_store *s;
	struct place p;
	struct mapped now, last;
	size_t refused = 0;
	struct stat st;
	bool beside;
	int fd = -1;

	place_make(&p, fast_base());
	s = store_open(&p, 24 * MIB); /* two tables, hardly more: chunks are used again, or punched */
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	make(s, &k, x);
	for (int round = 0; round < ROUNDS; round++) {
		last = (struct mapped){ .box = box_random(&seed) };
		map_spans(s, &k, &last, fd < 0 ? &fd : NULL);
		if (last.n == 0)
			continue;
		assert_int_equal(expect_right_or_refused(&last, fd, x), last.n);
		old = x;
		k.snapshot++;
		x = tensor(seed + (unsigned)round + 1);
		beside = rand_r(&seed) % 2;
		if (beside)
			make(s, &k, x);
		ok(ptc_store_keep(s, JOB_A, &k, 1, err));
		refused += last.n - expect_right_or_refused(&last, fd, old);
		if (rand_r(&seed) % 3 == 0) {
			s = ptc_store_close(s); /* what a new ptcd makes of it */
			s = store_open(&p, 24 * MIB);
		}
		refused += last.n - expect_right_or_refused(&last, fd, old);
		if (!beside)
			make(s, &k, x);
		refused += last.n - expect_right_or_refused(&last, fd, old);
		now = (struct mapped){ .box = last.box };
		map_spans(s, &k, &now, NULL);
		assert_int_equal(expect_right_or_refused(&now, fd, x), now.n);
		free(old);
	}
	assert_true(refused > 0);
	map_spans(s, &k, &now, NULL);
	ok(ptc_store_job_delete(s, JOB_A, err));
	assert_int_equal(expect_right_or_refused(&now, fd, x), 0);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_blocks, 0); /* our descriptor keeps no memory */
	close(fd);
	ptc_store_close(s);
	place_remove(&p);
	free(x);
}

static void refusals(void **state)
{
	struct ptc_table_key k = key_of(JOB_A, 1, 1);
	struct ptc_box all = BOX2(0, 0, ROWS, COLS), beyond = BOX2(0, 0, ROWS + 1, COLS);
	uint8_t *x = tensor(7);
	struct ptc_span v[8];
	struct ptc_span_chunk c[8];
	struct ptc_spans few = { v, 0, 8, c, 0, 8 }, one = { v, 0, 8, c, 0, 1 };
	struct ptc_box rows = BOX2(0, 0, ROWS, COLS / 2);
	struct ptc_table *t;
	struct ptc_store *s;
	struct place p;
	uid_t uid = 0;

	place_make(&p, fast_base());
	s = store_open(&p, 24 * MIB);
	assert_int_equal(ptc_store_job_owner(s, JOB_A, &uid), PTC_ENOTFOUND);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(ptc_store_job_owner(s, JOB_A, &uid));
	assert_int_equal(uid, getuid());
	make(s, &k, x);
	ok(ptc_table_open(s, &k, &t, err));
	assert_int_equal(ptc_table_spans(t, 3, &all, &few, NULL), PTC_ELIMIT);
	few.n = few.nchunks = 0;
	assert_int_equal(ptc_table_spans(t, 3, &rows, &few, NULL), 0);
	assert_int_equal(ptc_table_spans(t, 3, &rows, &one, NULL), PTC_ELIMIT);
	few.n = few.nchunks = 0;
	assert_int_equal(ptc_table_spans(t, 3, &beyond, &few, NULL), PTC_ENOTFOUND);
	assert_int_equal(ptc_table_spans(t, 4, &all, &few, NULL), PTC_ENOTFOUND);
	ptc_table_unref(t);
	ptc_store_close(s);
	place_remove(&p);
	place_make(&p, "/var/tmp"); /* hardly ever a tmpfs */
	s = store_open(&p, 24 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	make(s, &k, x);
	ok(ptc_table_open(s, &k, &t, err));
	all = BOX2(0, 0, 1, 8);
	assert_int_equal(ptc_table_spans(t, 3, &all, &few, NULL), PTC_ESTATE);
	ptc_table_unref(t);
	ptc_store_close(s);
	place_remove(&p);
	free(x);
	assert_int_equal(ptc_alloc_live(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(right_or_refused),
		cmocka_unit_test(a_flipped_bit_is_seen),
		cmocka_unit_test(refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
