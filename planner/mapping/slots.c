/* SPDX-License-Identifier: Apache-2.0 */
/* Slots, the links that they use, and the search for their nodes. If there are few slots, the search is depth first
 * with a bound; otherwise it begins at several starts, and swaps slots or moves them to free nodes. */
#include "planner/mapping/slots.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAME      1e-9
#define MEMO      64
#define PAIRS     (1u << 22) /* of slots that a local search looks at: a tenth of a second */
#define LEAST     256        /* assignments, whatever that takes */
#define ALL_PAIRS 64         /* of experts: groups beyond are taken for rings */

/* ---- who sends to whom ---- */

typedef void (*pair_fn)(void *arg, enum ptc_link_class class, uint32_t a, uint32_t b);

/* Rings of `size` ranks that lie `stride` apart, in groups that follow each other. */
static void each_ring(uint32_t world, enum ptc_link_class class, uint32_t size, uint32_t stride, pair_fn fn, void *arg)
{
	for (uint32_t r = 0; r < world && size > 1; r++) {
		uint32_t at = r / stride % size;

		fn(arg, class, r, at + 1 < size ? r + stride : r - (size - 1) * stride);
	}
}

static void each_pair(uint32_t world, enum ptc_link_class class, uint32_t size, uint32_t stride, pair_fn fn, void *arg)
{
	if (size > ALL_PAIRS) {
		each_ring(world, class, size, stride, fn, arg);
		return;
	}
	for (uint32_t r = 0; r < world && size > 1; r++)
		for (uint32_t at = r / stride % size, k = at + 1; k < size; k++)
			fn(arg, class, r, r + (k - at) * stride);
}

static void each_link(const struct ptc_cand *c, pair_fn fn, void *arg)
{
	uint32_t world = ptc_cand_devices(c), stage = c->tp * c->cp * c->dp, experts = c->etp * c->ep;

	each_ring(world, PTC_LINK_TP, c->tp, 1, fn, arg);
	each_ring(world, PTC_LINK_CP, c->cp, c->tp, fn, arg);
	each_pair(world, PTC_LINK_EP, c->ep, c->etp, fn, arg);
	each_ring(world, PTC_LINK_DP, c->cp * c->dp, c->tp, fn, arg);
	if (experts > 1)
		each_ring(world, PTC_LINK_DP, stage / experts, experts, fn, arg);
	for (uint32_t r = 0; r + stage < world; r++)
		fn(arg, PTC_LINK_PP, r, r + stage);
}

struct rates {
	const uint32_t *node;
	uint32_t nnodes;
	const double *bytes_s;
	double *ret;
};

static void slower(double *at, double bytes_s)
{
	if (*at <= 0 || bytes_s < *at)
		*at = bytes_s;
}

static void rate_pair(void *arg, enum ptc_link_class class, uint32_t a, uint32_t b)
{
	struct rates *r = arg;

	if (r->node[a] != r->node[b])
		slower(&r->ret[class], r->bytes_s[(size_t)r->node[a] * r->nnodes + r->node[b]]);
}

void ptc_nodes_rates(const struct ptc_cand *c, const uint32_t *node, uint32_t nnodes, const double *bytes_s,
		     double ret[PTC_LINK_CLASSES])
{
	struct rates r = { node, nnodes, bytes_s, ret };

	memset(ret, 0, PTC_LINK_CLASSES * sizeof *ret);
	each_link(c, rate_pair, &r);
}

/* ---- slots ---- */

static void link_pair(void *arg, enum ptc_link_class class, uint32_t a, uint32_t b)
{
	struct ptc_slots *s = arg;
	uint32_t x = s->slot[a], y = s->slot[b];

	if (x != y)
		s->linked[class][(size_t)x * s->n + y] = s->linked[class][(size_t)y * s->n + x] = true;
}

/* 0 or 1: the first or the second kind of a placement. */
static unsigned side_of(const struct ptc_cand *c, const struct ptc_on_kinds *on, uint32_t rank)
{
	uint32_t at = on->by_data ? rank / (c->tp * c->cp) % c->dp : rank / (c->tp * c->cp * c->dp);

	return on->first && at >= on->first;
}

