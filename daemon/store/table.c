/* SPDX-License-Identifier: Apache-2.0 */
/* Makes tables of the store: reserve, fill, seal.
 *
 * Happy path: append() takes chunks, adds the pieces in memory and in meta (one commit); any thread fills extents; the
 * one that completes a chunk sums it; flush() and seal() msync what lies on a disk and then write its sums to meta.
 *
 * Failure modes: no room is PTC_ENOSPC and the table is as before; a table that was dropped while it was being filled
 * says PTC_ESTATE at its next change; a failed msync or commit leaves the table under construction; one whose bytes
 * have changed since they were said to be there is never sealed (PTC_ECORRUPT). */
#include "daemon/store/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/fault.h"

#include <stdlib.h>
#include <string.h>

/* An extent of PTC_EXTENT_MAX_BYTES can touch this many chunks. */
#define EXTENT_CHUNKS (PTC_EXTENT_MAX_BYTES / PTC_CHUNK_BYTES + 2)

struct ptc_table *ptc_table_ref(struct ptc_table *t)
{
	pthread_mutex_lock(&t->job->s->lock);
	t->refs++;
	pthread_mutex_unlock(&t->job->s->lock);
	return t;
}

struct ptc_table *ptc_table_unref(struct ptc_table *t)
{
	struct ptc_store *s;
	struct job *last = NULL;
	bool gone, shared = false;

	if (!t)
		return NULL;
	s = t->job->s;
	pthread_mutex_lock(&s->lock);
	gone = --t->refs == 0;
	if (gone) {
		for (size_t i = 0; i < t->nchunks; i++)
			ptc_store_chunk_put_locked(t->job, t->chunks[i]);
		shared = ptc_store_table_shared_locked(t);
		last = ptc_store_job_unref_locked(t->job);
	}
	pthread_mutex_unlock(&s->lock);
	ptc_store_job_free(last);
	if (!gone)
		return NULL;
	pthread_rwlock_destroy(&t->lock);
	ptc_free(t->chunks);
	if (!shared) {
		ptc_free(t->owners);
		ptc_free(t->pieces);
		ptc_free(t->locs);
		ptc_free(t->heads);
	}
	ptc_free(t);
	return NULL;
}

bool ptc_table_sealed(const struct ptc_table *t)
{
	return t->sealed;
}

struct ptc_table_key ptc_table_key_of(const struct ptc_table *t)
{
	return t->key;
}

static int begin_locked(struct ptc_store *s, const struct ptc_table_key *key, struct ptc_table **ret_table,
			struct ptc_error *err)
{
	struct ptc_table *t = NULL;
	struct job *j;
	int rc;

	pthread_mutex_lock(&s->lock);
	j = ptc_store_job_find_locked(s, key->uuid);
	if (j)
		t = ptc_store_table_find_locked(j, key);
	if (t)
		t->refs++;
	pthread_mutex_unlock(&s->lock);
	rc = ptc_store_job_usable(j, key->uuid, err);
	if (rc)
		return rc;
	if (!t) {
		t = ptc_store_table_new(j, key);
		if (!t)
			return ptc_nomem(err);
		pthread_mutex_lock(&s->lock);
		ptc_store_table_register_locked(t);
		t->refs++;
		pthread_mutex_unlock(&s->lock);
	}
	*ret_table = t;
	return 0;
}

int ptc_table_begin(struct ptc_store *s, const struct ptc_table_key *key, struct ptc_table **ret_table,
		    struct ptc_error *err)
{
	int rc;

	pthread_mutex_lock(&s->wlock);
	rc = begin_locked(s, key, ret_table, err);
	pthread_mutex_unlock(&s->wlock);
	return rc;
}

static int find(struct ptc_store *s, const struct ptc_table_key *key, bool sealed, struct ptc_table **ret_table,
		struct ptc_error *err)
{
	struct ptc_table *t = NULL;
	struct job *j;
	int rc;

