/* SPDX-License-Identifier: Apache-2.0 */
/* Rules for what a switch does with ranks' blobs (formats/state/state_doc.h): "blobs" of job.yaml (docs/job.md), and
 * the decision for each blob. The first rule whose pattern fits a blob's name counts:
 *
 * - none: the blob is restored where its coordinates (tp, pp, dp, cp) exist. A blob without a place stays in the state
 *   document for a later configuration that has the place again, until ranks give a new one.
 * - carry: as none, but each blob must find its place, and each new rank must get one. Otherwise the switch is refused.
 * - replicate: a rank without a blob of its own gets that of the lowest rank that has one.
 * - reset: no rank of the new generation has one.
 * - refuse: no rank may give one.
 *
 * A rank is gone if its coordinates exist in the old configuration and not in the new one; it is new in the opposite
 * case. A job's blob (PTC_STATE_JOB) always has a place, so only reset and refuse affect it. A blob of scope
 * PTC_STATE_TP has a place wherever a rank of its tensor-parallel group has one, if all these have the same bytes.
 * Otherwise it is treated as a rank's own.
 *
 * Failure modes: PTC_ESTATE, which names blob, rule and ranks; PTC_ELIMIT: replicas exceed a state document's limits;
 * PTC_ENOMEM. Pure. */
#pragma once

#include "formats/state/state_doc.h"

#define PTC_BLOB_RULES_MAX 256 /* rules of a job; a rank has PTC_STATE_BLOBS names */

enum ptc_blob_fate { PTC_FATE_NONE, PTC_FATE_CARRY, PTC_FATE_REPLICATE, PTC_FATE_RESET, PTC_FATE_REFUSE };
const char *ptc_blob_fate_name(enum ptc_blob_fate fate); /* the word in job.yaml; NULL for PTC_FATE_NONE */

struct ptc_blob_rule {
	char *match; /* glob for the blob's name, as `match` of reshard/spec/rule.h */
	enum ptc_blob_fate fate;
};
struct ptc_blob_rules {
	struct ptc_blob_rule *v;
	size_t n;
};
void ptc_blob_rules_done(struct ptc_blob_rules *r); /* NULL ok; zeroes it */
/* Whether every name that fits `later` also fits `earlier`. Also false where the patterns do not show it. */
bool ptc_blob_rule_shadows(const char *earlier, const char *later);

/* Checks the blobs that ranks gave. PTC_ESTATE: a rule refuses one. */
int ptc_blobs_check(const struct ptc_blob_rules *rules, const struct ptc_state *state, struct ptc_error *err);

#define PTC_BLOBS_TEXT 1536
/* The blobs that a switch does not bring to the place where they were. */
struct ptc_blobs_review {
	uint64_t gone;             /* per-rank blobs that are dropped, because their ranks are gone */
	uint32_t without;          /* new ranks without a blob of some name that other ranks have */
	uint64_t replicated;       /* per-rank blobs copied from another rank */
	uint64_t group;            /* per-rank blobs from ranks that differ in tp only (PTC_STATE_TP) */
	uint64_t reset;            /* blobs that are reset, a job's too */
	char text[PTC_BLOBS_TEXT]; /* all of this in one line; "": there is nothing to report */
};
struct ptc_blobs_switch {
	const struct ptc_blob_rules *rules;
	const struct ptc_state *state; /* the snapshot's rank state */
	const struct ptc_config *from, *to;
};
/* Applies the rules in a switch. *ret_changed: the new generation has another state document, which is in *ret_state.
 * Otherwise *ret_state is unchanged. The ranks in *ret_state have the new configuration's numbers; ranks without a
 * place in it come after them. */
int ptc_blobs_apply(const struct ptc_blobs_switch *sw, struct ptc_blobs_review *ret_review, bool *ret_changed,
		    struct ptc_state *ret_state, struct ptc_error *err);
