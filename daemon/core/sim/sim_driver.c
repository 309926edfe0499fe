/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked for, and what goes wrong.
 *
 * Happy path: sim_on_driver asks the leader's core for the next switch: by a script where faults are not random,
 * else by chance; sim_on_fault makes one random fault after the other until FAULTS_MS, heals everything, and the
 * run ends calm.
 * Failure modes: more requests than MAX_ASKED, a rank that was lost where no fault was, and ranks given up that
 * still train are told to sim_bad(). */
#include "daemon/core/sim/internal.h"

#include "base/check.h"

#include <string.h>

/* ---- what is asked for ----------------------------------------------------------- */

/* What may be asked of a job whose ranks run, or may run. */
static void request_live(struct sim *s, struct sw *w, const struct record *r)
{
	uint32_t dice = s->calm || (s->o.survive && r->run != RUN_LIVE) ? 0 : sim_below(s, 100);
	if (s->calm && s->o.lose && r->run != RUN_LIVE && sim_record_lost(s, r)) {
		w->kind = PTC_SWITCH_IMPORT;
		return;
	}
	w->kind = PTC_SWITCH_RESIZE;
	w->run_from = r->run == RUN_LIVE;
	w->run_to = true;
	w->stop = sim_chance(s, 50) ? 0 : r->step + sim_below(s, 60);
	if (r->run == RUN_LIVE && dice >= 50) {
		w->kind = dice >= 92 ? PTC_SWITCH_HALT : PTC_SWITCH_SNAPSHOT;
		w->run_to = dice < 80 || s->o.survive;
		w->run = dice & 1 ? RUN_STOPPED : RUN_FAILED;
		if (dice >= 88 && dice < 92)
			w->kind = PTC_SWITCH_RESIZE; /* ranks become state */
	} else if (r->run != RUN_LIVE && r->snap && dice >= 70) {
		w->run_to = false;
	} else if (r->run != RUN_LIVE && (r->gen == 0 || r->snap) && dice >= 55) {
		w->kind = PTC_SWITCH_IMPORT;
		w->run_to = false;
	}
}

static void request_numbers(struct sw *w)
{
	bool resize = w->kind == PTC_SWITCH_RESIZE;
	if (w->kind == PTC_SWITCH_SNAPSHOT || w->kind == PTC_SWITCH_HALT) {
		w->to_gen = w->from_gen;
		w->nto = 0;
	}
	if (w->kind == PTC_SWITCH_HALT) {
		w->to_snap = w->from_snap;
		w->run_from = w->run_to = false;
	}
	if (resize && w->from_snap == 0 && !w->run_from)
		w->to_snap = 0; /* from nothing */
}

static void request_nodes(struct sim *s, struct sw *w)
{
	const uint32_t most = s->o.bridge ? SIM_NODES - 1 : SIM_NODES; /* one is left for copies */
	while (w->nto == 0) {
		for (uint32_t i = 0; i < SIM_NODES && w->nto < most; i++) {
			if (sim_chance(s, 60) && !(s->calm && s->nodes[i].gone))
				w->to[w->nto++] = i;
		}
	}
	w->to_layout = sim_below(s, 4);
	if (s->o.bridge)
		w->to_layout &= ~1u;
	else if (s->o.lose && w->nto > 1 && sim_chance(s, s->o.survive ? 100 : 75))
		w->to_layout |= 1; /* twice */
}

/* Back to one of the older snapshots, where ranks do not run. */
static bool request_rollback(struct sim *s, int i, struct sw *w, const struct record *r)
{
	const struct older *o = &s->ctls[i].older;
	if (!s->o.keep || s->calm || !o->n || !r->snap || r->run == RUN_LIVE || !sim_chance(s, 30))
		return false;
	w->kind = PTC_SWITCH_IMPORT;
	w->stored = true;
	w->source = o->v[sim_below(s, o->n)];
	w->nfrom = sim_placed(w->source.nodes, w->source.n, w->source.without, w->from);
	w->without = 0;
	return true;
}

