/* SPDX-License-Identifier: Apache-2.0 */
/* Sends a controller's calls to nodes (itself included: one path for all).
 *
 * Happy path: all calls are asynchronous, and their answers come back on the loop. Short calls (Seal, Prepare, Start,
 * Arm, Finish) have an answer of one message. Calls that last (Pull and Capture move bytes; Stop, End and Build wait
 * for ranks) have a stream of messages, which the rpc client's thread decodes.
 *
 * Failure modes: every failure becomes a REPLY with its status; the core
 * decides. A node that cannot be reached is suspected (taking/suspicion.c). */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "proto/local_page.h"
#include "rpc/pb/pbcall.h"

#include "ptc.pb-c.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define CONTROL_TIMEOUT_MS 60000
#define START_TIMEOUT_MS                                                                                               \
	(PTC_RUN_BOUNDARY_MAX_MS + CONTROL_TIMEOUT_MS) /* the node keeps to the job's build_timeout                    \
							*/

struct call {
	struct ptc_controller *ctl;
	uint64_t seq;
	uint32_t node;
	int64_t lease; /* the node's when it was sent */
	enum ptc_job_op op;
	bool all_up; /* no node of the switch was down when it was sent */
};

/* ---- answers ---------------------------------------------------------------------- */

/* Every node plans for itself; nodes that disagree would move the wrong bytes. Only plans for the same set of live
 * nodes can be compared, so a call sent while one was down is not. The node may also have made room. */
static int read_prepare(struct call *c, const void *data, size_t len, struct ptc_error *err)
{
	struct ptc_controller *ctl = c->ctl;
	Ptc__V1__PrepareReply *r;
	int rc = ptc_pb_decode(&ptc__v1__prepare_reply__descriptor, data, len, (ProtobufCMessage **)&r, err);

	if (rc)
		return rc;
	if (r->yielded)
		ptc_older_yielded(ctl, ptc_cluster_node(ctl->all->cluster, c->node)->doc.name, r->yielded->generation,
				  r->yielded->snapshot);
	if (!c->all_up)
		rc = 0;
	else if (!ctl->plan_hash[0])
		snprintf(ctl->plan_hash, sizeof ctl->plan_hash, "%s", r->plan_hash);
	else if (strcmp(ctl->plan_hash, r->plan_hash) != 0)
		rc = ptc_error_set(err, PTC_EINTERNAL,
				   "it computed plan %s, other nodes %s: do all nodes run the same version?",
				   r->plan_hash, ctl->plan_hash);
	ptc_pb_free(&r->base);
	return rc;
}

/* Where the node's ranks are. */
static int read_arm(const void *data, size_t len, struct ptc_job_event *ev, struct ptc_error *err)
{
	Ptc__V1__WorkersReply *r;
	int rc = ptc_pb_decode(&ptc__v1__workers_reply__descriptor, data, len, (ProtobufCMessage **)&r, err);

	if (rc)
		return rc;
	ev->passed = r->passed;
	ev->step = r->step;
	ptc_pb_free(&r->base);
	return 0;
}

/* What the node has restored to its devices. Figures alone: an answer that cannot be read does no harm. */
static void read_finish(struct ptc_controller *ctl, uint32_t node, const void *data, size_t len)
{
	Ptc__V1__FinishReply *r;

	if (ptc_pb_decode(&ptc__v1__finish_reply__descriptor, data, len, (ProtobufCMessage **)&r, NULL) != 0)
		return;
	ctl->device.kept_bytes += r->device_kept_bytes;
	ctl->device.peer_bytes += r->device_peer_bytes;
	ctl->device.host_bytes += r->device_host_bytes;
	ctl->device.unfinished |= r->device_unfinished;
	if (r->yielded)
		ptc_older_yielded(ctl, ptc_cluster_node(ctl->all->cluster, node)->doc.name, r->yielded->generation,
				  r->yielded->snapshot);
	ptc_pb_free(&r->base);
}

/* Whether older snapshots that the job keeps are on the node. */
static bool keeps_older(const struct ptc_controller *ctl, const char *node)
{
	bool any = false;

	for (size_t i = 0; i < ctl->older.doc.n; i++)
		any = any || ptc_older_has(&ctl->older.doc.v[i], node);
	return any;
}

