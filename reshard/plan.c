/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: what each node holds and needs is listed once (disjoint boxes
 * by item); what a need lacks is cut into wants, each wholly held by one or
 * more usable nodes. Wants with one source are forced; the others, largest
 * first, go to the source that has least to send so far. Large wants with a
 * choice are chopped before, so that replicas share them. Every choice breaks
 * ties by number, so the plan depends on its inputs only.
 * Failure modes: a byte no usable node has (PTC_ELOST naming the item and the
 * nodes that had it), contradictory inputs, memory; nothing is returned then. */
#include "reshard/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/digest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WANT_MAX_BYTES (32ll << 20) /* a larger want with several sources is shared between them */

/* The boxes of all sources, by item: entry i is holding `at` of node `node`. */
struct source {
	uint32_t node;
	uint32_t at;
};

/* A box some node lacks, cut so that at least one source holds all of it. */
struct want {
	uint32_t item, dst_node, dst_rank;
	uint32_t nsources; /* usable nodes that hold all of it */
	struct ptc_box box;
	int64_t bytes;
};

struct planner {
	const struct ptc_spec *spec;
	uint32_t nnodes;
	const bool *usable;
	struct ptc_holdings *have, *need; /* per node */
	size_t *first;                    /* item -> first entry of sources; nitems + 1 */
	struct source *sources;
	struct want *wants;
	size_t nwants, cap;
	struct ptc_plan *plan;
	struct ptc_error *err;
};

static int nomem(struct planner *p)
{
	return ptc_error_set(p->err, PTC_ENOMEM, "plan: out of memory");
}

static bool is_usable(const struct planner *p, uint32_t node)
{
	return !p->usable || p->usable[node];
}

static const struct ptc_holding *source_holding(const struct planner *p, size_t i)
{
	return &p->have[p->sources[i].node].v[p->sources[i].at];
}

/* Ranks sorted by node: *ret_ranks[ret_first[n] .. ret_first[n + 1]) are those of node n, ascending. */
static int group_ranks(const struct ptc_allocation *a, uint32_t nnodes, uint32_t **ret_ranks, uint32_t **ret_first)
{
	uint32_t *first = ptc_calloc((size_t)nnodes + 2, sizeof *first);
	uint32_t *ranks = ptc_calloc(a->world, sizeof *ranks);

	if (!first || !ranks) {
		ptc_free(first);
		ptc_free(ranks);
		return PTC_ENOMEM;
	}
	for (uint32_t r = 0; r < a->world; r++)
		first[a->ranks[r].node + 2]++;
	for (uint32_t n = 0; n < nnodes; n++)
		first[n + 2] += first[n + 1];
	for (uint32_t r = 0; r < a->world; r++)
		ranks[first[a->ranks[r].node + 1]++] = r;
	*ret_ranks = ranks;
	*ret_first = first;
	return 0;
}

static int list_nodes(struct planner *p, const struct ptc_layout *l, const struct ptc_allocation *a,
		      struct ptc_holdings **ret)
{
	uint32_t *ranks, *first;
	int rc = 0;

	*ret = ptc_calloc(p->nnodes, sizeof **ret);
	if (!*ret)
		return nomem(p);
	if (!l)
		return 0;
	if (group_ranks(a, p->nnodes, &ranks, &first))
		return nomem(p);
	for (uint32_t n = 0; n < p->nnodes && !rc; n++)
		if (first[n + 1] > first[n])
			rc = ptc_layout_holdings(l, ranks + first[n], first[n + 1] - first[n], &(*ret)[n], p->err);
	ptc_free(ranks);
	ptc_free(first);
	return rc;
}

static int index_sources(struct planner *p)
{
	size_t nitems = ptc_spec_items(p->spec);
	size_t *next;

	p->first = ptc_calloc(nitems + 2, sizeof *p->first);
	if (!p->first)
		return nomem(p);
	next = p->first + 1; /* shifted by one: filling moves next[item] up to first[item + 1] */
	for (uint32_t n = 0; n < p->nnodes; n++)
		for (size_t i = 0; i < p->have[n].n; i++)
			next[p->have[n].v[i].item + 1]++;
	for (size_t i = 0; i < nitems; i++)
		next[i + 1] += next[i];
	p->sources = ptc_calloc(next[nitems], sizeof *p->sources);
	if (!p->sources)
		return nomem(p);
	for (uint32_t n = 0; n < p->nnodes; n++)
		for (size_t i = 0; i < p->have[n].n; i++)
			p->sources[next[p->have[n].v[i].item]++] = (struct source){ n, (uint32_t)i };
	return 0;
}

