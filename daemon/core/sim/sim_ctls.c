/* SPDX-License-Identifier: Apache-2.0 */
/* Controllers: the shell around a real job core, with what it sends, reads and watches.
 *
 * Happy path: whoever gets the lock reads the record and the intent, starts a core, and performs its updates in
 * order; answers, watches and timers become its events.
 * Failure modes: the controller crashes, or loses the lock and learns it late; a message or its answer is lost, so
 * a time limit answers instead; an outcome stays unknown. In a run without random faults, the one fault of that
 * run comes here, before or after the update that its options name. A wrong or second DONE is told to sim_bad(). */
#include "daemon/core/sim/internal.h"

#include "base/check.h"

#include <string.h>

static void ctl_forget(struct ctl *c)
{
	c->job = ptc_job_free(c->job);
	c->fence = 0;
	c->reading = false;
	c->nasked = 0;
	memset(c->seen, 0, sizeof(c->seen));
	memset(c->down_at, 0, sizeof(c->down_at));
	memset(c->told_lost, 0, sizeof(c->told_lost));
	c->still_since = 0;
	c->yielded = c->tell = 0;
	c->no_room = c->shed = 0;
	c->left_out = false;
}

void sim_ctl_crash(struct sim *s, int i)
{
	struct ctl *c = &s->ctls[i];
	if (!c->alive)
		return;
	sim_say(s, "ctl %d crashes", i);
	ctl_forget(c);
	c->alive = false;
	c->inc++;
}

static struct ev *ctl_local(struct sim *s, int i, enum kind kind, uint64_t delay, uint64_t seq)
{
	struct ev *ev = sim_post(s, delay, kind, i);
	ev->inc = s->ctls[i].inc;
	ev->seq = seq;
	return ev;
}

/* The one fault of a run without random ones. */
static void inject(struct sim *s, int i)
{
	if (s->o.lose && s->o.victim >= SIM_VICTIM_GONE) {
		uint32_t n = (s->o.victim - SIM_VICTIM_GONE) % SIM_NODES;
		sim_machine_destroy(s, n, s->o.victim < SIM_VICTIM_EMPTY);
		if (s->o.victim >= SIM_VICTIM_EMPTY)
			sim_restart_later(s, n, s->o.restart_ms);
		return;
	}
	if (s->o.victim >= SIM_VICTIM_MACHINE && s->o.victim < SIM_VICTIM_COUNT) {
		uint32_t n = (s->o.victim - SIM_VICTIM_MACHINE) % SIM_NODES;
		if (s->o.victim >= SIM_VICTIM_RANK) {
			sim_ranks_kill(s, n);
			return;
		}
		sim_machine_crash(s, n);
		sim_restart_post(s, EV_RESTART_NODE, (int)n, s->o.restart_ms);
		return;
	}
	if (s->o.victim < SIM_NODES) {
		sim_node_crash(s, s->o.victim);
		sim_restart_post(s, EV_RESTART_NODE, (int)s->o.victim, s->o.restart_ms);
	} else if (s->o.victim == SIM_VICTIM_CTL) {
		sim_ctl_crash(s, i);
		sim_restart_post(s, EV_RESTART_CTL, i, s->o.restart_ms);
	} else if (s->o.victim == SIM_VICTIM_ABORT) {
		ctl_local(s, i, EV_ABORT, 0, 0);
	} else {
		sim_say(s, "lock %llu is lost", (unsigned long long)s->etcd.lock_rev);
		s->etcd.lock_rev = 0;
		s->etcd.rev++;
		s->cut_ce[i] = s->o.restart_ms >= TTL_MS;
		sim_restart_post(s, EV_RESTART_CTL, i, s->o.restart_ms);
	}
}

/* What the job goes back to is not to go. */
static bool goes_to_bridge(const struct sim *s, const struct ctl *c)
{
	return c->sw.stored && c->sw.source.snap == c->older.bridge.snap && s->o.bug != SIM_BUG_YIELD_SOURCE;
}

/* How many of the snapshots that are due the node's ranks leave out. */
static uint32_t leaves_out(const struct sim *s, struct ctl *c, const struct ptc_job_update *u)
{
	if (u->op == PTC_OP_CAPTURE)
		return sim_will_leave_out(s, c);
	if (u->op != PTC_OP_FINISH || !u->has_keep || c->rec.run != RUN_LIVE)
		return 0;
	c->left_out = sim_leaves_out(s, c) > 0;
	return sim_leaves_out(s, c);
}

