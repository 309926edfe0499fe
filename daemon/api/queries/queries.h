/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that ask: nodes, jobs, status, snapshots, events. Handlers run on server threads. */
#pragma once

#include "daemon/api/caller/caller.h"

/* control_query.c: JSON [{rank, node, device}] of v's committed generation; ptc_free it. NULL: out of memory. */
char *ptc_control_ranks_json(const struct ptc_view *v);

/* control_query.c */
PTC_CONTROL_HANDLER(ptc_control_nodes);
PTC_CONTROL_HANDLER(ptc_control_job_list);
PTC_CONTROL_HANDLER(ptc_control_status);
PTC_CONTROL_HANDLER(ptc_control_snapshots);
PTC_CONTROL_HANDLER(ptc_control_events);

/* control_evidence.c */
PTC_CONTROL_HANDLER(ptc_control_evidence);