	pthread_mutex_lock(&s->lock);
	j = ptc_store_job_find_locked(s, key->uuid);
	rc = ptc_store_job_usable(j, key->uuid, err);
	if (!rc)
		t = ptc_store_table_find_locked(j, key);
	if (t && (t->sealed || !sealed))
		t->refs++;
	else
		t = NULL;
	pthread_mutex_unlock(&s->lock);
	if (rc)
		return rc;
	if (!t)
		return ptc_error_set(err, PTC_ENOTFOUND, "job %s: no sealed state for generation %llu, snapshot %llu",
				     key->uuid, (unsigned long long)key->generation, (unsigned long long)key->snapshot);
	*ret_table = t;
	return 0;
}

int ptc_table_open(struct ptc_store *s, const struct ptc_table_key *key, struct ptc_table **ret_table,
		   struct ptc_error *err)
{
	return find(s, key, true, ret_table, err);
}

int ptc_table_find(struct ptc_store *s, const struct ptc_table_key *key, struct ptc_table **ret_table,
		   struct ptc_error *err)
{
	return find(s, key, false, ret_table, err);
}

uint64_t ptc_store_place(uint64_t *tail, size_t *nchunks, int64_t bytes)
{
	uint64_t pos = *tail, in = pos % PTC_CHUNK_BYTES;
	size_t end;

	in = (in + EXTENT_ALIGN - 1) & ~(uint64_t)(EXTENT_ALIGN - 1);
	if (*tail == 0 || *tail % PTC_CHUNK_BYTES == 0 || in >= PTC_CHUNK_BYTES)
		pos = (uint64_t)*nchunks * PTC_CHUNK_BYTES;
	else
		pos = *tail - *tail % PTC_CHUNK_BYTES + in;
	end = ptc_store_chunk_of(pos + (uint64_t)bytes - 1) + 1;
	*nchunks = PTC_MAX(*nchunks, end);
	*tail = pos + (uint64_t)bytes;
	return pos;
}

static int writable(const struct ptc_table *t, struct ptc_error *err)
{
	if (t->dropped)
		return ptc_error_set(err, PTC_ESTATE, "this table was dropped while it was being made");
	if (t->sealed)
		return ptc_error_set(err, PTC_ESTATE, "this table is sealed");
	return 0;
}

/* Registers an extent with the chunks it lies in. store.lock held. */
static void occupy_locked(struct ptc_table *t, uint64_t pos, int64_t bytes)
{
	uint64_t end = pos + (uint64_t)bytes;

	for (size_t i = ptc_store_chunk_of(pos); i <= ptc_store_chunk_of(end - 1); i++) {
		uint64_t upto = end - (uint64_t)i * PTC_CHUNK_BYTES;

		t->chunks[i]->unfilled++;
		t->chunks[i]->used = (uint32_t)PTC_MIN(upto, PTC_CHUNK_BYTES);
	}
}

/* Everything in memory; what is after must have room. store.lock held, table.lock held for writing. */
static void add_locked(struct ptc_table *t, struct addition *v, size_t n, struct chunk *const *alias, size_t nalias,
		       struct chunk *const *fresh, size_t nfresh)
{
	size_t before = t->nchunks;

	for (size_t i = 0; i < nalias; i++) {
		t->chunks[t->nchunks++] = alias[i];
		ptc_store_chunk_use_locked(t->job, alias[i]);
		alias[i]->stored++;
	}
	for (size_t i = 0; i < nfresh; i++) {
		t->chunks[t->nchunks++] = fresh[i];
		fresh[i]->stored++;
	}
	if (t->nchunks > before) {
		if (before > 0)
			t->chunks[before - 1]->closed = true;
		for (size_t i = before + nalias; i + 1 < t->nchunks; i++)
			t->chunks[i]->closed = true;
	}
	for (size_t i = 0; i < n; i++) {
		const struct ptc_piece p = { .item = v[i].item,
					     .extent = v[i].extent = (uint32_t)t->n,
					     .live = *v[i].live,
					     .extent_box = *v[i].extent_box };

		ptc_store_table_push(t, &p, v[i].pos, v[i].alias);
		if (!v[i].alias)
			occupy_locked(t, v[i].pos, ptc_box_volume(v[i].live));
	}
}

