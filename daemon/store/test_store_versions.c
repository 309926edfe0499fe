/* SPDX-License-Identifier: Apache-2.0 */
/* Stores of other versions: what the next one has written is read, every byte, and goes on to be written; the one after
 * is refused by name, and its files stay as they were, byte for byte. The records are rewritten here, with LMDB alone.
 */
#include "daemon/store/test_store_place.h"

#include <lmdb.h>

#define SIZE    ((int64_t)(3u << 20) + 4711)
#define CEILING (16ull << 20)

static void fill_table(struct ptc_store *s, const struct ptc_table_key *k, const uint8_t *x)
{
	const struct ptc_store_box need = { 7, BOX1(0, SIZE) };
	struct ptc_store_boxes m;
	struct ptc_table *t;
	uint32_t ext[8];
	int64_t bytes;

	ok(ptc_table_begin(s, k, &t, err));
	ok(ptc_table_derive(t, NULL, NULL, &need, 1, false, &m, &bytes, err));
	assert_true(m.n <= 8);
	ok(ptc_table_reserve(t, m.v, m.n, ext, err));
	for (size_t i = 0; i < m.n; i++) {
		fill_extent(t, ext[i], x + m.v[i].box.off[0], m.v[i].box.ext[0]);
		ok(ptc_table_filled(t, ext[i], err));
	}
	ok(ptc_table_seal(t, err));
	ptc_store_boxes_done(&m);
	ptc_table_unref(t);
}

static void expect_table(struct ptc_store *s, const struct ptc_table_key *k, const uint8_t *x)
{
	const struct ptc_box whole = BOX1(0, SIZE);
	uint8_t *got = malloc((size_t)SIZE);
	struct ptc_table *t;
	int64_t scrubbed;

	ok(ptc_table_open(s, k, &t, err));
	ok(ptc_table_read(t, 7, &whole, got, err));
	assert_memory_equal(x, got, SIZE);
	ok(ptc_table_scrub(t, NULL, NULL, &scrubbed, err));
	assert_int_equal(scrubbed, SIZE);
	ptc_table_unref(t);
	free(got);
}

static void expect_note(struct ptc_store *s, const char *want)
{
	void *data;
	size_t len;

	ok(ptc_store_note_get(s, JOB_A, "hello", &data, &len, err));
	assert_int_equal(len, strlen(want));
	assert_memory_equal(data, want, len);
	ptc_free(data);
}

/* Whether a later version may add to the record of that key (record.c). */
static bool grows(const MDB_val *k)
{
	const uint8_t *key = k->mv_data;

	return key[0] == 'S' || key[0] == 'J' || key[0] == 'C' || (key[0] == 'T' && key[k->mv_size - 1] == 'h');
}

static void rewrite(MDB_txn *txn, MDB_dbi dbi, const MDB_val *k, const MDB_val *v, uint8_t on)
{
	uint64_t added = 0x1122334455667788, sum;
	size_t len = v->mv_size - sizeof sum;
	uint8_t *more = malloc(v->mv_size + sizeof added), key[64];
	MDB_val at = { k->mv_size, key }, value;

	memcpy(key, k->mv_data, k->mv_size);
	memcpy(more, v->mv_data, len);
	more[0] = (uint8_t)(more[0] + on);
	if (grows(k)) {
		memcpy(more + len, &added, sizeof added);
		len += sizeof added;
	}
	sum = ptc_checksum(more, len);
	memcpy(more + len, &sum, sizeof sum);
	value = (MDB_val){ len + sizeof sum, more };
	assert_int_equal(mdb_put(txn, dbi, &at, &value, 0), 0);
	free(more);
}

/* A record of a kind that we do not know, one of a table and one of the store. */
static void add_kinds(MDB_txn *txn, MDB_dbi dbi, const MDB_val *header)
{
	uint8_t key[64], text[] = "of a later version";
	MDB_val k = { header->mv_size, key }, v = { sizeof text, text };

	memcpy(key, header->mv_data, header->mv_size);
	key[header->mv_size - 1] = 'z';
	assert_int_equal(mdb_put(txn, dbi, &k, &v, 0), 0);
	key[0] = 'Z';
	assert_int_equal(mdb_put(txn, dbi, &k, &v, 0), 0);
}

