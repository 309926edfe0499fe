/* SPDX-License-Identifier: Apache-2.0 */
/* What one user's jobs may take in etcd, which all jobs of all users need for every commit.
 *
 * Two bounds hold before a document is written. The user's own: so many jobs,
 * so many bytes in all documents of theirs (spec, headers, layouts,
 * generation, manifest, ranks' blobs, events); root has none. And etcd's:
 * above a share of its quota no job is created, and above another one no
 * large document of a job is written, so that what commits need always fits.
 *
 * Happy path: etcd has room; a new job is announced with its size (/ptc/users/UID/UUID, with
 * the key of its creation), then everything that the user has is counted, then
 * its spec is written. So of two that come together at least one sees the
 * other. What a job takes is read from the names of its keys.
 * Failure modes: a bound is reached (PTC_ELIMIT, PTC_ENOSPC for etcd's, each
 * with what to do), etcd does not answer. Jobs of earlier versions have no such
 * key; they are counted as far as this daemon's mirror has them. Any thread but the loop's;
 * blocking. */
#pragma once

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct ptc_cluster;

#define PTC_USER_KEY 80 /* bytes of the key of a user's job */
void ptc_quota_key(uid_t uid, const char *uuid, char ret_key[PTC_USER_KEY]);

/* Whether etcd has room for another job of so many bytes; asked before it is announced. */
int ptc_quota_room(struct ptc_cluster *c, uint64_t bytes, struct ptc_error *err);
/* Whether the job, which has been announced, is one that its user may have. */
int ptc_quota_job(struct ptc_cluster *c, uid_t uid, struct ptc_error *err);
/* Whether a document of an existing job may be written; what: as in "the layout". */
int ptc_quota_document(struct ptc_cluster *c, uid_t uid, size_t bytes, const char *what, struct ptc_error *err);
