/* SPDX-License-Identifier: Apache-2.0 */
/* The training ranks of the simulation, each a process of its own: one on each node, or with `several` up to two.
 *
 * A rank at boundary(step) publishes the step, reads its stop, and waits there or goes into the step; the step is over
 * for it once every rank of its incarnation has gone into it. So ranks are at most one step apart, and one that is gone
 * or waits holds up all others. Each step adds a number to every value that depends on item, generation and
 * incarnation: values of another step, or of another incarnation's step, are told apart.
 *
 * What is checked here: a rank of the record's incarnation has the values of the record's snapshot plus its own steps,
 * always; no rank builds for a switch that goes on while one of an earlier generation runs or waits; ranks of one
 * incarnation are never further apart than that; in the end exactly the record's ranks run, and go on. */
#include "daemon/core/sim/internal.h"

#include "base/check.h"

#include <string.h>

uint64_t sim_item_value(uint32_t item, uint64_t id, uint64_t grown)
{
	return sim_content(item, id) + grown * (0x9E3779B97F4A7C15ull * (item + 1));
}

uint64_t sim_weight(const struct sim *s, uint64_t gen, uint64_t incarnation)
{
	if (s->o.tight &&
	    (gen + incarnation) % 3 == 0) /* ranks that change nothing: their snapshots have the same copy */
		return 0;
	return (gen * 0xD1B54A32D192ED03ull ^ incarnation * 0x8CB92BA72F3D8DD7ull) | 1;
}

/* How many ranks of that incarnation the node is to have, if it has any. */
static uint32_t ranks_on(const struct sim *s, uint32_t node, uint64_t gen, uint64_t incarnation)
{
	return s->o.several && (gen + incarnation + node) % 3 ? MAX_RANKS : 1;
}

/* How many places of a node's `procs` are used. */
static uint32_t nprocs(const struct sim *s)
{
	return s->o.several ? MAX_PROCS : MAX_PROCS / MAX_RANKS;
}

/* The ranks of a node share what the node has; in some layouts each has all of it. */
static bool rank_has(const struct sim *s, uint32_t node, const struct proc *p, uint32_t item)
{
	uint32_t n = ranks_on(s, node, p->gen, p->incarnation);
	bool all = n == 1 || p->layout & 2;
	return sim_layout_has(p->nodes, p->n, p->layout, item, node) && (all || item % n == p->slot);
}

/* The ranks of that incarnation on the node, by slot; NULL where there is none. */
static uint32_t procs_find(struct node *n, uint64_t gen, uint64_t incarnation, struct proc *ret[MAX_RANKS])
{
	uint32_t found = 0;
	memset(ret, 0, MAX_RANKS * sizeof *ret);
	for (uint32_t k = 0; k < MAX_PROCS; k++) {
		struct proc *p = &n->procs[k];
		if (p->state == PROC_NONE || p->gen != gen || p->incarnation != incarnation)
			continue;
		ret[p->slot] = p;
		found++;
	}
	return found;
}

static struct proc *proc_add(struct sim *s, struct node *n, uint64_t gen, uint64_t incarnation, uint32_t slot)
{
	struct proc *p = n->procs;
	while (p < n->procs + MAX_PROCS && p->state != PROC_NONE)
		p++;
	if (p == n->procs + MAX_PROCS) {
		sim_bad(s, "node %d hoards processes", (int)(n - s->nodes));
		p = n->procs;
	}
	*p = (struct proc){
		.state = PROC_WAITING, .gen = gen, .incarnation = incarnation, .slot = slot, .life = ++s->token
	};
	return p;
}

static void procs_add(struct sim *s, uint32_t i, uint64_t gen, uint64_t incarnation, struct proc *ret[MAX_RANKS])
{
	memset(ret, 0, MAX_RANKS * sizeof *ret);
	for (uint32_t k = 0; k < ranks_on(s, i, gen, incarnation); k++)
		ret[k] = proc_add(s, &s->nodes[i], gen, incarnation, k);
}

static bool proc_trains(const struct proc *p)
{
	return p->state == PROC_RUN || p->state == PROC_STOPPED;
}

/* It waited at a boundary. */
static void proc_go_on(struct proc *p)
{
	if (p->state == PROC_STOPPED) {
		p->state = PROC_RUN;
		p->in_step = true;
	}
}

static bool dues(const struct sim *s)
{
	return s->o.bridge && s->o.live;
}

static uint64_t next_due(uint64_t step)
{
	return (step / SNAP_EVERY + 1) * SNAP_EVERY;
}

/* It has no stop any more but that of the next snapshot that is due. Of those after `since`, the request leaves some
 * out; one that it has passed already is missed. */
