/* SPDX-License-Identifier: Apache-2.0 */
/* The sharding-independent tensor digest and the store's block checksum.
 *
 * A tensor's bytes, row-major over the logical shape, are a polynomial over
 * GF(2): the top bit of the first byte is the coefficient of the highest power. The digest is that
 * polynomial times x^64 modulo x^64 + 0xAD93D23594C935A9 (Jones; primitive).
 * It is linear: the digest of a tensor is the XOR over any partition of it
 * into runs of crc(run) * x^(8 * bytes after the run). So every rank computes
 * its own part and parts add up in any order. It finds every swap of two
 * different elements of at most 8 bytes and every burst up to 64 bits. It is
 * no defence against forgery. "123456789" gives 0xf1d27d0a6c25edc8.
 *
 * Pure; thread-safe. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define PTC_DIGEST_POLY UINT64_C(0xAD93D23594C935A9)

/* crc(run): no pre- or post-inversion; crc of the empty run is 0. */
uint64_t ptc_digest_run(const void *data, size_t len);
/* Returns the crc of a run followed by `data`; `crc` is the first run's. */
uint64_t ptc_digest_append(uint64_t crc, const void *data, size_t len);
/* a * b mod P. */
uint64_t ptc_digest_mul(uint64_t a, uint64_t b);
/* x^(8 * bytes) mod P. O(log bytes). */
uint64_t ptc_digest_xpow(uint64_t bytes);
/* crc * x^(8 * bytes_after): a run's share of its tensor's digest. */
static inline uint64_t ptc_digest_shift(uint64_t crc, uint64_t bytes_after)
{
	return bytes_after ? ptc_digest_mul(crc, ptc_digest_xpow(bytes_after)) : crc;
}

/* The CRC-32 of ZIP and gzip; begin with 0 and give the bytes in order, in any number of parts. */
uint32_t ptc_crc32(uint32_t before, const void *data, size_t len);
/* Block checksum of the store: XXH3 64 bit. */
uint64_t ptc_checksum(const void *data, size_t len);
/* 128-bit hash of a small document as 32 hex digits and a NUL. It serves as the document's address; it is not
 * cryptographic. */
void ptc_content_hash(const void *data, size_t len, char ret_hex[33]);
