/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that ask: nodes, jobs, status, snapshots, events. Handlers run on server threads. */
#pragma once

#include "daemon/api/caller/caller.h"

/* api_query.c: JSON [{rank, node, device}] of v's committed generation; ptc_free it. NULL: out of memory. */
char *ptc_api_ranks_json(const struct ptc_generation_doc *g);

/* api_query.c: receives a request without members, and calls fn on the loop once the mirror is complete. */
int ptc_api_list(struct ptc_daemon *d, struct ptc_rpc_call *call, void (*fn)(void *arg), void *arg,
		 struct ptc_error *err);

/* api_nodes.c */
PTC_API_HANDLER(ptc_api_nodes);

/* api_query.c */
PTC_API_HANDLER(ptc_api_job_list);
PTC_API_HANDLER(ptc_api_status);
PTC_API_HANDLER(ptc_api_snapshots);
PTC_API_HANDLER(ptc_api_events);

/* api_evidence.c */
PTC_API_HANDLER(ptc_api_evidence);
