/* SPDX-License-Identifier: Apache-2.0 */
/* Prefetch: bytes that the next ranks will be restored with, read from the store to page-locked memory while the ranks
 * build. So the restore of device memory only copies from there to the device.
 *
 *   ptc_prefetch_begin(agent, from, to, d); ranks begin to build; from: the snapshot, to: their layout
 *   p = ptc_prefetch_take(agent, uuid);     at the restore; the caller's from then on. Ends the reading
 *   ptc_prefetch_find(p, table, item, box, &at)
 *   ptc_prefetch_free(p);
 *
 * A restore reads from a table, and uses a prefetched box only if that table has the box at the same places in the
 * chunks as the snapshot's table has. The snapshot's table is open meanwhile, so these chunks keep the bytes that were
 * verified.
 *
 * Threads: a thread of its own reads. A job has one list at a time; calls may come from any thread. Memory: at most
 * env.prefetch_bytes of the node for all jobs together, and a job gets as much as the others leave. It is page-locked
 * in steps while it is filled, until _free; each step is counted before it is locked. If anything fails, the restore
 * goes through the ring, and the log has one line. */
#pragma once

#include "daemon/agent/geometry/geometry.h"
#include "daemon/workers/group/rank_slots.h"

struct ptc_prefetch;
struct ptc_table;

#define PTC_PREFETCH_BOX (16 << 20) /* most bytes of a box; a restore cuts boxes in the same way to find them */

/* device: the UUID of a device that ranks here will have. The memory is page-locked for all devices. */
void ptc_prefetch_begin(struct ptc_agent *agent, const struct ptc_geometry *from, const struct ptc_geometry *to,
			const char *device);
/* NULL: there is none. */
struct ptc_prefetch *ptc_prefetch_take(struct ptc_agent *agent, const char *uuid);
struct ptc_prefetch *ptc_prefetch_free(struct ptc_prefetch *p);    /* NULL ok */
void ptc_prefetch_drop(struct ptc_agent *agent, const char *uuid); /* take and free */
void ptc_prefetch_done(struct ptc_agent *agent);                   /* of all jobs */

/* Whether the bytes of a box of the table are there, compact, and where in the memory. p NULL: no. */
bool ptc_prefetch_find(struct ptc_prefetch *p, struct ptc_table *table, uint32_t item, const struct ptc_box *box,
		       uint64_t *ret_at);
/* The memory, for ptc_slot_copying; borrowed. */
struct ptc_slot_memory ptc_prefetch_memory(const struct ptc_prefetch *p);
uint64_t ptc_prefetch_bytes(const struct ptc_prefetch *p); /* that were read; NULL: 0 */
