/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes count as lost for a job: its core is told, and its events say so.
 *
 * Happy path: no node is lost, and there is nothing to do. Failure modes: none. Loop thread. */
#include "daemon/controller/internal.h"

#include "base/sys/sys.h"

#include <stdio.h>
#include <string.h>

static bool counts(const struct ptc_controller *ctl, const struct ptc_node *n)
{
	return ctl->has_record && ptc_node_lost_for(n, &ctl->record);
}

static bool has_part(const struct ptc_controller *ctl, const char *node)
{
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);

	for (size_t i = 0; i < g->nnodes; i++)
		if (strcmp(g->nodes[i], node) == 0)
			return ptc_view_placed(&ctl->view, node);
	return ptc_copies_keeper(&ctl->view.copies, node) != NULL;
}

static void tell(struct ptc_controller *ctl, const struct ptc_node *n)
{
	if (!has_part(ctl, n->doc.name))
		return;
	if (n->declared)
		ptc_event(ctl->all->cluster, ctl->uuid, "node_lost",
			  "node %s is lost, an operator says so: switches go on without it where other nodes hold the "
			  "state",
			  n->doc.name);
	else
		ptc_event(ctl->all->cluster, ctl->uuid, "node_lost",
			  "node %s is lost, it has been down for %.1f s: switches go on without it where other nodes "
			  "hold "
			  "the state",
			  n->doc.name, (double)(ptc_sys_now_ns() - n->down_ns) / 1e9);
}

void ptc_controller_tell_lost(struct ptc_controller *ctl)
{
	ptc_controller_ref(ctl);
	for (uint32_t i = 0; i < ctl->nknown && !ctl->gone; i++) {
		const struct ptc_node *n = ptc_cluster_node(ctl->all->cluster, i);
		bool lost = counts(ctl, n);
		struct ptc_job_event ev = { .kind = lost ? PTC_EV_NODE_LOST : PTC_EV_NODE_FOUND, .node = i };

		if (lost == ctl->known[i].lost)
			continue;
		ctl->known[i].lost = lost;
		if (lost)
			tell(ctl, n);
		if (lost || !n->up) /* else it has been told that the node is up */
			ptc_controller_step(ctl, &ev);
	}
	ptc_controller_unref(ctl);
}

void ptc_controller_lost_text(const struct ptc_controller *ctl, const struct ptc_job_update *up, char *buf, size_t size)
{
	snprintf(buf, size,
		 "node %s is lost, and the switch was to put state there: ask again, and it is planned without that "
		 "node",
		 ptc_cluster_node(ctl->all->cluster, up->node)->doc.name);
}
