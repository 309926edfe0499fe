/* SPDX-License-Identifier: Apache-2.0 */
/* Starts ranks of a resize before it begins, and has them build meanwhile (build: ahead). Happy path and failure
 * modes: ahead.h. First the devices are claimed. Then each node is asked to start its ranks, and to build them
 * (Peer/Start, Peer/Build). These requests are in the job's order, and are sent only while no switch is under way; if
 * a switch ends them, they are sent again. A node that has carried out such a request before answers it at once. The
 * ranks' declarations are compared with the state and written into etcd, so the switch knows its layout from its first
 * check on. Ranks may declare without memory (ptc_declared); a failure up to here costs nothing. A node with such
 * ranks is then asked to build once more, and answers when they have memory and wait to be restored. */
#include "daemon/controller/internal.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "proto/pb.h"
#include "rpc/pb/pbcall.h"

#include "ptc.pb-c.h"

#include <stdio.h>
#include <string.h>

#define START_MS  (PTC_RUN_BOUNDARY_MAX_MS + 60000) /* the node keeps to the job's build_timeout */
#define END_MS    60000
#define RETRY_NS  INT64_C(200000000)
#define PACE_NS   INT64_C(1000000000) /* so short before the building the ranks may have been asked */
#define TRIES_MAX 50                  /* of a node that does not answer: as long as its lease lives, and a little */

enum want { WANT_START, WANT_BUILD, WANT_NOTHING };
enum stage { CLAIMING, BUILDING, WRITING, PLACING, BUILT };

struct ahead_node {
	uint32_t node; /* cluster number */
	enum want want;
	unsigned tries;            /* that failed in a row */
	int64_t retry_ns;          /* not asked before */
	int64_t since_ns;          /* first asked for what it is asked for now; 0: not yet */
	struct ptc_rpc_async *rpc; /* of a Build under way */
	Ptc__V1__WorkersReply *declared;
	bool no_memory; /* some of its ranks have said what they hold, and have no memory for it yet */
	bool asked;
};

/* Counted by ctl->ahead and by each call under way. */
struct ptc_ahead {
	struct ptc_controller *ctl; /* a reference */
	int refs;
	uint64_t generation, incarnation; /* of the record that it was planned for */
	struct ptc_switch_request request;
	struct ahead_node *nodes;
	Ptc__V1__WorkersReply **declared; /* the nodes', while WRITING */
	size_t nnodes;
	enum stage stage;
	int64_t began_ns, built_ns;
	struct {                  /* of the ranks that train, as they were asked when the building began */
		int64_t asked_ns; /* 0: not known */
		uint64_t step;
		double step_s;
	} pace;
	bool over;      /* nothing more is done, and answers are not looked at */
	bool submitted; /* the switch has begun */
};

struct ahead_call {
	struct ptc_ahead *a;
	size_t at; /* in nodes */
	bool build;
	Ptc__V1__WorkersReply *answer; /* the last message of Build, with `finished` */
};

static struct ptc_ahead *unref(struct ptc_ahead *a)
{
	if (a && --a->refs == 0) {
		ptc_switch_request_done(&a->request);
		for (size_t i = 0; i < a->nnodes; i++)
			if (a->nodes[i].declared)
				ptc_pb_free(&a->nodes[i].declared->base);
		ptc_free(a->nodes);
		ptc_free(a->declared);
		ptc_controller_unref(a->ctl);
		ptc_free(a);
	}
	return NULL;
}

/* ---- messages ----------------------------------------------------------------- */

