/* SPDX-License-Identifier: Apache-2.0 */
/* The mirror's jobs: one view for each uuid, with what its keys say.
 *
 * Happy path: an event of a key under /ptc/jobs/UUID changes that job's view, and counts the change.
 *
 * Failure modes: a document that cannot be read (the view says that there is none, and a line names the key); no memory
 * (that event is lost until the next listing). */
#include "daemon/cluster/mirror/internal.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/number/fence.h"

#include <stdio.h>
#include <string.h>

#define SHOWN_JOBS 3 /* in a message */

size_t ptc_cluster_njobs(const struct ptc_cluster *c)
{
	return c->njobs;
}

struct ptc_job_view *ptc_cluster_job(struct ptc_cluster *c, size_t index)
{
	return c->jobs[index];
}

/* "1000:train"; names have no colon. */
static bool is_qualified(const struct ptc_job_view *j, const char *ref)
{
	char full[PTC_NAME_MAX + 16];

	snprintf(full, sizeof full, "%u:%s", (unsigned)j->meta.uid, j->meta.name);
	return strcmp(full, ref) == 0;
}

static int several(const struct ptc_cluster *c, const char *name, struct ptc_error *err)
{
	char list[256] = "";
	size_t n = 0, len = 0;

	for (size_t i = 0; i < c->njobs; i++)
		if (c->jobs[i]->has_meta && strcmp(c->jobs[i]->meta.name, name) == 0 && n++ < SHOWN_JOBS)
			len += (size_t)snprintf(list + len, sizeof list - len, "%s%u:%s", n > 1 ? ", " : "",
						(unsigned)c->jobs[i]->meta.uid, name);
	return ptc_error_set(err, PTC_EINVAL, "%zu users have a job \"%s\"; write UID:NAME: %s%s", n, name, list,
			     n > SHOWN_JOBS ? ", ..." : "");
}

int ptc_cluster_find_job(struct ptc_cluster *c, const char *ref, uid_t uid, struct ptc_job_view **ret_job,
			 struct ptc_error *err)
{
	struct ptc_job_view *own = NULL, *other = NULL;
	size_t others = 0;

	for (size_t i = 0; i < c->njobs; i++) {
		struct ptc_job_view *j = c->jobs[i];

		if (!j->has_meta || (uid != 0 && j->meta.uid != uid))
			continue;
		if (strcmp(j->uuid, ref) == 0 || is_qualified(j, ref)) {
			*ret_job = j;
			return 0;
		}
		if (strcmp(j->meta.name, ref) != 0)
			continue;
		if (j->meta.uid == uid) {
			own = j;
		} else {
			other = j;
			others++;
		}
	}
	if (!own && others > 1)
		return several(c, ref, err);
	if (!own && !other)
		return PTC_ENOTFOUND;
	*ret_job = own ? own : other;
	return 0;
}

struct ptc_job_view *ptc_cluster_find_uuid(struct ptc_cluster *c, const char *uuid)
{
	for (size_t i = 0; i < c->njobs; i++)
		if (strcmp(c->jobs[i]->uuid, uuid) == 0)
			return c->jobs[i];
	return NULL;
}

int64_t ptc_cluster_least_fence(struct ptc_cluster *c, const char *uuid)
{
	const struct ptc_job_view *job = ptc_cluster_find_uuid(c, uuid);
	uint32_t self;

	if (job && job->has_lock)
		return job->lock_fence;
	if (!ptc_cluster_find_node(c, ptc_cluster_self(c), &self) || !c->nodes[self]->up)
		return ptc_fence(c->coordination_epoch, 0);
	return ptc_fence(c->coordination_epoch, c->nodes[self]->create_revision);
}

static struct ptc_job_view *intern_job(struct ptc_cluster *c, const char *uuid)
{
	struct ptc_job_view *j = ptc_cluster_find_uuid(c, uuid);

	if (j)
		return j;
	j = PTC_MORE(c->jobs, c->njobs) ? ptc_calloc(1, sizeof *j) : NULL;
	if (!j)
		return NULL;
	snprintf(j->uuid, sizeof j->uuid, "%s", uuid);
	c->jobs[c->njobs++] = j;
	return j;
}

static void lock_put(const struct ptc_cluster *c, struct ptc_job_view *j, const struct ptc_etcd_kv *kv)
{
	struct ptc_lock_doc doc;

	if (ptc_lock_doc_decode(kv->value, kv->len, &doc, NULL) != 0)
		return;
	snprintf(j->lock_node, sizeof j->lock_node, "%s", doc.node);
	j->lock_fence = ptc_fence(c->coordination_epoch, kv->create_revision);
	j->has_lock = j->seen.lock = true;
}

static struct ptc_worker_view *find_worker(struct ptc_job_view *j, const char *node)
{
	for (size_t i = 0; i < j->nworkers; i++)
		if (strcmp(j->workers[i].node, node) == 0)
			return &j->workers[i];
	return NULL;
}

static int worker_put(struct ptc_job_view *j, const char *node, const struct ptc_etcd_kv *kv, struct ptc_error *err)
{
	struct ptc_worker_view *w = find_worker(j, node);
	struct ptc_worker_doc doc;
	int rc = ptc_worker_doc_decode(kv->value, kv->len, &doc, err);

	if (rc)
		return rc;
	if (!w) {
		if (j->nworkers == PTC_MAX_NODES || strlen(node) > PTC_NAME_MAX)
			return ptc_error_set(err, PTC_ELIMIT,
					     "the cluster has too many nodes, or a node's name is too long");
		if (!PTC_MORE(j->workers, j->nworkers))
			return ptc_nomem(err);
		w = &j->workers[j->nworkers++];
		snprintf(w->node, sizeof w->node, "%s", node);
	}
	w->doc = doc;
	w->seen = true;
	return 0;
}