/* The record behind that of *key, or the first; false: there is none. */
static bool next_record(MDB_txn *txn, MDB_dbi dbi, uint8_t key[64], size_t *key_len, MDB_val *ret_v)
{
	MDB_val k = { *key_len, key };
	MDB_cursor *cur;
	int rc;

	assert_int_equal(mdb_cursor_open(txn, dbi, &cur), 0);
	rc = mdb_cursor_get(cur, &k, ret_v, *key_len ? MDB_SET_KEY : MDB_FIRST);
	if (!rc && *key_len)
		rc = mdb_cursor_get(cur, &k, ret_v, MDB_NEXT);
	mdb_cursor_close(cur);
	if (rc == MDB_NOTFOUND)
		return false;
	assert_int_equal(rc, 0);
	memcpy(key, k.mv_data, k.mv_size);
	*key_len = k.mv_size;
	return true;
}

static MDB_txn *begin(const char *dir, unsigned flags, MDB_env **ret_env, MDB_dbi *ret_dbi)
{
	MDB_txn *txn;

	assert_int_equal(mdb_env_create(ret_env), 0);
	assert_int_equal(mdb_env_set_mapsize(*ret_env, 64u << 20), 0);
	assert_int_equal(mdb_env_open(*ret_env, dir, 0, 0600), 0);
	assert_int_equal(mdb_txn_begin(*ret_env, NULL, 0, &txn), 0);
	assert_int_equal(mdb_dbi_open(txn, NULL, flags, ret_dbi), 0);
	return txn;
}

/* All of meta as a ptcd `on` versions further on would have written it. */
static void rewrite_meta(const struct place *p, uint8_t on)
{
	uint8_t key[64];
	size_t len = 0;
	MDB_env *env;
	MDB_dbi dbi;
	MDB_txn *txn = begin(p->meta, 0, &env, &dbi);
	MDB_val v;

	while (next_record(txn, dbi, key, &len, &v)) {
		const MDB_val k = { len, key };

		if (key[0] == 'Z' || key[len - 1] == 'z')
			continue;
		rewrite(txn, dbi, &k, &v, on);
		if (key[0] == 'T' && key[len - 1] == 'h')
			add_kinds(txn, dbi, &k);
	}
	assert_int_equal(mdb_txn_commit(txn), 0);
	mdb_env_close(env);
}

/* The same of what says whose the job's chunks are: its number, and more behind it. */
static void rewrite_chunks(const struct place *p, uint32_t on)
{
	char dir[160];
	uint8_t more[256];
	uint32_t version;
	size_t zero = 0;
	MDB_val k = { sizeof zero, &zero }, v;
	MDB_env *env;
	MDB_dbi dbi;
	MDB_txn *txn;

	snprintf(dir, sizeof dir, "%s/%s", p->chunks, JOB_A);
	txn = begin(dir, MDB_INTEGERKEY, &env, &dbi);
	assert_int_equal(mdb_get(txn, dbi, &k, &v), 0);
	assert_true(v.mv_size + 8 <= sizeof more);
	memcpy(more, v.mv_data, v.mv_size);
	memset(more + v.mv_size, 0x11, 8);
	memcpy(&version, more + 8, sizeof version);
	version += on;
	memcpy(more + 8, &version, sizeof version);
	v = (MDB_val){ v.mv_size + 8, more };
	assert_int_equal(mdb_put(txn, dbi, &k, &v, 0), 0);
	assert_int_equal(mdb_txn_commit(txn), 0);
	mdb_env_close(env);
}

static char *content(const char *dir, size_t *ret_len)
{
	char path[200], *data;

	snprintf(path, sizeof path, "%s/data.mdb", dir);
	ok(ptc_sys_read_file(path, 64u << 20, &data, ret_len, err));
	return data;
}

