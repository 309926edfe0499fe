/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a daemon that touches tensor bytes. It serves ptc.v1.Peer (Seal, Prepare, Pull, Put, Finish, Fetch,
 * FetchRank, Digest, Stat and calls about ranks). In the daemon that a client calls, the gateway, it also scatters
 * imports and gathers exports.
 *
 * Threads: RPC server threads and a few of the agent's own, never the loop. Every transfer takes a memory ticket before
 * its first byte; calls/ticket.h says in which order, so that no two transfers wait for each other.
 *
 * Happy path of a switch: Prepare computes needs and plan from spec, layouts and allocations. It derives the new table
 * from the old one and reserves room for missing boxes. Pull fetches these boxes from the plan's sources, by several
 * streams at once, straight from the socket's slices into the chunks. Then Pull marks extents filled, seals the table,
 * digests every needed box, and answers the digests.
 *
 * Failure modes: a source is gone or stalls (PTC_EPEER; nothing is lost, call again); the fence is lower than one that
 * was seen (PTC_EFENCED); memory is short (PTC_ENOSPC, before a byte moved); a block that was sent does not verify
 * (PTC_ECORRUPT); a peer sends fewer, more or other bytes than asked (PTC_EPEER). */
#pragma once

#include "daemon/agent/calls/agent_env.h"
#include "rpc/server/server.h"

int ptc_agent_new(const struct ptc_agent_env *env, struct ptc_agent **ret_agent, struct ptc_error *err);
/* Adds the methods of ptc.v1.Peer to the server, for callers of role NODE only. Call it before the server starts. */
int ptc_agent_register(struct ptc_agent *agent, struct ptc_rpc_server *server, struct ptc_error *err);
struct ptc_agent *ptc_agent_free(struct ptc_agent *agent); /* after the server is freed; NULL ok */