static void take_back(struct ptc_table *t, size_t n, size_t nchunks)
{
	pthread_rwlock_wrlock(&t->lock);
	pthread_mutex_lock(&t->job->s->lock);
	for (size_t i = n; i < t->n; i++) {
		uint64_t pos = t->locs[i].pos, end = pos + (uint64_t)ptc_box_volume(&t->pieces[i].extent_box);

		for (size_t c = ptc_store_chunk_of(pos); c <= ptc_store_chunk_of(end - 1) && !t->locs[i].filled; c++)
			t->chunks[c]->unfilled--;
		t->live_bytes -= ptc_box_volume(&t->pieces[i].live);
	}
	for (size_t i = nchunks; i < t->nchunks; i++) {
		t->chunks[i]->stored--;
		ptc_store_chunk_put_locked(t->job, t->chunks[i]);
	}
	t->n = n;
	t->nchunks = nchunks;
	ptc_store_table_rehash(t);
	pthread_mutex_unlock(&t->job->s->lock);
	pthread_rwlock_unlock(&t->lock);
}

/* Positions of the new pieces; *ret_nchunks is the length of the stream with them. */
static uint64_t lay_out(const struct ptc_table *t, struct addition *v, size_t n, size_t nalias, size_t *ret_nchunks)
{
	size_t nchunks = t->nchunks + nalias;
	uint64_t tail = nalias || (t->nchunks && t->chunks[t->nchunks - 1]->closed) ? 0 : t->tail;

	for (size_t i = 0; i < n; i++)
		v[i].pos = v[i].alias ? v[i].pos + (uint64_t)t->nchunks * PTC_CHUNK_BYTES
				      : ptc_store_place(&tail, &nchunks, ptc_box_volume(v[i].live));
	*ret_nchunks = nchunks;
	return tail;
}

/* Aliased chunks whose sums meta has lost with the last table that listed them are written again. */
static size_t unsaved_of(struct chunk *const *v, size_t n, struct chunk **ret_v)
{
	size_t found = 0;

	for (size_t i = 0; i < n; i++)
		if (!v[i]->saved)
			ret_v[found++] = v[i];
	return found;
}

static int append_locked(struct ptc_table *t, struct addition *v, size_t n, struct chunk *const *alias, size_t nalias,
			 struct chunk **scratch, struct ptc_error *err)
{
	struct table_save save = { .first_piece = t->n, .first_chunk = t->nchunks };
	size_t nchunks, nfresh, nsums;
	uint64_t tail = lay_out(t, v, n, nalias, &nchunks);
	int rc;

	nfresh = nchunks - nalias - t->nchunks;
	pthread_rwlock_wrlock(&t->lock);
	rc = ptc_store_table_room(t, n, nalias + nfresh);
	pthread_rwlock_unlock(&t->lock);
	if (rc)
		return ptc_error_set(err, rc, "no memory for a table of %zu pieces", t->n + n);
	rc = ptc_store_chunks_take(t->job, nfresh, scratch, err);
	if (rc)
		return rc;
	pthread_rwlock_wrlock(&t->lock);
	pthread_mutex_lock(&t->job->s->lock);
	add_locked(t, v, n, alias, nalias, scratch, nfresh);
	nsums = unsaved_of(alias, nalias, scratch);
	pthread_mutex_unlock(&t->job->s->lock);
	pthread_rwlock_unlock(&t->lock);
	rc = ptc_store_rec_table_save(t, &save, scratch, nsums, err);
	if (rc)
		take_back(t, save.first_piece, save.first_chunk);
	else if (n > 0)
		t->tail = tail;
	return rc;
}