static void proc_release(struct sim *s, const struct req *r, struct proc *p, uint64_t since)
{
	uint64_t due = next_due(since) + (uint64_t)r->leave_out * SNAP_EVERY;
	if (s->o.bug == SIM_BUG_LEAVE_MORE && r->leave_out && p->due >= due)
		due = p->due + SNAP_EVERY;
	if (p->pub >= (int64_t)due)
		due = next_due((uint64_t)p->pub);
	p->has_stop = dues(s);
	if (p->has_stop)
		p->stop = p->due = due;
	proc_go_on(p);
}

/* ---- operations ------------------------------------------------------------------ */

/* Whether ranks of this switch have been built here: then others may have met them. A store that has come since a
 * switch began knows nothing of it, and no more does a controller that has resumed the switch. */
static bool were_built(const struct sim *s, const struct node *n)
{
	bool newer = n->req.resumed && n->store_rev > n->req.resumed && s->o.bug != SIM_BUG_STORE_UNSEEN;
	return (n->req.built || newer || n->built_id == n->req.sw.id) && s->o.bug != SIM_BUG_START_BUILT;
}

int sim_op_start(struct sim *s, uint32_t i)
{
	struct node *n = &s->nodes[i];
	const struct sw *w = &n->req.sw;
	struct proc *ranks[MAX_RANKS];
	bool there = procs_find(n, w->to_gen, w->to_incarnation, ranks) > 0;
	if (!there && were_built(s, n))
		return PTC_ESTATE; /* before it notes that they begin: so does the agent */
	n->began_gen = w->to_gen;
	n->began_incarnation = w->to_incarnation;
	if (!there)
		procs_add(s, i, w->to_gen, w->to_incarnation, ranks);
	return 0;
}

/* The ranks of the old generation, if all of them can still be stopped. Returns their number. */
static uint32_t old_ranks(struct sim *s, uint32_t i, struct proc *ret[MAX_RANKS])
{
	struct node *n = &s->nodes[i];
	const struct sw *w = &n->req.sw;
	uint32_t found = procs_find(n, w->from_gen, w->from_incarnation, ret);
	for (uint32_t k = 0; k < found; k++) {
		if (!ret[k] || !proc_trains(ret[k]))
			return 0;
	}
	return found;
}

static bool waits_at(const struct proc *p, uint64_t stop)
{
	return p->state == PROC_STOPPED && p->step == stop;
}

/* Returns whether the rank has passed the stop. */
static bool arm_rank(struct sim *s, struct proc *p, uint64_t stop)
{
	bool passed = p->pub >= (int64_t)stop && !waits_at(p, stop);
	if (passed && p->state == PROC_STOPPED && sim_chance(s, 50))
		return true; /* may stay where it is */
	p->has_stop = true;
	p->due = 0;
	p->stop = passed ? (uint64_t)p->pub + 1 : stop;
	if (p->step < p->stop)
		proc_go_on(p);
	return passed;
}

int sim_op_arm(struct sim *s, uint32_t i, bool *ret_passed, uint64_t *ret_step)
{
	struct proc *ranks[MAX_RANKS];
	uint32_t n = old_ranks(s, i, ranks);
	*ret_passed = false;
	*ret_step = 0;
	for (uint32_t k = 0; k < n; k++) {
		if (ranks[k]->pub > 0)
			*ret_step = PTC_MAX(*ret_step, (uint64_t)ranks[k]->pub);
		bool passed = arm_rank(s, ranks[k], s->nodes[i].req.stop);
		*ret_passed |= passed && (k == 0 || s->o.bug != SIM_BUG_FIRST_RANK);
	}
	return n ? 0 : PTC_ESTATE;
}

/* Whether all of a node's ranks wait there. */
static bool all_wait_at(const struct sim *s, struct proc *const ranks[MAX_RANKS], uint32_t n, uint64_t stop)
{
	for (uint32_t k = 0; k < (s->o.bug == SIM_BUG_FIRST_RANK ? PTC_MIN(n, 1u) : n); k++) {
		if (!waits_at(ranks[k], stop))
			return false;
	}
	return n > 0;
}

int sim_op_stop(struct sim *s, uint32_t i)
{
	struct proc *ranks[MAX_RANKS];
	uint64_t stop = s->nodes[i].req.stop;
	uint32_t n = old_ranks(s, i, ranks);
	if (s->o.bug == SIM_BUG_EARLY_STOP)
		return 0;
	for (uint32_t k = 0; k < n; k++) {
		if (ranks[k]->pub > (int64_t)stop && s->o.bug != SIM_BUG_FIRST_RANK)
			return PTC_ESTATE;
	}
	if (n == 0)
		return PTC_ESTATE;
	return all_wait_at(s, ranks, n, stop) ? 0 : 1;
}

/* ---- held after a loss ------------------------------------------------------------ */

static bool proc_held(const struct sim *s, const struct proc *p)
{
	return p->held_until > s->now;
}

static void end_step(struct sim *s, struct proc *p, bool updates)
{
	uint64_t by = sim_weight(s, p->gen, p->incarnation);
	for (uint32_t k = 0; updates && k < ITEMS; k++)
		p->val[k] += sim_item_value(k, 0, by) - sim_item_value(k, 0, 0);
	p->step++;
	p->in_step = p->ready = false;
}

