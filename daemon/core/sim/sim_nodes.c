/* SPDX-License-Identifier: Apache-2.0 */
/* A model of nodes: their tables, and the requests that controllers send them.
 *
 * Happy path: a request with the newest fence and number ends the one before it, runs in steps (EV_OP), and is
 * answered.
 * Failure modes: the node crashes, keeps sealed tables and a random part of what was being filled; its disk is
 * full; a request is of an older fence or number, or for an earlier life; a source does not answer; an answer is
 * lost, or comes twice. Acting for an older fence is told to sim_bad(). */
#include "daemon/core/sim/internal.h"

#include "base/check.h"

#include <string.h>

void sim_node_crash(struct sim *s, uint32_t i)
{
	struct node *n = &s->nodes[i];
	if (!n->up)
		return;
	sim_say(s, "node %u crashes", i);
	for (uint32_t k = n->ntables; k-- > 0;) {
		struct table *t = &n->tables[k];
		bool finishing = n->running && n->req.op == PTC_OP_FINISH &&
				 !(n->req.has_keep && t->gen == n->req.keep_gen && t->snap == n->req.keep_snap) &&
				 !sim_keeps(&n->req, t);
		if (!t->durable && (!t->sealed || s->o.bug == SIM_BUG_UNSYNCED_SEAL))
			t->has &= (uint32_t)sim_rnd(s); /* what had reached the disk */
		if (t->sealed && !t->durable)
			t->sealed = false;
		if ((!t->durable && sim_chance(s, 50)) || (finishing && sim_chance(s, 50)))
			sim_table_drop(n, k);
	}
	n->up = n->running = false;
	n->inc++;
	n->seq = n->prepared_id = n->token = n->copied_id = 0;
	n->yielded_gen = n->yielded_snap = n->yielded_by = 0;
}

void sim_machine_crash(struct sim *s, uint32_t i)
{
	sim_node_crash(s, i);
	sim_ranks_lose(s, i);
}

void sim_node_start(struct sim *s, uint32_t i)
{
	struct node *n = &s->nodes[i];
	if (n->up || n->gone)
		return;
	sim_say(s, "node %u starts", i);
	n->up = true;
	n->up_at = s->now;
	sim_ranks_restarted(s, i);
	s->etcd.key[i] = 0; /* a new life has a new key */
	s->declared[i] = false;
	/* What it knew of fences may be lost. All that it ever did was for the lock that is held now, or an earlier. */
	if (s->o.bug != SIM_BUG_FORGET_FENCE)
		n->fence = PTC_MAX(n->fence, s->etcd.lock_rev ? s->etcd.lock_rev : s->etcd.rev);
	if (n->store_new)
		n->store_rev = ++s->etcd.rev;
	n->store_new = false;
	if (s->o.bug == SIM_BUG_DROP_RETURNED)
		n->ntables = 0;
}

void sim_on_node_tick(struct sim *s, uint32_t i)
{
	struct etcd *e = &s->etcd;
	if (s->nodes[i].up && !s->cut_ne[i]) {
		if (!e->key[i])
			e->key[i] = ++e->rev;
		e->key_until[i] = s->now + TTL_MS;
		sim_ranks_report(s, i);
	}
	sim_post(s, 60 + sim_below(s, 60), EV_NODE_TICK, (int)i);
}

static void node_answer(struct sim *s, uint32_t i, int status, bool passed, uint64_t step)
{
	struct node *n = &s->nodes[i];
	const struct req *r = &n->req;
	const struct table *t = sim_table_find(n, r->sw.from_gen, r->sw.to_snap);
	n->running = false;
	for (int copies = sim_unlucky(s, 5) ? 2 : 1; copies--;) {
		if (s->cut_cn[r->ctl][i] || sim_unlucky(s, 5))
			continue;
		struct ev *rep = sim_post(s, sim_travel(s), EV_REP, r->ctl);
		rep->inc = r->ctl_inc;
		rep->node = i;
		rep->seq = r->seq;
		rep->status = status;
		rep->op = r->op;
		rep->passed = passed && s->o.bug != SIM_BUG_ONE_ROUND;
		rep->step = step;
		if (r->op == PTC_OP_CAPTURE && status == 0 && t)
			rep->table = *t;
		bool tells = s->o.bug == SIM_BUG_YIELD_UNTOLD ? r->op == PTC_OP_PREPARE && n->yielded_by == r->seq
							      : r->op == PTC_OP_PREPARE || r->op == PTC_OP_FINISH;
		if (tells && status == 0)
			rep->table = (struct table){ .gen = n->yielded_gen, .snap = n->yielded_snap };
	}
}

static void node_reply(struct sim *s, uint32_t i, int status)
{
	node_answer(s, i, status, false, 0);
}

