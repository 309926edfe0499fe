/* SPDX-License-Identifier: Apache-2.0 */
/* Requests under way, and what answers reads: the cache of blocks, and memory
 * of this node. All of it belongs to the file system and is guarded by its lock.
 * Functions that need the lock end in _locked, all others must be called
 * without it. Every request is answered once, by whoever claims it. */
#pragma once

#define FUSE_USE_VERSION 312
#include "fusefs/serve/objects.h"

#include <fuse3/fuse_lowlevel.h>
#include <sys/uio.h>

#define FS_BLOCK           (128u << 10) /* unit of the cache: what the kernel reads ahead */
#define FS_READ_SPAN       (FS_READ_MAX / FS_BLOCK + 1)
#define FS_RUN_BLOCKS      32 /* blocks of one call to the source: 4 MiB; several are under way ahead of a reader */
#define FS_AHEAD_MAX       (16u << 20) /* read ahead of one file */
#define FS_SEGMENT         (4u << 20)  /* of a file: where it lies is asked for at once */
#define FS_SEGMENTS        4096        /* of which that is remembered */
#define FS_DIRECT_BUFS     6           /* of FS_READ_MAX, kept for copying */
#define FS_OPS_MAX         1024        /* requests being worked at; the kernel sends fewer */
#define FS_META_TASK_POOL  4
#define FS_READ_TASK_POOL  3
#define FS_FETCH_TASK_POOL 8
#define FS_DATA_FETCH      4 /* of those, at most, that wait for samples: state must not wait for a dead disk */
#define FS_TAKERS          2
#define FS_PLUS_MAX        256 /* nodes that one answer to a listing brings with it: they are made with the lock held */
#define FS_SMALL_HEAD      512 /* the most of a file of a small tensor that comes before it */
#define FS_PACK_AHEAD      8   /* blocks of small tensors */
/* A read waits so long for a block of many tensors; then it asks for its own bytes alone, and so do others for a while.
 */
#define FS_PACK_MS         2000
#define FS_APART_MS        10000

struct fs_block;
struct fs_wait {
	struct fs_wait *next;
	struct fs_op *op;
};
struct fs_op {
	struct fs_op *prev, *next; /* all of them, oldest first */
	struct fs_op *queued;      /* next in a queue */
	uint64_t number;
	fuse_req_t req;
	int64_t deadline_ns;
	unsigned refs;
	bool starting, interrupted, answered;
	void (*run)(struct ptc_fs *fs, struct fs_op *op);   /* on a worker of the meta task pool */
	void (*apart)(struct ptc_fs *fs, struct fs_op *op); /* of a read: `run` when it goes on without the pack */
	fuse_ino_t ino;
	uid_t uid; /* who asks */
	gid_t gid;
	pid_t pid;
	char *name;
	struct fuse_file_info fi;
	/* a read */
	struct fs_file *file;
	struct fs_view *view;
	struct fs_place at; /* instead of file and view */
	/* of a small tensor's file: file is its snapshot's pack, and all that follows is of that */
	struct fs_file *small;
	uint64_t small_off; /* where in the file it begins */
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
	struct fs_block *hash, *prev, *next; /* prev, next: free, or least recently used first */
	uint64_t file, index;
	uint8_t *data;
	size_t len;
	unsigned pins; /* requests that copy from it, and the call that fills it */
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
/* Blocks that a request has just waited for in vain. The kernel, whose read ahead failed, asks for the page itself once
 * more: that must not take the time limit again. */
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
	struct fs_block lru; /* ring: least recently used first; unpinned blocks that are free or ready */
	size_t nlru;
	struct fs_op *starved, **starved_tail;
	struct fs_fetch *fetches, **fetches_tail;
	unsigned data_fetches; /* under way */
	pthread_cond_t fetch_cond;
};

/* Where in this node's memory a part of a file lies. */
struct fs_segment {
	uint64_t file, index, generation;
	struct ptc_fs_spans *spans; /* NULL: not here, until then, through that generation */
	int64_t until_ns, used_ns;
	bool known;
};
struct fs_direct {
	struct fs_segment *v;
	size_t nspans, hand;
	void *bufs[FS_DIRECT_BUFS];
	size_t nbufs;
};
struct fs_direct_spans { /* references, of a read */
	uint64_t first;
	struct ptc_fs_spans *v[2];
};
enum fs_direct_state { FS_DIRECT, FS_UNKNOWN, FS_REMOTE };

/* op.c */
/* Answers in the caller's place when there are too many: then NULL. */
struct fs_op *fs_op_new(struct ptc_fs *fs, fuse_req_t req, fuse_ino_t ino, const char *name,
			const struct fuse_file_info *fi);
