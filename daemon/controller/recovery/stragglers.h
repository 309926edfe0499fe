/* SPDX-License-Identifier: Apache-2.0 */
/* Finds ranks of a training job that are slower than the job's other ranks: "on_straggler" of its description.
 * daemon/core/slow decides which ranks are slow. This file gives it the ranks' reports, and reports the result to
 * people. Loop thread. */
#pragma once

#include "base/limits.h"

#include <stdbool.h>
#include <stdint.h>

struct ptc_controller;
struct ptc_rank_row;

/* At most so many slow ranks are shown, in an event, in status and as metrics: the text stays one line. */
#define PTC_STRAGGLERS_SHOWN 8

struct ptc_straggler {
	uint32_t rank;
	char node[PTC_NAME_MAX + 1];
	double own_s, median_s; /* a step, in the last window; of the ranks of its pipeline stage */
};
/* The ranks that are slow now, the lowest first; *ret_all: how many there are. ctl NULL: none. */
uint32_t ptc_stragglers(const struct ptc_controller *ctl, struct ptc_straggler ret[PTC_STRAGGLERS_SHOWN],
			uint32_t *ret_all);
/* For status: docs/control.md, `stragglers` of `run`. */
struct ptc_stragglers_said {
	uint32_t windows; /* that have ended; 0: the job does not ask for it, or nothing is known yet */
	uint32_t comparable, slow, n;
	struct ptc_straggler v[PTC_STRAGGLERS_SHOWN]; /* of the slow ones, the lowest n */
	char text[200];                               /* why some cannot be compared; "": all can */
};
void ptc_stragglers_say(const struct ptc_controller *ctl, struct ptc_stragglers_said *ret);

/* Each 200 ms, of a job that trains and all of whose nodes are up. True: its nodes are to be asked (ptc_recovery_ask).
 */
bool ptc_stragglers_tick(struct ptc_controller *ctl);
/* Each 200 ms, of a job that trains and all of whose nodes are up: leaves devices on which ranks are slow
 * (straggler_drain.h). True: something is under way, and nothing else is to be begun. */
bool ptc_stragglers_leave(struct ptc_controller *ctl);
/* Takes a row about a rank of the record's incarnation from a node's answer to Ranks. The rank's own work is its report
 * own_seconds (docs/failures.md). */
void ptc_stragglers_saw(struct ptc_controller *ctl, const struct ptc_rank_row *row);
