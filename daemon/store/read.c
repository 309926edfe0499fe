/* SPDX-License-Identifier: Apache-2.0 */
/* Reads tables of the store, and verifies each block: pieces, bytes, spans, digests, scrub.
 *
 * Happy path: the pieces of the item that intersect the box are found by the hash of the item. Bytes that are copied or
 * digested are verified block by block, each block right before its bytes are used, so these come out of the
 * processor's cache. Bytes that are handed out in place are verified before. No result is remembered: memory that was
 * right once need not be right now.
 *
 * Failure modes: a part that is not here is PTC_ENOTFOUND before anything is written; a block that does not match its
 * sum is PTC_ECORRUPT naming item, rows, block and chunk, and is told to the store's owner once (store_damage.c). */
#include "daemon/store/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"
#include "base/number/search.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* Reads go up through the stream, so a block that holds several runs of a part is verified once for the part. */
struct check {
	const struct ptc_table *t;
	size_t piece;
	struct ptc_verified *seen; /* the block verified last */
};

/* The block of stream position pos. A sealed table's blocks all have sums. */
static int verify_block(struct check *k, uint64_t pos, struct ptc_error *err)
{
	struct chunk *c = k->t->chunks[ptc_store_chunk_of(pos)];
	unsigned b = (unsigned)(pos % PTC_CHUNK_BYTES / PTC_BLOCK_BYTES);
	size_t off = (size_t)b * PTC_BLOCK_BYTES, len = PTC_MIN(PTC_BLOCK_BYTES, PTC_CHUNK_BYTES - off);

	if ((k->t->sealed || c->summed) &&
	    ptc_checksum(c->ptr + off, len) != __atomic_load_n(&c->sum[b], __ATOMIC_RELAXED))
		return ptc_store_damage(k->t, k->piece, ptc_store_chunk_of(pos), b, err);
	k->seen->table = k->t;
	k->seen->begin = pos - pos % PTC_CHUNK_BYTES + off;
	k->seen->end = k->seen->begin + len;
	return 0;
}

/* The bytes at pos, at most left of them, as far as their block goes, which is verified. */
static int verified(struct check *k, uint64_t pos, int64_t left, const uint8_t **ret_p, int64_t *ret_n,
		    struct ptc_error *err)
{
	int64_t room;
	const struct ptc_verified *seen = k->seen;
	bool again = seen->table == k->t && pos >= seen->begin && pos < seen->end;
	int rc = again ? 0 : verify_block(k, pos, err);

	if (rc)
		return rc;
	*ret_p = ptc_store_at(k->t, pos, &room);
	*ret_n = PTC_MIN(left, (int64_t)(seen->end - pos));
	return 0;
}

/* Every block that stream range [pos, end) of piece i touches. */
static int verify(const struct ptc_table *t, size_t i, uint64_t pos, uint64_t end, struct ptc_error *err)
{
	struct ptc_verified seen = { 0 };
	struct check k = { .t = t, .piece = i, .seen = &seen };
	int rc = 0;

	for (; !rc && pos < end; pos = seen.end)
		rc = verify_block(&k, pos, err);
	return rc;
}

/* Stream range of the runs of cut in the extent of piece i, gaps included. */
static void reach(const struct ptc_table *t, size_t i, const struct ptc_box *cut, uint64_t *ret_pos, uint64_t *ret_end)
{
	const struct ptc_box *e = &t->pieces[i].extent_box;
	int64_t first = 0, last = 0;

	for (uint32_t d = 0; d < e->ndim; d++) {
		first = first * e->ext[d] + (cut->off[d] - e->off[d]);
		last = last * e->ext[d] + (cut->off[d] + cut->ext[d] - 1 - e->off[d]);
	}
	*ret_pos = t->locs[i].pos + (uint64_t)first;
	*ret_end = t->locs[i].pos + (uint64_t)last + 1;
}

/* Calls fn for each piece that has a part of box. */
typedef int (*part_fn)(void *arg, const struct ptc_table *t, size_t i, const struct ptc_box *cut,
		       struct ptc_error *err);

static int walk_parts(struct ptc_table *t, uint32_t item, const struct ptc_box *box, part_fn fn, void *arg,
		      struct ptc_error *err)
{
	int rc = 0;

