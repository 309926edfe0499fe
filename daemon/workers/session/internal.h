/* SPDX-License-Identifier: Apache-2.0 */
/* What the session room's files share. */
#pragma once

#include "daemon/workers/session/rank_conn.h"
#include "daemon/workers/session/rank_meet.h"
#include "daemon/workers/session/session.h"
#include "daemon/workers/state/group_find.h"
#include "daemon/workers/state/rank_declarations.h"
#include "daemon/workers/state/rank_news.h"
#include "daemon/workers/state/workers_sync.h"

void ptc_meet_message_locked(struct ptc_workers *w, struct worker *k, uint16_t type, const struct ptc_local_meet *m);
/* 0: it is among the group's keys; 1: it was already. */
int ptc_meet_add(struct group *g, const char *key, const void *value, size_t len, struct ptc_error *err);
void ptc_meets_keep(const struct group *g, const struct meet_entry *e);
