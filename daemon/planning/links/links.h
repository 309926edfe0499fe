/* SPDX-License-Identifier: Apache-2.0 */
/* Links between nodes: measured over the connections that a switch uses, kept as pairs in the cluster's profile, and
 * read as the slowest link of a set of nodes. Functions that measure block for seconds and belong on a thread of their
 * own; those on pairs are pure. Lists are plain data of the caller: ptc_free their v. Failure modes: a node that does
 * not answer leaves its pairs out; out of memory. */
#pragma once

#include "base/limits.h"
#include "daemon/cluster/channels.h"
#include "formats/members.h"
#include "rpc/server/server.h"

#include <stdint.h>

/* A link that was measured, for bytes that go from one node to another. */
struct ptc_link {
	char from[PTC_NAME_MAX + 1], to[PTC_NAME_MAX + 1];
	double bytes_s, latency_s; /* bytes_s: the speed with which plans count */
	/* Once a switch has sent bytes over it: what measuring gave, and the most that a switch brought. Else 0. */
	double measured_bytes_s, seen_bytes_s;
	int64_t measured_ms; /* Unix time; 0: not known */
};
struct ptc_links {
	struct ptc_link *v;
	size_t n;
};
extern const struct ptc_members ptc_link_members;     /* as JSON: docs/control.md, "profile" */
extern const struct ptc_members ptc_link_way_members; /* from and to alone */
/* A link whose speed has changed. */
struct ptc_link_change {
	char from[PTC_NAME_MAX + 1], to[PTC_NAME_MAX + 1];
	double was, is; /* bytes per second */
};
struct ptc_link_changes {
	struct ptc_link_change *v;
	size_t n;
};
extern const struct ptc_members ptc_link_change_members;
/* What a link has brought in a switch. */
struct ptc_link_use {
	char from[PTC_NAME_MAX + 1], to[PTC_NAME_MAX + 1];
	uint64_t bytes;
	double seconds;
};

/* Peer/Stream, which sends bytes, and Peer/Measure, which pulls them from another node and times it. channels is
 * borrowed. */
int ptc_links_register(struct ptc_rpc_server *peers, struct ptc_channels *channels, struct ptc_error *err);

struct ptc_link_node {
	char name[PTC_NAME_MAX + 1], address[256];
};
/* Measures the links of each node with each other, both ways, in rounds of disjoint pairs. At most PTC_LINK_ROUNDS
 * rounds are made, so each node is measured with at most so many others. *ret_failed: links that could not be measured
 * (only from and to are set). A node that has answered nobody in PTC_LINK_SILENT rounds is asked no more. On the thread
 * of `call`: soon after it is cancelled the measurement ends, with PTC_ECANCELED. */
#define PTC_LINK_SILENT 3
#define PTC_LINK_ROUNDS 31
#define PTC_LINK_PAIRS  4096 /* about; 100 bytes each in one value of etcd's */
#define PTC_LINK_CALLS  256  /* in flight */
int ptc_links_measure(struct ptc_channels *channels, struct ptc_rpc_client *client, const struct ptc_rpc_call *call,
		      const struct ptc_link_node *nodes, size_t n, struct ptc_links *ret, struct ptc_links *ret_failed,
		      struct ptc_error *err);
/* The partner of the i-th node in a round of n (even) nodes; in n - 1 rounds each node meets each other once. */
size_t ptc_link_opponent(size_t n, size_t round, size_t i);

/* Adds what `was` has of links that were not measured now and whose nodes the cluster knows: a node that was down or
 * silent for a moment has the links that it had. At most PTC_LINK_PAIRS in all. The memory of `pairs` must have been
 * grown by PTC_MORE only. 0, or PTC_ENOMEM. */
int ptc_links_keep(struct ptc_links *pairs, const struct ptc_links *was, const struct ptc_link_node *nodes, size_t n);
/* Pairs whose bandwidth differs from what it was by more than a quarter. 0, or PTC_ENOMEM. */
int ptc_links_changed(const struct ptc_links *was, const struct ptc_links *is, struct ptc_link_changes *ret);

/* Takes what n links gave in a switch. Other things than links slow a switch, too, so a link is compared only with the
 * most that it gave in an earlier switch. If it gives less than half of that, its bytes_s becomes what it gives now.
 * Otherwise bytes_s becomes what measuring gave. Pairs that were never measured stay so. `changed` gets those whose
 * bytes_s has halved or doubled. *ret_any: some pair was updated. 0, or PTC_ENOMEM. */
int ptc_links_saw(struct ptc_links *pairs, const struct ptc_link_use *uses, size_t n, struct ptc_link_changes *changed,
		  bool *ret_any);

/* ---- sets of nodes ---- */
struct ptc_link_sets; /* what pairs say of some nodes */
/* names: of the nodes, in the caller's order. NULL: out of memory. */
struct ptc_link_sets *ptc_link_sets_new(const struct ptc_links *pairs, const char *const *names, size_t n);
struct ptc_link_sets *ptc_link_sets_free(struct ptc_link_sets *s); /* NULL ok */
/* All links as a matrix, symmetric; `unknown` where none was measured. */
void ptc_link_sets_matrix(const struct ptc_link_sets *s, double unknown, double *ret);
/* The middle one of all links between the nodes; 0: none was measured. */
double ptc_link_sets_median(const struct ptc_link_sets *s);
/* The slowest link among the nodes that `leave` does not mark; 0: none is known. */
double ptc_link_sets_slowest(const struct ptc_link_sets *s, const bool *leave);
/* Marks one more node in `leave`: the one of the slowest link's two nodes whose links are slower on average. False:
 * fewer than two unmarked nodes remain, or nothing is known. */
bool ptc_link_sets_leave(const struct ptc_link_sets *s, bool *leave);

/* The cluster's profile (docs/control.md, "profile"). Freed with ptc_profile_doc_done; one of zeros is fine. */
struct ptc_profile_doc {
	char *profile;          /* as a file has it; NULL: nobody has put one in */
	struct ptc_links pairs; /* measured */
	int64_t set_ms, measured_ms,
		changed_ms; /* Unix time of either, and of the last change that was found; 0: never */
};
void ptc_profile_doc_done(struct ptc_profile_doc *d);
/* Of a measurement (NULL: of none): links that differ from what they were, and those that could not be measured.
 * ptc_free it; NULL: out of memory. */
char *ptc_profile_doc_encode(const struct ptc_profile_doc *d, const struct ptc_link_changes *changed,
			     const struct ptc_links *failed);
int ptc_profile_doc_decode(const char *what, const char *json, struct ptc_profile_doc *ret, struct ptc_error *err);