int ptc_store_table_append(struct ptc_table *t, struct addition *v, size_t n, struct chunk *const *chunks,
			   size_t nchunks, struct ptc_error *err)
{
	size_t most = nchunks + 1;
	struct chunk **scratch;
	int rc;

	for (size_t i = 0; i < n; i++)
		if (!v[i].alias)
			most += (size_t)ptc_box_volume(v[i].live) / PTC_CHUNK_BYTES + 2;
	scratch = ptc_malloc(most * sizeof(struct chunk *));
	if (!scratch)
		return ptc_nomem(err);
	pthread_mutex_lock(&t->job->s->wlock);
	rc = writable(t, err);
	if (!rc)
		rc = append_locked(t, v, n, chunks, nchunks, scratch, err);
	pthread_mutex_unlock(&t->job->s->wlock);
	ptc_free(scratch);
	return rc;
}

/* Blocks of chunk number c that stream range [pos, end) lies in. */
static uint16_t block_mask(size_t c, uint64_t pos, uint64_t end)
{
	uint64_t base = (uint64_t)c * PTC_CHUNK_BYTES;
	uint64_t from = pos > base ? pos - base : 0, to = PTC_MIN(end - base, PTC_CHUNK_BYTES) - 1;
	unsigned first = (unsigned)(from / PTC_BLOCK_BYTES), last = (unsigned)(to / PTC_BLOCK_BYTES);

	return (uint16_t)(((2u << last) - 1) & ~((1u << first) - 1));
}

/* Bytes [pos, end) of the stream are written again. */
static void again(const struct ptc_table *t, uint64_t pos, uint64_t end)
{
	for (size_t i = ptc_store_chunk_of(pos); i <= ptc_store_chunk_of(end - 1); i++) {
		struct chunk *c = t->chunks[i];
		const uint64_t base = (uint64_t)i * PTC_CHUNK_BYTES;

		atomic_fetch_and(&c->early, (uint16_t)~block_mask(i, pos, end));
		pthread_mutex_lock(&t->job->s->lock);
		ptc_store_chunk_parts_drop_locked(c, pos > base ? (uint32_t)(pos - base) : 0,
						  (uint32_t)PTC_MIN(end - base, PTC_CHUNK_BYTES));
		pthread_mutex_unlock(&t->job->s->lock);
	}
}

void ptc_store_extent_again(const struct ptc_table *t, uint32_t extent)
{
	uint64_t pos = t->locs[extent].pos;

	again(t, pos, pos + (uint64_t)ptc_box_volume(&t->pieces[extent].extent_box));
}

/* An unfilled extent that a crash or a failed fill left, with just this box; its index + 1. */
static uint32_t resume(const struct ptc_table *t, const struct ptc_store_box *b)
{
	if (t->n == 0)
		return 0;
	for (uint32_t i = ptc_store_table_head(t, b->item); i; i = t->locs[i - 1].next)
		if (t->pieces[i - 1].item == b->item && !t->locs[i - 1].filled &&
		    ptc_box_equal(&t->pieces[i - 1].live, &b->box)) {
			ptc_store_extent_again(t, i - 1);
			return i;
		}
	return 0;
}

static int reserve_new(struct ptc_table *t, const struct ptc_store_box *boxes, size_t n, uint32_t *extents,
		       struct ptc_error *err)
{
	struct addition *v = ptc_calloc(n + 1, sizeof *v);
	size_t fresh = 0;
	int rc = 0;

	if (!v)
		return ptc_nomem(err);
	for (size_t i = 0; i < n; i++)
		if (extents[i] == 0)
			v[fresh++] = (struct addition){ .item = boxes[i].item,
							.live = &boxes[i].box,
							.extent_box = &boxes[i].box };
	if (fresh > 0)
		rc = ptc_store_table_append(t, v, fresh, NULL, 0, err);
	for (size_t i = 0, f = 0; i < n && !rc; i++)
		extents[i] = extents[i] ? extents[i] - 1 : v[f++].extent;
	ptc_free(v);
	return rc;
}

int ptc_table_reserve(struct ptc_table *t, const struct ptc_store_box *boxes, size_t n, uint32_t *ret_extents,
		      struct ptc_error *err)
{
	ptc_auto_free uint32_t *extents = ptc_calloc(n + 1, sizeof *extents);
	int rc = extents ? 0 : ptc_nomem(err);

