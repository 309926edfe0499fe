/* SPDX-License-Identifier: Apache-2.0 */
/* The calls behind `ptcctl job create`, `plan`, `resize` and `abort`.
 *
 * Happy path of resize: the controller's daemon plans on a server thread,
 * hands the switch to the loop, and streams its progress; the switch belongs
 * to the controller, so a client that goes away changes nothing. Failure
 * modes: not feasible (refused before anything starts), busy (PTC_ESTATE). */
#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/fault.h"
#include "base/sys/sys.h"
#include "daemon/api/switches/switches.h"
#include "daemon/cluster/job_events.h"
#include "daemon/cluster/quota.h"
#include "daemon/controller/loss/loss_cost.h"
#include "daemon/documents/probed/probed.h"
#include "formats/json.h"
#include "formats/names.h"
#include "reshard/copies/copies.h"
#include "reshard/spec/lint.h"

#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>

#define MIRROR_WAIT_MS 5000
#define BUSY_WAIT_MS   30000
#define MOVES_MAX      3
#define TAKEN_WAIT_MS  3000  /* a job that has just become smaller gives devices back within */
#define USER_BYTES     65536 /* of an entry of the user database */
#define GROUPS         65536 /* NGROUPS_MAX */

/* ---- create -------------------------------------------------------------------- */

static int name_taken(const struct ptc_meta_doc *m, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_EEXIST, "a job named \"%s\" exists already; choose another name", m->name);
}

struct taken {
	struct ptc_daemon *d;
	const struct ptc_meta_doc *m;
	bool yes;
};

static void look_for_name(void *arg)
{
	struct taken *t = arg;

	for (size_t i = 0; i < ptc_cluster_njobs(t->d->cluster); i++) {
		const struct ptc_job_view *j = ptc_cluster_job(t->d->cluster, i);

		t->yes = t->yes || (j->has_meta && j->meta.uid == t->m->uid && strcmp(j->meta.name, t->m->name) == 0);
	}
}

/* What versions wrote that had one space of names for everybody: /ptc/names/JOB. The job is known, its key is not
 * looked for. */
static int check_older_name(struct ptc_daemon *d, const struct ptc_meta_doc *m, struct ptc_error *err)
{
	struct taken t = { .d = d, .m = m };

	if (ptc_loop_call(d->loop, look_for_name, &t) != 0)
		return ptc_error_set(err, PTC_ECANCELED, "the daemon is stopping");
	return t.yes ? name_taken(m, err) : 0;
}

