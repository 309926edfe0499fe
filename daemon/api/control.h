/* SPDX-License-Identifier: Apache-2.0 */
/* The service ptc.v1.Control: its methods on a server. Nothing of a call outlives the
 * server; the daemon outlives both. Fails for a server that has no room for them. */
#pragma once

#include "daemon/api/caller/daemon.h"

int ptc_control_register(struct ptc_daemon *d, struct ptc_rpc_server *server, struct ptc_error *err);