	for (size_t i = 0; i < n && !rc; i++) {
		rc = ptc_store_box_check(boxes[i].item, &boxes[i].box, err);
		if (!rc && ptc_box_volume(&boxes[i].box) > PTC_EXTENT_MAX_BYTES)
			rc = ptc_error_set(err, PTC_ELIMIT, "item %u: extent of %lld bytes, the maximum is %u",
					   boxes[i].item, (long long)ptc_box_volume(&boxes[i].box),
					   PTC_EXTENT_MAX_BYTES);
	}
	if (rc)
		return rc;
	pthread_rwlock_rdlock(&t->lock);
	rc = writable(t, err);
	for (size_t i = 0; i < n && !rc; i++)
		extents[i] = resume(t, &boxes[i]);
	pthread_rwlock_unlock(&t->lock);
	if (!rc)
		rc = reserve_new(t, boxes, n, extents, err);
	if (!rc)
		memcpy(ret_extents, extents, n * sizeof *extents);
	return rc;
}

int ptc_table_extent_iov(struct ptc_table *t, uint32_t extent, int64_t off, int64_t len, struct iovec *iov, int niov)
{
	int n = 0;

	pthread_rwlock_rdlock(&t->lock);
	if (t->sealed || extent >= t->n || t->locs[extent].filled) {
		n = PTC_ESTATE;
	} else if (off < 0 || len < 0 || off > ptc_box_volume(&t->pieces[extent].live)) {
		n = PTC_EINVAL;
	} else {
		uint64_t pos = t->locs[extent].pos + (uint64_t)off;

		len = PTC_MIN(len, ptc_box_volume(&t->pieces[extent].live) - off);
		for (; len > 0 && n < niov; n++) {
			int64_t room;
			uint8_t *p = ptc_store_at(t, pos, &room);

			iov[n] = (struct iovec){ p, (size_t)PTC_MIN(room, len) };
			len -= (int64_t)iov[n].iov_len;
			pos += iov[n].iov_len;
		}
	}
	pthread_rwlock_unlock(&t->lock);
	return n;
}

void ptc_table_extent_map(struct ptc_table *t, uint32_t extent)
{
	pthread_rwlock_rdlock(&t->lock);
	if (!t->sealed && extent < t->n) {
		uint64_t pos = t->locs[extent].pos, end = pos + (uint64_t)ptc_box_volume(&t->pieces[extent].extent_box);

		for (size_t c = ptc_store_chunk_of(pos); c <= ptc_store_chunk_of(end - 1); c++)
			ptc_store_chunk_map(t->chunks[c]);
	}
	pthread_rwlock_unlock(&t->lock);
}

static bool chunk_fresh(struct chunk *c, uint64_t process, bool *there)
{
	uint64_t had = process ? atomic_exchange(&c->mapped_by, process) : atomic_load(&c->mapped_by);

	if (process && had == process)
		return false;
	*there = *there && (had || atomic_load(&c->mapped));
	return true;
}

bool ptc_table_extent_fresh(struct ptc_table *t, uint32_t extent, uint64_t process, bool *ret_there)
{
	bool fresh = false;

	*ret_there = t->job->volatile_fs;
	pthread_rwlock_rdlock(&t->lock);
	if (!t->sealed && extent < t->n) {
		uint64_t pos = t->locs[extent].pos, end = pos + (uint64_t)ptc_box_volume(&t->pieces[extent].extent_box);

		for (size_t c = ptc_store_chunk_of(pos); c <= ptc_store_chunk_of(end - 1); c++)
			fresh |= chunk_fresh(t->chunks[c], process, ret_there);
	}
	pthread_rwlock_unlock(&t->lock);
	return fresh;
}

uint64_t ptc_table_bytes(struct ptc_table *t)
{
	uint64_t bytes;

	pthread_rwlock_rdlock(&t->lock);
	bytes = (uint64_t)t->nchunks * PTC_CHUNK_BYTES;
	pthread_rwlock_unlock(&t->lock);
	return bytes;
}

uint64_t ptc_table_live_bytes(const struct ptc_table *t)
{
	return t->sealed ? (uint64_t)t->live_bytes : 0;
}