static void up_send(struct sim *s, int i, const struct ptc_job_update *u)
{
	struct ctl *c = &s->ctls[i];
	struct node *n = &s->nodes[u->node];
	bool cancel = u->kind == PTC_UP_CANCEL;
	uint32_t leave_out = cancel ? 0 : leaves_out(s, c, u);
	c->sent[u->node] = cancel ? 0 : u->seq;
	c->held |= !cancel && u->op == PTC_OP_FINISH && s->o.bug != SIM_BUG_DUE_FREE; /* see may_hold */
	if (!cancel) {
		bool lie = (s->o.bug == SIM_BUG_EARLY_COMMIT && (u->op == PTC_OP_PULL || u->op == PTC_OP_STAND)) ||
			   (s->o.bug == SIM_BUG_EARLY_BUILD && u->op == PTC_OP_END) ||
			   (s->o.bug == SIM_BUG_NOT_ASKED && u->op == PTC_OP_BUILD && u->built) ||
			   (s->o.bug == SIM_BUG_SKIP_STAND && u->op == PTC_OP_STAND) ||
			   (s->o.bug == SIM_BUG_SKIP_FINISH && u->op == PTC_OP_FINISH) ||
			   (s->o.bug == SIM_BUG_SKIP_RETURNED && u->op == PTC_OP_FINISH && s->given_up >> u->node & 1);
		struct ev *rep = ctl_local(s, i, EV_REP, lie ? 1 : n->up ? RPC_MS : 20, u->seq);
		rep->node = u->node;
		rep->status = lie ? 0 : n->up ? PTC_ETIMEOUT : PTC_EPEER;
		rep->op = u->op;
		rep->timeout = !lie;
		if (lie && (u->op == PTC_OP_FINISH || u->op == PTC_OP_STAND))
			return;
	}
	if (!n->up)
		return;
	for (int copies = sim_unlucky(s, 10) ? 2 : 1; copies--;) {
		if (s->cut_cn[i][u->node] || sim_unlucky(s, 5))
			continue;
		struct req *r = &sim_post(s, sim_travel(s), EV_REQ, i)->u.req;
		*r = (struct req){ .ctl = i, .ctl_inc = c->inc, .node = u->node, .node_inc = n->inc };
		r->fence = c->fence;
		r->seq = u->seq;
		r->op = u->op;
		r->cancel = cancel;
		r->has_keep = u->has_keep;
		r->keep_gen = u->keep_generation;
		r->keep_snap = u->keep_snapshot;
		if (s->o.bug == SIM_BUG_COUNT_RETURNED && u->op == PTC_OP_FINISH && c->rec.without >> u->node & 1) {
			r->has_keep = true;
			r->keep_gen = c->rec.gen;
			r->keep_snap = c->rec.snap;
		}
		r->sw = c->sw;
		r->rec = c->rec;
		r->older = c->older;
		if (s->o.bug == SIM_BUG_BRIDGE_COPY)
			r->older.bridge.copy = 0;
		r->yields = u->op == PTC_OP_PREPARE && s->o.tight && !goes_to_bridge(s, c);
		r->leave_out = leave_out;
		r->stop = u->stop;
		r->built = u->built;
		r->resumed = u->resumed ? c->intent_mod : 0;
	}
}

/* What a rollback goes back to may be gone since it was asked for. Then its intent is not written. */
static bool source_gone(const struct sim *s, const struct ctl *c)
{
	const struct record *b = &c->older.bridge, *o = &c->sw.source;
	bool there = s->o.bug == SIM_BUG_BACK_SHED || (b->gen == o->gen && b->snap == o->snap) ||
		     (c->rec.gen == o->gen && c->rec.snap == o->snap);
	return s->o.bridge && c->sw.stored && !there;
}

