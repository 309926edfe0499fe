/* SPDX-License-Identifier: Apache-2.0 */
/* /ptc/jobs/UUID/older: the snapshots that a job keeps beside the committed one (`keep` in job.yaml).
 *
 * Only two kinds of transactions write the document: one that also writes the record, or one that compares the record
 * and the lock. So a snapshot that is kept is always in the record or in this document, and a table is dropped only
 * after no key in etcd names it. Entries are ordered by snapshot number. Each snapshot and each rollback gets a higher
 * number, and no entry has the record's.
 *
 * Beside these there may be a bridge: the snapshot to which a job with `copies` goes back if the record's snapshot is
 * lost before its copies are complete (docs/decisions/0058-bridges.md). While there is a bridge, the record's copies
 * are not known to be complete. A bridge may also be one of the entries, and may have the number of the record's
 * snapshot: a resize gives the same state to another generation. A version that does not know bridges ignores it.
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
	char copies_hash[PTC_OLDER_HASH]; /* of a bridge: its copies, as copies_doc.h has them */
	/* The job has gone back to a snapshot before this one. A person may go back to this one; ptc does not. */
	bool left;
	/* Names of the nodes that have its tables, with spaces between. If another node has a table of that name, it is
	 * of a switch that was aborted while the node was down, and is dropped. */
	char nodes[PTC_OLDER_NODES];
};
struct ptc_older_doc {
	struct ptc_older v[PTC_OLDER_MAX]; /* oldest first */
	size_t n;
	struct ptc_older bridge; /* snapshot 0: there is none */
};

char *ptc_older_doc_encode(const struct ptc_older_doc *d); /* ptc_free it; NULL: out of memory */
int ptc_older_doc_decode(const char *json, size_t len, struct ptc_older_doc *ret, struct ptc_error *err);
/* Whether the document says nothing: its key goes. */
bool ptc_older_doc_empty(const struct ptc_older_doc *d);
/* The snapshot with that number, the bridge first; NULL: there is none. */
const struct ptc_older *ptc_older_find(const struct ptc_older_doc *d, uint64_t snapshot);
/* The one with that table, on whatever nodes; NULL: there is none. */
const struct ptc_older *ptc_older_table(const struct ptc_older_doc *d, uint64_t generation, uint64_t snapshot);
/* The newest one below `below` that the job may go back to by itself; NULL: there is none. */
const struct ptc_older *ptc_older_before(const struct ptc_older_doc *d, uint64_t below);
/* The job goes back to that entry: those that are newer are left, and the bridge goes if it is newer. */
void ptc_older_go_back(struct ptc_older_doc *d, uint64_t snapshot);
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