/* What helps where CHECK finds that the node has no chunks and Prepare will not make new ones. */
static const char *advice(const struct call *c, int status)
{
	if (c->op != PTC_OP_CHECK || (status != PTC_ELOST && status != PTC_ECORRUPT))
		return "";
	if (keeps_older(c->ctl, ptc_cluster_node(c->ctl->all->cluster, c->node)->doc.name))
		return "; snapshots that the job keeps may come back with them: name other nodes";
	return "; copies may come back with them, or are made again: ask again when `ptcctl status` tells of enough";
}

static void answer(struct call *c, int status, const struct ptc_error *err, const void *data, size_t len,
		   const char *later)
{
	char text[PTC_ERROR_MAX + PTC_NAME_MAX + 128] = "";
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_job_event ev = {
		.kind = PTC_EV_REPLY, .seq = c->seq, .node = c->node, .text = text, .passed = later != NULL
	};

	if (later)
		snprintf(text, sizeof text, "%s", later);
	if (status == 0 && c->op == PTC_OP_PREPARE && !c->ctl->gone) {
		status = read_prepare(c, data, len, &why);
		err = &why;
	} else if (status == 0 && c->op == PTC_OP_ARM) {
		status = read_arm(data, len, &ev, &why);
		err = &why;
	} else if (status == 0 && c->op == PTC_OP_FINISH && !c->ctl->gone) {
		read_finish(c->ctl, c->node, data, len);
	}
	if (status)
		snprintf(text, sizeof text, "node %s: %s%s", ptc_cluster_node(c->ctl->all->cluster, c->node)->doc.name,
			 err->text, advice(c, status));
	if (status == PTC_EPEER && !c->ctl->gone)
		ptc_controller_suspect(c->ctl, c->node, c->lease);
	if (status && c->op == PTC_OP_FINISH &&
	    !c->ctl->gone) /* the core tries again while it is idle, and tells nobody */
		ptc_warn("job", "job=%s finish: %s", c->ctl->meta.name, text);
	ev.status = status;
	ptc_controller_step(c->ctl, &ev);
	ptc_controller_unref(c->ctl);
	ptc_free(c);
}

static void answered(void *arg, int status, const struct ptc_error *err, const void *data, size_t len)
{
	answer(arg, status, err, data, len, NULL);
}

/* A send that never left: its answer still comes later, never inside the step that asked for it. */
struct failed {
	struct call *call;
	int status;
	struct ptc_error err;
};

static void answer_failed(void *arg)
{
	struct failed *f = arg;

	answered(f->call, f->status, &f->err, NULL, 0);
	ptc_free(f);
}

static void fail_later(struct call *c, int status, const struct ptc_error *err)
{
	struct failed *f = ptc_calloc(1, sizeof *f);

	ptc_require(f);
	*f = (struct failed){ c, status, *err };
	if (ptc_loop_post(c->ctl->all->loop, answer_failed, f) == 0)
		return;
	/* only a loop that has stopped refuses, and then nobody needs the answer */
	ptc_free(f);
	ptc_controller_unref(c->ctl);
	ptc_free(c);
}

/* ---- messages ------------------------------------------------------------------------ */

/* stand: of the new generation's table as itself. That changes nothing, and fails where the table is not there; every
 * version answers so. */
static int encode_seal(struct ptc_controller *ctl, Ptc__V1__SwitchInfo *info, bool stand, void **data, size_t *len,
		       struct ptc_error *err)
{
	Ptc__V1__SealRequest req = PTC__V1__SEAL_REQUEST__INIT;
	Ptc__V1__TableKey from = PTC__V1__TABLE_KEY__INIT, to = PTC__V1__TABLE_KEY__INIT;

	from.generation = to.generation = stand ? ctl->intent.to_generation : ctl->intent.from_generation;
	from.snapshot = stand ? ctl->intent.to_snapshot : ctl->intent.from_snapshot;
	to.snapshot = ctl->intent.to_snapshot;
	req.version = PTC_WIRE_VERSION;
	req.info = info;
	req.from = &from;
	req.to = &to;
	return ptc_pb_encode(&req.base, data, len, err);
}

/* The record's generation, for FINISH: what runs, from which snapshot. Borrows everything, and is borrowed by the
 * message. */