static void up_txn(struct sim *s, int i, const struct ptc_job_update *u)
{
	struct ctl *c = &s->ctls[i];
	struct ev *late = ctl_local(s, i, EV_TXNREP, TXN_MS, u->seq);
	late->outcome = PTC_TXN_UNKNOWN;
	late->rec = c->rec;
	late->older = c->older;
	late->intent_mod = c->intent_mod;
	if (s->cut_ce[i] || sim_unlucky(s, 5) || (u->txn == PTC_TXN_INTENT && source_gone(s, c)))
		return;
	struct ev *ev = ctl_local(s, i, EV_TXN, sim_travel(s), u->seq);
	struct txn *t = &ev->u.txn;
	*t = (struct txn){ .kind = u->txn, .seq = u->seq, .lock_rev = c->fence, .rec_mod = c->rec.mod };
	t->intent_mod = c->intent_mod;
	t->older_mod = c->older.mod;
	t->yielded = c->yielded;
	t->no_bridge = c->no_room && c->no_room == c->rec.gen;
	if (u->txn == PTC_TXN_INTENT && s->o.bug != SIM_BUG_FORGET_LEFT_OUT)
		c->sw.without |= sim_left_out(c, &c->sw);
	if (u->txn == PTC_TXN_COMMIT1 && s->o.bug != SIM_BUG_PLACE_ALL &&
	    !(s->o.bug == SIM_BUG_HELD_PLACE && c->sw.held))
		t->without = sim_left_out(c, &c->sw);
	if (u->txn == PTC_TXN_HALT &&
	    c->sw.recovers) /* what comes next may be of an older snapshot, and of its nodes */
		t->without = sim_left_out(c, &c->sw);
	for (uint32_t k = 0; u->txn == PTC_TXN_INTENT && c->sw.stored && k < c->rec.n; k++)
		t->without |= (uint32_t)c->told_lost[c->rec.nodes[k]] << c->rec.nodes[k];
	t->sw = c->sw;
	t->step = u->step;
	t->compared_at = c->compared_at;
	t->new_incarnation = u->new_incarnation && s->o.bug != SIM_BUG_NO_NEW_INCARNATION;
	memcpy(t->key, c->seen, sizeof(t->key)); /* what the core knows of */
	if (u->txn == PTC_TXN_COMMIT1 && c->sw.held) {
		memcpy(t->key, c->captured_key, sizeof(t->key));
		for (uint32_t k = 0; k < c->sw.nfrom; k++)
			t->gave |= (uint32_t)ptc_job_gives(c->job, c->sw.from[k]) << c->sw.from[k];
	}
}

static void ctl_read(struct sim *s, int i, uint64_t reload)
{
	s->ctls[i].reading = true;
	s->ctls[i].reload = reload;
	if (!s->cut_ce[i] && !sim_unlucky(s, 5))
		ctl_local(s, i, EV_READ, sim_travel(s), reload);
	ctl_local(s, i, EV_READREP, TXN_MS, reload)->status = PTC_ETIMEOUT;
}

static void up_done(struct sim *s, int i, const struct ptc_job_update *u)
{
	struct ctl *c = &s->ctls[i];
	sim_say(s, "ctl %d: switch %llu done: %s %s", i, (unsigned long long)u->switch_id, ptc_status_name(u->status),
		u->text);
	bool committed = sim_listed(s->committed, s->ncommitted, u->switch_id);
	if (u->switch_id == c->sw.id) { /* one that is refused lets nobody go */
		c->ended_at = c->held ? s->now : c->ended_at;
		c->held = false;
	}
	if (u->status == 0 && !committed)
		sim_bad(s, "switch %llu was reported as done and is not", (unsigned long long)u->switch_id);
	if (u->status && u->status != PTC_EFENCED) {
		ptc_require(s->nfailed < PTC_ARRAY_LEN(s->failed));
		s->failed[s->nfailed++] = u->switch_id;
	}
	for (uint32_t k = 0; k < c->nasked; k++) {
		if (c->asked[k].id != u->switch_id)
			continue;
		if (c->asked[k].told)
			sim_bad(s, "switch %llu got a second DONE", (unsigned long long)u->switch_id);
		c->asked[k].told = true;
	}
}

static void client_start(struct sim *s, int i)
{
	struct ctl *c = &s->ctls[i];
	if (c->sw.kind != PTC_SWITCH_IMPORT || c->sw.stored)
		return;
	struct ev *ev = ctl_local(s, i, EV_CLIENT, sim_travel(s), 0);
	ev->u.sw = c->sw;
}

/* ---- lost nodes, as controllers see them ----------------------------------------- */

/* In the end a person says it of machines that are gone for good. */
static bool declared(const struct sim *s, uint32_t n)
{
	return s->declared[n] || (s->calm && s->nodes[n].gone);
}

static bool lost_by_now(const struct sim *s, const struct ctl *c, uint32_t n)
{
	return c->down_at[n] && (declared(s, n) || s->now - c->down_at[n] > LOST_MS);
}

