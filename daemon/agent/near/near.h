/* SPDX-License-Identifier: Apache-2.0 */
/* Near nodes: nodes whose ptcd runs on the same machine as this one, under the same user. Their chunk files are read in
 * place, so their bytes cross no socket (docs/decisions/0065-near-nodes.md).
 *
 * Happy path: a node is asked once on which machine it runs (Near). If it is this one, the node's socket of direct
 * reads (proto/direct_read.h) gives a descriptor of a job's chunk file, which is kept. Each Fetch then names that file.
 * The node compares it with its own, and answers places in it (transfer/near_message.h).
 *
 * Nothing is believed: the socket must be our own user's; a node that does not have the file that a Fetch names sends
 * bytes; what is read is verified block by block (base/memory/chunk_read.h).
 *
 * Failure modes: whatever fails, the node is not near for some seconds, and its bytes come over the network. That is
 * logged when a node of this machine first fails. Threads: any; a call may wait for the node for a few seconds. */
#pragma once

#include "base/status.h"
#include "rpc/client/client.h"
#include "rpc/server/server.h"

#include <stdbool.h>
#include <stdint.h>

struct ptc_agent;
struct ptc_near;
struct ptc_table_key;

/* A near node's chunk file of a job, open for reading only. */
struct ptc_near_file {
	int fd;
	uint64_t dev, ino;
};
struct ptc_near_opts {
	const char *socket; /* of this node's direct reads */
	/* A channel to a node, as in struct ptc_agent_env. */
	int (*channel)(void *arg, const char *node, const char *address, bool bulk, unsigned lane,
		       struct ptc_rpc_channel **ret_channel, struct ptc_error *err);
	void *arg;
};
/* NULL: no memory, or the machine has no identity. Then no node is near. */
struct ptc_near *ptc_near_new(const struct ptc_near_opts *opts);
struct ptc_near *ptc_near_free(struct ptc_near *near); /* NULL ok */

/* The file in which the node has that table; NULL: the node is not near. ptc_near_file_put it. near may be NULL. */
struct ptc_near_file *ptc_near_file_get(struct ptc_near *near, const char *node, const char *address,
					const struct ptc_table_key *table);
/* stale: the node did not take the file, or its bytes were wrong, so it is not given again. */
void ptc_near_file_put(struct ptc_near *near, struct ptc_near_file *file, bool stale);

/* The path of a near node's socket of direct reads. False: it is not near. It is asked if that is not known, so this
 * may wait for it. near may be NULL. */
#define PTC_NEAR_SOCKET_BYTES 108 /* of a sockaddr_un's path */
bool ptc_near_socket(struct ptc_near *near, const char *node, const char *address, char ret[PTC_NEAR_SOCKET_BYTES]);

int ptc_agent_on_near(void *agent, struct ptc_rpc_call *call, struct ptc_error *err);
