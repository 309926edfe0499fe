/* SPDX-License-Identifier: Apache-2.0 */
/* The calls behind `ptcctl job list`, `ptcctl status` and `ptcctl snapshots`. docs/control.md describes the JSON of
 * the answers. None changes anything. */
#include "base/alloc.h"
#include "base/check.h"
#include "daemon/config/cert_end.h"
#include "daemon/controller/archiving/archiver.h"
#include "daemon/controller/copies/counting.h"
#include "daemon/controller/loss/loss_cost.h"
#include "daemon/controller/switch_plan.h"
#include "daemon/controller/taking/lock_taking.h"
#include "daemon/api/queries/queries.h"
#include "daemon/api/queries/status_doc.h"
#include "daemon/api/run/run.h"
#include "daemon/scrub/damage_doc.h"
#include "daemon/scrub/scrub.h"
#include "formats/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LOSS_MS    500  /* the next question has the answer */
#define FORWARD_MS 5000 /* a controller that is stopped holds a thread of ours for so long */

/* ---- jobs and status ------------------------------------------------------------ */

int ptc_api_list(struct ptc_daemon *d, struct ptc_rpc_call *call, void (*fn)(void *arg), void *arg,
		 struct ptc_error *err)
{
	ProtobufCMessage *req;
	int rc = ptc_pb_call_recv(call, &ptc__v1__list_request__descriptor, &req, err);

	if (rc)
		return rc;
	ptc_pb_free(req);
	rc = ptc_api_listed(d, call, err);
	return rc ? rc : ptc_loop_call(d->loop, fn, arg);
}

struct job_rows {
	struct ptc_daemon *d;
	uid_t uid;
	const char *only; /* NULL: all */
	json_t *rows;
};

/* The devices that it has: {NODE: [device, ..]}. */
static json_t *devices_of(struct ptc_daemon *d, const char *uuid)
{
	const struct ptc_devices_doc *doc = ptc_cluster_devices(d->cluster);
	json_t *nodes = json_object();

	for (size_t i = 0; i < doc->n; i++) {
		if (strcmp(doc->v[i].uuid, uuid) != 0)
			continue;
		if (!json_object_get(nodes, doc->v[i].node))
			json_object_set_new(nodes, doc->v[i].node, json_array());
		json_array_append_new(json_object_get(nodes, doc->v[i].node),
				      json_integer((json_int_t)doc->v[i].device));
	}
	return nodes;
}

static const char *or_null(const char *text)
{
	return *text ? text : NULL;
}

static json_t *job_row(struct ptc_daemon *d, const struct ptc_job_view *j)
{
	static const struct ptc_record_doc none = { .run = PTC_RUN_NONE };
	const struct ptc_record_doc *record = j->has_record ? &j->record : &none;
	struct ptc_controller *ctl = ptc_controller_find(&d->controllers, j->uuid);
	const struct ptc_archive_state *archive = ctl ? ptc_archiver_state(ctl) : NULL;
	struct ptc_status_job row = {
		.name = j->meta.name,
		.uuid = j->uuid,
		.uid = j->meta.uid,
		.controller = j->has_lock ? j->lock_node : "",
		.phase = j->has_intent   ? "switching"
			 : j->has_record ? "idle"
					 : "empty",
		.has_state = record->snapshot != 0,
		.generation = record->generation,
		.snapshot = record->snapshot,
		.step = record->step,
		.archive = archive ? ptc_archive_state_json(archive) : NULL,
		.kept = j->older.v,
		.nkept = j->older.n,
		.bridge = j->older.bridge,
		.no_bridge = ctl ? or_null(ptc_older_why_none(ctl)) : NULL,
		.unreadable = or_null(ptc_lock_unreadable_why(j)),
		.shared = j->meta.shared,
		.files_group = j->meta.gid,
		.run = ptc_record_run_name(record),
		.incarnation = record->incarnation,
	};
	json_t *json, *copied;

	if (ctl)
		ptc_controller_status(ctl, &row.phase, &row.bytes_done, &row.bytes_total);
	if (j->bad_record)
		row.phase = "unreadable";
	json = ptc_status_job_json(&row);
	if (json && ctl && (copied = ptc_copied_json(ctl)))
		json_object_set_new(json, "copied", copied);
	if (json && ctl && ptc_resized_put(ctl, json) != 0)
		json = (json_decref(json), NULL);
	json_decref(row.archive);
	return json;
}

