/* SPDX-License-Identifier: Apache-2.0 */
/* libptcadmin: a cluster whose etcd is gone for good goes on with an empty one (docs/failures.md). Only root may call
 * this. Errors, ownership, threads and compatibility: <ptc/admin.h>. */
#ifndef PTC_ADMIN_RECOVER_H
#define PTC_ADMIN_RECOVER_H

#include <ptc/admin.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ptc_admin_recover {
	size_t size;
	const char *const *nodes; /* NAME=ADDRESS: the whole set; the node that is asked is one of them */
	size_t nnodes;
	bool dry_run;     /* only say which commits would be taken */
	bool old_is_gone; /* go on even if the nodes' former etcd still answers */
	bool rejoin; /* instead: the node that is asked joins a cluster that was recovered without it. nodes: none */
	bool drop;   /* with rejoin: its bytes of jobs that the cluster does not know are dropped */
};
/* ret_json: {epoch, jobs, lines} (docs/control.md). PTC_ESTATE: a node does not wait for an etcd, the new etcd is not
 * empty, or the former etcd still answers. Nothing has changed then. */
PTC_ADMIN_API int ptc_admin_cluster_recover(struct ptc_admin *a, const struct ptc_admin_recover *how, char **ret_json,
					    struct ptc_error *err);

#ifdef __cplusplus
}
#endif
#endif
