/* SPDX-License-Identifier: Apache-2.0 */
/* Prices a switch for the planner: which bytes move to a candidate, where its ranks would be, and what nodes lack.
 *
 * Failure modes: too few devices for a candidate (PTC_ENODEVICES), no room in a node's store (PTC_ENOSPC), memory; the
 * planner does without that candidate. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "daemon/controller/plan/internal.h"

#include <stdio.h>
#include <string.h>

/* The layout of a configuration that differs from this one only in its batch, or in what ranks compute when: a price
 * needs no more. */
static int known_layout(const struct ptc_manifest_doc *m, const struct ptc_config *config, const char **ret_hash)
{
	ptc_auto_free struct ptc_config *other = ptc_calloc(1, sizeof *other);
	ptc_auto_free char *want = ptc_malloc(PTC_CONFIG_TEXT_MAX), *text = ptc_malloc(PTC_CONFIG_TEXT_MAX);
	int rc = other && want && text ? ptc_config_format(config, want, PTC_CONFIG_TEXT_MAX) : PTC_ENOMEM;

	*ret_hash = NULL;
	for (size_t i = 0; rc == 0 && i < m->nlayouts && !*ret_hash; i++) {
		if (ptc_config_parse(m->layouts[i].config, other, NULL) != 0)
			continue;
		other->micro_batch = config->micro_batch;
		other->global_batch = config->global_batch;
		other->micro_steps = config->micro_steps;
		memcpy(other->recompute, config->recompute, sizeof other->recompute);
		other->nrecompute = config->nrecompute;
		other->schedule = config->schedule;
		if (ptc_config_format(other, text, PTC_CONFIG_TEXT_MAX) == 0 && strcmp(text, want) == 0)
			*ret_hash = m->layouts[i].layout_hash;
	}
	return rc;
}

/* No rank has declared under it. So a node needs the share of each replica that its ranks have, and it has either all
 * of it or nothing. */
static void estimate_moves(const struct ptc_pricer *pr, const struct ptc_config *to, const struct ptc_allocation *a,
			   const struct ptc_planning_links *links, struct ptc_planning_moves *ret)
{
	ptc_auto_free uint32_t *ranks = ptc_calloc(pr->p->nnames + 1, sizeof *ranks);
	double state = 0, busiest = 0;

	for (size_t i = 0; pr->now.from && i < ptc_spec_items(pr->now.spec); i++)
		state += (double)ptc_item_bytes(pr->now.spec, i);
	for (uint32_t r = 0; ranks && r < a->world; r++)
		ranks[a->ranks[r].node]++;
	*ret = (struct ptc_planning_moves){ .exact = state == 0 };
	for (size_t n = 0; ranks && n < pr->p->nnames; n++) {
		double need = state * PTC_MIN(1.0, ranks[n] / ((double)to->tp * to->pp));
		bool has = false;

		for (uint32_t r = 0; r < pr->now.from_alloc.world && !has; r++)
			has = pr->now.from_alloc.ranks[r].node == n;
		ret->bytes += need;
		ret->bytes_least += has ? 0 : need;
		busiest = PTC_MAX(busiest, need);
	}
	ret->seconds = busiest / links->node_bytes_s;
}

/* A node's store must hold what it needs afterwards, and during the switch what it has of the old state as well. Copies
 * count, too, but would be given up. So if there are copies, only the later need is compared. */
static int fits_stores(const struct ptc_device_pool *p, const struct ptc_plan_layouts *l)
{
	bool copies = l->copied_at.ranks != l->from_alloc.ranks;

	for (size_t n = 0; n < p->nnames; n++) {
		int64_t bytes = copies ? l->need->in_bytes[n] : PTC_MAX(l->need->in_bytes[n], l->plan->peak_bytes[n]);

		if (p->ceilings[n] && (uint64_t)bytes > p->ceilings[n])
			return PTC_ENOSPC;
	}
	return 0;
}