/* Those of the record's ranks that are held, by node. */
struct held {
	struct proc *v[SIM_NODES * MAX_RANKS];
	uint32_t node[SIM_NODES * MAX_RANKS], n;
};

static bool whole_at(const struct proc *p, uint64_t step)
{
	return !p->in_update && p->step == step;
}

/* Each rank for itself, whatever others of its node have. */
static bool held_cover(const struct sim *s, const struct held *h, uint64_t step)
{
	for (uint32_t item = 0; item < ITEMS; item++) {
		bool there = false;
		for (uint32_t k = 0; k < h->n && !there; k++)
			there = whole_at(h->v[k], step) && rank_has(s, h->node[k], h->v[k], item);
		if (!there)
			return false;
	}
	return true;
}

/* The greatest step, after the record's, at which held ranks have every item; *ret_without: nodes without such a rank.
 */
static bool held_whole(const struct sim *s, const struct record *r, const struct held *h, uint64_t *ret_step,
		       uint32_t *ret_without)
{
	for (uint32_t k = 0; k < h->n; k++) {
		uint64_t step = h->v[k]->step;
		uint32_t without = (1u << SIM_NODES) - 1;
		if (step <= r->step || !held_cover(s, h, step))
			continue;
		for (uint32_t i = 0; i < h->n; i++)
			without &= ~((uint32_t)whole_at(h->v[i], step) << h->node[i]);
		*ret_step = step;
		*ret_without = without;
		return true;
	}
	return false;
}

/* Ranks that have their gradients, and are a step behind the others, end that step. */
static bool let_on(struct sim *s, const struct held *h)
{
	uint64_t greatest = 0;
	bool any = false;
	for (uint32_t k = 0; k < h->n; k++)
		greatest = h->v[k]->in_update ? greatest : PTC_MAX(greatest, h->v[k]->step);
	for (uint32_t k = 0; k < h->n; k++) {
		struct proc *p = h->v[k];
		if (p->in_update || !p->ready || p->step + 1 != greatest)
			continue;
		end_step(s, p, s->o.bug != SIM_BUG_LET_ON_EARLY);
		s->res->let_on++;
		any = true;
	}
	return any;
}

static void proc_hold(struct sim *s, struct proc *p, uint64_t until)
{
	p->held_until = until;
	p->hold = ++s->token;
	p->in_update = p->ready && sim_chance(s, 50);
}

bool sim_ranks_hold(struct sim *s, const struct record *r, uint64_t *ret_step, uint32_t *ret_without)
{
	uint64_t until = s->now + 1 + sim_below(s, sim_chance(s, 50) ? HELD_MS : 60);
	struct held h = { .n = 0 };
	for (uint32_t k = 0; k < r->n * MAX_RANKS; k++) {
		uint32_t i = r->nodes[k / MAX_RANKS];
		struct proc *ranks[MAX_RANKS], *p;
		procs_find(&s->nodes[i], r->gen, r->incarnation, ranks);
		p = ranks[k % MAX_RANKS];
		/* a wrong value is found by what another replica has, and that may be lost; this model leaves it out */
		if (!p || !proc_trains(p) || p->diverged || !s->nodes[i].up || !s->etcd.key[i] || sim_chance(s, 3))
			continue;
		proc_hold(s, p, until);
		h.node[h.n] = i;
		h.v[h.n++] = p;
	}
	return held_whole(s, r, &h, ret_step, ret_without) ||
	       (let_on(s, &h) && held_whole(s, r, &h, ret_step, ret_without));
}

/* Each item from a rank that has it. Where replicas differ, the digests of both are known: here the odd one is taken.
 */
static void values_copy(const struct sim *s, uint32_t i, struct proc *const ranks[MAX_RANKS], uint32_t first,
			uint32_t stride, struct table *t)
{
	for (uint32_t item = first; item < ITEMS; item += stride) {
		const struct proc *from = NULL;
		for (uint32_t k = 0; k < MAX_RANKS; k++) {
			if (ranks[k] && rank_has(s, i, ranks[k], item) && (!from || ranks[k]->diverged))
				from = ranks[k];
		}
		if (from)
			t->val[item] = from->val[item];
	}
}

/* Leaves the ranks that count; their holds, as one number, tell one time from another. False: together they lack an
 * item of the node's. */