	for (uint32_t i = ptc_store_table_head(t, item); i && !rc; i = t->locs[i - 1].next) {
		struct ptc_box cut;

		if (t->pieces[i - 1].item != item || t->pieces[i - 1].live.ndim != box->ndim ||
		    !ptc_box_intersect(&t->pieces[i - 1].live, box, &cut))
			continue;
		if (!t->locs[i - 1].filled)
			return ptc_error_set(err, PTC_ESTATE, "item %u: a part of this box is not filled yet", item);
		rc = fn(arg, t, i - 1, &cut, err);
	}
	return rc;
}

/* The piece that has all of box, as index + 1, as the first of most items; 0: the parts have to be found. */
static uint32_t whole_in(const struct ptc_table *t, uint32_t item, const struct ptc_box *box)
{
	const uint32_t i = ptc_store_table_head(t, item);

	return i && t->pieces[i - 1].item == item && ptc_box_contains(&t->pieces[i - 1].live, box) ? i : 0;
}

static int each_part(struct ptc_table *t, uint32_t item, const struct ptc_box *box, part_fn fn, void *arg,
		     struct ptc_error *err)
{
	int rc = ptc_store_box_check(item, box, err);
	uint32_t whole;

	if (rc)
		return rc;
	if (!t->sealed)
		return ptc_error_set(err, PTC_ESTATE, "item %u: this state is not complete yet", item);
	ptc_store_huge_read(t->job);
	whole = whole_in(t, item, box);
	if (whole)
		return fn(arg, t, whole - 1, box, err);
	if (ptc_store_covered(t, item, box) != ptc_box_volume(box))
		return ptc_error_set(err, PTC_ENOTFOUND, "item %u: a part of this box is not on this node", item);
	return walk_parts(t, item, box, fn, arg, err);
}

int ptc_table_pieces(struct ptc_table *t, uint32_t item, const struct ptc_box *box, struct ptc_piece **ret_pieces,
		     size_t *ret_n, struct ptc_error *err)
{
	struct ptc_piece *v = NULL;
	struct ptc_box cut;
	size_t n = 0;

	pthread_rwlock_rdlock(&t->lock);
	for (int pass = 0; pass < 2; pass++) {
		size_t found = 0;

		for (uint32_t i = ptc_store_table_head(t, item); i; i = t->locs[i - 1].next) {
			const struct ptc_piece *p = &t->pieces[i - 1];

			if (p->item != item || p->live.ndim != box->ndim || !ptc_box_intersect(&p->live, box, &cut))
				continue;
			if (pass == 1)
				v[found] = *p;
			found++;
		}
		n = found;
		if (pass == 0)
			v = ptc_malloc((n + 1) * sizeof *v);
		if (!v)
			break;
	}
	pthread_rwlock_unlock(&t->lock);
	if (!v)
		return ptc_nomem(err);
	*ret_pieces = v;
	*ret_n = n;
	return 0;
}

int64_t ptc_table_has(struct ptc_table *t, uint32_t item, const struct ptc_box *box)
{
	int64_t bytes;

	pthread_rwlock_rdlock(&t->lock);
	bytes = ptc_store_covered(t, item, box);
	pthread_rwlock_unlock(&t->lock);
	return bytes;
}

const struct ptc_piece *ptc_table_all_pieces(struct ptc_table *t, size_t *ret_n)
{
	*ret_n = t->sealed ? t->n : 0;
	return t->sealed ? t->pieces : NULL;
}

struct target {
	uint8_t *dst;
	const struct ptc_box *box;
	struct ptc_verified *seen;
};

static int copy_out(struct check *k, uint64_t pos, uint8_t *dst, int64_t left, struct ptc_error *err)
{
	const uint8_t *from;
	int64_t n;

	while (left > 0) {
		int rc = verified(k, pos, left, &from, &n, err);

		if (rc)
			return rc;
		memcpy(dst, from, (size_t)n);
		dst += n;
		pos += (uint64_t)n;
		left -= n;
	}
	return 0;
}

static int read_part(void *arg, const struct ptc_table *t, size_t i, const struct ptc_box *cut, struct ptc_error *err)
{
	const struct target *to = arg;
	struct check k = { .t = t, .piece = i, .seen = to->seen };
	struct ptc_runs r;
	int rc = 0;

	for (ptc_runs_init(&r, &t->pieces[i].extent_box, to->box, cut); !rc && r.done < r.count; ptc_runs_next(&r))
		rc = copy_out(&k, t->locs[i].pos + (uint64_t)r.a_off, to->dst + r.b_off, r.run_bytes, err);
	return rc;
}

