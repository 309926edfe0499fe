/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent is given by ptcd: the store, the ranks, and whom it asks for documents and
 * channels. The owner keeps it until the agent is freed. Callbacks are called from any thread and
 * may block. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptc_agent;
struct ptc_job_desc;
struct ptc_layout;
struct ptc_node_devices;
struct ptc_rpc_channel;
struct ptc_spec;
struct ptc_store;
struct ptc_worker_event;
struct ptc_workers;

struct ptc_agent_env {
	struct ptc_store *store;
	const char *node;                 /* our name */
	uint64_t staging_bytes;           /* ticket pool */
	uint64_t work_bytes;              /* memory.work, for messages; 0: not said */
	struct ptc_node_devices *devices; /* for Stat; NULL: not said */
	const char *memory_json;          /* what Stat says under "memory": an object, or NULL: {} */
	/* Blocking, any thread: the parsed spec with that hash (a reference; release gives it back). Reads the blob from etcd on a miss. */
	int (*spec_get)(void *arg, const char *uuid, const char *hash, const struct ptc_spec **ret_spec, void **ret_ref,
			struct ptc_error *err);
	void (*spec_release)(void *arg, void *ref);
	/* Likewise a layout document with the spec it describes (formats/state/layout_doc.h). NULL: no declared layouts here. */
	int (*layout_get)(void *arg, const char *uuid, const char *hash, const struct ptc_spec **ret_spec,
			  const struct ptc_layout **ret_layout, void **ret_ref, struct ptc_error *err);
	void (*layout_release)(void *arg, void *ref);
	/* Likewise the job's description, for how its ranks are started. */
	int (*job_get)(void *arg, const char *uuid, const char *spec_hash, const struct ptc_job_desc **ret_job,
		       void **ret_ref, struct ptc_error *err);
	void (*job_release)(void *arg, void *ref);
	/* Blocking, any thread: a blob of a job, as it is; ptc_free it. */
	int (*blob_get)(void *arg, const char *uuid, const char *hash, char **ret_data, size_t *ret_len,
			struct ptc_error *err);
	/* The ranks on this node; NULL: none run here, and calls about them are PTC_ESTATE. Outlives the agent. */
	struct ptc_workers *workers;
	uint32_t finish_wait_ms; /* Finish waits so long for ranks to go before it answers; 0: 15 s */
	/* What failed when ranks were started or restored after Finish had been answered; any thread. May be NULL. */
	void (*event)(void *arg, const struct ptc_worker_event *event);
	/* A bulk or control channel to a node; cached and owned by the callee, valid until the agent is freed. lane: separate connections. */
	int (*channel)(void *arg, const char *node, const char *address, bool bulk, unsigned lane,
		       struct ptc_rpc_channel **ret_channel, struct ptc_error *err);
	void *arg;
};
