/* SPDX-License-Identifier: Apache-2.0 */
/* A set of lists of numbers, such as sets of ranks. Equal lists are stored once. Lists are numbered in the order in
 * which they were first seen. For reshard/ only. Failure mode: PTC_ENOMEM. Not thread-safe while lists are added. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct ptc_lists {
	uint32_t n, cap;
	size_t *first; /* list i: v[first[i] .. first[i + 1]) */
	uint32_t *v;
	size_t vcap;
	uint32_t *table; /* hash table with open addressing: list number + 1; 0: free */
	size_t table_size;
};
void ptc_lists_done(struct ptc_lists *l);
/* Frees the memory that only ptc_lists_intern needs; intern nothing afterwards. PTC_ENOMEM: l is unchanged. */
int ptc_lists_seal(struct ptc_lists *l);
/* Makes the empty l hold one list, v of n numbers, and seals l. PTC_ENOMEM: ptc_lists_done frees l. */
int ptc_lists_one(struct ptc_lists *l, const uint32_t *v, size_t n);
/* Finds the list v of n numbers or adds it; *ret_id is its number. PTC_ENOMEM: l is unchanged. v must not point into l.
 */
int ptc_lists_intern(struct ptc_lists *l, const uint32_t *v, size_t n, uint32_t *ret_id);
/* Numbers for keys; a key is a list. The caller chooses the number of a new key, because it also numbers things without
 * a key. So a list's own number cannot serve. */
struct ptc_numbers {
	struct ptc_lists keys;
	uint32_t *of, cap; /* by the list's number */
};
/* *ret is the number of the key (v, n); a new key gets `next`. PTC_ENOMEM: k can only be freed. */
int ptc_numbers_of(struct ptc_numbers *k, const uint32_t *v, size_t n, uint32_t next, uint32_t *ret);
void ptc_numbers_done(struct ptc_numbers *k);
static inline const uint32_t *ptc_lists_at(const struct ptc_lists *l, uint32_t i, size_t *ret_n)
{
	*ret_n = l->first[i + 1] - l->first[i];
	return l->v + l->first[i];
}
