/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: sets of ranks become devices. For each class (classes and atoms: change.h), the receivers and their
 * sources are decided once, for all items. If several sources are possible, each gets a share. Then every atom of every
 * item is walked, and each delivery becomes a move. Every choice breaks ties by number, so the plan depends on its
 * inputs only.
 *
 * Failure modes: a byte no usable node has (PTC_ELOST naming the item and the
 * nodes that had it), contradictory inputs, memory; nothing is returned then. */
#include "reshard/plan/plan.h"
#include "reshard/plan/deliver.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <stdlib.h>
#include <string.h>

#define WANT_MAX_BYTES (32ll << 20) /* a larger box with several sources is shared between them */

struct walker {
	struct ptc_deliver *d;
	const struct ptc_plan_opts *opts;
	struct ptc_plan *plan;
	struct ptc_boxes parts; /* of one atom, when it is large */
	struct ptc_error *err;
};

/* One delivery of one box, for each item of the group. */
static int emit(struct walker *w, const struct ptc_group *g, const struct ptc_delivery *y, uint32_t from_set,
		const struct ptc_box *box)
{
	const uint32_t *items = w->d->c->items + g->first;
	int64_t bytes = ptc_box_volume(box);
	struct ptc_move m = {
		.kind = y->kind,
		.dst_rank = y->dst,
		.dst_node = w->d->to->ranks[y->dst].node,
		.src_rank = y->src,
		.src_node = w->d->to->ranks[y->dst].node, /* but between nodes */
		.box = *box,
	};

	for (size_t i = 0; i < g->n; i++) {
		int rc;

		m.item = items[i];
		if (y->kind == PTC_MOVE_BETWEEN) {
			struct ptc_sender s;

			ptc_deliver_choose(w->d, from_set, bytes, &s);
			m.src_node = s.node;
			m.src_rank = s.rank;
			w->plan->out_bytes[s.node] += bytes;
		}
		rc = w->opts->fn ? w->opts->fn(w->opts->arg, &m) : 0;
		if (rc)
			return rc;
	}
	if (y->kind == PTC_MOVE_BETWEEN)
		w->plan->nbetween += g->n;
	else if (y->kind != PTC_MOVE_KEEP)
		w->plan->nwithin += g->n;
	return 0;
}

static int walk_atom(struct walker *w, const struct ptc_group *g, const struct ptc_box *box, uint32_t class)
{
	const struct ptc_deliver *d = w->d;
	uint32_t set = ptc_class_from(d->c, class);
	bool large = !g->derived && ptc_box_volume(box) > WANT_MAX_BYTES && ptc_deliver_choice(d, set);
	int rc = 0;

	w->parts.n = 0;
	if (large && ptc_box_chop(box, WANT_MAX_BYTES, &w->parts))
		return ptc_nomem(w->err);
	for (size_t i = d->first[class]; i < d->first[class + 1] && !rc; i++) {
		if (g->derived && (d->v[i].kind == PTC_MOVE_BETWEEN || d->v[i].kind == PTC_MOVE_FORWARD))
			continue;
		if (!large || d->v[i].kind != PTC_MOVE_BETWEEN) {
			rc = emit(w, g, &d->v[i], set, box);
			continue;
		}
		for (size_t k = 0; k < w->parts.n && !rc; k++)
			rc = emit(w, g, &d->v[i], set, &w->parts.v[k]);
	}
	return rc;
}

static int walk(struct walker *w)
{
	const struct ptc_change *c = w->d->c;
	int rc = 0;

	for (uint32_t i = 0; i < c->ngroups && !rc; i++) {
		const struct ptc_group *g = &c->groups[i];
		const struct ptc_atoms *a = &c->atoms[g->atoms];

		for (size_t k = 0; k < a->n && !rc; k++) {
			uint32_t class = g->classes[a->pair[k]];

			if (w->d->first[class] < w->d->first[class + 1])
				rc = walk_atom(w, g, &a->box[k], class);
		}
	}
	ptc_boxes_done(&w->parts);
	return rc;
}

static int check_allocation(const struct ptc_layout *l, const struct ptc_allocation *a, uint32_t nnodes,
			    struct ptc_error *err)
{
	if (a->world != ptc_layout_world(l))
		return ptc_error_set(err, PTC_EINVAL, "the allocation has %u ranks, but the layout has %u", a->world,
				     ptc_layout_world(l));
	for (uint32_t r = 0; r < a->world; r++)
		if (a->ranks[r].node >= nnodes)
			return ptc_error_set(err, PTC_EINVAL,
					     "the allocation puts rank %u on node %u, but there are %u nodes", r,
					     a->ranks[r].node, nnodes);
	return 0;
}

