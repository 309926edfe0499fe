/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds F32 to BF16. Rounding is an addition: half of the lowest bit that is kept, less 1 if the part that is kept is
 * even. A carry into the exponent gives the right value. No failure modes. */
#include "reshard/values/derive.h"

#include <string.h>

#define BF16_NAN 0x7fc0

static uint16_t round_one(uint32_t bits)
{
	if ((bits & 0x7fffffff) > 0x7f800000)
		return BF16_NAN;
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void ptc_derive_bf16(const void *from, size_t n, void *to)
{
	const uint8_t *src = from;
	uint8_t *dst = to;

	for (size_t i = 0; i < n; i++) {
		uint32_t bits;
		uint16_t half;

		memcpy(&bits, src + 4 * i, sizeof bits);
		half = round_one(bits);
		memcpy(dst + 2 * i, &half, sizeof half);
	}
}
