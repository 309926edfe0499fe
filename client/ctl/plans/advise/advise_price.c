/* SPDX-License-Identifier: Apache-2.0 */
/* What a switch to a candidate moves, exactly, where the job's file describes its state: layouts, placement and plan of
 * reshard/ on the profile's nodes, ranks of --now on devices in order. Failure: a candidate whose layout cannot be is
 * left out. */
#include "client/ctl/plans/advise/advise.h"
#include "client/ctl/plans/offline.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "planner/search/as_config.h"

#include <string.h>

struct ctl_pricer {
	struct ctl_offline o;
	struct ptc_layout *from;
	struct ptc_allocation was;
	const struct ctl_advice *a;
	double pause_s;
};

static int take_cluster(struct ctl_cluster *k, const struct ptc_cluster_profile *profile, struct ptc_error *err)
{
	uint32_t n = ptc_cluster_profile_devices(profile);

	k->per_node = profile->per_node;
	k->nodes = n / k->per_node;
	k->ndevices = n;
	k->devices = ptc_calloc(n, sizeof *k->devices);
	if (!k->devices)
		return ptc_nomem(err);
	for (uint32_t i = 0; i < n; i++)
		k->devices[i] = (struct ptc_device){ .node = i / k->per_node, .index = i % k->per_node };
	return 0;
}

static int layout_of(const struct ctl_pricer *p, const struct ptc_cand *c, struct ptc_layout **ret,
		     struct ptc_error *err)
{
	ptc_auto_free struct ptc_config *config = ptc_calloc(1, sizeof *config);
	int rc = config ? ptc_cand_config(&p->a->work, c, config, err) : ptc_nomem(err);

	return rc ? rc : ptc_layout_new(&p->o.job.spec, config, ret, err);
}

int ctl_pricer_new(const struct ctl *c, const struct ctl_advice *a, const struct ptc_cand *now, double pause_s,
		   struct ctl_pricer **ret, struct ptc_error *err)
{
	struct ctl_pricer *p = ptc_calloc(1, sizeof *p);
	int rc;

	if (!p)
		return ptc_nomem(err);
	p->a = a;
	p->pause_s = pause_s;
	rc = ctl_offline_open(c, &p->o, err);
	if (!rc)
		rc = take_cluster(&p->o.cluster, &a->profile.cluster, err);
	if (!rc)
		rc = layout_of(p, now, &p->from, err);
	if (!rc)
		rc = ctl_offline_in_order(&p->o, p->from, &p->was, err);
	if (rc)
		ctl_pricer_free(p);
	else
		*ret = p;
	return rc;
}

struct ctl_pricer *ctl_pricer_free(struct ctl_pricer *p)
{
	if (!p)
		return NULL;
	ptc_allocation_done(&p->was);
	ptc_layout_free(p->from);
	ctl_offline_done(&p->o);
	ptc_free(p);
	return NULL;
}

/* From nodes' bandwidth, all of it, and a device's within, times a node's devices. */
static struct ptc_rates rates_of(const struct ptc_cluster_profile *c)
{
	int64_t node = (int64_t)c->node_bytes_s;

	return (struct ptc_rates){ node, node, (int64_t)(c->intra_bytes_s * c->per_node) };
}

int ctl_price_exactly(void *arg, const struct ptc_cand *to, struct ptc_switch_price *ret)
{
	struct ctl_pricer *p = arg;
	const struct ctl_cluster *k = &p->o.cluster;
	struct ptc_place_opts opts = { .devices = k->devices, .ndevices = k->ndevices, .nnodes = k->nodes };
	struct ptc_plan_opts counted = { 0 };
	struct ptc_rates rates = rates_of(&p->a->profile.cluster);
	struct ptc_layout *layout = NULL;
	struct ptc_change *change = NULL;
	struct ptc_allocation then = { 0 };
	struct ptc_plan *plan = NULL;
	int64_t gap;
	int rc = layout_of(p, to, &layout, NULL);

	if (!rc)
		rc = ptc_change_new(p->from, layout, &change, NULL);
	if (!rc)
		rc = ptc_change_place(change, &p->was, &opts, &then, &gap, NULL);
	if (!rc)
		rc = ptc_plan_stream(change, &p->was, &then, k->nodes, NULL, &counted, &plan, NULL);
	if (!rc)
		*ret = (struct ptc_switch_price){ .down_s = p->pause_s + (double)ptc_plan_time_ns(plan, &rates) / 1e9,
						  .bytes = (double)plan->between_nodes };
	ptc_plan_free(plan);
	ptc_allocation_done(&then);
	ptc_change_free(change);
	ptc_layout_free(layout);
	return rc;
}
