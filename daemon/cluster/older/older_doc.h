/* SPDX-License-Identifier: Apache-2.0 */
/* /ptc/jobs/UUID/older: the snapshots that a job keeps beside the committed one (`keep` in job.yaml).
 *
 * Only two kinds of transactions write the document: one that also writes the record, or one that compares the record
 * and the lock. So a snapshot that is kept is always in the record or in this document, and a table is dropped only
 * after no key in etcd names it. Entries are ordered by snapshot number. Each snapshot and each rollback gets a higher
 * number, and no entry has the record's.
 *
 * Plain data; a struct of zeros has no snapshots. No thread. Failure modes: PTC_EINVAL naming what is wrong,
 * PTC_EVERSION, memory. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTC_OLDER_MAX   63 /* with the committed one as many as `keep` allows */
#define PTC_OLDER_HASH  33
#define PTC_OLDER_NODES 1024 /* bytes of names; a snapshot on more nodes is not kept */

/* A snapshot as the record had it, and the documents that belong to it alone. Hashes name blobs; "": there is none. */
struct ptc_older {
	uint64_t generation, snapshot, step;
	char manifest_hash[PTC_OLDER_HASH], generation_hash[PTC_OLDER_HASH], layout_hash[PTC_OLDER_HASH],
		state_hash[PTC_OLDER_HASH];
	/* Names of the nodes that have its tables, with spaces between. If another node has a table of that name, it is
	 * of a switch that was aborted while the node was down, and is dropped. */
	char nodes[PTC_OLDER_NODES];
};
struct ptc_older_doc {
	struct ptc_older v[PTC_OLDER_MAX]; /* oldest first */
	size_t n;
};

char *ptc_older_doc_encode(const struct ptc_older_doc *d); /* ptc_free it; NULL: out of memory */
int ptc_older_doc_decode(const char *json, size_t len, struct ptc_older_doc *ret, struct ptc_error *err);
/* The snapshot with that number; NULL: there is none. */
const struct ptc_older *ptc_older_find(const struct ptc_older_doc *d, uint64_t snapshot);
bool ptc_older_has(const struct ptc_older *o, const char *node); /* whether the node is one of them */
int ptc_older_node_add(struct ptc_older *o, const char *node);   /* 0 or PTC_ELIMIT */
/* Gives the place of the oldest snapshot on the node that may be dropped to make room there: any but `source`, to which
 * the job goes back (0: it does not). d->n: there is none. */
size_t ptc_older_oldest_on(const struct ptc_older_doc *d, const char *node, uint64_t source);
/* Adds a snapshot, newer than all. If there are as many as there may be, the oldest goes. */
void ptc_older_add(struct ptc_older_doc *d, const struct ptc_older *o);
void ptc_older_drop(struct ptc_older_doc *d, size_t n);      /* the oldest n */
void ptc_older_drop_one(struct ptc_older_doc *d, size_t at); /* at < d->n */
/* Drops what a job does not keep. It keeps the newest last - 1 (the committed one is not here). If every > 0, it also
 * keeps the first one in each span of `every` steps. If more than `most` remain, the oldest go. */
void ptc_older_prune(struct ptc_older_doc *d, uint32_t last, uint64_t every, size_t most);
