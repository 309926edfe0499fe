/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that a switch to a candidate moves, on the profile's nodes. The ranks of --now lie on devices in order.
 *
 * Happy path: the job's file describes its state, or a probe has found the layout. Then layouts, placement and plan of
 * reshard/ give the exact bytes. For a configuration that no probe has looked at, there are bounds: a node needs the
 * share of each replica that its ranks have, and already has all of this share or nothing. Failure: a candidate without
 * a possible layout is left out. */
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

/* PTC_ENOTFOUND: layouts are of probes, and none is of this configuration. */
static int layout_of(const struct ctl_pricer *p, const struct ptc_cand *c, const char *what, struct ptc_layout **ret,
		     struct ptc_error *err)
{
	ptc_auto_free struct ptc_config *config = ptc_calloc(1, sizeof *config);
	int rc = config ? ptc_cand_config(&p->a->work, c, config, err) : ptc_nomem(err);

	if (rc)
		return rc;
	return p->o.ndeclared ? ctl_offline_declared(&p->o, what, config, true, ret, err)
			      : ptc_layout_new(&p->o.job.spec, config, ret, err);
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
		rc = layout_of(p, now, "--now", &p->from, err);
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

static int count(const struct ctl_pricer *p, const struct ptc_layout *layout, struct ctl_moves *ret)
{
	const struct ctl_cluster *k = &p->o.cluster;
	struct ptc_place_opts opts = { .devices = k->devices, .ndevices = k->ndevices, .nnodes = k->nodes };
	struct ptc_plan_opts counted = { 0 };
	struct ptc_rates rates = rates_of(&p->a->profile.cluster);
	struct ptc_change *change = NULL;
	struct ptc_allocation then = { 0 };
	struct ptc_plan *plan = NULL;
	int64_t gap;
	int rc = ptc_change_new(p->from, layout, &change, NULL);

	if (!rc)
		rc = ptc_change_place(change, &p->was, &opts, &then, &gap, NULL);
	if (!rc)
		rc = ptc_plan_stream(change, &p->was, &then, k->nodes, NULL, &counted, &plan, NULL);
	if (!rc)
		*ret = (struct ctl_moves){ .bytes = (double)plan->between_nodes,
					   .bytes_least = (double)plan->between_nodes,
					   .seconds = (double)ptc_plan_time_ns(plan, &rates) / 1e9,
					   .exact = true };
	ptc_plan_free(plan);
	ptc_allocation_done(&then);
	ptc_change_free(change);
	return rc;
}

static int estimate(const struct ctl_pricer *p, const struct ptc_cand *to, struct ctl_moves *ret)
{
	const struct ctl_cluster *k = &p->o.cluster;
	const struct ptc_spec *s = &p->o.job.spec;
	uint32_t world = ptc_cand_devices(to);
	double state = 0, busiest = 0;

	if (world > k->ndevices)
		return PTC_ENODEVICES;
	for (size_t i = 0; i < ptc_spec_items(s); i++)
		state += (double)ptc_item_bytes(s, i);
	*ret = (struct ctl_moves){ 0 };
	for (uint32_t n = 0; n < k->nodes && n * k->per_node < world; n++) {
		uint32_t ranks = PTC_MIN(world - n * k->per_node, k->per_node);
		double need = state * PTC_MIN(1.0, ranks / ((double)to->tp * to->pp));

		ret->bytes += need;
		ret->bytes_least += n * k->per_node < p->was.world ? 0 : need;
		busiest = PTC_MAX(busiest, need);
	}
	ret->seconds = busiest / p->a->profile.cluster.node_bytes_s;
	return 0;
}

int ctl_moves(const struct ctl_pricer *p, const struct ptc_cand *to, struct ctl_moves *ret)
{
	struct ptc_layout *layout = NULL;
	int rc = layout_of(p, to, "", &layout, NULL);

	if (rc == PTC_ENOTFOUND)
		return estimate(p, to, ret);
	if (!rc)
		rc = count(p, layout, ret);
	ptc_layout_free(layout);
	return rc;
}

double ctl_pricer_pause(const struct ctl_pricer *p)
{
	return p->pause_s;
}

int ctl_price(void *arg, const struct ptc_cand *to, struct ptc_switch_price *ret)
{
	const struct ctl_pricer *p = arg;
	struct ctl_moves m;
	int rc = ctl_moves(p, to, &m);

	if (!rc)
		*ret = (struct ptc_switch_price){ .down_s = p->pause_s + m.seconds, .bytes = m.bytes };
	return rc;
}
