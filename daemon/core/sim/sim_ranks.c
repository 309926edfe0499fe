/* SPDX-License-Identifier: Apache-2.0 */
/* The training ranks of the simulation: one on each node, a process of its own.
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

static struct proc *proc_find(struct node *n, uint64_t gen, uint64_t incarnation)
{
	for (uint32_t k = 0; k < MAX_PROCS; k++) {
		struct proc *p = &n->procs[k];
		if (p->state != PROC_NONE && p->gen == gen && p->incarnation == incarnation)
			return p;
	}
	return NULL;
}

static struct proc *proc_add(struct sim *s, struct node *n, uint64_t gen, uint64_t incarnation)
{
	struct proc *p = n->procs;
	while (p < n->procs + MAX_PROCS && p->state != PROC_NONE)
		p++;
	if (p == n->procs + MAX_PROCS) {
		sim_bad(s, "node %d hoards processes", (int)(n - s->nodes));
		p = n->procs;
	}
	*p = (struct proc){ .state = PROC_WAITING, .gen = gen, .incarnation = incarnation, .life = ++s->token };
	return p;
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
	bool there = proc_find(n, w->to_gen, w->to_incarnation);
	if (!there && were_built(s, n))
		return PTC_ESTATE; /* before it notes that they begin: so does the agent */
	n->began_gen = w->to_gen;
	n->began_incarnation = w->to_incarnation;
	if (!there)
		proc_add(s, n, w->to_gen, w->to_incarnation);
	return 0;
}

/* The rank of the old generation, if it can still be stopped. */
static struct proc *old_rank(struct node *n)
{
	struct proc *p = proc_find(n, n->req.sw.from_gen, n->req.sw.from_incarnation);
	return p && proc_trains(p) ? p : NULL;
}

int sim_op_arm(struct sim *s, uint32_t i, bool *ret_passed, uint64_t *ret_step)
{
	struct node *n = &s->nodes[i];
	struct proc *p = old_rank(n);
	uint64_t stop = n->req.stop;
	if (!p)
		return PTC_ESTATE;
	bool waits_there = p->state == PROC_STOPPED && p->step == stop;
	*ret_passed = p->pub >= (int64_t)stop && !waits_there;
	*ret_step = p->pub > 0 ? (uint64_t)p->pub : 0;
	if (*ret_passed && p->state == PROC_STOPPED && sim_chance(s, 50))
		return 0; /* may stay where it is */
	p->has_stop = true;
	p->due = 0;
	p->stop = *ret_passed ? (uint64_t)p->pub + 1 : stop;
	if (p->step < p->stop)
		proc_go_on(p);
	return 0;
}

