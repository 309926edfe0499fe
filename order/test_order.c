/* SPDX-License-Identifier: Apache-2.0 */
/* The order is a permutation with an inverse at every size, the job's position runs through it, and every way to divide
 * a global batch hands out each of its samples once. By brute force; that the numbers are those of docs/order.md is
 * tested from Python (tests/test_order.py). Seed: drawn, printed; PTC_TEST_SEED repeats it. */
#include "order/order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include <cmocka.h>

static uint64_t rng;

static uint64_t rnd(uint64_t n) /* 0..n-1 */
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (rng * UINT64_C(0x2545F4914F6CDD1D) >> 1) % n;
}

/* As base/test_seed.h does it, which this folder may not include. */
static uint64_t drawn_seed(void)
{
	static uint64_t seed;
	const char *given = getenv("PTC_TEST_SEED"), *run = getenv("PTC_TEST_SEEDS");
	uint32_t drawn = (uint32_t)time(NULL);

	if (seed)
		return seed;
	if (getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn)
		drawn ^= (uint32_t)clock();
	seed = given ? strtoull(given, NULL, 0) : run ? strtoull(run, NULL, 0) : drawn;
	print_message("seed %llu (repeat with PTC_TEST_SEED=%llu)\n", (unsigned long long)seed,
		      (unsigned long long)seed);
	return seed;
}

static void seed_begin(uint64_t n)
{
	rng = drawn_seed() * UINT64_C(0x9E3779B97F4A7C15) + n * 7919 + 1;
}

static struct ptc_order make(uint64_t n, uint64_t seed)
{
	struct ptc_order o;

	assert_true(ptc_order_init(&o, n, seed));
	return o;
}

/* Frozen: these numbers are in the stored state of every job that began with them. */
static void test_golden(void **state)
{
	static const uint64_t ten[] = { 8, 9, 0, 3, 5, 2, 6, 4, 7, 1, 3, 2, 0, 4, 9, 6, 1, 7, 8, 5 };
	struct ptc_order o = make(10, 42);

	for (uint64_t i = 0; i < 10; i++) {
		assert_int_equal(ptc_order_at(&o, 0, i), ten[i]);
		assert_int_equal(ptc_order_at(&o, 1, i), ten[10 + i]);
	}
	o = make(UINT64_C(1000000007), 7);
	assert_int_equal(ptc_order_at(&o, 3, 123456789), 324902038);
	o = make(PTC_ORDER_MAX, UINT64_MAX);
	assert_int_equal(ptc_order_at(&o, UINT64_MAX, PTC_ORDER_MAX - 1), UINT64_C(2794455736263274403));
}

static void test_refusals(void **state)
{
	struct ptc_order o, before;
	struct ptc_batch b, batch_before;
	uint64_t samples[4] = { 1, 2, 3, 4 }, offset;
	float weights[4] = { 5, 5, 5, 5 };

	memset(&o, 0x5a, sizeof(o));
	memset(&b, 0x5a, sizeof(b));
	before = o;
	batch_before = b;
	assert_false(ptc_order_init(&o, 0, 1));
	assert_false(ptc_order_init(&o, PTC_ORDER_MAX + 1, 1));
	assert_false(ptc_order_init_sequential(&o, 0));
	assert_memory_equal(&o, &before, sizeof(o));
	assert_false(ptc_batch_init(&b, 0, 1, 1));
	assert_false(ptc_batch_init(&b, 1, 0, 1));
	assert_false(ptc_batch_init(&b, 1, 1, 0));
	assert_false(ptc_batch_init(&b, PTC_ORDER_MAX + 1, 1, 1));
	assert_false(ptc_batch_init(&b, 1, UINT32_MAX, UINT32_MAX));
	assert_memory_equal(&b, &batch_before, sizeof(b));

	o = make(10, 1);
	assert_true(ptc_order_at(&o, 0, 10) == PTC_ORDER_NONE && ptc_order_find(&o, 0, 10) == PTC_ORDER_NONE);
	assert_false(ptc_order_fill(&o, UINT64_MAX - 3, 4, samples));
	assert_true(ptc_batch_init(&b, 6, 2, 2));
	assert_false(ptc_batch_fill(&b, &o, 0, 2, 0, samples, weights));
	assert_false(ptc_batch_fill(&b, &o, 0, 0, 2, samples, weights));
	assert_false(ptc_batch_fill(&b, &o, UINT64_MAX - 5, 0, 0, samples, weights));
	assert_true(samples[0] == 1 && weights[0] == 5.0f);
	assert_true(ptc_batch_fill(&b, &o, UINT64_MAX - 6, 1, 1, samples, weights)); /* the last that fits */
	assert_false(ptc_batch_slot(&b, 2, 0, 0, &offset) || offset != PTC_ORDER_NONE);
	assert_false(ptc_batch_slot(&b, 0, 2, 0, &offset) || offset != PTC_ORDER_NONE);
	assert_false(ptc_batch_slot(&b, 0, 0, 2, &offset) || offset != PTC_ORDER_NONE);
}

