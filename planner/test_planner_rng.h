/* SPDX-License-Identifier: Apache-2.0 */
/* For the planner's property tests: one generator, its seed and the number of cases. PTC_TEST_SEED=n PTC_CASES=1
 * repeats the case whose seed a failure prints. Include it after cmocka.h's own needs; one thread. */
#pragma once

#include "base/check.h"
#include "base/test_seed.h"

#include <stdint.h>
#include <stdlib.h>

static uint64_t rng;

static inline uint32_t rnd(uint32_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)((rng >> 11) % n);
}

/* The seed of the n-th case. */
static inline uint64_t seed_of(uint64_t n)
{
	return ptc_test_seed() + n;
}

/* Restarts the generator. */
static inline void rng_begin(uint64_t seed)
{
	rng = seed * 0x9E3779B97F4A7C15u + 1;
}

static inline uint64_t cases(uint64_t most)
{
	const char *s = getenv("PTC_CASES");

	return s ? PTC_MIN(strtoull(s, NULL, 0), most) : most;
}
