/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes a switch waits for, in words: while it waits (progress), and when it has waited for too long (its end).
 *
 * Happy path: no node of the switch is down, and there is nothing to say. Failure modes: none; a list that is too long
 * for the line ends with the number of the nodes left out. Loop thread. */
#include "daemon/controller/internal.h"

#include "base/sys/sys.h"

#include <stdio.h>
#include <string.h>

#define NAMES_MAX 8 /* named in one line */

void ptc_controller_saw_node(struct ptc_controller *ctl, uint32_t node, bool up)
{
	int64_t *since = &ctl->known[node].down_ns;

	if (up) {
		*since = 0, ctl->known[node].silent = 0;
		ctl->known[node].passed = ctl->known[node].told = false;
	} else if (!*since) {
		*since = ptc_sys_now_ns();
	}
}

/* "node n1, down for 12 s; node n2, down for 3 s"; false: no node is waited for. */
static bool names(const struct ptc_controller *ctl, char *buf, size_t size)
{
	int64_t now = ptc_sys_now_ns();
	size_t len = 0, left_out = 0, n = 0;

	buf[0] = '\0';
	for (uint32_t i = 0; i < ctl->nknown; i++) {
		int64_t since = ctl->known[i].down_ns;

		if (!ptc_job_awaits_down(ctl->core, i))
			continue;
		if (n++ >= NAMES_MAX || len + PTC_NAME_MAX + 64 > size) {
			left_out++;
			continue;
		}
		len += (size_t)snprintf(buf + len, size - len, "%snode %s, down for %lld s", len ? "; " : "",
					ptc_cluster_node(ctl->all->cluster, i)->doc.name,
					(long long)(since ? (now - since) / 1000000000 : 0));
	}
	if (left_out && len < size)
		snprintf(buf + len, size - len, "; and %zu more", left_out);
	return n > 0;
}

const char *ptc_controller_waits_text(const struct ptc_controller *ctl, char *buf, size_t size)
{
	char list[sizeof ctl->etcd_said];

	if (!names(ctl, list, sizeof list))
		return ctl->etcd_said;
	snprintf(buf, size, "waits for %s", list);
	return buf;
}

void ptc_controller_waited_text(const struct ptc_controller *ctl, const struct ptc_job_update *up, char *buf,
				size_t size)
{
	const char *name = ptc_cluster_node(ctl->all->cluster, up->node)->doc.name;
	char others[256] = "";
	size_t len = 0;

	for (size_t i = 0; i < ctl->view.nnodes && len + PTC_NAME_MAX + 16 < sizeof others; i++) {
		const char *other = ctl->view.nodes[i];
		uint32_t n;

		if (strcmp(other, name) != 0 && ptc_cluster_find_node(ctl->all->cluster, other, &n) &&
		    !ptc_cluster_node(ctl->all->cluster, n)->up)
			len += (size_t)snprintf(others + len, sizeof others - len, "%s%s",
						len ? ", " : " (down, too: ", other);
	}
	snprintf(buf, size,
		 "node %s has been down for %u s, and the switch needs it%s%s: start ptcd there and ask again%s", name,
		 up->waited_ms / 1000, others, *others ? ")" : "",
		 ctl->has_record && ptc_controller_ranks_on(ctl, name)
			 ? "; it has a part of the job's state, so every switch needs it"
			 : ", or ask for nodes that are up (`ptcctl nodes`, --nodes)");
}
