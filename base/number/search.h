/* SPDX-License-Identifier: Apache-2.0 */
/* Where a number comes in a sorted array of structs. No failure modes. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Index of the first of n structs of `size` bytes, sorted by the uint32_t at `offset` in each, in which that is at least
 * key; n if none is. v may be NULL if n is 0. */
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

/* The same of an array of a struct TYPE by its MEMBER. */
#define PTC_SEARCH(TYPE, MEMBER, v, n, key) ptc_search_u32((v), (n), sizeof(TYPE), offsetof(TYPE, MEMBER), (key))
