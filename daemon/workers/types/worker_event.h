/* SPDX-License-Identifier: Apache-2.0 */
/* Events of ranks, for the job's controller. daemon/workers makes them, in order for each group. The receiver copies an
 * event that has to outlive the call. No failure modes. */
#pragma once

#include "daemon/workers/types/group_desc.h"

/* NOT_STARTED: a process ended while ptc_workers_start or _build waited for it. The call also says so in one line; the
 * event has the process's log. */
enum ptc_worker_event_kind {
	PTC_WORKER_EVENT_FAILED,
	PTC_WORKER_EVENT_FINISHED,
	PTC_WORKER_EVENT_DUE,
	PTC_WORKER_EVENT_NOT_STARTED,
	PTC_WORKER_EVENT_STALLED, /* the step has not moved for stall_ms; ptcd does nothing about it */
	PTC_WORKER_EVENT_MOVES,   /* the step of a stalled rank moves again */
	PTC_WORKER_EVENT_HANGS,   /* a copy of the rank's memory does not answer, and its process does not end */
	PTC_WORKER_EVENT_ANSWERS, /* the copy that hung has ended */
	PTC_WORKER_EVENT_STANDBY, /* a process that waited without a rank has ended, or does not come to wait */
};
/* An event. A thread of ptc_workers reports it, in order for each group, and again after a restart of ptcd. */
struct ptc_worker_event {
	struct ptc_group_key key;
	enum ptc_worker_event_kind kind;
	uint32_t rank;
	uint64_t step;
	int exit_status;  /* as of wait(2) */
	bool gone;        /* FAILED: this node lost its ranks, or their state; no program is to blame */
	uint64_t devices; /* FAILED: a bit for each device below 64 that ranks of the group have here */
	/* One line. FAILED and NOT_STARTED: the end of the log follows. DUE: "". FINISHED: "", or the ranks with their
	 * steps if ranks here finished at different steps; `step` is the greatest of these. */
	char text[1024];
};
/* Stands between the line of FAILED and NOT_STARTED and the end of the log. */
#define PTC_WORKER_LOG_ENDS "; its log ends:\n"
/* Makes one line of such a text: the event, and the log's last line, which in most languages is the error. Returns buf.
 */
const char *ptc_worker_text_line(const char *text, char *buf, size_t size);
