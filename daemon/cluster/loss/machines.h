/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a machine is there: it takes a TCP connection, or refuses one. If it refuses one, no program listens there.
 *
 * Any thread. Failure modes: a name that nobody resolves, no descriptor; each function says what it gives then. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

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

#define PTC_MACHINE_TRIES 3
struct ptc_machine_asked {
	struct addrinfo *at; /* the caller's; NULL: nothing can be told */
	enum ptc_machine answer;
};
/* Gives each machine up to PTC_MACHINE_TRIES connections, one after the other, until it takes one, or each of its
 * addresses has refused one: a program may listen at one of several. fds: room for PTC_MACHINE_TRIES * n. */
void ptc_machines_ask(struct ptc_machine_asked *v, size_t n, struct pollfd *fds);
