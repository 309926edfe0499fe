/* SPDX-License-Identifier: Apache-2.0 */
/* The environment that ptcd gives the agent: the store, the ranks, and functions that get documents and channels. The
 * owner keeps it until the agent is freed. The agent calls these functions from any thread; they may block. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptc_agent;
struct ptc_geometry;
struct ptc_job_desc;
struct ptc_layout;
struct ptc_node_devices;
struct ptc_rpc_channel;
struct ptc_spec;
struct ptc_store;
struct ptc_store_damage;
struct ptc_worker_event;
struct ptc_workers;

/* A job's committed state, for healing. The environment's owner keeps it until committed_release. */
struct ptc_agent_committed {
	const struct ptc_geometry *g; /* with the generation and snapshot of its tables */
	const uint64_t *digests;      /* of the manifest, by item */
	size_t ndigests;
	void *ref; /* the owner's */
};
/* The outcome for a damaged block. Valid during the call. */
struct ptc_agent_healed {
	const struct ptc_store_damage *what;
	int status;       /* 0: the block is healed */
	const char *text; /* the source of the bytes, or the reason for the failure */
};

struct ptc_agent_env {
	struct ptc_store *store;
	const char *node;        /* this node's name */
	const char *near_socket; /* of direct reads, for near nodes (near/near.h); copied; NULL: no node is near */
	uint64_t staging_bytes;  /* limit of the ticket pools */
	uint64_t work_bytes;     /* memory.work, for messages; 0: unknown */
	uint64_t copies_rate;    /* bytes a second that copies may bring to this node; 0: no limit */
	struct ptc_node_devices *devices; /* for Stat; NULL: unknown */
	uint64_t device_copy_bytes;       /* of each device, for boxes that stay on it during a switch; 0: none */
	uint64_t prefetch_bytes;          /* of the node, page-locked, for bytes read before a restore; 0: none */
	const char *memory_json;          /* Stat's member "memory": an object; NULL: {} */
	/* Bytes of ptc-fuse's backing files, and of the open ones among them, for the same member. false: there is no
	 * ptc-fuse here. NULL: never. */
	bool (*backing)(void *arg, uint64_t *ret_bytes, uint64_t *ret_open);
	/* Gives a reference to the parsed spec with that hash. If the spec is not in memory, reads its blob from etcd.
	 * spec_release gives the reference back. */
	int (*spec_get)(void *arg, const char *uuid, const char *hash, const struct ptc_spec **ret_spec, void **ret_ref,
			struct ptc_error *err);
	void (*spec_release)(void *arg, void *ref);
	/* Does the same for a layout document and the spec in it (formats/state/layout_doc.h). NULL: there are no
	 * declared layouts here. */
	int (*layout_get)(void *arg, const char *uuid, const char *hash, const struct ptc_spec **ret_spec,
			  const struct ptc_layout **ret_layout, void **ret_ref, struct ptc_error *err);
	void (*layout_release)(void *arg, void *ref);
	/* Does the same for the job's description, which says how its ranks are started. */
	int (*job_get)(void *arg, const char *uuid, const char *spec_hash, const struct ptc_job_desc **ret_job,
		       void **ret_ref, struct ptc_error *err);
	void (*job_release)(void *arg, void *ref);
	/* Gives a copy of a job's blob; ptc_free it. */
	int (*blob_get)(void *arg, const char *uuid, const char *hash, char **ret_data, size_t *ret_len,
			struct ptc_error *err);
	/* Gives the least fence that a controller of the job can have by now, as far as this node knows. Called at the
	 * first request of a job since the daemon's start, because a new store has noted no fence. NULL: 0.
	 * PTC_ECANCELED: the daemon stops. */
	int (*least_fence)(void *arg, const char *uuid, int64_t *ret_fence);
	/* etcd's revision when this node's store came into the cluster; 0: it is not in it yet. NULL: it always was.
	 * Any thread. */
	int64_t (*store_since)(void *arg);
	/* Keeps what is committed of the job, durably, before tables of an earlier commit are dropped. NULL: nothing is
	 * kept. */
	int (*keep_committed)(void *arg, const char *uuid, struct ptc_error *err);
	/* The ranks on this node; outlives the agent. NULL: no ranks run here, and calls about ranks are PTC_ESTATE. */
	struct ptc_workers *workers;
	uint32_t finish_wait_ms; /* the longest time that Finish waits for ranks before it answers; 0: 15 s */
	uint32_t stall_ms;       /* another node fails that sends, or takes, nothing for so long; 0: 60 s */
	/* Reports a failure to start or restore ranks after Finish has been answered. May be NULL. */
	void (*event)(void *arg, const struct ptc_worker_event *event);
	/* Gives a job's committed state. PTC_ENOTFOUND: there is none. Another code: it cannot be read. NULL: the agent
	 * heals nothing. */
	int (*committed_get)(void *arg, const char *uuid, struct ptc_agent_committed *ret, struct ptc_error *err);
	void (*committed_release)(void *arg, struct ptc_agent_committed *committed);
	/* Reports the outcome for a damaged block, under the healing lock; so it must not heal. May be NULL. */
	void (*healed)(void *arg, const struct ptc_agent_healed *healed);
	/* Gives a bulk or control channel to a node. The callee owns and caches it until the agent is freed. Each lane
	 * has a connection of its own. */
	int (*channel)(void *arg, const char *node, const char *address, bool bulk, unsigned lane,
		       struct ptc_rpc_channel **ret_channel, struct ptc_error *err);
	void *arg;
};
