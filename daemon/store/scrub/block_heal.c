/* SPDX-License-Identifier: Apache-2.0 */
/* Damaged blocks: listed, opened, healed in place, or proven otherwise and summed anew.
 * Happy path, crashes and failure modes: store_heal.h.
 *
 * A block is written while others may read it. A reader then finds, as before, that the block does not match. Only
 * lines that differ are written, so right bytes never change. */
#include "daemon/store/scrub/block_parts.h"
#include "daemon/store/scrub/store_heal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/count.h"
#include "base/number/digest.h"
#include "base/sys/fault.h"

#include <string.h>

#define LINE_BYTES 64u

struct ptc_block {
	struct ptc_table *table;
	size_t at; /* of the chunk, in the table's list */
	unsigned block;
	size_t len;
	uint8_t *found, *bytes; /* as it was; with what was put */
	uint8_t *put;           /* per byte */
	struct ptc_block_parts parts;
};

static struct chunk *chunk_of(const struct ptc_block *b)
{
	return b->table->chunks[b->at];
}

static uint8_t *memory_of(const struct ptc_block *b)
{
	return chunk_of(b)->ptr + (size_t)b->block * PTC_BLOCK_BYTES;
}

static void told_no_more(struct chunk *c, unsigned block)
{
	atomic_fetch_and(&c->damaged, (uint16_t) ~(1u << block));
}

/* ---- which are known ---- */

/* The first of the tables that has live bytes in the block: where. wlock held. False: none. */
static bool listed(const struct job *j, const struct chunk *c, unsigned block, const struct ptc_table_key *key,
		   struct ptc_table **ret_t, size_t *ret_at, size_t *ret_piece)
{
	for (struct ptc_table *t = j->tables; t; t = t->next) {
		if (!t->sealed || (key && (t->key.generation != key->generation || t->key.snapshot != key->snapshot)))
			continue;
		for (size_t i = 0; i < t->nchunks; i++)
			if (t->chunks[i] == c && ptc_block_piece(t, i, block, ret_piece)) {
				*ret_t = t;
				*ret_at = i;
				return true;
			}
	}
	return false;
}

static int damage_push(struct ptc_store_damage **v, size_t *n, const struct ptc_store_damage *d)
{
	struct ptc_store_damage *grown = ptc_reallocarray(*v, *n + 1, sizeof *grown);

	if (!grown)
		return PTC_ENOMEM;
	*v = grown;
	grown[(*n)++] = *d;
	return 0;
}

static int damaged_in(const struct job *j, struct chunk *c, struct ptc_store_damage **v, size_t *n)
{
	uint16_t bits = atomic_load(&c->damaged);
	int rc = 0;

	for (unsigned b = 0; rc == 0 && b < CHUNK_BLOCKS; b++) {
		struct ptc_store_damage d;
		struct ptc_table *t;
		size_t at, piece;

		if (!(bits & (1u << b)))
			continue;
		if (!c->refs || !listed(j, c, b, NULL, &t, &at, &piece)) {
			told_no_more(c, b); /* nobody can ask for it */
			continue;
		}
		ptc_store_damage_describe(t, piece, at, b, &d);
		rc = damage_push(v, n, &d);
	}
	return rc;
}

int ptc_store_damaged(struct ptc_store *s, const char *uuid, struct ptc_store_damage **ret, size_t *ret_n,
		      struct ptc_error *err)
{
	struct ptc_store_damage *v = NULL;
	size_t n = 0;
	int rc = 0;

	pthread_mutex_lock(&s->wlock);
	for (struct job *j = s->jobs; j && rc == 0; j = j->next) {
		if (j->bad || (uuid && strcmp(j->uuid, uuid) != 0))
			continue;
		for (size_t i = 0; rc == 0 && i < j->nchunks; i++)
			if (atomic_load(&j->chunks[i]->damaged))
				rc = damaged_in(j, j->chunks[i], &v, &n);
	}
	pthread_mutex_unlock(&s->wlock);
	if (rc) {
		ptc_free(v);
		return ptc_error_set(err, rc, "no memory to list damaged blocks");
	}
	*ret = v;
	*ret_n = n;
	return 0;
}

/* ---- one of them ---- */

struct ptc_block *ptc_block_free(struct ptc_block *b)
{
	if (!b)
		return NULL;
	ptc_table_unref(b->table);
	ptc_block_parts_done(&b->parts);
	ptc_free(b->found);
	ptc_free(b->bytes);
	ptc_free(b->put);
	ptc_free(b);
	return NULL;
}

