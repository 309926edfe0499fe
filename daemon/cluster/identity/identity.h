/* SPDX-License-Identifier: Apache-2.0 */
/* Which cluster an etcd or a state directory belongs to, and its coordination epoch: the value of /ptc/cluster, and the
 * file `cluster` in the state directory, which has the same bytes. The epoch grows each time another etcd takes the
 * place of one that is gone (`ptcctl cluster recover`). An epoch of 0 is left out of the value, so versions of ptcd
 * that know no epoch can read it.
 *
 * Plain data; functions with an etcd block. Failure modes: PTC_EINVAL and PTC_EVERSION for what cannot be read;
 * memory. */
#pragma once

#include "daemon/coord/etcd.h"

#define PTC_CLUSTER_KEY       "/ptc/cluster"
#define PTC_CLUSTER_MAX_BYTES 4096

struct ptc_identity {
	char id[37];
	int64_t epoch;
};
int ptc_identity_decode(const char *what, const char *text, struct ptc_identity *ret, struct ptc_error *err);
char *ptc_identity_encode(const struct ptc_identity *i); /* ptc_free it; NULL: out of memory */

enum ptc_identity_fit {
	PTC_IDENTITY_SAME,   /* or the state directory is new */
	PTC_IDENTITY_EMPTY,  /* etcd has no /ptc/cluster, but the state directory names one */
	PTC_IDENTITY_BEHIND, /* same cluster; etcd is of a later epoch than the state directory */
	PTC_IDENTITY_OLD,    /* same cluster; etcd is of an earlier epoch: it has been replaced */
	PTC_IDENTITY_OTHER,  /* another cluster */
};
/* Compares a state directory's text (NULL: it has none) with etcd's (NULL: none). */
enum ptc_identity_fit ptc_identity_fit(const char *own, const char *etcd);
/* Explains a fit that is not SAME, in one line that also says what to do. Returns PTC_ESTATE. */
int ptc_identity_explain(enum ptc_identity_fit fit, const char *state_dir, const char *own, const char *etcd,
			 struct ptc_error *err);

/* Remembers which endpoints answered, in state_dir/coordinator. */
int ptc_identity_remember(const char *state_dir, const struct ptc_etcd_opts *opts, struct ptc_error *err);
/* Whether an etcd that was remembered, and is not among opts' endpoints, answers. *ret_endpoint: which; ptc_free it;
 * NULL: none does. */
int ptc_identity_old_answers(const char *state_dir, const struct ptc_etcd_opts *opts, char **ret_endpoint,
			     struct ptc_error *err);

/* Notes durably, in state_dir/replaced, the identity of a node that has told this one of a later epoch. */
int ptc_identity_told(const char *state_dir, const char *text, struct ptc_error *err);
/* Whether the node was told of a later epoch than etcd's (etcd: its text). PTC_ESTATE: it was, and err says what to do.
 */
int ptc_identity_check_told(const char *state_dir, const char *etcd, struct ptc_error *err);
/* Does the same with what `node` says now (theirs). own: the identity of this node's state directory. */
int ptc_identity_check_peer(const char *own, const char *node, const char *theirs, struct ptc_error *err);