static bool keep_held(const struct sim *s, uint32_t i, bool any, struct proc *ranks[MAX_RANKS], uint64_t *ret_hold)
{
	uint64_t stop = s->nodes[i].req.stop;
	uint32_t had = 0, nkept = 0;
	*ret_hold = 0;
	for (uint32_t k = 0; k < MAX_RANKS; k++) {
		struct proc *p = ranks[k];
		if (!p || p->diverged || (!proc_held(s, p) && !any) || p->in_update ||
		    (p->step != stop && s->o.bug != SIM_BUG_HELD_STEP && !any)) {
			ranks[k] = NULL;
			continue;
		}
		*ret_hold = *ret_hold * 31 + p->hold;
		nkept++;
		for (uint32_t item = 0; item < ITEMS; item++)
			had |= (uint32_t)rank_has(s, i, p, item) << item;
	}
	const struct sw *w = &s->nodes[i].req.sw;
	uint32_t needs = sim_layout_needs(w->from, w->nfrom, w->from_layout, i);
	return nkept && (!(needs & ~had) || s->o.bug == SIM_BUG_HELD_PART);
}

/* Copied in two halves; and looked at again before the seal. */
static int capture_held(struct sim *s, uint32_t i, struct table *t)
{
	struct node *n = &s->nodes[i];
	const struct sw *w = &n->req.sw;
	struct proc *ranks[MAX_RANKS];
	uint64_t hold;
	procs_find(n, w->from_gen, w->from_incarnation, ranks);
	for (uint32_t k = 0; k < MAX_RANKS; k++) {
		if (ranks[k] && !proc_trains(ranks[k]))
			ranks[k] = NULL;
		if (ranks[k] && !proc_held(s, ranks[k]) &&
		    sim_chance(s, 50)) /* by its node alone, for it was about to fail */
			proc_hold(s, ranks[k], s->now + HELD_MS);
	}
	bool begun = n->copied_id == w->id && n->copied_stop == n->req.stop, second = t && begun;
	bool any = s->o.bug == SIM_BUG_HELD_RUNS || (s->o.bug == SIM_BUG_HELD_ANEW && begun && !n->copied_hold);
	bool there = keep_held(s, i, any, ranks, &hold);
	if (second && there && (hold == n->copied_hold || any)) {
		values_copy(s, i, ranks, 1, 2, t);
		t->sealed = t->durable = true;
		return 0;
	}
	if (t)
		sim_table_drop(n, (uint32_t)(t - n->tables));
	n->copied_id = 0;
	if (!there || second)
		return PTC_ELOST;
	if (n->disk_full)
		return PTC_ENOSPC;
	t = sim_table_add(s, n, w->from_gen, w->to_snap);
	t->has = sim_layout_needs(w->from, w->nfrom, w->from_layout, i);
	values_copy(s, i, ranks, 0, 2, t);
	t->cap_id = n->copied_id = w->id;
	t->cap_stop = n->copied_stop = n->req.stop;
	n->copied_hold = any ? 0 : hold;
	return 1;
}

/* Whether the table is not taken for the capture that is asked for, and is made anew. */
static bool captured_for_nothing(const struct sim *s, struct node *n, const struct table *t)
{
	const struct sw *w = &n->req.sw;
	if (t->cap_id != w->id || t->cap_stop != n->req.stop)
		return s->o.bug != SIM_BUG_OLD_CAPTURE;
	if (s->o.bug != (w->held ? SIM_BUG_HELD_ANEW : SIM_BUG_CAPTURE_ANEW))
		return false;
	n->copied_id = w->id;
	n->copied_stop = n->req.stop;
	n->copied_hold = 0; /* of no hold */
	return true;
}

/* The stopped ranks' bytes are copied, the ranks go on if they may, and then the table is sealed. */
int sim_op_capture(struct sim *s, uint32_t i)
{
	struct node *n = &s->nodes[i];
	const struct sw *w = &n->req.sw;
	uint64_t stop = n->req.stop;
	struct proc *ranks[MAX_RANKS];
	uint32_t nranks = old_ranks(s, i, ranks);
	struct table *t = sim_table_find(n, w->from_gen, w->to_snap);
	if (t && t->sealed && captured_for_nothing(s, n, t)) {
		sim_table_drop(n, (uint32_t)(t - n->tables));
		t = NULL;
	}
	if (t && t->sealed)
		return 0;
	if (w->held)
		return capture_held(s, i, t);
	if (t && n->copied_id == w->id && n->copied_stop == stop) {
		t->sealed = t->durable = true;
		return 0;
	}
	bool any = s->o.bug == SIM_BUG_EARLY_STOP || (s->o.bug == SIM_BUG_CAPTURE_ANEW && n->copied_id == w->id);
	if (!nranks || (!all_wait_at(s, ranks, nranks, stop) && !any))
		return PTC_ESTATE;
	if (n->disk_full)
		return PTC_ENOSPC;
	if (!t)
		t = sim_table_add(s, n, w->from_gen, w->to_snap);
	t->has = sim_layout_needs(ranks[0]->nodes, ranks[0]->n, ranks[0]->layout, i);
	values_copy(s, i, ranks, 0, 1, t);
	t->cap_id = n->copied_id = w->id;
	t->cap_stop = n->copied_stop = stop;
	for (uint32_t k = 0; k < nranks && w->kind == PTC_SWITCH_SNAPSHOT && w->run_to; k++)
		proc_release(s, &n->req, ranks[k], stop);
	return 1;
}