/* The record's snapshot is not on the nodes of its layout any more: to its copy, or to the bridge. */
static bool request_back(struct sim *s, int i, struct sw *w, const struct record *r)
{
	const struct record *b = &s->ctls[i].older.bridge;
	struct record alone = *r;
	alone.copy = 0;
	if (!s->o.bridge || !r->snap || r->run == RUN_LIVE || !sim_record_lost(s, &alone))
		return false;
	bool whole = b->snap && (!sim_record_lost(s, b) || s->o.bug == SIM_BUG_YIELD_BLIND); /* so the nodes say */
	whole = whole && (!s->ctls[i].shed || s->o.bug == SIM_BUG_BACK_SHED);
	if (sim_record_lost(s, r) && !whole)
		return false;
	s->res->went_back++;
	w->kind = PTC_SWITCH_IMPORT;
	w->stored = true;
	w->source = sim_record_lost(s, r) ? *b : *r;
	w->nfrom = sim_placed(w->source.nodes, w->source.n, w->source.without, w->from);
	w->without = 0;
	return true;
}

static void request_random(struct sim *s, int i, struct sw *w, const struct record *r)
{
	request_nodes(s, w);
	if (request_back(s, i, w, r) || request_rollback(s, i, w, r))
		return;
	if (s->o.live) {
		request_live(s, w, r);
	} else if (w->from_gen && (sim_chance(s, 10) || (s->calm && s->o.lose && sim_record_lost(s, r)))) {
		w->kind = PTC_SWITCH_IMPORT;
		w->nfrom = sim_chance(s, 50) ? w->nfrom : 0;
	}
}

static void request_script(struct sim *s, struct sw *w)
{
	static const struct {
		uint32_t n, to[SIM_NODES], layout;
	} script[WANT_COMMIT] = { { 3, { 0, 1, 2 }, 1 }, { 2, { 1, 3 }, 0 }, { 4, { 3, 2, 0, 1 }, 1 } };
	uint32_t k = PTC_MIN(s->res->commits, WANT_COMMIT - 1u);
	for (uint32_t i = 0; i < script[k].n; i++) {
		if (!s->nodes[script[k].to[i]].gone)
			w->to[w->nto++] = script[k].to[i];
	}
	w->to_layout = s->o.lose ? script[k].layout | 1 : script[k].layout;
}

/* Without random faults, with ranks: each kind once, and again where nodes join and leave. */
static const struct {
	int kind;
	bool live; /* needs ranks that run; else that none run */
	bool run_to;
	uint32_t n, to[SIM_NODES], layout;
} live_script[] = {
	{ PTC_SWITCH_RESIZE, false, true, 2, { 0, 1 }, 1 },    /* first run */
	{ PTC_SWITCH_SNAPSHOT, true, true },                   /* ranks go on */
	{ PTC_SWITCH_RESIZE, true, true, 3, { 1, 2, 3 }, 1 },  /* two to three nodes */
	{ PTC_SWITCH_SNAPSHOT, true, false },                  /* stop */
	{ PTC_SWITCH_RESIZE, false, true, 3, { 3, 0, 2 }, 0 }, /* runs again, elsewhere */
	{ PTC_SWITCH_HALT, true, false },
	{ PTC_SWITCH_RESIZE, false, true, 1, { 2 }, 0 },
	{ PTC_SWITCH_RESIZE, true, true, 2, { 0, 2 }, 1 },
};

uint32_t sim_script_length(void)
{
	return PTC_ARRAY_LEN(live_script);
}

