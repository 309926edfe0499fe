/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: a node is never lost, or once. Failure modes: none; quarantine.h has the rule. */
#include "daemon/cluster/loss/quarantine.h"

#include "base/check.h"

#define UNPUNISHED 1 /* losses */

static bool has_counted(const struct ptc_quarantine *q, int64_t down_ns)
{
	return q->losses && q->lost_ns >= down_ns;
}

void ptc_quarantine_lost(struct ptc_quarantine *q, int64_t down_ns, int64_t now_ns)
{
	if (has_counted(q, down_ns))
		return;
	if (q->losses && now_ns - PTC_MAX(q->lost_ns, q->until_ns) > PTC_QUARANTINE_FORGET_NS)
		q->losses = 0;
	if (q->losses < UINT32_MAX)
		q->losses++;
	q->lost_ns = now_ns;
}

void ptc_quarantine_back(struct ptc_quarantine *q, int64_t down_ns, int64_t first_ns, int64_t now_ns)
{
	int64_t length = PTC_MIN(first_ns, PTC_QUARANTINE_MAX_NS);

	if (q->losses <= UNPUNISHED || !has_counted(q, down_ns))
		return;
	for (uint32_t i = UNPUNISHED + 1; i < q->losses && length && length < PTC_QUARANTINE_MAX_NS; i++)
		length = PTC_MIN(2 * length, PTC_QUARANTINE_MAX_NS);
	q->until_ns = now_ns + length;
}

int64_t ptc_quarantine_left(const struct ptc_quarantine *q, int64_t now_ns)
{
	return PTC_MAX(q->until_ns - now_ns, 0);
}
