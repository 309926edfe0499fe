/* SPDX-License-Identifier: Apache-2.0 */
/* Who sends which bytes to whom. A class is all bytes that the same ranks need and the same ranks have (change.h).
 *
 * Happy path: for each class, the devices that need it and those that have it are walked side by side, node by node.
 * Bytes that the same set of ranks has may come from any of its nodes. To make the load of the busiest sender small,
 * the bytes of each set in turn are divided anew over the nodes of the set: nodes with less load get more. This is
 * repeated at most BALANCE_ROUNDS times, and ends earlier if the busiest node's load falls no more.
 *
 * Failure modes: a class that no usable node has (PTC_ELOST), memory. */
#include "reshard/plan/deliver.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/search.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BALANCE_ROUNDS 16

/* ---- slots ---- */

struct slot {
	struct ptc_device device;
	uint32_t rank;
};

PTC_BY3(by_device, struct slot, device.node, device.index, rank)

PTC_BY_VALUE(by_number, uint32_t)

/* Ranks in the order of their devices, and each one's place in it. */
static int order_ranks(const struct ptc_allocation *a, uint32_t **ret_ranks, uint32_t **ret_place)
{
	struct slot *v = ptc_calloc(a->world, sizeof *v);
	uint32_t *ranks = ptc_calloc(a->world, sizeof *ranks), *place = ptc_calloc(a->world, sizeof *place);

	if (!v || !ranks || !place) {
		ptc_free(v);
		ptc_free(ranks);
		ptc_free(place);
		return PTC_ENOMEM;
	}
	for (uint32_t r = 0; r < a->world; r++)
		v[r] = (struct slot){ a->ranks[r], r };
	qsort(v, a->world, sizeof *v, by_device);
	for (uint32_t i = 0; i < a->world; i++) {
		ranks[i] = v[i].rank;
		place[v[i].rank] = i;
	}
	ptc_free(v);
	*ret_ranks = ranks;
	*ret_place = place;
	return 0;
}

/* usable NULL: all. */
static int slots_init(struct ptc_slots *s, const struct ptc_lists *sets, const struct ptc_allocation *a,
		      const bool *usable)
{
	uint32_t *ranks, *place;
	size_t at = 0;

	s->first = ptc_calloc((size_t)sets->n + 1, sizeof *s->first);
	s->ranks = ptc_calloc(sets->n ? sets->first[sets->n] : 0, sizeof *s->ranks);
	if (!s->first || !s->ranks)
		return PTC_ENOMEM;
	if (!a)
		return 0;
	if (order_ranks(a, &ranks, &place))
		return PTC_ENOMEM;
	for (uint32_t i = 0; i < sets->n; i++) {
		size_t n, mark = at;
		const uint32_t *v = ptc_lists_at(sets, i, &n);
		bool sorted = true;

		for (size_t k = 0; k < n; k++) {
			if (usable && !usable[a->ranks[v[k]].node])
				continue;
			sorted = sorted && (at == mark || s->ranks[at - 1] < place[v[k]]);
			s->ranks[at++] = place[v[k]];
		}
		if (!sorted)
			qsort(s->ranks + mark, at - mark, sizeof *s->ranks, by_number);
		for (size_t k = mark; k < at; k++)
			s->ranks[k] = ranks[s->ranks[k]];
		s->first[i + 1] = at;
	}
	ptc_free(ranks);
	ptc_free(place);
	return 0;
}

/* ---- who gets a class from whom ---- */

struct resolver {
	struct ptc_deliver *d;
	struct ptc_plan *plan;
	bool keep;
	uint32_t class;
	int64_t bytes, derived; /* derived: of the class, and sent to no node */
	uint32_t dealt;         /* devices of a node that send within it take turns */
};

static int deliver(struct resolver *r, enum ptc_move_kind kind, uint32_t dst, uint32_t src)
{
	struct ptc_deliver *d = r->d;

	if (kind == PTC_MOVE_KEEP && !r->keep)
		return 0;
	if (!PTC_ROOM(d->v, d->n + 1, d->cap))
		return PTC_ENOMEM;
	d->v[d->n++] = (struct ptc_delivery){ kind, dst, src };
	return 0;
}