/* A reference to a table that has live bytes in it; NULL: none. */
static struct ptc_table *find_table(struct ptc_store *s, const struct ptc_store_damage *d,
				    const struct ptc_table_key *prefer, size_t *ret_at)
{
	struct ptc_table *t = NULL;
	size_t piece;
	struct job *j;

	pthread_mutex_lock(&s->wlock);
	pthread_mutex_lock(&s->lock);
	j = ptc_store_job_find_locked(s, d->key.uuid);
	pthread_mutex_unlock(&s->lock);
	if (j && !j->bad && d->chunk >= 1 && d->chunk <= j->nchunks && j->chunks[d->chunk - 1]->refs) {
		const struct chunk *c = j->chunks[d->chunk - 1];

		if (!(prefer && listed(j, c, d->block, prefer, &t, ret_at, &piece)) &&
		    !listed(j, c, d->block, &d->key, &t, ret_at, &piece))
			(void)listed(j, c, d->block, NULL, &t, ret_at, &piece);
	}
	if (t)
		ptc_table_ref(t);
	pthread_mutex_unlock(&s->wlock);
	return t;
}

static int block_fill(struct ptc_block *b, struct ptc_error *err)
{
	size_t off = (size_t)b->block * PTC_BLOCK_BYTES;
	int rc;

	b->len = PTC_MIN(PTC_BLOCK_BYTES, PTC_CHUNK_BYTES - off);
	b->found = ptc_malloc(b->len);
	b->bytes = ptc_malloc(b->len);
	b->put = ptc_calloc(b->len, 1);
	if (!b->found || !b->bytes || !b->put)
		return ptc_error_set(err, PTC_ENOMEM, "no memory to heal a block");
	memcpy(b->found, memory_of(b), b->len);
	memcpy(b->bytes, b->found, b->len);
	rc = ptc_block_parts_of(b->table, b->at, b->block, &b->parts);
	return rc ? ptc_error_set(err, rc, "no memory to heal a block") : 0;
}

int ptc_block_open(struct ptc_store *s, const struct ptc_store_damage *d, const struct ptc_table_key *prefer,
		   struct ptc_block **ret, struct ptc_error *err)
{
	struct ptc_block *b = ptc_calloc(1, sizeof *b);
	int rc;

	if (!b || d->block >= CHUNK_BLOCKS) {
		ptc_free(b);
		return b ? ptc_error_set(err, PTC_EINVAL, "the request names block %u of a chunk, which is too high",
					 d->block)
			 : ptc_error_set(err, PTC_ENOMEM, "no memory to heal a block");
	}
	*ret = NULL;
	b->block = d->block;
	b->table = find_table(s, d, prefer, &b->at);
	if (!b->table) {
		ptc_block_free(b);
		return 0;
	}
	rc = block_fill(b, err);
	if (rc == 0 && ptc_block_right(b)) {
		told_no_more(chunk_of(b), b->block);
		ptc_block_free(b);
		return 0;
	}
	if (rc) {
		ptc_block_free(b);
		return rc;
	}
	*ret = b;
	return 0;
}

const struct ptc_table_key *ptc_block_key(const struct ptc_block *b)
{
	return &b->table->key;
}

const struct ptc_store_box *ptc_block_parts(const struct ptc_block *b, size_t *ret_n)
{
	*ret_n = b->parts.n;
	return b->parts.boxes;
}

/* Calls fn for each run of a part: where it lies in the block, and in the part. */
typedef void (*run_fn)(struct ptc_block *b, uint64_t at, uint8_t *data, size_t n);

static void each_run(struct ptc_block *b, size_t part, uint8_t *data, run_fn fn)
{
	size_t piece = b->parts.pieces[part];
	const struct ptc_box *box = &b->parts.boxes[part].box;
	uint64_t begin = ptc_block_begin(b->at, b->block);
	struct ptc_runs r;

	for (ptc_runs_init(&r, &b->table->pieces[piece].extent_box, box, box); r.done < r.count; ptc_runs_next(&r)) {
		uint64_t at = b->table->locs[piece].pos + (uint64_t)r.a_off - begin;

		ptc_require(at + (uint64_t)r.run_bytes <= b->len);
		fn(b, at, data + r.b_off, (size_t)r.run_bytes);
	}
}

static void put_run(struct ptc_block *b, uint64_t at, uint8_t *data, size_t n)
{
	memcpy(b->bytes + at, data, n);
	memset(b->put + at, 1, n);
}

static void get_run(struct ptc_block *b, uint64_t at, uint8_t *data, size_t n)
{
	memcpy(data, b->found + at, n);
}

void ptc_block_put(struct ptc_block *b, size_t part, const void *data)
{
	each_run(b, part, (uint8_t *)(uintptr_t)data, put_run);
}

void ptc_block_get(struct ptc_block *b, size_t part, void *data)
{
	each_run(b, part, data, get_run);
}

