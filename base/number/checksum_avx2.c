/* SPDX-License-Identifier: Apache-2.0 */
/* See checksum_avx2.h. libxxhash's header holds all of its code; here the compiler may use AVX2 for it. */
#include "base/number/checksum_avx2.h"

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif
#include <immintrin.h>

#define XXH_INLINE_ALL
#define XXH_VECTOR 2 /* XXH_AVX2, which the header names only after it has looked */
#include <xxhash.h>

uint64_t ptc_checksum_avx2(const void *data, size_t len)
{
	return XXH3_64bits(data, len);
}

#define PIECE_BYTES 4096u /* fits in the first-level cache, twice */

uint64_t ptc_checksum_each_avx2(const void *data, size_t len, void (*each)(void *arg, size_t at, size_t n), void *arg)
{
	const uint8_t *from = data;
	XXH3_state_t state;

	XXH3_INITSTATE(&state);
	XXH3_64bits_reset(&state);
	for (size_t at = 0; at < len; at += PIECE_BYTES) {
		size_t n = len - at < PIECE_BYTES ? len - at : PIECE_BYTES;

		XXH3_64bits_update(&state, from + at, n);
		each(arg, at, n);
	}
	return XXH3_64bits_digest(&state);
}
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