static void finish_view(struct ptc_controller *ctl, const struct ptc_job_update *up, struct ptc_view *ret_view)
{
	*ret_view = ctl->view;
	ret_view->from = *ptc_controller_current(ctl);
	ret_view->fence = ctl->fence;
	ret_view->seq = up->seq;
	ret_view->to_generation = 0;
	ret_view->copies = (struct ptc_copies_doc){ 0 };
}

/* Tables that stay: the record's, those that have copies, and those of older snapshots that the job keeps. */
struct keep {
	Ptc__V1__TableKey **list, *keys;
	size_t n;
};

static void keep_add(void *arg, uint64_t generation, uint64_t snapshot)
{
	struct keep *k = arg;

	ptc__v1__table_key__init(&k->keys[k->n]);
	k->keys[k->n].generation = generation;
	k->keys[k->n].snapshot = snapshot;
	k->list[k->n] = &k->keys[k->n];
	k->n++;
}

static struct keep keep_of(size_t most)
{
	struct keep k = { ptc_calloc(most, sizeof *k.list), ptc_calloc(most, sizeof *k.keys), 0 };

	ptc_require(k.list && k.keys);
	return k;
}

/* Room for `more` besides what documents name on that node. */
static void keep_init(struct keep *k, const struct ptc_controller *ctl, uint32_t node, size_t more)
{
	const char *name = ptc_cluster_node(ctl->all->cluster, node)->doc.name;

	*k = keep_of(ctl->copies.nkeepers + ctl->copies.nold + ctl->maybe.nold + ptc_older_tables_max(&ctl->older) +
		     more);
	ptc_copies_tables(&ctl->copies, name, keep_add, k);
	ptc_copies_tables(&ctl->maybe, name, keep_add, k);
	ptc_older_tables(&ctl->older, name, keep_add, k);
}

static void keep_done(struct keep *k)
{
	ptc_free(k->list);
	ptc_free(k->keys);
}

static void some(void *arg, uint64_t generation, uint64_t snapshot)
{
	(void)generation, (void)snapshot;
	*(bool *)arg = false;
}

/* Whether the node may begin anew where its chunks cannot be used. No document names a table there but the record, of
 * whose nodes the node knows by itself; or the switch counts on none of these. What ranks held is committed before
 * Prepare, and the nodes of these ranks have all of it: so copies of what was before hold nothing up, whether the
 * keeper has found that they are gone or not. A bridge is no reason either to wait for chunks that are gone. */
static bool begins_anew(const struct ptc_controller *ctl, uint32_t node)
{
	const char *name = ptc_cluster_node(ctl->all->cluster, node)->doc.name;
	bool nothing = true;

	if (keeps_older(ctl, name))
		return false;
	if (ctl->intent.run_from && ctl->intent.kind == PTC_SWITCH_RESIZE)
		return true;
	ptc_copies_tables(&ctl->copies, name, some, &nothing);
	ptc_copies_tables(&ctl->maybe, name, some, &nothing);
	return nothing || ptc_copy_keeper_emptied(ctl, name);
}

static int encode_prepare(struct ptc_controller *ctl, const struct ptc_job_update *up, Ptc__V1__SwitchInfo *info,
			  void **data, size_t *len, struct ptc_error *err)
{
	Ptc__V1__PrepareRequest req = PTC__V1__PREPARE_REQUEST__INIT;
	struct keep yields = keep_of(ptc_older_tables_max(&ctl->older));
	int rc;

	if (up->op == PTC_OP_PREPARE)
		ptc_older_yields(ctl, ptc_cluster_node(ctl->all->cluster, up->node)->doc.name, keep_add, &yields);
	req.version = PTC_WIRE_VERSION;
	req.info = info;
	req.dry_run = up->op == PTC_OP_CHECK;
	req.anew = begins_anew(ctl, up->node);
	req.yields = yields.list;
	req.n_yields = yields.n;
	rc = ptc_pb_encode(&req.base, data, len, err);
	keep_done(&yields);
	return rc;
}

static int encode_finish(struct ptc_controller *ctl, const struct ptc_job_update *up, void **data, size_t *len,
			 struct ptc_error *err)
{
	Ptc__V1__FinishRequest req = PTC__V1__FINISH_REQUEST__INIT;
	struct keep keep;
	struct ptc_info info = { NULL, NULL };
	struct ptc_view v;
	int rc = 0;