int sim_op_end(struct sim *s, uint32_t i)
{
	struct node *n = &s->nodes[i];
	const struct sw *w = &n->req.sw;
	for (uint32_t k = 0; k < MAX_PROCS; k++) {
		struct proc *p = &n->procs[k];
		if (p->state == PROC_NONE || p->gen != w->from_gen)
			continue;
		if (sim_chance(s, 60))
			return 1; /* it takes its time */
		p->state = PROC_NONE;
	}
	for (uint32_t k = n->ntables; k-- > 0;) {
		if (n->tables[k].snap < w->to_snap && !sim_keeps(&n->req, &n->tables[k]))
			sim_table_drop(n, k);
	}
	return 0;
}

/* On this node nobody trains; elsewhere nobody either, unless the switch was given up already: then what builds here,
 * out of everybody's reach, is ended by the FINISH that waits for this node, and never runs. A node that was left out,
 * and that nobody has cleaned since, may have one: without the others it ends no step, which check_peers sees to. */
static void check_nobody_trains(struct sim *s, uint32_t here, const struct sw *w)
{
	bool given_up = !s->etcd.intent_mod || s->etcd.intent.id != w->id;
	for (uint32_t i = 0; i < SIM_NODES; i++) {
		if (s->given_up >> i & 1 && i != here)
			continue;
		for (uint32_t k = 0; k < MAX_PROCS; k++) {
			const struct proc *p = &s->nodes[i].procs[k];
			if (proc_trains(p) && (i == here || !given_up))
				sim_bad(s, "a rank of generation %llu builds while node %u has one of %llu",
					(unsigned long long)w->to_gen, i, (unsigned long long)p->gen);
		}
	}
}

/* A new process in the place of one that others have met waits for them for ever. Only nodes with which it trains: of
 * others see sim_ranks_seen. */
static void check_not_alone(struct sim *s, uint32_t i, const struct proc *p, const uint32_t *nodes, uint32_t n)
{
	for (uint32_t k = 0; k < n * MAX_RANKS; k++) {
		struct proc *peers[MAX_RANKS];
		procs_find(&s->nodes[nodes[k / MAX_RANKS]], p->gen, p->incarnation, peers);
		const struct proc *q = peers[k % MAX_RANKS];
		if (q && q->state != PROC_FAILED && q->met[i][p->slot] && q->met[i][p->slot] != p->life)
			sim_bad(s, "node %u builds a rank of %llu.%llu alone: one of node %u has met that before it", i,
				(unsigned long long)p->gen, (unsigned long long)p->incarnation, nodes[k / MAX_RANKS]);
	}
}

/* Returns 0 once the rank has met all others, and 1 before. */
static int build_rank(struct sim *s, uint32_t i, struct proc *p)
{
	const struct sw *w = &s->nodes[i].req.sw;
	uint64_t met[SIM_NODES][MAX_RANKS] = { 0 };
	if (p->state != PROC_WAITING)
		return 0;
	for (uint32_t k = 0; k < w->nto; k++) { /* they meet */
		struct proc *peers[MAX_RANKS];
		if (!procs_find(&s->nodes[w->to[k]], w->to_gen, w->to_incarnation, peers))
			return 1;
		for (uint32_t b = 0; b < ranks_on(s, w->to[k], w->to_gen, w->to_incarnation); b++) {
			const struct proc *q = peers[b];
			if (!q || !q->building || q->state == PROC_FAILED)
				return 1;
			met[w->to[k]][b] = q->life;
		}
	}
	if (sim_chance(s, 60))
		return 1;
	p->state = PROC_BUILT;
	memcpy(p->met, met, sizeof(p->met));
	p->n = w->nto;
	memcpy(p->nodes, w->to, sizeof(p->nodes));
	p->layout = w->to_layout;
	return 0;
}

int sim_op_build(struct sim *s, uint32_t i)
{
	struct node *n = &s->nodes[i];
	const struct sw *w = &n->req.sw;
	struct proc *ranks[MAX_RANKS];
	bool waits = false;
	int rc = 0;
	if (!procs_find(n, w->to_gen, w->to_incarnation, ranks) && !were_built(s, n))
		procs_add(s, i, w->to_gen, w->to_incarnation, ranks); /* gone since START, and nobody has met them */
	for (uint32_t k = 0; k < ranks_on(s, i, w->to_gen, w->to_incarnation); k++) {
		if (!ranks[k] || ranks[k]->state == PROC_FAILED)
			return PTC_ESTATE;
		waits |= ranks[k]->state == PROC_WAITING;
	}
	if (!waits)
		return 0;
	check_nobody_trains(s, i, w);
	n->built_gen = w->to_gen;
	n->built_incarnation = w->to_incarnation;
	n->built_id = w->id;
	for (uint32_t k = 0; k < ranks_on(s, i, w->to_gen, w->to_incarnation); k++) {
		ranks[k]->building = true;
		check_not_alone(s, i, ranks[k], w->to, w->nto);
	}
	for (uint32_t k = 0; rc <= 1 && k < ranks_on(s, i, w->to_gen, w->to_incarnation); k++) {
		int one = build_rank(s, i, ranks[k]);
		rc = one ? one : rc;
	}
	return rc;
}

