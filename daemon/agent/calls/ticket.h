/* SPDX-License-Identifier: Apache-2.0 */
/* Memory tickets: a hard limit on the staging bytes of one kind of transfer,
 * given out in the order asked. Deadlock is kept out by four pools taken in
 * one direction only: a holder of `gate` (gather, scatter) waits for holders
 * of `push` (scatter's copies on their way), those wait for holders of `recv`
 * (Pull, Put), those wait for holders of `send` (packed Fetch
 * messages), and those wait for the network alone. A thread that waits for a
 * ticket of a pool holds none of that pool, except for messages already
 * handed to the transport, which give theirs back when written or dropped. */
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
uint64_t ptc_pool_peak(struct ptc_pool *p); /* most bytes out at once so far */

/* Polled while waiting, a few times a second; true gives up with PTC_ECANCELED. */
typedef bool (*ptc_stop_fn)(void *arg);
/* bytes is cut to the pool's limit; *ret_bytes is what to give back. stop may be NULL. */
int ptc_pool_take(struct ptc_pool *p, uint64_t bytes, ptc_stop_fn stop, void *arg, uint64_t *ret_bytes,
		  struct ptc_error *err);
void ptc_pool_give(struct ptc_pool *p, uint64_t bytes);

/* A buffer with its ticket, counted: each part of a message that lies in it holds one reference. */
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
void ptc_staging_release(void *staging); /* an rpc part's release; NULL ok */

/* Wakes at the latest after ms; cond must use CLOCK_MONOTONIC (ptc_cond_init). */
void ptc_cond_init(pthread_cond_t *cond);
void ptc_cond_wait_ms(pthread_cond_t *cond, pthread_mutex_t *lock, int ms);