	keep_init(&keep, ctl, up->node, 1);
	if (up->has_keep && up->keep_snapshot) /* snapshot 0: ranks run that have not made one */
		keep_add(&keep, up->keep_generation, up->keep_snapshot);
	req.version = PTC_WIRE_VERSION;
	req.uuid = ctl->uuid;
	req.fence = ctl->fence;
	req.seq = up->seq;
	req.n_keep = keep.n;
	req.keep = keep.list;
	req.live = up->has_keep && ctl->has_record && ctl->record.run == PTC_RUN_LIVE;
	req.given_up = ctl->has_record && ctl->record.recovery;
	if (req.live) {
		finish_view(ctl, up, &v);
		rc = ptc_view_info(&v, &info, err);
		req.info = info.pb;
		req.start_step = ctl->record.step;
		req.state_hash = ctl->view.manifest.state_hash;
		req.leave_out = ptc_copy_keeper_leaves_out(ctl);
		ctl->older.left_out = req.leave_out > 0;
		ptc_ahead_stays(ctl, &req.ahead_generation, &req.ahead_incarnation);
	}
	if (rc == 0)
		rc = ptc_pb_encode(&req.base, data, len, err);
	ptc_info_done(&info);
	keep_done(&keep);
	return rc;
}

static int encode_capture(struct ptc_controller *ctl, const struct ptc_job_update *up, Ptc__V1__SwitchInfo *info,
			  void **data, size_t *len, struct ptc_error *err)
{
	Ptc__V1__CaptureRequest req = PTC__V1__CAPTURE_REQUEST__INIT;
	Ptc__V1__TableKey to = PTC__V1__TABLE_KEY__INIT;

	to.generation = ctl->intent.from_generation;
	to.snapshot = ctl->intent.to_snapshot;
	req.version = PTC_WIRE_VERSION;
	req.info = info;
	req.to = &to;
	req.step = up->stop;
	req.release = ctl->intent.kind == PTC_SWITCH_SNAPSHOT && ctl->intent.run_to;
	req.held = ctl->intent.held;
	req.leave_out = ptc_copy_keeper_will_leave_out(ctl);
	req.list_differing = !req.held && ctl->recovery.has_elastic && ctl->recovery.elastic.on_difference;
	return ptc_pb_encode(&req.base, data, len, err);
}

static int encode_workers(struct ptc_controller *ctl, const struct ptc_job_update *up, Ptc__V1__SwitchInfo *info,
			  void **data, size_t *len, struct ptc_error *err)
{
	Ptc__V1__WorkersRequest req = PTC__V1__WORKERS_REQUEST__INIT;
	struct keep keep;
	double seconds;
	int rc;

	req.version = PTC_WIRE_VERSION;
	req.info = info;
	req.warm = up->op == PTC_OP_WARM;
	req.from = req.warm || up->op == PTC_OP_ARM || up->op == PTC_OP_STOP || up->op == PTC_OP_END;
	req.stop = req.warm ? PTC_LOCAL_STEP_MAX : up->stop;
	req.moves = up->op == PTC_OP_STOP;
	req.built = up->built || ((up->op == PTC_OP_START || up->op == PTC_OP_BUILD) && ptc_ahead_took(ctl, &seconds));
	req.resumed = up->resumed ? ctl->intent_revision : 0;
	req.start_step = ctl->record.step;
	req.has_state = ctl->intent.to_snapshot > 0;
	if (req.has_state) /* Build comes after the first commit: the snapshot's, or what rules make of that */
		req.state_hash = ctl->rank_states.hash[0] ? ctl->rank_states.hash : ctl->view.manifest.state_hash;
	keep_init(&keep, ctl, up->node, 2);
	keep_add(&keep, ctl->intent.from_generation, ctl->intent.to_snapshot);
	keep_add(&keep, ctl->intent.to_generation, ctl->intent.to_snapshot);
	req.told = up->op == PTC_OP_END && ptc_ahead_took(ctl, &seconds); /* nobody builds after them */
	req.n_keep = up->op == PTC_OP_END ? keep.n : 0; /* what is older than the first commit's snapshot may go */
	req.keep = keep.list;
	rc = ptc_pb_encode(&req.base, data, len, err);
	keep_done(&keep);
	return rc;
}

