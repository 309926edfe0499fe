/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out whether the ranks that have survived the loss of a node have all of the state at one step.
 *
 * Happy path: each node of the generation that is up holds its ranks, and says at which step each can be taken.
 * Chosen is the greatest step at which the nodes that have their whole part have every tensor together. Failure modes:
 * a rank does not promise that its memory stays whole, or is in an update (it is not counted; nor are ranks of a node
 * whose version cannot hold them); a node does not answer (it is suspected, and not counted, and waited for no longer
 * once its lease has ended and its machine is silent); at no step do the ranks have everything, or only at the
 * snapshot's or an earlier one (NONE, and why). If everything is there once the ranks that are one step behind have
 * come to the greatest step, these ranks are first let go on by that step, once: the gradients of a step may have come
 * to some ranks only. The choice is a task with copies of all it needs; the rest is on the loop. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "proto/local_page.h"
#include "rpc/pb/pbcall.h"

#include "ptc.pb-c.h"

#include <stdio.h>
#include <string.h>

#define HOLD_MS     60000 /* nodes let their ranks go by themselves after */
#define ASK_MS      15000 /* longer than a node's WORKERS_ times of a hold together (tests/test_timeouts.py), */
#define LET_GO_MS   5000
#define ASK_STEPS   4                    /* .. and than an update of long steps */
#define PATIENCE_NS INT64_C(60000000000) /* for all of it */

struct ptc_held_rank {
	bool held, stays;
	uint64_t step;
};

static void hold_done(struct ptc_recovery *r)
{
	ptc_free(r->hold.ranks);
	r->hold = (struct ptc_hold){ 0 };
}

/* Who has made the promise for nothing is told why. */
static void none(struct ptc_controller *ctl, const char *why)
{
	struct ptc_hold *h = &ctl->recovery.hold;

	h->state = PTC_HOLD_NONE;
	if (h->why != why)
		snprintf(h->why, sizeof h->why, "%s", why);
	if (h->promised)
		ptc_event(ctl->all->cluster, ctl->uuid, "not_survived",
			  "the memory of the ranks that are left cannot become a snapshot: %s", h->why);
}

/* ---- which step ---------------------------------------------------------------------- */

struct choice {
	struct ptc_controller *ctl;
	struct ptc_controllers *all;
	struct ptc_meta_doc meta;
	char layout_hash[PTC_HASH_HEX];
	struct ptc_held_rank *ranks; /* by rank */
	uint32_t *rank_node;         /* of them, the index of the node */
	uint32_t world, nnodes;
	uint64_t above; /* no gain in this step, or one before */
	bool any_above; /* there is no snapshot: every step is one */
	bool let_on;    /* ranks were let on before */
	bool found, lets_on;
	uint64_t step; /* found, or to which ranks are let on */
	char why[192];
};

static void choice_free(struct choice *c)
{
	ptc_free(c->ranks);
	ptc_free(c->rank_node);
	ptc_free(c);
}

/* The greatest step below *step at which a rank is held; false: there is none. */
static bool step_below(const struct choice *c, uint64_t below, uint64_t *ret)
{
	bool any = false;

	for (uint32_t r = 0; r < c->world; r++) {
		const struct ptc_held_rank *k = &c->ranks[r];

		if (!k->held || k->step >= below || (!c->any_above && k->step <= c->above) || (any && k->step < *ret))
			continue;
		*ret = k->step;
		any = true;
	}
	return any;
}

/* Whether those of the node's ranks that are usable have all that its ranks have together: a node captures its whole
 * table, or nothing. ranks: room for all. */
