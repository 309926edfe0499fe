/* SPDX-License-Identifier: Apache-2.0 */
/* Making tables: begin, derive from an older table, reserve, fill, seal. Terms, the happy path of new bytes, failure
 * modes and threads: store.h. The caller owns a reference until ptc_table_unref. */
#pragma once

#include "base/status.h"
#include "daemon/store/store_key.h"

#include <stdbool.h>
#include <sys/uio.h>

/* Opens the begun table with that key, or begins one. If the table with that key is sealed, returns it as it is
 * (ptc_table_sealed). */
int ptc_table_begin(struct ptc_store *s, const struct ptc_table_key *key, struct ptc_table **ret_table,
		    struct ptc_error *err);
int ptc_table_open(struct ptc_store *s, const struct ptc_table_key *key, struct ptc_table **ret_table,
		   struct ptc_error *err); /* PTC_ENOTFOUND: there is no sealed table */
int ptc_table_find(struct ptc_store *s, const struct ptc_table_key *key, struct ptc_table **ret_table,
		   struct ptc_error *err); /* begun or sealed; for ptc_table_read_filled */
struct ptc_table *ptc_table_ref(struct ptc_table *t);
struct ptc_table *ptc_table_unref(struct ptc_table *t); /* NULL ok, returns NULL */
bool ptc_table_sealed(const struct ptc_table *t);
struct ptc_table_key ptc_table_key_of(const struct ptc_table *t);

/* Gives t, a begun table, the needs that the sealed table src has. It refers to src's chunks if at least three quarters
 * of the bytes in the chunks that a piece touches stay live. Otherwise it copies the bytes into new chunks, so that the
 * old chunks can be freed.
 *
 * *ret_missing: the needs that src does not have, disjoint by item, each box at most PTC_EXTENT_MAX_BYTES. Needs may
 * overlap (replicas); those that join are merged. src NULL: all needs are missing. fresh[item]: all of that item is
 * missing, even if src has it; fresh NULL: false for each.
 *
 * The call is deterministic and idempotent. For a table from before a crash, it gives the missing boxes that are not
 * filled yet, first those that have extents; ptc_table_reserve gives these extents again. PTC_ESTATE: the table was
 * begun with other needs; drop it first.
 *
 * *ret_new_bytes: bytes of new chunks, for the copies and for a reserve of the missing boxes. The copies are made
 * already unless dry_run, which writes nothing. With PTC_ECORRUPT (src is damaged) it is set, too, because the chunks
 * are taken. */
int ptc_table_derive(struct ptc_table *t, struct ptc_table *src, const bool *fresh, const struct ptc_store_box *needs,
		     size_t nneeds, bool dry_run, struct ptc_store_boxes *ret_missing, int64_t *ret_new_bytes,
		     struct ptc_error *err);
/* Makes a table with exactly src's pieces, sealed at once: a snapshot of unchanged state. An existing table is no
 * error. */
int ptc_table_alias(struct ptc_store *s, const struct ptc_table_key *src, const struct ptc_table_key *dst,
		    struct ptc_error *err);

/* Reserves chunks for new extents, one for each box, in one short transaction after fallocate. PTC_ENOSPC: nothing is
 * reserved. */
int ptc_table_reserve(struct ptc_table *t, const struct ptc_store_box *boxes, size_t n,
		      uint32_t *ret_extents /* n ids */, struct ptc_error *err);
/* Gives writable memory of an unfilled extent from byte off, at most len bytes, as up to niov spans. Returns the number
 * of spans. */
int ptc_table_extent_iov(struct ptc_table *t, uint32_t extent, int64_t off, int64_t len, struct iovec *iov, int niov);
/* Call this before all of an unfilled extent is written. It puts all missing pages into the page table at once, which
 * costs half as much as a fault for each. It is cheap if none is missing. */
void ptc_table_extent_map(struct ptc_table *t, uint32_t extent);
/* Call this before the process with that number writes all of an unfilled extent. True: pages of the extent may be
 * missing in the process's page table. The store assumes from then on that they are there. 0: a process that has no
 * page yet; nothing is assumed of it. *ret_there: the missing pages are on a tmpfs, and some process has written them
 * before. */
bool ptc_table_extent_fresh(struct ptc_table *t, uint32_t extent, uint64_t process, bool *ret_there);
/* Says that bytes [off, off + len) of an unfilled extent are there and will not change; the first `known` of them were
 * said before; 0: what was said of these bytes before counts no more, as they were written again. The store then makes
 * the checksums of the blocks that lie wholly in them; while the bytes are in the processor's cache this costs half as
 * much as later. Of the other new bytes it makes a checksum that it compares when it sums their block. So call it
 * before the bytes are digested: if memory changes after that, either a checksum does not match, or the table is not
 * sealed (PTC_ECORRUPT). The call is optional, and may be repeated with a longer range. An extent that
 * ptc_table_reserve gives again starts over. */
void ptc_table_extent_ready(struct ptc_table *t, uint32_t extent, int64_t off, int64_t known, int64_t len);
/* Writes src, a compact buffer that holds src_box, into the item's extents. For fills by pieces (import). */
int ptc_table_write(struct ptc_table *t, uint32_t item, const struct ptc_box *src_box, const void *src,
		    struct ptc_error *err);
/* Says that the extent's bytes are complete. The calling thread makes the checksums of chunks whose extents are all
 * filled. */
int ptc_table_filled(struct ptc_table *t, uint32_t extent, struct ptc_error *err);
/* Records in meta the extents filled since the last record, so that they survive a kill -9. ptc_table_filled does so by
 * itself about every 256 MiB. After a crash, extents without a record are filled again. */
int ptc_table_flush(struct ptc_table *t, struct ptc_error *err);
/* Bytes of the table's chunks; 0: it has none. */
uint64_t ptc_table_bytes(struct ptc_table *t);
/* The number of bytes of tensors that a sealed table has. */
uint64_t ptc_table_live_bytes(const struct ptc_table *t);
/* Calls ptc_table_filled for every extent, for imports that fill by ptc_table_write. */
int ptc_table_filled_all(struct ptc_table *t, struct ptc_error *err);
/* Makes the table durable: msync, checksums in meta, one commit. PTC_ESTATE: an extent is unfilled; the line names its
 * item. */
int ptc_table_seal(struct ptc_table *t, struct ptc_error *err);
