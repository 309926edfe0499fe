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

/* Data.sum of FetchRank and ReadRank: a CRC of what was asked for, and of the message's bytes. A rank's tensor has no
 * digest of its own, so nothing else shows that a bit of the request or of the bytes changed on the way. Whoever passes
 * the bytes on verifies the sum, and makes one for the request that it answers. */
struct ptc_rank_asked {
	uint64_t generation, snapshot; /* as the request says */
	uint64_t rank, item;
	uint64_t offset; /* of the message's first byte in the rank's tensor */
};

static inline uint64_t ptc_rank_sum_begin(const struct ptc_rank_asked *asked)
{
	return ptc_digest_run(asked, sizeof *asked);
}
/* The sum after `data`, which may come in several parts. */
static inline uint64_t ptc_rank_sum_add(uint64_t sum, const void *data, size_t len)
{
	return ptc_digest_append(sum, data, len);
}
