/* SPDX-License-Identifier: Apache-2.0 */
/* The committed documents of the jobs whose state lies on this node, kept in memory: what is needed to read it while the coordinator
 * is away. Happy path: a tick finds a record that is not kept yet and no switch under way; the coordination thread reads the manifest
 * and what it names; readers look here first. Documents go by their content's hash, so one that is found is right.
 * Failure modes: etcd does not answer (tried again a second later); more than KEPT_BYTES (the jobs that changed longest ago are not
 * kept any more; one that alone is larger is never, which is logged); the daemon restarts (all is read again: it starts with
 * etcd only). A node without state of the job keeps nothing of it, and says so when it is asked. */
#include "daemon/cluster/job_events.h"
#include "daemon/store/store.h"
#include "daemon/documents/documents.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <pthread.h>
#include <string.h>

#define KEPT_BYTES (64u << 20)
#define RETRY_NS   INT64_C(1000000000)

struct kept_doc {
	char hash[PTC_HASH_HEX];
	char *data;
	size_t len;
};

struct kept_job {
	struct kept_job *next; /* changed last first */
	char uuid[PTC_UUID_TEXT];
	int64_t revision; /* of the record */
	struct kept_doc *v;
	size_t n, bytes;
};

struct ptc_kept {
	struct ptc_cluster *cluster;
	struct ptc_store *store;
	pthread_mutex_t lock; /* of jobs */
	struct kept_job *jobs;
	bool busy; /* [loop], as is: */
	int64_t not_before_ns;
};

struct gathering {
	struct ptc_kept *kept;
	struct ptc_etcd *etcd;
	struct ptc_meta_doc meta;
	struct ptc_record_doc record;
	struct kept_job *job;
	bool first; /* nothing of it was kept before */
	int rc;
};

struct ptc_kept *ptc_kept_new(struct ptc_cluster *c, struct ptc_store *store)
{
	struct ptc_kept *k = ptc_calloc(1, sizeof *k);

	if (!k)
		return NULL;
	k->cluster = c;
	k->store = store;
	pthread_mutex_init(&k->lock, NULL);
	return k;
}

static struct kept_job *job_free(struct kept_job *j)
{
	for (size_t i = 0; j && i < j->n; i++)
		ptc_free(j->v[i].data);
	if (j)
		ptc_free(j->v);
	ptc_free(j);
	return NULL;
}

struct ptc_kept *ptc_kept_free(struct ptc_kept *k)
{
	while (k && k->jobs) {
		struct kept_job *j = k->jobs;

		k->jobs = j->next;
		job_free(j);
	}
	if (k)
		pthread_mutex_destroy(&k->lock);
	ptc_free(k);
	return NULL;
}

static struct kept_job **find_locked(struct ptc_kept *k, const char *uuid)
{
	struct kept_job **at = &k->jobs;

	while (*at && strcmp((*at)->uuid, uuid) != 0)
		at = &(*at)->next;
	return at;
}

static const struct kept_doc *doc_of(const struct kept_job *j, const char *hash)
{
	for (size_t i = 0; j && i < j->n; i++)
		if (strcmp(j->v[i].hash, hash) == 0)
			return &j->v[i];
	return NULL;
}

static bool kept_copy(struct ptc_kept *k, const char *uuid, const char *hash, char **ret_data, size_t *ret_len)
{
	const struct kept_doc *doc;
	char *data = NULL;

	pthread_mutex_lock(&k->lock);
	doc = doc_of(*find_locked(k, uuid), hash);
	if (doc)
		data = ptc_malloc(doc->len + 1); /* sealed ones hold any bytes; the others are text, which ends */
	if (data) {
		memcpy(data, doc->data, doc->len);
		data[doc->len] = '\0';
		*ret_len = doc->len;
	}
	pthread_mutex_unlock(&k->lock);
	*ret_data = data;
	return data != NULL;
}

int ptc_document_get(struct ptc_kept *k, const char *uuid, const char *hash, size_t max, char **ret_data,
		     size_t *ret_len, struct ptc_error *err)
{
	int rc;

	if (kept_copy(k, uuid, hash, ret_data, ret_len))
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
	size_t n = 0;

	pthread_mutex_lock(&k->lock);
	for (const struct kept_job *j = k->jobs; j; j = j->next)
		n += j->n > 0;
	pthread_mutex_unlock(&k->lock);
	return n;
}

/* ---- gathering, on the coordination thread ---- */

static int gather_one(struct gathering *g, const char *hash, char **ret_data, size_t *ret_len)
{
	struct kept_job *j = g->job;
	struct kept_doc *v, doc = { .data = NULL };
	int rc;

	*ret_data = NULL;
	if (!hash[0] || doc_of(j, hash))
		return 0;
	v = ptc_reallocarray(j->v, j->n + 1, sizeof *v);
	if (!v)
		return PTC_ENOMEM;
	j->v = v;
	rc = kept_copy(g->kept, j->uuid, hash, &doc.data, &doc.len)
		     ? 0
		     : ptc_blob_get(g->etcd, j->uuid, hash, KEPT_BYTES, &doc.data, &doc.len, NULL);
	if (rc)
		return rc;
	memcpy(doc.hash, hash, sizeof doc.hash);
	v[j->n++] = doc;
	j->bytes += doc.len;
	*ret_data = doc.data;
	*ret_len = doc.len;
	return j->bytes > KEPT_BYTES ? PTC_ELIMIT : 0;
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
	rc = rc ? rc : gather_one(g, gen.layout_hash, &data, &len);
	ptc_generation_doc_done(&gen);
	return rc;
}

