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
 * Here: the store and its jobs. store_table.h: making tables. store_read.h: reading them.
 *
 * Threads: every function may be called from any thread unless it says otherwise; write transactions are serialised
 * inside, are short, and never wait for a network. Pointers into the map are valid while the table reference they came
 * from is held (our own chunk references guard them, not an LMDB reader). */
#pragma once

#include "base/limits.h"
#include "base/status.h"
#include "daemon/store/store_key.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

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

/* Keys of all tables of a job, sealed or not. */
typedef void (*ptc_table_fn)(void *arg, const struct ptc_table_key *key, bool sealed, int64_t bytes);
int ptc_store_tables(struct ptc_store *s, const char *uuid, ptc_table_fn fn, void *arg, struct ptc_error *err);
/* Drops every table of the job whose key is not in keep (held references keep their chunks until released), then
 * frees chunks nothing refers to. Also called after open to finish what a crash left. */
int ptc_store_keep(struct ptc_store *s, const char *uuid, const struct ptc_table_key *keep, size_t nkeep,
		   struct ptc_error *err);
