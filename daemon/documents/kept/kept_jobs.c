/* SPDX-License-Identifier: Apache-2.0 */
/* Happy path and failure modes: kept_jobs.h. */
#include "daemon/documents/kept/kept_jobs.h"

#include "base/alloc.h"

#include <string.h>

struct ptc_kept_job *ptc_kept_job_free(struct ptc_kept_job *j)
{
	if (j) {
		ptc_kept_job_empty(j);
		ptc_free(j->v);
	}
	ptc_free(j);
	return NULL;
}

void ptc_kept_job_empty(struct ptc_kept_job *j)
{
	for (size_t i = 0; i < j->n; i++)
		ptc_free(j->v[i].data);
	j->n = j->bytes = 0;
}

int ptc_kept_job_add(struct ptc_kept_job *j, const char *hash, char *data, size_t len)
{
	struct ptc_kept_doc doc = { .data = data, .len = len };

	if (!PTC_MORE(j->v, j->n))
		return PTC_ENOMEM;
	memcpy(doc.hash, hash, sizeof doc.hash);
	j->v[j->n++] = doc;
	j->bytes += len;
	return 0;
}

const struct ptc_kept_doc *ptc_kept_job_find(const struct ptc_kept_job *j, const char *hash)
{
	for (size_t i = 0; j && i < j->n; i++)
		if (strcmp(j->v[i].hash, hash) == 0)
			return &j->v[i];
	return NULL;
}

/* ---- the list ---- */

void ptc_kept_jobs_init(struct ptc_kept_jobs *k, size_t max_bytes)
{
	*k = (struct ptc_kept_jobs){ .max_bytes = max_bytes };
	pthread_mutex_init(&k->lock, NULL);
}

void ptc_kept_jobs_done(struct ptc_kept_jobs *k)
{
	while (k->list) {
		struct ptc_kept_job *j = k->list;

		k->list = j->next;
		ptc_kept_job_free(j);
	}
	pthread_mutex_destroy(&k->lock);
}

static struct ptc_kept_job **find_locked(struct ptc_kept_jobs *k, const char *uuid)
{
	struct ptc_kept_job **at = &k->list;

	while (*at && strcmp((*at)->uuid, uuid) != 0)
		at = &(*at)->next;
	return at;
}

void ptc_kept_jobs_install(struct ptc_kept_jobs *k, struct ptc_kept_job *job)
{
	struct ptc_kept_job **at, *old;
	size_t bytes = 0;

	pthread_mutex_lock(&k->lock);
	at = find_locked(k, job->uuid);
	old = *at;
	if (old)
		*at = old->next;
	job->next = k->list;
	k->list = job;
	for (struct ptc_kept_job *j = k->list; j; j = j->next) { /* the newest first */
		if (bytes + j->bytes > k->max_bytes)
			ptc_kept_job_empty(j);
		bytes += j->bytes;
	}
	pthread_mutex_unlock(&k->lock);
	ptc_kept_job_free(old);
}

void ptc_kept_jobs_drop(struct ptc_kept_jobs *k, bool (*gone)(void *arg, const char *uuid), void *arg)
{
	pthread_mutex_lock(&k->lock);
	for (struct ptc_kept_job **at = &k->list, *j; (j = *at);) {
		if (!gone(arg, j->uuid)) {
			at = &j->next;
			continue;
		}
		*at = j->next;
		ptc_kept_job_free(j);
	}
	pthread_mutex_unlock(&k->lock);
}

bool ptc_kept_jobs_copy(struct ptc_kept_jobs *k, const char *uuid, const char *hash, char **ret_data, size_t *ret_len)
{
	const struct ptc_kept_doc *doc;
	char *data = NULL;

	pthread_mutex_lock(&k->lock);
	doc = ptc_kept_job_find(*find_locked(k, uuid), hash);
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

bool ptc_kept_jobs_revision(struct ptc_kept_jobs *k, const char *uuid, int64_t *ret_revision)
{
	const struct ptc_kept_job *j;

	pthread_mutex_lock(&k->lock);
	j = *find_locked(k, uuid);
	if (j)
		*ret_revision = j->revision;
	pthread_mutex_unlock(&k->lock);
	return j != NULL;
}

size_t ptc_kept_jobs_count(struct ptc_kept_jobs *k)
{
	size_t n = 0;

	pthread_mutex_lock(&k->lock);
	for (const struct ptc_kept_job *j = k->list; j; j = j->next)
		n += j->n > 0;
	pthread_mutex_unlock(&k->lock);
	return n;
}