/* Of a job that has had ranks, which may still run there, the clock says nothing; unless the job has given them up. */
static bool counts(const struct sim *s, const struct ctl *c, uint32_t n)
{
	const struct record *r = &c->rec;
	return lost_by_now(s, c, n) && r->run != RUN_LIVE && (declared(s, n) || !r->incarnation || r->recovers);
}

/* Its ranks were given up, and it does not answer, or its machine refuses connections. It may come back with all that
 * it had, also with ranks. */
static bool is_passed(const struct sim *s, const struct ctl *c, uint32_t n)
{
	const struct record *r = &c->rec;
	bool runs = false;
	for (uint32_t k = 0; k < r->n; k++)
		runs |= r->nodes[k] == n;
	return runs && s->o.live && r->run != RUN_LIVE && r->recovers && c->down_at[n] &&
	       s->now - c->down_at[n] > ASKED_MS;
}

/* Of the nodes without which the switch goes on: those that have to have nothing. */
static uint32_t left_out_by_cover(const struct sim *s, const struct ctl *c)
{
	uint32_t mask = sim_left_out(c, &c->sw);
	for (uint32_t n = 0; n < SIM_NODES && s->o.bug == SIM_BUG_PASSED_NEEDED; n++) {
		if (is_passed(s, c, n) && !counts(s, c, n))
			mask &= ~(1u << n);
	}
	return mask;
}

/* ---- what ranks and nodes have, compared ------------------------------------------- */

/* Do the captures agree wherever two nodes hold the same item? */
static int captures_compare(struct sim *s, int i)
{
	const struct ctl *c = &s->ctls[i];
	if (s->o.bug == SIM_BUG_NO_AGREE)
		return 0;
	uint32_t without = c->sw.held ? sim_left_out(c, &c->sw) : 0;
	for (uint32_t a = 0; a < c->sw.nfrom; a++) {
		const struct table *x = &c->captured[c->sw.from[a]];
		if (without >> c->sw.from[a] & 1)
			continue;
		if (x->cap_id != c->sw.id)
			sim_bad(s, "captures of %llu compared before node %u has answered",
				(unsigned long long)c->sw.id, c->sw.from[a]);
		for (uint32_t b = 0; b < a; b++) {
			const struct table *y = &c->captured[c->sw.from[b]];
			for (uint32_t k = 0; k < ITEMS; k++) {
				if (!(without >> c->sw.from[b] & 1) && x->has & y->has & 1u << k &&
				    x->val[k] != y->val[k])
					return PTC_EDIGEST;
			}
		}
	}
	return 0;
}

static void up_compare(struct sim *s, int i, const struct ptc_job_update *u)
{
	bool slow = s->o.lose && !s->o.live && sim_unlucky(s, 10); /* of a large state; a node may be another by then */
	struct ev *ev = ctl_local(s, i, EV_DIGESTS, 1 + sim_below(s, slow ? 2000 : 5), u->seq);
	ev->status = sim_unlucky(s, 1) ? PTC_EDIGEST : 0;
	ev->a = u->kind == PTC_UP_AGREE ? PTC_EV_AGREED : u->kind == PTC_UP_LAYOUT ? PTC_EV_LAYOUT : PTC_EV_DIGESTS;
	const struct sw *w = &s->ctls[i].sw;
	bool agree = u->kind == PTC_UP_AGREE;
	if (u->kind == PTC_UP_CHECK_DIGESTS)
		s->ctls[i].compared_at = s->now;
	if (agree && w->run_from && captures_compare(s, i)) {
		s->res->disagreed++;
		ev->status = PTC_EDIGEST;
	}
	if (agree && s->o.bug != SIM_BUG_NO_COVER && !(w->held && s->o.bug == SIM_BUG_HELD_ALONE) &&
	    !sim_covered(w->from, w->nfrom, w->from_layout, left_out_by_cover(s, &s->ctls[i])))
		ev->status = PTC_ELOST;
}

/* Ranks wait at a stop, or at the step where a snapshot is due; an abort lets them go on, and so does a FINISH. */
static bool may_hold(const struct sim *s, const struct ctl *c, enum ptc_job_phase phase)
{
	if (s->o.bug == SIM_BUG_DUE_FREE)
		return phase == PTC_JOB_ARMING || phase == PTC_JOB_SEALING;
	return phase == PTC_JOB_ABORTING || (c->sw.run_from && phase >= PTC_JOB_INTENT && phase <= PTC_JOB_SEALING);
}

