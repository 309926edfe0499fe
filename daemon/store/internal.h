/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the store: what lmdb.c, chunk.c, record.c, store.c, table.c, derive.c and read.c share.
 *
 * Locks, outermost first:
 *   store.wlock   one mutator at a time: everything that writes a transaction, allocates chunks or changes the registry
 *   table.lock    read: its arrays are looked at or its bytes filled; write: its arrays grow or are replaced
 *   store.lock    counts, lists, chunk states; held for moments, never across a system call that waits
 *
 * A table's bytes are one stream: chunk i of table.chunks holds stream positions [i, i+1) * PTC_CHUNK_BYTES. An extent is
 * a position and a length, so it may cross chunks but its chunks are neighbours in the list. */
#pragma once

#include "base/buf.h"
#include "base/limits.h"
#include "daemon/store/store.h"

#include <lmdb.h>
#include <pthread.h>
#include <stdatomic.h>

#define CHUNK_BLOCKS ((PTC_CHUNK_BYTES + PTC_BLOCK_BYTES - 1) / PTC_BLOCK_BYTES)
/* An LMDB value of whole pages with LMDB's page header. Its first bytes are left out, so that a chunk's lie on cache lines, as do
 * extents in it: the kernel copies between processes half as fast again when both sides are. The last of those left out count the
 * chunk's uses (ptc_store_chunk_use): they are in the one page of it that is never punched. */
#define PAGE_HEADER  16
#define CHUNK_PAD    48
#define CHUNK_VALUE  (PTC_CHUNK_BYTES + CHUNK_PAD)
#define CHUNK_SPAN   (CHUNK_VALUE + PAGE_HEADER)
#define ALL_BLOCKS   ((uint16_t)0xffff)
#define EXTENT_ALIGN 64u
#define FLUSH_CHUNKS                                                                                                   \
	256u /* chunks summed but not in meta before a fill records them: at most this much is filled again */
#define RECORD_VERSION  2
#define STORE_UUID_LEN  36
#define KEY_MAX_BYTES   64
#define PART_BYTES      (256u << 10) /* a table's records are split into meta values of about this size */
#define CUSHION_DEFAULT (64ull << 20)

_Static_assert(CHUNK_BLOCKS == PTC_CHUNK_BLOCKS && CHUNK_BLOCKS == 16, "block masks are 16 bits wide");

struct job;

struct chunk {
	struct chunk *next; /* in the job's warm or cold list while free */
	uint8_t *ptr;
	uint64_t sum[CHUNK_BLOCKS];
	uint32_t id;                /* its key; from 1 */
	uint32_t refs;              /* tables in memory that list it; 0: free */
	uint32_t stored;            /* tables in meta that list it */
	uint32_t unfilled;          /* extents in it still to be filled */
	uint32_t used;              /* end of the last extent in it */
	_Atomic uint16_t damaged;   /* blocks that were found damaged and told of */
	uint16_t dirty;             /* blocks to be summed */
	_Atomic uint16_t early;     /* of those: summed already, by whoever filled them; nobody writes there any more */
	_Atomic bool mapped;        /* its pages are in our page table: asking again costs as much as copying it */
	_Atomic uint64_t mapped_by; /* ... and in that of this process, which fills it for us; 0: none */
	bool closed;                /* no further extent will be put into it */
	bool claimed;               /* a thread is summing it */
	_Atomic bool summed;
	bool saved; /* its sums are in meta */
};

struct job {
	struct job *next;
	struct ptc_store *s;
	char uuid[STORE_UUID_LEN + 1];
	uid_t uid;
	int64_t fence;
	int bad; /* 0, or why nothing of it can be used: PTC_ELOST, PTC_ECORRUPT, PTC_EVERSION, PTC_EIO */
	char why[256];
	unsigned refs; /* registry and tables in memory */

	MDB_env *env;
	MDB_dbi dbi;
	int fd;             /* LMDB's, not ours to close */
	bool volatile_fs;   /* tmpfs: nothing to msync */
	bool deleted;       /* its blocks go with its last reference, whoever else has its file open */
	bool others;        /* a process that an earlier life has let in may still write */
	bool no_punch;      /* the file system cannot free blocks inside a file: free chunks stay warm */
	unsigned page;      /* bytes */
	uint64_t alloc_end; /* file offset up to which blocks exist */
	uint64_t map_bytes;
	struct chunk **chunks; /* by id - 1 */
	size_t nchunks, cap;
	struct chunk *warm, *cold; /* free: with blocks, without */
	size_t nwarm, nused;
	struct ptc_table *tables; /* registered */
	bool huge_todo;           /* wlock, as is: */
	uint64_t huge_at;         /* file offset up to which huge.c has been through it */
};

