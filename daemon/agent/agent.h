/* SPDX-License-Identifier: Apache-2.0 */
/* The node's hands: everything that touches tensor bytes. Server side of the
 * ptc.v1.Peer service (Seal, Prepare, Pull, Put, Finish, Fetch, FetchRank,
 * Digest, Stat), and, for the daemon a client talks to (the gateway), scatter
 * (import) and gather (export).
 *
 * Runs on RPC server threads and its own few workers, never on the loop.
 * Every transfer takes a memory ticket from one pool (staging_bytes) before its first byte; a thread holds at most one
 * ticket and takes no second one while waiting, which keeps the pool free of deadlock.
 *
 * Happy path of a switch: Prepare computes needs and plan from spec, layouts and allocations, derives the new table from
 * the old one, reserves what is missing; Pull fetches missing boxes from the plan's sources (several streams at once, straight
 * from the socket's slices into the chunks), marks extents filled, seals, digests every needed box, answers digests.
 * Failure modes: source gone or stalled (PTC_EPEER; nothing lost, call again), fence lower than seen (PTC_EFENCED),
 * memory (PTC_ENOSPC before anything moved), a sent block that does not verify (PTC_ECORRUPT), a peer that sends fewer, more or other
 * bytes than asked (PTC_EPEER). */
#pragma once

#include "daemon/agent/calls/agent_env.h"
#include "rpc/server/server.h"

int ptc_agent_new(const struct ptc_agent_env *env, struct ptc_agent **ret_agent, struct ptc_error *err);
/* Before the server starts: adds the methods of ptc.v1.Peer, role NODE only. */
int ptc_agent_register(struct ptc_agent *agent, struct ptc_rpc_server *server, struct ptc_error *err);
struct ptc_agent *ptc_agent_free(struct ptc_agent *agent); /* after the server is freed; NULL ok */