static int node_is_whole(const struct choice *c, const struct ptc_layout *layout, uint32_t node, const bool *usable,
			 uint32_t *ranks, bool *ret, struct ptc_error *err)
{
	struct ptc_needs all = { 0 }, has = { 0 };
	uint32_t items = (uint32_t)ptc_spec_items(ptc_layout_spec(layout));
	size_t n = 0, nall = 0;
	int rc;

	for (uint32_t r = 0; r < c->world; r++)
		if (c->rank_node[r] == node && usable[r])
			ranks[n++] = r;
	for (uint32_t r = 0; r < c->world; r++)
		nall += c->rank_node[r] == node;
	*ret = n > 0;
	if (n == 0 || n == nall)
		return 0;
	rc = ptc_layout_ranks_needs(layout, ranks, n, 0, items, SIZE_MAX, &has, err);
	nall = 0;
	for (uint32_t r = 0; r < c->world; r++)
		if (c->rank_node[r] == node)
			ranks[nall++] = r;
	if (!rc)
		rc = ptc_layout_ranks_needs(layout, ranks, nall, 0, items, SIZE_MAX, &all, err);
	*ret = has.bytes == all.bytes; /* has is a part of all */
	ptc_needs_done(&has);
	ptc_needs_done(&all);
	return rc;
}

/* Whether nodes whose ranks are at that step have every tensor. with_before: also those whose ranks are at the step
 * before, and can come there. */
static int covered(struct choice *c, const struct ptc_layout *layout, uint64_t step, bool with_before,
		   struct ptc_error *err)
{
	ptc_auto_free struct ptc_device *places = ptc_calloc(c->world, sizeof *places);
	ptc_auto_free uint32_t *ranks = ptc_calloc(c->world, sizeof *ranks);
	ptc_auto_free bool *usable = ptc_calloc(c->world, sizeof *usable);
	ptc_auto_free bool *whole = ptc_calloc(c->nnodes, sizeof *whole);
	struct ptc_allocation at = { .world = c->world, .ranks = places };
	struct ptc_lost *lost = NULL;
	size_t n = 0;
	int rc = 0;

	if (!places || !ranks || !usable || !whole)
		return ptc_nomem(err);
	for (uint32_t r = 0; r < c->world; r++) {
		places[r] = (struct ptc_device){ .node = c->rank_node[r] };
		usable[r] = c->ranks[r].held && (c->ranks[r].step == step ||
						 (with_before && !c->ranks[r].stays && c->ranks[r].step + 1 == step));
	}
	for (uint32_t i = 0; !rc && i < c->nnodes; i++)
		rc = node_is_whole(c, layout, i, usable, ranks, &whole[i], err);
	if (!rc)
		rc = ptc_layout_lost(layout, &at, c->nnodes, whole, &lost, &n, err);
	ptc_free(lost);
	return rc ? rc : n ? PTC_ELOST : 0;
}

/* The greatest step at which ranks are held that have every tensor; else the greatest one, if others can come there. */
static int choose_step(struct choice *c, const struct ptc_layout *layout, struct ptc_error *err)
{
	uint64_t step = UINT64_MAX, greatest;
	int rc = 0;

	while (!c->found && (rc == 0 || rc == PTC_ELOST) && step_below(c, step, &step)) {
		rc = covered(c, layout, step, false, err);
		c->found = rc == 0;
	}
	c->step = step;
	if (c->found || c->let_on || (rc && rc != PTC_ELOST) || !step_below(c, UINT64_MAX, &greatest))
		return rc == PTC_ELOST ? 0 : rc;
	rc = covered(c, layout, greatest, true, err);
	c->lets_on = rc == 0;
	c->step = greatest;
	return rc == PTC_ELOST ? 0 : rc;
}

static void choose(void *arg, struct ptc_etcd *etcd)
{
	struct choice *c = arg;
	const struct ptc_declared *declared;
	const struct ptc_layout *layout;
	struct ptc_error err = PTC_ERROR_INIT;
	void *ref;
	int rc = ptc_layouts_get(c->all->docs.layouts, c->meta.uuid, c->layout_hash, &declared, &layout, &ref, &err);

	(void)etcd;
	if (rc) {
		snprintf(c->why, sizeof c->why, "%.190s", err.text);
		return;
	}
	snprintf(c->why, sizeof c->why,
		 "at no step beyond the snapshot's do the ranks that are left have every tensor");
	if (choose_step(c, layout, &err) != 0)
		snprintf(c->why, sizeof c->why, "%.190s", err.text);
	ptc_layouts_release(ref);
}

