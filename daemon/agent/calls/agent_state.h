/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's state, for the agent's own rooms only. agent.c makes and frees it. The lock in `shared` guards `shared`;
 * threads hold it for moments. */
#pragma once

#include "base/cache/counted_cache.h"
#include "daemon/agent/calls/agent_env.h"
#include "daemon/store/store_key.h"
#include "daemon/agent/calls/agent_limits.h"
#include "daemon/agent/calls/ticket.h"

#include "base/sys/thread.h"

#include <pthread.h>
#include <stdatomic.h>

struct ptc_captured;     /* capture/captured_digests.h */
struct ptc_kept_fill;    /* switch/kept_fill.c */
struct ptc_near;         /* near/near.h */
struct ptc_prefetch;     /* memory/prefetch.c */
struct ptc_residents;    /* memory/resident.c */
struct ptc_send_watch;   /* gateway/send_watch.h */
struct ptc_pinned_table; /* tables/pinned_tables.c */

/* A job during a call about it, or between its Capture or Prepare and its Finish. */
struct ptc_agent_job {
	struct ptc_agent_job *next;
	char uuid[37];
	unsigned refs, writers;
	bool busy, prepared;
	int64_t seen_fence; /* the highest fence of the requests so far */
	uint64_t seen_seq;  /* the highest number of the requests with that fence */
	atomic_bool cancel;
	uint64_t reconciles;      /* number of the reconciling that brings up, or will bring up, ranks here; 0: none */
	uint64_t switch_id;       /* of the last Prepare */
	struct ptc_table_key key; /* of the table that Prepare made */
	/* A table of the bridge that a Prepare has dropped for want of room; snapshot 0: none. It is told until a
	 * Finish does not name it any more. */
	struct ptc_table_key yielded;
	int64_t copied_bytes; /* bytes that ptc_table_derive copied for that table */
	/* What Prepare has found missing, for Pull; NULL: nothing, or it is not known. Only the running operation uses
	 * it, and only while `prepared`. */
	struct ptc_kept_fill *fill;
	/* Digests of what the last Capture has copied, for the Pull of the same switch; NULL: there are none. Only the
	 * running operation uses them. */
	struct ptc_captured *captured;
};

/* Blocks of a job that no try could heal, and the time of the next try. */
struct ptc_heal_vain {
	char uuid[37]; /* empty: none */
	size_t blocks;
	int64_t again_ns; /* CLOCK_MONOTONIC */
};

/* The healing attempts of one reader; zeros before its first read. */
struct ptc_heal_tries {
	unsigned n, healed; /* blocks */
	bool now;           /* the next try does not wait, even if one has just failed */
};

struct ptc_agent {
	struct ptc_agent_env env;
	char *node;
	struct ptc_near *near;                  /* NULL: no node is near */
	struct ptc_pool send, recv, gate, push; /* see ticket.h */
	struct ptc_send_watch *sends;           /* of imports */
	struct {
		pthread_mutex_t lock;
		pthread_cond_t cond;
		struct ptc_agent_job *jobs;
		struct ptc_pinned_table *pinned;     /* pinned_tables.c */
		struct ptc_residents *residents;     /* memory/resident.c */
		struct ptc_prefetch *prefetched;     /* memory/prefetch.c */
		uint64_t prefetch_used;              /* of env.prefetch_bytes, by all jobs */
		struct ptc_thread_count reconcilers; /* threads of reconcile.c */
		uint64_t reconciled;                 /* the last number of ptc_agent_reconciles */
		bool stopping;
		bool healing; /* a thread heals: one at a time (healing/heal.c) */
	} shared;
	struct ptc_cache geometries; /* geometry/geometry_shape.c */
	_Atomic unsigned rendezvous;
	_Atomic unsigned near_calls; /* Fetch calls that give places in the chunk file */
	atomic_bool heal_stop;       /* healing asks no other node any more */
	struct ptc_heal_vain heal_vain[8];
	unsigned heal_vain_next; /* the entry to replace; both belong to the thread that heals */
	bool (*heal)(struct ptc_agent *agent, const char *uuid, struct ptc_heal_tries *tries);
	void (*wake)(struct ptc_agent *agent); /* operations that wait for ranks ask whether they have to stop */
};

static inline int ptc_agent_stall_ms(const struct ptc_agent *agent)
{
	return agent->env.stall_ms ? (int)agent->env.stall_ms : PTC_AGENT_STALL_MS;
}

/* Call this after a read of a job's bytes gave `status`. True: damaged blocks of the job were healed, so read again.
 * The call may ask other nodes, so do not call it with a ticket (ticket.h). */
static inline bool ptc_agent_heals(struct ptc_agent *agent, const char *uuid, int status, struct ptc_heal_tries *tries)
{
	return status == PTC_ECORRUPT && agent && agent->heal && agent->heal(agent, uuid, tries);
}
