/* SPDX-License-Identifier: Apache-2.0 */
/* Decides when work on copies is due, and which step follows another. Happy path and failure modes: copy_keeper.h.
 *
 *   REST --> LOOKING --nothing lacks--> REST (or NAMING, to take out copies that nobody needs any more)
 *     ^         | targets
 *     |         v
 *     |      PUSHING --> CHECKING --> NAMING --> REST, and looking again
 *     +---------+-- a switch begins, or nobody has succeeded */
#include "daemon/controller/copies/copy_keeper.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "base/number/units.h"

#include <stdio.h>
#include <string.h>

#define RETRY_NS   INT64_C(1000000000)   /* doubled with each failure ... */
#define RETRY_MAX  5                     /* ... so many times */
#define FULL_NS    INT64_C(60000000000)  /* how long a node without room is left alone */
#define STUCK_NS   INT64_C(30000000000)  /* with every: step: how long a node may move no byte of its copies */
#define SWITCH_NS  INT64_C(500000000)    /* after a switch: the next one may follow at once */
#define LEAVE_OUT  8u                    /* snapshots in a row: so much longer may copies take than `snapshot_every` */
#define LEAVE_MAX  (1u << 16)            /* with every: step, where so many steps may be shorter than a round */
#define LEAVE_NS   INT64_C(600000000000) /* .. and for no longer, also where rounds are cut off */
#define BUDGET_MAX (1u << 24)            /* and where a snapshot has used the budget for long */
#define ROUNDS     4                     /* so many of the last one's length may the next one take */
#define FORGET     0.9                   /* how much the snapshots before count for what they cost */

/* ---- what is told ---- */

static void tell(struct ptc_copy_keeper *c, const char *kind, const char *text)
{
	ptc_event(c->ctl->all->cluster, c->ctl->uuid, kind, "snapshot %llu: %s",
		  (unsigned long long)c->ctl->record.snapshot, text);
}

static const char *domains(const struct ptc_copy_keeper *c)
{
	return c->config.racks ? "racks" : "nodes";
}

static void tell_begin(struct ptc_copy_keeper *c, const struct ptc_copy_keeper_seen *s)
{
	char text[256], bytes[PTC_UNITS_MAX];

	snprintf(text, sizeof text, "some regions are on %u of %u %s: %s are brought to %zu nodes", s->found.fewest,
		 c->config.count, domains(c), ptc_units_print_bytes((uint64_t)s->found.bytes, bytes), s->ntargets);
	tell(c, "copies", text);
}

static void tell_reached(struct ptc_copy_keeper *c)
{
	char text[128];

	snprintf(text, sizeof text, "every region is on %u %s", c->config.count, domains(c));
	tell(c, "copies", text);
}

static void tell_short(struct ptc_copy_keeper *c, const struct ptc_copy_keeper_seen *s)
{
	char text[256], bytes[PTC_UNITS_MAX];

	snprintf(text, sizeof text,
		 "copies of %s have no place: there are no other %s that are up%s, and %u are asked for",
		 ptc_units_print_bytes((uint64_t)s->found.nowhere, bytes), domains(c), c->nfull ? " and have room" : "",
		 c->config.count);
	if (!c->told_short)
		tell(c, "copies_short", text);
	c->told_short = true;
}

static void tell_failed(struct ptc_copy_keeper *c, const char *node, const char *why)
{
	char text[1024];

	snprintf(text, sizeof text, "node %s could not take its copies: %.800s", node, why);
	tell(c, "copies_failed", text);
}

/* ---- to rest ---- */

static void round_done(struct ptc_copy_keeper *c)
{
	ptc_copy_keeper_pushes_done(c);
	ptc_copies_doc_done(&c->next);
	c->checking_more = false;
	c->phase = PTC_KEEPER_REST;
}

static void rest(struct ptc_copy_keeper *c, int64_t for_ns)
{
	round_done(c);
	c->next_ns = ptc_sys_now_ns() + for_ns;
	if (!for_ns) /* what comes next waits for no tick */
		c->ctl->soon(c->ctl, 0);
}

static void retry(struct ptc_copy_keeper *c)
{
	c->quiet = false;
	rest(c, RETRY_NS << PTC_MIN(c->failures, (unsigned)RETRY_MAX));
	c->failures++;
	c->failed++;
}

/* Nothing more is to be done before something changes. */
static void at_rest(struct ptc_copy_keeper *c)
{
	c->rested = true;
	c->failures = c->failed = 0;
	rest(c, 0);
}

