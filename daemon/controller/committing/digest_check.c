/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the digests that nodes have answered: those of the new generation with those of its source, before the
 * second commit.
 *
 * Happy path: ptc_merge_take moves the answers out of the controller. A task merges them item by item, and compares
 * each replica and each item with what is expected. The merged digests become those of the manifest.
 *
 * Failure modes: replicas or items differ (PTC_EDIGEST; the switch is aborted, and the line names the tensor); digests
 * are missing (PTC_ESTATE); an import has another number of digests than the job has items; no memory. */
#include "daemon/controller/committing/internal.h"

#include "daemon/agent/geometry/digest_merge.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/fault.h"

#include <stdio.h>
#include <string.h>

struct check {
	struct ptc_ctl_task task;
	struct ptc_view view; /* a copy: to generation only */
	struct ptc_merge merge;
	uint64_t *items, *expected;
	size_t nitems, nexpected;
	bool import; /* expected is what the client sent, of every item; else the snapshot's */
};

static void check_release(struct ptc_ctl_task *t)
{
	struct check *c = (struct check *)t;

	ptc_merge_done(&c->merge);
	ptc_view_done(&c->view);
	ptc_free(c->items);
	ptc_free(c->expected);
}

void ptc_merge_done(struct ptc_merge *m)
{
	for (size_t i = 0; i < m->nanswers; i++) {
		ptc_free(m->answers[i].need_index);
		ptc_free(m->answers[i].digests);
	}
	ptc_free(m->answers);
	memset(m, 0, sizeof *m);
}

/* The digests are needed once; the counts of bytes stay for the summary. */
void ptc_merge_take(struct ptc_merge *m, struct ptc_controller *ctl)
{
	m->answers = ptc_calloc(ctl->npulls, sizeof *m->answers);
	ptc_require(m->answers);
	for (; m->nanswers < ctl->npulls; m->nanswers++) {
		struct ptc_pull_result *p = &ctl->pulls[m->nanswers];
		struct answer *a = &m->answers[m->nanswers];

		snprintf(a->node, sizeof a->node, "%s", ptc_cluster_node(ctl->all->cluster, p->node)->doc.name);
		a->need_index = p->need_index;
		a->digests = p->digests;
		a->n = p->n;
		p->need_index = NULL;
		p->digests = NULL;
		p->n = 0;
	}
}

int ptc_merge_collect(const struct ptc_merge *m, const struct ptc_geometry *g, struct ptc_digests **ret,
		      struct ptc_error *err)
{
	int rc = ptc_digests_new(g, ret, err);

	for (size_t n = 0; rc == 0 && n < g->nnodes; n++) {
		bool answered = false;

		for (size_t i = 0; rc == 0 && i < m->nanswers; i++) {
			const struct answer *a = &m->answers[i];

			if (strcmp(g->nodes[n], a->node) != 0)
				continue;
			rc = ptc_digests_add(*ret, (uint32_t)n, a->need_index, a->digests, a->n, err);
			answered = true;
		}
		if (m->some && !answered && rc == 0)
			ptc_digests_leave_out(*ret, (uint32_t)n);
	}
	if (rc)
		*ret = ptc_digests_free(*ret);
	return rc;
}

int ptc_merge_digests(const struct ptc_merge *m, const struct ptc_geometry *g, const uint64_t *expected,
		      size_t nexpected, uint64_t **ret_items, size_t *ret_nitems, struct ptc_error *err)
{
	size_t nitems = ptc_spec_items(g->spec);
	uint64_t *items = ptc_calloc(nitems, sizeof *items);
	struct ptc_digests *d = NULL;
	int rc = items ? ptc_merge_collect(m, g, &d, err) : ptc_nomem(err);

	if (rc == 0 && ptc_fault("digests.merge"))
		rc = ptc_error_set(err, PTC_EIO, "fault point digests.merge");
	if (rc == 0 && expected && nexpected != nitems)
		rc = ptc_error_set(err, PTC_EDIGEST, "the import has %zu digests, but the job has %zu items", nexpected,
				   nitems);
	if (rc == 0)
		rc = ptc_digests_merge(d, expected, items, err);
	ptc_digests_free(d);
	if (rc) {
		ptc_free(items);
		return rc;
	}
	*ret_items = items;
	*ret_nitems = nitems;
	return 0;
}

/* What rules reset is not the snapshot's any more: it is zeros, whose digest is 0. */
static void expect_resets(struct check *c, const struct ptc_geometry *g)
{
	for (size_t i = 0; !c->import && i < PTC_MIN(c->nexpected, ptc_spec_items(g->spec)); i++)
		if (ptc_layout_resets(g->layout, (uint32_t)i))
			c->expected[i] = 0;
}

static void check_work(void *arg, struct ptc_etcd *e)
{
	struct ptc_geometry g;
	struct check *c = arg;

	(void)e;
	c->task.status = ptc_view_geometry(c->task.ctl->all->agent, &c->view, true, &g, &c->task.err);
	if (c->task.status)
		return;
	expect_resets(c, &g);
	c->task.status =
		ptc_merge_digests(&c->merge, &g, c->expected, c->nexpected, &c->items, &c->nitems, &c->task.err);
	ptc_geometry_done(&g);
}

static void check_adopt(struct ptc_ctl_task *t)
{
	struct check *c = (struct check *)t;

	ptc_free(t->ctl->digests);
	t->ctl->digests = c->items;
	t->ctl->ndigests = c->nitems;
	c->items = NULL;
}

void ptc_controller_check_digests(struct ptc_controller *ctl, uint64_t seq)
{
	bool import = ptc_switch_is_sent(ctl);
	const struct ptc_manifest_doc *old = &ptc_switch_source(ctl)->manifest;
	const uint64_t *expected = import ? ctl->imported.digests : old->digests;
	size_t n = import ? ctl->imported.ndigests : old->ndigests;
	struct check *c = ptc_ctl_task_new(ctl, sizeof *c, seq);

	c->task.answer = PTC_EV_DIGESTS;
	c->task.adopt = check_adopt;
	c->task.release = check_release;
	c->import = import;
	c->view.meta = ctl->meta;
	c->view.to_generation = ctl->intent.to_generation;
	c->view.to_snapshot = ctl->intent.to_snapshot;
	c->view.to_incarnation = ctl->intent.run_to ? ctl->intent.id : 0;
	c->expected = ptc_reallocarray(NULL, n, sizeof *c->expected);
	ptc_require(c->expected && ptc_generation_doc_copy(&ctl->view.to, &c->view.to) == 0 &&
		    ptc_view_nodes(&c->view) == 0);
	memcpy(c->expected, expected, n * sizeof *c->expected);
	c->nexpected = n;
	ptc_merge_take(&c->merge, ctl);
	ptc_ctl_task_run(&c->task, (const struct ptc_task_step[]){ { PTC_TASK_COMPUTE, check_work }, { 0 } });
}
