/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank that survives (ptc_survive) publishes of itself in the shared page: its blobs and cursors. Two copies, so
 * that one of them always holds. The caller's thread only. Inside libptc. */
#pragma once

#include "proto/local_messages.h"
#include "ptc/ptc.h"

#define CLIENT_HELD_MAX_MS 300000 /* longer than any ptcd holds a rank (WORKERS_HELD_MAX_MS) */

struct promise {
	bool made;
	uint64_t set_at, said_at;     /* changes of blobs and cursors; as of those that are published */
	struct ptc_local_out said[2]; /* what the page's `published` name */
	unsigned next;                /* of `said`, the older one */
};
/* Before a boundary at `step`, if something has changed. */
void ptc_client_publish(ptc_client *c, uint64_t step);
void ptc_client_unpublish(ptc_client *c); /* and the promise is taken back */
int64_t ptc_client_now_ms(void);          /* monotonic; any thread */
