/* SPDX-License-Identifier: Apache-2.0 */
/* The node's store keeps the bytes of tensors in LMDB. It knows no dtype, rank or rule: items are numbers, and boxes
 * are boxes of bytes (reshard/box/box.h).
 *
 * Terms
 *   chunk    PTC_CHUNK_BYTES of an LMDB value in the job's `chunks` environment; its pages never move while it lives.
 *   extent   one box of one item, stored row-major and compact as a byte run over one or more chunks; immutable once
 *            filled; at most PTC_EXTENT_MAX_BYTES. Extents are packed one after the other (64-byte aligned), so small
 *            ones share a chunk.
 *   piece    a live box inside an extent; a table lists pieces. If a shard is cut differently, new pieces lie over the
 *            same extents, and nothing is copied.
 *   table    all pieces of one (job, generation, snapshot) on this node. Being filled -> sealed (complete, checksummed,
 *            durable, immutable). Each piece of an item is disjoint from the others.
 *
 * Happy path of new bytes: ptc_table_begin; perhaps ptc_table_derive, for bytes that are here already;
 * ptc_table_reserve (a short write transaction, after which the chunks exist); any thread fills through the map and
 * calls ptc_table_filled; ptc_table_seal (msync, checksums, commit of meta). After a crash, ptc_table_begin with the
 * same key finds the reservations, and the extents that were filled and verified. The other extents are filled again.
 *
 * Failure modes: the ceiling, the map or the disk is full (PTC_ENOSPC; nothing has changed). A block does not match its
 * checksum (PTC_ECORRUPT; the line names item, rows and chunk). The chunks of a job are gone (PTC_ELOST, for that job
 * only).
 *
 * This header: the store and its jobs. store_table.h: making tables. store_read.h: reading them.
 *
 * Threads: any, unless a function says otherwise. The store serialises write transactions; they are short and never
 * wait for a network. A pointer into the map is valid while whoever got it has a reference to the table. References to
 * chunks guard it, not an LMDB reader. */
#pragma once

#include "base/limits.h"
#include "base/status.h"
#include "daemon/store/store_key.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* A block that does not match its checksum. */
struct ptc_store_damage {
	struct ptc_table_key key; /* of a table that lists the block */
	uint32_t item, chunk, block;
	int64_t first, last; /* rows of the item with bytes in the block; bytes, if the item has one dimension */
	char text[120];      /* "rows 64 to 127: block 1 of chunk 3 ..." */
};

struct ptc_store_opts {
	const char *meta_dir;   /* durable; 0700, made if missing */
	const char *chunk_dir;  /* on tmpfs or a disk; has a directory for each job, owned by the job's uid, 0700 */
	uint64_t chunk_ceiling; /* hard limit of the bytes of all jobs' chunks, including free chunks with blocks */
	/* Bytes that a job's free chunks may keep after ptc_store_keep; 0: the larger of 64 MiB and a tenth of the
	 * job's used bytes. If it is not 0 and chunks lie on tmpfs, then while nobody works so many are made ahead, but
	 * at most as many as the job uses, and all chunks move into huge pages. */
	uint64_t cushion_bytes;
	/* Reports a damaged block, once until its chunk is filled again. Called on any thread that reads; must not call
	 * the store. May be NULL. */
	void (*damaged)(void *arg, const struct ptc_store_damage *d);
	void *damaged_arg;
};
int ptc_store_open(const struct ptc_store_opts *opts, struct ptc_store **ret_store, struct ptc_error *err);
struct ptc_store *ptc_store_close(struct ptc_store *s); /* release every reference first; NULL ok */
const char *ptc_store_id(const struct ptc_store *s);    /* random, written once, 36 characters */

