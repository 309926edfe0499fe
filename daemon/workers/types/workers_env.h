/* SPDX-License-Identifier: Apache-2.0 */
/* The environment that ptcd gives daemon/workers: the place of its files, and functions to call. The owner keeps it
 * until ptc_workers_free. Threads of daemon/workers call these functions, without its lock unless a comment says
 * otherwise. */
#pragma once

#include "daemon/workers/types/worker_event.h"

struct ptc_workers;

struct ptc_workers_env {
	const char *node;   /* this node's name */
	const char *dir;    /* 0711; has a folder for each job: socket and logs, which the job's owner owns, and files
			       to find processes again, which ptcd owns */
	const char *cgroup; /* parent of the groups' cgroups; NULL: found from /proc/self/cgroup, or none */
	const char *device_ids; /* UUIDs of the node's GPUs, with commas between, in the order of device numbers; NULL:
				   devices are virtual */
	unsigned devices;       /* of the node, each with a ring of page-locked memory; 0: as many as ptc-gpu serves */
	uint64_t pinned_bytes;  /* page-locked memory that ptc-gpu may use beside the rings */
	int64_t stall_ms;       /* time until STALLED, but at least 30 times a step's time; 0: never */
	int64_t copy_ms;        /* time after which a copy of at most 16 MiB hangs; 0: 30 s */
	void (*event)(void *arg, const struct ptc_worker_event *event);
	/* Take and give back bytes for a rank's staging memory (copy: fast). False: there is no room, and the rank's
	 * copies are lean. take may block; give is called under a lock. NULL: there is always room. */
	bool (*staging_take)(void *arg, const char *job, uint64_t bytes);
	void (*staging_give)(void *arg, uint64_t bytes);
	/* Takes bytes for memory that ptc-gpu is going to page-lock. PTC_ENOSPC: there is no room. NULL: there is
	 * always room. What was taken is given back when the workers are freed, or earlier. */
	int (*pinned_take)(void *arg, uint64_t bytes, struct ptc_error *err);
	void (*pinned_give)(void *arg, uint64_t bytes);
	/* A copy from or to memory of that process failed, for which the device is to blame. May block, and call
	 * ptc_workers_device_failed. NULL: nobody asks. */
	void (*device_failed)(void *arg, const char *uuid, pid_t pid);
	/* Asks the daemon of rank 0's node for a key, and blocks; that daemon answers by ptc_workers_rendezvous_get.
	 * Called only for groups whose rank 0 is on another node. */
	int (*rendezvous_get)(void *arg, const struct ptc_group_key *key, const char *node, const char *address,
			      const char *name, void *buffer, size_t capacity, size_t *ret_len,
			      const struct ptc_wait *wait, struct ptc_error *err);
	int (*rendezvous_put)(void *arg, const struct ptc_group_key *key, const char *node, const char *address,
			      const char *name, const void *value, size_t len, const struct ptc_wait *wait,
			      struct ptc_error *err);
	void *arg;
};
