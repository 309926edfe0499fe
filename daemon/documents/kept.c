/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the committed documents of the jobs whose state lies on this node. In memory are documents by which the state
 * is read while the coordinator is unreachable. In the store are those by which the job goes on when the coordinator
 * is gone for good (kept/durable.h).
 *
 * Happy path: a tick finds keys that are not kept yet, and no switch under way. A task reads the keys, the manifest,
 * and the documents that the manifest names, and writes all of them to the store. Readers look in memory first. A
 * document's name is the hash of its content, so a document that is found is right. Before a node drops the tables of
 * an earlier commit, it keeps the documents of the later one (ptc_kept_now). So whatever a node keeps names tables that
 * are still there, on it and on the others.
 *
 * After a commit the tick and the Finish of a switch want the same documents at about the same time. One gathers them,
 * and the other waits for it: it then reads the keys only, and finds that they are kept.
 *
 * Failure modes: etcd does not answer (tried again a second later). Documents exceed PTC_DURABLE_MAX_BYTES: in memory,
 * the jobs that changed longest ago are dropped. A job that alone is larger is never kept, and the log says so. A node
 * without state of the job keeps nothing of it, and says so when it is asked. */
#include "daemon/cluster/job_events.h"
#include "daemon/store/store.h"
#include "daemon/documents/documents.h"
#include "daemon/documents/kept/durable.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <string.h>

#define RETRY_NS INT64_C(1000000000)

/* What the store has of a job, in the life of this process. */
struct written {
	char uuid[PTC_UUID_TEXT];
	int64_t revision;             /* of the later note */
	size_t bytes, base_bytes;     /* of both notes; of the complete one */
	struct ptc_durable_base base; /* the complete one, with all its blobs */
};

struct ptc_kept {
	struct ptc_cluster *cluster;
	struct ptc_store *store;
	struct ptc_kept_jobs jobs;
	pthread_mutex_t lock;        /* guards `written` and `under_way`, and orders writes to the store */
	pthread_cond_t over;         /* one that was under way is not any more */
	struct gathering *under_way; /* at most one of each job */
	struct written *written;
	size_t nwritten;
	bool busy; /* [loop], as is: */
	int64_t not_before_ns;
};

struct gathering {
	struct gathering *next; /* in under_way */
	struct ptc_kept *kept;
	struct ptc_etcd *etcd;
	char uuid[PTC_UUID_TEXT];
	struct ptc_meta_doc meta;
	struct ptc_record_doc record;
	struct ptc_older_doc older;
	struct ptc_durable durable;
	struct ptc_kept_job *job; /* NULL: it is in memory now, or nothing is to be kept */
	int rc;
};

struct ptc_kept *ptc_kept_new(struct ptc_cluster *c, struct ptc_store *store)
{
	struct ptc_kept *k = ptc_calloc(1, sizeof *k);

	if (!k)
		return NULL;
	k->cluster = c;
	k->store = store;
	ptc_kept_jobs_init(&k->jobs, PTC_DURABLE_MAX_BYTES);
	pthread_mutex_init(&k->lock, NULL);
	pthread_cond_init(&k->over, NULL);
	return k;
}

struct ptc_kept *ptc_kept_free(struct ptc_kept *k)
{
	if (!k)
		return NULL;
	ptc_kept_jobs_done(&k->jobs);
	pthread_cond_destroy(&k->over);
	pthread_mutex_destroy(&k->lock);
	for (size_t i = 0; i < k->nwritten; i++)
		ptc_durable_base_done(&k->written[i].base);
	ptc_free(k->written);
	ptc_free(k);
	return NULL;
}

int ptc_document_get(struct ptc_kept *k, const char *uuid, const char *hash, size_t max, char **ret_data,
		     size_t *ret_len, struct ptc_error *err)
{
	int rc;

	if (ptc_kept_jobs_copy(&k->jobs, uuid, hash, ret_data, ret_len))
		return 0;
	rc = ptc_blob_get(ptc_cluster_etcd(k->cluster), uuid, hash, max, ret_data, ret_len, err);
	if (rc == PTC_ECOORD || rc == PTC_ETIMEOUT)
		ptc_error_wrap(err,
			       "the coordinator is unreachable, and node %s keeps no documents of this job: ask a node "
			       "that has "
			       "part of its state",
			       ptc_cluster_self(k->cluster));
	return rc;
}