/* The switch as it would begin now; end it with view_done. */
static int view_make(const struct ptc_ahead *a, struct ptc_view *ret)
{
	struct ptc_controller *ctl = a->ctl;
	struct ptc_view v = { .meta = ctl->meta, .fence = ctl->fence, .switch_id = a->request.id };

	v.from_generation = ctl->record.generation;
	v.from_snapshot = ctl->record.snapshot;
	v.from_incarnation = ctl->record.incarnation;
	v.to_generation = v.from_generation + 1;
	v.to_snapshot = v.from_snapshot + 1;
	v.to_incarnation = a->request.id;
	v.manifest = ctl->view.manifest;
	if (ptc_generation_doc_copy(&ctl->view.from, &v.from) || ptc_generation_doc_copy(&a->request.to, &v.to) ||
	    ptc_view_nodes(&v) || ptc_view_locate(&v, ctl->all->cluster)) {
		v.manifest = (struct ptc_manifest_doc){ 0 };
		ptc_view_done(&v);
		return PTC_ENOMEM;
	}
	*ret = v;
	return 0;
}

/* The same two generations, for a task that has them to itself. */
static int view_copy(const struct ptc_ahead *a, struct ptc_view *ret)
{
	struct ptc_controller *ctl = a->ctl;

	*ret = (struct ptc_view){ .meta = ctl->meta,
				  .from_generation = ctl->record.generation,
				  .from_snapshot = ctl->record.snapshot + 1,
				  .to_generation = ctl->record.generation + 1,
				  .to_snapshot = ctl->record.snapshot + 1 };
	if (ptc_generation_doc_copy(&ctl->view.from, &ret->from) == 0 &&
	    ptc_generation_doc_copy(&a->request.to, &ret->to) == 0 && ptc_view_nodes(ret) == 0)
		return 0;
	ptc_view_done(ret);
	return PTC_ENOMEM;
}

static void view_done(struct ptc_view *v)
{
	v->manifest = (struct ptc_manifest_doc){ 0 }; /* the controller's */
	ptc_view_done(v);
}

/* end: of the new ranks. layout: what they hold is enough. */
static int encode(const struct ptc_ahead *a, bool end, bool layout, void **data, size_t *len, struct ptc_error *err)
{
	Ptc__V1__WorkersRequest req = PTC__V1__WORKERS_REQUEST__INIT;
	struct ptc_controller *ctl = a->ctl;
	struct ptc_info info;
	struct ptc_view v;
	int rc = view_make(a, &v);

	if (rc)
		return ptc_nomem(err);
	v.seq = ptc_job_take_seq(ctl->core);
	rc = ptc_view_info(&v, &info, err);
	if (!rc) {
		req.version = PTC_WIRE_VERSION;
		req.info = info.pb;
		req.start_step = ctl->record.step;
		req.has_state = true;
		req.state_hash = ctl->view.manifest.state_hash;
		req.told = end;
		req.layout = layout;
		req.ahead = !end;
		rc = ptc_pb_encode(&req.base, data, len, err);
		ptc_info_done(&info);
	}
	view_done(&v);
	return rc;
}

static int channel_to(struct ptc_controller *ctl, uint32_t node, struct ptc_rpc_channel **ret, struct ptc_error *err)
{
	const struct ptc_node *n = ptc_cluster_node(ctl->all->cluster, node);

	if (!n->up)
		return ptc_error_set(err, PTC_EPEER, "it is down");
	return ptc_channels_get(ctl->all->channels, n->doc.name, n->doc.address, false, 0, ret, err);
}

/* ---- the end -------------------------------------------------------------------- */

struct end_call {
	struct ptc_ahead *a;
	uint32_t node; /* cluster number */
};

/* A FINISH ends them just as well. But a node that is not in the record may get none as long as nothing happens. So it
 * gets one once the job is idle, and the core sends it until the node has answered. */
static void end_failed(struct ptc_ahead *a, uint32_t node)
{
	const char *name = ptc_cluster_node(a->ctl->all->cluster, node)->doc.name;
	struct ptc_older_kept *k = &a->ctl->older;

	if (!ptc_older_has(&k->tell, name) && ptc_older_node_add(&k->tell, name) != 0)
		k->tell_all = true;
}

static void end_answered(void *arg, int status, const struct ptc_error *err, const void *reply, size_t len)
{
	struct end_call *c = arg;

	(void)err;
	(void)reply;
	(void)len;
	if (status)
		end_failed(c->a, c->node);
	unref(c->a);
	ptc_free(c);
}

