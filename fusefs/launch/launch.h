/* SPDX-License-Identifier: Apache-2.0 */
/* Starts ptc-fuse, for ptcd and ptcctl, which link no libfuse. Any thread. */
#pragma once

#include "base/status.h"

#include <stdint.h>
#include <sys/types.h>

/* Starts ptc-fuse with these words (NULL-terminated, without the program's name) in a session of its own, and waits
 * until it reports that it has mounted. It inherits nothing but standard error, and not even that if `quiet`. On
 * failure err has its message; PTC_ETIMEOUT: it reported nothing in time. */
int ptc_fuse_launch(const char *const *words, bool quiet, int timeout_ms, pid_t *ret_pid, struct ptc_error *err);
/* Replaces this process by ptc-fuse. Returns on failure only. */
int ptc_fuse_exec(const char *const *args, struct ptc_error *err);
/* The process that holds the lock file of --lock, and the directory where it serves. false: nobody holds it. */
bool ptc_fuse_lock_held(const char *lock, pid_t *ret_pid, char *ret_dir, size_t size);
/* Bytes of the backing files of the process that wrote that lock file, and of those of them that programs have open, as
 * of about a second ago. 0: it has none. */
void ptc_fuse_lock_backing(const char *lock, uint64_t *ret_bytes, uint64_t *ret_open);
