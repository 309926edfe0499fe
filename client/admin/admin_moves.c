/* SPDX-License-Identifier: Apache-2.0 */
/* A switch planned without a daemon: reshard/place puts the new ranks on devices, reshard/plan lists the moves, and a
 * program takes them one by one. Failure: what these rooms say, unchanged. */
#include "client/admin/offline_handles.h"

#include "base/alloc.h"
#include "base/check.h"
#include "client/admin/internal.h"
#include "reshard/place/place.h"

#include <string.h>

struct ptc_admin_moves {
	struct ptc_admin_layout *from, *to;
	struct ptc_allocation was, now;
	struct ptc_move *v;
	size_t n, cap, at; /* at: the next one */
	struct ptc_admin_totals totals;
};

/* A cluster as reshard/place wants it. */
struct offered {
	uint32_t nodes, per_node;
	struct ptc_device *devices;
	size_t ndevices;
	bool *usable;
	uint32_t *racks; /* NULL: no matter */
};

static void offered_done(struct offered *o)
{
	ptc_free(o->devices);
	ptc_free(o->usable);
	ptc_free(o->racks);
}

static int count_nodes(const struct ptc_admin_cluster *k, uint32_t need, uint32_t *ret_nodes, struct ptc_error *err)
{
	if (k->devices_per_node < 1 || k->devices_per_node > PTC_MAX_DEVICES_PER_NODE)
		return ptc_error_set(err, PTC_EINVAL, "devices_per_node is %u, it is 1 to %d", k->devices_per_node,
				     PTC_MAX_DEVICES_PER_NODE);
	*ret_nodes = k->nodes ? k->nodes : (need + k->devices_per_node - 1) / k->devices_per_node;
	if (*ret_nodes > PTC_MAX_NODES)
		return ptc_error_set(err, PTC_ELIMIT, "the cluster has %u nodes, at most %d are possible", *ret_nodes,
				     PTC_MAX_NODES);
	if (!k->nodes && (k->failed || k->drained || k->pinned))
		return ptc_error_set(err, PTC_EINVAL, "say how many nodes there are: arrays have one entry for each");
	return 0;
}

static int offer(const struct ptc_admin_cluster *k, uint32_t need, struct offered *o, struct ptc_error *err)
{
	int rc = count_nodes(k, need, &o->nodes, err);

	if (rc)
		return rc;
	o->per_node = k->devices_per_node;
	o->devices = ptc_calloc((size_t)o->nodes * o->per_node, sizeof *o->devices);
	o->usable = ptc_calloc(o->nodes, sizeof *o->usable);
	o->racks = k->nodes_per_rack ? ptc_calloc(o->nodes, sizeof *o->racks) : NULL;
	if (!o->devices || !o->usable || (k->nodes_per_rack && !o->racks))
		return ptc_nomem(err);
	for (uint32_t n = 0; n < o->nodes; n++) {
		o->usable[n] = !k->failed || !k->failed[n];
		if (o->racks)
			o->racks[n] = n / k->nodes_per_rack;
		for (uint32_t d = 0; o->usable[n] && !(k->drained && k->drained[n]) && d < o->per_node; d++)
			o->devices[o->ndevices++] = (struct ptc_device){ n, d };
	}
	return 0;
}

static int keep_move(void *arg, const struct ptc_move *move)
{
	struct ptc_admin_moves *m = arg;

	if (!PTC_ROOM(m->v, m->n + 1, m->cap))
		return PTC_ENOMEM;
	m->v[m->n++] = *move;
	return 0;
}

static int plan_change(struct ptc_admin_moves *m, const struct ptc_change *change, const struct ptc_place_opts *place,
		       struct ptc_error *err)
{
	struct ptc_plan_opts opts = { .fn = keep_move, .arg = m };
	struct ptc_plan *p = NULL;
	int64_t gap = 0;
	int rc = ptc_change_place(change, &m->was, place, &m->now, &gap, err);

	if (rc)
		return rc;
	rc = ptc_plan_stream(change, &m->was, &m->now, place->nnodes, place->usable, &opts, &p, err);
	if (rc == PTC_ENOMEM)
		ptc_error_set(err, rc, "out of memory for the list of moves");
	if (rc)
		return rc;
	m->totals = (struct ptc_admin_totals){ .size = sizeof m->totals,
					       .moves = m->n,
					       .between_nodes = (uint64_t)p->between_nodes,
					       .within_node = (uint64_t)p->within_node,
					       .kept = (uint64_t)p->kept,
					       .bound = (uint64_t)(p->between_nodes - gap),
					       .bound_exact = gap == 0,
					       .nodes = place->nnodes };
	ptc_plan_free(p);
	return 0;
}