static void table_seal(struct table *t)
{
	t->sealed = t->durable = true;
}

static int op_seal(struct sim *s, uint32_t i)
{
	struct node *n = &s->nodes[i];
	const struct sw *w = &n->req.sw;
	struct table *t = sim_table_find(n, w->from_gen, w->to_snap),
		     *old = sim_table_find(n, w->from_gen, w->from_snap);
	if (t && t->sealed)
		return 0;
	if (s->o.bug == SIM_BUG_SEAL_NOTHING && !old)
		return 0;
	if (!old || !old->sealed)
		return PTC_ENOTFOUND;
	if (n->disk_full)
		return PTC_ENOSPC;
	const struct record *r = &n->req.rec;
	if (!t)
		t = sim_table_add(s, n, w->from_gen, w->to_snap);
	t->has = old->has;
	for (uint32_t k = 0; k < ITEMS; k++) /* what is wrong there stays wrong */
		t->val[k] = sim_content(k, w->id) + (old->val[k] - sim_item_value(k, r->content, r->grown));
	table_seal(t);
	t->durable = s->o.bug != SIM_BUG_UNSYNCED_SEAL;
	return 0;
}

/* What a yield never drops, whatever the request names. */
static void check_yield(struct sim *s, uint32_t i, const struct table *t)
{
	const struct etcd *e = &s->etcd;
	const struct sw *w = &e->intent;
	const char *what = sim_is_part(&e->rec, t, i)   ? "of the record"
			   : sim_is_copy(&e->rec, t, i) ? "of its copy"
							: NULL;
	for (uint32_t k = 0; k < e->older.n; k++)
		what = sim_is_part(&e->older.v[k], t, i) ? "that is kept" : what;
	if (e->intent_mod && w->stored && (sim_is_part(&w->source, t, i) || sim_is_copy(&w->source, t, i)))
		what = "that the running switch goes back to";
	if (e->intent_mod && t->gen == w->from_gen && t->snap == w->to_snap)
		what = "that is the source of the running switch";
	if (e->intent_mod && t->gen == w->to_gen && t->snap == w->to_snap)
		what = "that the running switch makes";
	if (what)
		sim_bad(s, "node %u drops table %llu.%llu for want of room, one %s", i, (unsigned long long)t->gen,
			(unsigned long long)t->snap, what);
}

/* A node looks itself, too. */
static bool is_source_or_target(const struct sim *s, const struct req *r, const struct table *t)
{
	const struct sw *w = &r->sw;
	if (w->stored && s->o.bug != SIM_BUG_YIELD_SOURCE)
		return sim_is_part(&w->source, t, r->node) || sim_is_copy(&w->source, t, r->node);
	return (t->gen == w->to_gen || (t->gen == w->from_gen && !w->stored)) && t->snap == w->to_snap;
}

/* Whether there is room for one more table; tables of the bridge are dropped for it if the request says so. */
static bool has_room(struct sim *s, uint32_t i)
{
	struct node *n = &s->nodes[i];
	const struct req *r = &n->req;
	bool beside = false;
	for (uint32_t k = n->ntables; n->tight && k-- > 0;) {
		const struct table *t = &n->tables[k];
		if (!sim_is_bridge(s, r, t))
			continue;
		bool stays = !r->yields || is_source_or_target(s, r, t);
		beside |= stays;
		if (stays)
			continue;
		check_yield(s, i, t);
		sim_say(s, "node %u drops %llu.%llu for want of room", i, (unsigned long long)t->gen,
			(unsigned long long)t->snap);
		ptc_require(s->nyields < MAX_YIELDS);
		s->yields[s->nyields].node = i;
		s->yields[s->nyields].inc = n->inc;
		s->yields[s->nyields].gen = t->gen;
		s->yields[s->nyields++].snap = t->snap;
		s->res->yielded++;
		s->bridged = false; /* until there are copies again, the loss of a node may cost the state */
		n->yielded_gen = t->gen;
		n->yielded_snap = t->snap;
		n->yielded_by = r->seq;
		sim_table_drop(n, k);
	}
	return !n->tight || (!beside && !n->only_less);
}

static int op_prepare(struct sim *s, uint32_t i)
{
	struct node *n = &s->nodes[i];
	const struct sw *w = &n->req.sw;
	if (n->disk_full)
		return PTC_ENOSPC;
	n->prepared_id = w->id;
	if (sim_table_find(n, w->to_gen, w->to_snap))
		return 0;
	if (!has_room(s, i))
		return PTC_ENOSPC;
	struct table *t = sim_table_add(s, n, w->to_gen, w->to_snap);
	struct table *old = w->stored && s->o.bug != SIM_BUG_OLDER_RECORD
				    ? sim_table_find(n, w->source.gen, w->source.snap)
			    : w->stored ? sim_table_find(n, w->from_gen, w->from_snap)
					: sim_table_find(n, w->from_gen, w->to_snap);
	if ((w->kind != PTC_SWITCH_RESIZE && !w->stored) || !old || !old->sealed)
		return 0;
	t->has = old->has & sim_layout_needs(w->to, w->nto, w->to_layout, i);
	memcpy(t->val, old->val, sizeof(t->val));
	return 0;
}

