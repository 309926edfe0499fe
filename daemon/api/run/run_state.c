/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out what a job's ranks do, for `ptcctl status`. Happy path: every node of the committed generation is asked
 * for the job's ranks; the loop tells the rest. Failure modes: run.h. */
#include "daemon/api/run/run.h"

#include "base/alloc.h"
#include "base/sys/sys.h"
#include "daemon/cluster/job_events.h"
#include "daemon/controller/recovery.h"
#include "rpc/pb/pbcall.h"

#include <stdio.h>
#include <string.h>

#define RANKS_TIMEOUT_MS 2000

/* ---- nodes ---------------------------------------------------------------------------- */

bool ptc_run_ask_node(struct ptc_daemon *d, const char *uuid, const char *node, const char *address,
		      struct ptc_rank_rows *ret)
{
	Ptc__V1__JobRequest req = PTC__V1__JOB_REQUEST__INIT;
	struct ptc_rpc_channel *channel;
	ProtobufCMessage *reply;
	bool read;

	if (!address[0] || ptc_channels_get(d->channels, node, address, false, 0, &channel, NULL) != 0)
		return false;
	req.version = PTC_WIRE_VERSION;
	req.job = (char *)(uintptr_t)uuid; /* packing only reads */
	if (ptc_pb_unary(channel, "/ptc.v1.Peer/Ranks", &req.base, RANKS_TIMEOUT_MS, NULL, 0,
			 &ptc__v1__document__descriptor, &reply, NULL) != 0)
		return false;
	read = ptc_rank_rows_decode(((Ptc__V1__Document *)reply)->json, ret, NULL) == 0;
	ptc_pb_free(reply);
	return read;
}

struct ptc_rank_rows *ptc_run_ask_nodes(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v,
					bool *heard)
{
	struct ptc_rank_rows *said = ptc_calloc(v->from.nnodes, sizeof *said);

	for (size_t n = 0; said && n < v->from.nnodes; n++) {
		const char *node = v->from.nodes[n];

		heard[n] = ptc_run_ask_node(d, t->meta.uuid, node, v->addresses[ptc_view_number(v, node)], &said[n]);
	}
	return said;
}

void ptc_run_answers_free(struct ptc_rank_rows *said, size_t n)
{
	for (size_t i = 0; said && i < n; i++)
		ptc_rank_rows_done(&said[i]);
	ptc_free(said);
}

/* Every rank of the committed generation, as its node says it. */
static void find_ranks(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v,
		       struct ptc_run_state *run)
{
	bool *heard = ptc_calloc(v->from.nnodes, sizeof *heard);

	run->live = true;
	run->nnodes = v->from.nnodes;
	run->nodes = v->from.nodes;
	run->said = heard ? ptc_run_ask_nodes(d, t, v, heard) : NULL;
	run->ranks = run->said ? ptc_calloc(v->from.world, sizeof *run->ranks) : NULL;
	run->nranks = run->ranks ? v->from.world : 0;
	for (uint32_t r = 0; r < run->nranks; r++) {
		const uint32_t node = v->from.rank_node[r];

		run->ranks[r] =
			(struct ptc_run_rank){ .rank = r,
					       .device = v->from.rank_device[r],
					       .node = v->from.nodes[node],
					       .heard = heard[node],
					       .row = ptc_rank_rows_find(&run->said[node], r, t->record.generation,
									 t->record.incarnation) };
	}
	ptc_free(heard);
}

/* ---- on the loop ------------------------------------------------------------------------- */

