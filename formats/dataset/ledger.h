/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger: the samples that a job's state has consumed. For each generation and cursor, it has the steps, the
 * positions, and how they were divided. It belongs to a snapshot, whose manifest holds it. So steps that were trained
 * and lost are not in it, and steps that were trained twice are in it once.
 *
 * Happy path: each snapshot of running ranks notes their cursors. A generation's entry grows until the next generation
 * begins. Positions that a rollback has skipped have an entry of no step and no rank. Beyond PTC_LEDGER_MAX entries,
 * the oldest are forgotten and counted. Failure modes: PTC_ENOMEM; a malformed document is refused whole. Pure. */
#pragma once

#include "formats/members.h"
#include "order/order.h"

#define PTC_LEDGER_MAX 512

struct ptc_ledger_entry {
	char *cursor, *tag;
	uint64_t generation;
	uint64_t first_step, end_step; /* steps first_step .. end_step - 1 */
	uint64_t first, end;           /* positions first .. end - 1, which these steps consumed */
	/* dp 0: no rank had these positions, because a rollback has skipped them (ptc_ledger_skip). */
	uint32_t dp, micro;
	uint64_t batch; /* micro, batch: samples; 0 where neither the tag nor the configuration says */
};
static inline bool ptc_ledger_skipped(const struct ptc_ledger_entry *e)
{
	return e->dp == 0;
}
struct ptc_ledger {
	struct ptc_ledger_entry *v;
	size_t n;
	uint64_t forgotten;
};
void ptc_ledger_done(struct ptc_ledger *l); /* frees and zeroes it */
/* Returns 0 or PTC_ENOMEM. */
int ptc_ledger_copy(const struct ptc_ledger *l, struct ptc_ledger *ret_copy);
/* Notes a snapshot's cursor. `now` has cursor, tag, generation, end_step, end, dp, micro and batch; it is copied.
 * first_step and first follow from the cursor's last entry; without one, they are now's. Returns 0 or PTC_ENOMEM. */
int ptc_ledger_note(struct ptc_ledger *l, const struct ptc_ledger_entry *now);
/* Notes that the state of l goes on after the samples that `now` has consumed. For each cursor of `now` that is ahead
 * of l, the positions between are noted as skipped, under that generation. step: the step of l's state, for cursors
 * that l does not have. Returns 0 or PTC_ENOMEM. */
int ptc_ledger_skip(struct ptc_ledger *l, const struct ptc_ledger *now, uint64_t generation, uint64_t step);
/* Whether the ledger has the cursor, and ends at that position. */
bool ptc_ledger_ends_at(const struct ptc_ledger *l, const char *cursor, uint64_t position);
extern const struct ptc_members ptc_ledger_members;
/* Returns 0, PTC_EINVAL, PTC_ELIMIT or PTC_ENOMEM. */
int ptc_ledger_from_json(const json_t *root, struct ptc_ledger *ret_ledger);

/* The position of a cursor after `step` steps that consume `batch` samples each. It counts from the cursor's last
 * entry; without one, from position 0 at old_step. */
uint64_t ptc_ledger_position(const struct ptc_ledger *l, const char *cursor, uint64_t old_step, uint64_t step,
			     uint64_t batch);

/* The order of samples, as a cursor's tag names it. For one dataset: "n=N,seed=S", then perhaps ",block=B" or
 * ",sequential=1". For a mixture: "mix=M,seed=S", where M is ptc_job_data_mix of the job's description of that cursor.
 *
 * After a ';' come words that ptc.torch does not compare. "batch=G,micro=M" are the batch sizes. "by_length=1": ranks
 * divide a batch by the samples' lengths. "linear=A,square=B" say what a sample costs there (docs/order.md); without
 * them only the ranks know the division. "micro_steps=2x6:4x3": ranks compute unequally many micro steps
 * (ptc_micro_runs_parse). "counted": no rank has set the cursor, so nobody confirms that the samples
 * were consumed. Other words are skipped.
 *
 * ptc_ledger_tag parses a tag. false: seed is missing; n and mix are both missing or both there; n is 0; or a number is
 * malformed. */
struct ptc_ledger_order {
	uint64_t n, seed, block, batch; /* n: 0 for a mixture */
	uint64_t linear, square;        /* both 0: the tag does not say */
	uint32_t micro;
	bool sequential, by_length, counted;
	char mix[33];                      /* "": one dataset */
	struct ptc_micro_runs micro_steps; /* n 0: equally many */
};
bool ptc_ledger_tag(const char *tag, struct ptc_ledger_order *ret_order);
