/* SPDX-License-Identifier: Apache-2.0 */
/* New ranks that build before their switch begins, while the old ones train. So the switch finds them ready, and a
 * fault in their building shows while nothing has stopped.
 *
 * Happy path: a resize is submitted -> the devices of its ranks are claimed -> each node starts its new ranks, and
 * builds them with the rank state of the newest snapshot -> all have declared, and their layout is written down -> all
 * have memory for what they declared -> the switch begins. It has the same id, so the nodes answer its requests for
 * these ranks at once. Snapshots go on meanwhile. A snapshot ends the requests to the nodes; after it the requests are
 * sent again.
 *
 * Failure modes: another job has a device, what ranks declare does not fit the state, a node or a rank fails, somebody
 * aborts the resize, or the job ends or loses ranks. The resize then ends with one line that says so, and the new ranks
 * are ended. If this daemon loses the job's lock, the next controller knows nothing of the new ranks, and its first
 * FINISH ends them. Loop thread. */
#pragma once

#include "daemon/controller/controller.h"

struct ptc_ahead; /* one resize whose ranks build */

/* Takes r's owned members if it returns 0. Then call ptc_recovery_ask: ptc_ahead_slowed needs the steps of the ranks
 * that train. */
int ptc_ahead_begin(struct ptc_controller *ctl, struct ptc_switch_request *r, struct ptc_error *err);
/* Call it every 200 ms. May free ctl unless the caller holds a reference. */
void ptc_ahead_tick(struct ptc_controller *ctl);
/* Ends the resize whose ranks build, if there is one. why: one line. */
void ptc_ahead_stop(struct ptc_controller *ctl, int status, const char *why);
/* True: ranks build before their switch; *ret_id is the switch's id. */
bool ptc_ahead_builds(const struct ptc_controller *ctl, uint64_t *ret_id);
/* Takes the watcher of the caller that waits for the resize, so that the taker tells that caller the end. NULL: nobody
 * waits. */
struct ptc_watcher *ptc_ahead_take_watcher(struct ptc_controller *ctl);
/* Call it when the switch under way is over. */
void ptc_ahead_over(struct ptc_controller *ctl);
/* The group that FINISH lets stay beside the record's. False: there is none. */
bool ptc_ahead_stays(const struct ptc_controller *ctl, uint64_t *ret_generation, uint64_t *ret_incarnation);
/* True: the running switch has found its ranks built; *ret_seconds is how long they took. */
bool ptc_ahead_took(const struct ptc_controller *ctl, double *ret_seconds);
/* How much longer the old ranks took for their steps because the new ones built beside them: the time from the begin of
 * the building to until_ns, minus the time that as many steps took before. step: the last step that the old ranks had
 * ended at until_ns. The result is at least 0, and exact to about one step. False: it is not known. */
bool ptc_ahead_slowed(const struct ptc_controller *ctl, int64_t until_ns, uint64_t step, double *ret_seconds);