/* ---- FINISH: as the record says ------------------------------------------------------ */

static void proc_let_go(struct sim *s, uint32_t i, struct proc *p)
{
	struct node *n = &s->nodes[i];
	const struct record *r = &n->req.rec;
	const struct table *t = r->snap ? sim_table_find(n, r->gen, r->snap) : NULL;
	p->n = r->n;
	memcpy(p->nodes, r->nodes, sizeof(p->nodes));
	p->layout = r->layout;
	for (uint32_t k = 0; k < ITEMS; k++)
		p->val[k] = t ? t->val[k] : sim_content(k, INIT_ID);
	p->step = p->start = r->step;
	p->pub = (int64_t)r->step - 1;
	p->due = p->left = 0;
	p->in_step = p->has_stop = p->diverged = p->ready = false;
	p->state = PROC_RUN;
	n->let_gen = r->gen;
	n->let_incarnation = r->incarnation;
}

void sim_ranks_finish(struct sim *s, uint32_t i)
{
	struct node *n = &s->nodes[i];
	const struct record *r = &n->req.rec;
	bool live = n->req.has_keep && r->run == RUN_LIVE, any = s->o.bug == SIM_BUG_FINISH_ANY_INCARNATION,
	     there = false, returned = s->o.bug == SIM_BUG_OLD_RANKS && s->given_up >> i & 1;
	for (uint32_t k = 0; k < MAX_PROCS; k++) {
		struct proc *p = &n->procs[k];
		if (p->state == PROC_NONE)
			continue;
		bool old = !live || p->gen != r->gen || (p->incarnation != r->incarnation && !any);
		if (old && !(returned && proc_trains(p))) {
			p->state = PROC_NONE;
			continue;
		}
		there = true;
		if (p->state == PROC_WAITING || p->state == PROC_BUILT)
			proc_let_go(s, i, p);
		proc_release(s, &n->req, p, r->step);
	}
	if (!live || there)
		return;
	bool built =
		n->built_gen == r->gen && n->built_incarnation == r->incarnation && s->o.bug != SIM_BUG_START_BUILT;
	struct proc *ranks[MAX_RANKS];
	procs_add(s, i, r->gen, r->incarnation, ranks);
	bool began = n->began_gen == r->gen && n->began_incarnation == r->incarnation;
	bool there_yet = r->snap ? sim_table_find(n, r->gen, r->snap) != NULL : began;
	bool lost = (n->let_gen == r->gen && n->let_incarnation == r->incarnation && s->o.bug != SIM_BUG_START_LOST) ||
		    built || (!there_yet && s->o.bug != SIM_BUG_START_EMPTY);
	for (uint32_t k = 0; k < MAX_RANKS && ranks[k]; k++) {
		if (lost) { /* others have met it, or have gone on without it, or what it had is lost */
			ranks[k]->state = PROC_FAILED;
			continue;
		}
		check_not_alone(s, i, ranks[k], r->nodes, r->n);
		proc_let_go(s, i, ranks[k]);
		proc_release(s, &n->req, ranks[k], r->step);
	}
}

/* ---- training --------------------------------------------------------------------------- */

/* Whether it has gone into the step that p is in, or is behind it. */
static bool peer_in_step(struct sim *s, const struct proc *p, const struct proc *q)
{
	if (q && proc_trains(q) && q->step > p->step + 1) /* its peers have done this step without it */
		sim_bad(s, "a rank of %llu.%llu trains step %llu, another is at %llu", (unsigned long long)p->gen,
			(unsigned long long)p->incarnation, (unsigned long long)p->step, (unsigned long long)q->step);
	return q && proc_trains(q) && (q->step > p->step || (q->step == p->step && q->in_step));
}

/* Also those that FINISH has started have met by then. */
static bool all_in_step(struct sim *s, struct proc *p)
{
	uint64_t met[SIM_NODES][MAX_RANKS] = { 0 };
	for (uint32_t k = 0; k < p->n; k++) {
		struct proc *peers[MAX_RANKS];
		procs_find(&s->nodes[p->nodes[k]], p->gen, p->incarnation, peers);
		for (uint32_t b = 0; b < ranks_on(s, p->nodes[k], p->gen, p->incarnation); b++) {
			if (!peer_in_step(s, p, peers[b]))
				return false;
			met[p->nodes[k]][b] = peers[b]->life;
		}
	}
	memcpy(p->met, met, sizeof(p->met));
	return true;
}

