/* SPDX-License-Identifier: Apache-2.0 */
/* Processes of ranks as workers: their life, what they say and what they are told next. The loop
 * and the groups call this. Failure modes: session.c. */
#pragma once

#include "daemon/workers/session/rank_conn.h"
#include "daemon/workers/state/worker_state.h"

/* false: not allowed now, or not decodable; the connection is refused. */
bool ptc_worker_message_locked(struct ptc_workers *w, struct worker *k, const struct ptc_local_message *m);
void ptc_worker_hello_locked(struct ptc_workers *w, struct conn *c, struct ptc_local_message *m);
void ptc_worker_advance_locked(struct ptc_workers *w, struct worker *k);
void ptc_worker_exited_locked(struct ptc_workers *w, struct worker *k);
void ptc_worker_sample_locked(struct worker *k, int64_t now_ns);
struct worker *ptc_worker_new_locked(struct job *job, unsigned number); /* not spawned yet; NULL: out of memory */
void ptc_worker_remove_locked(struct worker *k);                        /* from its job; frees it */
/* Takes it out of its group. */
void ptc_worker_detach_locked(struct worker *k);
void ptc_worker_want_exit_locked(struct ptc_workers *w, struct worker *k, uint32_t grace_ms);
/* It has exited, or has said BYE and lives on without us. One that has just said BYE is likely to exit, and then we know more. */
bool ptc_worker_gone(const struct worker *k);
void ptc_worker_left_locked(struct ptc_workers *w, struct worker *k, int64_t now_ns); /* from time to time */

/* rank_messages.c: hands on what the rank has sent, some frames at a time. */
void ptc_conn_read_locked(struct ptc_workers *w, struct conn *c);

/* staging.c: copy: fast. Memory of ours that a rank copies its state to when it stops. */
void ptc_worker_stage(struct ptc_workers *w, struct worker *k);
/* Has a thread find out who copies its device memory (ptc_declared_try); the rank gets staging memory if it has to. */
void ptc_worker_try_device(struct ptc_workers *w, struct worker *k);
/* Who copies it: asks ptc-gpu to map it, once. Without the lock, which it takes; blocks. d is referred to by the caller. */
enum device_path ptc_declared_try(struct ptc_workers *w, struct declared *d, pid_t pid);
struct staging *ptc_staging_unref(struct staging *s);

/* rank_rendezvous.c, rendezvous_file.c: rendezvous keys */
void ptc_rendezvous_expire_locked(struct worker *k, int64_t now_ns);
#define PTC_RENDEZVOUS ".rendezvous" /* ends such a file's name, in the folder of groups */
void ptc_rendezvous_load(struct group *g);
void ptc_rendezvous_unsave(const struct group *g);
/* Keys of a file's bytes; returns how many bytes of them are good. */
size_t ptc_rendezvous_decode(struct group *g, const uint8_t *data, size_t len);
