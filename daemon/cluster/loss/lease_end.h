/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at a node's machine while the node's lease is about to end, so that the look is over when the lease has ended.
 *
 * A node that lives renews its lease each third of the TTL. If it has not done so for about half of the TTL, its lease
 * is about to end. From then on its machine is given one connection after the other, none of which is waited for. When
 * the lease has ended, the machine is silent if PTC_MACHINE_TRIES of them, and one to each of its addresses, have had
 * the time that a look gives them (machines.h), and no connection was answered, including those begun since. A renewal
 * ends the looking. After an answer there is no more to see: ptc_machines_ask looks once the lease has ended.
 *
 * The caller asks etcd for the time that the lease has left (daemon/cluster/mirror/mirror_leases.c). One thread owns
 * and calls this, and nothing blocks. Times are of one monotonic clock, in nanoseconds. Nothing here fails: without a
 * descriptor nothing can be told, as after an answer. */
#pragma once

#include "daemon/cluster/loss/machines.h"

#include <stdint.h>

#define PTC_LEASE_END_MAX 8 /* connections of a node, the newest; each is a descriptor */

struct ptc_lease_end {
	int64_t lease;     /* of which etcd was asked; 0: of none yet */
	int64_t wanted_ns; /* the mirror's: somebody wanted to know then */
	int64_t next_ns;   /* etcd is asked again then */
	bool asking;       /* the mirror's: a task asks */
	bool ending, answered;
	struct ptc_machine_at at; /* where it looks while ending */
	uint32_t n;               /* connections since the lease was about to end */
	struct {
		int fd; /* -1: it has failed without an answer */
		int64_t begun_ns;
	} v[PTC_LEASE_END_MAX]; /* a ring: number k is at k % PTC_LEASE_END_MAX */
};

/* Whether a lease with so many seconds left, as etcd says it, is about to end. */
bool ptc_lease_end_is_near(int64_t left_s, int64_t ttl_s);
/* Etcd was asked at asked_ns for the lease, and says that. at: the addresses of the machine; NULL, or none, or not all:
 * it cannot be looked at. Needed only where the lease is near its end, and not looked at yet. True: the looking begins.
 */
bool ptc_lease_end_heard(struct ptc_lease_end *e, int64_t lease, int64_t left_s, int64_t ttl_s,
			 const struct ptc_machine_at *at, int64_t asked_ns);
/* Each tick: begins a connection, and takes answers. */
void ptc_lease_end_look(struct ptc_lease_end *e, int64_t now_ns);
/* Whether the lease of a node that is up is about to end, and nothing has answered since. NULL: no. */
bool ptc_lease_end_doubtful(const struct ptc_lease_end *e);
/* The lease has ended. Takes the last answers: whether the machine is silent. */
bool ptc_lease_end_silent(struct ptc_lease_end *e, int64_t now_ns);
void ptc_lease_end_reset(struct ptc_lease_end *e); /* closes all; e is of zeros then; NULL ok */