/* Refused with that line, and nothing in meta changes. */
static void expect_refused(const struct place *p)
{
	const struct ptc_store_opts o = { .meta_dir = p->meta, .chunk_dir = p->chunks, .chunk_ceiling = CEILING };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_store *s = NULL;
	size_t before_len, after_len;
	char *before = content(p->meta, &before_len), *after;

	assert_int_equal(ptc_store_open(&o, &s, &err), PTC_EVERSION);
	assert_non_null(strstr(err.text, "record of the store has version"));
	assert_non_null(strstr(err.text, "start a ptcd next to the one that wrote it"));
	after = content(p->meta, &after_len);
	assert_int_equal(before_len, after_len);
	assert_memory_equal(before, after, after_len);
	ptc_free(before);
	ptc_free(after);
}

struct fixture {
	struct place p;
	struct ptc_store *s;
	uint8_t *x;
};

static void make(struct fixture *f)
{
	const struct ptc_table_key k = key_of(JOB_A, 1, 1);

	f->x = malloc((size_t)SIZE);
	for (int64_t i = 0; i < SIZE; i++)
		f->x[i] = (uint8_t)(i * 31 + i / 251);
	place_make(&f->p, fast_base());
	f->s = store_open(&f->p, CEILING);
	ok(ptc_store_job_create(f->s, JOB_A, getuid(), err));
	ok(ptc_store_fence(f->s, JOB_A, 5, err));
	ok(ptc_store_note_put(f->s, JOB_A, "hello", "first", 5, err));
	fill_table(f->s, &k, f->x);
	f->s = ptc_store_close(f->s);
}

static void unmake(struct fixture *f)
{
	ptc_store_close(f->s);
	place_remove(&f->p);
	free(f->x);
	assert_int_equal(ptc_alloc_live(), 0);
}

static void next_version_is_read(void **state)
{
	const struct ptc_table_key k1 = key_of(JOB_A, 1, 1), k2 = key_of(JOB_A, 2, 1);
	struct fixture f;
	char id[37];

	(void)state;
	make(&f);
	rewrite_meta(&f.p, 1);
	rewrite_chunks(&f.p, 1);
	f.s = store_open(&f.p, CEILING);
	memcpy(id, ptc_store_id(f.s), sizeof id);
	expect_table(f.s, &k1, f.x);
	expect_note(f.s, "first");
	assert_int_equal(ptc_store_fence(f.s, JOB_A, 4, NULL), PTC_EFENCED);
	ok(ptc_store_note_put(f.s, JOB_A, "hello", "second", 6, err));
	fill_table(f.s, &k2, f.x);
	ok(ptc_store_keep(f.s, JOB_A, &k2, 1, err)); /* with what is not known of the table that goes */
	f.s = ptc_store_close(f.s);
	f.s = store_open(&f.p, CEILING);
	assert_string_equal(id, ptc_store_id(f.s));
	expect_table(f.s, &k2, f.x);
	expect_note(f.s, "second");
	ok(ptc_store_job_delete(f.s, JOB_A, err));
	unmake(&f);
}

static void version_after_is_refused(void **state)
{
	const struct ptc_table_key k = key_of(JOB_A, 1, 1);
	struct fixture f;

	(void)state;
	make(&f);
	rewrite_meta(&f.p, 2);
	expect_refused(&f.p);
	rewrite_meta(&f.p, (uint8_t)-2);
	f.s = store_open(&f.p, CEILING);
	expect_table(f.s, &k, f.x);
	unmake(&f);
}

/* Chunks alone, of a job: the others are fine. */
static void chunks_of_the_version_after(void **state)
{
	const struct ptc_table_key k = key_of(JOB_A, 1, 1);
	struct ptc_error err_a = PTC_ERROR_INIT;
	struct ptc_table *t;
	struct fixture f;

	(void)state;
	make(&f);
	rewrite_chunks(&f.p, 2);
	f.s = store_open(&f.p, CEILING);
	assert_int_equal(ptc_table_open(f.s, &k, &t, &err_a), PTC_EVERSION);
	assert_non_null(strstr(err_a.text, "its chunks are of version"));
	f.s = ptc_store_close(f.s);
	rewrite_chunks(&f.p, (uint32_t)-2);
	f.s = store_open(&f.p, CEILING);
	expect_table(f.s, &k, f.x);
	unmake(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(next_version_is_read),
		cmocka_unit_test(version_after_is_refused),
		cmocka_unit_test(chunks_of_the_version_after),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
