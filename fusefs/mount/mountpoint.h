/* SPDX-License-Identifier: Apache-2.0 */
/* Mounting at a directory, as root and through fusermount3, and unmounting one's
 * own mount and no other. Functions block; the caller owns the descriptor. */
#pragma once

#include "base/status.h"

#include <stdbool.h>

#define FS_SOURCE_MAX 64 /* a mount's source, as mountinfo has it */

/* alone: whatever of ours is mounted there has no server any more. The mount is told from others by its source. */
int fs_mountpoint_open(const char *dir, bool others, bool alone, char ret_source[FS_SOURCE_MAX], int *ret_fd,
		       struct ptc_error *err);
/* Detaches that mount. Another one at dir stays, and that one too while it is below another one. */
void fs_mountpoint_close(const char *dir, const char *source);
/* Whether whoever goes to dir comes to that mount. */
bool fs_mountpoint_on_top(const char *dir, const char *source);
/* Detaches what is mounted at dir, if it is ours: at once, users or not. PTC_ENOTFOUND: nothing is. stale: only if
 * nobody serves it any more, and nothing there is fine. */
int ptc_fs_unmount(const char *dir, bool stale, struct ptc_error *err);
