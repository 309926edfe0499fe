/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels: boxes of short rows, and digests (base/number/digest.h) on the device. CUDA C++ for nvcc, C for everybody else
 * (kernel_host.h).
 *
 * A digest reads 32-bit words w(0), w(1) ... as a polynomial over GF(2). Let y = x^(32 * 2^k). Squaring permutes the roots of
 * P, so P(y) = 0 modulo P for every k. Each of 2^k lanes reads every 2^k-th word, which is a polynomial in y with words as
 * coefficients, and divides it by P(y): an XOR of 32 earlier words for each word, no multiplication and no table. What remains
 * of a lane are 64 words; these take the slow way of multiplying modulo P. */
#include "daemon/gpu/kernels/gpu_kernels.h"
#include "daemon/gpu/kernels/kernel_host.h"

#define POLY 0xAD93D23594C935A9ull

/* a * b modulo P, one bit of b at a time, highest first. Called, as the code of all its uses would fill a device's cache. */
DEVICE_CALL uint64_t times(uint64_t a, uint64_t b)
{
	uint64_t r = 0;

	for (int i = 63; i >= 0; i--) {
		r = (r << 1) ^ (POLY & (0 - (r >> 63)));
		r ^= a & (0 - ((b >> i) & 1));
	}
	return r;
}

/* ---- boxes ---- */

struct unit16 {
	uint64_t a, b;
};

/* Where unit i of a box lies. */
DEVICE uint64_t place(const struct ptc_gpu_pack *p, uint32_t i)
{
	uint32_t row = i / p->width_units, x = i % p->width_units;

	return p->box + (row / p->height) * p->slice + (row % p->height) * p->row + (uint64_t)x * p->unit;
}

#define MOVE(type)                                                                                                     \
	for (uint64_t i = THREAD; i < p->units; i += THREADS) {                                                        \
		type *in_box = AT(type, place(p, (uint32_t)i)), *in_run = AT(type, p->packed) + i;                     \
		if (packing)                                                                                           \
			*in_run = *in_box;                                                                             \
		else                                                                                                   \
			*in_box = *in_run;                                                                             \
	}

DEVICE void move(const struct ptc_gpu_pack *p, int packing)
{
	if (p->unit == 16)
		MOVE(struct unit16)
	else if (p->unit == 8)
		MOVE(uint64_t)
	else if (p->unit == 4)
		MOVE(uint32_t)
	else if (p->unit == 2)
		MOVE(uint16_t)
	else
		MOVE(uint8_t)
}

KERNEL ptc_gpu_pack_1(struct ptc_gpu_pack p)
{
	move(&p, 1);
}

KERNEL ptc_gpu_unpack_1(struct ptc_gpu_pack p)
{
	move(&p, 0);
}

/* ---- a digest of a run ---- */

/* Word i of the run; those before its beginning are zero. */
DEVICE uint32_t word(const struct ptc_gpu_digest_run *p, int64_t i)
{
	uint32_t w;

	if (i < 0)
		return 0;
	w = AT(const uint32_t, p->words)[i];
	if (i == 0)
		w &= p->first_mask;
	if (i == (int64_t)p->nwords - 1)
		w &= p->last_mask;
	return w;
}

/* w, and the quotients before it as far as P(y) has terms. Quotient i - 64 lies where quotient i will. */
DEVICE uint32_t divided(const uint32_t quotients[64], int i, uint32_t w)
{
	UNROLL for (int d = 1; d <= 64; d++) if ((POLY >> (64 - d)) & 1) w ^= quotients[(i - d) & 63];
	return w;
}

KERNEL ptc_gpu_digest_run_1(struct ptc_gpu_digest_run p)
{
	uint64_t lane = THREAD, lanes = (uint64_t)1 << p.lanes_log, rest = 0, behind = lanes - 1 - lane;
	int64_t at = (int64_t)lane - (int64_t)(p.steps * lanes - p.nwords);
	uint32_t quotients[64];

	if (lane >= lanes)
		return;
	UNROLL for (int i = 0; i < 64; i++) quotients[i] = 0;
	for (uint64_t left = p.steps; left > 64; left -= 64)
		UNROLL for (int i = 0; i < 64; i++)
		{
			quotients[i] = divided(quotients, i, word(&p, at));
			at += (int64_t)lanes;
		}
	/* The last 64 words make no quotient but the remainder. */
	UNROLL for (int i = 0; i < 64; i++)
	{
		uint32_t w = divided(quotients, i, word(&p, at));

		quotients[i] = 0;
		at += (int64_t)lanes;
		rest = times(rest, p.step) ^ SWAP32(w);
	}
	for (uint32_t i = 0; i < p.lanes_log; i++)
		if ((behind >> i) & 1)
			rest = times(rest, p.powers[i]);
	XOR_INTO(AT(uint64_t, p.result), times(rest, p.factor));
}

/* ---- a digest of rows ---- */

DEVICE uint64_t append(uint64_t crc, uint32_t byte, const uint64_t *table)
{
	return table[(crc >> 56) ^ byte] ^ (crc << 8);
}

/* As ptc_digest_run, byte by byte; words where they are aligned. */
DEVICE uint64_t run_digest(const uint8_t *at, uint64_t bytes, const uint64_t *table)
{
	const uint8_t *end = at + bytes;
	uint64_t crc = 0;

	for (; at < end && ((uintptr_t)at & 3); at++)
		crc = append(crc, *at, table);
	for (; end - at >= 4; at += 4) {
		uint32_t w = *(const uint32_t *)(const void *)at;

		for (int i = 0; i < 32; i += 8)
			crc = append(crc, (w >> i) & 255, table);
	}
	for (; at < end; at++)
		crc = append(crc, *at, table);
	return crc;
}

/* crc * x^(8 * bytes) */
DEVICE uint64_t shifted(uint64_t crc, uint64_t bytes, const uint64_t *powers)
{
	for (int i = 0; bytes; i++, bytes >>= 1)
		if (bytes & 1)
			crc = times(crc, powers[i]);
	return crc;
}

KERNEL ptc_gpu_digest_rows_1(struct ptc_gpu_digest_rows p)
{
	const uint64_t *table = AT(const uint64_t, p.table);
	uint64_t pieces = p.segments > 1 ? p.height * p.segments : (p.height + p.group - 1) / p.group;
	uint64_t sum = 0;

	for (uint64_t i = THREAD; i < pieces * p.depth; i += THREADS) {
		uint64_t z = i / pieces, piece = i % pieces, part = 0;
		uint64_t y = p.segments > 1 ? piece / p.segments : piece * p.group;
		uint64_t x = p.segments > 1 ? piece % p.segments * p.segment_bytes : 0;
		uint64_t bytes = p.segments > 1 && p.width - x > p.segment_bytes ? p.segment_bytes : p.width - x;
		uint64_t rows = p.segments > 1 || p.group == 1 ? 1 : p.height - y < p.group ? p.height - y : p.group;
		const uint8_t *at = AT(const uint8_t, p.box + z * p.slice + y * p.row + x);

		for (uint64_t k = 0; k < rows; k++, at += p.row)
			part = (k ? times(part, p.row_power) : 0) ^ run_digest(at, bytes, table);
		sum ^= shifted(part,
			       p.after + (p.depth - 1 - z) * p.other_slice + (p.height - y - rows) * p.other_row +
				       (p.width - x - bytes),
			       p.powers);
	}
	if (sum)
		XOR_INTO(AT(uint64_t, p.result), sum);
}