static void scatter(const struct ptc_table *t, size_t i, const struct ptc_box *src_box, const uint8_t *src,
		    const struct ptc_box *cut)
{
	struct ptc_runs r;

	for (ptc_runs_init(&r, &t->pieces[i].extent_box, src_box, cut); r.done < r.count; ptc_runs_next(&r)) {
		uint64_t pos = t->locs[i].pos + (uint64_t)r.a_off;
		const uint8_t *from = src + r.b_off;
		int64_t left = r.run_bytes;

		while (left > 0) {
			int64_t room;
			uint8_t *to = ptc_store_at(t, pos, &room);
			int64_t now = PTC_MIN(room, left);

			if (r.run_bytes >= PTC_BLOCK_BYTES) /* most of the chunk comes so: no page by page */
				ptc_store_chunk_map(t->chunks[ptc_store_chunk_of(pos)]);
			memcpy(to, from, (size_t)now);
			from += now;
			pos += (uint64_t)now;
			left -= now;
		}
	}
}

int ptc_table_write(struct ptc_table *t, uint32_t item, const struct ptc_box *src_box, const void *src,
		    struct ptc_error *err)
{
	int rc = ptc_store_box_check(item, src_box, err);
	struct ptc_box cut;

	if (rc)
		return rc;
	pthread_rwlock_rdlock(&t->lock);
	rc = writable(t, err);
	if (!rc && ptc_store_covered(t, item, src_box) != ptc_box_volume(src_box))
		rc = ptc_error_set(err, PTC_ENOTFOUND, "item %u: nothing is reserved for a part of this box", item);
	for (uint32_t i = rc ? 0 : ptc_store_table_head(t, item); i && !rc; i = t->locs[i - 1].next) {
		if (t->pieces[i - 1].item != item || t->locs[i - 1].filled ||
		    !ptc_box_intersect(&t->pieces[i - 1].live, src_box, &cut))
			continue;
		if (ptc_fault("store.fill.middle"))
			rc = ptc_error_set(err, PTC_EIO, "item %u: fill: asked to fail", item);
		else
			scatter(t, i - 1, src_box, src, &cut);
	}
	pthread_rwlock_unlock(&t->lock);
	return rc;
}

/* Blocks of chunk number c that lie wholly in stream range [pos, end). */
static uint16_t whole_mask(size_t c, uint64_t pos, uint64_t end)
{
	uint64_t base = (uint64_t)c * PTC_CHUNK_BYTES;
	uint16_t mask = block_mask(c, pos, end);

	if (pos > base && (pos - base) % PTC_BLOCK_BYTES)
		mask &= (uint16_t)(mask - 1); /* the lowest is begun in the middle */
	if (end - base < PTC_CHUNK_BYTES && (end - base) % PTC_BLOCK_BYTES)
		mask &= (uint16_t) ~(1u << ((end - base) / PTC_BLOCK_BYTES));
	return mask;
}

/* Of bytes [from, end) of the stream, those in blocks that are not in the mask: at the ends. */
static void sum_parts(const struct ptc_table *t, size_t i, uint16_t whole, uint64_t from, uint64_t end)
{
	const uint64_t base = (uint64_t)i * PTC_CHUNK_BYTES;
	uint32_t at = from > base ? (uint32_t)(from - base) : 0;
	const uint32_t to = (uint32_t)PTC_MIN(end - base, PTC_CHUNK_BYTES);

	for (uint32_t next; at < to; at = next) {
		next = PTC_MIN(to, (at / PTC_BLOCK_BYTES + 1) * PTC_BLOCK_BYTES);
		if (!(whole & (1u << at / PTC_BLOCK_BYTES)))
			ptc_store_chunk_part(t->job, t->chunks[i], at, next - at);
	}
}