static int price_layout(const struct ptc_pricer *pr, const struct ptc_config *to, const char *known,
			struct ptc_plan_layouts *l, const struct ptc_planning_links *links,
			struct ptc_planning_moves *ret)
{
	struct ptc_rates rates = { (int64_t)links->node_bytes_s, (int64_t)links->node_bytes_s,
				   (int64_t)links->within_bytes_s };
	ptc_auto_free char *text = ptc_malloc(PTC_CONFIG_TEXT_MAX);
	int rc = text && ptc_config_format(to, text, PTC_CONFIG_TEXT_MAX) == 0 ? 0 : PTC_ENOMEM;

	if (rc == 0)
		rc = ptc_plan_layout_get(pr->all, pr->v, known ? known : "", text, &l->spec, &l->to, &l->to_ref, NULL);
	if (rc == 0)
		rc = ptc_plan_place(pr->p, l, NULL);
	if (rc == 0)
		rc = fits_stores(pr->p, l);
	if (rc == 0)
		*ret = (struct ptc_planning_moves){ .bytes = (double)l->plan->between_nodes,
						    .bytes_least = (double)l->plan->between_nodes,
						    .seconds = (double)ptc_plan_time_ns(l->plan, &rates) / 1e9,
						    .exact = true };
	return rc;
}

/* The layout of a configuration, if it is known what its ranks hold. */
static int candidate_layout(const struct ptc_pricer *pr, const struct ptc_config *to, const char **ret_known)
{
	*ret_known = NULL;
	return pr->desc->spec.ntensors ? 0 : known_layout(&pr->v->manifest, to, ret_known);
}

static struct ptc_plan_layouts from_now(const struct ptc_pricer *pr)
{
	return (struct ptc_plan_layouts){ .spec = pr->now.spec,
					  .from = pr->now.from,
					  .from_alloc = pr->now.from_alloc,
					  .copied_at = pr->now.copied_at };
}

static void to_done(struct ptc_plan_layouts *l)
{
	l->from_alloc = (struct ptc_allocation){ 0 }; /* the pricer's */
	ptc_plan_layouts_done(l);
}

static int price_config(void *arg, const struct ptc_config *to, const struct ptc_planning_where *where,
			const struct ptc_planning_links *links, struct ptc_planning_moves *ret, uint32_t *ret_nodes)
{
	const struct ptc_pricer *all = arg;
	struct ptc_pricer pr = *all;
	struct ptc_plan_layouts l = from_now(all);
	struct ptc_device_pool left;
	const char *known = NULL;
	uint32_t world;
	int rc = ptc_config_world(to, &world, NULL);

	if (rc == 0)
		rc = candidate_layout(&pr, to, &known);
	if (rc == 0)
		rc = ptc_device_pool_without(all->p, where->leave, &left);
	if (rc)
		return rc;
	left.node_of_rank = where->nodes;
	pr.p = &left;
	if (world > left.ndevices) {
		rc = PTC_ENODEVICES;
	} else if (known || pr.desc->spec.ntensors) {
		rc = price_layout(&pr, to, known, &l, links, ret);
	} else {
		rc = ptc_plan_place_unknown(&left, to, world, &l, NULL);
		if (rc == 0)
			estimate_moves(&pr, to, &l.to_alloc, links, ret);
	}
	ptc_require(rc != 0 || l.to_alloc.ranks);
	for (uint32_t r = 0; rc == 0 && r < world; r++)
		ret_nodes[r] = l.to_alloc.ranks[r].node;
	to_done(&l);
	ptc_free(left.devices);
	return rc;
}

/* The bytes that nodes lack for sets of ranks, if it is known what the ranks will hold. */
static int lacks_config(void *arg, const struct ptc_config *to, const uint32_t *set_of, uint32_t nsets, double *ret)
{
	const struct ptc_pricer *pr = arg;
	struct ptc_plan_layouts l = from_now(pr);
	struct ptc_place_opts opts = ptc_device_pool_opts(pr->p);
	struct ptc_change *change = NULL;
	ptc_auto_free char *text = ptc_malloc(PTC_CONFIG_TEXT_MAX);
	ptc_auto_free int64_t *bytes = ptc_calloc((size_t)nsets * pr->p->nnames + 1, sizeof *bytes);
	const char *known = NULL;
	int rc = text && bytes && ptc_config_format(to, text, PTC_CONFIG_TEXT_MAX) == 0 ? 0 : PTC_ENOMEM;

	if (rc == 0)
		rc = candidate_layout(pr, to, &known);
	if (rc == 0 && !known && !pr->desc->spec.ntensors)
		rc = PTC_ENOTFOUND;
	if (rc == 0)
		rc = ptc_plan_layout_get(pr->all, pr->v, known ? known : "", text, &l.spec, &l.to, &l.to_ref, NULL);
	if (rc == 0)
		rc = ptc_change_new(l.from, l.to, &change, NULL);
	if (rc == 0)
		rc = ptc_change_set_bytes(change, &l.copied_at, &opts, set_of, nsets, bytes, NULL);
	for (size_t i = 0; rc == 0 && i < (size_t)nsets * pr->p->nnames; i++)
		ret[i] = (double)bytes[i];
	ptc_change_free(change);
	to_done(&l);
	return rc;
}

