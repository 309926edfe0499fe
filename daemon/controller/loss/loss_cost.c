/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: status asks; a task reads documents and asks the bridge's nodes. A second task counts on how many nodes
 * each region is, among the ranks and among those that have the snapshot, and plans the job anew for the loss of each
 * single node; the facts stay in the controller. Failure modes: loss_cost.h.
 *
 * The tasks have copies of all that they need. The second one may take seconds, on the pool for computation. All jobs
 * share one lane for it, so the pool has threads left for digests, and for the plans of recoveries. */
#include "daemon/controller/loss/loss_cost.h"

#include "daemon/controller/internal.h"
#include "daemon/controller/loss/copied_layout.h"
#include "daemon/documents/probed/probed.h"

#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"
#include "reshard/copies/copies.h"

#include <stdio.h>
#include <string.h>

#define RETRY_NS INT64_C(5000000000) /* facts that could not be found are looked for again after */

struct find {
	struct ptc_controller *ctl;
	struct ptc_view view, bridge;
	struct ptc_older_doc older;
	bool *has;        /* by the view's nodes */
	bool *bridge_has; /* by the bridge's nodes; NULL: it does not matter, or they could not be asked */
	const struct ptc_job_desc *desc; /* with its reference */
	void *desc_ref;
	struct ptc_loss_facts facts;
	struct ptc_error err;
	int rc;
};

/* ---- who alone has something ---- */

/* The first usable node without which a region is nowhere. */
static int name_alone(const struct ptc_layout *layout, const struct ptc_allocation *at, uint32_t n, bool *usable,
		      char *const *names, struct ptc_loss_alone *ret, struct ptc_error *err)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < n && !ret->node[0]; i++) {
		struct ptc_lost *lost = NULL;
		size_t nlost = 0;

		if (!usable[i])
			continue;
		usable[i] = false;
		rc = ptc_layout_lost(layout, at, n, usable, &lost, &nlost, err);
		usable[i] = true;
		if (rc == 0 && nlost) {
			snprintf(ret->node, sizeof ret->node, "%s", names[i]);
			(void)ptc_item_name(ptc_layout_spec(layout), lost[0].item, ret->tensor, sizeof ret->tensor);
		}
		ptc_free(lost);
	}
	return rc;
}

/* world: of the layout without copies. One count for all regions; nodes are tried only where one is alone. */
static int find_alone(const struct ptc_layout *layout, uint32_t world, const struct ptc_allocation *at, uint32_t n,
		      bool *usable, char *const *names, struct ptc_loss_alone *ret, struct ptc_error *err)
{
	ptc_auto_free uint32_t *own = ptc_calloc(n + 1, sizeof *own);
	struct ptc_copies_ask ask = {
		.held = layout, .world = world, .at = at, .nnodes = n, .domain = own, .usable = usable, .count = 2
	};
	struct ptc_copies_found found = { 0 };
	int rc;

	if (!own)
		return ptc_nomem(err);
	for (uint32_t i = 0; i < n; i++)
		own[i] = i;
	rc = ptc_copies_find(&ask, &found, err);
	if (rc == 0 && found.fewest < 2)
		rc = name_alone(layout, at, n, usable, names, ret, err);
	if (rc == 0 && found.fewest < 2 && !ret->node[0])
		rc = ptc_error_set(err, PTC_ELOST, "a region is on no node that is up");
	ptc_copies_found_done(&found);
	return rc;
}

static int alone_of_view(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_spec *spec,
			 bool *usable, struct ptc_loss_alone *ret_ranks, struct ptc_loss_alone *ret_stored,
			 struct ptc_error *err)
{
	const uint32_t n = (uint32_t)v->nnodes;
	ptc_auto_free bool *every = ptc_calloc(n + 1, sizeof *every);
	const struct ptc_declared *declared;
	struct ptc_copied_layout h;
	const struct ptc_layout *own = NULL;
	struct ptc_allocation ranks;
	int rc;

	if (!every)
		return ptc_nomem(err);
	memset(every, true, n);
	rc = ptc_copied_layout_init(&h, all, v, spec, &declared, err);
	if (rc == 0 && v->from_snapshot)
		rc = find_alone(h.with.layout, v->from.world, &h.with.at, n, usable, v->nodes, ret_stored, err);
	if (rc == 0 && ret_ranks) {
		own = h.base;
		ranks = (struct ptc_allocation){ .ranks = h.with.at.ranks, .world = v->from.world };
		rc = find_alone(own, v->from.world, &ranks, n, every, v->nodes, ret_ranks, err);
	}
	ptc_copied_layout_done(&h);
	return rc;
}

/* ---- the task ---- */

