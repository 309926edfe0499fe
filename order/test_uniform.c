/* SPDX-License-Identifier: Apache-2.0 */
/* Are the orders drawn evenly? Chi-square tests over many seeds or epochs, each turned into a standard normal z by
 * Wilson and Hilferty's cube root. |z| >= 5 fails: by chance 6 in 10 million per statistic, for fewer than 100
 * statistics less than 1 in 16,000; and since the seeds are fixed, a run that passed passes again.
 * What each statistic is for is shown by generators that it must refuse. */
#include "order/order.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define LIMIT 5.0

/* A source of permutations: writes the one with this number. */
typedef void source_fn(uint64_t n, uint64_t number, uint64_t *ret);

static void by_seed(uint64_t n, uint64_t number, uint64_t *ret)
{
	struct ptc_order o;

	assert_true(ptc_order_init(&o, n, number) && ptc_order_fill(&o, 0, n, ret));
}

static void by_epoch(uint64_t n, uint64_t number, uint64_t *ret)
{
	struct ptc_order o;

	assert_true(ptc_order_init(&o, n, 5) && ptc_order_fill(&o, number * n, n, ret));
}

/* What an epoch does to the order of the one before: each sample's place then, in the order of now. */
static void between_epochs(uint64_t n, uint64_t number, uint64_t *ret)
{
	struct ptc_order o;

	assert_true(ptc_order_init(&o, n, 11));
	for (uint64_t i = 0; i < n; i++)
		ret[i] = ptc_order_find(&o, number, ptc_order_at(&o, number + 1, i));
}

static void between_seeds(uint64_t n, uint64_t number, uint64_t *ret)
{
	struct ptc_order a, b;

	assert_true(ptc_order_init(&a, n, number) && ptc_order_init(&b, n, number + 1));
	for (uint64_t i = 0; i < n; i++)
		ret[i] = ptc_order_find(&a, 0, ptc_order_at(&b, 0, i));
}

/* Not uniform: n of the n! permutations. Each sample is at each place equally often, so only permutations show it. */
static void rotation(uint64_t n, uint64_t number, uint64_t *ret)
{
	for (uint64_t i = 0; i < n; i++)
		ret[i] = (i + number) % n;
}

/* Not uniform: the wrong shuffle that swaps each place with any other. */
static void naive(uint64_t n, uint64_t number, uint64_t *ret)
{
	uint64_t dice[64];
	struct ptc_order o;

	assert_true(n <= 64 && ptc_order_init(&o, UINT64_C(1) << 62, number) && ptc_order_fill(&o, 0, n, dice));
	for (uint64_t i = 0; i < n; i++)
		ret[i] = i;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t j = dice[i] % n, t = ret[i];

		ret[i] = ret[j];
		ret[j] = t;
	}
}

static double z_of(double chi, double df)
{
	return (cbrt(chi / df) - (1 - 2 / (9 * df))) / sqrt(2 / (9 * df));
}

/* All n! permutations equally often. */
static double z_permutations(source_fn *source, uint64_t n, uint64_t per_cell)
{
	uint64_t cells = 1, p[8], draws;
	double chi = 0;
	unsigned *seen;

	for (uint64_t i = 2; i <= n; i++)
		cells *= i;
	draws = cells * per_cell;
	seen = calloc(cells, sizeof *seen);
	assert_non_null(seen);
	for (uint64_t k = 0; k < draws; k++) {
		uint64_t rank = 0;

		source(n, k, p);
		for (uint64_t i = 0; i < n; i++) {
			uint64_t less = 0;

			for (uint64_t j = i + 1; j < n; j++)
				less += p[j] < p[i];
			rank = rank * (n - i) + less;
		}
		seen[rank]++;
	}
	for (uint64_t c = 0; c < cells; c++)
		chi += pow((double)seen[c] - (double)per_cell, 2) / (double)per_cell;
	free(seen);
	return z_of(chi, (double)cells - 1);
}

/* Each sample at each place equally often. A permutation matrix has (n-1)^2 degrees of freedom, and the sum over its
 * cells is n/(n-1) times a chi-square. */
static double z_places(source_fn *source, uint64_t n, uint64_t per_cell)
{
	uint64_t *p = calloc(n, sizeof *p);
	unsigned *seen = calloc(n * n, sizeof *seen);
	double chi = 0, expected = (double)per_cell;

	assert_true(p && seen);
	for (uint64_t k = 0; k < n * per_cell; k++) {
		source(n, k, p);
		for (uint64_t i = 0; i < n; i++)
			seen[i * n + p[i]]++;
	}
	for (uint64_t c = 0; c < n * n; c++)
		chi += pow((double)seen[c] - expected, 2) / expected;
	free(p);
	free(seen);
	return z_of(chi * (double)(n - 1) / (double)n, (double)(n - 1) * (double)(n - 1));
}

