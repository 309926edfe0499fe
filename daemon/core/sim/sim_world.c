/* SPDX-License-Identifier: Apache-2.0 */
/* What all of the simulated world stands on: chance, the virtual clock with its queue of events, the trace, and
 * the oracle's own arithmetic of layouts, contents and tables.
 *
 * Happy path: sim_post() puts an event into the queue, sim_pop() takes the next one out and moves the clock to
 * it. Everything random comes from sim_rnd(), so equal seeds give equal runs.
 * Failure modes: no memory aborts; a violation is told to sim_bad(), which keeps the first one and ends the run. */
#include "daemon/core/sim/internal.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- chance, time, trace --------------------------------------------------------- */

uint64_t sim_rnd(struct sim *s)
{
	uint64_t z = (s->rng += 0x9E3779B97F4A7C15ull);
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
	return z ^ (z >> 31);
}

uint32_t sim_below(struct sim *s, uint32_t n)
{
	return (uint32_t)(sim_rnd(s) % n);
}

bool sim_chance(struct sim *s, uint32_t percent)
{
	return sim_below(s, 100) < percent;
}

bool sim_unlucky(struct sim *s, uint32_t percent)
{
	return s->o.faults && !s->calm && sim_chance(s, percent);
}

void sim_mix(struct sim *s, uint64_t v)
{
	s->res->hash = (s->res->hash ^ v) * 0x100000001B3ull;
	s->res->hash ^= s->res->hash >> 29;
}

void sim_say(struct sim *s, const char *fmt, ...)
{
	if (!s->o.trace)
		return;
	va_list ap;
	va_start(ap, fmt);
	printf("%7llu  ", (unsigned long long)s->now);
	vprintf(fmt, ap);
	putchar('\n');
	va_end(ap);
}

void sim_bad(struct sim *s, const char *fmt, ...)
{
	if (s->bad)
		return;
	s->bad = true;
	va_list ap;
	va_start(ap, fmt);
	int n = snprintf(s->res->why, sizeof(s->res->why), "at %llu ms: ", (unsigned long long)s->now);
	vsnprintf(s->res->why + n, sizeof(s->res->why) - (size_t)n, fmt, ap);
	va_end(ap);
	sim_say(s, "VIOLATION %s", s->res->why);
}

struct slot {
	uint64_t at, order;
	struct ev *ev;
};

static bool slot_less(const struct slot *a, const struct slot *b)
{
	return a->at != b->at ? a->at < b->at : a->order < b->order;
}

