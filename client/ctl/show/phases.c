/* SPDX-License-Identifier: Apache-2.0 */
/* Says what the phases of a switch mean to a person; docs/control.md says more. */
#include "client/ctl/show/show.h"

#include "base/check.h"

#include <string.h>

static const struct {
	const char *name, *about;
} phases[] = {
	{ "waiting", "another switch of the job is under way" },
	{ "checking", "each node says whether its part fits" },
	{ "intent", "the switch is written to etcd" },
	{ "starting", "processes of the new ranks start and import; training goes on" },
	{ "warming", "memory for the state is made; training goes on" },
	{ "arming", "ranks agree on a step and stop there" },
	{ "sealing", "the state is copied into a snapshot" },
	{ "agreeing", "every tensor is there; replicas and cursors are compared" },
	{ "commit1", "the snapshot is committed" },
	{ "ending", "old ranks tear down" },
	{ "building", "new ranks build their model" },
	{ "layout", "the new layout is compared with the old one" },
	{ "preparing", "memory is reserved; bytes that stay are linked" },
	{ "filling", "bytes move" },
	{ "digesting", "digests of all nodes are compared, and new tables asked for" },
	{ "commit2", "the new generation is committed" },
	{ "ending-job", "a rank has finished; the job ends once all have" },
	{ "finishing", "ranks are restored and go on, old memory is freed" },
	{ "taken-over", "the job's controller is gone; another node carries the switch on" },
	{ "aborting", "the job goes back to its committed state" },
};

const char *ctl_phase_about(const char *phase)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(phases); i++)
		if (!strcmp(phases[i].name, phase))
			return phases[i].about;
	return NULL;
}
