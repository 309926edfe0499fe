/* SPDX-License-Identifier: Apache-2.0 */
/* What a sample costs by its length, if samples are packed. Happy path: times are computed for micro-batches of the
 * same number of tokens and ever shorter sequences. So matrices are equally efficient, and only attention takes less
 * time. The time of a token is then a straight line over the length. Failure: a time that falls with the length counts
 * as constant. */
#include "planner/cost/stages.h"

#include "base/check.h"

#include <math.h>

#define POINTS 4 /* whole, half, quarter, eighth */

/* Seconds of all layers and the head for a token of `parts` times as many sequences, which are as much shorter. */
static double token_seconds(const struct ptc_work *w, const struct ptc_cand *c, uint32_t parts, double *ret_length)
{
	struct ptc_model m = *w->model;
	struct ptc_work work = *w;
	struct ptc_cand more = *c;
	struct ptc_layers l;
	double seconds;

	m.seq = PTC_MAX(1u, m.seq / parts);
	for (uint32_t i = 0; i < m.nkinds; i++) /* of an encoder, which gets shorter inputs, too */
		if (m.kinds[i].seq)
			m.kinds[i].seq = PTC_MAX(1u, m.kinds[i].seq / parts);
	work.model = &m;
	more.micro_batch = c->micro_batch * parts;
	ptc_cost_layers(&work, &more, &l);
	seconds = l.head_s;
	for (uint32_t i = 0; i < m.layers; i++) {
		const struct ptc_layer_cost *k = &l.kind[m.kind[i]];

		seconds += k->compute + k->tp + k->cp + k->ep;
	}
	*ret_length = m.seq;
	return seconds / more.micro_batch / m.seq;
}

struct ptc_length_cost ptc_length_cost(const struct ptc_work *w, const struct ptc_cand *c)
{
	double s[POINTS], t[POINTS], mean_s = 0, mean_t = 0, ss = 0, st = 0, a, b, scale, seq = w->model->seq;

	for (uint32_t i = 0; i < POINTS; i++) {
		t[i] = token_seconds(w, c, 1u << i, &s[i]);
		mean_s += s[i] / POINTS;
		mean_t += t[i] / POINTS;
	}
	for (uint32_t i = 0; i < POINTS; i++) {
		ss += (s[i] - mean_s) * (s[i] - mean_s);
		st += (s[i] - mean_s) * (t[i] - mean_t);
	}
	b = ss > 0 ? PTC_MAX(0.0, st / ss) : 0;
	a = PTC_MAX(0.0, mean_t - b * mean_s);
	if (!(a + b > 0) || !isfinite(a + b))
		return (struct ptc_length_cost){ 0 };
	scale = (seq > 65536 ? 0x1p48 : 0x1p40) / (a * seq + b * seq * seq);
	return (struct ptc_length_cost){ (uint64_t)llround(a * scale), (uint64_t)llround(b * scale) };
}