int ptc_table_read_row(struct ptc_table *t, uint32_t item, const struct ptc_box *box, void *dst,
		       struct ptc_verified *seen, struct ptc_error *err)
{
	struct target to = { dst, box, seen };

	return ptc_box_empty(box) ? 0 : each_part(t, item, box, read_part, &to, err);
}

int ptc_table_read(struct ptc_table *t, uint32_t item, const struct ptc_box *box, void *dst, struct ptc_error *err)
{
	struct ptc_verified seen = { 0 };

	return ptc_table_read_row(t, item, box, dst, &seen, err);
}

int ptc_table_read_filled(struct ptc_table *t, uint32_t item, const struct ptc_box *box, void *dst,
			  struct ptc_error *err)
{
	struct ptc_verified seen = { 0 };
	struct target to = { dst, box, &seen };
	int rc = ptc_store_box_check(item, box, err);

	if (rc || ptc_box_empty(box))
		return rc;
	pthread_rwlock_rdlock(&t->lock);
	if (ptc_store_covered(t, item, box) != ptc_box_volume(box))
		rc = ptc_error_set(err, PTC_ENOTFOUND, "item %u: a part of this box is not on this node", item);
	else
		rc = walk_parts(t, item, box, read_part, &to, err);
	pthread_rwlock_unlock(&t->lock);
	return rc;
}

struct gather {
	struct ptc_table *t;
	uint64_t pos;
	const struct ptc_box *box;
	struct ptc_verified *seen;
};

static int gather_part(void *arg, const struct ptc_table *src, size_t i, const struct ptc_box *cut,
		       struct ptc_error *err)
{
	const struct gather *g = arg;
	struct check k = { .t = src, .piece = i, .seen = g->seen };
	struct ptc_runs r;
	int rc = 0;

	for (ptc_runs_init(&r, &src->pieces[i].extent_box, g->box, cut); !rc && r.done < r.count; ptc_runs_next(&r)) {
		uint64_t from = src->locs[i].pos + (uint64_t)r.a_off, to = g->pos + (uint64_t)r.b_off;
		int64_t left = r.run_bytes;

		while (!rc && left > 0) {
			int64_t room;
			uint8_t *p = ptc_store_at(g->t, to, &room);
			int64_t now = PTC_MIN(room, left);

			rc = copy_out(&k, from, p, now, err);
			from += (uint64_t)now;
			to += (uint64_t)now;
			left -= now;
		}
	}
	return rc;
}

int ptc_store_gather(struct ptc_table *src, uint32_t item, const struct ptc_box *box, struct ptc_table *t, uint64_t pos,
		     struct ptc_verified *seen, struct ptc_error *err)
{
	struct gather g = { t, pos, box, seen };

	return each_part(src, item, box, gather_part, &g, err);
}

/* One part of a box that lies in one run, at b_off of the box. */
struct run {
	int64_t b_off, bytes;
	uint64_t pos;
};

struct run_list {
	const struct ptc_box *box;
	struct run *v;
	int n, max;
	bool strided;
};

static int list_run(void *arg, const struct ptc_table *t, size_t i, const struct ptc_box *cut, struct ptc_error *err)
{
	struct run_list *l = arg;
	struct ptc_runs r;
	uint64_t pos;

	ptc_runs_init(&r, &t->pieces[i].extent_box, l->box, cut);
	if (r.count != 1 || l->n == l->max) {
		l->strided = true; /* it is read otherwise, and verified then */
		return 0;
	}
	pos = t->locs[i].pos + (uint64_t)r.a_off;
	l->v[l->n++] = (struct run){ r.b_off, r.run_bytes, pos };
	return verify(t, i, pos, pos + (uint64_t)r.run_bytes, err);
}

PTC_BY(by_off, struct run, b_off)

/* Spans of the runs in order; 0 when they do not fit. */
static int spans(const struct ptc_table *t, const struct run_list *l, struct iovec *iov, int niov)
{
	int n = 0;

	for (int i = 0; i < l->n; i++) {
		uint64_t pos = l->v[i].pos;
		int64_t left = l->v[i].bytes;

		while (left > 0) {
			int64_t room;
			uint8_t *p = ptc_store_at(t, pos, &room);

			if (n == niov)
				return 0;
			iov[n] = (struct iovec){ p, (size_t)PTC_MIN(room, left) };
			pos += iov[n].iov_len;
			left -= (int64_t)iov[n++].iov_len;
		}
	}
	return n;
}

