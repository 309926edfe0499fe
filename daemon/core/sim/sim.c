/* SPDX-License-Identifier: Apache-2.0 */
/* The world around the job core, on a virtual clock.
 *
 * Four nodes, three would-be controllers and etcd exchange messages that are delayed, lost, repeated and reordered.
 * Nodes keep sealed tables over a crash, lose what is in memory, and keep a random part of what was being filled.
 * etcd is linearizable: a request takes effect at the moment its message arrives, or never; whoever sent it learns
 * the outcome, or only that it is unknown, and a request may arrive long after its sender gave up.
 *
 * Each switch that seals captures content of its own (tagged with the switch's id, as if a training job had gone on),
 * so that a table left by an earlier attempt under the same key is told apart from the right one. With `live` ranks
 * train on the nodes (sim_ranks.c), and a snapshot has what they had at one step.
 *
 * After every event the checker, which knows nothing of the core, looks at the durable state only: the record names
 * a table that every node of its layout has sealed, whole, with the right content (DESIGN section 2, 1 and 2); no node
 * acts on a lower fence than it has seen, and nobody without the lock changes the record (6). At the end, with all
 * faults gone: one idle controller, no intent, no table but the record's, one DONE for each request, and each DONE
 * true. */
#include "daemon/core/sim/internal.h"

#include "base/alloc.h"
#include "base/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- chance, time, trace ------------------------------------------------------- */

uint64_t sim_rnd(struct sim *s)
{
	uint64_t z = (s->rng += 0x9E3779B97F4A7C15ull);
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
	return z ^ (z >> 31);
}

uint32_t sim_below(struct sim *s, uint32_t n)
{
	return (uint32_t)(sim_rnd(s) % n);
}

bool sim_chance(struct sim *s, uint32_t percent)
{
	return sim_below(s, 100) < percent;
}

bool sim_unlucky(struct sim *s, uint32_t percent)
{
	return s->o.faults && !s->calm && sim_chance(s, percent);
}

static void mix(struct sim *s, uint64_t v)
{
	s->res->hash = (s->res->hash ^ v) * 0x100000001B3ull;
	s->res->hash ^= s->res->hash >> 29;
}

void sim_say(struct sim *s, const char *fmt, ...)
{
	if (!s->o.trace)
		return;
	va_list ap;
	va_start(ap, fmt);
	printf("%7llu  ", (unsigned long long)s->now);
	vprintf(fmt, ap);
	putchar('\n');
	va_end(ap);
}

void sim_bad(struct sim *s, const char *fmt, ...)
{
	if (s->bad)
		return;
	s->bad = true;
	va_list ap;
	va_start(ap, fmt);
	int n = snprintf(s->res->why, sizeof(s->res->why), "at %llu ms: ", (unsigned long long)s->now);
	vsnprintf(s->res->why + n, sizeof(s->res->why) - (size_t)n, fmt, ap);
	va_end(ap);
	sim_say(s, "VIOLATION %s", s->res->why);
}

static bool slot_less(const struct slot *a, const struct slot *b)
{
	return a->at != b->at ? a->at < b->at : a->order < b->order;
}

