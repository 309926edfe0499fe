/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of daemon/workers/session. */
#pragma once

#include "daemon/workers/session/rank_conn.h"
#include "daemon/workers/session/rank_rendezvous.h"
#include "daemon/workers/session/session.h"
#include "daemon/workers/state/group_find.h"
#include "daemon/workers/state/rank_declarations.h"
#include "daemon/workers/state/rank_events.h"
#include "daemon/workers/state/workers_sync.h"

/* worker_life.c */
void ptc_worker_drop_generation(struct worker *k); /* what it has said of its generation, and what it was given */
void ptc_worker_drop_page(struct worker *k);
void ptc_worker_see(struct worker *k, uint64_t step, int64_t now_ns); /* it was at this step */

/* rank_rendezvous.c */
void ptc_rendezvous_message_locked(struct ptc_workers *w, struct worker *k, uint16_t type,
				   const struct ptc_local_rendezvous *m);
/* rendezvous_file.c. NULL: the group has no such key. */
struct rendezvous_entry *ptc_rendezvous_find(const struct group *g, const char *key);
/* 0: the key is added; 1: the group had it already. */
int ptc_rendezvous_add(struct group *g, const char *key, const void *value, size_t len, struct ptc_error *err);
void ptc_rendezvous_keep(const struct group *g, const struct rendezvous_entry *e);
