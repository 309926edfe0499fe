/* SPDX-License-Identifier: Apache-2.0 */
/* The calls behind `ptcctl dataset`: datasets by name. The daemon keeps the caller's document and opens no source: the
 * caller has opened it, with his own rights.
 *
 * Happy path: any daemon writes, reads and deletes the key /ptc/datasets/UID/NAME; there is nothing for a controller to
 * do. Names are each user's own. Older versions had one space of names for all users, /ptc/datasets/NAME: such keys are
 * still found.
 *
 * Failure modes: the name is taken (PTC_EEXIST), or not the caller's (PTC_ENOTFOUND, as for one that does not exist);
 * root asks for a name that several users have (PTC_EINVAL); the user has as many as he may, or all users together
 * (PTC_ELIMIT); etcd unreachable (PTC_ECOORD). A job keeps the dataset's document of the time when the job was created,
 * so removing a dataset breaks no job. */
#include "daemon/api/samples/samples.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "daemon/cluster/quota.h"
#include "formats/dataset/dataset_doc.h"
#include "formats/job/job.h"
#include "formats/json.h"
#include "formats/names.h"

#include <stdio.h>
#include <string.h>

#define PREFIX  "/ptc/datasets/"
#define KEY_MAX (sizeof PREFIX + PTC_NAME_MAX + 12)

#define ROOT_RESERVE 256 /* of PTC_MAX_DATASETS; only root may register these */
#define TRIES        100 /* each that fails is another dataset of the same user's that was added */

static int send_ack(struct ptc_rpc_call *call, struct ptc_error *err)
{
	Ptc__V1__Ack ack = PTC__V1__ACK__INIT;

	ack.version = PTC_WIRE_VERSION;
	return ptc_pb_call_send(call, &ack.base, err);
}

/* How many there are, of all and of this user; `after`: the revision at which that was so. */
static int check_room(struct ptc_daemon *d, uid_t uid, const char *mine, int64_t *ret_after, struct ptc_error *err)
{
	const size_t may = ptc_cluster_quota(d->cluster)->datasets;
	const size_t most = uid == 0 ? PTC_MAX_DATASETS : PTC_MAX_DATASETS - ROOT_RESERVE;
	struct ptc_etcd *e = ptc_cluster_etcd(d->cluster);
	struct ptc_etcd_kvs kvs = { 0 };
	size_t all = 0;
	int rc = ptc_etcd_get_keys(e, mine, &kvs, err);

	if (rc == 0 && uid != 0 && kvs.n >= may)
		rc = ptc_error_set(err, PTC_ELIMIT,
				   "uid %u has %zu datasets, and may have %zu (quota.datasets); remove one first "
				   "(`ptcctl dataset list`)",
				   (unsigned)uid, kvs.n, may);
	*ret_after = kvs.revision;
	ptc_etcd_kvs_done(&kvs);
	if (rc == 0)
		rc = ptc_etcd_count(e, PREFIX, &all, err);
	if (rc == 0 && all >= most)
		rc = ptc_error_set(err, PTC_ELIMIT, "%zu datasets are registered, at most %zu can be%s; remove some",
				   all, most, uid == 0 ? "" : " by users");
	return rc;
}

static bool visible(const struct ptc_dataset_doc *doc, uid_t uid)
{
	return uid == 0 || doc->uid == uid;
}

static int taken(const char *name, struct ptc_error *err)
{
	return ptc_error_set(err, PTC_EEXIST, "a dataset named \"%s\" exists already; choose another name", name);
}

/* A registered dataset and its key. */
struct known {
	char key[KEY_MAX];
	int64_t revision;
	struct ptc_dataset_doc doc;
};

/* PTC_ENOTFOUND: there is none, or none that uid may see. */
static int get_key(struct ptc_etcd *e, const char *key, uid_t uid, struct known *ret, struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	int rc = ptc_etcd_get(e, key, false, 1, &kvs, err);

	if (rc == 0 && !kvs.n)
		rc = PTC_ENOTFOUND;
	if (rc == 0)
		rc = ptc_dataset_doc_decode(kvs.kv[0].value, kvs.kv[0].len, &ret->doc, err);
	if (rc == 0 && !visible(&ret->doc, uid))
		rc = PTC_ENOTFOUND;
	if (rc == 0) {
		ret->revision = kvs.kv[0].mod_revision;
		snprintf(ret->key, sizeof ret->key, "%s", key);
	}
	ptc_etcd_kvs_done(&kvs);
	return rc;
}

