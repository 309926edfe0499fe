/* SPDX-License-Identifier: Apache-2.0 */
/* The seed of a test's random cases, and how many they are. Each run draws a new seed and prints it once; PTC_TEST_SEED
 * repeats a run. In a run of all tests (scripts/test), the seed follows from PTC_TEST_SEEDS and the test's name. So a
 * test that is tried again draws the same cases. For test programs only; any thread. There are no failure modes. */
#pragma once

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

static uint64_t ptc_test_seed_drawn;

/* FNV-1a */
static inline uint64_t ptc_test_seed_hash(uint64_t h, const char *text)
{
	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
	return h;
}

static inline void ptc_test_seed_draw(void)
{
	const char *given = getenv("PTC_TEST_SEED"), *run = getenv("PTC_TEST_SEEDS");
	uint32_t drawn = (uint32_t)time(NULL);

	if (given && *given) {
		ptc_test_seed_drawn = strtoull(given, NULL, 0);
	} else if (run && *run) {
		ptc_test_seed_drawn = ptc_test_seed_hash(ptc_test_seed_hash(UINT64_C(0xcbf29ce484222325), run),
							 program_invocation_short_name) >>
				      32;
	} else {
		if (getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn)
			drawn ^= (uint32_t)clock();
		ptc_test_seed_drawn = drawn;
	}
	printf("seed %llu (repeat with PTC_TEST_SEED=%llu)\n", (unsigned long long)ptc_test_seed_drawn,
	       (unsigned long long)ptc_test_seed_drawn);
	fflush(stdout);
}

/* How much of a random campaign runs: usual in CI, more in scripts/test --full (PTC_TEST_LONG), all with --campaign
 * (PTC_TEST_CAMPAIGN). Seeds are drawn anew each time, so what a small sample leaves out is in that of another day. */
static inline uint64_t ptc_test_size(uint64_t usual, uint64_t more, uint64_t all)
{
	const char *campaign = getenv("PTC_TEST_CAMPAIGN"), *longer = getenv("PTC_TEST_LONG");

	return campaign && *campaign ? all : longer && *longer ? more : usual;
}

static inline uint64_t ptc_test_seed(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, ptc_test_seed_draw);
	return ptc_test_seed_drawn;
}
