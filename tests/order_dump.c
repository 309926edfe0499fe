/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what order/ computes, for tests/test_order.py. A line of numbers in, a line out:
 *   at NSAMPLES SEED SHUFFLED EPOCH FIRST COUNT                      the samples at these places
 *   find NSAMPLES SEED SHUFFLED EPOCH FIRST COUNT                    the places of these samples
 *   batch NSAMPLES SEED SHUFFLED GLOBAL MICRO DP POSITION MICRO_STEP RANK     sample:weight of each slot
 * "refused" where order/ refuses. Failure modes: a line it does not understand ends it with 2. */
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

static void print_batch(const uint64_t *v)
{
	static uint64_t samples[MAX_SLOTS];
	static float weights[MAX_SLOTS];
	struct ptc_batch b;
	struct ptc_order o;

	if (!make(&o, v) || !ptc_batch_init(&b, v[3], (uint32_t)v[4], (uint32_t)v[5]) || b.micro > MAX_SLOTS ||
	    !ptc_batch_fill(&b, &o, v[6], v[7], (uint32_t)v[8], samples, weights)) {
		printf("refused");
		return;
	}
	for (uint32_t k = 0; k < b.micro; k++)
		printf("%" PRIu64 ":%g ", samples[k], (double)weights[k]);
}

int main(void)
{
	char line[512];

	while (fgets(line, sizeof(line), stdin)) {
		char *rest = NULL, *word = strtok_r(line, " \n", &rest);
		uint64_t v[9] = { 0 };
		int n = 0;

		for (char *t; n < 9 && (t = strtok_r(NULL, " \n", &rest)); n++)
			v[n] = strtoull(t, NULL, 10);
		if (word && !strcmp(word, "batch") && n == 9)
			print_batch(v);
		else if (word && (!strcmp(word, "at") || !strcmp(word, "find")) && n == 6)
			print_at(word[0] == 'f', v);
		else
			return 2;
		printf("\n");
	}
	return 0;
}
