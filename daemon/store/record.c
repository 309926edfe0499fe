/* SPDX-License-Identifier: Apache-2.0 */
/* The records of the store (meta): their content and format. Every value is a version byte, a payload and the XXH3 of
 * both, little-endian.
 *
 *   S                               store id
 *   J uuid                          state, uid, fence
 *   T uuid generation snapshot h    table: sealed, counts of pieces, chunks and parts
 *                              c n  part n of its list of chunk ids
 *                              x n  part n of its pieces: item, stream position, extent box, live box
 *                              f    while under construction: one bit per piece, filled and summed
 *   C uuid chunk                    bytes used and sums of its 16 blocks
 *   N uuid name                     a note: its bytes
 *
 * Versions: a later version adds bytes behind the known ones of S, J, h and C, and new kinds of records. Readers skip
 * both. Lists (c, x, f) and notes never change. S has the highest version that has written in the store, and gets it
 * before that version writes anything else. So a store of an unreadable version is refused at open with nothing
 * changed.
 *
 * A table's parts are only ever appended, so a reservation writes only its additions. Happy path: save() writes parts,
 * sums and header in one commit; load() reads them back at open.
 *
 * Failure modes: a value that does not verify or does not add up is PTC_ECORRUPT, one of another version PTC_EVERSION,
 * both reported for the job they belong to; a full disk is PTC_ENOSPC with nothing changed. */
#include "daemon/store/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/number/digest.h"
#include "base/sys/sys.h"

#include <string.h>

enum { KIND_CHUNKS = 'c', KIND_FILLED = 'f', KIND_HEADER = 'h', KIND_PIECES = 'x' };

static struct key key_start(char tag, const char *uuid)
{
	struct key k = { .len = 1 };

	k.b[0] = (uint8_t)tag;
	if (uuid) {
		memcpy(k.b + 1, uuid, STORE_UUID_LEN);
		k.len += STORE_UUID_LEN;
	}
	return k;
}

static void key_be(struct key *k, uint64_t v, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		k->b[k->len++] = (uint8_t)(v >> (8 * (bytes - 1 - i)));
}

static uint64_t be(const uint8_t *p, unsigned bytes)
{
	uint64_t v = 0;

	for (unsigned i = 0; i < bytes; i++)
		v = v << 8 | p[i];
	return v;
}

static struct key table_key(const struct ptc_table_key *tk, char kind, uint32_t part)
{
	struct key k = key_start('T', tk->uuid);

	key_be(&k, tk->generation, 8);
	key_be(&k, tk->snapshot, 8);
	if (kind)
		k.b[k.len++] = (uint8_t)kind;
	if (kind == KIND_CHUNKS || kind == KIND_PIECES)
		key_be(&k, part, 4);
	return k;
}

static struct key chunk_key(const char *uuid, uint32_t id)
{
	struct key k = key_start('C', uuid);

	key_be(&k, id, 4);
	return k;
}

static void put_uint(struct ptc_buf *b, uint64_t v, unsigned bytes)
{
	uint8_t le[8];

	for (unsigned i = 0; i < bytes; i++)
		le[i] = (uint8_t)(v >> (8 * i));
	ptc_buf_append(b, le, bytes);
}

static void put_version(struct ptc_buf *b)
{
	ptc_buf_reset(b);
	put_uint(b, RECORD_VERSION, 1);
}

/* Behind a record that a later version may add to. */
static void put_added(struct ptc_buf *b)
{
#if PTC_VERSION_RAISED
	put_uint(b, PTC_VERSION_ADDED, 8);
#else
	(void)b;
#endif
}

/* A cursor over a record's payload; reading past its end makes it bad and gives zeros. */
struct reader {
	const uint8_t *p, *end;
	bool bad;
};

static uint64_t get_uint(struct reader *r, unsigned bytes)
{
	uint64_t v = 0;

	if ((size_t)(r->end - r->p) < bytes) {
		r->bad = true;
		r->p = r->end;
		return 0;
	}
	for (unsigned i = 0; i < bytes; i++)
		v |= (uint64_t)r->p[i] << (8 * i);
	r->p += bytes;
	return v;
}

