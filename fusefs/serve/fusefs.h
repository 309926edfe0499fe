/* SPDX-License-Identifier: Apache-2.0 */
/* The read-only file system of jobs' state (DESIGN, "FUSE"; docs/files.md).
 *
 * Happy path: new, mount (or serve a descriptor), run until stop or until it is
 * unmounted, free. Requests are taken by a few threads that never wait; what
 * needs the source goes to workers, and every request is answered within
 * timeout_ms, with EIO when the source has not answered, and with EINTR at
 * once when its caller gives up: so nobody waits here for a peer that hangs.
 *
 * Failure modes: a mount point that is in use or not ours, no FUSE here
 * (PTC_EIO with what to do); a source that fails (EIO, ESTALE once the
 * snapshot is gone). Threads: stop may be called from any thread and from a
 * signal handler; all else from one. */
#pragma once

#include "fusefs/source/fs_source.h"

struct ptc_fs;

struct ptc_fs_opts {
	struct ptc_fs_source source; /* copied */
	uint64_t cache_bytes;        /* bytes of content kept; at least PTC_FS_CACHE_MIN */
	uint32_t timeout_ms;         /* a request is answered within it */
	bool alone;                  /* the caller has made sure that no other process serves where this one mounts */
	bool others;                 /* other users may come, and see what is theirs; needs root */
};
#define PTC_FS_CACHE_MIN (8u << 20)

int ptc_fs_new(const struct ptc_fs_opts *opts, struct ptc_fs **ret_fs, struct ptc_error *err);
struct ptc_fs *ptc_fs_free(struct ptc_fs *fs); /* unmounts; NULL ok */

/* dir exists and is an absolute path. A mount of an earlier life of ours that nobody serves any more is taken away
 * first. */
int ptc_fs_mount(struct ptc_fs *fs, const char *dir, struct ptc_error *err);
/* Instead of mount: requests come over fd, a SOCK_SEQPACKET socket. For tests. fd stays the caller's. */
int ptc_fs_serve_fd(struct ptc_fs *fs, int fd, struct ptc_error *err);
/* Until stop, or until it was unmounted. */
int ptc_fs_run(struct ptc_fs *fs, struct ptc_error *err);
void ptc_fs_stop(struct ptc_fs *fs);

/* False: it has been unmounted, and serves what was open then, or is below another mount. */
bool ptc_fs_on_top(const struct ptc_fs *fs);
