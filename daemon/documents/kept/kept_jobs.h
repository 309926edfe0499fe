/* SPDX-License-Identifier: Apache-2.0 */
/* Kept documents of jobs in memory, within a number of bytes: the list that kept.c fills. A document's name is the hash
 * of its content.
 *
 * Happy path: the reader of a job's documents puts them together and installs them at once; other readers copy them. If
 * room is short, the jobs that were installed longest ago are emptied first. They stay in the list, so that they are
 * not read again before they change.
 *
 * Failure mode: PTC_ENOMEM. Threads: a job belongs to its maker until it is installed; the list is for any thread. */
#pragma once

#include "daemon/cluster/records.h"

#include <pthread.h>

struct ptc_kept_doc {
	char hash[PTC_HASH_HEX];
	char *data;
	size_t len;
};

struct ptc_kept_job {
	struct ptc_kept_job *next;
	char uuid[PTC_UUID_TEXT];
	int64_t revision; /* revision of the record that these documents describe */
	struct ptc_kept_doc *v;
	size_t n, bytes;
};
struct ptc_kept_job *ptc_kept_job_free(struct ptc_kept_job *j); /* NULL ok */
void ptc_kept_job_empty(struct ptc_kept_job *j);
/* Takes `data` over if it returns 0. Otherwise PTC_ENOMEM. */
int ptc_kept_job_add(struct ptc_kept_job *j, const char *hash, char *data, size_t len);
const struct ptc_kept_doc *ptc_kept_job_find(const struct ptc_kept_job *j,
					     const char *hash); /* NULL: there is none; j NULL ok */

struct ptc_kept_jobs {
	pthread_mutex_t lock;      /* guards the list */
	struct ptc_kept_job *list; /* the last installed comes first */
	size_t max_bytes;
};
void ptc_kept_jobs_init(struct ptc_kept_jobs *k, size_t max_bytes);
void ptc_kept_jobs_done(struct ptc_kept_jobs *k);
/* Takes `job` over, and replaces the one with its uuid. */
void ptc_kept_jobs_install(struct ptc_kept_jobs *k, struct ptc_kept_job *job);
/* Removes and frees the jobs for which `gone` returns true. `gone` is called under the lock. */
void ptc_kept_jobs_drop(struct ptc_kept_jobs *k, bool (*gone)(void *arg, const char *uuid), void *arg);
/* Copies a document and adds a NUL; ptc_free *ret_data. false: there is none, or memory is short. */
bool ptc_kept_jobs_copy(struct ptc_kept_jobs *k, const char *uuid, const char *hash, char **ret_data, size_t *ret_len);
bool ptc_kept_jobs_revision(struct ptc_kept_jobs *k, const char *uuid,
			    int64_t *ret_revision);  /* false: the job is not in the list */
size_t ptc_kept_jobs_count(struct ptc_kept_jobs *k); /* number of jobs with documents */
