/* SPDX-License-Identifier: Apache-2.0 */
/* Requests under way, and the two ways to answer reads: the cache of blocks, and direct reads of this node's chunk
 * files. All belong to the file system, whose lock guards them. Functions that need the lock end in _locked. All others
 * must be called without it. Every request is answered once, by the thread that claims it. */
#pragma once

#define FUSE_USE_VERSION 312
#include "fusefs/serve/objects.h"
#include "fusefs/source/file_ranges.h"

#include <fuse3/fuse_lowlevel.h>
#include <sys/uio.h>

#define FS_BLOCK            (128u << 10) /* unit of the cache: the kernel's read-ahead */
#define FS_READ_SPAN        (FS_READ_MAX / FS_BLOCK + 1)
#define FS_RUN_BLOCKS       32 /* blocks of one call to the source: 4 MiB; several calls run ahead of a reader */
#define FS_AHEAD_MAX        (16u << 20) /* bytes read ahead in one file */
#define FS_SEGMENT          (4u << 20)  /* of a file: the unit in which places of bytes are asked for */
#define FS_SEGMENTS         4096        /* number of segments whose places are remembered */
#define FS_DIRECT_BUFS      6           /* of FS_READ_MAX bytes, kept for copying */
#define FS_OPS_MAX          1024        /* requests under way; the kernel sends fewer */
#define FS_META_TASK_POOL   4
#define FS_READ_TASK_POOL   3
#define FS_FETCH_TASK_POOL  8
#define FS_DATA_FETCH       4 /* of these, the most that may wait for samples: state must not wait for a dead disk */
#define FS_TAKERS           2
#define FS_PLUS_MAX         256 /* nodes that one answer to a listing brings; they are made under the lock */
#define FS_SMALL_HEAD       512 /* greatest head of a small tensor's file */
#define FS_PACK_AHEAD       8   /* blocks of small tensors read ahead */
/* A read waits so long for a block of many tensors. Then it, and others for a while, ask for their own bytes alone. */
#define FS_PACK_MS          2000
#define FS_APART_MS         10000
/* An open waits for the backing file until the first of: this, a third of the time limit, a second more than it takes
 * to read the file without one. */
#define FS_BACKING_MS       5000
#define FS_BACKING_LEAST_MS 1000
#define FS_BACKING_RATE     (512u << 10) /* bytes in a millisecond */

struct fs_block;
struct fs_wait {
	struct fs_wait *next;
	struct fs_op *op;
};
struct fs_op {
	struct fs_op *prev, *next; /* list of all, oldest first */
	struct fs_op *queued;      /* next in its queue */
	uint64_t number;
	fuse_req_t req;
	int64_t deadline_ns;
	unsigned refs;
	bool starting, interrupted, answered;
	void (*run)(struct ptc_fs *fs, struct fs_op *op); /* runs on a worker of the meta task pool */
	/* of a read: replaces `run` when it goes on without the pack */
	void (*apart)(struct ptc_fs *fs, struct fs_op *op);
	fuse_ino_t ino;
	uid_t uid; /* the caller's */
	gid_t gid;
	pid_t pid;
	char *name;
	struct fuse_file_info fi;
	/* of an open: its handle, closed with the op unless the kernel gets it; the file that it waits for */
	uint64_t opened, backing;
	int64_t until_ns; /* it waits so long */
	/* the members below are for reads */
	struct fs_file *file;
	struct fs_view *view;
	struct fs_place at; /* instead of file and view */
	/* for a small tensor's file: `file` is its snapshot's pack, which all members below concern */
	struct fs_file *small;
	uint64_t small_off; /* where the tensor begins in the file */
	size_t small_head;  /* bytes of the file's head, which come first */
	uint64_t off;
	size_t size;
	uint64_t first; /* block */
	size_t nblocks;
	struct fs_block *blocks[FS_READ_SPAN];
	struct fs_wait waits[FS_READ_SPAN];
	size_t waiting;
	int error;
};
struct fs_queue {
	struct fs_op *head, **tail;
	pthread_cond_t cond;
};

/* ---- the cache ---- */
enum fs_block_state { FS_FREE, FS_LOADING, FS_READY };
struct fs_block {
	struct fs_block *hash, *prev, *next; /* prev, next: the ring of unpinned blocks, least recently used first */
	uint64_t file, index;
	uint8_t *data;
	size_t len;
	unsigned pins; /* number of requests that copy from it, and the call that fills it */
	enum fs_block_state state;
	struct fs_wait *waits;
};
struct fs_fetch {
	struct fs_fetch *next;
	struct fs_file *file;
	struct fs_view *view;
	uint64_t first;
	size_t n;
	struct fs_block *blocks[FS_RUN_BLOCKS];
};
/* Blocks for which a request has just waited until its deadline. The kernel's read-ahead failed, so it asks for the
 * page once more. That must not take the time limit again. */
#define FS_TIMED_OUT 32
struct fs_timed_out {
	uint64_t file, first, n;
	int64_t until_ns;
};
struct fs_cache {
	struct fs_timed_out timed_out[FS_TIMED_OUT];
	size_t next_timed_out;
	struct fs_block *blocks;
	size_t n, nbuckets;
	struct fs_block **buckets;
	struct fs_block lru; /* ring of unpinned blocks, free or ready; least recently used first */
	size_t nlru;
	struct fs_op *starved, **starved_tail;
	struct fs_fetch *fetches, **fetches_tail;
	unsigned data_fetches; /* fetches of samples under way */
	pthread_cond_t fetch_cond;
};

