/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path: a node is never lost, or once. Failure modes: none; quarantine.h has the rule. */
#include "daemon/cluster/loss/quarantine.h"

#include "base/check.h"

#define UNPUNISHED 1 /* losses */

#define SAME_NS INT64_C(2000000000) /* two daemons see a return, and round its time, so far apart at most */

void ptc_quarantine_lost(struct ptc_quarantine *q, int64_t life, int64_t now_ns)
{
	if (q->losses && q->life >= life)
		return;
	if (q->losses && now_ns - PTC_MAX(q->lost_ns, q->until_ns) > PTC_QUARANTINE_FORGET_NS)
		q->losses = 0;
	if (q->losses < UINT32_MAX)
		q->losses++;
	q->life = life;
	q->lost_ns = now_ns;
}

void ptc_quarantine_back(struct ptc_quarantine *q, int64_t life, int64_t first_ns, int64_t now_ns)
{
	int64_t length = PTC_MIN(first_ns, PTC_QUARANTINE_MAX_NS);

	if (q->losses <= UNPUNISHED || q->life != life)
		return;
	for (uint32_t i = UNPUNISHED + 1; i < q->losses && length && length < PTC_QUARANTINE_MAX_NS; i++)
		length = PTC_MIN(2 * length, PTC_QUARANTINE_MAX_NS);
	q->until_ns = now_ns + length;
}

int64_t ptc_quarantine_left(const struct ptc_quarantine *q, int64_t now_ns)
{
	return PTC_MAX(q->until_ns - now_ns, 0);
}

/* Whether the first three say more than the others. */
static bool is_more(uint32_t losses, int64_t life, int64_t until_ns, uint32_t than_losses, int64_t than_life,
		    int64_t than_until_ns)
{
	if (life != than_life)
		return life > than_life;
	if (losses != than_losses)
		return losses > than_losses;
	return until_ns - than_until_ns > SAME_NS;
}

void ptc_quarantine_take(struct ptc_quarantine *q, const struct ptc_quarantine *now)
{
	q->kept.losses = now->losses;
	q->kept.life = now->life;
	q->kept.until_ns = now->until_ns;
	if (!is_more(now->losses, now->life, now->until_ns, q->losses, q->life, q->until_ns))
		return;
	q->losses = now->losses;
	q->life = now->life;
	q->lost_ns = now->lost_ns;
	q->until_ns = now->until_ns;
}

bool ptc_quarantine_ahead(const struct ptc_quarantine *q)
{
	return q->losses && is_more(q->losses, q->life, q->until_ns, q->kept.losses, q->kept.life, q->kept.until_ns);
}