static int encode_pull(struct ptc_controller *ctl, Ptc__V1__SwitchInfo *info, void **data, size_t *len,
		       struct ptc_error *err)
{
	Ptc__V1__PullRequest req = PTC__V1__PULL_REQUEST__INIT;

	req.version = PTC_WIRE_VERSION;
	req.info = info;
	req.pushed = ctl->intent.kind == PTC_SWITCH_IMPORT && !ctl->intent.source;
	return ptc_pb_encode(&req.base, data, len, err);
}

/* What a rollback asks of nodes: to have the older snapshot's state under the new generation. */
static int encode_rollback(struct ptc_controller *ctl, const struct ptc_job_update *up, void **data, size_t *len,
			   struct ptc_error *err)
{
	struct ptc_view *v = &ctl->source;
	struct ptc_info info;
	int rc = ptc_view_locate(v, ctl->all->cluster) ? ptc_nomem(err) : 0;

	v->fence = ctl->fence;
	v->seq = up->seq;
	v->switch_id = ctl->intent.id;
	v->to_generation = ctl->intent.to_generation;
	v->to_snapshot = ctl->intent.to_snapshot;
	if (rc == 0)
		rc = ptc_view_info(v, &info, err);
	if (rc)
		return rc;
	if (up->op == PTC_OP_PULL)
		rc = encode_pull(ctl, info.pb, data, len, err);
	else if (up->op == PTC_OP_STAND)
		rc = encode_seal(ctl, info.pb, true, data, len, err);
	else
		rc = encode_prepare(ctl, up, info.pb, data, len, err);
	ptc_info_done(&info);
	return rc;
}

static int encode_of(struct ptc_controller *ctl, const struct ptc_job_update *up, void **data, size_t *len,
		     struct ptc_error *err)
{
	struct ptc_view *v = &ctl->view;
	struct ptc_info info;
	int rc;

	if (ptc_view_locate(v, ctl->all->cluster) != 0)
		return ptc_nomem(err);
	if (up->op == PTC_OP_FINISH)
		return encode_finish(ctl, up, data, len, err);
	if (ctl->intent.source)
		return encode_rollback(ctl, up, data, len, err);
	v->fence = ctl->fence;
	v->seq = up->seq;
	v->switch_id = ctl->intent.id;
	v->to_generation = v->to.world ? ctl->intent.to_generation : 0; /* a snapshot has no new one */
	v->to_snapshot = ctl->intent.to_snapshot;
	v->to_incarnation = ctl->intent.run_to ? ctl->intent.id : 0;
	rc = ptc_view_info(v, &info, err);
	if (rc)
		return rc;
	/* bytes are read from the snapshot that COMMIT1 made; before that it is the record's own */
	if (info.pb->from->number && (up->op == PTC_OP_PREPARE || up->op == PTC_OP_PULL))
		info.pb->from->snapshot = ctl->intent.to_snapshot;
	if (up->op == PTC_OP_SEAL || up->op == PTC_OP_STAND)
		rc = encode_seal(ctl, info.pb, up->op == PTC_OP_STAND, data, len, err);
	else if (up->op == PTC_OP_PULL)
		rc = encode_pull(ctl, info.pb, data, len, err);
	else if (up->op == PTC_OP_CAPTURE)
		rc = encode_capture(ctl, up, info.pb, data, len, err);
	else if (up->op == PTC_OP_CHECK || up->op == PTC_OP_PREPARE)
		rc = encode_prepare(ctl, up, info.pb, data, len, err);
	else
		rc = encode_workers(ctl, up, info.pb, data, len, err);
	ptc_info_done(&info);
	return rc;
}

/* Of ranks that run the bytes are others by now than those that there are copies of. */
static int encode(struct ptc_controller *ctl, const struct ptc_job_update *up, void **data, size_t *len,
		  struct ptc_error *err)
{
	const struct ptc_copies_doc none = { 0 }, copies = ctl->view.copies;
	bool without = ctl->intent.run_from && up->op != PTC_OP_FINISH;
	int rc;

	if (without)
		ctl->view.copies = none;
	rc = encode_of(ctl, up, data, len, err);
	if (without)
		ctl->view.copies = copies;
	return rc;
}

/* ---- calls that stream: Pull and Capture (progress, then digests), Stop, End and Build (signs of life, then one
 * answer) -- */

