/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that the copier gets for one operation: the job's chunks, and room for other reads.
 *
 * Happy path: open, copies by any number of threads (ptc_iov_batch), close. Failure modes: no descriptors or memory. If
 * a copy hangs, the operation's tables stay open beyond close, so nobody else gets their chunks before the copy has
 * ended. */
#pragma once

#include "daemon/workers/group/rank_slots.h"

struct ptc_table;

struct ptc_copying {
	struct ptc_slot_copying slots;
	const struct ptc_slot_view *slot; /* NULL: not open */
	uint8_t *room;                    /* room_bytes of memory as a destination of copies */
	size_t room_bytes;
};
/* tables: of one job, all begun or all sealed; NULL and tables without bytes are skipped. Copies only read the chunks
 * of a sealed table. room_bytes 0: no room. The caller keeps `wait` until close. */
int ptc_copying_open(struct ptc_copying *c, const struct ptc_slot_view *slot, struct ptc_table *const tables[2],
		     size_t room_bytes, const struct ptc_wait *wait, struct ptc_error *err);
void ptc_copying_close(struct ptc_copying *c); /* accepts one of zeros */