/* Ranks of the one side fill slots, then those of the other. */
static int fill(const struct ptc_cand *c, const struct ptc_on_kinds *on, uint32_t per_node, struct ptc_slots *s)
{
	for (unsigned side = 0; side < 2; side++) {
		uint32_t room = 0;

		for (uint32_t r = 0; r < s->world; r++) {
			if (side_of(c, on, r) != side)
				continue;
			if (!room) {
				if (s->n == PTC_SLOTS_MAX)
					return PTC_ELIMIT;
				s->kind[s->n] = on->kind[side];
				s->size[s->n++] = 0;
				room = per_node;
			}
			room--;
			s->slot[r] = s->n - 1;
			s->size[s->n - 1]++;
		}
	}
	return 0;
}

int ptc_slots_new(const struct ptc_cand *c, const struct ptc_on_kinds *place, uint32_t per_node, struct ptc_slots *ret,
		  struct ptc_error *err)
{
	struct ptc_slots s = { .world = ptc_cand_devices(c) };
	int rc = PTC_ENOMEM;

	s.slot = ptc_calloc(s.world, sizeof *s.slot);
	s.size = ptc_calloc(PTC_SLOTS_MAX, sizeof *s.size);
	s.kind = ptc_calloc(PTC_SLOTS_MAX, sizeof *s.kind);
	if (s.slot && s.size && s.kind)
		rc = fill(c, place, per_node, &s);
	for (int k = 0; k < PTC_LINK_CLASSES && rc == 0; k++)
		if (!(s.linked[k] = ptc_calloc((size_t)s.n * s.n, sizeof *s.linked[k])))
			rc = PTC_ENOMEM;
	if (rc) {
		ptc_slots_done(&s);
		return ptc_error_set(err, rc, rc == PTC_ELIMIT ? "the ranks need more than %d nodes" : "out of memory",
				     PTC_SLOTS_MAX);
	}
	each_link(c, link_pair, &s);
	*ret = s;
	return 0;
}

void ptc_slots_done(struct ptc_slots *s)
{
	ptc_free(s->slot);
	ptc_free(s->size);
	ptc_free(s->kind);
	for (int k = 0; k < PTC_LINK_CLASSES; k++)
		ptc_free(s->linked[k]);
	memset(s, 0, sizeof *s);
}

/* ---- what an assignment is worth ---- */

struct search {
	const struct ptc_nodes_ask *a;
	const struct ptc_slots *s;
	uint32_t *node; /* of each slot; PTC_SLOT_NONE: none yet */
	uint32_t *best; /* as node, of the best */
	bool *taken;    /* of each node */
	double worth;   /* of best; < 0: there is none */
	struct {
		double bytes_s[PTC_LINK_CLASSES], step_s;
	} memo[MEMO];
	unsigned nmemo;
	uint64_t left; /* assignments to be looked at */
};

static bool same_rates(const double *a, const double *b)
{
	for (unsigned i = 0; i < PTC_LINK_CLASSES; i++)
		if (a[i] < b[i] || a[i] > b[i])
			return false;
	return true;
}

static double step_of(struct search *x, const double bytes_s[PTC_LINK_CLASSES])
{
	unsigned known = PTC_MIN(x->nmemo, (unsigned)MEMO);
	double step;

	for (unsigned i = 0; i < known; i++)
		if (same_rates(x->memo[i].bytes_s, bytes_s))
			return x->memo[i].step_s;
	step = x->a->step_s(x->a->arg, bytes_s);
	memcpy(x->memo[x->nmemo % MEMO].bytes_s, bytes_s, sizeof x->memo[0].bytes_s);
	x->memo[x->nmemo++ % MEMO].step_s = step;
	return step;
}

static double worth_of(struct search *x, const double bytes_s[PTC_LINK_CLASSES], double most_bytes)
{
	const struct ptc_nodes_ask *a = x->a;
	double moving = most_bytes > 0 ? most_bytes / a->lacks_bytes_s : 0;

	return PTC_MAX(0.0, a->horizon_s - a->pause_s - moving) / step_of(x, bytes_s);
}

static bool may(const struct search *x, uint32_t slot, uint32_t node)
{
	const struct ptc_nodes_ask *a = x->a;

	return a->devices[node] >= x->s->size[slot] && (!a->kind || a->kind[node] == x->s->kind[slot]);
}

static double lacks(const struct search *x, uint32_t slot, uint32_t node)
{
	return x->a->lacks ? x->a->lacks[(size_t)slot * x->a->nnodes + node] : 0;
}

/* The links of a slot with those before it (all: with all others), under x->node. */
static void add_links(const struct search *x, uint32_t slot, uint32_t others, double bytes_s[PTC_LINK_CLASSES])
{
	for (int k = 0; k < PTC_LINK_CLASSES; k++)
		for (uint32_t o = 0; o < others; o++)
			if (o != slot && x->s->linked[k][(size_t)slot * x->s->n + o])
				slower(&bytes_s[k], x->a->bytes_s[(size_t)x->node[slot] * x->a->nnodes + x->node[o]]);
}

