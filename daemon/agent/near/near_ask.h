/* SPDX-License-Identifier: Apache-2.0 */
/* The questions to a node that may be near: where it runs, and for a file. Any thread; each waits at most
 * NEAR_ASK_MS. */
#pragma once

#include "daemon/agent/near/near.h"

#include <sys/un.h>

_Static_assert(sizeof(((struct sockaddr_un *)NULL)->sun_path) == PTC_NEAR_SOCKET_BYTES, "a whole path");

#define NEAR_ASK_MS       2000
#define NEAR_MACHINE_MAX  64
#define NEAR_SOCKET_BYTES PTC_NEAR_SOCKET_BYTES

/* This machine's identity, anew at each boot. */
int ptc_near_machine(char machine[NEAR_MACHINE_MAX], struct ptc_error *err);
/* Asks on which machine a node runs. *ret_socket is empty: not on this one, or it lets nobody read. */
int ptc_near_ask_machine(struct ptc_rpc_channel *channel, const char *machine, char ret_socket[NEAR_SOCKET_BYTES],
			 struct ptc_error *err);
/* Asks for a descriptor of the file that has the table. PTC_EPERM: another user listens there. */
int ptc_near_ask_file(const char *socket, const struct ptc_table_key *table, struct ptc_near_file *ret_file,
		      struct ptc_error *err);
