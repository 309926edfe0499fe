/* SPDX-License-Identifier: Apache-2.0 */
/* A model of etcd: the job's record, its intent, its older snapshots, its lock, and the keys of nodes.
 *
 * Happy path: a request takes effect at the moment its message arrives; a transaction compares revisions, and
 * then writes all or nothing. Each write has a revision of its own.
 * Failure modes: a compare fails (a conflict); the answer is lost, so the sender learns nothing; a lock or a key
 * expires. A transaction that may not be (without the lock, over another state, with items nowhere) is told to
 * sim_bad(). */
#include "daemon/core/sim/internal.h"

#include "base/check.h"

#include <string.h>

static bool txn_compares(struct sim *s, const struct txn *t)
{
	const struct etcd *e = &s->etcd;
	if (s->o.bug == SIM_BUG_NO_COMPARE)
		return true;
	if (t->lock_rev != e->lock_rev || t->rec_mod != e->rec.mod || t->intent_mod != e->intent_mod)
		return false;
	bool back = t->kind == PTC_TXN_INTENT && t->sw.stored && s->o.bug != SIM_BUG_BACK_SHED;
	bool lists = back || t->kind == PTC_TXN_COMMIT1 || t->kind == PTC_TXN_COMMIT2;
	if (s->o.bridge && lists && t->older_mod != e->older.mod)
		return false;
	for (uint32_t n = 0; s->o.bug != SIM_BUG_HELD_KEYS && n < SIM_NODES; n++) {
		if (t->gave >> n & 1 && (!t->key[n] || t->key[n] != e->key[n]))
			return false;
	}
	for (uint32_t i = 0; t->kind == PTC_TXN_COMMIT2 && s->o.bug != SIM_BUG_COMMIT_LOST && i < t->sw.nto; i++) {
		uint32_t n = t->sw.to[i];
		if (!t->key[n] || t->key[n] != e->key[n])
			return false;
	}
	return true;
}

static void committed(struct sim *s, const struct txn *t)
{
	s->etcd.rec.mod = s->etcd.rev;
	s->etcd.rec.by = t->sw.id;
	s->res->commits++;
	ptc_require(s->ncommitted < PTC_ARRAY_LEN(s->committed));
	s->committed[s->ncommitted++] = t->sw.id;
}

/* As make_bridge in daemon/controller/committing: what the job can go back to until the record's snapshot has its copy.
 */
static void supersede_bridge(struct sim *s, const struct txn *t)
{
	struct record *b = &s->etcd.older.bridge, now = s->etcd.rec;
	if (t->yielded && !sim_bridge_yielded(s, b, false))
		sim_bad(s, "the commit of %llu drops a bridge that every node still has", (unsigned long long)t->sw.id);
	s->res->yields_told += t->yielded;
	if (t->yielded || now.copy || s->o.bug == SIM_BUG_BRIDGE_NEWEST)
		b->snap = 0;
	if (b->snap)
		return;
	if (!t->no_bridge)
		*b = now;
	else
		s->bridged = false;
}

/* The record's snapshot becomes an older one, in the transaction that gives it another content. */
static void supersede(struct sim *s, const struct txn *t)
{
	struct etcd *e = &s->etcd;
	struct older *o = &e->older;
	struct record now = e->rec;
	if (s->o.bridge)
		supersede_bridge(s, t);
	o->mod = e->rev;
	if (!s->o.keep)
		return;
	if (s->o.bug == SIM_BUG_OLDER_LATE) {
		now = e->was;
		e->was = e->rec;
	}
	if (!now.snap)
		return;
	if (o->n == MAX_OLDER) {
		memmove(o->v, o->v + 1, (MAX_OLDER - 1) * sizeof *o->v);
		o->n--;
	}
	o->v[o->n++] = now;
}

/* The snapshot that a rollback goes back to is kept until it has got there. */
static void check_source(struct sim *s, const struct sw *w)
{
	const struct etcd *e = &s->etcd;
	/* copies of the record's snapshot are read as if by a rollback to it */
	bool kept = s->o.bridge && (e->older.bridge.snap == w->source.snap || e->rec.snap == w->source.snap);
	for (uint32_t i = 0; i < s->etcd.older.n; i++)
		kept |= s->etcd.older.v[i].snap == w->source.snap;
	if (!kept)
		sim_bad(s, "rollback %llu to snapshot %llu, which is not kept", (unsigned long long)w->id,
			(unsigned long long)w->source.snap);
	s->res->rollbacks++;
}