static void list_jobs(void *arg)
{
	struct job_rows *r = arg;

	for (size_t i = 0; i < ptc_cluster_njobs(r->d->cluster); i++) {
		struct ptc_job_view *j = ptc_cluster_job(r->d->cluster, i);

		if (j->has_meta && (r->uid == 0 || r->uid == j->meta.uid) &&
		    (!r->only || strcmp(r->only, j->uuid) == 0))
			json_array_append_new(r->rows, job_row(r->d, j));
		if (r->only && strcmp(r->only, j->uuid) == 0 && json_array_size(r->rows))
			json_object_set_new(json_array_get(r->rows, 0), "devices", devices_of(r->d, j->uuid));
	}
}

PTC_API_HANDLER(ptc_api_job_list)
{
	struct ptc_daemon *d = arg;
	struct job_rows r = { .d = d, .uid = ptc_api_uid(call), .rows = json_array() };
	int rc = ptc_api_list(d, call, list_jobs, &r, err);

	if (rc) {
		json_decref(r.rows);
		return rc;
	}
	return ptc_api_send_json(call, ptc_api_dated(d, json_pack("{s:i, s:o}", "version", 1, "jobs", r.rows)), err);
}

char *ptc_api_ranks_json(const struct ptc_generation_doc *g)
{
	json_t *rows = ptc_plan_ranks_json(g, NULL);
	char *text = rows ? ptc_json_text(rows) : NULL;

	json_decref(rows);
	return text;
}

struct current {
	struct ptc_daemon *d;
	const struct ptc_target *t;
	bool yes;
};

static void current_on_loop(void *arg)
{
	struct current *c = arg;
	const struct ptc_job_view *j = ptc_cluster_find_uuid(c->d->cluster, c->t->meta.uuid);

	c->yes = j && j->has_record && !j->has_intent &&
		 ((j->record.generation == c->t->record.generation && j->record.snapshot == c->t->record.snapshot) ||
		  ptc_older_table(&j->older, c->t->record.generation, c->t->record.snapshot));
}

/* Nothing while a switch is under way: its tables come and go, and its end says what became of it. */
static int add_lost(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v, const bool *has,
		    const struct ptc_spec *spec, json_t *row, struct ptc_error *err)
{
	struct current c = { d, t, false };
	struct ptc_lost_report r = { 0 };
	int rc = t->has_intent || !t->record.snapshot
			 ? 0
			 : ptc_lost_find(&d->controllers, v, has, spec, &t->record, &r, err);

	if (rc == 0 && r.absent && ptc_loop_call(d->loop, current_on_loop, &c) == 0 && c.yes &&
	    ptc_members_put(row, &ptc_lost_report_members, &r) != 0)
		rc = ptc_nomem(err);
	ptc_lost_report_done(&r);
	return rc;
}

/* What one node says of its blocks. */
static json_t *damage_json(const struct ptc_damage_doc *doc, const char *node, const struct ptc_spec *spec,
			   uint64_t generation)
{
	char name[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2];
	json_t *list = json_array();

	for (size_t i = 0; i < doc->n; i++) {
		const struct ptc_damaged_block *b = &doc->list[i];

		if (b->generation == generation && b->item < ptc_spec_items(spec))
			ptc_item_name(spec, (uint32_t)b->item, name, sizeof name);
		else
			snprintf(name, sizeof name, "number %" PRIu64, b->item);
		json_array_append_new(list, json_pack("{s:s, s:s}", "tensor", name, "text", b->text));
	}
	return json_pack("{s:s, s:I, s:o}", "node", node, "blocks", (json_int_t)doc->blocks, "list", list);
}