/* What the rules of tensors and blobs need of ranks that would be lost. */
static const char *rules_need(const struct ptc_job_desc *desc)
{
	for (size_t i = 0; i < desc->spec.nrules; i++) {
		const struct ptc_rule *r = &desc->spec.rules[i];

		if (r->carry == PTC_CARRY_MAX || (r->carry == PTC_CARRY_REPLICATE && r->primary != PTC_AXIS_NONE))
			return "a rule of the job merges replicas, or names the one that counts";
	}
	for (size_t i = 0; i < desc->blobs.n; i++)
		if (desc->blobs.v[i].fate == PTC_FATE_CARRY)
			return "a rule for blobs is `carry`, which needs those of all ranks";
	return NULL;
}

static void locate_bridge(void *arg)
{
	struct find *f = arg;

	f->rc = ptc_view_locate(&f->bridge, f->ctl->all->cluster);
}

/* While the newest snapshot's copies are not complete, a job with copies goes back to the bridge. */
static int ask_bridge(struct find *f)
{
	struct ptc_controllers *all = f->ctl->all;
	struct ptc_error err = PTC_ERROR_INIT;
	const uint64_t snapshot = f->older.bridge.snapshot;

	if (f->desc->copies.count < 2 || !snapshot ||
	    ptc_view_older(all->docs.kept, &f->view.meta, &f->older, snapshot, &f->bridge, &err) != 0)
		return 0;
	f->rc = PTC_ECANCELED;
	ptc_loop_call(all->loop, locate_bridge, f);
	if (f->rc)
		return f->rc;
	f->bridge_has = ptc_calloc(f->bridge.nnodes + 1, sizeof *f->bridge_has);
	if (!f->bridge_has)
		return ptc_nomem(&f->err);
	ptc_lost_ask(all, &f->bridge, f->bridge_has);
	return 0;
}

/* It waits, for etcd and for other nodes. */
static void ask_work(void *arg, struct ptc_etcd *etcd)
{
	struct find *f = arg;

	(void)etcd;
	f->rc = ptc_specs_get(f->ctl->all->docs.specs, f->view.meta.uuid, f->view.meta.spec_hash, &f->desc,
			      &f->desc_ref, &f->err);
	if (f->rc == 0)
		f->rc = ask_bridge(f);
}

static void look_at_bridge(struct find *f)
{
	struct ptc_loss_alone alone = { 0 };
	struct ptc_error err = PTC_ERROR_INIT;

	if (!f->facts.stored.node[0] || !f->bridge_has)
		return;
	f->facts.has_bridge =
		alone_of_view(f->ctl->all, &f->bridge, &f->desc->spec, f->bridge_has, NULL, &alone, &err) == 0 &&
		alone.node[0] == '\0';
	f->facts.bridge_step = f->older.bridge.step;
}

/* Without each node of its ranks in turn. */
static void plan_without(struct find *f, const struct ptc_job_desc *desc)
{
	struct ptc_loss_facts *to = &f->facts;

	ptc_probed_join(&f->ctl->all->docs, &f->view);
	for (size_t i = 0; i < f->view.from.nnodes && !to->stuck[0]; i++) {
		struct ptc_error err = PTC_ERROR_INIT;

		if (ptc_recovery_without(f->ctl, desc, &f->view, f->view.from.nodes[i], &err) == 0)
			continue;
		snprintf(to->stuck, sizeof to->stuck, "%s", f->view.from.nodes[i]);
		snprintf(to->stuck_why, sizeof to->stuck_why, "%.290s", err.text);
	}
}

static void find_work(void *arg, struct ptc_etcd *etcd)
{
	struct find *f = arg;
	struct ptc_loss_facts *to = &f->facts;
	const struct ptc_job_desc *desc = f->desc;
	int rc = f->rc;

	(void)etcd;
	(void)ptc_fault("loss.facts");
	if (desc) {
		to->elastic = desc->elastic;
		to->snapshot_every = desc->snapshot_every;
		to->copies = desc->copies.count;
		to->has_run = desc->has_run;
		to->not_taken = rules_need(desc);
	}
	if (rc == 0)
		rc = alone_of_view(f->ctl->all, &f->view, &desc->spec, f->has, &to->ranks, &to->stored, &f->err);
	if (rc == 0)
		look_at_bridge(f);
	if (rc == 0 && desc->has_run && desc->elastic.on_failure == PTC_JOB_SHRINK)
		plan_without(f, desc);
	to->known = rc == 0;
	if (rc)
		snprintf(to->why, sizeof to->why, "%.190s", f->err.text);
}

static void find_free(struct find *f)
{
	ptc_view_done(&f->view);
	ptc_view_done(&f->bridge);
	if (f->desc_ref)
		ptc_specs_release(f->desc_ref);
	ptc_free(f->bridge_has);
	ptc_free(f->has);
	if (f->ctl)
		ptc_controller_unref(f->ctl);
	ptc_free(f);
}

