/* SPDX-License-Identifier: Apache-2.0 */
/* ptcd's side of copies of ranks' memory (copier.h). It names ptcd's memory, and the owner who is told when a copy that
 * hung has ended. The caller owns all of it. Any number of threads may share one ptc_slot_copying. */
#pragma once

#include "daemon/workers/types/group_desc.h"

#include <stdatomic.h>
#include <sys/uio.h>

struct ptc_device_pinned;

/* A file; ptcd maps its bytes [0, bytes) at base. */
struct ptc_slot_memory {
	int fd; /* -1: none */
	bool writable;
	bool once; /* for this operation only: the copier unmaps it at ptc_slot_copying_done */
	const uint8_t *base;
	uint64_t bytes;
	uint64_t dev, ino;                      /* filled by ptc_slot_copying_init */
	const struct ptc_device_pinned *pinned; /* ptc-gpu has it page-locked (daemon/workers/device); NULL: not */
};
/* Stands for memory that must stay while a copier that hangs may write to it. The caller keeps it in one of its own
 * structs, with one reference. done is called without a lock, on any thread. */
struct ptc_slot_kept {
	_Atomic unsigned refs;
	void (*done)(struct ptc_slot_kept *k);
};
void ptc_slot_kept_unref(struct ptc_slot_kept *k); /* NULL: fine */
struct ptc_device_copying;
struct ptc_device_shadows;

/* What the copies of one operation share; used by any number of threads. */
struct ptc_slot_copying {
	struct ptc_slot_memory memory[2];
	const struct ptc_wait *wait;        /* threads that copy ask `cancelled`; NULL: nothing cancels them */
	int64_t hang_ms;                    /* a copy takes at most so long; 0, or longer: copy_timeout */
	int64_t start_ms;                   /* likewise the start of a copier, if there is none yet; 0: as hang_ms */
	struct ptc_slot_kept *kept;         /* NULL: nothing has to stay */
	struct ptc_device_copying *device;  /* mapped device memory (daemon/workers/device); NULL: none */
	struct ptc_device_shadows *shadows; /* of ranks' device memory (daemon/workers/device); NULL: none */
	_Atomic uint64_t copier;            /* number of the copier that copied last, never used twice; 0: none */
};
