/* SPDX-License-Identifier: Apache-2.0 */
/* Advice without a model: configurations as they were measured, and the same with other dp, by the number of
 * micro-batches that a rank then has. Nothing is said of memory. Failure: no configuration was measured that has this
 * batch and fits on so many devices. */
#include "client/ctl/plans/advise/advise.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/number/search.h"

#include <stdlib.h>

#define SHOWN 10

struct scaled {
	struct ptc_cand cand;
	double step_s;
	bool measured;
};

PTC_COMPARE(faster, struct scaled, PTC_THEN(PTC_ORDER(a->step_s, b->step_s), PTC_ORDER(b->measured, a->measured)))

static double micro_batches(const struct ctl_advice *a, const struct ptc_cand *c)
{
	uint64_t once = (uint64_t)c->micro_batch * c->dp;
	uint64_t n = (a->work.global_batch + once - 1) / once;

	return (double)n;
}

/* One measured step, with each dp that fits; the fastest of those that were not measured, and itself. */
static size_t scale(const struct ctl_advice *a, const struct ptc_plan_measured *m, struct scaled *ret)
{
	struct ptc_cand c = m->cand;
	uint64_t one = (uint64_t)c.tp * c.cp * c.pp, most = a->last / one, groups = (uint64_t)c.ep * c.etp;
	double best = 0;
	size_t n = 0;

	if (ptc_cand_devices(&m->cand) <= a->last)
		ret[n++] = (struct scaled){ m->cand, m->step_s, true };
	ret[n].step_s = 0;
	for (c.dp = 1; c.dp <= most && c.dp <= a->work.global_batch; c.dp++) {
		double step = m->step_s * micro_batches(a, &c) / micro_batches(a, &m->cand);

		if (c.dp == m->cand.dp || (uint64_t)c.tp * c.cp * c.dp % groups || (best > 0 && step >= best))
			continue;
		best = step;
		ret[n] = (struct scaled){ c, step, false };
	}
	return n + (best > 0);
}

static void show(const struct ctl_advice *a, const struct scaled *v, size_t n, const char *why)
{
	char text[PTC_CAND_TEXT_MAX];

	if (a->out)
		ptc_buf_printf(a->out,
			       "{\"version\":1,\"gpus\":%u,\"calibrated\":false,\"model\":false,\"candidates\":[",
			       a->last);
	else
		printf("no model (%s):\nsteps as measured; where dp differs, scaled by a rank's micro-batches alone. "
		       "Memory is not "
		       "known.\n%-60s %7s %11s %9s\n",
		       why, "CONFIGURATION", "DEVICES", "STEP", "SAMPLES/S");
	for (size_t i = 0; i < n; i++) {
		ptc_cand_format(&v[i].cand, text);
		if (a->out)
			ptc_buf_printf(a->out, "%s{\"config\":\"%s\",\"devices\":%u,\"step_s\":%.9g,\"measured\":%s}",
				       i ? ",\n" : "\n", text, ptc_cand_devices(&v[i].cand), v[i].step_s,
				       v[i].measured ? "true" : "false");
		else
			printf("%-60s %7u %9.3f s %9.1f  %s\n", text, ptc_cand_devices(&v[i].cand), v[i].step_s,
			       a->work.global_batch / v[i].step_s, v[i].measured ? "measured" : "dp scaled");
	}
	if (a->out)
		ptc_buf_puts(a->out, "]}\n");
}

int ctl_advise_measured(const struct ctl_advice *a, const char *why, struct ptc_error *err)
{
	ptc_auto_free struct scaled *v = ptc_calloc(2 * a->profile.nmeasured + 2, sizeof *v);
	size_t n = 0;

	if (!v)
		return ptc_nomem(err);
	for (size_t i = 0; i < a->profile.nmeasured; i++)
		if (a->profile.measured[i].step_s > 0 && a->profile.measured[i].global_batch == a->work.global_batch)
			n += scale(a, &a->profile.measured[i], v + n);
	if (!n)
		return ptc_error_set(err, PTC_EINVAL,
				     "%s; and no step of batch %u was measured that %u devices can run", why,
				     a->work.global_batch, a->last);
	qsort(v, n, sizeof *v, faster);
	show(a, v, PTC_MIN(n, (size_t)SHOWN), why);
	return 0;
}