int ptc_table_read_iov(struct ptc_table *t, uint32_t item, const struct ptc_box *box, struct iovec *iov, int niov,
		       int *ret_n, struct ptc_error *err)
{
	struct run_list l = { .box = box, .max = PTC_MAX(niov, 1) };
	int rc;

	l.v = ptc_malloc((size_t)l.max * sizeof *l.v);
	if (!l.v)
		return ptc_nomem(err);
	rc = ptc_box_empty(box) ? 0 : each_part(t, item, box, list_run, &l, err);
	if (!rc && l.n > 1)
		qsort(l.v, (size_t)l.n, sizeof *l.v, by_off);
	if (!rc)
		*ret_n = l.strided ? 0 : spans(t, &l, iov, niov);
	ptc_free(l.v);
	return rc;
}

struct extent_call {
	ptc_extent_fn fn;
	void *arg;
	bool unverified;
};

static int call_extent(void *arg, const struct ptc_table *t, size_t i, const struct ptc_box *cut, struct ptc_error *err)
{
	const struct extent_call *c = arg;
	const struct ptc_box *box = &t->pieces[i].extent_box;
	int64_t left = ptc_box_volume(box);
	uint64_t pos = t->locs[i].pos;
	struct iovec spans[PTC_EXTENT_SPANS];
	uint64_t begin, end;
	int n = 0, rc;

	reach(t, i, cut, &begin, &end);
	rc = c->unverified ? 0 : verify(t, i, begin, end, err);
	if (rc)
		return rc;
	while (left > 0) {
		int64_t room;
		uint8_t *p = ptc_store_at(t, pos, &room);

		if (ptc_fails(n < (int)PTC_ARRAY_LEN(spans)))
			return ptc_error_set(err, PTC_EINTERNAL, "item %u: an extent has too many chunks",
					     t->pieces[i].item);
		spans[n] = (struct iovec){ p, (size_t)PTC_MIN(room, left) };
		pos += spans[n].iov_len;
		left -= (int64_t)spans[n++].iov_len;
	}
	return c->fn(c->arg, box, cut, spans, n, ptc_store_chunk_of(t->locs[i].pos), err);
}

int ptc_table_each_extent(struct ptc_table *t, uint32_t item, const struct ptc_box *box, ptc_extent_fn fn, void *arg,
			  struct ptc_error *err)
{
	struct extent_call c = { .fn = fn, .arg = arg };

	return ptc_box_empty(box) ? 0 : each_part(t, item, box, call_extent, &c, err);
}

int ptc_table_each_unverified(struct ptc_table *t, uint32_t item, const struct ptc_box *box, ptc_extent_fn fn,
			      void *arg, struct ptc_error *err)
{
	struct extent_call c = { .fn = fn, .arg = arg, .unverified = true };

	return ptc_box_empty(box) ? 0 : each_part(t, item, box, call_extent, &c, err);
}

/* Powers x^(8 * distance) between the ends of neighbouring runs: one per dimension repeats. */
#define POWERS 8
struct digest {
	struct ptc_box whole;
	struct ptc_verified *seen;
	uint64_t sum;
	struct {
		uint64_t distance, power;
	} cache[POWERS];
};

static uint64_t power(struct digest *d, uint64_t distance)
{
	unsigned slot = (unsigned)((distance * UINT64_C(0x9E3779B97F4A7C15)) >> 61);

	if (d->cache[slot].distance != distance || distance == 0) {
		d->cache[slot].distance = distance;
		d->cache[slot].power = ptc_digest_xpow(distance);
	}
	return d->cache[slot].power;
}

static int append_run(struct check *k, uint64_t pos, int64_t left, uint64_t *ret_crc, struct ptc_error *err)
{
	const uint8_t *p;
	uint64_t crc = 0;
	int64_t n;

	while (left > 0) {
		int rc = verified(k, pos, left, &p, &n, err);

		if (rc)
			return rc;
		crc = ptc_digest_append(crc, p, (size_t)n);
		pos += (uint64_t)n;
		left -= n;
	}
	*ret_crc = crc;
	return 0;
}