/* Blocks that are damaged and could not be healed, of nodes that have a part of what is committed; nothing while etcd
 * is unreachable, or of a node whose document cannot be read. */
static void add_damage(struct ptc_daemon *d, const struct ptc_view *v, const struct ptc_spec *spec, json_t *row)
{
	struct ptc_etcd_kvs kvs = { 0 };
	struct ptc_damage_doc doc;
	json_t *rows = json_array();
	char prefix[96];

	snprintf(prefix, sizeof prefix, "/ptc/jobs/%s/damage/", v->meta.uuid);
	if (ptc_cluster_lease(d->cluster) == 0 ||
	    ptc_etcd_get(ptc_cluster_etcd(d->cluster), prefix, true, 0, &kvs, NULL) != 0) {
		json_decref(rows);
		return;
	}
	for (size_t i = 0; i < kvs.n; i++)
		for (size_t n = 0; n < v->nnodes; n++)
			if (strcmp(kvs.kv[i].key + strlen(prefix), v->nodes[n]) == 0 &&
			    ptc_damage_doc_decode(kvs.kv[i].value, kvs.kv[i].len, &doc, NULL) == 0) {
				json_array_append_new(rows, damage_json(&doc, v->nodes[n], spec, v->from_generation));
				ptc_damage_doc_done(&doc);
			}
	ptc_etcd_kvs_done(&kvs);
	if (json_array_size(rows))
		json_object_set(row, "damaged", rows);
	json_decref(rows);
}

static void add_sizes(json_t *row, const struct ptc_spec *spec)
{
	int64_t bytes = 0;

	for (size_t i = 0; i < ptc_spec_items(spec); i++)
		bytes += ptc_item_bytes(spec, i);
	json_object_set_new(row, "state_bytes", json_integer(bytes));
	json_object_set_new(row, "tensors", json_integer((json_int_t)spec->ntensors));
	json_object_set_new(row, "items", json_integer((json_int_t)ptc_spec_items(spec)));
}

/* Not where the description cannot be read now: that is nobody's question here. */
static void add_spec_hash(struct ptc_daemon *d, const struct ptc_target *t, json_t *row)
{
	const struct ptc_job_desc *desc;
	char hash[PTC_HASH_HEX];
	void *ref;

	if (ptc_specs_get(d->docs.specs, t->meta.uuid, t->meta.spec_hash, &desc, &ref, NULL) != 0)
		return;
	if (ptc_specs_plain_hash(ref, hash, NULL) == 0)
		json_object_set_new(row, "spec_hash", json_string(hash));
	ptc_specs_release(ref);
}

/* The step of the newest snapshot whose copies are complete, where the job's controller is another daemon. Only that
 * one knows whether the bridge's are. */
static void add_copied(const struct ptc_target *t, const struct ptc_copies_count *copies, json_t *row)
{
	json_t *copied;

	if (copies->count < 2 || json_object_get(row, "copied"))
		return;
	copied = json_object();
	json_object_set_new(row, "copied", copied);
	if (copies->fewest >= copies->count)
		json_object_set_new(copied, "step", json_integer((json_int_t)t->record.step));
}

/* How many steps the ranks have made since. */
static void add_behind(const struct ptc_loss_now *now, json_t *row)
{
	json_t *copied = json_object_get(row, "copied"), *step = json_object_get(copied, "step");
	const json_int_t at = json_integer_value(step), reached = (json_int_t)now->reached;

	if (step && now->has_reached)
		json_object_set_new(copied, "behind", json_integer(PTC_MAX(reached - at, (json_int_t)0)));
}

/* On how many nodes, or racks, everything is that is committed. Nothing while a switch is under way. */
static int add_copies(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v, const bool *has,
		      bool whole_job, json_t *row, struct ptc_error *err)
{
	struct ptc_copies_count copies;
	int rc;

	if (t->has_intent || !t->record.snapshot)
		return 0;
	rc = ptc_copies_count(&d->controllers, v, has, &copies, err);
	if (rc == 0)
		json_object_set_new(row, "copies", ptc_copies_count_json(&copies));
	if (rc == 0 && whole_job)
		add_copied(t, &copies, row);
	return rc;
}