/* The script's next, or what it needs first: after a failure the job has to run again. */
static void request_live_script(struct sim *s, struct sw *w)
{
	uint32_t k = PTC_MIN(s->script_at, sim_script_length() - 1);
	bool live = s->etcd.rec.run == RUN_LIVE, fits = live_script[k].live == live;
	w->kind = PTC_SWITCH_RESIZE;
	w->run_from = live;
	w->run_to = true;
	w->stop = s->etcd.rec.step + k * 3;
	w->nto = PTC_MAX(w->nfrom, 1);
	memcpy(w->to, w->from, sizeof(w->to));
	if (!fits)
		return;
	s->script_id = w->id;
	w->kind = live_script[k].kind;
	w->run_to = live_script[k].run_to;
	w->run = RUN_STOPPED;
	w->nto = live_script[k].n;
	memcpy(w->to, live_script[k].to, sizeof(w->to));
	w->to_layout = live_script[k].layout;
}

/* A rank of what the record says has ended badly. */
static bool rank_failed(const struct sim *s)
{
	const struct record *r = &s->etcd.rec;
	for (uint32_t i = 0; r->run == RUN_LIVE && i < SIM_NODES; i++) {
		if (s->etcd.failed[i].gen == r->gen && s->etcd.failed[i].incarnation == r->incarnation)
			return true;
	}
	return false;
}

/* Of the record's nodes, as the controller sees them. */
static bool any_down(const struct sim *s, int i)
{
	const struct ctl *c = &s->ctls[i];
	bool down = false;
	for (uint32_t k = 0; s->o.lose && k < c->rec.n; k++)
		down |= c->down_at[c->rec.nodes[k]] != 0;
	return down;
}

/* Some ptcd of the job's nodes has run since a rank ended its last step, and so could say that it did. */
static bool step_was_seen(const struct sim *s, const struct record *r)
{
	for (uint32_t k = 0; k < r->n; k++)
		if (s->nodes[r->nodes[k]].up && s->nodes[r->nodes[k]].up_at <= s->moved_at)
			return true;
	return false;
}

/* The ranks are given up, to be started again elsewhere; from what those hold that are left, if that is all. What a
 * controller without the lock asks for comes to nothing: it may have seen neither that a node is back nor that ranks go
 * on. */
static void request_recovery(struct sim *s, int i, struct sw *w, const struct record *r)
{
	uint32_t without;

	if (sim_leader(s) == &s->ctls[i] && s->now - s->moved_at < LOST_MS / 2 && step_was_seen(s, r))
		sim_bad(s, "ranks are given up that have ended a step %llu ms ago",
			(unsigned long long)(s->now - s->moved_at));
	s->res->recovered++;
	w->kind = PTC_SWITCH_HALT;
	w->run = RUN_FAILED;
	w->recovers = true;
	if (s->o.bug != SIM_BUG_NO_HALT && sim_chance(s, 80) && sim_ranks_hold(s, r, &w->stop, &without)) {
		w->kind = PTC_SWITCH_SNAPSHOT;
		w->run_from = w->held = true;
		w->without |= without;
	}
	if (s->o.bug != SIM_BUG_NO_HALT)
		return;
	w->kind = PTC_SWITCH_RESIZE;
	w->run_to = true;
	request_nodes(s, w);
}

/* Ranks wait where a snapshot is due, and have said so. */
static bool ranks_due(const struct sim *s, const struct record *r, uint64_t *ret_step)
{
	*ret_step = 0;
	for (uint32_t i = 0; r->run == RUN_LIVE && i < SIM_NODES; i++) {
		if (s->etcd.due[i].gen == r->gen && s->etcd.due[i].incarnation == r->incarnation)
			*ret_step = PTC_MAX(*ret_step, s->etcd.due[i].step);
	}
	return *ret_step > r->step;
}

static void request_due(struct sim *s, struct sw *w, uint64_t step)
{
	s->res->due++;
	w->kind = PTC_SWITCH_SNAPSHOT;
	w->run_from = w->run_to = true;
	w->stop = step;
}

