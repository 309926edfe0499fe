/* SPDX-License-Identifier: Apache-2.0 */
/* Decides when a live job's ranks are given up, and when they are started again (restarts, max_restarts, on_failure).
 *
 * Happy path: a node of the generation is lost, and the ranks on nodes that answer make no more steps. If the job can
 * go on elsewhere, its ranks are ended (the record says why), and the job is started again from the record's snapshot.
 * Until the job can go on elsewhere, no rank is ended: a node that comes back with its ranks finds the others as they
 * were.
 *
 * Failure modes: bytes or devices are missing (events and status say which; tried again after ever longer waits, and
 * when a node comes back); a switch that starts ranks aborts (tried again; if no node is to blame for TRIES_MAX
 * failures, the job stays failed). If a rank fails, its cause is judged first: its node, or another, may have gone at
 * the same moment. The program itself may take nodes down, or hang while it builds. So failed starts are counted in the
 * record. After as many as the job allows, the job stays failed. Loop thread. */
#include "daemon/controller/internal.h"
#include "daemon/controller/leaving/leaving.h"
#include "daemon/controller/recovery/straggler_drain.h"
#include "daemon/controller/recovery/stragglers.h"

#include "base/buf.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "daemon/cluster/loss/node_loss.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#define MS           INT64_C(1000000)
#define ASK_NS       (150 * MS)   /* between rounds: one each tick */
#define FRESH_NS     (3000 * MS)  /* what the last round has said still holds */
#define RELEASED_NS  (1000 * MS)  /* ranks that a switch has held show within that they go on */
#define JUDGE_NS     (500 * MS)   /* a program is to blame when all nodes have answered for so long */
#define JUDGE_MAX_NS (10000 * MS) /* .. or when this has passed */
#define BACK_NS      (3000 * MS)  /* a node that is back says within what has become of its ranks */
#define RETRY_NS     (1000 * MS)  /* doubled with each try, */
#define RETRY_LOG2   4            /* .. so often */
#define TRIES_MAX    8

/* ---- the nodes of the generation ---------------------------------------------------- */

struct parts {
	uint32_t down, lost, unreachable, by_time; /* lost: also those that are passed by, and the unreachable ones */
	uint32_t doubtful;                         /* are up, but their leases are about to end, and they say nothing */
	bool declared;                             /* all that are lost */
	bool back;                                 /* one has come back a moment ago */
	int64_t latest;                            /* the last of them went down, or came back, then */
	char names[256];
};

/* What `stop` and `wait` do is worth the wait for node_lost_after. */
static bool shrinks(const struct ptc_controller *ctl)
{
	return ctl->recovery.has_elastic && ctl->recovery.elastic.on_failure == PTC_JOB_SHRINK;
}

static struct parts look(const struct ptc_controller *ctl)
{
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);
	bool due = ptc_controller_due(ctl), unreachable, passed;
	struct parts p = { .declared = true };
	int64_t now = ptc_sys_now_ns();
	size_t len = 0;

	for (size_t i = 0; i < g->nnodes; i++) {
		const struct ptc_node *n;
		uint32_t at;

		if (!ptc_cluster_find_node(ctl->all->cluster, g->nodes[i], &at))
			continue;
		n = ptc_cluster_node(ctl->all->cluster, at);
		p.back |= at < ctl->nknown && ctl->known[at].back_ns && now - ctl->known[at].back_ns < BACK_NS;
		p.doubtful += n->up && ptc_lease_end_doubtful(n->end);
		if (n->up && at < ctl->nknown) /* a round without it cannot tell that no step has ended */
			p.latest = PTC_MAX(p.latest, ctl->known[at].back_ns);
		if (n->up)
			continue;
		unreachable = shrinks(ctl) && ptc_controller_unreachable(ctl, at, due);
		passed = ptc_controller_passes(ctl, at);
		p.down++;
		p.unreachable += unreachable;
		p.lost += n->lost || passed || unreachable;
		p.by_time += n->lost;
		p.declared = p.declared && (n->lost ? n->declared : !unreachable && !passed);
		p.latest = PTC_MAX(p.latest, n->down_ns);
		if (len + strlen(g->nodes[i]) + 8 < sizeof p.names)
			len += (size_t)snprintf(p.names + len, sizeof p.names - len, "%s%s", len ? ", " : "",
						g->nodes[i]);
	}
	return p;
}

