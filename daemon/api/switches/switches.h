/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that change a job: create, delete, plan, resize, run, stop, snapshot, and what its
 * ranks do and wrote meanwhile. Handlers run on server threads. */
#pragma once

#include "daemon/api/caller/caller.h"

/* control_switch.c: plans on this thread and hands the switch to the controller, which is on this daemon; waits while it only tidies up. */
struct ptc_control_ask {
	enum ptc_switch_kind kind;
	bool start; /* resize: the job's ranks do not run, and are to */
	bool stop;  /* snapshot: the job ends with it; halt: always */
};
int ptc_control_start_switch(struct ptc_daemon *d, struct ptc_rpc_call *call, const char *job,
			     const struct ptc_control_ask *ask, const struct ptc_plan_request *pr,
			     struct ptc_watcher *w, uint64_t id, struct ptc_error *err);
/* run_state.c, as is all below but ptc_control_new_id: streams a switch's progress; when ranks were started or stopped, the last message waits for their first step. */
int ptc_control_stream(struct ptc_daemon *d, const struct ptc_target *t, struct ptc_watcher *w,
		       struct ptc_rpc_call *call, struct ptc_error *err);
/* What the ranks of a job do: docs/control.md, `run`. v: its committed generation; NULL: it has none. */
json_t *ptc_control_run_json(struct ptc_daemon *d, const struct ptc_target *t, const struct ptc_view *v);
/* What a node says of the job's ranks there (ptc_workers_json); NULL: it does not answer. */
json_t *ptc_control_ask_ranks(struct ptc_daemon *d, const char *uuid, const char *node, const char *address);
uint64_t ptc_control_new_id(void);

/* control_switch.c */
PTC_CONTROL_HANDLER(ptc_control_job_create);
PTC_CONTROL_HANDLER(ptc_control_job_delete);
PTC_CONTROL_HANDLER(ptc_control_plan);
PTC_CONTROL_HANDLER(ptc_control_resize);
PTC_CONTROL_HANDLER(ptc_control_drain);
PTC_CONTROL_HANDLER(ptc_control_abort);
/* control_advise.c */
PTC_CONTROL_HANDLER(ptc_control_advise);
/* control_profile.c */
PTC_CONTROL_HANDLER(ptc_control_profile);
/* control_live.c */
PTC_CONTROL_HANDLER(ptc_control_run);
PTC_CONTROL_HANDLER(ptc_control_stop);
PTC_CONTROL_HANDLER(ptc_control_snapshot);
/* control_logs.c */
PTC_CONTROL_HANDLER(ptc_control_logs);