static double whole(struct search *x, double ret_bytes_s[PTC_LINK_CLASSES], double *ret_most)
{
	memset(ret_bytes_s, 0, PTC_LINK_CLASSES * sizeof *ret_bytes_s);
	*ret_most = 0;
	for (uint32_t s = 0; s < x->s->n; s++) {
		*ret_most = PTC_MAX(*ret_most, lacks(x, s, x->node[s]));
		add_links(x, s, s, ret_bytes_s);
	}
	return worth_of(x, ret_bytes_s, *ret_most);
}

/* ---- few slots: all ways, but for those that a bound cuts off ---- */

static void deeper(struct search *x, uint32_t slot, const double bytes_s[PTC_LINK_CLASSES], double most)
{
	double worth = worth_of(x, bytes_s, most);

	if (x->worth >= 0 && worth <= x->worth * (1 + SAME)) /* more links and more bytes make it no better */
		return;
	if (slot == x->s->n) {
		x->worth = worth;
		memcpy(x->best, x->node, x->s->n * sizeof *x->best);
		return;
	}
	for (uint32_t n = 0; n < x->a->nnodes; n++) {
		double with[PTC_LINK_CLASSES];

		if (x->taken[n] || !may(x, slot, n))
			continue;
		memcpy(with, bytes_s, sizeof with);
		x->taken[n] = true;
		x->node[slot] = n;
		add_links(x, slot, slot, with);
		deeper(x, slot + 1, with, PTC_MAX(most, lacks(x, slot, n)));
		x->taken[n] = false;
	}
}

/* ---- many ---- */

static void offer(struct search *x)
{
	double bytes_s[PTC_LINK_CLASSES], most, worth = whole(x, bytes_s, &most);

	if (x->worth >= 0 && worth <= x->worth * (1 + SAME))
		return;
	x->worth = worth;
	memcpy(x->best, x->node, x->s->n * sizeof *x->best);
}

/* Each slot in turn to the free node that `better` prefers. False: one fits nowhere. */
static bool greedy(struct search *x, double (*cost)(const struct search *x, uint32_t slot, uint32_t node))
{
	memset(x->taken, 0, x->a->nnodes * sizeof *x->taken);
	for (uint32_t s = 0; s < x->s->n; s++) {
		uint32_t best = PTC_SLOT_NONE;
		double least = INFINITY;

		for (uint32_t n = 0; n < x->a->nnodes; n++) {
			double c;

			if (x->taken[n] || !may(x, s, n) || (c = cost(x, s, n)) >= least)
				continue;
			least = c;
			best = n;
		}
		if (best == PTC_SLOT_NONE)
			return false;
		x->node[s] = best;
		x->taken[best] = true;
	}
	return true;
}

static double by_bytes(const struct search *x, uint32_t slot, uint32_t node)
{
	return lacks(x, slot, node);
}

static double in_order(const struct search *x, uint32_t slot, uint32_t node)
{
	return node;
}

/* The slowest link to the slots that are placed: the slower, the worse. */
static double by_links(const struct search *x, uint32_t slot, uint32_t node)
{
	double least = INFINITY;

	for (uint32_t s = 0; s < slot; s++)
		for (int k = 0; k < PTC_LINK_CLASSES; k++)
			if (x->s->linked[k][(size_t)slot * x->s->n + s])
				least = PTC_MIN(least, x->a->bytes_s[(size_t)node * x->a->nnodes + x->node[s]]);
	return isinf(least) ? 0 : -least;
}

static bool try_node(struct search *x, uint32_t slot, uint32_t node)
{
	uint32_t was = x->node[slot], other = PTC_SLOT_NONE;
	double before = x->worth;

	for (uint32_t s = 0; s < x->s->n; s++)
		if (x->node[s] == node)
			other = s;
	if (node == was || !may(x, slot, node) || (other != PTC_SLOT_NONE && !may(x, other, was)) || !x->left)
		return false;
	x->left--;
	x->node[slot] = node;
	if (other != PTC_SLOT_NONE)
		x->node[other] = was;
	offer(x);
	if (x->worth > before)
		return true;
	x->node[slot] = was;
	if (other != PTC_SLOT_NONE)
		x->node[other] = node;
	return false;
}

