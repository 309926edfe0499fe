/* SPDX-License-Identifier: Apache-2.0 */
/* Binary search in a sorted array of structs, a sort that costs little where the array is sorted already, and macros
 * that define comparisons for qsort and bsearch. No failure modes. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The n structs of `size` bytes at v are sorted by the uint32_t at `offset` in each. Returns the index of the first
 * struct whose number is at least `key`; n if there is none. v may be NULL if n is 0. */
static inline size_t ptc_search_u32(const void *v, size_t n, size_t size, size_t offset, uint32_t key)
{
	size_t lo = 0, hi = n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		uint32_t at;

		memcpy(&at, (const char *)v + mid * size + offset, sizeof at);
		if (at < key)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* ptc_search_u32 for an array of struct TYPE that is sorted by MEMBER. */
#define PTC_SEARCH(TYPE, MEMBER, v, n, key) ptc_search_u32((v), (n), sizeof(TYPE), offsetof(TYPE, MEMBER), (key))

/* qsort, for arrays that are mostly sorted already: these are read once and nothing of them is moved, where the qsort
 * of the C library copies each element several times. v may be NULL if n is 0. */
static inline void ptc_sort(void *v, size_t n, size_t size, int (*compare)(const void *, const void *))
{
	for (size_t i = 1; i < n; i++)
		if (compare((const char *)v + (i - 1) * size, (const char *)v + i * size) > 0) {
			qsort(v, n, size, compare);
			return;
		}
}

/* The macros below define a comparison of two TYPE: by one member, by several in order, by a name, or by the value. */
#define PTC_ORDER(a, b) ((a) < (b) ? -1 : (a) > (b))
#define PTC_COMPARE(fn, TYPE, order)                                                                                   \
	static int fn(const void *ptc_a_, const void *ptc_b_)                                                          \
	{                                                                                                              \
		const TYPE *a = ptc_a_;                                                                                \
		const TYPE *b = ptc_b_;                                                                                \
                                                                                                                       \
		return order;                                                                                          \
	}
#define PTC_THEN(first, order)  ((first) ?: (order))
#define PTC_BY(fn, TYPE, m)     PTC_COMPARE(fn, TYPE, PTC_ORDER(a->m, b->m))
#define PTC_BY2(fn, TYPE, m, k) PTC_COMPARE(fn, TYPE, PTC_THEN(PTC_ORDER(a->m, b->m), PTC_ORDER(a->k, b->k)))
#define PTC_BY3(fn, TYPE, m, k, l)                                                                                     \
	PTC_COMPARE(fn, TYPE, PTC_THEN(PTC_ORDER(a->m, b->m), PTC_THEN(PTC_ORDER(a->k, b->k), PTC_ORDER(a->l, b->l))))
#define PTC_BY_NAME(fn, TYPE, m) PTC_COMPARE(fn, TYPE, strcmp(a->m, b->m))
#define PTC_BY_VALUE(fn, TYPE)   PTC_COMPARE(fn, TYPE, PTC_ORDER(*a, *b))
