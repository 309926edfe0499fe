/* SPDX-License-Identifier: Apache-2.0 */
/* Tables, for the files of daemon/store only. Locks: chunks/store_state.h.
 *
 * A table's bytes are one stream: chunk i of table.chunks holds stream positions [i, i+1) * PTC_CHUNK_BYTES. An extent
 * is a position and a length. So it may cross chunks, but its chunks are neighbours in the list. */
#pragma once

#include "base/buf.h"
#include "daemon/store/chunks/chunk.h"
#include "daemon/store/chunks/lmdb_env.h"
#include "daemon/store/store.h"
#include "daemon/store/store_read.h"
#include "daemon/store/store_table.h"

_Static_assert(CHUNK_BLOCKS == PTC_CHUNK_BLOCKS, "store_read.h says how many blocks a chunk has");

struct loc {
	uint64_t pos;  /* the extent's position in the table's stream */
	uint32_t next; /* index of the next piece with the same hash of its item */
	_Atomic bool filled;
	_Atomic bool said; /* some of its bytes were said to be there (ptc_table_extent_ready) */
};

struct ptc_table {
	struct ptc_table *next; /* in the job's list */
	struct job *job;
	struct ptc_table_key key;
	unsigned refs; /* under store.lock */
	_Atomic bool sealed;
	_Atomic bool torn;    /* bytes of a chunk changed while it was filled, so it is not sealed */
	_Atomic bool dropped; /* neither in meta nor in the registry any more */
	pthread_rwlock_t lock;
	unsigned *owners; /* tables that have these pieces, locs and heads, under store.lock; NULL: this one alone */
	struct ptc_piece *pieces; /* in a begun table, piece.extent is the piece's index */
	struct loc *locs;         /* parallel to pieces */
	int64_t live_bytes;       /* of pieces */
	size_t n, cap;
	struct chunk **chunks;
	size_t nchunks, chunks_cap;
	uint32_t *heads; /* hash of item -> piece index + 1 */
	size_t nheads;
	uint64_t tail;    /* stream position after the last own extent; 0: start a new chunk */
	size_t unsaved;   /* chunks summed since the last flush */
	size_t resumable; /* unfilled extents found in meta, which reserve gives again */
	uint32_t xparts, cparts;
};

/* table_pieces.c */
struct ptc_table *ptc_store_table_new(struct job *j, const struct ptc_table_key *key); /* refs 1; not registered */
struct ptc_table *ptc_store_table_find_locked(struct job *j, const struct ptc_table_key *key);
void ptc_store_table_register_locked(struct ptc_table *t);
int ptc_store_table_room(struct ptc_table *t, size_t pieces, size_t chunks); /* 0 or PTC_ENOMEM */
void ptc_store_table_push(struct ptc_table *t, const struct ptc_piece *p, uint64_t pos, bool filled);
void ptc_store_table_rehash(struct ptc_table *t);
/* Gives t, which is empty, the pieces of sealed table src, which nobody changes any more. 0 or PTC_ENOMEM. */
int ptc_store_table_share(struct ptc_table *t, struct ptc_table *src);
/* The table goes. True: others have its pieces, so these stay. */
bool ptc_store_table_shared_locked(struct ptc_table *t);
void ptc_store_table_sort(struct ptc_table *t,
			  struct loc *room); /* by item; takes ownership of room, which has t->n + 1 entries */
int ptc_store_box_check(uint32_t item, const struct ptc_box *b, struct ptc_error *err);
/* The number of bytes of box that pieces have. */
int64_t ptc_store_covered(const struct ptc_table *t, uint32_t item, const struct ptc_box *box);

/* table.c */
/* A new piece. alias: it lies over given chunks, and pos is relative to the first of them. Otherwise it gets a new
 * extent for its box `live`. Boxes are the caller's, because a table begins with as many additions as pieces. */
struct addition {
	const struct ptc_box *live, *extent_box;
	uint64_t pos;
	uint32_t item;
	uint32_t extent; /* set by append: the number of its extent */
	bool alias;
};
int ptc_store_table_append(struct ptc_table *t, struct addition *v, size_t n, struct chunk *const *chunks,
			   size_t nchunks, struct ptc_error *err);