static int open_record(const MDB_val *v, const char *what, struct reader *ret_r, struct ptc_error *err)
{
	const uint8_t *p = v->mv_data;
	struct reader r, tail;

	if (v->mv_size < 9)
		return ptc_error_set(err, PTC_ECORRUPT, "record %s is too short", what);
	tail = (struct reader){ p + v->mv_size - 8, p + v->mv_size, false };
	if (get_uint(&tail, 8) != ptc_checksum(p, v->mv_size - 8))
		return ptc_error_set(err, PTC_ECORRUPT, "record %s does not match its checksum", what);
	r = (struct reader){ p, p + v->mv_size - 8, false };
	if (!ptc_version_reads(get_uint(&r, 1), RECORD_OLDEST, RECORD_VERSION))
		return ptc_error_set(
			err, PTC_EVERSION,
			"record %s has version %u, this ptcd %s reads %d to %d: start a ptcd next to the one "
			"that wrote it",
			what, p[0], PTC_VERSION, RECORD_OLDEST, RECORD_VERSION + 1);
	*ret_r = r;
	return 0;
}

static int rec_put(MDB_txn *txn, MDB_dbi dbi, const struct key *k, struct ptc_buf *payload, struct ptc_error *err)
{
	uint8_t kb[KEY_MAX_BYTES];
	MDB_val kv = { k->len, kb }, v;
	int rc;

	if (!ptc_buf_failed(payload))
		put_uint(payload, ptc_checksum(payload->data, payload->len), 8);
	if (ptc_buf_failed(payload))
		return ptc_nomem(err);
	memcpy(kb, k->b, k->len);
	v = (MDB_val){ payload->len, payload->data };
	rc = mdb_put(txn, dbi, &kv, &v, 0);
	return rc ? ptc_store_lmdb_error(err, rc, "cannot write to meta") : 0;
}

static int rec_get(MDB_txn *txn, MDB_dbi dbi, struct key *k, const char *what, struct reader *ret_r,
		   struct ptc_error *err)
{
	MDB_val kv = { k->len, k->b }, v;
	int rc = mdb_get(txn, dbi, &kv, &v);

	return rc ? ptc_store_lmdb_error(err, rc, "record %s", what) : open_record(&v, what, ret_r, err);
}

static int rec_del(MDB_txn *txn, MDB_dbi dbi, struct key *k, struct ptc_error *err)
{
	MDB_val kv = { k->len, k->b };
	int rc = mdb_del(txn, dbi, &kv, NULL);

	return rc && rc != MDB_NOTFOUND ? ptc_store_lmdb_error(err, rc, "cannot delete from meta") : 0;
}

static bool has_prefix(const MDB_val *k, const struct key *prefix)
{
	return k->mv_size >= prefix->len && memcmp(k->mv_data, prefix->b, prefix->len) == 0;
}

static int del_prefix(MDB_txn *txn, MDB_dbi dbi, struct key *prefix, struct ptc_error *err)
{
	MDB_cursor *cur;
	int rc = mdb_cursor_open(txn, dbi, &cur);

	if (rc)
		return ptc_store_lmdb_error(err, rc, "cannot delete from meta");
	while (rc == 0) {
		MDB_val k = { prefix->len, prefix->b }, v;

		rc = mdb_cursor_get(cur, &k, &v, MDB_SET_RANGE);
		if (rc == 0 && !has_prefix(&k, prefix))
			break;
		if (rc == 0)
			rc = mdb_cursor_del(cur, 0);
	}
	mdb_cursor_close(cur);
	return rc && rc != MDB_NOTFOUND ? ptc_store_lmdb_error(err, rc, "cannot delete from meta") : 0;
}

int ptc_store_rec_store(struct ptc_store *s, struct ptc_error *err)
{
	struct key k = key_start('S', NULL);
	struct ptc_buf b = PTC_BUF_INIT;
	struct ptc_error e = PTC_ERROR_INIT;
	struct reader r;
	MDB_txn *txn;
	bool known;
	int rc = ptc_store_begin(s->meta, true, &txn, err);

	if (rc)
		return rc;
	rc = rec_get(txn, s->dbi, &k, "of the store", &r, &e);
	known = rc == 0 && r.end - r.p >= STORE_UUID_LEN;
	if (known)
		memcpy(s->id, r.p, STORE_UUID_LEN);
	if (known && r.p[-1] >= RECORD_VERSION) {
		mdb_txn_abort(txn);
		return 0;
	}
	if (!known && rc != PTC_ENOTFOUND) {
		mdb_txn_abort(txn);
		return ptc_error_set(err, rc ? rc : PTC_ECORRUPT, "meta: %s", rc ? e.text : "bad store id");
	}
	rc = known ? 0 : ptc_sys_uuid(s->id, err);
	put_version(&b);
	ptc_buf_append(&b, s->id, STORE_UUID_LEN);
	put_added(&b);
	if (!rc)
		rc = rec_put(txn, s->dbi, &k, &b, err);
	ptc_buf_done(&b);
	if (!rc)
		return ptc_store_commit(txn, STORE_META, err);
	mdb_txn_abort(txn);
	return rc;
}