static int check_older(struct ptc_etcd *e, const struct ptc_dataset_doc *doc, struct ptc_error *err)
{
	char key[KEY_MAX];
	struct known older;
	int rc;

	snprintf(key, sizeof key, PREFIX "%s", doc->name);
	rc = get_key(e, key, doc->uid, &older, err);
	if (rc == PTC_ENOTFOUND)
		return 0;
	return rc == 0 && older.doc.uid == doc->uid ? taken(doc->name, err) : rc;
}

/* The only one of that name, whosever it is. */
static int get_any(struct ptc_etcd *e, const char *name, struct known *ret, struct ptc_error *err)
{
	struct ptc_etcd_kvs kvs = { 0 };
	char key[KEY_MAX] = "";
	size_t found = 0;
	int rc = ptc_etcd_get(e, PREFIX, true, 2 * PTC_MAX_DATASETS, &kvs, err);

	for (size_t i = 0; rc == 0 && i < kvs.n; i++) {
		const char *leaf = strrchr(kvs.kv[i].key, '/') + 1;

		if (strcmp(leaf, name) == 0 && strlen(kvs.kv[i].key) < sizeof key && found++ == 0)
			snprintf(key, sizeof key, "%s", kvs.kv[i].key);
	}
	ptc_etcd_kvs_done(&kvs);
	if (rc)
		return rc;
	if (found > 1)
		return ptc_error_set(err, PTC_EINVAL,
				     "%zu users have a dataset \"%s\"; run this as the user whose dataset you mean",
				     found, name);
	return found ? get_key(e, key, 0, ret, err) : PTC_ENOTFOUND;
}

/* The dataset that uid means by a name: his own; for root also the only one of that name. */
static int find(struct ptc_etcd *e, const char *name, uid_t uid, struct known *ret, struct ptc_error *err)
{
	char key[KEY_MAX];
	int rc = ptc_name_check_job(name, err);

	if (rc)
		return rc;
	snprintf(key, sizeof key, PREFIX "%u/%s", (unsigned)uid, name);
	rc = get_key(e, key, uid, ret, err);
	if (rc != PTC_ENOTFOUND)
		return rc;
	if (uid == 0)
		return get_any(e, name, ret, err);
	snprintf(key, sizeof key, PREFIX "%s", name);
	return get_key(e, key, uid, ret, err);
}

/* Puts it if nobody has put another one of this user's since they were counted; so two that come at once both count.
 * *ret_ok false: somebody has. */
static int put(struct ptc_daemon *d, const struct ptc_dataset_doc *doc, const char *key, const char *json, bool *ret_ok,
	       struct ptc_error *err)
{
	struct ptc_etcd *e = ptc_cluster_etcd(d->cluster);
	struct ptc_etcd_compare same[] = { { key, PTC_ETCD_CREATE_REV, 0 }, { NULL, PTC_ETCD_NONE_AFTER, 0 } };
	struct known k;
	char mine[KEY_MAX];
	int rc;

	*ret_ok = false;
	snprintf(mine, sizeof mine, PREFIX "%u/", (unsigned)doc->uid);
	same[1].key = mine;
	rc = get_key(e, key, doc->uid, &k, err);
	if (rc != PTC_ENOTFOUND)
		return rc ? rc : taken(doc->name, err);
	rc = check_older(e, doc, err);
	if (rc == 0)
		rc = check_room(d, doc->uid, mine, &same[1].equal, err);
	return rc ? rc
		  : ptc_etcd_txn(e, same, PTC_ARRAY_LEN(same),
				 &(struct ptc_etcd_op){ .key = key, .value = json, .len = strlen(json) }, 1,
				 "etcd.dataset", ret_ok, NULL, err);
}

static int add(struct ptc_daemon *d, const struct ptc_dataset_doc *doc, struct ptc_error *err)
{
	ptc_auto_free char *json = ptc_dataset_doc_encode(doc);
	char key[KEY_MAX];
	bool ok = false;
	int rc = json ? ptc_quota_room(d->cluster, strlen(json), err) : ptc_nomem(err);

	snprintf(key, sizeof key, PREFIX "%u/%s", (unsigned)doc->uid, doc->name);
	for (int i = 0; rc == 0 && !ok && i < TRIES; i++)
		rc = put(d, doc, key, json, &ok, err);
	return rc || ok ? rc
			: ptc_error_set(err, PTC_ECONFLICT,
					"datasets of uid %u were added again and again meanwhile; try again",
					(unsigned)doc->uid);
}

