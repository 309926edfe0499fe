/* SPDX-License-Identifier: Apache-2.0 */
/* A table in memory: its pieces, found by item, and its place in the job's registry. Knows neither meta nor how tables
 * are filled. Failure modes: memory (PTC_ENOMEM), more pieces than a table may have (PTC_ELIMIT), a malformed box
 * (PTC_EINVAL). */
#include "daemon/store/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <stdlib.h>
#include <string.h>

struct ptc_table *ptc_store_table_new(struct job *j, const struct ptc_table_key *key)
{
	struct ptc_table *t = ptc_calloc(1, sizeof *t);
	pthread_rwlockattr_t attr;

	if (!t)
		return NULL;
	t->job = j;
	t->key = *key;
	t->refs = 1;
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&t->lock, &attr);
	pthread_rwlockattr_destroy(&attr);
	pthread_mutex_lock(&j->s->lock);
	j->refs++;
	pthread_mutex_unlock(&j->s->lock);
	return t;
}

struct ptc_table *ptc_store_table_find_locked(struct job *j, const struct ptc_table_key *key)
{
	for (struct ptc_table *t = j->tables; t; t = t->next)
		if (t->key.generation == key->generation && t->key.snapshot == key->snapshot)
			return t;
	return NULL;
}

/* The registry takes over the caller's reference. */
void ptc_store_table_register_locked(struct ptc_table *t)
{
	t->next = t->job->tables;
	t->job->tables = t;
	for (size_t i = 0; i < t->nchunks; i++)
		t->chunks[i]->stored++;
}

int ptc_store_box_check(uint32_t item, const struct ptc_box *b, struct ptc_error *err)
{
	int64_t volume = 1, end;

	if (b->ndim == 0 || b->ndim > PTC_MAX_DIMS)
		return ptc_error_set(err, PTC_EINVAL, "item %u: a byte box has 1 to %d dimensions, not %u", item,
				     PTC_MAX_DIMS, b->ndim);
	for (uint32_t d = 0; d < b->ndim; d++)
		if (b->off[d] < 0 || b->ext[d] <= 0 || ptc_ckd_add(&end, b->off[d], b->ext[d]) ||
		    ptc_ckd_mul(&volume, volume, b->ext[d]))
			return ptc_error_set(err, PTC_EINVAL, "item %u: bad box in dim %u (offset %lld, extent %lld)",
					     item, d, (long long)b->off[d], (long long)b->ext[d]);
	return 0;
}

void ptc_store_table_rehash(struct ptc_table *t)
{
	memset(t->heads, 0, t->nheads * sizeof t->heads[0]);
	for (size_t i = 0; i < t->n; i++) {
		uint32_t *head = &t->heads[(t->pieces[i].item * 2654435761u) & (t->nheads - 1)];

		t->locs[i].next = *head;
		*head = (uint32_t)i + 1;
	}
}

void ptc_store_table_push(struct ptc_table *t, const struct ptc_piece *p, uint64_t pos, bool filled)
{
	uint32_t *head = &t->heads[(p->item * 2654435761u) & (t->nheads - 1)];

	t->pieces[t->n] = *p;
	t->locs[t->n] = (struct loc){ .pos = pos, .next = *head, .filled = filled };
	*head = (uint32_t)++t->n;
	t->live_bytes += ptc_box_volume(&p->live);
}

int ptc_store_table_share(struct ptc_table *t, struct ptc_table *src)
{
	unsigned *one = ptc_calloc(1, sizeof *one);

	if (!one)
		return PTC_ENOMEM;
	pthread_mutex_lock(&t->job->s->lock);
	if (!src->owners) {
		*one = 1;
		src->owners = one;
		one = NULL;
	}
	++*src->owners;
	t->owners = src->owners;
	pthread_mutex_unlock(&t->job->s->lock);
	ptc_free(one);
	t->pieces = src->pieces;
	t->locs = src->locs;
	t->heads = src->heads;
	t->n = src->n;
	t->cap = src->cap;
	t->nheads = src->nheads;
	t->live_bytes = src->live_bytes;
	return 0;
}

bool ptc_store_table_shared_locked(struct ptc_table *t)
{
	return t->owners && --*t->owners > 0;
}