static void check_values(struct sim *s, uint32_t i, const struct proc *p)
{
	const struct record *r = &s->etcd.rec;
	if (r->run != RUN_LIVE || p->gen != r->gen || p->incarnation != r->incarnation || p->diverged)
		return;
	if (p->step < r->step) {
		sim_bad(s, "node %u trains step %llu, behind the record's %llu", i, (unsigned long long)p->step,
			(unsigned long long)r->step);
		return;
	}
	uint64_t grown = r->grown + (p->step - r->step) * sim_weight(s, p->gen, p->incarnation);
	for (uint32_t k = 0; k < ITEMS; k++) {
		if (rank_has(s, i, p, k) && p->val[k] != sim_item_value(k, r->content, grown))
			sim_bad(s, "node %u item %u: not the record's state %llu steps on", i, k,
				(unsigned long long)(p->step - r->step));
	}
}

/* Once the job has been started again, no rank of before ends a step. */
static void check_peers(struct sim *s, uint32_t i, const struct proc *p)
{
	const struct record *r = &s->etcd.rec;
	if (r->run != RUN_LIVE || p->hold) /* one that was held may end the step that it was in */
		return;
	bool ours = p->gen == r->gen && p->incarnation == r->incarnation;
	if (ours && s->nodes[i].up) /* else nobody hears of it, but of the next of those that train with it */
		s->moved_at = s->now;
	if (!ours)
		sim_bad(s, "node %u: a rank of %llu.%llu ends a step, and the job's are of %llu.%llu", i,
			(unsigned long long)p->gen, (unsigned long long)p->incarnation, (unsigned long long)r->gen,
			(unsigned long long)r->incarnation);
}

/* At a boundary it waits, or goes into the step. */
static void proc_publish(struct sim *s, uint32_t i, struct proc *p)
{
	p->pub = (int64_t)p->step;
	if (p->has_stop && p->step >= p->stop) {
		p->state = PROC_STOPPED;
		p->left = 0;
		return;
	}
	p->in_step = true;
	if (!p->due || p->step <= p->start || p->step % SNAP_EVERY)
		return;
	s->res->left_out_due++;
	if (++p->left > LEAVE_OUT)
		sim_bad(s, "node %u: the rank of %llu.%llu has left out %u snapshots that were due", i,
			(unsigned long long)p->gen, (unsigned long long)p->incarnation, p->left);
}

static void proc_train(struct sim *s, uint32_t i, struct proc *p)
{
	bool all = p->in_step && all_in_step(s, p);
	if (!p->in_step) {
		proc_publish(s, i, p);
	} else if (!p->ready && s->o.survive && all && sim_chance(s, 50)) {
		p->ready = true;
	} else if ((p->ready && sim_chance(s, p->hold ? 15 : 1)) || all) { /* an update may take long */
		end_step(s, p, true);
		if (all) /* else it ends what it had begun with them */
			check_peers(s, i, p);
	}
	check_values(s, i, p);
}

void sim_ranks_train(struct sim *s, uint32_t i)
{
	for (uint32_t k = 0; k < nprocs(s); k++) {
		struct proc *p = &s->nodes[i].procs[k];
		if (p->state == PROC_RUN && !proc_held(s, p) && !(s->o.several && sim_chance(s, p->slot ? 70 : 10)))
			proc_train(s, i, p);
	}
	sim_post(s, 10 + sim_below(s, 30), EV_TRAIN, (int)i);
}

/* The key says what is so now: one about ranks that have been ended would count against the next attempt, whose
 * incarnation may have the same number. */
void sim_ranks_report(struct sim *s, uint32_t i)
{
	s->etcd.failed[i].gen = s->etcd.failed[i].incarnation = 0;
	memset(&s->etcd.due[i], 0, sizeof(s->etcd.due[i]));
	for (uint32_t k = 0; k < MAX_PROCS; k++) {
		const struct proc *p = &s->nodes[i].procs[k];
		if (p->state == PROC_STOPPED && p->due && p->step >= p->due) {
			s->etcd.due[i].gen = p->gen;
			s->etcd.due[i].incarnation = p->incarnation;
			s->etcd.due[i].step = p->step;
		}
		if (p->state != PROC_FAILED)
			continue;
		s->etcd.failed[i].gen = p->gen;
		s->etcd.failed[i].incarnation = p->incarnation;
	}
}

/* ptcd is another process: a stop that was set may be forgotten; who waits goes on waiting. */
void sim_ranks_restarted(struct sim *s, uint32_t i)
{
	for (uint32_t k = 0; k < nprocs(s); k++) {
		struct proc *p = &s->nodes[i].procs[k];
		if (s->o.live && sim_chance(s, 30)) /* but for one that is due, which ranks have themselves */
			p->has_stop = p->has_stop && p->due;
	}
}

void sim_ranks_lose(struct sim *s, uint32_t i)
{
	memset(s->nodes[i].procs, 0, sizeof(s->nodes[i].procs));
}

