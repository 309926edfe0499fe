/* SPDX-License-Identifier: Apache-2.0 */
/* Plans a switch: from a request to a feasible switch.
 *
 * Happy path: a request becomes a configuration (choice.c), the live devices it may use are listed (device_pool.c),
 * reshard/ places the ranks and counts what moves (placing.c). Failure modes: more devices asked for than are known
 * (PTC_ENODEVICES: only a scheduler grants nodes), a rule that does not fit (PTC_ELAYOUT naming the tensor), bytes
 * without a live source (PTC_ELOST). */
#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "daemon/controller/plan/internal.h"

#include <stdio.h>
#include <string.h>

void ptc_planned_done(struct ptc_planned *p)
{
	ptc_generation_doc_done(&p->to);
	ptc_plan_report_free(p->plan);
	ptc_free(p->emptied);
	memset(p, 0, sizeof *p);
}

/* Judged by the blobs of the last snapshot. Ranks will give these again, perhaps with more of them, because a rank
 * keeps its blobs for as long as its generation lives. */
static int plan_rank_states(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_generation_doc *to,
			    struct ptc_rank_states *ret, struct ptc_error *err)
{
	struct ptc_rank_states_ask ask = { .docs = &all->docs,
					   .meta = &v->meta,
					   .from = v->from.config,
					   .to = to->config,
					   .hash = v->manifest.state_hash };

	return v->from.config && v->manifest.state_hash[0] ? ptc_rank_states_switch(&ask, NULL, NULL, ret, err) : 0;
}

/* The coefficients by which ranks divide batches, if they divide them by length. */
static void tell_cost(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_job_desc *desc,
		      const struct ptc_device_pool *p, const struct ptc_plan_layouts *l,
		      const struct ptc_config *config, struct ptc_generation_doc *to)
{
	struct ptc_planning_ask ask = {
		.uuid = v->meta.uuid, .spec_hash = v->meta.spec_hash, .desc = desc, .now = v->from.config
	};
	struct ptc_length_cost cost;

	if (!all->planning || !desc->model || !desc->has_run || ptc_device_pool_shape(p, &ask.shape) != 0)
		return;
	if (l->from && v->from.layout_hash[0]) {
		ask.held = l->spec;
		ask.held_id = v->from.layout_hash;
	}
	cost = ptc_planning_length_cost(all->planning, &ask, config);
	ptc_planning_shape_done(&ask.shape);
	to->cost_linear = cost.linear;
	to->cost_square = cost.square;
}

/* The document of copies still names them: the copy keeper has not looked since. */
static int note_emptied(const struct ptc_device_pool *p, struct ptc_planned *planned)
{
	for (size_t i = 0; i < p->v->nnodes; i++) {
		const char *node = p->v->nodes[i];

		if (p->usable[i] || p->v->down[i] || !ptc_copies_keeper(&p->v->copies, node))
			continue;
		if (!PTC_MORE(planned->emptied, planned->nemptied))
			return PTC_ENOMEM;
		snprintf(planned->emptied[planned->nemptied++], sizeof *planned->emptied, "%s", node);
	}
	return 0;
}

int ptc_plan_switch(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_plan_request *req,
		    struct ptc_planned *ret_planned, struct ptc_error *err)
{
	struct ptc_device_pool p = { .all = all, .req = req, .v = v };
	struct ptc_planned planned = { 0 };
	struct ptc_plan_layouts l = { 0 };
	struct ptc_rank_states rank_states = { 0 };
	const struct ptc_job_desc *desc;
	ptc_auto_free char *known = NULL;
	ptc_auto_free uint32_t *nodes = NULL;
	struct ptc_config config;
	void *ref = NULL;
	int rc = req->nnodes > PTC_MAX_NODES
			 ? ptc_error_set(err, PTC_ELIMIT, "%zu nodes are named; at most %u exist", req->nnodes,
					 PTC_MAX_NODES)
			 : ptc_specs_get(all->docs.specs, v->meta.uuid, v->meta.spec_hash, &desc, &ref, err);

	p.ranks = req->ranks;
	p.shares = rc == 0 && desc->share_devices;
	if (rc == 0 && !(planned.plan = ptc_calloc(1, sizeof *planned.plan)))
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = ptc_device_pool_fill(all, &p, err);
	if (rc == 0 && note_emptied(&p, &planned) != 0)
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = ptc_plan_choose_config(all, v, desc, &p, req, &config, &planned.plan->chosen, &planned.stays,
					    &nodes, err);
	if (rc == 0 && req->runs)
		rc = ptc_plan_check_size(desc, &config, err);
	if (rc == 0)
		rc = ptc_plan_layouts_make(all, desc, v, &config, &p, &l, &known, err);
	if (rc == 0)
		rc = ptc_plan_doc(&p, &config, &l.to_alloc, &planned.to, err);
	if (rc == 0)
		tell_cost(all, v, desc, &p, &l, &config, &planned.to);
	if (rc == 0)
		rc = plan_rank_states(all, v, &planned.to, &rank_states, err);
	if (rc == 0) {
		if (known)
			memcpy(planned.to.layout_hash, known, strlen(known) + 1);
		planned.plan->blobs = rank_states.review;
		rc = ptc_plan_report_fill(&p, v, desc, &planned.to, &l, planned.plan) ? ptc_nomem(err) : 0;
	}
	if (rc == 0 && req->trains && desc->build == PTC_JOB_BUILD_AHEAD)
		ptc_plan_build_room(&p, &planned.to, &l, &planned.plan->build);
	if (rc == PTC_ENODEVICES && req->ret_lack)
		*req->ret_lack = p.taken.lack;
	ptc_plan_layouts_done(&l);
	ptc_device_pool_done(&p);
	ptc_specs_release(ref);
	if (rc) {
		ptc_planned_done(&planned);
		return rc;
	}
	*ret_planned = planned;
	return 0;
}

