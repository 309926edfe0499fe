/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table over lists that lie one after the other. Failure mode: memory. */
#include "reshard/box/lists.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/status.h"

#include <string.h>

void ptc_lists_done(struct ptc_lists *l)
{
	ptc_free(l->first);
	ptc_free(l->v);
	ptc_free(l->table);
	*l = (struct ptc_lists){ 0 };
}

int ptc_lists_seal(struct ptc_lists *l)
{
	size_t *first = ptc_reallocarray(l->first, (size_t)l->n + 1, sizeof *first);
	uint32_t *v;

	if (!first)
		return PTC_ENOMEM;
	l->first = first;
	l->cap = l->n;
	v = ptc_reallocarray(l->v, PTC_MAX(first[l->n], 1u), sizeof *v);
	if (!v)
		return PTC_ENOMEM;
	l->v = v;
	l->vcap = first[l->n];
	ptc_free(l->table);
	l->table = NULL;
	l->table_size = 0;
	return 0;
}

int ptc_lists_one(struct ptc_lists *l, const uint32_t *v, size_t n)
{
	l->first = ptc_calloc(2, sizeof *l->first);
	l->v = ptc_calloc(PTC_MAX(n, (size_t)1), sizeof *l->v);
	if (!l->first || !l->v)
		return PTC_ENOMEM;
	if (n)
		memcpy(l->v, v, n * sizeof *v);
	l->first[1] = l->vcap = n;
	l->n = l->cap = 1;
	return 0;
}

static size_t hash(const uint32_t *v, size_t n)
{
	uint64_t h = n + 1;

	for (size_t i = 0; i < n; i++) {
		h = (h ^ v[i]) * UINT64_C(0x9E3779B97F4A7C15);
		h ^= h >> 29;
	}
	return (size_t)(h ^ h >> 32);
}

/* Up to so many lists are looked through one by one: most sets of lists are that small, and there are very many. */
enum { FEW = 8 };

static bool is(const struct ptc_lists *l, uint32_t id, const uint32_t *v, size_t n)
{
	return l->first[id + 1] - l->first[id] == n && (!n || !memcmp(l->v + l->first[id], v, n * sizeof *v));
}

static bool find_few(const struct ptc_lists *l, const uint32_t *v, size_t n, uint32_t *ret_id)
{
	for (uint32_t id = 0; id < l->n; id++)
		if (is(l, id, v, n)) {
			*ret_id = id;
			return true;
		}
	return false;
}

/* false: *ret_slot is where the list would be. */
static bool find_in_table(const struct ptc_lists *l, const uint32_t *v, size_t n, size_t *ret_slot, uint32_t *ret_id)
{
	size_t i = hash(v, n) & (l->table_size - 1);

	for (; l->table[i]; i = (i + 1) & (l->table_size - 1))
		if (is(l, l->table[i] - 1, v, n)) {
			*ret_id = l->table[i] - 1;
			return true;
		}
	*ret_slot = i;
	return false;
}

static void put(struct ptc_lists *l, uint32_t id)
{
	size_t i = hash(l->v + l->first[id], l->first[id + 1] - l->first[id]) & (l->table_size - 1);

	while (l->table[i])
		i = (i + 1) & (l->table_size - 1);
	l->table[i] = id + 1;
}

/* A table for cap lists, which holds those there are. */
static int make_table(struct ptc_lists *l, uint32_t cap)
{
	uint32_t *table = ptc_calloc(4 * (size_t)cap, sizeof *table);

	if (!table)
		return PTC_ENOMEM;
	ptc_free(l->table);
	l->table = table;
	l->table_size = 4 * (size_t)cap;
	for (uint32_t i = 0; i < l->n; i++)
		put(l, i);
	return 0;
}

/* Room for one more list of n numbers. */
static int grow(struct ptc_lists *l, size_t n)
{
	size_t used = l->first ? l->first[l->n] : 0;

	if (!PTC_ROOM(l->v, PTC_MAX(used + n, (size_t)1), l->vcap))
		return PTC_ENOMEM;
	if (l->n == l->cap) {
		uint32_t cap = l->cap ? 2 * l->cap : FEW;
		size_t *first = ptc_reallocarray(l->first, (size_t)cap + 1, sizeof *first);

		if (!first)
			return PTC_ENOMEM;
		if (!l->first)
			first[0] = 0;
		l->first = first;
		if (cap > FEW && make_table(l, cap))
			return PTC_ENOMEM;
		l->cap = cap;
	}
	return 0;
}

int ptc_lists_intern(struct ptc_lists *l, const uint32_t *v, size_t n, uint32_t *ret_id)
{
	const uint32_t *table = l->table;
	size_t slot = 0;

	if (table ? find_in_table(l, v, n, &slot, ret_id) : find_few(l, v, n, ret_id))
		return 0;
	if (grow(l, n))
		return PTC_ENOMEM;
	if (n)
		memcpy(l->v + l->first[l->n], v, n * sizeof *v);
	l->first[l->n + 1] = l->first[l->n] + n;
	if (table && table == l->table)
		l->table[slot] = l->n + 1;
	else if (l->table)
		put(l, l->n);
	*ret_id = l->n++;
	return 0;
}

int ptc_numbers_of(struct ptc_numbers *k, const uint32_t *v, size_t n, uint32_t next, uint32_t *ret)
{
	uint32_t before = k->keys.n, id;

	if (ptc_lists_intern(&k->keys, v, n, &id))
		return PTC_ENOMEM;
	if (!PTC_ROOM(k->of, id + 1, k->cap))
		return PTC_ENOMEM;
	if (id == before)
		k->of[id] = next;
	*ret = k->of[id];
	return 0;
}

void ptc_numbers_done(struct ptc_numbers *k)
{
	ptc_lists_done(&k->keys);
	ptc_free(k->of);
	*k = (struct ptc_numbers){ 0 };
}