void ptc_table_extent_ready(struct ptc_table *t, uint32_t extent, int64_t off, int64_t known, int64_t len)
{
	pthread_rwlock_rdlock(&t->lock);
	if (!t->sealed && extent < t->n && !t->locs[extent].filled && off >= 0 && known >= 0 && len > known &&
	    len <= ptc_box_volume(&t->pieces[extent].extent_box) - off) {
		uint64_t pos = t->locs[extent].pos + (uint64_t)off, from = pos + (uint64_t)known,
			 end = pos + (uint64_t)len;

		if (!known && atomic_exchange(&t->locs[extent].said, true))
			again(t, pos, end);
		/* from the last known byte on, whose block may be whole now */
		for (size_t i = ptc_store_chunk_of(from - (known > 0)); i <= ptc_store_chunk_of(end - 1); i++) {
			const uint16_t whole = whole_mask(i, pos, end);

			ptc_store_chunk_sum_early(t->chunks[i], whole);
			sum_parts(t, i, whole, from, end);
		}
	}
	pthread_rwlock_unlock(&t->lock);
}

/* Sums chunks this thread has claimed. */
static void sum_claimed(struct ptc_table *t, struct chunk **v, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!ptc_store_chunk_sum(v[i]))
			t->torn = true;
	pthread_mutex_lock(&t->job->s->lock);
	for (size_t i = 0; i < n; i++) {
		v[i]->claimed = false;
		v[i]->summed = true;
	}
	t->unsaved += n;
	pthread_mutex_unlock(&t->job->s->lock);
}

static bool claim_locked(struct chunk *c)
{
	if (c->unfilled > 0 || !c->closed || c->summed || c->claimed)
		return false;
	return c->claimed = true;
}

/* Marks one extent; returns the chunks now complete. store.lock held. */
static size_t mark_locked(struct ptc_table *t, uint32_t extent, struct chunk **ret_v)
{
	uint64_t pos = t->locs[extent].pos, end = pos + (uint64_t)ptc_box_volume(&t->pieces[extent].extent_box);
	size_t n = 0;

	if (t->locs[extent].filled)
		return 0;
	t->locs[extent].filled = true;
	for (size_t i = ptc_store_chunk_of(pos); i <= ptc_store_chunk_of(end - 1); i++) {
		struct chunk *c = t->chunks[i];

		c->dirty |= block_mask(i, pos, end);
		c->unfilled--;
		if (claim_locked(c))
			ret_v[n++] = c;
	}
	return n;
}

static int filled(struct ptc_table *t, uint32_t extent, struct ptc_error *err)
{
	struct chunk *v[EXTENT_CHUNKS];
	size_t n = 0;
	int rc;

	if (ptc_fault("store.fill.middle"))
		return ptc_error_set(err, PTC_EIO, "fill: asked to fail");
	pthread_rwlock_rdlock(&t->lock);
	rc = writable(t, err);
	if (!rc && extent >= t->n)
		rc = ptc_error_set(err, PTC_EINVAL, "no extent %u", extent);
	if (!rc) {
		pthread_mutex_lock(&t->job->s->lock);
		n = mark_locked(t, extent, v);
		pthread_mutex_unlock(&t->job->s->lock);
	}
	pthread_rwlock_unlock(&t->lock);
	sum_claimed(t, v, n);
	return rc;
}

int ptc_table_filled(struct ptc_table *t, uint32_t extent, struct ptc_error *err)
{
	int rc = filled(t, extent, err);
	bool due;

	ptc_store_huge_changed(t->job, false);
	pthread_mutex_lock(&t->job->s->lock);
	due = t->unsaved >= FLUSH_CHUNKS;
	if (due)
		t->unsaved = 0; /* one thread flushes, the others go on filling */
	pthread_mutex_unlock(&t->job->s->lock);
	return rc || !due ? rc : ptc_table_flush(t, err);
}

int ptc_table_filled_all(struct ptc_table *t, struct ptc_error *err)
{
	int rc = 0;

	for (uint32_t i = 0; !rc; i++) {
		bool todo, end;

		pthread_rwlock_rdlock(&t->lock);
		end = i >= t->n;
		todo = !end && !t->locs[i].filled;
		pthread_rwlock_unlock(&t->lock);
		if (end)
			break;
		if (todo)
			rc = ptc_table_filled(t, i, err);
	}
	return rc;
}

