/* SPDX-License-Identifier: Apache-2.0 */
/* Moves a job off a node that is about to be taken away (`ptcctl drain --within`). Happy path and failure modes:
 * leaving.h.
 *
 *   BEGINS --ranks run--> SNAPSHOT --committed--> COPIES --everything is elsewhere--> OVER
 *     |                      | aborted: again        ^                       \--no ranks run--> MOVES --> OVER
 *     +----------------------+--no ranks run---------+
 *
 * Why not a resize: between its commits the newest snapshot lies where the old layout puts it. If the node is taken
 * away then, bytes are lost (docs/decisions/0031). */
#include "daemon/controller/leaving/leaving.h"
#include "daemon/controller/leaving/leaving_answer.h"
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/number/units.h"
#include "base/sys/sys.h"

#include <stdio.h>
#include <string.h>

#define MS        INT64_C(1000000)
#define AGAIN_NS  (300 * MS)             /* between tries */
#define FORGET_NS (INT64_C(600000) * MS) /* a node that has not gone by then does not leave */

/* ---- which nodes ------------------------------------------------------------------------ */

static void set_until(struct ptc_leaving *l)
{
	l->until_ns = INT64_MAX;
	for (uint32_t i = 0; i < l->n; i++)
		l->until_ns = PTC_MIN(l->until_ns, l->nodes[i].until_ns);
}

static int leave(struct ptc_controller *ctl, const char *node, uint64_t within_ms, bool closed, struct ptc_error *err)
{
	struct ptc_leaving *l = ctl->leaving = ctl->leaving ? ctl->leaving : ptc_calloc(1, sizeof *l);
	uint32_t at = 0;

	if (!l)
		return ptc_nomem(err);
	while (at < l->n && strcmp(l->nodes[at].name, node) != 0)
		at++;
	if (at == PTC_LEAVING_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "%u nodes leave already", l->n);
	l->nodes[at] =
		(struct ptc_leaving_node){ .until_ns = ptc_sys_now_ns() + (int64_t)within_ms * MS, .closed = closed };
	snprintf(l->nodes[at].name, sizeof l->nodes[at].name, "%s", node);
	l->n = PTC_MAX(l->n, at + 1);
	set_until(l);
	if (l->phase != PTC_LEAVING_SNAPSHOT)
		l->phase = PTC_LEAVING_BEGINS;
	l->moved = false;
	l->why[0] = '\0';
	l->left = (struct ptc_leaving_left){ 0 };
	ptc_copy_keeper_now(ctl);
	return 0;
}

/* A node that has gone and is back, or is drained no longer, or is still there long after, does not leave. */
static bool stays(const struct ptc_controller *ctl, struct ptc_leaving_node *k)
{
	const struct ptc_node *n;
	uint32_t at;

	if (!ptc_cluster_find_node(ctl->all->cluster, k->name, &at))
		return true;
	n = ptc_cluster_node(ctl->all->cluster, at);
	k->down = k->down || !n->up;
	return (k->down && n->up) || (k->closed && !n->drained) || ptc_sys_now_ns() > k->until_ns + FORGET_NS;
}

static void forget(struct ptc_controller *ctl)
{
	struct ptc_leaving *l = ctl->leaving;
	uint32_t kept = 0;

	for (uint32_t i = 0; i < l->n; i++)
		if (!stays(ctl, &l->nodes[i]))
			l->nodes[kept++] = l->nodes[i];
	if (kept == l->n)
		return;
	l->n = kept;
	l->left = (struct ptc_leaving_left){ 0 };
	set_until(l);
	if (!kept)
		l->phase = PTC_LEAVING_REST;
}

static const char *names(const struct ptc_controller *ctl, char *buf, size_t size)
{
	size_t len = 0;

	buf[0] = '\0';
	for (uint32_t i = 0; i < ctl->leaving->n && len + PTC_NAME_MAX + 3 < size; i++)
		len += (size_t)snprintf(buf + len, size - len, "%s%s", len ? ", " : "", ctl->leaving->nodes[i].name);
	return buf;
}

/* ---- what is done ------------------------------------------------------------------------ */

static void enter(struct ptc_leaving *l, enum ptc_leaving_phase phase)
{
	l->phase = phase;
	l->again_ns = 0;
}

static void later(struct ptc_controller *ctl, const char *why)
{
	snprintf(ctl->leaving->why, sizeof ctl->leaving->why, "%.500s", why);
	ctl->leaving->again_ns = ptc_sys_now_ns() + AGAIN_NS;
}

