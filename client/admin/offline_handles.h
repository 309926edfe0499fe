/* SPDX-License-Identifier: Apache-2.0 */
/* The structs behind the handles of ptc/admin_plan.h, shared by admin_spec.c and admin_moves.c. A handle lives while
 * its creator, or a handle made from it, uses it. Threads may share a handle, because nothing behind it changes. */
#pragma once

#include "base/status.h"
#include "formats/job/job.h"
#include "reshard/layout/layout.h"

#include <ptc/admin_plan.h>
#include <stdatomic.h>

struct ptc_admin_spec {
	atomic_uint users;
	struct ptc_job_desc job;
};
struct ptc_admin_layout {
	atomic_uint users;
	struct ptc_admin_spec *spec;
	struct ptc_layout *layout; /* borrows the spec's job */
};