/* A switch may have begun and committed before the next tick stops the round. The next one may follow at once, but not
 * after a snapshot whose ranks train on. */
static bool over(struct ptc_copy_keeper *c)
{
	const struct ptc_intent_doc *last = &c->ctl->intent;

	if (!c->stopped && !c->ctl->gone && c->record_revision == c->ctl->record_revision)
		return false;
	c->stopped = false;
	rest(c, last->kind == PTC_SWITCH_SNAPSHOT && last->run_to ? 0 : SWITCH_NS);
	return true;
}

/* ---- looked ---- */

static void note_complete(struct ptc_copy_keeper *c, const struct ptc_copy_keeper_seen *s)
{
	const uint64_t snapshot = c->ctl->record.snapshot;

	if (s->found.fewest >= s->config.count && !s->found.nowhere && !s->found.nobody && !s->down)
		c->complete = snapshot;
	else if (c->complete == snapshot)
		c->complete = 0;
}

static void looked(struct ptc_copy_keeper *c, struct ptc_copy_keeper_seen *s)
{
	if (s->config.count) /* known also if the look counts for nothing */
		c->config = s->config;
	if (over(c))
		return;
	if (s->unbridged[0])
		ptc_older_bridge_gone(c->ctl, &s->bridge, s->unbridged);
	if (s->status) {
		ptc_warn("copies", "job=%s its copies cannot be looked up: %s", c->ctl->uuid, s->err.text);
		retry(c);
		return;
	}
	c->ctl->older.asked = s->config.count;
	if (s->urgent && s->left.record_revision == c->ctl->record_revision) {
		snprintf(s->left.refused, sizeof s->left.refused, "%s", c->nfull ? c->refused : "");
		ptc_leaving_looked(c->ctl, &s->left);
	}
	if (s->urgent && !s->left.bytes) { /* now what the job asks for besides */
		rest(c, 0);
		return;
	}
	if (!s->urgent)
		note_complete(c, s);
	if (s->found.nowhere && !s->urgent)
		tell_short(c, s);
	if (!s->ntargets && !s->spare) {
		if (c->brought && !s->found.bytes && !c->quiet)
			tell_reached(c);
		c->quiet = c->config.steps && !s->found.bytes;
		c->brought = c->brought && s->found.bytes;
		/* No node can take more copies: none that is up and has room, and none that is down, or full until
		 * something goes. */
		c->bridged = !s->urgent && !s->down && s->found.fewest && !s->found.nobody &&
			     !(s->found.nowhere && (s->elsewhere_down || c->nfull));
		c->ctl->older.copied = c->bridged ? c->record_revision : 0;
		c->ctl->older.bare =
			c->bridged && !s->found.bytes && !c->ctl->copies_revision ? c->ctl->record.generation : 0;
		if (!s->urgent)
			ptc_older_check_names(c->ctl);
		at_rest(c);
		return;
	}
	c->ctl->older.bare = 0;
	c->ctl->older.copied = 0;
	if (!s->urgent)
		ptc_older_check_names(c->ctl);
	c->next = s->next;
	s->next = (struct ptc_copies_doc){ 0 };
	ptc_free(c->without);
	c->without = s->without;
	c->nwithout = s->nwithout;
	s->without = NULL;
	if (s->spare) {
		c->phase = PTC_KEEPER_NAMING;
		ptc_copy_keeper_name(c);
		return;
	}
	if (!c->brought && !s->urgent && !c->quiet)
		tell_begin(c, s);
	c->brought = c->brought || !s->urgent;
	c->phase = PTC_KEEPER_PUSHING;
	ptc_copy_keeper_push(c, s->targets, s->ntargets);
}

/* ---- pushed ---- */

static void note_full(struct ptc_copy_keeper *c, const char *node)
{
	c->full_until_ns = ptc_sys_now_ns() + FULL_NS;
	if (!PTC_MORE(c->full, c->nfull))
		return;
	memcpy(c->full[c->nfull++], node, strlen(node) + 1);
}

/* Its part of the next document is what it was. */
static void take_back(struct ptc_copy_keeper *c, const struct ptc_copy_keeper_push *p)
{
	ptc_copies_doc_drop(&c->next, p->node);
	ptc_require(ptc_copies_doc_restore(&c->next, &c->ctl->view.copies, p->node) == 0);
	if (p->status == PTC_ESTATE || p->status == PTC_ENOTFOUND) /* its table is of an earlier round */
		c->round++;
	ptc_debug("copies", "job=%s node %s: %s", c->ctl->uuid, p->node, p->err.text);
}