size_t ptc_kept_jobs(struct ptc_kept *k)
{
	return ptc_kept_jobs_count(&k->jobs);
}

void ptc_kept_install(struct ptc_kept *k, struct ptc_kept_job *job)
{
	ptc_kept_jobs_install(&k->jobs, job);
}

uint64_t ptc_kept_bytes(struct ptc_kept *k)
{
	uint64_t bytes = 0;

	pthread_mutex_lock(&k->lock);
	for (size_t i = 0; i < k->nwritten; i++)
		bytes += k->written[i].bytes;
	pthread_mutex_unlock(&k->lock);
	return bytes;
}

/* ---- gathering, in a lane of its own: it only reads ---- */

/* *ret_data: the job's; NULL: it has that already. */
static int gather_one(struct gathering *g, const char *hash, char **ret_data, size_t *ret_len)
{
	struct ptc_kept_job *j = g->job;
	char *data = NULL;
	size_t len;
	int rc;

	*ret_data = NULL;
	if (!hash[0] || ptc_kept_job_find(j, hash))
		return 0;
	rc = ptc_kept_jobs_copy(&g->kept->jobs, j->uuid, hash, &data, &len)
		     ? 0
		     : ptc_blob_get(g->etcd, j->uuid, hash, PTC_DURABLE_MAX_BYTES, &data, &len, NULL);
	if (rc == 0)
		rc = ptc_kept_job_add(j, hash, data, len);
	if (rc) {
		ptc_free(data);
		return rc;
	}
	*ret_data = data;
	*ret_len = len;
	return j->bytes > PTC_DURABLE_MAX_BYTES ? PTC_ELIMIT : 0;
}

static int gather_generation(struct gathering *g, const char *hash)
{
	struct ptc_generation_doc gen = { 0 };
	char *data;
	size_t len;
	int rc = gather_one(g, hash, &data, &len);

	if (rc || !data)
		return rc;
	rc = ptc_generation_doc_decode(data, len, &gen, NULL);
	if (rc == 0)
		rc = gather_one(g, gen.layout_hash, &data, &len);
	ptc_generation_doc_done(&gen);
	return rc;
}

/* The snapshot with that manifest, and what it takes to start ranks from it. */
static int gather_manifest(struct gathering *g, const char *hash)
{
	struct ptc_manifest_doc m = { 0 };
	char *data;
	size_t len;
	int rc = gather_one(g, hash, &data, &len);

	if (rc || !data)
		return rc;
	rc = ptc_manifest_doc_names(data, len, &m, NULL);
	if (rc == 0)
		rc = gather_generation(g, m.generation_hash);
	for (size_t i = 0; rc == 0 && i < m.nfiles; i++)
		rc = gather_one(g, m.files[i].header_hash, &data, &len);
	if (rc == 0)
		rc = gather_one(g, m.state_hash, &data, &len);
	for (size_t i = 0; rc == 0 && i < m.nlayouts; i++)
		rc = gather_one(g, m.layouts[i].layout_hash, &data, &len);
	ptc_manifest_doc_done(&m);
	return rc;
}

static int gather_blobs(struct gathering *g)
{
	char *data;
	size_t len;
	int rc = gather_one(g, g->meta.spec_hash, &data, &len);

	if (rc == 0)
		rc = gather_manifest(g, g->record.manifest_hash);
	for (size_t i = 0; rc == 0 && i < g->older.n; i++)
		rc = gather_manifest(g, g->older.v[i].manifest_hash);
	if (rc)
		return rc;
	rc = gather_manifest(g, g->older.bridge.manifest_hash);
	if (rc == 0)
		rc = gather_one(g, g->older.bridge.copies_hash, &data, &len);
	return rc == PTC_ENOTFOUND ? 0 : rc; /* a controller of a version without bridges may have removed them */
}

