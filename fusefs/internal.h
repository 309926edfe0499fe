/* SPDX-License-Identifier: Apache-2.0 */
/* Inside fusefs. One lock, fs->lock, guards everything that is shared; it is
 * never held while the source is asked, while a request is answered, or while
 * libfuse is called. Functions that need it end in _locked. */
#pragma once

#define FUSE_USE_VERSION 312
#include "fusefs/fusefs.h"

#include "dataset/source.h"
#include "formats/dataset_doc.h"
#include "fusefs/lent.h"
#include "order/order.h"

#include <fuse3/fuse_lowlevel.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#define FS_BLOCK        (128u << 10) /* unit of the cache: what the kernel reads ahead */
#define FS_READ_MAX     (1u << 20)   /* most bytes of one request */
#define FS_READ_SPAN    (FS_READ_MAX / FS_BLOCK + 1)
#define FS_RUN_BLOCKS   32 /* blocks of one call to the source: 4 MiB; several are under way ahead of a reader */
#define FS_AHEAD_MAX    (16u << 20) /* read ahead of one file */
#define FS_SEGMENT      (4u << 20)  /* of a file: where it lies is asked for at once */
#define FS_SEGMENTS     4096        /* of which that is remembered */
#define FS_NEAR_BUFS    6           /* of FS_READ_MAX, kept for copying */
#define FS_NODES_MAX    (1u << 22)  /* names the kernel may know at once */
#define FS_HANDLES      16384       /* files and directories open at once */
#define FS_OPS_MAX      1024        /* requests being worked at; the kernel sends fewer */
#define FS_META_CREW    4
#define FS_READ_CREW    3
#define FS_FETCH_CREW   8
#define FS_DATA_FETCH   4 /* of those, at most, that wait for samples: state must not wait for a dead disk */
#define FS_TAKERS       2
#define FS_SOURCE_MAX   64    /* a mount's source, as mountinfo has it */
#define FS_HOLD_MS      30000 /* a lease on a snapshot that somebody has open; renewed at a third of it */
#define FS_LINGER_MS    2000  /* and so long after the last close, for the next open */
#define FS_FRESH_MS     20    /* the list of jobs is asked for again after this */
#define FS_STALE_MS     1000  /* and after this, when the source did not answer: until then the old one has to do */
#define FS_PATIENCE_MS  500   /* how long others wait beside somebody who waits for that answer */
#define FS_NAME_MAX     255
#define FS_JOB_NAME_MAX (PTC_NAME_MAX + 11) /* with its owner: 4294967294:NAME */
#define FS_FOREVER      (86400.0 * 365)
#define FS_SNAP_S       1.0 /* how long the kernel may believe that a snapshot, or a generation of data, is still there */

/* ---- what is served ---- */