static bool same_device(const struct ptc_device *a, const struct ptc_device *b)
{
	return a->node == b->node && a->index == b->index;
}

/* Ranks need[0..n) of one node, of whose ranks have[0..nhave) have the class. */
static int in_place(struct resolver *r, const uint32_t *need, size_t n, const uint32_t *have, size_t nhave)
{
	const struct ptc_device *to = r->d->to->ranks, *from = r->d->from->ranks;
	uint32_t node = to[need[0]].node;
	int64_t bytes = r->bytes + r->derived;
	size_t k = 0;
	int rc = 0;

	ptc_require(nhave);
	r->plan->in_place += bytes;
	for (size_t i = 0; i < n && !rc; i++) {
		if (i && same_device(&to[need[i]], &to[need[i - 1]])) {
			rc = deliver(r, PTC_MOVE_KEEP, need[i], need[i - 1]);
			continue;
		}
		while (k < nhave && from[have[k]].index < to[need[i]].index)
			k++;
		if (k < nhave && from[have[k]].index == to[need[i]].index) {
			r->plan->kept += bytes;
			rc = deliver(r, PTC_MOVE_KEEP, need[i], have[k]);
		} else {
			r->plan->within_node += bytes;
			r->plan->within_bytes[node] += bytes;
			rc = deliver(r, PTC_MOVE_WITHIN, need[i], have[r->dealt++ % nhave]);
		}
	}
	return rc;
}

/* Nobody on their node has it: one of them gets it, the others from there. What is derived each makes for itself. */
static int brought(struct resolver *r, const uint32_t *need, size_t n)
{
	const struct ptc_device *to = r->d->to->ranks;
	uint32_t lowest = need[0], node = to[need[0]].node;
	int rc;

	for (size_t i = 1; i < n; i++)
		lowest = PTC_MIN(lowest, need[i]);
	r->plan->in_bytes[node] += r->bytes;
	r->plan->between_nodes += r->bytes;
	r->plan->derived += r->derived;
	r->plan->peak_bytes[node] += r->derived;
	rc = deliver(r, PTC_MOVE_BETWEEN, lowest, 0);
	for (size_t i = 0; i < n && !rc; i++) {
		if (need[i] == lowest)
			continue;
		if (same_device(&to[need[i]], &to[lowest]) || (i && same_device(&to[need[i]], &to[need[i - 1]]))) {
			rc = deliver(r, PTC_MOVE_KEEP, need[i], lowest);
			continue;
		}
		r->plan->within_node += r->bytes;
		r->plan->within_bytes[node] += r->bytes;
		rc = deliver(r, PTC_MOVE_FORWARD, need[i], lowest);
	}
	return rc;
}

/* Slots of one node: *at moves past them. */
static size_t same_node(const uint32_t *ranks, size_t n, size_t at, const struct ptc_device *v)
{
	size_t end = at;

	while (end < n && v[ranks[end]].node == v[ranks[at]].node)
		end++;
	return end;
}

/* *ret_lost: a node needs it that has it not, and nobody can send it. */
static int resolve(struct resolver *r, bool *ret_lost)
{
	struct ptc_deliver *d = r->d;
	uint32_t to = ptc_class_to(d->c, r->class), from = ptc_class_from(d->c, r->class);
	const uint32_t *need = d->need.ranks + d->need.first[to], *have = NULL;
	size_t n = d->need.first[to + 1] - d->need.first[to], nhave = 0, h = 0;
	int rc = 0;

	if (from != PTC_NOBODY && d->from) {
		have = d->have.ranks + d->have.first[from];
		nhave = d->have.first[from + 1] - d->have.first[from];
	}
	if (n && !nhave && d->from && r->bytes) {
		*ret_lost = true;
		return 0;
	}
	for (size_t i = 0, end; i < n && !rc; i = end) {
		uint32_t node = d->to->ranks[need[i]].node;

		end = same_node(need, n, i, d->to->ranks);
		while (h < nhave && d->from->ranks[have[h]].node < node)
			h++;
		if (h < nhave && d->from->ranks[have[h]].node == node) {
			rc = in_place(r, need + i, end - i, have + h, same_node(have, nhave, h, d->from->ranks) - h);
			continue;
		}
		rc = brought(r, need + i, end - i);
		if (nhave)
			d->asked[from] += r->bytes;
	}
	return rc;
}

