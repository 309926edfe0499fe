/* SPDX-License-Identifier: Apache-2.0 */
/* The states of a job's ranks, for status, and a switch's progress until their first step. Happy path: every node of
 * the job is asked, and a switch that started ranks waits until each has ended a step. Failure modes: a node that does
 * not answer shows its ranks as unknown; a job that fails before its ranks' first step is reported (PTC_ESTATE). */
#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/sys/sys.h"
#include "daemon/api/switches/switches.h"
#include "daemon/cluster/ranks/rank_rows.h"
#include "daemon/controller/recovery/stragglers.h"
#include "formats/json.h"

#include <stdio.h>
#include <string.h>

#define RANKS_TIMEOUT_MS 2000
#define FIRST_STEP_MS    60000 /* longer is not waited for */

/* ---- what ranks do ------------------------------------------------------------------ */

char *ptc_api_ask_ranks(struct ptc_daemon *d, const char *uuid, const char *node, const char *address)
{
	Ptc__V1__JobRequest req = PTC__V1__JOB_REQUEST__INIT;
	struct ptc_rpc_channel *channel;
	ProtobufCMessage *reply;
	char *text;

	if (!address[0] || ptc_channels_get(d->channels, node, address, false, 0, &channel, NULL) != 0)
		return NULL;
	req.version = PTC_WIRE_VERSION;
	req.job = (char *)(uintptr_t)uuid; /* packing only reads */
	if (ptc_pb_unary(channel, "/ptc.v1.Peer/Ranks", &req.base, RANKS_TIMEOUT_MS, NULL, 0,
			 &ptc__v1__document__descriptor, &reply, NULL) != 0)
		return NULL;
	text = ptc_strdup(((Ptc__V1__Document *)reply)->json);
	ptc_pb_free(reply);
	return text;
}

/* Asks the nodes of the committed generation. Gives the answer of each (NULL: none), by its number there; NULL: out of
 * memory. */
static char **ask_nodes(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v)
{
	char **said = ptc_calloc(v->from.nnodes, sizeof *said);

	for (size_t n = 0; said && n < v->from.nnodes; n++)
		for (size_t k = 0; k < v->nnodes; k++)
			if (strcmp(v->nodes[k], v->from.nodes[n]) == 0)
				said[n] = ptc_api_ask_ranks(d, t->meta.uuid, v->nodes[k], v->addresses[k]);
	return said;
}

static void answers_free(char **said, size_t n)
{
	for (size_t i = 0; said && i < n; i++)
		ptc_free(said[i]);
	ptc_free(said);
}

static json_int_t row_int(const json_t *row, const char *key)
{
	return json_integer_value(json_object_get(row, key));
}

/* The rank's row in what its node has said; NULL: not there. */
static json_t *find_row(json_t *rows, uint32_t rank, const struct ptc_record_doc *r)
{
	size_t i;
	json_t *row;

	json_array_foreach(rows, i, row) {
		if (row_int(row, "rank") == (json_int_t)rank &&
		    row_int(row, "generation") == (json_int_t)r->generation &&
		    row_int(row, "incarnation") == (json_int_t)r->incarnation)
			return row;
	}
	return NULL;
}

/* What the nodes say of the devices of the ranks. */
struct healths {
	struct ptc_daemon *d;
	const struct ptc_view *v;
	char (*of)[PTC_HEALTH_BYTES]; /* by rank; "": the device is well */
};

static void healths_on_loop(void *arg)
{
	struct healths *h = arg;
	uint32_t at;

	for (uint32_t r = 0; r < h->v->from.world; r++)
		if (ptc_cluster_find_node(h->d->cluster, h->v->from.nodes[h->v->from.rank_node[r]], &at))
			(void)ptc_node_device_well(ptc_cluster_node(h->d->cluster, at), h->v->from.rank_device[r],
						   h->of[r]);
}

static json_t *rank_row(json_t *rows, const struct ptc_view *v, uint32_t rank, const struct ptc_record_doc *r)
{
	json_t *found = rows ? find_row(rows, rank, r) : NULL;
	json_t *row = found ? json_deep_copy(found) : json_pack("{s:s}", "state", rows ? "exited" : "unknown");
	double seconds;

	json_object_set_new(row, "rank", json_integer(rank));
	json_object_set_new(row, "node", json_string(v->from.nodes[v->from.rank_node[rank]]));
	json_object_set_new(row, "device", json_integer(v->from.rank_device[rank]));
	seconds = json_number_value(json_object_get(row, "step_seconds"));
	json_object_del(row, "step_seconds");
	json_object_del(row, "start_step");
	json_object_del(row, "median_step_seconds");
	json_object_del(row, "world"); /* these two are for who looks for logs */
	json_object_del(row, "since_ms");
	if (seconds > 0)
		json_object_set_new(row, "steps_per_s", json_real(1 / seconds));
	return row;
}

