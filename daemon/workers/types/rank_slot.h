/* SPDX-License-Identifier: Apache-2.0 */
/* A slot, one rank of a group, as other rooms see it: its state, the tensors that its process has declared, and its
 * rank state. Plain data; a view is borrowed between ptc_workers_slots and ptc_workers_slots_done (rank_slots.h).
 *
 * A slot's states:
 *
 *   SPAWNED -> WAITING (in ptc_next) -> BUILDING (has its generation) -> DECLARED (in ptc_restore) -> RUNNING
 *      |                ^                                                                              |
 *      |                |                                    RUNNING (go on) <- STOPPED (at a boundary, or finished)
 *      |                +------------ ENDING (told that its generation is over) <----------------------+
 *      +-> any -> EXITED
 *
 * In mode `rebuild` a process that has ended its generation waits again and takes any slot of the next group. In mode
 * `restart` it has to exit. */
#pragma once

#include "daemon/workers/types/group_desc.h"
#include "reshard/spec/spec.h"

enum ptc_slot_state {
	PTC_SLOT_SPAWNED,
	PTC_SLOT_WAITING,
	PTC_SLOT_BUILDING,
	PTC_SLOT_DECLARED,
	PTC_SLOT_RUNNING,
	PTC_SLOT_STOPPED,
	PTC_SLOT_ENDING,
	PTC_SLOT_EXITED,
};

struct ptc_slot_region {
	struct ptc_box box;           /* elements */
	uint64_t address;             /* in the process, of the first element */
	int64_t stride[PTC_MAX_DIMS]; /* bytes, never all 0 here */
};
/* One declared tensor; name is "NAME" or "NAME:FIELD". Immutable once declared. */
struct ptc_slot_tensor {
	char *name;
	enum ptc_dtype dtype;
	uint32_t ndim;
	int64_t shape[PTC_MAX_DIMS];
	bool tied;
	struct ptc_slot_region *regions; /* row-major by offset, disjoint */
	size_t nregions;
};
struct ptc_slot_blob {
	char *name;
	int scope; /* enum ptc_blob_scope */
	void *data;
	size_t len;
};
struct ptc_slot_cursor {
	char *name, *tag;
	uint64_t position;
};
/* The answers to ptc_blob_get and ptc_cursor_get on one rank. Borrowed during the call. */
struct ptc_rank_state {
	const struct ptc_slot_blob *blobs;
	const struct ptc_slot_cursor *cursors;
	size_t nblobs, ncursors;
};
struct ptc_slot_view {
	struct ptc_group_rank rank;
	enum ptc_slot_state state;
	pid_t pid;
	bool published; /* it has come to a boundary, the last one at `step` */
	uint64_t step;
	const struct ptc_slot_tensor *tensors; /* in name order; DECLARED and later. In BUILDING without memory */
	size_t ntensors;
	const struct ptc_slot_blob *blobs; /* as of the stop */
	size_t nblobs;
	const struct ptc_slot_cursor *cursors;
	size_t ncursors;
	/* NULL: its process is frozen, and its state, blobs and cursors are those of `step`; else why that is not so.
	 */
	const char *not_held;
	bool promises, stays; /* ptc_survive; it is held, gives up, and can end no further step (group_hold.h) */
	/* The rank has ended. ptc_slot_copy still reads what it had declared on devices, unless not_held says why not.
	 * has_state: its blobs and cursors are those of `step`; else they are gone. */
	bool outlived, has_state;
	bool verifies; /* its libptc can compare what it reads with checksums (ptc_slot_fill) */
	bool staged;   /* equals `copied`: the rank may go on while ptc_slot_copy reads */
	void *opaque;
	/* With copy: fast and STOPPED: the rank has copied its bytes to staging memory. ptc_slot_copy reads them there,
	 * also after ptc_workers_release, until ptc_workers_slots_done. */
	bool copied;
};