void ptc_job_view_worker_delete(struct ptc_job_view *j, struct ptc_worker_view *w)
{
	if (w)
		*w = j->workers[--j->nworkers];
}

static int copies_put(struct ptc_job_view *j, const struct ptc_etcd_kv *kv, struct ptc_error *err)
{
	ptc_copies_doc_done(&j->copies);
	j->copies_revision = kv->mod_revision;
	j->seen.copies = true;
	return ptc_copies_doc_decode(kv->value, kv->len, &j->copies, err);
}

void ptc_job_view_copies_delete(struct ptc_job_view *j)
{
	ptc_copies_doc_done(&j->copies);
	j->copies_revision = 0;
}

static int older_put(struct ptc_job_view *j, const struct ptc_etcd_kv *kv, struct ptc_error *err)
{
	j->older = (struct ptc_older_doc){ 0 };
	j->older_revision = kv->mod_revision;
	j->seen.older = true;
	return ptc_older_doc_decode(kv->value, kv->len, &j->older, err);
}

void ptc_job_view_older_delete(struct ptc_job_view *j)
{
	j->older = (struct ptc_older_doc){ 0 };
	j->older_revision = 0;
}

static void job_put(struct ptc_cluster *c, struct ptc_job_view *j, const char *leaf, const struct ptc_etcd_kv *kv)
{
	struct ptc_error err = PTC_ERROR_INIT;
	int rc = 0;

	if (strcmp(leaf, "meta") == 0) {
		rc = ptc_meta_doc_decode(kv->value, kv->len, &j->meta, &err);
		j->has_meta = j->seen.meta = rc == 0;
	} else if (strcmp(leaf, "record") == 0) {
		rc = ptc_record_doc_decode(kv->value, kv->len, &j->record, &err);
		j->has_record = rc == 0;
		j->bad_record = rc != 0;
		j->seen.record = true;
		j->record_revision = kv->mod_revision;
	} else if (strcmp(leaf, "intent") == 0) {
		rc = ptc_intent_doc_decode(kv->value, kv->len, &j->intent, &err);
		j->has_intent = j->seen.intent = rc == 0;
	} else if (strcmp(leaf, "lock") == 0) {
		lock_put(c, j, kv);
	} else if (strcmp(leaf, "copies") == 0) {
		rc = copies_put(j, kv, &err);
	} else if (strcmp(leaf, "older") == 0) {
		rc = older_put(j, kv, &err);
	} else if (strncmp(leaf, WORKER_LEAF, strlen(WORKER_LEAF)) == 0) {
		rc = worker_put(j, leaf + strlen(WORKER_LEAF), kv, &err);
	} else if (strncmp(leaf, PTC_SLOW_LEAF, strlen(PTC_SLOW_LEAF)) == 0) {
		c->any_slow = true;
		rc = ptc_slow_device_put(&j->slow, leaf, kv->value, kv->len, &err);
	}
	if (rc)
		ptc_warn("etcd", "%s ignored: %s", kv->key, err.text);
}

static void job_delete(struct ptc_job_view *j, const char *leaf)
{
	if (strcmp(leaf, "meta") == 0)
		j->has_meta = false;
	else if (strcmp(leaf, "record") == 0)
		j->has_record = j->bad_record = false;
	else if (strcmp(leaf, "intent") == 0)
		j->has_intent = false;
	else if (strcmp(leaf, "lock") == 0)
		j->has_lock = false;
	else if (strcmp(leaf, "copies") == 0)
		ptc_job_view_copies_delete(j);
	else if (strcmp(leaf, "older") == 0)
		ptc_job_view_older_delete(j);
	else if (strncmp(leaf, WORKER_LEAF, strlen(WORKER_LEAF)) == 0)
		ptc_job_view_worker_delete(j, find_worker(j, leaf + strlen(WORKER_LEAF)));
	else if (strncmp(leaf, PTC_SLOW_LEAF, strlen(PTC_SLOW_LEAF)) == 0)
		ptc_slow_device_delete(&j->slow, leaf);
}

struct ptc_job_view *ptc_cluster_job_event(struct ptc_cluster *c, enum ptc_watch_kind kind,
					   const struct ptc_etcd_kv *kv)
{
	const char *rest = kv->key + strlen(JOBS_PREFIX);
	const char *slash = strchr(rest, '/');
	char uuid[PTC_UUID_TEXT];
	struct ptc_job_view *j;

	if (!slash || slash - rest != PTC_UUID_TEXT - 1)
		return NULL;
	memcpy(uuid, rest, PTC_UUID_TEXT - 1);
	uuid[PTC_UUID_TEXT - 1] = '\0';
	j = intern_job(c, uuid);
	if (!j)
		return NULL;
	j->changes++;
	j->documents += strcmp(slash + 1, "lock") != 0 && strncmp(slash + 1, WORKER_LEAF, strlen(WORKER_LEAF)) != 0;
	if (kind == PTC_WATCH_PUT)
		job_put(c, j, slash + 1, kv);
	else
		job_delete(j, slash + 1);
	return j;
}