static void find_done(void *arg)
{
	struct find *f = arg;

	f->facts.found_ns = ptc_sys_now_ns();
	if (f->ctl->loss)
		*f->ctl->loss = f->facts;
	ptc_cluster_changed(f->ctl->all->cluster); /* who waits looks again */
	find_free(f);
}

/* The daemon may stop meanwhile: then nobody computes. */
static void asked(void *arg)
{
	static const struct ptc_task_step steps[] = { { PTC_TASK_COMPUTE, find_work, true }, { 0 } };
	struct find *f = arg;
	int rc = ptc_cluster_steps(f->ctl->all->cluster, "loss-facts", steps, find_done, f);

	ptc_require(rc == 0 || rc == PTC_ECANCELED);
	if (rc)
		find_free(f);
}

/* ---- asking ---- */

struct ask {
	struct ptc_controllers *all;
	const struct ptc_view *v;
	const bool *has;
	struct ptc_loss_facts *ret;
	uint64_t key;
	bool keyed, asked;
};

static int copy_manifest(const struct ptc_manifest_doc *m, struct ptc_manifest_doc *ret)
{
	int rc = 0;

	memcpy(ret->generation_hash, m->generation_hash, sizeof ret->generation_hash);
	ret->digests = ptc_calloc(m->ndigests + 1, sizeof *ret->digests);
	if (!ret->digests)
		return PTC_ENOMEM;
	if (m->ndigests)
		memcpy(ret->digests, m->digests, m->ndigests * sizeof *ret->digests);
	ret->ndigests = m->ndigests;
	for (size_t i = 0; i < m->nwithout && !rc; i++)
		rc = ptc_manifest_without_add(ret, m->without[i]);
	return rc;
}

static int copy_view(const struct ptc_view *v, struct ptc_view *ret)
{
	ret->meta = v->meta;
	ret->from_generation = v->from_generation;
	ret->from_snapshot = v->from_snapshot;
	ret->from_incarnation = v->from_incarnation;
	if (copy_manifest(&v->manifest, &ret->manifest) || ptc_generation_doc_copy(&v->from, &ret->from) ||
	    ptc_copies_doc_copy(&v->copies, &ret->copies) || ptc_view_nodes(ret))
		return PTC_ENOMEM;
	return 0;
}

static void start(const struct ask *a, struct ptc_controller *ctl)
{
	static const struct ptc_task_step steps[] = { { PTC_TASK_ETCD, ask_work, true }, { 0 } };
	struct find *f = ptc_calloc(1, sizeof *f);
	char lane[PTC_LANE_MAX];

	if (!f)
		return;
	f->facts.key = a->key;
	f->older = ctl->older.doc;
	f->has = ptc_calloc(a->v->nnodes + 1, sizeof *f->has);
	if (!f->has || copy_view(a->v, &f->view) != 0 || f->view.nnodes != a->v->nnodes) {
		find_free(f);
		return;
	}
	memcpy(f->has, a->has, a->v->nnodes * sizeof *f->has);
	f->ctl = ptc_controller_ref(ctl);
	ctl->loss->finding = true;
	snprintf(lane, sizeof lane, "l-%s", ctl->uuid);
	ptc_require(ptc_cluster_steps(a->all->cluster, lane, steps, asked, f) == 0);
}

/* Whether the facts are there, or nobody will find them; if need be it has them found, once. */
static bool are_there(void *arg)
{
	struct ask *a = arg;
	struct ptc_controller *ctl = ptc_controller_find(a->all, a->v->meta.uuid);

	if (!ctl)
		return true;
	if (!ctl->loss)
		ctl->loss = ptc_calloc(1, sizeof *ctl->loss);
	if (!ctl->loss)
		return true;
	if (ctl->loss->finding)
		return false;
	if (!a->keyed)
		a->key = ptc_loss_key(a->all, ctl, a->v, a->has);
	a->keyed = true;
	if (ctl->loss->key == a->key && (ctl->loss->known || ptc_sys_now_ns() - ctl->loss->found_ns < RETRY_NS)) {
		*a->ret = *ctl->loss;
		return true;
	}
	if (!a->asked)
		start(a, ctl);
	a->asked = true;
	return !ctl->loss->finding;
}

void ptc_loss_facts_get(struct ptc_controllers *all, const struct ptc_view *v, const bool *has, int64_t ms,
			struct ptc_loss_facts *ret)
{
	struct ask a = { .all = all, .v = v, .has = has, .ret = ret };

	*ret = (struct ptc_loss_facts){ .why = "it is being found out" };
	(void)ptc_cluster_wait(all->cluster, &(struct ptc_cluster_wait){ .holds = are_there, .arg = &a, .ms = ms });
}
