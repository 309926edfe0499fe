/* SPDX-License-Identifier: Apache-2.0 */
/* Resident boxes: copies of stopped ranks' boxes on a device, on that same device. The next restore takes bytes that
 * stay on the device from there, so they do not cross the host.
 *
 *   ptc_residents_make(agent, &make);                    at the stop, while the ranks' memory is there
 *   r = ptc_residents_take(agent, uuid);                 at the restore; the caller's from then on
 *   ptc_resident_restore(r, ...) for boxes that ptc_residents_split gave
 *   ptc_residents_free(r);
 *
 * The store is what counts: before use, the digest of a box is computed on the device and compared with that of the
 * sealed bytes of the store. So a box of another step does no harm; it is not used. If anything fails, the bytes are
 * copied from the host.
 *
 * Threads: any; one job has one list at a time. Memory: at most env.device_copy_bytes of each device, from the stop to
 * the end of the restore, or to the Finish of a switch without one. */
#pragma once

#include "daemon/agent/memory/copying.h"
#include "daemon/agent/memory/rank_group.h"

struct ptc_residents;
struct ptc_resident;

/* Bytes of ranks' device memory that a restore wrote, by where they came from. */
struct ptc_device_bytes {
	uint64_t kept, peer, host; /* the same device; another one, not through the host; the host */
};

struct ptc_residents_make {
	const struct ptc_geometry *g;
	const struct ptc_group *group; /* stopped */
	const struct ptc_slot_sources *sources;
	struct ptc_slot_copying *copying;
};
void ptc_residents_make(struct ptc_agent *agent, const struct ptc_residents_make *make);
/* NULL: there are none. */
struct ptc_residents *ptc_residents_take(struct ptc_agent *agent, const char *uuid);
struct ptc_residents *ptc_residents_free(struct ptc_residents *r);  /* NULL ok */
void ptc_residents_drop(struct ptc_agent *agent, const char *uuid); /* take and free */

void ptc_residents_done(struct ptc_agent *agent); /* of all jobs */

/* Calls fn for each part of the source's box that a resident box of its device has, and with NULL for each other part.
 * r may be NULL. */
typedef int (*ptc_resident_fn)(void *arg, const struct ptc_resident *resident, const struct ptc_box *box);
int ptc_residents_split(const struct ptc_residents *r, const struct ptc_geometry *g, const struct ptc_group *group,
			const struct ptc_slot_source *source, ptc_resident_fn fn, void *arg);
/* Copies a part of the source's box on the device. *ret_done false: the digests differ, or the device cannot; copy from
 * the store. An error is the rank's or the store's. */
int ptc_resident_restore(struct ptc_residents *r, const struct ptc_resident *resident, const struct ptc_geometry *g,
			 struct ptc_table *table, const struct ptc_slot_view *slot,
			 const struct ptc_slot_source *source, struct ptc_slot_copying *copying,
			 const struct ptc_box *box, bool *ret_done, struct ptc_error *err);
/* What was restored from it so far; host is 0. NULL ok. */
struct ptc_device_bytes ptc_residents_bytes(const struct ptc_residents *r);
