/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks take longer over their own work than the others that do the same work. Pure: no clock, memory or thread;
 * the caller owns the ranks, and gives samples and the end of each round. docs/failures.md ("Slow ranks") has the rule
 * for users, docs/decisions/0039 its reasons.
 *
 * In synchronous training all ranks' steps take equally long, because each waits for the slowest. So the rule compares
 * not steps but the rank's own work in them: a growing sum of seconds, which only its program knows.
 *
 * A window ends when every rank has made `steps` steps since it began. Each rank then has one number: its own seconds a
 * step. The numbers of one role (a pipeline stage) have a median and a spread. The spread is 1.4826 times the median of
 * the distances to the median; this is the standard deviation if the numbers are normal. A rank is over the limit if it
 * exceeds the median by more than `percent`, and by more than PTC_SLOW_SPREADS spreads. After PTC_SLOW_WINDOWS such
 * windows in a row the rank is slow. After PTC_SLOW_WINDOWS windows in a row in which it exceeds the median by at most
 * half of `percent`, it is slow no longer. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTC_SLOW_RANKS_MIN 3 /* with fewer of a role nobody knows which one is the slow one */
#define PTC_SLOW_SPREADS   5
#define PTC_SLOW_WINDOWS   3

struct ptc_slow_sample {
	bool known; /* the rank has a step */
	bool tells; /* .. and tells of its own work */
	uint64_t step;
	double own_s; /* counted from any moment that is the same for all samples of an incarnation */
};
struct ptc_slow_rank {
	uint32_t role; /* set by the caller; all else begins as 0 */
	struct ptc_slow_sample began, now;
	/* of the last window */
	enum ptc_slow_word {
		PTC_SLOW_UNKNOWN, /* it does not tell of its work, or too few of its role do */
		PTC_SLOW_WITHIN,  /* at most half of `percent` above the median */
		PTC_SLOW_BETWEEN, /* neither within nor over */
		PTC_SLOW_OVER,
	} word;
	/* seconds per step, of the rank and the median of its role, in the last window in which its work was known */
	double own_s, median_s;
	uint32_t over, within; /* windows in a row */
	bool slow;
};
struct ptc_slow_scratch { /* one for each rank, for the call only */
	uint32_t role, rank;
	double value;
};

/* Adds a sample of a rank. own_s NULL: the rank does not report its own work. A sum that is not a number, or that is
 * less than before, makes the rank unknown for this window. */
void ptc_slow_see(struct ptc_slow_rank *r, uint64_t step, const double *own_s);
/* Ends a round of samples. False: the window goes on. True: the window has ended, words and `slow` have its result, and
 * the next window has begun. */
bool ptc_slow_judge(struct ptc_slow_rank *ranks, size_t n, uint64_t steps, uint32_t percent,
		    struct ptc_slow_scratch *scratch);