static void request_fill(struct sim *s, int i, struct sw *w, const struct record *r)
{
	uint64_t due;
	w->kind = r->gen ? PTC_SWITCH_RESIZE : PTC_SWITCH_IMPORT;
	w->to_gen = r->gen + 1;
	w->to_snap = r->snap + 1;
	w->nfrom = r->n;
	w->without = s->o.bug == SIM_BUG_COUNT_RETURNED ? 0 : r->without;
	memcpy(w->from, r->nodes, sizeof(w->from));
	w->from_layout = r->layout;
	w->from_incarnation = r->incarnation;
	w->to_incarnation = r->incarnation + 1;
	if (s->o.live && rank_failed(s)) {
		if (!s->o.faults && s->o.victim < SIM_VICTIM_STATE)
			sim_bad(s, "a rank was lost, and no machine or rank has failed");
		w->kind = PTC_SWITCH_HALT;
		w->run = RUN_FAILED;
		w->recovers = any_down(s, i);
	} else if (sim_ctl_gives_up(s, i)) {
		request_recovery(s, i, w, r);
	} else if (ranks_due(s, r, &due) && (s->calm || sim_chance(s, 70))) {
		request_due(s, w, due);
	} else if (s->o.faults) {
		request_random(s, i, w, r);
	} else if (s->o.live) {
		request_live_script(s, w);
	} else {
		request_script(s, w);
	}
	request_numbers(w);
}

static void request(struct sim *s, int i)
{
	struct ctl *c = &s->ctls[i];
	const struct record *r = &c->rec;
	struct sw w = { .id = ++s->next_id, .from_gen = r->gen, .from_snap = r->snap };
	request_fill(s, i, &w, r);
	if (ptc_job_phase(c->job) == PTC_JOB_IDLE) {
		c->sw = w;
		memset(c->captured, 0, sizeof(c->captured));
	}
	if (c->nasked == MAX_ASKED) {
		sim_bad(s, "%d requests, and no end", MAX_ASKED);
		return;
	}
	c->asked[c->nasked++] = (struct asked){ .id = w.id };
	struct told view;
	sim_switch_view(&w, &view);
	struct ptc_job_event e = { .kind = PTC_EV_SWITCH, .request = &view.s };
	sim_ctl_feed(s, i, &e);
}

uint32_t sim_commits_wanted(const struct sim *s)
{
	return s->o.faults ? s->commits_at_calm + 1 : WANT_COMMIT;
}

/* More is wanted than the job is now. */
static bool wants_more(struct sim *s, int i)
{
	uint64_t due;
	if (!s->o.live)
		return s->res->commits < sim_commits_wanted(s);
	while (!s->o.faults && s->script_at < sim_script_length() &&
	       sim_listed(s->committed, s->ncommitted, s->script_id)) {
		s->script_at++;
		s->script_id = 0;
	}
	bool more = s->o.faults ? s->res->commits < sim_commits_wanted(s) : s->script_at < sim_script_length();
	return more || s->etcd.rec.run != RUN_LIVE || rank_failed(s) || sim_ctl_gives_up(s, i) ||
	       ranks_due(s, &s->ctls[i].rec, &due);
}

void sim_on_driver(struct sim *s)
{
	sim_post(s, 40 + sim_below(s, 80), EV_DRIVER, 0);
	struct ctl *c = s->o.faults && !s->calm ? &s->ctls[sim_below(s, SIM_CTLS)] : sim_leader(s);
	if (!c || !c->job)
		return;
	int i = (int)(c - s->ctls);
	if (s->o.bridge && c == sim_leader(s))
		sim_copy_keeper(s, c);
	bool idle = ptc_job_phase(c->job) == PTC_JOB_IDLE;
	if (!s->o.faults || s->calm) {
		if (wants_more(s, i) && idle)
			request(s, i);
		return;
	}
	bool calm_job = s->o.survive && s->etcd.rec.run == RUN_LIVE && !rank_failed(s) && !sim_ctl_gives_up(s, i);
	if (sim_chance(s, calm_job ? 1 : idle ? 40 : 3)) {
		request(s, i);
	} else if (sim_chance(s, 4)) {
		struct ptc_job_event e = { .kind = PTC_EV_ABORT, .status = PTC_ECANCELED, .text = "told to" };
		sim_ctl_feed(s, i, &e);
	}
}

