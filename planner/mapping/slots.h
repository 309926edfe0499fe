/* SPDX-License-Identifier: Apache-2.0 */
/* Assigns the ranks of a job to nodes by measured links between nodes and by what each node would have to get. Ranks
 * lie together as the cost model assumes: consecutive ranks, with tp fastest, then cp, dp and pp, fill a node. Each
 * kind of devices is filled by itself. Such a set of ranks is a slot, and the search finds a node for each slot. The
 * best assignment makes the most steps until the horizon. Exact for at most PTC_MAPPING_EXACT slots on as many nodes;
 * otherwise a local search, with the gap to a bound. Deterministic. Pure; any thread. */
#pragma once

#include "planner/cost/step.h"

#define PTC_SLOTS_MAX     512
#define PTC_MAPPING_EXACT 8 /* slots, and nodes */
#define PTC_SLOT_NONE     UINT32_MAX

/* The slots of a candidate. Freed by ptc_slots_done. */
struct ptc_slots {
	uint32_t n, world;
	uint32_t *slot; /* of each rank */
	uint32_t *size; /* ranks of each slot */
	uint8_t *kind;  /* of each slot: place->kind[0] or [1] */
	/* of each class of traffic, n * n: whether ranks of one slot send to the other; symmetric */
	bool *linked[PTC_LINK_CLASSES];
};
/* PTC_ELIMIT: more than PTC_SLOTS_MAX. */
int ptc_slots_new(const struct ptc_cand *c, const struct ptc_on_kinds *place, uint32_t per_node, struct ptc_slots *ret,
		  struct ptc_error *err);
void ptc_slots_done(struct ptc_slots *s);

struct ptc_nodes_ask {
	const struct ptc_slots *slots;
	uint32_t nnodes;
	const uint32_t *devices; /* of each node that may be used; 0: it may not be */
	const uint8_t *kind;     /* of each node; NULL: all are alike */
	const double *bytes_s;   /* nnodes * nnodes, symmetric: the links' rates; all positive but the diagonal */
	/* slots->n * nnodes: bytes that enter the node if it gets the slot; NULL: none do anywhere */
	const double *lacks;
	double lacks_bytes_s;      /* at which they enter; the busiest node counts */
	double horizon_s, pause_s; /* pause_s: of a switch, beside moving bytes */
	/* The seconds of a step, from the rate of the slowest link of each class (0: the class crosses no link). A
	 * lower rate never makes a step faster. */
	double (*step_s)(void *arg, const double bytes_s[PTC_LINK_CLASSES]);
	void *arg;
};
struct ptc_nodes {
	double step_s, moving_s;
	double bytes_s[PTC_LINK_CLASSES];
	double gap; /* no assignment makes more than (1 + gap) times as many steps; 0: exact */
};
/* Writes the node of each slot into `node`. PTC_ENODEVICES: the slots do not fit on the nodes. */
int ptc_nodes_find(const struct ptc_nodes_ask *ask, uint32_t *node, struct ptc_nodes *ret, struct ptc_error *err);
/* The slowest link of each class under any assignment of ranks to nodes; node: of each rank, tp fastest. */
void ptc_nodes_rates(const struct ptc_cand *c, const uint32_t *node, uint32_t nnodes, const double *bytes_s,
		     double ret[PTC_LINK_CLASSES]);