static void ask_all(struct ptc_controller *ctl, uint64_t to);

static void chosen(void *arg)
{
	struct choice *c = arg;
	struct ptc_controller *ctl = c->ctl;
	struct ptc_hold *h = &ctl->recovery.hold;

	if (!ctl->gone && h->state == PTC_HOLD_CHOOSES && h->incarnation == ctl->record.incarnation) {
		h->step = c->step;
		if (c->found)
			h->state = PTC_HOLD_FOUND;
		else if (c->lets_on)
			ask_all(ctl, c->step);
		else
			none(ctl, c->why);
		if (h->state >= PTC_HOLD_FOUND)
			ctl->give_turn(ctl); /* somebody waits for it */
	}
	choice_free(c);
	ptc_controller_unref(ctl);
}

/* All nodes have answered. */
static void round_ends(struct ptc_controller *ctl)
{
	static const struct ptc_task_step steps[] = { { PTC_TASK_ETCD, choose }, { 0 } };
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);
	struct ptc_hold *h = &ctl->recovery.hold;
	char lane[PTC_LANE_MAX];
	struct choice *c;

	if (!h->nheld || !g->layout_hash[0]) {
		none(ctl, h->why[0] ? h->why : "no rank that is left can be held");
		return;
	}
	c = ptc_calloc(1, sizeof *c);
	ptc_require(c);
	*c = (struct choice){ .ctl = ptc_controller_ref(ctl),
			      .all = ctl->all,
			      .meta = ctl->meta,
			      .world = g->world,
			      .nnodes = (uint32_t)g->nnodes,
			      .above = ctl->record.step,
			      .any_above = !ctl->record.snapshot,
			      .let_on = h->to != 0 };
	memcpy(c->layout_hash, g->layout_hash, sizeof c->layout_hash);
	c->ranks = ptc_reallocarray(NULL, g->world, sizeof *c->ranks);
	c->rank_node = ptc_reallocarray(NULL, g->world, sizeof *c->rank_node);
	ptc_require(c->ranks && c->rank_node);
	memcpy(c->ranks, h->ranks, g->world * sizeof *c->ranks);
	memcpy(c->rank_node, g->rank_node, g->world * sizeof *c->rank_node);
	snprintf(lane, sizeof lane, "h-%s", ctl->uuid);
	h->state = PTC_HOLD_CHOOSES;
	ptc_require(ptc_cluster_steps(ctl->all->cluster, lane, steps, chosen, c) == 0);
}

/* ---- nodes are asked ---------------------------------------------------------------------- */

struct ptc_hold_ask {
	struct ptc_hold_ask *next;
	struct ptc_controller *ctl;
	uint32_t node, index; /* index: of the generation's nodes */
	int64_t lease;
	uint64_t incarnation;
};

static void take_ranks(const struct ptc_hold_ask *a, const Ptc__V1__WorkersReply *r)
{
	const struct ptc_generation_doc *g = ptc_controller_current(a->ctl);
	struct ptc_hold *h = &a->ctl->recovery.hold;

	for (size_t i = 0; i < r->n_held; i++) {
		const Ptc__V1__HeldRank *k = r->held[i];

		if (k->rank >= g->world || g->rank_node[k->rank] != a->index || !k->published)
			continue;
		h->reached = PTC_MAX(h->reached, k->step);
		h->promised |= k->promises;
		if (!k->not_held[0]) {
			h->ranks[k->rank] = (struct ptc_held_rank){ true, k->stays, k->step };
			h->nheld++;
		} else if (!h->why[0]) {
			snprintf(h->why, sizeof h->why, "rank %u: %.150s", k->rank, k->not_held);
		}
	}
}

/* False: nobody waits for it any more. */
static bool take_awaited(struct ptc_hold *h, const struct ptc_hold_ask *a)
{
	struct ptc_hold_ask **at = &h->asks;

	while (*at && *at != a)
		at = &(*at)->next;
	if (!*at)
		return false;
	*at = a->next;
	return true;
}

