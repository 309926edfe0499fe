/* SPDX-License-Identifier: Apache-2.0 */
/* Peer/Committed: what this node keeps of committed jobs, and the epoch that it takes over.
 *
 * Happy path: a node that recovers the cluster lists the jobs, reads the documents of some, and then says which cluster
 * this node's state belongs to from now on. A node that starts with the etcd that it had asks for this node's identity
 * alone (replaced.h). Failure modes: documents that are damaged are listed without a revision; a
 * node that does not wait, and an epoch below its own, are refused (PTC_ESTATE). */
#include "daemon/api/recover/recover_work.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/sys/sys.h"
#include "daemon/cluster/job_events.h"
#include "daemon/store/store.h"
#include "formats/names.h"

#include <pthread.h>
#include <string.h>

#define PART_BYTES (512u << 10)

struct uuids {
	char (*v)[PTC_UUID_TEXT];
	size_t n;
	bool failed;
};

static void add_uuid(void *arg, const char *uuid, uid_t uid, bool lost)
{
	struct uuids *u = arg;

	(void)uid;
	(void)lost;
	u->failed = u->failed || !PTC_MORE(u->v, u->n);
	if (!u->failed)
		snprintf(u->v[u->n++], sizeof u->v[0], "%s", uuid);
}

struct tables {
	struct ptc_inventory_job *of;
	bool failed;
};

static void add_table(void *arg, const struct ptc_table_key *key, bool sealed, int64_t bytes)
{
	struct tables *t = arg;

	(void)bytes;
	if (!sealed)
		return;
	t->failed = t->failed || !PTC_MORE(t->of->tables, t->of->ntables);
	if (!t->failed)
		t->of->tables[t->of->ntables++] = (struct ptc_inventory_table){ key->generation, key->snapshot };
}

/* Makes *d what the second note says, if there is one. */
static int join_later(struct ptc_daemon *d, const char *uuid, const char *what, struct ptc_durable *to,
		      struct ptc_error *err)
{
	struct ptc_error why = PTC_ERROR_INIT;
	struct ptc_durable later;
	void *data;
	size_t len;
	int rc = ptc_store_note_get(d->store, uuid, PTC_DURABLE_LATER, &data, &len, &why);

	if (rc)
		return rc == PTC_ENOTFOUND ? 0 : ptc_error_set(err, rc, "%s", why.text);
	if (len)
		rc = ptc_durable_decode(what, data, len, &later, err);
	ptc_free(data);
	return rc || !len ? rc : ptc_durable_join(what, to, &later, err);
}

int ptc_recover_own(struct ptc_daemon *d, const char *uuid, struct ptc_durable *ret, struct ptc_error *err)
{
	char what[PTC_NAME_MAX + 64];
	void *data;
	size_t len;
	int rc = ptc_store_note_get(d->store, uuid, PTC_DURABLE_NOTE, &data, &len, err);

	if (rc)
		return rc;
	snprintf(what, sizeof what, "node %s, job %s", d->config.node, uuid);
	rc = ptc_durable_decode(what, data, len, ret, err);
	ptc_free(data);
	if (rc)
		return rc;
	rc = join_later(d, uuid, what, ret, err);
	if (rc)
		ptc_durable_done(ret);
	return rc;
}

static int add_job(struct ptc_daemon *d, const char *uuid, struct ptc_inventory *v, struct ptc_error *err)
{
	struct ptc_durable kept = { 0 };
	struct ptc_inventory_job *j;
	struct ptc_meta_doc meta;
	struct tables t;

	if (!PTC_MORE(v->jobs, v->njobs))
		return ptc_nomem(err);
	j = &v->jobs[v->njobs++];
	*j = (struct ptc_inventory_job){ .ntables = 0 };
	snprintf(j->uuid, sizeof j->uuid, "%s", uuid);
	t = (struct tables){ .of = j };
	(void)ptc_store_tables(d->store, uuid, add_table, &t, NULL); /* none where its chunks are lost */
	if (ptc_recover_own(d, uuid, &kept, NULL) == 0 &&
	    ptc_meta_doc_decode(kept.key[PTC_DURABLE_META], strlen(kept.key[PTC_DURABLE_META]), &meta, NULL) == 0) {
		snprintf(j->name, sizeof j->name, "%s", meta.name);
		j->epoch = kept.epoch;
		j->revision = (uint64_t)kept.revision;
	}
	ptc_durable_done(&kept);
	return t.failed ? ptc_nomem(err) : 0;
}