/* Where the job can go on is known: ranks stop for good only if that is somewhere else. */
static void planned_live(struct ptc_controller *ctl, struct ptc_recovery_plan *p)
{
	struct ptc_leaving *l = ctl->leaving;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_switch_request r;
	char buf[256];
	bool starts = p->status == 0 && p->elastic.on_failure == PTC_JOB_SHRINK;

	if (!l->n || l->phase != PTC_LEAVING_BEGINS || !ptc_controller_idle(ctl) || ctl->record.run != PTC_RUN_LIVE)
		return;
	ptc_controller_request(ctl, PTC_SWITCH_SNAPSHOT, &r);
	r.run_from = true;
	r.run_to = !starts;
	r.leaves = starts;
	r.end = starts ? PTC_RUN_FAILED : PTC_RUN_STOPPED;
	if (ctl->submit(ctl, &r, &err) != 0) {
		later(ctl, err.text);
		return;
	}
	l->id = r.id;
	l->starts = starts;
	l->why[0] = '\0';
	if (starts)
		ptc_event(ctl->all->cluster, ctl->uuid, "leaving",
			  "node %s will be taken away: ranks stop at the next boundary, what only that node has is "
			  "copied, and the job starts again elsewhere",
			  names(ctl, buf, sizeof buf));
	else
		ptc_event(
			ctl->all->cluster, ctl->uuid, "leaving",
			"node %s will be taken away: a snapshot is made, and what only that node has of it is copied; "
			"ranks go on, for the job does not start elsewhere: %s",
			names(ctl, buf, sizeof buf), p->status ? p->err.text : "its `on_failure` is not `shrink`");
	if (!starts)
		snprintf(l->why, sizeof l->why, "it cannot start elsewhere: %.400s",
			 p->status ? p->err.text : "its `on_failure` is not `shrink`");
	enter(l, PTC_LEAVING_SNAPSHOT);
}

static void begin(struct ptc_controller *ctl)
{
	struct ptc_leaving *l = ctl->leaving;
	uint64_t id;

	if (ptc_ahead_builds(ctl, &id))
		ptc_ahead_stop(ctl, PTC_ECANCELED, "a node of the job will be taken away; ask again when it has gone");
	if (!ptc_controller_idle(ctl)) { /* its end may be there for a moment only */
		snprintf(l->why, sizeof l->why, "another switch of the job is under way");
		return;
	}
	l->starts = false;
	if (ctl->record.run != PTC_RUN_LIVE) {
		enter(l, PTC_LEAVING_COPIES);
	} else if (!ptc_leaving_in_layout(ctl)) { /* copies at most, and of what ranks elsewhere hold */
		l->moved = true;
		enter(l, PTC_LEAVING_OVER);
	} else if (!ctl->recovery.planning) {
		ptc_recovery_plan(ctl, PTC_RECOVERY_ANY, planned_live);
	}
}

static void snapshot_ended(struct ptc_controller *ctl)
{
	struct ptc_leaving *l = ctl->leaving;

	if (ctl->record.switch_id == l->id) {
		enter(l, PTC_LEAVING_COPIES);
		return;
	}
	enter(l, PTC_LEAVING_BEGINS); /* an event has said why */
	later(ctl, "the snapshot has come to nothing (`ptcctl events`)");
}

static void tell_out(struct ptc_controller *ctl)
{
	char buf[256];

	ptc_event(ctl->all->cluster, ctl->uuid, "leaving",
		  "everything of snapshot %llu, step %llu, is on other nodes than %s",
		  (unsigned long long)ctl->record.snapshot, (unsigned long long)ctl->record.step,
		  names(ctl, buf, sizeof buf));
}

static void copied(struct ptc_controller *ctl)
{
	struct ptc_leaving *l = ctl->leaving;

	if (ctl->record.snapshot && !(l->left.out && l->left.record_revision == ctl->record_revision))
		return; /* the keeper of copies is at it, or cannot do more */
	if (ctl->record.snapshot)
		tell_out(ctl);
	enter(l, ctl->record.run == PTC_RUN_LIVE || ctl->record.recovery || !ptc_leaving_in_layout(ctl)
			 ? PTC_LEAVING_OVER
			 : PTC_LEAVING_MOVES);
	l->moved = !ptc_leaving_in_layout(ctl);
}

static void planned_move(struct ptc_controller *ctl, struct ptc_recovery_plan *p)
{
	struct ptc_leaving *l = ctl->leaving;
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_switch_request r;

	if (!l->n || l->phase != PTC_LEAVING_MOVES || !ptc_controller_idle(ctl) || ctl->record.run == PTC_RUN_LIVE)
		return;
	if (p->status) {
		snprintf(l->why, sizeof l->why, "it cannot lie elsewhere: %.400s", p->err.text);
		enter(l, PTC_LEAVING_OVER);
		return;
	}
	ptc_controller_request(ctl, PTC_SWITCH_RESIZE, &r);
	r.end = PTC_RUN_STOPPED;
	ptc_switch_request_plan(&r, &p->planned);
	if (ctl->submit(ctl, &r, &err) != 0)
		later(ctl, err.text);
	else
		l->id = r.id;
	ptc_switch_request_done(&r);
}