/* The bridge has tables on a node without room. */
static bool bridge_goes(struct ptc_copy_keeper *c)
{
	bool goes = c->ctl->older.dropping;

	for (size_t i = 0; i < c->npushes; i++)
		goes = goes ||
		       (c->pushes[i]->status == PTC_ENOSPC && ptc_older_bridge_yields(c->ctl, c->pushes[i]->node));
	return goes;
}

/* The first node without room: tables of what was before go first. True: they do. */
static bool make_room(struct ptc_copy_keeper *c)
{
	if (bridge_goes(c)) {
		rest(c, RETRY_NS);
		return true;
	}
	if (!c->ctl->copies.nold && !(c->ctl->copies.nkeepers && !c->ctl->view.copies.nkeepers))
		return false;
	tell(c, "copies_dropped",
	     "copies of what was committed before are dropped before the new ones are there: there is no "
	     "room for both");
	ptc_copies_doc_done(&c->next);
	ptc_require(ptc_copies_doc_copy(&c->ctl->view.copies, &c->next) == 0);
	c->next.nold = 0;
	ptc_copy_keeper_pushes_done(c);
	c->phase = PTC_KEEPER_NAMING;
	ptc_copy_keeper_name(c);
	return true;
}

/* Its chunks are gone, and it keeps what documents name there: no room either. One that was stuck is left alone, too.
 */
static bool left_alone(const struct ptc_copy_keeper_push *p)
{
	return p->status == PTC_ELOST || p->status == PTC_ECORRUPT || (p->stuck && p->status);
}

static bool among(char (*names)[PTC_NAME_MAX + 1], size_t n, const char *node)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(names[i], node) == 0)
			return true;
	return false;
}

/* A node of which the last look did not know that its chunks are gone, for it has no table of what is committed now.
 * True: it may make new ones the next time. Not where older snapshots would come back with the chunks. */
static bool starts_anew(struct ptc_copy_keeper *c, const struct ptc_copy_keeper_push *p)
{
	const struct ptc_older_doc *older = &c->ctl->older.doc;

	if ((p->status != PTC_ELOST && p->status != PTC_ECORRUPT) || among(c->without, c->nwithout, p->node) ||
	    among(c->emptied, c->nemptied, p->node))
		return false;
	for (size_t i = 0; i < older->n; i++)
		if (ptc_older_has(&older->v[i], p->node))
			return false;
	if (!PTC_MORE(c->emptied, c->nemptied))
		return false;
	memcpy(c->emptied[c->nemptied++], p->node, strlen(p->node) + 1);
	return true;
}

static void no_room(struct ptc_copy_keeper *c, const struct ptc_copy_keeper_push *p)
{
	const char *why = p->stuck ? "for 30 s it has moved no byte of them" : p->err.text;

	note_full(c, p->node);
	snprintf(c->refused, sizeof c->refused, "node %s: %.320s", p->node, why);
	if (!c->told_full)
		tell_failed(c, p->node, why);
	c->told_full = true;
}

static void others_said(struct ptc_copy_keeper *c)
{
	for (size_t i = 0; i < c->npushes; i++)
		if (c->pushes[i]->more && c->pushes[i]->status) {
			ptc_debug("copies", "job=%s digests of node %s: %s", c->ctl->uuid, c->pushes[i]->node,
				  c->pushes[i]->err.text);
			retry(c);
			return;
		}
	ptc_copy_keeper_check(c);
}

static void pushed(struct ptc_copy_keeper *c)
{
	size_t fine = 0, full = 0, gone = 0;

	if (over(c))
		return;
	if (c->checking_more) {
		others_said(c);
		return;
	}
	for (size_t i = 0; i < c->npushes; i++) {
		struct ptc_copy_keeper_push *p = c->pushes[i];

		fine += !p->status;
		full += p->status == PTC_ENOSPC;
		gone += left_alone(p);
		if (p->status)
			take_back(c, p);
	}
	if (full && make_room(c))
		return;
	for (size_t i = 0; i < c->npushes; i++)
		if (c->pushes[i]->status == PTC_ENOSPC || (left_alone(c->pushes[i]) && !starts_anew(c, c->pushes[i])))
			no_room(c, c->pushes[i]);
	if (!fine && full + gone == c->npushes) {
		rest(c, 0); /* other nodes are tried, or the same ones with new chunks */
		return;
	}
	if (!fine) {
		if (c->failed == RETRY_MAX)
			tell_failed(c, c->pushes[0]->node, c->pushes[0]->err.text);
		retry(c);
		return;
	}
	c->phase = PTC_KEEPER_CHECKING;
	ptc_copy_keeper_check(c);
}