/* Horner: what came before moves up by the distance between the ends of two runs. */
static int digest_part(void *arg, const struct ptc_table *t, size_t i, const struct ptc_box *cut, struct ptc_error *err)
{
	struct digest *d = arg;
	int64_t total = ptc_box_volume(&d->whole), end = 0;
	struct check k = { .t = t, .piece = i, .seen = d->seen };
	uint64_t acc = 0, crc = 0;
	struct ptc_runs r;
	int rc = 0;

	for (ptc_runs_init(&r, &t->pieces[i].extent_box, &d->whole, cut); !rc && r.done < r.count; ptc_runs_next(&r)) {
		if (acc)
			acc = ptc_digest_mul(acc, power(d, (uint64_t)(r.b_off + r.run_bytes - end)));
		end = r.b_off + r.run_bytes;
		rc = append_run(&k, t->locs[i].pos + (uint64_t)r.a_off, r.run_bytes, &crc, err);
		acc ^= crc;
	}
	d->sum ^= ptc_digest_shift(acc, (uint64_t)(total - end));
	return rc;
}

int ptc_table_digest(struct ptc_table *t, uint32_t item, const struct ptc_box *box, uint32_t ndim, const int64_t *shape,
		     uint64_t *ret_digest, struct ptc_error *err)
{
	struct ptc_verified seen = { 0 };

	return ptc_table_digest_row(t, item, box, ndim, shape, ret_digest, &seen, err);
}

int ptc_table_digest_row(struct ptc_table *t, uint32_t item, const struct ptc_box *box, uint32_t ndim,
			 const int64_t *shape, uint64_t *ret_digest, struct ptc_verified *seen, struct ptc_error *err)
{
	struct digest d = { .whole = ptc_box_whole(ndim, shape), .seen = seen };
	int rc = 0;

	if (ptc_box_empty(box)) {
		*ret_digest = 0;
		return 0;
	}
	if (box->ndim != ndim || !ptc_box_contains(&d.whole, box))
		return ptc_error_set(err, PTC_EINVAL, "item %u: box is not inside the tensor", item);
	rc = each_part(t, item, box, digest_part, &d, err);
	if (!rc)
		*ret_digest = d.sum;
	return rc;
}

int ptc_table_digest_extent(struct ptc_table *t, uint32_t extent, const struct ptc_box *part, uint32_t ndim,
			    const int64_t *shape, uint64_t *ret_digest, struct ptc_error *err)
{
	struct ptc_verified seen = { 0 };
	struct digest d = { .whole = ptc_box_whole(ndim, shape), .seen = &seen };
	int rc = 0;

	pthread_rwlock_rdlock(&t->lock);
	if (extent >= t->n || t->sealed)
		rc = ptc_error_set(err, PTC_ESTATE, "no extent %u of this table is being filled", extent);
	else if (part->ndim != ndim || ptc_box_empty(part) || !ptc_box_contains(&t->pieces[extent].extent_box, part) ||
		 !ptc_box_contains(&d.whole, part))
		rc = ptc_error_set(err, PTC_EINVAL, "item %u: a part lies outside of its extent",
				   t->pieces[extent].item);
	else
		rc = digest_part(&d, t, extent, part, err);
	pthread_rwlock_unlock(&t->lock);
	if (!rc)
		*ret_digest = d.sum;
	return rc;
}

static int is_sealed(const struct ptc_table *t, struct ptc_error *err)
{
	return t->sealed ? 0 : ptc_error_set(err, PTC_ESTATE, "this state is not complete yet");
}

/* Where the file's beginning would be in memory. */
static int file_base(const struct ptc_table *t, const uint8_t **ret_base, struct ptc_error *err)
{
	uint64_t page;
	int rc;

	if (!t->nchunks)
		return ptc_error_set(err, PTC_ESTATE, "this state is empty");
	rc = ptc_store_chunk_page(t->job, t->chunks[0], &page, err);
	if (!rc)
		*ret_base = t->chunks[0]->ptr - CHUNK_PAD - PAGE_HEADER - page; /* one mapping holds them all */
	return rc;
}

static int open_file(struct ptc_table *t, int flags, int *ret_fd, const uint8_t **ret_base, uint64_t *ret_bytes,
		     struct ptc_error *err)
{
	struct job *j = t->job;
	const uint8_t *base = NULL;
	int rc = file_base(t, &base, err), fd;

	if (rc)
		return rc;
	fd = ptc_store_chunks_reopen(j, flags);
	if (fd < 0)
		return ptc_error_errno(err, errno, "job %s: cannot open its chunks", j->uuid);
	*ret_fd = fd;
	*ret_base = base;
	*ret_bytes = j->map_bytes;
	return 0;
}

