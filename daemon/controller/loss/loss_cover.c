/* SPDX-License-Identifier: Apache-2.0 */
/* Checks, before the first commit of a switch whose ranks do not run, that the nodes that have sealed hold every
 * tensor. Happy path: all have sealed, and nothing has to be computed. Failure modes: PTC_ELOST naming tensors that
 * only left-out nodes hold: the switch aborts, and the record stays. The work is a task of the job, with copies of all
 * it needs. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"

#include <string.h>

struct cover {
	struct ptc_ctl_task task;
	struct ptc_view view; /* from: the generation that is sealed */
	bool *gives;          /* by node of the view */
	bool all;
};

static void cover_compute(void *arg, struct ptc_etcd *e)
{
	struct cover *c = arg;

	if (!c->all)
		c->task.status = ptc_lost_covered(c->task.ctl->all, &c->view, c->gives, &c->task.err);
}

static void tell_left_out(struct ptc_controller *ctl, const struct cover *c)
{
	struct ptc_buf names = PTC_BUF_INIT;

	for (size_t i = 0; i < c->view.from.nnodes; i++) /* the first of the view's */
		if (!c->gives[i])
			ptc_buf_printf(&names, "%s%s", names.len ? ", " : "", c->view.nodes[i]);
	if (!ptc_buf_failed(&names))
		ptc_event(ctl->all->cluster, ctl->uuid, "left_out",
			  "snapshot %llu is made without %.400s: lost, or without the job's bytes; every tensor is on "
			  "other nodes",
			  (unsigned long long)c->view.to_snapshot, names.data);
	ptc_buf_done(&names);
}

static void cover_adopt(struct ptc_ctl_task *t)
{
	struct cover *c = (struct cover *)t;

	if (!c->all)
		tell_left_out(t->ctl, c);
}

static void cover_release(struct ptc_ctl_task *t)
{
	struct cover *c = (struct cover *)t;

	ptc_view_done(&c->view);
	ptc_free(c->gives);
}

void ptc_controller_cover(struct ptc_controller *ctl, uint64_t seq)
{
	static const struct ptc_task_step steps[] = { { PTC_TASK_COMPUTE, cover_compute }, { 0 } };
	struct cover *c = ptc_ctl_task_new(ctl, sizeof *c, seq);
	uint32_t node;

	c->task.answer = PTC_EV_AGREED;
	c->task.adopt = cover_adopt;
	c->task.release = cover_release;
	c->view.meta = ctl->meta;
	c->view.from_generation = ctl->intent.from_generation;
	c->view.from_snapshot = ctl->intent.from_snapshot;
	c->view.to_snapshot = ctl->intent.to_snapshot;
	ptc_require(ptc_generation_doc_copy(&ctl->view.from, &c->view.from) == 0 &&
		    ptc_copies_doc_copy(&ctl->view.copies, &c->view.copies) == 0 && ptc_view_nodes(&c->view) == 0);
	c->gives = ptc_calloc(c->view.nnodes, sizeof *c->gives);
	ptc_require(c->gives);
	c->all = true;
	for (size_t i = 0; i < c->view.nnodes; i++) {
		bool known = ptc_cluster_find_node(ctl->all->cluster, c->view.nodes[i], &node);

		c->gives[i] = known && (ptc_job_gives(ctl->core, node) ||
					(ptc_copies_keeper(&c->view.copies, c->view.nodes[i]) &&
					 ptc_cluster_node(ctl->all->cluster, node)->up));
		c->all = c->all && c->gives[i];
	}
	ptc_ctl_task_run(&c->task, steps);
}
