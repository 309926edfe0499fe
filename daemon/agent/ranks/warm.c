/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for a switch's tables, made while ranks still run. Happy path: the bytes that a generation's table takes here
 * follow from its layout. Before a generation has run for the first time, ranks have not declared its layout; then its
 * bytes are estimated from what this node holds of the generation before. Failure modes: none that anybody sees. What
 * is not made ready is made when the table is. */
#include "daemon/agent/calls/wire.h"
#include "daemon/agent/ranks/internal.h"
#include "daemon/store/store.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"

#define WARM_MS    5000 /* whoever asked for the switch waits, too */
#define WARM_BYTES (256 << 20)

/* The part of the state that ranks of a node hold, if each rank holds as much as any other: n of `of`. */
struct share {
	size_t n, of;
};

static bool share_make(const struct ptc_config *c, const struct ptc_allocation *a, uint32_t node, struct share *ret)
{
	uint32_t dp = c->zero ? c->dp : 1; /* else all that differ in dp alone hold the same */
	bool *seen;

	*ret = (struct share){ .of = (size_t)c->tp * c->pp * dp };
	seen = ptc_calloc(ret->of ? ret->of : 1, sizeof *seen);
	for (uint32_t r = 0; seen && r < a->world; r++) {
		struct ptc_coords k = ptc_config_coords(c, r);
		size_t at = ((size_t)k.tp * c->pp + k.pp) * dp + k.dp % dp;

		if (a->ranks[r].node != node || at >= ret->of || seen[at])
			continue;
		seen[at] = true;
		ret->n++;
	}
	ptc_free(seen);
	return seen != NULL;
}

/* A node that has all of the state receives nothing, and mostly refers to bytes that it has. */
static int64_t estimate(int64_t bytes, const struct share *had, const struct share *will)
{
	if (!had->n || had->n == had->of || !will->of)
		return 0;
	return (int64_t)((double)bytes * (double)had->of / (double)had->n * (double)will->n / (double)will->of);
}

static int64_t estimate_bytes(struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info,
			      const Ptc__V1__Generation *which)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	struct ptc_geometry_ref *from = NULL;
	struct ptc_geometry place = { 0 };
	const struct ptc_needs *needs;
	struct ptc_config *config = ptc_calloc(1, sizeof *config);
	struct share had, will;
	uint32_t self, next;
	int64_t bytes = 0;

	if (config && info->from && info->from->number && which != info->from &&
	    !ptc_geometry_get(agent, info, info->from, &from, &ignored) &&
	    !ptc_geometry_needs(&from->g, false, &needs, &ignored) &&
	    !ptc_geometry_node(&from->g, agent->node, &self, &ignored) &&
	    !ptc_geometry_place(agent, info, which, &place, config, &ignored) &&
	    !ptc_geometry_node(&place, agent->node, &next, &ignored) &&
	    share_make(ptc_layout_config(from->g.layout), &from->g.allocation, self, &had) &&
	    share_make(config, &place.allocation, next, &will))
		bytes = estimate(needs->bytes, &had, &will);
	ptc_geometry_done(&place);
	ptc_geometry_put(from);
	ptc_free(config);
	return bytes;
}

int64_t ptc_warm_bytes(struct ptc_agent *agent, const Ptc__V1__SwitchInfo *info, const Ptc__V1__Generation *which)
{
	struct ptc_geometry_ref *ref = NULL;
	const struct ptc_needs *needs;
	struct ptc_error ignored = PTC_ERROR_INIT;
	int64_t bytes = 0;

	if (!which || !which->number)
		return 0;
	if (!ptc_geometry_get(agent, info, which, &ref, &ignored) &&
	    !ptc_geometry_needs(&ref->g, false, &needs, &ignored))
		bytes = needs->bytes;
	ptc_geometry_put(ref);
	/* Nothing is known of tensors that only ranks declare. */
	return bytes || which->layout_hash[0] ? bytes : estimate_bytes(agent, info, which);
}

void ptc_warm(struct ptc_agent *agent, const char *uuid, int64_t bytes, ptc_stop_fn stop, void *arg)
{
	int64_t until = ptc_sys_now_ns() + WARM_MS * INT64_C(1000000), have = 0;
	struct ptc_error ignored = PTC_ERROR_INIT;
	int rc = 0;

	while (!rc && have < bytes && ptc_sys_now_ns() < until && !stop(arg)) {
		have = PTC_MIN(have + WARM_BYTES, bytes);
		if (ptc_fault("agent.warm.middle"))
			break;
		rc = ptc_store_warm(agent->env.store, uuid, (uint64_t)have, &ignored);
	}
}
