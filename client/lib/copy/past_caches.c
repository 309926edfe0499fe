/* SPDX-License-Identifier: Apache-2.0 */
/* See past_caches.h. */
#include "client/lib/copy/past_caches.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define LINE_BYTES  64u
#define SHORT_BYTES 1024u /* from here on it is faster than memcpy */

/* to: at the begin of a line; bytes: of whole lines. */
__attribute__((target("avx"))) static void copy_lines(uint8_t *to, const uint8_t *from, size_t bytes)
{
	for (const uint8_t *end = from + bytes; from < end; from += LINE_BYTES, to += LINE_BYTES) {
		__m256i a = _mm256_loadu_si256((const __m256i *)(const void *)from);
		__m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + LINE_BYTES / 2));

		_mm256_stream_si256((__m256i *)(void *)to, a);
		_mm256_stream_si256((__m256i *)(void *)(to + LINE_BYTES / 2), b);
	}
}

void ptc_past_caches_copy(void *to, const void *from, size_t bytes)
{
	size_t head = (size_t)(-(uintptr_t)to & (LINE_BYTES - 1)), lines;

	if (bytes < SHORT_BYTES || !__builtin_cpu_supports("avx")) {
		memcpy(to, from, bytes);
		return;
	}
	lines = (bytes - head) / LINE_BYTES * LINE_BYTES;
	memcpy(to, from, head);
	copy_lines((uint8_t *)to + head, (const uint8_t *)from + head, lines);
	memcpy((uint8_t *)to + head + lines, (const uint8_t *)from + head + lines, bytes - head - lines);
}

void ptc_past_caches_end(void)
{
	_mm_sfence();
}
#else
void ptc_past_caches_copy(void *to, const void *from, size_t bytes)
{
	memcpy(to, from, bytes);
}

void ptc_past_caches_end(void)
{
}
#endif
