/* SPDX-License-Identifier: Apache-2.0 */
/* What a node says of a job's ranks there: its answer to Peer/Ranks. Some members are for daemons that decide
 * by it, others for status. Plain data of the caller, any thread.
 *
 * Failure modes: PTC_EINVAL (a member has an impossible value; the error names it), PTC_ENOMEM. What a row does not say
 * is 0, false or NULL. */
#pragma once

#include "formats/members.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A number that the program reports, such as its loss. */
struct ptc_rank_report {
	const char *name;
	double value; /* NAN: it is no number */
};
/* Who copies what the rank has declared on devices. */
struct ptc_rank_memory {
	const char *copied_by, *marks; /* NULL: the row says nothing of such memory */
	bool has_step, whole;
	uint64_t step;               /* of the newest mark on the device; whole: the state is whole there */
	const char *why;             /* why the copier is not ptc-gpu */
	const char *copy, *copy_why; /* "async" or "lean"; why it is not async */
};
/* Of a slot, or of a process that has a log but no slot any more. */
struct ptc_rank_row {
	uint64_t rank, generation, incarnation;
	uint64_t world, since_ms; /* number of ranks; when its process became this rank */
	char state[32];           /* "running", ... */
	bool slot;                /* the row is of a rank slot: it has a pid, if only 0 */
	int64_t pid;              /* of the process that the node has started */
	int64_t program_pid;      /* of the one that uses libptc: with a launcher it is another; 0: not known */
	bool lives;               /* it has a process, as far as the row says */
	bool has_step, has_start, has_whole, whole;
	uint64_t step, start_step;    /* the last one that it has ended; where it began */
	double step_s, median_step_s; /* the last one; the middle of a few */
	bool has_stalled, has_hangs;
	int64_t stalled_s, hangs_s;
	double peak_bytes, own_s; /* of its reports: peak_bytes, own_seconds */
	bool has_own;             /* own_s is known */
	bool says_device;         /* the next two are known */
	bool on_device;           /* its process has or had a device */
	int64_t device;           /* which */
	struct ptc_rank_memory memory;
	bool says_survives, survives;  /* known; its memory could be taken, were a node lost (ptc_survive) */
	const char *survives_not;      /* why it could not */
	bool survives_broken;          /* because it was found not to be what the program promises */
	bool has_sampled, has_checked; /* the next two are known */
	uint64_t sampled,
		checked; /* the last steps at which pieces of it were compared, and the program's checks passed */
	struct ptc_rank_report *reports; /* in the rank's order */
	size_t nreports;
	uint64_t memory_peak; /* the most that its process has had to itself; 0: not known */
	const char *cgroup, *log;
};
extern const struct ptc_members ptc_rank_row_members; /* those that status shows */
extern const struct ptc_members ptc_rank_row_answer;  /* a row of the answer, which is a list of them */
/* Zeroed, or filled in by _decode, which owns the texts and reports of the rows. */
struct ptc_rank_rows {
	struct ptc_rank_row *v;
	size_t n;
};
int ptc_rank_rows_decode(const char *json, struct ptc_rank_rows *ret, struct ptc_error *err);
void ptc_rank_rows_done(struct ptc_rank_rows *r);
/* The row of a rank in that incarnation of a generation. NULL: there is none. */
const struct ptc_rank_row *ptc_rank_rows_find(const struct ptc_rank_rows *said, uint32_t rank, uint64_t generation,
					      uint64_t incarnation);
