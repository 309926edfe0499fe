/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank has declared and what it carries, as the ranks room keeps it (rank_declarations.h makes it). Counted; references and
 * what says so are under the room's lock. */
#pragma once

#include "daemon/workers/device/device_copier.h"
#include "daemon/workers/types/rank_slot.h"
#include "proto/local_messages.h"

/* Shared by a worker and the views of it. Immutable but for the worker's own while nobody else refers to it. */
struct rank_state {
	int refs;
	struct ptc_slot_blob *blobs;
	struct ptc_slot_cursor *cursors;
	size_t nblobs, ncursors;
};
/* Who copies what lies on devices. */
enum device_path {
	DEVICE_NONE,    /* nothing does */
	DEVICE_UNTRIED, /* ptc-gpu has not tried to map it */
	DEVICE_MAPPED,  /* ptc-gpu */
	DEVICE_BY_RANK, /* the rank itself: to staging memory at a stop, from the store's file when it is restored */
};
struct declared {
	int refs;
	struct ptc_slot_tensor *tensors;
	size_t ntensors, cap, nregions, nspans;
	struct ptc_local_span *spans;     /* all declared memory, in address order; offset: where in staging */
	uint64_t memory;                  /* bytes this struct takes */
	uint64_t bytes, span_bytes;       /* of declared tensors; of spans */
	struct ptc_device_range *devices; /* by address */
	size_t ndevices, devices_cap, nhandles;
	enum device_path path; /* under the lock */
	char device_why[256];  /* of DEVICE_BY_RANK */
};
