/* SPDX-License-Identifier: Apache-2.0 */
/* Serves direct reads: processes on this node read chunk files themselves. proto/direct_read.h has the messages. */
#pragma once

#include "base/status.h"
#include "daemon/agent/calls/agent_env.h"

/* Listens on a socket beside socket_path (socket_path with PTC_DIRECT_READ_SUFFIX), on a thread of its own. It
 * also gives clients the windows of imports, and takes files that readers want filled. Free it before the agent, the
 * windows and the files. */
struct ptc_direct_reads;
struct ptc_import_windows;
struct ptc_fill_files;
int ptc_direct_reads_new(struct ptc_agent *agent, struct ptc_import_windows *windows, struct ptc_fill_files *files,
			 const char *socket_path, struct ptc_direct_reads **ret_reads, struct ptc_error *err);
struct ptc_direct_reads *ptc_direct_reads_free(struct ptc_direct_reads *l); /* NULL ok */