static int room_pieces(struct ptc_table *t, size_t n)
{
	size_t cap = t->cap, locs_cap = t->cap, heads = 16;
	uint32_t *h;

	if (t->n + n <= t->cap)
		return 0;
	if (t->n + n > PTC_MAX_REGIONS)
		return PTC_ELIMIT;
	if (!PTC_ROOM(t->pieces, t->n + n, cap) || !PTC_ROOM(t->locs, t->n + n, locs_cap))
		return PTC_ENOMEM;
	while (heads < cap)
		heads *= 2;
	h = ptc_reallocarray(t->heads, heads, sizeof *h);
	if (!h)
		return PTC_ENOMEM;
	t->heads = h;
	t->nheads = heads;
	t->cap = cap;
	ptc_store_table_rehash(t);
	return 0;
}

int ptc_store_table_room(struct ptc_table *t, size_t pieces, size_t chunks)
{
	int rc = room_pieces(t, PTC_MAX(pieces, 1));

	return rc ? rc : PTC_ROOM(t->chunks, t->nchunks + chunks, t->chunks_cap) ? 0 : PTC_ENOMEM;
}

PTC_BY(by_pos, struct loc, pos)

/* What pieces are sorted by: the item, then the index, which is the extent's number. */
static uint64_t place_of(const struct ptc_table *t, size_t i)
{
	return (uint64_t)t->pieces[i].item << 32 | i;
}

/* The end of the run of pieces that are in order, from `from` on. */
static size_t run_end(const struct ptc_table *t, size_t from)
{
	size_t i = from + 1;

	while (i < t->n && t->pieces[i - 1].item <= t->pieces[i].item)
		i++;
	return i < t->n ? i : t->n;
}

/* Leaves in room[i].pos the place of the piece that comes to i. Most tables are two runs that are in order: what stays,
 * and what comes. False: all is in order already. */
static bool order(const struct ptc_table *t, struct loc *room)
{
	const size_t first = t->n ? run_end(t, 0) : 0, second = first < t->n ? run_end(t, first) : t->n;
	size_t a = 0, b = first;

	if (first == t->n)
		return false;
	for (size_t i = 0; second == t->n && i < t->n; i++)
		room[i].pos = a < first && (b == t->n || t->pieces[a].item <= t->pieces[b].item) ? place_of(t, a++)
												 : place_of(t, b++);
	if (second == t->n)
		return true;
	for (size_t i = 0; i < t->n; i++)
		room[i].pos = place_of(t, i);
	qsort(room, t->n, sizeof *room, by_pos);
	return true;
}

/* Moves each piece once, around the circles of the order. */
static void reorder(struct ptc_piece *v, size_t n, struct loc *room)
{
	for (size_t i = 0; i < n; i++)
		room[i].next = 0; /* 1: it is in its place */
	for (size_t i = 0; i < n; i++) {
		struct ptc_piece first;
		size_t to = i;

		if (room[i].next)
			continue;
		first = v[i];
		for (size_t from; !room[to].next; to = from) {
			from = (uint32_t)room[to].pos;
			room[to].next = 1;
			v[to] = from == i ? first : v[from];
		}
	}
}

void ptc_store_table_sort(struct ptc_table *t, struct loc *room)
{
	if (order(t, room))
		reorder(t->pieces, t->n, room);
	for (size_t i = 0; i < t->n; i++) {
		room[i] = t->locs[t->pieces[i].extent];
		t->pieces[i].extent = (uint32_t)i;
	}
	ptc_free(t->locs);
	t->locs = room;
	t->cap = t->n;
	if (t->nheads)
		ptc_store_table_rehash(t);
}

int64_t ptc_store_covered(const struct ptc_table *t, uint32_t item, const struct ptc_box *box)
{
	struct ptc_box cut;
	int64_t sum = 0;

	for (uint32_t i = ptc_store_table_head(t, item); i; i = t->locs[i - 1].next) {
		const struct ptc_piece *p = &t->pieces[i - 1];

		if (p->item != item || p->live.ndim != box->ndim)
			continue;
		if (ptc_box_contains(&p->live, box)) /* most; pieces do not overlap */
			return ptc_box_volume(box);
		if (ptc_box_intersect(&p->live, box, &cut))
			sum += ptc_box_volume(&cut);
	}
	return sum;
}
