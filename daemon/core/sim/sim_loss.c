/* SPDX-License-Identifier: Apache-2.0 */
/* Loss: machines that go with their tables, tables that go while the machine stays, nodes that are declared lost;
 * and what is left of a record then.
 *
 * Happy path: a fault destroys tables and notes each complete one as a ruin.
 * Failure modes: the checker lets a table be missing only where a fault destroyed it after it was there, whole and
 * right (sim_ruined). More ruins than MAX_RUINS abort. */
#include "daemon/core/sim/internal.h"

#include "base/check.h"

#include <string.h>

/* ---- what is destroyed -------------------------------------------------------------- */

void sim_tables_destroy(struct sim *s, uint32_t i)
{
	struct node *n = &s->nodes[i];
	for (uint32_t k = 0; k < n->ntables; k++) {
		if (!n->tables[k].sealed)
			continue;
		ptc_require(s->nruins < MAX_RUINS);
		s->ruins[s->nruins++] = (struct ruin){ i, n->tables[k], s->now, s->etcd.key[i] };
		s->res->destroyed++;
	}
	n->ntables = 0;
	sim_say(s, "node %u has lost its tables", i);
}

void sim_machine_destroy(struct sim *s, uint32_t i, bool for_good)
{
	struct node *n = &s->nodes[i];
	sim_node_crash(s, i);
	sim_tables_destroy(s, i);
	sim_ranks_lose(s, i);
	n->fence = n->let_gen = n->let_incarnation = n->began_gen = n->began_incarnation = 0;
	n->built_gen = n->built_incarnation = n->built_id = 0;
	n->gone = for_good;
}

/* A second commit names no node that is known to be another than the one that answered, and none that was lost before
 * it was asked for the last time: what was lost before the commit is excused only if it was lost after that, and as
 * long as the key stood that the node had then. */
static bool could_be_named(const struct ruin *ruin, const struct record *r)
{
	return ruin->at >= r->at || (ruin->at >= r->stood && ruin->key == r->key[ruin->node]);
}

bool sim_ruined(const struct sim *s, uint32_t node, const struct record *r)
{
	uint32_t needs = sim_layout_needs(r->nodes, r->n, r->layout, node);
	for (uint32_t k = 0; k < s->nruins; k++) {
		const struct table *t = &s->ruins[k].table;
		bool right =
			s->ruins[k].node == node && t->gen == r->gen && t->snap == r->snap && (t->has & needs) == needs;
		right = right && could_be_named(&s->ruins[k], r);
		for (uint32_t i = 0; right && i < ITEMS; i++)
			right = !(needs >> i & 1) || t->val[i] == sim_item_value(i, r->content, r->grown);
		if (right)
			return true;
	}
	return false;
}

/* The copy of r, whole; NULL: there is none. */
static struct table *copy_of(struct sim *s, const struct record *r)
{
	struct table *t = r->copy ? sim_table_find(&s->nodes[r->copy - 1], r->gen, r->snap | COPY_SNAP) : NULL;
	return t && t->sealed ? t : NULL;
}

static bool has_item(const struct node *n, const struct record *r, uint32_t item)
{
	for (uint32_t k = 0; k < n->ntables; k++) {
		const struct table *t = &n->tables[k];
		if (t->gen == r->gen && t->snap == r->snap && t->sealed && t->has >> item & 1)
			return true;
	}
	return false;
}

bool sim_record_lost(const struct sim *s, const struct record *r)
{
	if (copy_of((struct sim *)(uintptr_t)s, r))
		return false;
	for (uint32_t i = 0; r->gen && r->snap && i < ITEMS; i++) {
		bool there = false;
		for (uint32_t k = 0; k < r->n && !there; k++)
			there = !(r->without >> r->nodes[k] & 1) && has_item(&s->nodes[r->nodes[k]], r, i);
		if (!there)
			return true;
	}
	return false;
}

/* ---- what is left out ------------------------------------------------------------ */

uint32_t sim_left_out(const struct ctl *c, const struct sw *w)
{
	uint32_t mask = 0;
	for (uint32_t k = 0; k < w->nfrom; k++)
		mask |= (uint32_t)!ptc_job_gives(c->job, w->from[k]) << w->from[k];
	return mask;
}

/* ---- copies ---------------------------------------------------------------------- */

/* A node that is up, that no request for the record is on its way to, and on which the record's snapshot has nothing.
 */
