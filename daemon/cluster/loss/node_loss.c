/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: a node goes down, and after_ns later it is lost. Failure modes: none; see node_loss.h for what delays it.
 */
#include "daemon/cluster/loss/node_loss.h"

#include "base/check.h"

#define DECLARED_NS    INT64_C(1000000000)
#define UNREACHABLE_NS INT64_C(500000000)

void ptc_loss_tick(struct ptc_loss *l, bool heard, int64_t now_ns)
{
	bool paused = l->tick_ns && now_ns - l->tick_ns > PTC_LOSS_PAUSE_NS;

	if (!heard)
		l->since_ns = 0;
	else if (!l->since_ns || paused)
		l->since_ns = now_ns;
	if (heard && !l->begun) {
		l->begun = true;
		l->hold_ns = now_ns + PTC_LOSS_RETURN * l->after_ns;
	}
	l->tick_ns = now_ns;
}

void ptc_loss_node_ended(struct ptc_loss *l, uint32_t up, int64_t now_ns)
{
	if (!l->first_ns || now_ns - l->first_ns > l->after_ns) {
		l->first_ns = now_ns;
		l->members = up + 1;
		l->ended = 0;
	}
	l->ended++;
	if (2 * l->ended > l->members)
		l->most_ns = l->hold_ns = now_ns + PTC_LOSS_RETURN * l->after_ns;
}

bool ptc_loss_is(const struct ptc_loss *l, int64_t down_ns, bool declared, int64_t now_ns)
{
	if (declared)
		return true;
	if (!l->since_ns || now_ns < l->hold_ns)
		return false;
	return now_ns - PTC_MAX(down_ns, l->since_ns) >= l->after_ns;
}

bool ptc_loss_early(const struct ptc_loss *l, int64_t now_ns)
{
	return l->since_ns && now_ns >= l->most_ns && now_ns - l->since_ns >= PTC_MIN(l->after_ns, PTC_LOSS_SETTLES_NS);
}

bool ptc_loss_early_if(const struct ptc_loss *l, uint32_t up, uint32_t ending, int64_t now_ns)
{
	struct ptc_loss then = *l;

	for (uint32_t i = 0; i < ending && i < up; i++)
		ptc_loss_node_ended(&then, up - i - 1, now_ns);
	return ptc_loss_early(&then, now_ns);
}

bool ptc_refusals_saw(struct ptc_refusals *r, bool refused, int64_t now_ns)
{
	if (!refused || now_ns - r->last_ns > PTC_REFUSALS_LATE_NS)
		*r = (struct ptc_refusals){ 0 };
	r->last_ns = now_ns;
	if (refused && r->n++ == 0)
		r->first_ns = now_ns;
	return r->n >= PTC_REFUSALS && now_ns - r->first_ns >= PTC_REFUSED_NS;
}

int64_t ptc_loss_stand_ns(int64_t after_ns, bool declared, bool unreachable, double step_s)
{
	int64_t steps = (int64_t)(PTC_LOSS_STEPS * 1e9 * step_s);
	int64_t window = declared ? DECLARED_NS : PTC_MAX(after_ns, steps);

	return unreachable && step_s > 0 ? PTC_MIN(window, PTC_MAX(UNREACHABLE_NS, steps)) : window;
}
