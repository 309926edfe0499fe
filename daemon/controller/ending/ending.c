/* SPDX-License-Identifier: Apache-2.0 */
/* Ends a job whose ranks finish.
 *
 * Happy path: all ranks finish at one step; the first node that says so makes the controller take a snapshot there, and
 * with it the record says `done`. A caller whose switch was to stop the ranks after that step gets the summary of this
 * end instead.
 *
 * Failure modes: a rank has finished and others are past its step (they go on, without snapshots that are due, and the
 * job ends when all have finished); they have finished at different steps (no step has the state of all: the job ends
 * with the snapshot it has, and an event names the steps). Loop thread. */
#include "daemon/controller/internal.h"

#include "base/buf.h"
#include "base/check.h"

#include <stdio.h>
#include <string.h>

static bool is_over(const struct ptc_controller *ctl)
{
	return ctl->over.incarnation && ctl->over.incarnation == ctl->record.incarnation;
}

void ptc_ending_begins(struct ptc_controller *ctl, const char *why)
{
	const struct ptc_intent_doc *in = &ctl->intent;

	if (!is_over(ctl))
		memset(&ctl->over, 0, sizeof ctl->over);
	ctl->over.incarnation = ctl->record.incarnation;
	ctl->over.due = PTC_MAX(ctl->over.due, in->stop);
	ctl->over.tried |= in->end == PTC_RUN_DONE;
	if (!ctl->watcher)
		return;
	ptc_watcher_finish(ctl->heir, PTC_EFINISHED, why, NULL);
	ptc_watcher_unref(ctl->heir);
	ctl->heir = ctl->watcher;
	ctl->watcher = NULL;
	ptc_watcher_progress(ctl->heir, "ending-job", 0, 0, why);
}

void ptc_ending_over(struct ptc_controller *ctl, struct ptc_switch_summary *summary)
{
	struct ptc_watcher *w = ctl->heir;

	if (!w || (ctl->record.run == PTC_RUN_LIVE && is_over(ctl)))
		return;
	ctl->heir = NULL;
	if (ctl->record.run == PTC_RUN_DONE)
		ptc_watcher_finish(w, 0, "", summary);
	else
		ptc_watcher_finish(w, PTC_ESTATE,
				   "a rank had finished before the step where it was to stop, and the job did "
				   "not end with that; `ptcctl events` says what it did",
				   NULL);
	ptc_watcher_unref(w);
}

void ptc_ending_lost(struct ptc_controller *ctl)
{
	ptc_watcher_finish(
		ctl->heir, PTC_EFENCED,
		"a rank has finished, so the job ends; another node controls it now: `ptcctl status` follows it", NULL);
	ptc_watcher_unref(ctl->heir);
	ctl->heir = NULL;
}

static bool is_current(const struct ptc_controller *ctl, const struct ptc_worker_doc *w)
{
	return w->generation == ctl->record.generation && w->incarnation == ctl->record.incarnation;
}

/* Every node of the generation says that its ranks have finished; *ret_uneven: at different steps. */
static bool all_finished(const struct ptc_controller *ctl, const struct ptc_job_view *j, bool *ret_uneven)
{
	const struct ptc_worker_doc *first = NULL;
	size_t n = 0;

	*ret_uneven = false;
	for (size_t i = 0; i < j->nworkers; i++) {
		const struct ptc_worker_doc *w = &j->workers[i].doc;

		if (!is_current(ctl, w) || w->state != PTC_WORKER_FINISHED)
			continue;
		first = first ? first : w;
		*ret_uneven |= w->text[0] || w->step != first->step;
		n++;
	}
	return n && n == ptc_controller_current(ctl)->nnodes;
}

bool ptc_ending_ignores(const struct ptc_controller *ctl, const struct ptc_job_view *j, const struct ptc_worker_doc *w)
{
	bool uneven;

	if (!is_over(ctl) || w->state == PTC_WORKER_FAILED)
		return false;
	if (w->state == PTC_WORKER_DUE)
		return w->step <= ctl->over.due;
	return ctl->over.tried && !all_finished(ctl, j, &uneven);
}

/* The job's last word, before its end is committed. */
static void tell_uneven(struct ptc_controller *ctl, const struct ptc_job_view *j)
{
	struct ptc_buf b = PTC_BUF_INIT;

	for (size_t i = 0; i < j->nworkers && b.len < 700; i++) {
		const struct ptc_worker_doc *w = &j->workers[i].doc;

		if (!is_current(ctl, w))
			continue;
		ptc_buf_printf(&b, "%snode %s: ", b.len ? "; " : "", j->workers[i].node);
		if (w->text[0])
			ptc_buf_printf(&b, "%.300s", w->text);
		else
			ptc_buf_printf(&b, "rank %u and others there at step %llu", w->rank,
				       (unsigned long long)w->step);
	}
	if (ctl->record.snapshot)
		ptc_event(
			ctl->all->cluster, ctl->uuid, "finished",
			"ranks finished at different steps, so that no step has the state of all (%s); the job's state "
			"is snapshot %llu, of step %llu",
			b.data ? b.data : "", (unsigned long long)ctl->record.snapshot,
			(unsigned long long)ctl->record.step);
	else
		ptc_event(
			ctl->all->cluster, ctl->uuid, "finished",
			"ranks finished at different steps, so that no step has the state of all (%s); the job has no "
			"snapshot",
			b.data ? b.data : "");
	ptc_buf_done(&b);
}

bool ptc_ending_asks(struct ptc_controller *ctl, const struct ptc_job_view *j, const struct ptc_worker_doc *w,
		     struct ptc_switch_request *r)
{
	bool uneven;

	if (w->state != PTC_WORKER_FINISHED)
		return false;
	r->end = PTC_RUN_DONE;
	if (all_finished(ctl, j, &uneven) && uneven) {
		r->kind = PTC_SWITCH_HALT;
		tell_uneven(ctl, j);
	}
	return true;
}
