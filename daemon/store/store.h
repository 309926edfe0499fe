/* SPDX-License-Identifier: Apache-2.0 */
/* The node's store: bytes of tensors, in LMDB. Nothing outside daemon/store
 * includes <lmdb.h>. Knows no dtype, rank or rule: items are numbers, boxes
 * are byte boxes (reshard/box/box.h).
 *
 * Terms
 *   chunk    PTC_CHUNK_BYTES of an LMDB value in the job's `chunks` environment; its pages never move while it lives.
 *   extent   one box of one item, stored row-major and compact as a byte run over one or more chunks; immutable once
 *            filled; at most PTC_EXTENT_MAX_BYTES. Extents are packed one after the other (64-byte aligned), so small
 *            ones share a chunk.
 *   piece    a live box inside an extent: what a table lists. Cutting a shard differently makes new pieces over the
 *            same extents and copies nothing.
 *   table    all pieces of one (job, generation, snapshot) on this node. Being filled -> sealed (complete, checksummed,
 *            durable, immutable). Each piece of an item is disjoint from the others.
 *
 * Happy path of new bytes: table_begin, table_derive (what is here already) or nothing, table_reserve (short write
 * transaction: chunks exist, commit), fill through the map by any thread, extent_filled, table_seal (msync, checksums,
 * meta commit). After a crash, table_begin on the same key finds the reservations and which extents were filled and
 * verified; the rest is filled again.
 * Failure modes: ceiling, map or disk full (PTC_ENOSPC; nothing changed); a block that does not match its checksum
 * (PTC_ECORRUPT naming item, rows and chunk); meta naming a chunk store that is gone (PTC_ELOST, per job, others fine).
 *
 * Threads: every function may be called from any thread unless it says otherwise; write transactions are serialised
 * inside, are short, and never wait for a network. Pointers into the map are valid while the table reference they came
 * from is held (our own chunk references guard them, not an LMDB reader). */
#pragma once

#include "base/limits.h"
#include "base/status.h"
#include "reshard/box/box.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct ptc_store;
struct ptc_table; /* a counted reference to a table in memory */

struct ptc_table_key {
	char uuid[37];
	uint64_t generation, snapshot;
};

/* A block that does not match its checksum. */
struct ptc_store_damage {
	struct ptc_table_key key; /* of a table that has it */
	uint32_t item, chunk, block;
	int64_t first, last; /* rows of the item that it has bytes of; of one dimension, bytes */
	char text[120];      /* "rows 64 to 127: block 1 of chunk 3 ..." */
};

struct ptc_store_opts {
	const char *meta_dir;   /* durable; 0700, made if missing */
	const char *chunk_dir;  /* may be tmpfs or a disk; a directory per job inside, owned by the job's uid, 0700 */
	uint64_t chunk_ceiling; /* bytes of chunks over all jobs, free ones that still have blocks included; hard */
	/* What a job's free chunks may keep after ptc_store_keep; 0: the larger of 64 MiB and a tenth of what it uses. Where it is not 0
	 * and chunks lie on tmpfs, they are put into huge pages when nothing has been done for a second. */
	uint64_t cushion_bytes;
	/* Any thread that reads; must not call the store. Once for each block, until its chunk is filled anew. NULL: nobody is told. */
	void (*damaged)(void *arg, const struct ptc_store_damage *d);
	void *damaged_arg;
};
int ptc_store_open(const struct ptc_store_opts *opts, struct ptc_store **ret_store, struct ptc_error *err);
struct ptc_store *ptc_store_close(struct ptc_store *s); /* every reference released before; NULL ok */
const char *ptc_store_id(const struct ptc_store *s);    /* random, written once, 36 characters */

struct ptc_store_stats {
	uint64_t ceiling, used_bytes /* chunks in use * PTC_CHUNK_BYTES */,
		file_bytes /* blocks of the files on disk/tmpfs */;
	uint64_t chunks_used, chunks_free /* recycled, pages still touched */;
	uint64_t copied_bytes /* local copies by derive since open */, lost_jobs;
	uint64_t huge_bytes /* put into huge pages since open */;
	uint64_t outside_bytes /* of the ceiling, taken for other memory than chunks */;
};
void ptc_store_stats(struct ptc_store *s, struct ptc_store_stats *ret_stats);
/* Memory of a job that is not chunks and counts against the ceiling all the same, such as the shared memory of copy: fast. It is for
 * speed, so chunks go first: as much as is taken in all has to stay free for them (PTC_ENOSPC). May give blocks of free ones back. */
int ptc_store_outside_take(struct ptc_store *s, uint64_t bytes, struct ptc_error *err);
void ptc_store_outside_give(struct ptc_store *s, uint64_t bytes);