static int read_cluster(struct ptc_daemon *d, char **ret_text, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/cluster", d->config.state_dir);

	return path ? ptc_sys_read_file(path, PTC_CLUSTER_MAX_BYTES, ret_text, NULL, err) : ptc_nomem(err);
}

int ptc_recover_inventory(struct ptc_daemon *d, struct ptc_inventory *ret, struct ptc_error *err)
{
	struct ptc_inventory v = { .waits = d->waits[0] != '\0' };
	struct uuids u = { 0 };
	int rc = read_cluster(d, &v.cluster, err);

	snprintf(v.node, sizeof v.node, "%s", d->config.node);
	if (rc == 0)
		rc = ptc_store_jobs(d->store, add_uuid, &u, err);
	if (rc == 0 && u.failed)
		rc = ptc_nomem(err);
	if (rc == 0 && v.waits)
		rc = ptc_cluster_old_answers(d->cluster, &v.old, err);
	if (rc == 0 && !v.old)
		v.old = ptc_strdup("");
	if (rc == 0 && !v.old)
		rc = ptc_nomem(err);
	for (size_t i = 0; rc == 0 && i < u.n; i++)
		rc = add_job(d, u.v[i], &v, err);
	ptc_free(u.v);
	if (rc)
		ptc_inventory_done(&v);
	else
		*ret = v;
	return rc;
}

static int own_inventory(struct ptc_daemon *d, char **ret_json, struct ptc_error *err)
{
	struct ptc_inventory v;
	int rc = ptc_recover_inventory(d, &v, err);

	if (rc)
		return rc;
	*ret_json = ptc_inventory_encode(&v);
	ptc_inventory_done(&v);
	return *ret_json ? 0 : ptc_nomem(err);
}

/* Durably: after this the node starts with no etcd of an earlier epoch. */
static int take_over(struct ptc_daemon *d, const char *text, struct ptc_error *err)
{
	ptc_auto_free char *path = ptc_asprintf("%s/cluster", d->config.state_dir), *own = NULL;
	struct ptc_identity a, b;
	int rc = path ? ptc_identity_decode("the request's cluster", text, &b, err) : ptc_nomem(err);

	if (rc == 0)
		rc = read_cluster(d, &own, err);
	if (rc == 0)
		rc = ptc_identity_decode(path, own, &a, err);
	if (rc)
		return rc;
	if (!d->waits[0])
		return ptc_error_set(err, PTC_ESTATE, "node %s runs with its etcd", d->config.node);
	if (strcmp(a.id, b.id) != 0 || b.epoch < a.epoch)
		return ptc_error_set(err, PTC_ESTATE, "node %s is of another cluster, or of a later epoch",
				     d->config.node);
	return ptc_sys_write_file(path, text, strlen(text), 0600, "recover.raise", err);
}

static int read_part(struct ptc_daemon *d, const Ptc__V1__CommittedRequest *req, Ptc__V1__CommittedReply *reply,
		     void **ret_data, struct ptc_error *err)
{
	struct ptc_durable own;
	size_t len;
	int rc = ptc_recover_own(d, req->uuid, &own, err); /* the one who asks may know nothing of two notes */

	if (rc)
		return rc;
	rc = ptc_durable_encode(&own, (char **)ret_data, &len);
	ptc_durable_done(&own);
	if (rc)
		return ptc_nomem(err);
	if (req->offset > len)
		return ptc_error_set(err, PTC_EINVAL, "the documents of job %.36s have %zu bytes", req->uuid, len);
	reply->total = len;
	reply->data.data = (uint8_t *)*ret_data + req->offset;
	reply->data.len = PTC_MIN(len - (size_t)req->offset, (size_t)PART_BYTES);
	return 0;
}

/* ---- a node that may be of a lower epoch ---- */

