/* SPDX-License-Identifier: Apache-2.0 */
/* How many copies a job's committed state has now. Blocking, not on the loop. */
#pragma once

#include "daemon/controller/controller.h"

/* docs/control.md, "copies"; of nodes that are up and have their table: `has`, of each of v's nodes. v is located. */
int ptc_copies_json(struct ptc_controllers *all, const struct ptc_view *v, const bool *has, json_t **ret,
		    struct ptc_error *err);
