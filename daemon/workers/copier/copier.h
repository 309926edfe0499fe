/* SPDX-License-Identifier: Apache-2.0 */
/* Copiers. A copier is a process ptc-copy of a job's user (copy.h), which copies the memory of the job's ranks. It
 * starts with the first copy and ends with the job's ranks. group/slots calls this room, and workers.c owns it. It has
 * a lock of its own, which is taken last.
 *
 * Happy path: a caller takes a free socket of the job's copier, sends one request, and waits for the answer.
 *
 * Failure modes: a copier ends during a request: another one starts and gets the request, a few times, then PTC_EIO. A
 * copier does not answer in time, or its caller is cancelled: the copier is killed. If it has not ended a second later,
 * it hangs in the kernel. Its callers then get PTC_ESTATE or PTC_ECANCELED, and their `kept` stays until it has ended.
 * Meanwhile nothing of the same process is copied. At most PTC_COPIERS_HUNG copiers of a job hang at once. */
#pragma once

#include "daemon/workers/copier/copy.h"
#include "daemon/workers/copier/slot_copying.h"
#include "base/status.h"

#include <pthread.h>

#define PTC_COPIERS_HUNG 4

struct copier;
struct ptc_copiers {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct copier *list; /* every copier that is not freed */
	int64_t hang_ms;
	_Atomic bool quit;
};

void ptc_copiers_init(struct ptc_copiers *cs, int64_t hang_ms);
/* Call this once all callers are gone. Copiers that hang are left to end when they can; until then the store's guard
 * protects the chunks, also from a new ptcd (store.h). */
void ptc_copiers_done(struct ptc_copiers *cs);

struct ptc_copy_call {
	const char *uuid;
	uid_t uid;
	pid_t pid;                        /* the rank's */
	enum ptc_copy_op op;              /* READ, WRITE or COMPARE */
	enum ptc_copy_pages pages;        /* of a READ */
	const struct iovec *there, *here; /* equal bytes; at most PTC_COPY_SPANS_MAX spans each */
	size_t nthere, nhere;
	struct ptc_slot_copying *copying;
};
/* *ret_errno: 0 if all bytes were copied; otherwise the kernel's error, or PTC_COPY_DIFFERS. *ret_moved: bytes copied
 * before that. */
int ptc_copiers_call(struct ptc_copiers *cs, const struct ptc_copy_call *call, int *ret_errno, uint64_t *ret_moved,
		     struct ptc_error *err);
/* The number of the job's copier; 0: the job has none. */
uint64_t ptc_copiers_number(struct ptc_copiers *cs, const char *uuid);
/* Takes this memory away from the job's copier, unless the copier hangs. */
void ptc_copiers_forget(struct ptc_copiers *cs, const char *uuid, const struct ptc_slot_memory *memory);

/* Ends the copiers of jobs that are not wanted, because none of their ranks is left. wanted must not call this room. */
void ptc_copiers_end(struct ptc_copiers *cs, bool (*wanted)(void *arg, const char *uuid), void *arg);
/* Call this from time to time, without a lock. It waits for copiers that have ended, and releases their `kept`. Returns
 * whether a copier is left. */
bool ptc_copiers_look(struct ptc_copiers *cs);
/* How long a copier has hung in that process's memory; 0: none hangs. */
int64_t ptc_copiers_hung_ns(struct ptc_copiers *cs, const char *uuid, pid_t rank, pid_t *ret_copier);
