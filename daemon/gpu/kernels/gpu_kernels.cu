/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels: boxes of short rows, and digests (base/number/digest.h) on the device. CUDA C++ for nvcc, C for everybody
 * else (kernel_host.h).
 *
 * A digest reads 32-bit words w(0), w(1) ... as a polynomial over GF(2), modulo the digest's polynomial P. Let y =
 * x^(32 * 2^k). Squaring permutes the roots of P, so P(y) = 0 modulo P for every k, and M(y) = 0 for each multiple M of
 * P. Each of 2^k lanes reads every 2^k-th word, which is a polynomial in y with words as coefficients, and divides it
 * by M(y): an XOR of earlier words for each word, no multiplication and no table. M has fewer terms than P: 22 XORs, of
 * which a device does two at once, in place of 32. After that, 80 words of a lane remain. A division by P(y) leaves 64
 * of them. A constant matrix of bits, made of the powers of y, turns these into one number. */
#include "daemon/gpu/kernels/gpu_kernels.h"
#include "daemon/gpu/kernels/kernel_host.h"

#define POLY          0xAD93D23594C935A9ull
#define DEGREE        79 /* of the multiple M of x^64 + POLY: of degrees up to 79, the one with fewest terms */
#define MULTIPLE_HIGH 0x8044ull
#define MULTIPLE_LOW  0x9948554058011261ull
#define LANES         ((int)PTC_GPU_LANES)
#define ROWS          ((int)PTC_GPU_ROWS) /* DEGREE or more */
#define AHEAD         16                  /* words of a lane under way from memory; half of them are ordered at once */

/* a * b modulo P, one bit of b at a time, highest first. Called, as the code of all its uses would fill a device's
 * cache. */
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

/* Word i of the run; those before its beginning are zero. The load is unconditional, so that many are under way. */
DEVICE uint32_t word(const struct ptc_gpu_digest_run *p, int64_t i)
{
	uint32_t w = AT(const uint32_t, p->words)[i < 0 ? 0 : i];

	w &= i < 0 ? 0 : i == 0 ? p->first_mask : UINT32_MAX;
	return i == (int64_t)p->nwords - 1 ? w & p->last_mask : w;
}

DEVICE int in_multiple(int n)
{
	return (int)((n < 64 ? MULTIPLE_LOW >> n : MULTIPLE_HIGH >> (n - 64)) & 1);
}

/* w, and the quotients before it as far as M(y) has terms. Quotient i - ROWS lies where quotient i will. */
DEVICE uint32_t divided(const uint32_t *quotients, int i, uint32_t w)
{
	UNROLL for (int d = 1; d <= DEGREE; d++) if (in_multiple(DEGREE - d)) w ^= quotients[(i - d + ROWS) % ROWS];
	return w;
}

/* A block in which the run begins or ends; `at` is a lane's first word. */
DEVICE void divide_checked(uint32_t *quotients, const struct ptc_gpu_digest_run *p, int64_t at)
{
	UNROLL for (int i = 0; i < ROWS; i += AHEAD)
	{
		uint32_t words[AHEAD];

		UNROLL for (int j = 0; j < AHEAD; j++) words[j] = word(p, at + (i + j) * LANES);
		UNROLL for (int j = 0; j < AHEAD; j++) quotients[i + j] = divided(quotients, i + j, words[j]);
	}
}

/* Blocks within the run. AHEAD words behind them are read too, and belong to the run. */
DEVICE void divide(uint32_t *quotients, const uint32_t *at, uint32_t blocks)
{
	uint32_t ahead[AHEAD];

	UNROLL for (int i = 0; i < AHEAD; i++) ahead[i] = at[i * LANES];
	ROLLED for (; blocks; blocks--)
	{
		UNROLL for (int i = 0; i < ROWS; i += AHEAD / 2)
		{
			UNROLL for (int j = i; j < i + AHEAD / 2; j++) quotients[j] =
				divided(quotients, j, ahead[j % AHEAD]);
			UNROLL for (int j = i; j < i + AHEAD / 2; j++) ahead[j % AHEAD] = at[(j + AHEAD) * LANES];
		}
		at += ROWS * LANES;
	}
}

/* What remains of a lane, behind whose quotients come ROWS words of zero, as 64 words of its end. */
DEVICE void remain(uint32_t *words)
{
	UNROLL for (int i = 0; i < ROWS; i++)
	{
		uint32_t w = 0;

		UNROLL for (int d = 1; d <= DEGREE; d++) if (d > i && in_multiple(DEGREE - d)) w ^= words[i - d + ROWS];
		words[i] = w;
	}
	UNROLL for (int i = 1; i < ROWS; i++)
		UNROLL for (int d = 1; d <= 64; d++) if (((POLY >> (64 - d)) & 1) && i - d >= 0 && i - d < ROWS - 64)
			words[i] ^= words[i - d];
}