/* Sums what is complete and not summed yet, and lists what is summed and not in meta. wlock held. */
static int collect(struct ptc_table *t, struct chunk ***ret_v, size_t *ret_n, struct ptc_error *err)
{
	struct chunk **v = ptc_malloc((t->nchunks + 1) * sizeof(struct chunk *));
	size_t n = 0;

	if (!v)
		return ptc_nomem(err);
	pthread_mutex_lock(&t->job->s->lock);
	for (size_t i = 0; i < t->nchunks; i++)
		if (claim_locked(t->chunks[i]))
			v[n++] = t->chunks[i];
	pthread_mutex_unlock(&t->job->s->lock);
	sum_claimed(t, v, n);
	n = 0;
	pthread_mutex_lock(&t->job->s->lock);
	for (size_t i = 0; i < t->nchunks; i++)
		if (t->chunks[i]->summed && !t->chunks[i]->saved)
			v[n++] = t->chunks[i];
	t->unsaved = 0;
	pthread_mutex_unlock(&t->job->s->lock);
	*ret_v = v;
	*ret_n = n;
	return 0;
}

static int save(struct ptc_table *t, bool seal, struct ptc_error *err)
{
	struct table_save what = { .first_piece = t->n, .first_chunk = t->nchunks, .seal = seal };
	struct chunk **v = NULL;
	size_t n = 0;
	int rc = collect(t, &v, &n, err);

	ptc_store_huge_changed(t->job, false);
	if (rc)
		return rc;
	if (t->torn)
		rc = ptc_error_set(
			err, PTC_ECORRUPT,
			"job %s: bytes have changed by themselves while this state was written to the store; "
			"look for faulty memory in this machine",
			t->job->uuid);
	for (size_t i = 0; i < n && !rc && !t->job->volatile_fs; i++)
		rc = ptc_store_msync(v[i]->ptr, PTC_CHUNK_BYTES, err);
	if (!rc && (n > 0 || seal))
		rc = ptc_store_rec_table_save(t, &what, v, n, err);
	ptc_free(v);
	return rc;
}

int ptc_table_flush(struct ptc_table *t, struct ptc_error *err)
{
	int rc;

	pthread_mutex_lock(&t->job->s->wlock);
	rc = writable(t, err);
	if (!rc)
		rc = save(t, false, err);
	pthread_mutex_unlock(&t->job->s->wlock);
	return rc;
}

static int check_complete(struct ptc_table *t, struct ptc_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&t->job->s->lock);
	for (size_t i = 0; i < t->n && !rc; i++)
		if (!t->locs[i].filled)
			rc = ptc_error_set(err, PTC_ESTATE, "item %u: an extent is not filled", t->pieces[i].item);
	for (size_t i = 0; i < t->nchunks && !rc; i++)
		if (t->chunks[i]->claimed)
			rc = ptc_error_set(err, PTC_ESTATE, "a fill is still being recorded");
	for (size_t i = 0; i < t->nchunks && !rc; i++)
		t->chunks[i]->closed = true;
	pthread_mutex_unlock(&t->job->s->lock);
	return rc;
}

static int seal_locked(struct ptc_table *t, struct ptc_error *err)
{
	struct loc *room;
	int rc;

	if (t->sealed)
		return 0;
	rc = writable(t, err);
	if (!rc)
		rc = check_complete(t, err);
	if (rc)
		return rc;
	room = ptc_malloc((t->n + 1) * sizeof *room); /* before the commit, behind which nothing may fail */
	rc = room ? save(t, true, err) : ptc_nomem(err);
	if (rc) {
		ptc_free(room);
		return rc;
	}
	pthread_rwlock_wrlock(&t->lock);
	ptc_store_table_sort(t, room);
	t->sealed = true;
	pthread_rwlock_unlock(&t->lock);
	return 0;
}

int ptc_table_seal(struct ptc_table *t, struct ptc_error *err)
{
	int rc;

	pthread_mutex_lock(&t->job->s->wlock);
	rc = seal_locked(t, err);
	pthread_mutex_unlock(&t->job->s->wlock);
	return rc;
}
