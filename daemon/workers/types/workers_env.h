/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks room is given by ptcd: where it keeps its files, and whom it calls. The owner
 * keeps it until the room is freed. Callbacks come from threads of the room, without its lock
 * unless one says otherwise. */
#pragma once

#include "daemon/workers/types/worker_event.h"

struct ptc_workers;

struct ptc_workers_env {
	const char *node; /* our name */
	const char *
		dir; /* 0711: a folder per job inside, its owner's: socket, logs; ours: what is needed to find processes again */
	const char *cgroup; /* where groups' cgroups are made; NULL: found from /proc/self/cgroup, or none */
	const char *
		device_ids; /* UUIDs of the node's GPUs, which device numbers count, with commas between; NULL: virtual ones */
	uint64_t pinned_bytes; /* page-locked memory that ptc-gpu may use */
	int64_t stall_ms;      /* STALLED is said after this long, and not before 30 times what a step took; 0: never */
	int64_t copy_ms;       /* a copy of at most 16 MiB that has not answered for so long hangs; 0: 30 s */
	void (*event)(void *arg, const struct ptc_worker_event *event);
	/* Bytes for a rank's staging memory (copy: fast) are taken, or given back; false: there is no room, its copies are lean then.
	 * take may block, give is called under a lock. NULL: there always is room. */
	bool (*staging_take)(void *arg, const char *job, uint64_t bytes);
	void (*staging_give)(void *arg, uint64_t bytes);
	/* Blocking: asks the daemon of rank 0's node for a key (it answers ptc_workers_rendezvous_get); only for groups whose rank 0 is elsewhere. */
	int (*rendezvous_get)(void *arg, const struct ptc_group_key *key, const char *node, const char *address,
			      const char *name, void *buffer, size_t capacity, size_t *ret_len,
			      const struct ptc_wait *wait, struct ptc_error *err);
	int (*rendezvous_put)(void *arg, const struct ptc_group_key *key, const char *node, const char *address,
			      const char *name, const void *value, size_t len, const struct ptc_wait *wait,
			      struct ptc_error *err);
	void *arg;
};
