/* SPDX-License-Identifier: Apache-2.0 */
/* The events that a commit of a recovery writes in its own transaction, so that they are told once, whoever goes on
 * with its switch. Happy path and failure modes: recovery.h, ptc_recovery_event. Loop thread. */
#include "daemon/controller/internal.h"

#include <stdio.h>

static struct ptc_event_line *went_back(const struct ptc_controller *ctl, const struct ptc_record_doc *next)
{
	const char *why = ctl->recovery.waits;

	return ptc_event_line_new(ctl->all->cluster, ctl->uuid, "went_back",
				  "snapshot %llu of step %llu is lost, so the job goes back to snapshot %llu of step "
				  "%llu%s%s",
				  (unsigned long long)ctl->record.snapshot, (unsigned long long)ctl->record.step,
				  (unsigned long long)ctl->intent.source, (unsigned long long)next->step,
				  *why ? ": " : "", why);
}

struct ptc_event_line *ptc_recovery_event(const struct ptc_controller *ctl, const struct ptc_record_doc *next)
{
	const struct ptc_record_doc *before = &ctl->record;
	char from[64] = "the beginning, for it had no snapshot", lost[96] = "how many steps are lost is not known";

	if (ctl->has_record && before->recovery && next->recovery && ctl->intent.recovers)
		return went_back(ctl, next);
	if (!ctl->has_record || !before->recovery || next->recovery || next->run != PTC_RUN_LIVE)
		return NULL;
	if (before->reached)
		snprintf(lost, sizeof lost, "step %llu had been reached: %llu steps are lost",
			 (unsigned long long)before->reached,
			 (unsigned long long)(before->reached > next->step ? before->reached - next->step : 0));
	if (next->snapshot)
		snprintf(from, sizeof from, "the snapshot of step %llu", (unsigned long long)next->step);
	return ptc_event_line_new(ctl->all->cluster, ctl->uuid, "recovered", "the job goes on from %s, under %s; %s",
				  from, ctl->view.to.config, lost);
}
