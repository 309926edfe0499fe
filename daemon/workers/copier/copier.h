/* SPDX-License-Identifier: Apache-2.0 */
/* Copiers: for each job whose ranks' memory is copied one process ptc-copy of the job's user (copy.h), started when it is wanted,
 * ended with the job's ranks. Inside daemon/workers: rank_slots.c calls it, workers.c owns it. It has a lock of its own, taken last.
 *
 * Happy path: a caller takes a free socket of the job's copier, sends one request and waits for the answer.
 * Failure modes: a copier that ends meanwhile (another is started and the request made again, a few times: PTC_EIO); one that does
 * not answer for the time given, or whose caller is cancelled, is killed. If it has not ended a second later it hangs in the kernel:
 * callers get PTC_ESTATE or PTC_ECANCELED, and what they named as `kept` is kept until it has ended. Meanwhile nothing of the same process is
 * copied, and at most PTC_COPIERS_HUNG of a job hang. */
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
	struct copier *list; /* every one that has not been freed */
	int64_t hang_ms;
	_Atomic bool quit;
};

void ptc_copiers_init(struct ptc_copiers *cs, int64_t hang_ms);
/* Callers are gone. Those that hang are left to end when they can: who makes us anew finds the store's chunks guarded (store.h). */
void ptc_copiers_done(struct ptc_copiers *cs);

struct ptc_copy_call {
	const char *uuid;
	uid_t uid;
	pid_t pid;           /* the rank's */
	enum ptc_copy_op op; /* READ, WRITE or COMPARE */
	bool fresh;
	const struct iovec *there, *here; /* as many bytes; no more spans than PTC_COPY_SPANS_MAX */
	size_t nthere, nhere;
	struct ptc_slot_copying *copying;
};
/* *ret_errno: what the kernel said, or PTC_COPY_DIFFERS; 0 when all was copied. *ret_moved: bytes before that. */
int ptc_copiers_call(struct ptc_copiers *cs, const struct ptc_copy_call *call, int *ret_errno, uint64_t *ret_moved,
		     struct ptc_error *err);
/* The number of the job's copier; 0: none runs. */
uint64_t ptc_copiers_number(struct ptc_copiers *cs, const char *uuid);
/* This memory is not the copier's any more, unless it hangs. */
void ptc_copiers_forget(struct ptc_copiers *cs, const char *uuid, const struct ptc_slot_memory *memory);

/* Ends those of jobs that are not wanted: none of their ranks is left. wanted must not call back. */
void ptc_copiers_end(struct ptc_copiers *cs, bool (*wanted)(void *arg, const char *uuid), void *arg);
/* From time to time, without a lock: those that have ended are waited for, and what they kept is let go. Returns whether any is left. */
bool ptc_copiers_look(struct ptc_copiers *cs);
/* For how long a copier has hung in that process's memory; 0: none does. */
int64_t ptc_copiers_hung_ns(struct ptc_copiers *cs, const char *uuid, pid_t rank, pid_t *ret_copier);
