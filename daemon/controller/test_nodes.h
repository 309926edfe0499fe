/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: a cluster whose nodes the test sets in test_nodes. */
#pragma once

#include "daemon/cluster/cluster.h"

#define NODES 4

static struct ptc_node test_nodes[NODES];

size_t ptc_cluster_nnodes(const struct ptc_cluster *c)
{
	(void)c;
	return NODES;
}

struct ptc_node *ptc_cluster_node(struct ptc_cluster *c, uint32_t index)
{
	(void)c;
	return &test_nodes[index];
}