/* Sizes, and what is missing or damaged of what is committed. */
static int add_state(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v, const bool *has,
		     json_t *row, struct ptc_error *err)
{
	const struct ptc_declared *declared = NULL;
	const struct ptc_layout *layout;
	const struct ptc_job_desc *desc = NULL;
	const bool declares = v->from.layout_hash[0] != '\0';
	const struct ptc_spec *spec;
	void *ref;
	int rc = declares ? ptc_layouts_get(d->docs.layouts, t->meta.uuid, v->from.layout_hash, &declared, &layout,
					    &ref, err)
			  : ptc_specs_get(d->docs.specs, t->meta.uuid, t->meta.spec_hash, &desc, &ref, err);

	if (rc)
		return rc;
	spec = declares ? &declared->spec : &desc->spec;
	add_sizes(row, spec);
	rc = add_lost(d, t, v, has, spec, row, err);
	add_damage(d, v, spec, row);
	if (declares)
		ptc_layouts_release(ref);
	else
		ptc_specs_release(ref);
	return rc;
}

/* What the ranks do; and for a loss of a node, which of them would survive. */
static void add_run(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v,
		    struct ptc_loss_now *now, json_t *row)
{
	struct ptc_run_state run;

	ptc_run_state_find(d, t, v, &run);
	json_object_set_new(row, "run", ptc_run_state_json(&run));
	now->ranks = v->from.world;
	for (size_t i = 0; i < run.nranks; i++) {
		const struct ptc_rank_row *r = run.ranks[i].row;

		if (r && r->has_step) {
			now->reached = PTC_MAX(now->reached, r->step);
			now->has_reached = true;
		}
		if (!r || !r->says_survives)
			continue;
		if (!r->survives && now->told == now->survive) {
			now->rank = run.ranks[i].rank;
			snprintf(now->rank_why, sizeof now->rank_why, "%s", r->survives_not ? r->survives_not : "");
		}
		now->told++;
		now->survive += r->survives;
	}
	ptc_run_state_done(&run);
}

/* What the loss of one node would cost the job. Only its controller finds that out. */
static void add_loss(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v, const bool *has,
		     struct ptc_loss_now *now, json_t *row)
{
	struct ptc_loss_facts facts = { .why = "the daemon that answers does not control the job" };

	now->live = t->record.run == PTC_RUN_LIVE;
	now->recovering = t->record.recovery && !now->live;
	now->switching = t->has_intent;
	now->has_snapshot = t->record.snapshot != 0;
	now->step = t->record.step;
	if (!now->live && !now->has_snapshot)
		return;
	if (t->ours && !now->recovering && !now->switching)
		ptc_loss_facts_get(&d->controllers, v, has, LOSS_MS, &facts);
	json_object_set_new(row, "node_loss", ptc_loss_json(&facts, now));
}

/* Configuration, ranks and size of one job, from its documents, and what its ranks do. whole_job: the question is not
 * of one of its snapshots. */
static int add_details(struct ptc_daemon *d, struct ptc_target *t, bool whole_job, json_t *row, struct ptc_error *err)
{
	struct ptc_loss_now now = { 0 };
	struct ptc_view v;
	bool *has;
	int rc;

	if (!t->has_record)
		return 0;
	rc = ptc_api_view(d, t, false, false, &v, err);
	if (rc)
		return rc;
	json_object_set_new(row, "config", json_string(v.from.config));
	json_object_set_new(row, "ranks", ptc_plan_ranks_json(&v.from, NULL));
	has = ptc_calloc(v.nnodes, sizeof *has);
	rc = has ? 0 : ptc_nomem(err);
	if (rc == 0 && !t->has_intent && t->record.snapshot)
		ptc_lost_ask(&d->controllers, &v, has);
	if (rc == 0)
		rc = add_state(d, t, &v, has, row, err);
	if (rc == 0)
		rc = add_copies(d, t, &v, has, whole_job, row, err);
	if (rc == 0 && t->record.run != PTC_RUN_NONE)
		add_run(d, t, &v, &now, row);
	add_behind(&now, row);
	if (rc == 0 && whole_job)
		add_loss(d, t, &v, has, &now, row);
	ptc_free(has);
	ptc_view_done(&v);
	return rc;
}

