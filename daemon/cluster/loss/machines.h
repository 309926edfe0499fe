/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a machine is there: it takes a TCP connection, or refuses one. So it says nothing of the programs on it.
 *
 * Any thread. Failure modes: a name that nobody resolves, no descriptor; each function says what it gives then. */
#pragma once

#include <stdbool.h>

struct addrinfo;
/* Looks up HOST:PORT or [HOST]:PORT; freeaddrinfo it. May block. NULL: nobody knows it, or it is no such address. */
struct addrinfo *ptc_machine_look_up(const char *address);
/* Whether that is an address of this machine, such as of a member of etcd that runs here. Nothing is sent. */
bool ptc_machine_is_own(const struct addrinfo *a);
/* Begins a connection. A socket to poll for POLLOUT; -1: there is no more to wait for. *ret_there: somebody is there,
 * or nothing can be told. */
int ptc_machine_connect(const struct addrinfo *a, bool *ret_there);
/* Of such a socket that poll has found ready: whether somebody is there. */
bool ptc_machine_answered(int fd);