static json_t *with_health(json_t *row, char (*health)[PTC_HEALTH_BYTES], uint32_t rank)
{
	if (health && health[rank][0])
		json_object_set_new(row, "device_health", json_string(health[rank]));
	return row;
}

/* NULL: there is no answer, or it is not a list. */
static json_t *answer_json(const char *said)
{
	json_t *rows = NULL;

	if (!said || ptc_json_load("ranks", said, strlen(said), &rows, NULL) != 0)
		return NULL;
	if (!json_is_array(rows)) {
		json_decref(rows);
		return NULL;
	}
	return rows;
}

/* Rows of every rank of the committed generation, ascending, as nodes say them. */
static json_t *rank_rows(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v)
{
	char **said = ask_nodes(d, t, v);
	json_t *ranks = json_array(), **rows = ptc_calloc(v->from.nnodes, sizeof *rows);
	struct healths h = { d, v, ptc_calloc(v->from.world, sizeof *h.of) };

	if (h.of)
		(void)ptc_loop_call(d->loop, healths_on_loop, &h);
	for (size_t n = 0; said && rows && n < v->from.nnodes; n++)
		rows[n] = answer_json(said[n]);
	for (uint32_t r = 0; said && rows && r < v->from.world; r++)
		json_array_append_new(ranks,
				      with_health(rank_row(rows[v->from.rank_node[r]], v, r, &t->record), h.of, r));
	for (size_t n = 0; rows && n < v->from.nnodes; n++)
		json_decref(rows[n]);
	ptc_free(rows);
	answers_free(said, v->from.nnodes);
	ptc_free(h.of);
	return ranks;
}

/* The least step of the ranks that have one, the slowest rate, the longest stall, and of each report the lowest rank's.
 */
static void add_sums(json_t *run, json_t *ranks)
{
	json_t *reports = json_object(), *row, *step, *rate;
	json_int_t least = -1, stalled = 0, hangs = -1;
	double slowest = 0;
	size_t i;

	json_array_foreach(ranks, i, row) {
		step = json_object_get(row, "step");
		rate = json_object_get(row, "steps_per_s");
		if (json_is_integer(step) && (least < 0 || json_integer_value(step) < least))
			least = json_integer_value(step);
		if (json_is_number(rate) && (slowest <= 0 || json_number_value(rate) < slowest))
			slowest = json_number_value(rate);
		stalled = PTC_MAX(stalled, row_int(row, "stalled_s"));
		if (json_object_get(row, "hangs_s"))
			hangs = PTC_MAX(hangs, row_int(row, "hangs_s"));
		if (json_is_object(json_object_get(row, "reports")))
			json_object_update_missing(reports, json_object_get(row, "reports"));
	}
	if (least >= 0)
		json_object_set_new(run, "step", json_integer(least));
	if (slowest > 0)
		json_object_set_new(run, "steps_per_s", json_real(slowest));
	if (stalled)
		json_object_set_new(run, "stalled_s", json_integer(stalled));
	if (hangs >= 0)
		json_object_set_new(run, "hangs_s", json_integer(hangs));
	if (json_object_size(reports))
		json_object_set(run, "reports", reports);
	json_decref(reports);
}

struct failure {
	struct ptc_daemon *d;
	const struct ptc_target *t;
	char text[1024];
};

static void find_failure(void *arg)
{
	struct failure *f = arg;
	struct ptc_job_view *j = ptc_cluster_find_uuid(f->d->cluster, f->t->meta.uuid);
	char line[900];

	for (size_t i = 0; j && i < j->nworkers; i++) {
		const struct ptc_worker_doc *w = &j->workers[i].doc;

		/* not its generation: a resize of a job that has failed makes another one, which has not run */
		if (w->state == PTC_WORKER_FAILED && w->incarnation == f->t->record.incarnation)
			snprintf(f->text, sizeof f->text, "node %s: %s", j->workers[i].node,
				 ptc_worker_text_line(w->text, line, sizeof line));
	}
}

struct waiting {
	struct ptc_daemon *d;
	const struct ptc_target *t;
	char text[1024];
	json_t *stragglers; /* NULL: nothing is known of them here */
};

struct left {
	struct ptc_daemon *d;
	const struct ptc_target *t;
	json_t *list;
};

