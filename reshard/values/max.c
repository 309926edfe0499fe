/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: an element's bits are turned into a number that is ordered as the elements are: integers with their sign
 * bit flipped, floats as sign and magnitude. Two NaNs of the same bits are equal, so replicas that agree are carried
 * byte for byte. The operation stays associative: NaNs that are all of one kind give that kind, and any other mix with
 * a NaN gives the quiet one.
 *
 * Failure modes: a dtype without an order (PTC_ELAYOUT naming tensor and dtype). */
#include "reshard/values/max.h"

#include "base/check.h"

#include <string.h>

enum order { NONE, UNSIGNED, SIGNED, FLOAT };

static const struct kind {
	enum order order;
	uint32_t bytes;
	uint64_t infinity, nan; /* of floats: above infinity, without the sign, are NaNs; the quiet one */
} kinds[PTC_DTYPE_COUNT] = {
	[PTC_BOOL] = { UNSIGNED, 1, 0, 0 },
	[PTC_U8] = { UNSIGNED, 1, 0, 0 },
	[PTC_U16] = { UNSIGNED, 2, 0, 0 },
	[PTC_U32] = { UNSIGNED, 4, 0, 0 },
	[PTC_U64] = { UNSIGNED, 8, 0, 0 },
	[PTC_I8] = { SIGNED, 1, 0, 0 },
	[PTC_I16] = { SIGNED, 2, 0, 0 },
	[PTC_I32] = { SIGNED, 4, 0, 0 },
	[PTC_I64] = { SIGNED, 8, 0, 0 },
	[PTC_F16] = { FLOAT, 2, 0x7c00, 0x7e00 },
	[PTC_BF16] = { FLOAT, 2, 0x7f80, 0x7fc0 },
	[PTC_F32] = { FLOAT, 4, 0x7f800000, 0x7fc00000 },
	[PTC_F64] = { FLOAT, 8, 0x7ff0000000000000, 0x7ff8000000000000 },
};

bool ptc_max_has(enum ptc_dtype t)
{
	return (uint32_t)t < PTC_DTYPE_COUNT && kinds[t].order != NONE;
}

static uint64_t ordered(const struct kind *k, uint64_t sign, uint64_t v)
{
	if (k->order == FLOAT && v & sign)
		return ~v & (sign - 1);
	return k->order == UNSIGNED ? v : v ^ sign;
}

static uint64_t greater(const struct kind *k, uint64_t a, uint64_t b)
{
	uint64_t sign = 1ull << (8 * k->bytes - 1);

	if (a == b)
		return a;
	if (k->order == FLOAT && ((a & (sign - 1)) > k->infinity || (b & (sign - 1)) > k->infinity))
		return k->nan;
	return ordered(k, sign, a) > ordered(k, sign, b) ? a : b;
}

void ptc_max_take(enum ptc_dtype t, const void *from, size_t n, void *to)
{
	const struct kind *k = &kinds[t];
	const uint8_t *src = from;
	uint8_t *dst = to;

	ptc_require(ptc_max_has(t));
	if (!memcmp(src, dst, n * k->bytes)) /* most replicas agree */
		return;
	for (size_t i = 0; i < n; i++, src += k->bytes, dst += k->bytes) {
		uint64_t a = 0, b = 0;

		memcpy(&a, src, k->bytes);
		memcpy(&b, dst, k->bytes);
		a = greater(k, a, b);
		memcpy(dst, &a, k->bytes);
	}
}

bool ptc_rule_is_whole(const struct ptc_rule *r)
{
	return r->splits[0].axis == PTC_AXIS_NONE && !r->expert && r->shard == PTC_SHARD_NONE;
}

bool ptc_rule_takes_max(const struct ptc_rule *r)
{
	return r && r->carry == PTC_CARRY_MAX && ptc_rule_is_whole(r);
}

int ptc_rule_check_max(const struct ptc_rule *r, const char *name, enum ptc_dtype dtype, struct ptc_error *err)
{
	if (!ptc_rule_takes_max(r) || ptc_max_has(dtype))
		return 0;
	return ptc_error_set(err, PTC_ELAYOUT,
			     "tensor \"%.600s\" (%s): rule \"%.300s\" takes the greatest value of its replicas (state "
			     "max), which only F64, F32, F16, BF16, integers and BOOL have",
			     name, ptc_dtype_name(dtype), r->match);
}
