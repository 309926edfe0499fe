/* SPDX-License-Identifier: Apache-2.0 */
/* /ptc/jobs/UUID/copies: the boxes of a job's committed state that nodes have beyond those of its generation's layout.
 *
 * It is valid for one generation and one content (the manifest's digests): for every snapshot of that generation with
 * the same bytes, and for no other. Only the job's controller writes it, while it holds the lock, the record is the one
 * that it saw and no switch is under way. A table is named here before anybody reads it for a copy, and is dropped
 * after no document names it any more.
 *
 * A struct of zeros is a document without copies. Plain data of the caller; no thread. Failure modes: PTC_EINVAL naming
 * what is wrong, PTC_EVERSION, memory. */
#pragma once

#include "base/limits.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTC_COPIES_MAX_BYTES (512u << 10) /* of the document: etcd takes 1.5 MiB in a request */
#define PTC_COPIES_HASH      33

/* A table of copies has a snapshot number that no snapshot has. */
#define PTC_COPIES_TABLE (UINT64_C(1) << 62)

/* A node, and its table, which has its copies and what the layout puts there. */
struct ptc_copies_keeper {
	char node[PTC_NAME_MAX + 1];
	uint64_t generation, table; /* the table's snapshot number */
};
struct ptc_copies_part {
	uint32_t keeper, rank, items; /* indices: the keeper has a copy of what `rank` holds of the set `items` */
};
struct ptc_copies_set { /* of items: a bit for each */
	uint8_t *v;
	size_t n;
};
struct ptc_copies_doc {
	uint64_t generation;
	char generation_hash[PTC_COPIES_HASH]; /* of its document, with the layout and the nodes */
	char content[PTC_COPIES_HASH];         /* ptc_copies_content of the manifest's digests */
	struct ptc_copies_keeper *keepers;
	size_t nkeepers;
	struct ptc_copies_part *parts;
	size_t nparts;
	struct ptc_copies_set *items; /* all of the same length */
	size_t nitems;
	/* Tables of copies of earlier commits. They are dropped when the copies of this commit are complete, or need
	 * the room. */
	struct ptc_copies_keeper *old;
	size_t nold;
};
void ptc_copies_doc_done(struct ptc_copies_doc *d); /* one of zeros is fine; zeroes it */
int ptc_copies_doc_copy(const struct ptc_copies_doc *d, struct ptc_copies_doc *ret); /* 0 or PTC_ENOMEM */
char *ptc_copies_doc_encode(const struct ptc_copies_doc *d); /* ptc_free it; NULL: out of memory */
int ptc_copies_doc_decode(const char *json, size_t len, struct ptc_copies_doc *ret, struct ptc_error *err);
/* Names the bytes of a state, by its tensors' digests. */
void ptc_copies_content(const uint64_t *digests, size_t n, char ret[PTC_COPIES_HASH]);
/* Takes a node out, with its copies. */
void ptc_copies_doc_drop(struct ptc_copies_doc *d, const char *node);
/* Copies the node's entry from `from` to d, which has none of it. If `from` has none either, nothing happens. d must
 * begin with the same sets of items as `from`. 0 or PTC_ENOMEM. */
int ptc_copies_doc_restore(struct ptc_copies_doc *d, const struct ptc_copies_doc *from, const char *node);
/* Gives the number of a set of items; adds the set if d lacks it. bytes: its length. 0 or PTC_ENOMEM. */
int ptc_copies_doc_items(struct ptc_copies_doc *d, const uint8_t *items, size_t bytes, uint32_t *ret);
/* _hold sets the table that a node has from now on; _add adds a copy in it. 0 or PTC_ENOMEM. */
int ptc_copies_doc_hold(struct ptc_copies_doc *d, const char *node, uint64_t table, uint32_t *ret_keeper);
int ptc_copies_doc_add(struct ptc_copies_doc *d, uint32_t keeper, uint32_t rank, uint32_t items);
/* The keeper that the node is; NULL: none. */
const struct ptc_copies_keeper *ptc_copies_keeper(const struct ptc_copies_doc *d, const char *node);
/* Calls fn for each table of the node that the document names, old ones too. */
typedef void (*ptc_copies_table_fn)(void *arg, uint64_t generation, uint64_t table);
void ptc_copies_tables(const struct ptc_copies_doc *d, const char *node, ptc_copies_table_fn fn, void *arg);
