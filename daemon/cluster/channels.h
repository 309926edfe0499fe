/* SPDX-License-Identifier: Apache-2.0 */
/* Connections to other daemons, made at first use and kept: one for control and a few for bulk to each node. Any thread.
 * Failure modes: the node is down, or its certificate is not its own (PTC_EPEER); out of memory. */
#pragma once

#include "rpc/client/client.h"

struct ptc_channels;

/* tls is borrowed; NULL: plain TCP on loopback. */
int ptc_channels_new(const struct ptc_rpc_tls *tls, struct ptc_channels **ret_channels, struct ptc_error *err);
struct ptc_channels *ptc_channels_free(struct ptc_channels *c);
int ptc_channels_get(struct ptc_channels *c, const char *node, const char *address, bool bulk, unsigned lane,
		     struct ptc_rpc_channel **ret_channel, struct ptc_error *err);
/* The node lives again: connections to it that wait before they try once more need not. */
void ptc_channels_retry(struct ptc_channels *c, const char *node);

/* A connection of its own, which no back-off delays; the caller frees it. */
int ptc_channels_probe(struct ptc_channels *c, const char *node, const char *address,
		       struct ptc_rpc_channel **ret_channel, struct ptc_error *err);
