/* SPDX-License-Identifier: Apache-2.0 */
/* A door: TCP listeners that let callers in at a pace. It stands before a server that makes the TLS handshake, and
 * keeps strangers from taking what members need there. It knows no gRPC, and cannot tell who a caller is; it knows from
 * where he comes, whether he has sent a whole ClientHello, and whether a member has called from there.
 *
 * A caller waits in the door until his ClientHello is whole. That costs a descriptor. Then he waits for his turn, which
 * is drawn at random: each share of the waiting callers is equally likely, whatever the number of its connections. A
 * share is a host, or an IPv6 network of 64 bits. Callers from members' hosts have places and a pace of their own. If
 * places are short, a caller of the share with the most places is dropped.
 *
 * Happy path: open binds, start accepts on a thread of its own, until the door is freed.
 *
 * Failure modes: an address that cannot be bound (PTC_EIO); no thread (PTC_EIO); no descriptor at accept: one who waits
 * is dropped, `exhausted` is called, and the others wait in the kernel's queue. */
#pragma once

#include "base/status.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

struct ptc_door;

struct ptc_door_caller {
	struct in6_addr host;  /* IPv4 is mapped */
	struct in6_addr share; /* the host; of IPv6 strangers, its first 64 bits */
	uint16_t port;
	bool from_member; /* a member called from this host before */
};

struct ptc_door_opts {
	const char *address;   /* "HOST:PORT", checked by the caller; "0.0.0.0" is every address of either family */
	const char *thread;    /* name of the thread */
	bool tls;              /* a caller waits for his ClientHello; else for his first byte */
	unsigned keepalive_ms; /* the kernel ends a connection whose other side acknowledges nothing for twice so long;
				  0: never */
	/* All run on the door's thread, with `arg`. `enter` takes fd, which is nonblocking. `listener`: which socket
	 * accepted it. `look` runs at least once a second. `dropped` tells of one who was not let in: he took too long
	 * to speak, or made room. */
	void (*enter)(void *arg, int listener, int fd, const struct ptc_door_caller *caller);
	void (*look)(void *arg);
	void (*dropped)(void *arg, bool out_of_time);
	void (*exhausted)(void *arg, int errnum);
	void *arg;
};

/* `opts` is copied; the strings stay the caller's. *ret_port: the port that was bound. */
int ptc_door_open(const struct ptc_door_opts *opts, struct ptc_door **ret_door, int *ret_port, struct ptc_error *err);
int ptc_door_start(struct ptc_door *door, struct ptc_error *err);
struct ptc_door *ptc_door_free(struct ptc_door *door); /* ends the thread; NULL ok */

/* ---- hosts of members: of the process; any thread ------------------------------------ */

/* Notes that a member called from here, or lives here: for a day. */
void ptc_door_member_host(const struct in6_addr *host);
/* The same for "HOST:PORT" with a numeric host; does nothing for a name. */
void ptc_door_member_address(const char *address);
bool ptc_door_is_member_host(const struct in6_addr *host);
void ptc_door_v4_mapped(const struct in_addr *v4, struct in6_addr *ret);