void ptc_run_find_failure(void *arg)
{
	struct ptc_run_failure *f = arg;
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

struct finding {
	struct ptc_daemon *d;
	const struct ptc_target *t;
	struct ptc_run_state *run;
};

static void find_left(const struct finding *f)
{
	const struct ptc_job_view *j = ptc_cluster_find_uuid(f->d->cluster, f->t->meta.uuid);
	struct ptc_slow_devices *left = &f->run->left;
	int64_t now = ptc_sys_realtime_ms();

	if (!j || !j->slow.n || !(left->v = ptc_calloc(j->slow.n, sizeof *left->v)))
		return;
	for (size_t i = 0; i < j->slow.n; i++)
		if (j->slow.v[i].until_ms > now)
			left->v[left->n++] = j->slow.v[i];
}

/* The job's controller, which may be another daemon, says why the job does not go on whose ranks, or some of whose
 * ranks, are lost, and which ranks are slow. */
static void find_waiting(const struct finding *f)
{
	struct ptc_controller *ctl = ptc_controller_find(&f->d->controllers, f->t->meta.uuid);

	snprintf(f->run->waits, sizeof f->run->waits, "%s", ctl ? ptc_controller_waits(ctl) : "");
	snprintf(f->run->stays, sizeof f->run->stays, "%s", ctl ? ptc_growth_stays(ctl) : "");
	ptc_stragglers_say(ctl, &f->run->stragglers);
}

static void find_healths(const struct finding *f)
{
	uint32_t at;

	for (size_t r = 0; r < f->run->nranks; r++) {
		struct ptc_run_rank *k = &f->run->ranks[r];

		if (ptc_cluster_find_node(f->d->cluster, k->node, &at))
			(void)ptc_node_device_well(ptc_cluster_node(f->d->cluster, at), k->device, k->health);
	}
}

static void find_on_loop(void *arg)
{
	const struct finding *f = arg;

	find_left(f);
	if (f->t->record.recovery || f->t->record.run == PTC_RUN_LIVE)
		find_waiting(f);
	find_healths(f);
}

/* ---- events ------------------------------------------------------------------------------ */

/* Whether it is the commit of `ptcctl run`: what is before is of an earlier run. A resize of a job that has given up
 * starts no ranks. */
static bool starts(const json_t *event)
{
	const char *kind = json_string_value(json_object_get(event, "kind"));
	const char *what = json_string_value(json_object_get(json_object_get(event, "switch"), "kind"));

	return kind && what && strcmp(kind, "committed") == 0 && strcmp(what, "run") == 0;
}

/* Why the job's ranks are not started again: its newest event `gave_up`, of etcd, or of what this daemon remembers. */
static void find_gave_up(struct ptc_daemon *d, const char *uuid, char *text, size_t size)
{
	struct ptc_read_events events = { 0 };
	int rc = ptc_api_as_of(d) ? PTC_ECOORD : ptc_events_read(ptc_cluster_etcd(d->cluster), uuid, &events, NULL);

	if (rc)
		(void)ptc_events_remembered(uuid, &events);
	ptc_read_events_sort(&events, 0);
	for (size_t i = events.n; i-- > 0 && !text[0] && !starts(events.v[i].json);) {
		const char *kind = json_string_value(json_object_get(events.v[i].json, "kind"));

		if (kind && strcmp(kind, "gave_up") == 0)
			snprintf(text, size, "%s", json_string_value(json_object_get(events.v[i].json, "text")));
	}
	ptc_read_events_done(&events);
}

/* ---- all of it --------------------------------------------------------------------------- */

void ptc_run_state_find(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v,
			struct ptc_run_state *ret)
{
	static const char *const causes[] = { [PTC_RECOVERY_NODE] = "node", [PTC_RECOVERY_PROGRAM] = "program" };
	const struct ptc_record_doc *r = &t->record;
	struct ptc_run_failure failure = { .d = d, .t = t };

	*ret = (struct ptc_run_state){ .state = ptc_record_run_name(r), .incarnation = r->incarnation };
	if (r->run == PTC_RUN_LIVE && v)
		find_ranks(d, t, v, ret);
	(void)ptc_loop_call(d->loop, find_on_loop, &(struct finding){ d, t, ret });
	if (r->recovery)
		ret->cause = r->hung ? "hang" : causes[r->recovery];
	ret->reached = r->recovery ? r->reached : 0;
	ret->restarts = r->recovery || r->run == PTC_RUN_LIVE ? r->restarts : 0;
	if (r->run == PTC_RUN_FAILED)
		(void)ptc_loop_call(d->loop, ptc_run_find_failure, &failure);
	if (r->run == PTC_RUN_FAILED)
		find_gave_up(d, t->meta.uuid, ret->gave_up, sizeof ret->gave_up);
	snprintf(ret->failed, sizeof ret->failed, "%s", failure.text);
}

void ptc_run_state_done(struct ptc_run_state *run)
{
	ptc_slow_devices_done(&run->left);
	ptc_run_answers_free(run->said, run->nnodes);
	ptc_free(run->ranks);
	*run = (struct ptc_run_state){ 0 };
}