/* The keys at one revision. PTC_ENOTFOUND: the job has nothing committed. */
static int gather_keys(struct gathering *g)
{
	struct ptc_durable *d = &g->durable;
	struct ptc_etcd_kvs kvs = { 0 };
	char prefix[64];
	size_t at = (size_t)snprintf(prefix, sizeof prefix, "/ptc/jobs/%s/", g->uuid);
	int rc = ptc_etcd_get(g->etcd, prefix, true, 0, &kvs, NULL);

	d->epoch = (uint64_t)ptc_cluster_coordination_epoch(g->kept->cluster);
	for (size_t i = 0; rc == 0 && i < kvs.n; i++)
		for (size_t k = 0; rc == 0 && k < PTC_DURABLE_KEYS; k++) {
			if (strcmp(kvs.kv[i].key + at, ptc_durable_key_name((enum ptc_durable_key)k)) != 0)
				continue;
			d->key[k] = ptc_strndup(kvs.kv[i].value, kvs.kv[i].len);
			rc = d->key[k] ? 0 : PTC_ENOMEM;
			d->revision = PTC_MAX(d->revision, kvs.kv[i].mod_revision);
		}
	ptc_etcd_kvs_done(&kvs);
	if (rc == 0 && (!d->key[PTC_DURABLE_META] || !d->key[PTC_DURABLE_RECORD]))
		rc = PTC_ENOTFOUND;
	if (rc == 0)
		rc = ptc_meta_doc_decode(d->key[PTC_DURABLE_META], strlen(d->key[PTC_DURABLE_META]), &g->meta, NULL);
	if (rc == 0)
		rc = ptc_record_doc_decode(d->key[PTC_DURABLE_RECORD], strlen(d->key[PTC_DURABLE_RECORD]), &g->record,
					   NULL);
	if (rc == 0 && d->key[PTC_DURABLE_OLDER])
		rc = ptc_older_doc_decode(d->key[PTC_DURABLE_OLDER], strlen(d->key[PTC_DURABLE_OLDER]), &g->older,
					  NULL);
	return rc;
}

/* NULL: the store has nothing of the job, as far as this process knows. */
static struct written *find_written_locked(struct ptc_kept *k, const char *uuid)
{
	for (size_t i = 0; i < k->nwritten; i++)
		if (strcmp(k->written[i].uuid, uuid) == 0)
			return &k->written[i];
	return NULL;
}

/* Whether most of the documents are in the note that w has written. */
static bool has_most(const struct written *w, const struct ptc_durable *d)
{
	size_t there = 0;

	for (size_t i = 0; i < d->blobs->n; i++)
		for (size_t k = 0; k < w->base.nblobs; k++)
			if (strcmp(d->blobs->v[i].hash, w->base.blobs[k].hash) == 0)
				there += d->blobs->v[i].len;
	return w->base.epoch == d->epoch && there > d->blobs->bytes / 2;
}

static int put_note(struct ptc_kept *k, const struct gathering *g, const char *name,
		    const struct ptc_durable_base *base, size_t *ret_bytes)
{
	struct ptc_durable_form form;
	int rc = ptc_durable_form(&g->durable, base, &form);

	if (rc)
		return rc;
	rc = ptc_store_note_put_parts(k->store, g->uuid, name, form.parts, form.nparts, NULL);
	*ret_bytes = form.len;
	ptc_durable_form_done(&form);
	return rc;
}

/* The complete note; after it a second one that is there is of an earlier base, and goes. */
static int write_whole(struct ptc_kept *k, const struct gathering *g, struct written *w)
{
	const struct ptc_kept_job *blobs = g->durable.blobs;
	struct ptc_durable_base base = { .epoch = g->durable.epoch, .revision = g->durable.revision };
	int rc;

	ptc_durable_base_done(&w->base); /* whatever comes of it */
	base.blobs = ptc_calloc(blobs->n, sizeof *base.blobs);
	rc = base.blobs ? put_note(k, g, PTC_DURABLE_NOTE, NULL, &w->base_bytes) : PTC_ENOMEM;
	if (rc == 0)
		rc = ptc_store_note_put(k->store, g->uuid, PTC_DURABLE_LATER, "", 0, NULL);
	if (rc) {
		ptc_durable_base_done(&base);
		return rc;
	}
	for (size_t i = 0; i < blobs->n; i++)
		memcpy(base.blobs[base.nblobs++].hash, blobs->v[i].hash, PTC_HASH_HEX);
	w->base = base;
	w->bytes = w->base_bytes;
	return 0;
}