/* From now on it can be interrupted; false: it was already, and is answered. Lock not held. */
bool fs_op_start(struct ptc_fs *fs, struct fs_op *op);
void fs_op_queue(struct ptc_fs *fs, struct fs_queue *q, struct fs_op *op);
/* True: the caller answers it, now. */
bool fs_op_claim(struct ptc_fs *fs, struct fs_op *op);
bool fs_op_claim_locked(struct ptc_fs *fs, struct fs_op *op);
void fs_op_unref(struct ptc_fs *fs, struct fs_op *op);
void fs_op_unref_locked(struct ptc_fs *fs, struct fs_op *op);
void fs_op_fail(struct ptc_fs *fs, struct fs_op *op,
		int error); /* answers, unless somebody did, and drops the reference */

/* blocks.c */
int fs_cache_init(struct ptc_fs *fs, uint64_t bytes, struct ptc_error *err);
void fs_cache_done(struct ptc_fs *fs);
/* Pins the op's blocks and asks for those that are missing. Starved: later. */
void fs_cache_begin_locked(struct ptc_fs *fs, struct fs_op *op);
/* Pins the blocks of a read when all are there; false: nothing was pinned. */
bool fs_cache_ready_locked(struct ptc_fs *fs, uint64_t file, uint64_t first, size_t n, struct fs_block **ret);
void fs_cache_unpin_locked(struct ptc_fs *fs, struct fs_block *const *blocks, size_t n);
/* The blocks from first on that are not there, at most n of them; no more than memory nobody uses has room for. */
void fs_cache_ahead_locked(struct ptc_fs *fs, struct fs_file *file, struct fs_view *view, uint64_t first, uint64_t n);
void *fs_fetch_main(void *fs);
void fs_cache_kick_locked(struct ptc_fs *fs); /* there may be room for a read that waits for it */
void fs_cache_drain(struct ptc_fs *fs);       /* once the threads have ended */
/* A read that waits for blocks does not any more; false: it does not wait, or only for room. */
bool fs_cache_leave_locked(struct ptc_fs *fs, struct fs_op *op);
/* A read of a small tensor's file goes on without the pack: it is queued anew. Lock held, none of its blocks pinned. */
void fs_read_apart_locked(struct ptc_fs *fs, struct fs_op *op);
/* Nothing is missing of the read any more: answers it. Consumes a reference. */
void fs_read_done(struct ptc_fs *fs, struct fs_op *op);
/* A read has waited for them until its deadline; was that so a moment ago? */
void fs_timed_out_note_locked(struct ptc_fs *fs, const struct fs_op *op);
bool fs_timed_out_locked(const struct ptc_fs *fs, uint64_t file, uint64_t first, uint64_t n);
/* Answers a read: bytes of a head, then out of its blocks. */
void fs_read_reply(fuse_req_t req, struct iovec head, struct fs_block *const *blocks, uint64_t first, uint64_t off,
		   size_t size);

void fs_run_read(struct ptc_fs *fs, struct fs_op *op); /* through the cache; any thread */

/* The ranges of items that make up bytes [off, end) of the file, behind its head. 0 or PTC_ENOMEM; ptc_free them. */
int fs_ranges_of(const struct fs_file *file, uint64_t off, uint64_t end, struct ptc_fs_range **ret, size_t *ret_n);

/* direct.c */
int fs_direct_init(struct ptc_fs *fs, struct ptc_error *err);
void fs_direct_done(struct ptc_fs *fs);
/* Where the read's bytes lie; with FS_DIRECT *ret is to be put. FS_UNKNOWN: has to be asked for, by fs_run_direct. */
enum fs_direct_state fs_direct_find_locked(struct ptc_fs *fs, const struct fs_file *file, const struct fs_view *view,
					   uint64_t off, size_t size, struct fs_direct_spans *ret);
void fs_direct_put(struct fs_direct_spans *spans);
/* FS_READ_MAX bytes; NULL: out of memory. */
void *fs_direct_buf(struct ptc_fs *fs);
void fs_direct_buf_put(struct ptc_fs *fs, void *buf);
/* False: they are not there any more, which is remembered. */
bool fs_direct_copy(struct ptc_fs *fs, const struct fs_file *file, const struct fs_direct_spans *spans, uint64_t off,
		    size_t size, uint8_t *buf);
void fs_run_direct(struct ptc_fs *fs, struct fs_op *op);
void fs_direct_sweep(struct ptc_fs *fs); /* forgets what nobody has read for long */

/* ops.c */
extern const struct fuse_lowlevel_ops fs_ops;
