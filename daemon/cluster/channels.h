/* SPDX-License-Identifier: Apache-2.0 */
/* Connections to other daemons, made at first use and kept. Each node has one for control and a few for bulk. Any
 * thread.
 *
 * Failure modes: the node is down, or shows another node's certificate (PTC_EPEER); out of memory. */
#pragma once

#include "rpc/client/client.h"

struct ptc_channels;

/* tls is borrowed; NULL: plain TCP on loopback. */
int ptc_channels_new(const struct ptc_rpc_tls *tls, struct ptc_channels **ret_channels, struct ptc_error *err);
struct ptc_channels *ptc_channels_free(struct ptc_channels *c);
int ptc_channels_get(struct ptc_channels *c, const char *node, const char *address, bool bulk, unsigned lane,
		     struct ptc_rpc_channel **ret_channel, struct ptc_error *err);
/* Call this when a node is up again: its connections try at once, and not after their back-off. */
void ptc_channels_retry(struct ptc_channels *c, const char *node);

/* Makes a new connection, which no back-off delays. The caller frees it. */
int ptc_channels_probe(struct ptc_channels *c, const char *node, const char *address,
		       struct ptc_rpc_channel **ret_channel, struct ptc_error *err);
