/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels' own source, executed on the host thread by thread, against oracles that know bytes and bits alone. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "daemon/gpu/kernels/gpu_kernels.cu"
#pragma GCC diagnostic pop

#define ROOM ((uint64_t)1 << 16)

static uint64_t rng;

static uint64_t below(uint64_t n)
{
	rng = rng * 6364136223846793005u + 1442695040888963407u;
	return (rng >> 33) % n;
}

static void seeded(void)
{
	const char *s = getenv("PTC_SEED");

	rng = s ? strtoull(s, NULL, 0) : (uint64_t)getpid() * 2654435761u + (uint64_t)(uintptr_t)&s;
	print_message("PTC_SEED=%" PRIu64 "\n", rng);
}

static uint64_t cases(uint64_t usual)
{
	const char *s = getenv("PTC_CASES");

	return s ? strtoull(s, NULL, 0) : usual;
}

/* The digest by its definition: a polynomial of all bits, highest first, times x^64, divided by x^64 + POLY; with
 * `after` zero bytes behind. */
static uint64_t oracle(uint64_t sum, const uint8_t *bytes, uint64_t n)
{
	for (uint64_t i = 0; i < n * 8; i++) {
		uint64_t bit = bytes ? (bytes[i / 8] >> (7 - i % 8)) & 1 : 0, top = (sum >> 63) ^ bit;

		sum = (sum << 1) ^ (top ? POLY : 0);
	}
	return sum;
}

/* x^bits modulo x^64 + POLY, bit by bit. */
static uint64_t x_to_the(uint64_t bits)
{
	uint64_t r = 1;

	while (bits--)
		r = (r << 1) ^ ((r >> 63) ? POLY : 0);
	return r;
}

static void each_thread(uint64_t threads, void (*thread)(const void *), const void *p)
{
	kernel_at.threads = threads;
	for (uint64_t i = 0; i < threads; i++) {
		kernel_at.thread = threads - 1 - i; /* no order is promised */
		thread(p);
	}
}

static void pack_thread(const void *p)
{
	ptc_gpu_pack_1(*(const struct ptc_gpu_pack *)p);
}

static void unpack_thread(const void *p)
{
	ptc_gpu_unpack_1(*(const struct ptc_gpu_pack *)p);
}

static void run_thread(const void *p)
{
	ptc_gpu_digest_run_2(*(const struct ptc_gpu_digest_run *)p);
}

static void rows_thread(const void *p)
{
	ptc_gpu_digest_rows_1(*(const struct ptc_gpu_digest_rows *)p);
}

static uint8_t *random_bytes(uint64_t n)
{
	uint8_t *bytes = aligned_alloc(64, (n + 127) / 64 * 64);

	for (uint64_t i = 0; i < n; i++)
		bytes[i] = (uint8_t)below(256);
	return bytes;
}

/* A box of units that fits into ROOM. */
static void random_box(struct ptc_gpu_pack *p, uint64_t *ret_depth)
{
	for (;;) {
		uint64_t depth = 1 + below(5), row_gap = below(2) ? below(20) : 0, slice_gap = below(2) ? below(40) : 0;

		*p = (struct ptc_gpu_pack){ .unit = 1u << below(5),
					    .width_units = 1 + (uint32_t)below(below(2) ? 400 : 8),
					    .height = 1 + (uint32_t)below(30) };
		p->row = (p->width_units + row_gap) * p->unit;
		p->slice = p->row * p->height + slice_gap * p->unit;
		p->units = (uint32_t)(p->width_units * p->height * depth);
		*ret_depth = depth;
		if (p->slice * depth < ROOM)
			return;
	}
}

static void test_pack(void **state)
{
	seeded();
	for (uint64_t n = cases(400); n; n--) {
		uint8_t *box = random_bytes(ROOM), *packed = random_bytes(ROOM), *want = malloc(ROOM);
		uint64_t depth, at = 0, threads = 1 + below(700);
		struct ptc_gpu_pack p;

		random_box(&p, &depth);
		p.box = (uintptr_t)box;
		p.packed = (uintptr_t)packed;
		memcpy(want, packed, ROOM);
		for (uint64_t z = 0; z < depth; z++)
			for (uint64_t y = 0; y < p.height; y++)
				for (uint64_t x = 0; x < (uint64_t)p.width_units * p.unit; x++)
					want[at++] = box[z * p.slice + y * p.row + x];
		each_thread(threads, pack_thread, &p);
		assert_memory_equal(packed, want, ROOM);

		memcpy(want, box, ROOM);
		for (uint64_t i = 0; i < at; i++)
			packed[i] = (uint8_t)below(256);
		at = 0;
		for (uint64_t z = 0; z < depth; z++)
			for (uint64_t y = 0; y < p.height; y++)
				for (uint64_t x = 0; x < (uint64_t)p.width_units * p.unit; x++)
					want[z * p.slice + y * p.row + x] = packed[at++];
		each_thread(threads, unpack_thread, &p);
		assert_memory_equal(box, want, ROOM);
		free(box);
		free(packed);
		free(want);
	}
}

/* r / x^bits modulo P */
static uint64_t without(uint64_t r, uint64_t bits)
{
	while (bits--)
		r = (r & 1) ? ((r ^ POLY) >> 1) | UINT64_C(1) << 63 : r >> 1;
	return r;
}

