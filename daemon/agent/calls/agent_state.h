/* SPDX-License-Identifier: Apache-2.0 */
/* The agent as its own rooms see it; nobody else does. agent.c makes and frees it. `shared` is
 * guarded by its lock, held for moments. */
#pragma once

#include "daemon/agent/calls/agent_env.h"
#include "daemon/store/store_key.h"
#include "daemon/agent/calls/agent_limits.h"
#include "daemon/agent/calls/ticket.h"

#include <pthread.h>
#include <stdatomic.h>

struct ptc_pinned_table; /* tables/pinned_tables.c */
struct ptc_geometry_ref; /* geometry/geometry.h */

/* One job while something is done with it, or between its Prepare and Finish. */
struct ptc_agent_job {
	struct ptc_agent_job *next;
	char uuid[37];
	unsigned refs, writers;
	bool busy, prepared;
	int64_t seen_fence; /* of the requests so far ... */
	uint64_t seen_seq;  /* ... and the highest number among those of that fence */
	atomic_bool cancel;
	uint64_t switch_id;       /* of the last Prepare */
	struct ptc_table_key key; /* the table it made */
	int64_t copied_bytes;     /* by derive, for that table */
};

struct ptc_agent {
	struct ptc_agent_env env;
	char *node;
	struct ptc_pool send, recv, gate, push; /* see ticket.h */
	struct {
		pthread_mutex_t lock;
		pthread_cond_t cond;
		struct ptc_agent_job *jobs;
		struct ptc_geometry_ref *geometries; /* newest first */
		struct ptc_pinned_table *pinned;     /* pinned_tables.c */
		unsigned reconcilers;                /* threads of reconcile.c */
		bool stopping;
	} shared;
	_Atomic unsigned rendezvous;
};