static int end_message(void *arg, struct ptc_rpc_message *m, struct ptc_error *err)
{
	(void)arg;
	(void)m;
	(void)err;
	return 0;
}

/* Nodes end what they have of the new ranks. */
static void end_ranks(struct ptc_ahead *a)
{
	for (size_t i = 0; i < a->nnodes; i++) {
		struct ptc_error ignored = PTC_ERROR_INIT;
		struct ptc_rpc_channel *channel;
		struct end_call *c;
		void *data = NULL;
		size_t len = 0;

		if (channel_to(a->ctl, a->nodes[i].node, &channel, &ignored) ||
		    encode(a, true, false, &data, &len, &ignored)) {
			end_failed(a, a->nodes[i].node);
			continue;
		}
		c = ptc_calloc(1, sizeof *c);
		ptc_require(c);
		*c = (struct end_call){ a, a->nodes[i].node };
		a->refs++;
		ptc_rpc_stream_async(a->ctl->all->client, channel, "/ptc.v1.Peer/End", data, len, end_message,
				     end_answered, c);
		ptc_free(data);
	}
}

void ptc_ahead_stop(struct ptc_controller *ctl, int status, const char *why)
{
	struct ptc_ahead *a = ctl->ahead;

	if (!a || a->submitted)
		return;
	ctl->ahead = NULL;
	a->over = true;
	for (size_t i = 0; i < a->nnodes; i++)
		if (a->nodes[i].rpc)
			ptc_rpc_async_cancel(a->nodes[i].rpc);
	if (!ctl->gone) {
		end_ranks(a);
		ptc_event_with(ctl->all->cluster, ctl->uuid, "aborted",
			       &(struct ptc_switch_end){ a->request.id, status, why }, "%s: %s",
			       ptc_status_name(status), why);
	}
	ptc_watcher_finish(a->request.watcher, status, why, NULL);
	unref(a);
}

struct ptc_watcher *ptc_ahead_take_watcher(struct ptc_controller *ctl)
{
	struct ptc_watcher *w = ctl->ahead ? ctl->ahead->request.watcher : NULL;

	if (w)
		ctl->ahead->request.watcher = NULL;
	return w;
}

void ptc_ahead_over(struct ptc_controller *ctl)
{
	struct ptc_ahead *a = ctl->ahead;

	if (!a || !a->submitted)
		return;
	if (!ctl->gone &&
	    ctl->record.incarnation != a->request.id) /* a switch that its check refuses sends no FINISH */
		end_ranks(a);
	ctl->ahead = unref(a);
}

bool ptc_ahead_builds(const struct ptc_controller *ctl, uint64_t *ret_id)
{
	if (!ctl->ahead || ctl->ahead->submitted)
		return false;
	*ret_id = ctl->ahead->request.id;
	return true;
}

bool ptc_ahead_stays(const struct ptc_controller *ctl, uint64_t *ret_generation, uint64_t *ret_incarnation)
{
	const struct ptc_ahead *a = ctl->ahead;

	if (!a || (a->submitted && ptc_job_phase(ctl->core) == PTC_JOB_ABORTING))
		return false;
	*ret_generation = a->generation + 1;
	*ret_incarnation = a->request.id;
	return true;
}

bool ptc_ahead_took(const struct ptc_controller *ctl, double *ret_seconds)
{
	const struct ptc_ahead *a = ctl->ahead;

	if (!a || !a->submitted)
		return false;
	*ret_seconds = (double)(a->built_ns - a->began_ns) / 1e9;
	return true;
}

/* ---- the pace of the others --------------------------------------------------------- */

static void note_pace(struct ptc_ahead *a)
{
	const struct ptc_rank_rounds *r = &a->ctl->recovery.rounds;

	if (a->pace.asked_ns || r->incarnation != a->incarnation || !r->n || r->done_ns < a->began_ns - PACE_NS ||
	    r->least == UINT64_MAX || !(r->stand.step_s > 0))
		return;
	a->pace.asked_ns = r->done_ns;
	a->pace.step = r->least;
	a->pace.step_s = r->stand.step_s;
}

