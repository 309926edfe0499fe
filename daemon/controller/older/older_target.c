/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses where an older snapshot's state goes if nodes are lost. See controller.h. Happy path: each rank's part stays
 * on its node, or goes to a node that has a copy of it, and costs no byte there. If none of these nodes is left, the
 * part goes to the node with the fewest parts. Failure modes: no node, or none with a device number left
 * (PTC_ENODEVICES); memory. */
#include "daemon/controller/controller.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"

#include <string.h>

#define NOWHERE UINT32_MAX

struct target {
	const struct ptc_view *v;
	const bool *usable;
	struct ptc_device *ranks; /* of each rank; node NOWHERE: not yet */
	uint32_t *parts;          /* on each node of the view */
};

static uint32_t home(const struct target *t, uint32_t rank)
{
	const struct ptc_generation_doc *g = &t->v->from;

	return ptc_view_number(t->v, g->nodes[g->rank_node[rank]]);
}

/* A node with a copy of the rank's part, or else the one with the fewest parts. */
static uint32_t other_home(const struct target *t, uint32_t rank)
{
	const struct ptc_copies_doc *c = &t->v->copies;
	uint32_t best = NOWHERE;

	for (size_t i = 0; i < c->nparts; i++) {
		uint32_t node = ptc_view_number(t->v, c->keepers[c->parts[i].keeper].node);

		if (c->parts[i].rank == rank && t->usable[node] && t->parts[node] < PTC_MAX_DEVICES_PER_NODE)
			return node;
	}
	for (uint32_t n = 0; n < t->v->nnodes; n++)
		if (t->usable[n] && t->parts[n] < PTC_MAX_DEVICES_PER_NODE &&
		    (best == NOWHERE || t->parts[n] < t->parts[best]))
			best = n;
	return best;
}

/* Ranks do not run there: a number that the node's devices do not have does as well. */
static uint32_t free_number(const struct target *t, uint32_t node)
{
	uint64_t taken = 0;
	uint32_t number = 0;

	for (uint32_t r = 0; r < t->v->from.world; r++)
		if (t->ranks[r].node == node)
			taken |= UINT64_C(1) << t->ranks[r].index;
	while (taken >> number & 1)
		number++;
	return number;
}

static int place(struct target *t)
{
	const struct ptc_generation_doc *g = &t->v->from;

	for (uint32_t r = 0; r < g->world; r++) {
		uint32_t node = home(t, r);

		t->ranks[r] = (struct ptc_device){ t->usable[node] ? node : NOWHERE, g->rank_device[r] };
		t->parts[node] += t->usable[node];
	}
	for (uint32_t r = 0; r < g->world; r++) {
		uint32_t node = t->ranks[r].node == NOWHERE ? other_home(t, r) : t->ranks[r].node;

		if (node == NOWHERE)
			return PTC_ENODEVICES;
		if (t->ranks[r].node != NOWHERE)
			continue;
		t->ranks[r] = (struct ptc_device){ node, free_number(t, node) };
		t->parts[node]++;
	}
	return 0;
}

/* Its nodes in order of first use, as in every generation. */
static int write_down(const struct target *t, struct ptc_generation_doc *to)
{
	ptc_auto_free uint32_t *number = ptc_calloc(t->v->nnodes, sizeof *number);

	if (!number)
		return PTC_ENOMEM;
	for (size_t i = 0; i < to->nnodes; i++)
		ptc_free(to->nodes[i]);
	ptc_free(to->nodes);
	to->nnodes = 0;
	to->nodes = ptc_calloc(t->v->nnodes, sizeof *to->nodes);
	for (uint32_t r = 0; to->nodes && r < to->world; r++) {
		uint32_t node = t->ranks[r].node;

		if (!number[node]) {
			to->nodes[to->nnodes] = ptc_strdup(t->v->nodes[node]);
			if (!to->nodes[to->nnodes])
				return PTC_ENOMEM;
			number[node] = (uint32_t)++to->nnodes;
		}
		to->rank_node[r] = number[node] - 1;
		to->rank_device[r] = t->ranks[r].index;
	}
	return to->nodes ? 0 : PTC_ENOMEM;
}

int ptc_older_target(const struct ptc_view *v, const bool *usable, struct ptc_generation_doc *ret,
		     struct ptc_error *err)
{
	ptc_auto_free struct ptc_device *ranks = ptc_calloc(v->from.world, sizeof *ranks);
	ptc_auto_free uint32_t *parts = ptc_calloc(v->nnodes, sizeof *parts);
	struct target t = { v, usable, ranks, parts };
	struct ptc_generation_doc to = { 0 };
	int rc = ranks && parts ? place(&t) : PTC_ENOMEM;

	_Static_assert(PTC_MAX_DEVICES_PER_NODE <= 64, "a node's numbers are bits of a word");
	if (rc == PTC_ENODEVICES)
		return ptc_error_set(err, rc, "no node is left that has a part of snapshot %llu and can take another",
				     (unsigned long long)v->from_snapshot);
	if (rc == 0)
		rc = ptc_generation_doc_copy(&v->from, &to);
	if (rc == 0)
		rc = write_down(&t, &to);
	if (rc) {
		ptc_generation_doc_done(&to);
		return ptc_nomem(err);
	}
	*ret = to;
	return 0;
}