static const struct {
	const char *path;
	const ProtobufCMessageDescriptor *reply; /* of a stream; NULL: one answer, within timeout_ms */
	int64_t timeout_ms;
} methods[] = {
	[PTC_OP_CHECK] = { "/ptc.v1.Peer/Prepare", NULL, CONTROL_TIMEOUT_MS },
	[PTC_OP_SEAL] = { "/ptc.v1.Peer/Seal", NULL, CONTROL_TIMEOUT_MS },
	[PTC_OP_PREPARE] = { "/ptc.v1.Peer/Prepare", NULL, CONTROL_TIMEOUT_MS },
	[PTC_OP_PULL] = { "/ptc.v1.Peer/Pull", &ptc__v1__pull_reply__descriptor, 0 },
	[PTC_OP_FINISH] = { "/ptc.v1.Peer/Finish", NULL, CONTROL_TIMEOUT_MS },
	[PTC_OP_START] = { "/ptc.v1.Peer/Start", NULL, START_TIMEOUT_MS },
	[PTC_OP_WARM] = { "/ptc.v1.Peer/Arm", NULL, CONTROL_TIMEOUT_MS },
	[PTC_OP_ARM] = { "/ptc.v1.Peer/Arm", NULL, CONTROL_TIMEOUT_MS },
	[PTC_OP_STOP] = { "/ptc.v1.Peer/Stop", &ptc__v1__workers_reply__descriptor, 0 },
	[PTC_OP_CAPTURE] = { "/ptc.v1.Peer/Capture", &ptc__v1__pull_reply__descriptor, 0 },
	[PTC_OP_END] = { "/ptc.v1.Peer/End", &ptc__v1__workers_reply__descriptor, 0 },
	[PTC_OP_BUILD] = { "/ptc.v1.Peer/Build", &ptc__v1__workers_reply__descriptor, 0 },
	[PTC_OP_STAND] = { "/ptc.v1.Peer/Seal", NULL, CONTROL_TIMEOUT_MS },
};

struct ptc_pull {
	struct call *call;
	struct ptc_rpc_async *rpc;
	atomic_uint_least64_t done, total;
	bool cancelled; /* [loop] */
	/* the rpc client's thread, until the call has ended; then the loop */
	struct ptc_pull_result result;
	bool finished; /* the last message has come: nothing after it counts */
	struct ptc_pull *next;
};

static void pull_free(struct ptc_pull *p)
{
	ptc_pull_result_done(&p->result);
	ptc_free(p);
}

static int take_result(struct ptc_pull *p, const Ptc__V1__PullReply *r, struct ptc_error *err)
{
	struct ptc_pull_result *res = &p->result;

	if (r->n_need_index != r->n_digests)
		return ptc_error_set(err, PTC_EPEER,
				     "it answered with %zu places and %zu digests; each place needs one",
				     r->n_need_index, r->n_digests);
	res->need_index = ptc_reallocarray(NULL, r->n_digests, sizeof *res->need_index);
	res->digests = ptc_reallocarray(NULL, r->n_digests, sizeof *res->digests);
	if (!res->need_index || !res->digests)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory for %zu digests", r->n_digests);
	res->n = r->n_digests;
	for (size_t i = 0; i < res->n; i++) {
		res->need_index[i] = r->need_index[i];
		res->digests[i] = r->digests[i];
	}
	res->wire_bytes = r->wire_bytes;
	res->near_bytes = r->near_bytes;
	res->copied_bytes = r->copied_bytes;
	res->verified_bytes = r->verified_bytes;
	res->links = r->n_links ? ptc_calloc(r->n_links, sizeof *res->links) : NULL;
	for (size_t i = 0; res->links && i < r->n_links && r->links[i]->ns; i++) {
		struct ptc_link_use *l = &res->links[res->nlinks++];

		snprintf(l->from, sizeof l->from, "%s", r->links[i]->from);
		l->bytes = r->links[i]->bytes;
		l->seconds = (double)r->links[i]->ns / 1e9;
	}
	return 0;
}

/* The last of Pull and Capture. */
static int pull_finished(struct ptc_pull *p, Ptc__V1__PullReply *r, bool *ret_taken, struct ptc_error *err)
{
	int rc = take_result(p, r, err);

	if (rc == 0 && p->call->op == PTC_OP_CAPTURE) {
		p->result.capture = r;
		*ret_taken = true;
	}
	return rc;
}