static void up_perform(struct sim *s, int i, const struct ptc_job_update *u)
{
	switch (u->kind) {
	case PTC_UP_SEND:
	case PTC_UP_CANCEL:
		up_send(s, i, u);
		break;
	case PTC_UP_TXN:
		up_txn(s, i, u);
		break;
	case PTC_UP_CHECK_DIGESTS:
	case PTC_UP_AGREE:
	case PTC_UP_LAYOUT:
		up_compare(s, i, u);
		break;
	case PTC_UP_RELOAD:
		ctl_read(s, i, u->seq);
		break;
	case PTC_UP_DONE:
		up_done(s, i, u);
		break;
	case PTC_UP_PHASE:
		sim_say(s, "ctl %d: %s of %llu", i, ptc_job_phase_name(u->phase), (unsigned long long)u->switch_id);
		s->ctls[i].held |= may_hold(s, &s->ctls[i], u->phase);
		if (u->phase == PTC_JOB_FILLING)
			client_start(s, i);
		break;
	case PTC_UP_SET_TIMER:
		ctl_local(s, i, EV_TIMER, u->timer_ms, u->seq);
		break;
	case PTC_UP_STOPPED:
		break;
	}
}

static void ctl_stopped(struct sim *s, int i)
{
	struct ctl *c = &s->ctls[i];
	sim_say(s, "ctl %d: stopped", i);
	for (uint32_t k = 0; k < c->nasked; k++) {
		if (!c->asked[k].told)
			sim_bad(s, "switch %llu got no DONE before STOPPED", (unsigned long long)c->asked[k].id);
	}
	ctl_forget(c);
	c->inc++; /* no answer meant for this job may reach the next */
}

void sim_ctl_feed(struct sim *s, int i, const struct ptc_job_event *e)
{
	struct ctl *c = &s->ctls[i];
	struct ptc_job_updates ups;
	uint32_t inc = c->inc;
	if (!c->job)
		return;
	ptc_require(ptc_job_step(c->job, e, &ups) == 0);
	bool stopped = ptc_job_phase(c->job) == PTC_JOB_STOPPED;
	for (size_t k = 0; k < ups.n && c->inc == inc; k++) {
		bool here = ++s->res->steps == s->o.step;
		if (here && !s->o.after)
			inject(s, i);
		if (c->inc != inc)
			return;
		sim_mix(s, ups.v[k].kind * 64u + ups.v[k].op);
		up_perform(s, i, &ups.v[k]);
		if (here && s->o.after)
			inject(s, i);
	}
	if (stopped && c->inc == inc)
		ctl_stopped(s, i);
}

/* ---- answers --------------------------------------------------------------------- */

/* What may take minutes has a heartbeat instead of a deadline. */
static bool still_busy(const struct sim *s, const struct ctl *c, const struct ev *ev)
{
	const struct node *n = &s->nodes[ev->node];
	bool slow = ev->op == PTC_OP_STOP || ev->op == PTC_OP_END || ev->op == PTC_OP_BUILD;
	return slow && n->up && n->running && n->req.fence == c->fence && n->req.seq == ev->seq &&
	       !s->cut_cn[ev->who][ev->node];
}

static void on_answer(struct sim *s, const struct ev *ev)
{
	struct ctl *c = &s->ctls[ev->who];
	struct ptc_job_event e = { .node = ev->node, .seq = ev->seq, .status = ev->status };
	e.kind = ev->kind == EV_REP     ? PTC_EV_REPLY
		 : ev->kind == EV_TIMER ? PTC_EV_TIMER
					: (enum ptc_job_event_kind)ev->a;
	e.passed = ev->passed;
	e.step = ev->step;
	if (ev->kind == EV_REP && ev->timeout && still_busy(s, c, ev)) {
		struct ev *later = ctl_local(s, ev->who, EV_REP, RPC_MS, ev->seq);
		later->node = ev->node;
		later->status = ev->status;
		later->op = ev->op;
		later->timeout = true;
		return;
	}
	if (ev->kind == EV_REP && ev->op == PTC_OP_CAPTURE && ev->status == 0 && ev->seq == c->sent[ev->node])
		c->captured[ev->node] = ev->table, c->captured_key[ev->node] = c->seen[ev->node];
	if (ev->kind == EV_REP && (ev->op == PTC_OP_PREPARE || ev->op == PTC_OP_FINISH) && c->job && ev->status == 0)
		sim_yield_heard(s, c, ev->node, &ev->table);
	sim_ctl_feed(s, ev->who, &e);
}