static int plan(struct ptc_admin_moves *m, const struct ptc_admin_cluster *k, struct offered *o, struct ptc_error *err)
{
	const struct ptc_layout *from = m->from->layout, *to = m->to->layout;
	uint32_t world = ptc_layout_world(from);
	struct ptc_change *change = NULL;
	struct ptc_place_opts place;
	int rc = offer(k, PTC_MAX(world, ptc_layout_world(to)), o, err);

	if (!rc)
		rc = ptc_allocation_in_order(world, o->nodes, o->per_node, &m->was, err);
	if (!rc)
		rc = ptc_change_new(from, to, &change, err);
	if (rc)
		return rc;
	place = (struct ptc_place_opts){ .devices = o->devices,
					 .ndevices = o->ndevices,
					 .nnodes = o->nodes,
					 .usable = o->usable,
					 .pinned = k->pinned,
					 .racks = o->racks };
	rc = plan_change(m, change, &place, err);
	ptc_change_free(change);
	return rc;
}

int ptc_admin_moves_plan(struct ptc_admin_layout *from, struct ptc_admin_layout *to,
			 const struct ptc_admin_cluster *cluster, struct ptc_admin_moves **ret_moves,
			 struct ptc_error *err)
{
	struct ptc_admin_moves *m = NULL;
	struct ptc_admin_cluster k;
	struct offered o = { 0 };
	int rc = PTC_ADMIN_TAKE(cluster, cluster, &k, err);

	if (rc)
		return rc;
	m = ptc_calloc(1, sizeof *m);
	if (!m)
		return ptc_nomem(err);
	atomic_fetch_add(&from->users, 1);
	atomic_fetch_add(&to->users, 1);
	m->from = from;
	m->to = to;
	rc = plan(m, &k, &o, err);
	offered_done(&o);
	if (rc) {
		ptc_admin_moves_free(m);
		return rc;
	}
	*ret_moves = m;
	return 0;
}

struct ptc_admin_moves *ptc_admin_moves_free(struct ptc_admin_moves *m)
{
	if (!m)
		return NULL;
	ptc_allocation_done(&m->was);
	ptc_allocation_done(&m->now);
	ptc_admin_layout_free(m->from);
	ptc_admin_layout_free(m->to);
	ptc_free(m->v);
	ptc_free(m);
	return NULL;
}

static struct ptc_admin_place place_of(const struct ptc_allocation *a, uint32_t rank)
{
	return (struct ptc_admin_place){ a->ranks[rank].node, a->ranks[rank].index, rank };
}

static enum ptc_admin_move_kind kind_of(enum ptc_move_kind kind)
{
	switch (kind) {
	case PTC_MOVE_BETWEEN:
		return PTC_ADMIN_MOVE_BETWEEN;
	case PTC_MOVE_FORWARD:
		return PTC_ADMIN_MOVE_FORWARD;
	case PTC_MOVE_WITHIN:
	case PTC_MOVE_KEEP: /* not listed */
		break;
	}
	return PTC_ADMIN_MOVE_WITHIN;
}

int ptc_admin_moves_next(struct ptc_admin_moves *moves, struct ptc_admin_move *ret_move, struct ptc_error *err)
{
	struct ptc_admin_move out = { .size = sizeof out };
	const struct ptc_move *m;
	struct ptc_box box;
	int rc;

	if (moves->at == moves->n)
		return 0;
	m = &moves->v[moves->at];
	ptc_item_elements(ptc_layout_spec(moves->to->layout), m->item, &m->box, &box);
	out.item = m->item;
	out.kind = kind_of(m->kind);
	out.from = place_of(m->kind == PTC_MOVE_FORWARD ? &moves->now : &moves->was, m->src_rank);
	out.to = place_of(&moves->now, m->dst_rank);
	out.bytes = (uint64_t)ptc_box_volume(&m->box);
	out.ndim = box.ndim;
	memcpy(out.offset, box.off, box.ndim * sizeof(box.off[0]));
	memcpy(out.extent, box.ext, box.ndim * sizeof(box.ext[0]));
	rc = PTC_ADMIN_GIVE(move, ret_move, &out, err);
	if (rc)
		return rc;
	moves->at++;
	return 1;
}

void ptc_admin_moves_rewind(struct ptc_admin_moves *moves)
{
	moves->at = 0;
}

int ptc_admin_moves_totals(const struct ptc_admin_moves *moves, struct ptc_admin_totals *ret_totals,
			   struct ptc_error *err)
{
	return PTC_ADMIN_GIVE(totals, ret_totals, &moves->totals, err);
}

int ptc_admin_moves_place(const struct ptc_admin_moves *moves, uint32_t rank, struct ptc_admin_place *ret_place,
			  struct ptc_error *err)
{
	if (rank >= moves->now.world)
		return ptc_error_set(err, PTC_EINVAL, "there is no rank %u, the configuration has ranks 0 to %u", rank,
				     moves->now.world - 1);
	*ret_place = place_of(&moves->now, rank);
	return 0;
}
