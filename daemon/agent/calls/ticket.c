/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: take waits until it is first in line and the bytes fit, give
 * wakes the line. Failure modes: the caller stops waiting (PTC_ECANCELED, it
 * leaves the line), no memory for the buffer (PTC_ENOMEM, ticket given back). */
#include "daemon/agent/calls/ticket.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/thread.h"

#include <stdatomic.h>
#include <time.h>

struct ptc_pool_waiter {
	struct ptc_pool_waiter *next;
};

void ptc_pool_init(struct ptc_pool *p, uint64_t limit)
{
	*p = (struct ptc_pool){ .limit = limit };
	p->last = &p->first;
	ptc_require(!pthread_mutex_init(&p->lock, NULL));
	ptc_cond_init(&p->cond);
}

void ptc_pool_done(struct ptc_pool *p)
{
	pthread_cond_destroy(&p->cond);
	pthread_mutex_destroy(&p->lock);
}

uint64_t ptc_pool_peak(struct ptc_pool *p)
{
	uint64_t peak;

	pthread_mutex_lock(&p->lock);
	peak = p->peak;
	pthread_mutex_unlock(&p->lock);
	return peak;
}

static void leave_line_locked(struct ptc_pool *p, struct ptc_pool_waiter *self)
{
	struct ptc_pool_waiter **at = &p->first;

	while (*at != self)
		at = &(*at)->next;
	*at = self->next;
	if (p->last == &self->next)
		p->last = at;
	pthread_cond_broadcast(&p->cond);
}

int ptc_pool_take(struct ptc_pool *p, uint64_t bytes, ptc_stop_fn stop, void *arg, uint64_t *ret_bytes,
		  struct ptc_error *err)
{
	struct ptc_pool_waiter self = { NULL };
	bool stopped = false;

	bytes = PTC_MIN(bytes, p->limit);
	pthread_mutex_lock(&p->lock);
	*p->last = &self;
	p->last = &self.next;
	while (!stopped && (p->first != &self || p->used + bytes > p->limit)) {
		ptc_cond_wait_ms(&p->cond, &p->lock, 100);
		stopped = stop && stop(arg);
	}
	leave_line_locked(p, &self);
	if (!stopped) {
		p->used += bytes;
		p->peak = PTC_MAX(p->peak, p->used);
	}
	pthread_mutex_unlock(&p->lock);
	if (stopped)
		return ptc_error_set(err, PTC_ECANCELED, "cancelled while waiting for staging memory");
	*ret_bytes = bytes;
	return 0;
}

void ptc_pool_give(struct ptc_pool *p, uint64_t bytes)
{
	pthread_mutex_lock(&p->lock);
	ptc_require(p->used >= bytes);
	p->used -= bytes;
	pthread_cond_broadcast(&p->cond);
	pthread_mutex_unlock(&p->lock);
}

int ptc_staging_new(struct ptc_pool *p, size_t size, ptc_stop_fn stop, void *arg, struct ptc_staging **ret_staging,
		    struct ptc_error *err)
{
	struct ptc_staging *s;
	uint64_t ticket;
	int rc = ptc_pool_take(p, size, stop, arg, &ticket, err);

	if (rc)
		return rc;
	s = ptc_malloc(sizeof *s + size);
	if (!s) {
		ptc_pool_give(p, ticket);
		return ptc_nomem(err);
	}
	s->pool = p;
	s->ticket = ticket;
	atomic_init(&s->refs, 1);
	s->size = size;
	s->used = 0;
	*ret_staging = s;
	return 0;
}

void ptc_staging_ref(struct ptc_staging *s)
{
	atomic_fetch_add(&s->refs, 1);
}

void ptc_staging_release(void *staging)
{
	struct ptc_staging *s = staging;
	struct ptc_pool *pool;
	uint64_t ticket;

	if (!s || atomic_fetch_sub(&s->refs, 1) != 1)
		return;
	pool = s->pool;
	ticket = s->ticket;
	ptc_free(s);
	ptc_pool_give(pool, ticket);
}