/* Jobs. uuid is 36 characters. Deleting a job deletes its chunks and tables (fault points inside). */
int ptc_store_job_create(struct ptc_store *s, const char *uuid, uid_t uid,
			 struct ptc_error *err);                                        /* exists with same uid: fine */
int ptc_store_job_delete(struct ptc_store *s, const char *uuid, struct ptc_error *err); /* missing: fine */
typedef void (*ptc_store_job_fn)(void *arg, const char *uuid, uid_t uid, bool lost);
int ptc_store_jobs(struct ptc_store *s, ptc_store_job_fn fn, void *arg, struct ptc_error *err);
int ptc_store_job_owner(struct ptc_store *s, const char *uuid, uid_t *ret_uid); /* or PTC_ENOTFOUND */
/* Highest fencing token seen for a job; durable before return. A lower one: PTC_EFENCED. */
int ptc_store_fence(struct ptc_store *s, const char *uuid, int64_t fence, struct ptc_error *err);

/* Small byte strings of a job by name (letters, at most PTC_NOTE_NAME_MAX): durable before return, gone with the job. */
#define PTC_NOTE_NAME_MAX 15
int ptc_store_note_put(struct ptc_store *s, const char *uuid, const char *name, const void *data, size_t len,
		       struct ptc_error *err);
int ptc_store_note_get(struct ptc_store *s, const char *uuid, const char *name, void **ret_data, size_t *ret_len,
		       struct ptc_error *err); /* ptc_free it; PTC_ENOTFOUND */

/* Memory for so many new bytes of the job is there and mapped, if it can be, before they are needed: making it takes as long as
 * several copies of them. Reserves nothing: it is a free chunk's, and goes as those do. */
int ptc_store_warm(struct ptc_store *s, const char *uuid, uint64_t bytes, struct ptc_error *err);

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
/* Keys of all tables of a job, sealed or not. */
typedef void (*ptc_table_fn)(void *arg, const struct ptc_table_key *key, bool sealed, int64_t bytes);
int ptc_store_tables(struct ptc_store *s, const char *uuid, ptc_table_fn fn, void *arg, struct ptc_error *err);

struct ptc_store_box {
	uint32_t item;
	struct ptc_box box;
};

/* Makes t (under construction, empty or resumed) hold what of needs the sealed table src holds: by reference where of
 * what was put into the chunks a piece touches at least three quarters, taken together, stay live, else by a local copy
 * into new chunks, so that the old ones can be freed. Returns what is missing, each box at most PTC_EXTENT_MAX_BYTES,
 * disjoint by item. needs may overlap (replicas) and are merged where they join. src NULL: everything is missing.
 * fresh[item]: so is all of that item, whatever src has of it; NULL: of none.
 * Deterministic and idempotent: a resumed table gives the missing boxes that are not filled yet, first those already
 * reserved, which ptc_table_reserve then hands out again; one begun with other needs is PTC_ESTATE (drop it first).
 * *ret_new_bytes: bytes of the new chunks that copies (made already, unless dry_run) and a reserve of what is missing
 * take. A dry_run writes nothing. */
struct ptc_store_boxes {
	struct ptc_store_box *v;
	size_t n;
	int64_t bytes;
};
void ptc_store_boxes_done(struct ptc_store_boxes *b);
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

/* Pieces of one item that intersect box, in no particular order; the union says what this node has. */
struct ptc_piece {
	uint32_t item, extent;
	struct ptc_box live, extent_box;
};
int ptc_table_pieces(struct ptc_table *t, uint32_t item, const struct ptc_box *box, struct ptc_piece **ret_pieces,
		     size_t *ret_n, struct ptc_error *err); /* ptc_free it */
/* All pieces of the table (sorted by item). Borrowed while the reference is held. */
const struct ptc_piece *ptc_table_all_pieces(struct ptc_table *t, size_t *ret_n);

/* What every function below hands out, copies or digests of a sealed table is verified each time, block by block; where it is copied or
 * digested, right before. PTC_ENOTFOUND when a part of box is not here. Errors about an item begin with "item N". */
/* Reads box, row-major compact, into dst. */
int ptc_table_read(struct ptc_table *t, uint32_t item, const struct ptc_box *box, void *dst, struct ptc_error *err);
/* The same while a table is being filled, of what is filled already; PTC_ESTATE where a part is not. Blocks are verified that have
 * sums: those of chunks that are still written to have none yet. */
int ptc_table_read_filled(struct ptc_table *t, uint32_t item, const struct ptc_box *box, void *dst,
			  struct ptc_error *err);