void ptc_block_reset(struct ptc_block *b)
{
	memcpy(b->bytes, b->found, b->len);
	memset(b->put, 0, b->len);
}

static uint64_t sum_of(const struct ptc_block *b)
{
	return __atomic_load_n(&chunk_of(b)->sum[b->block], __ATOMIC_RELAXED);
}

bool ptc_block_right(const struct ptc_block *b)
{
	return ptc_checksum(b->bytes, b->len) == sum_of(b);
}

/* ---- writing it ---- */

static void write_lines(const struct ptc_block *b, size_t from, size_t to)
{
	uint8_t *memory = memory_of(b);

	for (size_t n; from < to; from += n) {
		n = PTC_MIN(LINE_BYTES, to - from);
		if (memcmp(memory + from, b->bytes + from, n) != 0)
			memcpy(memory + from, b->bytes + from, n);
	}
}

/* In memory, and on the disk where there is one. */
static int write_block(const struct ptc_block *b, struct ptc_error *err)
{
	size_t half = b->len / 2;
	int rc = 0;

	if (ptc_fault("store.heal.before"))
		return ptc_error_set(err, PTC_EIO, "healing a block: asked to fail");
	write_lines(b, 0, half);
	if (ptc_fault("store.heal.middle"))
		return ptc_error_set(err, PTC_EIO, "healing a block: asked to fail");
	write_lines(b, half, b->len);
	if (!b->table->job->volatile_fs)
		rc = ptc_store_msync(memory_of(b), b->len, err);
	if (!rc && memcmp(memory_of(b), b->bytes, b->len) != 0)
		rc = ptc_error_set(
			err, PTC_EIO,
			"block %u of chunk %u does not keep written bytes: memory is failing on this node; replace it",
			b->block, chunk_of(b)->id);
	return rc;
}

static void healed(const struct ptc_block *b)
{
	told_no_more(chunk_of(b), b->block);
	ptc_count_add(PTC_COUNT_HEALED_BLOCKS, 1);
	(void)ptc_fault("store.heal.after");
}

int ptc_block_heal(struct ptc_block *b, struct ptc_error *err)
{
	int rc = ptc_block_right(b) ? 0
				    : ptc_error_set(err, PTC_ECORRUPT, "the bytes do not match the block's checksum");

	if (rc == 0)
		rc = write_block(b, err);
	if (!rc)
		healed(b);
	return rc;
}

/* Whether all that a table has live in the block was put; *listings grows by how often it lists the chunk. */
static int covers(const struct ptc_block *b, struct ptc_table *t, uint32_t *listings)
{
	const struct chunk *c = chunk_of(b);
	bool missing = false;
	int rc = 0;

	pthread_rwlock_rdlock(&t->lock);
	for (size_t i = 0; rc == 0 && i < t->nchunks; i++) {
		if (t->chunks[i] != c)
			continue;
		++*listings;
		rc = ptc_block_misses(t, i, b->block, b->put, &missing);
	}
	pthread_rwlock_unlock(&t->lock);
	return rc ? rc : missing ? PTC_ESTATE : 0;
}

/* wlock held: nothing is listed or dropped meanwhile. */
static int all_put(const struct ptc_block *b, struct ptc_error *err)
{
	struct job *j = b->table->job;
	uint32_t listings = 0, refs;
	int rc = b->table->dropped ? PTC_ESTATE : 0;

	for (struct ptc_table *t = j->tables; rc == 0 && t; t = t->next)
		rc = covers(b, t, &listings);
	pthread_mutex_lock(&j->s->lock);
	refs = chunk_of(b)->refs;
	pthread_mutex_unlock(&j->s->lock);
	if (rc == 0 && listings != refs)
		rc = PTC_ESTATE;
	return rc ? ptc_error_set(err, rc, "other bytes of this block are still in use") : 0;
}

static int renew_locked(struct ptc_block *b, struct ptc_error *err)
{
	struct chunk *c = chunk_of(b);
	uint64_t before = c->sum[b->block];
	int rc = all_put(b, err);

	if (rc == 0)
		rc = write_block(b, err);
	if (rc)
		return rc;
	__atomic_store_n(&c->sum[b->block], ptc_checksum(b->bytes, b->len), __ATOMIC_RELAXED);
	rc = ptc_store_rec_sums(b->table->job, &c, 1, err);
	if (rc)
		__atomic_store_n(&c->sum[b->block], before, __ATOMIC_RELAXED);
	else
		healed(b);
	return rc;
}

int ptc_block_renew(struct ptc_block *b, struct ptc_error *err)
{
	struct ptc_store *s = b->table->job->s;
	int rc;

	pthread_mutex_lock(&s->wlock);
	rc = renew_locked(b, err);
	pthread_mutex_unlock(&s->wlock);
	return rc;
}