/* The rpc client's thread. */
static int pull_message(void *arg, struct ptc_rpc_message *m, struct ptc_error *err)
{
	struct ptc_pull *p = arg;
	bool pull = methods[p->call->op].reply == &ptc__v1__pull_reply__descriptor, taken = false;
	ProtobufCMessage *msg;
	int rc = p->finished ? 0 : ptc_pb_message(m, methods[p->call->op].reply, &msg, err);

	if (rc || p->finished)
		return rc;
	if (pull) {
		Ptc__V1__PullReply *r = (Ptc__V1__PullReply *)msg;

		atomic_store(&p->done, r->bytes_done);
		atomic_store(&p->total, r->bytes_total);
		rc = r->finished ? pull_finished(p, r, &taken, err) : 0;
		p->finished = r->finished && rc == 0;
	} else { /* the last one counts */
		if (p->result.layout)
			ptc_pb_free(&p->result.layout->base);
		p->result.layout = (Ptc__V1__WorkersReply *)msg;
		taken = true;
	}
	if (!taken)
		ptc_pb_free(msg);
	return rc;
}

/* One result per node: a call that was sent again counts once. */
static int keep_result(struct ptc_controller *ctl, struct ptc_pull *p, struct ptc_error *err)
{
	struct ptc_pull_result *pulls;

	/* of an attempt that is over: the core has sent the next one, or none */
	if (p->call->op == PTC_OP_STOP || p->call->op == PTC_OP_END || p->cancelled)
		return 0;
	if (p->call->op == PTC_OP_CAPTURE && p->call->node < ctl->nknown)
		ctl->known[p->call->node].captured = ctl->known[p->call->node].revision;
	if (!PTC_MORE(ctl->pulls, ctl->npulls))
		return ptc_nomem(err);
	pulls = ctl->pulls;
	for (size_t i = 0; i < ctl->npulls; i++)
		if (pulls[i].node == p->call->node) {
			ptc_pull_result_done(&pulls[i]);
			pulls[i] = pulls[--ctl->npulls];
		}
	p->result.node = p->call->node;
	pulls[ctl->npulls++] = p->result;
	memset(&p->result, 0, sizeof p->result);
	return 0;
}

/* A stream that brought all of its answer has succeeded, however it ended. */
static int pull_status(struct ptc_pull *p, int status, const struct ptc_error *why, struct ptc_error *err)
{
	if (p->finished || (status == 0 && p->result.layout))
		return 0;
	return status ? ptc_error_set(err, status, "%s", why->text)
		      : ptc_error_set(err, PTC_EPEER, "%s ended without an answer", methods[p->call->op].path);
}

static void pull_ended(void *arg, int status, const struct ptc_error *why, const void *data, size_t len)
{
	struct ptc_pull *p = arg, **at;
	struct ptc_controller *ctl = p->call->ctl;
	struct ptc_error err = PTC_ERROR_INIT;
	const Ptc__V1__WorkersReply *r;

	status = pull_status(p, status, why, &err);
	r = p->call->op == PTC_OP_STOP && status == 0 ? p->result.layout : NULL;

	for (at = &ctl->running; *at && *at != p;)
		at = &(*at)->next;
	if (*at)
		*at = p->next;
	if (status == 0 && !ctl->gone)
		status = keep_result(ctl, p, &err);
	answer(p->call, status, &err, NULL, 0, r && r->passed ? r->why : NULL);
	pull_free(p);
}

static void pull_start(struct call *c, struct ptc_rpc_channel *channel, const void *data, size_t len)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_pull *p = ptc_calloc(1, sizeof *p);

	if (!p) {
		fail_later(c, ptc_nomem(&err), &err);
		return;
	}
	p->call = c;
	p->next = c->ctl->running;
	c->ctl->running = p;
	p->rpc = ptc_rpc_stream_async(c->ctl->all->client, channel, methods[c->op].path, data, len, pull_message,
				      pull_ended, p);
}

void ptc_controller_cancel(struct ptc_controller *ctl, uint64_t seq)
{
	for (struct ptc_pull *p = ctl->running; p; p = p->next) {
		if (seq && p->call->seq != seq)
			continue;
		p->cancelled = true;
		ptc_rpc_async_cancel(p->rpc);
	}
}

