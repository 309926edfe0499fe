/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of the switches that this daemon has controlled since it started. The controllers add to them, metrics reads
 * them; both on the loop thread. Counted whether or not anything is served. */
#pragma once

#include "base/number/count.h"
#include "daemon/core/job_switch.h"

#define PTC_SWITCH_KINDS 4

struct ptc_switch_tally {
	uint64_t ended[PTC_SWITCH_KINDS][2]; /* [kind][committed] */
	uint64_t between_bytes, within_bytes, captured_bytes, bound_bytes;
	struct ptc_histogram phases[PTC_JOB_PHASE_COUNT]; /* time spent in each */
};

extern struct ptc_switch_tally ptc_switch_tally; /* [loop] */
