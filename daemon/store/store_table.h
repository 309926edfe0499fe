/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of a node's store while they are made: begun, derived from an older one, reserved, filled,
 * sealed. Terms, the happy path of new bytes, failure modes and threads: store.h. A reference is
 * the caller's until ptc_table_unref. */
#pragma once

#include "base/status.h"
#include "daemon/store/store_key.h"

#include <stdbool.h>
#include <sys/uio.h>

/* Opens the table under construction, or starts one. A sealed one with that key is returned as it is (ptc_table_sealed).
 */
int ptc_table_begin(struct ptc_store *s, const struct ptc_table_key *key, struct ptc_table **ret_table,
		    struct ptc_error *err);
int ptc_table_open(struct ptc_store *s, const struct ptc_table_key *key, struct ptc_table **ret_table,
		   struct ptc_error *err); /* sealed ones only, else PTC_ENOTFOUND */
int ptc_table_find(struct ptc_store *s, const struct ptc_table_key *key, struct ptc_table **ret_table,
		   struct ptc_error *err); /* sealed or not, else PTC_ENOTFOUND; for ptc_table_read_filled */
struct ptc_table *ptc_table_ref(struct ptc_table *t);
struct ptc_table *ptc_table_unref(struct ptc_table *t); /* NULL ok, returns NULL */
bool ptc_table_sealed(const struct ptc_table *t);

/* Makes t (under construction, empty or resumed) hold what of needs the sealed table src holds: by reference where of
 * what was put into the chunks a piece touches at least three quarters, taken together, stay live, else by a local copy
 * into new chunks, so that the old ones can be freed. Returns what is missing, each box at most PTC_EXTENT_MAX_BYTES,
 * disjoint by item. needs may overlap (replicas) and are merged where they join. src NULL: everything is missing.
 * fresh[item]: so is all of that item, whatever src has of it; NULL: of none.
 * Deterministic and idempotent: a resumed table gives the missing boxes that are not filled yet, first those already
 * reserved, which ptc_table_reserve then hands out again; one begun with other needs is PTC_ESTATE (drop it first).
 * *ret_new_bytes: bytes of the new chunks that copies (made already, unless dry_run) and a reserve of what is missing
 * take. A dry_run writes nothing. */
int ptc_table_derive(struct ptc_table *t, struct ptc_table *src, const bool *fresh, const struct ptc_store_box *needs,
		     size_t nneeds, bool dry_run, struct ptc_store_boxes *ret_missing, int64_t *ret_new_bytes,
		     struct ptc_error *err);
/* A new table with exactly src's pieces, sealed at once (a snapshot of unchanged state). Exists already: fine. */
int ptc_table_alias(struct ptc_store *s, const struct ptc_table_key *src, const struct ptc_table_key *dst,
		    struct ptc_error *err);

/* Reserves chunks for new extents (one per box) in one short transaction; all or nothing (PTC_ENOSPC). fallocate before. */
int ptc_table_reserve(struct ptc_table *t, const struct ptc_store_box *boxes, size_t n,
		      uint32_t *ret_extents /* n ids */, struct ptc_error *err);
/* Writable memory of an unfilled extent from byte off, at most len bytes, as up to niov spans; returns the count of spans. */
int ptc_table_extent_iov(struct ptc_table *t, uint32_t extent, int64_t off, int64_t len, struct iovec *iov, int niov);
/* Before all of an unfilled extent is written: puts pages of ours that are not in our page table yet into it, all at once, which costs
 * half of what a fault for each does. Cheap when they are. */
void ptc_table_extent_map(struct ptc_table *t, uint32_t extent);
/* Before all of an unfilled extent is written by the process of that number (not 0): whether pages of it may not be in its page table
 * yet. Then it is taken that they are from now on. */
bool ptc_table_extent_fresh(struct ptc_table *t, uint32_t extent, uint64_t process);
/* Bytes [off, off + len) of an unfilled extent are there, in the processor's cache if just written, and will not be written again: the
 * checksums of the blocks that lie wholly in them are made now, at half of what they cost later. May be left out, and called again with
 * a longer range. An extent that ptc_table_reserve hands out again starts over. */
void ptc_table_extent_ready(struct ptc_table *t, uint32_t extent, int64_t off, int64_t len);
/* Scatters cut (inside the extent's box of item) from a compact buffer holding src_box. For fills by pieces (import). */
int ptc_table_write(struct ptc_table *t, uint32_t item, const struct ptc_box *src_box, const void *src,
		    struct ptc_error *err);
/* The extent's bytes are complete. Chunks whose extents are all filled get their checksums (by the calling thread). */
int ptc_table_filled(struct ptc_table *t, uint32_t extent, struct ptc_error *err);
/* Records in meta what was filled since the last time, so that it survives a kill -9. ptc_table_filled does it by itself
 * about every 256 MiB; what was not recorded is filled again after a crash. */
int ptc_table_flush(struct ptc_table *t, struct ptc_error *err);
/* Of the chunks it has; 0: none, as one of no bytes. */
uint64_t ptc_table_bytes(struct ptc_table *t);
/* Every extent, for imports that fill by ptc_table_write. */
int ptc_table_filled_all(struct ptc_table *t, struct ptc_error *err);
/* Makes it durable (msync checked, checksums in meta, one commit). PTC_ESTATE naming an item if an extent is unfilled. */
int ptc_table_seal(struct ptc_table *t, struct ptc_error *err);