static int plan_init(uint32_t nnodes, struct ptc_plan **ret)
{
	struct ptc_plan *p = ptc_calloc(1, sizeof *p);

	if (!p)
		return PTC_ENOMEM;
	p->nnodes = nnodes;
	p->bound_any = -1;
	p->in_bytes = ptc_calloc(nnodes, sizeof *p->in_bytes);
	p->out_bytes = ptc_calloc(nnodes, sizeof *p->out_bytes);
	p->within_bytes = ptc_calloc(nnodes, sizeof *p->within_bytes);
	p->peak_bytes = ptc_calloc(nnodes, sizeof *p->peak_bytes);
	if (!p->in_bytes || !p->out_bytes || !p->within_bytes || !p->peak_bytes) {
		ptc_plan_free(p);
		return PTC_ENOMEM;
	}
	*ret = p;
	return 0;
}

int ptc_plan_stream(const struct ptc_change *c, const struct ptc_allocation *from_alloc,
		    const struct ptc_allocation *to_alloc, uint32_t nnodes, const bool *usable,
		    const struct ptc_plan_opts *opts, struct ptc_plan **ret_plan, struct ptc_error *err)
{
	struct ptc_deliver d = { .c = c, .from = from_alloc, .to = to_alloc, .nnodes = nnodes, .usable = usable };
	struct walker w = { .d = &d, .opts = opts, .err = err };
	int rc = c->from.layout ? check_allocation(c->from.layout, from_alloc, nnodes, err) : 0;

	if (!rc)
		rc = check_allocation(c->to.layout, to_alloc, nnodes, err);
	if (rc)
		return rc;
	if (plan_init(nnodes, &w.plan))
		return ptc_nomem(err);
	rc = ptc_deliver_init(&d, w.plan, opts->keep, err);
	if (!rc && c->from.layout)
		rc = walk(&w);
	ptc_deliver_done(&d);
	if (rc) {
		ptc_plan_free(w.plan);
		return rc;
	}
	w.plan->bound_mapping = w.plan->between_nodes;
	*ret_plan = w.plan;
	return 0;
}

struct collector {
	struct ptc_move *v;
	size_t n, cap;
	uint32_t into; /* moves into this node only; UINT32_MAX: into all */
	struct ptc_error *err;
};

static int collect(void *arg, const struct ptc_move *m)
{
	struct collector *c = arg;

	if (m->kind != PTC_MOVE_BETWEEN || (c->into != UINT32_MAX && c->into != m->dst_node))
		return 0;
	if (!PTC_ROOM(c->v, c->n + 1, c->cap))
		return ptc_nomem(c->err);
	c->v[c->n++] = *m;
	return 0;
}

PTC_COMPARE(by_destination, struct ptc_move,
	    PTC_THEN(PTC_ORDER(a->dst_node, b->dst_node),
		     PTC_THEN(PTC_ORDER(a->item, b->item), ptc_box_order_off(&a->box, &b->box))))

int ptc_plan_into(const struct ptc_layout *from, const struct ptc_allocation *from_alloc, const struct ptc_layout *to,
		  const struct ptc_allocation *to_alloc, uint32_t nnodes, const bool *usable, uint32_t node,
		  struct ptc_plan **ret_plan, struct ptc_error *err)
{
	struct collector moves = { .into = node, .err = err };
	struct ptc_plan_opts opts = { .fn = collect, .arg = &moves };
	struct ptc_change *c;
	struct ptc_plan *p;
	int rc = ptc_change_new(from, to, &c, err);

	if (rc)
		return rc;
	rc = ptc_plan_stream(c, from_alloc, to_alloc, nnodes, usable, &opts, &p, err);
	ptc_change_free(c);
	if (rc) {
		ptc_free(moves.v);
		return rc;
	}
	ptc_sort(moves.v, moves.n, sizeof *moves.v, by_destination);
	p->moves = moves.v;
	p->nmoves = moves.n;
	*ret_plan = p;
	return 0;
}

int ptc_plan_new(const struct ptc_spec *spec, const struct ptc_layout *from, const struct ptc_allocation *from_alloc,
		 const struct ptc_layout *to, const struct ptc_allocation *to_alloc, uint32_t nnodes,
		 const bool *usable, struct ptc_plan **ret_plan, struct ptc_error *err)
{
	return ptc_plan_into(from, from_alloc, to, to_alloc, nnodes, usable, UINT32_MAX, ret_plan, err);
}

struct ptc_plan *ptc_plan_free(struct ptc_plan *p)
{
	if (!p)
		return NULL;
	ptc_free(p->moves);
	ptc_free(p->in_bytes);
	ptc_free(p->out_bytes);
	ptc_free(p->within_bytes);
	ptc_free(p->peak_bytes);
	ptc_free(p);
	return NULL;
}

/* Nanoseconds for bytes at a rate. */
static int64_t duration(int64_t bytes, int64_t rate)
{
	return rate > 0 ? (int64_t)((double)bytes / (double)rate * 1e9) : 0;
}

int64_t ptc_plan_time_ns(const struct ptc_plan *p, const struct ptc_rates *rates)
{
	int64_t most = 0;

	for (uint32_t n = 0; n < p->nnodes; n++) {
		most = PTC_MAX(most, duration(p->in_bytes[n], rates->node_in));
		most = PTC_MAX(most, duration(p->out_bytes[n], rates->node_out));
		most = PTC_MAX(most, duration(p->within_bytes[n], rates->within));
	}
	return most;
}