int ptc_plan_advise(struct ptc_controllers *all, const struct ptc_view *v, const struct ptc_plan_request *req,
		    uint32_t first, struct ptc_advice *ret, struct ptc_error *err)
{
	struct ptc_device_pool p = { .all = all, .req = req, .v = v };
	struct ptc_pricer pr = { .all = all, .v = v, .p = &p };
	ptc_auto_free struct ptc_planning_answer *a = ptc_calloc(1, sizeof *a);
	struct ptc_planning_ask ask;
	void *ref = NULL;
	int rc = a ? ptc_specs_get(all->docs.specs, v->meta.uuid, v->meta.spec_hash, &pr.desc, &ref, err)
		   : ptc_nomem(err);

	p.ranks = req->ranks;
	p.shares = rc == 0 && pr.desc->share_devices;
	if (rc == 0)
		rc = ptc_device_pool_fill(all, &p, err);
	if (rc == 0)
		rc = ptc_pricer_ask(&pr, req, &ask, err);
	if (rc == 0 && first)
		rc = ptc_planning_range(all->planning, &ask, first, ret, err);
	else if (rc == 0 && (rc = ptc_planning_choose(all->planning, &ask, a, err)) == 0) {
		*ret = a->advice;
		a->advice = (struct ptc_advice){ 0 };
	}
	if (a)
		ptc_planning_answer_done(a);
	ptc_pricer_done(&pr);
	ptc_device_pool_done(&p);
	ptc_specs_release(ref);
	return rc;
}

/* The bound of these devices, beside the cost of the mapping that was chosen before the layout was known. */
static int plan_of_layout(const struct ptc_device_pool *p, struct ptc_plan_layouts *l, struct ptc_error *err)
{
	struct ptc_plan_layouts best = {
		.spec = l->spec, .from = l->from, .to = l->to, .from_alloc = l->from_alloc, .copied_at = l->copied_at
	};
	int rc = ptc_plan_place(p, l, err);

	if (rc)
		return rc;
	rc = ptc_plan_place(p, &best, err);
	l->bound = best.bound;
	l->exact = best.exact;
	ptc_allocation_done(&best.to_alloc);
	ptc_plan_free(best.plan);
	ptc_plan_free(best.need);
	return rc;
}

struct ptc_plan_pool {
	struct ptc_device_pool pool;
};

struct ptc_plan_pool *ptc_plan_pool_new(struct ptc_controllers *all, const struct ptc_view *v)
{
	struct ptc_plan_pool *p = ptc_calloc(1, sizeof *p);

	if (!p)
		return NULL;
	p->pool = (struct ptc_device_pool){ .all = all, .v = v };
	ptc_device_pool_collect(&p->pool);
	return p->pool.rc ? ptc_plan_pool_free(p) : p;
}

struct ptc_plan_pool *ptc_plan_pool_free(struct ptc_plan_pool *p)
{
	if (p)
		ptc_device_pool_done(&p->pool);
	ptc_free(p);
	return NULL;
}

int ptc_plan_of_layout(const struct ptc_plan_pool *pool, const struct ptc_view *v, struct ptc_plan_report **ret,
		       struct ptc_error *err)
{
	const struct ptc_device_pool *p = &pool->pool;
	struct ptc_plan_layouts l = { 0 };
	struct ptc_plan_report *report = ptc_calloc(1, sizeof *report);
	int rc = report ? 0 : ptc_nomem(err);

	if (rc == 0)
		rc = ptc_plan_layout_from(p->all, v, &l, err);
	if (rc == 0)
		rc = ptc_plan_layout_get(p->all, v, v->to.layout_hash, v->to.config, &l.spec, &l.to, &l.to_ref, err);
	if (rc == 0 && ptc_view_allocation(v, &v->to, &l.to_alloc) != 0)
		rc = ptc_nomem(err);
	if (rc == 0)
		rc = plan_of_layout(p, &l, err);
	if (rc == 0 && ptc_plan_report_fill(p, v, NULL, &v->to, &l, report) != 0)
		rc = ptc_nomem(err);
	ptc_plan_layouts_done(&l);
	if (rc)
		ptc_plan_report_free(report);
	else
		*ret = report;
	return rc;
}