void ptc_controller_bytes(const struct ptc_controller *ctl, uint64_t *ret_done, uint64_t *ret_total)
{
	*ret_done = *ret_total = 0;
	for (const struct ptc_pull *p = ctl->running; p; p = p->next) {
		*ret_done += atomic_load(&p->done);
		*ret_total += atomic_load(&p->total);
	}
	for (size_t i = 0; i < ctl->npulls; i++) {
		*ret_done += ctl->pulls[i].wire_bytes;
		*ret_total += ctl->pulls[i].wire_bytes;
	}
}

/* ---- send -------------------------------------------------------------------------------- */

static bool all_up(const struct ptc_view *v)
{
	for (size_t i = 0; i < v->nnodes; i++)
		if (v->down[i])
			return false;
	return true;
}

/* Laid out by rules, or by what the ranks declared when this configuration last ran. */
static bool layout_known(const struct ptc_controller *ctl)
{
	return !ctl->intent.run_to || ctl->view.to.layout_hash[0];
}

/* Whether Prepare fails there if the chunks cannot be used. A node of the old generation makes new ones in Capture, or
 * is left out by Seal. With a layout CHECK asks the node itself, which answers by ptc_switch_gets_anew
 * (daemon/agent/switch): change both. */
static bool counts_on_chunks(const struct ptc_controller *ctl, uint32_t node)
{
	const char *name = ptc_cluster_node(ctl->all->cluster, node)->doc.name;

	return ctl->intent.to_snapshot && keeps_older(ctl, name) && !ptc_controller_ranks_on(ctl, name);
}

static void chunks_answered(void *arg, int status, const struct ptc_error *err, const void *data, size_t len)
{
	const bool gone = status == PTC_ELOST || status == PTC_ECORRUPT;

	(void)data, (void)len;
	answer(arg, gone ? status : 0, err, NULL, 0, NULL);
}

/* CHECK without a layout asks nothing but whether the chunks can be used: by a fetch of nothing, from a table that is
 * not there yet. */
static void ask_chunks(struct call *c, struct ptc_rpc_channel *channel)
{
	struct ptc_controller *ctl = c->ctl;
	Ptc__V1__FetchRequest req = PTC__V1__FETCH_REQUEST__INIT;
	struct ptc_error err = PTC_ERROR_INIT;
	void *data = NULL;
	size_t len = 0;
	int rc;

	req.version = PTC_WIRE_VERSION;
	req.uuid = ctl->uuid;
	req.generation = ctl->intent.to_generation;
	req.snapshot = ctl->intent.to_snapshot;
	rc = ptc_pb_encode(&req.base, &data, &len, &err);
	if (rc)
		fail_later(c, rc, &err);
	else
		ptc_rpc_unary_async(ctl->all->client, channel, "/ptc.v1.Peer/Fetch", data, len, CONTROL_TIMEOUT_MS,
				    chunks_answered, c);
	ptc_free(data);
}

void ptc_controller_send(struct ptc_controller *ctl, const struct ptc_job_update *up)
{
	const struct ptc_node *n = ptc_cluster_node(ctl->all->cluster, up->node);
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_channel *channel;
	struct call *c = ptc_calloc(1, sizeof *c);
	void *data = NULL;
	size_t len = 0;
	int rc;

	ptc_require(c); /* the core counts on an answer to every request */
	*c = (struct call){ ptc_controller_ref(ctl), up->seq, up->node, n->up ? n->lease : 0, up->op };
	rc = ptc_channels_get(ctl->all->channels, n->doc.name, n->up ? n->doc.address : "", false, 0, &channel, &err);
	if (rc == 0)
		rc = encode(ctl, up, &data, &len, &err);
	c->all_up = all_up(&ctl->view);
	if (rc) {
		fail_later(c, rc, &err);
	} else if (up->op == PTC_OP_CHECK && !layout_known(ctl)) { /* what ranks will hold they say as they build */
		if (counts_on_chunks(ctl, up->node))
			ask_chunks(c, channel);
		else
			fail_later(c, 0, &err);
	} else if (methods[up->op].reply) {
		pull_start(c, channel, data, len);
	} else {
		ptc_rpc_unary_async(ctl->all->client, channel, methods[up->op].path, data, len,
				    methods[up->op].timeout_ms, answered, c);
	}
	ptc_free(data);
}