/* The core's view of w; only nodes that have a part in it. */
void sim_switch_view(const struct sw *w, struct told *told)
{
	struct ptc_switch *ret = &told->s;
	*ret = (struct ptc_switch){ .id = w->id, .kind = (enum ptc_switch_kind)w->kind };
	ret->from_generation = w->from_gen;
	ret->from_snapshot = w->from_snap;
	ret->to_generation = w->to_gen;
	ret->to_snapshot = w->to_snap;
	ret->nfrom = sim_placed(w->from, w->nfrom, w->without, told->from);
	ret->from_nodes = told->from;
	ret->to_nodes = w->to;
	ret->nto = w->nto;
	ret->run_from = w->run_from;
	ret->run_to = w->run_to;
	ret->stop = w->stop;
	ret->held = w->held;
	ret->stored = w->stored;
}

static void on_readrep(struct sim *s, const struct ev *ev)
{
	struct ctl *c = &s->ctls[ev->who];
	struct ptc_job_event e = { .kind = PTC_EV_START };
	struct told intent;
	uint32_t placed[SIM_NODES];
	if (!c->job || !c->reading || ev->seq != c->reload)
		return;
	if (ev->status) {
		ctl_read(s, ev->who, ev->seq);
		return;
	}
	c->reading = false;
	if (ev->a != c->fence) {
		e.kind = PTC_EV_LOCK_LOST;
		sim_ctl_feed(s, ev->who, &e);
		return;
	}
	c->rec = ev->rec;
	sim_older_adopt(s, c, &ev->older, false);
	c->intent_mod = ev->intent_mod;
	e.seq = ev->seq;
	e.fence = (int64_t)c->fence;
	e.generation = c->rec.gen;
	e.snapshot = c->rec.snap;
	e.record_nodes = placed;
	e.nrecord_nodes = sim_placed(c->rec.nodes, c->rec.n, c->rec.without, placed);
	e.halted = c->rec.by == c->sw.id;
	if (ev->intent_mod) {
		c->sw = ev->u.sw;
		sim_switch_view(&c->sw, &intent);
		e.intent = &intent.s;
	}
	sim_ctl_feed(s, ev->who, &e);
}

static void on_txnrep(struct sim *s, const struct ev *ev)
{
	struct ctl *c = &s->ctls[ev->who];
	struct ptc_job_event e = { .kind = PTC_EV_TXN, .seq = ev->seq, .outcome = ev->outcome };
	if (ev->seq <= c->answered_txn)
		return; /* known already, or given up */
	c->answered_txn = ev->seq;
	s->res->unknowns += ev->outcome == PTC_TXN_UNKNOWN;
	if (ev->outcome == PTC_TXN_UNKNOWN && s->o.bug == SIM_BUG_GUESS_UNKNOWN)
		e.outcome = PTC_TXN_OK;
	if (ev->outcome == PTC_TXN_OK) {
		c->rec = ev->rec;
		c->intent_mod = ev->intent_mod;
		if (s->o.bug != SIM_BUG_OLDER_FORGOTTEN)
			sim_older_adopt(s, c, &ev->older, true);
	}
	sim_ctl_feed(s, ev->who, &e);
}

static void on_acqrep(struct sim *s, const struct ev *ev)
{
	struct ctl *c = &s->ctls[ev->who];
	struct ptc_job_opts opts = { .node_wait_ms = 3000, .max_attempts = 5 };
	if (c->job)
		return;
	c->fence = ev->a;
	c->answered_txn = 0;
	ptc_require(ptc_job_new(&opts, &c->job, NULL) == 0);
	ctl_read(s, ev->who, 0);
}

/* ---- what it is told of them ------------------------------------------------------ */

/* The switch under way puts ranks there, where none of the record's run: the shell asks such a node once its lease has
 * ended. It may be wrong, for a node may live that does not answer. */
static bool is_new(const struct sim *s, const struct ctl *c, uint32_t n)
{
	const struct record *r = &c->rec;
	bool to = false, runs = false;
	for (uint32_t k = 0; k < c->sw.nto; k++)
		to |= c->sw.to[k] == n;
	for (uint32_t k = 0; k < r->n; k++)
		runs |= r->nodes[k] == n;
	return r->run == RUN_LIVE && ptc_job_switch(c->job) && c->sw.run_from && to && !runs && c->down_at[n] &&
	       s->now - c->down_at[n] > ASKED_MS;
}

