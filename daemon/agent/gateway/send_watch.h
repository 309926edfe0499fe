/* SPDX-License-Identifier: Apache-2.0 */
/* Watches sends of an import to other nodes. A send waits for flow control, that is until the node has taken earlier
 * bytes; while it waits, its thread can look neither at the time nor at the caller.
 *
 * Happy path: the message goes out; the watch's thread has not looked at it. Failure modes: the node takes nothing for
 * stall_ms (PTC_ETIMEOUT), the caller goes (PTC_ECANCELED): the stream is cancelled, and is good for nothing but free;
 * no thread can be started (PTC_EIO).
 *
 * Threads: any. During a send, the watch's thread looks at `caller` in place of the sender. */
#pragma once

#include "rpc/server/server.h"

struct ptc_rpc_stream;
struct ptc_send_watch;
struct ptc_send_watch *ptc_send_watch_new(void); /* NULL: no memory */
/* Nobody sends any more. NULL ok. */
struct ptc_send_watch *ptc_send_watch_free(struct ptc_send_watch *w);
/* As ptc_rpc_stream_send of two parts. caller NULL: nobody cancels. */
int ptc_send_watched(struct ptc_send_watch *w, struct ptc_rpc_stream *stream, const struct ptc_rpc_part parts[2],
		     const struct ptc_rpc_call *caller, int stall_ms, struct ptc_error *err);
