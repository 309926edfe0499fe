/* SPDX-License-Identifier: Apache-2.0 */
/* A ptc-gpu process: starts it and notices its end. Nothing here is locked; gpu_client.c owns the process. Failure
 * modes: those of base/sys/child.h. */
#pragma once

#include "base/status.h"
#include "base/sys/child.h"

#include <stdint.h>
#include <sys/types.h>

struct ptc_gpu_child {
	struct ptc_child process;
	int socket;
};

/* Starts `ptc-gpu --serve` and keeps our end of its socket. */
int ptc_gpu_child_start(const char *path, uint64_t pinned_max, unsigned copiers, struct ptc_gpu_child *ret,
			struct ptc_error *err);
void ptc_gpu_child_kill(const struct ptc_gpu_child *child);
/* Waits at most timeout_ms for its end. true: it has ended, and `text` says how. The descriptors stay the caller's, so
 * another thread may still kill the ended process. */
bool ptc_gpu_child_ended(const struct ptc_gpu_child *child, int timeout_ms, char *text, size_t size);
/* Runs `path --list` for at most timeout_ms, and returns its output of at most max bytes; ptc_free it. */
int ptc_gpu_child_list(const char *path, int timeout_ms, size_t max, char **ret, struct ptc_error *err);