/* An item of the snapshot that a rollback goes back to. */
static int pull_stored(struct sim *s, uint32_t i, struct table *t, uint32_t item)
{
	const struct record *r = &s->nodes[i].req.sw.source;
	uint32_t first = sim_below(s, SIM_NODES);
	struct table *copy = r->copy ? sim_table_find(&s->nodes[r->copy - 1], r->gen, r->copy_snap) : NULL;
	if (copy && s->nodes[r->copy - 1].up && !s->cut_nn[i][r->copy - 1]) {
		t->val[item] = copy->val[item];
		t->has |= 1u << item;
		return 1;
	}
	for (uint32_t k = 0; k < SIM_NODES; k++) {
		uint32_t src = (first + k) % SIM_NODES;
		struct table *from = sim_table_find(&s->nodes[src], r->gen, r->snap);
		if (!sim_layout_has(r->nodes, r->n, r->layout, item, src) || !s->nodes[src].up ||
		    r->without >> src & 1 || s->cut_nn[i][src] || !from || !from->sealed || !(from->has >> item & 1))
			continue;
		t->val[item] = from->val[item];
		t->has |= 1u << item;
		return 1;
	}
	return PTC_EPEER;
}

/* One item a step. 1: more to do. */
static int op_pull(struct sim *s, uint32_t i)
{
	struct node *n = &s->nodes[i];
	const struct sw *w = &n->req.sw;
	struct table *t = sim_table_find(n, w->to_gen, w->to_snap);
	if (t && t->sealed)
		return 0;
	if (!t || n->prepared_id != w->id)
		return PTC_ESTATE;
	uint32_t missing = sim_layout_needs(w->to, w->nto, w->to_layout, i) & ~t->has;
	if (!missing) {
		if (sim_unlucky(s, 2))
			return PTC_EIO;
		table_seal(t);
		for (uint32_t k = n->ntables; s->o.bug == SIM_BUG_DROP_FILLED && k-- > 0;) {
			if (n->tables[k].gen < w->to_gen)
				sim_table_drop(n, k);
		}
		return 0;
	}
	if (w->kind == PTC_SWITCH_IMPORT && !w->stored)
		return PTC_ESTATE;
	if (w->stored)
		return pull_stored(s, i, t, (uint32_t)__builtin_ctz(missing));
	uint32_t item = (uint32_t)__builtin_ctz(missing), first = sim_below(s, SIM_NODES);
	for (uint32_t k = 0; k < SIM_NODES; k++) {
		uint32_t src = (first + k) % SIM_NODES;
		struct table *from = sim_table_find(&s->nodes[src], w->from_gen, w->to_snap);
		if (!sim_layout_has(w->from, w->nfrom, w->from_layout, item, src) || !s->nodes[src].up ||
		    (n->req.rec.without >> src & 1 && s->o.bug != SIM_BUG_PULL_LEFT_OUT) || s->cut_nn[i][src] ||
		    !from || !from->sealed || !(from->has >> item & 1))
			continue;
		t->val[item] = from->val[item];
		t->has |= 1u << item;
		return 1;
	}
	return PTC_EPEER;
}

static int op_finish(struct sim *s, uint32_t i)
{
	struct node *n = &s->nodes[i];
	for (uint32_t k = n->ntables; k-- > 0;) {
		const struct table *t = &n->tables[k];
		if (!(n->req.has_keep && t->gen == n->req.keep_gen && t->snap == n->req.keep_snap) &&
		    !sim_keeps(&n->req, t))
			sim_table_drop(n, k);
	}
	n->prepared_id = n->copied_id = 0;
	if (!sim_keeps(&n->req, &(struct table){ .gen = n->yielded_gen, .snap = n->yielded_snap }))
		n->yielded_gen = n->yielded_snap = n->yielded_by = 0; /* nobody expects it here any more */
	sim_ranks_finish(s, i);
	s->given_up &= ~(1u << i);
	return sim_unlucky(s, 2) ? PTC_EIO : 0;
}

static int op_stand(struct sim *s, uint32_t i)
{
	const struct sw *w = &s->nodes[i].req.sw;
	const struct table *t = sim_table_find(&s->nodes[i], w->to_gen, w->to_snap);
	if (sim_unlucky(s, 2))
		return PTC_EIO;
	return t && t->sealed ? 0 : PTC_ENOTFOUND;
}

