/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what order/ computes, for tests/test_order.py. A line of numbers in, a line out:
 *   at NSAMPLES SEED SHUFFLED EPOCH FIRST COUNT                      the samples at these places
 *   find NSAMPLES SEED SHUFFLED EPOCH FIRST COUNT                    the places of these samples
 *   batch NSAMPLES SEED SHUFFLED GLOBAL MICRO DP POSITION MICRO_STEP RANK     sample:weight of each slot
 *   blocks NSAMPLES SEED BLOCK EPOCH FIRST COUNT      samples of ptc_order_fill, those of _at, then their places
 *   mix SEED FIRST COUNT (NSAMPLES WEIGHT SHUFFLED BLOCK)...         part:sample:before:id of each position
 *   balance LINEAR SQUARE MICRO DP LENGTH...          max:total:count_max:count_total, then each slot's content
 *   slices LENGTH CP RULE                             first:length:real of each rank's pieces, rank after rank
 *   count SEED POSITION 0 (NSAMPLES WEIGHT SHUFFLED BLOCK)...        how many samples of each part
 *
 * If order/ refuses, the line is "refused". Failure modes: a line that it does not understand ends it with status 2. */
#include "order/order.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SLOTS 4096

static bool make(struct ptc_order *o, const uint64_t *v)
{
	return v[2] ? ptc_order_init(o, v[0], v[1]) : ptc_order_init_sequential(o, v[0]);
}

static void print_at(bool find, const uint64_t *v)
{
	struct ptc_order o;

	if (!make(&o, v)) {
		printf("refused");
		return;
	}
	for (uint64_t i = v[4]; i < v[4] + v[5]; i++)
		printf("%" PRIu64 " ", find ? ptc_order_find(&o, v[3], i) : ptc_order_at(&o, v[3], i));
}

/* Behind the nine numbers: for each run its ranks and its micro steps. */
static void print_batch(const uint64_t *v, int n)
{
	static uint64_t samples[MAX_SLOTS];
	static float weights[MAX_SLOTS];
	struct ptc_micro_runs runs = { 0 };
	struct ptc_batch b;
	struct ptc_order o;

	for (int i = 9; i + 1 < n && runs.n < PTC_MICRO_RUNS_MAX; i += 2)
		runs.v[runs.n++] = (struct ptc_micro_run){ (uint32_t)v[i], (uint32_t)v[i + 1] };
	if (!make(&o, v) ||
	    !(runs.n ? ptc_batch_init_runs(&b, v[3], (uint32_t)v[4], (uint32_t)v[5], &runs)
		     : ptc_batch_init(&b, v[3], (uint32_t)v[4], (uint32_t)v[5])) ||
	    b.micro > MAX_SLOTS || !ptc_batch_fill(&b, &o, v[6], v[7], (uint32_t)v[8], samples, weights)) {
		printf("refused");
		return;
	}
	for (uint32_t k = 0; k < b.micro; k++)
		printf("%" PRIu64 ":%g ", samples[k], (double)weights[k]);
}

static void print_blocks(const uint64_t *v)
{
	static uint64_t samples[MAX_SLOTS];
	struct ptc_order o;

	if (v[5] > MAX_SLOTS || !ptc_order_init_blocks(&o, v[0], v[1], v[2]) ||
	    !ptc_order_fill(&o, v[3] * v[0] + v[4], v[5], samples)) {
		printf("refused");
		return;
	}
	for (uint64_t k = 0; k < v[5]; k++)
		printf("%" PRIu64 " ", samples[k]);
	for (uint64_t k = 0; k < v[5]; k++) {
		uint64_t p = v[3] * v[0] + v[4] + k, x = ptc_order_at(&o, p / v[0], p % v[0]);

		printf("%" PRIu64 " %" PRIu64 " ", x, ptc_order_find(&o, p / v[0], x));
	}
}

static void print_mix(bool count, const uint64_t *v, int n)
{
	struct ptc_mix_part parts[PTC_MIX_MAX + 1];
	struct ptc_mix m;
	uint32_t k = 0;

	for (const uint64_t *p = v + 3; p + 3 < v + n; p += 4)
		parts[k++] = (struct ptc_mix_part){
			.nsamples = p[0], .weight = (uint32_t)p[1], .sequential = !p[2], .block = p[3]
		};
	if (!ptc_mix_init(&m, parts, k, v[0])) {
		printf("refused");
		return;
	}
	for (uint32_t i = 0; count && i < k; i++)
		printf("%" PRIu64 " ", ptc_mix_count(&m, i, v[1]));
	for (uint64_t p = v[1]; !count && p < v[1] + v[2]; p++) {
		struct ptc_mix_sample s = ptc_mix_at(&m, p);

		printf("%u:%" PRIu64 ":%" PRIu64 ":%" PRIu64 " ", s.part, s.sample, s.before, s.id);
	}
}

static void print_balance(const uint64_t *v, int n)
{
	static struct ptc_balance_item work[3 * MAX_SLOTS];
	static uint64_t slots[MAX_SLOTS];
	struct ptc_batch_cost got;
	struct ptc_batch b;

	if (!ptc_batch_init(&b, (uint64_t)n - 4, (uint32_t)v[2], (uint32_t)v[3]) || b.n_micro * b.width > MAX_SLOTS ||
	    !ptc_batch_balance(&b, v + 4, (struct ptc_cost){ v[0], v[1] }, work, slots, &got)) {
		printf("refused");
		return;
	}
	printf("%" PRIu64 ":%" PRIu64 ":%" PRIu64 ":%" PRIu64 " ", got.max, got.total, got.count_max, got.count_total);
	for (uint64_t s = 0; s < b.n_micro * b.width; s++)
		printf("%" PRIu64 " ", slots[s]);
}

static void print_slices(const uint64_t *v)
{
	struct ptc_chunk s[2];
	uint32_t rank = 0, n;

	for (; (n = ptc_order_chunks(v[0], (uint32_t)v[1], rank, v[2], s)) > 0; rank++)
		for (uint32_t i = 0; i < n; i++)
			printf("%" PRIu64 ":%" PRIu64 ":%" PRIu64 " ", s[i].first, s[i].length, s[i].real);
	if (!rank)
		printf("refused");
}

int main(void)
{
	char line[16384];

	while (fgets(line, sizeof(line), stdin)) {
		char *rest = NULL, *word = strtok_r(line, " \n", &rest);
		uint64_t v[3 + 4 * (PTC_MIX_MAX + 1)] = { 0 };
		int n = 0;

		for (char *t; n < (int)(sizeof v / sizeof v[0]) && (t = strtok_r(NULL, " \n", &rest)); n++)
			v[n] = strtoull(t, NULL, 10);
		if (word && !strcmp(word, "batch") && n >= 9)
			print_batch(v, n);
		else if (word && (!strcmp(word, "at") || !strcmp(word, "find")) && n == 6)
			print_at(word[0] == 'f', v);
		else if (word && !strcmp(word, "blocks") && n == 6)
			print_blocks(v);
		else if (word && !strcmp(word, "balance") && n >= 4)
			print_balance(v, n);
		else if (word && !strcmp(word, "slices") && n == 3)
			print_slices(v);
		else if (word && (!strcmp(word, "mix") || !strcmp(word, "count")))
			print_mix(word[0] == 'c', v, n);
		else
			return 2;
		printf("\n");
	}
	return 0;
}
