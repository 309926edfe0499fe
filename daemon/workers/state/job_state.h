/* SPDX-License-Identifier: Apache-2.0 */
/* A job on this node, for worker_state.h, which says who uses it. The lock guards it. It goes once nothing of the job
 * is left here (group/worker_jobs.h). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct group;
struct worker;

struct job {
	struct job *next;
	char uuid[37];
	uid_t uid;
	char *dir, *socket;
	int listen;
	struct worker *workers;
	struct group *groups;
	size_t nworkers;
	unsigned last_number;
	unsigned held;  /* number of its groups, also of those with references only */
	bool forgotten; /* the job is deleted; this goes once nothing of it is left */
	bool shares;    /* `share_devices`, as its newest group says; of one that an older ptcd started: true */
	struct {
		struct group *like; /* what its processes are started as; in no list. NULL: there are to be none */
		size_t want;
		bool starting;             /* a task starts one */
		unsigned fails;            /* in a row */
		int64_t next_ns, quiet_ns; /* none is started before; since when all ranks here run, 0: they do not */
	} standby;
};
