/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: slow_leave.h. */
#include "daemon/core/slow/slow_leave.h"

static size_t times(const int64_t *left_ms, size_t n)
{
	size_t count = 0;

	for (size_t i = 0; i < n; i++) {
		bool before = false;

		for (size_t k = 0; k < i && !before; k++)
			before = left_ms[k] == left_ms[i];
		count += !before;
	}
	return count;
}

enum ptc_slow_verdict ptc_slow_leave(const struct ptc_slow_rank *ranks, size_t n, const int64_t *left_ms, size_t nleft,
				     uint32_t most, bool *ret_leaves)
{
	size_t leave = 0, known = 0;

	for (size_t i = 0; i < n; i++) {
		ret_leaves[i] = ranks[i].slow && ranks[i].word == PTC_SLOW_OVER;
		leave += ret_leaves[i];
		known += ranks[i].word != PTC_SLOW_UNKNOWN;
	}
	if (!leave)
		return PTC_SLOW_STAY;
	if (2 * leave >= known)
		return PTC_SLOW_STAY_MANY;
	return times(left_ms, nleft) >= most ? PTC_SLOW_STAY_OFTEN : PTC_SLOW_LEAVE;
}
