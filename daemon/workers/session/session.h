/* SPDX-License-Identifier: Apache-2.0 */
/* Workers, the processes of ranks: their life, their messages, and ptcd's answers. The loop and the groups call this.
 * Failure modes: session.c, worker_life.c, rank_hello.c. */
#pragma once

#include "daemon/workers/session/rank_conn.h"
#include "daemon/workers/state/worker_state.h"

/* Handles a message. False: the message is not allowed now, or cannot be decoded; the connection is refused. */
bool ptc_worker_message_locked(struct ptc_workers *w, struct worker *k, const struct ptc_local_message *m);
void ptc_worker_hello_locked(struct ptc_workers *w, struct conn *c, struct ptc_local_message *m);
void ptc_worker_advance_locked(struct ptc_workers *w, struct worker *k);
void ptc_worker_exited_locked(struct ptc_workers *w, struct worker *k);
void ptc_worker_sample_locked(struct worker *k, int64_t now_ns);
struct worker *ptc_worker_new_locked(struct job *job, unsigned number); /* not spawned yet; NULL: out of memory */
void ptc_worker_remove_locked(struct worker *k);                        /* from its job; frees it */
/* Takes a worker out of its group. */
void ptc_worker_detach_locked(struct worker *k);
void ptc_worker_want_exit_locked(struct ptc_workers *w, struct worker *k, uint32_t grace_ms);
/* The worker has exited, or has said BYE some time ago and lives on without ptcd. A worker that has just said BYE does
 * not count, because it will probably exit, and its status then says more. */
bool ptc_worker_gone(const struct worker *k);
void ptc_worker_left_locked(struct ptc_workers *w, struct worker *k, int64_t now_ns); /* from time to time */

/* rank_messages.c: reads frames of a rank, a few at a time, and handles them. */
void ptc_conn_read_locked(struct ptc_workers *w, struct conn *c);

/* staging.c: staging memory (copy: fast), to which a rank copies its state when it stops. */
void ptc_worker_stage(struct ptc_workers *w, struct worker *k);
/* Starts a thread that finds out who copies the worker's device memory (ptc_declared_try). If the rank has to copy, it
 * gets staging memory. */
void ptc_worker_try_device(struct ptc_workers *w, struct worker *k);
/* Finds out who copies device memory, by asking ptc-gpu once to map it. Blocks; takes the lock itself. The caller has a
 * reference to d. */
enum device_path ptc_declared_try(struct ptc_workers *w, struct declared *d, pid_t pid);
struct staging *ptc_staging_unref(struct staging *s);

/* rank_rendezvous.c, rendezvous_file.c: rendezvous keys */
void ptc_rendezvous_expire_locked(struct worker *k, int64_t now_ns);
#define PTC_RENDEZVOUS ".rendezvous" /* the end of such a file's name, in the folder of groups */
void ptc_rendezvous_load(struct group *g);
void ptc_rendezvous_unsave(const struct group *g);
/* Adds the keys of a file's bytes to the group. Returns how many bytes are valid. */
size_t ptc_rendezvous_decode(struct group *g, const uint8_t *data, size_t len);