static uint32_t count_sources(const struct planner *p, uint32_t item, const struct ptc_box *box)
{
	uint32_t n = 0;

	for (size_t i = p->first[item]; i < p->first[item + 1]; i++)
		n += is_usable(p, p->sources[i].node) && ptc_box_contains(&source_holding(p, i)->box, box);
	return n;
}

static int add_want(struct planner *p, const struct want *w)
{
	if (p->nwants == p->cap) {
		size_t cap = p->cap ? p->cap + p->cap / 2 : 64;
		struct want *v = ptc_reallocarray(p->wants, cap, sizeof *v);

		if (!v)
			return nomem(p);
		p->wants = v;
		p->cap = cap;
	}
	p->wants[p->nwants] = *w;
	p->wants[p->nwants++].bytes = ptc_box_volume(&w->box);
	return 0;
}

/* box lies in a source: counts how many hold it and shares it out when it is large. */
static int want_box(struct planner *p, const struct ptc_holding *need, uint32_t dst, const struct ptc_box *box)
{
	struct want w = { .item = need->item, .dst_node = dst, .dst_rank = need->rank, .box = *box };
	struct ptc_boxes parts = { 0 };
	int rc = 0;

	w.nsources = count_sources(p, w.item, box);
	if (w.nsources < 2 || ptc_box_volume(box) <= WANT_MAX_BYTES)
		return add_want(p, &w);
	if (ptc_box_chop(box, WANT_MAX_BYTES, &parts))
		rc = nomem(p);
	for (size_t i = 0; i < parts.n && !rc; i++) {
		w.box = parts.v[i];
		rc = add_want(p, &w);
	}
	ptc_boxes_done(&parts);
	return rc;
}

static int lost(struct planner *p, uint32_t item, uint32_t dst, const struct ptc_box *box)
{
	char name[PTC_ITEM_NAME_SIZE], nodes[128] = "";
	struct ptc_box common;
	uint32_t last = UINT32_MAX;
	size_t len = 0;

	for (size_t i = p->first[item]; i < p->first[item + 1]; i++) {
		uint32_t n = p->sources[i].node;

		if (n == last || !ptc_box_intersect(&source_holding(p, i)->box, box, &common))
			continue;
		last = n;
		if (len < sizeof nodes - 16)
			len += (size_t)snprintf(nodes + len, sizeof nodes - len, "%s%u", len ? ", " : "", n);
	}
	return ptc_error_set(p->err, PTC_ELOST,
			     "tensor \"%s\": %lld bytes that node %u needs are on no usable node; %s%s",
			     ptc_item_name(p->spec, item, name, sizeof name), (long long)ptc_box_volume(box), dst,
			     len ? "last on nodes " : "no node ever had them", nodes);
}

/* Cuts what is missing (left, disjoint; used up) along the sources' boxes into wants. */
static int cut_wants(struct planner *p, const struct ptc_holding *need, uint32_t dst, struct ptc_boxes *left)
{
	struct ptc_boxes next = { 0 }, swap;
	struct ptc_box common;
	int rc = 0;

	for (size_t i = p->first[need->item]; i < p->first[need->item + 1] && left->n && !rc; i++) {
		const struct ptc_box *have = &source_holding(p, i)->box;

		if (!is_usable(p, p->sources[i].node))
			continue;
		next.n = 0;
		for (size_t k = 0; k < left->n && !rc; k++) {
			if (ptc_box_intersect(&left->v[k], have, &common))
				rc = want_box(p, need, dst, &common);
			if (!rc && ptc_box_subtract(&left->v[k], have, &next))
				rc = nomem(p);
		}
		swap = *left;
		*left = next;
		next = swap;
	}
	if (!rc && left->n)
		rc = lost(p, need->item, dst, &left->v[0]);
	ptc_boxes_done(&next);
	return rc;
}

