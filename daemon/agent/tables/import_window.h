/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: shared memory by which clients of this node hand an import's bytes over (proto/direct_read.h). A window is
 * offered to a client that asks, and waits until the client's ImportData stream takes it.
 *
 * Happy path: offer (the thread of direct reads); take, then next and taken in turns, free (the thread of the stream).
 * Failure modes: no window has that key, or it is another user's (PTC_ESTATE: import again); the window is not sealed
 * as it has to be, or a part of it does not lie in it (PTC_EINVAL); there is no memory for it (PTC_ENOSPC); the client
 * takes no answers (PTC_EPEER). The bytes of a part may change as long as the window exists: copy them once. */
#pragma once

#include "base/status.h"

#include <stdint.h>
#include <sys/types.h>

struct ptc_import_windows;                                                        /* those that wait; any thread */
struct ptc_import_windows *ptc_import_windows_new(void);                          /* NULL: out of memory */
struct ptc_import_windows *ptc_import_windows_free(struct ptc_import_windows *w); /* NULL ok */
/* Makes a window for that user, and sends it over conn, which is taken over. If that fails, or if too many wait, conn
 * is closed. Does not block. */
void ptc_import_windows_offer(struct ptc_import_windows *w, int conn, uid_t uid);
/* Forgets windows that nobody has taken for a minute, or whose client has gone. True: some still wait, so call it
 * again. */
bool ptc_import_windows_expire(struct ptc_import_windows *w);

struct ptc_import_window; /* one thread at a time */
int ptc_import_window_take(struct ptc_import_windows *w, const void *key, size_t len, uid_t uid,
			   struct ptc_import_window **ret_window, struct ptc_error *err);
struct ptc_import_part {
	uint32_t item;
	uint64_t offset;
	const void *data; /* in the window */
	size_t len;       /* 0: the client has sent everything, or has gone */
};
/* Waits for a moment. PTC_ETIMEOUT: there is nothing yet. */
int ptc_import_window_next(struct ptc_import_window *w, struct ptc_import_part *ret_part, struct ptc_error *err);
/* The part's bytes are copied. */
int ptc_import_window_taken(struct ptc_import_window *w, const struct ptc_import_part *part, struct ptc_error *err);
struct ptc_import_window *ptc_import_window_free(struct ptc_import_window *w); /* NULL ok */