/* Every size up to 600, and around squares and powers of two: each place has its own sample, and finds back. */
static void check_permutation(uint64_t n, uint64_t seed, uint64_t epoch)
{
	struct ptc_order o = make(n, seed);
	uint64_t *place = calloc(n, sizeof *place);

	assert_non_null(place);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t x = ptc_order_at(&o, epoch, i);

		assert_true(x < n && !place[x]);
		place[x] = i + 1;
		if (ptc_order_find(&o, epoch, x) != i)
			fail_msg("n=%llu seed=%llu epoch=%llu: %llu is not found", (unsigned long long)n,
				 (unsigned long long)seed, (unsigned long long)epoch, (unsigned long long)x);
	}
	free(place);
}

static void test_permutation(void **state)
{
	seed_begin(1);
	for (uint64_t n = 1; n <= 600; n++)
		check_permutation(n, rnd(UINT64_MAX), rnd(3));
	for (uint64_t n = 1 << 10; n <= 1 << 14; n <<= 1)
		for (uint64_t d = 0; d < 3; d++)
			check_permutation(n + d - 1, rnd(10), rnd(UINT64_MAX));
	for (uint64_t r = 31; r <= 127; r += 24)
		for (uint64_t d = 0; d < 3; d++)
			check_permutation(r * r + d - 1, rnd(UINT64_MAX), rnd(10));
}

static void check_large(uint64_t n)
{
	struct ptc_order o = make(n, rnd(UINT64_MAX));
	uint64_t epoch = rnd(UINT64_MAX);

	assert_true(o.rows <= UINT64_C(1) << 32 && o.columns <= UINT64_C(1) << 32);
	assert_true(o.rows * o.columns >= n && o.rows * o.columns - n < o.rows);
	for (int k = 0; k < 20; k++) {
		uint64_t i = k < 10 ? rnd(n) : k < 15 ? (uint64_t)k - 10 : n - 1 - ((uint64_t)k - 15);
		uint64_t x = ptc_order_at(&o, epoch, i);

		assert_true(x < n);
		assert_int_equal(ptc_order_find(&o, epoch, x), i);
		assert_int_equal(ptc_order_at(&o, epoch, ptc_order_find(&o, epoch, i)), i);
	}
}

static void test_large(void **state)
{
	seed_begin(2);
	for (int bits = 10; bits <= 63; bits++)
		for (int k = 0; k < 10; k++)
			check_large((UINT64_C(1) << bits) - (bits == 63 ? rnd(100) : 0) + (bits < 63 ? rnd(100) : 0));
	for (int k = 0; k < 100; k++) {
		uint64_t r = UINT64_C(3037000499) - rnd(1 << 20);

		check_large(r * r + rnd(3) - 1);
	}
	check_large(PTC_ORDER_MAX);
}

static void test_position(void **state)
{
	uint64_t got[200];
	struct ptc_order o;

	seed_begin(3);
	for (int k = 0; k < 2000; k++) {
		uint64_t n = 1 + rnd(40), count = rnd(200);
		uint64_t position = rnd(2) ? rnd(1000) : UINT64_MAX - count - rnd(100);

		if (rnd(4))
			o = make(n, rnd(100));
		else
			assert_true(ptc_order_init_sequential(&o, n));
		assert_true(ptc_order_fill(&o, position, count, got));
		for (uint64_t i = 0; i < count; i++)
			assert_int_equal(got[i], ptc_order_at(&o, (position + i) / n, (position + i) % n));
		for (uint64_t i = 0; !o.shuffled && i < count; i++)
			assert_int_equal(got[i], (position + i) % n);
	}
}

