/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a recovery. All functions block; each call has its own data. */
#pragma once

#include "daemon/api/recover/inventory.h"
#include "daemon/api/recover/recover.h"
#include "daemon/cluster/identity/identity.h"
#include "daemon/documents/kept/durable.h"

#define PTC_RECOVER_MARKER "/ptc/recovering"

/* ---- recover_committed.c: what this node keeps ---- */
/* ptc_inventory_done *ret. */
int ptc_recover_inventory(struct ptc_daemon *d, struct ptc_inventory *ret, struct ptc_error *err);
/* The documents in this node's store. PTC_ENOTFOUND: it keeps none of that job. */
int ptc_recover_own(struct ptc_daemon *d, const char *uuid, struct ptc_durable *ret, struct ptc_error *err);

/* ---- collect.c: what all nodes keep ---- */
struct ptc_recover_node {
	char *name, *address;
	struct ptc_inventory has;
};
struct ptc_recover_set {
	struct ptc_daemon *d;
	struct ptc_recover_node *v;
	size_t n;
	struct ptc_identity identity; /* with the greatest epoch of the nodes */
};
void ptc_recover_set_done(struct ptc_recover_set *s);
/* Asks every node. specs: NAME=ADDRESS, this node among them. dry: a dry run, so nodes need not be waiting for an
 * etcd. */
int ptc_recover_set_ask(struct ptc_recover_set *s, char *const *specs, size_t n, bool dry, bool old_is_gone,
			struct ptc_error *err);
/* Has every node take the identity over. */
int ptc_recover_set_raise(const struct ptc_recover_set *s, const struct ptc_identity *to, struct ptc_error *err);
/* Reads the documents that this node of the set keeps of a job. */
int ptc_recover_fetch(const struct ptc_recover_set *s, size_t node, const char *uuid, struct ptc_durable *ret,
		      struct ptc_error *err);

/* ---- recover_choose.c: which commit of a job ---- */
struct ptc_recover_choice {
	char uuid[PTC_UUID_TEXT], name[PTC_NAME_MAX + 1];
	size_t node; /* whose documents are taken */
	uint64_t epoch, generation, snapshot, step;
	int64_t revision;
	bool complete;
	char *line; /* for a person */
};
/* Chooses a commit for every job of which a node keeps documents: the newest that is complete, else the newest.
 * ptc_free each line, then *ret_v. */
int ptc_recover_choose(const struct ptc_recover_set *s, struct ptc_recover_choice **ret_v, size_t *ret_n,
		       struct ptc_error *err);

/* ---- write_jobs.c: etcd ---- */
/* Whether etcd may be filled. PTC_ESTATE: it has jobs, or the cluster goes on with it already. */
int ptc_recover_etcd_check(struct ptc_etcd *e, struct ptc_error *err);
/* Removes what an earlier attempt wrote; from then on *ret_revision guards each write. */
int ptc_recover_etcd_begin(struct ptc_etcd *e, int64_t *ret_revision, struct ptc_error *err);
/* PTC_EEXIST: the user has another job of that name, which was written before. */
int ptc_recover_etcd_job(struct ptc_etcd *e, int64_t revision, const struct ptc_durable *d, struct ptc_error *err);
/* key: the id of the key that descriptions are sealed with; NULL: not known. */
int ptc_recover_etcd_end(struct ptc_etcd *e, int64_t revision, const struct ptc_identity *to, const char *key,
			 struct ptc_error *err);

/* ---- rejoin.c: a node that was not one of the set ---- */
/* ptc_free *ret_text: lines for a person. */
int ptc_recover_rejoin(struct ptc_daemon *d, bool drop, char **ret_text, struct ptc_error *err);