/* Whether the steps that can be seen have stood for so long that they do not go on. */
static bool stands(const struct ptc_controller *ctl, const struct parts *p)
{
	const struct ptc_rank_rounds *r = &ctl->recovery.rounds;
	int64_t steps = (int64_t)(PTC_LOSS_STEPS * 1e9 * r->step_s);
	int64_t window = ptc_loss_stand_ns(ptc_cluster_lost_after_ns(ctl->all->cluster), p->declared,
					   p->unreachable != 0, r->step_s);

	return p->lost && r->incarnation == ctl->record.incarnation && r->n && r->done_ns >= p->latest &&
	       ptc_sys_now_ns() - r->done_ns < FRESH_NS && r->done_ns - r->still_ns >= window &&
	       r->done_ns - ctl->recovery.ended_ns >= PTC_MAX(RELEASED_NS, PTC_MIN(window, steps));
}

static const char *how_gone(const struct parts *p)
{
	return p->by_time || !p->unreachable ? "is lost" : "is down, and nothing on it answers";
}

/* ---- what is said ---------------------------------------------------------------------- */

static void wait_for(struct ptc_controller *ctl, const char *why)
{
	struct ptc_recovery *r = &ctl->recovery;

	if (strncmp(r->waits, why, sizeof r->waits - 1) == 0)
		return;
	snprintf(r->waits, sizeof r->waits, "%s", why);
	if (*why)
		ptc_event(ctl->all->cluster, ctl->uuid, "waits", "%s", r->waits);
}

/* The event of the HALT, which is written once the HALT has begun. */
__attribute__((format(printf, 3, 4))) static void will_tell(struct ptc_controller *ctl, const char *kind,
							    const char *fmt, ...)
{
	struct ptc_recovery *r = &ctl->recovery;
	va_list ap;

	r->told.kind = kind;
	r->told.gone = false;
	va_start(ap, fmt);
	vsnprintf(r->told.text, sizeof r->told.text, fmt, ap);
	va_end(ap);
}

void ptc_recovery_begun(struct ptc_controller *ctl, const struct ptc_worker_view *failed)
{
	struct ptc_recovery *r = &ctl->recovery;

	/* Where a rank's device has failed, its node has seen how far the rank came, or how it ended: a rank has
	 * failed then, too. A node that comes back without its ranks knows neither. */
	if (failed &&
	    !(failed->doc.gone && !failed->doc.step && !failed->doc.exit_status && r->told.kind && r->told.gone))
		ptc_event(ctl->all->cluster, ctl->uuid, "failed", "node %s: %s", failed->node, failed->doc.text);
	if (r->told.kind && !(r->told.incarnation == ctl->record.incarnation && r->told.last == r->told.kind &&
			      r->told.of == r->mark.recovery))
		ptc_event(ctl->all->cluster, ctl->uuid, r->told.kind, "%s", r->told.text);
	if (r->told.kind) {
		r->told.incarnation = ctl->record.incarnation;
		r->told.last = r->told.kind;
		r->told.of = r->mark.recovery;
	}
	r->told.kind = NULL;
}

static void try_later(struct ptc_controller *ctl)
{
	struct ptc_recovery *r = &ctl->recovery;

	r->retry_ns = ptc_sys_now_ns() + (RETRY_NS << PTC_MIN(r->tries, RETRY_LOG2));
	r->tries++;
}

void ptc_recovery_saw(struct ptc_controller *ctl, const struct ptc_record_doc *next)
{
	if (ctl->has_record && ctl->record.recovery && !next->recovery)
		ctl->recovery.over = true;
}

void ptc_recovery_committed(struct ptc_controller *ctl)
{
	struct ptc_recovery *r = &ctl->recovery;

	if (!r->over || ctl->record.recovery)
		return;
	r->over = false;
	r->waits[0] = '\0';
	r->tries = r->fails = r->owed = 0;
}

/* ---- ranks are given up ------------------------------------------------------------------ */

static void make_halt(const struct ptc_controller *ctl, struct ptc_switch_request *r)
{
	ptc_controller_request(ctl, PTC_SWITCH_HALT, r);
	r->run_from = true;
	r->end = PTC_RUN_FAILED;
}

static void mark(struct ptc_controller *ctl, uint64_t id, enum ptc_recovery_kind kind, uint64_t step)
{
	struct ptc_recovery *r = &ctl->recovery;

	r->told.kind = NULL;
	r->mark_id = id;
	r->marked_ns = ptc_sys_now_ns();
	r->mark = ctl->record;
	r->mark.recovery = kind;
	r->mark.hung = false;
	r->mark.reached = PTC_MAX(step, r->rounds.incarnation == ctl->record.incarnation ? r->rounds.reached : 0);
	r->tries = r->fails = r->owed = 0;
	r->retry_ns = 0;
}

/* So many starts may come to nothing before the job stays failed. */
static uint32_t most_restarts(const struct ptc_recovery *r)
{
	return r->elastic.max_restarts ? r->elastic.max_restarts : TRIES_MAX;
}

/* A loss counts if no snapshot was made beyond the step of the loss before: then the program itself may be what takes
 * its nodes down. step: from which the job goes on. */
static bool is_further(const struct ptc_record_doc *m, uint64_t step)
{
	return !m->restarted_ms || step > m->failed_step;
}

