/* SPDX-License-Identifier: Apache-2.0 */
/* Two numbers of the memory rules from measured peaks, by weighted least squares. */
#include "planner/fit/fit.h"

#include "base/check.h"

#include <math.h>

#define PRIOR 0.1 /* rows' worth of holding on to the rules as they were */

struct sums {
	double aa, ab, bb, ar, br, largest;
};

/* peak - states = x activations + reserve, all divided by the peak. */
static void add_peak(const struct ptc_estimate *e, double states, double peak, struct sums *s)
{
	double a = e->activation_bytes / peak, b = 1 / peak, r = (peak - states) / peak;

	s->aa += a * a;
	s->ab += a * b;
	s->bb += b * b;
	s->ar += a * r;
	s->br += b * r;
	s->largest = PTC_MAX(s->largest, peak);
}

int ptc_fit_peaks(const struct ptc_peak_row *rows, size_t n, struct ptc_memory_rules *rules, struct ptc_error *err)
{
	struct sums s = { 0 };
	double unit, det, x, reserve;

	for (size_t i = 0; i < n; i++) {
		struct ptc_work w = *rows[i].work;
		char text[PTC_CAND_TEXT_MAX];
		struct ptc_estimate e;
		int rc;

		w.memory = *rules;
		w.memory.activations = 1;
		rc = ptc_estimate(&w, &rows[i].cand, &e, err);
		ptc_cand_format(&rows[i].cand, text);
		if (rc)
			return ptc_error_wrap(err, "the measured peak of %s", text);
		if (!isfinite(rows[i].peak_bytes) || rows[i].peak_bytes <= 0)
			return ptc_error_set(err, PTC_EINVAL, "the measured peak of %s is not a positive number", text);
		add_peak(&e, e.state_bytes, rows[i].peak_bytes, &s);
	}
	if (!n)
		return ptc_error_set(err, PTC_EINVAL, "no measured peak");
	unit = 1 / s.largest;
	s.aa += PRIOR;
	s.ar += PRIOR * rules->activations * (1 + rules->waste);
	s.bb += PRIOR * unit * unit;
	s.br += PRIOR * unit * unit * rules->reserve_bytes;
	det = s.aa * s.bb - s.ab * s.ab;
	x = (s.ar * s.bb - s.br * s.ab) / det;
	x = PTC_MAX(0.5, PTC_MIN(2.0, x));
	reserve = (s.br - s.ab * x) / s.bb;
	rules->activations = x;
	rules->waste = 0; /* it is in what was measured */
	rules->reserve_bytes = PTC_MAX(0.0, PTC_MIN(0.2 * s.largest, reserve));
	return 0;
}
