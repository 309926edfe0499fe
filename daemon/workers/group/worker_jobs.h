/* SPDX-License-Identifier: Apache-2.0 */
/* A job's folder, socket, processes and groups on this node. They are made with the job's first group, and freed once
 * nothing of the job is left. The loop (workers.c) calls the last functions from time to time. */
#pragma once

#include "daemon/workers/state/worker_state.h"

int ptc_workers_job_make_locked(struct ptc_workers *w, const char *uuid, uid_t uid, struct job **ret,
				struct ptc_error *err);
void ptc_workers_job_free(struct job *job);
/* Adopts the processes and groups of an earlier ptcd, and removes cgroups that nobody knows of any more. */
int ptc_workers_adopt(struct ptc_workers *w, struct ptc_error *err);
/* Call this after ptc_workers_adopt: it ends the groups again that were ending. */
void ptc_workers_end_again_locked(struct ptc_workers *w);
void ptc_workers_signals_locked(struct ptc_workers *w, int64_t now_ns);
/* group_hold.c. Begins and ends holds, and goes on with those that there are. True: ranks are being frozen. */
bool ptc_workers_holds_locked(struct ptc_workers *w, int64_t now_ns);
void ptc_workers_let_all_go_locked(struct ptc_workers *w);
/* standby.c. Starts processes that wait, one after the other; ends those that are too many, or late. */
void ptc_workers_standbys_locked(struct ptc_workers *w, int64_t now_ns);
void ptc_workers_forgotten_locked(struct ptc_workers *w);
