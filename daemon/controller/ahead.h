/* SPDX-License-Identifier: Apache-2.0 */
/* New ranks that build before their switch begins, while the old ones train. So the switch finds them ready, and
 * whatever fails when they build fails while nothing has stopped.
 *
 * Happy path: a resize is submitted -> each node starts its new ranks, and builds them with the rank state of the
 * newest snapshot -> all have declared -> the switch begins, with the same id, so that its own requests for them are
 * answered at once. Snapshots are taken meanwhile as ever: they end the nodes' requests, which are sent again
 * afterwards.
 *
 * Failure modes: a node or a rank fails (the resize ends with that line, and the new ranks are ended), somebody aborts
 * it, the job ends or loses ranks (the same). If this daemon loses the job's lock, the next controller knows nothing of
 * the new ranks, and its first FINISH ends them. Loop thread. */
#pragma once

#include "daemon/controller/controller.h"

struct ptc_ahead; /* one resize whose ranks build */

/* Takes r's owned members if it returns 0. */
int ptc_ahead_begin(struct ptc_controller *ctl, struct ptc_switch_request *r, struct ptc_error *err);
/* Call it every 200 ms. May free ctl unless the caller holds a reference. */
void ptc_ahead_tick(struct ptc_controller *ctl);
/* Ends it, if there is one that waits for its ranks. why: one line. */
void ptc_ahead_stop(struct ptc_controller *ctl, int status, const char *why);
/* Whether ranks are being built before their switch; its id. */
bool ptc_ahead_builds(const struct ptc_controller *ctl, uint64_t *ret_id);
/* The watcher of whoever waits for it, who is to hear of another end instead. NULL: nobody waits. */
struct ptc_watcher *ptc_ahead_take_watcher(struct ptc_controller *ctl);
/* The switch under way is over. */
void ptc_ahead_over(struct ptc_controller *ctl);
/* Groups that FINISH lets stay beside the record's. False: there is none. */
bool ptc_ahead_stays(const struct ptc_controller *ctl, uint64_t *ret_generation, uint64_t *ret_incarnation);
/* The running switch has found its ranks built; how long that took. */
bool ptc_ahead_took(const struct ptc_controller *ctl, double *ret_seconds);
