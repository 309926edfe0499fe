/* SPDX-License-Identifier: Apache-2.0 */
/* What the session room's files share. */
#pragma once

#include "daemon/workers/session/rank_conn.h"
#include "daemon/workers/session/rank_rendezvous.h"
#include "daemon/workers/session/session.h"
#include "daemon/workers/state/group_find.h"
#include "daemon/workers/state/rank_declarations.h"
#include "daemon/workers/state/rank_events.h"
#include "daemon/workers/state/workers_sync.h"

void ptc_rendezvous_message_locked(struct ptc_workers *w, struct worker *k, uint16_t type,
				   const struct ptc_local_rendezvous *m);
/* rendezvous_file.c; NULL: it is not there. */
struct rendezvous_entry *ptc_rendezvous_find(const struct group *g, const char *key);
/* 0: it is among the group's keys; 1: it was already. */
int ptc_rendezvous_add(struct group *g, const char *key, const void *value, size_t len, struct ptc_error *err);
void ptc_rendezvous_keep(const struct group *g, const struct rendezvous_entry *e);