struct ev *sim_post(struct sim *s, uint64_t delay, enum kind kind, int who)
{
	ptc_require(PTC_ROOM(s->heap, s->nheap + 1, s->cap));
	struct ev *ev = ptc_calloc(1, sizeof *ev);
	ptc_require(ev);
	ev->kind = kind;
	ev->who = who;
	struct slot slot = { s->now + delay, s->order++, ev };
	size_t i = s->nheap++;
	for (; i && slot_less(&slot, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
		s->heap[i] = s->heap[(i - 1) / 2];
	s->heap[i] = slot;
	return ev;
}

struct ev *sim_pop(struct sim *s)
{
	struct slot top = s->heap[0], last = s->heap[--s->nheap];
	size_t i = 0;
	for (;;) {
		size_t c = 2 * i + 1;
		if (c >= s->nheap)
			break;
		if (c + 1 < s->nheap && slot_less(&s->heap[c + 1], &s->heap[c]))
			c++;
		if (slot_less(&last, &s->heap[c]))
			break;
		s->heap[i] = s->heap[c];
		i = c;
	}
	if (s->nheap)
		s->heap[i] = last;
	s->now = top.at;
	return top.ev;
}

/* How long a message takes; now and then so long that its sender has given up. */
uint64_t sim_travel(struct sim *s)
{
	if (sim_unlucky(s, 2))
		return 300 + sim_below(s, 4000);
	return 1 + sim_below(s, s->o.faults ? 30 : 5);
}

void sim_restart_post(struct sim *s, enum kind kind, int who, uint64_t delay)
{
	s->restarts_left++;
	sim_post(s, delay, kind, who);
}

void sim_restart_later(struct sim *s, uint32_t node, uint64_t delay)
{
	sim_restart_post(s, EV_RESTART_NODE, (int)node, delay);
}

bool sim_listed(const uint64_t *v, uint32_t n, uint64_t id)
{
	for (uint32_t i = 0; i < n; i++) {
		if (v[i] == id)
			return true;
	}
	return false;
}

/* ---- layouts and contents -------------------------------------------------------- */

uint64_t sim_content(uint32_t item, uint64_t id)
{
	return (id * 1000003u) ^ (item * 7919u) ^ 0x5bd1e995u;
}

bool sim_layout_has(const uint32_t *nodes, uint32_t n, uint32_t layout, uint32_t item, uint32_t node)
{
	if (n == 0)
		return false;
	if (nodes[(item + layout) % n] == node)
		return true;
	return (layout & 1) && nodes[(item + layout + 1) % n] == node;
}

uint32_t sim_layout_needs(const uint32_t *nodes, uint32_t n, uint32_t layout, uint32_t node)
{
	uint32_t mask = 0;
	for (uint32_t i = 0; i < ITEMS; i++)
		mask |= (uint32_t)sim_layout_has(nodes, n, layout, i, node) << i;
	return mask;
}

bool sim_covered(const uint32_t *nodes, uint32_t n, uint32_t layout, uint32_t without)
{
	for (uint32_t i = 0; i < ITEMS; i++) {
		bool there = false;
		for (uint32_t k = 0; k < n && !there; k++)
			there = !(without >> nodes[k] & 1) && sim_layout_has(nodes, n, layout, i, nodes[k]);
		if (!there)
			return false;
	}
	return true;
}

uint32_t sim_placed(const uint32_t *v, uint32_t n, uint32_t without, uint32_t *ret)
{
	uint32_t m = 0;
	for (uint32_t k = 0; k < n; k++) {
		if (!(without >> v[k] & 1))
			ret[m++] = v[k];
	}
	return m;
}

/* ---- tables ---------------------------------------------------------------------- */

struct table *sim_table_find(struct node *n, uint64_t gen, uint64_t snap)
{
	for (uint32_t i = 0; i < n->ntables; i++) {
		if (n->tables[i].gen == gen && n->tables[i].snap == snap)
			return &n->tables[i];
	}
	return NULL;
}

struct table *sim_table_add(struct sim *s, struct node *n, uint64_t gen, uint64_t snap)
{
	if (n->ntables == MAX_TABLES) {
		sim_bad(s, "node %d hoards tables", (int)(n - s->nodes));
		n->ntables--;
	}
	struct table *t = &n->tables[n->ntables++];
	memset(t, 0, sizeof *t);
	t->gen = gen;
	t->snap = snap;
	return t;
}

void sim_table_drop(struct node *n, uint32_t i)
{
	n->tables[i] = n->tables[--n->ntables];
}

bool sim_is_copy(const struct record *o, const struct table *t, uint32_t node)
{
	return o->snap && o->copy == node + 1 && o->gen == t->gen && o->copy_snap == t->snap;
}

bool sim_is_part(const struct record *o, const struct table *t, uint32_t node)
{
	for (uint32_t k = 0; o->snap && o->gen == t->gen && o->snap == t->snap && k < o->n; k++) {
		if (o->nodes[k] == node && !(o->without >> node & 1))
			return true;
	}
	return false;
}

bool sim_keeps(const struct req *r, const struct table *t)
{
	const struct record *b = &r->older.bridge;
	if (sim_is_part(b, t, r->node) || sim_is_copy(&r->rec, t, r->node) || sim_is_copy(b, t, r->node))
		return true;
	for (uint32_t i = 0; i < r->older.n; i++) {
		if (sim_is_part(&r->older.v[i], t, r->node))
			return true;
	}
	return false;
}

bool sim_is_bridge(const struct sim *s, const struct req *r, const struct table *t)
{
	const struct record *b = &r->older.bridge;
	bool shared = sim_is_copy(&r->rec, t, r->node) && s->o.bug != SIM_BUG_YIELD_COPY;
	return sim_is_part(b, t, r->node) || (sim_is_copy(b, t, r->node) && !shared);
}

bool sim_yielded(const struct sim *s, uint32_t node, uint64_t gen, uint64_t snap, bool by_now)
{
	for (uint32_t k = 0; k < s->nyields; k++) {
		if (s->yields[k].node == node && s->yields[k].gen == gen && s->yields[k].snap == snap &&
		    (!by_now || s->yields[k].inc == s->nodes[node].inc))
			return true;
	}
	return false;
}

bool sim_bridge_yielded(const struct sim *s, const struct record *b, bool by_now)
{
	for (uint32_t i = 0; b->snap && i < SIM_NODES; i++) {
		if (sim_yielded(s, i, b->gen, b->snap, by_now) ||
		    (b->copy == i + 1 && sim_yielded(s, i, b->gen, b->copy_snap, by_now)))
			return true;
	}
	return false;
}
