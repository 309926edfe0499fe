/* SPDX-License-Identifier: Apache-2.0 */
/* The read-only file system of jobs' state (docs/files.md).
 *
 * Happy path: new, mount (or serve a descriptor), run until stop or until it is unmounted, free. A few threads take
 * requests and never wait. Workers carry out requests that need the source. Every request is answered within
 * timeout_ms: with EIO if the source has not answered, and with EINTR at once if its caller gives up. So no caller
 * waits for a peer that hangs.
 *
 * Failure modes: the mount point is in use or not ours, or FUSE is missing (PTC_EIO, with what to do); the source fails
 * (EIO, or ESTALE once the snapshot is gone). Threads: any thread and a signal handler may call stop; one thread calls
 * the other functions. */
#pragma once

#include "fusefs/backing/backing_usage.h"
#include "fusefs/source/fs_source.h"

struct ptc_fs;

struct ptc_fs_opts {
	struct ptc_fs_source source; /* copied */
	uint64_t cache_bytes;        /* bytes of content to cache; at least PTC_FS_CACHE_MIN */
	uint32_t timeout_ms;         /* every request is answered within this time */
	bool alone;                  /* the caller ensures that no other process serves at the mount point */
	bool others;                 /* other users may enter, and see what they may read; needs root */
	uint64_t backing_bytes;      /* most bytes of backing files (fusefs/backing); 0: none are made */
	const char *backing_dir;     /* an absolute path: where they lie; borrowed. NULL: in memory */
};
#define PTC_FS_CACHE_MIN (8u << 20)

int ptc_fs_new(const struct ptc_fs_opts *opts, struct ptc_fs **ret_fs, struct ptc_error *err);
struct ptc_fs *ptc_fs_free(struct ptc_fs *fs); /* unmounts; NULL ok */

/* Mounts at dir, an absolute path that exists. An earlier mount of ours without a server is removed first. */
int ptc_fs_mount(struct ptc_fs *fs, const char *dir, struct ptc_error *err);
/* Serves requests that come over fd, a SOCK_SEQPACKET socket, instead of a mount. For tests. fd stays the caller's. */
int ptc_fs_serve_fd(struct ptc_fs *fs, int fd, struct ptc_error *err);
/* Serves until stop, or until the file system is unmounted. */
int ptc_fs_run(struct ptc_fs *fs, struct ptc_error *err);
void ptc_fs_stop(struct ptc_fs *fs);

void ptc_fs_backings(struct ptc_fs *fs, struct ptc_fs_backing_usage *ret);

/* Whether the mount can be reached. false: it was unmounted and serves only open files, or another mount covers it. */
bool ptc_fs_on_top(const struct ptc_fs *fs);
