/* SPDX-License-Identifier: Apache-2.0 */
/* Mounts at a directory, as root or through fusermount3, and unmounts only mounts of our own. Functions block; the
 * caller owns the descriptor. A failure's message says what to do. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

#define FS_SOURCE_MAX 64 /* bytes of a mount's source, as in mountinfo */

/* Mounts at dir. alone: a mount of ours at dir has no server any more. *ret_source names this mount among others. */
int fs_mountpoint_open(const char *dir, bool others, bool alone, char ret_source[FS_SOURCE_MAX], int *ret_fd,
		       struct ptc_error *err);
/* Has the kernel read ahead 1 MiB of that mount's files instead of 128 KiB, if root serves it. To be called once the
 * kernel has the answer to INIT, which sets its own number. Where /sys cannot be written, nothing changes. */
void fs_mountpoint_read_ahead(const char *source);
/* Detaches that mount. Another mount at dir stays. So does that mount while another one covers it. */
void fs_mountpoint_close(const char *dir, const char *source);
/* Whether a path lookup of dir reaches that mount. */
bool fs_mountpoint_on_top(const char *dir, const char *source);
/* Detaches a mount of ours at dir at once, even if it is in use. PTC_ENOTFOUND: there is none. stale: only if nobody
 * serves it any more; then a missing mount is fine. */
int ptc_fs_unmount(const char *dir, bool stale, struct ptc_error *err);
