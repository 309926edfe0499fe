/* SPDX-License-Identifier: Apache-2.0 */
/* A run of the simulation: who gets which event, on a virtual clock, and the checker.
 *
 * Four nodes, three would-be controllers and etcd exchange messages that are delayed, lost, repeated and reordered.
 * Nodes keep sealed tables over a crash, lose what is in memory, and keep a random part of what was being filled. etcd
 * is linearizable: a request takes effect at the moment when its message arrives, or never. The sender learns the
 * outcome, or only that the outcome is unknown. A request may arrive long after its sender gave up.
 *
 * Each switch that seals captures content of its own, tagged with the switch's id, as if a training job had gone on. So
 * the checker can tell the right table from a table that an earlier attempt has left under the same key. With `live`
 * ranks train on the nodes (sim_ranks.c), and a snapshot has what they had at one step.
 *
 * Happy path: events are handled until all has been quiet for longer than any message travels.
 * Failure modes: after every event the checker, which knows nothing of the core, looks at the durable state only:
 * the record names a table that every node of its layout has sealed, whole, with the right content; no node acts on
 * a lower fence than it has seen, and nobody without the lock changes the record. At the end, with all faults gone:
 * one idle controller, no intent, no table but the record's, one DONE for each request, and each DONE true. The
 * first violation ends the run (sim_bad). */
#include "daemon/core/sim/internal.h"

#include "base/alloc.h"
#include "base/check.h"

#include <string.h>

/* ---- the checker ----------------------------------------------------------------- */

static void check_snapshot(struct sim *s, const struct record *r)
{
	for (uint32_t k = 0; r->gen && r->snap && k < r->n; k++) {
		uint32_t node = r->nodes[k];
		struct table *t = sim_table_find(&s->nodes[node], r->gen, r->snap);
		bool gone =
			(!t || !t->sealed) && (sim_ruined(s, node, r) || sim_yielded(s, node, r->gen, r->snap, false));
		if (r->without >> node & 1 || gone)
			continue;
		if (!t || !t->sealed || (!t->durable && !s->nodes[node].up)) {
			sim_bad(s, "record %llu.%llu: node %u has %s", (unsigned long long)r->gen,
				(unsigned long long)r->snap, node, t ? "it unsealed" : "no such table");
			return;
		}
		for (uint32_t i = 0; i < ITEMS; i++) {
			if (!sim_layout_has(r->nodes, r->n, r->layout, i, node))
				continue;
			if (!(t->has >> i & 1) || t->val[i] != sim_item_value(i, r->content, r->grown)) {
				sim_bad(s, "record %llu.%llu: node %u item %u is %s", (unsigned long long)r->gen,
					(unsigned long long)r->snap, node, i, t->has >> i & 1 ? "wrong" : "missing");
				return;
			}
		}
	}
}

/* Ranks that were halted, given up or replaced are never the record's again. */
static void check_incarnation(struct sim *s)
{
	const struct record *r = &s->etcd.rec;
	bool runs = r->run == RUN_LIVE;
	if (s->live[0] && !(runs && r->gen == s->live[0] && r->incarnation == s->live[1])) {
		memcpy(s->over, s->live, sizeof(s->over));
		s->live[0] = 0;
	}
	if (!runs)
		return;
	if (r->gen == s->over[0] && r->incarnation == s->over[1])
		sim_bad(s, "the record wants ranks of %llu.%llu again, which were over", (unsigned long long)r->gen,
			(unsigned long long)r->incarnation);
	s->live[0] = r->gen;
	s->live[1] = r->incarnation;
}

/* A node that was left out and is cleaned has no table that could be taken for the record's. */
static void check_left_out(struct sim *s)
{
	const struct record *r = &s->etcd.rec;
	for (uint32_t i = 0; r->gen && r->snap && i < SIM_NODES; i++) {
		if (r->without >> i & 1 && !(s->given_up >> i & 1) && sim_table_find(&s->nodes[i], r->gen, r->snap))
			sim_bad(s, "node %u was left out of record %llu.%llu, is cleaned, and has a table of it", i,
				(unsigned long long)r->gen, (unsigned long long)r->snap);
	}
}

/* A copy that a record has is there, and right, or was destroyed. */
static void check_copy(struct sim *s, const struct record *r)
{
	const struct table *t =
		r->snap && r->copy ? sim_table_find(&s->nodes[r->copy - 1], r->gen, r->copy_snap) : NULL;
	if (!r->snap || !r->copy || (!t && sim_yielded(s, r->copy - 1, r->gen, r->copy_snap, false)))
		return;
	for (uint32_t k = 0; !t && k < s->nruins; k++) {
		if (sim_is_copy(r, &s->ruins[k].table, s->ruins[k].node))
			return;
	}
	for (uint32_t i = 0; i < ITEMS; i++) {
		if (!t || t->val[i] != sim_item_value(i, r->content, r->grown)) {
			sim_bad(s, "snapshot %llu.%llu: the copy on node %u is %s", (unsigned long long)r->gen,
				(unsigned long long)r->snap, r->copy - 1, t ? "wrong" : "missing");
			return;
		}
	}
}

