/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as a person sees them: their states as JSON, and where their logs are. Any thread. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptc_workers;

/* For status: JSON array of this job's slots here: [{rank, generation, incarnation, state, pid, step, whole, step_seconds, stalled_s, hangs_s, reports: {loss: ..}, cgroup, log}];
 * after them what has a log and no slot any more, [{rank, generation, incarnation, state}]. Where it is known, each has `world` and `since_ms`, when
 * its process became that rank. ptc_free it. */
int ptc_workers_json(struct ptc_workers *w, const char *uuid, char **ret_json, struct ptc_error *err);
/* Calls fn for each rank here whose process lives, under a lock: it must be quick and call nothing of this room. */
void ptc_workers_each_rank(struct ptc_workers *w,
			   void (*fn)(void *arg, uint32_t device, const char *job, uint32_t rank, int pid), void *arg);
/* A rank's log. */
struct ptc_worker_log {
	char path[320];
	uint64_t begin,
		end; /* of that incarnation; UINT64_MAX: where the file ends. A process may go through several incarnations. */
	bool over;       /* nothing more is written to it */
	unsigned number; /* private */
	uint64_t incarnation;
	uint32_t rank;
};
/* That of the rank's newest process in this incarnation (0: in any). PTC_ENOTFOUND. */
int ptc_workers_log(struct ptc_workers *w, const char *uuid, uint32_t rank, uint64_t incarnation,
		    struct ptc_worker_log *ret_log, struct ptc_error *err);
/* Brings end and over up to date. */
void ptc_workers_log_look(struct ptc_workers *w, const char *uuid, struct ptc_worker_log *log);
