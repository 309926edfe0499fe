/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the events node_down, node_back and node_lost of a job, and tells its core which nodes are lost.
 *
 * Happy path: every node is up, and there is nothing to do. Failure modes: none. Loop thread. */
#include "daemon/controller/internal.h"

#include "base/sys/sys.h"

#include <stdio.h>
#include <string.h>

static bool counts(const struct ptc_controller *ctl, uint32_t i)
{
	const struct ptc_node *n = ptc_cluster_node(ctl->all->cluster, i);

	return ctl->has_record && (ptc_node_lost_for(n, &ctl->record) || ptc_controller_passes(ctl, i));
}

static bool has_part(const struct ptc_controller *ctl, const char *node)
{
	return ptc_controller_ranks_on(ctl, node) ? ptc_view_placed(&ctl->view, node)
						  : ptc_copies_keeper(&ctl->view.copies, node) != NULL;
}

void ptc_controller_tell_node(struct ptc_controller *ctl, uint32_t node, bool up, int64_t since_ns)
{
	const char *name = ptc_cluster_node(ctl->all->cluster, node)->doc.name;
	bool live = ctl->record.run == PTC_RUN_LIVE;

	if (!ctl->has_record || !ptc_controller_ranks_on(ctl, name))
		return;
	if (up)
		ptc_event(ctl->all->cluster, ctl->uuid, "node_back", "node %s is back, after %.1f s", name,
			  (double)(ptc_sys_now_ns() - since_ns) / 1e9);
	else
		ptc_event(ctl->all->cluster, ctl->uuid, "node_down", "node %s is down: %s", name,
			  live ? "its ranks go on if only its ptcd is gone; switches wait for it"
			       : "what it alone has of the state cannot be read; switches wait for it, or until it is "
				 "lost");
}

/* Also if the job has gone on without it before: then it may have no part in the job any more. */
static void tell_one_lost(struct ptc_controller *ctl, uint32_t i)
{
	const struct ptc_node *n = ptc_cluster_node(ctl->all->cluster, i);
	const char *means = ctl->known[i].passed && ctl->record.run == PTC_RUN_LIVE
				    ? "the job had gone on without it"
				    : "switches go on without it where other nodes hold the state";

	if (ctl->known[i].told || !(ctl->known[i].passed || has_part(ctl, n->doc.name)))
		return;
	ctl->known[i].told = true;
	if (n->declared)
		ptc_event(ctl->all->cluster, ctl->uuid, "node_lost", "node %s is lost, an operator says so: %s",
			  n->doc.name, means);
	else
		ptc_event(ctl->all->cluster, ctl->uuid, "node_lost", "node %s is lost, it has been down for %.1f s: %s",
			  n->doc.name, (double)(ptc_sys_now_ns() - n->down_ns) / 1e9, means);
}

void ptc_controller_tell_lost(struct ptc_controller *ctl)
{
	ptc_controller_ref(ctl);
	for (uint32_t i = 0; i < ctl->nknown && !ctl->gone; i++) {
		const struct ptc_node *n = ptc_cluster_node(ctl->all->cluster, i);
		bool lost = counts(ctl, i), was = ctl->known[i].lost;
		struct ptc_job_event ev = { .kind = lost ? PTC_EV_NODE_LOST : PTC_EV_NODE_FOUND, .node = i };

		ctl->known[i].lost = lost;
		ctl->known[i].passed |= lost && !n->lost;
		ctl->known[i].told &= n->lost && (lost || ctl->known[i].passed); /* it may be lost anew */
		if (n->lost && (ctl->known[i].passed || (lost && !was)))
			tell_one_lost(ctl, i);
		if (lost != was && (lost || !n->up)) /* else it has been told that the node is up */
			ptc_controller_step(ctl, &ev);
	}
	ptc_controller_unref(ctl);
}

void ptc_controller_lost_text(const struct ptc_controller *ctl, const struct ptc_job_update *up, char *buf, size_t size)
{
	const char *node = ptc_cluster_node(ctl->all->cluster, up->node)->doc.name;

	if (ctl->intent.source)
		snprintf(buf, size,
			 "node %s is lost, and the rollback was to put state there: ask again, and the state goes to "
			 "nodes that have it",
			 node);
	else if (ctl->intent.kind == PTC_SWITCH_IMPORT)
		snprintf(buf, size,
			 "node %s is lost, and the import was to put state there: import again, and its nodes are "
			 "chosen without that node",
			 node);
	else
		snprintf(buf, size,
			 "node %s is lost, and the switch was to put state there: ask again, and it is planned without "
			 "that node",
			 node);
}
