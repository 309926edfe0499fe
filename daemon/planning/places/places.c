/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: consecutive ranks form slots. For each slot this room asks which bytes each node lacks. Then
 * planner/mapping searches nodes for the slots; the cost model gives the step times, with the slowest link of each
 * class of traffic. Failure: the ranks do not fit; the candidate is impossible; memory. */
#include "daemon/planning/places/places.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"

#include <math.h>
#include <string.h>

/* The estimate with links of that speed; INFINITY: on other kinds of devices the candidate would be better, so that it
 * is none for this placement. */
static double estimate(const struct ptc_places_ask *a, const double bytes_s[PTC_LINK_CLASSES], struct ptc_places *ret)
{
	struct ptc_cluster_profile cluster = *a->work->cluster;
	struct ptc_work work = *a->work;

	memcpy(cluster.class_bytes_s, bytes_s, sizeof cluster.class_bytes_s);
	work.cluster = &cluster;
	if (ptc_estimate(&work, a->cand, &ret->est, NULL) != 0)
		return INFINITY;
	if (cluster.nkinds > 1 &&
	    (ret->est.place.first != a->on.first || ret->est.place.by_data != a->on.by_data ||
	     ret->est.place.kind[0] != a->on.kind[0] || (a->on.first && ret->est.place.kind[1] != a->on.kind[1])))
		return INFINITY;
	ret->sd = PTC_UNCALIBRATED_SD;
	if (a->cal)
		ret->est.step_s *= ptc_calibration_factor(a->cal, &work, a->cand, &ret->sd);
	memcpy(ret->bytes_s, bytes_s, sizeof ret->bytes_s);
	return ret->est.step_s;
}

static double step_s(void *arg, const double bytes_s[PTC_LINK_CLASSES])
{
	const struct ptc_places_ask *a = arg;
	struct ptc_places scratch;
	double s = estimate(a, bytes_s, &scratch);

	return isinf(s) ? 1e18 : s;
}

int ptc_places_estimate(const struct ptc_places_ask *ask, const uint32_t *node, struct ptc_places *ret,
			struct ptc_error *err)
{
	double bytes_s[PTC_LINK_CLASSES];

	ptc_nodes_rates(ask->cand, node, ask->nnodes, ask->bytes_s, bytes_s);
	memset(ret, 0, sizeof *ret);
	return isinf(estimate(ask, bytes_s, ret))
		       ? ptc_error_set(err, PTC_EINVAL, "the model cannot be cut so on these devices")
		       : 0;
}

static int find(const struct ptc_places_ask *ask, const struct ptc_slots *slots, struct ptc_places *ret,
		struct ptc_error *err)
{
	ptc_auto_free double *lacks = ptc_calloc((size_t)slots->n * ask->nnodes + 1, sizeof *lacks);
	ptc_auto_free uint32_t *node = ptc_calloc((size_t)slots->n + 1, sizeof *node);
	struct ptc_nodes_ask of = { .slots = slots,
				    .nnodes = ask->nnodes,
				    .devices = ask->devices,
				    .kind = ask->work->cluster->nkinds > 1 ? ask->kind : NULL,
				    .bytes_s = ask->bytes_s,
				    .lacks_bytes_s = ask->lacks_bytes_s,
				    .horizon_s = ask->horizon_s,
				    .pause_s = ask->pause_s,
				    .step_s = step_s,
				    .arg = (void *)(uintptr_t)ask }; /* step_s only reads */
	struct ptc_nodes found;
	uint32_t *ranks = ptc_calloc((size_t)slots->world + 1, sizeof *ranks);
	int rc = lacks && node && ranks ? 0 : ptc_nomem(err);

	if (rc == 0 && ask->lacks && ask->lacks(ask->arg, slots->slot, slots->n, lacks) == 0)
		of.lacks = lacks;
	if (rc == 0)
		rc = ptc_nodes_find(&of, node, &found, err);
	for (uint32_t r = 0; rc == 0 && r < slots->world; r++)
		ranks[r] = node[slots->slot[r]];
	if (rc == 0)
		rc = ptc_places_estimate(ask, ranks, ret, err);
	if (rc) {
		ptc_free(ranks);
		return rc;
	}
	ret->node = ranks;
	ret->gap = found.gap;
	return 0;
}

int ptc_places_find(const struct ptc_places_ask *ask, struct ptc_places *ret, struct ptc_error *err)
{
	struct ptc_slots slots;
	int rc = ptc_slots_new(ask->cand, &ask->on, ask->work->cluster->per_node, &slots, err);

	if (rc)
		return rc;
	rc = find(ask, &slots, ret, err);
	ptc_slots_done(&slots);
	return rc;
}