/* What need lacks of what its node has. */
static int find_missing(struct planner *p, const struct ptc_holding *need, uint32_t dst, struct ptc_boxes *ret)
{
	const struct ptc_holdings *h = &p->have[dst];
	struct ptc_boxes have = { 0 };
	size_t lo = 0, hi = 0;
	int rc = 0;

	if (is_usable(p, dst))
		ptc_holdings_item(h, need->item, &lo, &hi);
	if (hi == lo + 1) { /* the usual case, without a copy */
		rc = ptc_boxes_missing(&need->box, &h->v[lo].box, 1, ret);
	} else {
		for (size_t i = lo; i < hi && !rc; i++)
			rc = ptc_boxes_push(&have, &h->v[i].box);
		if (!rc)
			rc = ptc_boxes_missing(&need->box, have.v, have.n, ret);
		ptc_boxes_done(&have);
	}
	return rc ? nomem(p) : 0;
}

static int find_wants(struct planner *p, uint32_t dst)
{
	struct ptc_boxes left = { 0 };
	int rc = 0;

	for (size_t i = 0; i < p->need[dst].n && !rc; i++) {
		const struct ptc_holding *need = &p->need[dst].v[i];
		int64_t missing = 0;

		left.n = 0;
		rc = find_missing(p, need, dst, &left);
		for (size_t k = 0; k < left.n; k++)
			missing += ptc_box_volume(&left.v[k]);
		p->plan->in_place += ptc_box_volume(&need->box) - missing;
		p->plan->in_bytes[dst] += missing;
		p->plan->between_nodes += missing;
		if (!rc && left.n)
			rc = cut_wants(p, need, dst, &left);
	}
	ptc_boxes_done(&left);
	return rc;
}

static int compare_boxes(const struct ptc_box *a, const struct ptc_box *b)
{
	for (uint32_t d = 0; d < a->ndim; d++)
		if (a->off[d] != b->off[d])
			return a->off[d] < b->off[d] ? -1 : 1;
	return 0;
}

/* Forced ones first, then the largest. */
static int by_urgency(const void *pa, const void *pb)
{
	const struct want *a = pa, *b = pb;

	if ((a->nsources == 1) != (b->nsources == 1))
		return a->nsources == 1 ? -1 : 1;
	if (a->bytes != b->bytes)
		return a->bytes > b->bytes ? -1 : 1;
	if (a->item != b->item)
		return a->item < b->item ? -1 : 1;
	if (a->dst_node != b->dst_node)
		return a->dst_node < b->dst_node ? -1 : 1;
	return compare_boxes(&a->box, &b->box);
}

static int by_destination(const void *pa, const void *pb)
{
	const struct ptc_move *a = pa, *b = pb;

	if (a->dst_node != b->dst_node)
		return a->dst_node < b->dst_node ? -1 : 1;
	if (a->item != b->item)
		return a->item < b->item ? -1 : 1;
	return compare_boxes(&a->box, &b->box);
}

/* The usable source of w with least to send so far. */
static size_t choose_source(const struct planner *p, const struct want *w)
{
	size_t best = SIZE_MAX;

	for (size_t i = p->first[w->item]; i < p->first[w->item + 1]; i++) {
		uint32_t n = p->sources[i].node;

		if (!is_usable(p, n) || !ptc_box_contains(&source_holding(p, i)->box, &w->box))
			continue;
		if (best == SIZE_MAX || p->plan->out_bytes[n] < p->plan->out_bytes[p->sources[best].node])
			best = i;
	}
	return best;
}

static int choose_moves(struct planner *p)
{
	struct ptc_plan *plan = p->plan;

	if (p->nwants)
		qsort(p->wants, p->nwants, sizeof *p->wants, by_urgency);
	plan->moves = ptc_calloc(p->nwants, sizeof *plan->moves);
	if (!plan->moves)
		return nomem(p);
	for (size_t i = 0; i < p->nwants; i++) {
		const struct want *w = &p->wants[i];
		size_t s = choose_source(p, w);

		if (ptc_fails(s != SIZE_MAX))
			return ptc_error_set(p->err, PTC_EINTERNAL, "plan: a want without a source");
		plan->out_bytes[p->sources[s].node] += w->bytes;
		plan->moves[plan->nmoves++] = (struct ptc_move){
			.item = w->item,
			.src_node = p->sources[s].node,
			.dst_node = w->dst_node,
			.src_rank = source_holding(p, s)->rank,
			.dst_rank = w->dst_rank,
			.box = w->box,
		};
	}
	if (plan->nmoves)
		qsort(plan->moves, plan->nmoves, sizeof *plan->moves, by_destination);
	return 0;
}

