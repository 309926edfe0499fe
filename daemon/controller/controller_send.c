/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of a controller to nodes (itself included: one path for all).
 *
 * Happy path: short ones (Seal, Prepare, Start, Arm, Finish) are asynchronous
 * unary calls whose answer comes back on the loop; those that last (Pull and
 * Capture move bytes, Stop, End and Build wait for ranks) are streams on a
 * thread of their own, which posts what it has learned.
 * Failure modes: every failure becomes a REPLY with its status; the core
 * decides. A node that cannot be reached is suspected: it is asked once more
 * (Stat, one second), and when that fails too its lease is revoked, so that
 * nobody waits for the lease to run out. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/limits.h"
#include "base/log.h"
#include "rpc/pb/pbcall.h"

#include "ptc.pb-c.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define CONTROL_TIMEOUT_MS 60000
#define START_TIMEOUT_MS   (PTC_RUN_BOUNDARY_MAX_MS + CONTROL_TIMEOUT_MS) /* the node keeps to the job's build_timeout */
#define PROBE_TIMEOUT_MS   1000

struct call {
	struct ptc_controller *ctl;
	uint64_t seq;
	uint32_t node;
	int64_t lease; /* the node's when it was sent */
	enum ptc_job_op op;
	bool all_up; /* no node of the switch was down when it was sent */
};

/* ---- suspicion ------------------------------------------------------------------ */

struct probe {
	struct ptc_controllers *all;
	struct ptc_rpc_channel *channel;
	uint32_t node;
	int64_t lease;
	char name[PTC_NAME_MAX + 1];
};

static void probe_free(void *arg)
{
	struct probe *p = arg;

	ptc_rpc_channel_free(p->channel);
	ptc_free(p);
}

static void revoke(void *arg, struct ptc_etcd *etcd)
{
	struct probe *p = arg;

	ptc_etcd_revoke(etcd, p->lease, NULL); /* gone already: just as well */
}

static void probed(void *arg, int status, const struct ptc_error *err, const void *reply, size_t len)
{
	struct probe *p = arg;
	struct ptc_node *n = ptc_cluster_node(p->all->cluster, p->node);

	(void)reply;
	(void)len;
	if ((status != PTC_EPEER && status != PTC_ETIMEOUT) || !n->up || n->lease != p->lease ||
	    atomic_load(p->all->stopping)) {
		probe_free(p);
		return;
	}
	ptc_warn("node", "node=%s does not answer (%s); revoking its lease", p->name, err->text);
	if (ptc_cluster_run(p->all->cluster, revoke, probe_free, p) != 0)
		probe_free(p);
}

/* lease: the one the node had when the request that failed was sent; a newer one belongs to a newer life. */
static void suspect(struct ptc_controller *ctl, uint32_t node, int64_t lease)
{
	struct ptc_node *n = ptc_cluster_node(ctl->all->cluster, node);
	Ptc__V1__ListRequest req = PTC__V1__LIST_REQUEST__INIT;
	struct probe *p;
	void *data;
	size_t len;

	if (!n->up || !lease || n->lease != lease || strcmp(n->doc.name, ctl->all->node) == 0)
		return;
	p = ptc_calloc(1, sizeof *p);
	req.version = PTC_WIRE_VERSION;
	if (!p)
		return;
	*p = (struct probe){ .all = ctl->all, .node = node, .lease = lease };
	snprintf(p->name, sizeof p->name, "%s", n->doc.name);
	/* a connection of its own: a shared one may be waiting out a back-off and would condemn a node that is back */
	if (ptc_channels_probe(ctl->all->channels, n->doc.name, n->doc.address, &p->channel, NULL) != 0 ||
	    ptc_pb_encode(&req.base, &data, &len, NULL) != 0) {
		probe_free(p);
		return;
	}
	ptc_rpc_unary_async(ctl->all->client, p->channel, "/ptc.v1.Peer/Stat", data, len, PROBE_TIMEOUT_MS, probed, p);
	ptc_free(data);
}

/* ---- answers ---------------------------------------------------------------------- */

/* Every node plans for itself; nodes that disagree would move the wrong bytes. Only plans for the same set of live
 * nodes can be compared, so a call sent while one was down is not. */
