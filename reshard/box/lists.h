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
/* Makes l, which is empty, the one list v of n numbers; it is sealed. PTC_ENOMEM: ptc_lists_done frees l. */
int ptc_lists_one(struct ptc_lists *l, const uint32_t *v, size_t n);
/* PTC_ENOMEM leaves l as it was. v must not point into l. */
int ptc_lists_intern(struct ptc_lists *l, const uint32_t *v, size_t n, uint32_t *ret_id);
/* Numbers for keys of things that also come without a key, so that a list's own number will not do. */
struct ptc_numbers {
	struct ptc_lists keys;
	uint32_t *of, cap; /* by number of the list */
};
/* *ret: the number that key v, n had before; of a new key it becomes `next`. PTC_ENOMEM: k can only be freed. */
int ptc_numbers_of(struct ptc_numbers *k, const uint32_t *v, size_t n, uint32_t next, uint32_t *ret);
void ptc_numbers_done(struct ptc_numbers *k);
static inline const uint32_t *ptc_lists_at(const struct ptc_lists *l, uint32_t i, size_t *ret_n)
{
	*ret_n = l->first[i + 1] - l->first[i];
	return l->v + l->first[i];
}
