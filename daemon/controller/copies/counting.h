/* SPDX-License-Identifier: Apache-2.0 */
/* How many copies a job's committed state has now. Blocking, not on the loop. */
#pragma once

#include "daemon/controller/controller.h"

/* Makes `copies` of docs/control.md. has: of each of v's nodes, whether it is up and has its table. Call
 * ptc_view_locate on v first. */
int ptc_copies_json(struct ptc_controllers *all, const struct ptc_view *v, const bool *has, json_t **ret,
		    struct ptc_error *err);