static void commit2(struct sim *s, const struct txn *t)
{
	struct etcd *e = &s->etcd;
	const struct sw *w = &t->sw;
	struct record r = { .gen = w->to_gen, .snap = w->to_snap, .n = w->nto, .layout = w->to_layout };
	memcpy(r.nodes, w->to, sizeof(r.nodes));
	memcpy(r.key, e->key, sizeof(r.key));
	r.at = s->now;
	r.stood = t->compared_at;
	r.content = e->rec.content;
	r.grown = e->rec.grown;
	r.step = e->rec.step;
	if (w->stored) {
		check_source(s, w);
		r.content = w->source.content;
		r.grown = w->source.grown;
		r.step = w->source.step;
	} else if (w->kind == PTC_SWITCH_IMPORT || w->to_snap == 0) {
		r.content = w->to_snap ? w->id : INIT_ID;
		r.grown = r.step = 0;
	}
	r.incarnation = w->run_to ? w->to_incarnation : e->rec.incarnation;
	r.run = w->run_to ? RUN_LIVE : RUN_NONE;
	r.recovers = !w->run_to && e->rec.recovers;
	if (e->rec.gen != w->from_gen || (w->kind == PTC_SWITCH_RESIZE && e->rec.snap != w->to_snap))
		sim_bad(s, "second commit of %llu over %llu.%llu", (unsigned long long)w->id,
			(unsigned long long)e->rec.gen, (unsigned long long)e->rec.snap);
	if (w->kind == PTC_SWITCH_IMPORT || s->o.bridge)
		supersede(s, t);
	e->rec = r;
	e->intent_mod = 0;
	committed(s, t);
}

static void commit1(struct sim *s, const struct txn *t)
{
	struct etcd *e = &s->etcd;
	const struct sw *w = &t->sw;
	struct record *r = &e->rec;
	if (r->gen != w->from_gen || r->snap != w->from_snap)
		sim_bad(s, "first commit of %llu over %llu.%llu", (unsigned long long)w->id, (unsigned long long)r->gen,
			(unsigned long long)r->snap);
	if (!sim_covered(w->from, w->nfrom, w->from_layout, t->without))
		sim_bad(s, "first commit of %llu: some item is on no node that it names", (unsigned long long)w->id);
	supersede(s, t);
	s->res->left_out += t->without != r->without;
	r->without = t->without;
	r->at = w->held ? s->now : 0;
	r->stood = 0;
	memcpy(r->key, e->key, sizeof(r->key));
	s->given_up |= t->without;
	r->snap = w->to_snap;
	r->mod = e->rev;
	if (w->run_from) {
		uint64_t grown = (t->step - r->step) * sim_weight(s, r->gen, r->incarnation);
		if (t->step < r->step)
			sim_bad(s, "the record goes back from step %llu to %llu", (unsigned long long)r->step,
				(unsigned long long)t->step);
		r->copy = grown ? 0 : r->copy; /* a copy is of a content, and of a generation */
		r->grown += grown;
		r->step = t->step;
	} else {
		r->copy = 0;
		r->content = w->id;
		r->grown = 0;
	}
	if (w->kind != PTC_SWITCH_SNAPSHOT)
		return;
	r->run = w->run_to ? r->run : w->run;
	r->recovers = w->held;
	s->res->survived += w->held;
	e->intent_mod = 0;
	committed(s, t);
}

static void clear(struct sim *s, const struct txn *t)
{
	struct etcd *e = &s->etcd;
	bool ended = e->intent_mod && e->intent.run_from && e->intent.kind == PTC_SWITCH_RESIZE &&
		     e->rec.gen == e->intent.from_gen && e->rec.snap == e->intent.to_snap;
	if (ended != t->new_incarnation)
		sim_bad(s, "%llu was cleared %s", (unsigned long long)t->sw.id,
			ended ? "without an incarnation for ranks that may have ended"
			      : "with an incarnation for no reason");
	if (s->o.bug == SIM_BUG_REVIVED && e->rec.recovers)
		e->rec.run = RUN_LIVE;
	e->rec.incarnation += t->new_incarnation;
	s->res->new_incarnations += t->new_incarnation;
	e->intent_mod = 0;
	if (s->o.bug != SIM_BUG_NO_TOUCH)
		e->rec.mod = e->rev;
	s->res->aborts++;
}

static void txn_apply(struct sim *s, const struct txn *t)
{
	struct etcd *e = &s->etcd;
	e->rev++;
	if (t->lock_rev != e->lock_rev)
		sim_bad(s, "a controller without the lock changed etcd");
	switch (t->kind) {
	case PTC_TXN_INTENT:
		if (e->intent_mod)
			sim_bad(s, "a second intent");
		e->intent = t->sw;
		s->given_up |= t->sw.without | t->without;
		e->intent_mod = e->rev;
		break;
	case PTC_TXN_COMMIT1:
		commit1(s, t);
		break;
	case PTC_TXN_COMMIT2:
		commit2(s, t);
		break;
	case PTC_TXN_HALT:
		if (e->intent_mod || e->rec.gen != t->sw.from_gen || e->rec.snap != t->sw.from_snap)
			sim_bad(s, "halt %llu in the middle of something", (unsigned long long)t->sw.id);
		e->rec.run = t->sw.run;
		e->rec.recovers = t->sw.recovers;
		s->given_up |= t->without;
		committed(s, t);
		break;
	case PTC_TXN_CLEAR:
		clear(s, t);
		break;
	}
}