struct ptc_store_stats {
	uint64_t ceiling, used_bytes /* chunks in use * PTC_CHUNK_BYTES; above a ceiling that was lowered */,
		file_bytes /* blocks of the files on disk/tmpfs */;
	uint64_t chunks_used, chunks_free /* recycled, pages still touched */;
	uint64_t copied_bytes /* local copies by derive since open */, lost_jobs;
	uint64_t huge_bytes /* moved into huge pages since open */;
	bool in_memory /* a job's chunks are on a tmpfs */;
	uint64_t outside_bytes /* of the ceiling, for other memory than chunks */;
	uint64_t short_mib /* by which memory.ceiling, which was lowered, must grow until used_bytes fit; 0: they do */;
};
void ptc_store_stats(struct ptc_store *s, struct ptc_store_stats *ret_stats);
/* Counts other memory of a job than chunks against the ceiling, such as staging memory. This memory is only for speed,
 * so chunks have priority. PTC_ENOSPC: fewer bytes would stay free for chunks than are given for other memory. The call
 * may give blocks of free chunks back. */
int ptc_store_outside_take(struct ptc_store *s, uint64_t bytes, struct ptc_error *err);
void ptc_store_outside_give(struct ptc_store *s, uint64_t bytes);

/* Jobs. uuid is 36 characters. Deleting a job deletes its chunks and tables (fault points inside). */
int ptc_store_job_create(struct ptc_store *s, const char *uuid, uid_t uid,
			 struct ptc_error *err);                                        /* exists with same uid: fine */
int ptc_store_job_delete(struct ptc_store *s, const char *uuid, struct ptc_error *err); /* missing: fine */
/* Lets a job whose chunks are lost or damaged here begin again, without chunks and tables. Owner, fence and notes stay.
 * Does nothing and returns 0 if the job's chunks are usable, if the job is not here, or if another version wrote it. */
int ptc_store_job_anew(struct ptc_store *s, const char *uuid, struct ptc_error *err);
typedef void (*ptc_store_job_fn)(void *arg, const char *uuid, uid_t uid, bool lost);
int ptc_store_jobs(struct ptc_store *s, ptc_store_job_fn fn, void *arg, struct ptc_error *err);
int ptc_store_job_owner(struct ptc_store *s, const char *uuid, uid_t *ret_uid); /* or PTC_ENOTFOUND */
/* Bytes of the job's free chunks that have memory. Its next tables take them before new memory. 0: it is not here. */
uint64_t ptc_store_job_free_bytes(struct ptc_store *s, const char *uuid);
/* Notes the highest fence of a job, durably before it returns. PTC_EFENCED: a higher fence was seen. */
int ptc_store_fence(struct ptc_store *s, const char *uuid, int64_t fence, struct ptc_error *err);

/* Notes: small byte strings of a job by name (letters, at most PTC_NOTE_NAME_MAX). A note is durable before the call
 * returns, and goes with the job. */
#define PTC_NOTE_NAME_MAX 15
int ptc_store_note_put(struct ptc_store *s, const char *uuid, const char *name, const void *data, size_t len,
		       struct ptc_error *err);
/* The note is the parts one after another. */
int ptc_store_note_put_parts(struct ptc_store *s, const char *uuid, const char *name, const struct iovec *parts,
			     size_t nparts, struct ptc_error *err);
int ptc_store_note_get(struct ptc_store *s, const char *uuid, const char *name, void **ret_data, size_t *ret_len,
		       struct ptc_error *err); /* ptc_free it; PTC_ENOTFOUND */

/* Makes and maps memory for `bytes` new bytes of the job ahead of time, if possible, because that takes as long as
 * several copies of the bytes. It reserves nothing: the memory belongs to free chunks, and goes as they do. */
int ptc_store_warm(struct ptc_store *s, const char *uuid, uint64_t bytes, struct ptc_error *err);

/* Calls fn with the key of each table of a job, begun or sealed. */
typedef void (*ptc_table_fn)(void *arg, const struct ptc_table_key *key, bool sealed, int64_t bytes);
int ptc_store_tables(struct ptc_store *s, const char *uuid, ptc_table_fn fn, void *arg, struct ptc_error *err);
/* Drops every table of the job whose key is not in `keep`, then frees chunks without references. A reference to a
 * dropped table keeps its chunks. Call it also after open, to finish the work that a crash has cut off. */
int ptc_store_keep(struct ptc_store *s, const char *uuid, const struct ptc_table_key *keep, size_t nkeep,
		   struct ptc_error *err);