int ptc_table_file(struct ptc_table *t, int *ret_fd, const uint8_t **ret_base, uint64_t *ret_bytes,
		   struct ptc_error *err)
{
	int rc = is_sealed(t, err);

	return rc ? rc : open_file(t, O_RDONLY, ret_fd, ret_base, ret_bytes, err);
}

/* The lock is the open file's, so it is there until the last process has closed and unmapped it. */
int ptc_table_file_writable(struct ptc_table *t, int *ret_fd, const uint8_t **ret_base, uint64_t *ret_bytes,
			    struct ptc_error *err)
{
	int fd = -1, rc;

	pthread_rwlock_rdlock(&t->lock); /* its chunks' list may be growing */
	rc = open_file(t, O_RDWR, &fd, ret_base, ret_bytes, err);
	pthread_rwlock_unlock(&t->lock);
	if (rc)
		return rc;
	if (flock(fd, LOCK_SH | LOCK_NB) != 0) {
		rc = ptc_error_errno(err, errno, "job %s: cannot lock its chunks", t->job->uuid);
		close(fd);
		return rc;
	}
	*ret_fd = fd;
	return 0;
}

static int list_runs(void *arg, const struct ptc_table *t, size_t i, const struct ptc_box *cut, struct ptc_error *err)
{
	struct run_list *l = arg;
	struct ptc_runs r;

	for (ptc_runs_init(&r, &t->pieces[i].extent_box, l->box, cut); r.done < r.count; ptc_runs_next(&r)) {
		if (l->n == l->max)
			return ptc_error_set(err, PTC_ELIMIT, "item %u: the box has more than %d runs",
					     t->pieces[i].item, l->max);
		l->v[l->n++] = (struct run){ r.b_off, r.run_bytes, t->locs[i].pos + (uint64_t)r.a_off };
	}
	return 0;
}

/* Healing may make a checksum anew meanwhile. */
void ptc_table_chunk(const struct ptc_table *t, size_t chunk, const uint8_t *base, struct ptc_span_chunk *ret)
{
	struct chunk *c = t->chunks[chunk];
	uint64_t at = (uint64_t)(c->ptr - base);

	*ret = (struct ptc_span_chunk){ .at = at, .use_at = at - sizeof(uint64_t), .use = ptc_store_chunk_use(c) };
	for (size_t b = 0; b < PTC_CHUNK_BLOCKS; b++)
		ret->sums[b] = __atomic_load_n(&c->sum[b], __ATOMIC_RELAXED);
}

bool ptc_table_in_memory(const struct ptc_table *t)
{
	return t->job->volatile_fs;
}

/* The piece that has all of box, as index + 1; 0: none. */
static uint32_t piece_with(const struct ptc_table *t, uint32_t item, const struct ptc_box *box)
{
	uint32_t i = ptc_store_table_head(t, item);

	while (i && (t->pieces[i - 1].item != item || !ptc_box_contains(&t->pieces[i - 1].live, box)))
		i = t->locs[i - 1].next;
	return i;
}

/* Whether rows of box lie as far apart in both extents. */
static bool same_strides(const struct ptc_box *a, const struct ptc_box *b, const struct ptc_box *box)
{
	int64_t in_a = 1, in_b = 1;

	for (uint32_t d = box->ndim; d-- > 0;) {
		if (box->ext[d] > 1 && in_a != in_b)
			return false;
		in_a *= a->ext[d];
		in_b *= b->ext[d];
	}
	return true;
}

bool ptc_table_same_place(const struct ptc_table *a, const struct ptc_table *b, uint32_t item,
			  const struct ptc_box *box)
{
	const bool sealed = a->sealed && b->sealed && !ptc_box_empty(box);
	const uint32_t i = sealed ? piece_with(a, item, box) : 0, k = i ? piece_with(b, item, box) : 0;
	uint64_t from_a, end_a, from_b, end_b;

	if (!k || !same_strides(&a->pieces[i - 1].extent_box, &b->pieces[k - 1].extent_box, box))
		return false;
	reach(a, i - 1, box, &from_a, &end_a);
	reach(b, k - 1, box, &from_b, &end_b);
	if (from_a % PTC_CHUNK_BYTES != from_b % PTC_CHUNK_BYTES)
		return false;
	for (size_t n = 0; n <= ptc_store_chunk_of(end_a - 1) - ptc_store_chunk_of(from_a); n++)
		if (a->chunks[ptc_store_chunk_of(from_a) + n] != b->chunks[ptc_store_chunk_of(from_b) + n])
			return false;
	return true;
}

