/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the nodes that are up for the steps of a job's ranks.
 *
 * Happy path: each node of the generation that is up answers Ranks; the last answer ends the round. Failure modes: a
 * node that does not answer is suspected (controller_send.c probes it and revokes its lease), and the round does not
 * count. A node that is up, but has not renewed its lease, and whose machine is silent, is not waited for: the round
 * shows where the others are, but no rank is given up because of such a round. Loop thread. */
#include "daemon/controller/internal.h"
#include "daemon/controller/recovery/stragglers.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "formats/ranks/rank_rows.h"
#include "rpc/pb/pbcall.h"

#include "ptc.pb-c.h"

#include <stdio.h>
#include <string.h>

#define ASK_TIMEOUT_MS 1000

struct ask {
	struct ptc_controller *ctl;
	uint32_t node;
	int64_t lease;
	uint64_t incarnation;
};

static void round_ends(struct ptc_rank_rounds *r)
{
	if (r->silent)
		return;
	if (!r->still_ns || r->least != r->now)
		r->still_ns = r->asked_ns;
	if (!r->stand.still_ns || r->stand.least != r->stand.now)
		r->stand.still_ns = r->asked_ns;
	r->stand.least = r->stand.now;
	r->stand.step_s = r->stand.now_s;
	r->least = r->now;
	r->step_s = r->now_s;
	if (r->partial) /* it shows since when steps stand, but not that all who live have been asked */
		return;
	r->done_ns = r->asked_ns;
	r->n++;
}

/* Whether it should go on by itself: it does not wait at a boundary, has not finished, and is not told to end. */
static bool should_go(const struct ptc_rank_row *row)
{
	return strcmp(row->state, "running") == 0 || strcmp(row->state, "spawned") == 0;
}

static void take_stand(const struct ask *a, const struct ptc_rank_row *row, uint64_t step)
{
	struct ptc_rank_stand *s = &a->ctl->recovery.rounds.stand;

	s->now_s = PTC_MAX(s->now_s, row->median_step_s);
	if (!should_go(row) || step > s->now)
		return;
	if (step < s->now) {
		s->now = step;
		s->rank = (uint32_t)row->rank;
		s->n = 0;
		s->fresh = false;
		snprintf(s->node, sizeof s->node, "%s", ptc_cluster_node(a->ctl->all->cluster, a->node)->doc.name);
	}
	s->n++;
	s->fresh |= !row->has_start || step <= row->start_step; /* an older version does not say */
}

/* A rank that has published nothing yet stands where it began. */
static void take_steps(const struct ask *a, const struct ptc_rank_rows *rows)
{
	const struct ptc_record_doc *record = &a->ctl->record;
	struct ptc_rank_rounds *r = &a->ctl->recovery.rounds;

	for (size_t i = 0; i < rows->n; i++) {
		const struct ptc_rank_row *row = &rows->v[i];

		if (row->generation != record->generation || row->incarnation != a->incarnation)
			continue;
		r->now_s = PTC_MAX(r->now_s, row->step_s);
		take_stand(a, row, row->has_step ? row->step : record->step);
		ptc_stragglers_saw(a->ctl, row);
		if (!row->has_step) {
			r->now = PTC_MIN(r->now, record->step);
			continue;
		}
		r->now = PTC_MIN(r->now, row->step);
		r->reached = PTC_MAX(r->reached, row->step);
	}
}

static void answered(void *arg, int status, const struct ptc_error *err, const void *data, size_t len)
{
	struct ask *a = arg;
	struct ptc_controller *ctl = a->ctl;
	struct ptc_rank_rounds *r = &ctl->recovery.rounds;
	ProtobufCMessage *msg = NULL;
	struct ptc_rank_rows rows = { 0 };
	bool ends = false;

	(void)err;
	if (!ctl->gone && r->incarnation == a->incarnation) {
		if (status == 0)
			status = ptc_pb_decode(&ptc__v1__document__descriptor, data, len, &msg, NULL);
		if (status == 0)
			status = ptc_rank_rows_decode(((Ptc__V1__Document *)msg)->json, &rows, NULL);
		if (status == 0)
			take_steps(a, &rows);
		else
			r->silent = true;
		if (status == PTC_EPEER || (status == PTC_ETIMEOUT && !r->patient))
			ptc_controller_suspect(ctl, a->node, a->lease);
		ends = --r->awaited == 0;
		if (ends)
			round_ends(r);
	}
	if (ends && !r->patient) /* somebody waits for what it says: a node is down, or a rank has failed */
		ctl->give_turn(ctl);
	ptc_rank_rows_done(&rows);
	ptc_pb_free(msg);
	ptc_free(a);
	ptc_controller_unref(ctl);
}

static void ask_node(struct ptc_controller *ctl, const char *name)
{
	struct ptc_rank_rounds *r = &ctl->recovery.rounds;
	bool judges = ctl->recovery.judging.incarnation == ctl->record.incarnation;
	Ptc__V1__JobRequest req = PTC__V1__JOB_REQUEST__INIT;
	struct ptc_rpc_channel *channel;
	const struct ptc_node *n;
	struct ask *a;
	uint32_t at;
	void *data;
	size_t len;

	if (!ptc_cluster_find_node(ctl->all->cluster, name, &at))
		return;
	n = ptc_cluster_node(ctl->all->cluster, at);
	if (!n->up)
		return;
	if (ptc_lease_end_doubtful(n->end) && !judges) {
		r->partial = true;
		return;
	}
	a = ptc_calloc(1, sizeof *a);
	ptc_require(a);
	*a = (struct ask){ ptc_controller_ref(ctl), at, n->lease, r->incarnation };
	req.version = PTC_WIRE_VERSION;
	req.job = ctl->uuid;
	if (ptc_channels_get(ctl->all->channels, name, n->doc.address, false, 0, &channel, NULL) != 0 ||
	    ptc_pb_encode(&req.base, &data, &len, NULL) != 0) {
		r->silent = true;
		ptc_controller_unref(ctl);
		ptc_free(a);
		return;
	}
	r->awaited++;
	ptc_rpc_unary_async(ctl->all->client, channel, "/ptc.v1.Peer/Ranks", data, len, ASK_TIMEOUT_MS, answered, a);
	ptc_free(data);
}

void ptc_recovery_ask(struct ptc_controller *ctl, bool patient)
{
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);
	struct ptc_rank_rounds *r = &ctl->recovery.rounds;

	if (r->incarnation != ctl->record.incarnation)
		*r = (struct ptc_rank_rounds){ .incarnation = ctl->record.incarnation };
	if (r->awaited)
		return;
	r->asked_ns = ptc_sys_now_ns();
	r->silent = r->partial = false;
	r->patient = patient;
	r->now = UINT64_MAX;
	r->now_s = 0;
	r->stand.now = UINT64_MAX;
	r->stand.now_s = 0;
	for (size_t i = 0; i < g->nnodes; i++)
		ask_node(ctl, g->nodes[i]);
	if (!r->awaited)
		round_ends(r);
}
