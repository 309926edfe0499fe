/* SPDX-License-Identifier: Apache-2.0 */
/* The bridge, as a controller sees it: copies of the record's snapshot, the transaction that takes the bridge out of
 * the document, nodes that have dropped it for want of room, and snapshots that are left out while copies are on their
 * way (docs/decisions/0058-bridges.md).
 *
 * Happy path: while the job is idle, sim_copy_keeper() makes the copy, and then the bridge goes. A node's answer says
 * that it has dropped tables of the bridge: the next commit drops the bridge, or sim_bridge_tick().
 * Failure modes: the transaction conflicts, or its answer is lost, so the bridge is looked at again; the controller
 * forgets all with its lock. Snapshots that are left out for no reason are told to sim_bad(). */
#include "daemon/core/sim/internal.h"

#include "base/check.h"

#include <string.h>

/* ---- the bridge goes ------------------------------------------------------------- */

static bool same_bridge(const struct record *a, const struct record *b)
{
	return a->gen == b->gen && a->snap == b->snap;
}

static uint32_t bridge_nodes(const struct record *b)
{
	uint32_t mask = b->snap && b->copy ? 1u << (b->copy - 1) : 0;
	for (uint32_t k = 0; b->snap && k < b->n; k++)
		mask |= 1u << b->nodes[k];
	return mask;
}

void sim_older_adopt(struct sim *s, struct ctl *c, const struct older *older, bool by_commit)
{
	if (older->mod < c->older.mod) /* an answer that was overtaken */
		return;
	if (!same_bridge(&older->bridge, &c->older.bridge)) {
		c->tell |=
			by_commit ? 0 : bridge_nodes(&c->older.bridge); /* the commit's FINISH tells those that count */
		if (s->o.bug != SIM_BUG_YIELD_MARK)
			c->yielded = 0;
	}
	c->older = *older;
}

static void shed(struct sim *s, struct ctl *c, enum why_shed why, uint32_t node)
{
	int who = (int)(c - s->ctls);
	c->shed = ++s->token;
	c->shed_why = why;
	c->shed_node = node;
	c->shed_gone = c->older.bridge;
	struct ev *late = sim_post(s, TXN_MS, EV_SHEDREP, who);
	late->inc = c->inc;
	late->seq = c->shed;
	late->outcome = PTC_TXN_UNKNOWN;
	if (s->cut_ce[who] || sim_unlucky(s, 5))
		return;
	struct ev *ev = sim_post(s, sim_travel(s), EV_SHED, who);
	ev->inc = c->inc;
	ev->u.txn = (struct txn){ .seq = c->shed, .lock_rev = c->fence, .rec_mod = c->rec.mod, .why = why };
	ev->u.txn.older_mod = c->older.mod;
}

void sim_on_shedrep(struct sim *s, const struct ev *ev)
{
	struct ctl *c = &s->ctls[ev->who];
	if (!c->job || ev->seq != c->shed)
		return; /* known already, or given up */
	c->shed = 0;
	if (ev->outcome != PTC_TXN_UNKNOWN)
		sim_older_adopt(s, c, &ev->older, false);
	if (same_bridge(&c->shed_gone, &c->older.bridge)) {
		if (c->shed_why == SHED_YIELDED)
			c->yielded = c->shed_node; /* again */
	} else if (c->shed_why == SHED_YIELDED || c->shed_why == SHED_ROOM) {
		c->no_room = c->rec.gen;
	}
}

void sim_yield_heard(struct sim *s, struct ctl *c, uint32_t node, const struct table *t)
{
	const struct record *b = &c->older.bridge;
	bool known = sim_is_part(b, t, node) || sim_is_copy(b, t, node) || s->o.bug == SIM_BUG_YIELD_ANY;
	if (!t->snap || !b->snap || !known || s->o.bug == SIM_BUG_YIELD_STAYS)
		return;
	c->no_room = c->rec.gen;
	c->yielded = node + 1;
}

/* ---- copies ---------------------------------------------------------------------- */

static bool takes_copy(const struct sim *s, const struct record *r, uint32_t n)
{
	return s->nodes[n].up && !s->nodes[n].disk_full && !sim_layout_needs(r->nodes, r->n, r->layout, n);
}

/* Whether the record's copies are on their way, and the bridge waits for them. down: nodes that are down count. */
static bool copies_come(const struct sim *s, const struct record *r, const struct record *bridge, bool down)
{
	bool any = false;
	for (uint32_t n = 0; n < SIM_NODES; n++)
		any |= takes_copy(s, r, n) || (down && !s->nodes[n].up);
	return bridge->snap && !r->copy && any;
}

uint32_t sim_leaves_out(const struct sim *s, const struct ctl *c)
{
	return s->o.bridge && !c->shed && copies_come(s, &c->rec, &c->older.bridge, s->o.bug == SIM_BUG_LEAVE_DOWN)
		       ? LEAVE_OUT
		       : 0;
}

uint32_t sim_will_leave_out(const struct sim *s, const struct ctl *c)
{
	struct record next = c->rec; /* the commit makes it the bridge, or one is there */
	next.copy = 0;
	return s->o.bridge && next.snap && c->no_room != next.gen && copies_come(s, &next, &next, false) ? LEAVE_OUT
													 : 0;
}

