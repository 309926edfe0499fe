/* SPDX-License-Identifier: Apache-2.0 */
/* Compares and merges the digests of all nodes, at the controller. */
#pragma once

#include "daemon/agent/geometry/geometry.h"

/* Collects the digests of PullReply of every node of a geometry. Equal boxes of replicas must have equal digests;
 * otherwise PTC_EDIGEST names tensor and nodes. The digests of a disjoint cover of an item XOR to the item's digest. */
struct ptc_digests;
int ptc_digests_new(const struct ptc_geometry *g, struct ptc_digests **ret_digests, struct ptc_error *err);
int ptc_digests_add(struct ptc_digests *d, uint32_t node, const uint32_t *need_index, const uint64_t *digests, size_t n,
		    struct ptc_error *err);
/* Says that this node has no table of the state, although the geometry says that it has one. Other nodes may hold all
 * of the state. */
void ptc_digests_leave_out(struct ptc_digests *d, uint32_t node);
/* For tests. The merge goes over windows of at most so many items. A window has at most so many boxes, unless one item
 * has more; the memory for them is reserved before the first window. */
void ptc_digests_bound(struct ptc_digests *d, size_t boxes, uint32_t items);
/* ret_items: a digest for each item, in the order of the spec. expected: the digests to compare with, for each item, or
 * NULL. PTC_EDIGEST: digests differ; the line names the tensor. PTC_ESTATE: digests are missing. */
int ptc_digests_merge(struct ptc_digests *d, const uint64_t *expected, uint64_t *ret_items, struct ptc_error *err);
/* Compares as ptc_digests_merge does, but leaves out items that nodes have not reported completely. `items` has a bit
 * for each item; *ret_missing counts the items that were left out and have their bit set. */
int ptc_digests_compare(struct ptc_digests *d, const uint64_t *expected, const uint8_t *items, size_t *ret_missing,
			struct ptc_error *err);
/* Calls fn for each box that nodes hold, with what each of these nodes said of it, in the order of nodes. A status that
 * fn returns ends the walk. Replicas may differ. */
struct ptc_replica_said {
	uint32_t node, box; /* box: its number among those of the node */
	uint64_t digest;
};
typedef int (*ptc_replicas_fn)(void *arg, uint32_t item, const struct ptc_box *box, const struct ptc_replica_said *v,
			       size_t n, struct ptc_error *err);
int ptc_digests_replicas(struct ptc_digests *d, ptc_replicas_fn fn, void *arg, struct ptc_error *err);
struct ptc_digests *ptc_digests_free(struct ptc_digests *d);