struct ptc_store {
	char id[STORE_UUID_LEN + 1];
	char *meta_dir, *chunk_dir;
	uint64_t ceiling, cushion;
	int lock_fd, chunk_lock_fd;
	MDB_env *meta;
	MDB_dbi dbi;
	pthread_mutex_t wlock, lock;
	struct job *jobs;
	uint64_t nused, nwarm, copied_bytes; /* chunks, over all jobs */
	uint64_t outside;                    /* bytes of the ceiling that are no chunks'; grows under wlock */
	void (*damaged)(void *arg, const struct ptc_store_damage *d);
	void *damaged_arg;
	struct { /* huge.c */
		pthread_t thread;
		pthread_cond_t cond;    /* with lock */
		bool runs, quit, never; /* never: the kernel does not know it; the thread's own */
		pthread_mutex_t
			blocks; /* taken to give blocks back, and while a range is believed to have all of its */
		_Atomic int64_t busy_ns;
		_Atomic uint64_t bytes;
	} huge;
};

struct loc {
	uint64_t pos;  /* where the extent starts in the table's stream */
	uint32_t next; /* next piece with the same hash of its item */
	_Atomic bool filled;
};

struct ptc_table {
	struct ptc_table *next; /* in the job's list */
	struct job *job;
	struct ptc_table_key key;
	unsigned refs; /* store.lock */
	_Atomic bool sealed;
	_Atomic bool dropped; /* no longer in meta nor in the registry */
	pthread_rwlock_t lock;
	struct ptc_piece *pieces; /* piece.extent is the index while under construction */
	struct loc *locs;         /* parallel to pieces */
	size_t n, cap;
	struct chunk **chunks;
	size_t nchunks, chunks_cap;
	uint32_t *heads; /* hash of item -> piece index + 1 */
	size_t nheads;
	uint64_t tail;    /* stream position after the last own extent; 0: start a new chunk */
	size_t unsaved;   /* chunks summed since the last flush */
	size_t resumable; /* unfilled extents found in meta, which reserve hands out again */
	uint32_t xparts, cparts;
};

