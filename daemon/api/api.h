/* SPDX-License-Identifier: Apache-2.0 */
/* Registers the methods of the service ptc.v1.Control on a server. Calls end before the server does, and the daemon
 * outlives both. Fails if the server has no room for the methods. */
#pragma once

#include "daemon/api/caller/daemon.h"

int ptc_api_register(struct ptc_daemon *d, struct ptc_rpc_server *server, struct ptc_error *err);