/* The place of a part of a file in this node's chunk files. */
struct fs_segment {
	uint64_t file, index, generation;
	/* NULL: until until_ns, assume that the bytes are not here, through that generation */
	struct ptc_fs_spans *spans;
	int64_t until_ns, used_ns;
	bool known;
};
struct fs_direct {
	struct fs_segment *v;
	size_t nspans, hand;
	void *bufs[FS_DIRECT_BUFS];
	size_t nbufs;
};
struct fs_direct_spans { /* a read's references */
	uint64_t first;
	struct ptc_fs_spans *v[2];
};
enum fs_direct_state { FS_DIRECT, FS_UNKNOWN, FS_REMOTE };

/* op.c */
/* Makes an op. NULL: there are too many; the request is then answered already. */
struct fs_op *fs_op_new(struct ptc_fs *fs, fuse_req_t req, fuse_ino_t ino, const char *name,
			const struct fuse_file_info *fi);
/* Lets the op be interrupted from now on. false: it was interrupted before, and is answered. Lock not held. */
bool fs_op_start(struct ptc_fs *fs, struct fs_op *op);
void fs_op_queue(struct ptc_fs *fs, struct fs_queue *q, struct fs_op *op);
/* true: the caller must answer the op now. */
bool fs_op_claim(struct ptc_fs *fs, struct fs_op *op);
bool fs_op_claim_locked(struct ptc_fs *fs, struct fs_op *op);
void fs_op_unref(struct ptc_fs *fs, struct fs_op *op);
void fs_op_unref_locked(struct ptc_fs *fs, struct fs_op *op);
void fs_op_fail(struct ptc_fs *fs, struct fs_op *op,
		int error); /* answers with an error, unless it is answered, and drops the reference */

/* blocks.c */
int fs_cache_init(struct ptc_fs *fs, uint64_t bytes, struct ptc_error *err);
void fs_cache_done(struct ptc_fs *fs);
/* Pins the blocks of a read if all are there; false: none was pinned. */
bool fs_cache_ready_locked(struct ptc_fs *fs, uint64_t file, uint64_t first, size_t n, struct fs_block **ret);
void fs_cache_unpin_locked(struct ptc_fs *fs, struct fs_block *const *blocks, size_t n);
/* Asks for the missing ones of n blocks from `first` on, as far as unused blocks allow. */
void fs_cache_ahead_locked(struct ptc_fs *fs, struct fs_file *file, struct fs_view *view, uint64_t first, uint64_t n);
void *fs_fetch_main(void *fs);
void fs_cache_kick_locked(struct ptc_fs *fs); /* call it when a block may have become free for a waiting read */
void fs_cache_drain(struct ptc_fs *fs);       /* call it once the threads have ended */
/* Ends a read's wait for blocks. false: it does not wait, or waits only for room. */
bool fs_cache_leave_locked(struct ptc_fs *fs, struct fs_op *op);
/* Lets a read of a small tensor's file go on without the pack: it is queued again. None of its blocks is pinned. */
void fs_read_apart_locked(struct ptc_fs *fs, struct fs_op *op);
/* Notes that a read waited for its blocks until its deadline; asks whether that was so a moment ago. */
void fs_timed_out_note_locked(struct ptc_fs *fs, const struct fs_op *op);
bool fs_timed_out_locked(const struct ptc_fs *fs, uint64_t file, uint64_t first, uint64_t n);
/* Answers a read with bytes of a head and then of blocks. */
void fs_read_reply(fuse_req_t req, struct iovec head, struct fs_block *const *blocks, uint64_t first, uint64_t off,
		   size_t size);
void fs_run_read(struct ptc_fs *fs, struct fs_op *op); /* reads through the cache; any thread */

/* direct.c */
int fs_direct_init(struct ptc_fs *fs, struct ptc_error *err);
void fs_direct_done(struct ptc_fs *fs);
/* Finds where the read's bytes lie. FS_DIRECT: fs_direct_put *ret. FS_UNKNOWN: fs_run_direct must ask for it. */
enum fs_direct_state fs_direct_find_locked(struct ptc_fs *fs, const struct fs_file *file, const struct fs_view *view,
					   uint64_t off, size_t size, struct fs_direct_spans *ret);
void fs_direct_put(struct fs_direct_spans *spans);
/* A buffer of FS_READ_MAX bytes; NULL: out of memory. */
void *fs_direct_buf(struct ptc_fs *fs);
void fs_direct_buf_put(struct ptc_fs *fs, void *buf);
/* false: the bytes are not there any more, which is remembered. */
bool fs_direct_copy(struct ptc_fs *fs, const struct fs_file *file, const struct fs_direct_spans *spans, uint64_t off,
		    size_t size, uint8_t *buf);
void fs_run_direct(struct ptc_fs *fs, struct fs_op *op);
void fs_direct_sweep(struct ptc_fs *fs); /* forgets places that were not read for long */

/* ops.c */ extern const struct fuse_lowlevel_ops fs_ops;