int ptc_store_rec_job_put(struct ptc_store *s, const struct job *j, enum job_state state, struct ptc_error *err)
{
	struct key k = key_start('J', j->uuid), tables = key_start('T', j->uuid), sums = key_start('C', j->uuid),
		   notes = key_start('N', j->uuid);
	struct ptc_buf b = PTC_BUF_INIT;
	MDB_txn *txn;
	int rc = ptc_store_begin(s->meta, true, &txn, err);

	if (rc)
		return rc;
	if (state == JOB_CREATING) { /* a delete that failed half-way may have left some */
		rc = del_prefix(txn, s->dbi, &tables, err);
		if (!rc)
			rc = del_prefix(txn, s->dbi, &sums, err);
		if (!rc)
			rc = del_prefix(txn, s->dbi, &notes, err);
	}
	put_version(&b);
	put_uint(&b, state, 1);
	put_uint(&b, j->uid, 4);
	put_uint(&b, (uint64_t)j->fence, 8);
	put_added(&b);
	if (!rc)
		rc = rec_put(txn, s->dbi, &k, &b, err);
	ptc_buf_done(&b);
	if (!rc)
		return ptc_store_commit(txn, STORE_META, err);
	mdb_txn_abort(txn);
	return rc;
}

/* All records of these kinds, in one transaction. */
static int del_kinds(struct ptc_store *s, const char *uuid, const char *kinds, struct ptc_error *err)
{
	MDB_txn *txn;
	int rc = ptc_store_begin(s->meta, true, &txn, err);

	if (rc)
		return rc;
	for (; *kinds && !rc; kinds++) {
		struct key k = key_start(*kinds, uuid);

		rc = del_prefix(txn, s->dbi, &k, err);
	}
	if (!rc)
		return ptc_store_commit(txn, STORE_META, err);
	mdb_txn_abort(txn);
	return rc;
}

int ptc_store_rec_job_empty(struct ptc_store *s, const char *uuid, struct ptc_error *err)
{
	return del_kinds(s, uuid, "TC", err);
}

int ptc_store_rec_job_del(struct ptc_store *s, const char *uuid, struct ptc_error *err)
{
	return del_kinds(s, uuid, "TCNJ", err);
}

static struct key note_key(const char *uuid, const char *name)
{
	struct key k = key_start('N', uuid);

	memcpy(k.b + k.len, name, strlen(name));
	k.len += strlen(name);
	return k;
}

/* rec_put() without a buffer, because a note may have megabytes: it is written straight into the transaction's page. */
static int note_put(MDB_txn *txn, MDB_dbi dbi, const struct key *k, const struct iovec *parts, size_t nparts,
		    struct ptc_error *err)
{
	uint8_t kb[KEY_MAX_BYTES], *p;
	MDB_val kv = { k->len, kb }, v = { 0 };
	size_t len = 0;
	uint64_t sum;
	int rc;

	for (size_t i = 0; i < nparts; i++)
		len += parts[i].iov_len;
	v.mv_size = 1 + len + 8;
	memcpy(kb, k->b, k->len);
	rc = mdb_put(txn, dbi, &kv, &v, MDB_RESERVE);
	if (rc)
		return ptc_store_lmdb_error(err, rc, "cannot write to meta");
	p = v.mv_data;
	p[0] = RECORD_VERSION;
	len = 1;
	for (size_t i = 0; i < nparts; i++) {
		if (parts[i].iov_len)
			memcpy(p + len, parts[i].iov_base, parts[i].iov_len);
		len += parts[i].iov_len;
	}
	sum = ptc_checksum(p, len);
	for (unsigned i = 0; i < 8; i++)
		p[len + i] = (uint8_t)(sum >> (8 * i));
	return 0;
}

int ptc_store_rec_note_put(struct ptc_store *s, const char *uuid, const char *name, const struct iovec *parts,
			   size_t nparts, struct ptc_error *err)
{
	struct key k = note_key(uuid, name);
	MDB_txn *txn;
	int rc = ptc_store_begin(s->meta, true, &txn, err);

	if (rc)
		return rc;
	rc = note_put(txn, s->dbi, &k, parts, nparts, err);
	if (!rc)
		return ptc_store_commit(txn, STORE_META, err);
	mdb_txn_abort(txn);
	return rc;
}

