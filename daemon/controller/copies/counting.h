/* SPDX-License-Identifier: Apache-2.0 */
/* How many copies a job's committed state has now. Blocking, not on the loop. */
#pragma once

#include "daemon/controller/controller.h"

struct ptc_copies_count {
	uint32_t count;                          /* as the job asks for */
	bool racks;                              /* across racks; otherwise across nodes */
	uint32_t fewest;                         /* copies that there are of every byte */
	int64_t bytes_left, bytes_without_place; /* still to be copied; of these, without a node to go to */
};
/* has: of each of v's nodes, whether it is up and has its table. Call ptc_view_locate on v first. */
int ptc_copies_count(struct ptc_controllers *all, const struct ptc_view *v, const bool *has,
		     struct ptc_copies_count *ret, struct ptc_error *err);
/* `copies` of docs/control.md. NULL: out of memory. */
json_t *ptc_copies_count_json(const struct ptc_copies_count *c);

/* [loop] `copied` of docs/control.md, without `behind`: what the job's controller knows of its newest copies. NULL: the
 * job asks for none, or it is not known yet. */
json_t *ptc_copied_json(const struct ptc_controller *ctl);