/* Says that the extent will be written again from its beginning, so its early checksums do not count. */
void ptc_store_extent_again(const struct ptc_table *t, uint32_t extent);
/* Gives the stream position for an extent of `bytes` after *tail, and updates the number of chunks in the stream. *tail
 * 0: the extent begins at a new chunk. */
uint64_t ptc_store_place(uint64_t *tail, size_t *nchunks, int64_t bytes);
static inline size_t ptc_store_chunk_of(uint64_t pos)
{
	return (size_t)(pos / PTC_CHUNK_BYTES);
}
static inline uint8_t *ptc_store_at(const struct ptc_table *t, uint64_t pos, int64_t *ret_room)
{
	uint64_t off = pos % PTC_CHUNK_BYTES;

	*ret_room = (int64_t)(PTC_CHUNK_BYTES - off);
	return t->chunks[pos / PTC_CHUNK_BYTES]->ptr + off;
}
/* The first piece of an item's hash chain, as index + 1; 0: none. */
static inline uint32_t ptc_store_table_head(const struct ptc_table *t, uint32_t item)
{
	return t->nheads ? t->heads[(item * 2654435761u) & (t->nheads - 1)] : 0;
}

/* store_damage.c: reports a damaged block of t's chunk number `chunk`, read for that piece. Always returns
 * PTC_ECORRUPT. */
int ptc_store_damage(const struct ptc_table *t, size_t piece, size_t chunk, unsigned block, struct ptc_error *err);
void ptc_store_damage_describe(const struct ptc_table *t, size_t piece, size_t chunk, unsigned block,
			       struct ptc_store_damage *ret);

/* read.c */
/* Copies box, verified, from the sealed table src into the extent at stream position pos of t. */
int ptc_store_gather(struct ptc_table *src, uint32_t item, const struct ptc_box *box, struct ptc_table *t, uint64_t pos,
		     struct ptc_verified *seen, struct ptc_error *err);

/* record.c: the store's id, jobs, notes and tables in meta. Each function makes one commit or one read. */
struct key {
	uint8_t b[KEY_MAX_BYTES];
	size_t len;
};
int ptc_store_rec_store(struct ptc_store *s, struct ptc_error *err); /* reads or writes the store id */
enum job_state { JOB_CREATING = 1, JOB_READY, JOB_DELETING };
int ptc_store_rec_job_put(struct ptc_store *s, const struct job *j, enum job_state state, struct ptc_error *err);
/* Removes every record of the job, the job's own included. */
int ptc_store_rec_job_del(struct ptc_store *s, const char *uuid, struct ptc_error *err);
/* Removes the job's tables and checksums; owner, fence and notes stay. */
int ptc_store_rec_job_empty(struct ptc_store *s, const char *uuid, struct ptc_error *err);
typedef int (*ptc_store_rec_job_fn)(void *arg, const char *uuid, uid_t uid, int64_t fence, enum job_state state,
				    struct ptc_error *err);
int ptc_store_rec_jobs(struct ptc_store *s, ptc_store_rec_job_fn fn, void *arg, struct ptc_error *err);
int ptc_store_rec_note_put(struct ptc_store *s, const char *uuid, const char *name, const struct iovec *parts,
			   size_t nparts, struct ptc_error *err);
int ptc_store_rec_note_get(struct ptc_store *s, const char *uuid, const char *name, void **ret_data, size_t *ret_len,
			   struct ptc_error *err);
int ptc_store_rec_tables_load(struct job *j, struct ptc_error *err); /* fills j->tables and chunk states */
struct table_save {
	size_t first_piece, first_chunk; /* the first that are not in meta yet */
	bool seal;
};
/* Writes t from first_piece and first_chunk on, its header, its fill state, and checksums: one commit. */
int ptc_store_rec_table_save(struct ptc_table *t, const struct table_save *what, struct chunk *const *sums,
			     size_t nsums, struct ptc_error *err);
/* Writes new checksums of chunks that have some in meta: one commit. */
int ptc_store_rec_sums(struct job *j, struct chunk *const *sums, size_t nsums, struct ptc_error *err);
/* Removes tables and the checksums of chunks: one commit. */
int ptc_store_rec_tables_del(struct job *j, struct ptc_table *const *tables, size_t n, struct chunk *const *chunks,
			     size_t nchunks, struct ptc_error *err);