/* ---- what is lost ---- */

static size_t name_nodes(const struct ptc_deliver *d, uint32_t set, char *text, size_t size)
{
	uint32_t nodes[8], n = 0;
	size_t len = 0, count;
	const uint32_t *ranks = set == PTC_NOBODY ? NULL : ptc_lists_at(&d->c->from.sets, set, &count);

	for (size_t i = 0; ranks && i < count && n < PTC_ARRAY_LEN(nodes); i++) {
		uint32_t node = d->from->ranks[ranks[i]].node, k = 0;

		while (k < n && nodes[k] != node)
			k++;
		if (k == n)
			nodes[n++] = node;
	}
	qsort(nodes, n, sizeof *nodes, by_number);
	for (uint32_t i = 0; i < n; i++)
		len += (size_t)snprintf(text + len, size - len, "%s%u", len ? ", " : "", nodes[i]);
	return len;
}

/* The first item of a class that is lost. */
static int lost(const struct ptc_deliver *d, const bool *classes, struct ptc_error *err)
{
	const struct ptc_change *c = d->c;
	char name[PTC_ITEM_NAME_SIZE], nodes[128] = "";

	for (size_t item = 0; item < c->to.nitems; item++) {
		bool grouped = c->item_group[item] != PTC_NOBODY;
		const struct ptc_group *g = grouped ? &c->groups[c->item_group[item]] : NULL;
		const struct ptc_atoms *a = grouped ? &c->atoms[g->atoms] : NULL;

		for (uint32_t i = 0; a && !g->derived && i < a->pairs.n; i++) {
			uint32_t class = g->classes[i];
			size_t len;

			if (!classes[class] || !a->pair_bytes[i])
				continue;
			len = name_nodes(d, ptc_class_from(c, class), nodes, sizeof nodes);
			return ptc_error_set(err, PTC_ELOST,
					     "tensor \"%s\": %lld bytes that node %u needs are on no usable node; %s%s",
					     ptc_item_name(c->spec, item, name, sizeof name),
					     (long long)a->pair_bytes[i],
					     d->to->ranks[d->need.ranks[d->need.first[ptc_class_to(c, class)]]].node,
					     len ? "last on nodes " : "no node ever had them", nodes);
		}
	}
	return ptc_error_set(err, PTC_EINTERNAL, "plan: bytes are lost, but no item has them");
}

static int resolve_all(struct resolver *r, struct ptc_error *err)
{
	struct ptc_deliver *d = r->d;
	const struct ptc_change *c = d->c;
	bool *gone = ptc_calloc(c->classes.n, sizeof *gone), any = false;
	int rc = gone ? 0 : ptc_nomem(err);

	for (uint32_t i = 0; i < c->classes.n && !rc; i++) {
		r->class = i;
		r->bytes = c->bytes[i];
		r->derived = c->derived_bytes ? c->derived_bytes[i] : 0;
		r->dealt = 0;
		if (resolve(r, &gone[i]))
			rc = ptc_nomem(err);
		any |= !rc && gone[i];
		d->first[i + 1] = d->n;
	}
	if (!rc && any)
		rc = lost(d, gone, err);
	ptc_free(gone);
	return rc;
}

/* ---- senders ---- */