int ptc_store_rec_note_get(struct ptc_store *s, const char *uuid, const char *name, void **ret_data, size_t *ret_len,
			   struct ptc_error *err)
{
	struct key k = note_key(uuid, name);
	struct reader r = { 0 };
	MDB_txn *txn;
	void *data;
	int rc = ptc_store_begin(s->meta, false, &txn, err);

	if (rc)
		return rc;
	rc = rec_get(txn, s->dbi, &k, "of a note", &r, err);
	data = rc ? NULL : ptc_malloc((size_t)(r.end - r.p) + 1);
	if (!rc && !data)
		rc = ptc_nomem(err);
	if (!rc) {
		memcpy(data, r.p, (size_t)(r.end - r.p));
		*ret_data = data;
		*ret_len = (size_t)(r.end - r.p);
	}
	mdb_txn_abort(txn);
	return rc;
}

struct job_record {
	struct key key; /* len 0: before the first job */
	enum job_state state;
	uid_t uid;
	int64_t fence;
};

static int next_job_in(MDB_txn *txn, MDB_dbi dbi, struct job_record *r, struct ptc_error *err)
{
	struct key prefix = key_start('J', NULL), from = r->key.len ? r->key : prefix;
	struct reader rd = { 0 };
	MDB_cursor *cur;
	MDB_val k, v;
	int rc = mdb_cursor_open(txn, dbi, &cur);

	if (r->key.len)
		from.b[from.len++] = 0xff; /* behind the last one */
	k = (MDB_val){ from.len, from.b };
	if (!rc) {
		rc = mdb_cursor_get(cur, &k, &v, MDB_SET_RANGE);
		mdb_cursor_close(cur);
	}
	if (rc == MDB_NOTFOUND || (!rc && (!has_prefix(&k, &prefix) || k.mv_size != 1 + STORE_UUID_LEN)))
		return PTC_ENOTFOUND;
	if (rc) {
		(void)ptc_store_lmdb_error(err, rc, "cannot list jobs");
		return PTC_EIO; /* PTC_ECORRUPT is one record's */
	}
	memcpy(r->key.b, k.mv_data, k.mv_size);
	r->key.len = k.mv_size;
	rc = open_record(&v, "of a job", &rd, err);
	if (rc)
		return rc;
	r->state = (enum job_state)get_uint(&rd, 1);
	r->uid = (uid_t)get_uint(&rd, 4);
	r->fence = (int64_t)get_uint(&rd, 8);
	return rd.bad ? ptc_error_set(err, PTC_ECORRUPT, "record of a job is too short") : 0;
}

/* The record behind r's. PTC_ENOTFOUND: there is none. PTC_ECORRUPT: only r->key is right. */
static int next_job(struct ptc_store *s, struct job_record *r, struct ptc_error *err)
{
	MDB_txn *txn;
	int rc = ptc_store_begin(s->meta, false, &txn, err);

	if (rc)
		return rc;
	rc = next_job_in(txn, s->dbi, r, err);
	mdb_txn_abort(txn);
	return rc;
}

/* fn may write transactions itself, so the jobs are listed one by one, each in a transaction of its own. */
int ptc_store_rec_jobs(struct ptc_store *s, ptc_store_rec_job_fn fn, void *arg, struct ptc_error *err)
{
	struct job_record r = { 0 };

	for (;;) {
		char uuid[STORE_UUID_LEN + 1] = "";
		struct ptc_error e = PTC_ERROR_INIT;
		int rc = next_job(s, &r, &e);

		if (rc == PTC_ENOTFOUND)
			return 0;
		if (rc == PTC_ECORRUPT) { /* without its record the job is not here; its bytes come from other nodes */
			ptc_error_log("store", "a job is left out: %s", e.text);
			continue;
		}
		if (rc)
			return ptc_error_set(err, rc, "%s", e.text);
		memcpy(uuid, r.key.b + 1, STORE_UUID_LEN);
		rc = fn(arg, uuid, r.uid, r.fence, r.state, err);
		if (rc)
			return rc;
	}
}

/* Writes a number at `to`, and returns where the next one goes. */
static inline uint8_t *le_put(uint8_t *to, uint64_t v, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		to[i] = (uint8_t)(v >> (8 * i));
	return to + bytes;
}