static void add_loss(struct ptc_record_doc *m, uint64_t step)
{
	bool further = is_further(m, step);

	m->restarts = further ? 0 : m->restarts + 1;
	if (further)
		m->restarted_ms = ptc_sys_realtime_ms();
	m->failed_step = PTC_MAX(m->reached, step);
}

/* False: that has happened as often as the job allows, so mark says that it is not started again. */
static bool count_loss(struct ptc_controller *ctl, const char *node)
{
	struct ptc_record_doc *m = &ctl->recovery.mark;

	if (!is_further(m, m->step) && m->restarts >= most_restarts(&ctl->recovery)) {
		m->recovery = PTC_RECOVERY_NONE;
		will_tell(ctl, "gave_up",
			  "node %s is lost, and the job stops: there is no snapshot beyond step %llu, which had been "
			  "reached at the loss before, after %u restarts that count (`max_restarts`); does the "
			  "program take its nodes down?",
			  node, (unsigned long long)m->failed_step, m->restarts);
		return false;
	}
	add_loss(m, m->step);
	return true;
}

void ptc_recovery_halts(const struct ptc_controller *ctl, struct ptc_record_doc *to)
{
	const struct ptc_recovery *r = &ctl->recovery;
	bool ours = r->mark_id && r->mark_id == ctl->intent.id;

	if (!ours && (ctl->intent.held || ctl->intent.leaves)) { /* held: begun by another controller, which has gone */
		to->recovery = PTC_RECOVERY_NODE;
		to->reached = ctl->intent.reached;
		if (ctl->intent.held) /* too many are seen when the job is to start: what it allows is not read here */
			add_loss(to, ctl->intent.stop);
		return;
	}
	to->recovery = ours ? r->mark.recovery : PTC_RECOVERY_NONE;
	to->reached = ours ? r->mark.reached : 0;
	to->restarts = ours ? r->mark.restarts : 0;
	to->restarted_ms = ours ? r->mark.restarted_ms : 0;
	to->failed_step = ours ? r->mark.failed_step : 0;
	to->hung = ours && r->mark.hung;
}

void ptc_recovery_starts(struct ptc_record_doc *r)
{
	if (!r->recovery) /* a person's doing: what failed before does not count any more */
		r->restarts = 0, r->restarted_ms = 0, r->failed_step = 0;
	r->recovery = PTC_RECOVERY_NONE;
	r->reached = 0;
	r->hung = false;
}

static void was_read(struct ptc_controller *ctl, struct ptc_recovery_plan *p)
{
	ptc_recovery_keep(ctl, p);
	if (!p->read) {
		ptc_warn("job", "job=%s its description cannot be read: %s", ctl->meta.name, p->err.text);
		try_later(ctl);
	}
}

/* Instead of a HALT: the memory of the remaining ranks becomes the snapshot first. */
static bool make_held(struct ptc_controller *ctl, struct ptc_switch_request *r)
{
	const struct ptc_hold *h = &ctl->recovery.hold;

	if (h->state != PTC_HOLD_FOUND || h->incarnation != ctl->record.incarnation)
		return false;
	ptc_controller_request(ctl, PTC_SWITCH_SNAPSHOT, r);
	r->run_from = r->held = true;
	r->stop = h->step;
	r->end = PTC_RUN_FAILED;
	return true;
}

/* After mark: counts begin at the step that the job goes on from. */
static void mark_held(struct ptc_controller *ctl, struct ptc_switch_request *r)
{
	struct ptc_recovery *rec = &ctl->recovery;

	rec->mark.reached = PTC_MAX(PTC_MAX(rec->mark.reached, rec->hold.reached), r->stop);
	rec->mark.step = r->stop;
	r->reached = rec->mark.reached;
}

static void submit_halt(struct ptc_controller *ctl, struct ptc_switch_request *r)
{
	struct ptc_error err = PTC_ERROR_INIT;

	if (ctl->submit(ctl, r, &err) == 0) {
		ptc_recovery_begun(ctl, NULL);
		return;
	}
	ptc_warn("job", "job=%s %s", ctl->meta.name, err.text);
	try_later(ctl);
}

static void give_up_ranks(struct ptc_controller *ctl, const struct parts *p, enum ptc_recovery_kind kind)
{
	struct ptc_switch_request r;
	bool held = kind && make_held(ctl, &r);

	if (!held)
		make_halt(ctl, &r);
	mark(ctl, r.id, kind, 0);
	if (held)
		mark_held(ctl, &r);
	if (!kind || count_loss(ctl, p->names))
		will_tell(ctl, kind ? "recovering" : "failed", "node %s %s, and no step has ended for %.1f s: %s",
			  p->names, how_gone(p), (double)(ptc_sys_now_ns() - ctl->recovery.rounds.still_ns) / 1e9,
			  kind ? "the job's other ranks are ended, and it is started again without that node"
			       : "the job ends, as its `on_failure: stop` says");
	submit_halt(ctl, &r);
}