/* A node that is up, that no request for the record is on its way to, and on which the record's snapshot has nothing.
 */
static bool place_for_copy(struct sim *s, const struct ctl *c, const struct record *r, uint32_t *ret)
{
	uint32_t first = sim_below(s, SIM_NODES);
	for (uint32_t k = 0; k < SIM_NODES; k++) {
		uint32_t n = (first + k) % SIM_NODES;
		if (!ptc_job_settled(c->job, n) || !takes_copy(s, r, n))
			continue;
		*ret = n;
		return true;
	}
	return false;
}

/* All at once: what becomes of one that is interrupted is not the core's. */
static void make_copy(struct sim *s, struct ctl *c, struct record *r)
{
	struct table all = { 0 };
	uint32_t to;
	for (uint32_t i = 0; i < ITEMS; i++) {
		for (uint32_t k = 0; k < r->n && !(all.has >> i & 1); k++) {
			struct node *n = &s->nodes[r->nodes[k]];
			const struct table *t = n->up ? sim_table_find(n, r->gen, r->snap) : NULL;
			if (!t || !t->sealed || r->without >> r->nodes[k] & 1 || !(t->has >> i & 1))
				continue;
			all.val[i] = t->val[i];
			all.has |= 1u << i;
		}
		if (!(all.has >> i & 1))
			return;
	}
	if (!place_for_copy(s, c, r, &to) || s->nodes[to].fence > c->fence || s->nodes[to].running)
		return;
	if (s->nodes[to].tight && (s->nodes[to].only_less || bridge_nodes(&c->older.bridge) >> to & 1)) {
		if (bridge_nodes(&c->older.bridge) >> to & 1) /* no room for it beside the bridge */
			shed(s, c, SHED_ROOM, to + 1);
		return;
	}
	s->nodes[to].fence = c->fence; /* requests that are still on their way do not know the copy */
	s->nodes[to].seq = ptc_job_take_seq(c->job);
	struct table *t = sim_table_find(&s->nodes[to], r->gen, r->snap | COPY_SNAP);
	t = t ? t : sim_table_add(s, &s->nodes[to], r->gen, r->snap | COPY_SNAP);
	t->has = all.has;
	memcpy(t->val, all.val, sizeof(t->val));
	t->sealed = t->durable = true;
	r->copy = to + 1;
	r->copy_snap = t->snap;
	s->bridged = true;
	s->res->copies++;
	sim_say(s, "node %u has a copy of %llu.%llu", to, (unsigned long long)r->gen, (unsigned long long)r->snap);
}

/* Whether every node without a part of the record's snapshot is lost. One that is only down may take the copy later. */
static bool no_place(const struct sim *s, const struct record *r)
{
	for (uint32_t n = 0; n < SIM_NODES; n++) {
		bool lost = s->o.bug == SIM_BUG_BRIDGE_DOWN ? !s->nodes[n].up : s->declared[n];
		if (!lost && !sim_layout_needs(r->nodes, r->n, r->layout, n))
			return false;
	}
	return true;
}

void sim_copy_keeper(struct sim *s, struct ctl *c)
{
	struct etcd *e = &s->etcd;
	bool copied = sim_copy_of(s, &e->rec) != NULL, nowhere = !copied && no_place(s, &e->rec);
	if (ptc_job_phase(c->job) != PTC_JOB_IDLE || c->reading || c->shed || e->intent_mod ||
	    c->rec.mod != e->rec.mod || !e->rec.snap || !sim_chance(s, s->o.live ? 15 : 30))
		return;
	if (c->older.bridge.snap && (copied || nowhere || s->o.bug == SIM_BUG_BRIDGE_EARLY))
		shed(s, c, nowhere && s->o.bug != SIM_BUG_BRIDGE_DOWN ? SHED_NOWHERE : SHED_COPIED, 0);
	else if (!copied)
		make_copy(s, c, &e->rec);
	c->rec.copy = e->rec.copy;
	c->rec.copy_snap = e->rec.copy_snap;
}

/* ---- what is done while the job is idle ------------------------------------------ */

void sim_bridge_tick(struct sim *s, struct ctl *c)
{
	if (c->yielded && c->older.bridge.snap && !c->shed) {
		uint32_t node = c->yielded;
		c->yielded = 0;
		shed(s, c, SHED_YIELDED, node);
	}
	if (c->left_out && !c->shed && !sim_leaves_out(s, c) && s->o.bug != SIM_BUG_LEAVE_STAYS) {
		c->left_out = false;
		for (uint32_t k = 0; k < c->rec.n; k++)
			c->tell |= 1u << c->rec.nodes[k];
	}
}

void sim_check_left(struct sim *s)
{
	const struct ctl *c = sim_leader(s);
	bool wrong = s->calm && c && ptc_job_phase(c->job) == PTC_JOB_IDLE;
	for (uint32_t i = 0; i < SIM_NODES; i++)
		wrong = wrong && (s->nodes[i].up || s->nodes[i].gone);
	wrong = wrong && sim_ranks_leave_out(s) && !copies_come(s, &s->etcd.rec, &s->etcd.older.bridge, false);
	if (!wrong)
		s->left_since = 0;
	else if (!s->left_since)
		s->left_since = s->now;
	else if (s->now - s->left_since > LEFT_MS)
		sim_bad(s, "ranks leave snapshots out, and no copies are on their way");
}