/* ---- checked, named ---- */

static void checked(struct ptc_copy_keeper *c, int status, const char *why)
{
	if (over(c))
		return;
	if (status) {
		ptc_warn("copies", "job=%s: %s", c->ctl->uuid, why);
		if (status == PTC_EDIGEST)
			tell(c, "copies_failed", why);
		c->round++; /* what they have is not taken again; it is dropped with the next Finish */
		retry(c);
		return;
	}
	c->phase = PTC_KEEPER_NAMING;
	ptc_copy_keeper_name(c);
}

static void document_failed(struct ptc_copy_keeper *c, const char *what, const char *why)
{
	char text[1024];

	snprintf(text, sizeof text, "the document that names its copies cannot be %s: %.800s", what, why);
	ptc_debug("copies", "job=%s %s", c->ctl->uuid, text);
	if (c->failed == RETRY_MAX)
		tell(c, "copies_failed", text);
	retry(c);
}

static void named(struct ptc_copy_keeper *c, bool fine, const char *why)
{
	if (over(c))
		return;
	if (!fine) {
		c->round++;
		document_failed(c, "written", why);
		return;
	}
	c->failures = c->failed = 0;
	rest(c, 0);
}

/* What etcd has is known, as far as it can be. */
static void was_read(struct ptc_copy_keeper *c, bool fine, const char *why)
{
	if (over(c))
		return;
	if (!fine) {
		document_failed(c, "read", why);
		return;
	}
	c->copies_revision = c->ctl->copies_revision;
	c->phase = PTC_KEEPER_LOOKING;
	ptc_copy_keeper_look(c);
}

/* ---- when ---- */

/* With `steps`, ranks leave out snapshots until the copies have come: a node that is up, and gets no further, would
 * keep the job from snapshots. */
static void end_stuck(struct ptc_copy_keeper *c)
{
	const int64_t now = ptc_sys_now_ns();

	for (size_t i = 0; c->config.steps && c->phase == PTC_KEEPER_PUSHING && i < c->npushes; i++) {
		struct ptc_copy_keeper_push *p = c->pushes[i];
		const uint64_t moved = atomic_load(&p->moved);

		if (moved != p->moved_seen) {
			p->moved_seen = moved;
			p->moved_ns = now;
		} else if (p->rpc && !p->stuck && now - p->moved_ns > STUCK_NS) {
			p->stuck = true;
			ptc_copy_keeper_cancel_push(p);
		}
	}
}

static struct ptc_copy_keeper *keeper_free(struct ptc_copy_keeper *c)
{
	round_done(c);
	ptc_free(c->full);
	ptc_free(c->emptied);
	ptc_free(c->without);
	ptc_free(c);
	return NULL;
}

static struct ptc_copy_keeper *make(struct ptc_controller *ctl)
{
	struct ptc_copy_keeper *c = ptc_calloc(1, sizeof *c);

	ptc_require(c);
	ctl->keeper_free = keeper_free;
	c->ctl = ctl;
	c->looked = looked;
	c->pushed = pushed;
	c->checked = checked;
	c->named = named;
	c->read = was_read;
	return c;
}

/* Nothing has changed since it was looked at last. */
static bool same(struct ptc_copy_keeper *c, uint64_t epoch)
{
	const struct ptc_controller *ctl = c->ctl;

	return c->rested && !(c->nfull && ptc_sys_now_ns() >= c->full_until_ns) && c->epoch == epoch &&
	       c->record_revision == ctl->record_revision && c->copies_revision == ctl->copies_revision;
}

/* For how long the switch that has just been committed stopped ranks. They have waited for it since before it began; a
 * Capture lets them go on. */
static int64_t stopped_ns(const struct ptc_controller *ctl)
{
	size_t i = 0;

	while (i < ctl->nphases && ctl->phases[i].phase <= PTC_JOB_SEALING)
		i++;
	return i && i < ctl->nphases ? ctl->phases[i].at_ns - ctl->phases[0].at_ns : 0;
}