/* words(0) * y^63 + words(1) * y^62 ... + words(63) modulo P. */
DEVICE uint64_t number(const uint32_t *words)
{
	/* y^i: x^(32 * LANES * i) */
	const uint64_t y[64] = {
		0x0000000000000001ull, 0xdf1cdd56b4d87d14ull, 0xa38f2c8ad9723affull, 0xdf9298de2200fa9aull,
		0x939b874f7701f99cull, 0x554539d2b1649d1dull, 0x75281c50086208b4ull, 0x5110048c5740a916ull,
		0x9ada6d112ce70b99ull, 0x0036a6368ea89811ull, 0x37f9ff7ce160162full, 0x5027909bc99a2c54ull,
		0xa552a2fb4d4e9fbdull, 0x4735dc5b70796e4aull, 0x03ac72146af964f1ull, 0x6a6531da13610867ull,
		0xd08b8fbf686ed3a2ull, 0xc2eda2de00ab0d01ull, 0x44a631de7203b0ffull, 0x4b29842dea5d3015ull,
		0xe897cef06d25a73cull, 0xb821adaaea9bfe15ull, 0x7528340ee1b65142ull, 0xd17fc78aa22a9f41ull,
		0xd6d9888e127d8db4ull, 0xf5e36782b8322e4aull, 0xf577b388ebc9d1d4ull, 0x3d5073c654211f8dull,
		0xbb64206b337bf4bcull, 0xa5e7e8f692a69425ull, 0x61084a008be747d8ull, 0x9ac177af4da39c0bull,
		0x6062a6313991e07full, 0xa7e4c533587ec8afull, 0xe5b6f53f51329450ull, 0x08dd91bfa8b0542cull,
		0xe87877d23192ae1eull, 0x7942504c2687e134ull, 0xf594946a70b6a142ull, 0xa2078d891da2d880ull,
		0xd7610478316ac613ull, 0x5e425339c946148dull, 0xb7bceb387170c0c8ull, 0xde2495690e9b0a09ull,
		0xbc82eb75cc92d837ull, 0xa6466d22c77ceb5cull, 0x6bcdf5f627cd8e0dull, 0xb16a3d55dd11d779ull,
		0x62201c6621b2981cull, 0xcba6399f7a8b3652ull, 0x9aa94f2fb58768a4ull, 0x6152ed1cc696d35full,
		0xcd9e5572b3ca52e1ull, 0x761ddbdc15665b3cull, 0xeeb1c9b7f64a3eecull, 0xdd6a277720a59e66ull,
		0xc3d917f9d2bf2ffeull, 0x50a72738c0ff070full, 0x59979c1f4090059eull, 0x07ce4306bea3bea8ull,
		0x54c301997f75b7c3ull, 0x630fe984d5a1c09eull, 0x68d890ef54e694d9ull, 0xa81902b3a22e836cull,
	};
	uint64_t sum = 0;

	UNROLL for (int j = 63; j >= 0; j--)
	{
		uint32_t v = 0; /* of each power of y that has an x^j */

		UNROLL for (int i = 0; i < 64; i++) if ((y[63 - i] >> j) & 1) v ^= words[i];
		sum = (sum << 1) ^ (POLY & (0 - (sum >> 63))) ^ SWAP32(v);
	}
	return sum;
}

KERNEL BOUNDS(PTC_GPU_BLOCK, PTC_GPU_BLOCKS_BUSY) ptc_gpu_digest_run_2(struct ptc_gpu_digest_run p)
{
	const int64_t block = ROWS * LANES, last = (int64_t)p.nwords - 1;
	uint64_t chunk = THREAD / LANES, left = p.blocks, rest;
	uint32_t lane = (uint32_t)(THREAD % LANES), quotients[ROWS], after, behind;
	int64_t first = (int64_t)p.nwords - (int64_t)((p.chunks - chunk) * p.blocks) * block;

	if (chunk >= p.chunks)
		return;
	UNROLL for (int i = 0; i < ROWS; i++) quotients[i] = 0;
	while (left) {
		if (first > 0 && first + block <= last) {
			uint64_t fit = (uint64_t)((last - first) / block);
			uint32_t n = (uint32_t)(left < fit ? left : fit);

			left -= n;
			divide(quotients, AT(const uint32_t, p.words) + first + lane, n);
			first += n * block;
			continue;
		}
		if (first + block > 0)
			divide_checked(quotients, &p, first + lane);
		first += block;
		left--;
	}
	remain(quotients);
	rest = number(quotients + ROWS - 64);
	behind = PTC_GPU_LANES - 1 - lane;
	after = (uint32_t)(p.chunks - 1 - chunk);
	rest = times(times(rest, p.lane_low[behind % 16]), p.lane_high[behind / 16]);
	if (after % 16)
		rest = times(rest, p.chunk_low[after % 16]);
	if (after / 16 % 16)
		rest = times(rest, p.chunk_mid[after / 16 % 16]);
	XOR_INTO(AT(uint64_t, p.result), times(rest, p.chunk_high[after / 256]));
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