int sim_op_stop(struct sim *s, uint32_t i)
{
	struct node *n = &s->nodes[i];
	const struct proc *p = old_rank(n);
	if (s->o.bug == SIM_BUG_EARLY_STOP)
		return 0;
	if (!p || p->pub > (int64_t)n->req.stop)
		return PTC_ESTATE;
	return p->state == PROC_STOPPED && p->step == n->req.stop ? 0 : 1;
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

/* The greatest step, after the record's, at which held ranks have every item; *ret_without: nodes without such a rank.
 */
static bool held_whole(const struct record *r, struct proc *const procs[SIM_NODES], uint64_t *ret_step,
		       uint32_t *ret_without)
{
	for (uint32_t k = 0; k < SIM_NODES; k++) {
		uint32_t without = (1u << SIM_NODES) - 1;
		for (uint32_t i = 0; procs[k] && i < SIM_NODES; i++)
			without &= ~((uint32_t)(procs[i] && !procs[i]->in_update && procs[i]->step == procs[k]->step)
				     << i);
		if (!procs[k] || procs[k]->step <= r->step || !sim_covered(r->nodes, r->n, r->layout, without))
			continue;
		*ret_step = procs[k]->step;
		*ret_without = without;
		return true;
	}
	return false;
}

/* Ranks that have their gradients, and are a step behind the others, end that step. */
static bool let_on(struct sim *s, struct proc *const procs[SIM_NODES])
{
	uint64_t greatest = 0;
	bool any = false;
	for (uint32_t k = 0; k < SIM_NODES; k++)
		greatest = procs[k] && !procs[k]->in_update ? PTC_MAX(greatest, procs[k]->step) : greatest;
	for (uint32_t k = 0; k < SIM_NODES; k++) {
		if (!procs[k] || procs[k]->in_update || !procs[k]->ready || procs[k]->step + 1 != greatest)
			continue;
		end_step(s, procs[k], s->o.bug != SIM_BUG_LET_ON_EARLY);
		s->res->let_on++;
		any = true;
	}
	return any;
}

bool sim_ranks_hold(struct sim *s, const struct record *r, uint64_t *ret_step, uint32_t *ret_without)
{
	uint64_t until = s->now + 1 + sim_below(s, sim_chance(s, 50) ? HELD_MS : 60);
	struct proc *procs[SIM_NODES] = { 0 };
	for (uint32_t k = 0; k < r->n; k++) {
		uint32_t i = r->nodes[k];
		struct proc *p = proc_find(&s->nodes[i], r->gen, r->incarnation);
		/* a wrong value is found by what another replica has, and that may be lost; this model leaves it out */
		if (!p || !proc_trains(p) || p->diverged || !s->nodes[i].up || !s->etcd.key[i] || sim_chance(s, 3))
			continue;
		p->held_until = until;
		p->hold = ++s->token;
		p->in_update = p->ready && sim_chance(s, 50);
		procs[i] = p;
	}
	return held_whole(r, procs, ret_step, ret_without) ||
	       (let_on(s, procs) && held_whole(r, procs, ret_step, ret_without));
}

/* Copied in two halves; and looked at again before the seal. */
static int capture_held(struct sim *s, uint32_t i, struct table *t)
{
	struct node *n = &s->nodes[i];
	const struct sw *w = &n->req.sw;
	struct proc *p = old_rank(n);
	if (p && !proc_held(s, p) && sim_chance(s, 50)) { /* by its node alone, for it was about to fail */
		p->held_until = s->now + HELD_MS;
		p->hold = ++s->token;
		p->in_update = p->ready && sim_chance(s, 50);
	}
	bool begun = n->copied_id == w->id && n->copied_stop == n->req.stop, second = t && begun;
	bool any = s->o.bug == SIM_BUG_HELD_RUNS || (s->o.bug == SIM_BUG_HELD_ANEW && begun && !n->copied_hold);
	bool there = p && !p->diverged && (proc_held(s, p) || any) && !p->in_update &&
		     (p->step == n->req.stop || s->o.bug == SIM_BUG_HELD_STEP || any);
	if (second && there && (p->hold == n->copied_hold || any)) {
		for (uint32_t k = 1; k < ITEMS; k += 2)
			t->val[k] = p->val[k];
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
	t->has = sim_layout_needs(p->nodes, p->n, p->layout, i);
	for (uint32_t k = 0; k < ITEMS; k += 2)
		t->val[k] = p->val[k];
	t->cap_id = n->copied_id = w->id;
	t->cap_stop = n->copied_stop = n->req.stop;
	n->copied_hold = any ? 0 : p->hold;
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

/* The stopped rank's bytes are copied, the rank goes on if it may, and then the table is sealed. */
int sim_op_capture(struct sim *s, uint32_t i)
{
	struct node *n = &s->nodes[i];
	const struct sw *w = &n->req.sw;
	uint64_t stop = n->req.stop;
	struct proc *p = old_rank(n);
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
	if (!p || ((p->state != PROC_STOPPED || p->step != stop) && !any))
		return PTC_ESTATE;
	if (n->disk_full)
		return PTC_ENOSPC;
	if (!t)
		t = sim_table_add(s, n, w->from_gen, w->to_snap);
	t->has = sim_layout_needs(p->nodes, p->n, p->layout, i);
	memcpy(t->val, p->val, sizeof(t->val));
	t->cap_id = n->copied_id = w->id;
	t->cap_stop = n->copied_stop = stop;
	if (w->kind == PTC_SWITCH_SNAPSHOT && w->run_to) {
		proc_release(s, &n->req, p, stop);
	}
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
	for (uint32_t k = 0; k < n; k++) {
		const struct proc *q = proc_find(&s->nodes[nodes[k]], p->gen, p->incarnation);
		if (q && q->state != PROC_FAILED && q->met[i] && q->met[i] != p->life)
			sim_bad(s, "node %u builds a rank of %llu.%llu alone: that of node %u has met the one before",
				i, (unsigned long long)p->gen, (unsigned long long)p->incarnation, nodes[k]);
	}
}

int sim_op_build(struct sim *s, uint32_t i)
{
	struct node *n = &s->nodes[i];
	const struct sw *w = &n->req.sw;
	struct proc *p = proc_find(n, w->to_gen, w->to_incarnation);
	if (!p && !were_built(s, n)) /* gone since START, and nobody has met it */
		p = proc_add(s, n, w->to_gen, w->to_incarnation);
	if (!p || p->state == PROC_FAILED)
		return PTC_ESTATE;
	if (p->state != PROC_WAITING)
		return 0;
	check_nobody_trains(s, i, w);
	p->building = true;
	check_not_alone(s, i, p, w->to, w->nto);
	n->built_gen = w->to_gen;
	n->built_incarnation = w->to_incarnation;
	n->built_id = w->id;
	uint64_t met[SIM_NODES] = { 0 };
	for (uint32_t k = 0; k < w->nto; k++) { /* they meet */
		const struct proc *q = proc_find(&s->nodes[w->to[k]], w->to_gen, w->to_incarnation);
		if (!q || !q->building || q->state == PROC_FAILED)
			return 1;
		met[w->to[k]] = q->life;
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
	struct proc *p = proc_add(s, n, r->gen, r->incarnation);
	bool began = n->began_gen == r->gen && n->began_incarnation == r->incarnation;
	bool there_yet = r->snap ? sim_table_find(n, r->gen, r->snap) != NULL : began;
	if ((n->let_gen == r->gen && n->let_incarnation == r->incarnation && s->o.bug != SIM_BUG_START_LOST) || built ||
	    (!there_yet && s->o.bug != SIM_BUG_START_EMPTY)) {
		p->state = PROC_FAILED; /* others have met it, or have gone on without it, or what it had is lost */
		return;
	}
	check_not_alone(s, i, p, r->nodes, r->n);
	proc_let_go(s, i, p);
	proc_release(s, &n->req, p, r->step);
}

/* ---- training --------------------------------------------------------------------------- */

/* Also those that FINISH has started have met by then. */
static bool all_in_step(struct sim *s, struct proc *p)
{
	uint64_t met[SIM_NODES] = { 0 };
	for (uint32_t k = 0; k < p->n; k++) {
		const struct proc *q = proc_find(&s->nodes[p->nodes[k]], p->gen, p->incarnation);
		if (q && proc_trains(q) && q->step > p->step + 1) /* its peers have done this step without it */
			sim_bad(s, "a rank of %llu.%llu trains step %llu, another is at %llu",
				(unsigned long long)p->gen, (unsigned long long)p->incarnation,
				(unsigned long long)p->step, (unsigned long long)q->step);
		if (!q || !proc_trains(q) || (q->step <= p->step && !(q->step == p->step && q->in_step)))
			return false;
		met[p->nodes[k]] = q->life;
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
	uint32_t needs = sim_layout_needs(p->nodes, p->n, p->layout, i);
	for (uint32_t k = 0; k < ITEMS; k++) {
		if (needs >> k & 1 && p->val[k] != sim_item_value(k, r->content, grown))
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
	for (uint32_t k = 0; k < MAX_PROCS; k++) {
		if (s->nodes[i].procs[k].state == PROC_RUN && !proc_held(s, &s->nodes[i].procs[k]))
			proc_train(s, i, &s->nodes[i].procs[k]);
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
	for (uint32_t k = 0; k < MAX_PROCS; k++) {
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
	struct proc *p = &s->nodes[i].procs[sim_below(s, MAX_PROCS)];
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
	uint32_t needs = sim_layout_needs(p->nodes, p->n, p->layout, i);
	if (!needs)
		return;
	sim_say(s, "node %u: a value goes wrong", i);
	p->val[__builtin_ctz(needs)] ^= sim_rnd(s) | 1;
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
			member += r->nodes[k] == i;
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
