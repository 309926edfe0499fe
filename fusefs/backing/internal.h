/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the backing files, for fusefs/backing only. One lock guards everything that is not said to be another's.
 * It is never held while a file is read or written. */
#pragma once

#include "fusefs/backing/backings.h"

#include <pthread.h>
#include <stdatomic.h>

#define FS_BACKING_THREADS 4          /* that make files, at most */
#define FS_BACKING_SEGMENT (4u << 20) /* the part of a file that one thread makes at a time */
#define FS_BACKING_ITEMS   1024       /* items in a segment of which places are asked for, at most */

enum fs_making_phase { FS_MAKING_NEW, FS_MAKING_BEGINS, FS_MAKING_COPIES, FS_MAKING_ENDS };
/* A file that is being made. One thread begins; then several take its segments, in order; the last one ends it. */
struct fs_making {
	struct fs_backing_of of;
	const atomic_bool *stopping; /* of all files */
	enum fs_making_phase phase;
	uint64_t next_at; /* of the segment that is taken next */
	unsigned running; /* threads that work on it */
	bool counted;     /* there is room for it, and it counts as taken */
	int rc;           /* the first failure; then no segment is taken any more */
	struct ptc_error err;
	int64_t began_ns;
	struct ptc_admin_fill *fill; /* of the source, which can write into the file; NULL: it cannot */
	atomic_bool reads;           /* it has refused to, so its bytes are read */
	/* for each item of the file: the sum of the digests of its runs, which may come in any order */
	_Atomic uint64_t *sums;
};

struct fs_backing {
	struct fs_backing *next; /* all, oldest first; or those to be freed */
	uint64_t id, size;
	char uuid[37]; /* the job's */
	uint64_t snapshot, step;
	unsigned users;
	struct fs_making *making;          /* NULL: it is ready, or refused */
	bool ready;                        /* false and not being made: an entry without a file */
	bool gone;                         /* it is freed when the last user has left */
	bool bad;                          /* its bytes have changed: nobody may open it any more */
	int64_t used_ns, refused_until_ns; /* used_ns: when a user came or left last */
	int fd, number;                    /* -1, 0: none */
	/* what the scrubber compares */
	uint64_t *ends, *digests; /* of each item */
	size_t nitems, head_len;
};

enum fs_backings_use { FS_USE_UNKNOWN, FS_USE_FINE, FS_USE_REFUSED }; /* what the kernel says to a small file */

struct fs_backings {
	struct fs_backings_opts opts;
	pthread_mutex_t lock;
	pthread_cond_t work; /* there is something to do, or all is over */
	pthread_cond_t rest; /* all is over */
	enum fs_backings_use use;
	bool checking;  /* a thread looks for room for a new file: one at a time, in the order in which they came */
	bool too_short; /* memory is short although all that nobody uses was freed; the log says so already */
	int dir_fd;     /* where files lie; -1: nowhere, they are memfds */
	struct fs_backing *files, *trash;
	atomic_bool stopping;
	char said[PTC_ERROR_MAX]; /* the reason that was logged last */
	pthread_t threads[FS_BACKING_THREADS + 1];
	size_t nthreads;
	/* where the scrubber is, for whoever calls fs_backings_tend */
	uint64_t scrub_id, scrub_at, scrub_run;
	size_t scrub_item;
};

/* backing_file.c */
/* A tmpfs that nobody else sees, with huge pages: it lasts as long as a descriptor of it. Files of it are written with
 * a fifth of the CPU time that a memfd takes, and read with half. -1: only a memfd can be had. */
int fs_backing_tmpfs(void);
/* A file without a name, of that size. dir: the folder in which it lies; -1: a memfd. reserve: take its room now. */
int fs_backing_create(int dir, bool reserve, uint64_t size, int *ret_fd, struct ptc_error *err);
/* From now on nobody can change it. *fd becomes a descriptor for reading only; there is no other one. */
int fs_backing_seal(int dir, int *fd, struct ptc_error *err);
/* Makes bytes [off, end) of the file: reads them from the source, writes them and adds to the sums. */
int fs_backing_segment(const struct ptc_fs_source *source, struct fs_making *m, int fd, uint64_t off, uint64_t end,
		       struct ptc_error *err);
/* Writes the head. */
int fs_backing_head(const struct fs_making *m, int fd, struct ptc_error *err);
/* Has the source fill the file, if it can. */
void fs_backing_fill_begin(const struct ptc_fs_source *source, struct fs_making *m, int fd);
/* 0: nobody but this process can write to it any more. */
int fs_backing_fill_end(const struct ptc_fs_source *source, struct fs_making *m, struct ptc_error *err);
/* PTC_EDIGEST: an item's bytes are not those of the manifest. */
int fs_backing_verify(const struct fs_making *m, struct ptc_error *err);

/* backing_room.c */
void fs_backing_to_trash_locked(struct fs_backings *b, struct fs_backing *f);
/* Puts it into the trash if nobody may open it any more, and nobody uses it. */
void fs_backing_free_if_gone_locked(struct fs_backings *b, struct fs_backing *f);
void fs_backing_empty_trash(struct fs_backings *b); /* lock not held */
void fs_making_free(struct fs_making *m);           /* NULL ok */
/* Makes room for a file that is being made: within the budget, and in memory or the folder. Frees files that nobody
 * uses for that. One thread at a time. PTC_ENOSPC: there is no room. */
int fs_backing_room(struct fs_backings *b, struct fs_backing *f, struct ptc_error *err);
/* Gives memory back twice a second while it is short. A thread of its own: others wait for the daemon now and then. */
void *fs_backing_room_main(void *arg);
/* Reads the next bytes of the files that are ready, and compares the digests of items that end there. */
void fs_backing_scrub(struct fs_backings *b, uint64_t bytes);