bool ptc_ahead_slowed(const struct ptc_controller *ctl, int64_t until_ns, uint64_t step, double *ret_seconds)
{
	const struct ptc_ahead *a = ctl->ahead;
	double took;

	if (!a || !a->submitted || !a->pace.asked_ns || step < a->pace.step)
		return false;
	took = (double)(until_ns - a->pace.asked_ns) / 1e9;
	*ret_seconds = PTC_MAX(0.0, took - (double)(step - a->pace.step) * a->pace.step_s);
	return true;
}

/* ---- the switch ------------------------------------------------------------------ */

static void tell(const struct ptc_ahead *a)
{
	char text[160];
	size_t left = 0;

	for (size_t i = 0; i < a->nnodes; i++)
		left += a->nodes[i].want != WANT_NOTHING;
	snprintf(text, sizeof text, "new ranks %s while the others train: %zu of %zu nodes left",
		 a->stage == PLACING ? "take memory" : "build", left, a->nnodes);
	ptc_watcher_progress(a->request.watcher, "building", 0, 0, text);
}

/* The nodes are told of the generation also when its switch has come to nothing, so the request is kept. */
static void submit(struct ptc_ahead *a)
{
	struct ptc_controller *ctl = a->ctl;
	struct ptc_switch_request r = a->request;
	struct ptc_error err = PTC_ERROR_INIT;
	int rc;

	r.to = (struct ptc_generation_doc){ 0 };
	rc = ptc_generation_doc_copy(&a->request.to, &r.to) ? ptc_nomem(&err) : 0;
	r.base_snapshot = ctl->record.snapshot;
	r.ahead = false;
	a->submitted = true;
	if (rc == 0)
		rc = ctl->submit(ctl, &r, &err);
	ptc_generation_doc_done(&r.to);
	a->request.watcher = r.watcher;
	a->request.plan = r.plan;
	a->request.emptied = r.emptied;
	a->request.nemptied = r.nemptied;
	if (rc == 0)
		return;
	a->submitted = false;
	ptc_ahead_stop(ctl, rc, err.text);
}

/* NULL: it may go on. */
static const char *overtaken(const struct ptc_ahead *a)
{
	const struct ptc_controller *ctl = a->ctl;

	if (ctl->record.run != PTC_RUN_LIVE)
		return "the job's ranks have ended while the new ones built";
	if (ctl->record.generation != a->generation || ctl->record.incarnation != a->incarnation)
		return "the job was started again while its new ranks built; ask again";
	return NULL;
}

/* ---- calls ------------------------------------------------------------------------ */

static bool passes(int status)
{
	return status == PTC_ECANCELED || status == PTC_EFENCED || status == PTC_EPEER || status == PTC_ETIMEOUT;
}

/* The node counts build_timeout for each request, but snapshots end requests. Ranks that hang are not to be waited for
 * without end where snapshots come more often. */
static bool too_long(const struct ptc_ahead *a, const struct ahead_node *n)
{
	const struct ptc_recovery *r = &a->ctl->recovery;

	return r->has_elastic && ptc_sys_now_ns() - n->since_ns >= r->first_step_ms * INT64_C(1000000);
}

static void failed(struct ptc_ahead *a, const struct ahead_node *n, int status, const struct ptc_error *err)
{
	const char *text = err ? err->text : ptc_status_name(status);
	const bool late = passes(status) && too_long(a, n);
	char why[PTC_ERROR_MAX], over[64] = "";

	if (late)
		snprintf(over, sizeof over,
			 "build_timeout of %lld s is over: ", (long long)(a->ctl->recovery.first_step_ms / 1000));
	snprintf(why, sizeof why, "node %s: %s%.800s", ptc_cluster_node(a->ctl->all->cluster, n->node)->doc.name, over,
		 text);
	ptc_ahead_stop(a->ctl, late ? PTC_ESTATE : status, why);
}

