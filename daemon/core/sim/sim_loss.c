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
	n->store_new = true;
	n->gone = for_good;
}

/* A second commit, and a first one of ranks that were held, names no node that is known to be another than the one that
 * answered. A second commit names none that was lost before it was asked for the last time. So what was lost before the
 * commit is excused only if it was lost after that, and as long as the key stood that the node had then. */
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

const struct table *sim_copy_of(const struct sim *s, const struct record *r)
{
	struct node *n = r->copy ? (struct node *)(uintptr_t)&s->nodes[r->copy - 1] : NULL;
	const struct table *t = n ? sim_table_find(n, r->gen, r->copy_snap) : NULL;
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
	if (sim_copy_of(s, r))
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
