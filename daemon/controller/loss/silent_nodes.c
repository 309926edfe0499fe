/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which nodes a switch does not wait for, when they are down and their ptcd is silent.
 *
 * These are:
 * - nodes on which a switch starts ranks of a job that trains, and where the job has none yet: no step shows whether
 *   such a node lives, and no step is lost with it;
 * - nodes of a job whose ranks were given up: its ranks there do not count any more, and the job starts elsewhere;
 * - nodes whose ranks are held for a snapshot: those ranks are left out of it;
 * - nodes of a job that trains, while a switch waits for them: training stands still meanwhile, so the switch is
 *   aborted. A snapshot that is due begins again once all nodes are up.
 *
 * Happy path: they are all up. Failure modes: one is down and answers, or refuses the connection: its ptcd is being
 * restarted, or cannot reach etcd, and it is waited for (PTC_JOB_NODE_WAIT_MS, or `node_lost_after`). It says nothing:
 * the core is told that it is lost, or to abort. Loop thread. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "rpc/pb/pbcall.h"

#include "ptc.pb-c.h"

#include <stdio.h>

#define ASK_NS           INT64_C(1000000000)
#define PROBE_TIMEOUT_MS 1000

/* ---- a question ---- */

struct probe {
	struct ptc_rpc_channel *channel;
	void (*done)(void *arg, int status, const struct ptc_error *err);
	void *arg;
};

static void probed(void *arg, int status, const struct ptc_error *err, const void *reply, size_t len)
{
	struct probe p = *(struct probe *)arg;

	(void)reply;
	(void)len;
	ptc_free(arg);
	p.done(p.arg, status, err);
	ptc_rpc_channel_free(p.channel);
}

int ptc_controller_probe(struct ptc_controllers *all, const struct ptc_node *n,
			 void (*done)(void *arg, int status, const struct ptc_error *err), void *arg)
{
	Ptc__V1__ListRequest req = PTC__V1__LIST_REQUEST__INIT;
	struct probe *p = ptc_calloc(1, sizeof *p);
	void *data;
	size_t len;
	int rc;

	if (!p)
		return PTC_ENOMEM;
	*p = (struct probe){ .done = done, .arg = arg };
	req.version = PTC_WIRE_VERSION;
	/* a connection of its own: a shared one may be waiting out a back-off and would condemn a node that is back */
	rc = ptc_channels_probe(all->channels, n->doc.name, n->doc.address, &p->channel, NULL);
	if (rc == 0)
		rc = ptc_pb_encode(&req.base, &data, &len, NULL);
	if (rc) {
		ptc_rpc_channel_free(p->channel);
		ptc_free(p);
		return rc;
	}
	ptc_rpc_unary_async(all->client, p->channel, "/ptc.v1.Peer/Stat", data, len, PROBE_TIMEOUT_MS, probed, p);
	ptc_free(data);
	return 0;
}

/* ---- nodes that are down ---- */

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
	if (!ctl->gone && ctl->known[a->node].down_ns == a->down_ns) { /* it may answer later, without a lease */
		uint8_t *n = &ctl->known[a->node].silent;

		*n = status == PTC_ETIMEOUT ? PTC_MIN(*n + 1, PTC_SILENT_PROBES) : 0;
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

static void look(struct ptc_controller *ctl, const char *node)
{
	uint32_t at;

	if (!ptc_cluster_find_node(ctl->all->cluster, node, &at) || at >= ctl->nknown || !ctl->known[at].down_ns ||
	    ctl->known[at].asking || ptc_sys_now_ns() - ctl->known[at].asked_ns < ASK_NS)
		return;
	ask(ctl, at);
}

/* Of a job that trains: whether a switch is under way that its ranks take part in. */
static bool switches(const struct ptc_controller *ctl)
{
	return ctl->has_record && ctl->record.run == PTC_RUN_LIVE && !ptc_controller_idle(ctl) && ctl->intent.run_from;
}

static void abort_for(struct ptc_controller *ctl, const char *node)
{
	char why[PTC_NAME_MAX + 128];

	snprintf(
		why, sizeof why,
		"node %s is down and does not answer, and the job's ranks would wait for it: ask again once it is back",
		node);
	ptc_controller_step(ctl, &(struct ptc_job_event){ .kind = PTC_EV_ABORT, .status = PTC_EPEER, .text = why });
}

static void abort_for_silent(struct ptc_controller *ctl)
{
	const struct ptc_generation_doc *now = ptc_controller_current(ctl);
	const char *silent = NULL;
	uint32_t at;

	for (size_t i = 0; i < now->nnodes && !silent; i++)
		if (ptc_cluster_find_node(ctl->all->cluster, now->nodes[i], &at) && at < ctl->nknown &&
		    (ctl->known[at].silent > 1 || ptc_cluster_node(ctl->all->cluster, at)->unreachable) &&
		    ptc_job_awaits_down(ctl->core, at))
			silent = now->nodes[i];
	if (silent)
		abort_for(ctl, silent);
}

void ptc_silent_nodes_tick(struct ptc_controller *ctl)
{
	const struct ptc_generation_doc *now = ptc_controller_current(ctl);
	bool waited = switches(ctl) || ptc_controller_due(ctl);

	for (size_t i = 0; i < ctl->view.to.nnodes; i++)
		if (ptc_controller_is_new(ctl, ctl->view.to.nodes[i]))
			look(ctl, ctl->view.to.nodes[i]);
	for (size_t i = 0; i < now->nnodes; i++)
		if (waited || ptc_controller_gave_up(ctl, now->nodes[i]))
			look(ctl, now->nodes[i]);
	if (switches(ctl) && !ctl->intent.held)
		abort_for_silent(ctl);
}
