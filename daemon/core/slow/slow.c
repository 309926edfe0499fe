/* SPDX-License-Identifier: Apache-2.0 */
/* See slow.h. Happy path: the ranks that tell of their work are sorted by role and value; each role's median, and the
 * median of the distances to it, decide. Failure modes: none. A rank that cannot be compared is unknown; after an
 * unknown window, windows in a row are counted anew. */
#include "daemon/core/slow/slow.h"

#include "base/check.h"

#include <math.h>
#include <stdlib.h>

#define NORMAL 1.4826 /* of normal numbers: the standard deviation, over the median distance to the median */

void ptc_slow_see(struct ptc_slow_rank *r, uint64_t step, const double *own_s)
{
	bool tells = own_s && isfinite(*own_s) && *own_s >= 0;

	r->now = (struct ptc_slow_sample){ .known = true, .tells = tells, .step = step, .own_s = tells ? *own_s : 0 };
	if (!r->began.known)
		r->began = r->now;
}

static bool window_over(const struct ptc_slow_rank *ranks, size_t n, uint64_t steps)
{
	for (size_t i = 0; i < n; i++)
		if (!ranks[i].now.known || ranks[i].now.step < ranks[i].began.step ||
		    ranks[i].now.step - ranks[i].began.step < steps)
			return false;
	return n > 0;
}

/* The rank's own seconds a step, in this window. */
static bool comparable(struct ptc_slow_rank *r)
{
	r->word = PTC_SLOW_UNKNOWN;
	if (!r->began.tells || !r->now.tells || !(r->now.own_s > r->began.own_s))
		return false;
	r->own_s = (r->now.own_s - r->began.own_s) / (double)(r->now.step - r->began.step);
	return true;
}

static int by_role(const void *a, const void *b)
{
	const struct ptc_slow_scratch *x = a, *y = b;

	if (x->role != y->role)
		return x->role < y->role ? -1 : 1;
	return (x->value > y->value) - (x->value < y->value);
}

static double middle(const struct ptc_slow_scratch *sorted, size_t n)
{
	return (sorted[(n - 1) / 2].value + sorted[n / 2].value) / 2;
}

/* s: the ranks of one role that can be compared, sorted. */
static void judge_role(struct ptc_slow_rank *ranks, struct ptc_slow_scratch *s, size_t n, uint32_t percent)
{
	double median = middle(s, n), spread;

	for (size_t i = 0; i < n; i++)
		s[i].value = fabs(s[i].value - median);
	qsort(s, n, sizeof *s, by_role);
	spread = PTC_SLOW_SPREADS * NORMAL * middle(s, n);
	for (size_t i = 0; i < n; i++) {
		struct ptc_slow_rank *r = &ranks[s[i].rank];
		double more = r->own_s - median, limit = median * percent / 100;

		r->median_s = median;
		if (n < PTC_SLOW_RANKS_MIN)
			continue;
		r->word = more > limit && more > spread ? PTC_SLOW_OVER
			  : more <= limit / 2           ? PTC_SLOW_WITHIN
							: PTC_SLOW_BETWEEN;
	}
}

static void count_window(struct ptc_slow_rank *r)
{
	r->over = r->word == PTC_SLOW_OVER ? PTC_MIN(r->over + 1, (uint32_t)PTC_SLOW_WINDOWS) : 0;
	r->within = r->word == PTC_SLOW_WITHIN ? PTC_MIN(r->within + 1, (uint32_t)PTC_SLOW_WINDOWS) : 0;
	if (r->over == PTC_SLOW_WINDOWS)
		r->slow = true;
	if (r->within == PTC_SLOW_WINDOWS)
		r->slow = false;
	r->began = r->now;
}

bool ptc_slow_judge(struct ptc_slow_rank *ranks, size_t n, uint64_t steps, uint32_t percent,
		    struct ptc_slow_scratch *scratch)
{
	size_t m = 0;

	if (!window_over(ranks, n, steps))
		return false;
	for (size_t i = 0; i < n; i++)
		if (comparable(&ranks[i]))
			scratch[m++] = (struct ptc_slow_scratch){ ranks[i].role, (uint32_t)i, ranks[i].own_s };
	qsort(scratch, m, sizeof *scratch, by_role);
	for (size_t i = 0, end; i < m; i = end) {
		for (end = i; end < m && scratch[end].role == scratch[i].role; end++)
			;
		judge_role(ranks, scratch + i, end - i, percent);
	}
	for (size_t i = 0; i < n; i++)
		count_window(&ranks[i]);
	return true;
}
