/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that change a job: create, delete, plan, resize, run, stop, snapshot. Also the state of its ranks, and their
 * logs. Handlers run on server threads. */
#pragma once

#include "daemon/api/caller/caller.h"

/* control_switch.c: ptc_control_start_switch plans on this thread and submits the switch to this daemon's controller.
 * It waits while the controller only tidies up. */
struct ptc_control_ask {
	enum ptc_switch_kind kind;
	bool start;      /* resize: starts the job's ranks, which do not run */
	bool stop;       /* snapshot: the job stops with it; halt: always true */
	uint64_t source; /* import: the older snapshot that the job goes back to */
};
int ptc_control_start_switch(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *job,
			     const struct ptc_control_ask *ask, const struct ptc_plan_request *pr,
			     struct ptc_watcher *w, uint64_t id, struct ptc_error *err);
/* Whether nodes have all of an older snapshot; PTC_ELOST naming a tensor. Blocking, not on the loop. */
int ptc_control_check_rollback(struct ptc_daemon *d, const struct ptc_target *t, uint64_t snapshot,
			       struct ptc_error *err);
/* run_state.c, also for the next two functions: streams a switch's progress. If the switch starts ranks, the last
 * message waits for their first step. */
int ptc_control_stream(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_watcher *w,
		       struct ptc_rpc_call *call, struct ptc_error *err);
/* The state of a job's ranks: docs/control.md, `run`. v: the job's committed generation; NULL: it has none. */
json_t *ptc_control_run_json(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v);
/* Asks a node for the job's ranks there (ptc_workers_json). NULL: it does not answer. */
json_t *ptc_control_ask_ranks(struct ptc_daemon *d, const char *uuid, const char *node, const char *address);
uint64_t ptc_control_new_id(void);

/* control_leave.c: a node that is taken away. Waits until the jobs have left it, or the time is over. *ret_summary:
 * docs/control.md, drain; ptc_free it. */
struct ptc_control_leaving {
	const char *node;
	char (*jobs)[PTC_UUID_TEXT];
	size_t njobs;
	uint64_t within_ms;
	bool closed; /* it is drained for all jobs */
};
int ptc_control_leave_all(struct ptc_daemon *d, struct ptc_rpc_call *call, const struct ptc_control_leaving *what,
			  char **ret_summary, struct ptc_error *err);
PTC_CONTROL_HANDLER(ptc_control_leave);

/* control_switch.c */
PTC_CONTROL_HANDLER(ptc_control_job_create);
PTC_CONTROL_HANDLER(ptc_control_plan);
PTC_CONTROL_HANDLER(ptc_control_resize);
PTC_CONTROL_HANDLER(ptc_control_abort);
/* control_drain.c */
PTC_CONTROL_HANDLER(ptc_control_drain);
/* control_delete.c */
PTC_CONTROL_HANDLER(ptc_control_job_delete);
/* control_advise.c */
PTC_CONTROL_HANDLER(ptc_control_advise);
/* control_lost.c */
PTC_CONTROL_HANDLER(ptc_control_node_lost);
PTC_CONTROL_HANDLER(ptc_control_device_bad);
/* control_profile.c */
PTC_CONTROL_HANDLER(ptc_control_profile);
/* control_probe.c */
PTC_CONTROL_HANDLER(ptc_control_probe);
/* control_live.c */
PTC_CONTROL_HANDLER(ptc_control_run);
PTC_CONTROL_HANDLER(ptc_control_stop);
PTC_CONTROL_HANDLER(ptc_control_snapshot);
PTC_CONTROL_HANDLER(ptc_control_rollback);
/* control_logs.c */
PTC_CONTROL_HANDLER(ptc_control_logs);
