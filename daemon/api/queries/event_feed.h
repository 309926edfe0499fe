/* SPDX-License-Identifier: Apache-2.0 */
/* Wakes calls that follow the events of a job. One watch of etcd's events serves all calls of this daemon. It begins
 * with the first of them, and ends with the feed.
 *
 * A call joins before it reads, so that it is woken by each event that its read does not have. Failure modes: etcd does
 * not answer, or the watch begins anew: all calls are woken, and read again. Any thread. */
#pragma once

#include "daemon/coord/etcd.h"
#include "rpc/server/server.h"

struct ptc_event_feed;
struct ptc_event_feed *ptc_event_feed_new(void); /* NULL: out of memory */
/* Calls have left. Call it before the etcd client is freed. NULL ok. */
struct ptc_event_feed *ptc_event_feed_free(struct ptc_event_feed *f);

struct ptc_event_follower { /* the owner's memory */
	const char *uuid;   /* of the job; outlives the follower */
	struct ptc_rpc_call *call;
	struct ptc_event_feed *feed; /* NULL: has not joined */
	struct ptc_event_follower *next;
};
int ptc_event_feed_join(struct ptc_event_feed *f, struct ptc_etcd *etcd, struct ptc_event_follower *who,
			struct ptc_error *err);
void ptc_event_feed_leave(struct ptc_event_follower *who); /* not joined: ok */
