/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a machine is there: it takes a TCP connection, or refuses one. If it refuses one, no program listens there.
 *
 * Any thread. Failure modes: a name that nobody resolves, no descriptor; each function says what it gives then. */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTC_MACHINE_NAME_BYTES 256 /* of HOST:PORT or [HOST]:PORT */
#define PTC_MACHINE_ADDRESSES  6   /* of a name; each takes a descriptor in a look */

union ptc_machine_address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};
struct ptc_machine_at {
	unsigned n; /* 0: none is known */
	bool more;  /* the name has others, too, so that silence of these shows nothing */
	union ptc_machine_address v[PTC_MACHINE_ADDRESSES];
};

/* Looks up HOST:PORT or [HOST]:PORT, and blocks while no name server answers: addresses.h remembers what it finds.
 * False: nobody knows it, or it is no such address; *ret has none then. */
bool ptc_machine_look_up(const char *address, struct ptc_machine_at *ret);
/* The same of a host in digits. False: it is a name, or no such address. Does not block. */
bool ptc_machine_digits(const char *address, struct ptc_machine_at *ret);
/* Whether one of its addresses is this machine's, as of a member of etcd that runs here. Nothing is sent. */
bool ptc_machine_is_own(const struct ptc_machine_at *at);
enum ptc_machine {
	PTC_MACHINE_SILENT, /* it has not answered, or the network says that it cannot be reached */
	PTC_MACHINE_REFUSES,
	PTC_MACHINE_UNKNOWN, /* nothing can be told */
	PTC_MACHINE_TAKES,
};
/* Begins a connection. A socket to poll for POLLOUT; -1: there is no more to wait for. *ret: left as it is where the
 * machine has not answered yet. */
int ptc_machine_connect(const union ptc_machine_address *a, enum ptc_machine *ret);
/* Of such a socket that poll has found ready: what the machine has answered. */
enum ptc_machine ptc_machine_answered(int fd);

#define PTC_MACHINE_TRIES   3
#define PTC_MACHINE_GAP_NS  INT64_C(150000000) /* between the beginnings of connections */
#define PTC_MACHINE_LAST_NS INT64_C(300000000) /* from the beginning of the last to the end of all */
struct ptc_machine_asked {
	struct ptc_machine_at at;
	enum ptc_machine answer;
};
struct pollfd;
/* Gives each machine PTC_MACHINE_TRIES connections, one after the other, until it takes one, or each of its addresses
 * has refused one: a program may listen at one of several. If it has more addresses than that, each of them gets one,
 * two of them at the same time. fds: room for PTC_MACHINE_ADDRESSES * n. */
void ptc_machines_ask(struct ptc_machine_asked *v, size_t n, struct pollfd *fds);