static json_t *daemon_row(struct ptc_daemon *d)
{
	const struct ptc_cluster_database db = ptc_cluster_database(d->cluster);
	struct ptc_status_daemon row = {
		.node = d->config.node,
		.version = PTC_VERSION,
		.coordinator_ok = ptc_cluster_lease(d->cluster) != 0,
		.insecure = d->insecure,
		.coordinator_bytes = db.bytes,
		.coordinator_used = db.used,
		.coordinator_limit = d->config.quota.etcd,
		.coordinator_full = db.full,
		.kept_jobs = ptc_kept_jobs(d->docs.kept),
		.kept_bytes = ptc_kept_bytes(d->docs.kept),
		.certificate_ends_ms = ptc_cert_end_ms(),
	};

	ptc_scrubber_progress(d->scrubber, &row.scrub);
	return ptc_status_daemon_json(&row);
}

/* This node cannot read what the job's keys name, so there are no details: the row says why. */
static bool unreadable(int rc, json_t *row, const struct ptc_error *err)
{
	if (!row || (rc != PTC_EVERSION && rc != PTC_EINVAL && rc != PTC_ECORRUPT))
		return false;
	if (!json_object_get(row, "unreadable"))
		json_object_set_new(row, "unreadable", json_string(err->text));
	return true;
}

static int one_status(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *name, const ProtobufCMessage *req,
		      struct ptc_error *err)
{
	struct ptc_target t;
	struct job_rows r = { .d = d, .uid = ptc_api_uid(call), .only = t.meta.uuid };
	int rc = ptc_api_find(d, call, name, &t, err);

	if (rc)
		return rc;
	if (t.has_lock && !t.ours && strcmp(t.controller, d->config.node) != 0 &&
	    !ptc_rpc_call_meta(call, "ptc-forwarded")) {
		rc = ptc_api_forward_now(d, &t, call, "/ptc.v1.Control/Status", req, FORWARD_MS, err);
		if (rc == 0 || rc == PTC_ECANCELED || rc == PTC_ENOTFOUND)
			return rc;
		/* Else it does not answer, or is of an older version that cannot read what the job needs: what we know
		 * ourselves is better than nothing. */
	}
	r.rows = json_array();
	rc = ptc_loop_call(d->loop, list_jobs, &r);
	if (rc == 0 && json_array_size(r.rows) == 1)
		rc = add_details(d, &t, true, json_array_get(r.rows, 0), err);
	if (unreadable(rc, json_array_get(r.rows, 0), err))
		rc = 0;
	if (rc) {
		json_decref(r.rows);
		return rc;
	}
	add_spec_hash(d, &t, json_array_get(r.rows, 0));
	return ptc_api_send_json(call,
				 ptc_api_dated(d, json_pack("{s:i, s:o, s:o}", "version", 1, "daemon", daemon_row(d),
							    "jobs", r.rows)),
				 err);
}

PTC_API_HANDLER(ptc_api_status)
{
	struct ptc_daemon *d = arg;
	struct job_rows r = { .d = d, .uid = ptc_api_uid(call) };
	ProtobufCMessage *req;
	int rc = ptc_pb_call_recv(call, &ptc__v1__job_request__descriptor, &req, err);

	if (rc)
		return rc;
	if (((Ptc__V1__JobRequest *)req)->job[0]) {
		rc = one_status(d, call, ((Ptc__V1__JobRequest *)req)->job, req, err);
		ptc_pb_free(req);
		return rc;
	}
	ptc_pb_free(req);
	r.rows = json_array();
	rc = ptc_api_listed(d, call, err);
	if (rc == 0)
		rc = ptc_loop_call(d->loop, list_jobs, &r);
	if (rc) {
		json_decref(r.rows);
		return rc;
	}
	return ptc_api_send_json(call,
				 ptc_api_dated(d, json_pack("{s:i, s:o, s:o}", "version", 1, "daemon", daemon_row(d),
							    "jobs", r.rows)),
				 err);
}