/* One node was destroyed at most. Once a snapshot has had its copy, the record's is there as a whole, or the bridge. */
static void check_bridge(struct sim *s)
{
	const struct record *r = &s->etcd.rec, *b = &s->etcd.older.bridge;
	check_copy(s, r);
	check_copy(s, b);
	if (!b->snap)
		b = NULL;
	else
		check_snapshot(s, b);
	if (s->bridged && r->snap && sim_record_lost(s, r) && (!b || sim_record_lost(s, b)))
		sim_bad(s, "record %llu.%llu: one node was destroyed, and neither it nor a bridge is left",
			(unsigned long long)r->gen, (unsigned long long)r->snap);
}

static void check_record(struct sim *s)
{
	const struct record *r = &s->etcd.rec;
	check_incarnation(s);
	check_left_out(s);
	if (r->gen && r->snap && s->o.lose && !s->o.faults && sim_record_lost(s, r))
		sim_bad(s, "record %llu.%llu: one node was lost, and with it what was there twice",
			(unsigned long long)r->gen, (unsigned long long)r->snap);
	check_snapshot(s, r);
	for (uint32_t i = 0; i < s->etcd.older.n; i++)
		check_snapshot(s, &s->etcd.older.v[i]);
	if (s->o.bridge)
		check_bridge(s);
}

/* How many tables of older snapshots the node has to have. */
static uint32_t older_tables(const struct sim *s, uint32_t node)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < s->etcd.older.n; i++) {
		const struct record *r = &s->etcd.older.v[i];
		bool member = false;
		for (uint32_t k = 0; k < r->n; k++)
			member |= r->nodes[k] == node;
		n += member && !(r->without >> node & 1);
	}
	return n;
}

static const char *not_quiet(struct sim *s)
{
	struct ctl *c = sim_leader(s);
	if (!c)
		return "nobody leads";
	if (ptc_job_phase(c->job) != PTC_JOB_IDLE)
		return ptc_job_phase_name(ptc_job_phase(c->job));
	if (s->etcd.intent_mod)
		return "an intent is left";
	if (s->o.live && !s->o.faults ? s->script_at < sim_script_length() : s->res->commits < sim_commits_wanted(s))
		return "too few switches committed";
	if (s->o.live && s->etcd.rec.run != RUN_LIVE)
		return "the job does not run";
	if (s->o.live && sim_ranks_not_quiet(s))
		return sim_ranks_not_quiet(s);
	if (sim_bridge_yielded(s, &s->etcd.older.bridge, true))
		return "a bridge is named that a node has dropped";
	const struct record *r = &s->etcd.rec;
	for (uint32_t i = 0; i < SIM_NODES; i++) {
		struct node *n = &s->nodes[i];
		bool member = sim_layout_needs(r->nodes, r->n, r->layout, i) != 0;
		for (uint32_t k = 0; k < r->n; k++)
			member |= r->nodes[k] == i;
		if (n->gone)
			continue;
		if (!n->up)
			return "a node is down";
		member = member && r->snap && !(r->without >> i & 1);
		if (member && sim_ruined(s, i, r) && n->ntables <= 1)
			continue;
		if ((s->o.keep || s->o.bridge) && n->ntables >= member + older_tables(s, i))
			continue; /* what the list names no more a node drops later: nobody waits for that */
		if (n->ntables != member)
			return member ? "a member has more than the record's table" : "a node that is out has tables";
	}
	return NULL;
}

static void check_end(struct sim *s)
{
	const char *why = not_quiet(s);
	if (why)
		sim_bad(s, "not quiet in the end: %s", why);
	for (uint32_t i = 0; i < s->nfailed; i++) {
		if (sim_listed(s->committed, s->ncommitted, s->failed[i]))
			sim_bad(s, "switch %llu was reported as failed and committed",
				(unsigned long long)s->failed[i]);
	}
	for (int c = 0; c < SIM_CTLS; c++) {
		struct ctl *ctl = &s->ctls[c];
		for (uint32_t i = 0; ctl->alive && i < ctl->nasked; i++) {
			if (!ctl->asked[i].told)
				sim_bad(s, "switch %llu never got its DONE", (unsigned long long)ctl->asked[i].id);
		}
	}
}

/* ---- the run --------------------------------------------------------------------- */

/* Events for a controller's earlier life are dropped. */
static bool for_the_dead(const struct sim *s, const struct ev *ev)
{
	switch (ev->kind) {
	case EV_REP:
	case EV_TXNREP:
	case EV_READREP:
	case EV_ACQREP:
	case EV_SHEDREP:
	case EV_TIMER:
	case EV_DIGESTS:
	case EV_CLIENT:
	case EV_ABORT:
		return s->ctls[ev->who].inc != ev->inc || !s->ctls[ev->who].alive;
	default:
		return false;
	}
}

