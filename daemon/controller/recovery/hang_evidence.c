/* SPDX-License-Identifier: Apache-2.0 */
/* Has nodes keep records of what hanging ranks do, before anything is done to these ranks.
 *
 * Happy path: each node of the generation makes a set of files; an event says where. Failure modes: a node that does
 * not answer within ASK_MS, or is of a version that keeps nothing, is named; nobody waits for it any longer. Loop
 * thread. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "rpc/pb/pbcall.h"

#include "ptc.pb-c.h"

#include <stdio.h>
#include <string.h>

#define ASK_MS 10000 /* a node takes about two seconds */

struct ask {
	struct ptc_controller *ctl;
	uint64_t number; /* of the asking */
	char node[PTC_NAME_MAX + 1];
};

static void tell(struct ptc_controller *ctl)
{
	struct ptc_hang_evidence *e = &ctl->recovery.hang.evidence;

	e->state = PTC_HANG_KEPT;
	if (e->ranks)
		ptc_event(ctl->all->cluster, ctl->uuid, "evidence",
			  "stacks and states of %u ranks are kept: `ptcctl logs %s --evidence`%s%s", e->ranks,
			  ctl->meta.name, e->lacks[0] ? "; not those of " : "", e->lacks);
	else
		ptc_event(ctl->all->cluster, ctl->uuid, "evidence", "nothing could be kept of the ranks: %s",
			  e->lacks[0] ? e->lacks : "no node has any");
}

static void lacks(struct ptc_hang_evidence *e, const char *node, const char *why)
{
	size_t at = strlen(e->lacks);

	snprintf(e->lacks + at, sizeof e->lacks - at, "%snode %s (%.100s)", at ? ", " : "", node, why);
}

static void answered(void *arg, int status, const struct ptc_error *err, const void *data, size_t len)
{
	struct ask *a = arg;
	struct ptc_hang_evidence *e = &a->ctl->recovery.hang.evidence;
	ProtobufCMessage *msg = NULL;

	if (!a->ctl->gone && e->state == PTC_HANG_ASKED && e->number == a->number) {
		if (status == 0)
			status = ptc_pb_decode(&ptc__v1__evidence_reply__descriptor, data, len, &msg, NULL);
		if (status == 0)
			e->ranks += ((const Ptc__V1__EvidenceReply *)msg)->ranks;
		else
			lacks(e, a->node, err ? err->text : ptc_status_name(status));
		if (--e->awaited == 0)
			tell(a->ctl);
	}
	ptc_pb_free(msg);
	ptc_controller_unref(a->ctl);
	ptc_free(a);
}

static void ask_node(struct ptc_controller *ctl, const char *name, const void *data, size_t len)
{
	struct ptc_hang_evidence *e = &ctl->recovery.hang.evidence;
	struct ptc_rpc_channel *channel;
	const struct ptc_node *n;
	struct ask *a;
	uint32_t at;

	if (!ptc_cluster_find_node(ctl->all->cluster, name, &at))
		return;
	n = ptc_cluster_node(ctl->all->cluster, at);
	if (!n->up || ptc_channels_get(ctl->all->channels, name, n->doc.address, false, 0, &channel, NULL) != 0) {
		lacks(e, name, "it is down");
		return;
	}
	a = ptc_calloc(1, sizeof *a);
	ptc_require(a);
	a->ctl = ptc_controller_ref(ctl);
	a->number = e->number;
	snprintf(a->node, sizeof a->node, "%s", name);
	e->awaited++;
	ptc_rpc_unary_async(ctl->all->client, channel, "/ptc.v1.Peer/Evidence", data, len, ASK_MS, answered, a);
}

void ptc_hang_keep(struct ptc_controller *ctl)
{
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);
	struct ptc_hang_evidence *e = &ctl->recovery.hang.evidence;
	Ptc__V1__EvidenceRequest req = PTC__V1__EVIDENCE_REQUEST__INIT;
	void *data = NULL;
	size_t len = 0;

	*e = (struct ptc_hang_evidence){ .state = PTC_HANG_ASKED, .number = e->number + 1 };
	req.version = PTC_WIRE_VERSION;
	req.job = ctl->uuid;
	req.collect = true;
	req.why = ctl->recovery.hang.text;
	e->awaited = 1; /* until all are asked */
	if (ptc_pb_encode(&req.base, &data, &len, NULL) == 0)
		for (size_t i = 0; i < g->nnodes; i++)
			ask_node(ctl, g->nodes[i], data, len);
	ptc_free(data);
	if (--e->awaited == 0)
		tell(ctl);
}