/* The committed snapshot, or one that the job keeps beside it. */
static int add_snapshot(struct ptc_daemon *d, struct ptc_target *t, const char *state, json_t *rows,
			struct ptc_error *err)
{
	json_t *row = json_pack("{s:I, s:I, s:I, s:s, s:s}", "snapshot", (json_int_t)t->record.snapshot, "generation",
				(json_int_t)t->record.generation, "step", (json_int_t)t->record.step, "manifest",
				t->record.manifest_hash, "state", state);
	int rc = row ? add_details(d, t, false, row, err) : ptc_nomem(err);

	json_array_append_new(rows, row);
	return rc;
}

static bool is_same(const struct ptc_older *o, uint64_t generation, uint64_t snapshot)
{
	return o->generation == generation && o->snapshot == snapshot;
}

/* The bridge may be the record's or an entry's, and else has a row of its own: also beside one of the same snapshot,
 * which a resize has given to another generation. */
static int add_older_one(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_older *o,
			 const struct ptc_older *bridge, const char *state, json_t *rows, struct ptc_error *err)
{
	struct ptc_target then = *t;
	int rc;

	if (is_same(o, t->record.generation, t->record.snapshot) ||
	    !ptc_api_go_back(d, &then, o->generation, o->snapshot))
		return 0;
	rc = add_snapshot(d, &then, state, rows, err);
	if (!is_same(o, then.record.generation, then.record.snapshot)) /* it has gone meanwhile */
		json_array_remove(rows, json_array_size(rows) - 1);
	else if (is_same(bridge, o->generation, o->snapshot))
		json_object_set_new(json_array_get(rows, json_array_size(rows) - 1), "bridge", json_true());
	return rc;
}

static bool is_newer(const struct ptc_older *a, const struct ptc_older *b)
{
	return a->snapshot != b->snapshot ? a->snapshot > b->snapshot : a->generation > b->generation;
}

/* Newest first. */
static int add_older(struct ptc_daemon *d, const struct ptc_target *t, json_t *rows, struct ptc_error *err)
{
	struct ptc_older_doc doc;
	const struct ptc_older *bridge = &doc.bridge;
	bool told;
	int rc = 0;

	ptc_api_older(d, t, &doc);
	told = !bridge->snapshot || ptc_older_table(&doc, bridge->generation, bridge->snapshot) != bridge;
	for (size_t i = doc.n; rc == 0 && (i || !told);) {
		const bool next = !told && (!i || is_newer(bridge, &doc.v[i - 1]));

		rc = next ? add_older_one(d, t, bridge, bridge, "bridge", rows, err)
			  : add_older_one(d, t, &doc.v[--i], bridge, "kept", rows, err);
		told |= next;
	}
	return rc;
}

PTC_API_HANDLER(ptc_api_snapshots)
{
	struct ptc_daemon *d = arg;
	struct ptc_target t;
	ProtobufCMessage *req;
	json_t *rows;
	int rc = ptc_pb_call_recv(call, &ptc__v1__job_request__descriptor, &req, err);

	if (rc)
		return rc;
	rc = ptc_api_find(d, call, ((Ptc__V1__JobRequest *)req)->job, &t, err);
	ptc_pb_free(req);
	if (rc)
		return rc;
	rows = json_array();
	if (t.has_record)
		rc = add_snapshot(d, &t, "committed", rows, err);
	if (rc == 0)
		rc = add_older(d, &t, rows, err);
	if (rc) {
		json_decref(rows);
		return rc;
	}
	return ptc_api_send_json(call,
				 ptc_api_dated(d, json_pack("{s:i, s:s, s:o}", "version", 1, "job", t.meta.name,
							    "snapshots", rows)),
				 err);
}
