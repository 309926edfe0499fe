/* SPDX-License-Identifier: Apache-2.0 */
/* How well an allocation keeps TP groups together on nodes and in racks. Happy path: the devices that nodes offer tell
 * on how few nodes a group can be; then each group's nodes and racks are counted. Time is ranks and nodes. Failure
 * mode: memory. */
#include "reshard/place/place.h"

#include "base/alloc.h"

/* The fewest nodes that have tp devices together: the roomiest ones. */
static int fewest_nodes(const struct ptc_place_opts *o, uint32_t tp, uint32_t *ret)
{
	uint32_t nodes_with[PTC_MAX_DEVICES_PER_NODE + 1] = { 0 }, have = 0, n = 0;
	uint32_t *devices = ptc_calloc(o->nnodes, sizeof *devices);

	if (!devices)
		return PTC_ENOMEM;
	for (size_t i = 0; i < o->ndevices; i++)
		devices[o->devices[i].node]++;
	for (uint32_t i = 0; i < o->nnodes; i++)
		nodes_with[devices[i]]++;
	for (uint32_t room = PTC_MAX_DEVICES_PER_NODE; room > 0 && have < tp; room--)
		for (uint32_t k = 0; k < nodes_with[room] && have < tp; k++) {
			have += room;
			n++;
		}
	ptc_free(devices);
	*ret = n;
	return 0;
}

/* The nodes of the TP group that begins with a rank; seen[node] is the last group that was there. */
static uint32_t group_nodes(const struct ptc_config *c, const struct ptc_allocation *a, uint32_t rank,
			    const uint32_t *racks, uint32_t *seen, uint32_t group, bool *ret_across)
{
	struct ptc_coords k = ptc_config_coords(c, rank);
	uint32_t first = a->ranks[rank].node, n = 0;

	for (; k.tp < c->tp; k.tp++) {
		uint32_t node = a->ranks[ptc_config_rank(c, &k)].node;

		*ret_across |= racks && racks[node] != racks[first];
		n += seen[node] != group;
		seen[node] = group;
	}
	return n;
}

int ptc_place_groups(const struct ptc_config *c, const struct ptc_allocation *a, const struct ptc_place_opts *o,
		     struct ptc_groups *ret_groups, struct ptc_error *err)
{
	uint32_t *seen = ptc_calloc(o->nnodes, sizeof *seen), fewest;
	struct ptc_groups g = { 0 };

	if (!seen || fewest_nodes(o, c->tp, &fewest)) {
		ptc_free(seen);
		return ptc_error_set(err, PTC_ENOMEM, "TP groups: out of memory");
	}
	for (uint32_t r = 0; r < a->world; r++) {
		bool across = false;

		if (ptc_config_coords(c, r).tp)
			continue;
		g.n++;
		g.split += group_nodes(c, a, r, o->racks, seen, g.n, &across) > fewest;
		g.across += across;
	}
	ptc_free(seen);
	*ret_groups = g;
	return 0;
}