/* Bytes of `box` that h has. */
static int64_t overlap(const struct ptc_holdings *h, uint32_t item, const struct ptc_box *box)
{
	struct ptc_box common;
	size_t lo, hi;
	int64_t sum = 0;

	ptc_holdings_item(h, item, &lo, &hi);
	for (size_t i = lo; i < hi; i++)
		if (ptc_box_intersect(&h->v[i].box, box, &common))
			sum += ptc_box_volume(&common);
	return sum;
}

struct slot {
	struct ptc_device device;
	uint32_t rank;
};

static int by_device(const void *pa, const void *pb)
{
	const struct slot *a = pa, *b = pb;

	if (a->device.node != b->device.node)
		return a->device.node < b->device.node ? -1 : 1;
	if (a->device.index != b->device.index)
		return a->device.index < b->device.index ? -1 : 1;
	return a->rank < b->rank ? -1 : a->rank > b->rank;
}

static bool same_device(const struct slot *a, const struct slot *b)
{
	return a->device.node == b->device.node && a->device.index == b->device.index;
}

static struct slot *sort_slots(const struct ptc_allocation *a)
{
	struct slot *v = ptc_calloc(a->world, sizeof *v);

	for (uint32_t r = 0; v && r < a->world; r++)
		v[r] = (struct slot){ a->ranks[r], r };
	if (v)
		qsort(v, a->world, sizeof *v, by_device);
	return v;
}

/* The holdings of the ranks of slots [*at, end of the device), and moves *at there. */
static int device_holdings(const struct ptc_layout *l, const struct slot *v, uint32_t world, uint32_t *at,
			   struct ptc_holdings *ret, struct ptc_error *err)
{
	uint32_t ranks[PTC_MAX_DEVICES_PER_NODE], n = 0, first = *at;

	while (*at < world && same_device(&v[*at], &v[first])) {
		if (n == PTC_ARRAY_LEN(ranks))
			return ptc_error_set(err, PTC_ELIMIT, "plan: more than %d ranks on one device",
					     PTC_MAX_DEVICES_PER_NODE);
		ranks[n++] = v[(*at)++].rank;
	}
	return ptc_layout_holdings(l, ranks, n, ret, err);
}

/* For each device: bytes of its new shards that its node had and it had not. */
static int count_within(struct planner *p, const struct ptc_layout *from, const struct slot *old, uint32_t nold,
			const struct ptc_layout *to, const struct slot *new, uint32_t nnew)
{
	uint32_t o = 0;

	for (uint32_t n = 0; n < nnew;) {
		struct ptc_holdings was = { 0 }, is = { 0 };
		const struct slot *dev = &new[n];
		struct slot key = { dev->device, 0 };
		int rc = device_holdings(to, new, nnew, &n, &is, p->err);

		while (o < nold && by_device(&old[o], &key) < 0)
			o++;
		if (!rc && o < nold && same_device(&old[o], dev))
			rc = device_holdings(from, old, nold, &o, &was, p->err);
		for (size_t i = 0; i < is.n && !rc && is_usable(p, dev->device.node); i++)
			p->plan->within_node += overlap(&p->have[dev->device.node], is.v[i].item, &is.v[i].box) -
						overlap(&was, is.v[i].item, &is.v[i].box);
		ptc_holdings_done(&was);
		ptc_holdings_done(&is);
		if (rc)
			return rc;
	}
	return 0;
}

static int check_allocation(const struct ptc_layout *l, const struct ptc_allocation *a, uint32_t nnodes,
			    struct ptc_error *err)
{
	if (a->world != ptc_layout_world(l))
		return ptc_error_set(err, PTC_EINVAL, "allocation of %u ranks for a layout of %u", a->world,
				     ptc_layout_world(l));
	for (uint32_t r = 0; r < a->world; r++)
		if (a->ranks[r].node >= nnodes)
			return ptc_error_set(err, PTC_EINVAL, "allocation: rank %u is on node %u of %u", r,
					     a->ranks[r].node, nnodes);
	return 0;
}