static void improve(struct search *x)
{
	if (x->worth < 0)
		return;
	memcpy(x->node, x->best, x->s->n * sizeof *x->node);
	for (bool again = true; again && x->left;) {
		again = false;
		for (uint32_t s = 0; s < x->s->n; s++)
			for (uint32_t n = 0; n < x->a->nnodes; n++)
				again |= try_node(x, s, n);
	}
}

/* ---- the bound ---- */

PTC_COMPARE(descending, double, PTC_ORDER(*b, *a))

/* A class that uses k links cannot have all of them faster than the k-th fastest; a slot gets no less than the node
 * that lacks the least for it. */
static double bound(struct search *x)
{
	uint32_t n = x->a->nnodes;
	size_t k = 0;
	double *sorted = ptc_calloc((size_t)n * n + 1, sizeof *sorted), bytes_s[PTC_LINK_CLASSES] = { 0 }, most = 0;
	double worth;

	if (!sorted)
		return INFINITY;
	for (uint32_t a = 0; a < n; a++)
		for (uint32_t b = a + 1; b < n; b++)
			if (x->a->devices[a] && x->a->devices[b])
				sorted[k++] = x->a->bytes_s[(size_t)a * n + b];
	qsort(sorted, k, sizeof *sorted, descending);
	for (int c = 0; c < PTC_LINK_CLASSES; c++) {
		size_t used = 0;

		for (uint32_t a = 0; a < x->s->n; a++)
			for (uint32_t b = a + 1; b < x->s->n; b++)
				used += x->s->linked[c][(size_t)a * x->s->n + b];
		if (used && used <= k)
			bytes_s[c] = sorted[used - 1];
	}
	for (uint32_t s = 0; s < x->s->n; s++) {
		double least = INFINITY;

		for (uint32_t i = 0; i < n; i++)
			if (may(x, s, i))
				least = PTC_MIN(least, lacks(x, s, i));
		most = PTC_MAX(most, isinf(least) ? 0 : least);
	}
	worth = worth_of(x, bytes_s, most);
	ptc_free(sorted);
	return worth;
}

static void run(struct search *x, double *ret_gap)
{
	static const double none[PTC_LINK_CLASSES];
	double (*const starts[])(const struct search *, uint32_t, uint32_t) = { in_order, by_bytes, by_links };
	uint32_t usable = 0;

	for (uint32_t i = 0; i < x->a->nnodes; i++)
		usable += x->a->devices[i] > 0;
	for (size_t i = 0; i < PTC_ARRAY_LEN(starts); i++)
		if (greedy(x, starts[i]))
			offer(x);
	*ret_gap = 0;
	if (x->s->n <= PTC_MAPPING_EXACT && usable <= PTC_MAPPING_EXACT) {
		memset(x->taken, 0, x->a->nnodes * sizeof *x->taken);
		deeper(x, 0, none, 0);
		return;
	}
	improve(x);
	if (x->worth > 0)
		*ret_gap = PTC_MAX(0.0, bound(x) / x->worth - 1);
}

int ptc_nodes_find(const struct ptc_nodes_ask *ask, uint32_t *node, struct ptc_nodes *ret, struct ptc_error *err)
{
	struct search x = { .a = ask, .s = ask->slots, .worth = -1, .left = LEAST };
	double most, gap = 0;
	int rc = 0;

	x.left = PTC_MAX(x.left, (uint64_t)PAIRS / PTC_MAX(1u, ask->slots->n * ask->slots->n));
	x.node = ptc_calloc(ask->slots->n, sizeof *x.node);
	x.best = ptc_calloc(ask->slots->n, sizeof *x.best);
	x.taken = ptc_calloc(ask->nnodes + 1, sizeof *x.taken);
	if (!x.node || !x.best || !x.taken) {
		rc = ptc_nomem(err);
		goto done;
	}
	run(&x, &gap);
	if (x.worth < 0) {
		rc = ptc_error_set(err, PTC_ENODEVICES, "%u sets of ranks do not fit on these nodes", ask->slots->n);
		goto done;
	}
	memcpy(x.node, x.best, ask->slots->n * sizeof *x.node);
	*ret = (struct ptc_nodes){ .gap = gap };
	whole(&x, ret->bytes_s, &most);
	ret->step_s = step_of(&x, ret->bytes_s);
	ret->moving_s = most > 0 ? most / ask->lacks_bytes_s : 0;
	memcpy(node, x.best, ask->slots->n * sizeof *node);
done:
	ptc_free(x.node);
	ptc_free(x.best);
	ptc_free(x.taken);
	return rc;
}
