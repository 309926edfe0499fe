/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks' devices a job leaves because the ranks are slow there (`on_straggler: drain`). Pure: no clock, memory or
 * thread; the caller owns everything. docs/failures.md ("Slow ranks") has the rule for users, docs/decisions/0046 its
 * reasons. No failure modes.
 *
 * A rank leaves its device if it is slow (slow.h), and was over the limit in the last window, too. (A slow rank that is
 * getting faster again may stay.) If half or more of the ranks that can be compared would leave, none leaves: then the
 * cause is not a few devices. Ranks that leave together count as one leave. While the time of `most` leaves is not
 * over, no other rank leaves. */
#pragma once

#include "daemon/core/slow/slow.h"

/* For this time a job does not get a device again that it has left (`straggler_backoff`). Within it, ranks leave so
 * often at most (`straggler_drains`). */
#define PTC_SLOW_BACKOFF_MS (3600 * INT64_C(1000))
#define PTC_SLOW_DRAINS     2

enum ptc_slow_verdict {
	PTC_SLOW_STAY, /* no rank is to leave */
	PTC_SLOW_LEAVE,
	PTC_SLOW_STAY_MANY,  /* half of the ranks, or more, are slow */
	PTC_SLOW_STAY_OFTEN, /* devices have been left `most` times, and their time is not over */
};

/* left_ms: when the job has left each of the devices that it may not have again yet; devices that it left together have
 * equal values. LEAVE: ret_leaves says of each rank whether it leaves. */
enum ptc_slow_verdict ptc_slow_leave(const struct ptc_slow_rank *ranks, size_t n, const int64_t *left_ms, size_t nleft,
				     uint32_t most, bool *ret_leaves);