static int make_moves(struct planner *p, const struct ptc_layout *from, const struct ptc_allocation *from_alloc,
		      const struct ptc_layout *to, const struct ptc_allocation *to_alloc)
{
	struct slot *old, *new;
	int rc = index_sources(p);

	for (uint32_t n = 0; n < p->nnodes && !rc; n++)
		rc = find_wants(p, n);
	if (!rc)
		rc = choose_moves(p);
	if (rc)
		return rc;
	old = sort_slots(from_alloc);
	new = sort_slots(to_alloc);
	rc = old && new ? count_within(p, from, old, from_alloc->world, to, new, to_alloc->world) : nomem(p);
	ptc_free(old);
	ptc_free(new);
	return rc;
}

static int fill_plan(struct planner *p, const struct ptc_layout *from, const struct ptc_allocation *from_alloc,
		     const struct ptc_layout *to, const struct ptc_allocation *to_alloc)
{
	struct ptc_plan *plan = p->plan;
	int rc;

	plan->nnodes = p->nnodes;
	plan->bound_any = -1;
	plan->in_bytes = ptc_calloc(p->nnodes, sizeof *plan->in_bytes);
	plan->out_bytes = ptc_calloc(p->nnodes, sizeof *plan->out_bytes);
	if (!plan->in_bytes || !plan->out_bytes)
		return nomem(p);
	rc = list_nodes(p, from, from_alloc, &p->have);
	if (!rc)
		rc = list_nodes(p, to, to_alloc, &p->need);
	if (!rc && from)
		rc = make_moves(p, from, from_alloc, to, to_alloc);
	for (uint32_t n = 0; n < p->nnodes && !rc && !from; n++) {
		plan->in_bytes[n] = p->need[n].bytes;
		plan->between_nodes += p->need[n].bytes;
	}
	plan->bound_mapping = plan->between_nodes;
	return rc;
}

int ptc_plan_new(const struct ptc_spec *spec, const struct ptc_layout *from, const struct ptc_allocation *from_alloc,
		 const struct ptc_layout *to, const struct ptc_allocation *to_alloc, uint32_t nnodes,
		 const bool *usable, struct ptc_plan **ret_plan, struct ptc_error *err)
{
	struct planner p = { .spec = spec, .nnodes = nnodes, .usable = usable, .err = err };
	int rc = from ? check_allocation(from, from_alloc, nnodes, err) : 0;

	if (!rc)
		rc = check_allocation(to, to_alloc, nnodes, err);
	if (rc)
		return rc;
	p.plan = ptc_calloc(1, sizeof *p.plan);
	rc = p.plan ? fill_plan(&p, from, from_alloc, to, to_alloc) : nomem(&p);
	for (uint32_t n = 0; n < nnodes && p.have; n++)
		ptc_holdings_done(&p.have[n]);
	for (uint32_t n = 0; n < nnodes && p.need; n++)
		ptc_holdings_done(&p.need[n]);
	ptc_free(p.have);
	ptc_free(p.need);
	ptc_free(p.first);
	ptc_free(p.sources);
	ptc_free(p.wants);
	if (rc)
		ptc_plan_free(p.plan);
	else
		*ret_plan = p.plan;
	return rc;
}

struct ptc_plan *ptc_plan_free(struct ptc_plan *p)
{
	if (!p)
		return NULL;
	ptc_free(p->moves);
	ptc_free(p->in_bytes);
	ptc_free(p->out_bytes);
	ptc_free(p);
	return NULL;
}

/* Hash of the hashes of the moves, so that no memory is needed and no padding byte or byte order gets in. */
void ptc_plan_hash(const struct ptc_plan *p, char ret_hex[33])
{
	char text[33 + 24 * (5 + 2 * PTC_MAX_DIMS + 4)];
	int n;

	memset(ret_hex, '0', 32);
	ret_hex[32] = '\0';
	for (size_t i = 0; i < p->nmoves; i++) {
		const struct ptc_move *m = &p->moves[i];

		n = snprintf(text, sizeof text, "%s %u %u %u %u %u", ret_hex, m->item, m->src_node, m->dst_node,
			     m->src_rank, m->dst_rank);
		for (uint32_t d = 0; d < m->box.ndim; d++)
			n += snprintf(text + n, sizeof text - (size_t)n, " %lld+%lld", (long long)m->box.off[d],
				      (long long)m->box.ext[d]);
		ptc_content_hash(text, (size_t)n, ret_hex);
	}
	n = snprintf(text, sizeof text, "%s v1 %zu %lld %lld", ret_hex, p->nmoves, (long long)p->in_place,
		     (long long)p->between_nodes);
	ptc_content_hash(text, (size_t)n, ret_hex);
}
