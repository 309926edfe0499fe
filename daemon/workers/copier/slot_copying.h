/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of ptcd that ranks' memory is copied to and from, as the process that copies sees it
 * (copier.h): which memory, and who has to be told when a copy that hung has ended. The caller owns
 * all of it; any number of threads may share one ptc_slot_copying. */
#pragma once

#include "daemon/workers/types/group_desc.h"

#include <stdatomic.h>
#include <sys/uio.h>

/* A file of which [0, bytes) is mapped here at base. */
struct ptc_slot_memory {
	int fd; /* -1: none */
	bool writable;
	bool once; /* of this operation only: the process that copies gives it up with ptc_slot_copying_done */
	const uint8_t *base;
	uint64_t bytes;
	uint64_t dev, ino; /* as ptc_slot_copying_init finds them */
};
/* Stays as long as a copier that hangs may write to the memory it stands for: the caller's, in one of its own structs, with one
 * reference of the caller's. done is called without a lock, on any thread. */
struct ptc_slot_kept {
	_Atomic unsigned refs;
	void (*done)(struct ptc_slot_kept *k);
};
void ptc_slot_kept_unref(struct ptc_slot_kept *k); /* NULL: fine */
struct ptc_device_copying;

/* What the copies of one operation share; used by any number of threads. */
struct ptc_slot_copying {
	struct ptc_slot_memory memory[2];
	const struct ptc_wait *wait;       /* `cancelled` is asked from threads that copy; NULL: never */
	struct ptc_slot_kept *kept;        /* NULL: nothing has to be kept */
	struct ptc_device_copying *device; /* what is mapped of devices (daemon/workers/device); NULL: nothing */
	_Atomic uint64_t copier;           /* number of the process that copied last, never used twice; 0: none runs */
};
