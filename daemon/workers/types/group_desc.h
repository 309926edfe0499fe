/* SPDX-License-Identifier: Apache-2.0 */
/* A group: the ranks of one (job, generation, incarnation) on a node. Its key names it, and its description has all the
 * facts to start it. Plain data without functions; the caller who makes it owns it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct ptc_wait {
	bool (*cancelled)(void *arg); /* asked at least every 100 ms; NULL: never */
	void *arg;
	int64_t timeout_ms; /* 0: none */
};

struct ptc_group_key {
	char uuid[37];
	uint64_t generation, incarnation;
};

enum ptc_worker_mode { PTC_MODE_RESTART, PTC_MODE_REBUILD };

struct ptc_group_rank {
	uint32_t rank, local_rank, device;
	uint32_t tp, pp, dp, cp; /* coordinates */
};

/* All facts that a process needs for its start and about its generation. Borrowed during the call. */
struct ptc_group_desc {
	struct ptc_group_key key;
	const char *job;
	uid_t uid; /* the job's owner: processes run as this user, with its groups */
	enum ptc_worker_mode mode;
	bool fast_copy; /* copy: fast */
	/* its ranks may share devices with ranks of other jobs that allow it, too */
	bool share_devices;
	/* the configuration has recompute, schedule; the program promises to follow it */
	bool recomputes, scheduled;
	bool low; /* while others train: its processes start with a low priority */
	/* standby: import: how long a process that waits without a rank may take to come to ptc_next; 0: there are
	 * none. Then no process of the job gets variables that say which rank it is. */
	uint64_t standby_ms;
	uint64_t snapshot_every;              /* 0: never */
	uint32_t grace_ms;                    /* from the request to exit to SIGKILL */
	uint64_t log_bytes;                   /* newest bytes to keep of one rank's output; 0: 64 MiB */
	const char *const *argv, *const *env; /* NULL-terminated; env has NAME=VALUE */
	const char *cwd;
	const char *config;  /* canonical text */
	uint32_t degrees[6]; /* tp pp dp cp ep etp */
	uint32_t zero, micro_batch, global_batch;
	uint32_t world, node_rank, nodes;
	const struct ptc_group_rank *ranks; /* of this node */
	size_t nranks;
	char rank0_node[64], rank0_address[256]; /* the node that keeps the rendezvous keys */
};