static void answered(struct ahead_call *c, int status, const struct ptc_error *err)
{
	struct ptc_ahead *a = c->a;
	struct ahead_node *n = &a->nodes[c->at];
	bool busy = !ptc_controller_idle(a->ctl);

	n->asked = false;
	n->rpc = NULL;
	if (a->over || a->submitted) {
		/* nobody waits for it */
	} else if (status == 0) {
		n->want = c->build ? WANT_NOTHING : WANT_BUILD;
		n->tries = 0;
		n->since_ns = 0;
		if (!n->declared) {
			n->declared = c->answer;
			n->no_memory = c->answer && c->answer->no_memory;
			c->answer = NULL;
		}
		tell(a);
	} else if (passes(status) && !too_long(a, n) && (busy || ++n->tries < TRIES_MAX)) {
		n->retry_ns = ptc_sys_now_ns() + RETRY_NS; /* a snapshot ended it, or the node is away */
	} else {
		failed(a, n, status, err);
	}
	if (c->answer)
		ptc_pb_free(&c->answer->base);
	ptc_free(c);
	unref(a);
}

static void start_answered(void *arg, int status, const struct ptc_error *err, const void *reply, size_t len)
{
	(void)reply;
	(void)len;
	answered(arg, status, err);
}

/* The rpc client's thread. Nodes that go on to declare say so in the last message. */
static int build_message(void *arg, struct ptc_rpc_message *m, struct ptc_error *err)
{
	struct ahead_call *c = arg;
	ProtobufCMessage *msg;
	int rc = ptc_pb_message(m, &ptc__v1__workers_reply__descriptor, &msg, err);

	if (rc)
		return rc;
	if (!c->answer && ((Ptc__V1__WorkersReply *)msg)->finished)
		c->answer = (Ptc__V1__WorkersReply *)msg;
	else
		ptc_pb_free(msg);
	return 0;
}

static void build_answered(void *arg, int status, const struct ptc_error *err, const void *reply, size_t len)
{
	struct ahead_call *c = arg;

	(void)reply;
	(void)len;
	answered(c, c->answer ? 0 : status ? status : PTC_EPEER, status ? err : NULL);
}

static void ask(struct ptc_ahead *a, size_t at)
{
	struct ahead_node *n = &a->nodes[at];
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_rpc_channel *channel;
	struct ahead_call *c;
	void *data = NULL;
	size_t len = 0;
	int rc = channel_to(a->ctl, n->node, &channel, &err);

	c = ptc_calloc(1, sizeof *c);
	ptc_require(c);
	*c = (struct ahead_call){ .a = a, .at = at, .build = n->want == WANT_BUILD };
	a->refs++;
	n->asked = true;
	if (!n->since_ns)
		n->since_ns = ptc_sys_now_ns();
	if (rc == 0)
		rc = encode(a, false, a->stage == BUILDING, &data, &len, &err);
	if (rc)
		answered(c, rc, &err);
	else if (c->build)
		n->rpc = ptc_rpc_stream_async(a->ctl->all->client, channel, "/ptc.v1.Peer/Build", data, len,
					      build_message, build_answered, c);
	else
		ptc_rpc_unary_async(a->ctl->all->client, channel, "/ptc.v1.Peer/Start", data, len, START_MS,
				    start_answered, c);
	ptc_free(data);
}

/* ---- life --------------------------------------------------------------------------- */

static void claimed(void *arg, int status, const char *why)
{
	struct ptc_ahead *a = arg;

	if (a->stage == CLAIMING)
		a->stage = BUILDING;
	if (status && !a->over)
		ptc_ahead_stop(a->ctl, status, why);
	else if (!a->over)
		ptc_ahead_tick(a->ctl);
	unref(a);
}