/* So many steps ranks make in that time; 0: not known. */
static uint32_t steps_in(const struct ptc_copy_keeper *c, int64_t ns)
{
	return ns > 0 && c->step_ns > 0 ? (uint32_t)PTC_MIN((double)ns / c->step_ns + 1, BUDGET_MAX) : 0;
}

/* How many of the next snapshots are left out, if the ranks hear nothing else. The last snapshot came so many steps
 * after the one before. */
static void set_leave(struct ptc_copy_keeper *c, uint64_t steps)
{
	const uint32_t last = (uint32_t)PTC_MIN(steps, LEAVE_MAX);
	const uint32_t most = c->step_ns > 0 ? steps_in(c, LEAVE_NS) : LEAVE_MAX;
	uint64_t id;

	/* Came it before the ranks were told to, then so many left out were too few. While new ranks build there is no
	 * round. */
	if (c->told_on)
		c->leave = last * ROUNDS;
	else if (!ptc_ahead_builds(c->ctl, &id))
		c->leave *= 2;
	c->leave = PTC_MAX(PTC_MIN(c->leave, PTC_MIN(most, LEAVE_MAX)), LEAVE_OUT);
	c->leave = PTC_MAX(c->leave, steps_in(c, c->held_ns - ptc_sys_now_ns()));
}

/* A snapshot of ranks that train on has been committed. */
static void note_snapshot(struct ptc_copy_keeper *c)
{
	const struct ptc_controller *ctl = c->ctl;
	const int64_t stopped = stopped_ns(ctl), began = ctl->phases[0].at_ns;
	const uint64_t steps = ctl->record.step > c->step ? ctl->record.step - c->step : 0;

	if (ctl->intent.kind != PTC_SWITCH_SNAPSHOT || !ctl->intent.run_to || !stopped)
		return;
	if (c->incarnation != ctl->record.incarnation) /* no ranks ran in between */
		c->stop_ns = 0;
	c->incarnation = ctl->record.incarnation;
	if (c->stop_ns) {
		c->passed_ns = c->passed_ns * FORGET + (double)(began - c->stop_ns);
		c->stopped_ns = c->stopped_ns * FORGET + (double)stopped;
		c->step_ns = steps ? (double)PTC_MAX(began - c->stop_ns - c->last_ns, 1) / (double)steps : 0;
	}
	c->stop_ns = began;
	c->last_ns = stopped;
	c->step = ctl->record.step;
	if (!c->config.steps)
		return;
	c->held_ns = began + stopped * 100 / PTC_MAX(c->config.budget, 1);
	set_leave(c, steps);
	c->told_on = false;
}

void ptc_copy_keeper_saw_commit(struct ptc_controller *ctl, const struct ptc_job_copies *asked)
{
	if (!ctl->record.snapshot)
		return;
	if (!ctl->keeper)
		ctl->keeper = make(ctl);
	if (asked->count)
		ctl->keeper->config = *asked;
	note_snapshot(ctl->keeper);
}

static void note_situation(struct ptc_copy_keeper *c, uint64_t epoch)
{
	const struct ptc_controller *ctl = c->ctl;

	if (c->record_revision != ctl->record_revision) {
		c->round = 0;
		c->brought = c->told_full = false;
		c->told_short = c->told_short && c->config.steps; /* else it would be told with each step */
		c->failures = 0;
	}
	if (c->epoch != epoch || c->record_revision != ctl->record_revision)
		c->nemptied = 0;
	if (c->epoch != epoch || ptc_sys_now_ns() >= c->full_until_ns)
		c->nfull = 0;
	if (c->epoch != epoch)
		c->told_short = false;
	if (c->epoch != epoch && c->complete != ctl->record.snapshot) /* of the record a look tells */
		c->complete = 0;
	c->rested = c->bridged = false;
	c->epoch = epoch;
	c->record_revision = ctl->record_revision;
	c->copies_revision = ctl->copies_revision;
}

/* Ranks make snapshots again when these are due. */
static void let_on(struct ptc_copy_keeper *c)
{
	struct ptc_controller *ctl = c->ctl;
	const int64_t early_ns = c->held_ns - ptc_sys_now_ns();

	if (!ctl->older.left_out || ctl->older.dropping)
		return;
	if (!ptc_copy_keeper_leaves_out(ctl)) {
		ctl->older.left_out = false;
		c->told_on = true;
		ptc_older_tell_ranks(ctl);
	} else if (early_ns > 0) {
		ctl->soon(ctl, (uint64_t)early_ns / 1000000 + 1);
	}
}