static struct proc *some_proc(struct sim *s, uint32_t i)
{
	struct proc *p = &s->nodes[i].procs[sim_below(s, nprocs(s))];
	for (uint32_t k = 0; k < MAX_PROCS && p->state == PROC_NONE; k++)
		p = &s->nodes[i].procs[k];
	return p->state == PROC_NONE ? NULL : p;
}

void sim_ranks_kill(struct sim *s, uint32_t i)
{
	struct proc *p = some_proc(s, i);
	if (!p)
		return;
	sim_say(s, "node %u: rank of %llu.%llu at step %llu fails", i, (unsigned long long)p->gen,
		(unsigned long long)p->incarnation, (unsigned long long)p->step);
	p->state = PROC_FAILED;
}

/* One value goes wrong; where it is replicated, that can be seen. The rank fails for it before long. */
void sim_ranks_diverge(struct sim *s, uint32_t i)
{
	struct proc *p = some_proc(s, i);
	if (!p || !proc_trains(p) || proc_held(s, p) || !(p->layout & 1) || p->n < 2)
		return;
	uint32_t item = 0;
	while (item < ITEMS && !rank_has(s, i, p, item))
		item++;
	if (item == ITEMS)
		return;
	sim_say(s, "node %u: a value goes wrong", i);
	p->val[item] ^= sim_rnd(s) | 1;
	p->diverged = true;
	sim_post(s, 100 + sim_below(s, 2000), EV_DOOM, (int)i);
}

void sim_ranks_doom(struct sim *s, uint32_t i)
{
	for (uint32_t k = 0; k < MAX_PROCS; k++) {
		struct proc *p = &s->nodes[i].procs[k];
		if (p->state != PROC_NONE && p->diverged)
			p->state = PROC_FAILED;
	}
}

/* ---- the end ------------------------------------------------------------------------------ */

const char *sim_ranks_not_quiet(const struct sim *s)
{
	const struct record *r = &s->etcd.rec;
	for (uint32_t i = 0; i < SIM_NODES; i++) {
		uint32_t here = 0, member = 0;
		for (uint32_t k = 0; k < r->n && r->run == RUN_LIVE; k++)
			member += r->nodes[k] == i ? ranks_on(s, i, r->gen, r->incarnation) : 0;
		for (uint32_t k = 0; k < MAX_PROCS; k++) {
			const struct proc *p = &s->nodes[i].procs[k];
			if (p->state == PROC_NONE)
				continue;
			here++;
			if (p->gen != r->gen || p->incarnation != r->incarnation)
				return "a process of another incarnation is left";
			if (p->state != PROC_RUN)
				return "a rank does not run";
		}
		if (here != member)
			return here < member ? "a rank is missing" : "a node that is out has a rank";
	}
	return NULL;
}

uint64_t sim_ranks_steps(const struct sim *s)
{
	uint64_t least = UINT64_MAX;
	for (uint32_t i = 0; i < SIM_NODES; i++) {
		for (uint32_t k = 0; k < MAX_PROCS; k++) {
			if (s->nodes[i].procs[k].state != PROC_NONE && s->nodes[i].procs[k].step < least)
				least = s->nodes[i].procs[k].step;
		}
	}
	return least;
}

bool sim_ranks_has(const struct sim *s, uint32_t node)
{
	bool any = false;
	for (uint32_t k = 0; k < MAX_PROCS; k++)
		any |= s->nodes[node].procs[k].state != PROC_NONE;
	return any;
}

/* Another node may still have ranks of a switch that was given up while its ptcd was away. In ptcd they are of an
 * incarnation of their own; here it may have the number of the next attempt's. Either way nobody asks for their steps.
 */
uint64_t sim_ranks_seen(const struct sim *s, const struct record *r)
{
	uint64_t least = UINT64_MAX;
	bool all = s->o.bug == SIM_BUG_ASKS_ALL;
	for (uint32_t a = 0; a < (all ? SIM_NODES : r->n); a++) {
		uint32_t i = all ? a : r->nodes[a];
		for (uint32_t k = 0; k < MAX_PROCS && s->etcd.key[i]; k++) {
			const struct proc *p = &s->nodes[i].procs[k];
			if (p->state != PROC_NONE && p->gen == r->gen && p->incarnation == r->incarnation &&
			    p->step < least)
				least = p->step;
		}
	}
	return least;
}

bool sim_ranks_leave_out(const struct sim *s)
{
	const struct record *r = &s->etcd.rec;
	bool any = false;
	for (uint32_t i = 0; r->run == RUN_LIVE && i < SIM_NODES; i++) {
		for (uint32_t k = 0; k < MAX_PROCS; k++) {
			const struct proc *p = &s->nodes[i].procs[k];
			if (p->state == PROC_NONE || p->gen != r->gen || p->incarnation != r->incarnation)
				continue;
			if (!proc_trains(p) || !p->has_stop || p->stop <= next_due(p->step))
				return false;
			any = true;
		}
	}
	return any;
}