static int check_plan(struct call *c, const void *data, size_t len, struct ptc_error *err)
{
	struct ptc_controller *ctl = c->ctl;
	Ptc__V1__PrepareReply *r;
	int rc = ptc_pb_decode(&ptc__v1__prepare_reply__descriptor, data, len, (ProtobufCMessage **)&r, err);

	if (rc)
		return rc;
	if (!ctl->plan_hash[0])
		snprintf(ctl->plan_hash, sizeof ctl->plan_hash, "%s", r->plan_hash);
	else if (strcmp(ctl->plan_hash, r->plan_hash) != 0)
		rc = ptc_error_set(err, PTC_EINTERNAL,
				   "it computed plan %s, others %s: do all nodes run the same version?", r->plan_hash,
				   ctl->plan_hash);
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

static void answer(struct call *c, int status, const struct ptc_error *err, const void *data, size_t len,
		   const char *later)
{
	char text[PTC_ERROR_MAX + PTC_NAME_MAX + 8] = "";
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_job_event ev = {
		.kind = PTC_EV_REPLY, .seq = c->seq, .node = c->node, .text = text, .passed = later != NULL
	};

	if (later)
		snprintf(text, sizeof text, "%s", later);
	if (status == 0 && c->op == PTC_OP_PREPARE && c->all_up && !c->ctl->gone) {
		status = check_plan(c, data, len, &why);
		err = &why;
	} else if (status == 0 && c->op == PTC_OP_ARM) {
		status = read_arm(data, len, &ev, &why);
		err = &why;
	}
	if (status)
		snprintf(text, sizeof text, "node %s: %s", ptc_cluster_node(c->ctl->all->cluster, c->node)->doc.name,
			 err->text);
	if (status == PTC_EPEER && !c->ctl->gone)
		suspect(c->ctl, c->node, c->lease);
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

static int encode_seal(struct ptc_controller *ctl, Ptc__V1__SwitchInfo *info, void **data, size_t *len,
		       struct ptc_error *err)
{
	Ptc__V1__SealRequest req = PTC__V1__SEAL_REQUEST__INIT;
	Ptc__V1__TableKey from = PTC__V1__TABLE_KEY__INIT, to = PTC__V1__TABLE_KEY__INIT;

	from.generation = to.generation = ctl->intent.from_generation;
	from.snapshot = ctl->intent.from_snapshot;
	to.snapshot = ctl->intent.to_snapshot;
	req.version = PTC_WIRE_VERSION;
	req.info = info;
	req.from = &from;
	req.to = &to;
	return ptc_pb_encode(&req.base, data, len, err);
}

static int encode_prepare(Ptc__V1__SwitchInfo *info, bool dry_run, void **data, size_t *len, struct ptc_error *err)
{
	Ptc__V1__PrepareRequest req = PTC__V1__PREPARE_REQUEST__INIT;

	req.version = PTC_WIRE_VERSION;
	req.info = info;
	req.dry_run = dry_run;
	return ptc_pb_encode(&req.base, data, len, err);
}

/* The record's generation, for FINISH: what runs, from which snapshot. Borrows everything, and is borrowed by the message. */
static void finish_view(struct ptc_controller *ctl, const struct ptc_job_update *up, struct ptc_view *ret_view)
{
	*ret_view = ctl->view;
	ret_view->from = *ptc_controller_current(ctl);
	ret_view->fence = ctl->fence;
	ret_view->seq = up->seq;
	ret_view->to_generation = 0;
}

static int encode_finish(struct ptc_controller *ctl, const struct ptc_job_update *up, void **data, size_t *len,
			 struct ptc_error *err)
{
	Ptc__V1__FinishRequest req = PTC__V1__FINISH_REQUEST__INIT;
	Ptc__V1__TableKey keep = PTC__V1__TABLE_KEY__INIT, *list = &keep;
	struct ptc_info info = { NULL, NULL };
	struct ptc_view v;
	int rc = 0;

	keep.generation = up->keep_generation;
	keep.snapshot = up->keep_snapshot;
	req.version = PTC_WIRE_VERSION;
	req.uuid = ctl->uuid;
	req.fence = ctl->fence;
	req.seq = up->seq;
	req.n_keep = up->has_keep && up->keep_snapshot; /* snapshot 0: ranks run that have not made one */
	req.keep = &list;
	req.live = up->has_keep && ctl->has_record && ctl->record.run == PTC_RUN_LIVE;
	if (req.live) {
		finish_view(ctl, up, &v);
		rc = ptc_view_info(&v, &info, err);
		req.info = info.pb;
		req.start_step = ctl->record.step;
		req.state_hash = ctl->view.manifest.state_hash;
	}
	if (rc == 0)
		rc = ptc_pb_encode(&req.base, data, len, err);
	ptc_info_done(&info);
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
	return ptc_pb_encode(&req.base, data, len, err);
}

static int encode_workers(struct ptc_controller *ctl, const struct ptc_job_update *up, Ptc__V1__SwitchInfo *info,
			  void **data, size_t *len, struct ptc_error *err)
{
	Ptc__V1__WorkersRequest req = PTC__V1__WORKERS_REQUEST__INIT;
	Ptc__V1__TableKey sealed = PTC__V1__TABLE_KEY__INIT, next = PTC__V1__TABLE_KEY__INIT,
			  *keep[2] = { &sealed, &next };

	req.version = PTC_WIRE_VERSION;
	req.info = info;
	req.from = up->op == PTC_OP_ARM || up->op == PTC_OP_STOP || up->op == PTC_OP_END;
	req.stop = up->stop;
	req.moves = up->op == PTC_OP_STOP;
	req.start_step = ctl->record.step;
	req.has_state = ctl->intent.to_snapshot > 0;
	if (req.has_state) /* Build comes after the first commit: the snapshot's, or what rules make of that */
		req.state_hash = ctl->rank_states.hash[0] ? ctl->rank_states.hash : ctl->view.manifest.state_hash;
	sealed.generation = ctl->intent.from_generation;
	next.generation = ctl->intent.to_generation;
	sealed.snapshot = next.snapshot = ctl->intent.to_snapshot;
	req.n_keep = up->op == PTC_OP_END
			     ? 2
			     : 0; /* what is older than the first commit's snapshot is not needed any more */
	req.keep = keep;
	return ptc_pb_encode(&req.base, data, len, err);
}

static int encode_pull(struct ptc_controller *ctl, Ptc__V1__SwitchInfo *info, void **data, size_t *len,
		       struct ptc_error *err)
{
	Ptc__V1__PullRequest req = PTC__V1__PULL_REQUEST__INIT;

	req.version = PTC_WIRE_VERSION;
	req.info = info;
	req.pushed = ctl->intent.kind == PTC_SWITCH_IMPORT;
	return ptc_pb_encode(&req.base, data, len, err);
}

static int encode(struct ptc_controller *ctl, const struct ptc_job_update *up, void **data, size_t *len,
		  struct ptc_error *err)
{
	struct ptc_view *v = &ctl->view;
	struct ptc_info info;
	int rc;

	if (ptc_view_locate(v, ctl->all->cluster) != 0)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory");
	if (up->op == PTC_OP_FINISH)
		return encode_finish(ctl, up, data, len, err);
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
	if (up->op == PTC_OP_SEAL)
		rc = encode_seal(ctl, info.pb, data, len, err);
	else if (up->op == PTC_OP_PULL)
		rc = encode_pull(ctl, info.pb, data, len, err);
	else if (up->op == PTC_OP_CAPTURE)
		rc = encode_capture(ctl, up, info.pb, data, len, err);
	else if (up->op == PTC_OP_CHECK || up->op == PTC_OP_PREPARE)
		rc = encode_prepare(info.pb, up->op == PTC_OP_CHECK, data, len, err);
	else
		rc = encode_workers(ctl, up, info.pb, data, len, err);
	ptc_info_done(&info);
	return rc;
}

/* ---- calls that stream: Pull and Capture (progress, then digests), Stop, End and Build (signs of life, then one answer) -- */

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
	[PTC_OP_ARM] = { "/ptc.v1.Peer/Arm", NULL, CONTROL_TIMEOUT_MS },
	[PTC_OP_STOP] = { "/ptc.v1.Peer/Stop", &ptc__v1__workers_reply__descriptor, 0 },
	[PTC_OP_CAPTURE] = { "/ptc.v1.Peer/Capture", &ptc__v1__pull_reply__descriptor, 0 },
	[PTC_OP_END] = { "/ptc.v1.Peer/End", &ptc__v1__workers_reply__descriptor, 0 },
	[PTC_OP_BUILD] = { "/ptc.v1.Peer/Build", &ptc__v1__workers_reply__descriptor, 0 },
};

struct ptc_pull {
	struct call *call;
	struct ptc_rpc_channel *channel;
	void *data;
	size_t len;
	atomic_uint_least64_t done, total;
	atomic_bool cancelled;
	pthread_mutex_t lock;
	struct ptc_rpc_stream *stream; /* guarded by lock */
	struct ptc_pull_result result;
	int status;
	struct ptc_error err;
	struct ptc_pull *next;
};

static pthread_mutex_t pulls_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t pulls_none = PTHREAD_COND_INITIALIZER;
static size_t pulls_running;

static void pulls_count(int by)
{
	pthread_mutex_lock(&pulls_lock);
	pulls_running += (size_t)(ssize_t)by;
	if (pulls_running == 0)
		pthread_cond_broadcast(&pulls_none);
	pthread_mutex_unlock(&pulls_lock);
}

void ptc_pulls_wait(void)
{
	pthread_mutex_lock(&pulls_lock);
	while (pulls_running)
		pthread_cond_wait(&pulls_none, &pulls_lock);
	pthread_mutex_unlock(&pulls_lock);
}

static void pull_free(struct ptc_pull *p)
{
	pthread_mutex_destroy(&p->lock);
	ptc_pull_result_done(&p->result);
	ptc_free(p->data);
	ptc_free(p);
}

static int take_result(struct ptc_pull *p, const Ptc__V1__PullReply *r)
{
	struct ptc_pull_result *res = &p->result;

	if (r->n_need_index != r->n_digests)
		return ptc_error_set(&p->err, PTC_EPEER, "pull reply with %zu places and %zu digests", r->n_need_index,
				     r->n_digests);
	res->need_index = ptc_reallocarray(NULL, r->n_digests, sizeof *res->need_index);
	res->digests = ptc_reallocarray(NULL, r->n_digests, sizeof *res->digests);
	if (!res->need_index || !res->digests)
		return ptc_error_set(&p->err, PTC_ENOMEM, "out of memory for %zu digests", r->n_digests);
	res->n = r->n_digests;
	for (size_t i = 0; i < res->n; i++) {
		res->need_index[i] = r->need_index[i];
		res->digests[i] = r->digests[i];
	}
	res->wire_bytes = r->wire_bytes;
	res->copied_bytes = r->copied_bytes;
	res->verified_bytes = r->verified_bytes;
	return 0;
}

/* The last of Pull and Capture. */
static int pull_finished(struct ptc_pull *p, Ptc__V1__PullReply *r, bool *ret_taken)
{
	int rc = take_result(p, r);

	if (rc == 0 && p->call->op == PTC_OP_CAPTURE) {
		p->result.capture = r;
		*ret_taken = true;
	}
	return rc;
}

static int pull_message(struct ptc_pull *p, struct ptc_rpc_message *m, bool *ret_finished)
{
	bool pull = methods[p->call->op].reply == &ptc__v1__pull_reply__descriptor, taken = false;
	ProtobufCMessage *msg;
	int rc = ptc_pb_message(m, methods[p->call->op].reply, &msg, &p->err);

	ptc_rpc_message_done(m);
	if (rc)
		return rc;
	if (pull) {
		Ptc__V1__PullReply *r = (Ptc__V1__PullReply *)msg;

		atomic_store(&p->done, r->bytes_done);
		atomic_store(&p->total, r->bytes_total);
		*ret_finished = r->finished;
		rc = r->finished ? pull_finished(p, r, &taken) : 0;
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

static int pull_receive(struct ptc_pull *p, bool *ret_finished)
{
	struct ptc_rpc_message *m;
	int rc = ptc_rpc_stream_recv(p->stream, &m, &p->err);

	if (rc == 0 && !m) {
		rc = ptc_rpc_stream_finish(p->stream, &p->err);
		*ret_finished = p->result.layout != NULL;
		if (rc == 0 && !*ret_finished)
			rc = ptc_error_set(&p->err, PTC_EPEER, "%s ended without an answer", methods[p->call->op].path);
		return rc;
	}
	return rc ? rc : pull_message(p, m, ret_finished);
}

static int pull_run(struct ptc_pull *p)
{
	struct ptc_rpc_stream *s = NULL;
	bool finished = false;
	int rc = ptc_rpc_stream_open(p->channel, methods[p->call->op].path, 0, NULL, 0, &s, &p->err);

	if (rc)
		return rc;
	pthread_mutex_lock(&p->lock);
	p->stream = s;
	pthread_mutex_unlock(&p->lock);
	if (atomic_load(&p->cancelled))
		ptc_rpc_stream_cancel(s);
	rc = ptc_rpc_stream_send(s, &(struct ptc_rpc_part){ .data = p->data, .len = p->len }, 1, &p->err);
	if (rc == 0)
		rc = ptc_rpc_stream_half_close(s, &p->err);
	while (rc == 0 && !finished)
		rc = pull_receive(p, &finished);
	pthread_mutex_lock(&p->lock);
	p->stream = NULL;
	pthread_mutex_unlock(&p->lock);
	ptc_rpc_stream_free(s);
	return rc;
}

/* One result per node: a call that was sent again counts once. */
static void keep_result(struct ptc_controller *ctl, struct ptc_pull *p)
{
	struct ptc_pull_result *pulls;

	/* of an attempt that is over: the core has sent the next one, or none */
	if (p->call->op == PTC_OP_STOP || p->call->op == PTC_OP_END || atomic_load(&p->cancelled))
		return;
	pulls = ptc_reallocarray(ctl->pulls, ctl->npulls + 1, sizeof *pulls);
	if (!pulls) {
		p->status = ptc_error_set(&p->err, PTC_ENOMEM, "out of memory");
		return;
	}
	ctl->pulls = pulls;
	for (size_t i = 0; i < ctl->npulls; i++)
		if (pulls[i].node == p->call->node) {
			ptc_pull_result_done(&pulls[i]);
			pulls[i] = pulls[--ctl->npulls];
		}
	p->result.node = p->call->node;
	pulls[ctl->npulls++] = p->result;
	memset(&p->result, 0, sizeof p->result);
}

static void pull_ended(void *arg)
{
	struct ptc_pull *p = arg, **at;
	struct ptc_controller *ctl = p->call->ctl;
	const Ptc__V1__WorkersReply *r = p->call->op == PTC_OP_STOP && p->status == 0 ? p->result.layout : NULL;

	for (at = &ctl->running; *at && *at != p;)
		at = &(*at)->next;
	if (*at)
		*at = p->next;
	if (p->status == 0 && !ctl->gone)
		keep_result(ctl, p);
	answer(p->call, p->status, &p->err, NULL, 0, r && r->passed ? r->why : NULL);
	pull_free(p);
}

static void *pull_main(void *arg)
{
	struct ptc_pull *p = arg;

	p->status = pull_run(p);
	/* refused only when the loop has stopped for good: then the process is going down and nobody reads p */
	ptc_loop_post(p->call->ctl->all->loop, pull_ended, p);
	pulls_count(-1);
	return NULL;
}

static void pull_start(struct call *c, struct ptc_rpc_channel *channel, void *data, size_t len)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_pull *p = ptc_calloc(1, sizeof *p);
	pthread_attr_t attr;
	pthread_t thread;
	int rc;

	if (!p) {
		ptc_free(data);
		fail_later(c, ptc_error_set(&err, PTC_ENOMEM, "out of memory"), &err);
		return;
	}
	p->call = c;
	p->channel = channel;
	p->data = data;
	p->len = len;
	pthread_mutex_init(&p->lock, NULL);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pulls_count(1);
	rc = pthread_create(&thread, &attr, pull_main, p);
	pthread_attr_destroy(&attr);
	if (rc) {
		pulls_count(-1);
		pull_free(p);
		fail_later(c, ptc_error_set(&err, PTC_ENOMEM, "cannot start a thread"), &err);
		return;
	}
	p->next = c->ctl->running;
	c->ctl->running = p;
}

void ptc_controller_cancel(struct ptc_controller *ctl, uint64_t seq)
{
	for (struct ptc_pull *p = ctl->running; p; p = p->next) {
		if (seq && p->call->seq != seq)
			continue;
		atomic_store(&p->cancelled, true);
		pthread_mutex_lock(&p->lock);
		if (p->stream)
			ptc_rpc_stream_cancel(p->stream);
		pthread_mutex_unlock(&p->lock);
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
	} else if (up->op == PTC_OP_CHECK && !layout_known(ctl)) {
		ptc_free(data);
		fail_later(c, 0, &err); /* what the ranks will hold is known when they have built it */
	} else if (methods[up->op].reply) {
		pull_start(c, channel, data, len);
	} else {
		ptc_rpc_unary_async(ctl->all->client, channel, methods[up->op].path, data, len,
				    methods[up->op].timeout_ms, answered, c);
		ptc_free(data);
	}
}