void ptc_copy_keeper_tick(struct ptc_controller *ctl)
{
	struct ptc_copy_keeper *c = ctl->keeper;
	uint64_t epoch = ptc_cluster_epoch(ctl->all->cluster), id;

	if (!ctl->has_record || !ctl->record.snapshot || ctl->gone)
		return;
	if (!c)
		c = ctl->keeper = make(ctl);
	if (!ptc_controller_idle(ctl) || ptc_ahead_builds(ctl, &id)) { /* whose requests these would end */
		if (c->phase != PTC_KEEPER_REST && !c->stopped) {
			c->stopped = true;
			ptc_copy_keeper_cancel(c);
		}
		return;
	}
	if (c->phase == PTC_KEEPER_REST && c->bridged && same(c, epoch))
		ptc_older_bridged(ctl);
	let_on(c);
	end_stuck(c);
	if (c->phase != PTC_KEEPER_REST || ptc_sys_now_ns() < c->next_ns || same(c, epoch))
		return;
	if (c->rested && c->config.count == 1 && !ctl->copies_revision && !ctl->maybe_record &&
	    !ptc_leaving_any(ctl)) { /* it asks for none, and has none */
		note_situation(c, epoch);
		c->rested = c->bridged = true;
		return;
	}
	note_situation(c, epoch);
	c->phase = ctl->maybe_record ? PTC_KEEPER_NAMING : PTC_KEEPER_LOOKING;
	if (ctl->maybe_record)
		ptc_copy_keeper_read(c);
	else
		ptc_copy_keeper_look(c);
}

/* Nodes take copies, as far as it is known. */
static bool can_copy(const struct ptc_copy_keeper *c)
{
	return c && c->config.count > 1 && !c->nfull && !c->failures;
}

/* With every: step it has not looked yet, or copies are on their way also where there is no bridge. */
static uint32_t steps_left_out(const struct ptc_controller *ctl, const struct ptc_copy_keeper *c)
{
	const bool seen = ptc_controller_idle(ctl) && c->record_revision == ctl->record_revision;
	/* where one node has no room, others take copies: while none does, the keeper rests */
	const bool waits =
		c->config.count > 1 && !c->failures && ctl->older.copied != ctl->record_revision && !c->rested;

	return !seen || waits || ptc_sys_now_ns() < c->held_ns ? PTC_MAX(c->leave, LEAVE_OUT) : 0;
}

uint32_t ptc_copy_keeper_leaves_out(const struct ptc_controller *ctl)
{
	const struct ptc_copy_keeper *c = ctl->keeper;
	const bool waits =
		ctl->older.doc.bridge.snapshot && !ctl->older.dropping && ctl->older.copied != ctl->record_revision;
	const bool rests = c && c->rested && c->record_revision == ctl->record_revision; /* for nodes that are down */

	if (c && c->config.steps)
		return steps_left_out(ctl, c);
	return waits && can_copy(c) && !rests ? LEAVE_OUT : 0;
}

uint32_t ptc_copy_keeper_will_leave_out(const struct ptc_controller *ctl)
{
	const struct ptc_copy_keeper *c = ctl->keeper;
	const uint64_t now = ctl->record.generation;

	if (c && c->config.steps)
		return PTC_MAX(c->leave, LEAVE_OUT);
	return can_copy(ctl->keeper) && ctl->record.snapshot && ctl->older.no_room != now && ctl->older.bare != now
		       ? LEAVE_OUT
		       : 0;
}

void ptc_copy_keeper_now(struct ptc_controller *ctl)
{
	struct ptc_copy_keeper *c = ctl->keeper;

	if (!c)
		return;
	c->rested = false;
	c->next_ns = 0;
	c->nfull = 0;
	c->failures = 0;
	/* at the rate of copies, or with a look that does not know yet who leaves */
	if (c->phase != PTC_KEEPER_REST && (!c->urgent || c->phase == PTC_KEEPER_LOOKING) && !c->stopped) {
		c->stopped = true;
		ptc_copy_keeper_cancel(c);
	}
}

void ptc_copy_keeper_stop(struct ptc_controller *ctl)
{
	if (!ctl->keeper || ctl->keeper->phase == PTC_KEEPER_REST)
		return;
	ctl->keeper->stopped = true;
	ptc_copy_keeper_cancel(ctl->keeper);
}
