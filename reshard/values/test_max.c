/* SPDX-License-Identifier: Apache-2.0 */
/* The greatest of replicas against one found by value: each element is made a
 * number by its format's definition and compared as such. Then that neither
 * order nor grouping nor repetition of replicas changes a bit. PTC_TEST_SEED. */
#include "base/check.h"
#include "base/test_seed.h"
#include "reshard/values/max.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const enum ptc_dtype dtypes[] = { PTC_BOOL, PTC_U8,  PTC_U16, PTC_U32,  PTC_U64, PTC_I8, PTC_I16,
					 PTC_I32,  PTC_I64, PTC_F16, PTC_BF16, PTC_F32, PTC_F64 };
static uint64_t seed, rng;

static uint64_t rnd(void)
{
	rng += 0x9e3779b97f4a7c15;
	uint64_t z = (rng ^ rng >> 30) * 0xbf58476d1ce4e5b9;

	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static bool is_float(enum ptc_dtype t)
{
	return t == PTC_F16 || t == PTC_BF16 || t == PTC_F32 || t == PTC_F64;
}

/* By the definition of its format: sign, exponent, fraction. */
static double value_of(enum ptc_dtype t, uint64_t v)
{
	int bits = (int)ptc_dtype_bits(t), fraction = t == PTC_F16 ? 10 : t == PTC_BF16 ? 7 : t == PTC_F32 ? 23 : 52;
	int exponents = bits - 1 - fraction, bias = (1 << (exponents - 1)) - 1;
	int e = (int)(v >> fraction & ((1u << exponents) - 1));
	uint64_t f = v & ((1ull << fraction) - 1);
	double x;

	if (e == (1 << exponents) - 1)
		x = f ? (double)NAN : (double)INFINITY;
	else
		x = ldexp((double)(e ? f | 1ull << fraction : f), (e ? e : 1) - bias - fraction);
	return v >> (bits - 1) ? -x : x;
}

static int64_t signed_of(enum ptc_dtype t, uint64_t v)
{
	return t == PTC_I8 ? (int8_t)v : t == PTC_I16 ? (int16_t)v : t == PTC_I32 ? (int32_t)v : (int64_t)v;
}

static uint64_t want_of(enum ptc_dtype t, uint64_t a, uint64_t b)
{
	static const uint64_t quiet[PTC_DTYPE_COUNT] = {
		[PTC_F16] = 0x7e00, [PTC_BF16] = 0x7fc0, [PTC_F32] = 0x7fc00000, [PTC_F64] = 0x7ff8000000000000
	};
	double x, y;

	if (t == PTC_I8 || t == PTC_I16 || t == PTC_I32 || t == PTC_I64)
		return signed_of(t, a) > signed_of(t, b) ? a : b;
	if (!is_float(t) || a == b)
		return PTC_MAX(a, b);
	x = value_of(t, a);
	y = value_of(t, b);
	if (isnan(x) || isnan(y))
		return quiet[t];
	if (x == 0 && y == 0) /* they differ in the sign */
		return 0;
	return x > y ? a : b;
}

static uint64_t mask_of(enum ptc_dtype t)
{
	return ptc_dtype_bits(t) == 64 ? UINT64_MAX : (1ull << ptc_dtype_bits(t)) - 1;
}

/* Any bits; often special ones, or near to others. */
static uint64_t element(enum ptc_dtype t)
{
	static const uint64_t infinity[PTC_DTYPE_COUNT] = {
		[PTC_F16] = 0x7c00, [PTC_BF16] = 0x7f80, [PTC_F32] = 0x7f800000, [PTC_F64] = 0x7ff0000000000000
	};
	uint64_t sign = rnd() % 2 << (ptc_dtype_bits(t) - 1), v = rnd();

	switch (rnd() % 6) {
	case 0:
		v = rnd() % 3;
		break;
	case 1: /* the greatest finite, infinity, the first NaNs */
		v = infinity[t] + rnd() % 4 - 1;
		break;
	case 2: /* around one half of all, where signs begin */
		v = (1ull << (ptc_dtype_bits(t) - 1)) + rnd() % 3 - 1;
		break;
	default:
		return v & mask_of(t);
	}
	return (v ^ sign) & mask_of(t);
}

static uint64_t take(enum ptc_dtype t, uint64_t a, uint64_t b)
{
	uint8_t from[9], to[9]; /* odd addresses */

	memcpy(from + 1, &a, 8);
	memcpy(to + 1, &b, 8);
	ptc_max_take(t, from + 1, 1, to + 1);
	assert_memory_equal(to + 1 + ptc_dtype_bits(t) / 8, (uint8_t *)&b + ptc_dtype_bits(t) / 8,
			    8 - ptc_dtype_bits(t) / 8);
	memcpy(&b, to + 1, 8);
	return b & mask_of(t);
}

static void check_pair(enum ptc_dtype t, uint64_t a, uint64_t b)
{
	uint64_t got = take(t, a, b), want = want_of(t, a, b);

	if (got != want)
		fail_msg("%s: of 0x%llx and 0x%llx got 0x%llx, want 0x%llx", ptc_dtype_name(t), (unsigned long long)a,
			 (unsigned long long)b, (unsigned long long)got, (unsigned long long)want);
}

/* Of 8 and 16 bits: a sample against everything; of others, random ones. */
static void against_values(void **state)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(dtypes); i++) {
		enum ptc_dtype t = dtypes[i];
		uint64_t all = ptc_dtype_bits(t) > 16 ? 0 : mask_of(t) + 1;

		assert_true(ptc_max_has(t));
		for (int k = 0; k < 40; k++) {
			uint64_t a = element(t);

			for (uint64_t b = 0; b < all; b++)
				check_pair(t, a, b);
		}
		for (int k = 0; k < 200000; k++)
			check_pair(t, element(t), element(t));
	}
}

