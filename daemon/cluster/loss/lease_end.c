/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: leases are renewed, and etcd is asked now and then how long they still last. Failure modes:
 * lease_end.h. */
#include "daemon/cluster/loss/lease_end.h"

#include "base/check.h"

#include <poll.h>
#include <unistd.h>

#define S         INT64_C(1000000000)
#define NEAR_S    3       /* a long lease is near its end no earlier than so long before it */
#define WINDOW_NS (2 * S) /* older connections show nothing: this thread may have stood still */

bool ptc_lease_end_is_near(int64_t left_s, int64_t ttl_s)
{
	return left_s < PTC_MIN(PTC_MAX(ttl_s / 2, 1), NEAR_S);
}

static void close_one(struct ptc_lease_end *e, uint32_t k)
{
	int *fd = &e->v[k % PTC_LEASE_END_MAX].fd;

	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static uint32_t oldest(const struct ptc_lease_end *e)
{
	return e->n > PTC_LEASE_END_MAX ? e->n - PTC_LEASE_END_MAX : 0;
}

static void stop(struct ptc_lease_end *e)
{
	for (uint32_t k = oldest(e); k < e->n; k++)
		close_one(e, k);
	e->n = 0;
	e->ending = e->answered = false;
}

void ptc_lease_end_reset(struct ptc_lease_end *e)
{
	if (!e)
		return;
	stop(e);
	*e = (struct ptc_lease_end){ .asking = e->asking };
}

bool ptc_lease_end_heard(struct ptc_lease_end *e, int64_t lease, int64_t left_s, int64_t ttl_s,
			 const struct ptc_machine_at *at, int64_t asked_ns)
{
	bool is_near = ptc_lease_end_is_near(left_s, ttl_s), begins;

	if (!is_near || e->lease != lease)
		stop(e);
	e->lease = lease;
	begins = is_near && at && at->n && !at->more && !e->ending;
	if (begins) {
		e->at = *at;
		e->ending = true;
	}
	e->next_ns = asked_ns; /* near the end: at the next tick, for a renewal is to be seen soon */
	while (!is_near && !ptc_lease_end_is_near(--left_s, ttl_s))
		e->next_ns += S;
	return begins;
}

static void take_answers(struct ptc_lease_end *e)
{
	for (uint32_t k = oldest(e); k < e->n; k++) {
		struct pollfd p = { e->v[k % PTC_LEASE_END_MAX].fd, POLLOUT, 0 };

		if (p.fd < 0 || poll(&p, 1, 0) <= 0)
			continue;
		e->answered |= ptc_machine_answered(p.fd) != PTC_MACHINE_SILENT;
		close_one(e, k);
	}
}

void ptc_lease_end_look(struct ptc_lease_end *e, int64_t now_ns)
{
	enum ptc_machine answer = PTC_MACHINE_SILENT;
	uint32_t at = e->n % PTC_LEASE_END_MAX;

	if (!e->ending || e->answered)
		return;
	take_answers(e);
	if (e->answered || (e->n && now_ns - e->v[(e->n - 1) % PTC_LEASE_END_MAX].begun_ns < PTC_MACHINE_GAP_NS))
		return;
	if (e->n >= PTC_LEASE_END_MAX)
		close_one(e, at);
	e->v[at].fd = ptc_machine_connect(&e->at.v[e->n % e->at.n], &answer);
	e->v[at].begun_ns = now_ns;
	e->n++;
	e->answered = answer != PTC_MACHINE_SILENT;
}

bool ptc_lease_end_doubtful(const struct ptc_lease_end *e)
{
	return e && e->ending && !e->answered;
}

bool ptc_lease_end_silent(struct ptc_lease_end *e, int64_t now_ns)
{
	uint32_t had_time = 0;

	take_answers(e);
	for (uint32_t k = oldest(e); k < e->n; k++) {
		int64_t ago_ns = now_ns - e->v[k % PTC_LEASE_END_MAX].begun_ns;

		had_time += ago_ns >= PTC_MACHINE_LAST_NS && ago_ns < WINDOW_NS;
	}
	return ptc_lease_end_doubtful(e) && had_time >= PTC_MAX(e->at.n, PTC_MACHINE_TRIES);
}