static int list_senders(struct ptc_deliver *d)
{
	uint32_t nsets = d->c->from.sets.n;
	size_t n = 0;

	d->sender_first = ptc_calloc((size_t)nsets + 1, sizeof *d->sender_first);
	d->senders = ptc_calloc(d->have.first[nsets], sizeof *d->senders);
	if (!d->sender_first || !d->senders)
		return PTC_ENOMEM;
	for (uint32_t s = 0; s < nsets; s++) {
		for (size_t i = d->have.first[s]; i < d->have.first[s + 1] && d->asked[s]; i++) {
			uint32_t rank = d->have.ranks[i], node = d->from->ranks[rank].node;

			if (n > d->sender_first[s] && d->senders[n - 1].node == node)
				d->senders[n - 1].rank = PTC_MIN(d->senders[n - 1].rank, rank);
			else
				d->senders[n++] = (struct ptc_sender){ 0, node, rank };
		}
		d->sender_first[s + 1] = n;
	}
	return 0;
}

struct level {
	int64_t load;
	uint32_t at;
};

PTC_BY2(by_load, struct level, load, at)

/* Deals bytes over n senders so that their loads become as equal as they can; v sorted by load. */
static void fill_up(struct ptc_sender *senders, struct level *v, uint32_t n, int64_t bytes)
{
	uint32_t k = 1;
	int64_t sum = v[0].load, level, extra;

	while (k < n && v[k].load * (int64_t)k - sum < bytes)
		sum += v[k++].load;
	level = (sum + bytes) / k;
	extra = (sum + bytes) % k;
	for (uint32_t i = 0; i < n; i++)
		senders[v[i].at].left = i < k ? level - v[i].load + (i < extra) : 0;
}

/* Deals a set out again. */
static void balance_set(struct ptc_deliver *d, uint32_t set, int64_t *load, struct level *v)
{
	struct ptc_sender *s = d->senders + d->sender_first[set];
	uint32_t n = (uint32_t)(d->sender_first[set + 1] - d->sender_first[set]);

	for (uint32_t i = 0; i < n; i++) {
		load[s[i].node] -= s[i].left;
		v[i] = (struct level){ load[s[i].node], i };
	}
	if (n > 1)
		qsort(v, n, sizeof *v, by_load);
	fill_up(s, v, n, d->asked[set]);
	for (uint32_t i = 0; i < n; i++)
		load[s[i].node] += s[i].left;
}

static int64_t busiest(const int64_t *load, uint32_t n)
{
	int64_t most = 0;

	for (uint32_t i = 0; i < n; i++)
		most = PTC_MAX(most, load[i]);
	return most;
}

/* Most left first: a heap. */
static bool before(const struct ptc_sender *a, const struct ptc_sender *b)
{
	return a->left != b->left ? a->left > b->left : a->node < b->node;
}

static void sift_down(struct ptc_sender *v, size_t n, size_t i)
{
	for (;;) {
		size_t child = 2 * i + 1;
		struct ptc_sender swap = v[i];

		if (child + 1 < n && before(&v[child + 1], &v[child]))
			child++;
		if (child >= n || !before(&v[child], &v[i]))
			return;
		v[i] = v[child];
		v[child] = swap;
		i = child;
	}
}

static int balance(struct ptc_deliver *d)
{
	uint32_t nsets = d->c->from.sets.n, most = 0;
	int64_t *load = ptc_calloc(d->nnodes, sizeof *load), before_round = INT64_MAX;
	struct level *v;

	for (uint32_t s = 0; s < nsets; s++)
		most = PTC_MAX(most, (uint32_t)(d->sender_first[s + 1] - d->sender_first[s]));
	v = ptc_calloc(most, sizeof *v);
	for (int round = 0; load && v && round < BALANCE_ROUNDS; round++) {
		for (uint32_t s = 0; s < nsets; s++)
			if (d->asked[s] && (round == 0 || ptc_deliver_choice(d, s)))
				balance_set(d, s, load, v);
		if (round && busiest(load, d->nnodes) >= before_round)
			break;
		before_round = busiest(load, d->nnodes);
	}
	ptc_free(load);
	ptc_free(v);
	for (uint32_t s = 0; s < nsets && load && v; s++) {
		size_t n = d->sender_first[s + 1] - d->sender_first[s];

		for (size_t i = n / 2; i-- > 0;)
			sift_down(d->senders + d->sender_first[s], n, i);
	}
	return load && v ? 0 : PTC_ENOMEM;
}