static int op_check(struct sim *s, uint32_t i)
{
	return s->nodes[i].disk_full ? PTC_ENOSPC : 0;
}

/* It makes memory, which is nothing here. */
static int op_warm(struct sim *s, uint32_t i)
{
	(void)i;
	return sim_unlucky(s, 1) ? PTC_EIO : 0;
}

/* It goes as it is about to answer, for so long that it is declared lost; and comes back with the table. */
static bool goes_sealed(struct sim *s, uint32_t i)
{
	if (!s->o.lose || s->o.live || s->nodes[i].req.op != PTC_OP_SEAL || !sim_unlucky(s, 1))
		return false;
	sim_node_crash(s, i);
	sim_restart_later(s, i, 2 * LOST_MS + sim_below(s, 5000));
	return true;
}

static void on_op(struct sim *s, const struct ev *ev)
{
	uint32_t i = (uint32_t)ev->who;
	struct node *n = &s->nodes[i];
	if (!n->running || n->token != ev->a)
		return;
	static int (*const ops[])(struct sim *, uint32_t) = {
		[PTC_OP_CHECK] = op_check,     [PTC_OP_SEAL] = op_seal,           [PTC_OP_PREPARE] = op_prepare,
		[PTC_OP_PULL] = op_pull,       [PTC_OP_FINISH] = op_finish,       [PTC_OP_START] = sim_op_start,
		[PTC_OP_STOP] = sim_op_stop,   [PTC_OP_CAPTURE] = sim_op_capture, [PTC_OP_END] = sim_op_end,
		[PTC_OP_BUILD] = sim_op_build, [PTC_OP_WARM] = op_warm,           [PTC_OP_STAND] = op_stand,
	};
	bool passed = false;
	uint64_t step = 0;
	if (n->req.fence < n->fence)
		sim_bad(s, "node %u acts for fence %llu, has seen %llu", i, (unsigned long long)n->req.fence,
			(unsigned long long)n->fence);
	int rc = n->req.op == PTC_OP_ARM ? sim_op_arm(s, i, &passed, &step) : ops[n->req.op](s, i);
	if (n->req.op == PTC_OP_STOP && rc == 0) /* a rank's state cannot be taken here, but later */
		passed = sim_unlucky(s, 15);
	if (rc > 0) {
		sim_post(s, 1 + sim_below(s, 8), EV_OP, ev->who)->a = n->token;
		return;
	}
	sim_say(s, "node %u: op %d of %llu seq %llu: %s", i, n->req.op, (unsigned long long)n->req.sw.id,
		(unsigned long long)n->req.seq, ptc_status_name(rc));
	if (rc == 0 && goes_sealed(s, i))
		return;
	node_answer(s, i, rc, passed, step);
}

static void node_refuse(struct sim *s, const struct req *r)
{
	if (s->cut_cn[r->ctl][r->node] || sim_unlucky(s, 5))
		return;
	struct ev *rep = sim_post(s, sim_travel(s), EV_REP, r->ctl);
	rep->inc = r->ctl_inc;
	rep->node = r->node;
	rep->seq = r->seq;
	rep->status = PTC_EFENCED;
}

static void on_req(struct sim *s, const struct ev *ev)
{
	const struct req *r = &ev->u.req;
	struct node *n = &s->nodes[r->node];
	if (!n->up || (n->inc != r->node_inc && s->o.bug != SIM_BUG_OLD_LIFE))
		return; /* the connection is gone; the sender times out */
	if (r->cancel) {
		if (n->running && n->req.fence == r->fence && n->req.seq == r->seq)
			node_reply(s, r->node, PTC_ECANCELED);
		return;
	}
	bool old_fence = r->fence < n->fence, old_seq = r->fence == n->fence && r->seq < n->seq;
	if ((old_fence && s->o.bug != SIM_BUG_NO_FENCE) || (old_seq && s->o.bug != SIM_BUG_NO_SEQ)) {
		node_refuse(s, r);
		return;
	}
	if (n->running && n->req.fence == r->fence && n->req.seq == r->seq)
		return; /* a copy */
	if (n->running) /* a newer one ends it */
		node_reply(s, r->node, PTC_ECANCELED);
	if (r->fence > n->fence || r->seq > n->seq)
		n->seq = r->seq;
	n->fence = PTC_MAX(n->fence, r->fence);
	n->req = *r;
	n->running = true;
	n->token = ++s->token;
	sim_post(s, 1 + sim_below(s, 20), EV_OP, (int)r->node)->a = n->token;
}

void sim_on_node(struct sim *s, const struct ev *ev)
{
	if (ev->kind == EV_REQ)
		on_req(s, ev);
	else
		on_op(s, ev);
}
