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

static size_t hash(const uint32_t *v, size_t n)
{
	uint64_t h = n + 1;

	for (size_t i = 0; i < n; i++) {
		h = (h ^ v[i]) * UINT64_C(0x9E3779B97F4A7C15);
		h ^= h >> 29;
	}
	return (size_t)(h ^ h >> 32);
}

static void put(struct ptc_lists *l, uint32_t id)
{
	size_t i = hash(l->v + l->first[id], l->first[id + 1] - l->first[id]) & (l->table_size - 1);

	while (l->table[i])
		i = (i + 1) & (l->table_size - 1);
	l->table[i] = id + 1;
}

/* Room for one more list of n numbers. */
static int grow(struct ptc_lists *l, size_t n)
{
	size_t used = l->first ? l->first[l->n] : 0;

	if (!l->v || used + n > l->vcap) {
		size_t cap = used + n + used / 2 + 64;
		uint32_t *v = ptc_reallocarray(l->v, cap, sizeof *v);

		if (!v)
			return PTC_ENOMEM;
		l->v = v;
		l->vcap = cap;
	}
	if (l->n == l->cap) {
		uint32_t cap = l->cap ? 2 * l->cap : 16;
		size_t *first = ptc_reallocarray(l->first, (size_t)cap + 1, sizeof *first);
		uint32_t *table;

		if (!first)
			return PTC_ENOMEM;
		if (!l->first)
			first[0] = 0;
		l->first = first;
		table = ptc_calloc(4 * (size_t)cap, sizeof *table);
		if (!table)
			return PTC_ENOMEM;
		ptc_free(l->table);
		l->table = table;
		l->table_size = 4 * (size_t)cap;
		l->cap = cap;
		for (uint32_t i = 0; i < l->n; i++)
			put(l, i);
	}
	return 0;
}

int ptc_lists_intern(struct ptc_lists *l, const uint32_t *v, size_t n, uint32_t *ret_id)
{
	for (size_t i = l->table ? hash(v, n) & (l->table_size - 1) : 0; l->table && l->table[i];
	     i = (i + 1) & (l->table_size - 1)) {
		uint32_t id = l->table[i] - 1;

		if (l->first[id + 1] - l->first[id] != n || (n && memcmp(l->v + l->first[id], v, n * sizeof *v) != 0))
			continue;
		*ret_id = id;
		return 0;
	}
	if (grow(l, n))
		return PTC_ENOMEM;
	if (n)
		memcpy(l->v + l->first[l->n], v, n * sizeof *v);
	l->first[l->n + 1] = l->first[l->n] + n;
	put(l, l->n);
	*ret_id = l->n++;
	return 0;
}
