/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the process which copies ranks' memory is given for one operation: the job's chunks, and room to read beside them.
 *
 * Happy path: open, copies by any number of threads (ptc_iov_batch), close. Failure modes: no descriptors or memory. A copy that hangs
 * keeps the tables of the operation beyond close, so that their chunks are nobody else's until it has ended. */
#pragma once

#include "daemon/workers/group/rank_slots.h"

struct ptc_table;

struct ptc_copying {
	struct ptc_slot_copying slots;
	const struct ptc_slot_view *slot; /* NULL: it is not open */
	uint8_t *room;                    /* room_bytes of memory that copies can be made to */
	size_t room_bytes;
};
/* tables: of one job, all still filled or all sealed; those that are NULL or have no bytes are passed over. A sealed one's chunks can only be
 * read. room_bytes: 0: none. `wait` stays until close. */
int ptc_copying_open(struct ptc_copying *c, const struct ptc_slot_view *slot, struct ptc_table *const tables[2],
		     size_t room_bytes, const struct ptc_wait *wait, struct ptc_error *err);
void ptc_copying_close(struct ptc_copying *c); /* one of zeros is fine */