static void write_powers(uint64_t *powers, unsigned n, uint64_t first, uint64_t base)
{
	for (unsigned i = 0; i < n; i++, first = times(first, base))
		powers[i] = first;
}

/* In at least that number of chunks, and with as many blocks of zeros before the run's as are asked for. */
static void check_run(uint64_t first, uint64_t bytes, uint64_t chunks, uint64_t zeros)
{
	const uint64_t block = PTC_GPU_LANES * PTC_GPU_ROWS, after = below(200);
	uint8_t *data = random_bytes(first + bytes + 16);
	uint64_t result = 5, start = (uintptr_t)(data + first), end = start + bytes, pad = (0 - end) & 3, c, factor;
	struct ptc_gpu_digest_run p = { .words = start & ~UINT64_C(3),
					.result = (uintptr_t)&result,
					.chunks = chunks,
					.first_mask = UINT32_MAX << (8 * (start & 3)),
					.last_mask = UINT32_MAX >> (8 * pad) };

	p.nwords = (end + pad - p.words) / 4;
	p.blocks = ((p.nwords + block - 1) / block + chunks - 1) / chunks + zeros;
	factor = without(x_to_the(64 + 8 * after), 8 * pad + 32 * block);
	c = x_to_the(32 * block * p.blocks);
	write_powers(p.lane_low, 16, 1, x_to_the(32));
	write_powers(p.lane_high, PTC_GPU_LANES / 16, 1, x_to_the(32 * 16));
	write_powers(p.chunk_low, 16, 1, c);
	c = times(p.chunk_low[15], c);
	write_powers(p.chunk_mid, 16, 1, c);
	write_powers(p.chunk_high, 16, factor, times(p.chunk_mid[15], c));
	each_thread((chunks * PTC_GPU_LANES + PTC_GPU_BLOCK - 1) / PTC_GPU_BLOCK * PTC_GPU_BLOCK, run_thread, &p);
	if (result != (5 ^ oracle(oracle(0, data + first, bytes), NULL, after)))
		fail_msg("%" PRIu64 " bytes at %" PRIu64 ", %" PRIu64 " chunks of %" PRIu64 " blocks", bytes, first,
			 chunks, p.blocks);
	free(data);
}

static void test_digest_run(void **state)
{
	seeded();
	for (uint64_t n = cases(40); n; n--) {
		uint64_t most[] = { 300, 60000, 400000 };

		check_run(below(16), 1 + below(most[below(3)]), 1 + below(6), below(2));
	}
}

/* The first words of a run, each of whose chunks is one block, have the highest powers. */
static void test_digest_chunks(void **state)
{
	seeded();
	check_run(below(16), 260 * PTC_GPU_LANES * PTC_GPU_ROWS * 4 - 7 - below(9000), 260, 0);
}

static void test_digest_rows(void **state)
{
	uint64_t table[256];

	seeded();
	for (unsigned i = 0; i < 256; i++) {
		uint8_t byte = (uint8_t)i;

		table[i] = oracle(0, &byte, 1);
	}
	for (uint64_t n = cases(100); n; n--) {
		uint8_t *data = random_bytes(ROOM);
		uint64_t result = 9, want = 9;
		struct ptc_gpu_digest_rows p = { .width = 1 + below(below(2) ? 1500 : 40),
						 .height = 1 + below(9),
						 .depth = 1 + below(3),
						 .after = below(500),
						 .segment_bytes = 64 + below(200),
						 .group = 1 + below(5),
						 .result = (uintptr_t)&result,
						 .table = (uintptr_t)table };

		p.row = p.width + below(30);
		p.slice = p.row * p.height + below(30);
		if (p.slice * p.depth >= ROOM - 16) {
			free(data);
			continue;
		}
		p.other_row = p.width + below(50);
		p.other_slice = p.other_row * p.height + below(50);
		p.segments = below(2) ? 1 : (p.width + p.segment_bytes - 1) / p.segment_bytes;
		p.box = (uintptr_t)data + below(16);
		p.row_power = x_to_the(8 * p.other_row);
		for (unsigned i = 0; i < 20; i++)
			p.powers[i] = x_to_the((uint64_t)8 << i);
		for (uint64_t z = 0; z < p.depth; z++)
			for (uint64_t y = 0; y < p.height; y++) {
				uint64_t after =
					p.after + (p.depth - 1 - z) * p.other_slice + (p.height - 1 - y) * p.other_row;
				const uint8_t *row = (const uint8_t *)(uintptr_t)p.box + z * p.slice + y * p.row;

				want ^= oracle(oracle(0, row, p.width), NULL, after);
			}
		each_thread(1 + below(50), rows_thread, &p);
		if (result != want)
			fail_msg("%" PRIu64 " x %" PRIu64 " x %" PRIu64 ", %" PRIu64 " segments, groups of %" PRIu64,
				 p.width, p.height, p.depth, p.segments, p.group);
		free(data);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pack),
		cmocka_unit_test(test_digest_run),
		cmocka_unit_test(test_digest_chunks),
		cmocka_unit_test(test_digest_rows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