/* docs/order.md's table: 10 samples, 2 slots, 4 ranks. */
static void test_table(void **state)
{
	static const int want[2][4][2] = { { { 0, 1 }, { 2, 3 }, { 4, 5 }, { 6, 7 } },
					   { { 8, 9 }, { -1, -2 }, { -3, -4 }, { -5, -6 } } };
	struct ptc_batch b;
	uint64_t offset;

	assert_true(ptc_batch_init(&b, 10, 2, 4));
	assert_int_equal(b.n_micro, 2);
	for (uint32_t m = 0; m < 2; m++)
		for (uint32_t r = 0; r < 4; r++)
			for (uint32_t k = 0; k < 2; k++) {
				int w = want[m][r][k];

				assert_int_equal(ptc_batch_slot(&b, m, r, k, &offset), w >= 0);
				assert_int_equal(offset, w >= 0 ? w : -w - 1);
			}
}

/* Counts over all slots of a batch: each offset once with weight 1; what a rank gets in bulk is what its slots say. */
static void check_batch(const struct ptc_batch *b, const struct ptc_order *o, uint64_t position)
{
	unsigned *seen = calloc(b->global, sizeof *seen);
	uint64_t *samples = calloc(b->micro, sizeof *samples), slots = 0, real = 0, offset;
	float *weights = calloc(b->micro, sizeof *weights);

	assert_true(seen && samples && weights);
	for (uint64_t m = 0; m < b->n_micro; m++)
		for (uint32_t r = 0; r < b->dp; r++) {
			assert_true(ptc_batch_fill(b, o, position, m, r, samples, weights));
			for (uint32_t k = 0; k < b->micro; k++, slots++) {
				bool is_real = ptc_batch_slot(b, m, r, k, &offset);
				uint64_t p = position + offset;

				assert_true(offset < b->global);
				assert_int_equal(samples[k], ptc_order_at(o, p / o->nsamples, p % o->nsamples));
				assert_true(weights[k] == (is_real ? 1.0f : 0.0f));
				seen[offset] += is_real;
				real += is_real;
			}
		}
	assert_int_equal(real, b->global);
	for (uint64_t i = 0; i < b->global; i++)
		assert_int_equal(seen[i], 1);
	/* No more micro steps than needed, and all ranks run the same number. */
	assert_int_equal(slots, b->n_micro * b->micro * b->dp);
	assert_true(slots >= b->global && slots - b->global < (uint64_t)b->micro * b->dp);
	free(seen);
	free(samples);
	free(weights);
}

static void test_batches(void **state)
{
	seed_begin(4);
	for (int k = 0; k < 3000; k++) {
		struct ptc_order o = make(1 + rnd(rnd(2) ? 10 : 1000), rnd(1000));
		struct ptc_batch b;

		assert_true(ptc_batch_init(&b, 1 + rnd(rnd(2) ? 8 : 150), 1 + (uint32_t)rnd(9), 1 + (uint32_t)rnd(9)));
		check_batch(&b, &o, rnd(5000));
	}
}

/* By what samples cost: each slot is written, each sample is real once, and what is said of costs is so. */
static void check_balance(const struct ptc_batch *b, uint64_t longest)
{
	uint64_t slots = b->n_micro * b->width, work = ptc_balance_work(b), *lengths = calloc(b->global, 8);
	uint64_t *had = malloc(slots * 8), *cost = calloc(b->dp, 8), *seen = calloc(b->global, 8), max = 0, total = 0;
	struct ptc_balance_item *items = calloc(work, sizeof *items);
	struct ptc_cost c = { rnd(1000), rnd(10) };
	struct ptc_batch_cost got;

	assert_true(lengths && had && cost && seen && items);
	for (uint64_t i = 0; i < b->global; i++)
		lengths[i] = rnd(longest);
	memset(had, 0xff, slots * 8);
	assert_true(ptc_batch_balance(b, lengths, c, items, had, &got));
	for (uint64_t s = 0; s < slots; s++) {
		uint64_t i = had[s] % b->global, x = c.linear * lengths[i] + c.square * lengths[i] * lengths[i];

		assert_true(had[s] < 2 * b->global);
		seen[i] += had[s] < b->global;
		total += x;
		cost[s % b->width / b->micro] += x;
	}
	for (uint64_t i = 0; i < b->global; i++)
		assert_int_equal(seen[i], 1);
	for (uint32_t d = 0; d < b->dp; d++)
		max = cost[d] > max ? cost[d] : max;
	assert_true(got.max == max && got.total == total && max <= got.count_max);
	free(lengths);
	free(had);
	free(cost);
	free(seen);
	free(items);
}

