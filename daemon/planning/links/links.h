/* SPDX-License-Identifier: Apache-2.0 */
/* Links between nodes: measured over the connections that a switch uses, kept as pairs in the cluster's profile, and
 * read as the slowest link of a set of nodes. Functions that measure block for seconds and belong on a thread of their
 * own; those on pairs are pure. Failure modes: a node that does not answer leaves its pairs out; out of memory. */
#pragma once

#include "daemon/cluster/channels.h"
#include "formats/json.h"
#include "rpc/server/server.h"

#include <stdint.h>

/* Peer/Stream, which sends bytes, and Peer/Measure, which pulls them from another node and times it. channels is
 * borrowed. */
int ptc_links_register(struct ptc_rpc_server *peers, struct ptc_channels *channels, struct ptc_error *err);

struct ptc_link_node {
	char name[64], address[256];
};
/* Each node with each other, both ways, in rounds of disjoint pairs; beyond PTC_LINK_ROUNDS nodes each with so many
 * others. *ret_pairs: [{from, to, bytes_s, latency_s}], bytes going from `from` to `to`. *ret_failed: [{from, to}] of
 * those that could not be measured. A node that has answered nobody in PTC_LINK_SILENT rounds is asked no more. */
#define PTC_LINK_SILENT 3
#define PTC_LINK_ROUNDS 31
#define PTC_LINK_PAIRS  4096 /* about; 100 bytes each in one value of etcd's */
int ptc_links_measure(struct ptc_channels *channels, const struct ptc_link_node *nodes, size_t n, json_t **ret_pairs,
		      json_t **ret_failed, struct ptc_error *err);
/* The partner of the i-th node in a round of n (even) nodes; each has each once in n - 1 rounds. */
size_t ptc_link_opponent(size_t n, size_t round, size_t i);

/* Adds what `was` has of links that were not measured now and whose nodes (names) the cluster knows: a node that was
 * down or silent for a moment has the links that it had. At most PTC_LINK_PAIRS in all. */
void ptc_links_keep(json_t *pairs, const json_t *was, const json_t *nodes);
/* Pairs whose bandwidth differs from what it was by more than a quarter: [{from, to, was, is}]. */
json_t *ptc_links_changed(const json_t *was, const json_t *is);

/* What links gave in a switch: [{from, to, bytes, seconds}]. A switch is bounded by more than links, so one of them is
 * compared with what it has given in earlier switches. If it gives less than half of that, it counts for what it gives
 * now, until it gives as much again. Pairs that were never measured stay so. Adds [{from, to, was, is}] of those that
 * count for half or twice now. True: pairs (bytes_s, measured_bytes_s, seen_bytes_s) are others. */
bool ptc_links_saw(json_t *pairs, const json_t *links, json_t *changed);

/* ---- sets of nodes ---- */
struct ptc_link_sets; /* what pairs say of some nodes */
/* names: of the nodes, in the caller's order. NULL: out of memory. */
struct ptc_link_sets *ptc_link_sets_new(const json_t *pairs, const char *const *names, size_t n);
struct ptc_link_sets *ptc_link_sets_free(struct ptc_link_sets *s); /* NULL ok */
/* All links as a matrix, symmetric; `unknown` where none was measured. */
void ptc_link_sets_matrix(const struct ptc_link_sets *s, double unknown, double *ret);
/* The middle one of all links between the nodes; 0: none was measured. */
double ptc_link_sets_median(const struct ptc_link_sets *s);
/* The slowest link among the nodes that are not left; 0: none is known. */
double ptc_link_sets_slowest(const struct ptc_link_sets *s, const bool *leave);
/* Leaves one node more: of the slowest link's two the one whose links are slower on average. False: fewer than two are
 * left, or nothing is known. */
bool ptc_link_sets_leave(const struct ptc_link_sets *s, bool *leave);
