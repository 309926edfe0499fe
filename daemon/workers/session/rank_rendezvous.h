/* SPDX-License-Identifier: Apache-2.0 */
/* Keys by which the ranks of a group find each other (rendezvous). The daemon of rank 0's node
 * keeps them; other nodes ask it. Any thread. Failure modes: rank_rendezvous.c. */
#pragma once

#include "daemon/workers/types/group_desc.h"
#include "base/status.h"

struct ptc_workers;

/* The daemon itself puts this one: "A B", what a sample costs by its length (ptc/sampling.h), or "", if nobody knows.
 */
#define PTC_LENGTH_COST_KEY "ptc.length_cost"

/* Sets and gets a rendezvous key of a group whose rank 0 is on this node. get waits for the key. */
int ptc_workers_rendezvous_put(struct ptc_workers *w, const struct ptc_group_key *key, const char *name,
			       const void *value, size_t len, struct ptc_error *err);
int ptc_workers_rendezvous_get(struct ptc_workers *w, const struct ptc_group_key *key, const char *name, void *buffer,
			       size_t capacity, size_t *ret_len, const struct ptc_wait *wait, struct ptc_error *err);