static uint8_t *box_put(uint8_t *to, const struct ptc_box *box)
{
	for (uint32_t d = 0; d < box->ndim; d++) {
		to = le_put(to, (uint64_t)box->off[d], 8);
		to = le_put(to, (uint64_t)box->ext[d], 8);
	}
	return to;
}

/* In one go: a table has one piece for each tensor at least. */
static void put_piece(struct ptc_buf *b, const struct ptc_piece *p, uint64_t pos)
{
	uint8_t all[4 + 1 + 1 + 8 + 2 * 16 * PTC_MAX_DIMS], *to = all;
	bool whole = ptc_box_equal(&p->live, &p->extent_box);

	to = le_put(to, p->item, 4);
	to = le_put(to, p->live.ndim, 1);
	to = le_put(to, whole ? 0 : 1, 1);
	to = le_put(to, pos, 8);
	to = box_put(to, &p->extent_box);
	if (!whole)
		to = box_put(to, &p->live);
	ptc_buf_append(b, all, (size_t)(to - all));
}

static void get_box(struct reader *r, uint32_t ndim, struct ptc_box *ret_box)
{
	memset(ret_box, 0, sizeof *ret_box);
	ret_box->ndim = ndim;
	for (uint32_t d = 0; d < ndim; d++) {
		ret_box->off[d] = (int64_t)get_uint(r, 8);
		ret_box->ext[d] = (int64_t)get_uint(r, 8);
	}
}

static int save_pieces(MDB_txn *txn, struct ptc_table *t, size_t from, struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT;
	int rc = 0;

	for (size_t i = from; i < t->n && !rc;) {
		struct key k = table_key(&t->key, KIND_PIECES, t->xparts);

		put_version(&b);
		for (; i < t->n && b.len < PART_BYTES && !ptc_buf_failed(&b); i++)
			put_piece(&b, &t->pieces[i], t->locs[i].pos);
		rc = rec_put(txn, t->job->s->dbi, &k, &b, err);
		t->xparts++;
	}
	ptc_buf_done(&b);
	return rc;
}

static int save_chunk_list(MDB_txn *txn, struct ptc_table *t, size_t from, struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT;
	int rc = 0;

	for (size_t i = from; i < t->nchunks && !rc;) {
		struct key k = table_key(&t->key, KIND_CHUNKS, t->cparts);

		put_version(&b);
		for (; i < t->nchunks && b.len < PART_BYTES && !ptc_buf_failed(&b); i++)
			put_uint(&b, t->chunks[i]->id, 4);
		rc = rec_put(txn, t->job->s->dbi, &k, &b, err);
		t->cparts++;
	}
	ptc_buf_done(&b);
	return rc;
}

static int save_header(MDB_txn *txn, const struct ptc_table *t, bool seal, struct ptc_error *err)
{
	struct key k = table_key(&t->key, KIND_HEADER, 0);
	struct ptc_buf b = PTC_BUF_INIT;
	int rc;

	put_version(&b);
	put_uint(&b, seal, 1);
	put_uint(&b, t->n, 4);
	put_uint(&b, t->nchunks, 4);
	put_uint(&b, t->xparts, 4);
	put_uint(&b, t->cparts, 4);
	put_added(&b);
	rc = rec_put(txn, t->job->s->dbi, &k, &b, err);
#if PTC_VERSION_RAISED
	if (!rc) { /* a record of a kind of its own */
		k = table_key(&t->key, 'z', 0);
		put_version(&b);
		put_added(&b);
		rc = rec_put(txn, t->job->s->dbi, &k, &b, err);
	}
#endif
	ptc_buf_done(&b);
	return rc;
}

static bool extent_summed(const struct ptc_table *t, size_t i)
{
	uint64_t first = t->locs[i].pos, last = first + (uint64_t)ptc_box_volume(&t->pieces[i].extent_box) - 1;

	for (size_t c = ptc_store_chunk_of(first); c <= ptc_store_chunk_of(last); c++)
		if (!t->chunks[c]->summed)
			return false;
	return true;
}

static int save_filled(MDB_txn *txn, struct ptc_table *t, bool seal, struct ptc_error *err)
{
	struct key k = table_key(&t->key, KIND_FILLED, 0);
	struct ptc_buf b = PTC_BUF_INIT;
	uint8_t *bits;
	int rc;

	if (seal)
		return rec_del(txn, t->job->s->dbi, &k, err);
	put_version(&b);
	bits = ptc_buf_extend(&b, (t->n + 7) / 8);
	if (bits) {
		memset(bits, 0, (t->n + 7) / 8);
		pthread_mutex_lock(&t->job->s->lock);
		for (size_t i = 0; i < t->n; i++)
			if (t->locs[i].filled && extent_summed(t, i))
				bits[i / 8] |= (uint8_t)(1u << (i % 8));
		pthread_mutex_unlock(&t->job->s->lock);
	}
	rc = rec_put(txn, t->job->s->dbi, &k, &b, err);
	ptc_buf_done(&b);
	return rc;
}