/* A machine that was cut off when it was asked says nothing for long; by now its lease has ended, and a look at it has
 * shown that nobody is there. */
static void wait_for_no_silent(struct ptc_controller *ctl)
{
	struct ptc_hold *h = &ctl->recovery.hold;
	bool any = false;

	for (struct ptc_hold_ask **at = &h->asks; *at;) {
		const struct ptc_node *n = ptc_cluster_node(ctl->all->cluster, (*at)->node);

		if (n->up || !n->unreachable) {
			at = &(*at)->next;
			continue;
		}
		ptc_info("job", "job=%s ranks of node %s are not held: its machine answers nothing", ctl->meta.name,
			 n->doc.name);
		*at = (*at)->next; /* freed when its call ends */
		h->awaited--;
		any = true;
	}
	if (any && h->awaited == 0)
		round_ends(ctl);
}

static void answered(void *arg, int status, const struct ptc_error *err, const void *data, size_t len)
{
	struct ptc_hold_ask *a = arg;
	struct ptc_controller *ctl = a->ctl;
	struct ptc_hold *h = &ctl->recovery.hold;
	ProtobufCMessage *msg = NULL;

	if (take_awaited(h, a) && !ctl->gone && h->state == PTC_HOLD_ASKED && h->incarnation == a->incarnation) {
		if (status == 0)
			status = ptc_pb_decode(&ptc__v1__workers_reply__descriptor, data, len, &msg, NULL);
		if (status == 0)
			take_ranks(a, (const Ptc__V1__WorkersReply *)msg);
		else
			ptc_info("job", "job=%s ranks of node %s are not held: %s", ctl->meta.name,
				 ptc_cluster_node(ctl->all->cluster, a->node)->doc.name, err ? err->text : "");
		if (status == PTC_EPEER || status == PTC_ETIMEOUT)
			ptc_controller_suspect(ctl, a->node, a->lease);
		if (--h->awaited == 0)
			round_ends(ctl);
		if (h->state >= PTC_HOLD_FOUND)
			ctl->give_turn(ctl);
	}
	ptc_pb_free(msg);
	ptc_free(a);
	ptc_controller_unref(ctl);
}

/* Borrows everything, and is borrowed by the message. */
static int encode(struct ptc_controller *ctl, uint32_t ms, void **data, size_t *len)
{
	Ptc__V1__WorkersRequest req = PTC__V1__WORKERS_REQUEST__INIT;
	struct ptc_view v = ctl->view;
	struct ptc_info info = { NULL, NULL };
	int rc;

	v.from = *ptc_controller_current(ctl);
	v.fence = ctl->fence;
	v.seq = ptc_job_take_seq(ctl->core);
	v.to_generation = 0;
	v.copies = (struct ptc_copies_doc){ 0 };
	rc = ptc_view_info(&v, &info, NULL);
	req.version = PTC_WIRE_VERSION;
	req.info = info.pb;
	req.from = true;
	req.stop = PTC_LOCAL_STEP_MAX;
	req.hold_ms = ms;
	req.go_on_to = ms ? ctl->recovery.hold.to : 0;
	req.let_go = !ms;
	if (rc == 0)
		rc = ptc_pb_encode(&req.base, data, len, NULL);
	ptc_info_done(&info);
	return rc;
}