/* lmdb.c */
int ptc_store_lmdb_error(struct ptc_error *err, int rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
enum store_env { STORE_META, STORE_CHUNKS };
int ptc_store_env_open(const char *dir, enum store_env kind, uint64_t map_bytes, MDB_env **ret_env, MDB_dbi *ret_dbi,
		       struct ptc_error *err);
int ptc_store_begin(MDB_env *env, bool write, MDB_txn **ret_txn, struct ptc_error *err);
int ptc_store_commit(MDB_txn *txn, enum store_env kind, struct ptc_error *err); /* ends txn in every case */
int ptc_store_msync(void *p, size_t len, struct ptc_error *err);
int ptc_store_file_alloc(int fd, uint64_t off, uint64_t len, struct ptc_error *err);

/* chunk.c: the chunks environment of one job */
int ptc_store_chunks_create(struct job *j, struct ptc_error *err);
int ptc_store_chunks_open(struct job *j, struct ptc_error *err);
void ptc_store_chunks_close(struct job *j);
int ptc_store_chunks_reopen(const struct job *j, int flags);       /* a descriptor of its own; -1: errno */
int ptc_store_chunks_settle(struct job *j, struct ptc_error *err); /* after the tables have been loaded */
/* wlock held. How many chunks may have blocks. */
uint64_t ptc_store_chunks_max(const struct ptc_store *s);
/* wlock held. Until at most `max` chunks have blocks, or those that are in use: free ones of other jobs than `but` lose theirs. */
void ptc_store_chunks_yield(struct ptc_store *s, const struct job *but, uint64_t max);
/* wlock held. Takes n free chunks (refs 0 -> 1), making new ones where needed. All or nothing. */
int ptc_store_chunks_take(struct job *j, size_t n, struct chunk **ret_chunks, struct ptc_error *err);
void ptc_store_chunk_map(struct chunk *c);
/* wlock held. At least n free chunks have blocks, and these are in our page table. */
int ptc_store_chunks_warm(struct job *j, size_t n, struct ptc_error *err);
void ptc_store_chunk_put_locked(struct job *j, struct chunk *c); /* drops one reference */
/* wlock held. Gives blocks of free chunks back to the file system until at most leave of them have any. */
int ptc_store_chunks_trim(struct job *j, size_t leave, struct ptc_error *err);
/* Where in the file the chunk's page header lies, CHUNK_PAD + PAGE_HEADER before its bytes. */
int ptc_store_chunk_page(const struct job *j, const struct chunk *c, uint64_t *ret_off, struct ptc_error *err);
void ptc_store_chunk_sum(struct chunk *c);
/* Of blocks (a mask) whose bytes are there: those not summed early yet. One thread for each block. */
void ptc_store_chunk_sum_early(struct chunk *c, uint16_t blocks);
/* Never 0. Whoever knows it and has read the chunk's bytes in the file since, and then finds it unchanged, has read what they were. */
uint64_t ptc_store_chunk_use(struct chunk *c);
void ptc_store_chunk_fresh(struct chunk *c);
void ptc_store_chunk_use_locked(struct job *j, struct chunk *c); /* at open: refs 0 -> 1 of a cold one, else +1 */

/* huge.c */
void ptc_store_huge_begin(struct ptc_store *s);
void ptc_store_huge_end(struct ptc_store *s);
/* wlock held. Something is being done with the job; chunks: also with blocks it did not have. */
void ptc_store_huge_changed(struct job *j, bool chunks);

/* record.c: what meta holds */
struct key {
	uint8_t b[KEY_MAX_BYTES];
	size_t len;
};
int ptc_store_rec_put(MDB_txn *txn, MDB_dbi dbi, const struct key *k, struct ptc_buf *payload, struct ptc_error *err);
int ptc_store_rec_store(struct ptc_store *s, struct ptc_error *err); /* reads or writes the store id */
enum job_state { JOB_CREATING = 1, JOB_READY, JOB_DELETING };
int ptc_store_rec_job_put(struct ptc_store *s, const struct job *j, enum job_state state, struct ptc_error *err);
/* Removes every record of the job, the job's own included. */
int ptc_store_rec_job_del(struct ptc_store *s, const char *uuid, struct ptc_error *err);
typedef int (*ptc_store_rec_job_fn)(void *arg, const char *uuid, uid_t uid, int64_t fence, enum job_state state,
				    struct ptc_error *err);
int ptc_store_rec_jobs(struct ptc_store *s, ptc_store_rec_job_fn fn, void *arg, struct ptc_error *err);
int ptc_store_rec_note_put(struct ptc_store *s, const char *uuid, const char *name, const void *data, size_t len,
			   struct ptc_error *err);
int ptc_store_rec_note_get(struct ptc_store *s, const char *uuid, const char *name, void **ret_data, size_t *ret_len,
			   struct ptc_error *err);
int ptc_store_rec_tables_load(struct job *j, struct ptc_error *err); /* fills j->tables and chunk states */
struct table_save {
	size_t first_piece, first_chunk; /* what is not in meta yet */
	bool seal;
};
/* Everything of t from first_piece, first_chunk on, its header, its fill state, and sums: one commit. */
int ptc_store_rec_table_save(struct ptc_table *t, const struct table_save *what, struct chunk *const *sums,
			     size_t nsums, struct ptc_error *err);
/* Removes tables and the sums of chunks: one commit. */
int ptc_store_rec_tables_del(struct job *j, struct ptc_table *const *tables, size_t n, struct chunk *const *chunks,
			     size_t nchunks, struct ptc_error *err);

/* store.c */
struct job *ptc_store_job_find_locked(struct ptc_store *s, const char *uuid);
int ptc_store_job_usable(const struct job *j, const char *uuid, struct ptc_error *err);
struct job *ptc_store_job_unref_locked(struct job *j); /* returns it when the caller must free it, unlocked */
void ptc_store_job_free(struct job *j);
char *ptc_store_job_dir(const struct job *j);

/* table.c */
struct ptc_table *ptc_store_table_new(struct job *j, const struct ptc_table_key *key); /* refs 1; not registered */
struct ptc_table *ptc_store_table_find_locked(struct job *j, const struct ptc_table_key *key);
void ptc_store_table_register_locked(struct ptc_table *t);
int ptc_store_table_room(struct ptc_table *t, size_t pieces, size_t chunks); /* 0 or PTC_ENOMEM */
void ptc_store_table_push(struct ptc_table *t, const struct ptc_piece *p, uint64_t pos, bool filled);
void ptc_store_table_rehash(struct ptc_table *t);
void ptc_store_table_sort(struct ptc_table *t, struct loc *room); /* by item; takes room for t->n + 1 over */
/* New pieces. alias: over chunks given beside (pos relative to their first); else a new extent is made for box live. */
struct addition {
	struct ptc_piece p;
	uint64_t pos;
	bool alias;
};
int ptc_store_table_append(struct ptc_table *t, struct addition *v, size_t n, struct chunk *const *chunks,
			   size_t nchunks, struct ptc_error *err);
int ptc_store_box_check(uint32_t item, const struct ptc_box *b, struct ptc_error *err);
/* The extent will be written again from its beginning: what was summed early of it does not count. */
void ptc_store_extent_again(const struct ptc_table *t, uint32_t extent);
/* Stream position for an extent of bytes after *tail (0: at a new chunk, the first of which is number nchunks), and the
 * number of chunks the stream then has. */
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
/* First piece of an item's hash chain, as index + 1; 0: none. */
static inline uint32_t ptc_store_table_head(const struct ptc_table *t, uint32_t item)
{
	return t->nheads ? t->heads[(item * 2654435761u) & (t->nheads - 1)] : 0;
}

/* damage.c: a block, of the chunk-th chunk of t, read for that piece; always PTC_ECORRUPT */
int ptc_store_damage(const struct ptc_table *t, size_t piece, size_t chunk, unsigned block, struct ptc_error *err);

/* read.c */
/* Bytes of box out of sealed src, verified, into the extent at stream position pos of t. */
int ptc_store_gather(struct ptc_table *src, uint32_t item, const struct ptc_box *box, struct ptc_table *t, uint64_t pos,
		     struct ptc_error *err);
int64_t ptc_store_covered(const struct ptc_table *t, uint32_t item, const struct ptc_box *box);