static void planned_live(struct ptc_controller *ctl, struct ptc_recovery_plan *p)
{
	struct parts parts = look(ctl);
	char why[PTC_ERROR_MAX + 400];

	ptc_recovery_keep(ctl, p);
	if (!ptc_controller_idle(ctl) || ctl->record.run != PTC_RUN_LIVE || !stands(ctl, &parts))
		return;
	if (p->status == 0) {
		if (ptc_recovery_hold(ctl) >= PTC_HOLD_FOUND) /* else it calls the tick when it knows */
			ptc_recovery_tick(ctl);
		return;
	}
	try_later(ctl);
	if (p->status == PTC_ENODEVICES && ptc_straggler_drain_yields(ctl))
		return;
	snprintf(
		why, sizeof why,
		"node %s %s, and the job cannot go on without it: %s; its ranks are left as they are until the node is "
		"back",
		parts.names, how_gone(&parts), p->err.text);
	wait_for(ctl, why);
}

/* A node of a job that trains is lost, and no step ends any more. */
static void act(struct ptc_controller *ctl, const struct parts *p)
{
	struct ptc_recovery *r = &ctl->recovery;
	bool holds = r->hold.state != PTC_HOLD_IDLE && r->hold.incarnation == ctl->record.incarnation;
	char why[400];

	if (!r->has_elastic) {
		ptc_recovery_plan(ctl, PTC_RECOVERY_READ, was_read);
	} else if (!ptc_controller_idle(ctl) && ctl->intent.held) {
		return; /* it ends by itself */
	} else if (!ptc_controller_idle(ctl)) {
		snprintf(why, sizeof why, "node %s %s, which has ranks of the job", p->names, how_gone(p));
		ptc_controller_step(ctl,
				    &(struct ptc_job_event){ .kind = PTC_EV_ABORT, .status = PTC_EPEER, .text = why });
	} else if (r->elastic.on_failure == PTC_JOB_STOP) {
		give_up_ranks(ctl, p, PTC_RECOVERY_NONE);
	} else if (r->elastic.on_failure == PTC_JOB_WAIT) {
		snprintf(why, sizeof why, "node %s is lost; the job waits for it, as its `on_failure: wait` says",
			 p->names);
		wait_for(ctl, why);
		try_later(ctl);
	} else if (!holds) {
		ptc_recovery_plan(ctl, PTC_RECOVERY_ANY, planned_live);
	} else if (ptc_recovery_hold(ctl) >= PTC_HOLD_FOUND) {
		give_up_ranks(ctl, p, PTC_RECOVERY_NODE);
	}
}

/* ---- a rank has failed --------------------------------------------------------------------- */

/* By the kernel (out of memory) or by a person; the status does not say which. A program that fails by itself exits, or
 * ends by another signal. */
static bool was_killed(const struct ptc_worker_doc *w)
{
	return WIFSIGNALED(w->exit_status) && WTERMSIG(w->exit_status) == SIGKILL;
}

/* The failed rank that the others followed: those exit by themselves when a peer has gone, and nobody kills them. */
static const struct ptc_worker_doc *culprit(const struct ptc_controller *ctl, const struct ptc_worker_doc *first)
{
	const struct ptc_job_view *j = ptc_cluster_find_uuid(ctl->all->cluster, ctl->uuid);

	for (size_t i = 0; j && i < j->nworkers; i++) {
		const struct ptc_worker_doc *w = &j->workers[i].doc;

		if (w->incarnation == first->incarnation && w->state == PTC_WORKER_FAILED && was_killed(w))
			return w;
	}
	return first;
}

/* It was killed, or aborted as by NCCL's watchdog, so it may have left its state on its devices, and others theirs. */
static bool may_be_left(const struct ptc_controller *ctl, const struct ptc_worker_doc *first)
{
	const struct ptc_worker_doc *w = culprit(ctl, first);
	const struct ptc_job_elastic *e = &ctl->recovery.elastic;

	return e->max_restarts && e->on_failure != PTC_JOB_STOP &&
	       (was_killed(w) || (WIFSIGNALED(w->exit_status) && WTERMSIG(w->exit_status) == SIGABRT));
}

/* Whether the job is started again, all of whose nodes are there; and what is said of it. After mark. what: which rank,
 * and what it did at the step. most: so many restarts within an hour. */