/* ---- what goes wrong ------------------------------------------------------------- */

static void heal(struct sim *s)
{
	memset(s->cut_cn, 0, sizeof(s->cut_cn));
	memset(s->cut_ce, 0, sizeof(s->cut_ce));
	memset(s->cut_ne, 0, sizeof(s->cut_ne));
	memset(s->cut_nn, 0, sizeof(s->cut_nn));
	for (uint32_t i = 0; i < SIM_NODES; i++)
		s->nodes[i].disk_full = false;
	for (uint32_t i = 0; (s->calm || s->o.live) && i < SIM_NODES; i++)
		s->nodes[i].tight = s->nodes[i].only_less = false;
}

static void fault_random(struct sim *s)
{
	uint32_t n = sim_below(s, SIM_NODES), m = sim_below(s, SIM_NODES), c = sim_below(s, SIM_CTLS);
	uint64_t later = sim_chance(s, 50) ? 5 + sim_below(s, 300) : 1000 + sim_below(s, 5000);
	if (s->o.survive && !sim_chance(s, 15)) {
		sim_loss_again(s);
		return;
	}
	if (s->o.tight && sim_chance(s, s->o.live ? 40 : 15)) {
		s->nodes[n].tight ^= true;
		s->nodes[n].only_less = sim_chance(s, 15);
		return;
	}
	if (s->o.lose && sim_chance(s, 25)) {
		sim_loss_fault(s);
		return;
	}
	switch (sim_below(s, s->o.live ? 12 : 9)) {
	case 9:
		if (s->nodes[n].up)
			sim_restart_post(s, EV_RESTART_NODE, (int)n, later);
		sim_machine_crash(s, n);
		break;
	case 10:
		sim_ranks_kill(s, n);
		break;
	case 11:
		sim_ranks_diverge(s, n);
		break;
	case 0:
	case 1:
		if (s->nodes[n].up)
			sim_restart_post(s, EV_RESTART_NODE, (int)n, later);
		sim_node_crash(s, n);
		break;
	case 2:
		if (s->ctls[c].alive)
			sim_restart_post(s, EV_RESTART_CTL, (int)c, later);
		sim_ctl_crash(s, (int)c);
		break;
	case 3:
		s->cut_cn[c][n] ^= true;
		break;
	case 4:
		s->cut_ce[c] ^= true;
		break;
	case 5:
		s->cut_ne[n] ^= true;
		break;
	case 6:
		s->cut_nn[n][m] = s->cut_nn[m][n] = !s->cut_nn[n][m] && n != m;
		break;
	case 7:
		s->nodes[n].disk_full ^= true;
		break;
	default:
		if (sim_chance(s, 50)) {
			s->etcd.lock_rev = 0;
			s->etcd.rev++;
		}
	}
}

void sim_on_fault(struct sim *s)
{
	if (s->now >= FAULTS_MS) {
		sim_say(s, "faults end");
		s->calm = true;
		s->commits_at_calm = s->res->commits;
		heal(s);
		return;
	}
	if (sim_chance(s, 25))
		heal(s);
	else
		fault_random(s);
	sim_post(s, 50 + sim_below(s, 600), EV_FAULT, 0);
}

void sim_on_restart(struct sim *s, const struct ev *ev)
{
	s->restarts_left--;
	if (ev->kind == EV_RESTART_NODE) {
		sim_node_start(s, (uint32_t)ev->who);
		return;
	}
	s->ctls[ev->who].alive = true;
	s->cut_ce[ev->who] = false;
}
