/* SPDX-License-Identifier: Apache-2.0 */
/* A job that trains leaves devices on which its ranks are slow (`on_straggler: drain`). What it has left is in etcd
 * (daemon/cluster/devices/slow_devices.h), so the job does not get it before its time is over, whoever controls the
 * job. Here is what only this controller needs. [loop] for all of it. */
#pragma once

#include "daemon/controller/recovery.h"
#include "daemon/core/slow/slow_leave.h"

struct ptc_straggler_drain {
	int64_t seen_ns;    /* by then the mirror shows what was written */
	uint64_t switch_id; /* of ours, until its end was seen; 0: none is under way */
	uint32_t tries;     /* of a switch, for the same devices */
	int64_t again_ns;   /* nothing is decided before */
	uint64_t stays;     /* an event has said that the ranks of this incarnation stay */
	unsigned whys;      /* the reasons in such events (1 << enum ptc_slow_verdict) */
	char left[200];     /* the devices that ranks leave by the switch, for events */
};

/* straggler_drain.c: each 200 ms, of a job that trains and all of whose nodes are up. ranks: n of them, as judged last.
 * True: something is under way, and nothing else is to be begun. */
bool ptc_straggler_drain_tick(struct ptc_controller *ctl, struct ptc_straggler_drain *d,
			      const struct ptc_slow_rank *ranks, uint32_t n);
/* If the job cannot go on with the devices that it may have, this lets it have those that it has left. False: it has
 * left none that could help. */
bool ptc_straggler_drain_yields(struct ptc_controller *ctl);

/* growth.c: a resize of ranks that run, as planned; its id. False: the controller has begun something else meanwhile.
 */
bool ptc_growth_submit(struct ptc_controller *ctl, struct ptc_recovery_plan *p, uint64_t *ret_id);
bool ptc_growth_passes(int status); /* whether a later try may succeed */