static void watch_node(struct sim *s, int i, uint32_t n)
{
	struct ctl *c = &s->ctls[i];
	struct ptc_job_event e = { .kind = PTC_EV_NODE_LOST, .node = n };
	if (s->etcd.key[n]) {
		c->down_at[n] = 0;
		c->told_lost[n] = false;
		return;
	}
	c->down_at[n] = c->down_at[n] ? c->down_at[n] : s->now;
	bool lost = counts(s, c, n) || is_passed(s, c, n) || is_new(s, c, n);
	if (c->told_lost[n] && sim_unlucky(s, 1)) { /* taken back; and soon said again */
		s->declared[n] = false;
		c->down_at[n] = s->now;
		lost = false;
	}
	if (lost == c->told_lost[n] || c->seen[n])
		return;
	c->told_lost[n] = lost;
	e.kind = lost ? PTC_EV_NODE_LOST : PTC_EV_NODE_FOUND;
	sim_ctl_feed(s, i, &e);
}

bool sim_ctl_gives_up(struct sim *s, int i)
{
	const struct ctl *c = &s->ctls[i];
	const struct record *r = &c->rec;
	bool lost = false, seen = false;
	if (!s->o.live || !s->o.lose || !c->job || r->run != RUN_LIVE || s->now - c->ended_at < RELEASED_MS)
		return false;
	if (s->o.bug == SIM_BUG_NOT_GIVEN_UP && ptc_job_phase(c->job) == PTC_JOB_IDLE)
		return false;
	for (uint32_t k = 0; k < r->n; k++) {
		lost |= lost_by_now(s, c, r->nodes[k]);
		seen |= !c->down_at[r->nodes[k]] || (s->calm && s->nodes[r->nodes[k]].gone);
	}
	return lost && seen &&
	       (s->o.bug == SIM_BUG_LOST_TRAINS ||
		(sim_ranks_seen(s, r) == c->least && s->now - c->still_since > LOST_MS));
}

static void watch_losses(struct sim *s, int i)
{
	struct ctl *c = &s->ctls[i];
	uint64_t least = s->o.live ? sim_ranks_seen(s, &c->rec) : 0;
	if (least != c->least || !c->still_since)
		c->still_since = s->now;
	c->least = least;
	for (uint32_t n = 0; n < SIM_NODES && s->ctls[i].job; n++)
		watch_node(s, i, n);
}

/* ---- watches, and what each tick does -------------------------------------------- */

struct ctl *sim_leader(struct sim *s)
{
	struct ctl *c = s->etcd.lock_rev ? &s->ctls[s->etcd.lock_ctl] : NULL;
	return c && c->alive && c->inc == s->etcd.lock_inc && c->fence == s->etcd.lock_rev && c->job ? c : NULL;
}

/* A destination has been away while state was brought there, and the shell sees nothing but its key change. */
static bool taken_for_same(const struct sim *s, const struct ctl *c, uint32_t n)
{
	enum ptc_job_phase phase = ptc_job_phase(c->job);
	bool to = false;
	for (uint32_t k = 0; k < c->sw.nto; k++)
		to |= c->sw.to[k] == n;
	return s->o.bug == SIM_BUG_COMMIT_RETURNED && to && c->seen[n] && phase >= PTC_JOB_PREPARING &&
	       phase <= PTC_JOB_DIGESTING;
}

/* What the watch on the nodes' keys tells. */
static void ctl_watch(struct sim *s, int i)
{
	struct ctl *c = &s->ctls[i];
	if (s->o.lose)
		watch_losses(s, i);
	for (uint32_t n = 0; n < SIM_NODES && c->job; n++) {
		uint64_t key = s->etcd.key[n], seen = c->seen[n];
		struct ptc_job_event e = { .kind = PTC_EV_NODE_DOWN, .node = n };
		if (key == seen || (!key && taken_for_same(s, c, n)))
			continue;
		bool same = taken_for_same(s, c, n);
		c->seen[n] = key;
		if (same)
			continue;
		if (!key || sim_chance(s, 50))
			sim_ctl_feed(s, i, &e);
		e.kind = PTC_EV_NODE_UP;
		if (key)
			sim_ctl_feed(s, i, &e);
	}
}

/* A rank that the switch waits for, or waits with, has ended badly: the others may wait for it for ever. */
static bool switch_lost_rank(const struct sim *s, const struct ctl *c)
{
	enum ptc_job_phase phase = ptc_job_phase(c->job);
	bool from = phase == PTC_JOB_WARMING || phase == PTC_JOB_ARMING, to = phase == PTC_JOB_BUILDING;
	for (uint32_t i = 0; (from || to) && i < SIM_NODES; i++) {
		uint64_t gen = from ? c->sw.from_gen : c->sw.to_gen;
		uint64_t incarnation = from ? c->sw.from_incarnation : c->sw.to_incarnation;
		if (s->etcd.failed[i].gen == gen && s->etcd.failed[i].incarnation == incarnation)
			return true;
	}
	return false;
}

