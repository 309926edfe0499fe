/* SPDX-License-Identifier: Apache-2.0 */
/* A node as `nodes` lists it (docs/control.md): what the cluster knows of it, and its own answer to Peer/Stat, which
 * daemon/agent/switch/switch_calls.c writes. Plain data of the caller, any thread.
 *
 * Failure modes: PTC_EINVAL (the answer is malformed; the error names the member), PTC_ENOMEM. */
#pragma once

#include "daemon/cluster/records.h"
#include "formats/json.h"

/* A process on a device. */
struct ptc_node_process {
	char job[PTC_NAME_MAX + 1]; /* "": the caller may not know it */
	bool has_uid;               /* false: the node's version is older, and does not say whose process it is */
	int64_t uid, pid;
	uint32_t rank;
};
/* A job that has a device. */
struct ptc_node_owner {
	int64_t uid;
	char job[PTC_NAME_MAX + 1]; /* "": the caller may not know it */
};
struct ptc_node_device_said {
	uint32_t device;
	char *kind, *health;
	char *uuid, *name, *bus; /* NULL: a virtual device, which lacks the next members too */
	uint32_t index, processes;
	uint64_t memory_bytes, free_bytes;
	char *why; /* it is not well; NULL: it is */
	struct ptc_node_process *ranks;
	size_t nranks;
	/* not in the node's answer: borrowed from `given` of the listed node */
	struct ptc_node_owner *jobs;
	size_t njobs;
};
/* What a node says of itself. */
struct ptc_node_stat {
	uint32_t version;
	struct {
		uint64_t ceiling, used, file, chunks_used, chunks_free, copied, lost_jobs, outside, pinned;
		bool has_pinned; /* false: the node's version is older, and does not say pinned */
	} store;
	struct {
		uint64_t ceiling, peak;
	} staging;
	struct {
		uint64_t ceiling, chunks, staging, work, transport, etcd, tables;
		uint64_t backing, backing_open; /* beside the ceiling */
		bool has_backing;               /* false: the node serves no files, or its version is older */
	} memory;
	struct {
		uint64_t used, peak;
	} heap;
	struct ptc_node_device_said *devices;
	size_t ndevices;
};
/* On failure *ret is empty. */
int ptc_node_stat_decode(const char *json, struct ptc_node_stat *ret, struct ptc_error *err);

/* A device that jobs have. */
struct ptc_node_given {
	uint32_t device;
	struct ptc_node_owner *jobs;
	size_t njobs;
};
struct ptc_node_listed {
	struct ptc_node_doc doc;
	bool up, drained, lost, unreachable;
	int64_t quarantined_s;               /* 0: it is not */
	char unhealthy[PTC_UNHEALTHY_BYTES]; /* as in doc, with what operators say */
	struct ptc_node_given *given;        /* by device */
	size_t ngiven;
	uint32_t devices_free;
	bool answered;
	struct ptc_node_stat stat;
	const char *state; /* set by _json */
};
/* Adds a job that has the device; devices come in order. 0 or PTC_ENOMEM. */
int ptc_node_given_add(struct ptc_node_listed *n, uint32_t device, const struct ptc_node_owner *job);
/* Also completes n. NULL: out of memory. */
json_t *ptc_node_listed_json(struct ptc_node_listed *n);
void ptc_node_listed_done(struct ptc_node_listed *n);