void ptc_deliver_choose(struct ptc_deliver *d, uint32_t set, int64_t bytes, struct ptc_sender *ret)
{
	struct ptc_sender *v = d->senders + d->sender_first[set];
	size_t n = d->sender_first[set + 1] - d->sender_first[set], best = 0;

	/* Boxes are whole: who had to take more than its share of another set comes after those that have as much left
	 * here. */
	for (size_t i = 1; i < PTC_MIN(n, (size_t)3); i++)
		if (v[i].left - d->over[v[i].node] > v[best].left - d->over[v[best].node])
			best = i;
	*ret = v[best];
	d->over[v[best].node] += PTC_MIN(bytes, PTC_MAX(bytes - v[best].left, 0));
	v[best].left -= bytes;
	sift_down(v, n, best);
}

/* ---- the whole ---- */

/* Adds bytes of each set to every node that has a slot of it; returns what it added in all. */
static int64_t sum_sets(const struct ptc_slots *slots, const struct ptc_allocation *a, const int64_t *bytes,
			uint32_t nsets, int64_t *nodes)
{
	int64_t all = 0;

	for (uint32_t s = 0; s < nsets; s++)
		for (size_t i = slots->first[s]; i < slots->first[s + 1]; i++) {
			uint32_t node = a->ranks[slots->ranks[i]].node;

			if (i > slots->first[s] && a->ranks[slots->ranks[i - 1]].node == node)
				continue;
			nodes[node] += bytes[s];
			all += bytes[s];
		}
	return all;
}

/* What each usable node holds of the old layout, plus what enters it, plus what begins there as zeros or is derived
 * there. */
static void sum_peaks(const struct ptc_deliver *d, struct ptc_plan *plan)
{
	const struct ptc_change *c = d->c;

	for (uint32_t n = 0; n < d->nnodes; n++)
		plan->peak_bytes[n] += plan->in_bytes[n];
	if (d->from)
		sum_sets(&d->have, d->from, c->from.held, c->from.sets.n, plan->peak_bytes);
	if (c->reset_bytes)
		plan->reset = sum_sets(&d->need, d->to, c->reset_bytes, c->to.sets.n, plan->peak_bytes);
}

int ptc_deliver_init(struct ptc_deliver *d, struct ptc_plan *plan, bool keep, struct ptc_error *err)
{
	struct resolver r = { .d = d, .plan = plan, .keep = keep };
	int rc;

	if (!d->c->from.layout)
		d->from = NULL;
	d->first = ptc_calloc((size_t)d->c->classes.n + 1, sizeof *d->first);
	d->asked = ptc_calloc(d->c->from.sets.n, sizeof *d->asked);
	d->over = ptc_calloc(d->nnodes, sizeof *d->over);
	if (!d->first || !d->asked || !d->over || slots_init(&d->have, &d->c->from.sets, d->from, d->usable) ||
	    slots_init(&d->need, &d->c->to.sets, d->to, NULL))
		return ptc_nomem(err);
	rc = resolve_all(&r, err);
	if (rc)
		return rc;
	sum_peaks(d, plan);
	return d->from && (list_senders(d) || balance(d)) ? ptc_nomem(err) : 0;
}

void ptc_deliver_done(struct ptc_deliver *d)
{
	ptc_free(d->have.first);
	ptc_free(d->have.ranks);
	ptc_free(d->need.first);
	ptc_free(d->need.ranks);
	ptc_free(d->first);
	ptc_free(d->v);
	ptc_free(d->asked);
	ptc_free(d->over);
	ptc_free(d->sender_first);
	ptc_free(d->senders);
}