/* One large order, some places from its start: for 16 ranges of the earlier and 16 of the later of two neighbours, or
 * of the place and its sample. */
static double z_cells(uint64_t n, uint64_t seed, uint64_t count, bool neighbours)
{
	double chi = 0, expected = (double)count / 256, range = (double)n / 16;
	unsigned seen[256] = { 0 };
	struct ptc_order o;

	assert_true(ptc_order_init(&o, n, seed));
	for (uint64_t k = 0; k < count; k++) {
		uint64_t i = neighbours ? k : (uint64_t)((double)k * ((double)n / (double)count)),
			 x = ptc_order_at(&o, 0, i);
		uint64_t y = neighbours ? ptc_order_at(&o, 0, i + 1) : i;

		seen[(int)((double)x / range) * 16 + (int)((double)y / range)]++;
	}
	for (int c = 0; c < 256; c++)
		chi += pow((double)seen[c] - expected, 2) / expected;
	return z_of(chi, neighbours ? 255 : 240); /* places are spread evenly: 16 sums are given */
}

/* Half of all orders are odd permutations. A network of two odd sides would have none of them. */
static double z_parity(uint64_t n, uint64_t draws)
{
	uint64_t odd = 0, p[256];

	assert_true(n <= 256);
	for (uint64_t k = 0; k < draws; k++) {
		uint64_t swaps = 0;

		by_seed(n, k, p);
		for (uint64_t i = 0; i < n; i++)
			while (p[i] != i) { /* put one sample in its place: one transposition */
				uint64_t x = p[i];

				p[i] = p[x];
				p[x] = x;
				swaps++;
			}
		odd += swaps & 1;
	}
	return ((double)odd - (double)draws / 2) / sqrt((double)draws / 4);
}

static void even(const char *what, uint64_t n, double z)
{
	print_message("%s n=%llu: z=%.2f\n", what, (unsigned long long)n, z);
	assert_true(fabs(z) < LIMIT);
}

static void uneven(const char *what, double z)
{
	print_message("%s: z=%.2f\n", what, z);
	assert_true(z >= LIMIT);
}

static void test_permutations(void **state)
{
	static source_fn *const sources[] = { by_seed, by_epoch, between_epochs, between_seeds };
	static const char *const names[] = { "seeds", "epochs", "between epochs", "between seeds" };

	for (int s = 0; s < 4; s++) {
		even(names[s], 2, z_permutations(sources[s], 2, 10000));
		even(names[s], 3, z_permutations(sources[s], 3, 5000));
		even(names[s], 4, z_permutations(sources[s], 4, 2000));
		even(names[s], 5, z_permutations(sources[s], 5, 200));
		even(names[s], 6, z_permutations(sources[s], 6, 50));
	}
	even("seeds", 7, z_permutations(by_seed, 7, 20));
	uneven("rotations of 4", z_permutations(rotation, 4, 2000));
	uneven("naive shuffles of 4", z_permutations(naive, 4, 2000));
}

static void test_places(void **state)
{
	static const uint64_t sizes[] = { 2, 3, 5, 7, 8, 9, 16, 17, 31, 49, 63, 64, 65, 81, 100, 128 };

	for (int i = 0; i < 16; i++) {
		even("places by seed", sizes[i], z_places(by_seed, sizes[i], 30));
		even("places by epoch", sizes[i], z_places(by_epoch, sizes[i], 30));
	}
	uneven("places of naive shuffles of 16", z_places(naive, 16, 100));
}

static void test_parity(void **state)
{
	static const uint64_t sizes[] = { 9, 64, 81, 100, 121, 225 };

	for (int i = 0; i < 6; i++)
		even("parity", sizes[i], z_parity(sizes[i], 2000));
}

static void test_large(void **state)
{
	static const uint64_t sizes[] = { 10007, 1 << 16, 1000003, UINT64_C(1) << 40, PTC_ORDER_MAX };

	for (int i = 0; i < 5; i++) {
		even("places and samples", sizes[i], z_cells(sizes[i], 1, 10000, false));
		even("neighbours", sizes[i], z_cells(sizes[i], 2, 10000, true));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_permutations),
		cmocka_unit_test(test_places),
		cmocka_unit_test(test_parity),
		cmocka_unit_test(test_large),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