static void find_left(void *arg)
{
	struct left *f = arg;
	const struct ptc_job_view *j = ptc_cluster_find_uuid(f->d->cluster, f->t->meta.uuid);
	int64_t now = ptc_sys_realtime_ms();

	for (size_t i = 0; j && i < j->slow.n; i++)
		if (j->slow.v[i].until_ms > now)
			json_array_append_new(f->list, json_pack("{s:s, s:I, s:I, s:I}", "node", j->slow.v[i].node,
								 "device", (json_int_t)j->slow.v[i].device, "since_ms",
								 (json_int_t)j->slow.v[i].since_ms, "until_ms",
								 (json_int_t)j->slow.v[i].until_ms));
}

/* Devices that the job has left, because its ranks were slow there. */
static void add_left(struct ptc_daemon *d, const struct ptc_target *t, json_t *run)
{
	struct left f = { .d = d, .t = t, .list = json_array() };

	if (ptc_loop_call(d->loop, find_left, &f) == 0 && json_array_size(f.list))
		json_object_set(run, "left_devices", f.list);
	json_decref(f.list);
}

static void find_waiting(void *arg)
{
	struct waiting *w = arg;
	struct ptc_controller *ctl = ptc_controller_find(&w->d->controllers, w->t->meta.uuid);

	snprintf(w->text, sizeof w->text, "%s", ctl ? ptc_controller_waits(ctl) : "");
	w->stragglers = ptc_stragglers_json(ctl);
}

/* Why a job does not go on whose ranks, or some of whose ranks, are lost, and which ranks are slow: what its controller
 * says, which may be another daemon; and what is written down. */
static void add_recovery(struct ptc_daemon *d, const struct ptc_target *t, json_t *run)
{
	static const char *const causes[] = { [PTC_RECOVERY_NODE] = "node", [PTC_RECOVERY_PROGRAM] = "program" };
	struct waiting w = { .d = d, .t = t };
	json_t *r = json_object();

	if (ptc_loop_call(d->loop, find_waiting, &w) == 0 && w.text[0])
		json_object_set_new(r, "waits", json_string(w.text));
	if (w.stragglers)
		json_object_set_new(run, "stragglers", w.stragglers);
	if (t->record.recovery)
		json_object_set_new(r, "cause", json_string(t->record.hung ? "hang" : causes[t->record.recovery]));
	if (t->record.recovery && t->record.reached)
		json_object_set_new(r, "reached", json_integer((json_int_t)t->record.reached));
	if (t->record.restarts)
		json_object_set_new(r, "restarts", json_integer((json_int_t)t->record.restarts));
	if (json_object_size(r))
		json_object_set(run, "recovery", r);
	json_decref(r);
}

json_t *ptc_api_run_json(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v)
{
	json_t *run = json_pack("{s:s, s:I}", "state", ptc_record_run_name(&t->record), "incarnation",
				(json_int_t)t->record.incarnation);
	struct failure f = { .d = d, .t = t };
	json_t *ranks;

	add_left(d, t, run);
	if (t->record.recovery || t->record.run == PTC_RUN_LIVE)
		add_recovery(d, t, run);
	if (t->record.run == PTC_RUN_FAILED && ptc_loop_call(d->loop, find_failure, &f) == 0 && f.text[0])
		json_object_set_new(run, "text", json_string(f.text));
	if (t->record.run != PTC_RUN_LIVE || !v)
		return run;
	ranks = rank_rows(d, t, v);
	add_sums(run, ranks);
	json_object_set_new(run, "ranks", ranks);
	return run;
}

/* ---- progress until the first step ------------------------------------------------------- */

struct first_step {
	struct ptc_daemon *d;
	struct ptc_rpc_call *call;
	struct ptc_target t;   /* of the switch, then as it is now */
	struct failure failed; /* text: set once the job has */
	json_t *root;          /* the summary, once the switch is made */
	struct ptc_view v;
	bool viewed;
	int64_t began_ns;
	struct ptc_tail *tail; /* the controller has gone */
};

static const struct ptc_rank_row *find_rank(const struct ptc_rank_rows *rows, uint32_t rank,
					    const struct ptc_record_doc *r)
{
	for (size_t i = 0; i < rows->n; i++)
		if (rows->v[i].rank == rank && rows->v[i].generation == r->generation &&
		    rows->v[i].incarnation == r->incarnation)
			return &rows->v[i];
	return NULL;
}

static bool all_stepped(const struct first_step *f, const struct ptc_target *t, const struct ptc_view *v,
			uint64_t start)
{
	char **said = ask_nodes(f->d, t, v);
	struct ptc_rank_rows *rows = ptc_calloc(v->from.nnodes, sizeof *rows);
	bool all = said && rows;

	for (size_t n = 0; all && n < v->from.nnodes; n++)
		if (said[n])
			(void)ptc_rank_rows_decode(said[n], &rows[n], NULL);
	for (uint32_t r = 0; all && r < v->from.world; r++) {
		const struct ptc_rank_row *row = find_rank(&rows[v->from.rank_node[r]], r, &t->record);

		all = row && row->has_step && row->step > start;
	}
	for (size_t n = 0; rows && n < v->from.nnodes; n++)
		ptc_free(rows[n].v);
	ptc_free(rows);
	answers_free(said, v->from.nnodes);
	return all;
}

