/* SPDX-License-Identifier: Apache-2.0 */
/* The scrubber's steps: verifies what sealed tables have, table after table by key, a few chunks a step. Happy path: a
 * step finds the table that the scrubber has come to, or the next one. When a table was begun, its blocks with live
 * bytes were noted; each of these blocks is verified. Failure modes: a table that is gone: the next one; out of
 * memory. A block that does not match is told to the store's owner as any reader's is. */
#include "daemon/store/scrub/block_parts.h"
#include "daemon/store/scrub/store_heal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/digest.h"

#include <string.h>

struct ptc_scrub {
	struct ptc_table_key key; /* of the table it stands in; uuid "": before the first */
	size_t at;                /* chunk of it */
	uint16_t *masks;          /* per chunk: blocks with live bytes; NULL: not begun */
	size_t n;
};

struct ptc_scrub *ptc_scrub_new(void)
{
	return ptc_calloc(1, sizeof(struct ptc_scrub));
}

struct ptc_scrub *ptc_scrub_free(struct ptc_scrub *c)
{
	if (c)
		ptc_free(c->masks);
	ptc_free(c);
	return NULL;
}

static int key_compare(const struct ptc_table_key *a, const struct ptc_table_key *b)
{
	int order = strcmp(a->uuid, b->uuid);

	if (order)
		return order;
	if (a->generation != b->generation)
		return a->generation < b->generation ? -1 : 1;
	return a->snapshot < b->snapshot ? -1 : a->snapshot > b->snapshot;
}

/* The first sealed table from the key on, with a reference; bytes of the chunks of all after it. */
static struct ptc_table *next_table(struct ptc_store *s, const struct ptc_table_key *from, uint64_t *ret_after)
{
	struct ptc_table *best = NULL;

	*ret_after = 0;
	pthread_mutex_lock(&s->wlock);
	for (struct job *j = s->jobs; j; j = j->next)
		for (struct ptc_table *t = j->bad ? NULL : j->tables; t; t = t->next) {
			if (!t->sealed || key_compare(&t->key, from) < 0)
				continue;
			*ret_after += (uint64_t)t->nchunks * PTC_CHUNK_BYTES;
			if (!best || key_compare(&t->key, &best->key) < 0)
				best = t;
		}
	if (best) {
		*ret_after -= (uint64_t)best->nchunks * PTC_CHUNK_BYTES;
		ptc_table_ref(best);
	}
	pthread_mutex_unlock(&s->wlock);
	return best;
}

/* From the first live byte of each piece to its last, gaps included: verifying a block too many does no harm. */
static void mark_piece(const struct ptc_table *t, size_t i, uint16_t *masks)
{
	const struct ptc_box *e = &t->pieces[i].extent_box, *live = &t->pieces[i].live;
	int64_t first = 0, last = 0;

	if (ptc_box_empty(live))
		return;
	for (uint32_t d = 0; d < e->ndim; d++) {
		first = first * e->ext[d] + (live->off[d] - e->off[d]);
		last = last * e->ext[d] + (live->off[d] + live->ext[d] - 1 - e->off[d]);
	}
	for (uint64_t at = t->locs[i].pos + (uint64_t)first, end = t->locs[i].pos + (uint64_t)last; at <= end;) {
		size_t c = ptc_store_chunk_of(at);
		unsigned b = (unsigned)(at % PTC_CHUNK_BYTES / PTC_BLOCK_BYTES);

		masks[c] |= (uint16_t)(1u << b);
		at = PTC_MIN(ptc_block_begin(c, b + 1), ((uint64_t)c + 1) * PTC_CHUNK_BYTES);
	}
}

static int begin_table(struct ptc_scrub *c, const struct ptc_table *t, struct ptc_error *err)
{
	ptc_free(c->masks);
	c->masks = ptc_calloc(t->nchunks + 1, sizeof *c->masks);
	c->n = t->nchunks;
	c->at = 0;
	c->key = t->key;
	if (!c->masks)
		return ptc_error_set(err, PTC_ENOMEM, "no memory to scrub a table of %zu chunks", t->nchunks);
	for (size_t i = 0; i < t->n; i++)
		mark_piece(t, i, c->masks);
	return 0;
}

static void verify_chunk(const struct ptc_table *t, size_t at, uint16_t mask, struct ptc_scrub_step *ret)
{
	struct chunk *c = t->chunks[at];
	size_t piece;

	for (unsigned b = 0; b < CHUNK_BLOCKS; b++) {
		size_t off = (size_t)b * PTC_BLOCK_BYTES, len = PTC_MIN(PTC_BLOCK_BYTES, PTC_CHUNK_BYTES - off);

		if (!(mask & (1u << b)))
			continue;
		ret->bytes += len;
		if (ptc_checksum(c->ptr + off, len) == __atomic_load_n(&c->sum[b], __ATOMIC_RELAXED)) {
			if (atomic_load(&c->damaged) & (1u << b)) /* right again, whoever did it */
				atomic_fetch_and(&c->damaged, (uint16_t) ~(1u << b));
		} else if (ptc_block_piece(t, at, b, &piece)) {
			(void)ptc_store_damage(t, piece, at, b, NULL);
			ret->damaged++;
		}
	}
}

/* The key right behind. */
static void pass(struct ptc_scrub *c)
{
	ptc_free(c->masks);
	c->masks = NULL;
	c->key.snapshot++;
}

static void rewind_all(struct ptc_scrub *c)
{
	ptc_free(c->masks);
	*c = (struct ptc_scrub){ .n = 0 };
}

int ptc_scrub_step(struct ptc_store *s, struct ptc_scrub *c, uint64_t max_bytes, struct ptc_scrub_step *ret,
		   struct ptc_error *err)
{
	uint64_t after;
	struct ptc_table *t = next_table(s, &c->key, &after);
	int rc = 0;

	*ret = (struct ptc_scrub_step){ .round = !t };
	if (!t) {
		rewind_all(c);
		return 0;
	}
	if (!c->masks || c->n != t->nchunks || key_compare(&c->key, &t->key) != 0)
		rc = begin_table(c, t, err);
	while (rc == 0 && c->at < c->n && ret->bytes < max_bytes) {
		verify_chunk(t, c->at, c->masks[c->at], ret);
		c->at++;
	}
	ret->round_left = after + (uint64_t)(c->n - c->at) * PTC_CHUNK_BYTES;
	if (rc == 0 && c->at == c->n)
		pass(c);
	ptc_table_unref(t);
	return rc;
}