static int save_sums(MDB_txn *txn, const struct job *j, struct chunk *const *sums, size_t n, struct ptc_error *err)
{
	struct ptc_buf b = PTC_BUF_INIT;
	int rc = 0;

	for (size_t i = 0; i < n && !rc; i++) {
		struct key k = chunk_key(j->uuid, sums[i]->id);

		put_version(&b);
		put_uint(&b, sums[i]->used, 4);
		for (unsigned s = 0; s < CHUNK_BLOCKS; s++)
			put_uint(&b, sums[i]->sum[s], 8);
		put_added(&b);
		rc = rec_put(txn, j->s->dbi, &k, &b, err);
	}
	ptc_buf_done(&b);
	return rc;
}

int ptc_store_rec_sums(struct job *j, struct chunk *const *sums, size_t nsums, struct ptc_error *err)
{
	MDB_txn *txn;
	int rc = ptc_store_begin(j->s->meta, true, &txn, err);

	if (rc)
		return rc;
	rc = save_sums(txn, j, sums, nsums, err);
	if (!rc)
		return ptc_store_commit(txn, STORE_META, err);
	mdb_txn_abort(txn);
	return rc;
}

int ptc_store_rec_table_save(struct ptc_table *t, const struct table_save *what, struct chunk *const *sums,
			     size_t nsums, struct ptc_error *err)
{
	struct ptc_store *s = t->job->s;
	uint32_t xparts = t->xparts, cparts = t->cparts;
	MDB_txn *txn;
	int rc = ptc_store_begin(s->meta, true, &txn, err);

	if (rc)
		return rc;
	rc = save_sums(txn, t->job, sums, nsums, err);
	if (!rc)
		rc = save_chunk_list(txn, t, what->first_chunk, err);
	if (!rc)
		rc = save_pieces(txn, t, what->first_piece, err);
	if (!rc)
		rc = save_filled(txn, t, what->seal, err);
	if (!rc)
		rc = save_header(txn, t, what->seal, err);
	if (rc)
		mdb_txn_abort(txn);
	else
		rc = ptc_store_commit(txn, STORE_META, err);
	if (rc) {
		t->xparts = xparts;
		t->cparts = cparts;
		return rc;
	}
	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < nsums; i++)
		sums[i]->saved = true;
	pthread_mutex_unlock(&s->lock);
	return 0;
}

int ptc_store_rec_tables_del(struct job *j, struct ptc_table *const *tables, size_t n, struct chunk *const *chunks,
			     size_t nchunks, struct ptc_error *err)
{
	MDB_txn *txn;
	int rc = ptc_store_begin(j->s->meta, true, &txn, err);

	if (rc)
		return rc;
	for (size_t i = 0; i < n && !rc; i++) {
		struct key k = table_key(&tables[i]->key, 0, 0);

		rc = del_prefix(txn, j->s->dbi, &k, err);
	}
	for (size_t i = 0; i < nchunks && !rc; i++) {
		struct key k = chunk_key(j->uuid, chunks[i]->id);

		rc = rec_del(txn, j->s->dbi, &k, err);
	}
	if (!rc)
		return ptc_store_commit(txn, STORE_META, err);
	mdb_txn_abort(txn);
	return rc;
}

struct header {
	bool sealed;
	uint32_t n, nchunks, xparts, cparts;
};

static int load_chunk_list(MDB_txn *txn, struct ptc_table *t, const struct header *h, struct ptc_error *err)
{
	struct job *j = t->job;

	for (uint32_t part = 0; part < h->cparts; part++) {
		struct key k = table_key(&t->key, KIND_CHUNKS, part);
		struct reader r;
		int rc = rec_get(txn, j->s->dbi, &k, "of a table's chunks", &r, err);

		if (rc)
			return rc;
		while (r.p < r.end) {
			uint64_t id = get_uint(&r, 4);

			if (r.bad || t->nchunks == h->nchunks)
				return ptc_error_set(err, PTC_ECORRUPT, "the record of a table lists too many chunks");
			if (id == 0 || id > j->nchunks)
				return ptc_error_set(err, PTC_ELOST, "chunk %llu is gone", (unsigned long long)id);
			t->chunks[t->nchunks++] = j->chunks[id - 1];
			j->chunks[id - 1]->closed = true;
		}
	}
	return t->nchunks == h->nchunks
		       ? 0
		       : ptc_error_set(err, PTC_ECORRUPT, "the record of a table lists too few chunks");
}

