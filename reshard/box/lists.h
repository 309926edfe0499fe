/* SPDX-License-Identifier: Apache-2.0 */
/* Distinct lists of numbers, numbered in the order they were first seen: sets
 * of ranks, keys. For the files of reshard/; nobody else includes it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct ptc_lists {
	uint32_t n, cap;
	size_t *first; /* list i: v[first[i] .. first[i + 1]) */
	uint32_t *v;
	size_t vcap;
	uint32_t *table; /* open addressing; list number + 1, 0: free */
	size_t table_size;
};
void ptc_lists_done(struct ptc_lists *l);
/* Gives back what only finding more lists needs: no more may be interned. PTC_ENOMEM: as it was. */
int ptc_lists_seal(struct ptc_lists *l);
/* PTC_ENOMEM leaves l as it was. v must not point into l. */
int ptc_lists_intern(struct ptc_lists *l, const uint32_t *v, size_t n, uint32_t *ret_id);
static inline const uint32_t *ptc_lists_at(const struct ptc_lists *l, uint32_t i, size_t *ret_n)
{
	*ret_n = l->first[i + 1] - l->first[i];
	return l->v + l->first[i];
}
