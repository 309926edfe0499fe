/* SPDX-License-Identifier: Apache-2.0 */
/* What one node keeps of committed jobs. Peers exchange it as JSON. Each version of ptcd can also read that of the
 * version before:
 *
 *   {version, node, cluster, waits, old, jobs: [{uuid, tables: [[generation, snapshot], ...], name, epoch, revision}]}
 *
 * Plain data; zeros are a node that keeps nothing. No thread. Failure modes: PTC_EINVAL and PTC_ELIMIT, which name the
 * node and the member; PTC_ENOMEM. */
#pragma once

#include "base/limits.h"
#include "base/status.h"
#include "daemon/cluster/records.h"

struct ptc_inventory_table {
	uint64_t generation, snapshot;
};
struct ptc_inventory_job {
	char uuid[PTC_UUID_TEXT];
	struct ptc_inventory_table *tables; /* those that are sealed */
	size_t ntables;
	/* of the documents that the node keeps; revision 0: it keeps none that can be read */
	char name[PTC_NAME_MAX + 1];
	uint64_t epoch, revision;
};
struct ptc_inventory {
	char node[PTC_NAME_MAX + 1];
	char *cluster; /* its ptc_identity, as text */
	bool waits;    /* for an etcd of a later epoch */
	char *old;     /* the endpoint of its former etcd, if that answers; otherwise "" */
	struct ptc_inventory_job *jobs;
	size_t njobs;
};

void ptc_inventory_done(struct ptc_inventory *v);
char *ptc_inventory_encode(const struct ptc_inventory *v); /* ptc_free it; NULL: out of memory */
/* what: names the node in errors. */
int ptc_inventory_decode(const char *what, const char *json, struct ptc_inventory *ret, struct ptc_error *err);
/* NULL: the node has nothing of the job. */
const struct ptc_inventory_job *ptc_inventory_find(const struct ptc_inventory *v, const char *uuid);