/* Where the source is, which only who is on the same machine can know. */
static int place(const struct ptc_daemon *d, const struct ptc_rpc_call *call, bool here, struct ptc_dataset_doc *doc,
		 struct ptc_error *err)
{
	doc->node[0] = '\0';
	if (!here)
		return 0;
	if (ptc_rpc_call_identity(call)->role != PTC_ROLE_USER)
		return ptc_error_set(err, PTC_EINVAL,
				     "a dataset that lies on one node is added there, through that node's socket");
	snprintf(doc->node, sizeof doc->node, "%s", d->config.node);
	return 0;
}

PTC_API_HANDLER(ptc_api_dataset_add)
{
	struct ptc_daemon *d = arg;
	struct ptc_dataset_doc doc;
	Ptc__V1__DatasetRequest *req;
	bool here;
	int rc = ptc_pb_call_recv(call, &ptc__v1__dataset_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = ptc_dataset_doc_decode(req->json, strlen(req->json), &doc, err);
	here = req->here;
	ptc_pb_free(&req->base);
	if (rc)
		return rc;
	rc = place(d, call, here, &doc, err);
	if (rc)
		return rc;
	doc.uid = ptc_api_uid(call);
	doc.created_ms = ptc_sys_realtime_ms();
	rc = add(d, &doc, err);
	return rc ? rc : send_ack(call, err);
}

/* Deletes it if it is the caller's, and still is when it goes. */
static int remove_one(struct ptc_etcd *e, const char *name, uid_t uid, struct ptc_error *err)
{
	struct known k;
	bool ok = false;
	int rc = find(e, name, uid, &k, err);

	if (rc == PTC_ENOTFOUND)
		rc = ptc_error_set(err, PTC_ENOTFOUND, "dataset \"%s\" does not exist; see `ptcctl dataset list`",
				   name);
	if (rc == 0)
		rc = ptc_etcd_txn(e, &(struct ptc_etcd_compare){ k.key, PTC_ETCD_MOD_REV, k.revision }, 1,
				  &(struct ptc_etcd_op){ .key = k.key }, 1, "etcd.undataset", &ok, NULL, err);
	if (rc == 0 && !ok)
		rc = ptc_error_set(err, PTC_ECONFLICT, "dataset \"%s\" was changed meanwhile; try again", name);
	return rc;
}

PTC_API_HANDLER(ptc_api_dataset_remove)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__DatasetRequest *req;
	int rc = ptc_pb_call_recv(call, &ptc__v1__dataset_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	rc = remove_one(ptc_cluster_etcd(d->cluster), req->name, ptc_api_uid(call), err);
	ptc_pb_free(&req->base);
	return rc ? rc : send_ack(call, err);
}

PTC_API_HANDLER(ptc_api_dataset_list)
{
	struct ptc_daemon *d = arg;
	struct ptc_etcd_kvs kvs = { 0 };
	uid_t uid = ptc_api_uid(call);
	ProtobufCMessage *req;
	json_t *rows;
	int rc = ptc_pb_call_recv(call, &ptc__v1__list_request__descriptor, &req, err);

	if (rc)
		return rc;
	ptc_pb_free(req);
	rc = ptc_etcd_get(ptc_cluster_etcd(d->cluster), PREFIX, true, 2 * PTC_MAX_DATASETS, &kvs, err);
	if (rc)
		return rc;
	rows = json_array();
	for (size_t i = 0; i < kvs.n; i++) {
		struct ptc_dataset_doc doc;

		/* One that we cannot read hides none of the others. */
		if (ptc_dataset_doc_decode(kvs.kv[i].value, kvs.kv[i].len, &doc, NULL) == 0 && visible(&doc, uid))
			json_array_append_new(rows, ptc_dataset_doc_to_json(&doc));
	}
	ptc_etcd_kvs_done(&kvs);
	return ptc_api_send_json(call,
				 json_pack("{s:i, s:s, s:o}", "version", 1, "node", d->config.node, "datasets", rows),
				 err);
}

int ptc_api_dataset(struct ptc_daemon *d, const char *name, uid_t uid, struct ptc_dataset_doc *ret_doc,
		    struct ptc_error *err)
{
	struct known k;
	int rc = find(ptc_cluster_etcd(d->cluster), name, uid, &k, err);

	if (rc == PTC_ENOTFOUND)
		rc = ptc_error_set(err, PTC_ENOTFOUND, "dataset %s is not registered any more; add it again", name);
	if (rc == 0)
		*ret_doc = k.doc;
	return rc;
}

/* ---- what a job consumes ------------------------------------------------------------ */

/* The dataset as it is registered, if it is the one that the job was created with; else why not. */
static json_t *part_json(struct ptc_daemon *d, const struct ptc_job_part *part, uid_t uid, struct ptc_dataset_doc *doc)
{
	struct ptc_error err = PTC_ERROR_INIT;
	char source[33];
	json_t *row = json_pack("{s:s, s:I, s:I, s:b, s:I, s:s}", "dataset", part->dataset, "weight",
				(json_int_t)part->weight, "block", (json_int_t)part->block, "sequential",
				(int)part->sequential, "samples", (json_int_t)part->samples, "pinned", part->source);
	int rc;

	rc = ptc_api_dataset(d, part->dataset, uid, doc, &err);
	if (rc == 0)
		rc = ptc_dataset_doc_source(doc, source);
	if (rc == 0 && strcmp(source, part->source) != 0)
		rc = ptc_error_set(&err, PTC_ECORRUPT,
				   "dataset %s has another source than when the job was created; add the old one "
				   "again, or create the job anew",
				   part->dataset);
	if (rc)
		json_object_set_new(row, "error", json_string(err.text));
	else
		json_object_set_new(row, "source", ptc_dataset_doc_to_json(doc));
	return row;
}

static int data_rows(struct ptc_daemon *d, const struct ptc_target *t, json_t *rows, struct ptc_error *err)
{
	ptc_auto_free struct ptc_dataset_doc *doc = ptc_malloc(sizeof *doc);
	const struct ptc_job_desc *desc;
	void *ref;
	int rc = doc ? ptc_specs_get(d->docs.specs, t->meta.uuid, t->meta.spec_hash, &desc, &ref, err) : ptc_nomem(err);

	if (rc)
		return rc;
	for (size_t i = 0; i < desc->ndata; i++) {
		const struct ptc_job_data *data = &desc->data[i];
		json_t *parts = json_array();

		for (uint32_t k = 0; k < data->nparts; k++)
			json_array_append_new(parts, part_json(d, &data->parts[k], t->meta.uid, doc));
		json_array_append_new(rows,
				      json_pack("{s:s, s:I, s:I, s:I, s:b, s:o}", "name", data->name, "seed",
						(json_int_t)data->seed, "global_batch", (json_int_t)data->global_batch,
						"micro_batch", (json_int_t)data->micro_batch, "by_length",
						(int)data->by_length, "parts", parts));
	}
	ptc_specs_release(ref);
	return 0;
}

static json_t *data_json(const struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v, json_t *rows)
{
	return json_pack("{s:i, s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:I, s:I, s:I, s:o, s:o}", "version", 1, "node",
			 d->config.node, "job", t->meta.name, "uuid", t->meta.uuid, "generation",
			 (json_int_t)v->from_generation, "snapshot", (json_int_t)v->from_snapshot, "step",
			 (json_int_t)v->manifest.step, "config", v->from.config, "cost_linear",
			 (json_int_t)v->from.cost_linear, "cost_square", (json_int_t)v->from.cost_square, "created_ms",
			 (json_int_t)t->meta.created_ms, "ledger",
			 ptc_members_to_json(&ptc_ledger_members, &v->manifest.ledger), "data", rows);
}

PTC_API_HANDLER(ptc_api_data)
{
	struct ptc_daemon *d = arg;
	json_t *rows = json_array();
	Ptc__V1__JobRequest *req;
	struct ptc_target t;
	struct ptc_view v;
	int rc = ptc_pb_call_recv(call, &ptc__v1__job_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc == 0) {
		rc = ptc_api_find(d, call, req->job, &t, err);
		ptc_pb_free(&req->base);
	}
	if (rc == 0)
		rc = data_rows(d, &t, rows, err);
	if (rc == 0)
		rc = ptc_api_view(d, &t, false, true, &v, err);
	if (rc) {
		json_decref(rows);
		return rc;
	}
	rc = ptc_api_send_json(call, data_json(d, &t, &v, rows), err);
	ptc_view_done(&v);
	return rc;
}
