/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/internal.h"
#include "daemon/store/test_store_place.h"
#include "base/check.h"
#include "base/number/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define MIB (1 << 20)

/* One tensor of 2 dims; row r, column c. */
static uint8_t *tensor(int64_t rows, int64_t cols, unsigned seed)
{
	uint8_t *p = malloc((size_t)(rows * cols));

	for (int64_t i = 0; i < rows * cols; i++)
		p[i] = (uint8_t)rand_r(&seed);
	return p;
}

/* A sealed table with boxes of one item out of x. */
static void make_table(struct ptc_store *s, const struct ptc_table_key *k, const struct ptc_store_box *needs, size_t n,
		       const uint8_t *x, const int64_t *shape)
{
	struct ptc_store_boxes m;
	struct ptc_table *t;
	uint32_t *ext;
	int64_t bytes;

	ok(ptc_table_begin(s, k, &t, err));
	ok(ptc_table_derive(t, NULL, NULL, needs, n, false, &m, &bytes, err));
	ext = calloc(m.n + 1, sizeof *ext);
	ok(ptc_table_reserve(t, m.v, m.n, ext, err));
	for (size_t i = 0; i < m.n; i++) {
		uint8_t *buf = malloc((size_t)volume(&m.v[i].box));

		cut_out(buf, x, shape, &m.v[i].box);
		fill_extent(t, ext[i], buf, volume(&m.v[i].box));
		ok(ptc_table_filled(t, ext[i], err));
		free(buf);
	}
	ok(ptc_table_seal(t, err));
	free(ext);
	ptc_store_boxes_done(&m);
	ptc_table_unref(t);
}

static void expect_box(struct ptc_store *s, const struct ptc_table_key *k, uint32_t item, struct ptc_box b,
		       const uint8_t *x, const int64_t *shape)
{
	uint8_t *want = malloc((size_t)volume(&b)), *got = malloc((size_t)volume(&b));
	struct ptc_table *t;

	ok(ptc_table_open(s, k, &t, err));
	ok(ptc_table_read(t, item, &b, got, err));
	cut_out(want, x, shape, &b);
	assert_memory_equal(want, got, volume(&b));
	ptc_table_unref(t);
	free(want);
	free(got);
}

static void bytes_survive_reopen(void **state)
{
	const int64_t shape[] = { 3000, 1000 };
	uint8_t *x = tensor(3000, 1000, 1);
	struct ptc_table_key k = key_of(JOB_A, 1, 1);
	struct ptc_store_box need = { 7, BOX2(0, 0, 3000, 1000) };
	struct ptc_store_stats st;
	struct ptc_store *s;
	struct place p;
	char id[37];

	place_make(&p, fast_base());
	s = store_open(&p, 64 * MIB);
	memcpy(id, ptc_store_id(s), 37);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	make_table(s, &k, &need, 1, x, shape);
	for (int round = 0; round < 2; round++) {
		struct ptc_table *t;
		int64_t scrubbed;

		expect_box(s, &k, 7, BOX2(0, 0, 3000, 1000), x, shape);
		expect_box(s, &k, 7, BOX2(1234, 77, 900, 13), x, shape);
		ok(ptc_table_open(s, &k, &t, err));
		ok(ptc_table_scrub(t, NULL, NULL, &scrubbed, err));
		assert_int_equal(scrubbed, 3000000);
		ptc_table_unref(t);
		ptc_store_stats(s, &st);
		assert_int_equal(st.chunks_used, 3);
		s = ptc_store_close(s);
		s = store_open(&p, 64 * MIB);
		assert_string_equal(id, ptc_store_id(s));
	}
	ok(ptc_store_job_delete(s, JOB_A, err));
	ok(ptc_store_job_delete(s, JOB_A, err));
	ptc_store_stats(s, &st);
	assert_int_equal(st.chunks_used + st.chunks_free, 0);
	ptc_store_close(s);
	place_remove(&p);
	free(x);
	assert_int_equal(ptc_alloc_live(), 0);
}