static void count_program(struct ptc_controller *ctl, const char *what, uint64_t step, uint32_t most)
{
	struct ptc_record_doc *m = &ctl->recovery.mark;
	int64_t now = ptc_sys_realtime_ms();
	bool twice;

	if (now - m->restarted_ms >= PTC_JOB_RESTARTS_MS)
		m->restarts = 0;
	twice = m->restarts && m->failed_step == step;
	if (twice || m->restarts >= most) {
		m->recovery = PTC_RECOVERY_NONE;
		m->hung = false;
		will_tell(ctl, "gave_up",
			  twice ? "%s at step %llu again: the same step has failed twice, so the job stops"
				: "%s at step %llu: the job stops, for it has been started again as often as its "
				  "`max_restarts` says",
			  what, (unsigned long long)step);
		return;
	}
	if (!m->restarts)
		m->restarted_ms = now;
	m->restarts++;
	m->failed_step = step;
	will_tell(ctl, "recovering",
		  "%s at step %llu, and all nodes are there: the job is started again on the same nodes (restart %u; "
		  "at most %u in an hour)",
		  what, (unsigned long long)step, m->restarts, most);
}

/* The program has failed by itself. */
static void judge_program(struct ptc_controller *ctl, const struct ptc_worker_doc *w, uint64_t switch_id)
{
	const struct ptc_job_elastic *e = &ctl->recovery.elastic;
	char what[128];

	if (!e->max_restarts || e->on_failure == PTC_JOB_STOP)
		return;
	mark(ctl, switch_id, PTC_RECOVERY_PROGRAM, w->step);
	snprintf(what, sizeof what, "rank %u %s", w->rank,
		 was_killed(w) ? "was killed (by the kernel, out of memory, or by somebody)" : "failed");
	count_program(ctl, what, w->step, e->max_restarts);
}

/* Of a node that has lost ranks of this incarnation, or their state, by itself; NULL: none says so. */
static const struct ptc_worker_view *says_gone(const struct ptc_controller *ctl, uint64_t incarnation)
{
	const struct ptc_job_view *j = ptc_cluster_find_uuid(ctl->all->cluster, ctl->uuid);

	for (size_t i = 0; j && i < j->nworkers; i++)
		if (j->workers[i].doc.incarnation == incarnation && j->workers[i].doc.gone)
			return &j->workers[i];
	return NULL;
}

static void tell_gone(struct ptc_controller *ctl, const struct ptc_worker_view *w)
{
	char line[600];

	will_tell(ctl, "recovering", "node %s has lost its ranks, or their state, so the job is started again: %s",
		  w->node, ptc_worker_text_line(w->doc.text, line, sizeof line));
	ctl->recovery.told.gone = true;
}

/* And for what the job waits. */
static void tell_down(struct ptc_controller *ctl, const struct parts *p, const char *node)
{
	char until[128] = "";

	if (shrinks(ctl) && ctl->all->cut_off)
		snprintf(until, sizeof until, ", or is lost");
	else if (shrinks(ctl))
		snprintf(until, sizeof until,
			 ", or its machine is silent or has refused connections for %.1f s, or it is lost",
			 (double)PTC_REFUSED_NS / 1e9);
	will_tell(ctl, "recovering",
		  "node %s is down, and a rank of node %s has failed after it: the job is started again once that node "
		  "is back%s",
		  p->names, node, until);
}

/* Whether the cause of the failure is known by now. */
static bool judged(struct ptc_controller *ctl, const struct parts *p, const struct ptc_worker_view *w, bool gone)
{
	struct ptc_recovery *r = &ctl->recovery;
	int64_t now = ptc_sys_now_ns();

	if (r->judging.incarnation != w->doc.incarnation) {
		r->judging.incarnation = w->doc.incarnation;
		r->judging.since_ns = now;
		r->judging.from = r->rounds.incarnation == w->doc.incarnation ? r->rounds.n : 0;
	}
	if (p->down || gone || now - r->judging.since_ns >= JUDGE_MAX_NS)
		return true;
	if (!p->back && r->rounds.incarnation == w->doc.incarnation && r->rounds.n >= r->judging.from + 2 &&
	    r->rounds.done_ns - r->judging.since_ns >= JUDGE_NS)
		return true;
	if (now - r->rounds.asked_ns >= ASK_NS || r->rounds.incarnation != w->doc.incarnation)
		ptc_recovery_ask(ctl, false);
	return false;
}

