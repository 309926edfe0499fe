/* SPDX-License-Identifier: Apache-2.0 */
/* A switch's progress, until the first step of the ranks that it has started. Happy path: a switch that started ranks
 * waits until each has ended a step. Failure modes: a job that fails before its ranks' first step is reported
 * (PTC_ESTATE). */
#include "base/alloc.h"
#include "base/sys/sys.h"
#include "daemon/api/run/run.h"
#include "daemon/api/switches/switches.h"

#include <stdio.h>
#include <string.h>

#define FIRST_STEP_MS 60000 /* longer is not waited for */

struct first_step {
	struct ptc_daemon *d;
	struct ptc_rpc_call *call;
	struct ptc_target t;           /* of the switch, then as it is now */
	struct ptc_run_failure failed; /* text: set once the job has */
	struct ptc_view v;
	bool viewed;
	int64_t began_ns;
	struct ptc_tail *tail; /* the controller has gone */
};

static bool all_stepped(const struct first_step *f, const struct ptc_target *t, const struct ptc_view *v,
			uint64_t start)
{
	bool *heard = ptc_calloc(v->from.nnodes, sizeof *heard);
	struct ptc_rank_rows *said = heard ? ptc_run_ask_nodes(f->d, t, v, heard) : NULL;
	bool all = said != NULL;

	for (uint32_t r = 0; all && r < v->from.world; r++) {
		const struct ptc_rank_row *row =
			ptc_rank_rows_find(&said[v->from.rank_node[r]], r, t->record.generation, t->record.incarnation);

		all = row && row->has_step && row->step > start;
	}
	ptc_run_answers_free(said, v->from.nnodes);
	ptc_free(heard);
	return all;
}

/* One node's coming or going makes the view anew; false: there is nothing to wait for any more. */
static bool look_again(struct first_step *f)
{
	struct ptc_target now;

	if (ptc_api_find(f->d, f->call, f->t.meta.uuid, &now, NULL) != 0 || !now.has_record)
		return false;
	if (f->viewed && now.record.incarnation != f->t.record.incarnation)
		return false;
	if (now.record.run == PTC_RUN_FAILED) {
		f->failed = (struct ptc_run_failure){ .d = f->d, .t = &now, .text = "see `ptcctl events`" };
		ptc_loop_call(f->d->loop, ptc_run_find_failure, &f->failed);
		f->failed.t = NULL;
	}
	if (now.record.run != PTC_RUN_LIVE)
		return false;
	if (f->viewed && now.epoch == f->t.epoch)
		return true;
	if (f->viewed)
		ptc_view_done(&f->v);
	f->t = now;
	f->viewed = ptc_api_view(f->d, &f->t, false, true, &f->v, NULL) == 0;
	return f->viewed;
}

/* How long the first step took, when the switch made ranks start: until every rank has ended a step since the switch,
 * or something else is committed. PTC_ESTATE: one of them failed in it. */
static int with_first_step(void *arg, struct ptc_rpc_call *call, const struct ptc_switch_summary *summary, bool *later,
			   double *ret_ms, struct ptc_error *err)
{
	struct first_step *f = arg;
	int64_t now = ptc_sys_now_ns();
	bool there, stepped;
	uint64_t step;

	f->began_ns = f->began_ns ? f->began_ns : now;
	f->call = call;
	if (ptc_switch_summary_waits(summary, &step)) {
		there = look_again(f);
		stepped = there && all_stepped(f, &f->t, &f->v, step);
		*later = there && !stepped && now - f->began_ns < FIRST_STEP_MS * INT64_C(1000000);
		if (*later)
			return 0;
		if (stepped || (f->viewed && !there))
			*ret_ms = (double)(now - f->began_ns) / 1e6;
	}
	if (!f->failed.text[0])
		return 0;
	return ptc_error_set(err, PTC_ESTATE,
			     "the switch was made, but the job has failed before every rank's first step: %s",
			     f->failed.text);
}

/* We are not the controller any more. */
static int follow_on(void *arg, struct ptc_rpc_call *call, uint64_t id, struct ptc_error *err)
{
	struct first_step *f = arg;
	int rc = f->tail ? 0 : ptc_tail_new(f->d, &f->t, id, &f->tail, err);

	return rc ? rc : ptc_tail_step(f->tail, call, err);
}

static void first_step_free(void *arg)
{
	struct first_step *f = arg;

	if (f->viewed)
		ptc_view_done(&f->v);
	ptc_tail_free(f->tail);
	ptc_free(f);
}

int ptc_api_stream(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_watcher *w, struct ptc_rpc_call *call,
		   struct ptc_error *err)
{
	struct first_step *f = ptc_calloc(1, sizeof *f);

	if (!f)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory; the switch goes on");
	f->d = d;
	f->t = *t;
	return ptc_watcher_stream(w, call, &(struct ptc_watch_ops){ with_first_step, follow_on, first_step_free }, f,
				  err);
}
