/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes on which a switch starts ranks of a job that trains, and where it has none yet. No step shows whether such a
 * node lives, and none is lost with it. So it is not waited for once its lease has ended and it is silent, too.
 *
 * Happy path: they are all up. Failure modes: one is down and answers, or refuses the connection: its ptcd is being
 * restarted, or cannot reach etcd, and the switch waits for it (PTC_JOB_NODE_WAIT_MS). It says nothing: the core is
 * told that it is lost, and aborts the switch. Loop thread. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"

#define ASK_NS INT64_C(1000000000)

struct asked {
	struct ptc_controller *ctl;
	uint32_t node;
	int64_t down_ns; /* it is down since then */
};

/* A refused connection is an answer, too. */
static void answered(void *arg, int status, const struct ptc_error *err)
{
	struct asked *a = arg;
	struct ptc_controller *ctl = a->ctl;

	(void)err;
	ctl->known[a->node].asking = false;
	if (status == PTC_ETIMEOUT && !ctl->gone && ctl->known[a->node].down_ns == a->down_ns) {
		ctl->known[a->node].silent = true;
		ptc_controller_tell_lost(ctl);
	}
	ptc_controller_unref(ctl);
	ptc_free(a);
}

static void ask(struct ptc_controller *ctl, uint32_t node)
{
	struct asked *a = ptc_calloc(1, sizeof *a);

	ptc_require(a);
	*a = (struct asked){ ptc_controller_ref(ctl), node, ctl->known[node].down_ns };
	ctl->known[node].asked_ns = ptc_sys_now_ns();
	ctl->known[node].asking =
		ptc_controller_probe(ctl->all, ptc_cluster_node(ctl->all->cluster, node), answered, a) == 0;
	if (ctl->known[node].asking)
		return;
	ptc_controller_unref(ctl);
	ptc_free(a);
}

void ptc_new_nodes_tick(struct ptc_controller *ctl)
{
	uint32_t at;

	for (size_t i = 0; i < ctl->view.to.nnodes; i++) {
		const char *node = ctl->view.to.nodes[i];

		if (!ptc_controller_is_new(ctl, node) || !ptc_cluster_find_node(ctl->all->cluster, node, &at) ||
		    at >= ctl->nknown || !ctl->known[at].down_ns || ctl->known[at].asking || ctl->known[at].silent ||
		    ptc_sys_now_ns() - ctl->known[at].asked_ns < ASK_NS)
			continue;
		ask(ctl, at);
	}
}
