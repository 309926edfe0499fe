/* SPDX-License-Identifier: Apache-2.0 */
/* Documents of jobs in memory, within a number of bytes: the list that kept.c fills. Documents go by their content's
 * hash.
 *
 * Happy path: a job is put together by whoever reads it, and installed whole; readers copy. Where there is no room,
 * jobs that were installed longest ago are emptied first: they stay in the list, so that they are not read again before
 * they change.
 *
 * Failure modes: PTC_ENOMEM. Threads: a job that is not installed is its maker's; the list may be used from any. */
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
	int64_t revision; /* of the record that these describe */
	struct ptc_kept_doc *v;
	size_t n, bytes;
};
struct ptc_kept_job *ptc_kept_job_free(struct ptc_kept_job *j); /* NULL ok */
void ptc_kept_job_empty(struct ptc_kept_job *j);
/* Takes data where it returns 0; else PTC_ENOMEM. */
int ptc_kept_job_add(struct ptc_kept_job *j, const char *hash, char *data, size_t len);
const struct ptc_kept_doc *ptc_kept_job_find(const struct ptc_kept_job *j,
					     const char *hash); /* NULL: none; j NULL ok */

struct ptc_kept_jobs {
	pthread_mutex_t lock;      /* of the list */
	struct ptc_kept_job *list; /* installed last first */
	size_t max_bytes;
};
void ptc_kept_jobs_init(struct ptc_kept_jobs *k, size_t max_bytes);
void ptc_kept_jobs_done(struct ptc_kept_jobs *k);
/* Takes job, in place of one with its uuid. */
void ptc_kept_jobs_install(struct ptc_kept_jobs *k, struct ptc_kept_job *job);
/* Takes those out for which gone says so. It is called under the lock. */
void ptc_kept_jobs_drop(struct ptc_kept_jobs *k, bool (*gone)(void *arg, const char *uuid), void *arg);
/* *ret_data: a copy with a NUL behind it, to be freed with ptc_free. False: there is none, or memory has run out. */
bool ptc_kept_jobs_copy(struct ptc_kept_jobs *k, const char *uuid, const char *hash, char **ret_data, size_t *ret_len);
bool ptc_kept_jobs_revision(struct ptc_kept_jobs *k, const char *uuid,
			    int64_t *ret_revision);  /* false: not in the list */
size_t ptc_kept_jobs_count(struct ptc_kept_jobs *k); /* of how many jobs there are documents */
