/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks for a person: their states as JSON, and the places of their logs. Any thread. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct ptc_workers;

/* The answer to Peer/Ranks (formats/ranks/rank_rows.h) about this job: its slots here, then processes that have a log
 * but no slot any more. Processes that wait without a rank have the state `standby`, or `standby starts`, rank
 * UINT32_MAX and generation 0. ptc_free it. */
int ptc_workers_json(struct ptc_workers *w, const char *uuid, char **ret_json, struct ptc_error *err);
/* Sums over the job's ranks here. */
struct ptc_workers_sum {
	uint64_t ranks, step; /* number of ranks whose process lives; the least step of these, if `stepped` */
	bool stepped;
	double step_seconds; /* of the slowest rank; 0: unknown */
};
struct ptc_workers_sum ptc_workers_sum(struct ptc_workers *w, const char *uuid);
/* Bytes of page-locked memory that ptc-gpu may have for devices in use; a part of what was taken by pinned_take. */
uint64_t ptc_workers_pinned(const struct ptc_workers *w);
/* A rank here whose process lives; job: its name, borrowed for the call. */
struct ptc_rank_given {
	uint32_t device, rank;
	const char *job;
	uid_t uid; /* the job's */
	pid_t pid;
};
/* Calls fn for each of them, under a lock. fn must be quick, and call nothing of this room. */
void ptc_workers_each_rank(struct ptc_workers *w, void (*fn)(void *arg, const struct ptc_rank_given *r), void *arg);
/* A rank's log. */
struct ptc_worker_log {
	char path[320];
	uint64_t begin, end; /* of that incarnation, because a process may have several; end UINT64_MAX: the file's
				end */
	bool over;           /* the rank writes no more to it */
	unsigned number;     /* private */
	uint64_t incarnation;
	uint32_t rank;
};
/* Gives the log of the rank's newest process in this incarnation (0: in any). PTC_ENOTFOUND: there is none. */
int ptc_workers_log(struct ptc_workers *w, const char *uuid, uint32_t rank, uint64_t incarnation,
		    struct ptc_worker_log *ret_log, struct ptc_error *err);
/* Updates `end` and `over`. */
void ptc_workers_log_look(struct ptc_workers *w, const char *uuid, struct ptc_worker_log *log);
