/* SPDX-License-Identifier: Apache-2.0 */
/* Measured steps, scaled to other dp. A measured candidate keeps its step time; another one gets its time from the
 * measured row whose dp is nearest. No failure modes. */
#include "planner/search/scaled.h"

#include "base/check.h"

#include <string.h>

static double micro_batches(uint32_t global_batch, const struct ptc_cand *c)
{
	uint64_t once = (uint64_t)c->micro_batch * c->dp, n = (global_batch + once - 1) / once;

	return (double)n;
}

static bool but_for_dp(const struct ptc_cand *a, const struct ptc_cand *b)
{
	struct ptc_cand same = *b;

	same.dp = a->dp;
	return !ptc_cand_compare(a, &same);
}

/* Of two measured rows, which says more of so many replicas. */
static bool nearer(uint32_t dp, uint32_t a, uint32_t b)
{
	double x = a > dp ? (double)a / dp : (double)dp / a, y = b > dp ? (double)b / dp : (double)dp / b;

	return x < y;
}

bool ptc_scaled_predict(const struct ptc_scaled_row *rows, size_t n, uint32_t global_batch, const struct ptc_cand *c,
			struct ptc_choice *ret)
{
	const struct ptc_scaled_row *best = NULL;
	double m = micro_batches(global_batch, c);

	for (size_t i = 0; i < n; i++)
		if (but_for_dp(c, &rows[i].cand) && (!best || nearer(c->dp, rows[i].cand.dp, best->cand.dp)))
			best = &rows[i];
	if (!best)
		return false;
	*ret = (struct ptc_choice){ .cand = *c, .sd = PTC_SCALED_SD };
	ret->est.micro_batches = (uint32_t)m;
	ret->est.step_s = best->step_s * m / micro_batches(global_batch, &best->cand);
	ret->est.compute_s = ret->est.step_s;
	if (best->cand.dp == c->dp)
		ret->sd = 0.05; /* runs of one configuration differ by as much */
	return true;
}

static bool may(const struct ptc_degrees *d, uint32_t v)
{
	for (uint32_t i = 0; i < d->n; i++)
		if (d->v[i] == v)
			return true;
	return d->n == 0;
}

/* Sorted into what is there; a candidate that is there already stays. */
static void insert(struct ptc_choice *v, size_t *n, size_t max, const struct ptc_choice *c)
{
	size_t at = *n;

	for (size_t i = 0; i < *n; i++)
		if (!ptc_cand_compare(&v[i].cand, &c->cand))
			return;
	while (at > 0 && ptc_choice_compare(c, &v[at - 1]) < 0)
		at--;
	if (at == max)
		return;
	*n = PTC_MIN(*n + 1, max);
	memmove(&v[at + 1], &v[at], (*n - at - 1) * sizeof *v);
	v[at] = *c;
}

size_t ptc_scaled_search(const struct ptc_scaled_row *rows, size_t n, uint32_t global_batch,
			 const struct ptc_degrees *dp, uint32_t devices, struct ptc_choice *ret, size_t max)
{
	size_t found = 0;

	for (size_t i = 0; i < n; i++) {
		struct ptc_cand c = rows[i].cand;
		uint64_t one = (uint64_t)c.tp * c.cp * c.pp, groups = (uint64_t)c.ep * c.etp, most = devices / one;
		struct ptc_choice x;

		/* more replicas than samples have nothing to do */
		for (c.dp = 1; c.dp <= most && c.dp <= global_batch; c.dp++)
			if ((uint64_t)c.tp * c.cp * c.dp % groups == 0 && (may(dp, c.dp) || c.dp == rows[i].cand.dp) &&
			    ptc_scaled_predict(rows, n, global_batch, &c, &x))
				insert(ret, &found, max, &x);
	}
	return found;
}
