/* SPDX-License-Identifier: Apache-2.0 */
/* Backing files: copies of files of the mount, each whole and with its bytes in the file's order, from which the kernel
 * reads without asking this process (passthrough.h). One is made when a file is first opened. It is shared by all
 * readers, checked against the manifest's digests while it is made, and sealed.
 *
 * Happy path: fs_backings_begin finds that the kernel takes such files, fs_backings_find says that there is none,
 * fs_backings_want begins to make it, `done` says that the making has ended, fs_backings_find returns it with a
 * reference. Files that nobody uses make room for others, the least recently used first. A thread looks twice a second
 * whether memory is short. If it is, the thread frees all files that nobody uses, and none is made.
 *
 * Failure modes: no room within the budget or in memory, a source that fails, a digest that differs, a kernel that does
 * not take the file. Then there is no backing file, the log says why, once for each reason, and for a while
 * fs_backings_find returns FS_BACKING_REFUSED; the caller reads as if there were no backing files. Threads: any. */
#pragma once

#include "fusefs/backing/backing_usage.h"
#include "fusefs/source/fs_source.h"

struct fs_backings;
struct fs_backing;

struct fs_backings_opts {
	struct ptc_fs_source source; /* copied */
	uint64_t budget;             /* bytes of all backing files together */
	size_t most_files;           /* each takes a descriptor for as long as it is there */
	const char *dir;             /* an absolute path; borrowed. NULL: they are in memory */
	/* Gives a file to the kernel: a number from 1 on, or -errno. */
	int (*attach)(void *arg, int fd);
	void (*detach)(void *arg, int number);
	/* Is called without a lock, by a thread of ours, when the making of a file has ended. keep: that of
	 * fs_backings_want. */
	void (*done)(void *arg, uint64_t id, void *keep);
	/* How much memory there is in all, and how much is free. NULL: as the kernel says; or of the folder. */
	void (*room)(void *arg, uint64_t *ret_total, uint64_t *ret_free);
	void *arg;
};
int fs_backings_new(const struct fs_backings_opts *opts, struct fs_backings **ret, struct ptc_error *err);
/* Tries with a file of one page whether the kernel takes backing files from here. Files that are wanted wait for this.
 * If it fails, none is made, and the log says why. Call it once, when `attach` can work. */
void fs_backings_begin(struct fs_backings *b);
/* Ends what is being made, and calls `done` for it; nothing is made any more. */
void fs_backings_stop(struct fs_backings *b);
/* All references must have been given back. NULL ok. */
struct fs_backings *fs_backings_free(struct fs_backings *b);

enum fs_backing_is { FS_BACKING_NONE, FS_BACKING_MAKING, FS_BACKING_REFUSED, FS_BACKING_READY, FS_BACKING_BAD };
/* READY: *ret is a reference, and the file has a user until it is given back. ret NULL: only asks. BAD: its bytes have
 * changed, and it still has users; it must not be opened. */
enum fs_backing_is fs_backings_find(struct fs_backings *b, uint64_t id, struct fs_backing **ret);
int fs_backing_number(const struct fs_backing *f);                  /* the kernel's */
void fs_backing_unref(struct fs_backings *b, struct fs_backing *f); /* NULL ok */

/* A file of whole items, none ranked. All pointers must be valid until `done` is called. */
struct fs_backing_of {
	uint64_t id; /* identifies the content */
	const struct ptc_state_file *sf;
	const uint64_t *start; /* where each item begins, and the end */
	uint64_t size;
	const struct ptc_fs_state *state; /* pinned; with digests */
	void *keep;
};
/* Begins to make it. false: it is refused for a while, or known already; `done` is not called. */
bool fs_backings_want(struct fs_backings *b, const struct fs_backing_of *of);
/* Drops the files whose snapshots are gone, by what `gone` says; they are freed once nobody uses them. `gone` must not
 * call functions of this header. */
void fs_backings_drop(struct fs_backings *b,
		      bool (*gone)(void *arg, const char *uuid, uint64_t snapshot, uint64_t step), void *arg);

/* Frees what was dropped. Reads `scrub` bytes of files that are here, and drops a file whose bytes have changed. Takes
 * a while; call it now and then. */
void fs_backings_tend(struct fs_backings *b, uint64_t scrub);
void fs_backings_usage(struct fs_backings *b, struct ptc_fs_backing_usage *ret);