/* ms 0: its ranks are to go on. */
static void ask_node(struct ptc_controller *ctl, uint32_t index, uint32_t ms, int64_t timeout_ms)
{
	const char *name = ptc_controller_current(ctl)->nodes[index];
	struct ptc_hold *h = &ctl->recovery.hold;
	struct ptc_rpc_channel *channel;
	const struct ptc_node *n;
	struct ptc_hold_ask *a;
	uint32_t at;
	void *data;
	size_t len;

	if (!ptc_cluster_find_node(ctl->all->cluster, name, &at))
		return;
	n = ptc_cluster_node(ctl->all->cluster, at);
	if (!n->up || ptc_channels_get(ctl->all->channels, name, n->doc.address, false, 0, &channel, NULL) != 0 ||
	    encode(ctl, ms, &data, &len) != 0)
		return;
	a = ptc_calloc(1, sizeof *a);
	ptc_require(a);
	*a = (struct ptc_hold_ask){ NULL, ptc_controller_ref(ctl), at, index, n->lease, ctl->record.incarnation };
	if (ms) {
		a->next = h->asks;
		h->asks = a;
		h->awaited++;
	}
	ptc_rpc_unary_async(ctl->all->client, channel, "/ptc.v1.Peer/Arm", data, len, timeout_ms, answered, a);
	ptc_free(data);
}

/* A round of answers. to: ranks at the step before it go on there first; 0: none does. */
static void ask_all(struct ptc_controller *ctl, uint64_t to)
{
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);
	struct ptc_hold *h = &ctl->recovery.hold;
	int64_t ms = ASK_MS + (int64_t)(ASK_STEPS * 1e3 * ctl->recovery.rounds.step_s);

	if (ptc_view_locate(&ctl->view, ctl->all->cluster) != 0) {
		none(ctl, "out of memory");
		return;
	}
	h->state = PTC_HOLD_ASKED;
	h->to = to;
	h->nheld = 0;
	h->asks = NULL;
	memset(h->ranks, 0, g->world * sizeof *h->ranks);
	h->awaited = 1; /* until all are asked */
	for (uint32_t i = 0; i < g->nnodes; i++)
		ask_node(ctl, i, HOLD_MS, ms);
	if (--h->awaited == 0)
		round_ends(ctl);
}

static void begin(struct ptc_controller *ctl)
{
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);
	struct ptc_recovery *r = &ctl->recovery;

	hold_done(r);
	r->hold.incarnation = ctl->record.incarnation;
	r->hold.since_ns = ptc_sys_now_ns();
	r->hold.ranks = ptc_calloc(g->world ? g->world : 1, sizeof *r->hold.ranks);
	ptc_require(r->hold.ranks);
	ask_all(ctl, 0);
}

enum ptc_hold_state ptc_recovery_hold(struct ptc_controller *ctl)
{
	struct ptc_hold *h = &ctl->recovery.hold;
	bool under_way = h->state == PTC_HOLD_ASKED || h->state == PTC_HOLD_CHOOSES;

	if (h->state == PTC_HOLD_IDLE || h->incarnation != ctl->record.incarnation)
		begin(ctl);
	else if (h->state == PTC_HOLD_ASKED)
		wait_for_no_silent(ctl);
	under_way &= h->state == PTC_HOLD_ASKED || h->state == PTC_HOLD_CHOOSES;
	if (under_way && ptc_sys_now_ns() - h->since_ns > PATIENCE_NS)
		none(ctl, "the nodes that are left do not answer in time");
	return h->state;
}

bool ptc_recovery_gives(const struct ptc_controller *ctl, uint32_t node)
{
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);
	const struct ptc_hold *h = &ctl->recovery.hold;
	uint32_t at;

	for (uint32_t r = 0; h->state == PTC_HOLD_FOUND && r < g->world; r++)
		if (h->ranks[r].held && h->ranks[r].step == h->step &&
		    ptc_cluster_find_node(ctl->all->cluster, g->nodes[g->rank_node[r]], &at) && at == node)
			return true;
	return false;
}

void ptc_recovery_let_go(struct ptc_controller *ctl)
{
	const struct ptc_generation_doc *g = ptc_controller_current(ctl);

	if (ctl->recovery.hold.state != PTC_HOLD_IDLE && ctl->recovery.hold.incarnation == ctl->record.incarnation &&
	    ptc_view_locate(&ctl->view, ctl->all->cluster) == 0)
		for (uint32_t i = 0; i < g->nnodes; i++)
			ask_node(ctl, i, 0, LET_GO_MS);
	hold_done(&ctl->recovery);
}
