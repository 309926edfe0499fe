/* SPDX-License-Identifier: Apache-2.0 */
/* Starting ptc-fuse, for ptcd and ptcctl; they link no libfuse. Any thread. */
#pragma once

#include "base/status.h"

#include <sys/types.h>

/* Starts it with these words (NULL-terminated, without the program's name) in a session of its own and waits until it
 * says that it has mounted. It inherits standard error, unless quiet, and nothing else. On failure what it said, or
 * PTC_ETIMEOUT. */
int ptc_fuse_launch(const char *const *words, bool quiet, int timeout_ms, pid_t *ret_pid, struct ptc_error *err);
/* Becomes it. Returns on failure only. */
int ptc_fuse_exec(const char *const *args, struct ptc_error *err);
/* Who holds a lock file of --lock, and where it serves; false: nobody. */
bool ptc_fuse_lock_held(const char *lock, pid_t *ret_pid, char *ret_dir, size_t size);
