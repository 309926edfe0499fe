/* SPDX-License-Identifier: Apache-2.0 */
/* The committed documents of the jobs whose state lies on this node, kept in memory: what is needed to read it while
 * the coordinator is unreachable. Happy path: a tick finds a record that is not kept yet and no switch under way; a
 * task reads the manifest and what it names; readers look here first. Documents go by their content's hash, so one that
 * is found is right.
 *
 * Failure modes: etcd does not answer (tried again a second later); more than KEPT_BYTES (the jobs that changed longest
 * ago are not kept any more; one that alone is larger is never, which is logged); the daemon restarts (all is read
 * again: it starts with etcd only). A node without state of the job keeps nothing of it, and says so when it is asked.
 */
#include "daemon/cluster/job_events.h"
#include "daemon/store/store.h"
#include "daemon/documents/documents.h"
#include "daemon/documents/kept_jobs.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/sys/sys.h"

#include <string.h>

#define KEPT_BYTES (64u << 20)
#define RETRY_NS   INT64_C(1000000000)

struct ptc_kept {
	struct ptc_cluster *cluster;
	struct ptc_store *store;
	struct ptc_kept_jobs jobs;
	bool busy; /* [loop], as is: */
	int64_t not_before_ns;
};

struct gathering {
	struct ptc_kept *kept;
	struct ptc_etcd *etcd;
	struct ptc_meta_doc meta;
	struct ptc_record_doc record;
	struct ptc_kept_job *job;
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
	ptc_kept_jobs_init(&k->jobs, KEPT_BYTES);
	return k;
}

struct ptc_kept *ptc_kept_free(struct ptc_kept *k)
{
	if (k)
		ptc_kept_jobs_done(&k->jobs);
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
		     : ptc_blob_get(g->etcd, j->uuid, hash, KEPT_BYTES, &data, &len, NULL);
	if (rc == 0)
		rc = ptc_kept_job_add(j, hash, data, len);
	if (rc) {
		ptc_free(data);
		return rc;
	}
	*ret_data = data;
	*ret_len = len;
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
	if (rc == 0)
		rc = gather_one(g, gen.layout_hash, &data, &len);
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
	if (rc == 0)
		rc = gather_generation(g, m.generation_hash);
	if (rc == 0)
		rc = gather_one(g, g->meta.spec_hash, &data, &len);
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
		ptc_kept_job_empty(g->job);
	}
	if (g->rc && g->rc != PTC_ELIMIT) {
		k->not_before_ns = ptc_sys_now_ns() + RETRY_NS;
		ptc_kept_job_free(g->job);
	} else {
		ptc_kept_jobs_install(&k->jobs, g->job);
	}
	ptc_free(g);
}

/* ---- what to gather, on the loop ---- */

static bool wanted(struct ptc_kept *k, const struct ptc_job_view *j, bool *ret_first)
{
	int64_t revision = 0;
	uid_t uid;

	if (!j->has_meta || !j->has_record || j->has_intent || ptc_store_job_owner(k->store, j->uuid, &uid))
		return false;
	*ret_first = !ptc_kept_jobs_revision(&k->jobs, j->uuid, &revision);
	return *ret_first || revision != j->record_revision;
}

static bool is_gone(void *arg, const char *uuid)
{
	struct ptc_kept *k = arg;
	const struct ptc_job_view *view = ptc_cluster_find_uuid(k->cluster, uuid);

	return !view || !view->has_meta;
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
	if (ptc_cluster_run(k->cluster, "kept", gather, gathered, g) == 0)
		return true;
	ptc_kept_job_free(g->job);
	ptc_free(g);
	return false;
}

void ptc_kept_tick(struct ptc_kept *k)
{
	bool first;

	if (k->busy || !ptc_cluster_synced(k->cluster) || ptc_cluster_lease(k->cluster) == 0 ||
	    ptc_sys_now_ns() < k->not_before_ns)
		return;
	ptc_kept_jobs_drop(&k->jobs, is_gone, k);
	for (size_t i = 0; i < ptc_cluster_njobs(k->cluster) && !k->busy; i++)
		if (wanted(k, ptc_cluster_job(k->cluster, i), &first))
			k->busy = begin(k, ptc_cluster_job(k->cluster, i), first);
}