/* Without a copy: if box's bytes are one run inside one chunk after another, returns up to niov spans that stay valid while a
 * reference to t is held, verified; *ret_n = 0 when it is strided or not coverable so (use ptc_table_read). */
int ptc_table_read_iov(struct ptc_table *t, uint32_t item, const struct ptc_box *box, struct iovec *iov, int niov,
		       int *ret_n, struct ptc_error *err);
/* Calls fn for each part of box (sealed table) that lies in one extent: the extent's memory as spans from its first byte, which
 * stay valid while a reference to t is held, and the part, of which alone the blocks are verified. PTC_ENOTFOUND, before any call, when
 * a part of box is not here. fn returns nonzero to stop. */
#define PTC_EXTENT_SPANS (PTC_EXTENT_MAX_BYTES / PTC_CHUNK_BYTES + 3)
typedef int (*ptc_extent_fn)(void *arg, const struct ptc_box *extent_box, const struct ptc_box *part,
			     const struct iovec *spans, int nspans, struct ptc_error *err);
int ptc_table_each_extent(struct ptc_table *t, uint32_t item, const struct ptc_box *box, ptc_extent_fn fn, void *arg,
			  struct ptc_error *err);
/* The file in which a sealed table's bytes lie, opened anew for reading only (the caller closes it), and where we have it in memory: a
 * span of it at p lies p - *ret_base bytes from the file's beginning. */
int ptc_table_file(struct ptc_table *t, int *ret_fd, const uint8_t **ret_base, uint64_t *ret_bytes,
		   struct ptc_error *err);
/* The same of a table that is being filled, opened for writing too, for a process that fills extents for us (ptc_table_extent_iov) and has
 * only that. The caller closes it once the process has it. As long as any process has it, a store that is opened on these chunks gives out none
 * of the job's (PTC_ESTATE): a process that outlives us may still write to what we had given out. */
int ptc_table_file_writable(struct ptc_table *t, int *ret_fd, const uint8_t **ret_base, uint64_t *ret_bytes,
			    struct ptc_error *err);
/* Where box's bytes (sealed table) lie in that file, in box's row-major order: for another process of this node, which may read them
 * there at any time, also when the reference to t is gone. It has read box's bytes if every block that it took them from has its
 * checksum, and it then finds `use` in the 8 bytes at use_at; else the bytes are damaged, or the chunk is somebody else's now (or was
 * once in between). Nothing is verified here. PTC_ELIMIT: more than max or max_chunks; PTC_ESTATE: the file is not in memory, where
 * reading it waits for nothing; PTC_ENOTFOUND: a part of box is not here. */
#define PTC_CHUNK_BLOCKS 16
struct ptc_span {
	uint64_t at, bytes;
	uint32_t chunk, reserved; /* which of the chunks it lies in */
};
struct ptc_span_chunk {
	uint64_t
		at; /* of its first byte; its blocks of PTC_BLOCK_BYTES follow, the last one is what is left of PTC_CHUNK_BYTES */
	uint64_t use_at, use;
	uint64_t sums[PTC_CHUNK_BLOCKS];
};
struct ptc_spans { /* the caller's memory, to which is added */
	struct ptc_span *v;
	size_t n, max;
	struct ptc_span_chunk *chunks;
	size_t nchunks, max_chunks;
};
int ptc_table_spans(struct ptc_table *t, uint32_t item, const struct ptc_box *box, struct ptc_spans *spans,
		    struct ptc_error *err);
/* Digest contribution of box (see base/number/digest.h) for a tensor of that byte shape; reads in place. */
int ptc_table_digest(struct ptc_table *t, uint32_t item, const struct ptc_box *box, uint32_t ndim, const int64_t *shape,
		     uint64_t *ret_digest, struct ptc_error *err);
/* The same of a part of an extent whose bytes are there but which need not be filled or sealed: while they are still in the
 * processor's cache it costs half. They are the caller's to keep still; nothing is verified. */
int ptc_table_digest_extent(struct ptc_table *t, uint32_t extent, const struct ptc_box *part, uint32_t ndim,
			    const int64_t *shape, uint64_t *ret_digest, struct ptc_error *err);
/* Verifies every block of every piece against meta, ignoring what was verified before. *ret_bytes read. First bad block: PTC_ECORRUPT. */
int ptc_table_scrub(struct ptc_table *t, int64_t *ret_bytes, struct ptc_error *err);

/* Drops every table of the job whose key is not in keep (held references keep their chunks until released), then
 * frees chunks nothing refers to. Also called after open to finish what a crash left. */
int ptc_store_keep(struct ptc_store *s, const char *uuid, const struct ptc_table_key *keep, size_t nkeep,
		   struct ptc_error *err);
