/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks' devices a job leaves because the ranks are slow there (`on_straggler: drain`). Pure: no clock, memory or
 * thread; the caller owns everything. docs/failures.md ("Slow ranks") has the rule for users, docs/decisions/0046 its
 * reasons. No failure modes.
 *
 * A rank leaves its device if it is slow (slow.h), and was over the limit in the last window, too: one that is slow but
 * comes back to the others is waited for. If half of the ranks that can be compared are to leave, none does: then some
 * devices are not the cause. Ranks that leave at one moment count as one time. At most `most` times may be in force at
 * once. */
#pragma once

#include "daemon/core/slow/slow.h"

#define PTC_SLOW_BACKOFF_MS (3600 * INT64_C(1000)) /* so long a device is left; `straggler_backoff` */
#define PTC_SLOW_DRAINS     2                      /* times within that; `straggler_drains` */

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
