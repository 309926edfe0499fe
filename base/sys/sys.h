/* SPDX-License-Identifier: Apache-2.0 */
/* Operating system calls that have durable effects or are easy to get wrong. No other file calls rename, unlink or
 * fsync. A function with a `point` passes the fault points "<point>.before" and "<point>.after" (base/sys/fault.h).
 *
 * Failure modes: the code that ptc_error_errno makes of errno (base/status.h), with the path in the message. Any
 * thread. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Writes `path` atomically: a temporary file beside it, fsync, rename, fsync of the directory. */
int ptc_sys_write_file(const char *path, const void *data, size_t len, mode_t mode, const char *point,
		       struct ptc_error *err);
/* ptc_sys_write_file in two steps, for a file that is written piece by piece. The first makes a new file beside `path`
 * (ptc_free *ret_tmp). The second, when all is written, does fsync, rename and fsync of the directory. The caller
 * closes the descriptor, and unlinks `tmp` if it gives up. */
int ptc_sys_create_beside(const char *path, mode_t mode, int *ret_fd, char **ret_tmp, struct ptc_error *err);
int ptc_sys_publish(int fd, const char *tmp, const char *path, const char *point, struct ptc_error *err);
/* fsync of a file in a directory that ptc_sys_rename_dir will rename. */
int ptc_sys_flush(int fd, const char *path, const char *point, struct ptc_error *err);
/* Gives a directory that is complete its name: fsync of it, rename, fsync of the one above. `path` may be there if it
 * is an empty directory. */
int ptc_sys_rename_dir(const char *tmp, const char *path, const char *point, struct ptc_error *err);
/* Call this first in main. If the caller of the program had closed descriptor 0, 1 or 2, no file or socket of ours gets
 * its number. So nothing that is printed ends up in a file of ours. Using the descriptor stays an error. */
void ptc_sys_standard_fds(void);
/* Reads a whole file of at most `max` bytes, and adds a NUL; ptc_free *ret_data. Accepts regular files and pipes, such
 * as a shell's <(...). */
int ptc_sys_read_file(const char *path, size_t max, char **ret_data, size_t *ret_len, struct ptc_error *err);
int ptc_sys_unlink(const char *path, const char *point, struct ptc_error *err); /* fine if missing */
struct stat;
/* Whether the file was replaced or written since *seen was filled. Fills *seen anew; all zero: there is no file. */
bool ptc_sys_file_changed(const char *path, struct stat *seen);
/* Makes a folder and those above it, like mkdir -p. The folder gets `mode` whatever the umask is; those above get 0755.
 * mode 0: all follow the umask. */
int ptc_sys_mkdirs(const char *path, mode_t mode, struct ptc_error *err);
int ptc_sys_remove_tree(const char *path, const char *point,
			struct ptc_error *err); /* fine if missing; does not follow links */
/* The offset of the first byte at or after `from` that is not 0, or the file's end. It skips holes that were punched.
 */
int64_t ptc_sys_skip_zeros(int fd, int64_t from);
/* Whether descriptors that others send over this Unix socket are taken; of a listener, also over connections that are
 * not accepted yet. What is not taken is refused to the sender (EPERM). Linux before 6.16 always takes them. To drop
 * one of a sender's own FUSE file system can take for ever, so a socket of strangers should take none. */
void ptc_sys_take_descriptors(int fd, bool yes);
int64_t ptc_sys_now_ns(void);      /* CLOCK_MONOTONIC */
int64_t ptc_sys_realtime_ms(void); /* CLOCK_REALTIME */
int ptc_sys_random(void *buf, size_t len, struct ptc_error *err);
/* A random UUID (version 4): 36 lower-case characters and a NUL. */
int ptc_sys_uuid(char ret_uuid[37], struct ptc_error *err);