/* Replicas of many elements, in another order each time, some taken twice, or as groups that are taken together. */
static void in_any_order(void **state)
{
	enum { N = 97, REPLICAS = 6 };
	static uint8_t replicas[REPLICAS][8 * N], once[8 * N], other[8 * N], group[8 * N];

	for (int round = 0; round < 3000; round++) {
		enum ptc_dtype t = dtypes[rnd() % PTC_ARRAY_LEN(dtypes)];
		size_t size = ptc_dtype_bits(t) / 8, order[REPLICAS], cut = 1 + rnd() % (REPLICAS - 1);

		for (size_t i = 0; i < (size_t)REPLICAS * N; i++) {
			uint64_t v = element(t);

			if (i >= N && rnd() % 3 == 0) /* as another has it */
				memcpy(&v, replicas[rnd() % (i / N)] + i % N * size, size);
			memcpy(replicas[i / N] + i % N * size, &v, size);
			order[i / N] = i / N;
		}
		memcpy(once, replicas[0], sizeof(once));
		for (size_t i = 1; i < REPLICAS; i++)
			ptc_max_take(t, replicas[i], N, once);
		for (size_t i = REPLICAS; i-- > 1;) {
			size_t k = rnd() % (i + 1), swap = order[i];

			order[i] = order[k];
			order[k] = swap;
		}
		memcpy(other, replicas[order[0]], sizeof(other));
		memcpy(group, replicas[order[cut]], sizeof(group));
		for (size_t i = 1; i < REPLICAS; i++)
			ptc_max_take(t, replicas[order[i]], N, i < cut ? other : group);
		ptc_max_take(t, group, N, other);
		ptc_max_take(t, replicas[rnd() % REPLICAS], N, other);
		ptc_max_take(t, once, N, other);
		assert_memory_equal(once, other, N * size);
	}
}

static void others_are_refused(void **state)
{
	static const enum ptc_dtype none[] = { PTC_F4,          PTC_F6_E2M3,     PTC_F6_E3M2, PTC_F8_E5M2, PTC_F8_E4M3,
					       PTC_F8_E5M2FNUZ, PTC_F8_E4M3FNUZ, PTC_F8_E8M0, PTC_C64 };
	struct ptc_rule rule = { .match = "s*", .carry = PTC_CARRY_MAX, .shard = PTC_SHARD_NONE };

	assert_int_equal(PTC_ARRAY_LEN(none) + PTC_ARRAY_LEN(dtypes), PTC_DTYPE_COUNT);
	for (size_t i = 0; i < PTC_ARRAY_LEN(none); i++) {
		struct ptc_error err = PTC_ERROR_INIT;

		assert_false(ptc_max_has(none[i]));
		assert_int_equal(ptc_rule_check_max(&rule, "s.x", none[i], &err), PTC_ELAYOUT);
		assert_non_null(strstr(err.text, "tensor \"s.x\" ("));
		assert_non_null(strstr(err.text, ptc_dtype_name(none[i])));
		assert_int_equal(ptc_rule_check_max(NULL, "s.x", none[i], &err), 0);
	}
	assert_int_equal(ptc_rule_check_max(&rule, "s.x", PTC_F32, NULL), 0);
}

/* Of a job of an earlier version, where it was cut as any other: carried. */
static void what_is_cut_is_carried(void **state)
{
	struct ptc_rule rule = { .match = "*", .carry = PTC_CARRY_MAX, .shard = PTC_SHARD_NONE };

	assert_true(ptc_rule_takes_max(&rule));
	assert_false(ptc_rule_takes_max(NULL));
	rule.shard = PTC_SHARD_CONFIG;
	assert_false(ptc_rule_takes_max(&rule));
	assert_int_equal(ptc_rule_check_max(&rule, "a", PTC_C64, NULL), 0);
	rule.shard = PTC_SHARD_NONE;
	rule.splits[0].axis = PTC_AXIS_TP;
	assert_false(ptc_rule_takes_max(&rule));
	rule.splits[0].axis = PTC_AXIS_NONE;
	rule.carry = PTC_CARRY_REPLICATE;
	assert_false(ptc_rule_takes_max(&rule));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(against_values),
		cmocka_unit_test(in_any_order),
		cmocka_unit_test(others_are_refused),
		cmocka_unit_test(what_is_cut_is_carried),
	};

	rng = seed = ptc_test_seed() | 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
