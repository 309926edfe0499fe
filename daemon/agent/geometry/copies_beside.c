/* SPDX-License-Identifier: Apache-2.0 */
/* Copies beside a generation's layout, as a message has them. Happy path: a layout with a rank more for each copy, on
 * the nodes that hold them. Failure modes: numbers that contradict each other (PTC_EINVAL naming them), memory. */
#include "daemon/agent/geometry/geometry.h"
#include "proto/ptc.pb-c.h"

#include "base/alloc.h"
#include "base/check.h"

#include <string.h>

/* Devices of copies: none that a node has. */
#define COPY_DEVICE PTC_MAX_DEVICES_PER_NODE

static int check(const struct ptc_geometry *g, const Ptc__V1__Copies *c, struct ptc_error *err)
{
	const size_t bytes = ptc_spec_items(g->spec) / 8 + 1;

	if (c->n_nodes != c->n_snapshots || c->n_keepers != c->n_ranks || c->n_keepers != c->n_sets ||
	    c->n_keepers > PTC_MAX_COPIES)
		return ptc_error_set(
			err, PTC_EINVAL,
			"the request's copies of generation %llu contradict each other: %zu copies on %zu nodes",
			(unsigned long long)g->generation, c->n_keepers, c->n_nodes);
	for (size_t i = 0; i < c->n_nodes; i++)
		if (c->nodes[i] >= g->nnodes || !c->snapshots[i])
			return ptc_error_set(err, PTC_EINVAL,
					     "the request places copies on node number %u; it names %zu nodes",
					     c->nodes[i], g->nnodes);
	for (size_t i = 0; i < c->n_items; i++)
		if (c->items[i].len != bytes)
			return ptc_error_set(err, PTC_EINVAL,
					     "the request lists the items of copies in %zu bytes, not %zu",
					     c->items[i].len, bytes);
	for (size_t i = 0; i < c->n_keepers; i++)
		if (c->keepers[i] >= c->n_nodes || c->sets[i] >= c->n_items || c->ranks[i] >= g->allocation.world)
			return ptc_error_set(err, PTC_EINVAL,
					     "the request's copy %zu is of rank %u; the job has %u ranks", i,
					     c->ranks[i], g->allocation.world);
	return 0;
}

/* items: the geometry's own copy of them, which the layout does not need once it is made. */
static int make(struct ptc_geometry *g, const Ptc__V1__Copies *c, struct ptc_error *err)
{
	const uint32_t world = g->allocation.world, n = (uint32_t)c->n_keepers;
	struct ptc_copy *copies = ptc_calloc(n, sizeof *copies);
	struct ptc_device *ranks = ptc_calloc((size_t)world + n, sizeof *ranks);
	int rc;

	g->snapshots = ptc_calloc(g->nnodes, sizeof *g->snapshots);
	if (!copies || !ranks || !g->snapshots) {
		ptc_free(copies);
		ptc_free(ranks);
		return ptc_nomem(err);
	}
	memcpy(ranks, g->allocation.ranks, world * sizeof *ranks);
	for (size_t i = 0; i < c->n_nodes; i++)
		g->snapshots[c->nodes[i]] = c->snapshots[i];
	for (uint32_t i = 0; i < n; i++) {
		copies[i] = (struct ptc_copy){ c->ranks[i], c->items[c->sets[i]].data };
		ranks[world + i] = (struct ptc_device){ c->nodes[c->keepers[i]], COPY_DEVICE + i };
	}
	g->copied_at = (struct ptc_allocation){ ranks, world + n };
	rc = ptc_layout_with_copies(g->layout, copies, n, &g->own_copied, err);
	ptc_free(copies);
	g->copied = g->own_copied;
	return rc;
}

static int ranks_by_node(struct ptc_geometry *g, struct ptc_error *err)
{
	const struct ptc_allocation *a = &g->copied_at;
	uint32_t *next;

	g->node_first = ptc_calloc(g->nnodes + 2, sizeof *g->node_first);
	g->node_ranks = ptc_calloc(a->world, sizeof *g->node_ranks);
	if (!g->node_first || !g->node_ranks)
		return ptc_nomem(err);
	next = g->node_first + 1; /* at the end next[n] is where node n + 1 begins */
	for (uint32_t r = 0; r < a->world; r++)
		next[a->ranks[r].node + 1]++;
	for (size_t n = 0; n < g->nnodes; n++)
		next[n + 1] += next[n];
	for (uint32_t r = 0; r < a->world; r++)
		g->node_ranks[next[a->ranks[r].node]++] = r;
	return 0;
}

int ptc_geometry_copies(struct ptc_geometry *g, const Ptc__V1__Generation *which, struct ptc_error *err)
{
	const Ptc__V1__Copies *c = which->copies;
	int rc = 0;

	g->copied = g->layout;
	g->copied_at = g->allocation;
	if (c && c->n_keepers)
		rc = check(g, c, err);
	if (!rc && c && c->n_keepers)
		rc = make(g, c, err);
	return rc ? rc : ranks_by_node(g, err);
}

void ptc_geometry_copies_done(struct ptc_geometry *g)
{
	if (g->copied_at.ranks != g->allocation.ranks)
		ptc_allocation_done(&g->copied_at);
	ptc_layout_free(g->own_copied);
	ptc_free(g->node_first);
	ptc_free(g->node_ranks);
	ptc_free(g->snapshots);
	g->node_first = g->node_ranks = NULL;
	g->snapshots = NULL;
	g->own_copied = NULL;
}
