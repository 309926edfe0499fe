/* SPDX-License-Identifier: Apache-2.0 */
/* Memory tickets: each pool has a hard limit on the staging bytes of one kind of transfer, and gives tickets in the
 * order of the requests.
 *
 * Four pools, taken in one direction only, prevent deadlock. A thread with a ticket of `gate` (gather, scatter) may
 * wait for `push` (scatter's copies on their way). A thread with `push` may wait for `recv` (Pull, Put), and one with
 * `recv` for `send` (packed Fetch messages). A thread with `send` waits for the network alone. A thread that waits for
 * a pool may have tickets of that pool only for messages that the transport has already. These tickets are given back
 * when their messages are written or dropped. */
#pragma once

#include "base/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct ptc_pool_waiter;
struct ptc_pool {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	uint64_t limit, used, peak;
	struct ptc_pool_waiter *first, **last; /* in order of arrival */
};

void ptc_pool_init(struct ptc_pool *p, uint64_t limit);
void ptc_pool_done(struct ptc_pool *p);
uint64_t ptc_pool_peak(struct ptc_pool *p); /* the most bytes that were given out at once */

/* Called a few times a second during a wait. True: the wait ends with PTC_ECANCELED. */
typedef bool (*ptc_stop_fn)(void *arg);
/* Takes `bytes`, or the pool's limit if that is less. Give *ret_bytes back. stop may be NULL. */
int ptc_pool_take(struct ptc_pool *p, uint64_t bytes, ptc_stop_fn stop, void *arg, uint64_t *ret_bytes,
		  struct ptc_error *err);
void ptc_pool_give(struct ptc_pool *p, uint64_t bytes);

/* A buffer with its ticket. Each part of a message in the buffer holds one reference. */
struct ptc_staging {
	struct ptc_pool *pool;
	uint64_t ticket;
	_Atomic unsigned refs;
	size_t size, used;
	unsigned char data[];
};
int ptc_staging_new(struct ptc_pool *p, size_t size, ptc_stop_fn stop, void *arg, struct ptc_staging **ret_staging,
		    struct ptc_error *err);
void ptc_staging_ref(struct ptc_staging *s);
void ptc_staging_release(void *staging); /* the release function of an RPC part; NULL ok */
