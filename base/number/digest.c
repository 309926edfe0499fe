/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of tensors (CRC-64 over GF(2)) and checksums of blocks. libisal's crc64_jones_norm inverts on entry and
 * exit; we undo both. The products modulo P run with carry-less multiply and Barrett reduction where the processor has
 * it, bit by bit elsewhere. */
#include "base/number/checksum_avx2.h"
#include "base/number/digest.h"

#include <isa-l/crc.h>
#include <isa-l/crc64.h>
#include <stdio.h>
#include <xxhash.h>

#if defined(__x86_64__)
#include <immintrin.h>

static int has_clmul, has_avx, has_avx2;
#endif

/* libisal's AVX-512 code leaves the upper halves of vector registers in use. Whatever a thread then does without AVX
 * (libxxhash, the C library's string functions for old processors) merges them at every step, at a fifth of its speed,
 * until they are cleared. */
#if defined(__x86_64__)
__attribute__((target("avx"))) static void clear_upper_halves(void)
{
	_mm256_zeroupper();
}
#endif

uint64_t ptc_digest_append(uint64_t crc, const void *data, size_t len)
{
	if (len == 0)
		return crc;
	crc = ~crc64_jones_norm(~crc, data, len);
#if defined(__x86_64__)
	if (has_avx)
		clear_upper_halves();
#endif
	return crc;
}

uint32_t ptc_crc32(uint32_t before, const void *data, size_t len)
{
	if (len == 0)
		return before;
	before = crc32_gzip_refl(before, data, len);
#if defined(__x86_64__)
	if (has_avx)
		clear_upper_halves();
#endif
	return before;
}

uint64_t ptc_digest_run(const void *data, size_t len)
{
	return ptc_digest_append(0, data, len);
}

/* One bit of b at a time, highest first. */
static uint64_t mul_portable(uint64_t a, uint64_t b)
{
	uint64_t r = 0;

	for (int i = 63; i >= 0; i--) {
		r = (r << 1) ^ (PTC_DIGEST_POLY & (0 - (r >> 63)));
		r ^= a & (0 - ((b >> i) & 1));
	}
	return r;
}

#if defined(__x86_64__)
/* floor(x^128 / (x^64 + P)) - x^64, the Barrett constant, computed once. */
static uint64_t barrett_mu(void)
{
	uint64_t rem = PTC_DIGEST_POLY, q = 0; /* dividing x^128: first quotient bit x^64 leaves P * x^64 */

	for (int i = 63; i >= 0; i--) {
		uint64_t top = rem >> 63;

		q |= top << i;
		rem = (rem << 1) ^ (PTC_DIGEST_POLY & (0 - top));
	}
	return q;
}

__attribute__((target("pclmul,sse2"))) static uint64_t mul_clmul(uint64_t a, uint64_t b, uint64_t mu)
{
	__m128i p = _mm_clmulepi64_si128(_mm_set_epi64x(0, (long long)a), _mm_set_epi64x(0, (long long)b), 0);
	uint64_t lo = (uint64_t)_mm_cvtsi128_si64(p);
	uint64_t hi = (uint64_t)_mm_cvtsi128_si64(_mm_unpackhi_epi64(p, p));
	/* quotient = high half of hi * (x^64 + mu), then subtract quotient * P from the low half */
	__m128i q = _mm_clmulepi64_si128(_mm_set_epi64x(0, (long long)hi), _mm_set_epi64x(0, (long long)mu), 0);
	uint64_t quot = hi ^ (uint64_t)_mm_cvtsi128_si64(_mm_unpackhi_epi64(q, q));
	__m128i t = _mm_clmulepi64_si128(_mm_set_epi64x(0, (long long)quot),
					 _mm_set_epi64x(0, (long long)PTC_DIGEST_POLY), 0);

	return lo ^ (uint64_t)_mm_cvtsi128_si64(t);
}

static uint64_t mu_const;

__attribute__((constructor)) static void detect(void)
{
	mu_const = barrett_mu();
	__builtin_cpu_init();
	has_clmul = __builtin_cpu_supports("pclmul");
	has_avx = __builtin_cpu_supports("avx");
	has_avx2 = __builtin_cpu_supports("avx2");
}

uint64_t ptc_digest_mul(uint64_t a, uint64_t b)
{
	return has_clmul ? mul_clmul(a, b, mu_const) : mul_portable(a, b);
}
#else
uint64_t ptc_digest_mul(uint64_t a, uint64_t b)
{
	return mul_portable(a, b);
}
#endif

/* x^8 to the powers 1, 2, 4 and so on. Boxes of small tensors need a power each. */
static uint64_t squares[64];

__attribute__((constructor)) static void squares_make(void)
{
	squares[0] = 256; /* x^8 */
	for (int i = 1; i < 64; i++)
		squares[i] = mul_portable(squares[i - 1], squares[i - 1]);
}

uint64_t ptc_digest_xpow(uint64_t bytes)
{
	uint64_t result;

	if (!bytes)
		return 1; /* x^0 */
	result = squares[__builtin_ctzll(bytes)];
	for (bytes &= bytes - 1; bytes; bytes &= bytes - 1)
		result = ptc_digest_mul(result, squares[__builtin_ctzll(bytes)]);
	return result;
}

uint64_t ptc_checksum(const void *data, size_t len)
{
#if defined(__x86_64__)
	if (has_avx2)
		return ptc_checksum_avx2(data, len);
#endif
	return XXH3_64bits(data, len);
}

void ptc_content_hash(const void *data, size_t len, char ret_hex[33])
{
	static const char digits[] = "0123456789abcdef";
	XXH128_hash_t h = XXH3_128bits(data, len);

	for (unsigned i = 0; i < 16; i++) { /* a plan's hash is one of as many as it has moves */
		ret_hex[i] = digits[h.high64 >> (60 - 4 * i) & 15];
		ret_hex[16 + i] = digits[h.low64 >> (60 - 4 * i) & 15];
	}
	ret_hex[32] = '\0';
}