struct ev *sim_post(struct sim *s, uint64_t delay, enum kind kind, int who)
{
	ptc_require(PTC_ROOM(s->heap, s->nheap + 1, s->cap));
	struct ev *ev = ptc_calloc(1, sizeof *ev);
	ptc_require(ev);
	ev->kind = kind;
	ev->who = who;
	struct slot slot = { s->now + delay, s->order++, ev };
	size_t i = s->nheap++;
	for (; i && slot_less(&slot, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
		s->heap[i] = s->heap[(i - 1) / 2];
	s->heap[i] = slot;
	return ev;
}

static struct ev *pop(struct sim *s)
{
	struct slot top = s->heap[0], last = s->heap[--s->nheap];
	size_t i = 0;
	for (;;) {
		size_t c = 2 * i + 1;
		if (c >= s->nheap)
			break;
		if (c + 1 < s->nheap && slot_less(&s->heap[c + 1], &s->heap[c]))
			c++;
		if (slot_less(&last, &s->heap[c]))
			break;
		s->heap[i] = s->heap[c];
		i = c;
	}
	if (s->nheap)
		s->heap[i] = last;
	s->now = top.at;
	return top.ev;
}

/* How long a message takes; now and then so long that its sender has given up. */
static uint64_t travel(struct sim *s)
{
	if (sim_unlucky(s, 2))
		return 300 + sim_below(s, 4000);
	return 1 + sim_below(s, s->o.faults ? 30 : 5);
}

/* ---- layout and content: the oracle's own arithmetic --------------------------------- */

uint64_t sim_content(uint32_t item, uint64_t id)
{
	return (id * 1000003u) ^ (item * 7919u) ^ 0x5bd1e995u;
}

bool sim_layout_has(const uint32_t *nodes, uint32_t n, uint32_t layout, uint32_t item, uint32_t node)
{
	if (n == 0)
		return false;
	if (nodes[(item + layout) % n] == node)
		return true;
	return (layout & 1) && nodes[(item + layout + 1) % n] == node;
}

uint32_t sim_layout_needs(const uint32_t *nodes, uint32_t n, uint32_t layout, uint32_t node)
{
	uint32_t mask = 0;
	for (uint32_t i = 0; i < ITEMS; i++)
		mask |= (uint32_t)sim_layout_has(nodes, n, layout, i, node) << i;
	return mask;
}

struct table *sim_table_find(struct node *n, uint64_t gen, uint64_t snap)
{
	for (uint32_t i = 0; i < n->ntables; i++) {
		if (n->tables[i].gen == gen && n->tables[i].snap == snap)
			return &n->tables[i];
	}
	return NULL;
}

struct table *sim_table_add(struct sim *s, struct node *n, uint64_t gen, uint64_t snap)
{
	if (n->ntables == MAX_TABLES) {
		sim_bad(s, "node %d hoards tables", (int)(n - s->nodes));
		n->ntables--;
	}
	struct table *t = &n->tables[n->ntables++];
	memset(t, 0, sizeof *t);
	t->gen = gen;
	t->snap = snap;
	return t;
}

void sim_table_drop(struct node *n, uint32_t i)
{
	n->tables[i] = n->tables[--n->ntables];
}

/* ---- the checker --------------------------------------------------------------------- */

static void check_snapshot(struct sim *s, const struct record *r)
{
	for (uint32_t k = 0; r->gen && r->snap && k < r->n; k++) {
		uint32_t node = r->nodes[k];
		struct table *t = sim_table_find(&s->nodes[node], r->gen, r->snap);
		if (r->without >> node & 1 || ((!t || !t->sealed) && sim_ruined(s, node, r)))
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

static void check_record(struct sim *s)
{
	const struct record *r = &s->etcd.rec;
	if (r->gen && r->snap && s->o.lose && !s->o.faults && sim_record_lost(s, r))
		sim_bad(s, "record %llu.%llu: one node was lost, and with it what was there twice",
			(unsigned long long)r->gen, (unsigned long long)r->snap);
	check_snapshot(s, r);
	for (uint32_t i = 0; i < s->etcd.older.n; i++)
		check_snapshot(s, &s->etcd.older.v[i]);
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

static uint32_t script_length(void);

static struct ctl *leader(struct sim *s)
{
	struct ctl *c = s->etcd.lock_rev ? &s->ctls[s->etcd.lock_ctl] : NULL;
	return c && c->alive && c->inc == s->etcd.lock_inc && c->fence == s->etcd.lock_rev && c->job ? c : NULL;
}

static uint32_t commits_wanted(const struct sim *s)
{
	return s->o.faults ? s->commits_at_calm + 1 : WANT_COMMIT;
}

static const char *not_quiet(struct sim *s)
{
	struct ctl *c = leader(s);
	if (!c)
		return "nobody leads";
	if (ptc_job_phase(c->job) != PTC_JOB_IDLE)
		return ptc_job_phase_name(ptc_job_phase(c->job));
	if (s->etcd.intent_mod)
		return "an intent is left";
	if (s->o.live && !s->o.faults ? s->script_at < script_length() : s->res->commits < commits_wanted(s))
		return "too few switches committed";
	if (s->o.live && s->etcd.rec.run != RUN_LIVE)
		return "the job does not run";
	if (s->o.live && sim_ranks_not_quiet(s))
		return sim_ranks_not_quiet(s);
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
		if (s->o.keep && n->ntables >= member + older_tables(s, i))
			continue; /* what the list names no more a node drops later: nobody waits for that */
		if (n->ntables != member)
			return member ? "a member has more than the record's table" : "a node that is out has tables";
	}
	return NULL;
}

static bool listed(const uint64_t *v, uint32_t n, uint64_t id)
{
	for (uint32_t i = 0; i < n; i++) {
		if (v[i] == id)
			return true;
	}
	return false;
}

static void check_end(struct sim *s)
{
	const char *why = not_quiet(s);
	if (why)
		sim_bad(s, "not quiet in the end: %s", why);
	for (uint32_t i = 0; i < s->nfailed; i++) {
		if (listed(s->committed, s->ncommitted, s->failed[i]))
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

/* ---- etcd ---------------------------------------------------------------------------- */

static bool txn_compares(struct sim *s, const struct txn *t)
{
	const struct etcd *e = &s->etcd;
	if (s->o.bug == SIM_BUG_NO_COMPARE)
		return true;
	if (t->lock_rev != e->lock_rev || t->rec_mod != e->rec.mod || t->intent_mod != e->intent_mod)
		return false;
	for (uint32_t i = 0; t->kind == PTC_TXN_COMMIT2 && i < t->sw.nto; i++) {
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

/* The record's snapshot becomes an older one, in the transaction that gives it another content. */
static void supersede(struct sim *s)
{
	struct etcd *e = &s->etcd;
	struct older *o = &e->older;
	struct record now = e->rec;
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
	bool kept = false;
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
	if (w->kind == PTC_SWITCH_IMPORT)
		supersede(s);
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
	supersede(s);
	s->res->left_out += t->without != r->without;
	r->without = t->without;
	s->given_up |= t->without;
	r->snap = w->to_snap;
	r->mod = e->rev;
	if (w->run_from) {
		if (t->step < r->step)
			sim_bad(s, "the record goes back from step %llu to %llu", (unsigned long long)r->step,
				(unsigned long long)t->step);
		r->grown += (t->step - r->step) * sim_weight(r->gen, r->incarnation);
		r->step = t->step;
	} else {
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

static void on_etcd_txn(struct sim *s, const struct ev *ev)
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
	struct ev *rep = sim_post(s, travel(s), EV_TXNREP, ev->who);
	rep->inc = ev->inc;
	rep->seq = ev->u.txn.seq;
	rep->outcome = ok ? PTC_TXN_OK : PTC_TXN_CONFLICT;
	rep->older = s->etcd.older;
	rep->rec = s->etcd.rec; /* what this transaction wrote, for the shell's next compares */
	rep->intent_mod = s->etcd.intent_mod;
}

static void on_etcd_acquire(struct sim *s, const struct ev *ev)
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
	struct ev *rep = sim_post(s, travel(s), EV_ACQREP, ev->who);
	rep->inc = ev->inc;
	rep->a = e->lock_rev;
}

static void on_etcd_read(struct sim *s, const struct ev *ev)
{
	if (s->cut_ce[ev->who] || sim_unlucky(s, 5))
		return;
	struct ev *rep = sim_post(s, travel(s), EV_READREP, ev->who);
	rep->inc = ev->inc;
	rep->seq = ev->seq;
	rep->rec = s->etcd.rec;
	rep->older = s->etcd.older;
	rep->intent_mod = s->etcd.intent_mod;
	rep->a = s->etcd.lock_rev;
	rep->u.sw = s->etcd.intent;
}

static void on_etcd_tick(struct sim *s)
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

/* ---- nodes ---------------------------------------------------------------------------- */

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
}

static void machine_crash(struct sim *s, uint32_t i)
{
	sim_node_crash(s, i);
	sim_ranks_lose(s, i);
}

static void node_start(struct sim *s, uint32_t i)
{
	struct node *n = &s->nodes[i];
	if (n->up || n->gone)
		return;
	sim_say(s, "node %u starts", i);
	n->up = true;
	sim_ranks_restarted(s, i);
	s->etcd.key[i] = 0; /* a new life has a new key */
	s->declared[i] = false;
	/* What it knew of fences may be lost. All that it ever did was for the lock that is held now, or an earlier. */
	if (s->o.bug != SIM_BUG_FORGET_FENCE)
		n->fence = PTC_MAX(n->fence, s->etcd.lock_rev ? s->etcd.lock_rev : s->etcd.rev);
	if (s->o.bug == SIM_BUG_DROP_RETURNED)
		n->ntables = 0;
}

static void on_node_tick(struct sim *s, uint32_t i)
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
		struct ev *rep = sim_post(s, travel(s), EV_REP, r->ctl);
		rep->inc = r->ctl_inc;
		rep->node = i;
		rep->seq = r->seq;
		rep->status = status;
		rep->op = r->op;
		rep->passed = passed && s->o.bug != SIM_BUG_ONE_ROUND;
		rep->step = step;
		if (r->op == PTC_OP_CAPTURE && status == 0 && t)
			rep->table = *t;
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
	uint32_t has = old->has;
	if (!t)
		t = sim_table_add(s, n, w->from_gen, w->to_snap);
	t->has = has;
	for (uint32_t k = 0; k < ITEMS; k++)
		t->val[k] = sim_content(k, w->id);
	table_seal(t);
	t->durable = s->o.bug != SIM_BUG_UNSYNCED_SEAL;
	return 0;
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
	s->given_up &= ~(1u << i);
	sim_ranks_finish(s, i);
	return sim_unlucky(s, 2) ? PTC_EIO : 0;
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

static void on_node_op(struct sim *s, const struct ev *ev)
{
	uint32_t i = (uint32_t)ev->who;
	struct node *n = &s->nodes[i];
	if (!n->running || n->token != ev->a)
		return;
	static int (*const ops[])(struct sim *, uint32_t) = {
		[PTC_OP_CHECK] = op_check,     [PTC_OP_SEAL] = op_seal,           [PTC_OP_PREPARE] = op_prepare,
		[PTC_OP_PULL] = op_pull,       [PTC_OP_FINISH] = op_finish,       [PTC_OP_START] = sim_op_start,
		[PTC_OP_STOP] = sim_op_stop,   [PTC_OP_CAPTURE] = sim_op_capture, [PTC_OP_END] = sim_op_end,
		[PTC_OP_BUILD] = sim_op_build, [PTC_OP_WARM] = op_warm,
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
	node_answer(s, i, rc, passed, step);
}

static void node_refuse(struct sim *s, const struct req *r)
{
	if (s->cut_cn[r->ctl][r->node] || sim_unlucky(s, 5))
		return;
	struct ev *rep = sim_post(s, travel(s), EV_REP, r->ctl);
	rep->inc = r->ctl_inc;
	rep->node = r->node;
	rep->seq = r->seq;
	rep->status = PTC_EFENCED;
}

static void on_node_req(struct sim *s, const struct ev *ev)
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

/* ---- controllers: the shell of the core --------------------------------------------------- */

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
}

static void ctl_crash(struct sim *s, int i)
{
	struct ctl *c = &s->ctls[i];
	if (!c->alive)
		return;
	sim_say(s, "ctl %d crashes", i);
	ctl_forget(c);
	c->alive = false;
	c->inc++;
}

static void restart_later(struct sim *s, enum kind kind, int who, uint64_t delay)
{
	s->restarts_left++;
	sim_post(s, delay, kind, who);
}

void sim_restart_later(struct sim *s, uint32_t node, uint64_t delay)
{
	restart_later(s, EV_RESTART_NODE, (int)node, delay);
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
		machine_crash(s, n);
		restart_later(s, EV_RESTART_NODE, (int)n, s->o.restart_ms);
		return;
	}
	if (s->o.victim < SIM_NODES) {
		sim_node_crash(s, s->o.victim);
		restart_later(s, EV_RESTART_NODE, (int)s->o.victim, s->o.restart_ms);
	} else if (s->o.victim == SIM_VICTIM_CTL) {
		ctl_crash(s, i);
		restart_later(s, EV_RESTART_CTL, i, s->o.restart_ms);
	} else if (s->o.victim == SIM_VICTIM_ABORT) {
		ctl_local(s, i, EV_ABORT, 0, 0);
	} else {
		sim_say(s, "lock %llu is lost", (unsigned long long)s->etcd.lock_rev);
		s->etcd.lock_rev = 0;
		s->etcd.rev++;
		s->cut_ce[i] = s->o.restart_ms >= TTL_MS;
		restart_later(s, EV_RESTART_CTL, i, s->o.restart_ms);
	}
}

static void up_send(struct sim *s, int i, const struct ptc_job_update *u)
{
	struct ctl *c = &s->ctls[i];
	struct node *n = &s->nodes[u->node];
	bool cancel = u->kind == PTC_UP_CANCEL;
	c->sent[u->node] = cancel ? 0 : u->seq;
	if (!cancel) {
		bool lie = (s->o.bug == SIM_BUG_EARLY_COMMIT && u->op == PTC_OP_PULL) ||
			   (s->o.bug == SIM_BUG_EARLY_BUILD && u->op == PTC_OP_END) ||
			   (s->o.bug == SIM_BUG_NOT_ASKED && u->op == PTC_OP_BUILD && u->built) ||
			   (s->o.bug == SIM_BUG_SKIP_FINISH && u->op == PTC_OP_FINISH);
		struct ev *rep = ctl_local(s, i, EV_REP, lie ? 1 : n->up ? RPC_MS : 20, u->seq);
		rep->node = u->node;
		rep->status = lie ? 0 : n->up ? PTC_ETIMEOUT : PTC_EPEER;
		rep->op = u->op;
		rep->timeout = !lie;
		if (lie && u->op == PTC_OP_FINISH)
			return;
	}
	if (!n->up)
		return;
	for (int copies = sim_unlucky(s, 10) ? 2 : 1; copies--;) {
		if (s->cut_cn[i][u->node] || sim_unlucky(s, 5))
			continue;
		struct req *r = &sim_post(s, travel(s), EV_REQ, i)->u.req;
		*r = (struct req){ .ctl = i, .ctl_inc = c->inc, .node = u->node, .node_inc = n->inc };
		r->fence = c->fence;
		r->seq = u->seq;
		r->op = u->op;
		r->cancel = cancel;
		r->has_keep = u->has_keep;
		r->keep_gen = u->keep_generation;
		r->keep_snap = u->keep_snapshot;
		r->sw = c->sw;
		r->rec = c->rec;
		r->older = c->older;
		r->stop = u->stop;
		r->built = u->built;
	}
}

static void up_txn(struct sim *s, int i, const struct ptc_job_update *u)
{
	struct ctl *c = &s->ctls[i];
	struct ev *late = ctl_local(s, i, EV_TXNREP, TXN_MS, u->seq);
	late->outcome = PTC_TXN_UNKNOWN;
	late->rec = c->rec;
	late->older = c->older;
	late->intent_mod = c->intent_mod;
	if (s->cut_ce[i] || sim_unlucky(s, 5))
		return;
	struct ev *ev = ctl_local(s, i, EV_TXN, travel(s), u->seq);
	struct txn *t = &ev->u.txn;
	*t = (struct txn){ .kind = u->txn, .seq = u->seq, .lock_rev = c->fence, .rec_mod = c->rec.mod };
	t->intent_mod = c->intent_mod;
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
	t->new_incarnation = u->new_incarnation && s->o.bug != SIM_BUG_NO_NEW_INCARNATION;
	memcpy(t->key, c->seen, sizeof(t->key)); /* what the core knows of */
}

static void ctl_read(struct sim *s, int i, uint64_t reload)
{
	s->ctls[i].reading = true;
	s->ctls[i].reload = reload;
	if (!s->cut_ce[i] && !sim_unlucky(s, 5))
		ctl_local(s, i, EV_READ, travel(s), reload);
	ctl_local(s, i, EV_READREP, TXN_MS, reload)->status = PTC_ETIMEOUT;
}

static void up_done(struct sim *s, int i, const struct ptc_job_update *u)
{
	struct ctl *c = &s->ctls[i];
	sim_say(s, "ctl %d: switch %llu done: %s %s", i, (unsigned long long)u->switch_id, ptc_status_name(u->status),
		u->text);
	bool committed = listed(s->committed, s->ncommitted, u->switch_id);
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
	struct ev *ev = ctl_local(s, i, EV_CLIENT, travel(s), 0);
	ev->u.sw = c->sw;
}

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
	struct ev *ev = ctl_local(s, i, EV_DIGESTS, 1 + sim_below(s, 5), u->seq);
	ev->status = sim_unlucky(s, 1) ? PTC_EDIGEST : 0;
	ev->a = u->kind == PTC_UP_AGREE ? PTC_EV_AGREED : u->kind == PTC_UP_LAYOUT ? PTC_EV_LAYOUT : PTC_EV_DIGESTS;
	const struct sw *w = &s->ctls[i].sw;
	bool agree = u->kind == PTC_UP_AGREE;
	if (agree && w->run_from && captures_compare(s, i)) {
		s->res->disagreed++;
		ev->status = PTC_EDIGEST;
	}
	if (agree && s->o.bug != SIM_BUG_NO_COVER && !(w->held && s->o.bug == SIM_BUG_HELD_ALONE) &&
	    !sim_covered(w->from, w->nfrom, w->from_layout, sim_left_out(&s->ctls[i], w)))
		ev->status = PTC_ELOST;
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
		s->ctls[i].held |= u->phase == PTC_JOB_ARMING || u->phase == PTC_JOB_SEALING;
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
		mix(s, ups.v[k].kind * 64u + ups.v[k].op);
		up_perform(s, i, &ups.v[k]);
		if (here && s->o.after)
			inject(s, i);
	}
	if (stopped && c->inc == inc)
		ctl_stopped(s, i);
}

/* The core's view of w; only nodes that have a part in it. */
static void switch_view(const struct sw *w, struct told *told)
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
	c->older = ev->older;
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
		switch_view(&c->sw, &intent);
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
			c->older = ev->older;
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

/* What the watch on the nodes' keys tells. */
static void ctl_watch(struct sim *s, int i)
{
	struct ctl *c = &s->ctls[i];
	if (s->o.lose)
		sim_loss_watch(s, i);
	for (uint32_t n = 0; n < SIM_NODES && c->job; n++) {
		uint64_t key = s->etcd.key[n], seen = c->seen[n];
		struct ptc_job_event e = { .kind = PTC_EV_NODE_DOWN, .node = n };
		if (key == seen)
			continue;
		c->seen[n] = key;
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

static void on_ctl_tick(struct sim *s, int i)
{
	struct ctl *c = &s->ctls[i];
	sim_post(s, 30 + sim_below(s, 40), EV_CTL_TICK, i);
	if (!c->alive || s->cut_ce[i])
		return;
	if (!c->job) {
		ctl_local(s, i, EV_ACQUIRE, travel(s), 0);
		return;
	}
	if (s->etcd.lock_rev == c->fence) {
		s->etcd.lock_until = s->now + TTL_MS;
	} else if (s->calm || sim_chance(s, 10)) { /* it may take a while to notice */
		struct ptc_job_event e = { .kind = PTC_EV_LOCK_LOST };
		sim_ctl_feed(s, i, &e);
	}
	ctl_watch(s, i);
	if (c->job && ptc_job_phase(c->job) != PTC_JOB_IDLE && !c->sw.held && sim_loss_gives_up(s, i)) {
		struct ptc_job_event e = { .kind = PTC_EV_ABORT, .status = PTC_EPEER, .text = "a node is lost" };
		sim_ctl_feed(s, i, &e);
	}
	if (c->job && switch_lost_rank(s, c)) {
		struct ptc_job_event e = { .kind = PTC_EV_ABORT, .status = PTC_EPEER, .text = "a rank has failed" };
		sim_ctl_feed(s, i, &e);
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
	struct ev *next = ctl_local(s, ev->who, EV_CLIENT, travel(s), 0);
	next->a = ev->a + 1;
	next->u.sw = *w;
}

/* ---- what is asked for, and what goes wrong ---------------------------------------------------- */

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
	while (w->nto == 0) {
		for (uint32_t i = 0; i < SIM_NODES; i++) {
			if (sim_chance(s, 60) && !(s->calm && s->nodes[i].gone))
				w->to[w->nto++] = i;
		}
	}
	w->to_layout = sim_below(s, 4);
	if (s->o.lose && w->nto > 1 && sim_chance(s, s->o.survive ? 100 : 75))
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

static void request_random(struct sim *s, int i, struct sw *w, const struct record *r)
{
	request_nodes(s, w);
	if (request_rollback(s, i, w, r))
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

static uint32_t script_length(void)
{
	return PTC_ARRAY_LEN(live_script);
}

/* The script's next, or what it needs first: after a failure the job has to run again. */
static void request_live_script(struct sim *s, struct sw *w)
{
	uint32_t k = PTC_MIN(s->script_at, script_length() - 1);
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

/* The ranks are given up, to be started again elsewhere; from what those hold that are left, if that is all. */
static void request_recovery(struct sim *s, struct sw *w, const struct record *r)
{
	uint32_t without;

	if (s->now - s->moved_at < LOST_MS / 2)
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

static void request_fill(struct sim *s, int i, struct sw *w, const struct record *r)
{
	w->kind = r->gen ? PTC_SWITCH_RESIZE : PTC_SWITCH_IMPORT;
	w->to_gen = r->gen + 1;
	w->to_snap = r->snap + 1;
	w->nfrom = r->n;
	w->without = r->without;
	memcpy(w->from, r->nodes, sizeof(w->from));
	w->from_layout = r->layout;
	w->from_incarnation = r->incarnation;
	w->to_incarnation = r->incarnation + 1;
	if (s->o.live && rank_failed(s)) {
		if (!s->o.faults && s->o.victim < SIM_VICTIM_STATE)
			sim_bad(s, "a rank was lost, and no machine or rank has failed");
		w->kind = PTC_SWITCH_HALT;
		w->run = RUN_FAILED;
	} else if (sim_loss_gives_up(s, i)) {
		request_recovery(s, w, r);
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
	switch_view(&w, &view);
	struct ptc_job_event e = { .kind = PTC_EV_SWITCH, .request = &view.s };
	sim_ctl_feed(s, i, &e);
}

/* More is wanted than the job is now. */
static bool wants_more(struct sim *s, int i)
{
	if (!s->o.live)
		return s->res->commits < commits_wanted(s);
	while (!s->o.faults && s->script_at < script_length() && listed(s->committed, s->ncommitted, s->script_id)) {
		s->script_at++;
		s->script_id = 0;
	}
	bool more = s->o.faults ? s->res->commits < commits_wanted(s) : s->script_at < script_length();
	return more || s->etcd.rec.run != RUN_LIVE || rank_failed(s) || sim_loss_gives_up(s, i);
}

static void on_driver(struct sim *s)
{
	sim_post(s, 40 + sim_below(s, 80), EV_DRIVER, 0);
	struct ctl *c = s->o.faults && !s->calm ? &s->ctls[sim_below(s, SIM_CTLS)] : leader(s);
	if (!c || !c->job)
		return;
	int i = (int)(c - s->ctls);
	bool idle = ptc_job_phase(c->job) == PTC_JOB_IDLE;
	if (!s->o.faults || s->calm) {
		if (wants_more(s, i) && idle)
			request(s, i);
		return;
	}
	bool calm_job = s->o.survive && s->etcd.rec.run == RUN_LIVE && !rank_failed(s) && !sim_loss_gives_up(s, i);
	if (sim_chance(s, calm_job ? 1 : idle ? 40 : 3)) {
		request(s, i);
	} else if (sim_chance(s, 4)) {
		struct ptc_job_event e = { .kind = PTC_EV_ABORT, .status = PTC_ECANCELED, .text = "told to" };
		sim_ctl_feed(s, i, &e);
	}
}

static void heal(struct sim *s)
{
	memset(s->cut_cn, 0, sizeof(s->cut_cn));
	memset(s->cut_ce, 0, sizeof(s->cut_ce));
	memset(s->cut_ne, 0, sizeof(s->cut_ne));
	memset(s->cut_nn, 0, sizeof(s->cut_nn));
	for (uint32_t i = 0; i < SIM_NODES; i++)
		s->nodes[i].disk_full = false;
}

static void fault_random(struct sim *s)
{
	uint32_t n = sim_below(s, SIM_NODES), m = sim_below(s, SIM_NODES), c = sim_below(s, SIM_CTLS);
	uint64_t later = sim_chance(s, 50) ? 5 + sim_below(s, 300) : 1000 + sim_below(s, 5000);
	if (s->o.survive && !sim_chance(s, 15)) {
		sim_loss_again(s);
		return;
	}
	if (s->o.lose && sim_chance(s, 25)) {
		sim_loss_fault(s);
		return;
	}
	switch (sim_below(s, s->o.live ? 12 : 9)) {
	case 9:
		if (s->nodes[n].up)
			restart_later(s, EV_RESTART_NODE, (int)n, later);
		machine_crash(s, n);
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
			restart_later(s, EV_RESTART_NODE, (int)n, later);
		sim_node_crash(s, n);
		break;
	case 2:
		if (s->ctls[c].alive)
			restart_later(s, EV_RESTART_CTL, (int)c, later);
		ctl_crash(s, (int)c);
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

static void on_fault(struct sim *s)
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

static void on_restart(struct sim *s, const struct ev *ev)
{
	s->restarts_left--;
	if (ev->kind == EV_RESTART_NODE) {
		node_start(s, (uint32_t)ev->who);
		return;
	}
	s->ctls[ev->who].alive = true;
	s->cut_ce[ev->who] = false;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Events for a controller's earlier life are dropped. */
static bool for_the_dead(const struct sim *s, const struct ev *ev)
{
	switch (ev->kind) {
	case EV_REP:
	case EV_TXNREP:
	case EV_READREP:
	case EV_ACQREP:
	case EV_TIMER:
	case EV_DIGESTS:
	case EV_CLIENT:
	case EV_ABORT:
		return s->ctls[ev->who].inc != ev->inc || !s->ctls[ev->who].alive;
	default:
		return false;
	}
}

/* What may take minutes has a heartbeat instead of a deadline. */
static bool still_busy(const struct sim *s, const struct ctl *c, const struct ev *ev)
{
	const struct node *n = &s->nodes[ev->node];
	bool slow = ev->op == PTC_OP_STOP || ev->op == PTC_OP_END || ev->op == PTC_OP_BUILD;
	return slow && n->up && n->running && n->req.fence == c->fence && n->req.seq == ev->seq &&
	       !s->cut_cn[ev->who][ev->node];
}

static void feed_answer(struct sim *s, const struct ev *ev)
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
		c->captured[ev->node] = ev->table;
	sim_ctl_feed(s, ev->who, &e);
}

static void handle(struct sim *s, const struct ev *ev)
{
	switch (ev->kind) {
	case EV_REQ:
		on_node_req(s, ev);
		break;
	case EV_OP:
		on_node_op(s, ev);
		break;
	case EV_REP:
	case EV_TIMER:
	case EV_DIGESTS:
		feed_answer(s, ev);
		break;
	case EV_TXN:
		on_etcd_txn(s, ev);
		break;
	case EV_TXNREP:
		on_txnrep(s, ev);
		break;
	case EV_READ:
		on_etcd_read(s, ev);
		break;
	case EV_READREP:
		on_readrep(s, ev);
		break;
	case EV_ACQUIRE:
		on_etcd_acquire(s, ev);
		break;
	case EV_ACQREP:
		on_acqrep(s, ev);
		break;
	case EV_CTL_TICK:
		on_ctl_tick(s, ev->who);
		break;
	case EV_NODE_TICK:
		on_node_tick(s, (uint32_t)ev->who);
		break;
	case EV_TRAIN:
		sim_ranks_train(s, (uint32_t)ev->who);
		break;
	case EV_DOOM:
		sim_ranks_doom(s, (uint32_t)ev->who);
		break;
	case EV_ETCD_TICK:
		on_etcd_tick(s);
		break;
	case EV_DRIVER:
		on_driver(s);
		break;
	case EV_FAULT:
		on_fault(s);
		break;
	case EV_CLIENT:
		on_client(s, ev);
		break;
	case EV_ABORT:
		sim_ctl_feed(s, ev->who, &(struct ptc_job_event){ .kind = PTC_EV_ABORT });
		break;
	case EV_RESTART_NODE:
	case EV_RESTART_CTL:
		on_restart(s, ev);
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
	uint64_t quiet_since = 0, steps = 0;
	while (!s->bad && s->now < LIMIT_MS) {
		struct ev *ev = pop(s);
		mix(s, s->now * 32 + ev->kind);
		mix(s, ev->seq * 16 + (uint64_t)ev->who);
		s->res->events++;
		if (!for_the_dead(s, ev))
			handle(s, ev);
		enum kind kind = ev->kind;
		ptc_free(ev);
		if (kind <= EV_READREP || kind == EV_CLIENT || kind == EV_RESTART_NODE || kind == EV_FAULT)
			check_record(
				s); /* the others change nothing that is durable, but for a fault that is injected */
		if (kind != EV_ETCD_TICK || s->restarts_left || (s->o.faults && !s->calm))
			continue;
		if (!quiet_since && !not_quiet(s)) {
			quiet_since = s->now;
			steps = sim_ranks_steps(s);
		}
		if (quiet_since && s->now > quiet_since + (s->o.faults ? 6000 : 2000))
			break;
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
		ptc_free(pop(s));
	for (int i = 0; i < SIM_CTLS; i++)
		ptc_job_free(s->ctls[i].job);
	ptc_free(s->heap);
	ptc_free(s);
}