static int load_piece(struct ptc_table *t, struct reader *r, struct ptc_error *err)
{
	struct ptc_piece p = { .item = (uint32_t)get_uint(r, 4), .extent = (uint32_t)t->n };
	uint32_t ndim = (uint32_t)get_uint(r, 1), partial = (uint32_t)get_uint(r, 1);
	uint64_t pos = get_uint(r, 8);
	int rc;

	if (ndim == 0 || ndim > PTC_MAX_DIMS)
		return ptc_error_set(err, PTC_ECORRUPT, "the record of a table has a piece of %u dimensions", ndim);
	get_box(r, ndim, &p.extent_box);
	p.live = p.extent_box;
	if (partial)
		get_box(r, ndim, &p.live);
	rc = ptc_store_box_check(p.item, &p.extent_box, err);
	if (!rc)
		rc = ptc_store_box_check(p.item, &p.live, err);
	if (rc || r->bad || !ptc_box_contains(&p.extent_box, &p.live) || pos > (uint64_t)t->nchunks * PTC_CHUNK_BYTES ||
	    ptc_store_chunk_of(pos + (uint64_t)ptc_box_volume(&p.extent_box) - 1) >= t->nchunks)
		return ptc_error_set(err, PTC_ECORRUPT, "the record of a table has impossible numbers for piece %zu",
				     t->n);
	ptc_store_table_push(t, &p, pos, false);
	return 0;
}

static int load_pieces(MDB_txn *txn, struct ptc_table *t, const struct header *h, struct ptc_error *err)
{
	for (uint32_t part = 0; part < h->xparts; part++) {
		struct key k = table_key(&t->key, KIND_PIECES, part);
		struct reader r;
		int rc = rec_get(txn, t->job->s->dbi, &k, "of a table's pieces", &r, err);

		while (!rc && r.p < r.end) {
			if (t->n == h->n)
				return ptc_error_set(err, PTC_ECORRUPT, "the record of a table lists too many pieces");
			rc = load_piece(t, &r, err);
		}
		if (rc)
			return rc;
	}
	return t->n == h->n ? 0 : ptc_error_set(err, PTC_ECORRUPT, "the record of a table lists too few pieces");
}

static int load_filled(MDB_txn *txn, struct ptc_table *t, bool sealed, struct ptc_error *err)
{
	struct key k = table_key(&t->key, KIND_FILLED, 0);
	struct reader r = { 0 };
	int rc = sealed ? 0 : rec_get(txn, t->job->s->dbi, &k, "of a table's progress", &r, err);

	if (rc)
		return rc;
	if (!sealed && (size_t)(r.end - r.p) != (t->n + 7) / 8)
		return ptc_error_set(err, PTC_ECORRUPT, "the record of a table's progress has the wrong length");
	for (size_t i = 0; i < t->n; i++) {
		uint64_t first = t->locs[i].pos;
		uint64_t last = first + (uint64_t)ptc_box_volume(&t->pieces[i].extent_box) - 1;

		t->locs[i].filled = sealed || (r.p[i / 8] >> (i % 8) & 1);
		if (t->locs[i].filled)
			continue;
		t->resumable++;
		for (size_t c = ptc_store_chunk_of(first); c <= ptc_store_chunk_of(last); c++) {
			t->chunks[c]->unfilled++;
			t->chunks[c]->used = PTC_CHUNK_BYTES;
		}
	}
	return 0;
}

static int load_sums(MDB_txn *txn, struct ptc_table *t, struct ptc_error *err)
{
	for (size_t i = 0; i < t->nchunks; i++) {
		struct chunk *c = t->chunks[i];
		struct key k = chunk_key(t->key.uuid, c->id);
		struct ptc_error e = PTC_ERROR_INIT;
		struct reader r;
		int rc;

		if (c->saved)
			continue;
		rc = rec_get(txn, t->job->s->dbi, &k, "of a chunk's sums", &r, &e);
		if (rc == PTC_ENOTFOUND && !t->sealed)
			continue;
		if (rc)
			return ptc_error_set(err, rc == PTC_ENOTFOUND ? PTC_ECORRUPT : rc, "chunk %u: %s", c->id,
					     e.text);
		c->used = (uint32_t)get_uint(&r, 4);
		for (unsigned s = 0; s < CHUNK_BLOCKS; s++)
			c->sum[s] = get_uint(&r, 8);
		if (r.bad || c->used > PTC_CHUNK_BYTES)
			return ptc_error_set(err, PTC_ECORRUPT,
					     "the record of chunk %u has impossible checksums or sizes", c->id);
		c->dirty = 0;
		c->summed = c->saved = c->unfilled == 0;
	}
	return 0;
}