static void layout_written(void *arg, int status, const char *why, const char *hash)
{
	struct ptc_ahead *a = arg;

	a->stage = PLACING;
	for (size_t i = 0; i < a->nnodes; i++)
		a->nodes[i].want = a->nodes[i].no_memory ? WANT_BUILD : WANT_NOTHING;
	if (status && !a->over) {
		ptc_ahead_stop(a->ctl, status, why);
	} else if (!a->over) {
		snprintf(a->request.to.layout_hash, sizeof a->request.to.layout_hash, "%s", hash);
		ptc_ahead_tick(a->ctl);
	}
	unref(a);
}

/* What all have declared, beside what is trained. */
static void write_layout(struct ptc_ahead *a)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_view v;

	a->declared = ptc_calloc(a->nnodes, sizeof(Ptc__V1__WorkersReply *));
	if (!a->declared || view_copy(a, &v) != 0) {
		ptc_nomem(&err);
		ptc_ahead_stop(a->ctl, PTC_ENOMEM, err.text);
		return;
	}
	for (size_t i = 0; i < a->nnodes; i++)
		a->declared[i] = a->nodes[i].declared;
	a->stage = WRITING;
	a->refs++;
	ptc_declared_write(a->ctl, &v, a->declared, a->nnodes, layout_written, a);
}

/* True: all have done what is wanted of them. */
static bool ask_nodes(struct ptc_ahead *a)
{
	bool all = true;

	for (size_t i = 0; i < a->nnodes && !a->over; i++) {
		struct ahead_node *n = &a->nodes[i];

		all = all && n->want == WANT_NOTHING;
		if (n->want != WANT_NOTHING && !n->asked && ptc_sys_now_ns() >= n->retry_ns)
			ask(a, i);
	}
	return all && !a->over;
}

void ptc_ahead_tick(struct ptc_controller *ctl)
{
	struct ptc_ahead *a = ctl->ahead;
	const char *why;

	if (!a || a->submitted || !ptc_controller_idle(ctl))
		return;
	why = overtaken(a);
	if (why) {
		ptc_ahead_stop(ctl, PTC_ESTATE, why);
		return;
	}
	note_pace(a);
	a->refs++;
	if (a->stage == BUILDING && ask_nodes(a))
		write_layout(a);
	if (a->stage == PLACING && ask_nodes(a)) {
		a->stage = BUILT;
		a->built_ns = ptc_sys_now_ns();
	}
	if (a->stage == BUILT && !a->over && ptc_controller_ready(ctl))
		submit(a);
	unref(a);
}

int ptc_ahead_begin(struct ptc_controller *ctl, struct ptc_switch_request *r, struct ptc_error *err)
{
	struct ptc_ahead *a = ptc_calloc(1, sizeof *a);
	uint32_t *nodes = ptc_controller_numbers(ctl, &r->to);

	if (a)
		a->nodes = ptc_calloc(r->to.nnodes, sizeof *a->nodes);
	if (!a || !nodes || !a->nodes) {
		ptc_free(nodes);
		ptc_free(a ? a->nodes : NULL);
		ptc_free(a);
		return ptc_nomem(err);
	}
	a->ctl = ptc_controller_ref(ctl);
	a->refs = 1;
	a->generation = ctl->record.generation;
	a->incarnation = ctl->record.incarnation;
	a->began_ns = ptc_sys_now_ns();
	a->nnodes = r->to.nnodes;
	for (size_t i = 0; i < a->nnodes; i++)
		a->nodes[i].node = nodes[i];
	ptc_free(nodes);
	a->request = *r;
	memset(&r->to, 0, sizeof r->to);
	r->plan = NULL;
	r->emptied = NULL;
	r->nemptied = 0;
	r->watcher = NULL;
	ctl->ahead = a;
	ptc_event(ctl->all->cluster, ctl->uuid, "building",
		  "new ranks of %s build on %zu nodes while the others train; %s", a->request.to.config, a->nnodes,
		  a->request.plan ? a->request.plan->build.why : "room was not checked");
	tell(a);
	a->refs++;
	ptc_device_claim_early(ctl, &a->request.to, claimed, a);
	return 0;
}