/* How a snapshot's bytes are read: through one generation that has it. */
struct fs_view {
	unsigned refs;
	struct ptc_fs_state *state;
	unsigned opens; /* handles that read through it */
	int64_t held_until_ns, closed_ns;
	bool held;            /* the source may still think so */
	struct fs_view *over; /* next of those that nothing refers to any more */
};
struct fs_snap {
	struct fs_snap *next;
	unsigned refs;
	char job[PTC_NAME_MAX + 1], uuid[37];
	uid_t uid;
	uint64_t number, step;
	struct fs_view *view; /* the newest; NULL: not looked at yet */
	bool loading;
};
/* Where a dataset's samples come from. */
struct fs_origin {
	struct ptc_source *source; /* NULL: not ours to open, or not here, and the daemon is asked by these names */
	char dataset[PTC_NAME_MAX + 1], id[33];
	uid_t uid;     /* for whom the daemon is asked; 0: for us */
	bool far_away; /* on another node: the daemon can read ahead */
	uint64_t samples;
	uint64_t fixed_bytes; /* of every sample; 0: they differ */
	char *names;          /* of files, where there is no source: each with its NUL, and where each begins */
	uint64_t *name_at;
};
/* len bytes of a sample from offset on; zeros where it has ended. */
struct fs_want {
	uint32_t part; /* of the mixture */
	uint64_t sample, offset;
	unsigned char *buf;
	size_t len;    /* 0: only the size is asked for */
	uint64_t size; /* of the sample, once fetched */
};
/* How far a rank has read in an epoch, in slots, and how far the daemon was told to read ahead. */
struct fs_ahead {
	uint32_t dp;
	uint64_t epoch, last, to;
};
#define FS_AHEADS 16
/* What the ranks of one generation consume of one of the job's data, from the generation's cursor on. */
struct fs_part {
	struct fs_part *next; /* all of them */
	unsigned refs;
	uid_t uid; /* the job's owner */
	char uuid[37], name[PTC_FIELD_NAME_MAX + 1];
	uint64_t generation, first_step, position; /* where it began */
	uint64_t tag_samples;                      /* of the order that its cursor says; 0: it does not */
	int64_t mtime_s;
	struct ptc_mix mix;
	struct ptc_batch batch;
	struct fs_origin origins[PTC_MIX_MAX];
	const struct ptc_fs_source *from; /* the daemon; borrowed from the file system */
	enum ptc_source_dtype dtype;
	uint64_t stride;         /* bytes between samples in samples.bin: of the longest */
	uint64_t fixed_bytes;    /* of every sample of all sources; 0: they differ */
	uint64_t slots_per_step; /* of a rank */
	bool files;              /* its samples are files */
	bool elsewhere;          /* some are asked of the daemon */
	pthread_mutex_t lock;    /* of what follows */
	struct fs_ahead ahead[FS_AHEADS];
	size_t naheads;
};
/* The steps that begin in one epoch. */
struct fs_window {
	uint64_t first, steps; /* first: of the generation's, counted from 0 */
	uint64_t slots;        /* of a rank */
};
enum fs_part_file {
	FS_PART_BIN,
	FS_PART_IDX,
	FS_PART_IDS,
	FS_PART_WEIGHTS,
	FS_PART_JSON,
	FS_PART_FILES, /* so many have names */
	FS_PART_SAMPLE /* of one slot */
};
#define FS_PART_JSON_MAX 1024
/* Where below a generation's directory; part counts as a reference. */
struct fs_place {
	struct fs_part *part;
	uint32_t dp;
	uint64_t epoch;
	enum fs_part_file which; /* FS_PART, with the next two */
	uint64_t slot;           /* FS_PART_SAMPLE */
	uint64_t size;
};
struct fs_file {
	unsigned refs;
	uint64_t id;         /* its content's: equal for equal bytes */
	uint64_t generation; /* 0: the same in each that has the snapshot */
	struct ptc_state_file sf;
	uint64_t *start; /* of each item in the file, and the end */
	uint64_t size;
	struct fs_place at; /* with a part: it is read by fs_part_read; sf is empty */
};

enum fs_kind {
	FS_ROOT,
	FS_JOB,
	FS_GENERATION,
	FS_STATE,
	FS_LATEST,
	FS_SNAP,
	FS_TENSORS,
	FS_GEN, /* what is of one generation of the snapshot: the ranks' */
	FS_RANKS,
	FS_FILE,
	FS_DATA, /* this and what follows: below data/ */
	FS_DATASET,
	FS_DATAGEN,
	FS_DP,
	FS_EPOCH,
	FS_SLOTS, /* a sample for each slot, where they are files */
	FS_PART,
};
struct fs_node {
	struct fs_node *next; /* in its hash chain */
	uint64_t id;          /* node and inode number: a hash of what it is; the root's is 1 */
	uint64_t nlookup;
	enum fs_kind kind;
	uid_t uid;
	bool shared; /* with group gid */
	gid_t gid;
	int64_t mtime_s;
	char uuid[37], job[PTC_NAME_MAX + 1]; /* below the root */
	char *link;                           /* FS_LATEST */
	struct fs_snap *snap;                 /* FS_SNAP and below */
	struct fs_file *file;                 /* FS_GENERATION, FS_FILE */
	uint64_t generation;                  /* FS_GEN, FS_RANKS; 0: the snapshot's in each */
	struct fs_place at;                   /* FS_DATAGEN and below, as far as it is known there */
	char data[PTC_FIELD_NAME_MAX + 1];    /* FS_DATASET and below */
};
struct fs_handle {
	bool used;
	uint32_t turn; /* tells uses of a slot apart */
	struct fs_file *file;
	struct fs_snap *snap;
	struct fs_view *view;
	uint64_t next_off, window, ahead_to; /* sequential so far: the next byte, how far to read ahead, done up to */
	struct fs_place at;                  /* of FS_PART, and of FS_SLOTS */
	struct fs_dirent *list;              /* a directory */
	size_t nlist;
};
struct fs_dirent {
	char *name;
	uint64_t ino;
	mode_t type;
};

/* ---- requests under way ---- */
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
	void (*run)(struct ptc_fs *fs, struct fs_op *op); /* on a worker of the meta crew */
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
/* Blocks that a request has just waited for in vain. The kernel, whose read ahead failed, asks for the page itself once more:
 * that must not take the time limit again. */
