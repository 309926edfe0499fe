/* SPDX-License-Identifier: Apache-2.0 */
/* What a job's state has consumed: of each generation and cursor which steps and which positions, divided how. It
 * belongs to a snapshot (its manifest has it), so steps that were trained and lost are not in it, and those trained
 * twice are once.
 *
 * Happy path: each snapshot of running ranks notes their cursors; a generation's entry grows until the next begins.
 * Failure modes: PTC_ENOMEM; a document that is malformed is refused whole. Beyond PTC_LEDGER_MAX entries the oldest
 * are forgotten, and counted. */
#pragma once

#include "formats/members.h"

#define PTC_LEDGER_MAX 512

struct ptc_ledger_entry {
	char *cursor, *tag;
	uint64_t generation;
	uint64_t first_step, end_step; /* steps first_step .. end_step - 1 */
	uint64_t first, end;           /* positions first .. end - 1, which are what these steps consumed */
	uint32_t dp, micro;
	uint64_t batch; /* micro, batch: 0 where neither the tag nor the configuration says */
};
struct ptc_ledger {
	struct ptc_ledger_entry *v;
	size_t n;
	uint64_t forgotten;
};
void ptc_ledger_done(struct ptc_ledger *l); /* zeroes it */
/* 0 or PTC_ENOMEM. */
int ptc_ledger_copy(const struct ptc_ledger *l, struct ptc_ledger *ret_copy);
/* now: what a snapshot says, with cursor, tag, generation, end_step, end, dp, micro and batch; copied. first_step and
 * first follow from what was noted of that cursor before, or are now's where there is nothing. 0 or PTC_ENOMEM. */
int ptc_ledger_note(struct ptc_ledger *l, const struct ptc_ledger_entry *now);
extern const struct ptc_members ptc_ledger_members;
/* 0, PTC_EINVAL, PTC_ELIMIT or PTC_ENOMEM. */
int ptc_ledger_from_json(const json_t *root, struct ptc_ledger *ret_ledger);

/* Where a cursor is after `step` steps that takes `batch` samples each: from where it was noted last; from 0 at
 * old_step where it was not yet. */
uint64_t ptc_ledger_position(const struct ptc_ledger *l, const char *cursor, uint64_t old_step, uint64_t step,
			     uint64_t batch);

/* What a cursor's tag says of the order: "n=N,seed=S", then perhaps ",block=B" or ",sequential=1"; or, of a mixture,
 * "mix=M,seed=S", M being ptc_job_data_mix of what the job's description says of that cursor. After a ';', which
 * ptc.torch does not compare, "batch=G,micro=M", and "by_length=1" where ranks divide a batch by what samples cost,
 * from lengths that nobody else knows; "counted" where no rank has set the cursor, so that nobody says that the samples
 * were had. Other words are passed over. False: seed is missing, n and mix are or both are there, n is 0, or a number
 * is none. */
struct ptc_ledger_order {
	uint64_t n, seed, block, batch; /* n: 0 of a mixture */
	uint32_t micro;
	bool sequential, by_length, counted;
	char mix[33]; /* "": one dataset */
};
bool ptc_ledger_tag(const char *tag, struct ptc_ledger_order *ret_order);