static void test_balance(void **state)
{
	struct ptc_batch b;

	seed_begin(6);
	for (int k = 0; k < 1000; k++) {
		assert_true(ptc_batch_init(&b, 1 + rnd(rnd(2) ? 8 : 150), 1 + (uint32_t)rnd(9), 1 + (uint32_t)rnd(9)));
		check_balance(&b, 1 + rnd(rnd(2) ? 5 : 100000));
	}
	assert_true(ptc_batch_init(&b, 100000, 2, 1024));
	check_balance(&b, 8192);
	assert_true(ptc_batch_init(&b, PTC_ORDER_MAX, 1, 1));
	assert_int_equal(ptc_balance_work(&b), 0);
}

/* A job that changes dp and micro batch at random consumes what a single process does, over epochs' ends. */
static void test_job(void **state)
{
	seed_begin(5);
	for (int job = 0; job < 100; job++) {
		uint64_t n = 1 + rnd(200), global = 1 + rnd(60), position = 0, offset;
		struct ptc_order o = make(n, rnd(1000));
		unsigned *seen = calloc(n, sizeof *seen);
		struct ptc_batch b;

		for (int step = 0; step < 20; step++, position += global) {
			assert_true(ptc_batch_init(&b, global, 1 + (uint32_t)rnd(5), 1 + (uint32_t)rnd(7)));
			for (uint64_t m = 0; m < b.n_micro; m++)
				for (uint32_t r = 0; r < b.dp; r++)
					for (uint32_t k = 0; k < b.micro; k++)
						if (ptc_batch_slot(&b, m, r, k, &offset)) {
							uint64_t x;

							assert_true(ptc_order_fill(&o, position + offset, 1, &x));
							seen[x]++;
						}
		}
		/* Whole epochs give each sample equally often; the last, begun one, at most once more. */
		for (uint64_t x = 0; x < n; x++)
			assert_true(seen[x] == position / n || (seen[x] == position / n + 1 &&
								ptc_order_find(&o, position / n, x) < position % n));
		free(seen);
	}
}

/* Where sums come near 64 bits: what exists has an offset inside the batch, what does not is refused. */
static void test_extremes(void **state)
{
	static const uint64_t globals[] = { 1, 2, UINT32_MAX, PTC_ORDER_MAX - 1, PTC_ORDER_MAX };
	static const uint32_t sides[] = { 1, 3, 1u << 31, UINT32_MAX };
	struct ptc_batch b;
	uint64_t offset;

	for (int g = 0; g < 5; g++)
		for (int i = 0; i < 4; i++)
			for (int j = 0; j < 4; j++) {
				uint32_t micro = sides[i], dp = sides[j];
				unsigned __int128 width = (unsigned __int128)micro * dp, last;

				if (!ptc_batch_init(&b, globals[g], micro, dp)) {
					assert_true(width > PTC_ORDER_MAX);
					continue;
				}
				last = b.n_micro * width - 1;
				assert_true(b.n_micro * width >= globals[g] && (b.n_micro - 1) * width < globals[g]);
				assert_int_equal(ptc_batch_slot(&b, b.n_micro - 1, dp - 1, micro - 1, &offset),
						 last < globals[g]);
				assert_true(offset == (uint64_t)(last % globals[g]));
				assert_true(ptc_batch_slot(&b, 0, 0, 0, &offset) && offset == 0);
				assert_false(ptc_batch_slot(&b, b.n_micro, 0, 0, &offset));
			}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden),  cmocka_unit_test(test_refusals), cmocka_unit_test(test_permutation),
		cmocka_unit_test(test_large),   cmocka_unit_test(test_position), cmocka_unit_test(test_table),
		cmocka_unit_test(test_batches), cmocka_unit_test(test_job),      cmocka_unit_test(test_extremes),
		cmocka_unit_test(test_balance),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
