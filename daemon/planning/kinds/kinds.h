/* SPDX-License-Identifier: Apache-2.0 */
/* Which kind of device each node has, and its figures: peak FLOP/s, memory, price. Nodes announce a name, as the driver
 * or ptcd.yaml says; a devices file knows what that is (deploy/devices.yaml). Plain data of the caller. Pure but for
 * ptc_kinds_load, which reads a file; any thread.
 *
 * Failure modes: a devices file that cannot be read or is wrong, in one line; a device that does not compute the job's
 * data type. A name that nobody knows is no failure: the text says what it is taken for. */
#pragma once

#include "base/limits.h"
#include "daemon/cluster/records.h"
#include "planner/io/plan_doc.h"

/* A node as the planner sees it. */
struct ptc_planning_node {
	char name[PTC_NAME_MAX + 1];
	uint32_t devices;                        /* that may be used */
	char device_name[PTC_DEVICE_NAME_BYTES]; /* as the node announces it; "": it does not */
	uint64_t device_bytes;                   /* memory of a device; 0: not known */
};

/* Reads a devices file. path NULL: the installed one or, without that, the devices that the program knows itself.
 * ptc_free the result. */
int ptc_kinds_load(const char *path, struct ptc_plan_devices **ret, struct ptc_error *err);

#define PTC_KINDS_SAID_MAX 256
struct ptc_kinds_ask {
	const struct ptc_planning_node *nodes;
	size_t nnodes;
	uint32_t per_node;                     /* devices that a node counts as having */
	const struct ptc_plan_devices *known;  /* NULL: those that the program knows itself */
	const struct ptc_cluster_profile *own; /* kinds of the cluster's profile, which go first; NULL: there is none */
	enum ptc_math dtype;
};
struct ptc_kinds {
	struct ptc_device_kind v[PTC_DEVICE_MAX_KINDS]; /* with the number of their nodes */
	uint32_t n;
	bool assumed;                  /* nothing says what any device is */
	bool memory_known;             /* of every kind */
	char said[PTC_KINDS_SAID_MAX]; /* what had to be assumed; "": nothing */
};
#define PTC_KIND_NONE UINT8_MAX /* a node without a device, or of a kind beyond PTC_DEVICE_MAX_KINDS */
/* kind_of: for each node, its place in ret->v, or PTC_KIND_NONE. PTC_EINVAL: a device does not compute dtype. */
int ptc_kinds_find(const struct ptc_kinds_ask *ask, struct ptc_kinds *ret, uint8_t *kind_of, struct ptc_error *err);