bool ptc_recovery_judges(struct ptc_controller *ctl, const struct ptc_worker_view *w, struct ptc_switch_request *r)
{
	const struct ptc_worker_view *gone = says_gone(ctl, w->doc.incarnation);
	struct ptc_recovery *rec = &ctl->recovery;
	struct parts p = look(ctl);
	bool held = false;

	if (!rec->has_elastic && ptc_sys_now_ns() >= rec->retry_ns)
		ptc_recovery_plan(ctl, PTC_RECOVERY_READ, was_read);
	if (!judged(ctl, &p, w, gone != NULL) || !rec->has_elastic)
		return false;
	if (p.down || gone ? rec->elastic.on_failure != PTC_JOB_STOP : may_be_left(ctl, &w->doc)) {
		if (ptc_recovery_hold(ctl) < PTC_HOLD_FOUND)
			return false;
		held = make_held(ctl, r);
	}
	if (!held)
		make_halt(ctl, r);
	if (!p.down && !gone) {
		judge_program(ctl, culprit(ctl, &w->doc), r->id);
		if (held)
			mark_held(ctl, r);
		return true;
	}
	if (rec->elastic.on_failure == PTC_JOB_STOP)
		return true;
	mark(ctl, r->id, PTC_RECOVERY_NODE, w->doc.step); /* 0: nobody saw how far that rank had come */
	if (held)
		mark_held(ctl, r);
	if (!count_loss(ctl, p.down ? p.names : gone->node))
		return true;
	if (p.down)
		tell_down(ctl, &p, w->node);
	else
		tell_gone(ctl, gone);
	return true;
}

/* ---- ranks are started again ------------------------------------------------------------------ */

/* The record's snapshot is lost. Its job starts from an older one, once that is the record's. */
static void go_back(struct ptc_controller *ctl, struct ptc_recovery_plan *p)
{
	struct ptc_switch_request r;
	struct ptc_error err = PTC_ERROR_INIT;

	ptc_controller_request(ctl, PTC_SWITCH_IMPORT, &r);
	r.end = PTC_RUN_STOPPED;
	r.source = p->source;
	r.recovers = true;
	r.source_view = p->source_view;
	r.to = p->back_to;
	p->source_view = (struct ptc_view){ 0 };
	p->back_to = (struct ptc_generation_doc){ 0 };
	if (ctl->submit(ctl, &r, &err) != 0)
		ptc_warn("job", "job=%s %s", ctl->meta.name, err.text);
	else
		snprintf(ctl->recovery.waits, sizeof ctl->recovery.waits, "%.760s", p->err.text); /* for its event */
	ptc_switch_request_done(&r);
}

static void planned_start(struct ptc_controller *ctl, struct ptc_recovery_plan *p)
{
	struct ptc_switch_request r;
	struct ptc_error err = PTC_ERROR_INIT;
	char why[PTC_ERROR_MAX + 64];

	ptc_recovery_keep(ctl, p);
	if (!ptc_controller_idle(ctl) || !ctl->record.recovery || ctl->record.run == PTC_RUN_LIVE)
		return;
	try_later(ctl); /* unless this one succeeds */
	if (p->status == PTC_ENODEVICES && ptc_straggler_drain_yields(ctl))
		return;
	if (p->status) {
		snprintf(why, sizeof why, "the job waits to be started again: %s", p->err.text);
		wait_for(ctl, why);
		return;
	}
	if (p->source) {
		go_back(ctl, p);
		return;
	}
	ptc_controller_request(ctl, PTC_SWITCH_RESIZE, &r);
	r.run_to = true;
	r.end = PTC_RUN_STOPPED;
	ptc_switch_request_plan(&r, &p->planned);
	if (ctl->submit(ctl, &r, &err) != 0)
		ptc_warn("job", "job=%s %s", ctl->meta.name, err.text);
	ptc_switch_request_done(&r);
}

/* It stays as it is, until a person does something. */
static void give_up(struct ptc_controller *ctl)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_switch_request r;

	make_halt(ctl, &r);
	if (ctl->submit(ctl, &r, &err) != 0)
		return;
	if (ctl->record.restarts > most_restarts(&ctl->recovery))
		ptc_event(ctl->all->cluster, ctl->uuid, "gave_up",
			  "the job stops: its ranks were lost again, with the controller, and step %llu had been "
			  "reached then; %u restarts count by now, and at most %u may (`max_restarts`); does the "
			  "program take its nodes down?",
			  (unsigned long long)ctl->record.failed_step, ctl->record.restarts,
			  most_restarts(&ctl->recovery));
	else if (ctl->recovery.owed > most_restarts(&ctl->recovery))
		ptc_event(ctl->all->cluster, ctl->uuid, "gave_up",
			  "the job stops, for %u restarts count by now, and at most %u may (`max_restarts`); the last "
			  "came to nothing after its ranks had been started: %s",
			  ctl->recovery.owed, most_restarts(&ctl->recovery), ctl->recovery.waits);
	else
		ptc_event(ctl->all->cluster, ctl->uuid, "gave_up",
			  "the job could not be started again in %d tries; the last one: %s", TRIES_MAX,
			  ctl->recovery.waits);
}

