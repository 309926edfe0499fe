/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's declarations and rank state, as daemon/workers keeps them; rank_declarations.h makes them. References are
 * counted under the lock. */
#pragma once

#include "daemon/workers/device/device_copier.h"
#include "daemon/workers/types/rank_slot.h"
#include "proto/local_messages.h"

/* Shared by a worker and its views. Immutable, except that the worker may change it while it has the only reference. */
struct rank_state {
	int refs;
	struct ptc_slot_blob *blobs;
	struct ptc_slot_cursor *cursors;
	size_t nblobs, ncursors;
};
/* A memfd of the rank, which the rank has mapped at `address`. It has the blobs and cursors that the rank has
 * published. */
struct kept_memory {
	int fd; /* -1: none */
	uint64_t address, bytes;
};
/* Who copies a rank's device memory. */
enum device_path {
	DEVICE_NONE,    /* the rank has none */
	DEVICE_UNTRIED, /* ptc-gpu has not tried to map it */
	DEVICE_MAPPED,  /* ptc-gpu */
	DEVICE_BY_RANK, /* the rank: to staging memory at a stop, from the store's file at a restore */
};
struct declared {
	int refs;
	struct ptc_slot_tensor *tensors;
	size_t ntensors, cap, nregions, nspans;
	struct ptc_local_span *spans;     /* all declared memory, by address; offset: in staging memory */
	uint64_t memory;                  /* bytes that this struct takes */
	uint64_t bytes, span_bytes;       /* of declared tensors; of spans */
	struct ptc_device_range *devices; /* by address */
	size_t ndevices, devices_cap, nhandles;
	enum device_path path; /* under the lock */
	char device_why[256];  /* of DEVICE_BY_RANK */
};
