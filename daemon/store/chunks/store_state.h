/* SPDX-License-Identifier: Apache-2.0 */
/* The store, its jobs and their chunks, for the rooms of daemon/store only.
 *
 * Locks, outermost first:
 *   store.wlock   taken to write a transaction, to allocate chunks, or to change the registry
 *   table.lock    read: to look at the table's arrays or to fill its bytes; write: to change its arrays
 *   store.lock    for counts, lists and chunk states; held for moments, never across a system call that waits
 */
#pragma once

#include "base/limits.h"
#include "base/number/versions.h"
#include "base/status.h"

#include <lmdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct ptc_store_damage;
struct ptc_table;

#define CHUNK_BLOCKS ((PTC_CHUNK_BYTES + PTC_BLOCK_BYTES - 1) / PTC_BLOCK_BYTES)
/* A chunk is an LMDB value of whole pages, with LMDB's page header. CHUNK_PAD skips its first bytes, so that the
 * chunk's bytes and extents begin on cache lines: if both sides do, the kernel copies between processes 1.5 times as
 * fast. The last skipped bytes count the chunk's uses (ptc_store_chunk_use). They lie in the one page that is never
 * punched. */
#define PAGE_HEADER  16
#define CHUNK_PAD    48
#define CHUNK_VALUE  (PTC_CHUNK_BYTES + CHUNK_PAD)
#define CHUNK_SPAN   (CHUNK_VALUE + PAGE_HEADER)
#define ALL_BLOCKS   ((uint16_t)0xffff)
#define EXTENT_ALIGN 64u
#define FLUSH_CHUNKS                                                                                                   \
	256u /* summed chunks after which a fill records them in meta; at most so many are filled again                \
	      */
#define RECORD_VERSION  PTC_VERSION_NUMBER(2)
#define RECORD_OLDEST   2
#define STORE_UUID_LEN  36
#define KEY_MAX_BYTES   64
#define PART_BYTES      (256u << 10) /* a table's records are split into meta values of about this size */
#define CUSHION_DEFAULT (64ull << 20)

_Static_assert(CHUNK_BLOCKS == 16, "block masks are 16 bits wide");

struct job;

/* Bytes of a block without a checksum, and their checksum when they were said to be there (ptc_table_extent_ready). */
struct chunk_part {
	struct chunk_part *next;
	uint32_t at, bytes; /* in the chunk */
	uint64_t sum;
};

struct chunk {
	struct chunk *next; /* in the job's warm or cold list while free */
	uint8_t *ptr;
	uint64_t sum[CHUNK_BLOCKS];
	uint32_t id;                /* its key; from 1 */
	uint32_t refs;              /* tables in memory that list it; 0: free */
	uint32_t stored;            /* tables in meta that list it */
	uint32_t unfilled;          /* extents in it still to be filled */
	uint32_t used;              /* end of the last extent in it */
	_Atomic uint16_t damaged;   /* blocks that were reported as damaged */
	uint16_t dirty;             /* blocks without a checksum */
	_Atomic uint16_t early;     /* dirty blocks that the filling thread has summed; nobody writes them any more */
	_Atomic bool mapped;        /* its pages are in the page table; asking again costs as much as a copy */
	_Atomic uint64_t mapped_by; /* the process that has its pages in its page table, too; 0: none */
	struct chunk_part *parts;   /* until it is summed; under store.lock */
	bool closed;                /* it gets no further extent */
	bool claimed;               /* a thread is summing it */
	_Atomic bool summed;
	bool saved; /* its sums are in meta */
	bool ahead; /* free, and made ahead (spare_chunks.c); under wlock */
};

struct job {
	struct job *next;
	struct ptc_store *s;
	char uuid[STORE_UUID_LEN + 1];
	uid_t uid;
	int64_t fence;
	int bad; /* 0, or why the job is not usable: PTC_ELOST, PTC_ECORRUPT, PTC_EVERSION, PTC_EIO */
	char why[256];
	unsigned refs; /* of the registry and of tables in memory */

	MDB_env *env;
	MDB_dbi dbi;
	int fd;             /* LMDB's; do not close it */
	bool volatile_fs;   /* on tmpfs: there is nothing to msync */
	bool deleted;       /* its blocks go with its last reference, even if others have its file open */
	bool others;        /* a process that an earlier ptcd has given the file may still write */
	bool no_punch;      /* the file system cannot free blocks inside a file, so free chunks stay warm */
	unsigned page;      /* bytes */
	uint64_t alloc_end; /* file offset up to which blocks exist */
	uint64_t map_bytes;
	struct chunk **chunks; /* by id - 1 */
	size_t nchunks, cap;
	struct chunk *warm, *cold; /* free chunks with blocks, and without */
	size_t nwarm, nused;
	size_t nahead;            /* of nwarm, made ahead (spare_chunks.c); under wlock, as is the next member */
	bool freed;               /* a switch or snapshot has freed chunks, so none are made ahead any more */
	bool makes_ahead;         /* what gets blocks now is made ahead; under wlock */
	struct ptc_table *tables; /* registered */
	bool huge_todo;           /* under wlock, as is the next member */
	uint64_t huge_at;         /* file offset up to which huge_chunks.c has worked */
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
	uint64_t outside;                    /* bytes of the ceiling for other memory; grows under wlock */
	void (*damaged)(void *arg, const struct ptc_store_damage *d);
	void *damaged_arg;
	struct { /* huge_chunks.c */
		pthread_t thread;
		pthread_cond_t cond;    /* with lock */
		bool runs, quit, never; /* never: the kernel cannot do it; only the thread uses this */
		int64_t look_ns;        /* when the thread looked at memory last; only the thread uses this */
		int64_t ahead_ns;       /* spare_chunks.c makes nothing before this time; under wlock */
		pthread_mutex_t blocks; /* taken to give blocks back, and while a range has to keep all of its blocks */
		_Atomic int64_t busy_ns; /* when something was taken, filled or dropped last; */
		_Atomic int64_t read_ns; /* when a table was read last */
		int64_t fill_again_ns;   /* huge_fill.c fills nothing before this time; under wlock */
		_Atomic uint64_t bytes;
	} huge;
};

/* store_jobs.c */
struct job *ptc_store_job_find_locked(struct ptc_store *s, const char *uuid);
int ptc_store_job_usable(const struct job *j, const char *uuid, struct ptc_error *err);
struct job *
ptc_store_job_unref_locked(struct job *j); /* returns the job if the caller has to free it, without the lock */
void ptc_store_job_free(struct job *j);