static void spans_and_digest_match(void **state)
{
	const int64_t shape[] = { 2500, 1024 };
	uint8_t *x = tensor(2500, 1024, 2), *masked = calloc(2500, 1024);
	struct ptc_table_key k = key_of(JOB_A, 1, 1);
	struct ptc_store_box need = { 0, BOX2(0, 0, 2500, 1024) };
	struct ptc_box b = BOX2(100, 0, 2000, 1024), c = BOX2(3, 5, 2000, 7);
	struct iovec iov[8];
	struct ptc_table *t;
	struct ptc_store *s;
	struct place p;
	uint64_t digest;
	size_t at = 100 * 1024;
	int n;

	place_make(&p, fast_base());
	s = store_open(&p, 64 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	make_table(s, &k, &need, 1, x, shape);
	ok(ptc_table_open(s, &k, &t, err));
	ok(ptc_table_read_iov(t, 0, &b, iov, 8, &n, err));
	assert_true(n >= 2);
	for (int i = 0; i < n; i++) {
		assert_memory_equal(iov[i].iov_base, x + at, iov[i].iov_len);
		at += iov[i].iov_len;
	}
	assert_int_equal(at, 2100 * 1024);
	ok(ptc_table_read_iov(t, 0, &b, iov, 1, &n, err));
	assert_int_equal(n, 0);
	ok(ptc_table_read_iov(t, 0, &c, iov, 8, &n, err));
	assert_int_equal(n, 0);
	for (int r = 3; r < 2003; r++)
		memcpy(masked + r * 1024 + 5, x + r * 1024 + 5, 7);
	ok(ptc_table_digest(t, 0, &c, 2, shape, &digest, err));
	assert_true(digest == ptc_digest_run(masked, 2500 * 1024));
	ptc_table_unref(t);
	ptc_store_close(s);
	place_remove(&p);
	free(x);
	free(masked);
}

/* dim 0 halves stay by reference, dim 1 halves are copied; the snapshot costs nothing. */
static void derive_aliases_or_copies(void **state)
{
	const int64_t shape[] = { 8 * 1024, 1024 };
	uint8_t *x = tensor(shape[0], shape[1], 3);
	struct ptc_table_key k1 = key_of(JOB_A, 1, 1), k2 = key_of(JOB_A, 2, 1), k3 = key_of(JOB_A, 3, 1),
			     k4 = key_of(JOB_A, 1, 2);
	struct ptc_store_box whole = { 0, BOX2(0, 0, 8192, 1024) }, top = { 0, BOX2(0, 0, 4096, 1024) },
			     left = { 0, BOX2(0, 0, 4096, 512) };
	struct ptc_store_stats st, before;
	struct ptc_store_boxes m;
	struct ptc_table *t, *src;
	struct ptc_store *s;
	struct place p;
	int64_t bytes;

	place_make(&p, fast_base());
	s = store_open(&p, 64 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	make_table(s, &k1, &whole, 1, x, shape);
	ptc_store_stats(s, &before);
	ok(ptc_table_alias(s, &k1, &k4, err));
	ok(ptc_table_alias(s, &k1, &k4, err));
	ok(ptc_table_open(s, &k1, &src, err));
	ok(ptc_table_begin(s, &k2, &t, err));
	ok(ptc_table_derive(t, src, NULL, &top, 1, true, &m, &bytes, err));
	assert_int_equal(bytes, 0);
	assert_int_equal(m.n, 0);
	ptc_store_boxes_done(&m);
	ok(ptc_table_derive(t, src, NULL, &top, 1, false, &m, &bytes, err));
	ptc_store_boxes_done(&m);
	ok(ptc_table_seal(t, err));
	ptc_store_stats(s, &st);
	assert_int_equal(st.chunks_used, before.chunks_used);
	assert_int_equal(st.copied_bytes, 0);
	ptc_table_unref(src);
	ok(ptc_store_keep(s, JOB_A, &k2, 1, err));
	ptc_store_stats(s, &st);
	assert_int_equal(st.chunks_used, 5);
	src = t;
	ok(ptc_table_begin(s, &k3, &t, err));
	ok(ptc_table_derive(t, src, NULL, &left, 1, false, &m, &bytes, err));
	assert_int_equal(m.n, 0);
	ptc_store_boxes_done(&m);
	ok(ptc_table_seal(t, err));
	ptc_table_unref(src);
	ptc_table_unref(t);
	ok(ptc_store_keep(s, JOB_A, &k3, 1, err));
	ptc_store_stats(s, &st);
	assert_int_equal(st.copied_bytes, 2 * MIB);
	assert_int_equal(st.chunks_used, 3);
	expect_box(s, &k3, 0, left.box, x, shape);
	s = ptc_store_close(s);
	s = store_open(&p, 64 * MIB);
	expect_box(s, &k3, 0, left.box, x, shape);
	ptc_store_close(s);
	place_remove(&p);
	free(x);
}

/* The same rows of many items that share a chunk: they stay by reference if they are three quarters of it at least. */
static void rows_of_a_shared_chunk(void **state)
{
	enum { ITEMS = 100 };
	const int64_t shape[] = { 8, 128 };
	uint8_t *x = tensor(shape[0], shape[1], 4);
	struct ptc_table_key k = key_of(JOB_A, 1, 1);
	struct ptc_store_box needs[ITEMS];
	struct ptc_store_stats before, after;
	struct ptc_store_boxes m;
	struct ptc_table *t, *src;
	struct ptc_store *s;
	struct place p;
	int64_t bytes, planned;

	place_make(&p, fast_base());
	s = store_open(&p, 64 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	for (uint32_t i = 0; i < ITEMS; i++)
		needs[i] = (struct ptc_store_box){ i, BOX2(0, 0, 8, 128) };
	make_table(s, &k, needs, ITEMS, x, shape);
	ok(ptc_table_open(s, &k, &src, err));
	for (int64_t rows = 1; rows <= 8; rows++) {
		const struct ptc_table_key part = key_of(JOB_A, 1 + (uint64_t)rows, 1);

		for (uint32_t i = 0; i < ITEMS; i++)
			needs[i].box.ext[0] = rows;
		ptc_store_stats(s, &before);
		ok(ptc_table_begin(s, &part, &t, err));
		ok(ptc_table_derive(t, src, NULL, needs, ITEMS, true, &m, &planned, err));
		ptc_store_boxes_done(&m);
		ok(ptc_table_derive(t, src, NULL, needs, ITEMS, false, &m, &bytes, err));
		assert_int_equal(m.n, 0);
		ptc_store_boxes_done(&m);
		ok(ptc_table_seal(t, err));
		ptc_table_unref(t);
		ptc_store_stats(s, &after);
		assert_int_equal(after.copied_bytes - before.copied_bytes, rows < 6 ? ITEMS * rows * shape[1] : 0);
		assert_int_equal(bytes, rows < 6 ? PTC_CHUNK_BYTES : 0);
		assert_int_equal(planned, bytes);
		expect_box(s, &part, ITEMS / 2, needs[ITEMS / 2].box, x, shape);
	}
	ptc_table_unref(src);
	ptc_store_close(s);
	place_remove(&p);
	free(x);
}

/* Of what is fresh nothing is taken from the source; a resumed table gives it out again. */
static void derive_leaves_out_what_is_fresh(void **state)
{
	const int64_t shape[] = { 1024, 1024 };
	uint8_t *x = tensor(shape[0], shape[1], 5), *y = tensor(shape[0], shape[1], 6);
	struct ptc_table_key k1 = key_of(JOB_A, 1, 1), k2 = key_of(JOB_A, 2, 1);
	struct ptc_store_box both[2] = { { 0, BOX2(0, 0, 1024, 1024) }, { 1, BOX2(0, 0, 1024, 1024) } };
	static const bool fresh[2] = { false, true };
	struct ptc_store_boxes m;
	struct ptc_table *t, *src;
	struct ptc_store *s;
	struct place p;
	int64_t bytes;
	uint32_t e = 0;

	place_make(&p, fast_base());
	s = store_open(&p, 64 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	make_table(s, &k1, both, 2, x, shape);
	ok(ptc_table_open(s, &k1, &src, err));
	for (int again = 0; again < 3; again++) { /* planned, begun, resumed */
		ok(ptc_table_begin(s, &k2, &t, err));
		ok(ptc_table_derive(t, src, fresh, both, 2, again == 0, &m, &bytes, err));
		assert_int_equal(m.n, 1);
		assert_true(m.v[0].item == 1 && ptc_box_equal(&m.v[0].box, &both[1].box) && m.bytes == MIB);
		assert_true(again == 2 || bytes >= MIB);
		if (again)
			ok(ptc_table_reserve(t, m.v, 1, &e, err));
		ptc_store_boxes_done(&m);
		if (again < 2)
			ptc_table_unref(t);
	}
	ok(ptc_table_write(t, 1, &both[1].box, y, err));
	ok(ptc_table_filled(t, e, err));
	ok(ptc_table_seal(t, err));
	ptc_table_unref(src);
	ptc_table_unref(t);
	ok(ptc_store_keep(s, JOB_A, &k2, 1, err));
	expect_box(s, &k2, 0, both[0].box, x, shape);
	expect_box(s, &k2, 1, both[1].box, y, shape);
	ptc_store_close(s);
	place_remove(&p);
	free(x);
	free(y);
}

static void misuse_is_refused(void **state)
{
	const int64_t shape[] = { 4, 4 };
	uint8_t *x = tensor(4, 4, 4), buf[16];
	struct ptc_table_key k = key_of(JOB_A, 1, 1), k2 = key_of(JOB_A, 2, 1);
	struct ptc_store_box need = { 0, BOX2(0, 0, 2, 4) }, other = { 0, BOX2(0, 0, 1, 4) };
	struct ptc_box all = BOX2(0, 0, 4, 4), bad = BOX2(-1, 0, 2, 2);
	struct ptc_store_opts o;
	struct ptc_store *s, *twice = NULL;
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store_boxes m;
	struct ptc_table *t;
	struct iovec iov;
	struct place p;
	char meta[256];
	int64_t bytes;
	uint32_t e;

	place_make(&p, fast_base());
	s = store_open(&p, 64 * MIB);
	o = (struct ptc_store_opts){ .meta_dir = p.meta, .chunk_dir = p.chunks, .chunk_ceiling = MIB };
	assert_int_equal(ptc_store_open(&o, &twice, &why), PTC_ESTATE);
	snprintf(meta, sizeof meta, "%s/meta", p.chunks);
	o.meta_dir = meta; /* of another daemon, with the same folder for chunks */
	assert_int_equal(ptc_store_open(&o, &twice, &why), PTC_ESTATE);
	assert_int_equal(ptc_store_job_create(s, "../../etc/passwd-aaaaaaaaaaaaaaaaaaaa", 0, &why), PTC_EINVAL);
	assert_int_equal(ptc_table_begin(s, &k, &t, &why), PTC_ENOTFOUND);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	assert_int_equal(ptc_store_job_create(s, JOB_A, getuid() + 1, &why), PTC_EPERM);
	make_table(s, &k, &need, 1, x, shape);
	ok(ptc_table_open(s, &k, &t, err));
	assert_int_equal(ptc_table_read(t, 0, &all, buf, &why), PTC_ENOTFOUND);
	assert_int_equal(ptc_table_read(t, 1, &need.box, buf, &why), PTC_ENOTFOUND);
	assert_int_equal(ptc_table_read(t, 0, &bad, buf, &why), PTC_EINVAL);
	assert_int_equal(ptc_table_reserve(t, &need, 1, &e, &why), PTC_ESTATE);
	assert_int_equal(ptc_table_write(t, 0, &need.box, buf, &why), PTC_ESTATE);
	assert_int_equal(ptc_table_extent_iov(t, 0, 0, 8, &iov, 1), PTC_ESTATE);
	ptc_table_unref(t);
	ok(ptc_table_begin(s, &k2, &t, err));
	ok(ptc_table_reserve(t, &need, 1, &e, err));
	assert_int_equal(ptc_table_seal(t, &why), PTC_ESTATE);
	assert_int_equal(ptc_table_read(t, 0, &need.box, buf, &why), PTC_ESTATE);
	assert_int_equal(ptc_table_derive(t, NULL, NULL, &other, 1, false, &m, &bytes, &why), PTC_ESTATE);
	assert_int_equal(ptc_table_filled(t, 99, &why), PTC_EINVAL);
	ok(ptc_store_keep(s, JOB_A, &k, 1, err));
	assert_int_equal(ptc_table_filled(t, e, &why), PTC_ESTATE);
	assert_int_equal(ptc_table_seal(t, &why), PTC_ESTATE);
	ptc_table_unref(t);
	ok(ptc_store_fence(s, JOB_A, 7, err));
	assert_int_equal(ptc_store_fence(s, JOB_A, 6, &why), PTC_EFENCED);
	s = ptc_store_close(s);
	s = store_open(&p, 64 * MIB);
	assert_int_equal(ptc_store_fence(s, JOB_A, 6, &why), PTC_EFENCED);
	ok(ptc_store_fence(s, JOB_A, 7, err));
	ptc_store_close(s);
	place_remove(&p);
	free(x);
}

static void notes_outlive_us_and_go_with_the_job(void **state)
{
	struct iovec parts[] = { { (char[]){ "sec" }, 3 }, { NULL, 0 }, { (char[]){ "ond" }, 3 } };
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store *s;
	struct place p;
	void *data;
	size_t len;

	place_make(&p, fast_base());
	s = store_open(&p, 64 * MIB);
	assert_int_equal(ptc_store_note_put(s, JOB_A, "one", "x", 1, &why), PTC_ENOTFOUND);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(ptc_store_job_create(s, JOB_B, getuid(), err));
	assert_int_equal(ptc_store_note_get(s, JOB_A, "one", &data, &len, &why), PTC_ENOTFOUND);
	assert_int_equal(ptc_store_note_put(s, JOB_A, "no good", "x", 1, &why), PTC_EINVAL);
	assert_int_equal(ptc_store_note_put(s, JOB_A, "muchtoolonganame", "x", 1, &why), PTC_EINVAL);
	ok(ptc_store_note_put(s, JOB_A, "one", "first", 5, err));
	ok(ptc_store_note_put_parts(s, JOB_A, "one", parts, 3, err));
	ok(ptc_store_note_put(s, JOB_A, "two", "", 0, err));
	s = ptc_store_close(s);
	s = store_open(&p, 64 * MIB);
	ok(ptc_store_note_get(s, JOB_A, "one", &data, &len, err));
	assert_int_equal(len, 6);
	assert_memory_equal(data, "second", 6);
	ptc_free(data);
	ok(ptc_store_note_get(s, JOB_A, "two", &data, &len, err));
	assert_int_equal(len, 0);
	ptc_free(data);
	assert_int_equal(ptc_store_note_get(s, JOB_B, "one", &data, &len, &why), PTC_ENOTFOUND);
	ok(ptc_store_job_delete(s, JOB_A, err));
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	assert_int_equal(ptc_store_note_get(s, JOB_A, "one", &data, &len, &why), PTC_ENOTFOUND);
	ptc_store_close(s);
	place_remove(&p);
}

static void ceiling_is_hard_and_changes_nothing(void **state)
{
	struct ptc_table_key k = key_of(JOB_A, 1, 1), kb = key_of(JOB_B, 1, 1);
	struct ptc_store_box four[4], more[8];
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store_stats st;
	struct ptc_table *t, *tb;
	struct ptc_store *s;
	struct place p;
	uint32_t e[8];

	for (int i = 0; i < 4; i++)
		four[i] = (struct ptc_store_box){ 0, BOX1(i * MIB, MIB) };
	for (int i = 0; i < 8; i++)
		more[i] = (struct ptc_store_box){ 1, BOX1(i * MIB, MIB) };
	place_make(&p, fast_base());
	s = store_open(&p, 8 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(ptc_store_job_create(s, JOB_B, getuid(), err));
	ok(ptc_table_begin(s, &k, &t, err));
	ok(ptc_table_reserve(t, four, 4, e, err));
	assert_int_equal(ptc_table_reserve(t, more, 8, e, &why), PTC_ENOSPC);
	ptc_store_stats(s, &st);
	assert_int_equal(st.chunks_used, 5);
	assert_true((st.chunks_used + st.chunks_free) * PTC_CHUNK_BYTES <= st.ceiling);
	ptc_table_unref(t);
	ok(ptc_store_keep(s, JOB_A, NULL, 0, err));
	ptc_store_stats(s, &st);
	assert_int_equal(st.chunks_used, 0);
	ok(ptc_table_begin(s, &kb, &tb, err)); /* takes what job A keeps warm */
	ok(ptc_table_reserve(tb, more, 6, e, err));
	ptc_store_stats(s, &st);
	assert_true((st.chunks_used + st.chunks_free) * PTC_CHUNK_BYTES <= st.ceiling);
	assert_true(st.file_bytes < 12 * MIB);
	ptc_table_unref(tb);
	ptc_store_close(s);
	place_remove(&p);
}

/* A store whose ceiling is lowered below what it uses keeps every byte. It takes nothing more, and says by how much the
 * ceiling has to grow; it works under the lower ceiling once enough tables are dropped. */
static void a_lower_ceiling_loses_nothing(void **state)
{
	const int64_t shape[] = { 40, MIB }, row[] = { 1, MIB };
	uint8_t *x = tensor(40, MIB, 3);
	struct ptc_table_key k = key_of(JOB_A, 1, 1), k2 = key_of(JOB_A, 2, 1);
	struct ptc_store_box all = { 0, BOX2(0, 0, 40, MIB) }, one = { 0, BOX2(0, 0, 1, MIB) };
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store_stats st;
	struct ptc_table *t;
	struct ptc_store *s;
	unsigned long long more = 0;
	struct place p;
	uint32_t e;
	char *by;

	place_make(&p, fast_base());
	s = store_open(&p, 64 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	make_table(s, &k, &all, 1, x, shape);
	s = ptc_store_close(s);
	s = store_open(&p, 8 * MIB);
	ptc_store_stats(s, &st);
	assert_int_equal(st.lost_jobs, 0);
	assert_true(st.used_bytes > st.ceiling);
	expect_box(s, &k, 0, BOX2(0, 0, 40, MIB), x, shape);
	ok(ptc_table_begin(s, &k2, &t, err));
	assert_int_equal(ptc_table_reserve(t, &one, 1, &e, &why), PTC_ENOSPC);
	by = strstr(why.text, "raise memory.ceiling by at least ");
	if (!by || sscanf(by, "raise memory.ceiling by at least %llu MiB, or delete jobs", &more) != 1)
		fail_msg("\"%s\" does not say by how much", why.text);
	ptc_table_unref(t);
	s = ptc_store_close(s);
	s = store_open(&p, 8 * MIB + more * MIB); /* what the message says is enough */
	ok(ptc_table_begin(s, &k2, &t, err));
	ok(ptc_table_reserve(t, &one, 1, &e, err));
	ptc_table_unref(t);
	s = ptc_store_close(s);
	s = store_open(&p, 8 * MIB);
	ok(ptc_store_keep(s, JOB_A, NULL, 0, err));
	make_table(s, &k2, &one, 1, x, row);
	expect_box(s, &k2, 0, BOX2(0, 0, 1, MIB), x, row);
	ptc_store_close(s);
	place_remove(&p);
	free(x);
}

/* What a table that is being filled has: taken over, or filled just now. The old blocks have sums, and these count. */
static void what_is_filled_can_be_read(void **state)
{
	const int64_t shape[] = { 2000, 1024 };
	uint8_t *x = tensor(2000, 1024, 9), *buf = malloc(2000 * 1024);
	struct ptc_table_key k = key_of(JOB_A, 1, 1), k2 = key_of(JOB_A, 2, 1);
	struct ptc_store_box old = { 3, BOX2(0, 0, 1500, 1024) }, all = { 3, BOX2(0, 0, 2000, 1024) };
	struct ptc_box had = BOX2(3, 7, 1400, 1000), over = BOX2(1400, 0, 200, 1024), none = BOX2(1900, 0, 200, 1);
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store_boxes m;
	struct ptc_table *t, *d;
	struct ptc_store *s;
	struct place p;
	uint32_t e;
	int64_t n;

	place_make(&p, fast_base());
	s = store_open(&p, 64 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	make_table(s, &k, &old, 1, x, shape);
	ok(ptc_table_open(s, &k, &t, err));
	assert_int_equal(ptc_table_find(s, &k2, &d, &why), PTC_ENOTFOUND);
	ok(ptc_table_begin(s, &k2, &d, err));
	ptc_table_unref(d);
	assert_int_equal(ptc_table_open(s, &k2, &d, &why), PTC_ENOTFOUND);
	ok(ptc_table_find(s, &k2, &d, err)); /* as it is being filled */
	ok(ptc_table_derive(d, t, NULL, &all, 1, false, &m, &n, err));
	assert_int_equal(m.n, 1);
	ok(ptc_table_reserve(d, m.v, 1, &e, err));
	ok(ptc_table_read_filled(d, 3, &had, buf, err));
	for (int64_t r = 0; r < 1400; r++)
		assert_memory_equal(buf + r * 1000, x + (r + 3) * 1024 + 7, 1000);
	assert_int_equal(ptc_table_read_filled(d, 3, &over, buf, &why), PTC_ESTATE);
	assert_int_equal(ptc_table_read_filled(d, 3, &none, buf, &why), PTC_ENOTFOUND);
	assert_int_equal(ptc_table_read_filled(d, 4, &had, buf, &why), PTC_ENOTFOUND);
	fill_extent(d, e, x + 1500 * 1024, 500 * 1024);
	assert_int_equal(ptc_table_read_filled(d, 3, &over, buf, &why), PTC_ESTATE);
	ok(ptc_table_filled(d, e, err));
	ok(ptc_table_read_filled(d, 3, &over, buf, err));
	assert_memory_equal(buf, x + 1400 * 1024, 200 * 1024);
	ptc_store_boxes_done(&m);
	ptc_table_unref(d);
	ptc_table_unref(t);
	ptc_store_close(s);
	flip_bit(&p, x + 1000 * 1024, 64);
	s = store_open(&p, 64 * MIB);
	ok(ptc_table_begin(s, &k2, &d, err));
	assert_int_equal(ptc_table_read_filled(d, 3, &had, buf, &why), PTC_ECORRUPT);
	ptc_table_unref(d);
	ptc_store_close(s);
	place_remove(&p);
	free(x);
	free(buf);
}

#define FIRST 200000 /* bytes; the next extent begins in the same block, and nobody else fills that one */

/* Fills two extents, says how far they are there, and flips a bit of the first (at < FIRST) or the second once the
 * first `said` bytes were said to be there. -1: none. */
static struct ptc_table *fill_and_flip(struct ptc_store *s, const struct ptc_table_key *k, const uint8_t *x, int64_t at,
				       int64_t said)
{
	const struct ptc_store_box needs[] = { { 0, BOX2(0, 0, 1, FIRST) }, { 1, BOX2(0, 0, 1, FIRST) } };
	struct iovec iov[4];
	struct ptc_table *t;
	uint32_t e[2];

	ok(ptc_table_begin(s, k, &t, err));
	ok(ptc_table_reserve(t, needs, 2, e, err));
	for (int i = 0; i < 2; i++) {
		int64_t here = at - i * FIRST, before = said - i * FIRST;

		fill_extent(t, e[i], x, FIRST);
		assert_int_equal(ptc_table_extent_iov(t, e[i], 0, FIRST, iov, 4), 1);
		if (before > 0 && before < FIRST)
			ptc_table_extent_ready(t, e[i], 0, 0, before);
		if (at >= 0 && here >= 0 && here < FIRST && before < FIRST)
			((uint8_t *)iov[0].iov_base)[here] ^= 4;
		ptc_table_extent_ready(t, e[i], 0, before > 0 && before < FIRST ? before : 0, FIRST);
		if (at >= 0 && here >= 0 && here < FIRST && before >= FIRST)
			((uint8_t *)iov[0].iov_base)[here] ^= 4;
		ok(ptc_table_filled(t, e[i], err));
	}
	return t;
}

/* Whoever digests bytes once they are said to be there has digested what the checksums are of, or finds out. */
static void a_bit_flips_while_a_table_is_filled(void **state)
{
	static const struct {
		int64_t at, said;
		int seals, reads;
	} cases[] = {
		{ -1, 0, 0, 0 },
		{ -1, 100000, 0, 0 },
		{ 10, FIRST, 0, PTC_ECORRUPT },        /* of a block that has its checksum */
		{ FIRST - 1, FIRST, PTC_ECORRUPT, 0 }, /* the last one, which the next extent shares */
		{ FIRST, 2 * FIRST, PTC_ECORRUPT, 0 }, /* of the next extent */
		{ 2 * FIRST - 1, 2 * FIRST, PTC_ECORRUPT, 0 },
		{ 99999, 100000, PTC_ECORRUPT, 0 }, /* of a block that is whole later */
		{ 100000, 100000, 0, 0 },           /* nothing was said of it: it is what was written */
	};
	uint8_t *x = tensor(1, FIRST, 9), *buf = malloc(FIRST);
	struct ptc_table_key k = key_of(JOB_A, 1, 1);
	const struct ptc_box all = BOX2(0, 0, 1, FIRST);
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store *s;
	struct place p;

	place_make(&p, fast_base());
	s = store_open(&p, 64 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	for (size_t i = 0; i < PTC_ARRAY_LEN(cases); i++) {
		struct ptc_table *t = fill_and_flip(s, &k, x, cases[i].at, cases[i].said);

		assert_int_equal(ptc_table_seal(t, &why), cases[i].seals);
		if (cases[i].seals)
			assert_non_null(strstr(why.text, "faulty memory"));
		else
			assert_int_equal(ptc_table_read(t, 0, &all, buf, &why), cases[i].reads);
		ok(ptc_store_keep(s, JOB_A, NULL, 0, err));
		ptc_table_unref(t);
	}
	ptc_store_close(s);
	place_remove(&p);
	free(x);
	free(buf);
}

struct told {
	struct ptc_store_damage last;
	int n;
};

static void told(void *arg, const struct ptc_store_damage *d)
{
	struct told *t = arg;

	t->last = *d;
	t->n++;
}

static int take_extent(void *arg, const struct ptc_box *extent_box, const struct ptc_box *part,
		       const struct iovec *spans, int nspans, size_t chunk, struct ptc_error *err)
{
	return 0;
}

struct summing {
	struct ptc_table *t;
	const uint8_t *base;
	size_t differ;
};

/* As a process does that is given places and checksums. */
static int sum_extent(void *arg, const struct ptc_box *extent_box, const struct ptc_box *part,
		      const struct iovec *spans, int nspans, size_t chunk, struct ptc_error *err)
{
	struct summing *x = arg;

	for (int i = 0; i < nspans; i++) {
		struct ptc_span_chunk c;
		const uint8_t *p = spans[i].iov_base;

		ptc_table_chunk(x->t, chunk + (size_t)i, x->base, &c);
		assert_true(p >= x->base + c.at && p + spans[i].iov_len <= x->base + c.at + PTC_CHUNK_BYTES);
		for (size_t b = 0; b < PTC_CHUNK_BLOCKS; b++) {
			size_t off = b * PTC_BLOCK_BYTES, len = PTC_MIN(PTC_BLOCK_BYTES, PTC_CHUNK_BYTES - off);
			const uint8_t *begin = x->base + c.at + off;

			if (begin < p + spans[i].iov_len && p < begin + len)
				x->differ += ptc_checksum(begin, len) != c.sums[b];
		}
	}
	return 0;
}

/* How many blocks of the box do not match, found outside of the store; it tells its owner of none. */
static size_t sums_differ(struct ptc_table *t, uint32_t item, const struct ptc_box *box)
{
	struct summing x = { .t = t };
	uint64_t bytes;
	int fd;

	ok(ptc_table_file(t, &fd, &x.base, &bytes, err));
	close(fd);
	assert_true(ptc_table_in_memory(t));
	ok(ptc_table_each_unverified(t, item, box, sum_extent, &x, err));
	return x.differ;
}

/* After all of it was verified, by each way to read; the bit put right, all is well. */
static void a_bit_flips_later(void **state)
{
	const int64_t shape[] = { 2000, 1024 };
	struct ptc_store_box need = { 3, BOX2(0, 0, 2000, 1024) };
	uint8_t *x = tensor(2000, 1024, 5), *buf = malloc(2000 * 1024);
	struct ptc_table_key k = key_of(JOB_A, 1, 1), k2 = key_of(JOB_A, 2, 1);
	struct ptc_store_box left = { 3, BOX2(0, 0, 2000, 100) };
	struct ptc_store_opts opts = { .chunk_ceiling = 64 * MIB, .damaged = told };
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store_boxes m;
	struct ptc_table *t, *d;
	struct iovec iov[8];
	struct ptc_store *s;
	struct told seen = { 0 };
	uint64_t digest;
	struct place p;
	int64_t bytes;
	int n;

	place_make(&p, fast_base());
	opts.meta_dir = p.meta;
	opts.chunk_dir = p.chunks;
	opts.damaged_arg = &seen;
	ok(ptc_store_open(&opts, &s, err));
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	make_table(s, &k, &need, 1, x, shape);
	ok(ptc_table_open(s, &k, &t, err));
	for (int round = 0; round < 3; round++) {
		int want = round == 1 ? PTC_ECORRUPT : 0;

		assert_int_equal(ptc_table_read(t, 3, &need.box, buf, &why), want);
		assert_int_equal(ptc_table_read_iov(t, 3, &need.box, iov, 8, &n, &why), want);
		assert_int_equal(ptc_table_each_extent(t, 3, &need.box, take_extent, NULL, &why), want);
		assert_int_equal(sums_differ(t, 3, &need.box), want != 0);
		assert_int_equal(ptc_table_digest(t, 3, &need.box, 2, shape, &digest, &why), want);
		assert_int_equal(ptc_table_scrub(t, NULL, NULL, &bytes, &why), want);
		ok(ptc_table_begin(s, &k2, &d, err));
		assert_int_equal(ptc_table_derive(d, t, NULL, &left, 1, false, &m, &bytes, &why), want);
		if (!want)
			ptc_store_boxes_done(&m);
		ptc_table_unref(d);
		ok(ptc_store_keep(s, JOB_A, &k, 1, err));
		flip_bit(&p, x + 1500 * 1024, 64); /* of a file that is mapped */
		x[1500 * 1024] ^= 4;               /* so that the next one finds it */
	}
	assert_int_equal(seen.n, 1);
	assert_int_equal(seen.last.item, 3);
	assert_true(seen.last.first <= 1500 && seen.last.last >= 1500 && seen.last.last - seen.last.first <= 64);
	assert_int_equal(seen.last.key.generation, 1);
	ptc_table_unref(t);
	ptc_store_close(s);
	place_remove(&p);
	free(x);
	free(buf);
}

static void a_flipped_bit_is_named(void **state)
{
	const int64_t shape[] = { 2000, 1024 };
	uint8_t *x = tensor(2000, 1024, 5), *buf = malloc(2000 * 1024);
	struct ptc_table_key k = key_of(JOB_A, 1, 1), k2 = key_of(JOB_A, 2, 1);
	struct ptc_store_box need = { 3, BOX2(0, 0, 2000, 1024) }, left = { 3, BOX2(0, 0, 2000, 100) };
	struct ptc_box top = BOX2(0, 0, 100, 1024), bad = BOX2(1400, 0, 300, 1024);
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store_boxes m;
	struct ptc_table *t, *d;
	struct ptc_store *s;
	struct place p;
	int64_t n;

	place_make(&p, fast_base());
	s = store_open(&p, 64 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	make_table(s, &k, &need, 1, x, shape);
	ptc_store_close(s);
	flip_bit(&p, x + 1500 * 1024, 64);
	s = store_open(&p, 64 * MIB);
	ok(ptc_table_open(s, &k, &t, err));
	ok(ptc_table_read(t, 3, &top, buf, err));
	assert_int_equal(ptc_table_read(t, 3, &bad, buf, &why), PTC_ECORRUPT);
	assert_non_null(strstr(why.text, "item 3, rows 14"));
	assert_non_null(strstr(why.text, "chunk 2"));
	assert_int_equal(ptc_table_scrub(t, NULL, NULL, &n, &why), PTC_ECORRUPT);
	ok(ptc_table_begin(s, &k2, &d, err));
	assert_int_equal(ptc_table_derive(d, t, NULL, &left, 1, false, &m, &n, &why), PTC_ECORRUPT);
	ptc_table_unref(d);
	ptc_table_unref(t);
	ptc_store_close(s);
	place_remove(&p);
	free(x);
	free(buf);
}

/* Small boxes one after the other, of which many lie in one block: those of the damaged block are refused, each of them
 * and no other. */
static void a_flipped_bit_in_a_row_of_reads(void **state)
{
	const int64_t shape[] = { 2000, 1024 };
	uint8_t *x = tensor(2000, 1024, 5), row[1024];
	struct ptc_table_key k = key_of(JOB_A, 1, 1);
	struct ptc_store_box need = { 3, BOX2(0, 0, 2000, 1024) };
	struct ptc_verified seen = { 0 }, digested = { 0 };
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_table *t;
	struct ptc_store *s;
	struct place p;
	uint64_t digest;
	int bad = 0;

	place_make(&p, fast_base());
	s = store_open(&p, 64 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	make_table(s, &k, &need, 1, x, shape);
	ptc_store_close(s);
	flip_bit(&p, x + 1500 * 1024, 64);
	s = store_open(&p, 64 * MIB);
	ok(ptc_table_open(s, &k, &t, err));
	for (int64_t r = 0; r < 2000; r++) {
		struct ptc_box box = BOX2(0, 0, 1, 1024);
		int rc;

		box.off[0] = r;
		rc = ptc_table_read_row(t, 3, &box, row, &seen, &why);
		assert_int_equal(rc, ptc_table_read(t, 3, &box, row, &why));
		assert_int_equal(rc, ptc_table_digest_row(t, 3, &box, 2, shape, &digest, &digested, &why));
		if (rc == 0)
			assert_memory_equal(row, x + r * 1024, 1024);
		else
			assert_int_equal(rc, PTC_ECORRUPT);
		bad += rc != 0;
	}
	assert_in_range(bad, 64, 65); /* of 64 KiB, which may begin within a row */
	ptc_table_unref(t);
	ptc_store_close(s);
	place_remove(&p);
	free(x);
}

static void count_jobs(void *arg, const char *uuid, uid_t uid, bool lost)
{
	int *n = arg;

	n[0]++;
	n[1] += lost;
	if (lost)
		assert_string_equal(uuid, JOB_A);
}

static void a_lost_job_harms_no_other(void **state)
{
	const int64_t shape[] = { 100, 100 };
	uint8_t *x = tensor(100, 100, 6);
	struct ptc_table_key k = key_of(JOB_A, 1, 1), kb = key_of(JOB_B, 1, 1);
	struct ptc_store_box need = { 0, BOX2(0, 0, 100, 100) };
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store_stats st;
	struct ptc_table *t;
	struct ptc_store *s;
	struct place p;
	char path[160];

	for (int round = 0; round < 3; round++) {
		int n[2] = { 0, 0 };

		place_make(&p, fast_base());
		s = store_open(&p, 64 * MIB);
		ok(ptc_store_job_create(s, JOB_A, getuid(), err));
		ok(ptc_store_job_create(s, JOB_B, getuid(), err));
		make_table(s, &k, &need, 1, x, shape);
		make_table(s, &kb, &need, 1, x, shape);
		ptc_store_close(s);
		snprintf(path, sizeof path, "%s/%s%s", p.chunks, JOB_A, round == 0 ? "" : "/data.mdb");
		if (round < 2)
			assert_int_equal(ptc_sys_remove_tree(path, NULL, NULL), 0);
		else
			assert_int_equal(truncate(path, 3 * 4096), 0);
		s = store_open(&p, 64 * MIB);
		ok(ptc_store_jobs(s, count_jobs, n, err));
		assert_int_equal(n[0], 2);
		assert_int_equal(n[1], 1);
		assert_int_equal(ptc_table_open(s, &k, &t, &why), PTC_ELOST);
		assert_int_equal(ptc_table_begin(s, &k, &t, &why), PTC_ELOST);
		assert_int_equal(ptc_store_keep(s, JOB_A, NULL, 0, &why), PTC_ELOST);
		expect_box(s, &kb, 0, need.box, x, shape);
		ok(ptc_store_job_delete(s, JOB_A, err));
		ok(ptc_store_job_create(s, JOB_A, getuid(), err));
		make_table(s, &k, &need, 1, x, shape);
		expect_box(s, &k, 0, need.box, x, shape);
		ptc_store_stats(s, &st);
		assert_int_equal(st.lost_jobs, 0);
		ptc_store_close(s);
		place_remove(&p);
	}
	free(x);
}

/* A job that has lost its chunks begins anew: with its owner, fence and notes, and no table; also after one more open.
 */
static void a_lost_job_begins_anew(void **state)
{
	const int64_t shape[] = { 100, 100 };
	uint8_t *x = tensor(100, 100, 6);
	struct ptc_table_key k = key_of(JOB_A, 1, 1), k2 = key_of(JOB_A, 2, 2);
	struct ptc_store_box need = { 0, BOX2(0, 0, 100, 100) };
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store_stats st;
	struct ptc_table *t;
	struct ptc_store *s;
	struct place p;
	char path[160];
	void *note;
	size_t len;

	for (int round = 0; round < 3; round++) {
		place_make(&p, fast_base());
		s = store_open(&p, 64 * MIB);
		ok(ptc_store_job_create(s, JOB_A, getuid(), err));
		ok(ptc_store_fence(s, JOB_A, 7, err));
		ok(ptc_store_note_put(s, JOB_A, "kept", "note", 4, err));
		make_table(s, &k, &need, 1, x, shape);
		ok(ptc_store_job_anew(s, JOB_A, err)); /* nothing is lost: it stays as it is */
		ok(ptc_store_job_anew(s, JOB_B, err));
		expect_box(s, &k, 0, need.box, x, shape);
		ptc_store_close(s);
		snprintf(path, sizeof path, "%s/%s%s", p.chunks, JOB_A, round == 0 ? "" : "/data.mdb");
		if (round < 2)
			assert_int_equal(ptc_sys_remove_tree(path, NULL, NULL), 0);
		else
			assert_int_equal(truncate(path, 3 * 4096), 0);
		s = store_open(&p, 64 * MIB);
		assert_int_equal(ptc_table_open(s, &k, &t, &why), PTC_ELOST);
		ok(ptc_store_job_anew(s, JOB_A, err));
		assert_int_equal(ptc_table_open(s, &k, &t, &why), PTC_ENOTFOUND);
		make_table(s, &k2, &need, 1, x, shape);
		expect_box(s, &k2, 0, need.box, x, shape);
		ptc_store_close(s);
		s = store_open(&p, 64 * MIB);
		assert_int_equal(ptc_table_open(s, &k, &t, &why), PTC_ENOTFOUND);
		expect_box(s, &k2, 0, need.box, x, shape);
		assert_int_equal(ptc_store_fence(s, JOB_A, 6, &why), PTC_EFENCED);
		ok(ptc_store_note_get(s, JOB_A, "kept", &note, &len, err));
		assert_true(len == 4 && memcmp(note, "note", 4) == 0);
		ptc_free(note);
		ptc_store_stats(s, &st);
		assert_int_equal(st.lost_jobs, 0);
		ptc_store_close(s);
		place_remove(&p);
	}
	free(x);
}

/* A reference held across keep and job_delete keeps its bytes. */
static void references_outlive_the_registry(void **state)
{
	const int64_t shape[] = { 1000, 1000 };
	uint8_t *x = tensor(1000, 1000, 8), *buf = malloc(1000000);
	struct ptc_table_key k = key_of(JOB_A, 1, 1), k2 = key_of(JOB_A, 2, 1), k3 = key_of(JOB_A, 3, 1);
	struct ptc_store_box need = { 0, BOX2(0, 0, 1000, 1000) };
	struct ptc_store_boxes m;
	struct ptc_store_stats st;
	struct ptc_table *t, *d;
	struct ptc_store *s;
	struct place p;
	int64_t n;

	place_make(&p, fast_base());
	s = store_open(&p, 64 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	make_table(s, &k, &need, 1, x, shape);
	ok(ptc_table_open(s, &k, &t, err));
	ok(ptc_store_keep(s, JOB_A, NULL, 0, err));
	make_table(s, &k2, &need, 1, x, shape);
	ok(ptc_table_read(t, 0, &need.box, buf, err));
	assert_memory_equal(buf, x, 1000000);
	ok(ptc_table_begin(s, &k3, &d, err)); /* sums must be written again: meta has dropped them */
	ok(ptc_table_derive(d, t, NULL, &need, 1, false, &m, &n, err));
	assert_int_equal(m.n, 0);
	ptc_store_boxes_done(&m);
	ok(ptc_table_seal(d, err));
	ptc_table_unref(d);
	ptc_table_unref(t);
	s = ptc_store_close(s);
	s = store_open(&p, 64 * MIB);
	expect_box(s, &k3, 0, need.box, x, shape);
	ok(ptc_table_open(s, &k3, &t, err));
	ok(ptc_store_job_delete(s, JOB_A, err));
	ok(ptc_table_read(t, 0, &need.box, buf, err));
	assert_memory_equal(buf, x, 1000000);
	ptc_table_unref(t);
	ptc_store_stats(s, &st);
	assert_int_equal(st.chunks_used + st.chunks_free, 0);
	ptc_store_close(s);
	place_remove(&p);
	free(x);
	free(buf);
}

static void descriptors_are_close_on_exec(void **state)
{
	struct ptc_store *s;
	struct dirent *e;
	struct place p;
	int seen = 0;
	DIR *d;

	place_make(&p, fast_base());
	s = store_open(&p, 64 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	d = opendir("/proc/self/fd");
	while ((e = readdir(d))) {
		char link[300], to[300] = "";

		snprintf(link, sizeof link, "/proc/self/fd/%s", e->d_name);
		if (readlink(link, to, sizeof to - 1) < 0 || strncmp(to, p.dir, strlen(p.dir)) != 0)
			continue;
		seen++;
		assert_true(fcntl(atoi(e->d_name), F_GETFD) & FD_CLOEXEC);
	}
	closedir(d);
	assert_true(seen >= 5);
	ptc_store_close(s);
	place_remove(&p);
}

/* A process of its own that has the chunks to write to, and nothing else of ours. */
static pid_t writer_begin(int fd, int *ret_end)
{
	int fds[2], ready[2];
	pid_t pid;
	char c;

	assert_true(pipe2(fds, O_CLOEXEC) == 0 && pipe2(ready, O_CLOEXEC) == 0);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* also when an assertion ends this test */
		dup2(fd, 100);
		dup2(fds[0], 101);
		close_range(3, 99, 0);
		close_range(102, ~0u, 0);
		_exit(read(101, &c, 1) != 0);
	}
	close(fds[0]);
	close(ready[1]);
	assert_int_equal(read(ready[0], &c, 1), 0); /* it has closed all else */
	close(ready[0]);
	*ret_end = fds[1];
	return pid;
}

/* Chunks that a process may still write to, for a ptcd that was killed, are given to nobody until that process has
 * ended. */
static void a_writer_that_outlives_us_is_waited_for(void **state)
{
	struct ptc_table_key key = key_of(JOB_A, 1, 1), other = key_of(JOB_B, 1, 1);
	struct ptc_store_box box = { 0, BOX1(0, 1000) };
	struct ptc_error error = PTC_ERROR_INIT;
	struct ptc_table *t;
	const uint8_t *base;
	struct ptc_store *s;
	uint64_t bytes;
	struct place p;
	uint32_t extent;
	pid_t writer;
	int fd, end;

	(void)state;
	place_make(&p, fast_base());
	s = store_open(&p, 64 << 20);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(ptc_store_job_create(s, JOB_B, getuid(), err));
	ok(ptc_table_begin(s, &key, &t, err));
	assert_int_equal(ptc_table_file_writable(t, &fd, &base, &bytes, &error), PTC_ESTATE); /* it has no bytes yet */
	ok(ptc_table_reserve(t, &box, 1, &extent, err));
	ok(ptc_table_file_writable(t, &fd, &base, &bytes, err));
	writer = writer_begin(fd, &end);
	close(fd);
	ptc_table_unref(t);
	ptc_store_close(s);

	s = store_open(&p, 64 << 20);
	ok(ptc_table_begin(s, &other, &t, err));
	ok(ptc_table_reserve(t, &box, 1, &extent, err)); /* of another job */
	ptc_table_unref(t);
	key.snapshot = 2;
	ok(ptc_table_begin(s, &key, &t, err));
	assert_int_equal(ptc_table_reserve(t, &box, 1, &extent, &error), PTC_ESTATE);
	assert_non_null(strstr(error.text, "is stuck copying"));
	close(end);
	assert_int_equal(waitpid(writer, NULL, 0), writer);
	ok(ptc_table_reserve(t, &box, 1, &extent, err));
	ptc_table_unref(t);
	ptc_store_close(s);
	place_remove(&p);
}

/* Many small extents: packed, and a table larger than one meta value. */
static void a_table_of_100000_pieces(void **state)
{
	const size_t n = 100000;
	struct ptc_store_box *b = calloc(n, sizeof *b);
	uint32_t *e = calloc(n, sizeof *e);
	struct ptc_table_key k = key_of(JOB_A, 1, 1), k2 = key_of(JOB_A, 1, 2);
	struct ptc_store_stats st;
	struct ptc_table *t;
	struct ptc_store *s;
	struct place p;
	size_t got;

	for (size_t i = 0; i < n; i++)
		b[i] = (struct ptc_store_box){ (uint32_t)i, BOX2(1, 0, 3, 20) };
	place_make(&p, fast_base());
	s = store_open(&p, 64 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(ptc_table_begin(s, &k, &t, err));
	ok(ptc_table_reserve(t, b, n, e, err));
	for (size_t i = 0; i < n; i++) {
		uint8_t bytes[60];

		memset(bytes, (int)i, sizeof bytes);
		ok(ptc_table_write(t, (uint32_t)i, &b[i].box, bytes, err));
	}
	ok(ptc_table_filled_all(t, err));
	ok(ptc_table_seal(t, err));
	ptc_table_unref(t);
	ok(ptc_table_alias(s, &k, &k2, err));
	ok(ptc_store_keep(s, JOB_A, &k2, 1, err));
	s = ptc_store_close(s);
	s = store_open(&p, 64 * MIB);
	ptc_store_stats(s, &st);
	assert_int_equal(st.chunks_used, 7);
	ok(ptc_table_open(s, &k2, &t, err));
	assert_non_null(ptc_table_all_pieces(t, &got));
	assert_int_equal(got, n);
	for (size_t i = 0; i < n; i++) {
		uint8_t bytes[60], want[60];

		memset(want, (int)i, sizeof want);
		assert_int_equal(ptc_table_all_pieces(t, &got)[i].item, i);
		ok(ptc_table_read(t, (uint32_t)i, &b[i].box, bytes, err));
		assert_memory_equal(bytes, want, sizeof want);
	}
	ptc_table_unref(t);
	ptc_store_close(s);
	place_remove(&p);
	free(b);
	free(e);
}

/* The whole life of a table; returns the first error. */
static int life(const struct place *p, struct ptc_error *err)
{
	struct ptc_store_opts o = { .meta_dir = p->meta, .chunk_dir = p->chunks, .chunk_ceiling = 64 * MIB };
	struct ptc_table_key k = key_of(JOB_A, 1, 1), k2 = key_of(JOB_A, 2, 1), k3 = key_of(JOB_A, 2, 2);
	struct ptc_store_box need = { 0, BOX2(0, 0, 30, 100) }, part = { 0, BOX2(0, 0, 40, 20) };
	struct ptc_table *t = NULL, *d = NULL;
	struct ptc_store_boxes m = { 0 };
	struct ptc_store *s = NULL;
	uint8_t data[4000] = { 1 };
	int64_t n;
	uint32_t e[8];
	int rc = ptc_store_open(&o, &s, err);

	if (!rc)
		rc = ptc_store_job_create(s, JOB_A, getuid(), err);
	if (!rc)
		rc = ptc_table_begin(s, &k, &t, err);
	if (!rc)
		rc = ptc_table_reserve(t, &need, 1, e, err);
	if (!rc)
		rc = ptc_table_write(t, 0, &need.box, data, err);
	if (!rc)
		rc = ptc_table_filled_all(t, err);
	if (!rc)
		rc = ptc_table_seal(t, err);
	if (!rc)
		rc = ptc_table_begin(s, &k2, &d, err);
	if (!rc)
		rc = ptc_table_derive(d, t, NULL, &part, 1, false, &m, &n, err);
	if (!rc)
		rc = ptc_table_reserve(d, m.v, m.n, e, err);
	if (!rc)
		rc = ptc_table_filled_all(d, err);
	if (!rc)
		rc = ptc_table_seal(d, err);
	if (!rc)
		rc = ptc_table_alias(s, &k2, &k3, err);
	if (!rc)
		rc = ptc_table_read(d, 0, &part.box, data, err);
	if (!rc)
		rc = ptc_store_keep(s, JOB_A, &k3, 1, err);
	ptc_store_boxes_done(&m);
	ptc_table_unref(t);
	ptc_table_unref(d);
	if (!rc) {
		ptc_store_close(s);
		rc = ptc_store_open(&o, &s, err);
		if (rc)
			return rc;
	}
	ptc_store_close(s);
	return rc;
}

static void every_allocation_may_fail(void **state)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store *s;
	struct place p;
	uint64_t at;

	for (at = 1; at < 2000; at++) {
		uint64_t before, made;
		int rc;

		place_make(&p, fast_base());
		before = ptc_alloc_count();
		ptc_alloc_fail_at(at);
		rc = life(&p, &why);
		ptc_alloc_fail_at(0);
		made = ptc_alloc_count() - before;
		assert_int_equal(ptc_alloc_live(), 0);
		s = store_open(&p, 64 * MIB); /* what is left is consistent */
		ok(ptc_store_job_delete(s, JOB_A, err));
		ptc_store_close(s);
		ok(life(&p, err));
		place_remove(&p);
		if (made < at) /* it never came to the failing one */
			break;
		if (rc != 0)
			assert_int_equal(rc, PTC_ENOMEM);
	}
	assert_in_range(at, 20, 1999);
}

#define WORKERS 4
struct worker {
	pthread_t id;
	struct ptc_table *t;
	uint32_t item;
	int rc;
};

/* Reserves and fills 24 extents of its own item, in small steps, as transfers do. */
static void *work(void *arg)
{
	struct worker *w = arg;
	uint8_t *buf = malloc(700000);

	memset(buf, (int)w->item + 1, 700000);
	for (int i = 0; i < 24 && !w->rc; i++) {
		struct ptc_store_box b = { w->item, BOX1(i * 700000, 700000) };
		uint32_t e;

		w->rc = ptc_table_reserve(w->t, &b, 1, &e, NULL);
		if (!w->rc && i % 2)
			w->rc = ptc_table_write(w->t, w->item, &b.box, buf, NULL);
		else if (!w->rc)
			fill_extent(w->t, e, buf, 700000);
		if (!w->rc)
			w->rc = ptc_table_filled(w->t, e, NULL);
		if (!w->rc && i % 8 == 0)
			w->rc = ptc_table_flush(w->t, NULL);
	}
	free(buf);
	return NULL;
}

static void *read_back(void *arg)
{
	struct worker *w = arg;
	uint8_t *got = malloc(24 * 700000), *want = malloc(24 * 700000);
	struct ptc_box b = BOX1(0, 24 * 700000);

	memset(want, (int)w->item + 1, 24 * 700000);
	w->rc = ptc_table_read(w->t, w->item, &b, got, NULL);
	if (!w->rc && memcmp(got, want, 24 * 700000) != 0)
		w->rc = 1;
	free(got);
	free(want);
	return NULL;
}

static void run_workers(struct ptc_table *t, void *(*fn)(void *))
{
	struct worker w[WORKERS] = { 0 };

	for (uint32_t i = 0; i < WORKERS; i++) {
		w[i].t = t;
		w[i].item = i % 2 && fn == read_back ? i - 1 : i; /* two readers of the same blocks */
		assert_int_equal(pthread_create(&w[i].id, NULL, fn, &w[i]), 0);
	}
	for (int i = 0; i < WORKERS; i++) {
		pthread_join(w[i].id, NULL);
		assert_int_equal(w[i].rc, 0);
	}
}

static void threads_fill_and_read(void **state)
{
	struct ptc_table_key k = key_of(JOB_A, 1, 1);
	struct ptc_table *t;
	struct ptc_store *s;
	struct place p;

	place_make(&p, fast_base());
	s = store_open(&p, 128 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(ptc_table_begin(s, &k, &t, err));
	run_workers(t, work);
	ok(ptc_table_seal(t, err));
	ptc_table_unref(t);
	ptc_store_close(s);
	s = store_open(&p, 128 * MIB); /* blocks are verified by several readers at once */
	ok(ptc_table_open(s, &k, &t, err));
	run_workers(t, read_back);
	ptc_table_unref(t);
	ptc_store_close(s);
	place_remove(&p);
}

static void warm_memory_is_used_next(void **state)
{
	struct ptc_store_stats before, after;
	struct ptc_table_key k = key_of(JOB_A, 1, 1);
	struct ptc_store_box box = { 0, BOX1(0, 6 * (int64_t)MIB) };
	struct ptc_table *t;
	struct ptc_store *s;
	struct place p;
	uint32_t extent;

	place_make(&p, fast_base());
	s = store_open(&p, 32 * MIB);
	assert_int_equal(ptc_store_warm(s, JOB_A, MIB, NULL), PTC_ENOTFOUND);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(ptc_store_warm(s, JOB_A, 8 * MIB, err));
	ok(ptc_store_warm(s, JOB_A, 4 * MIB, err));
	ptc_store_stats(s, &before);
	assert_true(before.chunks_free >= 8 && before.chunks_used == 0 && before.file_bytes >= 8 * MIB);
	assert_int_equal(ptc_store_warm(s, JOB_A, 64 * MIB, NULL), PTC_ENOSPC);
	ok(ptc_table_begin(s, &k, &t, err));
	ok(ptc_table_reserve(t, &box, 1, &extent, err));
	ptc_store_stats(s, &after);
	assert_int_equal(after.chunks_free + after.chunks_used, before.chunks_free);
	assert_true(after.chunks_used >= 6 && after.file_bytes <= before.file_bytes + MIB / 4);
	ptc_table_unref(t);
	ptc_store_close(s);
	place_remove(&p);
}

/* Which pages another process has to map, and whether they are there. */
static void pages_of_another_process(void **state)
{
	struct ptc_table_key k = key_of(JOB_A, 1, 1);
	struct ptc_store_box boxes[] = { { 0, BOX1(0, 3 * (int64_t)MIB) },
					 { 0, BOX1(3 * (int64_t)MIB, 8 * (int64_t)MIB) } };
	const bool tmpfs = strcmp(fast_base(), "/dev/shm") == 0;
	struct ptc_table *t;
	struct ptc_store *s;
	uint32_t warm, cold;
	struct place p;
	bool there;

	(void)state;
	place_make(&p, fast_base());
	s = store_open(&p, 64 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(ptc_store_warm(s, JOB_A, 4 * MIB, err));
	ok(ptc_table_begin(s, &k, &t, err));
	ok(ptc_table_reserve(t, &boxes[0], 1, &warm, err));
	ok(ptc_table_reserve(t, &boxes[1], 1, &cold, err));
	assert_true(ptc_table_extent_fresh(t, warm, 0, &there)); /* nothing is noted of it */
	assert_int_equal(there, tmpfs);
	assert_true(ptc_table_extent_fresh(t, warm, 7, &there));
	assert_int_equal(there, tmpfs);
	assert_false(ptc_table_extent_fresh(t, warm, 7, &there));
	assert_true(ptc_table_extent_fresh(t, cold, 7, &there));
	assert_false(there); /* nobody has written all of them */
	assert_false(ptc_table_extent_fresh(t, cold, 7, &there));
	assert_true(ptc_table_extent_fresh(t, cold, 8, &there));
	assert_int_equal(there, tmpfs); /* 7 has */
	ptc_table_unref(t);
	ptc_store_close(s);
	place_remove(&p);
}

/* Memory that is not the store's own is taken off the ceiling; chunks have the first right to it. */
static void other_memory_counts(void **state)
{
	struct ptc_table_key k = key_of(JOB_A, 1, 1);
	struct ptc_store_box boxes[] = { { 0, BOX1(0, 8 * (int64_t)MIB) },
					 { 0, BOX1(8 * (int64_t)MIB, 8 * (int64_t)MIB) },
					 { 0, BOX1(16 * (int64_t)MIB, 8 * (int64_t)MIB) } };
	struct ptc_store_stats stats;
	struct ptc_table *t;
	struct ptc_store *s;
	uint32_t extents[2];
	struct place p;

	(void)state;
	place_make(&p, fast_base());
	s = store_open(&p, 32 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(ptc_store_warm(s, JOB_A, 28 * MIB, err));
	assert_int_equal(ptc_store_outside_take(s, 17 * MIB, NULL), PTC_ENOSPC);
	assert_int_equal(ptc_store_outside_take(s, UINT64_MAX, NULL), PTC_ENOSPC);
	ok(ptc_store_outside_take(s, 10 * MIB, err));
	assert_int_equal(ptc_store_outside_take(s, 7 * MIB, NULL), PTC_ENOSPC);
	ptc_store_stats(s, &stats);
	assert_true(stats.outside_bytes == 10 * MIB && stats.chunks_free * PTC_CHUNK_BYTES <= 22 * MIB);
	assert_true(stats.file_bytes <= 23 * MIB);
	ok(ptc_table_begin(s, &k, &t, err));
	ok(ptc_table_reserve(t, boxes, 2, extents, err));
	assert_int_equal(ptc_table_reserve(t, &boxes[2], 1, extents, NULL), PTC_ENOSPC);
	assert_int_equal(ptc_store_outside_take(s, 1, NULL), PTC_ENOSPC);
	ptc_store_outside_give(s, 10 * MIB);
	ok(ptc_table_reserve(t, &boxes[2], 1, extents, err));
	ptc_table_unref(t);
	ptc_store_close(s);
	place_remove(&p);
}

#define HUGE_EXTENTS 3
#define HUGE_EXTENT  (8 * (int64_t)MIB)

static void table_of_extents(struct ptc_store *s, const struct ptc_table_key *k, const uint8_t *bytes)
{
	struct ptc_store_box boxes[HUGE_EXTENTS];
	uint32_t extents[HUGE_EXTENTS];
	struct ptc_table *t;

	ok(ptc_table_begin(s, k, &t, err));
	for (uint32_t i = 0; i < HUGE_EXTENTS; i++)
		boxes[i] = (struct ptc_store_box){ i, BOX1(0, HUGE_EXTENT) };
	ok(ptc_table_reserve(t, boxes, HUGE_EXTENTS, extents, err));
	for (uint32_t i = 0; i < HUGE_EXTENTS; i++) {
		fill_extent(t, extents[i], bytes + i * HUGE_EXTENT, HUGE_EXTENT);
		ok(ptc_table_filled(t, extents[i], err));
	}
	ok(ptc_table_seal(t, err));
	ptc_table_unref(t);
}

static void expect_extents(struct ptc_store *s, const struct ptc_table_key *k, const uint8_t *bytes)
{
	uint8_t *got = malloc(HUGE_EXTENT);
	struct ptc_table *t;
	int64_t scrubbed;

	ok(ptc_table_open(s, k, &t, err));
	for (uint32_t i = 0; i < HUGE_EXTENTS; i++) {
		struct ptc_box b = BOX1(0, HUGE_EXTENT);

		ok(ptc_table_read(t, i, &b, got, err));
		assert_memory_equal(got, bytes + i * HUGE_EXTENT, HUGE_EXTENT);
	}
	ok(ptc_table_scrub(t, NULL, NULL, &scrubbed, err));
	ptc_table_unref(t);
	free(got);
}

/* Bytes stay while they are put into huge pages, under readers, and memory that is given back is given back. */
static void huge_pages_change_nothing(void **state)
{
	struct ptc_table_key a = key_of(JOB_A, 1, 1), b = key_of(JOB_A, 2, 1);
	uint8_t *bytes = malloc(HUGE_EXTENTS * HUGE_EXTENT);
	unsigned seed = 3;
	struct ptc_store_stats st;
	struct ptc_store_opts o;
	struct ptc_store *s;
	struct place p;

	place_make(&p, fast_base());
	o = (struct ptc_store_opts){
		.meta_dir = p.meta, .chunk_dir = p.chunks, .chunk_ceiling = 96 * MIB, .cushion_bytes = 4 * MIB
	};
	ok(ptc_store_open(&o, &s, err));
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	for (size_t i = 0; i < HUGE_EXTENTS * HUGE_EXTENT; i++)
		bytes[i] = (uint8_t)rand_r(&seed);
	table_of_extents(s, &a, bytes);
	for (int i = 0; i < 400; i++) { /* 10 s: a kernel that cannot, or a machine that has no time, is no failure */
		ptc_store_stats(s, &st);
		if (st.huge_bytes >= 20 * MIB)
			break;
		expect_extents(s, &a, bytes);
		usleep(20000);
	}
	expect_extents(s, &a, bytes);
	print_message("%llu MiB in huge pages\n", (unsigned long long)(st.huge_bytes / MIB));
	table_of_extents(s, &b, bytes);
	ok(ptc_store_keep(s, JOB_A, &b, 1, err));
	ptc_store_stats(s, &st);
	assert_true(st.file_bytes < (24 + 4 + 6) * MIB);
	expect_extents(s, &b, bytes);
	ptc_store_close(s);
	ok(ptc_store_open(&o, &s, err));
	expect_extents(s, &b, bytes);
	ptc_store_close(s);
	place_remove(&p);
	free(bytes);
}

/* A table of many small extents, filled with its generation. */
static int small_table(struct ptc_store *s, uint64_t generation, struct ptc_error *err)
{
	enum { N = 400 };
	struct ptc_table_key k = key_of(JOB_A, generation, generation);
	struct ptc_store_box b[N];
	uint8_t bytes[192];
	uint32_t ext[N];
	struct ptc_table *t;
	int rc = ptc_table_begin(s, &k, &t, err);

	memset(bytes, (int)generation, sizeof bytes);
	for (int i = 0; i < N; i++)
		b[i] = (struct ptc_store_box){ (uint32_t)i, BOX1(0, sizeof bytes) };
	if (rc)
		return rc;
	rc = ptc_table_reserve(t, b, N, ext, err);
	for (int i = 0; i < N && !rc; i++) {
		fill_extent(t, ext[i], bytes, sizeof bytes);
		rc = ptc_table_filled(t, ext[i], err);
	}
	if (rc == 0)
		rc = ptc_table_seal(t, err);
	ptc_table_unref(t);
	return rc;
}

static void expect_small_tables(struct ptc_store *s, uint64_t last)
{
	for (uint64_t g = 1; g <= last; g++) {
		struct ptc_table_key k = key_of(JOB_A, g, g);
		struct ptc_box b = BOX1(0, 192);
		struct ptc_table *t;
		uint8_t got[192];

		ok(ptc_table_open(s, &k, &t, err));
		for (uint32_t i = 0; i < 400; i++) {
			ok(ptc_table_read(t, i, &b, got, err));
			assert_int_equal(got[0], (uint8_t)g);
			assert_memory_equal(got, got + 1, sizeof got - 1);
		}
		ptc_table_unref(t);
	}
}

/* Maps are made so large that the ceiling comes first; here they are made small while the store is open. */
static void a_full_map_loses_nothing(void **state)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_store_stats after;
	struct ptc_store *s;
	struct place p;
	uint64_t generation = 1, map_bytes;
	MDB_envinfo info;
	int rc;

	place_make(&p, fast_base());
	s = store_open(&p, 128 * MIB);
	ok(ptc_store_job_create(s, JOB_A, getuid(), err));
	ok(small_table(s, generation, err));
	map_bytes = s->jobs->map_bytes; /* of its chunks */
	s->jobs->map_bytes = s->jobs->alloc_end;
	for (rc = 0; !rc;)
		if (!(rc = small_table(s, generation + 1, &why)))
			generation++;
	assert_int_equal(rc, PTC_ENOSPC);
	assert_non_null(strstr(why.text, "chunk map of job " JOB_A " is full"));
	expect_small_tables(s, generation);
	s->jobs->map_bytes = map_bytes;
	ok(small_table(s, ++generation, err));
	mdb_env_info(s->meta, &info);
	assert_int_equal(mdb_env_set_mapsize(s->meta, (info.me_last_pgno + 12) * s->jobs->page), 0);
	for (rc = 0; !rc && generation < 100;)
		if (!(rc = small_table(s, generation + 1, &why)))
			generation++;
	assert_int_equal(rc, PTC_ENOSPC);
	assert_non_null(strstr(why.text, "MDB_MAP_FULL"));
	expect_small_tables(s, generation);
	ptc_store_close(s);
	s = store_open(&p, 128 * MIB); /* with its own size again, and what was not sealed begun */
	expect_small_tables(s, generation);
	for (int i = 0; i < 3; i++)
		ok(small_table(s, ++generation, err));
	expect_small_tables(s, generation);
	ok(ptc_store_job_delete(s, JOB_A, err));
	ptc_store_stats(s, &after);
	assert_int_equal(after.chunks_used, 0);
	ptc_store_close(s);
	place_remove(&p);
}

/* Pieces by item, those of an item as they came, each with its place: of tables that are in order, of two runs, and of
 * any number of runs. */
static void sealed_tables_are_by_item(void **state)
{
	(void)state;
	srand(7);
	for (int round = 0; round < 400; round++) {
		const size_t n = (size_t)rand() % 60, runs = (size_t)rand() % 5;
		struct ptc_table t = { .n = n, .cap = n };
		struct loc *room = ptc_malloc((n + 1) * sizeof *room);
		uint32_t item = 0;

		t.pieces = ptc_calloc(n + 1, sizeof *t.pieces);
		t.locs = ptc_calloc(n + 1, sizeof *t.locs);
		for (uint32_t i = 0; i < n; i++) {
			item += (uint32_t)rand() % 3;
			if (runs && rand() % 60 < (int)runs)
				item = (uint32_t)rand() % 20;
			t.pieces[i] = (struct ptc_piece){ .item = item, .extent = i, .live.off = { (int64_t)i } };
			t.locs[i].pos = 1000 + i;
			t.locs[i].filled = i % 2;
		}
		ptc_store_table_sort(&t, room);
		for (size_t i = 0; i < n; i++) {
			const int64_t was = t.pieces[i].live.off[0];

			assert_int_equal(t.pieces[i].extent, i);
			assert_int_equal(t.locs[i].pos, 1000 + was);
			assert_int_equal(t.locs[i].filled, was % 2);
			if (i && t.pieces[i - 1].item == t.pieces[i].item)
				assert_true(t.pieces[i - 1].live.off[0] < was);
			else if (i)
				assert_true(t.pieces[i - 1].item < t.pieces[i].item);
		}
		ptc_free(t.pieces);
		ptc_free(t.locs);
	}
	assert_int_equal(ptc_alloc_live(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sealed_tables_are_by_item),
		cmocka_unit_test(bytes_survive_reopen),
		cmocka_unit_test(spans_and_digest_match),
		cmocka_unit_test(derive_aliases_or_copies),
		cmocka_unit_test(rows_of_a_shared_chunk),
		cmocka_unit_test(derive_leaves_out_what_is_fresh),
		cmocka_unit_test(misuse_is_refused),
		cmocka_unit_test(notes_outlive_us_and_go_with_the_job),
		cmocka_unit_test(ceiling_is_hard_and_changes_nothing),
		cmocka_unit_test(a_lower_ceiling_loses_nothing),
		cmocka_unit_test(what_is_filled_can_be_read),
		cmocka_unit_test(a_bit_flips_while_a_table_is_filled),
		cmocka_unit_test(a_flipped_bit_is_named),
		cmocka_unit_test(a_flipped_bit_in_a_row_of_reads),
		cmocka_unit_test(a_bit_flips_later),
		cmocka_unit_test(a_lost_job_harms_no_other),
		cmocka_unit_test(a_lost_job_begins_anew),
		cmocka_unit_test(references_outlive_the_registry),
		cmocka_unit_test(descriptors_are_close_on_exec),
		cmocka_unit_test(a_writer_that_outlives_us_is_waited_for),
		cmocka_unit_test(a_table_of_100000_pieces),
		cmocka_unit_test(threads_fill_and_read),
		cmocka_unit_test(every_allocation_may_fail),
		cmocka_unit_test(warm_memory_is_used_next),
		cmocka_unit_test(pages_of_another_process),
		cmocka_unit_test(other_memory_counts),
		cmocka_unit_test(huge_pages_change_nothing),
		cmocka_unit_test(a_full_map_loses_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
