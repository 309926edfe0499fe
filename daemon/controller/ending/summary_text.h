/* SPDX-License-Identifier: Apache-2.0 */
/* The result of a committed switch, as summary.c makes it. It never changes, and counts its references
 * (../controller.h). Any thread. */
#pragma once

#include "daemon/controller/internal.h"

#include <stdatomic.h>

struct ptc_switch_summary {
	atomic_int refs;
	char job[PTC_NAME_MAX + 1];
	struct {
		enum ptc_job_phase phase;
		double ms;
	} phases[PTC_PHASES_KEPT];
	size_t nphases, nlinks;
	uint64_t verified_bytes;
	struct ptc_plan_report *plan; /* NULL: it is not known */
	struct ptc_blobs_review blobs;
	struct ptc_link_use *links;
	struct ptc_switch_end end;
};