#define FS_VAIN 32
struct fs_vain {
	uint64_t file, first, n;
	int64_t until_ns;
};
struct fs_cache {
	struct fs_vain vain[FS_VAIN];
	size_t next_vain;
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
struct fs_near {
	struct fs_segment *v;
	size_t nspans, hand;
	void *bufs[FS_NEAR_BUFS];
	size_t nbufs;
};
struct fs_near_spans { /* references, of a read */
	uint64_t first;
	struct ptc_fs_spans *v[2];
};
enum fs_near_state { FS_NEAR, FS_UNKNOWN, FS_FAR };

struct ptc_fs {
	struct ptc_fs_opts opts;
	struct fuse_session *se;
	char *dir; /* mounted there; NULL: not */
	char source[FS_SOURCE_MAX];
	int fd, stop_fd;
	int64_t start_s;
	atomic_bool stopping;
	pthread_mutex_t lock;
	pthread_cond_t loaded; /* some snap's loading has ended */
	struct ptc_fs_job *jobs;
	size_t njobs;
	int64_t jobs_until_ns; /* believed until then */
	int64_t jobs_asked_ns; /* somebody has been asking since; 0: nobody */
	bool jobs_known;
	struct fs_snap *snaps;
	struct fs_part *parts;
	struct fs_view *over; /* to be given up at the source, then freed */
	struct fs_node **nodes;
	size_t nnodes, nbuckets;
	struct fs_handle handles[FS_HANDLES];
	uint32_t next_handle; /* where to look for a free one */
	struct fs_op *ops, *ops_last;
	size_t nops;
	uint64_t op_number;
	struct fs_queue meta,
		reads; /* reads: what is below data/, whose sources may be slow: other names must not wait for them */
	struct fs_cache cache;
	struct fs_near near;
	pthread_cond_t clock_cond, tend_cond; /* an interrupt, or the end */
	pthread_t threads[FS_META_CREW + FS_READ_CREW + FS_FETCH_CREW + 2];
	size_t nthreads;
};

/* objects.c */
int fs_errno(int rc);
struct fs_view *fs_view_ref_locked(struct fs_view *v);
void fs_view_unref_locked(struct ptc_fs *fs, struct fs_view *v);
struct fs_snap *fs_snap_ref_locked(struct fs_snap *s);
void fs_snap_unref_locked(struct ptc_fs *fs, struct fs_snap *s);
struct fs_file *fs_file_ref_locked(struct fs_file *f);
void fs_file_unref_locked(struct ptc_fs *fs, struct fs_file *f);
/* Samples that lie elsewhere, read through the cache. NULL: out of memory. Takes another reference to the part. */
struct fs_file *fs_file_of_place_locked(const struct fs_place *at, uint64_t id);
/* Takes sf over. NULL: out of memory (sf is released). */
struct fs_file *fs_file_new(struct ptc_state_file *sf, uint64_t id, uint64_t generation);
/* A job by name or by uuid, as the source says now. 0, ENOENT or EIO. uid: who asks (root sees all). One that is shared with a group is
 * found by everybody: whether he may enter it the kernel knows, who has all his groups. */
int fs_job_find(struct ptc_fs *fs, const char *name, const char *uuid, uid_t uid, struct ptc_fs_job *ret);
int fs_jobs_refresh(struct ptc_fs *fs, bool now); /* now: whatever is believed */
/* Whether a person means this job by that name: NAME or UID:NAME. */
bool fs_job_named(const struct ptc_fs_job *j, const char *name);
void fs_job_full_name(const struct ptc_fs_job *j, char ret[FS_JOB_NAME_MAX + 1]);
bool fs_job_shares_name_locked(const struct ptc_fs *fs, const struct ptc_fs_job *job); /* another user's has the same */
double fs_jobs_believed_s(struct ptc_fs *fs, const struct ptc_fs_job *job);
bool fs_may_see(const struct ptc_fs *fs, uid_t uid, uid_t owner);
/* The object of a job's snapshot, a reference; made if need be. NULL: out of memory. */
struct fs_snap *fs_snap_get(struct ptc_fs *fs, const struct ptc_fs_job *job);
/* One that somebody still holds, by number. NULL: none. */
struct fs_snap *fs_snap_find(struct ptc_fs *fs, const char *uuid, uint64_t number, uint64_t step);
/* A reference to how it is read now. 0, ESTALE, EIO ... */
int fs_snap_view(struct ptc_fs *fs, struct fs_snap *s, bool anew, struct fs_view **ret);
/* The same, and held, its opens counted; fs_view_close gives it back. */
int fs_snap_open(struct ptc_fs *fs, struct fs_snap *s, uint64_t generation, struct fs_view **ret);
void fs_view_close_locked(struct ptc_fs *fs, struct fs_view *v);
/* Renews and gives up leases; asks the source. */
void fs_holds_tend(struct ptc_fs *fs);

/* names.c */
/* The file name of a tensor, of at most FS_NAME_MAX bytes with suffix; ret has room for one more. */
void fs_tensor_name(const char *tensor, const char *suffix, char *ret);
/* "snap-<n>-step-<s>" */
bool fs_snap_parse(const char *name, uint64_t *ret_number, uint64_t *ret_step);
/* The number behind the prefix, written as we write it. */
bool fs_number_parse(const char *name, const char *prefix, uint64_t *ret);
void fs_snap_name(uint64_t number, uint64_t step, char ret[64]);
/* Which items are the model and which the optimizer. */
bool fs_is_optimizer(const struct ptc_spec *spec, uint32_t item);
/* The item whose .npy has that name; false: none. */
bool fs_tensor_find(const struct ptc_spec *spec, const char *name, uint32_t *ret_item);
bool fs_rank_parse(const char *name, uint32_t world, uint32_t *ret_rank);

/* origin.c */
/* here: the daemon's node; uid: whose job reads it, who alone decides what may be opened. */
int fs_origin_open(const struct ptc_fs_source *from, const char *here, uid_t uid, const struct ptc_dataset_doc *doc,
		   struct fs_origin *ret, struct ptc_error *err);
void fs_origin_close(struct fs_origin *o);
const char *fs_origin_name(const struct fs_origin *o, uint64_t sample); /* of a file; borrowed */
/* They are wanted next. */
void fs_origin_ahead(const struct fs_part *p, uint32_t part, const uint64_t *samples, size_t n);
int fs_part_fetch(const struct fs_part *p, struct fs_want *v, size_t n, struct ptc_error *err);

/* part.c */
const char *fs_part_file_name(enum fs_part_file file);
/* json: the daemon's answer, "job data" of docs/control.md. uid, uuid: the job's. Opens the sources. */
int fs_part_new(const struct ptc_fs_source *from, const char *json, uid_t uid, const char *uuid, const char *name,
		uint64_t generation, struct fs_part **ret_part, struct ptc_error *err);
struct fs_part *fs_part_free(struct fs_part *p);
void fs_part_unref_locked(struct ptc_fs *fs, struct fs_part *p);
/* False: it was over when the generation began, or is beyond all numbers. */
bool fs_part_epoch(const struct fs_part *p, uint64_t epoch, struct fs_window *ret);
/* Of a file that has a name. */
uint64_t fs_part_size(const struct fs_place *at, const struct fs_window *w);
/* len bytes that lie in the file. */
int fs_part_read(const struct fs_place *at, uint64_t off, void *buf, size_t len, struct ptc_error *err);
/* Those bytes have been read: has the daemon get what comes next, where it is not here. */
void fs_part_read_ahead(const struct fs_place *at, uint64_t off, size_t len);
/* The name of slot i's sample, where samples are files: "000000012-cat.jpg". */
void fs_part_slot_name(const struct fs_place *at, const struct fs_window *w, uint64_t i, char ret[FS_NAME_MAX + 1]);
/* The slot of that name and how long its sample is. 0, PTC_ENOTFOUND, or what the source says. */
int fs_part_slot_find(const struct fs_place *at, const struct fs_window *w, const char *name, uint64_t *ret_slot,
		      uint64_t *ret_size, struct ptc_error *err);

/* data.c */
struct fs_listing {
	struct fs_dirent *v;
	size_t n, cap;
	bool failed;
};
/* Whether the job's data can be read with its owner's rights. */
bool fs_data_shown(const struct ptc_fs *fs, const struct ptc_fs_job *job);
int fs_data_find(struct ptc_fs *fs, const struct fs_node *dir, const char *name, struct fs_node **ret);
int fs_data_list(struct ptc_fs *fs, const struct fs_node *dir, struct fs_listing *l);
void fs_run_part_read(struct ptc_fs *fs, struct fs_op *op);
/* Entry i of an open FS_SLOTS; false: there are no more. */
bool fs_data_slot(const struct fs_place *at, uint64_t i, char ret_name[FS_NAME_MAX + 1], uint64_t *ret_ino);

/* tree.c */
struct fs_node *fs_node_new(enum fs_kind kind, const struct ptc_fs_job *job, uint64_t id);
void fs_list_add(struct fs_listing *l, const char *name, uint64_t ino, mode_t type);
uint64_t fs_identity(enum fs_kind kind, const char *uuid, uint64_t number, uint64_t generation, const char *name);
struct fs_node *fs_node_find_locked(struct ptc_fs *fs, uint64_t id);
void fs_node_forget_locked(struct ptc_fs *fs, uint64_t id, uint64_t n);
void fs_node_stat(const struct ptc_fs *fs, const struct fs_node *n, struct stat *ret);
void fs_nodes_free(struct ptc_fs *fs);
/* Frees what the snapshot's files are made of, where nobody has them open. */
void fs_nodes_strip_locked(struct ptc_fs *fs, const struct fs_snap *s);
/* Bodies of requests, on workers. */
void fs_run_lookup(struct ptc_fs *fs, struct fs_op *op);
void fs_run_open(struct ptc_fs *fs, struct fs_op *op);
void fs_run_opendir(struct ptc_fs *fs, struct fs_op *op);
int fs_node_init(struct ptc_fs *fs, struct ptc_error *err);
struct fs_handle *fs_handle_get_locked(struct ptc_fs *fs, uint64_t fh);
/* 0: none is free. */
uint64_t fs_handle_new_locked(struct ptc_fs *fs, struct fs_handle **ret);
void fs_handle_close_locked(struct ptc_fs *fs, uint64_t fh);
void fs_list_free(struct fs_dirent *list, size_t n);

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
void fs_op_unref_locked(struct ptc_fs *fs, struct fs_op *op);
void fs_op_fail(struct ptc_fs *fs, struct fs_op *op,
		int error); /* answers, unless somebody did, and drops the reference */
int fs_crew_start(struct ptc_fs *fs, struct ptc_error *err);
void fs_crew_stop(struct ptc_fs *fs);

/* cache.c */
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
/* Nothing is missing of the read any more: answers it. Consumes a reference. */
void fs_read_done(struct ptc_fs *fs, struct fs_op *op);
/* A read has waited for them until its deadline; was that so a moment ago? */
void fs_vain_note_locked(struct ptc_fs *fs, const struct fs_op *op);
bool fs_vain_locked(const struct ptc_fs *fs, uint64_t file, uint64_t first, uint64_t n);
/* Answers a read out of its blocks. */
void fs_read_reply(fuse_req_t req, struct fs_block *const *blocks, uint64_t first, uint64_t off, size_t size);

/* The ranges of items that make up bytes [off, end) of the file, which begin behind its head. 0 or PTC_ENOMEM; ptc_free them. */
int fs_ranges_of(const struct fs_file *file, uint64_t off, uint64_t end, struct ptc_fs_range **ret, size_t *ret_n);

/* near.c */
int fs_near_init(struct ptc_fs *fs, struct ptc_error *err);
void fs_near_done(struct ptc_fs *fs);
/* Where the read's bytes lie; with FS_NEAR *ret is to be put. FS_UNKNOWN: has to be asked for, by fs_run_near. */
enum fs_near_state fs_near_find_locked(struct ptc_fs *fs, const struct fs_file *file, const struct fs_view *view,
				       uint64_t off, size_t size, struct fs_near_spans *ret);
void fs_near_put(struct fs_near_spans *spans);
/* FS_READ_MAX bytes; NULL: out of memory. */
void *fs_near_buf(struct ptc_fs *fs);
void fs_near_buf_put(struct ptc_fs *fs, void *buf);
/* False: they are not there any more, which is remembered. */
bool fs_near_copy(struct ptc_fs *fs, const struct fs_file *file, const struct fs_near_spans *spans, uint64_t off,
		  size_t size, uint8_t *buf);
void fs_run_near(struct ptc_fs *fs, struct fs_op *op);
void fs_near_sweep(struct ptc_fs *fs); /* forgets what nobody has read for long */

/* ops.c */
extern const struct fuse_lowlevel_ops fs_ops;
void fs_run_read(struct ptc_fs *fs, struct fs_op *op); /* through the cache; any thread */
/* mountpoint.c */
/* alone: whatever of ours is mounted there has no server any more. The mount is told from others by its source. */
int fs_mountpoint_open(const char *dir, bool others, bool alone, char ret_source[FS_SOURCE_MAX], int *ret_fd,
		       struct ptc_error *err);
/* Detaches that mount. Another one at dir stays, and that one too while it is below another one. */
void fs_mountpoint_close(const char *dir, const char *source);
/* Whether whoever goes to dir comes to that mount. */
bool fs_mountpoint_on_top(const char *dir, const char *source);