#define SAID_JOBS_MAX 100 /* in whose logs it is told */
#define SAID_AGAIN_NS (INT64_C(600) * 1000000000)

struct behind {
	struct ptc_daemon *d;
	const char *node;
};

static void tell_jobs(void *arg)
{
	const struct behind *b = arg;
	size_t told = 0;

	for (size_t i = 0; i < ptc_cluster_njobs(b->d->cluster) && told < SAID_JOBS_MAX; i++) {
		const struct ptc_job_view *j = ptc_cluster_job(b->d->cluster, i);

		if (!j->has_meta || !j->has_record)
			continue;
		told++;
		ptc_event(b->d->cluster, j->uuid, "node_behind",
			  "node %s ran with an etcd that has been replaced, so its ptcd ends; the bytes there count "
			  "again after `ptcctl cluster rejoin` on that node",
			  b->node);
	}
}

/* A node that cannot remember what it is told asks again at each start: that is not told each time. */
static bool is_new(const char *node)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static char last[PTC_NAME_MAX + 1];
	static int64_t last_ns;
	int64_t now = ptc_sys_now_ns();
	bool yes;

	pthread_mutex_lock(&lock);
	yes = strcmp(last, node) != 0 || now > last_ns + SAID_AGAIN_NS;
	if (yes) {
		snprintf(last, sizeof last, "%s", node);
		last_ns = now;
	}
	pthread_mutex_unlock(&lock);
	return yes;
}

static int identity_alone(struct ptc_daemon *d, const Ptc__V1__CommittedRequest *req, char **ret_json,
			  struct ptc_error *err)
{
	ptc_auto_free char *cluster = NULL;
	char none[] = "";
	struct behind b = { d, req->asker };
	struct ptc_inventory v = { .waits = d->waits[0] != '\0', .old = none };
	int rc = ptc_name_check_job(req->asker, err);

	if (rc == 0)
		rc = read_cluster(d, &cluster, err);
	if (rc)
		return rc;
	if (ptc_identity_check_peer(req->own, "this node is", cluster, NULL) != 0 && is_new(req->asker)) {
		ptc_warn("recover", "node=%s ran with an etcd that has been replaced; it is told", req->asker);
		if (!d->waits[0])
			(void)ptc_loop_call(d->loop, tell_jobs, &b);
	}
	snprintf(v.node, sizeof v.node, "%s", d->config.node);
	v.cluster = cluster;
	*ret_json = ptc_inventory_encode(&v);
	return *ret_json ? 0 : ptc_nomem(err);
}

static int serve(void *arg, struct ptc_rpc_call *call, struct ptc_error *err)
{
	struct ptc_daemon *d = arg;
	Ptc__V1__CommittedReply reply = PTC__V1__COMMITTED_REPLY__INIT;
	Ptc__V1__CommittedRequest *req;
	ptc_auto_free char *json = NULL;
	void *data = NULL;
	int rc = ptc_pb_call_recv(call, &ptc__v1__committed_request__descriptor, (ProtobufCMessage **)&req, err);

	if (rc)
		return rc;
	if (req->asker[0])
		rc = identity_alone(d, req, &json, err);
	else if (req->cluster[0])
		rc = take_over(d, req->cluster, err);
	else if (!req->uuid[0])
		rc = own_inventory(d, &json, err);
	else if (strlen(req->uuid) != PTC_UUID_TEXT - 1)
		rc = ptc_error_set(err, PTC_EINVAL, "job identifier \"%.40s\" in a request: not a UUID", req->uuid);
	else
		rc = read_part(d, req, &reply, &data, err);
	reply.version = PTC_WIRE_VERSION;
	if (json)
		reply.json = json;
	if (rc == 0)
		rc = ptc_pb_call_send(call, &reply.base, err);
	ptc_free(data);
	ptc_pb_free(&req->base);
	return rc;
}

int ptc_recover_register(struct ptc_daemon *d, struct ptc_rpc_server *peers, struct ptc_error *err)
{
	return ptc_rpc_server_method(peers, "/ptc.v1.Peer/Committed", 1u << PTC_ROLE_NODE, serve, d, err);
}