/* Neighbours in a box often lie in the chunk named last, or in one of a few that take turns. */
static int span_chunk(const struct ptc_table *t, struct ptc_spans *s, size_t chunk, const uint8_t *base, uint32_t *ret,
		      struct ptc_error *err)
{
	uint64_t at = (uint64_t)(t->chunks[chunk]->ptr - base);

	for (size_t i = s->nchunks; i-- > 0;)
		if (s->chunks[i].at == at) {
			*ret = (uint32_t)i;
			return 0;
		}
	if (s->nchunks == s->max_chunks)
		return ptc_error_set(err, PTC_ELIMIT, "the box lies in more than %zu chunks", s->max_chunks);
	*ret = (uint32_t)s->nchunks++;
	ptc_table_chunk(t, chunk, base, &s->chunks[*ret]);
	return 0;
}

static int span_add(struct ptc_spans *s, const struct ptc_span *span, struct ptc_error *err)
{
	struct ptc_span *last = s->n ? &s->v[s->n - 1] : NULL;

	if (s->n && last->chunk == span->chunk && last->at + last->bytes == span->at) {
		last->bytes += span->bytes;
		return 0;
	}
	if (s->n == s->max)
		return ptc_error_set(err, PTC_ELIMIT, "the box has more than %zu spans", s->max);
	s->v[s->n++] = *span;
	return 0;
}

static int span_run(const struct ptc_table *t, const struct run *r, const uint8_t *base, struct ptc_spans *spans,
		    struct ptc_error *err)
{
	uint64_t pos = r->pos;
	int64_t left = r->bytes;
	int rc = 0;

	while (!rc && left > 0) {
		int64_t room;
		const uint8_t *p = ptc_store_at(t, pos, &room);
		struct ptc_span s = { .at = (uint64_t)(p - base), .bytes = (uint64_t)PTC_MIN(room, left) };

		rc = span_chunk(t, spans, ptc_store_chunk_of(pos), base, &s.chunk, err);
		if (rc == 0)
			rc = span_add(spans, &s, err);
		pos += s.bytes;
		left -= (int64_t)s.bytes;
	}
	return rc;
}

int ptc_table_spans(struct ptc_table *t, uint32_t item, const struct ptc_box *box, struct ptc_spans *spans,
		    struct ptc_error *err)
{
	struct run_list l = { .box = box, .max = (int)PTC_MIN(spans->max - spans->n, (size_t)1 << 20) };
	const uint8_t *base = NULL;
	int rc = is_sealed(t, err);

	if (rc == 0)
		rc = file_base(t, &base, err);
	if (rc)
		return rc;
	if (!ptc_table_in_memory(t))
		return ptc_error_set(err, PTC_ESTATE, "the chunks of job %s are on a disk", t->job->uuid);
	l.v = ptc_malloc(PTC_MAX((size_t)l.max, (size_t)1) * sizeof *l.v);
	if (!l.v)
		return ptc_nomem(err);
	rc = ptc_box_empty(box) ? 0 : each_part(t, item, box, list_runs, &l, err);
	if (!rc && l.n > 1)
		qsort(l.v, (size_t)l.n, sizeof *l.v, by_off);
	for (int i = 0; !rc && i < l.n; i++)
		rc = span_run(t, &l.v[i], base, spans, err);
	ptc_free(l.v);
	return rc;
}

int ptc_table_scrub(struct ptc_table *t, bool (*go_on)(void *arg), void *arg, int64_t *ret_bytes, struct ptc_error *err)
{
	int64_t bytes = 0;

	if (!t->sealed)
		return ptc_error_set(err, PTC_ESTATE, "this state is not complete yet");
	for (size_t i = 0; i < t->n; i++) {
		uint64_t pos, end;
		int rc;

		if (go_on && !go_on(arg))
			return ptc_error_set(err, PTC_ECANCELED, "nobody waits for this check any more");
		reach(t, i, &t->pieces[i].live, &pos, &end);
		rc = verify(t, i, pos, end, err);
		if (rc)
			return rc;
		bytes += (int64_t)(end - pos);
	}
	*ret_bytes = bytes;
	return 0;
}