static void handle(struct sim *s, const struct ev *ev)
{
	switch (ev->kind) {
	case EV_REQ:
	case EV_OP:
		sim_on_node(s, ev);
		break;
	case EV_TXN:
	case EV_READ:
	case EV_SHED:
	case EV_ACQUIRE:
		sim_on_etcd(s, ev);
		break;
	case EV_REP:
	case EV_TIMER:
	case EV_DIGESTS:
	case EV_TXNREP:
	case EV_READREP:
	case EV_SHEDREP:
	case EV_ACQREP:
	case EV_CLIENT:
		sim_on_ctl(s, ev);
		break;
	case EV_CTL_TICK:
		sim_on_ctl_tick(s, ev->who);
		break;
	case EV_NODE_TICK:
		sim_on_node_tick(s, (uint32_t)ev->who);
		break;
	case EV_TRAIN:
		sim_ranks_train(s, (uint32_t)ev->who);
		break;
	case EV_DOOM:
		sim_ranks_doom(s, (uint32_t)ev->who);
		break;
	case EV_ETCD_TICK:
		sim_on_etcd_tick(s);
		break;
	case EV_DRIVER:
		sim_on_driver(s);
		break;
	case EV_FAULT:
		sim_on_fault(s);
		break;
	case EV_ABORT:
		sim_ctl_feed(s, ev->who, &(struct ptc_job_event){ .kind = PTC_EV_ABORT });
		break;
	case EV_RESTART_NODE:
	case EV_RESTART_CTL:
		sim_on_restart(s, ev);
		break;
	}
}

static void sim_begin(struct sim *s)
{
	s->etcd.rec.mod = s->etcd.rev = 1;
	for (int i = 0; i < SIM_NODES; i++) {
		s->nodes[i].up = true;
		sim_post(s, 1 + sim_below(s, 50), EV_NODE_TICK, i);
		if (s->o.live)
			sim_post(s, 1 + sim_below(s, 50), EV_TRAIN, i);
	}
	for (int i = 0; i < SIM_CTLS; i++) {
		s->ctls[i].alive = true;
		sim_post(s, 100 + sim_below(s, 50), EV_CTL_TICK, i);
	}
	sim_post(s, 100, EV_ETCD_TICK, 0);
	sim_post(s, 200, EV_DRIVER, 0);
	if (s->o.faults)
		sim_post(s, 500, EV_FAULT, 0);
}

/* Runs until all has been quiet for longer than any message travels. */
static void sim_loop(struct sim *s)
{
	uint64_t quiet_since = 0, started = 0, steps = 0;
	while (!s->bad && s->now < LIMIT_MS) {
		struct ev *ev = sim_pop(s);
		sim_mix(s, s->now * 32 + ev->kind);
		sim_mix(s, ev->seq * 16 + (uint64_t)ev->who);
		s->res->events++;
		if (!for_the_dead(s, ev))
			handle(s, ev);
		enum kind kind = ev->kind;
		ptc_free(ev);
		if (kind <= EV_SHED || kind == EV_CLIENT || kind == EV_RESTART_NODE || kind == EV_FAULT)
			check_record(
				s); /* the others change nothing that is durable, but for a fault that is injected */
		if (kind == EV_ETCD_TICK && s->o.bridge && s->o.live)
			sim_check_left(s);
		if (kind != EV_ETCD_TICK || s->restarts_left || (s->o.faults && !s->calm))
			continue;
		if (started != s->etcd.rec.incarnation) /* ranks begin at an earlier step again */
			quiet_since = 0;
		if (!quiet_since && !not_quiet(s)) {
			quiet_since = s->now;
			started = s->etcd.rec.incarnation;
			steps = sim_ranks_steps(s);
		}
		if (quiet_since && s->now > quiet_since + (s->o.faults ? 6000 : 2000) && !(s->o.bridge && not_quiet(s)))
			break; /* ranks that wait for a snapshot are soon served */
	}
	if (s->o.live && quiet_since && !not_quiet(s) && sim_ranks_steps(s) < steps + 10)
		sim_bad(s, "the ranks do not go on");
}

void sim_run(const struct sim_opts *opts, struct sim_result *ret_result)
{
	struct sim *s = ptc_calloc(1, sizeof *s);
	ptc_require(s);
	memset(ret_result, 0, sizeof *ret_result);
	s->o = *opts;
	s->res = ret_result;
	s->rng = opts->seed;
	sim_begin(s);
	sim_loop(s);
	if (!s->bad)
		check_end(s);
	ret_result->ok = !s->bad;
	ret_result->time_ms = s->now;
	while (s->nheap)
		ptc_free(sim_pop(s));
	for (int i = 0; i < SIM_CTLS; i++)
		ptc_job_free(s->ctls[i].job);
	ptc_free(s->heap);
	ptc_free(s);
}