static void on_txn(struct sim *s, const struct ev *ev)
{
	static const char *const names[] = { "intent", "commit1", "commit2", "clear", "halt" };
	bool ok = txn_compares(s, &ev->u.txn);
	sim_say(s, "etcd: %s of %llu by ctl %d: %s", names[ev->u.txn.kind], (unsigned long long)ev->u.txn.sw.id,
		ev->who, ok ? "applied" : "conflict");
	if (ok)
		txn_apply(s, &ev->u.txn);
	else
		s->res->conflicts++;
	if (s->cut_ce[ev->who] || sim_unlucky(s, 5))
		return;
	struct ev *rep = sim_post(s, sim_travel(s), EV_TXNREP, ev->who);
	rep->inc = ev->inc;
	rep->seq = ev->u.txn.seq;
	rep->outcome = ok ? PTC_TXN_OK : PTC_TXN_CONFLICT;
	rep->older = s->etcd.older;
	rep->rec = s->etcd.rec; /* what this transaction wrote, for the shell's next compares */
	rep->intent_mod = s->etcd.intent_mod;
}

/* The bridge is taken out of the document, if nothing has changed since the controller read it. */
static void on_shed(struct sim *s, const struct ev *ev)
{
	struct etcd *e = &s->etcd;
	const struct txn *t = &ev->u.txn;
	bool ok = s->o.bug == SIM_BUG_SHED_LATE || (t->lock_rev == e->lock_rev && t->rec_mod == e->rec.mod &&
						    !e->intent_mod && t->older_mod == e->older.mod);
	sim_say(s, "etcd: the bridge %llu.%llu goes (%d): %s", (unsigned long long)e->older.bridge.gen,
		(unsigned long long)e->older.bridge.snap, t->why, ok ? "applied" : "conflict");
	if (ok && t->why == SHED_YIELDED && !sim_bridge_yielded(s, &e->older.bridge, false))
		sim_bad(s, "a bridge goes that every node still has");
	if (ok) {
		e->older.bridge.snap = 0;
		e->older.mod = ++e->rev;
		s->res->yields_told += t->why == SHED_YIELDED;
		if (t->why != SHED_COPIED && s->o.bug != SIM_BUG_BRIDGE_DOWN)
			s->bridged = false;
	}
	if (s->cut_ce[ev->who] || sim_unlucky(s, 5))
		return;
	struct ev *rep = sim_post(s, sim_travel(s), EV_SHEDREP, ev->who);
	rep->inc = ev->inc;
	rep->seq = t->seq;
	rep->outcome = ok ? PTC_TXN_OK : PTC_TXN_CONFLICT;
	rep->older = e->older;
}

static void on_acquire(struct sim *s, const struct ev *ev)
{
	struct etcd *e = &s->etcd;
	bool mine = e->lock_rev && e->lock_ctl == ev->who && e->lock_inc == ev->inc;
	if (e->lock_rev && !mine)
		return;
	if (!mine) {
		e->lock_rev = ++e->rev;
		e->lock_ctl = ev->who;
		e->lock_inc = ev->inc;
		sim_say(s, "etcd: lock %llu to ctl %d", (unsigned long long)e->lock_rev, ev->who);
	}
	e->lock_until = s->now + TTL_MS;
	struct ev *rep = sim_post(s, sim_travel(s), EV_ACQREP, ev->who);
	rep->inc = ev->inc;
	rep->a = e->lock_rev;
}

static void on_read(struct sim *s, const struct ev *ev)
{
	if (s->cut_ce[ev->who] || sim_unlucky(s, 5))
		return;
	struct ev *rep = sim_post(s, sim_travel(s), EV_READREP, ev->who);
	rep->inc = ev->inc;
	rep->seq = ev->seq;
	rep->rec = s->etcd.rec;
	rep->older = s->etcd.older;
	rep->intent_mod = s->etcd.intent_mod;
	rep->a = s->etcd.lock_rev;
	rep->u.sw = s->etcd.intent;
}

void sim_on_etcd(struct sim *s, const struct ev *ev)
{
	if (ev->kind == EV_TXN)
		on_txn(s, ev);
	else if (ev->kind == EV_READ)
		on_read(s, ev);
	else if (ev->kind == EV_SHED)
		on_shed(s, ev);
	else
		on_acquire(s, ev);
}

void sim_on_etcd_tick(struct sim *s)
{
	struct etcd *e = &s->etcd;
	if (e->lock_rev && s->now >= e->lock_until) {
		sim_say(s, "etcd: lock %llu expired", (unsigned long long)e->lock_rev);
		e->lock_rev = 0;
		e->rev++;
	}
	for (uint32_t i = 0; i < SIM_NODES; i++) {
		if (e->key[i] && s->now >= e->key_until[i]) {
			e->key[i] = 0;
			e->rev++;
		}
	}
	sim_post(s, 100, EV_ETCD_TICK, 0);
}
