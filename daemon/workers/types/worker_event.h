/* SPDX-License-Identifier: Apache-2.0 */
/* Events of ranks for the job's controller. ptcd's ranks room makes them, in order per group;
 * whoever gets one copies what outlives the call. No failure modes. */
#pragma once

#include "daemon/workers/types/group_desc.h"

/* NOT_STARTED: a process ended while ptc_workers_start or _build waited for it. The call says so as well, in one line; this has its log. */
enum ptc_worker_event_kind {
	PTC_WORKER_EVENT_FAILED,
	PTC_WORKER_EVENT_FINISHED,
	PTC_WORKER_EVENT_DUE,
	PTC_WORKER_EVENT_NOT_STARTED,
	PTC_WORKER_EVENT_STALLED, /* the step has not moved for stall_ms; nothing is done about it ... */
	PTC_WORKER_EVENT_MOVES,   /* ... and moves again */
	PTC_WORKER_EVENT_HANGS, /* a copy of the rank's memory has not answered, and its process cannot be ended ... */
	PTC_WORKER_EVENT_ANSWERS, /* ... and has ended */
};
/* What the controller has to hear of; from a thread of ptc_workers, in order per group, repeated after a restart of ptcd. */
struct ptc_worker_event {
	struct ptc_group_key key;
	enum ptc_worker_event_kind kind;
	uint32_t rank;
	uint64_t step;
	int exit_status; /* as of wait(2) */
	/* One line; for FAILED and NOT_STARTED then the end of the log; "" for DUE. FINISHED: "", or who finished where, if ranks
	 * here did at different steps, the greatest of which is `step`. */
	char text[1024];
};
/* Where the text of FAILED and NOT_STARTED goes on with the end of the log. */
#define PTC_WORKER_LOG_ENDS "; its log ends:\n"
/* Such a text as one line: what happened, and the log's last line, which for most languages is the error. Returns buf. */
const char *ptc_worker_text_line(const char *text, char *buf, size_t size);
