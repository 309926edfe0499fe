/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster goes on with another etcd (`ptcctl cluster recover`, `ptcctl cluster rejoin`); docs/failures.md says what
 * a person does.
 *
 * Happy path: nodes whose etcd is gone are pointed at an empty one and start. They wait (struct ptc_daemon, `waits`),
 * and serve only what is here. One of them is told which nodes there are; it asks each for the documents that it keeps,
 * chooses for each job the newest commit of which the nodes have every tensor, raises the coordination epoch on all of
 * them, and writes the commits into etcd. The last transaction writes /ptc/cluster; then all nodes begin.
 *
 * Failure modes: a node does not answer, the new etcd has jobs, or the former etcd still answers: the command is
 * refused with one line, and nothing has changed. If this daemon is killed, the same command begins anew: what was
 * written before /ptc/cluster is removed first, and nodes whose epoch was raised take a higher one. */
#pragma once

#include "daemon/api/caller/caller.h"

#include "ptc.pb-c.h"

PTC_API_HANDLER(ptc_api_recover);
/* Peer/Committed: what this node keeps. Roles: nodes. */
int ptc_recover_register(struct ptc_daemon *d, struct ptc_rpc_server *peers, struct ptc_error *err);