static int gather_all(struct gathering *g)
{
	struct ptc_manifest_doc m = { 0 };
	char *data;
	size_t len;
	int rc = gather_one(g, g->record.manifest_hash, &data, &len);

	if (rc || !data)
		return rc;
	rc = ptc_manifest_doc_decode(data, len, &m, NULL);
	rc = rc ? rc : gather_generation(g, m.generation_hash);
	rc = rc ? rc : gather_one(g, g->meta.spec_hash, &data, &len);
	for (size_t i = 0; rc == 0 && i < m.nfiles; i++)
		rc = gather_one(g, m.files[i].header_hash, &data, &len);
	ptc_manifest_doc_done(&m);
	return rc;
}

static void gather(void *arg, struct ptc_etcd *etcd)
{
	struct gathering *g = arg;

	g->etcd = etcd;
	g->rc = gather_all(g);
	if (g->rc == 0 && g->first)
		ptc_events_remember(etcd, g->meta.uuid);
}

static void empty(struct kept_job *j)
{
	for (size_t i = 0; i < j->n; i++)
		ptc_free(j->v[i].data);
	j->n = j->bytes = 0;
}

/* A job for which there is no room stays there empty, so that it is not read again until its record changes. */
static void install(struct ptc_kept *k, struct kept_job *job)
{
	struct kept_job **at, *old;
	size_t bytes = 0;

	pthread_mutex_lock(&k->lock);
	at = find_locked(k, job->uuid);
	old = *at;
	if (old)
		*at = old->next;
	job->next = k->jobs;
	k->jobs = job;
	for (struct kept_job *j = k->jobs; j; j = j->next) { /* the newest first */
		if (bytes + j->bytes > KEPT_BYTES)
			empty(j);
		bytes += j->bytes;
	}
	pthread_mutex_unlock(&k->lock);
	job_free(old);
}

static void gathered(void *arg)
{
	struct gathering *g = arg;
	struct ptc_kept *k = g->kept;

	k->busy = false;
	if (g->rc == PTC_ELIMIT) {
		ptc_warn("job",
			 "job=%s its documents take more than %u MiB: this node keeps none, and cannot read its state "
			 "while the coordinator is unreachable",
			 g->meta.name, KEPT_BYTES >> 20);
		empty(g->job);
	}
	if (g->rc && g->rc != PTC_ELIMIT) {
		k->not_before_ns = ptc_sys_now_ns() + RETRY_NS;
		job_free(g->job);
	} else {
		install(k, g->job);
	}
	ptc_free(g);
}

/* ---- what to gather, on the loop ---- */

static bool wanted(struct ptc_kept *k, const struct ptc_job_view *j, bool *ret_first)
{
	const struct kept_job *kept;
	uid_t uid;
	bool yes;

	if (!j->has_meta || !j->has_record || j->has_intent || ptc_store_job_owner(k->store, j->uuid, &uid))
		return false;
	pthread_mutex_lock(&k->lock);
	kept = *find_locked(k, j->uuid);
	*ret_first = !kept;
	yes = !kept || kept->revision != j->record_revision;
	pthread_mutex_unlock(&k->lock);
	return yes;
}

static void drop_gone(struct ptc_kept *k)
{
	pthread_mutex_lock(&k->lock);
	for (struct kept_job **at = &k->jobs, *j; (j = *at);) {
		const struct ptc_job_view *view = ptc_cluster_find_uuid(k->cluster, j->uuid);

		if (view && view->has_meta) {
			at = &j->next;
			continue;
		}
		*at = j->next;
		job_free(j);
	}
	pthread_mutex_unlock(&k->lock);
}

static bool begin(struct ptc_kept *k, const struct ptc_job_view *j, bool first)
{
	struct gathering *g = ptc_calloc(1, sizeof *g);

	if (g)
		g->job = ptc_calloc(1, sizeof *g->job);
	if (!g || !g->job) {
		ptc_free(g);
		return false;
	}
	g->kept = k;
	g->meta = j->meta;
	g->record = j->record;
	g->first = first;
	memcpy(g->job->uuid, j->uuid, sizeof g->job->uuid);
	g->job->revision = j->record_revision;
	if (ptc_cluster_run(k->cluster, gather, gathered, g) == 0)
		return true;
	job_free(g->job);
	ptc_free(g);
	return false;
}

void ptc_kept_tick(struct ptc_kept *k)
{
	bool first;

	if (k->busy || !ptc_cluster_synced(k->cluster) || ptc_cluster_lease(k->cluster) == 0 ||
	    ptc_sys_now_ns() < k->not_before_ns)
		return;
	drop_gone(k);
	for (size_t i = 0; i < ptc_cluster_njobs(k->cluster) && !k->busy; i++)
		if (wanted(k, ptc_cluster_job(k->cluster, i), &first))
			k->busy = begin(k, ptc_cluster_job(k->cluster, i), first);
}
