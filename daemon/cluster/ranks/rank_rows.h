/* SPDX-License-Identifier: Apache-2.0 */
/* What a node says of a job's ranks there: its answer to Peer/Ranks, as daemon/workers/group/rank_status.h describes
 * it. For daemons that decide by it; status shows the answer itself. Plain data of the caller, any thread.
 *
 * Failure modes: PTC_EINVAL (the answer is not a list), PTC_ENOMEM. What a row does not say is 0 or false. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of a slot, or of a process that has a log but no slot any more. */
struct ptc_rank_row {
	uint64_t rank, generation, incarnation;
	uint64_t world, since_ms; /* when its process became that rank, and of how many */
	char state[12];           /* "running", ... */
	bool lives;               /* it has a process, as far as the row says */
	bool has_step, has_start;
	uint64_t step, start_step;    /* the last one that it has ended; where it began */
	double step_s, median_step_s; /* the last one; the middle of a few */
	double peak_bytes, own_s;     /* of its reports: peak_bytes, own_seconds */
	bool has_own;                 /* own_s is known */
	bool says_device;             /* the next two are known */
	bool on_device;               /* its process has or had a device */
	int64_t device;               /* which */
};
struct ptc_rank_rows {
	struct ptc_rank_row *v; /* ptc_free it */
	size_t n;
};
int ptc_rank_rows_decode(const char *json, struct ptc_rank_rows *ret, struct ptc_error *err);