static int sort_loaded(struct ptc_table *t, struct ptc_error *err)
{
	struct loc *room = ptc_malloc((t->n + 1) * sizeof *room);

	if (!room)
		return ptc_nomem(err);
	ptc_store_table_sort(t, room);
	return 0;
}

static int load_table(MDB_txn *txn, struct job *j, const struct ptc_table_key *tk, const struct header *h,
		      struct ptc_error *err)
{
	struct ptc_table *t = ptc_store_table_new(j, tk);
	int rc = t ? 0 : ptc_nomem(err);

	if (!rc && ptc_store_table_room(t, h->n, h->nchunks))
		rc = ptc_nomem(err);
	if (!rc)
		rc = load_chunk_list(txn, t, h, err);
	if (!rc)
		rc = load_pieces(txn, t, h, err);
	if (!rc)
		rc = load_filled(txn, t, h->sealed, err);
	if (!rc) {
		t->sealed = h->sealed;
		t->xparts = h->xparts;
		t->cparts = h->cparts;
		rc = load_sums(txn, t, err);
	}
	if (!rc && h->sealed)
		rc = sort_loaded(t, err);
	if (t) {
		pthread_mutex_lock(&j->s->lock);
		for (size_t i = 0; i < t->nchunks; i++)
			ptc_store_chunk_use_locked(j, t->chunks[i]);
		ptc_store_table_register_locked(t);
		pthread_mutex_unlock(&j->s->lock);
	}
	return rc;
}

static int load_one(MDB_txn *txn, struct job *j, const MDB_val *k, const MDB_val *v, struct ptc_error *err)
{
	struct ptc_table_key tk = { .generation = be((const uint8_t *)k->mv_data + 37, 8),
				    .snapshot = be((const uint8_t *)k->mv_data + 45, 8) };
	struct header h;
	struct reader r;
	int rc = open_record(v, "of a table", &r, err);

	memcpy(tk.uuid, j->uuid, sizeof tk.uuid);
	if (!rc) {
		h = (struct header){ .sealed = get_uint(&r, 1) == 1 };
		h.n = (uint32_t)get_uint(&r, 4);
		h.nchunks = (uint32_t)get_uint(&r, 4);
		h.xparts = (uint32_t)get_uint(&r, 4);
		h.cparts = (uint32_t)get_uint(&r, 4);
		rc = r.bad ? ptc_error_set(err, PTC_ECORRUPT, "header is too short") : load_table(txn, j, &tk, &h, err);
	}
	if (!rc)
		return 0;
	ptc_error_wrap(err, "table %llu.%llu", (unsigned long long)tk.generation, (unsigned long long)tk.snapshot);
	return rc;
}

int ptc_store_rec_tables_load(struct job *j, struct ptc_error *err)
{
	struct key prefix = key_start('T', j->uuid);
	MDB_val k = { prefix.len, prefix.b }, v;
	MDB_cursor *cur;
	MDB_txn *txn;
	int rc = ptc_store_begin(j->s->meta, false, &txn, err);
	int got;

	if (rc)
		return rc;
	got = mdb_cursor_open(txn, j->s->dbi, &cur);
	if (got) {
		mdb_txn_abort(txn);
		return ptc_store_lmdb_error(err, got, "cannot list tables");
	}
	for (got = mdb_cursor_get(cur, &k, &v, MDB_SET_RANGE); got == 0 && has_prefix(&k, &prefix) && !rc;
	     got = mdb_cursor_get(cur, &k, &v, MDB_NEXT))
		if (k.mv_size == 54 && ((const uint8_t *)k.mv_data)[53] == KIND_HEADER)
			rc = load_one(txn, j, &k, &v, err);
	mdb_cursor_close(cur);
	mdb_txn_abort(txn);
	if (!rc && got && got != MDB_NOTFOUND)
		rc = ptc_store_lmdb_error(err, got, "cannot list tables");
	return rc;
}
