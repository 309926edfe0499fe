/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes are about to be taken away, and what the keeper of copies, recovery and planning have to know of it.
 * Happy path: leaving.h. There are no failure modes. */
#include "daemon/controller/leaving/leaving.h"
#include "daemon/controller/internal.h"

#include "base/sys/sys.h"

#include <string.h>

#define GOING_NS INT64_C(10000000000) /* a node may take that long to be gone */

bool ptc_leaving_any(const struct ptc_controller *ctl)
{
	return ctl->leaving && ctl->leaving->n;
}

bool ptc_leaving_has(const struct ptc_controller *ctl, const char *node)
{
	for (uint32_t i = 0; ctl->leaving && i < ctl->leaving->n; i++)
		if (strcmp(ctl->leaving->nodes[i].name, node) == 0)
			return true;
	return false;
}

/* Bytes that no node had may be back with a node. */
bool ptc_leaving_counted(const struct ptc_controller *ctl)
{
	const struct ptc_leaving_left *left = &ctl->leaving->left;

	return left->record_revision == ctl->record_revision &&
	       (!left->gone || left->epoch == ptc_cluster_epoch(ctl->all->cluster));
}

bool ptc_leaving_urgent(const struct ptc_controller *ctl)
{
	const struct ptc_leaving *l = ctl->leaving;

	return l && l->n && (l->left.bytes || !ptc_leaving_counted(ctl));
}

bool ptc_leaving_stuck(const struct ptc_controller *ctl)
{
	const struct ptc_leaving_left *left = &ctl->leaving->left;

	return ctl->leaving->phase == PTC_LEAVING_COPIES && ptc_leaving_counted(ctl) && !left->out &&
	       left->nowhere == left->bytes;
}

bool ptc_leaving_holds(const struct ptc_controller *ctl)
{
	const struct ptc_leaving *l = ctl->leaving;

	return l && l->n && l->starts && l->phase == PTC_LEAVING_COPIES && ptc_sys_now_ns() < l->until_ns &&
	       !ptc_leaving_stuck(ctl);
}

void ptc_leaving_looked(struct ptc_controller *ctl, const struct ptc_leaving_left *left)
{
	if (ctl->leaving)
		ctl->leaving->left = *left;
}

bool ptc_leaving_in_layout(const struct ptc_controller *ctl)
{
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);

	for (size_t i = 0; i < g->nnodes; i++)
		if (ptc_leaving_has(ctl, g->nodes[i]))
			return true;
	return false;
}

/* Ranks wait at the due step until the node has gone, or its time is over. */
bool ptc_leaving_puts_off(const struct ptc_controller *ctl)
{
	const struct ptc_leaving *l = ctl->leaving;

	return l && l->n && ptc_sys_now_ns() < l->until_ns + GOING_NS && ptc_leaving_in_layout(ctl);
}