static bool place_for_copy(struct sim *s, const struct ctl *c, const struct record *r, uint32_t *ret)
{
	uint32_t first = sim_below(s, SIM_NODES);
	for (uint32_t k = 0; k < SIM_NODES; k++) {
		uint32_t n = (first + k) % SIM_NODES;
		if (!ptc_job_settled(c->job, n) || !s->nodes[n].up || s->nodes[n].disk_full ||
		    sim_layout_needs(r->nodes, r->n, r->layout, n))
			continue;
		*ret = n;
		return true;
	}
	return false;
}

/* All at once: what becomes of one that is interrupted is not the core's. */
static void make_copy(struct sim *s, const struct ctl *c, struct record *r)
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
	s->nodes[to].fence = c->fence; /* requests that are still on their way do not know the copy */
	s->nodes[to].seq = ptc_job_take_seq(c->job);
	struct table *t = sim_table_find(&s->nodes[to], r->gen, r->snap | COPY_SNAP);
	t = t ? t : sim_table_add(s, &s->nodes[to], r->gen, r->snap | COPY_SNAP);
	t->has = all.has;
	memcpy(t->val, all.val, sizeof(t->val));
	t->sealed = t->durable = true;
	r->copy = to + 1;
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
	bool copied = copy_of(s, &e->rec) != NULL, nowhere = !copied && no_place(s, &e->rec);
	if (ptc_job_phase(c->job) != PTC_JOB_IDLE || c->reading || e->intent_mod || c->rec.mod != e->rec.mod ||
	    !e->rec.snap || !sim_chance(s, 30))
		return;
	if (e->older.bridge.snap && (copied || nowhere || s->o.bug == SIM_BUG_BRIDGE_EARLY)) {
		e->older.bridge.snap = 0;
		s->bridged = s->bridged && !(nowhere && s->o.bug != SIM_BUG_BRIDGE_DOWN);
		sim_say(s, "the bridge goes");
	} else if (!copied) {
		make_copy(s, c, &e->rec);
	}
	c->rec.copy = e->rec.copy;
	c->older = e->older;
}

/* ---- faults ---------------------------------------------------------------------- */

static void declare(struct sim *s, uint32_t n)
{
	if (s->nodes[n].up || s->etcd.key[n] ||
	    sim_ranks_has(s, n)) /* of ranks that live nobody says that they are lost */
		return;
	sim_say(s, "node %u is declared lost", n);
	s->declared[n] = true;
}

void sim_loss_fault(struct sim *s)
{
	uint32_t n = sim_below(s, SIM_NODES), gone = 0;
	struct node *node = &s->nodes[n];
	bool up = node->up;
	if (s->o.bridge && s->res->destroyed) /* what comes after one loss is not excused */
		return;
	for (uint32_t i = 0; i < SIM_NODES; i++)
		gone += s->nodes[i].gone;
	uint32_t fault = sim_below(s, 8);
	switch (fault) {
	case 0: /* destroyed; another one takes its name, soon or late */
		sim_machine_destroy(s, n, node->gone);
		if (up)
			sim_restart_later(s, n, sim_chance(s, 50) ? sim_below(s, 300) : sim_below(s, 12000));
		break;
	case 1:
		if (gone == 0 && up)
			sim_machine_destroy(s, n, true);
		break;
	case 2: /* rebooted: chunks were in memory */
		sim_node_crash(s, n);
		sim_tables_destroy(s, n);
		sim_ranks_lose(s, n);
		if (up)
			sim_restart_later(s, n, sim_below(s, 3000));
		break;
	case 3:
	case 4: /* away for long, and back with all that it has, or with all but its ranks */
		if (fault == 3)
			sim_ranks_lose(s, n);
		sim_node_crash(s, n);
		if (up)
			sim_restart_later(s, n, 500 + sim_below(s, 12000));
		break;
	default:
		declare(s, n);
	}
}

/* One node with ranks that train, while all are up. */
void sim_loss_again(struct sim *s)
{
	const struct record *r = &s->etcd.rec;
	bool up = r->run == RUN_LIVE && r->n > 1;
	for (uint32_t i = 0; i < SIM_NODES; i++)
		up = up && s->nodes[i].up;
	if (!up)
		return;
	uint32_t n = r->nodes[sim_below(s, r->n)];
	sim_ranks_lose(s, n);
	sim_node_crash(s, n);
	sim_restart_later(s, n, 1000 + sim_below(s, 5000));
}
