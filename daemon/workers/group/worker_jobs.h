/* SPDX-License-Identifier: Apache-2.0 */
/* A job's folder, socket, processes and groups on this node: made with its first group, freed once
 * nothing of it is left. The rest is what the loop (workers.c) does with them from time to time. */
#pragma once

#include "daemon/workers/state/worker_state.h"

int ptc_workers_job_make_locked(struct ptc_workers *w, const char *uuid, uid_t uid, struct job **ret,
				struct ptc_error *err);
void ptc_workers_job_free(struct job *job);
/* Takes up what an earlier ptcd has started. */
int ptc_workers_adopt(struct ptc_workers *w, struct ptc_error *err);
/* After ptc_workers_adopt: groups that were found ending are told to end again. */
void ptc_workers_end_again_locked(struct ptc_workers *w);
void ptc_workers_signals_locked(struct ptc_workers *w, int64_t now_ns);
void ptc_workers_forgotten_locked(struct ptc_workers *w);
