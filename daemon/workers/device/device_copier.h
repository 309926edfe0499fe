/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between ranks' device memory and memory of ptcd, by ptc-gpu (daemon/gpu/client).
 *
 * A rank's allocation is mapped in ptc-gpu when an operation first copies of it, and unmapped when the operation ends
 * (ptc_device_copying_done); the rank waits meanwhile, so it frees nothing that is mapped. ptc-gpu starts at the first call.
 *
 * Threads: any; calls block. Failure modes: what the driver says, with the device or the rank that counts as failed; a ptc-gpu that ends under
 * a call is started again and the call repeated, a few times. Where it can be neither asked nor ended, the memory that was named as
 * `kept` stays (PTC_ESTATE). */
#pragma once

#include "base/status.h"
#include "daemon/workers/copier/copy.h"
#include "daemon/workers/copier/slot_copying.h"

#include <sys/types.h>

struct ptc_device_copier;
struct ptc_device_copying;

/* Declared memory on a device: an allocation that ptc-gpu may map, or a range that only its rank can copy. */
struct ptc_device_range {
	uint64_t address, bytes; /* in the rank */
	uint64_t context, buffer;
	char uuid[48], why[96]; /* why: not "" where only the rank can copy it */
	uint8_t ipc[64];
	int fd; /* of its handle; -1: it is mapped by ipc */
};

int ptc_device_copier_new(uint64_t pinned_bytes, int64_t hang_ms, struct ptc_device_copier **ret,
			  struct ptc_error *err);
/* Callers are gone, and what was mapped. NULL ok. */
struct ptc_device_copier *ptc_device_copier_free(struct ptc_device_copier *d);

/* Whether ptc-gpu can map it: maps and unmaps it. */
int ptc_device_try(struct ptc_device_copier *d, const struct ptc_device_range *r, pid_t pid, struct ptc_error *err);

struct ptc_device_piece {
	const struct ptc_device_range *range;
	uint64_t address;
	uint8_t *here; /* in one of the two memories of the ptc_slot_copying */
	uint64_t bytes;
};
/* *ret_differs, of a COMPARE: the bytes are others. A failed READ has left any bytes. */
int ptc_device_copy(struct ptc_device_copier *d, struct ptc_slot_copying *c, enum ptc_copy_op op, pid_t pid,
		    const struct ptc_device_piece *pieces, size_t n, bool *ret_differs, struct ptc_error *err);
/* After the operation's last copy. */
void ptc_device_copying_done(struct ptc_device_copier *d, struct ptc_slot_copying *c);