/* The next controller has to know of a start that came to nothing. */
static void write_tries(struct ptc_controller *ctl)
{
	struct ptc_recovery *r = &ctl->recovery;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_switch_request halt;

	make_halt(ctl, &halt);
	r->mark_id = halt.id;
	r->mark = ctl->record;
	r->mark.restarts = r->owed;
	if (!r->mark.restarted_ms)
		r->mark.restarted_ms = ptc_sys_realtime_ms();
	if (ctl->submit(ctl, &halt, &err) != 0)
		ptc_warn("job", "job=%s %s", ctl->meta.name, err.text);
}

static void start_again(struct ptc_controller *ctl, const struct parts *p)
{
	struct ptc_recovery *r = &ctl->recovery;
	bool same = ctl->record.recovery == PTC_RECOVERY_PROGRAM || r->elastic.on_failure == PTC_JOB_WAIT;
	char why[400];

	if (!r->has_elastic) {
		ptc_recovery_plan(ctl, PTC_RECOVERY_READ, was_read);
	} else if (r->fails >= TRIES_MAX || PTC_MAX(r->owed, ctl->record.restarts) > most_restarts(r)) {
		give_up(ctl);
	} else if (r->owed > ctl->record.restarts) {
		write_tries(ctl);
	} else if (p->down && r->elastic.on_failure == PTC_JOB_WAIT) {
		snprintf(why, sizeof why, "node %s is down; the job waits for it, as its `on_failure: wait` says",
			 p->names);
		wait_for(ctl, why);
	} else if (p->down == p->lost) {
		ptc_recovery_plan(ctl, same && !p->down ? PTC_RECOVERY_SAME : PTC_RECOVERY_ANY, planned_start);
	}
}

bool ptc_recovery_holds(const struct ptc_controller *ctl)
{
	return ctl->record.run == PTC_RUN_LIVE && (ptc_odd_devices_hold(ctl) || look(ctl).down);
}

/* Ranks were started, so it may be their doing that the switch has come to nothing. */
static bool ranks_started(const struct ptc_controller *ctl)
{
	bool started = false;

	for (size_t i = 0; i < ctl->nphases; i++)
		started |= ctl->phases[i].phase == PTC_JOB_STARTING || ctl->phases[i].phase == PTC_JOB_BUILDING;
	return started;
}

void ptc_recovery_aborted(struct ptc_controller *ctl, int status, const char *why)
{
	struct ptc_recovery *r = &ctl->recovery;

	if (ctl->intent.held && r->hold.incarnation == ctl->record.incarnation) {
		r->hold.state = PTC_HOLD_NONE; /* a HALT follows, and the last snapshot has to do */
		snprintf(r->hold.why, sizeof r->hold.why, "%.190s", why);
	}
	if (!ctl->record.recovery || ctl->record.run == PTC_RUN_LIVE ||
	    (ctl->intent.kind != PTC_SWITCH_RESIZE && !ctl->intent.source))
		return;
	if (status != PTC_EPEER && status != PTC_ETIMEOUT && status != PTC_ECONFLICT && status != PTC_EFENCED &&
	    status != PTC_ECOORD && status != PTC_ELOST)
		r->fails++;
	if (ranks_started(ctl) && status != PTC_ECONFLICT && status != PTC_EFENCED && status != PTC_ECOORD &&
	    status != PTC_ECANCELED)
		r->owed = ctl->record.restarts + 1;
	snprintf(r->waits, sizeof r->waits, "%s", why);
}

/* Ranks hang that nothing holds any more but themselves, and that are held now where they can be. */
static void end_hung(struct ptc_controller *ctl)
{
	struct ptc_hang *h = &ctl->recovery.hang;
	struct ptc_switch_request r;
	bool held = make_held(ctl, &r);
	char what[sizeof h->who + 16];

	if (!held)
		make_halt(ctl, &r);
	mark(ctl, r.id, PTC_RECOVERY_PROGRAM, h->step);
	ctl->recovery.mark.hung = true;
	snprintf(what, sizeof what, "%s hung", h->who);
	count_program(ctl, what, h->step, most_restarts(&ctl->recovery));
	if (held)
		mark_held(ctl, &r);
	submit_halt(ctl, &r);
}

/* Their end has begun: what they do from here on changes nothing. */
static bool ends_hung(const struct ptc_controller *ctl)
{
	return ctl->recovery.hang.ends && ctl->recovery.hang.ends == ctl->record.incarnation;
}

