/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of live jobs on this node: their processes (spawn.h), their connections, and the steps of a switch with
 * them. The agent's peer calls are thin layers over this.
 *
 * Terms
 *   group    the ranks of one (job, generation, incarnation) on this node
 *   slot     one rank of a group: its process, its connection, its declarations
 *
 * Happy path, by call: start -> (training goes on) -> arm, arm, wait_stopped -> slots read by the agent -> end -> build
 * -> slots restored by the agent -> go.
 *
 * Failure modes: token, uid and pid tell whether a process is the one that its slot was made for; another process is
 * refused. The rooms' headers have the rest: group/ (rank_groups.h, rank_slots.h, rank_status.h), session/
 * (rank_rendezvous.h), types/.
 *
 * Threads: every function may be called from any thread. */
#pragma once

#include "base/status.h"
#include "daemon/workers/types/workers_env.h"

/* Adopts the processes that an earlier ptcd has started; they connect again by themselves. */
int ptc_workers_new(const struct ptc_workers_env *env, struct ptc_workers **ret_workers, struct ptc_error *err);
/* Returns when the last call of `event` has returned; later events are told to nobody. For an owner whose `event` needs
 * something that ends before the workers do. NULL: nothing. */
void ptc_workers_silence(struct ptc_workers *w);
/* The processes go on. */
struct ptc_workers *ptc_workers_free(struct ptc_workers *w);