/* Names, spec and lock appear in one transaction; the creator is the first controller. */
static int put_job(struct ptc_daemon *d, const struct ptc_meta_doc *m, struct ptc_error *err)
{
	char name_key[96], meta_key[96], lock_key[96], creation[PTC_CREATION_KEY];
	ptc_auto_free char *meta = ptc_meta_doc_encode(m), *lock = NULL;
	struct ptc_lock_doc own;
	struct ptc_etcd_compare cmp[2] = { { name_key, PTC_ETCD_CREATE_REV, 0 }, { creation, PTC_ETCD_VERSION, 1 } };
	struct ptc_etcd_op ops[4] = { { 0 } };
	struct ptc_etcd_kvs kvs = { 0 };
	int64_t lease = ptc_cluster_lease(d->cluster);
	bool ok = false;
	int rc;

	snprintf(own.node, sizeof own.node, "%s", d->config.node);
	lock = ptc_lock_doc_encode(&own);
	if (!meta || !lock)
		return ptc_nomem(err);
	if (!lease) /* a lock without one would never end */
		return ptc_error_set(err, PTC_ECOORD, "the coordinator is unreachable; nothing was created");
	snprintf(name_key, sizeof name_key, "/ptc/names/%u/%s", (unsigned)m->uid, m->name);
	snprintf(meta_key, sizeof meta_key, "/ptc/jobs/%s/meta", m->uuid);
	snprintf(lock_key, sizeof lock_key, "/ptc/jobs/%s/lock", m->uuid);
	ptc_creation_key(m->uuid, creation);
	ops[0] = (struct ptc_etcd_op){ .key = name_key, .value = m->uuid, .len = strlen(m->uuid) };
	ops[1] = (struct ptc_etcd_op){ .key = meta_key, .value = meta, .len = strlen(meta) };
	ops[2] = (struct ptc_etcd_op){ .key = lock_key, .value = lock, .len = strlen(lock), .lease = lease };
	ops[3] = (struct ptc_etcd_op){ .key = creation };
	rc = ptc_etcd_txn(ptc_cluster_etcd(d->cluster), cmp, 2, ops, 4, "etcd.job", &ok, NULL, err);
	if (rc || ok)
		return rc;
	rc = ptc_etcd_get(ptc_cluster_etcd(d->cluster), name_key, false, 1, &kvs, err);
	if (rc == 0)
		rc = kvs.n ? name_taken(m, err)
			   : ptc_error_set(err, PTC_ECONFLICT,
					   "job %s was not created, because etcd changed meanwhile; try again",
					   m->name);
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

/* Spec, then job. Whatever of it fails is undone; an outcome that is not known is left to the undo's compare. */
static int write_job(struct ptc_daemon *d, const struct ptc_job_desc *desc, struct ptc_meta_doc *m,
		     struct ptc_error *err)
{
	struct ptc_etcd *e = ptc_cluster_etcd(d->cluster);
	char creation[PTC_CREATION_KEY], *json, *sealed;
	size_t len;
	int rc = ptc_job_to_json(desc, &json, &len, err);

	if (rc)
		return rc;
	rc = ptc_vault_seal(d->docs.vault, m->uuid, json, len, &sealed, &len, err);
	ptc_free(json);
	if (rc)
		return rc;
	ptc_creation_key(m->uuid, creation);
	rc = ptc_quota_room(d->cluster, len, err);
	if (rc) {
		ptc_free(sealed);
		return rc;
	}
	rc = ptc_creation_begin(&d->controllers, m->uuid, m->uid, len, err);
	if (rc == 0)
		rc = ptc_quota_job(d->cluster, m->uid, err);
	if (rc == 0)
		rc = ptc_blob_put(e, m->uuid, &(struct ptc_etcd_compare){ creation, PTC_ETCD_VERSION, 1 }, sealed, len,
				  m->spec_hash, err);
	ptc_free(sealed);
	if (rc == 0)
		rc = put_job(d, m, err);
	if (rc)
		ptc_creation_undo(e, m->uuid, m->uid, NULL);
	return rc;
}

struct per_node {
	struct ptc_daemon *d;
	uint32_t devices;
};

static void note_per_node(void *arg)
{
	struct per_node *n = arg;
	struct ptc_planning_shape shape = ptc_planning_shape(n->d->cluster);

	n->devices = shape.per_node ? shape.per_node : 1;
	ptc_planning_shape_done(&shape);
}

/* The most that a node alone has, if ranks fill nodes in their order. */
static int most_alone(const struct ptc_layout *l, uint32_t per_node, int64_t *ret_most, struct ptc_error *err)
{
	uint32_t world = ptc_layout_world(l), nodes = (world + per_node - 1) / per_node;
	ptc_auto_free struct ptc_device *at = ptc_calloc(world, sizeof *at);
	ptc_auto_free int64_t *bytes = ptc_calloc(nodes, sizeof *bytes);
	int rc;

	if (!at || !bytes)
		return ptc_nomem(err);
	for (uint32_t r = 0; r < world; r++)
		at[r] = (struct ptc_device){ r / per_node, r % per_node };
	rc = ptc_copies_alone(l, &(struct ptc_allocation){ at, world }, nodes, bytes, err);
	*ret_most = 0;
	for (uint32_t n = 0; rc == 0 && n < nodes; n++)
		*ret_most = PTC_MAX(*ret_most, bytes[n]);
	return rc;
}

/* Each configuration of the job's table is laid out now, so that one that does not fit is refused before it is needed.
 */
static int table_json(struct ptc_daemon *d, const struct ptc_job_desc *desc, json_t *rows, struct ptc_error *err)
{
	struct per_node per = { .d = d };

	if (ptc_loop_call(d->loop, note_per_node, &per) != 0)
		return ptc_error_set(err, PTC_ECANCELED, "the daemon is stopping");
	for (size_t i = 0; i < desc->ngpus; i++) {
		struct ptc_planning_leaves leaves;
		char config[256] = "";
		struct ptc_layout *l = NULL;
		int64_t alone = 0, most = 0; /* most: a node needs that for each device, less what its ranks share */
		json_t *row;
		int rc = ptc_layout_new(&desc->spec, &desc->gpus[i].config, &l, err);

		if (!rc)
			rc = ptc_layout_rank_bytes(l, &most, err);
		if (!rc && desc->warning_ms)
			rc = most_alone(l, per.devices, &alone, err);
		ptc_layout_free(l);
		ptc_config_format(&desc->gpus[i].config, config, sizeof config);
		if (rc) {
			ptc_error_wrap(err, "gpus %u (%s)", desc->gpus[i].n, config);
			return rc;
		}
		row = json_pack("{s:I, s:s, s:I}", "gpus", (json_int_t)desc->gpus[i].n, "config", config,
				"device_bytes", (json_int_t)most);
		if (row && desc->warning_ms) {
			leaves = ptc_planning_leaves(d->controllers.planning, "a node", alone, desc->warning_ms);
			json_object_set_new(row, "leaves", ptc_planning_leaves_json(&leaves));
		}
		json_array_append_new(rows, row);
	}
	return 0;
}

/* Lines for a person; NULL: there are none. */
static json_t *timeouts_json(const struct ptc_daemon *d, const struct ptc_job_desc *desc)
{
	json_t *lines = NULL;
	char line[400];

	for (size_t i = 0; ptc_job_timeout_clash(desc, d->config.lease_ttl_ms, i, line, sizeof line); i++) {
		lines = lines ? lines : json_array();
		json_array_append_new(lines, json_string(line));
	}
	return lines;
}

static int create_json(struct ptc_daemon *d, const struct ptc_job_desc *desc, const char *uuid, char **ret_json,
		       struct ptc_error *err)
{
	json_t *sizes = json_array(), *root;
	int64_t bytes = 0;
	int rc = table_json(d, desc, sizes, err);

	if (rc) {
		json_decref(sizes);
		return rc;
	}
	for (size_t i = 0; i < ptc_spec_items(&desc->spec); i++)
		bytes += ptc_item_bytes(&desc->spec, i);
	root = json_pack("{s:i, s:s, s:s, s:I, s:I, s:o, s:o, s:o*}", "version", 1, "job", desc->spec.name, "uuid",
			 uuid, "tensors", (json_int_t)desc->spec.ntensors, "state_bytes", (json_int_t)bytes, "gpus",
			 sizes, "node_loss", ptc_loss_described(desc), "timeouts", timeouts_json(d, desc));
	*ret_json = root ? ptc_json_text(root) : NULL;
	json_decref(root);
	return *ret_json ? 0 : ptc_nomem(err);
}

static bool is_member(uid_t uid, gid_t gid)
{
	struct passwd pw, *found = NULL;
	char *buf = ptc_malloc(USER_BYTES);
	gid_t *groups = ptc_calloc(GROUPS, sizeof *groups);
	int n = GROUPS;
	bool yes = false;

	if (buf && groups && !getpwuid_r(uid, &pw, buf, USER_BYTES, &found) && found &&
	    getgrouplist(pw.pw_name, pw.pw_gid, groups, &n) >= 0)
		for (int i = 0; i < n && !yes; i++)
			yes = groups[i] == gid;
	ptc_free(groups);
	ptc_free(buf);
	return yes;
}

/* As with chgrp: who is in a group may give it what is his, root any. */
static int check_group(const struct ptc_rpc_call *call, const struct ptc_job_files *files, struct ptc_error *err)
{
	const struct ptc_rpc_identity *id = ptc_rpc_call_identity(call);
	uid_t uid = ptc_api_uid(call);

	if (!files->shared)
		return 0;
	if (files->group[0])
		return ptc_error_set(
			err, PTC_EINVAL,
			"files: group \"%.80s\" is a name; the request must have the group's number, which "
			"`ptcctl job create` looks up",
			files->group);
	if (uid == 0 || (id->role == PTC_ROLE_USER && id->gid == files->gid) || is_member(uid, files->gid))
		return 0;
	return ptc_error_set(err, PTC_EPERM, "files: uid %u is not in group %u; name a group of your own, or ask root",
			     (unsigned)uid, (unsigned)files->gid);
}

static int create_job(struct ptc_daemon *d, struct ptc_rpc_call *call, const struct ptc_job_desc *desc,
		      struct ptc_error *err)
{
	Ptc__V1__JobCreateReply reply = PTC__V1__JOB_CREATE_REPLY__INIT;
	struct ptc_meta_doc m = { .uid = ptc_api_uid(call),
				  .shared = desc->files.shared,
				  .gid = desc->files.gid,
				  .created_ms = ptc_sys_realtime_ms() };
	struct ptc_target t;
	char *json = NULL;
	int rc = ptc_name_check_job(desc->spec.name, err);

	if (rc == 0 && !ptc_cluster_lease(d->cluster))
		rc = ptc_error_set(err, PTC_ECOORD, "the coordinator is unreachable; nothing was created");
	if (rc == 0)
		rc = ptc_api_listed(d, call, err);
	if (rc == 0)
		rc = ptc_sys_uuid(m.uuid, err);
	snprintf(m.name, sizeof m.name, "%s", desc->spec.name);
	if (rc == 0)
		rc = create_json(d, desc, m.uuid, &json, err);
	if (rc == 0)
		rc = check_older_name(d, &m, err);
	if (rc == 0)
		rc = write_job(d, desc, &m, err);
	if (rc) {
		ptc_free(json);
		return rc;
	}
	rc = ptc_api_await(d, call, m.uuid, NULL, NULL, MIRROR_WAIT_MS, &t, err);
	reply.version = PTC_WIRE_VERSION;
	reply.uuid = m.uuid;
	reply.json = json;
	if (rc == 0)
		rc = ptc_pb_call_send(call, &reply.base, err);
	ptc_free(json);
	if (rc == 0)
		ptc_event(d->cluster, m.uuid, "created", "job %s, %zu tensors, %zu fields, uid %u", m.name,
			  desc->spec.ntensors, desc->spec.nfields, (unsigned)m.uid);
	if (rc == 0 && desc->model)
		ptc_measuring_created(d->controllers.measuring, m.uuid, m.spec_hash);
	return rc;
}

PTC_API_HANDLER(ptc_api_job_create)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__JobCreateRequest *req;
	struct ptc_job_desc desc;
	int rc = ptc_pb_call_recv(call, &ptc__v1__job_create_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = req->spec_json.len
		     ? ptc_job_from_json(req->spec_json.data, req->spec_json.len, &desc, err)
		     : ptc_error_set(err, PTC_EINVAL,
				     "the request has no job description; use the ptcctl of the daemon's package");
	ptc_pb_free(&req->base);
	if (rc)
		return rc;
	rc = ptc_spec_lint(&desc.spec, err);
	if (rc == 0)
		rc = ptc_job_check_states(&desc, err);
	if (rc == 0)
		rc = ptc_planning_check(&desc, err);
	if (rc == 0)
		rc = check_group(call, &desc.files, err);
	if (rc == 0)
		rc = create_job(d, call, &desc, err);
	ptc_job_desc_done(&desc);
	return rc;
}

/* ---- plan and resize -------------------------------------------------------------- */

static struct ptc_plan_request plan_request(const Ptc__V1__ResizeRequest *req)
{
	return (struct ptc_plan_request){
		.config = req->config, .gpus = req->gpus, .nodes = req->nodes, .nnodes = req->n_nodes
	};
}

PTC_API_HANDLER(ptc_api_plan)
{
	struct ptc_daemon *d = arg;
	struct ptc_planned planned;
	Ptc__V1__ResizeRequest *req;
	struct ptc_plan_request pr;
	struct ptc_target t;
	struct ptc_view v;
	int rc = ptc_pb_call_recv(call, &ptc__v1__resize_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	pr = plan_request(req);
	rc = ptc_api_find(d, call, req->job, &t, err);
	pr.runs = rc == 0 && t.has_record && t.record.run == PTC_RUN_LIVE;
	pr.ranks = pr.trains = pr.runs;
	pr.at_rest = rc == 0 && t.has_record && !pr.runs;
	if (rc == 0)
		rc = ptc_api_view(d, &t, false, false, &v, err);
	if (rc == 0) {
		if (!pr.at_rest)
			ptc_copies_doc_done(&v.copies);
		ptc_probed_join(&d->docs, &v);
		rc = ptc_plan_switch(&d->controllers, &v, &pr, &planned, err);
		if (rc == 0) {
			rc = ptc_api_send_json(call, ptc_plan_report_json(planned.plan), err);
			ptc_planned_done(&planned);
		}
		ptc_view_done(&v);
	}
	ptc_pb_free(&req->base);
	return rc;
}

uint64_t ptc_api_new_id(void)
{
	uint64_t id = 0;

	ptc_sys_random(&id, sizeof id, NULL);
	return (id & PTC_ID_MASK) | 1;
}

struct turn {
	struct ptc_daemon *d;
	struct ptc_rpc_call *call;
	const char *uuid;
	int64_t end_ns; /* it is waited for until then */
	bool halts;
	uint64_t epoch, device_writes; /* of the cluster, before the try */
	enum ptc_devices_lack lack;
};

static void note_epoch(void *arg)
{
	struct turn *u = arg;

	u->epoch = ptc_cluster_epoch(u->d->cluster);
	u->device_writes = ptc_cluster_device_writes(u->d->cluster);
}

struct submit {
	struct turn *turn;
	struct ptc_switch_request *request;
	struct ptc_error *err;
	bool waited;  /* since it was planned */
	bool passing; /* what keeps the job busy ends by itself, soon */
	int rc;
};

static void submit_on_loop(void *arg)
{
	struct submit *s = arg;
	struct turn *u = s->turn;
	struct ptc_controller *ctl = ptc_controller_find(&u->d->controllers, u->uuid);

	s->passing = false;
	if (!ctl) {
		s->rc = ptc_error_set(s->err, PTC_ESTATE, "this daemon does not control the job any more; try again");
		return;
	}
	if (s->waited && (ptc_cluster_epoch(u->d->cluster) != u->epoch ||
			  ptc_cluster_device_writes(u->d->cluster) != u->device_writes)) {
		s->rc = ptc_error_set(s->err, PTC_ECONFLICT, "nodes or devices have changed since it was planned");
		return;
	}
	s->passing = ptc_controller_passing(ctl);
	if (s->request->kind == PTC_SWITCH_HALT && !ptc_controller_idle(ctl)) { /* what hangs is ended first */
		ptc_controller_abort(ctl, 0, "the job is stopped now", NULL);
		s->passing = true;
	}
	s->rc = ptc_controller_submit(ctl, s->request, s->err);
}

/* Another try can end otherwise than the one before. A job that is halted has been told to end what it does. */
static bool may_try(void *arg)
{
	struct turn *u = arg;
	struct ptc_controller *ctl = ptc_controller_find(&u->d->controllers, u->uuid);

	if (u->lack)
		return ptc_cluster_epoch(u->d->cluster) != u->epoch;
	if (!ctl || ptc_controller_ready(ctl))
		return true;
	return !u->halts && !ptc_controller_idle(ctl) && !ptc_controller_passing(ctl);
}

/* What goes before may take longer than a due snapshot is put off. So a request for ranks that run is not planned anew
 * while one is made, unless nodes or devices change. */
static int hand_over(struct turn *u, struct ptc_switch_request *r, bool *ret_again, struct ptc_error *err)
{
	struct submit s = { .turn = u, .request = r, .err = err };
	int rc;

	for (;; s.waited = true) {
		rc = ptc_loop_call(u->d->loop, submit_on_loop, &s);
		if (rc || s.rc != PTC_ESTATE || !s.passing || !r->run_from || r->kind == PTC_SWITCH_HALT ||
		    ptc_api_wait(u->d, u->call, may_try, u, (u->end_ns - ptc_sys_now_ns()) / 1000000) != 0)
			break;
	}
	rc = rc ? ptc_error_set(err, rc, "the daemon is stopping") : s.rc;
	/* a conflict: the mirror that the plan was made from was behind the record, or has changed */
	*ret_again = (rc == PTC_ESTATE && s.passing) || rc == PTC_ECONFLICT;
	return rc;
}

/* What this job's state allows. */
static int check_ask(const struct ptc_target *t, const struct ptc_api_ask *ask, struct ptc_error *err)
{
	bool live = t->has_record && t->record.run == PTC_RUN_LIVE;

	if (ask->start && live)
		return ptc_error_set(err, PTC_ESTATE, "job %s runs already; see `ptcctl status %s`", t->meta.name,
				     t->meta.name);
	if (ask->kind == PTC_SWITCH_RESIZE && !ask->start && !live && t->has_record && !t->record.snapshot)
		return ptc_error_set(err, PTC_ESTATE,
				     "job %s ended before its first snapshot; `ptcctl run %s` starts it again",
				     t->meta.name, t->meta.name);
	if ((ask->kind == PTC_SWITCH_SNAPSHOT || ask->source) && t->record.recovery)
		return ptc_error_set(
			err, PTC_ESTATE,
			"job %s has lost ranks and waits to be started again; `ptcctl stop %s --now` ends that",
			t->meta.name, t->meta.name);
	if ((ask->kind == PTC_SWITCH_SNAPSHOT || ask->kind == PTC_SWITCH_HALT) && !live && !t->record.recovery)
		return ptc_error_set(err, PTC_ESTATE,
				     "job %s does not run (%s), so no rank can be stopped or copied; `ptcctl snapshots "
				     "%s` lists its state",
				     t->meta.name, t->has_record ? ptc_run_name(t->record.run) : "no state yet",
				     t->meta.name);
	return 0;
}

/* Nothing says what ranks hold under a configuration that they never had. */
static int check_layout(const struct ptc_target *t, const struct ptc_view *v, const struct ptc_switch_request *r,
			struct ptc_error *err)
{
	if (r->kind != PTC_SWITCH_RESIZE || r->run_to || !v->from.layout_hash[0] || r->to.layout_hash[0])
		return 0;
	return ptc_error_set(
		err, PTC_ESTATE,
		"job %s does not run, and its ranks have never had configuration %s, so nobody knows what each of "
		"them would hold; `ptcctl run %s --config %s` starts them with it",
		t->meta.name, r->to.config, t->meta.name, r->to.config);
}

struct covered {
	struct ptc_daemon *d;
	struct ptc_view *v;
	const struct ptc_target *t; /* the job now */
	const struct ptc_generation_doc *now;
	bool lost; /* one of its nodes is */
	int rc;
};

static void locate_on_loop(void *arg)
{
	struct covered *c = arg;
	uint32_t at;

	c->rc = ptc_view_locate(c->v, c->d->cluster);
	for (size_t i = 0; c->now && i < c->now->nnodes; i++)
		c->lost |= !ptc_cluster_find_node(c->d->cluster, c->now->nodes[i], &at) ||
			   ptc_node_lost_for(ptc_cluster_node(c->d->cluster, at), &c->t->record);
}

/* Nodes are asked whether they have what the snapshot says: one may be down, or have come back without it. to: where
 * its state goes: where the job is `now`, or, if a node of these is lost, where it is; NULL: nowhere. */
static int check_source(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_view *v,
			const struct ptc_generation_doc *now, struct ptc_generation_doc *to, struct ptc_error *err)
{
	struct covered c = { .d = d, .v = v, .t = t, .now = now };
	bool *usable = ptc_calloc(v->nnodes + 1, sizeof *usable);
	int rc = usable ? ptc_loop_call(d->loop, locate_on_loop, &c) : PTC_ENOMEM;

	if (rc == 0)
		rc = c.rc;
	if (rc) {
		ptc_free(usable);
		return ptc_error_set(err, rc, "the snapshot's nodes cannot be looked up");
	}
	ptc_lost_ask(&d->controllers, v, usable);
	rc = ptc_lost_covered(&d->controllers, v, usable, err);
	if (rc == 0 && to && c.lost)
		rc = ptc_older_target(v, usable, to, err);
	else if (rc == 0 && to && ptc_generation_doc_copy(now, to) != 0)
		rc = ptc_nomem(err);
	ptc_free(usable);
	return rc ? ptc_error_wrap(err, "job %s cannot go back to snapshot %llu now", v->meta.name,
				   (unsigned long long)v->from_snapshot)
		  : 0;
}

/* Whether the state that the job has now says what it would skip. source: what it goes back to. */
static int check_skip(struct ptc_daemon *d, const struct ptc_view *now, const struct ptc_view *source,
		      struct ptc_error *err)
{
	int rc = ptc_rank_states_skips(&d->controllers.docs, &now->meta, &source->manifest, &now->manifest, err);

	return rc ? ptc_error_wrap(err, "job %s cannot skip its data", now->meta.name) : 0;
}

/* Ranks that run say how far they have come with one snapshot more, and the one that is wanted must outlast that. */
static int check_outlasts(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_older_doc *older,
			  uint64_t snapshot, struct ptc_error *err)
{
	const struct ptc_job_desc *desc;
	void *ref;
	int rc;

	if (t->record.run != PTC_RUN_LIVE)
		return 0;
	rc = ptc_specs_get(d->controllers.docs.specs, t->meta.uuid, t->meta.spec_hash, &desc, &ref, err);
	if (rc)
		return rc;
	older->bridge = (struct ptc_older){ 0 }; /* the snapshot that ranks stop with may take its place */
	if (!older->n || t->record.snapshot > older->v[older->n - 1].snapshot) /* a commit may have come between */
		ptc_older_add(older, &(struct ptc_older){ .snapshot = t->record.snapshot, .step = t->record.step });
	ptc_older_prune(older, desc->keep.last, desc->keep.every, PTC_OLDER_MAX);
	ptc_specs_release(ref);
	if (ptc_older_find(older, snapshot))
		return 0;
	return ptc_error_set(
		err, PTC_ESTATE,
		"job %s would not keep snapshot %llu beside the one that its ranks stop with; `ptcctl stop "
		"%s --now` ends them without one, and the data that is skipped then ends at the last snapshot",
		t->meta.name, (unsigned long long)snapshot, t->meta.name);
}

static int check_skip_now(struct ptc_daemon *d, struct ptc_target *t, const struct ptc_view *source,
			  struct ptc_older_doc *older, struct ptc_error *err)
{
	struct ptc_view now;
	int rc = ptc_api_view(d, t, false, true, &now, err);

	if (rc)
		return rc;
	rc = check_skip(d, &now, source, err);
	ptc_view_done(&now);
	return rc ? rc : check_outlasts(d, t, older, source->from_snapshot, err);
}

int ptc_api_check_rollback(struct ptc_daemon *d, struct ptc_target *t, uint64_t snapshot, bool skip_data,
			   struct ptc_error *err)
{
	struct ptc_older_doc older;
	struct ptc_view v;
	int rc;

	ptc_api_older(d, t, &older);
	rc = ptc_view_older(d->docs.kept, &t->meta, &older, snapshot, &v, err);
	if (rc)
		return rc;
	rc = check_source(d, t, &v, NULL, NULL, err);
	if (rc == 0 && skip_data)
		rc = check_skip_now(d, t, &v, &older, err);
	ptc_view_done(&v);
	return rc;
}

/* A rollback goes to where the job is now: it changes the state, and not where ranks are, unless a node is lost. */
static int plan_rollback(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v,
			 const struct ptc_api_ask *ask, struct ptc_switch_request *r, struct ptc_error *err)
{
	struct ptc_older_doc older;
	int rc;

	if (r->run_from)
		return ptc_error_set(err, PTC_ESTATE,
				     "job %s runs: `ptcctl stop %s --now` ends its ranks, without another snapshot",
				     t->meta.name, t->meta.name);
	ptc_api_older(d, t, &older);
	rc = ptc_view_older(d->docs.kept, &t->meta, &older, ask->source, &r->source_view, err);
	if (rc)
		return rc;
	r->source = ask->source;
	r->skip_data = ask->skip_data;
	rc = check_source(d, t, &r->source_view, &v->from, &r->to, err);
	return rc == 0 && ask->skip_data ? check_skip(d, v, &r->source_view, err) : rc;
}

/* One try: plan for what is committed now, hand over. Again, when the job was only tidying up after a
 * switch or making a snapshot, or the plan was made for an older record. */
static int try_switch(struct turn *u, struct ptc_target *t, const struct ptc_api_ask *ask,
		      const struct ptc_plan_request *pr, struct ptc_watcher *w, uint64_t id, bool *ret_again,
		      struct ptc_error *err)
{
	bool live = t->has_record && t->record.run == PTC_RUN_LIVE, resize = ask->kind == PTC_SWITCH_RESIZE;
	struct ptc_switch_request r = { .kind = ask->kind,
					.id = id,
					.run_from = live,
					.run_to = ask->start || (live && !ask->stop),
					.end = PTC_RUN_STOPPED };
	struct ptc_plan_request asked = *pr;
	struct ptc_planned planned = { 0 };
	struct ptc_daemon *d = u->d;
	struct ptc_view v;
	int rc = check_ask(t, ask, err);

	asked.at_rest = t->has_record && !live;
	asked.runs = resize && r.run_to;
	asked.ranks = r.run_to;
	asked.trains = resize && live && r.run_to;
	asked.packed = ask->kind == PTC_SWITCH_IMPORT && !ask->source;

	if (rc == 0)
		rc = ptc_api_view(d, t, false, resize && !ask->start, &v, err);
	if (rc)
		return rc;
	if (ptc_fault("api.switch.plan")) {
		ptc_view_done(&v);
		return ptc_error_set(err, PTC_EIO, "plan: injected failure");
	}
	if (!asked.at_rest) /* ranks have gone on since */
		ptc_copies_doc_done(&v.copies);
	if (resize || asked.packed)
		ptc_probed_join(&d->docs, &v);
	if (ask->source)
		rc = plan_rollback(d, t, &v, ask, &r, err);
	else if (resize || ask->kind == PTC_SWITCH_IMPORT)
		rc = ptc_plan_switch(&d->controllers, &v, &asked, &planned, err);
	if (!ask->source)
		ptc_switch_request_plan(&r, &planned);
	r.base_generation = v.from_generation;
	r.base_snapshot = v.from_snapshot;
	if (rc == 0)
		rc = check_layout(t, &v, &r, err);
	r.ahead = asked.trains && ptc_plan_builds_ahead(r.plan);
	if (rc == 0 && planned.stays && !ask->start)
		rc = ptc_error_set(err, PTC_ESTATE, "job %s stays as it is (--config moves it all the same): %s",
				   t->meta.name, r.plan->chosen.why);
	if (rc == 0) {
		r.watcher = ptc_watcher_ref(w);
		rc = hand_over(u, &r, ret_again, err);
	}
	ptc_switch_request_done(&r);
	ptc_view_done(&v);
	return rc;
}

/* A document that the plan needs was dropped: a later commit, by now, names others. */
static bool moved_on(struct ptc_daemon *d, struct ptc_rpc_call *call, const struct ptc_target *t)
{
	struct ptc_error ignored = PTC_ERROR_INIT;
	struct ptc_target now;

	return ptc_api_find(d, call, t->meta.uuid, &now, &ignored) == 0 && now.has_record == t->has_record &&
	       (now.record.generation != t->record.generation || now.record.snapshot != t->record.snapshot);
}

int ptc_api_start_switch(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *job,
			 const struct ptc_api_ask *ask, const struct ptc_plan_request *pr, struct ptc_watcher *w,
			 uint64_t id, struct ptc_error *err)
{
	int64_t now = ptc_sys_now_ns(), end = now + BUSY_WAIT_MS * INT64_C(1000000);
	int64_t taken_end = now + TAKEN_WAIT_MS * INT64_C(1000000);
	int moves = 0;

	for (;;) {
		struct ptc_target t;
		struct turn u = {
			.d = d, .call = call, .uuid = t.meta.uuid, .end_ns = end, .halts = ask->kind == PTC_SWITCH_HALT
		};
		struct ptc_plan_request asked = pr ? *pr : (struct ptc_plan_request){ 0 };
		bool again = false;
		int rc = ptc_api_find(d, call, job, &t, err);

		asked.ret_lack = &u.lack;
		ptc_loop_call(d->loop, note_epoch, &u);
		if (rc == 0) {
			rc = try_switch(&u, &t, ask, &asked, w, id, &again, err);
			if (rc == PTC_ENOTFOUND && !again && !u.lack && moves++ < MOVES_MAX)
				again = moved_on(d, call, &t);
		}
		now = ptc_sys_now_ns();
		if ((!again && !u.lack) ||
		    ptc_api_wait(d, call, may_try, &u,
				 ((u.lack == PTC_DEVICES_TAKEN ? taken_end : end) - now) / 1000000) != 0)
			return rc;
	}
}

PTC_API_HANDLER(ptc_api_resize)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__ResizeRequest *req;
	struct ptc_plan_request pr;
	struct ptc_watcher *w;
	struct ptc_target t;
	uint64_t id = ptc_api_new_id();
	int rc = ptc_pb_call_recv(call, &ptc__v1__resize_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	pr = plan_request(req);
	rc = ptc_api_find_controlled(d, call, req->job, &t, err);
	if (rc == 0 && !t.ours) {
		rc = ptc_api_forward_switch(d, &t, call, "/ptc.v1.Control/Resize", &req->base, 0, err);
	} else if (rc == 0) {
		w = ptc_watcher_new(id);
		rc = w ? ptc_api_start_switch(d, call, req->job, &(struct ptc_api_ask){ .kind = PTC_SWITCH_RESIZE },
					      &pr, w, id, err)
		       : ptc_nomem(err);
		if (rc == 0)
			rc = ptc_api_stream(d, &t, w, call, err);
		ptc_watcher_unref(w);
	}
	ptc_pb_free(&req->base);
	return rc;
}

/* ---- abort --------------------------------------------------------------------------- */

struct abort_ask {
	struct ptc_daemon *d;
	const char *uuid;
	uint64_t id;
	const char *why;
	struct ptc_error *err;
	int rc;
};

static void abort_on_loop(void *arg)
{
	struct abort_ask *a = arg;
	struct ptc_controller *ctl = ptc_controller_find(&a->d->controllers, a->uuid);

	a->rc = ctl ? ptc_controller_abort(ctl, a->id, a->why, a->err)
		    : ptc_error_set(a->err, PTC_ESTATE, "this daemon does not control the job any more; try again");
}

PTC_API_HANDLER(ptc_api_abort)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__Ack ack = PTC__V1__ACK__INIT;
	struct abort_ask a = { .d = d, .why = "aborted by request", .err = err };
	Ptc__V1__AbortRequest *req;
	struct ptc_target t;
	int rc = ptc_pb_call_recv(call, &ptc__v1__abort_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = ptc_api_find_controlled(d, call, req->job, &t, err);
	if (rc == 0 && !t.ours) {
		rc = ptc_api_forward(d, &t, call, "/ptc.v1.Control/Abort", &req->base, err);
	} else if (rc == 0) {
		a.uuid = t.meta.uuid;
		a.id = req->id;
		rc = ptc_loop_call(d->loop, abort_on_loop, &a);
		rc = rc ? ptc_error_set(err, rc, "the daemon is stopping") : a.rc;
		ack.version = PTC_WIRE_VERSION;
		if (rc == 0)
			rc = ptc_pb_call_send(call, &ack.base, err);
	}
	ptc_pb_free(&req->base);
	return rc;
}
