/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that change a job: create, delete, plan, resize, run, stop, snapshot. Also the logs of its ranks. Handlers run
 * on server threads. */
#pragma once

#include "daemon/api/caller/caller.h"
#include "daemon/controller/switch_plan.h"

/* api_switch.c: ptc_api_start_switch plans on this thread and submits the switch to this daemon's controller.
 * It waits while the controller only tidies up. */
struct ptc_api_ask {
	enum ptc_switch_kind kind;
	bool start;      /* resize: starts the job's ranks, which do not run */
	bool stop;       /* snapshot: the job stops with it; halt: always true */
	uint64_t source; /* import: the older snapshot that the job goes back to */
	bool skip_data;  /* with source: the job's position in the data stays what it is */
};
int ptc_api_start_switch(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *job,
			 const struct ptc_api_ask *ask, const struct ptc_plan_request *pr, struct ptc_watcher *w,
			 uint64_t id, struct ptc_error *err);
/* Whether nodes have all of an older snapshot; PTC_ELOST naming a tensor. skip_data: also whether the job could then
 * skip the samples that it has consumed since. If its ranks run, one more snapshot is taken before the rollback.
 * Blocking, not on the loop. */
int ptc_api_check_rollback(struct ptc_daemon *d, struct ptc_target *t, uint64_t snapshot, bool skip_data,
			   struct ptc_error *err);
/* first_step.c: streams a switch's progress. If the switch starts ranks, the last message waits for their first step.
 */
int ptc_api_stream(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_watcher *w, struct ptc_rpc_call *call,
		   struct ptc_error *err);
uint64_t ptc_api_new_id(void);

/* api_leave.c: a node that is taken away. Waits until the jobs have left it, or the time is over. *ret_summary:
 * docs/control.md, drain; ptc_free it. */
struct ptc_api_leaving {
	const char *node;
	char (*jobs)[PTC_UUID_TEXT];
	size_t njobs;
	uint64_t within_ms;
	bool closed; /* it is drained for all jobs */
};
int ptc_api_leave_all(struct ptc_daemon *d, struct ptc_rpc_call *call, const struct ptc_api_leaving *what,
		      char **ret_summary, struct ptc_error *err);
PTC_API_HANDLER(ptc_api_leave);

/* api_switch.c */
PTC_API_HANDLER(ptc_api_job_create);
PTC_API_HANDLER(ptc_api_plan);
PTC_API_HANDLER(ptc_api_resize);
PTC_API_HANDLER(ptc_api_abort);
/* api_drain.c */
PTC_API_HANDLER(ptc_api_drain);
/* api_delete.c */
PTC_API_HANDLER(ptc_api_job_delete);
/* api_advise.c */
PTC_API_HANDLER(ptc_api_advise);
/* api_lost.c */
PTC_API_HANDLER(ptc_api_node_lost);
PTC_API_HANDLER(ptc_api_node_forget);
PTC_API_HANDLER(ptc_api_device_bad);
/* api_profile.c */
PTC_API_HANDLER(ptc_api_profile);
/* api_probe.c */
PTC_API_HANDLER(ptc_api_probe);
/* api_live.c */
PTC_API_HANDLER(ptc_api_run);
PTC_API_HANDLER(ptc_api_stop);
PTC_API_HANDLER(ptc_api_snapshot);
PTC_API_HANDLER(ptc_api_rollback);
PTC_API_HANDLER(ptc_api_rollback_skipping);
/* api_logs.c */
PTC_API_HANDLER(ptc_api_logs);
