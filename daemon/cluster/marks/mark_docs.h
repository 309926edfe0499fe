/* SPDX-License-Identifier: Apache-2.0 */
/* The small documents beside a job's own: who holds its lock, which switch was aborted, a job that is being created,
 * and the name of the cluster's key. Their version is 1 for ever, but for the key's. All encoders return text for
 * ptc_free, or NULL when out of memory.
 *
 * Plain data, any thread. Failure modes: PTC_EINVAL (the document is malformed; the error names the member);
 * PTC_EVERSION (the key's only). */
#pragma once

#include "base/limits.h"
#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* /ptc/jobs/UUID/lock */
struct ptc_lock_doc {
	char node[PTC_NAME_MAX + 1];
};
char *ptc_lock_doc_encode(const struct ptc_lock_doc *d);
int ptc_lock_doc_decode(const char *json, size_t len, struct ptc_lock_doc *ret_doc, struct ptc_error *err);

/* /ptc/jobs/UUID/barrier */
struct ptc_barrier_doc {
	uint64_t cleared; /* the switch that was aborted last */
};
char *ptc_barrier_doc_encode(const struct ptc_barrier_doc *d);
int ptc_barrier_doc_decode(const char *json, size_t len, struct ptc_barrier_doc *ret_doc, struct ptc_error *err);

/* /ptc/creating/UUID: who creates the job, for whom */
struct ptc_creation_doc {
	char node[PTC_NAME_MAX + 1];
	char boot_id[37];
	uint32_t uid; /* 0 if it is missing */
};
char *ptc_creation_doc_encode(const struct ptc_creation_doc *d);
int ptc_creation_doc_decode(const char *json, size_t len, struct ptc_creation_doc *ret_doc, struct ptc_error *err);

/* /ptc/users/UID/UUID */
struct ptc_announced_doc {
	uint64_t bytes; /* of the job's description */
};
char *ptc_announced_doc_encode(const struct ptc_announced_doc *d);
int ptc_announced_doc_decode(const char *json, size_t len, struct ptc_announced_doc *ret_doc, struct ptc_error *err);

/* /ptc/key: which key seals descriptions of jobs, but not the key itself */
#define PTC_KEY_ID_TEXT 17 /* hex digits and a NUL */
struct ptc_key_doc {
	char id[PTC_KEY_ID_TEXT];
};
char *ptc_key_doc_encode(const struct ptc_key_doc *d);
int ptc_key_doc_decode(const char *json, size_t len, struct ptc_key_doc *ret_doc, struct ptc_error *err);