static int write_locked(struct ptc_kept *k, struct gathering *g)
{
	struct written *w = find_written_locked(k, g->uuid), fresh = { .revision = 0 };
	size_t bytes = 0;
	int rc;

	if (w && w->revision >= g->durable.revision)
		return 0;
	if (!w && !PTC_MORE(k->written, k->nwritten))
		return PTC_ENOMEM;
	if (w && has_most(w, &g->durable)) {
		rc = put_note(k, g, PTC_DURABLE_LATER, &w->base, &bytes);
		if (rc == 0)
			w->bytes = w->base_bytes + bytes;
	} else {
		rc = write_whole(k, g, w ? w : &fresh);
	}
	if (rc)
		return rc == PTC_ENOTFOUND ? 0 : rc; /* the job was deleted here meanwhile */
	if (!w) {
		memcpy(fresh.uuid, g->uuid, sizeof fresh.uuid);
		w = &k->written[k->nwritten++];
		*w = fresh;
	}
	w->revision = g->durable.revision;
	return 0;
}

/* Waits until nobody else gathers this job's documents. */
static void enter(struct gathering *g)
{
	struct ptc_kept *k = g->kept;
	struct gathering *other;

	pthread_mutex_lock(&k->lock);
	do {
		other = k->under_way;
		while (other && strcmp(other->uuid, g->uuid) != 0)
			other = other->next;
		if (other)
			pthread_cond_wait(&k->over, &k->lock);
	} while (other);
	g->next = k->under_way;
	k->under_way = g;
	pthread_mutex_unlock(&k->lock);
}

static void leave(struct gathering *g)
{
	struct ptc_kept *k = g->kept;
	struct gathering **at = &k->under_way;

	pthread_mutex_lock(&k->lock);
	while (*at != g)
		at = &(*at)->next;
	*at = g->next;
	pthread_cond_broadcast(&k->over);
	pthread_mutex_unlock(&k->lock);
}

/* Whether what the keys say is in memory and in the store already. */
static bool is_kept(struct gathering *g)
{
	const struct written *w;
	int64_t revision;
	bool is;

	if (!ptc_kept_jobs_revision(&g->kept->jobs, g->uuid, &revision) || revision != g->durable.revision)
		return false;
	pthread_mutex_lock(&g->kept->lock);
	w = find_written_locked(g->kept, g->uuid);
	is = w && w->revision >= g->durable.revision;
	pthread_mutex_unlock(&g->kept->lock);
	return is;
}

static int gather_all(struct gathering *g)
{
	struct ptc_kept *k = g->kept;
	int rc = gather_keys(g);

	if (rc || is_kept(g))
		return rc;
	rc = gather_blobs(g);
	g->job->revision = g->durable.revision;
	g->durable.blobs = g->job;
	if (rc == 0) {
		pthread_mutex_lock(&k->lock);
		rc = write_locked(k, g);
		pthread_mutex_unlock(&k->lock);
	}
	if (rc == PTC_ELIMIT) {
		ptc_warn("job",
			 "job=%s its documents take more than %u MiB: this node keeps none, and cannot read its state "
			 "while the coordinator is unreachable",
			 g->meta.name, PTC_DURABLE_MAX_BYTES >> 20);
		ptc_kept_job_empty(g->job);
		rc = 0;
	}
	if (rc)
		return rc;
	ptc_kept_jobs_install(&k->jobs, g->job);
	g->job = NULL;
	return 0;
}

