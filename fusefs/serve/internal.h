/* SPDX-License-Identifier: Apache-2.0 */
/* The state of one file system, for fusefs/serve only. One lock, fs->lock, guards everything shared. It is never held
 * while the source is asked, a request is answered or libfuse is called. Functions that need it end in _locked. */
#pragma once

#include "fusefs/backing/passthrough.h"
#include "fusefs/eager/eager.h"
#include "fusefs/mount/mountpoint.h"
#include "fusefs/serve/requests.h"

#include <stdatomic.h>

struct ptc_fs {
	struct ptc_fs_opts opts;
	struct fuse_session *se;
	char *dir; /* the mount point; NULL: not mounted */
	char source[FS_SOURCE_MAX];
	int fd;
	atomic_bool told_to_stop;
	pthread_t takers[FS_TAKERS]; /* threads that may wait for a request */
	size_t ntakers;
	struct fs_pass pass;
	struct fs_backings *backings; /* NULL: the kernel cannot use them, or none are wanted */
	struct fs_op *opening;        /* opens that wait for a backing file, by `queued` */
	pthread_mutex_t turn;         /* its holder waits for requests, and uses `eager` */
	struct fs_eager eager;
	int64_t start_s;
	atomic_bool stopping;
	pthread_mutex_t lock;
	pthread_cond_t loaded; /* the loading of a snapshot has ended */
	struct ptc_fs_job *jobs;
	size_t njobs;
	int64_t jobs_until_ns; /* the list of jobs is valid until then */
	int64_t jobs_asked_ns; /* since when a thread asks for the list; 0: none does */
	bool jobs_known;
	struct fs_snap *snaps;
	struct fs_part *parts;
	struct fs_view *over; /* views to close at the source and to free */
	struct fs_node **nodes;
	size_t nnodes, nbuckets;
	struct fs_handle handles[FS_HANDLES];
	uint32_t next_handle; /* where to look for a free one */
	struct fs_op *ops, *ops_last;
	size_t nops;
	uint64_t op_number;
	struct fs_queue meta,
		/* reads: requests below data/, whose sources may be slow; other names must not wait for them */
		reads;
	struct fs_cache cache;
	struct fs_direct direct;
	pthread_cond_t clock_cond, tend_cond; /* signalled at an interrupt and at the end */
	pthread_t threads[FS_META_TASK_POOL + FS_READ_TASK_POOL + FS_FETCH_TASK_POOL + 2];
	size_t nthreads;
};

/* tree.c */
/* The bodies of requests, which run on workers. */
void fs_run_lookup(struct ptc_fs *fs, struct fs_op *op);
void fs_run_open(struct ptc_fs *fs, struct fs_op *op);
void fs_run_opendir(struct ptc_fs *fs, struct fs_op *op);
/* Opens a file if the source need not be asked; otherwise returns 0. *ret_first: it was never open before. */
uint64_t fs_open_known_locked(struct ptc_fs *fs, uint64_t ino, struct fs_handle **ret, bool *ret_first);
/* Counts a lookup of entry i of the open directory. Returns its node; 0: none is made. */
uint64_t fs_entry_look_up_locked(struct ptc_fs *fs, const struct fs_handle *h, uint64_t i, struct stat *ret);
/* Makes backing files if they are wanted and the kernel was told so. Otherwise the log says why there are none. */
void fs_open_prepare(struct ptc_fs *fs);
/* Answers an open. Returns what libfuse's function does. */
int fs_open_reply(struct ptc_fs *fs, fuse_req_t req, struct fuse_file_info *fi);
/* Lets opens go on that wait for the backing file of `id` (0: for any), or have waited long enough. */
void fs_openings_kick_locked(struct ptc_fs *fs, uint64_t id, bool all);
/* objects.c */
struct fs_handle *fs_handle_get_locked(struct ptc_fs *fs, uint64_t fh);
void fs_handle_close_locked(struct ptc_fs *fs, uint64_t fh);
