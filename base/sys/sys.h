/* SPDX-License-Identifier: Apache-2.0 */
/* Operating system calls that have durable effects or are easy to get wrong.
 * Each durable one passes the fault points "<point>.before" and
 * "<point>.after". The only place that calls rename, unlink and fsync. */
#pragma once

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Writes path atomically: temporary file beside it, fsync, rename, fsync of the directory. */
int ptc_sys_write_file(const char *path, const void *data, size_t len, mode_t mode, const char *point,
		       struct ptc_error *err);
/* The same in two steps, for what is written piece by piece: a new file beside path (ptc_free *ret_tmp), and, once it
 * is written, fsync, rename, fsync of the directory. The caller closes the descriptor and unlinks tmp when it gives up.
 */
int ptc_sys_create_beside(const char *path, mode_t mode, int *ret_fd, char **ret_tmp, struct ptc_error *err);
int ptc_sys_publish(int fd, const char *tmp, const char *path, const char *point, struct ptc_error *err);
/* First in main: no file or socket becomes 0, 1 or 2 where the caller had closed them, so that nothing that is printed
 * ends up in one. To use them stays an error. */
void ptc_sys_standard_fds(void);
/* Whole file into memory, at most max bytes; NUL-terminated; ptc_free it. Regular files and a shell's <(pipes) only. */
int ptc_sys_read_file(const char *path, size_t max, char **ret_data, size_t *ret_len, struct ptc_error *err);
int ptc_sys_unlink(const char *path, const char *point, struct ptc_error *err); /* missing is fine */
struct stat;
/* Is the file another one, or written again, since *seen was filled? Fills it anew; all zero: there was none. */
bool ptc_sys_file_changed(const char *path, struct stat *seen);
/* Like mkdir -p. A folder that is made gets the mode whatever the umask, those above it 0755; mode 0: as the umask has
 * it. */
int ptc_sys_mkdirs(const char *path, mode_t mode, struct ptc_error *err);
int ptc_sys_remove_tree(const char *path, const char *point,
			struct ptc_error *err); /* missing is fine; does not follow links */
/* The first byte at or after `from` that is not 0, or the end: where what was not punched out of a file begins. */
int64_t ptc_sys_skip_zeros(int fd, int64_t from);
int64_t ptc_sys_now_ns(void);      /* CLOCK_MONOTONIC */
int64_t ptc_sys_realtime_ms(void); /* CLOCK_REALTIME */
int ptc_sys_random(void *buf, size_t len, struct ptc_error *err);
/* 36-byte lower-case UUID (version 4) and a NUL. */
int ptc_sys_uuid(char ret_uuid[37], struct ptc_error *err);
