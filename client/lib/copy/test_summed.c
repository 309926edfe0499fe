/* SPDX-License-Identifier: Apache-2.0 */
/* Copies out of a file of chunks in any order: what is copied is right, and every flipped bit in a block that was used
 * is found. */
#include "client/lib/copy/past_caches.h"
#include "client/lib/copy/summed.h"

#include "base/number/digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CHUNKS     5u
#define CHUNK      PTC_DIRECT_READ_CHUNK_BYTES
#define BLOCK      PTC_DIRECT_READ_BLOCK_BYTES
#define FIRST      48u /* of the file, which the first chunk begins at */
#define STEP       (CHUNK + 64)
#define FILE_BYTES (FIRST + CHUNKS * STEP)

struct file {
	uint8_t *bytes;
	struct ptc_direct_read_chunk chunks[CHUNKS];
	struct summed summed;
};

static unsigned seed = 1;

static uint64_t any(uint64_t below)
{
	return ((uint64_t)(unsigned)rand_r(&seed) << 31 ^ (unsigned)rand_r(&seed)) % below;
}

/* The chunks are named from the last to the first. */
static void make(struct file *f)
{
	f->bytes = malloc(FILE_BYTES);
	assert_non_null(f->bytes);
	for (size_t i = 0; i < FILE_BYTES; i++)
		f->bytes[i] = (uint8_t)(i * UINT64_C(0x9e3779b97f4a7c15) >> 37);
	for (size_t i = 0; i < CHUNKS; i++) {
		struct ptc_direct_read_chunk *c = &f->chunks[i];

		*c = (struct ptc_direct_read_chunk){ .at = FIRST + (CHUNKS - 1 - i) * STEP };
		for (size_t b = 0; b < PTC_DIRECT_READ_CHUNK_BLOCKS; b++)
			c->sums[b] = ptc_checksum(f->bytes + c->at + b * BLOCK,
						  b * BLOCK + BLOCK > CHUNK ? CHUNK - b * BLOCK : BLOCK);
	}
	f->summed = (struct summed){ f->bytes, FILE_BYTES, f->chunks, CHUNKS, 0, 0 };
}

static enum summed_result copy(struct file *f, uint8_t *to, uint64_t at, uint64_t bytes)
{
	enum summed_result rc = ptc_summed_copy(&f->summed, to, at, bytes);

	ptc_past_caches_end();
	return rc;
}

static void test_copies(void **state)
{
	uint8_t *to = malloc(CHUNK + 128);
	struct file f;

	(void)state;
	make(&f);
	for (int i = 0; i < 2000; i++) {
		uint64_t chunk = any(CHUNKS), off = any(CHUNK), bytes = any(i % 4 ? 3000 : CHUNK - off + 1);
		uint64_t at = FIRST + chunk * STEP + off, k = any(64);

		bytes = bytes > CHUNK - off ? CHUNK - off : bytes;
		to[k + bytes] = 0xa5;
		assert_int_equal(copy(&f, to + k, at, bytes), SUMMED_COPIED);
		assert_memory_equal(to + k, f.bytes + at, bytes);
		assert_int_equal(to[k + bytes], 0xa5);
	}
	free(f.bytes);
	free(to);
}

/* The bit may lie outside of the bytes that are copied, but in a block of theirs. */
static void test_flipped_bits(void **state)
{
	uint8_t *to = malloc(CHUNK);
	struct file f;

	(void)state;
	make(&f);
	for (int i = 0; i < 2000; i++) {
		uint64_t chunk = any(CHUNKS), off = any(CHUNK), bytes = 1 + any(i % 4 ? 3000 : CHUNK - off);
		uint64_t begin = off / BLOCK * BLOCK, end, bad;
		uint8_t *byte;

		bytes = bytes > CHUNK - off ? CHUNK - off : bytes;
		end = (off + bytes + BLOCK - 1) / BLOCK * BLOCK;
		end = end > CHUNK ? CHUNK : end;
		bad = begin + any(end - begin);
		byte = &f.bytes[FIRST + chunk * STEP + bad];
		*byte ^= (uint8_t)(1u << any(8));
		f.summed.seen = 0; /* as for each message */
		assert_int_equal(copy(&f, to, FIRST + chunk * STEP + off, bytes), SUMMED_DAMAGED);
		f.summed.seen = 0;
		if (bad >= BLOCK)
			assert_int_equal(copy(&f, to, FIRST + chunk * STEP, 1), SUMMED_COPIED);
		*byte = (uint8_t)((FIRST + chunk * STEP + bad) * UINT64_C(0x9e3779b97f4a7c15) >> 37);
		assert_int_equal(copy(&f, to, FIRST + chunk * STEP + off, bytes), SUMMED_COPIED);
	}
	free(f.bytes);
	free(to);
}

/* A block that did not match is not remembered as one that did. */
static void test_a_bad_block_stays_bad(void **state)
{
	uint8_t to[8];
	struct file f;

	(void)state;
	make(&f);
	f.bytes[FIRST + 100] ^= 1;
	for (int i = 0; i < 3; i++)
		assert_int_equal(copy(&f, to, FIRST + 8, sizeof to), SUMMED_DAMAGED);
	free(f.bytes);
}

static void test_elsewhere(void **state)
{
	uint8_t *to = malloc(2 * STEP);
	struct file f;

	(void)state;
	make(&f);
	assert_int_equal(copy(&f, to, 0, 8), SUMMED_ELSEWHERE);
	assert_int_equal(copy(&f, to, FIRST + CHUNK - 8, 16), SUMMED_ELSEWHERE);
	assert_int_equal(copy(&f, to, FIRST + CHUNK, 1), SUMMED_ELSEWHERE);
	assert_int_equal(copy(&f, to, FIRST + CHUNKS * STEP, 1), SUMMED_ELSEWHERE);
	assert_int_equal(copy(&f, to, UINT64_MAX, 1), SUMMED_ELSEWHERE);
	f.summed.map_bytes = FIRST + BLOCK + 8;
	assert_int_equal(copy(&f, to, FIRST, BLOCK), SUMMED_COPIED);
	assert_int_equal(copy(&f, to, FIRST + BLOCK, 4), SUMMED_ELSEWHERE);
	f.summed.nchunks = 0;
	assert_int_equal(copy(&f, to, FIRST, 1), SUMMED_ELSEWHERE);
	free(f.bytes);
	free(to);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_copies), cmocka_unit_test(test_flipped_bits),
					    cmocka_unit_test(test_a_bad_block_stays_bad),
					    cmocka_unit_test(test_elsewhere) };

	return ptc_summed_able() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