/* Whether every rank is on a device that may be used. */
static bool ranks_may_stay(const struct ptc_device_pool *p, const struct ptc_allocation *from)
{
	ptc_auto_free bool *used = ptc_calloc(p->ndevices + 1, sizeof *used);
	bool yes = used && from->world;
	size_t at;

	for (uint32_t r = 0; yes && r < from->world; r++)
		yes = ptc_device_pool_has(p, used, from->ranks[r], &at);
	return yes;
}

/* Of each node, whether no rank is there; NULL: none runs, or memory is short. */
static bool *nodes_left(const struct ptc_device_pool *p, const struct ptc_allocation *from)
{
	bool *leave = from->world ? ptc_calloc(p->nnames + 1, sizeof *leave) : NULL;

	for (size_t i = 0; leave && i < p->nnames; i++)
		leave[i] = true;
	for (uint32_t r = 0; leave && r < from->world; r++)
		leave[from->ranks[r].node] = false;
	return leave;
}

/* Of each rank, the node that it has now; NULL: none runs, or memory is short. */
static uint32_t *nodes_now(const struct ptc_allocation *from)
{
	uint32_t *nodes = from->world ? ptc_calloc(from->world, sizeof *nodes) : NULL;

	for (uint32_t r = 0; nodes && r < from->world; r++)
		nodes[r] = from->ranks[r].node;
	return nodes;
}

/* The question to the planner about a job on the devices of a pool. done: pricer_done. */
int ptc_pricer_ask(struct ptc_pricer *pr, const struct ptc_plan_request *req, struct ptc_planning_ask *ret,
		   struct ptc_error *err)
{
	struct ptc_planning_ask ask = { .uuid = pr->v->meta.uuid,
					.spec_hash = pr->v->meta.spec_hash,
					.desc = pr->desc,
					.now = pr->v->from.config,
					.live = pr->desc->has_run,
					.unattended = req->unattended,
					.gpus = req->gpus,
					.horizon_s = req->horizon_s,
					.objective = (enum ptc_objective)req->objective,
					.price = price_config,
					.lacks = lacks_config,
					.arg = pr,
					.gone = req->gone,
					.gone_arg = req->gone_arg };
	int rc = ptc_plan_layout_from(pr->all, pr->v, &pr->now, err);

	if (rc == 0 && ptc_device_pool_shape(pr->p, &pr->shape) != 0)
		rc = ptc_nomem(err);
	pr->now_leaves = rc ? NULL : nodes_left(pr->p, &pr->now.from_alloc);
	ask.shape = pr->shape;
	ask.now_leaves = pr->now_leaves;
	pr->now_nodes = rc ? NULL : nodes_now(&pr->now.from_alloc);
	ask.now_nodes = pr->now_nodes;
	ask.held = rc == 0 && pr->v->from.layout_hash[0] ? pr->now.spec : NULL;
	ask.held_id = ask.held ? pr->v->from.layout_hash : NULL;
	ask.may_stay = rc == 0 && !req->or_same && ranks_may_stay(pr->p, &pr->now.from_alloc);
	*ret = ask;
	return rc;
}

void ptc_pricer_done(struct ptc_pricer *pr)
{
	ptc_plan_layouts_done(&pr->now);
	ptc_planning_shape_done(&pr->shape);
	ptc_free(pr->now_leaves);
	ptc_free(pr->now_nodes);
}
