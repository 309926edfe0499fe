/* SPDX-License-Identifier: Apache-2.0 */
/* The node's scrubber: one thread that reads idle chunks at the configured rate. It has damaged blocks healed as soon
 * as it or any reader has found them, and writes to etcd which blocks could not be healed.
 *
 * Happy path: call new once the servers answer; it starts the thread. The thread makes one round after another over all
 * sealed tables, and pauses while a switch is under way on this node. Then stop and free. Failure modes: a block
 * without a copy is tried again every half minute, and stands in /ptc/jobs/UUID/damage/NODE until it is right or gone;
 * etcd unreachable: it is written later.
 *
 * Threads: any but the loop for ptc_committed_get; any for the rest, except ptc_bad_blocks_tell (the scrubber's only).
 */
#pragma once

#include "daemon/agent/calls/agent_env.h"
#include "daemon/documents/documents.h"
#include "daemon/store/store.h"

struct ptc_scrubber;
struct ptc_scrubber_opts {
	struct ptc_cluster *cluster; /* borrowed, all of these */
	struct ptc_store *store;
	struct ptc_agent *agent;
	const char *node;
	uint64_t rate;     /* bytes a second; 0: nothing is read, what readers find is healed all the same */
	uint64_t pause_ms; /* between rounds */
};
int ptc_scrubber_new(const struct ptc_scrubber_opts *opts, struct ptc_scrubber **ret_scrubber, struct ptc_error *err);
void ptc_scrubber_stop(struct ptc_scrubber *s); /* waits for its thread; before the agent and the cluster go; NULL ok */
struct ptc_scrubber *ptc_scrubber_free(struct ptc_scrubber *s); /* when nobody wakes it any more; NULL ok */
void ptc_scrubber_wake(struct ptc_scrubber *s);                 /* a block was found damaged; does not block; NULL ok */

struct ptc_scrub_progress {
	uint64_t rate;                    /* as configured */
	uint64_t bytes, rounds;           /* verified, and rounds ended, since the start */
	uint64_t round_bytes, round_left; /* of the round under way */
	uint64_t found, healed;           /* blocks: by the scrubber; by anybody here */
	uint64_t damaged;                 /* blocks that are known to be damaged now */
	int64_t round_ended_ms;           /* the last one, since 1970; 0: none has */
	bool paused;                      /* a switch is under way */
};
void ptc_scrubber_progress(struct ptc_scrubber *s, struct ptc_scrub_progress *ret); /* NULL: zeros */

/* Gives the agent a job's committed state (ptc_agent_env). Blocking; reads documents. */
int ptc_committed_get(const struct ptc_documents *docs, struct ptc_agent *agent, const char *uuid,
		      struct ptc_agent_committed *ret, struct ptc_error *err);
void ptc_committed_release(struct ptc_agent_committed *c);

/* ---- bad_blocks.c: /ptc/jobs/UUID/damage/NODE ---- */
#define PTC_BAD_BLOCKS_SHOWN 16
struct ptc_bad_blocks; /* what was written last, of each job */
struct ptc_bad_blocks *ptc_bad_blocks_new(struct ptc_cluster *cluster, struct ptc_store *store, const char *node);
struct ptc_bad_blocks *ptc_bad_blocks_free(struct ptc_bad_blocks *b);
/* Writes what has changed; *ret_n: blocks that are damaged now. One thread. */
void ptc_bad_blocks_tell(struct ptc_bad_blocks *b, uint64_t *ret_n);
