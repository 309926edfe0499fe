/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a machine is there: it takes a TCP connection, or refuses one. If it refuses one, no program listens there.
 *
 * Any thread. Failure modes: a name that nobody resolves, no descriptor; each function says what it gives then. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct addrinfo;
struct pollfd;
/* Looks up HOST:PORT or [HOST]:PORT; freeaddrinfo it. May block. NULL: nobody knows it, or it is no such address. */
struct addrinfo *ptc_machine_look_up(const char *address);
/* Whether one of its addresses is this machine's, as of a member of etcd that runs here. Nothing is sent. */
bool ptc_machine_is_own(const struct addrinfo *a);
enum ptc_machine {
	PTC_MACHINE_SILENT, /* it has not answered, or the network says that it cannot be reached */
	PTC_MACHINE_REFUSES,
	PTC_MACHINE_TAKES, /* or nothing can be told */
};
/* Begins a connection. A socket to poll for POLLOUT; -1: there is no more to wait for. *ret: left as it is where the
 * machine has not answered yet. */
int ptc_machine_connect(const struct addrinfo *a, enum ptc_machine *ret);
/* Of such a socket that poll has found ready: what the machine has answered. */
enum ptc_machine ptc_machine_answered(int fd);

#define PTC_MACHINE_TRIES   3
#define PTC_MACHINE_GAP_NS  INT64_C(150000000) /* between the beginnings of connections */
#define PTC_MACHINE_LAST_NS INT64_C(300000000) /* from the beginning of the last to the end of all */
struct ptc_machine_asked {
	struct addrinfo *at; /* the caller's; NULL: nothing can be told */
	enum ptc_machine answer;
};
/* Gives each machine up to PTC_MACHINE_TRIES connections, one after the other, until it takes one, or each of its
 * addresses has refused one: a program may listen at one of several. fds: room for PTC_MACHINE_TRIES * n. */
void ptc_machines_ask(struct ptc_machine_asked *v, size_t n, struct pollfd *fds);
