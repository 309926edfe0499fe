/* SPDX-License-Identifier: Apache-2.0 */
/* Digests at the controller. */
#pragma once

#include "daemon/agent/geometry/geometry.h"

/* Collects PullReply digests of every node of a geometry and merges them: equal boxes of replicas must agree (else
 * PTC_EDIGEST naming tensor and nodes), and a disjoint cover of each item XORs to its digest. */
struct ptc_digests;
int ptc_digests_new(const struct ptc_geometry *g, struct ptc_digests **ret_digests, struct ptc_error *err);
int ptc_digests_add(struct ptc_digests *d, uint32_t node, const uint32_t *need_index, const uint64_t *digests, size_t n,
		    struct ptc_error *err);
/* ret_items: one per item, spec order. PTC_EDIGEST/PTC_ESTATE if something is missing. expected NULL or one per item to compare with, naming the tensor that differs. */
int ptc_digests_merge(struct ptc_digests *d, const uint64_t *expected, uint64_t *ret_items, struct ptc_error *err);
struct ptc_digests *ptc_digests_free(struct ptc_digests *d);