static void move(struct ptc_controller *ctl)
{
	struct ptc_leaving *l = ctl->leaving;

	if (!ptc_controller_idle(ctl))
		return;
	l->moved = !ptc_leaving_in_layout(ctl);
	if (l->moved || ctl->record.run == PTC_RUN_LIVE) {
		enter(l, PTC_LEAVING_OVER);
	} else if (l->id) { /* ours has come to nothing */
		l->id = 0;
		later(ctl, "the move has come to nothing (`ptcctl events`)");
		if (ptc_sys_now_ns() > l->until_ns)
			enter(l, PTC_LEAVING_OVER);
	} else if (!ctl->recovery.planning) {
		ptc_recovery_plan(ctl, PTC_RECOVERY_ELSEWHERE, planned_move);
	}
}

void ptc_leaving_tick(struct ptc_controller *ctl)
{
	struct ptc_leaving *l = ctl->leaving;

	if (!l || !l->n || ctl->gone || !ctl->has_record)
		return;
	forget(ctl);
	if (!l->n || ptc_sys_now_ns() < l->again_ns)
		return;
	if (l->phase == PTC_LEAVING_BEGINS) {
		begin(ctl);
	} else if (l->phase == PTC_LEAVING_SNAPSHOT && ptc_controller_idle(ctl)) {
		snapshot_ended(ctl);
	} else if (l->phase == PTC_LEAVING_COPIES && ptc_controller_idle(ctl)) {
		l->id = 0;
		copied(ctl);
	} else if (l->phase == PTC_LEAVING_MOVES) {
		move(ctl);
	}
}

/* ---- what is said ---------------------------------------------------------------------------- */

static const char *state_of(const struct ptc_controller *ctl, bool late)
{
	const struct ptc_leaving *l = ctl->leaving;

	if (late)
		return "late";
	if (ctl->record.recovery || l->starts)
		return "starts";
	return l->moved ? "moved" : "copied";
}

static const char *waits_for(const struct ptc_controller *ctl, char *buf, size_t size)
{
	const struct ptc_leaving *l = ctl->leaving;
	char bytes[PTC_UNITS_MAX];
	size_t len;

	if (l->phase == PTC_LEAVING_SNAPSHOT)
		return "the snapshot is not committed: no boundary has come, or its bytes are still being copied "
		       "(`ptcctl status`)";
	if (l->phase != PTC_LEAVING_COPIES)
		return l->why[0] ? l->why : "nothing has been done yet";
	if (!ptc_leaving_counted(ctl))
		return "its copies have not been counted yet";
	if (!l->left.bytes)
		snprintf(buf, size, "no node that is up has %s of it: nodes that leave have gone with them",
			 ptc_units_print_bytes(l->left.gone, bytes));
	else
		snprintf(buf, size, "%s of %u tensors (%s) are only on nodes that leave%s",
			 ptc_units_print_bytes(l->left.bytes, bytes), l->left.tensors, l->left.tensor,
			 ptc_leaving_stuck(ctl) ? ", and no other node that is up can take them" : "");
	len = strlen(buf);
	if (l->left.bytes && l->left.refused[0])
		snprintf(buf + len, size - len, ": %s", l->left.refused);
	return buf;
}

static struct ptc_leaving_answer said(const struct ptc_controller *ctl)
{
	const struct ptc_leaving *l = ctl->leaving;
	bool done = l->phase == PTC_LEAVING_OVER || l->phase == PTC_LEAVING_MOVES;
	struct ptc_leaving_answer a = { .concerned = true,
					.over = l->phase == PTC_LEAVING_OVER || ptc_leaving_stuck(ctl),
					.snapshot = ctl->record.snapshot,
					.step = ctl->record.step };
	char buf[sizeof a.why];

	snprintf(a.job, sizeof a.job, "%s", ctl->meta.name);
	snprintf(a.uuid, sizeof a.uuid, "%s", ctl->uuid);
	snprintf(a.state, sizeof a.state, "%s", state_of(ctl, !done));
	snprintf(a.why, sizeof a.why, "%s", done ? l->why : waits_for(ctl, buf, sizeof buf));
	if (!done && ptc_leaving_counted(ctl)) {
		a.left_bytes = l->left.bytes + l->left.gone;
		a.left_tensors = l->left.tensors;
	}
	return a;
}

/* Whether the node has anything of the job. */
static bool concerns(const struct ptc_controller *ctl, const char *node)
{
	return ptc_controller_ranks_on(ctl, node) || ptc_copies_keeper(&ctl->copies, node);
}

int ptc_leaving_ask(struct ptc_controller *ctl, const char *node, uint64_t within_ms, bool closed, bool begin,
		    struct ptc_leaving_answer *ret, struct ptc_error *err)
{
	int rc;

	if (!ctl->has_record && ctl->record_revision == 0)
		return ptc_error_set(err, PTC_ESTATE,
				     "the job's controller has just begun, and has not read its record");
	begin = begin || !ptc_leaving_has(ctl, node);
	if (begin && !concerns(ctl, node)) {
		*ret = (struct ptc_leaving_answer){ .over = true };
		snprintf(ret->job, sizeof ret->job, "%s", ctl->meta.name);
		return 0;
	}
	rc = begin ? leave(ctl, node, within_ms, closed, err) : 0;
	if (rc == 0)
		*ret = said(ctl);
	return rc;
}