/* One node's coming or going makes the view anew; false: there is nothing to wait for any more. */
static bool look_again(struct first_step *f)
{
	struct ptc_target now;

	if (ptc_api_find(f->d, f->call, f->t.meta.uuid, &now, NULL) != 0 || !now.has_record)
		return false;
	if (f->viewed && now.record.incarnation != f->t.record.incarnation)
		return false;
	if (now.record.run == PTC_RUN_FAILED) {
		f->failed = (struct failure){ .d = f->d, .t = &now, .text = "see `ptcctl events`" };
		ptc_loop_call(f->d->loop, find_failure, &f->failed);
		f->failed.t = NULL;
	}
	if (now.record.run != PTC_RUN_LIVE)
		return false;
	if (f->viewed && now.epoch == f->t.epoch)
		return true;
	if (f->viewed)
		ptc_view_done(&f->v);
	f->t = now;
	f->viewed = ptc_api_view(f->d, &f->t, false, true, &f->v, NULL) == 0;
	return f->viewed;
}

static void add_first_step(json_t *summary, double ms)
{
	json_t *pause = json_object_get(summary, "pause");
	double total = json_number_value(json_object_get(pause, "total_ms"));

	json_object_set_new(pause, "first_step_ms", json_real(ms));
	json_object_set_new(pause, "total_ms", json_real(total + ms));
	if (json_object_get(pause, "lost_ms"))
		json_object_set_new(pause, "lost_ms",
				    json_real(json_number_value(json_object_get(pause, "lost_ms")) + ms));
}

static bool waits_for_step(const json_t *root)
{
	const json_t *pause = json_object_get(root, "pause");
	const char *kind = json_string_value(json_object_get(root, "kind"));

	return json_is_object(pause) && json_object_get(pause, "build_ms") && kind && strcmp(kind, "resize") == 0;
}

/* How long the first step took, when the switch made ranks start: until every rank has ended a step since the switch,
 * or something else is committed. PTC_ESTATE: one of them failed in it. */
static int with_first_step(void *arg, struct ptc_rpc_call *call, const char *summary, bool *later, char **ret_summary,
			   struct ptc_error *err)
{
	struct first_step *f = arg;
	int64_t now = ptc_sys_now_ns();
	bool there, stepped;

	if (!f->root && ptc_json_load("summary", summary, strlen(summary), &f->root, NULL) != 0)
		return 0;
	f->began_ns = f->began_ns ? f->began_ns : now;
	f->call = call;
	if (waits_for_step(f->root)) {
		there = look_again(f);
		stepped = there && all_stepped(f, &f->t, &f->v, ptc_json_count(f->root, "step"));
		*later = there && !stepped && now - f->began_ns < FIRST_STEP_MS * INT64_C(1000000);
		if (*later)
			return 0;
		if (stepped || (f->viewed && !there))
			add_first_step(f->root, (double)(now - f->began_ns) / 1e6);
		*ret_summary = ptc_json_text(f->root);
	}
	if (!f->failed.text[0])
		return 0;
	ptc_free(*ret_summary);
	*ret_summary = NULL;
	return ptc_error_set(err, PTC_ESTATE,
			     "the switch was made, but the job has failed before every rank's first step: %s",
			     f->failed.text);
}

/* We are not the controller any more. */
static int follow_on(void *arg, struct ptc_rpc_call *call, uint64_t id, struct ptc_error *err)
{
	struct first_step *f = arg;
	int rc = f->tail ? 0 : ptc_tail_new(f->d, &f->t, id, &f->tail, err);

	return rc ? rc : ptc_tail_step(f->tail, call, err);
}

static void first_step_free(void *arg)
{
	struct first_step *f = arg;

	if (f->viewed)
		ptc_view_done(&f->v);
	ptc_tail_free(f->tail);
	json_decref(f->root);
	ptc_free(f);
}

int ptc_api_stream(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_watcher *w, struct ptc_rpc_call *call,
		   struct ptc_error *err)
{
	struct first_step *f = ptc_calloc(1, sizeof *f);

	if (!f)
		return ptc_error_set(err, PTC_ENOMEM, "out of memory; the switch goes on");
	f->d = d;
	f->t = *t;
	return ptc_watcher_stream(w, call, &(struct ptc_watch_ops){ with_first_step, follow_on, first_step_free }, f,
				  err);
}