/* True: ranks hang, and are ended, or waited for. */
static bool hangs(struct ptc_controller *ctl)
{
	enum ptc_job_phase phase = ptc_job_phase(ctl->core);
	struct ptc_hang *h = &ctl->recovery.hang;
	char why[400];

	if (ends_hung(ctl)) {
		if (ptc_controller_idle(ctl) && ptc_recovery_hold(ctl) >= PTC_HOLD_FOUND)
			end_hung(ctl);
		return true;
	}
	if (!ptc_hang_hangs(ctl))
		return false;
	if (ctl->recovery.elastic.on_hang != PTC_JOB_HANG_RECOVER || h->evidence.state != PTC_HANG_KEPT)
		return true;
	if (ptc_controller_idle(ctl)) {
		h->ends = ctl->record.incarnation;
		(void)ptc_recovery_hold(ctl);
	} else if (ctl->intent.kind != PTC_SWITCH_HALT && phase >= PTC_JOB_CHECKING && phase <= PTC_JOB_ARMING) {
		snprintf(why, sizeof why, "%s hung at step %llu", h->who, (unsigned long long)h->step);
		ptc_controller_step(ctl, &(struct ptc_job_event){
						 .kind = PTC_EV_ABORT, .status = PTC_ETIMEOUT, .text = why });
	}
	return true;
}

/* True: the job leaves devices where replicas were wrong. */
static bool leaves_odd(struct ptc_controller *ctl)
{
	char why[sizeof ctl->recovery.told.text];
	struct ptc_switch_request r;
	bool any = ptc_odd_devices_tick(ctl, why, sizeof why);

	if (!why[0])
		return any;
	make_halt(ctl, &r);
	mark(ctl, r.id, PTC_RECOVERY_NODE, 0);
	will_tell(ctl, "recovering", "%s", why);
	submit_halt(ctl, &r);
	return true;
}

static void grow(struct ptc_controller *ctl)
{
	struct ptc_recovery *r = &ctl->recovery;

	ptc_growth_note(ctl);
	if (r->replan && !r->planning && ptc_growth_rests(ctl)) {
		r->replan = false;
		ptc_growth_replan(ctl);
		return;
	}
	if (!r->has_elastic)
		ptc_recovery_plan(ctl, PTC_RECOVERY_READ, was_read);
	else if (r->elastic.grow)
		ptc_growth_tick(ctl);
}

/* No node of the job is down any more. */
static void back(struct ptc_controller *ctl)
{
	struct ptc_recovery *r = &ctl->recovery;
	bool failed = r->judging.incarnation && r->judging.incarnation == ctl->record.incarnation;

	if (r->waits[0]) {
		r->waits[0] = '\0';
		r->tries = 0;
	}
	if (r->hold.state != PTC_HOLD_IDLE && !failed && !ends_hung(ctl) && ptc_controller_idle(ctl))
		ptc_recovery_let_go(ctl); /* with its ranks, or without them: then it says so */
}

/* Of ranks that train. If a node may be gone, others are asked before its lease has ended: since when they stand counts
 * from there. After its end they are asked once more, at once. */
static void look_at_ranks(struct ptc_controller *ctl, const struct parts *p)
{
	struct ptc_recovery *r = &ctl->recovery;
	int64_t now = ptc_sys_now_ns();
	bool unsure = p->down || p->doubtful;

	if (unsure && !r->has_elastic && !r->planning && now >= r->retry_ns)
		ptc_recovery_plan(ctl, PTC_RECOVERY_READ, was_read);
	if (!unsure) {
		ptc_hang_tick(ctl);
		if (ptc_stragglers_tick(ctl))
			ptc_recovery_ask(ctl, true);
	} else if (now - r->rounds.asked_ns >= ASK_NS || (p->down && r->rounds.asked_ns < p->latest)) {
		ptc_recovery_ask(ctl, false); /* whatever is planned: what decides is where steps are then */
	}
}

void ptc_recovery_tick(struct ptc_controller *ctl)
{
	struct parts p;

	if (ctl->gone || !ctl->has_record)
		return;
	if (ctl->record.run != PTC_RUN_LIVE && !ctl->record.recovery) {
		ctl->recovery.growth.anew = true;
		ctl->recovery.waits[0] = '\0';
		return;
	}
	p = look(ctl);
	if (p.by_time != ctl->recovery.by_time) /* what had to wait for that may be possible */
		ctl->recovery.retry_ns = 0;
	ctl->recovery.by_time = p.by_time;
	if (ctl->record.recovery)
		ptc_growth_forget_absent(ctl);
	if (p.down || p.doubtful || p.back) /* ranks may have waited for that node's: it counts anew from here */
		ctl->recovery.rounds.stand.still_ns = ptc_sys_now_ns();
	if (ctl->record.run == PTC_RUN_LIVE)
		look_at_ranks(ctl, &p);
	if (ctl->recovery.planning || ptc_sys_now_ns() < ctl->recovery.retry_ns || ptc_leaving_holds(ctl))
		return;
	if (ctl->record.run != PTC_RUN_LIVE) {
		if (ptc_controller_idle(ctl))
			start_again(ctl, &p);
	} else if (p.down) {
		if (stands(ctl, &p))
			act(ctl, &p);
	} else {
		back(ctl);
		if (!hangs(ctl) && !leaves_odd(ctl) && !ptc_stragglers_leave(ctl))
			grow(ctl);
	}
}