/* To the core they have a new process each, so that they get another FINISH, which names what stays. */
static void tell_anew(struct sim *s, int i)
{
	struct ctl *c = &s->ctls[i];
	uint32_t tell = c->tell;
	c->tell = 0;
	for (uint32_t n = 0; n < SIM_NODES && c->job; n++) {
		struct ptc_job_event e = { .kind = PTC_EV_NODE_UP, .node = n };
		if (tell >> n & 1 && c->seen[n])
			sim_ctl_feed(s, i, &e);
	}
}

void sim_on_ctl_tick(struct sim *s, int i)
{
	struct ctl *c = &s->ctls[i];
	sim_post(s, 30 + sim_below(s, 40), EV_CTL_TICK, i);
	if (!c->alive || s->cut_ce[i])
		return;
	if (!c->job) {
		ctl_local(s, i, EV_ACQUIRE, sim_travel(s), 0);
		return;
	}
	if (s->etcd.lock_rev == c->fence) {
		s->etcd.lock_until = s->now + TTL_MS;
	} else if (s->calm || sim_chance(s, 10)) { /* it may take a while to notice */
		struct ptc_job_event e = { .kind = PTC_EV_LOCK_LOST };
		sim_ctl_feed(s, i, &e);
	}
	ctl_watch(s, i);
	if (c->job && ptc_job_phase(c->job) != PTC_JOB_IDLE && !c->sw.held && sim_ctl_gives_up(s, i)) {
		struct ptc_job_event e = { .kind = PTC_EV_ABORT, .status = PTC_EPEER, .text = "a node is lost" };
		sim_ctl_feed(s, i, &e);
	}
	if (c->job && switch_lost_rank(s, c)) {
		struct ptc_job_event e = { .kind = PTC_EV_ABORT, .status = PTC_EPEER, .text = "a rank has failed" };
		sim_ctl_feed(s, i, &e);
	}
	if (c->job && s->o.bridge && ptc_job_phase(c->job) == PTC_JOB_IDLE) {
		sim_bridge_tick(s, c);
		tell_anew(s, i);
	}
}

/* An import's client puts the bytes of one node after the other, then says so. */
static void on_client(struct sim *s, const struct ev *ev)
{
	const struct sw *w = &ev->u.sw;
	struct ptc_job_event e = { .kind = PTC_EV_FILLED };
	struct ctl *c = &s->ctls[ev->who];
	if (!c->job || !ptc_job_switch(c->job) || ptc_job_switch(c->job)->id != w->id)
		return;
	if (ev->a == w->nto) {
		sim_ctl_feed(s, ev->who, &e);
		return;
	}
	uint32_t i = w->to[ev->a];
	struct node *n = &s->nodes[i];
	struct table *t = sim_table_find(n, w->to_gen, w->to_snap);
	if (!n->up || !t || (!t->sealed && n->prepared_id != w->id) || s->cut_cn[ev->who][i] || sim_unlucky(s, 2)) {
		e.kind = PTC_EV_ABORT;
		e.status = PTC_EPEER;
		e.text = "the client could not send";
		sim_ctl_feed(s, ev->who, &e);
		return;
	}
	for (uint32_t k = 0; !t->sealed && k < ITEMS; k++) {
		if (sim_layout_has(w->to, w->nto, w->to_layout, k, i)) {
			t->has |= 1u << k;
			t->val[k] = sim_content(k, w->id);
		}
	}
	struct ev *next = ctl_local(s, ev->who, EV_CLIENT, sim_travel(s), 0);
	next->a = ev->a + 1;
	next->u.sw = *w;
}

void sim_on_ctl(struct sim *s, const struct ev *ev)
{
	switch (ev->kind) {
	case EV_TXNREP:
		on_txnrep(s, ev);
		break;
	case EV_READREP:
		on_readrep(s, ev);
		break;
	case EV_ACQREP:
		on_acqrep(s, ev);
		break;
	case EV_SHEDREP:
		sim_on_shedrep(s, ev);
		break;
	case EV_CLIENT:
		on_client(s, ev);
		break;
	default:
		on_answer(s, ev);
	}
}
