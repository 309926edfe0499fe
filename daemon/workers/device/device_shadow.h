/* SPDX-License-Identifier: Apache-2.0 */
/* Where the shadow of ranks' device memory lies (device_copier.h, ptc_device_shadow). Plain tables; the caller sees to
 * threads. Failure modes: no memory. */
#pragma once

#include "daemon/workers/device/device_copier.h"

/* A part of a rank's device memory, and of the memory that has its copy. */
struct ptc_device_shadow {
	pid_t pid;
	uint64_t address, bytes;
	uint64_t at;   /* in `memory` */
	size_t memory; /* index */
};
struct ptc_device_shadows {
	struct ptc_device_memory *memory;
	size_t nmemory;
	struct ptc_device_shadow *v; /* by rank, then by address */
	size_t n;
	bool gone_on; /* the ranks do not wait any more: their own memory is not to be read */
};

/* Adds a rank's spans on one device, one behind the other. *ret_bytes: of the memory that they need. */
int ptc_device_shadows_add(struct ptc_device_shadows *s, pid_t pid, const char *uuid,
			   const struct ptc_device_span *spans, size_t n, uint64_t *ret_bytes, struct ptc_error *err);
/* The entry that has the bytes; NULL: none has all of them. */
const struct ptc_device_shadow *ptc_device_shadow_at(const struct ptc_device_shadows *s, pid_t pid, uint64_t address,
						     uint64_t bytes);