/* Blocks. */
static void gather(void *arg, struct ptc_etcd *etcd)
{
	struct gathering *g = arg;
	int64_t ignored;
	bool first; /* nothing of it was kept before */

	g->etcd = etcd;
	enter(g);
	first = !ptc_kept_jobs_revision(&g->kept->jobs, g->uuid, &ignored);
	g->rc = gather_all(g);
	leave(g);
	if (g->rc == 0 && first)
		ptc_events_remember(etcd, g->uuid);
}

static void gathering_free(struct gathering *g)
{
	ptc_kept_job_free(g->job);
	ptc_durable_done(&g->durable);
	ptc_free(g);
}

static void gathered(void *arg)
{
	struct gathering *g = arg;
	struct ptc_kept *k = g->kept;

	k->busy = false;
	if (g->rc)
		k->not_before_ns = ptc_sys_now_ns() + RETRY_NS;
	gathering_free(g);
}

static struct gathering *gathering_new(struct ptc_kept *k, const char *uuid)
{
	struct gathering *g = ptc_calloc(1, sizeof *g);

	if (g)
		g->job = ptc_calloc(1, sizeof *g->job);
	if (!g || !g->job) {
		ptc_free(g);
		return NULL;
	}
	g->kept = k;
	snprintf(g->uuid, sizeof g->uuid, "%s", uuid);
	memcpy(g->job->uuid, g->uuid, sizeof g->job->uuid);
	return g;
}

int ptc_kept_now(struct ptc_kept *k, const char *uuid, struct ptc_error *err)
{
	struct gathering *g;
	uid_t uid;
	int rc;

	if (ptc_store_job_owner(k->store, uuid, &uid))
		return 0;
	g = gathering_new(k, uuid);
	if (!g)
		return ptc_nomem(err);
	gather(g, ptc_cluster_etcd(k->cluster));
	rc = g->rc;
	gathering_free(g);
	if (rc && rc != PTC_ENOTFOUND)
		return ptc_error_set(err, rc,
				     "node %s cannot keep the committed documents of job %s yet: etcd does not "
				     "give them, or the store has no room",
				     ptc_cluster_self(k->cluster), uuid);
	return 0;
}

/* ---- what to gather, on the loop ---- */

static bool wanted(struct ptc_kept *k, const struct ptc_job_view *j)
{
	int64_t revision = 0;
	uid_t uid;

	if (!j->has_meta || !j->has_record || j->has_intent || ptc_store_job_owner(k->store, j->uuid, &uid))
		return false;
	return !ptc_kept_jobs_revision(&k->jobs, j->uuid, &revision) ||
	       revision < PTC_MAX(j->record_revision, PTC_MAX(j->copies_revision, j->older_revision));
}

static bool is_gone(void *arg, const char *uuid)
{
	struct ptc_kept *k = arg;
	const struct ptc_job_view *view = ptc_cluster_find_uuid(k->cluster, uuid);

	return !view || !view->has_meta;
}

static void drop_written(struct ptc_kept *k)
{
	pthread_mutex_lock(&k->lock);
	for (size_t i = k->nwritten; i-- > 0;)
		if (is_gone(k, k->written[i].uuid)) {
			ptc_durable_base_done(&k->written[i].base);
			k->written[i] = k->written[--k->nwritten];
		}
	pthread_mutex_unlock(&k->lock);
}

static bool begin(struct ptc_kept *k, const struct ptc_job_view *j)
{
	struct gathering *g = gathering_new(k, j->uuid);

	if (!g)
		return false;
	if (ptc_cluster_run(k->cluster, "kept", gather, gathered, g) == 0)
		return true;
	gathering_free(g);
	return false;
}

void ptc_kept_tick(struct ptc_kept *k)
{
	if (k->busy || !ptc_cluster_synced(k->cluster) || ptc_cluster_lease(k->cluster) == 0 ||
	    ptc_sys_now_ns() < k->not_before_ns)
		return;
	ptc_kept_jobs_drop(&k->jobs, is_gone, k);
	drop_written(k);
	for (size_t i = 0; i < ptc_cluster_njobs(k->cluster) && !k->busy; i++)
		if (wanted(k, ptc_cluster_job(k->cluster, i)))
			k->busy = begin(k, ptc_cluster_job(k->cluster, i));
}
