/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds on how much of etcd each user may take, because the jobs of all users need etcd for every commit.
 *
 * Two bounds are checked before a document is written. The user's bound limits the number of jobs and the bytes of all
 * their documents (spec, headers, layouts, generation, manifest, ranks' blobs, events); root has none. etcd's bound is
 * on the size of its database: above three quarters of its quota no job is created, and above seven eighths no large
 * document is written. So there is always room for commits.
 *
 * Happy path: etcd has room. A new job is announced with its size (/ptc/users/UID/UUID, and the key of its creation).
 * Then everything of the user is counted, and then the spec is written. So of two jobs that come together, at least one
 * counts the other. The names of a job's keys tell its bytes.
 *
 * Failure modes: a bound is reached (PTC_ELIMIT; PTC_ENOSPC for etcd's; the line says what to do); etcd does not
 * answer. Jobs of earlier versions have no such key; they count if this daemon's mirror has them. Any thread but the
 * loop's; blocking. */
#pragma once

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct ptc_cluster;

#define PTC_USER_KEY 80 /* bytes of the key of a user's job */
void ptc_quota_key(uid_t uid, const char *uuid, char ret_key[PTC_USER_KEY]);

/* Whether etcd has room for another job of `bytes` bytes. Call it before the job is announced. */
int ptc_quota_room(struct ptc_cluster *c, uint64_t bytes, struct ptc_error *err);
/* Whether the user may have the jobs that are announced. Call it after the new job is announced. */
int ptc_quota_job(struct ptc_cluster *c, uid_t uid, struct ptc_error *err);
/* Whether a document of an existing job may be written. what: its name in the message, e.g. "the layout". */
int ptc_quota_document(struct ptc_cluster *c, uid_t uid, size_t bytes, const char *what, struct ptc_error *err);
